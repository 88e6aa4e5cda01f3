package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What comes of a call to an outside system: an answer, or an *outboundError with its outcome. All clients of payment
// providers and of books say what has happened by these outcomes; each only tells its vendor's own refusals from others
// (classify).

// An outboundRequest is one request to send.
type outboundRequest struct {
	method, url string
	header      http.Header // User-Agent is added where there is none
	body        []byte
	largest     int64 // bytes of the answer's body that are read; 0: maxOutboundBody
}

// bodyText returns v as JSON, for the body of a request.
func bodyText(v any) string { return strings.TrimSpace(string(encodeJSON(v))) }

// An outboundAnswer is what came back.
type outboundAnswer struct {
	status int
	header http.Header
	body   []byte // at most outboundRequest.largest bytes, as they were sent: compressed ones stay so
	inner  bool   // it came from an address that only -outbound-allow admits, so its body must not be shown
}

// ok reports whether the status is 2xx.
func (a *outboundAnswer) ok() bool { return a.status >= 200 && a.status < 300 }

// A vendorOutcome says what has become of a call that was not answered as it should be.
type vendorOutcome int

const (
	vendorUnknown   vendorOutcome = iota // no usable answer: whether the vendor has acted is not known
	vendorRefused                        // the vendor has not acted, and will not when the same is sent again
	vendorMissing                        // vendorRefused, since what the call is about does not exist there
	vendorOwnerGone                      // vendorRefused, until the owner of the connection connects it again
	vendorDenied                         // the vendor refuses the keys or the access token
	vendorBusy                           // the vendor asks to wait; with no status, the call was not made at all
	vendorStale                          // the key replays an earlier failure: look, and then use another key
)

// The reasons of an outboundError that has no answer, and of one that can't be read.
const (
	outboundTimeout   = "timeout"
	outboundNoAddress = "no_public_address" // the host has no address, or none that may be called
	outboundNoConnect = "connection"        // refused, reset or closed without an answer
	outboundTLS       = "tls"               // no TLS 1.2 or later, or a certificate that can't be verified
	outboundTooLarge  = "answer_too_large"
	outboundMalformed = "malformed_answer" // what came back is not HTTP/1.1, or not what was asked for
	outboundRefused   = "address_refused"  // checkURL refuses the URL
	outboundCanceled  = "canceled"         // the caller's context was canceled, or nothing may be called
)

// An outboundError says why a call was not answered as it should be.
type outboundError struct {
	outcome vendorOutcome
	status  int           // of the answer; 0: there was none
	reason  string        // one of the constants above, or a code of the vendor
	detail  string        // for people, from the vendor's own message; "": none
	ofOrder bool          // of a new attempt to pay: what is wrong is only in this order
	wait    time.Duration // how long the vendor asks to wait; 0: it does not say
	err     error         // why there is no answer; nil: there is one
}

func (e *outboundError) Error() string {
	if e.err != nil {
		return e.reason + ": " + e.err.Error()
	}
	text := e.reason
	if e.status != 0 {
		text = "the answer is " + e.reason
	}
	if e.detail != "" {
		text += ": " + e.detail
	}
	return text
}

// Unwrap returns the error below.
func (e *outboundError) Unwrap() error { return e.err }

// final reports whether the vendor has not acted, and will not when the same is sent again.
func (e *outboundError) final() bool {
	return e.outcome == vendorRefused || e.outcome == vendorMissing || e.outcome == vendorOwnerGone
}

// noAnswer returns the error of a call that has no answer.
func noAnswer(reason string, err error) *outboundError {
	return &outboundError{reason: reason, err: err}
}

// malformedAnswer returns the error of an answer that can't be what was asked for, though its status says so.
func malformedAnswer(status int) *outboundError {
	return &outboundError{status: status, reason: outboundMalformed}
}

// vendorSaid returns the outcome of an error of a call; vendorUnknown: it is nil, or of something else.
func vendorSaid(err error) vendorOutcome {
	if failed, ok := errors.AsType[*outboundError](err); ok {
		return failed.outcome
	}
	return vendorUnknown
}

// reasonOf returns the reason of an error of a call; "": it is nil, or of something else.
func reasonOf(err error) string {
	if failed, ok := errors.AsType[*outboundError](err); ok {
		return failed.reason
	}
	return ""
}

// isMissing reports whether the vendor itself says that what a call is about does not exist. A 404 of a proxy in
// between proves nothing: an entry that is taken as missing may be written again.
func isMissing(err error) bool { return vendorSaid(err) == vendorMissing }

// passingStatuses are the statuses below 500 that do not mean that the request itself is wrong, and say nothing about
// whether it was carried out.
var passingStatuses = []int{
	http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests,
}

// outcome returns what HTTP says of an answer whose status is not 2xx. own reports whether the answer has the
// vendor's own form: any other may be of a proxy in between, and proves nothing.
func (a *outboundAnswer) outcome(own bool) vendorOutcome {
	switch {
	case a.status == http.StatusTooManyRequests:
		return vendorBusy
	case !own || a.status < 400 || a.status >= 500 || slices.Contains(passingStatuses, a.status):
		return vendorUnknown
	case a.status == http.StatusUnauthorized, a.status == http.StatusForbidden:
		return vendorDenied
	case a.status == http.StatusNotFound:
		return vendorMissing
	}
	return vendorRefused
}

// ask is do for a client of a vendor: an answer whose status is not 2xx is an error, too, beside the answer. classify
// sets the outcome and the reason of that error; before, they are vendorUnknown and a text such as "http_502". now is
// the wall clock.
func (o *outbound) ask(
	ctx context.Context, q outboundRequest, now time.Time, classify func(*outboundAnswer, *outboundError),
) (*outboundAnswer, error) {
	answer, err := o.do(ctx, q)
	if err != nil || answer.ok() {
		return answer, err
	}
	failed := &outboundError{status: answer.status, reason: "http_" + strconv.Itoa(answer.status)}
	failed.wait, _ = retryAfter(answer.header, now)
	classify(answer, failed)
	return answer, failed
}

// jittered returns d and up to a tenth more, at random, so that requests that failed together are not
// retried together.
func jittered(d time.Duration) time.Duration {
	if d <= 0 {
		return d
	}
	return d + rand.N(d/10+1)
}

// retryAfter returns how long from now an answer asks to wait, at most maxRetryAfter: its header
// Retry-After, in seconds or as a date (RFC 9110, section 10.2.3). A date in the past is 0. It
// reports false if there is none that can be read.
func retryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	text := strings.TrimSpace(h.Get("Retry-After"))
	if text != "" && strings.Trim(text, "0123456789") == "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if most := int64(maxRetryAfter / time.Second); err != nil || n > most { // err: it overflows an int64
			n = most
		}
		return time.Duration(n) * time.Second, true
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), 0), maxRetryAfter), true
}
