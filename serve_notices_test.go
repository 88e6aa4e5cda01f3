package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"regexp"
	"strconv"
	"strings"
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

// refusalLine is a line of the log about refusals, with their names.
var refusalLine = regexp.MustCompile(`^time=(\S+) level=WARN msg="([^"]+)"(?: times=\d+)? by=(?:"([^"]+)"|(\S+))`)

// refusalName is a name in it, and how often it came.
var refusalName = regexp.MustCompile(`(.+?) (\d+)(?:, |$)`)

// refusals returns how often the log has told of each name of a kind of refusals: in one line a minute at most, with
// twenty names at most.
func (s *service) refusals(kind string) map[string]int {
	s.t.Helper()
	all, last := map[string]int{}, time.Time{}
	for line := range strings.Lines(s.log.String()) {
		m := refusalLine.FindStringSubmatch(line)
		if m == nil || m[2] != kind {
			continue
		}
		at, err := time.Parse(time.RFC3339, m[1])
		s.check(err)
		named := refusalName.FindAllStringSubmatch(m[3], -1)
		if at.Sub(last) < time.Minute || len(named) > 21 {
			s.t.Errorf("%s after another, with %d names: %s", at.Sub(last), len(named), line)
		}
		last = at
		for _, n := range named {
			times, _ := strconv.Atoi(n[2])
			all[n[1]] += times
		}
		if named == nil {
			all[cmp.Or(m[3], m[4])]++
		}
	}
	return all
}

// polling has the service look at its files and tell of what was refused each second, in a bubble.
func (s *service) polling() (stop func()) {
	return s.beside(func(ctx context.Context) { s.server.pollFiles(ctx, "") })
}

func TestNotices_countRefusalsOnceAMinuteWithTheirNames(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		s.polling()
		refuse := func(origin string) { s.post("/widget/leads", anyLead, "Origin: "+origin).is(403) }
		refuse("https://evil.example")
		time.Sleep(2 * time.Second)
		equal(t, "at once", s.refusals("origins were refused"), map[string]int{"https://evil.example": 1})
		for range 3 {
			refuse("https://worse.example")
		}
		refuse("https://EVIL.example:443")
		refuse("null")
		refuse("https://evil.example/<script>")
		time.Sleep(time.Minute)
		want := map[string]int{"https://worse.example": 3, "https://evil.example": 2, "malformed": 1, "null": 1}
		equal(t, "a minute later", s.refusals("origins were refused"), want)
		time.Sleep(5 * time.Minute)
		equal(t, "with nothing new", s.refusals("origins were refused"), want)
	})
}

func TestNotices_nameAtMostTwentyOriginsAndCountTheRest(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		n, told := size(50, 500), 0
		s.polling()
		for i := range n {
			s.post("/widget/leads", anyLead, fmt.Sprintf("Origin: https://%d.example", i)).is(403)
		}
		time.Sleep(2 * time.Minute)
		all := s.refusals("origins were refused")
		for _, times := range all {
			told += times
		}
		if told != n || all["others"] < n-41 {
			t.Fatalf("%d were told of: %v", told, all)
		}
	}, withoutAddressLimits)
}

func TestNotices_nameTheAccountOverItsRateAndTheReasonOfARefusedToken(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
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
		s.polling()
		time.Sleep(2 * time.Minute)
		equal(t, "limits", s.refusals("requests were over a rate limit"), map[string]int{"address": 2, s.account: 1})
		equal(t, "tokens", s.refusals("tokens were refused"), map[string]int{
			"malformed, or signed with another key": 2, "expired": 1, "malformed header": 1,
			"revoked or unknown, or its account is closed": 1, "too long": 1})
	})
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
