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

// The pages on which guests pay an order and see what came of it (contract, section 11). Whoever has the
// link, pay_url, can read them, so they show nothing of who has ordered. No script runs on them.

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
		routes[i].free, routes[i].page = true, orderRefused // find limits them
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

// errOrderPage answers every link that leads to no order: which part of it is wrong is not told.
var errOrderPage = &refusal{code: codeNotFound}

// find is lookUp within the limits of a minute: guests whose links are right are counted by order, so that
// any number of them can share an address, and wrong links by address. Errors: also rate_limited.
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
// order, the key is another's, or the account is closed.
func (a *orderPages) lookUp(r *pageRequest) (*order, account, error) {
	o, err := a.store.order(anyAccount, r.order)
	if err != nil && !errors.Is(err, errOrder) {
		return nil, account{}, err
	}
	want, given := [sha256.Size]byte{}, sha256.Sum256([]byte(r.key))
	copy(want[:], o.PageKey) // stays zero where there is no order: no key has that hash
	if subtle.ConstantTimeCompare(want[:], given[:]) != 1 || err != nil {
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

// showPay answers with the page that asks a guest to pay, or leads to what came of it.
func (a *orderPages) showPay(_ context.Context, c *call, r *pageRequest) (any, error) {
	o, owner, err := a.find(c, r)
	if err != nil {
		return nil, err
	}
	return a.payPage(c, r, o, owner, "")
}

// payPage makes the page that asks to pay an order; notice, the key of a text, is why an attempt could not
// be begun; "": none was asked for. An order that can't be paid has its return page instead.
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

// pay begins an attempt to pay an order and leads to the provider.
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
	a.metrics.countRefusal(refused.code.name)
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

// refreshFor is how long after the beginning of an attempt its return page looks again by itself.
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
	outcomePending  = "pending"  // the provider has not told what came of the attempt
	outcomeWaiting  = "waiting"  // … for so long that the page does not look again by itself
	outcomeDeclined = "declined" // the attempt was declined
	outcomeLeft     = "left"     // the guest has gone back
	outcomeLapsed   = "lapsed"   // the guest took too long
	outcomeReview   = "review"   // somebody has to look at it
)

// outcomeTones are the tones of what a return page says; of what is not here, none.
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
		if last != nil && within(refreshFor, last.CreatedAt.Time, now) {
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
	Restaurant string
	Until      string // until when the order can be paid
	Refresh    int    // seconds
	Again      string // URL of the page to pay on
	Look       string // URL of this page
	Methods    []string
	ReturnURL  string
	Order      *orderSheet
}

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
	p, zone := newOrderPage(c.request), shownZone(of.Zone)
	p.Order = newOrderSheet(o, refunds, p.pageLanguage, zone)
	p.Order.Seller = valueOr(of.LegalName, owner.Name)
	p.Order.Address, p.Order.VATNumber = valueOr(of.Address, ""), valueOr(of.VATNumber, "")
	p.Restaurant, p.ReturnURL = p.Order.Seller, o.ReturnURL
	p.Until = p.moment(o.ExpiresAt, zone)
	return p, nil
}

// orderRefused shows a refusal to a guest. It is a refusalPage.
func orderRefused(r *http.Request, ref *refusal, requestID string) *htmlPage {
	p := newOrderPage(r)
	p.refuse(ref, requestID)
	return orderTemplate.renderRefusal(ref.code.status, p)
}

// An orderSheet is an order as its pages show it, with amounts and times as texts in the guest's language.
type orderSheet struct {
	Heading                    string // the key of a text
	Seller, Address, VATNumber string // Address has lines
	Number                     string
	OrderedAt, PaidAt          string
	Method                     string // the key of a text; "": it is not paid, or costs nothing
	Lines                      []sheetLine
	Extras                     []sheetExtra
	Total                      string
	VAT                        []sheetVAT
	Refunds                    []sheetRefund
	Remaining                  string // of Total, after Refunds; "": it was not paid
}

// A sheetLine is a line, as far as the restaurant has accepted it.
type sheetLine struct {
	Name              string
	Each, Amount      string
	Accepted, Ordered int64 // units
}

// A sheetExtra is a discount, delivery or tip.
type sheetExtra struct{ Name, Amount string } // Name: the key of a text

type sheetVAT struct{ Rate, Gross, VAT string }

type sheetRefund struct {
	At, Amount string
	Pending    bool
	VAT        []sheetVAT
}

// newOrderSheet makes the sheet of an order. A receipt has no refunds of money that did not pay it, such as
// that of a card beside cash. The discount that it shows is what is missing to the total, so
// that every sheet adds up when only a part of the order was accepted.
func newOrderSheet(o *order, refunds []refund, lang pageLanguage, zone *time.Location) *orderSheet {
	money := func(amount int64) string { return lang.money(o.Currency, amount) }
	s := &orderSheet{
		Heading:   "order",
		Number:    o.ID,
		OrderedAt: lang.moment(o.CreatedAt, zone),
		PaidAt:    lang.moment(o.PaidAt, zone),
		Total:     money(o.Total),
		VAT:       sheetVATs(o.VAT, lang, o.Currency),
	}
	if o.Reference != nil {
		s.Number = *o.Reference
	}
	if o.settled() {
		s.Heading = "receipt"
		if o.Method != nil && *o.Method != methodNone {
			s.Method = "method_" + *o.Method
		}
	}
	sum := o.Delivery + o.Tip
	for _, l := range o.Lines {
		amount := l.Accepted * l.UnitAmount
		sum += amount
		s.Lines = append(s.Lines, sheetLine{l.Name, money(l.UnitAmount), money(amount), l.Accepted, l.Quantity})
	}
	for _, extra := range []struct {
		name   string
		amount int64
	}{{"discount", o.Total - sum}, {"delivery", o.Delivery}, {"tip", o.Tip}} {
		if extra.amount != 0 {
			s.Extras = append(s.Extras, sheetExtra{extra.name, money(extra.amount)})
		}
	}
	given := int64(0)
	for _, f := range refunds {
		if f.State == refundFailed || o.settled() && !o.paidWith(f.PaymentID) {
			continue
		}
		given += f.Amount
		s.Refunds = append(s.Refunds, sheetRefund{lang.moment(f.CreatedAt, zone), money(f.Amount),
			f.State == refundPending, sheetVATs(f.VAT, lang, o.Currency)})
	}
	if o.settled() {
		s.Remaining = money(o.Total - given)
	}
	return s
}

// sheetVATs makes the rows of VAT of an amount.
func sheetVATs(sums []vatSum, lang pageLanguage, currency string) (rows []sheetVAT) {
	for _, v := range sums {
		row := sheetVAT{lang.rate(currency, v.Rate), lang.money(currency, v.Gross), lang.money(currency, v.VAT)}
		rows = append(rows, row)
	}
	return rows
}
