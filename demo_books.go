package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The demo's test books speak the part of Fortnox' interface that fortnoxLedger uses, for one company, with the chart
// of accounts in web/demo.json. They are part of the demo command only: nothing that they are sent leaves this
// machine, and they forget it when the demo ends. A financial year is the year of the calendar, which is its id.

// testBooks are the books of one company. Make them with newTestBooks.
type testBooks struct {
	base    string // their own address, without a slash at its end
	back    string // where browsers may be sent back to begins with this
	company int64  // number of the company's database
	app     appSecrets

	mu       sync.Mutex
	vouchers []fortnoxVoucher // the earliest first
}

// newTestBooks makes books that are reached at an address, "http://127.0.0.1:8084". back begins the addresses to
// which browsers may be sent back. The company has another number in each run, so that nothing is expected to be in
// the books that was sent to those of an earlier one.
func newTestBooks(base, back string, now time.Time) *testBooks {
	secret, _ := newClientSecret()
	return &testBooks{base: base, back: back, company: now.UnixMilli(), app: appSecrets{"demo", secret}}
}

// handler returns the interface, the page on which an owner would agree to a connection (here somebody always does),
// and a page that lists what was booked.
func (b *testBooks) handler() http.Handler {
	data := demoData()
	chart := &data.Fortnox
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", b.showVouchers)
	mux.HandleFunc("GET /oauth-v1/auth", b.agree)
	fixed := func(o testObject) func(*http.Request) testObject {
		return func(*http.Request) testObject { return o }
	}
	for pattern, answer := range map[string]func(*http.Request) testObject{
		"POST /oauth-v1/token":              b.giveToken,
		"GET /3/companyinformation":         fixed(b.companyObject()),
		"GET /3/settings/lockedperiod":      fixed(testObject{"LockedPeriod": testObject{}}),
		"GET /3/financialyears":             yearObject,
		"GET /3/accounts":                   fixed(accountObjects(chart)),
		"GET /3/voucherseries":              fixed(seriesObjects(chart)),
		"POST /3/vouchers":                  b.book,
		"GET /3/vouchers/sublist/{series}":  b.listVouchers,
		"GET /3/vouchers/{series}/{number}": b.readVoucher,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, maxOutboundBody)
			status, object := http.StatusUnauthorized, testObject(nil)
			_, secret, _ := r.BasicAuth()
			if secret == b.app.clientSecret || strings.HasPrefix(r.Header.Get("Authorization"), "Bearer test_") {
				status, object = http.StatusNotFound, answer(r)
			}
			if object != nil {
				status = http.StatusOK
			} else {
				object = testObject{"ErrorInformation": testObject{"Code": 0, "Message": http.StatusText(status)}}
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			w.Write(encodeJSON(object))
		})
	}
	return mux
}

// showVouchers lists what was booked, as text.
func (b *testBooks) showVouchers(w http.ResponseWriter, _ *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Fprintf(w, "Test books, in the place of Fortnox: %d vouchers.\n", len(b.vouchers))
	for _, v := range b.vouchers {
		fmt.Fprintf(w, "\n%s %d, %s: %s\n", v.VoucherSeries, v.VoucherNumber, v.TransactionDate, v.Description)
		for _, row := range v.VoucherRows {
			fmt.Fprintf(w, "%6d %12s %12s  %s\n", row.Account, row.Debit, row.Credit, row.Text)
		}
	}
}

// agree sends the browser back with a code, as if the company's owner had agreed.
func (b *testBooks) agree(w http.ResponseWriter, r *http.Request) {
	back := r.FormValue("redirect_uri")
	if !strings.HasPrefix(back, b.back) {
		http.Error(w, "The redirect address is not the service's.", http.StatusBadRequest)
		return
	}
	query := url.Values{"code": {randomText(32)}, "state": {r.FormValue("state")}}
	http.Redirect(w, r, back+"?"+query.Encode(), http.StatusFound)
}

func (b *testBooks) giveToken(*http.Request) testObject {
	return testObject{"access_token": b.newAccess(), "token_type": "bearer", "expires_in": 3600}
}

// newAccess returns an access token. Which ones were given makes no difference.
func (b *testBooks) newAccess() string { return "test_" + randomText(32) }

// organisation returns the company.
func (b *testBooks) organisation() bookOrganisation {
	return bookOrganisation{ID: strconv.FormatInt(b.company, 10), Name: "Trattoria Altstadt i Malmö AB"}
}

func (b *testBooks) companyObject() testObject {
	company := testObject{"DatabaseNumber": b.company, "CompanyName": b.organisation().Name}
	return testObject{"CompanyInformation": company}
}

// testPage returns a list that has one page.
func testPage[T any](member string, all []T) testObject {
	return testObject{member: append([]T{}, all...), "MetaInformation": testObject{"@TotalPages": 1}}
}

func yearObject(r *http.Request) testObject {
	var years []testObject
	if date := r.FormValue("date"); isBusinessDate(date) {
		year := midnight(date).Year()
		years = append(years, testObject{"Id": year, "FromDate": fmt.Sprint(year, "-01-01"),
			"ToDate": fmt.Sprint(year, "-12-31")})
	}
	return testPage("FinancialYears", years)
}

func accountObjects(chart *bookChart) testObject {
	var all []testObject
	for _, a := range chart.Accounts {
		all = append(all, testObject{"Number": json.Number(a.Code), "Description": a.Name, "Active": true})
	}
	return testPage("Accounts", all)
}

func seriesObjects(chart *bookChart) testObject {
	var all []testObject
	for _, code := range chart.Series {
		all = append(all, testObject{"Code": code, "Manual": true})
	}
	return testPage("VoucherSeriesCollection", all)
}

// yearOf returns the financial year that a request names; 0: none.
func yearOf(r *http.Request) int64 {
	year, _ := strconv.ParseInt(r.URL.Query().Get("financialyear"), 10, 64)
	return year
}

// book adds a voucher with the next number of its series and year.
func (b *testBooks) book(r *http.Request) testObject {
	var body struct{ Voucher fortnoxVoucher }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return nil
	}
	v := body.Voucher
	b.mu.Lock()
	defer b.mu.Unlock()
	v.Year, v.VoucherNumber = yearOf(r), 1
	for _, other := range b.vouchers {
		if other.VoucherSeries == v.VoucherSeries && other.Year == v.Year {
			v.VoucherNumber++
		}
	}
	b.vouchers = append(b.vouchers, v)
	return testObject{"Voucher": v}
}

// find returns the vouchers of a request's series and year that have a number; 0: any.
func (b *testBooks) find(r *http.Request, number int64) (all []fortnoxVoucher) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, v := range b.vouchers {
		if v.VoucherSeries == r.PathValue("series") && v.Year == yearOf(r) &&
			(number == 0 || v.VoucherNumber == number) {
			all = append(all, v)
		}
	}
	return all
}

func (b *testBooks) listVouchers(r *http.Request) testObject {
	return testPage("Vouchers", b.find(r, 0))
}

func (b *testBooks) readVoucher(r *http.Request) testObject {
	number, _ := strconv.ParseInt(r.PathValue("number"), 10, 64)
	if found := b.find(r, max(number, 1)); len(found) > 0 {
		return testObject{"Voucher": found[0]}
	}
	return nil
}

// prepareDocsBooks connects the demo's account with the test books, which must be served already, and sends them a
// day, so that the lines of /docs have a connection, an entry in the books and those of other currencies, which are
// held. A second connection is there to be changed and removed: at Xero, where nobody has chosen a company, so that
// nothing is ever asked of it. Connections of an earlier run are ended.
func (d *demo) prepareDocsBooks(ctx context.Context, s *server, b *testBooks) error {
	engine, by := booksOf(s), ownedBy(d.account)
	old, err := s.store.bookConnections(by)
	if err != nil {
		return err
	}
	for _, c := range old {
		if err := engine.disconnect(ctx, by, c.ID, actorCommand); err != nil {
			return err
		}
	}
	unused := &bookConnection{AccountID: d.account, Product: productXero, Status: entryDraft,
		Choices: []bookOrganisation{{ID: "1", Name: "Altstadt GmbH"}, {ID: "2", Name: "Bahnhof GmbH"}}}
	c := &bookConnection{AccountID: d.account, Product: productFortnox, Status: entryDraft, Series: new("W"),
		Outside: true, Tests: true}
	keys := s.keys.Load()
	err = s.store.update(ctx, func(t *tx) error {
		setBooksApp(t, keys, productFortnox, b.app)
		for _, each := range []*bookConnection{unused, c} {
			each.ID = t.newID("bkc")
			t.addBookConnection(each)
		}
		tokens := &bookTokens{Access: b.newAccess(), ExpiresAt: t.now.after(time.Hour)}
		_, err := bindOrganisation(t, keys, c, b.organisation(), tokens, actorCommand)
		return err
	})
	if err != nil {
		return err
	}
	mapping, err := engine.suggestFor(ctx, c)
	if err != nil {
		return err
	}
	d.examples["/books/connections/{id}"] = unused.ID
	for _, path := range []string{"/accounts", "/mapping", "/preview/{date}", "/exports", "/exports/{export}/retry",
		"/exports/{export}/reverse"} {
		d.examples["/books/connections/{id}"+path] = c.ID
	}
	return d.exportForDocs(ctx, s, c, mapping)
}

// exportForDocs confirms the mapping of a connection and sends its books a day that is over.
func (d *demo) exportForDocs(ctx context.Context, s *server, c *bookConnection, mapping *bookMapping) error {
	dayBefore := midnight(d.yesterday).AddDate(0, 0, -1).Format(time.DateOnly)
	exports, err := updated(ctx, s.store, func(t *tx) ([]bookExport, error) {
		days, err := t.revenueDayKeys(d.account, "2000-01-01", dayBefore)
		if err != nil {
			return nil, err
		}
		for _, day := range days {
			if day.Currency == fortnoxCurrency {
				d.examples["date"] = day.Date // the last one
			}
		}
		if _, err := saveMapping(t, ownedBy(d.account), c.ID, mapping, actorCommand); err != nil {
			return nil, err
		}
		return requestExport(t, ownedBy(d.account), c.ID, d.examples["date"])
	})
	if err != nil {
		return err
	}
	const path = "/books/connections/{id}/exports/{export}/"
	for _, x := range exports {
		if x.Currency == fortnoxCurrency {
			d.examples[path+"reverse export"] = x.ID
		} else {
			d.examples[path+"retry export"] = x.ID
		}
	}
	return newBooksWorker(booksOf(s)).export(ctx, c.ID)
}
