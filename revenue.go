package main

import "time"

// Revenue days (contract, section 12): what an account's orders have brought on each business day, in each
// currency. Triggers note orders whose money has moved in revenue_backlog; bookBacklog then writes what is
// due as facts, which are never changed, and adds their figures to the sums of a day that is not frozen.

// revenueGrace is how long after its cut-off a business day is open.
const revenueGrace = 2 * time.Hour

// What a figure is about. A sale, a delivery and a tip are received; a refund of each and a dispute are
// given back; a discount is told only, since prices are less their discount.
const (
	figureSale           = "sale"
	figureDelivery       = "delivery"
	figureTip            = "tip"
	figureDiscount       = "discount"
	figureRefund         = "refund"
	figureRefundDelivery = "refund_delivery"
	figureRefundTip      = "refund_tip"
	figureDispute        = "dispute"
)

// A figure is one amount of a fact. What has changed is taken back by a figure with the opposite sign.
type figure struct {
	What  string `json:"what"`            // figureSale, …
	Rate  int64  `json:"rate,omitempty"`  // VAT rate of sales, deliveries and their refunds
	Group string `json:"group,omitempty"` // of sales and their refunds; "": none
	Gross int64  `json:"gross"`           // VAT included
	VAT   int64  `json:"vat,omitempty"`
}

// A revenueSum is the sum of the figures of a day, a currency and a way of paying.
type revenueSum struct {
	Method string // methodCard, …
	Test   bool   // paid with test keys, so no money moved
	figure
	Facts int64 // how many were added up
}

// received returns what the way of paying has brought by this sum: negative for what was given back.
func (s *revenueSum) received() int64 {
	switch s.What {
	case figureSale, figureDelivery, figureTip:
		return s.Gross
	case figureRefund, figureRefundDelivery, figureRefundTip, figureDispute:
		return -s.Gross
	}
	return 0 // a discount
}

// A businessDate is a local date in an account's time zone, as "2026-11-22".
type businessDate = string
