package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// seenTroubles are the kinds of trouble that were found in this run.
var seenTroubles sync.Map

// neverFound lists the kinds of trouble that no test of a whole run has caused.
func neverFound() (missing []string) {
	for _, t := range troublesOf(nouns()) {
		if _, seen := seenTroubles.Load(t.kind); !seen {
			missing = append(missing, "the trouble "+t.kind)
		}
	}
	return missing
}

// inSentence are the places of a sentence that are filled in.
var inSentence = regexp.MustCompile(`\$(\w+)`)

// noteTroubles notes which troubles the status command has printed.
func noteTroubles(args []string, out string) {
	if args[0] != "status" {
		return
	}
	words := strings.Join(strings.Fields(out), " ")
	for _, t := range troublesOf(nouns()) {
		for _, sentence := range []string{t.one + t.advice, t.many + t.advice} {
			rest, found := words, sentence != t.advice
			for _, part := range inSentence.Split(sentence, -1) {
				_, rest, _ = strings.Cut(rest, strings.TrimSpace(part))
				found = found && strings.Contains(words, strings.TrimSpace(part))
			}
			if found {
				seenTroubles.Store(t.kind, true)
			}
		}
	}
}

// A kind is a promise: rules for alerts and dashboards name it.
func TestTroubles_haveAKindAnUrgencyAndWordsThatNobodyElseHasWritten(t *testing.T) {
	t.Parallel()
	kinds, all := map[string]bool{}, troublesOf(nouns())
	for _, trouble := range all {
		ways := 0
		for _, way := range []bool{trouble.inFile != nil, trouble.query != "", trouble.outside != nil} {
			ways += oneIf[way]
		}
		failIf(t, kinds[trouble.kind] || !regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`).MatchString(trouble.kind) ||
			!slices.Contains(urgencies, trouble.urgency), "%+v", trouble)
		kinds[trouble.kind] = true
		failIf(t, trouble.kind != unreadableKind && ways+oneIf[trouble.inService != nil] < 1 || ways > 1,
			"%s is found in %d ways", trouble.kind, ways)
		failIf(t, trouble.health != "" && trouble.inService == nil, "%s: health reads no file", trouble.kind)
		for _, name := range captures(inSentence.String(), trouble.one+" "+trouble.many+" "+trouble.advice) {
			known := slices.Contains(strings.Fields("n more since day what id"), name)
			failIf(t, !known, "%s has $%s", trouble.kind, name)
		}
		for n := range 3 {
			const evil = "EVIL <b>pay me</b>\r\nPriority: 1"
			f := foundTrouble{&trouble, occurrence{Count: n, ID: evil, What: "our words", Since: newStamp(time.Now())}}
			lacks(t, f.text(false), "EVIL", "Priority", "$")
			failIf(t, strings.Trim(f.text(false), "…0 ;:(),") == "", "%s says nothing to a telephone", trouble.kind)
		}
	}
	failIf(t, len(all) < 50, "%d kinds", len(all))
}

// samplesOf returns the series of a metric.
func (s *service) samplesOf(name string) map[string]string {
	s.server.troubles.at = time.Time{}
	series := map[string]string{}
	for _, m := range append(s.server.coreMetrics(), s.server.moduleMetrics...) {
		if m.name != name {
			continue
		}
		for _, line := range m.samples() {
			i := strings.LastIndexByte(line, ' ')
			series[name+line[:i]] = line[i+1:]
		}
	}
	return series
}

// metricOf returns how many there are of a kind of trouble, as the service counts them anew; "": it is not measured.
func (s *service) metricOf(kind string) string {
	s.t.Helper()
	for series, n := range s.samplesOf("widgetd_trouble") {
		if strings.Contains(series, `{kind="`+kind+`",`) {
			if n != "0" {
				seenTroubles.Store(kind, true)
			}
			return n
		}
	}
	return ""
}

// stands is the cause of what a machine of a pair may not do.
func stands(duty role, reason string) func(s *service) {
	return func(s *service) { s.store.become(machineState{duty, reason}) }
}

// proves is the cause of what a try to restore has come to.
func proves(p proof) func(s *service) {
	return func(s *service) {
		s.store.noCheckpoints = p.What == proofReplica
		s.change(func(t *tx) error {
			t.markProof(p.What, "mark")
			t.endProof(&p)
			return nil
		})
		long := newStamp(time.Now().Add(-proofOverdue - time.Hour))
		s.server.health.proof = &proof{What: p.What, DueSince: long} // as its next look at the file has it
		s.sql(`UPDATE proofs SET due_since = ?`, long)
	}
}

// holdsBooks is the cause of what books do not get.
func holdsBooks(state bookExportState, reason string, change func(t *tx, c *bookConnection)) func(s *service) {
	return func(s *service) {
		s.change(func(t *tx) error {
			c, err := addBooks(t, s.keys, s.account, productXero, func(c *bookConnection) { change(t, c) })
			if err == nil && state != "" {
				_, err = addBooksExport(t, c, "2000-01-01", state, reason, t.now)
			}
			return err
		})
	}
}

// causes bring a service into the states that it finds by itself, by the kinds of trouble that come of each.
var causes = map[string]func(s *service){
	"service_stops":   func(s *service) { s.server.draining.Store(true) },
	"pair_superseded": stands(roleFenced, reasonSuperseded),
	"pair_followed":   stands(roleFenced, reasonFollowed),
	"pair_silent":     stands(dutyWaiting, reasonSilent),
	"pair_holds":      stands(dutyWaiting, reasonRivalled),
	"standby_behind":  stands(roleAlone, reasonBehind), // as the standby's answer has it
	"epoch_superseded": func(s *service) {
		s.check(writeEpochFile(heardPath(s.store.path), epoch{Number: 7, Name: "0123456789abcdef"}))
	},
	"database_fails": func(s *service) {
		s.check(os.Rename(s.store.path, s.store.path+".moved"))
		time.Sleep(healthInterval)
		s.get("/widget/health").is(503)
		s.check(os.Rename(s.store.path+".moved", s.store.path))
	},
	"database_waits": func(s *service) {
		release := holdWriter(s.t, s.store)
		s.t.Cleanup(release)
		time.Sleep(healthInterval)
		s.get("/widget/health").is(200)
		time.Sleep(5 * time.Second)
	},
	"damage_written":  func(s *service) { s.store.faults.noteDamage("UPDATE leads", errStorage, true) },
	"damage_read":     func(s *service) { s.store.faults.noteDamage("SELECT id FROM leads", errStorage, false) },
	"rows_unreadable": func(s *service) { s.store.faults.noteRow(&unreadableRow{table: "leads", cause: "no time"}) },
	"log_large":       func(s *service) { s.store.maxWAL = 1 },
	"key_file": func(s *service) {
		path := filepath.Join(s.dir, "widgetd.key")
		s.check(os.WriteFile(path, []byte("nonsense"), 0o600))
		s.server.followKeys(path)
	},
	"clock_doubted": func(s *service) { s.startsAfter(days(400)) },
	"clock_behind":  func(s *service) { s.startsAfter(-days(400)) },
	"requests_fail": func(s *service) {
		for range 10 {
			s.server.metrics.count("POST /widget/leads", 507, 0, callerKey{}, s.server.monotonic())
		}
	},
	"disk_short": func(s *service) {
		path := filepath.Join(smallDisk(s.t, 64<<20), "widgetd.db")
		copyTemplate(s.t, path)
		s.store.path = path
	},
	"calls_fail": func(s *service) {
		s.callUnresolvable("a.example", "b.example", "c.example", "d.example")
		time.Sleep(time.Minute)
	},
	"no_authorities":                      func(s *service) { s.server.noRoots = true },
	"backup_missing":                      func(s *service) {},
	"backup_old":                          func(s *service) { s.change(noteBackup); time.Sleep(days(9)) },
	"backup_proof_failed backup_unproven": proves(proof{What: proofBackup, Fault: "there is no room"}),
	"replica_proof_failed replica_unproven litestream_down": proves(proof{What: proofReplica, Fault: "no room"}),
	"litestream_old": proves(proof{What: proofReplica, Litestream: "0.5.16"}),
	"webhooks_late": func(s *service) { // no worker runs
		s.subscribe(s.account, "https://hooks.example.com/", eventLeadCreated)
		s.announce(s.account, eventLeadCreated)
		time.Sleep(time.Hour)
	},
	"books_held":   holdsBooks(exportHeld, heldLocked, func(*tx, *bookConnection) {}),
	"books_failed": holdsBooks(exportFailed, "400", func(*tx, *bookConnection) {}),
	"books_needs_reconnect": holdsBooks("", "", func(t *tx, c *bookConnection) {
		c.NeedsReconnectAt = t.now
	}),
	"books_silent": holdsBooks("", "", func(t *tx, c *bookConnection) { c.FailingSince = t.now.after(-days(1)) }),
}

// shopCauses are causes in a shop.
var shopCauses = map[string]func(s *shop){
	"payments_late": func(s *shop) { // no worker runs
		s.start(s.place().ID)
		time.Sleep(time.Hour)
	},
	"payments_in_review": func(s *shop) {
		p := s.start(s.place().ID)
		s.atProvider(p, func(x *testSession) { x.amount = 1 })
		s.authorize(p)
		s.settle(p)
	},
	"payment_keys_refused": func(s *shop) {
		o, _ := s.authorized()
		s.fail(opCapture, fault401)
		s.accept(o.ID)
		s.check(s.engine.settleLive(s.t.Context(), o.ID))
	},
	"authorisations_lapse": func(s *shop) {
		s.authorized()
		s.sql(`UPDATE payments SET capture_before = ?`, newStamp(time.Now().Add(time.Hour)))
	},
	"revenue_waits": func(s *shop) {
		s.paid()
		s.sql(`INSERT INTO revenue_backlog SELECT id FROM orders`)
	},
}

// TestTroubles_areFoundInTheStateThatTheyAreForAndNotBefore brings a service into the state of each trouble that it
// finds by itself: health says so, and so does the metric.
func TestTroubles_areFoundInTheStateThatTheyAreForAndNotBefore(t *testing.T) {
	t.Parallel()
	try := func(s *service, kinds string, cause func()) {
		s.t.Helper()
		s.get("/widget/health").is(200)
		for kind := range strings.FieldsSeq(kinds) {
			is := s.metricOf(kind)
			failIf(s.t, is != "0" && kind != "backup_missing", "%s is %q before", kind, is)
		}
		cause()
		for kind := range strings.FieldsSeq(kinds) {
			i := slices.IndexFunc(s.server.kinds, func(t trouble) bool { return t.kind == kind })
			is, trouble := s.metricOf(kind), s.server.kinds[i]
			failIf(s.t, is == "" || is == "0", "%s is %q", kind, is)
			if report := s.server.reportOf(s.server.lastHealth()); trouble.health != "" {
				failIf(s.t, report.Status != trouble.health || report.Output == "", "%s: health is %+v", kind, report)
			}
		}
	}
	for kinds, cause := range causes {
		t.Run(kinds, func(t *testing.T) {
			inBubble(t, func(_ *testing.T, s *service) { try(s, kinds, func() { cause(s) }) })
		})
	}
	for kinds, cause := range shopCauses {
		t.Run(kinds, func(t *testing.T) {
			inShop(t, func(s *shop) { try(s.service, kinds, func() { cause(s) }) })
		})
	}
}

// callUnresolvable calls hosts whose names can't be looked up, since the name server fails. (A real one can't be asked
// from a bubble.)
func (s *service) callUnresolvable(hosts ...string) {
	s.t.Helper()
	out := s.server.outbound
	out.secure.DialTLSContext = func(context.Context, string, string) (net.Conn, error) {
		return nil, noAnswer(outboundNoAddress, &net.DNSError{Err: "server misbehaving", IsTemporary: true})
	}
	for _, host := range hosts {
		_, err := out.do(s.t.Context(), outboundRequest{method: "GET", url: "https://" + host + "/"})
		failIf(s.t, err == nil, "%s can be called", host)
	}
}

// One failure, or failures among many answers, are no trouble, and neither is health's own 503.
func TestTroubles_countFailedAnswersOfFiveMinutes(t *testing.T) {
	t.Parallel()
	var m metrics
	now := time.Now()
	answer := func(route string, status, times int) {
		for range times {
			m.count(route, status, 0, callerKey{}, now)
		}
	}
	answer(healthRoute, 503, 100)
	answer("GET /x", 200, 50)
	answer("GET /x", 500, 2)
	now = now.Add(4 * time.Minute)
	answer("GET /y", 503, 1)
	failed, all := m.failing(now)
	equal(t, "within five minutes", fmt.Sprint(failed, " of ", all), "3 of 53")
	now = now.Add(2 * time.Minute)
	failed, all = m.failing(now)
	equal(t, "two minutes later", fmt.Sprint(failed, " of ", all), "1 of 1")
	now = now.Add(time.Hour)
	failed, all = m.failing(now)
	equal(t, "an hour later", fmt.Sprint(failed, " of ", all), "0 of 0")
}

var writeTroubles = flag.Bool("write-troubles", false, "write the table of troubles in docs/operating.md anew")

// troubleTable returns the manual's table of all troubles.
func troubleTable() string {
	text := "| Kind | Urgency | What `status` says |\n|---|---|---|\n"
	all := troublesOf(nouns())
	slices.SortFunc(all, func(a, b trouble) int { return cmp.Compare(a.kind, b.kind) })
	for _, t := range all {
		mark := ""
		if t.measured() {
			mark = " ·"
		}
		sentence := strings.ReplaceAll(cmp.Or(t.many, t.one)+t.advice, "$n ", "… ")
		sentence = inSentence.ReplaceAllString(sentence, "…")
		text += fmt.Sprintf("| `%s`%s | %s | %s |\n", t.kind, mark, t.urgency, sentence)
	}
	return text
}

func TestTroubles_areTheManualsTable(t *testing.T) {
	t.Parallel()
	const path, heading = "docs/operating.md", "| Kind | Urgency | What `status` says |\n"
	text := fileText(t, path)
	before, rest, found := strings.Cut(text, heading)
	failIf(t, !found, "%s has no table of troubles", path)
	_, after, _ := strings.Cut(rest, "\n\n")
	want := before + troubleTable() + "\n" + after
	if *writeTroubles {
		must(t, os.WriteFile(path, []byte(want), 0o644))
		return
	}
	failIf(t, text != want, "%s: write its table of troubles anew with -write-troubles", path)
}

func TestTroubles_ofFilesAndOfAServiceThatCommandsSee(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.do("token", "issue", "-account", o.account, "-scope", "stats:read")
	o.replaceKeyFile()
	aside := filepath.Join(o.dir, "newer-2026-11-28-x", filepath.Base(o.env["WIDGETD_DB"]))
	must(t, os.Mkdir(filepath.Dir(aside), 0o700))
	writeFile(t, aside, "")
	needs := strings.Join(needsDoing(o.object("status")), "\n")
	contains(t, needs, "a key that tokens or leases need is missing: key: the key file lacks ",
		"remove what a restore has put aside, once you miss nothing of it: "+aside)

	// Of a service of another version that names none, what health says is told.
	kinds := []string{}
	for _, f := range reportOn(&serviceStatus{Version: "0.9", Health: healthWarn, Output: "it is ill"}).found {
		if strings.HasPrefix(f.kind, "service_") { // there is no key file either
			seenTroubles.Store(f.kind, true)
			kinds = append(kinds, f.kind+": "+f.text(true))
		}
	}
	equal(t, "kinds", kinds, []string{"service_unwell: health is warn: it is ill",
		"service_version: the service runs version 0.9, this is " + buildName() + ": restart it"})
}

// Against a database that was restored from a backup, and so does not know that it was written: it lies beside it.
func TestTroubles_knowTheBackupsThatLieBesideTheDatabase(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	dir := filepath.Join(o.dir, "backup")
	must(t, os.Mkdir(dir, 0o700))
	o.do("backup", filepath.Join(dir, "widgetd-1.db"))
	o.change(func(t *tx) error {
		_, err := t.try(`DELETE FROM events WHERE type = 'backup.written'`)
		return err
	})
	v := o.object("status")
	lacks(t, strings.Join(needsDoing(v), "\n"), "backup")
	failIf(t, v["last_backup_at"] == nil, "the copy is not known")
	must(t, os.RemoveAll(dir))
	contains(t, strings.Join(needsDoing(o.object("status")), "\n"), "there was no backup yet")
}

// logLines returns the lines of the log that hold a text, without their times.
func (s *service) logLines(text string) (lines []string) {
	for line := range strings.Lines(s.log.String()) {
		if _, rest, _ := strings.Cut(strings.TrimSpace(line), " "); strings.Contains(rest, text) {
			lines = append(lines, rest)
		}
	}
	return lines
}

// warned returns the attributes of each line of the log about a warning.
func (s *service) warned(kind string) (lines []string) {
	for _, line := range s.logLines(`level=WARN msg="` + kind + `"`) {
		_, rest, _ := strings.Cut(line, kind+`" `)
		lines = append(lines, rest)
	}
	return lines
}

func TestNotices_tellOfAWarningThatRepeatsItselfOnceAMinuteWithItsCount(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		refuse := func(origin string) { s.post("/widget/leads", anyLead, "Origin: "+origin).is(403) }
		is := func(when string, want ...string) { t.Helper(); equal(t, when, s.warned(warnOrigins), want) }
		refuse("https://evil.example")
		is("at once", "by=https://evil.example")
		for i := range 50 {
			refuse(fmt.Sprintf("https://%d.example", i))
		}
		refuse("null")
		time.Sleep(59 * time.Second)
		is("within the minute", "by=https://evil.example")
		time.Sleep(2 * time.Second)
		is("a minute later", "by=https://evil.example", "by=null times=51")
		refuse("https://evil.example/<script>")
		is("in the next minute", "by=https://evil.example", "by=null times=51")
		time.Sleep(10 * time.Minute)
		is("with nothing new", "by=https://evil.example", "by=null times=51", "by=malformed times=1")
		s.server.repeats.mu.Lock()
		remembered := len(s.server.repeats.repeated)
		s.server.repeats.mu.Unlock()
		equal(t, "what is remembered of it", remembered, 0)
		refuse("https://worse.example")
		refuse("https://worse.example")
		s.get("/leads", "Authorization: Basic x").is(401) // another message does not wait for it
		s.server.repeats.passAll()
		is("at the stop", "by=https://evil.example", "by=null times=51", "by=malformed times=1",
			"by=https://worse.example", "by=https://worse.example times=1")
		equal(t, "another one", s.warned(warnTokens), []string{`by="malformed header"`})
	}, withoutAddressLimits)
}

func TestNotices_nameTheAccountOverItsRateAndTheReasonOfARefusedToken(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		s.sql(`UPDATE accounts SET rate = 2`)
		token := s.token(s.account, scopeLeads)
		tells := func(kind, by string, refused func()) {
			t.Helper()
			before := len(s.warned(kind))
			refused()
			equal(t, kind, s.warned(kind)[before:], []string{"by=" + by})
			time.Sleep(2 * time.Minute) // from when on it is told at once again
		}
		tells(warnRates, s.account, func() {
			for range 3 {
				s.get("/leads", "Authorization: Bearer "+token)
			}
		})
		tells(warnRates, "address", func() {
			for range 61 {
				s.post("/widget/leads", `{}`)
			}
		})
		refuse := func(bearer string) func() { return func() { s.get("/leads", "Authorization: "+bearer).is(401) } }
		tells(warnTokens, `"malformed header"`, refuse("Basic x"))
		tells(warnTokens, `"malformed, or signed with another key"`, refuse("Bearer nonsense"))
		tells(warnTokens, `"too long"`, refuse("Bearer "+strings.Repeat("x", 5000)))
		other := s.token(s.account, scopeStats)
		s.sql(`UPDATE tokens SET revoked_at = '2000-01-01T00:00:00Z' WHERE scope = 'stats:read'`)
		tells(warnTokens, `"revoked or unknown, or its account is closed"`, func() {
			s.get("/widget/stats", "Authorization: Bearer "+other).is(401)
		})
		time.Sleep(31 * 24 * time.Hour)
		tells(warnTokens, "expired", refuse("Bearer "+token))
	})
}

// What a stop breaks off, or a caller who has gone, is no fault, whoever met it and however it is wrapped.
func TestNotices_tellOfNothingThatWasBrokenOff(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	log := slog.New(newRepeatFilter(slog.New(slog.NewTextHandler(&out, nil))))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	log.Warn("a", "error", gone.Err())
	log.Warn("b", "connection", "con_1", "error", fmt.Errorf("read: %w", noAnswer(outboundCanceled, gone.Err())))
	log.Warn("c", "error", outboundCanceled)
	equal(t, "log", out.String(), "")
	log.Warn("d", "error", context.DeadlineExceeded)
	log.Error("e", "error", gone.Err())
	contains(t, out.String(), "msg=d", "msg=e")
}

func TestLog_saysTheJournalThePriorityOfEachLine(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	must(t, err)
	defer f.Close()
	var stat syscall.Stat_t
	must(t, syscall.Fstat(int(f.Fd()), &stat))
	stream := fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
	env := func(name string) string { return map[string]string{"JOURNAL_STREAM": stream}[name] }
	equal(t, "the journal", isJournal(f, env), true)
	equal(t, "another file, and another stream", isJournal(os.Stdin, env) || isJournal(&strings.Builder{}, env), false)
	stream += "0"
	equal(t, "another number", isJournal(f, env), false)
	for format, want := range map[string]string{
		"text": "<6>time=T level=INFO msg=a\n<4>time=T level=WARN msg=\"b\\nc\" x=1\n<3>time=T level=ERROR msg=d\n",
		"json": `<6>{"time":T,"level":"INFO","msg":"a"}` + "\n" +
			`<4>{"time":T,"level":"WARN","msg":"b\nc","x":1}` + "\n" +
			`<3>{"time":T,"level":"ERROR","msg":"d"}` + "\n",
	} {
		for _, journal := range []bool{true, false} {
			var out strings.Builder
			log, err := newLogger(&out, format, journal)
			must(t, err)
			log.Info("a")
			log.Warn("b\nc", "x", 1)
			log.Error("d")
			got := regexp.MustCompile(`"?\d{4}-\d\d-\d\dT[^ ",]+"?`).ReplaceAllString(out.String(), "T")
			if !journal {
				want = regexp.MustCompile(`(?m)^<\d>`).ReplaceAllString(want, "")
			}
			equal(t, fmt.Sprint(format, journal), got, want)
		}
	}
	equal(t, "why a command failed", forJournal("widgetd: a\nb"), "<3>widgetd: a\n<3>b")
}

// TestAccessLog_ holds a line's form: nothing of what the caller chose stands in it.
func TestAccessLog_hasALineForEachRequestAndNothingOfTheCaller(t *testing.T) {
	t.Parallel()
	s := newService(t, func(_ *storeOptions, o *serverOptions) { o.accessLog = true })
	license, key := s.addLicense(license{terms: terms{Product: "kds"}})
	token := s.token(s.account, scopeLicenses)
	s.post("/widget/leads", anyLead).is(200)
	s.get("/licenses/"+license, "Authorization: Bearer "+token).is(200)
	s.get("/licenses?q=needle", "Authorization: Bearer "+token, "X-Forwarded-For: 192.0.2.77").is(200)
	s.post("/widget/license/verify", `{"license_key":"`+key+`","fingerprint":"kitchen"}`).is(200)
	lease := s.activate(key, "kitchen").is(200).text("token")
	s.post("/widget/license/verify", `{}`, bearer(lease)).is(200)
	s.get("/nowhere/" + license).is(404)
	line := regexp.MustCompile(`^level=INFO msg=request route=("(?:GET|POST) [^"?]+"|none) status=\d{3} ` +
		`milliseconds=[0-9.]+(?:e-\d+)? request_id=req_\w{26} account=(-|acct_\w{26}) token=(-|tok_\w{26})$`)
	lines := s.logLines("msg=request")
	want := []string{`"POST /widget/leads"`, `"GET /licenses/{id}"`, `"GET /licenses"`,
		`"POST /widget/license/verify"`, `"POST /widget/license/activate"`, `"POST /widget/license/verify"`, "none"}
	bears := []bool{false, true, true, false, false, true, false}
	if len(lines) != len(want) {
		t.Fatalf("%q", lines)
	}
	for i, l := range lines {
		if m := line.FindStringSubmatch(l); m == nil || m[1] != want[i] || (m[3] != "-") != bears[i] ||
			bears[i] && !strings.Contains(payloadOf(t, token), `"jti":"`+m[3]+`"`) &&
				!strings.Contains(payloadOf(t, lease), `"jti":"`+m[3]+`"`) {
			t.Errorf("%q, want the route %s and the token's id: %v", l, want[i], bears[i])
		}
	}
	for _, secret := range []string{license, key, token, lease, "needle", "192.0.2.", "nowhere", "kitchen"} {
		if strings.Contains(s.log.String(), secret) {
			t.Errorf("the log holds %q", secret)
		}
	}
	silent := newService(t)
	silent.post("/widget/leads", anyLead).is(200)
	equal(t, "what is logged unless it is asked for", silent.log.String(), "")
}

// payloadOf returns the claims of a token as JSON.
func payloadOf(t testing.TB, token string) string {
	t.Helper()
	text, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	must(t, err)
	return string(text)
}
