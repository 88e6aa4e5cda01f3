package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

// openFaults are done to files while the service has them open.
var openFaults = []struct {
	name string
	do   func(t testing.TB, path string)
	undo func(t testing.TB, path string) // nil: it can't be undone
}{
	{"renamed", func(t testing.TB, path string) { rename(t, path, path+".away") },
		func(t testing.TB, path string) { rename(t, path+".away", path) }},
	{"unlinked", func(t testing.TB, path string) { os.Remove(path) }, nil},
	{"replaced", func(t testing.TB, path string) {
		rename(t, path, path+".away")
		rename(t, makeStore(t), path)
	}, func(t testing.TB, path string) { rename(t, path+".away", path) }},
	{"its log renamed", func(t testing.TB, path string) { rename(t, path+"-wal", path+"-away") },
		func(t testing.TB, path string) { rename(t, path+"-away", path+"-wal") }},
	{"its log unlinked", func(t testing.TB, path string) { os.Remove(path + "-wal") }, nil},
	{"emptied", func(t testing.TB, path string) { os.Truncate(path, 0) }, nil},
	{"its header zeroed", func(t testing.TB, path string) { damage(t, path, 0, make([]byte, 100)...) }, nil},
	{"overwritten with text", func(t testing.TB, path string) { os.WriteFile(path, []byte("hello"), 0o600) }, nil},
	{"cut off", func(t testing.TB, path string) { os.Truncate(path, 40960) }, nil},
}

func TestDisk_filesTakenWhileOpenStopWritesUntilTheyAreBack(t *testing.T) {
	t.Parallel()
	for _, fault := range openFaults {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			o := newOperator(t)
			p := serveProcess(t, o)
			c := o.customer(p)
			var all acknowledged
			all.add("before@example.com", c.lead("before@example.com").text("id"))
			fault.do(t, o.env["WIDGETD_DB"])
			if fault.name == "cut off" { // until SQLite misses a page, what is there is served
				for i := range 50 {
					if a := c.lead(fmt.Sprintf("after%d@example.com", i)); a.status != 200 && a.status != 503 {
						t.Errorf("%d %s", a.status, a.body)
					}
				}
				p.stop(syscall.SIGKILL)
				return
			}
			c.healthBecomes("fail")
			c.refuses("storage_unavailable")
			if fault.undo != nil {
				fault.undo(t, o.env["WIDGETD_DB"])
				c.healthBecomes("pass")
				all.add("afterwards@example.com", c.lead("afterwards@example.com").text("id"))
				p.stop(syscall.SIGKILL)
				all.check(t, o)
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
	const retry = "deploy/widgetd-retry.service"
	equal(t, "unless it is stopped", unitLines(t, retry, "PartOf"), []string{"widgetd.service"})
}
