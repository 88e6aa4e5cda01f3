package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// keepCopy writes a backup where the unit has them.
func (o *operator) keepCopy(name string) (file string) {
	o.t.Helper()
	dir := filepath.Join(o.dir, "backup")
	must(o.t, errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)))
	file = filepath.Join(dir, name)
	o.do("backup", file)
	return file
}

// typing runs a command on a terminal, on which somebody types lines. noted is what it asks.
func (o *operator) typing(args []string, lines ...string) (out, noted string, err error) {
	o.t.Helper()
	o.close()
	var stdout, stderr strings.Builder
	var typed []io.Reader
	for _, line := range lines {
		typed = append(typed, strings.NewReader(line+"\n"))
	}
	e := newEnv(o.t.Context(), func(name string) string { return o.env[name] }, &stdout, &stderr)
	e.stdin, e.canAsk = io.MultiReader(typed...), true
	err = e.dispatch(args)
	noteCommand(args, err)
	return stdout.String(), stderr.String(), err
}

// identityOf returns the identity of a database.
func identityOf(t testing.TB, db string) (identity string) {
	t.Helper()
	must(t, readFile(db, func(q *queries) error { return q.one(`SELECT identity FROM epoch`, nil, &identity) }))
	return identity
}

// wholeContent is contentOf for a copy of a database's directory, since looking may empty the log.
func wholeContent(t testing.TB, db string) content {
	t.Helper()
	return contentOf(t, filepath.Join(copyFiles(t, filepath.Dir(db)), filepath.Base(db)), nil)
}

// aside are the databases that restoring has moved aside.
func (o *operator) aside() []string { return movedAsideOf(o.env["WIDGETD_DB"]) }

func TestRestore_putsTheCopyOfANumberInPlaceAndKeepsWhatWasThereWithItsLog(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	db := o.env["WIDGETD_DB"]
	older := o.keepCopy("20260131T031500Z.db")
	o.addLeads("ada@example.com", "eve@example.com")
	newer := o.keepCopy("20260101T031500Z.db") // a name says nothing
	o.do("license", "add", "-account", o.account, "-product", "kds")
	o.close()
	killed := onlyInTheLog(t, db, `UPDATE accounts SET name = 'in the log'`)
	for _, suffix := range []string{"", "-wal", "-shm"} {
		rename(t, killed+suffix, db+suffix)
	}
	must(t, os.Chmod(db, 0o640))
	writeFile(t, identityPath(db), identityOf(t, filepath.Join(copyFiles(t, o.dir), "widgetd.db")))
	must(t, os.Mkdir(litestreamPath(db), 0o700))
	before := wholeContent(t, db)
	unread := func() map[string]string { // reading a log makes its index anew
		files := directory(t, o.dir)
		delete(files, "widgetd.db-shm")
		return files
	}
	files := unread()

	out, err := o.try("restore")
	failIf(t, !errors.As(err, new(usageError)) || !strings.Contains(err.Error(), "name one of these files"), "%v", err)
	if !regexp.MustCompile(`^N .*\n1 +` + newer + ` .* KiB +13\n2 +` + older + ` .*\n$`).MatchString(out) {
		t.Errorf("the list: %s", out)
	}
	for _, typed := range [][]string{{"3"}, {""}, {"1", "no"}, {"2", ""}} {
		_, _, err := o.typing([]string{"restore"}, typed...)
		failIf(t, err == nil || !strings.Contains(err.Error(), "nothing was changed"), "%q: %v", typed, err)
	}
	if !maps.Equal(unread(), files) {
		t.Errorf("a file was changed: %q", dirNames(t, o.dir))
	}
	out, noted, err := o.typing([]string{"restore"}, "2", "yes")
	must(t, err)
	contains(t, noted, "This puts "+older+", whose last event is of ", " in the place of "+db,
		"lost by it: 2 leads, 1 licence, 4 events.\nType yes to go on: ")
	contains(t, out, "'widgetd clock accept'", "'sudo systemctl start widgetd.socket widgetd.service'")
	sameContent(t, "restored", contentOf(t, db, nil), contentOf(t, older, nil))
	hasMode(t, db, 0o640)
	if id := identityOf(t, db); id == identityOf(t, older) || id == files["widgetd.db-identity"] {
		t.Error("it has the identity of another file")
	}
	aside := o.aside()
	equal(t, "put aside", len(aside), 1)
	equal(t, "what is there", dirNames(t, o.dir), []string{"backup", filepath.Base(filepath.Dir(aside[0])),
		"widgetd.db", "widgetd.key"})
	equal(t, "what is aside", dirNames(t, filepath.Dir(aside[0])), []string{".widgetd.db-litestream", "widgetd.db",
		"widgetd.db-identity", "widgetd.db-shm", "widgetd.db-wal"})
	sameContent(t, "aside", wholeContent(t, aside[0]), before)

	// And back, on the same day. Copies come before what was put aside, though that is newer.
	if out, _ = o.try("restore", "-json"); jsonLines(t, out)[2]["kind"] != copyAside {
		t.Errorf("the list: %s", out)
	}
	back := o.object("restore", aside[0], "-force")
	sameContent(t, "back again", contentOf(t, db, nil), before)
	sameContent(t, "still aside", wholeContent(t, aside[0]), before)
	equal(t, "lost", back["lost"], any(map[string]any{"leads": 0., "orders": 0., "licenses": 0., "events": 0.}))
	equal(t, "put aside", len(o.aside()), 2)
	isSound(t, db)
	check, _ := o.try("check")
	contains(t, check, "note: "+aside[0]+" (", "was put aside by a restore: remove its directory")
	contains(t, o.do("status"), "remove what a restore has put aside, once you miss nothing of it: ", aside[0])
	contains(t, o.do("lead", "erase", "ada@example.com"), "a restore still hold it, so remove them: ", aside[0])
}

func TestRestore_refusesWhatIsNoSoundCopyAndChangesNothing(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	o.close()
	bad := append(slices.Clone(badFiles),
		badFile{"damaged", func(t testing.TB, path string) { damage(t, path, 8192, make([]byte, 4096)...) }, ""},
		badFile{"no release's", bySQL("PRAGMA user_version = 7"), ""},
		badFile{"of the first version by name only", bySQL("PRAGMA user_version = 1"), ""},
		badFile{"followed", func(t testing.TB, path string) { writeFile(t, followerPath(path), "9") }, ""},
		badFile{"without its log", func(t testing.TB, path string) { writeFile(t, path+"-shm", "") }, ""})
	for _, bad := range bad {
		file := filepath.Join(o.dir, "copies", "copy.db")
		must(t, os.MkdirAll(filepath.Dir(file), 0o700))
		writeFile(t, file, fileBytes(t, o.env["WIDGETD_DB"]))
		bad.make(t, file)
		before, copied := directory(t, o.dir), directory(t, filepath.Dir(file))
		t.Logf("%s: %v", bad.name, o.fails(file+" can't be restored: ", "restore", file, "-force"))
		if !maps.Equal(directory(t, o.dir), before) || !maps.Equal(directory(t, filepath.Dir(file)), copied) {
			t.Errorf("%s: a file was changed: %q", bad.name, dirNames(t, o.dir))
		}
		must(t, os.RemoveAll(filepath.Dir(file)))
	}
	o.fails("is the database itself", "restore", o.env["WIDGETD_DB"])
	must(t, os.Symlink(o.env["WIDGETD_DB"], filepath.Join(o.dir, "link")))
	o.fails("is the database itself", "restore", filepath.Join(o.dir, "link"))
}

// A copy that an upgrade has written, to go back to the program before, has no identity.
func TestRestore_ofACopyOfAnOlderSchemaLeavesNoMarkAndSaysUpgrade(t *testing.T) {
	t.Parallel()
	for _, version := range []int{1, 8} {
		o := anOperatorOf(t, version)
		o.do("upgrade")
		o.store(func(st *store) { o.account, _ = st.mainAccount() })
		o.addLeads("ada@example.com")
		o.close()
		db := o.env["WIDGETD_DB"]
		file := upgradeCopies(db)[0]
		writeFile(t, identityPath(db), identityOf(t, db))
		writeFile(t, file+".new", "a draft")
		out, _ := o.try("restore")
		contains(t, out, file+" ", copyOfUpgrade)
		lacks(t, out, "draft", ".new")
		out = o.do("restore", file)
		contains(t, o.noted, "Later than that, and lost by it: 1 lead, 1 event; -force leaves out this line")
		contains(t, out, fmt.Sprintf("its schema has version %d: 'widgetd upgrade'", version))
		failIf(t, fileExists(identityPath(db)), "the mark of the file before is left")
		sameContent(t, "restored", contentOf(t, db, nil), contentOf(t, file, nil))
	}
}

func TestRestore_goesOnWhereTheDatabaseIsDamagedOrGone(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.addLeads("ada@example.com")
	db, file := o.env["WIDGETD_DB"], o.keepCopy("20260131T031500Z.db")
	o.close()
	for _, bad := range unusableFiles {
		bad.make(t, db)
		out := o.do("restore", file)
		switch bad.name {
		case "missing":
			contains(t, o.noted, "There is no database now")
			contains(t, out, "nothing was there")
		case "empty", "another program's": // in which nothing is lost
			contains(t, o.noted, "lost by it: no row; ")
		default:
			contains(t, o.noted, "What is lost by that is not known, since the present file can't be read: ")
		}
		contains(t, o.do("check"), "ok: ")
		o.close()
	}
	// The log of one that somebody has taken away is kept.
	must(t, os.Remove(db))
	writeFile(t, db+"-wal", "what was written last")
	o.fails("no database at "+db+": run 'widgetd restore': what was there is "+o.aside()[0], "serve", "-addr",
		"127.0.0.1:0")
	before := dirNames(t, o.dir)
	o.do("restore", file)
	for _, name := range dirNames(t, o.dir) {
		if !slices.Contains(before, name) && name != "widgetd.db" {
			equal(t, "the log", directory(t, filepath.Join(o.dir, name)),
				map[string]string{"widgetd.db-wal": "what was written last"})
		}
	}
	contains(t, o.do("check"), "ok: ")
}

func TestRestore_saysWhatIsNext(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	file := o.keepCopy("20260131T031500Z.db")
	must(t, writeEpochFile(epochPath(o.env["WIDGETD_DB"]), epoch{Number: 2, Name: "a"}))
	must(t, os.Remove(o.env["WIDGETD_KEY"]))
	contains(t, o.do("restore", file), "no key file at "+o.env["WIDGETD_KEY"]+": restore it from your copy",
		"of a pair: 'widgetd promote'")
	o.replaceKeyFile()
	raw(t, file, `INSERT INTO events (id, at, type, account_id, actor, data)
		SELECT 'evt_1', created_at, 'key.retired', id, 'command', '{"kid":"kid-1"}' FROM accounts LIMIT 1`)
	lacks(t, o.do("restore", file), "no key file")
	// A copy of another database, though it is later, loses everything.
	other := operatorIn(t, t.TempDir())
	other.do("license", "add", "-account", other.account, "-product", "kds")
	o.do("license", "add", "-account", o.account, "-product", "kds")
	o.do("restore", other.keepCopy("other.db"))
	contains(t, o.noted, "is another database, whose copy it is not, by its main account. Lost with it: 1 licence, ")
}

func TestRestore_isRefusedWhileAnybodyHasTheDatabaseOpen(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	file := o.keepCopy("20260131T031500Z.db")
	o.close()
	before := directory(t, o.dir)
	untilAlone()
	end := leaveOpen(t, o.env["WIDGETD_DB"])
	o.fails("another program has "+o.env["WIDGETD_DB"]+" open: stop it", "restore", file)
	end()
	if after := directory(t, o.dir); after["widgetd.db"] != before["widgetd.db"] {
		t.Error("the database was changed")
	}
	p := serveProcess(t, o)
	o.fails("the service runs, or another program", "restore", file)
	// It has issued nothing, but goes on with keys of which there was a file.
	rename(t, o.env["WIDGETD_KEY"], o.env["WIDGETD_KEY"]+".away")
	contains(t, o.do("status"), "the key file can't be used: no key file at "+
		o.env["WIDGETD_KEY"]+": restore it from your copy")
	rename(t, o.env["WIDGETD_KEY"]+".away", o.env["WIDGETD_KEY"])
	p.stop(os.Kill)
	o.close()
	must(t, os.Rename(file, file+".read"))
	cmd := exec.Command(builtProgram(t), "restore", "-", "-db", o.env["WIDGETD_DB"], "-key", o.env["WIDGETD_KEY"])
	cmd.Stdin = bytes.NewReader(fileBytes(t, file+".read"))
	out, err := cmd.CombinedOutput()
	failIf(t, err != nil, "%v: %s", err, out)
	contains(t, o.do("check"), "ok: ")
}
