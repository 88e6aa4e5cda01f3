package main

import (
	"fmt"
	"testing"
	"time"
)

const benchmarkedDays = 365

// newRevenueYear makes a service whose account has a year of revenue: 30 sums a day, and 1,000 facts a day
// if withFacts says so. It returns the first day.
func newRevenueYear(b *testing.B, withFacts bool) (s *service, first time.Time) {
	s = newService(b)
	first = time.Now().UTC().AddDate(0, 0, -benchmarkedDays).Truncate(24 * time.Hour)
	o := s.addOrder(nil)
	for day := range benchmarkedDays {
		date := first.AddDate(0, 0, day).Format(time.DateOnly)
		s.sql(`INSERT INTO revenue_days (account_id, date, currency) VALUES (?, ?, 'CHF')`, s.account, date)
		s.sql(manyRows(30)+`INSERT INTO revenue_sums SELECT ?, ?, 'CHF', iif(n.i % 2, 'card', 'cash'), 0,
			CASE n.i % 5 WHEN 0 THEN 'refund' WHEN 1 THEN 'delivery' ELSE 'sale' END, n.i * 10, 'food', n.i * 1000,
			n.i * 50 FROM n`, s.account, date)
		if withFacts {
			s.sql(manyRows(1000)+`INSERT INTO revenue_facts (account_id, order_id, source, currency, date, own_date, at,
				method, test, figures) SELECT ?1, ?2, 'sale', 'CHF', ?3, ?3, ?4, 'card', 0,
				'[{"what":"sale","rate":260,"group":"food","gross":3515,"vat":89},{"what":"tip","gross":200}]'
				FROM n`, s.account, o.ID, date, date+"T12:00:00Z")
		}
	}
	return s, first
}

// BenchmarkRevenue_day reads a day among a year of 1,000 orders a day.
func BenchmarkRevenue_day(b *testing.B) {
	s, first := newRevenueYear(b, true)
	auth := s.accountant()
	for i := 0; b.Loop(); i++ {
		date := first.AddDate(0, 0, i%benchmarkedDays).Format(time.DateOnly)
		s.get("/revenue/days/"+date, auth).is(200)
	}
}

// BenchmarkRevenue_year lists a year.
func BenchmarkRevenue_year(b *testing.B) {
	s, first := newRevenueYear(b, false)
	auth := s.accountant()
	path := fmt.Sprintf("/revenue/days?from=%s&to=%s", first.Format(time.DateOnly),
		first.AddDate(0, 0, benchmarkedDays).Format(time.DateOnly))
	for b.Loop() {
		s.get(path, auth).is(200)
	}
}
