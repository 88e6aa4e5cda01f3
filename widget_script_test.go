package main

import (
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Against whoever gets at the service, or at what is between it and a visitor, who would run another script in
// partners' pages: the line for partners has the script's hash (integrity), with which browsers refuse any other;
// it needs no rights but to load and to connect.
func TestScript_isServedToEverySiteAndMayBeKept(t *testing.T) {
	t.Parallel()
	s := newService(t)
	script, err := presentScript(testBase)
	s.check(err)
	for path, caching := range map[string]string{
		"//widget.js":     "public, max-age=3600",
		"/" + script.path: "public, max-age=31536000, immutable",
	} {
		const nobody = "Origin: https://nobody.example"
		a := s.get(path, nobody).is(200).has("Content-Type: text/javascript; charset=utf-8", "Cache-Control: "+caching,
			"Access-Control-Allow-Origin: *", "X-Content-Type-Options: nosniff",
			"Cross-Origin-Resource-Policy: cross-origin", "Vary: Accept-Encoding")
		if a.body != string(script.text) || !strings.Contains(a.body, `"`+testBase+`"`) ||
			strings.Contains(a.body, "{{") {
			t.Errorf("%s is %d bytes: %.300s", path, len(a.body), a.body)
		}
		sum := sha512.Sum384([]byte(a.body))
		equal(t, "integrity", script.integrity, "sha384-"+base64.StdEncoding.EncodeToString(sum[:]))
		s.get(path, "If-None-Match: "+a.header.Get("ETag")).is(304)
		s.do("OPTIONS", path, "", nobody,
			"Access-Control-Request-Method: GET").is(204).has("Access-Control-Allow-Origin: *")
		s.post(path, "{}").is(405, "method_not_allowed")
		if small := s.get(path, "Accept-Encoding: gzip").has("Content-Encoding: gzip"); len(small.body) >= 5<<10 {
			t.Errorf("%s has %d bytes compressed", path, len(small.body))
		}
	}
	s.get("//widget-000000000000.js").is(404, "not_found") // another script there would not fit its hash
}

// TestScript_releasedOnesAreStillThere holds the hashes of testdata/widget-released.txt, which are of the
// texts before the base address is put in.
func TestScript_releasedOnesAreStillThere(t *testing.T) {
	t.Parallel()
	released, err := os.ReadFile("testdata/widget-released.txt")
	must(t, err)
	names, err := scriptFiles.ReadDir("web")
	must(t, err)
	present := map[string]bool{}
	for _, name := range names {
		source, err := scriptFiles.ReadFile("web/" + name.Name())
		must(t, err)
		present[newWidgetScript(source, "{{base}}").integrity] = true
	}
	for _, line := range strings.Fields(string(released)) {
		if !present[line] {
			t.Errorf("the script %s is gone, which pages name by its hash: keep it as web/widget_1.js and so on. "+
				"If no release had it, put one of %v in its place in testdata/widget-released.txt", line, present)
		}
	}
	if len(strings.Fields(string(released))) == 0 {
		t.Error("testdata/widget-released.txt is empty")
	}
}

// TestScript_usesNothingThatAPageMayForbid looks for what a Content-Security-Policy or a law on privacy
// keeps pages from, and for what stripScript does not understand.
func TestScript_usesNothingThatAPageMayForbid(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("web/widget.js")
	must(t, err)
	for _, pattern := range []string{
		"eval", `Function\(`, "innerHTML", "outerHTML", "insertAdjacentHTML", "document\\.write", `["<]style`, "cookie",
		"Storage", "indexedDB", "`", `/\*`, `[;{}] *//`, `(window|globalThis|self)\.\w+ *=[^=]`,
	} {
		if found := regexp.MustCompile(pattern).FindAll(stripScript(source), -1); len(found) > 0 {
			t.Errorf("web/widget.js has %q", found)
		}
	}
}

func TestSnippet_isTheLineToPaste(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	id := o.object("widget", "add", "Lunch menu")["id"].(string)
	o.do("base-url", "set", "https://api.example.com/v1")
	script, err := presentScript("https://api.example.com/v1")
	must(t, err)
	line := fmt.Sprintf(`<script async src="https://api.example.com%s" data-widget="%s" integrity="%s" `+
		`crossorigin="anonymous"></script>`, script.path, id, script.integrity)
	text := o.do("widget", "snippet", id)
	policy := strings.ReplaceAll("script-src *; connect-src *; img-src *\n", "*", "https://api.example.com")
	if !strings.HasSuffix(text, "-->\n"+line+"\n") || !strings.HasPrefix(text, "<!--") ||
		strings.Count(text, "<!--") != 1 || !strings.Contains(text, policy) ||
		!strings.Contains(text, "https://api.example.com/widget.js without integrity") {
		t.Errorf("the snippet:\n%s", text)
	}
	const site = "https://api.example.com"
	equal(t, "with -json", o.object("widget", "snippet", id), map[string]any{
		"widget": id, "html": line,
		"script": site + script.path, "integrity": script.integrity, "latest": site + "/widget.js",
		"csp":     map[string]any{"script-src": site, "connect-src": site, "img-src": site},
		"origins": []any{"https://partner.example", siteOrigin}})
	o.fails("not found", "widget", "snippet", "wgt_00000000000000000000000000")

	s := newService(t)
	noted := &strings.Builder{}
	alone := s.addWidget(s.addAccount("Bistro"))
	err = run(t.Context(), []string{"widget", "snippet", alone, "-db", s.store.path}, os.Getenv, io.Discard, noted)
	if err != nil ||
		!matches(`^no site may use this widget yet: .*widgetd origin add \S+ -account Bistro'`, noted.String()) {
		t.Errorf("for an account without an origin: %v %q", err, noted)
	}
}

// A scriptStage is a service and the sites of partners, for a browser.
type scriptStage struct {
	*service
	*browser
	web    *httptest.Server // the service
	listed *httptest.Server // a site whose origin the account has
	other  *httptest.Server // a site whose origin nobody has
	widget string
	posts  chan sitePost // what was posted to the service
	forms  chan sitePost // what was posted to the sites
	busy   chan int      // statuses to answer the next posts with instead
	drain  atomic.Bool   // the next post finds the bucket of its address empty
}

// A sitePost is a request that was answered.
type sitePost struct {
	path, kind, cookie, body string
	status                   int
}

func readPost(r *http.Request) sitePost {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	return sitePost{path: r.URL.Path, kind: r.Header.Get("Content-Type"), cookie: r.Header.Get("Cookie"),
		body: string(body)}
}

// newScriptStage starts a service, two sites with the same pages, and a browser.
func newScriptStage(t *testing.T) *scriptStage {
	t.Helper()
	programsOrSkip(t, "chromium", "chromedriver")
	g := &scriptStage{service: newService(t, withoutAddressLimits),
		posts: make(chan sitePost, 100), forms: make(chan sitePost, 100), busy: make(chan int, 100)}
	g.server.visitorRate = 60 // so that there is room for an event a second later
	serve := func(f http.HandlerFunc) *httptest.Server {
		web := httptest.NewServer(f)
		t.Cleanup(web.Close)
		return web
	}
	g.web, g.listed, g.other = serve(g.serveService), serve(g.serveSite), serve(g.serveSite)
	g.widget = g.addWidget(g.account)
	g.must("base-url", "set", g.web.URL+"/v1")
	g.must("origin", "add", g.listed.URL, "-account", g.account)
	g.must("base-url", "remove", testBase)
	g.check(g.server.refresh())
	g.browser = startBrowser(t)
	return g
}

// serveService is the service, which also tells what was posted.
func (g *scriptStage) serveService(w http.ResponseWriter, r *http.Request) {
	post := readPost(r)
	inner := httptest.NewRecorder()
	if r.Method == http.MethodPost && g.drain.Swap(false) {
		g.server.addressBuckets.empty("events "+g.widget+" 127.0.0.1", g.server.visitorRate, time.Now())
	}
	select {
	case post.status = <-g.busy:
		if r.Method == http.MethodPost {
			w.Header().Set("Access-Control-Allow-Origin", "*")
			w.Header().Set("Access-Control-Expose-Headers", exposedHeaders)
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(post.status)
			g.posts <- post
			return
		}
		g.busy <- post.status // meant for a post
	default:
	}
	g.server.ServeHTTP(inner, r)
	maps.Copy(w.Header(), inner.Header())
	w.WriteHeader(inner.Code)
	w.Write(inner.Body.Bytes())
	if post.status = inner.Code; r.Method == http.MethodPost {
		g.posts <- post
	}
}

// probe is the site's own script. It collects what goes wrong in the page, and how far the layout
// shifts.
const probe = `window.told = ""; console.warn = text => told += text; window.faults = [];
window.shift = 0; window.names = Object.keys(window);
addEventListener("securitypolicyviolation", e => faults.push("forbidden: " + e.violatedDirective + " " + e.blockedURI));
addEventListener("error", e => faults.push("error: " + e.message));
addEventListener("unhandledrejection", e => faults.push("rejected: " + e.reason));
new PerformanceObserver(list => { for (const e of list.getEntries()) shift += e.value }).
	observe({ type: "layout-shift", buffered: true });
if (location.search == "?quiet") Object.defineProperty(navigator, "globalPrivacyControl", { value: true });`

// serveSite is a partner's site. Its pages have a strict policy; /blocked does not let the service's
// script run.
func (g *scriptStage) serveSite(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		g.forms <- readPost(r)
		fmt.Fprint(w, "<title>sent</title><p id=sent>The site has it.")
		return
	}
	if r.URL.Path == "/probe.js" {
		w.Header().Set("Content-Type", "text/javascript")
		fmt.Fprint(w, probe)
		return
	}
	line, err := newSnippet(g.widget, g.web.URL+"/v1")
	if err != nil {
		panic(err)
	}
	scripts := "'self' " + line.Policy["script-src"]
	if r.URL.Path == "/blocked" {
		scripts = "'self'"
	}
	action := ` action="/form" method="post"`
	if r.URL.Path == "/noaction" {
		action = ""
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Set-Cookie", "site=1")
	w.Header().Set("Content-Security-Policy", fmt.Sprintf("default-src 'none'; base-uri 'none'; form-action 'self'; "+
		"script-src %s; connect-src %s; img-src %s", scripts, line.Policy["connect-src"], line.Policy["img-src"]))
	fmt.Fprintf(w, `
<!doctype html><html lang="de"><head><meta charset="utf-8"><title>Lunch</title><script src="/probe.js"></script>
<script async src="%s" data-widget="%s"></script></head><body>
<div data-widget-root><p><a href="#open" data-widget-item="Pizza">Open</a>
<button type="button" data-widget-order="Pizza">Order</button></p>
<p><b data-widget-stat="views.week" data-timezone="Europe/Zurich">–</b></p>
<p><i id="top" data-widget-stat="item.month.1">–</i></p>
<p><i></i> <i data-widget-stat="views.year">–</i> <i data-widget-stat="orders.week">–</i></p>
<img src="%[3]s/v1/widget/stats.svg?widget=%[2]s" alt="Views" width="400" height="200">
%[4]s
<script async src="%[1]s" data-widget="%[2]s"></script></div>
<form data-widget-lead="contact"%[5]s data-widget-sent="Merci.">
<input name="email" aria-describedby="hint"><span id="hint">Required</span>
<textarea name="message"></textarea><input name="diet" type="checkbox" value="vegan" checked>
<input name="diet" type="checkbox" value="nuts" checked>
<input type="hidden" name="source" value="footer"><button>Send</button></form></body></html>`,
		line.Latest, g.widget, g.web.URL, line.HTML, action)
}

// posted waits for the next request to a path of the service.
func (g *scriptStage) posted(path string, status int) sitePost {
	g.service.t.Helper()
	select {
	case p := <-g.posts:
		if p.path != "/v1"+path || p.status != status || p.cookie != "" {
			g.service.t.Fatalf("posted %+v, want %s and %d", p, path, status)
		}
		return p
	case <-time.After(hangs):
		g.service.t.Fatalf("nothing was posted to %s", path)
	}
	return sitePost{}
}

// script runs a script in the page and returns its value as text.
func (g *scriptStage) script(text string) string {
	g.service.t.Helper()
	return fmt.Sprint(g.browser.call("POST", g.session+"/execute/sync",
		map[string]any{"script": text, "args": []any{}}))
}

// clean fails the test if something went wrong in the page.
func (g *scriptStage) clean(want string) {
	g.service.t.Helper()
	equal(g.service.t, "in the page", g.script(`return faults.join("; ")`), want)
}

const keyTab, keyEnter = "\ue004", "\ue007" // of WebDriver

func TestScript_countsAndSendsFormsOnAPageWithAStrictPolicy(t *testing.T) {
	t.Parallel()
	g := newScriptStage(t)
	g.change(func(tx *tx) error {
		tx.addCounts(g.widget, counts{Views: 12_345, Visitors: 1, Clicks: 2},
			[]nameCount{{"Risotto", counts{Clicks: 2}}}, nil)
		return nil
	})
	page := g.listed.URL + "/menu?customer=7#dishes"
	const view, click = `{"type":"view","page":"/menu"}`, `{"type":"click","item":"Pizza","page":"/menu"}`
	const order = `{"type":"order","item":"Pizza","page":"/menu"}`
	g.open(page)
	equal(t, "the number", g.text(`//b[text()!="–"]`), "12.345")
	equal(t, "the other places",
		g.text(`//i[@id="top" and text()!="–"]`)+g.text(`//i[2]`)+g.text(`//i[3]`), "Risotto––")
	equal(t, "once the widget is visible, it sends", g.events(1), view)
	equal(t, "the width of the picture for its height", g.script(`
		const picture = document.images[0]; return picture.decode().
			then(() => picture.naturalWidth / picture.naturalHeight)`), "2")
	// A number that is filled in only once the page was painted moves the text behind it by some pixels.
	const added = `return shift.toFixed(3) + " " + Object.keys(window).filter(name =>
		!/^(names|\d+|ret_nodes|se_\w+)$/.test(name) && !names.includes(name))`
	equal(t, "the layout shifts by, and the new globals are", g.script(added), "0.000 ")
	g.keyboard()
	g.clean("")
	g.open(strings.Replace(page, "=7", "=8", 1))
	g.find(`//input[@name="website"]/ancestor::form`)
	g.press(keyTab + keyEnter + keyTab + keyEnter)
	g.open("about:blank")    // leaving sends what was not sent yet
	got := "," + g.events(3) // the view comes once the browser has painted, so anywhere among the others
	equal(t, "the page sends beside the view", strings.Replace(got, ","+view, "", 1), ","+click+","+order)
	equal(t, "counts", g.counted(g.widget), counts{Views: 12_347, Visitors: 2, Clicks: 3, Orders: 1})
	g.open(strings.Replace(page, "=7", "=9", 1))
	g.drain.Store(true)
	g.posted("/widget/events", 429)
	equal(t, "once there is room, it sends", g.events(1), view)
}

// events waits for so many events, in one batch or several, and returns them.
func (g *scriptStage) events(n int) string {
	g.service.t.Helper()
	var all []string
	for len(all) < n {
		p := g.posted("/widget/events", 204)
		batch := regexp.MustCompile(`^\{"widget":"` + g.widget + `","events":\[(\{.*\})\]\}$`)
		found := batch.FindStringSubmatch(p.body)
		if found == nil || p.kind != "text/plain;charset=UTF-8" {
			g.service.t.Fatalf("events are sent as %s: %s", p.kind, p.body)
		}
		all = append(all, strings.SplitAfter(found[1], "},")...)
	}
	for i := range all {
		all[i] = strings.TrimSuffix(all[i], ",")
	}
	return strings.Join(all, ",")
}

// keyboard sends the form without a mouse, wrong and right.
func (g *scriptStage) keyboard() {
	t := g.service.t
	t.Helper()
	g.press(keyTab + keyTab + keyTab + "guest@example" + keyEnter)
	g.posted("/widget/leads", 422)
	field := `//input[@name="email" and @aria-invalid="true"]`
	const reason = "Bitte prüfen Sie Ihre Angaben: name@example.com"
	equal(t, "beside the field", g.text(field+`/following-sibling::*[1]`), reason)
	state := `const field = document.activeElement, form = field.form;
		return [field.name || field.type, field.getAttribute("aria-invalid"),
		field.getAttribute("aria-describedby"), form.getAttribute("aria-busy"), 
		form.querySelector("[role=status][aria-live=polite]").textContent].join("|")`
	equal(t, "after a wrong address", g.script(state),
		"email|true|hint widgetd-note-1|false|Bitte prüfen Sie Ihre Angaben.")
	g.press(".com")
	if got := g.script(state); !strings.HasPrefix(got, "email||hint|") {
		t.Errorf("while the address is mended: %s", got)
	}
	g.script(`window.said = []; const place = document.querySelector("[role=status]");
		new MutationObserver(() => said.push(place.textContent)).observe(place, { childList: true })`)
	g.busy <- 503
	g.press(keyTab + "Hello" + keyTab + keyTab + keyTab + keyEnter)
	g.find(`//form[@aria-busy="true"]//button[@aria-disabled="true"]`)
	g.press(keyEnter) // once more while it is sent
	g.posted("/widget/leads", 503)
	p := g.posted("/widget/leads", 200)
	equal(t, "the lead", p.body, `{"type":"contact","email":"guest@example.com","source":"footer",`+
		`"fields":{"message":"Hello","diet":"vegan, nuts"},"page":"/menu"}`)
	g.find(`//*[@data-widget-state="sent" and text()="Merci."]`)
	if got := g.script(state); got != "submit|||false|Merci." {
		t.Errorf("after the lead: %s", got)
	}
	equal(t, "the form said", g.script(`return said.join("|")`), "Wird gesendet …|Merci.")
	equal(t, "the trap is shown and the field holds", g.script(`const form = document.forms[0];
		return form.elements.website.checkVisibility({ checkOpacity: true }) + form.email.value`), "false")
	g.counts(1, `SELECT count(*) FROM leads WHERE email = 'guest@example.com' AND page = '/menu' AND account_id = ?`,
		g.account)
}

// Against the service's operator who would follow visitors from page to page: no cookie, nothing stored, no query
// of the page; nobody is counted who sends Global Privacy Control or Do Not Track.
func TestScript_leavesTheFormToTheSiteWhereItCannotSend(t *testing.T) {
	t.Parallel()
	g := newScriptStage(t)
	send := func(url string) {
		g.open(url)
		g.press(keyTab + keyTab + keyTab + "guest@example.com" + keyEnter)
	}
	form := func(where string) {
		t.Helper()
		g.find(`//p[@id="sent"]`)
		const body = "email=guest%40example.com&message=&diet=vegan&diet=nuts&source=footer"
		if p := <-g.forms; p.path != "/form" || !strings.HasPrefix(p.body, body) {
			t.Errorf("%s: the site gets %+v", where, p)
		}
	}
	send(g.listed.URL + "/blocked")
	form("where the script is blocked")
	send(g.other.URL + "/menu")
	form("on an unlisted site")
	send(g.other.URL + "/noaction")
	g.find(`//*[@data-widget-state="failed" and starts-with(text(), "Das Senden hat nicht geklappt. ")]`)
	g.clean("")
	equal(t, "the console", g.script(`return told`), "widgetd: no answer from "+g.web.URL+"/v1. "+
		"Is this site listed? If not, ask the operator to add "+g.other.URL)
	g.open(g.listed.URL + "/menu?quiet")
	g.find(`//input[@name="website"]/ancestor::form`)
	g.press(keyTab + keyEnter + keyTab + keyEnter + keyTab + "quiet@example.com" + keyEnter)
	g.find(`//*[@data-widget-state="sent"]`)
	g.clean("")
	g.open("about:blank")
	g.web.Close() // after the requests that are under way
	close(g.posts)
	var paths []string
	for p := range g.posts {
		paths = append(paths, fmt.Sprint(p.path, " ", p.status))
	}
	slices.Sort(paths)
	paths = slices.DeleteFunc(paths, func(p string) bool { return p == "/v1/widget/events 403" })
	// The page that asks not to be counted must send no events.
	equal(t, "posted", paths, []string{"/v1/widget/leads 200"})
	g.counts(0, `SELECT count(*) FROM widget_counts`)
	g.counts(0, `SELECT count(*) FROM leads WHERE email LIKE 'guest%'`)
}

// A wayToBuild is how a partner builds a page, and what the script does on it.
type wayToBuild struct {
	head, body string // LINE is the script's line, MENU a part with a number and a dish, FORM a form
	do         string // what the page does, and who visits it; with MENU, FORM and PAGE as texts
	shown      string // what do returns; "": nothing
	posts      string // what the service gets: events and leads, sorted
}

// waysProbe lets a page's time go a hundred times as fast. For what pages do: got waits until so much of a type was
// sent, settle for longer than any wait of the script; fresh is an element with what a framework inserts, and runs has
// its scripts run, as Turbo does.
const waysProbe = `
const later = setTimeout; window.setTimeout = (run, time) => later(run, time / 100);
window.told = []; console.warn = text => told.push(text);
const ask = fetch, sent = []; window.fetch = async (url, init) => {
	const answer = await ask(url, init);
	if (init.body) sent.push(init.body);
	return answer;
};
const until = done => new Promise((found, lost) => {
	const look = () => done() ? found() : later(look, 5);
	later(() => lost("waited for " + done), 4000);
	look();
});
const settle = () => new Promise(done => later(done, 60));
const got = (count, type) => until(() => sent.join().split('"type":"' + type + '"').length > count);
const $ = (selector, of = document) =>
	(of instanceof Element ? HTMLFormElement.prototype : of).querySelector.call(of, selector);
const number = of => until(() => /\d/.test($("[data-widget-stat]", of).textContent));
const trap = () => until(() => $("[name=website]"));
const fresh = html => { const box = document.createElement("div"); box.innerHTML = html; return box.firstChild; };
const runs = root => { for (const line of root.querySelectorAll("script")) {
	const copy = document.createElement("script");
	for (const { name, value } of line.attributes) copy.setAttribute(name, value);
	line.replaceWith(copy);
} };
const state = form => ($("[data-widget-state]", form) || { dataset: {} }).dataset.widgetState;
const send = async (form, count = 1) => {
	$("button", form).click();
	await got(count, "contact");
	await until(() => /sent|invalid/.test(state(form)));
};
const fill = (form, values) => { for (const name in values) $('[name="' + name + '"]', form).value = values[name]; };
`

const (
	waysLine = `<script async src="SERVICE/widget.js" data-widget="WIDGET"></script>`
	waysMenu = `<a data-widget-item="Pizza">Pizza</a> <b data-widget-stat="views.month">–</b>`
	waysForm = `<form data-widget-lead="contact"><input name="email" value="a@example.com"><button>Send</button></form>`
)

// waysToBuild are pages, by the name of their path.
var waysToBuild = map[string]wayToBuild{
	"plain": {
		body: `<div>MENU FORM LINE</div>`,
		do: `await number(); $("a").click(); await got(1, "click"); await send($("form"));
			return state($("form"))`,
		shown: "sent", posts: "click Pizza; lead; view",
	},
	// Against the page that shows the trap for bots, so that people fill it in and are thanked for nothing.
	"rule": {
		head: `<style>form span { display: block !important } * { visibility: visible !important; top: auto !important;
			opacity: 1 !important; position: static !important; clip-path: none !important }</style>`,
		body: `<div>FORM LINE</div>`,
		do: `await trap(); const field = $("[name=website]");
			await send($("form")); await got(1, "view");
			return [field.checkVisibility({ checkOpacity: true }), field.getBoundingClientRect().bottom < 0,
				field.tabIndex, field.parentNode.getAttribute("aria-hidden")] + ""`,
		shown: "false,true,-1,true", posts: "lead; view",
	},
	"replaced-body": {
		body: `<div>MENU LINE</div>`,
		do: `await number(); $("a").click(); await got(1, "click"); await got(1, "view"); let seen = 1;
			for (const path of ["/replaced-body-2", "/replaced-body"]) {
				history.pushState(null, "", path);
				const body = document.createElement("body");
				body.innerHTML = PAGE; runs(body); document.body.replaceWith(body);
				await number(); $("a").click(); await got(++seen, "click"); await got(seen, "view");
			}
			await send(document.body.appendChild(fresh(FORM)))`,
		posts: "click Pizza; click Pizza; lead; view; view | click Pizza; view",
	},
	"replaced-part": {
		body: `<div data-widget-root><p id=part>Loading</p>LINE</div><div id=other></div>`,
		do: `await got(1, "view"); $("#part").innerHTML = MENU; $("#other").innerHTML = FORM; await number();
			$("a").click(); await got(1, "click"); await trap();
			$("form").replaceWith(fresh(FORM)); await send($("form")); return state($("form"))`,
		shown: "sent", posts: "click Pizza; lead; view",
	},
	"router": {
		body: `<div id=app><section data-widget-root>MENU LINE</section></div>`,
		do: `await number(); await got(1, "view");
			for (const _ of [1, 2, 3]) {
				$("#app").innerHTML = PAGE; await number(); await settle();
			}
			$("a").click(); await got(1, "click");
			history.pushState(null, "", "/router-2"); $("#app").innerHTML = PAGE; await got(2, "view")`,
		posts: "click Pizza; view | view",
	},
	// A form there sent the address of the visitor into the page's URL.
	"open-root": {
		body: `<div id=host></div>LINE`,
		do: `await got(1, "view"); const root = $("#host").attachShadow({ mode: "open" });
			root.innerHTML = MENU + FORM; $("a", root).click(); await got(1, "click");
			await send($("form", root)); return $("[data-widget-state]", root).textContent + location.search`,
		shown: "Vielen Dank. Es wurde gesendet.", posts: "click Pizza; lead; view",
	},
	// The documents say that it is not served.
	"closed-root": {
		body: `<div id=host></div>LINE`,
		do: `await got(1, "view"); const root = $("#host").attachShadow({ mode: "closed" });
			root.innerHTML = MENU + FORM; root.addEventListener("submit", event => event.preventDefault());
			$("a", root).click(); $("button", root).click(); await settle(); return "it says " + state(root)`,
		shown: "it says undefined", posts: "view",
	},
	"named-as-methods": {
		body: `<div><form data-widget-lead="contact" data-widget-root action="/elsewhere">
			<input name="` + strings.Join(strings.Fields(
			"reset matches append elements querySelector querySelectorAll contains dataset closest getAttribute "+
				"setAttribute requestSubmit lang parentNode getRootNode nodeType"), `"><input name="`) +
			`"><input name="email"><button>Send</button>MENU LINE</form></div>`,
		do: `await trap(); await number(); await got(1, "view"); const form = $("form");
			fill(form, { email: "a@example", append: "x" });
			await send(form); const wrong = state(form) + $("[name=email]").getAttribute("aria-invalid");
			fill(form, { email: "a@example.com" }); await send(form, 2);
			return wrong + state(form) + $("[name=append]").value`,
		shown: "invalidtruesent", posts: `lead {"append":"x"}; view`,
	},
	"names": {
		body: `<div><form data-widget-lead="contact"><input name="First Name" value="Ada">
			<input name="Telefon" value="1"><input type=checkbox name="days[]" value="mon" checked>
			<input type=checkbox name="days[]" value="tue" checked><input name="days" value="3">
			<input name="__2. Größe?" value="L"><input name="名前" value="x"><input name="constructor" value="c">
			<input name="Type" value="Big Party"><input name="Website" value="w">
			<input name="` + strings.Repeat("A ", 20) + `" value="long">
			<input name="Email" value=" a@example.com&#8203;"><input name="cv" type=file>
			<button>Send</button></form>LINE</div>`,
		do: `await trap(); await got(1, "view"); const form = $("form"); await send(form);
			fill(form, { "First Name": "x".repeat(2001) }); await send(form, 2);
			const wrong = $("[name='First Name']").getAttribute("aria-invalid") + state(form);
			const files = new DataTransfer(); files.items.add(new File(["x"], "cv.pdf"));
			$("[name=cv]").files = files.files; fill(form, { "First Name": "Ada" }); await send(form, 3);
			return wrong + state(form) + told.length + told[0].includes("First Name,first_name")`,
		shown: "trueinvalidinvalid1true",
		posts: `lead {"` + strings.Repeat("a_", 15) + `a":"long","constructor":"c","days":"3","days_2":"mon, tue",` +
			`"f":"x","f_2_gr_e":"L","first_name":"Ada","telefon":"1","type":"Big Party","website":"w"}; view`,
	},
	"own-website": {
		body: `<div><form data-widget-lead="contact"><input name="email" value="a@example.com">
			<input name="website" value="https://a.example"><button>Send</button></form>
			<form data-widget-lead="contact"><input name="email" value="b@example.com">
			<p style="position:absolute;left:-5000px"><input name="website" value="spam"></p>
			<button>Send</button></form>LINE</div>`,
		do:    `await got(1, "view"); await send($("form")); await send(document.forms[1], 2)`,
		posts: `lead {"website":"https://a.example"}; trapped; view`,
	},
	// Own: a page in steps asks for the website in one that is hidden when the form is sent. The browser fills it in.
	"steps": {
		body: `<div><form data-widget-lead="contact"><p><input name="email" value="a@example.com"></p><p hidden>
			<input name="website"></p><button>Send</button></form>LINE</div>`,
		do: `await got(1, "view"); const [first, second] = document.querySelectorAll("p"); first.hidden = true;
			second.hidden = false; fill($("form"), { website: "https://a.example" });
			$("[name=website]").dispatchEvent(new Event("input", { bubbles: true })); second.hidden = true;
			await send($("form"))`,
		posts: `lead {"website":"https://a.example"}; view`,
	},
	// A browser that lacks what came to others in 2024: the trap was sent as a field of the page's own.
	"old-browser": {
		head:  `<script>delete Element.prototype.checkVisibility; delete Request.prototype.keepalive</script>`,
		body:  `<div>FORM LINE</div>`,
		do:    `await trap(); fill($("form"), { website: "spam" }); await send($("form")); await settle()`,
		posts: "trapped; view",
	},
	// A page that keeps a copy of itself, as Turbo does, while a form is sent: there it was busy for ever.
	"copied": {
		body: `<div>FORM LINE</div>`,
		do: `await trap(); await got(1, "view"); $("button").click();
			document.body.replaceWith(document.body.cloneNode(true)); await got(1, "contact");
			await send($("form"), 2)`,
		posts: "lead; lead; view",
	},
	// Own: one widget for wide windows and one for narrow ones, of which a rule hides one.
	"twice": {
		head: `<style>.wide { display: none }</style>`,
		body: `<div class=wide>MENU LINE</div><div class=narrow>MENU LINE</div>`,
		do: `await number($(".wide")); await number($(".narrow")); await got(1, "view"); await settle();
			$(".narrow a").click(); await got(1, "click"); $("style").textContent = ""; await settle()`,
		posts: "click Pizza; view",
	},
	// Own: a page that somebody has given the present line, too, beside that of 1.1.0, which names its hash.
	"both": {
		head: "RELEASED", body: `<div>MENU FORM LINE</div>`,
		do: `await number(); await got(1, "view"); $("a").click(); await got(1, "click"); await trap();
			await send($("form")); return document.querySelectorAll("[name=website]").length + state($("form"))`,
		shown: "1sent", posts: "click Pizza; lead; view",
	},
	// Own: a page that writes the number in its own way, for which the script must not fight.
	"formats": {
		body: `<div>MENU LINE</div>`,
		do: `await number(); await got(1, "view"); let changes = 0;
			new MutationObserver(() => changes++ || later(() => $("b").textContent = "many"))
				.observe($("b"), { childList: true });
			$("b").textContent = "1 view"; await settle(); return $("b").textContent + changes`,
		shown: "many2", posts: "view",
	},
	// Own: a library that makes a page like the new one, keeping elements, takes out what the script has added.
	"morph": {
		body: `<div>MENU FORM LINE</div>`,
		do: `await number(); await got(1, "view"); await trap();
			for (const added of document.querySelectorAll("span")) added.remove();
			$("b").textContent = "–"; await number(); await trap(); await send($("form"));
			$("[data-widget-state]").remove(); await until(() => $("[role=status]")); await send($("form"), 2);
			return state($("form"))`,
		shown: "sent", posts: "lead; lead; view",
	},
	// The line in the head, and a page that shows several by itself.
	"head": {
		head: "LINE", body: `<main>MENU</main>`,
		do: `await number(); await got(1, "view"); history.pushState(null, "", "/head-2"); $("main").innerHTML = MENU;
			await number(); await got(2, "view"); $("a").click(); await got(1, "click")`,
		posts: "view | click Pizza; view",
	},
}

// serveWay is a partner's site with the pages of waysToBuild.
func (g *scriptStage) serveWay(w http.ResponseWriter, r *http.Request) {
	way := waysToBuild[strings.TrimPrefix(r.URL.Path, "/")]
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprintf(w, `<!doctype html><html lang="de"><head><script>%s</script>%s</head><body>%s</body></html>`,
		waysProbe, g.way(way.head), g.way(way.body))
}

// way puts the script's line, a menu and a form where a page names them.
func (g *scriptStage) way(text string) string {
	text = strings.NewReplacer("LINE", waysLine, "MENU", waysMenu, "FORM", waysForm).Replace(text)
	source, err := scriptFiles.ReadFile("web/widget_1.js")
	must(g.service.t, err)
	released := strings.Replace(waysLine, "/widget.js", newWidgetScript(source, g.web.URL+"/v1").path, 1)
	text = strings.ReplaceAll(text, "RELEASED", released)
	return strings.NewReplacer("SERVICE", g.web.URL, "WIDGET", g.widget).Replace(text)
}

// Each page is opened in one browser, does what it does, and is left. What the service got then tells by its path
// of which page it is.
func TestScript_servesPagesHoweverTheyAreBuilt(t *testing.T) {
	t.Parallel()
	g := newScriptStage(t)
	g.server.visitorRate = 10_000
	g.listed.Config.Handler = http.HandlerFunc(g.serveWay)
	got := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(waysToBuild)) {
		way := waysToBuild[name]
		do := way.do
		for _, part := range [][2]string{{"MENU", waysMenu}, {"FORM", waysForm}, {"PAGE", g.pageOf(way)}} {
			do = strings.ReplaceAll(do, part[0], string(encodeJSON(g.way(part[1]))))
		}
		g.open(g.listed.URL + "/" + name)
		shown := g.await(`const done = arguments[0];
			(async () => { ` + do + ` })().then(done, error => done("failed: " + error + error.stack + told))`)
		if shown == nil {
			shown = ""
		}
		equal(t, name+" shows", shown, any(way.shown))
	}
	g.open("about:blank")
	g.web.Close()
	close(g.posts)
	for p := range g.posts {
		for path, posts := range g.postsOf(p) {
			got[path] = append(got[path], posts...)
		}
	}
	for name, way := range waysToBuild {
		parts := []string{}
		for _, path := range []string{"/" + name, "/" + name + "-2"} {
			if slices.Sort(got[path]); len(got[path]) > 0 {
				parts = append(parts, strings.Join(got[path], "; "))
			}
		}
		equal(t, name+" sends", strings.Join(parts, " | "), way.posts)
	}
}

// pageOf is what a page has in its part that is replaced, else in its body.
func (g *scriptStage) pageOf(way wayToBuild) string {
	_, inner, found := strings.Cut(way.body, `<div id=app>`)
	if !found {
		return way.body
	}
	return strings.TrimSuffix(inner, "</div>")
}

// postsOf tells what was posted to the service and taken, by the path of the page.
func (g *scriptStage) postsOf(p sitePost) map[string][]string {
	t, posts := g.service.t, map[string][]string{}
	parsed, err := parseJSON([]byte(p.body))
	must(t, err)
	body := &parsed
	page := func(v *jsonValue) string { return textMember(v, "page", 100) }
	switch {
	case p.status == 204:
		events, _ := body.member("events")
		for i := range events.list {
			e := &events.list[i]
			told := strings.TrimSpace(textMember(e, "type", 9) + " " + textMember(e, "item", 99))
			posts[page(e)] = append(posts[page(e)], told)
		}
	case p.status == 200 && textMember(body, "website", 99) != "":
		posts[page(body)] = []string{"trapped"}
	case p.status == 200:
		lead := "lead"
		if fields, ok := body.member("fields"); ok {
			values := map[string]string{}
			for _, m := range fields.members {
				values[m.name] = m.value.text
			}
			lead += " " + strings.TrimSpace(string(encodeJSON(values)))
		}
		posts[page(body)] = []string{lead}
	}
	return posts
}
