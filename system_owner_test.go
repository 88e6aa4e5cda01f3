package main

import (
	"bytes"
	"errors"
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
	deep := filepath.Join(owned, "a", "b") // which root makes
	runProgram(t, builtProgram(t), "init", "-db", filepath.Join(deep, "widgetd.db"), "-key",
		filepath.Join(deep, "widgetd.key"))
	belongsToNobody(t, owned)
	belongsToNobody(t, deep)
	if out, err := run("events", "-json"); err != nil || !strings.Contains(out, `"actor":"command:daemon"`) {
		t.Errorf("the events name another actor than the user who called sudo: %v %s", err, out)
	}
}

func TestOwner_isWhomCommandsOfRootOpenNamedFilesAs(t *testing.T) {
	t.Parallel()
	takesLong(t, "starts the program many times as root")
	owned, closed, run := rootsProgram(t)
	if out, err := run("init", "-name", "Example", "-base-url", "https://api.example.com/v1"); err != nil {
		t.Fatal(out)
	}
	file, theirs := filepath.Join(closed, "file"), filepath.Join(owned, "file")
	must(t, errors.Join(os.WriteFile(file, []byte("nonsense\n"), 0o600), os.Symlink(file, theirs+".link"),
		os.WriteFile(theirs, []byte("nonsense\n"), 0o600), os.Chown(theirs, nobody, nogroup)))
	for line, want := range map[string]string{ // what a command says of the text in the file
		"license import -product menu":    "the first line must name the columns",
		"payment connect stripe -secrets": "line 1 is none of key=",
		"books app set xero -secrets":     "line 1 is none of client_id=",
		"books map xero -set":             "this is not a JSON object",
		"webhook listen -secret-file":     "a webhook's secret is whsec_",
		"lease inspect x -public":         "there is no public key in it",
		"account set Example -logo":       "PNG, JPEG or WebP",
	} {
		if out, err := run(append(strings.Fields(line), theirs)...); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v: %s, want %q", line, err, out, want)
		}
		for _, roots := range []string{file, theirs + ".link"} {
			out, err := run(append(strings.Fields(line), roots)...)
			if err == nil || !strings.Contains(out, roots+": permission denied for the user nobody, to whom the "+
				"database belongs: have your shell open it, as - <"+roots) {
				t.Errorf("%s %s: %v: %s", line, roots, err, out)
			}
		}
	}
	out, err := run("backup", filepath.Join(closed, "copy.db"))
	if err == nil || !strings.Contains(out, "permission denied for the user nobody, to whom the database belongs: "+
		nameAnother) {
		t.Errorf("a copy where only root may write: %v: %s", err, out)
	}
}

// Against the service's user, when root runs a command, who would lead root to write or read root's files, by links
// in the directory: the program takes the rights of the directory's owner before it opens the database, in every
// thread and for good; in a directory of root's it refuses another user's files and links.
func TestOwner_cantLeadRootToTheFilesOfRoot(t *testing.T) {
	t.Parallel()
	takesLong(t, "starts the program many times as root")
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

// rootsShared returns a directory of root's in which everybody may make files, as /tmp, with a database of root's, one
// that is closed to others, and a function that runs the program as a user with the database of that name in the first.
func rootsShared(t *testing.T) (shared, closed string, run func(uid int, db string, words ...string) (string, error)) {
	t.Helper()
	shared, closed, _ = rootsProgram(t)
	must(t, errors.Join(os.Chown(shared, 0, 0), os.Chmod(shared, 0o777|os.ModeSticky)))
	program := filepath.Join(filepath.Dir(shared), "widgetd") // where others find it
	if os.Link(realPath(builtProgram(t)), program) != nil {
		must(t, exec.Command("cp", builtProgram(t), program).Run())
	}
	must(t, os.Chmod(program, 0o755)) // one that was built here has the program's umask
	run = func(uid int, db string, words ...string) (string, error) {
		t.Helper()
		path := filepath.Join(shared, db)
		cmd := exec.Command(program, append(words, "-db", path+".db", "-key", path+".key")...)
		cmd.Dir = shared
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(0, "widgetd", "init"); err != nil {
		t.Fatal(out)
	}
	return shared, closed, run
}

// givenTo gives a file, or a link, to a user.
func givenTo(t *testing.T, uid int, path string) {
	t.Helper()
	must(t, os.Lchown(path, uid, uid))
}

func TestOwner_isNotChangedWhereTheDirectoryIsRoots(t *testing.T) {
	t.Parallel()
	shared, _, run := rootsShared(t)
	if out, err := run(0, "widgetd", "account", "list"); err != nil {
		t.Error(out)
	}
	for _, name := range dirNames(t, shared) {
		if info, err := os.Stat(filepath.Join(shared, name)); err != nil || ownerOf(info) != 0 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
	givenTo(t, nobody, filepath.Join(shared, "widgetd.db"))
	if out, err := run(0, "widgetd", "account", "list"); err == nil || !strings.Contains(out,
		"widgetd.db belongs to the user nobody: run 'sudo -u nobody widgetd account list …'") {
		t.Errorf("%v: %s", err, out)
	}
}

// Against another user of the machine who may write in the database's directory who would have SQLite roll back a
// journal of theirs, or the program believe an epoch, a socket or a key file of theirs: every file of a database
// belongs to its owner or to root, and is no link, or nothing is opened.
func TestOwner_refusesWhatOthersHavePutBesideADatabase(t *testing.T) {
	t.Parallel()
	takesLong(t, "starts the program many times as root")
	shared, closed, run := rootsShared(t)
	const other = 12345
	if out, err := run(other, "own", "init"); err != nil {
		t.Fatal(err, out)
	}
	refuses := func(uid int, db, planted string, words ...string) {
		t.Helper()
		path := filepath.Join(shared, db+".db")
		before := fileBytes(t, path)
		out, err := run(uid, db, words...)
		if err == nil || !strings.Contains(out, planted+" belongs to the user nobody, so nothing was opened") {
			t.Errorf("%q by %d: %v: %s", words, uid, err, out)
		}
		if _, err := os.Lstat(filepath.Join(shared, planted)); err != nil || !bytes.Equal(before, fileBytes(t, path)) {
			t.Errorf("%q by %d has touched %s, or the database: %v", words, uid, planted, err)
		}
	}
	plant := func(name string, uid int) (remove func()) {
		path := filepath.Join(shared, name)
		must(t, os.WriteFile(path, []byte("WIDGETD_EPOCH=9-x"), 0o666))
		givenTo(t, uid, path)
		return func() { os.Remove(path) }
	}
	for db, uid := range map[string]int{"widgetd": 0, "own": other} {
		for i, suffix := range []string{".db-journal", ".db-wal", ".db-shm", ".db-txid", ".db-promoting", ".epoch",
			".epoch.new", ".sock"} {
			if i%4 > 0 && uid == other && !inFull() {
				continue
			}
			remove := plant(db+suffix, nobody)
			refuses(uid, db, db+suffix, "account", "list")
			remove()
		}
		remove := plant(db+".db-journal", nobody)
		for i, line := range []string{"check", "status", "upgrade", "promote", "serve -addr 127.0.0.1:0", "key add",
			"backup " + closed + "/copy.db"} {
			if i%4 > 0 && uid == other && !inFull() {
				continue
			}
			refuses(uid, db, db+".db-journal", strings.Fields(line)...)
		}
		remove()
		key := filepath.Join(shared, db+".key")
		givenTo(t, nobody, key)
		if out, err := run(uid, db, "key", "list"); err == nil {
			t.Errorf("the key of another, by %d: %s", uid, out)
		}
		givenTo(t, uid, key)
		must(t, os.Symlink(closed, filepath.Join(shared, db+".db-txid")))
		out, err := run(uid, db, "upgrade")
		if err == nil || !strings.Contains(out, "is no file, so nothing was opened") {
			t.Errorf("a link, by %d: %v: %s", uid, err, out)
		}
		must(t, os.Remove(filepath.Join(shared, db+".db-txid")))
		defer plant(db+".epoch", 0)() // what root has put there is all right
		if out, err := run(uid, db, "account", "list"); err != nil {
			t.Errorf("its own files: %s", out)
		}
	}
}

func TestOwner_followsNoLinkOfAnotherToWhereRootWouldWrite(t *testing.T) {
	t.Parallel()
	takesLong(t, "starts the program many times as root")
	shared, closed, run := rootsShared(t)
	link := func(uid int, name, target string) string {
		path := filepath.Join(shared, name)
		must(t, os.Symlink(target, path))
		givenTo(t, uid, path)
		return path
	}
	link(nobody, "dir", closed)
	link(0, "roots", closed)
	link(nobody, "nowhere", filepath.Join(closed, "none"))
	link(nobody, "key.key", filepath.Join(closed, "key"))
	link(nobody, "base.db", filepath.Join(closed, "base"))
	link(0, "own.db", filepath.Join(closed, "own"))
	for line, want := range map[string]string{
		"dir/x init":                               "dir is a link of the user nobody",
		"dir/below/x init":                         "dir is a link of the user nobody",
		"roots/x init":                             "roots is a link: name the directory itself, " + closed,
		"nowhere/x init":                           "nowhere is a link of the user nobody",
		"key init":                                 "key.key belongs to the user nobody",
		"base init":                                "base.db belongs to the user nobody",
		"own init":                                 "own.db is a link to where no file is",
		"dir/x status":                             "dir is a link of the user nobody",
		"demo -dir dir -addr 127.0.0.1:0":          "dir is a link of the user nobody",
		"demo -dir nowhere -addr 127.0.0.1:0":      "nowhere is a link of the user nobody",
		"demo -dir roots/ -addr 127.0.0.1:0":       "roots/ is a link: name the directory itself, " + closed,
		"demo -dir dir/../dir/x -addr 127.0.0.1:0": "dir is a link of the user nobody",
	} {
		words := strings.Fields(line)
		var out []byte
		var err error
		if words[0] == "demo" {
			cmd := exec.Command(builtProgram(t), words...)
			cmd.Dir = shared
			out, err = cmd.CombinedOutput()
		} else {
			var text string
			text, err = run(0, words[0], words[1:]...)
			out = []byte(text)
		}
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v: %s, want %q", line, err, out, want)
		}
	}
	if names := dirNames(t, closed); len(names) != 0 {
		t.Errorf("root has made %q", names)
	}
}

// Against another user who may write where a backup goes who would read it, or have root write elsewhere: the
// directory and those above it are root's or the writer's, and nobody else may write there; the draft must still be
// the file that was made.
func TestBackup_isWrittenOnlyWhereNobodyElseMayWrite(t *testing.T) {
	t.Parallel()
	takesLong(t, "starts the program many times as root")
	shared, closed, run := rootsShared(t)
	if out, err := run(nobody, "own", "init"); err != nil {
		t.Fatal(out)
	}
	dir := func(name string, uid int, mode os.FileMode) string {
		path := filepath.Join(shared, name)
		must(t, errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, mode)))
		givenTo(t, uid, path)
		return path
	}
	theirs, open := dir("theirs", nobody, 0o755), dir("open", 0, 0o777)
	dir("theirs/roots", 0, 0o700)
	must(t, os.Symlink(theirs, filepath.Join(shared, "link")))
	for name, refused := range map[string]bool{
		theirs: true, theirs + "/roots": true, shared + "/link": true, open: true, shared: true,
		closed: false, dir("roots", 0, 0o755): false, dir("group", 0, 0o770): true,
	} {
		out, err := run(0, "widgetd", "backup", filepath.Join(name, "copy.db"))
		if (err != nil) != refused || refused && !strings.Contains(out, "and could replace the file: name one in") {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		if refused && fileExists(filepath.Join(name, "copy.db.new")) {
			t.Errorf("%s: there is a draft", name)
		}
	}
	if out, err := run(nobody, "own", "backup", theirs+"/own.db"); err != nil {
		t.Errorf("in a directory of their own: %s", out)
	}
}

func TestOwner_readsNoFileByALinkOfAnother(t *testing.T) {
	t.Parallel()
	shared, closed, run := rootsShared(t)
	secret, link := filepath.Join(closed, "secret"), filepath.Join(shared, "link.csv")
	must(t, errors.Join(os.WriteFile(secret, []byte("root's secret\n"), 0o600), os.Symlink(secret, link)))
	for uid, want := range map[int]string{
		0: "the first line must name the columns", nobody: "is a link of the user nobody",
	} {
		givenTo(t, uid, link)
		if out, err := run(0, "widgetd", "license", "import", link); err == nil || !strings.Contains(out, want) {
			t.Errorf("a link of %d: %v: %s", uid, err, out)
		}
	}
}
