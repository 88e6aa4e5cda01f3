package main

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// forms are the ways in which a text could lie in a file, in lower case.
func forms(text string) map[string]string {
	reversed := []byte(text)
	slices.Reverse(reversed)
	all := map[string]string{"as it is": text, "in hexadecimal": hex.EncodeToString([]byte(text)),
		"reversed": string(reversed), "in UTF-16": strings.Join(strings.Split(text, ""), "\x00")}
	for shift := range 3 { // base64 depends on where in it the text begins
		encoded := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat(" ", shift) + text))
		all[fmt.Sprint("in base64 at ", shift)] = strings.ToLower(encoded[2*shift : len(encoded)-3])
	}
	return all
}

// nowhere looks for an address in every file of a directory and in a log.
func nowhere(t *testing.T, when, dir, log, address string) {
	t.Helper()
	local, _, _ := strings.Cut(address, "@")
	for form, text := range forms(local) {
		if names := traces(t, dir, text); len(names) > 0 {
			t.Errorf("%s it stands %s in %q", when, form, names)
		}
		if strings.Contains(strings.ToLower(log), text) {
			t.Errorf("%s it stands %s in the log", when, form)
		}
	}
}

// postTwice posts a lead as a site's form does, retrying once under its key, and checks that the retry added
// nothing.
func (c *customer) postTwice(path, email, source, key string) {
	c.t.Helper()
	var answers [2]answer
	for i := range answers {
		body := seatBody("type", "newsletter", "email", email, "source", source, "page", "/menu")
		answers[i] = c.ask("POST", path, body, "Idempotency-Key: "+key, "Origin: "+siteOrigin)
	}
	first, second := answers[0], answers[1]
	if first.status != 200 || second.body != first.body || second.header.Get("Idempotency-Replayed") != "true" {
		c.t.Fatalf("answered %d %s, then %d %s", first.status, first.body, second.status, second.body)
	}
}

// eraseWays are how an operator or a portal erases an address.
var eraseWays = map[string]func(o *operator, c *customer, email string) (erased any){
	"by the command": func(o *operator, _ *customer, email string) any {
		return o.object("lead", "erase", email)["erased"]
	},
	"over HTTP": func(o *operator, c *customer, email string) any {
		token := strings.TrimSpace(o.do("token", "issue", "-account", o.account, "-scope", "leads:write"))
		a := c.ask("POST", "/v1/leads/erase", seatBody("email", email), "Authorization: Bearer "+token)
		return a.json()["erased"]
	},
}

func TestErase_leavesTheAddressNowhereWhateverHeldIt(t *testing.T) {
	t.Parallel()
	const address = "Forget.Me-7@example.com"
	for way, erase := range eraseWays {
		t.Run(way, func(t *testing.T) {
			o, log, posts := newOperator(t), "", size(24, 120)
			var p *process
			c := &customer{t: t, client: newClient(t)}
			serve := func() {
				p = serveProcess(t, o, "-legacy-sunset", "2100-01-01")
				c.base = strings.TrimSuffix(p.base, "/v1")
			}
			end := func(signal syscall.Signal) {
				p.stop(signal)
				log += p.log.String()
			}
			serve()
			for i := range posts {
				email := []string{address, strings.ToUpper(address[:8]) + address[8:], strings.ToLower(address)}[i%3]
				path := []string{"/v1/widget/leads", "/api/legacy/widget/leads"}[i/3%2]
				c.postTwice(path, email, strings.Repeat("x", i/2)+fmt.Sprint(i), fmt.Sprint("key-", i))
				c.postTwice(path, fmt.Sprintf("other%d@example.com", i), "footer", fmt.Sprint("other-", i))
				if i%(posts/3) == 0 && i > 0 {
					end([]syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i*3/posts-1])
					serve()
				}
			}
			if len(traces(t, o.dir, "forget.me-7@")) == 0 {
				t.Fatal("the address was never there: the test looks at the wrong place")
			}
			if n := erase(o, c, "FORGET.me-7@Example.COM"); n != float64(posts) {
				t.Errorf("%v leads erased", n)
			}
			nowhere(t, "while it serves", o.dir, log, "forget.me-7@")
			c.postTwice("/v1/widget/leads", "later@example.com", "footer", "later")
			end(syscall.SIGTERM)
			nowhere(t, "after a stop", o.dir, log, "forget.me-7@")
			serve()
			end(syscall.SIGKILL)
			nowhere(t, "after a restart", o.dir, log, "forget.me-7@")
			if len(traces(t, o.dir, fmt.Sprintf("other%d@", posts-1))) == 0 {
				t.Error("other addresses are gone too")
			}
		})
	}
}
