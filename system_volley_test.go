package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// memoryOf returns a line of what the kernel says of a process's memory, in bytes: VmRSS is what it has, VmHWM the
// most that it has had.
func (p *process) memoryOf(line string) int64 {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	found := regexp.MustCompile(`(?m)^` + line + `:\s+(\d+) kB$`).FindSubmatch(text)
	if err != nil || found == nil {
		p.t.Fatalf("no %s: %v", line, err)
	}
	kilobytes, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return kilobytes << 10
}

// volley sends a request so often, all at once, and meanwhile asks for health again and again. It returns how many
// got each status, and how long the slowest health took.
func volley(t testing.TB, base string, n int, method, path, body string, headers ...string) (statuses map[int]int,
	slowest time.Duration) {
	t.Helper()
	client := newClient(t)
	var mu sync.Mutex
	statuses = map[int]int{}
	var sent atomic.Int64
	var senders, prober sync.WaitGroup
	ended := make(chan struct{})
	prober.Go(func() {
		for probes := newClient(t); ; {
			began := time.Now()
			send(probes, "GET", base+"/widget/health", "")
			slowest = max(slowest, time.Since(began))
			select {
			case <-ended:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	for range min(n, 1000) { // connections
		senders.Go(func() {
			for sent.Add(1) <= int64(n) {
				a, err := send(client, method, base+path, body, headers...)
				if err != nil {
					t.Errorf("a request has no answer: %v", err)
					return
				}
				mu.Lock()
				statuses[a.status]++
				mu.Unlock()
			}
		})
	}
	senders.Wait()
	close(ended)
	prober.Wait()
	return statuses, slowest
}

func TestVolley_ofSmallValuesTakesLittleMemory(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	token := bearer(strings.TrimSpace(o.do("token", "issue", "-account", o.account, "-scope", "books:write")))
	small := strings.TrimSuffix(strings.Repeat("{},", 1<<12), ",")
	few := strings.TrimSuffix(strings.Repeat("{},", 900), ",")
	for name, v := range map[string]struct {
		n                  int
		method, path, body string
		known              []int // statuses
	}{
		"verify with thousands of values": {size(300, 1000), "POST", "/widget/license/verify",
			`{"license_key":"x","x":[` + small + `]}`, []int{400, 503}},
		"verify with as many values as may be": {size(300, 1000), "POST", "/widget/license/verify",
			`{"license_key":"x","x":[` + few + `],"y":"` + strings.Repeat("y", 12<<10) + `"}`, []int{200, 429, 503}},
		"a mapping as large as may be": {size(100, 300), "PUT",
			"/books/connections/con_00000000000000000000000000/mapping",
			`{"x":["` + strings.Repeat("y", 240<<10) + `"],"lines":[` + few + `]}`, []int{404, 422, 429, 503}},
	} {
		p := serveProcess(t, o) // one for each, since the most that it has had is never less again
		idle := p.memoryOf("VmRSS")
		headers := []string{token}
		if v.method == "POST" {
			headers = nil
		}
		statuses, slowest := volley(t, p.base, v.n, v.method, v.path, v.body, headers...)
		above := p.memoryOf("VmHWM") - idle
		t.Logf("%s: %d at once: %d MiB above idle, health after %d ms at most, statuses %v",
			name, v.n, above>>20, slowest.Milliseconds(), statuses)
		if above > 128<<20 { // it is 40 to 100: what the collector leaves before it runs (tuneCollector), and stacks
			t.Errorf("%s: %d MiB above idle", name, above>>20)
		}
		for status := range statuses {
			if !slices.Contains(v.known, status) {
				t.Errorf("%s: %d answers have the status %d", name, statuses[status], status)
			}
		}
		p.stop(os.Interrupt)
	}
}

// opens sends a request over n connections, of each from another address, which read nothing and stay open until the
// test ends.
func opens(t testing.TB, p *process, n int, request string) {
	t.Helper()
	var all sync.WaitGroup
	for i := range n {
		conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(p.base, "http://"), "/v1"))
		must(t, err)
		must(t, conn.(*net.TCPConn).SetReadBuffer(1<<12))
		t.Cleanup(func() { conn.Close() })
		head, body, _ := strings.Cut(request, "\n\n")
		head = strings.ReplaceAll(fmt.Sprintf("%s\nHost: a\nX-Forwarded-For: 198.18.%d.%d\n\n", head, i>>8, i&255),
			"\n", "\r\n")
		all.Go(func() {
			io.WriteString(conn, head)
			io.WriteString(conn, body) // fails where the answer was sent before
		})
	}
	all.Wait()
}

// A bystander asks for the same again and again while something else goes on.
type bystander struct {
	name, method, path, body string
	headers                  []string
	statuses                 map[int]int
	took                     []time.Duration
}

// until asks until ended is closed, then says how long that took.
func (m *bystander) until(t testing.TB, base string, ended <-chan struct{}) {
	client := newClient(t)
	for m.statuses = map[int]int{}; ; {
		began := time.Now()
		a, err := send(client, m.method, base+m.path, m.body, m.headers...)
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		m.statuses[a.status]++
		m.took = append(m.took, time.Since(began))
		select {
		case <-ended:
			slices.Sort(m.took)
			t.Logf("%s meanwhile: median %v, longest %v, statuses %v", m.name, m.took[len(m.took)/2],
				m.took[len(m.took)-1], m.statuses)
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Against all who would use up memory at once, by bodies that don't end, forms and queries of thousands of fields,
// webhooks for nobody, and answers that nobody reads: others are answered meanwhile, and the memory is bounded.
func TestVolley_ofManyKindsLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	takesLong(t, "sends thousands of requests")
	o := newOperator(t)
	token := func(name, scope string) string {
		account := o.object("account", "add", name)["id"].(string)
		o.do("origin", "add", "https://"+name+".example", "-account", account)
		return strings.TrimSpace(o.do("token", "issue", "-account", account, "-scope", scope))
	}
	slow, reader := []string{token("a", scopeBooks), token("b", scopeBooks)}, token("c", scopeOrders+" "+scopeSelling)
	p := serveProcess(t, o)
	c, idle := o.customer(p), p.memoryOf("VmRSS")
	line := `,{"name":"` + strings.Repeat("x", 200) + `","quantity":1,"unit_amount":1,"vat_rate":0}`
	body := func(name string, more ...string) string {
		return orderBody(append(more, "pay", `"later"`, "return_url", `"https://`+name+`.example/thanks"`)...)
	}
	large := body("c", "lines", "["+strings.Repeat(line, 190)[1:]+"]")
	for range 200 {
		c.ask("POST", "/orders", large, bearer(reader)).is(200)
	}
	third := bearer(token("d", scopeSelling))
	ended := make(chan struct{})
	var others sync.WaitGroup
	all := []*bystander{
		{name: "orders", method: "POST", path: "/orders", body: body("d"), headers: []string{third}},
		{name: "verify", method: "POST", path: "/widget/license/verify", body: activateBody(c.key, "kitchen-1")},
		{name: "health", method: "GET", path: "/widget/health"}}
	for _, m := range all {
		others.Go(func() { m.until(t, p.base, ended) })
	}
	n, few := size(1000, 6500), size(300, 1000)
	for _, token := range slow {
		opens(t, p, 68, "PUT /v1/books/connections/con_00000000000000000000000000/mapping HTTP/1.1\n"+bearer(token)+
			"\nContent-Type: application/json\nContent-Length: 300\n\n{")
	}
	opens(t, p, n, "POST /v1/payments/stripe/con_00000000000000000000000000 HTTP/1.1\nContent-Length: 65536\n\n"+
		strings.Repeat("x", 65535))
	opens(t, p, 30, "GET /v1/orders?limit=200 HTTP/1.1\n"+bearer(reader)+"\n\n")
	fields := strings.Repeat("a=&", 3500)
	volley(t, p.base, few, "POST", "/oauth/token", fields, "Content-Type: application/x-www-form-urlencoded")
	volley(t, p.base, few, "GET", "/widget/health?"+fields, "")
	close(ended)
	others.Wait()
	above := p.memoryOf("VmHWM") - idle
	t.Logf("%d MiB above idle", above>>20)
	failIf(t, above > 160<<20, "%d MiB above idle", above>>20)
	for _, m := range all {
		if m.statuses[200] != len(m.took) {
			t.Errorf("%s meanwhile: statuses %v", m.name, m.statuses)
		}
	}
}
