package main

import (
	"strings"
	"time"
)

// A refusal is an answer that is not success and not a fault of ours: the code
// is stable and listed in problemCodes, the detail is for people. It never
// carries SQL, a path or another caller's data.
type refusal struct {
	code    string
	detail  string
	fields  []fieldError // which members are wrong, for validation_failed
	seats   any          // for seat_limit_reached
	devices any          // that hold the seats

	nextTransfer stamp // for transfer_limit_reached

	retryAfter time.Duration // how long to wait, for rate_limited and busy
	scope      string        // the scope that is missing, for insufficient_scope
}

// A fieldError names one wrong member of a body (pointer, RFC 6901 in a URI
// fragment) or one wrong query parameter.
type fieldError struct {
	Pointer   string `json:"pointer,omitempty"`
	Parameter string `json:"parameter,omitempty"`
	Code      string `json:"code"`
	Detail    string `json:"detail"`
}

func (r *refusal) Error() string {
	text := r.code
	if r.detail != "" {
		text += ": " + r.detail
	}
	for _, f := range r.fields {
		text += " " + f.Pointer + f.Parameter + ": " + f.Detail
	}
	return text
}

// problemCodes are all codes that a problem can carry, with their status and
// title (contract, section 1). A code never changes its meaning.
var problemCodes = map[string]struct {
	status int
	title  string
}{
	"malformed_json":          {400, "Malformed JSON"},
	"malformed_header":        {400, "Malformed header"},
	"token_required":          {401, "Token required"},
	"invalid_token":           {401, "Invalid token"},
	"insufficient_scope":      {403, "Insufficient scope"},
	"origin_not_allowed":      {403, "Origin not allowed"},
	"license_revoked":         {403, "Licence revoked"},
	"license_suspended":       {403, "Licence suspended"},
	"license_not_started":     {403, "Licence not started"},
	"license_expired":         {403, "Licence expired"},
	"license_in_grace":        {403, "Licence in grace"},
	"key_retired":             {403, "Licence key retired"},
	"product_mismatch":        {403, "Another product"},
	"device_blocked":          {403, "Device blocked"},
	"not_found":               {404, "Not found"},
	"license_not_found":       {404, "Licence not found"},
	"widget_not_found":        {404, "Widget not found"},
	"account_not_found":       {404, "Account not found"},
	"method_not_allowed":      {405, "Method not allowed"},
	"seat_limit_reached":      {409, "Seat limit reached"},
	"transfer_limit_reached":  {409, "Transfer limit reached"},
	"idempotency_in_progress": {409, "The same request is still running"},
	"illegal_transition":      {409, "Illegal transition"},
	"gone":                    {410, "Gone"},
	"body_too_large":          {413, "Body too large"},
	"unsupported_media_type":  {415, "Unsupported media type"},
	"validation_failed":       {422, "Validation failed"},
	"key_malformed":           {422, "Malformed licence key"},
	"credential_mismatch":     {422, "Token and body disagree"},
	"idempotency_key_reused":  {422, "Idempotency-Key reused"},
	"rate_limited":            {429, "Rate limited"},
	"internal":                {500, "Internal error"},
	"busy":                    {503, "Busy"},
	"storage_full":            {503, "Storage full"},
	"storage_unavailable":     {503, "Storage unavailable"},
}

// A problem is the public face of an error (RFC 9457).
type problem struct {
	Type      string       `json:"type"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Detail    string       `json:"detail,omitempty"`
	Code      string       `json:"code"`
	RequestID string       `json:"request_id"`
	OK        *bool        `json:"ok,omitempty"` // false, on /widget/leads
	Errors    []fieldError `json:"errors,omitempty"`
	Seats     any          `json:"seats,omitempty"`   // of seat_limit_reached
	Devices   any          `json:"devices,omitempty"` // that hold them
	Next      *stamp       `json:"next_transfer_at,omitempty"`
}

// errFields refuses a request for wrong members or parameters, and names them.
func errFields(wrong ...fieldError) error {
	names := make([]string, 0, len(wrong))
	for _, e := range wrong {
		names = append(names, strings.TrimPrefix(e.Pointer, "#/")+e.Parameter)
	}
	return &refusal{code: "validation_failed", detail: "These values are wrong: " + strings.Join(names, ", ") + ".", fields: wrong}
}

func errRate(detail string, retry time.Duration) error {
	return &refusal{code: "rate_limited", detail: detail, retryAfter: retry}
}
