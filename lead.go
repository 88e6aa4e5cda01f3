package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// leadNoun declares leads.
func leadNoun() noun {
	return noun{
		name:     "lead",
		modules:  func(s *server) []module { return []module{leadModule(s)} },
		calls:    leadRouteCommands,
		commands: leadCommands,
		events:   leadEvents,
		rows:     []rowReader{unreadableLeads},
	}
}

// The scopes of leads.
const (
	scopeLeads      = "leads:read"
	scopeWriteLeads = "leads:write"
)

// The event types of leads.
var (
	leadEvents = eventTable{scope: scopeLeads}

	eventLeadCreated = leadEvents.add("lead.created")
)

// A lead is what a form of a site sent.
type lead struct {
	ID        string `json:"id" is:"lead"`                      // The id of the lead.
	AccountID string `json:"account_id" is:"acct"`              // The account that the lead belongs to.
	Type      string `json:"type" is:"^[a-z][a-z0-9_-]{0,31}$"` // The kind of lead.
	Email     string `json:"email"`                             // The address, its domain in lower case.

	Source *string `json:"source"` // Where on the site the form is, or null: it did not say.
	Page   *string `json:"page"`   // The path of the page, or null: it did not say.

	// What else the form asked for, texts by name in the order of names, or null: nothing.
	Fields json.RawMessage `json:"fields" is:"texts"`

	CreatedAt stamp `json:"created_at"` // When it was sent.

	seq    int64  // its place in the order in which leads were written
	sender string // actor of the event of a new one; "": a site
}

var checkLeadType = &textCheck{pattern: "^[a-z][a-z0-9_-]{0,31}$", of: func(s string) (code, detail string) {
	if !isLeadWord(s) {
		return "invalid_type", "A type begins with a letter and has lower-case letters, digits, - and _."
	}
	return "", ""
}}

// isLeadWord reports whether s begins with a lower-case letter and has nothing but lower-case
// letters, digits, hyphens and underscores.
func isLeadWord(s string) bool {
	for i, r := range s {
		if !(r >= 'a' && r <= 'z' || i > 0 && (r >= '0' && r <= '9' || r == '_' || r == '-')) {
			return false
		}
	}
	return s != ""
}

// The limits of a lead's fields (contract, section 3).
const (
	maxLeadFields     = 20
	maxLeadFieldName  = 32
	maxLeadFieldValue = 2000    // characters
	maxLeadFieldBytes = 8 << 10 // of all names and values together
)

// checkLeadField checks one member of a lead's fields, like a textCheck.
func checkLeadField(m jsonMember) (code, detail string) {
	switch {
	case len(m.name) > maxLeadFieldName || !isLeadWord(m.name):
		return "invalid_name", fmt.Sprintf("A name begins with a letter and has at most %d lower-case letters, "+
			"digits, - and _.", maxLeadFieldName)
	case m.value.kind != jsonString:
		return "wrong_type", fmt.Sprintf("This must be a string, not %s: a file can't be sent.", m.value.kind)
	}
	return checkLines(m.value.text, maxLeadFieldValue)
}

// The e-mail addresses of leads: which are accepted, and which look alike.

// checkEmail accepts one plain address (contract, section 3): no display name, comment,
// quoted local part or address literal, and a domain of two or more valid labels.
// Internationalised domains and local parts are accepted as they are.
var checkEmail = &textCheck{format: "email", of: func(s string) (code, detail string) {
	const invalid = "invalid_email"
	at := strings.LastIndexByte(s, '@')
	switch {
	case len(s) > 254:
		return "too_long", "An address has at most 254 octets."
	case at <= 0 || at == len(s)-1:
		return invalid, "An address is name@example.com."
	case at > 64:
		return invalid, "The part before the @ has more than 64 octets."
	}
	for _, atom := range strings.Split(s[:at], ".") {
		if atom == "" || strings.IndexFunc(atom, func(r rune) bool { return !isAtomText(r) }) >= 0 {
			return invalid, "The part before the @ is not valid."
		}
	}
	if !validDomain(s[at+1:]) {
		return invalid, "The domain after the @ is not valid."
	}
	return "", ""
}}

// isAtomText reports whether r is atext of RFC 5322, or a letter beyond ASCII as RFC 6531
// adds it.
func isAtomText(r rune) bool {
	return isLabelRune(r) || strings.ContainsRune("!#$%&'*+-/=?^_`{|}~", r)
}

// labelSymbols are what names of hosts have beside letters, marks, digits and hyphens (RFC 5892, section 2.6, and
// appendix A): middle dots, signs of Greek, Hebrew, Tibetan and Sindhi, the ideographic zero, and joiners.
const labelSymbols = "·͵׳״་〇・۽۾\u200c\u200d"

func isLabelRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
		r >= utf8.RuneSelf && r != utf8.RuneError &&
			(unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r))
}

func isNoLabelRune(r rune) bool {
	return r != '-' && !isLabelRune(r) && !strings.ContainsRune(labelSymbols, r)
}

// validDomain reports whether domain has two or more labels of letters, marks, digits, labelSymbols and inner
// hyphens, at most 63 octets each and 253 in all, the last with a letter in it (RFC 1123).
func validDomain(domain string) bool {
	labels := strings.Split(domain, ".")
	if len(domain) > 253 || len(labels) < 2 {
		return false
	}
	for _, label := range labels {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.Trim(label, labelSymbols) == "" || strings.IndexFunc(label, isNoLabelRune) >= 0 {
			return false
		}
	}
	return strings.IndexFunc(labels[len(labels)-1], unicode.IsLetter) >= 0
}

// normalEmail returns an address with its domain in lower case, as it is stored.
func normalEmail(s string) string {
	at := strings.LastIndexByte(s, '@')
	return s[:at+1] + strings.ToLower(smallDotted(s[at+1:]))
}

// similarEmailKey returns an address without what often differs between two addresses of one person: case, and
// before the @ dots and what follows a plus sign. Addresses of different people can have the same result, so it
// only serves to show an operator which addresses resemble another.
func similarEmailKey(email string) string {
	local, domain, _ := strings.Cut(emailKey(email), "@")
	local = strings.ReplaceAll(local, ".", "")
	if plus := strings.IndexByte(local, '+'); plus > 0 {
		local = local[:plus]
	}
	return local + "@" + domain
}
