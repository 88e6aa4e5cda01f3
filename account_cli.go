package main

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"
)

// adminCommands are the operator's commands on the rows, most of them one call of
// the store. All work while the service runs.
var adminCommands = []command{
	{"base-url", "", "show the base address, and earlier ones that tokens may still name", nil, 0, baseURLList},
	{"base-url set", "URL", "set the base address; the one before stays accepted", nil, 1, baseURLSet},
	{"base-url remove", "URL", "accept an earlier base address no longer", nil, 1, baseURLRemove},
	{"account add", "NAME", "open an account", nil, 1, accountAdd},
	{"account list", "", "list accounts", nil, 0, accountList},
	{"account rate", "ID N", "let an account make N requests a minute", nil, 2, accountRate},
	{"account close", "ID", "close an account: nothing of it works any more, its rows stay", nil, 1, accountClose},
	{"origin add", "ORIGIN", "list an account's site", []string{"account"}, 1, originAdd},
	{"origin list", "", "list origins", nil, 0, originList},
	{"origin remove", "ORIGIN", "unlist a site", nil, 1, originRemove},
	{"widget add", "NAME", "add a widget", []string{"account", "public-orders"}, 1, widgetAdd},
	{"widget list", "", "list widgets", []string{"account"}, 0, widgetList},
	{"token issue", "", "print a new bearer token", []string{"account", "scope", "ttl", "client-id", "all-accounts"}, 0, tokenIssue},
	{"token list", "", "list tokens, newest first", nil, 0, tokenList},
	{"token revoke", "ID", "refuse a token from now on", nil, 1, tokenRevoke},
	{"key public", "", "print the public keys as PEM, the signing one first", nil, 0, keyPublic},
	{"key add", "", "make a key that verifies and does not sign yet", nil, 0, keyAdd},
	{"key rotate", "", "let the newest key sign, a day after it was added", []string{"force"}, 0, keyRotate},
	{"key retire", "KID", "remove a key; says first what that would end", []string{"force"}, 1, keyRetire},
	{"leads export", "", "print all leads, one JSON object a line or CSV", []string{"csv"}, 0, leadsExport},
	{"leads erase", "EMAIL", "remove every lead of an address, without a trace", []string{"litestream"}, 1, leadsErase},
	{"leads purge", "", "remove leads that are older than a time", []string{"older-than"}, 0, leadsPurge},
	{"stats", "", "show the last 30 days of the widgets", []string{"widget"}, 0, statsShow},
	{"events", "", "show what happened and who did it, newest first", []string{"limit", "type", "account", "license", "device", "since"}, 0, eventsShow},
	{"legacy", "", "show who still calls /api/legacy/", nil, 0, legacyShow},
	{"backup", "FILE", "write a checked copy of the database", nil, 1, backupCommand},
	{"check", "", "read the whole database and the key file and tell what is wrong", nil, 0, checkCommand},
}

// withStore opens the database for a command and closes it.
func (e *env) withStore(f func(*store) error) error {
	st, err := openStore(e.str("db"), storeOptions{keepLog: true, now: e.now})
	if err != nil {
		return err
	}
	return errors.Join(withNextStep(f(st)), st.close())
}

// change runs one transaction of a command.
func (e *env) change(f func(*tx) error) error {
	return e.withStore(func(st *store) error { return st.update(e.ctx, f) })
}

// changeQuietly is change for a command that has nothing to show for it: a script
// still gets its object.
func (e *env) changeQuietly(f func(*tx) error) error {
	if err := e.change(f); err != nil {
		return err
	}
	return e.done()
}

// done is the answer of a command that has nothing to show.
func (e *env) done() error {
	if !e.on("json") {
		return nil
	}
	return e.print(map[string]bool{"ok": true}, "")
}

// withNextStep tells an operator what a sentinel leaves open.
func withNextStep(err error) error {
	switch {
	case errors.Is(err, errNotFound):
		return errors.New("there is no such row: the list command shows the ids")
	case errors.Is(err, errAccount):
		return errors.New("there is no such account, or it is closed: 'widgetd account list' shows them")
	case errors.Is(err, errBusy):
		return fmt.Errorf("the database stayed locked: end the other writer and try again: %w", err)
	}
	return err
}

// print writes one result: as JSON, or as text for people.
func (e *env) print(v any, text string) error {
	if e.on("json") {
		_, err := e.stdout.Write(encodeJSON(v))
		return err
	}
	_, err := fmt.Fprintln(e.stdout, text)
	return err
}

// text returns an option that is kept as it is written, held to the rules of a
// member of a body.
func (e *env) text(name string, max int) (string, error) {
	if _, detail := checkText(e.str(name), optional, max); detail != "" {
		return "", usageError("-" + name + ": " + detail)
	}
	return e.str(name), nil
}

// printRows writes rows: as JSON, one a line, or as a table.
func printRows[T any](e *env, rows []T, header string, cells func(T) []any) error {
	if e.on("json") {
		for _, row := range rows {
			if _, err := e.stdout.Write(encodeJSON(row)); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(e.stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, strings.ReplaceAll(header, " ", "\t"))
	for _, row := range rows {
		texts := []string{}
		for _, cell := range cells(row) {
			texts = append(texts, cellText(cell))
		}
		fmt.Fprintln(w, strings.Join(texts, "\t"))
	}
	return w.Flush()
}

// firstRows cuts rows, of which one more than the limit was asked for, and says
// what shows the rest.
func firstRows[T any](e *env, rows []T, limit int, rest string) []T {
	if len(rows) <= limit {
		return rows
	}
	fmt.Fprintf(e.stderr, "these are the first %d; there are more: %s shows them\n", limit, rest)
	return rows[:limit]
}

func cellText(v any) string {
	text := ""
	switch v := v.(type) {
	case stamp:
		if !v.IsZero() {
			text = v.String()
		}
	case *string:
		if v != nil {
			text = *v
		}
	case bool:
		if v {
			text = "yes"
		}
	default:
		text = fmt.Sprint(v)
	}
	return cmp.Or(text, "-")
}

// parseAge reads a duration that may be in days: "365d", "720h".
func parseAge(s string) (time.Duration, error) {
	if number, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.Atoi(number)
		if err == nil && n > 0 && n <= 36500 {
			return days(n), nil
		}
	} else if d, err := time.ParseDuration(s); err == nil && d >= time.Second {
		return d, nil
	}
	return 0, usageError(fmt.Sprintf("%q is not a duration: it is like 720h or 365d", s))
}

// parseMoment reads a date (its beginning in UTC), an RFC 3339 time, or a duration
// from now; the zero stamp for "".
func (e *env) parseMoment(s string) (stamp, error) {
	if s == "" {
		return stamp{}, nil
	}
	if day, err := time.Parse(time.DateOnly, s); err == nil {
		s = day.Format(time.RFC3339)
	}
	if t, ok := parseMoment(s); ok {
		return t, nil
	}
	age, err := parseAge(s)
	if err != nil {
		return stamp{}, usageError(fmt.Sprintf("%q is not a time from 1970 to %d: it is like 2027-01-31, 2027-01-31T12:00:00Z or 365d", s, lastYear))
	}
	return newStamp(e.now().Add(age)), nil
}

// initCommand makes what a service needs. Only what is missing is made.
func initCommand(e *env) error {
	base, _, err := parseBaseURL(e.str("base-url"))
	if err != nil {
		return usageError(err.Error())
	}
	if err := checkRowName(e.str("name")); err != nil {
		return err
	}
	origins := e.list("origin")
	for i := range origins {
		if origins[i], err = parseOrigin(origins[i]); err != nil {
			return usageError(err.Error())
		}
	}
	for _, file := range []string{e.str("db"), e.str("key")} {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return err
		}
	}
	keyMade, err := makeOnce(func() error {
		ring, err := newKeyring(e.now())
		if err != nil {
			return err
		}
		return ring.save(e.str("key"), false)
	})
	if err != nil {
		return err
	}
	id := ""
	dbMade, err := makeOnce(func() error {
		return createStore(e.str("db"), func(t *tx) (err error) {
			if id, err = t.addAccount(e.str("name"), true); err != nil {
				return err
			}
			for _, origin := range origins {
				if err := t.addOrigin(id, origin); err != nil {
					return err
				}
			}
			return t.setBaseURL(base)
		})
	})
	switch {
	case err != nil:
		return err
	case !dbMade && !keyMade:
		return fmt.Errorf("%s and %s are there already, and init never touches them: run 'widgetd serve', or name others with -db and -key", e.str("db"), e.str("key"))
	case !dbMade: // the key was lost
		return e.print(map[string]string{"key": e.str("key")},
			fmt.Sprintf("%s: was there already, and was not touched\n%s: made; tokens and leases of a lost key file no longer hold, so issue the tokens again", e.str("db"), e.str("key")))
	}
	key := "was there already, and was not touched"
	if keyMade {
		key = "made; keep a copy elsewhere, without it every token and device lease is lost"
	}
	return e.print(map[string]string{"db": e.str("db"), "key": e.str("key"), "base_url": base, "account_id": id},
		fmt.Sprintf("%s: made\n%s: %s\nmain account: %s\nnext: widgetd serve", e.str("db"), e.str("key"), key, id))
}

// makeOnce makes a file and reports whether it did; one that is there stays.
func makeOnce(f func() error) (made bool, err error) {
	err = f()
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	return err == nil, err
}

func baseURLList(e *env) error {
	return e.withStore(func(st *store) error {
		all, err := st.baseURLs()
		if err != nil {
			return err
		}
		return printRows(e, all, "URL CURRENT", func(b baseAddress) []any { return []any{b.URL, b.Current} })
	})
}

func baseURLSet(e *env) error {
	base, _, err := parseBaseURL(e.args[0])
	if err != nil {
		return usageError(err.Error())
	}
	return e.changeQuietly(func(t *tx) error { return t.setBaseURL(base) })
}

func baseURLRemove(e *env) error {
	return e.changeQuietly(func(t *tx) error {
		err := t.removeBaseURL(e.args[0])
		if errors.Is(err, errNotFound) {
			return errors.New("that is not an earlier base address: 'widgetd base-url' lists them; the current one can only be replaced")
		}
		return err
	})
}

// checkRowName judges what an operator calls a row: its length, and that it can't
// play with a terminal that lists it.
func checkRowName(s string) error {
	if s == "" || len(s) > 200 || !utf8.ValidString(s) || strings.IndexFunc(s, unicode.IsControl) >= 0 {
		return usageError("a name has 1 to 200 bytes of UTF-8 and no control characters")
	}
	return nil
}

func accountAdd(e *env) error {
	if err := checkRowName(e.args[0]); err != nil {
		return err
	}
	id := ""
	err := e.change(func(t *tx) (err error) {
		id, err = t.addAccount(e.args[0], false)
		return err
	})
	if err != nil {
		return err
	}
	return e.print(map[string]string{"id": id}, id)
}

func accountList(e *env) error {
	return e.withStore(func(st *store) error {
		all, err := st.accounts()
		if err != nil {
			return err
		}
		return printRows(e, all, "ID NAME MAIN RATE CREATED CLOSED", func(a account) []any {
			return []any{a.ID, a.Name, a.Main, a.Rate, a.CreatedAt, a.ClosedAt}
		})
	})
}

func accountRate(e *env) error {
	rate, err := strconv.Atoi(e.args[1])
	if err != nil || rate < 1 || rate > 1_000_000 {
		return usageError("a rate is a number from 1 to 1000000")
	}
	return e.changeQuietly(func(t *tx) error { return t.setRate(e.args[0], rate) })
}

func accountClose(e *env) error {
	return e.changeQuietly(func(t *tx) error { return t.closeAccount(e.args[0]) })
}

// filterID returns an option that names a row to filter by, or is empty. A mistyped
// id would look like a list without rows.
func (e *env) filterID(name, prefix string) (string, error) {
	id := e.str(name)
	if id != "" && !validID(prefix, id) {
		return "", usageError(fmt.Sprintf("-%s: %q is not an id of the kind %s_…", name, id, prefix))
	}
	return id, nil
}

// needAccount returns -account, which the command can't do without.
func (e *env) needAccount() (string, error) {
	if !validID("acct", e.str("account")) {
		return "", usageError("-account ID is needed: 'widgetd account list' shows the ids")
	}
	return e.str("account"), nil
}

func originAdd(e *env) error {
	id, err := e.needAccount()
	if err != nil {
		return err
	}
	origin, err := parseOrigin(e.args[0])
	if err != nil {
		return usageError(err.Error())
	}
	return e.changeQuietly(func(t *tx) error { return t.addOrigin(id, origin) })
}

func originList(e *env) error {
	return e.withStore(func(st *store) error {
		all, err := st.origins()
		if err != nil {
			return err
		}
		return printRows(e, all, "ORIGIN ACCOUNT CREATED", func(o originRow) []any { return []any{o.Origin, o.AccountID, o.CreatedAt} })
	})
}

func originRemove(e *env) error {
	origin, err := parseOrigin(e.args[0])
	if err != nil {
		return usageError(err.Error())
	}
	return e.changeQuietly(func(t *tx) error { return t.removeOrigin(origin) })
}

func widgetAdd(e *env) error {
	account, err := e.needAccount()
	if err != nil {
		return err
	}
	if err := checkRowName(e.args[0]); err != nil {
		return err
	}
	id := ""
	err = e.change(func(t *tx) (err error) {
		id, err = t.addWidget(account, e.args[0], e.on("public-orders"))
		return err
	})
	if err != nil {
		return err
	}
	return e.print(map[string]string{"id": id}, id)
}

func widgetList(e *env) error {
	account, err := e.filterID("account", "acct")
	if err != nil {
		return err
	}
	return e.withStore(func(st *store) error {
		all, err := st.widgets(account)
		if err != nil {
			return err
		}
		return printRows(e, all, "ID NAME PUBLIC-ORDERS CREATED ACCOUNT", func(w widget) []any {
			return []any{w.ID, w.Name, w.PublicOrders, w.CreatedAt, w.AccountID}
		})
	})
}

// exportPage is how many rows an export reads at a time.
const exportPage = 500

// exportRows prints rows of one kind in pages, as NDJSON or CSV.
func exportRows[T any](e *env, header []string, page func(st *store, before string) ([]T, error), id func(T) string, cells func(T) []string) error {
	return e.withStore(func(st *store) error {
		out := bufio.NewWriter(e.stdout)
		w := csv.NewWriter(out)
		if e.on("csv") {
			w.Write(header)
		}
		for before := ""; ; {
			rows, err := page(st, before)
			if err != nil {
				return err
			}
			for _, row := range rows {
				if e.on("csv") {
					w.Write(cells(row))
				} else {
					out.Write(encodeJSON(row))
				}
			}
			if len(rows) < exportPage {
				if w.Flush(); w.Error() != nil {
					return w.Error()
				}
				return out.Flush()
			}
			before = id(rows[len(rows)-1])
		}
	})
}

func leadsExport(e *env) error {
	header := []string{"id", "account_id", "type", "email", "source", "page", "created_at"}
	return exportRows(e, header, func(st *store, before string) ([]lead, error) { return st.leads("", before, exportPage) },
		func(l lead) string { return l.ID }, func(l lead) []string {
			return []string{l.ID, l.AccountID, l.Type, plainCell(l.Email), plainCell(valueOr(l.Source, "")), plainCell(valueOr(l.Page, "")), l.CreatedAt.String()}
		})
}

// plainCell keeps a spreadsheet from taking what a stranger wrote for a formula.
func plainCell(s string) string {
	if s != "" && strings.ContainsRune("=+-@", rune(s[0])) {
		return "'" + s
	}
	return s
}

func leadsErase(e *env) error {
	return e.withStore(func(st *store) error {
		var erased int64
		if err := st.update(e.ctx, func(t *tx) (err error) {
			erased, err = t.eraseLeads("", e.args[0])
			return err
		}); err != nil {
			return err
		}
		note := "no trace of the address is left in the file or its log; copies in backups end with their retention"
		if e.on("litestream") {
			note = "the address is gone from the file; the write-ahead log, the replica and backups lose it with their retention"
		} else if err := st.emptyLog(lockPatience); err != nil {
			note = "the address is gone from the file, but not from its log: run this again once nobody has a transaction open (" + err.Error() + "); copies in backups end with their retention"
		}
		return e.print(map[string]any{"erased": erased, "note": note}, fmt.Sprintf("%d erased; %s", erased, note))
	})
}

func leadsPurge(e *env) error {
	if e.str("older-than") == "" {
		return usageError("-older-than DURATION is needed, as 365d")
	}
	age, err := parseAge(e.str("older-than"))
	if err != nil {
		return err
	}
	before := newStamp(e.now().Add(-age))
	return e.withStore(func(st *store) error {
		var purged int64
		for {
			var n int64
			began := time.Now()
			if err := st.update(e.ctx, func(t *tx) (err error) {
				n, err = t.purgeLeads(before)
				return err
			}); err != nil {
				return err
			}
			time.Sleep(time.Since(began)) // who waits for SQLite's lock looks now and then, and would find it taken each time
			if purged += n; n == 0 {
				return e.print(map[string]int64{"purged": purged}, fmt.Sprintf("%d removed", purged))
			}
		}
	})
}

// statsShow draws the last 30 days in the terminal.
func statsShow(e *env) error {
	return e.withStore(func(st *store) error {
		widgets, err := st.widgets("")
		if err != nil {
			return err
		}
		if id := e.str("widget"); id != "" {
			widgets = slices.DeleteFunc(widgets, func(w widget) bool { return w.ID != id })
			if len(widgets) == 0 {
				return errNotFound
			}
		}
		today := dateIn(time.UTC, e.now())
		span := statsRange{From: today.AddDate(0, 0, 1-defaultStatsDays), To: today, Interval: "day", Zone: time.UTC}
		from, until := span.bounds()
		sum, rows := newSeries(span), []widgetRow{}
		for _, w := range widgets {
			row := widgetRow{Widget: w.ID, Name: w.Name}
			if err := st.eachQuarter("", w.ID, from, until, func(_, quarter string, c counts) {
				sum.add(quarter, c)
				row.add(c)
			}); err != nil {
				return err
			}
			rows = append(rows, row)
		}
		if err := printRows(e, rows, "WIDGET NAME VIEWS VISITORS CLICKS ORDERS", func(r widgetRow) []any {
			return []any{r.Widget, r.Name, r.Views, r.Visitors, r.Clicks, r.Orders}
		}); err != nil || e.on("json") {
			return err
		}
		fmt.Fprintln(e.stdout)
		return printBars(e, sum.points)
	})
}

func printBars(e *env, days []point) error {
	const width = 40
	most := int64(1)
	for _, d := range days {
		most = max(most, d.Views)
	}
	return printRows(e, days, "DAY VIEWS VISITORS CLICKS ORDERS .", func(d point) []any {
		return []any{d.Date, d.Views, d.Visitors, d.Clicks, d.Orders, strings.Repeat("█", int(d.Views*width/most))}
	})
}

func eventsShow(e *env) error {
	limit, err := e.number("limit", 1, 1_000_000)
	if err != nil {
		return err
	}
	filter := eventFilter{eventType: e.str("type")}
	for _, id := range []struct {
		option, prefix string
		to             *string
	}{{"account", "acct", &filter.accountID}, {"license", "lic", &filter.licenseID}, {"device", "dev", &filter.deviceID}} {
		if *id.to, err = e.filterID(id.option, id.prefix); err != nil {
			return err
		}
	}
	if age, err := parseAge(e.str("since")); err == nil { // here a duration goes back
		filter.since = newStamp(e.now().Add(-age))
	} else if filter.since, err = e.parseMoment(e.str("since")); err != nil {
		return err
	}
	return e.withStore(func(st *store) error {
		all, err := st.events(filter, "", limit+1)
		if err != nil {
			return err
		}
		return printRows(e, firstRows(e, all, limit, "-limit N"), "AT TYPE LICENSE DEVICE LEAD ACTOR DATA ACCOUNT", func(v event) []any {
			return []any{v.At, v.Type, v.LicenseID, v.DeviceID, v.LeadID, v.Actor, string(v.Data), v.AccountID}
		})
	})
}

func legacyShow(e *env) error {
	return e.withStore(func(st *store) error {
		all, err := st.legacyCalls()
		if err != nil {
			return err
		}
		return printRows(e, all, "DAY PATH CALLER CALLS LAST", func(c legacyCall) []any { return []any{c.Day, c.Path, c.Caller, c.Calls, c.LastAt} })
	})
}

func backupCommand(e *env) error {
	if e.args[0] == "" {
		return usageError("the name of the file is empty")
	}
	return e.withStore(func(st *store) error {
		if err := st.backup(e.args[0]); err != nil {
			return err
		}
		return e.print(map[string]string{"file": e.args[0]}, e.args[0]+": written and checked. The key file is not in it; keep a copy of that too.")
	})
}

// checkCommand tells everything that is wrong, and fails when there is something.
func checkCommand(e *env) error {
	faults, err := checkFile(e.str("db"))
	if err != nil {
		return err
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		file := realPath(e.str("db")) + suffix
		if info, err := os.Stat(file); err == nil && info.Mode().Perm()&0o077 != 0 {
			faults = append(faults, fmt.Sprintf("permissions: others can read %s (mode %04o): run 'chmod 600 %s'", file, info.Mode().Perm(), file))
		}
	}
	if _, err := loadKeyring(e.str("key")); err != nil {
		faults = append(faults, "key: "+err.Error())
	}
	notes := []string{}
	if info, err := os.Stat(filepath.Dir(realPath(e.str("db")))); err == nil && info.Mode().Perm()&0o077 != 0 {
		notes = append(notes, fmt.Sprintf("note: others can look into %s (mode %04o); the files in it are closed to them", filepath.Dir(realPath(e.str("db"))), info.Mode().Perm()))
	}
	said := slices.Concat(faults, notes)
	if len(faults) == 0 {
		said = slices.Concat([]string{"ok: pages, indexes, foreign keys, schema, permissions, key file"}, notes)
	}
	if err := e.print(map[string]any{"ok": len(faults) == 0, "faults": append([]string{}, faults...), "notes": notes}, strings.Join(said, "\n")); err != nil {
		return err
	}
	if len(faults) > 0 {
		return fmt.Errorf("faults in %s: %d", e.str("db"), len(faults))
	}
	return nil
}
