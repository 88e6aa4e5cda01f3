package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// nobody is a user to whom nothing belongs but what these tests give to it, and its group.
const nobody, nogroup = 65534, 65534

// rootsProgram runs the program as root. It returns a directory that belongs to nobody, one that only root may look
// into, and a function that runs the program there with the database and the key file of the first one.
func rootsProgram(t *testing.T) (owned, closed string, run func(args ...string) (string, error)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	top, err := os.MkdirTemp("", "owner") // t.TempDir() is in a directory that is closed to others
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(top) })
	must(t, os.Chmod(top, 0o755))
	owned, closed = filepath.Join(top, "owned"), filepath.Join(top, "closed")
	for _, dir := range []string{owned, closed} {
		must(t, os.Mkdir(dir, 0o700))
	}
	must(t, os.Chown(owned, nobody, 0))
	program := builtProgram(t)
	return owned, closed, func(args ...string) (string, error) {
		t.Helper()
		cmd := exec.Command(program, append(args, "-db", filepath.Join(owned, "widgetd.db"), "-key",
			filepath.Join(owned, "widgetd.key"))...)
		cmd.Dir = closed
		cmd.Env = append(os.Environ(), "SUDO_USER=daemon")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// belongsToNobody fails for each file of a directory that belongs to somebody else, or that others can read.
func belongsToNobody(t *testing.T, dir string) {
	t.Helper()
	for _, name := range dirNames(t, dir) {
		info, err := os.Lstat(filepath.Join(dir, name))
		must(t, err)
		group := int(info.Sys().(*syscall.Stat_t).Gid)
		if ownerOf(info) != nobody || group != nogroup || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s belongs to %d:%d, mode %v", name, ownerOf(info), group, info.Mode())
		}
	}
}

func TestOwner_isWhomCommandsOfRootActAs(t *testing.T) {
	t.Parallel()
	owned, _, run := rootsProgram(t)
	for _, line := range []string{"init", "account add Bistro", "key add", "upgrade", "status", "check",
		"token issue -scope leads:read", "backup " + owned + "/copy.db"} {
		if out, err := run(strings.Fields(line)...); err != nil {
			t.Errorf("%s: %v: %s", line, err, out)
		}
	}
	if names := dirNames(t, owned); !slices.Contains(names, "copy.db") || !slices.Contains(names, "widgetd.key") {
		t.Errorf("files %q", names)
	}
	belongsToNobody(t, owned)
	if out, err := run("events", "-json"); err != nil || !strings.Contains(out, `"actor":"command:daemon"`) {
		t.Errorf("the events name another actor than the user who called sudo: %v %s", err, out)
	}
}

func TestOwner_getsNoDirectoryThatRootMadeForIt(t *testing.T) {
	t.Parallel()
	owned, _, run := rootsProgram(t)
	deep := filepath.Join(owned, "a", "b")
	out, err := exec.Command(builtProgram(t), "init", "-db", filepath.Join(deep, "widgetd.db"), "-key",
		filepath.Join(deep, "widgetd.key")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	belongsToNobody(t, owned)
	belongsToNobody(t, deep)
	if _, err := run("status"); err == nil {
		t.Error("there is a database above")
	}
}

func TestOwner_readsWhatTheOperatorNamesWithTheRightsOfRoot(t *testing.T) {
	t.Parallel()
	_, closed, run := rootsProgram(t)
	if out, err := run("init", "-base-url", "https://api.example.com/v1"); err != nil {
		t.Fatal(out)
	}
	file := filepath.Join(closed, "file")
	must(t, os.WriteFile(file, []byte("nonsense\n"), 0o600))
	for line, want := range map[string]string{ // what a command says of the text in the file
		"license import -product menu " + file:             "the first line must name the columns",
		"payment connect stripe -secrets " + file:          "line 1 is none of key=",
		"books app set xero -secrets " + file:              "line 1 is none of client_id=",
		"license import -product menu " + closed + "/none": "no such file",
	} {
		if out, err := run(strings.Fields(line)...); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v: %s, want %q", line, err, out, want)
		}
	}
	out, err := run("backup", filepath.Join(closed, "copy.db"))
	if err == nil || !strings.Contains(out, "the user nobody, to whom the database belongs, writes it: name a file "+
		"where that user may, as ") {
		t.Errorf("a copy where only root may write: %v: %s", err, out)
	}
}

// Commands may read other files than these only by the options -db and -key.
func TestOwner_knowsEveryFileThatACommandReads(t *testing.T) {
	t.Parallel()
	for _, c := range commandsOf(nouns()) {
		for _, o := range c.options {
			if strings.HasPrefix(o.value, "FILE") != slices.Contains(fileOptions, o.name) && o.name != "set" {
				t.Errorf("%s: is the value of -%s a file that it reads? See fileOptions", c.name, o.name)
			}
		}
		if names := strings.Contains(c.args, "FILE") && c.name != "backup"; names != c.namesFile() {
			t.Errorf("%s: is one of its arguments a file that it reads? See namesFile", c.name)
		}
	}
}

func TestOwner_cantLeadRootToTheFilesOfRoot(t *testing.T) {
	t.Parallel()
	owned, closed, run := rootsProgram(t)
	roots := filepath.Join(closed, "widgetd.db")
	out, err := exec.Command(builtProgram(t), "init", "-db", roots, "-key", filepath.Join(closed, "widgetd.key")).
		CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	before := fileBytes(t, roots)
	link := func(name, target string) {
		must(t, os.Symlink(target, filepath.Join(owned, name)))
	}
	link("widgetd.db", roots)
	link("widgetd.key", filepath.Join(closed, "widgetd.key"))
	link("copy.db.new", filepath.Join(closed, "made"))
	for _, line := range []string{"account add x", "upgrade", "key add", "check", "serve -addr 127.0.0.1:0",
		"backup " + owned + "/copy.db", "status"} {
		if out, err := run(strings.Fields(line)...); err == nil || !strings.Contains(out, "permission denied") {
			t.Errorf("%s: %v: %s", line, err, out)
		}
	}
	for _, name := range []string{"widgetd.db", "widgetd.key"} { // to where there is nothing yet
		must(t, os.Remove(filepath.Join(owned, name)))
		link(name, filepath.Join(closed, "new-"+name))
	}
	if out, err := run("init"); err == nil {
		t.Errorf("init: %s", out)
	}
	demo := exec.Command(builtProgram(t), "demo", "-addr", "127.0.0.1:0", "-dir", owned)
	if out, err := demo.CombinedOutput(); err == nil {
		t.Errorf("demo: %s", out)
	}
	if names := dirNames(t, closed); len(names) != 2 || string(fileBytes(t, roots)) != string(before) {
		t.Errorf("root's files have changed; there are %q", names)
	}
}

func TestOwner_isWhomEveryThreadOfTheServiceActsAsForGood(t *testing.T) {
	t.Parallel()
	owned, closed, run := rootsProgram(t)
	if out, err := run("init"); err != nil {
		t.Fatal(out)
	}
	cmd := exec.Command(builtProgram(t), "serve", "-addr", "127.0.0.1:0", "-log", "json",
		"-db", filepath.Join(owned, "widgetd.db"), "-key", filepath.Join(owned, "widgetd.key"))
	cmd.Dir = closed
	p := start(t, cmd)
	tasks := filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "task")
	threads := 0
	for _, task := range dirNames(t, tasks) {
		text, err := os.ReadFile(filepath.Join(tasks, task, "status"))
		if err != nil {
			continue // it has ended
		}
		threads++
		for _, line := range []string{"Uid:\t65534\t65534\t65534\t65534", "Gid:\t65534\t65534\t65534\t65534",
			"Groups:\t65534 ", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000"} {
			if !strings.Contains(string(text), "\n"+line+"\n") {
				t.Errorf("no line %q in %s", line, text)
			}
		}
	}
	if threads < 2 {
		t.Errorf("%d threads", threads)
	}
	p.stopCleanly()
	belongsToNobody(t, owned)
}

func TestOwner_isNotChangedWhereTheDirectoryIsRoots(t *testing.T) {
	t.Parallel()
	owned, _, _ := rootsProgram(t)
	must(t, os.Chown(owned, 0, 0))
	must(t, os.Chmod(owned, 0o777|os.ModeSticky)) // as /tmp
	db, key := filepath.Join(owned, "widgetd.db"), filepath.Join(owned, "widgetd.key")
	run := func(words ...string) (string, error) {
		out, err := exec.Command(builtProgram(t), append(words, "-db", db, "-key", key)...).CombinedOutput()
		return string(out), err
	}
	if out, err := run("init"); err != nil {
		t.Fatal(out)
	}
	for _, name := range dirNames(t, owned) {
		if info, err := os.Stat(filepath.Join(owned, name)); err != nil || ownerOf(info) != 0 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
	foreign := db + "-wal" // with what another user would like to have in the database
	must(t, os.WriteFile(foreign, nil, 0o666))
	must(t, os.Chown(foreign, nobody, nogroup))
	if out, err := run("account", "list"); err == nil || !strings.Contains(out, "widgetd.db-wal belongs to the user "+
		"nobody: run 'sudo -u nobody widgetd account list …'") {
		t.Errorf("%v: %s", err, out)
	}
}

// Not parallel: it changes the working directory.
func TestInit_makesTheInstallationWhereItsDirectoryIs(t *testing.T) {
	installed, elsewhere := t.TempDir(), t.TempDir()
	t.Chdir(elsewhere)
	if _, _, err := runAs(t, installed, 54321, "init"); err != nil { // who may not: here
		t.Error(err)
	}
	if names := dirNames(t, elsewhere); len(names) != 2 {
		t.Errorf("made here: %q", names)
	}
	t.Chdir(t.TempDir())
	out, noted, err := runAs(t, installed, os.Geteuid(), "init")
	if err != nil || noted != "" || !strings.Contains(out, installed+"/widgetd.key: created") ||
		!strings.Contains(out, "next: sudo systemctl enable --now widgetd.socket widgetd.service") {
		t.Errorf("%q, %q, %v", out, noted, err)
	}
	if names := dirNames(t, installed); len(names) != 2 {
		t.Errorf("made: %q", names)
	}
	out, noted, err = runAs(t, installed, os.Geteuid(), "status")
	if err != nil || noted != "using "+installed+"/widgetd.db\n" || !strings.Contains(out, "widgetd.db, ") {
		t.Errorf("%q, %q, %v", out, noted, err)
	}
}
