package main

import (
	"context"
	"time"
)

// payouts implements provider.
func (s *stripeProvider) payouts(
	ctx context.Context, c *openConnection, cursor, from string, now time.Time,
) (*payoutNews, error) {
	return &payoutNews{}, nil
}

// payoutRows implements provider.
func (s *stripeProvider) payoutRows(
	ctx context.Context, c *openConnection, payoutID, after string,
) (rows []ledgerRow, next string, err error) {
	return nil, "", nil
}
