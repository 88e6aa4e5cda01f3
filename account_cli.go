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
	"unicode"
	"unicode/utf8"
)

// The options of these commands.
var (
	optBaseURL     = option{name: "base-url", value: "URL", def: "http://127.0.0.1:8080/v1", help: "the address that callers use, ending in /v1"}
	optName        = option{name: "name", value: "NAME", def: "main", help: "name of the main account"}
	optOrigin      = option{name: "origin", value: "ORIGIN,…", help: "origins of the main account's sites"}
	optScope       = option{name: "scope", value: "SCOPE…", help: "what the token may do, space-separated: " + strings.Join(grantableScopes, " ")}
	optTTL         = option{name: "ttl", value: "DURATION", def: "720h", help: "how long the token holds: 720h, 90d"}
	optClientID    = option{name: "client-id", value: "ID", help: "name of the application that carries the token; by default the account's id"}
	optAllAccounts = option{name: "all-accounts", help: "let the token name any account by ?account_id="}
)

// The operator's commands on accounts, and on what belongs to them: base addresses,
// origins, tokens.
var accountCommands = []command{
	{"init", "", "make the database, the key file and the main account; existing ones are never touched", []option{optBaseURL, optName, optOrigin}, 0, initCommand},
	{"base-url", "", "show the base address, and earlier ones that tokens may still name", nil, 0, baseURLList},
	{"base-url set", "URL", "set the base address; the one before stays accepted", nil, 1, baseURLSet},
	{"base-url remove", "URL", "accept an earlier base address no longer", nil, 1, baseURLRemove},
	{"account add", "NAME", "open an account", nil, 1, accountAdd},
	{"account list", "", "list accounts", nil, 0, accountList},
	{"account rate", "ID N", "let an account make N requests a minute", nil, 2, accountRate},
	{"account close", "ID", "close an account: nothing of it works any more, its rows stay", nil, 1, accountClose},
	{"origin add", "ORIGIN", "list an account's site", []option{optAccount}, 1, originAdd},
	{"origin list", "", "list origins", nil, 0, originList},
	{"origin remove", "ORIGIN", "unlist a site", nil, 1, originRemove},
	{"token issue", "", "print a new bearer token", []option{optAccount, optScope, optTTL, optClientID, optAllAccounts}, 0, tokenIssue},
	{"token list", "", "list tokens, newest first", nil, 0, tokenList},
	{"token revoke", "ID", "refuse a token from now on", nil, 1, tokenRevoke},
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
	origins := e.commaList("origin")
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

// needAccount returns -account, which the command can't do without.
func (e *env) needAccount() (string, error) {
	if !validID("acct", e.str("account")) {
		return "", usageError("-account ID is needed: 'widgetd account list' shows the ids")
	}
	return e.str("account"), nil
}

// filterAccount returns the owner of the rows that a list shows: -account, or else any
// account, since who may run commands may read everything.
func (e *env) filterAccount() (owner, error) {
	id, err := e.filterID("account", "acct")
	if err != nil || id != "" {
		return ownedBy(id), err
	}
	return anyAccount, nil
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

func tokenIssue(e *env) error {
	account, err := e.needAccount()
	if err != nil {
		return err
	}
	scopes := e.commaList("scope")
	for _, scope := range scopes {
		if !slices.Contains(grantableScopes, scope) {
			return usageError(fmt.Sprintf("there is no scope %q: there are %s", scope, strings.Join(grantableScopes, " ")))
		}
	}
	if len(scopes) == 0 {
		return usageError("-scope is needed, as \"stats:read leads:read\"")
	}
	ttl, err := parseAge(e.str("ttl"))
	if err != nil {
		return err
	}
	client := cmp.Or(e.str("client-id"), account)
	if err := checkClientID(client); err != nil {
		return usageError(err.Error())
	}
	keys, err := loadKeyring(e.str("key"))
	if err != nil {
		return err
	}
	token, row := "", tokenRow{AccountID: account, ClientID: client, Scope: strings.Join(scopes, " "), AllAccounts: e.on("all-accounts")}
	err = e.change(func(t *tx) (err error) {
		token, row, err = issueToken(t, keys, row, ttl)
		return err
	})
	if err != nil {
		return err
	}
	return e.print(map[string]any{"id": row.ID, "token": token, "expires_at": row.ExpiresAt}, token)
}

func tokenList(e *env) error {
	return e.withStore(func(st *store) error {
		all, err := st.tokens()
		if err != nil {
			return err
		}
		return printRows(e, all, "ID CLIENT SCOPE ALL-ACCOUNTS EXPIRES REVOKED ACCOUNT", func(r tokenRow) []any {
			return []any{r.ID, r.ClientID, r.Scope, r.AllAccounts, r.ExpiresAt, r.RevokedAt, r.AccountID}
		})
	})
}

func tokenRevoke(e *env) error {
	return e.changeQuietly(func(t *tx) error { return t.revokeToken(e.args[0]) })
}
