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
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The example key of RFC 8037, appendix A.1 to A.3.
func TestKeyring_namesAKeyByItsThumbprintAndNoneLikeAnOption(t *testing.T) {
	t.Parallel()
	seed, err := base64.RawURLEncoding.DecodeString("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A")
	must(t, err)
	example := signingKeyOf(ed25519.NewKeyFromSeed(seed), stamp{})
	equal(t, "kid", example.kid, "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k")
	equal(t, "x", example.jwk().X, "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")
	for range 1000 { // one thumbprint in 64 begins with a dash
		if key := newKey(t, time.Now()); key.kid != thumbprint(key.public) || key.kid[0] == '-' {
			t.Fatalf("kid %s", key.kid)
		}
	}
}

func newRing(t testing.TB, now time.Time) *keyring {
	t.Helper()
	ring, err := newKeyring(now)
	must(t, err)
	return ring
}

func newKey(t testing.TB, now time.Time) signingKey {
	t.Helper()
	key, err := newSigningKey(now)
	must(t, err)
	return key
}

// kidsIn returns the kids of a key file's keys, the signing one first.
func kidsIn(t testing.TB, path string) (kids []string) {
	t.Helper()
	ring, err := loadKeyring(path)
	must(t, err)
	for _, key := range ring.keys {
		kids = append(kids, key.kid)
	}
	return kids
}

// publicKeys reads what `key public` prints, both ways.
func publicKeys(s *service) (kids []string) {
	s.t.Helper()
	out := s.must("key", "public")
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
	out = s.must("key", "public", "-json")
	for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
		var row map[string]any
		s.check(json.Unmarshal([]byte(line), &row))
		sameText(s.t, "key public -json", row["kid"], kids[i], row["signs"], i == 0)
	}
	sameText(s.t, "private keys that are printed", strings.Count(out, "PRIVATE"), 0)
	return kids
}

func TestKeyring_refusesADamagedFile(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	ring := newRing(t, now)
	ring.keys = append(ring.keys, newKey(t, now.Add(time.Hour)))
	text, err := ring.encode()
	must(t, err)
	whole := string(text)
	block := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	firstKey, rest, _ := strings.Cut(whole, "-----END PRIVATE KEY-----\n")
	firstKey += "-----END PRIVATE KEY-----\n"
	secret := whole[strings.Index(whole, "-----BEGIN WIDGETD SECRET"):]
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	ec, err := x509.MarshalPKCS8PrivateKey(curve)
	must(t, err)
	for name, damaged := range map[string]string{
		"empty":                        "",
		"no PEM":                       "this is not a key file\n",
		"no secret":                    strings.TrimSuffix(whole, secret),
		"no key":                       secret,
		"a secret of 31 bytes":         firstKey + block("WIDGETD SECRET", make([]byte, 31)),
		"cut in the secret":            whole[:len(whole)-40],
		"a key on another curve":       block("PRIVATE KEY", ec) + secret,
		"a key that is no DER":         block("PRIVATE KEY", []byte("hello")) + secret,
		"text at the end":              whole + "hello\n",
		"the first key's text broken":  strings.Replace(whole, "MC4", "M!4", 1),
		"the second key's text broken": firstKey + strings.Replace(rest, "MC4", "M!4", 1),
		"a date that is none":          strings.Replace(whole, "2026-11-21", "2026-11-31", 1),
		"a date that is text":          strings.Replace(whole, "2026-11-21", "yesterday", 1),
		"another key's kid":            strings.Replace(whole, ring.keys[1].kid, ring.keys[0].kid, 1),
		"text that is none":            strings.Replace(whole, "# kid", "kid", 1),
	} {
		t.Run(name, func(t *testing.T) {
			if damaged == whole {
				t.Fatal("the file is whole")
			}
			path := filepath.Join(t.TempDir(), "widgetd.key")
			must(t, os.WriteFile(path, []byte(damaged), 0o600))
			_, err := loadKeyring(path)
			oneLine(t, err, path, "is damaged", "restore")
		})
	}
	_, err = loadKeyring(filepath.Join(t.TempDir(), "none.key"))
	oneLine(t, err, "none.key", "restore it from your copy")
}

func TestKeyring_signsWithANewKeyADayLaterThenItsForerunnerRetires(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		follow := func(ctx context.Context) { s.server.pollFiles(ctx, s.keyFile()) }
		stop := s.beside(follow)
		synctest.Wait()
		_, license := s.addLicense(license{})
		s.activate(license, "f").is(200)
		first := publicKeys(s)[0]
		sameText(t, "kid", first, s.keys.signer().kid)
		old := s.auth(s.account, scopeLeads)
		oneLine(t, s.failure("key", "rotate"), "key add")

		s.must("key", "add")
		kids := publicKeys(s)
		sameText(t, "after key add", len(kids), 2, kids[0], first)
		poll()
		s.get("//.well-known/jwks.json").is(200).contains(kids[1], first)
		sameText(t, "the new key signs already", s.server.keys.Load().signer().kid, first)
		oneLine(t, s.failure("key", "rotate"), "-force", "a day")
		stop() // a day has many seconds
		time.Sleep(minKeyAge - upkeepInterval - time.Second)
		oneLine(t, s.failure("key", "rotate"), "-force", "a day")
		time.Sleep(time.Second)
		s.must("key", "rotate")
		sameText(t, "after key rotate", publicKeys(s), []string{kids[1], first})
		s.beside(follow)
		poll()
		s.verifyKey(license, "f").is(200)
		s.get("/leads", old).is(401) // an hour old
		s.keys = s.server.keys.Load()
		current := s.token(s.account, scopeLeads)
		header, _ := base64.RawURLEncoding.DecodeString(strings.Split(current, ".")[0])
		contains(t, string(header), kids[1])
		s.get("/leads", bearer(current)).is(200)

		oneLine(t, s.failure("key", "retire", kids[1]), "the signing key")
		oneLine(t, s.failure("key", "retire", "nobody"), "no such key")
		s.must("key", "retire", first) // the device has a lease of the new key, the token is over
		sameText(t, "after key retire", publicKeys(s), kids[1:])
	})
}

func TestKeyring_saysWhatRetiringAKeyEndsAndThenEndsIt(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		file := s.keyFile()
		_, key := s.addLicense(license{})
		var leases []string
		for i := range 3 {
			leases = append(leases, s.activate(key, fmt.Sprint("f", i)).is(200).text("token"))
		}
		old := s.auth(s.account, scopeLeads)
		s.token(s.account, scopeStats)
		revoked, err := s.keys.verify(s.token(s.account, scopeStats))
		s.check(err)
		s.change(func(t *tx) error { return revokeToken(t, revoked.ID, anActor) })
		p, _ := s.registerApp()
		s.appToken(p, s.account, scopeOrders)
		ofApp, _ := s.appToken(p, s.account, scopeOrders)
		revoked, err = s.keys.verify(ofApp)
		s.check(err)
		s.change(func(t *tx) error { t.revokeAppToken(p.ID, revoked.ID); return nil })
		first := s.keys.signer().kid
		s.must("key", "add") // in the second of the first
		s.must("key", "rotate", "-force")
		second := publicKeys(s)[0]
		failIf(t, second == first, "the first key still signs")
		s.server.followKeys(file)
		s.get("/leads", old).is(200)

		oneLine(t, s.failure("key", "retire", first), "3 unexpired device leases", "3 unexpired tokens", "-force")
		s.server.followKeys(file)
		s.get("/leads", old).is(200)
		time.Sleep(2 * time.Hour)
		oneLine(t, s.failure("key", "retire", first), "3 unexpired device leases", "0 unexpired tokens")
		s.verifyLease(leases[0]).is(200)
		s.must("key", "retire", first, "-force")
		s.server.followKeys(file)
		s.verifyLease(leases[0]).invalidToken()
		s.verifyKey(key, "f0").answers("valid")
		events := strings.Join(s.audit(0), "\n")
		for kind, data := range map[string]string{"added": `{"kid":"` + second + `"}`,
			"rotated": `{"from":"` + first + `","to":"` + second + `"}`, "retired": `{"kid":"` + first + `"}`} {
			contains(t, events, "key."+kind+" "+thisActor(t)+" "+s.account+"  "+data)
		}
	})
}

func TestKeyring_isWrittenWhileALockHoldsUpTheDatabase(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		file := s.keyFile()
		s.beside(func(ctx context.Context) { s.server.pollFiles(ctx, file) })
		s.beside(s.server.runChores)
		unlock, unlocked := make(chan struct{}), make(chan error, 1)
		go func() { unlocked <- s.store.update(t.Context(), func(*tx) error { <-unlock; return nil }) }()
		s.get("//api/legacy/nothing").is(404, "not_found") // counted, and to be written
		time.Sleep(2 * upkeepInterval)
		key := newKey(t, time.Now())
		s.check((&keyring{keys: append(slices.Clone(s.keys.keys), key), secret: s.keys.secret}).save(file, true))
		poll()
		sameText(t, "keys", len(s.server.keys.Load().keys), 2)
		close(unlock)
		s.check(<-unlocked)
	})
}

// A key file in another directory, as a mounted secret, with a link to it in the installation's.
func TestKeyring_behindALinkIsReplacedWhereItIs(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	link, elsewhere := o.env["WIDGETD_KEY"], t.TempDir()
	target := filepath.Join(elsewhere, "real.key")
	middle := filepath.Join(elsewhere, "current.key")
	toMiddle, err := filepath.Rel(o.dir, middle)
	if err = errors.Join(err, os.Rename(link, target), os.Symlink("real.key", middle),
		os.Symlink(toMiddle, link)); err != nil {
		t.Fatal(err)
	}
	isLink := func() {
		t.Helper()
		info, err := os.Lstat(link)
		if middleInfo, middleErr := os.Lstat(middle); err != nil || middleErr != nil ||
			info.Mode()&middleInfo.Mode()&fs.ModeSymlink == 0 {
			t.Fatalf("the link was replaced: %v, %v", info, err)
		}
		if info, err := os.Lstat(target); err != nil || info.Mode() != 0o600 {
			t.Fatalf("the key file is %v, %v", info, err)
		}
	}
	first := kidsIn(t, target)[0]
	added := strings.Fields(o.do("key", "add"))[0]
	isLink()
	o.do("key", "rotate", "-force")
	isLink()
	o.do("key", "retire", "-force", first)
	isLink()
	sameText(t, "keys", kidsIn(t, target), []string{added})
	must(t, os.Chmod(target, 0o640))
	o.fails("other users can read the key file", "key", "list")
	must(t, os.Remove(target))
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
	must(t, os.Symlink(o.env["WIDGETD_KEY"], link))
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
	sameText(t, "keys", len(kidsIn(t, link)), 9)
}

// Against a slip of the hand with the key file of a running service that would end every token, lease and secret:
// health warns and the log says so while the service goes on with the keys in memory; where the database has issued
// anything, no text says to make other keys, and init refuses to without -new-keys. A file that can't be used may stay
// the same between the polls that fail and the one that succeeds, as when the process has no descriptor left.
func TestKeyring_thatCannotBeUsedIsLoadedAgainUntilItCanBe(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		file := s.keyFile()
		s.beside(func(ctx context.Context) { s.server.pollFiles(ctx, file) })
		time.Sleep(betweenTicks)
		auth := s.auth(s.account, scopeLeads)
		next := newRing(t, time.Now())
		s.check(next.save(file, true))
		whole, err := os.ReadFile(file)
		s.check(err)
		then := time.Now()
		put := func(text []byte) { // in place, so that nothing but the content tells
			s.check(errors.Join(os.WriteFile(file, text, 0o600), os.Chtimes(file, then, then)))
		}
		put(bytes.Replace(whole, []byte("BEGIN"), []byte("B?GIN"), 1))
		time.Sleep(5 * time.Second)
		s.get("/leads", auth).is(200)
		s.health().is(200).members("status", "warn", "output", faultKeyFile)
		const said = `level=WARN msg="the key file can't be used`
		equal(t, "lines while it lasts", len(s.logLines(said)), 1)
		put(whole)
		time.Sleep(2 * time.Second)
		s.get("/leads", auth).invalidToken()
		s.health().is(200).members("status", "pass")
		time.Sleep(3 * time.Minute)
		equal(t, "lines when it is over", len(s.logLines(said)), 2)
		s.keys = s.server.keys.Load()
		auth = s.auth(s.account, scopeLeads)
		for range 2 {
			s.check(os.Remove(file))
			time.Sleep(10 * time.Second)
			lacks(t, strings.Join(dirNames(t, s.dir), " "), ".key")
			s.health().is(200).members("status", "warn", "output", faultKeyFile)
			s.get("/leads", auth).is(200)
			s.check(os.WriteFile(file, whole, 0o600))
			time.Sleep(3 * time.Second)
			s.health().is(200).members("status", "pass")
		}
		contains(t, s.log.String(), "restore it from your copy")
		lacks(t, s.log.String(), "widgetd init")
	})
}

// poll waits until a service in a bubble has looked at its files.
func poll() {
	time.Sleep(upkeepInterval)
	synctest.Wait()
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

func TestKeyFile_hasTheKidAboveEachKeyAndIsReadWithEarlierHeadersToo(t *testing.T) {
	t.Parallel()
	created, _ := parseStamp("2026-02-03T04:05:06Z")
	ring := fuzzRing()
	ring.keys[0].createdAt = created
	text, err := ring.encode()
	must(t, err)
	kids := []string{ring.keys[0].kid, ring.keys[1].kid}
	contains(t, string(text), "# kid "+kids[0]+" created 2026-02-03T04:05:06Z\n-----BEGIN PRIVATE KEY-----\nM",
		"# kid "+kids[1]+"\n-----BEGIN PRIVATE KEY-----\nM")
	lines := regexp.MustCompile(`(?m)^#.*\n`)
	earlier := lines.ReplaceAllString(string(text), "")
	earlier = strings.Replace(earlier, "-----BEGIN PRIVATE KEY-----\n",
		"-----BEGIN PRIVATE KEY-----\nCreated: 2026-02-03T04:05:06Z\n\n", 1)
	for name, content := range map[string]string{"as written": string(text), "of an earlier version": earlier,
		"with a comment of somebody's own": "# signs\n\n" + string(text) + "\n# the end\n"} {
		got, err := parseKeyring([]byte(content))
		if err != nil || len(got.keys) != 2 || got.keys[0].kid != kids[0] || got.keys[0].createdAt != created ||
			!got.keys[1].createdAt.IsZero() {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// sealedColumn finds a column of a table that holds something sealed.
var sealedColumn = regexp.MustCompile(`(?m)^  \w+ +BLOB\b.*\bsealed\b`)

func TestInit_makesNoKeysWhereTheDatabaseHasIssuedSomething(t *testing.T) {
	t.Parallel()
	tables := map[string]bool{"tokens": true, "app_tokens": true, "devices": true, "webhooks": true}
	for _, statement := range strings.Split(schemaSQL(), "CREATE TABLE ")[1:] {
		name, body, _ := strings.Cut(statement, " ")
		body, _, _ = strings.Cut(body, ";\n")
		// A refresh token's successor is sealed under the token itself.
		if sealedColumn.MatchString(body) && name != "refresh_tokens" {
			tables[name] = true
		}
	}
	if len(tables) < 9 {
		t.Fatalf("the schema has sealed columns in %v only", tables)
	}
	o := newOperator(t)
	key := o.env["WIDGETD_KEY"]
	must(t, os.Remove(key))
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		o.store(func(s *store) { addAnyRow(t, s, table) })
		lacks(t, fmt.Sprint(o.fails("restore it from your copy", "init")), "init")
		raw(t, o.env["WIDGETD_DB"], `PRAGMA foreign_keys = 0; DELETE FROM `+table)
	}
	o.store(func(s *store) { addAnyRow(t, s, "tokens") })
	for _, args := range [][]string{{"serve", "-addr", "127.0.0.1:0"}, {"key", "list"}, {"key", "add"},
		{"token", "issue", "-scope", scopeLeads, "-account", o.account}} {
		lacks(t, fmt.Sprint(o.fails("restore it from your copy", args...)), "init")
	}
	status := o.do("status", "-json")
	check, _ := o.try("check")
	contains(t, status, "the key file can't be used: no key file at "+key+": restore it from your copy")
	contains(t, check, "restore it from your copy")
	lacks(t, status+check, "init")
	if _, err := os.Lstat(key); err == nil {
		t.Error("a key file was made")
	}
	o.do("init", "-new-keys")
	hasMode(t, key, 0o600)
}

// addAnyRow adds a row to a table, whatever its rules are.
func addAnyRow(t *testing.T, s *store, table string) {
	t.Helper()
	var names, values []string
	const columns = `SELECT name, coalesce(dflt_value, CASE type WHEN 'TEXT' THEN quote('x')
		WHEN 'BLOB' THEN quote(x'00') ELSE '1' END) FROM pragma_table_info(?)`
	must(t, s.each(columns, []any{table}, func(scan func(...any) error) error {
		var name, value string
		err := scan(&name, &value)
		names = append(names, name)
		if strings.HasSuffix(name, "_at") || strings.HasSuffix(name, "_since") {
			value = "'2026-01-01T00:00:00Z'"
		}
		values = append(values, value)
		return err
	}))
	raw(t, s.path, `PRAGMA ignore_check_constraints = 1; PRAGMA foreign_keys = 0; INSERT INTO `+table+
		` (`+strings.Join(names, ", ")+`) VALUES (`+strings.Join(values, ", ")+`)`)
}

func TestInit_makesKeysWhereNothingWasIssuedOrTheyAreAskedFor(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	key := o.env["WIDGETD_KEY"]
	o.addLeads("ada@example.com") // which needs no keys
	before := fileText(t, key)
	must(t, os.Remove(key))
	o.fails("run 'widgetd init' first", "serve", "-addr", "127.0.0.1:0")
	contains(t, o.do("status", "-json"), "run 'widgetd init' first")
	contains(t, o.do("init"), key+": created")
	if fileText(t, key) == before {
		t.Error("the keys are the same")
	}
	after := fileText(t, key)
	o.fails("exist already, and init never changes them", "init", "-new-keys")
	equal(t, "the key file after -new-keys beside one", fileText(t, key), after)
	// A database that can't be asked may have issued anything.
	must(t, os.Remove(key))
	o.close()
	raw(t, o.env["WIDGETD_DB"], `PRAGMA user_version = 8`)
	lacks(t, fmt.Sprint(o.fails("run 'widgetd upgrade'", "init")), "widgetd init")
	lacks(t, fmt.Sprint(o.fails("restore it from your copy", "serve", "-addr", "127.0.0.1:0")), "widgetd init")
	if _, err := os.Lstat(key); err == nil {
		t.Error("a key file was made")
	}
	contains(t, o.do("init", "-new-keys"), key+": created")
	// Without a database there is nothing that could have been issued.
	o.fails("run 'widgetd init' first", "serve", "-addr", "127.0.0.1:0", "-db", key+".db", "-key", key+"2")
}
