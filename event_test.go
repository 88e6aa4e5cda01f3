package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
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

func TestEvents_commandGoesOnUntilItHasTheRowsThatItWasAskedFor(t *testing.T) {
	manyRowsUnderRace(t)
	t.Parallel()
	s := newService(t, withFewListRows)
	most := s.store.limits.listRows
	s.sql(manyRows(most*5/2)+`INSERT INTO events (id, at, type, account_id, actor)
		SELECT printf('evt_%026d', i), '2030-01-01T00:00:00Z', iif(i <= 3, 'license.revoked', 'license.updated'),
		?, 'time' FROM n`, s.account)
	if got := jsonLines(t, s.must("event", "list", "-type", "license.revoked", "-json")); len(got) != 3 {
		t.Errorf("%v", got)
	}
	limit := most * 12 / 10
	got := jsonLines(t, s.must("event", "list", "-type", "license.updated", "-limit", fmt.Sprint(limit), "-json"))
	if len(got) != limit {
		t.Errorf("%d events", len(got))
	}
}
