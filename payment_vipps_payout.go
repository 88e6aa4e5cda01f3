package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// The ledger of a sales unit, by Vipps MobilePay's Settlement and Report APIs, which exist in production only. What it
// says of a date never changes once it is told, and new kinds of entries come unannounced. We read the topic "funds",
// whose balance is what is paid out. What the topic "fees" lists is owed beside it, until fees-retained takes it from
// the funds or an invoice asks for it, so it names no money that the funds lack.

const (
	vippsLedgers   = "/settlement/v1/ledgers"
	maxVippsReport = 2 << 20 // bytes of a page, which has up to 1000 entries
	maxVippsCursor = 1000    // characters
	maxVippsName   = 100     // characters of what an entry is known by

	// How long after midnight UTC a ledger's date is over. It ends at midnight where the sales unit is, or by
	// agreement some hours later, such as at 04:00. Until then Vipps only answers that it is too early.
	vippsDateEnds = 6 * time.Hour
)

// ledger returns the id of the ledger of a connection's sales unit; "": there is none, or the keys may not read it,
// between which Vipps does not distinguish. Errors: those of read, and one with the reason several_ledgers.
func (v *vippsProvider) ledger(ctx context.Context, c *unsealedConnection) (id string, err error) {
	var list struct{ Items *[]struct{ LedgerID string } }
	query := url.Values{"settlesForRecipientHandles": {"api:" + c.secrets.MerchantSerial}}
	err = v.read(ctx, c, vippsLedgers+"?"+query.Encode(), &list)
	failed, _ := errors.AsType[*outboundError](err)
	switch {
	case failed != nil && failed.status == http.StatusNotFound: // of a gateway, too: nothing is lost by asking later
		return "", nil
	case err != nil:
		return "", err
	case list.Items == nil:
		return "", malformedAnswer(http.StatusOK)
	case len(*list.Items) == 0:
		return "", nil
	case len(*list.Items) > 1:
		return "", &outboundError{status: http.StatusOK, reason: "several_ledgers"}
	}
	if id = (*list.Items)[0].LedgerID; !vippsPathID().MatchString(id) {
		return "", malformedAnswer(http.StatusOK)
	}
	return id, nil
}

// A vippsReport is a page of what is in a ledger on a date.
type vippsReport struct {
	Items  []vippsEntry
	More   *bool `json:"hasMore"`
	Cursor string
	Later  bool `json:"tryLater"` // the date is not over, which may last for 60 days
}

// A vippsEntry is an entry of a ledger.
type vippsEntry struct {
	PSPReference string // of what has moved; a dispute has that of the capture
	Reference    string // of the payment; of a payout, what the bank shows
	Type         string `json:"entryType"`
	Currency     string
	Amount       int64
	Time         time.Time
}

// payouts implements provider. The cursor is the next date to read, "2026-11-25", and inside a date also the page,
// "2026-11-25 PAGE". A sales unit may have no ledger before its first sale.
func (v *vippsProvider) payouts(
	ctx context.Context, c *unsealedConnection, cursor, from string, now time.Time,
) (*payoutNews, error) {
	date, at, _ := strings.Cut(cmp.Or(cursor, from), " ")
	day, ok := parseDate(date)
	if !ok {
		return nil, malformedAnswer(0)
	}
	today := newStamp(now.Add(-vippsDateEnds)).day()
	news := &payoutNews{cursor: cursor}
	if date >= today {
		return news, nil
	}
	ledger, err := v.ledger(ctx, c)
	if err != nil {
		return nil, err
	}
	if ledger == "" {
		return news, nil
	}
	page, err := v.readReport(ctx, c, ledger, date, at)
	if err != nil {
		return nil, err
	}
	if page.Later {
		return news, nil
	}
	rows, ok := page.rows(date)
	if !ok || *page.More && page.Cursor == at {
		return nil, malformedAnswer(http.StatusOK)
	}
	if news.rows = rows; *page.More {
		news.cursor, news.more = date+" "+page.Cursor, true
	} else {
		news.cursor = day.after(days(1)).day()
		news.more = news.cursor < today
	}
	return news, nil
}

// readReport reads a page of a ledger's funds on a date; "": the first.
func (v *vippsProvider) readReport(
	ctx context.Context, c *unsealedConnection, ledger, date, at string,
) (page vippsReport, err error) {
	path := "/report/v2/ledgers/" + ledger + "/funds/dates/" + date
	if at != "" {
		path += "?" + url.Values{"cursor": {at}}.Encode()
	}
	q := outboundRequest{method: http.MethodGet, url: v.base + path, largest: maxVippsReport}
	answer, err := v.ask(ctx, c, q, false)
	if err == nil && json.Unmarshal(answer.body, &page) != nil {
		err = malformedAnswer(answer.status)
	}
	return page, err
}

// rows returns the rows of a page of a date, and false for a page that can't be right.
func (p *vippsReport) rows(date string) (rows []ledgerRow, ok bool) {
	visible := p.Cursor != "" && len(p.Cursor) <= maxVippsCursor && strings.IndexFunc(p.Cursor, isNotVisible) < 0
	if p.More == nil || *p.More && !visible {
		return nil, false
	}
	for i := range p.Items {
		row, ok := p.Items[i].row(date)
		if !ok {
			return nil, false
		}
		rows = append(rows, row)
	}
	return rows, true
}

// vippsCategories maps the types of entries of funds to ours. The invoice of fees is of the topic of fees.
var vippsCategories = map[string]string{
	"capture": rowPayment, "refund": rowRefund,
	"retained-disputed-capture": rowDispute, "returned-disputed-capture": rowDispute,
	"fees-retained": rowFee, "service-fee": rowFee,
	vippsAborted: rowReturned,
	"correction": rowCorrection, "top-up": rowCorrection, "credit-note": rowCorrection,
}

// The types of entries about payouts. Scheduled is not paid, and nothing reports that it was.
const (
	vippsScheduled = "payout-scheduled"
	vippsAborted   = "payout-aborted"
)

// row returns what an entry of a date says, and false for one that can't be right. Its id has the time, since a
// capture may be disputed, and put back, more than once.
func (e *vippsEntry) row(date string) (r ledgerRow, ok bool) {
	if !isVippsCode(e.Type) || len(e.PSPReference) > maxVippsName ||
		strings.IndexFunc(e.PSPReference, isNotVisible) >= 0 || len(e.Currency) != 3 ||
		strings.Trim(e.Currency, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" || !inBounds(e.Amount) ||
		e.Time.UTC().Year() < 1970 || e.Time.UTC().Year() > lastYear {
		return r, false
	}
	r = ledgerRow{id: e.Type + "/" + e.PSPReference + "/" + e.Time.UTC().Format(time.RFC3339Nano),
		category: cmp.Or(vippsCategories[e.Type], rowUnknown), kind: e.Type, amount: e.Amount, currency: e.Currency,
		at: e.Time.UTC(), paymentID: vippsPaymentID(e.Reference)}
	switch r.category {
	case rowFee:
		r.amount, r.fee = 0, -e.Amount
	case rowRefund, rowReturned:
		r.source = e.PSPReference
	case rowDispute:
		if r.paymentID != "" {
			r.source = "dispute-" + r.paymentID // what was taken and what was put back are of one
		}
	}
	if e.Type == vippsScheduled {
		r.schedules = &payoutReport{providerID: e.PSPReference, amount: -e.Amount, currency: e.Currency, arrival: date,
			automatic: true, status: e.Type, complete: true}
	}
	return r, e.Type != vippsScheduled || e.PSPReference != ""
}

// payoutRows implements provider. There are none: what is in a payout came with payouts before it was scheduled.
func (v *vippsProvider) payoutRows(
	context.Context, *unsealedConnection, string, string,
) (rows []ledgerRow, next string, err error) {
	return nil, "", nil
}

// payoutLacks returns what the keys lack that only payouts need.
func (v *vippsProvider) payoutLacks(ctx context.Context, c *unsealedConnection) (lacks []string, err error) {
	if !c.Live {
		return nil, nil // there are no settlements for tests
	}
	id, err := v.ledger(ctx, c)
	failed, _ := errors.AsType[*outboundError](err)
	if err == nil && id == "" || failed != nil && failed.status == http.StatusForbidden {
		return []string{"the reports of its settlements"}, nil
	}
	return nil, err
}
