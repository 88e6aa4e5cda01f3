package main

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// impatient is how long SQLite and a write wait for a lock in tests where that time must pass.
func impatient(o *storeOptions, _ *serverOptions) { o.busyTimeout = 200 * time.Millisecond }

// A lockedOut is a service whose writes come while a shell holds the lock.
type lockedOut struct {
	*service
	clock             wallClock
	shell             *shell
	sent              int
	answered, refused atomic.Int64 // writes
	kept              acknowledged
	writes            sync.WaitGroup
}

func newLockedOut(t *testing.T, change ...func(*storeOptions, *serverOptions)) *lockedOut {
	l := &lockedOut{}
	l.service = newService(t, append(change, withoutAddressLimits,
		func(o *storeOptions, _ *serverOptions) { o.now = l.clock.now })...)
	l.shell = openShell(t, l.store.path)
	return l
}

// lock has the shell take the lock, until it commits.
func (l *lockedOut) lock() { l.shell.run("BEGIN IMMEDIATE; UPDATE accounts SET name = 'Renamed'") }

// write posts a lead, and returns once that waits for the lock or is answered.
func (l *lockedOut) write() {
	l.t.Helper()
	l.sent++
	email := fmt.Sprintf("guest%d@example.com", l.sent)
	waiting, answered := l.store.callers.Load(), l.answered.Load()
	l.writes.Go(func() {
		defer l.answered.Add(1)
		a := l.post("/widget/leads", seatBody("type", "newsletter", "email", email))
		if a.status == 200 {
			l.kept.add(email, a.text("id"))
			return
		}
		if a.status != 503 || a.json()["code"] != "busy" || a.header.Get("Retry-After") == "" {
			l.t.Errorf("%s: %d, Retry-After %q: %s", email, a.status, a.header.Get("Retry-After"), a.body)
		}
		l.refused.Add(1)
	})
	for l.store.callers.Load() == waiting && l.answered.Load() == answered {
		runtime.Gosched()
	}
}

// reads checks that everything that needs no write is answered as ever.
func (l *lockedOut) reads(key, widget, token string) {
	l.t.Helper()
	l.verifyKey(key, "kitchen").answers("valid")
	for _, path := range []string{"/leads", "/licenses", "/widget/stats?widget=" + widget} {
		l.get(path, token).is(200)
	}
}

// holds checks that each lead that was acknowledged is in the file once, and no other.
func (l *lockedOut) holds() {
	l.t.Helper()
	if lacks, leads := missing(l.t, l.store.path, l.kept.ids); len(lacks) > 0 || leads != len(l.kept.ids) {
		l.t.Errorf("the file has %d leads, %d were acknowledged, and %q are not there once", leads, len(l.kept.ids),
			lacks)
	}
}

func TestLock_letsReadsGoOnAndAtMost64WritesWaitWhichAreKeptWhenItEnds(t *testing.T) {
	t.Parallel()
	l := newLockedOut(t)
	_, key := l.addLicense(license{})
	l.activate(key, "kitchen").is(200)
	widget, token := l.addWidget(l.account), l.auth(l.account, scopeLeads, scopeLicenses, scopeStats)
	l.lock()
	l.write()
	for l.store.lockedSince().IsZero() {
		runtime.Gosched()
	}
	l.clock.set(2 * time.Second)
	for range 149 {
		l.write()
	}
	equal(t, "writes that are refused at once", l.refused.Load(), 150-maxBlocked)
	l.get("/widget/health").is(200).members("status", "warn")
	l.reads(key, widget, token)
	l.clock.set(lockTimeout + 2*time.Second)
	l.get("/widget/health").is(503).members("status", "fail")
	l.reads(key, widget, token)

	l.shell.run("COMMIT")
	l.writes.Wait()
	equal(t, "writes that waited and are kept", len(l.kept.ids), maxBlocked)
	l.holds()
	l.counts(1, `SELECT count(*) FROM accounts WHERE name = 'Renamed'`)
	l.clock.set(lockTimeout + 4*time.Second)
	l.health().is(200).members("status", "pass")
}

func TestLock_thatLastsLongerThanAWriteWaitsLetsItBeBusyForGood(t *testing.T) {
	t.Parallel()
	l := newLockedOut(t, impatient)
	l.lock()
	for range 10 {
		l.write()
	}
	l.writes.Wait()
	equal(t, "writes that are refused", l.refused.Load(), 10)
	l.clock.set(time.Minute)
	l.get("/widget/health").is(503).members("status", "fail")
	l.shell.run("COMMIT")
	if !soon(func() bool { // a machine that is busy may need longer than a write waits here
		l.write()
		l.writes.Wait()
		return len(l.kept.ids) > 0
	}) {
		t.Error("after the lock no write is kept")
	}
	l.holds()
}

func TestLock_thatAnOperatorLeftOpenHoldsNoStopUp(t *testing.T) {
	t.Parallel()
	for _, open := range []string{"BEGIN; SELECT count(*) FROM leads", "BEGIN IMMEDIATE"} {
		t.Run(open, func(t *testing.T) {
			t.Parallel()
			s := newService(t, impatient)
			stop := s.serving()
			shell := openShell(t, s.store.path)
			kept := map[string]string{"before@example.com": s.postLead("before@example.com")}
			shell.run(open)
			if !strings.Contains(open, "IMMEDIATE") {
				kept["open@example.com"] = s.postLead("open@example.com")
			}
			stop() // without an error; the transaction is open until the test ends
			lacks, leads := missing(t, s.store.path, kept)
			equal(t, "leads that are lost", lacks, nil)
			equal(t, "leads", leads, len(kept))
		})
	}
}

// postLead posts a lead until it is kept, for which an impatient service may be too busy, and returns its id.
func (s *service) postLead(email string) (id string) {
	s.t.Helper()
	var a answer
	soon(func() bool {
		a = s.post("/widget/leads", seatBody("type", "newsletter", "email", email))
		return a.status == 200
	})
	return a.is(200).text("id")
}

func TestLock_ofOthersWhoOpenAndCloseTheFileLeavesTheWALInPlace(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "sqlite3")
	o := newOperator(t)
	p := serveProcess(t, o)
	c := o.customer(p)
	var all acknowledged
	for i, other := range [][]string{
		{builtProgram(t), "account", "list", "-db", o.env["WIDGETD_DB"]},
		{"sqlite3", o.env["WIDGETD_DB"], "UPDATE accounts SET name = 'Renamed'"},
		{"sqlite3", "-readonly", o.env["WIDGETD_DB"], "SELECT count(*) FROM accounts"},
	} {
		c.healthBecomes("pass") // the service has looked at the file
		runProgram(t, other[0], other[1:]...)
		email := fmt.Sprintf("after%d@example.com", i)
		a := c.lead(email)
		if a.status != 200 {
			t.Fatalf("after %s: %d %s", other, a.status, a.body)
		}
		all.add(email, a.text("id"))
	}
	p.stopCleanly()
	all.check(t, o)
}

func TestLock_betweenTwoServicesSellsNoSeatTwiceAndLosesNothing(t *testing.T) {
	t.Parallel()
	const seats = 5
	o := newOperator(t)
	first, second := serveProcess(t, o), serveProcess(t, o)
	added := o.object("license", "add", "-account", o.account, "-product", "kds", "-max-devices", fmt.Sprint(seats))
	key := added["key"].(string)
	customers := []*customer{o.customer(first), {t: t, client: newClient(t), base: second.base}}
	var all acknowledged
	var activated atomic.Int64
	var asked sync.WaitGroup
	for i := range 8 * seats {
		c, email := customers[i%2], fmt.Sprintf("either%d@example.com", i)
		asked.Go(func() {
			if c.ask("POST", "/widget/license/activate", activateBody(key, email)).status == 200 {
				activated.Add(1)
			}
			all.add(email, c.lead(email).text("id"))
		})
	}
	asked.Wait()
	if activated.Load() != seats {
		t.Errorf("%d devices on %d seats", activated.Load(), seats)
	}
	first.stopCleanly()
	all.add("alone@example.com", customers[1].lead("alone@example.com").text("id")) // the log is still the second one's
	second.stopCleanly()
	all.check(t, o)
}
