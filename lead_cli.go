package main

import (
	"fmt"
	"strconv"
)

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
