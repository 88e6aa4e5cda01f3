package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

var errUntrue = errors.New("untrue")

func untrue(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errUntrue}, args...)...)
}

// A patron is one client: it has one request on its way at a time, and remembers what it was told.
type patron interface {
	step(link) error      // one request; an error: no answer came, and it may have been done
	open() bool           // an answer is missing
	compare(*store) error // holds the file against what it was told
	ask(link) error       // asks again for the answer that is missing
}

// A leadPatron posts leads, with or without an Idempotency-Key.
type leadPatron struct {
	name    string
	keyed   bool
	n       int
	missing string            // the address whose answer did not come
	ids     map[string]string // of the acknowledged, by address
	fresh   []string          // acknowledged, and not yet seen in the file
}

func (p *leadPatron) post(l link, email string) error {
	var headers []string
	if p.keyed {
		headers = append(headers, "Idempotency-Key: "+email)
	}
	p.missing = email
	a, err := l.post("/widget/leads", `{"type":"newsletter","email":"`+email+`"}`, headers...)
	if err != nil {
		return err
	}
	if a.status != 200 || a.ID == "" {
		return untrue("lead %s: %+v", email, a)
	}
	if id, known := p.ids[email]; known && (id != a.ID || p.keyed && !a.replayed) {
		return untrue("lead %s was %s: %+v", email, id, a)
	}
	p.missing, p.ids[email], p.fresh = "", a.ID, append(p.fresh, email)
	return nil
}

func (p *leadPatron) open() bool { return p.missing != "" }

func (p *leadPatron) step(l link) error {
	p.n++
	return p.post(l, fmt.Sprintf("%s-%d@example.com", p.name, p.n))
}

// ask posts the lead that was not answered again, and the last one that was.
func (p *leadPatron) ask(l link) error {
	again := []string{p.missing}
	if len(p.fresh) > 0 {
		again = append(again, p.fresh[len(p.fresh)-1])
	}
	p.fresh = nil
	for _, email := range again {
		if email == "" {
			continue
		}
		if err := p.post(l, email); err != nil {
			return err
		}
	}
	return nil
}

func (p *leadPatron) compare(st *store) error {
	for _, email := range append([]string{p.missing}, p.fresh...) {
		var n int
		var id string
		err := st.one(`SELECT count(*), coalesce(min(id), '') FROM leads WHERE email = ?`, []any{email}, &n, &id)
		if err != nil {
			return err
		}
		switch want := p.ids[email]; {
		case email == p.missing && n == 1 && !p.keyed: // it was kept, and nobody was told
			p.missing, p.ids[email] = "", id
		case email == p.missing && n > 1, email != p.missing && (n != 1 || id != want):
			return untrue("%q was acknowledged as %q; in the file %d times, as %q", email, want, n, id)
		}
	}
	return nil
}

// A clickPatron reports clicks on a widget of its own, each under a key of its own.
type clickPatron struct {
	widget  string
	n       int  // the number of the last report
	missing bool // its answer did not come
	clicks  int  // acknowledged
}

func (p *clickPatron) report(l link, n int) error {
	a, err := l.post("/widget/events", `{"widget":"`+p.widget+`","events":[{"type":"click","item":"soup"}]}`,
		fmt.Sprintf("Idempotency-Key: %s-%d", p.widget, n), "Origin: "+siteOrigin)
	first := p.missing && n == p.n
	if err == nil && (a.status != 204 || !first && !a.replayed) {
		err = untrue("click %d: %+v", n, a)
	}
	if err == nil && first {
		p.missing, p.clicks = false, p.clicks+1
	}
	return err
}

func (p *clickPatron) open() bool { return p.missing }

func (p *clickPatron) step(l link) error {
	p.n, p.missing = p.n+1, true
	return p.report(l, p.n)
}

func (p *clickPatron) ask(l link) error {
	if p.n == 0 {
		return nil
	}
	return p.report(l, p.n)
}

func (p *clickPatron) compare(st *store) error {
	var clicks, ofItems int
	err := st.one(`SELECT (SELECT coalesce(sum(clicks), 0) FROM widget_counts WHERE widget_id = ?1),
		(SELECT coalesce(sum(clicks), 0) FROM item_counts WHERE widget_id = ?1)`, []any{p.widget}, &clicks, &ofItems)
	if err == nil && (clicks < p.clicks || clicks > p.clicks+oneIf[p.missing] || clicks != ofItems) {
		err = untrue("%d clicks were acknowledged, missing %v; the widget has %d, its items %d", p.clicks, p.missing,
			clicks, ofItems)
	}
	return err
}

// A seatPatron is a device that takes a seat of a licence which has fewer seats
// than devices, is verified, and gives the seat back.
type seatPatron struct {
	license, key, fingerprint string

	turn    int
	path    string // of the request whose answer did not come; "": none
	idemKey string // of the last activation
	active  bool   // as last told, or found in the file after an answer that did not come
	taken   int    // how often it took a seat
	token   string
}

func (p *seatPatron) send(l link) error {
	var headers []string
	if p.path == activatePath && p.idemKey != "" {
		headers = append(headers, "Idempotency-Key: "+p.idemKey)
	}
	a, err := l.post(p.path, activateBody(p.key, p.fingerprint), headers...)
	switch {
	case err != nil:
		return err
	case p.path == activatePath && a.status == 200 && (a.replayed || a.Code == "already_active") == p.active:
		if !p.active {
			p.taken++
		}
		p.token, p.active = a.Token, true
	case p.path == activatePath && a.status == 409 && a.Code == "seat_limit_reached" && !p.active:
	case p.path == deactivatePath && a.status == 200 && a.Released == p.active:
		p.active = false
	default:
		return untrue("%s of %s, which was active: %v: %+v", p.path, p.fingerprint, p.active, a)
	}
	p.path = ""
	return nil
}

// verify shows the token of the last lease: it must be known, and the answer true.
func (p *seatPatron) verify(l link) error {
	if p.token == "" {
		return nil
	}
	a, err := l.post("/widget/license/verify", `{}`, bearer(p.token))
	want := map[bool]string{true: "valid", false: "device_released"}[p.active]
	if err == nil && (a.status != 200 || a.Valid != p.active || a.Code != want) {
		return untrue("verify of %s, which was active: %v: %+v", p.fingerprint, p.active, a)
	}
	return err
}

func (p *seatPatron) step(l link) error {
	p.turn++
	switch {
	case p.turn%2 == 0:
		return p.verify(l)
	case p.active:
		p.path = deactivatePath
		return p.send(l)
	}
	p.path, p.idemKey = activatePath, ""
	if p.turn%4 == 1 {
		p.idemKey = fmt.Sprint(p.fingerprint, "-", p.turn)
	}
	return p.send(l)
}

func (p *seatPatron) open() bool { return p.path != "" }

func (p *seatPatron) ask(l link) error {
	if p.path != "" {
		if err := p.send(l); err != nil {
			return err
		}
	}
	return p.verify(l)
}

func (p *seatPatron) compare(st *store) error {
	hash := fingerprintHash(p.fingerprint)
	d, err := orNil(st.deviceByFingerprint(p.license, hash[:]))
	if err != nil {
		return err
	}
	active, taken, events, released := false, 0, 0, 0
	if d != nil {
		active, taken = d.State == deviceActive, int(d.Activations)
		err := st.one(`SELECT count(*) FILTER (WHERE type IN ('device.activated', 'device.reactivated')),
			count(*) FILTER (WHERE type = 'device.released') FROM events WHERE json_extract(data, '$.device_id') = ?`,
			[]any{d.ID}, &events, &released)
		if err != nil {
			return err
		}
	}
	asTold := active == p.active && taken == p.taken
	done := p.path == activatePath && active && !p.active && taken == p.taken+1 ||
		p.path == deactivatePath && !active && p.active && taken == p.taken
	if held := taken - released; !asTold && !done || events != taken || held != map[bool]int{true: 1}[active] {
		return untrue("%s: told active %v after %d activations, %q open; in the file active %v after %d, "+
			"with %d events and %d of release",
			p.fingerprint, p.active, p.taken, p.path, active, taken, events, released)
	}
	p.active, p.taken = active, taken
	return nil
}

// newPatrons are clients of every kind, and the widgets and the licence that they need.
func newPatrons(o *operator, seats int) (all []patron) {
	o.do("account", "set-rate", o.account, "1000000")
	for i := range 4 {
		widget := o.object("widget", "add", "-account", o.account, fmt.Sprint("Widget ", i))["id"].(string)
		all = append(all, &leadPatron{name: fmt.Sprint("c", i), keyed: i%2 == 1, ids: map[string]string{}},
			&clickPatron{widget: widget})
	}
	added := o.object("license", "add", "-account", o.account, "-product", "kds", "-max-devices", fmt.Sprint(seats))
	for i := range 2 * seats {
		all = append(all, &seatPatron{license: added["id"].(string), key: added["key"].(string),
			fingerprint: fmt.Sprint("device-", i)})
	}
	return all
}

// compareAll holds the file against what all were told, and against what must hold whatever they were told.
func compareAll(o *operator, all []patron, seats int) {
	o.t.Helper()
	o.store(func(st *store) {
		for _, p := range all {
			if err := p.compare(st); err != nil {
				o.t.Error(err)
			}
		}
		var most, leads, created, clones int
		must(o.t, st.one(`SELECT (SELECT coalesce(max(seats_used), 0) FROM v_licenses), (SELECT count(*) FROM leads),
			(SELECT count(DISTINCT subject_id) FROM events WHERE type = 'lead.created'),
			(SELECT count(*) FROM events WHERE type = 'device.clone_suspected')`, nil, &most, &leads, &created,
			&clones))
		failIf(o.t, most > seats || leads != created || clones != 0,
			"%d seats taken, %d leads with %d events, %d suspected clones", most, leads, created, clones)
	})
}

// reviveAll starts the service, whose first answer, once it says that it serves, must be a health of 200. Then every
// patron asks again for the answer that it lacks.
func reviveAll(o *operator, all []patron, seats int) *process {
	o.t.Helper()
	p, client := serveProcess(o.t, o), newClient(o.t)
	defer client.CloseIdleConnections()
	a, err := send(client, "GET", p.base+"/widget/health", "")
	failIf(o.t, err != nil || a.status != 200, "health after a start: %v %v", a, err)
	compareAll(o, all, seats)
	var asked sync.WaitGroup
	for _, each := range all {
		asked.Go(func() {
			if err := each.ask(link{client, p.base}); err != nil {
				o.t.Errorf("asked again: %v", err)
			}
		})
	}
	asked.Wait()
	return p
}

// loadUntil has every patron send until the service answers no more, and returns how often it did. kill is called
// after some answers.
func loadUntil(t *testing.T, p *process, all []patron, answers int64, kill func()) int64 {
	var load sync.WaitGroup
	var got atomic.Int64
	killing := make(chan struct{})
	enough := sync.OnceFunc(func() { close(killing) })
	for _, each := range all {
		load.Go(func() {
			l := link{newClient(t), p.base}
			defer l.CloseIdleConnections()
			for {
				if err := each.step(l); err != nil {
					if errors.Is(err, errUntrue) {
						t.Error(err)
					}
					return
				}
				if got.Add(1) == answers {
					enough()
				}
			}
		})
	}
	go func() { load.Wait(); enough() }()
	<-killing
	kill()
	load.Wait()
	return got.Load()
}

// killWhileStarting starts the service and kills it after a moment, before it can say that it serves.
func killWhileStarting(o *operator, moment time.Duration) {
	o.t.Helper()
	cmd := exec.Command(builtProgram(o.t), "serve", "-addr", "127.0.0.1:0",
		"-db", o.env["WIDGETD_DB"], "-key", o.env["WIDGETD_KEY"])
	must(o.t, cmd.Start())
	time.Sleep(moment)
	cmd.Process.Kill()
	cmd.Wait()
}

func TestCrash_atAnyMomentLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	const seats = 3 // half as many as devices
	all := newPatrons(o, seats)
	open, answers, kills, choices := 0, int64(0), size(4, 30), random(t, 0)
	upTo := func(most time.Duration) time.Duration { return time.Duration(choices.Int64N(int64(most))) }
	for n := range kills {
		p := reviveAll(o, all, seats)
		compareAll(o, all, seats)
		answers += loadUntil(t, p, all, 20+choices.Int64N(100), func() {
			if n%2 == 1 {
				p.cmd.Process.Signal(syscall.SIGTERM)
				time.Sleep(upTo(200 * time.Millisecond)) // it may have ended by then
			}
			p.cmd.Process.Kill()
			<-p.done
		})
		if n%4 == 2 {
			killWhileStarting(o, upTo(40*time.Millisecond))
		}
		for _, each := range all {
			open += oneIf[each.open()]
		}
		if t.Failed() {
			t.Fatalf("after kill %d", n)
		}
	}
	reviveAll(o, all, seats).stopCleanly()
	told := 0
	for _, each := range all {
		if leads, ok := each.(*leadPatron); ok {
			leads.fresh = slices.Collect(maps.Keys(leads.ids))
			told += len(leads.ids)
		}
	}
	compareAll(o, all, seats)
	o.store(func(st *store) {
		leads, err := oneValue[int](st.queries, `SELECT count(*) FROM leads`)
		must(t, err)
		equal(t, "leads in the file, and acknowledged", leads, told)
	})
	equal(t, "check", o.object("check")["ok"], any(true))
	t.Logf("%d kills, %d requests answered, %d left open", kills, answers, open)
	if answers < 10*int64(kills) || open == 0 {
		t.Error("the kills met no load")
	}
}

func TestCrash_findsEveryAcknowledgedWriteSynced(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	widget := o.object("widget", "add", "-account", o.account, "Lunch")["id"].(string)
	key := o.object("license", "add", "-account", o.account, "-product", "kds")["key"].(string)
	p, trace := serveTraced(t, o)
	l := link{newClient(t), p.base}
	device := func(n int) string { return activateBody(key, fmt.Sprint("device-", n)) }
	lead := func(n int) string { return fmt.Sprintf(`{"type":"newsletter","email":"u%d@example.com"}`, n) }
	events := func(int) string { return `{"widget":"` + widget + `","events":[{"type":"order","item":"soup"}]}` }
	const writes = 20 // of each kind
	for _, kind := range []struct {
		path string
		body func(n int) string
	}{{"/widget/leads", lead}, {"/widget/license/activate", device}, {"/widget/events", events},
		{"/widget/license/deactivate", device}} {
		for n := range writes {
			before := trace.syncs()
			a, err := l.post(kind.path, kind.body(n), "Origin: "+siteOrigin)
			if err != nil || a.status/100 != 2 {
				t.Fatalf("%s: %+v %v", kind.path, a, err)
			}
			if trace.syncs() == before {
				t.Errorf("%s: write %d was acknowledged and not synced", kind.path, n)
			}
		}
	}
	p.stopCleanly()
	t.Logf("%d writes of each kind, %d syncs", writes, trace.syncs())
}

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

// exchange posts a lead over the connection, unless that is to end. What came so late that the service may have taken
// the connection for idle is sent again over another.
func (s *sender) exchange(header, email string) error {
	for {
		// One on which nothing was sent for a while may be taken for idle, though only we were slow to read.
		if s.conn == nil || time.Since(s.sent) > drainQuiet/2 {
			if err := s.dial(); err != nil {
				return err
			}
		}
		last := s.sent
		s.sent = time.Now()
		_, err := io.WriteString(s.conn, leadOf(email, header))
		late := time.Since(last) > lateInterval // a busy machine has had it wait
		if err == nil {
			err = s.hear(email)
		}
		if err != nil {
			s.hangUp()
		}
		if err == nil || err == errTold || !late {
			return err
		}
	}
}

// sendUntil sends leads until it is told to end.
func (s *sender) sendUntil(end <-chan struct{}, name, header string) {
	defer s.hangUp()
	for n := 0; ; n++ {
		select {
		case <-end:
			return
		default:
		}
		if err := s.exchange(header, fmt.Sprintf("%s-%d@example.com", name, n)); err != nil && err != errTold {
			s.t.Error(err)
			return
		}
	}
}

// lateInterval is how long after the signal a request must have been sent, so that
// nobody could have taken its connection for one that is quiet.
const lateInterval = drainQuiet * 8 / 10

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
	for kind, header := range map[string]string{"kept": "", "fresh": "Connection: close\r\n"} {
		for i := range 4 {
			load.Go(func() {
				s := &sender{t: t, addr: u.addr, all: &all}
				s.sendUntil(end, fmt.Sprint(kind, i), header)
			})
		}
	}
	restarts, choices := size(3, 30), random(t, 0)
	for round := range restarts {
		time.Sleep(time.Duration(choices.Int64N(int64(50 * time.Millisecond))))
		must(t, p.cmd.Process.Signal([]os.Signal{syscall.SIGTERM, os.Interrupt}[round%2]))
		if err := p.end(); err != nil {
			t.Fatalf("ended with %v\n%s", err, p.log.String())
		}
		p = u.start()
	}
	close(end)
	load.Wait()
	p.stopCleanly()
	equal(t, "what is left", dirNames(t, o.dir), []string{"widgetd.db", "widgetd.db-identity", "widgetd.key"})
	all.check(t, o)
	t.Logf("%d requests answered", len(all.ids))
	if len(all.ids) < 5*restarts {
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
	taken, err := listenAt(dir, "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	_, err = listenAt(dir, taken.Addr().String())
	oneLine(t, err, "choose another address with -addr")
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
