package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// A tokenUser is an application that comes for tokens again and again, until its service is gone.
type tokenUser struct {
	app     *app
	secret  string
	code    string // that it holds and has not exchanged, as far as it knows
	refresh string // that it uses next; "": it has none
	seen    int    // answers that it got
	lost    int    // requests that were not answered
	anew    int    // grants that it had to begin anew
	faults  []string
}

// form is what it asks with: it exchanges its code, or else refreshes.
func (u *tokenUser) form() url.Values {
	form := url.Values{"client_id": {u.app.ID}}
	if u.secret != "" {
		form.Set("client_secret", u.secret)
	}
	if u.refresh != "" {
		form.Set("grant_type", "refresh_token")
		form.Set("refresh_token", u.refresh)
		return form
	}
	form.Set("grant_type", "authorization_code")
	form.Set("code", u.code)
	form.Set("code_verifier", testVerifier)
	form.Set("redirect_uri", u.app.RedirectURIs[0])
	return form
}

// ask comes for tokens once. It reports whether it was answered, and can go on. Only the exchange of a code may be
// refused, if the answer to the one before was lost.
func (u *tokenUser) ask(client *http.Client, base string) bool {
	res, err := client.PostForm(base+"/oauth/token", u.form())
	var said struct {
		Access  string `json:"access_token"`
		Refresh string `json:"refresh_token"`
		Error   string
	}
	if err == nil {
		err = errors.Join(json.NewDecoder(res.Body).Decode(&said), res.Body.Close())
	}
	if err != nil {
		u.lost++
		return false
	}
	u.seen++
	switch {
	case res.StatusCode == http.StatusBadRequest && said.Error == "invalid_grant" && u.refresh == "" && u.lost > 0:
		u.anew++
		u.code = ""
		return false
	case res.StatusCode != http.StatusOK || said.Access == "":
		u.faults = append(u.faults, res.Status+" "+said.Error+" with "+u.form().Get("grant_type"))
		return false
	case u.refresh != "" && u.secret != "" && said.Refresh != "" && said.Refresh != u.refresh:
		u.faults = append(u.faults, "a confidential application got another refresh token")
	case u.refresh != "" && u.secret == "" && said.Refresh == u.refresh:
		u.faults = append(u.faults, "a public application kept its refresh token")
	}
	u.code = ""
	if said.Refresh != "" {
		u.refresh = said.Refresh
	}
	return true
}

// giveCodes writes a code for each user that has neither a code nor a refresh token, and returns how many refresh
// tokens of one grant work at most.
func giveCodes(o *operator, users []*tokenUser) (living int) {
	o.store(func(st *store) {
		err := st.update(o.t.Context(), func(t *tx) error {
			for _, u := range users {
				if u.code != "" || u.refresh != "" {
					continue
				}
				u.code = randomText(32)
				t.addGrantCode(&grantCode{Hash: hashOf(u.code), AppID: u.app.ID, AccountID: o.account,
					RedirectURI: u.app.RedirectURIs[0], Challenge: testChallenge, Scope: scopeOrders, AgreedBy: "test",
					CreatedAt: t.now, ExpiresAt: t.now.after(grantCodeLife)})
			}
			return t.one(`SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM refresh_tokens
				WHERE replaced_at IS NULL GROUP BY grant_id)`, nil, &living)
		})
		if err != nil {
			o.t.Fatal(err)
		}
	})
	return living
}

func TestOAuth_killedAtAnyMomentEveryApplicationGoesOnOrBeginsAnew(t *testing.T) {
	t.Parallel()
	const each = 4
	kills, chance := size(3, 10), random(t, 0)
	o := newOperator(t)
	var users []*tokenUser
	o.store(func(st *store) {
		s := &service{t: t, store: st, account: o.account}
		for range each {
			web, secret := s.registerApp()
			public, _ := s.registerApp(func(p *app) { p.Kind = appInstalled })
			users = append(users, &tokenUser{app: web, secret: secret}, &tokenUser{app: public})
		}
	})
	for n := range kills {
		for i, u := range users { // some go on where they were, and the others connect once more
			if i/2%2 == n%2 && u.code == "" {
				u.refresh = ""
			}
		}
		if living := giveCodes(o, users); living > 1 {
			t.Errorf("a grant has %d refresh tokens that work", living)
		}
		p := serveProcess(t, o)
		client := newClient(t)
		var all sync.WaitGroup
		var answers atomic.Int64
		enough, wanted := make(chan struct{}), chance.Int64N(100)
		kill := sync.OnceFunc(func() { close(enough) })
		for _, u := range users {
			all.Go(func() {
				for u.ask(client, p.base) {
					if answers.Add(1) > wanted {
						kill()
					}
				}
			})
		}
		go func() { all.Wait(); kill() }()
		<-enough
		p.stop(syscall.SIGKILL)
		all.Wait()
		client.CloseIdleConnections()
	}
	if living := giveCodes(o, users); living > 1 {
		t.Errorf("a grant has %d refresh tokens that work", living)
	}
	seen, lost, anew := 0, 0, 0
	for _, u := range users {
		seen, lost, anew = seen+u.seen, lost+u.lost, anew+u.anew
		for _, fault := range u.faults {
			t.Error(u.app.Kind, fault)
		}
	}
	t.Logf("%d answers, %d lost, %d grants begun anew", seen, lost, anew)
	if lost < kills || seen < 5*kills {
		t.Error("the kills met no load")
	}
}
