package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A diskFault takes the room or the right to write from a running service, and gives it back.
type diskFault struct {
	name string
	take func(t testing.TB, dir string, pid int)
	give func(t testing.TB, dir string, pid int)
	code string // of the problem that writes get

	mounts bool // whether it needs a disk of its own
}

var diskFaults = []diskFault{
	{"a full disk",
		func(t testing.TB, dir string, _ int) { fillDisk(t, filepath.Join(dir, "filler")) },
		func(t testing.TB, dir string, _ int) { os.Remove(filepath.Join(dir, "filler")) }, "storage_full", true},
	{"a limit on the size of files",
		func(t testing.TB, _ string, pid int) { limitFiles(t, pid, "200000") },
		func(t testing.TB, _ string, pid int) { limitFiles(t, pid, "unlimited") }, "storage_full", false},
}

// limitFiles lets the files that a process writes have so many bytes at most.
func limitFiles(t testing.TB, pid int, most string) {
	t.Helper()
	runProgram(t, "prlimit", "--pid", fmt.Sprint(pid), "--fsize="+most+":")
}

func TestDisk_withoutRoomIsReadOnAndRecoversByItself(t *testing.T) {
	t.Parallel()
	for _, fault := range diskFaults {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if fault.mounts {
				dir = smallDisk(t, 8<<20)
			}
			o := operatorIn(t, dir)
			p := serveProcess(t, o)
			c := o.customer(p)
			var all acknowledged
			keep := func(n int) (refused answer) {
				for i := range n {
					email := fmt.Sprintf("%s-%d-%d@example.com", strings.Fields(fault.name)[1], len(all.ids), i)
					a := c.lead(email)
					if a.status != 200 {
						return a
					}
					all.add(email, a.text("id"))
				}
				return refused
			}
			if a := keep(20); a.status != 0 {
				t.Fatalf("before: %d %s", a.status, a.body)
			}
			for round := range 3 {
				fault.take(t, o.dir, p.cmd.Process.Pid)
				a := keep(1000)
				if a.status != 503 || a.header.Get("Retry-After") == "" || a.text("code") != fault.code ||
					a.json()["ok"] != false {
					t.Fatalf("round %d: %d, Retry-After %q: %s", round, a.status, a.header.Get("Retry-After"), a.body)
				}
				c.refuses(fault.code)
				c.reads()
				c.healthBecomes("fail")
				fault.give(t, o.dir, p.cmd.Process.Pid)
				c.healthBecomes("pass")
				if a := keep(20); a.status != 0 {
					t.Fatalf("round %d, afterwards: %d %s", round, a.status, a.body)
				}
			}
			fault.take(t, o.dir, p.cmd.Process.Pid)
			keep(1000)
			p.stop(syscall.SIGKILL)
			if fault.mounts {
				fault.give(t, o.dir, 0)
			}
			// Each round refused requests for a while: the log has a line for each round, not for each of them.
			begun := strings.Count(p.log.String(), `"msg":"the disk is full, so nothing is written"`)
			if lines := strings.Count(p.log.String(), "\n"); begun < 1 || begun > 4 || lines > 20 {
				t.Errorf("%d beginnings in %d lines of log:\n%s", begun, lines, p.log.String())
			}
			all.check(t, o)
			o.t = t
			if out := o.do("check"); !strings.HasPrefix(out, "ok") {
				t.Errorf("check: %s", out)
			}
		})
	}
}

func TestBackup_isTakenAndRestoredAsTheReadmeSays(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	p := serveProcess(t, o)
	l := startLoad(t, p.base, "load", 4, time.Millisecond)
	l.grows(200)
	before := l.sofar()
	runBackupUnit(t, o, "success")
	l.grows(50)
	l.stop()
	p.stop(syscall.SIGKILL)
	copies := dirNames(t, filepath.Join(o.dir, "backup"))
	if len(copies) != 1 || !regexp.MustCompile(`^\d{8}T\d{6}Z\.db$`).MatchString(copies[0]) {
		t.Fatalf("copies %q", copies)
	}
	steps := strings.ReplaceAll(documentBlock(t, "widgetd restore /var/lib/widgetd/backup/"), "20261121T031500Z.db",
		copies[0])
	for range 2 { // what is restored may be the wrong copy
		asked := asOnAServer(t, o, steps, nil)
		if asked != "stop widgetd.socket widgetd.service\nstart widgetd.socket widgetd.service\n" {
			t.Errorf("systemd was asked %q", asked)
		}
	}
	aside := movedAsideOf(o.env["WIDGETD_DB"])
	if len(aside) != 2 {
		t.Fatalf("put aside: %q", aside)
	}
	if fileExists(aside[1] + "-wal") { // that of the killed service; the other one is the first copy
		aside[0] = aside[1]
	}
	hasMode(t, o.env["WIDGETD_DB"], 0o600)
	p = serveProcess(t, o)
	if _, _, err := postLead(newClient(t), p.base, "restored@example.com"); err != nil {
		t.Errorf("after restoring: %v", err)
	}
	p.stopCleanly()
	if lacks, leads := missing(t, o.env["WIDGETD_DB"], before); len(lacks) > 0 || leads < len(before) {
		t.Errorf("the restored file lacks %d of %d", len(lacks), len(before))
	}
	lacks, _ := missing(t, aside[0], l.ids) // with its log, it is whole
	if len(lacks) > 0 {
		t.Errorf("what was put aside lacks %d of %d", len(lacks), len(l.ids))
	}
}

// unitLines returns the values of a setting of a unit file as systemd.service(5) reads them, with $ for $$ and % for
// %%.
func unitLines(t testing.TB, file, setting string) (values []string) {
	t.Helper()
	for line := range strings.Lines(string(fileBytes(t, file))) {
		if value, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), setting+"="); ok {
			values = append(values, strings.NewReplacer("$$", "$", "%%", "%").Replace(value))
		}
	}
	return values
}

// runBackupUnit runs the lines of the unit that makes backups, as systemd does; result is what systemd then says of
// ExecStart. It returns what the unit logs.
func runBackupUnit(t testing.TB, o *operator, result string) (log string) {
	t.Helper()
	const unit = "deploy/widgetd-backup.service"
	note := filepath.Join(t.TempDir(), "log")
	lines := strings.Join(append(unitLines(t, unit, "ExecStartPre"), unitLines(t, unit, "ExecStart")...), "\n")
	if result != "success" {
		lines += " && exit 1 || true" // it must fail
	}
	asOnAServer(t, o, lines+"\nSERVICE_RESULT="+result+" "+unitLines(t, unit, "ExecStopPost")[0]+" >"+note, nil)
	return string(fileBytes(t, note))
}

func TestBackup_unitKeepsTheNewestCopiesAndRemovesWhatWasBrokenOff(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	dir := filepath.Join(o.dir, "backup")
	must(t, os.Mkdir(dir, 0o700))
	for day := range 20 {
		writeFile(t, filepath.Join(dir, fmt.Sprintf("202601%02dT031500Z.db", day+1)), "an old copy")
	}
	for _, name := range []string{"20260120T031501Z.db.new", "20260120T031501Z.db.new-journal", "by-hand.db",
		"by-hand.db.new"} {
		writeFile(t, filepath.Join(dir, name), "")
	}
	if log := runBackupUnit(t, o, "success"); log != "" {
		t.Errorf("it logs %q", log)
	}
	names := dirNames(t, dir)
	if len(names) != 14+2 || names[0] != "20260108T031500Z.db" || names[12] != "20260120T031500Z.db" ||
		names[14] != "by-hand.db" || names[15] != "by-hand.db.new" {
		t.Errorf("there are %q", names)
	}
	contains(t, o.do("check", "-db", filepath.Join(dir, names[13])), "ok: ")

	// Copies that fail, day after day, take no good one away, and say so.
	must(t, os.Truncate(o.env["WIDGETD_DB"], 100))
	for range 3 {
		contains(t, runBackupUnit(t, o, "exit-code"), "<3>no copy of the database was written (exit-code)")
	}
	if names := dirNames(t, dir); len(names) != 13+2 || names[12] == "20260120T031500Z.db" {
		t.Errorf("there are %q", names)
	}
}

// The walls of all services stand in one drop-in, which wins over a unit: so no unit has a line that it has, too, and
// what they differ in stands in them. A drop-in of the operator's comes after it.
func TestUnit_ofEachServiceHasItsWallsFromTheDropIn(t *testing.T) {
	t.Parallel()
	const walls, more = "10-hardening.conf", "20-clock.conf"
	failIf(t, !slices.IsSorted([]string{walls, more, "override.conf"}), "systemctl edit's does not come last")
	target, err := os.Readlink("deploy/widgetd.service.d/" + walls)
	must(t, err)
	equal(t, "link", target, "../widgetd-.service.d/"+walls)
	setting := regexp.MustCompile(`(?m)^([A-Z]\w*)=`)
	names := func(file string) (all []string) {
		for _, m := range setting.FindAllStringSubmatch(string(fileBytes(t, file)), -1) {
			all = append(all, m[1])
		}
		return all
	}
	common := names("deploy/widgetd-.service.d/" + walls)
	failIf(t, len(common) < 30, "it has %d lines only", len(common))
	units, err := filepath.Glob("deploy/*.service")
	must(t, err)
	failIf(t, len(units) < 8, "%q", units)
	for _, unit := range units {
		for _, name := range names(unit) {
			failIf(t, name != "Environment" && slices.Contains(common, name), "%s has %s=, too", unit, name)
		}
		has := func(setting string) string { return strings.Join(unitLines(t, unit, setting), " ") }
		if unit != "deploy/widgetd-retry.service" { // only root may start units
			equal(t, unit, has("User")+" "+has("Group")+" "+has("WorkingDirectory"), "widgetd widgetd /var/lib/widgetd")
		}
		families, network := "AF_INET AF_INET6 AF_UNIX", ""
		if regexp.MustCompile("backup|page|retry").MatchString(unit) {
			families, network = "AF_UNIX", "yes"
		}
		equal(t, unit, has("RestrictAddressFamilies"), families)
		equal(t, unit, has("PrivateNetwork"), network)
		clock := "yes"
		if unit == "deploy/widgetd.service" { // it asks whether the clock is right, and can't set it
			clock = ""
		}
		equal(t, unit, has("ProtectClock"), clock)
	}
	equal(t, "what the service may ask", unitLines(t, "deploy/widgetd.service.d/"+more, "SystemCallFilter"),
		[]string{"adjtimex"})
}

// A service that dies again and again has failed: then it rings, and is started again. The limit must be one that
// RestartSec= can reach.
func TestUnit_ofAServiceThatDiesAgainAndAgainHasFailed(t *testing.T) {
	t.Parallel()
	const unit = "deploy/widgetd.service"
	has := func(setting string) (n int) {
		_, err := fmt.Sscan(strings.Join(unitLines(t, unit, setting), " "), &n)
		must(t, err)
		return n
	}
	failIf(t, has("RestartSec")*has("StartLimitBurst") >= has("StartLimitIntervalSec"), "it is restarted for ever")
	equal(t, "type", unitLines(t, unit, "Type"), []string{"notify"})
	equal(t, "then", unitLines(t, unit, "OnFailure"), []string{"widgetd-failed@%n.service widgetd-retry.service"})
	// A follower that stays down, or has stalled for good, is kept by its unit; no program ends it.
	contains(t, fileText(t, "deploy/widgetd-follow.service"), "\nRestart=always\n", "\nRuntimeMaxSec=6h\n",
		"\nOnFailure=widgetd-failed@%n.service\n")
	const retry = "deploy/widgetd-retry.service"
	equal(t, "unless it is stopped", unitLines(t, retry, "PartOf"), []string{"widgetd.service"})
}

// refusedStart starts the service on files that it must refuse and returns what it says, in one line.
func refusedStart(t testing.TB, o *operator) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangs)
	defer cancel()
	cmd := exec.CommandContext(ctx, builtProgram(t), "serve", "-addr", "127.0.0.1:0",
		"-db", o.env["WIDGETD_DB"], "-key", o.env["WIDGETD_KEY"])
	out, _ := cmd.CombinedOutput()
	exit := cmd.ProcessState.ExitCode()
	if exit != 1 || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), o.env["WIDGETD_DB"]) {
		t.Errorf("exit %d, %q; want 1 and one line that names the file", exit, out)
	}
	return string(out)
}

func TestDamage_ofAFileIsRefusedByTheProgramInOneLine(t *testing.T) {
	t.Parallel()
	killed := newOperator(t)
	killed.shares = false
	p := serveProcess(t, killed)
	if a := killed.customer(p).lead("only.in.the.log@example.com"); a.status != 200 {
		t.Fatal(a.body)
	}
	p.stop(syscall.SIGKILL)
	t.Run("its log taken away after a kill", func(t *testing.T) {
		log := killed.env["WIDGETD_DB"] + "-wal"
		rename(t, log, log+".away")
		if text := refusedStart(t, killed); !strings.Contains(text, "-wal is missing") {
			t.Error(text)
		}
		killed.fails("faults in", "check")
		rename(t, log+".away", log)
		killed.store(func(s *store) {
			var n int
			if err := s.one(`SELECT count(*) FROM leads`, nil, &n); err != nil || n != 1 {
				t.Errorf("with the log back: %d leads, %v", n, err)
			}
		})
	})
	t.Run("that this user can't write", func(t *testing.T) {
		shared, _, run := rootsShared(t)
		if out, err := run(nobody, "own", "init"); err != nil {
			t.Fatal(out)
		}
		must(t, os.Chmod(filepath.Join(shared, "own.db"), 0o400))
		out, err := run(nobody, "own", "serve", "-addr", "127.0.0.1:0")
		failIf(t, err == nil, "it is served")
		oneLine(t, errors.New(strings.TrimSpace(out)), "own.db can't be written: let this user write to it")
	})
	t.Run("on a disk that can't be written", func(t *testing.T) {
		dir := smallDisk(t, 8<<20)
		o := operatorIn(t, dir)
		if err := syscall.Mount("none", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			t.Skipf("a disk can't be mounted to be read only: %v", err)
		}
		if text := refusedStart(t, o); !strings.Contains(text, "let this user write to it") {
			t.Error(text)
		}
	})
	t.Run("on a full disk", func(t *testing.T) {
		o := operatorIn(t, smallDisk(t, 8<<20))
		fillDisk(t, filepath.Join(o.dir, "filler"))
		if text := refusedStart(t, o); !strings.Contains(text, "make room on its disk") {
			t.Error(text)
		}
	})
}

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

func newLockedOut(t *testing.T) *lockedOut {
	l := &lockedOut{}
	l.service = newService(t, withoutAddressLimits, func(o *storeOptions, _ *serverOptions) { o.now = l.clock.now })
	l.shell = openShell(t, l.store.path)
	return l
}

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

func TestLock_letsReadsGoOnAndAtMost64WritesWaitWhichAreKeptWhenItEnds(t *testing.T) {
	t.Parallel()
	l := newLockedOut(t)
	_, key := l.addLicense(license{})
	l.activate(key, "kitchen").is(200)
	widget, token := l.addWidget(l.account), l.auth(l.account, scopeLeads, scopeLicenses, scopeStats)
	l.shell.run("BEGIN IMMEDIATE; UPDATE accounts SET name = 'Renamed'")
	l.write()
	for l.store.lockedSince().IsZero() {
		runtime.Gosched()
	}
	l.clock.set(2 * time.Second)
	for range 149 {
		l.write()
	}
	equal(t, "writes that are refused at once", l.refused.Load(), 150-maxBlocked)
	a := l.get("/widget/health").is(200).members("status", "warn")
	failIf(t, !matches(`^another program has held the write lock for [\d,]+ ms$`, a.text("output")), "%s", a.body)
	l.reads(key, widget, token)
	l.clock.set(lockTimeout + 2*time.Second)
	l.get("/widget/health").is(503).members("status", "fail")
	l.reads(key, widget, token)

	l.shell.run("COMMIT")
	l.writes.Wait()
	equal(t, "writes that waited and are kept", len(l.kept.ids), maxBlocked)
	lacks, leads := missing(t, l.store.path, l.kept.ids)
	failIf(t, len(lacks) > 0 || leads != maxBlocked, "the file has %d leads, and lacks %q", leads, lacks)
	l.counts(1, `SELECT count(*) FROM accounts WHERE name = 'Renamed'`)
	l.clock.set(lockTimeout + 4*time.Second)
	l.health().is(200).members("status", "pass")
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
