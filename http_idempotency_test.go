package main

import (
	"bytes"
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

func TestIdempotencyKey_replaysAnActivationWithItsToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		_, key := s.addLicense(license{terms: terms{MaxDevices: ptr(1)}})
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
		s.counts(0, `SELECT count(*) FROM idempotency
			WHERE instr(CAST(answer AS TEXT), 'eyJ') > 0 OR instr(CAST(answer AS TEXT), ?) > 0`, key)
	})
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
		s.counts(1, `SELECT count(*) FROM leads`)
	})
}

func TestIdempotencyKey_isItsCallersOwn(t *testing.T) {
	t.Parallel()
	s := newService(t)
	partner := s.addAccount("partner")
	s.change(func(t *tx) error { return addOrigin(t, partner, "https://partner.example", anActor) })
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

// Against whoever copies the database who would mint tokens or read keys: keys are hashes, answers are sealed,
// signing keys lie in another file.
func TestIdempotencyKey_andItsAnswerCannotBeReadInTheFile(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	const chosen = "a-key-that-only-the-caller-knows"
	body := seatBody("license_key", key, "fingerprint", "the-device-itself", "nonce", "a-nonce-to-look-for")
	a := s.post("/widget/license/activate", body, "Idempotency-Key: "+chosen).is(200)
	s.counts(1, `SELECT count(*) FROM idempotency WHERE length(answer) > 500`)
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
	s.counts(1, `SELECT sum(orders) FROM widget_counts`)
}
