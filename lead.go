package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
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

const leadColumns = `seq, id, account_id, type, email, source, page, fields, created_at`

func (l *lead) dest() []any {
	return []any{&l.seq, &l.ID, &l.AccountID, &l.Type, &l.Email, &l.Source, &l.Page,
		jsonColumn[json.RawMessage]{&l.Fields}, &l.CreatedAt}
}

// unreadableLeads is a rowReader.
func unreadableLeads(q *queries) ([]string, error) {
	return unreadableRows(q, `SELECT `+leadColumns+` FROM leads`, (*lead).dest)
}

// addressDigest is the first half of the digest of every lead of an address.
func addressDigest(email string) []byte {
	sum := sha256.Sum256([]byte(emailKey(email)))
	return sum[:8]
}

// digest is what a lead is found by: addressDigest, and 8 bytes of the hash of everything
// that was sent. Two submissions that are the same have the same digest.
func (l *lead) digest() []byte {
	sent := sha256.New()
	parts := []string{l.AccountID, l.Type, l.Email, valueOr(l.Source, ""), valueOr(l.Page, ""), string(l.Fields)}
	for _, part := range parts {
		fmt.Fprintf(sent, "%d:%s", len(part), part)
	}
	return append(addressDigest(l.Email), sent.Sum(nil)[:8]...)
}

// dedupeWindow is how long a repeated submission counts as the same lead: long enough for a double
// click or a retry. It is no longer, since the id tells whoever repeats somebody else's submission
// when that was sent.
const dedupeWindow = 10 * time.Minute

// addLead inserts a lead and its event, and returns its id. For the same submission
// within dedupeWindow it returns the id of that lead and writes nothing. To find it, only the last
// row with its digest is read, however many there are.
func (t *tx) addLead(l lead) (id string, err error) {
	digest := l.digest()
	err = t.one(`SELECT id FROM (SELECT id, email, created_at FROM leads WHERE digest = ? ORDER BY seq DESC LIMIT 1)
		WHERE created_at > ? AND created_at < ? AND email = ?`,
		[]any{digest, t.now.after(-dedupeWindow), t.now.after(dedupeWindow), l.Email}, &id)
	if !errors.Is(err, errNotFound) {
		return id, err
	}
	id = t.newID("lead")
	t.exec(`INSERT INTO leads (id, account_id, type, email, source, page, fields, digest, created_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		id, l.AccountID, l.Type, l.Email, l.Source, l.Page, jsonColumn[json.RawMessage]{&l.Fields}, digest, t.now)
	t.addEvent(event{Type: eventLeadCreated, AccountID: l.AccountID, SubjectID: id,
		Actor: cmp.Or(l.sender, actorSite)})
	return id, nil
}

// A leadFilter selects leads of an owner; an empty field does not narrow the selection.
type leadFilter struct {
	owner        owner
	kind         string // the lead's type
	since, until stamp  // posted at since or later, and before until
}

// leads returns a page of leads, newest first, older than the one that the cursor before stands
// for ("" for the newest). For since and until see firstSince.
func (q *queries) leads(f leadFilter, before string, limit int) (p listPage[lead], err error) {
	list := listQuery{columns: `SELECT ` + leadColumns + ` FROM leads`, table: `leads`, key: `seq`}
	list.byIndex(f.owner.narrow(``, `account_id`))
	if f.kind != "" {
		list.byIndex(` AND type = ?`, []any{f.kind})
	}
	if err := q.scopeTimes(&list, `created_at`, f.since, f.until); err != nil {
		return p, err
	}
	return readNumbered(q, list, "lead", before, limit, (*lead).dest, func(l lead) int64 { return l.seq })
}

// eraseLeads removes every lead of an owner that has the address, compared without case, and
// returns how many there were. It does so in short transactions, so that other writes go on in
// between; after an error, those that are left are found again. Until the WAL is
// truncated, it still holds the address.
func (s *store) eraseLeads(ctx context.Context, o owner, email string) (erased int64, err error) {
	numbers, err := s.within(ctx).leadsOfAddress(o, email)
	if err == nil {
		// All rows are overwritten before the first is deleted: deleting moves rows to other pages,
		// and SQLite leaves the bytes where a row was.
		_, err = s.changeLeads(ctx, numbers, (*tx).blankLeads)
	}
	if err != nil {
		return 0, err
	}
	return s.changeLeads(ctx, numbers, (*tx).deleteLeads)
}

// leadsAtOnce is how many leads one transaction erases or purges: so few that other writes wait less than 100 ms
// whatever leads hold (BenchmarkErase).
const leadsAtOnce = 200

// changeLeads calls change with the leads of these numbers, leadsAtOnce in each transaction, and returns how many it
// has changed.
func (s *store) changeLeads(
	ctx context.Context, numbers []int64, change func(t *tx, numbers []int64) int64,
) (changed int64, err error) {
	type progress struct {
		done    int
		changed int64
	}
	end, err := inParts(ctx, s.writer, progress{}, func(t *tx, at progress) (progress, bool, error) {
		next := min(at.done+leadsAtOnce, len(numbers))
		return progress{next, at.changed + change(t, numbers[at.done:next])}, next < len(numbers), nil
	})
	return end.changed, err
}

// leadsOfAddress returns the numbers of an owner's leads that have the address, and of those that were overwritten when
// erasing was interrupted. They are among those that have the digest of the address, and among those without one,
// whose address somebody has changed with the sqlite3 shell.
func (q *queries) leadsOfAddress(o owner, email string) (numbers []int64, err error) {
	half, none := addressDigest(email), make([]byte, 16)
	query, args := o.narrow(`SELECT seq, email FROM leads WHERE (digest >= ? AND digest <= ? OR digest = ?)`,
		`+account_id`, slices.Concat(half, none[:8]), slices.Concat(half, bytes.Repeat([]byte{0xff}, 8)), none)
	err = q.each(query, args, func(scan func(...any) error) error {
		var seq int64
		var found string
		err := scan(&seq, &found)
		if err == nil && (emailKey(found) == emailKey(email) || strings.Trim(found, "x") == "") {
			numbers = append(numbers, seq) // else the digest matched by chance, or is missing
		}
		return err
	})
	return numbers, err
}

// blankLeads overwrites the personal data in leads, in place: the values that it writes have the same length.
func (t *tx) blankLeads(numbers []int64) int64 {
	return t.exec(`UPDATE leads SET email = `+fillerOf("email", "x")+`, source = `+fillerOf("source", "x")+`,
		page = '/' || substr(`+fillerOf("page", "x")+`, 2),
		fields = '{' || substr(`+fillerOf("fields", " ")+`, 3) || '}' WHERE seq IN (SELECT value FROM json_each(?))`,
		string(encodeJSON(numbers)))
}

// deleteLeads removes leads that blankLeads has overwritten, and returns how many.
func (t *tx) deleteLeads(numbers []int64) (deleted int64) {
	return t.exec(`DELETE FROM leads WHERE seq IN (SELECT value FROM json_each(?))`, string(encodeJSON(numbers)))
}

// A similarAddress is an address that resembles another one.
type similarAddress struct {
	Email string `json:"email"`
	Leads int    `json:"leads"` // how many have it
	ID    string `json:"id"`    // of the last of them
}

// similarAddresses returns up to max addresses in an owner's leads that resemble an address
// (similarEmailKey) but are not removed by erasing it; more reports whether there are others. It reads
// all leads, which takes a second or two for a million.
func (q *queries) similarAddresses(o owner, email string, max int) (similar []similarAddress, more bool, err error) {
	loose, exact := similarEmailKey(email), emailKey(email)
	query, args := o.narrow(`SELECT id, email FROM leads WHERE 1`, `account_id`)
	err = q.each(query+` ORDER BY seq`, args, func(scan func(...any) error) error {
		var found similarAddress
		if err := scan(&found.ID, &found.Email); err != nil {
			return err
		}
		if similarEmailKey(found.Email) != loose || emailKey(found.Email) == exact {
			return nil
		}
		at := slices.IndexFunc(similar, func(s similarAddress) bool { return s.Email == found.Email })
		switch {
		case at >= 0:
			similar[at].Leads++
			similar[at].ID = found.ID
		case len(similar) < max:
			similar = append(similar, similarAddress{Email: found.Email, Leads: 1, ID: found.ID})
		default:
			more = true
		}
		return nil
	})
	return similar, more, err
}

// purgeLeads removes the leads of an owner that were posted before a time, and returns how many. It first reads all
// leads.
func (s *store) purgeLeads(ctx context.Context, o owner, before stamp) (purged int64, err error) {
	query, args := o.narrow(`SELECT seq FROM leads WHERE created_at < ?`, `account_id`, before)
	numbers, err := collect(s.within(ctx), query, args, func(seq *int64) []any { return []any{seq} })
	if err != nil {
		return 0, err
	}
	return s.changeLeads(ctx, numbers, (*tx).deleteLeads)
}

// countLeads returns how many leads of an owner were created before a time.
func (q *queries) countLeads(o owner, before stamp) (n int64, err error) {
	query, args := o.narrow(`SELECT count(*) FROM leads WHERE created_at < ?`, `account_id`, before)
	return oneValue[int64](q, query, args...)
}

// bucketLeads is charged to the account of the site that sends a lead.
const bucketLeads = "leads"

// A leadAPI serves the endpoints of leads.
type leadAPI struct {
	*server
	trapped trappedLeads
	main    *cache[string, string] // the id of the main account, by ""
}

func leadModule(s *server) module {
	a := &leadAPI{server: s, trapped: trappedLeads{ids: map[[sha256.Size]byte]string{}},
		main: newCache[string, string](1)}
	return module{routes: []route{
		{pattern: "POST /widget/leads", token: tokenOptional, scope: scopeWriteLeads, origin: originListed,
			address: "leads", bucket: bucketLeads, creates: true, members: []extraMember{{"ok", false}},
			endpoint: owned(s, readLead, a.createLead)},
		{pattern: "GET /leads", scope: scopeLeads, question: true, endpoint: owned(s, readLeadQuery, s.listLeads)},
		{pattern: "POST /leads/erase", scope: scopeWriteLeads, endpoint: owned(s, readEraseRequest, s.eraseLeads)},
	}}
}

// A leadRequest is what a form sends. Members that are not listed here are ignored.
type leadRequest struct {
	lead
	website string // an input that only bots see, and fill in
}

func readLead(in *input) (r *leadRequest) {
	r = new(leadRequest)
	// A word of your own for the kind of lead; `newsletter` is the newsletter form.
	r.Type = in.text("type", required, 32, checkLeadType)
	in.trim("email")
	// One address, without a display name. White space around it, also no-break or without width, is dropped; the
	// domain is kept in lower case.
	r.Email = normalEmail(in.text("email", required, 254, checkEmail))
	r.Source = nilIfEmpty(in.text("source", optional, 100, nil)) // Where on the site the form is, as `footer`.
	// The path of the page (`location.pathname`), kept without query and fragment.
	page, _, _ := strings.Cut(in.text("page", optional, 2048, checkPage), "?")
	page, _, _ = strings.Cut(page, "#")
	r.Page = nilIfEmpty(page)
	// What else the form asks for: texts by name, with line breaks and tabs allowed, 8 KiB in all. Kept, listed,
	// exported and erased with the lead; never in events.
	r.Fields = in.fields("fields")
	// A trap for bots: put a field of this name where no person sees it. Filled in, the answer looks like a success,
	// and nothing is kept but the count `trapped` of the account's statistics.
	r.website = in.text("website", optional, 2048, nil)
	return r
}

// A leadReceipt is the answer once a lead is on disk.
type leadReceipt struct {
	OK bool `json:"ok" is:"=true"` // Always `true`.

	// The id of the lead. The same submission within 10 minutes has the same id.
	ID string `json:"id" is:"lead"`
}

// Send a lead.
//
// Keeps what a form of a site sent: an answer of 200 means that it is on disk. A request from a browser needs a
// listed `Origin`, and the lead belongs to that origin's account; one without an `Origin` is no browser's, and its
// lead belongs to the main account. With a token that has `leads:write` the lead belongs to the token's account,
// whatever the `Origin`, and no address is limited: so a server files what its own forms have sent. The same
// submission within 10 minutes is one lead with one id, so a retry needs no `Idempotency-Key`.
func (a *leadAPI) createLead(ctx context.Context, c *call, of owner, r *leadRequest) (*leadReceipt, error) {
	// What a bot sent is answered in the same way and not stored.
	l, err := r.lead, error(nil)
	switch l.AccountID = c.origin.account; {
	case c.caller != nil:
		l.AccountID, l.sender = c.narrowToOne(of).account, actorToken(c)
	case l.AccountID == "":
		l.AccountID, err = a.main.loadBy(a.store, "", func(string) (string, error) { return a.store.mainAccount() })
	}
	if err != nil {
		return nil, err
	}
	return create(ctx, a.server, c, func(t *tx) (*leadReceipt, error) {
		t.dropsNothing()
		if c.caller != nil {
			if err := t.openAccount(l.AccountID); err != nil {
				return nil, err
			}
		}
		add := t.addLead
		if r.website != "" {
			add = func(l lead) (string, error) { return a.trapped.noteTrapped(t, l, r.website), nil }
		}
		id, err := add(l)
		return &leadReceipt{OK: true, ID: id}, err
	})
}

// trappedLeads remembers in memory which ids the submissions of bots were answered with, so that
// one that is sent again gets the same id for dedupeWindow, as a lead that was kept does: a new
// id would tell the bot that it was found out. When it is full, it forgets arbitrary ones.
type trappedLeads struct {
	mu  sync.Mutex
	ids map[[sha256.Size]byte]string // by a hash of all that was sent
}

// noteTrapped looks like addLead to the sender of a lead: it returns an id, and a new submission
// waits for a commit. But it keeps nothing of the lead in the database but that there was one.
func (m *trappedLeads) noteTrapped(t *tx, l lead, website string) (id string) {
	key := sha256.Sum256(append(l.digest(), website...))
	m.mu.Lock()
	defer m.mu.Unlock()
	if again, ok := m.ids[key]; ok && closerThan(dedupeWindow, idTime("lead", again), t.exact) {
		return again
	}
	makeRoom(m.ids, key, maxTrappedLeads)
	id = t.newID("lead")
	m.ids[key] = id
	t.countTrapped(l.AccountID)
	return id
}

const maxTrappedLeads = 10_000 // more than one account's limit lets in within dedupeWindow

// A leadQuery says which leads are asked for.
type leadQuery struct {
	leadFilter
	pageQuery
}

func readLeadQuery(in *input) (q *leadQuery) {
	q = new(leadQuery)
	q.kind = in.parameter("type", checkLeadType) // Only this kind.
	q.since = in.moment("since")                 // Only leads since this time, included.
	q.until = in.moment("until")                 // Only leads until this time, itself not included.
	q.pageQuery = in.pageBySeq("lead")
	return q
}

// List leads.
//
// Lists leads, newest first. One request goes through at most 10,000 rows and has two seconds, waiting included: where
// a filter finds little, a page may be short or empty and yet have a `next_cursor`.
func (s *server) listLeads(ctx context.Context, _ *call, of owner, q *leadQuery) (*list[lead], error) {
	q.owner = of
	return showRows(s.store.within(ctx).leads(q.leadFilter, q.before, q.limit))
}

// An eraseRequest is whose leads to remove. Members that are not listed here are ignored.
type eraseRequest struct{ email string }

func readEraseRequest(in *input) *eraseRequest {
	in.trim("email")
	// The address, compared without case, and without white space around it.
	return &eraseRequest{in.text("email", required, 254, checkEmail)}
}

// The erasedLeads are what was removed.
type erasedLeads struct {
	Erased int64 `json:"erased"` // How many leads were removed.
}

// Erase an address.
//
// Removes every lead of an address, compared without case, in that spelling. It is neither in the database file nor in
// its write-ahead log afterwards.
func (s *server) eraseLeads(ctx context.Context, _ *call, of owner, r *eraseRequest) (*erasedLeads, error) {
	erased, err := s.store.eraseLeads(ctx, of, r.email)
	s.scrubWAL(5 * time.Second) // also after an error: part of them may be erased
	return &erasedLeads{erased}, err
}

// fields reads the optional member with the other inputs of a form: an object of texts. It
// returns the object with its names sorted, so that the same fields are the same text; nil if
// there are none or one is wrong.
func (in *input) fields(name string) json.RawMessage {
	v := in.member(reading{name: name, kind: jsonObject, high: maxLeadFields, each: maxLeadFieldValue})
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

// The options of these commands.
var (
	optOlderThan = option{name: "older-than", value: "DURATION",
		help: "remove leads that are older than this, as 365d"}
)

// The commands on leads that are names for routes.
var leadRouteCommands = []routeCommand{
	{name: "lead list", route: "GET /leads", rows: &listCommand{
		columns: "ID POSTED=created_at TYPE EMAIL SOURCE PAGE FIELDS ACCOUNT=account_id"}},
	{name: "lead export", route: "GET /leads", help: "print all leads, one JSON object a line or CSV",
		rows: &listCommand{export: true, columns: "id account_id type email source page fields created_at"}},
}

// The other commands on leads.
var leadCommands = []command{
	{"lead erase", "EMAIL", "remove every lead of an address, compared without case, from the database file and " +
		"its write-ahead log, and list addresses that resemble it",
		[]option{optLitestream.says("leave the write-ahead log to Litestream, which truncates it later"), optUnasked},
		leadsErase},
	{"lead purge", "", "remove leads that are older than a given age",
		[]option{optOlderThan, optDryRun.says("only say how many leads would be removed"), optUnasked}, leadsPurge},
}

func leadsErase(e *env) error {
	email := trimUnseen(e.args[0])
	if _, detail := checkEmail.of(email); detail != "" {
		return usageError(fmt.Sprintf("%q is no e-mail address: %s", printable(email), detail))
	}
	err := e.confirm(func(q *queries) (string, error) {
		numbers, err := q.leadsOfAddress(anyAccount, email)
		if len(numbers) == 0 {
			return "", err
		}
		return "removes " + countOf(len(numbers), "lead") + " of " + email + ", of all accounts", err
	})
	if err != nil {
		return err
	}
	return e.withStore(func(st *store) error {
		erased, err := st.eraseLeads(e.ctx, anyAccount, email)
		if err != nil {
			return err
		}
		note, copies := e.eraseFromWAL(st, "the address", erased)
		similar, more, err := st.within(e.ctx).similarAddresses(anyAccount, email, maxSimilar)
		if err != nil {
			return fmt.Errorf("%d erased, but not compared with other addresses: %w", erased, err)
		}
		return e.print(map[string]any{
			"erased": erased, "note": note, "copies": copies,
			"similar": append([]similarAddress{}, similar...), "more_similar": more,
		}, countOf(erased, "lead")+" erased; "+note+similarText(similar, more))
	})
}

// similarText returns the lines on addresses that lead erase has left, for the operator to judge.
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
	if !e.on("dry-run") {
		err := e.confirm(func(q *queries) (string, error) {
			n, err := q.countLeads(anyAccount, before)
			if n == 0 {
				return "", err
			}
			return fmt.Sprintf("removes %s that came before %s, of all accounts", countOf(n, "lead"), before), err
		})
		if err != nil {
			return err
		}
	}
	return e.withStore(func(st *store) error {
		if e.on("dry-run") {
			n, err := st.countLeads(anyAccount, before)
			if err != nil {
				return err
			}
			return e.print(map[string]any{"would_purge": n, "dry_run": true},
				countOf(n, "lead")+" would be removed; this was a dry run: nothing was changed")
		}
		purged, err := st.purgeLeads(e.ctx, anyAccount, before)
		if err != nil {
			return err
		}
		return e.print(map[string]int64{"purged": purged}, countOf(purged, "lead")+" removed")
	})
}
