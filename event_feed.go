package main

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The feed of events is for callers who can't receive webhooks: GET /events?after= answers with what was written after
// a position, oldest first, and waits when there is nothing yet. The caller keeps its position, and the service nothing
// of it. Who waits is woken by commits (feed), and holds neither a reader of the database nor a question's place.

// The problems of the feed.
var (
	eventProblems problemTable

	codeCursorUnknown = eventProblems.add(410, "cursor_unknown", "Cursor unknown",
		"This database does not know the place that after stands for, as one that was restored from an older copy: "+
			"begin again, with after=start or after=now.",
		"Read what you follow from its lists, then begin again with `after=now`, or with `after=start` and skip "+
			"ids that you have seen.")
	codeEventsExpired = eventProblems.add(410, "events_expired", "Events expired",
		"Events that followed the place that after stands for are no longer kept: begin again with after=start, and "+
			"read from the lists what you have missed.",
		"Read what you have missed from the lists, then begin again with `after=start`.")
	errCursorUnknown = &refusal{code: codeCursorUnknown}
	errEventsExpired = &refusal{code: codeEventsExpired}
	errFeedFull      = &refusal{code: codeBusy, retryAfter: feedRetry,
		detail: "Too many requests wait for events at the moment. Try again shortly, or without wait."}
)

const (
	maxFeedWait       = 15 * time.Second      // below writeTimeout, and the time-outs of proxies
	feedSpread        = 50 * time.Millisecond // over which those who are woken read
	feedWaiting       = 256                   // requests at a time
	feedWaitingOfOne  = 16                    // of them, those of an account
	feedWaitingOfUser = 4                     // of them, those of a token, or of an application in an account
	feedWaitingOfApp  = 64                    // those of an application, over all accounts
	feedRetry         = 5 * time.Second       // after a refusal to wait
	maxFeedCursor     = 200                   // characters
)

// A feedPosition is a place in the order in which events were written: after the event with a number.
type feedPosition struct {
	epoch string // of the database that gave it out
	seq   int64
	id    string // of that event; "": there was none
}

// cursor returns the position as callers keep it: sealed, since numbers tell how much others do.
func (p feedPosition) cursor(keys *keyring) string {
	text := p.epoch + " " + strconv.FormatInt(p.seq, 10) + " " + p.id
	return base64.RawURLEncoding.EncodeToString(keys.sealFor("events cursor", "", []byte(text)))
}

// parseFeedCursor returns the position that a cursor was made from. Errors: errCursorUnknown, if it was made with
// another key file, or is no cursor.
func parseFeedCursor(keys *keyring, cursor string) (p feedPosition, err error) {
	sealed, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return p, errCursorUnknown
	}
	text, err := keys.unsealFor("events cursor", "", sealed)
	if err != nil {
		return p, errCursorUnknown
	}
	parts := strings.Split(string(text), " ")
	if len(parts) != 3 { // of another release
		return p, errCursorUnknown
	}
	p.epoch, p.id = parts[0], parts[2]
	p.seq, err = strconv.ParseInt(parts[1], 10, 64)
	return p, err
}

// A feed knows who waits for events, and wakes them. Its maps have entries only while somebody waits.
type feed struct {
	mu      sync.Mutex
	watches bool                     // the commits of the store, from the first caller on
	waiting counter[string]          // requests: all (""), by account, by who in it asks, and by application
	changed map[string]chan struct{} // by the account whose events are waited for ("": any): closed at its next commit
}

// acquire takes a place for a request that waits. It returns a function that gives the place back. Errors:
// a refusal (429), errFeedFull.
func (f *feed) acquire(st *store, c *caller) (release func(), err error) {
	// An application's tokens count together, since it can get new ones at will.
	account, user := c.claims.Subject, c.claims.Subject+" "+c.claims.ID
	under := []ceiling[string]{{user, feedWaitingOfUser}, {account, feedWaitingOfOne}, {"", feedWaiting}}
	if c.app != "" {
		under[0].key = c.claims.Subject + " " + c.limitedAs()
		under = append(under, ceiling[string]{c.limitedAs(), feedWaitingOfApp})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch full := f.waiting.add(1, under...); {
	case full == nil:
	case full.key == "":
		return nil, errFeedFull
	case full.key == account:
		return nil, errWaiting(full.most, "of one account")
	case full.most == feedWaitingOfApp:
		return nil, errWaiting(full.most, "of one application, over all accounts,")
	default:
		return nil, errWaiting(full.most, "of one token, or of one application")
	}
	if !f.watches {
		f.watches = true
		st.watch(f.committed)
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.waiting.add(-1, under...); len(f.waiting.counts) == 0 {
			clear(f.changed)
		}
	}, nil
}

// errWaiting returns the refusal of a request that would wait beside as many as may.
func errWaiting(most int64, of string) error {
	detail := fmt.Sprintf("At most %d requests %s may wait for events at a time.", most, of)
	return errRate(limitReached{name: "waiting", rate: int(most), full: maxFeedWait}, detail, feedRetry)
}

// next returns a channel that is closed once events of an account were committed; "": of any. Who calls it before
// reading misses none.
func (f *feed) next(account string) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed[account] == nil {
		f.changed[account] = make(chan struct{})
	}
	return f.changed[account]
}

// committed wakes those who wait for what was written, see writer.watch.
func (f *feed) committed(written []writtenEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if written == nil {
		for account := range f.changed {
			f.wake(account)
		}
	}
	for _, e := range written {
		f.wake(e.account)
		f.wake("")
	}
}

// wake wakes those who wait for events of an account; "": of any. mu is held.
func (f *feed) wake(account string) {
	if changed := f.changed[account]; changed != nil {
		close(changed)
		delete(f.changed, account)
	}
}
