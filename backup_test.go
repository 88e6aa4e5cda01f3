package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// backups is how many copies the test under load takes.
var backups = flag.Int("backups", 50, "copies that the test of backups under load takes")

// A load posts leads to a service until it is stopped, wherever that answers, and
// remembers what was acknowledged.
type load struct {
	acknowledged
	base  atomic.Pointer[string]
	done  chan struct{}
	posts sync.WaitGroup
}

// startLoad posts leads from so many clients, each with a pause between two. Their
// addresses begin with name.
func startLoad(t testing.TB, base, name string, clients int, pause time.Duration) *load {
	l := &load{done: make(chan struct{}), acknowledged: acknowledged{ids: map[string]string{}}}
	l.base.Store(&base)
	client := newClient(t)
	client.Timeout = time.Minute
	for c := range clients {
		l.posts.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-l.done:
					return
				case <-time.After(pause):
				}
				email := fmt.Sprintf("%s-c%d-i%d@example.com", name, c, i)
				if id, _, err := postLead(client, *l.base.Load(), email); err == nil { // else the service is being restarted
					l.add(email, id)
				}
			}
		})
	}
	return l
}

func (l *load) stop() {
	close(l.done)
	l.posts.Wait()
}

// sofar is what was acknowledged until now.
func (l *load) sofar() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.ids)
}

// take adds what an earlier load was told.
func (l *load) take(ids map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.Copy(l.ids, ids)
}

// grows waits until n more are acknowledged.
func (l *load) grows(n int) {
	for want := len(l.sofar()) + n; len(l.sofar()) < want; {
		time.Sleep(5 * time.Millisecond)
	}
}

// missing compares rows: it returns the acknowledged leads that a file lacks or
// holds more than once, and how many leads are in it.
func missing(t testing.TB, path string, ids map[string]string) (lacks []string, leads int) {
	t.Helper()
	st, err := openStore(path, storeOptions{keepLog: true})
	if err != nil {
		t.Fatal(err)
	}
	defer st.close()
	there := map[string]int{}
	err = st.each(`SELECT id, email_key FROM leads`, nil, func(scan func(...any) error) error {
		var id, email string
		err := scan(&id, &email)
		there[id+" "+email]++
		leads++
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for email, id := range ids {
		if there[id+" "+email] != 1 {
			lacks = append(lacks, email)
		}
	}
	return lacks, leads
}

func TestEveryBackupUnderLoadIsSoundClosedAndHoldsWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	p := serveProcess(t, o)
	program := builtProgram(t)
	l := startLoad(t, p.base, "load", 3, 15*time.Millisecond)
	l.grows(50)
	rows := 0
	for n := range *backups {
		copied := filepath.Join(o.dir, fmt.Sprintf("copy-%d.db", n))
		before := l.sofar()
		runProgram(t, program, "backup", "-db", o.env["WIDGETD_DB"], "-key", o.env["WIDGETD_KEY"], copied)
		if out := runProgram(t, program, "check", "-db", copied, "-key", o.env["WIDGETD_KEY"]); !strings.HasPrefix(out, "ok") {
			t.Errorf("copy %d: %s", n, out)
		}
		if info, err := os.Stat(copied); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("copy %d: mode %v, %v", n, info.Mode(), err)
		}
		lacks, leads := missing(t, copied, before)
		if len(lacks) > 0 || leads < len(before) {
			t.Fatalf("copy %d lacks %d of %d: %q", n, len(lacks), len(before), lacks)
		}
		rows += len(before)
		if err := os.Remove(copied); err != nil {
			t.Fatal(err)
		}
	}
	l.stop()
	t.Logf("%d copies, %d acknowledged rows looked for, none missing", *backups, rows)
	if err := p.stop(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if names := dirNames(t, o.dir); len(names) != 2 {
		t.Errorf("left behind: %q", names)
	}
}

func TestABackupReplacesNoFileThatComesWhileItRuns(t *testing.T) {
	s := newService(t)
	s.change(named(strings.Repeat("x", 8<<20))) // so that it takes a while
	path := filepath.Join(s.dir, "copy.db")
	ended := make(chan error, 1)
	go func() { ended <- s.store.backup(path) }()
	for {
		if _, err := os.Stat(path + ".new"); err == nil {
			break
		}
		runtime.Gosched()
	}
	s.check(os.WriteFile(path, []byte("mine"), 0o600))
	if err := <-ended; !errors.Is(err, fs.ErrExist) {
		t.Errorf("over a file that came meanwhile: %v", err)
	}
	if text, _ := os.ReadFile(path); !bytes.Equal(text, []byte("mine")) {
		t.Errorf("the file that came meanwhile now has %d bytes", len(text))
	}
	if _, err := os.Stat(path + ".new"); err == nil {
		t.Error("the draft is left behind")
	}
}

func TestABackupThatCannotBeMadeSaysWhy(t *testing.T) {
	o := newOperator(t)
	if err := o.fails("no such file or directory", "backup", filepath.Join(o.dir, "none", "copy.db")); err != nil && strings.Contains(err.Error(), "remove") {
		t.Errorf("nothing is there to remove: %v", err)
	}
	copied := filepath.Join(o.dir, "copy.db")
	if err := os.WriteFile(copied+".new", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o.fails("remove "+copied+".new if no other command is making it", "backup", copied)
	t.Run("of a database that is not as it should be", func(t *testing.T) {
		o := newOperator(t)
		raw(t, o.env["WIDGETD_DB"], `DROP INDEX leads_email`)
		if err := o.fails("the copy is not sound: schema: index leads_email is missing", "backup", filepath.Join(o.dir, "copy.db")); strings.Contains(err.Error(), "nil") {
			t.Error(err)
		}
	})
	t.Run("on a full disk", func(t *testing.T) {
		dir := smallDisk(t, 64<<10)
		o.t = t
		o.fails("The disk is full", "backup", filepath.Join(dir, "copy.db"))
		if names := dirNames(t, dir); len(names) > 0 {
			t.Errorf("left behind: %q", names)
		}
	})
}

// readmeBlock returns the code block of the README that holds a text.
func readmeBlock(t testing.TB, holds string) string {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile("(?s)```\\w*\n(.*?)```").FindAllStringSubmatch(string(readme), -1) {
		if strings.Contains(found[1], holds) {
			return found[1]
		}
	}
	t.Fatalf("no block of the README holds %q", holds)
	return ""
}

// asOnAServer runs lines of the README as they stand there, but for the directory,
// on a machine where the directory is the operator's and sudo, systemctl and the
// alias widgetd do what they are for. systemctl notes what it is asked.
func asOnAServer(t testing.TB, o *operator, lines string, more map[string]string) (asked string) {
	t.Helper()
	programsOrSkip(t, "sh")
	bin, notes := t.TempDir(), filepath.Join(t.TempDir(), "asked")
	scripts := map[string]string{
		"sudo":      `[ "$1" = -u ] && shift 2; exec "$@"`,
		"systemctl": `echo "$@" >>` + notes,
		"widgetd":   `cd ` + o.dir + ` && exec ` + builtProgram(t) + ` "$@"`,
	}
	maps.Copy(scripts, more)
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	lines = strings.NewReplacer("/var/lib/widgetd", o.dir, "/usr/local/bin/widgetd", filepath.Join(bin, "widgetd")).Replace(lines)
	runProgram(t, "env", "PATH="+bin+":"+os.Getenv("PATH"), "sh", "-eu", "-c", "cd "+o.dir+"\n"+lines)
	text, err := os.ReadFile(notes)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(text)
}

func TestABackupIsTakenAndRestoredAsTheReadmeSays(t *testing.T) {
	o := newOperator(t)
	p := serveProcess(t, o)
	l := startLoad(t, p.base, "load", 4, time.Millisecond)
	l.grows(200)
	before := l.sofar()
	daily := regexp.MustCompile(`(?m)^ExecStart=/bin/sh -c '(.*)'$`).FindStringSubmatch(readmeBlock(t, "Description=Copy of the widgetd database"))[1]
	asOnAServer(t, o, strings.NewReplacer("$$", "$", "%%", "%").Replace(daily), nil)
	l.grows(50)
	l.stop()
	p.stop(syscall.SIGKILL)
	copies := dirNames(t, filepath.Join(o.dir, "backup"))
	if len(copies) != 1 || !regexp.MustCompile(`^\d{8}T\d{6}Z\.db$`).MatchString(copies[0]) {
		t.Fatalf("copies %q", copies)
	}
	steps := strings.ReplaceAll(readmeBlock(t, "install -m 600 backup/"), "20261121T031500Z.db", copies[0])
	if asked := asOnAServer(t, o, steps, nil); asked != "stop widgetd.socket widgetd.service\nstart widgetd.socket widgetd.service\n" {
		t.Errorf("systemd was asked %q", asked)
	}
	if info, err := os.Stat(o.env["WIDGETD_DB"]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info, err)
	}
	p = serveProcess(t, o)
	if _, _, err := postLead(newClient(t), p.base, "restored@example.com"); err != nil {
		t.Errorf("after restoring: %v", err)
	}
	if err := p.stop(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if lacks, leads := missing(t, o.env["WIDGETD_DB"], before); len(lacks) > 0 || leads < len(before) {
		t.Errorf("the restored file lacks %d of %d", len(lacks), len(before))
	}
	if lacks, _ := missing(t, filepath.Join(o.dir, "lost", "widgetd.db"), l.ids); len(lacks) > 0 { // with its log, it is whole
		t.Errorf("what was put aside lacks %d of %d", len(lacks), len(l.ids))
	}
}
