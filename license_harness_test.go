package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// sameText compares what a test got with what it wants, as both are printed; more are further such pairs.
func sameText(t testing.TB, what, got, want any, more ...any) {
	t.Helper()
	for i, pairs := 0, append([]any{got, want}, more...); i < len(pairs); i += 2 {
		if fmt.Sprint(pairs[i]) != fmt.Sprint(pairs[i+1]) {
			t.Errorf("%v: %v, want %v", what, pairs[i], pairs[i+1])
		}
	}
}

// oneLine checks that an error is one line and says each of the parts.
func oneLine(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one that says %q", parts)
	}
	contains(t, err.Error(), parts...)
	if strings.ContainsAny(err.Error(), "\r\n") {
		t.Errorf("error %q is more than one line", err)
	}
}

// runInBubble is a subtest in a bubble.
func runInBubble(t *testing.T, name string, test func(t *testing.T, s *service)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { inBubble(t, test) })
}

// tells checks members of the body, whose names and values alternate. A name goes down with its dots.
func (a answer) tells(pairs ...any) answer {
	a.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		var v any = a.json()
		for name := range strings.SplitSeq(pairs[i].(string), ".") {
			object, _ := v.(map[string]any)
			v = object[name]
		}
		got, _ := json.Marshal(v)
		if want, _ := json.Marshal(pairs[i+1]); string(got) != string(want) {
			a.t.Fatalf("%s is %s, want %s: %s", pairs[i], got, want, a.body)
		}
	}
	return a
}

// omits checks that none of some texts stands in the body.
func (a answer) omits(texts ...string) answer {
	a.t.Helper()
	for _, text := range texts {
		if strings.Contains(a.body, text) {
			a.t.Fatalf("there is %q in %d %s", text, a.status, a.body)
		}
	}
	return a
}

// challenged checks a refusal's status, code and exact WWW-Authenticate.
func (a answer) challenged(status int, code, challenge string) answer {
	a.t.Helper()
	return a.is(status, code).has("WWW-Authenticate: " + challenge)
}

// invalidToken checks the refusal of a token.
func (a answer) invalidToken() answer {
	a.t.Helper()
	return a.challenged(401, "invalid_token", invalidChallenge)
}

// deviceIs checks a condition, in SQL, of a device's row.
func (s *service) deviceIs(id, condition string, args ...any) {
	s.t.Helper()
	if s.count(`SELECT count(*) FROM devices WHERE id = ? AND `+condition, append([]any{id}, args...)...) != 1 {
		s.t.Errorf("not %s %v: %+v", condition, args, s.deviceRow(id))
	}
}

// keyFile is where the service's keys lie.
func (s *service) keyFile() string { return filepath.Join(s.dir, "widgetd.key") }

// failure runs a command and returns its error.
func (s *service) failure(args ...string) error {
	s.t.Helper()
	_, err := s.command(args...)
	return err
}

// fails runs a command that must fail and say something.
func (s *service) fails(want string, args ...string) {
	s.t.Helper()
	if err := s.failure(args...); err == nil || !strings.Contains(err.Error(), want) {
		s.t.Errorf("widgetd %q: %v, want %q", args, err, want)
	}
}

// license asks an endpoint of devices with the members of a body, and with a header unless that is "".
func (s *service) license(path, auth string, members ...any) answer {
	s.t.Helper()
	if auth == "" {
		return s.post("/widget/license/"+path, seatBody(members...))
	}
	return s.post("/widget/license/"+path, seatBody(members...), auth)
}

// deactivate releases a device by its key.
func (s *service) deactivate(key, fingerprint string) answer {
	s.t.Helper()
	return s.post("/widget/license/deactivate", activateBody(key, fingerprint))
}

// activateByToken activates by device token; more are members of the body.
func (s *service) activateByToken(token string, more ...any) answer {
	s.t.Helper()
	return s.post("/widget/license/activate", seatBody(more...), bearer(token))
}

// deactivateByToken releases a device by its token; more are members of the body.
func (s *service) deactivateByToken(token string, more ...any) answer {
	s.t.Helper()
	return s.post("/widget/license/deactivate", seatBody(more...), bearer(token))
}

// release releases a device as a portal does.
func (s *service) release(licenseID, deviceID string) {
	s.t.Helper()
	s.do("DELETE", "/licenses/"+licenseID+"/devices/"+deviceID, "", s.auth(s.account, scopeDevices)).is(204)
}
