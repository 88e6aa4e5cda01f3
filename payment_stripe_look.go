package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// How an attempt stands at Stripe: its session, the session's PaymentIntent with its charge, and the refunds and
// disputes of that. Answers are decoded by encoding/json rather than parseJSON, since disputes are nested deeper
// than the JSON that our own callers may send; a member of a wrong type makes the answer malformed.

const (
	// The pages of lists are small enough for outbound to read them whole: a session has some 4 KB, and a
	// dispute may have long texts of evidence. A charge seldom has two disputes.
	stripeSessionsPage = 10
	stripeRefundsPage  = 20
	stripeDisputesPage = 1
	maxStripePages     = 50

	// An unknown session was requested at most keysLast after its attempt was made, give or take this much.
	stripeClockSkew = 5 * time.Minute
)

// A stripePage is one page of a list at Stripe.
type stripePage[T any] struct {
	Object string `json:"object"` // "list"
	Data   []T    `json:"data"`
	More   bool   `json:"has_more"`
}

// valid reports whether a page can be one of at most size elements.
func (p *stripePage[T]) valid(size int) bool {
	return p.Object == "list" && len(p.Data) <= size && (!p.More || len(p.Data) > 0)
}

// A stripeSession is a Checkout Session, expanded to its PaymentIntent and that to its latest charge.
type stripeSession struct {
	stripeObject
	Total    *int64        `json:"amount_total"`
	Currency string        `json:"currency"`
	Intent   *stripeIntent `json:"payment_intent"` // nil until the guest has tried to pay
}

// A stripeIntent is a PaymentIntent.
type stripeIntent struct {
	ID          string        `json:"id"`
	Object      string        `json:"object"`
	Status      string        `json:"status"`
	Amount      int64         `json:"amount"`
	Capturable  int64         `json:"amount_capturable"`
	Received    int64         `json:"amount_received"`
	Currency    string        `json:"currency"`
	CancelledBy string        `json:"cancellation_reason"`
	Charge      *stripeCharge `json:"latest_charge"`
	LastError   struct {
		Code string `json:"code"`
	} `json:"last_payment_error"`
}

// A stripeCharge is the latest charge of a PaymentIntent: that of the last card that was tried.
type stripeCharge struct {
	ID       string `json:"id"`
	Object   string `json:"object"`
	Amount   int64  `json:"amount"`
	Captured int64  `json:"amount_captured"`
	Refunded int64  `json:"amount_refunded"`
	Disputed bool   `json:"disputed"`

	// What it has moved of the balance: null until it is captured, then an id or, if it is asked for, an object.
	Moved json.RawMessage `json:"balance_transaction"`

	Details struct {
		Card struct {
			CaptureBefore int64 `json:"capture_before"` // Unix seconds; 0: not known
		} `json:"card"`
	} `json:"payment_method_details"`
}

// fetchStatus implements provider.
func (s *stripeProvider) fetchStatus(ctx context.Context, c *unsealedConnection, p *payment) (*paymentReport, error) {
	id := valueOr(p.SessionID, "")
	if id == "" {
		found, err := s.findSession(ctx, c, p)
		if err != nil || found == "" {
			return &paymentReport{phase: phaseUnknown}, err
		}
		id = found
	}
	session, err := s.readSession(ctx, c, id, p.CapturedAt.IsZero())
	if isMissing(err) {
		return &paymentReport{phase: phaseUnknown}, nil
	}
	if err != nil {
		return nil, err
	}
	report, ok := session.report(id, p)
	if !ok {
		return nil, malformedAnswer(http.StatusOK)
	}
	if i := session.Intent; i != nil && i.Charge != nil && report.captured > 0 {
		charge := i.Charge
		if charge.Refunded > 0 || !p.live() { // Refunded no longer includes those that failed
			if err := s.readRefunds(ctx, c, report, charge); err != nil {
				return nil, err
			}
		}
		if charge.Disputed {
			if err := s.readDisputes(ctx, c, report); err != nil {
				return nil, err
			}
		}
	}
	return report, nil
}

// readSession reads a session with its intent, the intent's latest charge and, if moved is true, what that has moved
// of the balance: nothing else tells when a card was captured. A key that may not read this gets the rest.
func (s *stripeProvider) readSession(
	ctx context.Context, c *unsealedConnection, id string, moved bool,
) (session *stripeSession, err error) {
	path, expand := stripeSessions+"/"+url.PathEscape(id), "payment_intent.latest_charge"
	if session = new(stripeSession); moved {
		err = s.get(ctx, c, path, url.Values{"expand[]": {expand + ".balance_transaction"}}, session)
		if failed, ok := errors.AsType[*outboundError](err); !ok || failed.status != http.StatusForbidden {
			return session, err
		}
	}
	return session, s.get(ctx, c, path, url.Values{"expand[]": {expand}}, session)
}

// capturedAt returns when a charge was captured, as far as was asked for and is told; zero: it is not.
func (c *stripeCharge) capturedAt() time.Time {
	var moved struct {
		Created int64 `json:"created"` // Unix seconds
	}
	if json.Unmarshal(c.Moved, &moved) != nil || moved.Created == 0 || !isStripeTime(moved.Created) {
		return time.Time{}
	}
	return time.Unix(moved.Created, 0).UTC()
}

// report returns what a session says of an attempt, without refunds and disputes. It reports false for a session
// that belongs to another attempt, or that can't be right.
func (s *stripeSession) report(id string, p *payment) (*paymentReport, bool) {
	if s.Object != "checkout.session" || s.ID != id || !isStripeID("cs_", id) || s.Reference != p.ID ||
		s.Total == nil || *s.Total < 0 || len(s.Currency) != 3 {
		return nil, false
	}
	phase, ok := s.phase()
	if !ok {
		return nil, false
	}
	r := &paymentReport{
		phase: phase, sessionID: s.ID, amount: *s.Total, currency: strings.ToUpper(s.Currency),
	}
	if phase == phaseOpen && isWebAddress(s.URL) {
		r.url = s.URL
	}
	i := s.Intent
	if i == nil {
		return r, p.IntentID == nil
	}
	if !i.valid() || i.Currency != s.Currency || p.IntentID != nil && *p.IntentID != i.ID {
		return nil, false
	}
	if r.intentID, r.captured = i.ID, i.Received; i.Charge != nil {
		r.capturedAt = i.Charge.capturedAt()
	}
	if i.Status == "requires_capture" {
		r.authorized = i.Capturable
		if i.Charge != nil && i.Charge.Details.Card.CaptureBefore > 0 {
			r.captureBefore = time.Unix(i.Charge.Details.Card.CaptureBefore, 0).UTC()
		}
	}
	if phase == phaseFailed {
		r.reason = stripeName(i.LastError.Code, reasonDeclined)
	}
	return r, true
}

// valid reports whether an intent's amounts and its charge can be right.
func (i *stripeIntent) valid() bool {
	c := i.Charge
	return i.Object == "payment_intent" && isStripeID("pi_", i.ID) &&
		i.Capturable >= 0 && i.Capturable <= i.Amount && i.Received >= 0 && i.Received <= i.Amount &&
		(c == nil || c.Object == "charge" && c.Captured >= 0 && c.Captured <= c.Amount && c.Refunded >= 0 &&
			isStripeTime(c.Details.Card.CaptureBefore))
}

// isStripeTime reports whether Unix seconds are a time that can be written with a four-digit year: until 9999.
func isStripeTime(seconds int64) bool { return seconds >= 0 && seconds <= 253_402_300_799 }

// phase returns the phase of an attempt, from the states of its session and its PaymentIntent. While the session
// is open, a card that was declined, or whose bank asks the guest for something, leaves the attempt open. It
// reports false for states that are unknown or contradict each other.
func (s *stripeSession) phase() (paymentPhase, bool) {
	if s.Status != "open" && s.Status != "complete" && s.Status != "expired" {
		return phaseUnknown, false
	}
	if s.Intent != nil {
		switch s.Intent.Status {
		case "requires_capture", "succeeded":
			return phaseApproved, true
		case "canceled":
			switch s.Intent.CancelledBy {
			case "automatic", "expired": // its authorisation has lapsed
				return phaseExpired, true
			}
			if s.Status == "expired" { // which also cancels the intent of a card that was declined
				return phaseExpired, true
			}
			return phaseCancelled, true
		case "requires_payment_method", "requires_confirmation", "requires_action", "processing":
		default:
			return phaseUnknown, false
		}
	}
	switch s.Status {
	case "open":
		return phaseOpen, true
	case "expired":
		if s.Intent != nil && (s.Intent.Status == "processing" || s.Intent.Status == "requires_action") {
			return phaseOpen, true // the bank may still say yes
		}
		return phaseExpired, true
	}
	if s.Intent != nil && s.Intent.Status == "requires_payment_method" {
		return phaseFailed, true
	}
	return phaseOpen, s.Intent != nil
}

// findSession looks for the session of an attempt whose creation was never answered. Stripe can't list sessions
// by our id, so it lists those that were created in the period in which ours was requested. If an attempt has
// several, a complete one goes first, then an open one. It returns "" if there is none. Errors: those of read,
// and one with the reason too_many_sessions.
func (s *stripeProvider) findSession(ctx context.Context, c *unsealedConnection, p *payment) (id string, err error) {
	query := url.Values{
		"created[gte]": {strconv.FormatInt(p.CreatedAt.Add(-stripeClockSkew).Unix(), 10)},
		"created[lte]": {strconv.FormatInt(p.CreatedAt.Add(keysLast+stripeClockSkew).Unix(), 10)},
	}
	rank, best := map[string]int{"expired": 1, "open": 2, "complete": 3}, 0
	more := &outboundError{status: http.StatusOK, reason: "too_many_sessions"}
	err = readList(ctx, s, c, stripeSessions, query, stripeSessionsPage, more, func(o *stripeObject) (string, bool) {
		if o.Object != "checkout.session" || !isStripeID("cs_", o.ID) {
			return "", false
		}
		if o.Reference == p.ID && rank[o.Status] > best {
			id, best = o.ID, rank[o.Status]
		}
		return o.ID, true
	})
	if err != nil && (err != more || id == "") {
		return "", err
	}
	return id, nil
}

// readList reads a list, at most maxStripePages of it: if that is not all, it returns more. take is called with each
// element and returns its id, or false for a malformed one. Errors: those of read, more.
func readList[T any](ctx context.Context, s *stripeProvider, c *unsealedConnection, path string, query url.Values,
	pageSize int, more *outboundError, take func(*T) (id string, ok bool)) error {
	query.Set("limit", strconv.Itoa(pageSize))
	for range maxStripePages {
		var page stripePage[T]
		if err := s.get(ctx, c, path, query, &page); err != nil {
			return err
		}
		if !page.valid(pageSize) {
			return malformedAnswer(http.StatusOK)
		}
		last := ""
		for i := range page.Data {
			id, ok := take(&page.Data[i])
			if !ok {
				return malformedAnswer(http.StatusOK)
			}
			last = id
		}
		if !page.More {
			return nil
		}
		query.Set("starting_after", last)
	}
	return more
}

// A stripeReturn is what refunds and disputes at Stripe have in common.
type stripeReturn struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Status  string `json:"status"`
	Intent  string `json:"payment_intent"`
	Amount  int64  `json:"amount"`
	Created int64  `json:"created"`
	Reason  string `json:"reason"`
}

// A stripeRefund is a refund at Stripe.
type stripeRefund struct {
	stripeReturn
	Failure  string          `json:"failure_reason"`
	Balance  json.RawMessage `json:"balance_transaction"`
	Metadata struct {
		Refund string `json:"refund"`
	} `json:"metadata"`
}

// releases reports whether a refund is only Stripe's way to show that rest, the money that was authorised but not
// captured, was released. No money of ours has moved for it, and nobody asked for it.
func (r *stripeRefund) releases(rest int64) bool {
	if r.Metadata.Refund != "" {
		return false
	}
	moved := len(r.Balance) > 0 && string(r.Balance) != "null"
	return r.Reason == "expired_uncaptured_charge" || r.Reason == "partial_capture" ||
		rest > 0 && r.Amount == rest && !moved && r.Status == "succeeded"
}

// stripeRefundStates maps Stripe's names for the states of refunds to ours.
var stripeRefundStates = map[string]string{
	"pending": refundPending, "requires_action": refundPending, "succeeded": refundSucceeded,
	"failed": refundFailed, "canceled": refundFailed,
}

// readRefunds adds the refunds of an attempt to a report.
func (s *stripeProvider) readRefunds(ctx context.Context, c *unsealedConnection, to *paymentReport,
	of *stripeCharge) error {
	query := url.Values{"payment_intent": {to.intentID}}
	more := &outboundError{status: http.StatusOK, reason: "too_many_refunds"}
	return readList(ctx, s, c, stripeRefunds, query, stripeRefundsPage, more, func(r *stripeRefund) (string, bool) {
		state := stripeRefundStates[r.Status]
		if r.Object != "refund" || !isStripeRefundID(r.ID) || r.Intent != to.intentID ||
			state == "" || r.Amount <= 0 || !isStripeTime(r.Created) {
			return "", false
		}
		if r.releases(of.Amount - of.Captured) {
			return r.ID, true
		}
		report := refundReport{
			providerID: r.ID, amount: r.Amount, state: state, at: time.Unix(r.Created, 0).UTC(),
		}
		if validID("ref", r.Metadata.Refund) {
			report.refundID = r.Metadata.Refund
		}
		if state == refundFailed {
			report.reason = stripeName(r.Failure, stripeName(r.Status, reasonDeclined))
		} else {
			to.refunded += r.Amount
		}
		to.refunds = append(to.refunds, report)
		return r.ID, true
	})
}

// A stripeDispute is a dispute at Stripe.
type stripeDispute struct {
	stripeReturn
	Currency string `json:"currency"`
	Evidence struct {
		DueBy int64 `json:"due_by"` // Unix seconds; 0: it can't be answered
	} `json:"evidence_details"`
	Moves *[]struct { // of the account's balance: at most one that takes, and one that puts back
		Amount   int64  `json:"amount"`   // below 0: taken; the fee is beside it
		Currency string `json:"currency"` // of the balance
		Created  int64  `json:"created"`
	} `json:"balance_transactions"`
}

// stripeDisputeStates maps Stripe's names for the states of disputes to ours. A warning is an inquiry, which may
// become a dispute; one that was prevented has cost nothing.
var stripeDisputeStates = map[string]disputeState{
	"warning_needs_response": disputeInquiry, "warning_under_review": disputeInquiry,
	"warning_closed": disputeInquiry, "needs_response": disputeOpen, "under_review": disputeOpen,
	"prevented": disputeWon, "won": disputeWon, "lost": disputeLost,
}

// report returns what a dispute says, and false for one that can't be right. Where the balance has another currency,
// what was taken and not put back is the amount in dispute. Stripe's fee is a cost like those of payments, and is not
// part of it.
func (d *stripeDispute) report(intentID string) (r disputeReport, ok bool) {
	state := stripeDisputeStates[d.Status]
	if d.Object != "dispute" || !isStripeDisputeID(d.ID) || d.Intent != intentID || state == "" || d.Amount < 0 ||
		d.Moves == nil || !isStripeTime(d.Created) || !isStripeTime(d.Evidence.DueBy) {
		return r, false
	}
	r = disputeReport{id: d.ID, amount: d.Amount, state: state, reason: stripeName(d.Reason, "other"),
		closed: d.Status == "warning_closed" || state == disputeWon || state == disputeLost}
	opened, moved, converted, standing := d.Created, int64(0), false, 0
	for _, m := range *d.Moves {
		if !isStripeTime(m.Created) || m.Amount < -maxAmount || m.Amount > maxAmount {
			return r, false
		}
		if m.Amount < 0 {
			standing++
			opened = max(opened, m.Created)
		} else {
			standing--
		}
		r.withdrawn -= m.Amount
		moved = max(moved, m.Created)
		converted = converted || m.Currency != d.Currency
	}
	if r.withdrawn = max(0, r.withdrawn); converted {
		r.withdrawn = d.Amount * int64(max(0, min(standing, 1)))
	}
	if r.at = time.Unix(opened, 0).UTC(); moved > 0 {
		r.movedAt = time.Unix(moved, 0).UTC()
	}
	if d.Evidence.DueBy > 0 {
		r.evidenceBy = time.Unix(d.Evidence.DueBy, 0).UTC()
	}
	return r, true
}

// readDisputes adds the disputes of an attempt to a report.
func (s *stripeProvider) readDisputes(ctx context.Context, c *unsealedConnection, to *paymentReport) error {
	query := url.Values{"payment_intent": {to.intentID}}
	more := &outboundError{status: http.StatusOK, reason: "too_many_disputes"}
	return readList(ctx, s, c, stripeDisputes, query, stripeDisputesPage, more, func(d *stripeDispute) (string, bool) {
		report, ok := d.report(to.intentID)
		to.disputes = append(to.disputes, report)
		return d.ID, ok
	})
}

// isStripeDisputeID reports whether s is the id of a dispute; older ones begin with dp_.
func isStripeDisputeID(s string) bool { return isStripeID("du_", s) || isStripeID("dp_", s) }

// stripeName returns a reason as Stripe names it, or otherwise if the reason does not have the form of Stripe's
// names. Reasons are checked because they are stored and become part of events.
func stripeName(reason, otherwise string) string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789_"
	if reason == "" || len(reason) > 64 || strings.Trim(reason, letters) != "" {
		return otherwise
	}
	return reason
}
