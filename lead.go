package main

import (
	"context"
	"strings"
	"time"
)

// leadRequest is the body of POST /widget/leads (contract, section 3).
type leadRequest struct {
	kind, email, source, page string
	trap                      bool // a bot filled in the member that no person sees
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

// createLead keeps what a site's form sent. 200 means that it is on disk.
func (s *server) createLead(ctx context.Context, c *call, q *leadRequest) (*leadResponse, error) {
	if q.trap {
		return &leadResponse{OK: true, ID: newID("lead", s.now())}, nil
	}
	return create(ctx, s, c, func(t *tx) (*leadResponse, error) {
		t.only()
		owner := c.origin.owner
		if owner == "" {
			var err error
			if owner, err = t.mainAccount(); err != nil {
				return nil, err
			}
		}
		id, err := t.addLead(lead{AccountID: owner, Type: q.kind, Email: q.email, Source: nilIfEmpty(q.source), Page: nilIfEmpty(q.page)})
		return &leadResponse{OK: true, ID: id}, err
	})
}

// leadsRequest is the query of GET /leads.
type leadsRequest struct {
	accountScope
	page page
}

func (q *leadsRequest) read(in *input) {
	q.accountScope.read(in)
	q.page = in.page("lead")
}

// listLeads answers GET /leads.
func (s *server) listLeads(_ context.Context, c *call, q *leadsRequest) (*list[lead], error) {
	owner, err := q.resolve(s, c)
	if err != nil {
		return nil, err
	}
	rows, err := s.store.leads(owner, q.page.before, q.page.limit+1)
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

// eraseLeads removes every lead of an address, and with a checkpoint the address
// from the write-ahead log too.
func (s *server) eraseLeads(ctx context.Context, c *call, q *eraseRequest) (*eraseResponse, error) {
	owner, err := q.resolve(s, c)
	if err != nil {
		return nil, err
	}
	var res eraseResponse
	if err := s.store.update(ctx, func(t *tx) (err error) {
		t.only()
		res.Erased, err = t.eraseLeads(owner, q.email)
		return err
	}); err != nil {
		return nil, err
	}
	s.forget(5 * time.Second)
	return &res, nil
}

// forget empties the write-ahead log of what was erased. What it can't do now, since
// somebody has a transaction open, tend does later.
func (s *server) forget(patience time.Duration) {
	if s.store.keepLog { // Litestream's, and it ends there with its retention
		return
	}
	again := s.traces.Swap(false)
	switch err := s.store.emptyLog(patience); {
	case err != nil && !again:
		s.log.Warn("an erased address stays in the write-ahead log until nobody has a transaction open", "error", err.Error())
		fallthrough
	case err != nil:
		s.traces.Store(true)
	case again:
		s.log.Info("the write-ahead log is empty: nothing that was erased is left in it")
	}
}
