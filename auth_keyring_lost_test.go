package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// followsKeys runs what loads the key file at a path and puts it back, until the test's end.
func (s *service) followsKeys(file string) {
	s.t.Helper()
	s.beside(func(ctx context.Context) { s.server.pollFiles(ctx, s.server.watchKeys(file)) })
	s.beside(s.server.runChores)
	time.Sleep(betweenTicks)
}

// putBacks is how often the log, and the events, tell that the key file was put back.
func (s *service) putBacks() (lines, events int) {
	s.t.Helper()
	events = s.count(`SELECT count(*) FROM events WHERE type = ?`, eventKeyPutBack)
	return len(s.logLines("was put back from memory")), events
}

func TestKeyring_isPutBackWhenItIsMissingWhileTheServiceRuns(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		file := s.keyFile()
		s.followsKeys(file)
		whole, names := fileText(t, file), dirNames(t, s.dir)
		auth := s.auth(s.account, scopeLeads)
		for times := 1; times <= 2; times++ {
			s.check(os.Remove(file))
			// as a kill between making the file and syncing it leaves behind
			s.check(os.WriteFile(filepath.Join(s.dir, draftOfKeys("widgetd.key")), []byte(whole[:100]), 0o600))
			time.Sleep(3 * time.Second)
			equal(t, "the key file", fileText(t, file), whole)
			hasMode(t, file, 0o600)
			equal(t, "files", dirNames(t, s.dir), names)
			lines, events := s.putBacks()
			sameText(t, "lines and events", fmt.Sprint(lines, events), fmt.Sprint(times, times))
			sameText(t, "health", s.health().is(200).json()["status"], "pass")
			s.get("/leads", auth).is(200)
		}
		s.counts(2, `SELECT count(*) FROM events WHERE type = ? AND actor = 'service' AND account_id = ?
			AND json_extract(data, '$.kid') = ?`, eventKeyPutBack, s.account, s.server.keys.Load().signer().kid)
		if lines := s.logLines("the key file"); len(lines) != 2 {
			t.Errorf("the log says more than that it was put back: %q", lines)
		}
	})
}

// Each change leaves no key file at its path, and the service must leave that so, or must not.
func TestKeyring_isPutBackOnlyWhereItWasReadFromAndAsItWasLast(t *testing.T) {
	t.Parallel()
	elsewhere := func(s *service) string { return filepath.Join(s.dir, "elsewhere") }
	for name, c := range map[string]struct {
		change func(s *service, file string) error
		why    string // "": it is put back
	}{
		"removed": {func(_ *service, file string) error { return os.Remove(file) }, ""},
		"in a directory that was replaced": {func(s *service, file string) error {
			dir := filepath.Dir(file)
			return errors.Join(os.Rename(dir, elsewhere(s)), os.Mkdir(dir, 0o700))
		}, "its directory is another one"},
		"in a directory that is a link to another now": {func(s *service, file string) error {
			dir := filepath.Dir(file)
			return errors.Join(os.Rename(dir, elsewhere(s)), os.Mkdir(dir+"2", 0o700), os.Symlink(dir+"2", dir))
		}, "its directory is another one"},
		"in a directory that was removed": {func(_ *service, file string) error {
			return os.RemoveAll(filepath.Dir(file))
		}, "no such file or directory"},
		"beside a database that was moved away": {func(s *service, file string) error {
			return errors.Join(os.Rename(s.store.path, elsewhere(s)), os.Remove(file))
		}, "is no longer the one that is open"},
		"beside a database that was replaced": {func(s *service, file string) error {
			return errors.Join(os.Rename(s.store.path, elsewhere(s)), os.WriteFile(s.store.path, nil, 0o600),
				os.Remove(file))
		}, "is no longer the one that is open"},
		"replaced by a link that leads nowhere": {func(s *service, file string) error {
			return errors.Join(os.Remove(file), os.Symlink(elsewhere(s), file))
		}, "over a symbolic link"},
		"changed to what others can read, and then removed": {func(s *service, file string) error {
			next := newRing(s.t, time.Now())
			err := errors.Join(next.save(file, true), os.Chmod(file, 0o644))
			poll()
			return errors.Join(err, os.Remove(file))
		}, "other users can read the key file"},
		"damaged, and then removed": {func(_ *service, file string) error {
			err := os.WriteFile(file, []byte("-----BEGIN"), 0o600)
			poll()
			return errors.Join(err, os.Remove(file))
		}, ""},
		"changed by a command, and removed before that was seen": {func(s *service, file string) error {
			s.must("key", "add", "-key", file)
			return os.Remove(file)
		}, "it was changed after it was read"},
		"changed by commands, and removed after that was seen": {func(s *service, file string) error {
			s.must("key", "add", "-key", file)
			poll()
			s.must("key", "rotate", "-force", "-key", file)
			poll()
			return os.Remove(file)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *service) {
				dir := filepath.Join(s.dir, "keys")
				file := filepath.Join(dir, "widgetd.key")
				s.check(errors.Join(os.Mkdir(dir, 0o700), os.Rename(s.keyFile(), file)))
				s.followsKeys(file)
				s.check(c.change(s, file))
				poll()
				var kids []string
				for _, key := range s.server.keys.Load().keys {
					kids = append(kids, key.kid)
				}
				time.Sleep(4 * time.Second)
				if c.why == "" {
					sameText(t, "keys", kidsIn(t, file), kids)
					return
				}
				if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("there is something at its path: %v", err)
				}
				if names := dirNames(t, s.dir); strings.Contains(fmt.Sprint(names), "unfinished") {
					t.Errorf("files: %q", names)
				}
				contains(t, s.log.String(), c.why)
				if !strings.Contains(c.why, "other users") { // else that is what the log says of the fault
					contains(t, s.log.String(), "restore it from your copy", "it is not put back from memory")
				}
				lacks(t, s.log.String(), "widgetd init", "was put back")
				if info, err := os.Stat(elsewhere(s)); err == nil && !info.IsDir() { // the database
					s.check(os.Rename(elsewhere(s), s.store.path))
					return
				}
				sameText(t, "health", s.health().is(200).json()["status"], "warn")
			})
		})
	}
}

// What is there stays as it is, whatever it holds.
func TestKeyring_thatWasChangedIsNotPutBack(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		s.followsKeys(s.keyFile())
		for _, text := range []string{"", "-----BEGIN"} {
			writeFile(t, s.keyFile(), text)
			time.Sleep(5 * time.Second)
			equal(t, "the key file", fileText(t, s.keyFile()), text)
		}
	})
}

func TestKeyring_ofTheProgramOutlivesItsFileAndAKill(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	p := serveProcess(t, o)
	whole := fileText(t, o.env["WIDGETD_KEY"])
	must(t, os.Remove(o.env["WIDGETD_KEY"]))
	for end := time.Now().Add(time.Minute); !fileExists(o.env["WIDGETD_KEY"]); {
		if time.Now().After(end) {
			t.Fatalf("it is not put back:\n%s", p.log.String())
		}
		<-time.After(time.Millisecond)
	}
	p.stop(os.Kill)
	equal(t, "the key file", fileText(t, o.env["WIDGETD_KEY"]), whole)
	p = serveProcess(t, o)
	o.customer(p).lead("ada@example.com")
	must(t, p.stop(syscall.SIGTERM))
}

// sealedColumn finds a column of a table that holds something sealed.
var sealedColumn = regexp.MustCompile(`(?m)^  \w+ +BLOB\b.*\bsealed\b`)

func TestInit_makesNoKeysWhereTheDatabaseHasIssuedSomething(t *testing.T) {
	t.Parallel()
	tables := map[string]bool{"tokens": true, "app_tokens": true, "devices": true, "webhooks": true}
	for _, statement := range strings.Split(schemaSQL(), "CREATE TABLE ")[1:] {
		name, body, _ := strings.Cut(statement, " ")
		body, _, _ = strings.Cut(body, ";\n")
		// A refresh token's successor is sealed under the token itself.
		if sealedColumn.MatchString(body) && name != "refresh_tokens" {
			tables[name] = true
		}
	}
	if len(tables) < 9 {
		t.Fatalf("the schema has sealed columns in %v only", tables)
	}
	for table := range tables {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			o := newOperator(t)
			o.store(func(s *store) { addAnyRow(t, s, table) })
			key := o.env["WIDGETD_KEY"]
			must(t, os.Remove(key))
			err := o.fails("restore it from your copy", "init")
			lacks(t, fmt.Sprint(err), "init")
			for _, args := range [][]string{{"serve", "-addr", "127.0.0.1:0"}, {"key", "list"}, {"key", "add"},
				{"token", "issue", "-scope", scopeLeads, "-account", o.account}} {
				lacks(t, fmt.Sprint(o.fails("restore it from your copy", args...)), "init")
			}
			status := o.do("status", "-json")
			contains(t, status, "key: no key file at "+key+": restore it from your copy")
			lacks(t, status, "init")
			check, _ := o.try("check")
			contains(t, check, "restore it from your copy")
			lacks(t, check, "init")
			if _, err := os.Lstat(key); err == nil {
				t.Error("a key file was made")
			}
			o.do("init", "-new-keys")
			hasMode(t, key, 0o600)
		})
	}
}

// addAnyRow adds a row to a table, whatever its rules are.
func addAnyRow(t *testing.T, s *store, table string) {
	t.Helper()
	var names, values []string
	const columns = `SELECT name, coalesce(dflt_value, CASE type WHEN 'TEXT' THEN quote('x')
		WHEN 'BLOB' THEN quote(x'00') ELSE '1' END) FROM pragma_table_info(?)`
	must(t, s.each(columns, []any{table}, func(scan func(...any) error) error {
		var name, value string
		err := scan(&name, &value)
		names = append(names, name)
		if strings.HasSuffix(name, "_at") || strings.HasSuffix(name, "_since") {
			value = "'2026-01-01T00:00:00Z'"
		}
		values = append(values, value)
		return err
	}))
	raw(t, s.path, `PRAGMA ignore_check_constraints = 1; PRAGMA foreign_keys = 0; INSERT INTO `+table+
		` (`+strings.Join(names, ", ")+`) VALUES (`+strings.Join(values, ", ")+`)`)
}

func TestInit_makesKeysWhereNothingWasIssuedOrTheyAreAskedFor(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	key := o.env["WIDGETD_KEY"]
	o.addLeads("ada@example.com") // which needs no keys
	before := fileText(t, key)
	must(t, os.Remove(key))
	o.fails("run 'widgetd init' first", "serve", "-addr", "127.0.0.1:0")
	contains(t, o.do("status", "-json"), "run 'widgetd init' first")
	contains(t, o.do("init"), key+": created")
	if fileText(t, key) == before {
		t.Error("the keys are the same")
	}
	after := fileText(t, key)
	o.fails("exist already, and init never changes them", "init", "-new-keys")
	equal(t, "the key file after -new-keys beside one", fileText(t, key), after)
	// A database that can't be asked may have issued anything.
	must(t, os.Remove(key))
	raw(t, o.env["WIDGETD_DB"], `PRAGMA user_version = 6`)
	lacks(t, fmt.Sprint(o.fails("run 'widgetd upgrade'", "init")), "widgetd init")
	lacks(t, fmt.Sprint(o.fails("restore it from your copy", "serve", "-addr", "127.0.0.1:0")), "widgetd init")
	if _, err := os.Lstat(key); err == nil {
		t.Error("a key file was made")
	}
	contains(t, o.do("init", "-new-keys"), key+": created")
	// Without a database there is nothing that could have been issued.
	o.fails("run 'widgetd init' first", "serve", "-addr", "127.0.0.1:0", "-db", key+".db", "-key", key+"2")
}
