package main

func unsealableConnections(q *queries, keys *keyring) ([]string, error) { return nil, nil }
