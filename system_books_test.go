package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// When a service is killed, of a request to a vendor.
const (
	killBefore   = "before"   // the vendor has done what it asks for
	killActed    = "acted"    // after that, and before they answer
	killAnswered = "answered" // once they have answered, and before anything of that is on disk
)

// A killed is a service in a process of its own that asks vendors here, and is killed at chosen requests to them.
type killed struct {
	*operator
	web     *httptest.Server
	process *process
	options func() []string                              // with which it finds the vendors
	vendor  func(r *http.Request) (http.Handler, string) // who is asked, and what for

	mu      sync.Mutex
	kind    string // of the requests to be killed at
	moment  string // killBefore, …; "": none
	unlock  func() // the file, after killAnswered
	reached chan struct{}
}

func newKilled(o *operator) *killed {
	k := &killed{operator: o, reached: make(chan struct{}, 1)}
	k.web = httptest.NewServer(k)
	o.t.Cleanup(k.web.Close)
	return k
}

// A killedBookkeeper is one whose account is connected with books. What it waits for would take minutes: while it is
// down, passTime moves the times in its file back, and the clock of the books forward.
type killedBookkeeper struct {
	*killed
	product    string
	xero       *xeroFake
	fortnox    *fortnoxFake
	connection string
	origin     string       // of the account
	ahead      atomic.Int64 // of the clock of the books, time.Duration
}

// newKilledBookkeeper makes one whose account is connected with a product, and whose process is down.
func newKilledBookkeeper(t *testing.T, product string) *killedBookkeeper {
	k := startKilledBookkeeper(t)
	k.product = product
	k.connect(k.account, siteOrigin)
	return k
}

// startKilledBookkeeper makes one whose account is not connected yet, with the applications of both products.
func startKilledBookkeeper(t testing.TB) *killedBookkeeper {
	k := &killedBookkeeper{killed: newKilled(newOperator(t))}
	k.xero, k.fortnox = makeXeroFake(t, k.now, k.web.URL), makeFortnoxFake(t, k.now, k.web.URL)
	k.xero.app.clientSecret = "s+cret/of:the-app~"
	k.vendor = func(r *http.Request) (http.Handler, string) { return k.fake(r), k.kindOf(r.Method, r.URL.Path) }
	k.options = func() []string {
		return []string{"-outbound-allow", "127.0.0.0/8", "-xero-url", k.web.URL, "-fortnox-url", k.web.URL}
	}
	for product, app := range map[string]appSecrets{productXero: k.xero.app, productFortnox: k.fortnox.app} {
		k.told.hear(app.clientSecret)
		k.do("books", "app", "set", product, "-secrets",
			k.file("app", "client_id="+app.clientID+"\nclient_secret="+app.clientSecret+"\n"))
	}
	return k
}

// connect connects an account with the product, maps all that it sells, and is about it from then on. origin is
// one of the account's.
func (k *killedBookkeeper) connect(account, origin string) {
	k.t.Helper()
	k.account, k.origin = account, origin
	k.serve()
	link := k.object(append([]string{"books", "connect", k.product, "-account", k.account}, k.options()...)...)
	approve := k.fortnox.approve
	if k.product == productXero {
		approve = k.xero.approve
	}
	_, callback, _ := strings.Cut(approve(link["authorize_url"].(string)), "/v1/")
	res, err := http.Get(k.process.base + "/" + callback)
	if err != nil || res.StatusCode != http.StatusOK {
		k.t.Fatalf("coming back: %v %v", res, err)
	}
	res.Body.Close()
	k.connection = k.objects("books", "list", "-account", k.account)[0]["id"].(string)
	k.down(syscall.SIGTERM)
	plan := &bookkeeper{product: k.product, rate: k.rate()}
	mapping, err := json.Marshal(plan.mapping())
	must(k.t, err)
	k.do(append([]string{"books", "map", k.connection, "-set", k.file("mapping", string(mapping))},
		k.options()...)...)
	if k.product == productFortnox {
		k.do("books", "set", k.connection, "-series", "W")
	}
}

func (k *killedBookkeeper) rate() int64 {
	if k.product == productFortnox {
		return 1200
	}
	return 810
}

// now is the clock of the books.
func (k *killedBookkeeper) now() time.Time { return time.Now().Add(time.Duration(k.ahead.Load())) }

func (k *killed) serve() {
	k.t.Helper()
	k.process = serveProcess(k.t, k.operator, k.options()...)
}

// down ends the process.
func (k *killed) down(signal os.Signal) {
	k.t.Helper()
	k.process.stop(signal)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.unlock != nil {
		k.unlock()
	}
	k.moment, k.unlock = "", nil
}

// passTime lets time pass while the process is down.
func (k *killedBookkeeper) passTime(d time.Duration) {
	k.t.Helper()
	k.ahead.Add(int64(d))
	earlier := fmt.Sprintf("-%d seconds", int(d.Seconds()))
	k.change(func(t *tx) error {
		const moved = `strftime('%Y-%m-%dT%H:%M:%SZ', `
		_, err := t.try(`UPDATE books_exports SET due_at = `+moved+`due_at, ?1), sent_at = `+moved+`sent_at, ?1)`,
			earlier)
		if err == nil {
			_, err = t.try(`UPDATE books_connections SET refreshing_until = `+moved+`refreshing_until, ?1),
				failing_since = `+moved+`failing_since, ?1)`, earlier)
		}
		return err
	})
	k.changeTokens(func(_ *tx, tokens *bookTokens) { // if they stayed new, refused ones would not be replaced
		tokens.ExpiresAt = newStamp(tokens.ExpiresAt.Add(-d))
		tokens.RenewedAt = tokens.RenewedAt.Add(-d)
	})
}

// sell has the last days before yesterday sell something each, and returns them, the earliest first.
func (k *killedBookkeeper) sell(days int) (dates []businessDate) {
	k.t.Helper()
	currency := "CHF"
	if k.product == productFortnox {
		currency = "SEK"
	}
	k.change(func(t *tx) error {
		for i := days; i > 0; i-- {
			noon := t.now.UTC().AddDate(0, 0, -i-2).Truncate(24 * time.Hour).Add(12 * time.Hour)
			dates = append(dates, noon.Format(time.DateOnly))
			o := &order{AccountID: k.account, Currency: currency, ReturnURL: k.origin + "/thanks",
				Lines: []orderLine{{Name: "Menu", Quantity: 1, UnitAmount: 1000 + int64(i), VATRate: k.rate()}}}
			if _, err := createOrder(t, o, guest{}, minOrderLife, anActor); err != nil {
				return err
			}
			if err := markPaid(t, o, methodCard, newStamp(noon), anActor); err != nil {
				return err
			}
		}
		return nil
	})
	return dates
}

// expireTokens has the next request of the connection replace its tokens first.
func (k *killedBookkeeper) expireTokens() {
	k.t.Helper()
	k.changeTokens(func(t *tx, tokens *bookTokens) { tokens.ExpiresAt = t.now })
}

// changeTokens changes the tokens of the connection, which are sealed.
func (k *killedBookkeeper) changeTokens(f func(*tx, *bookTokens)) {
	k.t.Helper()
	keys, err := loadKeyring(k.env["WIDGETD_KEY"])
	must(k.t, err)
	k.change(func(t *tx) error {
		c, err := t.usedBookConnection(anyAccount, k.connection)
		if err != nil {
			return err
		}
		tokens, err := openTokens(keys, c)
		if err != nil {
			return err
		}
		f(t, tokens)
		sealed, err := sealTokens(keys, c.ID, tokens)
		if err == nil {
			_, err = t.try(`UPDATE books_connections SET secrets = ? WHERE id = ?`, sealed, c.ID)
		}
		return err
	})
}

// killAt has the next start be killed at a request of a kind.
func (k *killed) killAt(kind, moment string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kind, k.moment = kind, moment
}

// awaitKill waits until the process is to be killed, and kills it.
func (k *killed) awaitKill() {
	k.t.Helper()
	select {
	case <-k.reached:
	case <-time.After(time.Minute):
		k.t.Fatalf("nobody was asked for that for a minute\n%s", k.process.log.String())
	}
	k.down(os.Kill)
}

// kindOf names what a request asks for: token, chart, post, find or read.
func (k *killedBookkeeper) kindOf(method, path string) string {
	if k.product == productFortnox {
		return fortnoxKind(method, path)
	}
	return xeroKind(method, path)
}

// fake returns the books that a request is for.
func (k *killedBookkeeper) fake(r *http.Request) http.Handler {
	if strings.HasPrefix(r.URL.Path, "/3/") || strings.HasPrefix(r.URL.Path, "/oauth-v1/") {
		return k.fortnox
	}
	return k.xero
}

// ServeHTTP is the vendors.
func (k *killed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fake, kind := k.vendor(r)
	body, err := io.ReadAll(r.Body) // without which nobody would notice that the service is gone
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	k.mu.Lock()
	moment := ""
	if k.kind == kind {
		moment, k.moment = k.moment, ""
	}
	if moment == killAnswered {
		k.unlock = k.lockFile()
	}
	k.mu.Unlock()
	switch moment {
	case killActed:
		fake.ServeHTTP(httptest.NewRecorder(), r)
	case killAnswered, "":
		fake.ServeHTTP(w, r)
	}
	if moment == "" {
		return
	}
	if moment == killAnswered {
		http.NewResponseController(w).Flush()
	}
	k.reached <- struct{}{}
	if moment != killAnswered {
		<-r.Context().Done() // the service is gone
		panic(http.ErrAbortHandler)
	}
}

// lockFile holds the write lock of the file, so that the service can write nothing, until unlock is called.
func (k *killed) lockFile() (unlock func()) {
	db, err := sql.Open("sqlite", "file:"+k.env["WIDGETD_DB"]+"?_pragma=busy_timeout(10000)")
	if err == nil {
		db.SetMaxOpenConns(1)
		_, err = db.ExecContext(context.Background(), "BEGIN IMMEDIATE")
	}
	if err != nil {
		k.t.Errorf("locking the file: %v", err)
	}
	return func() {
		db.Exec("ROLLBACK")
		db.Close()
	}
}

// awaitExports waits until what f says of all exports is true. Tokens that a kill has cost are replaced a minute after
// the last ones at the earliest.
func (k *killedBookkeeper) awaitExports(want string, f func(x *bookExport) bool) {
	k.t.Helper()
	k.store(func(s *store) {
		for end := time.Now().Add(2 * time.Minute); ; <-time.After(20 * time.Millisecond) {
			page, err := s.bookExports(exportFilter{owner: anyAccount}, "", 1000)
			must(k.t, err)
			left := ""
			for _, x := range page.rows {
				if !f(x) {
					left += fmt.Sprintf("%s is %s (%s)\n", x.Date, x.State, valueOr(x.Reason, ""))
				}
			}
			if left == "" && len(page.rows) > 0 {
				return
			}
			if time.Now().After(end) {
				k.t.Fatalf("for two minutes not all is %s: %s\n%s", want, left, k.process.log.String())
			}
		}
	})
}

// awaitPosted waits until all exports are posted.
func (k *killedBookkeeper) awaitPosted() {
	k.t.Helper()
	k.awaitExports(exportPosted, func(x *bookExport) bool { return x.State == exportPosted })
}

// hasOnce requires the entry of each day to be in the books once, and nothing else, and the connection to be
// as it was.
func (k *killedBookkeeper) hasOnce(dates []businessDate) {
	k.t.Helper()
	entries := (&bookkeeper{product: k.product, xero: k.xero, fortnox: k.fortnox}).books()
	if len(entries) != len(dates) {
		k.t.Errorf("%d entries in the books for %d days", len(entries), len(dates))
	}
	for i, date := range dates {
		n := 0
		for _, e := range entries {
			key := syncKey(dayKey(k.account, date), 1)
			if strings.Contains(e.narration, key) && e.card == 1000+int64(len(dates)-i) {
				n++
			}
		}
		if n != 1 {
			k.t.Errorf("%s is %d times in the books", date, n)
		}
	}
	if all := k.objects("books", "list"); len(all) != 1 || all[0]["state"] != "in_use" {
		k.t.Errorf("the connections: %v", all)
	}
	if asked := k.objects("event", "list", "-type", string(eventBooksNeedOwner)); len(asked) != 0 {
		k.t.Errorf("the owner was asked for: %v", asked)
	}
	if posted := k.objects("event", "list", "-type", string(eventBooksPosted), "-limit",
		"100"); len(posted) != len(dates) {
		k.t.Errorf("%d events of %d posted days", len(posted), len(dates))
	}
}

// requests returns the bodies of the requests of a kind that came.
func (k *killedBookkeeper) requests(kind string) (bodies []string) {
	k.xero.mu.Lock()
	defer k.xero.mu.Unlock()
	k.fortnox.mu.Lock()
	defer k.fortnox.mu.Unlock()
	for _, r := range slices.Concat(k.xero.requests, k.fortnox.requests) {
		if k.kindOf(r.method, r.path) == kind {
			bodies = append(bodies, string(r.body))
		}
	}
	return bodies
}

func eachKilledBookkeeper(t *testing.T, f func(t *testing.T, k *killedBookkeeper)) {
	for _, product := range productNames() {
		t.Run(product, func(t *testing.T) {
			t.Parallel()
			builtProgram(t)
			f(t, newKilledBookkeeper(t, product))
		})
	}
}

// By default each product meets a kill once while tokens are replaced and once while an entry is sent, and with -long
// at each moment.
func TestBooks_killedWhileTokensAreReplacedOrAnEntryIsSentGoOnAfterTheRestart(t *testing.T) {
	t.Parallel()
	tokens := map[string][]string{productXero: {killActed, killBefore, killAnswered},
		productFortnox: {killAnswered, killBefore, killActed}}
	posts := map[string][]string{productXero: {killBefore, killActed, killAnswered},
		productFortnox: {killActed, killAnswered, killBefore}}
	kills := size(1, 3) // of each kind of request
	eachKilledBookkeeper(t, func(t *testing.T, k *killedBookkeeper) {
		dates := k.sell(kills + 1)
		k.expireTokens()
		k.do("books", "export", "send", k.connection, dates[0])
		for _, moment := range tokens[k.product][:kills] {
			k.killAt("token", moment)
			k.serve()
			k.awaitKill()
			k.passTime(time.Minute) // for which one call may replace tokens
		}
		k.serve()
		k.awaitPosted()
		asked := k.requests("token")[1:] // the first has redeemed the code
		if len(asked) != max(2, kills) { // one of three broke off before they were
			t.Errorf("tokens were replaced %d times", len(asked))
		}
		for _, body := range asked {
			if body != asked[0] {
				t.Errorf("tokens were asked for by %s\nthen by %s", asked[0], body)
			}
		}
		k.down(syscall.SIGTERM)
		for i, moment := range posts[k.product][:kills] {
			k.do("books", "export", "send", k.connection, dates[i+1])
			k.killAt("post", moment)
			k.serve()
			k.awaitKill()
			posts := len(k.requests("post"))
			k.passTime(lostAnswerAfter)
			k.serve()
			if moment == killBefore { // it is not there, but may still come
				k.awaitExports("looked for", func(x *bookExport) bool { return x.State != exportSending })
				k.down(syscall.SIGTERM)
				k.passTime(notFoundAfter)
				k.serve()
			}
			k.awaitPosted()
			again := len(k.requests("post")) - posts
			if moment != killBefore && again != 0 || moment == killBefore && again != 1 {
				t.Errorf("killed %s: the entry was sent %d times after that", moment, again)
			}
			if len(k.requests("find")) == 0 {
				t.Error("nobody has looked whether the entry is there")
			}
			k.down(syscall.SIGTERM)
		}
		k.hasOnce(dates)
	})
}

// A killedShop is one whose account is connected with a test provider.
type killedShop struct {
	*killed
	provider *testProvider
}

func newKilledShop(t *testing.T) *killedShop {
	s := &killedShop{newKilled(newOperator(t)), newTestProvider(newOutbound(demoOutbound), "", time.Now)}
	provider := s.provider.handler()
	s.vendor = func(r *http.Request) (http.Handler, string) { return provider, callKind(r.Method + " " + r.URL.Path) }
	s.options = func() []string { return []string{"-outbound-allow", "127.0.0.0/8", "-stripe-url", s.web.URL} }
	s.provider.base = s.web.URL
	s.provider.deliver = func(string, func() int) {} // nothing but the poller notices
	t.Cleanup(s.provider.close)
	s.connectCards()
	s.serve()
	return s
}

// connectCards connects the operator's account with a test provider of cards.
func (o *operator) connectCards() {
	o.t.Helper()
	keys, err := loadKeyring(o.env["WIDGETD_KEY"])
	must(o.t, err)
	o.change(func(t *tx) error {
		conn := &unsealedConnection{paymentConnection: &paymentConnection{ID: t.newID("con"), AccountID: o.account,
			Provider: providerStripe, CreatedAt: t.now}}
		conn.secrets.Key = shopSecretKey
		if err := conn.seal(keys); err != nil {
			return err
		}
		t.addPaymentConnection(conn.paymentConnection)
		return nil
	})
}

// killedAt has the service killed at the next call of a kind, runs act, which leads to that call, and starts the
// service again. What it waits for after that, which would take seconds, is due at once; its file is changed only once
// it has started, so that it finds it as the kill has left it.
func (s *killedShop) killedAt(kind, moment string, act func()) {
	s.t.Helper()
	s.killAt(kind, moment)
	act()
	s.awaitKill()
	s.serve()
	s.change(func(t *tx) error {
		_, err := t.try(`UPDATE payments SET due_at = ?1 WHERE due_at > ?1`, t.now)
		return err
	})
}

// pay presses the button of the pay page, and returns the address of the provider's page; "" without an
// answer.
func (s *killedShop) pay(order, key string) string {
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.PostForm(s.process.base+"/pay/"+order+"?k="+key, url.Values{"method": {methodCard}})
	if err != nil {
		return ""
	}
	res.Body.Close()
	return res.Header.Get("Location")
}

// authorize has the guest pay on the provider's page at an address.
func (s *killedShop) authorize(order, page string) {
	s.t.Helper()
	if !s.provider.tryCard(page[strings.LastIndexByte(page, '/')+1:], true) {
		s.t.Fatal("the guest can't pay")
	}
	s.do("order", "settle", order)
	s.await(order, orderAuthorized, paymentAuthorized)
}

// await waits until an order and its payment have these states. The database is open meanwhile only, so that
// whoever starts after a kill finds it as the kill has left it.
func (s *killedShop) await(order, state, payment string) {
	s.t.Helper()
	s.store(func(st *store) {
		for end := time.Now().Add(time.Minute); ; {
			o, err := st.order(anyAccount, order)
			must(s.t, err)
			all, err := st.paymentsOf(order)
			must(s.t, err)
			got := string(o.State)
			if len(all) > 0 {
				got += " " + string(all[len(all)-1].State)
			}
			if got == state+" "+payment {
				return
			}
			if time.Now().After(end) {
				s.t.Fatalf("the order and its payment are %s; want %s %s\n%s", got, state, payment,
					s.process.log.String())
			}
			<-time.After(20 * time.Millisecond)
		}
	})
}

// place makes an order of 37.00 CHF, and returns its id and the key of its page.
func (s *killedShop) place() (id, key string) {
	s.t.Helper()
	s.change(func(t *tx) (err error) {
		o := &order{AccountID: s.account, Currency: "CHF", ReturnURL: siteOrigin + "/thanks",
			Lines: []orderLine{{Name: "Pizza", Quantity: 2, UnitAmount: 1850, VATRate: 260}}}
		key, err = createOrder(t, o, guest{}, minOrderLife, anActor)
		id = o.ID
		return err
	})
	s.told.hear(key)
	return id, key
}

// paidWhileKilled kills the service at a moment while it makes a page for paying, captures and gives back money.
func (s *killedShop) paidWhileKilled(create, capture, refund string) {
	s.t.Helper()
	id, key := s.place()
	before := len(s.provider.sessions)
	s.killedAt(opCreate, create, func() { go s.pay(id, key) })
	where := s.pay(id, key)
	for end := time.Now().Add(time.Minute); !strings.HasPrefix(where, s.provider.base); where = s.pay(id, key) {
		if time.Now().After(end) {
			s.t.Fatalf("the guest is sent to %q\n%s", where, s.process.log.String())
		}
		<-time.After(50 * time.Millisecond)
	}
	if n := len(s.provider.sessions) - before; n != 1 {
		s.t.Fatalf("%d sessions of one order", n)
	}
	s.authorize(id, where)
	s.killedAt(opCapture, capture, func() { s.do("order", "accept", id) })
	s.await(id, orderPaid, paymentCaptured)
	s.killedAt(opRefund, refund, func() { s.do("order", "refund", id, "-amount", "10.00") })
	s.await(id, orderPartRefunded, paymentPartRefunded)
	s.do("order", "refund", id)
	s.await(id, orderRefunded, paymentRefunded)
	equal(s.t, "refunds", len(s.object("order", "show", id)["refunds"].([]any)), 2)
	s.provider.mu.Lock()
	if i := s.provider.sessions[len(s.provider.sessions)-1].intent; i.received != 3700 || len(i.refunds) != 2 {
		s.t.Errorf("received %d, %d refunds", i.received, len(i.refunds))
	}
	s.provider.mu.Unlock()
	for _, kind := range []eventType{eventOrderAuthorized, eventOrderAccepted, eventOrderPaid} {
		n := 0
		for _, e := range s.objects("event", "list", "-type", string(kind)) {
			if e["subject_id"] == id {
				n++
			}
		}
		equal(s.t, string(kind), n, 1)
	}
}

// releasedWhileKilled kills the service at a moment while it gives back what is reserved, and while it ends a page for
// paying.
func (s *killedShop) releasedWhileKilled(release, expire string) {
	s.t.Helper()
	id, key := s.place()
	s.authorize(id, s.pay(id, key))
	s.killedAt(opCancel, release, func() { s.do("order", "reject", id) })
	s.await(id, orderCancelled, paymentCancelled)

	token := strings.TrimSpace(s.do("token", "issue", "-scope", scopeSelling))
	id, key = s.place()
	s.pay(id, key)
	s.killedAt(opExpire, expire, func() {
		r, err := http.NewRequest("POST", s.process.base+"/orders/"+id+"/cancel", nil)
		must(s.t, err)
		r.Header.Set("Authorization", "Bearer "+token)
		res, err := http.DefaultClient.Do(r)
		must(s.t, err)
		res.Body.Close()
		equal(s.t, "the status of cancelling", res.StatusCode, http.StatusOK)
	})
	s.await(id, orderCancelled, paymentExpired)
}

// Against a lost answer, a crash or a provider with faults that would have a payment captured twice or lost: an
// operation is on the disk before it is sent, and is sent again under its key or looked for first. Each kind of call
// meets a kill at one moment by default, and with -long at the other one, too.
func TestPayment_killedAtEachCallGoesOnAfterTheRestart(t *testing.T) {
	t.Parallel()
	s := newKilledShop(t)
	rounds := []struct{ create, capture, refund, release, expire string }{
		{killActed, killBefore, killActed, killBefore, killActed},
		{killBefore, killActed, killBefore, killActed, killBefore},
	}
	for _, moment := range rounds[:size(1, len(rounds))] {
		s.paidWhileKilled(moment.create, moment.capture, moment.refund)
		s.releasedWhileKilled(moment.release, moment.expire)
	}
	for _, session := range s.provider.sessions {
		if session.status == "open" || session.intent != nil && session.intent.capturable > 0 {
			t.Errorf("the guest can pay, or has reserved money: %+v", session)
		}
	}
	s.process.stopCleanly()
}

// A tokenUser is an application that comes for tokens again and again, until its service is gone.
type tokenUser struct {
	app     *app
	secret  string
	code    string // that it holds and has not exchanged, as far as it knows
	refresh string // that it uses next; "": it has none
	seen    int    // answers that it got
	lost    int    // requests that were not answered
	anew    int    // grants that it had to begin anew
	faults  []string
}

// form is what it asks with: it exchanges its code, or else refreshes.
func (u *tokenUser) form() url.Values {
	form := url.Values{"client_id": {u.app.ID}}
	if u.secret != "" {
		form.Set("client_secret", u.secret)
	}
	if u.refresh != "" {
		form.Set("grant_type", "refresh_token")
		form.Set("refresh_token", u.refresh)
		return form
	}
	form.Set("grant_type", "authorization_code")
	form.Set("code", u.code)
	form.Set("code_verifier", testVerifier)
	form.Set("redirect_uri", u.app.RedirectURIs[0])
	return form
}

// ask comes for tokens once. It reports whether it was answered, and can go on. Only the exchange of a code may be
// refused, if the answer to the one before was lost.
func (u *tokenUser) ask(client *http.Client, base string) bool {
	res, err := client.PostForm(base+"/oauth/token", u.form())
	var said struct {
		Access  string `json:"access_token"`
		Refresh string `json:"refresh_token"`
		Error   string
	}
	if err == nil {
		err = errors.Join(json.NewDecoder(res.Body).Decode(&said), res.Body.Close())
	}
	if err != nil {
		u.lost++
		return false
	}
	u.seen++
	switch {
	case res.StatusCode == http.StatusBadRequest && said.Error == "invalid_grant" && u.refresh == "" && u.lost > 0:
		u.anew++
		u.code = ""
		return false
	case res.StatusCode != http.StatusOK || said.Access == "":
		u.faults = append(u.faults, res.Status+" "+said.Error+" with "+u.form().Get("grant_type"))
		return false
	case u.refresh != "" && u.secret != "" && said.Refresh != "" && said.Refresh != u.refresh:
		u.faults = append(u.faults, "a confidential application got another refresh token")
	case u.refresh != "" && u.secret == "" && said.Refresh == u.refresh:
		u.faults = append(u.faults, "a public application kept its refresh token")
	}
	u.code = ""
	if said.Refresh != "" {
		u.refresh = said.Refresh
	}
	return true
}

// giveCodes writes a code for each user that has neither a code nor a refresh token, and returns how many refresh
// tokens of one grant work at most.
func giveCodes(o *operator, users []*tokenUser) (living int) {
	o.store(func(st *store) {
		err := st.update(o.t.Context(), func(t *tx) error {
			for _, u := range users {
				if u.code != "" || u.refresh != "" {
					continue
				}
				u.code = randomText(32)
				t.addGrantCode(&grantCode{Hash: hashOf(u.code), AppID: u.app.ID, AccountID: o.account,
					RedirectURI: u.app.RedirectURIs[0], Challenge: testChallenge, Scope: scopeOrders, AgreedBy: "test",
					CreatedAt: t.now, ExpiresAt: t.now.after(grantCodeLife)})
			}
			return t.one(`SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM refresh_tokens
				WHERE replaced_at IS NULL GROUP BY grant_id)`, nil, &living)
		})
		if err != nil {
			o.t.Fatal(err)
		}
	})
	return living
}

func TestOAuth_killedAtAnyMomentEveryApplicationGoesOnOrBeginsAnew(t *testing.T) {
	t.Parallel()
	const each = 4
	kills, chance := size(3, 10), random(t, 0)
	o := newOperator(t)
	var users []*tokenUser
	o.store(func(st *store) {
		s := &service{t: t, store: st, account: o.account}
		for range each {
			web, secret := s.registerApp()
			public, _ := s.registerApp(func(p *app) { p.Kind = appInstalled })
			users = append(users, &tokenUser{app: web, secret: secret}, &tokenUser{app: public})
		}
	})
	for n := range kills {
		for i, u := range users { // some go on where they were, and the others connect once more
			if i/2%2 == n%2 && u.code == "" {
				u.refresh = ""
			}
		}
		if living := giveCodes(o, users); living > 1 {
			t.Errorf("a grant has %d refresh tokens that work", living)
		}
		p := serveProcess(t, o)
		client := newClient(t)
		var all sync.WaitGroup
		var answers atomic.Int64
		enough, wanted := make(chan struct{}), chance.Int64N(100)
		kill := sync.OnceFunc(func() { close(enough) })
		for _, u := range users {
			all.Go(func() {
				for u.ask(client, p.base) {
					if answers.Add(1) > wanted {
						kill()
					}
				}
			})
		}
		go func() { all.Wait(); kill() }()
		<-enough
		p.stop(syscall.SIGKILL)
		all.Wait()
		client.CloseIdleConnections()
	}
	if living := giveCodes(o, users); living > 1 {
		t.Errorf("a grant has %d refresh tokens that work", living)
	}
	seen, lost, anew := 0, 0, 0
	for _, u := range users {
		seen, lost, anew = seen+u.seen, lost+u.lost, anew+u.anew
		for _, fault := range u.faults {
			t.Error(u.app.Kind, fault)
		}
	}
	t.Logf("%d answers, %d lost, %d grants begun anew", seen, lost, anew)
	if lost < kills || seen < 5*kills {
		t.Error("the kills met no load")
	}
}
