package main

import (
	"container/heap"
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"time"
)

// A limiter is a bounded map of token buckets (contract, section 2). A bucket has a capacity of
// n tokens and is refilled with n tokens a minute, so that a key with at most n requests in
// every minute is never refused, even if they all come at once.
//
// A full bucket is evicted, since a key without a bucket would start with a full one anyway.
// When the map is at its bound, the bucket closest to full is evicted, so that a caller can't
// get rid of its own drained bucket. A heap ordered by the time at which buckets will be full
// finds both without a scan.
type limiter struct {
	mu      sync.Mutex
	max     int // bound on the number of buckets
	buckets map[string]*bucket
	byFull  evictionHeap
}

type bucket struct {
	evictable
	tokens     float64
	rate       float64   // capacity in tokens, and tokens added in a minute
	refilledAt time.Time // when tokens was last brought up to date
}

// newLimiter makes a limiter that keeps at most max buckets.
func newLimiter(max int) *limiter {
	return &limiter{max: max, buckets: map[string]*bucket{}}
}

// A takeResult is the result of taking tokens from a bucket.
type takeResult struct {
	ok        bool          // they were taken
	remaining int           // whole tokens that are left for this caller
	full      time.Duration // until the bucket is full again
	retry     time.Duration // until the bucket holds what was asked for; 0 if ok
}

// take takes one token from the bucket of a key. rate is the bucket's capacity, and how many
// tokens it gets in a minute. now must come from a clock that is never set: a clock that is
// set forward would fill every bucket.
func (l *limiter) take(key string, rate int, now time.Time) takeResult {
	return l.takeSome(key, rate, 1, 0, now)
}

// takeSome is take for n tokens, or for none if that would leave fewer than keep. Of a bucket that can't hold
// so many it takes all.
func (l *limiter) takeSome(key string, rate, n, keep int, now time.Time) takeResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bucketFor(key, float64(rate), now).take(l, float64(min(n, rate-keep)), float64(keep), now)
}

// peek returns what take would see in the bucket of a key, and takes nothing.
func (l *limiter) peek(key string, rate int, now time.Time) takeResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bucketFor(key, float64(rate), now).result(true, 0, 0)
}

// empty takes everything from the bucket of a key, so that it is full a minute from now.
func (l *limiter) empty(key string, rate int, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bucketFor(key, float64(rate), now)
	b.take(l, b.tokens, 0, now)
}

// len returns the number of buckets.
func (l *limiter) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.buckets)
}

// bucketFor returns the bucket of a key, refilled until now. It first evicts up to two full
// buckets: each call adds at most one, so the map shrinks as fast as it grew, without a pause.
func (l *limiter) bucketFor(key string, rate float64, now time.Time) *bucket {
	for n := 0; n < 2 && len(l.byFull) > 0 && !l.byFull[0].fullAt.After(now); n++ {
		l.evictFullest()
	}
	if b := l.buckets[key]; b != nil {
		b.refill(rate, now)
		return b
	}
	for len(l.buckets) >= l.max {
		l.evictFullest()
	}
	b := &bucket{evictable: evictable{key: key, fullAt: now}, tokens: rate, rate: rate, refilledAt: now}
	l.buckets[key] = b
	heap.Push(&l.byFull, &b.evictable)
	return b
}

// evictFullest removes the bucket that is, or will be, full first.
func (l *limiter) evictFullest() {
	delete(l.buckets, heap.Pop(&l.byFull).(*evictable).key)
}

// refill adds the tokens for the time since the last refill. rate applies from now on.
//
// now may be a little earlier than the last refill, when two requests overtook each other on
// their way here: then nothing changes, or the time between would be counted twice. If it is
// earlier by more than a minute, the clock was set back, and refilling goes on from the new time.
func (b *bucket) refill(rate float64, now time.Time) {
	switch since := now.Sub(b.refilledAt); {
	case since > 0:
		b.tokens += since.Minutes() * b.rate
		b.refilledAt = now
	case since < -time.Minute:
		b.refilledAt = now
	}
	b.rate = rate
	b.tokens = min(b.tokens, rate)
}

// take takes n tokens, if that leaves keep, and moves the bucket within l's heap.
func (b *bucket) take(l *limiter, n, keep float64, now time.Time) takeResult {
	ok := b.tokens >= n+keep-1e-9 // rounding in refill must not cost a token
	if ok {
		b.tokens = max(0, b.tokens-n)
	}
	v := b.result(ok, n, keep)
	b.fullAt = now.Add(v.full)
	heap.Fix(&l.byFull, b.index)
	return v
}

// result describes the bucket after taking n tokens above keep, which ok says worked.
func (b *bucket) result(ok bool, n, keep float64) takeResult {
	until := func(tokens float64) time.Duration {
		return time.Duration(max(0, tokens-b.tokens) / b.rate * float64(time.Minute))
	}
	v := takeResult{ok: ok, remaining: int(max(0, b.tokens-keep) + 1e-9), full: until(b.rate)}
	if !ok {
		v.retry = until(n + keep)
	}
	return v
}

// wholeSeconds rounds d up to seconds, the unit of Retry-After and RateLimit: any d above 0
// gives at least 1.
func wholeSeconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }

// lastAddresses remembers for each account the last two addresses whose calls were charged to it. It is bounded: where
// max accounts are known, it forgets an arbitrary one.
type lastAddresses struct {
	mu       sync.Mutex
	max      int
	accounts map[string][2]calledFrom // the last one first
}

type calledFrom struct {
	address string
	at      time.Time
}

// note notes a call from an address, and reports whether another address has asked within the minute before it.
func (l *lastAddresses) note(account, address string, now time.Time) (others bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.accounts[account]
	makeRoom(l.accounts, account, l.max)
	for _, from := range last {
		others = others || from.address != address && from.address != "" && now.Sub(from.at) < time.Minute
	}
	if last[0].address != address {
		last[1] = last[0]
	}
	last[0] = calledFrom{address, now}
	l.accounts[account] = last
	return others
}

// An evictable is what a bounded map needs to know of an entry to find the one to evict.
type evictable struct {
	key    string
	fullAt time.Time // when its allowance will be full, unless more of it is taken
	index  int       // in the heap
}

// An evictionHeap is a min-heap by fullAt (container/heap): the entry closest to full comes first.
type evictionHeap []*evictable

func (h evictionHeap) Len() int { return len(h) }

func (h evictionHeap) Less(i, j int) bool { return h[i].fullAt.Before(h[j].fullAt) }

func (h evictionHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *evictionHeap) Push(x any) {
	e := x.(*evictable)
	e.index = len(*h)
	*h = append(*h, e)
}

func (h *evictionHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return e
}

const (
	lookupWindow       = time.Minute // for which a failed look-up is remembered
	maxFailedLookups   = 300_000     // that are remembered for all addresses together
	maxLookupAddresses = 10_000      // that are remembered
	maxLookupsAddress  = 1_000       // failed ones that an address may have; a higher rate means no limit
	repeatedLookupRate = 60          // requests a minute from one address, with what has failed from there already
)

// A lookupGuard limits how many different licence keys may fail from one address within
// lookupWindow (contract, section 2). For each address it remembers at most rate keys that failed,
// each as a hash of 64 bits under a random seed, so that nobody can choose keys that collide. With
// the default rate of 30 it remembers maxLookupAddresses; with a higher one fewer, so that it never
// takes more than about 7 MiB.
//
// When it is full, it evicts the address that comes closest to having its whole allowance again. So
// addresses with few failures can't push out one with many.
type lookupGuard struct {
	mu        sync.Mutex
	rate      int
	max       int // bound on the number of addresses; 0: the rate is no limit
	started   time.Time
	seed      maphash.Seed
	addresses map[string]*lookupHistory
	byFull    evictionHeap
}

// A lookupHistory is what failed from one address.
type lookupHistory struct {
	evictable
	failures []failedLookup // at least one, at most rate; the latest is last
}

// A failedLookup is a licence key that failed.
type failedLookup struct {
	key uint64        // its hash
	at  time.Duration // when it failed last, since the guard was made
}

// newLookupGuard makes a guard that lets rate different keys fail within lookupWindow. A rate above
// maxLookupsAddress means no limit: then nothing is remembered. now must come from the same clock
// as the times passed to limited and fail, one that is never set.
func newLookupGuard(rate int, now time.Time) *lookupGuard {
	g := &lookupGuard{rate: rate, started: now, seed: maphash.MakeSeed(), addresses: map[string]*lookupHistory{}}
	if 0 < rate && rate <= maxLookupsAddress {
		g.max = min(maxLookupAddresses, maxFailedLookups/rate)
	}
	return g
}

// len returns the number of addresses that are remembered.
func (g *lookupGuard) len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.addresses)
}

// limited returns how long until another key may fail from an address; 0: one may fail now.
func (g *lookupGuard) limited(address string, now time.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h := g.addresses[address]; h != nil {
		return h.wait(g.rate, now.Sub(g.started))
	}
	return 0
}

// fail counts a licence key that failed from an address; hash is the SHA-256 of the key. repeated
// reports that the same key has already failed from there within lookupWindow; both count as one.
// If rate keys have failed already, it counts nothing and returns how long until one more may fail.
func (g *lookupGuard) fail(address string, hash [32]byte, now time.Time) (repeated bool, wait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.max == 0 {
		return false, 0
	}
	since := now.Sub(g.started)
	for n := 0; n < 2 && len(g.byFull) > 0 && g.addresses[g.byFull[0].key].forgotten(since); n++ {
		g.evictFullest()
	}
	h := g.addresses[address]
	if h != nil {
		if wait = h.wait(g.rate, since); wait > 0 {
			return false, wait
		}
	} else {
		for len(g.addresses) >= g.max {
			g.evictFullest()
		}
		h = &lookupHistory{evictable: evictable{key: address}}
		g.addresses[address] = h
		heap.Push(&g.byFull, &h.evictable)
	}
	repeated = h.add(failedLookup{maphash.Bytes(g.seed, hash[:]), since})
	h.fullAt = now.Add(lookupWindow * time.Duration(len(h.failures)) / time.Duration(g.rate))
	heap.Fix(&g.byFull, h.index)
	return repeated, 0
}

// evictFullest forgets the address that comes closest to having its whole allowance again.
func (g *lookupGuard) evictFullest() {
	delete(g.addresses, heap.Pop(&g.byFull).(*evictable).key)
}

// wait returns how long it takes, at a time since the guard was made, until fewer than rate keys have
// failed within lookupWindow.
func (h *lookupHistory) wait(rate int, since time.Duration) time.Duration {
	if len(h.failures) < rate {
		return 0
	}
	return max(0, h.failures[0].at+lookupWindow-since)
}

// forgotten reports whether nothing has failed within lookupWindow.
func (h *lookupHistory) forgotten(since time.Duration) bool {
	return since-h.failures[len(h.failures)-1].at >= lookupWindow
}

// add adds a failure and drops those that are older than lookupWindow. It reports whether the same
// key was already there, in which case only its time changes.
func (h *lookupHistory) add(f failedLookup) (repeated bool) {
	h.failures = slices.DeleteFunc(h.failures, func(old failedLookup) bool {
		if f.at-old.at >= lookupWindow {
			return true
		}
		repeated = repeated || old.key == f.key
		return old.key == f.key
	})
	h.failures = append(h.failures, f)
	return repeated
}

// A counter counts something under several keys at once. Its zero value is ready for use.
type counter[K comparable] struct {
	mu     sync.Mutex
	counts map[K]int64 // has an entry only where there is some
}

// A ceiling is a key of a counter, and the most that may be counted under it.
type ceiling[K comparable] struct {
	key  K
	most int64
}

// add adds n, which may be negative, under every key; or nothing, if there would be too many under one of them, which
// it returns.
func (c *counter[K]) add(n int64, under ...ceiling[K]) (full *ceiling[K]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, u := range under {
		if n > 0 && c.counts[u.key]+n > u.most {
			return &under[i]
		}
	}
	if c.counts == nil {
		c.counts = map[K]int64{}
	}
	for _, u := range under {
		if c.counts[u.key] += n; c.counts[u.key] == 0 {
			delete(c.counts, u.key)
		}
	}
	return nil
}
