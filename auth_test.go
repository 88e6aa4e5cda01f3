package main

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	namedMetadata    = `, resource_metadata="http://127.0.0.1:8080/.well-known/oauth-protected-resource/v1"`
	bareChallenge    = `Bearer realm="widgetd"` + namedMetadata
	invalidChallenge = `Bearer realm="widgetd", error="invalid_token"` + namedMetadata
)

func scopeChallenge(scope string) string {
	return `Bearer realm="widgetd", error="insufficient_scope", scope="` + scope + `"`
}

// rawMembers are an object's members as names and raw JSON values, in turn.
type rawMembers []string

// with returns the members with one changed, added, or, with "", removed.
func (m rawMembers) with(name, raw string) rawMembers {
	out := rawMembers{}
	seen := false
	for i := 0; i < len(m); i += 2 {
		switch {
		case m[i] != name:
			out = append(out, m[i], m[i+1])
		case raw != "":
			out = append(out, name, raw)
		}
		seen = seen || m[i] == name
	}
	if !seen && raw != "" {
		out = append(out, name, raw)
	}
	return out
}

func (m rawMembers) String() string {
	parts := []string{}
	for i := 0; i < len(m); i += 2 {
		parts = append(parts, `"`+m[i]+`":`+m[i+1])
	}
	return "{" + strings.Join(parts, ",") + "}"
}

func segment(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// signSegments signs two segments as they are.
func signSegments(key *signingKey, header, payload string) string {
	input := header + "." + payload
	return input + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key.private, []byte(input)))
}

// aForge makes tokens: by default a right one, signed by the service's own key.
type aForge struct {
	s       *service
	key     *signingKey
	other   signingKey // of nobody's ring
	header  rawMembers
	claims  rawMembers
	expires time.Time
}

// newForge records a token with every right of leads:read and takes it as the model.
func newForge(s *service) *aForge {
	s.t.Helper()
	f := &aForge{s: s, key: s.keys.signer()}
	var err error
	f.other, err = newSigningKey(time.Now())
	s.check(err)
	var issued tokenRow
	s.change(func(t *tx) (err error) {
		_, issued, err = issueToken(t, s.keys,
			tokenRow{AccountID: s.account, ClientID: "test", Scope: "leads:read stats:read"}, time.Hour)
		return err
	})
	f.expires = issued.ExpiresAt.Time
	f.header = rawMembers{"alg", `"EdDSA"`, "typ", `"at+jwt"`, "kid", `"` + f.key.kid + `"`}
	f.claims = rawMembers{"iss", `"` + testBase + `"`, "aud", `"` + testBase + `"`, "sub", `"` + s.account + `"`,
		"client_id", `"test"`, "scope", `"leads:read stats:read"`, "iat", fmt.Sprint(issued.CreatedAt.Unix()), "exp",
		fmt.Sprint(issued.ExpiresAt.Unix()), "jti", `"` + issued.ID + `"`}
	return f
}

func (f *aForge) sign(header, claims rawMembers) string {
	return signSegments(f.key, segment(header.String()), segment(claims.String()))
}
func (f *aForge) good() string                     { return f.sign(f.header, f.claims) }
func (f *aForge) withHeader(name, v string) string { return f.sign(f.header.with(name, v), f.claims) }
func (f *aForge) withClaim(name, v string) string  { return f.sign(f.header, f.claims.with(name, v)) }

// malleable adds the order of the curve's group to the signature's scalar, which
// a lax verifier takes for the same signature.
func malleable(token string) string {
	parts := strings.Split(token, ".")
	sig, _ := base64.RawURLEncoding.DecodeString(parts[2])
	order, _ := new(big.Int).SetString("7237005577332262213973186563042994240857116359379907606001950938285454250989",
		10)
	scalar := slices.Clone(sig[32:])
	slices.Reverse(scalar)
	sum := new(big.Int).Add(new(big.Int).SetBytes(scalar), order).FillBytes(make([]byte, 32))
	slices.Reverse(sum)
	return parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(append(sig[:32:32], sum...))
}

func TestToken_wrongInAnyWayIs401(t *testing.T) {
	t.Parallel()
	s := newService(t)
	f := newForge(s)
	good := f.good()
	parts := strings.Split(good, ".")
	h, p, sig := parts[0], parts[1], parts[2]
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	lastOf := func(part string) string { // the same bytes, another last character
		i := strings.IndexByte(alphabet, part[len(part)-1])
		return part[:len(part)-1] + string(alphabet[i^1])
	}
	public := f.key.public
	mac := hmac.New(sha256.New, public)
	hsHeader := segment(f.header.with("alg", `"HS256"`).String())
	mac.Write([]byte(hsHeader + "." + p))
	second := s.addAccount("second")
	var others tokenRow
	s.change(func(t *tx) (err error) {
		_, others, err = issueToken(t, s.keys, tokenRow{AccountID: second, ClientID: "test", Scope: "leads:read"},
			time.Hour)
		return err
	})
	jwk, _ := json.Marshal(f.other.jwk())
	now := time.Now().Unix()

	const elsewhere = `"https://elsewhere.example/v1"`
	dev, unknown := `"`+newID("dev", time.Now())+`"`, f.header.with("kid", `"`+f.other.kid+`"`)
	signature := ed25519.Sign(f.key.private, []byte(h+"."+p))
	header := func(text string) string { return signSegments(f.key, segment(text), p) }
	payload := func(text string) string { return signSegments(f.key, h, segment(text)) }
	changed := func(pairs ...string) string { // claims
		claims := f.claims
		for i := 0; i < len(pairs); i += 2 {
			claims = claims.with(pairs[i], pairs[i+1])
		}
		return f.sign(f.header, claims)
	}
	cases := map[string]string{
		// The algorithm and the header.
		"alg none, no signature":        segment(f.header.with("alg", `"none"`).String()) + "." + p + ".",
		"alg None, no signature":        segment(f.header.with("alg", `"None"`).String()) + "." + p + ".",
		"alg HS256 keyed by the public": hsHeader + "." + p + "." + segment(string(mac.Sum(nil))),
		"alg twice":                     header(`{"alg":"EdDSA",` + f.header.String()[1:]),
		"alg twice, none first":         header(`{"alg":"none",` + f.header.String()[1:]),
		"kid twice":                     header(`{"kid":"` + f.other.kid + `",` + f.header.String()[1:]),
		"crit b64":                      f.sign(f.header.with("crit", `["b64"]`).with("b64", "false"), f.claims),
		"header an array":               header(`["EdDSA"]`),
		"header no JSON":                header(`alg=EdDSA`),
		"header with more behind it":    header(f.header.String() + " {}"),
		"header not UTF-8":              header("{\"alg\":\"EdDSA\",\"typ\":\"at+jwt\",\"kid\":\"\xff\"}"),
		"header with a byte order mark": header("\ufeff" + f.header.String()),
		"header empty":                  signSegments(f.key, "", p),
		"jwk of the key that signed":    signSegments(&f.other, segment(unknown.with("jwk", string(jwk)).String()), p),
		"another key under our kid":     signSegments(&f.other, h, p),
		"another key under its own kid": signSegments(&f.other, segment(unknown.String()), p),
		"signature of another message":  h + "." + p + "." + strings.Split(f.withClaim("scope", `"admin"`), ".")[2],
		"payload of another signature":  h + "." + segment(f.claims.with("scope", `"admin"`).String()) + "." + sig,
		"signature missing":             h + "." + p + ".",
		"signature all zero":            h + "." + p + "." + segment(string(make([]byte, 64))),
		"signature cut short":           h + "." + p + "." + sig[:len(sig)-2],
		"signature with a byte more":    h + "." + p + "." + segment(string(append(signature, 0))),
		"signature with S + L":          malleable(good),
		"signature over the payload":    h + "." + p + "." + segment(string(ed25519.Sign(f.key.private, []byte(p)))),
		// The form.
		"last character altered":     h + "." + p + "." + lastOf(sig),
		"signature padded":           good + "==",
		"signature padded with dots": good + "..",
		"a non-canonical header":     signSegments(f.key, nonCanonical(f.header.String()), p),
		"a non-canonical payload":    signSegments(f.key, h, nonCanonical(f.claims.String())),
		"a padded payload": signSegments(f.key, h,
			base64.URLEncoding.EncodeToString([]byte(padded(f.claims.String())))),
		"standard base64": signSegments(f.key, h,
			base64.StdEncoding.EncodeToString([]byte(f.claims.with("nonce", `"???>>>~~~"`).String()))),
		"a line break at the end":       good + "\n",
		"a line break in the signature": h + "." + p + "." + sig[:40] + "\r\n" + sig[40:],
		"a signed line break":           signSegments(f.key, h[:10]+"\n"+h[10:], p),
		"a space within":                h + ". " + p + "." + sig,
		"two tokens":                    good + " " + good,
		"two tokens with a comma":       good + "," + good,
		"no dot":                        strings.ReplaceAll(good, ".", ""),
		"one part":                      h,
		"two parts":                     h + "." + p,
		"four parts":                    good + "." + sig,
		"five parts":                    good + "." + p + "." + sig,
		"only dots":                     "..",
		"payload empty":                 signSegments(f.key, h, ""),
		"JSON serialisation, flattened": `{"payload":"` + p + `","protected":"` + h + `","signature":"` + sig + `"}`,
		"JSON serialisation, general": `{"payload":"` + p + `","signatures":[{"protected":"` + h +
			`","signature":"` + sig + `"}]}`,
		"in quotes":                      `"` + good + `"`,
		"another character":              good[:len(good)-1] + "!",
		"payload an array":               payload("[" + f.claims.String() + "]"),
		"payload a string":               payload(`"claims"`),
		"payload with more behind it":    payload(f.claims.String() + "{}"),
		"payload not UTF-8":              payload(strings.Replace(f.claims.String(), `"test"`, "\"t\xffst\"", 1)),
		"payload in single quotes":       payload(strings.ReplaceAll(f.claims.String(), `"`, `'`)),
		"a duplicated claim":             payload(`{"sub":"` + second + `",` + f.claims.String()[1:]),
		"a duplicated claim, same value": payload(`{"client_id":"test",` + f.claims.String()[1:]),
		"a duplicated claim, escaped":    payload(`{"s\u0075b":"` + second + `",` + f.claims.String()[1:]),
		"an unknown claim twice":         payload(`{"x":1,"x":2,` + f.claims.String()[1:]),
		// What it says.
		"iss and aud of another service": changed("iss", elsewhere, "aud", elsewhere),
		"iss with a slash":               changed("iss", `"`+testBase+`/"`, "aud", `"`+testBase+`/"`),
		"iss empty":                      changed("iss", `""`, "aud", `""`),
		"over for more than the skew":    changed("iat", fmt.Sprint(now-3600), "exp", fmt.Sprint(now-62)),
		"a device with scopes besides":   changed("dev", dev, "scope", `"license:verify leads:read"`),
	}
	for name, values := range map[string][]string{ // of the header; "": it is missing
		"alg": {`"none"`, `"HS256"`, `"RS256"`, `"ES256"`, `"Ed448"`, `"eddsa"`, "", "null", `["EdDSA"]`},
		"typ": {"", `"JWT"`, `""`, "1"}, "kid": {"", `""`, "7", `"` + f.other.kid + `"`, `"../../dev/null"`},
		"crit": {"[]", `["exp"]`}, "b64": {"true"}, "jwk": {string(jwk)},
		"jku": {`"https://evil.example/jwks.json"`}, "x5u": {`"https://evil.example/cert.pem"`},
		"x5c": {`["AAAA"]`}, "zip": {`"DEF"`}, "cty": {`"JWT"`}, "enc": {`"A256GCM"`},
		"hello": {`"world"`},
	} {
		for _, v := range values {
			cases["header: "+name+" "+v] = f.withHeader(name, v)
		}
	}
	for name, values := range map[string][]string{ // of the claims; the first is over 4 KiB
		"nonce": {`"` + strings.Repeat("x", 4096) + `"`, "null"},
		"x":     {`{"y":1,"y":2}`, strings.Repeat("[", 9) + strings.Repeat("]", 9)}, "iss": {elsewhere},
		"aud": {elsewhere, `["` + testBase + `"]`},
		"exp": {"0", fmt.Sprint(now+60) + ".5", "9e9", "-1", "99999999999999999999"},
		"iat": {fmt.Sprint(now + 3600)}, "scope": {`"license:verify"`}, "dev": {dev, "null"},
		"jti": {`"` + newID("tok", time.Now()) + `"`, `""`, `"` + others.ID + `"`},
		"sub": {`"` + second + `"`, `"` + newID("acct", time.Now()) + `"`}, "ent": {`"kds"`, "[1]"},
		"seq": {`"1"`}, "lic": {"1"}, "rfa": {"true"}, "gexp": {"[]"}, "lexp": {"-5"}, "fph": {"{}"},
		"prd": {"false"}, "client_id": {`["test"]`},
	} {
		for _, v := range values {
			cases["claim: "+name+" "+v[:min(len(v), 60)]] = f.withClaim(name, v)
		}
	}
	for _, name := range []string{"iss", "aud", "sub", "client_id", "scope", "iat", "exp", "jti"} {
		cases[name+" missing"] = f.withClaim(name, "")
		for _, wrong := range []string{"null", "true", "[]", "{}"} {
			cases[name+" is "+wrong] = f.withClaim(name, wrong)
		}
		wrong := "1"
		if name == "iat" || name == "exp" {
			wrong = `"` + fmt.Sprint(now+600) + `"`
		}
		cases[name+" is "+wrong] = f.withClaim(name, wrong)
	}

	s.get("/leads", bearer(good)).is(200)
	widget := s.addWidget(s.account)
	for name, token := range cases {
		t.Run(name, func(t *testing.T) {
			if token == good {
				t.Fatal("the forgery is the good token")
			}
			at := s.with(t)
			auth := bearer(token)
			at.get("/leads", auth).invalidToken()
			at.get("/widget/stats?widget="+widget, auth).invalidToken()
			at.post("/widget/license/verify", `{}`, auth).invalidToken()
		})
	}
}

// nonCanonical encodes a text whose last character holds bits that say nothing,
// and sets one of them.
func nonCanonical(s string) string {
	encoded := segment(padded(s))
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	i := strings.IndexByte(alphabet, encoded[len(encoded)-1])
	return encoded[:len(encoded)-1] + string(alphabet[i|1])
}

// padded adds white space to JSON until its base64 needs padding.
func padded(s string) string {
	for len(s)%3 == 0 {
		s += " "
	}
	return s
}

func TestToken_isTakenInEitherNameOfItsAlgorithmAndAnyOrderOfMembers(t *testing.T) {
	t.Parallel()
	s := newService(t)
	f := newForge(s)
	kid := `"` + f.key.kid + `"`
	for name, token := range map[string]string{
		"EdDSA":              f.good(),
		"Ed25519 (RFC 9864)": f.withHeader("alg", `"Ed25519"`),
		"another order":      f.sign(rawMembers{"kid", kid, "typ", `"at+jwt"`, "alg", `"EdDSA"`}, f.claims),
		"white space": signSegments(f.key,
			segment("{ \"alg\" :\"EdDSA\",\n\"typ\":\"at+jwt\",\"kid\":"+kid+"}"), segment(f.claims.String())),
		"an unknown claim":      f.withClaim("hello", `{"world":[1,2,null]}`),
		"a length of just 4096": f.ofLength(4096),
	} {
		t.Run(name, func(t *testing.T) {
			at := s.with(t)
			at.get("/leads", bearer(token)).is(200)
		})
	}
	s.get("/leads", bearer(f.ofLength(4098))).invalidToken()
}

// ofLength makes a right token of n characters, by an unknown claim.
func (f *aForge) ofLength(n int) string {
	f.s.t.Helper()
	for fill := (n-len(f.good()))*3/4 - len(`"fill":"",`) - 2; fill < n; fill++ {
		if token := f.withClaim("fill", `"`+strings.Repeat("x", fill)+`"`); len(token) == n {
			return token
		}
	}
	f.s.t.Fatalf("no token has %d characters", n)
	return ""
}

func TestToken_holdsFromASkewBeforeItsBeginningToASkewAfterItsEnd(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *service) {
		f := newForge(s)
		auth := bearer(f.good())
		time.Sleep(time.Until(f.expires.Add(clockSkew - time.Second)))
		s.get("/leads", auth).is(200)
		time.Sleep(time.Second)
		s.get("/leads", auth).invalidToken()

		now := time.Now().Unix()
		later := f.claims.with("exp", fmt.Sprint(now+9999))
		s.get("/leads", bearer(f.sign(f.header, later.with("iat", fmt.Sprint(now+60))))).is(200)
		s.get("/leads", bearer(f.sign(f.header, later.with("iat", fmt.Sprint(now+61))))).invalidToken()
		later = later.with("iat", fmt.Sprint(now)).with("nbf", fmt.Sprint(now+60))
		s.get("/leads", bearer(f.sign(f.header, later))).is(200)
		for _, nbf := range []string{fmt.Sprint(now + 61), `"soon"`, "-1", "null"} {
			s.get("/leads", bearer(f.sign(f.header, later.with("nbf", nbf)))).invalidToken()
		}
	})
}

func TestToken_isTheOnlyOneOfTheAuthorizationHeader(t *testing.T) {
	t.Parallel()
	s := newService(t)
	token := s.token(s.account, scopeLeads)
	for name, headers := range map[string][]string{
		"DPoP":               {"Authorization: DPoP " + token},
		"only spaces":        {"Authorization: Bearer    "},
		"empty":              {"Authorization: "},
		"two headers":        {bearer(token), bearer(token)},
		"a second, Basic":    {bearer(token), "Authorization: Basic d2lkZ2V0ZDpzZWNyZXQ="},
		"a tab":              {"Authorization: Bearer\t" + token},
		"with a realm":       {bearer(token) + ", realm=x"},
		"a token parameter":  {"Authorization: Bearer token=" + token},
		"another scheme too": {"Authorization: Basic x, Bearer " + token},
	} {
		t.Run(name, func(t *testing.T) {
			at := s.with(t)
			at.get("/leads", headers...).invalidToken()
			at.post("/widget/license/verify", `{"license_key":"`+newLicenseKey()+`"}`, headers...).invalidToken()
		})
	}
	for header, want := range map[string]string{
		token:                 "The Authorization header must be the word Bearer, a space and a token.",
		"Basic " + token:      errTokenBasic.answered.detail,
		"Token " + token:      errTokenNoScheme.answered.detail,
		"Bearer":              "There is no token after the word Bearer in the Authorization header.",
		"Bearer " + token[1:]: codeInvalidToken.detail,
	} {
		for _, path := range []string{"/leads", "/widget/stats?widget=" + s.addWidget(s.account)} {
			s.get(path, "Authorization: "+header).invalidToken().tells("detail", want).omits(token[1:])
		}
	}
	for _, scheme := range []string{"Bearer ", "bearer ", "BEARER ", "Bearer  "} {
		s.get("/leads", "Authorization: "+scheme+token).is(200)
	}
	for _, path := range []string{"/leads?access_token=" + token, "/leads?token=" + token} {
		s.get(path).challenged(401, "token_required", bareChallenge)
	}
}

func TestToken_fromPublicVectorsOfOtherServicesIsRefused(t *testing.T) {
	t.Parallel()
	var file struct {
		Cases []struct {
			ID    string `json:"id"`
			Token string `json:"raw_token"`
		} `json:"cases"`
	}
	must(t, json.Unmarshal(vectors(t, "tokens_wycheproof.json"), &file))
	if len(file.Cases) < 400 {
		t.Fatalf("%d cases only", len(file.Cases))
	}
	s := newService(t)
	for _, c := range file.Cases {
		if a := s.get("/leads", "Authorization: Bearer "+c.Token); a.status != 401 ||
			a.header.Get("WWW-Authenticate") != invalidChallenge {
			t.Errorf("%s: %d %v", c.ID, a.status, a.header)
		}
	}
}

func TestScope_isNeededForEveryRouteWithRowsOfAnAccount(t *testing.T) {
	t.Parallel()
	for _, rt := range allRoutes() {
		if strings.HasPrefix(rt.path(), "/widget/") || rt.path() == "/openapi.json" || rt.path() == "/llms.txt" ||
			rt.raw || rt.form != "" { // signed instead, or an application proves itself
			continue
		}
		// its own, to every token of it
		if rt.token != tokenRequired || rt.scope == "" && rt.pattern != "GET /account" {
			t.Errorf("%s asks for no token or no scope", rt.pattern)
		}
	}
}

// portalToken issues a token of an account that may name any.
func (s *service) portalToken(account, scope string) string {
	s.t.Helper()
	var token string
	s.change(func(t *tx) (err error) {
		token, _, err = issueToken(t, s.keys,
			tokenRow{AccountID: account, ClientID: "portal", Scope: scope, AllAccounts: true}, time.Hour)
		return err
	})
	return bearer(token)
}

func FuzzToken(f *testing.F) {
	ring := fuzzRing()
	ours := map[string]bool{}
	bearer := claims{Issuer: testBase, Audience: testBase, Subject: "acct_1", ClientID: "c", Scope: "leads:read",
		IssuedAt: 1, Expires: 2, ID: "tok_1"}
	lease := bearer
	lease.Scope, lease.License, lease.Device, lease.Fingerprint, lease.Entitlements, lease.Seq = scopeDevice, "lic_1",
		"dev_1", "AA", []string{"a", "b"}, 3
	for _, c := range []claims{bearer, lease} {
		token, err := ring.sign(c)
		must(f, err)
		ours[token] = true
		f.Add(token)
		parts := strings.Split(token, ".")
		for _, changed := range []string{token + "=", parts[0] + "." + parts[1], malleable(token),
			token[:len(token)-1], "." + token,
			segment(`{"alg":"none","typ":"at+jwt","kid":"`+ring.keys[0].kid+`"}`) + "." + parts[1] + ".",
			segment(`{"alg":"Ed25519","typ":"at+jwt","kid":"`+ring.keys[1].kid+`"}`) + "." + parts[1] + "." +
				parts[2]} {
			f.Add(changed)
		}
	}
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		c, err := ring.verify(token)
		if err == nil && !ours[token] {
			t.Fatalf("a token that nobody signed passes: %q", token)
		}
		if err != nil && (err != error(errInvalidToken) || fmt.Sprint(c) != fmt.Sprint(claims{})) {
			t.Fatalf("error %v, claims %v", err, c)
		}
		// Whatever stands in a claim comes back as it was signed.
		if len(token) > 500 {
			return
		}
		c = bearer
		c.ClientID = strings.ToValidUTF8(token, "?")
		signed, err := ring.sign(c)
		must(t, err)
		if back, err := ring.verify(signed); err != nil && len(signed) <= maxTokenBytes ||
			err == nil && back.ClientID != c.ClientID {
			t.Fatalf("%q comes back as %q, %v", c.ClientID, back.ClientID, err)
		}
	})
}

// otherProcess changes the file over a connection of its own, as the sqlite3 shell
// would.
func (s *service) otherProcess(statement string, args ...any) {
	s.t.Helper()
	db, err := sql.Open("sqlite", dsn(filepath.Join(s.dir, "widgetd.db"), "rw", storeOptions{noCheckpoints: true}))
	s.check(err)
	defer db.Close()
	_, err = db.Exec(statement, args...)
	s.check(err)
}

func TestCache_followsAChangeOfAnotherProcess(t *testing.T) {
	t.Parallel()
	s := newService(t)
	tenant := s.addAccount("tenant")
	s.change(func(tx *tx) error { return addOrigin(tx, tenant, "https://tenant.example", anActor) })
	widget := s.addWidget(tenant)
	id, key := s.addLicense(license{AccountID: tenant, terms: terms{MaxDevices: ptr(1)}})
	lease := "Authorization: Bearer " + s.activate(key, "a").is(200).text("token")
	token := "Authorization: Bearer " + s.token(tenant, scopeLicenses+" "+scopeStats)
	verify := func() string { return s.post("/widget/license/verify", `{}`, lease).is(200).text("code") }
	verifyByKey := func() string { return s.verifyKey(key, "a").is(200).text("code") }
	verifies := func(byLease, byKey string) func() bool {
		return func() bool { return verify() == byLease && verifyByKey() == byKey }
	}
	stats := func() string { return s.get("/widget/stats?widget="+widget, token).body }
	for range 3 { // what is asked for again is kept
		verify()
		verifyByKey()
		stats()
		s.get("/licenses", token).is(200)
		s.post("/widget/leads", anyLead, "Origin: https://tenant.example").is(200)
		s.notice()
	}
	for name, size := range map[string]int{"accounts": s.server.authenticator.accounts.len(),
		"origins": s.server.origins.len(), "callers": s.server.callers.len()} {
		if size == 0 {
			t.Errorf("nothing is kept of %s", name)
		}
	}
	for _, change := range []struct {
		statement string
		holds     func() bool
	}{
		{`UPDATE licenses SET state = 'suspended' WHERE id = '` + id + `'`, verifies("suspended", "suspended")},
		{`UPDATE licenses SET state = 'active' WHERE id = '` + id + `'`, verifies("valid", "valid")},
		{`UPDATE devices SET state = 'blocked'`, verifies("device_blocked", "device_blocked")},
		{`UPDATE devices SET state = 'active'`, verifies("token_ended", "valid")},
		{`UPDATE devices SET ended_seq = 0`, verifies("valid", "valid")},
		{`UPDATE license_keys SET retires_at = '2020-01-01T00:00:00Z'`, verifies("valid", "key_retired")},
		{`UPDATE license_keys SET retires_at = NULL`, verifies("valid", "valid")},
		{`INSERT INTO widget_counts (widget_id, quarter, views)
			VALUES ('` + widget + `', '` + newStamp(time.Now().Truncate(quarterHour)).String() + `', 7)`, func() bool {
			return s.get("/widget/stats?widget="+widget, token).json()["totals"].(map[string]any)["views"] == 7.0
		}},
		{`UPDATE accounts SET rate = 100 WHERE id = '` + tenant + `'`, func() bool {
			return s.get("/licenses", token).header.Get("RateLimit-Policy") == `"account";q=100;w=60`
		}},
		{`UPDATE tokens SET revoked_at = '2020-01-01T00:00:00Z'`,
			func() bool { return s.get("/licenses", token).status == 401 }},
		{`UPDATE tokens SET revoked_at = NULL`, func() bool { return s.get("/licenses", token).status == 200 }},
		{`DELETE FROM origins WHERE account_id = '` + tenant + `'`, func() bool {
			return s.post("/widget/leads", anyLead, "Origin: https://tenant.example").status == 403
		}},
		{`UPDATE accounts SET closed_at = '2020-01-01T00:00:00Z' WHERE id = '` + tenant + `'`, func() bool {
			return verify() == "suspended" && s.get("/licenses", token).status == 401 &&
				s.get("/widget/stats?widget="+widget).status == 404
		}},
	} {
		s.otherProcess(change.statement)
		s.notice()
		if !change.holds() {
			t.Errorf("the service does not know of: %s", change.statement)
		}
	}
}

// TestCache_neverLagsBehindAnAcknowledgedChange lets one goroutine change a row and
// ask at once, while others keep filling the cache with what they read.
func TestCache_neverLagsBehindAnAcknowledgedChange(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	s.change(func(tx *tx) error { return tx.setRate(s.account, 1_000_000) })
	id, key := s.addLicense(license{})
	auth := s.auth(s.account, scopeAdmin)
	stop, readers := make(chan struct{}), sync.WaitGroup{}
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					s.verifyKey(key, "a").is(200)
				}
			}
		})
	}
	for i := range size(20, 300) {
		plan := fmt.Sprint("plan ", i)
		s.do("PATCH", "/licenses/"+id, seatBody("plan", plan), auth).is(200)
		s.verifyKey(key, "a").is(200).tells("license.plan", plan)
	}
	close(stop)
	readers.Wait()
}

func TestCache_isBounded(t *testing.T) {
	t.Parallel()
	s := newService(t)
	c := newCache[int, int](10)
	for i := range 100 {
		if v, err := c.load(s.store, i, func() (int, string, error) { return i, "", nil }); err != nil || v != i {
			t.Fatal(v, err)
		}
	}
	if c.len() != 10 {
		t.Fatalf("%d entries", c.len())
	}
}

// len returns the number of entries.
func (c *cache[K, V]) len() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.entries)
}
