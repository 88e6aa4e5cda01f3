package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A demoLedger is what the demo has in the place of Fortnox: the books of one company, with the chart of accounts in
// web/demo.json, kept in memory. A financial year is the year of the calendar, which is its id. The company has another
// number in each run, so that nothing is expected to be in the books that was sent to those of an earlier one.
type demoLedger struct {
	base    string // the address of its pages, without a slash at its end
	back    string // where browsers may be sent back to begins with this
	company bookCompany
	now     func() time.Time

	mu     sync.Mutex
	booked []bookedEntry // the earliest first
}

// newDemoLedger makes books whose pages are reached at an address.
func newDemoLedger(base, back string, now func() time.Time) *demoLedger {
	number := strconv.FormatInt(now().UnixMilli(), 10)
	return &demoLedger{base: base, back: back, now: now,
		company: bookCompany{ID: number, Name: "Trattoria Altstadt i Malmö AB"}}
}

// authorizeURL implements ledger: the address of a page that agrees at once.
func (l *demoLedger) authorizeURL(app appSecrets, redirectURL, state, challenge string) string {
	return l.base + "/agree?" + authorizeQuery(app, "", redirectURL, state, challenge).Encode()
}

// exchange implements ledger. Which tokens were given makes no difference.
func (l *demoLedger) exchange(context.Context, appSecrets, string, string, string) (*bookTokens, error) {
	return &bookTokens{Access: randomText(32), ExpiresAt: newStamp(l.now()).after(time.Hour)}, nil
}

// renew implements ledger.
func (l *demoLedger) renew(ctx context.Context, app appSecrets, _ *bookConnection, _ *bookTokens) (*bookTokens, error) {
	return l.exchange(ctx, app, "", "", "")
}

// organisations implements ledger.
func (l *demoLedger) organisations(context.Context, *bookTokens) ([]bookCompany, error) {
	return []bookCompany{l.company}, nil
}

// disconnect implements ledger.
func (l *demoLedger) disconnect(context.Context, *ledgerSession) error { return nil }

// chart implements ledger.
func (l *demoLedger) chart(_ context.Context, _ *ledgerSession, date businessDate) (*bookChart, error) {
	chart, year := demoData().Fortnox, midnight(date).Format("2006")
	chart.Year, chart.YearFrom, chart.YearTo = int64(midnight(date).Year()), year+"-01-01", year+"-12-31"
	return &chart, nil
}

// encode implements ledger.
func (l *demoLedger) encode(entry *bookEntry) string { return string(encodeJSON(entry)) }

// post implements ledger. An entry gets the next number of its series and year: "W-1-2026".
func (l *demoLedger) post(_ context.Context, _ *ledgerSession, entry *bookEntry, _, _ string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	number := 1
	for _, other := range l.booked {
		if other.Entry.Series == entry.Series && other.Entry.Year == entry.Year {
			number++
		}
	}
	id := fmt.Sprintf("%s-%d-%d", entry.Series, number, entry.Year)
	l.booked = append(l.booked, bookedEntry{ID: id, Entry: *entry})
	return id, nil
}

// find implements ledger.
func (l *demoLedger) find(_ context.Context, _ *ledgerSession, _ *bookEntry, syncKey string) (*bookedEntry, error) {
	return l.first(func(b bookedEntry) bool { return strings.Contains(b.Entry.Narration, syncKey) }), nil
}

// read implements ledger.
func (l *demoLedger) read(_ context.Context, _ *ledgerSession, id string) (*bookedEntry, error) {
	return l.first(func(b bookedEntry) bool { return b.ID == id }), nil
}

// first returns the first entry that is wanted; nil: there is none.
func (l *demoLedger) first(wanted func(bookedEntry) bool) *bookedEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return firstWhere(l.booked, wanted)
}

// withdraw implements ledger.
func (l *demoLedger) withdraw(context.Context, *ledgerSession, string) error {
	return &outboundError{outcome: vendorRefused, reason: "no_drafts"}
}

// handler serves the page on which an owner would agree to a connection (here somebody always does), and a page that
// lists what was booked.
func (l *demoLedger) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", l.showBooked)
	mux.HandleFunc("GET /agree", l.agree)
	return mux
}

// agree sends the browser back with a code, as if the company's owner had agreed.
func (l *demoLedger) agree(w http.ResponseWriter, r *http.Request) {
	back := r.FormValue("redirect_uri")
	if !strings.HasPrefix(back, l.back) {
		http.Error(w, "The redirect address is not the service's.", http.StatusBadRequest)
		return
	}
	query := url.Values{"code": {randomText(32)}, "state": {r.FormValue("state")}}
	http.Redirect(w, r, back+"?"+query.Encode(), http.StatusFound)
}

// Accounts of the chart: of what is at the provider or on its way to the bank, of what has arrived there, which the
// accountant codes as the bank's statement has it, and of cash.
const (
	demoClearing = "1580"
	demoTransit  = "1589"
	demoCash     = "1910"
)

// showBooked lists what was booked, as text, and what is on two of the accounts then.
func (l *demoLedger) showBooked(w http.ResponseWriter, _ *http.Request) {
	balance := map[string]int64{}
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(w, "Test books, in the place of Fortnox: %d vouchers.\n", len(l.booked))
	for _, b := range l.booked {
		series, number, _, _ := parseFortnoxID(b.ID)
		fmt.Fprintf(w, "\n%s %d, %s: %s\n", series, number, b.Entry.Date, b.Entry.Narration)
		for _, line := range b.Entry.Lines {
			balance[line.Account] += line.Debit - line.Credit
			debit, credit := formatAmount(line.Debit), formatAmount(line.Credit)
			fmt.Fprintf(w, "%6s %12s %12s  %s\n", line.Account, debit, credit, line.Text)
		}
	}
	fmt.Fprintf(w, `
Clearing account %s, of what the provider has of these days: %s
Account of transit %s, of what has arrived at the bank: %s
`, demoClearing, formatSigned(balance[demoClearing]), demoTransit, formatSigned(balance[demoTransit]))
}
