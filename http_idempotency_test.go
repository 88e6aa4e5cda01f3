package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const (
	someKey     = "Idempotency-Key: 8e03978e-40d5-43dd-bc93-6894a57f9324"
	replayed    = "Idempotency-Replayed: true"
	notReplayed = "Idempotency-Replayed: " // the answer is a new one
)

func TestIdempotencyKey_withTheSameBodyIsAnsweredFromTheFirstAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		widget := s.addWidget(s.account)
		_, licenseKey := s.addLicense(license{})
		for path, body := range map[string]string{
			"/widget/leads":            aLead,
			"/widget/license/activate": activateBody(licenseKey, "f"),
			"/widget/events": `{"widget":"` + widget + `",` +
				`"events":[{"type":"click","item":"Rösti"},{"type":"view"}]}`,
		} {
			first := s.post(path, body, "Origin: "+siteOrigin, someKey).has(notReplayed)
			if first.status > 204 {
				t.Fatalf("%s: %d %s", path, first.status, first.body)
			}
			time.Sleep(time.Hour) // the activation would give another lease by now
			before := s.dump()
			again := s.post(path, body, "Origin: "+siteOrigin, someKey).is(first.status).
				has(replayed, "Content-Type: "+first.header.Get("Content-Type"))
			if again.body != first.body || again.header.Get("X-Request-Id") == first.header.Get("X-Request-Id") {
				t.Errorf("%s: %s, the first time %s", path, again.body, first.body)
			}
			s.unchanged(before)
			other := strings.Replace(body, "{", `{"unknown":1,`, 1)
			s.post(path, other, "Origin: "+siteOrigin, someKey).is(422, "idempotency_key_reused").has(notReplayed)
			s.unchanged(before)
		}
		s.countsAs(11, "ten times the clicks, and the views", `SELECT sum(clicks) * 10 + sum(views) FROM widget_counts`)
	})
}

func TestIdempotencyKey_thatServedOneLicenceIsRefusedForAnother(t *testing.T) {
	t.Parallel()
	s := newService(t)
	admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	one, _ := s.addLicense(license{})
	other, _ := s.addLicense(license{})
	s.post("/licenses/"+one+"/rotate-key", `{}`, admin, someKey).is(200)
	before := s.dump()
	s.post("/licenses/"+other+"/rotate-key", `{}`, admin, someKey).is(422, "idempotency_key_reused")
	s.unchanged(before)
	s.post("/licenses/"+one+"/rotate-key", `{}`, admin, someKey).is(200).has(replayed)
}

func TestIdempotencyKey_replayInvalidatesNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.notice()
	s.post("/widget/leads", aLead, someKey).is(200)
	before := s.store.changes.versionOf("")
	for range 3 {
		s.post("/widget/leads", aLead, someKey).is(200).has(replayed)
	}
	if s.store.changes.versionOf("") != before {
		t.Fatal("a replay emptied the caches")
	}
}

func TestIdempotencyKey_sentTwiceWithARenewalRenewsOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
	id, _ := s.addLicense(license{ExpiresAt: newStamp(time.Now().Add(24 * time.Hour))})
	first := s.post("/licenses/"+id+"/renew", `{"days":30}`, admin, someKey).is(200).has(notReplayed)
	again := s.post("/licenses/"+id+"/renew", `{"days":30}`, admin, someKey).is(200).has(replayed)
	if again.body != first.body {
		t.Fatalf("%s, the first time %s", again.body, first.body)
	}
	s.get("/licenses/"+id, admin).is(200).members("expires_at", first.text("expires_at"))
	s.post("/licenses/"+id+"/renew", `{"days":31}`, admin, someKey).is(422, "idempotency_key_reused")
	s.post("/licenses/lic_00000000000000000000000000/renew", `{"days":30}`, admin, "Idempotency-Key: other").
		is(404, "license_not_found")
	s.countsAs(1, "renewals", `SELECT count(*) FROM events WHERE type = 'license.renewed'`)
}

func TestIdempotencyKey_replaysAnActivationWithItsToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		_, key := s.addLicense(license{MaxDevices: ptr(1)})
		body := seatBody("license_key", key, "fingerprint", "f", "nonce", "n")
		first := s.post("/widget/license/activate", body, "Idempotency-Key: k1").is(200)
		time.Sleep(time.Hour)
		for _, header := range []string{"k1", `"k1"`} {
			again := s.post("/widget/license/activate", body, "Idempotency-Key: "+header).is(200)
			if again.body != first.body || again.header.Get("Idempotency-Replayed") != "true" {
				t.Fatalf("replayed %s\nfirst    %s", again.body, first.body)
			}
		}
		if s.count(`SELECT lease_seq FROM devices`) != 1 {
			t.Fatal("a replay took another lease")
		}
		activate := func(fingerprint string) answer {
			return s.post("/widget/license/activate", activateBody(key, fingerprint), "Idempotency-Key: k1")
		}
		activate("f").is(422, "idempotency_key_reused")
		activate("g").is(409, "seat_limit_reached").has(notReplayed) // another device's key is another key
		// A refusal is not kept.
		s.post("/widget/license/deactivate", activateBody(key, "f")).is(200)
		activate("g").is(200)
		s.countsAs(0, "tokens that lie open in the file", `SELECT count(*) FROM idempotency
			WHERE instr(CAST(answer AS TEXT), 'eyJ') > 0 OR instr(CAST(answer AS TEXT), ?) > 0`, key)
	})
}

func TestIdempotencyKey_mayBeQuoted(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.post("/widget/leads", aLead, "Idempotency-Key: abc").is(200).has(notReplayed)
	s.post("/widget/leads", aLead, `Idempotency-Key: "abc"`).is(200).has(replayed)
}

func TestIdempotencyKey_malformedIs400AndChangesNothing(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	before := s.dump()
	long := strings.Repeat("k", 255)
	for _, key := range []string{"", `""`, "a b", "ä", "a\x7f", long + "k", `"` + long + `k"`, " "} {
		s.post("/widget/leads", aLead, "Idempotency-Key: "+key).is(400, "malformed_header")
	}
	s.post("/widget/leads", aLead, "Idempotency-Key: a", "Idempotency-Key: a").is(400, "malformed_header")
	s.unchanged(before)
	s.post("/widget/leads", aLead, "Idempotency-Key: "+long).is(200)
	s.post("/widget/leads", aLead, `Idempotency-Key: "`+long+`"`).is(200).has(replayed)
}

func TestIdempotencyKey_isIgnoredOnPathsThatCreateNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	for range 2 {
		s.post("/widget/license/verify", `{"license_key":"`+key+`"}`, someKey).is(200).has(notReplayed)
		s.post("/widget/license/deactivate", activateBody(key, "f"), "Idempotency-Key: ä ä").is(200)
	}
	s.countsAs(0, "answers are stored", `SELECT count(*) FROM idempotency`)
}

func TestIdempotencyKey_whoseRequestStillRunsIs409(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		release := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() { s.store.update(t.Context(), func(*tx) error { <-release; return nil }) }) // the writer is busy
		synctest.Wait()
		all.Go(func() { s.post("/widget/leads", aLead, someKey).has(notReplayed) })
		synctest.Wait()
		s.post("/widget/leads", aLead, someKey).is(409, "idempotency_in_progress").has("Retry-After: 1")
		close(release)
		all.Wait()
		s.post("/widget/leads", aLead, someKey).is(200).has(replayed)
		s.countsAs(1, "leads", `SELECT count(*) FROM leads`)
	})
}

func TestIdempotencyKey_isFreeAgainAfter24Hours(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		first := s.post("/widget/leads", aLead, someKey).is(200)
		time.Sleep(24*time.Hour - time.Second)
		s.post("/widget/leads", aLead, someKey).is(200).has(replayed).members("id", first.text("id"))
		time.Sleep(time.Second)
		a := s.post("/widget/leads", `{"type":"demo","email":"bob@example.com"}`, someKey).is(200).has(notReplayed)
		if a.body == first.body {
			t.Fatal(a.body)
		}
		time.Sleep(24 * time.Hour)
		s.sweepAll()
		s.countsAs(0, "answers outlive their day", `SELECT count(*) FROM idempotency`)
	})
}

func TestIdempotencyKey_isItsCallersOwn(t *testing.T) {
	t.Parallel()
	s := newService(t)
	partner := s.addAccount("partner")
	s.change(func(t *tx) error { return t.addOrigin(partner, "https://partner.example") })
	_, one := s.addLicense(license{})
	_, two := s.addLicense(license{})
	activate := func(key, fingerprint string) func(...string) answer {
		return func(headers ...string) answer {
			return s.post("/widget/license/activate", activateBody(key, fingerprint), append(headers, someKey)...)
		}
	}
	lead := func(headers ...string) func(...string) answer {
		return func(more ...string) answer {
			return s.post("/widget/leads", aLead, append(headers, append(more, someKey)...)...)
		}
	}
	asks := []func(...string) answer{
		lead(), lead("Origin: " + siteOrigin), lead("Origin: https://partner.example"), lead("Peer: 192.0.2.2:1"),
		activate(one, "f"), activate(one, "g"), activate(two, "f"),
	}
	for _, ask := range asks {
		ask().is(200).has(notReplayed) // and not another caller's answer
	}
	for _, ask := range asks {
		ask().is(200).has(replayed)
	}
	activate(one, "f")("Peer: 192.0.2.9:1").is(200).has(replayed) // a device moves about
}

func TestIdempotencyKey_storesOnlySuccess(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{MaxDevices: ptr(1)})
	s.post("/widget/leads", `{"type":"newsletter"}`, someKey).is(422)
	s.post("/widget/leads", `{`, someKey).is(400)
	s.post("/widget/leads", aLead, "Origin: https://other.example", someKey).is(403)
	s.activate(key, "one").is(200)
	body := activateBody(key, "two")
	s.post("/widget/license/activate", body, someKey).is(409, "seat_limit_reached")
	s.post("/widget/license/activate", activateBody(newLicenseKey(), "two"), someKey).is(404)
	s.countsAs(0, "answers are stored", `SELECT count(*) FROM idempotency`)
	s.post("/widget/license/deactivate", activateBody(key, "one")).is(200)
	s.post("/widget/license/activate", body, someKey).is(200).has(notReplayed) // the refusal did not stick
	s.post("/widget/leads", aLead, someKey).is(200).has(notReplayed)
}

func TestIdempotencyKey_andItsAnswerCannotBeReadInTheFile(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	const chosen = "a-key-that-only-the-caller-knows"
	body := seatBody("license_key", key, "fingerprint", "the-device-itself", "nonce", "a-nonce-to-look-for")
	a := s.post("/widget/license/activate", body, "Idempotency-Key: "+chosen).is(200)
	s.countsAs(1, "the answer is not stored", `SELECT count(*) FROM idempotency WHERE length(answer) > 500`)
	for _, suffix := range []string{"", "-wal"} {
		text, err := os.ReadFile(s.store.path + suffix)
		s.check(err)
		for _, secret := range []string{chosen, key, strings.ReplaceAll(key, "-", ""), a.text("token"),
			a.text("token")[:60], "the-device-itself", "a-nonce-to-look-for", `"code":"activated"`} {
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("%q stands in the file", secret)
			}
		}
	}
	if strings.Contains(s.log.String(), chosen) || strings.Contains(s.log.String(), key) {
		t.Error("a secret was logged")
	}
}

func TestIdempotencyKey_ofManyCallsHasOneEffect(t *testing.T) {
	t.Parallel()
	s := newService(t)
	widget := s.addWidget(s.account)
	var all sync.WaitGroup
	statuses := make([]int, 32)
	for i := range statuses {
		all.Go(func() {
			body := `{"widget":"` + widget + `","events":[{"type":"order"}]}`
			statuses[i] = s.post("/widget/events", body, "Origin: "+siteOrigin, someKey).status
		})
	}
	all.Wait()
	for _, status := range statuses {
		if status != 204 && status != 409 {
			t.Fatalf("statuses %v", statuses)
		}
	}
	s.countsAs(1, "orders", `SELECT sum(orders) FROM widget_counts`)
}

func TestIdempotencyKey_ofARefusalThatWritesAnEventWritesItOnceAnHour(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		id, key := s.addLicense(license{MaxDevices: ptr(1)})
		s.activate(key, "holder").is(200)
		refuse := func(i int) { s.activate(key, fmt.Sprint("f", i)).is(409, "seat_limit_reached") }
		events := func(want int, when string) {
			t.Helper()
			s.countsAs(want, "events "+when,
				`SELECT count(*) FROM events WHERE type = 'license.seat_limit_reached' AND subject_id = ?`, id)
		}
		for i := range 3 {
			refuse(i)
		}
		time.Sleep(time.Hour - time.Second)
		refuse(3)
		events(1, "within an hour")
		time.Sleep(time.Second)
		refuse(4)
		events(2, "after an hour")
		s.countsAs(1, "devices", `SELECT count(*) FROM devices`)
	})
}
