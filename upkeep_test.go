package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

// A wallClock is a clock whose wall time can be set while the service runs.
type wallClock struct {
	offset atomic.Int64
	bare   bool // gives no monotonic reading
}

// now is what time.Now gives on a machine whose wall clock was set by the offset: the
// monotonic reading goes on as before. Nothing in package time makes such a time (in a
// bubble of synctest its times have no monotonic reading at all), so it is put together
// as package time documents its fields: one bit, 33 bits of seconds since 1885 and 30 of
// nanoseconds; the monotonic nanoseconds; the location.
func (c *wallClock) now() time.Time {
	t, offset := time.Now(), time.Duration(c.offset.Load())
	wall := t.Round(0).Add(offset)
	if c.bare {
		return wall
	}
	seconds := wall.Unix() - time.Date(1885, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	*(*fields)(unsafe.Pointer(&t)) = fields{1<<63 | uint64(seconds)<<30 | uint64(wall.Nanosecond()), t.UnixNano(), time.Local}
	return t
}

// fields are time.Time's.
type fields struct {
	wall uint64
	ext  int64
	loc  *time.Location
}

func (c *wallClock) set(by time.Duration) { c.offset.Store(int64(by)) }

func TestClock_ofTheseTestsIsOneThatWasSet(t *testing.T) {
	for _, bare := range []bool{false, true} {
		c := &wallClock{bare: bare}
		before := c.now()
		for _, by := range []time.Duration{time.Hour, -24 * time.Hour, -30 * 365 * 24 * time.Hour, 14 * 365 * 24 * time.Hour} {
			c.set(by)
			after := c.now()
			if wall := after.Round(0).Sub(before.Round(0)); wall.Round(time.Minute) != by {
				t.Errorf("set by %v, the wall clock moved by %v", by, wall)
			}
			elapsed, set := after.Sub(before).Round(time.Minute), clockAdjustment(before, after).Round(time.Minute)
			if want := map[bool]time.Duration{true: by}[bare]; elapsed != want || set != by-want {
				t.Errorf("set by %v (bare: %v): %v elapsed, clockSet says %v", by, bare, elapsed, set)
			}
		}
	}
}

// jumps are how far the clock is set, from a moment in the year 2000.
var jumps = map[string]time.Duration{
	"an hour forward": time.Hour, "an hour back": -time.Hour, "a day forward": 24 * time.Hour, "a day back": -24 * time.Hour,
	"to 1970": time.Date(1970, 1, 2, 0, 0, 0, 0, time.UTC).Sub(time.Date(2000, 1, 3, 0, 0, 0, 0, time.UTC)),
	"to 2040": time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC).Sub(time.Date(2000, 1, 3, 0, 0, 0, 0, time.UTC)),
}

// A clockCase is a service whose clock is set and set right again.
type clockCase struct {
	*service
	clock    *wallClock
	by       time.Duration
	began    time.Time
	taken    int // from the bucket
	token    string
	lead     string
	ended    [2]string // id and key of a licence that ended two days ago
	ends     [2]string // of one that ends in 30 days
	floating [2]string // of one with a single floating seat
	device   string    // that holds it
}

// drain takes what the bucket of an account gives.
func (c *clockCase) drain() (n int) {
	for c.server.accountBuckets.take("acct", 600, c.clock.now()).ok {
		n++
	}
	c.taken += n
	return n
}

func (c *clockCase) postKeyed() answer {
	c.t.Helper()
	return c.post("/widget/leads", anyLead, "Idempotency-Key: once-and-for-all").is(200)
}

// prepare brings about what the clock must not undo.
func (c *clockCase) prepare() {
	c.t.Helper()
	c.token = c.service.token(c.account, scopeLeads) // for an hour
	time.Sleep(49 * time.Hour)
	now := newStamp(time.Now())
	issue := func(l license) [2]string {
		id, key := c.addLicense(l)
		return [2]string{id, key}
	}
	c.ended = issue(license{ExpiresAt: now.after(-48 * time.Hour)})
	c.ends = issue(license{ExpiresAt: now.after(30 * 24 * time.Hour)})
	c.floating = issue(license{Kind: kindFloating, MaxDevices: ptr(1), LeaseHours: 2})
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
	gave := c.drain()
	if limit := map[bool]int{true: 600}[c.clock.bare && c.by > 0]; gave > limit { // to a bare clock that time has passed
		c.t.Errorf("a drained bucket gave %d at once", gave)
	}
	time.Sleep(2 * time.Second)
	c.get("/leads", "Authorization: Bearer "+c.token).is(401, "invalid_token")
	if c.by > -48*time.Hour { // else the end has not come
		c.verifyKey(c.ended[1], "a").answers("expired")
		c.activate(c.ended[1], "a").is(403, "license_expired")
	}
	if c.by < 24*time.Hour {
		if got := c.postKeyed().has("Idempotency-Replayed: true").text("id"); got != c.lead {
			c.t.Errorf("the key's answer is %s, was %s", got, c.lead)
		}
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
	probe := c.get("/widget/health").is(200).json()["checks"].(map[string]any)["sqlite:responseTime"].([]any)[0].(map[string]any)["time"]
	at, err := time.Parse(time.RFC3339, probe.(string))
	if c.check(err); at.Sub(c.clock.now()).Abs() > 5*time.Second {
		c.t.Errorf("health was last proved at %v, now it is %v", at, c.clock.now())
	}
}

// right checks what holds once the clock is right again.
func (c *clockCase) right() {
	c.t.Helper()
	c.drain()
	most := 600 + int(time.Since(c.began).Seconds()*10)
	if c.clock.bare && c.by > 0 {
		most += 600
	} else if c.clock.bare {
		most += 600 // setting it right is a jump forward
	}
	if c.taken > most {
		c.t.Errorf("the bucket gave %d, at most %d are right", c.taken, most)
	}
	got := 0
	for range 60 {
		time.Sleep(time.Second)
		got += c.drain()
	}
	if got < 599 || got > 600 {
		c.t.Errorf("in a minute the bucket gave %d", got)
	}
	c.get("/leads", "Authorization: Bearer "+c.token).is(401, "invalid_token")
	c.verifyKey(c.ended[1], "a").answers("expired")
	c.verifyKey(c.ends[1], "a").answers("valid")
	if c.by < 24*time.Hour || !c.clock.bare {
		if got := c.postKeyed().has("Idempotency-Replayed: true").text("id"); got != c.lead {
			c.t.Errorf("the key's answer is %s, was %s", got, c.lead)
		}
	}
	if c.by > time.Hour && c.clock.bare { // the lease had lapsed
		c.verifyKey(c.floating[1], "a").answers("device_released")
		c.activate(c.floating[1], "a").is(200)
	}
	c.activate(c.floating[1], "b").is(409, "seat_limit_reached")
	if got := c.verifyKey(c.floating[1], "a").answers("valid").text("device", "id"); got != c.device {
		c.t.Errorf("the device is %s, was %s", got, c.device)
	}
	if n := c.count(`SELECT count(*) FROM devices WHERE license_id = ? AND state = 'active'`, c.floating[0]); n != 1 {
		c.t.Errorf("%d seats are taken", n)
	}
}

// events checks that every end was written once, however often its moment came.
func (c *clockCase) events() {
	c.t.Helper()
	early := map[bool]int{true: 1}[c.clock.bare && c.by > 30*24*time.Hour]
	for _, check := range []struct {
		after time.Duration
		want  int
	}{{0, early}, {31 * 24 * time.Hour, 1}, {24 * time.Hour, 1}} {
		time.Sleep(check.after)
		c.advance()
		for id, want := range map[string]int{c.ends[0]: check.want, c.ended[0]: 1} {
			if n := c.count(`SELECT count(*) FROM events WHERE license_id = ? AND type = 'license.expired'`, id); n != want {
				c.t.Errorf("%d events of an end, want %d", n, want)
			}
		}
	}
}

func TestClock_thatIsSetAndSetRightUndoesNothing(t *testing.T) {
	for name, by := range jumps {
		for _, bare := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, monotonic %v", name, !bare), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					clock := &wallClock{bare: bare}
					s := newService(t, withoutAddressLimits, func(o *storeOptions, _ *serverOptions) { o.now = clock.now })
					c := &clockCase{service: s, clock: clock, by: by}
					c.prepare()
					ctx, stop := context.WithCancel(t.Context())
					var working sync.WaitGroup
					working.Go(func() { s.server.runChores(ctx) })
					time.Sleep(2 * time.Second)
					c.drain()
					clock.set(by)
					c.wrong()
					time.Sleep(2 * sweepInterval) // what is swept is swept now
					clock.set(0)
					time.Sleep(2 * time.Second)
					c.right()
					stop()
					working.Wait()
					c.events()
					if noticed := strings.Count(s.log.String(), "the clock was set"); noticed != map[bool]int{false: 2}[bare] {
						t.Errorf("noticed %d times: %s", noticed, s.log)
					}
				})
			})
		}
	}
}

func TestClock_thatStaysForwardIsBelievedAfterAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &wallClock{}
		s := newService(t, func(o *storeOptions, _ *serverOptions) { o.now = clock.now })
		id, key := s.addLicense(license{Kind: kindFloating, MaxDevices: ptr(1), LeaseHours: 2})
		s.activate(key, "a").is(200)
		_, wanted := s.addLicense(license{Kind: kindFloating, MaxDevices: ptr(1), LeaseHours: 2})
		s.activate(wanted, "a").is(200)
		ctx, stop := context.WithCancel(t.Context())
		var working sync.WaitGroup
		working.Go(func() { s.server.runChores(ctx) })
		time.Sleep(2 * time.Second)
		clock.set(24 * time.Hour)
		time.Sleep(clockTrustDelay - time.Minute)
		if got := s.licenseEvents(id); slices.Contains(got, "device.released time") {
			t.Errorf("released before the clock is believed: %q", got)
		}
		s.activate(wanted, "b").is(200) // a device that asks need not wait
		time.Sleep(2 * time.Minute)
		if got := s.licenseEvents(id); !slices.Contains(got, "device.released time") {
			t.Errorf("not released after an hour: %q", got)
		}
		stop()
		working.Wait()
	})
}

// advance lets time do its work, as the service does every second.
func (s *service) advance() {
	s.t.Helper()
	s.check(s.server.runTransitions(s.t.Context()))
}

func TestSweep_removesWhatHasServedItsTime(t *testing.T) {
	s := newService(t)
	hash := func(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }
	s.change(func(t *tx) error {
		old := t.at(-25 * time.Hour)
		return errors.Join(
			old.storeAnswer(hash(1), storedAnswer{hash(1), []byte("x")}), t.storeAnswer(hash(2), storedAnswer{hash(2), []byte("x")}))
	})
	widget := s.addWidget(s.account)
	s.change(func(t *tx) error {
		item := []itemCount{{Item: "Soup", Clicks: 1}}
		t.at(-48*time.Hour).addCounts(widget, counts{Clicks: 1}, item)
		t.addCounts(widget, counts{Clicks: 1}, item)
		return nil
	})
	s.change((*tx).sweep)
	if answers, names, items := s.count(`SELECT count(*) FROM idempotency`), s.count(`SELECT count(*) FROM item_names`), s.count(`SELECT count(*) FROM item_counts`); answers != 1 || names != 1 || items != 2 {
		t.Errorf("left: %d answers, %d names, %d counts; want 1, 1, 2", answers, names, items)
	}
}

func TestSweep_isNotHeldUpByRowsThatAShellLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		end := newStamp(time.Now().Add(time.Hour))
		var ids []string
		for range 4 {
			id, key := s.addLicense(license{Kind: kindFloating, LeaseHours: 1, ExpiresAt: end, GraceDays: 1})
			s.activate(key, "a").is(200)
			ids = append(ids, id)
		}
		raw(t, s.store.path, `PRAGMA foreign_keys = 0;
			DELETE FROM licenses WHERE id = '`+ids[0]+`';
			UPDATE licenses SET account_id = '`+newID("acct", time.Now())+`' WHERE id = '`+ids[1]+`';
			UPDATE licenses SET entitlements = '[1, 2]' WHERE id = '`+ids[2]+`'`)
		time.Sleep(50 * time.Hour)
		s.advance()
		if n := s.count(`SELECT count(*) FROM devices WHERE state = 'released' AND license_id IN (?, ?)`, ids[2], ids[3]); n != 2 {
			t.Errorf("%d lapsed seats were given back", n)
		}
		for _, id := range ids[2:] {
			if got := s.eventTypes(id); !strings.HasSuffix(got, "device.released license.grace_started license.expired") {
				t.Errorf("%s: %s", id, got)
			}
		}
		if due, err := s.store.transitionsDue(newStamp(time.Now())); due || err != nil {
			t.Errorf("there is still work: %v %v", due, err)
		}
	})
}
