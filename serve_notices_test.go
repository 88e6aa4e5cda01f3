package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
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

func TestNotices_countRefusalsOnceAMinuteWithTheirNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.beside(func(ctx context.Context) { s.server.pollFiles(ctx, s.server.watchKeys("")) })
		refuse := func(origin string) { s.post("/widget/leads", anyLead, "Origin: "+origin).is(403) }
		refuse("https://evil.example")
		time.Sleep(2 * time.Second) // the first is logged at once
		want := `level=WARN msg="origins were refused" times=1 by="https://evil.example 1"`
		if got := s.logLines("origins were refused"); len(got) != 1 || got[0] != want {
			t.Fatalf("%q", got)
		}
		for range 3 {
			refuse("https://worse.example")
		}
		refuse("https://EVIL.example:443")
		refuse("null")
		refuse("https://evil.example/<script>")
		time.Sleep(50 * time.Second)
		if got := s.logLines("origins were refused"); len(got) != 1 {
			t.Fatalf("within the minute: %q", got)
		}
		time.Sleep(10 * time.Second)
		want = `level=WARN msg="origins were refused" times=6 ` +
			`by="https://worse.example 3, https://evil.example 1, malformed 1, null 1"`
		if got := s.logLines("origins were refused"); len(got) != 2 || got[1] != want {
			t.Fatalf("%q", got)
		}
		time.Sleep(5 * time.Minute)
		if got := s.logLines("origins were refused"); len(got) != 2 {
			t.Fatalf("with nothing new: %q", got)
		}
	})
}

func TestNotices_nameAtMostTwentyOriginsAndCountTheRest(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	n := size(50, 500)
	for i := range n {
		s.post("/widget/leads", anyLead, fmt.Sprintf("Origin: https://%d.example", i)).is(403)
	}
	s.server.logNotices(false)
	got := s.logLines("origins were refused")
	if len(got) != 1 || strings.Count(got[0], "https://") != 20 ||
		!strings.Contains(got[0], fmt.Sprintf("times=%d ", n)) ||
		!strings.Contains(got[0], fmt.Sprint("others ", n-20)) {
		t.Fatalf("%q", got)
	}
}

func TestNotices_nameTheAccountOverItsRateAndTheReasonOfARefusedToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.sql(`UPDATE accounts SET rate = 2`)
		token := s.token(s.account, scopeLeads)
		for range 3 {
			s.get("/leads", "Authorization: Bearer "+token)
		}
		for range 62 {
			s.post("/widget/leads", `{}`)
		}
		s.get("/leads", "Authorization: Basic x").is(401)
		s.get("/leads", "Authorization: Bearer nonsense").is(401)
		s.get("/leads", "Authorization: Bearer nonsense2").is(401)
		s.get("/leads", "Authorization: Bearer "+strings.Repeat("x", 5000)).is(401)
		other := s.token(s.account, scopeStats)
		s.sql(`UPDATE tokens SET revoked_at = '2000-01-01T00:00:00Z' WHERE scope = 'stats:read'`)
		s.get("/widget/stats", "Authorization: Bearer "+other).is(401)
		time.Sleep(31 * 24 * time.Hour)
		s.get("/leads", "Authorization: Bearer "+token).is(401)
		s.server.logNotices(true)
		for kind, want := range map[string]string{
			"over a rate limit": `times=3 by="address 2, ` + s.account + ` 1"`,
			"tokens were refused": `times=6 by="malformed, or signed with another key 2, expired 1, ` +
				`malformed header 1, revoked or unknown, or its account is closed 1, too long 1"`,
		} {
			if got := s.logLines(kind); len(got) != 1 || !strings.HasSuffix(got[0], want) {
				t.Errorf("%s: %q, want %s", kind, got, want)
			}
		}
	})
}

// TestAccessLog_ holds a line's form: nothing of what the caller chose stands in it.
func TestAccessLog_hasALineForEachRequestAndNothingOfTheCaller(t *testing.T) {
	t.Parallel()
	s := newService(t, func(_ *storeOptions, o *serverOptions) { o.accessLog = true })
	license, key := s.addLicense(license{Product: "kds"})
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
