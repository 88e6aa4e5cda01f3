package main

import (
	"bufio"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// testsAtOnce is how many tests run at the same time, unless -parallel says otherwise. It is more than there are
// processors, since most of them wait for a process, a disk or a lock.
const testsAtOnce = 8

var (
	long = flag.Bool("long", false, "run histories, kills, damages and volumes at their full sizes")
	seed = flag.Uint64("seed", 0, "the seed of every random test; 0: those that each test has by itself")
)

// doesMore are the tests that do more with -long.
var doesMore sync.Map // of their names

// size returns how often or how much a test does something: small by default, large with -long.
func size(small, large int) int {
	callers := make([]uintptr, 50)
	for frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers)]); ; {
		frame, more := frames.Next()
		name, _, _ := strings.Cut(strings.TrimPrefix(frame.Function, "widgetd."), ".") // of a closure: Test….func1
		if strings.HasPrefix(name, "Test") || !more {
			doesMore.Store(name, true)
			break
		}
	}
	if *long {
		return large
	}
	return small
}

// inFull reports whether a test tries each of many things in each way, as it does with -long only.
func inFull() bool { return size(0, 1) > 0 }

// takesLong leaves a test to runs with -long, CI's among them. What it sees of the program's rules is held by others
// that take less; what it adds is that other programs, or many processes, really do what those suppose.
func takesLong(t testing.TB, why string) {
	t.Helper()
	if !inFull() {
		t.Skip(why + ", so it runs with -long only")
	}
}

// notUnderRace skips a test under the race detector. CI runs it without.
func notUnderRace(t testing.TB, why string) {
	t.Helper()
	if underRace() {
		t.Skip(why)
	}
}

// seeds yields 1 to n, or the one that -seed gives.
func seeds(n int) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		if *seed != 0 {
			yield(*seed)
			return
		}
		for s := uint64(1); s <= uint64(n) && yield(s); s++ {
		}
	}
}

// random returns the source of a test's random choices. Where from is 0, the seed is the one that -seed
// gives, else another one each time. A test that fails says how it is repeated.
func random(t testing.TB, from uint64) *rand.Rand {
	t.Helper()
	if from == 0 {
		if from = *seed; from == 0 {
			from = 1 + rand.Uint64()>>1
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to repeat this: go test -run '^%s$' -seed %d", t.Name(), from)
		}
	})
	return rand.New(rand.NewPCG(from, 1))
}

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == programName {
		main()
		return
	}
	flag.Parse()
	said := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { said[f.Name] = true })
	if !said["test.parallel"] && !said["test.fuzz"] {
		flag.Set("test.parallel", fmt.Sprint(max(testsAtOnce, 2*runtime.GOMAXPROCS(0))))
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(800) // else a third of all processor time is the collector's
		debug.SetMemoryLimit(2 << 30)
	}
	if *baselineAddr != "" {
		fmt.Fprintln(os.Stderr, serveBaseline(*baselineAddr))
		os.Exit(1)
	}
	code := m.Run()
	whole := !said["test.run"] && !said["test.skip"] && !said["test.list"] && !underRace()
	if file := os.Getenv("TEST_SIZES"); file != "" {
		if err := writeSizes(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if whole {
		for _, missing := range slices.Concat(neverSeen(), neverRun(), neverFound()) {
			fmt.Fprintln(os.Stderr, "no test has got", missing)
			code = 1
		}
	}
	if err := checkPlans(); err != nil {
		fmt.Fprintln(os.Stderr, "statements that read more the more rows there are:", err)
		code = 1
	}
	for _, end := range ends.calls {
		if err := end(); err != nil {
			fmt.Fprintln(os.Stderr, "at the end of all tests:", err)
			code = max(code, 1)
		}
	}
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// writeSizes writes a pattern of the tests that do more with -long to a file, for who runs only these so.
func writeSizes(file string) error {
	var tests []string
	doesMore.Range(func(name, _ any) bool { tests = append(tests, name.(string)); return true })
	return os.WriteFile(file, []byte("^("+strings.Join(tests, "|")+")$"), 0o600)
}

// ends is what TestMain calls when all tests have run.
var ends struct {
	sync.Mutex
	calls []func() error
}

// afterAll has a function called when all tests have run, to end what several of them share. An error fails the run.
func afterAll(end func() error) {
	ends.Lock()
	defer ends.Unlock()
	ends.calls = append(ends.calls, end)
}

// built is the program as a file, made once for all tests that need a process.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// programName is the name by which this test binary is the program itself (TestMain).
const programName = "widgetd"

// builtProgram returns the path of the program. It is this test binary under another name, since building the
// program takes as long as a fifth of all tests; with -long, and for benchmarks, it is built as for a server.
func builtProgram(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and starts the program")
	}
	notUnderRace(t, "the race detector does not see a process of its own")
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "widgetd-test-"); built.err != nil {
			return
		}
		program := filepath.Join(built.dir, programName)
		if _, isTest := t.(*testing.T); isTest && !*long {
			var self string
			if self, built.err = os.Executable(); built.err == nil {
				built.err = os.Symlink(self, program)
			}
			return
		}
		build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is built for a server
		out, err := build.CombinedOutput()
		if err != nil {
			built.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, programName)
}

// programsOfTests are the programs that tests run.
var programsOfTests = strings.Fields("base64 bash chromedriver chromium curl jq litestream node od openssl prlimit " +
	"promtool python3 script setpriv sh sqlite3 strace stripe-mock stty timeout")

// programFaults are what looking for each program came to, by its name; toldFaults are those that a test has told.
var programFaults, toldFaults sync.Map

// programFault says why a program can't be used. It looks for it once.
func programFault(name string) error {
	look, _ := programFaults.LoadOrStore(name, sync.OnceValue(func() error {
		_, err := exec.LookPath(name)
		return err
	}))
	return look.(func() error)()
}

// programsOrSkip skips a test that needs programs that are not there. Where all must be there (CI=true),
// the first test that misses one fails in the name of all.
func programsOrSkip(t testing.TB, names ...string) {
	t.Helper()
	if slices.Contains(names, "chromium") {
		notUnderRace(t, "a browser takes long and shows the race detector little")
	}
	for _, name := range names {
		fault := programFault(name)
		if fault == nil {
			continue
		}
		if _, told := toldFaults.LoadOrStore(name, true); told {
			t.Skipf("skipped: see TestHarness_programsThatTestsNeed: no %s", name)
		}
		if os.Getenv("CI") == "true" {
			t.Fatal(fault)
		}
		t.Skip(fault)
	}
}

// It runs alone, so that it comes before those that run at once, and tells for all of them what is missing.
func TestHarness_programsThatTestsNeed(t *testing.T) {
	for _, name := range programsOfTests {
		t.Run(name, func(t *testing.T) { programsOrSkip(t, name) })
	}
}

// runProgram runs another program, which must succeed. The sqlite3 shell waits for locks, as it does not by itself: a
// service may be writing.
func runProgram(t testing.TB, name string, args ...string) string {
	t.Helper()
	programsOrSkip(t, name)
	if name == "sqlite3" {
		args = slices.Concat([]string{"-cmd", ".timeout 15000"}, args)
	}
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v %s", name, args, err, out)
	}
	return string(out)
}

// asOnAServer runs lines of the README or docs/operating.md as they stand there, but for the directory,
// on a machine where the directory is the operator's and sudo, systemctl and the
// alias widgetd do what they are for. systemctl notes what it is asked.
func asOnAServer(t testing.TB, o *operator, lines string, more map[string]string) (asked string) {
	t.Helper()
	programsOrSkip(t, "sh")
	bin, notes := t.TempDir(), filepath.Join(t.TempDir(), "asked")
	scripts := map[string]string{
		"sudo":      `[ "$1" = -u ] && shift 2; exec "$@"`,
		"systemctl": `echo "$@" >>` + notes,
		"widgetd":   `cd ` + o.dir + ` && exec ` + builtProgram(t) + ` "$@"`,
	}
	maps.Copy(scripts, more)
	for name, script := range scripts {
		must(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	}
	lines = strings.NewReplacer("/var/lib/widgetd", o.dir, "/usr/local/bin/widgetd",
		filepath.Join(bin, "widgetd")).Replace(lines)
	runProgram(t, "env", "PATH="+bin+":"+os.Getenv("PATH"), "sh", "-eu", "-c", "cd "+o.dir+"\n"+lines)
	text, err := os.ReadFile(notes)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(text)
}

// A process is a widgetd that runs on its own.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	base string // where it answers
	log  runningLog
	done chan error
}

// start runs a command line and waits until it says that it serves.
func start(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, done: make(chan error, 1)}
	stderr, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	serving := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			var entry struct{ Msg, Addr string }
			if json.Unmarshal(lines.Bytes(), &entry) == nil && entry.Msg == "serving" {
				serving <- "http://" + entry.Addr + "/v1"
			}
			io.WriteString(&p.log, lines.Text()+"\n")
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
	return start(t, exec.Command(builtProgram(t), o.serving(more...)...))
}

// serving is the command that serves an operator's directory on any port.
func (o *operator) serving(more ...string) []string {
	return append([]string{"serve", "-addr", "127.0.0.1:0", "-log", "json", "-anonymous-rate", "1000000",
		"-db", o.env["WIDGETD_DB"], "-key", o.env["WIDGETD_KEY"]}, more...)
}

// stop sends a signal and returns how the process ended.
func (p *process) stop(signal os.Signal) error {
	p.t.Helper()
	must(p.t, p.cmd.Process.Signal(signal))
	return p.end()
}

// hangs is how long a test waits for what must come, and then ends: many times what that takes on a machine that is
// busy with other things. A process gives itself less than half a minute to end.
const hangs = 3 * time.Minute

// end returns how the process ended.
func (p *process) end() error {
	p.t.Helper()
	select {
	case err := <-p.done:
		return err
	case <-time.After(hangs):
		p.t.Fatalf("the process does not end: %v have passed since it was told to", hangs)
		return nil
	}
}

// A tracer counts what a service syncs. A process that is killed loses nothing even
// when it never syncs: only counting shows that a power cut would lose nothing.
type tracer struct {
	t    *testing.T
	file string
}

// serveTraced serves an operator's directory under strace.
func serveTraced(t *testing.T, o *operator) (*process, *tracer) {
	t.Helper()
	programsOrSkip(t, "strace")
	file := filepath.Join(t.TempDir(), "syncs")
	// -D: that is our child
	args := []string{"-D", "-f", "-y", "-e", "trace=fsync,fdatasync", "-o", file, builtProgram(t)}
	return start(t, exec.Command("strace", append(args, o.serving()...)...)), &tracer{t, file}
}

var syncOfTheLog = regexp.MustCompile(`(?m)^\d+ +f(data)?sync\(\d+<[^>]*/widgetd\.db-wal>`)

// syncs returns how often the write-ahead log has been synced so far.
func (tr *tracer) syncs() int {
	tr.t.Helper()
	text, err := os.ReadFile(tr.file)
	must(tr.t, err)
	if failed := regexp.MustCompile(`(?m)^.*= -1.*$`).Find(text); failed != nil {
		tr.t.Fatalf("a sync failed: %s", failed)
	}
	return len(syncOfTheLog.FindAll(text, -1))
}

// newClient has connections of its own.
func newClient(t testing.TB) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// postLead posts a lead and returns its id when it was acknowledged, and whether the answer ends the connection.
func postLead(client *http.Client, base, email string) (id string, last bool, err error) {
	res, err := client.Post(base+"/widget/leads", "application/json",
		strings.NewReader(`{"type":"newsletter","email":"`+email+`"}`))
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

// sofar is what was acknowledged until now.
func (a *acknowledged) sofar() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.ids)
}

// check looks for every acknowledged lead in the file.
func (a *acknowledged) check(t *testing.T, o *operator) {
	t.Helper()
	if lacks, leads := missing(t, o.env["WIDGETD_DB"], a.ids); len(lacks) > 0 {
		t.Fatalf("of %d acknowledged leads the file, which has %d, does not hold exactly once %q", len(a.ids), leads,
			lacks)
	}
}

// A load posts leads to a service until it is stopped, wherever that answers, and
// remembers what was acknowledged.
type load struct {
	acknowledged
	base  atomic.Pointer[string]
	done  chan struct{}
	posts sync.WaitGroup
}

// startLoad posts leads from so many clients, each with a pause between two. Their addresses begin with name.
func startLoad(t testing.TB, base, name string, clients int, pause time.Duration) *load {
	l := &load{done: make(chan struct{})}
	l.base.Store(&base)
	client := newClient(t)
	client.Timeout = hangs
	for c := range clients {
		l.posts.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-l.done:
					return
				case <-time.After(pause):
				}
				email := fmt.Sprintf("%s-c%d-i%d@example.com", name, c, i)
				// else the service is being restarted
				if id, _, err := postLead(client, *l.base.Load(), email); err == nil {
					l.add(email, id)
				}
			}
		})
	}
	return l
}

func (l *load) stop() {
	close(l.done)
	l.posts.Wait()
}

// take adds what an earlier load was told.
func (l *load) take(ids map[string]string) {
	for email, id := range ids {
		l.add(email, id)
	}
}

// grows waits until n more are acknowledged.
func (l *load) grows(n int) {
	for want := len(l.sofar()) + n; len(l.sofar()) < want; {
		time.Sleep(5 * time.Millisecond)
	}
}

// missing compares rows: it returns the acknowledged leads that a file lacks or
// holds more than once, and how many leads are in it.
func missing(t testing.TB, path string, ids map[string]string) (lacks []string, leads int) {
	t.Helper()
	st, err := openStore(path, storeOptions{noCheckpoints: true})
	must(t, err)
	defer st.close()
	there := map[string]int{}
	err = st.each(`SELECT id, email FROM leads`, nil, func(scan func(...any) error) error {
		var id, email string
		err := scan(&id, &email)
		there[id+" "+email]++
		leads++
		return err
	})
	must(t, err)
	for email, id := range ids {
		if there[id+" "+email] != 1 {
			lacks = append(lacks, email)
		}
	}
	return lacks, leads
}

// A customer is a client of a running service that has a licence, a device with its lease, a widget and a token.
type customer struct {
	t      testing.TB
	client *http.Client
	base   string
	key    string
	widget string
	token  string
}

// customer gives an operator's service one.
func (o *operator) customer(p *process) *customer {
	o.t.Helper()
	c := &customer{t: o.t, client: newClient(o.t), base: p.base}
	c.key = o.object("license", "add", "-account", o.account, "-product", "kds")["key"].(string)
	c.widget = o.object("widget", "add", "-account", o.account, "Lunch")["id"].(string)
	c.token = strings.TrimSpace(o.do("token", "issue", "-account", o.account, "-scope",
		"leads:read licenses:read stats:read"))
	if a := c.ask("POST", "/widget/license/activate", activateBody(c.key, "kitchen-1")); a.status != 200 {
		o.t.Fatalf("activate: %d %s", a.status, a.body)
	}
	return c
}

// ask sends a request over a connection; headers are "Name: value".
func (c *customer) ask(method, path, body string, headers ...string) answer {
	c.t.Helper()
	a, err := send(c.client, method, c.base+path, body, headers...)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	a.t = c.t
	return a
}

// send sends a request over a connection and reads the answer. An error means that nobody knows whether it was done.
func send(client *http.Client, method, url, body string, headers ...string) (a answer, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if err := setHeaders(r.Header, headers); err != nil {
		return a, err
	}
	res, err := client.Do(r)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return answer{status: res.StatusCode, header: res.Header, body: string(text)}, err
}

// lead posts a lead.
func (c *customer) lead(email string) answer {
	c.t.Helper()
	return c.ask("POST", "/widget/leads", fmt.Sprintf(`{"type":"newsletter","email":%q,"page":"/%s"}`, email,
		strings.Repeat("x", 1000)))
}

// reads checks that everything that needs no write is answered as ever.
func (c *customer) reads() {
	c.t.Helper()
	if a := c.ask("POST", "/widget/license/verify", activateBody(c.key, "kitchen-1")); a.status != 200 ||
		a.json()["valid"] != true {
		c.t.Errorf("verify: %d %s", a.status, a.body)
	}
	for _, path := range []string{"/leads", "/licenses", "/widget/stats?widget=" + c.widget} {
		if a := c.ask("GET", path, "", bearer(c.token)); a.status != 200 {
			c.t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
}

// refuses checks that writes of each kind are refused with that code and told when to come again.
func (c *customer) refuses(code string) {
	c.t.Helper()
	for name, a := range map[string]answer{
		"lead":     c.lead("refused@example.com"),
		"activate": c.ask("POST", "/widget/license/activate", activateBody(c.key, "kitchen-2")),
		"events": c.ask("POST", "/widget/events", fmt.Sprintf(`{"widget":%q,"events":[{"type":"view"}]}`, c.widget),
			"Origin: "+siteOrigin),
	} {
		if a.status != 503 || a.header.Get("Retry-After") == "" || a.json()["code"] != code {
			c.t.Errorf("%s: %d, Retry-After %q: %s; want %s", name, a.status, a.header.Get("Retry-After"), a.body, code)
		}
	}
}

// soon waits until something is true that another process does, and reports whether it is.
func soon(isTrue func() bool) bool {
	for deadline := time.Now().Add(hangs); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if isTrue() {
			return true
		}
	}
	return false
}

// healthBecomes waits until health says that.
func (c *customer) healthBecomes(status string) {
	c.t.Helper()
	var last string
	if !soon(func() bool {
		last = c.ask("GET", "/widget/health", "").body
		return strings.HasPrefix(last, `{"status":"`+status+`"`)
	}) {
		c.t.Fatalf("health stays %s, want %s", last, status)
	}
}

// A link is a client's connection to a service that may die.
type link struct {
	*http.Client
	base string
}

// A told is what a client was told.
type told struct {
	status   int
	replayed bool
	ID       string
	Code     string
	Token    string
	Valid    bool
	Released bool
}

// post sends a request. An error means that nobody knows whether it was done.
func (l link) post(path, body string, headers ...string) (told, error) {
	a, err := send(l.Client, "POST", l.base+path, body, headers...)
	got := told{status: a.status, replayed: a.header.Get("Idempotency-Replayed") == "true"}
	if err == nil && a.body != "" {
		err = json.Unmarshal([]byte(a.body), &got)
	}
	return got, err
}

// A raw connection sends and reads by hand.
type rawConn struct {
	net.Conn
	*bufio.Reader
}

func dialRaw(t testing.TB, addr string) *rawConn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return &rawConn{conn, bufio.NewReader(conn)}
}

// exchange sends bytes over a connection of its own and returns all that comes back until it is closed.
func exchange(t testing.TB, addr, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	must(t, err)
	defer conn.Close()
	go io.WriteString(conn, request) // fails where the answer comes before all is sent
	conn.SetReadDeadline(time.Now().Add(hangs))
	back, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection is not closed: %v, after %q", err, back)
	}
	return string(back)
}

// A shell is sqlite3 as an operator runs it.
type shell struct {
	t   testing.TB
	in  io.WriteCloser
	out io.Reader
}

// openShell opens the operator's database in the sqlite3 shell until the test ends.
func openShell(t testing.TB, path string) *shell {
	t.Helper()
	programsOrSkip(t, "sqlite3")
	cmd := exec.Command("sqlite3", "-batch", "-bail", path)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("sqlite3: %v", err)
		}
	})
	return &shell{t, in, out}
}

// run runs statements and returns once they are done.
func (s *shell) run(statements string) {
	s.t.Helper()
	if _, err := io.WriteString(s.in, ".timeout 10000\n"+statements+";\nSELECT 'done';\n"); err != nil {
		s.t.Fatal(err)
	}
	for text := ""; !strings.Contains(text, "done\n"); {
		buffer := make([]byte, 4096)
		n, err := s.out.Read(buffer)
		if err != nil {
			s.t.Fatalf("sqlite3 ended: %v", err)
		}
		text += string(buffer[:n])
	}
}

// operatorIn runs init in a directory.
func operatorIn(t testing.TB, dir string) *operator {
	t.Helper()
	o := &operator{t: t, dir: dir, env: filesIn(dir)}
	o.account = o.object("init", "-origin", siteOrigin)["account_id"].(string)
	return o
}

// smallDisk mounts a disk of that size until the test ends.
func smallDisk(t testing.TB, size int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", size)); err != nil {
		t.Skipf("a small disk can't be mounted (%v): run this test as root", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// fillDisk writes a file until nothing more fits.
func fillDisk(t testing.TB, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	must(t, err)
	defer f.Close()
	for size := 1 << 16; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// A form is what becomes of a call that fails.
type form int

const (
	notDone form = iota // and an error
	done                // and an error all the same
	// not done, and SQLite has rolled back the transaction, as it may when the disk is full or fails
	ended
)

func (f form) String() string { return [...]string{"not done", "done", "ended"}[f] }

// A fault makes one call on the writer's connection fail.
type fault struct {
	mu     sync.Mutex
	armed  bool
	only   string // the calls that count begin so
	left   int    // calls until it strikes
	form   form
	err    error
	struck string // the call that it struck; "": none yet

	sync time.Duration // that each commit takes
}

// strikes counts a call and reports whether it is the one that fails.
func (f *fault) strikes(call string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.armed || f.struck != "" || !strings.HasPrefix(call, f.only) {
		return false
	}
	if f.left--; f.left < 0 {
		f.struck = call
	}
	return f.struck != ""
}

func (f *fault) set(left int, only string, how form, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left, f.only, f.form, f.err, f.struck = left, only, how, err, ""
}

func (f *fault) arm(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = on
}

// next tells how many calls there are until it strikes, and whether it has.
func (f *fault) next() (left int, struck bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.left, f.struck != ""
}

func (f *fault) hit() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.struck
}

// faultyDriver is SQLite's driver with faults, by the file that is opened.
var faultyDriver struct {
	once   sync.Once
	under  driver.Driver
	faults sync.Map // the DSN up to its options → *fault
}

type faultDriver struct{}

const faultyDriverName = "faulty"

func useFault(path string, f *fault) {
	faultyDriver.once.Do(func() {
		db, err := sql.Open("sqlite", "")
		if err != nil {
			panic(err)
		}
		faultyDriver.under = db.Driver()
		db.Close()
		sql.Register(faultyDriverName, faultDriver{})
	})
	name, _, _ := strings.Cut(dsn(path, "rw", storeOptions{}), "?")
	faultyDriver.faults.Store(name, f)
}

func (faultDriver) Open(name string) (driver.Conn, error) {
	// Syncs are another test's, and take time.
	conn, err := faultyDriver.under.Open(strings.Replace(name, "synchronous%28FULL%29", "synchronous%28OFF%29", 1))
	if err != nil {
		return nil, err
	}
	name, _, _ = strings.Cut(name, "?")
	f, _ := faultyDriver.faults.Load(name)
	return &faultyConn{Conn: conn, fault: f.(*fault)}, nil
}

type faultyConn struct {
	driver.Conn
	*fault
	open []driver.Stmt
}

// Close closes the statements too: whoever calls a connection bad has let go of it,
// and of the lock that its transaction held.
func (c *faultyConn) Close() error {
	for _, stmt := range c.open {
		stmt.Close()
	}
	return c.Conn.Close()
}

// call does something, unless it is to fail. undo takes back what a caller who gets
// an error can't, as closing what was opened.
func (c *faultyConn) call(name string, do func() error, undo func()) error {
	if !c.strikes(name) {
		return do()
	}
	switch c.form {
	case done:
		if err := do(); err != nil {
			return err
		}
		undo()
	case ended:
		c.Conn.(driver.ExecerContext).ExecContext(context.Background(), "ROLLBACK", nil)
	}
	return c.err
}

func (c *faultyConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	var stmt driver.Stmt
	err := c.call("prepare "+query, func() (err error) {
		stmt, err = c.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, query)
		return err
	}, func() { stmt.Close() })
	if err != nil {
		return nil, err
	}
	c.open = append(c.open, stmt)
	return &faultyStmt{stmt, c, query}, nil
}

type faultyStmt struct {
	driver.Stmt
	conn  *faultyConn
	query string
}

func (s *faultyStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (res driver.Result, err error) {
	if s.query == "COMMIT" {
		time.Sleep(s.conn.sync)
	}
	return res, s.conn.call("exec "+s.query, func() error {
		res, err = s.Stmt.(driver.StmtExecContext).ExecContext(ctx, args)
		return err
	}, func() {})
}

func (s *faultyStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	var rows driver.Rows
	err := s.conn.call("query "+s.query, func() (err error) {
		rows, err = s.Stmt.(driver.StmtQueryContext).QueryContext(ctx, args)
		return err
	}, func() { rows.Close() })
	if err != nil {
		return nil, err
	}
	return &faultyRows{rows, s}, nil
}

type faultyRows struct {
	driver.Rows
	stmt *faultyStmt
}

func (r *faultyRows) Next(dest []driver.Value) error {
	return r.stmt.conn.call("next "+r.stmt.query, func() error { return r.Rows.Next(dest) }, func() {})
}

var baselineAddr = flag.String("baseline", "", "run no test, but serve the baseline of load.sh on this address")

// serveBaseline serves what load.sh holds the service against: net/http itself, which reads and decodes the same JSON
// and answers a constant. It returns an error.
func serveBaseline(addr string) error {
	// The constants have the length of what the service answers.
	posted := []byte(`{"valid":true,"code":"valid","detail":"The licence is valid.",` +
		`"checked_at":"2026-11-21T10:43:26Z",` +
		`"license":{"id":"lic_01m7yxmxbrv5yxng1bhejj7dys","product":"kds","plan":null,"kind":"node_locked",` +
		`"status":"active","trial":false,"expires_at":null,"grace_until":null,"entitlements":[],` +
		`"seats":{"used":1,"max":2,"free":1}},"device":{"id":"dev_01m7yxmxbr5w1kyz1ng53f97vz","name":null,` +
		`"state":"active"},"refresh_after":86400}` + "\n")
	got := []byte(`{"series":[` + strings.Repeat(`{"date":"2026-11-21","views":0,"visitors":0,"clicks":0},`, 30) +
		`{}]}` + "\n")
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		constant := got
		if r.Method == http.MethodPost {
			constant = posted
			body, err := io.ReadAll(r.Body)
			var members map[string]any
			if err != nil || json.Unmarshal(body, &members) != nil {
				http.Error(w, "not JSON", http.StatusBadRequest)
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write(constant)
	})
	web := &http.Server{Addr: addr, Handler: mux, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout}
	return web.ListenAndServe()
}
