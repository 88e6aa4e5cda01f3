package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// The pages on which an account's accountant connects its books, says which account of them gets what, and posts days
// (contract, section 12), and those to which products send people back. No script runs on them. They show nothing of
// guests and orders, and of revenue only what the routes of revenue days have. What they check and change, they check
// and change as the routes do.

const (
	booksPath      = "/books"
	maxBooksForm   = 64 << 10 // bytes
	maxBooksFields = 400
	entriesOnPage  = 10 // of a connection, in each state
	postPatience   = 5 * time.Second
	postPoll       = 100 * time.Millisecond // how often it is looked whether a day was posted meanwhile
)

// booksTemplate makes every one of these pages from a booksPage.
var booksTemplate = pageTemplateOf("books.html", "")

// booksPageRoutes makes the routes of the pages.
func booksPageRoutes(a *booksAPI) (all []route) {
	for _, p := range []struct {
		pattern string
		answer  visitAnswer // for who has signed in
		run     handler     // else
	}{
		{"GET " + booksPath, a.showConnections, nil},
		{"POST " + booksPath, nil, a.takeBooksCode},
		{"POST /books/signout", nil, a.leaveBooks},
		{"GET /books/connect/{product}", nil, a.startAuthorization},
		{"POST /books/connect/{product}", a.beginConnecting, nil},
		{"GET /books/callback/{product}", nil, a.finishAuthorization},
		{"POST /books/choose/{product}", a.chooseCompany, nil},
		{"GET /books/mapping/{product}", ofCompany(a.showMapping), nil},
		{"POST /books/mapping/{product}", ofCompany(a.takeMapping), nil},
		{"GET /books/day/{product}", ofCompany(a.showDay), nil},
		{"POST /books/day/{product}", ofCompany(a.postDay), nil},
		{"GET /books/sending/{product}", ofCompany(a.showSending), nil},
		{"POST /books/sending/{product}", ofCompany(a.takeSending), nil},
	} {
		if p.answer != nil {
			p.run = a.visited(p.answer)
		}
		all = append(all, route{pattern: p.pattern, page: "books", free: true, origin: originOwn, address: "books",
			body: maxBooksForm, values: maxBooksFields, run: p.run})
	}
	return all
}

// A booksVisit is a request of somebody who has signed in for the books of an account.
type booksVisit struct {
	*call
	form    map[string]string
	who     *session
	of      owner
	product *bookProduct    // that the path names; nil: it names none
	b       *bookConnection // with that product; nil: there is none
}

// A visitAnswer answers one.
type visitAnswer func(ctx context.Context, v *booksVisit) (any, error)

// visited returns a handler that asks for a code unless somebody has signed in.
func (a *booksAPI) visited(answer visitAnswer) handler {
	return func(ctx context.Context, c *call) (any, error) {
		v := &booksVisit{call: c, form: readOAuthPage(c.in).form}
		if err := a.finishReading(ctx, c); err != nil {
			return nil, err
		}
		if c.in.query.Has(langParameter) {
			c.response.Header().Add("Set-Cookie", langCookie+"="+string(ownerLanguage(c.request))+
				"; Path=/; Max-Age=31536000; HttpOnly; SameSite=Lax") // a year; it is no secret
		}
		var err error
		if v.who, err = a.signedInFor(a.store.queries, c, sessionBooks); err != nil {
			return nil, err
		}
		if v.who == nil {
			return a.booksSignin(c, "", "", http.StatusOK)
		}
		v.of = ownedBy(v.who.AccountID)
		if name := c.in.pathValue("product"); name != "" {
			if v.product = productOf(name); v.product == nil {
				return nil, &refusal{code: codeNotFound}
			}
			if v.b, err = a.store.connectionWithBooks(v.who.AccountID, name); err != nil {
				return nil, err
			}
		}
		return answer(ctx, v)
	}
}

// ofCompany returns an answer for a connection that has a company; without one it leads to the page of connections.
func ofCompany(answer visitAnswer) visitAnswer {
	return func(ctx context.Context, v *booksVisit) (any, error) {
		if v.b == nil || v.b.OrganisationID == nil {
			return seeOther(pathToBase(v.call) + "books"), nil
		}
		return answer(ctx, v)
	}
}

// shownHash stands for what the pages show of a connection that its forms change. A form carries it, so that nobody
// undoes what somebody else has changed meanwhile.
func (c *bookConnection) shownHash() string {
	return hex.EncodeToString(hashOf(string(encodeJSON([]any{c.ID, c.OrganisationID, c.Mapping, c.SendFrom,
		c.PayoutsFrom, c.Status, c.Series, c.Outside, c.Tests})))[:12])
}

// errBooksShown refuses a form that shows another state of the connection than it has.
var errBooksShown = &refusal{code: codeBooksState, detail: "Somebody has changed it since this page was shown."}

// changeShown runs f in a transaction, in which the person is still signed in and the connection is as the form shows
// it. Errors: errBooksShown, errBooksSignin, those of f.
func (a *booksAPI) changeShown(ctx context.Context, v *booksVisit, f func(t *tx) error) error {
	err := a.store.update(ctx, func(t *tx) error {
		who, err := a.signedInFor(t.queries, v.call, sessionBooks)
		if err != nil || who == nil {
			return cmp.Or(err, error(errBooksSignin))
		}
		now, err := t.usedBookConnection(v.of, v.b.ID)
		switch {
		case err != nil:
			return err
		case now.shownHash() != v.form["shown"]:
			return errBooksShown
		}
		return f(t)
	})
	a.books.wakeUp()
	return err
}

// A booksPage is what the template shows; an empty field is left out.
type booksPage struct {
	pageFrame
	Up      string // what leads to the base address
	Account string // name of the account for which somebody has signed in
	Product string // name of the product that the page is about
	Shown   string // see shownHash
	Detail  string // English words of the service or of the product
	Back    string // of a refusal: URL of the page of connections
	Facts   [][2]string
	Choices *companyChoice
	zone    *time.Location

	Languages   []languageLink
	Connections []*connectionView
	Mapping     *mappingTable
	Day         *dayView
	Sending     *sendingView
}

// newBooksPage makes a page in the language of ownerLanguage.
func newBooksPage(r *http.Request, title string) *booksPage {
	lang := ownerLanguage(r)
	return &booksPage{pageFrame: pageFrame{pageLanguage: lang, texts: textsByLanguage[lang]().Books, Title: title}}
}

// page makes a page for who has signed in.
func (a *booksAPI) page(v *booksVisit, title string) (*booksPage, error) {
	p := newBooksPage(v.request, title)
	p.Up, p.Account = pathToBase(v.call), printable(v.who.Account)
	of, err := a.store.settings(v.who.AccountID)
	if v.request.Method == http.MethodGet { // else the link would lose what was filled in
		p.Languages = p.switches(v.request.URL.Query())
	}
	if p.pageBrand, p.zone = brandOf(v.call, of), shownZone(of.Zone); v.b != nil {
		p.Product, p.Shown = v.product.name, v.b.shownHash()
	}
	return p, err
}

// answer makes the answer of a page.
func (p *booksPage) answer(status int) (*reply, error) {
	return booksTemplate.render(status, p.pageBrand, p)
}

// Say is T for texts that are there in any case.
func (p *booksPage) Say(key string, args ...any) string {
	text, err := p.T(key, args...)
	if err != nil {
		return key
	}
	return text
}

// Date writes a business day as people read it.
func (p *booksPage) Date(date businessDate) string {
	return p.date(midnight(date), textsByLanguage[p.pageLanguage]().Months, true)
}

// Money writes an amount.
func (p *booksPage) Money(currency string, amount int64) string { return p.money(currency, amount) }

// booksFaults are the keys of texts for refusals.
var booksFaults = map[*refusal]string{errBooksState: "fault_link", errBooksSignin: "fault_signin",
	errBooksDeclined: "fault_declined", errBooksNobody: "fault_nobody", errBooksConnected: "fault_connected",
	errBooksExchange: "fault_exchange", errBooksOff: "fault_off", errBooksShown: "changed"}

// faultOf returns the key of a text for a refusal of the books, and words that stay as they are; "": it is another one.
func faultOf(ref *refusal) (key, detail string) {
	byCode := map[*problemCode]string{codeBooksNotSet: "fault_not_set", codeBooksUnavailable: "fault_unavailable",
		codeBooksState: "fault_lack", codeNotFound: "fault_nothing", codeNoRevenue: "fault_no_revenue",
		codeExportState: "changed"}
	if key = booksFaults[ref]; key == "" {
		if key = byCode[ref.code]; key == "fault_lack" {
			detail = ref.text()
		}
	}
	return key, detail
}

// booksRefused shows a refusal on these pages. It is a refusalForm.
func booksRefused(r *http.Request, ref *refusal, requestID string) *reply {
	p := newBooksPage(r, "")
	p.refuse(ref, requestID)
	if key, detail := faultOf(ref); key != "" {
		p.Title, p.Text, p.Detail = "title_failed", key, detail
	}
	_, below, _ := strings.Cut(r.URL.Path, booksPath+"/")
	if strings.HasPrefix(below, "callback/") || strings.HasPrefix(below, "connect/") {
		p.Title = "title_not_connected"
	} else {
		p.Back = strings.Repeat("../", len(strings.Split(below, "/"))*min(1, len(below))) + "books"
	}
	return booksTemplate.renderRefusal(ref.code.status, p)
}

// booksSignin makes the page that asks for a code; typed is a wrong one.
func (a *booksAPI) booksSignin(c *call, notice, typed string, status int) (*reply, error) {
	p := newOAuthPage(c.request, signinTitle)
	p.SignIn, p.Notice, p.Typed = pathToBase(c)+"books", notice, printable(cutText(typed, maxCodeTyped))
	if err := a.showMain(c, p); err != nil {
		return nil, err
	}
	return oauthTemplate.render(status, p.pageBrand, p)
}

// takeBooksCode signs in.
func (a *booksAPI) takeBooksCode(ctx context.Context, c *call) (any, error) {
	form := readOAuthPage(c.in).form
	if err := a.finishReading(ctx, c); err != nil {
		return nil, err
	}
	cookie, err := a.takeTyped(ctx, c, sessionBooks, form["code"])
	if errors.Is(err, errSigninCode) {
		return a.booksSignin(c, "wrong_code", form["code"], http.StatusForbidden)
	}
	if err != nil {
		return nil, err
	}
	return seeOther("./books").withCookie(cookie), nil
}

// leaveBooks signs out.
func (a *booksAPI) leaveBooks(ctx context.Context, c *call) (any, error) {
	if err := a.finishReading(ctx, c); err != nil {
		return nil, err
	}
	return a.endSession(ctx, c, sessionBooks, "../books")
}

// A connectionView is a product, and what an account has with it.
type connectionView struct {
	Name, Title string
	Available   bool            // the operator has set it up
	Of          *bookConnection // nil: it is not connected
	State       string          // a sentence
	Since       string          // when it was connected
	Again       bool            // its owner has to connect it again
	Open, Last  []*exportView   // that are not in the books; that are, or were
	Choices     *companyChoice  // nil: it has a company
}

// A companyChoice is a form with the companies that a connection can have.
type companyChoice struct {
	Up, Product, Shown string // Shown is empty where somebody else than the accountant sees them
	Companies          []bookCompany
}

// An exportView is an export as these pages show it.
type exportView struct {
	*bookExport
	Says, Why string // sentences: how far it is, "" if it is in the books; why it is held
	Amount    string // "": none is known yet
}

// showConnections shows the connections of the account.
func (a *booksAPI) showConnections(_ context.Context, v *booksVisit) (any, error) {
	p, err := a.page(v, "title_books")
	if err != nil {
		return nil, err
	}
	used, err := a.store.bookConnections(v.of)
	if err != nil {
		return nil, err
	}
	for _, product := range bookProducts {
		shown := &connectionView{Name: product.name, Title: product.title, Available: true}
		if _, err := a.store.booksApp(product.name); err != nil {
			shown.Available = !errors.Is(err, errNotFound)
		}
		for _, c := range used {
			if c.Product == product.name {
				if err := a.showConnection(p, shown, c.show()); err != nil {
					return nil, err
				}
			}
		}
		p.Connections = append(p.Connections, shown)
	}
	return p.answer(http.StatusOK)
}

// showConnection completes what the page shows of a connection.
func (a *booksAPI) showConnection(p *booksPage, shown *connectionView, c *bookConnection) error {
	shown.Of, shown.Again = c, c.State == booksNeedsReconnect
	if c.State == booksChoosing {
		shown.Choices = &companyChoice{p.Up, c.Product, c.shownHash(), c.Choices}
	}
	shown.Since = p.date(c.CreatedAt.In(p.zone), textsByLanguage[p.pageLanguage]().Months, true)
	switch {
	case c.State != booksInUse:
		shown.State = p.Say("state_" + string(c.State))
	case c.Mapping == nil:
		shown.State = p.Say("state_unmapped")
	case c.product().series && c.Series == nil:
		shown.State = p.Say("state_no_series")
	case c.SendFrom == nil:
		shown.State = p.Say("state_by_hand")
	default:
		shown.State = p.Say("state_sends", p.Date(*c.SendFrom))
	}
	for _, state := range exportStates {
		filter := exportFilter{owner: ownedBy(c.AccountID), connectionID: c.ID, state: string(state)}
		found, err := a.store.bookExports(filter, "", entriesOnPage)
		if err != nil {
			return err
		}
		for _, x := range found.rows {
			if e := p.export(x); e.Says == "" {
				shown.Last = append(shown.Last, e)
			} else {
				shown.Open = append(shown.Open, e)
			}
		}
	}
	slices.SortFunc(shown.Last, func(x, y *exportView) int {
		return cmp.Or(strings.Compare(y.Date, x.Date), strings.Compare(y.ID, x.ID))
	})
	shown.Last = shown.Last[:min(len(shown.Last), entriesOnPage)]
	return nil
}

// export returns an export as the page shows it.
func (p *booksPage) export(x *bookExport) *exportView {
	e := &exportView{bookExport: x}
	if sent, err := x.sentEntry(); err == nil {
		debit, _ := sent.sums()
		e.Amount = p.Money(x.Currency, debit)
	}
	if x.State != exportPosted && x.State != exportReversed {
		e.Says = p.Say("entry_" + string(x.State))
	}
	if reason := valueOr(x.Reason, ""); reason != "" {
		e.Why = p.reason(reason)
	}
	return e
}

// reason returns why something is held, with what to do next.
func (p *booksPage) reason(reason string) string {
	if _, ok := p.texts["held_"+reason]; ok {
		return p.Say("held_" + reason)
	}
	return p.Say("held_other")
}

// sums returns the sums of both sides of an entry.
func (e *bookEntry) sums() (debit, credit int64) {
	for i := range e.Lines {
		debit, credit = debit+e.Lines[i].Debit, credit+e.Lines[i].Credit
	}
	return debit, credit
}

// beginConnecting sends the accountant to the product.
func (a *booksAPI) beginConnecting(ctx context.Context, v *booksVisit) (any, error) {
	made, err := a.books.authorize(ctx, v.who.AccountID, v.product.name, a.issuer(), actorPerson(v.who.MadeBy))
	if err != nil {
		return nil, err
	}
	return redirect(made.AuthorizeURL, pageReferrers), nil
}

// chooseCompany gives a connection that waits for it the company that was chosen.
func (a *booksAPI) chooseCompany(ctx context.Context, v *booksVisit) (any, error) {
	if v.b == nil || v.form["organisation"] == "" {
		return seeOther("../../books"), nil
	}
	wish := bookConnectionChange{organisation: v.form["organisation"]}
	err := a.changeShown(ctx, v, func(t *tx) error {
		_, err := changeBooks(t, a.keys.Load(), v.of, v.b.ID, wish, actorPerson(v.who.MadeBy))
		return err
	})
	return seeOther("../mapping/" + v.product.name), err
}

// An authorizationResponse holds the parameters with which a product's pages send somebody back (RFC 6749, section
// 4.1.2).
type authorizationResponse struct{ product, state, code, refusal string }

// finishReturn reads these parameters, and charges who sends them. Errors: those of finishReading, not_found for a
// product that does not exist.
func (a *booksAPI) finishReturn(ctx context.Context, c *call) (*authorizationResponse, error) {
	q := &authorizationResponse{product: c.in.pathValue("product")}
	for name, to := range map[string]*string{"state": &q.state, "code": &q.code, "error": &q.refusal} {
		if values := c.in.query[name]; len(values) == 1 {
			*to = values[0]
		}
	}
	if err := a.finishReading(ctx, c); err != nil {
		return nil, err
	}
	if productOf(q.product) == nil {
		return nil, &refusal{code: codeNotFound}
	}
	return q, nil
}

// sessionFor returns the session, of either kind, of somebody who has signed in for an account; else another one that
// there is, or nil.
func (a *booksAPI) sessionFor(c *call, accountID string) (found *session, err error) {
	for _, kind := range []sessionKind{sessionConsent, sessionBooks} {
		s, err := a.signedInFor(a.store.queries, c, kind)
		switch {
		case err != nil:
			return nil, err
		case s != nil && (found == nil || s.AccountID == accountID):
			found = s
		}
	}
	return found, nil
}

// startAuthorization answers GET /books/connect/{product}, where the links lead that applications have asked for.
// It redirects people who have signed in for the account to the product, and others to the page to sign in first.
// So whoever asked for the link can neither finish the connection, nor have the owner finish it with somebody
// else's company.
func (a *booksAPI) startAuthorization(ctx context.Context, c *call) (any, error) {
	q, err := a.finishReturn(ctx, c)
	if err != nil {
		return nil, err
	}
	link, err := a.store.bookAuthorization(q.product, hashOf(q.state), newStamp(c.now))
	if errors.Is(err, errNotFound) || err == nil && !link.ofApp() {
		return nil, errBooksState
	}
	if err != nil {
		return nil, err
	}
	s, err := a.sessionFor(c, link.AccountID)
	switch {
	case err != nil:
		return nil, err
	case s == nil:
		query := url.Values{booksSignin: {q.product}, "state": {q.state}}
		return redirect("../../oauth/signin?"+query.Encode(), pageReferrers), nil
	case s.AccountID != link.AccountID:
		return nil, errBooksSignin
	}
	made, err := a.books.authorize(ctx, s.AccountID, q.product, a.issuer(), actorPerson(s.MadeBy))
	if err != nil {
		return nil, err
	}
	return redirect(made.AuthorizeURL, pageReferrers), nil
}

// finishAuthorization answers with a page that shows the result.
func (a *booksAPI) finishAuthorization(ctx context.Context, c *call) (any, error) {
	q, err := a.finishReturn(ctx, c)
	if err != nil {
		return nil, err
	}
	s, b, err := a.finish(ctx, c, q)
	if err != nil {
		return nil, err
	}
	of, err := a.store.account(b.AccountID)
	if err != nil {
		return nil, err
	}
	p := newBooksPage(c.request, "title_connected")
	p.Tone, p.Text = toneGood, "text_connected"
	p.Facts = [][2]string{{"account", of.Name}, {"software", b.product().title}, {"company", b.Organisation}}
	if b.SendFrom != nil {
		p.Text = "text_connected_again"
	}
	if b.OrganisationID == nil {
		p.Title, p.Text, p.Tone, p.Facts = "title_choose", "text_choose", "", p.Facts[:2]
		p.Choices = &companyChoice{Up: pathToBase(c), Product: b.Product, Companies: b.Choices}
	}
	if s != nil && s.AccountID == b.AccountID && s.Kind == sessionBooks {
		if p.Up, p.Account, p.Product = pathToBase(c), printable(s.Account), b.Product; p.Choices != nil {
			p.Choices.Shown = b.shownHash()
		}
	}
	return p.answer(http.StatusOK)
}

// finish finishes an authorization, if the caller may. One that a person began, see startAuthorization, can be
// finished only by somebody who has signed in for its account; one that an application began can't be finished at
// all. It returns the session, which may be nil. Errors: errBooksState, errBooksSignin, those of callback.
func (a *booksAPI) finish(ctx context.Context, c *call, q *authorizationResponse) (*session, *bookConnection, error) {
	begun, err := a.store.bookAuthorization(q.product, hashOf(q.state), newStamp(c.now))
	if errors.Is(err, errNotFound) { // callback says why
		b, err := a.books.callback(ctx, q.product, q.state, q.code, q.refusal)
		return nil, b, err
	}
	if err != nil {
		return nil, nil, err
	}
	if begun.ofApp() { // its state leads to startAuthorization, which makes another one for the owner
		return nil, nil, errBooksState
	}
	s, err := a.sessionFor(c, begun.AccountID)
	if err == nil && begun.ofPerson() && (s == nil || s.AccountID != begun.AccountID) {
		err = errBooksSignin
	}
	if err != nil {
		return nil, nil, err
	}
	b, err := a.books.callback(ctx, q.product, q.state, q.code, q.refusal)
	return s, b, err
}

// A dayView is a business day, in each currency.
type dayView struct {
	Date, Before, After businessDate
	Company             string
	Entries             []*dayEntry
	Asks                bool // it is asked whether it is to be posted
	MayPost             bool
	Ahead               bool // it has not begun
	Open                bool // it is not over yet
	Done                bool // it was just asked for
}

// A dayEntry is the entry of a day in one currency.
type dayEntry struct {
	Currency      string
	Entry         *bookEntry // nil: there is none
	Debit, Credit int64
	Off           int64 // by which the product's own rounding of VAT differs
	Lacks         []entryLack
	Export        *exportView // nil: it was not asked for
	Posted        bool
}

// An entryLack is why an entry would be held: a sentence, and what it lacks in words of the service.
type entryLack struct {
	Says    string
	Details []string
}

// showDay shows the entries of a business day, as they are in the books, or as they would be sent.
func (a *booksAPI) showDay(ctx context.Context, v *booksVisit) (any, error) {
	return a.dayPage(ctx, v, v.in.query.Get("date"), "", http.StatusOK)
}

// dayPage makes the page of a day; without one of the last day that has revenue. notice is the key of a text.
func (a *booksAPI) dayPage(
	ctx context.Context, v *booksVisit, date businessDate, notice string, status int,
) (*reply, error) {
	p, err := a.page(v, "title_day")
	if err != nil {
		return nil, err
	}
	calendar, err := a.store.businessCalendar(v.b.AccountID)
	if err != nil {
		return nil, err
	}
	today := calendar.dateOf(v.now)
	if code, _ := checkBusinessDate.of(date); code != "" {
		before := midnight(today).AddDate(0, 0, -suggestedFrom).Format(time.DateOnly)
		days, err := a.store.revenueDayKeys(v.b.AccountID, before, dateBefore(today))
		if err != nil {
			return nil, err
		}
		if date = dateBefore(today); len(days) > 0 {
			date = days[len(days)-1].Date
		}
	}
	d := &dayView{Date: date, Before: dateBefore(date), After: dateAfter(date), Company: v.b.Organisation,
		Ahead: date > today, Open: calendar.finalAt(date).After(v.now), Done: v.in.query.Get("done") != ""}
	all, err := a.books.preview(ctx, v.b, date)
	if err = booksRefusal(err); err != nil {
		ref, ok := errors.AsType[*refusal](err)
		if !ok {
			return nil, err
		}
		notice, p.Detail = faultOf(ref)
	}
	for i := range all {
		e, err := a.dayEntry(p, v.b, date, &all[i])
		if err != nil {
			return nil, err
		}
		d.Entries = append(d.Entries, e)
		d.MayPost = d.MayPost || !e.Posted && !d.Ahead && e.Entry != nil && len(e.Lacks) == 0
	}
	d.Asks = d.MayPost && v.in.query.Get("post") != ""
	p.Day, p.Notice = d, notice
	return p.answer(status)
}

// dayEntry returns the entry of a day in a currency: as it was sent, or as it would be.
func (a *booksAPI) dayEntry(
	p *booksPage, c *bookConnection, date businessDate, preview *bookPreviewEntry,
) (*dayEntry, error) {
	e := &dayEntry{Currency: preview.Currency, Entry: preview.Entry, Off: preview.Difference}
	x, err := a.store.lastExport(c.ID, exportSubject{Date: date, Currency: preview.Currency})
	if err != nil {
		return nil, err
	}
	if x != nil {
		e.Export = p.export(x)
		e.Posted = slices.Contains([]bookExportState{exportPosted, exportSending, exportUnknown}, x.State)
		if x.Reverses != nil && x.State == exportPosted { // so the day may be posted anew
			x.State, e.Posted = exportReversed, false
		}
	}
	if e.Posted {
		e.Entry, err = x.sentEntry()
	} else {
		e.Lacks = p.lacks(preview.Issues)
	}
	if e.Entry != nil {
		e.Debit, e.Credit = e.Entry.sums()
	}
	return e, err
}

// lacks returns what an entry lacks, each reason once.
func (p *booksPage) lacks(issues []entryIssue) (all []entryLack) {
	for _, issue := range issues {
		says := p.reason(string(issue.Reason))
		if n := len(all); n == 0 || all[n-1].Says != says {
			all = append(all, entryLack{Says: says})
		}
		last := &all[len(all)-1]
		last.Details = append(last.Details, issue.Detail)
	}
	return all
}

// postDay sends a day, waits a moment for what comes of it, and leads to the page that shows it. A day that is held
// is tried again; one that was posted stays as it is.
func (a *booksAPI) postDay(ctx context.Context, v *booksVisit) (any, error) {
	date, asked := v.form["date"], []string{}
	err := a.changeShown(ctx, v, func(t *tx) error {
		rows, err := requestExport(t, v.of, v.b.ID, date)
		if err != nil {
			return err
		}
		for _, x := range rows {
			asked = append(asked, x.ID)
			if x.State == exportHeld || x.State == exportFailed {
				if _, err := retryExport(t, v.of, v.b.ID, x.ID); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if ref, ok := errors.AsType[*refusal](err); ok && ref != errBooksSignin {
		key, _ := faultOf(ref)
		return a.dayPage(ctx, v, date, cmp.Or(key, "wrong_day"), ref.code.status)
	}
	if err != nil {
		return nil, err
	}
	if err := a.awaitPosted(ctx, asked); err != nil {
		return nil, err
	}
	return seeOther("./" + v.product.name + "?" + url.Values{"date": {date}, "done": {"yes"}}.Encode()), nil
}

// awaitPosted returns once none of some exports is being sent or due to be sent, or postPatience has passed.
func (a *booksAPI) awaitPosted(ctx context.Context, ids []string) error {
	for range postPatience / postPoll {
		busy := false
		for _, id := range ids {
			x, err := a.store.bookExport(anyAccount, id)
			if err != nil {
				return except(err, errExport) // it was left out, as nothing was to be booked
			}
			due := !x.DueAt.IsZero() && !x.DueAt.After(a.now())
			busy = busy || x.State == exportSending || due
		}
		if !busy {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(postPoll):
		}
	}
	return nil
}

// A sendingView is what is sent with a connection, from when on and how, as its form has it.
type sendingView struct {
	Send, Payouts         bool
	SendFrom, PayoutsFrom string
	Status, Series        string
	Outside, History      bool
	Drafts, HasSeries     bool     // which of the choices the product has
	AllSeries             []string // that the books have
	Wrong                 map[string]string
	Saved                 bool
}

// showSending shows it, with a series of the books as a suggestion where none is chosen.
func (a *booksAPI) showSending(ctx context.Context, v *booksVisit) (any, error) {
	b := v.b
	d := &sendingView{Send: b.SendFrom != nil, SendFrom: valueOr(b.SendFrom, ""), Payouts: b.PayoutsFrom != nil,
		PayoutsFrom: valueOr(b.PayoutsFrom, ""), Status: string(b.Status), Series: valueOr(b.Series, ""),
		Outside: b.Outside, Saved: v.in.query.Get("saved") != ""}
	return a.sendingPage(ctx, v, d, "", http.StatusOK)
}

// sendingPage makes the page with the form.
func (a *booksAPI) sendingPage(
	ctx context.Context, v *booksVisit, d *sendingView, notice string, status int,
) (*reply, error) {
	p, err := a.page(v, "title_sending")
	if err != nil {
		return nil, err
	}
	d.Drafts, d.HasSeries = v.product.drafts, v.product.series
	if d.HasSeries {
		chart, _, err := a.books.chartOn(ctx, v.b, "")
		if err == nil && len(chart.Series) > 0 {
			d.AllSeries, d.Series = chart.Series, cmp.Or(d.Series, chart.Series[0])
		}
	}
	p.Sending, p.Notice = d, notice
	return p.answer(status)
}

// takeSending saves the form. It is read as the body of PATCH /books/connections/{id} is.
func (a *booksAPI) takeSending(ctx context.Context, v *booksVisit) (any, error) {
	d := &sendingView{Send: v.form["send"] == "yes", SendFrom: v.form["send_from"], Payouts: v.form["payouts"] == "yes",
		PayoutsFrom: v.form["payouts_from"], Status: v.form["status"], Series: v.form["series"],
		Outside: v.form["outside"] == "yes", History: v.form["history"] == "yes", Wrong: map[string]string{}}
	members := map[string]any{"send_from": nil, "payouts_from": nil, "outside": d.Outside, "history": d.History}
	for name, days := range map[string][2]any{"send_from": {d.Send, d.SendFrom},
		"payouts_from": {d.Payouts, d.PayoutsFrom}} {
		if days[0].(bool) {
			members[name] = days[1]
		}
	}
	if v.product.drafts {
		members["status"] = d.Status
	}
	if v.product.series {
		members["series"] = nilIfEmpty(d.Series)
	}
	in, err := inputOf(members)
	if err != nil {
		return nil, err
	}
	wish := readBookConnectionChange(in)
	if err = in.err(); err == nil {
		err = a.changeShown(ctx, v, func(t *tx) error {
			_, err := changeBooks(t, a.keys.Load(), v.of, v.b.ID, *wish, actorPerson(v.who.MadeBy))
			return err
		})
	}
	ref, refused := errors.AsType[*refusal](err)
	if err == nil {
		return seeOther("./" + v.product.name + "?saved=yes"), nil
	}
	if !refused || ref == errBooksSignin {
		return nil, err
	}
	for _, wrong := range ref.fields {
		d.Wrong[strings.TrimPrefix(wrong.Pointer, "#/")] = map[bool]string{true: "wrong_past",
			false: "wrong_value"}[wrong.Code == "in_the_past"]
	}
	notice, _ := faultOf(ref)
	return a.sendingPage(ctx, v, d, cmp.Or(notice, "wrong"), ref.code.status)
}

// inputOf returns the input of a body with these members, as a route would read it.
func inputOf(members any) (*input, error) {
	body, err := parseJSON(encodeJSON(members))
	return newInput(&body, nil), err
}
