package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// importFile writes a CSV file.
func (s *service) importFile(lines ...string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, "import.csv")
	s.check(os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	return path
}

func TestImport_takesLicencesWithTheirKeys(t *testing.T) {
	t.Parallel()
	s := newService(t)
	own := newLicenseKey()
	file := s.importFile("\ufeffkey,plan,kind,state,reason,trial,max_devices,max_transfers,starts_at,expires_at,"+
		"grace_days,lease_hours,entitlements,metadata",
		`LEGACY/KEY:with=any#ASCII,"Gold, old",floating,suspended,unpaid,yes,3,1,2020-01-01,2030-01-31T12:00:00Z,5,`+
			`24,kds reports,"{""n"":1}"`, own+",,,,,,,,,,,,,")
	contains(t, s.must(s.importArgs(file, "-dry-run")...), "2 rows are valid; nothing was imported")
	sameText(t, "a dry run wrote something", s.licenceRows(), 0)
	sameText(t, "imported", s.must(s.importArgs(file, "-json")...), `{"imported":2,"rows":2,"skipped":0}`+"\n")
	s.verifyKey("LEGACY/KEY:with=any#ASCII", "a").answers("suspended").tells("license.plan", "Gold, old",
		"license.kind", "floating", "license.trial", true, "license.expires_at", "2030-01-31T12:00:00Z",
		"license.grace_until", "2030-02-05T12:00:00Z")
	s.activate(strings.ToLower(own), "a").is(200)
	s.counts(2, `SELECT count(*) FROM events WHERE type = 'license.created' AND actor = ?`, thisActor(t))
	s.fails("line 2: key: a licence with this key exists already\nline 3: key: a licence with this key exists already",
		s.importArgs(file)...)
	s.counts(2, `SELECT count(*) FROM licenses`)
}

func TestImport_isKeptOutByOneBadRowNamedByItsLine(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	s := newService(t)
	good := "GOOD-KEY-0000000001"
	const other = "GOOD-KEY-0000000002"
	umlauts := strings.Repeat("ü", 40)
	header := "key,account_id,product,state,max_devices,expires_at,starts_at,expiry_basis,trial,entitlements,metadata"
	for row, want := range map[string]string{
		other + ",acct_x,kds,,,,,,,,":               `account_id: "acct_x": There is no such account`,
		other + ",,,,,,,,,,":                        "product: A product is required.",
		other + ",,kds,paused,,,,,,,":               `state: "paused": This must be one of active, `,
		other + ",,kds,,\x1b[31m\u202e,,,,,,":       `max_devices: "\x1b[31m\u202e": This must be a whole number`,
		other + ",,kds,,," + umlauts + "ü,,,,,":     `expires_at: "` + umlauts + `"…: This must be a date`,
		other + ",,kds,,,2020-01-01,2021-01-01,,,,": `expires_at: "2020-01-01": The licence would end before it`,
		other + ",,kds,,,,,first_activation,,,":     "duration_days: ",
		other + ",,kds,,,,,,maybe,,":                `trial: "maybe": `,
		other + ",,kds,,,,,,,-a,":                   `entitlements: "-a": A code has `,
		other + ",,kds,,,,,,,,[]":                   `metadata: "[]": This must be an object`,
		"\"GOOD-KEY-0000000002\n\"x,,kds,,,,,,,,":   "at line 4, column ",
		"\"GOOD-KEY-\n0000000002\",,kds,,,,,,,,":    "key: it must have 16 to 255",
		other + ",,K\xfcche,,,,,,,,":                `product: "K\xfcche": This must be UTF-8.`,
	} {
		s.fails("line 3: "+want, "license", "import", s.importFile(header, good+",,kds,,,,,,,,", row), "-account",
			s.account)
	}
	for head, want := range map[string]string{
		"":                              "it is empty",
		"plan":                          "the column key is missing",
		"key|plan":                      "separated by commas, semicolons or tabs",
		"key;colour":                    `column "colour" is unknown`,
		"key,metadata.":                 `column "metadata." is unknown`,
		"key,metadata.a,metadata.a":     `column "metadata.a" is unknown or appears twice`,
		"SOME-VENDORS-OWN-KEY-0001,kds": "the first line must name the columns",
		"key,colour":                    `column "colour" is unknown`,
		"key,plan,key":                  `column "key" is unknown or appears twice`,
	} {
		s.fails(want, "license", "import", s.importFile(head), "-account", s.account)
	}
	sameText(t, "a bad file left rows", s.licenceRows(), 0)
	for want, options := range map[string][]string{
		`-product: This must not contain control characters.`: {"-account", s.account,
			"-product", "a\nb"},
		`no account has the id or the name "acct_x": 'widgetd account list' prints both`: {"-account", "acct_x"},
		`line 2: account_id: The row names no account, and -account is not given.`:       nil,
		`no database at gone: run 'widgetd init' first, or mount the disk that holds it`: {"-db", "gone"},
	} {
		_, err := s.command(append([]string{"license", "import", s.importFile(header, good+",,kds,,,,,,,,")},
			options...)...)
		if err == nil || err.Error() != want && !strings.HasSuffix(err.Error(), ": nothing was imported: "+want) {
			t.Errorf("%q: %v, want %q", options, err, want)
		}
	}
}

func TestImport_namesEveryFaultOfEveryRowInTheOrderOfTheLines(t *testing.T) {
	t.Parallel()
	s := newService(t)
	known := "KNOWN-KEY-00000001"
	s.must(s.importArgs(s.importFile("key", known))...)
	rows := []string{"key,account_id,product,max_devices",
		"GOOD-KEY-0000000003,,,", // line 2
		known + ",,,",            // 3: in the database
		"short,,,",               // 4
		"",                       // 5: an empty line is none
		"GOOD-KEY-0000000006,,",  // 6: a cell short
		`GOOD"KEY-0000000007,,,`, // 7: a quote inside
		"GOOD-KEY-0000000008,,\"kds,\nor \"\"pos\"\"\",1",        // 8 and 9: a line break
		"GOOD-KEY-0000000010,acct_00000000000000000000000000,,x", // 10: two faults
		"GOOD-KEY-0000000003,,,",                                 // 11: line 2 again
		known + ",,,0",                                           // 12: twice here, wrong, and there
		newLicenseKey()[:28] + "é,,,\r",                          // 13
		"short,,,\n\"GOOD-KEY-0000000214",                        // 14, and a quote that is never closed
	}
	const known3 = "key: a licence with this key exists already\n"
	const short = "key: it must have 16 to 255 visible ASCII characters\n"
	const twice = "key: as on line %d: a key must appear only once; in one of 25 letters and digits case makes no " +
		"difference, O is 0, and I and L are 1\n"
	want := "import.csv: nothing was imported: line 3: " + known3 +
		"line 4: " + short +
		"line 6: it has 3 cells and the header 4\n" +
		"line 7: at line 7, column 5: its quotes are wrong: bare \" in non-quoted-field\n" +
		"line 8: product: \"kds,\\nor \\\"pos\\\"\": This must not contain control characters.\n" +
		"line 10: account_id: \"acct_00000000000000000000000000\": There is no such account, or it is closed.\n" +
		"line 10: max_devices: \"x\": This must be a whole number from 1 to 1000000.\n" +
		"line 11: " + fmt.Sprintf(twice, 2) +
		"line 12: " + fmt.Sprintf(twice, 3) +
		"line 12: max_devices: \"0\": This must be a whole number from 1 to 1000000.\n" +
		"line 12: " + known3 +
		"line 13: " + short + "line 14: " + short +
		"line 15: at line 15, column 22: its quotes are wrong: extraneous or missing \" in quoted-field"
	for _, more := range []string{"-dry-run", "-json"} {
		_, text, _ := strings.Cut(fmt.Sprint(s.failure(s.importArgs(s.importFile(rows...), more)...)), s.dir+"/")
		sameText(t, more, text, want)
	}
	s.counts(1, `SELECT count(*) FROM licenses`)
}

func TestImport_showsAtMostTwentyFaultsAndNoKey(t *testing.T) {
	t.Parallel()
	s := newService(t)
	header, cells := "key", ""
	for i := range 25 {
		header += fmt.Sprintf(";metadata.m%d", i)
		cells += ";\x01"
	}
	told := fmt.Sprint(s.failure("license", "import", s.importFile(header, "SECRET-KEY-00000001"+cells,
		"SECRET"+cells, "SECRET-KEY-00000001"+cells), "-product", "kds"))
	lacks(t, told, "SECRET")
	lines := strings.Split(told, "\n")
	sameText(t, "lines", len(lines), maxImportFaults+1)
	contains(t, lines[0], "line 2: account_id: The row names no account, and -account is not given.")
	sameText(t, "the end is", lines[len(lines)-1], "and 60 more")
	lacks(t, fmt.Sprint(s.failure("license", "import", s.importFile("SECRET-KEY-00000001,kds"))), "SECRET")
}

// What Excel writes where a comma is the decimal separator, and tab-separated text.
func TestImport_noticesSemicolonsAndTabsAndReadsDatesOfTheDay(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for i, separator := range []string{",", ";", "\t"} {
		key := fmt.Sprintf("SEPARATED-KEY-00%d", i)
		list := "a b"
		if separator != "," {
			list = "a, b"
		}
		file := s.importFile(
			"\ufeff"+strings.Join([]string{"key", "plan", "starts_at", "expires_at", "entitlements", "metadata",
				"metadata.order", "metadata.Größe"}, separator)+"\r",
			strings.Join([]string{key, `"Gold; ""old"", big` + "\t" + `"`, "1.2.2020", "31.01.2037", list,
				`"{""n"":1}"`, "A-17", ""}, separator)+"\r",
			strings.Join([]string{key + "-2", "", "", "2037-01-31", "", "", "", ` "<" & so`}, separator)+"\r")
		err := s.failure(s.importArgs(file)...)
		if err == nil || !strings.Contains(err.Error(), `line 2: plan: "Gold; \"old\", big\t": This must not`) &&
			!strings.Contains(err.Error(), "quotes") {
			t.Fatalf("%q: %v", separator, err)
		}
		text, err := os.ReadFile(file)
		s.check(err)
		text = bytes.ReplaceAll(text, []byte(`"Gold; ""old"", big`+"\t"+`"`), []byte(`"Gold; ""old"", big"`))
		text = bytes.ReplaceAll(text, []byte(` "<" & so`), []byte(`"""<"" & so"`))
		s.check(os.WriteFile(file, text, 0o600))
		s.must(s.importArgs(file)...)
		sameText(t, separator, s.objectOf(key),
			`Gold; "old", big 2020-02-01T00:00:00Z 2037-01-31T23:59:59Z ["a","b"] {"n":1,"order":"A-17"}`)
		sameText(t, separator, s.objectOf(key+"-2"), `- - 2037-01-31T23:59:59Z [] {"Größe":"\"<\" & so"}`)
	}
	twice := s.importFile("key,metadata,metadata.n,metadata.m", `TWICE-KEY-0000000001,"{""n"":1}",2,3`)
	oneLine(t, s.failure(s.importArgs(twice)...), `line 2: metadata.n: "2": The row's metadata has this member too.`)
	large := s.importFile("key,metadata.n,metadata.m",
		"LARGE-KEY-0000000001,"+strings.Repeat("n", 9000)+","+strings.Repeat("m", 9000))
	oneLine(t, s.failure(s.importArgs(large)...),
		"line 2: metadata: This has more than 16 KiB.")
}

// objectOf returns what was imported for a key.
func (s *service) objectOf(key string) (text string) {
	s.t.Helper()
	hash := licenseKey(key).hash()
	s.check(s.store.one(`SELECT concat_ws(' ', coalesce(plan, '-'), coalesce(starts_at, '-'), expires_at,
		entitlements, metadata) FROM licenses JOIN license_keys k ON k.license_id = licenses.id
		WHERE k.hash = ?`, []any{hash[:]}, &text))
	return text
}

func TestImport_needsForceForAnEndInThePast(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		time.Sleep(24*time.Hour - 2*time.Second) // the last one but one of 1 January
		file := s.importFile("key,expires_at", "PAST-KEY-0000000001,31.12.1999", "PAST-KEY-0000000002,2000-01-01")
		oneLine(t, s.failure(s.importArgs(file)...), "nothing was imported: line 2: expires_at: "+
			`"31.12.1999": This is in the past; -force imports such licences too.`)
		s.must(s.importArgs(file, "-force")...)
		s.counts(1, `SELECT count(*) FROM licenses WHERE expires_at = '1999-12-31T23:59:59Z'`)
		s.counts(1, `SELECT count(*) FROM licenses WHERE expires_at = '2000-01-01T23:59:59Z'`)
	})
}

func TestImport_skipsWhatItHasAlready(t *testing.T) {
	t.Parallel()
	s := newService(t)
	tenant := s.addAccount("tenant")
	take := func(account string, more ...string) (string, error) {
		file := s.importFile("key", "A1B2C-D3E4F-G5H6J-K7L8M-N9P1Q", "SECOND-KEY-00000001", "THIRD-KEY-000000001")
		return s.command(append([]string{"license", "import", file, "-account", account, "-product", "kds", "-json"},
			more...)...)
	}
	s.must(s.importArgs(s.importFile("key", "a1b2cd3e4fg5h6jk718mn9p1q"))...)
	_, err := take(s.account)
	oneLine(t, err, "line 2: key: a licence with this key exists already")
	_, err = take(tenant, "-skip-existing")
	oneLine(t, err, "line 2: key: a licence of another account has this key")
	for _, want := range []string{`{"imported":2,"rows":3,"skipped":1}`, `{"imported":0,"rows":3,"skipped":3}`} {
		out, err := take(s.account, "-skip-existing")
		sameText(t, "taken", err, nil, out, want+"\n")
	}
	s.counts(3, `SELECT count(*) FROM licenses`)
}

func TestImport_readsStandardInput(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, err := s.runImport(10_000, 1_000, "key\nshort\n", io.Discard, "-")
	oneLine(t, err, "standard input: nothing was imported: line 2: key: ")
	_, err = s.runImport(10_000, 1_000, "key\nPIPED-KEY-000000001\n", io.Discard, "-")
	s.check(err)
	s.counts(1, `SELECT count(*) FROM licenses`)
}

// importArgs is the command that imports a file's licences for the main account; more are options.
func (s *service) importArgs(file string, more ...string) []string {
	return append([]string{"license", "import", file, "-account", s.account, "-product", "kds"}, more...)
}

// licenceRows is how many licences and events there are.
func (s *service) licenceRows() int {
	s.t.Helper()
	return s.count(`SELECT (SELECT count(*) FROM licenses) + (SELECT count(*) FROM events)`)
}

// runImport imports licences of the main account, up to whole in one transaction, more so many at a time.
func (s *service) runImport(whole, batch int, stdin string, messages io.Writer, args ...string) (string, error) {
	s.t.Helper()
	var out strings.Builder
	e := s.importing(strings.NewReader(stdin), append(args, "-account", s.account, "-product", "kds"))
	e.stdout, e.stderr = &out, messages
	err := importLicenses(e, whole, batch)
	return out.String(), err
}

// importing is what an import with those arguments works with.
func (s *service) importing(stdin io.Reader, args []string) *env {
	s.t.Helper()
	command, _ := findCommand(allCommands(), []string{"license", "import"})
	e := &env{ctx: s.t.Context(), getenv: func(string) string { return "" }, stdin: stdin, stderr: io.Discard,
		command: command, now: time.Now}
	s.check(e.parse(append(args, "-db", s.store.path)))
	return e
}

// A typing reader has the beginning of a file, tells the program to stop, and waits for what nobody types.
type typingReader struct {
	text string
	stop func()
}

func (r *typingReader) Read(p []byte) (n int, err error) {
	if r.text == "" {
		r.stop()
		select {}
	}
	n = copy(p, r.text)
	r.text = r.text[n:]
	return n, nil
}

// countdown is a context that is done once it was asked so often.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

func TestImport_thatIsInterruptedSaysWhatItHasDone(t *testing.T) {
	t.Parallel()
	s := newService(t)
	ctx, stop := context.WithCancel(t.Context())
	e := s.importing(&typingReader{"key\nPIPED-KEY-000000001\n", stop}, []string{"-", "-account", s.account})
	e.ctx = ctx
	oneLine(t, importLicenses(e, 1, 1), "standard input: nothing was imported: it was interrupted")
	lines := []string{"key"}
	for i := range 100 {
		lines = append(lines, fmt.Sprintf("IMPORTED-KEY-%08d", i))
	}
	for _, c := range []struct {
		asks, whole, stored int
		want                string
	}{
		{3, 100, 0, ": nothing was imported: it was interrupted"},   // while it reads
		{150, 100, 0, ": nothing was imported: it was interrupted"}, // while it writes
		{175, 50, 50, ": 50 of 100 licences were imported; run it again with -skip-existing: it was interrupted"},
	} {
		e := s.importing(nil, []string{s.importFile(lines...), "-account", s.account, "-product", "kds"})
		e.ctx = &countdown{t.Context(), c.asks}
		oneLine(t, importLicenses(e, c.whole, c.whole), c.want)
		s.counts(c.stored, `SELECT count(*) FROM licenses`)
	}
}

// A trigger that refuses one row stands for every failure.
func TestImport_upToTenThousandRowsIsWholeAndALongerOneGoesOnWhereItWasCutOff(t *testing.T) {
	manyRowsUnderRace(t)
	t.Parallel()
	for more := range 2 {
		s := newService(t)
		whole, lines := size(100, 10_000), []string{"key"}
		n := whole + more
		for i := range n {
			lines = append(lines, fmt.Sprintf("IMPORTED-KEY-%08d", i))
		}
		file := s.importFile(lines...)
		// The last row but one can't be stored, though nothing is wrong with it.
		taken := licenseKey(lines[n-1]).hash()
		s.change(func(t *tx) error {
			_, err := t.try(fmt.Sprintf(`CREATE TRIGGER fault BEFORE INSERT ON license_keys
				WHEN new.hash = x'%x' BEGIN SELECT RAISE(ABORT, 'a fault'); END`, taken))
			return err
		})
		var noted strings.Builder
		_, err := s.runImport(whole, whole/10, "", &noted, file)
		want, stored, announced := fmt.Sprintf("nothing was imported: line %d: ", n), 0, ""
		if more > 0 {
			announced = fmt.Sprintf("importing %d rows, %d at a time: if this is cut off, run it again with "+
				"-skip-existing\n", n, whole/10)
			stored = whole - whole/10
			want = fmt.Sprintf("%d of %d licences were imported; run it again with -skip-existing: line %d: ", stored,
				n, n)
		}
		oneLine(t, err, want)
		equal(t, "what is said beforehand", noted.String(), announced)
		s.counts(stored, `SELECT count(*) FROM licenses`)
		s.change(func(t *tx) error { _, err := t.try(`DROP TRIGGER fault`); return err })
		out, err := s.runImport(whole, whole/10, "", io.Discard, file, "-skip-existing", "-json")
		s.check(err)
		sameText(t, "again", out, fmt.Sprintf(`{"imported":%d,"rows":%d,"skipped":%d}`+"\n", n-stored, n, stored))
		s.counts(n, `SELECT count(*) FROM licenses`)
	}
}

func TestExport_hasLicencesAndDevices(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{Plan: ptr("=cmd()"), terms: terms{MaxDevices: ptr(2)}})
	for range 3 {
		s.addLicense(license{})
	}
	s.post("/widget/license/activate", fmt.Sprintf(`{"license_key":%q,"fingerprint":"secret-fingerprint",`+
		`"device":{"name":"+Kitchen"}}`, key)).is(200)
	for _, what := range []string{"license", "device"} {
		out := s.must(what, "export", "-csv")
		rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
		s.check(err)
		lines := strings.Split(strings.TrimSpace(s.must(what, "export")), "\n")
		sameText(t, what+": rows of CSV", len(rows), len(lines)+1)
		for _, line := range lines {
			sameText(t, what+": valid JSON", json.Valid([]byte(line)), true)
		}
		if what == "device" && !strings.HasSuffix(strings.Join(rows[0], ","), ",clone_suspected_at,offline_until") {
			t.Errorf("a suspected clone, or an offline lease, is not in %s", rows[0])
		}
		hash := fingerprintHash("secret-fingerprint")
		for _, secret := range []string{key, "secret-fingerprint", fmt.Sprintf("%x", hash)} {
			if strings.Contains(out+strings.Join(lines, ""), secret) {
				t.Errorf("%s: the export holds %q", what, secret)
			}
		}
		if !strings.Contains(out, "'=cmd()") && !strings.Contains(out, "'+Kitchen") {
			t.Errorf("%s: a cell is a formula: %s", what, out)
		}
	}
}

// Whatever stands in a file of licences: a row in which nothing is wrong is one that
// the database takes.
func FuzzImport(f *testing.F) {
	const header = "key,plan,kind,state,trial,max_devices,max_transfers,starts_at,expires_at,grace_days," +
		"duration_days,expiry_basis,lease_hours,entitlements,metadata\n"
	f.Add([]byte(header + `LEGACY/KEY:with=any#ASCII,"Gold, old",floating,suspended,yes,3,1,2020-01-01,` +
		`2030-01-31T12:00:00Z,5,30,issue,24,kds reports,"{""n"":1}"` + "\n"))
	f.Add([]byte(header + newLicenseKey() + ",,,,,,,,,,,,,,\n"))
	f.Add([]byte("\ufeffkey\r\n\"SOME-KEY-0000000001\"\r\n"))
	f.Add([]byte("key,plan\nSOME-KEY-0000000001,\"\n"))
	f.Add([]byte("key,expires_at,grace_days\nSOME-KEY-0000000001,9000-12-31,3650\n"))
	f.Add([]byte("key,key\n"))
	f.Add([]byte("key;metadata;metadata.a;metadata.b\nSOME-KEY-0000000001;{ " +
		"};x;\"y\"\"\"\nA1B2C-D3E4F-G5H6J-K7L8M-N9P1Q;;;\n"))
	f.Add([]byte("key\texpires_at\nSOME-KEY-0000000001\t31.12.9000\n"))
	s := newService(f)
	e, enough := s.importing(nil, []string{"-", "-product", "kds"}), errors.New("rolled back")
	f.Fuzz(func(t *testing.T, file []byte) {
		im := &licenseImporter{env: e, st: s.store, owner: ownedBy(s.account)}
		if err := im.read(bytes.NewReader(file)); err != nil {
			return
		}
		err := s.store.update(context.Background(),
			func(tx *tx) error { return errors.Join(importRows(t.Context(), tx, im.rows, actorCommand), enough) })
		if !errors.Is(err, enough) || strings.Contains(err.Error(), "\n") {
			t.Fatalf("%q: %v", file, err)
		}
	})
}

// sameText compares what a test got with what it wants, as both are printed; more are further such pairs.
func sameText(t testing.TB, what, got, want any, more ...any) {
	t.Helper()
	for i, pairs := 0, append([]any{got, want}, more...); i < len(pairs); i += 2 {
		if fmt.Sprint(pairs[i]) != fmt.Sprint(pairs[i+1]) {
			t.Errorf("%v: %v, want %v", what, pairs[i], pairs[i+1])
		}
	}
}

// oneLine checks that an error is one line and says each of the parts.
func oneLine(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one that says %q", parts)
	}
	contains(t, err.Error(), parts...)
	if strings.ContainsAny(err.Error(), "\r\n") {
		t.Errorf("error %q is more than one line", err)
	}
}

// runInBubble is a subtest in a bubble.
func runInBubble(t *testing.T, name string, test func(t *testing.T, s *service)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inBubble(t, test) })
}

// tells checks members of the body, whose names and values alternate. A name goes down with its dots.
func (a answer) tells(pairs ...any) answer {
	a.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		var v any = a.json()
		for name := range strings.SplitSeq(pairs[i].(string), ".") {
			object, _ := v.(map[string]any)
			v = object[name]
		}
		got, _ := json.Marshal(v)
		if want, _ := json.Marshal(pairs[i+1]); string(got) != string(want) {
			a.t.Fatalf("%s is %s, want %s: %s", pairs[i], got, want, a.body)
		}
	}
	return a
}

// omits checks that none of some texts stands in the body.
func (a answer) omits(texts ...string) answer {
	a.t.Helper()
	for _, text := range texts {
		if strings.Contains(a.body, text) {
			a.t.Fatalf("there is %q in %d %s", text, a.status, a.body)
		}
	}
	return a
}

// challenged checks a refusal's status, code and exact WWW-Authenticate.
func (a answer) challenged(status int, code, challenge string) answer {
	a.t.Helper()
	return a.is(status, code).has("WWW-Authenticate: " + challenge)
}

// invalidToken checks the refusal of a token.
func (a answer) invalidToken() answer {
	a.t.Helper()
	return a.challenged(401, "invalid_token", invalidChallenge)
}

// deviceIs checks a condition, in SQL, of a device's row.
func (s *service) deviceIs(id, condition string, args ...any) {
	s.t.Helper()
	if s.count(`SELECT count(*) FROM devices WHERE id = ? AND `+condition, append([]any{id}, args...)...) != 1 {
		s.t.Errorf("not %s %v: %+v", condition, args, s.deviceRow(id))
	}
}

// keyFile is where the service's keys lie.
func (s *service) keyFile() string { return filepath.Join(s.dir, "widgetd.key") }

// failure runs a command and returns its error.
func (s *service) failure(args ...string) error {
	s.t.Helper()
	_, err := s.command(args...)
	return err
}

// fails runs a command that must fail and say something.
func (s *service) fails(want string, args ...string) {
	s.t.Helper()
	if err := s.failure(args...); err == nil || !strings.Contains(err.Error(), want) {
		s.t.Errorf("widgetd %q: %v, want %q", args, err, want)
	}
}

// license asks an endpoint of devices with the members of a body, and with a header unless that is "".
func (s *service) license(path, auth string, members ...any) answer {
	s.t.Helper()
	if auth == "" {
		return s.post("/widget/license/"+path, seatBody(members...))
	}
	return s.post("/widget/license/"+path, seatBody(members...), auth)
}

// deactivate releases a device by its key.
func (s *service) deactivate(key, fingerprint string) answer {
	s.t.Helper()
	return s.post("/widget/license/deactivate", activateBody(key, fingerprint))
}

// activateByToken activates by device token; more are members of the body.
func (s *service) activateByToken(token string, more ...any) answer {
	s.t.Helper()
	return s.post("/widget/license/activate", seatBody(more...), bearer(token))
}

// deactivateByToken releases a device by its token; more are members of the body.
func (s *service) deactivateByToken(token string, more ...any) answer {
	s.t.Helper()
	return s.post("/widget/license/deactivate", seatBody(more...), bearer(token))
}

// release releases a device as a portal does.
func (s *service) release(licenseID, deviceID string) {
	s.t.Helper()
	s.do("DELETE", "/licenses/"+licenseID+"/devices/"+deviceID, "", s.auth(s.account, scopeDevices)).is(204)
}
