package main

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// The options of these commands.
var (
	optHomePage = option{name: "home-page", value: "URL", help: "its home page, for people: https://app.example"}
	optAppKind  = option{name: "kind", value: "KIND", def: appWeb,
		help: "web, which runs on a server and can keep a secret, browser or installed"}
	optRedirectURI = option{name: "redirect-uri", value: "URI,…",
		help: "where people are sent back to, separated by commas (one within an address stays, unless a scheme " +
			"follows it); for installed ones also http://127.0.0.1/back or com.example.app:/back"}
	optAppOrigin = option{name: "origin", value: "ORIGIN,…",
		help: "of the sites on which it runs, for the kind browser"}
	optOwnScope = option{name: "own-scope", value: "SCOPE,…",
		help: "what it may do for the account that owns it, by client credentials; by default nothing"}
	optUndo = option{name: "undo", help: "no longer: only the account that owns it can agree to it then"}
	optNow  = option{name: "now", help: "stop taking the secret before at once"}
)

// The operator's commands on applications.
var appCommands = []command{
	{"app add", "NAME", "register an application that every account can agree to; its secret is shown once",
		[]option{optAccount.says("the account that owns it"), optHomePage, optAppKind, optRedirectURI, optAppOrigin,
			optScope.says("what it may ask for, separated by commas: " + strings.Join(appScopes, ", ")), optOwnScope,
		}, 1, appAdd},
	{"app list", "", "list applications, newest first",
		[]option{optAllRows, optAccount.says("show only applications of this account"), optSince, optUntil}, 0,
		appList},
	{"app verify", "APP", "vouch for an application of a tenant, so that every account can agree to it",
		[]option{optUndo}, 1, appVerify},
	{"app rotate-secret", "APP",
		"give an application another secret, shown once; the one before is taken too for a week",
		[]option{optNow}, 1, appRotate},
	{"app remove", "APP", "remove an application; nothing of it works from then on, and every grant of it ends",
		[]option{optUnasked}, 1, appRemove},
}

// appAuthor returns the operator as the author of a change, who vouches for it and has every scope.
func (e *env) appAuthor() appAuthor {
	return appAuthor{actor: e.actor(), operator: true, has: func(string) bool { return true }}
}

// explainAppError turns the refusals of the rules of applications, which are worded for callers of the API, into
// errors for the operator that name the next step.
func explainAppError(err error) error {
	var wrong *refusal
	switch {
	case errors.Is(err, errApp):
		return errors.New("not found: 'widgetd app list' prints what there is")
	case errors.Is(err, errAppLimit):
		return fmt.Errorf("the account has %d applications already: remove one first", maxApps)
	case errors.As(err, &wrong) && wrong.code == codeValidation:
		return errors.New("-origin: " + wrong.fields[0].Detail)
	}
	return err
}

// commaBefore matches the commas of a list of addresses that separate two, not those within one.
var commaBefore = regexp.MustCompile(`,+( |$|[A-Za-z][A-Za-z0-9+.-]*:/)`)

// uriList returns the addresses of a list, which are separated by commas or spaces.
func uriList(text string) []string { return strings.Fields(commaBefore.ReplaceAllString(text, " $1")) }

// newApp returns the application that the command's argument and options describe. Errors: usageError.
func (e *env) newApp() (*app, error) {
	p := &app{Name: e.args[0], HomePage: e.str("home-page"), Kind: e.str("kind"),
		RedirectURIs: uriList(e.str("redirect-uri")), Origins: e.commaList("origin"),
		Scope:    strings.Join(e.commaList("scope"), " "),
		OwnScope: nilIfEmpty(strings.Join(e.commaList("own-scope"), " "))}
	if _, detail := checkText(p.Name, required, maxAppName); detail != "" {
		return nil, usageError("NAME: " + detail)
	}
	if _, err := e.choice("kind", appKinds); err != nil {
		return nil, err
	}
	for _, name := range []string{"scope", "own-scope"} {
		for _, scope := range e.commaList(name) {
			if !slices.Contains(appScopes, scope) {
				return nil, unknownWord("-"+name+": there is no scope of applications", scope, appScopes)
			}
		}
	}
	switch {
	case p.HomePage == "":
		return nil, usageError("-home-page URL is needed")
	case len(p.RedirectURIs) == 0 || len(p.RedirectURIs) > maxRedirectURIs:
		return nil, usageError(fmt.Sprintf("-redirect-uri is needed, with at most %d addresses", maxRedirectURIs))
	case len(p.Origins) > maxAppOrigins:
		return nil, usageError(fmt.Sprintf("-origin: at most %d", maxAppOrigins))
	case p.Scope == "":
		return nil, usageError("-scope is needed, as \"orders:read\": the scopes are " + strings.Join(appScopes, ", "))
	}
	var err error
	p.normalise(func(member, code, detail string) {
		member, _, _ = strings.Cut(member, "/")
		err = cmp.Or(err, wrongValue(code, optionOfMember[member]+": "+detail))
	})
	return p, err
}

// optionOfMember says which option of app add sets a member of an application.
var optionOfMember = map[string]string{
	"name":          "NAME",
	"home_page":     "-home-page",
	"redirect_uris": "-redirect-uri",
	"origins":       "-origin",
	"scope":         "-scope",
	"own_scope":     "-own-scope",
}

func appAdd(e *env) error {
	p, err := e.newApp()
	if err != nil {
		return err
	}
	if p.AccountID, err = e.needAccount(); err != nil {
		return err
	}
	secret, err := changed(e, func(t *tx) (string, error) {
		secret, err := createApp(t, p, e.appAuthor())
		return secret, explainAppError(err)
	})
	if err != nil {
		return err
	}
	shown := "none: with PKCE it needs no secret"
	if secret != "" {
		shown = secret + "  (shown once)"
	}
	return e.print(&appWithSecret{p, nilIfEmpty(secret)},
		fmt.Sprintf("client id:     %s\nclient secret: %s", p.ID, shown))
}

func appList(e *env) error {
	ids := idOf[*app]{"app", func(row *app) string { return row.ID }}
	return printOwned(e, ids, (*queries).apps, "ID NAME KIND VERIFIED SCOPE HOME-PAGE ACCOUNT", func(p *app) []any {
		return []any{p.ID, p.Name, p.Kind, p.VerifiedAt, p.Scope, p.HomePage, accountCell(p.AccountID)}
	})
}

func appVerify(e *env) error {
	return printChanged(e, func(t *tx) (*app, error) {
		p, err := verifyApp(t, anyAccount, e.args[0], e.on("undo"), e.actor())
		return p, explainAppError(err)
	}, func(p *app) string {
		who := "every account can agree to it"
		if p.VerifiedAt.IsZero() {
			who = "only the account that owns it can agree to it"
		}
		return fmt.Sprintf("%s (%s): %s", p.ID, printable(p.Name), who)
	})
}

func appRotate(e *env) error {
	return printChanged(e, func(t *tx) (appWithSecret, error) {
		p, secret, err := rotateAppSecret(t, anyAccount, e.args[0], e.on("now"), e.appAuthor())
		return appWithSecret{p, &secret}, explainAppError(err)
	}, func(p appWithSecret) string {
		before := "the one before is not taken any more"
		if !p.EarlierUntil.IsZero() {
			before = "the one before is taken too until " + p.EarlierUntil.String()
		}
		return fmt.Sprintf("client secret: %s  (shown once)\n%s", *p.ClientSecret, before)
	})
}

func appRemove(e *env) error {
	name := ""
	return e.changeConfirmed(func(q *queries) (string, error) {
		p, err := q.usedApp(anyAccount, e.args[0])
		if err != nil {
			return "", explainAppError(err)
		}
		name = withName(p.ID, p.Name)
		grants, webhooks, err := q.countOfApp(p.ID)
		return fmt.Sprintf("removes the application %s for good, with %s and %s", name, countOf(grants, "grant"),
			countOf(webhooks, "webhook")), err
	}, func(t *tx) (string, error) {
		return "application " + name + " removed", explainAppError(removeApp(t, anyAccount, e.args[0], e.actor()))
	})
}

// The options of these commands.
var optEnded = option{name: "ended", help: "show those that have ended, too"}

// The operator's commands on grants.
var grantCommands = []command{
	{"grant list", "", "list which applications may act for which accounts, newest first", []option{
		optLimit, optAccount.says("show only what this account has agreed to"), optEnded, optSince, optUntil,
	}, 0, grantList},
	{"grant revoke", "GRANT", "end a grant, and with it its tokens and the webhooks that were made under it",
		nil, 1, grantRevoke},
}

func grantList(e *env) error {
	o, err := e.filterAccount()
	if err != nil {
		return err
	}
	read := func(q *queries, ended bool, before string, limit int) (listPage[*grant], error) {
		return q.grants(o, ended, before, limit)
	}
	const header = "ID APPLICATION OWNER SCOPE USED EXPIRES ENDED WHY ACCOUNT"
	ids := idOf[*grant]{"grt", func(row *grant) string { return row.ID }}
	return printList(e, ids, read, e.on("ended"), header, func(g *grant) []any {
		return []any{g.ID, g.App.Name, g.App.Owner, g.Scope, g.UsedAt, g.ExpiresAt, g.EndedAt, g.EndedBy,
			accountCell(g.AccountID)}
	})
}

func grantRevoke(e *env) error {
	return e.changeNamed(func(t *tx) (string, error) {
		err := endGrant(t, anyAccount, e.args[0], endedByOperator, e.actor())
		return "grant " + e.args[0] + " revoked",
			replaced(err, errGrant, errors.New("not found: 'widgetd grant list -ended' prints what there is"))
	})
}

// accountSignin prints a new code to sign in with, which is stored nowhere.
func accountSignin(e *env) error {
	_, keys, err := e.loadKeys()
	if err != nil {
		return err
	}
	return printChanged(e, func(t *tx) (*newSignin, error) { return makeSigninCode(t, keys, e.args[0], e.actor()) },
		func(v *newSignin) string { return v.Code })
}
