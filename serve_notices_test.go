package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

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
