package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// Against a slip of the hand with the key file of a running service that would end every token, lease and secret:
// health warns and the log says so while the service goes on with the keys in memory; where the database has issued
// anything, no text says to make other keys, and init refuses to without -new-keys.
func TestKeyring_thatGoesMissingIsToldOfAndNotWritten(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		file := s.keyFile()
		s.beside(func(ctx context.Context) { s.server.pollFiles(ctx, file) })
		time.Sleep(betweenTicks)
		whole, auth := fileText(t, file), s.auth(s.account, scopeLeads)
		for range 2 {
			s.check(os.Remove(file))
			time.Sleep(10 * time.Second)
			if names := strings.Join(dirNames(t, s.dir), " "); strings.Contains(names, ".key") {
				t.Errorf("files: %s", names)
			}
			s.health().is(200).members("status", "warn", "output", faultKeyFile)
			s.get("/leads", auth).is(200)
			s.check(os.WriteFile(file, []byte(whole), 0o600))
			time.Sleep(3 * time.Second)
			s.health().is(200).members("status", "pass")
		}
		contains(t, s.log.String(), faultKeyFile, "restore it from your copy")
		lacks(t, s.log.String(), "widgetd init")
	})
}

// sealedColumn finds a column of a table that holds something sealed.
var sealedColumn = regexp.MustCompile(`(?m)^  \w+ +BLOB\b.*\bsealed\b`)

func TestInit_makesNoKeysWhereTheDatabaseHasIssuedSomething(t *testing.T) {
	manyCommandsUnderRace(t)
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
	for n, table := range slices.Sorted(maps.Keys(tables)) {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			o := newOperator(t)
			o.store(func(s *store) { addAnyRow(t, s, table) })
			key := o.env["WIDGETD_KEY"]
			must(t, os.Remove(key))
			err := o.fails("restore it from your copy", "init")
			lacks(t, fmt.Sprint(err), "init")
			for i, args := range [][]string{{"serve", "-addr", "127.0.0.1:0"}, {"key", "list"}, {"key", "add"},
				{"token", "issue", "-scope", scopeLeads, "-account", o.account}} {
				if i != n%4 && !inFull() {
					continue
				}
				lacks(t, fmt.Sprint(o.fails("restore it from your copy", args...)), "init")
			}
			if n%2 == 0 || inFull() {
				status := o.do("status", "-json")
				contains(t, status, "the key file can't be used: no key file at "+key+": restore it from your copy")
				lacks(t, status, "init")
			}
			if n%2 == 1 || inFull() {
				check, _ := o.try("check")
				contains(t, check, "restore it from your copy")
				lacks(t, check, "init")
			}
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
	o.close()
	raw(t, o.env["WIDGETD_DB"], `PRAGMA user_version = 8`)
	lacks(t, fmt.Sprint(o.fails("run 'widgetd upgrade'", "init")), "widgetd init")
	lacks(t, fmt.Sprint(o.fails("restore it from your copy", "serve", "-addr", "127.0.0.1:0")), "widgetd init")
	if _, err := os.Lstat(key); err == nil {
		t.Error("a key file was made")
	}
	contains(t, o.do("init", "-new-keys"), key+": created")
	// Without a database there is nothing that could have been issued.
	o.fails("run 'widgetd init' first", "serve", "-addr", "127.0.0.1:0", "-db", key+".db", "-key", key+"2")
}
