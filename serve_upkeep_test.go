package main

import (
	"encoding/json"
	"fmt"
	"regexp"
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

// jumps are how far the clock is set, from a moment in the year 2000.
var jumps = map[string]time.Duration{
	"an hour forward": time.Hour, "an hour back": -time.Hour, "a day forward": 24 * time.Hour,
	"a day back": -24 * time.Hour,
	"to 1970":    time.Date(1970, 1, 2, 0, 0, 0, 0, time.UTC).Sub(time.Date(2000, 1, 3, 0, 0, 0, 0, time.UTC)),
	"to 2040":    time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC).Sub(time.Date(2000, 1, 3, 0, 0, 0, 0, time.UTC)),
}

// A clockCase is a service whose clock is set and set right again.
type clockCase struct {
	*service
	clock    *wallClock
	by       time.Duration
	began    time.Time
	widget   string // of an account that allows more than an address may
	taken    int    // of the bucket of an address, which is of 60 requests a minute
	token    string
	lead     string
	ended    [2]string // id and key of a licence that ended two days ago
	ends     [2]string // of one that ends in 30 days
	floating [2]string // of one with a single floating seat
	device   string    // that holds it
}

// drain makes requests until the limit of their address refuses one, and returns how many it let pass.
func (c *clockCase) drain() (n int) {
	c.t.Helper()
	for {
		switch a := c.get("/widget/stats?from=no&widget="+c.widget, "Peer: 192.0.2.1:1"); a.status {
		case 422: // charged all the same
			n++
		case 429:
			c.taken += n
			return n
		default:
			c.t.Fatalf("%d %s", a.status, a.body)
		}
	}
}

func (c *clockCase) postKeyed() answer {
	c.t.Helper()
	return c.post("/widget/leads", anyLead, "Idempotency-Key: once-and-for-all").is(200)
}

// prepare brings about what the clock must not undo.
func (c *clockCase) prepare() {
	c.t.Helper()
	account := c.addAccount("Other")
	c.change(func(t *tx) error { return t.setRate(account, 1000) })
	c.widget = c.addWidget(account)
	c.token = c.service.token(c.account, scopeLeads) // for an hour
	time.Sleep(49 * time.Hour)
	now := newStamp(time.Now())
	issue := func(l license) [2]string {
		id, key := c.addLicense(l)
		return [2]string{id, key}
	}
	c.ended = issue(license{ExpiresAt: now.after(-48 * time.Hour)})
	c.ends = issue(license{ExpiresAt: now.after(30 * 24 * time.Hour)})
	c.floating = issue(license{terms: terms{Kind: kindFloating, MaxDevices: ptr(1), LeaseHours: 2}})
	c.activate(c.ends[1], "a").is(200)
	c.device = c.activate(c.floating[1], "a").is(200).text("device", "id")
	c.advance() // writes the event of the licence that ended
	c.get("/widget/health").is(200)
	c.lead = c.postKeyed().text("id")
	c.began = time.Now()
	c.drain()
}

// wrong checks what holds while the clock is wrong.
func (c *clockCase) wrong() {
	c.t.Helper()
	equal(c.t, "what a drained bucket gave", c.drain(), 0)
	time.Sleep(betweenTicks)
	c.get("/leads", bearer(c.token)).is(401, "invalid_token")
	if c.by > -48*time.Hour { // else the end has not come
		c.verifyKey(c.ended[1], "a").answers("expired")
		if a := c.activate(c.ended[1], "a"); c.by > signingTrusted {
			a.is(503, "clock_doubted")
		} else {
			a.is(403, "license_expired")
		}
	}
	if c.by < 24*time.Hour {
		c.postKeyed().has("Idempotency-Replayed: true").tells("id", c.lead)
	}
	verify := func() string {
		return c.post("/widget/license/verify", activateBody(c.floating[1], "b")).is(200).text("code")
	}
	for _, state := range []string{"revoked", "active"} {
		c.otherProcess(`UPDATE licenses SET state = ? WHERE id = ?`, state, c.floating[0])
		time.Sleep(foreignInterval)
		verify() // has the writer look
		time.Sleep(time.Second)
		if got := verify(); (got == "revoked") != (state == "revoked") {
			c.t.Errorf("another process made it %s; a second later it is %s", state, got)
		}
	}
	checks := c.get("/widget/health").is(200).json()["checks"].(map[string]any)
	probe := checks["sqlite:responseTime"].([]any)[0].(map[string]any)["time"]
	at, err := time.Parse(time.RFC3339, probe.(string))
	if c.check(err); at.Sub(c.clock.now()).Abs() > 5*time.Second {
		c.t.Errorf("health was last proved at %v, now it is %v", at, c.clock.now())
	}
}

// right checks what holds once the clock is right again.
func (c *clockCase) right() {
	c.t.Helper()
	c.drain()
	if most := 60 + int(time.Since(c.began).Seconds()); c.taken > most {
		c.t.Errorf("a bucket gave %d, at most %d are right", c.taken, most)
	}
	before := c.taken
	for range 60 {
		time.Sleep(time.Second)
		c.drain()
	}
	if got := c.taken - before; got < 59 || got > 60 {
		c.t.Errorf("in a minute a bucket gave %d", got)
	}
	c.get("/leads", bearer(c.token)).is(401, "invalid_token")
	c.verifyKey(c.ended[1], "a").answers("expired")
	c.verifyKey(c.ends[1], "a").answers("valid")
	c.postKeyed().has("Idempotency-Replayed: true").tells("id", c.lead)
	c.activate(c.floating[1], "b").is(409, "seat_limit_reached")
	c.verifyKey(c.floating[1], "a").answers("valid").tells("device.id", c.device)
	c.counts(1, `SELECT count(*) FROM devices WHERE license_id = ? AND state = 'active'`, c.floating[0])
}

// events checks that every end was written once, however often its moment came.
func (c *clockCase) events() {
	c.t.Helper()
	for _, check := range []struct {
		after time.Duration
		want  int
	}{{0, 0}, {31 * 24 * time.Hour, 1}, {24 * time.Hour, 1}} {
		time.Sleep(check.after)
		c.advance()
		for id, want := range map[string]int{c.ends[0]: check.want, c.ended[0]: 1} {
			c.counts(want, `SELECT count(*) FROM events WHERE subject_id = ? AND type = 'license.expired'`, id)
		}
	}
}

// betweenTicks is a time to wait after which no tick of the chores comes at the same moment: a
// clock that is set during one would be read before and after.
const betweenTicks = 2500 * time.Millisecond

func TestClock_thatIsSetAndSetRightUndoesNothing(t *testing.T) {
	t.Parallel()
	for name, by := range jumps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				clock := &wallClock{}
				s := newService(t, func(o *storeOptions, _ *serverOptions) { o.now = clock.now })
				c := &clockCase{service: s, clock: clock, by: by}
				c.prepare()
				stop := s.beside(s.server.runChores)
				time.Sleep(betweenTicks)
				c.drain()
				clock.set(by)
				c.wrong()
				time.Sleep(2 * sweepInterval) // what is swept is swept now
				clock.set(0)
				time.Sleep(betweenTicks)
				c.right()
				stop()
				c.events()
				noticed := regexp.MustCompile(`msg="the clock was set" by=\S+`).FindAllString(s.log.String(), -1)
				said := `msg="the clock was set" by=`
				sameText(t, "noticed", noticed, []string{said + by.String(), said + (-by).String()})
			})
		})
	}
}

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
		"in local time": 2 * time.Hour, "500 days ahead": 500 * 24 * time.Hour, "in 2040": jumps["to 2040"],
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
	s.post("/widget/leads", anyLead, "Idempotency-Key: once-and-for-all").is(200)
	if !serving {
		stop()
		s.check(s.server.runFinalChores())
		clock.set(by)
		s.startsAgain()
		stop = s.beside(s.server.runChores)
	} else {
		clock.set(by)
	}
	before := s.dump()
	time.Sleep(2*sweepInterval + betweenTicks)
	s.unchanged(before)
	if s.activate(key, "b").status == 200 {
		t.Error("a seat that has not lapsed is given away")
	}
	if by > signingTrusted {
		s.clockSays(clockFarAhead)
	} else {
		s.clockSays(clockAhead)
	}
	clock.set(0)
	time.Sleep(betweenTicks)
	s.clockSays("")
	s.get("/leads", "Authorization: Bearer "+token).is(200)
	s.activate(key, "a").is(200)
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

func TestClock_thatJumpsIsDoubtedBeforeTheNextLookAtIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clock := &wallClock{}
		s := newService(t, func(o *storeOptions, _ *serverOptions) { o.now = clock.now })
		_, key := s.addLicense(license{terms: terms{MaxDevices: ptr(5)}})
		clock.set(48 * time.Hour)
		s.activate(key, "a").is(503, "clock_doubted")
		clock.set(clockTrusted)
		s.activate(key, "a").is(200)
		if clock.set(clockTrusted + time.Second); !s.server.clockDoubted() {
			t.Error("the clock is trusted")
		}
	})
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

func TestClock_thatIsDoubtedShowsInStatus(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.startsAfter(500 * 24 * time.Hour)
	s.server.statusSocket = socketPath(s.store.path)
	s.serving()
	advice := string(clockFarAhead) + ": set the clock right, or if it is right, run 'widgetd clock accept'"
	var v map[string]any
	s.check(json.Unmarshal([]byte(settled(func() string { return s.must("status", "-json") })), &v))
	if needs, service := needsDoing(v), v["service"].(map[string]any); needs[0] != advice || len(needs) != 2 ||
		service["clock"] != string(clockFarAhead) || service["output"] != string(clockFarAhead) {
		t.Errorf("not told once by health, by the clock and as what needs doing: %v", v)
	}
	s.must("clock", "accept")
	if !soon(func() bool { return !s.server.clockDoubted() }) {
		t.Fatal("a running service does not notice")
	}
	lacks(t, s.must("status", "-json"), advice)
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
