package main

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
)

// forms are the ways in which a text could lie in a file, in lower case.
func forms(text string) map[string]string {
	all := map[string]string{"as it is": text, "in hexadecimal": hex.EncodeToString([]byte(text)), "reversed": reversed(text),
		"in UTF-16": strings.Join(strings.Split(text, ""), "\x00")}
	for shift := range 3 { // base64 depends on where in it the text begins
		encoded := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat(" ", shift) + text))
		all[fmt.Sprint("in base64 at ", shift)] = strings.ToLower(encoded[2*shift : len(encoded)-3])
	}
	return all
}

func reversed(s string) string {
	b := []byte(s)
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
	return string(b)
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

// postFrom posts a lead as a site's form does, retrying once under its key, and
// checks that the retry added nothing.
func postFrom(t *testing.T, client *http.Client, url, email, source, key string) {
	t.Helper()
	var bodies [2]string
	for i := range bodies {
		body := fmt.Sprintf(`{"type":"newsletter","email":%q,"source":%q,"page":"/menu"}`, email, source)
		r, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", key)
		r.Header.Set("Origin", siteOrigin)
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != 200 || i == 1 && res.Header.Get("Idempotency-Replayed") != "true" {
			t.Fatalf("%d %s %v", res.StatusCode, text, err)
		}
		bodies[i] = string(text)
	}
	if bodies[0] != bodies[1] {
		t.Fatalf("answered %s, then %s", bodies[0], bodies[1])
	}
}

// eraseWays are how an operator or a portal erases an address.
var eraseWays = map[string]func(*testing.T, *operator, *process, string) (erased float64){
	"by the command": func(_ *testing.T, o *operator, _ *process, email string) float64 {
		return o.object("leads", "erase", email)["erased"].(float64)
	},
	"over HTTP": func(t *testing.T, o *operator, p *process, email string) float64 {
		token := strings.TrimSpace(o.do("token", "issue", "-account", o.account, "-scope", "leads:write"))
		r, err := http.NewRequestWithContext(t.Context(), "POST", p.base+"/leads/erase", strings.NewReader(`{"email":"`+email+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+token)
		res, err := newClient(t).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var erased float64
		if _, err := fmt.Fscanf(res.Body, `{"erased":%g}`, &erased); err != nil {
			t.Fatalf("%d %v", res.StatusCode, err)
		}
		return erased
	},
}

func TestErase_leavesTheAddressNowhereWhateverHeldIt(t *testing.T) {
	t.Parallel()
	const address = "Forget.Me-7@example.com"
	for way, erase := range eraseWays {
		t.Run(way, func(t *testing.T) {
			o := newOperator(t)
			serve := func() *process { return serveProcess(t, o, "-legacy-sunset", "2100-01-01") }
			p, log := serve(), ""
			end := func(signal syscall.Signal) {
				p.stop(signal)
				log += p.log.String()
			}
			client := newClient(t)
			for i := range 120 {
				email := []string{address, strings.ToUpper(address[:8]) + address[8:], strings.ToLower(address)}[i%3]
				url := []string{p.base + "/widget/leads", strings.TrimSuffix(p.base, "/v1") + "/api/legacy/widget/leads"}[i/3%2]
				postFrom(t, client, url, email, strings.Repeat("x", i/2)+fmt.Sprint(i), fmt.Sprint("key-", i))
				postFrom(t, client, url, fmt.Sprintf("other%d@example.com", i), "footer", fmt.Sprint("other-", i))
				if i == 40 || i == 80 {
					end([]syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i/80])
					p = serve()
				}
			}
			if len(traces(t, o.dir, "forget.me-7@")) == 0 {
				t.Fatal("the address was never there: the test looks at the wrong place")
			}
			if n := erase(t, o, p, "FORGET.me-7@Example.COM"); n != 120 {
				t.Errorf("%v leads erased", n)
			}
			nowhere(t, "while it serves", o.dir, log, "forget.me-7@")
			postFrom(t, client, p.base+"/widget/leads", "later@example.com", "footer", "later")
			end(syscall.SIGTERM)
			nowhere(t, "after a stop", o.dir, log, "forget.me-7@")
			p = serve()
			end(syscall.SIGKILL)
			nowhere(t, "after a restart", o.dir, log, "forget.me-7@")
			if len(traces(t, o.dir, "other119@")) == 0 {
				t.Error("other addresses are gone too")
			}
		})
	}
}

func TestErase_endsTheAddressWhileAnotherProcessServes(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	p := serveProcess(t, o)
	client := newClient(t)
	for _, email := range []string{"stays@example.com", "erase.me@example.com"} {
		if _, _, err := postLead(client, p.base, email); err != nil {
			t.Fatal(err)
		}
	}
	if len(traces(t, o.dir, "erase.me@")) == 0 {
		t.Fatal("the address was never there")
	}
	if got := o.object("leads", "erase", "erase.me@example.com"); got["erased"] != 1.0 || !strings.Contains(got["note"].(string), "neither in the database file nor in its write-ahead log") {
		t.Errorf("erased %v", got)
	}
	if got := traces(t, o.dir, "erase.me@"); len(got) > 0 {
		t.Errorf("the address is still in %q", got)
	}
	if got := traces(t, o.dir, "stays@"); len(got) == 0 {
		t.Error("the other address is gone too")
	}
	if _, _, err := postLead(client, p.base, "later@example.com"); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if err := p.stop(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}
