package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
	optZone   = option{name: "zone", value: "ZONE", help: "time zone of the account: Europe/Zurich"}
	optCutOff = option{name: "cut-off", value: "HH:MM",
		help: "when the account's business day ends, in its time zone; by default 04:00"}
	optLegalName = option{name: "legal-name", value: "NAME", help: "who sells, on receipts; an empty one removes it"}
	optAddress   = option{name: "address", value: "TEXT",
		help: "the account's address on receipts, lines separated by line breaks; an empty one removes it"}
	optVATNumber = option{name: "vat-number", value: "TEXT",
		help: "the account's VAT number on receipts; an empty one removes it"}
	optCaptureOn = option{name: "capture-on", value: "WHEN",
		help: "when cards are charged: accept, as soon as an order is accepted, or handover"}
	optAcceptWithin = option{name: "accept-within", value: "MINUTES",
		help: "after how long an authorised order that nobody accepts is released"}
	optNewKeys = option{name: "new-keys",
		help: "make other keys although the database has issued tokens, leases or secrets, which all end with that: " +
			"only where no copy of its key file is left"}
	optAllAccounts = option{name: "all-accounts", help: "let the token act on any account, with ?account_id="}
)

// The operator's commands on base addresses, accounts, origins and tokens.
var accountCommands = []command{
	{"init", "", "create the database, the key file and the main account; existing ones are never changed",
		[]option{optBaseURL, optName, optOrigin,
			optForce.says("create another installation although " + installedDir + " has one"), optNewKeys,
		}, 0, initCommand},
	{"base-url", "", "show the base address, and earlier ones that tokens may still name", nil, 0, baseURLList},
	{"base-url set", "URL", "set the base address; tokens may go on naming the previous one",
		nil, 1, baseURLSet},
	{"base-url remove", "URL", "stop accepting tokens that name an earlier base address",
		nil, 1, baseURLRemove},
	{"account add", "NAME", "open an account", nil, 1, accountAdd},
	{"account list", "", "list accounts", nil, 0, accountList},
	{"account rate", "ID N", "set how many requests a minute an account may make of each kind: " +
		"so many at once, and a sixtieth a second", nil, 2, accountRate},
	{"account set", "ID", "change what is known of an account that takes orders, and print all of it", []option{
		optZone, optCutOff, optLegalName, optAddress, optVATNumber, optCaptureOn, optAcceptWithin,
	}, 1, accountSet},
	{"account close", "ID",
		"close an account; its tokens, origins, widgets, licences, webhooks, applications and pay pages stop " +
			"working, but are kept; money that is authorised for its orders is released",
		[]option{optForce.says("close it; without this, the command only says what would stop")}, 1, accountClose},
	{"account signin", "ID",
		"print a code with which one person can sign in for an account, within 15 minutes, and then agree that " +
			"applications act for it",
		nil, 1, accountSignin},
	{"account reopen", "ID", "open a closed account again; what stopped with it works again",
		nil, 1, accountReopen},
	{"origin add", "ORIGIN", "let browsers call the service from an account's site",
		[]option{optAccount.says("the account that the origin belongs to")}, 1, originAdd},
	{"origin list", "", "list origins", nil, 0, originList},
	{"origin remove", "ORIGIN", "stop letting browsers call the service from a site", nil, 1, originRemove},
	{"token issue", "", "print a new bearer token",
		[]option{optAccount.says("the account that the token acts for"), optScope, optTTL, optClientID, optAllAccounts},
		0, tokenIssue},
	{"token list", "", "list tokens, newest first", nil, 0, tokenList},
	{"token revoke", "ID", "refuse a token from now on", nil, 1, tokenRevoke},
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
	if err := e.checkInstall(); err != nil {
		return err
	}
	if err := e.checkNewKeys(); err != nil {
		return err
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
			if id, err = createAccount(t, e.str("name"), true, e.actor()); err != nil {
				return err
			}
			for _, origin := range origins {
				if err := addOrigin(t, id, origin, e.actor()); err != nil {
					return err
				}
			}
			return t.setBaseURL(base)
		})
	})
	if err != nil {
		return err
	}
	return reportInit(e, dbMade, keyMade, base, id)
}

// checkInstall refuses to create files as root beside another user's, and without -force a
// second installation.
func (e *env) checkInstall() error {
	for _, file := range []string{e.str("db"), e.str("key")} {
		if err := e.checkOwner(file); err != nil {
			return err
		}
	}
	if e.installed == "" || e.on("force") {
		return nil
	}
	here, err := os.Stat(filepath.Dir(e.str("db")))
	if there, thereErr := os.Stat(e.installed); err == nil && thereErr == nil && os.SameFile(here, there) {
		return nil
	}
	for _, name := range []string{optDB.def, optKey.def} {
		file := filepath.Join(e.installed, name)
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s holds an installation already: commands find it by themselves; "+
				"to create another one here, add -force", e.installed)
		}
	}
	return nil
}

// checkNewKeys refuses, without -new-keys, to make a key file for a database that has issued something that
// works only with its own keys, or that can't be read.
func (e *env) checkNewKeys() error {
	if e.on("new-keys") || fileExists(e.str("key")) || !fileExists(e.str("db")) {
		return nil
	}
	issued, err := e.hasIssued()
	if err == nil && issued {
		err = fmt.Errorf("no key file at %s, and what the database has issued works with its own only: restore it "+
			"from your copy; if there is none left, -new-keys makes another, and all of that ends", e.str("key"))
	}
	return err
}

// reportInit prints which of the two files init has created, or returns an error if neither.
func reportInit(e *env, dbMade, keyMade bool, base, account string) error {
	db, keyFile := e.str("db"), e.str("key")
	switch {
	case !dbMade && !keyMade:
		return fmt.Errorf("%s and %s exist already, and init never changes them: run 'widgetd serve', "+
			"or name other files with -db and -key", db, keyFile)
	case !dbMade: // the key was lost
		return e.print(map[string]string{"key": keyFile},
			fmt.Sprintf("%s: existed already, and was not changed\n%s: created; tokens and leases that were signed "+
				"with a lost key file are no longer valid, so issue the tokens again", db, keyFile))
	}
	key := "existed already, and was not changed"
	if keyMade {
		key = "created; keep a copy elsewhere, without it every token and device lease is lost"
	}
	return e.print(map[string]string{"db": db, "key": keyFile, "base_url": base, "account_id": account},
		fmt.Sprintf("%s: created\n%s: %s\nmain account: %s\nnext: widgetd serve", db, keyFile, key, account))
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

func baseURLList(e *env) error {
	return printAll(e, (*queries).baseURLs, "URL CURRENT", func(b baseAddress) []any {
		return []any{b.URL, b.Current}
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
			return errors.New("that is not an earlier base address: 'widgetd base-url' lists them; " +
				"the current one can only be replaced")
		}
		return err
	})
}

func accountAdd(e *env) error {
	if err := checkRowName(e.args[0]); err != nil {
		return err
	}
	id, err := changed(e, func(t *tx) (string, error) { return createAccount(t, e.args[0], false, e.actor()) })
	if err != nil {
		return err
	}
	return e.print(map[string]string{"id": id}, id)
}

func accountList(e *env) error {
	return printAll(e, (*queries).accounts, "ID NAME MAIN RATE CREATED CLOSED", func(a account) []any {
		return []any{a.ID, a.Name, a.Main, a.Rate, a.CreatedAt, a.ClosedAt}
	})
}

func accountRate(e *env) error {
	rate, err := strconv.Atoi(e.args[1])
	if err != nil || rate < 1 || rate > maxRateOption {
		return usageError("a rate is a number from 1 to 1000000000")
	}
	return e.changeQuietly(func(t *tx) error { return changeRate(t, e.args[0], rate, e.actor()) })
}

// accountSet changes the settings that options name, and prints all.
func accountSet(e *env) error {
	change, err := e.settingsChange()
	if err != nil {
		return err
	}
	view, err := changed(e, func(t *tx) (*accountView, error) {
		if err := changeSettings(t, e.nouns, e.args[0], change, e.actor()); err != nil {
			return nil, err
		}
		return viewAccount(t.queries, e.args[0])
	})
	if err != nil {
		return err
	}
	return e.printMembers(view)
}

// settingsChange returns the change to the settings of an account that options name. Errors: usageError.
func (e *env) settingsChange() (c settingsChange, err error) {
	for _, o := range []struct {
		name  string
		check textCheck
		set   func(*accountSettings, string)
	}{
		{"zone", checkZone, func(s *accountSettings, v string) { s.Zone = v }},
		{"cut-off", checkCutOff, func(s *accountSettings, v string) { s.CutOff = v }},
		{"legal-name", shortText(maxLegalName), func(s *accountSettings, v string) { s.LegalName = nilIfEmpty(v) }},
		{"address", shortLines(maxAddress), func(s *accountSettings, v string) { s.Address = nilIfEmpty(v) }},
		{"vat-number", shortText(maxVATNumber), func(s *accountSettings, v string) { s.VATNumber = nilIfEmpty(v) }},
		{"capture-on", oneOf(captureOnAccept, captureOnHandover),
			func(s *accountSettings, v string) { s.CaptureOn = v }},
	} {
		if !e.given(o.name) {
			continue
		}
		value := e.str(o.name)
		if code, detail := o.check(value); code != "" {
			return nil, usageError("-" + o.name + ": " + detail)
		}
		c = append(c, func(s *accountSettings) { o.set(s, value) })
	}
	within, err := e.optionalNumber("accept-within", 1, maxAcceptWithin)
	if within != nil {
		c = append(c, func(s *accountSettings) { s.AcceptWithin = *within })
	}
	return c, err
}

// shortText returns a check for a text of at most max characters, which may be empty.
func shortText(max int) textCheck {
	return func(s string) (code, detail string) { return checkText(s, optional, max) }
}

// shortLines is shortText for a text of several lines.
func shortLines(max int) textCheck {
	return func(s string) (code, detail string) { return checkLines(s, max) }
}

// accountClose closes an account, or without -force returns an error that says what would stop.
func accountClose(e *env) error {
	var stopped map[string]int
	text := ""
	err := e.change(func(t *tx) error {
		a, err := t.account(e.args[0])
		if err != nil {
			return err
		}
		if stopped, text, err = held(t.queries, e.nouns, a.ID, t.now); err != nil {
			return err
		}
		if !a.Main && a.ClosedAt.IsZero() && !e.on("force") {
			return fmt.Errorf("closing %s (%s) stops %s, until 'widgetd account reopen': add -force to close it",
				a.ID, printable(a.Name), text)
		}
		return closeAccount(t, e.nouns, a.ID, e.actor())
	})
	if err != nil {
		return err
	}
	return e.print(map[string]any{"ok": true, "stopped": stopped}, "closed; stopped with it: "+text)
}

func accountReopen(e *env) error {
	return e.changeQuietly(func(t *tx) error { return reopenAccount(t, e.args[0], e.actor()) })
}

// readOrigin parses an origin that an operator typed, and returns it in its normal form. A slash
// at its end is dropped. For anything else it returns a usageError that says what to type.
func readOrigin(typed string) (string, error) {
	typed = strings.TrimSuffix(typed, "/")
	origin, err := parseOrigin(typed)
	if err == nil {
		return origin, nil
	}
	scheme, rest, hasScheme := strings.Cut(typed, "://")
	if !hasScheme {
		scheme, rest = "https", typed
	}
	host, _, hasPath := strings.Cut(rest, "/")
	ascii, known := asciiHost(host)
	meant, otherwise := parseOrigin(scheme + "://" + ascii) // what browsers send
	shown := printable(typed)
	switch {
	case strings.Contains(host, "*"):
		return "", usageError(fmt.Sprintf("%q: there are no wildcards; add each origin by itself, "+
			"as https://www.example.com and https://shop.example.com", shown))
	case !known || otherwise != nil:
		return "", usageError(fmt.Sprintf("%q: %v", shown, err))
	case ascii != strings.ToLower(host):
		return "", usageError(fmt.Sprintf("%q: browsers send a name with such letters in another form: %s",
			shown, meant))
	case hasPath:
		return "", usageError(fmt.Sprintf("%q has a path, which browsers leave out of an origin: %s", shown, meant))
	}
	return "", usageError(fmt.Sprintf("%q lacks its scheme, https or http: %s", shown, meant))
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
	return e.changeQuietly(func(t *tx) error { return addOrigin(t, id, origin, e.actor()) })
}

func originList(e *env) error {
	return printAll(e, (*queries).origins, "ORIGIN ACCOUNT CREATED", func(o originRow) []any {
		return []any{o.Origin, o.AccountID, o.CreatedAt}
	})
}

func originRemove(e *env) error {
	origin, err := readOrigin(e.args[0])
	if err != nil {
		return err
	}
	return e.changeQuietly(func(t *tx) error { return removeOrigin(t, origin, e.actor()) })
}

func tokenIssue(e *env) error {
	account, err := e.needAccount()
	if err != nil {
		return err
	}
	scopes := e.commaList("scope")
	for _, scope := range scopes {
		if !slices.Contains(grantableScopes, scope) {
			return usageError(fmt.Sprintf("there is no scope %q: the scopes are %s",
				scope, strings.Join(grantableScopes, " ")))
		}
	}
	if len(scopes) == 0 {
		return usageError("-scope is needed, as \"stats:read leads:read\"")
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
		if token, row, err = issueToken(t, keys, row, ttl.after(t.now.Time).Sub(t.now.Time)); err != nil {
			return err
		}
		return t.addEvent(tokenEvent(&row, eventTokenIssued, e.actor(),
			"expires_at", row.ExpiresAt.String(), "all_accounts", trueOrNone(row.AllAccounts)))
	})
	if err != nil {
		return err
	}
	return e.print(map[string]any{"id": row.ID, "token": token, "expires_at": row.ExpiresAt}, token)
}

func tokenList(e *env) error {
	const header = "ID CLIENT SCOPE ALL-ACCOUNTS EXPIRES REVOKED ACCOUNT"
	return printAll(e, (*queries).tokens, header, func(r tokenRow) []any {
		return []any{r.ID, r.ClientID, r.Scope, r.AllAccounts, r.ExpiresAt, r.RevokedAt, r.AccountID}
	})
}

func tokenRevoke(e *env) error {
	return e.changeQuietly(func(t *tx) error { return revokeToken(t, e.args[0], e.actor()) })
}

// accountStatus is what the status command says of accounts.
type accountStatus struct {
	Accounts struct {
		Open   int `json:"open"`
		Closed int `json:"closed"`
	} `json:"accounts"`
}

func (r *accountStatus) read(v *statusView) error {
	accounts, err := v.accounts()
	for _, a := range accounts {
		if a.ClosedAt.IsZero() {
			r.Accounts.Open++
		} else {
			r.Accounts.Closed++
		}
	}
	return err
}

func (r *accountStatus) show(_ *statusView, to *statusLines) {
	to.say("%d open, %d closed", r.Accounts.Open, r.Accounts.Closed)
}

// tokenStatus is what the status command says of tokens that end soon.
type tokenStatus struct{ tokens []tokenRow }

func (r *tokenStatus) read(v *statusView) error {
	soon := v.now.Add(endingSoon)
	tokens, err := v.tokens()
	for _, t := range tokens {
		lasts := t.ExpiresAt.Sub(t.CreatedAt.Time) // short-lived ones are left to whoever renews them
		if t.RevokedAt.IsZero() && lasts > endingSoon && t.ExpiresAt.After(v.now) && t.ExpiresAt.Before(soon) {
			r.tokens = append(r.tokens, t)
		}
	}
	return err
}

func (r *tokenStatus) show(_ *statusView, to *statusLines) {
	for i, t := range r.tokens {
		if i == statusRows {
			to.ask("%d more tokens end within 14 days: 'widgetd token list' shows them", len(r.tokens)-i)
			break
		}
		to.ask("the token %s of %s ends on %s: issue another, or revoke it", t.ID, printable(t.ClientID), t.ExpiresAt)
	}
}
