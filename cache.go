package main

import "sync"

// A cache keeps values that were read from the database. An entry is valid while the version of
// the row that it depends on is unchanged (changes.versionOf), and while the writer has checked
// recently enough for commits of other processes (cachesFresh). A cache holds at most max
// entries; a new one evicts an arbitrary other. Values are shared: callers must not change them.
type cache[K comparable, V any] struct {
	mu      sync.RWMutex
	max     int
	entries map[K]cached[V]
}

type cached[V any] struct {
	value   V
	rowID   string  // of the licence, widget, grant or token that the value depends on; "": anything else
	version version // of that row when the value was read
}

// newCache makes a cache of at most max entries.
func newCache[K comparable, V any](max int) *cache[K, V] {
	return &cache[K, V]{max: max, entries: map[K]cached[V]{}}
}

// get returns the value of a key, if there is an entry and it is valid.
func (c *cache[K, V]) get(st *store, key K) (v V, ok bool) {
	c.mu.RLock()
	e, found := c.entries[key]
	c.mu.RUnlock()
	if !found || !st.cachesFresh() || st.changes.versionOf(e.rowID) != e.version {
		return v, false
	}
	return e.value, true
}

// load returns the value of a key. Without a valid entry it calls read and keeps the value.
// rowID is the id of the licence, widget, grant or token that the value depends on, or "" if it
// depends on anything else. Errors are not kept.
func (c *cache[K, V]) load(st *store, key K, read func() (value V, rowID string, err error)) (V, error) {
	if v, ok := c.get(st, key); ok {
		return v, nil
	}
	before := st.changes.commits.Load()
	v, rowID, err := read()
	if err != nil {
		return v, err
	}
	version := st.changes.versionOf(rowID)
	if st.changes.commits.Load() != before {
		return v, nil // a commit during the read may have changed the row: don't keep the value
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.entries[key]; !known && len(c.entries) >= c.max {
		for other := range c.entries {
			delete(c.entries, other)
			break
		}
	}
	c.entries[key] = cached[V]{v, rowID, version}
	return v, nil
}

// len returns the number of entries.
func (c *cache[K, V]) len() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.entries)
}
