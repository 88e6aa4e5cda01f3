package main

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// licenseEvents are a licence's events in order, as "type actor".
func (s *service) licenseEvents(id string) (all []string) {
	s.t.Helper()
	s.check(s.store.each(`SELECT type || ' ' || actor FROM events WHERE subject_id = ? ORDER BY seq`, []any{id},
		func(scan func(...any) error) error {
			all = append(all, "")
			return scan(&all[len(all)-1])
		}))
	return all
}

// eventTypes are the types of a licence's events, oldest first.
func (s *service) eventTypes(licenseID string) string {
	s.t.Helper()
	page, err := s.store.events(eventFilter{owner: anyAccount, licenseID: licenseID}, "", 100)
	s.check(err)
	types := ""
	for _, e := range page.rows {
		types = strings.TrimSpace(string(e.Type) + " " + types)
	}
	return types
}

func TestEvent_ofEndsToComeAreAllWrittenAtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	end := newStamp(time.Now().Add(days(3)))
	s.sql(manyRows(2*maxTransitions+1)+`
		INSERT INTO licenses (id, account_id, product, expires_at, created_at, updated_at)
		SELECT printf('lic_%026d', i), ?1, 'kds', ?2, ?3, ?3 FROM n`, s.account, end, newStamp(time.Now()))
	s.check(s.server.announceEnds(t.Context()))
	s.counts(2*maxTransitions+1, `SELECT count(*) FROM events WHERE type = 'license.expiring'`)
	if due, err := s.store.licensesExpiring(newStamp(time.Now()), end); due || err != nil {
		t.Errorf("there is still work: %v, %v", due, err)
	}
}

// fillEvents writes events of an account with one statement.
func (s *service) fillEvents(account string, kind eventType, n int) {
	s.t.Helper()
	s.sql(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO events (id, at, type, account_id, subject_id, actor)
		SELECT 'evt_' || printf('%026d', i), '2026-01-01T00:00:00Z', ?, ?, 'lead_' || printf('%026d', i), 'site'
		FROM n`, n, kind, account)
}

// manyEvents writes events of an account after those that are there, one a second: the first of
// them of type license.revoked.
func (s *service) manyEvents(account, subject string, n int, data string) {
	s.t.Helper()
	s.sql(manyRows(n)+`INSERT INTO events (id, at, type, account_id, subject_id, actor, data)
		SELECT printf('evt_%026d', i), strftime('%Y-%m-%dT%H:%M:%SZ', '2030-01-01', i || ' seconds'),
		iif(i = 1, 'license.revoked', 'license.updated'), ?, ?, 'time', ? FROM n`, account, subject, data)
}

func TestEvent_listThatFiltersReadsABoundedNumberOfRowsAndComesToEveryOne(t *testing.T) {
	manyRowsUnderRace(t)
	t.Parallel()
	s := newService(t, withFewListRows)
	id, key := s.addLicense(license{})
	device := s.activate(key, "a").is(200).text("device", "id")
	other := s.activate(key, "b").is(200).text("device", "id")
	s.manyEvents(s.account, id, s.store.limits.listRows*5/2, `{"device_id":"`+other+`"}`)
	for _, scope := range []string{scopeAdmin, scopeEvents} {
		auth := "Authorization: Bearer " + s.token(s.account, scope)
		for filter, c := range map[string]struct{ rows, empty int }{
			"type=license.revoked":                            {1, 0}, // along the index of types
			"type=device.activated":                           {2, 0},
			"type=origin.added":                               {0, 1},
			"type=license.revoked&since=2030-01-01T00:00:00Z": {1, 0},
			"device_id=" + device:                             {1, 2}, // or more, along the licence's
			"type=license.revoked&license_id=" + id:           {1, 2},
		} {
			ids, empty := s.everyPage("/events?"+filter, auth)
			if len(ids) != c.rows || len(slices.Compact(ids)) != c.rows || min(empty, 2) != c.empty {
				t.Errorf("%s: %s gives %v with %d empty pages, want %v", scope, filter, ids, empty, c)
			}
		}
		for _, filter := range []string{"type=origin.added", "type=license.revoked", "since=2031-01-01T00:00:00Z",
			"type=license.created&license_id=" + id} { // of the feed, which finds nothing in many rows
			f := s.follows(scope, "&"+filter)
			if empty := f.drain(""); empty != 2 && empty != 3 {
				t.Errorf("%s: %d empty answers", filter, empty)
			}
		}
	}
}

func TestEvent_listSinceATimeEndsThere(t *testing.T) {
	manyRowsUnderRace(t)
	t.Parallel()
	s := newService(t, withFewListRows)
	n := s.store.limits.listRows * 5 / 2
	s.manyEvents(s.account, "", n, `{}`)
	s.sql(`DELETE FROM events WHERE seq % 7 = 3`) // numbers have gaps
	auth := "Authorization: Bearer " + s.token(s.account, scopeEvents)
	for _, most := range []int{n, n / 2, 11, 2, 0} { // of which those with a gap's number are not there
		since := newStamp(time.Date(2030, 1, 1, 0, 0, n-most+1, 0, time.UTC)).String()
		want := s.count(`SELECT count(*) FROM events WHERE at >= ?`, since)
		ids, empty := s.everyPage(fmt.Sprintf("/events?limit=%d&since=%s", min(200, n/25), since), auth)
		if len(ids) != want || want > most || want < most/2 || want > 0 && empty > 0 || empty > 1 {
			t.Errorf("since %s: %d events and %d empty pages, want %d events", since, len(ids), empty, want)
		}
	}
}

func TestEvent_listWhereTheClockWasSetBackHasNoneThatIsOlder(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.manyEvents(s.account, "", 100, `{}`)
	s.manyEvents(s.account, "", 100, `{}`) // again from the same moment on
	auth := "Authorization: Bearer " + s.token(s.account, scopeEvents)
	ids, _ := s.everyPage("/events?limit=7&since=2030-01-01T00:01:00Z", auth)
	if len(ids) < 41 || len(ids) > 82 {
		t.Errorf("%d events: 82 are that young, and the last 41 of them must be there", len(ids))
	}
	for _, id := range ids {
		if id.(string) < "evt_00000000000000000000000060" {
			t.Errorf("%s is older", id)
		}
	}
}

// A feedReader follows the feed of events as a caller does: it keeps next, and what it has read.
type feedReader struct {
	*service
	auth, filter, next string
	ids                []string
}

// follows makes a reader that begins at the oldest event; filter is "&type=…".
func (s *service) follows(scope, filter string) *feedReader {
	return &feedReader{service: s, auth: bearer(s.token(s.account, scope)), filter: filter, next: "start"}
}

// ask asks once. It returns the answer, which it has checked, and the ids in it.
func (f *feedReader) ask(more string) (ids []string, goesOn bool) {
	f.t.Helper()
	a := f.get("/events?after="+f.next+f.filter+more, f.auth).is(200)
	page := a.json()
	for _, row := range page["data"].([]any) {
		ids = append(ids, row.(map[string]any)["id"].(string))
	}
	f.next, goesOn = page["next"].(string), page["more"].(bool)
	f.ids = append(f.ids, ids...)
	return ids, goesOn
}

// drain asks until there is nothing more, and returns how many answers were empty.
func (f *feedReader) drain(more string) (empty int) {
	f.t.Helper()
	for {
		ids, goesOn := f.ask(more)
		if len(ids) == 0 {
			empty++
		}
		if !goesOn {
			return empty
		}
	}
}

// writtenIDs returns the ids of the events that a condition selects, in the order of writing.
func (s *service) writtenIDs(condition string, args ...any) (ids []string) {
	s.t.Helper()
	s.check(s.store.each(`SELECT id FROM events WHERE `+condition+` ORDER BY seq`, args,
		func(scan func(...any) error) error {
			ids = append(ids, "")
			return scan(&ids[len(ids)-1])
		}))
	return ids
}

// asks runs a request beside the test, and returns a function that waits for its answer.
func (s *service) asks(path string, headers ...string) (answered func() answer) {
	done := make(chan answer, 1)
	go func() { done <- s.get(path, headers...) }()
	return func() answer { return <-done }
}

func TestFeed_hasEveryEventOnceInTheOrderOfWriting(t *testing.T) {
	t.Parallel()
	s := newService(t)
	license, key := s.addLicense(license{})
	device := s.activate(key, "a").is(200).text("device", "id")
	other := s.addAccount("other")
	for range 3 {
		s.manyEvents(other, "", 20, `{}`)
		s.manyEvents(s.account, license, 30, `{"device_id":"`+device+`"}`)
		s.manyEvents(s.account, license, 7, `{}`)
	}
	for filter, condition := range map[string]string{
		"":                            `1`,
		"&type=license.revoked":       `type = 'license.revoked'`,
		"&license_id=" + license:      `subject_id = '` + license + `'`,
		"&device_id=" + device:        `json_extract(data, '$.device_id') = '` + device + `'`,
		"&since=2030-01-01T00:00:05Z": `at >= '2030-01-01T00:00:05Z'`,
		"&license_id=" + newID("lic", time.Now()): `0`,
		"&device_id=" + newID("dev", time.Now()):  `0`,
	} {
		for _, limit := range []string{"&limit=7", "&limit=200"} {
			f := s.follows(scopeEvents, filter)
			f.drain(limit)
			equal(t, filter+limit, f.ids, s.writtenIDs(condition+` AND account_id = ?`, s.account))
			if ids, more := f.ask(limit); len(ids) > 0 || more {
				t.Errorf("%s: %v %v after the end", filter, ids, more)
			}
		}
	}
	operator := s.follows(scopeAdmin, "")
	operator.drain("")
	equal(t, "of the operator", operator.ids, s.writtenIDs(`1`))
	ofOther := s.follows(scopeAdmin, "&account_id="+other)
	ofOther.drain("")
	equal(t, "of another account", ofOther.ids, s.writtenIDs(`account_id = ?`, other))
}

func TestFeed_refusesWhatItDoesNotUnderstand(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := bearer(s.token(s.account, scopeEvents))
	for query, parameter := range map[string]string{
		"after=start&cursor=evt_00000000000000000000000042": "cursor", "after=start&wait=16": "wait",
		"after=start&wait=-1": "wait", "after=start&wait=05": "wait", "after=start&wait=1.5": "wait",
		"after=&wait=1": "after", "after=start&after=now": "after", "after=" + strings.Repeat("a", 201): "after",
		"after=start&type=x.y": "type", "after=start&until=2030-01-01T00:00:00Z": "until",
	} {
		s.get("/events?"+query, auth).is(422).shows(`"parameter":"` + parameter + `"`)
	}
	s.get("/events?after=start", bearer(s.token(s.account, scopeLeads))).is(403)
	s.get("/events?after=start").is(401)
	for _, cursor := range []string{"x", "%C3%A4", "AAAA", "evt_00000000000000000000000042", strings.Repeat("A", 80)} {
		s.get("/events?after="+cursor, auth).is(410, "cursor_unknown")
	}
}

func TestFeed_answersWhenSomethingOfTheAccountIsCommitted(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		other := s.addAccount("other")
		s.change(func(t *tx) error { return addOrigin(t, other, "https://other.example", anActor) })
		f := s.follows(scopeEvents, "")
		f.next = "now"
		f.ask("")
		begun := time.Now()
		answered := s.asks("/events?wait=15&after="+f.next, f.auth)
		synctest.Wait()
		time.Sleep(9 * time.Second)
		s.post("/widget/leads", anyLead, "Origin: https://other.example").is(200)
		time.Sleep(3 * time.Second)
		s.post("/widget/leads", anyLead).is(200)
		page := answered().is(200).json()
		took := time.Since(begun)
		failIf(t, took < 12*time.Second || took > 12*time.Second+feedSpread, "it took %v", took)
		equal(t, "events", len(page["data"].([]any)), 1)
		f.next = page["next"].(string)

		begun = time.Now()
		answered = s.asks("/events?wait=15&type=license.created&after="+f.next, f.auth)
		synctest.Wait()
		s.post("/widget/leads", anyLead).is(200) // not of that type
		page = answered().is(200).json()
		took = time.Since(begun)
		failIf(t, took < 15*time.Second || took > 15*time.Second+feedSpread, "it took %v", took)
		equal(t, "events", fmt.Sprint(page["data"], page["more"]), "[] false")
		f.next = page["next"].(string) // past the lead
		f.drain("")
		equal(t, "events after the filter left one out", len(f.ids), 0)
		took = s.server.metrics.answers[answerKey{"GET /events", 200}].took
		failIf(t, took > time.Second, "waiting counts as %v of work", took)
	})
}

// A wake-up that is lost: events that are committed between a reader's look and its wait.
func TestFeed_losesNothingThatIsCommittedWhileItLooks(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	f := s.follows(scopeEvents, "")
	f.drain("")
	n := size(60, 600)
	go func() {
		for i := range n {
			s.post("/widget/leads", fmt.Sprintf(`{"type":"newsletter","email":"guest%d@example.com"}`, i))
		}
	}()
	for f.ids = nil; len(f.ids) < n; {
		begun := time.Now()
		if ids, _ := f.ask("&wait=15"); len(ids) == 0 {
			t.Fatalf("nothing came for %v, after %d of %d events", time.Since(begun), len(f.ids), n)
		}
	}
	equal(t, "events", f.ids, s.writtenIDs(`type = 'lead.created'`))
}

func TestFeed_judgesWhoWaitsAgain(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		other := s.addAccount("other")
		revoked, closed := s.token(other, scopeEvents), s.token(s.account, scopeAdmin)
		ofRevoked := s.asks("/events?after=now&wait=15", bearer(revoked))
		ofClosed := s.asks("/events?after=now&wait=15&account_id="+other, bearer(closed))
		synctest.Wait()
		claims, err := s.keys.verify(revoked)
		s.check(err)
		s.change(func(t *tx) error { return revokeToken(t, claims.ID, anActor) })
		ofRevoked().is(401)
		time.Sleep(time.Second)
		ofClosed().is(200).shows(`"type":"token.revoked"`)

		short := ""
		s.change(func(t *tx) (err error) {
			row := tokenRow{AccountID: other, ClientID: "test", Scope: scopeEvents}
			short, _, err = issueToken(t, s.keys, row, 5*time.Second)
			return err
		})
		time.Sleep(clockSkew)
		expires := s.asks("/events?after=now&wait=15", bearer(short))
		synctest.Wait()
		time.Sleep(5 * time.Second)
		expires().is(401)
	})
}

// Against an application that waits for all restaurants that use it, and leaves nobody else a place.
func TestFeed_waitersOfAnApplicationLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		p, _ := s.registerApp(func(p *app) { p.Scope = scopeEvents })
		waits := func() func() answer {
			token, _ := s.appToken(p, s.addAccount("restaurant"), scopeEvents)
			return s.asks("/events?after=now&wait=15", bearer(token))
		}
		var all []func() answer
		for range feedWaitingOfApp {
			all = append(all, waits())
		}
		synctest.Wait()
		waits()().is(429, "rate_limited").contains("At most 64 requests of one application")
		last := s.asks("/events?after=now&wait=15", s.auth(s.account, scopeEvents))
		for _, answered := range append(all, last) {
			answered().is(200)
		}
	})
}

// A flood of waiters: of one token, of an application that gets new tokens, of an account with many tokens, of all.
func TestFeed_waitersOfOneLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		var all sync.WaitGroup
		wait := func(token string) {
			all.Go(func() { s.get("/events?after=now&wait=15", bearer(token)).is(200) })
		}
		token := s.token(s.account, scopeEvents)
		for range feedWaitingOfUser {
			wait(token)
		}
		synctest.Wait()
		refused := s.get("/events?after=now&wait=15", bearer(token)).is(429, "rate_limited")
		refused.has("Retry-After: 5")
		for range feedWaitingOfOne - feedWaitingOfUser {
			wait(s.token(s.account, scopeEvents))
		}
		synctest.Wait()
		s.get("/events?after=now&wait=15", bearer(s.token(s.account, scopeEvents))).is(429)
		s.get("/events?after=now", bearer(token)).is(200) // who does not wait is none of them
		s.get("/events", bearer(token)).is(200)           // and lists have their places
		for range (feedWaiting - feedWaitingOfOne) / feedWaitingOfOne {
			account := s.addAccount("other")
			for range feedWaitingOfOne {
				wait(s.token(account, scopeEvents))
			}
		}
		synctest.Wait()
		late := bearer(s.token(s.addAccount("late"), scopeEvents))
		s.get("/events?after=now&wait=15", late).is(503, "busy").has("Retry-After: 5")
		all.Wait()
		s.get("/events?after=now&wait=1", late).is(200)
		s.get("/events?after=now&wait=1", bearer(token)).is(200)
	})
}

func TestFeed_placeOfWhoHasGoneIsFreeAgainAndAStopAnswersWhoWaits(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		token := s.token(s.account, scopeEvents)
		for range 3 * feedWaitingOfUser {
			ctx, goes := context.WithCancel(t.Context())
			r := httptest.NewRequestWithContext(ctx, "GET", "/v1/events?after=now&wait=15", nil)
			r.Header.Set("Authorization", "Bearer "+token)
			w := httptest.NewRecorder()
			done := make(chan bool)
			go func() { s.server.ServeHTTP(w, r); close(done) }()
			synctest.Wait()
			goes()
			<-done
		}
		begun := time.Now()
		answered := s.asks("/events?after=now&wait=15", bearer(token))
		synctest.Wait()
		close(s.server.stopping)
		answered().is(200).shows(`"data":[]`, `"more":false`)
		equal(t, "time", time.Since(begun), 0)
	})
}

// A database of which a caller knows more than it has: one that was restored from an older copy, and that may have
// used the numbers again. And one that has forgotten what the caller does not know yet.
func TestFeed_neverHidesAGap(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.manyEvents(s.account, "", 30, `{}`)
	last := s.count(`SELECT max(seq) FROM events`)
	auth := bearer(s.token(s.account, scopeEvents))
	at := func(seq int) string {
		p, err := s.store.feedPositionAt(int64(seq))
		s.check(err)
		return p.cursor(s.keys)
	}
	is := func(cursor string, status int, text string) {
		t.Helper()
		s.get("/events?after="+cursor, auth).is(status).shows(text)
	}
	early, middle, end := at(last-25), at(last-10), at(last)
	is(end, 200, `"data":[]`)

	s.sql(`DELETE FROM events WHERE seq IN (?, ?)`, last-10, last-12) // a hole is no gap
	is(middle, 200, `"more":false`)
	s.change(func(t *tx) error { t.setEpoch(epoch{Number: 1, Name: "abc"}); return nil })
	is(early, 200, `"more":false`) // its event is there, so a promotion changes nothing
	is(middle, 410, `"code":"cursor_unknown"`)

	s.sql(`DELETE FROM events WHERE seq <= ?`, last-20)
	is(early, 410, `"code":"cursor_unknown"`) // of an earlier epoch
	s.get("/events?after="+at(last-25), auth).is(410, "events_expired")
	is(at(last-20), 200, `"more":false`) // the one before the oldest that is kept
	s.sql(`DELETE FROM events`)
	is(at(last-1), 410, `"code":"events_expired"`)
	is(at(last), 200, `"data":[]`)

	is(end, 410, `"code":"cursor_unknown"`)
	s.sql(`UPDATE sqlite_sequence SET seq = ? WHERE name = 'events'`, last-5) // restored from an older copy
	is(at(last-3), 410, `"code":"cursor_unknown"`)
	s.manyEvents(s.account, "", 30, `{}`)
	is(end, 410, `"code":"cursor_unknown"`) // another event has its number
	fresh := s.follows(scopeEvents, "")
	fresh.drain("")
	equal(t, "events", fresh.ids, s.writtenIDs(`1`))
}

// Numbers would tell what others do; a cursor of another key file is none.
func TestFeed_cursorsTellNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := bearer(s.token(s.account, scopeEvents))
	s.manyEvents(s.account, "", 1, `{}`)
	first := s.get("/events?after=now", auth).is(200).text("next")
	s.manyEvents(s.addAccount("other"), "", 9_000, `{}`)
	second := s.get("/events?after=now", auth).is(200).text("next")
	failIf(t, len(second)-len(first) > 8, "%d and %d characters", len(first), len(second))
	again := s.get("/events?after=now", auth).is(200).text("next")
	failIf(t, again[:20] == second[:20], "a cursor is the same text each time")
	keys, err := newKeyring(time.Now())
	s.check(err)
	p, err := s.store.feedPositionAt(1)
	s.check(err)
	s.get("/events?after="+p.cursor(keys), auth).is(410, "cursor_unknown")
}
