package main

import (
	"sync"
)

// A cache keeps what was read from the file, for as long as the file still says
// so: an entry serves while the version of the row it follows is the same, and
// while the store knows of the commits of others. Bounded by count: when full it
// forgets any other. What it holds is shared: nobody changes a row that came from here.
type cache[K comparable, V any] struct {
	mu      sync.RWMutex
	max     int
	entries map[K]cached[V]
}

type cached[V any] struct {
	value   V
	rowID   string // the licence or widget that it follows; "": neither
	version version
}

func newCache[K comparable, V any](max int) *cache[K, V] {
	return &cache[K, V]{max: max, entries: map[K]cached[V]{}}
}

// get returns what is kept under a key, if that is still true.
func (c *cache[K, V]) get(st *store, key K) (v V, ok bool) {
	c.mu.RLock()
	e, found := c.entries[key]
	c.mu.RUnlock()
	if !found || !st.cachesFresh() || st.changes.versionOf(e.rowID) != e.version {
		return v, false
	}
	return e.value, true
}

// load returns what is kept under a key, or reads it and keeps it. read tells the
// row that its value follows. Errors are not kept.
func (c *cache[K, V]) load(st *store, key K, read func() (value V, row string, err error)) (V, error) {
	if v, ok := c.get(st, key); ok {
		return v, nil
	}
	before := st.changes.commits.Load()
	v, row, err := read()
	if err != nil {
		return v, err
	}
	version := st.changes.versionOf(row)
	if st.changes.commits.Load() != before {
		return v, nil // something was committed meanwhile, perhaps to this row
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.entries[key]; !known && len(c.entries) >= c.max {
		for other := range c.entries {
			delete(c.entries, other)
			break
		}
	}
	c.entries[key] = cached[V]{v, row, version}
	return v, nil
}

// len returns how many entries are kept.
func (c *cache[K, V]) len() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.entries)
}
