package main

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
)

// The options of these commands.
var (
	optAppKind = option{name: "kind", value: "KIND", def: appWeb, member: "kind",
		help:  "where it runs: on a server, which can keep a secret, in a browser, or on a device",
		words: func() []string { return asTexts(registeredKinds) }}
	optRedirectURI = option{name: "redirect-uri", value: "URI,…", member: "redirect_uris", reads: asURIs,
		help: "where people are sent back to, separated by commas (one within an address stays, unless a scheme " +
			"follows it); for installed ones also http://127.0.0.1/back or com.example.app:/back"}
	optAppOrigin = option{name: "origin", value: "ORIGIN,…", member: "origins", reads: asList,
		help: "of the sites on which it runs, for the kind browser"}
	optOwnScope = option{name: "own-scope", value: "SCOPE,…", member: "own_scope", reads: asWords,
		help:  "what it may do for the account that owns it, by client credentials; by default nothing",
		words: func() []string { return appScopes }}
	optUndo = option{name: "undo", help: "no longer: only the account that owns it can agree to it then"}
)

// The options of serve about documents.
var (
	optClientDocuments = option{name: "client-documents",
		help: "take the https address of a Client ID Metadata Document as client_id, so that owners of accounts can " +
			"agree to applications that nobody has registered", hasVariable: true}
	optClientDocumentList = option{name: "client-document-list", value: "URL,…",
		help:        "with -client-documents, the only addresses of documents that are taken; by default any",
		hasVariable: true}
)

// The commands on applications that are names for routes.
var appRouteCommands = []routeCommand{
	{name: "app add", route: "POST /apps", args: "NAME",
		help: "register an application that every account can agree to; its secret is shown once",
		options: []option{optAppKind, optRedirectURI, optAppOrigin,
			optScope.says("what it may ask for, separated by commas").takes(optOwnScope.words), optOwnScope},
		says: sayNewApp},
	{name: "app list", route: "GET /apps", rows: &listCommand{short: true, prefix: "app", columns: "ID NAME KIND " +
		"VERIFIED=verified_at SCOPE HOME-PAGE=home_page ACCOUNT=account_id"}},
	{name: "app rotate-secret", route: "POST /apps/{id}/rotate-secret",
		help: "give an application another secret, shown once; the one before is taken too for a week",
		says: sayAppSecret},
	{name: "app remove", route: "DELETE /apps/{id}", options: []option{optUnasked},
		help: "remove an application; nothing of it works from then on, and every grant of it ends",
		text: "application ${id} (${name}) removed",
		asks: asking("removes the application ${id} (${name}) for good, with ${ends.grants grant} and " +
			"${ends.webhooks webhook}")},
}

// The other command on applications.
var appCommands = []command{
	{"app verify", "APP", "vouch for an application of a tenant, so that every account can agree to it",
		[]option{optUndo}, appVerify},
}

// commaBefore matches the commas of a list of addresses that separate two, not those within one.
var commaBefore = regexp.MustCompile(`,+( |$|[A-Za-z][A-Za-z0-9+.-]*:/)`)

// asURIs sends a list of addresses, which are separated by commas or spaces.
func asURIs(_ *env, text string) (any, error) {
	return strings.Fields(commaBefore.ReplaceAllString(text, " $1")), nil
}

// sayNewApp says the id of a new application, and its secret if it has one.
func sayNewApp(made *jsonValue) string {
	if rawMember(made, "client_secret") == "" {
		return "client id:     ${id}\nclient secret: none: with PKCE it needs no secret"
	}
	return "client id:     ${id}\nclient secret: ${client_secret}  (shown once)"
}

// sayAppSecret says the new secret of an application.
func sayAppSecret(p *jsonValue) string {
	text := "client secret: ${client_secret}  (shown once)\n"
	if rawMember(p, "previous_secret_until") == "" {
		return text + "the one before is not taken any more"
	}
	return text + "the one before is taken too until ${previous_secret_until}"
}

func appVerify(e *env) error {
	p, err := changed(e, func(t *tx) (*app, error) {
		p, err := verifyApp(t, anyAccount, e.args[0], e.on("undo"), e.actor())
		return p, e.explain(err)
	})
	if err != nil {
		return err
	}
	who := "every account can agree to it"
	if p.VerifiedAt.IsZero() {
		who = "only the account that owns it can agree to it"
	}
	return e.print(p, fmt.Sprintf("%s (%s): %s", p.ID, printable(p.Name), who))
}

// The commands on grants, which are names for routes.
var grantRouteCommands = []routeCommand{
	{name: "grant list", route: "GET /grants", help: "list which applications may act for which accounts, newest first",
		rows: &listCommand{prefix: "grt", columns: "ID APPLICATION=app.name OWNER=app.owner SCOPE USED=used_at " +
			"EXPIRES=expires_at ENDED=ended_at WHY=ended_by ACCOUNT=account_id"}},
	{name: "grant revoke", route: "DELETE /grants/{id}", text: "grant ${id} revoked",
		help: "end a grant, and with it its tokens and the webhooks that were made under it"},
}

// noteSignin says for whom a code is, until when by that account's clock, and where it is entered.
func noteSignin(e *env, made *jsonValue) {
	text, err := queried(e, func(q *queries) (string, error) {
		a, err := q.account(e.args[0])
		settings, failed := q.settings(a.ID)
		base, missing := q.baseURLs()
		zone, unknown := loadZone(settings.Zone)
		if err = cmp.Or(err, failed, missing, unknown); err != nil || len(base) == 0 {
			return "", err
		}
		until, _ := parseStamp(rawMember(made, "expires_at"))
		page := "/oauth/signin"
		if e.on("books") {
			page = booksPath
		}
		return fmt.Sprintf("for %s, once, until %s (%s), at %s", printable(a.Name), until.In(zone).Format("15:04"),
			settings.Zone, base[0].URL+page), nil
	})
	if err == nil && !e.on("json") {
		e.note("%s\n", text)
	}
}
