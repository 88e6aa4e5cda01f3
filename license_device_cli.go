package main

import (
	"cmp"
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
	optPublic = option{name: "public", value: "FILE",
		help: "PEM file with the public keys, as 'widgetd key public' prints them"}
	optFingerprint = option{name: "fingerprint", value: "TEXT",
		help: "the device's fingerprint, which the token must match"}
	optAudience = option{name: "audience", value: "URL",
		help: "the service's base address, which the token must match"}
)

// The operator's commands on devices and their leases.
var deviceCommands = []command{
	{"device list", "LICENSE", "list a licence's devices, newest first", []option{optLimit}, 1, deviceList},
	{"device release", "ID", "release a device's seat, or unblock a blocked device", nil, 1, deviceRelease},
	{"device block", "ID", "block a device until it is released", nil, 1, deviceBlock},
	{"device export", "", "print all devices, one JSON object a line or CSV", []option{optCSV}, 0, deviceExport},
	{"lease inspect", "TOKEN", "explain a device token and check it, without the database",
		[]option{optPublic, optFingerprint, optAudience}, 1, leaseInspect},
}

// claimMeanings explain the claims of a device token, in the order they are shown.
var claimMeanings = []struct{ claim, meaning string }{
	{"iss", "address of the service that signed the token"},
	{"aud", "address of the service that it is for: the same"},
	{"sub", "account that owns the licence"},
	{"client_id", "device that presents the token"},
	{"scope", "what the token may be used for"},
	{"jti", "id of the token"},
	{"lic", "licence"},
	{"dev", "device"},
	{"fph", "SHA-256 of the device's fingerprint"},
	{"prd", "product"},
	{"ent", "entitlements: what the licence includes"},
	{"seq", "number of the lease: a lower one is older"},
	{"iat", "when the token was signed"},
	{"exp", "until when the device may work offline"},
	{"lexp", "when the licence ends"},
	{"gexp", "when its grace ends"},
	{"rfa", "seconds after which to ask for a new lease"},
	{"nonce", "nonce that the device sent"},
}

// leaseInspect prints what a device token says, and checks it as an offline device does:
// with the public keys only. A token that is not valid is an error.
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
	fault, trusted := "", &c
	if err != nil {
		trusted = nil
		fault = "its signature can't be verified with these keys, or it is not a token of this service"
	} else {
		fault = leaseFault(c, e.str("fingerprint"), e.str("audience"), e.now())
	}
	var invalid error
	if fault != "" {
		invalid = errors.New("the lease is not valid: " + fault)
	}
	if e.on("json") {
		result := map[string]any{"holds": fault == "", "fault": fault, "claims": trusted}
		return cmp.Or(e.print(result, ""), invalid)
	}
	if explainLease(e.stdout, token); invalid != nil {
		return invalid
	}
	left := time.Unix(c.Expires, 0).Sub(e.now())
	until := left.Round(time.Second).String()
	if left >= 48*time.Hour {
		until = fmt.Sprintf("%.0f days", left.Hours()/24)
	}
	fmt.Fprintf(e.stdout, "\nThe lease is valid: its signature is right, and it expires in %s.\n", until)
	for _, name := range []string{"fingerprint", "audience"} {
		if e.str(name) == "" {
			fmt.Fprintf(e.stdout, "Not compared, because -%s is not given: the %s.\n", name, name)
		}
	}
	return nil
}

// explainLease prints the header and the claims of a token as far as they can be parsed,
// whether or not its signature is valid.
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
		for _, line := range claimMeanings {
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

// loadPublicKeys reads public keys in PEM, as key public prints them. The keyring that it
// returns can only verify.
func loadPublicKeys(path string) (*keyring, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	ring := &keyring{}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
		public, ok := parsed.(ed25519.PublicKey)
		if err != nil || !ok {
			return nil, fmt.Errorf("%s: it contains a block that is not an Ed25519 public key", path)
		}
		ring.keys = append(ring.keys, signingKey{public: public, kid: thumbprint(public)})
	}
	if len(ring.keys) == 0 {
		return nil, fmt.Errorf("%s: there is no public key in it: 'widgetd key public' prints them", path)
	}
	return ring, nil
}

// The titles of the columns of devices.
const deviceHeader = "DEVICE NAME STATE PLATFORM VERSION FINGERPRINT ACTIVATED SEEN RELEASED BY"

// deviceCells returns the cells of a device below deviceHeader.
func deviceCells(d *device) []any {
	return []any{d.ID, d.Name, d.State, d.Platform, d.AppVersion, d.Fingerprint.masked() + "…",
		d.ActivatedAt, d.LastSeenAt, d.ReleasedAt, d.ReleasedBy}
}

func deviceList(e *env) error {
	return printAll(e, func(q *queries) ([]*device, error) {
		rows, err := listRows(e, q, (*queries).devices, e.args[0], "")
		if err == nil {
			_, err = q.license(anyAccount, e.args[0])
		}
		return rows, err
	}, deviceHeader, deviceCells)
}

// changeDevice runs f in a transaction, with the device that the command names and its
// licence.
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
		return releaseSeat(t, l, d, "operator", eventDeviceReleased, e.actor())
	})
}

func deviceBlock(e *env) error {
	return e.changeDevice(func(t *tx, l *license, d *device) error {
		return blockDevice(t, l, d, e.actor())
	})
}

// An exportedDevice is a device with the licence it belongs to.
type exportedDevice struct {
	LicenseID string `json:"license_id"`
	*device
}

func deviceExport(e *env) error {
	header := []string{
		"license_id", "id", "name", "state", "platform", "app_version", "fingerprint",
		"activated_at", "last_seen_at", "released_at", "released_by", "clone_suspected_at",
	}
	return exportRows(e, header, func(st *store, before string) (page listPage[exportedDevice], err error) {
		devices, err := st.allDevices(anyAccount, before, exportPageSize)
		for _, d := range devices.rows {
			page.rows = append(page.rows, exportedDevice{d.LicenseID, d})
		}
		page.next = devices.next
		return page, err
	}, func(d exportedDevice) []string {
		return []string{d.LicenseID, d.ID, csvTextCell(valueOr(d.Name, "")), d.State,
			csvTextCell(valueOr(d.Platform, "")), csvTextCell(valueOr(d.AppVersion, "")), d.Fingerprint.masked(),
			stampCell(d.ActivatedAt), stampCell(d.LastSeenAt), stampCell(d.ReleasedAt),
			valueOr(d.ReleasedBy, ""), stampCell(d.CloneAt)}
	})
}
