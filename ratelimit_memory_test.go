package main

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
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
func TestEveryRoute_takesAHundredFieldsAndParameters(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	everyRoute(t, func(f *exampleFixture, o *operation, r *route) {
		body, kind := f.exampleBody(o)
		headers, query := append(f.headersOf(o), kind), f.neededQuery(o)
		query = cmp.Or(query, "?")
		path, many := f.pathOf(o)+query, strings.Repeat("&", 101-strings.Count(query, "&"))
		if f.prepared(o); r.noQuery {
			f.do(o.method, path+strings.Repeat("&x=%zz", 3500), body, headers...).is(200)
			return
		}
		refused := func(a answer) {
			t.Helper()
			status := 422
			if strings.HasPrefix(r.path(), "/oauth/") && r.form != "" {
				status = 400
			}
			if a.status != status {
				t.Errorf("%s takes a hundred and one: %d %s", o.name(), a.status, a.body)
			}
		}
		refused(f.do(o.method, path+many, body, headers...))
		if r.takesForm() {
			refused(f.do(o.method, f.pathOf(o), body+many, headers...))
		}
	})
}
