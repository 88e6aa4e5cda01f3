package main

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A wallClock is a clock that can be set while the service runs. The service measures
// time by another one, which in a bubble is the bubble's.
type wallClock struct{ offset atomic.Int64 }

func (c *wallClock) now() time.Time { return time.Now().Add(time.Duration(c.offset.Load())) }

func (c *wallClock) set(by time.Duration) { c.offset.Store(int64(by)) }

// betweenTicks is a time to wait after which no tick of the chores comes at the same moment: a
// clock that is set during one would be read before and after.
const betweenTicks = 2500 * time.Millisecond

// startsAgain has the service start over its database, as a new process does: what only memory held is gone. The
// kernel says that the clock is synchronised once the result is set.
func (s *service) startsAgain() (synchronised *atomic.Bool) {
	s.t.Helper()
	synchronised = &atomic.Bool{}
	o := s.server.serverOptions
	o.synchronised = synchronised.Load
	var err error
	s.server, err = newServer(s.store, s.keys, o, s.server.log, nouns())
	s.check(err)
	s.t.Cleanup(s.server.outbound.close)
	return synchronised
}

// startsAfter has the service start that long after the time that it saw last; a negative one is before it.
func (s *service) startsAfter(gap time.Duration) (synchronised *atomic.Bool) {
	s.t.Helper()
	s.sql(`INSERT OR REPLACE INTO clock VALUES (1, ?)`, newStamp(time.Now().Add(-gap)))
	return s.startsAgain()
}

// seen returns the time in the file.
func (s *service) seen() time.Time {
	s.t.Helper()
	seen, err := s.store.clockSeen()
	s.check(err)
	return seen.Time
}

// clockSays checks what is wrong with the clock, as health tells it.
func (s *service) clockSays(fault clockFault) {
	s.t.Helper()
	time.Sleep(healthInterval)
	want := healthPass
	if fault != "" {
		want = healthWarn
	}
	a := s.get("/widget/health").is(200)
	if output, _ := a.json()["output"].(string); a.text("status") != want || output != string(fault) {
		s.t.Errorf("health is %s, want %s: %s", a.text("status"), want, fault)
	}
}

// Against a clock that is wrong, at a start or by a jump, that would have rows removed, orders and seats lapse, or
// devices believe a time in the future for good: it is compared with the latest time that was right; more than an
// hour ahead, only the kernel or the operator vouches for it, and until then nothing is done that can't be undone;
// it is looked at in the moment of signing, too.
func TestClock_thatIsWrongAtTheStartDestroysNothing(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]time.Duration{
		"in local time": 2 * time.Hour, "500 days ahead": 500 * 24 * time.Hour, "a day back": -24 * time.Hour,
		"in 2040": time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC).Sub(time.Date(2000, 1, 3, 0, 0, 0, 0, time.UTC)),
	} {
		for _, serving := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, while serving %v", name, serving), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { survivesTheClock(t, by, serving) })
			})
		}
	}
}

// survivesTheClock has the clock be wrong by so much, at a start or while the service runs, and right again.
func survivesTheClock(t *testing.T, by time.Duration, serving bool) {
	clock := &wallClock{}
	s := newService(t, func(o *storeOptions, _ *serverOptions) { o.now = clock.now })
	s.startsAgain()
	stop := s.beside(s.server.runChores)
	time.Sleep(2*sweepInterval + betweenTicks)
	token := s.token(s.account, scopeLeads)
	s.fillEvents(s.account, eventLeadCreated, 599)
	s.sql(`UPDATE events SET at = ?`, newStamp(time.Now()))
	s.sql(`INSERT INTO deliveries (webhook_id, id, event_seq, event_id, type, attempt, at, milliseconds)
		VALUES ('whe_1', ?, 1, 'evt_1', 'lead.created', 1, ?, 1)`, newID("whd", time.Now()), newStamp(time.Now()))
	s.orderIn(orderAuthorized)
	s.addOrder(nil)
	_, key := s.addLicense(license{terms: terms{Kind: kindFloating, MaxDevices: ptr(1), LeaseHours: 1}})
	s.activate(key, "a").is(200)
	_, ends := s.addLicense(license{ExpiresAt: newStamp(time.Now().Add(time.Hour))})
	s.activate(ends, "a").is(200)
	lead := s.post("/widget/leads", anyLead, "Idempotency-Key: once-and-for-all").is(200).text("id")
	stats := "/widget/stats?from=no&widget=" + s.addWidget(s.account)
	drained := func() bool { return s.get(stats, "Peer: 192.0.2.9:1").status == 429 }
	for !drained() {
	}
	if !serving {
		stop()
		s.check(s.server.runFinalChores())
		clock.set(by)
		s.startsAgain()
		stop = s.beside(s.server.runChores)
	} else {
		clock.set(by)
		failIf(t, !drained(), "a limit is over by the clock alone")
		equal(t, "doubted before the next look at the clock", s.server.clockDoubted(), by > 0)
		if by > signingTrusted {
			s.activate(ends, "b").is(503, "clock_doubted")
		}
	}
	before := s.dump()
	time.Sleep(2*sweepInterval + betweenTicks)
	if by > 0 { // else it goes on, as on a day before
		s.unchanged(before)
	}
	if s.activate(key, "b").status == 200 {
		t.Error("a seat that has not lapsed is given away")
	}
	fault := map[bool]clockFault{true: clockAhead, false: clockBehind}[by > 0]
	if by > signingTrusted {
		fault = clockFarAhead
	}
	s.clockSays(fault)
	clock.set(0)
	time.Sleep(betweenTicks)
	s.clockSays("")
	s.get("/leads", "Authorization: Bearer "+token).is(200)
	s.activate(key, "a").is(200)
	s.post("/widget/leads", anyLead, "Idempotency-Key: once-and-for-all").
		has("Idempotency-Replayed: true").tells("id", lead)
	if set := `msg="the clock was set" by=`; serving {
		contains(t, s.log.String(), set+by.String(), set+(-by).String())
	}
	stop()
	time.Sleep(2 * time.Hour)
	stop = s.beside(s.server.runChores) // and what is due then is done
	time.Sleep(betweenTicks)
	stop()
	if n := s.count(`SELECT count(*) FROM orders WHERE state = 'expired'`); n != 2 {
		t.Errorf("%d orders have expired", n)
	}
}

func TestClock_isTrustedOnceTheKernelOrTheOperatorSaysSo(t *testing.T) {
	t.Parallel()
	for name, trust := range map[string]func(s *service, synchronised *atomic.Bool){
		"kernel":   func(_ *service, synchronised *atomic.Bool) { synchronised.Store(true) },
		"operator": func(s *service, _ *atomic.Bool) { s.must("clock", "accept") },
	} {
		for _, gap := range []time.Duration{clockTrusted + time.Second, 500 * 24 * time.Hour} {
			synctest.Test(t, func(t *testing.T) {
				s := newService(t)
				id, key := s.addLicense(license{terms: terms{Kind: kindFloating, MaxDevices: ptr(1), LeaseHours: 2}})
				s.activate(key, "a").is(200)
				synchronised := s.startsAfter(gap)
				time.Sleep(5 * time.Hour) // however long it takes
				defer s.beside(s.server.runChores)()
				time.Sleep(betweenTicks)
				if got := s.licenseEvents(id); slices.Contains(got, "device.released time") {
					t.Errorf("released while the clock is doubted: %q", got)
				}
				seen := s.seen()
				trust(s, synchronised)
				time.Sleep(betweenTicks)
				s.clockSays("")
				if got := s.licenseEvents(id); !slices.Contains(got, "device.released time") {
					t.Errorf("%s: not released two seconds later: %q", name, got)
				}
				time.Sleep(sweepInterval)
				since := time.Since(s.seen())
				if since > sweepInterval+betweenTicks || seen.After(time.Now().Add(-gap)) {
					t.Errorf("%s: the file has %v, and had %v", name, s.seen(), seen)
				}
				contains(t, s.log.String(), "the clock is not taken for right")
			})
		}
	}
}

func TestClock_signsNothingThatADeviceWouldBelieveForGood(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{terms: terms{MaxDevices: ptr(5)}})
	token := s.activate(key, "a").is(200).text("token")
	p, secret := s.registerApp()
	code := s.agree(p, s.account, scopeOrders)
	s.startsAfter(signingTrusted - time.Minute)
	s.activate(key, "b").is(200)
	synchronised := s.startsAfter(signingTrusted + time.Minute)
	for _, a := range []answer{s.verifyKey(key, "a"), s.verifyKey(key, "a", "nonce", "n-1"), s.verifyLease(token),
		s.verifyLease(token, "nonce", "n-2")} {
		if a.answers("valid"); a.hasToken() || a.json()["refresh_after"] == nil {
			t.Errorf("signed by a clock that is doubted, or not to be asked again: %s", a.body)
		}
	}
	before := s.dump()
	s.activate(key, "c").is(503, "clock_doubted").has("Retry-After: 60")
	s.post("/widget/license/activate", activateBody(key, "c"),
		"Idempotency-Key: once").is(503, "clock_doubted").has("Retry-After: 60")
	s.askToken(codeForm(p, code), basicAuth(p.ID, secret)).refuses(503, "temporarily_unavailable")
	s.unchanged(before)
	synchronised.Store(true)
	s.activate(key, "c").is(200)
	s.askToken(codeForm(p, code), basicAuth(p.ID, secret)).is(200)
	if !s.verifyKey(key, "a", "nonce", "n-3").answers("valid").hasToken() {
		t.Error("nothing is signed though the kernel says that the clock is right")
	}
}

func TestClock_signsNoTokenThatACommandWouldIssue(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	issue := []string{"token", "issue", "-account", o.account, "-scope", "stats:read"}
	o.do(issue...) // no service has seen a time yet
	o.change(func(t *tx) error { t.setClock(t.now.after(-days(2))); return nil })
	o.do(issue...)
	o.clockUnknown = true
	o.fails("nothing is signed by this clock, which is more than a day ahead of ", issue...)
	o.do("clock", "accept")
	o.do(issue...)
}

func TestClock_behindTheLastTimeWarnsAndMovesNothingBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		_, key := s.addLicense(license{terms: terms{MaxDevices: ptr(5)}})
		synchronised := s.startsAfter(-30 * 24 * time.Hour)
		seen := s.seen()
		s.expiredAnswers(10)
		stop := s.beside(s.server.runChores)
		for _, kernel := range []bool{false, true} {
			synchronised.Store(kernel)
			time.Sleep(sweepInterval + betweenTicks)
			s.clockSays(clockBehind)
		}
		s.activate(key, "a").is(200)
		if n := s.count(`SELECT count(*) FROM idempotency`); n != 0 {
			t.Error("what has expired is not removed")
		}
		stop()
		s.check(s.server.runFinalChores())
		if !s.seen().Equal(seen) {
			t.Errorf("the file has %v, had %v", s.seen(), seen)
		}
		s.startsAgain()
		defer s.beside(s.server.runChores)()
		s.clockSays(clockBehind)
		if out := s.must("clock", "accept"); !strings.Contains(out, newStamp(seen).String()) {
			t.Errorf("printed %q", out)
		}
		time.Sleep(betweenTicks)
		s.clockSays("")
		if since := time.Since(s.seen()); since < 0 || since > sweepInterval {
			t.Errorf("the file has %v", s.seen())
		}
	})
}

func TestClock_isWrittenAtMostOnceAMinuteAndAtTheStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.sql(`INSERT INTO events (id, at, type, account_id, actor) VALUES (?, '2040-01-01T00:00:00Z',
			'lead.created', ?, 'site')`, newID("evt", time.Now()), s.account)
		written := map[time.Time]bool{}
		began := time.Now()
		for time.Since(began) < 10*time.Minute { // restarted every ten seconds, as after a crash
			s.startsAgain()
			stop := s.beside(s.server.runChores)
			for range 10 {
				time.Sleep(time.Second)
				written[s.seen()] = true
			}
			stop()
		}
		delete(written, time.Time{}) // none yet
		if n := len(written); n < 9 || n > 10 {
			t.Errorf("written %d times in ten minutes", n)
		}
		s.clockSays("")
		s.check(s.server.runFinalChores())
		if since := time.Since(s.seen()); since > time.Second {
			t.Errorf("at the stop the file has what was %v before", since)
		}
	})
}

// advance lets time do its work, as the service does every second.
func (s *service) advance() {
	s.t.Helper()
	s.check(s.server.runTransitions(s.t.Context()))
}

// sweepAll removes all expired rows, as the service does every minute.
func (s *service) sweepAll() {
	s.t.Helper()
	if s.server.sweep(s.t.Context(), time.Now().Add(time.Hour)) {
		s.t.Fatal("the sweep ended before it was done")
	}
}

// expiredAnswers adds n stored answers that have expired.
func (s *service) expiredAnswers(n int) {
	s.t.Helper()
	s.sql(manyRows(n) + `INSERT INTO idempotency (id, request, answer, expires_at)
		SELECT randomblob(32), zeroblob(32), x'00', '1999-12-31T00:00:00Z' FROM n`)
}

func TestSweep_keepsEventsAndTokensAsLongAsItIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, withFewSwept, func(_ *storeOptions, o *serverOptions) {
			o.keepEvents, o.keepTokens = span{rest: days(40)}, span{years: 1}
		})
		old := 3 * int(s.store.limits.swept)
		token := s.token(s.account, scopeEvents) // for an hour
		revoked, err := s.keys.verify(s.token(s.account, scopeEvents))
		s.check(err)
		s.sql(`UPDATE tokens SET expires_at = '2010-01-01T00:00:00Z', revoked_at = ? WHERE id = ?`,
			newStamp(time.Now()), revoked.ID)
		s.fillEvents(s.account, eventLeadCreated, old)
		s.sql(`UPDATE events SET at = ?`, newStamp(time.Now()))
		for _, c := range []struct {
			after          time.Duration
			events, tokens int
		}{
			{days(40), old + 1, 2},
			{time.Second, 1, 2}, // those of the beginning are gone
			{days(366-40) - time.Minute, 0, 2},
			{2 * time.Hour, 1, 0},
		} {
			s.announce(s.account, eventLeadCreated)
			time.Sleep(c.after)
			s.sweepAll()
			events, tokens := s.count(`SELECT count(*) FROM events`), s.count(`SELECT count(*) FROM tokens`)
			sameText(t, c.after, events, c.events, tokens, c.tokens)
		}
		s.get("/events", bearer(token)).is(401)
	})
}

// withFewSwept has a sweep remove few rows, and look at ten times as many events.
var withFewSwept = withLimits(func(most *limits) {
	most.swept, most.listRows = int64(size(20, int(most.swept))), size(200, most.listRows)
})

// Against a row dated in the future that would keep what is due behind it from being removed: each sweep looks at
// the next 10,000 events, and comes by every one.
func TestSweep_isNotHeldUpByEventsFromTheFuture(t *testing.T) {
	t.Parallel()
	s := newService(t, withFewSwept)
	most := s.store.limits.listRows
	s.fillEvents(s.account, eventLeadCreated, 1+2*most)
	s.sql(`UPDATE events SET at = '2099-01-01T00:00:00Z' WHERE seq <= ?`, most)
	s.sql(`UPDATE events SET at = '2000-01-01T00:00:00Z' WHERE seq > ?`, most)
	s.announce(s.account, eventLeadCreated)
	s.sql(`UPDATE events SET at = '2000-01-01T00:00:00Z' WHERE seq % ? = 7`, most/10) // and some between them
	left := func() int { return s.count(`SELECT count(*) FROM events WHERE at < '2001'`) }
	for range 3 {
		s.sweepAll()
	}
	if left() != 0 || s.count(`SELECT count(*) FROM events WHERE at > '2001'`) != most-10+1 {
		t.Errorf("%d old events are left of %d", left(), s.count(`SELECT count(*) FROM events`))
	}
	s.sql(`UPDATE events SET at = '2000-01-01T00:00:00Z' WHERE seq = 2`)
	for range 2 { // it comes by again
		s.sweepAll()
	}
	if left() != 0 {
		t.Error("an old event is left")
	}
}

func TestSweep_isNotHeldUpByRowsThatAShellLeftBehind(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		end := newStamp(time.Now().Add(time.Hour))
		var ids []string
		for range 4 {
			id, key := s.addLicense(license{ExpiresAt: end,
				terms: terms{Kind: kindFloating, LeaseHours: 1, GraceDays: 1}})
			s.activate(key, "a").is(200)
			ids = append(ids, id)
		}
		raw(t, s.store.path, `PRAGMA foreign_keys = 0;
			DELETE FROM licenses WHERE id = '`+ids[0]+`';
			UPDATE licenses SET account_id = '`+newID("acct", time.Now())+`' WHERE id = '`+ids[1]+`';
			UPDATE licenses SET entitlements = '[1, 2]' WHERE id = '`+ids[2]+`'`)
		time.Sleep(50 * time.Hour)
		s.advance()
		s.counts(2, `SELECT count(*) FROM devices WHERE state = 'released' AND license_id IN (?, ?)`, ids[2], ids[3])
		for _, id := range ids[2:] {
			contains(t, s.eventTypes(id)+".", "device.released license.grace_started license.expired.")
		}
		if due, err := s.store.transitionsDue(newStamp(time.Now())); due || err != nil {
			t.Errorf("there is still work: %v %v", due, err)
		}
	})
}
