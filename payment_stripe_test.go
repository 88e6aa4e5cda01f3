package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Against a guest with a pay page who would pay another amount than the order's: the browser sends which way to pay
// and nothing else; amounts come from the row, and what the provider asked for is compared before anything is
// captured.
func TestStripe_asksForAllOfAnOrderAndNothingOfTheGuest(t *testing.T) {
	t.Parallel()
	s := newStripeProvider(nil, stripeBase)
	made := newStamp(time.Unix(1_700_000_000, 0))
	o := &order{ID: "ord_1", Reference: ptr("Table 4"), ExpiresAt: made.after(time.Hour)}
	p := &payment{ID: "pay_1", Method: methodCard, Currency: "CHF", Amount: 9900, CreatedAt: made,
		SessionID: ptr("cs_1"), IntentID: ptr("pi_1")}
	session := map[string]string{
		"mode": "payment", "payment_method_types[0]": "card", "adaptive_pricing[enabled]": "false",
		"line_items[0][quantity]": "1", "line_items[0][price_data][currency]": "chf",
		"line_items[0][price_data][unit_amount]":        "2000",
		"line_items[0][price_data][product_data][name]": "Order Table 4",
		"payment_intent_data[capture_method]":           "manual",
		"client_reference_id":                           "pay_1", "metadata[payment]": "pay_1",
		"payment_intent_data[metadata][payment]": "pay_1", "payment_intent_data[metadata][order]": "ord_1",
		"payment_intent_data[description]": "Order Table 4", "payment_intent_data[metadata][reference]": "Table 4",
		"success_url": testReturnURL, "cancel_url": testReturnURL + "?left=1",
		"expires_at": "1700003600",
	}
	for _, c := range []struct {
		kind, path string
		form       map[string]string
	}{
		{opCreate, "/v1/checkout/sessions", session},
		{opCapture, "/v1/payment_intents/pi_1/capture", map[string]string{"amount_to_capture": "2000"}},
		{opCancel, "/v1/payment_intents/pi_1/cancel", map[string]string{}},
		{opExpire, "/v1/checkout/sessions/cs_1/expire", map[string]string{}},
		{opRefund, "/v1/refunds", map[string]string{
			"payment_intent": "pi_1", "amount": "2000", "metadata[refund]": "ref_1", "metadata[payment]": "pay_1"}},
	} {
		op := &paymentOperation{ID: "op_1", PaymentID: "pay_1", Kind: c.kind, Amount: 2000}
		if c.kind == opRefund {
			op.RefundID = ptr("ref_1")
		}
		call := s.call(op, p, o, testReturnURL)
		if call.Method != "POST" || call.Path != c.path || call.ContentType != "application/x-www-form-urlencoded" {
			t.Errorf("%s: %+v", c.kind, call)
		}
		form, err := url.ParseQuery(call.Body)
		got := map[string]string{}
		for name := range form {
			got[name] = strings.Join(form[name], "|")
		}
		if err != nil || !reflect.DeepEqual(got, c.form) {
			t.Errorf("%s: %v %v, not %v", c.kind, got, err, c.form)
		}
		equal(t, c.kind+" with the same arguments", s.call(op, p, o, testReturnURL), call)
	}
	o.Reference = nil
	call := s.call(&paymentOperation{Kind: opCreate}, p, o, testReturnURL)
	form, _ := url.ParseQuery(call.Body)
	name := form.Get("line_items[0][price_data][product_data][name]")
	equal(t, "the name of an order without a reference", name, "Order ord_1")
}

func TestStripe_sessionLivesAsLongAsStripeLetsIt(t *testing.T) {
	t.Parallel()
	s := newStripeProvider(nil, stripeBase)
	made := newStamp(time.Unix(1_700_000_000, 0))
	for ends, want := range map[time.Duration]time.Duration{
		-time.Hour: 40 * time.Minute, 30 * time.Minute: 40 * time.Minute, 42 * time.Minute: 42 * time.Minute,
		24 * time.Hour: 24 * time.Hour, 25 * time.Hour: 24 * time.Hour,
	} {
		o, p := &order{ExpiresAt: made.after(ends)}, &payment{CreatedAt: made}
		form, err := url.ParseQuery(s.call(&paymentOperation{Kind: opCreate}, p, o, "").Body)
		if got := form.Get("expires_at"); err != nil || got != fmt.Sprint(made.after(want).Unix()) {
			t.Errorf("an order that ends after %v: expires_at=%s", ends, got)
		}
	}
}

// stripeAnswering returns a client of a server that answers everything in one way.
func stripeAnswering(t testing.TB, answer http.HandlerFunc) *stripeProvider {
	t.Helper()
	server := httptest.NewServer(answer)
	o := newOutbound(demoOutbound)
	t.Cleanup(func() { o.close(); server.Close() })
	return newStripeProvider(o, server.URL+"/")
}

// callStripe makes a call of our client, of which one request is answered at an address: "look refunds" reads an
// attempt whose refunds are read there.
func callStripe(t testing.TB, address, call string) string {
	p := &payment{ID: "pay_1", Currency: "CHF", SessionID: ptr("cs_1"), IntentID: ptr("pi_1"), State: paymentCaptured}
	switch s := newStripeProvider(outboundTo(t, loopbackRange), address+"/"); call {
	case "payouts":
		now := time.Date(2026, 11, 26, 3, 0, 0, 0, time.UTC)
		return newsText(s.payouts(t.Context(), testConnection(), "", "2026-11-01", now))
	case "rows":
		return rowsText(s.payoutRows(t.Context(), testConnection(), "po_1", ""))
	}
	read, looks := strings.CutPrefix(call, "look ")
	if !looks {
		op := &paymentOperation{ID: "op_1", PaymentID: "pay_1", Kind: call, Amount: 2000}
		s := newStripeProvider(outboundTo(t, loopbackRange), address+"/")
		call := newStripeProvider(nil, stripeBase).call(op, p, &order{ID: "ord_1"}, testReturnURL)
		return refusalText(s.send(t.Context(), testConnection(), op, call))
	}
	s := stripeAnswering(t, func(w http.ResponseWriter, r *http.Request) {
		status, header, body := 200, http.Header{}, `{"object":"list","has_more":false,"data":[]}`
		what := strings.TrimPrefix(r.URL.Path, "/v1/")
		if strings.HasPrefix(what, "checkout/") {
			what, body = "session", stripeCaptured
		}
		if what == read {
			status, header, body = fetched(t, address)
		}
		vendorAnswer{status, header, body}.write(w)
	})
	return reportText(s.fetchStatus(t.Context(), testConnection(), p))
}

// stripeCaptured is a session whose money was captured, of which a part was given back and disputed.
const stripeCaptured = `{"id":"cs_1","object":"checkout.session","status":"complete","client_reference_id":"pay_1",
	"amount_total":2000,"currency":"chf","url":null,"payment_intent":{"id":"pi_1","object":"payment_intent",
	"status":"succeeded","amount":2000,"amount_capturable":0,"amount_received":2000,"currency":"chf",
	"latest_charge":{"id":"ch_1","object":"charge","amount":2000,"amount_captured":2000,"amount_refunded":100,
	"disputed":true}}}`

func TestStripe_findsASessionWhoseCreateWasNeverAnswered(t *testing.T) {
	t.Parallel()
	s := newStripeTest(t)
	older, want := s.starts(), s.starts()
	for range 2*stripeSessionsPage + 1 {
		s.starts()
	}
	lost := &payment{ID: want.ID, CreatedAt: want.CreatedAt, State: paymentCreated}
	if got := s.looks(lost); got.phase != phaseOpen || got.sessionID != *want.SessionID || got.url != *want.URL {
		t.Errorf("%+v, not %s", got, *want.SessionID)
	}
	s.tryCard(*want.SessionID, true)
	twin := *s.starts().SessionID
	s.inside(func() { // as creates with other keys would leave them
		s.session(twin).reference, s.session(*older.SessionID).reference = want.ID, want.ID
	})
	lost.SessionID = nil
	if got := s.looks(lost); got.phase != phaseApproved || got.sessionID != *want.SessionID {
		t.Errorf("of three sessions, the one that was paid is %s, not %+v", *want.SessionID, got)
	}
	none := &payment{ID: newID("pay", s.clock()), CreatedAt: newStamp(s.clock())}
	if got := s.looks(none); got.phase != phaseUnknown {
		t.Errorf("one that is not there: %+v", got)
	}
	early := &payment{ID: want.ID, CreatedAt: want.CreatedAt.after(-days(2))}
	if got := s.looks(early); got.phase != phaseUnknown {
		t.Errorf("it looks at sessions of other days: %+v", got)
	}

	var pages atomic.Int32
	endless := stripeAnswering(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"object":"list","has_more":true,"data":[{"id":"cs_%d","object":"checkout.session"}]}`,
			pages.Add(1))
	})
	_, err := endless.fetchStatus(t.Context(), s.c, none)
	if !failsFor(err, "too_many_sessions") || pages.Load() != maxStripePages {
		t.Errorf("a list without an end: %v after %d pages", err, pages.Load())
	}
}

func TestStripe_doesNotBelieveWhatCanNotBe(t *testing.T) {
	t.Parallel()
	const good = stripeCaptured
	const refunds = `{"object":"list","has_more":false,"data":[{"id":"re_1","object":"refund","status":"pending",` +
		`"payment_intent":"pi_1","amount":100,"created":1700000000,"balance_transaction":null,"metadata":{}}]}`
	const disputes = `{"object":"list","has_more":false,"data":[{"id":"du_1","object":"dispute",` +
		`"status":"under_review","payment_intent":"pi_1","amount":2000,"created":1700000000,"reason":"fraudulent",` +
		`"currency":"chf","evidence_details":{"due_by":1700600000},"balance_transactions":[{"amount":-2000,` +
		`"currency":"chf","created":1700000100,"fee":1500}],` +
		`"evidence":{"a":{"b":{"c":[{"d":{"e":{"f":{"g":1}}}}]}}}}]}`
	look := func(t *testing.T, session, refunds, disputes string) (*paymentReport, error) {
		s := stripeAnswering(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/v1/refunds":
				io.WriteString(w, refunds)
			case "/v1/disputes":
				io.WriteString(w, disputes)
			default:
				io.WriteString(w, session)
			}
		})
		p := &payment{ID: "pay_1", State: paymentCaptured, SessionID: ptr("cs_1"), IntentID: ptr("pi_1")}
		return s.fetchStatus(t.Context(), testConnection(), p)
	}
	got, err := look(t, good, refunds, disputes)
	if err != nil || got.captured != 2000 || got.refunded != 100 || len(got.refunds) != 1 ||
		got.refunds[0].state != refundPending || len(got.disputes) != 1 || got.disputes[0].state != disputeOpen ||
		got.disputes[0].withdrawn != 2000 || got.disputes[0].at.Unix() != 1700000100 ||
		got.disputes[0].movedAt.Unix() != 1700000100 || got.disputes[0].evidenceBy.Unix() != 1700600000 {
		t.Fatalf("what can be: %+v %v", got, err)
	}
	for _, c := range [][3]string{ // text, what is there, what is said instead
		{good, good, `{}`}, {good, good, `[]`}, {good, good, ``}, {good, good, `nonsense`}, {good, good, `null`},
		{good, `"cs_1"`, `"cs_2"`}, {good, `"cs_1"`, `{}`}, {good, `"pay_1"`, `"pay_2"`}, {good, `"pay_1"`, `null`},
		{good, `"checkout.session"`, `"charge"`}, {good, `"complete"`, `"paused"`}, {good, `"complete"`, `7`},
		{good, `"amount_total":2000`, `"amount_total":null`}, {good, `"amount_total":2000`, `"amount_total":"2000"`},
		{good, `"amount_total":2000`, `"amount_total":-1`}, {good, `"amount_total":2000`, `"amount_total":20.5`},
		{good, `"amount_total":2000`, `"amount_total":99999999999999999999`},
		{good, `"chf","url"`, `"eur","url"`}, {good, `"chf","url"`, `"","url"`}, {good, `"pi_1"`, `"pi_2"`},
		{good, `"pi_1"`, `"pi 1"`}, {good, `"payment_intent":{`, `"payment_intent":"pi_1","x":{`},
		{good, `"payment_intent":{`, `"payment_intent":null,"x":{`},
		{good, `"object":"payment_intent"`, `"object":"charge"`},
		{good, `"succeeded"`, `"done"`}, {good, `"amount_received":2000`, `"amount_received":2001`},
		{good, `"amount_received":2000`, `"amount_received":-1`},
		{good, `"amount_capturable":0`, `"amount_capturable":-1`},
		{good, `"amount_captured":2000`, `"amount_captured":3000`}, {good, `"object":"charge"`, `"object":"refund"`},
		{good, `"disputed":true`, `"disputed":"yes"`},
		{refunds, refunds, `{}`}, {refunds, `"list"`, `"refund"`}, {refunds, `"re_1"`, `"ch_1"`},
		{refunds, `"pi_1"`, `"pi_2"`}, {refunds, `"pending"`, `"paid"`}, {refunds, `:100`, `:0`},
		{refunds, `:100`, `:"100"`},
		{refunds, `"has_more":false,"data":[{`, `"has_more":true,"data":[],"x":[{`},
		{disputes, `"du_1"`, `"re_1"`}, {disputes, `"pi_1"`, `"pi_2"`}, {disputes, `"under_review"`, `"?"`},
		{disputes, `"amount":2000`, `"amount":-1`}, {disputes, `"object":"dispute"`, `"object":"refund"`},
	} {
		t.Run(c[1]+" "+c[2], func(t *testing.T) {
			t.Parallel()
			if c[0] != c[1] && !strings.Contains(c[0], c[1]) {
				t.Fatal("nothing is replaced")
			}
			changed := strings.Replace(c[0], c[1], c[2], 1)
			texts := map[string]string{good: good, refunds: refunds, disputes: disputes}
			texts[c[0]] = changed
			got, err := look(t, texts[good], texts[refunds], texts[disputes])
			var failure *outboundError
			if !errors.As(err, &failure) || failure.reason != outboundMalformed || failure.status != 200 || got != nil {
				t.Errorf("%+v %v", got, err)
			}
		})
	}
}

func TestStripe_disputeHasTakenWhatTheBalanceSays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status, moves string
		taken         int64 // -1: it can't be right
	}{
		{"needs_response", `[]`, 0}, // a prepaid refund network, or it was given back already
		{"needs_response", `[{"amount":-2000,"currency":"chf"}]`, 2000},
		{"needs_response", `[{"amount":-500,"currency":"chf"}]`, 500},
		{"warning_needs_response", `[]`, 0},
		{"won", `[{"amount":-2000,"currency":"chf"}]`, 2000}, // not put back yet
		{"won", `[{"amount":2000,"currency":"chf"},{"amount":-2000,"currency":"chf"}]`, 0},
		{"won", `[{"amount":2100,"currency":"chf"},{"amount":-2000,"currency":"chf"}]`, 0},
		{"lost", `[{"amount":-2190,"currency":"eur"}]`, 2000}, // of a balance in another currency
		{"won", `[{"amount":-2190,"currency":"eur"},{"amount":2170,"currency":"eur"}]`, 0},
		{"lost", `null`, -1}, {"lost", `[{"amount":-1,"currency":"chf","created":-1}]`, -1},
		{"lost", `[{"amount":-9000000000000000000,"currency":"chf"}]`, -1}, {"asked", `[]`, -1},
	} {
		var d stripeDispute
		err := json.Unmarshal([]byte(`{"id":"du_1","object":"dispute","payment_intent":"pi_1","amount":2000,`+
			`"currency":"chf","created":1,"status":"`+c.status+`","balance_transactions":`+c.moves+`}`), &d)
		if r, ok := d.report("pi_1"); err != nil || ok != (c.taken >= 0) || ok && r.withdrawn != c.taken {
			t.Errorf("%s, %s: %+v %v %v", c.status, c.moves, r, ok, err)
		}
	}
	for moves, want := range map[string]string{ // when it was opened, and when money moved last
		``: "1 none", `{"amount":-2000,"created":5}`: "5 5",
		`{"amount":2000,"created":9},{"amount":-2000,"created":5}`: "5 9",
		`{"amount":-2000,"created":5},{"amount":1500,"created":9}`: "5 9",
	} {
		var d stripeDispute
		must(t, json.Unmarshal([]byte(`{"id":"du_1","object":"dispute","payment_intent":"pi_1","amount":2000,`+
			`"created":1,"status":"won","balance_transactions":[`+moves+`]}`), &d))
		r, ok := d.report("pi_1")
		moved := "none"
		if !r.movedAt.IsZero() {
			moved = fmt.Sprint(r.movedAt.Unix())
		}
		if got := fmt.Sprint(r.at.Unix(), " ", moved); !ok || got != want {
			t.Errorf("%s: %s, want %s", moves, got, want)
		}
	}
}

func TestStripe_decidesByTheStatesOfSessionAndIntent(t *testing.T) {
	t.Parallel()
	const impossible = paymentPhase(-1)
	for states, want := range map[string]paymentPhase{
		"open": phaseOpen, "expired": phaseExpired, "complete": impossible, "": impossible, "paused": impossible,
		"open requires_payment_method": phaseOpen, "open requires_action": phaseOpen, "open processing": phaseOpen,
		"open requires_confirmation": phaseOpen, "open requires_capture": phaseApproved,
		"complete requires_capture": phaseApproved, "complete succeeded": phaseApproved,
		"complete processing":              phaseOpen,
		"complete requires_payment_method": phaseFailed, "expired requires_payment_method": phaseExpired,
		"expired requires_action": phaseOpen, "expired succeeded": phaseApproved, "expired canceled": phaseExpired,
		"complete canceled": phaseCancelled, "complete canceled requested_by_customer": phaseCancelled,
		"complete canceled automatic": phaseExpired, "complete canceled expired": phaseExpired,
		"complete requires_magic": impossible, "open canceled": phaseCancelled,
	} {
		words := append(strings.SplitN(states, " ", 3), "", "")
		s := &stripeSession{stripeObject: stripeObject{Status: words[0]}}
		if words[1] != "" {
			s.Intent = &stripeIntent{Status: words[1], CancelledBy: words[2]}
		}
		got, ok := s.phase()
		if !ok {
			got = impossible
		}
		equal(t, states, got, want)
	}
}

const (
	stripeVectorSecret    = "whsec_test_secret"
	stripeVectorBody      = `{"id":"evt_1","object":"event","type":"checkout.session.completed"}`
	stripeVectorSignature = "d1e4aa90551919f198c22ba0a9691b35338d4b631d54ce1f1465e93b1d41c430"
	stripeVectorTime      = 1_700_000_000
)

// stripeNotice has the client check a webhook with the vector's secret.
func stripeNotice(body string, at int64, headers ...string) (paymentNotice, error) {
	c := testConnection()
	c.secrets.WebhookSecret = stripeVectorSecret
	r := &http.Request{Header: http.Header{"Stripe-Signature": headers}}
	return newStripeProvider(nil, stripeBase).notice(c, r, []byte(body), time.Unix(at, 0))
}

func TestStripe_verifiesWebhooks(t *testing.T) {
	t.Parallel()
	const sent, good = "t=1700000000", "v1=" + stripeVectorSignature
	flipped := "v1=e" + stripeVectorSignature[1:]
	for name, c := range map[string]struct {
		after  int64
		header []string
		passes bool
	}{
		"the vector":            {0, []string{sent + "," + good}, true},
		"age 299 s":             {299, []string{sent + "," + good}, true},
		"age 300 s":             {300, []string{sent + "," + good}, true},
		"age 301 s":             {301, []string{sent + "," + good}, false},
		"300 s early":           {-300, []string{sent + "," + good}, true},
		"301 s early":           {-301, []string{sent + "," + good}, false},
		"two secrets":           {0, []string{sent + "," + flipped + "," + good}, true},
		"beside a v0":           {0, []string{sent + "," + good + ",v0=" + stripeVectorSignature}, true},
		"v0 only":               {0, []string{sent + ",v0=" + stripeVectorSignature}, false},
		"another signature":     {0, []string{sent + "," + flipped}, false},
		"upper case":            {0, []string{sent + ",v1=" + strings.ToUpper(stripeVectorSignature)}, false},
		"cut off":               {0, []string{sent + "," + good[:40]}, false},
		"empty":                 {0, []string{sent + ",v1="}, false},
		"no signature":          {0, []string{sent}, false},
		"no time":               {0, []string{good}, false},
		"two times":             {0, []string{sent + "," + sent + "," + good}, false},
		"an old and a new time": {9000, []string{sent + ",t=1700009000," + good}, false},
		"another time":          {1, []string{"t=1700000001," + good}, false},
		"a time with a zero":    {0, []string{"t=01700000000," + good}, false},
		"a time with a sign":    {0, []string{"t=+1700000000," + good}, false},
		"a time beyond":         {0, []string{"t=99999999999999999999," + good}, false},
		"an item without value": {0, []string{sent + "," + good + ",x"}, false},
		"no header":             {0, nil, false},
		"an empty header":       {0, []string{""}, false},
		"two headers":           {0, []string{sent + "," + good, sent + "," + good}, false},
		"too many": {0, []string{sent + strings.Repeat(","+flipped, maxStripeSignatures) + "," + good},
			false},
		"too long": {0, []string{sent + "," + good + ",x=" + strings.Repeat("x", maxStripeSignature)},
			false},
	} {
		n, err := stripeNotice(stripeVectorBody, stripeVectorTime+c.after, c.header...)
		if c.passes != (err == nil) || !c.passes && err != errNotice || n != (paymentNotice{}) {
			t.Errorf("%s: %+v %v", name, n, err)
		}
	}
	if _, err := stripeNotice(stripeVectorBody+" ", stripeVectorTime, sent+","+good); err != errNotice {
		t.Errorf("another body: %v", err)
	}
	c := testConnection() // no secret: its webhook was never registered
	header := fmt.Sprintf("%s,v1=%s", sent, signStripe("", stripeVectorTime, []byte(stripeVectorBody)))
	r := &http.Request{Header: http.Header{"Stripe-Signature": {header}}}
	if _, err := newStripeProvider(nil, stripeBase).notice(c, r, []byte(stripeVectorBody),
		time.Unix(stripeVectorTime, 0)); err != errNotice {
		t.Errorf("without a secret: %v", err)
	}
}

func TestStripe_readsWhichAttemptAnEventIsAbout(t *testing.T) {
	t.Parallel()
	pay := newID("pay", time.Now())
	byPayment, byIntent := paymentNotice{paymentID: pay}, paymentNotice{intentID: "pi_1"}
	for _, c := range []struct {
		object string
		want   paymentNotice
	}{
		{`{"object":"checkout.session","id":"cs_1","client_reference_id":"` + pay + `"}`, byPayment},
		{`{"object":"payment_intent","id":"pi_1","metadata":{"payment":"` + pay + `"}}`, byPayment},
		{`{"object":"payment_intent","id":"pi_1","metadata":{}}`, byIntent},
		{`{"object":"charge","id":"ch_1","payment_intent":"pi_1","metadata":{"payment":"pay_other"}}`, byIntent},
		{`{"object":"refund","id":"re_1","payment_intent":"pi_1","metadata":null}`, byIntent},
		{`{"object":"dispute","id":"du_1","payment_intent":"pi_1","metadata":[7]}`, byIntent},
		{`{"object":"dispute","id":"du_1","payment_intent":{"id":"pi_1"}}`, paymentNotice{}},
		{`{"object":"charge","id":"pi_1","payment_intent":"ch_1"}`, paymentNotice{}},
		{`{"object":"checkout.session","client_reference_id":7,"payment_intent":null}`, paymentNotice{}},
		{`{"object":"checkout.session","client_reference_id":"x","payment_intent":"pi_9","metadata":{"a":"b"}}`,
			paymentNotice{intentID: "pi_9"}},
		{`{}`, paymentNotice{}}, {`null`, paymentNotice{}},
	} {
		body := `{"type":"some.new_kind","data":{"object":` + c.object + `}}`
		equal(t, c.object, readStripeEvent([]byte(body)), c.want)
	}
	payout := `{"type":"payout.reconciliation_completed","data":{"object":{"id":"po_1","metadata":{"payment":"` + pay +
		`"}}}}`
	equal(t, payout, readStripeEvent([]byte(payout)), paymentNotice{payout: true})
	for _, body := range []string{``, `[]`, `null`, `{"type":7}`, `{"type":""}`, `{"type":"a\nb"}`,
		`{"type":"a","data":7}`, `{"type":"payout","data":{}}`, `{"type":"` + strings.Repeat("a", 101) + `"}`} {
		equal(t, body, readStripeEvent([]byte(body)), (paymentNotice{}))
	}
}

func FuzzStripeNotice(f *testing.F) {
	const good = "t=1700000000,v1=" + stripeVectorSignature
	f.Add(good, stripeVectorBody)
	f.Add("t=1700000000,v1=00,v1="+stripeVectorSignature+",v0=00", stripeVectorBody)
	f.Add("t=1700000000,t=1700000000,v1=", "{}")
	f.Add("", "")
	f.Add("=,=,t", `{"type":"refund.created","data":{"object":{"object":"refund","payment_intent":"pi_1",`+
		`"metadata":{"payment":"pay_1"}}}}`)
	f.Add("v1=", `{"type":"payout.paid","data":{"object":{"object":"payout","id":"po_1"}}}`)
	f.Add(",v1", `{"type":"payment_intent.succeeded","data":{"object":{"object":"payment_intent","id":"pi_1"}}}`)
	f.Fuzz(func(t *testing.T, header, body string) {
		if _, err := stripeNotice(body, stripeVectorTime, header); err == nil &&
			(body != stripeVectorBody || !strings.Contains(header, "v1="+stripeVectorSignature)) {
			t.Errorf("a forged webhook verifies: %q %q", header, body)
		}
		own := fmt.Sprintf("t=%d,v1=%s", stripeVectorTime, signStripe(stripeVectorSecret, stripeVectorTime,
			[]byte(body)))
		n, err := stripeNotice(body, stripeVectorTime, own)
		if err != nil || n.paymentID != "" && !validID("pay", n.paymentID) ||
			n.intentID != "" && !isStripeID("pi_", n.intentID) {
			t.Errorf("what is signed: %+v %v", n, err)
		}
	})
}

// registered returns how many webhooks are registered.
func (s *stripeTest) registered() (n int) {
	s.inside(func() { n = len(s.hooks) })
	return n
}

func TestStripe_connectsWithARestrictedKeyOnly(t *testing.T) {
	t.Parallel()
	s := newStripeTest(t)
	const hook = "https://api.example.com/v1/payments/stripe/con_1"
	for _, key := range []string{"sk_live_123", "sk_test_123", "pk_live_123", "rk_123", "rk_live_", "rk_live_a b",
		"rk_live_a\r\nb", "", "whsec_1"} {
		s.c.secrets.Key = key
		err := s.client.connect(t.Context(), s.c, hook)
		if err == nil || !strings.Contains(err.Error(), stripePermissions) ||
			len(key) > len("rk_live_") && strings.Contains(err.Error(), key) || s.registered() > 0 {
			t.Errorf("%q: %v, with %d webhooks", key, err, s.registered())
		}
	}

	s.c = testConnection()
	checks := func(want string) {
		t.Helper()
		lacks, err := s.client.check(t.Context(), s.c)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || len(lacks) > 0 {
			t.Errorf("checking: %v, not %q, and lacks %v", err, want, lacks)
		}
	}
	checks("the answer is webhook_gone") // before connecting
	s.c.secrets.Key = "rk_live_123"
	must(t, s.client.connect(t.Context(), s.c, hook))
	var registered *testWebhook
	s.inside(func() {
		registered = s.hooks[*s.c.WebhookID]
		if !s.c.Live || registered == nil || registered.url != hook || s.c.secrets.WebhookSecret != registered.secret {
			t.Fatalf("it keeps %+v of %+v", s.c, registered)
		}
		slices.Sort(registered.events)
		if want := slices.Sorted(slices.Values(stripeEvents)); !slices.Equal(registered.events, want) ||
			len(want) != 19 {
			t.Errorf("registered for %q", registered.events)
		}
	})
	s.c.WebhookID = nil
	if err := s.client.connect(t.Context(), s.c, hook); err != nil || s.registered() != 1 {
		t.Errorf("connecting again, as after a lost answer: %v, with %d webhooks", err, s.registered())
	}
	s.c.WebhookURL = ptr(hook)
	checks("")
	s.inside(func() { registered.url = "https://elsewhere.example/" })
	checks("the answer is webhook_address")
	s.inside(func() { registered.url, registered.status = hook, "disabled" })
	checks("the answer is webhook_disabled")
	s.inside(func() { registered.status = "enabled" })
	if err := s.client.disconnect(t.Context(), s.c); err != nil || s.registered() != 0 {
		t.Errorf("disconnecting: %v, with %d webhooks", err, s.registered())
	}
	checks("the answer is webhook_gone")
	equal(t, "disconnecting what is gone", s.client.disconnect(t.Context(), s.c), nil)

	s.watches(func(r *http.Request, _ *testAnswer) *testAnswer {
		if r.URL.Path == stripeDisputes {
			return testFailure(403, "invalid_request_error", "more_permissions_required")
		}
		return nil
	})
	checks("reading /v1/disputes (the key needs the permissions Checkout Sessions: write")
	fresh := testConnection()
	if err := s.client.connect(t.Context(), fresh, hook); vendorSaid(err) != vendorDenied ||
		s.registered() != 0 || fresh.WebhookID != nil {
		t.Errorf("a key without a permission: %v, with %d webhooks", err, s.registered())
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.client.disconnect(ended, s.c); err == nil {
		t.Error("disconnecting without an answer succeeds")
	}
}

func TestStripe_everyRequestIsAcceptedByTheVendorsMock(t *testing.T) {
	t.Parallel()
	mock := startStripeMock(t)
	s := newStripeTest(t)
	seen := s.forwardTo(mock)
	const hook = "https://api.example.com/v1/payments/stripe/con_1"
	must(t, s.client.connect(t.Context(), s.c, hook))
	if lacks, err := s.client.check(t.Context(), s.c); err != nil || len(lacks) > 0 {
		t.Errorf("checking: %v, it lacks %v", err, lacks)
	}
	s.readsPayouts(mock)
	s.c.Methods = []string{methodTwint}
	must(t, s.client.checkMethods(t.Context(), s.c, hook))
	p := s.captured(1500)
	s.does(opRefund, p, 400)
	s.dispute(*p.IntentID, "needs_response")
	if r := s.looks(p); r.captured != 1500 || r.refunded != 400 || len(r.refunds) != 1 || len(r.disputes) != 1 {
		t.Errorf("captured and refunded in part: %+v", r)
	}
	for range stripeSessionsPage { // two pages
		p = s.starts()
	}
	s.does(opExpire, p, 0)
	p.SessionID = nil
	if r := s.looks(p); r.phase != phaseExpired {
		t.Errorf("expired: %+v", r)
	}
	p = s.authorized()
	s.does(opCancel, p, 0)
	if r := s.looks(p); r.phase != phaseCancelled {
		t.Errorf("cancelled: %+v", r)
	}
	must(t, s.client.disconnect(t.Context(), s.c))
	paths := map[string]bool{}
	for _, request := range *seen {
		parts := strings.Split(request, "/")
		for i, part := range parts {
			if strings.Contains(part, "_test_") {
				parts[i] = "{}"
			}
		}
		paths[strings.Join(parts, "/")] = true
	}
	if len(paths) != 15 { // every route of the test provider
		t.Errorf("it saw %d kinds of requests: %v", len(paths), paths)
	}
}

func TestStripe_tellsWhatWasReleasedFromWhatWasGivenBack(t *testing.T) {
	t.Parallel()
	const rest = 500 // of what was authorised was not captured
	for body, want := range map[string]bool{
		`{"amount":500,"status":"succeeded","balance_transaction":null,"metadata":{}}`:                        true,
		`{"amount":500,"status":"succeeded","metadata":{}}`:                                                   true,
		`{"amount":500,"status":"succeeded","balance_transaction":null,"metadata":{"refund":"ref_1"}}`:        false,
		`{"amount":500,"status":"succeeded","balance_transaction":"txn_1","metadata":{}}`:                     false,
		`{"amount":500,"status":"pending","balance_transaction":null,"metadata":{}}`:                          false,
		`{"amount":499,"status":"succeeded","balance_transaction":null,"metadata":{}}`:                        false,
		`{"amount":2000,"status":"succeeded","reason":"expired_uncaptured_charge","balance_transaction":"t"}`: true,
		`{"amount":500,"status":"succeeded","reason":"requested_by_customer","balance_transaction":"txn_1"}`:  false,
	} {
		var r stripeRefund
		must(t, json.Unmarshal([]byte(body), &r))
		equal(t, body, r.releases(rest), want)
	}
	whole := &stripeRefund{stripeReturn: stripeReturn{Status: "succeeded"}}
	if whole.releases(0) {
		t.Error("nothing was released of a payment that was captured whole")
	}
}

// paysOut adds a payout to the sandbox, with as many charges of 20.00 as are wanted.
func (s *stripeTest) paysOut(id string, arrival time.Time, charges int) {
	s.inside(func() {
		s.payouts = append([]testObject{{"id": id, "object": "payout", "automatic": true, "method": "standard",
			"status": "paid", "reconciliation_status": "completed", "currency": "chf", "amount": int64(charges) * 1942,
			"arrival_date": arrival.Unix()}}, s.payouts...)
		if s.moves == nil {
			s.moves = map[string][]testObject{}
		}
		for range charges {
			s.moves[id] = append(s.moves[id], testObject{"id": s.newID("txn_"), "object": "balance_transaction",
				"amount": 2000, "fee": 58, "net": 1942, "currency": "chf", "reporting_category": "charge",
				"fee_details": []testObject{{"amount": 58, "type": "stripe_fee"}}, "created": arrival.Unix(),
				"source": testObject{"id": s.newID("ch_"), "payment_intent": s.newID("pi_")}})
		}
	})
}

// readsPayout reads what is in a payout, and returns its rows.
func (s *stripeTest) readsPayout(id string) (rows []ledgerRow) {
	s.t.Helper()
	for after := ""; ; {
		page, next, err := s.client.payoutRows(s.t.Context(), s.c, id, after)
		must(s.t, err)
		if rows, after = append(rows, page...), next; after == "" {
			return rows
		}
	}
}

// readsPayouts reads a payout from the sandbox, so that the vendor's mock at an address judges the requests, and from
// the mock itself, whose only movement is in US dollars.
func (s *stripeTest) readsPayouts(mock string) {
	s.t.Helper()
	s.paysOut("po_1", s.clock(), stripePayoutsPage+1) // two pages
	from := newStamp(s.clock()).day()
	news, err := s.client.payouts(s.t.Context(), s.c, "", from, s.clock())
	if err != nil || len(news.payouts) != 1 {
		s.t.Fatalf("payouts: %+v %v", news, err)
	}
	equal(s.t, "rows", len(s.readsPayout(news.payouts[0].providerID)), stripePayoutsPage+1)

	own := newStripeProvider(s.client.outbound, mock)
	c := testConnection()
	c.secrets.Key = "sk_test_123"
	news, err = own.payouts(s.t.Context(), c, "2026-11-26", from, s.clock())
	if err != nil || len(news.payouts) != 1 || news.payouts[0].currency != "USD" {
		s.t.Fatalf("the mock's payouts: %+v %v", news, err)
	}
	rows, next, err := own.payoutRows(s.t.Context(), c, "po_other", "txn_1")
	if err != nil || len(rows) != 1 || rows[0].currency != "USD" || next != "" {
		s.t.Errorf("the mock's movements: %+v %q %v", rows, next, err)
	}
	if lacks, err := own.payoutLacks(s.t.Context(), c); err != nil || len(lacks) > 0 {
		s.t.Errorf("the mock lacks %v, %v", lacks, err)
	}
}

// Against a payout that is told to be paid, and fails some days later: it is listed again.
func TestStripePayout_isListedAgainForTwoWeeks(t *testing.T) {
	t.Parallel()
	s := newStripeTest(t)
	now := time.Date(2026, 11, 26, 23, 30, 0, 0, time.UTC)
	for day := 1; day <= 26; day++ {
		s.paysOut(fmt.Sprintf("po_%d", day), time.Date(2026, 11, day, 0, 0, 0, 0, time.UTC), 1)
	}
	for _, c := range []struct{ cursor, from, last string }{
		{"", "2026-11-20", "po_20"}, {"", "2026-10-01", "po_1"}, {"2026-11-26", "2026-11-20", "po_20"},
		{"2026-11-26", "2026-11-12", "po_12"}, {"2026-11-20", "2026-01-01", "po_6"},
		{"2026-11-10", "2026-01-01", "po_1"}, {"", "2026-11-27", ""}, {"2026-12-20", "2026-01-01", ""},
	} {
		news, err := s.client.payouts(t.Context(), s.c, c.cursor, c.from, now)
		must(t, err)
		last := ""
		for _, told := range news.payouts {
			last = told.providerID
		}
		equal(t, c.cursor+" from "+c.from, last, c.last)
		if news.cursor != "2026-11-26" || news.more || len(news.rows) > 0 {
			t.Errorf("%+v", news)
		}
	}
	for _, wrong := range []string{"yesterday", "2026-11-26 x"} {
		if news, err := s.client.payouts(t.Context(), s.c, wrong, "2026-11-26", now); news != nil || err == nil {
			t.Errorf("from %s on: %+v", wrong, news)
		}
	}
}

func TestStripePayout_namesTheMissingPermissions(t *testing.T) {
	t.Parallel()
	s := newStripeTest(t)
	const hook = "https://api.example.com/v1/payments/stripe/con_1"
	var denied []string // paths
	var answer *testAnswer
	s.watches(func(r *http.Request, _ *testAnswer) *testAnswer {
		for _, path := range denied {
			if r.URL.Path == path {
				return answer
			}
		}
		return nil
	})
	forbidden := testFailure(403, "invalid_request_error", "more_permissions_required")
	denied, answer = []string{stripePayouts, stripeMoves}, forbidden
	must(t, s.client.connect(t.Context(), s.c, hook)) // a key without them takes payments
	for _, c := range []struct {
		denied []string
		answer *testAnswer
		want   string
	}{
		{nil, nil, "[] <nil>"},
		{[]string{stripePayouts}, forbidden, "[Payouts: read] <nil>"},
		{[]string{stripeMoves}, forbidden, "[Balance Transaction Sources: read] <nil>"},
		{[]string{stripePayouts, stripeMoves}, forbidden,
			"[Payouts: read Balance Transaction Sources: read] <nil>"},
		{[]string{stripeMoves}, &testAnswer{status: 403, body: []byte("<html>")},
			"[] reading /v1/balance_transactions: the answer is http_403"},
		{[]string{stripePayouts}, testFailure(401, "invalid_request_error", "api_key_expired"),
			"[] reading /v1/payouts: the answer is api_key_expired"},
		{[]string{stripePayouts}, testOK(testObject{"object": "charge"}),
			"[] reading /v1/payouts: the answer is malformed_answer"},
	} {
		s.inside(func() { denied, answer = c.denied, c.answer })
		lacks, err := s.client.check(t.Context(), s.c)
		equal(t, fmt.Sprint(c.denied), fmt.Sprint(lacks, " ", err), c.want)
	}
}

// A stripeTest is the client of Stripe, connected to a sandbox whose clock the test moves.
type stripeTest struct {
	*testProvider
	t      testing.TB
	ahead  atomic.Int64 // of the provider's clock
	client *stripeProvider
	c      *unsealedConnection
	order  *order
}

const testReturnURL = "https://orders.example.com/done"

// newStripeTest starts a test provider on loopback.
func newStripeTest(t testing.TB) *stripeTest {
	t.Helper()
	s := &stripeTest{t: t}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.handler().ServeHTTP(w, r)
	}))
	o := newOutbound(demoOutbound)
	s.testProvider = newTestProvider(o, server.URL, s.clock)
	t.Cleanup(func() { server.Close(); s.close(); o.close() })
	s.client = newStripeProvider(o, server.URL)
	s.c = testConnection()
	s.order = &order{ID: newID("ord", s.clock()), Currency: "CHF", ExpiresAt: newStamp(s.clock()).after(time.Hour)}
	return s
}

func testConnection() *unsealedConnection {
	return &unsealedConnection{&paymentConnection{ID: newID("con", time.Now()), Provider: providerStripe},
		connectionSecrets{Key: "rk_test_123"}}
}

func (s *stripeTest) clock() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }

// inside looks into the provider, or changes it, between two calls.
func (s *stripeTest) inside(look func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	look()
}

// watches sets the provider's watch.
func (s *stripeTest) watches(watch func(*http.Request, *testAnswer) *testAnswer) {
	s.inside(func() { s.watch = watch })
}

// does carries out an operation, which must succeed.
func (s *stripeTest) does(kind string, p *payment, amount int64) sentOperation {
	s.t.Helper()
	op := testOperation(kind, p, amount)
	sent, err := s.client.send(s.t.Context(), s.c, op, s.client.call(op, p, s.order, testReturnURL))
	if err != nil {
		s.t.Fatalf("%s: %v", kind, err)
	}
	return sent
}

func testOperation(kind string, p *payment, amount int64) *paymentOperation {
	op := &paymentOperation{ID: newID("op", time.Now()), PaymentID: p.ID, Kind: kind, Amount: amount}
	if kind == opRefund {
		op.RefundID = ptr(newID("ref", time.Now()))
	}
	return op
}

// starts makes an attempt of 20.00, for which there is a session then.
func (s *stripeTest) starts() *payment {
	s.t.Helper()
	now := newStamp(s.clock())
	p := &payment{ID: newID("pay", now.Time), OrderID: s.order.ID, Method: methodCard, Amount: 2000, Currency: "CHF",
		State: paymentCreated, CreatedAt: now}
	done := s.does(opCreate, p, p.Amount)
	p.SessionID, p.URL, p.State = &done.sessionID, &done.url, paymentPending
	return p
}

// looks reads the state of an attempt, which must succeed, and keeps what it says.
func (s *stripeTest) looks(p *payment) *paymentReport {
	s.t.Helper()
	r, err := s.client.fetchStatus(s.t.Context(), s.c, p)
	must(s.t, err)
	p.SessionID, p.IntentID = nilIfEmpty(r.sessionID), nilIfEmpty(r.intentID)
	if r.captured > 0 {
		p.State = paymentCaptured
	}
	return r
}

// authorized starts an attempt and pays it.
func (s *stripeTest) authorized() *payment {
	s.t.Helper()
	p := s.starts()
	s.tryCard(*p.SessionID, true)
	s.looks(p)
	return p
}

// captured starts an attempt, pays it, and captures a part.
func (s *stripeTest) captured(amount int64) *payment {
	s.t.Helper()
	p := s.authorized()
	s.does(opCapture, p, amount)
	s.looks(p)
	return p
}

// failRefund lets a refund fail that had succeeded.
func (p *testProvider) failRefund(intentID, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.intent(intentID)
	r := i.refunds[slices.IndexFunc(i.refunds, func(r *testRefund) bool { return r.id == id })]
	r.status, r.failure = "failed", "lost_or_stolen_card"
	p.emit("refund.failed", r.object(i))
}

// dispute opens a dispute about all of a payment, or decides it: "needs_response", "won", "lost".
func (p *testProvider) dispute(intentID, status string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, kind := p.intent(intentID), "charge.dispute.closed"
	if len(i.disputes) == 0 {
		i.disputes, kind = append(i.disputes, &testDispute{p.newID("du_"), "", i.received, p.now().Unix(), 0}),
			"charge.dispute.created"
	}
	if i.disputes[0].status = status; status == "won" {
		i.disputes[0].reinstated = p.now().Unix()
	}
	p.emit(kind, i.disputes[0].object(i))
}

// startStripeMock starts the vendor's own mock, which knows the form of every request, and returns its
// address.
func startStripeMock(t testing.TB) string {
	t.Helper()
	programsOrSkip(t, "stripe-mock")
	cmd := exec.Command("stripe-mock", "-http-addr", "127.0.0.1:", "-https-addr", "127.0.0.1:", "-strict-version-check")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		io.Copy(io.Discard, out)
		cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if address, ok := strings.CutPrefix(lines.Text(), "Listening for HTTP at address: "); ok {
			go io.Copy(io.Discard, out) // what it logs of each request
			return "http://" + address
		}
	}
	t.Fatal("stripe-mock does not say where it listens")
	return ""
}

// forwardTo sends each request to the vendor's mock before it is carried out, and fails the test with what
// the mock refuses.
func (s *stripeTest) forwardTo(mock string) (seen *[]string) {
	seen = new([]string)
	s.watches(func(r *http.Request, acted *testAnswer) *testAnswer {
		if acted != nil {
			return nil
		}
		body, _ := io.ReadAll(r.Body)
		forwarded, err := http.NewRequest(r.Method, mock+r.URL.RequestURI(), bytes.NewReader(body))
		if err != nil {
			s.t.Error(err)
			return nil
		}
		forwarded.Header = r.Header.Clone()
		forwarded.Header.Set("Authorization", "Bearer sk_test_123")
		resp, err := http.DefaultTransport.RoundTrip(forwarded)
		if err != nil {
			s.t.Error(err)
			return nil
		}
		defer resp.Body.Close()
		if text, _ := io.ReadAll(resp.Body); resp.StatusCode >= 300 {
			s.t.Errorf("%s %s: stripe-mock answers %d to %s\n%s", r.Method, r.URL, resp.StatusCode, body, text)
		}
		*seen = append(*seen, r.Method+" "+r.URL.Path)
		return nil
	})
	return seen
}

// TestClients_sandboxOfStripe serves a sandbox at the address that WIDGETD_SANDBOX names, for the programs of
// .ci/clients/run, until its standard input ends.
func TestClients_sandboxOfStripe(t *testing.T) {
	t.Parallel()
	address := os.Getenv("WIDGETD_SANDBOX")
	if address == "" {
		t.Skip("WIDGETD_SANDBOX names no address: .ci/clients/run runs this test")
	}
	sandbox := newTestProvider(newOutbound(demoOutbound), "http://"+address, time.Now)
	defer sandbox.close()
	listener, err := net.Listen("tcp", address)
	must(t, err)
	web := &http.Server{Handler: sandbox.handler()}
	go web.Serve(listener)
	defer web.Close()
	io.Copy(io.Discard, os.Stdin)
}
