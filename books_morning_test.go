package main

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A countedBooks counts what comes to a fake of a product, each of whose answers takes 200 ms.
type countedBooks struct {
	http.Handler
	mu       sync.Mutex
	requests int
	refused  int            // of those, with 429
	running  map[string]int // by company
	most     int            // at once, of one company
}

// ServeHTTP answers as the fake does.
func (c *countedBooks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	company := r.Header.Get("Xero-Tenant-Id") + r.Header.Get("Authorization")
	c.mu.Lock()
	c.requests++
	c.running[company]++
	if !strings.HasPrefix(company, "Basic ") { // tokens, which are of no company yet
		c.most = max(c.most, c.running[company])
	}
	c.mu.Unlock()
	time.Sleep(200 * time.Millisecond)
	noted := &notedStatus{ResponseWriter: w}
	c.Handler.ServeHTTP(noted, r)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running[company]--
	if noted.status == http.StatusTooManyRequests {
		c.refused++
	}
}

// A notedStatus notes the status of an answer.
type notedStatus struct {
	http.ResponseWriter
	status int
}

func (w *notedStatus) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// manyCompanies gives both fakes n companies, each with a chart of 1,000 accounts.
func manyCompanies(xero *xeroFake, fortnox *fortnoxFake, n int) {
	first := xero.companies[0]
	xero.companies = nil
	for i := range n {
		company := &xeroFakeCompany{tenant: xero.newID(), name: fmt.Sprintf("Pizzeria %d AG", i), kind: first.kind,
			currency: first.currency, accounts: slices.Clone(first.accounts), rates: first.rates}
		theirs := fortnox.addCompany(int64(2_000_000+i), fmt.Sprintf("Krogen %d AB", i))
		for number := int64(4000); len(company.accounts) < 1000; number++ {
			name := fmt.Sprintf("Inköp av varor och material från leverantör %d", number)
			code := strconv.FormatInt(number, 10)
			company.accounts = append(company.accounts, &xeroFakeAccount{code, name, "EXPENSE", "NONE", "ACTIVE", ""})
			theirs.accounts = append(theirs.accounts, fortnoxFakeAccount{number, name, "", true})
		}
		xero.companies = append(xero.companies, company)
	}
	fortnox.companies = fortnox.companies[len(fortnox.companies)-n:]
}

// bookedTimes returns how often each sync key is in the books of all companies.
func bookedTimes(xero *xeroFake, fortnox *fortnoxFake) map[string]int {
	times := map[string]int{}
	key := regexp.MustCompile(`widgetd:[^)]+`)
	for _, c := range xero.companies {
		for _, j := range c.journals {
			times[key.FindString(j.narration)]++
		}
	}
	for _, c := range fortnox.companies {
		for _, v := range c.vouchers {
			times[key.FindString(v.description)]++
		}
	}
	return times
}

func TestBooks_ofFiftyAccountsAreSentInTheMorningWithinTheLimits(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		each := size(8, 25) // connections with a product; Xero takes 60 requests a minute, Fortnox 25 in 5 s
		k := newBookkeeper(t, productXero)
		counted := map[string]*countedBooks{
			productXero:    {Handler: k.xero, running: map[string]int{}},
			productFortnox: {Handler: k.fortnox, running: map[string]int{}},
		}
		k.server.outbound.close()
		k.server.outbound.plain.DialContext = dialTo(map[string]pipes{
			bookkeeperXeroURL:    serveInMemory(t, counted[productXero]),
			bookkeeperFortnoxURL: serveInMemory(t, counted[productFortnox])})
		manyCompanies(k.xero, k.fortnox, each)
		for i := range 2 * each {
			k.product, k.currency, k.rate = productXero, "CHF", 810
			k.xero.consent = k.xero.companies[i/2 : i/2+1]
			if i%2 == 1 {
				k.product, k.currency, k.rate = productFortnox, "SEK", 1200
				k.fortnox.owner = k.fortnox.companies[i/2]
			}
			k.account = k.addAccount(fmt.Sprint("Trattoria ", i))
			origin := fmt.Sprintf("https://trattoria%d.example", i)
			k.change(func(t *tx) error { return addOrigin(t, k.account, origin, anActor) })
			k.connect()
			k.remap(func(*bookMapping) {})
			k.set(func(c *bookConnection) {
				series, from := "W", bookkeeperDay
				c.SendFrom = &from
				if k.product == productFortnox {
					c.Series = &series
				}
			})
			k.sell(1000, func(o *order) { o.ReturnURL = origin + "/thanks" })
		}
		for _, c := range counted {
			c.requests, c.most = 0, 0
		}
		k.until("2000-01-02 05:59")
		stop := k.beside(newBooksWorker(k.engine).run)
		k.until("2000-01-02 06:00")
		posted := 0
		for wait := 0; posted < 2*each && wait < size(40, 120); wait++ {
			k.time(time.Second)
			posted = k.count(`SELECT count(*) FROM books_exports WHERE state = 'posted'`)
		}
		took := time.Since(time.Date(2000, 1, 2, 6, 0, 0, 0, time.UTC))
		stop()
		if posted != 2*each {
			t.Errorf("%v after the grace %d of %d days are posted", took, posted, 2*each)
		}
		times := bookedTimes(k.xero, k.fortnox)
		for key, n := range times {
			if n != 1 {
				t.Errorf("%s is %d times in the books", key, n)
			}
		}
		if len(times) != 2*each {
			t.Errorf("%d days are in the books", len(times))
		}
		for product, c := range counted {
			t.Logf("%s: %d requests for %d days, at most %d at once for a company; all after %v", product, c.requests,
				each, c.most, took)
			if c.refused > 0 || c.most > 5 || c.requests > 10*each {
				t.Errorf("%s: %d requests, %d refused as too many, %d at once for one company", product, c.requests,
					c.refused, c.most)
			}
		}
	})
}
