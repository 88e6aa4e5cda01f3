package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"net/url"
	"time"
)

// The pages on which guests pay an order and see what came of it (contract, section 11). Whoever has the link,
// pay_url, can read them, so they show nothing about the guest. No script runs on them.

// orderTemplate makes every one of these pages from an orderPage.
var orderTemplate = pageTemplateOf("pay.html")

// An orderPages serves the pages of orders.
type orderPages struct {
	*server
	payments *payments
}

// orderPageWing makes the routes of the pages of orders.
func orderPageWing(s *server, p *payments) wing {
	a := &orderPages{s, p}
	routes := []route{
		{pattern: "GET /pay/{order}", run: endpoint(a.showPay)},
		{pattern: "POST /pay/{order}", run: endpoint(a.pay)},
		{pattern: "GET /pay/{order}/return", run: endpoint(a.showReturn)},
	}
	for i := range routes {
		routes[i].free, routes[i].page = true, orderRefused // find applies the rate limits instead
	}
	return wing{routes: routes}
}

// A pageRequest names an order by its id and the key in its pay_url.
type pageRequest struct{ order, key string }

func (r *pageRequest) read(in *input) {
	r.order = in.pathValue("order")
	if keys := in.query["k"]; len(keys) == 1 {
		r.key = keys[0]
	}
}

// A payRequest asks to pay an order.
type payRequest struct {
	pageRequest
	method string
}

func (r *payRequest) read(in *input) {
	r.pageRequest.read(in)
	r.method = in.text("method", required, maxOrderText, nil)
}

// errOrderPage answers every link that leads to no order. It does not say which part of the link is wrong.
var errOrderPage = &refusal{code: codeNotFound}

// find is lookUp with rate limits per minute: requests with a right link are counted per order, so that any
// number of guests can share an address, those with a wrong one per address. Errors: also rate_limited.
func (a *orderPages) find(c *call, r *pageRequest) (*order, account, error) {
	o, owner, err := a.lookUp(r)
	counted := a.address(c.request)
	switch {
	case err == nil:
		counted = o.ID
	case !errors.Is(err, errOrderPage):
		return nil, account{}, err
	}
	if limited := a.limitAddress("pay", counted, a.anonymousRate); limited != nil {
		return nil, account{}, limited
	}
	return o, owner, err
}

// lookUp returns the order that a request names, with its account. Errors: errOrderPage if there is no such
// order, the key is not the order's, or the account is closed.
func (a *orderPages) lookUp(r *pageRequest) (*order, account, error) {
	o, err := a.store.order(anyAccount, r.order)
	want := make([]byte, sha256.Size) // stays zero where there is no order: no key has that hash
	switch {
	case err == nil:
		copy(want, o.PageKey)
	case !errors.Is(err, errOrder):
		return nil, account{}, err
	}
	if subtle.ConstantTimeCompare(want, hashOf(r.key)) != 1 || err != nil {
		return nil, account{}, errOrderPage
	}
	owner, err := a.cachedAccount(o.AccountID)
	if err == nil && !owner.ClosedAt.IsZero() {
		err = errOrderPage
	}
	return o, owner, err
}

// payable reports whether an order can be paid at a moment.
func payable(o *order, now time.Time) bool {
	closing := o.Closing != nil && *o.Closing != closingMethod
	return o.State == orderOpen && !closing && now.Before(o.ExpiresAt.Time)
}

// canPay reports whether a guest may pay an order now: one whose last payment is in review might pay twice.
func (a *orderPages) canPay(c *call, o *order) (bool, error) {
	if !payable(o, c.now) || o.PaymentID == nil {
		return payable(o, c.now), nil
	}
	last, err := a.store.payment(*o.PaymentID)
	return err == nil && last.State != paymentReview, err
}

// showPay answers with the page that asks a guest to pay, or redirects to the order's return page.
func (a *orderPages) showPay(_ context.Context, c *call, r *pageRequest) (any, error) {
	o, owner, err := a.find(c, r)
	if err != nil {
		return nil, err
	}
	return a.payPage(c, r, o, owner, "")
}

// payPage makes the page that asks to pay an order. notice is the key of the text that says why an attempt could
// not be begun; "": none was asked for. If the order can't be paid, it redirects to its return page.
func (a *orderPages) payPage(c *call, r *pageRequest, o *order, owner account, notice string) (any, error) {
	if can, err := a.canPay(c, o); err != nil || !can {
		return seeOther(url.PathEscape(o.ID) + "/return?k=" + url.QueryEscape(r.key)), err
	}
	p, err := a.pageAbout(c, o, owner)
	if err != nil {
		return nil, err
	}
	p.Title, p.Notice = "title_pay", notice
	if p.Methods, err = a.payments.methodsFor(o); err != nil {
		return nil, err
	}
	if len(p.Methods) == 0 {
		p.Text, p.Tone = "no_methods", toneBad
	}
	return orderTemplate.render(http.StatusOK, p)
}

// pay begins an attempt to pay an order and redirects to the provider.
func (a *orderPages) pay(ctx context.Context, c *call, r *payRequest) (any, error) {
	o, owner, err := a.find(c, &r.pageRequest)
	if err != nil {
		return nil, err
	}
	can, err := a.canPay(c, o)
	if err != nil {
		return nil, err
	}
	if !can {
		return a.payPage(c, &r.pageRequest, o, owner, "")
	}
	back := a.routing.Load().bases[0].URL + "/pay/" + o.ID + "/return?k=" + url.QueryEscape(r.key)
	to, err := a.payments.startAttempt(ctx, o.ID, r.method, back)
	if err == nil {
		return seeOther(to), nil
	}
	var refused *refusal
	if !errors.As(err, &refused) {
		return nil, err
	}
	a.metrics.countRefusal(refused.code.name, a.steady())
	if o, err = a.store.order(anyAccount, o.ID); err != nil { // its state may have changed
		return nil, err
	}
	answer, err := a.payPage(c, &r.pageRequest, o, owner, noticeOf(refused))
	if page, ok := answer.(*htmlPage); ok {
		page.status = refused.code.status
	}
	return answer, err
}

// noticeOf returns the key of the text for a guest whose attempt was refused.
func noticeOf(refused *refusal) string {
	switch refused.code {
	case codeAttemptClosing:
		return "busy"
	case codeProviderDown:
		return "unreachable"
	case codeAttemptLimit:
		return "too_often"
	}
	return "refused"
}

// refreshFor is how long after the beginning of an attempt its return page reloads itself.
const refreshFor = 30 * time.Minute

// showReturn answers with what came of an order: its receipt, once it is paid.
func (a *orderPages) showReturn(ctx context.Context, c *call, r *pageRequest) (any, error) {
	o, owner, err := a.find(c, r)
	if err != nil {
		return nil, err
	}
	if o.State == orderOpen && o.PaymentID != nil {
		var refused *refusal
		if err := a.payments.settleOrder(ctx, o.ID); err != nil && !errors.As(err, &refused) {
			return nil, err
		}
		if o, err = a.store.order(anyAccount, o.ID); err != nil {
			return nil, err
		}
	}
	var last *payment
	if o.PaymentID != nil {
		if last, err = a.store.payment(*o.PaymentID); err != nil {
			return nil, err
		}
	}
	p, err := a.pageAbout(c, o, owner)
	if err != nil {
		return nil, err
	}
	what := outcomeOf(o, last, c.now)
	p.Title, p.Text, p.Tone = "title_"+what, "text_"+what, outcomeTones[what]
	link := url.PathEscape(o.ID) + "?k=" + url.QueryEscape(r.key)
	if payable(o, c.now) && what != outcomeReview {
		p.Again = "../" + link
	}
	switch what {
	case outcomePending:
		p.Refresh = 5
		fallthrough
	case outcomeWaiting, orderAuthorized, orderAccepted:
		p.Look = "return?k=" + url.QueryEscape(r.key)
	}
	return orderTemplate.render(http.StatusOK, p)
}

// What a return page says of an order, besides the order's states. The texts are title_… and text_….
const (
	outcomeUnpaid   = "unpaid"   // nobody has tried to pay it
	outcomePending  = "pending"  // the provider has not said yet what came of the attempt
	outcomeWaiting  = "waiting"  // … for so long that the page does not reload itself any more
	outcomeDeclined = "declined" // the attempt was declined
	outcomeLeft     = "left"     // the guest has gone back
	outcomeLapsed   = "lapsed"   // the guest took too long
	outcomeReview   = "review"   // somebody has to look at it
)

// outcomeTones are the tones of what a return page says; what is not listed has none.
var outcomeTones = map[string]string{
	orderAuthorized: toneGood,
	orderAccepted:   toneGood,
	orderPaid:       toneGood,
	orderCancelled:  toneBad,
	orderExpired:    toneBad,
	outcomeDeclined: toneBad,
	outcomeLeft:     toneBad,
	outcomeLapsed:   toneBad,
	outcomeReview:   toneBad,
}

// outcomeOf returns what a return page says of an order, whose last attempt is last; nil: there was none.
func outcomeOf(o *order, last *payment, now time.Time) string {
	switch {
	case last != nil && last.State == paymentReview && !o.settled():
		return outcomeReview
	case o.State != orderOpen:
		return o.State
	case o.Closing != nil, last != nil && last.live():
		if last != nil && closerThan(refreshFor, last.CreatedAt.Time, now) {
			return outcomePending
		}
		return outcomeWaiting
	case !payable(o, now):
		return orderExpired
	case last == nil:
		return outcomeUnpaid
	case last.State == paymentCancelled:
		return outcomeLeft
	case last.State == paymentExpired:
		return outcomeLapsed
	}
	return outcomeDeclined
}

// An orderPage is what the template shows; an empty field is left out.
type orderPage struct {
	pageFrame
	zone                       *time.Location
	Seller, Address, VATNumber string // of the restaurant; Address has lines
	Refresh                    int    // seconds
	Again                      string // URL of the page to pay on
	Look                       string // URL of this page
	Methods                    []string
	Order                      *order
	Heading                    string // of the order: the key of a text
	PaidBy                     string // likewise; "": it is not paid, or costs nothing
	Extras                     []orderExtra
	Refunds                    []refund
	Remaining                  string // of the total, after Refunds; "": it was not paid
}

// An orderExtra is a discount, delivery or tip.
type orderExtra struct {
	Name   string // the key of a text
	Amount int64
}

// Money writes an amount of the order in the guest's language, for the template.
func (p *orderPage) Money(amount int64) string { return p.money(p.Order.Currency, amount) }

// Taken writes what the accepted units of a line cost, before any discount.
func (p *orderPage) Taken(l orderLine) string { return p.Money(l.Accepted * l.UnitAmount) }

// Rate writes a rate of VAT.
func (p *orderPage) Rate(rate int64) string { return p.rate(p.Order.Currency, rate) }

// Moment writes a time.
func (p *orderPage) Moment(at stamp) string { return p.moment(at, p.zone) }

// newOrderPage makes an empty page in the language that a request prefers.
func newOrderPage(r *http.Request) *orderPage {
	lang := languageOf(r)
	return &orderPage{pageFrame: pageFrame{pageLanguage: lang, texts: textsByLanguage()[lang].Pay}}
}

// pageAbout makes a page about an order.
func (a *orderPages) pageAbout(c *call, o *order, owner account) (*orderPage, error) {
	of, err := a.store.settings(o.AccountID)
	if err != nil {
		return nil, err
	}
	refunds, err := a.store.refundsOf(o.ID)
	if err != nil {
		return nil, err
	}
	p := newOrderPage(c.request)
	p.Order, p.zone = o, shownZone(of.Zone)
	p.Seller, p.Address = valueOr(of.LegalName, owner.Name), valueOr(of.Address, "")
	p.VATNumber = valueOr(of.VATNumber, "")
	p.showOrder(refunds)
	return p, nil
}

// showOrder sets what is shown of the order beside its row. A receipt leaves out refunds of money that did not
// pay for it, such as a card payment when it was paid in cash. The discount that is shown is the difference to
// the total, so that every sheet adds up when only a part of the order was accepted.
func (p *orderPage) showOrder(refunds []refund) {
	o := p.Order
	p.Heading = "order"
	if o.settled() {
		p.Heading = "receipt"
		if o.Method != nil && *o.Method != methodNone {
			p.PaidBy = "method_" + *o.Method
		}
	}
	sum, remaining := o.Delivery+o.Tip, o.Total
	for _, l := range o.Lines {
		sum += l.Accepted * l.UnitAmount
	}
	for _, extra := range []orderExtra{{"discount", o.Total - sum}, {"delivery", o.Delivery}, {"tip", o.Tip}} {
		if extra.Amount != 0 {
			p.Extras = append(p.Extras, extra)
		}
	}
	for _, f := range refunds {
		if f.State != refundFailed && (!o.settled() || o.paidWith(f.PaymentID)) {
			p.Refunds = append(p.Refunds, f)
			remaining -= f.Amount
		}
	}
	if o.settled() {
		p.Remaining = p.Money(remaining)
	}
}

// orderRefused shows a refusal to a guest. It is a refusalPage.
func orderRefused(r *http.Request, ref *refusal, requestID string) *htmlPage {
	p := newOrderPage(r)
	p.refuse(ref, requestID)
	return orderTemplate.renderRefusal(ref.code.status, p)
}
