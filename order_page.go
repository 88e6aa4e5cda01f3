package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// The pages on which guests pay an order and see what came of it (contract, section 11). Whoever has the link,
// pay_url, can read them, so they show nothing about the guest but how and when the order is wanted. The only
// script on them, web/pay.js, looks for news of an order that waits for somebody; a link does so, too.

// orderTemplate makes every one of these pages from an orderPage.
var orderTemplate = pageTemplateOf("pay.html", "pay.js")

// An orderPages serves the pages of orders.
type orderPages struct {
	*server
	payments *payments
}

// orderPageModule makes the routes of the pages of orders.
func orderPageModule(s *server, p *payments) module {
	a := &orderPages{s, p}
	return module{refusals: map[string]refusalForm{"order": a.refused}, routes: []route{ // find applies the rate limits
		{pattern: "GET /pay/{order}", page: "order", free: true, run: a.showPay},
		{pattern: "POST /pay/{order}", page: "order", free: true, run: a.pay},
		{pattern: "GET /pay/{order}/return", page: "order", free: true, run: a.showReturn},
	}}
}

// An orderLink names an order by its id and the key in its pay_url.
type orderLink struct {
	order, key string
	lang       pageLanguage // that the guest has chosen on the page; "": none
	left       bool         // the guest comes back from the provider's link to leave its page
}

func readOrderLink(in *input) *orderLink {
	r := &orderLink{order: in.pathValue("order"), left: in.query.Get("left") != ""}
	if keys := in.query["k"]; len(keys) == 1 {
		r.key = keys[0]
	}
	if l, ok := knownLanguage(in.query.Get("lang"), pageLanguages); ok {
		r.lang = l
	}
	return r
}

// link returns the query of a link to another page of the order, in the language that was chosen.
func (r *orderLink) link() string {
	link := "?k=" + url.QueryEscape(r.key)
	if r.lang != "" {
		link += "&lang=" + string(r.lang)
	}
	return link
}

// errOrderPage answers every link that leads to no order. It does not say which part of the link is wrong.
var errOrderPage = &refusal{code: codeNotFound}

// find is lookUp with rate limits per minute: requests with a right link are counted per order, so that any
// number of guests can share an address, those with a wrong one per address. Errors: also rate_limited.
func (a *orderPages) find(c *call, r *orderLink) (*order, error) {
	o, err := a.lookUp(r)
	counted := a.address(c.request)
	switch {
	case err == nil:
		counted = o.ID
	case !errors.Is(err, errOrderPage):
		return nil, err
	}
	if limited := a.limitAddress("pay", counted, a.anonymousRate); limited != nil {
		return nil, limited
	}
	return o, err
}

// lookUp returns the order that a request names. Errors: errOrderPage if there is no such
// order, the key is not the order's, or the account is closed and the order has no receipt.
func (a *orderPages) lookUp(r *orderLink) (*order, error) {
	o, err := a.store.order(anyAccount, r.order)
	want := make([]byte, sha256.Size) // stays zero where there is no order: no key has that hash
	switch {
	case err == nil:
		copy(want, o.PageKey)
	case !errors.Is(err, errOrder):
		return nil, err
	}
	if subtle.ConstantTimeCompare(want, hashOf(r.key)) != 1 || err != nil {
		return nil, errOrderPage
	}
	if o.wantedErased() {
		o.AcceptBy, o.ReadyAt = stamp{}, stamp{}
	}
	owner, err := a.cachedAccount(o.AccountID)
	if err == nil && !owner.ClosedAt.IsZero() && !o.wasPaid() {
		err = errOrderPage
	}
	return o, err
}

// payable reports whether an order can be paid at a moment.
func payable(o *order, now time.Time) bool {
	closing := o.Closing != nil && *o.Closing != closingMethod
	return o.State == orderOpen && o.Pay == payOnline && !closing && now.Before(o.ExpiresAt.Time)
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
func (a *orderPages) showPay(ctx context.Context, c *call) (any, error) {
	r := readOrderLink(c.in)
	if err := a.finishReading(ctx, c); err != nil {
		return nil, err
	}
	o, err := a.find(c, r)
	if err != nil {
		return nil, err
	}
	notice := ""
	if r.left && o.PaymentID != nil {
		notice = "left"
	}
	return a.payPage(c, r, o, notice)
}

// settled returns an order after its provider was asked about the attempt to pay it, if one is live.
func (a *orderPages) settled(ctx context.Context, o *order) (*order, error) {
	if o.State != orderOpen || o.PaymentID == nil {
		return o, nil
	}
	var refused *refusal
	if err := a.payments.settleLive(ctx, o.ID); err != nil && !errors.As(err, &refused) {
		return nil, err
	}
	return a.store.order(anyAccount, o.ID)
}

// payPage makes the page that asks to pay an order. notice is the key of the text that says what became of the
// guest's attempt; "": nothing. If the order can't be paid, it redirects to its return page.
func (a *orderPages) payPage(c *call, r *orderLink, o *order, notice string) (*reply, error) {
	if can, err := a.canPay(c, o); err != nil || !can {
		return seeOther(url.PathEscape(o.ID) + "/return" + r.link()), err
	}
	p, err := a.pageAbout(c, r, o)
	if err != nil {
		return nil, err
	}
	p.Title, p.Notice, p.Ask = "title_pay", notice, notice == "too_often"
	methods, err := a.payments.methodsFor(o)
	if err != nil {
		return nil, err
	}
	refused, err := a.store.refusedMethods(o.AccountID, c.now)
	if err != nil {
		return nil, err
	}
	offered := slices.DeleteFunc(slices.Clone(methods), func(m offeredMethod) bool {
		return slices.Contains(refused, m.Method)
	})
	switch {
	case len(methods) == 0:
		p.Text, p.Tone, p.Ask = "no_methods", toneBad, true
	case len(offered) == 0: // all stay, since the guest can pay by nothing else
		p.Text, p.Tone, p.Ask, offered = "online_fails", toneBad, true, methods
	case len(offered) < len(methods) && notice == "refused":
		p.Notice = "refused_other"
	}
	p.name(offered)
	return orderTemplate.render(http.StatusOK, p.pageBrand, p)
}

// pay begins an attempt to pay an order and redirects to the provider.
func (a *orderPages) pay(ctx context.Context, c *call) (any, error) {
	r := readOrderLink(c.in)
	method := c.in.text("method", required, maxOrderText, nil)
	if err := a.finishReading(ctx, c); err != nil {
		return nil, err
	}
	o, err := a.find(c, r)
	if err != nil {
		return nil, err
	}
	can, err := a.canPay(c, o)
	if err != nil {
		return nil, err
	}
	if !can {
		return a.payPage(c, r, o, "")
	}
	back := a.routing.Load().bases[0].URL + "/pay/" + o.ID + "/return" + r.link()
	to, err := a.payments.startAttempt(ctx, o.ID, method, back)
	if err == nil {
		return seeOther(to), nil
	}
	var refused *refusal
	if !errors.As(err, &refused) {
		return nil, err
	}
	a.metrics.countRefusal(refused.code.name, a.monotonic())
	if o, err = a.store.order(anyAccount, o.ID); err != nil { // its state may have changed
		return nil, err
	}
	page, err := a.payPage(c, r, o, noticeOf(refused))
	if err == nil && page.status == http.StatusOK {
		page.status = refused.code.status
	}
	return page, err
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
	case codeTooSmall:
		return "too_small"
	}
	return "refused"
}

// refreshFor is how long after the beginning of an attempt the provider is expected to say what came of it.
const refreshFor = 30 * time.Minute

// showReturn answers with what came of an order: its receipt, once it is paid. A guest who has left the provider's
// page is led back to the buttons, unless the provider says that it was paid.
func (a *orderPages) showReturn(ctx context.Context, c *call) (any, error) {
	r := readOrderLink(c.in)
	if err := a.finishReading(ctx, c); err != nil {
		return nil, err
	}
	o, err := a.find(c, r)
	if err != nil {
		return nil, err
	}
	if o, err = a.settled(ctx, o); err != nil {
		return nil, err
	}
	var last *payment
	if o.PaymentID != nil {
		if last, err = a.store.payment(*o.PaymentID); err != nil {
			return nil, err
		}
	}
	p, err := a.pageAbout(c, r, o)
	if err != nil {
		return nil, err
	}
	what := outcomeOf(o, last, c.now)
	if r.left && what == outcomePending {
		return seeOther("../" + url.PathEscape(o.ID) + r.link() + "&left=1"), nil
	}
	p.showOutcome(what, last)
	if payable(o, c.now) && what != outcomeReview {
		p.Again = "../" + url.PathEscape(o.ID) + r.link()
	}
	if wait := outcomes[what].wait; wait > 0 {
		p.Wait, p.Most, p.Look = wait, outcomes[what].most, "return"+r.link()
	}
	return orderTemplate.render(http.StatusOK, p.pageBrand, p)
}

// showOutcome sets what a return page says of an order, whose last attempt is last; nil: there was none.
func (p *orderPage) showOutcome(what string, last *payment) {
	p.Title, p.Text, p.Tone = "title_"+what, "text_"+what, outcomes[what].tone
	p.Ask = slices.Contains(askAfter, what)
	o := p.Order
	if what == outcomeReview { // the guest may have paid
		p.Site = o.siteURL(true)
	}
	switch what {
	case orderAuthorized, outcomeCharged, outcomeLater:
		if p.Title, p.Answers = "title_sent", p.Until(o.AcceptBy); o.AcceptBy.IsZero() {
			p.Title = "order"
		}
	case outcomeDoor:
		p.Title = "title_accepted"
	case outcomeRefused:
		p.Text = "reason_" + string(*o.RejectReason)
	}
	if o.State == orderCancelled {
		p.Said = valueOr(o.RejectText, "")
	}
	switch {
	case !o.dead() || what == outcomeReview:
	case last != nil && last.Captured > 0:
		p.Money = "given_back"
	case !o.AuthorizedAt.IsZero():
		p.Money = "released"
	}
}

// What a return page says of an order, besides the order's states. The texts are title_… and text_….
const (
	outcomeUnpaid     = "unpaid"     // nobody has tried to pay it
	outcomePending    = "pending"    // the provider has not said yet what came of the attempt
	outcomeWaiting    = "waiting"    // … for longer than is usual
	outcomeDeclined   = "declined"   // the attempt was declined
	outcomeLeft       = "left"       // the guest has gone back
	outcomeLapsed     = "lapsed"     // the guest took too long
	outcomeReview     = "review"     // somebody has to look at it
	outcomeCharged    = "charged"    // the restaurant is to accept it; its money was captured by being paid
	outcomeLater      = "later"      // the restaurant is to accept it; it is paid later
	outcomeDoor       = "door"       // it is accepted, and paid later
	outcomeRefused    = "refused"    // the restaurant has refused it and said why
	outcomeUnanswered = "unanswered" // the restaurant has not answered in time
)

// outcomes are how a return page says what came of an order: in which tone, and if the order waits for somebody, after
// how many seconds the script first looks for news, and after how many at most from then on. Who waits for the
// restaurant's answer sees it within 5 seconds, which is less than a third of what the limit for an order allows.
var outcomes = map[string]struct {
	tone       string
	wait, most int
}{
	outcomePending:    {"", 3, 60},
	outcomeWaiting:    {"", 30, 60},
	orderAuthorized:   {toneGood, 4, 4},
	outcomeCharged:    {toneGood, 4, 4},
	outcomeLater:      {toneGood, 4, 4},
	orderAccepted:     {toneGood, 30, 60},
	outcomeDoor:       {toneGood, 30, 60},
	orderPaid:         {toneGood, 0, 0},
	orderCancelled:    {toneBad, 0, 0},
	outcomeRefused:    {toneBad, 0, 0},
	outcomeUnanswered: {toneBad, 0, 0},
	orderExpired:      {toneBad, 0, 0},
	outcomeDeclined:   {toneBad, 0, 0},
	outcomeLeft:       {toneBad, 0, 0},
	outcomeLapsed:     {toneBad, 0, 0},
	outcomeReview:     {toneBad, 0, 0},
}

// askAfter are the outcomes after which guests have reason to ask the restaurant.
var askAfter = []string{outcomeReview, outcomeRefused, outcomeUnanswered, orderCancelled}

// outcomeOf returns what a return page says of an order, whose last attempt is last; nil: there was none.
func outcomeOf(o *order, last *payment, now time.Time) string {
	later, unpaid := o.Pay == payLater, o.PaidAt.IsZero()
	switch {
	case last != nil && last.State == paymentReview && !o.wasPaid():
		return outcomeReview
	case o.State == orderOpen && later:
		return outcomeLater
	case o.State == orderAuthorized && last != nil && last.Captured > 0:
		return outcomeCharged
	case o.State == orderAccepted && later:
		return outcomeDoor
	case o.State == orderCancelled && o.RejectReason != nil:
		return outcomeRefused
	case o.State == orderExpired && unpaid && o.AcceptedAt.IsZero() && (later || !o.AuthorizedAt.IsZero()):
		return outcomeUnanswered
	case o.State != orderOpen:
		return string(o.State)
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
	now                        time.Time
	zone                       *time.Location
	Seller, Address, VATNumber string // of the restaurant; Address has lines
	Phone, Contact             string // where guests reach it; Contact is a URI
	Ask                        bool   // the guest has reason to
	Languages                  []languageLink
	Wait, Most                 int    // seconds until the script looks for news, and at most between two looks
	Again                      string // URL of the page to pay on
	Look                       string // URL of this page
	Site                       string // URL of the restaurant's page that the guest goes on to
	Answers                    string // until when the restaurant answers, for the title
	Said                       string // what the restaurant adds to why it has refused the order
	Money                      string // key of what becomes of the money of a dead order
	Methods                    []payMethod
	Order                      *order
	Number                     string // to say at the counter
	LongNumber                 string // the order's reference or id; "": Number is that
	How, Wanted                string // the guest gets the order: key of a text, and a time
	Ready                      string // when the restaurant says that it is ready
	Heading                    string // of the order: the key of a text
	PaidBy                     string // likewise; "": it is not paid, or costs nothing
	Extras                     []orderExtra
	Refunds                    []refund
	Charged                    string // what was captured before Refunds, if it is more than the total; else ""
	Remaining                  string // after Refunds; "": it was not paid
}

// A payMethod is a way to pay that the page offers, with the keys of what its button says and of when the guest is
// charged.
type payMethod struct{ Method, Label, Note string }

// name sets how the page names the methods that are offered.
func (p *orderPage) name(offered []offeredMethod) {
	for _, m := range offered {
		p.Methods = append(p.Methods, payMethod{m.Method, "pay_" + markOf(m.Method, p.Order.Currency), m.Note})
	}
}

// markOf returns the name under which guests know a method. The app of Vipps MobilePay is called Vipps in Norway and
// Sweden, and MobilePay in Denmark and Finland
// (https://developer.vippsmobilepay.com/docs/knowledge-base/across-borders).
func markOf(method, currency string) string {
	switch {
	case method != methodMobile:
		return method
	case currency == "NOK" || currency == "SEK":
		return "vipps"
	}
	return "mobilepay"
}

const maxShortNumber = 12 // characters

// shortNumber returns what a guest says at the counter: the restaurant's own reference of an order if it is short,
// else the last four characters of the order's id, by which commands find it, too.
func shortNumber(o *order) string {
	if short := valueOr(o.Reference, ""); short != "" && utf8.RuneCountInString(short) <= maxShortNumber {
		return short
	}
	return strings.ToUpper(o.ID[max(0, len(o.ID)-4):])
}

// An orderExtra is a discount, delivery or tip.
type orderExtra struct {
	Name   string // the key of a text
	Amount int64
}

// Amount writes an amount of the order in the guest's language, for the template.
func (p *orderPage) Amount(amount int64) string { return p.money(p.Order.Currency, amount) }

// Taken writes what the accepted units of a line cost, before any discount.
func (p *orderPage) Taken(l orderLine) string { return p.Amount(l.Accepted * l.UnitAmount) }

// Returned writes which parts of the order a refund gives back; "": it is of no parts.
func (p *orderPage) Returned(f refund) (string, error) {
	lines, err := f.lines()
	if err != nil {
		return "", err
	}
	parts := []string{}
	for _, l := range lines {
		if l.Line >= len(p.Order.Lines) {
			continue
		}
		name := p.Order.Lines[l.Line].Name
		if l.Quantity > 0 {
			name = fmt.Sprintf("%d × %s", l.Quantity, name)
		}
		parts = append(parts, name)
	}
	if f.Delivery != nil {
		parts = append(parts, p.texts["delivery"])
	}
	if f.Tip > 0 && (lines != nil || f.Delivery != nil) { // else it is a part of every rate and of the tip
		parts = append(parts, p.texts["tip"])
	}
	return strings.Join(parts, ", "), nil
}

// Why returns what the restaurant said of a refund to the guest; what somebody chose at the provider is for them.
func (p *orderPage) Why(f refund) string {
	if f.Source != sourceOurs || f.Kind == refundNotAccepted {
		return ""
	}
	return printable(valueOr(f.Reason, ""))
}

// Rate writes a rate of VAT.
func (p *orderPage) Rate(rate int64) string { return p.rate(rate) }

// Moment writes a time with its date.
func (p *orderPage) Moment(at stamp) string { return p.moment(at, p.zone) }

// Dial returns what a link that calls the restaurant dials.
func (p *orderPage) Dial() string { return "+" + phoneKey(p.Phone) }

// Written returns the restaurant's contact without its scheme, for people.
func (p *orderPage) Written() string {
	_, address, _ := strings.Cut(p.Contact, ":")
	return strings.TrimPrefix(address, "//")
}

// Until writes a time that something lasts until.
func (p *orderPage) Until(at stamp) string { return p.until(at, p.now, p.zone) }

// Heads returns the page's title.
func (p *orderPage) Heads() (string, error) {
	if p.Answers != "" {
		return p.T(p.Title, p.Answers)
	}
	return p.T(p.Title)
}

// newOrderPage makes an empty page in a language.
func newOrderPage(lang pageLanguage) *orderPage {
	return &orderPage{pageFrame: pageFrame{pageLanguage: lang, texts: textsByLanguage[lang]().Pay}}
}

// pageAbout makes a page about an order.
func (a *orderPages) pageAbout(c *call, r *orderLink, o *order) (*orderPage, error) {
	sold, err := o.Seller, error(nil) // as when it was paid
	if sold == nil {
		sold, err = a.store.sellerOf(o.AccountID)
	}
	if err != nil {
		return nil, err
	}
	settings, err := a.store.settings(o.AccountID)
	if err != nil {
		return nil, err
	}
	refunds, err := a.store.refundsOf(o.ID)
	if err != nil {
		return nil, err
	}
	guests, err := a.store.guestsOf([]string{o.ID})
	if err != nil {
		return nil, err
	}
	var who guest
	if len(guests) > 0 {
		who = guests[0].guest
	}
	p := newOrderPage(pageLanguageOf(c.request, r, who.Language, swissSale(sold.Zone, o.Currency)))
	p.Order, p.now, p.zone = o, c.now, shownZone(sold.Zone)
	p.Site = o.siteURL(o.wasPaid() || o.accepting())
	p.Seller, p.Address, p.VATNumber = sold.Name, valueOr(sold.Address, ""), valueOr(sold.VATNumber, "")
	p.pageBrand = brandOf(c, settings)
	p.Phone, p.Contact = valueOr(settings.Phone, ""), valueOr(settings.Contact, "")
	p.Number, p.LongNumber = shortNumber(o), valueOr(o.Reference, o.ID)
	if p.LongNumber == p.Number {
		p.LongNumber = ""
	}
	for i, l := range pageLanguages {
		same := orderLink{key: r.key, lang: l}
		p.Languages = append(p.Languages, languageLink{l, languageNames[i], same.link(), l == p.spoken()})
	}
	p.showFulfilment(who.Fulfilment)
	p.showOrder(refunds)
	return p, nil
}

// pageLanguageOf returns the language of a page about an order: what the guest has chosen on it, else what the order
// says, else what the browser prefers.
func pageLanguageOf(r *http.Request, asked *orderLink, ordered *string, swiss bool) pageLanguage {
	lang := asked.lang
	if lang == "" {
		lang, _ = knownLanguage(valueOr(ordered, ""), pageLanguages)
	}
	if !slices.Contains(pageLanguages, lang) {
		lang = languageOf(r, pageLanguages)
	}
	if swiss {
		return lang.swiss()
	}
	return lang
}

// swissSale reports whether a sale is in Switzerland or Liechtenstein, so that its pages name VAT as one does there:
// that is where the account's zone is, or the francs.
func swissSale(zone, currency string) bool {
	return zone == "Europe/Zurich" || zone == "Europe/Vaduz" || currency == "CHF"
}

// usuallyMadeIn is how long after it was accepted an order is made at the latest, if the restaurant does not say when.
const usuallyMadeIn = 3 * time.Hour

// siteURL returns where a guest goes on to from the pages of an order: its return_url, or while nothing is paid its
// cancel_url. An order that has that says in the query of both which it is and how it stands now.
func (o *order) siteURL(paid bool) string {
	if o.CancelURL == nil {
		return o.ReturnURL
	}
	to := *o.CancelURL
	if paid {
		to = o.ReturnURL
	}
	to, fragment, hasFragment := strings.Cut(to, "#")
	to, query, _ := strings.Cut(to, "?")
	parts := slices.DeleteFunc(strings.Split(query, "&"), func(part string) bool {
		name, _, _ := strings.Cut(part, "=")
		plain, err := url.QueryUnescape(name)
		return part == "" || err == nil && (plain == "order" || plain == "state")
	})
	to += "?" + strings.Join(append(parts, "order="+o.ID, "state="+string(o.State)), "&")
	if hasFragment {
		to += "#" + fragment
	}
	return to
}

// showFulfilment sets how the guest gets the order, and when: nothing else, since links are passed on.
func (p *orderPage) showFulfilment(f *fulfilment) {
	if f == nil {
		return
	}
	o := p.Order
	p.Wanted = p.Moment(o.WantedAt)
	made := cmp.Or(o.ReadyAt, o.AcceptedAt.after(usuallyMadeIn))
	if p.Wanted != "" || o.EndedAt.IsZero() || !o.dead() && made.After(p.now) {
		p.How = "how_" + string(f.Type)
	}
}

// showOrder sets what is shown of the order beside its row. A receipt leaves out refunds of money that did not pay
// for it, such as a card payment when it was paid in cash. It begins them with what was captured, if that is more than
// the total, since units were not accepted. The discount that is shown is the difference to the total, so that every
// sheet adds up when only a part of the order was accepted.
func (p *orderPage) showOrder(refunds []refund) {
	o := p.Order
	p.Heading = "order"
	if !o.dead() {
		p.Ready = p.Moment(o.ReadyAt)
	}
	if o.wasPaid() {
		p.Heading = "receipt"
		if o.Method != nil && *o.Method != methodNone {
			p.PaidBy = "method_" + markOf(string(*o.Method), o.Currency)
		}
	}
	sum, back := o.Delivery+o.Tip, int64(0)
	for _, l := range o.Lines {
		sum += l.Accepted * l.UnitAmount
	}
	for _, extra := range []orderExtra{{"discount", o.Total - sum}, {"delivery", o.Delivery}, {"tip", o.Tip}} {
		if extra.Amount != 0 {
			p.Extras = append(p.Extras, extra)
		}
	}
	for _, f := range refunds {
		if f.State != refundFailed && (o.soldBy(f.PaymentID) || !o.wasPaid()) {
			p.Refunds = append(p.Refunds, f)
			back += f.Amount
		}
	}
	if !o.wasPaid() {
		return
	}
	charged := max(o.sold().Total, o.Total-o.Refunded+back)
	if p.Remaining = p.Amount(charged - back); charged > o.Total {
		p.Charged = p.Amount(charged)
	}
}

// refused shows a refusal to a guest. It is a refusalForm. A wrong link is answered with whose service this is, and
// how to reach that: the main account, whatever the link is, so that nothing tells whether there is such an order.
func (a *orderPages) refused(r *http.Request, ref *refusal, requestID string) *reply {
	p := newOrderPage(languageOf(r, pageLanguages))
	p.refuse(ref, requestID)
	if ref.code == codeNotFound {
		if id, err := a.store.mainAccount(); err == nil {
			main, _ := a.store.account(id)
			settings, _ := a.store.settings(id)
			p.Seller, p.Phone, p.Contact = main.Name, valueOr(settings.Phone, ""), valueOr(settings.Contact, "")
		}
	}
	return orderTemplate.renderRefusal(ref.code.status, p)
}
