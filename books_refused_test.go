package main

import (
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What only somebody there can mend: a licence or a right that is missing at Fortnox, an entry that Xero or Fortnox
// refuses. The export is held with their words, is told of at once and once, and goes on by itself.

// toldOf requires the words of a refusal in the list of exports and in status, with the day since when, one event, and
// nothing that would have the owner connect again.
func (k *bookkeeper) toldOf(x *bookExport, day, words string) {
	k.t.Helper()
	if valueOr(x.Detail, "") != words {
		k.t.Errorf("its detail is %q, want %q", valueOr(x.Detail, ""), words)
	}
	because := ""
	if x.Reason != nil {
		because = *x.Reason + ": "
	}
	want := []string{"1 entry is refused by the books since " + day + " (" + because + words +
		"): 'widgetd books export list -state held'"}
	if got := statusAsks(k.t, k.store, booksTroubles...); !slices.Equal(got, want) {
		k.t.Errorf("status asks for %q, want %q", got, want)
	}
	if k.needsOwner() || len(k.events("books.needs_reconnect")) > 0 || !k.failingSince().IsZero() {
		k.t.Errorf("needs its owner: %v, failing since %v", k.needsOwner(), k.failingSince())
	}
}

// asksAtMost requires the products to be asked a number of times at most, and once at least, in a time.
func (k *bookkeeper) asksAtMost(most int, d time.Duration) {
	k.t.Helper()
	before := k.requests()
	k.work(d)
	if n := k.requests() - before; n == 0 || n > most {
		k.t.Errorf("asked %d times in %s, want 1 to %d", n, d, most)
	}
}

// retry is somebody who asks for an export.
func (k *bookkeeper) retry(id string) {
	k.t.Helper()
	k.change(func(t *tx) error { return second(retryExport(t, ownedBy(k.account), k.connection, id)) })
}

func TestBooks_aLicenceOrARightThatIsMissingHoldsDaysUntilItIsBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lack   fortnoxFakeLack
		reason string
	}{
		"licence":                {fortnoxNoLicense, heldNoLicense},
		"licence, 400":           {fortnoxFakeLack{400, 2001101, "Saknas.", false, ""}, heldNoLicense},
		"right":                  {fortnoxFakeLack{403, 2000663, "Saknas.", false, ""}, heldNoRight},
		"right, 400":             {fortnoxFakeLack{400, 2000663, "Saknas.", false, ""}, heldNoRight},
		"right to vouchers":      {fortnoxFakeLack{403, 9, "Nej.", false, "vouchers"}, heldNoRight},
		"right to vouchers, 400": {fortnoxFakeLack{400, 9, "Behörighet saknas.", false, "vouchers"}, heldNoRight},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				k := newBookkeeper(t, productFortnox)
				lack := func(l fortnoxFakeLack) { k.fortnox.change(func(co *fortnoxFakeCompany) { co.lacks = l }) }
				k.sendingDay()
				lack(c.lack)
				k.work(2 * time.Minute)
				id := k.exports()[0].ID
				words := fmt.Sprint(c.lack.code, " ", c.lack.message)
				k.toldOf(k.is(id, exportHeld, c.reason), "2000-01-02", words)
				if c.lack.path == "" { // connecting again does not help, and the owner reads why
					_, err := k.comeBack(k.approve())
					if err == nil || !strings.Contains(err.Error(), "which says: "+words) {
						t.Errorf("connected again: %v", err)
					}
				}
				for range 3 {
					k.asksAtMost(9, 24*time.Hour)
				}
				k.toldOf(k.is(id, exportHeld, c.reason), "2000-01-02", words)
				k.retry(id)
				k.work(time.Minute)
				k.toldOf(k.is(id, exportHeld, c.reason), "2000-01-02", words)
				if n := len(k.events("books.held")); n != 1 {
					t.Errorf("%d events that it is held", n)
				}
				lack(fortnoxFakeLack{}) // the right comes back, and nobody asks
				k.after(25*time.Hour, id, exportPosted)
				k.adds(4200)
				lack(c.lack)
				k.sell(100)
				k.time(24 * time.Hour)
				k.work(2 * time.Minute)
				next := k.exports()[1].ID
				k.is(next, exportHeld, c.reason)
				lack(fortnoxFakeLack{}) // the right comes back, and somebody asks
				k.retry(next)
				k.after(time.Minute, next, exportPosted)
				k.adds(4300)
			})
		})
	}
}

func TestBooks_aLicenceThatLapsedForTokensDoesNotEndTheConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newBookkeeper(t, productFortnox)
		k.sendingDay() // its access token has ended
		k.fortnox.change(func(c *fortnoxFakeCompany) { c.lacks.tokens = true })
		k.work(2 * time.Minute)
		id := k.exports()[0].ID
		const words = "error_missing_license Nej."
		k.toldOf(k.is(id, exportHeld, heldNoLicense), "2000-01-02", words)
		k.work(47 * time.Hour)
		k.toldOf(k.is(id, exportHeld, heldNoLicense), "2000-01-02", words)
		k.fortnox.change(func(c *fortnoxFakeCompany) { c.lacks.tokens = false })
		k.after(25*time.Hour, id, exportPosted)
		k.adds(4200)
	})
}

func TestBooks_anEntryWhoseAnswerWasLostIsToldOfWhileARightIsMissing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newBookkeeper(t, productFortnox)
		x := k.dueDay()
		k.fail("post", fault500After)
		k.after(2*time.Second, x.ID, exportUnknown)
		k.fortnox.change(func(c *fortnoxFakeCompany) { c.lacks = fortnoxNoLicense })
		k.work(time.Hour)
		k.toldOf(k.is(x.ID, exportUnknown), "2000-01-02", "2001103 Api-licens saknas.")
		k.asksAtMost(6, 48*time.Hour)
		k.toldOf(k.is(x.ID, exportUnknown), "2000-01-02", "2001103 Api-licens saknas.")
		k.fortnox.change(func(c *fortnoxFakeCompany) { c.lacks = fortnoxFakeLack{} })
		k.after(25*time.Hour, x.ID, exportPosted)
		k.adds(4200)
		if asks := statusAsks(t, k.store, booksTroubles...); len(asks) > 0 {
			t.Errorf("status still asks for %q", asks)
		}
	})
}

func TestBooks_anEntryThatCanBeLookedForAgainIsNotToldOfAnyMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newBookkeeper(t, productFortnox)
		x := k.dueDay()
		k.fail("post", fault500) // it is not in the books, which counts after ten minutes
		k.after(2*time.Second, x.ID, exportUnknown)
		k.fortnox.change(func(c *fortnoxFakeCompany) { c.lacks = fortnoxNoLicense })
		k.work(time.Minute)
		k.toldOf(k.is(x.ID, exportUnknown), "2000-01-02", "2001103 Api-licens saknas.")
		k.fortnox.change(func(c *fortnoxFakeCompany) { c.lacks = fortnoxFakeLack{} })
		k.retry(x.ID)
		looked := k.after(time.Minute, x.ID, exportUnknown)
		if asks := statusAsks(t, k.store, booksTroubles...); len(asks) > 0 || looked.Detail != nil {
			t.Errorf("status asks for %q, its detail is %q", asks, valueOr(looked.Detail, ""))
		}
		k.after(20*time.Minute, x.ID, exportPosted)
		k.adds(4200)
	})
}

func TestBooksHTTP_thePageSaysWhatIsMissingThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newBookkeeper(t, productFortnox)
		begin := func() (at, state string) {
			u, err := url.Parse(k.asked("POST", "", `{"product":"fortnox"}`).is(200).text("authorize_url"))
			k.check(err)
			return "/books/callback/fortnox", url.QueryEscape(u.Query().Get("state"))
		}
		for sent, want := range map[string]string{
			"error=error_missing_license": "A licence is missing in the bookkeeping software, which says: " +
				"error_missing_license.",
			"error=error_missing_app_license": "A licence is missing",
			"error=error_missing_system_admin_right": "A right is missing in the bookkeeping software, which says: " +
				"error_missing_system_admin_right.",
			"error=access_denied":       "Access was not granted",
			"error=license%20call%20me": "Access was not granted",
		} {
			at, state := begin()
			k.get(at + "?state=" + state + "&" + sent).is(409).contains(want)
		}
		k.fortnox.change(func(c *fortnoxFakeCompany) { c.lacks = fortnoxNoLicense })
		back, err := url.Parse(k.approve())
		k.check(err)
		k.get(strings.TrimPrefix(back.Path, "/v1") + "?" + back.RawQuery).is(409).
			contains("A licence is missing in the bookkeeping software, which says: 2001103 Api-licens saknas.")
		k.asked("GET", "/"+k.connection+"/accounts", "").is(409, "books_connection_state").
			contains("which says: 2001103 Api-licens saknas.")
	})
}

func TestBooks_aTrackingOptionThatIsGoneIsToldBeforehandAndMended(t *testing.T) {
	t.Parallel()
	atXero(t, func(t *testing.T, k *bookkeeper) {
		tracked := func(option string) {
			k.remap(func(m *bookMapping) { m.Lines[0].CostCenter = &option })
		}
		tracked("Region:North")
		k.sendingDay()
		k.work(2 * time.Minute)
		k.is(k.exports()[0].ID, exportPosted)
		if got := k.asked("GET", "/"+k.connection+"/accounts", "").is(200).json()["cost_centers"]; fmt.Sprint(got) !=
			"[Region:North Region:South]" {
			t.Errorf("the chart has %v", got)
		}
		k.xero.change(0, func(c *xeroFakeCompany) { c.options = c.options[1:] })
		k.sell(100)
		k.until("2000-01-03 07:00")
		k.work(2 * time.Minute)
		id := k.exports()[1].ID
		x := k.is(id, exportHeld, heldUnusable)
		if !strings.Contains(*x.Detail, "Region:North") {
			t.Error(*x.Detail)
		}
		tracked("Region:South")
		k.after(time.Minute, id, exportPosted)
		k.adds(4300)
	})
}

func TestBooks_whatBooksRefuseIsHeldWithTheirWordsAndGoesOn(t *testing.T) {
	t.Parallel()
	const words = "Journals must not be posted there."
	for name, mend := range map[string]func(k *bookkeeper, id string){
		"by itself":     func(*bookkeeper, string) {},
		"somebody asks": func(k *bookkeeper, id string) { k.retry(id) },
		"another mapping": func(k *bookkeeper, _ string) {
			k.remap(func(m *bookMapping) { m.Lines[0].Account = k.another() })
		},
		"the connection is connected": func(k *bookkeeper, _ string) { k.connect() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachProduct(t, func(t *testing.T, k *bookkeeper) {
				x := k.dueDay()
				k.refuses(1000, words)
				k.work(time.Minute)
				said := words
				if k.product == productFortnox {
					said = fmt.Sprint(fortnoxNoCode, " ", words)
				}
				k.toldOf(k.is(x.ID, exportHeld, heldRefused), "2000-01-02", said)
				k.work(96 * time.Hour)
				held := k.is(x.ID, exportHeld, heldRefused)
				k.toldOf(held, "2000-01-02", said)
				n, failed := len(k.events("books.held")), len(k.events("books.failed"))
				if n != 1 || failed > 0 || held.Attempts < 4 || held.Attempts > 5 {
					t.Errorf("%d and %d events, %d attempts in four days", n, failed, held.Attempts)
				}
				totals, err := k.store.booksTotals(newStamp(time.Now().Add(-heldTooLong)))
				if k.check(err); totals.Refused != 1 || totals.Held != 1 || totals.HeldLong != 1 || totals.Failed != 0 {
					t.Errorf("%+v", totals)
				}
				k.refuses(0, "")
				mend(k, x.ID)
				wait := time.Minute
				if name == "by itself" {
					wait = 25 * time.Hour
				}
				k.after(wait, x.ID, exportPosted)
				k.adds(4200)
			})
		})
	}
}

// Against a connection that dies of not being used: Xero's tokens lapse 60 days after they were given.
func TestBooks_aConnectionThatNobodyUsesIsKeptAlive(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]func(k *bookkeeper){
		"nothing": func(*bookkeeper) {},
		"an outage of three days": func(k *bookkeeper) {
			k.until("2000-01-31 12:00")
			k.fail("token", slices.Repeat([]providerFault{fault500}, 200)...)
			k.work(72 * time.Hour)
			k.fail("token")
			k.work(24 * time.Hour)
			if k.failingRenewals() != 0 {
				k.t.Error("it was not tried again after the outage")
			}
		},
		"a sale after 20 days": func(k *bookkeeper) {
			k.until("2000-01-21 12:00")
			k.check(second(k.session()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachProduct(t, func(t *testing.T, k *bookkeeper) {
				k.sendFrom("2000-03-16") // 75 days later
				before := k.given()
				happens(k)
				for begins := time.Date(2000, 3, 16, 12, 0, 0, 0, time.UTC); time.Now().Before(begins); {
					k.work(min(72*time.Hour, time.Until(begins)))
				}
				k.sell(4200)
				k.until("2000-03-18 07:00")
				k.work(2 * time.Minute)
				if k.needsOwner() || len(k.exports()) != 1 {
					t.Fatalf("needs its owner: %v, %d exports", k.needsOwner(), len(k.exports()))
				}
				k.is(k.exports()[0].ID, exportPosted)
				k.adds(4200)
				want := map[string]int{productXero: 3, productFortnox: 1}[k.product]
				if n := k.given() - before; name == "nothing" && n != want {
					t.Errorf("tokens were given %d times", n)
				}
			})
		})
	}
}

func TestBooks_tokensThatNobodyUsesAreReplacedAtAnyTimeOfADay(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		hours := map[int]bool{}
		k.change(func(t *tx) error {
			c, err := t.bookConnection(anyAccount, k.connection)
			for i := 0; i < 200 && err == nil; i++ {
				var due stamp
				if err = t.saveBookTokens(c, c.Sealed); err == nil {
					err = t.one(`SELECT renew_at FROM books_connections`, nil, &due)
				}
				late := due.Sub(t.now.Time) - days(30)
				if due.IsZero() == (k.product == productXero) || !due.IsZero() && (late < 0 || late > days(1)) {
					return fmt.Errorf("due at %s, %s after half of their life", due, late)
				}
				hours[due.Hour()] = true
			}
			return err
		})
		if k.product == productXero && len(hours) < 12 {
			t.Errorf("all in %d hours of the day", len(hours))
		}
	})
}

// Against a connection that can't be renewed and would be tried every second.
func TestBooks_tokensThatCantBeReadAreTriedOnceADay(t *testing.T) {
	t.Parallel()
	atXero(t, func(t *testing.T, k *bookkeeper) {
		raw(t, filepath.Join(k.dir, "widgetd.db"),
			`UPDATE books_connections SET secrets = X'00', renew_at = '2000-01-01T00:00:00Z'`)
		k.work(time.Minute)
		var due stamp
		k.check(k.store.one(`SELECT renew_at FROM books_connections`, nil, &due))
		if wait := time.Until(due.Time); wait < 23*time.Hour || wait > days(1) || k.needsOwner() {
			t.Errorf("tried again after %s", wait)
		}
	})
}
