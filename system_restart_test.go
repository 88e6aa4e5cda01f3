package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A socketUnit is what systemd's is to a service: it holds the port over restarts.
type socketUnit struct {
	o    *operator
	addr string
	file *os.File
}

func newSocketUnit(o *operator) *socketUnit {
	o.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(o.t, err)
	defer listener.Close() // the file is a copy
	file, err := listener.(*net.TCPListener).File()
	must(o.t, err)
	o.t.Cleanup(func() { file.Close() })
	return &socketUnit{o, listener.Addr().String(), file}
}

// start starts the service with the port handed over (sd_listen_fds(3)).
func (u *socketUnit) start() *process {
	u.o.t.Helper()
	cmd := exec.Command("sh", "-c", `LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" "$@"`, builtProgram(u.o.t),
		"serve", "-addr", "192.0.2.1:1", "-log", "json", "-anonymous-rate", "1000000")
	cmd.Env = append(os.Environ(), "WIDGETD_DB="+u.o.env["WIDGETD_DB"], "WIDGETD_KEY="+u.o.env["WIDGETD_KEY"])
	cmd.ExtraFiles = []*os.File{u.file} // becomes 3
	p := start(u.o.t, cmd)
	if want := "http://" + u.addr + "/v1"; p.base != want {
		u.o.t.Fatalf("serves on %s, want %s", p.base, want)
	}
	return p
}

// A sender writes requests to raw connections, so that nothing is sent again behind the test's back.
type sender struct {
	t    *testing.T
	addr string
	*bufio.Reader
	conn net.Conn
	sent time.Time // the last request
	all  *acknowledged
}

var errTold = errors.New("told to open another connection")

func (s *sender) dial() error {
	s.hangUp()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		return fmt.Errorf("refused: %w", err)
	}
	conn.SetDeadline(time.Now().Add(hangs))
	s.conn, s.Reader, s.sent = conn, bufio.NewReader(conn), time.Now()
	return nil
}

func (s *sender) hangUp() {
	if s.conn != nil {
		s.conn.Close()
	}
	s.conn = nil
}

// leadOf is a request that posts a lead.
func leadOf(email, header string) string {
	body := `{"type":"newsletter","email":"` + email + `"}`
	return fmt.Sprintf("POST /v1/widget/leads HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+
		"Content-Length: %d\r\n%s\r\n%s", len(body), header, body)
}

// hear reads the answer to a lead. It returns errTold when the connection ends with it.
func (s *sender) hear(email string) error {
	res, err := http.ReadResponse(s.Reader, nil)
	if err != nil {
		return fmt.Errorf("%s is unanswered: %w", email, err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("%s has half an answer: %w", email, err)
	}
	var a struct{ ID string }
	if json.Unmarshal(body, &a); res.StatusCode != 200 || a.ID == "" {
		return fmt.Errorf("%s: %s %s", email, res.Status, body)
	}
	s.all.add(email, a.ID)
	if res.Close {
		return errTold
	}
	return nil
}

// exchange posts leads over one connection, all in one write. When the connection
// ends with an answer, what was sent behind it is sent again over another, and so is what came so late that the
// service may have taken the connection for idle.
func (s *sender) exchange(header string, emails ...string) error {
	for len(emails) > 0 {
		// One on which nothing was sent for a while may be taken for idle, though only we were slow to read.
		if s.conn == nil || time.Since(s.sent) > drainQuiet/2 {
			if err := s.dial(); err != nil {
				return err
			}
		}
		text := ""
		for _, email := range emails {
			text += leadOf(email, header)
		}
		last := s.sent
		s.sent = time.Now()
		_, err := io.WriteString(s.conn, text)
		late := time.Since(last) > lateInterval // a busy machine has had it wait
		if err != nil && !late {
			return fmt.Errorf("%s can't be sent: %w", emails[0], err)
		}
		for len(emails) > 0 {
			err := s.hear(emails[0])
			if err != nil && err != errTold && !late {
				return err
			}
			if err == nil || err == errTold {
				emails, late = emails[1:], false // the service has taken them
			}
			if err != nil {
				s.hangUp()
				break
			}
		}
	}
	return nil
}

// sendUntil sends groups of leads until it is told to end.
func (s *sender) sendUntil(end <-chan struct{}, name, header string, group int) {
	defer s.hangUp()
	for n := 0; ; n++ {
		select {
		case <-end:
			return
		default:
		}
		var emails []string
		for i := range group {
			emails = append(emails, fmt.Sprintf("%s-%d-%d@example.com", name, n, i))
		}
		if err := s.exchange(header, emails...); err != nil {
			s.t.Error(err)
			return
		}
	}
}

// lateInterval is how long after the signal a request must have been sent, so that
// nobody could have taken its connection for one that is quiet.
const lateInterval = drainQuiet * 8 / 10

// sendLate sends a request over a connection that was open and idle when the service was told to stop, after
// a pause, and reports whether it was in time.
func (s *sender) sendLate(signalled <-chan time.Time, pause time.Duration, email string) bool {
	defer s.hangUp()
	at := <-signalled
	time.Sleep(pause)
	_, err := io.WriteString(s.conn, leadOf(email, ""))
	if time.Since(at) > lateInterval {
		return false
	}
	if err == nil {
		err = s.hear(email)
	}
	if err != nil && err != errTold {
		s.t.Error(err)
	}
	return true
}

// restart stops a service while late requests come, and starts the next one.
func (u *socketUnit) restart(t *testing.T, p *process, round int, all *acknowledged,
	choices *rand.Rand) (next *process, late int) {
	t.Helper()
	signalled, inTime := make(chan time.Time), make(chan bool)
	const connections = 4
	for i := range connections {
		s := &sender{t: t, addr: u.addr, all: all}
		must(t, s.dial())
		if i%2 == 0 { // one that was used, else one that was only opened
			must(t, s.exchange("", fmt.Sprintf("early-%d-%d@example.com", round, i)))
		}
		pause := time.Duration(choices.Int64N(int64(lateInterval / 2)))
		go func() { inTime <- s.sendLate(signalled, pause, fmt.Sprintf("late-%d-%d@example.com", round, i)) }()
	}
	time.Sleep(time.Duration(choices.Int64N(int64(50 * time.Millisecond))))
	began := time.Now()
	must(t, p.cmd.Process.Signal([]os.Signal{syscall.SIGTERM, os.Interrupt}[round%2]))
	for range connections {
		signalled <- began
	}
	if err := p.end(); err != nil {
		t.Errorf("ended with %v\n%s", err, p.log.String())
	}
	next = u.start()
	for range connections {
		if <-inTime {
			late++
		}
	}
	return next, late
}

// A service tells systemd when it serves and when it stops, and nothing else (sd_notify(3)): once it is ready, it
// answers, and so does its socket for 'widgetd status'. After a kill the next start notes that nobody has asked for it.
func TestRestart_tellsSystemdWhenItServes(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	for i, name := range []string{filepath.Join(o.dir, "notify"), "@widgetd-" + randomText(8)} {
		heard, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		must(t, err)
		defer heard.Close()
		hear := func(want string) {
			t.Helper()
			text := make([]byte, 1000)
			must(t, heard.SetReadDeadline(time.Now().Add(hangs)))
			n, err := heard.Read(text)
			must(t, err)
			equal(t, "told", string(text[:n]), want)
		}
		cmd := exec.Command(builtProgram(t), o.serving()...)
		cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+name)
		p := start(t, cmd)
		hear("READY=1")
		service, err := askService(t.Context(), o.env["WIDGETD_DB"])
		failIf(t, service == nil, "nobody answers at its socket: %v", err)
		equal(t, "starts that nobody asked for", len(unaskedStarts(o.env["WIDGETD_DB"], time.Now())), i)
		if i == 0 {
			p.stop(os.Kill)
			continue
		}
		p.stopCleanly()
		hear("STOPPING=1")
		lacks(t, p.log.String(), `"level":"WARN"`)
	}
}

func TestRestart_underLoadAnswersEveryRequestAndRefusesNone(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	u := newSocketUnit(o)
	p := u.start()
	var all acknowledged
	end := make(chan struct{})
	var load sync.WaitGroup
	for kind, how := range map[string]struct {
		header string
		group  int
	}{"kept": {"", 1}, "pipelined": {"", 3}, "fresh": {"Connection: close\r\n", 1}} {
		for i := range 3 {
			load.Go(func() {
				s := &sender{t: t, addr: u.addr, all: &all}
				s.sendUntil(end, fmt.Sprint(kind, i), how.header, how.group)
			})
		}
	}
	restarts, late, choices := size(3, 30), 0, random(t, 0)
	for round := range restarts {
		next, inTime := u.restart(t, p, round, &all, choices)
		p, late = next, late+inTime
		if t.Failed() {
			break
		}
	}
	close(end)
	load.Wait()
	p.stopCleanly()
	equal(t, "what is left", dirNames(t, o.dir), []string{"widgetd.db", "widgetd.db-identity", "widgetd.key"})
	all.check(t, o)
	t.Logf("%d requests answered, %d of them sent over idle connections after the signal", len(all.ids), late)
	if late < size(1, restarts) || len(all.ids) < 20*restarts {
		t.Error("the restarts met no load")
	}
}

// Against a backup, or a file from before an upgrade, that is put beside the log of the file before: SQLite would
// replay that, and serve a mixture of both. A log of the file itself is taken, whichever start has left it.
func TestRestart_refusesTheLogOfAnotherFile(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.shares = false // what commands have open in common is not killed with the service
	crash := func() {
		p := serveProcess(t, o)
		o.customer(p).lead("ada@example.com")
		p.stop(os.Kill)
	}
	crash()
	copied := filepath.Join(t.TempDir(), "copy.db")
	o.do("backup", copied)
	crash()
	crash()
	for _, put := range []struct{ from, next string }{{copied, "check"}, {oldDatabase(t, 8), "upgrade"}} {
		env := filesIn(copyFiles(t, o.dir))
		db := env["WIDGETD_DB"]
		writeFile(t, db, fileBytes(t, put.from))
		before := directory(t, filepath.Dir(db))
		files := []string{"-db", db, "-key", env["WIDGETD_KEY"]}
		for _, args := range [][]string{{"serve", "-addr", "127.0.0.1:0"}, {"upgrade"}, {"check"}, {"promote"},
			{"lead", "list"}, {"backup", db + ".copy"}} {
			out, err := o.try(append(args, files...)...)
			failIf(t, err == nil || !strings.Contains(fmt.Sprint(out, err), db+
				"-wal is the write-ahead log of another file than "+db), "%q of %s: %v, %s", args, put.from, err, out)
		}
		if !maps.Equal(before, directory(t, filepath.Dir(db))) {
			t.Error("something was changed")
		}
		must(t, errors.Join(os.Rename(db+"-wal", db+".aside"), os.Remove(db+"-shm")))
		runProgram(t, builtProgram(t), append([]string{put.next}, files...)...) // without the log
	}
	crash()
}

// A kill between any two steps of a command on a file that was put in the place of another one, of a start, a promotion
// and the start after it leaves a log that is taken.
func TestRestart_takesItsOwnLogAfterAKillAtAnyStep(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	db := o.env["WIDGETD_DB"]
	var st *store
	open := func() error { st = openTestStore(t, db, storeOptions{noCheckpoints: true}); return nil }
	write := func(query string) func() error {
		return func() error { return st.update(t.Context(), func(t *tx) error { t.exec(query); return nil }) }
	}
	const number = `UPDATE epoch SET number = number + 1`
	var logs, marks int
	mark, shut := func() error { return st.settleIdentityFile(true) }, func() error { return st.close() }
	writeFile(t, identityPath(db), "of the file before")
	for i, step := range []func() error{open, write(number), shut, open, mark, write(number), write(number),
		func() error { return removeIdentityFile(db) }, write(newIdentity), write(number), shut,
		open, mark, write(number), shut} {
		must(t, step())
		killed := filepath.Join(copyFiles(t, o.dir), filepath.Base(db))
		logs, marks = logs+min(1, int(fileSize(killed+"-wal"))), marks+min(1, int(fileSize(identityPath(killed))))
		var want, got int64
		must(t, readFile(db, func(q *queries) error { return q.one(`SELECT number FROM epoch`, nil, &want) }))
		err := readFile(killed, func(q *queries) error { return q.one(`SELECT number FROM epoch`, nil, &got) })
		failIf(t, err != nil || got != want, "after step %d: %d, want %d: %v", i, got, want, err)
	}
	equal(t, "steps with a log, and with a mark", []int{logs, marks}, []int{7, 6})
}

func TestRestart_leavesTheSocketOfAnotherProcessAlone(t *testing.T) {
	t.Parallel()
	l, err := listenAt(t.TempDir(), "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	_, err = listenAt(t.TempDir(), l.Addr().String())
	oneLine(t, err, "choose another address with -addr")
}

// listenAt listens as a service does whose files are in a directory, where systemd has passed a socket to another
// process.
func listenAt(dir, addr string) (net.Listener, error) {
	passed := map[string]string{"LISTEN_FDS": "1", "LISTEN_PID": "1"}
	e := &env{getenv: func(name string) string { return passed[name] }, uid: os.Geteuid(),
		values: map[string]string{"addr": addr}, files: map[string]string{"db": filepath.Join(dir, "widgetd.db")}}
	return e.listen()
}

func TestListen_makesAUnixSocketWhereNobodyElseHasPutOne(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open, path := filepath.Join(dir, "open"), filepath.Join(dir, "http.sock")
	must(t, errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777)))
	killed, err := net.Listen("unix", path)
	must(t, err)
	killed.(*net.UnixListener).SetUnlinkOnClose(false)
	must(t, killed.Close())
	l, err := listenAt(dir, "unix:"+path)
	must(t, err)
	info, err := os.Lstat(path)
	must(t, err)
	equal(t, "mode", info.Mode(), fs.ModeSocket|0o660)
	for addr, want := range map[string]string{
		path:                     "another service has its socket " + path + ": choose another address with -addr",
		open + "/http.sock":      "others may write in " + open,
		dir + "/widgetd.sock":    "is one of the service's own files",
		dir + "/none/http.sock":  "no such file",
		"/dev/null":              "address already in use: choose another address with -addr",
		strings.Repeat("s", 107): "is longer than 107 bytes",
	} {
		if wrong, err := listenAt(dir, "unix:"+addr); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %q", addr, wrong, err, want)
		}
	}
	must(t, l.Close())
	failIf(t, fileExists(path), "the socket is still there")
}

// The variable has the end of a line as Windows writes it.
func TestServe_answersOnAUnixSocketUntilItStops(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	path := filepath.Join(t.TempDir(), "http.sock")
	env := map[string]string{"WIDGETD_ADDR": "unix:" + path + "\r", "WIDGETD_LOG": "text\r",
		"WIDGETD_DB": o.env["WIDGETD_DB"] + "\r", "WIDGETD_KEY": o.env["WIDGETD_KEY"] + "\r"}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	log, noted := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"serve"}, func(name string) string { return env[name] }, io.Discard, noted)
		noted.Close()
	}()
	lines := bufio.NewScanner(log)
	for lines.Scan() && !strings.Contains(lines.Text(), "msg=serving addr="+path) {
		t.Log(lines.Text())
	}
	go io.Copy(io.Discard, log)
	dial := func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) }
	client := &http.Client{Transport: &http.Transport{DialContext: dial}}
	res, err := client.Get("http://x/livez")
	must(t, err)
	equal(t, "status", res.StatusCode, 200)
	must(t, res.Body.Close())
	client.CloseIdleConnections()
	stop()
	must(t, <-ended)
	failIf(t, fileExists(path), "the socket is still there")
}

func TestStop_waitsForWhatIsUnderWayAndNoLonger(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sends  time.Duration // how long after the stop the rest is sent; 0: never
		status int
		ends   time.Duration // after the stop, at most
	}{
		"the rest comes in time": {3 * time.Second, 200, 3*time.Second + 2*drainQuiet},
		"the rest never comes":   {0, 400, readTimeout + 2*drainQuiet},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService(t)
				l := newPipeListener()
				stop, ended := s.serveOn(l)
				caller, served := net.Pipe()
				l.conns <- served
				probe, probed := net.Pipe() // open before the end, and heard after it
				l.conns <- probed
				health := func(path string) *http.Response {
					io.WriteString(probe, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
					res, err := http.ReadResponse(bufio.NewReader(probe), nil)
					must(t, err)
					return res
				}
				if res := health("/livez"); res.StatusCode != 200 || res.Close {
					t.Errorf("alive: %+v", res)
				}
				io.WriteString(caller, leadHead+leadSize+"\n")
				synctest.Wait()
				stop()
				began := time.Now()
				answered := make(chan *http.Response, 1)
				go func() {
					res, err := http.ReadResponse(bufio.NewReader(caller), nil)
					if err != nil {
						t.Error(err)
					}
					answered <- res
				}()
				synctest.Wait()
				select {
				case <-l.closed:
				default:
					t.Error("the listener is open")
				}
				if res := health("/v1/widget/health"); res.StatusCode != 503 || !res.Close {
					t.Errorf("health while stopping: %+v", res)
				}
				probe.Close()
				if test.sends > 0 {
					time.Sleep(test.sends)
					io.WriteString(caller, plainLead)
				}
				if res := <-answered; res == nil || res.StatusCode != test.status || !res.Close {
					t.Errorf("the answer: %+v", res)
				}
				caller.Close()
				if ended(); time.Since(began) > test.ends {
					t.Errorf("ended after %v", time.Since(began))
				}
			})
		})
	}
}

func TestStop_endsAtOnceAtASecondSignal(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	p := serveProcess(t, o)
	addr := strings.TrimSuffix(strings.TrimPrefix(p.base, "http://"), "/v1")
	unfinished := dialRaw(t, addr) // the drain waits for its body
	request := leadOf("never@example.com", "")
	io.WriteString(unfinished.Conn, request[:len(request)-1])
	must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	for { // until it drains, which closes the listener
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			break
		}
		conn.Close()
		runtime.Gosched()
	}
	var err error
	for ended := false; !ended; { // the first may still be on its way to those who listen for it
		p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err = <-p.done:
			ended = true
		case <-time.After(20 * time.Millisecond): // a flood of signals ends a Go program by a fault of memory
		}
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("a second signal: the process ended with %v", err)
	}
}

// A halfPipe is the end of a pipe from which no more can be read once CloseRead was
// called, as that of a TCP connection.
type halfPipe struct {
	net.Conn
	closed atomic.Bool
}

func (p *halfPipe) CloseRead() error {
	p.closed.Store(true)
	return p.SetReadDeadline(time.Unix(1, 0)) // wakes who reads
}

func (p *halfPipe) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if p.closed.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
		err = io.EOF
	}
	return n, err
}

func TestStop_isNotHeldUpByAConnectionWithoutAByte(t *testing.T) {
	t.Parallel()
	for _, silent := range []time.Duration{0, drainSilent / 2, 2 * drainSilent} {
		t.Run(fmt.Sprint("for ", silent), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService(t)
				l := newPipeListener()
				stop, ended := s.serveOn(l)
				caller, served := net.Pipe()
				l.conns <- &halfPipe{Conn: served}
				time.Sleep(silent)
				stop()
				began := time.Now()
				if _, err := caller.Read(make([]byte, 1)); err != io.EOF {
					t.Errorf("the connection ends with %v", err)
				}
				if ended(); time.Since(began) > drainSilent+2*drainQuiet {
					t.Errorf("ended after %v", time.Since(began))
				}
			})
		})
	}
}
