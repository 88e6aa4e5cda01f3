package main

import (
	"database/sql"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

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
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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

// readUntil reads all that can be read, again and again, until the channel is closed.
func (c *customer) readUntil(done <-chan struct{}) (rounds int) {
	for {
		select {
		case <-done:
			return rounds
		case <-time.After(200 * time.Millisecond):
		}
		c.reads()
		if a := c.ask("GET", "/widget/health", ""); a.status != 200 && a.status != 503 {
			c.t.Errorf("health: %d %s", a.status, a.body)
		}
		rounds++
	}
}

func TestWhileAnOperatorHoldsTheLockTenSecondsWritesWaitAndNoneFails(t *testing.T) {
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

func TestPastFifteenSecondsOfALockWritesAreBusyAndAtMost64Wait(t *testing.T) {
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

func TestALogThatAReaderKeepsFromBeingEmptiedIsReportedOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	db, err := sql.Open("sqlite", "file:"+s.store.path+"?mode=ro")
	s.check(err)
	defer db.Close()
	reader, err := db.Begin()
	s.check(err)
	var n int
	s.check(reader.QueryRow(`SELECT count(*) FROM leads`).Scan(&n)) // the transaction begins here
	fill := func() {
		for s.store.logSize() <= maxLog {
			s.change(named(strings.Repeat("x", 4<<20)))
		}
	}
	if a := s.get("/widget/health").is(200); a.text("status") != "pass" || strings.Contains(a.body, "logSize") || s.server.reportLog(false) {
		t.Errorf("a small log: %s\n%s", a.body, s.log.String())
	}
	fill()
	large := s.server.reportLog(s.server.reportLog(s.server.reportLog(false)))
	if !large || strings.Count(s.log.String(), "the write-ahead log is large: it can't be emptied while somebody keeps a transaction open") != 1 {
		t.Errorf("a large log: %v\n%s", large, s.log.String())
	}
	if a := s.get("/widget/health").is(200); a.text("status") != "warn" || !strings.Contains(a.body, `"sqlite:logSize":[{"componentType":"datastore","observedValue":6`) {
		t.Errorf("health: %s", a.body)
	}
	var metrics strings.Builder
	s.server.writeMetrics(&metrics)
	if !strings.Contains(metrics.String(), fmt.Sprintf("\nwidgetd_log_bytes %d\n", s.store.logSize())) {
		t.Errorf("metrics: %s", metrics.String())
	}
	s.check(reader.Rollback())
	for range 3 { // the first moves the log into the file, the next begins it anew
		s.change(named("small"))
	}
	if s.server.reportLog(large) || strings.Count(s.log.String(), "the write-ahead log is small again") != 1 {
		t.Errorf("%d bytes\n%s", s.store.logSize(), s.log.String())
	}
	if a := s.get("/widget/health").is(200); strings.Contains(a.body, "logSize") {
		t.Errorf("health: %s", a.body)
	}
}

func TestATransactionThatAnOperatorLeftOpenHoldsNoStopUp(t *testing.T) {
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

func TestAPurgeOfManyLeadsLetsOthersWriteInBetween(t *testing.T) {
	o := newOperator(t)
	raw(t, o.env["WIDGETD_DB"], `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
		INSERT INTO leads (id, account_id, type, email, email_key, created_at)
		SELECT printf('lead_%026d', i), '`+o.account+`', 'demo', i || '@example.com', i || '@example.com', '2020-01-01T00:00:00Z' FROM n`)
	s := openTestStore(t, o.env["WIDGETD_DB"], storeOptions{})
	purged := make(chan string, 1)
	go func() { purged <- o.do("leads", "purge", "-older-than", "365d") }()
	writes := 0
	for {
		if err := s.update(t.Context(), named("meanwhile")); err != nil {
			t.Fatal(err)
		}
		select {
		case out := <-purged:
			if out != "20000 removed\n" || writes < 5 {
				t.Errorf("%q; %d writes of others meanwhile", out, writes)
			}
			return
		case <-time.After(time.Millisecond):
			writes++
		}
	}
}

func TestOnASlowDiskOthersGetTheLockAlsoWhileWritesAlwaysWait(t *testing.T) {
	path := makeStore(t)
	useFault(path, &fault{sync: 20 * time.Millisecond})
	s := openTestStore(t, path, storeOptions{driver: "faulty"})
	db, err := sql.Open("sqlite", dsn(path, "rw", storeOptions{patience: time.Nanosecond})) // it asks once
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	done := make(chan struct{})
	var writes sync.WaitGroup
	for range 100 {
		writes.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(time.Duration(rand.N(20)) * time.Millisecond):
				}
				if err := s.update(t.Context(), named("load")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	got := 0
	for began := time.Now(); got < 20 && time.Since(began) < 2*time.Second; time.Sleep(time.Millisecond) {
		if _, err := db.Exec(`UPDATE accounts SET rate = 1000 WHERE is_main = 1`); err == nil {
			got++
		}
	}
	close(done)
	writes.Wait()
	if got < 20 {
		t.Errorf("others got the lock %d times in two seconds", got)
	}
}

func TestOthersWhoOpenAndCloseTheFileLeaveTheServicesLogInPlace(t *testing.T) {
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
