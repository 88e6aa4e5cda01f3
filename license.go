package main

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// The scopes of licences. Only an operator gives scopeIssuing, which makes and changes them; see licenseScope.
const (
	scopeLicenses = "licenses:read" // reads licences, their plans and devices
	scopeIssuing  = "licenses:write"
)

// licenseNoun declares licences.
func licenseNoun() noun {
	return noun{
		name:     "license",
		modules:  func(s *server) []module { return []module{licenseModule(s)} },
		calls:    licenseRouteCommands,
		commands: licenseCommands,
		ids:      []idKind{{"LICENSE", "lic", "licenses", false, (*queries).licensesHinted}},
		problems: licenseProblems,
		events:   licenseEvents,
		status:   []statusLine{{label: "licences", read: licensesInStatus}},
		rows:     []rowReader{licenseTable.unreadable},
		holdings: []holding{heldLicenses},
	}
}

// A license is the right to run an application on up to MaxDevices devices.
type license struct {
	ID        string `json:"id" is:"lic"`          // The id of the licence.
	AccountID string `json:"account_id" is:"acct"` // The account that owns it.
	terms
	Plan   *string `json:"plan"`             // A label, how it was sold, or null: none.
	PlanID *string `json:"plan_id" is:"pln"` // The plan that it was made from, or null: none.

	// Your own number for the sale, which no other licence of the account has, or null: none.
	Reference *string `json:"reference"`

	// The seller's own name, address or number for the buyer, or null: none. It is never sent to devices.
	Customer *string `json:"customer"`

	State            licenseState    `json:"state"`              // What was decided; see `status`.
	Reason           *string         `json:"reason"`             // Why the state is what it is, or null: nobody said.
	StartsAt         stamp           `json:"starts_at"`          // The start, or null: at once.
	ExpiresAt        stamp           `json:"expires_at"`         // The end, or null: none.
	Metadata         json.RawMessage `json:"metadata"`           // Data of your own, at most 16 KiB.
	FirstActivatedAt stamp           `json:"first_activated_at"` // When its first device came, or null: none has.
	CreatedAt        stamp           `json:"created_at"`         // When it was issued.
	UpdatedAt        stamp           `json:"updated_at"`         // When it was changed last.

	KeyHint       string `json:"key_hint"` // The last five symbols of the current key.
	SeatsUsed     int    `json:"-"`        // active devices
	Counting      int    `json:"-"`        // fingerprints that count: see checkTransferLimit
	AccountClosed bool   `json:"-"`
	KeyRetiresAt  stamp  `json:"-"` // of the key that licenseByKey was given

	IssuerSuspended bool `json:"-"` // by a token of scopeIssuing, which may reinstate it, not by the operator

	SeatLimitNotedAt     stamp `json:"-"` // when license.seat_limit_reached was last written
	TransferLimitNotedAt stamp `json:"-"` // when license.transfer_limit_reached was last written
	TokensEndAt          stamp `json:"-"` // device tokens issued up to and in this second have ended
}

// A licenseKind is how long a seat of a licence is a device's: `node_locked`, until that gives it up; `floating`,
// until its lease lapses.
type licenseKind string

const (
	kindNodeLocked = "node_locked"
	kindFloating   = "floating"
)

// A licenseBasis is from when `duration_days` counts.
type licenseBasis string

const (
	basisIssue           = "issue"
	basisFirstActivation = "first_activation"
)

// How long a lease is by default, in hours.
const (
	defaultLeaseHours  = 336
	floatingLeaseHours = 8 // a machine that just disappears frees its seat the same day
)

// The problem codes of licences.
var (
	licenseProblems problemTable

	codeLicenseRevoked = licenseProblems.add(403, "license_revoked", "Licence revoked",
		verdictDetails["revoked"],
		"Ask the seller.")
	codeLicenseSuspended = licenseProblems.add(403, "license_suspended", "Licence suspended",
		verdictDetails["suspended"],
		"Ask the seller.")
	codeLicenseNotStarted = licenseProblems.add(403, "license_not_started", "Licence not started",
		verdictDetails["not_started"],
		"Wait for the start, or ask the seller.")
	codeLicenseExpired = licenseProblems.add(403, "license_expired", "Licence expired",
		verdictDetails["expired"],
		"Renew the licence.")
	codeLicenseInGrace = licenseProblems.add(403, "license_in_grace", "Licence in grace",
		"The licence has expired and is in its days of grace: devices activated before may go on, "+
			"but no new device can be activated.",
		"Renew the licence: only devices that it knows may go on.")
	codeKeyRetired = licenseProblems.add(403, "key_retired", "Licence key retired",
		verdictDetails["key_retired"],
		"Use the newer key.")
	codeProductMismatch = licenseProblems.add(403, "product_mismatch", "Another product",
		verdictDetails["product_mismatch"],
		"Use the key of a licence for this product.")
	codeNotIssuer = licenseProblems.add(403, "not_an_issuer", "Not an issuer",
		"The account may not issue or change licences itself. The operator of the service can allow it.",
		"Ask the operator, who allows it with `widgetd account set ACCOUNT -issuer yes`.")
	codeLicenseNotFound = licenseProblems.add(404, "license_not_found", "Licence not found",
		"There is no licence with this key or id.",
		"Correct the key or the id. What belongs to another account is not found either.")
	codeIllegalTransition = licenseProblems.add(409, "illegal_transition", "Illegal transition",
		"This action does not apply to the licence in its present state.",
		"Look at the licence's present state.")
	codeKeyMalformed = licenseProblems.add(422, "key_malformed", "Malformed licence key",
		"This is not a licence key: a symbol is missing, wrong or swapped. "+
			"Please compare it with the key you were given.",
		"Have the key typed again: its check symbol does not fit, and no imported key reads so.")

	errLicenseNotFound = &refusal{code: codeLicenseNotFound, detail: verdictDetails["not_found"]} // with this key
	errLicense         = &refusal{code: codeLicenseNotFound, detail: "There is no licence with this id."}
)

// The events of licences.
var (
	licenseEvents = eventTable{scope: scopeLicenses}

	eventLicenseCreated          = licenseEvents.add("license.created")
	eventLicenseFirstActivated   = licenseEvents.add("license.first_activated")
	eventLicenseUpdated          = licenseEvents.add("license.updated")
	eventLicenseRenewed          = licenseEvents.add("license.renewed")
	eventLicenseSuspended        = licenseEvents.add("license.suspended")
	eventLicenseReinstated       = licenseEvents.add("license.reinstated")
	eventLicenseRevoked          = licenseEvents.add("license.revoked")
	eventLicenseKeyRotated       = licenseEvents.add("license.key_rotated")
	eventLicenseGraceStarted     = licenseEvents.add("license.grace_started")
	eventLicenseExpiring         = licenseEvents.add("license.expiring")
	eventLicenseExpired          = licenseEvents.add("license.expired")
	eventLicenseSeatLimitReached = licenseEvents.add("license.seat_limit_reached")

	eventLicenseTransferLimitReached = licenseEvents.add("license.transfer_limit_reached")
	eventLicenseTransfersReset       = licenseEvents.add("license.transfers_reset")
)

// A licenseState is what was decided about a licence.
type licenseState string

var licenseStates = declareWords[licenseState](statusActive, statusSuspended, statusRevoked)

// A licenseStatus is what follows from the state of a licence and the time.
type licenseStatus string

const (
	statusActive     = "active"
	statusSuspended  = "suspended"
	statusRevoked    = "revoked"
	statusNotStarted = "not_started"
	statusExpired    = "expired"
	statusGrace      = "grace"
)

var licenseStatuses = declareWords[licenseStatus](statusActive, statusGrace, statusExpired, statusNotStarted,
	statusSuspended, statusRevoked)

// status returns the licence's status at now: the first that applies in the contract's
// order revoked, suspended, not_started, expired, grace, active. A licence of a closed
// account is suspended.
func (l *license) status(now time.Time) licenseStatus {
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

// graceUntil returns the end of the grace period: expires_at plus grace_days, or the
// zero stamp when the licence never expires. From then on the licence can't be used.
func (l *license) graceUntil() stamp {
	return l.ExpiresAt.after(days(l.GraceDays))
}

// current reports whether calls with the key of l, or with a token of one of its devices, are charged
// to its account (contract, section 2): not when the key is retired, or the licence is revoked or has
// expired. l is nil when no licence was found.
func (l *license) current(now time.Time) bool {
	if l == nil || l.keyRetired(now) {
		return false
	}
	status := l.status(now)
	return status != statusRevoked && status != statusExpired
}

// keyRetired reports whether the key by which l was found is retired.
func (l *license) keyRetired(now time.Time) bool {
	return !l.KeyRetiresAt.IsZero() && !l.KeyRetiresAt.After(now)
}

// endedBy reports whether the licence has an end and it has been reached at now. Days of grace are ignored.
func (l *license) endedBy(now time.Time) bool {
	return !l.ExpiresAt.IsZero() && !l.ExpiresAt.After(now)
}

// licenseVerdict tells whether a licence may be used at now, and returns the code for
// it: the first of the contract's list that applies. It looks at what f found for r: the rows, and whether
// fingerprint and token are those of the device.
func licenseVerdict(r *deviceRequest, f *checkResult, now time.Time) (code string, valid bool) {
	l, d := f.license, f.device
	switch {
	case r.malformed, l == nil && r.mistyped:
		return "key_malformed", false
	case l == nil:
		return "not_found", false
	case l.keyRetired(now):
		return "key_retired", false
	}
	status, hasDevice := l.status(now), r.token != nil || r.fingerprint != nil
	switch {
	case status == statusRevoked, status == statusSuspended:
		return string(status), false
	case r.product != "" && r.product != l.Product:
		return "product_mismatch", false
	case status == statusNotStarted, status == statusExpired:
		return string(status), false
	case l.MaxDevices != nil && !hasDevice && !r.licenseOnly:
		return "fingerprint_required", false
	case f.mismatch:
		return "fingerprint_mismatch", false
	case d != nil && d.State == deviceBlocked:
		return "device_blocked", false
	case d != nil && !d.holdsSeat(now):
		return "device_released", false
	case f.tokenEnded:
		return "token_ended", false
	case hasDevice && d == nil:
		return "device_not_activated", false
	}
	for _, code := range r.entitlements {
		if !slices.Contains(l.Entitlements, code) {
			return "entitlement_missing", false
		}
	}
	if status == statusGrace {
		return statusGrace, true
	}
	return "valid", true
}

// A verificationCode is why a licence may be used or not: the first that holds, in this order.
type verificationCode string

var _ = declareWords[verificationCode]("key_malformed", "not_found", "key_retired", "revoked", "suspended",
	"product_mismatch", "not_started", "expired", "fingerprint_required", "fingerprint_mismatch", "device_blocked",
	"device_released", "token_ended", "device_not_activated", "entitlement_missing", "grace", "valid")

// verdictDetails are the human-readable texts of verdicts, by code.
var verdictDetails = map[string]string{
	"valid":                "The licence is valid.",
	"grace":                "The licence has expired; this device may go on until grace_until.",
	"key_malformed":        codeKeyMalformed.detail,
	"not_found":            "There is no licence with this key.",
	"key_retired":          "This key was replaced by a newer one.",
	"revoked":              "The licence was revoked.",
	"suspended":            "The licence is suspended.",
	"product_mismatch":     "The licence is for another product.",
	"not_started":          "The licence has not started yet.",
	"expired":              "The licence has expired.",
	"fingerprint_required": "The licence limits the number of devices; send the device's fingerprint or token.",
	"fingerprint_mismatch": "The fingerprint is not the one that the token's device has now.",
	"device_blocked":       "This device is blocked.",
	"device_released":      "This device no longer holds a seat; activate it again.",
	"token_ended":          "This token has ended; activate the device again with its licence key.",
	"device_not_activated": "This device has not been activated.",
	"entitlement_missing":  "The licence does not include every entitlement that was asked for.",
}

// verdictDetail returns the human-readable text of a verdict about d, which may be nil.
func verdictDetail(code string, d *device) string {
	if code == statusGrace && d == nil {
		return "The licence has expired; its devices may go on until grace_until."
	}
	if code == "device_released" && d.wasReplaced() {
		return "Another device has replaced this one and taken its seat; activate it again if a seat is free."
	}
	return verdictDetails[code]
}

// activationRefusals are the problem codes of activate, by code of a verdict. A code
// that is not listed does not prevent an activation.
var activationRefusals = map[string]*problemCode{
	"not_found":        codeLicenseNotFound,
	"key_retired":      codeKeyRetired,
	"revoked":          codeLicenseRevoked,
	"suspended":        codeLicenseSuspended,
	"product_mismatch": codeProductMismatch,
	"not_started":      codeLicenseNotStarted,
	"expired":          codeLicenseExpired,
	"device_blocked":   codeDeviceBlocked,
	"token_ended":      codeTokenEnded,

	"fingerprint_mismatch": codeFingerprintMismatch,
}

// checkActivation returns nil when a device may be activated on a licence, else the refusal of the
// contract's section 4. It looks neither at seats nor at transfers.
func checkActivation(r *deviceRequest, f *checkResult, now time.Time) error {
	code, _ := licenseVerdict(r, f, now)
	refused := activationRefusals[code]
	switch {
	case refused != nil:
	case f.tokenEnded: // the device was released; without an ended token it may come back
		refused = codeDeviceReleased
	case f.newFingerprint && f.license.status(now) == statusGrace:
		refused = codeLicenseInGrace
	case r.offline && f.license.OfflineDays == 0:
		refused = codeOfflineNotAllowed
	case f.newFingerprint && f.device.leasedOffline(now):
		return errHeldOffline(f.device)
	default:
		return nil
	}
	if refused == codeLicenseNotFound {
		return errLicenseNotFound
	}
	return &refusal{code: refused}
}

// nextState returns the state after an action (suspend, reinstate or revoke), or illegal_transition. The operator may
// also suspend what an issuer has suspended. What the operator has suspended, no issuer can reinstate: that is refused
// for the missing scope.
func nextState(l *license, action string, operator bool) (licenseState, error) {
	switch {
	case action == "suspend" && (l.State == statusActive ||
		operator && l.State == statusSuspended && l.IssuerSuspended):
		return statusSuspended, nil
	case action == "reinstate" && l.State == statusSuspended && !operator && !l.IssuerSuspended:
		return "", errScope(scopeAdmin, "The operator has suspended this licence, so only the operator reinstates it.")
	case action == "reinstate" && l.State == statusSuspended:
		return statusActive, nil
	case action == "revoke" && l.State != statusRevoked:
		return statusRevoked, nil
	}
	return "", errTransition(l, action)
}

// errTransition is the refusal illegal_transition, for an action that does not apply to
// a licence in its present state.
func errTransition(l *license, action string) error {
	state := string(l.State)
	if action == "renew" && state != statusRevoked {
		state += " and has no end yet"
	}
	return &refusal{code: codeIllegalTransition,
		detail: "The licence is " + state + "; " + action + " does not apply to it."}
}

// The transfers are how many fingerprints count beside those for which there are seats, and how many may.
type transfers struct {
	Used int `json:"used"` // How many count.
	Max  int `json:"max"`  // How many may.
}

// transfersOf returns the transfers of a licence (contract, section 4, Transfers), or nil if it does not limit them.
func transfersOf(l *license) *transfers {
	if l.MaxDevices == nil || l.MaxTransfers == nil {
		return nil
	}
	return &transfers{Used: max(0, l.Counting-*l.MaxDevices), Max: *l.MaxTransfers}
}

// The seats are how many devices hold a seat, and how many may.
type seats struct {
	Used int  `json:"used"`          // Devices that hold a seat.
	Max  *int `json:"max" least:"1"` // How many may, or null: no limit.
	Free *int `json:"free"`          // How many more may, or null: no limit.
}

func seatsOf(l *license) seats {
	s := seats{Used: l.SeatsUsed, Max: l.MaxDevices}
	if l.MaxDevices != nil {
		s.Free = new(max(0, *l.MaxDevices-l.SeatsUsed))
	}
	return s
}

// A licenseSummary is a licence as a device sees it, which has its key or its token.
type licenseSummary struct {
	ID           string        `json:"id" is:"lic"`  // The id of the licence.
	Product      string        `json:"product"`      // The product that it is for.
	Plan         *string       `json:"plan"`         // A label, how it was sold, or null: none.
	Kind         licenseKind   `json:"kind"`         // How long a seat is a device's.
	Status       licenseStatus `json:"status"`       // Whether it can be used now.
	Trial        bool          `json:"trial"`        // Whether it is a trial.
	ExpiresAt    stamp         `json:"expires_at"`   // The end, or null: none.
	GraceUntil   stamp         `json:"grace_until"`  // Until when devices that it knows may go on, or null: no end.
	Entitlements []string      `json:"entitlements"` // Codes of what it includes.
	Seats        seats         `json:"seats"`        // How many devices it has.
}

// appendJSON writes the summary as encoding/json would.
func (v *licenseSummary) appendJSON(b []byte) []byte {
	b = append(append(append(b, `{"id":"`...), v.ID...), '"')
	b = appendMember(b, "product", v.Product)
	b = appendOptional(b, "plan", v.Plan)
	b = appendUnescaped(b, "kind", string(v.Kind))
	b = appendUnescaped(b, "status", string(v.Status))
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

func newLicenseSummary(l *license, now time.Time) licenseSummary {
	return licenseSummary{ID: l.ID, Product: l.Product, Plan: l.Plan, Kind: l.Kind, Status: l.status(now),
		Trial: l.Trial, ExpiresAt: l.ExpiresAt, GraceUntil: l.graceUntil(), Entitlements: l.Entitlements,
		Seats: seatsOf(l)}
}

// A licenseDetail is a licence as the account that owns it sees it.
type licenseDetail struct {
	*license
	Status     licenseStatus `json:"status"`      // What follows from the state and the time.
	GraceUntil stamp         `json:"grace_until"` // Until when devices that it knows may go on, or null: no end.
	Seats      seats         `json:"seats"`       // How many devices hold a seat, and how many may.

	// How many fingerprints count beside the seats, or null: no limit.
	Transfers *transfers `json:"transfers"`
	dryAnswer
}

func newLicenseDetail(l *license, now time.Time) licenseDetail {
	return licenseDetail{l, l.status(now), l.graceUntil(), seatsOf(l), transfersOf(l), dryAnswer{}}
}

// A licenseWithKey is a licence with its new key.
type licenseWithKey struct {
	licenseDetail
	Key string `json:"key"` // The key, in this answer and in no other.
}

// stateEvents are the events of an operator's actions.
var stateEvents = map[string]eventType{
	"suspend":   eventLicenseSuspended,
	"reinstate": eventLicenseReinstated,
	"revoke":    eventLicenseRevoked,
}

// changeState applies an action (suspend, reinstate or revoke) of the operator or of an issuer to a licence of an
// owner, and returns the licence afterwards. Errors: errLicense, those of nextState.
func changeState(t *tx, o owner, licenseID, action, reason string, operator bool, actor string) (*license, error) {
	l, err := t.license(o, licenseID)
	if err != nil {
		return nil, err
	}
	state, err := nextState(l, action, operator)
	if err != nil {
		return nil, err
	}
	l.IssuerSuspended = state == statusSuspended && !operator
	t.setLicenseState(l, state, reason, stateEvents[action], actor)
	return t.license(o, licenseID)
}

// A licenseKey is a licence key in the form that is hashed and looked up: one of 25 letters and
// digits, as this program makes them, in upper case without dashes, with O as 0 and I and L as
// 1; any other imported key as it was sent.
type licenseKey string

const (
	keySymbols  = 25 // of a key that this program makes; the last one is the check symbol
	keyGroup    = 5  // symbols between two dashes of a printed key
	maxKeyBytes = 255
	minImported = 16 // characters of an imported key
)

var errKeyMalformed = &refusal{code: codeKeyMalformed}

// gf32 holds the powers of a generator α = 2 of GF(32), the field with the polynomial x⁵+x²+1:
// gf32[i] = αⁱ. All 31 differ, so that every position of a key has a weight of its own.
var gf32 = func() (powers [31]byte) {
	for i, x := 0, byte(1); i < len(powers); i++ {
		powers[i] = x
		if x <<= 1; x&32 != 0 {
			x ^= 0b100101
		}
	}
	return powers
}()

// gfLog is the inverse of gf32: α^gfLog[x] = x, for x from 1 to 31.
var gfLog = func() (logs [32]byte) {
	for i, x := range gf32 {
		logs[x] = byte(i)
	}
	return logs
}()

// gfMul multiplies in GF(32).
func gfMul(a, b byte) byte {
	if a == 0 || b == 0 {
		return 0
	}
	return gf32[(int(gfLog[a])+int(gfLog[b]))%31]
}

// keySum returns the sum in GF(32) of the symbols, each multiplied by the weight of its
// position. A key is valid if the sum of all 25 is 0. One wrong symbol changes the sum by a
// non-zero multiple of its weight, and two swapped symbols change it by a non-zero multiple of
// the difference of their weights, so both are always detected (contract, section 4).
func keySum(symbols []byte) (sum byte) {
	for i, s := range symbols {
		sum ^= gfMul(gf32[i], s)
	}
	return sum
}

// newLicenseKey makes a key of 120 random bits and a check symbol, in the printed form:
// "XXXXX-XXXXX-XXXXX-XXXXX-XXXXX".
func newLicenseKey() string {
	symbols := make([]byte, keySymbols)
	rand.Read(symbols)
	for i := range symbols {
		symbols[i] &= 31
	}
	last := keySymbols - 1
	inverse := gf32[31-last] // α^-24 = α^7
	symbols[last] = gfMul(keySum(symbols[:last]), inverse)
	var b strings.Builder
	for i, s := range symbols {
		if i > 0 && i%keyGroup == 0 {
			b.WriteByte('-')
		}
		b.WriteByte(upperCrockford[s])
	}
	return b.String()
}

// parseLicenseKey returns the form of a key that is looked up (contract, section 4). A key of 25
// ASCII letters and digits may be typed in upper or lower case, with dashes and white space
// anywhere, and with O for 0 and I or L for 1. Its check symbol need not be right, because other
// vendors' keys have that shape too: see mistyped. Any other text of 16 to 255 visible ASCII
// characters is returned as it is, without what nobody sees around it. Errors: errKeyMalformed.
func parseLicenseKey(s string) (licenseKey, error) {
	if s = trimUnseen(s); len(s) > maxKeyBytes {
		return "", errKeyMalformed
	}
	isSeparator := func(r rune) bool { return unicode.IsSpace(r) || unicode.Is(unicode.Pd, r) }
	plain := strings.Join(strings.FieldsFunc(s, isSeparator), "")
	if hasOwnShape(plain) {
		return licenseKey(lookalikes.Replace(strings.ToUpper(plain))), nil
	}
	if len(s) < minImported || strings.IndexFunc(s, isNotVisible) >= 0 {
		return "", errKeyMalformed
	}
	return licenseKey(s), nil
}

// hasOwnShape reports whether a text without dashes and spaces is 25 ASCII letters and digits,
// the shape of every key that this program makes.
func hasOwnShape(plain string) bool {
	return len(plain) == keySymbols && strings.IndexFunc(plain, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9')
	}) < 0
}

// mistyped reports whether a key has the shape of those that this program makes, but a wrong check
// symbol: either it is another vendor's key that was imported, or a symbol of it is wrong.
func (k licenseKey) mistyped() bool {
	if !hasOwnShape(string(k)) {
		return false
	}
	symbols := make([]byte, 0, keySymbols)
	for _, r := range k {
		i := strings.IndexRune(upperCrockford, r)
		if i < 0 { // U, which Crockford's alphabet does not have
			return true
		}
		symbols = append(symbols, byte(i))
	}
	return keySum(symbols) != 0
}

// hash returns the SHA-256 of a key, which the database stores in place of the key.
func (k licenseKey) hash() [32]byte { return sha256.Sum256([]byte(k)) }

// hint returns the last five symbols of a key, by which people recognise it.
func (k licenseKey) hint() string { return string(k[len(k)-keyGroup:]) }

var errKeyTaken = errors.New("a licence with this key exists already")

// licenseTable describes the table licenses.
var licenseTable = newTable("licenses", "l", func(l *license) []field {
	return append(fieldsOf(l.members()), []field{{"id", &l.ID}, {"account_id", &l.AccountID},
		{"state", (*string)(&l.State)}, {"reason", &l.Reason}, {"issuer_suspended", &l.IssuerSuspended},
		{"first_activated_at", &l.FirstActivatedAt}, {"created_at", &l.CreatedAt}, {"updated_at", &l.UpdatedAt},
		{`coalesce((SELECT k.hint FROM license_keys k WHERE k.license_id = l.id AND k.retires_at IS NULL), '')`,
			&l.KeyHint},
		{"coalesce(s.used, 0)", &l.SeatsUsed}, {"coalesce(s.counting, 0)", &l.Counting},
		{"a.closed_at IS NOT NULL", &l.AccountClosed}, {"seat_limit_noted_at", &l.SeatLimitNotedAt},
		{"transfer_limit_noted_at", &l.TransferLimitNotedAt}, {"tokens_end_at", &l.TokensEndAt}}...)
}, "JOIN accounts a ON a.id = l.account_id LEFT JOIN license_seats s ON s.license_id = l.id")

// licenseByKey returns the licence that a key belongs to, with KeyRetiresAt set when the
// key is retired or will be, or errNotFound. hash is the SHA-256 of the parsed key.
func (q *queries) licenseByKey(hash [32]byte) (*license, error) {
	l := &license{}
	err := q.one(`SELECT `+licenseTable.columns+`, k.retires_at
		FROM license_keys k JOIN `+licenseTable.from+`
		WHERE k.hash = ? AND l.id = k.license_id`, []any{hash[:]}, append(licenseTable.dest(l), &l.KeyRetiresAt)...)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// license returns a licence of an owner, or errLicense.
func (q *queries) license(o owner, id string) (*license, error) {
	return licenseTable.byID(q, o, id, errLicense)
}

// licenseOwner returns the account that owns a licence, or errNotFound.
func (q *queries) licenseOwner(id string) (accountID string, err error) {
	return oneValue[string](q, `SELECT account_id FROM licenses WHERE id = ?`, id)
}

// licenseByReference returns the id of the licence of an account with that reference, or errNotFound.
func (q *queries) licenseByReference(accountID, reference string) (id string, err error) {
	return oneValue[string](q, `SELECT id FROM licenses WHERE account_id = ? AND reference = ?`, accountID, reference)
}

// A licenseFilter chooses licences of an owner. An empty field other than owner and now
// matches every licence.
type licenseFilter struct {
	owner         owner
	product       string
	status        licenseStatus // as license.status computes it at the time now
	customer      string
	expiresBefore stamp
	search        string // a key, or part of product, plan, customer, id or key hint in upper or lower case
	now           stamp
}

// statusOfLicense is SQL for license.status; each ? is the time now. The view v_licenses has it, too.
const statusOfLicense = `CASE
         WHEN l.state = 'revoked' THEN 'revoked'
         WHEN l.state = 'suspended' OR a.closed_at IS NOT NULL THEN 'suspended'
         WHEN l.starts_at > ? THEN 'not_started'
         WHEN l.expires_at IS NULL OR l.expires_at > ? THEN 'active'
         WHEN l.grace_ends_at > ? THEN 'grace'
         ELSE 'expired'
       END`

// licenses returns a page of licences, newest first, starting after the id before ("" for the newest).
func (q *queries) licenses(f licenseFilter, before string, limit int) (p listPage[*license], err error) {
	list := licenseTable.whereOwner(f.owner)
	filter := func(given bool, condition string, arg any) {
		if given {
			list.filter(` AND `+condition, slices.Repeat([]any{arg}, strings.Count(condition, "?"))...)
		}
	}
	if f.status != "" {
		list.filter(` AND `+statusOfLicense+` = ?`, f.now, f.now, f.now, f.status)
	}
	filter(f.product != "", `l.product = ?`, f.product)
	filter(f.customer != "", `l.customer = ?`, f.customer)
	filter(!f.expiresBefore.IsZero(), `l.expires_at < ?`, f.expiresBefore)
	if f.search != "" {
		keyed, err := q.licenseOfText(f.search)
		switch {
		case err != nil:
			return p, err
		case keyed != nil && f.owner.owns(keyed.AccountID):
			filter(true, `l.id = ?`, keyed.ID)
		default:
			condition := `instr(lower(l.product || ' ' || coalesce(l.plan, '') || ' ' || coalesce(l.customer, '')
				|| ' ' || l.id), lower(?)) > 0`
			if len(f.search) <= keyGroup { // as long as a hint
				condition = `(` + condition + ` OR EXISTS (SELECT 1 FROM license_keys k
					WHERE k.license_id = l.id AND instr(lower(k.hint), lower(?)) > 0))`
			}
			filter(true, condition, f.search)
		}
	}
	return licenseTable.page(q, list, before, limit)
}

// licenseOfText returns the licence that a text is a whole key of, or nil.
func (q *queries) licenseOfText(text string) (*license, error) {
	key, err := parseLicenseKey(text)
	if err != nil {
		return nil, nil
	}
	return orNil(q.licenseByKey(key.hash()))
}

// licensesHinted returns the ids of the licences of which a text is the hint of the key, in any case, and if there are
// any, those that end so.
func (q *queries) licensesHinted(text string) ([]string, error) {
	hint := strings.TrimLeft(text, "….")
	if len(hint) != keyGroup {
		return nil, nil
	}
	ids, err := q.texts(`SELECT license_id FROM license_keys WHERE retires_at IS NULL AND hint IN (?1, ?2) LIMIT ?3`,
		hint, lookalikes.Replace(strings.ToUpper(hint)), mostEndings+1)
	if end := idEnd("lic", text); err == nil && len(ids) > 0 && end != "" {
		var ending []string
		ending, err = q.idsEndingIn("licenses", end, "", mostEndings+1)
		ids = append(ids, ending...)
	}
	return ids, err
}

// addLicense stores a new licence and the hash of its key, and returns its id. Empty
// fields of l get their defaults. The account must exist. Errors: errKeyTaken.
func (t *tx) addLicense(l *license, key licenseKey, actor string) (string, error) {
	added := *l
	added.ID, added.CreatedAt, added.UpdatedAt = t.newID("lic"), t.now, t.now
	added.State = cmp.Or(l.State, statusActive)
	added.Kind, added.ExpiryBasis = cmp.Or(l.Kind, kindNodeLocked), cmp.Or(l.ExpiryBasis, basisIssue)
	added.LeaseHours = cmp.Or(l.LeaseHours, l.defaultLease())
	if len(l.Metadata) == 0 {
		added.Metadata = json.RawMessage("{}")
	}
	licenseTable.insert(t, &added)
	if err := t.addKey(added.ID, key); err != nil {
		return "", err
	}
	t.addEvent(licenseEvent(&added, eventLicenseCreated, actor))
	return added.ID, nil
}

// setLicenseState stores the state that an operator's action leads to, and writes the
// event of type typ.
func (t *tx) setLicenseState(l *license, state licenseState, reason string, typ eventType, actor string) {
	t.exec(`UPDATE licenses SET state = ?, reason = nullif(?, ''), issuer_suspended = ?, updated_at = ?
		WHERE id = ?`, string(state), reason, l.IssuerSuspended, t.now, l.ID)
	t.addEvent(licenseEvent(l, typ, actor, "reason", reason))
}

// startLicense records the first activation of a licence, and computes the end of one
// whose duration counts from it. Later activations change nothing.
func (t *tx) startLicense(l *license) {
	if !l.FirstActivatedAt.IsZero() {
		return
	}
	l.FirstActivatedAt, l.UpdatedAt = t.now, t.now
	if l.ExpiryBasis == basisFirstActivation && l.DurationDays != nil && l.ExpiresAt.IsZero() {
		l.ExpiresAt = t.now.after(days(*l.DurationDays))
	}
	t.exec(`UPDATE licenses SET first_activated_at = ?, expires_at = ?, updated_at = ? WHERE id = ?`,
		l.FirstActivatedAt, l.ExpiresAt, t.now, l.ID)
	t.addEvent(licenseEvent(l, eventLicenseFirstActivated, actorDevice))
}

// noteLimit writes license.seat_limit_reached or license.transfer_limit_reached, unless that was done
// within the last hour.
func (t *tx) noteLimit(l *license, kind eventType) {
	column, last := `seat_limit_noted_at`, l.SeatLimitNotedAt
	if kind == eventLicenseTransferLimitReached {
		column, last = `transfer_limit_noted_at`, l.TransferLimitNotedAt
	}
	if closerThan(time.Hour, last.Time, t.now.Time) {
		return
	}
	t.exec(`UPDATE licenses SET `+column+` = ? WHERE id = ?`, t.now, l.ID)
	t.addEvent(licenseEvent(l, kind, actorDevice))
}

// endTokens ends every device token of a licence that was issued until now. Tokens issued in the
// second of an earlier call are dated a second later (see leaseClaims), so a call in the same second
// ends those too by setting TokensEndAt one second later; not by more, since devices refuse tokens that are dated
// ahead of their clocks. Errors: illegal_transition, to be tried again.
func (t *tx) endTokens(l *license) error {
	l.TokensEndAt = stamp{later(l.TokensEndAt.after(time.Second).Time, t.now.Time)}
	if ahead := l.TokensEndAt.Sub(t.now.Time); ahead > time.Second {
		return &refusal{code: codeIllegalTransition, retryAfter: ahead - time.Second,
			detail: "The licence's tokens were ended just now, and can't be ended again within the second."}
	}
	t.exec(`UPDATE licenses SET tokens_end_at = ? WHERE id = ?`, l.TokensEndAt, l.ID)
	return nil
}

// withoutTransferLimit returns the ids of an owner's licences that limit devices but not transfers and are not revoked.
// It reads all licences, some two seconds for a million, which will do for a command that is run once.
func (q *queries) withoutTransferLimit(o owner) ([]string, error) {
	query, args := o.narrow(`SELECT id FROM licenses WHERE `+unlimitedTransfers, `account_id`)
	return q.texts(query, args...)
}

// The conditions for time-driven transitions; every ? is the present time. graceDue and
// expiryDue match licences that have entered grace or expired and whose event is not
// written yet, lapseDue devices whose floating seat has lapsed. They repeat the conditions
// of the partial indexes in schema.sql, so that SQLite uses those. Rows without a licence
// or an account, which the sqlite3 shell can leave behind because it does not enforce
// foreign keys, don't match: an event about them would fail, and block all others.
const (
	hasAccount = ` AND EXISTS (SELECT 1 FROM accounts WHERE accounts.id = account_id)`
	graceDue   = `state <> 'revoked' AND grace_days > 0 AND grace_noted IS NOT expires_at AND expires_at <= ?` +
		hasAccount
	expiryDue = `state <> 'revoked' AND expired_noted IS NOT grace_ends_at AND grace_ends_at <= ?` + hasAccount
	lapseDue  = `lapses_at <= ? AND EXISTS (
		SELECT 1 FROM licenses WHERE licenses.id = license_id` + hasAccount + `)`
)

// recordLicenseTransitions writes the events license.grace_started and license.expired,
// each for up to limit licences, and returns how many it wrote. A licence gets each event
// once for the same expires_at, and again after a renewal.
func (t *tx) recordLicenseTransitions(limit int) (int, error) {
	written := 0
	for _, due := range []struct {
		condition, end, column string
		event                  eventType
	}{
		{graceDue, "expires_at", "grace_noted", eventLicenseGraceStarted},
		{expiryDue, "grace_ends_at", "expired_noted", eventLicenseExpired},
	} {
		rows, err := collect(t.queries, `SELECT id, account_id FROM licenses WHERE `+due.condition+` LIMIT ?`,
			[]any{t.now, limit}, func(l *license) []any { return []any{&l.ID, &l.AccountID} })
		if err != nil {
			return written, err
		}
		for _, l := range rows {
			t.exec(`UPDATE licenses SET `+due.column+` = `+due.end+` WHERE id = ?`, l.ID)
			t.addEvent(licenseEvent(&l, due.event, actorTime))
			written++
		}
	}
	return written, nil
}

// expiringDue is the SQL condition for licences that end after the first ? and not after the second,
// and for whose present end license.expiring is not written yet.
const expiringDue = `state <> 'revoked' AND expiring_noted IS NOT expires_at` +
	` AND expires_at > ? AND expires_at <= ?` + hasAccount

// licensesExpiring reports whether recordExpiring has anything to do at now.
func (q *queries) licensesExpiring(now, until stamp) (due bool, err error) {
	return oneValue[bool](q, `SELECT EXISTS (SELECT 1 FROM licenses WHERE `+expiringDue+`)`, now, until)
}

// recordExpiring writes the event license.expiring for up to limit licences that end by until,
// once for each end, and returns how many it wrote.
func (t *tx) recordExpiring(until stamp, limit int) (int64, error) {
	rows, err := collect(t.queries, `SELECT id, account_id, expires_at FROM licenses
		WHERE `+expiringDue+` LIMIT ?`, []any{t.now, until, limit},
		func(l *license) []any { return []any{&l.ID, &l.AccountID, &l.ExpiresAt} })
	if err != nil {
		return 0, err
	}
	for _, l := range rows {
		t.exec(`UPDATE licenses SET expiring_noted = expires_at WHERE id = ?`, l.ID)
		e := licenseEvent(&l, eventLicenseExpiring, actorTime, "expires_at", l.ExpiresAt.String())
		t.addEvent(e)
	}
	return int64(len(rows)), nil
}

// saveLicense writes members of l to its row, and sets UpdatedAt.
func (t *tx) saveLicense(l *license, members string) {
	l.UpdatedAt = t.now
	licenseTable.update(t, l, members+" updated_at", ` WHERE id = ?`, l.ID)
}

// saveTerms writes the terms of l that have been changed, with the event; nothing if none was.
func (t *tx) saveTerms(l *license, changed difference, actor string) {
	if len(changed.names) == 0 {
		return
	}
	t.saveLicense(l, changed.text())
	e := licenseEvent(l, eventLicenseUpdated, actor)
	e.Data = changed.data()
	t.addEvent(e)
}

// addKey stores the hash of another key of a licence. Errors: errKeyTaken.
func (t *tx) addKey(licenseID string, key licenseKey) error {
	hash := key.hash()
	_, err := t.try(`INSERT INTO license_keys (hash, license_id, hint, created_at) VALUES (?, ?, ?, ?)`,
		hash[:], licenseID, key.hint(), t.now)
	if isDuplicate(err) {
		return errKeyTaken
	}
	return err
}

// retireKeys ends a licence's current key at end, and earlier keys that would work longer.
func (t *tx) retireKeys(licenseID string, end stamp) {
	t.exec(`UPDATE license_keys SET retires_at = ?1
		WHERE license_id = ?2 AND (retires_at IS NULL OR retires_at > ?1)`, end, licenseID)
}

// A licenseTally is how many licences there are and, up to limits.talliedLicenses, how many by status, and how many of
// those that are active end soon.
type licenseTally struct {
	Total     int64
	ByStatus  map[string]int64
	Ending    int64
	Unlimited int64 // without a limit of transfers, but with one of devices, and not revoked
}

// tallyLicenses counts the licences by the status that they have at now, and the active ones that
// end before soon, unless there are more than limits.talliedLicenses: reading every licence once takes as long for
// that many as half of everything else that the status command does.
func (q *queries) tallyLicenses(now, soon stamp) (t licenseTally, err error) {
	t.ByStatus = map[string]int64{}
	err = q.one(`SELECT count(*) FROM licenses`, nil, &t.Total)
	if err != nil || t.Total > int64(q.limits.talliedLicenses) {
		return t, err
	}
	query := `SELECT ` + strings.ReplaceAll(statusOfLicense, "?", "?1") + ` AS status, count(*),
		count(*) FILTER (WHERE l.expires_at < ?2),
		count(*) FILTER (WHERE ` + unlimitedTransfers + `)
		FROM licenses l JOIN accounts a ON a.id = l.account_id GROUP BY status`
	for _, status := range licenseStatuses {
		t.ByStatus[string(status)] = 0
	}
	err = q.each(query, []any{now, soon}, func(scan func(...any) error) error {
		var status string
		var n, ending, unlimited int64
		err := scan(&status, &n, &ending, &unlimited)
		if t.ByStatus[status] = n; status == statusActive {
			t.Ending = ending
		}
		t.Unlimited += unlimited
		return err
	})
	return t, err
}

// heldLicenses are licences that are not revoked.
var heldLicenses = holding{"licenses", "licence",
	`SELECT count(*) FROM licenses WHERE account_id = ?1 AND state <> 'revoked'`, ""}
