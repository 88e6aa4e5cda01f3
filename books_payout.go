package main

import "slices"

// Entries of payouts (contract, section 12). What leaves a clearing account is what is paid out, the fees and the
// tax on fees; sales, refunds and disputes were booked by their days. An entry books the fees. Only where the
// mapping names an account of transit it also books what is paid out: else the accountant does, by the bank's
// statement.

// payoutSubject returns a part of a payout as the subject of an entry on a date.
func payoutSubject(p *payout, part bookPart, date businessDate) newSubject {
	key := "widgetd:" + p.AccountID + ":payout:" + string(p.Provider) + ":" + valueOr(p.ProviderID, "")
	if part != partPayout {
		key += ":" + string(part)
	}
	return newSubject{exportSubject{Date: date, Currency: p.Currency, PayoutID: &p.ID, Part: &part}, key}
}

// wantsPayout reports whether a payout belongs in the books of a connection, as wants does for a sum of a day: by the
// switches of the day on which it arrives. It alone decides that.
func (c *bookConnection) wantsPayout(p *payout) bool {
	_, tests := c.switchesOn(*p.ArrivalDate)
	return p.Live || tests
}

// payoutSubjects returns what toSend has of payouts. What undoes one is dated today.
func (q *queries) payoutSubjects(c *bookConnection, today businessDate) (all []newSubject, err error) {
	arrived, err := q.payoutsToSend(c, today, daysAtOnce)
	if err != nil {
		return nil, err
	}
	for i := range arrived {
		all = append(all, payoutSubject(&arrived[i], partPayout, *arrived[i].ArrivalDate))
	}
	failed, err := q.payoutsToUndo(c, daysAtOnce)
	for i := range failed {
		all = append(all, payoutSubject(&failed[i], partUndo, max(today, *failed[i].ArrivalDate)))
	}
	return all, err
}

// requestPayout asks for the export of a payout to a connection, and returns it. A payout that has one keeps it,
// unless its entry was reversed: then it gets a further revision. Errors: errBooksConnection, books_connection_state,
// errPayout, errUnread.
func requestPayout(t *tx, o owner, connectionID, payoutID string) (*bookExport, error) {
	c, err := t.usedBookConnection(o, connectionID)
	if err != nil {
		return nil, err
	}
	if c.OrganisationID == nil {
		return nil, errNoCompany
	}
	p, err := t.payout(ownedBy(c.AccountID), payoutID)
	if err != nil {
		return nil, err
	}
	if p.isUnread() {
		return nil, errUnread
	}
	of := payoutSubject(p, partPayout, *p.ArrivalDate)
	there, revision, err := includedExport(t, c, of.exportSubject)
	if there != nil || err != nil {
		return there, err
	}
	calendar, err := t.businessCalendar(c.AccountID)
	if err != nil {
		return nil, err
	}
	due := newStamp(later(t.now.Time, calendar.startOf(of.Date)))
	return newExport(t, c, of.exportSubject, of.key, revision, nil, due), nil
}

// mayReverse refuses to reverse the entry of a payout while another one counts that takes back a part of it. Errors:
// export_state.
func mayReverse(t *tx, x *bookExport) error {
	if x.PayoutID == nil || *x.Part != partPayout {
		return nil
	}
	undo := x.exportSubject
	undo.Part = new(bookPart(partUndo))
	there, _, err := includedExport(t, &bookConnection{ID: x.ConnectionID}, undo)
	if err == nil && there != nil {
		err = errExportState(x, "Another entry takes back a part of it, as the payout has failed: reverse that first.")
	}
	return err
}

// untilChanged reports whether a reason for which an export is held passes only by a change that makes the export due.
func untilChanged(reason string) bool {
	of := func(h payoutHold) bool { return h.reason == reason }
	return reason == heldNoMethod || reason != heldForeign && slices.ContainsFunc(payoutHolds, of)
}

// draftPayout makes the entry of a part of a payout, or says why there is none. Without either there is nothing to
// book; see wantsPayout.
func (q *queries) draftPayout(c *bookConnection, x *bookExport) (*bookEntry, []entryIssue, error) {
	p, err := q.payout(anyAccount, *x.PayoutID)
	if err != nil {
		return nil, nil, err
	}
	if *x.Part == partUndo {
		entry, err := q.draftUndo(c, x)
		return entry, nil, err
	}
	held := firstWhere(payoutHolds, func(h payoutHold) bool { return h.reason == string(valueOr(p.Reason, "")) })
	if held != nil {
		return nil, []entryIssue{{bookIssueReason(held.reason), held.text}}, nil
	}
	sums, err := q.payoutSums(p.ID)
	if err != nil {
		return nil, nil, err
	}
	entry, issues := buildPayout(c, p, x.Date, x.SyncKey, sums)
	if entry == nil || len(issues) > 0 || !c.wantsPayout(p) {
		return nil, issues, nil
	}
	issue, err := q.unbooked(c, p.ID)
	if issue != nil {
		return nil, []entryIssue{*issue}, err
	}
	return entry, nil, err
}

// unbooked returns why what is in a payout is not on the clearing accounts of a connection's books, nil if all is
// there: a day on which nothing is to be booked needs no entry.
func (q *queries) unbooked(c *bookConnection, payoutID string) (*entryIssue, error) {
	days, first, err := q.unbookedDays(c, payoutID)
	for _, d := range days {
		if d.Date == "" {
			return &entryIssue{heldNotPosted, "Something in the payout is not in the revenue of any day yet."}, nil
		}
		if d.Date < first {
			return &entryIssue{heldForeign, "The payout has money of " + d.Date +
				", which is before the first day in the books: book it by hand."}, nil
		}
		sums, err := q.revenueSums(c.AccountID, d.Date, d.Currency)
		if err != nil {
			return nil, err
		}
		entry, issues := buildEntry(c, d.Date, d.Currency, "", sums)
		if entry != nil || len(issues) > 0 {
			return &entryIssue{heldNotPosted,
				"The payout has money of " + d.Date + ", which is not in the books yet."}, nil
		}
	}
	return nil, err
}

// draftUndo makes the entry that takes back what the entry of a payout has booked as on its way; nil: it has not, or
// it does not count.
func (q *queries) draftUndo(c *bookConnection, x *bookExport) (*bookEntry, error) {
	of := x.exportSubject
	of.Part = new(bookPart(partPayout))
	last, err := q.lastExport(c.ID, of)
	if err != nil || last == nil || last.State != exportPosted || last.Reverses != nil {
		return nil, err
	}
	sent, err := last.sentEntry()
	if err != nil {
		return nil, err
	}
	sent.Lines = slices.DeleteFunc(sent.Lines, func(l entryLine) bool { return !l.Transfer })
	if len(sent.Lines) == 0 {
		return nil, nil
	}
	return reverseEntry(sent, x.EntryDate, x.SyncKey, valueOr(last.EntryID, last.ID)), nil
}

// buildPayout makes the entry of a payout from the sums of what is in it, as buildEntry does that of a day. Fees are
// booked whatever becomes of the payout, what is paid out only if that did not fail.
func buildPayout(
	c *bookConnection, p *payout, date businessDate, syncKey string, sums []payoutSum,
) (*bookEntry, []entryIssue) {
	if c.Mapping == nil {
		return nil, []entryIssue{{heldUnmapped, "No mapping was confirmed yet."}}
	}
	b := entryBuilder{product: c.product(), mapping: c.Mapping}
	for _, s := range sums {
		fee := bookMappingKind(ruleFee)
		if s.isDispute() {
			fee = ruleDisputeFee
		}
		clearing, method := b.clearingOf(p, (*string)(s.Method)), string(valueOr(s.Method, "no payment"))
		b.moveOut(clearing, fee, method, s.Fee, placeFee, placeFeesKept)
		b.moveOut(clearing, ruleFeeTax, method, s.Tax, placeFee, placeFeesKept)
		if b.mapping.ofKind(ruleTransit) != nil && !p.ended() {
			b.moveOut(clearing, ruleTransit, method, s.Net, placeTransit, placePaidOut)
		}
	}
	return b.entry(c, date, p.Currency, narration("Payout "+date+" "+p.Currency+" "+string(p.Provider), syncKey))
}

// ofKind returns the rule of a kind of which there is one at most, or nil.
func (m *bookMapping) ofKind(kind bookMappingKind) *mappingRule {
	return firstWhere(m.Lines, func(r mappingRule) bool { return r.Kind == kind })
}

// booksPayouts reports whether a mapping, if there is one, has rules for payouts.
func (m *bookMapping) booksPayouts() bool {
	return m != nil && slices.ContainsFunc(m.Lines, func(r mappingRule) bool { return payoutTexts[r.Kind] != "" })
}

// clearingOf returns the rule of the clearing account of what is in a payout by a method. What is of no method has one
// only where all methods of the provider that are mapped have the same. It notes why there is none.
func (b *entryBuilder) clearingOf(p *payout, method *string) (rule *mappingRule) {
	methods := p.methods()
	if method != nil {
		methods = []string{*method}
	}
	for _, m := range methods {
		switch other := b.mapping.clearing(m); {
		case other == nil:
		case rule != nil && rule.Account != other.Account:
			b.issues.add(heldNoMethod, "The payout has something of no payment, and the ways of paying have "+
				"different clearing accounts: book it by hand.")
		default:
			rule = other
		}
	}
	if rule == nil {
		b.issues.add(heldUnknownPayment, "No clearing account is named for payments by "+methods[0]+".")
	}
	return rule
}

// moveOut moves an amount of a method from a clearing account to the account of a kind of rule.
func (b *entryBuilder) moveOut(
	clearing *mappingRule, kind bookMappingKind, method string, amount int64, place, clearingPlace int,
) {
	if amount == 0 {
		return
	}
	rule := b.mapping.ofKind(kind)
	if rule == nil {
		b.issues.add(heldUnmapped, "No account is named for "+payoutTexts[kind]+".")
	}
	if len(b.issues) > 0 {
		return
	}
	to := b.line(place, rule, payoutTexts[kind], "", 0)
	from := b.line(clearingPlace, clearing, payoutTexts[kind]+", "+method, "", 0)
	to.net, from.net = to.net-amount, from.net+amount
	to.Transfer, from.Transfer = kind == ruleTransit, kind == ruleTransit
}

// payoutTexts are the texts of lines by the kinds of their rules.
var payoutTexts = map[bookMappingKind]string{ruleFee: "fees of the provider", ruleFeeTax: "tax on fees",
	ruleDisputeFee: "fees for disputes", ruleTransit: "on its way to the bank"}
