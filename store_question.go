package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// A question is a request for a list or for statistics of a range: it may read thousands of rows,
// where a look-up reads one. So that questions do not delay look-ups, and nobody's delay those of
// others for long, only a few run at a time.
const (
	questionTimeout     = 2 * time.Second // for waiting and for the answer
	questionsAtOnce     = readerConns - 1 // each uses one connection, and one is left for look-ups
	questionsOfOneAsker = 2
)

var errSlowQuestion = &refusal{code: codeBusy, retryAfter: 5 * time.Second,
	detail: "This could not be read within 2 seconds. Try again shortly, with fewer requests at a time."}

// An asker is who asks questions: the account of a token, or without one an address.
type asker struct{ account, address string }

// A questionQueue decides which questions run. Askers take turns (round robin), so that a question
// waits for at most one question of each other asker, however many those have asked, and then for
// earlier ones of its own asker.
type questionQueue struct {
	timeout   time.Duration // of a question
	most      int           // questions that run at a time; of callers without a token one less
	mu        sync.Mutex
	askers    map[asker]*asking // has an entry only while a question of the asker runs or waits
	turns     []*asking         // those with questions that wait, the next one's first
	running   int               // questions
	anonymous int               // those of them that are asked without a token
}

// An asking holds the questions of one asker.
type asking struct {
	asker
	running int
	waiting []chan struct{} // one for each question that waits, the oldest first; closed when it may run
}

// newQuestionQueue makes a queue that lets most questions run at a time, at least two.
func newQuestionQueue(most int) *questionQueue {
	return &questionQueue{timeout: questionTimeout, most: most, askers: map[asker]*asking{}}
}

// ask calls f when it is its turn, with a context that ends after the timeout of questions. f runs
// its queries within that context (store.within), one at a time.
// Errors: those of f, errSlowQuestion, that of ctx.
func (q *questionQueue) ask(ctx context.Context, who asker, f func(context.Context) error) error {
	inTime, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	err := q.begin(inTime, who)
	if err == nil {
		defer q.end(who)
		err = f(inTime)
	}
	if err != nil && ctx.Err() == nil && errors.Is(inTime.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w (%w)", errSlowQuestion, err)
	}
	return err
}

// begin waits until a question may run; then end must be called. It returns the error of ctx if
// that ends first.
func (q *questionQueue) begin(ctx context.Context, who asker) error {
	turn := make(chan struct{})
	q.mu.Lock()
	a := q.askers[who]
	if a == nil {
		a = &asking{asker: who}
		q.askers[who] = a
	}
	if a.waiting = append(a.waiting, turn); len(a.waiting) == 1 {
		q.turns = append(q.turns, a)
	}
	q.startNext()
	q.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	i := slices.Index(a.waiting, turn)
	if i >= 0 {
		if a.waiting = slices.Delete(a.waiting, i, i+1); len(a.waiting) == 0 {
			q.turns = slices.DeleteFunc(q.turns, func(other *asking) bool { return other == a })
		}
		q.forget(a)
	}
	q.mu.Unlock()
	if i < 0 { // its turn has come just now
		q.end(who)
	}
	return ctx.Err()
}

// end gives back the place of a question that begin let run.
func (q *questionQueue) end(who asker) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.askers[who]
	a.running--
	q.running--
	if who.account == "" {
		q.anonymous--
	}
	q.forget(a)
	q.startNext()
}

// forget removes the entry of an asker that has no question left. Its caller holds mu.
func (q *questionQueue) forget(a *asking) {
	if a.running == 0 && len(a.waiting) == 0 {
		delete(q.askers, a.asker)
	}
}

// startNext lets waiting questions run while there is room. Its caller holds mu.
func (q *questionQueue) startNext() {
	for q.running < q.most {
		next := slices.IndexFunc(q.turns, func(a *asking) bool {
			return a.running < questionsOfOneAsker && (a.account != "" || q.anonymous < q.most-1)
		})
		if next < 0 {
			return
		}
		a := q.turns[next]
		q.turns = slices.Delete(q.turns, next, next+1)
		close(a.waiting[0])
		if a.waiting = slices.Delete(a.waiting, 0, 1); len(a.waiting) > 0 {
			q.turns = append(q.turns, a)
		}
		a.running++
		q.running++
		if a.account == "" {
			q.anonymous++
		}
	}
}
