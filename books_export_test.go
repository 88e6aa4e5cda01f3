package main

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Against a lost answer, a crash or books with faults that would have a day booked twice, or not at all: the entry
// is on disk before it is sent; it is looked for by its key before it is sent again; one export for each
// connection, day and revision.
func TestBooks_aDayArrivesOnceWhenItsGraceIsOver(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		k.sendFrom(bookkeeperDay)
		k.sell(10810)
		k.until("2000-01-02 03:00") // the same business day
		k.sell(2162)
		k.until("2000-01-02 05:58")
		k.work(time.Minute)
		if got := k.books(); len(got) != 0 {
			t.Fatalf("before the grace is over: %+v", got)
		}
		k.until("2000-01-02 06:00")
		k.work(2 * time.Minute)
		key := "widgetd:" + k.account + ":2000-01-01:r1"
		k.has(key, 1)
		if got := k.books(); len(got) != 1 || got[0].card != 12972 {
			t.Errorf("in the books: %+v", got)
		}
		x := k.exports()[0]
		if again := k.export(bookkeeperDay); again.ID != x.ID {
			t.Errorf("asked for again, it is another export: %+v", again)
		}
		k.work(10 * time.Minute)
		k.has(key, 1)
		if all := k.exports(); len(all) != 1 || all[0].State != exportPosted || all[0].EntryID == nil ||
			(k.product == productXero) != (valueOr(all[0].EntryURL, "") == xeroProduct.entryPage+*all[0].EntryID) ||
			(k.product == productFortnox) != (all[0].EntryURL == nil) {
			t.Errorf("exports: %+v", all)
		}
		if n := len(k.events("books.posted")); n != 1 {
			t.Errorf("%d events books.posted", n)
		}
		k.until("2000-01-03 06:00") // nothing was sold on the second day
		k.work(2 * time.Minute)
		if all := k.exports(); len(all) != 1 {
			t.Errorf("an export of an empty day: %+v", all[1])
		}
	})
}

func TestBooks_nothingIsSentWhileTheClockIsDoubted(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		k.sendFrom(bookkeeperDay)
		k.sell(1000)
		k.until("2000-01-02 12:00")
		dial := k.server.outbound.plain.DialContext
		synchronised := k.startsAfter(2 * time.Hour)
		k.server.outbound.plain.DialContext = dial
		k.engine = booksOf(k.server)
		k.work(2 * time.Minute)
		if all := k.exports(); len(all) != 0 {
			t.Errorf("made while the clock is doubted: %+v", all)
		}
		k.export(bookkeeperDay)
		k.work(2 * time.Minute)
		if got := k.books(); len(got) != 0 {
			t.Errorf("sent while the clock is doubted: %+v", got)
		}
		synchronised.Store(true)
		k.work(2 * time.Minute)
		if got := k.books(); len(got) != 1 {
			t.Errorf("in the books: %+v", got)
		}
	})
}

func TestBooks_aDayIsHeldUntilItsCauseIsGone(t *testing.T) {
	t.Parallel()
	account := func(k *bookkeeper, status string) {
		k.fortnox.setActive(3002, status == "ACTIVE")
		k.xero.change(0, func(c *xeroFakeCompany) { c.accounts[0].status = status })
	}
	for reason, story := range map[string]struct {
		product     string // "": each
		cause, mend func(k *bookkeeper)
	}{
		heldUnmapped: {
			cause: func(k *bookkeeper) { k.remap(func(m *bookMapping) { m.Lines = m.Lines[1:] }) },
			mend:  func(k *bookkeeper) { k.remap(func(*bookMapping) {}) },
		},
		heldUnknownPayment: {
			cause: func(k *bookkeeper) { k.remap(func(m *bookMapping) { m.Lines = m.Lines[:4] }) },
			mend:  func(k *bookkeeper) { k.remap(func(*bookMapping) {}) },
		},
		heldLocked: {
			cause: func(k *bookkeeper) { k.lock("2000-01-31") },
			mend:  func(k *bookkeeper) { k.lock("1999-12-31") },
		},
		heldUnusable: {
			cause: func(k *bookkeeper) { account(k, "ARCHIVED") },
			mend:  func(k *bookkeeper) { account(k, "ACTIVE") },
		},
		heldNoYear: {productFortnox,
			func(k *bookkeeper) {
				k.fortnox.change(func(c *fortnoxFakeCompany) { c.years = slices.Delete(c.years, 1, 2) })
			},
			func(k *bookkeeper) {
				k.fortnox.change(func(c *fortnoxFakeCompany) {
					c.years = append(c.years, fortnoxFakeYear{2, "2000-01-01", "2000-12-31"})
				})
			},
		},
		heldNoSeries: {productFortnox,
			func(k *bookkeeper) { k.fortnox.change(func(c *fortnoxFakeCompany) { c.series[7].manual = false }) }, // W
			func(k *bookkeeper) { k.fortnox.change(func(c *fortnoxFakeCompany) { c.series[7].manual = true }) },
		},
		heldCurrency: {productXero,
			func(k *bookkeeper) { k.xero.change(0, func(c *xeroFakeCompany) { c.currency = "EUR" }) },
			func(k *bookkeeper) {
				k.xero.change(0, func(c *xeroFakeCompany) { c.currency = "CHF" })
				k.asked("GET", "/"+k.connection+"/accounts", "").is(200) // by which that is known here
			},
		},
		heldReconnect: {
			cause: func(k *bookkeeper) {
				k.xero.revoke()
				k.fortnox.withdrawConsent()
				k.fortnox.forgetTokens()
				k.time(time.Hour) // so that tokens have to be replaced
			},
			mend: func(k *bookkeeper) { k.connect() },
		},
	} {
		for _, product := range productNames() {
			if story.product != "" && story.product != product {
				continue
			}
			t.Run(reason+" at "+product, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					k := newBookkeeper(t, product)
					k.sendingDay()
					story.cause(k)
					k.work(2 * time.Minute)
					x := k.exports()[0]
					k.is(x.ID, exportHeld, reason)
					given := k.given()
					held := k.after(3*time.Hour, x.ID, exportHeld, reason)
					if len(k.books()) != 0 || held.Detail == nil || len(k.events("books.held")) != 1 {
						t.Errorf("while held: %v %v, %d events", k.books(), held.Detail, len(k.events("books.held")))
					}
					if reason == heldReconnect { // refused tokens are never tried again
						equal(t, "events that ask for the owner", len(k.events("books.needs_reconnect")), 1)
						equal(t, "times that tokens were asked for", k.given(), given)
					}
					story.mend(k)
					k.after(time.Hour, x.ID, exportPosted)
					k.has(x.SyncKey, 1)
				})
			})
		}
	}
}

func TestBooks_aDayInAnotherCurrencyIsHeldAndAskedAboutOnce(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		k.sendFrom(bookkeeperDay)
		k.sell(4200, func(o *order) { o.Currency = "EUR" })
		k.until("2000-01-02 07:00")
		k.work(time.Minute)
		x := k.is(k.exports()[0].ID, exportHeld, heldCurrency)
		asked := func(what string, want bool, d time.Duration) {
			t.Helper()
			before := k.requests()
			k.work(d)
			k.is(x.ID, exportHeld, heldCurrency)
			if n := k.requests() - before; n > 5 || (n > 0) != want || len(k.events("books.held")) != 1 {
				t.Errorf("%s: %d requests, %d events", what, n, len(k.events("books.held")))
			}
		}
		asked("later", false, 4*24*time.Hour)
		long := newStamp(time.Now().Add(-heldTooLong))
		totals, err := k.store.booksTotals(long)
		k.check(err)
		asks := statusAsks(t, k.store, booksTroubles...)
		if totals.Held != 1 || totals.HeldLong != 0 || len(asks) != 0 {
			t.Errorf("it hides what can be mended: %+v %q", totals, asks)
		}
		k.asked("POST", "/"+k.connection+"/exports/"+x.ID+"/retry", "").is(200)
		asked("retried", true, time.Hour)
		k.remap(func(*bookMapping) {})
		asked("with a new mapping", true, time.Hour)
		k.connect()
		asked("connected again", true, time.Hour)
		k.sell(1000) // of the books' own currency
		k.until("2000-01-07 07:00")
		k.work(time.Minute)
		k.adds(1000)
		asked("later still", false, 24*time.Hour)
	})
}

func TestBooks_switchesHoldFromTheDayOnWhichTheyAreSet(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		at := "/" + k.connection
		k.remap(func(m *bookMapping) { m.Lines[5].Account = m.Lines[4].Account }) // of cash, as of cards
		k.sendFrom(bookkeeperDay)
		set := func(body string, from any) {
			t.Helper()
			c := k.asked("PATCH", at, body).is(200).json()
			if got := c["switches_from"]; got != from {
				t.Errorf("%s holds from %v, want %v", body, got, from)
			}
		}
		pass := func(cash, card int64) { // until noon of the next day
			k.sellBy(methodCash, cash)
			if card > 0 {
				k.sell(card)
			}
			k.time(23 * time.Hour)
			k.work(time.Hour)
		}
		set(`{"outside":false,"tests":false}`, nil) // as it is
		pass(100, 0)
		pass(200, 5)
		k.sellBy(methodCash, 10) // on the day of the change, before it
		set(`{"outside":true}`, "2000-01-03")
		pass(300, 0)
		set(`{"outside":true,"tests":false}`, "2000-01-03") // no change
		pass(400, 6)
		set(`{"outside":false}`, "2000-01-05")
		set(`{"outside":true}`, "2000-01-03") // changed back on the same day
		set(`{"outside":false,"tests":true}`, "2000-01-05")
		pass(500, 0)
		pass(600, 7)
		k.time(14 * time.Hour)
		set(`{"tests":false}`, "2000-01-07") // at two in the morning of the 8th
		want := map[businessDate]int64{"2000-01-02": 5, "2000-01-03": 310, "2000-01-04": 406, "2000-01-06": 7}
		agree := func(what string) {
			t.Helper()
			got := map[businessDate]int64{}
			for _, b := range k.books() {
				if parts := strings.Split(b.narration, ":"); b.counts {
					got[parts[len(parts)-2]] += b.card
				}
			}
			if !maps.Equal(got, want) {
				t.Errorf("%s: in the books is %v, want %v", what, got, want)
			}
		}
		agree("each day")
		for _, date := range []businessDate{"2000-01-01", "2000-01-05"} {
			k.asked("GET", at+"/preview/"+date, "").is(200).contains(`"entry":null`)
			k.asked("POST", at+"/exports", `{"date":"`+date+`"}`).is(409, "no_revenue")
		}
		for _, x := range k.exports() { // each day is reversed, and sent again while the switches are others
			k.change(func(t *tx) error { return second(reverseExport(t, anyAccount, "", x.ID, "")) })
		}
		k.work(time.Minute)
		for date := range want {
			k.export(date)
		}
		k.check(k.engine.disconnect(t.Context(), ownedBy(k.account), k.connection, anActor))
		k.connect() // gets its former connection back, and what it sent of which days
		set(`{"send_from":"2000-01-01","history":true}`, "2000-01-07")
		for date := range want {
			k.export(date)
		}
		k.work(time.Hour)
		agree("once more")
		k.sql(`INSERT INTO books_switches VALUES (?, '2000-02-01', 0, 0)`, k.connection) // by a clock that was ahead
		set(`{"outside":true,"tests":false}`, "2000-01-07")
	})
}

// Neither a lost answer nor one of something in between proves anything: the entry is looked for, and sent again only
// if it isn't found for ten minutes.
func TestBooks_afterEachFaultADayIsLookedForAndInTheBooksOnce(t *testing.T) {
	t.Parallel()
	for fault, written := range map[providerFault]bool{faultResetAfter: true, faultTimeout: true, faultNonsense: true,
		faultHuge: true, fault401After: true, fault429After: true, faultResetBefore: false, fault429: false,
		fault404: false, fault413: false} {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			sequentialUnderRace(t)
			eachProduct(t, func(t *testing.T, k *bookkeeper) {
				x := k.dueDay()
				k.fail("post", fault)
				k.work(2 * time.Second)
				if state := k.exported(x.ID).State; state != exportUnknown && fault != faultTimeout {
					t.Errorf("after the answer was lost it is %s", state)
				}
				k.xero.forgetKeys()
				if written {
					k.after(5*time.Minute, x.ID, exportPosted)
				} else {
					sent := k.after(9*time.Minute, x.ID, exportUnknown)
					equal(t, "times that it was sent", sent.Attempts, 1)
					k.after(30*time.Minute, x.ID, exportPosted)
				}
				k.work(time.Hour)
				k.has(x.SyncKey, 1)
			})
		})
	}
}

// TestBooks_aRefusalOfSomethingInBetweenIsLookedUpBeforeTheEntryIsSentAgain has the books write what a refusal then
// denies, which is the worst that a refusal can be.
func TestBooks_aRefusalOfSomethingInBetweenIsLookedUpBeforeTheEntryIsSentAgain(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		x := k.postedDay()
		k.xero.forgetKeys()
		raw(t, filepath.Join(k.dir, "widgetd.db"), `UPDATE books_exports SET state = 'failed', reason = 'http_404',
			entry_id = NULL, posted_at = NULL, held_at = sent_at`)
		k.change(func(t *tx) error { return second(retryExport(t, ownedBy(k.account), k.connection, x.ID)) })
		k.after(10*time.Minute, x.ID, exportPosted)
		k.has(x.SyncKey, 1)
	})
}

// Against whoever connects the same company again who would send days unasked that were dropped, or booked by hand
// meanwhile: disconnecting drops what was not sent; what may have been is looked for, and sent again only when
// somebody asks.
func TestBooks_aCompanyThatIsConnectedAgainGetsNoOldDayUnasked(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		k.sendFrom(bookkeeperDay)
		k.sell(1000)
		k.until("2000-01-02 06:30")
		k.fail("post", faultResetAfter)
		k.work(2 * time.Second) // the answer of the first day is lost
		k.remap(func(m *bookMapping) { m.Lines = nil })
		k.sell(2000)
		k.until("2000-01-03 07:00")
		k.work(time.Minute)
		k.sell(3000)
		k.until("2000-01-04 07:00")
		k.fail("find", slices.Repeat([]providerFault{fault500}, 100)...)
		k.remap(func(*bookMapping) {})
		x := k.export("2000-01-03") // is not sent either
		k.work(time.Minute)
		former := k.connection
		k.check(k.engine.disconnect(t.Context(), ownedBy(k.account), former, anActor))
		if _, err := k.session(); !errors.Is(err, errBooksConnection) {
			t.Errorf("a session of what was disconnected: %v", err)
		}
		k.fail("find")
		k.time(30 * 24 * time.Hour)
		k.connect()
		equal(t, "the connection", k.connection, former)
		k.work(2 * time.Hour)
		k.adds(1000)
		if _, err := k.store.bookExport(anyAccount, x.ID); !errors.Is(err, errExport) {
			t.Errorf("what was not sent is kept: %v", err)
		}
		k.export("2000-01-03")
		k.work(time.Hour)
		k.adds(4000)
	})
}

func TestBooks_whatIsNotFoundAfterADisconnectionIsSentAgainOnlyWhenItIsAskedFor(t *testing.T) {
	t.Parallel()
	for i, by := range []string{"nobody", "date", "id"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			if i > 0 {
				sequentialUnderRace(t)
			}
			eachProduct(t, func(t *testing.T, k *bookkeeper) {
				x := k.dueDay()
				k.fail("post", fault500)
				k.after(2*time.Second, x.ID, exportUnknown)
				k.check(k.engine.disconnect(t.Context(), ownedBy(k.account), k.connection, anActor))
				k.connect()
				k.work(5 * time.Minute) // it may be on its way still
				k.is(x.ID, exportUnknown, reasonDisconnected)
				switch by {
				case "date":
					if again := k.export(bookkeeperDay); again.ID != x.ID {
						t.Errorf("another export: %s", again.ID)
					}
				case "id":
					k.change(func(t *tx) error {
						return second(retryExport(t, ownedBy(k.account), k.connection, x.ID))
					})
				}
				k.work(time.Hour)
				if by == "nobody" {
					k.adds(0)
					if all := k.exports(); len(all) != 0 {
						t.Errorf("exports: %+v", all)
					}
					return
				}
				k.is(x.ID, exportPosted, "")
				k.has(x.SyncKey, 1)
			})
		})
	}
}

// Against an accountant with an entry in the books who would have it overwritten or reversed after changing it: it
// is read first: voided means reversed, changed is held, and nothing there is ever overwritten; only drafts are
// deleted.
func TestBooks_aVoidedEntryIsReversedAndAChangedOneIsLeftAlone(t *testing.T) {
	t.Parallel()
	atXero(t, func(t *testing.T, k *bookkeeper) {
		first := k.posts(4200)
		k.xero.on(*first.EntryID, func(j *xeroFakeJournal) {
			j.lines[0].amount++
			j.lines[1].amount--
		})
		second := k.reverse(first.ID, "")
		k.after(time.Minute, second.ID, exportHeld, heldEdited)
		k.xero.void(*first.EntryID) // the accountant takes it back
		k.after(time.Hour, first.ID, exportReversed)
		k.is(second.ID, exportReversed)
		third := k.export(bookkeeperDay)
		k.after(time.Minute, third.ID, exportPosted)
		k.has(third.SyncKey, 1)
		k.has(second.SyncKey, 0)
	})
}

func TestBooks_aDraftIsDeletedInsteadOfReversed(t *testing.T) {
	t.Parallel()
	atXero(t, func(t *testing.T, k *bookkeeper) {
		first := k.postedDay()
		second := k.reverse(first.ID, "")
		k.after(time.Minute, first.ID, exportReversed)
		k.is(second.ID, exportPosted)
		if all := k.books(); len(all) != 1 || all[0].counts {
			t.Errorf("in the books: %+v", all)
		}
	})
}

// reverse has the entry of an export reversed.
func (k *bookkeeper) reverse(id string, date businessDate) (x *bookExport) {
	k.t.Helper()
	k.change(func(t *tx) (err error) {
		x, err = reverseExport(t, ownedBy(k.account), k.connection, id, date)
		return err
	})
	return x
}

// events returns the events of a type.
func (k *bookkeeper) events(kind string) (subjects []string) {
	k.t.Helper()
	rows, err := collect(k.store.queries, `SELECT subject_id FROM events WHERE type = ? ORDER BY seq`, []any{kind},
		func(s *string) []any { return []any{s} })
	k.check(err)
	return append(subjects, rows...)
}

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
		"licence":           {fortnoxNoLicense, heldNoLicense},
		"right":             {fortnoxFakeLack{400, 2000663, "Saknas.", false, ""}, heldNoRight},
		"right to vouchers": {fortnoxFakeLack{403, 9, "Nej.", false, "vouchers"}, heldNoRight},
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
		lack := func(l fortnoxFakeLack) { k.fortnox.change(func(c *fortnoxFakeCompany) { c.lacks = l }) }
		told := func() {
			t.Helper()
			k.toldOf(k.is(x.ID, exportUnknown), "2000-01-02", "2001103 Api-licens saknas.")
		}
		k.fail("post", fault500) // it is not in the books, which counts after ten minutes
		k.after(2*time.Second, x.ID, exportUnknown)
		lack(fortnoxNoLicense)
		k.work(time.Minute)
		told()
		lack(fortnoxFakeLack{}) // and it can be looked for again
		k.retry(x.ID)
		looked := k.after(time.Minute, x.ID, exportUnknown)
		if asks := statusAsks(t, k.store, booksTroubles...); len(asks) > 0 || looked.Detail != nil {
			t.Errorf("status asks for %q, its detail is %q", asks, valueOr(looked.Detail, ""))
		}
		lack(fortnoxNoLicense)
		k.work(time.Hour)
		told()
		k.asksAtMost(6, 48*time.Hour)
		told()
		lack(fortnoxFakeLack{})
		k.after(25*time.Hour, x.ID, exportPosted)
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
