package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The status command: what an operator wants to see on one screen. What only the running service
// knows, it asks it over a socket beside the database.

// The operator's command on everything at once.
var statusCommands = []command{
	{"status", "", "show on one screen how the service is, who calls, what was refused and what needs doing",
		nil, 0, statusShow},
}

const (
	maxSocketPath = 107             // bytes (unix(7))
	statusTimeout = 3 * time.Second // for asking the service
	statusRows    = 8               // that a list on the screen has at most

	backupDue    = 7 * 24 * time.Hour  // after which a backup is missed
	endingSoon   = 14 * 24 * time.Hour // before which the end of a token or a licence is shown
	legacyPeriod = 7 * 24 * time.Hour  // in which calls of legacy paths are shown
	failingShown = 24 * time.Hour      // for which a webhook must have failed to be shown

	booksFailLong = time.Hour // for which books must have given no usable answer to be shown
)

// socketPath returns the path of the socket of the service over a database: widgetd.sock beside
// widgetd.db.
func socketPath(db string) string { return strings.TrimSuffix(realPath(db), ".db") + ".sock" }

// A serviceStatus is what a running service tells about itself.
type serviceStatus struct {
	Version    string         `json:"version"`
	StartedAt  stamp          `json:"started_at"`
	Health     string         `json:"health"`           // pass, warn or fail
	Output     string         `json:"output,omitempty"` // why health does not pass
	Clock      clockFault     `json:"clock,omitempty"`  // what is wrong with the clock
	Litestream bool           `json:"litestream"`
	LastMinute []routeCount   `json:"last_minute"` // by route and status, the most first
	Refusals   []refusalCount `json:"refusals"`    // by problem code, the most first
	Damage     *damageMet     `json:"damage"`      // that was met; null: none
}

// A routeCount is how many requests to a route were answered with a status in the last minute.
type routeCount struct {
	Route    string `json:"route"`
	Status   int    `json:"status"`
	Requests int64  `json:"requests"`
}

// A refusalCount is how many requests were answered with a problem.
type refusalCount struct {
	Code       string `json:"code"`
	LastMinute int64  `json:"last_minute"`
	SinceStart int64  `json:"since_start"`
}

// serviceStatus returns what the socket answers.
func (s *server) serviceStatus() *serviceStatus {
	report := s.healthReport()
	v := &serviceStatus{
		Version:    buildName(),
		StartedAt:  newStamp(s.startedAt),
		Health:     report.Status,
		Output:     report.Output,
		Clock:      s.judgeClock(s.readClocks()),
		Litestream: s.store.noCheckpoints,
		LastMinute: []routeCount{},
		Refusals:   []refusalCount{},
		Damage:     s.store.met.damageMet(),
	}
	answers, refusals, all := s.metrics.lastMinute(s.steady())
	for key, n := range answers {
		v.LastMinute = append(v.LastMinute, routeCount{cmp.Or(key.route, noRoute), key.status, n})
	}
	for code, n := range all {
		v.Refusals = append(v.Refusals, refusalCount{code, refusals[code], n})
	}
	slices.SortFunc(v.LastMinute, func(a, b routeCount) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), strings.Compare(a.Route, b.Route), a.Status-b.Status)
	})
	slices.SortFunc(v.Refusals, func(a, b refusalCount) int {
		return cmp.Or(cmp.Compare(b.SinceStart, a.SinceStart), strings.Compare(a.Code, b.Code))
	})
	return v
}

// startStatus serves the status command on the socket, mode 0600, until the returned function is
// called, which removes the socket. Without a socket the service runs all the same: the log says why.
func (s *server) startStatus() (stop func()) {
	if s.statusSocket == "" {
		return func() {}
	}
	listener, err := listenUnix(s.statusSocket)
	if err != nil {
		s.log.Warn("'widgetd status' can't ask this service", "error", err.Error())
		return func() {}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write(encodeJSON(s.serviceStatus())) // fails only when the client has gone
	})
	mux.HandleFunc("POST /checked", func(w http.ResponseWriter, r *http.Request) {
		times, err := strconv.ParseInt(r.FormValue("times"), 10, 64)
		if err != nil || !s.store.met.checked(times) {
			w.WriteHeader(http.StatusConflict)
			return
		}
		s.log.Info("'widgetd check' has passed: health does not tell of the damage that was met any more")
	})
	web := &http.Server{Handler: mux, ReadHeaderTimeout: statusTimeout, WriteTimeout: statusTimeout,
		IdleTimeout: statusTimeout}
	s.working.Go(func() { web.Serve(listener) })
	return func() { web.Close() } // which closes the listener, and that removes the socket
}

// listenUnix listens on a socket that only this user can connect to. It replaces one on which nobody
// listens any more, as a killed service leaves it behind.
func listenUnix(path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("the path of its socket is longer than %d bytes: %s", maxSocketPath, path)
	}
	listener, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		info, statErr := os.Lstat(path)
		if statErr != nil || info.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("%s is no socket: remove it", path)
		}
		conn, dialErr := net.DialTimeout("unix", path, statusTimeout)
		if dialErr == nil {
			conn.Close()
			return nil, fmt.Errorf("another service has its socket %s", path)
		}
		if !errors.Is(dialErr, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("use the socket: %w", dialErr)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove an old socket: %w", err)
		}
		listener, err = net.Listen("unix", path)
	}
	if err != nil {
		return nil, fmt.Errorf("make the socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// askService asks the service over a database for its status; nil: it is not running, or has no
// socket.
func askService(ctx context.Context, db string) (*serviceStatus, error) {
	res, err := callService(ctx, db, "GET", "/status")
	if res == nil {
		return nil, err
	}
	defer res.Body.Close()
	v := &serviceStatus{}
	if err := json.NewDecoder(res.Body).Decode(v); err != nil {
		return nil, fmt.Errorf("ask the service: %w", err)
	}
	return v, nil
}

// tellChecked tells the service that a check of the whole file has passed, which began when damage had been met
// so many times. It reports false if the service has met some since.
func tellChecked(ctx context.Context, db string, times int64) (bool, error) {
	res, err := callService(ctx, db, "POST", fmt.Sprintf("/checked?times=%d", times))
	if res == nil {
		return err == nil, err // one that was stopped has forgotten it
	}
	return res.StatusCode == http.StatusOK, res.Body.Close()
}

// callService sends a request to the service over a database; nil: it is not running, or has no socket.
func callService(ctx context.Context, db, method, target string) (*http.Response, error) {
	path := socketPath(db)
	if len(path) > maxSocketPath {
		return nil, nil
	}
	client := &http.Client{Timeout: statusTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}}
	r, err := http.NewRequestWithContext(ctx, method, "http://widgetd"+target, nil)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(r)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask the service: %w", err)
	}
	return res, nil
}

// A statusReport is what the status command prints with -json.
type statusReport struct {
	Version       string           `json:"version"` // of this program
	Database      string           `json:"database"`
	SchemaVersion int              `json:"schema_version"`
	DatabaseBytes int64            `json:"database_bytes"`
	WALBytes      int64            `json:"wal_bytes"`
	Service       *serviceStatus   `json:"service"` // null: not running
	LastBackupAt  stamp            `json:"last_backup_at"`
	Accounts      accountTally     `json:"accounts"`
	Licenses      map[string]int64 `json:"licenses"`      // by status
	LicensesEnd   int64            `json:"licenses_soon"` // active ones that end within 14 days
	Unlimited     int64            `json:"licenses_without_transfer_limit"`
	LeadsToday    int64            `json:"leads_today"` // of this UTC day
	EventsToday   int64            `json:"events_today"`
	Webhooks      map[string]int64 `json:"webhooks"` // by state
	Payments      paymentTotals    `json:"payments"`
	Books         booksTotals      `json:"books"`
	LegacyCallers []legacyCaller   `json:"legacy_callers"` // of the last 7 days
	UpgradeCopies []string         `json:"upgrade_copies"` // which upgrades have left
	NeedsDoing    []string         `json:"needs_doing"`
	Unreadable    []string         `json:"unreadable"` // parts of this that could not be read, and why

	unread map[string]string // why, by part

	tokens      []tokenRow // that end soon
	webhooks    []*webhook // that do not accept what they are sent
	troubled    []troubledPayment
	connections []*paymentConnection // in use
	books       []*bookConnection    // in use
	exports     []bookExport         // that are refused, or held for long
	sealedBooks []string             // what was sealed with another key file
}

// An accountTally is how many accounts there are.
type accountTally struct {
	Open   int `json:"open"`
	Closed int `json:"closed"`
}

func statusShow(e *env) error {
	r := &statusReport{
		Version:       buildName(),
		Database:      e.str("db"),
		SchemaVersion: schemaVersion, // of the file too: no other is opened
		UpgradeCopies: append([]string{}, upgradeCopies(e.str("db"))...),
		LegacyCallers: []legacyCaller{},
		Unreadable:    []string{},
		unread:        map[string]string{},
	}
	asked := ""
	service, err := askService(e.ctx, e.str("db"))
	if err != nil {
		asked = oneLineError{err}.Error()
	}
	r.Service = service
	err = e.withStore(func(st *store) error {
		r.DatabaseBytes, r.WALBytes = st.databaseSize(), st.walSize()
		keys, _ := loadKeyring(e.str("key")) // whatNeedsDoing tells of the error
		for _, p := range statusParts {
			if err := p.read(r, st, e.now(), keys); err != nil && !errors.Is(err, errNotFound) {
				r.cantRead(p.name, err)
			}
		}
		return nil
	})
	if err != nil && r.Service == nil {
		return err
	}
	if err != nil { // the service may tell more
		for _, p := range statusParts {
			r.cantRead(p.name, err)
		}
	}
	r.NeedsDoing = r.whatNeedsDoing(e, asked)
	if err := e.printDetails(r, r.details()); err != nil {
		return err
	}
	if n := len(r.Unreadable); n > 0 {
		return fmt.Errorf("parts of the database that can't be read: %d: run 'widgetd check'", n)
	}
	return nil
}

// cantRead notes that a part of the report could not be read.
func (r *statusReport) cantRead(part string, err error) {
	r.unread[part] = "can't be read: " + faultText(err)
	r.Unreadable = append(r.Unreadable, part+": "+faultText(err))
}

// statusParts are what the report reads of the database, each for itself, by the label of its line; keys is nil
// if the key file can't be read.
var statusParts = []struct {
	name string
	read func(r *statusReport, st *store, now time.Time, keys *keyring) error
}{
	{"accounts", (*statusReport).readAccounts},
	{"last backup", (*statusReport).readBackup},
	{"licences", (*statusReport).readLicenses},
	{"today (UTC)", (*statusReport).readToday},
	{"webhooks", (*statusReport).readWebhooks},
	{"payments", (*statusReport).readPayments},
	{"books", (*statusReport).readBooks},
	{"legacy callers", (*statusReport).readLegacy},
	{"tokens", (*statusReport).readTokens},
}

// readAccounts reads what the database tells of accounts.
func (r *statusReport) readAccounts(st *store, _ time.Time, _ *keyring) error {
	accounts, err := st.accounts()
	for _, a := range accounts {
		if a.ClosedAt.IsZero() {
			r.Accounts.Open++
		} else {
			r.Accounts.Closed++
		}
	}
	return err
}

// readLicenses reads what the database tells of licences.
func (r *statusReport) readLicenses(st *store, now time.Time, _ *keyring) error {
	licenses, err := st.tallyLicenses(newStamp(now), newStamp(now.Add(endingSoon)))
	r.Licenses, r.LicensesEnd = licenses.byStatus, licenses.ending
	r.Unlimited = licenses.unlimited
	return err
}

// readWebhooks reads what the database tells of webhooks.
func (r *statusReport) readWebhooks(st *store, now time.Time, _ *keyring) (err error) {
	if r.Webhooks, err = st.countWebhooksByState(); err == nil {
		r.webhooks, err = st.webhooksInTrouble(newStamp(now.Add(-failingShown)))
	}
	return err
}

// readBackup reads when the last backup was written.
func (r *statusReport) readBackup(st *store, _ time.Time, _ *keyring) error {
	main, err := st.mainAccount()
	if err == nil {
		r.LastBackupAt, err = st.lastEventAt(main, eventBackupWritten)
	}
	return err
}

// readToday counts what was written today.
func (r *statusReport) readToday(st *store, now time.Time, _ *keyring) (err error) {
	r.LeadsToday, r.EventsToday, err = st.countToday(newStamp(now.UTC().Truncate(24 * time.Hour)))
	return err
}

// readLegacy reads who calls legacy paths.
func (r *statusReport) readLegacy(st *store, now time.Time, _ *keyring) error {
	callers, err := st.legacyCallers(now.UTC().Add(-legacyPeriod).Format(time.DateOnly), statusRows)
	r.LegacyCallers = append(r.LegacyCallers, callers...)
	return err
}

// readTokens reads which tokens end soon.
func (r *statusReport) readTokens(st *store, now time.Time, _ *keyring) error {
	soon := now.Add(endingSoon)
	tokens, err := st.tokens()
	for _, t := range tokens {
		lasts := t.ExpiresAt.Sub(t.CreatedAt.Time) // shorter ones are renewed by whoever made them so short
		if t.RevokedAt.IsZero() && lasts > endingSoon && t.ExpiresAt.After(now) && t.ExpiresAt.Before(soon) {
			r.tokens = append(r.tokens, t)
		}
	}
	return err
}

// readPayments reads what the database tells of payments.
func (r *statusReport) readPayments(st *store, now time.Time, _ *keyring) (err error) {
	if r.Payments, err = st.paymentTotals(now); err != nil {
		return err
	}
	if r.troubled, err = st.troubledPayments(newStamp(now.Add(endingNotice)), statusRows); err != nil {
		return err
	}
	conns, err := st.paymentConnections(anyAccount)
	for _, c := range conns {
		if c.RemovedAt.IsZero() {
			r.connections = append(r.connections, c)
		}
	}
	return err
}

// readBooks reads what the database tells of books.
func (r *statusReport) readBooks(st *store, now time.Time, keys *keyring) (err error) {
	heldBefore := newStamp(now.Add(-heldTooLong))
	if r.Books, err = st.booksTotals(heldBefore); err != nil {
		return err
	}
	if r.books, err = st.openBooks(); err != nil {
		return err
	}
	if r.exports, err = st.troubledExports(heldBefore, statusRows); err == nil && keys != nil {
		r.sealedBooks, err = booksSealedElsewhere(st.queries, keys)
	}
	return err
}

// whatNeedsDoing returns a line for each thing that the operator should do. asked is why the service
// could not be asked; "" if it could, or does not run.
func (r *statusReport) whatNeedsDoing(e *env, asked string) []string {
	lines := []string{}
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	switch s := r.Service; {
	case asked != "":
		add("the service can't be asked: %s", asked)
	case s == nil:
		add("the service is not running: start it")
	case s.Health != healthPass && s.Output != string(s.Clock):
		add("health is %s: %s", s.Health, s.Output)
	}
	if r.Service != nil && r.Service.Clock != "" {
		add("%s: set the clock right, or if it is right, run 'widgetd clock accept'", r.Service.Clock)
	}
	if r.Service != nil && r.Service.Damage != nil {
		d := r.Service.Damage
		add("damage was met since %s (%s: %s): run 'widgetd check'; if it finds faults, restore a backup", d.At,
			cmp.Or(d.Table, "the file"), d.Error)
	}
	for _, part := range r.Unreadable {
		add("can't be read, so run 'widgetd check': %s", part)
	}
	if r.Service != nil && r.Service.Version != r.Version {
		add("the service runs version %s, this is %s: restart it", r.Service.Version, r.Version)
	}
	lines = append(lines, readableByOthers(realPath(r.Database))...)
	_, keys, err := e.loadKeys()
	if err != nil {
		add("key: %v", err)
	}
	switch age := e.now().Sub(r.LastBackupAt.Time); {
	case r.Service != nil && r.Service.Litestream:
	case r.unread["last backup"] != "":
	case r.LastBackupAt.IsZero():
		add("there was no backup yet: run 'widgetd backup FILE', best each day")
	case age > backupDue:
		add("the last backup is %d days old: run 'widgetd backup FILE'", int(age/(24*time.Hour)))
	}
	if r.WALBytes > maxWAL && (r.Service == nil || r.Service.Health == healthPass) {
		add("the write-ahead log has %s: end the transaction that another program keeps open", sizeText(r.WALBytes))
	}
	for i, t := range r.tokens {
		if i == statusRows {
			add("%d more tokens end within 14 days: 'widgetd token list' shows them", len(r.tokens)-i)
			break
		}
		add("the token %s of %s ends on %s: issue another, or revoke it", t.ID, printable(t.ClientID), t.ExpiresAt)
	}
	lines = append(lines, webhookTroubles(r.webhooks)...)
	lines = append(lines, r.paymentTroubles(keys)...)
	lines = append(lines, r.bookTroubles(e.now())...)
	if r.Unlimited > 0 {
		lines = append(lines, transferAdvice(r.Unlimited))
	}
	if n := len(r.UpgradeCopies); n > 0 {
		add("remove what upgrades have left, which may hold erased personal data: %s",
			strings.Join(r.UpgradeCopies, ", "))
	}
	return lines
}

// webhookTroubles returns what an operator should do about webhooks that do not accept what they are sent.
func webhookTroubles(troubled []*webhook) (lines []string) {
	for i, w := range troubled {
		if i == statusRows {
			return append(lines, fmt.Sprintf("%d more webhooks fail or were disabled for it: "+
				"'widgetd webhook list' shows them", len(troubled)-i))
		}
		what := "has failed since " + w.FailingSince.String() + ": 'widgetd webhook deliveries " + w.ID +
			"' shows why"
		switch {
		case w.State != webhookDisabled:
		case *w.Reason == disabledGone:
			what = "answered 410 Gone and was disabled: run 'widgetd webhook remove " + w.ID + "', " +
				"or 'widgetd webhook enable " + w.ID + "'"
		default:
			what = "failed for five days and was disabled: once it works again, " +
				"run 'widgetd webhook enable " + w.ID + "'"
		}
		lines = append(lines, fmt.Sprintf("the webhook %s to %s %s", w.ID, printable(w.host()), what))
	}
	return lines
}

// paymentTroubles returns what an operator should do about payments. keys is nil if the key file can't be
// read.
func (r *statusReport) paymentTroubles(keys *keyring) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, p := range r.troubled {
		switch {
		case p.state == paymentReview:
			add("the payment of order %s is in review (%s): look at it with 'widgetd order show %s'",
				p.orderID, p.reason, p.orderID)
		default:
			add("the authorisation of order %s lapses at %s: capture or cancel it", p.orderID, p.captureBefore)
		}
	}
	if n := r.Payments.Review + r.Payments.Ending - len(r.troubled); n > 0 {
		add("%d more payments are in review or lapse soon: the view v_payments shows them", n)
	}
	if r.Payments.Overdue > 0 && r.Service != nil {
		add("%d payments wait longer than they should for their provider: see the log", r.Payments.Overdue)
	}
	for _, c := range r.connections {
		if c.FailingSince.IsZero() {
			continue
		}
		add("%s refuses the keys of the connection %s since %s: 'widgetd payment check %s' shows why",
			c.Provider, c.ID, c.FailingSince, c.ID)
	}
	if keys != nil {
		for _, c := range r.connections {
			if _, err := c.open(keys); err != nil {
				lines = append(lines, sealedElsewhere(c.ID))
			}
		}
	}
	return lines
}

// bookTroubles returns what an operator should do about connections with books.
func (r *statusReport) bookTroubles(now time.Time) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, c := range r.books {
		switch {
		case !c.NeedsReconnectAt.IsZero():
			add("the connection %s with books needs its owner since %s: %s", c.ID, c.NeedsReconnectAt, connectAgain(c))
		case !c.FailingSince.IsZero() && now.Sub(c.FailingSince.Time) >= booksFailLong:
			add("%s gives the connection %s no usable answer since %s: see the log", c.Product, c.ID, c.FailingSince)
		}
	}
	for _, x := range r.exports {
		if x.State == exportFailed {
			add("the books refuse the entry of %s (%s): once that is mended, run 'widgetd books retry %s'",
				x.Date, printable(valueOr(x.Reason, "")), x.ID)
			continue
		}
		add("the entry of %s is held since %s (%s): 'widgetd books exports -state held' shows why", x.Date, x.HeldAt,
			valueOr(x.Reason, ""))
	}
	if n := r.Books.HeldLong + r.Books.Failed - len(r.exports); n > 0 {
		add("%d more entries are held for three days or refused: the view v_exports shows them", n)
	}
	return append(lines, r.sealedBooks...)
}

// countsText returns how many there are of each of some names, without those of which there are none;
// "none" if there are none at all.
func countsText(names []string, counts map[string]int64) string {
	texts := []string{}
	for _, name := range names {
		if n := counts[name]; n > 0 {
			texts = append(texts, fmt.Sprintf("%s %d", name, n))
		}
	}
	return cmp.Or(strings.Join(texts, ", "), "none")
}

// details returns the report as text for people.
func (r *statusReport) details() []detail {
	health, version, since := "not running", "this program is "+r.Version, ""
	if s := r.Service; s != nil {
		health = s.Health
		if s.Output != "" {
			health += ": " + s.Output
		}
		version, since = s.Version, s.StartedAt.String()
	}
	backup := "never"
	if !r.LastBackupAt.IsZero() {
		backup = r.LastBackupAt.String()
	}
	licenses := countsText(statuses, r.Licenses)
	if r.LicensesEnd > 0 {
		licenses += fmt.Sprintf("; %d of the active end within 14 days", r.LicensesEnd)
	}
	all := []detail{
		{"health", health},
		{"version", version},
		{"running since", cmp.Or(since, "-")},
		{"database", fmt.Sprintf("%s, %s, schema version %d",
			r.Database, sizeText(r.DatabaseBytes), r.SchemaVersion)},
		{"write-ahead log", sizeText(r.WALBytes)},
		{"last backup", backup},
		{"accounts", fmt.Sprintf("%d open, %d closed", r.Accounts.Open, r.Accounts.Closed)},
		{"licences", licenses},
		{"webhooks", countsText([]string{webhookEnabled, webhookPending, webhookDisabled}, r.Webhooks)},
		{"payments", fmt.Sprintf("%d under way, %d in review", r.Payments.Live, r.Payments.Review)},
		{"books", fmt.Sprintf("%d connections, %d entries held, %d refused", r.Books.Connections, r.Books.Held,
			r.Books.Failed)},
		{"today (UTC)", fmt.Sprintf("%d leads, %d events", r.LeadsToday, r.EventsToday)},
	}
	if r.Service != nil {
		all = append(all, r.Service.details()...)
	}
	all = append(all, labelled("legacy callers", r.LegacyCallers, func(c legacyCaller) string {
		return fmt.Sprintf("%s: %d calls in 7 days, the last at %s", printable(c.Caller), c.Calls, c.LastAt)
	})...)
	for i := range all {
		all[i].value = cmp.Or(r.unread[all[i].label], all[i].value)
	}
	return append(all, labelled("needs doing", r.NeedsDoing, func(line string) string { return line })...)
}

// details returns what the service has answered lately.
func (s *serviceStatus) details() []detail {
	total := int64(0)
	for _, c := range s.LastMinute {
		total += c.Requests
	}
	all := []detail{{"last minute", fmt.Sprintf("%d requests", total)}}
	rows := s.LastMinute[:min(len(s.LastMinute), statusRows)]
	for _, c := range rows {
		all = append(all, detail{"", fmt.Sprintf("%d  %s  %d", c.Status, c.Route, c.Requests)})
	}
	refused := s.Refusals[:min(len(s.Refusals), statusRows)]
	return append(all, labelled("refused", refused, func(c refusalCount) string {
		return fmt.Sprintf("%s: %d in the last minute, %d since the start", c.Code, c.LastMinute, c.SinceStart)
	})...)
}

// labelled returns a detail for each row, the first with the label; without rows it says "none".
func labelled[T any](label string, rows []T, text func(T) string) (details []detail) {
	for _, row := range rows {
		details = append(details, detail{label, text(row)})
		label = ""
	}
	if len(rows) == 0 {
		details = []detail{{label, "none"}}
	}
	return details
}

// sizeText returns a number of bytes for people.
func sizeText(bytes int64) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%d KiB", (bytes+1023)>>10)
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}
