package main

import (
	"context"
	"net/http"
)

// accountModule makes the routes of accounts, and sweeps tokens that ended before keepTokens.
func accountModule(s *server) module {
	return module{
		routes: []route{
			{pattern: "GET /account", token: tokenRequired, endpoint: owned(s, readNoMembers, s.getAccount)},
			{pattern: "PATCH /account", scope: scopeAdmin, body: maxAccountBody,
				endpoint: owned(s, readAccountChange, s.updateAccount)},
			{pattern: "GET /logo/{hash}", free: true, address: "logo", page: "logo", run: s.showLogo},
		},
		refusals: map[string]refusalForm{"logo": func(_ *http.Request, ref *refusal, _ string) *reply {
			return lostTemplate.renderRefusal(ref.code.status, nil)
		}},
		sweeps: []func(*tx) (int64, error){func(t *tx) (int64, error) {
			t.dropsNothing()
			return t.removeTokens(newStamp(s.keepTokens.before(s.now())), t.limits.swept), nil
		}},
	}
}

// An accountView is an account, and what is known of it for orders.
type accountView struct {
	ID   string `json:"id" is:"acct"` // The id of the account.
	Name string `json:"name"`         // Its name, for people.
	accountSettings
	Issuer bool `json:"issuer"` // Whether its own tokens may issue and change its licences.
}

const maxAccountBody = 64 << 10 // bytes of a change, which may have a logo

// viewAccount returns an account as callers see it, with the address of its logo. Errors: errAccount.
func viewAccount(q *queries, id string) (*accountView, error) {
	if err := q.openAccount(id); err != nil {
		return nil, err
	}
	a, err := q.account(id)
	if err != nil {
		return nil, err
	}
	settings, err := q.settings(id)
	if err == nil && settings.Logo != nil {
		var bases []baseAddress
		if bases, err = q.baseURLs(); err == nil {
			settings.Logo = new(bases[0].URL + "/logo/" + *settings.Logo)
		}
	}
	return &accountView{a.ID, a.Name, settings, a.Issuer}, err
}

// Show an account.
//
// Shows the token's account, and what is known of it for orders. Any token may.
func (s *server) getAccount(_ context.Context, c *call, of owner, _ noMembers) (*accountView, error) {
	if c.caller.claims.isDevice() {
		return nil, errScope(scopeAdmin, "A device's token can't read accounts.")
	}
	return viewAccount(s.store.queries, c.narrowToOne(of).account)
}

// An accountChange is what to change of an account. A member that is not listed here is refused.
type accountChange struct {
	set       change
	givesLogo bool
	logo      *logo // nil: none
	issuer    *bool // nil: it stays
}

func readAccountChange(in *input) (r *accountChange) {
	r = new(accountChange)
	r.set = in.change(new(accountSettings).members(), false, "id", "name")
	r.logo, r.givesLogo = readLogo(in), in.has("logo")
	if in.has("issuer") {
		// Whether the account's own tokens may issue and change its licences. Only a command of the operator sets it.
		if issuer, isBool := in.boolTerm("issuer"); isBool {
			r.issuer = &issuer
		}
	}
	return r
}

// Change an account.
//
// Changes what is known of an account for orders. A change without effect writes nothing.
func (s *server) updateAccount(ctx context.Context, c *call, of owner, r *accountChange) (*accountView, error) {
	if r.issuer != nil && !c.isCommand() {
		return nil, errMember("issuer", "not_allowed", "Only a command of the operator sets this.")
	}
	id := c.narrowToOne(of).account
	return updated(ctx, s.store, func(t *tx) (*accountView, error) {
		if r.logo != nil {
			t.addLogo(r.logo)
		}
		err := changeSettings(t, s.nouns, id, func(s *accountSettings) {
			if r.set.apply(s.members()); r.givesLogo {
				s.Logo = r.logo.name()
			}
		}, actorToken(c))
		if err == nil && r.issuer != nil {
			err = changeIssuer(t, id, *r.issuer, actorToken(c))
		}
		if err != nil {
			return nil, err
		}
		return viewAccount(t.queries, id)
	})
}

// checkLogoURI is a check for what a logo is sent as; parseLogo judges the rest.
var checkLogoURI = &textCheck{pattern: "^data:image/(png|jpeg|webp);base64,", least: 1, of: notEmpty.of}

// readLogo reads the logo that a change gives an account; nil: none.
func readLogo(in *input) *logo {
	if !in.given("logo") {
		return nil
	}
	// The logo on the account's pages, at most 32 KiB: a `data:` URI in base64 of a PNG, JPEG or WebP of at most 1024
	// pixels each way, a PNG with nothing behind it, or null: none. An SVG is refused: send a PNG. The account shows
	// the address at which it is served.
	uri := in.text("logo", optional, maxLogoURI, checkLogoURI)
	if uri == "" {
		return nil
	}
	picture, detail := parseLogo(uri)
	if detail != "" {
		in.wrong("logo", "invalid_logo", detail)
	}
	return picture
}

// showLogo answers with a logo, which never changes. A browser that opens it by itself lets it load and run nothing.
func (s *server) showLogo(ctx context.Context, c *call) (any, error) {
	hash := c.in.pathValue("hash")
	if err := s.finishReading(ctx, c); err != nil {
		return nil, err
	}
	l, err := s.store.logo(hash)
	if err != nil {
		return nil, replaced(err, errNotFound, error(&refusal{code: codeNotFound}))
	}
	return &reply{status: http.StatusOK, body: l.Content, headers: []header{{"Content-Type", l.Type},
		{"Cache-Control", "public, max-age=31536000, immutable"},
		{"Content-Security-Policy", "default-src 'none'; sandbox"}}}, nil
}
