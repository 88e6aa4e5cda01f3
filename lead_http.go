package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"
)

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
