package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Manual journals of Xero, as they are written and read.

// xeroJournals is the body of requests about manual journals.
type xeroJournals struct {
	ManualJournals []xeroJournal
}

type xeroJournal struct {
	ManualJournalID string `json:",omitempty"`
	Narration       string
	Date            string `json:",omitempty"`
	LineAmountTypes string `json:",omitempty"`
	Status          string
	JournalLines    []xeroLine `json:",omitempty"`
}

type xeroLine struct {
	LineAmount  json.RawMessage // debit positive, credit negative; with two decimals
	AccountCode string
	Description string
	TaxType     string
	Tracking    []xeroTracking `json:",omitempty"`
}

type xeroTracking struct{ Name, Option string }

func (j xeroJournal) body() string {
	return strings.TrimSpace(string(encodeJSON(xeroJournals{[]xeroJournal{j}})))
}

// encode implements ledger.
func (x *xeroLedger) encode(entry *bookEntry) string {
	j := xeroJournal{Narration: entry.Narration, Date: entry.Date, LineAmountTypes: "Inclusive"}
	j.Status = "DRAFT"
	if entry.Status == entryPosted {
		j.Status = "POSTED"
	}
	for _, line := range entry.Lines {
		amount := formatAmount(line.Debit)
		if line.Credit > 0 {
			amount = "-" + formatAmount(line.Credit)
		}
		l := xeroLine{json.RawMessage(amount), line.Account, line.Text, cmp.Or(line.Tax, xeroNoTax), nil}
		if line.CostCenter != "" {
			category, option, _ := strings.Cut(line.CostCenter, ":")
			l.Tracking = []xeroTracking{{category, option}}
		}
		j.JournalLines = append(j.JournalLines, l)
	}
	return j.body()
}

// post implements ledger. key has at most 128 characters.
func (x *xeroLedger) post(
	ctx context.Context, s *ledgerSession, _ *bookEntry, body, key string,
) (id string, err error) {
	list, err := x.ask(ctx, s, "ManualJournals", outboundRequest{
		method: http.MethodPut,
		url:    "/ManualJournals",
		header: http.Header{"Idempotency-Key": {key}},
		body:   []byte(body),
	})
	if err != nil {
		return "", err
	}
	if len(list) != 1 {
		return "", malformedLedger(http.StatusOK)
	}
	if len(listMember(&list[0], "ValidationErrors")) > 0 {
		return "", xeroInvalid(http.StatusOK, &list[0])
	}
	if id = textMember(&list[0], "ManualJournalID", maxXeroID); id == "" {
		return "", malformedLedger(http.StatusOK)
	}
	return id, nil
}

// find implements ledger. It looks at the days before and after too, and at deleted entries; one that is not
// deleted goes before one that is. If there are more than maxXeroPages can hold, nobody knows: that is an
// error.
func (x *xeroLedger) find(
	ctx context.Context, s *ledgerSession, entry *bookEntry, syncKey string,
) (*bookedEntry, error) {
	day, err := time.Parse(time.DateOnly, entry.Date)
	if err != nil {
		return nil, &ledgerError{reason: "date", refused: true}
	}
	at := func(days int) string { return day.AddDate(0, 0, days).Format("DateTime(2006, 1, 2)") }
	query := url.Values{
		"where":    {fmt.Sprintf("Date >= %s AND Date < %s", at(-1), at(2))},
		"order":    {"Date ASC"},
		"pageSize": {strconv.Itoa(xeroPage)},
	}
	var deleted *bookedEntry
	for page := 1; page <= maxXeroPages; page++ {
		query.Set("page", strconv.Itoa(page))
		path := "/ManualJournals?" + strings.ReplaceAll(query.Encode(), "+", "%20")
		list, err := x.ask(ctx, s, "ManualJournals", outboundRequest{method: http.MethodGet, url: path})
		if err != nil {
			return nil, err
		}
		for _, v := range list {
			if !hasSyncKey(rawMember(&v, "Narration"), syncKey) {
				continue
			}
			booked, ok := parseXeroJournal(&v)
			switch {
			case !ok:
				return nil, malformedLedger(http.StatusOK)
			case booked.Deleted:
				deleted = booked
			case len(booked.Entry.Lines) == 0: // the list is only a summary
				return x.read(ctx, s, booked.ID)
			default:
				return booked, nil
			}
		}
		if len(list) < xeroPage {
			return deleted, nil
		}
	}
	return nil, &ledgerError{status: http.StatusOK, reason: "too_many_entries"}
}

// read implements ledger.
func (x *xeroLedger) read(ctx context.Context, s *ledgerSession, id string) (*bookedEntry, error) {
	path := "/ManualJournals/" + url.PathEscape(id)
	list, err := x.ask(ctx, s, "ManualJournals", outboundRequest{method: http.MethodGet, url: path})
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(list) == 1 {
		if booked, ok := parseXeroJournal(&list[0]); ok {
			return booked, nil
		}
	}
	return nil, malformedLedger(http.StatusOK)
}

// parseXeroJournal reads a manual journal. It reports false for one that can't be understood. Its amounts
// include VAT, in whatever way Xero shows them.
func parseXeroJournal(v *jsonValue) (*bookedEntry, bool) {
	status := rawMember(v, "Status")
	date, ok := xeroDate(rawMember(v, "Date"))
	booked := &bookedEntry{
		ID:      textMember(v, "ManualJournalID", maxXeroID),
		Deleted: status == "VOIDED" || status == "DELETED",
		Draft:   status == "DRAFT",
		Entry:   bookEntry{Date: date, Narration: rawMember(v, "Narration"), Status: entryPosted},
	}
	if booked.Draft {
		booked.Entry.Status = entryDraft
	}
	if !ok || booked.ID == "" || status == "" {
		return nil, false
	}
	kind := rawMember(v, "LineAmountTypes")
	for _, l := range listMember(v, "JournalLines") {
		line, ok := parseXeroLine(&l, kind)
		if !ok {
			return nil, false
		}
		if line != (entryLine{}) { // Xero may keep blank lines
			booked.Entry.Lines = append(booked.Entry.Lines, line)
		}
	}
	return booked, true
}

// parseXeroLine reads a line of a manual journal whose amounts are "Inclusive", "Exclusive" or "NoTax".
func parseXeroLine(v *jsonValue, kind string) (line entryLine, ok bool) {
	amount := int64(0)
	if m, has := v.member("LineAmount"); has {
		if amount, ok = hundredths(m); !ok {
			return line, false
		}
	}
	if m, has := v.member("TaxAmount"); has && kind == "Exclusive" {
		tax, ok := hundredths(m)
		if !ok {
			return line, false
		}
		amount += tax
	}
	line.Debit, line.Credit = max(amount, 0), max(-amount, 0)
	line.Account, line.Text = rawMember(v, "AccountCode"), rawMember(v, "Description")
	if line.Tax = rawMember(v, "TaxType"); line.Tax == xeroNoTax || kind == "NoTax" {
		line.Tax = ""
	}
	var centers []string
	for _, t := range listMember(v, "Tracking") {
		centers = append(centers, rawMember(&t, "Name")+":"+rawMember(&t, "Option"))
	}
	line.CostCenter = strings.Join(centers, "; ")
	return line, true
}

// withdraw implements ledger. The description wants a narration in every journal, so the entry is read
// first, and is left alone if it has been posted meanwhile.
func (x *xeroLedger) withdraw(ctx context.Context, s *ledgerSession, id string) error {
	booked, err := x.read(ctx, s, id)
	switch {
	case err != nil:
		return err
	case booked == nil || booked.Deleted:
		return nil
	case !booked.Draft:
		return &ledgerError{reason: "not_a_draft", refused: true}
	}
	deleted := xeroJournal{ManualJournalID: id, Narration: booked.Entry.Narration, Status: "DELETED"}
	list, err := x.ask(ctx, s, "ManualJournals", outboundRequest{
		method: http.MethodPost,
		url:    "/ManualJournals/" + url.PathEscape(id),
		body:   []byte(deleted.body()),
	})
	switch {
	case err != nil:
		return err
	case len(list) == 1 && len(listMember(&list[0], "ValidationErrors")) > 0:
		return xeroInvalid(http.StatusOK, &list[0])
	case len(list) != 1 || rawMember(&list[0], "Status") != "DELETED":
		return malformedLedger(http.StatusOK)
	}
	return nil
}
