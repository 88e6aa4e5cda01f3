package main

import (
	"cmp"
	"context"
	"fmt"
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
)

// terms are what a licence and a plan have alike.
type terms struct {
	Product string      `json:"product"` // The product that it is for, as `kitchen-display`.
	Kind    licenseKind `json:"kind"`    // `node_locked` if it is left out.
	Trial   bool        `json:"trial"`   // Whether it is a trial.

	MaxDevices *int `json:"max_devices" least:"1"` // The number of seats, or null: no limit.

	// How many fingerprints may count beside the seats, or null: no limit. By default as many as seats, at least 2.
	MaxTransfers *int `json:"max_transfers"`

	GraceDays    int          `json:"grace_days"`              // Days after the end in which known devices go on.
	DurationDays *int         `json:"duration_days" least:"1"` // Days that it runs and a renewal adds, or null: none.
	ExpiryBasis  licenseBasis `json:"expiry_basis"`            // From when `duration_days` counts.

	LeaseHours  int `json:"lease_hours" least:"1"` // How long a device may work offline.
	OfflineDays int `json:"offline_days"`          // How many days an offline lease lasts; 0: there are none.

	// Codes of what it includes, none twice, 1200 bytes as JSON in all.
	Entitlements []string `json:"entitlements"`
}

// What members of licences may be. They are made once, since a licence that is read lists its members.
var (
	checkKind   = oneOf(declareWords[licenseKind](kindNodeLocked, kindFloating)...)
	checkBasis  = oneOf(declareWords[licenseBasis](basisIssue, basisFirstActivation)...)
	checkPlanID = isID("pln")

	checkCodeForm = &textCheck{pattern: codePattern}
)

func (s *terms) members() []member {
	return append(make([]member, 0, 18), []member{ // with room for those that only a licence has
		{name: "product", at: &s.Product, atFirst: true, high: maxNameLength},
		{name: "kind", at: (*string)(&s.Kind), atFirst: true, high: maxNameLength, check: checkKind},
		{name: "trial", at: &s.Trial},
		{name: "max_devices", at: &s.MaxDevices, low: 1, high: maxCount},
		{name: "max_transfers", at: &s.MaxTransfers, high: maxCount},
		{name: "grace_days", at: &s.GraceDays, hasDefault: true, high: maxGraceDays},
		{name: "duration_days", at: &s.DurationDays, low: 1, high: maxDurationDays},
		{name: "expiry_basis", // From when `duration_days` counts; `issue` if it is left out.
			at: (*string)(&s.ExpiryBasis), atFirst: true, high: maxNameLength, check: checkBasis},
		{name: "lease_hours", // How long a device may work offline. By default and with null 336, floating 8.
			at: &s.LeaseHours, hasDefault: true, low: 1, high: maxLeaseHours},
		{name: "offline_days", at: &s.OfflineDays, hasDefault: true, high: maxOfflineDays},
		{name: "entitlements", at: &s.Entitlements, high: maxCodes, each: maxCodeLength,
			check: checkCodeForm, checkList: checkCodes},
	}...)
}

// members are what callers set of a licence.
func (l *license) members() []member {
	return append(l.terms.members(),
		member{name: "plan", at: &l.Plan, high: maxNameLength}, // A label: how it was sold.
		member{name: "plan_id", // The account's plan whose terms it gets; those that the request names go before.
			at: &l.PlanID, atFirst: true, high: maxNameLength, check: checkPlanID},
		member{name: "reference", at: &l.Reference, atFirst: true, high: maxReference},
		member{name: "customer", at: &l.Customer, high: maxCustomer, private: true},
		member{name: "starts_at", at: &l.StartsAt},
		member{name: "expires_at", at: &l.ExpiresAt},
		member{name: "metadata", at: &l.Metadata, high: maxMetadata, private: true})
}

// check checks terms against each other, after each was found valid by itself. Errors: validation_failed.
func (s *terms) check() error {
	switch {
	case s.Product == "":
		return errMember("product", "inconsistent", "A product is required.")
	case s.MaxDevices == nil && s.MaxTransfers != nil:
		return errMember("max_transfers", "inconsistent",
			"A licence without max_devices has no transfers to limit.")
	case s.ExpiryBasis == basisFirstActivation && s.DurationDays == nil:
		return errMember("duration_days", "inconsistent",
			"A licence whose duration counts from its first activation needs a duration.")
	}
	return nil
}

// checkTerms is check for a licence, which has dates, too.
func (l *license) checkTerms() error {
	switch {
	case !l.StartsAt.IsZero() && !l.ExpiresAt.IsZero() && !l.ExpiresAt.After(l.StartsAt.Time):
		return errMember("expires_at", "inconsistent", "The licence would end before it starts.")
	case l.ExpiryBasis == basisFirstActivation && !l.ExpiresAt.IsZero() && l.FirstActivatedAt.IsZero():
		return errMember("expires_at", "inconsistent",
			"The end of this licence is computed at its first activation, so it can't be set.")
	}
	return l.terms.check()
}

// change makes a change of the terms of a row with those members, and sets the defaults of what is left out or null.
func (s *terms) change(set change, row []member) {
	before := *s
	set.apply(row)
	s.Kind, s.ExpiryBasis = cmp.Or(s.Kind, kindNodeLocked), cmp.Or(s.ExpiryBasis, basisIssue)
	s.LeaseHours = cmp.Or(s.LeaseHours, s.defaultLease())
	s.Entitlements = append([]string{}, s.Entitlements...) // in JSON none are []
	if !set.has("max_transfers") {
		s.fitTransfers(&before)
	}
}

// defaultLease returns the lease_hours of a licence for which none were given.
func (s *terms) defaultLease() int {
	if s.Kind == kindFloating {
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

// fitTransfers sets max_transfers to the default where a change limits devices that were not limited before, or has
// raised max_devices and the licence allows fewer transfers.
func (s *terms) fitTransfers(before *terms) {
	least := defaultTransfers(s.MaxDevices)
	if least == nil {
		return
	}
	limited := before.MaxDevices == nil && s.MaxTransfers == nil
	raised := before.MaxDevices != nil && *s.MaxDevices > *before.MaxDevices
	if limited || raised && s.MaxTransfers != nil && *s.MaxTransfers < *least {
		s.MaxTransfers = least
	}
}

// draftLicense returns a licence of an account at now with the terms of a plan, unless p is nil, and what a caller sets
// beside them. Errors: validation_failed.
func draftLicense(p *plan, accountID string, set change, now stamp) (*license, error) {
	l := &license{AccountID: accountID}
	if p != nil {
		l.terms, l.Plan = p.terms, &p.Name
	}
	l.change(set, l.members())
	if p != nil {
		for name, differs := range map[string]bool{"product": l.Product != p.Product, "kind": l.Kind != p.Kind,
			"expiry_basis": l.ExpiryBasis != p.ExpiryBasis} {
			if differs {
				return nil, errMember(name, "inconsistent",
					"The plan has another one, which its licences can't change.")
			}
		}
	}
	if err := l.checkTerms(); err != nil {
		return nil, err
	}
	if l.ExpiryBasis == basisIssue && l.DurationDays != nil && l.ExpiresAt.IsZero() {
		begin := stamp{later(now.Time, l.StartsAt.Time)}
		l.ExpiresAt = begin.after(days(*l.DurationDays))
	}
	return l, nil
}

// draftSale returns a licence of an account at now as a caller asks for it, with the terms of the plan that set names,
// if any. Errors: validation_failed, plan_not_found, plan_retired, reference_used.
func draftSale(q *queries, accountID string, set change, now stamp) (l *license, err error) {
	var asked license
	var p *plan
	set.apply(asked.members())
	if asked.PlanID != nil {
		if p, err = q.planInUse(ownedBy(accountID), *asked.PlanID); err != nil {
			return nil, err
		}
	}
	if l, err = draftLicense(p, accountID, set, now); err != nil {
		return nil, err
	}
	return l, checkReference(q, l)
}

// sellLicense stores a new licence with a new key, and returns it, see draftSale. The key is returned only here: the
// database keeps its hash. Errors: account_not_found, those of draftSale.
func sellLicense(t *tx, accountID string, set change, actor string) (l *license, key string, err error) {
	if l, err = draftSale(t.queries, accountID, set, t.now); err != nil {
		return nil, "", err
	}
	if err := t.openAccount(accountID); err != nil {
		return nil, "", err
	}
	key = newLicenseKey()
	parsed, err := parseLicenseKey(key)
	if err != nil {
		return nil, "", err
	}
	id, err := t.addLicense(l, parsed, actor)
	if err != nil {
		return nil, "", err
	}
	l, err = t.license(ownedBy(accountID), id)
	return l, key, err
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
// errLicense, validation_failed, illegal_transition for a revoked licence.
func patchLicense(t *tx, o owner, id string, set change, actor string) (*license, error) {
	l, err := t.license(o, id)
	if err != nil {
		return nil, err
	}
	if l.State == statusRevoked {
		return nil, errTransition(l, "change")
	}
	before := *l
	l.change(set, l.members())
	if err := l.checkTerms(); err != nil {
		return nil, err
	}
	t.saveTerms(l, differenceOf(before.members(), l.members()), actor)
	return l, nil
}

func licenseEvent(l *license, typ eventType, actor string, data ...string) event {
	return event{Type: typ, AccountID: l.AccountID, SubjectID: l.ID, Actor: actor, Data: eventData(data...)}
}

// renewLicense sets the end of a licence of an owner to a number of days after the later
// of now and the old end; nil stands for the licence's own duration. Errors:
// errLicense, validation_failed when the licence has no duration and days are not
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
	t.saveLicense(l, "expires_at")
	t.addEvent(licenseEvent(l, eventLicenseRenewed, actor, "expires_at", l.ExpiresAt.String()))
	return l, nil
}

// rotateKey gives a licence of an owner a new key, which is returned only here. The current key
// works until oldUntil (the zero stamp: it stops working now), and earlier keys no longer than that.
// endTokens ends all tokens that devices have been issued so far; the devices keep their seats.
// Errors: errLicense, illegal_transition when the licence is revoked, or its tokens were ended twice within a second.
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
// which writes the event. Errors: errLicense.
func resetTransfers(ctx context.Context, st *store, id, actor string) (l *license, err error) {
	_, err = st.updateInParts(ctx, maxTransitions, func(t *tx) (n int64, err error) {
		if l, err = t.license(anyAccount, id); err != nil {
			return 0, err
		}
		if n = int64(t.expireFingerprints(l.ID, lastStamp, maxTransitions)); n < maxTransitions {
			t.addEvent(licenseEvent(l, eventLicenseTransfersReset, actor))
			l, err = t.license(anyAccount, id)
		}
		return n, err
	})
	return l, err
}

// limitTransfers gives the default max_transfers to every licence of an owner that limits devices but
// not transfers, with its event, and returns how many there were. With dryRun it only counts them.
// It runs in transactions of a bounded number of rows.
func limitTransfers(ctx context.Context, st *store, o owner, dryRun bool, actor string) (limited int, err error) {
	ids, err := st.within(ctx).withoutTransferLimit(o)
	if err != nil || dryRun {
		return len(ids), err
	}
	return inParts(ctx, st.writer, 0, func(t *tx, done int) (int, bool, error) {
		next := min(done+maxTransitions, len(ids))
		for _, id := range ids[done:next] {
			l, err := t.license(anyAccount, id)
			if err == nil && l.MaxTransfers == nil {
				least := defaultTransfers(l.MaxDevices)
				_, err = patchLicense(t, anyAccount, id, change{{name: "max_transfers", at: &least}}, actor)
			}
			if err != nil {
				return done, false, err
			}
		}
		return next, next < len(ids), nil
	})
}
