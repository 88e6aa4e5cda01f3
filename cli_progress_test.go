package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// tellingEnv returns an env whose standard error is one, of so many columns, and what it is sent.
func tellingEnv(columns string) (*env, *strings.Builder) {
	var sent strings.Builder
	e := &env{stderr: &sent, rewrites: true, now: time.Now, getenv: func(string) string { return columns }}
	return e, &sent
}

func TestProgress_tellsOnOneLineWhatLastsMoreThanTwoSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, sent := tellingEnv("")
		lines := func() []string { // since it was asked last
			synctest.Wait()
			if e.line != nil { // whose ticker writes
				e.line.mu.Lock()
				defer e.line.mu.Unlock()
			}
			all := strings.Split(sent.String(), clearLine)
			sent.Reset()
			return all[1:]
		}
		last := func() string { all := lines(); return all[len(all)-1] }
		p := e.progress("copying")
		time.Sleep(1900 * time.Millisecond)
		equal(t, "before two seconds", lines(), []string{})
		time.Sleep(time.Second)
		equal(t, "without a measure", last(), "copying: 2s")
		p.at(25, 100)
		time.Sleep(time.Second)
		equal(t, "of a hundred", last(), "copying: 25 %, 3s, about 11s left")
		e.note("a line between\n")
		equal(t, "a line between", lines(), []string{"a line between\n"})
		p.step("checking", "", 0)
		time.Sleep(1200 * time.Millisecond)
		equal(t, "the next step", last(), "checking: 1s")
		p.at(1234, 0)
		time.Sleep(1200 * time.Millisecond)
		equal(t, "of an unknown number", last(), "checking: 1234 rows, 2s")
		p.end()
		equal(t, "at the end", lines(), []string{""})
		p.end()
		time.Sleep(time.Minute)
		e.note("a line behind\n")
		equal(t, "behind the end", sent.String(), "a line behind\n")
	})
}

func TestProgress_tellsByTheSizeOfAFileThatGrows(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "copy.db")
	writeFile(t, file, strings.Repeat("x", 750))
	synctest.Test(t, func(t *testing.T) {
		e, sent := tellingEnv("30")
		p := e.progress("")
		p.step("copying the database", file, 1000)
		if inner := e.progress("inside"); inner != nil {
			t.Error("two tell at once")
		}
		time.Sleep(6100 * time.Millisecond)
		p.end()
		if line := strings.Split(sent.String(), clearLine)[3]; line != "copying the database: 75 %" {
			t.Errorf("%q", line)
		}
	})
}

func TestProgress_fitsItsLine(t *testing.T) {
	t.Parallel()
	for width, want := range map[int]string{
		0:  "copying the database: 50 %, 1m2s, about 1m2s left",
		44: "copying the database: 50 %, 1m2s",
		27: "copying the database: 50 %",
		25: "copying the database",
		10: "copying t…",
	} {
		equal(t, "a line", progressText("copying the database", 5, 10, 62*time.Second, width), want)
	}
	equal(t, "a name that would move the cursor", progressText("reading \x1b[2Ja\nb", 0, 0, time.Second, 0),
		"reading "+printable("\x1b[2Ja\nb")+": 1s")
	equal(t, "more than all", progressText("a", 11, 10, time.Second, 0), "a: 100 %, 1s")
	equal(t, "too little to tell", progressText("a", 1, 100, time.Hour, 0), "a: 1 %, 1h0m0s")
}

func TestProgress_needsATerminal(t *testing.T) {
	t.Parallel()
	var sent strings.Builder
	e := &env{stderr: &sent, now: time.Now, getenv: func(string) string { return "" }}
	p := e.progress("copying")
	p.step("checking", "", 0)
	p.at(1, 2)
	p.end()
	if p != nil || sent.Len() > 0 {
		t.Errorf("%q", sent.String())
	}
}

func TestProgress_isToldByWhatLasts(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.addLicense(license{})
	file := s.importFile("key", "IMPORTED-KEY-00000001")
	for line, want := range map[string]string{
		"check":                     "checking pages, indexes and keys, reading all rows",
		"backup " + s.dir + "/a.db": "copying the database, checking the copy",
		"backup " + s.dir + "/b.db -verify": "copying the database, checking the copy, restoring the copy, " +
			"checking what was restored",
		"license import " + file + " -product kds -account " + s.account: "reading " + file + ", importing",
		"license export": "exporting",
	} {
		began, looks := time.Now(), new(atomic.Int64)
		e, _, noted := s.envAt(false, strings.NewReader(""))
		e.rewrites = true
		e.now = func() time.Time { // each look at the clock is a step of three seconds
			return began.Add(time.Duration(looks.Add(1)) * 3 * time.Second)
		}
		if strings.HasSuffix(line, "export") {
			out, err := os.Create(filepath.Join(s.dir, "exported"))
			must(t, err)
			defer out.Close()
			e.stdout = out
		}
		must(t, e.dispatch(strings.Fields(line)))
		var steps []string
		for told := range strings.SplitSeq(noted.String(), clearLine) {
			step, _, _ := strings.Cut(told, ": ")
			if step != "" && !slices.Contains(steps, step) {
				steps = append(steps, step)
			}
		}
		equal(t, line, strings.Join(steps, ", "), want)
		if !strings.HasSuffix(noted.String(), clearLine) {
			t.Errorf("%s leaves %q", line, noted)
		}
	}
}
