package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	drainQuiet  = 100 * time.Millisecond // without a new or active connection
	drainSilent = time.Second            // without a byte on a new connection, until nobody waits for one
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

func (c *connections) setState(conn net.Conn, state http.ConnState) {
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

// closeSilent ends the reading from connections that were opened a while ago and have
// not brought a byte. What has arrived by then is still read and answered.
func (c *connections) closeSilent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn, is := range c.states {
		half, ok := conn.(interface{ CloseRead() error })
		if ok && is.state == http.StateNew && time.Since(is.since) >= drainSilent {
			half.CloseRead() // an error is the caller's absence
		}
	}
}

// waitIdle returns once no connection has been new or active for a while, or ctx
// ends.
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

// The options of these commands.
var (
	optTrustedProxies   = option{name: "trusted-proxies", value: "CIDR,…", def: "127.0.0.0/8,::1/128", help: "proxies whose X-Forwarded-For counts"}
	optDebugAddr        = option{name: "debug-addr", value: "HOST:PORT", help: "loopback address for /metrics and /debug/pprof/"}
	optAnonymousRate    = option{name: "anonymous-rate", value: "N", def: "60", help: "requests a minute and address without a token, each on leads, events and statistics"}
	optFailedLookupRate = option{name: "failed-lookup-rate", value: "N", def: "30", help: "unknown licence keys a minute and address"}
	optLegacySunset     = option{name: "legacy-sunset", value: "DATE", def: "2026-07-01", help: "day from which /api/legacy/ is gone"}
)

// wings are the parts of the service, noun by noun.
func wings(s *server) []wing {
	return []wing{leadWing(s), licenseWing(s), deviceWing(s), widgetWing(s), eventWing(s), healthWing(s), keyWing(s), legacyWing(s)}
}

// problems are the codes of every noun.
func problems() []*problemCode {
	return slices.Concat(coreProblems, authProblems, accountProblems, corsProblems, idempotencyProblems, licenseProblems, deviceProblems,
		widgetProblems, legacyProblems)
}

// eventTypes are the types of events of every noun.
func eventTypes() []eventType {
	return slices.Concat(leadEvents, licenseEvents, deviceEvents)
}

// The commands that serve; the demo has its own.
var serveCommands = []command{
	{"serve", "", "run the service", []option{optAddr, optTrustedProxies, optDebugAddr, optAnonymousRate, optFailedLookupRate, optLegacySunset, optLitestream, optLog}, 0, serveCommand},
}

// serveCommand runs the service until the context ends.
func serveCommand(e *env) error {
	o, err := e.readServerOptions()
	if err != nil {
		return err
	}
	log, err := newLogger(e.stderr, e.str("log"))
	if err != nil {
		return err
	}
	keys, err := loadKeyring(e.str("key"))
	if err != nil {
		return err
	}
	st, err := openStore(e.str("db"), storeOptions{keepLog: e.on("litestream")})
	if err != nil {
		return err
	}
	s, err := newServer(st, keys, o, log, wings)
	if err != nil {
		return errors.Join(err, st.close())
	}
	listener, err := listen(e.str("addr"), e.getenv)
	if err != nil {
		return errors.Join(err, st.close())
	}
	if err := s.startDebug(e.str("debug-addr")); err != nil {
		return errors.Join(err, listener.Close(), st.close())
	}
	log.Info("serving", "addr", listener.Addr().String(), "base_url", s.routing.Load().bases[0].URL, "release", buildName())
	return s.serveUntil(e.ctx, listener, e.str("key"))
}

func (e *env) readServerOptions() (o serverOptions, err error) {
	if o.anonymousRate, err = e.number("anonymous-rate", 1, 1_000_000); err != nil {
		return o, err
	}
	if o.failedLookupRate, err = e.number("failed-lookup-rate", 1, 1_000_000); err != nil {
		return o, err
	}
	if o.legacySunset, err = time.Parse(time.DateOnly, e.str("legacy-sunset")); err != nil {
		return o, usageError(fmt.Sprintf("-legacy-sunset must be a date as 2026-07-01, not %q", e.str("legacy-sunset")))
	}
	o.trusted, err = parsePrefixes(e.commaList("trusted-proxies"))
	return o, err
}

func newLogger(w io.Writer, format string) (*slog.Logger, error) {
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, nil)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, nil)), nil
	}
	return nil, usageError(fmt.Sprintf("-log must be text or json, not %q", format))
}

func parsePrefixes(texts []string) (all []netip.Prefix, err error) {
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			address := parseAddress(text)
			if !address.IsValid() {
				return nil, usageError(fmt.Sprintf("-trusted-proxies: %q is not an address or a CIDR", text))
			}
			prefix = netip.PrefixFrom(address, address.BitLen())
		}
		all = append(all, prefix)
	}
	return all, nil
}

// listen takes the socket that systemd hands over (sd_listen_fds(3)), else makes one.
func listen(addr string, getenv func(string) string) (net.Listener, error) {
	const firstFD = 3
	if getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) && getenv("LISTEN_FDS") != "" && getenv("LISTEN_FDS") != "0" {
		f := os.NewFile(firstFD, "LISTEN_FDS")
		defer f.Close() // FileListener has its own copy
		listener, err := net.FileListener(f)
		if err != nil {
			return nil, fmt.Errorf("take the socket that systemd hands over: %w", err)
		}
		return listener, nil
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen: %w: name another address with -addr", err)
	}
	return listener, nil
}

// startDebug serves metrics and profiles on a loopback address until the service stops.
func (s *server) startDebug(addr string) error {
	if addr == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(addr)
	if address := parseAddress(host); err != nil || host != "localhost" && !address.IsLoopback() {
		return usageError("-debug-addr must be a loopback address, as 127.0.0.1:6060: what it shows is not for everybody")
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen for debugging: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		s.writeMetrics(w)
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	s.debug = &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	s.working.Go(func() { s.debug.Serve(listener) })
	s.log.Info("debugging", "addr", listener.Addr().String())
	return nil
}

// What a client may take its time with.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 10 * time.Second
	writeTimeout   = 20 * time.Second
	idleTimeout    = 60 * time.Second
	maxHeaderBytes = 16 << 10

	stopTimeout = 22 * time.Second // a little more than a write may take
)

// serveUntil answers on the listener until ctx ends, then stops in order: health
// fails, the listener closes, what is under way or was already sent on an open
// connection is answered, workers stop, the database is checkpointed and closed.
// It closes the store. keyFile is followed; "" follows none.
func (s *server) serveUntil(ctx context.Context, listener net.Listener, keyFile string) error {
	conns := &connections{states: map[net.Conn]connection{}}
	web := &http.Server{Handler: s, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes, ConnState: conns.setState,
		ErrorLog:                     slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		DisableGeneralOptionsHandler: true} // its answer to OPTIONS * has no request id
	workers, stopWorkers := context.WithCancel(context.Background())
	defer stopWorkers()
	s.working.Go(func() { s.pollFiles(workers, keyFile) })
	s.working.Go(func() { s.runChores(workers) })

	served := make(chan error, 1)
	s.working.Go(func() { served <- web.Serve(listener) })
	var failed error
	select {
	case failed = <-served:
		s.log.Error("the listener failed", "error", failed.Error())
	case <-ctx.Done():
		s.log.Info("stopping")
	}
	s.draining.Store(true)
	listener.Close()
	patience, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	conns.waitIdle(patience) // Shutdown alone would drop what was already sent (golang/go#65805)
	err := web.Shutdown(patience)
	stopWorkers()
	if s.debug != nil {
		s.debug.Close()
	}
	s.working.Wait()
	err = errors.Join(failed, err, s.runFinalChores(), s.store.close())
	s.log.Info("stopped")
	return err
}
