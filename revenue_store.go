package main

// All SQL about revenue days.

// zonesOf returns the time zones and cut-offs of an account, with the business days from which they apply, in
// order; none if those of its settings apply to all days.
func (q *queries) zonesOf(accountID string) ([]zoneSpan, error) {
	return collect(q, `SELECT from_date, zone, cut_off FROM account_zones WHERE account_id = ? ORDER BY from_date`,
		[]any{accountID}, func(s *zoneSpan) []any { return []any{&s.From, &s.Zone, &s.CutOff} })
}

// addZone writes the business day from which a time zone and a cut-off of an account apply.
func (t *tx) addZone(accountID string, s zoneSpan) {
	t.exec(`INSERT INTO account_zones (account_id, from_date, zone, cut_off) VALUES (?, ?, ?, ?)`,
		accountID, s.From, s.Zone, s.CutOff)
}

// removeZones removes the time zones of an account that apply from a business day or a later one.
func (t *tx) removeZones(accountID string, from businessDate) {
	t.exec(`DELETE FROM account_zones WHERE account_id = ? AND from_date >= ?`, accountID, from)
}

// hasFacts reports whether anything was ever recorded for an account.
func (q *queries) hasFacts(accountID string) (has bool, err error) {
	return oneValue[bool](q, `SELECT EXISTS (SELECT 1 FROM revenue_facts WHERE account_id = ?)`, accountID)
}

// accountsWithRevenue returns up to limit accounts for which something was ever recorded, that with the given id
// first, and others by name.
func (q *queries) accountsWithRevenue(first string, limit int) ([]account, error) {
	return accountTable.all(q, `WHERE EXISTS (SELECT 1 FROM revenue_days d WHERE d.account_id = a.id)
		ORDER BY a.id <> ?, a.name, a.id LIMIT ?`, first, limit)
}

// unrecordedRevenue is the orders of the backlog.
var unrecordedRevenue = trouble{kind: "revenue_waits", urgency: sameDay, money: true, one: "$n order has revenue",
	many: "$n orders have revenue", advice: " that can't be recorded: 'widgetd check' says why of $id",
	query: `SELECT NULL AS since, order_id AS id FROM revenue_backlog`}

// backlog returns the ids of up to limit orders of the backlog, in their order, after the id after.
func (q *queries) backlog(after string, limit int64) ([]string, error) {
	return q.texts(`SELECT order_id FROM revenue_backlog WHERE order_id > ? ORDER BY order_id LIMIT ?`, after, limit)
}

// addBacklog adds an order to the backlog, unless it is there.
func (t *tx) addBacklog(orderID string) {
	t.exec(`INSERT OR IGNORE INTO revenue_backlog (order_id) VALUES (?)`, orderID)
}

// leaveBacklog takes an order out of the backlog.
func (t *tx) leaveBacklog(orderID string) {
	t.exec(`DELETE FROM revenue_backlog WHERE order_id = ?`, orderID)
}

// paidOrder returns an order with everything that its revenue depends on. Errors: errOrder.
func (t *tx) paidOrder(id string) (p *paidOrder, err error) {
	p = &paidOrder{}
	if p.order, err = t.order(anyAccount, id); err != nil {
		return nil, err
	}
	if p.PaymentID != nil && !p.paidOutside() {
		if p.payment, err = orNil(t.payment(*p.PaymentID)); err != nil {
			return nil, err
		}
	}
	if p.payment != nil {
		if p.test, err = orNil(oneValue[bool](t.queries, `SELECT live = 0 FROM payment_connections WHERE id = ?`,
			p.payment.ConnectionID)); err != nil {
			return nil, err
		}
	}
	if p.refunds, err = t.refundsOf(id); err != nil {
		return nil, err
	}
	if p.disputes, err = t.disputesOf(id); err != nil {
		return nil, err
	}
	facts, err := t.factsOf(id)
	for i := range facts {
		p.record(&facts[i])
	}
	return p, err
}

// factTable describes the table revenue_facts.
var factTable = newTable("revenue_facts", "r", func(f *revenueFact) []field {
	return []field{{"seq", &f.Seq}, {"account_id", &f.AccountID}, {"order_id", &f.OrderID}, {"source", &f.Source},
		{"currency", &f.Currency}, {"date", &f.Date}, {"own_date", &f.OwnDate}, {"at", &f.At}, {"method", &f.Method},
		{"test", &f.Test}, {"figures", jsonColumn[[]figure]{&f.Figures}}}
})

// factsOf returns the facts of an order, in order of writing.
func (q *queries) factsOf(orderID string) ([]revenueFact, error) {
	return factTable.all(q, `WHERE r.order_id = ? ORDER BY r.seq`, orderID)
}

// lateFacts returns up to limit facts that count on a day and happened on an earlier one, the earliest
// day's first.
func (q *queries) lateFacts(accountID string, date businessDate, currency string, limit int) ([]revenueFact, error) {
	return factTable.all(q, `WHERE r.account_id = ? AND r.date = ? AND r.own_date < ? AND r.currency = ?
		ORDER BY r.own_date, r.seq LIMIT ?`, accountID, date, date, currency, limit)
}

// addFact inserts a fact.
func (t *tx) addFact(f *revenueFact) {
	t.exec(`INSERT INTO revenue_facts (account_id, order_id, source, currency, date, own_date, at, method,
		test, figures) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		f.AccountID, f.OrderID, f.Source, f.Currency, f.Date, f.OwnDate, f.At, f.Method, f.Test,
		jsonColumn[[]figure]{&f.Figures})
}

// addRevenueDay inserts the row of a day on which something counts, unless it exists.
func (t *tx) addRevenueDay(day accountDay) {
	t.exec(`INSERT OR IGNORE INTO revenue_days (account_id, date, currency) VALUES (?, ?, ?)`,
		day.account, day.date, day.currency)
}

// addSum adds a figure of a fact to the sums of a day.
func (t *tx) addSum(day accountDay, f *revenueFact, sum figure) {
	t.exec(`INSERT INTO revenue_sums
		(account_id, date, currency, method, test, what, rate, group_name, gross, vat)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (account_id, date, currency, method, test, what, rate, group_name) DO UPDATE SET
		gross = gross + excluded.gross, vat = vat + excluded.vat`,
		day.account, day.date, day.currency, f.Method, f.Test, sum.What, sum.Rate, sum.Group, sum.Gross, sum.VAT)
}

// dayGroups returns the groups that the sums of a day have.
func (t *tx) dayGroups(day accountDay) ([]string, error) {
	return t.texts(`SELECT DISTINCT group_name FROM revenue_sums
		WHERE account_id = ? AND date = ? AND currency = ? AND group_name <> ''`,
		day.account, day.date, day.currency)
}

// revenueSums returns the sums of a business day that are not 0, by way of paying, kind, rate and group.
func (q *queries) revenueSums(accountID string, date businessDate, currency string) ([]revenueSum, error) {
	return collect(q, `SELECT method, test, what, rate, group_name, gross, vat FROM revenue_sums
		WHERE account_id = ? AND date = ? AND currency = ? AND (gross <> 0 OR vat <> 0)
		ORDER BY method, test, what, rate, group_name`, []any{accountID, date, currency}, (*revenueSum).dest)
}

func (s *revenueSum) dest() []any {
	return []any{&s.Method, &s.Test, &s.What, &s.Rate, &s.Group, &s.Gross, &s.VAT}
}

// revenueDayKeys returns the business days of an account from one date to another on which something
// counts, in order of date and currency.
func (q *queries) revenueDayKeys(accountID string, from, to businessDate) ([]revenueDayKey, error) {
	return collect(q, `SELECT date, currency, frozen_at FROM revenue_days
		WHERE account_id = ? AND date BETWEEN ? AND ? ORDER BY date, currency`, []any{accountID, from, to},
		func(k *revenueDayKey) []any { return []any{&k.Date, &k.Currency, &k.FrozenAt} })
}

// freezeDay freezes a business day, so that nothing is added to it any more. A frozen one stays as it is.
func (t *tx) freezeDay(accountID string, date businessDate, currency string) {
	t.exec(`INSERT INTO revenue_days (account_id, date, currency, frozen_at) VALUES (?, ?, ?, ?)
		ON CONFLICT (account_id, date, currency) DO UPDATE SET frozen_at = excluded.frozen_at
		WHERE frozen_at IS NULL`, accountID, date, currency, t.now)
}

// frozenDay returns since when a business day is frozen; the zero stamp if it is not.
func (q *queries) frozenDay(accountID string, date businessDate, currency string) (at stamp, err error) {
	return orNil(oneValue[stamp](q, `SELECT frozen_at FROM revenue_days
		WHERE account_id = ? AND date = ? AND currency = ?`, accountID, date, currency))
}

// A daySum is a sum of a day and a currency, over all rates and groups.
type daySum struct {
	date     businessDate
	currency string
	revenueSum
}

// daySums returns the sums of the business days of an account from one date to another, by way of paying and kind.
func (q *queries) daySums(accountID string, from, to businessDate) ([]daySum, error) {
	return collect(q, `SELECT date, currency, method, test, what, sum(gross), sum(vat) FROM revenue_sums
		WHERE account_id = ? AND date BETWEEN ? AND ? GROUP BY account_id, date, currency, method, test, what`,
		[]any{accountID, from, to}, func(s *daySum) []any {
			return []any{&s.date, &s.currency, &s.Method, &s.Test, &s.What, &s.Gross, &s.VAT}
		})
}
