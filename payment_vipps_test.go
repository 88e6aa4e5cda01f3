package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A vippsSide is our client of a fake, on a clock of its own, with one attempt to pay.
type vippsSide struct {
	*vippsProvider
	t    testing.TB
	fake *vippsFake
	c    *openConnection
	p    *payment
	at   time.Time
}

func newVippsSide(t testing.TB) *vippsSide {
	s := &vippsSide{t: t, at: time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)}
	s.fake = newVippsFake(t, func() time.Time { return s.at })
	s.vippsProvider = newVippsProvider(outboundTo(t, loopbackRange), s.fake.server.URL+"/", s.fake.now)
	s.c = &openConnection{&paymentConnection{ID: newID("con", s.at)}, s.fake.secrets}
	s.p = &payment{ID: newID("pay", s.at), Currency: "NOK", Amount: 5000, CreatedAt: newStamp(s.at)}
	return s
}

// do sends a new operation on the attempt.
func (s *vippsSide) do(kind string, amount int64) (*paymentOperation, sendResult) {
	s.t.Helper()
	op := &paymentOperation{ID: newID("opr", s.at), PaymentID: s.p.ID, Kind: kind, Amount: amount}
	return op, s.again(op)
}

// again sends an operation.
func (s *vippsSide) again(op *paymentOperation) sendResult {
	s.t.Helper()
	call := s.call(op, s.p, &order{ID: "ord_1"}, "https://www.example.com/return")
	return s.send(s.t.Context(), s.c, op, call)
}

// done sends a new operation on the attempt, which must be carried out.
func (s *vippsSide) done(kind string, amount int64) *paymentOperation {
	s.t.Helper()
	op, result := s.do(kind, amount)
	if result.outcome != sendDone || result.reason != "" {
		s.t.Fatalf("%s: %+v", kind, result)
	}
	return op
}

// report reads the attempt.
func (s *vippsSide) report() *paymentReport {
	s.t.Helper()
	report, err := s.look(s.t.Context(), s.c, s.p)
	must(s.t, err)
	return report
}

// is compares what is of interest in a report.
func (r *paymentReport) is(t testing.TB, phase paymentPhase, authorized, captured, refunded int64) {
	t.Helper()
	if r.phase != phase || r.authorized != authorized || r.captured != captured || r.refunded != refunded {
		t.Errorf("phase %d, %d authorised, %d captured, %d refunded; not phase %d, %d, %d, %d",
			r.phase, r.authorized, r.captured, r.refunded, phase, authorized, captured, refunded)
	}
}

func TestVipps_requestOfEveryOperation(t *testing.T) {
	t.Parallel()
	v := newVippsProvider(newOutbound(nil), "", time.Now)
	equal(t, "the base", v.base, "https://api.vipps.no")
	p := &payment{ID: "pay_01jd8z6q6r1w5qk1m2n3p4r5s6", Currency: "DKK"}
	const path = "/epayment/v1/payments/pay-01jd8z6q6r1w5qk1m2n3p4r5s6"
	for kind, want := range map[string]providerCall{
		opCreate: {"POST", "/epayment/v1/payments", "application/json", `{"amount":{"currency":"DKK","value":1250},` +
			`"paymentMethod":{"type":"WALLET"},"reference":"pay-01jd8z6q6r1w5qk1m2n3p4r5s6",` +
			`"userFlow":"WEB_REDIRECT","returnUrl":"https://a.example/?x=1&y=<2>","paymentDescription":"Order ord_7"}`},
		opCapture: {"POST", path + "/capture", "application/json",
			`{"modificationAmount":{"currency":"DKK","value":1250}}`},
		opRefund: {"POST", path + "/refund", "application/json",
			`{"modificationAmount":{"currency":"DKK","value":1250}}`},
		opCancel: {"POST", path + "/cancel", "", ""},
		opExpire: {"POST", path + "/cancel", "application/json", `{"cancelTransactionOnly":true}`},
	} {
		got := v.call(&paymentOperation{Kind: kind, Amount: 1250}, p, &order{ID: "ord_7"},
			"https://a.example/?x=1&y=<2>")
		equal(t, kind, got, want)
	}
	title := strings.Repeat("ä", 150)
	long := v.call(&paymentOperation{Kind: opCreate}, p, &order{ID: "ord_7", Reference: &title}, "https://a.example")
	contains(t, long.Body, `"paymentDescription":"Order `+title[:2*94]+`"`)
	if !v.readsFirst() {
		t.Error("Vipps' operations are looked for before they are sent again")
	}
}

func TestVipps_takesWhatItsDescriptionSays(t *testing.T) {
	t.Parallel()
	v := newVippsProvider(newOutbound(nil), "", time.Now)
	for _, c := range []struct {
		currency string
		amount   int64
		want     bool
	}{
		{"NOK", 99, false}, {"NOK", 100, true}, {"NOK", 65_000_000, true}, {"NOK", 65_000_001, false},
		{"DKK", 0, false}, {"DKK", 1, true}, {"EUR", 1, true}, {"EUR", -1, false},
		{"SEK", 99, false}, {"SEK", 100, true}, {"CHF", 1000, false}, {"", 1000, false}, {"nok", 1000, false},
	} {
		if got := v.takes(methodMobile, c.currency, c.amount); got != c.want {
			t.Errorf("%d %s: %v", c.amount, c.currency, got)
		}
	}
}

func TestVipps_paysFromCreationToRefund(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	if r := s.report(); r.phase != phaseUnknown {
		t.Errorf("before it is created: %+v", r)
	}
	create, result := s.do(opCreate, 5000)
	landing := s.fake.server.URL + "/landing?token=" + vippsReference(s.p.ID)
	if result.outcome != sendDone || result.status != 201 || result.url != landing {
		t.Errorf("%+v", result)
	}
	r := s.report()
	r.is(t, phaseOpen, 0, 0, 0)
	if r.amount != 5000 || r.currency != "NOK" || r.url != result.url || r.intentID == "" ||
		!r.captureBefore.IsZero() || !slices.Equal(r.done, []string{create.ID}) {
		t.Errorf("%+v", r)
	}
	s.at = s.at.Add(time.Minute)
	s.fake.approve(s.p.ID)
	r = s.report()
	r.is(t, phaseApproved, 5000, 0, 0)
	if want := s.at.Add(180 * 24 * time.Hour); r.url != "" || !r.captureBefore.Equal(want) {
		t.Errorf("capture before %s, not %s; %q", r.captureBefore, want, r.url)
	}
	capture := s.done(opCapture, 3000)
	s.report().is(t, phaseApproved, 2000, 3000, 0)
	cancel := s.done(opCancel, 0)
	r = s.report()
	r.is(t, phaseApproved, 0, 3000, 0)
	if !r.captureBefore.IsZero() {
		t.Errorf("nothing is left that could lapse: %s", r.captureBefore)
	}
	refund, result := s.do(opRefund, 700)
	if result.outcome != sendDone || result.refundID == "" {
		t.Errorf("%+v", result)
	}
	s.at = s.at.Add(time.Hour)
	s.fake.portalRefund(s.p.ID, 300)
	r = s.report()
	r.is(t, phaseApproved, 0, 3000, 1000)
	if want := []string{create.ID, capture.ID, cancel.ID, refund.ID}; !slices.Equal(r.done, want) {
		t.Errorf("done: %q", r.done)
	}
	want := []refundReport{
		{providerID: result.refundID, operationID: refund.ID, amount: 700, state: refundSucceeded,
			at: s.at.Add(-time.Hour), longID: r.refunds[0].longID},
		{providerID: r.refunds[1].providerID, amount: 300, state: refundSucceeded, at: s.at,
			longID: r.refunds[1].longID},
	}
	if !reflect.DeepEqual(r.refunds, want) || r.refunds[1].providerID == "" {
		t.Errorf("%+v", r.refunds)
	}
	for _, bad := range []struct {
		kind, reason string
		amount       int64
	}{{opCapture, "capture-too-large", 1}, {opCancel, "nothing-to-cancel", 0}, {opRefund, "refund-too-large", 2001}} {
		if _, got := s.do(bad.kind, bad.amount); got.outcome != sendRefused || got.reason != bad.reason ||
			got.status != 400 {
			t.Errorf("%s: %+v", bad.kind, got)
		}
	}
}

func TestVipps_endsWithoutMoney(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end   func(*vippsSide)
		phase paymentPhase
	}{
		"the guest declines":          {func(s *vippsSide) { s.fake.abort(s.p.ID) }, phaseCancelled},
		"nobody pays for ten minutes": {func(s *vippsSide) { s.at = s.at.Add(10 * time.Minute) }, phaseExpired},
		"we expire it":                {func(s *vippsSide) { s.done(opExpire, 0) }, phaseCancelled},
		"we cancel what was authorised": {func(s *vippsSide) {
			s.fake.approve(s.p.ID)
			s.done(opCancel, 0)
		}, phaseCancelled},
		"nothing, just before it expires": {func(s *vippsSide) { s.at = s.at.Add(10*time.Minute - 1) }, phaseOpen},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newVippsSide(t)
			s.done(opCreate, 5000)
			c.end(s)
			r := s.report()
			r.is(t, c.phase, 0, 0, 0)
			if c.phase == phaseOpen {
				return
			}
			if r.url != "" || !r.captureBefore.IsZero() {
				t.Errorf("%+v", r)
			}
			if _, result := s.do(opCapture, 1); result.outcome != sendRefused {
				t.Errorf("capture: %+v", result)
			}
		})
	}
}

func TestVipps_expiresNothingThatTheGuestHasPaid(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	s.done(opCreate, 5000)
	s.fake.approve(s.p.ID)
	if _, result := s.do(opExpire, 0); result.outcome != sendRefused || result.reason != "6060" {
		t.Errorf("%+v", result)
	}
	s.report().is(t, phaseApproved, 5000, 0, 0)
	s.done(opCancel, 0)
	s.report().is(t, phaseCancelled, 0, 0, 0)
}

func TestVipps_lostAnswersAreFoundByReading(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	lose := func(r vippsFakeRequest, acted bool) *vippsTrouble {
		if acted && r.method == "POST" && strings.HasPrefix(r.path, "/epayment/") {
			return &vippsTrouble{reset: true}
		}
		return nil
	}
	kinds := []string{opCreate, opCapture, opRefund, opCancel}
	for i, kind := range kinds {
		s.fake.strikes(lose)
		op, result := s.do(kind, []int64{5000, 1000, 400, 0}[i])
		if result.outcome != sendUnknown || result.reason != outboundNoConnect || result.status != 0 {
			t.Errorf("%s: %+v", kind, result)
		}
		s.fake.strikes(nil)
		if r := s.report(); !slices.Contains(r.done, op.ID) {
			t.Errorf("%s is not among %q", kind, r.done)
		}
		if result := s.again(op); result.outcome != sendDone {
			t.Errorf("%s, sent again: %+v", kind, result)
		}
		if kind == opCreate {
			s.fake.approve(s.p.ID)
		}
	}
	s.report().is(t, phaseApproved, 0, 1000, 400)
	if _, result := s.do(opCreate, 5000); result.outcome != sendStale || result.status != 409 {
		t.Errorf("a reference that exists: %+v", result)
	}
}

// aVippsAnswer is a right answer to a modification of a payment.
func aVippsAnswer(paymentID string) string {
	return `{"amount":{"currency":"NOK","value":5000},"state":"AUTHORIZED","aggregate":{` +
		`"authorizedAmount":{"currency":"NOK","value":5000},"cancelledAmount":{"currency":"NOK","value":0},` +
		`"capturedAmount":{"currency":"NOK","value":5000},"refundedAmount":{"currency":"NOK","value":100}},` +
		`"pspReference":"psp-1","reference":"` + vippsReference(paymentID) + `","new":{"member":[1]}}`
}

func TestVipps_outcomeOfEveryAnswer(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	right := aVippsAnswer(s.p.ID)
	problem := `{"type":"https://errors.example/x#TooMuch","title":"Ola Nordmann has too little money"}`
	created := `{"reference":"` + vippsReference(s.p.ID) + `","redirectUrl":"https://landing.vipps.no?token=a"}`
	refused := func(reason string) sendResult { return sendResult{outcome: sendRefused, reason: reason} }
	retries := func(status int, after string) vippsTrouble {
		return vippsTrouble{status: status, header: http.Header{"Retry-After": {after}}}
	}
	malformed := sendResult{reason: "malformed_answer"}
	const date = "Sun, 22 Nov 2026 10:01:00 GMT" // in a minute
	script, other := strings.Replace(created, "https:", "javascript:", 1), strings.Replace(created, "pay-", "pay-0", 1)
	for _, c := range []struct {
		kind    string
		trouble vippsTrouble
		want    sendResult
	}{
		{opCapture, vippsTrouble{status: 200, body: right}, sendResult{outcome: sendDone}},
		{opRefund, vippsTrouble{status: 200, body: right}, sendResult{outcome: sendDone, refundID: "psp-1"}},
		{opCreate, vippsTrouble{status: 201, body: created}, sendResult{outcome: sendDone,
			url: "https://landing.vipps.no?token=a"}},
		{opCreate, vippsTrouble{status: 201, body: right}, malformed},
		{opCreate, vippsTrouble{status: 201, body: script}, malformed},
		{opCreate, vippsTrouble{status: 201, body: other}, malformed},
		{opCapture, vippsTrouble{status: 200, body: ""}, malformed},
		{opCapture, vippsTrouble{status: 204, body: ""}, malformed},
		{opCapture, vippsTrouble{status: 200, body: "<html>Welcome</html>"}, malformed},
		{opCapture, vippsTrouble{status: 200, body: created}, malformed},
		{opCapture, vippsTrouble{status: 200, body: strings.Replace(right, "pay-", "pay-0", 1)}, malformed},
		{opCapture, vippsTrouble{status: 200, body: strings.Repeat(" ", maxOutboundBody) + right},
			sendResult{reason: outboundTooLarge}},
		{opCapture, vippsTrouble{status: 302, body: right, header: http.Header{"Location": {"/"}}},
			sendResult{reason: "http_302"}},
		{opCapture, vippsTrouble{status: 400, body: problem}, refused("TooMuch")},
		{opCapture, vippsTrouble{status: 400, body: `{"type":"Ola Nordmann"}`}, refused("http_400")},
		{opCapture, vippsTrouble{status: 404, body: "nothing"}, sendResult{reason: "http_404"}},
		{opRefund, vippsTrouble{status: 413, body: `{"statusCode":413,"message":"Request Too Long"}`},
			sendResult{reason: "http_413"}},
		{opRefund, vippsTrouble{status: 400, body: `{"error":"Bad Request"}`}, sendResult{reason: "http_400"}},
		{opCreate, vippsTrouble{status: 409}, sendResult{reason: "http_409"}},
		{opCapture, vippsTrouble{status: 401, body: problem}, sendResult{reason: "TooMuch"}},
		{opCreate, vippsTrouble{status: 401, body: problem}, sendResult{outcome: sendDenied, reason: "TooMuch"}},
		{opCapture, vippsTrouble{status: 403, body: problem}, sendResult{outcome: sendDenied, reason: "TooMuch"}},
		{opCapture, vippsTrouble{status: 403, body: `{"statusCode":403,"message":"Out of quota"}`}, // of Vipps' gateway
			sendResult{outcome: sendDenied, reason: "http_403"}},
		{opCapture, vippsTrouble{status: 403, body: "<html>"}, sendResult{reason: "http_403"}},
		{opCapture, vippsTrouble{status: 408}, sendResult{reason: "http_408"}},
		{opCapture, vippsTrouble{status: 409, body: problem}, sendResult{reason: "TooMuch"}},
		{opCreate, vippsTrouble{status: 409, body: problem}, sendResult{outcome: sendStale, reason: "TooMuch"}},
		{opCapture, retries(429, "7"), sendResult{reason: "http_429", retryAfter: 7 * time.Second}},
		{opCapture, vippsTrouble{status: 500, body: right}, sendResult{reason: "http_500"}},
		{opCapture, retries(503, date), sendResult{reason: "http_503", retryAfter: time.Minute}},
		{opCapture, vippsTrouble{reset: true}, sendResult{reason: outboundNoConnect}},
	} {
		s.fake.strikes(func(r vippsFakeRequest, acted bool) *vippsTrouble {
			if r.method == "POST" && strings.HasPrefix(r.path, "/epayment/") {
				return &c.trouble
			}
			return nil
		})
		c.want.status = c.trouble.status
		if _, got := s.do(c.kind, 5000); got != c.want {
			t.Errorf("%s, %d %.80s: %+v, not %+v", c.kind, c.trouble.status, c.trouble.body, got, c.want)
		}
	}
}

func TestVipps_operationThatTimesOutIsUnknown(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	s.report() // gets a token
	s.out.limit = 50 * time.Millisecond
	s.fake.strikes(func(vippsFakeRequest, bool) *vippsTrouble { return &vippsTrouble{hang: true} })
	if _, got := s.do(opCreate, 5000); got != (sendResult{reason: outboundTimeout}) {
		t.Errorf("%+v", got)
	}
	if _, err := s.look(t.Context(), s.c, s.p); err == nil || !strings.HasPrefix(err.Error(), outboundTimeout) {
		t.Errorf("%v", err)
	}
}

func TestVipps_phaseOfEveryState(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	for _, c := range []struct {
		state                                     string
		authorized, captured, cancelled, refunded int64
		phase                                     paymentPhase
		left                                      int64
	}{
		{"CREATED", 0, 0, 0, 0, phaseOpen, 0},
		{"ABORTED", 0, 0, 0, 0, phaseCancelled, 0},
		{"EXPIRED", 0, 0, 0, 0, phaseExpired, 0},
		{"TERMINATED", 0, 0, 0, 0, phaseCancelled, 0},
		{"TERMINATED", 0, 0, 5000, 0, phaseCancelled, 0}, // what is cancelled need not be authorised
		{"TERMINATED", 5000, 5000, 0, 0, phaseApproved, 0},
		{"AUTHORIZED", 5000, 0, 0, 0, phaseApproved, 5000},
		{"AUTHORIZED", 5000, 2000, 0, 0, phaseApproved, 3000},
		{"AUTHORIZED", 5000, 2000, 3000, 2000, phaseApproved, 0},
		{"AUTHORIZED", 5000, 0, 5000, 0, phaseCancelled, 0},
		{"AUTHORIZED", 5000, 0, 1000, 0, phaseApproved, 4000},
		{"AUTHORIZED", 0, 0, 0, 0, -1, 0},       // of nothing
		{"AUTHORIZED", 5000, 5001, 0, 0, -1, 0}, // more captured than authorised
		{"AUTHORIZED", 5000, 3000, 2001, 0, -1, 0},
		{"AUTHORIZED", 5000, 3000, 0, 3001, -1, 0}, // more given back than captured
		{"AUTHORIZED", 5000, -1, 0, 0, -1, 0},
		{"authorized", 5000, 0, 0, 0, -1, 0},
		{"PAID", 5000, 0, 0, 0, -1, 0},
		{"", 5000, 0, 0, 0, -1, 0},
	} {
		p := vippsFakePayment{reference: vippsReference(s.p.ID), psp: "psp-1", state: c.state, currency: "NOK",
			amount: 5000, authorized: c.authorized, captured: c.captured, cancelled: c.cancelled, refunded: c.refunded}
		s.fake.strikes(answerOf(vippsPath(s.p.ID, ""), string(encodeJSON(p.shown()))))
		r, err := s.look(t.Context(), s.c, s.p)
		if c.phase < 0 {
			if !failsFor(err, "malformed_answer") {
				t.Errorf("%+v: %+v, %v", c, r, err)
			}
		} else if err != nil {
			t.Errorf("%+v: %v", c, err)
		} else {
			r.is(t, c.phase, c.left, c.captured, c.refunded)
		}
	}
}

// answerOf has GET requests for a path answered with a body.
func answerOf(path, body string) func(vippsFakeRequest, bool) *vippsTrouble {
	return func(r vippsFakeRequest, acted bool) *vippsTrouble {
		if r.path == path && r.method == "GET" {
			return &vippsTrouble{status: 200, body: body}
		}
		return nil
	}
}

func TestVipps_paymentThatIsNonsenseIsNotBelieved(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	right := aVippsAnswer(s.p.ID)
	bodies := []string{"", "null", "[]", "{}", right + right, right[:len(right)-1]}
	for _, change := range [][2]string{
		{`"pay-`, `"pay-9`},
		{`"reference"`, `"Reference"`},
		{`"currency":"NOK","value":0`, `"currency":"DKK","value":0`},
		{`"value":5000},"state"`, `"value":"5000"},"state"`},
		{`"value":5000},"state"`, `"value":5000.5},"state"`},
		{`"value":5000},"state"`, `"value":99999999999},"state"`},
		{`"value":5000},"state"`, `"value":5000,"value":1},"state"`},
		{`"capturedAmount"`, `"captured"`},
		{`"aggregate":{`, `"aggregate":[],"x":{`},
		{`"pspReference":"psp-1"`, `"pspReference":1`},
		{`"psp-1"`, `"psp\u0000"`},
		{`"state"`, `"redirectUrl":"javascript:alert(1)","state"`},
	} {
		if !strings.Contains(right, change[0]) {
			t.Fatal(change[0])
		}
		bodies = append(bodies, strings.Replace(right, change[0], change[1], 1))
	}
	for _, body := range bodies {
		s.fake.strikes(answerOf(vippsPath(s.p.ID, ""), body))
		if r, err := s.look(t.Context(), s.c, s.p); !failsFor(err, "malformed_answer") {
			t.Errorf("%s: %+v, %v", body, r, err)
		}
	}
	s.fake.strikes(answerOf(vippsPath(s.p.ID, ""), right))
	s.report().is(t, phaseApproved, 0, 5000, 100)
}

func TestVipps_eventsThatLackSomethingAreLeftOut(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	s.done(opCreate, 5000)
	s.fake.approve(s.p.ID)
	s.done(opCapture, 5000)
	refund := s.done(opRefund, 100)
	events := vippsPath(s.p.ID, "/events")
	event := func(psp, key string) string {
		return fmt.Sprintf(`{"reference":%q,"pspReference":%s,"name":"REFUNDED","timestamp":"2026-11-22T10:00:00.5Z",`+
			`"amount":{"currency":"NOK","value":100},"idempotencyKey":%s,"success":true}`,
			vippsReference(s.p.ID), psp, key)
	}
	later := func(e string) string { return strings.Replace(e, "00.5Z", "00.6Z", 1) }
	ours := `"` + refund.ID + `"`
	for body, want := range map[string]string{
		`[]`:                           "",
		`[` + event(`"1"`, ours) + `]`: "1 " + refund.ID,
		`[` + event(`"1"`, `null`) + `,` + event(`"2"`, `"pos"`) + `]`: "1 ,2 ",
		`[` + event(`"1"`, ours) + `,` + event(`"1"`, ours) + `]`:      "1 " + refund.ID, // told twice
		// Two of one reference, and one that is told with two keys:
		`[` + event(`"1"`, ours) + `,` + later(event(`"1"`, `"portal"`)) + `]`: "1 " + refund.ID + ",1 ",
		`[` + event(`"1"`, ours) + `,` + event(`"1"`, `"portal"`) + `]`:        "1 " + refund.ID,
		`[` + event(`""`, ours) + `,` + event(`7`, ours) + `,null,3,[{}]]`:     "",
		`[` + strings.Replace(event(`"1"`, ours), "true", "false", 1) + `]`:    "",
		`[` + strings.Replace(event(`"1"`, ours), "NOK", "DKK", 1) + `]`:       "",
		`[` + strings.Replace(event(`"1"`, ours), "pay-", "pay-9", 1) + `]`:    "",
	} {
		s.fake.strikes(answerOf(events, body))
		r := s.report()
		r.is(t, phaseApproved, 0, 5000, 100) // as the payment itself says
		var got []string
		for _, refund := range r.refunds {
			got = append(got, refund.providerID+" "+refund.operationID)
		}
		if strings.Join(got, ",") != want || slices.Contains(r.done, refund.ID) != strings.Contains(want, refund.ID) {
			t.Errorf("%s:\n%q, done %q", body, got, r.done)
		}
	}
	for _, body := range []string{``, `{}`, `null`, `[],"x":[]`, `[`} {
		s.fake.strikes(answerOf(events, body))
		if r, err := s.look(t.Context(), s.c, s.p); !failsFor(err, "malformed_answer") {
			t.Errorf("%s: %+v, %v", body, r, err)
		}
	}
	s.fake.strikes(func(r vippsFakeRequest, acted bool) *vippsTrouble {
		if r.path == events {
			return &vippsTrouble{status: 404, body: `{"type":"https://errors.example/x#not-found","title":"Not found"}`}
		}
		return nil
	})
	if r := s.report(); r.refunded != 100 || r.refunds != nil {
		t.Errorf("without events: %+v", r)
	}
}

func TestVipps_authorisationLapsesByCurrency(t *testing.T) {
	t.Parallel()
	for currency, lasts := range map[string]int{"NOK": 180, "DKK": 14, "EUR": 14, "SEK": 14} {
		s := newVippsSide(t)
		s.p.Currency = currency
		s.done(opCreate, 5000)
		created := s.at
		s.at = s.at.Add(5 * time.Minute)
		s.fake.approve(s.p.ID)
		if got := s.report().captureBefore; !got.Equal(s.at.Add(days(lasts))) {
			t.Errorf("%s: %s", currency, got)
		}
		s.fake.strikes(answerOf(vippsPath(s.p.ID, "/events"), `[]`))
		if got := s.report().captureBefore; !got.Equal(created.Add(days(lasts))) {
			t.Errorf("%s, without events: %s", currency, got)
		}
	}
}

const vippsTokenPath = "/accesstoken/get"

func TestVipps_accessTokenIsKeptUntilShortlyBeforeItsEnd(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	asked := func(want int, when string) {
		t.Helper()
		s.report()
		equal(t, when, s.fake.came("POST", vippsTokenPath), want)
	}
	asked(1, "at first")
	s.at = s.at.Add(55*time.Minute - 1)
	asked(1, "after 55 minutes less a moment")
	s.at = s.at.Add(1)
	asked(2, "after 55 minutes")
	s.fake.forgetTokens()
	asked(3, "when it is refused")
	before := s.fake.came("GET", vippsPath(s.p.ID, ""))
	s.fake.strikes(func(r vippsFakeRequest, acted bool) *vippsTrouble {
		if r.method == "GET" {
			return &vippsTrouble{status: 401}
		}
		return nil
	})
	var failed *providerError
	if _, err := s.look(t.Context(), s.c, s.p); !errors.As(err, &failed) || !failed.denied {
		t.Errorf("%v", err)
	}
	equal(t, "tokens, when every one is refused", s.fake.came("POST", vippsTokenPath), 4)
	equal(t, "requests, when every token is refused", s.fake.came("GET", vippsPath(s.p.ID, ""))-before, 2)
}

func TestVipps_whatMovesMoneyIsReadBeforeItIsSentAgainAfterA401(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	op := &paymentOperation{ID: "op_1", PaymentID: s.p.ID, Kind: opRefund, Amount: 100}
	call := s.call(op, s.p, nil, "")
	s.fake.strikes(func(r vippsFakeRequest, acted bool) *vippsTrouble {
		if r.path == call.Path {
			return &vippsTrouble{status: 401}
		}
		return nil
	})
	if got := s.send(t.Context(), s.c, op, call); got.outcome != sendUnknown || got.status != 401 {
		t.Errorf("%+v", got)
	}
	if n := s.fake.came("POST", call.Path); n != 1 {
		t.Errorf("it was sent %d times", n)
	}
	op.Status = new(http.StatusUnauthorized) // as the first answer was written
	if got := s.send(t.Context(), s.c, op, call); got.outcome != sendDenied {
		t.Errorf("with another token: %+v", got)
	}
	if tokens := s.fake.came("POST", vippsTokenPath); tokens != 2 {
		t.Errorf("%d tokens", tokens)
	}
}

func TestVipps_oneAccessTokenIsAskedForAtATime(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	s.fake.strikes(func(r vippsFakeRequest, acted bool) *vippsTrouble {
		if r.path == vippsTokenPath && !acted && s.fake.came("POST", vippsTokenPath) > 1 {
			t.Error("a second token is asked for")
		}
		return nil
	})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := s.look(t.Context(), s.c, s.p); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	s.drop(s.c.ID, nil)
	if _, err := s.look(gone, s.c, s.p); err == nil {
		t.Error("the caller has gone")
	}
	s.fake.strikes(nil)
	s.report()
}

func TestVipps_tokensOfAllConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	for i := range maxVippsTokens {
		s.keep(fmt.Sprint("con_", i), &vippsToken{done: make(chan struct{})})
	}
	s.report()
	if len(s.tokens) != maxVippsTokens || s.tokens[s.c.ID] == nil {
		t.Errorf("%d tokens are kept", len(s.tokens))
	}
}

func TestVipps_tokenThatDoesNotCome(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	malformed := sendResult{reason: "malformed_answer"}
	for _, c := range []struct {
		trouble vippsTrouble
		want    sendResult
	}{
		{vippsTrouble{status: 401, body: `{"error":"invalid_client"}`},
			sendResult{outcome: sendDenied, reason: "http_401"}},
		{vippsTrouble{status: 401, body: "<html>"}, sendResult{reason: "http_401"}},
		{vippsTrouble{status: 400, body: "<html>"}, sendResult{reason: "http_400"}},
		{vippsTrouble{status: 400, body: `{"error":"unauthorized_client"}`},
			sendResult{outcome: sendDenied, reason: "http_400"}},
		{vippsTrouble{status: 429, header: http.Header{"Retry-After": {"3"}}},
			sendResult{reason: "http_429", retryAfter: 3 * time.Second}},
		{vippsTrouble{status: 502}, sendResult{reason: "http_502"}},
		{vippsTrouble{reset: true}, sendResult{reason: outboundNoConnect}},
		{vippsTrouble{status: 200, body: `{"access_token":"a"}`}, malformed},
		{vippsTrouble{status: 200, body: `{"access_token":"a","expires_in":"0"}`}, malformed},
		{vippsTrouble{status: 200, body: `{"access_token":"a b","expires_in":3600}`}, malformed},
		{vippsTrouble{status: 200, body: `{"access_token":"a\n","expires_in":3600}`}, malformed},
		{vippsTrouble{status: 200, body: `token`}, malformed},
	} {
		s.fake.strikes(func(r vippsFakeRequest, acted bool) *vippsTrouble {
			equal(t, "a call without a token", r.path, vippsTokenPath)
			return &c.trouble
		})
		c.want.status = c.trouble.status
		if _, got := s.do(opCreate, 5000); got != c.want {
			t.Errorf("%d %s: %+v, not %+v", c.trouble.status, c.trouble.body, got, c.want)
		}
	}
}

// The public example of a signature, from Vipps' guide to webhooks.
const (
	vippsExampleSecret = "A0+AeKBRG2KRGvnNwJpQlb6IJFk48CKXCIcrLoHncVJKDILsQSxS6NWCccwWm6r6FhGKhiHTBsG2wo/xU6FY/A=="
	vippsExampleURL    = "https://webhook.site/e2cee29b-012e-4f1d-8ef4-e95fd74a7a63"
	vippsExampleDate   = "Thu, 30 Mar 2023 08:38:32 GMT"
	vippsExampleBody   = `{"some-unique-content":"ee6e441b-cc4a-46f8-895d-a5af79bcc233/hello-world"}`
	vippsExampleHash   = "lNlsp1XA03N34HrQsVzPgJKtC+r7l/RBF4V3JQUWMj4="
	vippsExampleSigned = "HMAC-SHA256 SignedHeaders=x-ms-date;host;x-ms-content-sha256&Signature=" +
		"agAiSyogQbDHpeucoNwYz+yAr5nJ+v+zasdkSbqzv+U="
)

// vippsExample is a connection with the webhook of the public example, and its request, which came to
// another address, through a proxy.
func vippsExample() (*openConnection, *http.Request) {
	c := &openConnection{&paymentConnection{WebhookURL: ptr(vippsExampleURL)},
		connectionSecrets{WebhookSecret: vippsExampleSecret}}
	r := httptest.NewRequest("POST", "http://10.0.0.7:8080/inside?a=b", nil)
	r.Header = http.Header{"X-Ms-Date": {vippsExampleDate}, "X-Ms-Content-Sha256": {vippsExampleHash},
		"Authorization": {vippsExampleSigned}}
	return c, r
}

func TestVipps_signatureOfAWebhook(t *testing.T) {
	t.Parallel()
	v := newVippsProvider(newOutbound(nil), "", time.Now)
	c, r := vippsExample()
	if got, err := v.notice(c, r, []byte(vippsExampleBody), time.Now()); err != nil || got != (paymentNotice{}) {
		t.Errorf("the public example: %+v, %v", got, err)
	}
	const other = "Thu, 30 Mar 2023 08:38:33 GMT"
	refuses := func(name string, change func(c *openConnection, h http.Header, body []byte)) {
		t.Helper()
		c, r := vippsExample()
		body := []byte(vippsExampleBody)
		change(c, r.Header, body)
		if got, err := v.notice(c, r, body, time.Now()); err != errNotice || got != (paymentNotice{}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for name, header := range map[string][]string{ // its name, and its values
		"another date":       {"X-Ms-Date", other},
		"no date":            {"X-Ms-Date"},
		"two dates":          {"X-Ms-Date", vippsExampleDate, vippsExampleDate},
		"no hash":            {"X-Ms-Content-Sha256"},
		"another hash":       {"X-Ms-Content-Sha256", "AAAA"},
		"hash in lower case": {"X-Ms-Content-Sha256", strings.ToLower(vippsExampleHash)},
		"no signature":       {"Authorization"},
		"a shorter one":      {"Authorization", vippsExampleSigned[:90]},
		"an additional one":  {"Authorization", vippsExampleSigned, vippsExampleSigned},
	} {
		refuses(name, func(_ *openConnection, h http.Header, _ []byte) { h[header[0]] = header[1:] })
	}
	for name, change := range map[string]func(c *openConnection){
		"another host": func(c *openConnection) {
			c.WebhookURL = ptr(strings.Replace(vippsExampleURL, "site/", "sites/", 1))
		},
		"another path":      func(c *openConnection) { c.WebhookURL = ptr(vippsExampleURL + "?") },
		"another secret":    func(c *openConnection) { c.secrets.WebhookSecret += "=" },
		"no secret":         func(c *openConnection) { c.secrets.WebhookSecret = "" },
		"no webhook at all": func(c *openConnection) { c.WebhookURL = nil },
	} {
		refuses(name, func(c *openConnection, _ http.Header, _ []byte) { change(c) })
	}
	refuses("another body", func(_ *openConnection, _ http.Header, body []byte) { body[5]++ })
}

// signedNotice has a webhook with a body read, signed for a connection.
func signedNotice(v *vippsProvider, body string) (paymentNotice, error) {
	c, r := vippsExample()
	signed := signVipps(vippsExampleSecret, vippsExampleURL, vippsExampleDate, []byte(body))
	r.Header.Set("X-Ms-Content-Sha256", signed.hash)
	r.Header.Set("Authorization", signed.authorization)
	return v.notice(c, r, []byte(body), time.Now())
}

func TestVipps_noticeNamesTheAttempt(t *testing.T) {
	t.Parallel()
	v := newVippsProvider(newOutbound(nil), "", time.Now)
	const ours = "pay_01jd8z6q6r1w5qk1m2n3p4r5s6"
	for body, want := range map[string]paymentNotice{
		`{"msn":"123456","reference":"pay-01jd8z6q6r1w5qk1m2n3p4r5s6","pspReference":"1",` +
			`"name":"CAPTURED","success":true}`: {paymentID: ours},
		`{"reference":"pay-01jd8z6q6r1w5qk1m2n3p4r5s6","name":"FOUND SOMETHING"}`: {paymentID: ours},
		`{"reference":"pay_01jd8z6q6r1w5qk1m2n3p4r5s6","name":"CAPTURED"}`:        {paymentID: ours},
		`{"reference":"pay-01jd8z6q6r1w5qk1m2n3p4r5s","name":"CAPTURED"}`:         {},
		`{"reference":"acme-shop-123-order123abc","name":"CREATED"}`:              {},
		`{"reference":7,"name":7}`: {},
		`[]`:                       {},
		``:                         {},
	} {
		if got, err := signedNotice(v, body); err != nil || got != want {
			t.Errorf("%s: %+v, %v", body, got, err)
		}
	}
}

func FuzzVippsNotice(f *testing.F) {
	v := newVippsProvider(newOutbound(nil), "", time.Now)
	f.Add([]byte(vippsExampleBody), vippsExampleDate, vippsExampleHash, vippsExampleSigned)
	f.Add([]byte(`{"reference":"pay-01jd8z6q6r1w5qk1m2n3p4r5s6","name":"CAPTURED"}`), "", "", "")
	f.Add([]byte(`{"reference":"pay-\u0000","name":[]}`), "a\nb;c", "=", "HMAC-SHA256 SignedHeaders=&Signature=")
	f.Fuzz(func(t *testing.T, body []byte, date, hash, authorization string) {
		c, r := vippsExample()
		r.Header = http.Header{"X-Ms-Date": {date}, "X-Ms-Content-Sha256": {hash}, "Authorization": {authorization}}
		right := string(body) == vippsExampleBody && date == vippsExampleDate && hash == vippsExampleHash &&
			authorization == vippsExampleSigned
		if _, err := v.notice(c, r, body, time.Now()); (err == nil) != right {
			t.Fatalf("accepted: %v", err == nil)
		}
		told, err := signedNotice(v, string(body))
		must(t, err)
		if told.paymentID != "" && !validID("pay", told.paymentID) {
			t.Fatalf("%+v", told)
		}
	})
}

func TestVipps_connectsChecksAndDisconnects(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	var delivered []paymentNotice
	ours := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		body.ReadFrom(r.Body)
		told, err := s.notice(s.c, r, body.Bytes(), s.at)
		if err != nil {
			t.Error(err)
		}
		delivered = append(delivered, told)
	}))
	t.Cleanup(ours.Close)
	webhook := ours.URL + "/v1/payments/vipps/" + s.c.ID + "?a=%2Fb"
	must(t, s.connect(t.Context(), s.c, webhook))
	if s.c.Live || s.c.Name != "123456" || s.c.WebhookID == nil || s.c.secrets.WebhookSecret == "" {
		t.Errorf("%+v", s.c)
	}
	s.c.WebhookURL = &webhook
	equal(t, "the error", s.vippsProvider.check(t.Context(), s.c), nil)
	s.done(opCreate, 5000)
	s.fake.approve(s.p.ID)
	equal(t, "deliveries", s.fake.deliver(http.DefaultClient.Do), 2)
	want := []paymentNotice{{paymentID: s.p.ID}, {paymentID: s.p.ID}} // created, authorised
	if !slices.Equal(delivered, want) {
		t.Errorf("%+v", delivered)
	}
	if err := s.disconnect(t.Context(), s.c); err != nil || len(s.fake.webhooks) != 0 {
		t.Errorf("%v; %d webhooks are left", err, len(s.fake.webhooks))
	}
	equal(t, "again", s.disconnect(t.Context(), s.c), nil)
	var failed *providerError
	if err := s.vippsProvider.check(t.Context(), s.c); !errors.As(err, &failed) || failed.reason != "webhook_gone" {
		t.Errorf("%v", err)
	}
	s.c.secrets.ClientSecret = "other"
	if err := s.vippsProvider.check(t.Context(), s.c); !errors.As(err, &failed) || !failed.denied {
		t.Errorf("with another secret: %v", err)
	}
	if err := s.connect(t.Context(), s.c, webhook); !errors.As(err, &failed) || !failed.denied {
		t.Errorf("with another secret: %v", err)
	}
	if live := newVippsProvider(s.out, "https://api.vipps.no/", time.Now); live.base != vippsLive {
		t.Errorf("%s is not live", live.base)
	}
}

func TestVipps_registrationWhoseAnswerIsLostLeavesNoWebhook(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]vippsTrouble{
		"reset":     {reset: true},
		"500":       {status: 500},
		"nonsense":  {status: 201, body: "ok"},
		"no secret": {status: 201, body: `{"id":"webhook-1"}`},
		"a bad id":  {status: 201, body: `{"id":"../..","secret":"a"}`},
	} {
		s := newVippsSide(t)
		s.fake.webhooks["other"] = &vippsFakeWebhook{id: "other", url: "https://other.example/"}
		s.fake.strikes(func(r vippsFakeRequest, acted bool) *vippsTrouble {
			if r.path == vippsWebhooks && r.method == "POST" && acted {
				return &trouble
			}
			return nil
		})
		err := s.connect(t.Context(), s.c, "https://a.example/v1/payments/vipps/con_1")
		if err == nil || s.c.WebhookID != nil {
			t.Errorf("%s: connected", name)
		}
		if len(s.fake.webhooks) != 1 || s.fake.webhooks["other"] == nil {
			t.Errorf("%s: %d webhooks are left", name, len(s.fake.webhooks))
		}
	}
}

func TestVipps_headersOfEveryRequest(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	op := s.done(opCreate, 5000)
	s.report()
	if len(s.fake.requests) != 4 {
		t.Fatalf("%d requests", len(s.fake.requests))
	}
	for _, r := range s.fake.requests {
		for name, want := range map[string]string{"Ocp-Apim-Subscription-Key": s.fake.secrets.SubscriptionKey,
			"Merchant-Serial-Number": "123456", "Vipps-System-Name": "widgetd", "Vipps-System-Plugin-Name": "widgetd"} {
			equal(t, r.method+" "+r.path+": "+name, r.header.Get(name), want)
		}
		for _, name := range []string{"Vipps-System-Version", "Vipps-System-Plugin-Version"} {
			if got := r.header.Get(name); got == "" || len(got) > 30 {
				t.Errorf("%s %s: %s is %q", r.method, r.path, name, got)
			}
		}
		if want := map[bool]string{true: op.ID}[r.path == "/epayment/v1/payments"]; r.key != want {
			t.Errorf("%s %s: the key is %q, not %q", r.method, r.path, r.key, want)
		}
	}
}
