package main

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A fate is a job and what becomes of it.
type fate struct {
	what string
	name string // of the account that it opens first
	then func(*tx) error
	kept bool
	err  string // part of the error; "": none
}

func (f fate) job(t *tx) error { return cmp.Or(named(f.name)(t), f.then(t)) }

var fates = []fate{
	{"a plain write", "plain", nothing, true, ""},
	{"one that fails", "failed", func(*tx) error { return errors.New("no such luck") }, false, "no such luck"},
	{"a refusal that is kept", "kept", func(*tx) error { return commitAnyway(&refusal{code: codeSeatLimit}) }, true,
		"seat_limit_reached"},
	{"one that panics", "panicked", func(*tx) error { panic("out of order") }, false, "panic in a write: out of order"},
	{"one that breaks a rule of the schema", "ruled out",
		inSQL(`INSERT INTO accounts (id, name, created_at) VALUES ('nonsense', 'x', 'yesterday')`), false,
		"CHECK constraint failed"},
	{"one that makes SQLite end the transaction", "ended",
		inSQL(`INSERT OR ROLLBACK INTO accounts (id, name, is_main, created_at)
			VALUES ('acct_second', 'x', 1, '2026-01-01T00:00:00Z')`), false, "UNIQUE constraint failed"},
	{"one that ends it and says nothing", "silent", inSQL(`ROLLBACK`), false, "no transaction"},
	{"another plain write", "second", nothing, true, ""},
}

func nothing(*tx) error { return nil }

// inSQL is a job that runs one statement.
func inSQL(statement string) func(*tx) error {
	return func(t *tx) error {
		_, err := t.try(statement)
		return err
	}
}

func checkFates(t *testing.T, s *store, all []fate, errs []error) {
	t.Helper()
	var want []string
	for i, f := range all {
		switch err := errs[i]; {
		case f.err == "" && err != nil:
			t.Errorf("%s: %v", f.what, err)
		case f.err != "" && (err == nil || !strings.Contains(err.Error(), f.err)):
			t.Errorf("%s: error %v, want %q", f.what, err, f.err)
		}
		if f.kept {
			want = append(want, f.name)
		}
	}
	slices.Sort(want)
	equal(t, "rows", accountNames(t, s), want)
}

func TestWriter_givesEachJobOfABatchItsOwnFate(t *testing.T) {
	t.Parallel()
	endsTransaction := func(f fate) bool {
		return f.name == "ended" || f.name == "silent"
	}
	for name, all := range map[string][]fate{
		"in one transaction":                              slices.DeleteFunc(slices.Clone(fates), endsTransaction),
		"one by one, when SQLite has ended the first one": fates,
	} {
		t.Run(name, func(t *testing.T) {
			s := openTestStore(t, makeStore(t), storeOptions{})
			release := holdWriter(t, s)
			jobs := make([]func(*tx) error, len(all))
			for i, f := range all {
				jobs[i] = f.job
			}
			results := queue(s, t.Context(), jobs...)
			release()
			errs := make([]error, len(all))
			for i := range all {
				errs[i] = <-results[i]
			}
			checkFates(t, s, all, errs)
		})
	}
	t.Run("alone", func(t *testing.T) {
		s := openTestStore(t, makeStore(t), storeOptions{})
		errs := make([]error, len(fates))
		for i, f := range fates {
			errs[i] = s.update(t.Context(), f.job)
		}
		checkFates(t, s, fates, errs)
	})
}

// Under a lock, each transaction that begins waits as long as SQLite does, and a stop waits for all of them.
func TestWriter_beginsNoTransactionForCallersWhoHaveLeft(t *testing.T) {
	t.Parallel()
	s := newService(t, withFaults)
	release := holdWriter(t, s.store)
	ctx, cancel := context.WithCancel(t.Context())
	gone := queue(s.store, ctx, nothing, nothing, nothing)
	cancel()
	for _, result := range gone {
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("a caller who left got %v", err)
		}
	}
	s.fault.set(0, "exec BEGIN", notDone, errors.New("it begins"))
	s.fault.arm(true)
	release()
	s.reopen(storeOptions{})
	equal(t, "what begins", s.fault.hit(), "")
}

func TestWriter_letsAWriteWaitFifteenSecondsForItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := openStore(makeStore(t), storeOptions{})
		must(t, err)
		defer s.close()
		release := holdWriter(t, s)
		start, ran := time.Now(), false
		if err := s.update(t.Context(), func(*tx) error { ran = true; return nil }); !errors.Is(err, errBusy) {
			t.Errorf("got %v", err)
		}
		equal(t, "gave up after", time.Since(start), 15*time.Second)
		release()
		if err := s.update(t.Context(), named("later")); err != nil || ran {
			t.Errorf("afterwards: %v; the function that was given up ran: %v", err, ran)
		}
	})
}

func TestWriter_runsWhatIsQueuedWhenItClosesAndRefusesTheRest(t *testing.T) {
	t.Parallel()
	path := makeStore(t)
	s := openTestStore(t, path, storeOptions{})
	release := holdWriter(t, s)
	queued := queue(s, t.Context(), named("a"), named("b"), named("c"))
	ctx, leave := context.WithCancel(t.Context())
	gone := queue(s, ctx, named("of a caller who leaves before its turn"))[0]
	leave()
	failIf(t, !errors.Is(<-gone, context.Canceled), "a caller who left is told something else")
	closed := make(chan error, 1)
	go func() { closed <- s.close() }()
	<-s.closing
	release()
	must(t, <-closed)
	allKept(t, queued)
	for range 20 { // both ways through update's select
		if err := s.update(t.Context(), named("late")); !errors.Is(err, errClosed) {
			t.Fatalf("a write after the end: %v", err)
		}
	}
	if _, err := os.Stat(path + "-wal"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the log is still there: %v", err)
	}
	again := openTestStore(t, path, storeOptions{})
	equal(t, "rows after reopening", accountNames(t, again), []string{"a", "b", "c"})
}

func TestWriter_keepsWhatFitsOfABatchOnAFullDisk(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.limitPages(8)
	release := holdWriter(t, s.store)
	big := func(name string, pages int) func(*tx) error {
		return func(t *tx) error { return named(name + strings.Repeat("x", pages*4096))(t) }
	}
	results := queue(s.store, t.Context(), big("small ", 1), big("huge ", 40), big("small too ", 1))
	release()
	for i, full := range []bool{false, true, false} {
		if err := <-results[i]; errors.Is(err, errStorageFull) != full || !full && err != nil {
			t.Errorf("write %d: %v", i, err)
		}
	}
	equal(t, "small ones", s.count(`SELECT count(*) FROM accounts WHERE name LIKE 'small %'`), 2)
	equal(t, "parts of the huge one", s.count(`SELECT count(*) FROM accounts WHERE name LIKE 'huge %'`), 0)
}

// underRace tells whether the race detector runs, which makes SQLite ten times slower.
var underRace = sync.OnceValue(func() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
})

// manyRowsUnderRace skips a test whose many rows would take minutes under the race detector.
func manyRowsUnderRace(t testing.TB) { notUnderRace(t, "too many rows for the race detector") }

// sequentialUnderRace skips a long test in which nothing runs at the same time, so that the race detector
// would only make it slow.
func sequentialUnderRace(t testing.TB) {
	notUnderRace(t, "nothing runs at the same time that the race detector could see")
}

// manyCommandsUnderRace skips a test that runs many commands, one after the other, which the race detector
// would only make slow.
func manyCommandsUnderRace(t testing.TB) { notUnderRace(t, "too many commands for the race detector") }

// strikes reports whether call n is to fail in this form, with error k of so many: of so many calls one, each
// with the next error.
func (how form) strikes(n, k, kinds, of int) bool {
	return n%of == int(how)*of/3 && k == n/of%kinds
}

// A faultBench is a service whose writer can be made to fail.
type faultBench struct {
	*service
	fault *fault
	ahead atomic.Int64 // of the moment at which it began, in nanoseconds
	runs  int
	owner string // header with a token, for which statistics are exact
}

func newFaultBench(t *testing.T) *faultBench {
	b, began := &faultBench{fault: &fault{}}, time.Now()
	b.service = newService(t, withoutAddressLimits)
	useFault(b.store.path, b.fault)
	b.reopen(storeOptions{driver: "faulty", now: func() time.Time {
		return began.Add(time.Duration(b.ahead.Load()))
	}})
	b.change(func(t *tx) error { return t.setRate(b.account, 1_000_000) })
	b.owner = b.auth(b.account, scopeStats)
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
}

// prepare makes what a run needs. A cold run finds no statement prepared.
func (b *faultBench) prepare(cold bool) *faultRun {
	b.t.Helper()
	b.runs++
	r := &faultRun{faultBench: b, name: fmt.Sprint("run", b.runs)}
	r.widget = r.addWidget(r.account)
	for i, seats := range []int{2, 2, 1} {
		r.licenses[i], r.keys[i] = r.addLicense(license{
			terms: terms{Product: fmt.Sprint("product ", i), MaxDevices: &seats}})
	}
	r.post(activatePath, r.device(2, "holder")).is(200)
	r.answers = r.count(`SELECT count(*) FROM idempotency`)
	if cold {
		b.change(func(*tx) error {
			b.store.writer.queries.close()
			return nil
		})
	}
	return r
}

func (r *faultRun) device(license int, fingerprint string) string {
	return activateBody(r.keys[license], fingerprint)
}

const activatePath, deactivatePath = "/widget/license/activate", "/widget/license/deactivate"

// An act is one request of the scenario.
type act struct {
	path, body string
	status     int
	says       string // what the first answer holds
}

func (r *faultRun) lead(name string) act {
	body := seatBody("type", "newsletter", "email", name+"@"+r.name+".example", "page", "/"+name)
	return act{path: "/widget/leads", body: body, status: 200, says: `"ok":true`}
}

func (r *faultRun) events(widget, item string) act {
	body := fmt.Sprintf(`{"widget":%q,"events":[{"type":"click","item":%q},{"type":"order"}]}`, widget, item)
	return act{path: "/widget/events", body: body, status: 204}
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
	other := act{path: activatePath, body: strings.Replace(r.device(1, "e"), "{", `{"product":"another",`, 1),
		status: 403, says: "product_mismatch"}
	first = []act{r.lead("ada"), takes(r.device(0, "a")), takes(r.device(0, "b")), full(r.device(0, "c")),
		r.events(r.widget, "soup"), frees(r.device(0, "a")), takes(r.device(0, "c"))}
	together = []act{r.lead("bob"), takes(r.device(1, "d")), full(r.device(2, "late")), r.events(r.widget, "salad"),
		other, frees(r.device(0, "b"))}
	return first, together, []act{r.lead("cleo")}
}

func (r *faultRun) where() string {
	return fmt.Sprintf("%v, %v at %q", r.fault.err, r.fault.form, r.fault.hit())
}

// send sends an act under an Idempotency-Key of its own.
func (r *faultRun) send(a act, n int) answer {
	return r.post(a.path, a.body, "Origin: "+siteOrigin, fmt.Sprint("Idempotency-Key: ", r.name, "-", n))
}

// settled reports whether an act came to its end, and complains when it failed in
// another way than a fault may make it fail.
func (r *faultRun) settled(a act, got answer, again bool) bool {
	r.t.Helper()
	struck := r.fault.hit()
	switch {
	case got.status == a.status && (again || strings.Contains(got.body, a.says)):
		return true
	case got.status != 503 && got.status != 500 || struck == "":
		r.t.Errorf("%s: %s %s: %d %s", r.where(), a.path, a.body, got.status, got.body)
	case r.fault.form != notDone && strings.HasPrefix(struck, "exec COMMIT") && got.status != 503:
		r.t.Errorf("%s: whether it was written is not known, and the answer is %d %s",
			r.where(), got.status, got.body)
	}
	return false
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

// play goes through the scenario; each act that the fault has made fail is sent again with the same key.
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
}

// clicks is how many clicks on a widget the file has.
func (r *faultRun) clicks(widget string) int {
	r.t.Helper()
	return r.count(`SELECT coalesce(sum(clicks), 0) FROM widget_counts WHERE widget_id = ?`, widget)
}

// sendTogether has acts wait for the writer, and one write that is given up, so that
// they make one batch, and returns which of them failed.
func (r *faultRun) sendTogether(acts []act, from int) (failed []int) {
	r.t.Helper()
	r.fault.arm(false)
	release := holdWriter(r.t, r.store)
	r.fault.arm(true)
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
	release()
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
		r.check(r.store.each(`SELECT d.fingerprint, d.state || ' ' || seats_used || ' of ' || seats_max
			FROM devices d JOIN v_licenses l ON l.id = d.license_id WHERE l.id IN (?, ?, ?)`,
			[]any{r.licenses[0], r.licenses[1], r.licenses[2]}, func(scan func(...any) error) error {
				var hash []byte
				var state string
				err := scan(&hash, &state)
				states[string(hash)] = state
				return err
			}))
		clicks = r.clicks(r.widget)
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
	a := r.get("/widget/stats?widget="+r.widget, r.owner).is(200)
	if struck && !strings.Contains(a.body, fmt.Sprintf(`"clicks":%d,"orders"`, clicks)) {
		r.t.Errorf("%s: %d clicks in the file: %s", r.where(), clicks, a.body)
	}
}

// stateSaid is a device's state and the seats of its licence as verify has it; "" for a device that is unknown.
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

// contents is all that the file holds of a run, but what differs from run to run by itself.
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
		lines(`SELECT coalesce(page, 'never') || ' ' || (SELECT count(*) FROM events WHERE subject_id = l.id)
			FROM leads l WHERE email = ?`, name+"@"+r.name+".example")
	}
	for _, id := range r.licenses {
		lines(`SELECT type || ' ' || count(*) FROM events WHERE subject_id = ? GROUP BY type ORDER BY type`, id)
		lines(`SELECT hex(fingerprint) || ' ' || state || ' ' || activations || ' ' || lease_seq || ' ' ||
			coalesce(released_by, '') FROM devices WHERE license_id = ? ORDER BY fingerprint`, id)
	}
	lines(`SELECT 'views ' || total(views) || ' clicks ' || total(clicks) || ' orders ' || total(orders)
		FROM widget_counts WHERE widget_id = ?`, r.widget)
	lines(`SELECT item || ' ' || sum(clicks) || ' ' || sum(orders) FROM item_counts WHERE widget_id = ?
		GROUP BY item ORDER BY item`, r.widget)
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
	busy := fails(dsn(b.store.path, "rw", storeOptions{busyTimeout: time.Millisecond}), `BEGIN IMMEDIATE`)
	if !errors.Is(storageError(full), errStorageFull) || !errors.Is(storageError(readOnly), errStorage) ||
		!errors.Is(storageError(busy), errBusy) {
		t.Fatalf("not the errors that they should be: %v, %v, %v", full, readOnly, busy)
	}
	return []error{errors.New("a plain error"), driver.ErrBadConn, full, readOnly, busy}
}

// undisturbed plays the scenario without a fault and returns what the file then
// holds, and how many calls that took which may be struck.
func (b *faultBench) undisturbed(only string) (contents string, calls int) {
	b.t.Helper()
	b.fault.set(1<<30, only, notDone, nil)
	r := b.prepare(only == "prepare ")
	r.play()
	left, _ := b.fault.next()
	return r.contents(), 1<<30 - left
}

// strike has calls that begin so fail, of so many one, and plays the scenario over each.
func (b *faultBench) strike(only string, how form, kinds []error, of int) (struck int) {
	b.t.Helper()
	tried, missed := 0, 0
	b.undisturbed("") // prepares what is not prepared yet
	want, calls := b.undisturbed(only)
	for n := range calls {
		for k, err := range kinds {
			if !how.strikes(n, k, len(kinds), of) {
				continue
			}
			r := b.prepare(only == "prepare ")
			b.fault.set(n, only, how, err)
			r.play()
			if got := r.contents(); got != want {
				b.t.Errorf("%s: the file holds\n%s, want\n%s", r.where(), got, want)
			}
			if r.fault.hit() == "" { // a slow machine has the writer look for others' commits more often
				missed++
			}
			if b.t.Failed() {
				b.t.Fatal(b.log.String())
			}
			b.log.Reset()
			tried++
		}
	}
	if missed > 1+tried/4 {
		b.t.Errorf("%d of %d faults met no call", missed, tried)
	}
	return tried - missed
}

func TestWriter_losesAndDoublesNothingWhicheverCallFails(t *testing.T) {
	t.Parallel()
	for _, how := range []form{notDone, done, ended} {
		t.Run(how.String(), func(t *testing.T) {
			t.Parallel()
			b := newFaultBench(t)
			kinds := b.errors(t)
			faults := b.strike("", how, kinds, size(75, 3))
			preparing := b.strike("prepare ", how, kinds, size(25, 3))
			if how == done && !*long { // whether a commit was done is what nobody knows then
				faults += b.strike("exec COMMIT", how, kinds, 1)
			}
			t.Logf("%d faults, and %d while statements are prepared", faults, preparing)
			isSound(t, b.store.path)
		})
	}
}
