package main

import (
	"slices"
	"strconv"
	"time"
)

// The problem codes of licences.
var (
	licenseProblems problemTable

	codeLicenseRevoked    = licenseProblems.add(403, "license_revoked", "Licence revoked", verdictDetails["revoked"])
	codeLicenseSuspended  = licenseProblems.add(403, "license_suspended", "Licence suspended", verdictDetails["suspended"])
	codeLicenseNotStarted = licenseProblems.add(403, "license_not_started", "Licence not started", verdictDetails["not_started"])
	codeLicenseExpired    = licenseProblems.add(403, "license_expired", "Licence expired", verdictDetails["expired"])
	codeLicenseInGrace    = licenseProblems.add(403, "license_in_grace", "Licence in grace",
		"The licence has ended; devices that it already knows may go on, new ones may not begin.")
	codeKeyRetired        = licenseProblems.add(403, "key_retired", "Licence key retired", verdictDetails["key_retired"])
	codeProductMismatch   = licenseProblems.add(403, "product_mismatch", "Another product", verdictDetails["product_mismatch"])
	codeLicenseNotFound   = licenseProblems.add(404, "license_not_found", "Licence not found", verdictDetails["not_found"])
	codeIllegalTransition = licenseProblems.add(409, "illegal_transition", "Illegal transition",
		"The licence is in a state to which this does not apply.")
	codeKeyMalformed = licenseProblems.add(422, "key_malformed", "Malformed licence key",
		"That is not a licence key: a symbol is missing, wrong or swapped. Please compare it with the one you were given.")

	errLicense = &refusal{code: codeLicenseNotFound}
)

// The events of licences.
var (
	licenseEvents eventTable

	eventLicenseCreated          = licenseEvents.add("license.created")
	eventLicenseFirstActivated   = licenseEvents.add("license.first_activated")
	eventLicenseUpdated          = licenseEvents.add("license.updated")
	eventLicenseRenewed          = licenseEvents.add("license.renewed")
	eventLicenseSuspended        = licenseEvents.add("license.suspended")
	eventLicenseReinstated       = licenseEvents.add("license.reinstated")
	eventLicenseRevoked          = licenseEvents.add("license.revoked")
	eventLicenseKeyRotated       = licenseEvents.add("license.key_rotated")
	eventLicenseGraceStarted     = licenseEvents.add("license.grace_started")
	eventLicenseExpired          = licenseEvents.add("license.expired")
	eventLicenseSeatLimitReached = licenseEvents.add("license.seat_limit_reached")
)

// The statuses of a licence.
const (
	statusActive     = "active"
	statusSuspended  = "suspended"
	statusRevoked    = "revoked"
	statusNotStarted = "not_started"
	statusExpired    = "expired"
	statusGrace      = "grace"
)

// statuses are all of them.
var statuses = []string{statusActive, statusGrace, statusExpired, statusNotStarted, statusSuspended, statusRevoked}

// status computes what a licence is at a moment, in the contract's precedence:
// revoked, suspended, not_started, expired, grace, active. The licence of a
// closed account is suspended.
func (l *license) status(now time.Time) string {
	switch {
	case l.State == statusRevoked:
		return statusRevoked
	case l.State == statusSuspended || l.AccountClosed:
		return statusSuspended
	case !l.StartsAt.IsZero() && l.StartsAt.After(now):
		return statusNotStarted
	case l.ExpiresAt.IsZero() || l.ExpiresAt.After(now):
		return statusActive
	case l.graceUntil().After(now):
		return statusGrace
	}
	return statusExpired
}

// graceUntil is when the licence really ends: expires_at and the days of grace.
// It is absent when the licence never ends.
func (l *license) graceUntil() stamp {
	return l.ExpiresAt.after(days(l.GraceDays))
}

// A question is what a device or a portal asks about a licence.
type question struct {
	product      string   // "": any
	entitlements []string // all must be held
	hasDevice    bool     // a fingerprint or a device token came along
	mismatch     bool     // they name different devices
}

// judge answers a question about a licence and the device it names (nil: none
// that was ever activated), with the first code of the contract's list that
// holds, and whether the licence may be used. l is nil when no licence was found.
func judge(l *license, d *device, q question, now time.Time) (code string, valid bool) {
	if l == nil {
		return "not_found", false
	}
	if !l.KeyRetiresAt.IsZero() && !l.KeyRetiresAt.After(now) {
		return "key_retired", false
	}
	status := l.status(now)
	switch {
	case status == statusRevoked, status == statusSuspended:
		return status, false
	case q.product != "" && q.product != l.Product:
		return "product_mismatch", false
	case status == statusNotStarted, status == statusExpired:
		return status, false
	case l.MaxDevices != nil && !q.hasDevice:
		return "fingerprint_required", false
	case q.mismatch:
		return "fingerprint_mismatch", false
	}
	if q.hasDevice {
		switch {
		case d == nil:
			return "device_not_activated", false
		case d.State == deviceBlocked:
			return "device_blocked", false
		case d.State == deviceReleased, d.lapsed(now):
			return "device_released", false
		}
	}
	for _, code := range q.entitlements {
		if !slices.Contains(l.Entitlements, code) {
			return "entitlement_missing", false
		}
	}
	if status == statusGrace {
		return statusGrace, true
	}
	return "valid", true
}

// verdictDetails say for people what judge's codes mean.
var verdictDetails = map[string]string{
	"valid":                "The licence is valid.",
	"grace":                "The licence has ended; this device may go on until grace_until.",
	"key_malformed":        codeKeyMalformed.detail,
	"not_found":            "There is no licence with this key.",
	"key_retired":          "This key was replaced by a newer one.",
	"revoked":              "The licence was revoked.",
	"suspended":            "The licence is suspended.",
	"product_mismatch":     "The licence is for another product.",
	"not_started":          "The licence has not begun yet.",
	"expired":              "The licence has ended.",
	"fingerprint_required": "The licence limits devices; send the device's fingerprint or token.",
	"fingerprint_mismatch": "The fingerprint is not the one of the token's device.",
	"device_blocked":       "This device is blocked.",
	"device_released":      "This device has given its seat back; activate it again.",
	"device_not_activated": "This device has not been activated.",
	"entitlement_missing":  "The licence does not include all that was asked for.",
}

// activationRefusals turn judge's codes into those of activate.
var activationRefusals = map[string]*problemCode{
	"not_found":        codeLicenseNotFound,
	"key_retired":      codeKeyRetired,
	"revoked":          codeLicenseRevoked,
	"suspended":        codeLicenseSuspended,
	"product_mismatch": codeProductMismatch,
	"not_started":      codeLicenseNotStarted,
	"expired":          codeLicenseExpired,
	"device_blocked":   codeDeviceBlocked,
}

// mayActivate tells whether a device may take a seat on a licence: nil, or the
// refusal of the contract's section 4. Whether a seat is free is not its question.
// d is nil for a device never seen.
func mayActivate(l *license, d *device, product string, now time.Time) error {
	code, _ := judge(l, d, question{product: product, hasDevice: true}, now)
	if refused, ok := activationRefusals[code]; ok {
		return &refusal{code: refused}
	}
	if d == nil && l.status(now) == statusGrace {
		return &refusal{code: codeLicenseInGrace}
	}
	return nil
}

// nextState returns the state that an operator's action leads to, or
// illegal_transition.
func nextState(l *license, action string) (string, error) {
	switch {
	case action == "suspend" && l.State == statusActive:
		return statusSuspended, nil
	case action == "reinstate" && l.State == statusSuspended:
		return statusActive, nil
	case action == "revoke" && l.State != statusRevoked:
		return statusRevoked, nil
	}
	return "", errTransition(l, action)
}

// errTransition says that an action does not apply to a licence as it is.
func errTransition(l *license, action string) error {
	state := l.State
	if action == "renew" && state != statusRevoked {
		state += " and has no end yet"
	}
	return &refusal{code: codeIllegalTransition, detail: "The licence is " + state + "; " + action + " does not apply to it."}
}

// mayMove tells whether a licence's seats may be moved once more, given the moments
// of the owner's releases of the last 30 days, oldest first, and how many more are
// about to count; and if not, when: the zero stamp for never.
func mayMove(l *license, releases []stamp, more int) (ok bool, next stamp) {
	if l.MaxTransfers == nil || len(releases)+more <= *l.MaxTransfers {
		return true, stamp{}
	}
	if over := len(releases) + more - *l.MaxTransfers; over <= len(releases) {
		return false, releases[over-1].after(transferWindow)
	}
	return false, stamp{}
}

// seats are how many devices a licence may have, has, and has left.
type seats struct {
	Used int  `json:"used"`
	Max  *int `json:"max"`  // null: no limit
	Free *int `json:"free"` // null: no limit
}

func seatsOf(l *license) seats {
	s := seats{Used: l.SeatsUsed, Max: l.MaxDevices}
	if l.MaxDevices != nil {
		free := max(0, *l.MaxDevices-l.SeatsUsed)
		s.Free = &free
	}
	return s
}

// A licenseView is what a device or a portal sees of a licence that it has the key of.
type licenseView struct {
	ID           string   `json:"id"`
	Product      string   `json:"product"`
	Plan         *string  `json:"plan"`
	Kind         string   `json:"kind"`
	Status       string   `json:"status"`
	Trial        bool     `json:"trial"`
	ExpiresAt    stamp    `json:"expires_at"`
	GraceUntil   stamp    `json:"grace_until"`
	Entitlements codeList `json:"entitlements"`
	Seats        seats    `json:"seats"`
}

// appendJSON writes the view as encoding/json would.
func (v *licenseView) appendJSON(b []byte) []byte {
	b = append(append(append(b, `{"id":"`...), v.ID...), '"')
	b = appendMember(b, "product", v.Product)
	b = appendOptional(b, "plan", v.Plan)
	b = appendUnescaped(b, "kind", v.Kind)
	b = appendUnescaped(b, "status", v.Status)
	b = strconv.AppendBool(append(b, `,"trial":`...), v.Trial)
	b = v.ExpiresAt.appendJSON(append(b, `,"expires_at":`...))
	b = v.GraceUntil.appendJSON(append(b, `,"grace_until":`...))
	b = append(b, `,"entitlements":[`...)
	for i, code := range v.Entitlements {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, code)
	}
	b = strconv.AppendInt(append(b, `],"seats":{"used":`...), int64(v.Seats.Used), 10)
	b = appendOptionalInt(append(b, `,"max":`...), v.Seats.Max)
	b = appendOptionalInt(append(b, `,"free":`...), v.Seats.Free)
	return append(b, "}}"...)
}

func viewLicense(l *license, now time.Time) licenseView {
	return licenseView{l.ID, l.Product, l.Plan, l.Kind, l.status(now), l.Trial, l.ExpiresAt, l.graceUntil(), l.Entitlements, seatsOf(l)}
}

// A licenseDetail is what the licence's account sees of it.
type licenseDetail struct {
	*license
	Status     string `json:"status"`
	GraceUntil stamp  `json:"grace_until"`
	Seats      seats  `json:"seats"`
}

func detailLicense(l *license, now time.Time) licenseDetail {
	return licenseDetail{l, l.status(now), l.graceUntil(), seatsOf(l)}
}

// changeState carries out an operator's action on a licence of an owner: suspend,
// reinstate or revoke. Errors: errNotFound, illegal_transition.
func changeState(t *tx, o owner, licenseID, action, reason, actor string) (*license, error) {
	l, err := t.license(o, licenseID)
	if err != nil {
		return nil, err
	}
	state, err := nextState(l, action)
	if err != nil {
		return nil, err
	}
	happened := map[string]eventType{"suspend": eventLicenseSuspended, "reinstate": eventLicenseReinstated, "revoke": eventLicenseRevoked}[action]
	if err := t.setLicenseState(l, state, reason, happened, actor); err != nil {
		return nil, err
	}
	return t.license(o, licenseID)
}
