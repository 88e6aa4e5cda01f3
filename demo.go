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
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// demoPages are the demo's templates, by the names of their files.
var demoPages = sync.OnceValue(func() *template.Template {
	pages := template.New("").Funcs(template.FuncMap{
		"negative": func(amount int64) string { return groupedAmount(-amount) },
		"amount":   groupedAmount,
		"actions":  func(state string) []string { return demoActions[state] },
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
	Licenses []struct {
		Days int // until it ends
		license
	}
	Counters []demoCounter

	Plans []demoCall // which make the plans of a new file
	Docs  []demoCall // which make what a run needs, and what the lines of /docs act on

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
	base, page string // URLs of the service and of the page
	receiver   string // URL
	account    string // id
	yesterday  businessDate
	dir        string
	isNew      bool   // its file was made by this run
	widget     string // id
	line       string // of HTML that includes the widget's script
	token      string
	portal     string            // token of a portal, which makes codes to sign in
	app        appSecrets        // of the application that asks to act for the account
	examples   map[string]string // for the lines of /docs, as serverOptions has them
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
	log, err := newLogger(e.stderr, e.str("log"))
	if err != nil {
		return err
	}
	d := &demo{dir: e.str("dir"), examples: map[string]string{}}
	if d.dir == "" {
		if d.dir, err = os.MkdirTemp("", "widgetd-demo-"); err != nil {
			return err
		}
		defer os.RemoveAll(d.dir)
	} else if err := e.makeDir(d.dir); err != nil {
		return err
	}
	e.files = map[string]string{"db": filepath.Join(d.dir, optDB.def), "key": filepath.Join(d.dir, optKey.def)}
	for name := range e.files {
		if _, err := e.file(name); err != nil {
			return err
		}
	}
	listener, err := listen(e.str("addr"), e.getenv)
	if err != nil {
		return err
	}
	defer listener.Close()
	if host, _, _ := net.SplitHostPort(listener.Addr().String()); parseAddress(host).IsUnspecified() {
		return usageError("-addr must name one address, as 127.0.0.1:8080: the page and the curl lines contain it")
	}
	return d.run(e, listener, log)
}

// run runs the demo on a listener, with all that is beside its service, until the context ends.
func (d *demo) run(e *env, listener net.Listener, log *slog.Logger) error {
	beside, err := listenBeside(listener.Addr(), 4)
	for _, each := range beside {
		defer each.Close()
	}
	if err != nil {
		return err
	}
	at := func(l net.Listener) string { return "http://" + l.Addr().String() }
	d.base, d.page, d.receiver = at(listener)+"/v1", at(beside[0]), at(beside[1])+"/"
	d.cards = newDemoProvider(newStripeProvider(nil, stripeBase), at(beside[2]), d.page, e.now)
	d.ledger = newDemoLedger(at(beside[3]), d.base+"/books/callback/", e.now)
	keyFile := e.files["key"]
	if d.server, err = d.newServer(e, keyFile, log); err != nil {
		return err
	}
	s := d.server
	if err := d.prepareDocs(e.ctx); err != nil {
		return errors.Join(err, s.store.close())
	}
	for i, handler := range []http.Handler{
		http.NewCrossOriginProtection().Handler(d.pageHandler()),
		d.receiverHandler(e.stdout, e.now),
		d.cards.handler(),
		d.ledger.handler(),
	} {
		web := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout}
		go web.Serve(beside[i])
		defer web.Close()
	}
	fmt.Fprint(e.stdout, d.text())
	return s.serveUntil(e.ctx, listener, keyFile)
}

// newServer makes the demo's service, over its database and key file.
func (d *demo) newServer(e *env, keyFile string, log *slog.Logger) (*server, error) {
	usual, err := usualServerOptions(e.commands)
	if err != nil {
		return nil, err
	}
	st, keys, err := d.open(e.ctx, keyFile, e.now())
	if err != nil {
		return nil, err
	}
	usual.examples, usual.outboundAllow = d.examples, demoOutbound
	d.cards.paid = func(ctx context.Context, id string) error {
		return st.update(ctx, func(t *tx) error {
			t.lookAt(id)
			return nil
		})
	}
	phones := newDemoProvider(newVippsProvider(nil, "", e.now), d.cards.base, d.page, e.now)
	usual.providers = map[string]provider{providerStripe: d.cards, providerVipps: phones}
	usual.ledgers = map[string]ledger{productFortnox: d.ledger, productXero: d.ledger}
	usual.synchronised, usual.statusSocket = kernelSynchronised, socketPath(st.path)
	s, err := newServer(st, keys, usual, log, e.nouns)
	if err != nil {
		err = errors.Join(err, st.close())
	}
	return s, err
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

// listenBeside listens n times on the same host, each time on the next port, or on a free one if that is
// taken. With an error it returns those that it has opened.
func listenBeside(addr net.Addr, n int) (all []net.Listener, err error) {
	for range n {
		host, port, err := net.SplitHostPort(addr.String())
		if err != nil {
			return all, err
		}
		number, err := strconv.Atoi(port)
		if err != nil {
			return all, err
		}
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(number+1)))
		if err != nil {
			l, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
		}
		if err != nil {
			return all, err
		}
		all, addr = append(all, l), l.Addr()
	}
	return all, nil
}

// open opens the demo's database and key file, and creates and fills them when they don't
// exist. It adds tokens for this run: the secrets of an earlier run are stored only as hashes,
// so they can't be shown again.
func (d *demo) open(ctx context.Context, keyFile string, now time.Time) (*store, *keyring, error) {
	ring, err := newKeyring(now)
	if err == nil {
		err = ring.save(keyFile, false)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, nil, err
	}
	keys, err := loadKeyring(keyFile)
	if err != nil {
		return nil, nil, err
	}
	db := filepath.Join(d.dir, "widgetd.db")
	err = createStore(db, func(t *tx) error { return d.seed(t, keys) })
	d.isNew = err == nil
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, nil, err
	}
	st, err := openStore(db, storeOptions{})
	if err != nil {
		return nil, nil, err
	}
	if err := st.update(ctx, func(t *tx) error { return d.prepare(t, keys) }); err != nil {
		return nil, nil, errors.Join(err, st.close())
	}
	return st, keys, nil
}

// demoScopes are the scopes of the token that the demo prints.
var demoScopes = []string{
	scopeStats, scopeLeads, scopeWriteLeads, scopeLicenses, scopeIssuing, scopeDevices, scopeEvents,
	scopeWebhooks, scopeOrders, scopeSelling, scopeRevenue, scopeBooks, scopeApps,
}

const (
	demoAccount = "Trattoria Altstadt"
	demoWidget  = "Lunch menu, Altstadt"
)

// seed fills a new database: accounts, widgets with a month of events, licences
// with devices, leads, and a month of revenue.
func (d *demo) seed(t *tx, keys *keyring) error {
	t.setBaseURL(d.base)
	t.addAccount("Vendor", true)
	id := t.addAccount(demoAccount, false)
	for i, name := range []string{demoWidget, "Lunch menu, Bahnhof"} {
		widget, err := t.at(time.Duration(i)*time.Millisecond).addWidget(id, name, false, actorCommand)
		if err != nil {
			return err
		}
		seedMonth(t, widget, uint64(i))
	}
	if err := seedLicenses(t, id); err != nil {
		return err
	}
	past := &demoPast{account: id, page: d.page, random: rand.New(rand.NewPCG(16, 2026))}
	for i := range 12 {
		past.add(t.exact.Add(-time.Duration(11-i)*55*time.Hour), func(t *tx) error {
			_, err := t.addLead(lead{AccountID: id, Type: "newsletter", Email: fmt.Sprintf("guest%d@example.com", i+1),
				Source: new("footer"), Page: new("/lunch")})
			return err
		})
	}
	before := t.at(-days(demoDays + 2))
	if err := errors.Join(addOrigin(before, id, d.page, actorCommand), prepareOrders(before, id)); err != nil {
		return err
	}
	if err := past.addMonth(t, keys); err != nil {
		return err
	}
	if err := past.write(t); err != nil {
		return err
	}
	return t.end()
}

// at returns the same transaction with its time shifted, for data of the past.
func (t *tx) at(shift time.Duration) *tx {
	moved := *t
	moved.exact = t.exact.Add(shift)
	moved.now = newStamp(moved.exact)
	return &moved
}

// seedMonth fills a widget's counters for 30 days: most views around noon, fewer at weekends.
// The same seed gives the same numbers.
func seedMonth(t *tx, widget string, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 2026))
	dishes := demoDishes()
	for quarter := range 30 * 24 * 4 {
		then := t.at(-time.Duration(quarter) * quarterHour)
		views := int64(random.IntN(3))
		switch hour := then.now.Hour(); {
		case hour >= 10 && hour < 13:
			views += 6 + int64(random.IntN(18))
		case hour < 6:
			views = 0
		}
		if day := then.now.Weekday(); day == time.Saturday || day == time.Sunday {
			views /= 3
		}
		if views == 0 {
			continue
		}
		c := counts{Views: views, Visitors: (views + 1) / 2, Clicks: views / 3, Orders: views / 9}
		var items []nameCount
		if c.Clicks > 0 {
			items = []nameCount{{dishes[random.IntN(len(dishes))].Name, counts{Clicks: c.Clicks, Orders: c.Orders}}}
		}
		then.addCounts(widget, c, items, []nameCount{{"/", counts{Views: c.Views, Clicks: c.Clicks, Orders: c.Orders}}})
	}
}

// seedLicenses adds three licences, with three devices each: one that is active, one in grace
// and a trial that has expired.
func seedLicenses(t *tx, account string) error {
	for _, l := range demoData().Licenses {
		l.AccountID, l.ExpiresAt = account, t.now.after(days(l.Days))
		key, err := parseLicenseKey(newLicenseKey())
		if err != nil {
			return err
		}
		id, err := t.at(-days(90)).addLicense(&l.license, key, actorCommand)
		if err != nil {
			return err
		}
		for i := range 3 {
			seen, name := t.at(-time.Duration(i)*7*time.Hour), fmt.Sprint("Device ", i+1)
			addSampleDevice(seen, id, name, fmt.Sprint(id, " ", i), t.now.after(-days(80)))
		}
	}
	return nil
}

// addSampleDevice adds a device that was activated at a time and is seen now, and returns its id.
func addSampleDevice(t *tx, licenseID, name, fingerprint string, activated stamp) string {
	hash := fingerprintHash(fingerprint)
	d := &device{ID: t.newID("dev"), LicenseID: licenseID, Fingerprint: hash[:], Name: &name, State: deviceActive,
		ActivatedAt: activated, LastSeenAt: t.now, Activations: 1}
	deviceTable.insert(t, d)
	return d.ID
}

// prepare adds what this run needs: its base address, the page's origin, a licence and a token.
func (d *demo) prepare(t *tx, keys *keyring) error {
	if err := d.find(t); err != nil {
		return err
	}
	line, err := newSnippet(d.widget, d.base)
	if err != nil {
		return err
	}
	d.line = line.HTML
	t.setBaseURL(d.base)
	if err := addOrigin(t, d.account, d.page, actorCommand); err != nil {
		return err
	}
	if d.token, err = d.issue(t, keys, "demo", demoScopes...); err != nil {
		return err
	}
	if d.examples[exampleToken], err = d.issue(t, keys, "docs", demoScopes...); err != nil {
		return err
	}
	if d.examples[exampleAdmin], err = d.issue(t, keys, "docs", scopeAdmin); err != nil {
		return err
	}
	calendar, err := t.businessCalendar(d.account)
	if err != nil {
		return err
	}
	d.yesterday = midnight(calendar.dateOf(t.exact)).AddDate(0, 0, -1).Format(time.DateOnly)
	setBooksApp(t, keys, productFortnox, appSecrets{"demo", randomText(32)})
	return errors.Join(d.connectProvider(t, keys), prepareOrders(t, d.account),
		changeIssuer(t, d.account, true, actorCommand), d.prepareApp(t, keys))
}

// find sets the ids of the account and of the widget that seed has added.
func (d *demo) find(t *tx) error {
	accounts, err := t.accountsNamed(demoAccount)
	if err != nil {
		return err
	}
	for _, a := range accounts {
		d.account = a.ID
	}
	widgets, err := t.widgets(ownedBy(d.account))
	for _, w := range widgets {
		if w.Name == demoWidget {
			d.widget = w.ID
		}
	}
	if err != nil || d.widget == "" {
		const text = "%s holds a database that the demo did not create: name another -dir"
		return errors.Join(err, fmt.Errorf(text, d.dir))
	}
	return nil
}

// issue makes a token of the account that is valid for 30 days.
func (d *demo) issue(t *tx, keys *keyring, client string, scopes ...string) (token string, err error) {
	row := tokenRow{AccountID: d.account, ClientID: client, Scope: strings.Join(scopes, " ")}
	token, _, err = issueToken(t, keys, row, days(30))
	return token, err
}

// appNamed returns the application with the account and the name of p: that of an earlier run, or p, which it
// then adds.
func (d *demo) appNamed(t *tx, p *app) (*app, error) {
	known, err := t.apps(ownedBy(p.AccountID), "", maxApps)
	if err != nil {
		return nil, err
	}
	for _, k := range known.rows {
		if k.Name == p.Name {
			return k, nil
		}
	}
	p.ID, p.HomePage, p.Kind, p.MadeBy = t.newID("app"), d.page, appWeb, actorCommand
	p.CreatedAt, p.UpdatedAt = t.now, t.now
	t.addApp(p)
	return p, nil
}

// docsPath is where the receiver accepts webhooks and prints nothing.
const docsPath = "quiet"

// receiverHandler receives the demo's webhooks, verifies them and prints a line of each.
func (d *demo) receiverHandler(out io.Writer, now func() time.Time) http.Handler {
	mux := http.NewServeMux()
	secret, _ := parseWebhookSecret(d.examples["webhook_secret"]) // the service has made it
	mux.Handle("/{$}", &webhookReceiver{secret: secret, status: http.StatusNoContent,
		out: lineWriter{out}, now: now})
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
	page := strings.NewReplacer("{{base}}", d.base, "{{page}}", d.page, "{{widget}}", d.widget,
		"{{snippet}}", d.line).Replace(embedded("web/demo.html"))
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

// text returns what the demo prints: its addresses, and lines to paste into a shell.
func (d *demo) text() string {
	return strings.NewReplacer("{base}", d.base, "{page}", d.page,
		"{key}", d.examples["license_key"], "{widget}", d.widget,
		"{offlineKey}", d.examples["offline_key"],
		"{token}", d.token, "{receiver}", d.receiver, "{provider}", d.cards.base, "{ledger}", d.ledger.base,
		"{account}", d.account,
		"{webhook}", d.examples["webhook"], "{yesterday}", d.yesterday, "{db}", filepath.Join(d.dir, "widgetd.db"),
		"{root}", strings.TrimSuffix(d.base, "/v1"), "{json}", "-H 'Content-Type: application/json'",
	).Replace(embedded("web/demo.txt"))
}
