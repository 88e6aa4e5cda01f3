package main

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The shapes of what may stand in no log: a licence key of ours, a token or a part of
// one, a key file's blocks, an address.
var (
	keyShape = regexp.MustCompile(`(?i)\b[0-9a-z]{5}(?:-[0-9a-z]{5}){4}\b`)
	// within a key's id those letters may stand by chance
	tokenShape = regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}`)
	// among random bytes
	wholeToken = regexp.MustCompile(tokenShape.String() + `\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+`)
	// at the beginning, or one byte later
	tokenHere  = regexp.MustCompile(`^(?s:.?)` + wholeToken.String())
	pemShape   = regexp.MustCompile(`-----BEGIN [A-Z ]+-----`)
	whsecShape = regexp.MustCompile(`whsec_([A-Za-z0-9+/]{32,}={0,2})`)
	emailShape = regexp.MustCompile(`[\pL\pN.!#$%&'*+/=?^_{|}~-]+@[\pL\pN-]+(?:\.[\pL\pN-]+)+`)
)

// A discretion remembers what a service was told and gave away in confidence, so that the end of every test can
// look for it where it must not be: nothing of it in the log, and in the database no key, token or secret. A nil
// one hears nothing: a benchmark's or a fuzz target's, whose bodies may hold anything, anywhere.
type discretion struct {
	mu      sync.Mutex
	secrets map[string]string // what it is, by what is written
	emails  map[string]bool
	begun   []byte // what the database held at first, which another test has looked at
}

func newDiscretion(t testing.TB) *discretion {
	if _, test := t.(*testing.T); !test {
		return nil
	}
	return &discretion{secrets: map[string]string{}, emails: map[string]bool{}}
}

// begin says what the database holds at first.
func (d *discretion) begin(database []byte) {
	if d != nil {
		d.begun = database
	}
}

// hear remembers the keys, tokens, secrets and addresses of a text that went in or out.
func (d *discretion) hear(text string) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if hasDashesOfAKey(text) {
		for _, key := range keyShape.FindAllString(text, -1) {
			if parsed, err := parseLicenseKey(key); err == nil && !parsed.mistyped() {
				d.keep("a licence key", key)
			}
		}
	}
	if strings.Contains(text, "eyJ") {
		for _, token := range wholeToken.FindAllString(text, -1) {
			d.keep("a token", token)
			d.keep("a token's signature", token[strings.LastIndexByte(token, '.')+1:])
		}
	}
	for _, secret := range whsecShape.FindAllStringSubmatch(text, -1) {
		d.keep("a webhook's secret", secret[0])
		d.keep("a webhook's secret", secret[1])
		if raw, err := base64.StdEncoding.DecodeString(secret[1]); err == nil {
			d.keep("a webhook's secret", string(raw))
		}
	}
	if strings.Contains(text, "@") {
		for _, email := range emailShape.FindAllString(text, -1) {
			d.emails[strings.ToLower(email)] = true
		}
	}
}

// hasDashesOfAKey reports whether dashes stand in a text as they do in a licence key. It is much quicker than
// keyShape, which few texts need to be asked.
func hasDashesOfAKey(text string) bool {
	for i := 0; i+18 < len(text); i++ {
		if text[i] == '-' && text[i+6] == '-' && text[i+12] == '-' && text[i+18] == '-' {
			return true
		}
	}
	return false
}

// keep remembers one secret; short ones would be found anywhere.
func (d *discretion) keep(what, secret string) {
	if len(secret) < 12 {
		return
	}
	d.secrets[string(lowerASCII([]byte(secret)))] = what
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

// keyFile remembers the secrets of a key file, in every form that a careless line could write.
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
		must(t, err)
		raw[fmt.Sprint("signing key ", i)] = ring.keys[i].private.Seed()
		raw[fmt.Sprint("the block of signing key ", i)] = der
	}
	for what, secret := range raw {
		d.secrets[string(lowerASCII(secret))] = what
		for _, text := range []string{base64.StdEncoding.EncodeToString(secret),
			base64.RawURLEncoding.EncodeToString(secret), hex.EncodeToString(secret), fmt.Sprint(secret)} {
			d.secrets[strings.ToLower(text)] = what
		}
	}
}

// indiscretions are what a log gives away, by its shape or because it was said.
func (d *discretion) indiscretions(log []byte) (found []string) {
	for what, shape := range map[string]*regexp.Regexp{"a licence key": keyShape, "a token": tokenShape,
		"a key block": pemShape, "a webhook's secret": whsecShape, "an address": emailShape} {
		if text := shape.Find(log); text != nil {
			found = append(found, fmt.Sprintf("%s: %q", what, text))
		}
	}
	found = append(found, d.said(log)...)
	log = bytes.ToLower(log)
	for email := range d.emails {
		if bytes.Contains(log, []byte(email)) {
			found = append(found, "an address: "+email)
		}
	}
	return found
}

// said are the secrets that stand in a text, in letters of either case. It reads the
// text once, however many secrets there are: most places in it begin like none of them.
func (d *discretion) said(text []byte) (found []string) {
	var begins [1 << 16]bool // by the first two bytes
	starts := map[uint32][]string{}
	for secret := range d.secrets {
		begins[binary.BigEndian.Uint16([]byte(secret))] = true
		start := binary.BigEndian.Uint32([]byte(secret))
		starts[start] = append(starts[start], secret)
	}
	text = lowerASCII(text)
	for i := 0; i+4 <= len(text); i++ {
		if !begins[binary.BigEndian.Uint16(text[i:])] {
			continue
		}
		for _, secret := range starts[binary.BigEndian.Uint32(text[i:])] {
			if what := fmt.Sprintf("%s: %q", d.secrets[secret], secret); bytes.HasPrefix(text[i:], []byte(secret)) &&
				!slices.Contains(found, what) {
				found = append(found, what)
			}
		}
	}
	return found
}

// lowerASCII makes ASCII letters small and leaves every other byte as it is: in a file
// of random bytes there is no other text.
func lowerASCII(text []byte) []byte {
	small := bytes.Clone(text)
	for i, c := range small {
		if 'A' <= c && c <= 'Z' {
			small[i] = c + 'a' - 'A'
		}
	}
	return small
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
		if suffix == "" {
			content = changedPages(content, d.begun)
		}
		for _, found := range d.said(content) {
			t.Errorf("%s gives away %s", filepath.Base(db)+suffix, found)
		}
		if token := findToken(content); token != nil {
			t.Errorf("%s holds a token: %q", filepath.Base(db)+suffix, token)
		}
	}
}

// changedPages returns the pages of a database that are not the same as it held at first: a small part of it.
func changedPages(content, begun []byte) (changed []byte) {
	const page = 4096
	for i := 0; i < len(content); i += page {
		end := min(i+page, len(content))
		if end > len(begun) || !bytes.Equal(content[i:end], begun[i:end]) {
			changed = append(changed, content[i:end]...)
		}
	}
	return changed
}

// findToken returns a token that stands in a text; nil: there is none. A file of a database is long, and a search
// for three letters much faster than one by an expression.
func findToken(text []byte) []byte {
	for i := 0; ; i += len("eyJ") {
		next := bytes.Index(text[i:], []byte("eyJ"))
		if next < 0 {
			return nil
		}
		i += next
		if found := tokenHere.Find(text[max(i-1, 0):]); found != nil {
			return found
		}
	}
}

// commandLog checks what a process wrote to standard error.
func commandLog(t testing.TB, log string) {
	t.Helper()
	for _, found := range (&discretion{}).indiscretions([]byte(log)) {
		t.Errorf("standard error gives away %s", found)
	}
}

func TestHarness_findsWhatIsSecretWhereItMustNotBe(t *testing.T) {
	t.Parallel()
	s := newService(t)
	_, key := s.addLicense(license{})
	token := s.token(s.account, scopeLeads)
	s.post("/widget/leads", `{"type":"newsletter","email":"Ada.Lovelace@example.com"}`,
		"Idempotency-Key: only-ada-knows-this").is(200)
	s.get("/leads", bearer(token)).is(200)
	lease := s.activate(key, "till-1").text("token")
	secret := base64.StdEncoding.EncodeToString(s.keys.secret)
	hook := s.addWebhook(s.account, "lead.created")
	signs := s.post("/webhooks/"+hook+"/rotate-secret", "", s.auth(s.account, scopeAdmin)).is(200).text("secret")
	for _, planted := range []string{signs, strings.TrimPrefix(signs, "whsec_"), key, strings.ToLower(key),
		strings.ReplaceAll(key, "-", ""), token, lease, lease[strings.LastIndexByte(lease, '.')+1:],
		"only-ada-knows-this", "ada.lovelace@EXAMPLE.com", secret, string(s.keys.secret),
		"-----BEGIN PRIVATE KEY-----", "nobody.ever.said@example.org"} {
		if found := s.told.indiscretions([]byte(`level=WARN msg=storage error="read ` + planted +
			`: no"`)); len(found) == 0 {
			t.Errorf("%q in a log is not found", planted)
		}
	}
	const harmless = `time=2026-11-21T13:47:00.000Z level=ERROR msg="internal error" ` +
		`request_id=req_01234567890123456789012345 route="POST /widget/leads" error="open /var/lib/widgetd: no"`
	if found := s.told.indiscretions([]byte(harmless)); len(found) > 0 {
		t.Errorf("found in a harmless line: %q", found)
	}
	for _, planted := range []string{signs, string(webhookSecret(s.keys, hook, 2)), key,
		strings.ReplaceAll(key, "-", ""), token, "only-ada-knows-this", secret, string(s.keys.secret),
		string(s.keys.signer().private.Seed())} {
		if found := s.told.said([]byte("\x00\x01" + planted + "\x02")); len(found) == 0 {
			t.Errorf("%q in a file is not found", planted)
		}
	}
	for text, want := range map[string]string{
		token: token, "\x00eyJ\x01" + token + "\x02": token, "xeyJhbGciOiJ.x.y": "",
	} {
		if found := strings.TrimLeft(string(findToken([]byte(text))), "\x01"); found != want {
			t.Errorf("in %q the token %q is found", text, found)
		}
	}
	if len(s.told.said([]byte("ada.lovelace@example.com"))) > 0 {
		t.Error("an address in the database counts as a secret")
	}
}
