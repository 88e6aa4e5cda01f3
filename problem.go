package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
)

// A problemCode is one kind of problem (RFC 9457; contract, section 1). It never
// changes its meaning. Every noun declares its own, in a problemTable.
type problemCode struct {
	name   string // on the wire: "seat_limit_reached"
	status int    // of HTTP, 400 or more
	title  string
	detail string // for people, unless the place where it happens says more
}

// A problemTable collects the codes of one noun.
type problemTable []*problemCode

// add declares a code.
func (t *problemTable) add(status int, name, title, detail string) *problemCode {
	c := &problemCode{name, status, title, detail}
	*t = append(*t, c)
	return c
}

// The codes of the core.
var (
	coreProblems problemTable

	codeMalformedJSON = coreProblems.add(400, "malformed_json", "Malformed JSON", "The body can't be read.")
	codeNotFound      = coreProblems.add(404, "not_found", "Not found", "There is nothing here by that name.")
	codeMethod        = coreProblems.add(405, "method_not_allowed", "Method not allowed", "This path does not answer that method.")
	codeBodySize      = coreProblems.add(413, "body_too_large", "Body too large", "The body is too large.")
	codeMediaType     = coreProblems.add(415, "unsupported_media_type", "Unsupported media type",
		"The body must be JSON in UTF-8: Content-Type: application/json, not compressed.")
	codeValidation  = coreProblems.add(422, "validation_failed", "Validation failed", "These values are wrong.")
	codeRateLimited = coreProblems.add(429, "rate_limited", "Rate limited", "Too many requests.")
	codeInternal    = coreProblems.add(500, "internal", "Internal error",
		"Something went wrong on our side. The request id helps to find out what.")
	codeBusy = coreProblems.add(503, "busy", "Busy",
		"Another program has locked the database; try again shortly.")
	codeStorageFull = coreProblems.add(503, "storage_full", "Storage full", "The disk is full; nothing was written.")
	codeStorage     = coreProblems.add(503, "storage_unavailable", "Storage unavailable",
		"The database can't be used at the moment; nothing was written.")
)

// A refusal is an answer that is not success and not a fault of ours. Its detail
// never carries SQL, a path or another caller's data.
type refusal struct {
	code       *problemCode
	detail     string        // "": the code's own
	fields     []fieldError  // which members or parameters are wrong, for validation_failed
	members    []extraMember // that this problem carries besides the standard ones
	retryAfter time.Duration // how long to wait; 0: nothing is said
	challenge  string        // WWW-Authenticate, of a 401 or 403 (RFC 6750)
}

// An extraMember is a member of a problem that is particular to its code or its path.
type extraMember struct {
	name  string
	value any
}

// A fieldError names one wrong member of a body (pointer, RFC 6901 in a URI
// fragment) or one wrong query parameter.
type fieldError struct {
	Pointer   string `json:"pointer,omitempty"`
	Parameter string `json:"parameter,omitempty"`
	Code      string `json:"code"`
	Detail    string `json:"detail"`
}

// text is the detail for people.
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

// errFields refuses a request for wrong members or parameters, and names them.
func errFields(wrong ...fieldError) error {
	names := make([]string, 0, len(wrong))
	for _, e := range wrong {
		names = append(names, strings.TrimPrefix(e.Pointer, "#/")+e.Parameter)
	}
	return &refusal{code: codeValidation, detail: "These values are wrong: " + strings.Join(names, ", ") + ".", fields: wrong}
}

// errRate refuses a request for a limit; retry is when the next one may come.
func errRate(detail string, retry time.Duration) error {
	return &refusal{code: codeRateLimited, detail: detail, retryAfter: retry}
}

// A problem is the public face of a refusal (RFC 9457).
type problem struct {
	Type      string       `json:"type"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Detail    string       `json:"detail,omitempty"`
	Code      string       `json:"code"`
	RequestID string       `json:"request_id"`
	Errors    []fieldError `json:"errors,omitempty"`
}

// encode writes the problem of a refusal: root is the service's scheme and host,
// where /docs explains each code; more are members that every problem of the
// request's path carries.
func (r *refusal) encode(root, requestID string, more []extraMember) []byte {
	text := encodeJSON(problem{Type: root + "/docs#" + r.code.name, Title: r.code.title, Status: r.code.status,
		Detail: r.text(), Code: r.code.name, RequestID: requestID, Errors: r.fields})
	for _, m := range append(more[:len(more):len(more)], r.members...) {
		name, _ := json.Marshal(m.name)
		text = bytes.TrimSuffix(text, []byte("}\n"))
		text = append(append(append(append(text, ','), name...), ':'), bytes.TrimSpace(encodeJSON(m.value))...)
		text = append(text, "}\n"...)
	}
	return text
}
