package main

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// eventNoun declares the record of what happened.
func eventNoun() noun {
	return noun{
		name:     "event",
		problems: eventProblems,
		modules:  func(s *server) []module { return []module{eventModule(s)} },
		commands: eventCommands,
		calls:    eventRouteCommands,
		ids:      []idKind{{"EVENT", "evt", "events", false, nil}},
		rows:     []rowReader{unreadableEvents},
	}
}

// An eventType is a type of event. More may come.
type eventType string // each noun declares its own in an eventTable

// An eventTable lists the event types of one noun.
type eventTable struct {
	scope string // that callers must have to learn of them; "": scopeEvents
	types []eventType
}

// scopeEvents is the scope for reading events whose eventTable names no other scope.
const scopeEvents = "events:read"

// scopeOfEvent has the scope that callers must have to learn of events of a type. It is filled as nouns declare
// their types.
var scopeOfEvent = map[eventType]string{}

// add declares a type and returns it.
func (t *eventTable) add(name string) eventType {
	declared := eventType(name)
	t.types = append(t.types, declared)
	scopeOfEvent[declared] = cmp.Or(t.scope, scopeEvents)
	return declared
}

// An event is what happened, and who did it.
type event struct {
	ID        string    `json:"id" is:"evt"`          // The id of the event.
	At        stamp     `json:"at"`                   // When it happened.
	Type      eventType `json:"type"`                 // What kind of change it is.
	AccountID string    `json:"account_id" is:"acct"` // The account that it is about.

	// What it is about: a licence (of a device's events too), a lead, order, widget, token, webhook, account,
	// application, grant, export, payout, or connection to a payment provider or to books; absent for others.
	SubjectID string `json:"subject_id,omitempty"`

	LicenseID string `json:"license_id,omitempty" is:"lic"` // The licence, if it is about one.
	DeviceID  string `json:"device_id,omitempty" is:"dev"`  // The device, if it is about one.
	LeadID    string `json:"lead_id,omitempty" is:"lead"`   // The lead, if it is about one.
	OrderID   string `json:"order_id,omitempty" is:"ord"`   // The order, if it is about one.

	// `device`, `site`, `time`, `service` (by itself, since something was wrong), `receiver` (of a webhook, by its
	// answers), `provider` (of payments, or a guest there), `app` and the id of an application, `token` and its id,
	// `person` with who made the code that they signed in with, or `operator`.
	Actor string `json:"actor"`

	// What the type adds. A change has `from` and `to`; names, reasons, `customer` and `metadata` stay out.
	Data json.RawMessage `json:"data"`

	// Its place in the order in which events were written. The database keeps SubjectID alone of the ids of its subject
	// (nameSubject), and DeviceID as a member of data.
	seq int64
}

// The actors of events: who made the change. Commands name the system's user as well, see
// env.actor, and callers with a token are named by it or by their application, see actorToken.
const (
	actorDevice   = "device"
	actorSite     = "site"
	actorCommand  = "command"
	actorOperator = "operator" // whoever used a command or a token with the scope admin
	actorTime     = "time"
	actorReceiver = "receiver" // of a webhook, by its answers
	actorProvider = "provider" // of payments, or a guest who has paid there
)

// todayStatus is what the status command says of what was written on this UTC day.
func todayStatus(v *statusView, to *statusReport) error {
	leads, events, err := v.countToday(newStamp(v.now.UTC().Truncate(24 * time.Hour)))
	to.set("leads_today", leads)
	to.set("events_today", events)
	if err == nil {
		to.say("%s, %s", countOf(leads, "lead"), countOf(events, "event"))
	}
	return err
}

// publicActor returns the actor of an event as callers over HTTP may see it: which of the
// system's users or tokens an operator used stays in the database.
func publicActor(actor string) string {
	if strings.HasPrefix(actor, actorCommand) || strings.HasPrefix(actor, actorOperator) {
		return actorOperator
	}
	return actor
}

// eventData returns the data of an event as a JSON object, from alternating names and values.
// Empty values are left out.
func eventData(pairs ...string) json.RawMessage {
	data := map[string]string{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			data[pairs[i]] = pairs[i+1]
		}
	}
	text, _ := json.Marshal(data)
	return text
}

// actor returns the actor of events for the bearer of a token: "token tok_…", "operator tok_…" where the token has
// the scope admin, or for an application's "app app_…". For a command it is "command:USER".
func (c *caller) actor() string {
	switch {
	case c.command != "":
		return c.command
	case c.app != "":
		return appActor(c.app)
	case c.admin():
		return actorOperator + " " + c.claims.ID
	}
	return "token " + c.claims.ID
}

// appActor returns the actor of events that an application causes.
func appActor(appID string) string { return "app " + appID }

const actorPersons = "person (" // begins the actors of people who have signed in

// actorPerson returns the actor of events for somebody who has signed in; by made the code for that.
func actorPerson(by string) string { return actorPersons + by + ")" }

// addEvent writes an event. It sets the id and the time itself, those of the transaction.
func (t *tx) addEvent(e event) {
	data := cmp.Or(string(e.Data), "{}")
	if e.DeviceID != "" {
		rest := strings.TrimPrefix(data, "{")
		if rest != "}" {
			rest = "," + rest
		}
		data = `{"device_id":"` + e.DeviceID + `"` + rest
	}
	t.exec(`INSERT INTO events (id, at, type, account_id, subject_id, actor, data)
		VALUES (?, ?, ?, ?, ?, ?, ?)`,
		t.newID("evt"), t.now, e.Type, e.AccountID, e.SubjectID, e.Actor, data)
	t.written = append(t.written, writtenEvent{e.AccountID, string(e.Type)})
}

// An eventFilter selects events of an owner; an empty field does not narrow the selection.
type eventFilter struct {
	owner                     owner
	kind, licenseID, deviceID string
	since, until              stamp
}

// events returns a page of events, newest first, older than the one that the cursor before
// stands for ("" for the newest). If the clock was set back, times are not in the order of
// writing, and since and until may leave out some events of that span.
func (q *queries) events(f eventFilter, before string, limit int) (p listPage[event], err error) {
	list := listQuery{columns: selectEvents, table: `events`, key: `seq`}
	licenseID, account, err := q.licenseOfEvents(f.licenseID, f.deviceID)
	switch {
	case err != nil:
		return p, err
	case licenseID == "" && f.deviceID != "":
		return p, nil // nothing happens to a device that does not exist
	case licenseID == "":
		list.byIndex(f.owner.narrow(``, `account_id`))
		if f.kind != "" {
			list.byIndex(` AND type = ?`, []any{f.kind})
		}
	case account != "" && !f.owner.owns(account):
		return p, nil // an empty page with a cursor would tell that the licence has many events
	default: // the + keeps SQLite from using the indexes of accounts and types
		list.scope(isLicense+` AND subject_id = ?`, []any{licenseID})
		condition, args := f.owner.narrow(``, `+account_id`)
		list.filter(condition, args...)
		if f.kind != "" {
			list.filter(` AND +type = ?`, f.kind)
		}
	}
	if err := q.scopeTimes(&list, `at`, f.since, f.until); err != nil {
		return p, err
	}
	if f.deviceID != "" {
		list.filter(isOfDevice, f.deviceID)
	}
	p, err = readNumbered(q, list, "evt", before, limit, (*event).dest, func(e event) int64 { return e.seq })
	for i := range p.rows {
		p.rows[i].nameSubject()
	}
	return p, err
}

// A feedPage is what follows a place in the order of writing.
type feedPage struct {
	rows []event
	next feedPosition // up to where rows were looked at, past those that the filter leaves out
	more bool         // others may follow
}

// eventRange returns the number of the oldest event that is kept and of the last one that was ever written. Without
// any that is kept, first is last+1.
func (q *queries) eventRange() (first, last int64, err error) {
	err = q.one(`SELECT coalesce((SELECT min(seq) FROM events), 1 + coalesce(max(seq), 0)), coalesce(max(seq), 0)
		FROM sqlite_sequence WHERE name = 'events'`, nil, &first, &last)
	return first, last, err
}

// feedPositionAt returns the position after the event with a number.
func (q *queries) feedPositionAt(seq int64) (p feedPosition, err error) {
	now, err := q.epoch()
	if err != nil {
		return p, err
	}
	id, err := oneValue[string](q, `SELECT id FROM events WHERE seq = ?`, seq)
	return feedPosition{epoch: now.String(), seq: seq, id: id}, except(err, errNotFound)
}

// checkFeedPosition checks that a caller at a position has missed nothing. The event's id decides while it is kept.
// Where it is not, the epoch does, and no event may have been removed after it. Errors: errCursorUnknown, for a
// position in what another database has written; errEventsExpired.
func (q *queries) checkFeedPosition(p feedPosition) error {
	first, last, err := q.eventRange()
	if err != nil {
		return err
	}
	here, err := q.feedPositionAt(p.seq)
	switch {
	case err != nil:
		return err
	case p.seq > last, here.id != "" && here.id != p.id, here.id == "" && here.epoch != p.epoch:
		return errCursorUnknown
	case p.seq < first-1:
		return errEventsExpired
	}
	return nil
}

// eventsAfter returns the first events after a position, oldest first, up to limit. It goes through at most
// limits.listRows events of the account, or of the licence. Errors: those of checkFeedPosition.
func (q *queries) eventsAfter(f eventFilter, after feedPosition, limit int) (p feedPage, err error) {
	_, last, err := q.eventRange() // before the rows: what is written meanwhile comes after it
	if err != nil {
		return p, err
	}
	licenseID, account, err := q.licenseOfEvents(f.licenseID, f.deviceID)
	if err != nil {
		return p, err
	}
	end := last
	if none := licenseID == "" && f.deviceID != "" || account != "" && !f.owner.owns(account); !none {
		if p.rows, end, err = q.readFeed(f, licenseID, after.seq, last, limit); err != nil {
			return p, err
		}
	}
	if p.next, err = q.feedPositionAt(end); err != nil {
		return p, err
	}
	p.more = end < last
	return p, q.checkFeedPosition(after) // after the rows, since a sweep may run meanwhile
}

// readFeed reads the rows of eventsAfter that come after one number, up to another. It returns up to which it has
// looked.
func (q *queries) readFeed(
	f eventFilter, licenseID string, after, last int64, limit int,
) (rows []event, end int64, err error) {
	where, args := f.owner.narrow(` WHERE seq > ? AND seq <= ?`, `account_id`, after, last)
	if licenseID != "" { // the + keeps SQLite from using the index of accounts
		where, args = f.owner.narrow(` WHERE seq > ? AND seq <= ?`+isLicense+` AND subject_id = ?`, `+account_id`,
			after, last, licenseID)
	}
	end, err = oneValue[int64](q, `SELECT seq FROM events`+where+` ORDER BY seq LIMIT 1 OFFSET ?`,
		append(args, q.limits.listRows-1)...)
	if errors.Is(err, errNotFound) {
		end, err = last, nil
	}
	if err != nil {
		return nil, 0, err
	}
	args[1] = end
	if f.kind != "" {
		where, args = where+` AND +type = ?`, append(args, f.kind)
	}
	if !f.since.IsZero() {
		where, args = where+` AND at >= ?`, append(args, f.since)
	}
	if f.deviceID != "" {
		where, args = where+isOfDevice, append(args, f.deviceID)
	}
	rows, next, err := collectPage(q, selectEvents+where+` ORDER BY seq LIMIT ?`, args, `seq`, limit, (*event).dest,
		func(e event) int64 { return e.seq })
	for i := range rows {
		rows[i].nameSubject()
	}
	return rows, cmp.Or(next, end), err
}

// isOfDevice is a condition. SQLite's JSON functions would fail the whole query at data that is not JSON.
const isOfDevice = ` AND CASE WHEN json_valid(data) THEN json_extract(data, '$.device_id') = ? END`

// selectEvents selects what dest scans. SQLite's JSON functions would fail the whole query at data that is not
// JSON; dest fails for that row alone.
const selectEvents = `SELECT seq, id, at, type, account_id, subject_id,
	CASE WHEN json_valid(data) THEN coalesce(json_extract(data, '$.device_id'), '') ELSE '' END, actor,
	CASE WHEN json_valid(data) THEN json_remove(data, '$.device_id') ELSE data END FROM events`

// unreadableEvents is a rowReader.
func unreadableEvents(q *queries) ([]string, error) {
	return unreadableRows(q, selectEvents, (*event).dest)
}

// eventBySeq returns the event with a number, or errNotFound.
func (q *queries) eventBySeq(seq int64) (e event, err error) {
	err = q.one(selectEvents+` WHERE seq = ?`, []any{seq}, e.dest()...)
	e.nameSubject()
	return e, err
}

// eventByID returns the event with an id, or errNotFound. No index has ids, so it looks at those of that second
// first, and if the clock was set back and it is not there, at all events.
func (q *queries) eventByID(id string) (e event, err error) {
	second := newStamp(idTime("evt", id))
	first, err := q.firstSince(`events`, `at`, second)
	if err != nil {
		return e, err
	}
	err = q.one(selectEvents+` WHERE seq >= ?1 AND at = ?2 AND id = ?3 AND seq < ?1 + ?4`,
		[]any{first, second, id, q.limits.listRows}, e.dest()...)
	if errors.Is(err, errNotFound) {
		err = q.one(selectEvents+` WHERE id = ?`, []any{id}, e.dest()...)
	}
	e.nameSubject()
	return e, err
}

// latestEvent returns the number and the id of the event that was written last: in a transaction that
// has just written one, of that one.
func (t *tx) latestEvent() (seq int64, id string, err error) {
	err = t.one(`SELECT seq, id FROM events WHERE seq = (SELECT max(seq) FROM events)`, nil, &seq, &id)
	return seq, id, err
}

// removeEvents removes up to limit of the oldest events, those from before a time, and returns how
// many. Old events that follow newer ones, as after the clock was set back, are left to removeEventsAfter.
func (t *tx) removeEvents(before stamp, limit int64) int64 {
	return t.exec(`DELETE FROM events WHERE seq IN
		(SELECT seq FROM (SELECT seq, at FROM events ORDER BY seq LIMIT ?2) WHERE at < ?1)`, before, limit)
}

// removeEventsAfter removes up to limit events from before a time among the limits.listRows that follow number
// after, and returns how many. next is the number to go on after: after itself if more of them may be
// left here, 0 at the end. It reads no more rows than that, which takes some 5 ms, so 100 calls go through a
// million events.
func (t *tx) removeEventsAfter(after int64, before stamp, limit int64) (removed, next int64, err error) {
	err = t.one(`SELECT seq FROM events WHERE seq > ? ORDER BY seq LIMIT 1 OFFSET ?`,
		[]any{after, t.limits.listRows - 1}, &next)
	if err != nil && !errors.Is(err, errNotFound) {
		return 0, after, err
	}
	removed = t.exec(`DELETE FROM events WHERE seq IN
		(SELECT seq FROM (SELECT seq, at FROM events WHERE seq > ?1 ORDER BY seq LIMIT ?2) WHERE at < ?3 LIMIT ?4)`,
		after, t.limits.listRows, before, limit)
	if removed == limit {
		next = after
	}
	return removed, next, nil
}

// isLicense is the condition of the partial index on events of licences. A query for those of one
// licence repeats it, since SQLite would not use the index without it.
const isLicense = ` AND subject_id GLOB 'lic_*'`

// licenseOfEvents returns the licence whose events a list goes through, and the account that
// owns it: the licence that is given, or that of the device. A licence that does not exist is
// returned without an account; for a device that does not exist both are "".
func (q *queries) licenseOfEvents(licenseID, deviceID string) (id, account string, err error) {
	if id = licenseID; id == "" && deviceID != "" {
		err = q.one(`SELECT license_id FROM devices WHERE id = ?`, []any{deviceID}, &id)
	}
	if id != "" && err == nil {
		account, err = q.licenseOwner(id)
	}
	return id, account, except(err, errNotFound)
}

func (e *event) dest() []any {
	return []any{&e.seq, &e.ID, &e.At, &e.Type, &e.AccountID, &e.SubjectID, &e.DeviceID, &e.Actor,
		jsonColumn[json.RawMessage]{&e.Data}}
}

// nameSubject sets the member for the kind of the subject: LicenseID, LeadID or OrderID.
func (e *event) nameSubject() {
	switch {
	case strings.HasPrefix(e.SubjectID, "lic_"):
		e.LicenseID = e.SubjectID
	case strings.HasPrefix(e.SubjectID, "lead_"):
		e.LeadID = e.SubjectID
	case strings.HasPrefix(e.SubjectID, "ord_"):
		e.OrderID = e.SubjectID
	}
}

// countToday returns how many leads and events were written since a time. It does not count through
// older ones, since row numbers grow with time (firstSince).
func (q *queries) countToday(midnight stamp) (leads, events int64, err error) {
	firstLead, err := q.firstSince(`leads`, `created_at`, midnight)
	if err != nil {
		return 0, 0, err
	}
	firstEvent, err := q.firstSince(`events`, `at`, midnight)
	if err != nil {
		return 0, 0, err
	}
	err = q.one(`SELECT (SELECT count(*) FROM leads WHERE seq >= ?), (SELECT count(*) FROM events WHERE seq >= ?)`,
		[]any{firstLead, firstEvent}, &leads, &events)
	return leads, events, err
}

// lastOrFirst returns when the latest event of a type of the main account was written or, if there is none, that
// account was added.
func (q *queries) lastOrFirst(kind eventType) (stamp, error) {
	return oneValue[stamp](q, `SELECT coalesce((SELECT at FROM events e WHERE +e.account_id = a.id AND e.type = ?
		ORDER BY e.seq DESC LIMIT 1), a.created_at) FROM accounts a WHERE a.is_main = 1`, kind)
}

// lastEventAt returns when the latest event of an account and type was written, or errNotFound. It reads the
// events of that type, newest first, until it finds one of the account.
func (q *queries) lastEventAt(account string, kind eventType) (at stamp, err error) {
	return oneValue[stamp](q, `SELECT at FROM events WHERE +account_id = ? AND type = ? ORDER BY seq DESC LIMIT 1`,
		account, kind)
}

// The feed of events is for callers who can't receive webhooks: GET /events?after= answers with what was written after
// a position, oldest first, and waits when there is nothing yet. The caller keeps its position, and the service nothing
// of it. Who waits is woken by commits (feed), and holds neither a reader of the database nor a question's place.

// The problems of the feed.
var (
	eventProblems problemTable

	codeCursorUnknown = eventProblems.add(410, "cursor_unknown", "Cursor unknown",
		"This database does not know the place that after stands for, as one that was restored from an older copy: "+
			"begin again, with after=start or after=now.",
		"Read what you follow from its lists, then begin again with `after=now`, or with `after=start` and skip "+
			"ids that you have seen.")
	codeEventsExpired = eventProblems.add(410, "events_expired", "Events expired",
		"Events that followed the place that after stands for are no longer kept: begin again with after=start, and "+
			"read from the lists what you have missed.",
		"Read what you have missed from the lists, then begin again with `after=start`.")
	errCursorUnknown = &refusal{code: codeCursorUnknown}
	errEventsExpired = &refusal{code: codeEventsExpired}
	errFeedFull      = &refusal{code: codeBusy, retryAfter: feedRetry,
		detail: "Too many requests wait for events at the moment. Try again shortly, or without wait."}
)

const (
	maxFeedWait       = 15 * time.Second      // below writeTimeout, and the time-outs of proxies
	feedSpread        = 50 * time.Millisecond // over which those who are woken read
	feedWaiting       = 256                   // requests at a time
	feedWaitingOfOne  = 16                    // of them, those of an account
	feedWaitingOfUser = 4                     // of them, those of a token, or of an application in an account
	feedWaitingOfApp  = 64                    // those of an application, over all accounts
	feedRetry         = 5 * time.Second       // after a refusal to wait
	maxFeedCursor     = 200                   // characters
)

// A feedPosition is a place in the order in which events were written: after the event with a number.
type feedPosition struct {
	epoch string // of the database that gave it out
	seq   int64
	id    string // of that event; "": there was none
}

// cursor returns the position as callers keep it: sealed, since numbers tell how much others do.
func (p feedPosition) cursor(keys *keyring) string {
	text := p.epoch + " " + strconv.FormatInt(p.seq, 10) + " " + p.id
	return base64.RawURLEncoding.EncodeToString(keys.sealFor("events cursor", "", []byte(text)))
}

// parseFeedCursor returns the position that a cursor was made from. Errors: errCursorUnknown, if it was made with
// another key file, or is no cursor.
func parseFeedCursor(keys *keyring, cursor string) (p feedPosition, err error) {
	sealed, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return p, errCursorUnknown
	}
	text, err := keys.unsealFor("events cursor", "", sealed)
	if err != nil {
		return p, errCursorUnknown
	}
	parts := strings.Split(string(text), " ")
	if len(parts) != 3 { // of another release
		return p, errCursorUnknown
	}
	p.epoch, p.id = parts[0], parts[2]
	p.seq, err = strconv.ParseInt(parts[1], 10, 64)
	return p, err
}

// A feed knows who waits for events, and wakes them. Its maps have entries only while somebody waits.
type feed struct {
	mu      sync.Mutex
	watches bool                     // the commits of the store, from the first caller on
	waiting counter[string]          // requests: all (""), by account, by who in it asks, and by application
	changed map[string]chan struct{} // by the account whose events are waited for ("": any): closed at its next commit
}

// acquire takes a place for a request that waits. It returns a function that gives the place back. Errors:
// a refusal (429), errFeedFull.
func (f *feed) acquire(st *store, c *caller) (release func(), err error) {
	// An application's tokens count together, since it can get new ones at will.
	account, user := c.claims.Subject, c.claims.Subject+" "+c.claims.ID
	under := []ceiling[string]{{user, feedWaitingOfUser}, {account, feedWaitingOfOne}, {"", feedWaiting}}
	if c.app != "" {
		under[0].key = c.claims.Subject + " " + c.limitedAs()
		under = append(under, ceiling[string]{c.limitedAs(), feedWaitingOfApp})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch full := f.waiting.add(1, under...); {
	case full == nil:
	case full.key == "":
		return nil, errFeedFull
	case full.key == account:
		return nil, errWaiting(full.most, "of one account")
	case full.most == feedWaitingOfApp:
		return nil, errWaiting(full.most, "of one application, over all accounts,")
	default:
		return nil, errWaiting(full.most, "of one token, or of one application")
	}
	if !f.watches {
		f.watches = true
		st.watch(f.committed)
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.waiting.add(-1, under...); len(f.waiting.counts) == 0 {
			clear(f.changed)
		}
	}, nil
}

// errWaiting returns the refusal of a request that would wait beside as many as may.
func errWaiting(most int64, of string) error {
	detail := fmt.Sprintf("At most %d requests %s may wait for events at a time.", most, of)
	return errRate(limitReached{name: "waiting", rate: int(most), full: maxFeedWait}, detail, feedRetry)
}

// next returns a channel that is closed once events of an account were committed; "": of any. Who calls it before
// reading misses none.
func (f *feed) next(account string) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed[account] == nil {
		f.changed[account] = make(chan struct{})
	}
	return f.changed[account]
}

// committed wakes those who wait for what was written, see writer.watch.
func (f *feed) committed(written []writtenEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if written == nil {
		for account := range f.changed {
			f.wake(account)
		}
	}
	for _, e := range written {
		f.wake(e.account)
		f.wake("")
	}
}

// wake wakes those who wait for events of an account; "": of any. mu is held.
func (f *feed) wake(account string) {
	if changed := f.changed[account]; changed != nil {
		close(changed)
		delete(f.changed, account)
	}
}
