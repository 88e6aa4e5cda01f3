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
	"os/exec"
	"slices"
	"sort"
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
	Troubles   []occurrence   `json:"troubles"`    // that the service itself knows of
	Damage     *foundDamage   `json:"damage"`      // that was met; null: none
	Calls      *callsFailing  `json:"calls"`       // that most calls to different hosts fail alike; null: they don't
	NoRoots    bool           `json:"no_certificates"`
	Standby    bool           `json:"standby,omitempty"`
}

// found returns what the service knows of a kind of trouble.
func (s *serviceStatus) found(kind string) (f occurrence) {
	for i := range s.Troubles {
		if s.Troubles[i].Kind == kind {
			f = s.Troubles[i]
		}
	}
	return f
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
		LastMinute: []routeCount{}, Refusals: []refusalCount{}, Damage: s.store.faults.damageMet(),
		Troubles: s.ownTroubles(),
		Callers:  append([]callerRow{}, s.metrics.mostCallers(s.monotonic(), statusRows)...), NoRoots: s.noRoots}
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
	answers, refusals := s.metrics.lastMinute(s.monotonic())
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
		if err != nil || !s.store.faults.checked(times) {
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
	res, err := callSocket(ctx, socketPath(db), method, target)
	if err != nil {
		err = fmt.Errorf("ask the service: %w", err)
	}
	return res, err
}

// callSocket sends a request to who listens on a socket; nil: nobody does.
func callSocket(ctx context.Context, path, method, target string) (*http.Response, error) {
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
	return res, err
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
		if err := e.printNeeds(r.needs()); err != nil {
			return err
		}
	}
	if _, n := r.unreadable(); n > 0 {
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
	if _, err := e.file("key"); err != nil {
		return nil, nil, err
	}
	r = &statusReport{width: e.width(),
		members: map[string]any{"database_bytes": 0, "wal_bytes": 0, "last_backup_at": nil}}
	v := &statusView{now: e.now(), of: e.nouns, env: e, db: db, account: e.str("account")}
	v.service, v.failed = askService(e.ctx, db)
	r.tellOfService(v.service, v.failed)
	read := false
	if v.service == nil || !v.service.Standby {
		if v.days, err = e.shownDays(); err != nil {
			return nil, nil, err
		}
		err = e.withStore(func(st *store) error {
			v.store, read = st, true
			_, v.keys, _ = e.loadKeys() // the trouble key_file is the error
			r.readAll(v, nil)
			return nil
		})
		if err != nil && v.service == nil && !always {
			return nil, nil, err
		}
	}
	if !read {
		r.readAll(v, err) // the service, the files and the units may tell more
	}
	r.finish(db)
	return r, v.service, nil
}

// readAll reads what the nouns say of the database, and looks for all troubles. failed is why the database can't be
// opened; nil: it can, or there is none.
func (r *statusReport) readAll(v *statusView, failed error) {
	lines := []statusLine{{label: "database", read: fileStatus}, {label: backupLabel, read: backupStatus}}
	lines = append(lines, collectNouns(v.of, func(n *noun) []statusLine { return n.status })...)
	if v.days > 0 {
		lines = append(lines, statusLine{label: "days", read: daysStatus})
	}
	for _, line := range lines {
		err := failed
		if r.label = line.label; v.store != nil {
			err = line.read(v, r)
		}
		r.noteFault(line.label, err)
	}
	all := troublesOf(v.of)
	for i := range all {
		t := &all[i]
		f, err := r.gather(v, t, failed)
		if r.noteFault(strings.ReplaceAll(t.kind, "_", " "), err); err == nil && f.Count > 0 {
			r.found = append(r.found, foundTrouble{t, f})
		}
	}
	sort.SliceStable(r.found, func(i, j int) bool { return compareTroubles(&r.found[i], &r.found[j]) < 0 })
}

// gather looks for a trouble; see trouble.
func (r *statusReport) gather(v *statusView, t *trouble, failed error) (f occurrence, err error) {
	if t.outside != nil {
		f, err = t.outside(v)
	}
	switch {
	case err != nil || f.Count > 0:
		return f, err
	case t.kind == unreadableKind:
		lines, parts := r.unreadable()
		return occursIf(parts > 0, stamp{}, "", strings.Join(lines, "; ")), nil
	case t.inService != nil && v.service != nil && (t.inFile == nil || v.store == nil):
		return v.service.found(t.kind), nil
	case v.store == nil && (t.inFile != nil || t.query != ""):
		return f, failed
	}
	return v.find(t)
}

// noteFault notes that a part can't be read. What is not there yet is no fault.
func (r *statusReport) noteFault(part string, err error) {
	if err == nil || errors.Is(err, errNotFound) {
		return
	}
	text := faultText(err)
	for i := range r.faults {
		if r.faults[i].text == text {
			r.faults[i].more++
			return
		}
	}
	r.faults, r.label = append(r.faults, statusFault{text, part, 0}), part
	r.say("can't be read: %s", text)
}

// unreadable returns each error with the first part that can't be read for it, and how many parts can't be read.
func (r *statusReport) unreadable() (lines []string, parts int) {
	lines = []string{}
	for _, f := range r.faults {
		if parts += 1 + f.more; f.more > 0 {
			f.part += fmt.Sprintf(" and %d more", f.more)
		}
		lines = append(lines, f.part+": "+f.text)
	}
	return lines, parts
}

// fileStatus is what the status command says of the database file.
func fileStatus(v *statusView, to *statusReport) error {
	to.set("database_bytes", v.databaseSize())
	to.set("wal_bytes", v.walSize())
	to.say("%s, %s, schema version %d; write-ahead log %s", v.path, sizeText(v.databaseSize()), schemaVersion,
		sizeText(v.walSize()))
	return nil
}

// backupStatus is what the status command says of the last backup.
func backupStatus(v *statusView, to *statusReport) error {
	at, err := v.lastBackup()
	if err != nil {
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
	return nil
}

// lastBackup returns when the last backup was written; zero: never. A database that was restored from one does not
// know of it, and of later ones: then the copies that lie beside it tell.
func (v *statusView) lastBackup() (stamp, error) {
	main, err := v.mainAccount()
	if err != nil {
		return stamp{}, err
	}
	at, err := v.lastEventAt(main, eventBackupWritten)
	if err = except(err, errNotFound); err != nil || v.now.Sub(at.Time) <= backupDue {
		return at, err
	}
	for _, kept := range keptCopies(realPath(v.path)) {
		if kept.Kind == copyOfBackup && kept.LastEventAt.After(at.Time) {
			at = kept.LastEventAt
		}
	}
	return at, nil
}

// fileTroubles are those of the database's files and their copies.
var fileTroubles = []trouble{
	{kind: "backup_missing", urgency: sameDay, one: "there was no backup yet",
		advice: ": run 'widgetd backup FILE', best each day", inFile: backupOlder(true)},
	{kind: "backup_old", urgency: sameDay, one: "the last backup is $n day old", many: "the last backup is $n days old",
		advice: ": run 'widgetd backup FILE'", inFile: backupOlder(false)},
	proofFailed("backup_proof_failed", proofBackup),
	{kind: "files_open", urgency: sameDay, one: "permissions: $id", outside: func(v *statusView) (occurrence, error) {
		open := openToOthers(realPath(v.db))
		for i := range open {
			open[i] = strings.TrimPrefix(open[i], "permissions: ")
		}
		return foundList(open), nil
	}},
	{kind: "upgrade_copies", urgency: whenSeen,
		one:     "remove what upgrades have left, which may hold erased personal data: $id",
		outside: func(v *statusView) (occurrence, error) { return foundList(upgradeCopies(v.db)), nil }},
	{kind: "put_aside", urgency: whenSeen,
		one: "remove what a restore has put aside, once you miss nothing of it: $id",
		outside: func(v *statusView) (occurrence, error) {
			db := realPath(v.db)
			return foundList(append(movedAsideOf(db), besideIn(db, "newer-*")...)), nil
		}},
}

// backupOlder finds that there was no backup or, if there was, that the last one is too old. Where Litestream makes
// them, none is missing.
func backupOlder(never bool) func(v *statusView) (occurrence, error) {
	return func(v *statusView) (occurrence, error) {
		if v.litestream() {
			return occurrence{}, nil
		}
		at, err := v.lastBackup()
		switch age := v.now.Sub(at.Time); {
		case err != nil || at.IsZero() != never || age <= backupDue:
			return occurrence{}, err
		case never:
			return occurrence{Count: 1}, nil
		default:
			return occurrence{Count: int(age / (24 * time.Hour)), Since: at}, nil
		}
	}
}

// statusTroubles are those of which the service itself can't tell.
var statusTroubles = []trouble{
	{kind: "service_down", urgency: rings, one: "the service is not running: start it",
		outside: func(v *statusView) (occurrence, error) {
			return occursIf(v.service == nil && v.failed == nil, stamp{}, "", ""), nil
		}},
	{kind: "service_unasked", urgency: rings, one: "the service can't be asked: $id",
		outside: func(v *statusView) (occurrence, error) {
			return occursIf(v.failed != nil, stamp{}, "", fmt.Sprint(v.failed)), nil
		}},
	// Of a standby, or of a service of another version.
	{kind: "service_unwell", urgency: rings, one: "health is $what",
		outside: func(v *statusView) (occurrence, error) {
			s := v.service
			is := s != nil && s.Health != healthPass
			for i := range serviceTroubles {
				t := &serviceTroubles[i]
				is = is && (t.health == "" || s.found(t.kind).Count == 0)
			}
			if !is {
				return occurrence{}, nil
			}
			return occurrence{Count: 1, What: string(s.Health) + ": " + s.Output}, nil
		}},
	{kind: "service_version", urgency: whenSeen, one: "the service runs $id: restart it",
		outside: func(v *statusView) (f occurrence, _ error) {
			if s := v.service; s != nil && s.Version != buildName() {
				f = occurrence{Count: 1, ID: "version " + s.Version + ", this is " + buildName()}
			}
			return f, nil
		}},
	{kind: "unit_failed", urgency: rings, one: "the unit $what has failed: journalctl -u $what",
		many: "$n units have failed: $what", outside: func(v *statusView) (occurrence, error) {
			failed := v.env.failedUnits()
			return occurrence{Count: len(failed), What: strings.Join(failed, ", ")}, nil
		}},
	{kind: "starts_unasked", urgency: sameDay, one: "starts that nobody asked for since $since: $n",
		advice: ": 'journalctl -u widgetd' says why", outside: func(v *statusView) (f occurrence, _ error) {
			if starts := unaskedStarts(v.db, v.now); len(starts) > 0 {
				f = occurrence{Count: len(starts), Since: starts[0]}
			}
			return f, nil
		}},
	partsUnreadable,
}

// partsUnreadable is that other troubles can't be looked for. Whoever looks for these finds it.
var partsUnreadable = trouble{kind: unreadableKind, urgency: rings, one: "can't be read, so run 'widgetd check': $id"}

// failedUnits returns the units of this program and of Litestream that have failed, with the one that -unit names.
// Where systemd does not run, nothing else is known.
func (e *env) failedUnits() (units []string) {
	if unit := e.str("unit"); unit != "" {
		units = append(units, unit)
	}
	if !fileExists("/run/systemd/system") { // sd_booted(3)
		return units
	}
	limited, cancel := context.WithTimeout(e.ctx, statusTimeout)
	defer cancel()
	text, _ := exec.CommandContext(limited, "systemctl", "list-units", "--state=failed", "--plain", "--no-legend",
		"--full", "widgetd*", "litestream*").Output()
	return append(units, unitsIn(string(text), units)...)
}

// unitsIn returns the units that systemctl has listed, but for those, and for those that only tell of others.
func unitsIn(list string, but []string) (units []string) {
	for line := range strings.Lines(list) {
		unit, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if unit != "" && !slices.Contains(but, unit) && !strings.HasPrefix(unit, "widgetd-failed@") {
			units = append(units, unit)
		}
	}
	return units
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

// A shownTrouble is a trouble as -json shows it.
type shownTrouble struct {
	Kind    string  `json:"kind"`
	Urgency urgency `json:"urgency"`
	Money   bool    `json:"money"`
	Count   int     `json:"count"`
	Since   stamp   `json:"since"`
	Text    string  `json:"text"`
}

// finish ends the report.
func (r *statusReport) finish(db string) {
	shown := []shownTrouble{}
	for _, f := range r.found {
		shown = append(shown, shownTrouble{f.kind, f.urgency, f.money, f.Count, f.Since, f.text(true)})
	}
	r.set("version", buildName())
	r.set("database", db)
	r.set("schema_version", schemaVersion) // of the file too: no other is opened
	r.set("upgrade_copies", append([]string{}, upgradeCopies(db)...))
	r.set("needs_doing", r.needs())
	r.set("troubles", shown)
	unreadable, _ := r.unreadable()
	r.set("unreadable", unreadable)
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
	if n := len(r.found); n > 0 {
		status, text = exitNeedsDoing, countOf(n, "thing")+" to do: "+strings.Join(r.needs(), "; ")
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
	case s == nil:
		r.say("not running")
	default:
		r.say("%s", strings.TrimSuffix(string(s.Health)+": "+s.Output, ": "))
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
