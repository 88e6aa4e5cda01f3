package main

import (
	"container/heap"
	"math"
	"sync"
	"time"
)

// A limiter is a bounded map of token buckets (contract, section 2). A bucket of
// capacity n is refilled with n a minute, so that whoever keeps within n a minute
// is never refused, not even all at once.
//
// The map forgets a bucket once it is full again, since that is what an unknown
// key has. When it must forget another, it is the one that is closest to full,
// never a drained one first. A heap ordered by the moment of being full gives
// both without a scan.
type limiter struct {
	mu      sync.Mutex
	max     int
	buckets map[string]*bucket
	byFull  bucketHeap
}

type bucket struct {
	key        string
	tokens     float64
	rate       float64 // capacity, and refill in a minute
	refilledAt time.Time
	fullAt     time.Time
	index      int // in the heap
}

// newLimiter makes a limiter that remembers at most max keys.
func newLimiter(max int) *limiter {
	return &limiter{max: max, buckets: map[string]*bucket{}}
}

// A takeResult is what a bucket answers.
type takeResult struct {
	ok        bool
	remaining int           // whole tokens that are left
	full      time.Duration // until the bucket is full again
	retry     time.Duration // until one token is there, when not ok
}

// take takes one token from the bucket of a key, whose capacity and refill in a
// minute are rate. now comes from a clock that is never set, or else every bucket would
// be full once that clock is set forward.
func (l *limiter) take(key string, rate int, now time.Time) takeResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bucketFor(key, float64(rate), now).take(l, now)
}

// len returns how many keys are remembered.
func (l *limiter) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.buckets)
}

// bucketFor returns the bucketFor of a key, refilled until now. It forgets up to two
// that are full, so that the map shrinks as fast as it grew, without a pause.
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

func (l *limiter) evictFullest() {
	b := heap.Pop(&l.byFull).(*bucket)
	delete(l.buckets, b.key)
}

// refill adds what has come since the last time. A moment that is a little earlier
// is a caller's that was overtaken, and moves nothing, else that time would be added
// twice; one that is earlier by more than a refill takes is a clock's that was set,
// and counts from there. A rate that was changed counts from now on.
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

func (b *bucket) take(l *limiter, now time.Time) takeResult {
	ok := b.tokens >= 1-1e-9 // what floating point loses in a refill is not the caller's
	if ok {
		b.tokens = max(0, b.tokens-1)
	}
	v := b.result(ok)
	b.fullAt = now.Add(v.full)
	heap.Fix(&l.byFull, b.index)
	return v
}

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

// wholeSeconds rounds up, as Retry-After and RateLimit want it; at least 1 for
// anything that is not over.
func wholeSeconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }

// bucketHeap is a min-heap by the moment of being full (container/heap).
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
