package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A callFault is why a call had no answer, if that may be the fault of this machine or its network; "": it had one.
type callFault string

// The faults of calls, and what to tell the operator when most calls to different hosts fail alike.
const (
	faultDNS          callFault = "dns"
	faultCertificates callFault = "certificates"
	faultRoute        callFault = "route"
	faultTimeout      callFault = "timeout"
	faultConnection   callFault = "connection"
)

var callFaults = []struct {
	fault        callFault
	what, advice string
}{
	{faultDNS, "the names of hosts can't be looked up", "'getent hosts example.com' must print an address: " +
		"look at /etc/resolv.conf and its name servers"},
	{faultCertificates, "no known authority has signed the certificates", "'apt-get install ca-certificates', " +
		"then restart the service"},
	{faultRoute, "the network can't be reached", "'ip route' must print a default route"},
	{faultTimeout, "nothing answers in time", "'curl -sI https://example.com' shows whether a firewall is in the way"},
	{faultConnection, "connections are refused or broken", "'curl -sI https://example.com' shows whether a " +
		"firewall is in the way"},
}

// What the log and status say of calls.
const (
	callsFailAlike = "most calls to different hosts fail alike"
	noRootsText    = "this machine knows no certificate authority"
)

// noRoots reports whether this machine knows no certificate authority, so that no certificate can be verified.
func noRoots() bool {
	pool, err := x509.SystemCertPool()
	return err != nil || pool.Equal(x509.NewCertPool())
}

// text returns what the fault is, and what to do about it.
func (f callFault) text() (what, advice string) {
	for _, known := range callFaults {
		if known.fault == f {
			return known.what, known.advice
		}
	}
	return "", ""
}

// faultOfCall returns the fault of a call that has ended with an error. says is false if the error tells nothing about
// the network: that a name does not exist, or what the host or its owner is to blame for.
func faultOfCall(err error) (fault callFault, says bool) {
	var lookup *net.DNSError
	var known *outboundError
	errors.As(err, &known)
	switch {
	case errors.As(err, &lookup):
		return faultDNS, !lookup.IsNotFound
	case errors.As(err, new(x509.UnknownAuthorityError)), errors.As(err, new(x509.SystemRootsError)):
		return faultCertificates, true
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETDOWN),
		errors.Is(err, syscall.EPERM):
		return faultRoute, true
	case known.reason == outboundTimeout:
		return faultTimeout, true
	case known.reason == outboundNoConnect:
		return faultConnection, true
	}
	return "", known.reason == outboundTLS || known.reason == outboundTooLarge || known.reason == outboundMalformed
}

// hostOf returns the host of a URL without its port.
func hostOf(normal string) string {
	u, err := url.Parse(normal)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

const (
	reachHosts  = 20               // how many hosts a reachability remembers, those that were called last
	reachFor    = 15 * time.Minute // for how long it remembers them
	reachLeast  = 3                // hosts that must fail alike before that is told
	reachLasted = 10 * time.Second // for which they must have failed before that is told
)

// A reachability tells whether most calls to different hosts fail alike, which is the fault of this machine or its
// network rather than theirs. It compares the last call to each of the reachHosts hosts that were called last.
type reachability struct {
	mu    sync.Mutex
	calls []lastCall // the latest last
	fault callFault  // with which most of them have failed; "": with none
	since time.Time
}

type lastCall struct {
	host  string
	at    time.Time
	fault callFault
}

// note records how a call has ended.
func (r *reachability) note(host string, fault callFault) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = slices.DeleteFunc(r.calls, func(c lastCall) bool { return c.host == host || now.Sub(c.at) > reachFor })
	if len(r.calls) == reachHosts {
		r.calls = slices.Delete(r.calls, 0, 1)
	}
	r.calls = append(r.calls, lastCall{host, now, fault})
	found := callFault("")
	for _, known := range callFaults {
		n := 0
		for _, c := range r.calls {
			if c.fault == known.fault {
				n++
			}
		}
		if 2*n > len(r.calls) && (n >= reachLeast || known.fault == r.fault) {
			found = known.fault
		}
	}
	if found != r.fault {
		r.fault, r.since = found, now
	}
}

// failing returns the fault with which most calls have failed for reachLasted, and since when; "": there is none.
func (r *reachability) failing() (fault callFault, since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fault == "" || time.Since(r.since) < reachLasted {
		return "", time.Time{}
	}
	return r.fault, r.since
}

// A connector is what the engines of payments and of books have in common: each works on the connections of
// accounts with outside systems, through clients of its own. Any number of goroutines may use it.
type connector struct {
	store     *store
	keys      func() *keyring
	log       *slog.Logger
	now       func() time.Time
	steady    func() time.Time // a clock that is never set
	noteFault func(fault string, err error, attrs ...any)
	doubted   func() bool   // server.clockDoubted, while which nothing is done that can't be undone
	off       bool          // nothing outside is asked: another service works on this database
	wake      chan struct{} // wakes the worker
}

// update is store.update for changes of rows that are never cached.
func (c *connector) update(ctx context.Context, f func(*tx) error) error {
	return c.store.update(ctx, func(t *tx) error {
		t.invalidate()
		return f(t)
	})
}

// wakeUp has the worker look for what is due.
func (c *connector) wakeUp() {
	select {
	case c.wake <- struct{}{}:
	default: // it has been woken and has not looked yet
	}
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
	maxSecret      = 200      // characters
)

// secretNames returns the form of each line of a file of secrets, such as "client_id=…", sorted.
func secretNames(fields map[string]*string) (lines []string) {
	for name := range fields {
		lines = append(lines, name+"=…")
	}
	slices.Sort(lines)
	return lines
}

// parseSecretLines parses text as parseSecrets does, into fields by name, all of which are required.
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
	for _, line := range secretNames(fields) {
		if *fields[strings.TrimSuffix(line, "=…")] == "" {
			return fmt.Errorf("a line %s is missing", line)
		}
	}
	return nil
}
