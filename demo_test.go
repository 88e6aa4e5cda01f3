package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestDemo_printsALineOfEachEventThatItsWebhookGets waits for the test that enables the webhook.
func TestDemo_printsALineOfEachEventThatItsWebhookGets(t *testing.T) {
	t.Parallel()
	_, later := startDemoAndListen(t)
	got, err := later.ReadString('\n')
	if err != nil || !matches(`^webhook: \S+Z  webhook.test  evt_\w{26}  verified; answered 204\n$`, got) {
		t.Errorf("the terminal shows %q (%v)", got, err)
	}
	go io.Copy(io.Discard, later)
}

func TestDemo_printsLinesThatAllWorkAsPrinted(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	programsOrSkip(t, "curl", "sqlite3", "sh")
	text := startDemo(t)
	want := []string{ // in the order of the lines, a part of each answer
		`"status":"pass"`,
		`{"ok":true,"id":"lead_`,
		`"code":"activated"`,
		`"valid":true`,
		`{"ok":true,"released":true}`,
		"eyJ",
		"204\n",
		`"interval":"week","timezone":"Europe/Zurich","totals":{"views":`,
		`"interval":"month"`,
		`{"data":[{"id":"lead_`,
		`{"data":[{"id":"lic_`,
		`{"data":[{"id":"pln_`,
		`"currency":"CHF","state":"open"`,
		`","days":[{"account_id":"acct_`,
		`"pay_url":"http`,
		`"state":"accepted"`,
		`"amount":1650`,
		`"state":"p`,
		`"id":"whe_`,
		`{"event_id":"evt_`,
		`{"keys":[{"alg":"EdDSA"`,
		`"status":410`,
		"kitchen-display",
	}
	ran, token, order, events := 0, "", "", followDemo(t, text)
	lacks(t, text, "…\n", "widgetd payment")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "TOKEN=") {
			if token != "" || !wholeToken.MatchString(line) {
				t.Errorf("%s after %s", line, token)
			}
			token = line
		}
		if waiting, is := strings.CutPrefix(line, "ORDER="); is {
			order = strings.TrimSpace(waiting)
		}
		if !strings.HasPrefix(line, "curl ") && !strings.HasPrefix(line, "sqlite3 ") {
			continue
		}
		line = strings.ReplaceAll(line, "$ORDER", order)
		out, err := exec.Command("sh", "-c", token+line).CombinedOutput()
		if found := regexp.MustCompile(`"pay_url":"([^"]+)"`).FindSubmatch(out); found != nil {
			payAsAGuest(t, string(found[1]))
		}
		if strings.Contains(line, "/accept ") { // it is captured beside this
			events.await(eventOrderPaid, func(subject string) bool { return subject == order })
		}
		for range 100 { // where the machine is busy, health waits too short for its proof
			if !strings.Contains(string(out), `"status":"warn"`) {
				break
			}
			out, err = exec.Command("sh", "-c", token+line).CombinedOutput()
		}
		if ran >= len(want) {
			t.Fatalf("a line more than this test knows: %s", line)
		}
		problem := strings.Contains(string(out), `"request_id"`) && !strings.Contains(want[ran], "410")
		if err != nil || problem || !strings.Contains(string(out), want[ran]) {
			t.Errorf("%s%s(%v), want %q", line, out, err, want[ran])
		}
		ran++
	}
	if n := len(wholeToken.FindAllString(text, -1)); n != 1 {
		t.Errorf("the token is printed %d times", n)
	}
	if ran != len(want) {
		t.Errorf("%d lines, want %d:\n%s", ran, len(want), text)
	}
}

// TestDemo_addressesSayWhatTheyAreFor: to look at the receiver of webhooks prints no webhook that was refused.
func TestDemo_addressesSayWhatTheyAreFor(t *testing.T) {
	t.Parallel()
	text := sharedDemo(t)
	for name, want := range map[string]string{"A receiver of its webhooks": "This receives webhooks: post to it.",
		"A test provider of payments": "no money moves", "Test books, in place of Fortnox": "vouchers",
		"A lunch menu on a partner's site": "A demo: this page is on"} {
		status, _, body := fetched(t, printed(t, text, name))
		equal(t, name, status, 200)
		contains(t, body, want)
	}
}

func TestDemo_pageRefusesFormsThatAreNotItsOwn(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	page := printed(t, sharedDemo(t), "A lunch menu on a partner's site")
	post := func(path string, form url.Values, site string) (status int, body string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "POST", page+path, strings.NewReader(form.Encode()))
		must(t, err)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", site)
		res, err := http.DefaultTransport.RoundTrip(r) // follows no redirect
		must(t, err)
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		must(t, err)
		return res.StatusCode, res.Header.Get("Location") + string(text)
	}
	pizza, unknown := url.Values{"Pizza Margherita": {"1"}}, newID("ord", demoDawn)
	for _, c := range []struct {
		path   string
		form   url.Values
		site   string
		status int
		holds  string
	}{
		{"order", pizza, "same-origin", 303, "/v1/pay/ord_"},
		{"order", pizza, "cross-site", 403, ""},
		{"order", url.Values{"Pizza Margherita": {"0"}, "Pizza": {"1"}}, "same-origin", 422, "Nothing was ordered"},
		{"order", url.Values{"Pizza Margherita": {"21"}}, "same-origin", 422, "Nothing was ordered"},
		{"orders/" + unknown, url.Values{"do": {"Accept"}}, "same-origin", 409, "There is no order with this id."},
		{"orders/" + unknown, url.Values{"do": {"Cook"}}, "same-origin", 422, "no such order or button"},
		{"orders/1", url.Values{"do": {"Accept"}}, "same-origin", 422, "no such order or button"},
	} {
		if status, body := post(c.path, c.form, c.site); status != c.status || !strings.Contains(body, c.holds) {
			t.Errorf("%s with %v: %d %s, want %d", c.path, c.form, status, body, c.status)
		}
	}
}

// payAsAGuest pays an order at the demo's test provider.
func payAsAGuest(t testing.TB, payURL string) {
	t.Helper()
	submit := func(address, field, value string) (page *http.Response) {
		t.Helper()
		res, err := http.PostForm(address, url.Values{field: {value}}) // follows redirects
		must(t, err)
		res.Body.Close()
		if res.StatusCode != 200 {
			t.Fatalf("%s leads to %s: %s", address, res.Request.URL, res.Status)
		}
		return res
	}
	at := submit(payURL, "method", methodCard).Request.URL.String()
	if back := submit(at, "do", "pay").Request.URL.Path; !strings.HasSuffix(back, "/return") {
		t.Fatalf("the provider leads to %s", back)
	}
}

func TestDemo_leavesNothingBehindUnlessToldWhere(t *testing.T) {
	sequentialUnderRace(t)
	dir := filepath.Join(t.TempDir(), "what's kept")
	must(t, errors.Join(os.Mkdir(dir, 0o700), copyDemo(dir))) // of files that are made elsewhere, and stay
	t.Setenv("TMPDIR", t.TempDir())
	var db string
	t.Run("run", func(t *testing.T) { db = printed(t, startDemo(t, "-dir", ""), "Its database") })
	if _, err := os.Stat(filepath.Dir(db)); err == nil {
		t.Errorf("%s is still there", filepath.Dir(db))
	}
	keys := map[string]bool{}
	for range 2 {
		t.Run("kept", func(t *testing.T) {
			text := startDemo(t, "-dir", dir)
			if got := printed(t, text, "Its database"); got != shellWord(filepath.Join(dir, "widgetd.db")) {
				t.Errorf("its database: %s", got)
			}
			var stdout, stderr strings.Builder
			res, err := newClient(t).Get(printed(t, text, "The service behind it") + "/widget/health") // once it serves
			must(t, err)
			res.Body.Close()
			err = run(t.Context(), []string{"status", "-json"}, func(name string) string {
				return map[string]string{"WIDGETD_DB": filepath.Join(dir, "widgetd.db"),
					"WIDGETD_KEY": filepath.Join(dir, "widgetd.key")}[name]
			}, &stdout, &stderr)
			failIf(t, err != nil || strings.Contains(stdout.String(), `"service":null`), "status: %v %s", err, &stdout)
			keys[regexp.MustCompile(`[0-9A-Z]{5}(-[0-9A-Z]{5}){4}`).FindString(text)] = true
		})
	}
	if len(keys) != 2 || keys[""] {
		t.Errorf("two runs showed the keys %v", keys)
	}
	if faults, err := checkFile(filepath.Join(dir, "widgetd.db")); err != nil || len(faults) > 0 {
		t.Errorf("the kept database: %v %v", faults, err)
	}
	var paying, waiting int // those of both runs, since nothing is given up between them
	var err error
	t.Run("rows", func(t *testing.T) {
		st := openTestStore(t, filepath.Join(dir, "widgetd.db"), storeOptions{noCheckpoints: true})
		err = st.one(`SELECT (SELECT count(*) FROM payments WHERE state IN ('created', 'pending', 'authorized')),
			(SELECT count(*) FROM orders WHERE state IN ('authorized', 'accepted'))`, nil, &paying, &waiting)
	})
	if err != nil || paying != 8 || waiting != 8 {
		t.Errorf("%d attempts are under way for %d orders (%v)", paying, waiting, err)
	}
	o := &operator{t: t, env: filesIn(dir), shares: true}
	defer o.close()
	if report := o.object("check"); report["ok"] != true {
		t.Errorf("check: %v", report)
	}
	listsHaveTextInEveryCell(o)
	asksNobodyOutside(o, dir)
	other := newOperator(t)
	for _, addr := range []string{"0.0.0.0:0", ":0"} {
		other.fails("-addr must name one address", "demo", "-addr", addr)
	}
	if _, err := other.try("demo", "-addr", "127.0.0.1:0", "-dir", other.dir); err == nil ||
		!strings.Contains(err.Error(), "holds a database that the demo did not create") {
		t.Errorf("a demo over another's database: %v", err)
	}
}

// asksNobodyOutside fails unless commands on a demo's file are refused where they would ask a vendor, and nowhere else.
func asksNobodyOutside(o *operator, dir string) {
	o.t.Helper()
	payments, books, date := o.objects("payment", "list")[0]["id"].(string), "", ""
	for _, x := range o.objects("books", "export", "list") {
		if x["payout_id"] == nil {
			books, date = x["connection_id"].(string), x["date"].(string)
		}
	}
	for _, line := range []string{"serve -addr 127.0.0.1:0", "promote", "payment check " + payments,
		"payment disconnect -force " + payments, "books connect fortnox", "books accounts " + books,
		"books preview " + books + " " + date, "books map -suggest " + books,
		"api GET /books/connections/" + books + "/accounts"} {
		_, err := o.try(strings.Fields(line)...)
		if err == nil || !strings.HasSuffix(err.Error(), ": widgetd demo -dir "+shellWord(dir)) {
			o.t.Errorf("%s: %v", line, err)
		}
	}
	for _, line := range []string{"books app list -wide", "books map " + books, "books set -series W " + books,
		"payment export", "books disconnect " + books} {
		o.do(strings.Fields(line)...)
	}
}

// listsHaveTextInEveryCell runs each command that lists or exports rows, and fails if it prints what Go shows of a
// pointer or of a wrong format.
func listsHaveTextInEveryCell(o *operator) {
	o.t.Helper()
	first := func(noun string) string { return o.objects(noun, "list")[0]["id"].(string) }
	account := o.objects("webhook", "list")[0]["account_id"].(string)
	ids := map[string]string{"LICENSE": first("license"), "WEBHOOK": first("webhook"),
		"PAYOUT": o.objects("payout", "list", "-account", account, "-from", "2026-09-24")[0]["id"].(string)}
	ran, wrong := 0, regexp.MustCompile(`\b0x[0-9a-f]{6}|<nil>|%!`)
	for _, c := range allCommands() {
		option := "-wide"
		for _, o := range c.options {
			if o.name == "csv" {
				option = "-csv"
			}
		}
		if option != "-csv" && !strings.HasSuffix(c.name, " list") {
			continue
		}
		args := append(strings.Fields(c.name), option)
		if c.args != "" {
			args = append(args, ids[c.args])
		}
		ran++
		if out := o.do(args...); wrong.MatchString(out) {
			o.t.Errorf("%q prints %q:\n%s", args, wrong.FindString(out), out)
		} else if option == "-csv" {
			numbersStayNumbers(o, args, out)
		}
	}
	failIf(o.t, ran < 24, "ran %d commands only", ran)
}

// numbersStayNumbers fails if what is a number in the rows that a command exports is a text in its CSV.
func numbersStayNumbers(o *operator, args []string, sheet string) {
	o.t.Helper()
	rows, err := csv.NewReader(strings.NewReader(sheet)).ReadAll()
	must(o.t, err)
	asJSON := slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == "-csv" })
	for i, row := range o.objects(asJSON...) {
		for at, title := range rows[0] {
			if _, isNumber := row[title].(float64); !isNumber {
				continue
			}
			if _, err := strconv.ParseFloat(rows[i+1][at], 64); err != nil {
				o.t.Errorf("%q: %s is %q", args, title, rows[i+1][at])
			}
		}
	}
}

func TestDemo_pageIsShownByABrowserWhichPostsItsForm(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "chromium", "chromedriver") // before the demo starts
	dir := t.TempDir()
	must(t, copyDemo(dir))
	text := startDemo(t, "-dir", dir)
	b := startBrowser(t)
	page := printed(t, text, "A lunch menu on a partner's site")
	b.open(page)

	for _, dish := range []string{"Pizza Margherita", "Risotto ai funghi", "Insalata mista", "Tiramisù"} {
		if got := b.text(`//summary[@data-widget-item="` + dish + `"]/b`); got != dish {
			t.Errorf("dish %q, want %q", got, dish)
		}
	}
	for _, name := range []string{"views.today", "views.week", "visitors.month"} {
		if got := b.text(`//dd[@data-widget-stat="` + name + `" and text()!="…"]`); !regexp.MustCompile(
			`^\d{1,3}(,\d{3})*$`).MatchString(got) {
			t.Errorf("%s shows %q", name, got)
		}
	}
	field := `//form[@data-widget-lead]//input[@name="email"]`
	b.typeInto(field, "browser@example") // enough for a browser
	b.click(`//button[text()="Subscribe"]`)
	b.find(`//input[@name="email" and @aria-invalid="true"]/following-sibling::*[text()="The domain after the @ is ` +
		`not valid."]`)
	b.screenshot("demo-wrong.png")
	b.call("POST", b.find(field)+"/clear", map[string]any{})
	b.typeInto(field, "Browser@Example.com")
	b.click(`//button[text()="Subscribe"]`)
	b.find(`//*[@data-widget-result and starts-with(text(), "Thank you.")]`)
	b.screenshot("demo.png")
	dish := `//input[@name="Insalata mista"]`
	b.call("POST", b.find(dish)+"/clear", map[string]any{})
	b.typeInto(dish, "2")
	b.click(`//button[text()="Order and pay"]`)
	b.screenshot("demo-order.png")
	b.click(`//button[contains(., "CHF")]`)
	b.click(`//button[text()="Pay"]`)
	b.find(`//h1[contains(., "Sent to the restaurant")]`)
	b.click(`//a[contains(@href, "/thanks")]`)
	b.find(`//h1[text()="Thank you for your order"]`)
	b.click(`//a[@href="/orders"]`)
	b.screenshot("demo-orders.png")
	s := openTestStore(t, filepath.Join(dir, "widgetd.db"), storeOptions{noCheckpoints: true})
	events := followDemo(t, text)
	b.click(`//button[text()="Accept"]`)
	events.await(eventOrderPaid, func(subject string) bool { // what was accepted is captured beside this
		n := 0
		must(t, s.one(`SELECT count(*) FROM orders WHERE state = 'paid' AND total = 2200 AND reference IS NULL
			AND id = ?`, []any{subject}, &n))
		return n > 0
	})
	b.open(page + "orders")
	b.click(`//button[text()="Refund"]`)
	b.find(`//li/p[contains(., "CHF 22.00 given back")]`)

	var email, source, path, owner, site string
	err := s.one(`SELECT l.email, l.source, l.page, l.account_id, o.account_id FROM leads l, origins o WHERE l.email `+
		`LIKE 'browser@%' AND o.origin = ?`,
		[]any{strings.TrimSuffix(page, "/")}, &email, &source, &path, &owner, &site)
	if err != nil || email != "Browser@example.com" || source != "menu" || path != "/" || owner != site {
		t.Errorf("the lead: %q %q %q of %q, the page's account is %q (%v)", email, source, path, owner, site, err)
	}
}

// TestDemo_ownerConnectsAnApplicationInABrowser walks from the menu to the application, to the service's pages
// and back, and ends what was agreed to.
func TestDemo_ownerConnectsAnApplicationInABrowser(t *testing.T) {
	t.Parallel()
	takesLong(t, "looks at many pages in a browser")
	programsOrSkip(t, "chromium", "chromedriver")
	text := startDemo(t)
	base := printed(t, text, "The service behind it")
	b := startBrowser(t)
	b.open(printed(t, text, "A lunch menu on a partner's site"))
	b.click(`//a[text()="connect your account"]`)
	b.screenshot("connect.png")
	b.click(`//button[text()="Connect your account"]`)
	code := b.text(`//*[@class="code"]`)
	b.screenshot("connect-code.png")
	b.click(`//a[text()="Go on to the service"]`)
	b.typeInto(`//input[@name="code"]`, code)
	b.click(`//button[text()="Sign in"]`)
	b.find(`//h1[text()="May Table Planner act for your account?"]`)
	b.screenshot("connect-consent.png")
	b.find(`//dt[. = "Offered by"]/following-sibling::dd[1][. = "Vendor"]`) // and not the restaurant itself
	b.click(`//input[@name="allow:orders:write"]`)
	b.click(`//button[@value="allow"]`)

	var claims struct{ Sub, Iss, Scope, Client_id, Grant string }
	var answer struct{ ID, Name string }
	for section, into := range map[string]any{"claims": &claims, "answer": &answer} {
		shown := b.text(`//section[@aria-labelledby="` + section + `"]/pre`)
		if err := json.Unmarshal([]byte(shown), into); err != nil {
			t.Errorf("%s: %v\n%s", section, err, shown)
		}
	}
	b.screenshot("connect-claims.png")
	if claims.Sub != answer.ID || claims.Iss != base || claims.Scope != scopeWebhooks+" "+scopeOrders ||
		!strings.HasPrefix(claims.Client_id, "app_") || !strings.HasPrefix(claims.Grant, "grt_") {
		t.Errorf("the token's claims are %+v", claims)
	}
	if !validID("acct", answer.ID) || answer.Name != demoAccount {
		t.Errorf("the account is shown as %+v", answer)
	}
	b.click(`//a[starts-with(text(), "Connected applications")]`)
	b.find(`//section/h2[. = "` + demoAppName + `"]`)
	b.screenshot("connect-connected.png")
	b.click(`//button[@name="grant"]`)
	b.find(`//h1[. = "Revoke the access of ` + demoAppName + `?"]`)
	b.screenshot("connect-end.png")
	b.click(`//button[@name="sure"]`)
	b.find(`//*[@role="status"][contains(., "` + demoAppName + `")]`)
	// Those of /docs stay.
	b.find(`//main[count(section) = 2][section/h2 = "Shift planner"]/section/h2[. = "Kitchen printer"]`)
}

func TestDemo_pageFitsATelephone(t *testing.T) {
	t.Parallel()
	takesLong(t, "looks at many pages in a browser")
	programsOrSkip(t, "chromium", "chromedriver")
	page := printed(t, sharedDemo(t), "A lunch menu on a partner's site")
	b := startBrowser(t)
	b.open(page)
	b.find(`//dd[@data-widget-stat="views.week" and text()!="…"]`)
	b.fitsInFrame(page, "[hidden]", `const buttons = [...page.querySelectorAll("li input")].map(box);
		const apart = r => r.right != buttons[0].right || r.left != buttons[0].left;
		if (buttons.length != 4 || buttons.some(apart)) fault("the buttons are not in line");
		if (page.querySelector("[name=website]").checkVisibility({ checkOpacity: true })) fault("the trap shows");`)
	b.fitsInFrame(page+"revenue", ".wide > *", `if (!page.querySelector("table")) fault("it is not there");`)
}

func TestDemoBooks_pageShowsWhatItsBooksWouldGet(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	text := startDemo(t)
	page := printed(t, text, "Its revenue, for the books")
	get := func(address string) string {
		t.Helper()
		res, err := http.Get(address)
		must(t, err)
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("%s: %s, %v", address, res.Status, err)
		}
		return html.UnescapeString(string(body))
	}
	body, told := get(page), 0
	for _, want := range []string{"Only the demo’s own books are connected here, at a Fortnox that is part of it: " +
		"nothing leaves this machine.",
		"This is not the report of a certified till.", `<form method="post" action="/books">`} {
		if !strings.Contains(body, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	opensBooks(t, strings.TrimSuffix(page, "revenue")+"books")
	lines := captures(`<code>([^<]+ -db .*?)</code>`, body)
	equal(t, "how many commands it names", len(lines), 1)
	contains(t, asPrinted(t, lines[0]), "sales", "total")
	for _, line := range captures(`(?m)^(?:Commands [^:]*: )?(\S.* -db .*)$`, text) {
		asPrinted(t, line)
		told++
	}
	equal(t, "how many commands the demo prints", told, 2)
	menu, restaurant := get(strings.TrimSuffix(page, "revenue")), get(strings.TrimSuffix(page, "revenue")+"orders")
	if !strings.Contains(menu, `href="/revenue"`) || !strings.Contains(restaurant, `href="/revenue"`) {
		t.Error("the demo's other pages do not lead to it")
	}
	// one that waits, one that is paid, and one that was declined: in words, after the number that the guest says
	for _, state := range []string{"Waits for your answer", "Paid", "Cancelled"} {
		equal(t, "orders that are "+state, strings.Count(restaurant, ": "+state+", CHF 57.00</h2>"), 1)
	}
	equal(t, "orders", strings.Count(restaurant, "<h2>"), 3)
	empty := get(page + "?date=2020-02-29")
	if !strings.Contains(empty, "Nothing was paid on this day.") {
		t.Errorf("a day without revenue:\n%s", empty)
	}
	yesterday := regexp.MustCompile(`<h2 id="day">\w+day, .*</h2>`).FindString(body)
	if got := get(page + "?date=2020-02-30"); yesterday == "" || !strings.Contains(got, yesterday) {
		t.Errorf("what is no date opens another day than %q", yesterday) // whose figures may have changed meanwhile
	}
}

// asPrinted returns what a command prints that is run in a directory of its own as a shell reads its line.
func asPrinted(t *testing.T, line string) string {
	t.Helper()
	words, is := strings.CutPrefix(line, ownCommand()+" ")
	out, err := exec.Command("sh", "-c", `printf '%s\n' `+words).Output()
	failIf(t, !is || err != nil, "%s: %v", line, err)
	return (&operator{t: t}).do(strings.Split(strings.TrimSpace(string(out)), "\n")...)
}

// opensBooks presses the button that leads to the service's own pages, signed in.
func opensBooks(t *testing.T, address string) {
	t.Helper()
	jar, err := cookiejar.New(nil)
	must(t, err)
	res, err := (&http.Client{Jar: jar}).Post(address, formMediaType, nil)
	must(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	must(t, err)
	contains(t, string(body), "<h1>Your books</h1>", "Fortnox: <bdi>Trattoria Altstadt i Malmö AB</bdi>",
		"books/day/fortnox")
}

// TestDemoBooks_areConnectedWithBooksOfTheDemosOwn runs a demo twice over the same files: each run has other books.
func TestDemoBooks_areConnectedWithBooksOfTheDemosOwn(t *testing.T) {
	t.Parallel()
	moveDemo(t, demoDawn, "UTC", func(d *movedDemo) {
		d.useBooks()
		d.close()
		d.open(d.clock)
		d.useBooks()
	})
}

// asks sends a request with the demo's token to the service or to the books, by their addresses, and follows the
// redirects from one to the other.
func (d *movedDemo) asks(method, address, body string) (status int, answer string) {
	d.t.Helper()
	for range 3 {
		r := httptest.NewRequest(method, address, strings.NewReader(body))
		r.RemoteAddr = demoAddress
		r.Header.Set("Content-Type", "application/json")
		w, of := httptest.NewRecorder(), d.ledger.handler()
		if strings.HasPrefix(address, d.base) {
			r.Header.Set("Authorization", "Bearer "+d.token)
			of = d.server
		}
		of.ServeHTTP(w, r)
		if status, answer = w.Code, w.Body.String(); status != http.StatusFound {
			break
		}
		address = w.Header().Get("Location")
	}
	return status, answer
}

// useBooks connects a demo's account with the demo's books once more, as its owner would, and looks at what they have
// been sent.
func (d *movedDemo) useBooks() {
	t, base, books := d.t, d.base, d.ledger.base
	t.Helper()
	status, link := d.asks("POST", base+"/books/connections", `{"product":"fortnox"}`)
	at := captures(`"authorize_url":"([^"]*)"`, link)
	if status != 200 || len(at) != 1 || !strings.HasPrefix(at[0], books+"/agree?") {
		t.Fatalf("the link is %d %s", status, link)
	}
	status, page := d.asks("GET", at[0], "")
	contains(t, page, "<title>Connected", "Trattoria Altstadt i Malmö AB")
	if status != 200 {
		t.Errorf("it is %d", status)
	}
	_, has := d.asks("GET", base+"/books/connections", "")
	if strings.Count(has, `"state":"in_use"`) != 1 || strings.Count(has, `"state":"choosing"`) != 1 {
		t.Errorf("the connections are %s", has)
	}
	d.sendsToBooks()
	for address, want := range map[string]int{
		base + "/books/connections": 409, books + "/agree?redirect_uri=https%3A%2F%2Felsewhere.example%2F": 400,
	} {
		method, body := "GET", ""
		if want == 409 { // the demo has no application at Xero, and asks nothing there
			method, body = "POST", `{"product":"xero"}`
		}
		if status, answer := d.asks(method, address, body); status != want {
			t.Errorf("%s: %d %s", address, status, answer)
		}
	}
}

// sendsToBooks lets the worker send the days and payouts of a month to the demo's books, of which a connection may
// send twenty in five seconds.
func (d *movedDemo) sendsToBooks() {
	d.t.Helper()
	ctx, stop := context.WithCancel(d.t.Context())
	ended := make(chan struct{})
	go func() { newBooksWorker(booksOf(d.server)).run(ctx); close(ended) }()
	time.Sleep(2 * time.Minute) // of the bubble
	stop()
	<-ended
	page := d.shows(d.ledger.handler(), "/")
	if n := strings.Count(page, "\nW "); n < 2*demoDays-4 {
		d.t.Errorf("%d vouchers", n)
	}
	contains(d.t, page, "W 1, ", "(widgetd:acct_", "Received by card", "Fees of the provider", "On its way to the bank")
	failIf(d.t, len(clearsAtDemoBooks(d.t, page)) < len("100.00"), "the books end with no balance to speak of")
}

// A demoTill is the demo's provider of cards, asked as the engine asks it.
type demoTill struct {
	*demoProvider
	t testing.TB
}

func newDemoTill(t testing.TB) *demoTill {
	p := newDemoProvider(newStripeProvider(nil, stripeBase), "http://127.0.0.1:8083", "http://127.0.0.1:8081",
		func() time.Time { return demoDawn })
	p.paid = func(context.Context, string) error { return nil }
	return &demoTill{p, t}
}

// starts begins an attempt of 20.00.
func (d *demoTill) starts(reference string) *payment {
	d.t.Helper()
	p := &payment{ID: newID("pay", demoDawn), Method: methodCard, Amount: 2000, Currency: "CHF",
		State: paymentCreated}
	d.does(opCreate, p, 2000, reference)
	return p
}

// does carries out an operation, and returns why it was refused.
func (d *demoTill) does(kind string, p *payment, amount int64, reference ...string) error {
	op := testOperation(kind, p, amount)
	o := &order{ID: "ord_1"}
	if len(reference) > 0 {
		o.Reference = &reference[0]
	}
	_, err := d.send(d.t.Context(), nil, op, d.call(op, p, o, testReturnURL))
	return err
}

// asks sends a request to the page of an attempt.
func (d *demoTill) asks(method, id, choice string) *http.Response {
	form := url.Values{"do": {choice}}
	r := httptest.NewRequest(method, "/pay/"+id, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	d.handler().ServeHTTP(w, r)
	return w.Result()
}

func TestDemoProvider_saysOnEveryPageThatItIsOne(t *testing.T) {
	t.Parallel()
	d := newDemoTill(t)
	open, declined, paid, expired := d.starts("<b>Table 4</b>"), d.starts("1"), d.starts("2"), d.starts("3")
	must(t, d.does(opExpire, expired, 0))
	equal(t, "declining", d.asks("POST", declined.ID, "decline").StatusCode, 200)
	for choice, want := range map[string]string{"back": leftURL(testReturnURL), "pay": testReturnURL} {
		if resp := d.asks("POST", paid.ID, choice); resp.StatusCode != 303 || resp.Header.Get("Location") != want {
			t.Errorf("%s answers %d to %s", choice, resp.StatusCode, resp.Header.Get("Location"))
		}
	}
	for name, c := range map[string]struct {
		id, has, hasNot string
		status          int
	}{
		"open": {open.ID, "<h1>Order &lt;b&gt;Table 4&lt;/b&gt;</h1>\n" +
			"<p class=\"amount\">CHF 20.00</p>\n<form", "declined", 200},
		"declined": {declined.ID, "The card was declined", "is done", 200},
		"paid":     {paid.ID, "<h1>This payment is done</h1>\n<a class=\"back\" href=\"" + testReturnURL, "<form", 200},
		"expired":  {expired.ID, "This payment has expired", "<form", 200},
		"none":     {"pay_none", "There is no such payment", "<form", 404},
	} {
		resp := d.asks("GET", c.id, "")
		body, err := io.ReadAll(resp.Body)
		must(t, err)
		page := string(body)
		top, _, _ := strings.Cut(page, "<main>")
		if resp.StatusCode != c.status || !strings.Contains(page, c.has) || strings.Contains(page, c.hasNot) ||
			!strings.Contains(top, "This is a test provider of the demo. No money moves.") ||
			strings.Contains(page, "<script") {
			t.Errorf("%s: %d\n%s", name, resp.StatusCode, page)
		}
		policy := resp.Header.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none';") || strings.Contains(policy, "form-action") ||
			strings.Contains(policy, "unsafe") || !strings.Contains(page, "<style>"+pageStyle()+"</style>") {
			t.Errorf("%s: %q does not let its style in, or lets other things in", name, policy)
		}
	}
}

// TestDemoProvider_goesOnFromTheRows looks at attempts of which another run has known more.
func TestDemoProvider_goesOnFromTheRows(t *testing.T) {
	t.Parallel()
	d := newDemoTill(t)
	row := func(state string, authorized, captured, refunded int64) *payment {
		return &payment{ID: newID("pay", demoDawn), Method: methodCard, Amount: 2000, Currency: "CHF",
			State:      paymentState(state),
			Authorized: authorized, Captured: captured, Refunded: refunded,
			CaptureBefore: newStamp(demoDawn).after(time.Hour)}
	}
	open, authorized, captured := row(paymentPending, 0, 0, 0), row(paymentAuthorized, 2000, 0, 0),
		row(paymentPartRefunded, 0, 2000, 500)
	for p, want := range map[*payment]paymentPhase{open: phaseOpen, authorized: phaseApproved, captured: phaseApproved,
		row(paymentCancelled, 0, 0, 0): phaseCancelled, row(paymentCreated, 0, 0, 0): phaseUnknown} {
		r, err := d.fetchStatus(t.Context(), nil, p)
		if err != nil || r.phase != want || r.amount != 2000 || r.captured != p.Captured || r.refunded != p.Refunded {
			t.Errorf("%s: %+v, %v", p.State, r, err)
		}
	}
	equal(t, "paying", d.asks("POST", open.ID, "pay").StatusCode, 303)
	for _, step := range []struct {
		kind   string
		p      *payment
		amount int64
		done   bool
	}{
		{opCapture, open, 2001, false}, {opCapture, open, 1500, true}, {opCapture, open, 500, false},
		{opRefund, authorized, 1, false}, {opCancel, authorized, 0, true}, {opCancel, authorized, 0, false},
		{opRefund, captured, 1501, false}, {opRefund, captured, 1500, true}, {opExpire, captured, 0, false},
	} {
		if err := d.does(step.kind, step.p, step.amount); (err == nil) != step.done {
			t.Errorf("%s of %d: %v", step.kind, step.amount, err)
		}
	}
	r, err := d.fetchStatus(t.Context(), nil, captured)
	if err != nil || r.refunded != 2000 || len(r.refunds) != 1 || r.exceeds() {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestDemoProvider_paysOutOnceWhatIsOwed looks at the payouts of a file that another run has filled, of which some
// rows are forgotten then, and with them that these were paid out.
func TestDemoProvider_paysOutOnceWhatIsOwed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, copyDemo(dir))
	st := openTestStore(t, filepath.Join(dir, "widgetd.db"), storeOptions{now: func() time.Time { return demoDawn }})
	count := func(query string) int64 {
		t.Helper()
		n, err := oneValue[int64](st.queries, query)
		must(t, err)
		return n
	}
	equal(t, "payouts that differ", count(`SELECT count(*) FROM payouts p WHERE reason IS NOT NULL
		OR state <> iif(status = 'paid', 'paid', 'ready')
		OR provider_id <> 'po_' || date(arrival_date, '-2 days') || currency
		OR amount <> (SELECT sum(amount - fee - tax) FROM payout_items i WHERE i.payout_id = p.id)`), 0)
	equal(t, "payments that are not in one payout", count(`SELECT count(*) FROM payments y WHERE captured > 0 AND 1 <>
		(SELECT count(*) FROM payout_items i WHERE i.payment_id = y.id AND category = 'payment')`), 0)
	onItsWay := count(`SELECT count(*) FROM payouts WHERE status = 'in_transit'`)
	failIf(t, onItsWay < 2, "%d are on their way", onItsWay)

	d := newDemoTill(t)
	d.store = st
	account, err := oneValue[string](st.queries, `SELECT account_id FROM payouts LIMIT 1`)
	must(t, err)
	c := &unsealedConnection{&paymentConnection{AccountID: account}, connectionSecrets{}}
	later := demoDawn.AddDate(0, 0, 3)
	owes := func(step, forget string) map[string]int64 {
		t.Helper()
		must(t, st.update(t.Context(), func(t *tx) error { t.exec(forget); return nil }))
		news, err := d.payouts(t.Context(), c, "", "", later)
		must(t, err)
		arrived, owed := int64(0), map[string]int64{}
		for _, r := range news.payouts {
			if r.status == payoutPaid {
				arrived++
				continue
			}
			owed[r.currency] = r.amount
			rows, _, err := d.payoutRows(t.Context(), c, r.providerID, "")
			must(t, err)
			for _, row := range rows {
				r.amount -= row.net()
			}
			equal(t, step+": the amount less the rows", r.amount, 0)
		}
		equal(t, step+": have arrived", arrived, onItsWay)
		return owed
	}
	equal(t, "nothing is paid out twice", owes("another run", `SELECT 1`), map[string]int64{})
	equal(t, "less than nothing waits", owes("refunds", `DELETE FROM payout_items WHERE amount < 0`),
		map[string]int64{})
	all := map[string]int64{}
	for _, currency := range []string{"CHF", "EUR", "SEK"} {
		all[currency] = count(`SELECT sum(amount) FROM payouts WHERE currency = '` + currency + `'`)
	}
	equal(t, "all is owed", owes("everything", `DELETE FROM payout_items`), all)
}
