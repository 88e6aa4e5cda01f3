package main

import (
	"context"
	"net/http"
)

// accountWing makes the routes of accounts, and sweeps tokens that ended before keepTokens.
func accountWing(s *server) wing {
	return wing{
		routes: []route{
			{pattern: "GET /account", token: tokenRequired, run: s.showAccount},
			{pattern: "PATCH /account", token: tokenRequired, scope: scopeAdmin, careful: true, body: maxAccountBody,
				run: s.patchAccount},
			{pattern: "GET /logo/{hash}", free: true, address: "logo", page: "logo", run: s.showLogo},
		},
		refusals: map[string]refusalForm{"logo": func(_ *http.Request, ref *refusal, _ string) *reply {
			return lostTemplate.renderRefusal(ref.code.status, nil)
		}},
		sweeps: []func(*tx) (int64, error){func(t *tx) (int64, error) {
			t.quiet()
			return t.removeTokens(newStamp(s.keepTokens.before(s.now())), t.limits.swept), nil
		}},
	}
}

// An accountView is an account as callers see it.
type accountView struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	accountSettings
	Issuer bool `json:"issuer"` // its own tokens may issue its licences
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

func (s *server) showAccount(ctx context.Context, c *call) (any, error) {
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	if c.caller.claims.isDevice() {
		return nil, errScope(scopeAdmin, "A device's token can't read accounts.")
	}
	return viewAccount(s.store.queries, c.oneOwner(of).account)
}

// patchAccount also takes issuer, of a command alone.
func (s *server) patchAccount(ctx context.Context, c *call) (any, error) {
	set := c.in.change(new(accountSettings).members(), false, "id", "name")
	picture, givesLogo := readLogo(c.in), c.in.has("logo")
	issuer, givesIssuer := false, false
	if c.isCommand() {
		issuer, givesIssuer = c.in.boolTerm("issuer")
	}
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	id := c.oneOwner(of).account
	return updated(ctx, s.store, func(t *tx) (*accountView, error) {
		if picture != nil {
			t.addLogo(picture)
		}
		err := changeSettings(t, s.nouns, id, func(s *accountSettings) {
			if set.apply(s.members()); givesLogo {
				s.Logo = picture.name()
			}
		}, actorToken(c))
		if err == nil && givesIssuer {
			err = changeIssuer(t, id, issuer, actorToken(c))
		}
		if err != nil {
			return nil, err
		}
		return viewAccount(t.queries, id)
	})
}

// readLogo reads the logo that a change gives an account; nil: none.
func readLogo(in *input) *logo {
	if !in.given("logo") {
		return nil
	}
	uri := in.text("logo", optional, maxLogoURI, notEmpty)
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
	if err := s.admit(ctx, c); err != nil {
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
