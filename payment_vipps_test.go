package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
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
	c    *unsealedConnection
	p    *payment
	at   time.Time
}

func newVippsSide(t testing.TB) *vippsSide {
	s := &vippsSide{t: t, at: time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)}
	s.fake = newVippsFake(t, func() time.Time { return s.at })
	s.vippsProvider = newVippsProvider(outboundTo(t, loopbackRange), s.fake.base+"/", s.fake.now)
	s.c = &unsealedConnection{&paymentConnection{ID: newID("con", s.at)}, s.fake.secrets}
	s.p = &payment{ID: newID("pay", s.at), Currency: "NOK", Amount: 5000, CreatedAt: newStamp(s.at)}
	return s
}

// do sends a new operation on the attempt.
func (s *vippsSide) do(kind string, amount int64) (*paymentOperation, sentOperation, error) {
	s.t.Helper()
	op := &paymentOperation{ID: newID("opr", s.at), PaymentID: s.p.ID, Kind: kind, Amount: amount}
	sent, err := s.again(op)
	return op, sent, err
}

// again sends an operation.
func (s *vippsSide) again(op *paymentOperation) (sentOperation, error) {
	s.t.Helper()
	call := s.call(op, s.p, &order{ID: "ord_1"}, "https://www.example.com/return")
	return s.send(s.t.Context(), s.c, op, call)
}

// done sends a new operation on the attempt, which must be carried out.
func (s *vippsSide) done(kind string, amount int64) *paymentOperation {
	s.t.Helper()
	op, _, err := s.do(kind, amount)
	if err != nil {
		s.t.Fatalf("%s: %v", kind, err)
	}
	return op
}

// report reads the attempt.
func (s *vippsSide) report() *paymentReport {
	s.t.Helper()
	report, err := s.fetchStatus(s.t.Context(), s.c, s.p)
	must(s.t, err)
	return report
}

// callVipps makes a call of our client, of which one request is answered at an address.
func callVipps(t testing.TB, address, call string) string {
	s := newVippsSide(t)
	s.p.ID = "pay_01jd8z6q6r1w5qk1m2n3p4r5s6"
	method, path := "POST", "/epayment/"
	switch call {
	case "token":
		path = vippsTokenPath
	case "ledgers":
		method, path = "GET", vippsLedgers
		s.fake.ledgers = []string{"302321"}
	case "report":
		method, path = "GET", "/report/v2/ledgers/302321/funds/dates/2026-11-20"
		s.fake.ledgers = []string{"302321"}
	case "look":
		method, path = "GET", vippsPath(s.p.ID, "")
	case "events":
		method, path = "GET", vippsPath(s.p.ID, "/events")
		s.done(opCreate, 5000)
		s.fake.approve(s.p.ID)
		s.done(opCapture, 5000)
		s.again(&paymentOperation{ID: "opr_01jd8z6q6r1w5qk1m2n3p4r5s6", PaymentID: s.p.ID, Kind: opRefund, Amount: 100})
	}
	s.fake.strikes(func(r vendorRequest, acted bool) *vendorFault {
		if acted || r.method != method || r.path != path && (call == "look" || !strings.HasPrefix(r.path, path)) {
			return nil
		}
		return answersWith(fetched(t, address))
	})
	switch call {
	case "ledgers", "report":
		return newsText(s.payouts(t.Context(), s.c, "", "2026-11-20", s.at))
	case "look", "events":
		return reportText(s.fetchStatus(t.Context(), s.c, s.p))
	case "token":
		call = opCreate
	}
	_, sent, err := s.do(call, 5000)
	return refusalText(sent, err)
}

// is compares what is of interest in a report.
func (r *paymentReport) is(t testing.TB, phase paymentPhase, authorized, captured, refunded int64) {
	t.Helper()
	if r.phase != phase || r.authorized != authorized || r.captured != captured || r.refunded != refunded {
		t.Errorf("phase %d, %d authorised, %d captured, %d refunded; not phase %d, %d, %d, %d",
			r.phase, r.authorized, r.captured, r.refunded, phase, authorized, captured, refunded)
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

// answerOf has GET requests for a path answered with a body.
func answerOf(path, body string) func(vendorRequest, bool) *vendorFault {
	return func(r vendorRequest, acted bool) *vendorFault {
		if r.path == path && r.method == "GET" {
			return answersWith(200, nil, body)
		}
		return nil
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
	s.fake.strikes(func(r vendorRequest, acted bool) *vendorFault {
		if r.method == "GET" {
			return answersWith(401, nil, "")
		}
		return nil
	})
	var failed *outboundError
	if _, err := s.fetchStatus(t.Context(), s.c, s.p); !errors.As(err, &failed) || failed.outcome != vendorDenied {
		t.Errorf("%v", err)
	}
	equal(t, "tokens, when every one is refused", s.fake.came("POST", vippsTokenPath), 4)
	equal(t, "requests, when every token is refused", s.fake.came("GET", vippsPath(s.p.ID, ""))-before, 2)
}

// Against a 401 or a proxy's 408 to a capture or refund that would have it done twice, or taken for refused: at
// Vipps the payment is read before it is sent again; at Stripe the same key is used.
func TestVipps_whatMovesMoneyIsReadBeforeItIsSentAgainAfterA401(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	op := &paymentOperation{ID: "op_1", PaymentID: s.p.ID, Kind: opRefund, Amount: 100}
	call := s.call(op, s.p, nil, "")
	s.fake.strikes(func(r vendorRequest, acted bool) *vendorFault {
		if r.path == call.Path {
			return answersWith(401, nil, "")
		}
		return nil
	})
	isVendorError(t, second(s.send(t.Context(), s.c, op, call)), vendorUnknown, 401, "http_401")
	if n := s.fake.came("POST", call.Path); n != 1 {
		t.Errorf("it was sent %d times", n)
	}
	op.Status = new(http.StatusUnauthorized) // as the first answer was written
	isVendorError(t, second(s.send(t.Context(), s.c, op, call)), vendorDenied, 401, "http_401")
	if tokens := s.fake.came("POST", vippsTokenPath); tokens != 2 {
		t.Errorf("%d tokens", tokens)
	}
}

func TestVipps_oneAccessTokenIsAskedForAtATime(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	s.fake.strikes(func(r vendorRequest, acted bool) *vendorFault {
		if r.path == vippsTokenPath && !acted && s.fake.came("POST", vippsTokenPath) > 1 {
			t.Error("a second token is asked for")
		}
		return nil
	})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := s.fetchStatus(t.Context(), s.c, s.p); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	s.drop(s.c.ID, nil)
	if _, err := s.fetchStatus(gone, s.c, s.p); err == nil {
		t.Error("the caller has gone")
	}
	s.fake.strikes(nil)
	s.report()
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
func vippsExample() (*unsealedConnection, *http.Request) {
	c := &unsealedConnection{&paymentConnection{WebhookURL: ptr(vippsExampleURL)},
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
	refuses := func(name string, change func(c *unsealedConnection, h http.Header, body []byte)) {
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
		refuses(name, func(_ *unsealedConnection, h http.Header, _ []byte) { h[header[0]] = header[1:] })
	}
	for name, change := range map[string]func(c *unsealedConnection){
		"another host": func(c *unsealedConnection) {
			c.WebhookURL = ptr(strings.Replace(vippsExampleURL, "site/", "sites/", 1))
		},
		"another path":      func(c *unsealedConnection) { c.WebhookURL = ptr(vippsExampleURL + "?") },
		"another secret":    func(c *unsealedConnection) { c.secrets.WebhookSecret += "=" },
		"no secret":         func(c *unsealedConnection) { c.secrets.WebhookSecret = "" },
		"no webhook at all": func(c *unsealedConnection) { c.WebhookURL = nil },
	} {
		refuses(name, func(c *unsealedConnection, _ http.Header, _ []byte) { change(c) })
	}
	refuses("another body", func(_ *unsealedConnection, _ http.Header, body []byte) { body[5]++ })
}

// signedNotice has a webhook with a body read, signed for a connection.
func signedNotice(v *vippsProvider, body string) (paymentNotice, error) {
	c, r := vippsExample()
	signed := signVipps(vippsExampleSecret, vippsExampleURL, vippsExampleDate, []byte(body))
	r.Header.Set("X-Ms-Content-Sha256", signed.hash)
	r.Header.Set("Authorization", signed.authorization)
	return v.notice(c, r, []byte(body), time.Now())
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

func TestVipps_registrationWhoseAnswerIsLostLeavesNoWebhook(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]*vendorFault{
		"reset":     {reset: true},
		"500":       answersWith(500, nil, ""),
		"nonsense":  answersWith(201, nil, "ok"),
		"no secret": answersWith(201, nil, `{"id":"webhook-1"}`),
		"a bad id":  answersWith(201, nil, `{"id":"../..","secret":"a"}`),
	} {
		s := newVippsSide(t)
		s.fake.webhooks["other"] = &vippsFakeWebhook{id: "other", url: "https://other.example/"}
		s.fake.strikes(func(r vendorRequest, acted bool) *vendorFault {
			if r.path == vippsWebhooks && r.method == "POST" && acted {
				return trouble
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
