// Widgetd is the public widget and licensing interface of a family of
// delivery-software products: one binary, one SQLite file. See README.md.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	_ "time/tzdata" // a small server may not have the time zones
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	var usage usageError
	switch {
	case errors.As(err, &usage):
		fmt.Fprintln(os.Stderr, "widgetd:", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "widgetd:", err)
		os.Exit(1)
	}
}

// A usageError says how a command line is wrong.
type usageError string

func (u usageError) Error() string { return string(u) }

// An option is a flag, an environment variable WIDGETD_…, a line of the help and a
// row of the README at once.
type option struct {
	name  string // of the flag; upper-cased with _ for -, of the variable
	value string // what stands for the value in the help; "": a switch
	def   string // the default
	help  string
}

func (o option) env() string {
	return "WIDGETD_" + strings.ToUpper(strings.ReplaceAll(o.name, "-", "_"))
}

// options is every option of every command.
var options = []option{
	{"db", "FILE", "widgetd.db", "the database file"},
	{"key", "FILE", "widgetd.key", "the key file"},
	{"json", "", "", "print JSON, one object or one a line, for scripts"},
	{"base-url", "URL", "http://127.0.0.1:8080/v1", "the address that callers use, ending in /v1"},
	{"name", "NAME", "main", "name of the main account"},
	{"origin", "ORIGIN,…", "", "origins of the main account's sites"},
	{"addr", "HOST:PORT", "127.0.0.1:8080", "where to listen; ignored under systemd socket activation"},
	{"trusted-proxies", "CIDR,…", "127.0.0.0/8,::1/128", "proxies whose X-Forwarded-For counts"},
	{"debug-addr", "HOST:PORT", "", "loopback address for /metrics and /debug/pprof/"},
	{"anonymous-rate", "N", "60", "requests a minute and address without a token, each on leads, events and statistics"},
	{"failed-lookup-rate", "N", "30", "unknown licence keys a minute and address"},
	{"legacy-sunset", "DATE", "2026-07-01", "day from which /api/legacy/ is gone"},
	{"litestream", "", "", "leave checkpoints to Litestream"},
	{"log", "FORMAT", "text", "text or json, on standard error"},
	{"dir", "DIR", "", "directory to keep; by default a temporary one"},
	{"account", "ID", "", "whose it is"},
	{"product", "NAME", "", "what the licence is for"},
	{"plan", "NAME", "", "how it was sold"},
	{"max-devices", "N", "", "seats; without it there is no limit"},
	{"starts", "TIME", "", "not before: a date, RFC 3339, or days from now as 7d"},
	{"expires", "TIME", "", "not after: a date, RFC 3339, or days from now as 365d"},
	{"grace-days", "N", "0", "days that known devices go on after the end"},
	{"lease-hours", "N", "336", "how long a device may work offline, 1 to 2160"},
	{"entitlements", "CODE,…", "", "what the licence includes"},
	{"trial", "", "", "mark the licence as a trial"},
	{"metadata", "JSON", "", "notes of your own, as a JSON object of at most 16 KiB"},
	{"reason", "TEXT", "", "why, for people and the audit"},
	{"public-orders", "", "", "show the widget's orders without a token too"},
	{"scope", "SCOPE…", "", "what the token may do, space-separated: " + strings.Join(grantableScopes, " ")},
	{"ttl", "DURATION", "720h", "how long the token holds: 720h, 90d"},
	{"client-id", "ID", "", "name of the application that carries the token; by default the account's id"},
	{"all-accounts", "", "", "let the token name any account by ?account_id="},
	{"floating", "", "", "seats are held by leases: one that lapses is free again"},
	{"max-transfers", "N", "", "how often the owner may move a seat in 30 days; without it there is no limit"},
	{"duration-days", "N", "", "length of a term"},
	{"from-activation", "", "", "let the duration count from the first activation"},
	{"days", "N", "", "how many days more; by default the licence's own duration"},
	{"old-key-until", "TIME", "", "how long the old key still works: a date, RFC 3339, or 7d; without it, until now"},
	{"dry-run", "", "", "check everything, change nothing"},
	{"no-copy", "", "", "write no copy of the database before it is upgraded"},
	{"status", "STATUS", "", "only licences that are now " + strings.Join(statuses, ", ")},
	{"search", "TEXT", "", "only licences with this in product, plan, id or the key's last symbols"},
	{"type", "NAME", "", "only events of this type"},
	{"license", "ID", "", "only of this licence"},
	{"device", "ID", "", "only of this device"},
	{"since", "TIME", "", "only from then on: a date, RFC 3339, or 7d for the last seven days"},
	{"public", "FILE", "", "PEM file with the public keys, as 'widgetd key public' prints them"},
	{"fingerprint", "TEXT", "", "the device's fingerprint, to compare"},
	{"audience", "URL", "", "the service's base address, to compare"},
	{"force", "", "", "go on where the command would stop and explain"},
	{"csv", "", "", "print CSV"},
	{"older-than", "DURATION", "", "age, as 365d"},
	{"widget", "ID", "", "one widget; by default all"},
	{"limit", "N", "50", "how many to show"},
}

// A command is one word or two of the command line.
type command struct {
	name    string
	args    string // what follows, for the help
	help    string
	options []string // beside those of all commands
	nargs   int      // how many arguments it takes
	run     func(*env) error
}

// commands is every command.
var commands []command

func init() { // a variable's initialiser could not refer to help, which reads it
	commands = slices.Concat([]command{
		{"init", "", "make the database, the key file and the main account; existing ones are never touched", []string{"base-url", "name", "origin"}, 0, initCommand},
		{"serve", "", "run the service", []string{"addr", "trusted-proxies", "debug-addr", "anonymous-rate", "failed-lookup-rate", "legacy-sunset", "litestream", "log"}, 0, serveCommand},
		{"demo", "", "run a service with data, a page to look at, and curl lines to paste", []string{"addr", "dir", "log"}, 0, demoCommand},
	}, adminCommands, licenseCommands, []command{
		{"version", "", "tell which build this is", nil, 0, func(e *env) error { return e.print(map[string]string{"version": buildName()}, buildName()) }},
		{"help", "[COMMAND]", "show this, or what a command takes", nil, 0, func(e *env) error { return help(e.stdout) }},
	})
}

// commonOptions are those that every command takes.
var commonOptions = []string{"db", "key", "json"}

// An env is what a command runs in: its values, its arguments, and the world.
type env struct {
	ctx            context.Context
	getenv         func(string) string
	stdout, stderr io.Writer
	command        *command
	args           []string
	values         map[string]*string
	switches       map[string]*bool
	now            func() time.Time
}

// str returns an option's value.
func (e *env) str(name string) string { return *e.values[name] }

// on returns whether a switch is set.
func (e *env) on(name string) bool { return *e.switches[name] }

// list returns the comma-separated parts of an option's value.
func (e *env) list(name string) []string {
	return strings.FieldsFunc(e.str(name), func(r rune) bool { return r == ',' || r == ' ' })
}

// number returns an option that is a number from low to high.
func (e *env) number(name string, low, high int) (int, error) {
	n, err := strconv.Atoi(e.str(name))
	if err != nil || n < low || n > high {
		return 0, usageError(fmt.Sprintf("-%s must be a number from %d to %d, not %q", name, low, high, e.str(name)))
	}
	return n, nil
}

// optionalNumber is number for an option that may be empty: then nil.
func (e *env) optionalNumber(name string, low, high int) (*int, error) {
	if e.str(name) == "" {
		return nil, nil
	}
	n, err := e.number(name, low, high)
	return &n, err
}

// run is the program: it does what args say, with the environment of getenv, and
// returns when that is done or ctx ends. A usageError means that args are wrong.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	syscall.Umask(0o077) // whatever is made is for this user only
	if len(args) == 0 {
		help(stderr)
		return usageError("a command is missing")
	}
	if isHelp(args[0]) {
		return help(stdout)
	}
	if args[0] == "help" && len(args) > 1 && !strings.HasPrefix(args[1], "-") {
		args = append(args[1:len(args):len(args)], "-h")
	}
	cmd, rest := findCommand(args)
	if cmd == nil {
		return unknownCommand(args, stdout, stderr)
	}
	e := &env{ctx: ctx, getenv: getenv, stdout: stdout, stderr: stderr, command: cmd, now: time.Now}
	if err := e.parse(rest); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return commandHelp(stdout, cmd)
		}
		return err
	}
	return cmd.run(e)
}

func isHelp(arg string) bool { return slices.Contains([]string{"-h", "-help", "--help"}, arg) }

// unknownCommand answers a line that names no whole command: with the commands that
// begin with its first word, if there are some.
func unknownCommand(args []string, stdout, stderr io.Writer) error {
	words := args[:1]
	if len(args) > 1 && !strings.HasPrefix(args[1], "-") {
		words = args[:2]
	}
	known := slices.ContainsFunc(commands, func(c command) bool { return c.within(args[0]) })
	switch {
	case known && len(words) == 1 && slices.ContainsFunc(args, isHelp):
		fmt.Fprintf(stdout, "widgetd %s has these commands; each shows its options with -h:\n\n", args[0])
		listCommands(stdout, args[0])
		return nil
	case known && len(words) == 1:
		listCommands(stderr, args[0])
		return usageError(args[0] + " needs a second word: these are its commands")
	case known:
		return usageError(fmt.Sprintf("there is no command %q: 'widgetd help %s' lists them", strings.Join(words, " "), args[0]))
	}
	return usageError(fmt.Sprintf("there is no command %q: 'widgetd help' lists them", strings.Join(words, " ")))
}

// findCommand takes the longest name that args begin with.
func findCommand(args []string) (*command, []string) {
	for words := min(2, len(args)); words > 0; words-- {
		name := strings.Join(args[:words], " ")
		for i := range commands {
			if commands[i].name == name {
				return &commands[i], args[words:]
			}
		}
	}
	return nil, nil
}

// parse reads flags and arguments in any order. A flag wins over its variable.
func (e *env) parse(args []string) error {
	fs := flag.NewFlagSet(e.command.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	e.values, e.switches = map[string]*string{}, map[string]*bool{}
	for _, o := range options {
		if !slices.Contains(commonOptions, o.name) && !slices.Contains(e.command.options, o.name) {
			continue
		}
		set := e.getenv(o.env())
		if o.value == "" {
			on, err := strconv.ParseBool(cmp.Or(set, "false"))
			if err != nil {
				return usageError(fmt.Sprintf("%s must be true or false, not %q", o.env(), set))
			}
			e.switches[o.name] = fs.Bool(o.name, on, o.help)
			continue
		}
		v := &onceValue{value: cmp.Or(set, o.def)}
		e.values[o.name] = &v.value
		fs.Var(v, o.name, o.help)
	}
	for {
		if err := fs.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return err
			}
			return usageError(fmt.Sprintf("%s: %v", e.command.name, err))
		}
		if fs.NArg() == 0 {
			break
		}
		e.args = append(e.args, fs.Arg(0))
		if args = fs.Args()[1:]; len(args) == 0 {
			break
		}
	}
	if len(e.args) != e.command.nargs {
		return usageError(fmt.Sprintf("this is used as: widgetd %s", e.command.usage()))
	}
	return nil
}

// A onceValue is a flag's text. Given twice it is refused: the first would be lost
// without a word.
type onceValue struct {
	value string
	given bool
}

func (v *onceValue) String() string { return v.value }

func (v *onceValue) Set(s string) error {
	if v.given {
		return errors.New("it stands there twice; a list is one value, with commas")
	}
	v.value, v.given = s, true
	return nil
}

// within reports whether the command's name begins with a word and goes on.
func (c *command) within(word string) bool { return strings.HasPrefix(c.name, word+" ") }

func (c *command) usage() string {
	usage := c.name
	if c.args != "" {
		usage += " " + c.args
	}
	for _, name := range c.options {
		o := findOption(name)
		usage += " [-" + strings.TrimSuffix(o.name+" "+o.value, " ") + "]"
	}
	return usage
}

func findOption(name string) option {
	return options[slices.IndexFunc(options, func(o option) bool { return o.name == name })]
}

// help lists commands and options.
func help(w io.Writer) error {
	fmt.Fprintln(w, "widgetd is the public widget and licensing interface. Its commands:")
	fmt.Fprintln(w)
	listCommands(w, "")
	fmt.Fprintln(w, "\nIts options, also as environment variables; 'widgetd help COMMAND' shows which one takes which:")
	fmt.Fprintln(w)
	for _, o := range options {
		writeOption(w, o)
	}
	return nil
}

// listCommands lists the commands that begin with a word, or all.
func listCommands(w io.Writer, word string) {
	for _, c := range commands {
		if word == "" || c.within(word) {
			fmt.Fprintf(w, "  %-34s %s\n", strings.TrimSuffix(c.name+" "+c.args, " "), c.help)
		}
	}
}

func commandHelp(w io.Writer, c *command) error {
	fmt.Fprintf(w, "widgetd %s\n\n  %s\n\n", strings.TrimSuffix(c.name+" "+c.args, " "), c.help)
	for _, o := range options {
		if slices.Contains(c.options, o.name) || slices.Contains(commonOptions, o.name) {
			writeOption(w, o)
		}
	}
	if slices.ContainsFunc(commands, func(other command) bool { return other.within(c.name) }) {
		fmt.Fprintln(w)
		listCommands(w, c.name)
	}
	return nil
}

func writeOption(w io.Writer, o option) {
	def := ""
	if o.def != "" {
		def = " (" + o.def + ")"
	}
	fmt.Fprintf(w, "  %-34s %s%s, %s\n", strings.TrimSuffix("-"+o.name+" "+o.value, " "), o.help, def, o.env())
}

// serveCommand runs the service until the context ends.
func serveCommand(e *env) error {
	o, err := e.serverOptions()
	if err != nil {
		return err
	}
	log, err := newLog(e.stderr, e.str("log"))
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
	s, err := newServer(st, keys, o, log)
	if err != nil {
		return errors.Join(err, st.close())
	}
	listener, err := listen(e.str("addr"), e.getenv)
	if err != nil {
		return errors.Join(err, st.close())
	}
	if err := s.startDebug(e.ctx, e.str("debug-addr")); err != nil {
		return errors.Join(err, listener.Close(), st.close())
	}
	log.Info("serving", "addr", listener.Addr().String(), "base_url", s.routing.Load().bases[0].URL, "release", buildName())
	return s.serveUntil(e.ctx, listener, e.str("key"))
}

func (e *env) serverOptions() (o serverOptions, err error) {
	if o.anonymousRate, err = e.number("anonymous-rate", 1, 1_000_000); err != nil {
		return o, err
	}
	if o.failedLookupRate, err = e.number("failed-lookup-rate", 1, 1_000_000); err != nil {
		return o, err
	}
	if o.legacySunset, err = time.Parse(time.DateOnly, e.str("legacy-sunset")); err != nil {
		return o, usageError(fmt.Sprintf("-legacy-sunset must be a date as 2026-07-01, not %q", e.str("legacy-sunset")))
	}
	o.trusted, err = parsePrefixes(e.list("trusted-proxies"))
	return o, err
}

func newLog(w io.Writer, format string) (*slog.Logger, error) {
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

// startDebug serves metrics and profiles on a loopback address until ctx ends.
func (s *server) startDebug(ctx context.Context, addr string) error {
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
	web := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	go web.Serve(listener)
	context.AfterFunc(ctx, func() { web.Close() })
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

	stopPatience = 22 * time.Second // a little more than a write may take
)

// serveUntil answers on the listener until ctx ends, then stops in order: health
// fails, the listener closes, what is under way or was already sent on an open
// connection is answered, workers stop, the database is checkpointed and closed.
// It closes the store. keyFile is followed; "" follows none.
func (s *server) serveUntil(ctx context.Context, listener net.Listener, keyFile string) error {
	conns := &connections{states: map[net.Conn]connection{}}
	web := &http.Server{Handler: s, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes, ConnState: conns.note,
		ErrorLog:                     slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		DisableGeneralOptionsHandler: true} // its answer to OPTIONS * has no request id
	workers, stopWorkers := context.WithCancel(context.Background())
	defer stopWorkers()
	var working sync.WaitGroup
	working.Go(func() { s.follow(workers, keyFile) })
	working.Go(func() { s.tend(workers) })

	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()
	var failed error
	select {
	case failed = <-served:
		s.log.Error("the listener failed", "error", failed.Error())
	case <-ctx.Done():
		s.log.Info("stopping")
	}
	s.draining.Store(true)
	listener.Close()
	patience, cancel := context.WithTimeout(context.Background(), stopPatience)
	defer cancel()
	conns.waitQuiet(patience) // Shutdown alone would drop what was already sent (golang/go#65805)
	err := web.Shutdown(patience)
	stopWorkers()
	working.Wait()
	err = errors.Join(failed, err, s.flushLegacy(patience), s.store.close())
	s.log.Info("stopped")
	return err
}
