package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// importFile writes a CSV file.
func (s *service) importFile(lines ...string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, "import.csv")
	s.check(os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	return path
}

func TestLicencesAreImportedWithTheirKeys(t *testing.T) {
	s := newService(t)
	own := newLicenseKey()
	file := s.importFile("\ufeffkey,plan,kind,state,reason,trial,max_devices,max_transfers,starts_at,expires_at,grace_days,lease_hours,entitlements,metadata",
		`LEGACY/KEY:with=any#ASCII,"Gold, old",floating,suspended,unpaid,yes,3,1,2020-01-01,2030-01-31T12:00:00Z,5,24,kds reports,"{""n"":1}"`,
		own+",,,,,,,,,,,,,")
	if out := s.must("license", "import", file, "-account", s.account, "-product", "kds", "-dry-run"); !strings.Contains(out, "2 rows are right; nothing was imported") {
		t.Fatal(out)
	}
	if s.count(`SELECT count(*) FROM licenses`)+s.count(`SELECT count(*) FROM events`) != 0 {
		t.Fatal("a dry run wrote something")
	}
	if out := s.must("license", "import", file, "-account", s.account, "-product", "kds", "-json"); out != `{"imported":2,"rows":2}`+"\n" {
		t.Fatal(out)
	}
	a := s.verify("LEGACY/KEY:with=any#ASCII", "a", "suspended", false)
	if l := a.json()["license"].(map[string]any); l["plan"] != "Gold, old" || l["kind"] != "floating" || l["trial"] != true || l["expires_at"] != "2030-01-31T12:00:00Z" || l["grace_until"] != "2030-02-05T12:00:00Z" {
		t.Fatal(a.body)
	}
	s.activate(strings.ToLower(own), "a").is(200)
	if n := s.count(`SELECT count(*) FROM events WHERE type = 'license.created' AND actor = 'command'`); n != 2 {
		t.Fatalf("%d events", n)
	}
	if _, err := s.command("license", "import", file, "-account", s.account, "-product", "kds"); err == nil ||
		!strings.Contains(err.Error(), "line 2: key: a licence with this key is there already\nline 3: key: a licence") {
		t.Fatalf("the same file again: %v", err)
	}
	if n := s.count(`SELECT count(*) FROM licenses`); n != 2 {
		t.Fatalf("%d licences", n)
	}
}

func TestOneBadRowKeepsAnImportOutAndIsNamedByItsLine(t *testing.T) {
	s := newService(t)
	good := "GOOD-KEY-0000000001"
	header := "key,account_id,product,state,max_devices,expires_at,starts_at,expiry_basis,trial,entitlements,metadata"
	for row, want := range map[string]string{
		"short,,kds,,,,,,,,":                                              "line 3: key: it must have 16 to 255",
		newLicenseKey()[:28] + "!,,kds,,,,,,,,":                           "line 3: key: it must have 16 to 255",
		good + ",,kds,,,,,,,,":                                            "line 3: key: it stands on line 2 already",
		"GOOD-KEY-0000000002,acct_x,kds,,,,,,,,":                          "line 3: account_id: ",
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
		"GOOD-KEY-0000000002,,caf\xe9,,,,,,,,":                            "line 3: product: This must be UTF-8.",
		"GOOD-KEY-0000000002,,kds":                                        "record on line 3: wrong number of fields",
		"GOOD-KEY-0000000002,acct_00000000000000000000000000,kds,,,,,,,,": "line 3: account_id: There is no such account",
	} {
		_, err := s.command("license", "import", s.importFile(header, good+",,kds,,,,,,,,", row), "-account", s.account)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", row, err, want)
		}
	}
	for head, want := range map[string]string{
		"plan":         "the column key is missing",
		"key,colour":   `column "colour" is unknown`,
		"key,plan,key": `column "key" is unknown or there twice`,
	} {
		if _, err := s.command("license", "import", s.importFile(head), "-account", s.account); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", head, err, want)
		}
	}
	if s.count(`SELECT count(*) FROM licenses`)+s.count(`SELECT count(*) FROM events`) != 0 {
		t.Fatal("a bad file left rows")
	}
	rows := []string{"key"}
	for i := range 150 {
		rows = append(rows, fmt.Sprint("bad", i))
	}
	if _, err := s.command("license", "import", s.importFile(rows...), "-account", s.account, "-product", "kds"); err == nil || !strings.Contains(err.Error(), "line 101: ") || !strings.HasSuffix(err.Error(), "and 50 more") {
		t.Errorf("many bad rows: %v", err)
	}
}

func TestLicencesAndDevicesAreExported(t *testing.T) {
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
