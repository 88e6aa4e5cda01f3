package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A vendorFake is what the fakes of vendors have in common: where each is served, its clock, what came, what goes
// wrong with it, and one function that does what is asked. A fake sets operation and act, and embeds it.
type vendorFake struct {
	t         testing.TB
	base      string                             // its address, without a slash at its end
	operation func(method, path string) string   // names what a request asks for
	act       func(r vendorRequest) vendorAnswer // does it; the caller holds mu

	mu       sync.Mutex
	now      func() time.Time
	requests []vendorRequest
	number   int                                            // of what was made so far, for ids, codes and tokens
	faults   map[string][]vendorFault                       // by operation
	passing  func(r vendorRequest)                          // if not nil, is called when a request comes
	meddle   func(r vendorRequest, acted bool) *vendorFault // or says what goes wrong with it, before and after
}

// A vendorRequest is a request that came.
type vendorRequest struct {
	method, path string
	query        url.Values
	header       http.Header
	body         []byte
	at           time.Time // by the clock of the fake
}

// key is its idempotency key.
func (r *vendorRequest) key() string { return r.header.Get("Idempotency-Key") }

// answersWith is a fault: there is another answer.
func answersWith(status int, header http.Header, body string) *vendorFault {
	return &vendorFault{answer: vendorAnswer{status, header, body}}
}

// A vendorAnswer is an answer. Its body is a text, or nil, or what is sent as JSON.
type vendorAnswer struct {
	status int
	header http.Header
	body   any
}

// A vendorFault is what goes wrong with one request, before what was asked is done, or after it.
type vendorFault struct {
	after, reset, hang bool // reset: the connection is; hang: there is no answer until the caller has gone
	answer             vendorAnswer
}

// vendorFaults are the ways in which a vendor fails to answer. They are made when a test asks for them, since each
// program that tests start is this one, and would make a long body for nothing.
var vendorFaults = sync.OnceValue(func() map[providerFault]vendorFault {
	return map[providerFault]vendorFault{
		faultResetBefore: {reset: true},
		faultResetAfter:  {after: true, reset: true},
		faultTimeout:     {after: true, hang: true},
		fault401:         {answer: vendorAnswer{401, nil, `{"message":"Unauthorized"}`}},
		fault401After:    {after: true, answer: vendorAnswer{401, nil, `{"message":"Unauthorized"}`}},
		fault403:         {answer: vendorAnswer{403, nil, "<html>Forbidden by the firewall</html>"}},
		fault404:         {answer: vendorAnswer{404, nil, "<html>Not Found</html>"}},
		fault413:         {answer: vendorAnswer{413, nil, `{"statusCode":413,"message":"Request Too Long"}`}},
		fault429:         {answer: vendorAnswer{429, http.Header{"Retry-After": {"3"}}, nil}},
		fault429After:    {after: true, answer: vendorAnswer{429, http.Header{"Retry-After": {"3"}}, nil}},
		fault500:         {answer: vendorAnswer{500, nil, `{"title":"An error occurred"}`}},
		fault500After:    {after: true, answer: vendorAnswer{500, nil, `{"title":"An error occurred"}`}},
		faultNonsense:    {after: true, answer: vendorAnswer{200, nil, `{"id":`}},
		faultHuge:        {after: true, answer: vendorAnswer{200, nil, strings.Repeat(" ", 8<<20)}},
	}
})

// fail has the next requests for an operation fail, instead of what was to go wrong with it; no fault: none does.
func (f *vendorFake) fail(operation string, faults ...providerFault) {
	var next []vendorFault
	for _, name := range faults {
		next = append(next, vendorFaults()[name])
	}
	f.strike(operation, next...)
}

// strike has the next requests for an operation go wrong, as fail does.
func (f *vendorFake) strike(operation string, faults ...vendorFault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.faults == nil {
		f.faults = map[string][]vendorFault{}
	}
	f.faults[operation] = faults
}

// strikes sets what goes wrong with requests from now on; nil: nothing.
func (f *vendorFake) strikes(meddle func(r vendorRequest, acted bool) *vendorFault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.meddle = meddle
}

// ServeHTTP answers a request, after and before what goes wrong with it.
func (f *vendorFake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil { // whoever asks has gone
		return
	}
	request := vendorRequest{r.Method, r.URL.Path, r.URL.Query(), r.Header, body, f.now()}
	operation := f.operation(r.Method, r.URL.Path)
	f.mu.Lock()
	f.requests = append(f.requests, request)
	var fault *vendorFault
	if faults := f.faults[operation]; len(faults) > 0 {
		fault, f.faults[operation] = &faults[0], faults[1:]
	}
	passing, meddle := f.passing, f.meddle
	f.mu.Unlock()
	if passing != nil {
		passing(request)
	}
	if meddle != nil {
		fault = meddle(request, false)
	}
	if fault != nil && !fault.after {
		fault.strike(w, r)
		return
	}
	f.mu.Lock()
	answer := f.act(request)
	f.mu.Unlock()
	if meddle != nil {
		fault = meddle(request, true)
	}
	if fault != nil {
		fault.strike(w, r)
		return
	}
	answer.write(w)
}

// strike makes the fault.
func (fault *vendorFault) strike(w http.ResponseWriter, r *http.Request) {
	switch {
	case fault.hang:
		<-r.Context().Done()
	case fault.reset:
		if r.Method == "GET" { // some of the answer comes: without any, net/http would send it again
			w.Header().Set("Content-Length", "1000")
			w.WriteHeader(http.StatusOK)
			http.NewResponseController(w).Flush()
		}
		panic(http.ErrAbortHandler)
	default:
		fault.answer.write(w)
	}
}

func (a vendorAnswer) write(w http.ResponseWriter) {
	if a.body != nil {
		w.Header().Set("Content-Type", "application/json")
	}
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.status)
	if text, plain := a.body.(string); plain {
		io.WriteString(w, text)
	} else if a.body != nil {
		json.NewEncoder(w).Encode(a.body)
	}
}

// serve serves a fake until the test ends. Not for bubbles, which have serveInMemory.
func (f *vendorFake) serve() {
	web := httptest.NewServer(f)
	f.base = web.URL
	f.t.Cleanup(web.Close)
}

// came returns how many requests came to a path.
func (f *vendorFake) came(method, path string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requests {
		if r.method == method && r.path == path {
			n++
		}
	}
	return n
}

// What a vendor's answer means is said as text: testdata/vendor/NAME.answers has what a vendor answers, and what our
// client makes of it.
//
//	# A comment
//	call: post                        what is asked for from here on, see vendorCalls
//	< 429 {"message":"Slow down"}     an answer: its status, its body,
//	Retry-After: 17                   and its headers
//	= rate_limited, again in 17s      what it means, and those above it since the last such line
//	body: {"id":"1","n":2}            a body of answers from here on,
//	< 200 ~ "1" -> "7" ~ 2 -> 3       each with some of it replaced
//
// A line that begins with white space continues the one above it. <<9 TEXT>> is TEXT nine times, in which # is the
// number of each.
func TestAnswers(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	files, err := filepath.Glob("testdata/vendor/*.answers")
	must(t, err)
	if len(files) < len(vendorCalls) {
		t.Fatalf("there are %d files of answers", len(files))
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".answers")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answers, err := readAnswers(file)
			must(t, err)
			for _, a := range answers {
				web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { a.write(w) }))
				if got := vendorCalls[name](t, web.URL, a.call); got != a.want {
					t.Errorf("%s: %s means\n%s, want\n%s", a.at, a.call, got, a.want)
				}
				web.Close()
			}
		})
	}
}

// vendorCalls makes a call of a vendor's client at an address, and returns what came of it.
var vendorCalls = map[string]func(t testing.TB, address, call string) string{
	productXero:    func(t testing.TB, at, call string) string { return callBooks(t, productXero, at, call) },
	productFortnox: func(t testing.TB, at, call string) string { return callBooks(t, productFortnox, at, call) },
	providerStripe: callStripe,
	providerVipps:  callVipps,
}

// fetched returns what is answered at an address, as it is.
func fetched(t testing.TB, address string) (status int, header http.Header, body string) {
	t.Helper()
	r, err := http.NewRequest("GET", address, nil)
	must(t, err)
	resp, err := http.DefaultTransport.RoundTrip(r)
	must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, resp.Header, string(text)
}

// sentText says what came of an operation of a payment.
func sentText(sent sentOperation, err error) string {
	failed, _ := errors.AsType[*outboundError](err)
	text := "done"
	switch {
	case failed == nil:
		failed = &outboundError{}
	case failed.final():
		text = "refused"
	case failed.outcome == vendorStale:
		text = "stale"
	case failed.outcome == vendorDenied:
		text = "denied"
	default:
		text = "unknown"
	}
	for _, more := range []string{failed.reason, sent.sessionID, sent.refundID, sent.url} {
		if more != "" {
			text += " " + more
		}
	}
	if failed.wait > 0 {
		text += ", again in " + failed.wait.String()
	}
	return text
}

// reportText says how an attempt to pay is: its phase, what is authorised, captured and given back, and how.
func reportText(r *paymentReport, err error) string {
	if failed, ok := errors.AsType[*outboundError](err); ok {
		text := failed.reason
		if failed.outcome == vendorDenied {
			text += ", denied"
		}
		if failed.wait > 0 {
			text += ", again in " + failed.wait.String()
		}
		return text
	}
	if err != nil {
		return err.Error()
	}
	text := fmt.Sprint([]string{"not there", "open", "approved", "cancelled", "expired", "failed"}[r.phase], " ",
		r.authorized, " ", r.captured, " ", r.refunded)
	for _, f := range r.refunds {
		text += strings.TrimSuffix(fmt.Sprint("; ", f.amount, " ", f.state, " ", f.providerID, " ", f.operationID), " ")
	}
	if len(r.done) > 0 {
		text += ", done " + strings.Join(r.done, " ")
	}
	return text
}

// newsText says what a provider pays out: its payouts, its rows, and from where it goes on.
func newsText(news *payoutNews, err error) string {
	if err != nil {
		return failureText(err)
	}
	var parts []string
	for i := range news.payouts {
		parts = append(parts, payoutText(&news.payouts[i]))
	}
	text := strings.Join(append(parts, rowTexts(news.rows)...), "; ") + ", then " + news.cursor
	if news.more {
		text += " at once"
	}
	return strings.TrimSpace(strings.TrimPrefix(text, ", "))
}

// rowsText says what is on a page of what is in a payout, and from where it goes on.
func rowsText(rows []ledgerRow, next string, err error) string {
	text := newsText(&payoutNews{rows: rows, cursor: next}, err)
	return strings.TrimSuffix(strings.TrimSuffix(text, "then"), ", ")
}

// payoutText says what a provider reports of a payout.
func payoutText(p *payoutReport) string {
	text := fmt.Sprint(p.providerID, " ", p.amount, " ", p.currency, " ", p.arrival, " ", p.status)
	if !p.automatic {
		text += " manual"
	}
	if p.complete {
		text += " complete"
	}
	return text + strings.TrimRight(" "+p.method, " ")
}

// rowTexts says what each row of a ledger is: its kind, amount, fee and tax, and what it is about.
func rowTexts(rows []ledgerRow) (texts []string) {
	for _, r := range rows {
		text := fmt.Sprint(r.category, " ", r.kind, " ", r.amount, " ", r.fee, " ", r.tax, " ", r.currency)
		for _, about := range []string{r.paymentID, r.intentID, r.source} {
			if about != "" {
				text += " " + about
			}
		}
		if r.schedules != nil {
			text += " schedules " + payoutText(r.schedules)
		}
		texts = append(texts, text)
	}
	return texts
}

// failureText says why a call failed.
func failureText(err error) string {
	_, text, _ := strings.Cut(sentText(sentOperation{}, err), " ")
	if vendorSaid(err) == vendorDenied {
		text += ", denied"
	}
	return text
}

// A meantAnswer is an answer of a vendor, and what it means.
type meantAnswer struct {
	vendorAnswer
	at, call, want string
}

var (
	answerRepeats = regexp.MustCompile(`<<(\d+) (.*?)>>`)
	answerHeader  = regexp.MustCompile(`^[A-Z][A-Za-z-]+: `)
)

// readAnswers reads a file of answers.
func readAnswers(file string) (all []meantAnswer, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	lines := regexp.MustCompile(`\n[ \t]+`).ReplaceAllString(string(text), " ")
	call, base, meant := "", "", 0
	for line := range strings.Lines(lines) {
		line = answerRepeats.ReplaceAllStringFunc(strings.TrimSuffix(line, "\n"), repeated)
		verb, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "", verb == "#":
		case verb == "call:":
			call = rest
		case verb == "body:":
			base = rest
		case verb == "<":
			code, body, _ := strings.Cut(rest, " ")
			status, err := strconv.Atoi(code)
			changes, changed := strings.CutPrefix(body, "~")
			if changed && err == nil {
				body, err = changedBody(base, changes)
			}
			if err != nil || call == "" {
				return nil, fmt.Errorf("%s: what is %q?", file, line)
			}
			all = append(all, meantAnswer{vendorAnswer{status, http.Header{}, body}, file + ": " + line, call, ""})
		case verb == "=" && meant < len(all):
			for ; meant < len(all); meant++ {
				all[meant].want = rest
			}
		case answerHeader.MatchString(line) && meant < len(all):
			all[len(all)-1].header.Set(strings.TrimSuffix(verb, ":"), rest)
		default:
			return nil, fmt.Errorf("%s: what is %q?", file, line)
		}
	}
	if meant < len(all) {
		return nil, fmt.Errorf("%s: what does the last answer mean?", file)
	}
	return all, nil
}

// changedBody returns a body in which some is replaced: "a -> b ~ c -> d".
func changedBody(body, changes string) (string, error) {
	for change := range strings.SplitSeq(changes, " ~ ") {
		from, to, _ := strings.Cut(strings.TrimSpace(change), " -> ")
		if !strings.Contains(body, from) {
			return "", fmt.Errorf("there is no %s", from)
		}
		body = strings.Replace(body, from, to, 1)
	}
	return body, nil
}

// repeated is a text of answerRepeats written out.
func repeated(text string) string {
	m := answerRepeats.FindStringSubmatch(text)
	n, _ := strconv.Atoi(m[1])
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.ReplaceAll(m[2], "#", strconv.Itoa(i)))
	}
	return b.String()
}
