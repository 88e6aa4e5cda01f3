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
	"slices"
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
	file := s.importFile("\ufeffkey,plan,kind,state,reason,trial,max_devices,max_transfers,starts_at,expires_at,grace_days,lease_hours,entitlements,metadata",
		`LEGACY/KEY:with=any#ASCII,"Gold, old",floating,suspended,unpaid,yes,3,1,2020-01-01,2030-01-31T12:00:00Z,5,24,kds reports,"{""n"":1}"`,
		own+",,,,,,,,,,,,,")
	if out := s.must("license", "import", file, "-account", s.account, "-product", "kds", "-dry-run"); !strings.Contains(out, "2 rows are valid; nothing was imported") {
		t.Fatal(out)
	}
	if s.count(`SELECT count(*) FROM licenses`)+s.count(`SELECT count(*) FROM events`) != 0 {
		t.Fatal("a dry run wrote something")
	}
	if out := s.must("license", "import", file, "-account", s.account, "-product", "kds", "-json"); out != `{"imported":2,"rows":2}`+"\n" {
		t.Fatal(out)
	}
	a := s.verifyKey("LEGACY/KEY:with=any#ASCII", "a").answers("suspended")
	if l := a.json()["license"].(map[string]any); l["plan"] != "Gold, old" || l["kind"] != "floating" || l["trial"] != true || l["expires_at"] != "2030-01-31T12:00:00Z" || l["grace_until"] != "2030-02-05T12:00:00Z" {
		t.Fatal(a.body)
	}
	s.activate(strings.ToLower(own), "a").is(200)
	if n := s.count(`SELECT count(*) FROM events WHERE type = 'license.created' AND actor = 'command'`); n != 2 {
		t.Fatalf("%d events", n)
	}
	if _, err := s.command("license", "import", file, "-account", s.account, "-product", "kds"); err == nil ||
		!strings.Contains(err.Error(), "line 2: key: a licence with this key exists already\nline 3: key: a licence") {
		t.Fatalf("the same file again: %v", err)
	}
	if n := s.count(`SELECT count(*) FROM licenses`); n != 2 {
		t.Fatalf("%d licences", n)
	}
}

func TestImport_isKeptOutByOneBadRowNamedByItsLine(t *testing.T) {
	t.Parallel()
	s := newService(t)
	good := "GOOD-KEY-0000000001"
	header := "key,account_id,product,state,max_devices,expires_at,starts_at,expiry_basis,trial,entitlements,metadata"
	for row, want := range map[string]string{
		"short,,kds,,,,,,,,":                                              "line 3: key: it must have 16 to 255",
		newLicenseKey()[:28] + "!,,kds,,,,,,,,":                           "line 3: key: it must have 16 to 255",
		good + ",,kds,,,,,,,,":                                            "line 3: key: it is on line 2 already",
		"GOOD-KEY-0000000002,acct_x,kds,,,,,,,,":                          "line 3: account_id: There is no such account",
		"GOOD-KEY-0000000002,,,,,,,,,,":                                   "line 3: product: A product is required.",
		"GOOD-KEY-0000000002,,kds,paused,,,,,,,":                          "line 3: state: ",
		"GOOD-KEY-0000000002,,kds,,0,,,,,,":                               "line 3: max_devices: ",
		"GOOD-KEY-0000000002,,kds,,x,,,,,,":                               "line 3: max_devices: ",
		"GOOD-KEY-0000000002,,kds,,,tomorrow,,,,,":                        "line 3: expires_at: ",
		"GOOD-KEY-0000000002,,kds,,,2020-01-01,2021-01-01,,,,":            "line 3: expires_at: The licence would end before it starts.",
		"GOOD-KEY-0000000002,,kds,,,,,first_activation,,,":                "line 3: duration_days: ",
		"GOOD-KEY-0000000002,,kds,,,,,,maybe,,":                           "line 3: trial: ",
		"GOOD-KEY-0000000002,,kds,,,,,,,-a,":                              "line 3: entitlements: -a: ",
		"GOOD-KEY-0000000002,,kds,,,,,,,,[]":                              "line 3: metadata: ",
		"GOOD-KEY-0000000002,,kds":                                        "line 3: it has 3 cells and the header 11",
		`GOOD"KEY-0000000002,,kds,,,,,,,,`:                                "line 3: its quotes are wrong at line 3, column 5: bare",
		"\"GOOD-KEY-0000000002\n\"x,,kds,,,,,,,,":                         "line 3: its quotes are wrong at line 4, column ",
		`"GOOD-KEY-0000000002,,kds,,,,,,,,`:                               "line 3: its quotes are wrong at line ",
		"\"GOOD-KEY-\n0000000002\",,kds,,,,,,,,":                          "line 3: key: it must have 16 to 255",
		"GOOD-KEY-0000000002,,K\xfcche,,,,,,,,":                           "line 3: product: This must be UTF-8.",
		"GOOD-KEY-0000000002,acct_00000000000000000000000000,kds,,,,,,,,": "line 3: account_id: There is no such account",
	} {
		_, err := s.command("license", "import", s.importFile(header, good+",,kds,,,,,,,,", row), "-account", s.account)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", row, err, want)
		}
	}
	for head, want := range map[string]string{
		"":             "it is empty",
		"plan":         "the column key is missing",
		"key;plan":     "separated by commas",
		"key,colour":   `column "colour" is unknown`,
		"key,plan,key": `column "key" is unknown or appears twice`,
	} {
		if _, err := s.command("license", "import", s.importFile(head), "-account", s.account); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", head, err, want)
		}
	}
	if s.count(`SELECT count(*) FROM licenses`)+s.count(`SELECT count(*) FROM events`) != 0 {
		t.Fatal("a bad file left rows")
	}
	for want, options := range map[string][]string{
		`-product: This must not contain control characters.`:                            {"-account", s.account, "-product", "a\nb"},
		`-account: "acct_x" is not an id of the kind acct_…`:                             {"-account", "acct_x"},
		`line 2: account_id: The row names no account, and -account is not given.`:       nil,
		`no database at gone: run 'widgetd init' first, or mount the disk that holds it`: {"-db", "gone"},
	} {
		_, err := s.command(append([]string{"license", "import", s.importFile(header, good+",,kds,,,,,,,,")}, options...)...)
		if err == nil || err.Error() != want && !strings.HasSuffix(err.Error(), ": nothing was imported: "+want) {
			t.Errorf("%q: %v, want %q", options, err, want)
		}
	}
}

func TestImport_namesEveryBadRowAtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	known := "KNOWN-KEY-00000001"
	s.must("license", "import", s.importFile("key", known), "-account", s.account, "-product", "kds")
	rows := []string{"key,account_id,product,max_devices",
		"GOOD-KEY-0000000003,,,", // line 2
		known + ",,,",            // 3: in the database
		"short,,,",               // 4
		"",                       // 5: an empty line is none
		"GOOD-KEY-0000000006,,",  // 6: a cell short
		`GOOD"KEY-0000000007,,,`, // 7: a quote inside
		"GOOD-KEY-0000000008,,\"kds,\nor \"\"pos\"\"\",1",           // 8 and 9: a line break
		"GOOD-KEY-0000000010,acct_00000000000000000000000000,,x",    // 10: two faults
		"GOOD-KEY-0000000003,,,",                                    // 11: line 2 again
		known + ",,,0",                                              // 12: twice here, wrong, and there
		newLicenseKey()[:28] + "!,,,\r",                             // 13
		strings.Repeat("short,,,\n", 200) + "\"GOOD-KEY-0000000214", // 14 to 213, and a quote that is never closed
	}
	for _, more := range []string{"-dry-run", "-json"} {
		_, err := s.command("license", "import", s.importFile(rows...), "-account", s.account, "-product", "kds", more)
		if err == nil {
			t.Fatal("it was imported")
		}
		var named []string
		for _, line := range strings.Split(err.Error(), "\n") {
			_, after, _ := strings.Cut(line, "line ")
			number, what, _ := strings.Cut(after, ": ")
			named = append(named, number+" "+strings.Fields(what)[0])
		}
		want := []string{"3 key:", "4 key:", "6 it", "7 its", "8 product:", "10 max_devices:", "10 account_id:", "11 key:", "12 key:", "12 max_devices:", "12 key:", "13 key:"}
		for line := 14; line < 214; line++ {
			want = append(want, fmt.Sprint(line, " key:"))
		}
		want = append(want, "214 its")
		if !slices.Equal(named, want) {
			t.Errorf("%s: named %q\nwant %q", more, named, want)
		}
	}
	if n := s.count(`SELECT count(*) FROM licenses`); n != 1 {
		t.Fatalf("%d licences", n)
	}
}

func TestImport_showsItsProgressWhenItIsLong(t *testing.T) {
	t.Parallel()
	s := newService(t)
	rows := []string{"key"}
	for i := range importProgress + 1 {
		rows = append(rows, fmt.Sprintf("IMPORTED-KEY-%08d", i))
	}
	file := s.importFile(rows...)
	for _, try := range [][2]string{{"-dry-run", "10000 rows read\n"}, {"-dry-run=false", "10000 rows read\n10000 rows written\n"}} {
		option, want := try[0], try[1]
		var out, progress strings.Builder
		args := []string{"license", "import", file, "-account", s.account, "-product", "kds", "-db", s.store.path, "-json", option}
		s.check(run(t.Context(), args, func(string) string { return "" }, &out, &progress))
		if progress.String() != want || !json.Valid([]byte(out.String())) {
			t.Errorf("%s: %q on standard error, %q on standard output", option, progress.String(), out.String())
		}
	}
}

func TestExport_hasLicencesAndDevices(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{Plan: ptr("=cmd()"), MaxDevices: ptr(2)})
	for range 3 {
		s.addLicense(license{})
	}
	s.post("/widget/license/activate", fmt.Sprintf(`{"license_key":%q,"fingerprint":"secret-fingerprint","device":{"name":"+Kitchen"}}`, key)).is(200)
	for _, what := range []string{"license", "device"} {
		out := s.must(what, "export", "-csv")
		rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
		s.check(err)
		lines := strings.Split(strings.TrimSpace(s.must(what, "export")), "\n")
		if len(rows) != len(lines)+1 {
			t.Errorf("%s: %d rows of CSV and %d of JSON", what, len(rows), len(lines))
		}
		for _, line := range lines {
			if !json.Valid([]byte(line)) {
				t.Errorf("%s: %q is not JSON", what, line)
			}
		}
		if what == "device" && rows[0][len(rows[0])-1] != "clone_suspected_at" {
			t.Errorf("a suspected clone is not in %s", rows[0])
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
	const header = "key,plan,kind,state,trial,max_devices,max_transfers,starts_at,expires_at,grace_days,duration_days,expiry_basis,lease_hours,entitlements,metadata\n"
	f.Add([]byte(header + `LEGACY/KEY:with=any#ASCII,"Gold, old",floating,suspended,yes,3,1,2020-01-01,2030-01-31T12:00:00Z,5,30,issue,24,kds reports,"{""n"":1}"` + "\n"))
	f.Add([]byte(header + newLicenseKey() + ",,,,,,,,,,,,,,\n"))
	f.Add([]byte("\ufeffkey\r\n\"SOME-KEY-0000000001\"\r\n"))
	f.Add([]byte("key,plan\nSOME-KEY-0000000001,\"\n"))
	f.Add([]byte("key,expires_at,grace_days\nSOME-KEY-0000000001,9000-12-31,3650\n"))
	f.Add([]byte("key,key\n"))
	s := newService(f)
	e := &env{stderr: io.Discard, now: time.Now}
	enough := errors.New("rolled back")
	f.Fuzz(func(t *testing.T, file []byte) {
		var faults importErrors
		rows, err := e.readImport(bytes.NewReader(file), license{AccountID: s.account, Product: "kds"}, &faults)
		if err == nil {
			err = checkImport(s.store, rows, &faults)
		}
		if err != nil || faults.err() != nil {
			return
		}
		err = s.store.update(context.Background(), func(t *tx) error { return errors.Join(importRows(e, t, rows), enough) })
		if !errors.Is(err, enough) || strings.Contains(err.Error(), "\n") {
			t.Fatalf("%q: %v", file, err)
		}
	})
}

// BenchmarkImport takes over 100,000 licences; the issue of one run is its time:
//
//	go test -run '^$' -bench Import -benchtime 1x
func BenchmarkImport(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		s := newService(b)
		lines := []string{"key,plan,max_devices,expires_at"}
		for i := range 100_000 {
			lines = append(lines, fmt.Sprintf("IMPORTED-KEY-%08d,pro,3,2030-01-01", i))
		}
		file := s.importFile(lines...)
		b.StartTimer()
		s.must("license", "import", file, "-account", s.account, "-product", "kds")
	}
}
