package main

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
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
	account := regexp.MustCompile(`-account (acct_\w{26})`).FindStringSubmatch(text)
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
	if claims.Sub != account[1] || claims.Iss != base || claims.Scope != scopeWebhooks+" "+scopeOrders ||
		!strings.HasPrefix(claims.Client_id, "app_") || !strings.HasPrefix(claims.Grant, "grt_") {
		t.Errorf("the token's claims are %+v", claims)
	}
	if answer.ID != account[1] || answer.Name != demoAccount {
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
