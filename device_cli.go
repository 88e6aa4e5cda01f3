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
)

// The options of these commands.
var (
	optPublic      = option{name: "public", value: "FILE", help: "PEM file with the public keys, as 'widgetd key public' prints them"}
	optFingerprint = option{name: "fingerprint", value: "TEXT", help: "the device's fingerprint, to compare"}
	optAudience    = option{name: "audience", value: "URL", help: "the service's base address, to compare"}
)

// The operator's commands on devices and their leases.
var deviceCommands = []command{
	{"device list", "LICENSE", "list a licence's devices, newest first", []option{optLimit}, 1, deviceList},
	{"device release", "ID", "give a device's seat back, or let a blocked one in again", nil, 1, deviceRelease},
	{"device block", "ID", "shut a device out", nil, 1, deviceBlock},
	{"device export", "", "print all devices, one JSON object a line or CSV", []option{optCSV}, 0, deviceExport},
	{"lease inspect", "TOKEN", "explain a device token line by line and say whether it holds, without the database", []option{optPublic, optFingerprint, optAudience}, 1, leaseInspect},
}

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

func printDevices(e *env, rows []*device) error {
	return printRows(e, viewDevices(rows), "DEVICE NAME STATE PLATFORM VERSION FINGERPRINT ACTIVATED SEEN RELEASED BY", func(d deviceView) []any {
		return []any{d.ID, d.Name, d.State, d.Platform, d.AppVersion, d.Fingerprint + "…", d.ActivatedAt, d.LastSeenAt, d.ReleasedAt, d.ReleasedBy}
	})
}

func deviceList(e *env) error {
	limit, err := e.number("limit", 1, 1_000_000)
	if err != nil {
		return err
	}
	return e.withStore(func(st *store) error {
		if _, err := st.license(anyAccount, e.args[0]); err != nil {
			return err
		}
		rows, err := st.devices(e.args[0], "", limit+1)
		if err != nil {
			return err
		}
		return printDevices(e, firstRows(e, rows, limit, "-limit N"))
	})
}

// changeDevice runs f on the device that the command names.
func (e *env) changeDevice(f func(*tx, *license, *device) error) error {
	return e.changeQuietly(func(t *tx) error {
		d, err := t.deviceByID(anyAccount, e.args[0])
		if err != nil {
			return err
		}
		l, err := t.license(anyAccount, d.LicenseID)
		if err != nil {
			return err
		}
		return f(t, l, d)
	})
}

func deviceRelease(e *env) error {
	return e.changeDevice(func(t *tx, l *license, d *device) error {
		if d.State == deviceReleased {
			return nil
		}
		return release(t, l, d, "operator", eventDeviceReleased, actorCommand)
	})
}

func deviceBlock(e *env) error {
	return e.changeDevice(func(t *tx, l *license, d *device) error { return block(t, l, d, actorCommand) })
}

// An exportedDevice is a device with the licence it belongs to.
type exportedDevice struct {
	LicenseID string `json:"license_id"`
	deviceView
}

func deviceExport(e *env) error {
	header := []string{"license_id", "id", "name", "state", "platform", "app_version", "fingerprint", "activated_at", "last_seen_at", "released_at", "released_by", "clone_suspected_at"}
	return exportRows(e, header, func(st *store, before string) (page []exportedDevice, err error) {
		rows, err := st.allDevices(anyAccount, before, exportPageSize)
		for _, d := range rows {
			page = append(page, exportedDevice{d.LicenseID, viewDevice(d)})
		}
		return page, err
	}, func(d exportedDevice) string { return d.ID }, func(d exportedDevice) []string {
		return []string{d.LicenseID, d.ID, csvTextCell(valueOr(d.Name, "")), d.State, csvTextCell(valueOr(d.Platform, "")), csvTextCell(valueOr(d.AppVersion, "")), d.Fingerprint,
			stampCell(d.ActivatedAt), stampCell(d.LastSeenAt), stampCell(d.ReleasedAt), valueOr(d.ReleasedBy, ""), stampCell(d.CloneAt)}
	})
}
