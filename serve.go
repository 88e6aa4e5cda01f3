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
	"os"
	"strconv"
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
		help: "most requests a minute from one address without a token, for leads, events, statistics, " +
			"licence calls with what has ended, and links to pay pages that there are not, each; " +
			"and for the pages of one order; ten times as many that ask for tokens and prove no application",
		hasVariable: true}
	optFailedLookupRate = option{name: "failed-lookup-rate", value: "N", def: "30",
		help: "most different licence keys that may fail a minute from one address, and as many proofs of " +
			"applications; above 1000: no limit",
		hasVariable: true}
	optAccessLog = option{name: "access-log",
		help: "log a line for each request, without addresses, paths, queries, keys or tokens", hasVariable: true}
)

// The command that serves. The demo command, which also serves, is in demo.go.
var serveCommands = []command{{"serve", "", "run the service", serveOptions, 0, serveCommand}}

// serveCommand runs the service until e.ctx ends.
func serveCommand(e *env) error {
	o, err := e.readServerOptions()
	if err != nil {
		return err
	}
	log, err := newLogger(e.stderr, e.str("log"))
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
	st, err := openStore(db, storeOptions{noCheckpoints: e.on("litestream")})
	if err != nil {
		return err
	}
	o.statusSocket, o.synchronised = socketPath(db), kernelSynchronised
	s, err := newServer(st, keys, o, log, e.nouns)
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
	return s.serveUntil(e.ctx, listener, keyFile)
}

// readServerOptions returns the options that the handlers need, or a usageError.
func (e *env) readServerOptions() (o serverOptions, err error) {
	if o.anonymousRate, err = e.number("anonymous-rate", 1, maxRateOption); err != nil {
		return o, err
	}
	if o.failedLookupRate, err = e.number("failed-lookup-rate", 1, maxRateOption); err != nil {
		return o, err
	}
	if o.nounOptions, err = e.readNounOptions(); err != nil {
		return o, err
	}
	o.accessLog = e.on("access-log")
	if o.trusted, err = parsePrefixes("trusted-proxies", e.commaList("trusted-proxies")); err != nil {
		return o, err
	}
	o.outboundAllow, err = parsePrefixes("outbound-allow", e.commaList("outbound-allow"))
	return o, err
}

// newLogger returns a logger that writes to w; format is "text" or "json".
func newLogger(w io.Writer, format string) (*slog.Logger, error) {
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, nil)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, nil)), nil
	}
	return nil, usageError(fmt.Sprintf("-log must be text or json, not %q", format))
}

// listen returns the socket that systemd passes to the process (sd_listen_fds(3)). If there
// is none, it listens on addr.
func listen(addr string, getenv func(string) string) (net.Listener, error) {
	const firstFD = 3
	passed := getenv("LISTEN_FDS")
	if getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) && passed != "" && passed != "0" {
		f := os.NewFile(firstFD, "LISTEN_FDS")
		defer f.Close() // FileListener duplicates it
		listener, err := net.FileListener(f)
		if err != nil {
			return nil, fmt.Errorf("use the socket passed by systemd: %w", err)
		}
		return listener, nil
	}
	listener, err := net.Listen("tcp", addr)
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
	s.log.Info("serving metrics and profiles", "addr", listener.Addr().String())
	return nil
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

// serveUntil answers requests on the listener until ctx ends or the listener fails, and then
// stops in order: health reports fail, the listener closes, requests that run or were
// already sent on an open connection are answered, the background goroutines end, the
// database is checkpointed and closed. It closes the store in every case. The service picks
// up changes of keyFile while it runs; "": no file.
func (s *server) serveUntil(ctx context.Context, listener net.Listener, keyFile string) error {
	conns := &connections{states: map[net.Conn]connection{}}
	web := &http.Server{Handler: s, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ConnState: conns.setState, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		DisableGeneralOptionsHandler: true} // its answer to OPTIONS * has no request id
	workers, stopWorkers := context.WithCancel(context.Background())
	defer stopWorkers()
	keys := s.watchKeys(keyFile)
	s.working.Go(func() { s.pollFiles(workers, keys) })
	s.working.Go(func() { s.runChores(workers) })
	for _, run := range s.workers {
		s.working.Go(func() { run(workers) })
	}

	stopStatus := s.startStatus()
	s.log.Info("serving", "addr", listener.Addr().String(), "base_url", s.routing.Load().bases[0].URL,
		"release", buildName())

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
	s.logNotices(true)
	s.reviewFaults(true)
	err = errors.Join(failed, err, s.runFinalChores(), s.store.close())
	s.log.Info("stopped")
	return err
}
