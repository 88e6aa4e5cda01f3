package main

import (
	"context"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"
)

// asked is a request with a token of the account for books and their entries.
func (k *bookkeeper) asked(method, path, body string) answer {
	k.t.Helper()
	auth := "Authorization: Bearer " + k.token(k.account, scopeBooks+" "+scopeRevenue)
	return k.do(method, "/books/connections"+path, body, auth)
}

// opens follows an address at a product, and returns the page on which its owner comes back.
func (k *bookkeeper) opens(authorize string) answer {
	k.t.Helper()
	u, err := url.Parse(k.agrees(authorize))
	k.check(err)
	return k.get(strings.TrimPrefix(u.Path, "/v1") + "?" + u.RawQuery)
}

func TestBooksHTTP_anOwnerConnectsMapsSeesAndSends(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		at := "/" + k.connection
		asked := k.requests()
		k.asked("DELETE", at+"?dry_run=true", "").is(200).tells("id", k.connection, "state", "in_use",
			"ends.exports", 0, "dry_run", true)
		k.asked("GET", at, "").is(200).tells("state", "in_use")
		equal(t, "requests to the books in a dry run", k.requests()-asked, 0)
		k.asked("DELETE", at, "").is(204)
		k.asked("GET", at, "").is(404, "books_connection_not_found")
		link := k.asked("POST", "", `{"product":"`+k.product+`"}`).is(200)
		page := k.opens(link.text("authorize_url")).is(200).has("Content-Type: text/html; charset=utf-8",
			"Cache-Control: no-store")
		if !strings.Contains(page.body, "<h1>Connected</h1>") || strings.Contains(page.body, "<script") ||
			!strings.Contains(page.body, productOf(k.product).title) {
			t.Error(page.body)
		}
		c := k.asked("GET", "", "").is(200).json()["data"].([]any)[0].(map[string]any)
		if c["id"] != k.connection || c["state"] != "in_use" || c["send_from"] != nil { // it gets its connection back
			t.Errorf("%v", c)
		}
		k.sell(1850)
		day := "/preview/" + bookkeeperDay
		k.asked("GET", at+day, "").is(200).contains(`"debit":1850`, `"final":false`, `"issues":[]`)
		k.asked("GET", at+"/accounts", "").is(200).contains(`"usable":true`)
		k.asked("GET", at+"/accounts?date=x", "").is(422, "validation_failed")
		suggested := k.asked("GET", at+"/mapping?suggest=true", "").is(200).json()
		lines := suggested["suggested"].(map[string]any)["lines"].([]any)
		if len(lines) < 2 || suggested["mapping"] == nil {
			t.Errorf("%v", suggested)
		}
		k.asked("PUT", at+"/mapping", `{"lines":`+string(encodeJSON(lines))+`}`).is(200)
		k.asked("PUT", at+"/mapping", `{"lines":[{"kind":"tip","method":"card","account":"2890"}]}`).is(422,
			"validation_failed")
		k.asked("POST", at+"/exports", `{"date":"1999-12-01"}`).is(409, "no_revenue")
		x := k.asked("POST", at+"/exports",
			`{"date":"`+bookkeeperDay+`"}`).is(200).json()["data"].([]any)[0].(map[string]any)
		export := at + "/exports/" + x["id"].(string)
		k.asked("POST", export+"/reverse", "").is(409, "export_state")
		k.asked("POST", at+"/exports/exp_1/retry", "").is(404, "export_not_found")
		k.until("2000-01-02 06:00")
		k.asked("POST", export+"/retry", "").is(200)
		k.remap(func(*bookMapping) {})
		k.work(time.Minute)
		k.asked("GET", at+"/exports?state=posted", "").is(200).contains(x["id"].(string))
		k.asked("POST", export+"/reverse", `{"date":"1999-01-01"}`).is(422, "validation_failed")
		wouldBe := k.asked("POST", export+"/reverse?dry_run=true", "").is(200)
		wouldBe.tells("id", nil, "reverses", x["id"], "dry_run", true)
		k.hasRows(1, "books_exports")
		back := k.asked("POST", export+"/reverse", "").is(200).tells("reverses", x["id"], "dry_run", nil).json()
		k.asked("POST", export+"/reverse?dry_run=true", "").is(200).tells("id", back["id"])
		k.work(time.Minute)
		k.asked("POST", export+"/reverse", "").is(200).tells("id", back["id"], "due_at", nil)
	})
}

func TestBooksHTTP_historyIsSentOnlyWhereItIsSaid(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		at := "/" + k.connection
		k.until("2000-01-10 12:00")
		k.asked("PATCH", at, `{"send_from":"2000-01-09"}`).is(422, "validation_failed")
		for body, want := range map[string]any{`{"send_from":"2000-01-10"}`: "2000-01-10", `{"send_from":null}`: nil,
			`{"send_from":"2000-01-01","history":true}`: "2000-01-01"} {
			if got := k.asked("PATCH", at, body).is(200).json()["send_from"]; got != want {
				t.Errorf("%s: %v", body, got)
			}
		}
		for body, want := range map[string]int{`{"send_from":"2000-01-01","outside":false}`: 200,
			`{"send_from":"2000-01-02"}`: 422} { // as it is, and another one that is past
			k.asked("PATCH", at, `{"send_from":"2000-01-01","history":true}`).is(200)
			k.asked("PATCH", at, body).is(want)
		}
		other := map[string]string{productXero: `{"series":"A"}`, productFortnox: `{"status":"posted"}`}
		own := map[string]string{productXero: `{"status":"posted"}`, productFortnox: `{"series":"A"}`}
		k.asked("PATCH", at, other[k.product]).is(422, "validation_failed")
		k.asked("PATCH", at, own[k.product]).is(200)
		k.asked("PATCH", at, `{"organisation":"another"}`).is(409, "books_connection_state")
		if c := k.asked("PATCH", at, `{"outside":true,"tests":true}`).is(200).json(); c["outside"] != true ||
			c["tests"] != true {
			t.Errorf("%v", c)
		}
	})
}

func TestBooksHTTP_pagesSayWhyNothingWasConnected(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		at := "/books/callback/" + k.product
		address := k.asked("POST", "", `{"product":"`+k.product+`"}`).is(200).text("authorize_url")
		u, err := url.Parse(address)
		k.check(err)
		for path, want := range map[string]struct {
			status int
			text   string
		}{
			at:                                {409, "This link was used already"},
			at + "?state=x&code=%3Cscript%3E": {409, "This link was used already"},
			at + "?error=access_denied&state=" +
				url.QueryEscape(u.Query().Get("state")): {409, "Access was not granted"},
			"/books/callback/abacus": {404, "There is nothing"},
		} {
			a := k.get(path).has("Content-Type: text/html; charset=utf-8", "Cache-Control: no-store")
			if a.status != want.status || !strings.Contains(a.body, want.text) || strings.Contains(a.body, "<script") {
				t.Errorf("%s: %d %s", path, a.status, a.body)
			}
		}
	})
}

// requests returns how many requests the products got.
func (k *bookkeeper) requests() int {
	k.xero.mu.Lock()
	defer k.xero.mu.Unlock()
	k.fortnox.mu.Lock()
	defer k.fortnox.mu.Unlock()
	return len(k.xero.requests) + len(k.fortnox.requests)
}

func TestBooksHTTP_aServiceOnACopyAsksNothingAndSaysWhy(t *testing.T) {
	t.Parallel()
	eachProduct(t, func(t *testing.T, k *bookkeeper) {
		at := "/" + k.connection
		k.set(func(c *bookConnection) { c.Tests = true })
		k.sendFrom(bookkeeperDay)
		k.sell(1850)
		back, err := url.Parse(k.approve())
		k.check(err)
		k.until("2000-01-02 12:00") // the access token has ended, and the day is due
		how, err := usualServerOptions(allCommands())
		k.check(err)
		how.outboundAllow, how.urls, how.noBooks = demoOutbound, bookkeeperURLs, true
		original := k.server
		k.server, err = newServer(k.store, k.keys, how, slog.New(slog.NewTextHandler(k.log, nil)), nouns())
		k.check(err)
		k.server.outbound.plain.DialContext = original.outbound.plain.DialContext
		t.Cleanup(k.server.outbound.close)
		before, tokens := k.requests(), k.given()
		ctx, stop := context.WithCancel(t.Context())
		for _, run := range k.server.workers {
			k.server.working.Go(func() { run(ctx) })
		}
		for _, c := range []struct{ method, path, body string }{
			{"GET", at + "/accounts", ""}, {"GET", at + "/mapping?suggest=true", ""},
			{"GET", at + "/preview/" + bookkeeperDay, ""},
			{"POST", "", `{"product":"` + k.product + `"}`},
		} {
			k.asked(c.method, c.path, c.body).is(503, "books_unavailable").contains("-no-books")
		}
		k.get(strings.TrimPrefix(back.Path, "/v1") + "?" + back.RawQuery).is(503).shows("works on a copy")
		x := k.asked("POST", at+"/exports",
			`{"date":"`+bookkeeperDay+`"}`).is(200).json()["data"].([]any)[0].(map[string]any)
		k.asked("POST", at+"/exports/"+x["id"].(string)+"/retry", "").is(200)
		k.time(2 * time.Minute)
		k.asked("DELETE", at, "").is(204) // of the copy only
		stop()
		k.server.working.Wait()
		if k.requests() != before || k.given() != tokens {
			t.Errorf("%d requests more, %d times tokens more", k.requests()-before, k.given()-tokens)
		}
	})
}
