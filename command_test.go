package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// An operator runs commands on a directory of its own. Where the files lie comes
// from the environment, as on a server.
type operator struct {
	t       testing.TB
	dir     string
	env     map[string]string
	account string // the main one
	ran     map[string]bool
	told    *discretion // what was printed in confidence
	noted   string      // what the last command wrote to standard error
}

// newOperator runs init.
func newOperator(t testing.TB) *operator {
	t.Helper()
	dir := t.TempDir()
	o := &operator{t: t, dir: dir, ran: map[string]bool{}, told: newDiscretion(t),
		env: map[string]string{"WIDGETD_DB": filepath.Join(dir, "widgetd.db"), "WIDGETD_KEY": filepath.Join(dir, "widgetd.key")}}
	o.account = o.object("init", "-origin", siteOrigin+",https://Partner.example:443")["account_id"].(string)
	ring, err := loadKeyring(o.env["WIDGETD_KEY"])
	if err != nil {
		t.Fatal(err)
	}
	o.told.keyFile(t, ring)
	t.Cleanup(func() { o.told.check(t, nil, filepath.Join(dir, "widgetd.db")) })
	return o
}

// try runs a command and returns what it printed.
func (o *operator) try(args ...string) (string, error) {
	o.t.Helper()
	var stdout, stderr bytes.Buffer
	err := run(o.t.Context(), args, func(name string) string { return o.env[name] }, &stdout, &stderr)
	if cmd, _ := findCommand(args); cmd != nil && err == nil {
		o.ran[cmd.name] = true
	}
	o.told.hear(stdout.String())
	if o.noted = stderr.String(); o.noted != "" && !strings.HasPrefix(o.noted, "these are the first ") {
		o.t.Errorf("widgetd %q wrote to standard error: %s", args, o.noted)
	}
	return stdout.String(), err
}

// do runs a command that must succeed.
func (o *operator) do(args ...string) string {
	o.t.Helper()
	out, err := o.try(args...)
	if err != nil {
		o.t.Fatalf("widgetd %q: %v\n%s", args, err, out)
	}
	return out
}

// objects runs a command with -json behind its arguments and returns the objects
// it printed, one a line.
func (o *operator) objects(args ...string) (all []map[string]any) {
	o.t.Helper()
	for line := range strings.Lines(o.do(append(args, "-json")...)) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			o.t.Fatalf("widgetd %q: %q is no JSON object: %v", args, line, err)
		}
		all = append(all, v)
	}
	return all
}

func (o *operator) object(args ...string) map[string]any {
	o.t.Helper()
	all := o.objects(args...)
	if len(all) != 1 {
		o.t.Fatalf("widgetd %q printed %d objects", args, len(all))
	}
	return all[0]
}

// fails runs a command that must fail with that text, in one line.
func (o *operator) fails(want string, args ...string) error {
	o.t.Helper()
	_, err := o.try(args...)
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		o.t.Errorf("widgetd %q: %v, want one line with %q", args, err, want)
	}
	return err
}

// store opens the operator's database for the test to look into.
func (o *operator) store(f func(*store)) {
	o.t.Helper()
	s, err := openStore(o.env["WIDGETD_DB"], storeOptions{keepLog: true})
	if err != nil {
		o.t.Fatal(err)
	}
	f(s)
	if err := s.close(); err != nil {
		o.t.Fatal(err)
	}
}

func (o *operator) change(f func(*tx) error) {
	o.t.Helper()
	o.store(func(s *store) {
		if err := s.update(o.t.Context(), f); err != nil {
			o.t.Fatal(err)
		}
	})
}

// addLeads puts leads there, each posted a day before the one before it.
func (o *operator) addLeads(emails ...string) {
	o.t.Helper()
	o.change(func(t *tx) error {
		for i, email := range emails {
			source, page := "=footer", "/+menu"
			if _, err := t.at(-time.Duration(i) * 24 * time.Hour).addLead(lead{AccountID: o.account, Type: "newsletter", Email: email, Source: &source, Page: &page}); err != nil {
				return err
			}
		}
		return nil
	})
}

// column returns one member of each object.
func column(rows []map[string]any, name string) (all []any) {
	for _, row := range rows {
		all = append(all, row[name])
	}
	return all
}

// addDevice puts an active device on a licence.
func (o *operator) addDevice(licenseID, kid string) (id string) {
	o.t.Helper()
	o.change(func(t *tx) error {
		id = t.newID("dev")
		hash := fingerprintHash(id)
		return t.saveDevice(&device{ID: id, LicenseID: licenseID, Fingerprint: hash[:], State: deviceActive, ActivatedAt: t.now, LastSeenAt: t.now,
			LeaseKid: kid, LeasedAt: t.now, LeaseExpiresAt: t.now.after(time.Hour)})
	})
	return id
}

func TestEveryCommandDoesWhatItsHelpSays(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	for name, story := range map[string]func(*testing.T, *operator){
		"accounts": accountStory, "licences": licenseStory, "tokens": tokenStory, "keys": keyStory, "leads": leadStory, "statistics": statsStory,
	} {
		t.Run(name, func(t *testing.T) {
			o.t = t
			story(t, o)
		})
	}
	o.t = t
	o.do("help")
	if v := o.object("version"); v["version"] == "" || o.do("version") != v["version"].(string)+"\n" {
		t.Errorf("version %v", v)
	}
	for _, c := range commands {
		if !o.ran[c.name] && c.name != "serve" && c.name != "demo" && c.name != "lease inspect" { // those have tests of their own
			t.Errorf("no test runs %q", c.name)
		}
	}
}

func accountStory(t *testing.T, o *operator) {
	id := o.object("account", "add", "Trattoria Roma")["id"].(string)
	if plain := strings.TrimSpace(o.do("account", "add", "Other")); !validID("acct", id) || !validID("acct", plain) {
		t.Errorf("ids %q, %q", id, plain)
	}
	o.do("account", "rate", id, "1200")
	o.do("account", "close", id)
	rows := o.objects("account", "list")
	if got := column(rows, "name"); !slices.Equal(got, []any{"main", "Trattoria Roma", "Other"}) {
		t.Errorf("names %v", got)
	}
	if rows[1]["rate"] != 1200.0 || rows[1]["closed_at"] == nil || rows[0]["rate"] != 600.0 || rows[0]["closed_at"] != nil || rows[0]["main"] != true {
		t.Errorf("rows %v", rows)
	}
	if table := o.do("account", "list"); !regexp.MustCompile(`(?m)^` + id + `  Trattoria Roma +- +1200 +\d{4}-`).MatchString(table) {
		t.Errorf("table:\n%s", table)
	}
	o.fails("the main account can't be closed", "account", "close", o.account)
	o.fails("is closed", "token", "issue", "-account", id, "-scope", "stats:read")

	o.do("origin", "add", "-account", o.account, "HTTPS://Shop.Example.com:443")
	o.do("origin", "add", "https://shop.example.com", "-account", o.account) // again is fine
	if got := column(o.objects("origin", "list"), "origin"); !slices.Equal(got, []any{"https://partner.example", "https://shop.example.com", siteOrigin}) {
		t.Errorf("origins %v", got)
	}
	other := strings.TrimSpace(o.do("account", "add", "Other"))
	o.fails("already belongs to "+o.account, "origin", "add", siteOrigin, "-account", other)
	o.do("origin", "remove", "https://shop.example.com")
	o.fails("the list command shows the ids", "origin", "remove", "https://shop.example.com")

	o.do("base-url", "set", "https://API.example.com/api/v1")
	if got := column(o.objects("base-url"), "url"); !slices.Equal(got, []any{"https://api.example.com/api/v1", testBase}) {
		t.Errorf("base addresses %v", got)
	}
	o.fails("the current one can only be replaced", "base-url", "remove", "https://api.example.com/api/v1")
	o.do("base-url", "remove", testBase)
	if got := column(o.objects("base-url"), "current"); !slices.Equal(got, []any{true}) {
		t.Errorf("base addresses %v", got)
	}
}

func licenseStory(t *testing.T, o *operator) {
	added := o.object("license", "add", "-account", o.account, "-product", "kds", "-plan", "pro", "-max-devices", "3", "-expires", "365d",
		"-grace-days", "14", "-lease-hours", "48", "-entitlements", "a,b", "-trial", "-metadata", `{"order":17}`)
	id, key := added["id"].(string), added["key"].(string)
	if _, err := parseLicenseKey(key); err != nil || !validID("lic", id) || len(added) != 2 {
		t.Errorf("added %v: %v", added, err)
	}
	text := o.do("license", "add", "-account", o.account, "-product", "board", "-starts", "2099-01-01")
	if !regexp.MustCompile(`^id:  lic_\w{26}\nkey: ([0-9A-Z]{5}-){4}[0-9A-Z]{5}  \(shown once\)\n$`).MatchString(text) {
		t.Errorf("for people: %q", text)
	}
	board := regexp.MustCompile(`lic_\w{26}`).FindString(text)
	device := o.addDevice(id, "a-key")
	shown := o.object("license", "show", id)
	if devices := shown["devices"].([]any); len(devices) != 1 || devices[0].(map[string]any)["id"] != device {
		t.Errorf("its devices: %v", devices)
	}
	if shown["status"] != "active" || shown["max_devices"] != 3.0 || shown["trial"] != true || shown["lease_hours"] != 48.0 || shown["grace_days"] != 14.0 ||
		fmt.Sprint(shown["entitlements"], shown["seats"], shown["metadata"]) != "[a b] map[free:2 max:3 used:1] map[order:17]" {
		t.Errorf("shown %v", shown)
	}
	all := o.do("license", "list") + o.do("license", "list", "-json") + o.do("license", "show", id) + o.do("events", "-json")
	if strings.Contains(all, key) || !strings.Contains(all, "…"+key[len(key)-5:]) {
		t.Errorf("the key is shown again, or its hint isn't:\n%s", all)
	}
	if got := column(o.objects("license", "list", "-limit", "1"), "status"); !slices.Equal(got, []any{"not_started"}) || o.noted != "these are the first 1; there are more: -limit N shows them\n" {
		t.Errorf("the newest: %v, %q", got, o.noted)
	}
	for _, filter := range [][]string{{"-status", "active"}, {"-product", "kds"}, {"-search", "PRO"}, {"-search", key[len(key)-5:]}, {"-status", "active", "-account", o.account}} {
		if got := column(o.objects(append([]string{"license", "list"}, filter...)...), "id"); !slices.Contains(got, any(id)) || slices.Contains(got, any(board)) || o.noted != "" {
			t.Errorf("%q: %v, %q", filter, got, o.noted)
		}
	}
	if got := o.objects("license", "list", "-status", "grace"); len(got) > 0 {
		t.Errorf("in grace: %v", got)
	}
	if got := o.object("license", "patch", id, `{"plan":null,"duration_days":10}`); got["plan"] != nil || got["duration_days"] != 10.0 {
		t.Errorf("patched: %v", got)
	}
	before := shown["expires_at"].(string)
	if got := o.object("license", "renew", id); got["expires_at"] == before || got["expires_at"] != o.object("license", "show", id)["expires_at"] {
		t.Errorf("renewed: %v", got)
	}
	if got := o.object("license", "rotate-key", id, "-old-key-until", "7d"); got["id"] != id || got["key"] == key {
		t.Errorf("rotated: %v", got)
	}
	file := filepath.Join(o.dir, "import.csv")
	if err := os.WriteFile(file, []byte("key\nTHE-KEY-OF-ANOTHER-TIME\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := o.object("license", "import", file, "-account", o.account, "-product", "kds"); got["imported"] != 1.0 {
		t.Errorf("imported: %v", got)
	}
	if got := column(o.objects("license", "export"), "id"); !slices.Contains(got, any(id)) {
		t.Errorf("licences exported: %v", got)
	}
	if got := column(o.objects("device", "export"), "license_id"); !slices.Contains(got, any(id)) {
		t.Errorf("devices exported: %v", got)
	}
	o.fails("-public FILE is needed", "lease", "inspect", "x")
	for _, step := range [][2]string{{"suspend", "suspended"}, {"reinstate", "active"}, {"revoke", "revoked"}} {
		if got := o.object("license", step[0], id, "-reason", "a test"); got["status"] != step[1] {
			t.Errorf("%s: %v", step[0], got)
		}
	}
	o.fails("illegal_transition: The licence is revoked; suspend does not apply to it.", "license", "suspend", id)

	o.do("device", "block", device)
	if got := column(o.objects("device", "list", id), "state"); !slices.Equal(got, []any{deviceBlocked}) {
		t.Errorf("devices %v", got)
	}
	o.do("device", "release", device)
	o.do("device", "release", device)
	if table := o.do("device", "list", id); !strings.Contains(table, device) || !strings.Contains(table, " released ") || !strings.HasSuffix(table, " operator\n") {
		t.Errorf("devices:\n%s", table)
	}
	types := fmt.Sprint(column(o.objects("events", "-limit", "5"), "type"))
	if types != "[device.released device.blocked license.revoked license.reinstated license.suspended]" {
		t.Errorf("events %s", types)
	}
}

func tokenStory(t *testing.T, o *operator) {
	out := o.do("token", "issue", "-account", o.account, "-scope", "stats:read leads:read", "-client-id", "portal")
	token, alone := strings.CutSuffix(out, "\n")
	if !alone || strings.Count(token, ".") != 2 || strings.ContainsAny(token, " \n") {
		t.Fatalf("printed %q, want the token alone", out)
	}
	ring, err := loadKeyring(o.env["WIDGETD_KEY"])
	if err != nil {
		t.Fatal(err)
	}
	c, err := ring.verify(token)
	if err != nil || c.Subject != o.account || c.Scope != "stats:read leads:read" || c.ClientID != "portal" || c.Expires-c.IssuedAt != 720*3600 {
		t.Errorf("claims %+v, %v", c, err)
	}
	issued := o.object("token", "issue", "-account", o.account, "-scope", "admin", "-ttl", "90d", "-all-accounts")
	if !validID("tok", issued["id"].(string)) || issued["token"] == nil || issued["expires_at"] == nil {
		t.Errorf("issued %v", issued)
	}
	o.do("token", "revoke", issued["id"].(string))
	rows := o.objects("token", "list")
	if len(rows) != 2 || rows[0]["id"] != issued["id"] || rows[0]["revoked_at"] == nil || rows[0]["all_accounts"] != true || rows[1]["revoked_at"] != nil {
		t.Errorf("rows %v", rows)
	}
	if all := o.do("token", "list") + o.do("token", "list", "-json"); strings.Contains(all, strings.Split(token, ".")[2]) {
		t.Error("a token is shown again")
	}
}

func keyStory(t *testing.T, o *operator) {
	secret, err := loadKeyring(o.env["WIDGETD_KEY"])
	if err != nil {
		t.Fatal(err)
	}
	first := o.object("key", "public")
	if first["signs"] != true || !strings.HasPrefix(first["pem"].(string), "-----BEGIN PUBLIC KEY-----") {
		t.Errorf("public %v", first)
	}
	if text := o.do("key", "public"); text != first["pem"].(string) {
		t.Errorf("for pinning: %q", text)
	}
	o.fails("make another with 'widgetd key add'", "key", "rotate")
	second := o.object("key", "add")["kid"]
	o.fails("wait, or add -force", "key", "rotate")
	o.do("key", "rotate", "-force")
	o.fails("this key signs", "key", "retire", second.(string))
	id := o.object("license", "add", "-account", o.account, "-product", "kds")["id"].(string)
	o.addDevice(id, first["kid"].(string))
	o.fails("1 unexpired device leases", "key", "retire", first["kid"].(string))
	o.fails("'widgetd key public -json' shows the kids", "key", "retire", "nonsense")
	o.do("key", "retire", first["kid"].(string), "-force")
	if got := column(o.objects("key", "public"), "kid"); !slices.Equal(got, []any{second}) {
		t.Errorf("keys %v, want %v", got, second)
	}
	ring, err := loadKeyring(o.env["WIDGETD_KEY"])
	if err != nil || !bytes.Equal(ring.secret, secret.secret) {
		t.Errorf("the secret has changed: %v", err)
	}
	if names := dirNames(t, o.dir); slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, ".new") }) {
		t.Errorf("left behind: %q", names)
	}
	if info, err := os.Stat(o.env["WIDGETD_KEY"]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v", info.Mode(), err)
	}
}

func leadStory(t *testing.T, o *operator) {
	o.addLeads("=cmd@example.com", "bob@example.com", "+carl@example.com", "old@example.com")
	rows := o.objects("leads", "export")
	if got := column(rows, "email"); !slices.Equal(got, []any{"=cmd@example.com", "bob@example.com", "+carl@example.com", "old@example.com"}) {
		t.Errorf("exported %v", got)
	}
	cells, err := csv.NewReader(strings.NewReader(o.do("leads", "export", "-csv"))).ReadAll()
	if err != nil || len(cells) != 5 || !slices.Equal(cells[0], []string{"id", "account_id", "type", "email", "source", "page", "created_at"}) {
		t.Fatalf("CSV %q, %v", cells, err)
	}
	if got := cells[1][3:6]; !slices.Equal(got, []string{"'=cmd@example.com", "'=footer", "/+menu"}) || cells[2][3] != "bob@example.com" || cells[3][3] != "'+carl@example.com" {
		t.Errorf("CSV %q", cells)
	}
	if got := o.object("leads", "purge", "-older-than", "36h"); got["purged"] != 2.0 {
		t.Errorf("purged %v", got)
	}
	o.fails("-older-than DURATION is needed", "leads", "purge")
	got := o.object("leads", "erase", "BOB@example.com")
	if got["erased"] != 1.0 || !strings.Contains(got["note"].(string), "no trace of the address is left in the file or its log; copies in backups end with their retention") {
		t.Errorf("erased %v", got)
	}
	if got := o.object("leads", "erase", "bob@example.com", "-litestream"); got["erased"] != 0.0 || !strings.Contains(got["note"].(string), "replica") {
		t.Errorf("erased %v", got)
	}
	copied := filepath.Join(o.dir, "copy.db")
	if out := o.do("backup", copied); !strings.Contains(out, copied+": written and checked") {
		t.Errorf("backup: %s", out)
	}
	o.fails("file already exists", "backup", copied)
	o.env["WIDGETD_DB"], copied = copied, o.env["WIDGETD_DB"]
	if got := column(o.objects("leads", "export"), "email"); !slices.Equal(got, []any{"=cmd@example.com"}) {
		t.Errorf("in the copy: %v", got)
	}
	o.env["WIDGETD_DB"] = copied
	if report := o.object("check"); report["ok"] != true || fmt.Sprint(report["faults"]) != "[]" {
		t.Errorf("check: %v", report)
	}
}

func statsStory(t *testing.T, o *operator) {
	id := o.object("widget", "add", "-account", o.account, "Lunch", "-public-orders")["id"].(string)
	other := strings.TrimSpace(o.do("widget", "add", "Dinner", "-account", o.account))
	if rows := o.objects("widget", "list"); len(rows) != 2 || rows[0]["id"] != id || rows[0]["public_orders"] != true || rows[1]["id"] != other || rows[1]["public_orders"] != false {
		t.Errorf("widgets %v", rows)
	}
	o.change(func(t *tx) error {
		t.addCounts(id, counts{Views: 4, Visitors: 2, Clicks: 1, Orders: 1}, nil)
		t.at(-24*time.Hour).addCounts(other, counts{Views: 2}, nil)
		return t.countLegacy([]legacyCall{{Day: "2026-06-30", Path: "/api/legacy/widget/stats", Caller: o.account, Calls: 7, LastAt: t.now}})
	})
	if rows := o.objects("stats"); len(rows) != 2 || rows[0]["views"] != 4.0 || rows[0]["orders"] != 1.0 || rows[1]["views"] != 2.0 {
		t.Errorf("statistics %v", rows)
	}
	out := o.do("stats", "-widget", id)
	if lines := strings.Split(strings.TrimSpace(out), "\n"); strings.Contains(out, other) || len(lines) != 34 || !strings.Contains(out, " "+strings.Repeat("█", 40)+"\n") {
		t.Errorf("%d lines:\n%s", len(lines), out)
	}
	if rows := o.objects("legacy"); len(rows) != 1 || rows[0]["calls"] != 7.0 || rows[0]["caller"] != o.account {
		t.Errorf("legacy %v", rows)
	}
	if table := o.do("legacy"); !strings.HasPrefix(table, "DAY ") || !strings.Contains(table, "/api/legacy/widget/stats") {
		t.Errorf("legacy:\n%s", table)
	}
	if table := o.do("events"); !strings.HasPrefix(table, "AT ") {
		t.Errorf("events:\n%s", table)
	}
}

func TestAnUnknownIDIsMetWithTheNextStep(t *testing.T) {
	o := newOperator(t)
	gone := func(prefix string) string { return newID(prefix, time.Now()) }
	for _, args := range [][]string{
		{"account", "rate", gone("acct"), "5"}, {"account", "close", gone("acct")},
		{"license", "show", gone("lic")}, {"license", "suspend", gone("lic")}, {"license", "reinstate", gone("lic")}, {"license", "revoke", "x"},
		{"device", "release", gone("dev")}, {"device", "block", gone("dev")}, {"device", "list", gone("lic")},
		{"license", "patch", gone("lic"), "{}"}, {"license", "renew", gone("lic")}, {"license", "rotate-key", gone("lic")},
		{"token", "revoke", gone("tok")},
		{"stats", "-widget", gone("wgt")},
	} {
		var usage usageError
		if err := o.fails("there is no such row: the list command shows the ids", args...); errors.As(err, &usage) {
			t.Errorf("%q: taken for a wrong command line", args)
		}
	}
	for _, args := range [][]string{
		{"origin", "add", "https://x.example", "-account", gone("acct")}, {"widget", "add", "-account", gone("acct"), "Lunch"},
		{"token", "issue", "-account", gone("acct"), "-scope", "admin"}, {"license", "add", "-account", gone("acct"), "-product", "kds"},
	} {
		o.fails("there is no such account, or it is closed: 'widgetd account list' shows them", args...)
	}
}

func TestAWrongCommandLineIsAUsageError(t *testing.T) {
	o := newOperator(t)
	for _, c := range []struct {
		want string
		args []string
	}{
		{`there is no command "frobnicate"`, []string{"frobnicate"}},
		{`there is no command "frobnicate": 'widgetd help' lists them`, []string{"frobnicate", "-h"}},
		{`there is no command "frobnicate": 'widgetd help' lists them`, []string{"help", "frobnicate"}},
		{`there is no command "account frobnicate": 'widgetd help account' lists them`, []string{"account", "frobnicate", "x"}},
		{`there is no command "account frobnicate": 'widgetd help account' lists them`, []string{"account", "frobnicate", "-h"}},
		{"this is used as: widgetd account add NAME", []string{"account", "add"}},
		{"this is used as: widgetd account add NAME", []string{"account", "add", "a", "b"}},
		{"this is used as: widgetd origin add ORIGIN [-account ID]", []string{"origin", "add"}},
		{"flag provided but not defined: -nonsense", []string{"account", "list", "-nonsense"}},
		{"flag provided but not defined: -csv", []string{"account", "list", "-csv"}},
		{"flag needs an argument: -db", []string{"account", "list", "-db"}},
		{"a name has 1 to 200 bytes", []string{"account", "add", ""}},
		{"a name has 1 to 200 bytes", []string{"account", "add", "red\x1b[31m"}},
		{"a name has 1 to 200 bytes", []string{"account", "add", "caf\xe9"}},
		{"a name has 1 to 200 bytes", []string{"widget", "add", strings.Repeat("x", 201), "-account", o.account}},
		{"a name has 1 to 200 bytes", []string{"init", "-name", "", "-db", filepath.Join(o.dir, "none", "x.db")}},
		{"-account ID is needed", []string{"license", "add", "-product", "kds"}},
		{"-account ID is needed", []string{"widget", "add", "Lunch", "-account", "nonsense"}},
		{"-product NAME is needed", []string{"license", "add", "-account", o.account}},
		{"-max-devices: This must be a whole number from 1 to 1000000.", []string{"license", "add", "-account", o.account, "-product", "p", "-max-devices", "0"}},
		{"-product: This must not contain control characters.", []string{"license", "add", "-account", o.account, "-product", "red\x1b[31m"}},
		{"-product: This has more than 100 characters.", []string{"license", "add", "-account", o.account, "-product", strings.Repeat("ü", 101)}},
		{"-plan: This must be UTF-8.", []string{"license", "add", "-account", o.account, "-product", "p", "-plan", "caf\xe9"}},
		{"-plan: This has more than 100 characters.", []string{"license", "add", "-account", o.account, "-product", "p", "-plan", strings.Repeat("x", 101)}},
		{"-duration-days: A licence that counts from its first activation needs", []string{"license", "add", "-account", o.account, "-product", "p", "-from-activation"}},
		{"-entitlements: a: This code is in the list already.", []string{"license", "add", "-account", o.account, "-product", "p", "-entitlements", "a,a"}},
		{"-metadata: This must be a JSON object", []string{"license", "add", "-account", o.account, "-product", "p", "-metadata", "[1]"}},
		{"-reason: This must not contain control characters.", []string{"license", "suspend", "x", "-reason", "red\x1b[31m"}},
		{"-reason: This has more than 500 characters.", []string{"license", "revoke", "x", "-reason", strings.Repeat("x", 501)}},
		{"-grace-days: This must be a whole number from 0 to 3650.", []string{"license", "add", "-account", o.account, "-product", "p", "-grace-days", "x"}},
		{"-lease-hours: This must be a whole number from 1 to 2160.", []string{"license", "add", "-account", o.account, "-product", "p", "-lease-hours", "2161"}},
		{"-entitlements: ", []string{"license", "add", "-account", o.account, "-product", "p", "-entitlements", strings.Repeat("a,", 101)}},
		{`"soon" is not a time`, []string{"license", "add", "-account", o.account, "-product", "p", "-expires", "soon"}},
		{"is not a time from 1970 to 9000", []string{"license", "add", "-account", o.account, "-product", "p", "-expires", "0001-01-01"}}, // Go's zero time
		{"is not a time from 1970 to 9000", []string{"license", "add", "-account", o.account, "-product", "p", "-expires", "9999-12-31"}}, // grace would not fit
		{"it stands there twice", []string{"init", "-origin", "https://a.example", "-origin", "https://b.example", "-db", filepath.Join(o.dir, "none", "x.db")}},
		{"-expires: The licence would end before it starts.", []string{"license", "add", "-account", o.account, "-product", "p", "-starts", "2030-01-02", "-expires", "2030-01-01"}},
		{"a rate is a number from 1 to 1000000", []string{"account", "rate", o.account, "0"}},
		{"is not a base address", []string{"base-url", "set", "https://example.com/v2"}},
		{"an origin is https://www.example.com", []string{"origin", "add", "-account", o.account, "https://*.example.com"}},
		{`there is no scope "everything"`, []string{"token", "issue", "-account", o.account, "-scope", "everything"}},
		{`there is no scope "license:verify"`, []string{"token", "issue", "-account", o.account, "-scope", "license:verify"}},
		{"-scope is needed", []string{"token", "issue", "-account", o.account}},
		{"is not a duration", []string{"token", "issue", "-account", o.account, "-scope", "admin", "-ttl", "-1h"}},
		{"is not a duration", []string{"token", "issue", "-account", o.account, "-scope", "admin", "-ttl", "500ms"}}, // it would end as it begins
		{"the name of the file is empty", []string{"backup", ""}},
		{"a client id has", []string{"token", "issue", "-account", o.account, "-scope", "admin", "-client-id", "a b"}},
		{"-limit must be a number", []string{"events", "-limit", "0"}},
		{"-status: This must be one of active, grace,", []string{"license", "list", "-status", "ended"}},
		{`-account: "nobody" is not an id of the kind acct_…`, []string{"license", "list", "-account", "nobody"}},
		{`-account: "nobody" is not an id of the kind acct_…`, []string{"widget", "list", "-account", "nobody"}},
		{`-license: "dev_1" is not an id of the kind lic_…`, []string{"events", "-license", "dev_1"}},
		{`-device: "x" is not an id of the kind dev_…`, []string{"events", "-device", "x"}},
		{"-anonymous-rate must be a number", []string{"serve", "-anonymous-rate", "none"}},
		{"-failed-lookup-rate must be a number", []string{"serve", "-failed-lookup-rate", "0"}},
		{"-legacy-sunset must be a date", []string{"serve", "-legacy-sunset", "soon"}},
		{"-trusted-proxies", []string{"serve", "-trusted-proxies", "nonsense"}},
		{"-log must be text or json", []string{"serve", "-log", "xml"}},
		{"-debug-addr must be a loopback address", []string{"serve", "-addr", "127.0.0.1:0", "-debug-addr", "0.0.0.0:0"}},
	} {
		var usage usageError
		if err := o.fails(c.want, c.args...); !errors.As(err, &usage) {
			t.Errorf("%q: %v is no usage error", c.args, err)
		}
	}
	var stdout, stderr bytes.Buffer
	var usage usageError
	if err := run(t.Context(), nil, func(string) string { return "" }, &stdout, &stderr); !errors.As(err, &usage) || !strings.Contains(stderr.String(), "Its commands:") {
		t.Errorf("no command at all: %v, %s", err, stderr.String())
	}
}

func TestAFlagWinsOverItsVariableAndFlagsMayFollowArguments(t *testing.T) {
	o := newOperator(t)
	o.env["WIDGETD_ACCOUNT"] = newID("acct", time.Now()) // nobody
	o.fails("there is no such account", "widget", "add", "Lunch")
	o.do("widget", "add", "Lunch", "-account", o.account)
	o.env["WIDGETD_ACCOUNT"] = o.account
	o.do("widget", "add", "Dinner")
	o.do("widget", "add", "-public-orders", "Breakfast", "-json")
	o.env["WIDGETD_JSON"] = "true"
	if out := o.do("widget", "list"); strings.Count(out, "\n") != 3 || !strings.HasPrefix(out, "{") {
		t.Errorf("with WIDGETD_JSON: %s", out)
	}
	if out := o.do("widget", "list", "-json=false"); !strings.HasPrefix(out, "ID ") {
		t.Errorf("with -json=false: %s", out)
	}
	o.env["WIDGETD_JSON"] = "perhaps"
	o.fails("WIDGETD_JSON must be true or false", "widget", "list")
}

func TestInitNeverTouchesWhatIsThere(t *testing.T) {
	o := newOperator(t)
	read := func() (all string) {
		for _, name := range []string{"WIDGETD_DB", "WIDGETD_KEY"} {
			text, err := os.ReadFile(o.env[name])
			if err != nil {
				t.Fatal(err)
			}
			all += string(text)
		}
		return all
	}
	before := read()
	o.fails("are there already, and init never touches them", "init")
	if read() != before {
		t.Error("a file was changed")
	}
	key, err := os.ReadFile(o.env["WIDGETD_KEY"])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(o.env["WIDGETD_DB"]); err != nil { // the key file outlives its database
		t.Fatal(err)
	}
	if out := o.do("init"); !strings.Contains(out, o.env["WIDGETD_KEY"]+": was there already") {
		t.Errorf("init: %s", out)
	}
	if now, _ := os.ReadFile(o.env["WIDGETD_KEY"]); !bytes.Equal(now, key) {
		t.Error("the key file was changed")
	}
	if got, want := dirNames(t, o.dir), []string{"widgetd.db", "widgetd.key"}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	o.fails("is not a base address", "init", "-db", filepath.Join(o.dir, "new", "x.db"), "-base-url", "https://example.com/")
	o.fails("an origin is", "init", "-db", filepath.Join(o.dir, "new", "x.db"), "-origin", "example.com")
	if _, err := os.Stat(filepath.Join(o.dir, "new")); err == nil {
		t.Error("a refused init made a directory")
	}
	o.do("init", "-db", filepath.Join(o.dir, "new", "x.db"), "-key", filepath.Join(o.dir, "new", "x.key"))
	if info, err := os.Stat(filepath.Join(o.dir, "new")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v", info, err)
	}
}

func TestCheckTellsEveryFaultAndFails(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct {
		name string
		make func(o *operator) error
		want string
	}{
		{"a database that others can read", func(o *operator) error { return os.Chmod(o.env["WIDGETD_DB"], 0o644) }, "(mode 0644): run 'chmod 600 "},
		{"a key that others can read", func(o *operator) error { return os.Chmod(o.env["WIDGETD_KEY"], 0o640) }, "others can read the key file"},
		{"no key", func(o *operator) error { return os.Remove(o.env["WIDGETD_KEY"]) }, "no key file at"},
		{"a damaged key", func(o *operator) error { return os.Truncate(o.env["WIDGETD_KEY"], 100) }, "is damaged: restore it from your copy"},
		{"no database", func(o *operator) error { return os.Remove(o.env["WIDGETD_DB"]) }, "no database at"},
		{"a row without its account", func(o *operator) error {
			raw(o.t, o.env["WIDGETD_DB"], `PRAGMA foreign_keys=0; INSERT INTO widgets (id, account_id, name, created_at) VALUES ('wgt_x', 'acct_gone', 'x', '2026-01-01T00:00:00Z')`)
			return nil
		}, "foreign key: row 1 of widgets"},
		{"a damaged page", func(o *operator) error {
			text, err := os.ReadFile(o.env["WIDGETD_DB"])
			damage(o.t, o.env["WIDGETD_DB"], int64(bytes.LastIndex(text, []byte(o.account))), 'X')
			return err
		}, "integrity: "},
	} {
		t.Run(fault.name, func(t *testing.T) {
			o := newOperator(t)
			o.t = t
			if err := fault.make(o); err != nil {
				t.Fatal(err)
			}
			out, err := o.try("check")
			var usage usageError
			if err == nil || errors.As(err, &usage) || !strings.Contains(out, fault.want) || !strings.Contains(err.Error(), "faults in "+o.env["WIDGETD_DB"]+": ") {
				t.Errorf("check: %v\n%s\nwant %q", err, out, fault.want)
			}
			asJSON, _ := o.try("check", "-json")
			var report struct {
				OK     bool
				Faults []string
			}
			if err := json.Unmarshal([]byte(asJSON), &report); err != nil || report.OK || len(report.Faults) == 0 {
				t.Errorf("as JSON: %s, %v", asJSON, err)
			}
		})
	}
}

func TestServeRefusesABadFileOrKeyInOneLine(t *testing.T) {
	t.Parallel()
	for _, bad := range badFiles {
		t.Run(bad.name, func(t *testing.T) {
			o := newOperator(t)
			bad.make(t, o.env["WIDGETD_DB"])
			o.fails(bad.want, "serve", "-addr", "127.0.0.1:0")
		})
	}
	o := newOperator(t)
	if err := os.Chmod(o.env["WIDGETD_KEY"], 0o604); err != nil {
		t.Fatal(err)
	}
	o.fails("run 'chmod 600 "+o.env["WIDGETD_KEY"]+"'", "serve", "-addr", "127.0.0.1:0")
	o.fails("run 'widgetd init' first, or name it with -key", "serve", "-addr", "127.0.0.1:0", "-key", filepath.Join(o.dir, "none"))
}

// traces are the files of a directory in which a text stands.
func traces(t testing.TB, dir, text string) (names []string) {
	t.Helper()
	for _, name := range dirNames(t, dir) {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(bytes.ToLower(content), []byte(text)) {
			names = append(names, name)
		}
	}
	return names
}

func TestAnErasedAddressLeavesNoTraceInAnyFile(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	var emails []string
	for i := range 300 {
		emails = append(emails, fmt.Sprintf("Erase.Me%d@example.com", i))
	}
	o.addLeads(emails...)
	if got := traces(t, o.dir, "erase.me7@"); len(got) == 0 {
		t.Fatal("the address was never there: the test looks at the wrong place")
	}
	for _, email := range emails {
		if strings.HasSuffix(email, "7@example.com") {
			o.do("leads", "erase", email)
		}
	}
	for i := range 300 {
		there := len(traces(t, o.dir, fmt.Sprintf("erase.me%d@", i))) > 0
		if erased := i%10 == 7; there == erased {
			t.Errorf("address %d: found %v, erased %v", i, there, erased)
		}
	}
}

func TestAKeyCanBeNamedOnACommandLine(t *testing.T) {
	for range 500 { // one thumbprint of 64 begins with -
		key, err := newSigningKey(time.Now())
		if err != nil || key.kid != thumbprint(key.public) || key.kid[0] == '-' {
			t.Fatalf("kid %q, %v", key.kid, err)
		}
	}
}

func TestADraftOfACommandThatWasKilledIsNamed(t *testing.T) {
	o := newOperator(t)
	for _, c := range [][]string{
		{"backup", filepath.Join(o.dir, "copy.db")},
		{"init", "-db", filepath.Join(o.dir, "second.db")},
		{"key", "add"},
	} {
		draft := map[string]string{"backup": "copy.db.new", "init": "second.db.new", "key": "widgetd.key.new"}[c[0]]
		if err := os.WriteFile(filepath.Join(o.dir, draft), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		o.fails("remove "+filepath.Join(o.dir, draft), c...)
		if text, _ := os.ReadFile(filepath.Join(o.dir, draft)); string(text) != "half" {
			t.Errorf("%q touched the draft of another: %q", c, text)
		}
		if err := os.Remove(filepath.Join(o.dir, draft)); err != nil {
			t.Fatal(err)
		}
		o.do(c...)
	}
}

func TestWithoutOptionsTheFilesLieInTheWorkingDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	runOK(t, "init")
	runOK(t, "check")
	runOK(t, "backup", "copy.db")
	if got, want := dirNames(t, "."), []string{"copy.db", "widgetd.db", "widgetd.key"}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
}
