// Stands in for the rules of orders until they are merged; whoever merges them removes this file.
package main

func refundDone(t *tx, o *order, f *refund, actor string) error            { return nil }
func refundUndone(t *tx, o *order, f *refund, failure, actor string) error { return nil }
func finishPayOutside(t *tx, o *order, actor string) error                 { return nil }
func addProviderRefund(t *tx, o *order, refunds []refund, f *refund) error { return nil }
func expireOrders(t *tx, n int) (int64, error)                             { return 0, nil }
func releaseUnaccepted(t *tx, n int) (int64, error)                        { return 0, nil }
func eraseCustomers(t *tx, n int) (int64, error)                           { return 0, nil }
func unsealableConnections(q *queries, keys *keyring) ([]string, error)    { return nil, nil }
