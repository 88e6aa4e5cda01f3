package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// addBooks adds a connection of an account with books, with tokens that a key file has sealed.
func addBooks(t *tx, keys *keyring, account, product string, change func(c *bookConnection)) (*bookConnection, error) {
	company := bookCompany{ID: "company-" + account, Name: "Trattoria"}
	c := &bookConnection{ID: t.newID("bkc"), AccountID: account, Product: product, Status: entryDraft,
		OrganisationID: &company.ID, Organisation: company.Name}
	if change != nil {
		change(c)
	}
	t.addBookConnection(c)
	sealed, err := sealTokens(keys, c.ID, &bookTokens{Access: "access", ExpiresAt: t.now.after(time.Hour)})
	if err != nil {
		return nil, err
	}
	return c, t.saveBookTokens(c, sealed)
}

// addBooksExport adds an export of a connection that waits in a state since a time.
func addBooksExport(
	t *tx, c *bookConnection, date businessDate, state bookExportState, reason string, since stamp,
) (id string, err error) {
	x := newExport(t, c, exportSubject{Date: date, Currency: "CHF"}, dayKey(c.AccountID, date), 1, nil, t.now)
	x.State, x.Reason, x.HeldAt, x.Detail = state, &reason, since, ptr("2000663 Nej.")
	return x.ID, t.saveExport(x)
}

func TestBooks_statusAndCheckTellWhatNeedsDoing(t *testing.T) {
	manyCommandsUnderRace(t)
	t.Parallel()
	o := newOperator(t)
	secrets := o.file("app", "client_id=app\nclient_secret=keepthissecret\n")
	o.told.hear("keepthissecret")
	o.do("books", "app", "set", "xero", "-secrets", secrets)
	keys, err := loadKeyring(o.env["WIDGETD_KEY"])
	must(t, err)
	var lost, failing *bookConnection
	var now stamp
	o.change(func(t *tx) (err error) {
		now = t.now
		ago := func(d time.Duration) stamp { return t.now.after(-d) }
		lost, err = addBooks(t, keys, o.account, productXero,
			func(c *bookConnection) { c.NeedsReconnectAt = ago(time.Hour) })
		if err == nil {
			failing, err = addBooks(t, keys, o.account, productFortnox,
				func(c *bookConnection) { c.FailingSince = ago(2 * time.Hour) })
		}
		add := func(
			c *bookConnection, date businessDate, state bookExportState, reason string, since stamp,
		) (id string) {
			if err == nil {
				id, err = addBooksExport(t, c, date, state, reason, since)
			}
			return id
		}
		add(lost, "2026-01-01", exportHeld, heldReconnect, ago(heldTooLong))
		add(lost, "2026-01-02", exportHeld, heldReconnect, ago(heldTooLong-time.Hour))
		add(failing, "2026-01-03", exportFailed, "2000108", ago(2*heldTooLong))
		add(failing, "2026-01-04", exportUnknown, "", stamp{})
		add(failing, "2026-01-05", exportHeld, heldNoRight, ago(heldTooLong))
		if err != nil {
			return err
		}
		// What nobody can do anything about is not told of.
		for _, why := range []string{"removed", "closed"} {
			account := t.addAccount(why, false)
			c, err := addBooks(t, keys, account, productXero, func(c *bookConnection) {
				c.NeedsReconnectAt, c.FailingSince = t.now, t.now
				if why == "removed" {
					c.RemovedAt = t.now
				}
			})
			if err != nil {
				return err
			}
			add(c, "2026-01-01", exportHeld, heldReconnect, ago(days(9)))
			add(c, "2026-01-02", exportFailed, "2000108", ago(days(9)))
			add(c, "2026-01-03", exportUnknown, "", stamp{})
			if why == "closed" {
				err = closeAccount(t, nouns(), account, actorCommand)
			}
			if err != nil {
				return err
			}
		}
		return err
	})
	v := o.object("status")
	const totals = "map[connections:2 failed:1 failing:1 held:3 held_long:2 need_reconnect:1 refused:1 " +
		"unknown:1 waiting:0]"
	if got := fmt.Sprint(v["books"]); got != totals {
		t.Errorf("%s, want %s", got, totals)
	}
	again := "have its owner connect it again, on the address that 'widgetd books connect xero -account main' prints"
	lines := needsDoing(v)
	for _, want := range []string{
		"1 connection with books waits for its owner since " + lost.NeedsReconnectAt.day() + ": 'widgetd books list'",
		"1 connection with books gets no usable answer since " + failing.FailingSince.day() +
			": 'widgetd books list'",
		"1 entry failed since " + now.after(-2*heldTooLong).day() +
			": 'widgetd books export list -state failed'",
		"1 entry is refused by the books since " + now.after(-heldTooLong).day() +
			" (no_right: 2000663 Nej.): 'widgetd books export list -state held'",
		"2 entries held since " + now.after(-heldTooLong).day() +
			" (needs_reconnect): 'widgetd books export list -state held'",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %q in %q", want, lines)
		}
	}
	if text := o.do("status", "-wide"); !strings.Contains(text, "2 connections, 3 entries held, 2 refused\n") {
		t.Errorf("%s", text)
	}
	if out := o.do("check"); !strings.HasPrefix(out, "ok: ") {
		t.Errorf("%s", out)
	}
	o.replaceKeyFile()
	sealed := []string{
		"the secret of the application for xero was sealed with another key file: " +
			"run 'widgetd books app set xero -secrets FILE'",
		"the tokens of the connection " + lost.ID + " with books were sealed with another key file: " + again,
		"the tokens of the connection " + failing.ID + " with books were sealed with another key file: " +
			strings.Replace(again, productXero, productFortnox, 1),
	}
	out, err := o.try("check")
	if n := strings.Count(out, "key: "); err == nil || n != len(sealed) {
		t.Errorf("check: %v, %d lines about the key file", err, n)
	}
	for _, want := range sealed {
		if !strings.Contains(out, "key: "+want+"\n") {
			t.Errorf("check: no line %q in\n%s", want, out)
		}
	}
	lines = needsDoing(o.object("status"))
	const needed = "another key file has sealed what money needs: "
	if !slices.Contains(lines, needed+sealed[0]+" (and 2 more such: 'widgetd check' names all)") {
		t.Errorf("no line of what was sealed elsewhere in %q", lines)
	}
}

func TestBooks_restWhileTheirAccountIsClosed(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		there := func(o *order) { o.ReturnURL = "https://trattoria.example/thanks" }
		k.account = k.addAccount("Trattoria")
		k.change(func(t *tx) error { return addOrigin(t, k.account, "https://trattoria.example", anActor) })
		k.connect()
		k.remap(func(*bookMapping) {})
		if k.product == productFortnox {
			k.set(func(c *bookConnection) { series := "W"; c.Series = &series })
		}
		k.sell(1000, there)
		k.sendFrom(bookkeeperDay)
		k.until("2000-01-02 05:59")
		k.change(func(t *tx) error { return closeAccount(t, nouns(), k.account, actorCommand) })
		k.work(5 * time.Minute)
		if n := len(k.exports()); n != 0 || len(k.books()) != 0 {
			t.Fatalf("%d exports of a closed account, %d entries in the books", n, len(k.books()))
		}
		k.change(func(t *tx) error { return reopenAccount(t, k.account, actorCommand) })
		k.sell(500, there)
		k.work(2 * time.Minute)
		all := k.exports()
		if len(all) != 1 {
			t.Fatalf("%d exports", len(all))
		}
		k.is(all[0].ID, exportPosted)
		k.set(func(c *bookConnection) { c.SendFrom = nil })
		k.until("2000-01-03 06:00") // another export waits while the account is closed
		x := k.export("2000-01-02")
		k.change(func(t *tx) error { return closeAccount(t, nouns(), k.account, actorCommand) })
		k.after(time.Minute, x.ID, exportWaiting)
		k.change(func(t *tx) error { return reopenAccount(t, k.account, actorCommand) })
		k.after(time.Minute, x.ID, exportPosted)
		if len(k.books()) != 2 {
			t.Errorf("%d entries in the books", len(k.books()))
		}
	})
}
