package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Stories of what goes wrong with books, by mistake or on purpose. In none of them is a day twice in the
// books, or missing without anybody being told.

// posts sells something, has its day posted, and returns the export.
func (k *bookkeeper) posts(amount int64) *bookExport {
	k.t.Helper()
	k.set(func(c *bookConnection) { c.Status = entryPosted })
	k.sell(amount)
	k.until("2000-01-02 07:00")
	x := k.export(bookkeeperDay)
	return k.after(time.Minute, x.ID, exportPosted)
}

// adds requires what counts in the books to add up to an amount received by card.
func (k *bookkeeper) adds(want int64) {
	k.t.Helper()
	sum := int64(0)
	for _, b := range k.books() {
		if b.counts {
			sum += b.card
		}
	}
	if sum != want {
		k.t.Fatalf("in the books is %d, want %d: %+v", sum, want, k.books())
	}
}

func TestBooks_aVoidedReversalLeavesTheDayInTheBooksOnce(t *testing.T) {
	t.Parallel()
	atXero(t, func(t *testing.T, k *bookkeeper) {
		first := k.posts(4200)
		second := k.reverse(first.ID, "")
		k.fail("post", fault500After)
		k.after(3*time.Second, second.ID, exportUnknown)
		for _, j := range k.xero.journals() { // the accountant voids the reversal before its answer is looked up
			if strings.Contains(j.narration, second.SyncKey) {
				k.xero.void(j.id)
			}
		}
		k.after(5*time.Minute, second.ID, exportReversed)
		k.is(first.ID, exportPosted)
		if again := k.export(bookkeeperDay); again.ID != first.ID {
			t.Errorf("asked for again, the day gets revision %d", again.Revision)
		}
		k.work(time.Minute)
		k.adds(4200)
		third := k.reverse(first.ID, "")
		if third.ID == second.ID || third.Revision != 3 {
			t.Errorf("reversed again: %+v", third)
		}
		k.after(time.Minute, first.ID, exportReversed)
		k.adds(0)
		fourth := k.export(bookkeeperDay)
		k.work(time.Minute)
		k.has(fourth.SyncKey, 1)
		k.adds(4200)
	})
}

// refuses has the next requests to post refused with a message, which the look at the books does not tell.
func (k *bookkeeper) refuses(times int, message string) {
	refusal := vendorFault{answer: xeroFakeInvalid(message)}
	if k.product == productFortnox {
		status, body := fortnoxRefused(400, fortnoxNoCode, message)
		refusal.answer = vendorAnswer{status, nil, body}
	}
	k.fake().strike("post", slices.Repeat([]vendorFault{refusal}, times)...)
}

func TestBooks_aRefusalThatTheLookDidNotTellIsHeldAndCanBeDatedAnew(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		k.set(func(c *bookConnection) { c.Status = entryPosted })
		x := k.dueDay()
		k.refuses(1, "The period is locked.")
		k.after(time.Minute, x.ID, exportHeld, heldLocked)
		k.after(time.Hour, x.ID, exportPosted)
		reversal := k.reverse(x.ID, "")
		k.refuses(1000, "The period is locked.")
		k.after(time.Minute, reversal.ID, exportHeld, heldLocked)
		k.refuses(0, "")
		if moved := k.reverse(x.ID, "2000-02-01"); moved.ID != reversal.ID || moved.EntryDate != "2000-02-01" {
			t.Errorf("dated anew: %+v", moved)
		}
		k.after(time.Minute, reversal.ID, exportPosted)
		k.is(x.ID, exportReversed)
		k.adds(0)
	})
}

func TestBooks_aRefusalForNoReasonThatPassesIsToldAndCanBeRetried(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		x := k.dueDay()
		k.fail("post", fault500)
		k.after(time.Minute, x.ID, exportUnknown)
		refusal := xeroFakeDenied(415, "Unsupported", "UnsupportedMediaType")
		if k.product == productFortnox {
			status, body := fortnoxRefused(400, fortnoxNoCode, "Verifikationen balanserar inte.")
			refusal = vendorAnswer{status, nil, body}
		}
		k.fake().strike("post", vendorFault{answer: refusal}) // once it was not found, and is sent again
		k.work(15 * time.Minute)
		if got := k.exported(x.ID); got.State != exportFailed || len(k.events("books.failed")) != 1 {
			t.Fatalf("%s, %d events", got.State, len(k.events("books.failed")))
		}
		k.work(5 * time.Hour)
		k.has(x.SyncKey, 0)
		k.change(func(t *tx) error { return second(retryExport(t, ownedBy(k.account), k.connection, x.ID)) })
		k.fail("post", fault500After)
		k.after(time.Hour, x.ID, exportPosted)
		k.has(x.SyncKey, 1)
	})
}

// another returns another account for sales than that of the mapping.
func (k *bookkeeper) another() string {
	return map[string]string{productXero: "210", productFortnox: "3001"}[k.product]
}

func TestBooks_aMappingThatChangesBetweenCheckAndSendingIsTheOneThatIsSent(t *testing.T) {
	t.Parallel()
	atXero(t, func(t *testing.T, k *bookkeeper) {
		x := k.dueDay()
		k.xero.passing = func(r vendorRequest) {
			if strings.HasSuffix(r.path, "/TaxRates") {
				k.xero.passing = nil
				k.remap(func(m *bookMapping) { m.Lines[0].Account = "210" })
				k.sell(1000) // which counts on the next day
			}
		}
		k.after(10*time.Second, x.ID, exportPosted)
		for _, l := range k.xero.journals()[0].lines {
			if l.account == "200" {
				t.Errorf("sent by the mapping that was there before: %+v", l)
			}
		}
		k.adds(4200)
	})
}

func TestBooks_anEntryWhoseLookUpFailsForEverDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	atXero(t, func(t *testing.T, k *bookkeeper) {
		first := k.posts(4200)
		reversal := k.reverse(first.ID, "")
		k.xero.on(*first.EntryID, func(j *xeroFakeJournal) { j.date = "no date" }) // read, it can't be understood
		k.until("2000-01-02 12:00")
		k.sell(1000)
		k.until("2000-01-03 07:00")
		second := k.export("2000-01-02")
		k.after(3*time.Minute, second.ID, exportPosted)
		asked := len(k.xero.requests)
		k.work(5 * time.Hour)
		if n := len(k.xero.requests) - asked; n > 100 {
			t.Errorf("in five hours it was asked for with %d requests", n)
		}
		if k.exported(reversal.ID).State != exportWaiting || k.failingSince().IsZero() {
			t.Errorf("the reversal is %s, failing since %s", k.exported(reversal.ID).State, k.failingSince())
		}
		k.xero.on(*first.EntryID, func(j *xeroFakeJournal) { j.date = bookkeeperDay })
		k.after(time.Hour, reversal.ID, exportPosted)
		if !k.failingSince().IsZero() {
			t.Error("it is said to fail, though nothing does")
		}
		k.adds(1000)
	})
}

// failingSince returns since when the connection gives no usable answers.
func (k *bookkeeper) failingSince() stamp {
	k.t.Helper()
	c, err := k.store.bookConnection(anyAccount, k.connection)
	k.check(err)
	return c.FailingSince
}

func TestBooks_anEntryThatIsNotFoundByItsIDIsLookedForBeforeItCountsAsGone(t *testing.T) {
	t.Parallel()
	atXero(t, func(t *testing.T, k *bookkeeper) {
		first := k.posts(4200)
		k.xero.on(*first.EntryID, func(j *xeroFakeJournal) { j.id = "another" })
		k.reverse(first.ID, "")
		k.after(time.Minute, first.ID, exportReversed)
		k.export(bookkeeperDay)
		k.work(time.Minute)
		k.adds(4200)
	})
}

func TestBooks_aDayThatAddsUpToNothingGetsOneExportThatWaitsForMore(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		clearing := func(m *bookMapping) { m.Lines[5].Account = m.Lines[4].Account } // of cash, as of cards
		k.remap(clearing)
		k.set(func(c *bookConnection) { c.Outside = true })
		k.sendFrom(bookkeeperDay)
		id := k.sellBy(methodCash, 5000)
		k.until("2000-01-02 07:00")
		k.work(2 * time.Minute)
		k.change(func(t *tx) error { return second(undoPaid(t, ownedBy(k.account), id, anActor)) })
		k.recordRevenue() // taken back on the next day, which gets another sale of another group for as much
		k.sellBy(methodCash, 5000, func(o *order) { o.Lines[0].Group = "wine" })
		k.until("2000-01-03 07:00")
		k.work(3 * time.Hour)
		all := k.exports()
		if len(all) != 2 || all[1].State != exportWaiting || all[1].Detail == nil || len(k.books()) != 1 {
			t.Fatalf("exports: %+v", all)
		}
		if again := k.export("2000-01-02"); again.ID != all[1].ID {
			t.Errorf("asked for, it is another export: %+v", again)
		}
		k.remap(func(m *bookMapping) { // one group gets an account of its own, so that there is something to book
			clearing(m)
			group, line := "wine", m.Lines[0]
			line.Group, line.Account = &group, k.another()
			m.Lines = append(m.Lines, line)
		})
		k.after(time.Hour, all[1].ID, exportPosted)
	})
}

func TestBooks_aReversalTakesTheSeriesAndTheYearOfItsOwnDate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newBookkeeper(t, productFortnox)
		k.until("2000-12-31 12:00")
		k.sell(4200)
		k.until("2001-01-01 07:00")
		x := k.export("2000-12-31")
		k.after(time.Minute, x.ID, exportPosted)
		k.fortnox.change(func(c *fortnoxFakeCompany) { // the new year has another series for what is posted so
			c.series = slices.DeleteFunc(c.series,
				func(s fortnoxFakeSeries) bool { return s.year == 3 && s.code == "W" })
		})
		k.fortnox.lock("2000-12-31")
		r := k.reverse(x.ID, "2001-01-01")
		k.after(time.Minute, r.ID, exportHeld, heldNoSeries)
		k.set(func(c *bookConnection) { series := "F"; c.Series = &series })
		k.fail("post", fault500After)
		k.after(10*time.Minute, r.ID, exportPosted)
		if v := k.fortnox.vouchers()[1]; v.series != "F" || v.year != 3 || v.date != "2001-01-01" {
			t.Errorf("the reversal: %+v", v)
		}
		k.adds(0)
	})
}

// Against something in between that answers 400, 403, 404 or 413 that would have a capture, a refund or a day's
// entry taken for refused, a payment for unknown, keys for revoked: only an answer in the vendor's own form is a
// refusal; after any other it is looked up or sent again.
func TestBooks_a404OfSomethingInBetweenIsNoProofThatNothingIsThere(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		x := k.dueDay()
		k.fail("post", fault500After)
		k.work(2 * time.Second)
		k.fail("find", slices.Repeat([]providerFault{fault404}, 5000)...)
		k.after(time.Hour, x.ID, exportUnknown)
		k.fail("find")
		k.after(time.Hour, x.ID, exportPosted)
		k.has(x.SyncKey, 1)
	})
}

func TestBooks_aCompanyOfTwoAccountsIsNotDisconnectedForBothByOne(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		first, connection := k.account, k.connection
		k.account = k.addAccount("The other restaurant")
		k.connect() // to the same company: two accounts of ours may have one, and each its own entries
		k.check(k.engine.disconnect(t.Context(), ownedBy(k.account), k.connection, anActor))
		k.account, k.connection = first, connection
		k.posts(4200)
		k.check(k.engine.disconnect(t.Context(), ownedBy(k.account), k.connection, anActor))
		if k.product == productXero && len(k.xero.links) != 0 {
			t.Error("the last one leaves the company connected at Xero")
		}
	})
}

func TestBooks_whatTheOperatorHasToMendDoesNotEndConnections(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		x := k.dueDay()
		app := map[string]appSecrets{productXero: k.xero.app, productFortnox: k.fortnox.app}[k.product]
		k.change(func(t *tx) error {
			setBooksApp(t, k.keys, k.product, appSecrets{app.clientID, "another"})
			return nil
		})
		k.work(time.Hour)
		if k.needsOwner() || k.exported(x.ID).State == exportHeld || k.failingSince().IsZero() {
			t.Errorf("needs its owner: %v; the export is %s", k.needsOwner(), k.exported(x.ID).State)
		}
		k.change(func(t *tx) error {
			setBooksApp(t, k.keys, k.product, app)
			return nil
		})
		k.after(time.Hour, x.ID, exportPosted)
	})
}

func TestBooks_slowConnectionsWithMuchToSendLetOthersHaveTheirTurn(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	atXero(t, func(t *testing.T, k *bookkeeper) {
		k.xero.perMinute = 0
		k.sell(4200)
		k.until("2000-01-02 07:00")
		account, connection := k.account, k.connection
		for range maxExporting + 1 { // each has lost the answers to many days, and is asked for them first
			k.account = k.addAccount("Slow")
			k.connect()
			k.sql(`WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 299)
				INSERT INTO books_exports (id, connection_id, account_id, date, currency, revision, entry_date, state,
				sync_key, entry, request, due_at, created_at, sent_at)
				SELECT 'exp_' || ?1 || n, ?1, ?2, date('1999-01-01', n || ' days'), 'CHF', 1, '1999-01-01', 'unknown',
				'key ' || n, '{"date":"1999-01-01"}', '{}', '2000-01-01T00:00:00Z', '1999-12-01T00:00:00Z',
				'2000-01-02T07:00:00Z' FROM n`, k.connection, k.account)
		}
		k.account, k.connection = account, connection
		k.xero.passing = func(r vendorRequest) {
			if r.query.Get("where") != "" {
				time.Sleep(10 * time.Second) // a round of exportsAtOnce takes 500 s
			}
		}
		x := k.export(bookkeeperDay)
		k.after(2*roundLimit+time.Minute, x.ID, exportPosted)
	})
}

func TestBooks_aDayIsNotSentAgainWhileItsFormerEntryCountsAgain(t *testing.T) {
	t.Parallel()
	atXero(t, func(t *testing.T, k *bookkeeper) {
		first := k.posts(4200)
		second := k.reverse(first.ID, "")
		posted := k.after(time.Minute, second.ID, exportPosted)
		k.xero.void(*posted.EntryID) // the accountant wants to keep the first entry
		third := k.export(bookkeeperDay)
		k.after(time.Minute, third.ID, exportHeld, heldEdited)
		k.has(third.SyncKey, 0)
		k.xero.void(*k.exported(first.ID).EntryID) // and then not
		k.after(time.Hour, third.ID, exportPosted)
		k.has(third.SyncKey, 1)
	})
}

// Against a tenant who would have history written into books unasked: days from before send_from are not sent; one
// that is past needs history.
func TestBooks_daysBeforeTheOneFromWhichIsSentAreDroppedUnlessTheyAreInTheBooks(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		k.sendFrom(bookkeeperDay)
		k.sell(1000)
		k.until("2000-01-02 12:00")
		k.work(time.Minute)
		k.remap(func(m *bookMapping) { m.Lines = nil })
		k.sell(2000)
		k.until("2000-01-03 12:00")
		k.sell(3000)
		k.until("2000-01-04 12:00")
		k.work(time.Minute)
		if all := k.exports(); len(all) != 3 || all[1].State != exportHeld || all[2].State != exportHeld {
			t.Fatalf("exports: %+v", all)
		}
		k.sendFrom("2000-01-03") // the second was booked by hand
		k.remap(func(*bookMapping) {})
		k.work(5 * time.Minute)
		var got []string
		for _, x := range k.exports() {
			got = append(got, x.Date+" "+string(x.State))
		}
		if want := []string{"2000-01-01 posted", "2000-01-03 posted"}; !slices.Equal(got, want) {
			t.Errorf("exports: %q, want %q", got, want)
		}
		k.sell(4000)
		k.until("2000-01-05 12:00")
		k.set(func(c *bookConnection) { c.SendFrom = nil })
		k.work(5 * time.Minute)
		if n := len(k.books()); n != 2 {
			t.Errorf("%d entries in the books", n)
		}
	})
}

// restore has the database know nothing of exports, as if it were restored from a backup.
func (k *bookkeeper) restore() {
	k.t.Helper()
	raw(k.t, filepath.Join(k.dir, "widgetd.db"), `DELETE FROM books_exports; UPDATE revenue_days SET frozen_at = NULL`)
}

func TestBooks_aRestoredDatabaseFindsTheDaysThatWereSentSinceAndSendsNoOthers(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		k.sendingDay()
		k.work(time.Minute)
		before := k.is(k.exports()[0].ID, exportPosted)
		k.restore()
		k.work(2 * time.Minute)
		again := k.is(k.exports()[0].ID, exportPosted)
		if again.ID == before.ID || *again.EntryID != *before.EntryID {
			t.Errorf("found %+v, sent %+v", again, before)
		}
		k.has(before.SyncKey, 1)
		k.restore() // and has other figures of that day
		raw(t, filepath.Join(k.dir, "widgetd.db"), `UPDATE revenue_sums SET gross = gross + 100`)
		k.work(2 * time.Minute)
		k.is(k.exports()[0].ID, exportHeld, heldEdited)
		k.has(before.SyncKey, 1)
	})
}
