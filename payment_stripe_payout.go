package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// What Stripe pays out, and what is in it: of an automatic payout Stripe lists the movements of the balance that it
// pays, and its own among them. A movement's reporting_category is an open list of words that grows
// (docs.stripe.com/reports/reporting-categories): one that is not here is of rowUnknown, so that somebody looks.

// The paths of Stripe's API for payouts.
const (
	stripePayouts = "/v1/payouts"
	stripeMoves   = "/v1/balance_transactions"
)

const (
	stripePayoutsPage = 100 // the most that Stripe lists at once, of both
	stripeLookBack    = 14  // days; a payout that was paid may fail within five business days

	// A page of movements comes with what each is about: a charge has some 4 KB, and a dispute long texts of evidence.
	maxStripeMoves = 8 << 20 // bytes
)

// A stripePayout is a payout at Stripe.
type stripePayout struct {
	ID         string `json:"id"`
	Object     string `json:"object"`
	Amount     int64  `json:"amount"`
	Currency   string `json:"currency"`
	Arrival    int64  `json:"arrival_date"` // Unix seconds
	Automatic  bool   `json:"automatic"`
	Method     string `json:"method"`
	Status     string `json:"status"`
	Reconciled string `json:"reconciliation_status"`
}

// report returns what a payout says, and false for one that can't be right.
func (p *stripePayout) report() (r payoutReport, ok bool) {
	currency, known := stripeCurrency(p.Currency)
	status := stripeName(p.Status, "")
	if p.Object != "payout" || !isStripeID("po_", p.ID) || !known || status == "" || !inBounds(p.Amount) ||
		!isStripeTime(p.Arrival) {
		return r, false
	}
	return payoutReport{
		providerID: p.ID, amount: p.Amount, currency: currency, automatic: p.Automatic,
		arrival: time.Unix(p.Arrival, 0).UTC().Format(time.DateOnly),
		method:  stripeName(p.Method, ""), status: status,
		complete: p.Automatic && p.Reconciled == "completed",
	}, true
}

// stripeCurrency returns a currency as we write it. It reports false for what is none.
func stripeCurrency(s string) (string, bool) {
	return strings.ToUpper(s), len(s) == 3 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz") == ""
}

// payouts implements provider. The cursor is the date of the last listing; each lists all anew that may have changed
// since, but none of before from. It does not filter by the state: a payout that is in transit can't be asked for by
// that.
func (s *stripeProvider) payouts(
	ctx context.Context, c *unsealedConnection, cursor, from string, now time.Time,
) (*payoutNews, error) {
	since, ok := parseDate(from)
	last, read := parseDate(cursor)
	if !ok || !read && cursor != "" {
		return nil, malformedAnswer(0)
	}
	if again := last.after(-days(stripeLookBack)); read && again.After(since.Time) {
		since = again
	}
	news := &payoutNews{cursor: newStamp(now).day()}
	query := url.Values{"arrival_date[gte]": {strconv.FormatInt(since.Unix(), 10)}}
	more := &outboundError{status: http.StatusOK, reason: "too_many_payouts"}
	err := readList(ctx, s, c, stripePayouts, query, stripePayoutsPage, more, func(p *stripePayout) (string, bool) {
		report, ok := p.report()
		news.payouts = append(news.payouts, report)
		return p.ID, ok
	})
	if err != nil {
		return nil, err
	}
	return news, nil
}

// stripeCategories maps Stripe's categories of movements to ours. "tax" is on fees.
var stripeCategories = map[string]string{
	"charge": rowPayment, "charge_failure": rowPayment, "partial_capture_reversal": rowPayment,
	"refund": rowRefund, "refund_failure": rowRefund,
	"dispute": rowDispute, "dispute_reversal": rowDispute,
	"fee": rowFee, "network_cost": rowFee, "tax": rowFee,
	"payout_minimum_balance_hold": rowReserve, "payout_minimum_balance_release": rowReserve,
	"payment_network_reserve_hold": rowReserve, "payment_network_reserve_release": rowReserve,
	"risk_reserved_funds": rowReserve,
	"payout_reversal":     rowReturned, "payout_failure": rowReturned, "payout_cancel": rowReturned,
	"other_adjustment": rowCorrection, "topup": rowCorrection, "topup_reversal": rowCorrection,
	"transfer": rowCorrection, "transfer_reversal": rowCorrection,
}

// A stripeMove is a movement of the balance, which Stripe calls a balance transaction.
type stripeMove struct {
	ID       string `json:"id"`
	Object   string `json:"object"`
	Amount   int64  `json:"amount"`
	Fee      int64  `json:"fee"`
	Net      int64  `json:"net"`
	Currency string `json:"currency"` // of the balance, into which the amount was exchanged
	Created  int64  `json:"created"`
	Category string `json:"reporting_category"`
	Fees     []struct {
		Type   string `json:"type"`
		Amount int64  `json:"amount"`
	} `json:"fee_details"`
	Source stripeSource `json:"source"`
}

// A stripeSource is what a movement is about: a charge, a refund, a dispute, a payout, or nothing that is told.
type stripeSource struct {
	ID     string `json:"id"`
	Intent any    `json:"payment_intent"` // an id, or null
}

// UnmarshalJSON reads an object, or only its id where the object is not told.
func (s *stripeSource) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		return json.Unmarshal(text, &s.ID)
	}
	type object stripeSource
	return json.Unmarshal(text, (*object)(s))
}

// row returns what a movement says, and false for one that can't be right.
func (m *stripeMove) row() (r ledgerRow, ok bool) {
	fees, tax := int64(0), int64(0)
	for _, f := range m.Fees {
		if !inBounds(f.Amount) {
			return r, false
		}
		if fees += f.Amount; f.Type == "tax" || f.Type == "withheld_tax" {
			tax += f.Amount
		}
	}
	currency, known := stripeCurrency(m.Currency)
	if m.Object != "balance_transaction" || !isStripeID("txn_", m.ID) || !known || !isStripeTime(m.Created) ||
		!inBounds(m.Amount) || !inBounds(m.Fee) || m.Fee != fees || m.Net != m.Amount-m.Fee {
		return r, false
	}
	r = ledgerRow{id: m.ID, category: cmp.Or(stripeCategories[m.Category], rowUnknown),
		kind: stripeName(m.Category, "unknown"), amount: m.Amount, fee: fees - tax, tax: tax, currency: currency,
		at: time.Unix(m.Created, 0).UTC()}
	if intent, _ := m.Source.Intent.(string); isStripeID("pi_", intent) {
		r.intentID = intent
	}
	of := m.Source.ID
	switch {
	case m.Category == "tax":
		r.amount, r.tax = 0, r.tax-m.Amount
	case r.category == rowFee:
		r.amount, r.fee = 0, r.fee-m.Amount
	case r.category == rowRefund && isStripeRefundID(of), r.category == rowDispute && isStripeDisputeID(of),
		r.category == rowReturned && isStripeID("po_", of):
		r.source = of
	}
	return r, true
}

// isStripeRefundID reports whether s is the id of a refund; those of local methods such as TWINT begin with pyr_.
func isStripeRefundID(s string) bool { return isStripeID("re_", s) || isStripeID("pyr_", s) }

// rowsOf returns the rows of a page of what is in a payout, and from where it goes on; "": it is the last one. It
// leaves out the payout itself, and its return if it failed: what is in it adds up to its amount without them. It
// reports false for a page that can't be right.
func rowsOf(page *stripePage[stripeMove], payoutID string) (rows []ledgerRow, next string, ok bool) {
	for i := range page.Data {
		m := &page.Data[i]
		row, known := m.row()
		if !known {
			return nil, "", false
		}
		if next = m.ID; m.Source.ID != payoutID || m.Category != "payout" && row.category != rowReturned {
			rows = append(rows, row)
		}
	}
	if !page.More {
		next = ""
	}
	return rows, next, page.valid(stripePayoutsPage)
}

// payoutRows implements provider. The source of a row is the id of a refund, a dispute or a payout that came back.
func (s *stripeProvider) payoutRows(
	ctx context.Context, c *unsealedConnection, payoutID, after string,
) (rows []ledgerRow, next string, err error) {
	query := url.Values{"payout": {payoutID}, "limit": {strconv.Itoa(stripePayoutsPage)}, "expand[]": {"data.source"}}
	if after != "" {
		query.Set("starting_after", after)
	}
	var page stripePage[stripeMove]
	if err := s.get(ctx, c, stripeMoves, query, &page); err != nil {
		return nil, "", err
	}
	rows, next, ok := rowsOf(&page, payoutID)
	if !ok {
		return nil, "", malformedAnswer(http.StatusOK)
	}
	return rows, next, nil
}

// payoutLacks returns which permissions the key lacks that only payouts need, by their names on Stripe's pages.
func (s *stripeProvider) payoutLacks(ctx context.Context, c *unsealedConnection) (lacks []string, err error) {
	for _, of := range []struct{ path, expand, permission string }{
		{stripePayouts, "", "Payouts: read"},
		{stripeMoves, "data.source", "Balance Transaction Sources: read"},
	} {
		query := url.Values{"limit": {"1"}}
		if of.expand != "" {
			query.Set("expand[]", of.expand)
		}
		var page stripePage[json.RawMessage]
		err := s.get(ctx, c, of.path, query, &page)
		failed, _ := errors.AsType[*outboundError](err)
		switch {
		case err == nil && page.Object == "list":
		case failed != nil && failed.outcome == vendorDenied && failed.status == http.StatusForbidden:
			lacks = append(lacks, of.permission)
		default:
			return nil, fmt.Errorf("reading %s: %w", of.path, cmp.Or(err, error(malformedAnswer(http.StatusOK))))
		}
	}
	return lacks, nil
}
