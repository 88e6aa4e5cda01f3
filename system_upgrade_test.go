package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// upgradeProcess runs the program's upgrade on a file and returns what it printed.
func upgradeProcess(t testing.TB, path string, more ...string) (string, error) {
	t.Helper()
	args := append([]string{"upgrade", "-db", path}, more...)
	out, err := exec.Command(builtProgram(t), args...).CombinedOutput()
	return string(out), err
}

// copyFiles copies a directory's files into a new one.
func copyFiles(t testing.TB, dir string) (copied string) {
	t.Helper()
	copied = t.TempDir()
	for name, text := range directory(t, dir) {
		writeFile(t, filepath.Join(copied, name), text)
	}
	return copied
}

// upgradeKills are the system calls that an upgrade is killed at instead of making them: the first time, the
// second time, and so on.
var upgradeKills = []struct {
	calls      string
	more       []string // options of the upgrade
	few, apart int      // how many are tried, and how many calls lie between two
	step       int      // the same with -long, which tries them to the last
}{
	{"pwrite64", nil, 1, 400, 64},
	{"pwrite64", []string{"-no-copy"}, 0, 1, 64},
	{"fsync,fdatasync", nil, 2, 1, 1}, // of one thread, as strace counts
	{"ftruncate", nil, 0, 1, 1},
	{"link,linkat", nil, 1, 1, 1},
	{"rename,renameat,renameat2", nil, 1, 1, 1},
	{"chmod,fchmodat", nil, 1, 1, 1}, // of the copy, when the new file has its place
	{"unlink,unlinkat", nil, 1, 3, 1},
}

func TestUpgrade_killedAtAnyWriteLeavesTheOldOrTheNewAndASecondOneFinishes(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "strace")
	old := oldDatabase(t, 1)
	text, before := fileBytes(t, old), contentOf(t, old, nil)
	after := contentOf(t, upgradedDatabase(t, 1), nil)
	killed := map[bool]int{} // before and after the commit
	choices := random(t, 0)
	for _, k := range upgradeKills {
		times, step := size(k.few, 1<<30), size(k.apart, k.step)
		for n := 1 + choices.IntN(step); times > 0; n, times = n+step, times-1 {
			path := filepath.Join(t.TempDir(), "widgetd.db")
			writeFile(t, path, text)
			writeFile(t, identityPath(path), "of the file before") // whose log is not there
			what := fmt.Sprintf("killed at the %dth %s of %q", n, k.calls, k.more)
			trace := []string{"-f", "-o", os.DevNull, "-e", "trace=" + k.calls,
				"-e", fmt.Sprintf("inject=%s:signal=SIGKILL:when=%d", k.calls, n)}
			cmd := exec.Command("strace", append(append(trace, builtProgram(t), "upgrade", "-db", path), k.more...)...)
			if out, err := cmd.CombinedOutput(); err == nil {
				break // it makes no more of them
			} else if cmd.ProcessState.ExitCode() > 0 {
				t.Fatalf("%s: %v %s", what, err, out)
			}
			looked := filepath.Join(copyFiles(t, filepath.Dir(path)), "widgetd.db") // looking may empty the log
			killed[eitherOr(t, what, looked, before, after)]++
			upgraded(t, path, upgradeOptions{})
			sameContent(t, what+", and once more", contentOf(t, path, nil), after)
			if copies := upgradeCopies(path); len(copies) > 1 {
				t.Errorf("%s: %d copies of one database: %q", what, len(copies), copies)
			}
			for _, copied := range upgradeCopies(path) {
				if strings.HasSuffix(copied, ".new") {
					t.Errorf("%s: %s is left behind", what, copied)
				} else {
					sameContent(t, what+": "+copied, contentOf(t, copied, nil), before)
				}
			}
		}
	}
	t.Logf("killed %d times before the commit and %d times after it", killed[false], killed[true])
	if killed[false] < size(2, 20) || killed[true] < 1 {
		t.Error("that is not every moment")
	}
}

// Against an old sqlite3 shell that would write a time that no calendar has, which the service can't read: the
// checks hold there too; what was written before is carried over and named.
func TestSchema_refusesInOldShellsTooWhatNoCalendarHas(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "sqlite3")
	for _, path := range []string{makeStore(t), upgradedDatabase(t, 8)} {
		for _, statement := range []string{
			`UPDATE accounts SET closed_at = '2027-02-31T00:00:00Z'`, `UPDATE accounts SET closed_at = 'now'`,
			`INSERT INTO account_zones SELECT id, '2027-02-31', 'Europe/Berlin', '00:00' FROM accounts LIMIT 1`,
			`INSERT INTO account_zones SELECT id, 'now', 'Europe/Berlin', '00:00' FROM accounts LIMIT 1`,
		} {
			out, err := exec.Command("sqlite3", path, statement).CombinedOutput()
			if err == nil || !regexp.MustCompile(`CHECK constraint failed|in a CHECK constraint`).Match(out) {
				t.Errorf("%s: %v: %s", statement, err, out)
			}
		}
		runProgram(t, "sqlite3", path, `UPDATE accounts SET closed_at = '2028-02-29T23:59:59Z';
			INSERT INTO account_zones SELECT id, '2028-02-29', 'Europe/Berlin', '00:00' FROM accounts LIMIT 1`)
	}
}

// unitCommand returns what a line of the unit file runs, without the program's name.
func unitCommand(t testing.TB, name string) []string {
	t.Helper()
	unit := fileBytes(t, "deploy/widgetd.service")
	found := regexp.MustCompile(`(?m)^` + name + `=/usr/local/bin/widgetd (.*)$`).FindSubmatch(unit)
	if found == nil || !regexp.MustCompile(`(?m)^TimeoutStartSec=infinity$`).Match(unit) {
		t.Fatalf("the unit file has no %s, or a limit on how long a start may take", name)
	}
	return strings.Fields(string(found[1]))
}

// startAsTheUnit does what systemd does at a start: ExecStartPre, then ExecStart.
func startAsTheUnit(t testing.TB, o *operator) *process {
	t.Helper()
	first := exec.Command(builtProgram(t), unitCommand(t, "ExecStartPre")...)
	first.Dir = o.dir
	if out, err := first.CombinedOutput(); err != nil {
		t.Fatalf("ExecStartPre: %v %s", err, out)
	}
	serve := exec.Command(builtProgram(t), append(unitCommand(t, "ExecStart"), "-addr", "127.0.0.1:0")...)
	serve.Dir = o.dir
	return start(t, serve)
}

// A key of testdata's first licence, and a device that holds one of its seats.
const dumpedKey, dumpedFingerprint = "H1XQG-DMMG9-ZHQYQ-1ZQQW-SAQR2", "kitchen-1"

func TestUpgrade_isDoneByTheUnitSoThatInstallingAndRestartingIsAll(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	for _, version := range dumpedVersions {
		t.Run(dumpName(version), func(t *testing.T) {
			o := anOperatorOf(t, version)
			p := startAsTheUnit(t, o)
			c := &customer{t: t, client: newClient(t), base: p.base}
			c.ask("POST", "/widget/license/verify", activateBody(dumpedKey, dumpedFingerprint)).is(200).
				members("valid", true) // a device that was active
			c.lead("new@example.com").is(200)
			p.stopCleanly()
			equal(t, "copies", len(upgradeCopies(o.env["WIDGETD_DB"])), oneIf[version != schemaVersion])
			if version >= 4 { // its connection was sealed with another key file
				raw(t, o.env["WIDGETD_DB"], `UPDATE payment_connections SET removed_at = created_at;
					UPDATE payments SET state = 'review', reason = 'order_is_paid' WHERE captured > 0`)
			}
			if version >= 5 { // as were its applications
				raw(t, o.env["WIDGETD_DB"], `DELETE FROM books_apps`)
			}
			raw(t, o.env["WIDGETD_DB"], `INSERT INTO events (id, at, type, account_id, actor, data)
				SELECT 'evt_of_kid_1', created_at, 'key.retired', id, 'command', '{"kid":"kid-1"}'
				FROM accounts LIMIT 1`)
			if report := o.object("check"); report["ok"] != true {
				t.Errorf("check: %v", report)
			}
		})
	}
}

func TestUpgrade_andGoingBackWorkAsTheReadmeSays(t *testing.T) {
	t.Parallel()
	o := anOperatorOf(t, 1)
	db := o.env["WIDGETD_DB"]
	before := contentOf(t, db, nil)
	bin := t.TempDir()                                               // stands for /usr/local/bin
	writeFile(t, filepath.Join(o.dir, "widgetd"), "the new program") // what was built and brought here
	writeFile(t, filepath.Join(bin, "widgetd"), "the old program")
	follow := func(lines, wantAsked, wantProgram string) {
		t.Helper()
		asked := asOnAServer(t, o, strings.ReplaceAll(lines, "/usr/local/bin/", bin+"/"), nil)
		if text, err := os.ReadFile(filepath.Join(bin, "widgetd")); asked != wantAsked || string(text) != wantProgram {
			t.Errorf("systemd was asked %q; in place is %q (%v)", asked, text, err)
		}
	}
	follow(documentBlock(t, "widgetd.before\n"), "stop litestream\nrestart widgetd\nstart litestream\n",
		"the new program")
	p := startAsTheUnit(t, o)
	if _, _, err := postLead(newClient(t), p.base, "lost.by.going.back@example.com"); err != nil {
		t.Error(err)
	}
	if err := p.stop(syscall.SIGKILL); err == nil { // not even stopped properly
		t.Error("it was not killed")
	}
	copies := upgradeCopies(db)
	if len(copies) != 1 {
		t.Fatalf("copies %q", copies)
	}
	back := strings.ReplaceAll(documentBlock(t, "widgetd restore /var/lib/widgetd/widgetd.db.v1"),
		"widgetd.db"+copyOfOld, filepath.Base(copies[0]))
	follow(back, "stop widgetd.socket widgetd.service\nstart widgetd.socket widgetd.service\n", "the old program")
	hasMode(t, db, 0o600)
	sameContent(t, "gone back", contentOf(t, db, nil), before)
	// The database with its log, which holds what was written since, and its identity.
	aside := movedAsideOf(db)
	if len(aside) != 1 {
		t.Fatalf("put aside: %q", aside)
	}
	if names := dirNames(t, filepath.Dir(aside[0])); len(names) != 4 {
		t.Errorf("put aside: %q", names)
	}
}

func TestUpgrade_withoutRoomIsRefusedOrRolledBack_disk(t *testing.T) {
	t.Parallel()
	path := filepath.Join(smallDisk(t, 3<<19), "widgetd.db")
	text := fileBytes(t, oldDatabase(t, 1))
	writeFile(t, path, text)
	before := contentOf(t, path, nil)
	filler := filepath.Join(filepath.Dir(path), "filler")
	leave := func(bytes int64) {
		t.Helper()
		must(t, os.Truncate(filler, fileSize(filler)-bytes))
	}
	refused := func(want string, more ...string) bool {
		t.Helper()
		out, err := upgradeProcess(t, path, more...)
		if err == nil {
			return false
		}
		if !strings.Contains(out, want) || strings.Count(out, "\n") != 1 || !strings.Contains(out, path) {
			t.Errorf("%q: %v: %s; want one line with %q", more, err, out, want)
		}
		looked := filepath.Join(copyFiles(t, filepath.Dir(path)), "widgetd.db") // here is no room to look
		sameContent(t, "refused", contentOf(t, looked, nil), before)
		if copies := upgradeCopies(path); len(copies) > 0 {
			t.Errorf("left behind: %q", copies)
		}
		return true
	}
	fillDisk(t, filler)
	leave(256 << 10)
	for _, more := range [][]string{nil, {"-dry-run"}} {
		if !refused("make room on its disk, or try it all the same with -no-copy: the new file ", more...) {
			t.Errorf("%q: it found room", more)
		}
	}
	fillDisk(t, filepath.Join(filepath.Dir(path), "more"))
	refusals := 0
	for refused("make room on its disk: ", "-no-copy") { // wherever in it the room ends
		refusals++
		leave(int64(size(200, 20)) << 10)
	}
	if faults, err := checkFile(path); err != nil || len(faults) > 0 || refusals < size(2, 10) {
		t.Errorf("after %d refusals: %q, %v", refusals, faults, err)
	}
}

func TestErase_leavesTheAddressNowhereWhateverHeldIt(t *testing.T) {
	t.Parallel()
	const address = "Forget.Me-7@example.com"
	for _, byCommand := range []bool{true, false} {
		o, log, posts := newOperator(t), "", size(24, 120)
		var p *process
		var c *customer
		serve := func() {
			p = serveProcess(t, o)
			c = o.customer(p)
		}
		end := func(signal syscall.Signal) {
			p.stop(signal)
			log += p.log.String()
		}
		post := func(email, source, key string) {
			body := seatBody("type", "newsletter", "email", email, "source", source, "page", "/menu")
			for range 2 { // as a site's form does, under its key
				c.ask("POST", "/widget/leads", body, "Idempotency-Key: "+key, "Origin: "+siteOrigin).is(200)
			}
		}
		nowhere := func(when string) {
			t.Helper()
			equal(t, when+" it stands in", traces(t, o.dir, "forget.me-7@"), nil)
			lacks(t, strings.ToLower(log), "forget.me-7")
		}
		serve()
		for i := range posts {
			email := []string{address, strings.ToUpper(address[:8]) + address[8:], strings.ToLower(address)}[i%3]
			post(email, strings.Repeat("x", i/2)+fmt.Sprint(i), fmt.Sprint("key-", i))
			post(fmt.Sprintf("other%d@example.com", i), "footer", fmt.Sprint("other-", i))
			if i%(posts/3) == 0 && i > 0 {
				end([]syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i*3/posts-1])
				serve()
			}
		}
		failIf(t, len(traces(t, o.dir, "forget.me-7@")) == 0, "it was never there: the test looks at the wrong place")
		if byCommand {
			erased := o.object("lead", "erase", "FORGET.me-7@Example.COM")["erased"]
			equal(t, "erased", fmt.Sprint(erased), fmt.Sprint(posts))
		} else {
			token := bearer(strings.TrimSpace(o.do("token", "issue", "-account", o.account, "-scope", "leads:write")))
			c.ask("POST", "/leads/erase", seatBody("email", "FORGET.me-7@Example.COM"), token).is(200).
				members("erased", float64(posts))
		}
		nowhere("while it serves")
		post("later@example.com", "footer", "later")
		end(syscall.SIGTERM)
		nowhere("after a stop")
		serve()
		end(syscall.SIGKILL)
		nowhere("after a restart")
		failIf(t, len(traces(t, o.dir, fmt.Sprintf("other%d@", posts-1))) == 0, "other addresses are gone too")
	}
}
