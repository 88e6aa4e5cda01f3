package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	drainQuiet  = 100 * time.Millisecond // a drain ends when no connection was new or active for so long
	drainSilent = time.Second            // a drain gives up new connections that sent no byte for so long
)

// connections tracks which connections are new or active. A stop waits for those before it
// calls http.Server.Shutdown, which would close connections with requests that have already
// been sent but not yet been read (golang/go#65805).
type connections struct {
	mu      sync.Mutex
	states  map[net.Conn]connection // the new and active ones
	changed atomic.Int64            // how often a connection became new or active
}

type connection struct {
	state http.ConnState
	since time.Time // when it entered that state
}

// setState records a connection's state. It is the server's ConnState callback.
func (c *connections) setState(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state != http.StateNew && state != http.StateActive {
		delete(c.states, conn)
		return
	}
	c.states[conn] = connection{state, time.Now()}
	c.changed.Add(1)
}

// busy returns how many connections are new or active.
func (c *connections) busy() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.states)
}

// closeSilent closes the read side of connections that have been open for drainSilent
// without sending a byte. Bytes that have arrived by then are still read and answered.
func (c *connections) closeSilent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn, current := range c.states {
		half, ok := conn.(interface{ CloseRead() error })
		if ok && current.state == http.StateNew && time.Since(current.since) >= drainSilent {
			half.CloseRead() // fails only when the client has gone
		}
	}
}

// waitIdle returns once no connection has been new or active for drainQuiet, or when ctx ends.
func (c *connections) waitIdle(ctx context.Context) {
	for {
		before := c.changed.Load()
		select {
		case <-ctx.Done():
			return
		case <-time.After(drainQuiet):
		}
		if c.busy() == 0 && c.changed.Load() == before {
			return
		}
		c.closeSilent()
	}
}

// The options of the serve command.
var (
	optTrustedProxies = option{name: "trusted-proxies", value: "CIDR,…", def: "127.0.0.0/8,::1/128",
		help: "proxies whose X-Forwarded-For is trusted, as networks or addresses", hasVariable: true}
	optDebugAddr = option{name: "debug-addr", value: "HOST:PORT",
		help:        "loopback address for /metrics and /debug/pprof/; by default they are not served",
		hasVariable: true}
	optAnonymousRate = option{name: "anonymous-rate", value: "N", def: "60",
		help: "most requests a minute from one address without a token, for leads, statistics that are not in " +
			"memory, licence calls with what has ended, and links to pay pages that do not exist, each; " +
			"and for the pages of one order; ten times as many that ask for tokens and prove no application",
		hasVariable: true}
	optVisitorRate = option{name: "visitor-rate", value: "N", def: "600",
		help: "most events a minute of one widget from one address, from sites of the widget's account: " +
			"the visitors of an office share an address",
		hasVariable: true}
	optFailedLookupRate = option{name: "failed-lookup-rate", value: "N", def: "30",
		help: "most different licence keys that may fail a minute from one address, and as many proofs of " +
			"applications; above 1000: no limit",
		hasVariable: true}
	optAccessLog = option{name: "access-log",
		help: "log a line for each request, without addresses, paths, queries, keys or tokens", hasVariable: true}
)

// The command that serves. The demo command, which also serves, is in demo.go.
var serveCommands = []command{{"serve", "", "run the service", serveOptions, serveCommand}}

// serveCommand runs the service until e.ctx ends.
func serveCommand(e *env) error {
	o, err := e.readServerOptions()
	if err != nil {
		return err
	}
	log, err := newLogger(e.stderr, e.str("log"), isJournal(e.stderr, e.getenv))
	if err != nil {
		return err
	}
	keyFile, keys, err := e.loadKeys()
	if err != nil {
		return err
	}
	db, err := e.file("db")
	if err != nil {
		return err
	}
	listener, err := e.listen()
	if err != nil {
		return err
	}
	st, of := absentStore(db), []noun(nil) // the standby's
	if !e.on("standby") {
		of = e.nouns
		if st, err = e.openServed(db, log); err != nil {
			return errors.Join(err, listener.Close())
		}
		if o.noRoots = noRoots(e.getenv); o.noRoots {
			log.Warn(noRootsText, "advice", callFaults[callUnverified])
		}
	}
	o.statusSocket, o.synchronised = socketPath(db), kernelSynchronised
	s, err := newServer(st, keys, o, log, of)
	switch {
	case err != nil:
	case st.standsBy():
		s.standBy(e.getenv("LITESTREAM_CONFIG"))
	default:
		_, err = s.joinPair(e.str("peer"))
	}
	if err == nil {
		err = s.startDebug(e.str("debug-addr"))
	}
	if err != nil {
		return errors.Join(err, listener.Close(), st.close())
	}
	if wasKilled(db) {
		err = noteUnasked(db, e.now())
	}
	if err != nil {
		log.Warn("a start that nobody asked for can't be noted", "error", err)
	}
	return s.serveUntil(e.ctx, listener, keyFile)
}

// openServed opens the database for the service.
func (e *env) openServed(db string, log *slog.Logger) (*store, error) {
	st, err := openStore(db, storeOptions{noCheckpoints: e.on("litestream")})
	if err != nil {
		return nil, err
	}
	if err := st.refuseDemo(st.path); err != nil {
		return nil, errors.Join(err, st.close())
	}
	if err := st.settleIdentityFile(true); err != nil {
		log.Warn("a write-ahead log of another file would not be noticed at the next start", "error", err)
	}
	return st, nil
}

// readServerOptions returns the options that the handlers need, or a usageError.
func (e *env) readServerOptions() (o serverOptions, err error) {
	if o.anonymousRate, err = e.number("anonymous-rate", 1, maxRateOption); err != nil {
		return o, err
	}
	if o.visitorRate, err = e.number("visitor-rate", 1, maxRateOption); err != nil {
		return o, err
	}
	if o.failedLookupRate, err = e.number("failed-lookup-rate", 1, maxRateOption); err != nil {
		return o, err
	}
	if o.nounOptions, err = e.readNounOptions(); err != nil {
		return o, err
	}
	o.accessLog, o.supervisor = e.on("access-log"), notifySocket(e.getenv("NOTIFY_SOCKET"))
	if o.trusted, err = parsePrefixes("trusted-proxies", e.commaList("trusted-proxies")); err != nil {
		return o, err
	}
	o.urls = e.values
	o.outboundAllow, err = parsePrefixes("outbound-allow", e.commaList("outbound-allow"))
	return o, err
}

// listen returns the socket that systemd passes to the process (sd_listen_fds(3)). If there
// is none, it listens on -addr: a port, or unix:PATH, a socket for programs of this user and of the group of the file.
func (e *env) listen() (listener net.Listener, err error) {
	const firstFD = 3
	passed := e.getenv("LISTEN_FDS")
	if e.getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) && passed != "" && passed != "0" {
		f := os.NewFile(firstFD, "LISTEN_FDS")
		defer f.Close() // FileListener duplicates it
		listener, err := net.FileListener(f)
		if err != nil {
			return nil, fmt.Errorf("use the socket passed by systemd: %w", err)
		}
		return listener, nil
	}
	if path, isUnix := strings.CutPrefix(e.str("addr"), "unix:"); isUnix {
		if path, err = e.target(path); err != nil {
			return nil, err
		}
		listener, err = listenUnix(path, 0o660)
	} else {
		listener, err = net.Listen("tcp", e.str("addr"))
	}
	if err != nil {
		return nil, fmt.Errorf("listen: %w: choose another address with -addr", err)
	}
	return listener, nil
}

// startDebug serves metrics and profiles on a loopback address until the service stops. For
// "" it does nothing; another address that is not loopback is a usageError.
func (s *server) startDebug(addr string) error {
	if addr == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(addr)
	if address := parseAddress(host); err != nil || host != "localhost" && !address.IsLoopback() {
		return usageError("-debug-addr must be a loopback address such as 127.0.0.1:6060: it needs no password")
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen on -debug-addr: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", s.metricsPage())
	mux.HandleFunc("GET /debug/pprof/{name}", serveProfile)
	s.debug = &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	s.working.Go(func() { s.debug.Serve(listener) })
	s.log.Info("serving metrics and profiles", "addr", listener.Addr().String())
	return nil
}

// serveProfile serves a profile of this program for "go tool pprof": "profile" is that of the processor for so many
// seconds, 30 by default; the others are those of runtime/pprof, with ?debug=1 as text. It is what net/http/pprof does,
// which would make the program a hundredth larger.
func serveProfile(w http.ResponseWriter, r *http.Request) {
	name, kind := r.PathValue("name"), pprof.Lookup(r.PathValue("name"))
	debug, _ := strconv.Atoi(r.FormValue("debug"))
	if debug == 0 {
		w.Header().Set("Content-Type", "application/octet-stream")
	}
	switch {
	case kind != nil:
		kind.WriteTo(w, debug) // a write error is the caller's
	case name != "profile":
		http.Error(w, "there is no such profile", http.StatusNotFound)
	default:
		seconds, err := strconv.Atoi(cmp.Or(r.FormValue("seconds"), "30"))
		if err == nil {
			err = pprof.StartCPUProfile(w)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		select {
		case <-time.After(time.Duration(seconds) * time.Second):
		case <-r.Context().Done():
		}
		pprof.StopCPUProfile()
	}
}

// The time-outs of a connection, and the size of a request's header.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 10 * time.Second
	writeTimeout   = 20 * time.Second
	idleTimeout    = 60 * time.Second
	maxHeaderBytes = 16 << 10

	stopTimeout = 22 * time.Second // for the drain: a little more than writeTimeout
)

// warnOfForeign logs which secrets can't be used, since another key file sealed them.
func (s *server) warnOfForeign() {
	for _, foreign := range foreignOf(s.nouns) {
		lines, err := foreign(s.store.queries, s.keys.Load())
		if err != nil {
			s.log.Warn("secrets can't be read", "error", err)
		}
		for _, line := range lines {
			s.log.Warn(line)
		}
	}
}

// serveUntil answers requests on the listener until ctx ends or the listener fails, and then
// stops in order: health reports fail, the listener closes, requests that run or were
// already sent on an open connection are answered, the background goroutines end, the
// database is checkpointed and closed. It closes the store in every case. The service picks
// up changes of keyFile while it runs; "": no file.
func (s *server) serveUntil(ctx context.Context, listener net.Listener, keyFile string) error {
	conns := &connections{states: map[net.Conn]connection{}}
	web := newWeb(s, s.log)
	web.ConnState = conns.setState
	workers, stopWorkers := context.WithCancel(context.Background())
	defer stopWorkers()
	s.followKeys(keyFile) // which may have changed since it was loaded
	s.startProofs()
	s.working.Go(func() { s.pollFiles(workers, keyFile) })
	s.working.Go(func() { s.runChores(workers) })
	s.working.Go(s.warnOfForeign)
	for _, run := range s.workers {
		s.working.Go(func() { run(workers) })
	}

	stopStatus := s.startStatus()
	as := slog.String("role", "standby")
	if !s.store.standsBy() {
		as = slog.String("base_url", s.routing.Load().bases[0].URL)
	}
	s.log.Info("serving", "addr", listener.Addr().String(), as, "release", buildName())

	served := make(chan error, 1)
	s.working.Go(func() { served <- web.Serve(listener) })
	s.supervisor.tell("READY=1", s.log)
	var failed error
	select {
	case failed = <-served:
		s.log.Error("the listener failed", "error", failed.Error())
	case <-ctx.Done():
		s.log.Info("stopping")
	}
	s.supervisor.tell("STOPPING=1", s.log)
	s.draining.Store(true)
	close(s.stopping)
	listener.Close()
	drain, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	conns.waitIdle(drain)
	err := web.Shutdown(drain)
	stopWorkers()
	stopStatus()
	if s.debug != nil {
		s.debug.Close()
	}
	s.working.Wait()
	s.outbound.close()
	err = errors.Join(failed, err, s.runFinalChores(), s.store.close())
	s.repeats.passAll()
	s.log.Info("stopped")
	return err
}

// newWeb returns a server of HTTP with the time-outs of this service.
func newWeb(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		DisableGeneralOptionsHandler: true} // its answer to OPTIONS * has no request id
}

// What runs in the background of the service: polling the files for changes, and the chores of
// the modules, such as time-driven transitions (lapsed seats, expiry).

const (
	upkeepInterval     = time.Second     // between two polls, and between two runs of the chores
	sweepInterval      = time.Minute     // between two sweeps, and two tries to truncate the WAL
	finalChoresTimeout = 5 * time.Second // for the chores that run at the stop
)

// pollFiles picks up changes of the key file and of the base addresses, and checks the header
// of the database and the size of its WAL, every upkeepInterval until ctx ends. It only reads the database, so that
// a write lock does not delay it.
func (s *server) pollFiles(ctx context.Context, keyFile string) {
	every(ctx, upkeepInterval, func() {
		s.followKeys(keyFile)
		s.store.recheckHeader()
		s.lookForFollower()
		s.warnOfState()
		if err := s.refresh(); err != nil {
			s.log.Warn("the base addresses can't be read", "error", err)
		}
	})
}

// runChores runs the chores of every module every upkeepInterval until ctx ends. Every
// sweepInterval it also removes all expired rows, and truncates the WAL if erased data may still
// be in it, and writes to the file what the clock shows. While the clock is doubted, time-driven chores and
// sweeps are skipped.
func (s *server) runChores(ctx context.Context) {
	lastRun := s.readClocks()
	lastSweep, lastTruncate := lastRun.monotonic, lastRun.monotonic
	sweepDue := false
	s.followClock()
	every(ctx, upkeepInterval, func() {
		read := s.readClocks()
		now := read.monotonic
		if s.store.walNeedsTruncate.Load() && !closerThan(sweepInterval, lastTruncate, now) {
			lastTruncate = now
			s.scrubWAL(0)
		}
		adjustment := clockAdjustment(lastRun, read)
		if lastRun = read; adjustment.Abs() >= clockJump {
			s.log.Warn("the clock was set", "by", adjustment.String())
		}
		s.followClock()
		s.recordClock(ctx, sweepInterval)
		for _, c := range s.chores {
			if s.store.fenced() || c.timeDriven && s.clockDoubted() {
				continue
			}
			if err := c.run(ctx); err != nil {
				s.log.Warn(c.fault, "error", err)
			}
		}
		if !closerThan(sweepInterval, lastSweep, now) {
			lastSweep, sweepDue = now, true
			s.checkHealth() // for the metrics, which do not ask the database themselves
		}
		if sweepDue && !s.clockDoubted() && !s.store.fenced() {
			sweepDue = s.sweep(ctx, now.Add(upkeepInterval))
		}
	})
}

// sweep removes rows whose retention has ended until none is left, in short transactions that let other writers in
// between (contract, section 10): expired answers to Idempotency-Keys, and what the modules' sweeps remove. At until,
// by the monotonic clock, it stops, so that the chores get their turn, and reports that more is left.
func (s *server) sweep(ctx context.Context, until time.Time) (more bool) {
	for _, remove := range append([]func(*tx) (int64, error){(*tx).sweep}, s.sweeps...) {
		_, err := s.store.updateInParts(ctx, s.store.limits.swept, func(t *tx) (int64, error) {
			if more = !s.monotonic().Before(until); more {
				return 0, nil
			}
			return remove(t)
		})
		if err != nil && ctx.Err() == nil {
			s.log.Warn("expired rows can't be removed", "error", err)
		}
		if more || err != nil {
			return more && err == nil
		}
	}
	return false
}

// runFinalChores runs the chores that are due when the service stops, and writes the time to the file. They get a
// time-out of their own, because waiting for requests may have used up the time-out of the stop.
func (s *server) runFinalChores() error {
	ctx, cancel := context.WithTimeout(context.Background(), finalChoresTimeout)
	defer cancel()
	var errs []error
	for _, c := range s.chores {
		if c.atEnd {
			errs = append(errs, c.run(ctx))
		}
	}
	s.recordClock(ctx, time.Second)
	return errors.Join(errs...)
}

// warnOfState warns of a large WAL, and that most calls to different hosts fail alike, as long as that lasts.
func (s *server) warnOfState() {
	if s.store.walSize() > s.store.maxWAL {
		s.log.Warn(s.walReason())
	}
	if fault, since := s.outbound.reach.failing(); fault != "" {
		s.log.Warn(callsFailAlike, "why", string(fault), "since", newStamp(since).String(), "advice", callFaults[fault])
	}
}

// followKeys loads the key file at a path, each second; "": there is none. While the file can't be used, the keys in
// memory stay in use, health warns, and so does the log. The file is never written: a missing one is for the operator
// to restore (contract, section 10).
func (s *server) followKeys(path string) {
	if path == "" {
		return
	}
	keys, err := loadKeyring(path)
	if s.keysStale.Store(err != nil); err != nil {
		s.log.Warn(faultKeyFile, "error", err)
		return
	}
	if old := s.keys.Load(); slices.Equal(old.kids(), keys.kids()) && bytes.Equal(old.secret, keys.secret) {
		return
	}
	s.keys.Store(keys)
	s.log.Info("loaded the key file", "signing", keys.signer().kid, "keys", len(keys.keys))
}
