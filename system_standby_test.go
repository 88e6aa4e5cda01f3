package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A machineOfPair is one of a pair: its directory, what runs there, and an address of its own that stays.
type machineOfPair struct {
	*replicated
	address *httptest.Server
	target  atomic.Pointer[url.URL]
	bin     string // programs that stand in for sudo, systemctl and others
}

// newMachine makes a machine whose replica is in a directory.
func newMachine(t *testing.T, replica string) *machineOfPair {
	m := &machineOfPair{replicated: newReplicated(t, replica)}
	m.bin = filepath.Join(filepath.Dir(m.o.dir), "bin")
	m.address = httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(m.target.Load())
	}, ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }})
	t.Cleanup(m.address.Close)
	m.target.Store(&url.URL{Scheme: "http", Host: "127.0.0.1:1"})
	m.install()
	t.Cleanup(func() { m.pair("stop-all") })
	return m
}

// install writes the programs that the script of the pair calls: systemctl starts and stops the follower.
func (m *machineOfPair) install() {
	m.t.Helper()
	must(m.t, os.Mkdir(m.bin, 0o700))
	for name, script := range map[string]string{
		"sudo": `[ "$1" = -u ] && shift 2; exec "$@"`,
		"widgetd": `if [ "$1" = promote ] && [ -e ` + m.bin + `/kill ]; then
	after=$(cat ` + m.bin + `/kill) && rm ` + m.bin + `/kill
	` + builtProgram(m.t) + ` "$@" & pid=$!
	until [ -e ` + m.o.env["WIDGETD_DB"] + `-promoting ] || ! kill -0 $pid 2>/dev/null; do sleep 0.002; done
	sleep "$after"; kill -9 $pid 2>/dev/null; wait $pid; exit; fi
exec ` + builtProgram(m.t) + ` "$@"`,
		"systemctl": `pid=` + m.bin + `/follower.pid; running() { [ -e $pid ] && [ -e /proc/$(cat $pid)/exe ]; }
case "$*" in
is-active*) running ;;
show*) echo WIDGETD_LITESTREAM=true $(cat '` + m.bin + `/peer' 2>/dev/null) ;;
stop*follow*) if running; then kill $(cat $pid); while running; do sleep 0.02; done; fi ;;
start*follow* | restart*follow* | enable*follow*) case $1 in restart) "$0" stop follow ;; esac; running || {
	epoch=$(sed -n 's/^WIDGETD_EPOCH=//p' ` + m.o.dir + `/widgetd.epoch 2>/dev/null)
	export WIDGETD_EPOCH=${epoch:-0}
	setsid litestream restore -f -config ` + m.config() + ` ` + m.o.env["WIDGETD_DB"] + ` >>` + m.bin + `/log 2>&1 &
	echo $! >$pid; } ;;
esac`,
	} {
		must(m.t, os.WriteFile(filepath.Join(m.bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	}
}

// pair runs the script of the pair as an operator does.
func (m *machineOfPair) pair(verb string) string {
	m.t.Helper()
	out, err := m.tryPair(verb)
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(m.bin, "log"))
		m.t.Fatalf("pair %s: %v\n%s\n%s", verb, err, out, log)
	}
	return out
}

// promote promotes the machine, by the script, whose 'widgetd promote' is killed at some moment after it has begun to
// change something, and then run again.
func (m *machineOfPair) promote() {
	m.t.Helper()
	after := rand.N(80 * time.Millisecond)
	writeFile(m.t, filepath.Join(m.bin, "kill"), fmt.Sprint(after.Seconds()))
	said, err := m.tryPair("promote")
	m.t.Logf("'widgetd promote' was to be killed after %s: %v", after, err)
	if err != nil {
		if said, err = m.tryPair("promote"); err != nil && strings.Contains(said, "promoted just now") {
			return // it was killed at its end
		}
	}
	if err != nil {
		m.t.Fatalf("promote: %v\n%s", err, said)
	}
	contains(m.t, said, "epoch ", "the peer: no usable answer", "may be lost", "revocations", "licence keys")
}

// tryPair is pair, and returns the error of the script.
func (m *machineOfPair) tryPair(verb string) (said string, err error) {
	m.t.Helper()
	cmd := exec.Command("deploy/pair", verb)
	if verb == "stop-all" {
		cmd = exec.Command(filepath.Join(m.bin, "systemctl"), "stop", "widgetd-follow.service")
	}
	cmd.Env = append(os.Environ(), "PATH="+m.bin+":"+os.Getenv("PATH"), "WIDGETD_DIR="+m.o.dir,
		"LITESTREAM_CONFIG="+m.config())
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// serve starts the service of a machine, with the other as its peer.
func (m *machineOfPair) serve(peer *machineOfPair, more ...string) {
	m.t.Helper()
	m.service = serveProcess(m.t, m.o, append([]string{"-litestream", "-peer", peer.address.URL,
		"-outbound-allow", "127.0.0.0/8"}, more...)...)
	at, err := url.Parse(strings.TrimSuffix(m.service.base, "/v1"))
	must(m.t, err)
	m.target.Store(at)
}

// replicate starts Litestream with the epoch of the machine.
func (m *machineOfPair) replicate() {
	m.t.Helper()
	e, err := readEpochFile(epochPath(m.o.env["WIDGETD_DB"]))
	must(m.t, err)
	m.startStream(strings.TrimSuffix(e.String(), "-"))
}

// awaitHealth waits until health says so.
func (m *machineOfPair) awaitHealth(status int) {
	m.t.Helper()
	client := newClient(m.t)
	if !soon(func() bool {
		a, err := send(client, "GET", m.address.URL+"/v1/widget/health", "")
		return err == nil && a.status == status
	}) {
		m.t.Fatalf("health does not become %d\n%s", status, m.service.log.String())
	}
}

// A receiverOfPair gets the webhooks of both machines.
type receiverOfPair struct {
	mu        sync.Mutex
	second    bool              // whether the second machine was promoted
	taken     map[string][2]int // how often each event came before and after that, by its id
	confirmed []string          // the ids of events that the first had sent before its replication was last confirmed
}

func (r *receiverOfPair) ServeHTTP(_ http.ResponseWriter, req *http.Request) {
	io.Copy(io.Discard, req.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	times, after := r.taken[req.Header.Get("webhook-id")], 0
	if r.second {
		after = 1
	}
	times[after]++
	r.taken[req.Header.Get("webhook-id")] = times
}

func (r *receiverOfPair) promoted() { r.mu.Lock(); r.second = true; r.mu.Unlock() }

// bySecond is how many events came since the promotion.
func (r *receiverOfPair) bySecond() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, times := range r.taken {
		n += times[1]
	}
	return n
}

// confirm lets Litestream replicate everything, and notes which events the machine then knew to be sent.
func (r *receiverOfPair) confirm(m *machineOfPair) {
	m.t.Helper()
	var sent []string
	m.o.store(func(s *store) {
		var err error
		sent, err = s.texts(`SELECT id FROM events WHERE type = 'lead.created'
			AND seq <= (SELECT sent_seq FROM webhook_queues)`)
		must(m.t, err)
	})
	m.confirm()
	r.mu.Lock()
	defer r.mu.Unlock()
	// The events of before the webhook was added have never come.
	r.confirmed = slices.DeleteFunc(sent, func(id string) bool { return r.taken[id] == [2]int{} })
}

// judge requires that no machine has sent an event twice, nor the second one what it could know to be sent.
func (r *receiverOfPair) judge(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, times := range r.taken {
		if times[0] > 1 || times[1] > 1 {
			t.Errorf("event %s came %d times before the promotion and %d times after it", id, times[0], times[1])
		}
	}
	for _, id := range r.confirmed {
		if r.taken[id] != [2]int{1, 0} {
			t.Errorf("event %s, which was sent and confirmed, came %v times", id, r.taken[id])
		}
	}
}

func TestLitestream_aPairLosesNothingThatWasConfirmedAndOneOfItActs(t *testing.T) {
	t.Parallel()
	takesLong(t, "drives Litestream for seconds")
	programsOrSkip(t, "litestream", "setsid")
	replica := t.TempDir()
	a, b := newMachine(t, replica), newMachine(t, replica)
	hooks := &receiverOfPair{taken: map[string][2]int{}}
	receiver := httptest.NewServer(hooks)
	defer receiver.Close()
	a.o.account = a.o.object("init", "-origin", siteOrigin)["account_id"].(string)
	b.o.account = a.o.account
	writeFile(t, filepath.Join(a.bin, "peer"), "WIDGETD_PEER=http://127.0.0.1:1")
	writeFile(t, filepath.Join(b.bin, "peer"), "WIDGETD_PEER="+a.address.URL)
	must(t, os.WriteFile(b.o.env["WIDGETD_KEY"], []byte(fileText(t, a.o.env["WIDGETD_KEY"])), 0o600))
	standbyOf := func(m *machineOfPair) {
		m.service = start(t, exec.Command(builtProgram(t), "serve", "-standby", "-addr", "127.0.0.1:0", "-log", "json",
			"-db", m.o.env["WIDGETD_DB"], "-key", m.o.env["WIDGETD_KEY"]))
		at, err := url.Parse(strings.TrimSuffix(m.service.base, "/v1"))
		must(t, err)
		m.target.Store(at)
	}

	standbyOf(b)
	a.serve(b)
	a.awaitHealth(200)
	a.o.enabled(a.o.object("webhook", "add", receiver.URL, "-account", a.o.account, "-type", "lead.created",
		"-outbound-allow", "127.0.0.0/8")["id"].(string))
	a.replicate()
	a.load = startLoad(t, a.service.base, "first", 4, 3*time.Millisecond)
	a.load.grows(size(30, 200))
	a.confirm()
	b.pair("follow")
	a.load.grows(size(100, 300))
	hooks.confirm(a)
	a.load.grows(size(10, 50) + rand.IntN(50))
	b.awaitHealth(503)

	// The primary is lost, and the standby takes its place.
	a.endStream(syscall.SIGKILL)
	a.service.stop(syscall.SIGKILL)
	a.load.stop()
	hooks.promoted()
	b.promote()
	b.service.stop(os.Interrupt)
	b.serve(a)
	b.awaitHealth(200)
	b.replicate()
	b.load, b.confirmed = &load{}, a.confirmed
	b.load.take(a.load.sofar())
	b.compare("after the promotion")
	equal(t, "what the second machine sends before it has an answer", hooks.bySecond(), 0)
	b.o.do("peer", "ignore") // the old one is off

	// The old one is started again by mistake, with work left: it stops by itself.
	a.serve(b)
	a.replicate()
	a.awaitHealth(503)
	if _, _, err := postLead(newClient(t), a.service.base, "late@example.com"); err == nil {
		t.Error("the old machine takes a lead")
	}
	follower := exec.Command("env", "WIDGETD_EPOCH=0", "litestream", "restore", "-f", "-config", b.config(),
		b.o.env["WIDGETD_DB"])
	if out, err := follower.CombinedOutput(); err == nil || !strings.Contains(string(out), "-txid") {
		t.Errorf("a follower beside the service: %v %s", err, out)
	}
	b.load = startLoad(t, b.service.base, "second", 2, 3*time.Millisecond)
	b.load.grows(size(30, 100))
	b.confirm()

	// It comes back as the standby.
	a.service.stop(os.Interrupt)
	a.endStream(syscall.SIGTERM)
	if said, err := a.tryPair("follow"); err == nil || !strings.Contains(said, "the peer is asked first") {
		t.Errorf("it follows without an answer of its peer: %v\n%s", err, said)
	}
	writeFile(t, filepath.Join(a.bin, "peer"), "WIDGETD_PEER="+b.address.URL)
	contains(t, a.pair("follow"), "the peer serves in epoch ", "put aside")
	equal(t, "the epoch", fileText(t, epochPath(a.o.env["WIDGETD_DB"])), fileText(t, epochPath(b.o.env["WIDGETD_DB"])))
	standbyOf(a)
	b.load.stop()
	b.confirm()
	b.service.stop(syscall.SIGKILL)
	b.endStream(syscall.SIGKILL)
	a.promote()
	before, err := readEpochFile(epochPath(b.o.env["WIDGETD_DB"]))
	must(t, err)
	now, err := readEpochFile(epochPath(a.o.env["WIDGETD_DB"]))
	if must(t, err); now.Number <= before.Number {
		t.Errorf("the epoch is %s after %s", now, before)
	}
	lacks, leads := missing(t, a.o.env["WIDGETD_DB"], b.confirmed)
	if len(lacks) > 0 {
		t.Errorf("of %d leads %d are lost on the way back", leads, len(lacks))
	}
	hooks.judge(t)
}

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

// volley sends a request so often, all at once. Each has an answer.
func volley(t testing.TB, base string, n int, method, path, body string, headers ...string) {
	t.Helper()
	client := newClient(t)
	var sent atomic.Int64
	var senders sync.WaitGroup
	for range min(n, 1000) { // connections
		senders.Go(func() {
			for sent.Add(1) <= int64(n) {
				if _, err := send(client, method, base+path, body, headers...); err != nil {
					t.Errorf("a request has no answer: %v", err)
					return
				}
			}
		})
	}
	senders.Wait()
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
	for _, words := range [][]string{{"POST", "/orders", body("d"), third},
		{"POST", "/widget/license/verify", activateBody(c.key, "kitchen-1")}, {"GET", "/widget/health", ""}} {
		others.Go(func() {
			for client := newClient(t); ; {
				a, err := send(client, words[0], p.base+words[1], words[2], words[3:]...)
				if err != nil || a.status != 200 {
					t.Errorf("%s meanwhile: %d, %v", words[1], a.status, err)
				}
				select {
				case <-ended:
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
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
	small := strings.TrimSuffix(strings.Repeat("{},", 900), ",") // as many values as may be
	volley(t, p.base, few, "POST", "/widget/license/verify", `{"license_key":"x","x":[`+small+`]}`)
	volley(t, p.base, few/3, "PUT", "/books/connections/con_00000000000000000000000000/mapping",
		`{"x":["`+strings.Repeat("y", 240<<10)+`"],"lines":[`+small+`]}`, bearer(slow[0]))
	close(ended)
	others.Wait()
	above := p.memoryOf("VmHWM") - idle
	t.Logf("%d MiB above idle", above>>20)
	failIf(t, above > 160<<20, "%d MiB above idle", above>>20)
}
