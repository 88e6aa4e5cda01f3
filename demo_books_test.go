package main

import (
	"context"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

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
