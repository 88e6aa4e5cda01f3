package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// session asks for a session of the bookkeeper's connection, and returns its access token.
func (k *bookkeeper) session() (access string, err error) {
	err = k.engine.ask(k.t.Context(), k.connection, func(s *ledgerSession) error { access = s.access; return nil })
	return access, err
}

// given returns how often the products were asked for tokens.
func (k *bookkeeper) given() int {
	return k.xero.came("POST", "/connect/token") + k.fortnox.came("POST", "/oauth-v1/token")
}

// needsOwner reports whether the connection has to be connected again.
func (k *bookkeeper) needsOwner() bool {
	k.t.Helper()
	c, err := k.store.bookConnection(anyAccount, k.connection)
	k.check(err)
	return !c.NeedsReconnectAt.IsZero()
}

// Against ten calls at once, a kill or a lost answer that would lose a connection by replacing its tokens twice:
// one refresh at a time, claimed in the database; new tokens are on disk before they are used.
func TestBooks_tenCallsWithAnExpiredTokenReplaceItOnce(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		k.time(2 * time.Hour)
		before := k.given()
		other := booksOf(k.server) // as a command of the operator would
		var calls sync.WaitGroup
		var mu sync.Mutex
		seen := map[string]bool{}
		for i := range 10 {
			engine := k.engine
			if i%2 == 1 {
				engine = other
			}
			calls.Go(func() {
				err := engine.ask(k.t.Context(), k.connection, func(s *ledgerSession) error {
					mu.Lock()
					defer mu.Unlock()
					seen[s.access] = true
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		calls.Wait()
		if n := k.given() - before; n != 1 || len(seen) != 1 {
			t.Errorf("%d tokens were given, %d used", n, len(seen))
		}
	})
}

func TestBooks_tokensAreReplacedOnceAMinuteAtMost(t *testing.T) {
	t.Parallel()
	for _, life := range []any{notSaid, 0, 90, "1800"} {
		t.Run(fmt.Sprint(life), func(t *testing.T) {
			t.Parallel()
			eachProduct(t, func(t *testing.T, k *bookkeeper) {
				k.time(2 * time.Hour)
				k.xero.life, k.fortnox.life = life, life
				ctx, stop := context.WithCancel(t.Context()) // a call that never ends is ended
				defer stop()
				keys, looked := k.engine.keys, 0
				k.engine.keys = func() *keyring {
					if looked++; looked == 500 {
						stop()
					}
					return keys()
				}
				var refused error
				calls := func(most int) {
					t.Helper()
					before := k.given()
					for range 60 { // ten minutes
						err := k.engine.ask(ctx, k.connection, func(*ledgerSession) error { return refused })
						if (err == nil) != (refused == nil) {
							t.Fatalf("%v", err)
						}
						k.time(10 * time.Second)
					}
					if n := k.given() - before; n > most || n == 0 {
						t.Errorf("tokens were given %d times in ten minutes, want at most %d", n, most)
					}
				}
				long := life == notSaid || life == "1800" // the product's documented life
				calls(map[bool]int{true: 1, false: 10}[long])
				refused = &outboundError{outcome: vendorDenied, status: 401}
				calls(10)
				if k.needsOwner() {
					t.Error("it needs its owner")
				}
			})
		})
	}
}

// renewals returns when Xero was asked for tokens, from a request on.
func (k *bookkeeper) renewals(from int) (at []time.Time) {
	k.xero.mu.Lock()
	defer k.xero.mu.Unlock()
	for _, r := range k.xero.requests[from:] {
		if xeroKind(r.method, r.path) == "token" {
			at = append(at, r.at)
		}
	}
	return at
}

// Against an outage in which the answer with new tokens is lost, or a kill while it is on its way, that would lose
// a connection because the old token is tried again too late: it is tried again within seconds and for 25 minutes,
// written in the database, whatever the connection's pause.
func TestBooks_aRenewalWithoutAnAnswerIsTriedAgainForTwentyFiveMinutes(t *testing.T) {
	t.Parallel()
	atXero(t, func(t *testing.T, k *bookkeeper) {
		k.sendingDay()
		k.fail("chart", slices.Repeat([]providerFault{fault500}, 1000)...)
		k.work(4 * time.Hour) // the connection's pause is half an hour now
		k.time(2 * time.Hour)
		k.fail("token", slices.Repeat([]providerFault{faultResetAfter, fault500After}, 100)...)
		asked := k.requests()
		if _, err := k.session(); err == nil {
			t.Fatal("a session without tokens")
		}
		for range 29 {
			k.work(time.Minute) // each time by another process
		}
		seconds := []int{0, 0, 10, 40, 100, 220, 520, 820, 1120, 1420, 1720} // the second for the day that is due
		got := k.renewals(asked)
		if len(got) != len(seconds) {
			t.Fatalf("tokens were asked for after %s", got)
		}
		for i, want := range seconds {
			if off := got[i].Sub(got[0]) - time.Duration(want)*time.Second; off < 0 || off > 25*time.Second {
				t.Errorf("attempt %d came after %s, want %d s", i, got[i].Sub(got[0]), want)
			}
		}
		if k.needsOwner() || k.failingRenewals() != 1 {
			t.Errorf("needs its owner: %v; %d are lost", k.needsOwner(), k.failingRenewals())
		}
		k.fail("token")
		k.time(time.Hour) // the old token was replaced longer ago than Xero takes it for
		if _, err := k.session(); err == nil || !k.needsOwner() || k.failingRenewals() != 0 {
			t.Errorf("afterwards the old token is not taken: %v", err)
		}
	})
}

// failingRenewals returns how many connections have had no usable answer about tokens.
func (k *bookkeeper) failingRenewals() (n int) {
	k.t.Helper()
	k.check(k.store.one(`SELECT count(*) FROM books_connections
		WHERE renewal_lost_at IS NOT NULL OR needs_reconnect_at IS NOT NULL AND renew_at IS NOT NULL`, nil, &n))
	return n
}

// Against a proxy that answers 403 that would end connections, which their owners would have to connect again: only
// the books' own 403 that says that the application was removed does, once.
func TestBooks_onlyTheProductsOwn403NeedsTheOwner(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		k.sendFrom(bookkeeperDay)
		day := time.Date(2000, 1, 2, 7, 0, 0, 0, time.UTC)
		for i, kind := range []string{"chart", "find", "token", "post"} {
			k.sell(1000)
			k.time(time.Until(day.AddDate(0, 0, i)))
			k.fail(kind, fault403)
			k.work(2 * time.Second)
			if x := k.exports()[i]; k.needsOwner() || x.State == exportPosted {
				t.Fatalf("a proxy's 403 for %s: needs its owner %v, the export is %s", kind, k.needsOwner(), x.State)
			}
			k.work(20 * time.Minute)
			k.adds(1000 * int64(i+1))
		}
		k.sell(1000)
		k.until("2000-01-06 07:00")
		k.xero.remove()
		k.fortnox.withdrawConsent()
		k.work(3 * time.Second)
		if !k.needsOwner() {
			t.Fatal("nobody is told that the application was removed")
		}
		asked := func() (n int) {
			k.xero.mu.Lock()
			defer k.xero.mu.Unlock()
			return len(k.xero.requests) + k.fortnox.came("GET", "/3/financialyears")
		}
		before := asked()
		k.work(3 * time.Hour)
		if n := asked() - before; n != 0 || len(k.events("books.needs_reconnect")) != 1 {
			t.Errorf("%d requests more, %d events", n, len(k.events("books.needs_reconnect")))
		}
		k.connect()
		k.work(time.Minute)
		k.adds(5000)
	})
}

func TestBooks_newTokensThatCantBeWrittenAreNotUsed(t *testing.T) {
	t.Parallel()
	atXero(t, func(t *testing.T, k *bookkeeper) {
		k.time(2 * time.Hour)
		broken := booksOf(k.server)
		broken.keys = func() *keyring { return k.keys }
		var used []string
		k.xero.passing = func(r vendorRequest) {
			if r.path == "/connect/token" { // the disk fills up while the answer is under way
				raw(t, filepath.Join(k.dir, "widgetd.db"),
					`CREATE TRIGGER full BEFORE UPDATE OF secrets ON books_connections
					BEGIN SELECT raise(ABORT, 'disk full'); END`)
			}
		}
		err := broken.ask(t.Context(), k.connection, func(s *ledgerSession) error {
			used = append(used, s.access)
			return nil
		})
		if err == nil || len(used) > 0 {
			t.Errorf("%v, used %q", err, used)
		}
		k.xero.passing = nil
		raw(t, filepath.Join(k.dir, "widgetd.db"), `DROP TRIGGER full`)
		k.time(time.Minute)
		if _, err := k.session(); err != nil || k.needsOwner() {
			t.Errorf("with room on the disk again: %v", err)
		}
	})
}

func TestBooks_aClaimOnTokensThatAKillLeftBehindLapses(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		for _, ahead := range []time.Duration{0, 24 * time.Hour} { // of the clock, which was set back since
			k.time(2 * time.Hour)
			k.change(func(t *tx) error {
				c, err := t.bookConnection(anyAccount, k.connection)
				if err != nil {
					return err
				}
				t.claimBookTokens(c.ID, c.Tokens, t.now.after(ahead+tokenClaim))
				return nil
			})
			began := time.Now()
			k.check(second(k.session()))
			waited := time.Since(began)
			if waited > tokenClaim+2*time.Second || ahead == 0 && waited < tokenClaim-time.Second {
				t.Errorf("it waited for %s", waited)
			}
		}
	})
}

// Against anybody with the address to which Xero or Fortnox sends back who would connect an account with books by a
// forged or repeated return: the state has 256 random bits, is kept hashed, and is good once, for one product and
// ten minutes; the code needs our verifier (PKCE).
func TestBooks_aStateIsUsedOnceForOneProductAndTenMinutes(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		state := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, errBooksState) {
				t.Errorf("%s: %v", what, err)
			}
		}
		used := k.approve()
		k.check(second(k.comeBack(used)))
		state("used twice", second(k.comeBack(used)))
		late := k.approve()
		k.time(authorizationLife)
		state("after ten minutes", second(k.comeBack(late)))
		state("another state", second(k.comeBack(strings.Replace(k.approve(), "&state=", "&state=x", 1))))
		other := k.product
		crossed := k.approve()
		k.product = map[string]string{productXero: productFortnox, productFortnox: productXero}[other]
		state("of the other product", second(k.comeBack(crossed)))
		k.product = other
		declined := k.approve()
		_, err := k.comeBack(strings.Replace(declined, "code=", "error=access_denied&was=", 1))
		if !errors.Is(err, errBooksDeclined) {
			t.Errorf("declined: %v", err)
		}
		state("after it was declined", second(k.comeBack(declined)))
		first := k.approve()
		for range maxAuthorizations {
			k.time(time.Second)
			k.approve()
		}
		state("older than the twenty newest", second(k.comeBack(first)))
	})
}

// Against a tenant with a second company who would have days of one company land in the books of another: a
// connection keeps its company; another one needs disconnecting first, and the former company gets its former
// connection back.
func TestBooks_aConnectionIsOfTheCompanyThatWasChosen(t *testing.T) {
	t.Parallel()
	atXero(t, func(t *testing.T, k *bookkeeper) {
		agrees := func(to []*xeroFakeCompany) (*bookConnection, error) {
			k.xero.mu.Lock()
			k.xero.consent = to
			k.xero.mu.Unlock()
			return k.comeBack(k.approve())
		}
		if _, err := agrees(k.xero.companies[1:2]); !errors.Is(err, errBooksConnected) {
			t.Errorf("another company beside the one in use: %v", err)
		}
		k.check(k.engine.disconnect(t.Context(), ownedBy(k.account), k.connection, anActor))
		c, err := agrees(k.xero.companies) // the person agrees to all of them
		k.check(err)
		if c.OrganisationID != nil || len(c.Choices) != 3 {
			t.Fatalf("%+v", c)
		}
		k.change(func(t *tx) error {
			_, err := requestExport(t, ownedBy(k.account), c.ID, bookkeeperDay)
			var refused *refusal
			if !errors.As(err, &refused) || refused.code != codeBooksState {
				k.t.Errorf("an export without a company: %v", err)
			}
			return nil
		})
		choose := func(id, company string) (chosen *bookConnection, err error) {
			k.t.Helper()
			k.check(k.store.update(context.Background(), func(t *tx) error {
				chosen, err = chooseOrganisation(t, k.keys, ownedBy(k.account), id, company, anActor)
				return nil
			}))
			return chosen, err
		}
		if _, err := choose(c.ID, "another"); err == nil {
			t.Error("a company that is none of the choices")
		}
		k.change(func(t *tx) error { // which the connection that is chosen does not get
			return second(changeConnection(t, anyAccount, c.ID, func(c *bookConnection) { c.Outside = true }, anActor))
		})
		chosen, err := choose(c.ID, k.xero.companies[0].tenant)
		if err != nil || chosen.ID != k.connection || chosen.Organisation != "Pizzeria Sole AG" ||
			chosen.Outside {
			t.Errorf("the company that was connected before: %+v %v", chosen, err)
		}
		if _, err := choose(chosen.ID, k.xero.companies[1].tenant); err == nil {
			t.Error("another company, once one was chosen")
		}
		if _, err := k.session(); err != nil {
			t.Error(err)
		}
	})
}

// Against whoever copies the database, or reads the log, who would take tokens of books, or the application's
// secret: both are sealed under the key file, each for its row alone; errors name none; Fortnox' refresh token is
// not kept at all.
func TestBooks_tokensAreReadOnlyWithTheirRowAndTheKeyFile(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		access, err := k.session()
		k.check(err)
		c, err := k.store.usedBookConnection(anyAccount, k.connection)
		k.check(err)
		tokens, err := openTokens(k.keys, c)
		k.check(err)
		if tokens.Access != access || strings.Contains(string(c.Sealed), access) ||
			tokens.Refresh != "" && strings.Contains(string(c.Sealed), tokens.Refresh) {
			t.Error("the row has its tokens in clear, or others")
		}
		stranger, err := newKeyring(time.Now())
		k.check(err)
		moved := *c
		moved.ID = newID("bkc", time.Now())
		for what, err := range map[string]error{
			"with another key file": second(openTokens(stranger, c)),
			"in another row":        second(openTokens(k.keys, &moved)),
		} {
			var failed *outboundError
			if !errors.As(err, &failed) || failed.reason != reasonUnsealable {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

// TestOAuthClient_errorsNameNoSecrets has what goes out, and what comes back, in no text of an error.
func TestOAuthClient_errorsNameNoSecrets(t *testing.T) {
	t.Parallel()
	const secret = "s3cret"
	app := appSecrets{"id", secret}
	form := url.Values{"refresh_token": {secret}, "code": {secret}, "code_verifier": {secret}}
	for status, body := range map[int]string{
		200: `{"access_token":"` + secret + `"}`,
		400: `{"error":"invalid_grant","error_description":"` + secret + `"}`,
		401: `{"error":"` + secret + `"}`,
		500: secret,
	} {
		said := vendorAnswer{status, http.Header{"Location": {"/" + secret}}, body}
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { said.write(w) }))
		t.Cleanup(web.Close)
		_, err := requestTokens(t.Context(), outboundTo(t, loopbackRange), web.URL, app, form, nil, time.Hour,
			answersNow)
		if err == nil || strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), secret) {
			t.Errorf("%d: %#v", status, err)
		}
	}
	nowhere := "http://127.0.0.1:1/" + secret
	for _, out := range []*outbound{outboundTo(t, loopbackRange), newOutbound(nil)} { // one may not call it
		_, err := requestTokens(t.Context(), out, nowhere, app, form, nil, time.Hour, answersNow)
		if err == nil || strings.Contains(fmt.Sprintf("%v %+v", err, err), secret) {
			t.Errorf("%+v", err)
		}
	}
}
