package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// demoPages are the demo's templates, by the names of their files.
var demoPages = sync.OnceValue(func() *template.Template {
	pages := template.New("").Funcs(template.FuncMap{
		"negative": func(amount int64) string { return groupedAmount(-amount) },
		"amount":   groupedAmount,
		"actions":  actionsOf,
		"state":    func(state orderState) string { return demoStates[state] },
		"number":   shortNumber,
		"local":    func(at stamp) string { return at.In(shownZone(demoZone)).Format("2 January, 15:04") },
		"day":      func(date businessDate) string { return midnight(date).Format("Monday, 2 January 2006") },
		"rate":     formatRate,
		"style":    func() template.CSS { return template.CSS(pageStyle()) },
	})
	for _, name := range []string{"demo_books.html", "demo_connect.html", "demo_newsletter.html", "demo_orders.html",
		"demo_pay.html"} {
		template.Must(pages.New(name).Parse(embedded("web/" + name)))
	}
	return pages
})

// groupedAmount returns an amount with commas between its thousands: "1,234.50".
func groupedAmount(amount int64) string {
	whole, cents, _ := strings.Cut(formatSigned(amount), ".")
	return groupDigits(whole, ",") + "." + cents
}

// showDemo sends a page of demoPages, which is told what it shows.
func showDemo(w http.ResponseWriter, status int, page string, shown any) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	demoPages().ExecuteTemplate(w, page, shown) // fails only when the client has gone
}

// demoData returns what is in web/demo.json: what the demo begins with, and what the books of its restaurant report
// about themselves, at Fortnox in Sweden, with a part of the chart of accounts BAS.
var demoData = sync.OnceValue(func() (data struct {
	Past     []demoCall // which make what a new file has, beside its orders
	Counters []demoCounter
	Docs     []demoCall // which make what a run needs, and what the lines of /docs act on
	Sent     []demoCall // … at last, of what is sent to the books

	Fortnox bookChart
}) {
	if err := json.Unmarshal([]byte(embedded("web/demo.json")), &data); err != nil {
		panic(err)
	}
	return data
})

// A demo holds what the demo command runs and prints: a service with data, a partner's page and a
// receiver of webhooks on other ports, and the values in the curl lines.
type demo struct {
	base, page string            // URLs of the service and of the page
	account    string            // id
	token      string            // of the account
	app        appSecrets        // of the application that asks to act for the account
	examples   map[string]string // for the lines of /docs, as serverOptions has them, and for the texts of the demo
	yesterday  businessDate
	dir        string
	clock      func() time.Time
	past       time.Time // what its clock shows while a new file is filled; else zero
	keys       *keyring
	server     *server
	cards      *demoProvider
	ledger     *demoLedger
}

var optDir = option{name: "dir", value: "DIR",
	help: "directory for the demo's files, which are kept; by default a temporary one"}

var demoCommands = []command{
	{"demo", "", "run a service with sample data, serve a page that uses it, and print curl lines to paste",
		[]option{
			optAddr.says("where to listen; the page and a receiver of webhooks take the next ports"), optDir, optLog,
		}, demoCommand},
}

// demoCommand runs a service with sample data until the context ends. Without -dir it then
// removes its files.
func demoCommand(e *env) error {
	log, err := newLogger(e.stderr, e.str("log"), isJournal(e.stderr, e.getenv))
	if err != nil {
		return err
	}
	d := &demo{dir: e.str("dir"), clock: e.now}
	if d.dir == "" {
		if d.dir, err = os.MkdirTemp("", "widgetd-demo-"); err != nil {
			return err
		}
		defer os.RemoveAll(d.dir)
	} else if d.dir, err = filepath.Abs(d.dir); err != nil {
		return err
	} else if err := e.makeDir(d.dir); err != nil {
		return err
	}
	e.files = map[string]string{"db": filepath.Join(d.dir, optDB.def), "key": filepath.Join(d.dir, optKey.def)}
	for name := range e.files {
		if _, err := e.file(name); err != nil {
			return err
		}
	}
	listener, err := e.listen()
	if err != nil {
		return err
	}
	defer listener.Close()
	addr, _ := listener.Addr().(*net.TCPAddr)
	if addr == nil || addr.IP.IsUnspecified() {
		return usageError("-addr must name one address, as 127.0.0.1:8080: the page and the curl lines contain it")
	}
	beside, err := listenBeside(addr, 4)
	for _, each := range beside {
		defer each.Close()
	}
	if err != nil {
		return err
	}
	return d.run(e, listener, beside, log)
}

// place notes the addresses of the service, of the page, of the receiver of webhooks, of the provider and of the books.
func (d *demo) place(root, page, receiver, provider, books, database string) {
	d.base, d.page = root+"/v1", page
	d.cards = newDemoProvider(newStripeProvider(nil, stripeBase), provider, d.page, d.now)
	d.ledger = newDemoLedger(books, d.base+"/books/callback/", d.now)
	d.examples = map[string]string{"root": root, "base": d.base, "Origin": d.page, "return_url": d.page + "/thanks",
		"receiver": receiver + "/", "url": receiver + "/" + docsPath, "test_provider": provider, "test_books": books,
		"database": shellWord(database), "moment": d.clock().Format(time.DateTime),
		"widgetd": fmt.Sprintf("%s -db %s -key %s", ownCommand(), shellWord(database),
			shellWord(filepath.Join(d.dir, optKey.def)))}
}

// ownCommand returns what runs this program in a shell: its path, or 'go run .' where go has built it for one run.
func ownCommand() string {
	program, err := os.Executable()
	if err != nil || strings.Contains(program, string(filepath.Separator)+"go-build") {
		return "go run ."
	}
	return shellWord(program)
}

// run runs the demo on a listener, and what is beside its service on others, until the context ends.
func (d *demo) run(e *env, listener net.Listener, beside []net.Listener, log *slog.Logger) error {
	at := func(l net.Listener) string { return "http://" + l.Addr().String() }
	d.place(at(listener), at(beside[0]), at(beside[1]), at(beside[2]), at(beside[3]), e.files["db"])
	err := d.makeFiles(e, log)
	if err == nil {
		err = d.open(e, log)
	}
	if err != nil {
		return err
	}
	for i, handler := range []http.Handler{
		http.NewCrossOriginProtection().Handler(d.pageHandler()),
		d.receiverHandler(e.stdout),
		d.cards.handler(),
		d.ledger.handler(),
	} {
		web := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout}
		go web.Serve(beside[i])
		defer web.Close()
	}
	d.filler().WriteString(e.stdout, embedded("web/demo.txt"))
	return d.server.serveUntil(e.ctx, listener, e.files["key"])
}

// now is the clock of the demo: while a new file is filled, that of what is done there.
func (d *demo) now() time.Time {
	if !d.past.IsZero() {
		return d.past
	}
	return d.clock()
}

// makeFiles makes the demo's key file and its database, with a past, unless they exist, and loads the keys.
func (d *demo) makeFiles(e *env, log *slog.Logger) error {
	ring, err := newKeyring(e.now())
	if err == nil {
		err = except(ring.save(e.files["key"], false), fs.ErrExist)
	}
	if err == nil {
		d.keys, err = loadKeyring(e.files["key"])
	}
	if err != nil {
		return err
	}
	d.past = e.now().Add(-demoPast)
	err = draftStore(e.files["db"], storeOptions{now: d.now, unsynced: true}, func(st *store) error {
		if err := st.update(e.ctx, d.seed); err != nil {
			return err
		}
		return d.replayPast(e, st, log)
	})
	d.past = time.Time{}
	return except(err, fs.ErrExist)
}

// open makes the service over the demo's files. It adds tokens for this run: the secrets of an earlier run are stored
// only as hashes, so they can't be shown again.
func (d *demo) open(e *env, log *slog.Logger) error {
	st, err := openStore(e.files["db"], storeOptions{now: d.now})
	if err != nil {
		return err
	}
	if err = d.newServer(e, st, log); err == nil {
		err = d.prepareDocs(e.ctx)
	}
	if err != nil {
		return errors.Join(err, st.close())
	}
	return nil
}

// newServer makes the service of this run over a store.
func (d *demo) newServer(e *env, st *store, log *slog.Logger) error {
	usual, err := usualServerOptions(e.commands)
	if err == nil {
		err = st.update(e.ctx, d.prepare)
	}
	if err != nil {
		return err
	}
	d.cards.store = st
	d.cards.paid = func(ctx context.Context, id string) error {
		return st.update(ctx, func(t *tx) error {
			t.pollPayment(id)
			return nil
		})
	}
	usual.examples, usual.outboundAllow = d.examples, demoOutbound
	usual.providers = map[string]provider{providerStripe: d.cards, providerVipps: d.cards}
	usual.ledgers = map[string]ledger{productFortnox: d.ledger, productXero: d.ledger}
	usual.synchronised, usual.statusSocket = kernelSynchronised, socketPath(st.path)
	if d.server, err = newServer(st, d.keys, usual, log, e.nouns); err != nil {
		return err
	}
	d.server.monotonic = d.now
	d.server.startClock()
	return nil
}

// demoOutbound is what a demo's service may call: this machine, where its receiver is, and public addresses.
var demoOutbound = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// usualServerOptions returns the options of serve with their default values.
func usualServerOptions(all []command) (serverOptions, error) {
	serve, _ := findCommand(all, []string{"serve"})
	e := &env{command: serve, getenv: func(string) string { return "" }}
	if err := e.parse(nil); err != nil {
		return serverOptions{}, err
	}
	return e.readServerOptions()
}

// listenBeside listens n times on the same host, on the next ports, or on free ones where those are taken. With an
// error it returns those that it has opened.
func listenBeside(addr *net.TCPAddr, n int) (all []net.Listener, err error) {
	for i := range n {
		next := net.TCPAddr{IP: addr.IP, Zone: addr.Zone, Port: addr.Port + 1 + i}
		l, err := net.ListenTCP("tcp", &next)
		if err != nil {
			next.Port = 0
			l, err = net.ListenTCP("tcp", &next)
		}
		if err != nil {
			return all, err
		}
		all = append(all, l)
	}
	return all, nil
}

// demoScopes are the scopes of the token that the demo prints.
const demoScopes = scopeStats + " " + scopeLeads + " " + scopeWriteLeads + " " + scopeLicenses + " " + scopeIssuing +
	" " + scopeDevices + " " + scopeEvents + " " + scopeWebhooks + " " + scopeOrders + " " + scopeSelling +
	" " + scopeRevenue + " " + scopeBooks + " " + scopeApps

const (
	demoAccount = "Trattoria Altstadt"
	demoWidget  = "Lunch menu, Altstadt"
	demoZone    = "Europe/Zurich"
)

// seed adds to a new database what no call of a route does: accounts, and widgets with a month of events.
func (d *demo) seed(t *tx) error {
	t.addAccount("Vendor", true)
	id := t.addAccount(demoAccount, false)
	for i, name := range []string{demoWidget, "Lunch menu, Bahnhof"} {
		widget, err := t.addWidget(id, name, false, actorCommand)
		if err != nil {
			return err
		}
		seedMonth(t, widget, d.clock(), uint64(i))
	}
	return errors.Join(changeIssuer(t, id, true, actorCommand),
		changeSettings(t, nouns(), id, func(s *accountSettings) {
			s.Zone, s.LegalName = demoZone, new("Trattoria Altstadt GmbH")
			s.Address, s.VATNumber = new("Hauptgasse 12\n4500 Solothurn"), new("CHE-123.456.789 MWST")
		}, actorCommand))
}

// seedMonth fills a widget's counters for the 30 days before a time: most views around noon, fewer at weekends.
// The same seed gives the same numbers.
func seedMonth(t *tx, widget string, until time.Time, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 2026))
	dishes := demoDishes()
	for quarter := range 30 * 24 * 4 {
		then := *t
		then.now = newStamp(until.Add(-time.Duration(quarter) * quarterHour))
		views := 1 + random.Int64N(3)
		if hour := then.now.Hour(); hour >= 10 && hour < 13 {
			views += 6 + random.Int64N(18)
		} else if hour < 6 {
			continue
		}
		if day := then.now.Weekday(); day == time.Saturday || day == time.Sunday {
			views = (views + 2) / 3
		}
		c := counts{Views: views, Visitors: (views + 1) / 2, Clicks: views / 3, Orders: views / 9}
		ordered := counts{Clicks: c.Clicks, Orders: c.Orders}
		then.addCounts(widget, c, []nameCount{{dishes[random.IntN(len(dishes))].Name, ordered}},
			[]nameCount{{"/", counts{Views: c.Views, Clicks: c.Clicks, Orders: c.Orders}}})
	}
}

// prepare adds what this run needs: its base address, the page's origin, tokens, and what it is connected with.
func (d *demo) prepare(t *tx) error {
	t.setBaseURL(d.base)
	widget, err := d.find(t)
	if err != nil {
		return err
	}
	main, err := t.mainAccount()
	if err != nil {
		return err
	}
	for name, row := range map[string]tokenRow{
		exampleToken:  {AccountID: d.account, ClientID: "demo", Scope: demoScopes},
		exampleAdmin:  {AccountID: d.account, ClientID: "demo", Scope: scopeAdmin},
		examplePortal: {AccountID: main, ClientID: "demo-portal", Scope: scopeConsent, AllAccounts: true},
	} {
		if d.examples[name], _, err = issueToken(t, d.keys, row, days(365)); err != nil {
			return err
		}
	}
	calendar, err := t.businessCalendar(d.account)
	if err != nil {
		return err
	}
	line, err := newSnippet(widget, d.base)
	if err != nil {
		return err
	}
	d.token, d.yesterday = d.examples[exampleToken], dateBefore(calendar.dateOf(d.clock()))
	maps.Copy(d.examples, map[string]string{"account_id": d.account, "/accounts/{id}/signin": d.account,
		"widget": widget, "snippet": line.HTML, "reference": t.newID("R"), "yesterday": d.yesterday,
		"today": calendar.dateOf(d.clock()), "date": dateBefore(d.yesterday), "since": t.now.after(-days(1)).String()})
	setBooksApp(t, d.keys, productFortnox, appSecrets{"demo", randomText(32)})
	return errors.Join(addOrigin(t, d.account, d.page, actorCommand), d.connectProvider(t))
}

// find sets the id of the account that seed has added, and returns that of its widget.
func (d *demo) find(t *tx) (widget string, err error) {
	accounts, err := t.idsNamed(demoAccount)
	if err != nil {
		return "", err
	}
	for _, id := range accounts {
		d.account = id
	}
	widgets, err := t.widgets(ownedBy(d.account))
	for _, w := range widgets {
		if w.Name == demoWidget {
			widget = w.ID
		}
	}
	if err == nil && widget == "" {
		err = fmt.Errorf("%s holds a database that the demo did not create: name another -dir", d.dir)
	}
	return widget, err
}

// docsPath is where the receiver accepts webhooks and prints nothing.
const docsPath = "quiet"

// receiverHandler receives the demo's webhooks, verifies them and prints a line of each.
func (d *demo) receiverHandler(out io.Writer) http.Handler {
	mux := http.NewServeMux()
	secret, _ := parseWebhookSecret(d.examples["webhook_secret"]) // the service has made it
	mux.Handle("/{$}", &webhookReceiver{secret: secret, status: http.StatusNoContent,
		out: lineWriter{out}, now: d.now})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { // no webhook was refused
		io.WriteString(w, "This receives webhooks: post to it. What comes is printed where the demo runs.\n")
	})
	mux.HandleFunc("POST /"+docsPath, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

// A lineWriter writes what a webhookReceiver prints of a request as one line: its time, type and id, and the result.
type lineWriter struct{ out io.Writer }

// Write writes one request.
func (l lineWriter) Write(block []byte) (int, error) {
	lines := strings.SplitN(string(block), "\n", 3)
	_, err := fmt.Fprintf(l.out, "webhook: %s\n", strings.Join(lines[:min(2, len(lines))], "  "))
	return len(block), err
}

// pageHandler serves the partner's page, and takes the forms that a browser submits by itself.
func (d *demo) pageHandler() http.Handler {
	page := d.filler().Replace(embedded("web/demo.html"))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		host, port, _ := net.SplitHostPort(r.Host)
		if host == "localhost" && strings.HasSuffix(d.page, "127.0.0.1:"+port) {
			// There the page would have an origin that the account does not list.
			http.Redirect(w, r, d.page, http.StatusTemporaryRedirect)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		io.WriteString(w, page)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		showText(w, http.StatusNotFound, "There is nothing at this address", "The menu is a page of this site.")
	})
	d.handleOrders(mux)
	d.handleConnect(mux)
	mux.HandleFunc("POST /newsletter", func(w http.ResponseWriter, _ *http.Request) {
		showDemo(w, http.StatusOK, "demo_newsletter.html", nil)
	})
	return mux
}

// movedByCard has what was captured, given back and disputed of all payments.
const movedByCard = `WITH moved (id, category, amount, source, payment_id, at) AS (
		SELECT id, 'payment', captured, '', id, captured_at FROM payments
		UNION ALL SELECT id, 'refund', -amount, provider_id, payment_id, created_at FROM refunds
			WHERE state = 'succeeded' AND payment_id IS NOT NULL
		UNION ALL SELECT payment_id || '/' || id, 'dispute', -taken, id, payment_id, opened_at FROM disputes) `

// notPaidOut returns what was captured, given back and disputed of an account's payments before a time and is in no
// payout that arrives by a date, as rows of the provider's ledger, without fees.
func (q *queries) notPaidOut(accountID string, before stamp, arrived businessDate) (rows []ledgerRow, err error) {
	err = q.each(movedByCard+`SELECT m.id, m.category, m.category, m.amount, coalesce(m.source, ''), m.payment_id, m.at,
			y.currency
		FROM moved m JOIN payments y ON y.id = m.payment_id
		WHERE y.account_id = ? AND m.amount <> 0 AND m.at < ? AND NOT EXISTS (
			SELECT 1 FROM payout_items i JOIN payouts p ON p.id = i.payout_id
			WHERE i.payment_id = m.payment_id AND i.id = m.id AND p.arrival_date <= ?)
		ORDER BY m.id`, []any{accountID, before, arrived}, func(scan func(...any) error) error {
		var r ledgerRow
		var at stamp
		err := scan(&r.id, &r.category, &r.kind, &r.amount, &r.source, &r.paymentID, &at, &r.currency)
		r.at = at.Time
		rows = append(rows, r)
		return err
	})
	return rows, err
}
