package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
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
		[]option{
			optCheck, optStatusDays, optHTML, optAccount.says("show the days of this account only"),
		}, statusShow},
}

var (
	optStatusDays = option{name: "days", value: "N",
		help:        "show how the last days went, 2 to 90 business days of the main account; with -html 14 without it",
		generalHelp: "how many days are added, or of how many it is shown how they went"}
	optHTML = option{name: "html", value: "PATH", help: "write what needs doing and how the last days went as a page"}
)

var optCheck = option{name: "check", help: "print one line, for monitoring, and tell by the exit status: " +
	"0 nothing needs doing, 1 something does, 3 the service does not run or its health fails"}

const (
	maxSocketPath = 107             // bytes (unix(7))
	statusTimeout = 5 * time.Second // for asking the service, whose health may wait for healthWait
	maxStatus     = 1 << 20         // bytes of its answer, for whoever else answers on its socket

	backupDue = 7 * 24 * time.Hour // age from which the last backup is overdue
)

// A serviceStatus is what a running service reports about itself.
type serviceStatus struct {
	Version    string         `json:"version"`
	StartedAt  stamp          `json:"started_at"`
	Health     healthStatus   `json:"health"`
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
	Standby    bool           `json:"standby,omitempty"`
}

// callsFailing says how most calls to different hosts fail.
type callsFailing struct {
	Fault callFault `json:"fault"`
	Since stamp     `json:"since"`
}

// serviceStatus returns what the socket answers.
func (s *server) serviceStatus() *serviceStatus {
	report := s.healthReport()
	v := &serviceStatus{Version: buildName(), StartedAt: newStamp(s.startedAt), Health: report.Status,
		Output: report.Output, Clock: s.compareClock(s.readClocks()), Litestream: s.store.noCheckpoints,
		LastMinute: []routeCount{}, Refusals: []refusalCount{}, Damage: s.store.met.damageMet(),
		Callers: append([]callerRow{}, s.metrics.mostCallers(s.steady(), statusRows)...), NoRoots: s.noRoots}
	if v.Standby = report.Standby; v.Standby { // its health fails, so that nobody is sent to it
		if v.Health = healthPass; v.Output != reasonStandby {
			v.Health = healthWarn
		}
	}
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
	answers, refusals := s.metrics.lastMinute(s.steady())
	v.LastMinute, v.Refusals = append(v.LastMinute, answers...), append(v.Refusals, refusals...)
	return v
}

// startStatus serves the status command on the socket, mode 0600, until the returned function is
// called, which removes the socket. Without a socket the service runs all the same: the log says why.
func (s *server) startStatus() (stop func()) {
	if s.statusSocket == "" {
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
		if !s.ignorePeer() {
			w.WriteHeader(http.StatusConflict)
		}
	})
	return serveSocket(s.statusSocket, mux, s.log, s.working.Go)
}

// serveSocket serves what the status command asks on a socket, see startStatus. start runs a goroutine.
func serveSocket(path string, mux *http.ServeMux, log *slog.Logger, start func(func())) (stop func()) {
	listener, err := listenUnix(path, 0o600)
	if err != nil {
		log.Warn("'widgetd status' can't ask this service", "error", err.Error())
		return func() {}
	}
	web := &http.Server{Handler: mux, ReadHeaderTimeout: statusTimeout, WriteTimeout: statusTimeout,
		IdleTimeout: statusTimeout}
	start(func() { web.Serve(listener) })
	return func() { web.Close() } // which closes the listener, and that removes the socket
}

// listenUnix listens on a socket whose mode says who can connect to it beside this user. It replaces a socket on which
// nobody listens any more, which a killed service leaves behind.
func listenUnix(path string, mode fs.FileMode) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("the path of its socket is longer than %d bytes: %s", maxSocketPath, path)
	}
	conn, err := net.DialTimeout("unix", path, statusTimeout)
	if err == nil {
		conn.Close()
		return nil, fmt.Errorf("another service has its socket %s", path)
	}
	info, _ := os.Lstat(path)
	if errors.Is(err, syscall.ECONNREFUSED) && info != nil && info.Mode()&fs.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove an old socket: %w", err)
		}
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("make the socket: %w", err)
	}
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// askService asks the service over a database for its status; nil: it is not running, or has no socket.
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
		e.note("queued: the service does it when it runs, and none runs over %s now\n", db)
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

// backupLabel is the label of when the last backup was written.
const backupLabel = "last backup"

func statusShow(e *env) error {
	r, service, err := e.readStatus(e.on("check"))
	if err != nil {
		return err
	}
	if e.on("check") {
		return r.printVerdict(e, service)
	}
	if e.str("html") != "" {
		return e.writePage(r)
	}
	if err := e.printDetails(r.members, r.details); err != nil {
		return err
	}
	if !e.on("json") {
		if r.days != nil {
			fmt.Fprintf(e.stdout, "\n%s\n", r.days.write(e.width(), e.barsFor()))
		}
		if err := e.printNeeds(r.needs); err != nil {
			return err
		}
	}
	if n := len(r.unreadable); n > 0 {
		return fmt.Errorf("parts of the database that can't be read: %d: run 'widgetd check'", n)
	}
	return nil
}

// readStatus reads what the status command prints. always: also if neither the service nor the database can be asked.
func (e *env) readStatus(always bool) (r *statusReport, service *serviceStatus, err error) {
	db, err := e.file("db")
	if err != nil {
		return nil, nil, err
	}
	keyFile, err := e.file("key")
	if err != nil {
		return nil, nil, err
	}
	r = &statusReport{width: e.width(),
		members: map[string]any{"database_bytes": 0, "wal_bytes": 0, "last_backup_at": nil}}
	service, err = askService(e.ctx, db)
	r.tellOfService(service, err)
	r.tellOfFiles(e, db)
	if service != nil && service.Standby {
		r.finish(db)
		return r, service, nil
	}
	v := &statusView{now: e.now(), service: service, account: e.str("account")}
	if v.days, err = e.shownDays(); err != nil {
		return nil, nil, err
	}
	err = e.withStore(func(st *store) error {
		v.store = st
		v.keys, _ = loadKeyring(keyFile) // tellOfFiles reports the error
		r.readAll(v, e.nouns, nil)
		return nil
	})
	if err != nil {
		if service == nil && !always {
			return nil, nil, err
		}
		r.readAll(v, e.nouns, err) // the service may tell more
	}
	r.finish(db)
	return r, service, nil
}

// readAll reads what the nouns say of the database. failed is why it can't be opened; nil: it can.
func (r *statusReport) readAll(v *statusView, of []noun, failed error) {
	lines := []statusLine{{label: "database", read: fileStatus}, {label: backupLabel, read: backupStatus}}
	for _, n := range of {
		lines = append(lines, n.status...)
	}
	if v.days > 0 {
		lines = append(lines, statusLine{label: "days", read: daysStatus})
	}
	for _, foreign := range foreignOf(of) {
		read := func(v *statusView, to *statusReport) error {
			if v.keys == nil {
				return nil
			}
			found, err := foreign(v.queries, v.keys)
			to.askFirst(found)
			return err
		}
		lines = append(lines, statusLine{label: "secrets", money: true, read: read})
	}
	for _, line := range lines {
		err := failed
		if err == nil {
			err = r.readLine(v, line)
		}
		if err != nil && !errors.Is(err, errNotFound) {
			r.label = line.label
			r.say("can't be read: %s", faultText(err))
			r.unreadable = append(r.unreadable, line.label+": "+faultText(err))
		}
	}
}

// fileStatus is what the status command says of the database file.
func fileStatus(v *statusView, to *statusReport) error {
	to.set("database_bytes", v.databaseSize())
	to.set("wal_bytes", v.walSize())
	to.say("%s, %s, schema version %d; write-ahead log %s", v.path, sizeText(v.databaseSize()), schemaVersion,
		sizeText(v.walSize()))
	if v.walSize() > v.maxWAL && (v.service == nil || v.service.Health == healthPass) {
		to.ask("the write-ahead log has %s: end the transaction that another program keeps open",
			sizeText(v.walSize()))
	}
	return nil
}

// backupStatus is what the status command says of the last backup. Where Litestream makes them, none is missing.
func backupStatus(v *statusView, to *statusReport) error {
	main, err := v.mainAccount()
	if err != nil {
		return err
	}
	at, err := v.lastEventAt(main, eventBackupWritten)
	if err = except(err, errNotFound); err != nil {
		return err
	}
	p, err := v.proof(proofBackup)
	if err != nil {
		return err
	}
	to.set("last_backup_at", at)
	to.set("backup_proof", p)
	text := cmp.Or(stampText(at), "never")
	if p != nil && !p.ProvedAt.IsZero() {
		text += fmt.Sprintf("; restored and checked %s", p.ProvedAt)
	}
	to.say("%s", text)
	if p != nil && !(v.service != nil && v.service.Litestream) {
		to.askForProof(v.now, p, "look at 'journalctl -u widgetd-backup'")
	}
	switch age := v.now.Sub(at.Time); {
	case v.service != nil && v.service.Litestream:
	case at.IsZero():
		to.ask("there was no backup yet: run 'widgetd backup FILE', best each day")
	case age > backupDue:
		to.ask("the last backup is %d days old: run 'widgetd backup FILE'", int(age/(24*time.Hour)))
	}
	return nil
}

// tellOfFiles reports who can read the files, and whether the service can read the key file.
func (r *statusReport) tellOfFiles(e *env, db string) {
	if open := openToOthers(realPath(db)); len(open) > 0 {
		r.ask("%s", strings.Join(open, "; "))
	}
	if _, _, err := e.loadKeys(); err != nil {
		r.ask("the key file can't be used: %v", err)
	}
	if starts := unaskedStarts(db, e.now()); len(starts) > 0 {
		r.ask("starts that nobody asked for since %s: %d: 'journalctl -u widgetd' says why", starts[0], len(starts))
	}
}

// Starts that nobody has asked for. A service that comes to an end of its own removes its socket, so one on which
// nobody listens is that of a service that was killed, has crashed or has lost its machine.

const (
	unaskedFor = 24 * time.Hour // for so long such a start is told of
	maxUnasked = 1000           // and so many at most
)

// wasKilled reports whether the service before this one has left its socket.
func wasKilled(db string) bool {
	conn, err := net.DialTimeout("unix", socketPath(db), statusTimeout)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// unaskedStarts returns when the service was started without being asked for lately, the first one first.
func unaskedStarts(db string, now time.Time) (starts []stamp) {
	text, _ := os.ReadFile(startsPath(db)) // which is there only if there was one
	json.Unmarshal(text, &starts)          // of a file that was broken off nothing is left
	for len(starts) > 0 && !closerThan(unaskedFor, starts[0].Time, now) {
		starts = starts[1:]
	}
	return starts
}

// noteUnasked notes such a start.
func noteUnasked(db string, now time.Time) error {
	starts := append(unaskedStarts(db, now), newStamp(now))
	return os.WriteFile(startsPath(db), encodeJSON(starts[max(0, len(starts)-maxUnasked):]), 0o600)
}

// finish ends the report.
func (r *statusReport) finish(db string) {
	r.line = statusLine{}
	copies := append([]string{}, upgradeCopies(db)...)
	if len(copies) > 0 {
		r.ask("remove what upgrades have left, which may hold erased personal data: %s", strings.Join(copies, ", "))
	}
	if aside := asideOf(realPath(db)); len(aside) > 0 {
		r.ask("remove what a restore has put aside, once you miss nothing of it: %s", strings.Join(aside, ", "))
	}
	if len(r.unreadable) > 0 {
		r.ask("can't be read, so run 'widgetd check': %s", strings.Join(r.unreadable, "; "))
	}
	r.needs = append(r.money, r.needs...)
	r.set("version", buildName())
	r.set("database", db)
	r.set("schema_version", schemaVersion) // of the file too: no other is opened
	r.set("upgrade_copies", copies)
	r.set("needs_doing", append([]string{}, r.needs...))
	r.set("unreadable", append([]string{}, r.unreadable...))
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
func (r *statusReport) printVerdict(e *env, service *serviceStatus) error {
	status, text := 0, "ok: nothing needs doing"
	if n := len(r.needs); n > 0 {
		status, text = exitNeedsDoing, countOf(n, "thing")+" to do: "+strings.Join(r.needs, "; ")
	}
	if service == nil || service.Health == healthFail {
		status = exitNotRunning
	}
	err := e.printAsIs(map[string]any{"status": status, "needs_doing": r.members["needs_doing"]}, printable(text))
	if err != nil || status == 0 {
		return err
	}
	return exitStatus(status)
}

// tellOfService reports what the service says of itself. failed is why it could not be asked.
func (r *statusReport) tellOfService(s *serviceStatus, failed error) {
	r.set("service", s)
	r.label = "health"
	switch {
	case s == nil && failed != nil:
		r.say("not known")
		r.ask("the service can't be asked: %s", oneLineError{failed})
	case s == nil:
		r.say("not running")
		r.ask("the service is not running: start it")
	default:
		r.say("%s", strings.TrimSuffix(string(s.Health)+": "+s.Output, ": "))
		r.tellOfTrouble(s)
	}
	r.label = "version"
	if s == nil {
		r.say("%s", buildName())
		return
	}
	r.say("%s, running since %s", s.Version, s.StartedAt)
	total := int64(0)
	for _, c := range s.LastMinute {
		total += c.Requests
	}
	r.label = "last minute"
	r.say("%s", countOf(total, "request"))
	for _, c := range s.LastMinute[:min(len(s.LastMinute), countedShown)] {
		r.say("%d  %s  %d", c.Status, c.Route, c.Requests)
	}
	r.label = "callers"
	for _, c := range s.Callers[:min(len(s.Callers), callersShown)] {
		name := strings.TrimPrefix(cmp.Or(c.Account, c.AccountID)+", "+c.Client, ", ")
		calls := fmt.Sprintf("%d/min, %d/h  ", c.LastMinute, c.LastHour)
		if r.width > 0 { // names often begin alike, and no width is too narrow to tell them apart
			name = cutBeginning(name, max(leastIDEnd, r.width-labelWidth-len(calls)))
		}
		r.say("%s", calls+name)
	}
	r.label = "refused"
	for _, c := range s.Refusals[:min(len(s.Refusals), countedShown)] {
		r.say("%s: %d in the last minute, %d since the start", c.Code, c.LastMinute, c.SinceStart)
	}
}

// tellOfTrouble adds what the service reports and the operator should do something about.
func (r *statusReport) tellOfTrouble(s *serviceStatus) {
	if s.Health != healthPass && s.Output != string(s.Clock) {
		r.ask("health is %s: %s", closedText(s.Health), closedText(s.Output))
	}
	if s.Clock != "" {
		r.ask("%s: set the clock right, or if it is right, run 'widgetd clock accept'", s.Clock)
	}
	if d := s.Damage; d != nil {
		r.ask("damage was met since %s (%s: %s): run 'widgetd check'; if it finds faults, restore a backup", d.At,
			cmp.Or(d.Table, "the file"), d.Error)
	}
	for _, row := range s.Unreadable {
		r.ask("%s: what needs it fails or waits: run 'widgetd check'", row)
	}
	if s.NoRoots {
		r.ask("%s: %s", closedText(noRootsText), closedText(callFaults[callUnverified]))
	}
	if s.Calls != nil {
		r.ask("%s since %s (%s): %s", closedText(callsFailAlike), s.Calls.Since, s.Calls.Fault,
			closedText(callFaults[s.Calls.Fault]))
	}
	if s.Version != buildName() {
		r.ask("the service runs version %s, this is %s: restart it", s.Version, buildName())
	}
}

const (
	countedShown = 4  // routes, and reasons of refusals, on the screen; -json has all
	callersShown = 5  // callers there, each on one line
	labelWidth   = 16 // of the screen's labels
)

// sizeText returns a number of bytes for people.
func sizeText(bytes int64) string {
	if bytes < 1<<20 {
		return fmt.Sprintf("%d KiB", (bytes+1023)>>10)
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}
