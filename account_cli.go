package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The options of these commands.
var (
	optBaseURL = option{name: "base-url", value: "URL", def: "http://127.0.0.1:8080/v1",
		help: "the address that callers use, ending in /v1"}
	optName   = option{name: "name", value: "NAME", def: "main", help: "name of the main account"}
	optOrigin = option{name: "origin", value: "ORIGIN,…", help: "origins of the main account's sites"}
	optTTL    = option{name: "ttl", value: "DURATION", def: "720h",
		help: "how long the token is valid: 720h, 90d"}
	optClientID = option{name: "client-id", value: "ID",
		help: "name of the program that uses the token; by default the account's id"}
	optLogo = option{name: "logo", value: "FILE", member: "logo", reads: asLogo,
		help: "the logo on the account's pages: a PNG, JPEG or WebP of at most 1024 pixels each way and 32 KiB; " +
			"an empty one removes it"}
	optNewKeys = option{name: "new-keys",
		help: "make other keys although the database has issued tokens, leases or secrets, which all end with that: " +
			"only where no copy of its key file is left"}
	optBooksSignin = option{name: "books", member: "kind", reads: switchValue(string(sessionBooks)),
		help: "the code is for the pages of its books"}
	optAllAccounts = option{name: "all-accounts", help: "let the token act on any account, with ?account_id="}
)

// The commands on accounts that are names for routes, and lists.
var accountRouteCommands = []routeCommand{
	{name: "account set", route: "PATCH /account", args: "ACCOUNT", options: []option{optLogo},
		help: "change what is known of an account, and print all of it"},
	{name: "account signin", route: "POST /accounts/{id}/signin", keys: (*env).keyFile, text: "${code}",
		options: []option{optBooksSignin},
		help: "print a code with which one person can sign in for an account, within 15 minutes, and then agree that " +
			"applications act for it, or map and post its books; it is stored nowhere", after: noteSignin},
	{name: "base-url show", help: "show the base address, and earlier ones that tokens may still name",
		rows: &listCommand{short: true, columns: "URL CURRENT",
			pages: wholeTable(func(q *queries, _ owner) ([]baseAddress, error) { return q.baseURLs() })}},
	{name: "account list", help: "list accounts, oldest first", rows: &listCommand{short: true, prefix: "acct",
		columns: "ID NAME MAIN RATE CREATED=created_at CLOSED=closed_at",
		pages:   wholeTable(func(q *queries, _ owner) ([]account, error) { return q.accounts() })}},
	{name: "origin list", help: "list origins",
		options: []option{optOfAccount},
		rows: &listCommand{short: true, columns: "ORIGIN ACCOUNT=account_id CREATED=created_at",
			pages: wholeTable((*queries).origins)}},
	{name: "token list", help: "list tokens, newest first",
		options: []option{optOfAccount},
		rows: &listCommand{short: true, prefix: "tok", pages: paged((*queries).tokens), columns: "ID " +
			"CLIENT=client_id SCOPE ALL-ACCOUNTS=all_accounts EXPIRES=expires_at REVOKED=revoked_at " +
			"ACCOUNT=account_id"}},
}

// The other commands on base addresses, accounts, origins and tokens.
var accountCommands = []command{
	{"init", "", "create the database, the key file and the main account; existing ones are never changed",
		[]option{optBaseURL, optName, optOrigin,
			optForce.says("create another installation although " + installedDir + " has one"), optNewKeys,
		}, initCommand},
	{"base-url set", "URL", "set the base address; tokens may go on naming the previous one",
		[]option{optUnasked}, baseURLSet},
	{"base-url remove", "URL", "stop accepting tokens that name an earlier base address",
		nil, baseURLRemove},
	{"account add", "NAME", "open an account",
		[]option{optUnasked.says("do not ask when another account has the name")}, accountAdd},
	{"account show", "ACCOUNT", "show an account, its settings, and what it has", nil, accountShow},
	{"account set-rate", "ACCOUNT N", "set how many requests a minute an account may make of each kind: " +
		"so many at once, and a sixtieth a second", nil, accountRate},
	{"account close", "ACCOUNT",
		"close an account; its tokens, origins, widgets, licences, webhooks, applications and pay pages stop " +
			"working, but are kept; money that is authorised for its orders is released",
		[]option{optUnasked.says("close it without asking; where nobody can be asked, it is not closed without this")},
		accountClose},
	{"account reopen", "ACCOUNT", "open a closed account again; what stopped with it works again",
		nil, accountReopen},
	{"origin add", "ORIGIN", "let browsers call the service from an account's site",
		[]option{optAccount.says("the account that the origin belongs to")}, originAdd},
	{"origin remove", "ORIGIN", "stop letting browsers call the service from a site", []option{optUnasked},
		originRemove},
	{"token issue", "", "print a new bearer token",
		[]option{optAccount.says("the account that the token acts for"), optScope, optTTL, optClientID, optAllAccounts},
		tokenIssue},
	{"token revoke", "TOKEN", "refuse a token from now on", nil, tokenRevoke},
}

// asLogo sends the picture in a file.
func asLogo(e *env, name string) (any, error) {
	if name == "" {
		return asTextOrNull(e, "")
	}
	file, err := e.open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxLogo+1))
	if len(content) > maxLogo {
		return nil, usageError("the picture has more than 32 KiB")
	}
	return logoURI(content), err
}

// initCommand creates the database and the key file, whichever is missing. It fails when
// both exist.
func initCommand(e *env) error {
	base, _, err := parseBaseURL(e.str("base-url"))
	if err != nil {
		return usageError(err.Error())
	}
	if err := checkRowName(e.str("name")); err != nil {
		return err
	}
	origins := e.commaList("origin")
	for i := range origins {
		if origins[i], err = readOrigin(origins[i]); err != nil {
			return err
		}
	}
	db, key, err := e.installationPaths()
	if err != nil {
		return err
	}
	if err := e.checkNewKeys(db, key); err != nil {
		return err
	}
	for _, file := range []string{db, key} {
		if err := e.makeDir(filepath.Dir(file)); err != nil {
			return err
		}
	}
	keyMade, err := makeOnce(func() error {
		ring, err := newKeyring(e.now())
		if err != nil {
			return err
		}
		return ring.save(key, false)
	})
	if err != nil {
		return err
	}
	id := ""
	dbMade, err := makeOnce(func() error {
		return createStore(db, func(t *tx) error {
			id = createAccount(t, e.str("name"), true, e.actor())
			for _, origin := range origins {
				if err := addOrigin(t, id, origin, e.actor()); err != nil {
					return err
				}
			}
			t.setBaseURL(base)
			return nil
		})
	})
	if err == nil && !dbMade && !fileExists(db) {
		err = fmt.Errorf("%s is a link to where no file is: mount the disk that holds the database, or remove it", db)
	}
	if err != nil {
		return err
	}
	return reportInit(e, db, key, initResult{dbMade, keyMade, base, id})
}

// installationPaths returns where init makes the database and the key file: in the installation's directory if it is
// there and this user may, see locate. It refuses to create files as root beside another user's, and without -force a
// second installation.
func (e *env) installationPaths() (db, key string, err error) {
	e.locate(!e.on("force") && e.mayInstall())
	if db, err = e.file("db"); err != nil {
		return "", "", err
	}
	if key, err = e.file("key"); err != nil || e.on("force") || !e.isInstalled() {
		return db, key, err
	}
	here, err := os.Stat(filepath.Dir(db))
	if there, thereErr := os.Stat(e.installed); err == nil && thereErr == nil && os.SameFile(here, there) {
		return db, key, nil
	}
	return "", "", fmt.Errorf("%s holds an installation already: commands find it by themselves; "+
		"to create another one here, add -force", e.installed)
}

// checkNewKeys refuses, without -new-keys, to make a key file for a database that has issued something that
// works only with its own keys, or that can't be read.
func (e *env) checkNewKeys(db, key string) error {
	if e.on("new-keys") || fileExists(key) || !fileExists(db) {
		return nil
	}
	issued, err := e.hasIssued()
	if err == nil && issued {
		err = fmt.Errorf("no key file at %s, and what the database has issued works with its own only: restore it "+
			"from your copy; if there is none left, -new-keys makes another, and all of that ends", key)
	}
	return err
}

// An initResult says what init has made: the files, and the base address and the main account that are in them.
type initResult struct {
	db, key       bool
	base, account string
}

// reportInit prints which of the two files init has created, or returns an error if neither.
func reportInit(e *env, db, keyFile string, made initResult) error {
	next := "widgetd serve" + listenOption(made.base)
	if filepath.Dir(db) == e.installed {
		next = "sudo systemctl enable --now widgetd.socket widgetd.service"
	}
	switch {
	case !made.db && !made.key:
		return fmt.Errorf("%s and %s exist already, and init never changes them: run 'widgetd serve', "+
			"or name other files with -db and -key", db, keyFile)
	case !made.db: // the key was lost
		return e.print(map[string]string{"key": keyFile},
			fmt.Sprintf("%s: existed already, and was not changed\n%s: created; tokens and leases that were signed "+
				"with a lost key file are no longer valid, so issue the tokens again", db, keyFile))
	}
	key := "existed already, and was not changed"
	if made.key {
		key = "created; keep a copy elsewhere, without it every token and device lease is lost"
	}
	return e.print(map[string]string{"db": db, "key": keyFile, "base_url": made.base, "account_id": made.account},
		fmt.Sprintf("%s: created\n%s: %s\nmain account: %s\nnext: '%s'", db, keyFile, key, made.account, next))
}

// listenOption returns the option with which a service listens where its base address is, " -addr 127.0.0.1:9000"; ""
// where that is the default, or what another machine or a proxy answers.
func listenOption(base string) string {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" || u.Port() == "" || u.Host == optAddr.def ||
		u.Hostname() != "localhost" && !parseAddress(u.Hostname()).IsLoopback() {
		return ""
	}
	return " -addr " + u.Host
}

// makeOnce runs f, which creates a file, and reports whether it did. That the file exists
// already is not an error.
func makeOnce(f func() error) (made bool, err error) {
	err = f()
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	return err == nil, err
}

func baseURLSet(e *env) error {
	base, _, err := parseBaseURL(e.args[0])
	if err != nil {
		return usageError(err.Error())
	}
	err = e.confirm(func(q *queries) (string, error) {
		known, err := q.baseURLs()
		if err != nil || len(known) == 0 || !known[0].Current || known[0].URL == base {
			return "", err
		}
		return "has new tokens, leases and links name " + base + " instead of " + known[0].URL, nil
	})
	if err != nil {
		return err
	}
	return e.changeAndName(func(t *tx) (string, error) {
		t.setBaseURL(base)
		return "base address " + base + " set", nil
	})
}

func baseURLRemove(e *env) error {
	return e.changeAndName(func(t *tx) (string, error) {
		return "base address " + printable(e.args[0]) + " removed",
			replaced(t.removeBaseURL(e.args[0]), errNotFound, errors.New("that is not an earlier base address: "+
				"'widgetd base-url show' lists them; the current one can only be replaced"))
	})
}

func accountAdd(e *env) error {
	if err := checkRowName(e.args[0]); err != nil {
		return err
	}
	err := e.confirm(func(q *queries) (string, error) {
		all, err := q.accounts()
		alike := slices.DeleteFunc(all, func(a account) bool { return !strings.EqualFold(a.Name, e.args[0]) })
		if err != nil || len(alike) == 0 {
			return "", err
		}
		return "opens another account of a name that is taken: " + withName(alike[0].ID, alike[0].Name), nil
	})
	if err != nil {
		return err
	}
	id, err := changed(e, func(t *tx) (string, error) { return createAccount(t, e.args[0], false, e.actor()), nil })
	if err != nil {
		return err
	}
	return e.print(map[string]string{"id": id}, id)
}

// A shownAccount is what account show prints.
type shownAccount struct {
	account
	accountSettings
	Has map[string]int `json:"has"` // what of it works
}

// accountShow prints an account, also a closed one.
func accountShow(e *env) error {
	id := e.args[0]
	v, err := queried(e, func(q *queries) (v shownAccount, err error) {
		if v.account, err = q.account(id); err != nil {
			return v, replaced(err, errNotFound, errAccount)
		}
		if v.accountSettings, err = q.settings(id); err != nil {
			return v, err
		}
		v.Has, _, err = countHoldings(q, e.nouns, id, newStamp(e.now()))
		return v, err
	})
	if err != nil {
		return err
	}
	return e.printObject(v)
}

func accountRate(e *env) error {
	rate, err := strconv.Atoi(e.args[1])
	if err != nil || rate < 1 || rate > maxRateOption {
		return usageError("a rate is a number from 1 to 1000000000")
	}
	return e.changeAccount(func(t *tx) error { return changeRate(t, e.args[0], rate, e.actor()) },
		"may make "+countOf(rate, "request")+" a minute of each kind")
}

// changeAccount runs f in a transaction, and prints the account that the command's first argument names with what
// is now true of it.
func (e *env) changeAccount(f func(*tx) error, now string) error {
	return e.changeAndName(func(t *tx) (string, error) {
		if err := f(t); err != nil {
			return "", err
		}
		a, err := t.account(e.args[0])
		return "account " + withName(a.ID, a.Name) + " " + now, err
	})
}

// accountClose closes an account once that is confirmed. Without -force and without a terminal it returns an error
// that says what would stop.
func accountClose(e *env) error {
	name := ""
	err := e.confirm(func(q *queries) (string, error) {
		a, err := q.account(e.args[0])
		if err != nil {
			return "", err
		}
		_, text, err := countHoldings(q, e.nouns, a.ID, newStamp(e.now()))
		name = withName(a.ID, a.Name)
		switch {
		case err != nil || a.Main || !a.ClosedAt.IsZero():
			return "", err
		case !e.canAsk && !e.on("force"):
			return "", fmt.Errorf("closing %s stops %s, until 'widgetd account reopen': add -force to close it",
				name, text)
		}
		return fmt.Sprintf("closes the account %s and stops %s, until 'widgetd account reopen'", name, text), nil
	})
	if err != nil {
		return err
	}
	var stopped map[string]int
	text := ""
	err = e.change(func(t *tx) (err error) {
		if stopped, text, err = countHoldings(t.queries, e.nouns, e.args[0], t.now); err != nil {
			return err
		}
		return closeAccount(t, e.nouns, e.args[0], e.actor())
	})
	if err != nil {
		return err
	}
	if stopped["payments"] > 0 { // whose money the service releases
		defer e.noteQueued()
	}
	return e.print(map[string]any{"ok": true, "stopped": stopped}, "account "+name+" closed: "+text+" stopped")
}

func accountReopen(e *env) error {
	return e.changeAccount(func(t *tx) error { return reopenAccount(t, e.args[0], e.actor()) }, "is open")
}

// readOrigin parses an origin that an operator typed, and returns it in its normal form. A slash
// at its end is dropped. For anything else it returns a usageError that says what to type.
func readOrigin(typed string) (string, error) {
	typed = strings.TrimSuffix(typed, "/")
	origin, err := parseOrigin(typed)
	if err == nil {
		return origin, nil
	}
	_, rest, hasScheme := strings.Cut(typed, "://")
	if !hasScheme {
		rest = typed
	}
	host, _, hasPath := strings.Cut(rest, "/")
	meant, known := meantOrigin(typed)
	shown := printable(typed)
	switch {
	case strings.Contains(host, "*"):
		return "", usageError(fmt.Sprintf("%q: there are no wildcards; add each origin by itself, "+
			"as https://www.example.com and https://shop.example.com", shown))
	case !known:
		return "", usageError(fmt.Sprintf("%q: %v", shown, err))
	case hasPath:
		return "", usageError(fmt.Sprintf("%q has a path, which browsers leave out of an origin: %s", shown, meant))
	}
	return "", usageError(fmt.Sprintf("%q lacks its scheme, https or http: %s", shown, meant))
}

// meantOrigin returns the origin that browsers send for what somebody has written, which may lack its scheme, or
// have a path. It reports false if there is none.
func meantOrigin(written string) (origin string, known bool) {
	scheme, rest, hasScheme := strings.Cut(written, "://")
	if !hasScheme {
		scheme, rest = "https", written
	}
	host, _, _ := strings.Cut(rest, "/")
	origin, err := parseOrigin(scheme + "://" + host)
	return origin, err == nil
}

func originAdd(e *env) error {
	id, err := e.needAccount()
	if err != nil {
		return err
	}
	origin, err := readOrigin(e.args[0])
	if err != nil {
		return err
	}
	return e.changeAndName(func(t *tx) (string, error) {
		before, err := t.originAccount(origin)
		if err != nil {
			return "", err
		}
		a, err := t.account(cmp.Or(before, id))
		if err != nil {
			return "", replaced(err, errNotFound, errAccount)
		}
		name, did := withName(a.ID, a.Name), "added to "
		switch before {
		case "":
		case id:
			did = "was there already, of "
		default:
			return "", fmt.Errorf("%s already belongs to %s: remove it there first", origin, name)
		}
		return "origin " + origin + " " + did + name, addOrigin(t, id, origin, e.actor())
	})
}

func originRemove(e *env) error {
	origin, err := readOrigin(e.args[0])
	if err != nil {
		return err
	}
	err = e.confirm(func(q *queries) (string, error) {
		id, err := q.originAccount(origin)
		if err != nil {
			return "", err
		}
		a, err := q.account(id) // errNotFound if nobody has the origin
		return fmt.Sprintf("removes the origin %s of %s, so that browsers can't call the service from its pages",
			origin, withName(a.ID, a.Name)), err
	})
	if err != nil {
		return err
	}
	return e.changeAndName(func(t *tx) (string, error) {
		return "origin " + origin + " removed", removeOrigin(t, origin, e.actor())
	})
}

// refuseToSign returns an error if the clock is too far ahead of the latest time that a service took for right for
// anything to be signed with it, as a service would (signingHeld).
func (e *env) refuseToSign(t *tx) error {
	seen, err := t.clockSeen()
	if err != nil || seen.IsZero() || e.synchronised == nil {
		return err
	}
	if judgeClock(e.now().Sub(seen.Time), e.synchronised) == clockFarAhead {
		return fmt.Errorf("nothing is signed by this clock, which is more than a day ahead of %s, the latest time "+
			"that was right: set it right, or if it is right, run 'widgetd clock accept'", seen)
	}
	return nil
}

func tokenIssue(e *env) error {
	account, err := e.needAccount()
	if err != nil {
		return err
	}
	scopes := e.commaList("scope")
	for _, scope := range scopes {
		if !slices.Contains(grantableScopes, scope) {
			return unknownWord("there is no scope", scope, grantableScopes)
		}
	}
	if len(scopes) == 0 {
		return usageError("-scope is needed, as stats:read,leads:read")
	}
	ttl, err := parseSpan(e.str("ttl"), true)
	if err != nil {
		return err
	}
	client := cmp.Or(e.str("client-id"), account)
	if err := checkClientID(client); err != nil {
		return usageError(err.Error())
	}
	if strings.HasPrefix(client, "app_") {
		return usageError("a client id that begins with app_ is an application's: " +
			"those come for their tokens themselves")
	}
	_, keys, err := e.loadKeys()
	if err != nil {
		return err
	}
	token, row := "", tokenRow{AccountID: account, ClientID: client, Scope: strings.Join(scopes, " "),
		AllAccounts: e.on("all-accounts")}
	err = e.change(func(t *tx) (err error) {
		if err := e.refuseToSign(t); err != nil {
			return err
		}
		if token, row, err = issueToken(t, keys, row, ttl.after(t.now.Time).Sub(t.now.Time)); err != nil {
			return err
		}
		t.addEvent(tokenEvent(&row, eventTokenIssued, e.actor(),
			"expires_at", row.ExpiresAt.String(), "all_accounts", trueOrEmpty(row.AllAccounts)))
		return nil
	})
	if err != nil {
		return err
	}
	if row.ExpiresAt.After(row.CreatedAt.AddDate(2, 0, 0)) {
		e.note("warning: whoever gets hold of this token can use it until %s, or until "+
			"'widgetd token revoke %s'\n", row.ExpiresAt, row.ID)
	}
	return e.print(map[string]any{"id": row.ID, "token": token, "expires_at": row.ExpiresAt}, token)
}

func tokenRevoke(e *env) error {
	return e.changeAndName(func(t *tx) (string, error) {
		r, err := t.token(e.args[0])
		if err != nil {
			return "", err
		}
		return "token " + withName(r.ID, r.ClientID) + " revoked", revokeToken(t, r.ID, e.actor())
	})
}

// accountStatus is what the status command says of accounts.
func accountStatus(v *statusView, to *statusReport) error {
	accounts, err := v.accounts()
	n := map[string]int{"open": 0, "closed": 0}
	for _, a := range accounts {
		if a.ClosedAt.IsZero() {
			n["open"]++
		} else {
			n["closed"]++
		}
	}
	to.set("accounts", n)
	if err == nil {
		to.say("%d open, %d closed", n["open"], n["closed"])
	}
	return err
}

// checkAccounts is a rowCheck. It reports what commands never leave behind, but the sqlite3 shell can: no main
// account or base address, time zones that do not exist, and origins that no browser sends.
func checkAccounts(q *queries, _ *keyring, _ time.Time) (faults []string, err error) {
	if fault, err := checkMainAccount(q); err != nil {
		return nil, err
	} else if fault != "" {
		faults = append(faults, fault)
	}
	addresses, err := q.baseURLs()
	if err != nil {
		return nil, err
	}
	if len(addresses) == 0 || !addresses[0].Current {
		address := baseAddress{URL: "https://api.example.com/v1"}
		if len(addresses) > 0 {
			address = addresses[0]
		}
		faults = append(faults, "base address: none is the current one, so the service does not start: run 'widgetd "+
			"base-url set "+address.URL+"'")
	}
	zones, err := q.everyZone()
	if err != nil {
		return nil, err
	}
	for _, r := range zones {
		if _, err := loadZone(r.text); err != nil {
			faults = append(faults, fmt.Sprintf("zone: there is no time zone %q: %s", printable(r.text),
				repairHint(r.table, r.id, "zone")))
		}
	}
	origins, err := q.everyOrigin()
	for _, r := range origins {
		if normal, err := parseOrigin(r.text); err == nil && normal == r.text {
			continue
		}
		why := "no browser sends such an origin"
		if meant, known := meantOrigin(r.text); known {
			why = "browsers send " + meant
		}
		faults = append(faults, fmt.Sprintf("origin: %s never matches: %s: %s", printable(r.text), why,
			repairHint(r.table, r.id, "origin")))
	}
	return faults, err
}

// checkMainAccount returns what is wrong with the main account, "" for nothing.
func checkMainAccount(q *queries) (fault string, err error) {
	const noMain = "account: none is the main one, so leads without an Origin are refused: "
	main, err := q.mainAccount()
	if err == nil {
		if a, err := q.account(main); err != nil || a.ClosedAt.IsZero() {
			return "", err
		}
		word, err := q.accountWord(main)
		return "account: the main one is closed: run 'widgetd account reopen " + word + "'", err
	}
	if !errors.Is(err, errNotFound) {
		return "", err
	}
	accounts, err := q.accounts()
	accounts = slices.DeleteFunc(accounts, func(a account) bool { return !a.ClosedAt.IsZero() })
	if len(accounts) == 0 {
		return noMain + "open one with 'widgetd account add NAME', and check again", err
	}
	return fmt.Sprintf("%sif it is %q: %s", noMain, printable(accounts[0].Name),
		repairHint("accounts", accounts[0].ID, "is_main")), err
}
