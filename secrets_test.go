package main

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// The shapes of what may stand in no log: a licence key of ours, a token or a part of
// one, a key file's blocks, an address.
var (
	keyShape   = regexp.MustCompile(`(?i)\b[0-9a-z]{5}(?:-[0-9a-z]{5}){4}\b`)
	tokenShape = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}`)
	wholeToken = regexp.MustCompile(tokenShape.String() + `\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+`) // among random bytes
	pemShape   = regexp.MustCompile(`-----BEGIN [A-Z ]+-----`)
	emailShape = regexp.MustCompile(`[\pL\pN.!#$%&'*+/=?^_{|}~-]+@[\pL\pN-]+(?:\.[\pL\pN-]+)+`)
)

// A discretion remembers what a service was told and gave away in confidence, so that
// the end of every test can look for it where it must not be: nothing of it in the log,
// and in the database no key, token or secret. A nil one hears nothing: a benchmark's
// or a fuzz target's, whose bodies may hold anything, anywhere.
type discretion struct {
	mu      sync.Mutex
	secrets map[string]string // what it is, by what is written
	emails  map[string]bool
}

func newDiscretion(t testing.TB) *discretion {
	if _, test := t.(*testing.T); !test {
		return nil
	}
	return &discretion{secrets: map[string]string{}, emails: map[string]bool{}}
}

// hear remembers the keys, tokens and addresses of a text that went in or out.
func (d *discretion) hear(text string) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, key := range keyShape.FindAllString(text, -1) {
		if _, err := parseLicenseKey(key); err == nil {
			d.keep("a licence key", key)
		}
	}
	if strings.Contains(text, "eyJ") {
		for _, token := range wholeToken.FindAllString(text, -1) {
			d.keep("a token", token)
			d.keep("a token's signature", token[strings.LastIndexByte(token, '.')+1:])
		}
	}
	if strings.Contains(text, "@") {
		for _, email := range emailShape.FindAllString(text, -1) {
			d.emails[strings.ToLower(email)] = true
		}
	}
}

// keep remembers one secret; short ones would be found anywhere.
func (d *discretion) keep(what, secret string) {
	if len(secret) < 12 {
		return
	}
	d.secrets[strings.ToLower(secret)] = what
	if what == "a licence key" {
		d.secrets[strings.ToLower(strings.ReplaceAll(secret, "-", ""))] = what
	}
}

// hearRequest remembers what a request carries.
func (d *discretion) hearRequest(body string, header http.Header) {
	if d == nil {
		return
	}
	d.hear(body)
	d.hear(strings.Join(header.Values("Authorization"), " "))
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, key := range header.Values("Idempotency-Key") {
		d.keep("an Idempotency-Key", strings.Trim(key, `"`))
	}
}

// keyFile remembers the secrets of a key file, in every form that a careless line
// could write.
func (d *discretion) keyFile(t testing.TB, ring *keyring) {
	t.Helper()
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	raw := map[string][]byte{"the secret block": ring.secret}
	for i := range ring.keys {
		der, err := x509.MarshalPKCS8PrivateKey(ring.keys[i].private)
		if err != nil {
			t.Fatal(err)
		}
		raw[fmt.Sprint("signing key ", i)] = ring.keys[i].private.Seed()
		raw[fmt.Sprint("the block of signing key ", i)] = der
	}
	for what, secret := range raw {
		d.secrets[string(bytes.ToLower(secret))] = what
		for _, text := range []string{base64.StdEncoding.EncodeToString(secret), base64.RawURLEncoding.EncodeToString(secret), hex.EncodeToString(secret), fmt.Sprint(secret)} {
			d.secrets[strings.ToLower(text)] = what
		}
	}
}

// indiscretions are what a log gives away, by its shape or because it was said.
func (d *discretion) indiscretions(log []byte) (found []string) {
	for what, shape := range map[string]*regexp.Regexp{"a licence key": keyShape, "a token": tokenShape, "a key block": pemShape, "an address": emailShape} {
		if text := shape.Find(log); text != nil {
			found = append(found, fmt.Sprintf("%s: %q", what, text))
		}
	}
	log = bytes.ToLower(log)
	found = append(found, d.said(log)...)
	for email := range d.emails {
		if bytes.Contains(log, []byte(email)) {
			found = append(found, "an address: "+email)
		}
	}
	return found
}

// said are the secrets that stand in a text in lower case.
func (d *discretion) said(text []byte) (found []string) {
	for secret, what := range d.secrets {
		if bytes.Contains(text, []byte(secret)) {
			found = append(found, fmt.Sprintf("%s: %q", what, secret))
		}
	}
	return found
}

// check looks into the log, and into every file of the database as it lies there.
func (d *discretion) check(t testing.TB, log []byte, db string) {
	t.Helper()
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, found := range d.indiscretions(log) {
		t.Errorf("the log gives away %s", found)
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		content, err := os.ReadFile(db + suffix)
		if err != nil {
			continue // gone by the test's own hand, or never there
		}
		for _, found := range d.said(bytes.ToLower(content)) {
			t.Errorf("%s gives away %s", filepath.Base(db)+suffix, found)
		}
		if token := wholeToken.Find(content); token != nil {
			t.Errorf("%s holds a token: %q", filepath.Base(db)+suffix, token)
		}
	}
}

func TestWhatIsSaidInConfidenceIsFoundWhereItMustNotBe(t *testing.T) {
	s := newService(t)
	_, key := s.addLicense(license{})
	token := s.token(s.account, scopeLeads)
	s.post("/widget/leads", `{"type":"newsletter","email":"Ada.Lovelace@example.com"}`, "Idempotency-Key: only-ada-knows-this").is(200)
	s.get("/leads", "Authorization: Bearer "+token).is(200)
	lease := s.activate(key, "till-1").text("token")
	secret := base64.StdEncoding.EncodeToString(s.keys.secret)
	for _, planted := range []string{key, strings.ToLower(key), strings.ReplaceAll(key, "-", ""), token, lease, lease[strings.LastIndexByte(lease, '.')+1:],
		"only-ada-knows-this", "ada.lovelace@EXAMPLE.com", secret, string(s.keys.secret), "-----BEGIN PRIVATE KEY-----", "nobody.ever.said@example.org"} {
		if found := s.told.indiscretions([]byte(`level=WARN msg=storage error="read ` + planted + `: no"`)); len(found) == 0 {
			t.Errorf("%q in a log is not found", planted)
		}
	}
	if found := s.told.indiscretions([]byte(`time=2026-11-21T13:47:00.000Z level=ERROR msg="internal error" request_id=req_01234567890123456789012345 route="POST /widget/leads" error="open /var/lib/widgetd: no"`)); len(found) > 0 {
		t.Errorf("found in a harmless line: %q", found)
	}
	for _, planted := range []string{key, strings.ReplaceAll(key, "-", ""), token, "only-ada-knows-this", secret, string(s.keys.secret), string(s.keys.signer().private.Seed())} {
		if found := s.told.said(bytes.ToLower([]byte("\x00\x01" + planted + "\x02"))); len(found) == 0 {
			t.Errorf("%q in a file is not found", planted)
		}
	}
	if len(s.told.said(bytes.ToLower([]byte("ada.lovelace@example.com")))) > 0 {
		t.Error("an address in the database counts as a secret")
	}
}

// commandLog checks what a process wrote to standard error.
func commandLog(t testing.TB, log string) {
	t.Helper()
	for _, found := range (&discretion{}).indiscretions([]byte(log)) {
		t.Errorf("standard error gives away %s", found)
	}
}
