package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// startSending runs the worker until the test's end, or until stop is called. tick is for tests that
// last for days.
func (s *service) startSending(tick ...time.Duration) (stop func()) {
	s.t.Helper()
	w := webhookWorkerOf(s.server)
	if len(tick) > 0 {
		w.tick = tick[0]
	}
	return s.beside(w.run)
}

// subscribe adds an enabled webhook of an account, as an operator with the sqlite3 shell would.
func (s *service) subscribe(account, url string, types ...eventType) (id string) {
	s.t.Helper()
	id = newID("whe", s.store.now())
	names, _ := json.Marshal(types)
	s.sql(`INSERT INTO webhooks (id, account_id, url, types, made_by, created_at, updated_at)
		VALUES (?, ?, ?, ?, 'command', ?5, ?5)`, id, account, url, string(names), "2026-01-01T00:00:00Z")
	s.sql(`UPDATE webhooks SET state = 'enabled' WHERE id = ?`, id)
	return id
}

// subscribeAll adds a webhook for each address, to the account that owner names for it, in one go, and
// returns the accounts.
func (s *service) subscribeAll(urls []string, owner func(i int) string, types ...eventType) {
	s.t.Helper()
	names, _ := json.Marshal(types)
	s.change(func(t *tx) error {
		var errs []error
		for i, url := range urls {
			_, err := t.try(`INSERT INTO webhooks (id, account_id, url, types, made_by, created_at, updated_at)
				VALUES (?, ?, ?, ?, 'command', ?, ?)`, t.newID("whe"), owner(i), url, string(names), t.now, t.now)
			errs = append(errs, err)
		}
		_, err := t.try(`UPDATE webhooks SET state = 'enabled' WHERE state <> 'enabled'`)
		return errors.Join(append(errs, err)...)
	})
}

// addAccounts opens accounts in one go.
func (s *service) addAccounts(n int) (ids []string) {
	s.t.Helper()
	s.change(func(t *tx) error {
		for i := range n {
			id := t.addAccount(fmt.Sprint("account ", i), false)
			ids = append(ids, id)
		}
		return nil
	})
	return ids
}

// announceToAll writes n events of each account in one go.
func (s *service) announceToAll(accounts []string, kind eventType, n int) {
	s.t.Helper()
	s.change(func(t *tx) error {
		for range n {
			for _, account := range accounts {
				e := event{Type: kind, AccountID: account, SubjectID: account, Actor: actorSite}
				t.addEvent(e)
			}
		}
		return nil
	})
}

// eventIDs returns the ids of all events of a type.
func (s *service) eventIDs(kind eventType) (ids []string) {
	s.t.Helper()
	s.check(s.store.each(`SELECT id FROM events WHERE type = ?`, []any{kind},
		func(scan func(...any) error) error {
			ids = append(ids, "")
			return scan(&ids[len(ids)-1])
		}))
	return ids
}

// announce writes an event of an account and returns its id.
func (s *service) announce(account string, kind eventType) (id string) {
	s.t.Helper()
	s.announceToAll([]string{account}, kind, 1)
	s.check(s.store.one(`SELECT id FROM events WHERE type = ? ORDER BY seq DESC LIMIT 1`, []any{kind}, &id))
	return id
}

// A message is what a receiver got.
type message struct {
	id, path, body string
	header         http.Header
	at             time.Time
}

// A receiver gets webhooks over connections in memory, so that it may be part of a bubble. answer
// decides about each, by default with 204.
type receiver struct {
	t      testing.TB
	mu     sync.Mutex
	got    []message
	open   int // being answered
	most   int // of these at once
	answer func(w http.ResponseWriter, m message)
	conns  chan net.Conn
}

// url is the address of the receiver with a path.
func (r *receiver) url(path string) string { return "http://127.0.0.1:9" + path }

// receive makes a receiver of everything that the service sends.
func (s *service) receive() *receiver {
	r := &receiver{t: s.t, conns: make(chan net.Conn)}
	s.server.outbound.plain.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		here, there := net.Pipe()
		select {
		case r.conns <- there:
			return here, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	web := &http.Server{Handler: r}
	go web.Serve(r)
	s.t.Cleanup(func() {
		web.Close()
		time.Sleep(2 * time.Hour) // in the bubble: until every handler has ended
	})
	return r
}

func (r *receiver) Accept() (net.Conn, error) {
	conn, ok := <-r.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (r *receiver) Close() error   { defer func() { recover() }(); close(r.conns); return nil }
func (r *receiver) Addr() net.Addr { return &net.TCPAddr{} }

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		r.t.Errorf("a webhook's body: %v", err)
	}
	m := message{q.Header.Get("webhook-id"), q.URL.Path, string(body), q.Header, time.Now()}
	r.mu.Lock()
	r.got = append(r.got, m)
	r.open++
	r.most = max(r.most, r.open)
	answer := r.answer
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.open--
	}()
	if answer == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	answer(w, m)
}

// setAnswer changes how the receiver answers.
func (r *receiver) setAnswer(answer func(http.ResponseWriter, message)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

// status has the receiver answer with a status. header are lines "Name: value".
func (r *receiver) status(code int, header ...string) {
	must(r.t, setHeaders(http.Header{}, header))
	r.setAnswer(func(w http.ResponseWriter, _ message) {
		setHeaders(w.Header(), header)
		http.Error(w, "no, thank you", code)
	})
}

// letPass lets time pass in a bubble, and then everything come to rest.
func letPass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// came lets everything come to rest, and returns what came since the last call of take.
func (r *receiver) came() []message {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got
}

// atOnce returns how many were being answered at once, at most, since the last call.
func (r *receiver) atOnce() (most int) {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	most, r.most = r.most, 0
	return most
}

// take is came, and forgets it.
func (r *receiver) take() []message {
	got := r.came()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = nil
	return got
}

// gets checks the ids of what came since the last take, in any order.
func (r *receiver) gets(want ...string) {
	r.t.Helper()
	var got []string
	for _, m := range r.take() {
		got = append(got, m.id)
	}
	slices.Sort(got)
	if slices.Sort(want); !slices.Equal(got, want) {
		r.t.Errorf("%d events came, want %d: %v, want %v", len(got), len(want), got, want)
	}
}

// bubbleOfWebhooks is a service in a bubble, whose worker sends to a receiver in memory.
func bubbleOfWebhooks(t *testing.T, f func(s *service, r *receiver)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, admitLoopback)
		f(s, s.receive())
	})
}

// bubbleOfOneWebhook is bubbleOfWebhooks with an enabled webhook of the main account, which gets leads.
func bubbleOfOneWebhook(t *testing.T, f func(s *service, r *receiver, hook string)) {
	t.Helper()
	bubbleOfWebhooks(t, func(s *service, r *receiver) { f(s, r, s.subscribe(s.account, r.url("/"), eventLeadCreated)) })
}

func TestWebhook_getsWhatHappensSignedAndOnce(t *testing.T) {
	t.Parallel()
	bubbleOfWebhooks(t, func(s *service, r *receiver) {
		hook := s.subscribe(s.account, r.url("/in"), eventLeadCreated, eventLicenseCreated)
		defer s.startSending(time.Minute)()
		s.announce(s.account, eventWidgetCreated)              // which it does not name
		s.announce(s.addAccount("other"), eventLicenseCreated) // of somebody else
		began := time.Now()
		s.post("/widget/leads", `{"type":"demo","email":"a@example.com"}`).is(200)
		got := r.take()
		if len(got) != 1 {
			t.Fatalf("%d messages: %v", len(got), got)
		}
		var id, lead string
		s.check(s.store.one(`SELECT id, subject_id FROM events WHERE type = 'lead.created'`, nil, &id, &lead))
		want := fmt.Sprintf(`{"id":%q,"type":"lead.created","timestamp":%q,"data":{"account_id":%q,"lead_id":%q,`+
			`"subject_id":%q}}`, id, newStamp(began), s.account, lead, lead)
		m := got[0]
		if m.id != id || m.body != want || m.path != "/in" || m.header.Get("Content-Type") != "application/json" {
			t.Errorf("got %+v\nwant %s", m, want)
		}
		secret := webhookSecret(s.keys, hook, 1)
		if err := verifyWebhook(secret, m.header, []byte(m.body), time.Now()); err != nil {
			t.Error(err)
		}
		if strings.Contains(m.body, "@") {
			t.Error("the address of a lead is in a webhook")
		}
		time.Sleep(3 * time.Hour)
		r.gets()
		s.counts(1, `SELECT count(*) FROM deliveries WHERE webhook_id = ? AND status = 204 AND attempt = 1
			AND error IS NULL AND answer IS NULL AND next_at IS NULL AND event_id = ?`, hook, id)
	})
}

func TestWebhook_isTriedAgainAsTheContractSaysAndThenGivenUp(t *testing.T) {
	t.Parallel()
	bubbleOfOneWebhook(t, func(s *service, r *receiver, hook string) {
		stop := s.startSending(time.Second)
		r.status(500)
		id := s.announce(s.account, eventLeadCreated)
		time.Sleep(10 * time.Minute)
		stop()
		const tick = 5 * time.Minute
		defer s.startSending(tick)() // after a restart the schedule is the same
		time.Sleep(100 * time.Hour)
		got := r.take()
		delays := []time.Duration{5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
			10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour}
		if len(got) != len(delays)+1 {
			t.Fatalf("%d attempts, want %d", len(got), len(delays)+1)
		}
		for i, delay := range delays {
			if took := got[i+1].at.Sub(got[i].at); took < delay || took > delay+delay/10+2*tick {
				t.Errorf("attempt %d came %v after the one before, want %v", i+2, took, delay)
			}
			if got[i+1].id != id || got[i+1].body != got[0].body {
				t.Errorf("attempt %d: %+v, want the same event", i+2, got[i+1])
			}
			if got[i+1].header.Get("Webhook-Timestamp") == got[i].header.Get("Webhook-Timestamp") {
				t.Errorf("attempt %d has the time of the one before", i+2)
			}
		}
		s.counts(0, `SELECT count(*) FROM webhook_retries`)
		s.counts(10, `SELECT count(*) FROM deliveries WHERE webhook_id = ? AND status = 500 AND error IS NULL
			AND answer = 'no, thank you' || char(10) AND (next_at IS NULL) = (attempt = 10)`, hook)
		s.counts(1, `SELECT count(*) FROM webhooks WHERE state = 'enabled' AND failing_since = ?`, newStamp(got[0].at))
	})
}

func TestWebhook_isDisabledWhenEveryAttemptOfFiveDaysHasFailed(t *testing.T) {
	t.Parallel()
	bubbleOfOneWebhook(t, func(s *service, r *receiver, hook string) {
		stop := s.startSending(time.Hour)
		r.status(500)
		s.announce(s.account, eventLeadCreated)
		time.Sleep(5*24*time.Hour - 3*time.Minute)
		stop()
		defer s.startSending(time.Minute)()
		s.announce(s.account, eventLeadCreated) // its second attempt comes before five days, the third after
		letPass(2 * time.Minute)
		equal(t, "after less than five days", s.webhookRow(hook).State, webhookEnabled)
		letPass(15 * time.Minute)
		w := s.webhookRow(hook)
		equal(t, "after five days", string(w.State)+" "+string(valueOr(w.Reason, "")), "disabled failing")
		s.counts(1, `SELECT count(*) FROM events WHERE type = 'webhook.disabled' AND actor = 'receiver'
			AND data = '{"reason":"failing"}'`)
		r.take()
		s.announce(s.account, eventLeadCreated)
		time.Sleep(time.Hour)
		r.gets()
	})
}

func TestWebhook_isNotDisabledSinceTheClockWasSetForward(t *testing.T) {
	t.Parallel()
	bubbleOfOneWebhook(t, func(s *service, r *receiver, hook string) {
		s.sql(`UPDATE webhooks SET failing_since = ?`, newStamp(time.Now().Add(-6*24*time.Hour)))
		synchronised := s.startsAfter(2 * time.Hour)
		defer s.startSending()()
		r.status(500)
		s.announce(s.account, eventLeadCreated)
		synctest.Wait()
		equal(t, "while the clock is doubted", s.webhookRow(hook).State, webhookEnabled)
		synchronised.Store(true)
		letPass(10 * time.Second)
		equal(t, "once the clock is believed", s.webhookRow(hook).State, webhookDisabled)
	})
}

func TestWebhook_retryAfterIsHonouredUpToADay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		header string
		after  time.Duration // when the next attempt comes
	}{
		{503, "3600", time.Hour},
		{429, "90", 90 * time.Second},
		{500, "600", 10 * time.Minute},
		{503, "1", 5 * time.Second},      // the delay is longer
		{503, "9000000", 24 * time.Hour}, // not longer than a day
		{503, "Sat, 01 Jan 2000 00:20:00 GMT", 20 * time.Minute},
		{503, "Saturday, 01-Jan-00 00:20:00 GMT", 20 * time.Minute},
		{503, "Fri, 31 Dec 1999 00:00:00 GMT", 5 * time.Second},
		{503, "tomorrow", 5 * time.Second}, // no such thing
		{503, "-1", 5 * time.Second},
		{503, "1, 3600", 5 * time.Second},
	} {
		t.Run(fmt.Sprint(c.status, " ", c.header), func(t *testing.T) {
			t.Parallel()
			bubbleOfOneWebhook(t, func(s *service, r *receiver, _ string) {
				tick := max(time.Second, c.after/60)
				defer s.startSending(tick)()
				r.status(c.status, "Retry-After: "+c.header)
				began := time.Now()
				s.announce(s.account, eventLeadCreated)
				synctest.Wait()
				time.Sleep(c.after - time.Second)
				if got := r.take(); len(got) != 1 {
					t.Fatalf("%d attempts before %v", len(got), c.after)
				}
				time.Sleep(c.after/10 + 3*tick)
				if got := r.take(); len(got) != 1 {
					t.Fatalf("%d attempts %v after the first", len(got), time.Since(began))
				}
			})
		})
	}
}

// The status of an answer counts, whatever becomes of its body.
func TestWebhook_answerWhoseBodyCannotBeReadIsJudgedByItsStatus(t *testing.T) {
	t.Parallel()
	for head, state := range map[string]string{
		"200 OK": webhookEnabled, "410 Gone": webhookDisabled, "503 Busy\r\nRetry-After: 7200": webhookEnabled,
	} {
		for _, body := range []string{"Content-Length: 9\r\n\r\nshort", "Content-Length: 9\r\n\r\nwait",
			"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n", "Transfer-Encoding: chunked\r\n\r\n"} {
			t.Run(head[:3]+" "+body, func(t *testing.T) {
				t.Parallel()
				bubbleOfOneWebhook(t, func(s *service, r *receiver, hook string) {
					r.setAnswer(func(w http.ResponseWriter, _ message) {
						conn, _, err := w.(http.Hijacker).Hijack()
						s.check(err)
						fmt.Fprint(conn, "HTTP/1.1 ", head, "\r\n", body)
						if strings.HasSuffix(body, "wait") {
							time.Sleep(time.Hour)
						}
						conn.Close()
					})
					defer s.startSending()()
					r.gets(s.announce(s.account, eventLeadCreated))
					letPass(2 * time.Minute) // a retry would have come after some five seconds
					r.gets()
					s.counts(1, `SELECT count(*) FROM webhooks WHERE id = ? AND state = ?`, hook, state)
					s.counts(1, `SELECT count(*) FROM deliveries WHERE status = ? AND error IS NULL`, head[:3])
				})
			})
		}
	}
}

// A webhook that asks for a pause gets nothing else meanwhile, and then one at a time.
func TestWebhook_thatAsksForAPauseGetsOneAtATimeAfterIt(t *testing.T) {
	t.Parallel()
	bubbleOfOneWebhook(t, func(s *service, r *receiver, _ string) {
		defer s.startSending()()
		r.status(429, "Retry-After: 60")
		s.announce(s.account, eventLeadCreated)
		synctest.Wait()
		s.announceToAll([]string{s.account}, eventLeadCreated, 10)
		if got := r.take(); len(got) != 1 {
			t.Fatalf("%d attempts in the pause", len(got))
		}
		var number atomic.Int64
		r.setAnswer(func(w http.ResponseWriter, _ message) {
			time.Sleep(time.Second)
			if number.Add(1) <= 3 {
				w.WriteHeader(http.StatusBadGateway)
			}
		})
		r.atOnce()
		time.Sleep(63500 * time.Millisecond) // three have failed by then
		if most := r.atOnce(); most != 1 || number.Load() < 2 {
			t.Errorf("after the pause %d came, %d at once", number.Load(), most)
		}
		letPass(time.Minute)
		if most := r.atOnce(); most < 2 || most > maxSendingWebhook {
			t.Errorf("%d at once after it answered, want up to %d", most, maxSendingWebhook)
		}
	})
}

// Failing webhooks together hold at most half of the places, and so does an account.
func TestWebhook_placesAreSharedOut(t *testing.T) {
	t.Parallel()
	const hanging, half = 80, maxSending / 2
	for _, c := range []struct {
		name    string
		failing bool
		slow    bool // an attempt to each is under way for some seconds
		apart   bool // each webhook is another account's
		apps    int  // of one owner have made them
		want    int
	}{
		{"failing ones of many accounts", true, false, true, 0, maxTroubled},
		{"slow ones of many accounts", false, true, true, 0, maxTroubled},
		{"one account's", false, false, false, 0, half},
		{"one application's in many accounts", false, false, true, 1, half},
		{"many applications' of one owner in many accounts", false, false, true, maxApps, half},
		{"healthy ones of many accounts", false, false, true, 0, maxSending - keptPlaces - 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bubbleOfWebhooks(t, func(s *service, r *receiver) {
				r.setAnswer(func(http.ResponseWriter, message) { time.Sleep(14 * time.Second) })
				accounts := []string{s.account}
				if c.apart {
					accounts = s.addAccounts(hanging)
				}
				urls := slices.Repeat([]string{r.url("/")}, hanging)
				s.subscribeAll(urls, func(i int) string { return accounts[i%len(accounts)] }, eventLeadCreated)
				s.giveToApps(c.apps)
				first := maxSendingWebhook
				if c.slow {
					first = 1
				}
				s.announceToAll(accounts, eventLeadCreated, first)
				if c.failing {
					s.sql(`UPDATE webhooks SET failing_since = '2000-01-01T00:00:00Z'`)
				}
				stop := s.startSending()
				synctest.Wait()
				if c.slow {
					time.Sleep(slowAfter)
					s.announceToAll(accounts, eventLeadCreated, maxSendingWebhook-first)
				}
				if got := len(r.take()); got != c.want {
					t.Errorf("%d at once, want %d", got, c.want)
				}
				go stop()
				time.Sleep(time.Minute)
			})
		})
	}
}

// giveToApps has so many applications of one owner have made all webhooks.
func (s *service) giveToApps(n int) {
	s.t.Helper()
	if n == 0 {
		return
	}
	owner := s.addAccounts(1)[0]
	for i := range n {
		p, _ := s.registerApp(everything, func(p *app) { p.AccountID, p.OwnScope = owner, &p.Scope })
		s.sql(`INSERT INTO app_webhooks (webhook_id, app_id)
			SELECT id, ?1 FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM webhooks) WHERE n % ?2 = ?3`,
			p.ID, n, i)
	}
}

// What is under way when the service stops is waited for; what does not end is sent again.
func TestWebhook_underWayAtAStopIsSentAgain(t *testing.T) {
	t.Parallel()
	bubbleOfOneWebhook(t, func(s *service, r *receiver, _ string) {
		patience := time.Second
		r.setAnswer(func(w http.ResponseWriter, _ message) { time.Sleep(patience) })
		stop := s.startSending()
		quick := s.announce(s.account, eventLeadCreated)
		synctest.Wait()
		began := time.Now()
		stop()
		if took := time.Since(began); took != time.Second {
			t.Errorf("the stop took %v", took)
		}
		patience = time.Hour
		stop = s.startSending()
		slow := s.announce(s.account, eventLeadCreated)
		synctest.Wait()
		patience = 0
		passed := s.announce(s.account, eventLeadCreated) // so it is sent again, too
		letPass(time.Second)
		began = time.Now()
		stop()
		if took := time.Since(began); took != webhookStop {
			t.Errorf("the stop with one that hangs took %v", took)
		}
		defer s.startSending(time.Minute)()
		time.Sleep(2 * time.Hour) // also so that what hung ends
		r.gets(quick, slow, passed, slow, passed)
		s.counts(4, `SELECT count(*) FROM deliveries WHERE attempt = 1`)
	})
}

// Against an operator with a second service over the same file that would have everything sent twice: one process
// holds the lock for sending; the other waits.
func TestWebhook_ofTwoServicesOverOneFileOnlyOneSends(t *testing.T) {
	t.Parallel()
	bubbleOfOneWebhook(t, func(s *service, r *receiver, _ string) {
		stop := s.startSending()
		synctest.Wait()
		other := s.another()
		other.server.outbound.plain.DialContext = s.server.outbound.plain.DialContext
		stopOther := other.startSending()
		first := s.announce(s.account, eventLeadCreated)
		r.gets(first)
		if !strings.Contains(s.log.String(), "another service over this database sends its webhooks") {
			t.Error("the second does not say why it does not send")
		}
		stop()
		s.closeStore()
		s.store = other.store // which the test closes at its end
		second := other.announce(s.account, eventLeadCreated)
		time.Sleep(2 * time.Second)
		r.gets(second)
		stopOther()
	})
}

func TestWebhook_secretIsRotatedAndTheOneBeforeSignsForADay(t *testing.T) {
	t.Parallel()
	bubbleOfOneWebhook(t, func(s *service, r *receiver, hook string) {
		defer s.startSending(time.Minute)()
		rotate := func(number int) {
			s.post("/webhooks/"+hook+"/rotate-secret", "", s.hookAuth(scopeLeads)).is(200).members(
				"secret", formatWebhookSecret(webhookSecret(s.keys, hook, number)),
				"previous_secret_until", newStamp(time.Now()).after(days(1)), "state", "enabled")
			synctest.Wait() // until the worker has read it
		}
		signed := func(when string, want ...int) {
			t.Helper()
			s.announce(s.account, eventLeadCreated)
			m, got := r.take()[0], []int(nil)
			for n := range 5 {
				if verifyWebhook(webhookSecret(s.keys, hook, n), m.header, []byte(m.body), time.Now()) == nil {
					got = append(got, n)
				}
			}
			equal(t, when, got, want)
		}
		signed("at first", 1)
		rotate(2)
		time.Sleep(days(1) - time.Second)
		signed("for a day", 1, 2)
		time.Sleep(time.Second)
		signed("after it", 2)
		rotate(3)
		rotate(4)
		signed("after two at once", 3, 4)
	})
}

// Against a tenant with the address of somebody else who would flood it with the service's requests: events are
// sent only to an address that has answered a signed test with 2xx, at most 4 at once; one test at a time, and no
// more than the account may make calls.
func TestWebhook_testOfAnAddressThatWasChangedMeanwhileDoesNotEnableIt(t *testing.T) {
	t.Parallel()
	bubbleOfOneWebhook(t, func(s *service, r *receiver, hook string) {
		s.sql(`UPDATE webhooks SET state = 'pending'`)
		test := s.announce(s.account, eventWebhookTest)
		s.sql(`UPDATE webhooks SET test_seq = (SELECT max(seq) FROM events)`)
		r.setAnswer(func(http.ResponseWriter, message) { time.Sleep(time.Second) })
		defer s.startSending(time.Minute)()
		synctest.Wait()
		s.sql(`UPDATE webhooks SET test_seq = NULL`) // and the test of that one has failed
		letPass(2 * time.Second)
		equal(t, "state", s.webhookRow(hook).State, webhookPending)
		s.announce(s.account, eventLeadCreated)
		letPass(time.Hour)
		r.gets(test)
	})
}

func TestWebhook_afterTheClockWasSetBackRetriesDoNotWaitForYears(t *testing.T) {
	t.Parallel()
	bubbleOfOneWebhook(t, func(s *service, r *receiver, _ string) {
		id := s.announce(s.account, eventLeadCreated)
		s.sql(`UPDATE webhook_queues SET sent_seq = (SELECT max(seq) FROM events)`)
		s.sql(`INSERT INTO webhook_retries SELECT id, sent_seq, 3, '2031-01-01T00:00:00Z' FROM webhook_queues`)
		s.sql(`UPDATE webhooks SET failing_since = '2031-01-01T00:00:00Z'`)
		r.status(500)
		defer s.startSending(time.Minute)()
		r.gets(id)
		letPass(100 * time.Millisecond)
		s.counts(1, `SELECT count(*) FROM webhooks WHERE failing_since = ?`, newStamp(time.Now()))
		time.Sleep(3 * time.Hour)
		r.gets(id)
	})
}

// An operator edits rows with the sqlite3 shell, while the worker runs.
func TestWebhook_followsWhatAnOperatorChanges(t *testing.T) {
	t.Parallel()
	bubbleOfWebhooks(t, func(s *service, r *receiver) {
		hook := s.subscribe(s.account, r.url("/a"), eventLeadCreated)
		defer s.startSending()()
		synctest.Wait()
		edit := func(query string) {
			t.Helper()
			s.foreign(query)
			letPass(1500 * time.Millisecond)
		}
		send := func(want string, kinds ...eventType) {
			t.Helper()
			for _, kind := range kinds {
				s.announce(s.account, kind)
			}
			synctest.Wait()
			var got []string
			for _, m := range r.take() {
				var body struct{ Type string }
				s.check(json.Unmarshal([]byte(m.body), &body))
				got = append(got, m.path+" "+body.Type)
			}
			slices.Sort(got)
			if strings.Join(got, ", ") != want {
				t.Errorf("it got %q, want %q", got, want)
			}
		}
		send("/a lead.created", eventWidgetCreated, eventLeadCreated)
		edit(`UPDATE webhooks SET url = '` + r.url("/b") + `'`)
		send("/b lead.created", eventLeadCreated)
		edit(`UPDATE webhooks SET types = '["lead.created",7,null,"widget.created"]'`)
		send("/b lead.created, /b widget.created", eventWidgetCreated, eventLeadCreated)
		edit(`UPDATE webhooks SET state = 'disabled'`)
		send("", eventWidgetCreated, eventLeadCreated)
		edit(`UPDATE webhooks SET state = 'enabled', types = '["widget.created"]'`)
		send("/b widget.created", eventWidgetCreated, eventLeadCreated)
		edit(`UPDATE webhooks SET url = 'http://10.1.2.3/'`)
		send("", eventWidgetCreated)
		letPass(time.Second)
		s.counts(1, `SELECT count(*) FROM deliveries WHERE error = 'address_refused' AND webhook_id = ?`, hook)
		edit(`UPDATE webhooks SET url = '` + r.url("/c") + `'`)
		edit(`UPDATE accounts SET closed_at = '2000-01-01T00:00:00Z'`)
		send("", eventWidgetCreated)
		edit(`UPDATE accounts SET closed_at = NULL`)
		send("/c widget.created", eventWidgetCreated) // and not the one from while it was closed
		edit(`DELETE FROM webhooks`)
		send("", eventWidgetCreated)
	})
}

func TestWebhook_logKeepsThirtyDaysAndAThousandOfEach(t *testing.T) {
	t.Parallel()
	bubbleOfWebhooks(t, func(s *service, r *receiver) {
		hooks := []string{s.subscribe(s.account, r.url("/"), eventLeadCreated),
			s.subscribe(s.account, r.url("/"), eventLeadCreated), "whe_removed"}
		fill := func(hook string, n int, age time.Duration) {
			at := formatID("whd", time.Now().Add(-age), [10]byte{})[:14]
			s.sql(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
				INSERT INTO deliveries (webhook_id, id, event_seq, event_id, type, attempt, at, milliseconds)
				SELECT ?2, ?3 || printf('%016d', i), i, 'evt_1', 'lead.created', 1, ?4, 1 FROM n`,
				n, hook, at, newStamp(time.Now().Add(-age)))
		}
		fill(hooks[0], 2500, time.Hour)
		fill(hooks[1], 10, time.Hour)
		fill(hooks[1], 20, 31*24*time.Hour)
		fill(hooks[2], 1500, time.Hour)
		s.sql(`INSERT INTO webhook_retries SELECT 77, i.value, 1, '2000-01-01T00:00:00Z' FROM json_each('[1,2,3]') i`)
		s.sql(`INSERT INTO webhook_retries SELECT id, 5, 1, '2000-01-01T00:00:00Z' FROM webhook_queues`)
		for _, c := range s.server.chores {
			if c.fault == faultWebhookSweep {
				s.check(c.run(s.t.Context()))
				equal(t, "it waits while the clock is doubted", c.timeDriven, true)
			}
		}
		for i, want := range []int{1000, 10, 0} {
			s.counts(want, `SELECT count(*) FROM deliveries WHERE webhook_id = ?`, hooks[i])
		}
		s.counts(0, `SELECT count(*) FROM deliveries WHERE webhook_id = ? AND event_seq <= 1500`, hooks[0])
		s.counts(2, `SELECT count(*) FROM webhook_retries`)
	})
}

// foreign changes rows as another process does, so that the worker does not notice at once.
func (s *service) foreign(query string, args ...any) {
	s.t.Helper()
	other, err := openStore(s.store.path, storeOptions{noCheckpoints: true})
	s.check(err)
	s.check(other.update(s.t.Context(), func(t *tx) error { _, err := t.try(query, args...); return err }))
	s.check(other.close())
}

// rename gives a table another name, without which the worker can't work; it does not read the webhooks anew for that.
func (s *service) rename(from, to string) {
	s.t.Helper()
	s.change(func(t *tx) error {
		return t.run(`ALTER TABLE ` + from + ` RENAME TO ` + to)
	})
}

func TestWebhook_goesOnOnceWhatItGetsCanBeReadAgain(t *testing.T) {
	t.Parallel()
	bubbleOfOneWebhook(t, func(s *service, r *receiver, _ string) {
		defer s.startSending()()
		s.rename("webhook_retries", "gone")
		id := s.announce(s.account, eventLeadCreated)
		letPass(10 * recordRetry)
		r.gets()
		lines := len(s.logLines(faultWebhooksRead))
		failIf(t, lines < 1 || lines > 12, "%d lines of the log in ten seconds", lines)
		s.rename("gone", "webhook_retries")
		letPass(2 * recordRetry)
		r.gets(id)
	})
}

// What is asked for while events are sent again is sent again, too, and nothing is because something else happens.
func TestWebhook_replaysAsItWasAskedForLast(t *testing.T) {
	t.Parallel()
	bubbleOfOneWebhook(t, func(s *service, r *receiver, hook string) {
		defer s.startSending()()
		s.announceToAll([]string{s.account}, eventLeadCreated, maxSendingWebhook-1)
		letPass(time.Second)
		want := s.eventIDs(eventLeadCreated)
		r.gets(slices.Clone(want)...)
		r.setAnswer(func(_ http.ResponseWriter, m message) {
			if slices.Contains(want, m.id) {
				time.Sleep(10 * time.Second)
			}
		})
		auth := s.hookAuth(scopeLeads)
		replay := func() {
			s.post("/webhooks/"+hook+"/replay", seatBody("since", newStamp(time.Now().Add(-time.Hour))), auth).is(200)
			letPass(time.Second / 2)
		}
		replay()
		s.foreign(`UPDATE webhooks SET description = 'read anew'`)
		letPass(time.Minute)
		r.gets(slices.Clone(want)...)
		replay()
		late := s.announce(s.account, eventLeadCreated) // for which there is a place
		letPass(time.Second)
		replay()
		letPass(time.Minute)
		got := map[string]int{}
		for _, m := range r.take() {
			got[m.id]++
		}
		equal(t, "how often the last event came", got[late], 2)
		equal(t, "events that came", len(got), len(want)+1)
	})
}

// The disk fills up after events were written: what comes of sending them can't be recorded.
func TestWebhook_onAFullDiskEachEventIsSentOnceThereIsRoom(t *testing.T) {
	t.Parallel()
	bubbleOfOneWebhook(t, func(s *service, r *receiver, _ string) {
		r.setAnswer(func(w http.ResponseWriter, _ message) { http.Error(w, strings.Repeat("no ", 900), 500) })
		s.announceToAll([]string{s.account}, eventLeadCreated, 2*maxUnrecorded)
		want := s.eventIDs(eventLeadCreated)
		s.limitPages(0)
		defer s.startSending(10 * time.Second)()
		letPass(30 * time.Second)
		if !strings.Contains(s.log.String(), faultWebhookResult) {
			t.Error("the log does not say that nothing can be recorded")
		}
		if got := len(r.take()); got > maxUnrecorded+maxSendingWebhook {
			t.Errorf("%d were sent while nothing could be recorded", got)
		}
		s.limitPages(-1)
		r.status(200)
		letPass(time.Hour)
		for _, id := range want {
			if n := s.count(`SELECT count(*) FROM deliveries WHERE event_id = ? AND status = 200`, id); n != 1 {
				t.Errorf("%d deliveries of %s are in the log as accepted", n, id)
			}
		}
	})
}

// What a receiver answers is shown to people: by a command, and by views that are read in a terminal.
func TestWebhook_answerIsKeptWithoutWhatATerminalActsOn(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		"a\tb\r\nc":                    "a\tb\nc",
		"\x1b[31mred\x07\x00\x7f":      "[31mred",
		"\u009b31mred\u0085\u0090x":    "31mredx",
		"\xff\xc3 half a letter: \xc3": " half a letter: ",
	} {
		if got := excerpt([]byte(answer), maxDeliveryAnswer); got != want {
			t.Errorf("of %q %q is kept, want %q", answer, got, want)
		}
	}
	got := excerpt([]byte(strings.Repeat("é", 3000)), maxDeliveryAnswer)
	if got != strings.Repeat("é", maxDeliveryAnswer/2) {
		t.Errorf("of a long answer %d bytes are kept", len(got))
	}
}

// One event that can't be read holds up no other webhook, and is told in the log.
func TestWebhook_eventThatCannotBeReadHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	bubbleOfWebhooks(t, func(s *service, r *receiver) {
		other := s.addAccount("other")
		s.subscribe(s.account, r.url("/damaged"), eventLeadCreated)
		s.subscribe(other, r.url("/other"), eventLeadCreated)
		s.announce(s.account, eventLeadCreated)
		s.change(func(t *tx) error { // as a damaged page may look
			if err := t.run(`PRAGMA ignore_check_constraints = ON`); err != nil {
				return err
			}
			_, err := t.try(`UPDATE events SET at = 'never' WHERE type = 'lead.created'`)
			return errors.Join(err, t.run(`PRAGMA ignore_check_constraints = OFF`))
		})
		defer s.startSending(time.Second)()
		for range size(20, 100) {
			began := time.Now()
			s.announce(other, eventLeadCreated)
			if got := r.take(); len(got) != 1 || got[0].at != began {
				t.Fatalf("%d came, want the other webhook's at once", len(got))
			}
			time.Sleep(time.Second / 2)
		}
		if !strings.Contains(s.log.String(), faultWebhooksRead) {
			t.Error("the log does not say that an event can't be read")
		}
	})
}
