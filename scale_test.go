package main

import (
	"crypto/rand"
	"flag"
	"fmt"
	"path/filepath"
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
