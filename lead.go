package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// bucketLeads is charged to the account of the site that sends a lead.
const bucketLeads = "leads"

// leadNoun declares leads.
func leadNoun() noun {
	return noun{
		name:     "lead",
		wings:    func(s *server) []wing { return []wing{leadWing(s)} },
		commands: leadCommands,
		events:   leadEvents,
	}
}

// A leadAPI serves the endpoints of leads.
type leadAPI struct {
	*server
	trapped trappedLeads
}

func leadWing(s *server) wing {
	a := &leadAPI{server: s}
	return wing{routes: []route{
		{
			pattern: "POST /widget/leads",
			origin:  originListed,
			address: "leads",
			bucket:  bucketLeads,
			creates: true,
			members: []extraMember{{"ok", false}},
			run:     endpoint(a.createLead),
		},
		{pattern: "GET /leads", token: tokenRequired, scope: scopeLeads, question: true,
			run: endpoint(s.listLeads)},
		{pattern: "POST /leads/erase", token: tokenRequired, scope: scopeErase, run: endpoint(s.eraseLeads)},
	}}
}

// The options of these commands.
var (
	optOlderThan = option{name: "older-than", value: "DURATION",
		help: "remove leads that are older than this, as 365d"}
	optUntil = option{name: "until", value: "TIME",
		help: "show only leads until the end of a date (UTC), or until an RFC 3339 time"}
)

// The operator's commands on leads.
var leadCommands = []command{
	{"leads list", "", "list leads, newest first", []option{
		optLimit,
		optType.says("show only leads of this type, as newsletter"),
		optSince.says("show only leads since a date or an RFC 3339 time, or of the last days, as 7d"),
		optUntil,
		optAccount.says("show only leads of this account"),
	}, 0, leadsList},
	{"leads export", "", "print all leads, one JSON object a line or CSV", []option{optCSV}, 0, leadsExport},
	{"leads erase", "EMAIL", "remove every lead of an address, compared without case, from the database file and " +
		"its write-ahead log, and list addresses that resemble it",
		[]option{optLitestream.says("leave the write-ahead log to Litestream, which truncates it later")},
		1, leadsErase},
	{"leads purge", "", "remove leads that are older than a given age",
		[]option{optOlderThan, optDryRun.says("only say how many leads would be removed")}, 0, leadsPurge},
}

// leadRequest is the body of POST /widget/leads (contract, section 3).
type leadRequest struct {
	kind, email, source, page string
	fields                    json.RawMessage // as lead.Fields
	website                   string          // an input that only bots see, and fill in
}

func (q *leadRequest) read(in *input) {
	q.kind = in.text("type", required, 32, checkLeadType)
	q.email = normalEmail(in.text("email", required, 254, checkEmail))
	q.source = in.text("source", optional, 100, nil)
	q.page = in.text("page", optional, 2048, checkPage)
	if end := strings.IndexAny(q.page, "?#"); end >= 0 {
		q.page = q.page[:end]
	}
	q.fields = in.fields("fields")
	q.website = in.text("website", optional, 2048, nil)
}

func checkLeadType(s string) (code, detail string) {
	if !isLeadWord(s) {
		return "invalid_type", "A type begins with a letter and has lower-case letters, digits, - and _."
	}
	return "", ""
}

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

// fields reads the optional member that has what else a form asked for: an object of texts. It
// returns the object with its names sorted, so that the same fields are the same text; nil if
// there are none or one is wrong.
func (in *input) fields(name string) json.RawMessage {
	v := in.member(name, jsonObject, optional)
	if v == nil || len(v.members) == 0 {
		return nil
	}
	if len(v.members) > maxLeadFields {
		in.wrong(name, "wrong_length", fmt.Sprintf("This must have at most %d members.", maxLeadFields))
		return nil
	}
	sum, values, before := 0, map[string]string{}, len(*in.errs)
	for _, m := range v.members {
		sum += len(m.name) + len(m.value.text)
		if code, detail := checkLeadField(m); code != "" {
			in.wrong(name+"/"+pointerSegment(m.name), code, detail)
		}
		values[m.name] = m.value.text
	}
	if len(*in.errs) > before {
		return nil
	}
	if sum > maxLeadFieldBytes {
		in.wrong(name, "too_long", "The names and values have more than 8 KiB together.")
		return nil
	}
	return bytes.TrimSpace(encodeJSON(values))
}

// checkLeadField checks one member of a lead's fields, like a textCheck.
func checkLeadField(m jsonMember) (code, detail string) {
	switch {
	case len(m.name) > maxLeadFieldName || !isLeadWord(m.name):
		return "invalid_name", fmt.Sprintf("A name begins with a letter and has at most %d lower-case letters, "+
			"digits, - and _.", maxLeadFieldName)
	case m.value.kind != jsonString:
		return "wrong_type", fmt.Sprintf("This must be a string, not %s.", m.value.kind)
	}
	return checkLines(m.value.text, maxLeadFieldValue)
}

// pointerSegment returns a member's name as a part of a JSON pointer in a URI fragment (RFC 6901,
// section 6).
func pointerSegment(name string) string {
	return url.PathEscape(strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
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
func (a *leadAPI) createLead(ctx context.Context, c *call, q *leadRequest) (*leadResponse, error) {
	return create(ctx, a.server, c, func(t *tx) (*leadResponse, error) {
		t.invalidate()
		account := c.origin.account
		if account == "" {
			var err error
			if account, err = t.mainAccount(); err != nil {
				return nil, err
			}
		}
		l := lead{AccountID: account, Type: q.kind, Email: q.email,
			Source: nilIfEmpty(q.source), Page: nilIfEmpty(q.page), Fields: q.fields}
		add := t.addLead
		if q.website != "" {
			add = func(l lead) (string, error) { return a.trapped.pretend(t, l, q.website) }
		}
		id, err := add(l)
		return &leadResponse{OK: true, ID: id}, err
	})
}

// trappedLeads remembers in memory which ids the submissions of bots were answered with, so that
// one that is sent again gets the same id for dedupeWindow, as a lead that was kept does: a new
// id would tell the bot that it was found out. When full it forgets any other.
type trappedLeads struct {
	mu  sync.Mutex
	ids map[[sha256.Size]byte]trappedLead // by a hash of all that was sent
}

type trappedLead struct {
	id string
	at stamp // when it was first sent
}

const maxTrappedLeads = 10_000 // more than one account's limit lets in within dedupeWindow

// pretend does what the sender of a lead can notice of addLead, and returns an id, but keeps
// nothing of the lead in the database. A new submission waits for a commit too.
func (m *trappedLeads) pretend(t *tx, l lead, website string) (id string, err error) {
	key := sha256.Sum256(append(l.digest(), website...))
	m.mu.Lock()
	defer m.mu.Unlock()
	if again, ok := m.ids[key]; ok && within(dedupeWindow, again.at.Time, t.now.Time) {
		return again.id, nil
	}
	if m.ids == nil {
		m.ids = map[[sha256.Size]byte]trappedLead{}
	}
	for other := range m.ids {
		if len(m.ids) < maxTrappedLeads {
			break
		}
		delete(m.ids, other)
	}
	id = t.newID("lead")
	m.ids[key] = trappedLead{id, t.now}
	return id, t.writeProbe()
}

// leadsRequest is the query of GET /leads.
type leadsRequest struct {
	accountScope
	filter leadFilter
	page   pageQuery
}

func (q *leadsRequest) read(in *input) {
	q.accountScope.read(in)
	q.filter.kind = in.parameter("type", checkLeadType)
	q.filter.since, q.filter.until = in.moment("since"), in.moment("until")
	q.page = in.pageBySeq("lead")
}

// listLeads answers GET /leads.
func (s *server) listLeads(ctx context.Context, c *call, q *leadsRequest) (*list[lead], error) {
	q.filter.owner = q.owner
	page, err := s.store.within(ctx).leads(q.filter, q.page.before, q.page.limit)
	if err != nil {
		return nil, err
	}
	return showPage(page, func(l lead) lead { return l }), nil
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
	erased, err := s.store.eraseLeads(ctx, q.owner, q.email)
	s.scrubWAL(5 * time.Second) // also after an error: part of them may be erased
	if err != nil {
		return nil, err
	}
	return &eraseResponse{erased}, nil
}

func leadsList(e *env) error {
	limit, err := e.number("limit", 1, 1_000_000)
	if err != nil {
		return err
	}
	filter := leadFilter{kind: e.str("type")}
	if filter.kind != "" && !isLeadWord(filter.kind) {
		return usageError(fmt.Sprintf("-type: %q is not the type of a lead, such as newsletter",
			printable(filter.kind)))
	}
	if filter.since, err = e.pastTime("since"); err != nil {
		return err
	}
	if filter.until, err = e.pastTime("until"); err != nil {
		return err
	}
	if _, err := time.Parse(time.DateOnly, e.str("until")); err == nil { // to the end of that day
		filter.until = filter.until.after(24 * time.Hour)
	}
	if filter.owner, err = e.filterAccount(); err != nil {
		return err
	}
	return e.withStore(func(st *store) error {
		all, err := collectPages(limit+1, func(before string, limit int) (listPage[lead], error) {
			return st.leads(filter, before, limit)
		})
		if err != nil {
			return err
		}
		rows := firstRows(e, all, limit, "-limit N or 'widgetd leads export'")
		return printRows(e, rows, "POSTED TYPE EMAIL SOURCE PAGE FIELDS ACCOUNT ID", func(l lead) []any {
			return []any{l.CreatedAt, l.Type, l.Email, l.Source, l.Page, string(l.Fields), l.AccountID, l.ID}
		})
	})
}

func leadsExport(e *env) error {
	header := []string{"id", "account_id", "type", "email", "source", "page", "fields", "created_at"}
	page := func(st *store, before string) (listPage[lead], error) {
		return st.leads(leadFilter{owner: anyAccount}, before, exportPageSize)
	}
	return exportRows(e, header, page, func(l lead) []string {
		source, page := valueOr(l.Source, ""), valueOr(l.Page, "")
		return []string{l.ID, l.AccountID, l.Type, csvTextCell(l.Email), csvTextCell(source), csvTextCell(page),
			csvJSONCell(l.Fields), l.CreatedAt.String()}
	})
}

func leadsErase(e *env) error {
	return e.withStore(func(st *store) error {
		erased, err := st.eraseLeads(e.ctx, anyAccount, e.args[0])
		if err != nil {
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
		copies := upgradeCopies(st.path)
		if len(copies) > 0 {
			note += "; copies that were written before an upgrade still hold it, so remove them: " +
				strings.Join(copies, ", ")
		}
		similar, more, err := st.similarAddresses(e.ctx, anyAccount, e.args[0], maxSimilar)
		if err != nil {
			return fmt.Errorf("%d erased, but not compared with other addresses: %w", erased, err)
		}
		return e.print(map[string]any{
			"erased": erased, "note": note, "copies": append([]string{}, copies...),
			"similar": append([]similarAddress{}, similar...), "more_similar": more,
		}, fmt.Sprintf("%d erased; %s", erased, note)+similarText(similar, more))
	})
}

// maxSimilar is how many addresses leads erase lists that resemble the erased one.
const maxSimilar = 20

// similarText returns the lines on addresses that leads erase has left, for the operator to judge.
// Letters beyond ASCII are written as escapes too: two spellings can look the same.
func similarText(similar []similarAddress, more bool) string {
	if len(similar) == 0 {
		return ""
	}
	lines := "\nnot erased, but alike; if one is the same person's, erase it in its own spelling:"
	for _, s := range similar {
		lines += "\n  " + printable(s.Email)
		if escaped := strconv.QuoteToASCII(s.Email); escaped != `"`+s.Email+`"` {
			lines += " (" + escaped + ")"
		}
		lines += fmt.Sprintf(": %d, the last %s", s.Leads, s.ID)
	}
	if more {
		lines += fmt.Sprintf("\n  and others: these are %d", len(similar))
	}
	return lines
}

func leadsPurge(e *env) error {
	if e.str("older-than") == "" {
		return usageError("-older-than DURATION is needed, as 365d")
	}
	age, err := parseSpan(e.str("older-than"), true)
	if err != nil {
		return err
	}
	before := newStamp(age.before(e.now()))
	return e.withStore(func(st *store) error {
		if e.on("dry-run") {
			n, err := st.countLeads(anyAccount, before)
			if err != nil {
				return err
			}
			return e.print(map[string]any{"would_purge": n, "dry_run": true},
				fmt.Sprintf("%d would be removed; this was a dry run: nothing was changed", n))
		}
		purged := int64(0)
		for after, more := int64(0), true; more; {
			var n, last int64
			began := time.Now()
			if err := st.update(e.ctx, func(t *tx) (err error) {
				n, last, err = t.purgeLeads(anyAccount, before, after)
				return err
			}); err != nil {
				return err
			}
			purged += n
			after, more = last, last > 0
			time.Sleep(time.Since(began)) // see updateInParts
		}
		return e.print(map[string]int64{"purged": purged}, fmt.Sprintf("%d removed", purged))
	})
}
