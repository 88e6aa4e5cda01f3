package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// Random months of a restaurant whose provider pays out each night: what is on the clearing accounts of its books has
// to be what is at the provider and on its way, to the cent, each day, whatever else happens.

// A payoutMonth is one month. What is true of the money is kept beside the service, which is told of it.
type payoutMonth struct {
	*till
	t        *testing.T
	run      *historyRun
	random   *rand.Rand
	transfer bool   // the books have an account of transit
	alone    bool   // TWINT has a clearing account of its own
	again    string // the day on which the account is connected once more; "": none
	rows     []*moneyRow
	paid     []*moneyPayout
	hand     map[string]int64 // what the accountant has booked, by account
	states   map[string]partState
}

// A moneyRow is a row of the provider's ledger.
type moneyRow struct {
	ledgerRow
	method string       // "": of no payment
	date   businessDate // on which what it moves is booked; "": it is not, since it is no revenue
	in     *moneyPayout // nil: its money is at the provider
	order  *moneyRow    // what it refunds or disputes
	gone   int64        // of a sale: what was given back or taken of it
	open   bool         // of a dispute: the bank has not decided
}

// A moneyPayout is a payout.
type moneyPayout struct {
	payoutReport
	rows      []*moneyRow
	complete  businessDate // from when on it can be read
	fails     businessDate // when it fails, at night; "": it does not
	ends      string       // as what
	again     bool         // it is said to be paid once more after it has failed
	lie       string       // the reason for which it is held until truth, though nothing is wrong with it
	truth     businessDate
	byHand    bool // the accountant has booked its fees, and that it has left
	arrived   bool // it was seen on the bank's statement
	returned  bool // as above, and then it came back
	untouched bool // nothing of it was told of yet
}

// TestPayout_historiesKeepTheClearingAccounts has months happen.
func TestPayout_historiesKeepTheClearingAccounts(t *testing.T) {
	t.Parallel()
	(&histories[*payoutMonth]{
		small: 2, large: 10, inOne: 1,
		start: func(t *testing.T) *payoutMonth { return &payoutMonth{t: t} },
		begin: (*payoutMonth).begin,
		ops:   func(random *rand.Rand) int { return 24 },
		pause: func(*rand.Rand) time.Duration { return nextHour(18) },
		op: func(m *payoutMonth, random *rand.Rand) {
			m.random = random
			m.trade()
			time.Sleep(nextHour(10))
			m.morning()
		},
		held: func(m *payoutMonth, random *rand.Rand) {
			m.random = random
			for range 24 {
				time.Sleep(nextHour(10))
				m.morning()
			}
			m.verify()
		},
	}).run(t)
}

// nextHour returns how long it is until an hour is reached next.
func nextHour(hour int) time.Duration {
	now := time.Now().UTC()
	at := time.Date(now.Year(), now.Month(), now.Day(), hour, 0, 0, 0, time.UTC)
	if !at.After(now) {
		at = at.Add(24 * time.Hour)
	}
	return at.Sub(now)
}

// today returns the present day, or one that many days later.
func today(later int) businessDate {
	return time.Now().UTC().AddDate(0, 0, later).Format(time.DateOnly)
}

// begin begins a month.
func (m *payoutMonth) begin(r *historyRun) {
	m.run, m.random = r, r.random(-3)
	vendor := []string{providerStripe, providerStripe, providerVipps}[m.below(3)]
	m.transfer, m.alone = m.below(2) == 0, vendor == providerStripe && m.below(2) == 0
	m.till = newTill(m.t, vendor, m.transfer, m.alone)
	m.until(1, 12)
	m.rows, m.paid, m.hand, m.states = nil, nil, map[string]int64{}, map[string]partState{}
	if m.below(2) == 0 {
		m.again = today(5 + m.below(15))
	}
	m.there.page = 2 + m.below(8)
	m.note("a month at %s, transfer %v, alone %v, connected again on %q", vendor, m.transfer, m.alone, m.again)
}

func (m *payoutMonth) below(n int) int { return m.random.IntN(n) }

func (m *payoutMonth) note(format string, args ...any) { m.run.note(fmt.Sprintf(format, args...)) }

// add adds a row to the provider's ledger.
func (m *payoutMonth) add(r ledgerRow, method string, date businessDate, order *moneyRow) *moneyRow {
	if r.tax == 0 && r.fee > 20 && m.provider == providerStripe && m.below(3) == 0 {
		r.tax = r.fee / 5
		r.fee -= r.tax
	}
	row := &moneyRow{ledgerRow: r, method: method, date: date, order: order}
	m.rows = append(m.rows, row)
	if m.provider == providerVipps && r.category != rowReturned {
		m.there.ledger = append(m.there.ledger, r)
	}
	m.note("%s %s %s %d, fee %d, tax %d", r.id, r.category, method, r.amount, r.fee, r.tax)
	return row
}

// trade is what happens on a day: orders, refunds, disputes, and fees and reserves of the provider's own.
func (m *payoutMonth) trade() {
	if today(0) == m.again {
		m.reconnect()
	}
	for range m.below(4) {
		m.sells()
	}
	for range m.below(2) {
		m.givesBack()
	}
	if m.below(6) == 0 {
		m.disputes()
	}
	if m.below(12) == 0 {
		m.add(m.row(rowFee, 0, int64(100+m.below(900))), "", "", nil)
	}
	if m.provider == providerStripe && m.below(12) == 0 {
		amount := int64(50 + m.below(900))
		if held := m.reserve(""); held > 0 && m.below(2) == 0 {
			amount = -held
		}
		m.add(m.row(rowReserve, -amount, 0), "", "", nil)
	}
}

// reserve returns what the provider withholds of a clearing account.
func (m *payoutMonth) reserve(account string) (sum int64) {
	for _, r := range m.rows {
		if r.category == rowReserve && (account == "" || m.account(r.method) == account) {
			sum -= r.amount
		}
	}
	return sum
}

// sells takes an order, whose money is captured, perhaps in a part only.
func (m *payoutMonth) sells() {
	amount := int64(500 + m.below(8000))
	if m.provider == providerVipps {
		row := m.sell(methodMobile, amount, 0)
		m.add(row, methodMobile, today(0), nil)
		m.add(m.row(rowFee, 0, amount/50, func(r *ledgerRow) { r.intentID, r.paymentID = row.intentID, row.paymentID }),
			methodMobile, "", nil)
		return
	}
	method := []string{methodCard, methodCard, methodTwint}[m.below(3)]
	row := m.sell(method, amount, amount/40)
	sold := m.add(row, method, today(0), nil)
	if more := int64(m.below(500)); m.below(5) == 0 && more > 0 { // was authorized, and not captured
		sold.amount, sold.gone = sold.amount+more, more
		sold.fee += more / 40
		row.id, row.amount, row.fee = m.id("txn"), -more, -more/40
		m.add(row, method, today(0), nil)
	}
}

// anOrder returns a sale of which nothing was given back, or anything; nil: there is none.
func (m *payoutMonth) anOrder(untouched bool) *moneyRow {
	var some []*moneyRow
	for _, r := range m.rows {
		if r.category == rowPayment && r.amount > 0 && (r.gone == 0 || !untouched && r.gone > 0) && r.gone < r.amount {
			some = append(some, r)
		}
	}
	if len(some) == 0 {
		return nil
	}
	return some[m.below(len(some))]
}

func (m *payoutMonth) givesBack() {
	if of := m.anOrder(false); of != nil {
		amount := 1 + m.random.Int64N(of.amount-of.gone)
		if m.below(2) == 0 {
			amount = of.amount - of.gone
		}
		of.gone += amount
		m.add(m.refund(of.ledgerRow, amount), of.method, today(0), of)
	}
}

// disputes has a bank take money, or decide.
func (m *payoutMonth) disputes() {
	for _, r := range m.rows {
		if r.open {
			if r.open = false; m.below(2) == 0 { // lost
				return
			}
			fee := -r.fee
			if m.below(2) == 0 {
				fee = 0 // stays
			}
			row := m.dispute(r.order.ledgerRow, r.amount, fee)
			m.add(row, r.method, today(0), nil) // at Vipps, too, where we see it a day later
			return
		}
	}
	if of := m.anOrder(true); of != nil {
		fee := int64(1500)
		if m.provider == providerVipps {
			fee = 0
		}
		of.gone = of.amount
		row := m.add(m.dispute(of.ledgerRow, of.amount, fee), of.method, today(0), of)
		row.open = true
	}
}

// account returns the clearing account of a method.
func (m *payoutMonth) account(method string) string {
	if m.alone && method == methodTwint {
		return tillTwint
	}
	return tillCard
}

// morning is what happens at night and in the morning of a day: the provider pays out, the service reads that and books
// it, and so does the accountant.
func (m *payoutMonth) morning() {
	changes := m.night()
	faults := m.below(2) == 0
	m.there.strike = func(call string) error {
		if len(changes) > 0 && m.below(2) == 0 { // pages change meanwhile
			changes[0]()
			changes = changes[1:]
		}
		switch {
		case faults && m.below(8) == 0:
			m.note("%s has no answer", call)
			return []error{&outboundError{reason: outboundTimeout}, &outboundError{status: 500, reason: "http_500"},
				&outboundError{outcome: vendorBusy, status: 429, reason: "http_429", wait: time.Minute}}[m.below(3)]
		case faults && m.below(20) == 0:
			m.note("a stop at %s", call)
			return context.Canceled
		}
		return nil
	}
	for range 5 {
		m.lookNow()
		m.payouts = &payouts{paymentsOf(m.server)}
	}
	faults = false
	for _, change := range changes {
		change()
	}
	changes = nil
	m.lookNow()
	m.confirms()
	m.book()
	m.accountant()
	m.check()
}

// night has the provider pay out what it has of former days, and returns what else it has to say.
func (m *payoutMonth) night() (changes []func()) {
	for _, p := range m.paid {
		changes = append(changes, m.becomes(p)...)
	}
	var rows []*moneyRow
	net := int64(0)
	for _, r := range m.rows {
		if r.in == nil && r.at.Format(time.DateOnly) < today(0) {
			rows, net = append(rows, r), net+r.net()
		}
	}
	if len(rows) == 0 || net == 0 || net < 0 && m.provider == providerVipps || m.below(5) == 0 {
		return changes
	}
	p := &moneyPayout{rows: rows, complete: today(0), untouched: true, payoutReport: payoutReport{
		providerID: m.id("po"), amount: net, currency: "SEK", automatic: true, method: "standard", status: "pending",
		arrival: today(m.below(4))}}
	m.paid = append(m.paid, p)
	for _, r := range rows {
		r.in = p
	}
	m.fates(p)
	m.note("%s %d arrives %s, readable %s, ends as %s %s, lie %s until %s, automatic %v: %d rows", p.providerID, net,
		p.arrival, p.complete, p.ends, p.fails, p.lie, p.truth, p.automatic, len(rows))
	return append(changes, m.becomes(p)...)
}

// fates decides what is to come of a payout.
func (m *payoutMonth) fates(p *moneyPayout) {
	arrives, _ := time.Parse(time.DateOnly, p.arrival)
	later := func(days int) businessDate { return arrives.AddDate(0, 0, days).Format(time.DateOnly) }
	if m.below(6) == 0 {
		p.fails, p.ends = later(m.below(6)), payoutFailed
		if p.again = m.below(3) == 0; m.below(4) == 0 && m.provider == providerStripe {
			p.fails, p.ends = p.arrival, payoutCanceled
		}
	}
	if m.provider == providerVipps {
		if p.fails == today(0) { // it is aborted after it was scheduled
			p.fails = today(1)
		}
		return
	}
	switch m.below(8) {
	case 0:
		p.automatic, p.method = false, []string{"standard", "instant"}[m.below(2)]
	case 1, 2:
		if p.fails == "" {
			p.complete = min(today(m.below(4)), later(3))
		}
	case 3, 4:
		if p.fails == "" {
			p.lie = []string{heldDiffers, heldDiffers + " more", heldForeign, heldUnknownRow}[m.below(4)]
			p.truth = later(1 + m.below(9))
		}
	}
}

// becomes returns what the provider has to say of a payout today that it has not said before.
func (m *payoutMonth) becomes(p *moneyPayout) (changes []func()) {
	now := today(0)
	said, first := p.payoutReport, p.untouched
	p.untouched = false
	if p.fails != "" && p.fails <= now && p.status != payoutFailed && p.status != payoutCanceled && !p.returned {
		p.status = p.ends
		back := m.row(rowReturned, p.amount, 0, func(r *ledgerRow) { r.source = p.providerID })
		for method, net := range p.nets() { // as much of each method as was in it
			part := back
			part.amount = net
			m.add(part, method, "", nil)
		}
		p.returned = true
		if m.provider == providerVipps {
			return []func(){func() { m.there.ledger = append(m.there.ledger, back) }}
		}
	} else if p.returned && p.again {
		p.status = payoutPaid
	} else if p.arrival <= now && !p.returned {
		p.status = payoutPaid
	}
	if m.provider == providerVipps {
		if first {
			p.status, p.method = "payout-scheduled", ""
			told := p.payoutReport
			told.complete = true
			m.there.ledger = append(m.there.ledger,
				ledgerRow{id: p.providerID, currency: p.currency, at: time.Now(), schedules: &told})
		}
		return nil
	}
	p.payoutReport.complete = p.complete <= now
	m.there.rows[p.providerID] = m.tells(p)
	if told := p.payoutReport; first || told != said {
		m.note("%s is %s, complete %v", told.providerID, told.status, told.complete)
		return []func(){func() {
			m.there.told = append(slices.DeleteFunc(m.there.told,
				func(of payoutReport) bool { return of.providerID == told.providerID }), told)
		}}
	}
	return nil
}

// nets returns what is paid out by each method.
func (p *moneyPayout) nets() map[string]int64 {
	sums := map[string]int64{}
	for _, r := range p.rows {
		sums[r.method] += r.net()
	}
	return sums
}

// lies reports whether the provider lists a payout wrongly today.
func (p *moneyPayout) lies() bool { return p.lie != "" && today(0) < p.truth }

// tells returns the rows of a payout as the provider lists them today. What came back is one row for all methods.
func (m *payoutMonth) tells(p *moneyPayout) (rows []ledgerRow) {
	for _, r := range p.rows {
		if at := slices.IndexFunc(rows, func(of ledgerRow) bool { return of.id == r.id }); at >= 0 {
			rows[at].amount += r.amount
			continue
		}
		rows = append(rows, r.ledgerRow)
	}
	slices.SortFunc(rows, func(a, b ledgerRow) int { return strings.Compare(a.id, b.id) })
	if !p.lies() {
		return rows
	}
	at := slices.IndexFunc(rows, func(r ledgerRow) bool { return r.net() != 0 })
	switch {
	case p.lie == heldDiffers:
		return slices.Delete(rows, at, at+1) // a row is left out
	case p.lie == heldForeign:
		if own := slices.IndexFunc(rows, func(r ledgerRow) bool { return r.category == rowPayment }); own >= 0 {
			rows[own].intentID, rows[own].source = "pi_of_somebody_else", "pi_of_somebody_else"
			return rows
		}
		rows[0].amount++
	case p.lie == heldUnknownRow:
		rows[at].category = rowUnknown
	default:
		rows[at].amount++ // a cent more
	}
	return rows
}

// lieReason returns the reason for which a payout is held that is listed wrongly.
func (p *moneyPayout) lieReason() string {
	sells := slices.ContainsFunc(p.rows, func(r *moneyRow) bool { return r.category == rowPayment })
	if p.lie == heldForeign && !sells {
		return heldDiffers
	}
	reason, _, _ := strings.Cut(p.lie, " ")
	return reason
}

// confirms has the operator compare the first payout of a connection with the bank.
func (m *payoutMonth) confirms() {
	ids, err := m.store.texts(`SELECT id FROM payouts WHERE reason = 'unconfirmed' AND ended_at IS NULL`)
	m.till.check(err)
	for _, id := range ids {
		m.change(func(t *tx) error { return confirmPayout(t, anyAccount, id) })
	}
}

// hold returns the reason for which a payout that has arrived is held; "": it is booked.
func (m *payoutMonth) hold(p *moneyPayout) string {
	switch {
	case !p.automatic:
		return heldOpaque
	case p.lies():
		return p.lieReason()
	}
	if m.alone && slices.ContainsFunc(p.rows, func(r *moneyRow) bool { return m.noMethod(r) }) {
		return heldNoMethod
	}
	if m.provider == providerVipps && valueOr(m.payout(p.payoutReport).Reason, "") == heldUnconfirmed {
		return heldUnconfirmed // the first has failed, and there was none since
	}
	booked := m.states[p.providerID+" "+partPayout].state == exportPosted
	if slices.ContainsFunc(p.rows, func(r *moneyRow) bool { return r.date >= today(0) || !booked && m.wonToday(r) }) {
		return heldNotPosted
	}
	return ""
}

// wonToday reports whether the dispute that a row is about was won since, which counts today.
func (m *payoutMonth) wonToday(r *moneyRow) bool {
	return r.category == rowDispute && slices.ContainsFunc(m.rows, func(of *moneyRow) bool {
		return of.source == r.source && of.date >= today(0)
	})
}

// noMethod reports whether the service does not know of which method a row is. Of what came back of a payout that is
// opaque, or that had such a row itself, it never does.
func (m *payoutMonth) noMethod(r *moneyRow) bool {
	return r.method == "" || r.category == rowReturned && slices.ContainsFunc(m.paid, func(p *moneyPayout) bool {
		return p.providerID == r.source && (!p.automatic || slices.ContainsFunc(p.rows, m.noMethod))
	})
}

// accountant books what is on the bank's statement, and by hand what the service never books.
func (m *payoutMonth) accountant() {
	bank := func(p *moneyPayout, sign int64) {
		if m.transfer {
			m.hand[tillTransit] -= sign * p.amount
			return
		}
		for method, net := range p.nets() {
			m.hand[m.account(method)] -= sign * net
		}
	}
	for _, p := range m.paid {
		paid := p.arrival <= today(0) && (p.fails == "" || p.fails > p.arrival)
		if paid && !p.arrived {
			p.arrived = true
			bank(p, 1)
		}
		if p.arrived && p.returned {
			p.arrived = false
			p.fails = cmpDate(p.fails, p.arrival)
			bank(p, -1)
		}
		if hold := m.hold(p); !p.byHand && p.arrival <= today(0) && (hold == heldOpaque || hold == heldNoMethod) {
			p.byHand = true
			for _, r := range p.rows {
				m.hand[m.account(r.method)] -= r.fee + r.tax
				if m.transfer {
					m.hand[m.account(r.method)] -= r.net()
					m.hand[tillTransit] += r.net()
				}
			}
		}
		if p.byHand && p.returned && m.transfer && p.ends != "" {
			p.ends = ""
			for _, r := range p.rows {
				m.hand[m.account(r.method)] += r.net()
				m.hand[tillTransit] -= r.net()
			}
		}
	}
}

// cmpDate makes a payout that has come back one that never arrives.
func cmpDate(fails, arrival businessDate) businessDate { return min(fails, arrival) }

// A partState is what is known of the export of a part of a payout.
type partState struct {
	id, state, reason string
	transfers         bool // it has something on its way
}

// readStates reads the states of all exports of payouts.
func (m *payoutMonth) readStates() {
	all, err := collect(m.store.queries, `SELECT p.provider_id || ' ' || x.part, x.state, coalesce(x.reason, ''),
			coalesce(x.entry LIKE '%"transfer":true%', 0)
		FROM books_exports x JOIN payouts p ON p.id = x.payout_id`, nil,
		func(s *partState) []any { return []any{&s.id, &s.state, &s.reason, &s.transfers} })
	m.till.check(err)
	clear(m.states)
	for _, s := range all {
		if m.states[s.id].id != "" {
			m.t.Errorf("%s has two exports", s.id)
		}
		m.states[s.id] = s
	}
}

// state returns the state of the export of a part of a payout, and the reason; "": there is none.
func (m *payoutMonth) state(p *moneyPayout, part string) (state, reason string) {
	s := m.states[p.providerID+" "+part]
	return s.state, s.reason
}

// check holds the books against the money.
func (m *payoutMonth) check() {
	m.readStates()
	wants := map[string]int64{tillCard: m.reserve(tillCard)}
	if m.alone {
		wants[tillTwint] = m.reserve(tillTwint)
	}
	for _, r := range m.rows {
		account := m.account(r.method)
		if r.in == nil { // at the provider
			wants[account] += r.net()
		}
		if r.date >= today(0) && r.date != "" { // the day is not over
			wants[account] -= r.amount
		}
		if r.in == nil || !m.feesBooked(r.in) {
			wants[account] += r.fee + r.tax
		}
	}
	for _, p := range m.paid {
		m.checkExports(p)
		if out := m.out(p); !out && !p.returned { // on its way
			for method, net := range p.nets() {
				wants[m.account(method)] += net
			}
		} else if m.transfer && out {
			wants[tillTransit] += p.amount
		}
		if m.transfer && p.arrived {
			wants[tillTransit] -= p.amount
		}
	}
	for account, want := range wants {
		if got := m.ledger.balance(account) + m.hand[account]; got != want {
			m.t.Errorf("%s: the balance of %s is %d, want %d", today(0), account, got, want)
		}
	}
}

// feesBooked reports whether the fees of a payout are in the books.
func (m *payoutMonth) feesBooked(p *moneyPayout) bool {
	state, _ := m.state(p, partPayout)
	return p.byHand || state == exportPosted
}

// out reports whether a payout is off the clearing accounts.
func (m *payoutMonth) out(p *moneyPayout) bool {
	if !m.transfer {
		return p.arrived
	}
	if p.byHand {
		return !p.returned
	}
	state, _ := m.state(p, partPayout)
	undo, _ := m.state(p, partUndo)
	return state == exportPosted && undo != exportPosted && !m.failedFirst(p)
}

// failedFirst reports whether the entry of a payout has nothing on its way, since that had failed by then.
func (m *payoutMonth) failedFirst(p *moneyPayout) bool {
	return !m.states[p.providerID+" "+partPayout].transfers
}

// checkExports checks that a payout is booked if it is to be, and held for its reason else.
func (m *payoutMonth) checkExports(p *moneyPayout) {
	state, reason := m.state(p, partPayout)
	want, due := m.hold(p), p.arrival <= today(0) && (p.complete <= today(0) || !p.automatic)
	switch {
	case !due && state == "":
	case due && want != "" && state == exportHeld && reason == want:
	case due && want == "" && state == exportPosted:
	case due && (want == "" || want == heldNotPosted) && state == exportWaiting && m.nothing(p):
	default:
		m.t.Errorf("%s: the export of %s is %q %q, want %q (due %v)", today(0), p.providerID, state, reason, want, due)
	}
	undo, _ := m.state(p, partUndo)
	undone := m.transfer && p.returned && state == exportPosted && !m.failedFirst(p)
	if (undo == exportPosted) != undone || undo != "" && !undone {
		m.t.Errorf("%s: what undoes %s is %q, want it %v", today(0), p.providerID, undo, undone)
	}
}

// nothing reports whether nothing of a payout is to be booked.
func (m *payoutMonth) nothing(p *moneyPayout) bool {
	sums := map[string]int64{}
	for _, r := range p.rows {
		sums[m.account(r.method)+fmt.Sprint(r.category == rowDispute)] += r.fee
		sums["tax"+m.account(r.method)] += r.tax
	}
	for _, sum := range sums {
		if sum != 0 {
			return false
		}
	}
	return !m.transfer || p.returned
}

// verify checks at the end of a month that each payout is booked once or held for good.
func (m *payoutMonth) verify() {
	m.readStates()
	keys := map[string]int{}
	for _, b := range m.ledger.booked {
		keys[b.Entry.Narration[strings.Index(b.Entry.Narration, "("):]]++
	}
	for key, n := range keys {
		if n != 1 {
			m.t.Errorf("%d entries have the key %s", n, key)
		}
	}
	for _, p := range m.paid {
		if p.arrival > today(0) { // it has not arrived when the history ends
			continue
		}
		state, reason := m.state(p, partPayout)
		if hold := m.hold(p); reason != hold || hold == "" && state != exportPosted && !m.nothing(p) || p.lies() {
			m.t.Errorf("%s ends as %q %q, want %q", p.providerID, state, reason, hold)
		}
	}
	if n := m.count(`SELECT count(*) FROM payouts WHERE provider_id IS NOT NULL`); n != len(m.paid) {
		m.t.Errorf("%d payouts are kept of %d", n, len(m.paid))
	}
	if n := m.count(`SELECT count(*) FROM payments WHERE state = 'review'`); n != 0 {
		m.t.Errorf("%d payments are in review", n)
	}
}
