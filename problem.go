package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// A problemCode is one kind of problem (RFC 9457; contract, section 1). Callers rely on its name
// and status, which never change their meaning. Every noun declares its codes in a problemTable.
type problemCode struct {
	name   string // "seat_limit_reached", the member code of the problem
	status int    // the HTTP status, 400 or more
	title  string // a summary for people, the same for every problem of this kind
	detail string // an explanation for people; a refusal may replace it by a more precise one
	remedy string // what the caller can do about it, in CommonMark; the documents show it
}

// A problemTable collects the codes of one noun.
type problemTable []*problemCode

// add declares a code and returns it.
func (t *problemTable) add(status int, name, title, detail, remedy string) *problemCode {
	c := &problemCode{name, status, title, detail, remedy}
	*t = append(*t, c)
	return c
}

// The codes of the core.
var (
	coreProblems problemTable

	codeMalformedJSON = coreProblems.add(400, "malformed_json", "Malformed JSON",
		"The body is not a valid JSON object.",
		"Mend the body: one JSON object in UTF-8, no member twice, at most 8 levels deep, with no more values "+
			"than the route allows.")
	codeNotFound = coreProblems.add(404, "not_found", "Not found", "There is nothing with this path or id.",
		"Correct the path or the id.")
	codeMethod = coreProblems.add(405, "method_not_allowed", "Method not allowed",
		"This path does not allow this method.",
		"Use a method that `Allow` names.")
	codeReferenceUsed = coreProblems.add(409, "reference_used", "Reference used",
		"The account has an order, or a licence, with this reference already.",
		"Look at the order whose id is in `order_id`, or the licence in `license_id`, or choose another "+
			"reference. An application without `orders:read` is not told the id.")
	codeBodySize = coreProblems.add(413, "body_too_large", "Body too large", "The body is too large.",
		"Send less.")
	codeMediaType = coreProblems.add(415, "unsupported_media_type", "Unsupported media type",
		"The body must be uncompressed JSON in UTF-8, with Content-Type: application/json.",
		"Send JSON in UTF-8, not compressed, with `Content-Type: application/json`.")
	codeValidation = coreProblems.add(422, "validation_failed", "Validation failed",
		"The request contains wrong values.",
		"Correct the members or parameters in `errors`; all that are wrong are named.")
	codeRateLimited = coreProblems.add(429, "rate_limited", "Rate limited", "Too many requests.",
		"Wait `Retry-After` seconds.")
	codeInternal = coreProblems.add(500, "internal", "Internal error",
		"An error occurred in the service. Give the request_id when you report it.",
		"Send it again later; report the `request_id`.")
	codeUnreadable = coreProblems.add(500, "row_unreadable", "Row unreadable",
		"A row of the database that this needs can't be read; nothing was written. The operator of the service "+
			"finds it with 'widgetd check'.",
		"Sending it again does not help. Tell the operator of the service, who finds the row with `widgetd "+
			"check`.")
	codeBusy = coreProblems.add(503, "busy", "Busy",
		"The service can't do this at the moment, or not in the time that it has; nothing was written.",
		"Wait `Retry-After` seconds and send it again. A write may wait 15 seconds before this answer, so give a "+
			"call 20; a list or statistics gives up after two.")
	codeStorageFull = coreProblems.add(503, "storage_full", "Storage full",
		"The disk is full; nothing was written.",
		"Wait `Retry-After` seconds and send it again; nothing was written.")
	codeStorage = coreProblems.add(503, "storage_unavailable", "Storage unavailable",
		"The database can't be used at the moment; nothing was written.",
		"Wait `Retry-After` seconds and send it again. Nothing was written, unless `detail` says that this is not "+
			"known: then send it with the same `Idempotency-Key`.")
	codeClock = coreProblems.add(503, "clock_doubted", "Clock doubted",
		"The service can't tell whether its clock is right, so it signs nothing. Try again later.",
		"Wait `Retry-After` seconds and send it again. Devices keep the lease that they have. Nothing was "+
			"written.")
)

// A refusal is the error of a request that this service answers with a problem. Its texts must
// not contain SQL, paths of files or other callers' data, since the caller reads them. Any error
// that is no refusal is a fault of the service, and is answered with codeInternal.
type refusal struct {
	code       *problemCode
	detail     string        // "": that of the code
	fields     []fieldError  // of validation_failed: the wrong members or parameters
	members    []extraMember // that the problem has besides the standard ones
	retryAfter time.Duration // for Retry-After; 0: none
	challenge  string        // for WWW-Authenticate, with 401 and 403 (RFC 6750); "": none
	limit      limitReached  // for RateLimit, with 429; no name: the headers are set already
}

// An extraMember is a member of a problem that is not among the standard ones (type problem).
type extraMember struct {
	name  string
	value any
}

// A fieldError is what is wrong with one member of the body, or one parameter of the query.
type fieldError struct {
	// The member, as a JSON pointer in a URI fragment (RFC 6901, section 6): `#/email`.
	Pointer   string `json:"pointer,omitempty"`
	Parameter string `json:"parameter,omitempty"` // The parameter.

	// As `required`, `wrong_type`, `too_long`, `invalid_email`. More may come.
	Code   string `json:"code" is:"^[a-z][a-z0-9_]*$"`
	Detail string `json:"detail"` // The same for people.

	// With `unknown_member`: all members that its object may have, sorted; perhaps none.
	Allowed []string `json:"allowed,omitzero"`
}

// text returns the explanation for people.
func (r *refusal) text() string {
	if r.detail != "" {
		return r.detail
	}
	return r.code.detail
}

// Error implements error, for logs and the command line.
func (r *refusal) Error() string {
	text := r.code.name + ": " + r.text()
	for _, f := range r.fields {
		text += " " + f.Pointer + f.Parameter + ": " + f.Detail
	}
	return text
}

// errFields returns a refusal that names the wrong members and parameters of a request.
func errFields(wrong ...fieldError) error {
	names := make([]string, 0, len(wrong))
	for _, e := range wrong {
		names = append(names, strings.TrimPrefix(e.Pointer, "#/")+e.Parameter)
	}
	detail := "These values are wrong: " + strings.Join(names, ", ") + "."
	return &refusal{code: codeValidation, detail: detail, fields: wrong}
}

// errRate returns the refusal of a request over a rate limit. retry is how long it takes until
// the next one is allowed.
func errRate(of limitReached, detail string, retry time.Duration) error {
	return &refusal{code: codeRateLimited, detail: detail, retryAfter: retry, limit: of}
}

// A limitReached is the rate limit over which a request was refused, as its answer shows it.
type limitReached struct {
	name      string        // in RateLimit-Policy
	rate      int           // requests a minute
	remaining int           // of them, for others than the caller
	full      time.Duration // until all of them are left again
}

// A problem is why a request was refused (RFC 9457).
type problem struct {
	Type   string      `json:"type" is:"uri"`                 // An address that explains the code.
	Title  string      `json:"title"`                         // The code for people.
	Status int         `json:"status" least:"400" most:"599"` // The HTTP status.
	Detail string      `json:"detail"`                        // What happened, for people.
	Code   problemName `json:"code"`                          // What programs read.

	// Also in `X-Request-Id` and, with a 500, in the log.
	RequestID string `json:"request_id" is:"req"`

	// With `validation_failed` and `key_malformed`: what is wrong.
	Errors []fieldError `json:"errors,omitempty"`
}

// A problemName is the code of a problem. It never changes its meaning; more may come. `x-problems` at the end of this
// document says what to do about each.
type problemName string

// encode returns the problem of a refusal as JSON. root is scheme and host of the service, whose
// page /docs explains the codes. pathMembers are members that every problem of the request's
// path has.
func (r *refusal) encode(root, requestID string, pathMembers []extraMember) []byte {
	c := r.code
	text := encodeJSON(problem{Type: root + "/docs#" + c.name, Title: c.title, Status: c.status, Detail: r.text(),
		Code: problemName(c.name), RequestID: requestID, Errors: r.fields})
	for _, m := range slices.Concat(pathMembers, r.members) {
		name, _ := json.Marshal(m.name)
		text = bytes.TrimSuffix(text, []byte("}\n"))
		text = append(append(append(append(text, ','), name...), ':'), bytes.TrimSpace(encodeJSON(m.value))...)
		text = append(text, "}\n"...)
	}
	return text
}

// errMember returns the refusal of one member of a body.
func errMember(pointer, code, detail string) error {
	return errFields(fieldError{Pointer: "#/" + pointer, Code: code, Detail: detail})
}
