package main

import (
	"context"

	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"syscall"
	"testing"
	"time"
)

// smallDisk mounts a disk of that size until the test ends.
func smallDisk(t testing.TB, size int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", size)); err != nil {
		t.Skipf("a small disk can't be mounted (%v): run this test as root", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// operatorIn runs init in a directory.
func operatorIn(t testing.TB, dir string) *operator {
	t.Helper()
	o := &operator{t: t, dir: dir, ran: map[string]bool{},
		env: map[string]string{"WIDGETD_DB": filepath.Join(dir, "widgetd.db"), "WIDGETD_KEY": filepath.Join(dir, "widgetd.key")}}
	o.account = o.object("init", "-origin", siteOrigin)["account_id"].(string)
	return o
}

// A customer is a client of a running service that has a licence, a device with its
// lease, a widget and a token.
type customer struct {
	t      testing.TB
	client *http.Client
	base   string
	key    string
	widget string
	token  string
}

// customer gives an operator's service one.
func (o *operator) customer(p *process) *customer {
	o.t.Helper()
	c := &customer{t: o.t, client: newClient(o.t), base: p.base}
	c.key = o.object("license", "add", "-account", o.account, "-product", "kds")["key"].(string)
	c.widget = o.object("widget", "add", "-account", o.account, "Lunch")["id"].(string)
	c.token = strings.TrimSpace(o.do("token", "issue", "-account", o.account, "-scope", "leads:read licenses:read stats:read"))
	if a := c.ask("POST", "/widget/license/activate", activateBody(c.key, "kitchen-1")); a.status != 200 {
		o.t.Fatalf("activate: %d %s", a.status, a.body)
	}
	return c
}

// ask sends a request over a connection; headers are "Name: value".
func (c *customer) ask(method, path, body string, headers ...string) answer {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	res, err := c.client.Do(r)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	return answer{c.t, res.StatusCode, res.Header, string(text)}
}

// lead posts a lead.
func (c *customer) lead(email string) answer {
	c.t.Helper()
	return c.ask("POST", "/widget/leads", fmt.Sprintf(`{"type":"newsletter","email":%q,"page":"/%s"}`, email, strings.Repeat("x", 1000)))
}

// reads checks that everything that needs no write is answered as ever.
func (c *customer) reads() {
	c.t.Helper()
	bearer := "Authorization: Bearer " + c.token
	if a := c.ask("POST", "/widget/license/verify", activateBody(c.key, "kitchen-1")); a.status != 200 || a.json()["valid"] != true {
		c.t.Errorf("verify: %d %s", a.status, a.body)
	}
	for _, path := range []string{"/leads", "/licenses", "/widget/stats?widget=" + c.widget} {
		if a := c.ask("GET", path, "", bearer); a.status != 200 {
			c.t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
}

// refuses checks that writes of each kind are refused with that code and told when
// to come again.
func (c *customer) refuses(code string) {
	c.t.Helper()
	for name, a := range map[string]answer{
		"lead":     c.lead("refused@example.com"),
		"activate": c.ask("POST", "/widget/license/activate", activateBody(c.key, "kitchen-2")),
		"events":   c.ask("POST", "/widget/events", fmt.Sprintf(`{"widget":%q,"events":[{"type":"view"}]}`, c.widget), "Origin: "+siteOrigin),
	} {
		if a.status != 503 || a.header.Get("Retry-After") == "" || a.json()["code"] != code {
			c.t.Errorf("%s: %d, Retry-After %q: %s; want %s", name, a.status, a.header.Get("Retry-After"), a.body, code)
		}
	}
}

// healthBecomes asks until health says that, for at most half a minute.
func (c *customer) healthBecomes(status string) {
	c.t.Helper()
	var last string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if last = c.ask("GET", "/widget/health", "").body; strings.HasPrefix(last, `{"status":"`+status+`"`) {
			return
		}
	}
	c.t.Fatalf("health stays %s, want %s", last, status)
}

// fillDisk writes a file until nothing more fits.
func fillDisk(t testing.TB, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 16; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// A diskFault takes the room or the right to write from a running service, and
// gives it back.
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
		func(t testing.TB, _ string, pid int) {
			runProgram(t, "prlimit", "--pid", fmt.Sprint(pid), "--fsize=200000:")
		},
		func(t testing.TB, _ string, pid int) {
			runProgram(t, "prlimit", "--pid", fmt.Sprint(pid), "--fsize=unlimited:")
		}, "storage_full", false},
}

// runProgram runs another program, which must succeed.
func runProgram(t testing.TB, name string, args ...string) string {
	t.Helper()
	programsOrSkip(t, name)
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v %s", name, args, err, out)
	}
	return string(out)
}

func TestAServiceWithoutRoomReadsOnAndRecoversByItself(t *testing.T) {
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
				if a := keep(1000); a.status != 503 || a.header.Get("Retry-After") == "" || a.json()["code"] != fault.code || a.json()["ok"] != false {
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
			all.check(t, o)
			if out := runProgram(t, builtProgram(t), "check", "-db", o.env["WIDGETD_DB"], "-key", o.env["WIDGETD_KEY"]); !strings.HasPrefix(out, "ok") {
				t.Errorf("check: %s", out)
			}
		})
	}
}

// refusedStart starts the service on files that it must refuse and returns what it
// says, in one line.
func refusedStart(t testing.TB, o *operator) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, builtProgram(t), "serve", "-addr", "127.0.0.1:0", "-db", o.env["WIDGETD_DB"], "-key", o.env["WIDGETD_KEY"])
	out, _ := cmd.CombinedOutput()
	if text := string(out); cmd.ProcessState.ExitCode() != 1 || strings.Count(text, "\n") != 1 || !strings.Contains(text, o.env["WIDGETD_DB"]) {
		t.Errorf("exit %d, %q; want 1 and one line that names the file", cmd.ProcessState.ExitCode(), text)
	}
	return string(out)
}

func TestTheProgramRefusesEveryBadFileInOneLine(t *testing.T) {
	t.Parallel()
	killed := newOperator(t)
	p := serveProcess(t, killed)
	if a := killed.customer(p).lead("only.in.the.log@example.com"); a.status != 200 {
		t.Fatal(a.body)
	}
	p.stop(syscall.SIGKILL)
	for _, bad := range badFiles {
		t.Run(bad.name, func(t *testing.T) {
			o := &operator{t: t, env: map[string]string{"WIDGETD_DB": makeStore(t), "WIDGETD_KEY": killed.env["WIDGETD_KEY"]}}
			bad.make(t, o.env["WIDGETD_DB"])
			if text := refusedStart(t, o); !strings.Contains(text, bad.want) {
				t.Errorf("%q, want %q", text, bad.want)
			}
		})
	}
	t.Run("its log taken away after a kill", func(t *testing.T) {
		log := killed.env["WIDGETD_DB"] + "-wal"
		if err := os.Rename(log, log+".away"); err != nil {
			t.Fatal(err)
		}
		if text := refusedStart(t, killed); !strings.Contains(text, "-wal is missing") {
			t.Error(text)
		}
		killed.fails("faults in", "check")
		if err := os.Rename(log+".away", log); err != nil {
			t.Fatal(err)
		}
		killed.store(func(s *store) {
			var n int
			if err := s.one(`SELECT count(*) FROM leads`, nil, &n); err != nil || n != 1 {
				t.Errorf("with the log back: %d leads, %v", n, err)
			}
		})
	})
	for _, suffix := range []string{"", "-wal", "-shm"} {
		t.Run("that this user can't write"+suffix, func(t *testing.T) {
			if os.Getuid() != 0 {
				t.Skip("only root may run the service as somebody else")
			}
			refusedToNobody(t, suffix)
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

// refusedToNobody starts the service as the user nobody, who owns its files but may
// not write to one of them.
func refusedToNobody(t *testing.T, suffix string) {
	t.Helper()
	programsOrSkip(t, "setpriv", "timeout")
	dir, err := os.MkdirTemp("", "nobody") // t.TempDir() is in a directory that is closed to others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	o := operatorIn(t, dir)
	path := o.env["WIDGETD_DB"]
	runProgram(t, "cp", builtProgram(t), filepath.Join(dir, "widgetd"))
	runProgram(t, "touch", path+"-wal", path+"-shm")
	runProgram(t, "chmod", "400", path+suffix)
	runProgram(t, "chown", "-R", "nobody", dir)
	out, err := exec.Command("setpriv", "--reuid=nobody", "--clear-groups", "timeout", "5", filepath.Join(dir, "widgetd"), "serve", "-addr", "127.0.0.1:0",
		"-db", path, "-key", o.env["WIDGETD_KEY"]).CombinedOutput()
	if text := string(out); err == nil || strings.Count(text, "\n") != 1 || !strings.Contains(text, path+suffix+" can't be written: let this user write to it") {
		t.Errorf("%v: %q", err, text)
	}
}

// openFaults are done to files while the service has them open.
var openFaults = []struct {
	name string
	do   func(t testing.TB, path string)
	undo func(t testing.TB, path string) // nil: it can't be undone
}{
	{"renamed", func(t testing.TB, path string) { rename(t, path, path+".away") }, func(t testing.TB, path string) { rename(t, path+".away", path) }},
	{"unlinked", func(t testing.TB, path string) { os.Remove(path) }, nil},
	{"replaced", func(t testing.TB, path string) {
		rename(t, path, path+".away")
		rename(t, makeStore(t), path)
	}, func(t testing.TB, path string) { rename(t, path+".away", path) }},
	{"its log renamed", func(t testing.TB, path string) { rename(t, path+"-wal", path+"-away") }, func(t testing.TB, path string) { rename(t, path+"-away", path+"-wal") }},
	{"its log unlinked", func(t testing.TB, path string) { os.Remove(path + "-wal") }, nil},
	{"emptied", func(t testing.TB, path string) { os.Truncate(path, 0) }, nil},
	{"its header zeroed", func(t testing.TB, path string) { damage(t, path, 0, make([]byte, 100)...) }, nil},
	{"overwritten with text", func(t testing.TB, path string) { os.WriteFile(path, []byte("hello"), 0o600) }, nil},
	{"cut off", func(t testing.TB, path string) { os.Truncate(path, 40960) }, nil},
}

func rename(t testing.TB, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func TestFilesThatAreTakenWhileTheyAreOpenStopWritesUntilTheyAreBack(t *testing.T) {
	for _, fault := range openFaults {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			o := newOperator(t)
			p := serveProcess(t, o)
			c := o.customer(p)
			var all acknowledged
			all.add("before@example.com", c.lead("before@example.com").text("id"))
			fault.do(t, o.env["WIDGETD_DB"])
			if fault.name == "cut off" { // SQLite tells when it misses a page; until then what is there is served
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

func TestAHeaderThatIsDamagedWhileOpenIsNoticedUntilItIsMended(t *testing.T) {
	s := openTestStore(t, makeStore(t), storeOptions{})
	for _, at := range []int64{0, 68} { // what says SQLite, what says whose
		head, err := os.ReadFile(s.path)
		if err != nil {
			t.Fatal(err)
		}
		damage(t, s.path, at, 'X')
		if s.watch(); !errors.Is(s.inPlace(), errStorage) {
			t.Errorf("byte %d changed: %v", at, s.inPlace())
		}
		damage(t, s.path, at, head[at])
		if s.watch(); s.inPlace() != nil {
			t.Errorf("byte %d mended: %v", at, s.inPlace())
		}
	}
}
