package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// restoreKills are the system calls that a restore is killed at instead of making them: the first one on a file of the
// database's directory.
var restoreKills = []struct{ calls, file string }{
	{"mkdir,mkdirat", "widgetd.proof"}, {"write,pwrite64", "widgetd.proof/copy.db"},
	{"link,linkat", "widgetd.db-wal"}, {"link,linkat", "widgetd.db-identity"},
	{"rename,renameat,renameat2", "widgetd.db"}, {"unlink,unlinkat", "widgetd.db-wal"},
	{"unlink,unlinkat", "widgetd.db-identity"},
	{"rename,renameat,renameat2", "widgetd.proof/copy.db"}, {"unlink,unlinkat", "widgetd.proof"},
}

func TestRestore_killedAtAnyStepLeavesOneOfBothWholeAndNamedAndASecondOneFinishes(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "strace")
	o := newOperator(t)
	o.keepCopy("copy.db")
	o.addLeads("ada@example.com")
	o.close()
	killed := onlyInTheLog(t, o.env["WIDGETD_DB"], `UPDATE accounts SET name = 'in the log'`)
	copied := fileBytes(t, filepath.Join(o.dir, "backup", "copy.db"))
	writeFile(t, filepath.Join(filepath.Dir(killed), "copy.db"), copied)
	writeFile(t, filepath.Join(filepath.Dir(killed), "widgetd.key"), fileBytes(t, o.env["WIDGETD_KEY"]))
	writeFile(t, identityPath(killed), identityOf(t, filepath.Join(copyFiles(t, filepath.Dir(killed)), "widgetd.db")))
	before, after := wholeContent(t, killed), contentOf(t, filepath.Join(o.dir, "backup", "copy.db"), nil)
	states := map[string]int{}
	for i, k := range restoreKills {
		if i%3 > 0 && !inFull() {
			continue
		}
		dir := copyFiles(t, filepath.Dir(killed))
		must(t, os.Chmod(dir, 0o700))
		db := filepath.Join(dir, "widgetd.db")
		restore := []string{builtProgram(t), "restore", filepath.Join(dir, "copy.db"), "-force", "-db", db, "-key",
			filepath.Join(dir, "widgetd.key")}
		cmd := exec.Command("strace", append([]string{"-f", "-o", os.DevNull, "-P", filepath.Join(dir, k.file), "-e",
			"trace=" + k.calls, "-e", "inject=" + k.calls + ":signal=SIGKILL:when=1"}, restore...)...)
		what := "killed at " + k.calls + " of " + k.file
		if out, err := cmd.CombinedOutput(); err == nil || cmd.ProcessState.ExitCode() > 0 {
			t.Fatalf("%s: %v %s", what, err, out)
		}
		aside := movedAsideOf(db)
		switch {
		case len(aside) == 0:
			states["before"]++
			sameContent(t, what+", in place", wholeContent(t, db), before)
		case fileExists(db):
			states["after"]++
			sameContent(t, what+", in place", wholeContent(t, db), after)
		default:
			states["between"]++
			out, err := exec.Command(builtProgram(t), "check", "-db", db).CombinedOutput()
			failIf(t, err == nil, "%s", what)
			contains(t, string(out), "run 'widgetd restore': what was there is "+aside[0])
		}
		if out, err := exec.Command(restore[0], restore[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s, and once more: %v %s", what, err, out)
		}
		sameContent(t, what+", and once more", contentOf(t, db, nil), after)
		if left := dirNames(t, dir); fileExists(proofPath(db, "")) || fileSize(db+"-wal") > 0 {
			t.Errorf("%s: %q are left", what, left)
		}
		if len(aside) == 0 {
			aside = movedAsideOf(db)
		}
		sameContent(t, what+", aside", wholeContent(t, aside[0]), before)
	}
	t.Logf("killed: %v", states)
	if inFull() && (states["before"] < 4 || states["between"] < 3 || states["after"] < 1) {
		t.Error("that is not every moment")
	}
}

func TestRestore_withoutRoomLeavesTheDatabaseAsItWas_disk(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, 4<<20)
	o := operatorIn(t, dir)
	file := filepath.Join(t.TempDir(), "copy.db")
	must(t, os.Chmod(filepath.Dir(file), 0o700))
	o.do("backup", file)
	o.addLeads("ada@example.com")
	filler := filepath.Join(dir, "filler")
	fillDisk(t, filler)
	before, refusals := directory(t, dir), 0
	for {
		_, err := o.try("restore", file, "-force")
		if err == nil {
			break
		}
		contains(t, err.Error(), file+" can't be restored: ")
		failIf(t, !matches("no space left on device|disk is full", err.Error()), "%v", err)
		for name, text := range directory(t, dir) {
			failIf(t, name != "filler" && text != before[name], "%s was changed, or left", name)
		}
		refusals++
		must(t, os.Truncate(filler, fileSize(filler)-int64(size(400, 40))<<10))
	}
	equal(t, "put aside", len(o.aside()), 1)
	contains(t, o.do("check"), "ok: ")
	if refusals < 2 {
		t.Errorf("%d refusals", refusals)
	}
}
