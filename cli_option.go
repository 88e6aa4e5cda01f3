package main

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The options that the commands of several nouns share. A command for which one means
// something more precise gives it a text of its own with says.
var (
	optAddr = option{name: "addr", value: "HOST:PORT", def: "127.0.0.1:8080",
		help: "address to listen on, unless systemd passes a socket; unix:PATH is a Unix socket, which the group of " +
			"the user who runs it may use too",
		hasVariable: true}
	optOutboundAllow = option{name: "outbound-allow", value: "CIDR,…",
		help: "networks or addresses that webhooks may reach although they are not public, " +
			"with http too, on any port and by address; by default only public ones on port 443",
		hasVariable: true}
	optLitestream = option{name: "litestream", help: "Litestream replicates the database and checkpoints it",
		hasVariable: true}
	optLog = option{name: "log", value: "FORMAT", def: "text",
		help: "format of the log on standard error", hasVariable: true,
		words: func() []string { return []string{"text", "json"} }}
	optAccount = option{name: "account", value: accountPlaceholder, member: "account_id",
		help: "name or id of an account; where one is needed, by default the main account"}
	optOfAccount = optAccount.says("only those of this account; by default of all")

	optForce   = option{name: "force", help: "do what the command would otherwise refuse"}
	optUnasked = option{name: "force", asks: true,
		help: "do not ask, and leave out the warning where nobody can be asked"}
	optCSV   = option{name: "csv", help: "print CSV instead of JSON"}
	optLimit = option{name: "limit", value: "N", def: "50", help: "print at most this many rows"}
	optSince = option{name: "since", value: "TIME",
		help: "show only rows since a date or an RFC 3339 time, or of the last days, as 7d"}
	optUntil = option{name: "until", value: "TIME",
		help: "show only rows until the end of a date (UTC), or until an RFC 3339 time"}
	optAllRows = option{name: "limit", value: "N", help: "print at most this many rows; by default all",
		generalHelp: "print at most this many rows; by default 50, where lists are short all"}
	optDryRun  = option{name: "dry-run", help: "check everything, change nothing"}
	optFromDay = option{name: "from", value: "DATE", member: "from", reads: asDay,
		help: "first day; by default 30 days end with the last one"}
	optToDay = option{name: "to", value: "DATE", member: "to", reads: asDay,
		help: "last day, included; by default today"}
	optSecrets = option{name: "secrets", value: "FILE",
		help: "- for standard input, as your shell opens it (-secrets - <stripe.txt), or a file that only the user " +
			"who runs the command can read, with lines of what the provider gave: " +
			"key=rk_live_… for stripe; client_id=, client_secret=, subscription_key= and merchant_serial= for vipps"}
	optScope = option{name: "scope", value: "SCOPE,…", member: "scope", reads: asWords,
		help: "what the token may do, separated by commas", words: func() []string { return grantableScopes }}
)

// commaList returns the elements of an option's value, separated by commas or spaces.
func (e *env) commaList(name string) []string { return splitList(e.str(name)) }

func splitList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// parsePrefixes parses the value of an option: networks, and addresses as networks of one.
func parsePrefixes(option string, texts []string) (all []netip.Prefix, err error) {
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			address := parseAddress(text)
			if !address.IsValid() {
				return nil, usageError(fmt.Sprintf("-%s: %q is not an address or CIDR", option, text))
			}
			prefix = netip.PrefixFrom(address, address.BitLen())
		}
		all = append(all, prefix)
	}
	return all, nil
}

// pastTime parses a moment in the past: a date (its first second in UTC), an
// RFC 3339 time, or a duration back from now, as 7d. For "" it returns the zero stamp.
func (e *env) pastTime(text string) (stamp, error) {
	if age, err := parseSpan(text, true); err == nil {
		return newStamp(age.before(e.now())), nil
	}
	return e.parseTime(text)
}

// timeSpan returns the moments that -since and -until name, zero where they are not given. A date as -until
// means its end.
func (e *env) timeSpan() (since, until stamp, err error) {
	if since, err = e.pastTime(e.str("since")); err != nil {
		return since, until, fmt.Errorf("-since: %w", err)
	}
	if until, err = e.pastTime(e.str("until")); err != nil {
		return since, until, fmt.Errorf("-until: %w", err)
	}
	if _, isDate := parseDate(e.str("until")); isDate {
		until = until.after(24 * time.Hour)
	}
	return since, until, nil
}

// date returns the start in UTC of the day that an option names, or the zero time if it is not given.
// Errors: usageError.
func (e *env) date(name string) (time.Time, error) {
	text := e.str(name)
	if text == "" {
		return time.Time{}, nil
	}
	day, ok := parseDate(text)
	if !ok {
		return time.Time{}, usageError(fmt.Sprintf("-%s must be a date, YYYY-MM-DD, not %q", name, text))
	}
	return day.Time, nil
}

// fromTo returns the days that -from and -to name, as date does. Errors: usageError.
func (e *env) fromTo() (from, to time.Time, err error) {
	if from, err = e.date("from"); err == nil {
		to, err = e.date("to")
	}
	return from, to, err
}

// choice returns an option that is one of a few words; "" means that it was not given. Errors: usageError.
func (e *env) choice(name string, words []string) (string, error) {
	word := e.str(name)
	if word == "" || slices.Contains(words, word) {
		return word, nil
	}
	return "", unknownWord("-"+name+": there is no", word, words)
}

// unknownWord returns a usageError for a word that is none of those that are known: it names the one that was most
// likely meant, else all. what comes before the word.
func unknownWord(what, word string, known []string) error {
	if meant, ok := nearest(word, known); ok {
		return usageError(fmt.Sprintf("%s %q: did you mean %s?", what, printable(word), meant))
	}
	return usageError(fmt.Sprintf("%s %q: take one of %s", what, printable(word), strings.Join(known, ", ")))
}

// filterID returns an option that names a row to filter by; "" means that it was not given.
// A malformed id is a usageError, because it would silently match nothing.
func (e *env) filterID(name, prefix string) (string, error) {
	id := e.str(name)
	switch {
	case id == "" || validID(prefix, id):
		return id, nil
	case len(idEnd(prefix, id)) >= leastIDEnd:
		return "", fmt.Errorf("-%s: no id of the kind %s_… ends in %q", name, prefix, id)
	}
	const text = "-%s: %q is not an id of the kind %s_…, nor the end of one, of %d or more symbols"
	return "", usageError(fmt.Sprintf(text, name, printable(id), prefix, leastIDEnd))
}

// A span is a length of time as options give it: calendar years plus a duration.
type span struct {
	years int
	rest  time.Duration
}

// after returns the time a span later than t.
func (s span) after(t time.Time) time.Time { return t.AddDate(s.years, 0, 0).Add(s.rest) }

// before returns the time a span earlier than t.
func (s span) before(t time.Time) time.Time { return t.AddDate(-s.years, 0, 0).Add(-s.rest) }

const maxSpanDays = 36500 // about a hundred years

// parseSpan parses a whole number of days, weeks or calendar years, as "365d", "52w" or "1y", of
// at most a hundred years; withHours allows "720h" too. Minutes are refused, not least because
// "12m" would be taken for months. Errors: usageError.
func parseSpan(s string, withHours bool) (span, error) {
	units := map[string]struct {
		most int
		span func(n int) span
	}{
		"d": {maxSpanDays, func(n int) span { return span{rest: days(n)} }},
		"w": {maxSpanDays / 7, func(n int) span { return span{rest: days(7 * n)} }},
		"y": {100, func(n int) span { return span{years: n} }},
	}
	example := "days, weeks or years, as 365d, 52w or 1y"
	if withHours {
		hours := units["d"]
		hours.most *= 24
		hours.span = func(n int) span { return span{rest: time.Duration(n) * time.Hour} }
		units["h"] = hours
		example = "hours, days, weeks or years, as 720h, 365d, 52w or 1y"
	}
	if s != "" {
		last := len(s) - 1
		unit, known := units[s[last:]]
		if n, err := strconv.Atoi(s[:last]); err == nil && known && n > 0 && n <= unit.most {
			return unit.span(n), nil
		}
	}
	return span{}, usageError(fmt.Sprintf("%q is not a duration: write %s", s, example))
}

// parseTime parses a date (meaning its first second in UTC), an RFC 3339 time, or a span from
// now ("365d"). For "" it returns the zero stamp. Errors: usageError.
func (e *env) parseTime(s string) (stamp, error) {
	if day, ok := parseDate(s); ok {
		return day, nil
	}
	if t, ok := parseStamp(s); ok || s == "" {
		return t, nil
	}
	length, err := parseSpan(s, false)
	if err == nil {
		return newStamp(length.after(e.now())), nil
	}
	if s[0] >= '0' && s[0] <= '9' && strings.IndexFunc(s, unicode.IsPunct) < 0 { // neither date nor time
		return stamp{}, err
	}
	return stamp{}, usageError(fmt.Sprintf(
		"%q is not a time from 1970 to %d, such as 2027-01-31, 2027-01-31T12:00:00Z or 365d", s, lastYear))
}

// parseEnd is parseTime for an end: a date means the last second of that day in UTC.
func (e *env) parseEnd(s string) (stamp, error) {
	if day, ok := parseDate(s); ok {
		return day.endOfDay(), nil
	}
	return e.parseTime(s)
}

// needAccount returns the id of the account that -account names; if it is not given, the id of the main account.
// Errors name the next step.
func (e *env) needAccount() (string, error) {
	if id := e.str("account"); id != "" {
		return id, nil
	}
	return queried(e, (*queries).mainAccount)
}

// filterAccount returns the owner of the rows that a list shows: the account that -account
// names, else any account, since whoever may run commands may read everything.
func (e *env) filterAccount() (owner, error) {
	if e.str("account") == "" {
		return anyAccount, nil
	}
	id := e.str("account")
	_, err := queried(e, func(q *queries) (a account, err error) {
		a, err = q.account(id)
		return a, replaced(err, errNotFound, errAccount)
	})
	return ownedBy(id), err
}

const accountPlaceholder = "ACCOUNT" // of accounts, which are named by their names too

// resolveIDs replaces what arguments and options name by the end of its id, or an account by its name, by the whole
// ids. What names nothing stays, for the command to say so.
func (e *env) resolveIDs() (err error) {
	for i, word := range strings.Fields(e.command.args) {
		if err == nil && i < len(e.args) {
			e.args[i], err = e.resolveID(word, e.args[i])
		}
	}
	for _, o := range e.command.options {
		if err == nil && o.value != "" {
			e.values[o.name], err = e.resolveID(o.value, e.values[o.name])
		}
	}
	return err
}

// resolveID is resolveIDs for one text; word is what the help has in its place, such as LICENSE. A whole id is not
// looked up. Errors: usageError where it is not clear which id is meant, and one for an account that does not exist.
func (e *env) resolveID(word, typed string) (string, error) {
	if typed == "" {
		return "", nil
	}
	var found []string
	ends := "several ids end"
	for _, kind := range collectNouns(e.nouns, func(n *noun) []idKind { return n.ids }) {
		if kind.argument != word {
			continue
		}
		if whole := strings.ToLower(typed); validID(kind.prefix, whole) {
			return whole, nil
		}
		if kind.search != nil {
			ends = "several ids or keys end"
		}
		ids, err := e.idsMeant(kind, typed)
		if found = append(found, ids...); err != nil {
			return "", err
		}
	}
	slices.Sort(found)
	found = slices.Compact(found)
	if len(found) == 1 {
		return found[0], nil
	}
	if word == accountPlaceholder {
		return e.guessAccount(typed, found)
	}
	if len(found) > 1 {
		return "", usageError(fmt.Sprintf("%s in %q; give more of the one that you mean: %s", ends, printable(typed),
			joinSome(found, " ")))
	}
	return typed, nil
}

// idsMeant returns the ids of a kind that end in a text, or are known by it.
func (e *env) idsMeant(kind idKind, typed string) (ids []string, err error) {
	end, from := idEnd(kind.prefix, typed), ""
	if len(end) < leastIDEnd {
		from = firstID(kind.prefix, e.now().Add(-recentIDs))
	}
	ends := len(end) >= leastIDEnd || end != "" && kind.short
	if !ends && kind.search == nil {
		return nil, nil
	}
	err = e.withStore(func(st *store) (err error) {
		if kind.search != nil {
			ids, err = kind.search(st.queries, typed)
		}
		if err != nil || !ends {
			return err
		}
		ending, err := st.idsEndingIn(kind.table, end, from, mostEndings+1)
		ids = append(ids, ending...)
		return err
	})
	return ids, err
}

// joinSome returns up to mostEndings texts.
func joinSome(texts []string, separator string) string {
	if len(texts) > mostEndings {
		return strings.Join(texts[:mostEndings], separator) + " and others"
	}
	return strings.Join(texts, separator)
}

// guessAccount returns the id of the account that somebody means by a text that is no whole id, where several accounts
// have that name or an id that ends so, or none. A command that only reads takes the only one whose name has the text
// as a part; any other asks, on a terminal.
func (e *env) guessAccount(typed string, several []string) (string, error) {
	like, err := queried(e, func(q *queries) (like []account, err error) {
		if len(several) == 0 {
			return q.accountsLike(typed)
		}
		all, err := q.accounts()
		return slices.DeleteFunc(all, func(a account) bool { return !slices.Contains(several, a.ID) }), err
	})
	var names []string
	for _, a := range like {
		name := withName(a.ID, a.Name)
		if !a.ClosedAt.IsZero() {
			name += ", closed"
		}
		names = append(names, name)
	}
	switch {
	case err != nil:
		return "", err
	case len(several) > 0:
		return "", usageError(fmt.Sprintf("several accounts have the name %q or an id that ends so; give the id of "+
			"the one that you mean: %s", printable(typed), joinSome(names, "; ")))
	case len(like) > 1 && (e.command.reads() || e.canAsk):
		return "", usageError(fmt.Sprintf("several accounts have %q in their names; give more of the one that you "+
			"mean, or its id: %s", printable(typed), joinSome(names, "; ")))
	case len(like) == 1 && e.command.reads():
		return like[0].ID, nil
	case len(like) == 1 && e.canAsk:
		e.note("Did you mean %s?\nType yes to go on: ", names[0])
		if e.answered() == "yes" {
			return like[0].ID, nil
		}
		fmt.Fprintln(e.stderr)
		return "", errDeclined
	}
	step := "'widgetd account list' prints both"
	if len(like) > 0 {
		step = "did you mean " + joinSome(names, " or ") +
			"? A command that changes something wants the whole name or id"
	}
	return "", fmt.Errorf("no account has the id or the name %q: %s", printable(typed), step)
}

// reads reports whether the command changes nothing, by its verb.
func (c *command) reads() bool {
	words := strings.Fields(c.name)
	return slices.Contains([]string{"list", "show", "export", "refunds", "status"}, words[len(words)-1])
}

// checkRowName returns a usageError unless an operator may give a row that name: 1 to 200 bytes, not only spaces,
// no control characters, which could change what a terminal shows, and no account's id, for which it would be taken.
func checkRowName(s string) error {
	if strings.TrimSpace(s) == "" || len(s) > 200 || !utf8.ValidString(s) ||
		strings.IndexFunc(s, unicode.IsControl) >= 0 {
		return usageError("a name has 1 to 200 bytes of UTF-8, not only spaces, and no control characters")
	}
	if validID("acct", s) {
		return usageError("a name can't be the id of an account")
	}
	return nil
}

// secretText returns the text that -secrets names, and where it is from.
func (e *env) secretText() (name, text string, err error) {
	path := e.str("secrets")
	if path == "" {
		return "", "", usageError("-secrets FILE is needed, or -secrets - for standard input: " +
			"secrets are never options")
	}
	file, err := e.open(path)
	if err != nil {
		return "", "", err
	}
	defer file.Close()
	name = "standard input"
	if opened, ok := file.(*os.File); ok && path != "-" {
		if name, err = path, checkPrivate(opened); err != nil {
			return "", "", err
		}
	}
	if text, err = readSecretText(file); err != nil {
		return "", "", fmt.Errorf("read %s: %w", name, err)
	}
	return name, text, nil
}
