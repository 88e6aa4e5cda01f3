package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
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

func TestOwner_isNotChangedWhereTheDirectoryIsRootsNorIsALinkOfAnotherRead(t *testing.T) {
	t.Parallel()
	shared, closed, run := rootsShared(t)
	if out, err := run(0, "widgetd", "account", "list"); err != nil {
		t.Error(out)
	}
	for _, name := range dirNames(t, shared) {
		if info, err := os.Stat(filepath.Join(shared, name)); err != nil || ownerOf(info) != 0 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
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
		"demo -dir roots/ -addr 127.0.0.1:0":       "roots is a link: name the directory itself, " + closed,
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

// enabled waits until a webhook is enabled.
func (o *operator) enabled(id string) {
	o.t.Helper()
	for end := time.Now().Add(time.Minute); o.object("webhook", "show", id)["state"] != webhookEnabled; {
		if time.Now().After(end) {
			o.t.Fatalf("it is not enabled: %v\n%s", o.object("webhook", "show", id),
				o.do("webhook", "delivery", "list", id))
		}
		<-time.After(20 * time.Millisecond)
	}
}

// Against a crash between sending a webhook and recording it that would lose an event, or send it as another one:
// it is sent again with the same id; positions and results are written in one transaction.
func TestWebhook_killedBetweenSendingAndRecordingIsSentAgainWithTheSameID(t *testing.T) {
	t.Parallel()
	o, ids, accept := newOperator(t), make(chan string, 100), make(chan bool)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); !bytes.Contains(body, []byte(eventWebhookTest)) {
			ids <- r.Header.Get("webhook-id")
			select {
			case <-accept:
			case <-r.Context().Done():
			}
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer web.Close()
	next := func() (id string) {
		failIf(t, !soon(func() bool { return len(ids) > 0 }), "no webhook came")
		return <-ids
	}
	const allow = "127.0.0.0/8"
	p := serveProcess(t, o, "-outbound-allow", allow)
	o.env["WIDGETD_OUTBOUND_ALLOW"] = allow
	o.enabled(o.object("webhook", "add", web.URL, "-account", o.account, "-type", "lead.created")["id"].(string))
	o.customer(p).lead("ada@example.com")
	first := next()
	for range 2 { // and once more, since it may be killed again
		p.stop(os.Kill)
		p = serveProcess(t, o, "-outbound-allow", allow)
		equal(t, "after a kill", next(), first)
	}
	close(accept)
	o.customer(p).lead("grace@example.com")
	failIf(t, next() == first, "%s came again, although it was accepted", first)
	p.stopCleanly()
	p = serveProcess(t, o, "-outbound-allow", allow, "-no-webhooks")
	o.customer(p).lead("edith@example.com")
	p.stopCleanly()
	equal(t, "sent by a service that was told to send none", len(ids), 0)
}

// listening serves a service on a real listener, with every limit of serve, until the test ends.
func (s *service) listening() (addr string) {
	s.t.Helper()
	return s.listeningOn("tcp", "127.0.0.1:0")
}

// listeningOn is listening on another kind of listener.
func (s *service) listeningOn(network, address string) (addr string) {
	s.t.Helper()
	listener, err := net.Listen(network, address)
	s.check(err)
	s.serveOn(listener)
	return listener.Addr().String()
}

const (
	plainLead = `{"type":"newsletter","email":"one@example.com"}`
	leadHead  = "POST /v1/widget/leads HTTP/1.1\nHost: x\nContent-Type: application/json\n"
	aliveHead = "GET /livez HTTP/1.1\nHost: x\n"
)

var (
	leadSize    = fmt.Sprint("Content-Length: ", len(plainLead), "\n")
	leadChunks  = fmt.Sprintf("%x\n%s\n0\n\n", len(plainLead), plainLead)
	chunkedHead = leadHead + "Transfer-Encoding: chunked\n\n"
)

// rawRequests are what a client can send by hand and where our code, or the options that we give to net/http,
// decide the answer. Each is followed by one more request, which asks to be the last. The answers are given as
// their statuses, so that a connection which was closed shows one less; the code is of the first one, where that
// is ours. They are made when they are asked for, since each program that tests start is this one.
func rawRequests() []struct{ name, request, answers, code string } {
	smuggled := leadHead + "Content-Length: 53\n\n" + `{"type":"newsletter","email":"smuggled@example.com"}` + " "
	length := len(smuggled) + strings.Count(smuggled, "\n") // with both characters of each line's end
	return []struct{ name, request, answers, code string }{
		// Two lengths, or one that is hard to tell: the connection ends, so that nobody's
		// idea of where the next request begins counts.
		{"a length and chunks", leadHead + "Content-Length: 4\nTransfer-Encoding: chunked\n\n" + leadChunks, "200", ""},
		{"chunks alone", chunkedHead + leadChunks, "200", ""},
		{"a chunk that is too short", chunkedHead + "4\n" + plainLead + "\n0\n\n", "400", "malformed_json"},
		{"chunked in HTTP/1.0, which has none", strings.Replace(leadHead, "1.1", "1.0", 1) +
			"Connection: keep-alive\nTransfer-Encoding: chunked\n\n", "400", "malformed_json"},
		{"HTTP/1.0 that wants to go on", "GET /livez HTTP/1.0\nConnection: keep-alive\n\n", "200", ""},
		{"a length that is too short", leadHead + "Content-Length: 4\n\n" + plainLead, "400 400", "malformed_json"},
		// A proxy in front may read another length: no request inside of a body is answered.
		{"a request in a body of a GET", aliveHead + fmt.Sprintf("Content-Length: %d\n\n", length) + smuggled,
			"200 200", ""},
		{"a request in a chunk", chunkedHead + fmt.Sprintf("%x\n%s\n0\n\n", length, smuggled), "400", "malformed_json"},
		{"a request in a refused body", leadHead + "Content-Length: 20000\n\n" + smuggled +
			strings.Repeat(" ", 20000-length), "413", "body_too_large"},
		{"a request behind a coding that is not known", leadHead + "Transfer-Encoding: xchunked\n\n" + smuggled,
			"501", ""},

		// Targets and methods that the mux would answer in words of its own.
		{"an absolute target", "GET http://other.example/v1/widget/lead HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
		{"CONNECT", "CONNECT x:80 HTTP/1.1\nHost: x:80\n\n", "404 200", "not_found"},
		{"OPTIONS of an asterisk", "OPTIONS * HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
		{"//", "GET //livez HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
		{"..", "GET /v1/../livez HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
		{"%2f", "GET /v1%2fwidget/health HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
		{"TRACE", "TRACE /livez HTTP/1.1\nHost: x\nCookie: secret\n\n", "405 200", "method_not_allowed"},
		{"an unknown method", "FROB /livez HTTP/1.1\nHost: x\n\n", "405 200", "method_not_allowed"},

		// Sizes.
		{"Expect with a small body", leadHead + leadSize + "Expect: 100-continue\n\n" + plainLead, "100 200 200", ""},
		{"Expect with a large body", leadHead + "Content-Length: 400000\nExpect: 100-continue\n\n",
			"413", "body_too_large"},
		{"a body of 16 KiB and a byte", leadHead + "Content-Length: 16385\n\n" + strings.Repeat(" ", 16385),
			"413", "body_too_large"},
		{"a large body in chunks", chunkedHead + "8000\n" + strings.Repeat(" ", 0x8000) + "\n0\n\n",
			"413", "body_too_large"},
		{"a large body of another type", leadHead[:len(leadHead)-5] + "xml\nContent-Length: 400000\n\n" +
			strings.Repeat(" ", 400000), "415", "unsupported_media_type"},
		{"a header of 16 KiB", aliveHead + "X-Y: " + strings.Repeat("a", 16<<10) + "\n\n", "200 200", ""},
		{"a header of 24 KiB", aliveHead + "X-Y: " + strings.Repeat("a", 24<<10) + "\n\n", "431", ""},
		{"a path of 15 KiB", "GET /" + strings.Repeat("a", 15<<10) + " HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
	}
}

var (
	answerLine    = regexp.MustCompile(`HTTP/1\.[01] (\d{3})`)
	codeInProblem = regexp.MustCompile(`"code":"(\w+)"`)
)

func TestConnection_ofEveryShapeOfARequestHasOneAnswerOrEnds(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	addr := s.listening()
	const last = "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	for _, c := range rawRequests() {
		t.Run(c.name, func(t *testing.T) {
			back := exchange(t, addr, strings.ReplaceAll(c.request, "\n", "\r\n")+last)
			var statuses []string
			for _, line := range answerLine.FindAllStringSubmatch(back, -1) {
				statuses = append(statuses, line[1])
			}
			code := ""
			if found := codeInProblem.FindStringSubmatch(back); found != nil {
				code = found[1]
			}
			if got := strings.Join(statuses, " "); got != c.answers || code != c.code {
				t.Errorf("answers %s %s, want %s %s\n%.2000s", got, code, c.answers, c.code, back)
			}
			if strings.Contains(back, "secret") {
				t.Errorf("the request comes back: %s", back)
			}
		})
	}
	if n := s.count(`SELECT count(*) FROM leads WHERE email <> 'one@example.com'`); n > 0 {
		t.Errorf("%d leads that nobody sent", n)
	}
}

// tooSlow are clients that take longer than they may, and when the service closes their
// connections, counted from when these were opened.
var tooSlow = []struct {
	name  string
	speak func(net.Conn) error // returns once the connection is closed
	after time.Duration
}{
	{"not a byte", untilClosed, headerTimeout},
	{"a header without an end", func(conn net.Conn) error {
		io.WriteString(conn, "POST /v1/widget/leads HTTP/1.1\r\nHost: x\r\nX-Slow: ")
		return untilClosed(conn)
	}, headerTimeout},
	{"a header of a byte a second", func(conn net.Conn) error {
		io.WriteString(conn, "POST /v1/widget/leads HTTP/1.1\r\nHost: x\r\nX-Slow: ")
		return drip(conn)
	}, headerTimeout},
	{"a body of a byte a second", func(conn net.Conn) error {
		io.WriteString(conn, strings.ReplaceAll(leadHead+"Content-Length: 1000\n\n", "\n", "\r\n")+"{")
		return drip(conn)
	}, readTimeout},
	{"an answer that is not read", neverRead, writeTimeout},
	{"nothing after an answer", func(conn net.Conn) error {
		io.WriteString(conn, strings.ReplaceAll(aliveHead+"\n", "\n", "\r\n"))
		return untilClosed(conn)
	}, idleTimeout},
}

func TestConnection_ofASlowClientIsClosedAfterTheTimeThatEachPartMayTake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		l := newPipeListener()
		stop, ended := s.serveOn(l)
		var clients sync.WaitGroup
		for _, c := range tooSlow {
			client, served := net.Pipe()
			l.conns <- served
			began := time.Now()
			client.SetDeadline(began.Add(c.after + time.Minute))
			clients.Go(func() {
				defer client.Close()
				err := c.speak(client)
				open := time.Since(began)
				if err != nil || open < c.after || open > c.after+time.Second { // net/http lingers for half a second
					t.Errorf("%s: closed after %v (%v), want %v", c.name, open, err, c.after)
				}
			})
		}
		clients.Wait()
		stop()
		ended()
	})
}

// untilClosed reads to the end.
func untilClosed(conn net.Conn) error {
	_, err := io.Copy(io.Discard, conn)
	if errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	return err
}

// drip sends a byte a second until the other side has closed.
func drip(conn net.Conn) error {
	var answered, silent error
	closed := make(chan struct{})
	go func() {
		answered = untilClosed(conn)
		close(closed)
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for silent == nil {
		select {
		case <-closed:
			return answered
		case <-tick.C:
			_, silent = io.WriteString(conn, " ")
		}
	}
	<-closed
	return answered
}

// neverRead asks for more answers than the buffers between hold, and takes none.
func neverRead(conn net.Conn) error {
	asked := strings.Repeat("GET /.well-known/jwks.json HTTP/1.1\r\nHost: x\r\n\r\n", 1000)
	for {
		_, err := io.WriteString(conn, asked)
		switch {
		case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.ErrClosedPipe):
			return nil
		case err != nil:
			return err
		}
	}
}
