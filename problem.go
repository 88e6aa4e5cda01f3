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
}

// A problemTable collects the codes of one noun.
type problemTable []*problemCode

// add declares a code and returns it.
func (t *problemTable) add(status int, name, title, detail string) *problemCode {
	c := &problemCode{name, status, title, detail}
	*t = append(*t, c)
	return c
}

// The codes of the core.
var (
	coreProblems problemTable

	codeMalformedJSON = coreProblems.add(400, "malformed_json", "Malformed JSON",
		"The body is not a valid JSON object.")
	codeNotFound = coreProblems.add(404, "not_found", "Not found", "There is nothing with this path or id.")
	codeMethod   = coreProblems.add(405, "method_not_allowed", "Method not allowed",
		"This path does not allow this method.")
	codeReferenceUsed = coreProblems.add(409, "reference_used", "Reference used",
		"The account has an order, or a licence, with this reference already.")
	codeBodySize  = coreProblems.add(413, "body_too_large", "Body too large", "The body is too large.")
	codeMediaType = coreProblems.add(415, "unsupported_media_type", "Unsupported media type",
		"The body must be uncompressed JSON in UTF-8, with Content-Type: application/json.")
	codeValidation = coreProblems.add(422, "validation_failed", "Validation failed",
		"The request contains wrong values.")
	codeRateLimited = coreProblems.add(429, "rate_limited", "Rate limited", "Too many requests.")
	codeInternal    = coreProblems.add(500, "internal", "Internal error",
		"An error occurred in the service. Give the request_id when you report it.")
	codeUnreadable = coreProblems.add(500, "row_unreadable", "Row unreadable",
		"A row of the database that this needs can't be read; nothing was written. The operator of the service "+
			"finds it with 'widgetd check'.")
	codeBusy = coreProblems.add(503, "busy", "Busy",
		"Another program has locked the database; nothing was written. Try again shortly.")
	codeStorageFull = coreProblems.add(503, "storage_full", "Storage full",
		"The disk is full; nothing was written.")
	codeStorage = coreProblems.add(503, "storage_unavailable", "Storage unavailable",
		"The database can't be used at the moment; nothing was written.")
	codeClock = coreProblems.add(503, "clock_doubted", "Clock doubted",
		"The service can't tell whether its clock is right, so it signs nothing. Try again later.")
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

// A fieldError says what is wrong with one member of a body or one parameter of a query.
type fieldError struct {
	Pointer   string `json:"pointer,omitempty"`   // JSON pointer as a URI fragment (RFC 6901): "#/email"
	Parameter string `json:"parameter,omitempty"` // name of a query parameter
	Code      string `json:"code"`                // "invalid_email"
	Detail    string `json:"detail"`              // an explanation for people

	// Of an unknown member, the names that its object may have, sorted; not null, but perhaps empty.
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

// A problem is the body that answers a refusal (RFC 9457).
type problem struct {
	Type      string       `json:"type"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Detail    string       `json:"detail,omitempty"`
	Code      string       `json:"code"`
	RequestID string       `json:"request_id"`
	Errors    []fieldError `json:"errors,omitempty"`
}

// encode returns the problem of a refusal as JSON. root is scheme and host of the service, whose
// page /docs explains the codes. pathMembers are members that every problem of the request's
// path has.
func (r *refusal) encode(root, requestID string, pathMembers []extraMember) []byte {
	c := r.code
	text := encodeJSON(problem{Type: root + "/docs#" + c.name, Title: c.title, Status: c.status, Detail: r.text(),
		Code: c.name, RequestID: requestID, Errors: r.fields})
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
