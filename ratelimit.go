package main

import (
	"container/heap"
	"math"
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
	byFull  bucketHeap
}

type bucket struct {
	key        string
	tokens     float64
	rate       float64   // capacity in tokens, and tokens added in a minute
	refilledAt time.Time // when tokens was last brought up to date
	fullAt     time.Time // when it will be full, unless tokens are taken
	index      int       // in the heap
}

// newLimiter makes a limiter that keeps at most max buckets.
func newLimiter(max int) *limiter {
	return &limiter{max: max, buckets: map[string]*bucket{}}
}

// A takeResult is the result of taking a token from a bucket.
type takeResult struct {
	ok        bool          // a token was taken
	remaining int           // whole tokens left
	full      time.Duration // until the bucket is full again
	retry     time.Duration // until the bucket holds a token; 0 if ok
}

// take takes one token from the bucket of a key. rate is the bucket's capacity, and how many
// tokens it gets in a minute. now must come from a clock that is never set: a clock that is
// set forward would fill every bucket.
func (l *limiter) take(key string, rate int, now time.Time) takeResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bucketFor(key, float64(rate), now).take(l, now)
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
	b := &bucket{key: key, tokens: rate, rate: rate, refilledAt: now, fullAt: now}
	l.buckets[key] = b
	heap.Push(&l.byFull, b)
	return b
}

// evictFullest removes the bucket that is, or will be, full first.
func (l *limiter) evictFullest() {
	b := heap.Pop(&l.byFull).(*bucket)
	delete(l.buckets, b.key)
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

// take takes one token, if there is one, and moves the bucket within l's heap.
func (b *bucket) take(l *limiter, now time.Time) takeResult {
	ok := b.tokens >= 1-1e-9 // rounding in refill must not cost a token
	if ok {
		b.tokens = max(0, b.tokens-1)
	}
	v := b.result(ok)
	b.fullAt = now.Add(v.full)
	heap.Fix(&l.byFull, b.index)
	return v
}

// result describes the bucket after taking a token, which ok says worked.
func (b *bucket) result(ok bool) takeResult {
	until := func(tokens float64) time.Duration {
		return time.Duration(max(0, tokens-b.tokens) / b.rate * float64(time.Minute))
	}
	v := takeResult{ok: ok, remaining: int(b.tokens + 1e-9), full: until(b.rate)}
	if !ok {
		v.retry = until(1)
	}
	return v
}

// wholeSeconds rounds d up to seconds, the unit of Retry-After and RateLimit: any d above 0
// gives at least 1.
func wholeSeconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }

// A bucketHeap is a min-heap by fullAt (container/heap).
type bucketHeap []*bucket

func (h bucketHeap) Len() int { return len(h) }

func (h bucketHeap) Less(i, j int) bool { return h[i].fullAt.Before(h[j].fullAt) }

func (h bucketHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *bucketHeap) Push(x any) {
	b := x.(*bucket)
	b.index = len(*h)
	*h = append(*h, b)
}

func (h *bucketHeap) Pop() any {
	old := *h
	b := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return b
}
