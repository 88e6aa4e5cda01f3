package main

import (
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// booksLine adds to a command line where the fake of Xero is.
func booksLine(f *xeroFake, args ...string) []string {
	return append(args, "-xero-url", f.base, "-outbound-allow", loopbackRange)
}

// comeBack is the owner who agrees at Xero and comes back to the service.
func comeBack(o *operator, f *xeroFake, authorize string) {
	o.t.Helper()
	u, err := url.Parse(f.approve(authorize))
	must(o.t, err)
	keys, err := loadKeyring(filepath.Join(o.dir, "widgetd.key"))
	must(o.t, err)
	o.store(func(st *store) {
		out := newOutbound(demoOutbound)
		defer out.close()
		b := &books{ledgers: newLedgers(out, map[string]string{"xero-url": f.base}, time.Now),
			connector: connector{store: st, keys: func() *keyring { return keys }, log: slog.New(slog.DiscardHandler),
				now: time.Now, monotonic: time.Now, wake: make(chan struct{}, 1)}}
		q := u.Query()
		if _, err := b.callback(o.t.Context(), productXero, q.Get("state"), q.Get("code"), q.Get("error")); err != nil {
			o.t.Fatal(err)
		}
	})
}

func booksStory(t *testing.T, o *operator) {
	f := newXeroFake(t, time.Now)
	f.app.clientSecret = "s+cret/of:the-app~" // as those that are given out: without a space
	secrets := o.file("secrets", "client_id="+f.app.clientID+"\nclient_secret = "+f.app.clientSecret+"\n")
	o.told.keep("a client secret", f.app.clientSecret)
	o.fails("run 'widgetd books app set'", booksLine(f, "books", "connect", "xero")...)
	o.fails(`there is no product "abacus"`, "books", "app", "set", "abacus", "-secrets", secrets)
	o.fails("-secrets FILE is needed", "books", "app", "set", "xero")
	o.do("books", "app", "set", "xero", "-secrets", secrets)
	if apps := o.objects("books", "app", "list"); len(apps) != 1 || apps[0]["client_id"] != f.app.clientID {
		t.Errorf("%v", apps)
	}
	comeBack(o, f, o.object(booksLine(f, "books", "connect", "xero")...)["authorize_url"].(string))
	c := o.objects("books", "list")[0]
	id := c["id"].(string)
	if c["state"] != "in_use" || c["send_from"] != nil || c["account_id"] != o.account {
		t.Errorf("%v", c)
	}
	o.fails("no mapping was confirmed", "books", "map", id)
	out := o.do(booksLine(f, "books", "accounts", id, "-date", "2020-01-01", "-wide")...)
	for _, want := range []string{"200", "Old sales", "archived", "OUTPUT2",
		"\ncost centers  Region:North, Region:South\n"} {
		contains(t, out, want)
	}
	suggested := o.do(booksLine(f, "books", "map", id, "-suggest", "-json")...)
	payouts := strings.Replace(suggested, `"lines":[`, `"lines":[{"kind":"transit","account":"404"},`, 1)
	o.do("books", "map", id, "-set", o.file("payouts.json", payouts))
	contains(t, o.noted, "warning: Another connector of the payment provider would book")
	mapping := o.file("mapping.json", suggested)
	if table := o.do("books", "map", id, "-set", mapping, "-wide"); !strings.Contains(table, "all others") {
		t.Error(table)
	}
	if now := o.do("books", "map", id, "-json"); now != suggested {
		t.Errorf("%s\n%s", now, suggested)
	}
	o.fails("-set and -suggest exclude each other", "books", "map", id, "-suggest", "-set", mapping)
	today := time.Now().UTC().Format(time.DateOnly)
	o.fails("-send-from: This must be a date", "books", "set", id, "-send-from", "tomorrow")
	o.fails("send-from: This day is past", "books", "set", id, "-send-from", "2020-01-01")
	o.fails("-outside: give yes or no", "books", "set", id, "-outside", "maybe")
	set := o.object("books", "set", id, "-send-from", "2020-01-01", "-history", "-status", "posted", "-tests", "yes")
	if set["send_from"] != "2020-01-01" || set["status"] != "posted" || set["tests"] != true ||
		set["outside"] != false {
		t.Errorf("%v", set)
	}
	if set := o.do("books", "set", id, "-send-from", "never"); !strings.HasSuffix(set, "it sends from: never\n") {
		t.Error(set)
	}
	if out := o.do(booksLine(f, "books", "preview", id, "2020-01-01")...); !strings.Contains(out, "entries  -\n") {
		t.Error(out)
	}
	sell(o)
	from := time.Now().UTC().AddDate(0, 0, -2).Format(time.DateOnly)
	day := o.objects("revenue", "list", "-from", from)[0]["date"].(string)
	if out := o.do(booksLine(f, "books", "preview", id, day)...); !strings.Contains(out, "\nfinal            no\n") {
		t.Error(out)
	}
	o.fails("DATE: This must be a date", "books", "export", "send", id, today[:7])
	o.fails("nothing that the connection would send", "books", "export", "send", id, "2020-01-01")
	x := o.objects("books", "export", "send", id, day)[0]
	if all := o.objects("books", "export", "list", "-state", "waiting"); len(all) != 1 || all[0]["id"] != x["id"] {
		t.Errorf("%v", all)
	}
	o.do("books", "export", "retry", x["id"].(string))
	contains(t, o.noted, "queued: the service does it when it runs")
	o.fails("Only the entry of a day that is in the books", "books", "export", "reverse", x["id"].(string))
	o.change(func(t *tx) error {
		posted, err := t.bookExport(anyAccount, x["id"].(string))
		if err != nil {
			return err
		}
		posted.State, posted.EntryID, posted.SentAt, posted.PostedAt, posted.DueAt = exportPosted, ptr("entry"),
			t.now, t.now, stamp{}
		return t.saveExport(posted)
	})
	later := time.Now().UTC().AddDate(0, 0, 10).Format(time.DateOnly)
	if back := o.objects("books", "export", "reverse", x["id"].(string), "-date", later); len(back) != 1 ||
		back[0]["reverses"] != x["id"] || back[0]["entry_date"] != later || back[0]["revision"] != 2.0 {
		t.Errorf("%v", back)
	}
	o.fails("'widgetd books export list' prints what there is", "books", "export", "retry", "exp_1")
	o.do(booksLine(f, "books", "disconnect", id)...)
	o.fails("'widgetd books list' prints what there is", "books", "map", id)
}

// sell adds an order of 18.50 that was paid by card with test keys.
func sell(o *operator) {
	o.t.Helper()
	o.change(func(t *tx) error {
		sale := &order{AccountID: o.account, Currency: "CHF", ReturnURL: siteOrigin + "/thanks",
			Lines: []orderLine{{Name: "Menu", Quantity: 1, UnitAmount: 1850, VATRate: 810}}}
		if _, err := createOrder(t, sale, guest{}, minOrderLife, actorCommand); err != nil {
			return err
		}
		return markPaid(t, sale, methodCard, t.now, actorCommand)
	})
}
