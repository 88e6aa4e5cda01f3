package main

import (
	"crypto/sha256"
	"errors"
	"sync"
	"time"
)

// A cache keeps what was read from the file, for as long as the file still says
// so: an entry serves while the version of the row it follows is the same, and
// while the store knows of the commits of others. Bounded by count: when full it
// forgets any other.
type cache[K comparable, V any] struct {
	mu      sync.RWMutex
	max     int
	entries map[K]cached[V]
}

type cached[V any] struct {
	value   V
	row     string // the licence or widget that it follows; "": neither
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
	if !found || !st.current() || st.changes.version(e.row) != e.version {
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
	version := st.changes.version(row)
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

// caches are what a server keeps in memory of the rows that requests ask for
// again and again. Together they take at most about 10 MiB.
type caches struct {
	accounts *cache[string, account]
	origins  *cache[string, string]     // origin → owner
	widgets  *cache[string, widget]     // by id
	callers  *cache[tokenKey, *caller]  // what does not change with time
	keys     *cache[[32]byte, *license] // by the licence key's hash
	licenses *cache[string, *license]   // by id
	devices  *cache[deviceKey, *device] // nil: the licence has no such device
	stats    *cache[statsKey, taggedBody]
}

// deviceKey names a device of a licence by its id or its fingerprint's hash.
type deviceKey struct{ license, id string }

// A taggedBody is an encoded answer and its ETag.
type taggedBody struct {
	body []byte
	tag  string
}

// statsKey is everything that an answer of statistics depends on, but the counts.
type statsKey struct {
	widget, name   string
	zone, interval string
	from, to       time.Time
	withOrders     bool
}

func newCaches() caches {
	const few, many, some = 1_000, 4_000, 500
	return caches{newCache[string, account](many), newCache[string, string](few), newCache[string, widget](few), newCache[tokenKey, *caller](many),
		newCache[[32]byte, *license](many), newCache[string, *license](many), newCache[deviceKey, *device](many), newCache[statsKey, taggedBody](some)}
}

// What the caches hold is shared: nobody changes a row that came from here.

func (g *guard) cachedAccount(id string) (account, error) {
	return g.caches.accounts.load(g.store, id, func() (account, string, error) {
		a, err := g.store.account(id)
		return a, "", err
	})
}

func (g *guard) cachedOriginOwner(origin string) (string, error) {
	return g.caches.origins.load(g.store, origin, func() (string, string, error) {
		owner, err := g.store.originOwner(origin)
		return owner, "", err
	})
}

func (g *guard) cachedWidget(id string) (widget, error) {
	return g.caches.widgets.load(g.store, id, func() (widget, string, error) {
		w, err := g.store.widget(id)
		return w, "", err
	})
}

// licenseByKey, license, device and deviceByFingerprint are the store's, kept in
// memory. They make guard a licenseSource.
func (g *guard) licenseByKey(hash [32]byte) (*license, error) {
	return g.caches.keys.load(g.store, hash, func() (*license, string, error) {
		l, err := g.store.licenseByKey(hash)
		return l, l.ID, err
	})
}

func (g *guard) license(accountID, id string) (*license, error) {
	if accountID != "" {
		return g.store.license(accountID, id)
	}
	return g.caches.licenses.load(g.store, id, func() (*license, string, error) {
		l, err := g.store.license("", id)
		return l, id, err
	})
}

func (g *guard) device(licenseID, id string) (*device, error) {
	return g.cachedDevice(deviceKey{licenseID, id}, func() (*device, error) { return g.store.device(licenseID, id) })
}

func (g *guard) deviceByFingerprint(licenseID string, hash []byte) (*device, error) {
	return g.cachedDevice(deviceKey{licenseID, string(hash)}, func() (*device, error) { return g.store.deviceByFingerprint(licenseID, hash) })
}

// cachedDevice keeps that there is no device too, which a portal asks about.
func (g *guard) cachedDevice(key deviceKey, read func() (*device, error)) (*device, error) {
	d, err := g.caches.devices.load(g.store, key, func() (*device, string, error) {
		d, err := orNil(read())
		return d, key.license, err
	})
	if err == nil && d == nil {
		err = errNotFound
	}
	return d, err
}

// tokenKey names a token by its hash, and the keys that it was verified under.
type tokenKey struct {
	hash [32]byte
	keys *keyring
}

// remembered returns the caller of a token that was found right before, or finds
// out. Judging its times is left to the caller.
func (g *guard) remembered(token string) (*caller, error) {
	if len(token) > maxTokenBytes {
		return nil, errInvalidToken
	}
	keys := g.keys.Load()
	plain := append(make([]byte, 0, maxTokenBytes), token...) // on the stack
	return g.caches.callers.load(g.store, tokenKey{sha256.Sum256(plain), keys}, func() (*caller, string, error) {
		who, err := g.identify(token, keys)
		return &who, "", err
	})
}

// identify judges what does not change with time about a token: its signature, its
// addressee, and that it and its account still stand. Errors: errInvalidToken, the
// store's.
func (g *guard) identify(token string, keys *keyring) (who caller, err error) {
	if who.claims, err = keys.verify(token); err != nil {
		return who, err
	}
	accepted, err := g.store.acceptedBase(who.claims.Issuer)
	if err != nil {
		return who, err
	}
	if !accepted || who.claims.Audience != who.claims.Issuer {
		return who, errInvalidToken
	}
	if who.claims.isDevice() {
		return who, nil
	}
	row, err := g.store.liveToken(who.claims.ID)
	if errors.Is(err, errNotFound) || err == nil && row.AccountID != who.claims.Subject {
		return who, errInvalidToken
	}
	who.all = row.AllAccounts || who.admin()
	return who, err
}
