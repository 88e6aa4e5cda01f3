package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"flag"
	"fmt"
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
// accounts, and returns one of those accounts. It commits every 20,000.
func fillLicenses(tb testing.TB, st *store, n int) (account string) {
	tb.Helper()
	var accounts []string
	for done := 0; done < n; {
		err := st.update(tb.Context(), func(t *tx) error {
			for ; len(accounts) < n/100+1; accounts = append(accounts, t.newID("acct")) {
			}
			if done == 0 {
				for i, id := range accounts {
					if _, err := t.exec(`INSERT INTO accounts (id, name, created_at) VALUES (?, ?, ?)`, id, fmt.Sprint("Account ", i), t.now); err != nil {
						return err
					}
				}
			}
			for until := min(n, done+20_000); done < until; done++ {
				var hash [96]byte
				rand.Read(hash[:])
				id, seats := t.newID("lic"), 5
				if _, err := t.exec(`INSERT INTO licenses (id, account_id, product, max_devices, expires_at, created_at, updated_at) VALUES (?, ?, 'kds', ?, ?, ?, ?)`,
					id, accounts[done%len(accounts)], seats, t.now.after(time.Duration(done%1000+1)*time.Hour), t.now, t.now); err != nil {
					return err
				}
				if _, err := t.exec(`INSERT INTO license_keys (hash, license_id, hint, created_at) VALUES (?, ?, 'XXXXX', ?)`, hash[:32], id, t.now); err != nil {
					return err
				}
				for d := range 2 {
					if err := t.saveDevice(&device{ID: t.newID("dev"), LicenseID: id, Fingerprint: hash[32+32*d:][:32], State: deviceActive, ActivatedAt: t.now, LastSeenAt: t.now, Activations: 1}); err != nil {
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
	return accounts[0]
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
	asked := []*[]string{questions(s.store.queries), questions(s.store.writes)}
	id, key := s.addLicense(license{Kind: kindFloating, MaxDevices: ptr(1), MaxTransfers: ptr(9)})
	device := s.activate(key, "a").is(200).text("device", "id")
	s.activate(key, "b").is(409)
	s.post("/widget/license/activate", fmt.Sprintf(`{"license_key":%q,"fingerprint":"b","replace_device_id":%q}`, key, device)).is(200)
	s.verify(key, "b", "valid", true)
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
	ofOne := []string{"FROM base_urls", "FROM events WHERE license_id = ?", "+account_id = ?", "AND license_id = ?"} // few rows, to be sorted
	newest := "FROM events WHERE 1 ORDER BY seq DESC"                                                                // they are at its end
	for _, query := range slices.Concat(*asked[0], *asked[1]) {
		has := func(part string) bool { return strings.Contains(query, part) }
		for _, step := range s.plan(query) {
			scans := strings.HasPrefix(step, "SCAN ") && !strings.HasPrefix(step, "SCAN CONSTANT") && !strings.HasPrefix(step, "SCAN (") && step != "SCAN base_urls"
			sorts := strings.HasPrefix(step, "USE TEMP B-TREE") && !slices.ContainsFunc(ofOne, has)
			others := strings.Contains(step, "INDEX events_account ") && (has("license_id = ?") || has("device_id = ?"))
			if scans && !has(newest) || sorts || others {
				t.Errorf("%s\n%s", strings.Join(strings.Fields(query), " "), step)
			}
		}
	}
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

// BenchmarkScale compares what a request costs in a small and in a large database:
//
//	go test -run '^$' -bench Scale -licenses 1000000 -timeout 20m
func BenchmarkScale(b *testing.B) {
	for _, n := range []int{1000, *scaleLicenses} {
		b.Run(fmt.Sprintf("licenses=%d", n), func(b *testing.B) {
			s := newService(b)
			account := fillLicenses(b, s.store, n)
			s.change(func(t *tx) error { return t.setRate(s.account, 1_000_000) })
			_, key := s.addLicense(license{})
			token := s.post("/widget/license/activate", fmt.Sprintf(`{"license_key":%q,"fingerprint":"a"}`, key)).is(200).text("token")
			b.Run("verify", func(b *testing.B) {
				for b.Loop() {
					s.post("/widget/license/verify", `{}`, "Authorization: Bearer "+token)
				}
			})
			b.Run("verifyFromTheFile", func(b *testing.B) {
				for b.Loop() {
					s.store.changes.note(touches{}) // what is kept in memory holds no more
					s.post("/widget/license/verify", `{}`, "Authorization: Bearer "+token)
				}
			})
			b.Run("activate", func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					s.post("/widget/license/activate", fmt.Sprintf(`{"license_key":%q,"fingerprint":"%d"}`, key, i))
				}
			})
			b.Run("timeHasWork", func(b *testing.B) {
				for b.Loop() {
					if _, err := s.store.timeHasWork(newStamp(time.Now())); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("v_licenses", func(b *testing.B) {
				for b.Loop() {
					s.count(`SELECT sum(length(status) + seats_used) FROM v_licenses WHERE account_id = ?`, account)
				}
			})
			b.Run("open", func(b *testing.B) {
				for b.Loop() {
					st, err := openStore(filepath.Join(s.dir, "widgetd.db"), storeOptions{keepLog: true})
					s.check(err)
					s.check(st.close())
				}
			})
		})
	}
}
