package main

import (
	"context"
	"errors"
	"fmt"
)

// The endpoints of the scope admin. The commands in admin.go do the same through
// the same functions of terms.go and seats.go.

// licenseNotFound gives a licence that is not there its own code.
func licenseNotFound(err error) error {
	if errors.Is(err, errNotFound) {
		return &refusal{code: "license_not_found", detail: "There is no licence with this id."}
	}
	return err
}

// createLicenseRequest is the body of POST /licenses.
type createLicenseRequest struct {
	accountID string
	terms     termsChange
}

func (q *createLicenseRequest) read(in *input) {
	q.accountID = in.text("account_id", required, 64, isID("acct"))
	if !in.has("product") || in.isNull("product") {
		in.wrong("product", "required", "This member is required.")
	}
	q.terms = readNewTerms(in)
}

// A keyedLicense is a licence with its key, which is shown this once.
type keyedLicense struct {
	licenseDetail
	Key string `json:"key"`
}

// createLicense answers POST /licenses.
func (s *server) createLicense(ctx context.Context, c *call, q *createLicenseRequest) (*keyedLicense, error) {
	return create(ctx, s, c, func(t *tx) (*keyedLicense, error) {
		id, key, err := createLicense(t, q.terms.apply(&license{AccountID: q.accountID}), actorToken(c))
		if err != nil {
			return nil, err
		}
		l, err := t.license("", id)
		return &keyedLicense{detailLicense(l, t.now.Time), key}, err
	})
}

// patchLicenseRequest is the body of PATCH /licenses/{id}.
type patchLicenseRequest struct {
	id    string
	terms termsChange
}

func (q *patchLicenseRequest) read(in *input) {
	q.id = in.path("id")
	q.terms = readPatch(in)
}

// patchLicense answers PATCH /licenses/{id}.
func (s *server) patchLicense(ctx context.Context, c *call, q *patchLicenseRequest) (*licenseDetail, error) {
	return s.changeLicense(ctx, c, func(t *tx) (*license, error) { return patchLicense(t, q.id, q.terms, actorToken(c)) })
}

// changeLicense runs a change of a licence and shows it as it is then.
func (s *server) changeLicense(ctx context.Context, c *call, f func(*tx) (*license, error)) (*licenseDetail, error) {
	return create(ctx, s, c, func(t *tx) (*licenseDetail, error) {
		l, err := f(t)
		if err != nil {
			return nil, licenseNotFound(err)
		}
		detail := detailLicense(l, t.now.Time)
		return &detail, nil
	})
}

// renewRequest is the body of POST /licenses/{id}/renew.
type renewRequest struct {
	id   string
	days *int
}

func (q *renewRequest) read(in *input) {
	q.id = in.path("id")
	q.days = in.number("days", 1, maxDurationDays)
}

// renewLicense answers POST /licenses/{id}/renew.
func (s *server) renewLicense(ctx context.Context, c *call, q *renewRequest) (*licenseDetail, error) {
	return s.changeLicense(ctx, c, func(t *tx) (*license, error) { return renewLicense(t, q.id, q.days, actorToken(c)) })
}

// stateRequest is the body of suspend, reinstate and revoke.
type stateRequest struct{ id, reason string }

func (q *stateRequest) read(in *input) {
	q.id = in.path("id")
	q.reason = in.text("reason", optional, maxReason, nil)
}

func (s *server) suspendLicense(ctx context.Context, c *call, q *stateRequest) (*licenseDetail, error) {
	return s.setState(ctx, c, q, "suspend")
}

func (s *server) reinstateLicense(ctx context.Context, c *call, q *stateRequest) (*licenseDetail, error) {
	return s.setState(ctx, c, q, "reinstate")
}

func (s *server) revokeLicense(ctx context.Context, c *call, q *stateRequest) (*licenseDetail, error) {
	return s.setState(ctx, c, q, "revoke")
}

func (s *server) setState(ctx context.Context, c *call, q *stateRequest, action string) (*licenseDetail, error) {
	return s.changeLicense(ctx, c, func(t *tx) (*license, error) { return changeState(t, q.id, action, q.reason, actorToken(c)) })
}

// rotateRequest is the body of POST /licenses/{id}/rotate-key.
type rotateRequest struct {
	id       string
	oldUntil stamp
}

func (q *rotateRequest) read(in *input) {
	q.id = in.path("id")
	q.oldUntil = in.moment("old_key_until")
}

// rotateKey answers POST /licenses/{id}/rotate-key.
func (s *server) rotateKey(ctx context.Context, c *call, q *rotateRequest) (*keyedLicense, error) {
	return create(ctx, s, c, func(t *tx) (*keyedLicense, error) {
		l, key, err := rotateKey(t, q.id, q.oldUntil, actorToken(c))
		if err != nil {
			return nil, licenseNotFound(err)
		}
		return &keyedLicense{detailLicense(l, t.now.Time), key}, nil
	})
}

// eventsQuery is the query of GET /events.
type eventsQuery struct {
	accountScope
	filter eventFilter
	page   page
}

func (q *eventsQuery) read(in *input) {
	q.accountScope.read(in)
	q.filter.eventType = in.parameter("type", isText(maxNameLength))
	q.filter.licenseID = in.parameter("license_id", isID("lic"))
	q.filter.deviceID = in.parameter("device_id", isID("dev"))
	in.parameter("since", func(s string) (string, string) {
		var ok bool
		if q.filter.since, ok = parseMoment(s); !ok {
			return "invalid_time", "This must be a time as 2027-01-31T12:00:00Z."
		}
		return "", ""
	})
	q.page = in.page("evt")
}

// listEvents answers GET /events.
func (s *server) listEvents(_ context.Context, c *call, q *eventsQuery) (*list[event], error) {
	owner, err := q.resolve(s, c)
	if err != nil {
		return nil, err
	}
	q.filter.accountID = owner
	rows, err := s.store.events(q.filter, q.page.before, q.page.limit+1)
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	return newList(rows, q.page, func(e event) string { return e.ID }, func(e event) event { return e }), nil
}
