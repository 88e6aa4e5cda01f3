package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Against anybody who would fill the service's memory: an eighth is the most that anybody holds, half the most of all
// addresses, and of all applications. Accounts are those of tokens.
func TestMemory_isNobodysAlone(t *testing.T) {
	t.Parallel()
	var in counter[client]
	var all []*heldMemory
	hold := func(kind, name string, mib int64, want error) *heldMemory {
		t.Helper()
		h := newHeldMemory(&in, client{kind, name})
		if err := h.set(mib << 20); err != want {
			t.Errorf("%s %q gets %d MiB: %v, want %v", kind, name, mib, err, want)
		}
		all = append(all, &h)
		return &h
	}
	grows := hold(clientIsAccount, "acct_1", 5, nil)
	hold(clientIsAccount, "acct_1", 4, errHeld)
	equal(t, "more than an eighth, beside 0", []any{grows.set(9 << 20), grows.bytes >> 20}, []any{nil, int64(8)})
	hold(clientIsAccount, "acct_1", 1, errHeld)
	for _, kind := range []string{clientIsAddress, clientIsApp} {
		for _, name := range []string{"a", "b", "c"} {
			hold(kind, name, 8, nil)
		}
		hold(kind, "d", 7, nil)
		hold(kind, "e", 2, errHeld)
		if kind == clientIsAddress {
			hold(clientIsAccount, "acct_2", 1, nil)
			all[len(all)-1].set(0)
			hold(kind, "e", 1, nil)
			grows.set(0)
		}
	}
	hold(clientIsAccount, "acct_3", 2, errHeld) // all is given away
	for _, h := range all {
		for range 2 { // giving back twice gives back once
			h.set(0)
		}
	}
	equal(t, "what is held at the end", len(in.counts), 0)
}

// A begun request has announced more of its body than it has sent.
type begun struct {
	rest   io.Closer
	answer <-chan int // its status
}

// begins sends the first bytes of a body of which some more are announced.
func (s *service) begins(method, path, sent string, announced int64, headers ...string) begun {
	r := httptest.NewRequestWithContext(s.t.Context(), method, "/v1"+path, nil)
	body, to := io.Pipe()
	r.Body, r.ContentLength = body, announced
	s.check(setHeaders(r.Header, append(headers, "Content-Type: application/json")))
	s.t.Cleanup(func() { to.Close() })
	status := make(chan int, 1)
	go func() {
		w := httptest.NewRecorder()
		s.server.ServeHTTP(w, r)
		body.Close()
		status <- w.Code
	}()
	go io.WriteString(to, sent) // fails where it is not read
	return begun{to, status}
}

// Against two accounts that announce bodies and send one byte of each: only what has arrived is held. Who sends as much
// as an account may hold is alone with that, and held at no more.
func TestMemory_isHeldForWhatHasArrived(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		const mapping = "/books/connections/con_00000000000000000000000000/mapping"
		auth := func(account string) string { return s.auth(account, scopeBooks) }
		other, third := auth(s.addAccount("other")), auth(s.addAccount("third"))
		var all []begun
		for range 68 {
			all = append(all, s.begins("PUT", mapping, "{", 300, auth(s.account)),
				s.begins("PUT", mapping, "{", 300, other))
		}
		synctest.Wait()
		s.do("PUT", mapping, "{}", third).is(422)
		equal(t, "held", s.server.memory.counts[client{}], int64(136*firstRead))
		large := strings.Repeat(" ", 130<<10)
		for range 40 {
			all = append(all, s.begins("PUT", mapping, large, 256<<10, other))
		}
		synctest.Wait()
		s.do("PUT", mapping, large+large[:120<<10], other).is(503, "busy").has("Connection: close", "Retry-After: 1")
		s.do("PUT", mapping, "{}", third).is(422)
		statuses := map[int]int{}
		for _, b := range all {
			b.rest.Close()
			statuses[<-b.answer]++
		}
		failIf(t, statuses[400]+statuses[503] != 176 || statuses[503] < 9, "statuses %v", statuses)
		equal(t, "what is held at the end", len(s.server.memory.counts), 0)
	})
}

// answersLargely has a route answer with so many bytes, to whom it admits.
func (s *service) answersLargely(pattern string, bytes int) {
	i := slices.IndexFunc(s.server.routes, func(r route) bool { return r.pattern == pattern })
	s.server.routes[i].run = func(ctx context.Context, c *call) (any, error) {
		return &reply{status: http.StatusOK, body: make([]byte, bytes)}, s.server.finishReading(ctx, c)
	}
}

// A stuckWriter is the connection of somebody who does not read the answer before it is closed.
type stuckWriter struct {
	*httptest.ResponseRecorder
	closed chan struct{}
}

func (w stuckWriter) Write(b []byte) (int, error) { <-w.closed; return w.ResponseRecorder.Write(b) }

// readsNothing sends a request whose answer is read only once what is returned is closed.
func (s *service) readsNothing(method, path, body string, headers ...string) (closed chan struct{}) {
	stuck := stuckWriter{httptest.NewRecorder(), make(chan struct{})}
	r := httptest.NewRequestWithContext(s.t.Context(), method, "/v1"+path, strings.NewReader(body))
	s.check(setHeaders(r.Header, headers))
	go s.server.ServeHTTP(stuck, r)
	synctest.Wait()
	return stuck.closed
}

// Against a token that asks for large pages and reads none. What has changed something is answered all the same.
func TestMemory_isHeldForALargeAnswerUntilItIsWritten(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		s.damaged = true // the answers are no JSON
		s.answersLargely("GET /leads", 9<<20)
		s.answersLargely("GET /orders", 1<<20)
		s.answersLargely("GET /licenses", smallAnswer)
		s.answersLargely("POST /licenses/{id}/suspend", 1<<20)
		auth := s.auth(s.account, scopeLeads, scopeOrders, scopeLicenses, scopeIssuing)
		other := s.auth(s.addAccount("other"), scopeLeads)
		closed := s.readsNothing("GET", "/leads", "", auth)
		s.get("/leads", auth).is(503, "busy")
		s.get("/orders", auth).is(503, "busy").has("Content-Type: application/problem+json")
		equal(t, "bytes", len(s.post("/licenses/lic_1/suspend", "", auth).is(200).body), 1<<20)
		s.get("/licenses", auth).is(200)
		s.get("/leads", other).is(200)
		s.get("/openapi.json", auth).is(200)
		contains(t, s.log.String(), warnFull)
		lacks(t, s.log.String(), warnBusy)
		close(closed)
		synctest.Wait()
		s.get("/leads", auth).is(200)
		equal(t, "what is held at the end", len(s.server.memory.counts), 0)
	})
}

// Against a token that repeats a large order and does not read the answers.
func TestMemory_isHeldForARepeatedAnswer(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		line := `,{"name":"` + strings.Repeat("é", 135) + `","quantity":1,"unit_amount":9,"vat_rate":260}`
		order := orderBody("lines", "["+strings.Repeat(line, 190)[1:]+"]")
		headers := []string{s.seller(), "Idempotency-Key: a", "Content-Type: application/json"}
		made := s.post("/orders", order, headers...).is(200)
		closed := s.readsNothing("POST", "/orders", order, headers...)
		equal(t, "held", s.server.memory.counts[client{}], int64(len(made.body)))
		close(closed)
		synctest.Wait()
		equal(t, "what is held at the end", len(s.server.memory.counts), 0)
	})
}

// Against anybody who sends thousands of fields, each of which takes more memory than bytes, and for whom health would
// be the cheapest: a hundred, counted before they are parsed.
func TestMemory_isForAHundredFieldsAndParameters(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := s.auth(s.account, scopeLeads)
	s.get("/leads?limit=1"+strings.Repeat("&", 99), auth).is(200)
	s.get("/leads?limit=1"+strings.Repeat("&", 100), auth).is(422, "validation_failed")
	s.post("/oauth/token", "grant_type=x"+strings.Repeat("&", 100), formType).is(400)
	s.post("/oauth/token?"+strings.Repeat("&", 100), "grant_type=client_credentials", formType).is(400)
	s.get("/widget/health?" + strings.Repeat("&x=%zz", 3500)).is(200)
}

// makeLong replaces a table by a view of it that takes seconds to read, and has no row.
func (s *service) makeLong(table string) {
	s.t.Helper()
	s.change(func(t *tx) error {
		t.exec(`PRAGMA legacy_alter_table = ON`) // leaves the names in triggers and views alone
		t.exec(`ALTER TABLE ` + table + ` RENAME TO short_` + table)
		t.exec(`CREATE VIEW ` + table + ` AS WITH RECURSIVE n(i) AS
			(SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 4000000)
			SELECT short.* FROM n CROSS JOIN short_` + table + ` short WHERE n.i < 0`)
		return nil
	})
}

// reading reports how many questions read from the database just now.
func (s *service) reading() int {
	if running, _ := s.server.listSlots.counted(); running == 0 {
		return 0
	}
	return s.store.readers.Stats().InUse
}

// getWithin sends a request that is abandoned when ctx ends; its answer comes out of the channel.
func (s *service) getWithin(ctx context.Context, path string, headers ...string) <-chan answer {
	answers := make(chan answer, 1)
	r := httptest.NewRequestWithContext(ctx, "GET", "/v1"+path, nil)
	s.check(setHeaders(r.Header, headers))
	go func() {
		w := httptest.NewRecorder()
		s.server.ServeHTTP(w, r)
		answers <- answer{s.t, w.Code, w.Result().Header, w.Body.String()}
	}()
	return answers
}

// until waits for what becomes true soon.
func until(isTrue func() bool) {
	for !isTrue() {
		time.Sleep(100 * time.Microsecond)
	}
}

// counted returns how many questions run, and how many clients have one that runs or waits.
func (d *listSlots) counted() (running, askers int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.all), len(d.own)
}

// present returns how many questions run or wait.
func (d *listSlots) present() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, own := range d.own {
		n += own.questions
	}
	return n
}

func TestQuestion_isEveryRouteThatReadsAListOrARange(t *testing.T) {
	t.Parallel()
	lookups := []string{"GET /licenses/{id}", "GET /webhooks/{id}", "GET /orders/{id}", "GET /account",
		"GET /apps/{id}", "GET /grants/{id}", "GET /plans/{id}",
		"GET /widget/health", "GET /openapi.json", "GET /llms.txt",
		// An account has two connections at most. The last four read a day or some, and then wait for the books.
		"GET /books/connections", "GET /books/connections/{id}", "GET /books/connections/{id}/mapping",
		"GET /books/connections/{id}/accounts", "GET /books/connections/{id}/preview/{date}",
		"GET /books/connections/{id}/payouts/{payout}/preview"}
	for _, r := range allRoutes() {
		if r.question != (r.method() == "GET" && !slices.Contains(lookups, r.pattern)) {
			t.Errorf("%s: question is %v", r.pattern, r.question)
		}
	}
}

// A turnContext is that of a question, and ends as soon as the question has its turn.
type turnContext struct {
	context.Context
	question *call
}

func (c turnContext) Done() <-chan struct{} {
	if c.question.core.release == nil {
		return c.Context.Done()
	}
	ended := make(chan struct{})
	close(ended)
	return ended
}

func (c turnContext) Err() error {
	if c.question.core.release == nil {
		return c.Context.Err()
	}
	return context.Canceled
}

func TestQuestion_ofEveryRouteReadsOnlyWhileItsContextLasts(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	everyRoute(t, func(f *exampleFixture, o *operation, r *route) {
		if !r.question {
			return
		}
		f.prepared(o)
		i := slices.IndexFunc(f.server.routes, func(same route) bool { return same.pattern == r.pattern })
		asked, run := &f.server.routes[i], f.server.routes[i].run
		defer func() { asked.run = run }()
		var stopped error
		asked.run = func(ctx context.Context, c *call) (any, error) {
			_, stopped = run(turnContext{ctx, c}, c)
			return nil, errSlowQuestion
		}
		f.get(f.pathOf(o)+f.neededQuery(o), f.headersOf(o)...).is(503, "busy")
		if !errors.Is(stopped, context.Canceled) {
			t.Errorf("%s goes on when its time is up: %v", o.name(), stopped)
		}
	})
}

// Against anybody who would hold all readers with slow questions: two at a time, two seconds each, one connection
// left for look-ups, clients in turn.
func TestQuestion_leavesAConnectionToLookups(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.server.listSlots.timeout = time.Hour // the test ends them
	id, key := s.addLicense(license{})
	auth := s.auth(s.account, scopeEvents, scopeLicenses)
	s.makeLong("events")
	ctx, abandon := context.WithCancel(t.Context())
	var questions []<-chan answer
	for range 40 {
		questions = append(questions, s.getWithin(ctx, "/events?type=license.created", auth))
	}
	for range 12 {
		tenant := s.auth(s.addAccount("Trattoria"), scopeEvents)
		questions = append(questions, s.getWithin(ctx, "/events?type=license.created", tenant))
	}
	app, _ := s.registerApp(func(p *app) { p.Scope = scopeEvents })
	for range 12 { // grants of one application are one client
		token, _ := s.appToken(app, s.addAccount("Bistro"), scopeEvents)
		questions = append(questions, s.getWithin(ctx, "/events?type=license.created", bearer(token)))
	}
	// Each has looked its token up, and so waits for no connection any more.
	until(func() bool {
		return s.server.listSlots.present() == len(questions) && s.reading() == questionsAtOnce
	})
	if _, askers := s.server.listSlots.counted(); askers != 14 {
		t.Errorf("the questions are those of %d askers", askers)
	}
	before := s.store.readers.Stats().WaitCount
	s.store.drops.drop("") // nothing comes from memory
	s.get("/licenses/"+id, auth).is(200)
	s.verifyKey(key, "a").is(200)
	if stats := s.store.readers.Stats(); stats.InUse != readerConns-1 || stats.WaitCount != before {
		t.Errorf("%d connections are in use, and look-ups waited for one %d times", stats.InUse, stats.WaitCount-before)
	}
	abandon()
	for _, answers := range questions {
		if a := <-answers; a.status == 200 || strings.Contains(s.log.String(), "error") {
			t.Fatalf("an abandoned question was answered with %d %s and is logged as %s", a.status, a.body, s.log)
		}
	}
	s.server.listSlots.timeout = 10 * time.Millisecond
	s.get("/events?type=license.created", auth).is(503, "busy").has("Retry-After: 5") // its time is up
	s.server.listSlots.isIdle(t)
}

func TestQuestion_whoseHandlerPanicsGivesItsPlaceBack(t *testing.T) {
	t.Parallel()
	s := newService(t)
	leads := slices.IndexFunc(s.server.routes, func(r route) bool { return r.pattern == "GET /leads" })
	s.server.routes[leads].run = func(ctx context.Context, c *call) (any, error) {
		if err := s.server.finishReading(ctx, c); err != nil {
			return nil, err
		}
		panic("a mistake")
	}
	for range questionsAtOnce + 1 {
		s.get("/leads", s.auth(s.account, scopeLeads)).is(500, "internal")
	}
	s.server.listSlots.isIdle(t)
}

// isIdle complains if the slots know of any question.
func (d *listSlots) isIdle(t *testing.T) {
	t.Helper()
	if running, askers := d.counted(); running != 0 || askers != 0 || len(d.anonymous) != 0 {
		t.Errorf("%d questions run, %d of them anonymous, of %d askers", running, len(d.anonymous), askers)
	}
}

// Each question takes a second here: of the anonymous one runs at a time, and of a busy account at most one more comes
// before another's.
func TestQuestion_askersTakeTurnsAndTheAnonymousLeaveRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, turns, anonymous := newListSlots(2), make(chan string, 53), new(atomic.Int64)
		ask := func(kind, name string) {
			go func() {
				leave, err := d.acquire(t.Context(), client{kind, name})
				failIf(t, err != nil, "%s: %v", name, err)
				if kind == clientIsAddress {
					failIf(t, anonymous.Add(1) > 1, "two of the anonymous run at a time")
				}
				turns <- name
				if time.Sleep(time.Second); kind == clientIsAddress {
					anonymous.Add(-1)
				}
				leave()
			}()
			synctest.Wait()
		}
		for i := range 12 {
			ask(clientIsAddress, fmt.Sprint("192.0.2.", i))
		}
		for range 40 {
			ask(clientIsAccount, "acct_busy")
		}
		ask(clientIsAccount, "acct_other")
		time.Sleep(time.Minute)
		var all []string
		for range len(turns) {
			all = append(all, <-turns)
		}
		equal(t, "questions that had their turn", len(all), 53)
		equal(t, "the first two", all[:2], []string{"192.0.2.0", "acct_busy"})
		failIf(t, slices.Index(all, "acct_other") > 4, "the other's turn comes after %q", all[:10])
		d.isIdle(t)
	})
}
