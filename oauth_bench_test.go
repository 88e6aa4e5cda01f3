package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"
)

// grantsOfOne is how many grants of one application the large database of the benchmarks of grants has. Each
// has a code that was used, a refresh token and an access token.
var grantsOfOne = flag.Int("grants", 1_000, "grants of one application in the benchmarks of grants")

// A granted is a service with many grants of one public application, 100 of each account.
type granted struct {
	*service
	app      *app
	accounts []string
	tokens   []string // refresh tokens of some of the grants
	visitor  *visitor
	device   string // token of a device
}

// fillGrants gives each account 100 grants of an application, each with a code that was used, a refresh token and
// an access token. codes and rest are when the codes, and all the others, expire.
func (s *service) fillGrants(p *app, accounts []string, codes, rest stamp) {
	s.t.Helper()
	const each, atOnce = maxGrants, 20_000
	list := encodeJSON(accounts)
	s.sql(`CREATE TABLE filling (i INTEGER PRIMARY KEY, account TEXT)`)
	s.sql(`INSERT INTO filling SELECT key, value FROM json_each(?)`, string(list))
	made := newStamp(s.store.now())
	for done := 0; done < each*len(accounts); done += atOnce {
		n := min(atOnce, each*len(accounts)-done)
		rows := manyRows(n) + fmt.Sprintf(`, r(i, account) AS (SELECT n.i + %d, a.account
			FROM n JOIN filling a ON a.i = (n.i + %[1]d) %% %d) `, done, len(accounts))
		s.sql(rows+`INSERT INTO grants (id, app_id, account_id, scope, agreed_by, created_at, used_at, expires_at)
			SELECT printf('grt_%026d', i), ?1, account, 'orders:read', 'portal', ?2, ?2, ?3 FROM r`, p.ID, made, rest)
		s.sql(rows+`INSERT INTO grant_codes (hash, app_id, account_id, redirect_uri, challenge, scope, agreed_by,
			grant_id, created_at, expires_at)
			SELECT randomblob(32), ?1, account, ?2, ?3, 'orders:read', 'portal',
			printf('grt_%026d', i), ?4, ?5 FROM r`, p.ID, testRedirect, testChallenge, made, codes)
		s.sql(rows+`INSERT INTO refresh_tokens (hash, grant_id, number, expires_at)
			SELECT randomblob(32), printf('grt_%026d', i), 1, ? FROM r`, rest)
		s.sql(rows+`INSERT INTO app_tokens (id, app_id, grant_id, account_id, scope, kid, created_at, expires_at)
			SELECT printf('tok_%026d', i), ?1, printf('grt_%026d', i), account, 'orders:read', 'key', ?2, ?3 FROM r`,
			p.ID, made, rest)
	}
	s.sql(`DROP TABLE filling`)
}

// newGranted makes a service with n grants that have not ended, of which the codes have expired.
func newGranted(b *testing.B, n int) *granted {
	s := &granted{service: newService(b, withoutAddressLimits)}
	s.app, _ = s.registerApp(inBrowsers)
	s.accounts = append(s.manyAccounts(n/maxGrants), s.account)
	now := newStamp(time.Now())
	s.fillGrants(s.app, s.accounts, now.after(-time.Hour), now.after(refreshLife))
	for i := range 200 {
		token := newRefreshToken()
		s.sql(`UPDATE refresh_tokens SET hash = ? WHERE grant_id = printf('grt_%026d', ?)`, hashOf(token), 1+i*n/200)
		s.tokens = append(s.tokens, token)
	}
	s.change(func(t *tx) error { return t.setRate(s.account, 1_000_000) })
	_, key := s.addLicense(license{})
	s.device = s.activate(key, "a").is(200).text("token")
	s.visitor = s.signedIn(s.account)
	return s
}

// manyAccounts adds n accounts in one transaction.
func (s *service) manyAccounts(n int) (ids []string) {
	s.t.Helper()
	s.change(func(t *tx) error {
		for i := range n {
			ids = append(ids, t.newID("acct"))
			_, err := t.exec(`INSERT INTO accounts (id, name, rate, created_at) VALUES (?, ?, 1000000, ?)`, ids[i],
				fmt.Sprint("Trattoria ", i), t.now)
			if err != nil {
				return err
			}
		}
		return nil
	})
	return ids
}

// anyone returns one of the accounts that have grants.
func (s *granted) anyone() string { return s.accounts[rand.IntN(len(s.accounts))] }

// renew uses one of the refresh tokens, keeps its successor in its place, and returns how long that took.
func (s *granted) renew(i int) time.Duration {
	took, body := s.ask("POST", "/oauth/token", refreshForm(s.app, s.tokens[i]), formType)
	s.tokens[i] = answer{s.t, 200, nil, body}.text("refresh_token")
	return took
}

// ask makes a request and returns how long its answer takes without the harness. It must succeed.
func (s *granted) ask(method, path, body string, headers ...string) (took time.Duration, text string) {
	s.t.Helper()
	s.server.addressBuckets = newLimiter(16)
	r := httptest.NewRequestWithContext(s.t.Context(), method, "/v1"+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	s.check(setHeaders(r.Header, headers))
	w := httptest.NewRecorder()
	start := time.Now()
	s.server.ServeHTTP(w, r)
	took = time.Since(start)
	if w.Code >= 400 {
		s.t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
	}
	return took, w.Body.String()
}

// BenchmarkGrants compares what a request costs in a database with 1,000 grants and in a large one, in turn, so
// that whatever else the machine does weighs on both:
//
//	go test -run '^$' -bench Grants$ -grants 1000000 -benchtime 500x -timeout 30m
func BenchmarkGrants(b *testing.B) {
	small, large := newGranted(b, 1000), newGranted(b, *grantsOfOne)
	headers := map[*granted]string{small: small.appAuth(small.account), large: large.appAuth(large.account)}
	admin := map[*granted]string{small: small.auth(small.account, scopeAdmin),
		large: large.auth(large.account, scopeAdmin)}
	get := func(path string, of map[*granted]string) func(*granted) time.Duration {
		return func(s *granted) time.Duration { took, _ := s.ask("GET", path, "", of[s]); return took }
	}
	exchange := func(s *granted, account string) (time.Duration, string) {
		code := s.agree(s.app, account, scopeOrders)
		return s.ask("POST", "/oauth/token", codeForm(s.app, code), formType)
	}
	page := func(s *granted) (time.Duration, string) {
		return s.ask("GET", authorizePath(s.app.askFor()), "", "Cookie: "+s.visitor.cookie)
	}
	turn := 0
	for _, c := range []struct {
		name string
		call func(*granted) time.Duration
	}{
		// Those that use grants come before those that have the oldest ones end.
		{"refresh", func(s *granted) time.Duration { return s.renew(0) }},
		{"refreshAny", func(s *granted) time.Duration { turn++; return s.renew(turn / 2 % len(s.tokens)) }},
		{"exchange", func(s *granted) time.Duration { took, _ := exchange(s, s.account); return took }},
		{"exchangeOfAny", func(s *granted) time.Duration { took, _ := exchange(s, s.anyone()); return took }},
		{"revoke", func(s *granted) time.Duration {
			_, body := exchange(s, s.account)
			form := tokenForm("token", answer{s.t, 200, nil, body}.text("refresh_token"), "client_id", s.app.ID)
			took, _ := s.ask("POST", "/oauth/revoke", form, formType)
			return took
		}},
		{"consentPage", func(s *granted) time.Duration { took, _ := page(s); return took }},
		{"consent", func(s *granted) time.Duration {
			_, body := page(s)
			_, fields := answer{s.t, 200, nil, body}.form("decision")
			fields.Set("decision", "allow")
			took, _ := s.ask("POST", authorizePath(s.app.askFor()), fields.Encode(), formType, fromHere,
				"Cookie: "+s.visitor.cookie)
			return took
		}},
		{"connected", func(s *granted) time.Duration {
			took, _ := s.ask("GET", "/oauth/connected", "", "Cookie: "+s.visitor.cookie)
			return took
		}},
		{"grants", get("/grants", headers)},
		{"grantsOfAll", get("/grants", admin)},
		{"apps", get("/apps", headers)},
		{"lead", func(s *granted) time.Duration { took, _ := s.ask("POST", "/widget/leads", aLead); return took }},
		{"verify", func(s *granted) time.Duration {
			took, _ := s.ask("POST", "/widget/license/verify", `{}`, bearer(s.device))
			return took
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var took [2][]time.Duration
			for b.Loop() {
				for i, s := range []*granted{small, large} {
					took[i] = append(took[i], c.call(s))
				}
			}
			a, z := median(took[0]), median(took[1])
			b.ReportMetric(float64(a)/1e3, "small-µs")
			b.ReportMetric(float64(z)/1e3, "large-µs")
			b.ReportMetric(float64(z)/float64(a), "large/small")
		})
	}
}

// BenchmarkGrants_sweep has the sweep end and remove grants, codes and tokens whose time is over, while somebody
// else goes on writing. It reports how long each kind takes, how long a write waited at most, and the size of the
// file before and after:
//
//	go test -run '^$' -bench Grants_sweep -grants 1000000 -benchtime 1x -timeout 60m -v
func BenchmarkGrants_sweep(b *testing.B) {
	for range b.N {
		s := newService(b)
		p, _ := s.registerApp()
		over := newStamp(time.Now()).after(-days(2))
		s.fillGrants(p, append(s.manyAccounts(*grantsOfOne/maxGrants-1), s.account), over, over)
		size := func() float64 {
			info, err := os.Stat(s.store.path)
			s.check(err)
			return float64(info.Size()) / (1 << 20)
		}
		b.ReportMetric(size(), "MiB-before")
		w := &appSweeper{store: s.store, now: time.Now, steady: time.Now,
			kept: func(now time.Time) time.Time { return now.Add(-days(1)) }}
		waited := make(chan time.Duration)
		ctx, end := context.WithCancel(b.Context())
		go func() { waited <- longestWrite(ctx, s.store) }()
		began, runs, longest := time.Now(), 0, time.Duration(0)
		for done := false; !done; done = !w.more { // every upkeepInterval, or as soon as the last run has ended
			run := time.Now()
			s.check(w.sweep(ctx))
			longest, runs = max(longest, time.Since(run)), runs+1
		}
		b.ReportMetric(time.Since(began).Seconds(), "s/until-ended")
		w.kept = func(now time.Time) time.Time { return now.Add(time.Hour) }
		began, w.sweptAt = time.Now(), time.Time{}
		for done := false; !done; done = !w.more {
			s.check(w.sweep(ctx))
		}
		b.ReportMetric(time.Since(began).Seconds(), "s/until-removed")
		end()
		b.ReportMetric(float64((<-waited).Microseconds())/1000, "ms/longest-write")
		b.ReportMetric(float64(longest.Microseconds())/1000, "ms/longest-run")
		b.ReportMetric(float64(runs), "runs")
		b.ReportMetric(size(), "MiB-after")
		if n := s.count(`SELECT (SELECT count(*) FROM grants) + (SELECT count(*) FROM grant_codes)
			+ (SELECT count(*) FROM app_tokens) + (SELECT count(*) FROM refresh_tokens)`); n != 0 {
			b.Errorf("%d rows are left", n)
		}
	}
}
