package main

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

func leadWing(s *server) wing {
	return wing{routes: []route{
		{
			pattern: "POST /widget/leads",
			origin:  originListed,
			address: "leads",
			creates: true,
			members: []extraMember{{"ok", false}},
			run:     endpoint(s.createLead),
		},
		{pattern: "GET /leads", token: tokenRequired, scope: scopeLeads, run: endpoint(s.listLeads)},
		{pattern: "POST /leads/erase", token: tokenRequired, scope: scopeErase, run: endpoint(s.eraseLeads)},
	}}
}

// The options of these commands.
var (
	optOlderThan = option{name: "older-than", value: "DURATION",
		help: "remove leads that are older than this, as 365d"}
)

// The operator's commands on leads.
var leadCommands = []command{
	{"leads export", "", "print all leads, one JSON object a line or CSV", []option{optCSV}, 0, leadsExport},
	{"leads erase", "EMAIL", "remove every lead of an address, from the database file and its write-ahead log",
		[]option{optLitestream.says("leave the write-ahead log to Litestream, which truncates it later")},
		1, leadsErase},
	{"leads purge", "", "remove leads that are older than a given age", []option{optOlderThan}, 0, leadsPurge},
}

// leadRequest is the body of POST /widget/leads (contract, section 3).
type leadRequest struct {
	kind, email, source, page string
	trap                      bool // "website" was filled in, an input that only bots see
}

func (q *leadRequest) read(in *input) {
	q.kind = in.text("type", required, 32, checkLeadType)
	q.email = normalEmail(in.text("email", required, 254, checkEmail))
	q.source = in.text("source", optional, 100, nil)
	q.page = in.text("page", optional, 2048, checkPage)
	if end := strings.IndexAny(q.page, "?#"); end >= 0 {
		q.page = q.page[:end]
	}
	q.trap = in.text("website", optional, 2048, nil) != ""
}

func checkLeadType(s string) (code, detail string) {
	for i, r := range s {
		if !(r >= 'a' && r <= 'z' || i > 0 && (r >= '0' && r <= '9' || r == '_' || r == '-')) {
			return "invalid_type", "A type begins with a letter and has lower-case letters, digits, - and _."
		}
	}
	return "", ""
}

func checkPage(s string) (code, detail string) {
	if !strings.HasPrefix(s, "/") {
		return "invalid_page", "A page is a path: it begins with /."
	}
	return "", ""
}

type leadResponse struct {
	OK bool   `json:"ok"`
	ID string `json:"id"`
}

// createLead stores what a site's form sent; it is on disk before the answer. What a bot
// sent is answered in the same way and not stored.
func (s *server) createLead(ctx context.Context, c *call, q *leadRequest) (*leadResponse, error) {
	if q.trap {
		return &leadResponse{OK: true, ID: newID("lead", s.now())}, nil
	}
	return create(ctx, s, c, func(t *tx) (*leadResponse, error) {
		t.invalidate()
		account := c.origin.account
		if account == "" {
			var err error
			if account, err = t.mainAccount(); err != nil {
				return nil, err
			}
		}
		id, err := t.addLead(lead{AccountID: account, Type: q.kind, Email: q.email,
			Source: nilIfEmpty(q.source), Page: nilIfEmpty(q.page)})
		return &leadResponse{OK: true, ID: id}, err
	})
}

// leadsRequest is the query of GET /leads.
type leadsRequest struct {
	accountScope
	page pageQuery
}

func (q *leadsRequest) read(in *input) {
	q.accountScope.read(in)
	q.page = in.page("lead")
}

// listLeads answers GET /leads.
func (s *server) listLeads(_ context.Context, c *call, q *leadsRequest) (*list[lead], error) {
	o, err := q.resolve(s, c)
	if err != nil {
		return nil, err
	}
	rows, err := s.store.leads(o, q.page.before, q.page.limit+1)
	if err != nil {
		return nil, err
	}
	return newList(rows, q.page, func(l lead) string { return l.ID }, func(l lead) lead { return l }), nil
}

// eraseRequest is the body of POST /leads/erase.
type eraseRequest struct {
	accountScope
	email string
}

func (q *eraseRequest) read(in *input) {
	q.accountScope.read(in)
	q.email = in.text("email", required, 254, checkEmail)
}

type eraseResponse struct {
	Erased int64 `json:"erased"`
}

// eraseLeads removes every lead of an address, then truncates the write-ahead log, which
// still holds the address.
func (s *server) eraseLeads(ctx context.Context, c *call, q *eraseRequest) (*eraseResponse, error) {
	o, err := q.resolve(s, c)
	if err != nil {
		return nil, err
	}
	var res eraseResponse
	if err := s.store.update(ctx, func(t *tx) (err error) {
		t.invalidate()
		res.Erased, err = t.eraseLeads(o, q.email)
		return err
	}); err != nil {
		return nil, err
	}
	s.scrubWAL(5 * time.Second)
	return &res, nil
}

func leadsExport(e *env) error {
	header := []string{"id", "account_id", "type", "email", "source", "page", "created_at"}
	page := func(st *store, before string) ([]lead, error) {
		return st.leads(anyAccount, before, exportPageSize)
	}
	id := func(l lead) string { return l.ID }
	return exportRows(e, header, page, id, func(l lead) []string {
		source, page := valueOr(l.Source, ""), valueOr(l.Page, "")
		return []string{l.ID, l.AccountID, l.Type, csvTextCell(l.Email), csvTextCell(source), csvTextCell(page),
			l.CreatedAt.String()}
	})
}

func leadsErase(e *env) error {
	return e.withStore(func(st *store) error {
		var erased int64
		if err := st.update(e.ctx, func(t *tx) (err error) {
			erased, err = t.eraseLeads(anyAccount, e.args[0])
			return err
		}); err != nil {
			return err
		}
		const backups = "backups still hold it until they are deleted"
		note := "the address is neither in the database file nor in its write-ahead log any more; " + backups
		if e.on("litestream") {
			note = "the address is not in the database file any more; the write-ahead log, the replica and backups " +
				"hold it until their retention ends"
		} else if err := st.truncateWAL(lockTimeout); err != nil {
			note = "the address is not in the database file any more, but still in its write-ahead log: " +
				"run this again once nobody has a transaction open (" + err.Error() + "); " + backups
		}
		copies := upgradeCopies(e.str("db"))
		if len(copies) > 0 {
			note += "; copies that were written before an upgrade still hold it, so remove them: " +
				strings.Join(copies, ", ")
		}
		return e.print(map[string]any{"erased": erased, "note": note, "copies": append([]string{}, copies...)},
			fmt.Sprintf("%d erased; %s", erased, note))
	})
}

func leadsPurge(e *env) error {
	if e.str("older-than") == "" {
		return usageError("-older-than DURATION is needed, as 365d")
	}
	age, err := parseAge(e.str("older-than"))
	if err != nil {
		return err
	}
	before := newStamp(e.now().Add(-age))
	return e.withStore(func(st *store) error {
		var purged int64
		for {
			var n int64
			began := time.Now()
			if err := st.update(e.ctx, func(t *tx) (err error) {
				n, err = t.purgeLeads(anyAccount, before)
				return err
			}); err != nil {
				return err
			}
			// Others that wait for SQLite's lock poll for it: without a pause they would never find it free.
			time.Sleep(time.Since(began))
			if purged += n; n == 0 {
				return e.print(map[string]int64{"purged": purged}, fmt.Sprintf("%d removed", purged))
			}
		}
	})
}

// checkEmail accepts one plain address (contract, section 3): no display name, comment,
// quoted local part or address literal, and a domain of two or more valid labels.
// Internationalised domains and local parts are accepted as they are.
func checkEmail(s string) (code, detail string) {
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
}

// isAtomText reports whether r is atext of RFC 5322, or a letter beyond ASCII as RFC 6531
// adds it.
func isAtomText(r rune) bool {
	return isLabelRune(r) || strings.ContainsRune("!#$%&'*+-/=?^_`{|}~", r)
}

func isLabelRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
		r >= utf8.RuneSelf && r != utf8.RuneError &&
			(unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r))
}

// validDomain reports whether domain has two or more labels of letters, digits and inner
// hyphens, at most 63 octets each and 253 in all, the last with a letter in it (RFC 1123).
func validDomain(domain string) bool {
	labels := strings.Split(domain, ".")
	if len(domain) > 253 || len(labels) < 2 {
		return false
	}
	for _, label := range labels {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.IndexFunc(label, func(r rune) bool { return r != '-' && !isLabelRune(r) }) >= 0 {
			return false
		}
	}
	return strings.IndexFunc(labels[len(labels)-1], unicode.IsLetter) >= 0
}

// normalEmail returns an address with its domain in lower case, as it is stored.
func normalEmail(s string) string {
	at := strings.LastIndexByte(s, '@')
	return s[:at+1] + strings.ToLower(s[at+1:])
}
