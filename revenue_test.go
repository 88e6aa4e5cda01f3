package main

import (
	"encoding/json"
	"testing"
)

// book books the whole backlog.
func (s *service) book() {
	s.t.Helper()
	for left := true; left; {
		s.change(func(t *tx) (err error) {
			left, err = bookBacklog(t, 3)
			return err
		})
	}
}

// facts returns all facts of an order, as JSON.
func (s *service) facts(orderID string) (all []string) {
	s.t.Helper()
	facts, err := s.store.factsOf(orderID)
	s.check(err)
	for _, f := range facts {
		text, err := json.Marshal(f.Figures)
		s.check(err)
		all = append(all, f.Source+" "+string(text))
	}
	return all
}

func TestRevenue_saleHasTheOrdersOwnAmounts(t *testing.T) {
	t.Parallel()
	s := newService(t)
	o := s.orderIn(orderPaid)
	s.book()
	// By hand: 6000 are less 300; pizza 3515, wine 1520, delivery 665. 2.6 % of 4180 is 106, 8.1 % of 1520 is 114.
	want := `sale [{"what":"delivery","rate":260,"gross":665,"vat":17},{"what":"discount","gross":300},` +
		`{"what":"sale","rate":260,"group":"food","gross":3515,"vat":89},` +
		`{"what":"sale","rate":810,"gross":1520,"vat":114},{"what":"tip","gross":200}]`
	if got := s.facts(o.ID); len(got) != 1 || got[0] != want {
		t.Errorf("recorded\n%s, want\n%s", got, want)
	}
}
