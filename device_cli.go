package main

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// leaseLines explain the claims of a device token, in the order they are shown.
var leaseLines = []struct{ claim, meaning string }{
	{"iss", "who signed it"}, {"aud", "for whom: the same address"}, {"sub", "the account of the licence"}, {"client_id", "who carries it"},
	{"scope", "what it is good for"}, {"jti", "its own number"}, {"lic", "the licence"}, {"dev", "the device"}, {"fph", "SHA-256 of the device's fingerprint"},
	{"prd", "the product"}, {"ent", "what the licence includes"}, {"seq", "number of the lease: a lower one is older"}, {"iat", "when it was signed"},
	{"exp", "until when it proves the licence offline"}, {"lexp", "when the licence ends"}, {"gexp", "when its grace ends"},
	{"rfa", "seconds after which to ask for another"}, {"nonce", "what the device sent to have signed"},
}

// leaseInspect explains a device token as a device without a network would judge
// it, with nothing but the public keys.
func leaseInspect(e *env) error {
	if e.str("public") == "" {
		return usageError("-public FILE is needed: 'widgetd key public' prints it")
	}
	ring, err := loadPublicKeys(e.str("public"))
	if err != nil {
		return err
	}
	token := e.args[0]
	c, err := ring.verify(token)
	fault, believed := "", &c
	if err != nil {
		believed, fault = nil, "its signature does not hold under these keys, or it is no token of this service"
	} else {
		fault = leaseFault(c, e.str("fingerprint"), e.str("audience"), e.now())
	}
	if e.on("json") {
		if err := e.print(map[string]any{"holds": fault == "", "fault": fault, "claims": believed}, ""); err != nil {
			return err
		}
	} else {
		explainLease(e.stdout, token)
	}
	if fault != "" {
		return errors.New("the lease does not hold: " + fault)
	}
	if e.on("json") {
		return nil
	}
	left := time.Unix(c.Expires, 0).Sub(e.now())
	until := left.Round(time.Second).String()
	if left >= 48*time.Hour {
		until = fmt.Sprintf("%.0f days", left.Hours()/24)
	}
	fmt.Fprintf(e.stdout, "\nThe lease holds: the signature is right, and it ends in %s.\n", until)
	for _, name := range []string{"fingerprint", "audience"} {
		if e.str(name) == "" {
			fmt.Fprintf(e.stdout, "Not compared, for want of -%s: the %s.\n", name, name)
		}
	}
	return nil
}

// explainLease prints header and claims of a token as far as they can be read,
// whether or not they can be believed.
func explainLease(w io.Writer, token string) {
	parts := strings.Split(token, ".")
	for i, title := range []string{"header", "claims"} {
		if i >= len(parts) {
			return
		}
		raw, ok := decodeSegment(parts[i])
		v, err := parseJSON(raw)
		if !ok || err != nil {
			fmt.Fprintf(w, "%s: can't be read\n", title)
			continue
		}
		if title == "header" {
			for _, m := range v.members {
				fmt.Fprintf(w, "%-10s %s\n", printable(m.name), printable(m.value.text))
			}
			continue
		}
		for _, line := range leaseLines {
			if m, there := v.member(line.claim); there {
				fmt.Fprintf(w, "%-10s %-44s %s\n", line.claim, claimText(line.claim, m), line.meaning)
			}
		}
	}
}

func claimText(name string, v *jsonValue) string {
	if n, ok := v.integer(); ok && slices.Contains([]string{"iat", "exp", "lexp", "gexp"}, name) {
		return newStamp(time.Unix(n, 0)).String()
	}
	texts := []string{}
	for _, element := range v.list {
		texts = append(texts, element.text)
	}
	return printable(v.text + strings.Join(texts, " "))
}

// printable is a text without what could play with a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// loadPublicKeys reads public keys in PEM, as key public prints them. The ring can
// verify and nothing else.
func loadPublicKeys(path string) (*keyring, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	ring := &keyring{}
	for {
		block, rest := pem.Decode(content)
		if block == nil {
			break
		}
		content = rest
		parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
		public, ok := parsed.(ed25519.PublicKey)
		if err != nil || !ok {
			return nil, fmt.Errorf("%s: a block is no Ed25519 public key", path)
		}
		ring.keys = append(ring.keys, signingKey{public: public, kid: thumbprint(public)})
	}
	if len(ring.keys) == 0 {
		return nil, fmt.Errorf("%s: there is no public key in it: 'widgetd key public' prints them", path)
	}
	return ring, nil
}
