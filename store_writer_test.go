package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// everyFault makes each call fail with each error in each form, which takes minutes:
//
//	go test -run TestWhicheverCall -every-fault -timeout 30m
var everyFault = flag.Bool("every-fault", false, "try every error in every form at every call")

// A form is what becomes of a call that fails.
type form int

const (
	notDone form = iota // and an error
	done                // and an error all the same
	ended               // not done, and SQLite has rolled back the transaction, as it may when the disk is full or fails
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
	f.left--
	if f.left >= 0 {
		return false
	}
	f.struck = call
	return true
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

func useFault(path string, f *fault) {
	faultyDriver.once.Do(func() {
		db, err := sql.Open("sqlite", "")
		if err != nil {
			panic(err)
		}
		faultyDriver.under = db.Driver()
		db.Close()
		sql.Register("faulty", faultDriver{})
	})
	name, _, _ := strings.Cut(dsn(path, "rw", storeOptions{}), "?")
	faultyDriver.faults.Store(name, f)
}

func (faultDriver) Open(name string) (driver.Conn, error) {
	conn, err := faultyDriver.under.Open(strings.Replace(name, "synchronous%28FULL%29", "synchronous%28OFF%29", 1)) // which is another test's, and takes time
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

// A faultBench is a service whose writer can be made to fail.
type faultBench struct {
	*service
	fault *fault
	ahead atomic.Int64 // of the moment at which it began, in nanoseconds
	runs  int
}

func newFaultBench(t *testing.T) *faultBench {
	b, began := &faultBench{fault: &fault{}}, time.Now()
	b.service = newService(t, withoutAddressLimits)
	useFault(b.store.path, b.fault)
	b.reopen(storeOptions{driver: "faulty", now: func() time.Time { return began.Add(time.Duration(b.ahead.Load())) }})
	b.change(func(t *tx) error { return t.setRate(b.account, 1_000_000) })
	return b
}

// A faultRun is one run of the scenario, with a widget and three licences of its own.
// The last of these has no seat left.
type faultRun struct {
	*faultBench
	name     string
	widget   string
	licenses [3]string
	keys     [3]string
	answers  int // stored under an Idempotency-Key before it began
	looked   int // how often memory was held against the file

	looseWidget      string // whose clicks come without a key
	counted, unknown int    // those that were acknowledged, and those that may be counted
}

// prepare makes what a run needs. A cold run finds no statement prepared.
func (b *faultBench) prepare(cold bool) *faultRun {
	b.t.Helper()
	b.runs++
	r := &faultRun{faultBench: b, name: fmt.Sprint("run", b.runs)}
	r.widget, r.looseWidget = r.addWidget(r.account), r.addWidget(r.account)
	for i, seats := range []int{2, 2, 1} {
		r.licenses[i], r.keys[i] = r.addLicense(license{Product: fmt.Sprint("product ", i), MaxDevices: &seats})
	}
	r.post(activatePath, r.device(2, "holder")).is(200)
	r.answers = r.count(`SELECT count(*) FROM idempotency`)
	if cold {
		b.store.turn <- struct{}{}
		b.store.writes.close()
		<-b.store.turn
	}
	return r
}

func (r *faultRun) device(license int, fingerprint string) string {
	return fmt.Sprintf(`{"license_key":%q,"fingerprint":%q}`, r.keys[license], fingerprint)
}

// An act is one request of the scenario.
type act struct {
	path, body string
	status     int
	says       string // what the first answer holds
	once       bool   // it is sent without a key, and never again
}

func (r *faultRun) lead(name string) act {
	return act{path: "/widget/leads", body: `{"type":"newsletter","email":"` + name + "@" + r.name + `.example","page":"/` + name + `"}`, status: 200, says: `"ok":true`}
}

func (r *faultRun) events(widget, item string) act {
	return act{path: "/widget/events", body: `{"widget":"` + widget + `","events":[{"type":"click","item":"` + item + `"},{"type":"order"}]}`, status: 204}
}

// loose reports a click without a key: nobody can tell a second one from the first.
func (r *faultRun) loose() act {
	a := r.events(r.looseWidget, "bread")
	a.once = true
	return a
}

// acts are the requests that are sent one after the other, and those that are sent
// at once, whose order does not matter.
func (r *faultRun) acts() (first, together, last []act) {
	takes := func(body string) act {
		return act{path: activatePath, body: body, status: 200, says: `"code":"activated"`}
	}
	full := func(body string) act {
		return act{path: activatePath, body: body, status: 409, says: "seat_limit_reached"}
	}
	frees := func(body string) act {
		return act{path: deactivatePath, body: body, status: 200, says: `"released":true`}
	}
	other := act{path: activatePath, body: strings.Replace(r.device(1, "e"), "{", `{"product":"another",`, 1), status: 403, says: "product_mismatch"}
	first = []act{r.lead("ada"), takes(r.device(0, "a")), takes(r.device(0, "b")), full(r.device(0, "c")),
		r.events(r.widget, "soup"), r.loose(), frees(r.device(0, "a")), takes(r.device(0, "c"))}
	together = []act{r.lead("bob"), takes(r.device(1, "d")), full(r.device(2, "late")), r.events(r.widget, "salad"),
		other, r.loose(), frees(r.device(0, "b"))}
	return first, together, []act{r.lead("cleo")}
}

func (r *faultRun) where() string {
	return fmt.Sprintf("%v, %v at %q", r.fault.err, r.fault.form, r.fault.hit())
}

// send sends an act under an Idempotency-Key of its own.
func (r *faultRun) send(a act, n int) answer {
	headers := []string{"Origin: " + siteOrigin}
	if !a.once {
		headers = append(headers, fmt.Sprint("Idempotency-Key: ", r.name, "-", n))
	}
	return r.post(a.path, a.body, headers...)
}

// settled reports whether an act came to its end, and complains when it failed in
// another way than a fault may make it fail.
func (r *faultRun) settled(a act, got answer, again bool) bool {
	r.t.Helper()
	struck := r.fault.hit()
	switch {
	case got.status == a.status && (again || strings.Contains(got.body, a.says)):
		if a.once {
			r.counted++
		}
		return true
	case got.status != 503 && got.status != 500 || struck == "":
		r.t.Errorf("%s: %s %s: %d %s", r.where(), a.path, a.body, got.status, got.body)
	case r.fault.form != notDone && strings.HasPrefix(struck, "exec COMMIT") && got.status != 503:
		r.t.Errorf("%s: whether it was written is not known, and the answer is %d %s", r.where(), got.status, got.body)
	}
	if a.once {
		r.unknown++
	}
	return a.once
}

// insist sends an act until it comes to its end.
func (r *faultRun) insist(a act, n int, again bool) {
	r.t.Helper()
	for range 3 {
		if r.settled(a, r.send(a, n), again) {
			return
		}
		r.truthful()
		again = true
	}
	r.t.Errorf("%s: %s %s does not come to its end\n%s", r.where(), a.path, a.body, r.log.String())
}

// regret is a write that is given up after it has written.
func (r *faultRun) regret() {
	r.t.Helper()
	err := r.store.update(r.t.Context(), func(t *tx) error {
		_, err := t.addLead(lead{AccountID: r.account, Type: "newsletter", Email: "never@" + r.name + ".example"})
		return errors.Join(err, errors.New("regretted"))
	})
	if err == nil {
		r.t.Errorf("%s: a write that failed was acknowledged", r.where())
	}
}

// play goes through the scenario; each act that the fault has made fail is sent
// again with the same key.
func (r *faultRun) play() {
	r.t.Helper()
	first, together, last := r.acts()
	r.notice()
	r.truthful()
	r.fault.arm(true)
	defer r.fault.arm(false)
	for n, a := range first {
		r.insist(a, n, false)
		r.truthful()
	}
	r.regret()
	r.ahead.Store(int64(2 * time.Minute))
	defer r.ahead.Store(0)
	r.looked = 0
	r.notice()
	for _, active := range []string{r.device(0, "b"), r.device(0, "c"), r.device(2, "holder")} {
		for range 2 { // it is written down as seen, the second time where the fault struck the first
			r.post("/widget/license/verify", active).is(200)
			r.truthful()
		}
	}
	failed := r.sendTogether(together, len(first))
	r.truthful()
	for _, i := range failed {
		r.insist(together[i], len(first)+i, true)
	}
	r.truthful()
	for i, a := range last {
		r.insist(a, len(first)+len(together)+i, false)
	}
	r.looked = 0
	r.truthful()
	if n := r.count(`SELECT coalesce(sum(clicks), 0) FROM widget_counts WHERE widget_id = ?`, r.looseWidget); n < r.counted || n > r.counted+r.unknown {
		r.t.Errorf("%s: %d clicks without a key were acknowledged and of %d nobody knows; the file has %d", r.where(), r.counted, r.unknown, n)
	}
}

// sendTogether has acts wait for the writer, and one write that is given up, so that
// they make one batch, and returns which of them failed.
func (r *faultRun) sendTogether(acts []act, from int) (failed []int) {
	r.t.Helper()
	r.store.turn <- struct{}{}
	answers := make([]answer, len(acts))
	var sent sync.WaitGroup
	queued := func(f func()) {
		before := len(r.store.jobs)
		sent.Go(f)
		for len(r.store.jobs) == before {
			runtime.Gosched()
		}
	}
	for i, a := range acts {
		if i == len(acts)/2 {
			queued(r.regret)
		}
		queued(func() { answers[i] = r.send(a, from+i) })
	}
	<-r.store.turn
	sent.Wait()
	for i, a := range acts {
		if !r.settled(a, answers[i], false) {
			failed = append(failed, i)
		}
	}
	return failed
}

// looks is how often memory is held against the file after the fault. Shortly before
// it memory is read, so that there is something in it.
const looks, shortly = 5, 60

// truthful compares what the service answers, partly from memory, with the file.
func (r *faultRun) truthful() {
	r.t.Helper()
	left, struck := r.fault.next()
	if r.looked == looks || left > shortly {
		return
	}
	states, clicks := map[string]string{}, 0 // of devices by fingerprint's hash
	if struck {
		r.looked++
		r.check(r.store.each(`SELECT d.fingerprint, d.state || ' ' || seats_used || ' of ' || seats_max FROM devices d JOIN v_licenses l ON l.id = d.license_id WHERE l.id IN (?, ?, ?)`,
			[]any{r.licenses[0], r.licenses[1], r.licenses[2]}, func(scan func(...any) error) error {
				var hash []byte
				var state string
				err := scan(&hash, &state)
				states[string(hash)] = state
				return err
			}))
		r.check(r.store.one(`SELECT coalesce(sum(clicks), 0) FROM widget_counts WHERE widget_id = ?`, []any{r.widget}, &clicks))
	}
	for license, fingerprints := range [][]string{{"a", "b", "c"}, {"d", "e"}, {"holder", "late"}} {
		for _, fingerprint := range fingerprints {
			a := r.post("/widget/license/verify", r.device(license, fingerprint)).is(200)
			if !struck {
				continue
			}
			hash := fingerprintHash(fingerprint)
			if got, want := stateSaid(a), states[string(hash[:])]; got != want {
				r.t.Errorf("%s: %s is %q in the file and %q by verify", r.where(), fingerprint, want, got)
			}
		}
	}
	if a := r.get("/widget/stats?widget=" + r.widget).is(200); struck && !strings.Contains(a.body, fmt.Sprintf(`"clicks":%d},`, clicks)) {
		r.t.Errorf("%s: %d clicks in the file: %s", r.where(), clicks, a.body)
	}
}

// stateSaid is a device's state and the seats of its licence as verify has it; "" for
// a device that is unknown.
func stateSaid(a answer) string {
	var v struct {
		Code    string
		License struct{ Seats struct{ Used, Max int } }
	}
	json.Unmarshal([]byte(a.body), &v)
	state := map[string]string{"valid": "active", "device_released": "released"}[v.Code]
	if used, max := v.License.Seats.Used, v.License.Seats.Max; v.Code != "device_not_activated" || used > max {
		return fmt.Sprintf("%s %d of %d", state, used, max)
	}
	return ""
}

// contents is all that the file holds of a run, but what differs from run to run by
// itself.
func (r *faultRun) contents() string {
	r.t.Helper()
	var out strings.Builder
	lines := func(query string, args ...any) {
		r.t.Helper()
		r.check(r.store.each(query, args, func(scan func(...any) error) error {
			var line string
			err := scan(&line)
			out.WriteString(line + "\n")
			return err
		}))
	}
	for _, name := range []string{"ada", "bob", "cleo", "never"} {
		lines(`SELECT coalesce(page, 'never') || ' ' || (SELECT count(*) FROM events WHERE lead_id = l.id) FROM leads l WHERE email_key = ?`, name+"@"+r.name+".example")
	}
	for _, id := range r.licenses {
		lines(`SELECT type || ' ' || count(*) FROM events WHERE license_id = ? GROUP BY type ORDER BY type`, id)
		lines(`SELECT hex(fingerprint) || ' ' || state || ' ' || activations || ' ' || lease_seq || ' ' || coalesce(released_by, '') FROM devices WHERE license_id = ? ORDER BY fingerprint`, id)
	}
	lines(`SELECT 'views ' || total(views) || ' clicks ' || total(clicks) || ' orders ' || total(orders) FROM widget_counts WHERE widget_id = ?`, r.widget)
	lines(`SELECT item || ' ' || sum(clicks) || ' ' || sum(orders) FROM item_counts WHERE widget_id = ? GROUP BY item ORDER BY item`, r.widget)
	lines(`SELECT item FROM item_names WHERE widget_id = ? ORDER BY item`, r.widget)
	fmt.Fprintln(&out, "answers", r.count(`SELECT count(*) FROM idempotency`)-r.answers)
	return out.String()
}

// errors are what a call may fail with: an error that nobody knows, one at which
// database/sql gives a connection up, and some as SQLite makes them.
func (b *faultBench) errors(t *testing.T) []error {
	t.Helper()
	fails := func(path string, queries ...string) error {
		db, err := sql.Open("sqlite", path)
		b.check(err)
		defer db.Close()
		db.SetMaxOpenConns(1)
		for _, query := range queries {
			_, err = db.Exec(query)
		}
		return err
	}
	release := foreignLock(t, b.store.path)
	defer release()
	full := fails("file::memory:", `PRAGMA max_page_count = 1`, `CREATE TABLE t (x)`)
	readOnly := fails("file::memory:", `PRAGMA query_only = 1`, `CREATE TABLE t (x)`)
	busy := fails(dsn(b.store.path, "rw", storeOptions{patience: time.Millisecond}), `BEGIN IMMEDIATE`)
	if !errors.Is(storageError(full), errStorageFull) || !errors.Is(storageError(readOnly), errStorage) || !errors.Is(storageError(busy), errBusy) {
		t.Fatalf("not the errors that they should be: %v, %v, %v", full, readOnly, busy)
	}
	return []error{errors.New("a plain error"), driver.ErrBadConn, full, readOnly, busy}
}

// undisturbed plays the scenario without a fault and returns what the file then
// holds, and how many calls that took which may be struck.
func (b *faultBench) undisturbed(only string) (contents string, calls int) {
	b.t.Helper()
	b.fault.set(1<<30, only, notDone, nil)
	r := b.prepare(only != "")
	r.play()
	left, _ := b.fault.next()
	return r.contents(), 1<<30 - left
}

// strike has every call fail once and plays the scenario over each. Under the race
// detector, which makes SQLite ten times slower, every ninth has to do; .ci/run has
// the whole test run without.
func (b *faultBench) strike(only string, how form, kinds []error) (tried int) {
	b.t.Helper()
	info, _ := debug.ReadBuildInfo()
	slow := slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
	b.undisturbed("") // prepares what is not prepared yet
	want, calls := b.undisturbed(only)
	for n := range calls {
		for k, err := range kinds {
			if !*everyFault && (k != n%len(kinds) || slow && n%9 != 3*int(how)) {
				continue
			}
			r := b.prepare(only != "")
			b.fault.set(n, only, how, err)
			r.play()
			if got := r.contents(); got != want || r.fault.hit() == "" {
				b.t.Errorf("%s: the file holds\n%s, want\n%s", r.where(), got, want)
			}
			if b.t.Failed() {
				b.t.Fatal(b.log.String())
			}
			b.log.Reset()
			tried++
		}
	}
	return tried
}

func TestWhicheverCallOfTheWriterFailsNothingIsLostOrDoubled(t *testing.T) {
	for _, how := range []form{notDone, done, ended} {
		t.Run(how.String(), func(t *testing.T) {
			t.Parallel()
			b := newFaultBench(t)
			kinds := b.errors(t)
			t.Logf("%d faults, and %d while statements are prepared", b.strike("", how, kinds), b.strike("prepare ", how, kinds))
			if faults, err := checkFile(b.store.path); err != nil || len(faults) > 0 {
				t.Error(faults, err)
			}
		})
	}
}
