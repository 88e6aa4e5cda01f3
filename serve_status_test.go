package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// serving runs the service of a test on a port until the test ends, or until stop is called.
func (s *service) serving() (stop func()) {
	s.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	s.check(err)
	end, ended := s.serveOn(listener)
	res, err := newClient(s.t).Get("http://" + listener.Addr().String() + "/livez")
	s.check(err)
	res.Body.Close()
	return func() {
		end()
		ended()
	}
}

// needsDoing returns what the status command says needs doing.
func needsDoing(status map[string]any) (lines []string) {
	for _, line := range status["needs_doing"].([]any) {
		lines = append(lines, line.(string))
	}
	return lines
}

// statusAsks returns what the status command says of troubles, and requires that 'widgetd watch', which posts it to
// others, says nothing of it that anybody else has written.
func statusAsks(t testing.TB, st *store, troubles ...trouble) (lines []string) {
	t.Helper()
	for _, trouble := range troubles {
		found, err := (&statusView{store: st, now: time.Now()}).find(&trouble)
		if must(t, err); found.Count == 0 {
			continue
		}
		seenTroubles.Store(trouble.kind, true)
		f := foundTrouble{&trouble, found}
		if lines = append(lines, f.text(true)); found.ID != "" {
			lacks(t, f.text(false), found.ID)
		}
	}
	return lines
}

// reportOn returns what the status command, without a database, says of what a service reports of itself.
func reportOn(service *serviceStatus) *statusReport {
	r := &statusReport{members: map[string]any{}}
	r.tellOfService(service, nil)
	r.readAll(&statusView{now: time.Now(), of: nouns(), service: service, db: "/nonexistent/widgetd.db",
		env: &env{getenv: func(string) string { return "" }}}, nil)
	return r
}

func TestStatus_tellsWhatTheFileHoldsAndWhatNeedsDoing(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(12 * time.Hour)
		o := newOperator(t)
		if got, want := needsDoing(o.object("status")), []string{"the service is not running: start it",
			"there was no backup yet: run 'widgetd backup FILE', best each day"}; !slices.Equal(got, want) {
			t.Errorf("of a new file: %q", got)
		}
		o.do("account", "close", o.object("account", "add", "Closed")["id"].(string), "-force")
		for _, expires := range []string{"365d", "5d", ""} {
			o.do("license", "add", "-account", o.account, "-product", "kds", "-expires", expires)
		}
		o.do("license", "revoke", o.object("license", "add", "-account", o.account, "-product", "kds")["id"].(string))
		o.addLeads("a@example.com", "b@example.com") // the second is a day older
		o.do("token", "issue", "-account", o.account, "-scope", "stats:read", "-ttl", "1h")
		o.do("token", "issue", "-account", o.account, "-scope", "stats:read", "-ttl", "90d")
		old := o.object("token", "issue", "-account", o.account, "-scope", "stats:read", "-ttl", "90d", "-client-id",
			"portal")["id"].(string)
		backup := filepath.Join(o.dir, "copy.db")
		o.do("backup", backup)
		now := newStamp(time.Now())
		o.change(func(t *tx) error {
			today := now.Format(time.DateOnly)
			_, err := t.try(`UPDATE tokens SET expires_at = ?, created_at = ? WHERE id = ?`, now.after(days(3)),
				now.after(-days(27)), old)
			t.countLegacy([]legacyCall{
				{Day: today, Path: "/api/legacy/widget/stats", Caller: o.account, Calls: 7, LastAt: now},
				{Day: "1999-12-01", Path: "/api/legacy/widget/stats", Caller: "unknown", Calls: 9, LastAt: now},
			})
			return err
		})
		left := o.env["WIDGETD_DB"] + ".v1-2026-01-31T120000Z"
		writeFile(t, left, "")
		must(t, os.Chmod(o.env["WIDGETD_DB"], 0o644))
		v := o.object("status")
		for name, want := range map[string]string{
			"accounts":       "map[closed:1 open:1]",
			"licenses":       "map[active:3 expired:0 grace:0 not_started:0 revoked:1 suspended:0]",
			"licenses_soon":  "1",
			"leads_today":    "1",
			"schema_version": fmt.Sprint(schemaVersion),
			"upgrade_copies": "[" + left + "]",
			"legacy_callers": "[map[caller:main calls:7 last_at:" + now.String() + "]]",
		} {
			equal(t, name, fmt.Sprint(v[name]), want)
		}
		if at, ok := parseStamp(v["last_backup_at"].(string)); !ok || !closerThan(time.Minute, at.Time, now.Time) ||
			v["events_today"].(float64) < 7 {
			t.Errorf("last backup %v, events %v", v["last_backup_at"], v["events_today"])
		}
		want := []string{
			"the service is not running: start it",
			"1 token ends within 14 days, the first on " + now.after(days(3)).day() + ": 'widgetd token list'",
			"permissions: others can read " + o.env["WIDGETD_DB"] + " (mode 0644): run 'chmod 600 " +
				o.env["WIDGETD_DB"] + "'",
			"remove what upgrades have left, which may hold erased personal data: " + left,
		}
		if got := needsDoing(v); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		text := o.do("status", "-wide")
		contains(t, text,
			"health          not running\n",
			"licences        active 3, revoked 1; 1 of the active end within 14 days\n",
			"accounts        1 open, 1 closed\n",
			"legacy callers  main: 7 calls in 7 days, the last at "+now.String()+"\n",
			"needs doing\n  the service is not running: start it\n")
		if lines := strings.Count(text, "\n"); lines > 24 {
			t.Errorf("%d lines:\n%s", lines, text)
		}
	})
}

func TestStatus_asksTheRunningServiceOverASocketOfItsUser(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.post("/widget/leads", anyLead).is(200)
	s.post("/widget/leads", anyLead).is(200)
	s.post("/widget/leads", `{}`).is(422)
	s.get("/nowhere").is(404)
	path := socketPath(s.store.path)
	s.server.statusSocket = path
	stop := s.serving()
	info, err := os.Stat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o600 || filepath.Base(path) != "widgetd.sock" {
		t.Fatalf("%s: %v %v", path, info, err)
	}
	var v *serviceStatus
	settled(func() string {
		v, err = askService(t.Context(), s.store.path)
		if s.check(err); v == nil {
			t.Fatal("nobody answers")
		}
		return v.Output
	})
	if v.Version != buildName() || v.Health != healthPass || v.StartedAt.IsZero() || v.Litestream {
		t.Fatalf("%+v", v)
	}
	wantRoutes := []routeCount{{"POST /widget/leads", 200, 2}, {"POST /widget/leads", 422, 1}, {noRoute, 200, 1},
		{noRoute, 404, 1}}
	wantRefused := []refusalCount{{"not_found", 1, 1}, {"validation_failed", 1, 1}}
	failIf(t, !slices.Equal(v.LastMinute, wantRoutes) || !slices.Equal(v.Refusals, wantRefused), "%+v", v)
	contains(t, settled(func() string { return s.must("status") }), "health       pass\n",
		"last minute  5 requests\n             200  POST /widget/leads  2\n",
		"callers      5/min, 5/h  anonymous\n",
		"refused      not_found: 1 in the last minute, 1 since the start\n")
	s.server.draining.Store(true)
	if v, err := askService(t.Context(), s.store.path); err != nil || v.Health != healthFail ||
		v.Output != "the service is stopping" {
		t.Errorf("while it stops: %+v %v", v, err)
	}
	stop()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if v, err := askService(t.Context(), s.store.path); v != nil || err != nil {
		t.Errorf("after the stop: %+v %v", v, err)
	}
}

// TestStatus_printsNothingThatMovesTheCursor asks somebody else who answers on the service's socket.
func TestStatus_printsNothingThatMovesTheCursor(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	var answer string
	socket, err := listenUnix(socketPath(o.env["WIDGETD_DB"]), 0o600)
	must(t, err)
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, answer) // fails when it was enough
	})}
	go web.Serve(socket)
	t.Cleanup(func() { web.Close() })
	const evil = `"\u001b[2J\u009b1m\u202ex\nhealth  pass\u0007"`
	answer = strings.ReplaceAll(`{"version":E,"health":E,"output":E,"clock":E,"last_minute":[{"route":E}],`+
		`"refusals":[{"code":E}],"callers":[{"account":E,"client":E}],"damage":{"table":E,"error":E},`+
		`"calls":{"fault":E}}`, "E", evil)
	for _, args := range [][]string{{"status"}, {"status", "-check"}, {"status", "-wide"}} {
		o.env["COLUMNS"] = "45"
		out, _ := o.try(args...) // -check fails, as something needs doing
		contains(t, out, "[2J")
		lacks(t, out, "\nhealth  pass")
		equal(t, "a character that moves the cursor, at", strings.IndexFunc(out, movesCursor), -1)
	}
	answer = `{"version":"` + strings.Repeat("x", 1<<20) + `"}`
	if v := o.object("status"); v["service"] != nil || !strings.HasSuffix(needsDoing(v)[0],
		"the service can't be asked: ask the service: its answer is longer than 1.0 MiB") {
		t.Errorf("%v", v)
	}
}

func TestStatus_saysWhoCalls(t *testing.T) {
	t.Parallel()
	s := newService(t)
	other := s.addAccount("Trattoria")
	token := s.token(other, scopeLicenses)
	_, key := s.addLicense(license{AccountID: other})
	lease := s.activate(key, "kitchen").is(200).text("token")
	for range 3 {
		s.get("/licenses", bearer(token)).is(200)
	}
	s.get("/webhooks", bearer(token)).is(403)
	s.post("/widget/license/verify", `{}`, bearer(lease)).is(200)
	s.get("/nowhere").is(404)
	row := func(account, name, client string, n int64) callerRow { return callerRow{account, name, client, n, n} }
	want := []callerRow{row(other, "Trattoria", "test", 4), row("", "", clientAnonymous, 1),
		row(other, "Trattoria", clientDevices, 1), row(other, "Trattoria", bucketLicenses, 1)}
	if got := s.server.serviceStatus().Callers; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestStatus_checkTellsByItsExitStatusAndOneLine(t *testing.T) {
	t.Parallel()
	s := newService(t)
	check := func(want int, line string) {
		t.Helper()
		var err error
		out := settled(func() (out string) {
			out, err = s.command("status", "-check")
			return out
		})
		var status exitStatus
		errors.As(err, &status)
		if int(status) != want || status == 0 && err != nil || !strings.HasPrefix(out, line) ||
			strings.Count(out, "\n") != 1 {
			t.Errorf("exit status %v, %q; want %d, %q", err, out, want, line)
		}
	}
	check(exitNotRunning, "2 things to do: the service is not running: start it; there was no backup yet")
	s.server.statusSocket = socketPath(s.store.path)
	s.serving()
	check(exitNeedsDoing, "1 thing to do: there was no backup yet")
	s.must("backup", filepath.Join(t.TempDir(), "copy.db"))
	check(0, "ok: nothing needs doing\n")
	s.server.draining.Store(true)
	check(exitNotRunning, "1 thing to do: the service is stopping")
	s.server.draining.Store(false)
}

func TestStatus_countsManyLicencesWithoutReadingEach(t *testing.T) {
	t.Parallel()
	s := newService(t, withLimits(func(most *limits) { most.talliedLicenses = size(50, most.talliedLicenses) }))
	most := s.store.limits.talliedLicenses
	s.sql(manyRows(most+1)+`INSERT INTO licenses (id, account_id, product, created_at, updated_at)
		SELECT printf('lic_%026d', i), ?, 'kds', ?2, ?2 FROM n`, s.account, newStamp(time.Now()))
	contains(t, s.must("status"), fmt.Sprintf("licences     %d; the view v_licenses has their statuses\n", most+1))
	contains(t, s.must("status", "-json"), `"licenses":{}`) // none was read
	s.sql(`DELETE FROM licenses WHERE id = ?`, fmt.Sprintf("lic_%026d", 1))
	contains(t, s.must("status"), fmt.Sprintf("licences     active %d\n", most))
}

func TestStatus_namesCallersOnFiveLinesOfAnyTerminal(t *testing.T) {
	t.Parallel()
	service := &serviceStatus{Version: buildName()}
	for i := range 8 {
		service.Callers = append(service.Callers, callerRow{Account: "Trattoria Bellavista on the lake",
			Client: fmt.Sprint("till ", i), LastMinute: 1200, LastHour: 36000})
	}
	for width, want := range map[int]string{45: "1200/min, 36000/h  …e, till 0",
		20: "1200/min, 36000/h  …ill 0",
		0:  "1200/min, 36000/h  Trattoria Bellavista on the lake, till 0"} {
		r := &statusReport{members: map[string]any{}, width: width}
		r.tellOfService(service, nil)
		at := slices.IndexFunc(r.details, func(d detail) bool { return d.label == "callers" })
		equal(t, "lines", len(r.details)-at, 5)
		equal(t, fmt.Sprint("at columns ", width), r.details[at].value, want)
	}
}

func TestCalls_thatFailAlikeToDifferentHostsAreToldOfAtOnceAndWhenThatIsOver(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		s.beside(func(ctx context.Context) { s.server.pollFiles(ctx, "") })
		lines := func(text string) int { return len(s.logLines(text + callsFailAlike)) }
		s.callUnresolvable("a.example", "b.example")
		s.callUnresolvable("b.example")
		time.Sleep(time.Minute)
		equal(t, "lines of two hosts, which may fail by themselves", lines("level=WARN msg=\""), 0)
		s.callUnresolvable("c.example")
		time.Sleep(reachLasted + 2*time.Second)
		equal(t, "lines", lines("level=WARN msg=\""), 1)
		contains(t, s.log.String(), string(callDNS), "getent hosts")
		calls := s.server.serviceStatus().Calls
		if calls == nil || calls.Fault != callDNS || time.Since(calls.Since.Time) < reachLasted {
			t.Errorf("%+v", calls)
		}
		needs := reportOn(s.server.serviceStatus()).needs()
		contains(t, strings.Join(needs, "\n"), callsFailAlike+" since "+calls.Since.String()+" ("+string(callDNS))
		time.Sleep(reachFor)
		s.callUnresolvable("d.example") // nothing else was called meanwhile
		if s.server.serviceStatus().Calls == nil {
			t.Error("over, although the only call has failed in the same way")
		}
		s.server.outbound.reach.note("b.example", "")
		time.Sleep(3 * time.Minute)
		if s.server.serviceStatus().Calls != nil {
			t.Error("not over, although a call was answered")
		}
	})
}

func TestServe_saysAtTheStartThatThisMachineKnowsNoAuthority(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	cmd := exec.Command(builtProgram(t), o.serving()...)
	cmd.Env = append(os.Environ(), "SSL_CERT_FILE=/nonexistent", "SSL_CERT_DIR=/nonexistent")
	p := start(t, cmd)
	contains(t, p.log.String(), noRootsText, "ca-certificates")
	if needs := needsDoing(o.object("status")); !slices.ContainsFunc(needs, func(line string) bool {
		return strings.HasPrefix(line, noRootsText)
	}) {
		t.Errorf("%q", needs)
	}
	p.stop(syscall.SIGTERM)
}

// What was killed leaves its socket, and what ends does not.
func TestStatus_namesStartsThatNobodyAskedFor(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	db, now := o.env["WIDGETD_DB"], time.Now()
	leave := func(socket string, stays bool) {
		l, err := listenUnix(socket, 0o600)
		must(t, err)
		l.(*net.UnixListener).SetUnlinkOnClose(!stays)
		must(t, l.Close())
	}
	equal(t, "a first start", wasKilled(db), false)
	leave(socketPath(db), false)
	equal(t, "after an end", wasKilled(db), false)
	leave(socketPath(db), true)
	equal(t, "after a kill", wasKilled(db), true)
	must(t, os.WriteFile(startsPath(db), []byte(`["2026-01-`), 0o600)) // broken off
	for i := range maxUnasked + 5 {
		must(t, noteUnasked(db, now.Add(time.Duration(i-maxUnasked-5)*time.Minute)))
	}
	starts := unaskedStarts(db, now)
	equal(t, "kept", len(starts), maxUnasked)
	equal(t, "a day later", len(unaskedStarts(db, starts[2].Add(unaskedFor))), maxUnasked-3)
	contains(t, strings.Join(needsDoing(o.object("status")), "\n"), fmt.Sprintf(
		"starts that nobody asked for since %s: %d: 'journalctl -u widgetd' says why", starts[0], maxUnasked))
	must(t, os.Remove(startsPath(db)))
	lacks(t, strings.Join(needsDoing(o.object("status")), "\n"), "nobody asked for")
}
