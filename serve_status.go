package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The status command: what an operator wants to see on one screen. What only the running service
// knows, it asks for over a socket beside the database.

// The operator's command on everything at once.
var statusCommands = []command{
	{"status", "", "show on one screen how the service is, who calls, what was refused and what needs doing",
		[]option{optCheck}, 0, statusShow},
}

var optCheck = option{name: "check", help: "print one line, for monitoring, and tell by the exit status: " +
	"0 nothing needs doing, 1 something does, 3 the service does not run or its health fails"}

const (
	maxSocketPath = 107             // bytes (unix(7))
	statusTimeout = 3 * time.Second // for asking the service
	maxStatus     = 1 << 20         // bytes of its answer, for whoever else answers on its socket

	backupDue = 7 * 24 * time.Hour // age from which the last backup is overdue
)

// A serviceStatus is what a running service reports about itself.
type serviceStatus struct {
	Version    string         `json:"version"`
	StartedAt  stamp          `json:"started_at"`
	Health     string         `json:"health"`           // pass, warn or fail
	Output     string         `json:"output,omitempty"` // why health does not pass
	Clock      clockFault     `json:"clock,omitempty"`  // what is wrong with the clock
	Litestream bool           `json:"litestream"`
	LastMinute []routeCount   `json:"last_minute"` // by route and status, the most first
	Refusals   []refusalCount `json:"refusals"`    // by problem code, the most first
	Callers    []callerRow    `json:"callers"`     // of the last hour, the most requests first
	Damage     *damageMet     `json:"damage"`      // that was met; null: none
	Unreadable []string       `json:"unreadable"`  // the first row of each table that can't be read, and why
	Calls      *callsFailing  `json:"calls"`       // that most calls to different hosts fail alike; null: they don't
	NoRoots    bool           `json:"no_certificates"`
}

// callsFailing says how most calls to different hosts fail.
type callsFailing struct {
	Fault callFault `json:"fault"`
	Since stamp     `json:"since"`
}

// A routeCount is how many requests to a route were answered with a status in the last minute.
type routeCount struct {
	Route    string `json:"route"`
	Status   int    `json:"status"`
	Requests int64  `json:"requests"`
}

// A refusalCount is how many requests were answered with a problem.
type refusalCount struct {
	Code       string `json:"code"`
	LastMinute int64  `json:"last_minute"`
	SinceStart int64  `json:"since_start"`
}

// serviceStatus returns what the socket answers.
func (s *server) serviceStatus() *serviceStatus {
	report := s.healthReport()
	v := &serviceStatus{Version: buildName(), StartedAt: newStamp(s.startedAt), Health: report.Status,
		Output: report.Output, Clock: s.compareClock(s.readClocks()), Litestream: s.store.noCheckpoints,
		LastMinute: []routeCount{}, Refusals: []refusalCount{}, Damage: s.store.met.damageMet(),
		Callers: append([]callerRow{}, s.metrics.mostCallers(s.steady(), statusRows)...), NoRoots: s.noRoots}
	for i, c := range v.Callers {
		if a, err := s.cachedAccount(c.AccountID); c.AccountID != "" && err == nil {
			v.Callers[i].Account = a.Name
		}
	}
	if fault, since := s.outbound.reach.failing(); fault != "" {
		v.Calls = &callsFailing{fault, newStamp(since)}
	}
	for _, row := range s.store.met.rowsMet() {
		v.Unreadable = append(v.Unreadable, row.Error())
	}
	answers, refusals, all := s.metrics.lastMinute(s.steady())
	for key, n := range answers {
		v.LastMinute = append(v.LastMinute, routeCount{cmp.Or(key.route, noRoute), key.status, n})
	}
	for code, n := range all {
		v.Refusals = append(v.Refusals, refusalCount{code, refusals[code], n})
	}
	slices.SortFunc(v.LastMinute, func(a, b routeCount) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), strings.Compare(a.Route, b.Route), a.Status-b.Status)
	})
	slices.SortFunc(v.Refusals, func(a, b refusalCount) int {
		return cmp.Or(cmp.Compare(b.SinceStart, a.SinceStart), strings.Compare(a.Code, b.Code))
	})
	return v
}

// startStatus serves the status command on the socket, mode 0600, until the returned function is
// called, which removes the socket. Without a socket the service runs all the same: the log says why.
func (s *server) startStatus() (stop func()) {
	if s.statusSocket == "" {
		return func() {}
	}
	listener, err := listenUnix(s.statusSocket)
	if err != nil {
		s.log.Warn("'widgetd status' can't ask this service", "error", err.Error())
		return func() {}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write(encodeJSON(s.serviceStatus())) // fails only when the client has gone
	})
	mux.HandleFunc("POST /checked", func(w http.ResponseWriter, r *http.Request) {
		times, err := strconv.ParseInt(r.FormValue("times"), 10, 64)
		if err != nil || !s.store.met.checked(times) {
			w.WriteHeader(http.StatusConflict)
			return
		}
		s.log.Info("'widgetd check' has passed: health does not tell of what was met any more")
	})
	mux.HandleFunc("POST /peer/ignore", func(w http.ResponseWriter, _ *http.Request) {
		if s.peer == nil || !s.peer.ignore() {
			w.WriteHeader(http.StatusConflict)
		}
	})
	web := &http.Server{Handler: mux, ReadHeaderTimeout: statusTimeout, WriteTimeout: statusTimeout,
		IdleTimeout: statusTimeout}
	s.working.Go(func() { web.Serve(listener) })
	return func() { web.Close() } // which closes the listener, and that removes the socket
}

// listenUnix listens on a socket that only this user can connect to. It replaces a socket on which
// nobody listens any more, which a killed service leaves behind.
func listenUnix(path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("the path of its socket is longer than %d bytes: %s", maxSocketPath, path)
	}
	listener, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		info, statErr := os.Lstat(path)
		if statErr != nil || info.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("%s is no socket: remove it", path)
		}
		conn, dialErr := net.DialTimeout("unix", path, statusTimeout)
		if dialErr == nil {
			conn.Close()
			return nil, fmt.Errorf("another service has its socket %s", path)
		}
		if !errors.Is(dialErr, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("use the socket: %w", dialErr)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove an old socket: %w", err)
		}
		listener, err = net.Listen("unix", path)
	}
	if err != nil {
		return nil, fmt.Errorf("make the socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// askService asks the service over a database for its status; nil: it is not running, or has no
// socket.
func askService(ctx context.Context, db string) (*serviceStatus, error) {
	res, err := callService(ctx, db, "GET", "/status")
	if res == nil {
		return nil, err
	}
	defer res.Body.Close()
	v := &serviceStatus{}
	err = json.NewDecoder(http.MaxBytesReader(nil, res.Body, maxStatus)).Decode(v)
	if errors.As(err, new(*http.MaxBytesError)) {
		err = fmt.Errorf("its answer is longer than %s", sizeText(maxStatus))
	}
	if err != nil {
		return nil, fmt.Errorf("ask the service: %w", err)
	}
	return v, nil
}

// noteQueued says on standard error that what a command has left to the service is not done yet, if no service runs
// over the database.
func (e *env) noteQueued() {
	db, err := e.file("db")
	if err != nil || len(socketPath(db)) > maxSocketPath { // then a service has no socket
		return
	}
	if service, err := askService(e.ctx, db); service == nil && err == nil {
		fmt.Fprintf(e.stderr, "queued: the service does it when it runs, and none runs over %s now\n", db)
	}
}

// reportCheck tells the service that a check of the whole file has passed; times is how often the service had met
// damage when the check began. It reports false if the service has met damage since.
func reportCheck(ctx context.Context, db string, times int64) (bool, error) {
	res, err := callService(ctx, db, "POST", fmt.Sprintf("/checked?times=%d", times))
	if res == nil {
		return err == nil, err // a service that was stopped has forgotten the damage
	}
	return res.StatusCode == http.StatusOK, res.Body.Close()
}

// callService sends a request to the service over a database; nil: it is not running, or has no socket.
func callService(ctx context.Context, db, method, target string) (*http.Response, error) {
	path := socketPath(db)
	if len(path) > maxSocketPath {
		return nil, nil
	}
	client := &http.Client{Timeout: statusTimeout, Transport: &http.Transport{
		DisableKeepAlives: true, MaxResponseHeaderBytes: maxStatus,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}}
	r, err := http.NewRequestWithContext(ctx, method, "http://widgetd"+target, nil)
	if err != nil {
		return nil, err
	}
	res, err := client.Do(r)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask the service: %w", err)
	}
	return res, nil
}

// A statusReport is what the status command prints with -json, followed by the members of each part.
type statusReport struct {
	Version       string         `json:"version"` // of this program
	Database      string         `json:"database"`
	SchemaVersion int            `json:"schema_version"`
	DatabaseBytes int64          `json:"database_bytes"`
	WALBytes      int64          `json:"wal_bytes"`
	Service       *serviceStatus `json:"service"` // null: not running
	LastBackupAt  stamp          `json:"last_backup_at"`
	UpgradeCopies []string       `json:"upgrade_copies"` // which upgrades have left
	NeedsDoing    []string       `json:"needs_doing"`
	Unreadable    []string       `json:"unreadable"` // parts of this that could not be read, and why

	unread map[string]string // why, by the label of the part
	parts  []statusPart
	lines  []statusLines // of each part
}

// backupLabel is the label of when the last backup was written.
const backupLabel = "last backup"

func statusShow(e *env) error {
	db, err := e.file("db")
	if err != nil {
		return err
	}
	keyFile, err := e.file("key")
	if err != nil {
		return err
	}
	r := &statusReport{Version: buildName(), Database: db, Unreadable: []string{}, unread: map[string]string{},
		SchemaVersion: schemaVersion, // of the file too: no other is opened
		UpgradeCopies: append([]string{}, upgradeCopies(db)...)}
	for _, n := range e.nouns {
		if n.status != nil {
			r.parts = append(r.parts, n.status()...)
		}
	}
	r.lines = make([]statusLines, len(r.parts))
	asked := ""
	service, err := askService(e.ctx, db)
	if err != nil {
		asked = oneLineError{err}.Error()
	}
	r.Service = service
	v := &statusView{now: e.now(), runs: service != nil}
	err = e.withStore(func(st *store) error {
		v.store = st
		v.keys, _ = loadKeyring(keyFile) // whatNeedsDoing reports the error
		r.readAll(v)
		return nil
	})
	if err != nil && r.Service == nil && !e.on("check") {
		return err
	}
	if err != nil { // the service may tell more
		r.cantRead(backupLabel, err)
		for _, p := range r.parts {
			r.cantRead(p.label, err)
		}
	}
	for i, p := range r.parts {
		p.of.show(v, &r.lines[i])
	}
	r.NeedsDoing = r.whatNeedsDoing(e, asked)
	if e.on("check") {
		return r.printVerdict(e)
	}
	if err := e.printDetails(r, r.details()); err != nil {
		return err
	}
	if !e.on("json") {
		if err := e.printNeeds(r.NeedsDoing); err != nil {
			return err
		}
	}
	if n := len(r.Unreadable); n > 0 {
		return fmt.Errorf("parts of the database that can't be read: %d: run 'widgetd check'", n)
	}
	return nil
}

// leastNeedWidth is how wide the lines of what needs doing are at least, so that ids stay whole, to be copied.
const leastNeedWidth = 36

// printNeeds prints what needs doing. The lines are as wide as the terminal, since commands with ids are long.
func (e *env) printNeeds(needs []string) error {
	text := "needs doing"
	if len(needs) == 0 {
		text += "      none"
	}
	for _, need := range needs {
		lines := []string{printable(need)}
		if width := e.width(); width > 0 {
			lines = wrap(lines[0], max(leastNeedWidth, width-2*columnGap))
		}
		text += "\n  " + strings.Join(lines, "\n    ")
	}
	_, err := fmt.Fprintln(e.stdout, text)
	return err
}

// An exitStatus ends the program with that status. The command has printed all that there is to say.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// The exit statuses of status -check besides 0, and of usage errors 2.
const (
	exitNeedsDoing = 1
	exitNotRunning = 3
)

// printVerdict prints in one line what needs doing. Its error is the exitStatus.
func (r *statusReport) printVerdict(e *env) error {
	status, text := 0, "ok: nothing needs doing"
	if n := len(r.NeedsDoing); n > 0 {
		status, text = exitNeedsDoing, countOf(n, "thing")+" to do: "+strings.Join(r.NeedsDoing, "; ")
	}
	if r.Service == nil || r.Service.Health == healthFail {
		status = exitNotRunning
	}
	err := e.print(map[string]any{"status": status, "needs_doing": r.NeedsDoing}, printable(text))
	if err != nil || status == 0 {
		return err
	}
	return exitStatus(status)
}

// readAll reads every part of the report that comes from the database.
func (r *statusReport) readAll(v *statusView) {
	r.DatabaseBytes, r.WALBytes = v.databaseSize(), v.walSize()
	main, err := v.mainAccount()
	if err == nil {
		r.LastBackupAt, err = v.lastEventAt(main, eventBackupWritten)
	}
	if err != nil && !errors.Is(err, errNotFound) {
		r.cantRead(backupLabel, err)
	}
	for _, p := range r.parts {
		if err := p.of.read(v); err != nil && !errors.Is(err, errNotFound) {
			r.cantRead(p.label, err)
		}
	}
}

// cantRead notes that a part of the report could not be read.
func (r *statusReport) cantRead(part string, err error) {
	r.unread[part] = "can't be read: " + faultText(err)
	r.Unreadable = append(r.Unreadable, part+": "+faultText(err))
}

// MarshalJSON implements json.Marshaler.
func (r *statusReport) MarshalJSON() ([]byte, error) {
	type plain statusReport
	whole, err := json.Marshal((*plain)(r))
	for _, p := range r.parts {
		members, failed := json.Marshal(p.of)
		if err = cmp.Or(err, failed); err == nil && len(members) > len("{}") {
			whole = append(append(whole[:len(whole)-1], ','), members[1:]...)
		}
	}
	return whole, err
}

// whatNeedsDoing returns a line for each thing that the operator should do. asked is why the service
// could not be asked; "" if it could, or does not run.
func (r *statusReport) whatNeedsDoing(e *env, asked string) []string {
	lines := []string{}
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	needed := func(money bool) {
		for i, p := range r.parts {
			if _, isMoney := p.of.(moneyReader); isMoney == money {
				lines = append(lines, r.lines[i].needed...)
			}
		}
	}
	needed(true)
	if asked != "" {
		add("the service can't be asked: %s", asked)
	} else if r.Service == nil {
		add("the service is not running: start it")
	} else {
		lines = append(lines, r.Service.needsDoing(r.Version)...)
	}
	if len(r.Unreadable) > 0 {
		add("can't be read, so run 'widgetd check': %s", strings.Join(r.Unreadable, "; "))
	}
	if open := readableByOthers(realPath(r.Database)); len(open) > 0 {
		lines = append(lines, strings.Join(open, "; "))
	}
	if _, _, err := e.loadKeys(); err != nil {
		add("key: %v", err)
	}
	switch age := e.now().Sub(r.LastBackupAt.Time); {
	case r.Service != nil && r.Service.Litestream:
	case r.unread[backupLabel] != "":
	case r.LastBackupAt.IsZero():
		add("there was no backup yet: run 'widgetd backup FILE', best each day")
	case age > backupDue:
		add("the last backup is %d days old: run 'widgetd backup FILE'", int(age/(24*time.Hour)))
	}
	if r.WALBytes > maxWAL && (r.Service == nil || r.Service.Health == healthPass) {
		add("the write-ahead log has %s: end the transaction that another program keeps open", sizeText(r.WALBytes))
	}
	needed(false)
	if n := len(r.UpgradeCopies); n > 0 {
		add("remove what upgrades have left, which may hold erased personal data: %s",
			strings.Join(r.UpgradeCopies, ", "))
	}
	return lines
}

// needsDoing returns a line for each thing that the service reports and that the operator should do something about.
// version is that of this program.
func (s *serviceStatus) needsDoing(version string) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if s.Health != healthPass && s.Output != string(s.Clock) {
		add("health is %s: %s", s.Health, s.Output)
	}
	if s.Clock != "" {
		add("%s: set the clock right, or if it is right, run 'widgetd clock accept'", s.Clock)
	}
	if d := s.Damage; d != nil {
		add("damage was met since %s (%s: %s): run 'widgetd check'; if it finds faults, restore a backup", d.At,
			cmp.Or(d.Table, "the file"), d.Error)
	}
	for _, row := range s.Unreadable {
		add("%s: what needs it fails or waits: run 'widgetd check'", row)
	}
	if s.NoRoots {
		add("%s: %s", noRootsText, callFaults[callUnverified])
	}
	if s.Calls != nil {
		add("%s since %s (%s): %s", callsFailAlike, s.Calls.Since, s.Calls.Fault, callFaults[s.Calls.Fault])
	}
	if s.Version != version {
		add("the service runs version %s, this is %s: restart it", s.Version, version)
	}
	return lines
}

// details returns the report as text for people.
func (r *statusReport) details() []detail {
	health, version := "not running", r.Version
	if s := r.Service; s != nil {
		health, version = s.Health, s.Version+", running since "+s.StartedAt.String()
		if s.Output != "" {
			health += ": " + s.Output
		}
	}
	all := []detail{
		{"health", health},
		{"version", version},
		{"database", fmt.Sprintf("%s, %s, schema version %d; write-ahead log %s",
			r.Database, sizeText(r.DatabaseBytes), r.SchemaVersion, sizeText(r.WALBytes))},
		{backupLabel, cmp.Or(stampCell(r.LastBackupAt), "never")},
	}
	add := func(lists bool) {
		for i, p := range r.parts {
			if p.isList == lists && len(r.lines[i].rows) > 0 {
				all = append(all, labelled(p.label, r.lines[i].rows, func(line string) string { return line })...)
			}
		}
	}
	add(false)
	if r.Service != nil {
		all = append(all, r.Service.details()...)
	}
	add(true)
	for i := range all {
		all[i].value = cmp.Or(r.unread[all[i].label], all[i].value)
	}
	return all
}

// details returns what the service has answered lately.
func (s *serviceStatus) details() []detail {
	total := int64(0)
	for _, c := range s.LastMinute {
		total += c.Requests
	}
	all := []detail{{"last minute", fmt.Sprintf("%d requests", total)}}
	for _, c := range s.LastMinute[:min(len(s.LastMinute), countedShown)] {
		all = append(all, detail{"", fmt.Sprintf("%d  %s  %d", c.Status, c.Route, c.Requests)})
	}
	all = append(all, labelled("callers", s.Callers, func(c callerRow) string {
		name := cmp.Or(c.Account, c.AccountID)
		if name != "" {
			name += ", "
		}
		return fmt.Sprintf("%s%s: %d in the last minute, %d in the hour", name, c.Client, c.LastMinute,
			c.LastHour)
	})...)
	refused := s.Refusals[:min(len(s.Refusals), countedShown)]
	return append(all, labelled("refused", refused, func(c refusalCount) string {
		return fmt.Sprintf("%s: %d in the last minute, %d since the start", c.Code, c.LastMinute, c.SinceStart)
	})...)
}

// countedShown is how many routes, and how many reasons of refusals, the screen shows; -json has all.
const countedShown = 4

// sizeText returns a number of bytes for people.
func sizeText(bytes int64) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%d KiB", (bytes+1023)>>10)
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

// endingSoon is how long before the end of a token or a licence the status command warns of it.
const endingSoon = 14 * 24 * time.Hour
