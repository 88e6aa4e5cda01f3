package main

import (
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestLock_heldTenSecondsLetsWritesWaitAndNoneFails(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	p := serveProcess(t, o)
	c := o.customer(p)
	s := openShell(t, o.env["WIDGETD_DB"])
	s.run("BEGIN IMMEDIATE; UPDATE accounts SET name = 'Renamed'")
	var all acknowledged
	var writes, reads sync.WaitGroup
	done := make(chan struct{})
	rounds := 0
	reads.Go(func() { rounds = c.readUntil(done) })
	for i := range 40 {
		writes.Go(func() {
			email := fmt.Sprintf("waits%d@example.com", i)
			if a := c.lead(email); a.status != 200 {
				t.Errorf("a write that waits: %d %s", a.status, a.body)
			} else {
				all.add(email, a.text("id"))
			}
		})
	}
	time.Sleep(9 * time.Second)
	if a := c.ask("GET", "/widget/health", ""); a.status != 200 || a.text("status") != "warn" || len(all.ids) > 0 {
		t.Errorf("under the lock: health %d %s, %d writes went through", a.status, a.body, len(all.ids))
	}
	time.Sleep(time.Second)
	s.run("COMMIT")
	writes.Wait()
	close(done)
	reads.Wait()
	if rounds < 3 {
		t.Errorf("reading went round %d times in ten seconds", rounds)
	}
	c.healthBecomes("pass")
	if err := p.stop(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	all.check(t, o)
}

func TestLock_pastFifteenSecondsLetsWritesBeBusyAndAtMost64Wait(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	p := serveProcess(t, o)
	c := o.customer(p)
	s := openShell(t, o.env["WIDGETD_DB"])
	s.run("BEGIN IMMEDIATE; UPDATE accounts SET name = 'Renamed'")
	locked := time.Now()
	var all acknowledged
	var mu sync.Mutex
	var atOnce, late, kept int
	done := make(chan struct{})
	var writes, reads sync.WaitGroup
	reads.Go(func() { c.readUntil(done) })
	write := func(email string) {
		asked := time.Since(locked)
		a := c.lead(email)
		mu.Lock()
		defer mu.Unlock()
		switch waited := time.Since(locked) - asked; {
		case a.status == 200:
			all.add(email, a.text("id"))
			kept++
		case a.status != 503 || a.json()["code"] != "busy" || a.header.Get("Retry-After") == "":
			t.Errorf("%s: %d, Retry-After %q: %s", email, a.status, a.header.Get("Retry-After"), a.body)
		case waited < 10*time.Second:
			atOnce++
		default:
			late++
		}
	}
	writes.Go(func() { write("first@example.com") })
	time.Sleep(2 * time.Second)
	for i := range 150 {
		writes.Go(func() { write(fmt.Sprintf("early%d@example.com", i)) })
	}
	time.Sleep(21*time.Second - time.Since(locked))
	if a := c.ask("GET", "/widget/health", ""); a.status != 503 || a.text("status") != "fail" {
		t.Errorf("health after 21 seconds: %d %s", a.status, a.body)
	}
	mu.Lock()
	// The service's own writes, of health and of devices, may wait too.
	if late < 40 || late > 64+1 || atOnce < 151-64-1 || kept > 0 { // behind the one that the writer holds
		t.Errorf("of 151 writes %d were refused at once, %d after 15 seconds, %d kept; want at most 64 to wait", atOnce, late, kept)
	}
	mu.Unlock()
	for i := range 10 {
		writes.Go(func() { write(fmt.Sprintf("late%d@example.com", i)) })
	}
	time.Sleep(30*time.Second - time.Since(locked))
	s.run("COMMIT")
	writes.Wait()
	close(done)
	reads.Wait()
	t.Logf("of 151 writes in the first seconds %d were refused at once, %d after 15 seconds", atOnce, late)
	if kept != 10 { // those who gave up make no queue
		t.Errorf("of 10 writes that came 9 seconds before the end %d were kept", kept)
	}
	c.healthBecomes("pass")
	write("afterwards@example.com")
	if all.ids["afterwards@example.com"] == "" {
		t.Error("after the lock a write is not kept")
	}
	if err := p.stop(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	all.check(t, o)
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
			began := time.Now()
			if err := p.stop(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("stopped after %v", took)
			}
			all.check(t, o)
		})
	}
}

func TestLock_ofOthersWhoOpenAndCloseTheFileLeavesTheWALInPlace(t *testing.T) {
	programsOrSkip(t, "sqlite3")
	t.Parallel()
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
		if out, err := exec.Command(other[0], other[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", other, err, out)
		}
		email := fmt.Sprintf("after%d@example.com", i)
		a := c.lead(email)
		if a.status != 200 {
			t.Fatalf("after %s: %d %s", other, a.status, a.body)
		}
		all.add(email, a.text("id"))
	}
	if err := p.stop(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
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
	if err := first.stop(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	all.add("alone@example.com", customers[1].lead("alone@example.com").text("id")) // the log is still the second one's
	if err := second.stop(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	all.check(t, o)
}
