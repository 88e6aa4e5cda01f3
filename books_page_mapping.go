package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// The page on which an accountant says which account of the books gets what: a table of all that the last days had. A
// field that is empty names nothing. A form has a part of the rows, and leaves the others as they are.

const (
	rowsOnPage = 100
	maxLabel   = 30 // characters of an account's name beside its code
	maxTaxName = 14 // … of a tax rate's
)

// A mappingTable is that page.
type mappingTable struct {
	Rows    []*mappingRow // of this part
	Lists   []accountList
	Missing []string // what has no account
	Wrong   []string // what can't be saved
	Pages   []int    // numbers of all parts; nil: there is one
	Page    int
	Saved   bool
	First   bool // nothing was confirmed yet

	product *bookProduct
	all     []*mappingRow
	chart   *bookChart
	seen    []revenueSum
}

// A mappingRow is one row of it: what a rule is for, with the rule as far as it is filled in.
type mappingRow struct {
	mappingRule
	Key          string // of its fields
	What, Hint   string
	List         string // of accounts that it can have
	Field, Taxed string // its account and its tax, as their fields have them
	HasTax       bool   // it has a field for its tax
	Suggested    bool
	Missing      bool
	Wrong        []string // why it can't be saved, in words of the service
	Typed        string   // what was filled in, where somebody else has saved another account meanwhile
}

// An accountList is the accounts that some rows can have, or their taxes.
type accountList struct {
	ID      string
	Options []string
}

// rowLists are the lists of accounts that each kind of rows can have, and accountLists what is in them.
var (
	rowLists = map[bookMappingKind]string{ruleSales: "sales", ruleDelivery: "sales", ruleTip: "tip",
		ruleDispute: "dispute", rulePayment: "payment", ruleFee: "fee", ruleFeeTax: "fee", ruleDisputeFee: "fee",
		ruleTransit: "payment"}
	accountLists = map[string]func(*bookAccount) bool{"sales": isRevenue, "tip": isForTips, "dispute": isDisputed,
		"fee":     isCost,
		"payment": func(a *bookAccount) bool { return isClearing(a) || isCash(a) || isVouchers(a) }}
	isTaxAccount = accountKind("26", "")
)

// newMappingTable makes the rows of a connection: one for each thing that was seen, or is suggested or mapped.
func newMappingTable(c *bookConnection, chart *bookChart, seen []revenueSum) *mappingTable {
	t := &mappingTable{chart: chart, seen: seen, First: c.Mapping == nil, product: c.product()}
	suggested, mapped := suggestMapping(c.product(), chart, seen), cmp.Or(c.Mapping, &bookMapping{})
	wanted := slices.Concat(mapped.Lines, []mappingRule{{Kind: ruleTip}, {Kind: ruleDispute}})
	for i := range seen {
		s := &seen[i]
		switch s.What {
		case figureSale, figureRefund:
			wanted = append(wanted, mappingRule{Kind: ruleSales, VATRate: &s.Rate})
			if s.Group != "" {
				wanted = append(wanted, mappingRule{Kind: ruleSales, VATRate: &s.Rate, Group: &s.Group})
			}
		case figureDelivery, figureRefundDelivery:
			wanted = append(wanted, mappingRule{Kind: ruleDelivery, VATRate: &s.Rate})
		}
		wanted = append(wanted, mappingRule{Kind: rulePayment, Method: new(bookPayMethod(s.Method))})
	}
	wanted = append(wanted, suggested.Lines...)
	for kind := range payoutTexts {
		wanted = append(wanted, mappingRule{Kind: kind})
	}
	for i := range wanted {
		r := wanted[i].blank()
		isMapped := mapped.line(&r) != nil
		if t.row(&r) == nil && (isMapped || payoutTexts[r.Kind] == "" || c.PayoutsFrom != nil) {
			t.all = append(t.all, t.newRow(r, mapped, &suggested))
		}
	}
	slices.SortStableFunc(t.all, func(x, y *mappingRow) int {
		return cmp.Or(cmp.Compare(slices.Index(ruleKinds, x.Kind), slices.Index(ruleKinds, y.Kind)),
			cmp.Compare(valueOr(y.VATRate, 0), valueOr(x.VATRate, 0)),
			cmp.Compare(valueOr(x.Group, ""), valueOr(y.Group, "")),
			cmp.Compare(valueOr(x.Method, ""), valueOr(y.Method, "")))
	})
	return t
}

// blank returns a rule for the same without an account.
func (r mappingRule) blank() mappingRule {
	return mappingRule{Kind: r.Kind, VATRate: r.VATRate, Group: r.Group, Method: r.Method}
}

// line returns the line of a mapping for what another one is for, or nil.
func (m *bookMapping) line(of *mappingRule) *mappingRule {
	return firstWhere(m.Lines, func(r mappingRule) bool { return r.subject() == of.subject() })
}

// row returns the row for what a rule is for, or nil.
func (t *mappingTable) row(of *mappingRule) *mappingRow {
	for _, r := range t.all {
		if r.subject() == of.subject() {
			return r
		}
	}
	return nil
}

// newRow makes a row, filled in with what is mapped, else with what is suggested, unless it is a group whose sales have
// an account already.
func (t *mappingTable) newRow(r mappingRule, mapped, suggested *bookMapping) *mappingRow {
	row := &mappingRow{mappingRule: r, Key: hex.EncodeToString(hashOf(r.subject())[:6]), List: rowLists[r.Kind]}
	others := r
	others.Group = nil
	if line := mapped.line(&r); line != nil {
		row.mappingRule = *line
	} else if line := suggested.line(&r); line != nil && mapped.line(&others) == nil {
		row.mappingRule, row.Suggested = *line, true
	}
	row.HasTax = r.VATRate != nil || t.product.taxInside && r.Kind != rulePayment && r.Kind != ruleTransit
	t.label(row)
	return row
}

// label fills in the fields of a row: a code with its name.
func (t *mappingTable) label(row *mappingRow) {
	row.Field, row.Taxed = row.Account, valueOr(row.Tax, "")
	if a := t.chart.account(row.Account); a != nil {
		row.Field = a.label(maxLabel)
	}
	if rate := t.chart.taxRate(row.Taxed); rate != nil {
		row.Taxed = rate.label()
	} else if a := t.chart.account(row.Taxed); a != nil && !t.product.taxInside {
		row.Taxed = a.label(maxTaxName)
	}
}

// label returns the code of an account with its name, at most so many characters of that.
func (a *bookAccount) label(most int) string { return a.Code + " " + cutText(a.Name, most) }

func (r *bookTaxRate) label() string { return r.Code + " " + cutText(r.Name, maxTaxName) }

// codeIn returns the code that a field has before a name.
func codeIn(field string) string {
	code, _, _ := strings.Cut(strings.TrimSpace(field), " ")
	return code
}

// fill takes what a form has. Rows that it lacks keep what is mapped. beside leaves what somebody else has saved
// meanwhile, and shows what was filled in beside it.
func (t *mappingTable) fill(form map[string]string, beside bool) {
	for _, row := range t.all {
		account, given := form["account-"+row.Key]
		switch {
		case !given && row.Suggested:
			row.Account, row.Tax, row.CostCenter, row.Suggested = "", nil, nil, false
		case !given, beside && row.Account != "" && !row.Suggested:
			if given && codeIn(account) != row.Account {
				row.Typed = account
			}
			continue
		default:
			row.Account, row.Suggested = codeIn(account), false
			if row.HasTax {
				row.Tax = nilIfEmpty(codeIn(form["tax-"+row.Key]))
			}
		}
		t.label(row)
	}
}

// filled returns the rows that name an account.
func (t *mappingTable) filled() []*mappingRow {
	return slices.DeleteFunc(slices.Clone(t.all), func(r *mappingRow) bool { return r.Account == "" })
}

// check returns the mapping that is filled in, and notes what is wrong at its rows: what PUT …/mapping would refuse,
// and what the books would. It reports whether nothing is.
func (t *mappingTable) check() (m bookMapping, right bool, err error) {
	rows := t.filled()
	for _, r := range rows {
		m.Lines = append(m.Lines, r.mappingRule)
	}
	in, err := inputOf(m)
	if err != nil {
		return m, false, err
	}
	m = readMapping(in, t.product)
	right = len(*in.errs) == 0
	for _, wrong := range *in.errs {
		parts := strings.Split(wrong.Pointer, "/")
		if at, err := strconv.Atoi(parts[min(2, len(parts)-1)]); err == nil && at < len(rows) {
			rows[at].Wrong = append(rows[at].Wrong, wrong.Detail)
		}
	}
	for i := range min(len(rows), len(m.Lines)) {
		if row := rows[i]; len(row.Wrong) == 0 {
			var issues entryIssues
			tax := valueOr(row.Tax, noTax)
			issues.addLine(t.product, &entryLine{Account: row.Account, Tax: tax, Rate: valueOr(row.VATRate, 0),
				CostCenter: valueOr(row.CostCenter, "")}, t.chart)
			if !t.product.taxInside && row.Tax != nil {
				issues.addLine(t.product, &entryLine{Account: tax}, t.chart)
			}
			for _, issue := range issues {
				row.Wrong, right = append(row.Wrong, issue.Detail), false
			}
		}
	}
	return m, right, nil
}

// noteMissing marks the rows without which an entry of the last days would be held, by what is filled in. Once a
// mapping was confirmed, a suggestion counts only when it is saved.
func (t *mappingTable) noteMissing(payouts bool) {
	m := bookMapping{}
	for _, r := range t.filled() {
		if t.First || !r.Suggested {
			m.Lines = append(m.Lines, r.mappingRule)
		}
	}
	mark := func(r mappingRule) {
		if row := t.row(&r); row != nil {
			row.Missing = true
		}
	}
	for i := range t.seen {
		s := &t.seen[i]
		if m.rule(s) == nil {
			kinds := map[string]bookMappingKind{figureDelivery: ruleDelivery, figureRefundDelivery: ruleDelivery,
				figureTip: ruleTip, figureRefundTip: ruleTip, figureDispute: ruleDispute}
			r := mappingRule{Kind: cmp.Or(kinds[s.What], ruleSales)}
			if r.Kind == ruleSales || r.Kind == ruleDelivery {
				r.VATRate = &s.Rate
			}
			mark(r)
		}
		if m.clearing(s.Method) == nil {
			mark(mappingRule{Kind: rulePayment, Method: new(bookPayMethod(s.Method))})
		}
	}
	if payouts && m.ofKind(ruleFee) == nil {
		mark(mappingRule{Kind: ruleFee})
	}
}

// lists makes the lists of accounts and taxes that the rows of this part need.
func (t *mappingTable) lists() {
	add := func(id string, options []string) { t.Lists = append(t.Lists, accountList{id, options}) }
	of := func(is func(*bookAccount) bool, most int) (options []string) {
		for i := range t.chart.Accounts {
			if a := &t.chart.Accounts[i]; a.Usable && is(a) {
				options = append(options, a.label(most))
			}
		}
		return options
	}
	for _, id := range []string{"sales", "tip", "dispute", "payment", "fee"} {
		if slices.ContainsFunc(t.Rows, func(r *mappingRow) bool { return r.List == id }) {
			add(id, of(accountLists[id], maxLabel))
		}
	}
	if !t.product.taxInside {
		add("tax", of(isTaxAccount, maxTaxName))
		return
	}
	var taxes []string
	for i := range t.chart.TaxRates {
		if r := &t.chart.TaxRates[i]; r.Usable || r.Code == noTax {
			taxes = append(taxes, r.label())
		}
	}
	add("tax", taxes)
}

// show completes the table for a page: the rows of a part of it, in the page's words.
func (t *mappingTable) show(p *booksPage, part string, payouts bool) {
	t.noteMissing(payouts)
	parts := max(1, (len(t.all)+rowsOnPage-1)/rowsOnPage)
	n, _ := strconv.Atoi(part)
	t.Page = min(max(n, 1), parts)
	for i := 1; i <= parts && parts > 1; i++ {
		t.Pages = append(t.Pages, i)
	}
	for _, row := range t.all {
		row.What, row.Hint = p.what(&row.mappingRule)
		if row.Missing {
			t.Missing = append(t.Missing, row.What)
		}
		if len(row.Wrong) > 0 {
			t.Wrong = append(t.Wrong, row.What)
		}
	}
	t.Rows = t.all[(t.Page-1)*rowsOnPage : min(t.Page*rowsOnPage, len(t.all))]
	t.lists()
}

// what returns what a rule is for, in the page's words, and what an empty field means where that is no lack.
func (p *booksPage) what(r *mappingRule) (what, hint string) {
	switch {
	case r.Kind == rulePayment:
		return p.Say("what_payment", p.Say("method_"+string(valueOr(r.Method, "")))), ""
	case r.Kind == ruleDelivery:
		return p.Say("what_delivery", p.rate(valueOr(r.VATRate, 0))), ""
	case r.Kind != ruleSales:
		if r.Kind == ruleTransit {
			hint = p.Say("hint_transit")
		}
		return p.Say("what_" + string(r.Kind)), hint
	}
	what = p.Say("what_sales", p.rate(valueOr(r.VATRate, 0)))
	switch group := valueOr(r.Group, ""); {
	case group != "":
		return what + ", " + printable(group), p.Say("hint_group", what)
	case r.Group != nil:
		return what + ", " + p.Say("what_no_group"), p.Say("hint_group", what)
	}
	return what, ""
}

// mappingPage answers with the table. Without the books' chart its lists are empty, and it says why.
func (a *booksAPI) mappingPage(v *booksVisit, t *mappingTable, notice, detail string, status int) (*reply, error) {
	p, err := a.page(v, "title_mapping")
	if err != nil {
		return nil, err
	}
	t.Saved = v.in.query.Get("saved") != ""
	t.show(p, cmp.Or(v.form["part"], v.in.query.Get("part")), v.b.PayoutsFrom != nil)
	p.Mapping, p.Notice, p.Detail = t, notice, detail
	return p.answer(status)
}

// readTable makes the table of the visit's connection. It returns why the books' chart is missing, as the key of a text
// and in their words; "": it is there.
func (a *booksAPI) readTable(ctx context.Context, v *booksVisit) (t *mappingTable, notice, detail string, err error) {
	chart, _, err := a.books.chartOn(ctx, v.b, "") // which tells their currency, too
	ref, refused := errors.AsType[*refusal](err)
	if err != nil && !refused {
		return nil, "", "", err
	}
	if refused {
		chart = &bookChart{}
		notice, detail = faultOf(ref)
	}
	seen, err := a.store.sumsToMap(v.b, a.now())
	return newMappingTable(v.b, chart, seen), notice, detail, err
}

func (a *booksAPI) showMapping(ctx context.Context, v *booksVisit) (any, error) {
	t, notice, detail, err := a.readTable(ctx, v)
	if err != nil {
		return nil, err
	}
	return a.mappingPage(v, t, notice, detail, http.StatusOK)
}

// takeMapping confirms the mapping of a form, or shows the form again with what is wrong. What was filled in stays.
func (a *booksAPI) takeMapping(ctx context.Context, v *booksVisit) (any, error) {
	t, notice, detail, err := a.readTable(ctx, v)
	if err != nil {
		return nil, err
	}
	if v.b.shownHash() != v.form["shown"] {
		return a.showChanged(ctx, v)
	}
	t.fill(v.form, false)
	if notice != "" { // nobody knows which accounts there are
		return a.mappingPage(v, t, notice, detail, http.StatusServiceUnavailable)
	}
	m, right, err := t.check()
	if err != nil {
		return nil, err
	}
	if !right {
		return a.mappingPage(v, t, "wrong", "", http.StatusUnprocessableEntity)
	}
	err = a.changeShown(ctx, v, func(t *tx) error {
		_, err := saveMapping(t, v.of, v.b.ID, &m, actorPerson(v.who.MadeBy))
		return err
	})
	if errors.Is(err, errBooksShown) {
		return a.showChanged(ctx, v)
	}
	to := "./" + v.product.name + "?saved=yes"
	if n, _ := strconv.Atoi(v.form["part"]); n > 1 {
		to += "&part=" + strconv.Itoa(n)
	}
	return seeOther(to), err
}

// showChanged shows a form again whose connection somebody has changed meanwhile: with what is saved now, and beside it
// what was filled in.
func (a *booksAPI) showChanged(ctx context.Context, v *booksVisit) (any, error) {
	var err error
	if v.b, err = a.store.usedBookConnection(v.of, v.b.ID); err != nil {
		return nil, err
	}
	t, _, detail, err := a.readTable(ctx, v)
	if err != nil {
		return nil, err
	}
	t.fill(v.form, true)
	return a.mappingPage(v, t, "changed", detail, http.StatusConflict)
}
