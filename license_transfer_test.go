package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Whoever frees the seat, the machine that had it keeps its lease and so counts.
func TestTransfer_countsWhoeverFreedTheSeat(t *testing.T) {
	t.Parallel()
	for how, free := range map[string]func(s *service, id, key, device string){
		"the device":    func(s *service, _, key, _ string) { s.deactivate(key, "a").is(200) },
		"a portal":      func(s *service, id, _, device string) { s.release(id, device) },
		"the operator":  func(s *service, _, _, device string) { s.must("device", "release", device) },
		"blocking":      func(s *service, _, _, device string) { s.must("device", "block", device) },
		"the shell":     func(s *service, _, _, _ string) { s.sql(`UPDATE devices SET state = 'released'`) },
		"shorter terms": func(s *service, id, key, _ string) { shortenLease(s, id, key) },
	} {
		runInBubble(t, how, func(t *testing.T, s *service) {
			id, key := s.addLicense(license{terms: terms{MaxDevices: ptr(1), MaxTransfers: ptr(0), LeaseHours: 1000}})
			device := s.activate(key, "a").is(200).text("device", "id")
			lease := s.lease(s.activate(key, "a"))
			free(s, id, key, device)
			s.notice()
			time.Sleep(time.Until(time.Unix(lease.Expires, 0)) - time.Second)
			s.advance()
			s.activate(key, "b").is(409, "transfer_limit_reached")
			time.Sleep(time.Second)
			s.activate(key, "b").is(200)
		})
	}
}

// shortenLease has the device a get a short lease after its long one, and leave.
func shortenLease(s *service, id, key string) {
	s.sql(`UPDATE licenses SET lease_hours = 1 WHERE id = ?`, id)
	s.notice()
	time.Sleep(2 * time.Minute)
	s.activate(key, "a").is(200)
	s.deactivate(key, "a").is(200)
}

// A machine of the property test: what it holds.
type machine struct {
	fingerprint string
	tokens      []string  // every one that it got
	leasedUntil time.Time // the latest end of one that is bound to its fingerprint
	heldAt      time.Time // when it was seen to hold a seat last
	offline     time.Time // until when an offline lease keeps its seat, unless a portal or an operator takes it away
	holds       bool
}

// machinePark plays machines against one licence and knows, from the answers that they got, which
// of them count.
type machinePark struct {
	*service
	random      *rand.Rand
	id, key     string
	kind        string
	seats, most int // seats, and fingerprints that may count
	machines    []*machine
	answers     map[string]int // by code
}

// Against a customer with a licence key who would run more machines than were paid for, one after the other:
// fingerprints count as long as their leases may live.
func TestTransfer_neverMoreMachinesHoldALivingLeaseThanSeatsAndTransfers(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	answers := map[string]int{} // of all of them: which one gets which is chance
	for _, kind := range []string{kindNodeLocked, kindFloating} {
		for _, hours := range []int{1, 14 * 24, 90 * 24} {
			t.Run(fmt.Sprint(kind, " ", hours), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newService(t, withoutAddressLimits)
					p := &machinePark{service: s, random: random(t, 0), kind: kind, seats: 2, most: 5,
						answers: answers}
					p.id, p.key = s.addLicense(license{terms: terms{Kind: licenseKind(kind), MaxDevices: ptr(2),
						MaxTransfers: ptr(3), LeaseHours: hours, OfflineDays: 10}})
					for i := range 50 {
						p.machines = append(p.machines, &machine{fingerprint: fmt.Sprint("machine-", i)})
					}
					for began := time.Now(); time.Since(began) < days(size(40, 80)); {
						time.Sleep(time.Duration(p.random.Int64N(int64(4 * 24 * time.Hour))))
						for range 1 + p.random.IntN(30) {
							p.step()
						}
					}
				})
			})
		}
	}
	for _, code := range []string{"200", "409 transfer_limit_reached", "409 seat_limit_reached", "409 held_offline",
		"kept offline"} {
		if answers[code] == 0 && !t.Failed() {
			t.Errorf("%s was never answered: %v", code, answers)
		}
	}
}

// step lets some time pass, does one thing, and looks at what the machines hold then.
func (p *machinePark) step() {
	pauses := []time.Duration{0, 0, time.Second, time.Minute}
	time.Sleep(pauses[p.random.IntN(len(pauses))])
	p.advance()
	p.observe()
	m, other := p.machine(), p.machine()
	switch action := p.random.IntN(11); action {
	case 0, 1, 2:
		p.tryActivation(m, nil, "license_key", p.key, "fingerprint", m.fingerprint)
	case 3:
		if device := p.anyDevice(); device != "" {
			p.tryActivation(m, nil, "license_key", p.key, "fingerprint", m.fingerprint, "replace_device_id", device)
		}
	case 4, 5: // by any token, with the machine's own fingerprint or none
		if token := other.anyToken(p.random); token != "" {
			headers := []string{bearer(token)}
			if action == 4 {
				p.tryActivation(m, headers, "fingerprint", m.fingerprint)
			} else {
				p.tryActivation(m, headers)
			}
		}
	case 6:
		p.keep(m, p.verifyKey(p.key, m.fingerprint), false)
		if token := other.anyToken(p.random); token != "" {
			p.keep(m, p.verifyLease(token, "nonce", "n"), false)
			p.keep(m, p.verifyLease(token, "fingerprint", m.fingerprint), false)
		}
	case 7:
		if a := p.deactivate(p.key, p.holder().fingerprint); strings.Contains(a.body, "until") {
			p.answers["kept offline"]++
		}
	case 8:
		if token := other.anyToken(p.random); token != "" {
			p.post("/widget/license/deactivate", "{}", bearer(token))
		}
	case 9:
		p.interfere()
	case 10:
		if p.random.IntN(2) == 0 {
			m = p.holder()
		}
		p.tryActivation(m, nil, "license_key", p.key, "fingerprint", m.fingerprint, "offline", true, "nonce", "n")
	}
	p.observe()
	living := 0
	for _, m := range p.machines {
		if m.offline.After(time.Now()) && !m.holds {
			p.t.Fatalf("%s has an offline lease until %v, and its seat is free", m.fingerprint, m.offline)
		}
		if m.leasedUntil.After(time.Now()) {
			living++
		}
	}
	if living > p.most {
		p.t.Fatalf("%d machines hold a living lease, %d may", living, p.most)
	}
}

// interfere releases or blocks any device, as a portal or an operator.
func (p *machinePark) interfere() {
	id := p.anyDevice()
	if id == "" {
		return
	}
	if m := p.machineWith(p.deviceRow(id).Fingerprint); m != nil {
		m.offline = time.Time{}
	}
	if p.random.IntN(2) == 0 {
		p.release(p.id, id)
		return
	}
	block := p.random.IntN(2) == 0
	p.change(func(t *tx) error {
		d, err := t.deviceByID(anyAccount, id)
		p.check(err)
		l, err := t.license(anyAccount, p.id)
		p.check(err)
		switch {
		case block:
			blockDevice(t, l, d, actorCommand)
			return nil
		case d.State == deviceReleased:
			return nil
		}
		releaseSeat(t, l, d, "operator", eventDeviceReleased, actorCommand)
		return nil
	})
}

// anyDevice returns the id of one of the devices that there are, or "".
func (p *machinePark) anyDevice() (id string) {
	if n := p.count(`SELECT count(*) FROM devices`); n > 0 {
		p.check(p.store.one(`SELECT id FROM devices ORDER BY fingerprint LIMIT 1 OFFSET ?`, []any{p.random.IntN(n)},
			&id))
	}
	return id
}

// holder returns one of the machines that hold a seat, or any machine if none does.
func (p *machinePark) holder() *machine {
	first := p.random.IntN(len(p.machines))
	for i := range p.machines {
		if m := p.machines[(first+i)%len(p.machines)]; m.holds {
			return m
		}
	}
	return p.machines[first]
}

func (p *machinePark) machine() *machine { return p.machines[p.random.IntN(len(p.machines))] }

func (m *machine) anyToken(random *rand.Rand) string {
	if len(m.tokens) == 0 {
		return ""
	}
	return m.tokens[random.IntN(len(m.tokens))]
}

// keep has a machine keep the token of an answer. Its lease helps the machine whose fingerprint is
// in it, which may be another. offline tells whether it asked for an offline lease.
func (p *machinePark) keep(m *machine, a answer, offline bool) {
	if !a.hasToken() {
		return
	}
	m.tokens = append(m.tokens, a.text("token"))
	c := p.lease(a)
	fingerprint, err := base64.RawURLEncoding.DecodeString(c.Fingerprint)
	p.check(err)
	if m := p.machineWith(fingerprint); m != nil {
		end := time.Unix(c.Expires, 0)
		m.leasedUntil = later(m.leasedUntil, end)
		if offline {
			m.offline = later(m.offline, end)
		}
	}
}

// machineWith returns the machine whose fingerprint has this hash, or nil.
func (p *machinePark) machineWith(hash []byte) *machine {
	for _, m := range p.machines {
		if own := fingerprintHash(m.fingerprint); bytes.Equal(own[:], hash) {
			return m
		}
	}
	return nil
}

// observe notes which machines hold seats now.
func (p *machinePark) observe() {
	holders, err := p.store.seatHolders(p.id, 50)
	p.check(err)
	for _, m := range p.machines {
		hash := fingerprintHash(m.fingerprint)
		m.holds = slices.ContainsFunc(holders, func(d *device) bool { return bytes.Equal(d.Fingerprint, hash[:]) })
		if m.holds {
			m.heldAt = time.Now()
		}
	}
}

// counts is the rule of the contract, from what the machines know.
func (p *machinePark) counts(m *machine) bool {
	now := time.Now()
	return m.holds || m.leasedUntil.After(now) ||
		p.kind == kindNodeLocked && !m.heldAt.IsZero() && m.heldAt.Add(days(30)).After(now)
}

// tryActivation sends an activation and complains if it is refused or granted against the rule.
func (p *machinePark) tryActivation(m *machine, headers []string, members ...any) {
	counting, holding := 0, 0
	for _, other := range p.machines {
		if p.counts(other) {
			counting++
		}
		if other.holds {
			holding++
		}
	}
	did := p.counts(m)
	a := p.post("/widget/license/activate", seatBody(members...), headers...)
	code := fmt.Sprint(a.status)
	if a.status != 200 {
		code += " " + a.text("code")
	}
	p.answers[code]++
	p.keep(m, a, slices.Contains(members, any("offline")))
	sendsOwn := slices.Contains(members, any("fingerprint"))
	switch {
	case code == "409 transfer_limit_reached" && sendsOwn && (did || counting < p.most):
		p.t.Fatalf("%s is refused for transfers; it counts: %v; %d do: %s", m.fingerprint, did, counting, a.body)
	case code == "409 seat_limit_reached" && holding < p.seats:
		p.t.Fatalf("%s is refused for seats, of which %d are taken", m.fingerprint, holding)
	case code == "200" && sendsOwn && !did && counting >= p.most:
		p.t.Fatalf("%s is let in though %d count", m.fingerprint, counting)
	case a.status >= 400 && a.status != 409 && len(headers) == 0 && code != "403 device_blocked":
		p.t.Fatalf("%s: %s", m.fingerprint, a.body)
	}
}

// A lease that has lapsed no longer counts, also before the service has released its seat.
func TestTransfer_lapsedLeaseDoesNotCountInTheActivationThatReleasesItsSeat(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		_, key := s.addLicense(license{terms: terms{Kind: kindFloating, MaxDevices: ptr(1), MaxTransfers: ptr(0),
			LeaseHours: 1}})
		s.activate(key, "a").is(200, "activated")
		time.Sleep(2 * time.Hour)
		s.activate(key, "a").is(200, "reactivated")
		time.Sleep(2 * time.Hour)
		s.activate(key, "b").is(200, "activated")
	})
}

// Against a thief with a device's token who would keep the seat after it was released, or come back: tokens end
// with a seat that is taken away.
func TestToken_endsWithTheSeatThatWasTakenAway(t *testing.T) {
	t.Parallel()
	for how, take := range map[string]func(s *service, id, key, device string){
		"a portal":     func(s *service, id, _, device string) { s.release(id, device) },
		"the operator": func(s *service, _, _, device string) { s.must("device", "release", device) },
		"the shell":    func(s *service, _, _, _ string) { s.sql(`UPDATE devices SET state = 'released'`) },
		"a replacement": func(s *service, _, key, device string) {
			s.activate(key, "other", "replace_device_id", device).is(200)
			s.deactivate(key, "other").is(200)
		},
	} {
		runInBubble(t, how, func(t *testing.T, s *service) {
			id, key := s.addLicense(license{terms: terms{MaxDevices: ptr(1), MaxTransfers: ptr(5)}})
			first := s.activate(key, "till").is(200)
			stolen, device := first.text("token"), first.text("device", "id")
			take(s, id, key, device)
			s.notice()
			if a := s.verifyLease(stolen, "nonce", "n").is(200); a.text("code") != "device_released" ||
				a.hasToken() {
				t.Errorf("%s", a.body)
			}
			s.activateByToken(stolen).is(403, "device_released")
			s.activateByToken(stolen, "fingerprint", "thief").is(403, "fingerprint_mismatch")
			s.activateByToken(stolen, "license_key", key, "fingerprint", "till").is(403, "device_released")
			back := s.activate(key, "till").is(200, "reactivated").text("token") // in the same second
			row := s.deviceRow(device)
			s.verifyLease(stolen, "nonce", "n").answers("token_ended")
			s.activateByToken(stolen).is(403, "token_ended")
			s.activateByToken(stolen, "fingerprint", "thief").is(403, "fingerprint_mismatch")
			a := s.deactivateByToken(stolen).is(200)
			if after := s.deviceRow(device); a.json()["released"] != false || !reflect.DeepEqual(after, row) {
				t.Errorf("an ended token changed %+v to %+v: %s", row, after, a.body)
			}
			s.verifyLease(back).answers("valid")
			s.activateByToken(back).is(200, "already_active")
			time.Sleep(2 * time.Minute)
			s.verifyLease(s.verifyLease(back, "nonce", "n").text("token")).answers("valid")
		})
	}
}

// A stored answer of activate is a token: given again when the seat is gone, it would be a lease
// that the rules above have ended.
func TestActivate_isReplayedOnlyWhileItsAnswerIsTrue(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(s *service, id, key, device string)
		status int
		code   string // of the second answer; "": the first one is replayed
	}{
		"nothing":     {func(*service, string, string, string) {}, 200, ""},
		"its release": {func(s *service, _, key, _ string) { s.deactivate(key, "till").is(200) }, 200, "reactivated"},
		"a portal":    {func(s *service, id, _, device string) { s.release(id, device) }, 200, "reactivated"},
		"a block": {func(s *service, _, _, device string) { s.must("device", "block", device) }, 403,
			"device_blocked"},
		"a suspension": {func(s *service, id, _, _ string) { s.must("license", "suspend", id) }, 403,
			"license_suspended"},
		"an end": {func(*service, string, string, string) { time.Sleep(23 * time.Hour) }, 403, "license_expired"},
		"another lease": {func(s *service, _, key, _ string) {
			time.Sleep(2 * time.Minute)
			s.verifyKey(key, "till").answers("valid")
		}, 200, "already_active"},
		"ended tokens": {func(s *service, id, _, _ string) {
			s.sql(`UPDATE licenses SET tokens_end_at = strftime('%Y-%m-%dT%H:%M:%SZ', 946684800, 'unixepoch')
				WHERE id = ?`, id)
		}, 200, "already_active"},
	} {
		runInBubble(t, name, func(t *testing.T, s *service) {
			id, key := s.addLicense(license{ExpiresAt: newStamp(time.Now().Add(22 * time.Hour)),
				terms: terms{MaxDevices: ptr(1), MaxTransfers: ptr(5)}})
			send := func() answer {
				return s.post("/widget/license/activate", activateBody(key, "till"), "Idempotency-Key: once")
			}
			first := send().is(200)
			c.change(s, id, key, first.text("device", "id"))
			s.notice()
			switch again := send().is(c.status); {
			case c.code == "" && (again.body != first.body || again.header.Get("Idempotency-Replayed") != "true"):
				t.Errorf("it is not replayed: %s", again.body)
			case c.code != "" && (again.text("code") != c.code || again.header.Get("Idempotency-Replayed") != ""):
				t.Errorf("%s, want %s", again.body, c.code)
			case c.status == 200 && c.code != "":
				if third := send().is(200); third.body != again.body ||
					third.header.Get("Idempotency-Replayed") != "true" {
					t.Errorf("the new answer is not kept: %s", third.body)
				}
			}
		})
	}
}
