package main

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
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
	{"pwrite64", []string{"-no-copy"}, 1, 200, 64},
	{"fsync,fdatasync", nil, 3, 1, 1}, // of one thread, as strace counts
	{"ftruncate", nil, 1, 1, 1},
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
		if *everyFault {
			times, step = 1<<30, 1
		}
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

func TestUpgrade_takesLessMemoryThanTheUnitAllows(t *testing.T) {
	t.Parallel()
	takesLong(t, "upgrades a large file")
	path := oldDatabase(t, 1)
	raw(t, path, manyOfVersion1(size(15_000, 60_000)))
	cmd := exec.Command(builtProgram(t), "upgrade", "-db", path)
	must(t, cmd.Start())
	ended, peak := make(chan error), 0
	go func() { ended <- cmd.Wait() }()
	for tick, highest := time.Tick(5*time.Millisecond), regexp.MustCompile(`VmHWM:\s+(\d+) kB`); ; {
		select {
		case err := <-ended:
			must(t, err)
			t.Logf("%d MiB for a database of %d MiB", peak>>10, fileSize(path)>>20)
			if peak == 0 || peak > 128<<10 {
				t.Errorf("%d MiB, want at most 128", peak>>10)
			}
			return
		case <-tick: // the kernel's number never falls, and is gone with the process
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
			if found := highest.FindSubmatch(status); found != nil {
				peak, _ = strconv.Atoi(string(found[1]))
			}
		}
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

func TestUpgrade_isRefusedWhileAServiceServesWhichGoesOn(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	db := o.env["WIDGETD_DB"]
	p := serveProcess(t, o)
	c := o.customer(p)
	var all acknowledged
	all.add("before@example.com", c.lead("before@example.com").text("id"))
	raw(t, db, `PRAGMA user_version = 1`) // as if it were an earlier program's service
	for _, more := range [][]string{nil, {"-no-copy"}, {"-dry-run"}} {
		before := directory(t, o.dir)
		out, err := upgradeProcess(t, db, more...)
		want := db + " was not upgraded: another process has it open: stop the service"
		if err == nil || !strings.Contains(out, want) || strings.Count(out, "\n") != 1 {
			t.Errorf("%v: %s; want one line with %q", err, out, want)
		}
		if after := directory(t, o.dir); after["widgetd.db"] != before["widgetd.db"] || len(after) != len(before) {
			t.Error("a refused upgrade changed the file")
		}
	}
	all.add("afterwards@example.com", c.lead("afterwards@example.com").text("id"))
	p.stopCleanly()
	raw(t, db, fmt.Sprintf(`PRAGMA user_version = %d`, schemaVersion))
	all.check(t, o)
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
		if version == schemaVersion && !inFull() { // as at a second start there is nothing to do
			continue
		}
		t.Run(dumpName(version), func(t *testing.T) {
			o := anOperatorOf(t, version)
			wantCopies := 1
			if version == schemaVersion {
				wantCopies = 0
			}
			for round := range 2 { // the second start has nothing to do
				p := startAsTheUnit(t, o)
				c := &customer{t: t, client: newClient(t), base: p.base}
				a := c.ask("POST", "/widget/license/verify", activateBody(dumpedKey, dumpedFingerprint))
				if a.status != 200 || a.json()["valid"] != true {
					t.Errorf("a device that was active: %d %s", a.status, a.body)
				}
				if a := c.lead(fmt.Sprintf("round%d@example.com", round)); a.status != 200 {
					t.Errorf("a lead: %d %s", a.status, a.body)
				}
				p.stopCleanly()
				if copies := upgradeCopies(o.env["WIDGETD_DB"]); len(copies) != wantCopies {
					t.Errorf("start %d: copies %q", round, copies)
				}
				if version != 8 && !inFull() {
					break
				}
			}
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

// forms are the ways in which a text could lie in a file, in lower case.
func forms(text string) map[string]string {
	reversed := []byte(text)
	slices.Reverse(reversed)
	all := map[string]string{"as it is": text, "in hexadecimal": hex.EncodeToString([]byte(text)),
		"reversed": string(reversed), "in UTF-16": strings.Join(strings.Split(text, ""), "\x00")}
	for shift := range 3 { // base64 depends on where in it the text begins
		encoded := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat(" ", shift) + text))
		all[fmt.Sprint("in base64 at ", shift)] = strings.ToLower(encoded[2*shift : len(encoded)-3])
	}
	return all
}

// nowhere looks for an address in every file of a directory and in a log.
func nowhere(t *testing.T, when, dir, log, address string) {
	t.Helper()
	local, _, _ := strings.Cut(address, "@")
	for form, text := range forms(local) {
		if names := traces(t, dir, text); len(names) > 0 {
			t.Errorf("%s it stands %s in %q", when, form, names)
		}
		if strings.Contains(strings.ToLower(log), text) {
			t.Errorf("%s it stands %s in the log", when, form)
		}
	}
}

// postTwice posts a lead as a site's form does, retrying once under its key, and checks that the retry added
// nothing.
func (c *customer) postTwice(path, email, source, key string) {
	c.t.Helper()
	var answers [2]answer
	for i := range answers {
		body := seatBody("type", "newsletter", "email", email, "source", source, "page", "/menu")
		answers[i] = c.ask("POST", path, body, "Idempotency-Key: "+key, "Origin: "+siteOrigin)
	}
	first, second := answers[0], answers[1]
	if first.status != 200 || second.body != first.body || second.header.Get("Idempotency-Replayed") != "true" {
		c.t.Fatalf("answered %d %s, then %d %s", first.status, first.body, second.status, second.body)
	}
}

// eraseWays are how an operator or a portal erases an address.
var eraseWays = map[string]func(o *operator, c *customer, email string) (erased any){
	"by the command": func(o *operator, _ *customer, email string) any {
		return o.object("lead", "erase", email)["erased"]
	},
	"over HTTP": func(o *operator, c *customer, email string) any {
		token := strings.TrimSpace(o.do("token", "issue", "-account", o.account, "-scope", "leads:write"))
		a := c.ask("POST", "/v1/leads/erase", seatBody("email", email), "Authorization: Bearer "+token)
		return a.json()["erased"]
	},
}

func TestErase_leavesTheAddressNowhereWhateverHeldIt(t *testing.T) {
	t.Parallel()
	const address = "Forget.Me-7@example.com"
	for way, erase := range eraseWays {
		t.Run(way, func(t *testing.T) {
			o, log, posts := newOperator(t), "", size(24, 120)
			var p *process
			c := &customer{t: t, client: newClient(t)}
			serve := func() {
				p = serveProcess(t, o, "-legacy-sunset", "2100-01-01")
				c.base = strings.TrimSuffix(p.base, "/v1")
			}
			end := func(signal syscall.Signal) {
				p.stop(signal)
				log += p.log.String()
			}
			serve()
			for i := range posts {
				email := []string{address, strings.ToUpper(address[:8]) + address[8:], strings.ToLower(address)}[i%3]
				path := []string{"/v1/widget/leads", "/api/legacy/widget/leads"}[i/3%2]
				c.postTwice(path, email, strings.Repeat("x", i/2)+fmt.Sprint(i), fmt.Sprint("key-", i))
				c.postTwice(path, fmt.Sprintf("other%d@example.com", i), "footer", fmt.Sprint("other-", i))
				if i%(posts/3) == 0 && i > 0 {
					end([]syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i*3/posts-1])
					serve()
				}
			}
			if len(traces(t, o.dir, "forget.me-7@")) == 0 {
				t.Fatal("the address was never there: the test looks at the wrong place")
			}
			if n := erase(o, c, "FORGET.me-7@Example.COM"); n != float64(posts) {
				t.Errorf("%v leads erased", n)
			}
			nowhere(t, "while it serves", o.dir, log, "forget.me-7@")
			c.postTwice("/v1/widget/leads", "later@example.com", "footer", "later")
			end(syscall.SIGTERM)
			nowhere(t, "after a stop", o.dir, log, "forget.me-7@")
			serve()
			end(syscall.SIGKILL)
			nowhere(t, "after a restart", o.dir, log, "forget.me-7@")
			if len(traces(t, o.dir, fmt.Sprintf("other%d@", posts-1))) == 0 {
				t.Error("other addresses are gone too")
			}
		})
	}
}
