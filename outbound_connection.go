package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// A connector is what the engines of payments and of books have in common: each works on the connections of
// accounts with outside systems, through clients of its own. Any number of goroutines may use it.
type connector struct {
	store     *store
	keys      func() *keyring
	log       *slog.Logger
	now       func() time.Time
	monotonic func() time.Time // a clock that is never set
	doubted   func() bool      // server.clockDoubted, while which nothing is done that can't be undone
	idle      func() bool      // whether nothing outside is asked, since another service may work there; nil: never

	noOutside error         // why nobody outside is asked whatever happens, see serverOptions; nil: idle decides
	wake      chan struct{} // wakes the worker
	pace      pacer
}

// off reports whether nothing outside may be asked at the moment.
func (c *connector) off() bool { return c.idle != nil && c.idle() }

// update is store.update for changes of rows that are never cached.
func (c *connector) update(ctx context.Context, f func(*tx) error) error {
	return c.store.update(ctx, func(t *tx) error {
		t.dropsNothing()
		return f(t)
	})
}

// wakeUp wakes the worker, which looks for what is due.
func (c *connector) wakeUp() {
	select {
	case c.wake <- struct{}{}:
	default: // it has been woken and has not looked yet
	}
}

// A pacer spaces what is asked of vendors. Its zero value is ready; it is safe for concurrent use.
type pacer struct {
	mu    sync.Mutex
	asked map[string][]time.Time // by connection: the times of the last requests, the earliest first
}

// reserve reserves the time of another request of a connection, of which so many may be made within a time, and returns
// how long that has to wait. If it is longer than most, it reserves nothing and reports false. now is by a clock that
// is never set.
func (p *pacer) reserve(
	connection string, now time.Time, requests int, within, most time.Duration,
) (wait time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := p.asked[connection]
	if len(asked) >= requests {
		if wait = max(within-now.Sub(asked[0]), 0); wait > most {
			return wait, false
		}
		asked = slices.Delete(asked, 0, 1)
	}
	if p.asked == nil {
		p.asked = map[string][]time.Time{}
	}
	p.asked[connection] = append(asked, now.Add(wait))
	return wait, true
}

// backoff returns how long to wait before what has failed for a time is tried again: as long as half of that, but at
// least first and at most longest.
func backoff(failed, first, longest time.Duration) time.Duration {
	return min(max(failed/2, first), longest)
}

// A dueWorker does what has become due according to the file, several things at once, each under an id. One
// goroutine, that of run, owns its fields.
type dueWorker struct {
	tick     time.Duration     // between two looks for what has become due
	eager    bool              // looks again as soon as something has ended
	most     int               // things at once
	running  map[string]string // by id: the connection that it is of
	finished chan string
	working  sync.WaitGroup
}

func newDueWorker(tick time.Duration, most int, eager bool) dueWorker {
	return dueWorker{tick: tick, eager: eager, most: most, running: map[string]string{},
		finished: make(chan string, most)}
}

// run calls look, which starts what is due, at once, after each tick and whenever it is woken, until ctx ends.
// Then it waits for what is under way, which has to end with ctx, and which the next start goes on with.
func (w *dueWorker) run(ctx context.Context, wake <-chan struct{}, look func(context.Context)) {
	tick := time.NewTicker(w.tick)
	defer tick.Stop()
	defer w.working.Wait()
	for {
		look(ctx)
		for waits := true; waits; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				waits = false
			case <-wake:
				waits = false
			case id := <-w.finished:
				delete(w.running, id)
				waits = !w.eager
			}
		}
	}
}

// full reports whether no more can be started.
func (w *dueWorker) full() bool {
	for len(w.finished) > 0 {
		delete(w.running, <-w.finished)
	}
	return len(w.running) >= w.most
}

// runs reports whether something is under way.
func (w *dueWorker) runs(id string) bool { _, ok := w.running[id]; return ok }

// runningOf returns how much is under way for a connection.
func (w *dueWorker) runningOf(connection string) (n int) {
	for _, of := range w.running {
		if of == connection {
			n++
		}
	}
	return n
}

// start does something of a connection on a goroutine of its own. The caller has asked full and runs before.
func (w *dueWorker) start(id, connection string, do func()) {
	w.running[id] = connection
	w.working.Go(func() {
		do()
		w.finished <- id // never blocks: there are no more than most
	})
}

// currentBase returns the base address of this service, below which others call it or send somebody back. It fails with
// the next step if there is none.
func currentBase(st *store) (string, error) {
	bases, err := st.baseURLs()
	if err == nil && (len(bases) == 0 || !bases[0].Current) {
		err = errors.New("there is no base address: run 'widgetd base-url set https://…/v1' first")
	}
	if err != nil {
		return "", err
	}
	return bases[0].URL, nil
}

// errChanged says that a row no longer has the revision that was read (compare-and-set), so that its caller
// must read it again and decide again.
var errChanged = errors.New("it has changed meanwhile")

const (
	maxSecretsFile = 16 << 10 // bytes
	maxSecret      = 1000     // characters
)

// checkPrivate returns an error if other users can read a file of secrets.
func checkPrivate(file *os.File) error {
	info, err := file.Stat()
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = fmt.Errorf("other users can read %[1]s: run 'chmod 600 %[1]s', and have what is in it replaced "+
			"if somebody may have read it", file.Name())
	}
	return err
}

// readSecretText returns the text of a file of secrets.
func readSecretText(file io.Reader) (string, error) {
	text, err := io.ReadAll(io.LimitReader(file, maxSecretsFile+1))
	if err == nil && len(text) > maxSecretsFile {
		err = fmt.Errorf("it has more than %d bytes", maxSecretsFile)
	}
	return string(text), err
}

// parseSecretLines parses a text of secrets into fields by name: lines of the form name=value, empty lines, and lines
// that begin with # as comments. A field whose line is missing stays as it is. Its errors name lines and names, and
// never a value.
func parseSecretLines(fields map[string]*string, text string) error {
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		field := fields[name]
		switch {
		case !ok || field == nil:
			return fmt.Errorf("line %d is none of %s", number, strings.Join(secretNames(fields), ", "))
		case *field != "":
			return fmt.Errorf("%s appears twice", name)
		case value == "" || len(value) > maxSecret || strings.IndexFunc(value, isNotVisible) >= 0:
			return fmt.Errorf("%s must be 1 to %d visible ASCII characters", name, maxSecret)
		}
		*field = value
	}
	return nil
}

// parseAllSecrets is parseSecretLines where no line may be missing.
func parseAllSecrets(fields map[string]*string, text string) error {
	err := parseSecretLines(fields, text)
	for _, line := range secretNames(fields) {
		if err == nil && *fields[strings.TrimSuffix(line, "=…")] == "" {
			err = fmt.Errorf("a line %s is missing", line)
		}
	}
	return err
}

// secretNames returns the form of each line of a file of secrets, such as "client_id=…", sorted.
func secretNames(fields map[string]*string) (lines []string) {
	for name := range fields {
		lines = append(lines, name+"=…")
	}
	slices.Sort(lines)
	return lines
}
