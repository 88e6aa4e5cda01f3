package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A filledFile is a closed database with rows in every table, and what is needed to ask for them.
type filledFile struct {
	content              []byte
	keys                 *keyring
	tables               map[string][]string // every row, by table
	license, key, lease  string
	widget, admin, stats string
}

// usedFile is what fillFile returns, which the first test that asks for it makes.
var usedFile struct {
	once sync.Once
	file *filledFile
}

// fillFile returns a database for which every endpoint was used. All tests have the same.
func fillFile(t testing.TB) *filledFile {
	t.Helper()
	usedFile.once.Do(func() { usedFile.file = useEverything(t) })
	return usedFile.file
}

// useEverything makes a database and uses every endpoint.
func useEverything(t testing.TB) *filledFile {
	t.Helper()
	s := newService(t, withoutAddressLimits)
	f := &filledFile{keys: s.keys}
	f.license, f.key = s.addLicense(license{Plan: ptr("pro"),
		terms: terms{MaxDevices: ptr(3), Entitlements: []string{"kds", "reports"}}})
	f.widget = s.addWidget(s.account)
	f.admin, f.stats = s.token(s.account, scopeAdmin), s.token(s.account, scopeStats)
	f.lease = s.activate(f.key, "kitchen-1").is(200).text("token")
	s.post("/widget/license/activate", activateBody(f.key, "kitchen-2"), "Idempotency-Key: again").is(200)
	for range 40 {
		s.addLicense(license{ExpiresAt: newStamp(time.Now().Add(24 * time.Hour)), terms: terms{GraceDays: 3}})
	}
	for i := range size(40, 120) {
		s.post("/widget/leads", f.lead(i), fmt.Sprintf("Idempotency-Key: %d", i)).is(200)
		s.post("/widget/events", f.events(fmt.Sprint("Dish ", i%20)), "Origin: "+siteOrigin).is(204)
	}
	s.get("//api/legacy/widget/stats")
	s.check(s.chore(countLegacyCalls)(t.Context()))
	s.get("/widget/health").is(200)
	s.closeStore()
	var err error
	f.content, err = os.ReadFile(s.store.path)
	s.check(err)
	f.tables = contentOf(t, s.store.path, nil).rows
	s.store, err = openStore(s.store.path, storeOptions{}) // for the harness, which closes it
	s.check(err)
	return f
}

// lead is a lead that the file holds, and events are of its widget.
func (f *filledFile) lead(n int) string {
	return fmt.Sprintf(`{"type":"newsletter","email":"guest%d@example.com","source":"footer","page":"/lunch"}`, n)
}

func (f *filledFile) events(item string) string {
	return fmt.Sprintf(`{"widget":%q,"events":[{"type":"view"},{"type":"click","item":%q}]}`, f.widget, item)
}

// changedRows counts the rows of one that are not in the other.
func changedRows(one, other map[string][]string) (n int) {
	for table, rows := range one {
		there := map[string]int{}
		for _, row := range other[table] {
			there[row]++
		}
		for _, row := range rows {
			if there[row]--; there[row] < 0 {
				n++
			}
		}
	}
	return n
}

// ask sends a request of each kind, does what the service does by itself, and returns the answers.
func (f *filledFile) ask(s *service) map[string]answer {
	bearer := func(token string) string { return "Authorization: Bearer " + token }
	all := map[string]answer{
		"health":    s.get("/widget/health"),
		"alive":     s.get("//livez"),
		"lead":      s.post("/widget/leads", anyLead, "Origin: "+siteOrigin, "Idempotency-Key: new"),
		"old lead":  s.post("/widget/leads", f.lead(7), "Idempotency-Key: 7"),
		"activate":  s.activate(f.key, "kitchen-3"),
		"verify":    s.post("/widget/license/verify", activateBody(f.key, "kitchen-1")),
		"lease":     s.post("/widget/license/verify", `{"nonce":"n"}`, bearer(f.lease)),
		"leave":     s.post("/widget/license/deactivate", activateBody(f.key, "kitchen-2")),
		"events":    s.post("/widget/events", f.events("Soup"), "Origin: "+siteOrigin),
		"stats":     s.get("/widget/stats?widget=" + f.widget),
		"all stats": s.get("/widget/stats", bearer(f.stats)),
		"leads":     s.get("/leads?limit=200", bearer(f.admin)),
		"licenses":  s.get("/licenses?limit=200", bearer(f.admin)),
		"license":   s.get("/licenses/"+f.license, bearer(f.admin)),
		"devices":   s.get("/licenses/"+f.license+"/devices", bearer(f.admin)),
		"audit":     s.get("/events?limit=200", bearer(f.admin)),
		"suspend":   s.post("/licenses/"+f.license+"/suspend", `{"reason":"test"}`, bearer(f.admin)),
		"erase":     s.post("/leads/erase", `{"email":"guest9@example.com"}`, bearer(f.admin)),
		"legacy":    s.get("//api/legacy/widget/stats"),
	}
	s.chore(countLegacyCalls)(s.t.Context()) // their errors go to the log
	s.server.runTransitions(s.t.Context())
	s.server.sweep(s.t.Context(), time.Now().Add(time.Hour))
	return all
}

// A damageReport is what became of one damaged file.
type damageReport struct {
	refused  bool           // at start
	statuses map[string]int // of the answers: "lead 503"
	found    bool           // by check
	changed  int            // rows that read otherwise, though check found nothing
}

// serveDamaged starts the service on a damaged file, asks it everything and checks
// the file. It complains about whatever is neither a clear line nor a proper answer.
func (f *filledFile) serveDamaged(t testing.TB, path, what string) (report damageReport) {
	t.Helper()
	faults, err := checkFile(path)
	if err != nil {
		faults = append(faults, err.Error())
	}
	report.found = len(faults) > 0
	if !report.found {
		c, err := readContent(path, nil)
		report.changed = changedRows(f.tables, c.rows)
		if err != nil || report.changed > 1 || changedRows(c.rows, f.tables) != report.changed {
			t.Errorf("%s: check finds nothing, but %d rows read otherwise (%v)", what, report.changed, err)
		}
	}
	st, err := openStore(path, storeOptions{busyTimeout: time.Second})
	if err == nil {
		var log strings.Builder
		s := &service{t: t, dir: filepath.Dir(path), store: st, keys: f.keys, damaged: true}
		how := serverOptions{nounOptions: nounOptions{legacySunset: defaultSunset}}
		withoutAddressLimits(nil, &how)
		s.server, err = newServer(st, f.keys, how, slog.New(slog.NewTextHandler(&log, nil)), nouns())
		if err == nil {
			report.statuses = map[string]int{}
			for name, a := range f.ask(s) {
				report.statuses[fmt.Sprint(name, " ", a.status)]++
				// A rule or an index that was changed and now refuses what is right can't be
				// told from a fault of ours that it stops.
				ruled := report.found && strings.Contains(log.String(), "constraint failed")
				if a.status >= 500 && a.status != 503 && !ruled && a.text("code") != "row_unreadable" {
					t.Errorf("%s: %s: %d %s\n%s", what, name, a.status, a.body, log.String())
				}
			}
			if strings.Contains(log.String(), "panic") {
				t.Errorf("%s: %s", what, log.String())
			}
		}
		st.close() // its error is the damage
	}
	if err != nil {
		report.refused = true
		if text := err.Error(); strings.Contains(text, "\n") || strings.Contains(text, "panic") {
			t.Errorf("%s: refused as %q, want one clear line", what, text)
		}
		if !report.found && report.changed == 0 {
			t.Errorf("%s: refused (%v), but check finds nothing", what, err)
		}
	}
	return report
}

func TestDamage_ofOneByteIsRefusedOrServedWithProperAnswers(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	f := fillFile(t)
	damages, choices, path := size(4, 60), random(t, 0), filepath.Join(t.TempDir(), "damaged.db")
	var refused, found, silent int
	statuses := map[string]int{}
	for n := range damages {
		at, with := choices.IntN(len(f.content)), byte(1+choices.IntN(255))
		if n%2 == 0 {
			at += choices.IntN(12) - at%4096 // the header of a page breaks more
		}
		if n%8 == 1 { // once at least
			at = choices.IntN(4096) // and so does the first page
		}
		content := slices.Clone(f.content)
		content[at] ^= with
		must(t, os.WriteFile(path, content, 0o600))
		what := fmt.Sprintf("byte %d changed by %#02x", at, with)
		hangs := time.AfterFunc(hangs, func() { panic(what + ": no answer") })
		r := f.serveDamaged(t, path, what)
		hangs.Stop()
		must(t, errors.Join(os.Remove(path), removeLog(path)))
		if r.refused {
			refused++
		}
		if r.found {
			found++
		}
		silent += r.changed
		for s, n := range r.statuses {
			statuses[s] += n
		}
	}
	t.Logf("%d changes: %d refused at start, %d found by check, %d changed a value that no rule holds; answers %v",
		damages, refused, found, silent, statuses)
}

// removeLog removes what a service that could not close its file has left.
func removeLog(path string) (err error) {
	for _, suffix := range []string{"-wal", "-shm"} {
		if e := os.Remove(path + suffix); !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
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
	for _, suffix := range []string{"", "-wal", "-shm"} {
		t.Run("that this user can't write"+suffix, func(t *testing.T) {
			var o *operator
			run := nobodysDirectory(t, func(dir string) {
				o = operatorIn(t, dir)
				writeFile(t, o.env["WIDGETD_DB"]+"-wal", "")
				writeFile(t, o.env["WIDGETD_DB"]+"-shm", "")
				must(t, os.Chmod(o.env["WIDGETD_DB"]+suffix, 0o400))
			})
			run(o.env["WIDGETD_DB"]+suffix+" can't be written: let this user write to it",
				"serve", "-addr", "127.0.0.1:0", "-db", o.env["WIDGETD_DB"], "-key", o.env["WIDGETD_KEY"])
		})
	}
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

// nobodysDirectory is a directory with the program, made by put, that belongs to the user nobody. run runs the
// program there as that user; it must fail with one line that says want.
func nobodysDirectory(t *testing.T, put func(dir string)) (run func(want string, args ...string)) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root may run the program as somebody else")
	}
	programsOrSkip(t, "setpriv", "timeout")
	dir, err := os.MkdirTemp("", "nobody") // t.TempDir() is in a directory that is closed to others
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "widgetd")
	runProgram(t, "cp", builtProgram(t), program)
	put(dir)
	runProgram(t, "chown", "-R", "nobody", dir)
	return func(want string, args ...string) {
		t.Helper()
		args = append([]string{"--reuid=nobody", "--clear-groups", "timeout", "5", program}, args...)
		out, err := exec.Command("setpriv", args...).CombinedOutput()
		if text := string(out); err == nil || strings.Count(text, "\n") != 1 || !strings.Contains(text, want) {
			t.Errorf("%v: %q; want one line with %q", err, text, want)
		}
	}
}
