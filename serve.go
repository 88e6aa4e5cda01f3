package main

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	quietBeforeEnd  = 100 * time.Millisecond // without a new or active connection
	silentBeforeEnd = time.Second            // without a byte on a new connection, until nobody waits for one
)

// connections knows which connections are new or busy: http.Server.Shutdown alone would
// leave requests unanswered that were already sent (golang/go#65805).
type connections struct {
	mu      sync.Mutex
	states  map[net.Conn]connection
	changed atomic.Int64 // how often one became new or active
}

type connection struct {
	state http.ConnState
	since time.Time
}

func (c *connections) note(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew, http.StateActive:
		c.states[conn] = connection{state, time.Now()}
		c.changed.Add(1)
	default:
		delete(c.states, conn)
	}
}

func (c *connections) busy() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.states)
}

// endSilent ends the reading from connections that were opened a while ago and have
// not brought a byte. What has arrived by then is still read and answered.
func (c *connections) endSilent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn, is := range c.states {
		half, ok := conn.(interface{ CloseRead() error })
		if ok && is.state == http.StateNew && time.Since(is.since) >= silentBeforeEnd {
			half.CloseRead() // an error is the caller's absence
		}
	}
}

// waitQuiet returns once no connection has been new or active for a while, or ctx
// ends.
func (c *connections) waitQuiet(ctx context.Context) {
	for {
		before := c.changed.Load()
		select {
		case <-ctx.Done():
			return
		case <-time.After(quietBeforeEnd):
		}
		if c.busy() == 0 && c.changed.Load() == before {
			return
		}
		c.endSilent()
	}
}
