package main

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// waitsFor asks until health says that the writer has waited so long for a lock.
func (c *customer) waitsFor(d time.Duration) {
	c.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
		a := c.ask("GET", "/widget/health", "")
		probe := a.json()["checks"].(map[string]any)["sqlite:responseTime"].([]any)[0].(map[string]any)
		if a.text("status") == "warn" && probe["observedValue"].(float64) >= float64(d.Milliseconds()) {
			return
		}
	}
	c.t.Fatalf("in a minute health did not say that the writer waits %v for a lock", d)
}

// A lockedOut is what became of writes while somebody else held the lock.
type lockedOut struct {
	c                  *customer
	first              atomic.Bool // the first one has been answered: it has waited as long as a write may
	refused, gaveUp    atomic.Int64
	kept               acknowledged
	writes, lateWrites sync.WaitGroup
}

// write posts a lead, which is kept, refused at once, or refused after it has waited.
func (l *lockedOut) write(email string) {
	a := l.c.lead(email)
	switch {
	case a.status == 200:
		l.kept.add(email, a.text("id"))
	case a.status != 503 || a.json()["code"] != "busy" || a.header.Get("Retry-After") == "":
		l.c.t.Errorf("%s: %d, Retry-After %q: %s", email, a.status, a.header.Get("Retry-After"), a.body)
	case l.first.Load():
		l.gaveUp.Add(1)
	default:
		l.refused.Add(1)
	}
}

func TestLock_pastFifteenSecondsLetsWritesBeBusyAndAtMost64Wait(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	p := serveProcess(t, o)
	l := &lockedOut{c: o.customer(p)}
	s := openShell(t, o.env["WIDGETD_DB"])
	s.run("BEGIN IMMEDIATE; UPDATE accounts SET name = 'Renamed'")
	l.writes.Go(func() {
		a := l.c.lead("first@example.com")
		if l.first.Store(true); a.status != 503 || a.json()["code"] != "busy" {
			t.Errorf("the first write: %d %s", a.status, a.body)
		}
	})
	l.c.waitsFor(2 * time.Second)
	for i := range 150 {
		l.writes.Go(func() { l.write(fmt.Sprintf("early%d@example.com", i)) })
	}
	done, reading := make(chan struct{}), make(chan int)
	go func() { reading <- l.c.readUntil(done) }()
	l.c.waitsFor(10 * time.Second)
	if l.first.Load() {
		t.Error("a write was answered before fifteen seconds under the lock")
	}
	l.writes.Wait()
	if close(done); <-reading == 0 {
		t.Error("nothing could be read under the lock")
	}
	// The service's own writes, of health and of devices, may wait too.
	waited := l.gaveUp.Load() // behind the one that the writer holds
	if waited < 40 || waited > 64+1 || len(l.kept.ids) > 0 {
		t.Errorf("of 150 writes %d were refused at once, %d after the first one, %d kept; want at most 64 to wait",
			l.refused.Load(), waited, len(l.kept.ids))
	}
	l.c.healthBecomes("fail")
	for i := range 10 {
		l.lateWrites.Go(func() { l.write(fmt.Sprintf("late%d@example.com", i)) })
	}
	time.Sleep(time.Second) // another program's lock, another process: real time
	l.c.reads()
	if n := len(l.kept.sofar()); n > 0 {
		t.Errorf("%d writes were kept under the lock", n)
	}
	s.run("COMMIT")
	l.lateWrites.Wait()
	if n := len(l.kept.ids); n != 10 { // those who gave up make no queue
		t.Errorf("of 10 writes that waited when the lock ended %d were kept", n)
	}
	l.c.healthBecomes("pass")
	if l.write("afterwards@example.com"); l.kept.ids["afterwards@example.com"] == "" {
		t.Error("after the lock a write is not kept")
	}
	p.stopCleanly()
	l.kept.check(t, o)
}

func TestLock_thatAnOperatorLeftOpenHoldsNoStopUp(t *testing.T) {
	t.Parallel()
	for _, open := range []string{"BEGIN; SELECT count(*) FROM leads", "BEGIN IMMEDIATE"} {
		t.Run(open, func(t *testing.T) {
			t.Parallel()
			o := newOperator(t)
			p := serveProcess(t, o)
			c := o.customer(p)
			openShell(t, o.env["WIDGETD_DB"]).run(open)
			var all acknowledged
			if !strings.Contains(open, "IMMEDIATE") {
				all.add("open@example.com", c.lead("open@example.com").text("id"))
			}
			if err := p.stop(syscall.SIGTERM); err != nil { // the transaction is open until the test ends
				t.Error(err)
			}
			all.check(t, o)
		})
	}
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
