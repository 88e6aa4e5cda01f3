package main

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// claims are the claims of a token of ours: a bearer token's, and behind them a
// device token's (contract, sections 2 and 4). Times are Unix seconds.
type claims struct {
	Issuer   string `json:"iss"`
	Audience string `json:"aud"`
	Subject  string `json:"sub"` // the account
	ClientID string `json:"client_id"`
	Scope    string `json:"scope"` // space-separated
	IssuedAt int64  `json:"iat"`
	Expires  int64  `json:"exp"`
	ID       string `json:"jti"`

	License      string   `json:"lic,omitempty"`
	Device       string   `json:"dev,omitempty"`
	Fingerprint  string   `json:"fph,omitempty"` // base64url SHA-256
	Product      string   `json:"prd,omitempty"`
	Entitlements []string `json:"ent,omitempty"`
	Seq          int64    `json:"seq,omitempty"`
	LicenseEnd   int64    `json:"lexp,omitempty"` // 0: never
	GraceEnd     int64    `json:"gexp,omitempty"`
	RefreshAfter int64    `json:"rfa,omitempty"` // seconds after iat
	Nonce        string   `json:"nonce,omitempty"`
}

// isDevice reports whether the token is a device's lease.
func (c *claims) isDevice() bool { return c.Device != "" }

// A signingKey is one Ed25519 key of the key file.
type signingKey struct {
	private   ed25519.PrivateKey // nil where only the public half is known
	public    ed25519.PublicKey
	kid       string // RFC 7638 thumbprint
	createdAt stamp
}

func signingKeyOf(private ed25519.PrivateKey, createdAt stamp) signingKey {
	public := private.Public().(ed25519.PublicKey)
	return signingKey{private: private, public: public, kid: thumbprint(public), createdAt: createdAt}
}

// jwk is the public half, as RFC 8037 writes it.
func (k *signingKey) jwk() map[string]string {
	return map[string]string{"kty": "OKP", "crv": "Ed25519", "x": base64.RawURLEncoding.EncodeToString(k.public), "kid": k.kid, "use": "sig", "alg": "EdDSA"}
}

// thumbprint is RFC 7638's, over the members that RFC 8037 requires.
func thumbprint(public ed25519.PublicKey) string {
	sum := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` + base64.RawURLEncoding.EncodeToString(public) + `"}`))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// A keyring is the content of the key file: the keys, of which the first one
// signs and all verify, and the secret that everything symmetric is derived from.
type keyring struct {
	keys   []signingKey
	secret []byte
}

const (
	pemKey     = "PRIVATE KEY"
	pemSecret  = "WIDGETD SECRET"
	pemCreated = "Created"
)

// newSigningKey makes a key whose id does not begin with a dash, which the command
// line would take for an option.
func newSigningKey(now time.Time) (signingKey, error) {
	for {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return signingKey{}, err
		}
		if key := signingKeyOf(private, newStamp(now)); key.kid[0] != '-' {
			return key, nil
		}
	}
}

// newKeyring makes a key and a secret.
func newKeyring(now time.Time) (*keyring, error) {
	key, err := newSigningKey(now)
	secret := make([]byte, 32)
	rand.Read(secret)
	return &keyring{keys: []signingKey{key}, secret: secret}, err
}

// loadKeyring reads the key file. It refuses one that others can read.
func loadKeyring(path string) (*keyring, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no key file at %s: run 'widgetd init' first, or name it with -key", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open the key file: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("others can read the key file %s (mode %04o): run 'chmod 600 %s', and rotate the key if that was long so", path, info.Mode().Perm(), path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the key file: %w", err)
	}
	ring, err := parseKeyring(text)
	if err != nil {
		return nil, fmt.Errorf("the key file %s is damaged: restore it from your copy: %w", path, err)
	}
	return ring, nil
}

var pemBegin = []byte("-----BEGIN ")

func parseKeyring(text []byte) (*keyring, error) {
	ring := &keyring{}
	for text = bytes.TrimSpace(text); len(text) > 0; text = bytes.TrimSpace(text) {
		block, rest := pem.Decode(text)
		// Decode steps over what is no block, a broken key too.
		if block == nil || !bytes.HasPrefix(text, pemBegin) || bytes.Count(text[:len(text)-len(rest)], pemBegin) != 1 {
			return nil, errors.New("there is text that is no PEM block, or a broken one")
		}
		text = rest
		switch block.Type {
		case pemSecret:
			if ring.secret != nil || len(block.Bytes) != 32 {
				return nil, errors.New("the secret is not one block of 32 bytes")
			}
			ring.secret = block.Bytes
		case pemKey:
			parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			private, ok := parsed.(ed25519.PrivateKey)
			if err != nil || !ok {
				return nil, errors.New("a key is not an Ed25519 key in PKCS#8")
			}
			var created stamp
			if text := block.Headers[pemCreated]; text != "" {
				if err := created.Scan(text); err != nil {
					return nil, errors.New("the date of a key can't be read")
				}
			}
			key := signingKeyOf(private, created)
			if ring.find(key.kid) != nil {
				return nil, errors.New("a key stands there twice")
			}
			ring.keys = append(ring.keys, key)
		default:
			return nil, fmt.Errorf("a block %q does not belong there", block.Type)
		}
	}
	if len(ring.keys) == 0 || ring.secret == nil {
		return nil, errors.New("a key or the secret is missing")
	}
	return ring, nil
}

func (k *keyring) encode() ([]byte, error) {
	var out bytes.Buffer
	for i := range k.keys {
		der, err := x509.MarshalPKCS8PrivateKey(k.keys[i].private)
		if err != nil {
			return nil, err
		}
		block := &pem.Block{Type: pemKey, Bytes: der}
		if !k.keys[i].createdAt.IsZero() {
			block.Headers = map[string]string{pemCreated: k.keys[i].createdAt.String()}
		}
		if err := pem.Encode(&out, block); err != nil {
			return nil, err
		}
	}
	err := pem.Encode(&out, &pem.Block{Type: pemSecret, Bytes: k.secret})
	return out.Bytes(), err
}

// save writes the key file whole or not at all, mode 0600. It replaces an
// existing one only when told to; else the error wraps fs.ErrExist.
func (k *keyring) save(path string, replace bool) error {
	text, err := k.encode()
	if err != nil {
		return fmt.Errorf("write the key file: %w", err)
	}
	err = writeAtomically(path, replace, func(f *os.File) error {
		_, err := f.Write(text)
		return err
	})
	if err != nil {
		return fmt.Errorf("write the key file: %w", err)
	}
	return nil
}

// signer is the key that signs.
func (k *keyring) signer() *signingKey { return &k.keys[0] }

// find returns the key of a thumbprint, or nil.
func (k *keyring) find(kid string) *signingKey {
	for i := range k.keys {
		if k.keys[i].kid == kid {
			return &k.keys[i]
		}
	}
	return nil
}

// derive makes a key of 32 bytes for one purpose (RFC 5869).
func (k *keyring) derive(purpose string, salt []byte) []byte {
	key, err := hkdf.Key(sha256.New, k.secret, salt, "widgetd "+purpose, 32)
	if err != nil {
		panic(err) // only for a length that HKDF can't give
	}
	return key
}

// hash is a keyed hash of parts for one purpose: without the key file nobody can
// tell what was hashed. No part runs into the next.
func (k *keyring) hash(purpose string, parts ...string) []byte {
	mac := hmac.New(sha256.New, k.derive(purpose, nil))
	for _, part := range parts {
		fmt.Fprintf(mac, "%d:%s", len(part), part)
	}
	return mac.Sum(nil)
}

// seal encrypts an answer under a key that needs the service's secret and what
// the caller chose (AES-256-GCM).
func (k *keyring) seal(chosen string, plain []byte) []byte {
	aead := k.aead(chosen)
	nonce := make([]byte, aead.NonceSize())
	rand.Read(nonce)
	return aead.Seal(nonce, nonce, plain, nil)
}

// unseal is seal's inverse.
func (k *keyring) unseal(chosen string, sealed []byte) ([]byte, error) {
	aead := k.aead(chosen)
	if len(sealed) < aead.NonceSize() {
		return nil, errors.New("a sealed answer is too short")
	}
	return aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], nil)
}

func (k *keyring) aead(chosen string) cipher.AEAD {
	block, err := aes.NewCipher(k.derive("idempotency", []byte(chosen)))
	if err == nil {
		var aead cipher.AEAD
		if aead, err = cipher.NewGCM(block); err == nil {
			return aead
		}
	}
	panic(err) // only for a key of another length
}

// strictBase64 refuses altered last characters, which RawURLEncoding takes.
var strictBase64 = base64.RawURLEncoding.Strict()

// decodeSegment decodes one part of a token, canonical base64url only (the
// decoder alone would pass line breaks).
func decodeSegment(s string) ([]byte, bool) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, false
	}
	out, err := strictBase64.DecodeString(s)
	return out, err == nil
}

// sign makes a compact JWS of the claims with the key that signs (RFC 7515, RFC
// 8037, RFC 9068's typ).
func (k *keyring) sign(c claims) (string, error) {
	payload, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	key := k.signer()
	header := `{"alg":"EdDSA","typ":"at+jwt","kid":"` + key.kid + `"}`
	input := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString(payload)
	return input + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key.private, []byte(input))), nil
}

// verify reads a compact JWS that a key of the ring signed. Any other way to write
// a token is errInvalidToken: a header member that we don't write, an algorithm
// but EdDSA under its two names, a claim twice or of the wrong type. The caller
// still has to judge its times, its addressee and whether it was revoked.
func (k *keyring) verify(token string) (claims, error) {
	parts := strings.Split(token, ".")
	if len(token) > maxTokenBytes || len(parts) != 3 {
		return claims{}, errInvalidToken
	}
	var decoded [3][]byte
	for i, part := range parts {
		var ok bool
		if decoded[i], ok = decodeSegment(part); !ok {
			return claims{}, errInvalidToken
		}
	}
	header, err := parseJSON(decoded[0])
	if err != nil {
		return claims{}, errInvalidToken
	}
	for _, m := range header.members {
		wanted := map[string][]string{"alg": {"EdDSA", "Ed25519"}, "typ": {"at+jwt"}, "kid": {m.value.text}}[m.name]
		if m.value.kind != jsonString || !slices.Contains(wanted, m.value.text) {
			return claims{}, errInvalidToken
		}
	}
	kid, _ := header.member("kid")
	if len(header.members) != 3 || kid == nil {
		return claims{}, errInvalidToken
	}
	key := k.find(kid.text)
	if key == nil || !ed25519.Verify(key.public, []byte(token[:len(parts[0])+1+len(parts[1])]), decoded[2]) {
		return claims{}, errInvalidToken
	}
	payload, err := parseJSON(decoded[1])
	if err != nil {
		return claims{}, errInvalidToken
	}
	return readClaims(&payload)
}

// readClaims takes the claims of a parsed payload; a known one of the wrong type,
// or a required one that is missing, is errInvalidToken.
func readClaims(v *jsonValue) (c claims, err error) {
	ok := true
	text := func(name string, need need) string {
		m, there := v.member(name)
		if !there || m.kind != jsonString {
			ok = ok && !there && need == optional
			return ""
		}
		return m.text
	}
	number := func(name string, need need) int64 {
		m, there := v.member(name)
		if !there {
			ok = ok && need == optional
			return 0
		}
		n, whole := m.integer()
		ok = ok && whole && n >= 0
		return n
	}
	c = claims{
		Issuer: text("iss", required), Audience: text("aud", required), Subject: text("sub", required), ClientID: text("client_id", required),
		Scope: text("scope", required), IssuedAt: number("iat", required), Expires: number("exp", required), ID: text("jti", required),
		License: text("lic", optional), Device: text("dev", optional), Fingerprint: text("fph", optional), Product: text("prd", optional),
		Seq: number("seq", optional), LicenseEnd: number("lexp", optional), GraceEnd: number("gexp", optional),
		RefreshAfter: number("rfa", optional), Nonce: text("nonce", optional),
	}
	if list, there := v.member("ent"); there {
		ok = ok && list.kind == jsonArray
		for _, e := range list.list {
			ok = ok && e.kind == jsonString
			c.Entitlements = append(c.Entitlements, e.text)
		}
	}
	if !ok || c.isDevice() != (c.Scope == scopeDevice) {
		return claims{}, errInvalidToken
	}
	return c, nil
}
