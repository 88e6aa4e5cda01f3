package main

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// otherProcess changes the file over a connection of its own, as the sqlite3 shell
// would.
func (s *service) otherProcess(statement string, args ...any) {
	s.t.Helper()
	db, err := sql.Open("sqlite", dsn(filepath.Join(s.dir, "widgetd.db"), "rw", storeOptions{noCheckpoints: true}))
	s.check(err)
	defer db.Close()
	_, err = db.Exec(statement, args...)
	s.check(err)
}

func TestCache_followsAChangeOfAnotherProcess(t *testing.T) {
	t.Parallel()
	s := newService(t)
	tenant := s.addAccount("tenant")
	s.change(func(tx *tx) error { return addOrigin(tx, tenant, "https://tenant.example", anActor) })
	widget := s.addWidget(tenant)
	id, key := s.addLicense(license{AccountID: tenant, terms: terms{MaxDevices: ptr(1)}})
	lease := "Authorization: Bearer " + s.activate(key, "a").is(200).text("token")
	token := "Authorization: Bearer " + s.token(tenant, scopeLicenses+" "+scopeStats)
	verify := func() string { return s.post("/widget/license/verify", `{}`, lease).is(200).text("code") }
	verifyByKey := func() string { return s.verifyKey(key, "a").is(200).text("code") }
	verifies := func(byLease, byKey string) func() bool {
		return func() bool { return verify() == byLease && verifyByKey() == byKey }
	}
	stats := func() string { return s.get("/widget/stats?widget="+widget, token).body }
	for range 3 { // what is asked for again is kept
		verify()
		verifyByKey()
		stats()
		s.get("/licenses", token).is(200)
		s.post("/widget/leads", anyLead, "Origin: https://tenant.example").is(200)
		s.notice()
	}
	for name, size := range map[string]int{"accounts": s.server.authenticator.accounts.len(),
		"origins": s.server.origins.len(), "callers": s.server.callers.len()} {
		if size == 0 {
			t.Errorf("nothing is kept of %s", name)
		}
	}
	for _, change := range []struct {
		statement string
		holds     func() bool
	}{
		{`UPDATE licenses SET state = 'suspended' WHERE id = '` + id + `'`, verifies("suspended", "suspended")},
		{`UPDATE licenses SET state = 'active' WHERE id = '` + id + `'`, verifies("valid", "valid")},
		{`UPDATE devices SET state = 'blocked'`, verifies("device_blocked", "device_blocked")},
		{`UPDATE devices SET state = 'active'`, verifies("token_ended", "valid")},
		{`UPDATE devices SET ended_seq = 0`, verifies("valid", "valid")},
		{`UPDATE license_keys SET retires_at = '2020-01-01T00:00:00Z'`, verifies("valid", "key_retired")},
		{`UPDATE license_keys SET retires_at = NULL`, verifies("valid", "valid")},
		{`INSERT INTO widget_counts (widget_id, quarter, views)
			VALUES ('` + widget + `', '` + newStamp(time.Now().Truncate(quarterHour)).String() + `', 7)`, func() bool {
			return s.get("/widget/stats?widget="+widget, token).json()["totals"].(map[string]any)["views"] == 7.0
		}},
		{`UPDATE accounts SET rate = 100 WHERE id = '` + tenant + `'`, func() bool {
			return s.get("/licenses", token).header.Get("RateLimit-Policy") == `"account";q=100;w=60`
		}},
		{`UPDATE tokens SET revoked_at = '2020-01-01T00:00:00Z'`,
			func() bool { return s.get("/licenses", token).status == 401 }},
		{`UPDATE tokens SET revoked_at = NULL`, func() bool { return s.get("/licenses", token).status == 200 }},
		{`DELETE FROM origins WHERE account_id = '` + tenant + `'`, func() bool {
			return s.post("/widget/leads", anyLead, "Origin: https://tenant.example").status == 403
		}},
		{`UPDATE accounts SET closed_at = '2020-01-01T00:00:00Z' WHERE id = '` + tenant + `'`, func() bool {
			return verify() == "suspended" && s.get("/licenses", token).status == 401 &&
				s.get("/widget/stats?widget="+widget).status == 404
		}},
	} {
		s.otherProcess(change.statement)
		s.notice()
		if !change.holds() {
			t.Errorf("the service does not know of: %s", change.statement)
		}
	}
}

// TestCache_neverLagsBehindAnAcknowledgedChange lets one goroutine change a row and
// ask at once, while others keep filling the cache with what they read.
func TestCache_neverLagsBehindAnAcknowledgedChange(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	s.change(func(tx *tx) error { return tx.setRate(s.account, 1_000_000) })
	id, key := s.addLicense(license{})
	auth := s.auth(s.account, scopeAdmin)
	stop, readers := make(chan struct{}), sync.WaitGroup{}
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					s.verifyKey(key, "a").is(200)
				}
			}
		})
	}
	for i := range size(20, 300) {
		plan := fmt.Sprint("plan ", i)
		s.do("PATCH", "/licenses/"+id, seatBody("plan", plan), auth).is(200)
		s.verifyKey(key, "a").is(200).tells("license.plan", plan)
	}
	close(stop)
	readers.Wait()
}

func TestCache_isBounded(t *testing.T) {
	t.Parallel()
	s := newService(t)
	c := newCache[int, int](10)
	for i := range 100 {
		if v, err := c.load(s.store, i, func() (int, string, error) { return i, "", nil }); err != nil || v != i {
			t.Fatal(v, err)
		}
	}
	if c.len() != 10 {
		t.Fatalf("%d entries", c.len())
	}
}

// len returns the number of entries.
func (c *cache[K, V]) len() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.entries)
}
