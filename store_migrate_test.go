package main

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// writeDump writes testdata/vN.sql for the present version from schema.sql, with the
// rows of the present one, or where there is none with those of the last release:
//
//	go test -run TestUpgrade_ofEveryDump -write-dump
//
// What the new version added gets its rows by hand. Once it is released it stays as it is.
var writeDump = flag.Bool("write-dump", false, "write testdata/vN.sql for the present version of the schema")

func dumpName(version int) string { return fmt.Sprintf("testdata/v%d.sql", version) }

// dumpedVersions are those of the releases, and the present one.
var dumpedVersions = append(slices.Sorted(maps.Keys(releasedSchemas)), schemaVersion)

// A madeFile is a database that is made once, of which every test gets a copy.
type madeFile struct {
	once    sync.Once
	content []byte
}

// copied returns the path of a new copy. The first test that asks for one makes the file.
func (f *madeFile) copied(t testing.TB, make func(path string)) (path string) {
	t.Helper()
	f.once.Do(func() {
		path := filepath.Join(t.TempDir(), "widgetd.db")
		make(path)
		f.content = fileBytes(t, path)
	})
	path = filepath.Join(t.TempDir(), "widgetd.db")
	writeFile(t, path, f.content)
	return path
}

// dumped are the databases that are made from the dumps, by version, and dumpedUpgraded what upgrades make of them.
var dumped, dumpedUpgraded [schemaVersion + 1]madeFile

// oldDatabase makes a database from the dump of a version, in WAL mode and closed, as a service leaves it.
func oldDatabase(t testing.TB, version int) (path string) {
	t.Helper()
	return dumped[version].copied(t, func(path string) {
		raw(t, path, string(fileBytes(t, dumpName(version)))+";PRAGMA journal_mode = WAL")
	})
}

// upgradedDatabase makes a database from the dump of a version and an upgrade.
func upgradedDatabase(t testing.TB, version int) (path string) {
	t.Helper()
	return dumpedUpgraded[version].copied(t, func(path string) {
		writeFile(t, path, fileBytes(t, oldDatabase(t, version)))
		upgraded(t, path, upgradeOptions{noCopy: true})
	})
}

// A content is all that a database holds.
type content struct {
	version, application int
	schema               map[string]string
	columns              map[string][]string // of each table
	rows                 map[string][]string // of each table, in order, as SQL writes values
}

// contentOf reads a database of any version; where columns has tables, those columns of those tables only.
func contentOf(t testing.TB, path string, columns map[string][]string) content {
	t.Helper()
	c, err := readContent(path, columns)
	must(t, err)
	return c
}

// readContent is contentOf for a file that may be damaged.
func readContent(path string, columns map[string][]string) (c content, err error) {
	c.rows, c.columns = map[string][]string{}, map[string][]string{"sqlite_sequence": {"name", "seq"}}
	err = readFile(path, func(q *queries) (err error) {
		if c.schema, err = schemaOf(q); err != nil {
			return err
		}
		for name := range c.schema {
			if table, found := strings.CutPrefix(name, "table "); found && err == nil {
				c.columns[table], err = q.texts(`SELECT name FROM pragma_table_info(?1) WHERE ?1 <> 'epoch'
					OR name NOT IN ('identity', 'began_at')`, table) // which no two files have alike
			}
		}
		if err != nil {
			return err
		}
		if columns == nil {
			columns = c.columns
		}
		for table, names := range columns {
			if c.rows[table], err = valuesOf(q, table, names); err != nil {
				return err
			}
		}
		err = q.one(`PRAGMA user_version`, nil, &c.version)
		return errors.Join(err, q.one(`PRAGMA application_id`, nil, &c.application))
	})
	return c, err
}

// valuesOf returns the rows of a table as SQL writes them in VALUES.
func valuesOf(q *queries, table string, columns []string) ([]string, error) {
	values, order := strings.Join(columns, `) || ', ' || quote(`), strings.Join(columns, ", ")
	return collect(q, `SELECT quote(`+values+`) FROM `+table+` ORDER BY `+order, nil,
		func(row *string) []any { return []any{row} })
}

// same complains about what differs in two contents.
func sameContent(t testing.TB, what string, got, want content) {
	t.Helper()
	if got.version != want.version || got.application != want.application {
		t.Errorf("%s: version %d of application %d, want %d of %d", what,
			got.version, got.application, want.version, want.application)
	}
	for name := range want.schema {
		if got.schema[name] != want.schema[name] {
			t.Errorf("%s: %s is declared as\n%s\nwant\n%s", what, name, got.schema[name], want.schema[name])
		}
	}
	if len(got.schema) != len(want.schema) {
		t.Errorf("%s: %d objects, want %d", what, len(got.schema), len(want.schema))
	}
	for table, rows := range want.rows {
		if !slices.Equal(got.rows[table], rows) {
			t.Errorf("%s: %s holds\n%s\nwant\n%s", what, table,
				strings.Join(got.rows[table], "\n"), strings.Join(rows, "\n"))
		}
	}
}

// isSound complains about everything that check finds.
func isSound(t testing.TB, path string) {
	t.Helper()
	if faults, err := checkFile(path); err != nil || len(faults) > 0 {
		t.Errorf("%s: %q, %v", path, faults, err)
	}
}

// isBeside complains unless the files of a database's directory are its own and those with these suffixes.
func isBeside(t testing.TB, path string, suffixes ...string) {
	t.Helper()
	want := []string{filepath.Base(path)}
	for _, suffix := range suffixes {
		want = append(want, filepath.Base(path)+suffix)
	}
	slices.Sort(want)
	equal(t, "files", dirNames(t, filepath.Dir(path)), want)
}

// eitherOr complains unless a database holds the one content or the other, and returns which.
func eitherOr(t testing.TB, what, path string, before, after content) (upgraded bool) {
	t.Helper()
	got := contentOf(t, path, nil)
	upgraded = got.version == after.version
	want := before
	if upgraded {
		want = after
	}
	if !reflect.DeepEqual(got, want) {
		sameContent(t, what, got, want)
		t.Errorf("%s: neither the old nor the new database", what)
	}
	return upgraded
}

// upgraded upgrades a database, which must succeed.
func upgraded(t testing.TB, path string, o upgradeOptions) *upgradeReport {
	t.Helper()
	report, err := upgradeFile(t.Context(), path, withClock(o))
	must(t, err)
	return report
}

func withClock(o upgradeOptions) upgradeOptions {
	o.now = func() time.Time { return time.Date(2027, 1, 31, 13, 0, 0, 0, time.FixedZone("CET", 3600)) }
	return o
}

const copyOfOld = ".v1-2027-01-31T120000Z"

var draftOfNew = fmt.Sprintf(".v%d-2027-01-31T120000Z.new", schemaVersion)

func TestUpgrade_ofEveryDumpMakesThePresentSchemaAndKeepsEveryRow(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	if *writeDump {
		writePresentDump(t)
	}
	made := contentOf(t, makeStore(t), map[string][]string{})
	equal(t, "the version of schema.sql", made.version, schemaVersion)
	for _, version := range dumpedVersions {
		t.Run(dumpName(version), func(t *testing.T) {
			path := oldDatabase(t, version)
			columns := contentOf(t, path, nil).columns
			for _, gone := range goneColumns[version] {
				table, column, _ := strings.Cut(gone, ".")
				columns[table] = slices.DeleteFunc(slices.Clone(columns[table]),
					func(c string) bool { return c == column })
			}
			for _, gone := range goneTables[version] {
				delete(columns, gone)
			}
			before := contentOf(t, path, columns)
			if before.version != version || before.application != applicationID {
				t.Fatalf("version %d of application %d", before.version, before.application)
			}
			report := upgraded(t, path, upgradeOptions{})
			for table, names := range columns {
				for i, name := range names {
					names[i] = cmp.Or(movedColumns[version][table+"."+name], name)
				}
			}
			after := contentOf(t, path, columns)
			isSound(t, path)
			sameContent(t, "what is declared", after, made) // of the present version, too: else raise it
			if !reflect.DeepEqual(after.rows, before.rows) {
				before.schema, before.columns, before.version = after.schema, after.columns, after.version
				sameContent(t, "upgraded", after, before)
			}
			steps := oneIf[version != schemaVersion]
			equal(t, "the report", fmt.Sprint(report.From, report.To, len(report.Steps)),
				fmt.Sprint(version, schemaVersion, steps))
			s := openTestStore(t, path, storeOptions{})
			err := s.update(t.Context(), func(t *tx) error {
				main, err := t.mainAccount()
				if err != nil {
					return err
				}
				t.addEvent(event{Type: "lead.created", AccountID: main, Actor: actorSite})
				return nil
			})
			var last int
			if err := errors.Join(err, s.one(`SELECT max(seq) FROM events`, nil, &last)); err != nil || last != 1001 {
				t.Errorf("the next event has number %d (%v), and 1000 was given already", last, err)
			}
			digestsAreOfTheirLeads(t, s)
		})
	}
}

// Against whoever could write the schema of an older file who would keep a weaker check in it after an upgrade: no
// declaration of the old file is kept: the tables are made anew, and rows that break a rule are refused.
func TestUpgrade_keepsNoWeakerRuleOfAnOldSchema(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	path := oldDatabase(t, 1)
	raw(t, path, `PRAGMA writable_schema = ON; UPDATE sqlite_schema SET
		sql = replace(sql, 'CHECK (grace_days BETWEEN 0 AND 3650)', '/* CHECK (grace_days >= 0) */');
		PRAGMA writable_schema = RESET; UPDATE licenses SET grace_days = -1`)
	_, err := upgradeFile(t.Context(), path, withClock(upgradeOptions{}))
	oneLine(t, err, checkFailed+"licenses")
	raw(t, path, `UPDATE licenses SET grace_days = 1`)
	upgraded(t, path, upgradeOptions{})
	isSound(t, path) // with exactly the present declarations
}

// unchecked runs statements without the checks of the schema, as an old sqlite3 shell did for times.
func unchecked(t testing.TB, path, statements string) {
	t.Helper()
	raw(t, path, `PRAGMA ignore_check_constraints = ON; `+statements)
}

func TestUpgrade_carriesTimesThatNoCalendarHasOverAndNamesTheirRows(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	const id = "lic_00000000000000000000000001"
	for _, version := range []int{1, 8} {
		o := anOperatorOf(t, version)
		db := o.env["WIDGETD_DB"]
		unchecked(t, db, `UPDATE licenses SET expires_at = '2027-02-31T00:00:00Z' WHERE id = '`+id+`'`)
		if version == 8 {
			unchecked(t, db, `UPDATE account_zones SET from_date = '2026-11-31'
				WHERE from_date = (SELECT min(from_date) FROM account_zones)`)
		}
		for _, more := range []string{"-dry-run", "-no-copy"} {
			out := o.do("upgrade", more)
			contains(t, out, "\nlicenses "+id+": expires_at is no time or date that a calendar has")
			if got := strings.Contains(out, "2026-11-31: from_date is no time"); got != (version == 8) {
				t.Errorf("version %d, %q: it says\n%s", version, more, out)
			}
		}
		row := contentOf(t, db, map[string][]string{"licenses": {"id", "expires_at"}}).rows["licenses"][0]
		equal(t, "the licence", row, "'"+id+"', '2027-02-31T00:00:00Z'")
	}
}

func TestUpgrade_namesAHundredInvalidTimesAndCountsTheRestButRefusesAnyOtherFault(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	path := oldDatabase(t, 1)
	unchecked(t, path, manyRows(150)+`INSERT INTO leads (id, account_id, type, email, email_key, created_at)
		SELECT printf('lead_%026d', 1000 + i), 'acct_00000000000000000000000001', 'demo', 'a@b.example', 'a@b.example',
		'2027-02-31T00:00:00Z' FROM n`)
	old := fileBytes(t, path)
	report := upgraded(t, path, upgradeOptions{})
	if len(report.InvalidTimes) != maxInvalidTimes || report.InvalidTimesCount != 150 ||
		report.InvalidTimes[0] != (invalidTime{"leads", "lead_00000000000000000000001001", "created_at"}) {
		t.Errorf("%d of %d: %v", len(report.InvalidTimes), report.InvalidTimesCount, report.InvalidTimes[:1])
	}
	if text := upgradeText(path, report); !strings.Contains(text, "\nand 50 more such values") {
		t.Error(text)
	}
	writeFile(t, path, old)
	unchecked(t, path, `UPDATE licenses SET grace_days = -1`) // which the many others must not hide
	_, err := upgradeFile(t.Context(), path, withClock(upgradeOptions{}))
	oneLine(t, err, "not sound: integrity: CHECK constraint failed in licenses")
}

// goneTables are tables of a version that the present one has not, or whose rows it adds up.
var goneTables = map[int][]string{1: {"item_names", "item_counts"}, 8: {"books_renewals"}}

// goneColumns are columns of a version that the present one has not, and whose values it does not keep either.
var goneColumns = map[int][]string{1: {"leads.email_key"},
	8: {"revenue_facts.recorded_at", "revenue_sums.facts", "books_exports.mapping_at", // which nothing has read
		"leads.digest"}} // see digestsAreOfTheirLeads

// movedColumns are columns of a version that the present one keeps in another way, and how they are read from it.
var movedColumns = map[int]map[string]string{1: {
	"events.license_id": `CASE WHEN subject_id LIKE 'lic~_%' ESCAPE '~' THEN subject_id END`,
	"events.lead_id":    `CASE WHEN subject_id LIKE 'lead~_%' ESCAPE '~' THEN subject_id END`,
	"events.device_id":  `json_extract(data, '$.device_id')`,
	"events.data":       `json_remove(data, '$.device_id')`,
}}

// digestsAreOfTheirLeads complains unless every lead has the digest that this program gives it. One whose address has
// other letters than ASCII may have none.
func digestsAreOfTheirLeads(t *testing.T, s *store) {
	t.Helper()
	none := strings.Repeat("\x00", 16)
	page, err := s.leads(leadFilter{owner: anyAccount}, "", 100)
	if err != nil || len(page.rows) < 5 {
		t.Errorf("%d leads, %v", len(page.rows), err)
	}
	for _, l := range page.rows {
		var digest []byte
		if err := s.one(`SELECT digest FROM leads WHERE id = ?`, []any{l.ID}, &digest); err != nil ||
			!bytes.Equal(digest, l.digest()) && (matches(`^[ -~]*$`, l.Email) || string(digest) != none) {
			t.Errorf("%s has the digest %x, want %x (%v)", l.ID, digest, l.digest(), err)
		}
	}
}

func TestUpgrade_fillsWhatAStepAdds(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	before := map[int]string{1: `INSERT INTO item_counts (widget_id, quarter, item, clicks, orders) VALUES
			('wgt_00000000000000000000000001', '2026-11-20T00:00:00Z', 'Tiramisù', 1, 100),
			('wgt_00000000000000000000000001', '2026-11-20T23:45:00Z', 'Tiramisù', 2, 200),
			('wgt_00000000000000000000000001', '2026-11-21T00:00:00Z', 'Tiramisù', 4, 400),
			('wgt_00000000000000000000000001', '2026-11-20T23:45:00Z', 'other', 8, 0),
			('wgt_00000000000000000000000002', '2026-11-20T23:45:00Z', 'Tiramisù', 16, 0);
			UPDATE licenses SET grace_noted = NULL, expired_noted = NULL, expires_at = '2026-05-01T00:00:00Z',
				grace_days = 2;
			UPDATE licenses SET grace_noted = expires_at WHERE id LIKE '%1';
			UPDATE licenses SET expired_noted = '2026-05-03T00:00:00Z' WHERE id LIKE '%2'`,
		8: `INSERT INTO books_connections (id, account_id, product, removed_at, created_at)
			SELECT 'bkc_3', id, 'xero', '2026-11-20T10:00:00Z', '2026-11-20T10:00:00Z' FROM accounts LIMIT 1;
			UPDATE payments SET due_at = NULL WHERE id IN (SELECT payment_id FROM disputes);
			UPDATE books_connections SET secrets = X'01' WHERE id LIKE '%01';
			UPDATE leads SET email = 'νίκος@example.com', digest = X'0102030405060708090A0B0C0D0E0F10'
				WHERE seq = (SELECT min(seq) FROM leads);
			UPDATE leads SET digest = X'0102030405060708090A0B0C0D0E0F10' WHERE email LIKE 'νίκος@%'`}
	files := map[int]string{}
	for version, statements := range before {
		files[version] = oldDatabase(t, version)
		raw(t, files[version], statements)
		upgraded(t, files[version], upgradeOptions{noCopy: true})
	}
	for _, c := range []struct {
		version int
		query   string
		want    []string
	}{
		// with what the dump has, of 10:45
		{1, `SELECT concat_ws(' ', substr(widget_id, -1), substr(day, -2), item, clicks, orders) FROM item_counts`,
			[]string{"1 20 Tiramisù 23 310", "1 20 other 18 2", "1 21 Tiramisù 4 400",
				"2 20 Chef's “Surprise”; DROP TABLE leads 0 1", "2 20 Tiramisù 16 0"}},
		// without case as Unicode says: erasing finds what has no digest
		{8, `SELECT iif(digest = zeroblob(16), 'none', 'some') FROM leads WHERE email LIKE '%ς@%'`, []string{"none"}},
		// codes and sessions of before kinds were told apart are for consent, as all were
		{8, `SELECT kind FROM signin_codes UNION ALL SELECT kind FROM sessions`, []string{"consent", "consent"}},
		// so that no end that is past is announced
		{1, `SELECT substr(id, -1) FROM licenses WHERE expiring_noted = '2026-05-01T00:00:00Z'`,
			[]string{"1", "1", "2", "2"}},
		{8, `SELECT id FROM orders WHERE pay <> 'online' OR wanted_at IS NOT NULL UNION ALL
			SELECT f.id FROM refunds f JOIN orders o ON o.account_id <> f.account_id WHERE o.id = f.order_id UNION ALL
			SELECT id FROM disputes WHERE taken <> iif(state = 'won', 0, amount)`, nil},
		// what was asked for, and what was found
		{8, `SELECT DISTINCT source || ' ' || kind FROM refunds`, []string{"provider found", "widgetd asked"}},
		// how an open dispute stands is asked again, and only that; when the money of each has moved
		{8, `SELECT concat_ws(' ', d.id, p.due_at, substr(d.moved_at, 9, 2)) FROM disputes d
			JOIN payments p ON p.id = d.payment_id`,
			[]string{"dp_4 2026-11-21T10:00:00Z 21", "dp_5 22", "dp_6 21"}},
		// when tokens of books are asked for again
		{8, `SELECT concat_ws(' ', id, renewal_lost_at, 'again', renew_at) FROM books_connections`,
			[]string{"bkc_00000000000000000000000001 2026-11-20T10:00:00Z again 2026-11-20T10:00:00Z",
				"bkc_00000000000000000000000002 2026-11-20T10:00:00Z again 2026-11-20T10:00:40Z", "bkc_3 again"}},
	} {
		must(t, readFile(files[c.version], func(q *queries) error {
			got, err := collect(q, c.query, nil, func(row *string) []any { return []any{row} })
			slices.Sort(got)
			equal(t, c.query, got, c.want)
			return err
		}))
	}
}

// Against an upgrade that is killed again and again that would fill the disk with copies: the next one removes the new
// file, which is a draft until it has its place, and the name that the old one was given before.
func TestUpgrade_removesWhatAKilledOneLeftAndNothingElse(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	path := oldDatabase(t, 1)
	before := contentOf(t, path, nil)
	stays := []string{copyOfOld, ".v1-mine.new", ".new", ".v1-2027-01-30T120000Z.new.zip", ".v1-2027-01-29T120000Z"}
	const draft, named = ".v1-2027-01-30T120000Z", ".v1-2027-01-28T120000Z"
	for _, suffix := range append([]string{draft + ".new", draft + "-2.new", draft + ".new-journal"}, stays...) {
		writeFile(t, path+suffix, "mine")
	}
	must(t, os.Link(path, path+named)) // as after a kill between that and the renaming
	_, err := upgradeFile(t.Context(), path, withClock(upgradeOptions{}))
	oneLine(t, err, "was not upgraded: put the new file in its place: ")
	isBeside(t, path, stays...)
	isUnchanged(t, path+copyOfOld, []byte("mine"))
	sameContent(t, "refused", contentOf(t, path, nil), before)
	must(t, os.Remove(path+copyOfOld))
	upgraded(t, path, upgradeOptions{})
	isBeside(t, path, stays...)
	sameContent(t, "the copy", contentOf(t, path+copyOfOld, nil), before)
}

// Others than the owner may have been given the file, and its path may be a link to another disk.
func TestUpgrade_keepsTheLinkTheModeAndTheOwnerOfTheFile(t *testing.T) {
	t.Parallel()
	path := oldDatabase(t, 1)
	link := filepath.Join(t.TempDir(), "link.db")
	must(t, errors.Join(os.Symlink(path, link), os.Chmod(path, 0o640)))
	if os.Geteuid() == 0 {
		must(t, os.Chown(path, 1, 2))
	}
	before, err := os.Stat(path)
	must(t, err)
	report := upgraded(t, link, upgradeOptions{})
	after, err := os.Stat(path)
	must(t, err)
	got, want := after.Sys().(*syscall.Stat_t), before.Sys().(*syscall.Stat_t)
	if after.Mode() != before.Mode() || got.Uid != want.Uid || got.Gid != want.Gid {
		t.Errorf("mode %v of %d:%d, want %v of %d:%d", after.Mode(), got.Uid, got.Gid, before.Mode(), want.Uid,
			want.Gid)
	}
	if target, err := os.Readlink(link); target != path {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	isBeside(t, path, copyOfOld)
	equal(t, "the copy", *report.Copy, path+copyOfOld)
	hasMode(t, path+copyOfOld, 0o600)
	if version := contentOf(t, path, nil).version; version != schemaVersion {
		t.Errorf("version %d", version)
	}
}

// onlyInTheLog makes a copy of a database whose last change, by statements, stands in
// the write-ahead log only, as a kill leaves it.
func onlyInTheLog(t testing.TB, path, statements string) (killed string) {
	t.Helper()
	leaveOpen(t, path)
	raw(t, path, statements)
	killed = filepath.Join(t.TempDir(), "widgetd.db")
	for _, suffix := range []string{"", "-wal", "-shm"} {
		text := fileBytes(t, path+suffix)
		writeFile(t, killed+suffix, text)
	}
	return killed
}

func TestUpgrade_knowsTheVersionAlsoWhileOnlyTheLogSaysIt(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	const older, newer = "stop the service and run 'widgetd upgrade'", "run a newer widgetd"
	const none = "restore a backup: its schema has no version, so it is damaged"
	for text, c := range map[string]struct {
		version                   int
		upgrading, opening, check string
	}{
		"an older one": {1, "it is not as its version should be: it has ", older, older},
		"none of ours": {9, "upgrade it with the widgetd that made it", "upgrade it with", "upgrade it with"},
		"a newer one":  {schemaVersion + 1, newer, newer, newer},
		"none":         {0, none, none, none},
	} {
		t.Run(text, func(t *testing.T) {
			killed := func() string { // anew for each, since whoever closes it empties the log
				return onlyInTheLog(t, makeStore(t), fmt.Sprintf("PRAGMA user_version = %d", c.version))
			}
			_, err := upgradeFile(t.Context(), killed(), withClock(upgradeOptions{}))
			oneLine(t, err, c.upgrading)
			_, err = openStore(killed(), storeOptions{})
			oneLine(t, err, c.opening)
			faults, _ := checkFile(killed())
			oneLine(t, errors.New(strings.Join(faults, "\n")), c.check)
		})
	}
}

func TestUpgrade_ofWhatAKilledServiceLeftKeepsItsLogAndLeavesNothingBehind(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	path := onlyInTheLog(t, oldDatabase(t, 1), `UPDATE accounts SET name = 'in the log' WHERE is_main = 1`)
	upgraded(t, path, upgradeOptions{})
	isBeside(t, path, copyOfOld)
	for _, file := range []string{path, path + copyOfOld} {
		names := contentOf(t, file, map[string][]string{"accounts": {"is_main", "name"}}).rows["accounts"]
		if !slices.Contains(names, "1, 'in the log'") {
			t.Errorf("%s: %q", file, names)
		}
	}
}

// upgradeRefusals are databases that must not be upgraded.
var upgradeRefusals = append(slices.Clone(unusableFiles), []badFile{
	{"of a negative version", bySQL("PRAGMA user_version = -1"),
		"is damaged, its schema version is -1: restore a backup"},
	{"a value that its rule forbids", bySQL("PRAGMA ignore_check_constraints = 1; UPDATE licenses SET grace_days = -1"),
		"it is not sound: integrity: CHECK constraint failed in licenses"},
	{"a value damaged", damagedText, "it is not sound: integrity: "},
	{"a table missing", bySQL("PRAGMA foreign_keys = 0; DROP TABLE probes"),
		"it has 129 tables and columns, and version 1 has 132"},
	{"a row without its account", bySQL("PRAGMA foreign_keys = 0; DELETE FROM accounts WHERE is_main"),
		"of tokens names a row of accounts that is not there"},
	{"a row twice", bySQL("DROP INDEX accounts_main; UPDATE accounts SET is_main = 1"), "UNIQUE constraint failed"},
	{"open elsewhere", func(t testing.TB, path string) { leaveOpen(t, path) },
		"was not upgraded: another process has it open: stop the service"},
	{"its log taken away", func(_ testing.TB, path string) { os.WriteFile(path+"-shm", nil, 0o600) },
		"-wal is missing, and with it what was written last"},
	{"with an index of somebody's own", bySQL("CREATE INDEX mine ON leads (source)"),
		"mend this first: index mine is not this program's: drop it"},
	{"with a column of somebody's own", bySQL("ALTER TABLE leads ADD COLUMN mine TEXT"),
		"leads.mine is not this program's: drop it"},
	{"with the column that it would add", bySQL("ALTER TABLE licenses ADD COLUMN customer TEXT"),
		"it has 133 tables and columns, and version 1 has 132"},
}...)

// damagedText changes a value in a page so that a rule of its column no longer holds.
func damagedText(t testing.TB, path string) {
	t.Helper()
	damage(t, path, int64(bytes.Index(fileBytes(t, path), []byte("lead_00000000000000000000000001"))), 'X')
}

// directory is what all files of a directory hold.
func directory(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range dirNames(t, dir) {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			text = []byte(err.Error())
		}
		all[name] = string(text)
	}
	return all
}

func TestUpgrade_refusesInOneLineAndChangesNothing(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	for i, refusal := range upgradeRefusals {
		t.Run(refusal.name, func(t *testing.T) {
			path := oldDatabase(t, 1)
			refusal.make(t, path)
			before := directory(t, filepath.Dir(path))
			for j, o := range []upgradeOptions{{noCopy: true}, {dryRun: true}, {}} {
				if i%3 != j && i%3 != (j+1)%3 && !inFull() { // others are tried with it
					continue
				}
				_, err := upgradeFile(t.Context(), path, withClock(o))
				oneLine(t, err, refusal.want)
				if err != nil && !strings.Contains(err.Error(), path) {
					t.Errorf("%v: want the file's name", err)
				}
				if after := directory(t, filepath.Dir(path)); !maps.Equal(before, after) {
					t.Errorf("after %+v: something was changed: files %q", o, slices.Sorted(maps.Keys(after)))
				}
			}
		})
	}
}

// Nobody gets in meanwhile. Against a program that had opened the old file and waits for its lock, which it gets in the
// end: it would write, and begin a write-ahead log, beside the new file.
func TestUpgrade_keepsEverybodyOutUntilItsEndAndWhoeverWaitsForTheOldFileFromWriting(t *testing.T) {
	t.Parallel()
	path := oldDatabase(t, 1)
	var waiting []*sql.Conn
	try := func(mode string) {
		other, err := sql.Open("sqlite", fileURL(path)+"?mode="+mode)
		must(t, err)
		t.Cleanup(func() { other.Close() })
		conn, err := other.Conn(t.Context())
		must(t, err)
		_, err = conn.ExecContext(t.Context(), `SELECT count(*) FROM leads`)
		if !errors.Is(storageError(err), errBusy) {
			t.Errorf("somebody else got in with mode=%s: %v", mode, err)
		}
		waiting = append(waiting, conn)
	}
	_, err := upgradeFile(t.Context(), path, upgradeOptions{now: func() time.Time {
		try("ro")
		try("rw")
		return withClock(upgradeOptions{}).now()
	}})
	must(t, err)
	before := fileBytes(t, path)
	for _, conn := range waiting {
		conn.ExecContext(t.Context(), `PRAGMA journal_mode = WAL`)
		if _, err := conn.ExecContext(t.Context(), `DELETE FROM leads`); err == nil {
			t.Error("it was done")
		}
		conn.Close()
	}
	if len(waiting) < 2 {
		t.Error("nobody has tried")
	}
	isUnchanged(t, path, before)
	isBeside(t, path, copyOfOld)
}

func TestUpgrade_changesNothingWhenItIsStopped(t *testing.T) {
	t.Parallel()
	path := oldDatabase(t, 1)
	before := directory(t, filepath.Dir(path))
	for _, o := range []upgradeOptions{{}, {noCopy: true}, {dryRun: true}} {
		ctx, stop := context.WithCancel(t.Context())
		o.now = func() time.Time {
			stop()
			return time.Now()
		}
		_, err := upgradeFile(ctx, path, o)
		oneLine(t, err, path+" was not upgraded: ")
		oneLine(t, err, "it was stopped, so run it again")
		if after := directory(t, filepath.Dir(path)); !maps.Equal(after, before) {
			t.Errorf("something was changed: files %q", slices.Sorted(maps.Keys(after)))
		}
	}
}

func TestUpgrade_leavesTheOldOrTheNewWhicheverCallFails(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	kinds := newFaultBench(t).errors(t)
	old := oldDatabase(t, 1)
	text, before := fileBytes(t, old), contentOf(t, old, nil)
	after := contentOf(t, upgradedDatabase(t, 1), nil)
	attempt := func(t *testing.T, f *fault) (path string, report *upgradeReport, err error) {
		path = filepath.Join(t.TempDir(), "widgetd.db")
		writeFile(t, path, text)
		useFault(path, f)
		useFault(path+draftOfNew, f)
		report, err = upgradeFile(t.Context(), path, withClock(upgradeOptions{driver: faultyDriverName}))
		return path, report, err
	}
	const never = 1 << 30
	counting := &fault{armed: true, left: never}
	_, _, err := attempt(t, counting)
	must(t, err)
	left, _ := counting.next()
	for _, how := range []form{notDone, done, ended} {
		t.Run(how.String(), func(t *testing.T) {
			t.Parallel()
			f := &fault{armed: true}
			tried, finished := 0, 0
			try := func(n int, only string, kind error) {
				f.set(n, only, how, kind)
				path, report, err := attempt(t, f)
				what := fmt.Sprintf("%v, %v at %q", kind, how, f.hit())
				if f.hit() == "" || err == nil && report == nil {
					t.Fatalf("%s: %v, %v", what, report, err)
				}
				if judgeFailure(t, what, path, err, before, after) {
					finished++
				}
				tried++
				if unchanged := bytes.Equal(fileBytes(t, path), text); !unchanged || tried%20 == 1 {
					upgraded(t, path, upgradeOptions{noCopy: true})
					sameContent(t, what+", and once more", contentOf(t, path, nil), after)
				}
			}
			for n := range never - left {
				for k, kind := range kinds {
					if how.strikes(n, k, len(kinds), size(600, 24)) {
						try(n, "", kind)
					}
				}
			}
			try(0, "exec COMMIT", kinds[0])
			t.Logf("%d faults, %d of them at the end or without effect", tried, finished)
			if finished == tried {
				t.Error("no fault kept it from its end")
			}
		})
	}
}

// judgeFailure complains unless an upgrade that came to this error left what the error
// says, and reports whether the new database is there.
func judgeFailure(t *testing.T, what, path string, err error, before, after content) (isNew bool) {
	t.Helper()
	isNew = eitherOr(t, what, path, before, after)
	names := dirNames(t, filepath.Dir(path))
	switch {
	case err == nil && !isNew:
		t.Errorf("%s: it says that it is upgraded, and it is not", what)
	case err == nil || errors.Is(err, errMaybeUpgraded):
	case isNew || len(names) != 1:
		t.Errorf("%s: %v; but is it upgraded? %v; files %q", what, err, isNew, names)
	}
	if err != nil {
		oneLine(t, err, path)
	}
	return isNew
}

// writePresentDump writes the dump of the present version.
func writePresentDump(t *testing.T) {
	t.Helper()
	name, version := dumpName(schemaVersion), schemaVersion
	if _, err := os.Stat(name); err != nil {
		version = dumpedVersions[len(dumpedVersions)-2]
	}
	path := oldDatabase(t, version)
	upgraded(t, path, upgradeOptions{})
	c := contentOf(t, path, nil)
	columns := c.columns
	_, pragmasAndTables, _ := strings.Cut(schemaSQL(), "\nPRAGMA")
	out := &strings.Builder{}
	fmt.Fprintf(out, "-- A database of version %d of the schema: schema.sql as it was then, "+
		"and rows of every kind.\n", schemaVersion)
	fmt.Fprintf(out, "-- Once it has landed it never changes.\n\nBEGIN;\n\nPRAGMA%s\n", pragmasAndTables)
	for _, found := range regexp.MustCompile(`(?m)^CREATE TABLE (\w+)`).FindAllStringSubmatch(schemaSQL(), -1) {
		if found[1] == "license_seats" {
			continue // triggers fill it
		}
		for _, row := range c.rows[found[1]] {
			names := strings.Join(columns[found[1]], ", ")
			fmt.Fprintf(out, "INSERT INTO %s (%s) VALUES (%s);\n", found[1], names, row)
		}
		fmt.Fprintln(out)
	}
	for _, row := range c.rows["sqlite_sequence"] {
		table, n, _ := strings.Cut(row, ", ")
		fmt.Fprintf(out, "UPDATE sqlite_sequence SET seq = %s WHERE name = %s;\n", n, table)
	}
	fmt.Fprintf(out, "\nCOMMIT;\n")
	must(t, os.WriteFile(name, []byte(out.String()), 0o644))
}

// choice is a rule that lists what a column may hold.
var choice = regexp.MustCompile(`CHECK \((\w+) IN \(([^()]*)\)\)`)

func TestUpgrade_everyDumpHoldsRowsOfEveryKind(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	for _, version := range dumpedVersions {
		path := oldDatabase(t, version)
		c := contentOf(t, path, nil)
		err := readFile(path, func(q *queries) error {
			ask := func(what, query string, args ...any) {
				var n int
				if err := q.one(query, args, &n); err != nil || n == 0 {
					t.Errorf("%s: no row with %s (%v)", dumpName(version), what, err)
				}
			}
			for table, columns := range c.columns {
				for _, column := range columns {
					ask(table+"."+column+" set", `SELECT count(`+column+`) FROM `+table)
					if table == "sqlite_sequence" {
						continue // SQLite's own
					}
					ask(table+"."+column+" NULL, which it may be", `SELECT "notnull" OR pk
						OR EXISTS (SELECT 1 FROM `+table+` WHERE `+column+` IS NULL)
						FROM pragma_table_info(?) WHERE name = ?`, table, column)
				}
				for _, rule := range choice.FindAllStringSubmatch(c.schema["table "+table], -1) {
					for value := range strings.SplitSeq(rule[2], ",") {
						if table != "probes" {
							ask(table+"."+rule[1]+" = "+value,
								`SELECT count(*) FROM `+table+` WHERE `+rule[1]+` = `+value)
						}
					}
				}
			}
			return nil
		})
		must(t, err)
	}
}

// anOperatorOf gives an operator a database of an older version in place of its own.
func anOperatorOf(t testing.TB, version int) *operator {
	t.Helper()
	o := newOperator(t)
	rename(t, oldDatabase(t, version), o.env["WIDGETD_DB"])
	return o
}

func TestUpgrade_isWhatOtherCommandsAskForAndNoneChangesAnOlderDatabase(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	o := anOperatorOf(t, 1)
	must(t, os.Chmod(o.dir, 0o700)) // or check adds a note, depending on the umask
	before := fileBytes(t, o.env["WIDGETD_DB"])
	for _, line := range []string{"serve -addr 127.0.0.1:0", "status", "check", "backup copy.db", "lead list",
		"lead erase anna@example.com", "account add x", "key add", "clock accept", "replica verify"} {
		out, err := o.try(strings.Fields(line)...)
		if line == "check" && err != nil {
			err = errors.New(strings.TrimSpace(out))
		}
		oneLine(t, err, "stop the service and run 'widgetd upgrade'", "older than version")
	}
	isUnchanged(t, o.env["WIDGETD_DB"], before)
	demo := filepath.Join(t.TempDir(), "widgetd.db")
	must(t, os.Rename(o.env["WIDGETD_DB"], demo))
	o.fails(demo+" can't be used: stop the service and run 'widgetd upgrade'",
		"demo", "-addr", "127.0.0.1:0", "-dir", filepath.Dir(demo))
}

func TestUpgrade_saysWhatItDid(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	o := anOperatorOf(t, 1)
	db := o.env["WIDGETD_DB"]
	before := fileBytes(t, db)
	said := []string{fmt.Sprintf("from schema version 1 to %d (", schemaVersion),
		fmt.Sprintf("\nversion %d: %s (", schemaVersion, releasedSchemas[1].does), "\n" + transferAdvice(1) + "\n"}
	contains(t, o.do("upgrade", "-dry-run"), append(said, db+": can be upgraded ",
		"\nthis was a dry run: nothing was changed\n")...)
	dry := o.object("upgrade", "-dry-run")
	equal(t, "a dry run", fmt.Sprint(dry["from"], dry["to"], dry["dry_run"], dry["copy"]),
		fmt.Sprint(1, schemaVersion, true, nil))
	isUnchanged(t, db, before)
	out := o.do("upgrade")
	copies := upgradeCopies(db)
	equal(t, "copies", len(copies), 1)
	contains(t, out, append(said, db+": upgraded ", "\nthe database as it was: "+copies[0]+
		"; remove it once you are sure that you will not go back\n")...)
	hasMode(t, copies[0], 0o600)
	contains(t, o.do("upgrade"), fmt.Sprintf("has schema version %d, as this program needs it; nothing to do",
		schemaVersion))
	raw(t, db, `INSERT INTO events (id, at, type, account_id, actor, data)
		SELECT 'evt_of_kid_1', created_at, 'key.retired', id, 'command', '{"kid":"kid-1"}' FROM accounts LIMIT 1`)
	draft := db + ".v6-2027-01-31T120000Z-2.new"
	writeFile(t, draft, strings.Repeat("x", 4096))
	contains(t, o.do("check"), "ok: ", " is a copy from before an upgrade: remove it once you are sure",
		"note: "+draft+" (4 KiB) is an unfinished copy of an upgrade that was stopped")
}

func TestLeads_eraseNamesTheCopiesThatStillHoldTheAddress(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	o := anOperatorOf(t, 1)
	const address = "Ada.Lovelace@example.com"
	if got := o.object("upgrade"); got["copy"] == nil {
		t.Fatal(got)
	}
	copied := upgradeCopies(o.env["WIDGETD_DB"])[0]
	for _, other := range []string{".v1-2027-01-30T120000Z.new", ".v2", ".version-1", "-v1-x", ".old"} {
		writeFile(t, o.env["WIDGETD_DB"]+other, "")
	}
	draft := o.env["WIDGETD_DB"] + ".v1-2027-01-30T120000Z.new"
	for _, more := range [][]string{nil, {"-litestream"}} {
		got := o.object(append([]string{"lead", "erase", address}, more...)...)
		want := slices.Sorted(slices.Values([]string{copied, draft}))
		note := "so remove them: " + strings.Join(want, ", ")
		if fmt.Sprint(got["copies"]) != fmt.Sprint(want) || !strings.HasSuffix(got["note"].(string), note) {
			t.Errorf("erased %v, want the copies %q", got, want)
		}
	}
	names := traces(t, o.dir, strings.ToLower(address))
	if !slices.Equal(names, []string{filepath.Base(copied)}) {
		t.Errorf("the address stands in %q", names)
	}
	must(t, errors.Join(os.Remove(copied), os.Remove(draft)))
	got := o.object("lead", "erase", address)
	if fmt.Sprint(got["copies"]) != "[]" || strings.Contains(got["note"].(string), "remove") {
		t.Errorf("erased %v", got)
	}
}

// manyOfVersion1 adds to a database of version 1 n leads, licences with a key, devices, and
// events, which are about each of those in turn. Ids tell the time, as those of the service do.
func manyOfVersion1(n int) string {
	const id = `printf('%012x', 1700000000000 + i * 1000) || lower(hex(randomblob(7)))`
	const at = `strftime('%Y-%m-%dT%H:%M:%SZ', '2024-01-01', (i * 60) || ' seconds')`
	const account = `printf('acct_%026d', 1 + i % 3)` // as in the dump
	return `BEGIN; CREATE TABLE made (i INTEGER PRIMARY KEY, id TEXT, at TEXT, account TEXT);
		` + manyRows(n) + `INSERT INTO made SELECT i, ` + id + `, ` + at + `, ` + account + ` FROM n;
		INSERT INTO leads (id, account_id, type, email, email_key, source, page, created_at)
			SELECT 'lead_' || id, account, 'newsletter', 'Person.' || i || '@example.com',
			'person.' || i || '@example.com', 'footer', '/lunch', at FROM made;
		INSERT INTO licenses (id, account_id, product, max_devices, expires_at, created_at, updated_at)
			SELECT 'lic_' || id, account, 'kitchen-display', 5, '2030-01-01T00:00:00Z', at, at FROM made;
		INSERT INTO license_keys (hash, license_id, hint, created_at)
			SELECT randomblob(32), 'lic_' || id, 'XXXXX', at FROM made;
		INSERT INTO devices (id, license_id, fingerprint, name, platform, app_version, state, lease_seq,
			lease_kid, leased_at, lease_expires_at, activated_at, last_seen_at)
			SELECT 'dev_' || id, 'lic_' || id, randomblob(32), 'Kitchen 1', 'linux/arm64', '2.4.1', 'active', 3,
			'a-key', at, at, at, at FROM made;
		INSERT INTO events (id, at, type, account_id, license_id, device_id, lead_id, actor) SELECT 'evt_' || id, at,
			iif(i % 3, iif(i % 3 = 1, 'license.created', 'device.activated'), 'lead.created'), account,
			iif(i % 3, 'lic_' || id, NULL), iif(i % 3 = 2, 'dev_' || id, NULL),
			iif(i % 3, NULL, 'lead_' || id), 'site' FROM made;
		DROP TABLE made; COMMIT; VACUUM;`
}
