package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
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
		"This is not the report of a certified till.", "Fortnox: a voucher", "<b>3002</b> Sales 12 %</th>",
		"sales 12 %</th><td><b>3002</b> 2621</td>", "CHF: it would be held",
		"widgetd books connect fortnox -account acct_"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	entry, _, _ := strings.Cut(body[strings.Index(body, "Fortnox: a voucher"):], "</section>")
	balance := map[string]float64{}
	side := `<td class="n">([\d.,]*)</td>`
	for _, line := range regexp.MustCompile(`</th>`+side+side+`</tr>`).FindAllStringSubmatch(entry, -1) {
		for i, name := range []string{"debit", "credit"} {
			amount, _ := strconv.ParseFloat("0"+strings.ReplaceAll(line[1+i], ",", ""), 64)
			balance[name] += amount
		}
	}
	if d, c := balance["debit"], balance["credit"]; d < 100 || math.Abs(d-c) > 0.001 {
		t.Errorf("the sums of the entry: %v", balance)
	}
	line := regexp.MustCompile(`(?m)^(?:<pre>)?widgetd (.*?)(?:</pre>)?$|<code>widgetd (.*?)</code>`)
	for _, line := range line.FindAllStringSubmatch(body, -1) {
		if wrong := wrongCommand(line[1] + line[2]); wrong != "" {
			t.Errorf("widgetd %s: %s", line[1]+line[2], wrong)
		}
		told++
	}
	if told != 3 {
		t.Errorf("it names %d commands", told)
	}
	menu, restaurant := get(strings.TrimSuffix(page, "revenue")), get(strings.TrimSuffix(page, "revenue")+"orders")
	if !strings.Contains(menu, `href="/revenue"`) || !strings.Contains(restaurant, `href="/revenue"`) {
		t.Error("the demo's other pages do not lead to it")
	}
	// one that waits, one that was paid at the door, and one paid by TWINT that was declined
	for _, state := range []string{"authorized", "paid", "cancelled"} {
		equal(t, "orders that are "+state, strings.Count(restaurant, "<h2>"+state+", CHF 57.00"), 1)
	}
	equal(t, "orders", strings.Count(restaurant, "<h2>"), 3)
	empty := get(page + "?date=2020-02-29")
	if !strings.Contains(empty, "Nothing was paid on this day.") ||
		!strings.Contains(empty, "Nothing would be sent for this day.") {
		t.Errorf("a day without revenue:\n%s", empty)
	}
	yesterday := regexp.MustCompile(`<h2 id="day">\w+day, .*</h2>`).FindString(body)
	if got := get(page + "?date=2020-02-30"); yesterday == "" || !strings.Contains(got, yesterday) {
		t.Errorf("what is no date opens another day than %q", yesterday) // whose figures may have changed meanwhile
	}
}

// TestDemoBooks_areConnectedWithBooksOfTheDemosOwn runs a demo twice over the same files: each run has other books.
func TestDemoBooks_areConnectedWithBooksOfTheDemosOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 2 {
		t.Run(fmt.Sprint("run ", i+1), func(t *testing.T) { useDemoBooks(t, startDemo(t, "-dir", dir)) })
	}
}

// useDemoBooks connects a demo's account with the demo's books once more, as its owner would, and looks at what they
// have been sent.
func useDemoBooks(t *testing.T, text string) {
	base, books := printed(t, text, "The service behind it"), printed(t, text, "Test books, in place of Fortnox")
	ask := func(method, address, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
		must(t, err)
		r.Header.Set("Content-Type", "application/json")
		if strings.HasPrefix(address, base) {
			r.Header.Set("Authorization", "Bearer "+captures(`(?m)^TOKEN=(\S+)$`, text)[0])
		}
		res, err := http.DefaultClient.Do(r)
		must(t, err)
		defer res.Body.Close()
		answer, err := io.ReadAll(res.Body)
		must(t, err)
		return res.StatusCode, string(answer)
	}
	status, link := ask("POST", base+"/books/connections", `{"product":"fortnox"}`)
	at := captures(`"authorize_url":"([^"]*)"`, link)
	if status != 200 || len(at) != 1 || !strings.HasPrefix(at[0], books+"/agree?") {
		t.Fatalf("the link is %d %s", status, link)
	}
	status, page := ask("GET", at[0], "")
	contains(t, page, "<title>Connected", "Trattoria Altstadt i Malmö AB")
	if status != 200 {
		t.Errorf("it is %d", status)
	}
	_, has := ask("GET", base+"/books/connections", "")
	if strings.Count(has, `"state":"in_use"`) != 1 || strings.Count(has, `"state":"choosing"`) != 1 {
		t.Errorf("the connections are %s", has)
	}
	clearsAtDemoBooks(t, func() string { _, booked := ask("GET", books, ""); return booked })
	for address, want := range map[string]int{
		base + "/books/connections": 409, books + "/agree?redirect_uri=https%3A%2F%2Felsewhere.example%2F": 400,
	} {
		method, body := "GET", ""
		if want == 409 { // the demo has no application at Xero, and asks nothing there
			method, body = "POST", `{"product":"xero"}`
		}
		if status, answer := ask(method, address, body); status != want {
			t.Errorf("%s: %d %s", address, status, answer)
		}
	}
}

// clearsAtDemoBooks waits until the days and payouts of a month are in a demo's books, and holds the balances below
// them against their lines: what is on the clearing account is at the provider or on its way.
func clearsAtDemoBooks(t *testing.T, read func() string) {
	t.Helper()
	const amount = `(-?[\d.]+)`
	end := regexp.MustCompile(`Clearing account 1580: ` + amount + `\n.* on its way to the bank: ` + amount +
		`\n.* 1589, .*: ` + amount)
	page, found := "", make([]string, 4)
	for range 100_000 { // the worker sends them beside this
		page = read()
		found = end.FindStringSubmatch(page)
		if strings.Count(page, "\nW ") >= 2*demoDays-4 && found != nil && found[1] == found[2] {
			break
		}
	}
	contains(t, page, "W 1, ", "(widgetd:acct_", "Received by card", "Fees of the provider", "On its way to the bank")
	if found == nil || found[1] != found[2] || len(found[1]) < len("100.00") {
		t.Fatalf("the books end with %q\n%s", found, page)
	}
	for account, want := range map[string]string{"1580": found[1], "1589": found[3]} {
		sum := 0.0
		line := regexp.MustCompile(`(?m)^ +` + account + ` +` + amount + ` +` + amount)
		for _, sides := range line.FindAllStringSubmatch(page, -1) {
			debit, err := strconv.ParseFloat(sides[1], 64)
			must(t, err)
			credit, err := strconv.ParseFloat(sides[2], 64)
			must(t, err)
			sum += debit - credit
		}
		equal(t, "the lines of "+account, strconv.FormatFloat(sum, 'f', 2, 64), want)
	}
}
