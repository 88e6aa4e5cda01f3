package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents returns the texts of the Markdown files at the top and in docs, by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		names, err := filepath.Glob(pattern)
		must(t, err)
		for _, name := range names {
			all[name] = fileText(t, name)
		}
	}
	if len(all) < 7 {
		t.Fatalf("there are %d documents only", len(all))
	}
	return all
}

var (
	fencedBlock = regexp.MustCompile("(?ms)^```.*?^```$")
	inlineCode  = regexp.MustCompile("`([^`\n]+)`")
)

// TestDocuments_nameFilesAndHeadingsThatThereAre is about links, and about `store.go` where it is no NOUN.go.
func TestDocuments_nameFilesAndHeadingsThatThereAre(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	file := regexp.MustCompile(`^(?:[a-z.]+/)*[a-z][a-z0-9_-]*\.(?:go|sql|sh|md|service|socket|html)$`)
	all, found := documents(t), 0
	anchors := func(text string) string { // as GitHub gives them to headings
		kept := regexp.MustCompile(`[^\pL\pN\n #_-]`).ReplaceAllString(strings.ToLower(text), "")
		return strings.ReplaceAll(kept, " ", "-") + "\n"
	}
	for name, text := range all {
		text = fencedBlock.ReplaceAllString(text, "")
		links := captures(`\]\(([^)\s]*)\)`, inlineCode.ReplaceAllString(text, "code"))
		for _, code := range captures(inlineCode.String(), text) {
			if file.MatchString(code) {
				links = append(links, strings.Repeat("../", strings.Count(name, "/"))+code)
			}
		}
		for _, link := range links {
			if strings.HasPrefix(link, "http") {
				continue
			}
			found++
			path, heading, _ := strings.Cut(link, "#")
			if path = filepath.Join(filepath.Dir(name), path); link[0] == '#' {
				path = name
			}
			if _, err := os.Stat(path); err != nil || heading != "" &&
				!strings.Contains(anchors(all[path]), "#-"+heading+"\n") {
				t.Errorf("%s names %s, which is not there", name, link)
			}
		}
	}
	if found < 60 {
		t.Errorf("found %d names only", found)
	}
	for _, f := range source(t).files {
		room, _, _ := strings.Cut(strings.TrimSuffix(f.name, ".go"), "_")
		if !strings.Contains(all["docs/architecture.md"], "`"+f.name+"`") {
			contains(t, all["docs/architecture.md"], "`"+room+"_…`")
		}
	}
}

// wrongCommand says what is wrong with the words of a command line behind the program's name: a
// command or an option that there is not. "…" stands for whatever may follow.
func wrongCommand(line string) string {
	line, _, _ = strings.Cut(regexp.MustCompile(`\$+\([^)]*\)`).ReplaceAllString(line, "X"), "|")
	words := strings.Fields(strings.TrimRight(line, ")'\""))
	if len(words) == 0 {
		return ""
	}
	cmd, rest := findCommand(allCommands(), words)
	if cmd == nil {
		if i := slices.Index(words, "…"); i > 0 {
			words = words[:i]
		}
		begins := func(c command) bool { return c.startsWith(strings.Join(words, " ")) }
		if slices.ContainsFunc(allCommands(), begins) {
			return ""
		}
		return "there is no such command"
	}
	if !strings.HasPrefix(strings.Join(words, " ")+" ", cmd.name+" ") {
		return "it is called " + cmd.name + " now"
	}
	for _, word := range rest {
		name := strings.TrimLeft(word, "-")
		if name == word || name == "" || name == "h" {
			continue
		}
		if !slices.ContainsFunc(cmd.acceptedOptions(), func(o option) bool { return o.name == name }) {
			return "it has no option -" + name
		}
	}
	return ""
}

func TestDocuments_nameCommandsAndOptionsThatThereAre(t *testing.T) {
	t.Parallel()
	lines := regexp.MustCompile(`(?m)(?:^|\./|/bin/|\$\()widgetd ([a-z-]+(?: .*)?)$|^go run \. ([a-z-]+(?: .*)?)$`)
	found := 0
	check := func(name, line string) {
		found++
		if wrong := wrongCommand(line); wrong != "" {
			t.Errorf("%s: widgetd %s: %s", name, line, wrong)
		}
	}
	for name, text := range documents(t) {
		for _, block := range fencedBlock.FindAllString(text, -1) {
			for _, l := range lines.FindAllStringSubmatch(block, -1) {
				check(name, l[1]+l[2])
			}
		}
		for _, code := range inlineCode.FindAllStringSubmatch(fencedBlock.ReplaceAllString(text, ""), -1) {
			// no usage of the reference
			if line, ours := strings.CutPrefix(code[1], "widgetd "); ours && !strings.Contains(line, "[") {
				check(name, line)
			} else if cmd, _ := findCommand(allCommands(), strings.Fields(code[1])); cmd != nil &&
				strings.Contains(code[1], " -") {
				check(name, code[1]) // "lead erase -litestream"
			}
		}
	}
	for _, f := range source(t).files { // hints, such as "'widgetd lead list' prints what there is"
		for _, hint := range captures(`'widgetd ([a-z][a-z -]*[a-z])`, f.text) {
			check(f.name, hint)
		}
	}
	failIf(t, found < 90, "found %d command lines only: the test sees too little", found)
	for line, want := range map[string]string{
		"frobnicate": "there is no such command", "license frobnicate": "there is no such command",
		"backup -nonsense x.db": "it has no option -nonsense",
		"books app frobnicate":  "there is no such command", "license …": "", "books app": "", "books app …": "",
		"leads list": "it is called lead list now", "license add -h": "", "help --markdown": "",
		`backup "backup/$$(date -u +%%Y).db"'`: "",
	} {
		if got := wrongCommand(line); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

// notRun are texts of the shell blocks that no test runs as they stand, and why.
var notRun = map[string]string{
	"go run . demo":               "TestDemo_ runs the demo",
	"go test ./...":               "it is what runs",
	"widgetd order erase -name":   "TestOrder_guestIsErasedOnRequest runs it with guests of its own",
	"scp dist/widgetd_":           "it copies to a server; deploy/package-test installs what deploy/package makes",
	"ssh-keygen -Y verify":        "deploy/package-test runs it",
	"enable --now widgetd.socket": "it enables units of systemd",
	"--now widgetd-backup.timer":  "it enables units of systemd",
	"--now widgetd-page.timer":    "it enables units of systemd",
	"deploy/*.service.d":          "it installs units of systemd",
	"--now litestream":            "deploy/systemd-test runs it",
	"./litestream-0.5.18":         "it installs a package of others",
	"reset-failed widgetd.socket": "deploy/systemd-test does that",
	"--now widgetd-watch.timer":   "TestWatch_ has addresses of its own",
	"widgetd/pair follow":         "TestLitestream_aPair… runs deploy/pair",
}

func TestDocuments_shellBlocksAreRunByATestOrItIsSaidWhyNot(t *testing.T) {
	t.Parallel()
	run := map[string]bool{}
	for _, f := range source(t).tests {
		for _, block := range captures(`documentBlock\((?:r\.)?t, "([^"]*)"\)`, f.text) {
			run[strings.ReplaceAll(block, `\n`, "\n")] = true
		}
	}
	blocks := 0
	for _, block := range codeBlocks(t) {
		if block.language != "sh" && block.language != "sql" && block.language != "csv" {
			continue
		}
		blocks++
		holds := func(text string) bool { return strings.Contains(block.text, text) }
		if !slices.ContainsFunc(slices.Collect(maps.Keys(run)), holds) &&
			!slices.ContainsFunc(slices.Collect(maps.Keys(notRun)), holds) {
			t.Errorf("no test runs this block:\n%s", block.text)
		}
	}
	if blocks < 15 {
		t.Errorf("found %d blocks only: the test sees too little", blocks)
	}
	for text := range notRun {
		documentBlock(t, text)
	}
}

func TestDocuments_installingWorksAsTheyStand(t *testing.T) {
	t.Parallel()
	packaged, byHand := documentBlock(t, "sudo apt install ./widgetd"), documentBlock(t, "useradd --system")
	for _, block := range []string{packaged, byHand} {
		dir := t.TempDir()
		o := &operator{t: t, dir: dir,
			env: map[string]string{"WIDGETD_DB": filepath.Join(dir, "widgetd.db"), "WIDGETD_KEY": filepath.Join(dir,
				"widgetd.key")}}
		asOnAServer(t, o, block, map[string]string{"useradd": "true", "install": "true", "apt": "true"})
		if address, origins := o.do("base-url", "show"), o.do("origin", "list"); !strings.Contains(address,
			"https://api.example.com/v1") || !strings.Contains(origins, "https://www.example.com") {
			t.Errorf("%q, %q", address, origins)
		}
	}
}

func TestDocuments_readmeInstallsTheVersionOfTheChangelog(t *testing.T) {
	t.Parallel()
	all := documents(t)
	version := regexp.MustCompile(`(?m)^## (\d+\.\d+\.\d+), (?:\d+ [A-Z][a-z]+ 20\d\d|unreleased)$`)
	found := version.FindAllStringSubmatch(all["CHANGELOG.md"], -1)
	if len(found) < 2 || found[len(found)-1][1] != "1.0.0" {
		t.Fatalf("sections of versions: %q", found)
	}
	for _, named := range captures(`widgetd_([^_]*)_amd64\.deb`, all["README.md"]) {
		if named != found[0][1]+"*" { // of deploy/package, which adds ~ and a time to what is not released
			t.Errorf("README.md installs %s, the CHANGELOG begins with %s", named, found[0][1])
		}
	}
}

func TestDocuments_commandsWorkAsTheyStand(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "jq", "sqlite3")
	o := newOperator(t)
	asOnAServer(t, o, documentBlock(t, "widgetd account add 'Bistro Ltd'"), nil)
	for command, want := range map[string]string{"widget": "Lunch menu", "license": "kitchen-display",
		"origin": "https://www.bistro.example", "token": "stats:read leads:read"} {
		if out := o.do(command, "list", "-wide"); !strings.Contains(out, want) {
			t.Errorf("%s list: %s, want %q in it", command, out, want)
		}
	}
	asOnAServer(t, o, documentBlock(t, "widgetd webhook add"), nil)
	if hooks := o.objects("webhook", "list"); len(hooks) != 1 || hooks[0]["state"] != webhookPending {
		t.Errorf("webhook list: %v", hooks)
	}
	asOnAServer(t, o, documentBlock(t, "widgetd app add"), nil)
	if apps := o.objects("app", "list"); len(apps) != 1 || apps[0]["scope"] != "webhooks:write orders:read" {
		t.Errorf("app list: %v", apps)
	}
	asOnAServer(t, o, documentBlock(t, "widgetd status"), nil)
	asOnAServer(t, o, documentBlock(t, "sudo widgetd backup"), nil)
	asOnAServer(t, o, documentBlock(t, "widgetd lead erase guest@example.com"), nil)
	asOnAServer(t, o, documentBlock(t, "sqlite3 -readonly -box"), nil)
	if _, err := os.Stat(filepath.Join(o.dir, "backup-2026-11-21.db")); err != nil {
		t.Error(err)
	}
	runProgram(t, "sqlite3", "-bail", o.env["WIDGETD_DB"], documentBlock(t, "INSERT INTO origins"))
	if out := o.do("origin", "list"); !strings.Contains(out, "https://menu.bistro.example") {
		t.Errorf("origin list: %s", out)
	}
	queries := documentBlock(t, "-- licences that are full")
	runProgram(t, "sqlite3", "-readonly", "-bail", o.env["WIDGETD_DB"], "\n"+queries)
	file := filepath.Join(o.dir, "licenses.csv")
	must(t, os.WriteFile(file, []byte(documentBlock(t, "WP-2019-000123")), 0o600))
	o.do("license", "import", file, "-account", o.account, "-force") // -force: one day its end will be in the past
	if out := o.do("license", "list", "-search", "WP-2019-000123-ABCDEF", "-wide"); !strings.Contains(out, "pro") {
		t.Errorf("imported: %s", out)
	}
}

// Each query of docs/operating.md finds the rows that its comment speaks of, and not those beside them.
func TestDocuments_queriesFindTheRowsThatTheyAreFor(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "sqlite3")
	o := newOperator(t)
	file := o.env["WIDGETD_DB"]
	// A time that is just too old is of the day on which the span begins, but in the first hour of a day.
	at := func(ago string) string { return `strftime('%Y-%m-%dT%H:%M:%SZ', 'now', '` + ago + `')` }
	runProgram(t, "sqlite3", "-bail", file, strings.NewReplacer("ACCOUNT", "'"+o.account+"'", "NOW",
		at("0 days")).Replace(`
		PRAGMA foreign_keys = ON;
		INSERT INTO licenses (id, account_id, product, customer, max_devices, expires_at, created_at, updated_at) VALUES
			('lic_full', ACCOUNT, 'full', 'Order 1234', 1, '2999-01-01T00:00:00Z', NOW, NOW),
			('lic_ends', ACCOUNT, 'ends', 'Order 1234', 2, `+at("29 days")+`, NOW, NOW),
			('lic_later', ACCOUNT, 'later', NULL, 2, `+at("31 days")+`, NOW, NOW);
		INSERT INTO devices (id, license_id, fingerprint, name, state, activated_at, last_seen_at) VALUES
			('dev_old', 'lic_full', randomblob(32), 'Old', 'active', NOW, `+at("-8 days")+`),
			('dev_new', 'lic_ends', randomblob(32), 'New', 'active', NOW, `+at("-6 days")+`);
		INSERT INTO leads (id, account_id, type, email, source, created_at) VALUES
			('lead_1', ACCOUNT, 'demo', 'a@example.com', 'footer', `+at("-6 days")+`),
			('lead_2', ACCOUNT, 'demo', 'a@example.com', 'early', `+at("-8 days")+`);
		INSERT INTO webhooks (id, account_id, url, types, made_by, created_at, updated_at)
			VALUES ('whe_1', ACCOUNT, 'https://h.example', '[]', 'command', NOW, NOW);
		INSERT INTO deliveries (webhook_id, id, event_seq, event_id, type, attempt, at, milliseconds, status) VALUES
			('whe_1', 'whd_1', 1, 'evt_1', 'late', 1, `+at("-23 hours")+`, 1, 500),
			('whe_1', 'whd_2', 1, 'evt_1', 'just too old', 1, `+at("-24 hours', '-2 seconds")+`, 1, 500);
		INSERT INTO events (id, at, type, account_id, subject_id, actor, data) VALUES
			('evt_1', NOW, 'license.created', ACCOUNT, 'lic_full', 'command:anna', '{}'),
			('evt_2', NOW, 'device.activated', ACCOUNT, 'lic_full', 'device', '{"device_id":"dev_old"}'),
			('evt_3', NOW, 'license.created', ACCOUNT, 'lic_ends', 'command:anna', '{}');
		INSERT INTO tokens (id, account_id, client_id, scope, all_accounts, kid, created_at, expires_at) VALUES
			('tok_soon', ACCOUNT, 'portal', 'stats:read', 0, 'k', NOW, `+at("29 days")+`),
			('tok_late', ACCOUNT, 'portal', 'stats:read', 0, 'k', NOW, `+at("31 days")+`)`))
	for _, query := range strings.Split(documentBlock(t, "-- licences that are full"), "\n\n") {
		comment, statement, _ := strings.Cut(query, "\n")
		out := runProgram(t, "sqlite3", "-readonly", "-bail", file, strings.ReplaceAll(statement, "lic_…",
			"lic_full"))
		want, known := map[string]string{
			"-- licences that are full":                             `main\|full\|1\|1`,
			"-- licences that end within 30 days":                   `main\|ends\|active\|[^|]*`,
			"-- devices that were not seen for a week":              `main\|full\|Old\|[^|]*`,
			"-- last week's leads by form":                          `footer\|demo\|1`,
			"-- webhooks whose last attempts failed, and with what": `[^|]*\|https://h.example\|late\|500\|\|\|`,
			"-- who did what to a licence": `[^|]*\|device.activated\|device\|dev_old\|.*\n` +
				`[^|]*\|license.created\|command:anna\|\|{}`,
			"-- the same for all licences of a customer: joined, a view has no order of its own": `` +
				`[^|]*\|lic_ends\|.*\n` +
				`[^|]*\|lic_full\|device.activated\|.*\n[^|]*\|lic_full\|license.created\|.*`,
			"-- tokens that end within 30 days": `tok_soon\|main\|portal\|stats:read\|.*`,
		}[comment]
		if !known || !regexp.MustCompile(`^`+want+`\n$`).MatchString(out) {
			t.Errorf("%s\n%s\nprints %q, want %s", comment, statement, out, want)
		}
	}
	for _, block := range codeBlocks(t) {
		if block.language == "sql" && strings.Contains(block.text, "datetime(") {
			t.Errorf("what datetime() returns is no time of the schema:\n%s", block.text)
		}
	}
}

func TestDocuments_connectingWithStripeWorksAsItStands(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "jq")
	for _, block := range []string{
		documentBlock(t, "payment connect stripe -account 'Bistro Ltd'"),
		documentBlock(t, "widgetd account set"),
	} {
		o := newOperator(t)
		c := newConnecting(t, o)
		o.do("account", "add", "Bistro Ltd")
		home := t.TempDir() // the operator's, into which the command can't look
		must(t, os.WriteFile(filepath.Join(home, "stripe.txt"), []byte(c.secretsOf(providerStripe)), 0o600))
		asOnAServer(t, o, "cd "+home+"\n"+block, map[string]string{"widgetd": "cd " + o.dir +
			" && WIDGETD_STRIPE_URL=" + c.stripe.URL +
			" WIDGETD_OUTBOUND_ALLOW=" + loopbackRange + " exec " + builtProgram(t) + ` "$@"`})
		if rows := o.objects("payment", "list", "-account", "Bistro Ltd"); len(rows) != 1 ||
			rows[0]["provider"] != providerStripe || rows[0]["state"] != "in_use" {
			t.Errorf("%s\npayment list: %v", block, rows)
		}
	}
}

// tableTexts returns the code in the first column of the tables in a chapter of docs/operating.md.
func tableTexts(t *testing.T, chapter string) (all []string) {
	t.Helper()
	_, text, found := strings.Cut(documents(t)["docs/operating.md"], "\n"+chapter+"\n")
	if !found {
		t.Fatalf("docs/operating.md has no chapter %q", chapter)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return captures("(?m)^\\| `([^`]*)` \\|", text)
}

func TestDocuments_faultsReadAsTheServiceReportsThem(t *testing.T) {
	t.Parallel()
	faults := tableTexts(t, "## Faults")
	want := []string{walLargeReason, walLargeLitestreamReason, faultKeyFile, warnOrigins, warnRates, warnTokens,
		warnBusy, warnFull}
	for _, err := range []error{errStorageFull, errReplaced, errHeader, errClosed, errors.New("anything else")} {
		want = append(want, storageReason(err))
	}
	for _, reason := range want {
		if !slices.Contains(faults, reason) {
			t.Errorf("%q is missing in the table of faults", reason)
		}
	}
}

func TestDocuments_listEveryView(t *testing.T) {
	t.Parallel()
	want, got := captures(`(?m)^CREATE VIEW (\w+)`, fileText(t, "schema.sql")),
		tableTexts(t, "## Reading the file with sqlite3")
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) || len(want) == 0 {
		t.Errorf("docs/operating.md has %q, want %q", got, want)
	}
}
