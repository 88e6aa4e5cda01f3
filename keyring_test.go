package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestKeyring_judgesSignaturesAsThePublicVectorsDo(t *testing.T) {
	t.Parallel()
	var file struct {
		Cases []struct {
			ID, PK, Msg, Sig string
			Valid            bool
		} `json:"cases"`
	}
	if err := json.Unmarshal(vectors(t, "ed25519_wycheproof.json"), &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 150 {
		t.Fatalf("%d cases only", len(file.Cases))
	}
	for _, c := range file.Cases {
		public, _ := hex.DecodeString(c.PK)
		message, _ := hex.DecodeString(c.Msg)
		signature, _ := hex.DecodeString(c.Sig)
		if got := ed25519.Verify(public, message, signature); got != c.Valid {
			t.Errorf("%s: %v, want %v", c.ID, got, c.Valid)
		}
	}
}

// The example key of RFC 8037, appendix A.1 to A.3.
func TestKeyring_namesAKeyByItsThumbprint(t *testing.T) {
	t.Parallel()
	seed, err := base64.RawURLEncoding.DecodeString("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A")
	if err != nil {
		t.Fatal(err)
	}
	private := ed25519.NewKeyFromSeed(seed)
	public := private.Public().(ed25519.PublicKey)
	if got, want := thumbprint(public), "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"; got != want {
		t.Fatalf("thumbprint %s, want %s", got, want)
	}
	key := signingKeyOf(private, stamp{})
	if got, want := key.jwk()["x"], "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"; got != want {
		t.Fatalf("x %s, want %s", got, want)
	}
	// Appendix A.4: the signature of "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc".
	const input = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc"
	want := "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"
	if got := base64.RawURLEncoding.EncodeToString(ed25519.Sign(private, []byte(input))); got != want {
		t.Fatalf("signature %s, want %s", got, want)
	}
}

func TestKeyring_namesNoKeyLikeAnOption(t *testing.T) {
	t.Parallel()
	for range 1000 { // one thumbprint in 64 begins with a dash
		key, err := newSigningKey(time.Now())
		if err != nil || key.kid != thumbprint(key.public) || key.kid[0] == '-' {
			t.Fatalf("kid %s, %v", key.kid, err)
		}
	}
}

// publicKeys reads what `key public` prints, both ways.
func publicKeys(s *service) (kids []string) {
	s.t.Helper()
	out, err := s.command("key", "public")
	s.check(err)
	for text := []byte(out); ; {
		block, rest := pem.Decode(text)
		if block == nil {
			if strings.TrimSpace(string(text)) != "" {
				s.t.Fatalf("key public prints %q", out)
			}
			break
		}
		public, err := x509.ParsePKIXPublicKey(block.Bytes)
		s.check(err)
		kids = append(kids, thumbprint(public.(ed25519.PublicKey)))
		text = rest
	}
	out, err = s.command("key", "public", "-json")
	s.check(err)
	for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
		var row struct {
			Kid   string
			Signs bool
		}
		s.check(json.Unmarshal([]byte(line), &row))
		if row.Kid != kids[i] || row.Signs != (i == 0) {
			s.t.Fatalf("key public -json prints %s as number %d", line, i)
		}
	}
	if strings.Contains(out, "PRIVATE") {
		s.t.Fatal("key public prints a private key")
	}
	return kids
}

func TestKeyring_showsItsPublicKeysOnTheWebAndNothingElse(t *testing.T) {
	t.Parallel()
	s := newService(t)
	second, err := newSigningKey(time.Now())
	s.check(err)
	s.server.keys.Store(&keyring{keys: []signingKey{*s.keys.signer(), second}, secret: s.keys.secret})
	a := s.get("//.well-known/jwks.json").is(200)
	if got := a.header.Get("Cache-Control"); got != "public, max-age=300" {
		t.Errorf("Cache-Control %q", got)
	}
	if got := a.header.Get("Content-Type"); got != "application/jwk-set+json" {
		t.Errorf("Content-Type %q", got)
	}
	want := map[string]any{"keys": []any{}}
	for _, key := range []*signingKey{s.keys.signer(), &second} {
		want["keys"] = append(want["keys"].([]any), map[string]any{"kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA",
			"kid": thumbprint(key.public), "x": base64.RawURLEncoding.EncodeToString(key.public)})
	}
	if got, want := fmt.Sprint(a.json()), fmt.Sprint(want); got != want {
		t.Errorf("keys %s\nwant %s", got, want)
	}
	for range 700 { // never charged
		s.get("//.well-known/jwks.json").is(200)
	}
	s.post("//.well-known/jwks.json", `{}`).is(405, "method_not_allowed")
}

func TestKeyring_refusesAFileThatOthersCanRead(t *testing.T) {
	t.Parallel()
	ring, err := newKeyring(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "widgetd.key")
	if err := ring.save(path, false); err != nil {
		t.Fatal(err)
	}
	for mode := range fs.FileMode(0o1000) {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := loadKeyring(path)
		switch {
		case mode&0o077 != 0:
			oneLine(t, err, path, fmt.Sprintf("%04o", mode), "chmod 600")
		case mode&0o400 != 0 && err != nil:
			t.Errorf("mode %04o: %v", mode, err)
		}
	}
}

func TestKeyring_refusesADamagedFile(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	ring, err := newKeyring(now)
	if err != nil {
		t.Fatal(err)
	}
	second, err := newSigningKey(now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	ring.keys = append(ring.keys, second)
	text, err := ring.encode()
	if err != nil {
		t.Fatal(err)
	}
	whole := string(text)
	block := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	firstKey, rest, _ := strings.Cut(whole, "-----END PRIVATE KEY-----\n")
	firstKey += "-----END PRIVATE KEY-----\n"
	secret := whole[strings.Index(whole, "-----BEGIN WIDGETD SECRET"):]
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := x509.MarshalPKCS8PrivateKey(curve)
	if err != nil {
		t.Fatal(err)
	}
	for name, damaged := range map[string]string{
		"empty":                        "",
		"white space":                  "\n\n",
		"no PEM":                       "this is not a key file\n",
		"no secret":                    strings.TrimSuffix(whole, secret),
		"no key":                       secret,
		"two secrets":                  whole + secret,
		"a secret of 31 bytes":         firstKey + block("WIDGETD SECRET", make([]byte, 31)),
		"an empty secret":              firstKey + block("WIDGETD SECRET", nil),
		"cut in the secret":            whole[:len(whole)-40],
		"cut in the first key":         whole[:60],
		"a key on another curve":       block("PRIVATE KEY", ec) + secret,
		"a key that is no DER":         block("PRIVATE KEY", []byte("hello")) + secret,
		"an EC block":                  block("EC PRIVATE KEY", ec) + whole,
		"a certificate":                whole + block("CERTIFICATE", []byte("x")),
		"text at the end":              whole + "hello\n",
		"text between":                 firstKey + "hello\n" + rest,
		"the first key's text broken":  strings.Replace(whole, "MC4", "M!4", 1),
		"the first key's end missing":  strings.Replace(whole, "-----END PRIVATE KEY-----\n", "", 1),
		"the first key's begin broken": strings.Replace(whole, "-----BEGIN PRIVATE", "-----BEGUN PRIVATE", 1),
		"the second key's text broken": firstKey + strings.Replace(rest, "MC4", "M!4", 1),
		"a date that is none":          strings.Replace(whole, "2026-11-21", "yesterday", 1),
	} {
		t.Run(name, func(t *testing.T) {
			if damaged == whole {
				t.Fatal("the file is whole")
			}
			path := filepath.Join(t.TempDir(), "widgetd.key")
			if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := loadKeyring(path)
			oneLine(t, err, path, "is damaged", "restore")
		})
	}
	_, err = loadKeyring(filepath.Join(t.TempDir(), "none.key"))
	oneLine(t, err, "none.key", "widgetd init")
}

func TestKeyring_comesBackAsItWasSaved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "widgetd.key")
	ring, err := newKeyring(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := ring.save(path, i > 0); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode() != 0o600 {
			t.Fatalf("mode %v, %v", info.Mode(), err)
		}
		got, err := loadKeyring(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.secret, ring.secret) || len(got.keys) != len(ring.keys) {
			t.Fatalf("%d keys, want %d", len(got.keys), len(ring.keys))
		}
		for j := range got.keys {
			if !got.keys[j].private.Equal(ring.keys[j].private) || got.keys[j].kid != ring.keys[j].kid || got.keys[j].createdAt != ring.keys[j].createdAt {
				t.Fatalf("key %d differs", j)
			}
		}
		key, err := newSigningKey(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		ring.keys = append(ring.keys, key)
	}
	before, _ := os.ReadFile(path)
	if err := ring.save(path, false); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("saving over a key file: %v", err)
	}
	if err := os.WriteFile(path+".new", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	oneLine(t, ring.save(path, true), path+".new")
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
		t.Fatal("a refused save changed the file")
	}
}

func TestKeyring_signsWithANewKeyADayLaterThenItsForerunnerRetires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		file := filepath.Join(s.dir, "widgetd.key")
		follow := func(ctx context.Context) { s.server.pollFiles(ctx, file) }
		stop := s.beside(follow)
		synctest.Wait()
		_, license := s.addLicense(license{})
		activate := `{"license_key":"` + license + `","fingerprint":"f"}`
		s.post("/widget/license/activate", activate).is(200)
		first := publicKeys(s)[0]
		if first != s.keys.signer().kid {
			t.Fatalf("kid %s", first)
		}
		old := "Authorization: Bearer " + s.token(s.account, scopeLeads)
		_, err := s.command("key", "rotate")
		oneLine(t, err, "key add")

		_, err = s.command("key", "add")
		s.check(err)
		kids := publicKeys(s)
		if len(kids) != 2 || kids[0] != first {
			t.Fatalf("after key add: %v", kids)
		}
		time.Sleep(upkeepInterval)
		synctest.Wait()
		if body := s.get("//.well-known/jwks.json").is(200).body; !strings.Contains(body, kids[1]) || !strings.Contains(body, first) {
			t.Fatalf("the running service shows %s", body)
		}
		if got := s.server.keys.Load().signer().kid; got != first {
			t.Fatalf("the new key signs already: %s", got)
		}
		_, err = s.command("key", "rotate")
		oneLine(t, err, "-force", "a day")
		stop() // a day has many seconds
		time.Sleep(minKeyAge - upkeepInterval - time.Second)
		_, err = s.command("key", "rotate")
		oneLine(t, err, "-force", "a day")
		time.Sleep(time.Second)
		_, err = s.command("key", "rotate")
		s.check(err)
		if got := publicKeys(s); len(got) != 2 || got[0] != kids[1] || got[1] != first {
			t.Fatalf("after key rotate: %v, want %v turned round", got, kids)
		}
		s.beside(follow)
		time.Sleep(upkeepInterval)
		synctest.Wait()
		s.post("/widget/license/verify", activate).is(200)
		s.get("/leads", old).is(401) // an hour old
		s.keys = s.server.keys.Load()
		current := s.token(s.account, scopeLeads)
		header, _ := base64.RawURLEncoding.DecodeString(strings.Split(current, ".")[0])
		if !strings.Contains(string(header), kids[1]) {
			t.Fatalf("a new token is signed with %s", header)
		}
		s.get("/leads", "Authorization: Bearer "+current).is(200)

		_, err = s.command("key", "retire", kids[1])
		oneLine(t, err, "the signing key")
		_, err = s.command("key", "retire", "nobody")
		oneLine(t, err, "no such key")
		_, err = s.command("key", "retire", first) // the device has a lease of the new key, the token is over
		s.check(err)
		if got := publicKeys(s); len(got) != 1 || got[0] != kids[1] {
			t.Fatalf("after key retire: %v", got)
		}
	})
}

func TestKeyring_saysWhatRetiringAKeyEndsAndThenEndsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		file := filepath.Join(s.dir, "widgetd.key")
		_, key := s.addLicense(license{})
		var leases []string
		for i := range 3 {
			leases = append(leases, s.post("/widget/license/activate", fmt.Sprintf(`{"license_key":%q,"fingerprint":"f%d"}`, key, i)).is(200).text("token"))
		}
		old := "Authorization: Bearer " + s.token(s.account, scopeLeads)
		s.token(s.account, scopeStats)
		revoked, err := s.keys.verify(s.token(s.account, scopeStats))
		s.check(err)
		s.change(func(t *tx) error { return t.revokeToken(revoked.ID) })
		first := s.keys.signer().kid
		_, err = s.command("key", "add")
		s.check(err)
		_, err = s.command("key", "rotate", "-force")
		s.check(err)
		s.check(s.server.reloadKeys(file))
		s.get("/leads", old).is(200)

		_, err = s.command("key", "retire", first)
		oneLine(t, err, "3 unexpired device leases", "2 unexpired tokens", "-force")
		s.check(s.server.reloadKeys(file))
		s.get("/leads", old).is(200)
		time.Sleep(2 * time.Hour)
		_, err = s.command("key", "retire", first)
		oneLine(t, err, "3 unexpired device leases", "0 unexpired tokens")
		s.post("/widget/license/verify", `{}`, "Authorization: Bearer "+leases[0]).is(200)
		_, err = s.command("key", "retire", first, "-force")
		s.check(err)
		s.check(s.server.reloadKeys(file))
		s.post("/widget/license/verify", `{}`, "Authorization: Bearer "+leases[0]).challenged(401, "invalid_token", invalidChallenge)
		if a := s.post("/widget/license/verify", fmt.Sprintf(`{"license_key":%q,"fingerprint":"f0"}`, key)).is(200); !a.json()["valid"].(bool) {
			t.Fatalf("by its key: %s", a.body)
		}
	})
}

func TestKeyring_isWrittenWhileALockHoldsUpTheDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		file := filepath.Join(s.dir, "widgetd.key")
		s.beside(func(ctx context.Context) { s.server.pollFiles(ctx, file) })
		s.beside(s.server.runChores)
		unlock, unlocked := make(chan struct{}), make(chan error, 1)
		go func() { unlocked <- s.store.update(t.Context(), func(*tx) error { <-unlock; return nil }) }()
		s.get("//api/legacy/nothing").is(404, "not_found") // counted, and to be written
		time.Sleep(2 * upkeepInterval)
		key, err := newSigningKey(time.Now())
		s.check(err)
		s.check((&keyring{keys: append(slices.Clone(s.keys.keys), key), secret: s.keys.secret}).save(file, true))
		time.Sleep(upkeepInterval)
		synctest.Wait()
		if n := len(s.server.keys.Load().keys); n != 2 {
			t.Errorf("%d keys", n)
		}
		close(unlock)
		s.check(<-unlocked)
	})
}

func TestKeyring_keepsAllKeysThatAreAddedAtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := s.command("key", "add"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := len(publicKeys(s)); n != 9 {
		t.Fatalf("%d keys, want 9", n)
	}
}

// A key file in another directory, as a mounted secret, with a link to it in the installation's.
func TestKeyring_behindALinkIsReplacedWhereItIs(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	link, elsewhere := o.env["WIDGETD_KEY"], t.TempDir()
	target := filepath.Join(elsewhere, "real.key")
	middle := filepath.Join(elsewhere, "current.key")
	toMiddle, err := filepath.Rel(o.dir, middle)
	if err = errors.Join(err, os.Rename(link, target), os.Symlink("real.key", middle), os.Symlink(toMiddle, link)); err != nil {
		t.Fatal(err)
	}
	isLink := func() {
		t.Helper()
		info, err := os.Lstat(link)
		if middleInfo, middleErr := os.Lstat(middle); err != nil || middleErr != nil || info.Mode()&middleInfo.Mode()&fs.ModeSymlink == 0 {
			t.Fatalf("the link was replaced: %v, %v", info, err)
		}
		if info, err := os.Lstat(target); err != nil || info.Mode() != 0o600 {
			t.Fatalf("the key file is %v, %v", info, err)
		}
	}
	first, err := loadKeyring(target)
	if err != nil {
		t.Fatal(err)
	}
	added := strings.Fields(o.do("key", "add"))[0]
	isLink()
	o.do("key", "rotate", "-force")
	isLink()
	o.do("key", "retire", "-force", first.signer().kid)
	isLink()
	if ring, err := loadKeyring(target); err != nil || len(ring.keys) != 1 || ring.signer().kid != added {
		t.Errorf("%v, %v", ring, err)
	}
	if err := os.Chmod(target, 0o640); err != nil {
		t.Fatal(err)
	}
	o.fails("other users can read the key file", "key", "list")
	if err := os.Remove(target); err != nil {
		t.Fatal(err)
	}
	o.do("init")
	isLink()
	o.fails("exist already", "init")
	if names, err := filepath.Glob(filepath.Join(o.dir, "*.new")); err != nil || len(names) > 0 {
		t.Errorf("left behind: %q, %v", names, err)
	}
}

// Two commands that reach one key file by different paths hold the same lock.
func TestKeyring_keepsAllKeysThatAreAddedAtOnceThroughALink(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	link := filepath.Join(t.TempDir(), "link.key")
	if err := os.Symlink(o.env["WIDGETD_KEY"], link); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 8 {
		args := []string{"key", "add"}
		if i%2 == 0 {
			args = append(args, "-key", link)
		}
		all.Go(func() {
			getenv := func(name string) string { return o.env[name] }
			if err := run(t.Context(), args, getenv, io.Discard, io.Discard); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if ring, err := loadKeyring(link); err != nil || len(ring.keys) != 9 {
		t.Errorf("%v, %v", ring, err)
	}
}

func TestKeyring_linkThatLeadsNowhereIsFollowedNoLongerThanLinuxDoes(t *testing.T) {
	t.Parallel()
	loop := filepath.Join(t.TempDir(), "loop.key")
	if err := os.Symlink("loop.key", loop); err != nil {
		t.Fatal(err)
	}
	if err := fuzzRing().save(loop, false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("%v", err)
	}
}

func TestKeyring_signsWithAKeyAddedInTheSecondOfTheFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // the bubble's clock stands still between the commands
		s := newService(t)
		first := publicKeys(s)[0]
		_, err := s.command("key", "add")
		s.check(err)
		_, err = s.command("key", "rotate", "-force")
		s.check(err)
		if got := publicKeys(s); got[0] == first || got[1] != first {
			t.Fatalf("after key rotate -force: %v", got)
		}
	})
}

func TestKeyring_badOnDiskChangesNothingInARunningService(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		file := filepath.Join(s.dir, "widgetd.key")
		s.beside(func(ctx context.Context) { s.server.pollFiles(ctx, file) })
		synctest.Wait()
		auth := "Authorization: Bearer " + s.token(s.account, scopeLeads)
		whole, err := os.ReadFile(file)
		s.check(err)
		next, err := newKeyring(time.Now())
		s.check(err)
		for name, change := range map[string]func() error{
			"damaged": func() error { return os.WriteFile(file, whole[:50], 0o600) },
			"open":    func() error { return os.Chmod(file, 0o644) },
			"gone":    func() error { return os.Remove(file) },
		} {
			s.check(change())
			time.Sleep(upkeepInterval)
			synctest.Wait()
			if a := s.get("/leads", auth); a.status != 200 {
				t.Fatalf("%s: %d %s", name, a.status, a.body)
			}
			if !strings.Contains(s.log.String(), "the keys loaded before stay in use") {
				t.Fatalf("%s: nothing is logged: %s", name, s.log)
			}
			s.check(errors.Join(os.WriteFile(file, whole, 0o600), os.Chmod(file, 0o600)))
			time.Sleep(upkeepInterval)
			synctest.Wait()
			s.get("/leads", auth).is(200)
		}
		s.check(next.save(file, true))
		time.Sleep(upkeepInterval)
		synctest.Wait()
		s.get("/leads", auth).challenged(401, "invalid_token", invalidChallenge)
		if got := s.server.keys.Load().signer().kid; got != next.signer().kid {
			t.Fatalf("%s signs, not the new file's key", got)
		}
	})
}

// TestKeyring_isLoadedAgainUntilItCanBe: the file stays the same between the polls that fail and the one
// that succeeds, as when the process has no descriptor left for a while.
func TestKeyring_isLoadedAgainUntilItCanBe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		file := filepath.Join(s.dir, "widgetd.key")
		s.beside(func(ctx context.Context) { s.server.pollFiles(ctx, file) })
		time.Sleep(betweenTicks)
		auth := "Authorization: Bearer " + s.token(s.account, scopeLeads)
		next, err := newKeyring(time.Now())
		s.check(err)
		s.check(next.save(file, true))
		whole, err := os.ReadFile(file)
		s.check(err)
		then := time.Now()
		put := func(text []byte) { // in place, so that nothing but the content tells
			s.check(errors.Join(os.WriteFile(file, text, 0o600), os.Chtimes(file, then, then)))
		}
		put(bytes.Replace(whole, []byte("BEGIN"), []byte("B?GIN"), 1))
		state := fileState(file)
		time.Sleep(5 * time.Second)
		s.get("/leads", auth).is(200)
		h := s.health().is(200).json()
		if want := "the key file can't be used: the keys loaded before stay in use"; h["status"] != "warn" || h["output"] != want {
			t.Errorf("health: %v", h)
		}
		if lines := s.logLines("the key file"); len(lines) != 1 || !strings.HasPrefix(lines[0], `level=WARN msg="the key file can't be used`) {
			t.Errorf("the log, while it lasts: %q", lines)
		}
		if put(whole); fileState(file) != state {
			t.Fatal("the file's state tells that it was changed")
		}
		time.Sleep(2 * time.Second)
		s.get("/leads", auth).challenged(401, "invalid_token", invalidChallenge)
		if h := s.health().is(200).json(); h["status"] != "pass" {
			t.Errorf("health: %v", h)
		}
		time.Sleep(20 * time.Second)
		if lines := s.logLines("the key file can't"); len(lines) != 2 || !strings.HasPrefix(lines[1], `level=INFO msg="over: the key file can't be used`) {
			t.Errorf("the log, at the end: %q", lines)
		}
	})
}

func TestKeyring_opensASealedAnswerOnlyWithTheSecretAndTheKey(t *testing.T) {
	t.Parallel()
	ring, err := newKeyring(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	other, err := newKeyring(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	sealed := ring.seal("key", []byte("answer"))
	if plain, err := ring.unseal("key", sealed); err != nil || string(plain) != "answer" {
		t.Fatalf("unseal: %q %v", plain, err)
	}
	altered := slices.Clone(sealed)
	altered[len(altered)-1] ^= 1
	for name, open := range map[string]func() ([]byte, error){
		"another key":    func() ([]byte, error) { return ring.unseal("other", sealed) },
		"another secret": func() ([]byte, error) { return other.unseal("key", sealed) },
		"altered":        func() ([]byte, error) { return ring.unseal("key", altered) },
		"cut":            func() ([]byte, error) { return ring.unseal("key", sealed[:5]) },
		"empty":          func() ([]byte, error) { return ring.unseal("key", nil) },
	} {
		if plain, err := open(); err == nil {
			t.Errorf("%s: %q", name, plain)
		}
	}
	if bytes.Equal(ring.hash("p", "ab", "c"), ring.hash("p", "a", "bc")) || bytes.Equal(ring.hash("p", "a"), ring.hash("q", "a")) {
		t.Error("parts or purposes run into each other")
	}
}

func keyStory(t *testing.T, o *operator) {
	secret, err := loadKeyring(o.env["WIDGETD_KEY"])
	if err != nil {
		t.Fatal(err)
	}
	first := o.object("key", "public")
	if first["signs"] != true || !strings.HasPrefix(first["pem"].(string), "-----BEGIN PUBLIC KEY-----") {
		t.Errorf("public %v", first)
	}
	if text := o.do("key", "public"); text != "# kid "+first["kid"].(string)+"\n"+first["pem"].(string) {
		t.Errorf("for pinning: %q", text)
	}
	o.fails("add another with 'widgetd key add'", "key", "rotate")
	second := o.object("key", "add")["kid"]
	o.fails("or add -force", "key", "rotate")
	o.do("key", "rotate", "-force")
	if table := o.do("key", "list"); !regexp.MustCompile(`^KID +SIGNS +CREATED\n` + second.(string) + ` +yes +\d{4}-.*\n` + first["kid"].(string) + ` +- +\d{4}-.*\n$`).MatchString(table) {
		t.Errorf("listed\n%s", table)
	}
	o.fails("this is the signing key", "key", "retire", second.(string))
	id := o.object("license", "add", "-account", o.account, "-product", "kds")["id"].(string)
	o.addDevice(id, first["kid"].(string))
	o.fails("1 unexpired device leases", "key", "retire", first["kid"].(string))
	o.fails("'widgetd key list' prints the kid of each", "key", "retire", "nonsense")
	o.do("key", "retire", first["kid"].(string), "-force")
	if rows := o.objects("key", "list"); len(rows) != 1 || rows[0]["kid"] != second || rows[0]["signs"] != true || rows[0]["created_at"] == nil {
		t.Errorf("listed %v", rows)
	}
	if got := column(o.objects("key", "public"), "kid"); !slices.Equal(got, []any{second}) {
		t.Errorf("keys %v, want %v", got, second)
	}
	ring, err := loadKeyring(o.env["WIDGETD_KEY"])
	if err != nil || !bytes.Equal(ring.secret, secret.secret) {
		t.Errorf("the secret has changed: %v", err)
	}
	if names := dirNames(t, o.dir); slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, ".new") }) {
		t.Errorf("left behind: %q", names)
	}
	if info, err := os.Stat(o.env["WIDGETD_KEY"]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v", info.Mode(), err)
	}
}

// fuzzRing is the same in every process, so that a corpus stays of use.
func fuzzRing() *keyring {
	ring := &keyring{secret: make([]byte, 32)}
	for i := range 2 {
		private := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{byte(i + 1)}, ed25519.SeedSize))
		ring.keys = append(ring.keys, signingKeyOf(private, stamp{}))
	}
	return ring
}

// A key file that is taken is written and read again as the same keys and secret.
func FuzzKeyFile(f *testing.F) {
	text, err := fuzzRing().encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n")))
	f.Add(append(text, text...))
	f.Add(text[:len(text)-20])
	f.Add(bytes.Replace(text, []byte("-----BEGIN "), []byte("Created: no\n-----BEGIN "), 1))
	f.Add([]byte("-----BEGIN WIDGETD SECRET-----\n-----END WIDGETD SECRET-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		ring, err := parseKeyring(text)
		if err != nil {
			if ring != nil {
				t.Fatalf("an error and keys: %v", err)
			}
			return
		}
		written, err := ring.encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseKeyring(written)
		if err != nil || len(ring.secret) != 32 || !bytes.Equal(again.secret, ring.secret) || len(again.keys) != len(ring.keys) {
			t.Fatalf("%q, written as %q, is read as %+v, %v", text, written, again, err)
		}
		for i := range ring.keys {
			if again.keys[i].kid != ring.keys[i].kid || again.keys[i].createdAt != ring.keys[i].createdAt {
				t.Fatalf("key %d of %q comes back as another", i, text)
			}
		}
	})
}

func TestKeyFile_isReadByOpenSSLAndSoAreThePublicKeys(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "openssl")
	o := newOperator(t)
	o.do("key", "add")
	file := o.env["WIDGETD_KEY"]
	out, err := exec.Command("openssl", "pkey", "-in", file, "-pubout").Output()
	first := o.objects("key", "public")[0]
	if err != nil || string(out) != first["pem"].(string) {
		t.Errorf("openssl reads the key file as %q, %v, want %q", out, err, first["pem"])
	}
	pinned := filepath.Join(o.dir, "public.pem")
	if err := os.WriteFile(pinned, []byte(o.do("key", "public")), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err = exec.Command("openssl", "pkey", "-pubin", "-in", pinned).Output()
	if err != nil || string(out) != first["pem"].(string) {
		t.Errorf("openssl reads the public keys as %q, %v", out, err)
	}
	if ring, err := loadPublicKeys(pinned); err != nil || len(ring.keys) != 2 || ring.keys[0].kid != first["kid"] {
		t.Errorf("lease inspect reads them as %+v, %v", ring, err)
	}
}

func TestKeyFile_hasTheKidAboveEachKeyAndIsReadWithEarlierHeadersToo(t *testing.T) {
	t.Parallel()
	created, _ := parseStamp("2026-02-03T04:05:06Z")
	ring := fuzzRing()
	ring.keys[0].createdAt = created
	text, err := ring.encode()
	if err != nil {
		t.Fatal(err)
	}
	kids := []string{ring.keys[0].kid, ring.keys[1].kid}
	for _, want := range []string{"# kid " + kids[0] + " created 2026-02-03T04:05:06Z\n-----BEGIN PRIVATE KEY-----\nM", "# kid " + kids[1] + "\n-----BEGIN PRIVATE KEY-----\nM"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	lines := regexp.MustCompile(`(?m)^#.*\n`)
	earlier := lines.ReplaceAllString(string(text), "")
	earlier = strings.Replace(earlier, "-----BEGIN PRIVATE KEY-----\n", "-----BEGIN PRIVATE KEY-----\nCreated: 2026-02-03T04:05:06Z\n\n", 1)
	for name, content := range map[string]string{"as written": string(text), "of an earlier version": earlier,
		"with a comment of somebody's own": "# signs\n\n" + string(text) + "\n# the end\n"} {
		got, err := parseKeyring([]byte(content))
		if err != nil || len(got.keys) != 2 || got.keys[0].kid != kids[0] || got.keys[0].createdAt != created || !got.keys[1].createdAt.IsZero() {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for name, content := range map[string]string{
		"another key's kid":   strings.Replace(string(text), kids[1], kids[0], 1),
		"a time that is none": strings.Replace(string(text), "2026-02-03", "2026-02-31", 1),
		"text that is none":   strings.Replace(string(text), "# kid", "kid", 1),
	} {
		if _, err := parseKeyring([]byte(content)); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
