package main

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// scaleLicenses is how many licences the scale benchmarks put beside 1,000; each
// has two devices.
var scaleLicenses = flag.Int("licenses", 2000, "licences in the large database of the scale benchmarks")

// fillLicenses writes n licences with two devices each, spread over n/100+1
// accounts, and returns one of those accounts and the keys. It commits every 20,000.
func fillLicenses(tb testing.TB, st *store, n int) (account string, keys []string) {
	tb.Helper()
	var accounts []string
	for done := 0; done < n; {
		err := st.update(tb.Context(), func(t *tx) error {
			for ; len(accounts) < n/100+1; accounts = append(accounts, t.newID("acct")) {
			}
			if done == 0 {
				for i, id := range accounts {
					if _, err := t.exec(`INSERT INTO accounts (id, name, rate, created_at) VALUES (?, ?, 1000000, ?)`, id, fmt.Sprint("Account ", i), t.now); err != nil {
						return err
					}
				}
			}
			for until := min(n, done+20_000); done < until; done++ {
				keys = append(keys, newLicenseKey())
				key, err := parseLicenseKey(keys[done])
				if err != nil {
					return err
				}
				hash := key.hash()
				id, seats := t.newID("lic"), 1000
				if _, err := t.exec(`INSERT INTO licenses (id, account_id, product, max_devices, expires_at, created_at, updated_at) VALUES (?, ?, 'kds', ?, ?, ?, ?)`,
					id, accounts[done%len(accounts)], seats, t.now.after(time.Duration(done%1000+1)*time.Hour), t.now, t.now); err != nil {
					return err
				}
				if _, err := t.exec(`INSERT INTO license_keys (hash, license_id, hint, created_at) VALUES (?, ?, 'XXXXX', ?)`, hash[:], id, t.now); err != nil {
					return err
				}
				for d := range 2 {
					fingerprint := fingerprintHash(fmt.Sprint(keys[done], d))
					if err := t.saveDevice(&device{ID: t.newID("dev"), LicenseID: id, Fingerprint: fingerprint[:], State: deviceActive, ActivatedAt: t.now, LastSeenAt: t.now, Activations: 1}); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
	return accounts[0], keys
}

// questions has every statement that is prepared from now on noted.
func questions(q *queries) *[]string {
	asked := &[]string{}
	prepare := q.prepare
	q.close()
	q.prepare = func(ctx context.Context, query string) (*sql.Stmt, error) {
		*asked = append(*asked, query)
		return prepare(ctx, query)
	}
	return asked
}

func TestNoQuestionAboutLicencesReadsMoreThanItsAnswerNeeds(t *testing.T) {
	s := newService(t)
	reads, writes := questions(s.store.queries), questions(s.store.writes)
	s.askAboutLicences()
	for _, query := range slices.Concat(*reads, *writes) {
		for _, step := range s.plan(query) {
			if why := readsTooMuch(query, step); why != "" {
				t.Errorf("%s: %s\n%s", why, step, strings.Join(strings.Fields(query), " "))
			}
		}
	}
}

// askAboutLicences makes every kind of call about licences, devices and events, with
// every filter of the events.
func (s *service) askAboutLicences() {
	s.t.Helper()
	id, key := s.addLicense(license{Kind: kindFloating, MaxDevices: ptr(1), MaxTransfers: ptr(9)})
	device := s.activate(key, "a").is(200).text("device", "id")
	s.activate(key, "b").is(409)
	s.activate(key, "b", "replace_device_id", device).is(200)
	s.verifyKey(key, "b").answers("valid")
	s.post("/widget/license/deactivate", activateBody(key, "b")).is(200)
	s.activate(key, "b").is(200)
	s.advance()
	admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	for _, path := range []string{"", "/" + id, "/" + id + "/devices", "/" + id + "/devices?cursor=" + device} {
		s.get("/licenses"+path, admin).is(200)
	}
	for _, change := range []string{"renew", "suspend", "reinstate", "rotate-key", "revoke"} {
		s.post("/licenses/"+id+"/"+change, `{}`, admin)
	}
	event := s.get("/events", admin).is(200).json()["data"].([]any)[1].(map[string]any)["id"]
	for _, filter := range []string{"", "&license_id=" + id, "&device_id=" + device, "&type=x&license_id=" + id, "&since=2026-01-01T00:00:00Z"} {
		for _, owner := range []string{"", "&account_id=" + s.account} {
			s.get("/events?limit=1"+filter+owner, admin).is(200)
			s.get(fmt.Sprintf("/events?limit=1&cursor=%s%s%s", event, filter, owner), admin).is(200)
		}
	}
}

// readsTooMuch says why a step of SQLite's plan for a query takes longer the more
// licences there are; "" when it does not.
func readsTooMuch(query, step string) string {
	asks := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(query, part) })
	}
	begins := func(starts ...string) bool {
		return slices.ContainsFunc(starts, func(start string) bool { return strings.HasPrefix(step, start) })
	}
	eventsOfOne := asks("FROM events") && asks("license_id = ?", "device_id = ?")
	switch {
	case begins("SCAN CONSTANT", "SCAN (", "SCAN base_urls"): // no table, what is read already, a table of few rows
	case begins("SCAN ") && !asks("FROM events WHERE 1 ORDER BY seq DESC"): // of which the newest are at the end
		return "it reads a whole table"
	case begins("USE TEMP B-TREE") && !eventsOfOne && !asks("FROM base_urls"): // both are few
		return "it sorts"
	case eventsOfOne && strings.Contains(step, "INDEX events_account "):
		return "it reads the events of other licences too"
	}
	return ""
}

// plan returns the steps in which SQLite would answer a query.
func (s *service) plan(query string) (steps []string) {
	s.t.Helper()
	args := make([]any, strings.Count(query, "?"))
	if strings.Contains(query, "?1") { // numbered ones may stand there twice
		for args = args[:1]; strings.Contains(query, fmt.Sprint("?", len(args)+1)); args = append(args, nil) {
		}
	}
	rows, err := s.store.readers.Query("EXPLAIN QUERY PLAN "+query, args...)
	s.check(err)
	defer rows.Close()
	for rows.Next() {
		var n int
		var step string
		s.check(rows.Scan(&n, &n, &n, &step))
		steps = append(steps, step)
	}
	s.check(rows.Err())
	return steps
}

// A scaled is a service with many licences in its file, and one device of one of them.
type scaled struct {
	*service
	account    string   // of about 100 licences
	keys       []string // of all of them
	key, token string   // of the device
}

// forget has the service read anew what it keeps in memory.
func (s *scaled) forget() { s.store.changes.note(touches{}) }

// any returns the key of any licence.
func (s *scaled) any() string { return s.keys[rand.IntN(len(s.keys))] }

func newScaled(b *testing.B, licenses int) *scaled {
	s := &scaled{service: newService(b)}
	s.account, s.keys = fillLicenses(b, s.store, licenses)
	s.change(func(t *tx) error { return t.setRate(s.service.account, 1_000_000) })
	_, s.key = s.addLicense(license{})
	s.token = s.post("/widget/license/activate", fmt.Sprintf(`{"license_key":%q,"fingerprint":"a"}`, s.key)).is(200).text("token")
	return s
}

// BenchmarkScale compares what a request costs in a small and in a large database,
// in turn, so that whatever else the machine does weighs on both:
//
//	go test -run '^$' -bench Scale -licenses 1000000 -timeout 20m
func BenchmarkScale(b *testing.B) {
	small, large := newScaled(b, 1000), newScaled(b, *scaleLicenses)
	verify := func(s *scaled) {
		s.post("/widget/license/verify", `{}`, "Authorization: Bearer "+s.token).is(200)
	}
	activate := func(s *scaled, key, fingerprint string) {
		s.post("/widget/license/activate", fmt.Sprintf(`{"license_key":%q,"fingerprint":%q}`, key, fingerprint)).is(200)
	}
	devices := 0
	for _, c := range []struct {
		name string
		call func(*scaled)
	}{
		{"verify", verify},
		{"verifyFromTheFile", func(s *scaled) {
			s.forget()
			verify(s)
		}},
		{"verifyAnyFromTheFile", func(s *scaled) {
			s.forget()
			s.post("/widget/license/verify", fmt.Sprintf(`{"license_key":%q}`, s.any())).is(200)
		}},
		{"activate", func(s *scaled) {
			devices++
			activate(s, s.key, fmt.Sprint(devices))
		}},
		{"activateAny", func(s *scaled) {
			devices++
			activate(s, s.any(), fmt.Sprint(devices))
		}},
		{"timeHasWork", func(s *scaled) {
			_, err := s.store.timeHasWork(newStamp(time.Now()))
			s.check(err)
		}},
		{"v_licenses", func(s *scaled) {
			s.count(`SELECT sum(length(status) + seats_used) FROM v_licenses WHERE account_id = ?`, s.account)
		}},
		{"open", func(s *scaled) {
			st, err := openStore(filepath.Join(s.dir, "widgetd.db"), storeOptions{keepLog: true})
			s.check(err)
			s.check(st.close())
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var took [2][]time.Duration
			for b.Loop() {
				for i, s := range []*scaled{small, large} {
					start := time.Now()
					c.call(s)
					took[i] = append(took[i], time.Since(start))
				}
			}
			a, z := median(took[0]), median(took[1])
			b.ReportMetric(float64(a)/1e3, "small-µs")
			b.ReportMetric(float64(z)/1e3, "large-µs")
			b.ReportMetric(float64(z)/float64(a), "large/small")
		})
	}
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}
