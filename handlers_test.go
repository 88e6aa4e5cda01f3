package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A service is a real handler over a real store in a directory of its own.
type service struct {
	t       testing.TB
	server  *server
	store   *store
	keys    *keyring
	dir     string
	account string        // the main one; it owns siteOrigin
	log     *bytes.Buffer // what the service logged
}

const (
	siteOrigin = "https://www.example.com"
	testBase   = "http://127.0.0.1:8080/v1"
)

// newService starts a service with one account and one origin. In a synctest
// bubble its clock is the bubble's.
func newService(t testing.TB) *service {
	t.Helper()
	s := &service{t: t, dir: t.TempDir(), log: &bytes.Buffer{}}
	db := filepath.Join(s.dir, "widgetd.db")
	err := createStore(db, func(tx *tx) (err error) {
		if s.account, err = tx.addAccount("main", true); err != nil {
			return err
		}
		if err := tx.addOrigin(s.account, siteOrigin); err != nil {
			return err
		}
		return tx.setBaseURL(testBase)
	})
	s.check(err)
	s.keys, err = newKeyring(time.Now())
	s.check(err)
	s.check(s.keys.save(filepath.Join(s.dir, "widgetd.key"), false))
	s.store, err = openStore(db, storeOptions{})
	s.check(err)
	trusted, err := parsePrefixes([]string{"127.0.0.0/8", "::1/128"})
	s.check(err)
	s.server, err = newServer(s.store, s.keys, serverOptions{anonymousRate: 60, failedLookupRate: 30, legacySunset: defaultSunset, trusted: trusted},
		slog.New(slog.NewTextHandler(s.log, nil)))
	s.check(err)
	t.Cleanup(func() {
		if err := s.store.close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func (s *service) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// change runs a write, as an operator's command would.
func (s *service) change(f func(*tx) error) {
	s.t.Helper()
	s.check(s.store.update(s.t.Context(), f))
}

// addLicense issues a licence of the main account, unless l says otherwise, and
// returns its id and key.
func (s *service) addLicense(l license) (id, key string) {
	s.t.Helper()
	key = newLicenseKey()
	parsed, err := parseLicenseKey(key)
	s.check(err)
	l.AccountID, l.Product = orDefault(l.AccountID, s.account), orDefault(l.Product, "kds")
	s.change(func(t *tx) (err error) {
		id, err = t.addLicense(&l, parsed, actorCommand)
		return err
	})
	return id, key
}

// addAccount opens another account.
func (s *service) addAccount(name string) (id string) {
	s.t.Helper()
	s.change(func(t *tx) (err error) {
		id, err = t.addAccount(name, false)
		return err
	})
	return id
}

// addWidget adds a widget to an account.
func (s *service) addWidget(account string) (id string) {
	s.t.Helper()
	s.change(func(t *tx) (err error) {
		id, err = t.addWidget(account, "Lunch", false)
		return err
	})
	return id
}

// token issues a bearer token for an account.
func (s *service) token(account, scope string) (token string) {
	s.t.Helper()
	s.change(func(t *tx) (err error) {
		token, _, err = issueToken(t, s.keys, tokenRow{AccountID: account, ClientID: "test", Scope: scope}, time.Hour)
		return err
	})
	return token
}

// count returns the single number that a query gives.
func (s *service) count(query string, args ...any) (n int) {
	s.t.Helper()
	s.check(s.store.one(query, args, &n))
	return n
}

// An answer is what came back.
type answer struct {
	t      testing.TB
	status int
	header http.Header
	body   string
}

// do sends a request. path is relative to the base address; one that begins with
// // is from the root. headers are "Name: value"; a body without a Content-Type is
// sent as JSON.
func (s *service) do(method, path, body string, headers ...string) answer {
	s.t.Helper()
	if root, ok := strings.CutPrefix(path, "//"); ok {
		path = "/" + root
	} else {
		path = "/v1" + path
	}
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r := httptest.NewRequestWithContext(s.t.Context(), method, path, reader)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	seen := map[string]bool{}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if seen[name] {
			r.Header.Add(name, value)
		} else {
			r.Header.Set(name, value)
		}
		seen[name] = true
	}
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, r)
	return answer{s.t, w.Code, w.Result().Header, w.Body.String()}
}

func (s *service) post(path, body string, headers ...string) answer {
	s.t.Helper()
	return s.do("POST", path, body, headers...)
}

func (s *service) get(path string, headers ...string) answer {
	s.t.Helper()
	return s.do("GET", path, "", headers...)
}

// json decodes the body.
func (a answer) json() map[string]any {
	a.t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		a.t.Fatalf("%d %q is not JSON: %v", a.status, a.body, err)
	}
	return v
}

// text returns a member of the body that is a string; names go down, as
// "license", "id".
func (a answer) text(names ...string) string {
	a.t.Helper()
	var v any = a.json()
	for _, name := range names {
		v = v.(map[string]any)[name]
	}
	text, ok := v.(string)
	if !ok {
		a.t.Fatalf("%v of %s is no string", names, a.body)
	}
	return text
}

// is checks the status and, for a problem, its code, its type and the rules that
// every answer keeps.
func (a answer) is(status int, code ...string) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	if !strings.HasPrefix(a.header.Get("X-Request-Id"), "req_") || a.header.Get("X-Content-Type-Options") != "nosniff" || a.header.Get("Cache-Control") == "" {
		a.t.Fatalf("a header that every answer has is missing: %v", a.header)
	}
	if status < 400 || len(code) == 0 {
		return a
	}
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		a.t.Fatalf("Content-Type %q of a problem", got)
	}
	p := a.json()
	if p["code"] != code[0] || p["status"] != float64(status) || p["type"] != "http://127.0.0.1:8080/docs#"+code[0] ||
		p["request_id"] != a.header.Get("X-Request-Id") || p["title"] == "" {
		a.t.Fatalf("problem %s, want code %s", a.body, code[0])
	}
	return a
}

func TestALeadIsKeptAndAnswersWithItsID(t *testing.T) {
	s := newService(t)
	a := s.post("/widget/leads", `{"type":"newsletter","email":"Ada@Example.COM","source":"footer","page":"/menu?utm=1#top","unknown":1}`, "Origin: "+siteOrigin).is(200)
	if want := `{"ok":true,"id":"` + a.text("id") + "\"}\n"; a.body != want {
		t.Fatalf("body %q, want %q", a.body, want)
	}
	if !validID("lead", a.text("id")) {
		t.Fatalf("id %q", a.text("id"))
	}
	rows, err := s.store.leads(s.account, "", 10)
	s.check(err)
	if len(rows) != 1 || rows[0].Email != "Ada@example.com" || *rows[0].Page != "/menu" || *rows[0].Source != "footer" || rows[0].ID != a.text("id") {
		t.Fatalf("rows %+v", rows)
	}
}
