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

func leadWing(s *server) wing {
	a := &leadAPI{server: s, trapped: trappedLeads{ids: map[[sha256.Size]byte]string{}},
		main: newCache[string, string](1)}
	return wing{routes: []route{
		{pattern: "POST /widget/leads", token: tokenOptional, scope: scopeWriteLeads, origin: originListed,
			address: "leads", bucket: bucketLeads, creates: true, members: []extraMember{{"ok", false}},
			run: a.createLead},
		{pattern: "GET /leads", token: tokenRequired, scope: scopeLeads, question: true, run: s.listLeads},
		{pattern: "POST /leads/erase", token: tokenRequired, scope: scopeWriteLeads, run: s.eraseLeads},
	}}
}

// createLead stores what a site's form or an account's software sent; it is on disk before the answer. What a bot
// sent is answered in the same way and not stored. The lead is of the account of the token, else the one that lists the
// Origin, else the main account.
func (a *leadAPI) createLead(ctx context.Context, c *call) (any, error) {
	l, website := readLead(c.in)
	of, err := a.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	switch l.AccountID = c.origin.account; {
	case c.caller != nil:
		l.AccountID, l.sender = c.oneOwner(of).account, actorToken(c)
	case l.AccountID == "":
		l.AccountID, err = a.main.loadBy(a.store, "", func(string) (string, error) { return a.store.mainAccount() })
	}
	if err != nil {
		return nil, err
	}
	return create(ctx, a.server, c, func(t *tx) (*leadResponse, error) {
		t.quiet()
		if c.caller != nil {
			if err := t.openAccount(l.AccountID); err != nil {
				return nil, err
			}
		}
		add := t.addLead
		if website != "" {
			add = func(l lead) (string, error) { return a.trapped.pretend(t, l, website), nil }
		}
		id, err := add(l)
		return &leadResponse{OK: true, ID: id}, err
	})
}

// readLead reads what a form sends (contract, section 3). website is an input that only bots see, and fill in.
func readLead(in *input) (l lead, website string) {
	l.Type = in.text("type", required, 32, checkLeadType)
	in.trim("email")
	l.Email = normalEmail(in.text("email", required, 254, checkEmail))
	l.Source = nilIfEmpty(in.text("source", optional, 100, anyText))
	page, _, _ := strings.Cut(in.text("page", optional, 2048, checkPage), "?")
	page, _, _ = strings.Cut(page, "#")
	l.Page = nilIfEmpty(page)
	l.Fields = in.fields("fields")
	return l, in.text("website", optional, 2048, anyText)
}

type leadResponse struct {
	OK bool   `json:"ok"`
	ID string `json:"id"`
}

// trappedLeads remembers in memory which ids the submissions of bots were answered with, so that
// one that is sent again gets the same id for dedupeWindow, as a lead that was kept does: a new
// id would tell the bot that it was found out. When it is full, it forgets arbitrary ones.
type trappedLeads struct {
	mu  sync.Mutex
	ids map[[sha256.Size]byte]string // by a hash of all that was sent
}

// pretend looks like addLead to the sender of a lead: it returns an id, and a new submission
// waits for a commit. But it keeps nothing of the lead in the database but that there was one.
func (m *trappedLeads) pretend(t *tx, l lead, website string) (id string) {
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

func (s *server) listLeads(ctx context.Context, c *call) (any, error) {
	filter := leadFilter{kind: c.in.parameter("type", checkLeadType),
		since: c.in.moment("since"), until: c.in.moment("until")}
	page := c.in.pageBySeq("lead")
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	filter.owner = of
	return showRows(s.store.within(ctx).leads(filter, page.before, page.limit))
}

type eraseResponse struct {
	Erased int64 `json:"erased"`
}

// eraseLeads removes every lead of an address, then truncates the write-ahead log, which
// still holds the address.
func (s *server) eraseLeads(ctx context.Context, c *call) (any, error) {
	c.in.trim("email")
	email := c.in.text("email", required, 254, checkEmail)
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	erased, err := s.store.eraseLeads(ctx, of, email)
	s.scrubWAL(5 * time.Second) // also after an error: part of them may be erased
	return &eraseResponse{erased}, err
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
