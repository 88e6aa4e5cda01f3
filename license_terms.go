package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
)

// The terms of a licence: how they are read, checked and changed. The operator's
// commands, the import and the HTTP endpoints all use the functions of this file.

const (
	maxCustomer     = 200
	maxCount        = 1000000 // devices, transfers
	maxGraceDays    = 3650
	maxDurationDays = 36500
	maxLeaseHours   = 2160
	maxOfflineDays  = 365
	maxReason       = 500
	maxReference    = 200
	maxMetadata     = 16 << 10 // bytes of JSON
	maxEntitlements = 100
	maxCodesBytes   = 1200 // of all entitlements as JSON: the longest lease, 4,062 bytes, must fit maxTokenBytes
)

// A termsReader is a source of terms: a JSON body, a line of a CSV file, or the command
// line. Each method reads the term of that name and records what is wrong with it;
// present reports whether the source has the term.
type termsReader interface {
	textTerm(name string, max int, check textCheck) (value *string, present bool)
	numberTerm(name string, low, high int) (value *int, present bool)
	boolTerm(name string) (value, present bool)
	timeTerm(name string) (value stamp, present bool)
	codesTerm(name string) (value codeList, present bool)
	objectTerm(name string) (value json.RawMessage, present bool)
}

// A termsChange is a list of assignments to a licence, one for each term that was read.
type termsChange []func(*license)

// apply makes the change and returns l.
func (c termsChange) apply(l *license) *license {
	for _, set := range c {
		set(l)
	}
	return l
}

// readTerms reads the terms that can also be changed after a licence was issued.
func readTerms(r termsReader) (c termsChange) {
	term(&c, func(l *license, v *string) { l.Plan = v })(r.textTerm("plan", maxNameLength, nil))
	term(&c, func(l *license, v *string) { l.Customer = v })(r.textTerm("customer", maxCustomer, nil))
	term(&c, func(l *license, v stamp) { l.StartsAt = v })(r.timeTerm("starts_at"))
	term(&c, func(l *license, v stamp) { l.ExpiresAt = v })(r.timeTerm("expires_at"))
	term(&c, func(l *license, v json.RawMessage) { l.Metadata = v })(r.objectTerm("metadata"))
	return append(c, readPlanTerms(r)...)
}

// readPlanTerms reads the terms that a plan has, too, and that can be changed.
func readPlanTerms(r termsReader) (c termsChange) {
	term(&c, func(l *license, v bool) { l.Trial = v })(r.boolTerm("trial"))
	term(&c, func(l *license, v *int) { l.MaxDevices = v })(r.numberTerm("max_devices", 1, maxCount))
	term(&c, func(l *license, v *int) {
		l.MaxTransfers, l.transfersGiven = v, true
	})(r.numberTerm("max_transfers", 0, maxCount))
	term(&c, func(l *license, v *int) { l.GraceDays = valueOr(v, 0) })(r.numberTerm("grace_days", 0, maxGraceDays))
	term(&c, func(l *license, v *int) { l.DurationDays = v })(r.numberTerm("duration_days", 1, maxDurationDays))
	term(&c, func(l *license, v *int) {
		l.LeaseHours = valueOr(v, l.defaultLease())
	})(r.numberTerm("lease_hours", 1, maxLeaseHours))
	term(&c, func(l *license, v *int) {
		l.OfflineDays = valueOr(v, 0)
	})(r.numberTerm("offline_days", 0, maxOfflineDays))
	term(&c, func(l *license, v codeList) { l.Entitlements = v })(r.codesTerm("entitlements"))
	return c
}

// term returns a function that takes what a method of termsReader has read, and adds its assignment to c if the
// term was present.
func term[T any](c *termsChange, assign func(l *license, value T)) func(value T, present bool) {
	return func(value T, present bool) {
		if present {
			*c = append(*c, func(l *license) { assign(l, value) })
		}
	}
}

// readNewTerms reads the terms of a new licence: those of readTerms, and those that are
// fixed once it is issued.
func readNewTerms(r termsReader) (c termsChange) {
	reference, _ := r.textTerm("reference", maxReference, nil)
	planID, _ := r.textTerm("plan_id", maxNameLength, isID("pln"))
	terms := readTerms(r)
	return slices.Concat(readFixedTerms(r), terms, termsChange{func(l *license) {
		l.Reference, l.PlanID = reference, planID
	}})
}

// readFixedTerms reads the terms that a plan has, too, and that can't be changed. They are set before the others: the
// default of lease_hours depends on the kind.
func readFixedTerms(r termsReader) termsChange {
	product, _ := r.textTerm("product", maxNameLength, notEmpty)
	kind, _ := r.textTerm("kind", maxNameLength, oneOf(kindNodeLocked, kindFloating))
	basis, _ := r.textTerm("expiry_basis", maxNameLength, oneOf(basisIssue, basisFirstActivation))
	return termsChange{func(l *license) {
		l.Product = valueOr(product, l.Product)
		l.Kind = valueOr(kind, l.Kind)
		l.ExpiryBasis = valueOr(basis, l.ExpiryBasis)
	}}
}

// invalidTerm checks terms against each other, after each was found valid by itself. It
// returns the name of one that does not fit the others and why, or "" when all fit.
func (l *license) invalidTerm() (name, detail string) {
	switch {
	case l.Product == "":
		return "product", "A product is required."
	case !l.StartsAt.IsZero() && !l.ExpiresAt.IsZero() && !l.ExpiresAt.After(l.StartsAt.Time):
		return "expires_at", "The licence would end before it starts."
	case l.MaxDevices == nil && l.MaxTransfers != nil:
		return "max_transfers", "A licence without max_devices has no transfers to limit."
	case l.ExpiryBasis == basisFirstActivation && l.DurationDays == nil:
		return "duration_days", "A licence whose duration counts from its first activation needs a duration."
	case l.ExpiryBasis == basisFirstActivation && !l.ExpiresAt.IsZero() && l.FirstActivatedAt.IsZero():
		return "expires_at", "The end of this licence is computed at its first activation, so it can't be set."
	}
	return "", ""
}

// checkTerms returns what invalidTerm finds as the refusal validation_failed.
func (l *license) checkTerms() error {
	name, detail := l.invalidTerm()
	if name == "" {
		return nil
	}
	return errFields(fieldError{Pointer: "#/" + name, Code: "inconsistent", Detail: detail})
}

// fillDefaults sets the terms of a new licence that were not given: the defaults, and
// the end of a licence whose duration counts from its issue.
func (l *license) fillDefaults(now stamp) {
	l.Kind, l.ExpiryBasis = cmp.Or(l.Kind, kindNodeLocked), cmp.Or(l.ExpiryBasis, basisIssue)
	l.LeaseHours = cmp.Or(l.LeaseHours, l.defaultLease())
	l.fitTransfers(&license{})
	if l.ExpiryBasis == basisIssue && l.DurationDays != nil && l.ExpiresAt.IsZero() {
		begin := stamp{later(now.Time, l.StartsAt.Time)}
		l.ExpiresAt = begin.after(days(*l.DurationDays))
	}
}

// defaultLease returns the lease_hours of a licence for which none were given.
func (l *license) defaultLease() int {
	if l.Kind == kindFloating {
		return floatingLeaseHours
	}
	return defaultLeaseHours
}

// defaultTransfers returns the max_transfers of a licence for which none was given: as many as it
// has seats, but at least 2; nil if devices are not limited (contract, section 4, Transfers).
func defaultTransfers(maxDevices *int) *int {
	if maxDevices == nil {
		return nil
	}
	return new(max(2, *maxDevices))
}

// fitTransfers sets max_transfers to the default where a change, which does not name it, limits devices that were not
// limited before, or has raised max_devices and the licence allows fewer transfers.
func (l *license) fitTransfers(before *license) {
	least := defaultTransfers(l.MaxDevices)
	if least == nil || l.transfersGiven {
		return
	}
	limited := before.MaxDevices == nil && l.MaxTransfers == nil
	raised := before.MaxDevices != nil && *l.MaxDevices > *before.MaxDevices
	if limited || raised && l.MaxTransfers != nil && *l.MaxTransfers < *least {
		l.MaxTransfers = least
	}
}

// createLicense stores a new licence, as licenseOf returns it, with a new key. The key is returned only here: the
// database keeps its hash. Errors: validation_failed, account_not_found, reference_used.
func createLicense(t *tx, l *license, actor string) (id, key string, err error) {
	l.fillDefaults(t.now)
	if err := l.checkTerms(); err != nil {
		return "", "", err
	}
	if err := t.openAccount(l.AccountID); err != nil {
		return "", "", err
	}
	if err := checkReference(t.queries, l); err != nil {
		return "", "", err
	}
	key = newLicenseKey()
	parsed, err := parseLicenseKey(key)
	if err != nil {
		return "", "", err
	}
	id, err = t.addLicense(l, parsed, actor)
	return id, key, err
}

// checkReference returns reference_used if another licence of the account has the reference of l, else nil.
func checkReference(q *queries, l *license) error {
	if l.Reference == nil {
		return nil
	}
	id, err := q.licenseByReference(l.AccountID, *l.Reference)
	if err == nil {
		return &refusal{code: codeReferenceUsed, detail: "The account has a licence with this reference already.",
			members: []extraMember{{"license_id", id}}}
	}
	return replaced(err, errNotFound, nil)
}

// patchLicense changes terms of a licence of an owner, and returns the licence
// afterwards. A change without effect writes nothing, not even an event. Errors:
// errNotFound, validation_failed, illegal_transition for a revoked licence.
func patchLicense(t *tx, o owner, id string, change termsChange, actor string) (*license, error) {
	l, err := t.license(o, id)
	if err != nil {
		return nil, err
	}
	if l.State == statusRevoked {
		return nil, errTransition(l, "change")
	}
	before := *l
	change.apply(l).fitTransfers(&before)
	if err := l.checkTerms(); err != nil {
		return nil, err
	}
	changed := changedTerms(&before, l)
	if changed.Names == "" {
		return l, nil
	}
	recordTerms(t, l, changed, actor)
	return l, nil
}

// recordTerms stores the changed terms of a licence, with the event.
func recordTerms(t *tx, l *license, changed termsDiff, actor string) {
	t.saveTerms(l)
	e := licenseEvent(l, eventLicenseUpdated, actor)
	e.Data = bytes.TrimSpace(encodeJSON(changed))
	t.addEvent(e)
}

// termsDiff lists the terms that a change has altered. It is the data of the change's event.
type termsDiff struct {
	Names string                     `json:"changed"` // sorted, separated by spaces: "expires_at max_devices"
	From  map[string]json.RawMessage `json:"from"`    // values before the change, without those of privateTerms
	To    map[string]json.RawMessage `json:"to"`      // values after it, without those of privateTerms
}

// privateTerms are the members of a licence whose values stay out of events.
var privateTerms = []string{"customer", "metadata", "reason"}

// changedTerms returns the JSON members in which before and after differ.
func changedTerms(before, after *license) termsDiff {
	members := func(l *license) (m map[string]json.RawMessage) {
		json.Unmarshal(encodeJSON(l), &m)
		return m
	}
	was, is := members(before), members(after)
	maps.DeleteFunc(is, func(name string, value json.RawMessage) bool {
		return bytes.Equal(value, was[name])
	})
	diff := termsDiff{Names: strings.Join(slices.Sorted(maps.Keys(is)), " "),
		From: map[string]json.RawMessage{}, To: map[string]json.RawMessage{}}
	for name, value := range is {
		if !slices.Contains(privateTerms, name) {
			diff.From[name], diff.To[name] = was[name], value
		}
	}
	return diff
}

func licenseEvent(l *license, typ eventType, actor string, data ...string) event {
	return event{Type: typ, AccountID: l.AccountID, LicenseID: l.ID, Actor: actor, Data: eventData(data...)}
}

// renewLicense sets the end of a licence of an owner to a number of days after the later
// of now and the old end; nil stands for the licence's own duration. Errors:
// errNotFound, validation_failed when the licence has no duration and days are not
// given, illegal_transition when it is revoked or has no end.
func renewLicense(t *tx, o owner, id string, addDays *int, actor string) (*license, error) {
	l, err := t.license(o, id)
	if err != nil {
		return nil, err
	}
	if addDays == nil {
		addDays = l.DurationDays
	}
	switch {
	case l.State == statusRevoked || l.ExpiresAt.IsZero():
		return nil, errTransition(l, "renew")
	case addDays == nil:
		return nil, errFields(fieldError{Pointer: "#/days", Code: "required",
			Detail: "The licence has no duration of its own; say how many days."})
	}
	base := stamp{later(t.now.Time, l.ExpiresAt.Time)}
	if l.ExpiresAt = base.after(days(*addDays)); l.ExpiresAt.Year() > lastYear {
		return nil, errFields(fieldError{Pointer: "#/days", Code: "out_of_range",
			Detail: fmt.Sprintf("The licence would end after the year %d.", lastYear)})
	}
	t.saveTerms(l)
	t.addEvent(licenseEvent(l, eventLicenseRenewed, actor, "expires_at", l.ExpiresAt.String()))
	return l, nil
}

// rotateKey gives a licence of an owner a new key, which is returned only here. The current key
// works until oldUntil (the zero stamp: it stops working now), and earlier keys no longer than that.
// endTokens ends all tokens that devices have been issued so far; the devices keep their seats.
// Errors: errNotFound, illegal_transition when the licence is revoked, or its tokens were ended twice within a second.
func rotateKey(
	t *tx, o owner, id string, oldUntil stamp, endTokens bool, actor string,
) (l *license, key string, err error) {
	if l, err = t.license(o, id); err != nil {
		return nil, "", err
	}
	if l.State == statusRevoked {
		return nil, "", errTransition(l, "rotate-key")
	}
	if oldUntil.IsZero() {
		oldUntil = t.now
	}
	key = newLicenseKey()
	parsed, err := parseLicenseKey(key)
	if err != nil {
		return nil, "", err
	}
	t.retireKeys(id, oldUntil)
	if err := t.addKey(id, parsed); err != nil {
		return nil, "", err
	}
	l.KeyHint = parsed.hint()
	ended := ""
	if endTokens {
		ended = "true"
		if err := t.endTokens(l); err != nil {
			return nil, "", err
		}
	}
	e := licenseEvent(l, eventLicenseKeyRotated, actor, "old_key_until", oldUntil.String(), "end_tokens", ended)
	t.addEvent(e)
	return l, key, nil
}

// resetTransfers lets only the fingerprints of devices that hold a seat count for a licence from now on,
// and returns the licence afterwards. It runs in transactions of a bounded number of rows, the last of
// which writes the event. Errors: errNotFound.
func resetTransfers(ctx context.Context, st *store, id, actor string) (l *license, err error) {
	for done := false; !done && err == nil; {
		err = st.update(ctx, func(t *tx) error {
			if l, err = t.license(anyAccount, id); err != nil {
				return err
			}
			if done = t.expireFingerprints(l.ID, lastStamp, maxTransitions) < maxTransitions; !done {
				return nil
			}
			t.addEvent(licenseEvent(l, eventLicenseTransfersReset, actor))
			l, err = t.license(anyAccount, id)
			return err
		})
	}
	return l, err
}

// limitTransfers gives the default max_transfers to every licence of an owner that limits devices but
// not transfers, with its event, and returns how many there were. With dryRun it only counts them.
// It runs in transactions of a bounded number of rows.
func limitTransfers(ctx context.Context, st *store, o owner, dryRun bool, actor string) (limited int, err error) {
	for after := ""; err == nil; {
		var page []*license
		if dryRun {
			page, err = st.withoutTransferLimit(o, after, maxTransitions)
		} else {
			err = st.update(ctx, func(t *tx) error {
				page, err = t.withoutTransferLimit(o, after, maxTransitions)
				if err != nil {
					return err
				}
				return limitTransfersOf(t, page, actor)
			})
		}
		limited += len(page)
		if len(page) < maxTransitions {
			break
		}
		after = page[len(page)-1].ID
	}
	return limited, err
}

// limitTransfersOf gives the default max_transfers to some licences, with their events.
func limitTransfersOf(t *tx, rows []*license, actor string) error {
	for _, l := range rows {
		change := termsChange{func(l *license) { l.MaxTransfers = defaultTransfers(l.MaxDevices) }}
		if _, err := patchLicense(t, anyAccount, l.ID, change, actor); err != nil {
			return err
		}
	}
	return nil
}

// checkCode checks the code of an entitlement. It returns a validation code and what is
// wrong, or "" when nothing is.
func checkCode(s string) (code, detail string) {
	forbidden := func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		return !letter && (r < '0' || r > '9') && !strings.ContainsRune("-_.:", r)
	}
	if s == "" || len(s) > 64 || s[0] == '-' || s[0] == '.' || strings.IndexFunc(s, forbidden) >= 0 {
		return "invalid_code", "A code has 1 to 64 letters, digits and - _ . : and begins with a letter or digit."
	}
	return "", ""
}

// checkCodes checks a list of entitlement codes and calls wrong for each that is invalid,
// with its index. It stops at the code that makes the list too long.
func checkCodes(codes []string, wrong func(at int, code, detail string)) {
	total := 0
	for i, c := range codes {
		if total += len(c) + len(`"",`); total > maxCodesBytes {
			wrong(i, "too_long", fmt.Sprintf("With this code the list takes more than %d bytes, "+
				"and would not fit into a token.", maxCodesBytes))
			return
		}
		if i == maxEntitlements {
			wrong(i, "too_many", fmt.Sprintf("With this code the list has more than %d codes.", maxEntitlements))
			return
		}
		if code, detail := checkCode(c); code != "" {
			wrong(i, code, detail)
		} else if slices.Contains(codes[:i], c) {
			wrong(i, "repeated", "This code is in the list already.")
		}
	}
}

// hasControlCharacter reports whether a string anywhere in the value, or the name of a
// member, contains a control character.
func (v *jsonValue) hasControlCharacter() bool {
	v.open()
	if v.kind == jsonString && strings.IndexFunc(v.text, unicode.IsControl) >= 0 {
		return true
	}
	for i := range v.list {
		if v.list[i].hasControlCharacter() {
			return true
		}
	}
	for i := range v.members {
		m := &v.members[i]
		if strings.IndexFunc(m.name, unicode.IsControl) >= 0 || m.value.hasControlCharacter() {
			return true
		}
	}
	return false
}
