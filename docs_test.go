package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// docsPage returns the page of a service that has all chapters.
func docsPage(s *service) string { return s.get("//docs/all").is(200).body }

// madeDocs are the page at the root and all below /docs, by their paths, as each new service has them.
var madeDocs struct {
	sync.Once
	pages map[string]answer
}

func docsPages(t testing.TB) map[string]answer {
	t.Helper()
	madeDocs.Do(func() {
		s := newService(t)
		paths := captures(`<li><a href="(/docs/[^"#]+)"`, s.get("//docs").is(200).body)
		if len(paths) < 30 {
			t.Fatalf("found %d pages only", len(paths))
		}
		madeDocs.pages = map[string]answer{}
		for _, path := range append(paths, "/", "/docs", "/docs/all") {
			madeDocs.pages[path] = s.get("/" + path).is(200)
		}
	})
	return madeDocs.pages
}

// newDocsPage is the page with all chapters of a new service.
func newDocsPage(t testing.TB) string {
	t.Helper()
	return docsPages(t)["/docs/all"].body
}

// chapterOf returns a chapter of the page.
func chapterOf(t testing.TB, page, id string) string {
	t.Helper()
	_, chapter, found := strings.Cut(page, `<section id="`+id+`"`)
	if !found {
		t.Fatalf("the page has no chapter %s", id)
	}
	chapter, _, _ = strings.Cut(chapter, "</section>")
	return chapter
}

// captures returns what the first group of a pattern matches in a text.
func captures(pattern, text string) (all []string) {
	for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		all = append(all, found[1])
	}
	return all
}

func TestDocs_linksLeadSomewhere(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	s, links := newService(t), 0
	ids, pages := map[string]bool{}, map[string]string{} // "/docs/limits#limits-title"
	for path, a := range docsPages(t) {
		page := a.body
		pages[path] = page
		for _, id := range captures(`\sid="([^"]*)"`, page) {
			if ids[path+"#"+id] {
				t.Errorf("two elements of %s have the id %s", path, id)
			}
			ids[path+"#"+id] = true
		}
		for _, id := range captures(`aria-labelledby="([^"]*)"`, page) {
			if !ids[path+"#"+id] {
				t.Errorf("%s: nothing has the id %s of a label", path, id)
			}
		}
	}
	for path, page := range pages {
		if strings.HasSuffix(path, ".md") {
			continue // see TestDocs_guideForProgramsNamesEveryTwin
		}
		for _, link := range captures(`(?:href|src)="([^"]*)"`, page) {
			links++
			to, id, inside := strings.Cut(link, "#")
			switch to = cmp.Or(to, path); {
			case !strings.HasPrefix(to, "/"):
				t.Errorf("%s: %s is outside", path, link)
			case inside && !ids[to+"#"+id]:
				t.Errorf("%s: nothing has the id of the link %s", path, link)
			case pages[to] == "":
				pages[to] = s.get("/"+to).is(200).body + " "
			}
		}
	}
	if links < 1000 {
		t.Errorf("found %d links only", links)
	}
	for _, o := range operations() {
		if !ids["/docs/all#call-"+o.id()] {
			t.Errorf("no chapter shows %s", o.name())
		}
	}
}

// TestDocs_keepEveryAddressOfTheOnePage: until 1.1.0 /docs was one page. What it had an id for has one still, in a link
// to its chapter: the type of a problem, such as /docs#rate_limited, is such an address.
func TestDocs_keepEveryAddressOfTheOnePage(t *testing.T) {
	t.Parallel()
	start := docsPages(t)["/docs"].body
	_, index, _ := strings.Cut(start, `<h2 id="index-title"`)
	for id := range strings.FieldsSeq(fileText(t, "testdata/docs-ids.txt")) {
		if own := strings.HasPrefix(id, "start") || id == "content"; !own &&
			len(captures(`<a id="`+id+`"() href="/docs/[a-z-]+#`+id+`"`, index)) != 1 &&
			!strings.Contains(index, `<span id="`+id+`"></span></a>`) {
			t.Errorf("/docs#%s leads nowhere", id)
		} else if own && !strings.Contains(start, ` id="`+id+`"`) {
			t.Errorf("the start page has no %s", id)
		}
	}
	for _, c := range problemsOf(nouns()) {
		contains(t, index, `<a id="`+c.name+`" href="/docs/problems#`+c.name+`">`)
		failIf(t, c.remedy == "", "nothing is said of what to do about %s", c.name)
	}
}

func TestDocs_areWellFormedAndLoadNothingFromElsewhere(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	for path, a := range docsPages(t) {
		a.t = t
		if fault := unbalanced(a.body); fault != "" {
			t.Errorf("%s: %s", path, fault)
		}
		links := `</openapi.json>; rel="service-desc", </docs>; rel="service-doc"`
		if path != "/" && path != "/docs/all" {
			links += ", <" + path + `.md>; rel="alternate"; type="text/markdown"`
		}
		a.has("Content-Type: text/html; charset=utf-8", "Link: "+links)
		policy := a.header.Get("Content-Security-Policy")
		rest, script, scripted := strings.Cut(policy, "; script-src ")
		rest = strings.TrimSuffix(rest, "; connect-src 'self'") // for the index that the box finds words in
		equal(t, "policy", rest, "default-src 'none'; style-src 'self'; img-src 'self'")
		if scripted {
			found := captures(`(?s)<script>(.*?)</script>`, a.body)
			sum := sha256.Sum256([]byte(strings.Join(found, "")))
			equal(t, "hash", script, "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
			a.body = strings.Replace(a.body, "<script>"+found[0]+"</script>", "", 1)
		}
		for _, banned := range []string{`(?i)<(script|iframe|object|embed|form|style|base)\b`,
			`(?i)\s(on[a-z]+|style)=`, `(?i)javascript:`, `(?i)(?:src|href)="(?:[a-z]+:)?//`,
			"&amp;lt;|&amp;amp;|ZgotmplZ|<p></p>", // escaped twice, or empty
			"<d[dt][^>]*>[^<]*(`|\\*\\*)"} {       // CommonMark that is left
			if found := regexp.MustCompile(banned).FindString(a.body); found != "" {
				t.Errorf("%s has %s", path, found)
			}
		}
		contains(t, a.body, `<html lang="en">`, "<main", "<title>")
	}
	if found := regexp.MustCompile(`(?i)@import|url\(`).FindString(embedded("web/docs.css")); found != "" {
		t.Errorf("the style sheet has %s", found)
	}
}

// unbalanced returns the first tag of a page that is not closed, or closed by another's.
func unbalanced(page string) string {
	empty := map[string]bool{"meta": true, "link": true, "br": true, "hr": true, "img": true, "input": true}
	var open []string
	for _, tag := range regexp.MustCompile(`</?[a-z][a-z0-9]*\b`).FindAllString(page, -1) {
		name, ends := strings.CutPrefix(strings.TrimPrefix(tag, "<"), "/")
		switch {
		case empty[name]:
		case !ends:
			open = append(open, name)
		case len(open) == 0 || open[len(open)-1] != name:
			return fmt.Sprintf("%s> within %v", tag, open)
		default:
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		return fmt.Sprint(open, " is not closed")
	}
	return ""
}

// curlLines returns the lines of the page for the shell.
func curlLines(page string) (lines []string) {
	for _, line := range captures(`(?s)<pre class="curl"[^>]*><code>(.*?)</code></pre>`, page) {
		lines = append(lines, html.UnescapeString(line))
	}
	return lines
}

// settings returns the lines that set what a page's other lines use.
func settings(page string) string {
	found := captures(`(?s)<pre class="set"[^>]*><code>(.*?)</code></pre>`, page)
	return html.UnescapeString(strings.Join(found, "\n")) + "\n"
}

func TestDocs_linesOfADemoWorkAsTheyStand(t *testing.T) {
	takesLong(t, "runs the programs of the documentation")
	sequentialUnderRace(t)
	t.Parallel()
	programsOrSkip(t, "curl", "sh")
	base := printed(t, startDemo(t), "The service behind it")
	root := strings.TrimSuffix(base, "/v1")
	page := runProgram(t, "curl", "-s", root+"/docs/all")
	lines := curlLines(page)
	if len(lines) < 30 {
		t.Fatalf("found %d lines only", len(lines))
	}
	script := settings(page)
	for _, line := range lines {
		script += line + " -w '\n%{http_code}'\necho ==\n"
	}
	outs := strings.Split(strings.TrimSuffix(runProgram(t, "sh", "-c", script), "==\n"), "==\n")
	if len(outs) != len(lines) {
		t.Fatalf("%d lines print %d answers:\n%q", len(lines), len(outs), outs)
	}
	for i, line := range lines {
		out := strings.TrimSpace(outs[i])
		status := out[strings.LastIndexByte(out, '\n')+1:]
		want := "200"
		switch {
		case strings.Contains(line, "/api/legacy/"):
			want = "410"
		case strings.Contains(line, "curl -s -i"):
			want = "204"
		}
		if status != want {
			t.Errorf("%s\n%s\nwant %s", line, out, want)
		}
	}
}

// TestDocs_orderFromBeginningToEndWorksAsItStands pastes the lines of the chapter on payments into one shell.
func TestDocs_orderFromBeginningToEndWorksAsItStands(t *testing.T) {
	takesLong(t, "runs the programs of the documentation")
	sequentialUnderRace(t)
	t.Parallel()
	programsOrSkip(t, "curl", "sh", "jq")
	root := strings.TrimSuffix(printed(t, sharedDemo(t), "The service behind it"), "/v1")
	page := runProgram(t, "curl", "-s", root+"/docs/orders")
	steps := captures(`(?s)<pre class="walk"[^>]*><code>(.*?)</code></pre>`, page)
	if len(steps) != 6 {
		t.Fatalf("the chapter has %d blocks of lines, want 6", len(steps))
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, "sh", "-eu")
	cmd.WaitDelay = time.Second
	cmd.Stdin = strings.NewReader(settings(page) + html.UnescapeString(strings.Join(steps, "\necho ==\n")))
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for i, want := range []string{
		`{"id":"ord_…","state":"open","total":6000,` +
			`"vat":[{"rate":260,"gross":3300,"vat":84},{"rate":810,"gross":2400,"vat":180}],"pay_url":"…"}`,
		`200`,
		`{"state":"accepted","ordered_total":6000,"total":4350}`,
		``,
		`{"id":"ref_…","amount":2400,"vat":[{"rate":810,"gross":2400,"vat":180}],"state":"pending"}`,
		`{"state":"part_refunded","total":4350,"refunded":2400,"payment":"part_refunded",` +
			`"refunds":[{"amount":2400,"state":"succeeded"}]}`,
	} {
		got := strings.Split(string(text), "==\n")[i]
		got = regexp.MustCompile(`"http[^"]*"`).ReplaceAllString(strings.Join(strings.Fields(got), ""), `"…"`)
		got = regexp.MustCompile(`_[0-9a-z]{26}"`).ReplaceAllString(got, `_…"`)
		if got != want {
			t.Errorf("step %d prints\n%s, want\n%s", i+1, got, want)
		}
	}
}

// TestDocs_applicationByHandWorksAsItStands pastes the lines of the chapter on applications, from registering one
// to its end, and does what an owner does in between.
func TestDocs_applicationByHandWorksAsItStands(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "curl", "sh", "openssl")
	s := newService(t)
	base := s.atItsBase()
	blocks := captures(`(?s)<pre tabindex="0"><code>(.*?)</code></pre>`, chapterOf(t, docsPage(s), "applications"))
	if len(blocks) != 7 {
		t.Fatalf("the chapter has %d blocks, want 7", len(blocks))
	}
	var vars string // what the shell knows by now
	sh := func(lines string) string { return strings.TrimSpace(runProgram(t, "sh", "-euc", vars+lines)) }
	block := func(i int, replace ...string) string {
		text := html.UnescapeString(blocks[i])
		for j := 0; j < len(replace); j += 2 {
			if !strings.Contains(text, replace[j]) {
				t.Fatalf("block %d has no %s:\n%s", i, replace[j], text)
			}
		}
		return strings.NewReplacer(replace...).Replace(text) + "\n"
	}
	one := func(pattern, text string) string {
		found := captures(pattern, text)
		if len(found) != 1 {
			t.Fatalf("%s is not in:\n%s", pattern, text)
		}
		return found[0]
	}

	words := sh(`widgetd() { printf '%s\n' "$@"; }` + "\n" + block(0))
	id := one(`client id: *(app_\w+)`, s.must(strings.Split(words, "\n")...))
	printed := sh(block(2, "APP=app_…", "APP="+id) + `echo "VERIFIER=$VERIFIER"`)
	vars = "APP=" + id + "\n" + one(`(VERIFIER=.*)`, printed) + "\n"
	v := s.signedIn(s.account)
	at := one(`(/oauth/authorize\S+)`, printed)
	back := v.visit(at, v.visit(at, nil).agreeing()).is(303).header.Get("Location")
	code := one(`^http://127\.0\.0\.1/back\?code=([\w-]+)&iss=`+url.QueryEscape(base)+`&state=[0-9a-f]{32}$`, back)
	tokens := sh(block(3, "CODE=…", "CODE="+code))
	access, refresh := one(`"access_token":"(.*?)"`, tokens), one(`"refresh_token":"(.*?)"`, tokens)
	s.told.confide(access)
	if got := strings.NewReplacer(access, "eyJ…", refresh, "…").Replace(tokens); got != strings.TrimSpace(block(4)) {
		t.Errorf("the tokens are %s, the chapter says %s", got, block(4))
	}
	got := sh(block(5, "ACCESS_TOKEN=eyJ…", "ACCESS_TOKEN="+access, "REFRESH_TOKEN=…", "REFRESH_TOKEN="+refresh))
	if !strings.HasPrefix(got, `{"data":[],"next_cursor":null}`) || !strings.HasSuffix(got, `"scope":"orders:read"}`) {
		t.Errorf("the calls print %s", got)
	}
	s.get("/orders", "Authorization: Bearer "+access).is(401)

	web, secret := s.registerApp(func(p *app) { p.OwnScope = &p.Scope })
	vars = "APP=" + web.ID + " SECRET=" + secret + "\n"
	if got := sh(block(6)); !strings.Contains(got, `"scope":"`) || strings.Contains(got, "refresh_token") {
		t.Errorf("client credentials bring %s", got)
	}
}

// Lines outside a demo name the words that are to be replaced in them, and have no secrets.
func TestDocs_outsideADemoHaveWordsToReplaceAndNoSecrets(t *testing.T) {
	t.Parallel()
	page := newDocsPage(t)
	contains(t, page, "LICENSE_KEY", "LICENSE_ID", "DEVICE_ID", "ACCOUNT_ID", "Bearer $TOKEN", "Bearer $ADMIN_TOKEN")
	lacks(t, page, "This is a demo")
	for _, line := range curlLines(page) {
		secret := keyShape.FindString(line) + wholeToken.FindString(line)
		if secret += regexp.MustCompile(`\b[a-z]{3,4}_01m[0-9a-z]+|\b[\w-]{43,}`).FindString(line); secret != "" {
			t.Errorf("a line has %s, and no word to be replaced: %s", secret, line)
		}
	}
	const words = "In the lines, put your own in place of "
	for path, want := range map[string]string{
		"calls-apps": words + "<code>APP_ID</code> <code>CLIENT_SECRET</code> <code>GRANT_ID</code> " +
			"<code>REFRESH_TOKEN</code> <code>YOUR_SITE</code>.</p>\n<pre",
		"twice":   words + "<code>WIDGET_ID</code> <code>YOUR_SITE</code>.</p>\n</div>",
		"selling": "the lines on this page use it. </p>",
		"webhooks": "the lines on this page use it. " + words + "<code>WEBHOOK_ID</code> <code>YOUR_SITE</code>" +
			".</p>\n<pre",
	} {
		contains(t, docsPages(t)["/docs/"+path].body, want)
	}
	lacks(t, docsPages(t)["/docs/offline"].body, `class="set"`) // samples of a lease have no words to replace
}

// TestDocs_commandsAreShownAsTheyWorkInADemo: which may be in a directory of any name. Titles stay.
func TestDocs_commandsAreShownAsTheyWorkInADemo(t *testing.T) {
	t.Parallel()
	runs := shellWord("/that's it/widgetd") + " -db x"
	equal(t, "the program", runs, `'/that'\''s it/widgetd' -db x`)
	for text, want := range map[string]string{
		"<pre tabindex=\"0\"><code>widgetd books list\nwidgetd app list</code></pre>": "<pre tabindex=\"0\"><code>" +
			runs + " books list\n" + runs + " app list</code></pre>",
		"ask (<code>widgetd key public</code>)":    "ask (<code>" + runs + " key public</code>)",
		"run `widgetd payout list`":                "run `" + runs + " payout list`",
		"<h4><code>widgetd app list</code></h4>":   "<h4><code>widgetd app list</code></h4>",
		"#### `widgetd app list`":                  "#### `widgetd app list`",
		"in <code>widgetd demo</code> it has more": "in <code>widgetd demo</code> it has more",
	} {
		there := docsFacts{map[string]string{"widgetd": runs}, map[string]bool{"demo": true}}
		equal(t, "in a demo", docsText(text, there), want)
		equal(t, "elsewhere", docsText(text, docsFacts{}), text)
	}
}

// Pages say what the options of the service are: who gives tokens to partners, dates and limits.
func TestDocs_sayWhatTheOptionsAre(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	for contact, want := range map[string]struct{ link, member string }{
		"": {"the operator of this service", "null"},
		"mailto:partners@example.com?subject=Hi": {
			`<a href="mailto:partners@example.com?subject=Hi">partners@example.com</a>`,
			`{"email":"partners@example.com","name":"Who gives tokens, licence keys and widgets to partners"}`},
		"https://example.com/partners": {
			`<a href="https://example.com/partners">https://example.com/partners</a>`,
			`{"name":"Who gives tokens, licence keys and widgets to partners","url":"https://example.com/partners"}`},
	} {
		s := newService(t, func(_ *storeOptions, o *serverOptions) {
			o.contact, o.anonymousRate, o.visitorRate, o.failedLookupRate = contact, 77, 888, 44
			o.legacySunset = time.Date(2027, time.March, 5, 0, 0, 0, 0, time.UTC)
		})
		contains(t, s.get("//").is(200).body, "ask "+want.link)
		page := docsPage(s)
		contains(t, chapterOf(t, page, "start"), "needs what "+want.link)
		contains(t, chapterOf(t, page, "tokens"), "(ask "+want.link+")")
		if contact != "" {
			twin := s.get("//docs/tokens.md").is(200).body
			contains(t, twin, "]("+contact+")")
			lacks(t, twin, "<a ")
		}
		got, err := json.Marshal(s.get("//openapi.json").is(200).json()["info"].(map[string]any)["contact"])
		s.check(err)
		equal(t, "contact", string(got), want.member)
		contains(t, page, "the paths without a version, of before version 1, end on 5 March 2027",
			"77 requests a minute each", "send 888 events a minute of each widget", "Once 44 different keys",
			"770 requests a minute may come", "one order take 77 requests a minute")
		page, _, _ = strings.Cut(page, `<section id="changes"`)
		lacks(t, page, "1 July 2026", "60 requests a minute each")
	}
}

// TestDocs_samplesWork runs the programs of the page on real leases, on requests as the service signs them, and killed
// and started again while things happen.
func TestDocs_samplesWork(t *testing.T) {
	notUnderRace(t, "programs in other languages do the work")
	t.Parallel()
	for _, c := range []struct {
		id, file, needs, command string
		try                      func(s *service, command []string)
	}{
		{"openssl", "lease.sh", "sh openssl jq base64", "sh lease.sh", checkLeases},
		{"node", "lease.mjs", "node", "node lease.mjs", checkLeases},
		{"python", "lease.py", "python3 openssl", "python3 lease.py", checkLeases},
		// -I -S leaves installed packages out, so that openssl does it.
		{"python", "lease.py", "python3 openssl", "python3 -I -S lease.py", checkLeases},
		{"java", "Lease.java", "java javac", "java Lease.java", checkLeases},
		{"go", "lease.go", "go", "./lease", checkLeases},
		{"webhook-openssl", "webhook.sh", "sh openssl base64 od", "sh webhook.sh", checkWebhooks},
		{"webhook-node", "webhook.mjs", "node", "node webhook.mjs", checkWebhooks},
		{"webhook-python", "webhook.py", "python3", "python3 -I -S webhook.py", checkWebhooks},
		{"webhook-go", "webhook.go", "go", "./webhook", checkWebhooks},
		{"events-shell", "events.sh", "sh curl jq", "sh events.sh", followEvents},
		{"events-node", "events.mjs", "node", "node events.mjs", followEvents},
		{"events-python", "events.py", "python3", "python3 -I -S events.py", followEvents},
		{"events-go", "events.go", "go", "./events", followEvents},
	} {
		t.Run(c.id+" "+c.command, func(t *testing.T) {
			t.Parallel()
			programsOrSkip(t, strings.Fields(c.needs)...)
			command := strings.Fields(c.command)
			triedInFull(t, command)
			s := newService(t)
			saveSample(s, c.id, c.file)
			c.try(s, command)
		})
	}
}

// triedInFull skips a program of the page that only -long tries: each start of node, python or java costs as much as a
// test, and building one in Go as much as ten. Those for a shell are always tried.
func triedInFull(t *testing.T, command []string) {
	t.Helper()
	if command[0] != "sh" && !inFull() {
		t.Skip("with -long only: a program in another language")
	}
}

// saveSample writes a program of the page into a file of the service's directory; one in Go is built,
// and has the file's name without its ending.
func saveSample(s *service, id, file string) {
	s.t.Helper()
	found := captures(`(?s)<pre class="sample" data-sample="`+id+`"[^>]*><code>(.*?)</code></pre>`, newDocsPage(s.t))
	if len(found) != 1 {
		s.t.Fatalf("the page has %d programs for %s", len(found), id)
	}
	s.check(os.WriteFile(filepath.Join(s.dir, file), []byte(html.UnescapeString(found[0])), 0o600))
	if name, isGo := strings.CutSuffix(file, ".go"); isGo {
		build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", name, file)
		build.Dir, build.Env = s.dir, append(os.Environ(), "CGO_ENABLED=0", "GO111MODULE=off")
		if out, err := build.CombinedOutput(); err != nil {
			s.t.Fatalf("%v: %s", err, out)
		}
	}
}

// followEvents has a program follow what happens, which is killed after every third event that it has printed. At
// last it is at a place that this database does not know.
func followEvents(s *service, command []string) {
	takesLong(s.t, "runs the programs of the documentation")
	web := httptest.NewServer(s.server)
	defer web.Close()
	env := append(os.Environ(), "BASE="+web.URL+"/v1", "TOKEN="+s.token(s.account, scopeEvents))
	start := func() (cmd *exec.Cmd, lines *bufio.Scanner, told *bytes.Buffer) {
		cmd, told = exec.Command(command[0], command[1:]...), &bytes.Buffer{}
		cmd.Dir, cmd.Env, cmd.Stderr = s.dir, env, told
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // of a script its curl, too
		out, err := cmd.StdoutPipe()
		s.check(err)
		s.check(cmd.Start())
		return cmd, bufio.NewScanner(out), told
	}
	seen := []string{}
	for round := range 3 {
		cmd, lines, told := start()
		for i := range 3 {
			id, _ := s.addLicense(license{})
			want := s.eventTypes(id)
			for !slices.Contains(seen, id) {
				if !lines.Scan() {
					s.t.Fatalf("round %d, event %d: it ended: %s", round, i, told)
				}
				event, kind, _ := strings.Cut(lines.Text(), " ")
				if subject := s.subjectOf(event); subject == id {
					equal(s.t, "type", kind, want)
				}
				seen = append(seen, s.subjectOf(event))
			}
		}
		s.check(syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL))
		cmd.Wait()
		s.addLicense(license{}) // that the next run finds
	}
	equal(s.t, "licences seen", len(slices.Compact(slices.Sorted(slices.Values(seen)))) >= 11, true)
	s.sql(`DELETE FROM events`)
	s.addLicense(license{})
	s.sql(`DELETE FROM events`)
	cmd, lines, told := start()
	for lines.Scan() {
	}
	if cmd.Wait(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(told.String(), "no longer kept") {
		s.t.Errorf("after events were missed it ends with %v: %s", cmd.ProcessState, told)
	}
}

// subjectOf returns what an event is about.
func (s *service) subjectOf(event string) (subject string) {
	s.t.Helper()
	s.check(s.store.one(`SELECT subject_id FROM events WHERE id = ?`, []any{event}, &subject))
	return subject
}

// checkWebhooks has a program judge requests that are genuine and requests that are not.
func checkWebhooks(s *service, command []string) {
	const genuine, timing, signature = "the webhook is genuine",
		"the webhook is refused: its time is more than five minutes from now",
		"the webhook is refused: its signature is wrong"
	w := &webhook{ID: "whe_01m8a6b2q7w3d8h5n0t4x9zcke", SecretNumber: 2, RotatedAt: newStamp(time.Now())}
	secrets := w.secrets(s.keys, time.Now())
	if len(secrets) != 2 {
		s.t.Fatalf("%d secrets after a rotation, want 2", len(secrets))
	}
	body, err := webhookBody(&event{ID: "evt_01m8a5ge1k8p4z7d3v0t6m9xwc", At: newStamp(time.Now()),
		Type:      eventLeadCreated,
		AccountID: s.account, Data: eventData("name", "Zürich")})
	s.check(err)
	for _, c := range []struct {
		what    string
		age     time.Duration
		secret  []byte
		id      string // in place of the one that was signed; "": that one
		version string // of the signatures
		body    []byte
		want    string
	}{
		{"as it is", 0, secrets[0], "", "v1,", body, genuine},
		{"with the secret before", 0, secrets[1], "", "v1,", body, genuine},
		{"of four minutes ago", 4 * time.Minute, secrets[0], "", "v1,", body, genuine},
		{"of six minutes ago", 6 * time.Minute, secrets[0], "", "v1,", body, timing},
		{"of in six minutes", -6 * time.Minute, secrets[0], "", "v1,", body, timing},
		{"with another secret", 0, webhookSecret(s.keys, w.ID, 3), "", "v1,", body, signature},
		{"with another id", 0, secrets[0], "evt_01m8a5ge1k8p4z7d3v0t6m9xwd", "v1,", body, signature},
		{"with another body", 0, secrets[0], "", "v1,", append(slices.Clone(body), '\n'), signature},
		{"with another version", 0, secrets[0], "", "v2,", body, signature},
		{"without a signature", 0, secrets[0], "", "", nil, signature},
	} {
		const id = "evt_01m8a5ge1k8p4z7d3v0t6m9xwc"
		h := webhookHeaders(secrets, id, time.Now().Add(-c.age), body)
		signatures := strings.ReplaceAll(h.Get(webhookSignatureHeader), "v1,", c.version)
		if c.version == "" {
			signatures = ""
		}
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Dir, cmd.Stdin = s.dir, bytes.NewReader(c.body)
		cmd.Env = append(os.Environ(), "SECRET="+formatWebhookSecret(c.secret), "WEBHOOK_ID="+cmp.Or(c.id, id),
			"WEBHOOK_TIMESTAMP="+h.Get(webhookTimestampHeader), "WEBHOOK_SIGNATURE="+signatures)
		out, err := cmd.CombinedOutput()
		if strings.TrimSpace(string(out)) != c.want || (err == nil) != (c.want == genuine) {
			s.t.Errorf("a webhook %s: %s(%v), want %s", c.what, out, err, c.want)
		}
	}
}

// checkLeases has a program judge leases that hold and leases that don't. One in Java is compiled after the first.
func checkLeases(s *service, command []string) {
	t, again := s.t, command
	takesLong(t, "runs the programs of the documentation")
	if command[0] == "java" {
		again = []string{"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", s.dir, "Lease"}
		runProgram(t, "javac", "-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", "-d", s.dir,
			filepath.Join(s.dir, command[1]))
	}
	_, key := s.addLicense(license{terms: terms{MaxDevices: ptr(1)}})
	old := s.activate(key, "kitchen-1").is(200).text("token")
	s.must("key", "add")
	s.must("key", "rotate", "-force") // two keys are pinned, and another signed the lease than signs now
	s.check(os.WriteFile(filepath.Join(s.dir, "public.pem"), []byte(s.must("key", "public")), 0o600))
	c, err := s.keys.verify(old)
	s.check(err)
	ring, err := loadKeyring(filepath.Join(s.dir, "widgetd.key"))
	s.check(err)
	renewed, ended := c, c
	renewed.IssuedAt += 60
	ended.Expires = time.Now().Unix() - 1
	signed := func(ring *keyring, c claims) string {
		token, err := ring.sign(c)
		s.check(err)
		return token
	}
	newer := signed(ring, renewed)
	stranger, err := newKeyring(time.Now())
	s.check(err)
	mark := filepath.Join(s.dir, "lease.mark")
	for _, lease := range []struct {
		what, token, fingerprint, audience string
		mark                               int64 // that was saved before; 0: none
		want                               string
	}{
		{"a lease", old, "kitchen-1", testBase, 0, "the lease holds"},
		{"of the new key", newer, "kitchen-1", testBase, 0, "the lease holds"},
		{"with a mark before its end", newer, "kitchen-1", testBase, c.Expires - 60, "the lease holds"},
		{"with a mark at its end", newer, "kitchen-1", testBase, c.Expires, "the lease does not hold: it has ended"},
		{"that has ended", signed(ring, ended), "kitchen-1", testBase, 0, "the lease does not hold: it has ended"},
		{"of another device", old, "kitchen-2", testBase, 0, "the lease does not hold: it is of another device"},
		{"of another service", old, "kitchen-1", "https://other.example/v1", 0,
			"the lease does not hold: it is of another service"},
		{"of a strange key", signed(stranger, c), "kitchen-1", testBase, 0,
			"the lease does not hold: it names a key that is not pinned"},
		{"that was cut off", old[:20], "kitchen-1", testBase, 0, "the lease does not hold: it is damaged"},
		{"with a letter of no alphabet", "é" + old[1:], "kitchen-1", testBase, 0,
			"the lease does not hold: it is damaged"},
		{"with another's signature", old[:strings.LastIndexByte(old, '.')] + newer[strings.LastIndexByte(newer, '.'):],
			"kitchen-1", testBase, 0,
			"the lease does not hold: its signature is wrong"},
	} {
		os.Remove(mark) // there may be none
		if lease.mark > 0 {
			s.check(os.WriteFile(mark, fmt.Appendln(nil, lease.mark), 0o600))
		}
		cmd := exec.Command(command[0], command[1:]...)
		command = again
		cmd.Dir = s.dir
		cmd.Env = append(os.Environ(), "TOKEN="+lease.token, "FINGERPRINT="+lease.fingerprint,
			"AUDIENCE="+lease.audience)
		out, err := cmd.CombinedOutput()
		if strings.TrimSpace(string(out)) != lease.want || (err == nil) != (lease.want == "the lease holds") {
			t.Errorf("a lease %s: %s(%v), want %s", lease.what, out, err, lease.want)
		}
		saved, _ := os.ReadFile(mark)
		at, _ := strconv.ParseInt(strings.TrimSpace(string(saved)), 10, 64)
		low := max(lease.mark, c.IssuedAt)
		if lease.token == newer {
			low = max(lease.mark, renewed.IssuedAt)
		}
		if matches("key that|signature|damaged", lease.want) {
			low = 0 // nothing that was not signed may move the mark
		}
		if at < low || at > low+10 {
			t.Errorf("a lease %s: the mark is %d, want %d", lease.what, at, low)
		}
	}
}

func TestDocs_fitATelephone(t *testing.T) {
	t.Parallel()
	takesLong(t, "looks at many pages in a browser")
	programsOrSkip(t, "chromium", "chromedriver")
	root := strings.TrimSuffix(printed(t, sharedDemo(t), "The service behind it"), "/v1")
	b := startBrowser(t)
	b.open(root + "/docs")
	b.screenshot("docs.png")
	b.open(root + "/robots.txt") // a page without a policy, that may have a frame
	paths := []string{"/", "/docs", "/docs/calls-orders", "/docs/offline", "/docs/widgets", "/docs/clients",
		"/docs/problems", "/docs/bookkeeping"}
	for _, path := range paths[:size(4, len(paths))] {
		b.fitsInFrame(root+path, "pre, .skip",
			`if (getComputedStyle(page.body).fontSize != "16px") fault("the style sheet is missing");`)
	}
}

func TestSecurityTxt_isThereOnlyWithAContact(t *testing.T) {
	t.Parallel()
	newService(t).get("//.well-known/security.txt").is(404, "not_found")
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, func(_ *storeOptions, o *serverOptions) {
			o.securityContacts = []string{"mailto:security@example.com", "https://example.com/report"}
		})
		time.Sleep(13 * time.Hour) // to another time of the day, which makes no difference
		a := s.get("//.well-known/security.txt").is(200).has("Content-Type: text/plain; charset=utf-8")
		want := "Contact: mailto:security@example.com\nContact: https://example.com/report\nExpires: " +
			"2000-06-29T00:00:00Z\n" +
			"Canonical: http://127.0.0.1:8080/.well-known/security.txt\n"
		if a.body != want {
			t.Errorf("security.txt\n%s, want\n%s", a.body, want)
		}
	})
}

// TestRoot_answersHEADAndOPTIONSOnEveryPath also asks with an Accept that nothing fulfils: there is one
// form of every answer.
func TestRoot_answersHEADAndOPTIONSOnEveryPath(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	s := newService(t, func(_ *storeOptions, o *serverOptions) {
		o.securityContacts = []string{"mailto:security@example.com"}
	})
	paths := append(slices.Collect(maps.Keys(docsPages(t))), "/docs.css", "/robots.txt", "/widget.js", "/livez",
		"/openapi.json", "/llms.txt", "/.well-known/jwks.json", "/.well-known/security.txt",
		"/.well-known/oauth-authorization-server/v1")
	for _, path := range paths {
		s.do("OPTIONS", "/"+path, "").is(204).has("Allow: GET, HEAD, OPTIONS")
		get, head := s.get("/"+path, "Accept: image/png"), s.do("HEAD", "/"+path, "", "Accept: image/png")
		for _, name := range []string{"Content-Type", "ETag", "Cache-Control", "Link", "Vary"} {
			equal(t, path+": "+name+" of HEAD", head.header.Get(name), get.header.Get(name))
		}
		if get.status != 200 || head.status != 200 {
			t.Errorf("%s: GET answers %d and HEAD %d", path, get.status, head.status)
		}
	}
	s.do("PUT", "//docs", "").is(405, "method_not_allowed").has("Allow: GET, HEAD, OPTIONS")
}

// TestDocs_menuTakesAnOrder starts the server of the chapter, and orders as a guest's browser does.
func TestDocs_menuTakesAnOrder(t *testing.T) {
	takesLong(t, "runs the programs of the documentation")
	t.Parallel()
	programsOrSkip(t, "node", "curl", "sh")
	root := strings.TrimSuffix(printed(t, sharedDemo(t), "The service behind it"), "/v1")
	page := runProgram(t, "curl", "-s", root+"/docs/ordering")
	dir := t.TempDir()
	program := captures(`(?s)<pre class="sample" data-sample="menu"[^>]*><code>(.*?)</code></pre>`, page)
	line := captures(`(?s)<pre class="start"[^>]*><code>(.*?)</code></pre>`, page)
	if len(program) != 1 || len(line) != 1 {
		t.Fatalf("the chapter has %d programs and %d lines", len(program), len(line))
	}
	must(t, os.WriteFile(filepath.Join(dir, "menu.mjs"), []byte(html.UnescapeString(program[0])), 0o600))
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", settings(page)+"export PORT=0\n"+
		strings.Replace(html.UnescapeString(line[0]), " node ", " exec node ", 1))
	cmd.Dir = dir
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	buffer := make([]byte, 200)
	n, err := out.Read(buffer)
	must(t, err)
	menu := strings.TrimSpace(string(buffer[:n]))
	contains(t, runProgram(t, "curl", "-s", menu), "Tiramis\u00f9, CHF 9.00", "/widget.js")
	paying := runProgram(t, "curl", "-s", menu, "-d", "0=2", "-d", "1=1", "-o", "/dev/null",
		"-w", "%{http_code} %{redirect_url}")
	at, ok := strings.CutPrefix(paying, "303 ")
	if !ok {
		t.Fatalf("the menu answers %s", paying)
	}
	contains(t, runProgram(t, "curl", "-s", at), "Pizza Margherita", "42.00")
	refused := runProgram(t, "curl", "-s", menu, "-d", "0=0", "-w", " %{http_code}")
	contains(t, refused, "Choose something first.", "Tiramis\u00f9, CHF 9.00")
	if !strings.HasSuffix(refused, " 422") {
		t.Errorf("an order of nothing is %s", refused)
	}
}

func TestRoot_browserAtAWrongAddressGetsAPage(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const accept = "Accept: text/html,application/xhtml+xml,*/*;q=0.8"
	for _, path := range []string{"//nowhere", "//doc", "/widget/leed", "//docs/limts"} {
		page := s.get(path, accept).is(404).has("Content-Type: text/html; charset=utf-8",
			"Cache-Control: no-store").body
		contains(t, page, "There is nothing at this address", `<a href="/docs">`, `<section class="card">`)
		lacks(t, page, "<script")
		s.get(path).is(404, "not_found")
	}
	s.do("POST", "//nowhere", "", accept).is(404, "not_found")
}

// A finder makes the index in which the box of the pages finds words: for each word the places that have it. A place is
// a heading or a row with an id, and what is below it.
type finder struct {
	pages  [][2]string      // path and title
	places [][3]any         // number of the page, id, title
	words  map[string][]int // the numbers of the places, ascending
}

func newFinder() *finder { return &finder{words: map[string][]int{}} }

// findSynonyms are words that readers look for, with those that the pages have.
var findSynonyms = map[string]string{
	"pagination": "cursor", "paging": "cursor", "page": "cursor", "apikey": "token", "api": "token",
	"auth": "token", "authentication": "token", "authorization": "token", "bearer": "token", "jwt": "token",
	"password": "token", "credential": "token", "login": "signin", "sdk": "clients", "library": "clients",
	"swagger": "openapi", "sandbox": "demo", "testing": "demo", "testcard": "demo", "mock": "demo",
	"throttling": "limits", "throttle": "limits", "429": "rate_limited", "retry": "retries",
	"callback": "webhook", "hook": "webhook", "signature": "verifying", "verify": "verifying",
	"license": "licence", "licensing": "licences", "seat": "seats", "activation": "activate", "refund": "refunds",
	"chargeback": "disputed", "tax": "vat", "accounting": "bookkeeping", "invoice": "receipt", "gdpr": "erase",
	"privacy": "erased", "delete": "remove", "cors": "origin", "typescript": "javascript", "nodejs": "javascript",
	"node": "javascript", "golang": "go", "idempotent": "idempotency", "timezone": "zone",
	"permissions": "scopes", "permission": "scope", "ios": "clients", "php": "clients", "error": "problem",
	"errors": "problems",

	// German
	"kasse": "devices", "rechnung": "receipt", "bestellung": "orders", "zahlung": "payments", "erstattung": "refunds",
	"lizenz": "licence", "gerät": "devices", "buchhaltung": "bookkeeping", "speisekarte": "menu", "umsatz": "revenue",
	"auszahlung": "payouts", "trinkgeld": "tip", "mehrwertsteuer": "vat", "gutschrift": "refunds", "fehler": "problems",
	"zugang": "token", "datenschutz": "privacy", "schnittstelle": "openapi",
}

// findStops are words that tell nothing of what a reader looks for.
var findStops = strings.Fields("the and for are not has have its that this with from what which when who how does " +
	"can you your was one all any but may then than there they them will only also into each other more over")

var findWord = regexp.MustCompile(`[a-z0-9à-ÿ_]+`)

// add adds a page.
func (f *finder) add(c *docsChapter, body string) error {
	root, err := parseDocs(docsText(body, docsFacts{}))
	if err != nil {
		return err
	}
	page := len(f.pages)
	f.pages = append(f.pages, [2]string{c.Path, html.UnescapeString(string(c.Title))})
	first := len(f.places)
	if f.walk(root, page, -1); first < len(f.places) { // its address names it, too: /docs/offline
		f.note(strings.ReplaceAll(strings.TrimPrefix(c.Path, docsPrefix), "-", " "), first)
	}
	return nil
}

// walk adds the words in an element to a place, or to those that begin in it.
func (f *finder) walk(n *docsNode, page, place int) int {
	if n.name == "" {
		f.note(n.text, place)
		return place
	}
	id, title := n.attrs["id"], ""
	switch n.name {
	case "h2", "h3", "h4":
		title = n.plain()
	case "tr":
		if id != "" {
			title = n.inner[0].plain()
		}
	}
	if title != "" && id != "" {
		id = strings.TrimSuffix(id, "-title")
		f.places = append(f.places, [3]any{page, id, strings.TrimSpace(title)})
		place = len(f.places) - 1
	}
	inner := place
	for _, c := range n.inner {
		inner = f.walk(c, page, inner)
	}
	if n.name == "tr" { // what follows a row is not in it
		return place
	}
	return inner
}

// note adds the words of a text to a place, those with underscores in parts, too.
func (f *finder) note(text string, place int) {
	if place < 0 {
		return
	}
	for _, word := range findWord.FindAllString(strings.ToLower(text), -1) {
		for _, part := range append(strings.Split(word, "_"), word) {
			if len(part) < 3 && part != "go" || slices.Contains(findStops, part) || len(part) > 40 {
				continue
			}
			if at := f.words[part]; len(at) == 0 || at[len(at)-1] != place {
				f.words[part] = append(at, place)
			}
		}
	}
}

// json returns the index. The numbers of places are the differences to the one before.
func (f *finder) json() string {
	words := map[string][]int{}
	for word, places := range f.words {
		last, steps := 0, []int(nil)
		for _, place := range slices.Compact(slices.Sorted(slices.Values(places))) {
			steps, last = append(steps, place-last), place
		}
		words[word] = steps
	}
	same := maps.Clone(findSynonyms)
	maps.DeleteFunc(same, func(_, known string) bool { return len(f.words[known]) == 0 })
	return string(encodeJSON(map[string]any{"pages": f.pages, "places": f.places, "words": words, "same": same,
		"stops": append(strings.Fields("about reads which does mean"), findStops...)}))
}
