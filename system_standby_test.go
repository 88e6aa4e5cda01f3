package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
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
	dir, err := os.MkdirTemp("", "sb") // short: the path of a socket has at most 107 bytes
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	data := filepath.Join(dir, "data")
	must(t, os.Mkdir(data, 0o700))
	config := strings.Replace(documentBlock(t, "type: file"), "      path: /mnt/backup/widgetd\n",
		documentBlock(t, "path: /mnt/backup/widgetd/${WIDGETD_EPOCH}"), 1)
	config = strings.NewReplacer("/var/lib/widgetd", data, "/mnt/backup", replica).Replace(config)
	writeFile(t, filepath.Join(dir, "litestream.yml"), config)
	m := &machineOfPair{replicated: &replicated{t: t, o: &operator{t: t, dir: data, env: filesIn(data),
		ran: map[string]bool{}}}, bin: filepath.Join(dir, "bin")}
	m.address = httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(m.target.Load())
	}, ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }})
	t.Cleanup(m.address.Close)
	m.target.Store(&url.URL{Scheme: "http", Host: "127.0.0.1:1"})
	m.install()
	t.Cleanup(func() { m.endStream(syscall.SIGKILL); m.pair("stop-all") })
	return m
}

// install writes the programs that the script of the pair calls: systemctl starts and stops the follower.
func (m *machineOfPair) install() {
	m.t.Helper()
	must(m.t, os.Mkdir(m.bin, 0o700))
	for name, script := range map[string]string{
		"sudo":    `[ "$1" = -u ] && shift 2; exec "$@"`,
		"widgetd": `exec ` + builtProgram(m.t) + ` "$@"`,
		"systemctl": `pid=` + m.bin + `/follower.pid; running() { [ -e $pid ] && kill -0 $(cat $pid) 2>/dev/null; }
case "$*" in
is-active*) running ;;
show*) echo WIDGETD_LITESTREAM=true $(cat '` + m.bin + `/peer' 2>/dev/null) ;;
stop*follow*) if running; then kill -INT $(cat $pid); while running; do sleep 0.02; done; fi ;;
start*follow* | enable*follow*) running || {
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
	cmd := exec.Command("deploy/pair", verb)
	if verb == "stop-all" {
		cmd = exec.Command(filepath.Join(m.bin, "systemctl"), "stop", "widgetd-follow.service")
	}
	cmd.Env = append(os.Environ(), "PATH="+m.bin+":"+os.Getenv("PATH"), "WIDGETD_DIR="+m.o.dir,
		"LITESTREAM_CONFIG="+m.config())
	out, err := cmd.CombinedOutput()
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(m.bin, "log"))
		m.t.Fatalf("pair %s: %v\n%s\n%s", verb, err, out, log)
	}
	return string(out)
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
	e, err := readEpochFile(m.o.env["WIDGETD_DB"])
	must(m.t, err)
	m.replicated.stream = exec.Command("env", epochVariable+"="+strings.TrimSuffix(e.String(), "-"), "litestream",
		"replicate", "-config", m.config())
	m.replicated.stream.Stdout, m.replicated.stream.Stderr = &m.log, &m.log
	must(m.t, m.replicated.stream.Start())
}

// awaitHealth waits until health says so.
func (m *machineOfPair) awaitHealth(status int) {
	m.t.Helper()
	client := newClient(m.t)
	for range 500 {
		if a, err := send(client, "GET", m.address.URL+"/v1/widget/health", ""); err == nil && a.status == status {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	m.t.Fatalf("health does not become %d\n%s", status, m.service.log.String())
}

// A receiverOfPair gets the webhooks of both machines. Until it works, it takes none.
type receiverOfPair struct {
	mu    sync.Mutex
	works bool
	taken map[string]int // by the event's id
}

func (r *receiverOfPair) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	io.Copy(io.Discard, req.Body)
	if !r.works {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	r.taken[req.Header.Get("webhook-id")]++
}

func (r *receiverOfPair) work() { r.mu.Lock(); r.works = true; r.mu.Unlock() }

func (r *receiverOfPair) sofar() (events, twice int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, times := range r.taken {
		twice += times - 1
	}
	return len(r.taken), twice
}

func TestLitestream_aPairLosesNothingThatWasConfirmedAndOneOfItActs(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "litestream", "awk", "setsid")
	replica := t.TempDir()
	a, b := newMachine(t, replica), newMachine(t, replica)
	hooks := &receiverOfPair{taken: map[string]int{}}
	receiver := httptest.NewServer(hooks)
	defer receiver.Close()
	a.o.account = a.o.object("init", "-origin", siteOrigin)["account_id"].(string)
	must(t, os.WriteFile(b.o.env["WIDGETD_KEY"], []byte(fileText(t, a.o.env["WIDGETD_KEY"])), 0o600))
	standbyOf := func(m *machineOfPair) {
		m.service = start(t, exec.Command(builtProgram(t), "serve", "-standby", "-addr", "127.0.0.1:0", "-log", "json",
			"-key", m.o.env["WIDGETD_KEY"]))
		at, err := url.Parse(strings.TrimSuffix(m.service.base, "/v1"))
		must(t, err)
		m.target.Store(at)
	}

	standbyOf(b)
	a.serve(b)
	a.awaitHealth(200)
	a.o.do("webhook", "add", receiver.URL, "-account", a.o.account, "-type", "lead.created",
		"-outbound-allow", "127.0.0.0/8")
	a.replicate()
	a.load = startLoad(t, a.service.base, "first", 4, 3*time.Millisecond)
	a.load.grows(size(30, 200))
	a.confirm()
	b.pair("follow")
	a.load.grows(size(30, 200))
	a.confirm()
	a.load.grows(size(10, 50))
	b.awaitHealth(503)

	// The primary is lost, and the standby takes its place.
	a.endStream(syscall.SIGKILL)
	a.service.stop(syscall.SIGKILL)
	a.load.stop()
	began := time.Now()
	said := b.pair("promote")
	contains(t, said, "epoch 1-", "may be lost", "revocations", "licence keys")
	b.service.stop(os.Interrupt)
	asked := time.Now()
	b.serve(a)
	b.o.do("peer", "ignore") // the old one is off
	b.awaitHealth(200)
	t.Logf("promoted in %s, and served after %s", asked.Sub(began), time.Since(asked))
	b.replicate()
	b.load, b.confirmed = &load{}, a.confirmed
	b.load.take(a.load.sofar())
	b.compare("after the promotion")
	hooks.work()

	// The old one is started again by mistake: it stops by itself.
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
	writeFile(t, epochPath(a.o.env["WIDGETD_DB"]), fileText(t, epochPath(b.o.env["WIDGETD_DB"])))
	contains(t, a.pair("follow"), "put aside")
	standbyOf(a)
	b.load.stop()
	b.confirm()
	b.service.stop(syscall.SIGKILL)
	b.endStream(syscall.SIGKILL)
	contains(t, a.pair("promote"), "epoch 2-")
	lacks, leads := missing(t, a.o.env["WIDGETD_DB"], b.confirmed)
	events, twice := hooks.sofar()
	if len(lacks) > 0 || twice > 0 {
		t.Errorf("of %d leads %d are lost on the way back; of %d events %d were delivered twice", leads, len(lacks),
			events, twice)
	}
	t.Logf("%d leads on the way back, %d events delivered once", leads, events)
}
