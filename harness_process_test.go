package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// runOK runs a command that must succeed and returns what it printed.
func runOK(t testing.TB, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), args, func(string) string { return "" }, &stdout, &stderr); err != nil {
		t.Fatalf("widgetd %q: %v\n%s%s", args, err, stdout.String(), stderr.String())
	}
	return stdout.String()
}

// built is the program as a file, made once for all tests that need a process.
var built struct {
	once sync.Once
	dir  string
	err  error
}

func builtProgram(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and starts the program")
	}
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "widgetd-test-"); built.err != nil {
			return
		}
		build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(built.dir, "widgetd"), ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is built for a server
		out, err := build.CombinedOutput()
		if err != nil {
			built.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "widgetd")
}

// A process is a widgetd that runs on its own.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	base string // where it answers
	log  bytes.Buffer
	done chan error
}

// start runs a command line and waits until it says that it serves.
func start(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, done: make(chan error, 1)}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	serving := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			var entry struct{ Msg, Addr string }
			if json.Unmarshal(lines.Bytes(), &entry) == nil && entry.Msg == "serving" {
				serving <- "http://" + entry.Addr + "/v1"
			}
			p.log.WriteString(lines.Text() + "\n")
		}
		close(serving)
		p.done <- cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-p.done
		commandLog(t, p.log.String())
	})
	base, ok := <-serving
	if !ok {
		t.Fatalf("it does not serve: %v\n%s", <-p.done, p.log.String())
	}
	p.base = base
	return p
}

// serveProcess serves an operator's directory in a process of its own.
func serveProcess(t testing.TB, o *operator, more ...string) *process {
	t.Helper()
	return start(t, exec.Command(builtProgram(t), append([]string{"serve", "-addr", "127.0.0.1:0", "-log", "json", "-anonymous-rate", "1000000",
		"-db", o.env["WIDGETD_DB"], "-key", o.env["WIDGETD_KEY"]}, more...)...))
}

// stop sends a signal and returns how the process ended.
func (p *process) stop(signal os.Signal) error {
	p.t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		p.t.Fatal(err)
	}
	return <-p.done
}

// postLead posts a lead and returns its id when it was acknowledged, and whether
// the answer ends the connection.
func postLead(client *http.Client, base, email string) (id string, last bool, err error) {
	res, err := client.Post(base+"/widget/leads", "application/json", strings.NewReader(`{"type":"newsletter","email":"`+email+`"}`))
	if err != nil {
		return "", false, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return "", false, err
	}
	var answer struct{ ID string }
	if res.StatusCode != http.StatusOK || json.Unmarshal(body, &answer) != nil || answer.ID == "" {
		return "", false, fmt.Errorf("%s: %s", res.Status, body)
	}
	return answer.ID, res.Close, nil
}

// newClient has connections of its own.
func newClient(t testing.TB) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// acknowledged are the leads that a load was told are kept, by address.
type acknowledged struct {
	mu  sync.Mutex
	ids map[string]string
}

func (a *acknowledged) add(email, id string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ids == nil {
		a.ids = map[string]string{}
	}
	a.ids[email] = id
	return len(a.ids)
}

// check looks for every acknowledged lead in the file.
func (a *acknowledged) check(t *testing.T, o *operator) {
	t.Helper()
	o.store(func(s *store) {
		for email, id := range a.ids {
			var n int
			var found string
			if err := s.one(`SELECT count(*), coalesce(min(id), '') FROM leads WHERE email_key = ?`, []any{email}, &n, &found); err != nil || n != 1 || found != id {
				t.Fatalf("%s was acknowledged as %s; in the file %d times, as %q (%v)", email, id, n, found, err)
			}
		}
	})
}

func TestStoppingUnderLoadAnswersEveryRequestAndExitsCleanly(t *testing.T) {
	t.Parallel()
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			o := newOperator(t)
			o.t = t
			p := serveProcess(t, o)
			var all acknowledged
			enough := make(chan struct{})
			var once sync.Once
			var load sync.WaitGroup
			for c := range 16 {
				load.Go(func() {
					client := newClient(t) // one connection, kept open
					for i := 0; ; i++ {
						email := fmt.Sprintf("c%d-i%d@example.com", c, i)
						id, last, err := postLead(client, p.base, email)
						if err != nil {
							t.Errorf("request %d of connection %d, which was open: %v", i, c, err)
							return
						}
						if all.add(email, id) > 500 {
							once.Do(func() { close(enough) })
						}
						if last {
							return
						}
					}
				})
			}
			<-enough
			err := p.stop(signal)
			load.Wait()
			if err != nil {
				t.Errorf("ended with %v\n%s", err, p.log.String())
			}
			for _, suffix := range []string{"-wal", "-shm"} {
				if _, err := os.Stat(o.env["WIDGETD_DB"] + suffix); err == nil {
					t.Errorf("%s is still there", suffix)
				}
			}
			all.check(t, o)
		})
	}
}

func TestASocketOfAnotherProcessIsLeftAlone(t *testing.T) {
	l, err := listen("127.0.0.1:0", func(name string) string {
		return map[string]string{"LISTEN_FDS": "1", "LISTEN_PID": "1"}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := listen(l.Addr().String(), func(string) string { return "" }); err == nil || !strings.Contains(err.Error(), "name another address with -addr") {
		t.Errorf("an address in use: %v", err)
	}
}

func TestAnErasedAddressIsGoneWhileAnotherProcessServes(t *testing.T) {
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
	if got := o.object("leads", "erase", "erase.me@example.com"); got["erased"] != 1.0 || !strings.Contains(got["note"].(string), "no trace") {
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

func TestTheProgramExitsByKindOfError(t *testing.T) {
	program := builtProgram(t)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"version"}, 0, ""},
		{[]string{"frobnicate"}, 2, "widgetd: there is no command \"frobnicate\""},
		{[]string{"serve", "-db", filepath.Join(t.TempDir(), "none.db"), "-key", filepath.Join(t.TempDir(), "none.key")}, 1, "widgetd: no key file at "},
	} {
		cmd := exec.Command(program, c.args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != c.code || !strings.HasPrefix(stderr.String(), c.want) || strings.Count(stderr.String(), "\n") > 1 {
			t.Errorf("%q: exit %d, %q; want %d, %q in one line", c.args, got, stderr.String(), c.code, c.want)
		}
	}
}

// A raw connection sends and reads by hand.
type rawConn struct {
	net.Conn
	*bufio.Reader
}

func dialRaw(t testing.TB, addr string) *rawConn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &rawConn{conn, bufio.NewReader(conn)}
}

// answer reads one answer.
func (c *rawConn) answer(t testing.TB) (*http.Response, string) {
	t.Helper()
	res, err := http.ReadResponse(c.Reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

func TestWhileStoppingRequestsInFlightAreAnsweredAndHealthFails(t *testing.T) {
	s := newService(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	s.check(err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.server.serveUntil(ctx, listener, "") }()
	addr := listener.Addr().String()

	probe := dialRaw(t, addr) // open before the end, and heard after it
	fmt.Fprintf(probe.Conn, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
	if res, body := probe.answer(t); res.StatusCode != 200 || body != "alive\n" || res.Close {
		t.Errorf("alive: %d %q, close %v", res.StatusCode, body, res.Close)
	}
	release := holdWriter(t, s.store)
	form := dialRaw(t, addr)
	fmt.Fprintf(form.Conn, "POST /v1/widget/leads HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(anyLead), anyLead)
	for len(s.store.jobs) == 0 {
		runtime.Gosched()
	}
	stop()
	for !s.server.draining.Load() {
		runtime.Gosched()
	}
	fmt.Fprintf(probe.Conn, "GET /v1/widget/health HTTP/1.1\r\nHost: x\r\n\r\n")
	if res, body := probe.answer(t); res.StatusCode != 503 || !strings.Contains(body, `"status":"fail"`) || !res.Close {
		t.Errorf("health while stopping: %d %s, close %v", res.StatusCode, body, res.Close)
	}
	select {
	case err := <-ended:
		t.Fatalf("it ended with a request in flight: %v", err)
	default:
	}
	release()
	if res, body := form.answer(t); res.StatusCode != 200 || !strings.HasPrefix(body, `{"ok":true,"id":"lead_`) {
		t.Errorf("the lead in flight: %d %s", res.StatusCode, body)
	}
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("it still listens")
	}
	if _, err := os.Stat(s.store.path + "-wal"); err == nil {
		t.Error("the log is still there")
	}
	s.store, err = openStore(s.store.path, storeOptions{}) // for the harness, which closes it
	s.check(err)
	if n := s.count(`SELECT count(*) FROM leads`); n != 1 {
		t.Errorf("%d leads", n)
	}
}

func TestDebuggingIsServedOnLoopbackUntilTheEnd(t *testing.T) {
	s := newService(t)
	ctx, stop := context.WithCancel(t.Context())
	s.check(s.server.startDebug(ctx, "127.0.0.1:0"))
	_, rest, found := strings.Cut(s.log.String(), "addr=")
	addr := strings.TrimSpace(rest)
	if !found {
		t.Fatalf("log %q", s.log.String())
	}
	s.post("/widget/leads", anyLead).is(200)
	client := newClient(t)
	for path, want := range map[string]string{
		"/metrics":               "widgetd_requests_total{route=\"POST /widget/leads\",status=\"200\"} 1\n",
		"/debug/pprof/goroutine": "",
	} {
		res, err := client.Get("http://" + addr + path)
		s.check(err)
		body, err := io.ReadAll(res.Body)
		s.check(errors.Join(err, res.Body.Close()))
		if res.StatusCode != 200 || !strings.Contains(string(body), want) {
			t.Errorf("%s: %d %s", path, res.StatusCode, body)
		}
	}
	stop()
	for {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			break
		}
		conn.Close()
		runtime.Gosched()
	}
}

// TestMetricsFollowTheRulesOfPrometheus reads them as a scrape does: each family has
// its help and its type before its samples, and all of them together, and counters
// alone end in _total.
func TestMetricsFollowTheRulesOfPrometheus(t *testing.T) {
	s := newService(t)
	s.post("/widget/leads", anyLead).is(200)
	s.post("/widget/leads", `{}`).is(422)
	s.get("/nowhere").is(404)
	var text strings.Builder
	s.server.writeMetrics(&text)
	help, kind := regexp.MustCompile(`^# HELP (\w+) [A-Z][^\\]+\.$`), regexp.MustCompile(`^# TYPE (\w+) (counter|gauge)$`)
	sample := regexp.MustCompile(`^(\w+)(?:\{\w+="[^"\\]*"(?:,\w+="[^"\\]*")*\})? [0-9.]+(?:e-\d+)?$`)
	var name, described string
	seen, samples := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(text.String()) {
		line = strings.TrimSuffix(line, "\n")
		if m := help.FindStringSubmatch(line); m != nil && !seen[m[1]] {
			described, seen[m[1]] = m[1], true
		} else if m := kind.FindStringSubmatch(line); m != nil && m[1] == described && strings.HasSuffix(m[1], "_total") == (m[2] == "counter") {
			name = m[1]
		} else if m := sample.FindStringSubmatch(line); m == nil || m[1] != name || samples[line] {
			t.Errorf("%q under %q", line, name)
		} else {
			samples[line] = true
		}
	}
	if len(seen) != 10 || !samples[`widgetd_requests_total{route="POST /widget/leads",status="422"} 1`] {
		t.Errorf("%d families:\n%s", len(seen), text.String())
	}
}

// BenchmarkStart measures from starting the program to its first 200, and what it
// holds then.
func BenchmarkStart(b *testing.B) {
	o := newOperator(b)
	program := builtProgram(b)
	info, err := os.Stat(program)
	if err != nil {
		b.Fatal(err)
	}
	client := newClient(b)
	var first time.Duration
	resident := 0.0
	for b.Loop() {
		began := time.Now()
		p := serveProcess(b, o)
		res, err := client.Get(p.base + "/widget/health")
		if err != nil || res.StatusCode != 200 {
			b.Fatalf("%v %v", res, err)
		}
		res.Body.Close()
		first += time.Since(began)
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
		if err == nil {
			_, rest, _ := strings.Cut(string(status), "VmRSS:")
			fmt.Sscan(rest, &resident)
		}
		client.CloseIdleConnections()
		if err := p.stop(syscall.SIGTERM); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(first.Milliseconds())/float64(b.N), "ms-to-200")
	b.ReportMetric(resident/1024, "MiB-resident")
	b.ReportMetric(float64(info.Size())/(1<<20), "MiB-binary")
}
