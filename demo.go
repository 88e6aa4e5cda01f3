package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed web/demo.html
var demoHTML string

// A demo holds what the demo command runs and prints: a service with data, a partner's page and a
// receiver of webhooks on other ports, and the values in the curl lines.
type demo struct {
	base, page string // URLs of the service and of the page
	receiver   string // URL
	provider   string // URL of the test provider, without a slash at its end
	account    string // id
	yesterday  businessDate
	dir        string
	widget     string // id
	line       string // of HTML that includes the widget's script
	key        string // of a licence with two free seats
	token      string
	portal     string            // token of a portal, which makes codes to sign in
	app        appSecrets        // of the application that asks to act for the account
	webhook    string            // id
	secret     []byte            // of the webhook
	examples   map[string]string // for the lines of /docs, as serverOptions has them
}

// The options of these commands.
var (
	optDir = option{name: "dir", value: "DIR",
		help: "directory for the demo's files, which are kept; by default a temporary one"}
)

var demoCommands = []command{
	{"demo", "", "run a service with sample data, serve a page that uses it, and print curl lines to paste",
		[]option{
			optAddr.says("where to listen; the page and a receiver of webhooks take the next ports"),
			optDir,
			optLog,
		}, 0, demoCommand},
}

// demoCommand runs a service with sample data until the context ends. Without -dir it then
// removes its files.
func demoCommand(e *env) error {
	log, err := newLogger(e.stderr, e.str("log"))
	if err != nil {
		return err
	}
	d := &demo{dir: e.str("dir")}
	if d.dir == "" {
		if d.dir, err = os.MkdirTemp("", "widgetd-demo-"); err != nil {
			return err
		}
		defer os.RemoveAll(d.dir)
	} else if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	listener, err := listen(e.str("addr"), e.getenv)
	if err != nil {
		return err
	}
	defer listener.Close()
	if host, _, _ := net.SplitHostPort(listener.Addr().String()); parseAddress(host).IsUnspecified() {
		return usageError("-addr must name one address, as 127.0.0.1:8080: the page and the curl lines contain it")
	}
	beside, err := listenBeside(listener.Addr(), 3)
	for _, each := range beside {
		defer each.Close()
	}
	if err != nil {
		return err
	}
	at := func(l net.Listener) string { return "http://" + l.Addr().String() }
	d.base, d.page, d.receiver, d.provider = at(listener)+"/v1", at(beside[0]), at(beside[1])+"/", at(beside[2])

	keyFile := filepath.Join(d.dir, "widgetd.key")
	s, err := d.newServer(e, keyFile, log)
	if err != nil {
		return err
	}
	provider := newTestProvider(s.outbound, d.provider, e.now)
	defer provider.close()
	for i, handler := range []http.Handler{
		http.NewCrossOriginProtection().Handler(d.pageHandler(s)),
		d.receiverHandler(e.stdout, e.now),
		provider.handler(),
	} {
		web := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout}
		go web.Serve(beside[i])
		defer web.Close()
	}
	err = d.connectProvider(e.ctx, s)
	if err == nil {
		err = d.prepareDocsOrders(e.ctx, s, provider)
	}
	if err != nil {
		return errors.Join(err, s.store.close())
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
	usual.examples, usual.outboundAllow, usual.stripeURL = d.examples, demoOutbound, d.provider
	usual.synchronised = kernelSynchronised
	s, err := newServer(st, keys, usual, log, e.nouns)
	if err != nil {
		return nil, errors.Join(err, st.close())
	}
	return s, nil
}

// demoOutbound is what a demo's service may call: this machine, where its receiver is, and public
// addresses.
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
// exist. It adds a licence and a token for this run: the secrets of an earlier run are stored
// only as hashes, so they can't be shown again.
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
	scopeStats, scopeLeads, scopeErase, scopeLicenses, scopeDevices, scopeEvents, scopeWebhooks,
	scopeOrders, scopeSelling, scopeRevenue, scopeBooks, scopeApps,
}

const (
	demoAccount = "Trattoria Altstadt"
	demoWidget  = "Lunch menu, Altstadt"
)

// seed fills a new database: accounts, widgets with a month of events, licences
// with devices, leads, and a month of revenue.
func (d *demo) seed(t *tx, keys *keyring) error {
	if err := t.setBaseURL(d.base); err != nil {
		return err
	}
	if _, err := t.addAccount("Vendor", true); err != nil {
		return err
	}
	id, err := t.addAccount(demoAccount, false)
	if err != nil {
		return err
	}
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
	source, page := "footer", "/lunch"
	for i := range 12 {
		past.add(t.exact.Add(-time.Duration(11-i)*55*time.Hour), func(t *tx) error {
			_, err := t.addLead(lead{
				AccountID: id,
				Type:      "newsletter",
				Email:     fmt.Sprintf("guest%d@example.com", i+1),
				Source:    &source,
				Page:      &page,
			})
			return err
		})
	}
	before := t.at(-days(demoDays + 2))
	if err := errors.Join(before.addOrigin(id, d.page), prepareOrders(before, id)); err != nil {
		return err
	}
	if err := past.addMonth(t, keys); err != nil {
		return err
	}
	if err := past.write(t); err != nil {
		return err
	}
	return bookAll(t)
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
	dishes := []string{"Pizza Margherita", "Risotto ai funghi", "Insalata mista", "Tiramisù"}
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
			dish := dishes[random.IntN(len(dishes))]
			items = []nameCount{{dish, counts{Clicks: c.Clicks, Orders: c.Orders}}}
		}
		then.addCounts(widget, c, items, []nameCount{{"/", counts{Views: c.Views, Clicks: c.Clicks, Orders: c.Orders}}})
	}
}

// seedLicenses adds three licences, with three devices each: one that is active, one in grace
// and a trial that has expired.
func seedLicenses(t *tx, account string) error {
	pro, seats := "pro", 5
	for _, l := range []*license{
		{
			AccountID:    account,
			Product:      "kitchen-display",
			Plan:         &pro,
			MaxDevices:   &seats,
			Entitlements: codeList{"kds", "reports"},
			ExpiresAt:    t.now.after(days(200)),
			GraceDays:    14,
		},
		{AccountID: account, Product: "menu-board", ExpiresAt: t.now.after(-days(3)), GraceDays: 7},
		{AccountID: account, Product: "courier-app", Trial: true, ExpiresAt: t.now.after(-days(20))},
	} {
		key, err := parseLicenseKey(newLicenseKey())
		if err != nil {
			return err
		}
		id, err := t.at(-days(90)).addLicense(l, key, actorCommand)
		if err != nil {
			return err
		}
		for i := range 3 {
			hash, name := fingerprintHash(fmt.Sprintf("%s %d", id, i)), fmt.Sprintf("Device %d", i+1)
			seen := t.at(-time.Duration(i) * 7 * time.Hour)
			err := seen.saveDevice(&device{
				ID:          seen.newID("dev"),
				LicenseID:   id,
				Fingerprint: hash[:],
				Name:        &name,
				State:       deviceActive,
				ActivatedAt: t.now.after(-days(80)),
				LastSeenAt:  seen.now,
				Activations: 1,
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// prepare adds what this run needs: its base address, the page's origin, a licence and a token.
func (d *demo) prepare(t *tx, keys *keyring) error {
	accounts, err := t.accounts()
	if err != nil {
		return err
	}
	id := ""
	for _, a := range accounts {
		if a.Name == demoAccount {
			id = a.ID
		}
	}
	widgets, err := t.widgets(ownedBy(id))
	for _, w := range widgets {
		if w.Name == demoWidget {
			d.widget = w.ID
		}
	}
	if err != nil || id == "" || d.widget == "" {
		const text = "%s holds a database that the demo did not create: name another -dir"
		return errors.Join(err, fmt.Errorf(text, d.dir))
	}
	line, err := newSnippet(d.widget, d.base)
	if err != nil {
		return err
	}
	d.line = line.HTML
	if err := d.moveHere(t, id); err != nil {
		return err
	}
	d.account = id
	seats := 2
	d.key = newLicenseKey()
	key, err := parseLicenseKey(d.key)
	if err != nil {
		return err
	}
	_, err = t.addLicense(&license{
		AccountID:    id,
		Product:      "kitchen-display",
		MaxDevices:   &seats,
		Entitlements: codeList{"kds"},
	}, key, actorCommand)
	if err != nil {
		return err
	}
	token := tokenRow{AccountID: id, ClientID: "demo", Scope: strings.Join(demoScopes, " ")}
	if d.token, _, err = issueToken(t, keys, token, days(30)); err != nil {
		return err
	}
	if err := d.prepareWebhook(t, keys, id); err != nil {
		return err
	}
	calendar, err := t.businessCalendar(id)
	if err != nil {
		return err
	}
	d.yesterday = midnight(calendar.dateOf(t.exact)).AddDate(0, 0, -1).Format(time.DateOnly)
	return errors.Join(prepareOrders(t, id), d.prepareDocs(t, keys, id), d.prepareDocsWebhooks(t, id),
		d.prepareApp(t, keys))
}

// moveHere gives the service the addresses of this run.
func (d *demo) moveHere(t *tx, account string) error {
	if err := t.setBaseURL(d.base); err != nil {
		return err
	}
	return t.addOrigin(account, d.page)
}

// The descriptions of the demo's webhooks, by which the next run with the same -dir finds them.
const (
	demoWebhook    = "Prints what it gets in the terminal of the demo"
	docsWebhook    = "For the lines of /docs"
	docsThrowaway  = "For the lines of /docs that change and remove one"
	docsApp        = "Kitchen printer"
	docsRemovedApp = "Menu board"
)

// demoTypes are the events that the terminal of the demo shows.
var demoTypes = codeList{
	"lead.created", "license.created", "device.activated", "device.reactivated", "device.released",
}

// demoAuthor is who changes the demo's webhooks.
var demoAuthor = webhookAuthor{actor: actorCommand, has: func(string) bool { return true }}

// prepareWebhook adds the webhook whose events the terminal shows, or reuses that of an earlier run. The test that
// the service sends once it runs enables it.
func (d *demo) prepareWebhook(t *tx, keys *keyring, account string) error {
	w, err := findWebhook(t, account, demoWebhook)
	if errors.Is(err, errWebhook) {
		w = &webhook{AccountID: account, URL: d.receiver, Types: demoTypes}
		w.Description = nilIfEmpty(demoWebhook)
		err = createWebhook(t, w, demoAuthor)
	} else if err == nil {
		_, err = patchWebhook(t, ownedBy(account), w.ID, webhookChange{url: d.receiver}, demoAuthor)
	}
	if err != nil {
		return err
	}
	d.webhook, d.secret = w.ID, webhookSecret(keys, w.ID, w.SecretNumber)
	_, err = enableWebhook(t, ownedBy(account), w.ID, demoAuthor)
	return err
}

// findWebhook returns the webhook of an account with a description, or errWebhook.
func findWebhook(t *tx, account, description string) (*webhook, error) {
	page, err := t.webhooks(ownedBy(account), "", maxWebhooks)
	if err != nil {
		return nil, err
	}
	for _, w := range page.rows {
		if w.Description != nil && *w.Description == description {
			return w, nil
		}
	}
	return nil, errWebhook
}

// prepareDocs adds what the lines of /docs act on: a separate licence for each call whose change would make
// another call fail, a device, and tokens.
func (d *demo) prepareDocs(t *tx, keys *keyring, account string) error {
	add := func(id *string, state string) error {
		key, err := parseLicenseKey(newLicenseKey())
		if err != nil {
			return err
		}
		year := 365
		*id, err = t.addLicense(&license{
			AccountID:    account,
			Product:      "kitchen-display",
			State:        state,
			ExpiresAt:    t.now.after(days(year)),
			DurationDays: &year,
		}, key, actorCommand)
		return err
	}
	var usual, renewable, suspended, suspendable, revocable string
	err := errors.Join(add(&usual, ""), add(&renewable, ""), add(&suspended, statusSuspended), add(&suspendable, ""),
		add(&revocable, ""))
	if err != nil {
		return err
	}
	hash, name, dev := fingerprintHash("docs"), "Kitchen 2", t.newID("dev")
	err = t.saveDevice(&device{
		ID:          dev,
		LicenseID:   usual,
		Fingerprint: hash[:],
		Name:        &name,
		State:       deviceActive,
		ActivatedAt: t.now,
		LastSeenAt:  t.now,
		Activations: 1,
	})
	if err != nil {
		return err
	}
	d.examples = map[string]string{
		"license_key":              d.key,
		"widget":                   d.widget,
		"Origin":                   d.page,
		"account_id":               account,
		"device_id":                dev,
		"/licenses/{id}":           usual,
		"/licenses/{id}/renew":     renewable,
		"/licenses/{id}/reinstate": suspended,
		"/licenses/{id}/suspend":   suspendable,
		"/licenses/{id}/revoke":    revocable,
	}
	for name, scopes := range map[string][]string{
		exampleToken: demoScopes,
		exampleAdmin: {scopeAdmin},
	} {
		row := tokenRow{AccountID: account, ClientID: "docs", Scope: strings.Join(scopes, " ")}
		if d.examples[name], _, err = issueToken(t, keys, row, days(30)); err != nil {
			return err
		}
	}
	return nil
}

// prepareDocsWebhooks adds the webhooks that the lines of /docs act on, or reuses those of an earlier run: an
// enabled one with a delivery, and one to be changed and removed. No test is sent to them, and the receiver prints
// nothing of what they get.
func (d *demo) prepareDocsWebhooks(t *tx, account string) error {
	ids := map[string]string{}
	for description, state := range map[string]string{
		docsWebhook:   webhookEnabled,
		docsThrowaway: webhookPending,
	} {
		w, err := findWebhook(t, account, description)
		if errors.Is(err, errWebhook) {
			w = &webhook{
				ID:           t.newID("whe"),
				AccountID:    account,
				URL:          d.receiver,
				Types:        codeList{"license.created"},
				Description:  &description,
				State:        webhookPending,
				SecretNumber: 1,
				MadeBy:       actorCommand,
				CreatedAt:    t.now,
				UpdatedAt:    t.now,
			}
			err = t.addWebhook(w)
		}
		if err != nil {
			return err
		}
		w.URL, w.State, w.Reason = d.receiver+docsPath, state, nil
		if err := t.saveWebhook(w); err != nil {
			return err
		}
		ids[description] = w.ID
	}
	for _, path := range []string{
		"/test", "/enable", "/rotate-secret", "/replay", "/deliveries", "/deliveries/{delivery}/retry",
	} {
		d.examples["/webhooks/{id}"+path] = ids[docsWebhook]
	}
	d.examples["/webhooks/{id}"] = ids[docsThrowaway]
	d.examples["url"] = d.receiver + docsPath
	d.examples["since"] = t.now.after(-days(1)).String()
	var err error
	if d.examples["delivery"], err = addFailure(t, ids[docsWebhook]); err != nil {
		return err
	}
	return d.prepareDocsApps(t, account)
}

// prepareDocsApps adds the applications that the lines of /docs act on, or reuses those of an earlier run: one
// that is kept, with a grant to be ended, and one to be changed and removed.
func (d *demo) prepareDocsApps(t *tx, account string) error {
	known, err := t.apps(ownedBy(account), "", maxApps)
	if err != nil {
		return err
	}
	for path, name := range map[string]string{"/apps/{id}/rotate-secret": docsApp, "/apps/{id}": docsRemovedApp} {
		p := &app{AccountID: account, Name: name, HomePage: d.page, Kind: appWeb, Scope: scopeOrders,
			RedirectURIs: codeList{"https://app.example/connected"}, MadeBy: actorCommand,
			CreatedAt: t.now, UpdatedAt: t.now}
		if i := slices.IndexFunc(known.rows, func(k *app) bool { return k.Name == name }); i >= 0 {
			p = known.rows[i]
		} else {
			p.ID = t.newID("app")
			if err := t.addApp(p); err != nil {
				return err
			}
		}
		d.examples[path] = p.ID
	}
	g := &grant{
		ID:        t.newID("grt"),
		AppID:     d.examples["/apps/{id}/rotate-secret"],
		AccountID: account,
		Scope:     scopeOrders,
		AgreedBy:  actorCommand,
		CreatedAt: t.now,
		UsedAt:    t.now,
		ExpiresAt: t.now.after(refreshLife),
	}
	d.examples["/grants/{id}"] = g.ID
	return t.addGrant(g)
}

// addFailure adds a delivery of the last event to a webhook, one that failed, and returns its id.
func addFailure(t *tx, webhookID string) (id string, err error) {
	seq, _, err := t.latestEvent()
	if err != nil {
		return "", err
	}
	e, err := t.eventBySeq(seq)
	if err != nil {
		return "", err
	}
	status := http.StatusServiceUnavailable
	d := &delivery{
		ID:        t.newID("whd"),
		WebhookID: webhookID,
		EventID:   e.ID,
		Type:      e.Type,
		Attempt:   1,
		At:        t.now,
		Status:    &status,
		eventSeq:  seq,
	}
	return d.ID, t.addDelivery(d)
}

// docsPath is where the receiver accepts webhooks and prints nothing.
const docsPath = "quiet"

// receiverHandler receives the demo's webhooks, verifies them and prints a line of each.
func (d *demo) receiverHandler(out io.Writer, now func() time.Time) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/{$}", webhookListener(d.secret, http.StatusNoContent, lineWriter{out}, now))
	mux.HandleFunc("POST /"+docsPath, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

// A lineWriter writes what webhookListener prints of a request as one line: its time, type and id, and the result.
type lineWriter struct{ out io.Writer }

// Write writes one request.
func (l lineWriter) Write(block []byte) (int, error) {
	lines := strings.SplitN(string(block), "\n", 3)
	_, err := fmt.Fprintf(l.out, "webhook: %s\n", strings.Join(lines[:min(2, len(lines))], "  "))
	return len(block), err
}

// pageHandler serves the partner's page, and takes the forms that a browser submits by itself.
func (d *demo) pageHandler(s *server) http.Handler {
	values := strings.NewReplacer("{{base}}", d.base, "{{page}}", d.page, "{{widget}}", d.widget,
		"{{snippet}}", d.line)
	page := values.Replace(demoHTML)
	send := func(w http.ResponseWriter, text string) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, text)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		host, port, _ := net.SplitHostPort(r.Host)
		if host == "localhost" && strings.HasSuffix(d.page, "127.0.0.1:"+port) {
			// There the page would have an origin that the account does not list.
			http.Redirect(w, r, d.page, http.StatusTemporaryRedirect)
			return
		}
		send(w, page)
	})
	d.handleOrders(mux)
	d.handleBooks(mux, s)
	d.handleConnect(mux, s)
	mux.HandleFunc("POST /newsletter", func(w http.ResponseWriter, _ *http.Request) {
		send(w, fmt.Sprintf(demoAnswer, "Thank you",
			"The widget’s script did not run, so your browser sent the form to this site. The demo does not keep it."))
	})
	return mux
}

// demoAnswer is the page after a form, with a title and a text.
const demoAnswer = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>Trattoria Altstadt</title>
</head>
<body>
<main>
<h1>%s</h1>
<p>%s</p>
<p><a href="/">Back to the menu</a></p>
</main>
</body>
</html>
`

// text returns what the demo prints: its addresses, and lines to paste into a shell.
func (d *demo) text() string {
	return strings.NewReplacer("{base}", d.base, "{page}", d.page, "{key}", d.key, "{widget}", d.widget,
		"{token}", d.token, "{receiver}", d.receiver, "{provider}", d.provider, "{account}", d.account,
		"{webhook}", d.webhook, "{yesterday}", d.yesterday, "{db}", filepath.Join(d.dir, "widgetd.db"),
		"{root}", strings.TrimSuffix(d.base, "/v1"), "{json}", "-H 'Content-Type: application/json'",
	).Replace(demoText)
}

// demoText is what the demo prints, with placeholders that text replaces.
const demoText = `
  A lunch menu on a partner's site:  {page}/
  The service behind it:             {base}
  Its documentation:                 {root}/docs
  A receiver of its webhooks:        {receiver}
  The orders, for the restaurant:    {page}/orders
  Its revenue, for the books:        {page}/revenue
  An application that asks to act:   {page}/connect
  A test provider of payments:       {provider}
  Its database:                      {db}

The receiver prints a line here, "webhook: …", for each lead and for what happens to licences and devices.

# the health of the service
curl -s {base}/widget/health

# a newsletter form
curl -s {base}/widget/leads {json} -H 'Origin: {page}' -d '{"type":"newsletter","email":"guest@example.com","source":"footer","page":"/lunch"}'

# a device takes a seat, verifies its licence, and releases the seat
curl -s {base}/widget/license/activate {json} -d '{"license_key":"{key}","fingerprint":"kitchen-1","device":{"name":"Kitchen 1"}}'
curl -s {base}/widget/license/verify {json} -d '{"license_key":"{key}","fingerprint":"kitchen-1"}'
curl -s {base}/widget/license/deactivate {json} -d '{"license_key":"{key}","fingerprint":"kitchen-1"}'

# a widget reports events; everybody may read its statistics, except for the orders
curl -s {base}/widget/events {json} -H 'Origin: {page}' -d '{"widget":"{widget}","events":[{"type":"view"},{"type":"click","item":"Tiramisù"}]}' -w '%{http_code}\n'
curl -s '{base}/widget/stats?widget={widget}&interval=week&timezone=Europe/Zurich'

# what the account sees with a token
TOKEN={token}
curl -s '{base}/widget/stats?interval=month' -H "Authorization: Bearer $TOKEN"
curl -s '{base}/leads?limit=2' -H "Authorization: Bearer $TOKEN"
curl -s '{base}/licenses?limit=2' -H "Authorization: Bearer $TOKEN"

# what the business days of the last month have brought, and yesterday as a till reports it
curl -s {base}/revenue/days -H "Authorization: Bearer $TOKEN"
curl -s {base}/revenue/days/{yesterday} -H "Authorization: Bearer $TOKEN"

# an order, made by who knows the prices; a browser pays it at pay_url, where no money moves
curl -s {base}/orders {json} -H "Authorization: Bearer $TOKEN" -d '{"currency":"CHF","lines":[{"name":"Pizza Margherita","quantity":2,"unit_amount":1650,"vat_rate":260},{"name":"Merlot","quantity":1,"unit_amount":2400,"vat_rate":810}],"tip":300,"return_url":"{page}/thanks"}'

# once it is paid, the restaurant accepts it, which charges the card, and then gives a part of the money back
ORDER=ord_…
curl -s -X POST {base}/orders/$ORDER/accept -H "Authorization: Bearer $TOKEN"
curl -s {base}/orders/$ORDER/refunds {json} -H "Authorization: Bearer $TOKEN" -d '{"lines":[{"line":0,"quantity":1}],"reason":"one was cold"}'
curl -s {base}/orders/$ORDER -H "Authorization: Bearer $TOKEN"

# how a service takes real payments by card and by phone: its base address must be an https one, and
# 'widgetd help payment connect' tells which secrets the files hold
# widgetd payment connect stripe -account {account} -secrets stripe.secrets
# widgetd payment connect vipps -account {account} -secrets vipps.secrets

# the webhook that the receiver stands behind, and a test for it
curl -s {base}/webhooks/{webhook} -H "Authorization: Bearer $TOKEN"
curl -s -X POST {base}/webhooks/{webhook}/test -H "Authorization: Bearer $TOKEN"

# the keys that devices verify their leases with, and a legacy path, which has ended
curl -s {root}/.well-known/jwks.json
curl -s {root}/api/legacy/widget/stats

# the database, while the service runs
sqlite3 -readonly -box {db} 'SELECT product, status, seats_used, seats_max, expires_at FROM v_licenses'

Ctrl-C stops it.
`
