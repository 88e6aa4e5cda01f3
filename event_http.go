package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

// An eventAPI serves the endpoint of events.
type eventAPI struct {
	*server
	types   []eventType // that there are
	waiting *feed       // who waits for some
}

// eventModule makes the routes of events, and sweeps those older than keepEvents. For old events that follow one
// that is kept, such as one with a date in the future, each sweep looks through the next limits.listRows events.
func eventModule(s *server) module {
	oldest := func() stamp { return newStamp(s.keepEvents.before(s.now())) }
	a := &eventAPI{s, eventTypesOf(s.nouns), &feed{changed: map[string]chan struct{}{}}}
	swept := int64(0) // number of the last event that was looked at for that
	return module{
		routes: []route{{pattern: "GET /events", scope: scopeEvents, question: true,
			refuses: "cursor_unknown events_expired", endpoint: owned(s, a.readEventQuery, a.listEvents)}},
		sweeps: []func(*tx) (int64, error){
			func(t *tx) (int64, error) {
				t.dropsNothing()
				return t.removeEvents(oldest(), t.limits.swept), nil
			},
			func(t *tx) (n int64, err error) {
				t.dropsNothing()
				n, swept, err = t.removeEventsAfter(swept, oldest(), t.limits.swept)
				return n, err
			},
		},
	}
}

// An eventQuery says which events are asked for, and how.
type eventQuery struct {
	eventFilter
	pageQuery
	feedRequest
}

// checkType returns a check for a type of event; whether there is such a type, listEvents finds out.
func (a *eventAPI) checkType() *textCheck {
	return &textCheck{words: asTexts(a.types), of: isText(maxNameLength).of}
}

func (a *eventAPI) readEventQuery(in *input) (q *eventQuery) {
	q = new(eventQuery)
	q.kind = in.parameter("type", a.checkType())          // Only this type.
	q.licenseID = in.parameter("license_id", isID("lic")) // Only events of this licence and its devices.
	q.deviceID = in.parameter("device_id", isID("dev"))   // Only events of this device.
	q.since = in.moment("since")                          // Only events since this time, in whole seconds, included.
	q.until = in.moment("until")                          // Only events before this time. Not with `after`.
	q.pageQuery = in.pageBySeq("evt")
	q.feedRequest = readFeedRequest(in)
	return q
}

// An eventPage is a page of events.
type eventPage struct {
	*list[event]

	// With `after`: the `after` of the next request. It stands for a place also where `data` is empty.
	Next string `json:"next,omitempty"`

	More *bool `json:"more,omitempty"` // With `after`: there may be more already.
}

// List what happened.
//
// Lists what happened and who did it, in the order of writing, newest first. One request goes through at most 10,000
// rows and has two seconds, waiting included: where a filter finds little, a page may be short or empty and yet have
// a `next_cursor`.
//
// With `after` it is a feed, for who can't receive webhooks: oldest first, with `next` and `more` in place of a
// `next_cursor`, which is always `null`. Keep `next` once you have done what the events ask for, and send it as
// `after`: that acknowledges them, and the service keeps nothing of it. Each event comes at least once. While `more`
// is true, ask again at once; else with `wait`. 410 says that you would miss something.
func (a *eventAPI) listEvents(ctx context.Context, c *call, of owner, q *eventQuery) (*eventPage, error) {
	if q.kind != "" && !slices.Contains(a.types, eventType(q.kind)) { // could never match anything
		return nil, errFields(fieldError{Parameter: "type", Code: "unknown_value",
			Detail: nearestMeant("There is no such type of event", q.kind, asTexts(a.types))})
	}
	if q.owner = of; q.after != "" {
		return a.followEvents(ctx, c, q)
	}
	found, err := a.store.within(ctx).events(q.eventFilter, q.before, q.limit)
	return &eventPage{list: showPage(found, c.showEvent)}, err
}

// showEvent returns an event as the caller sees it: only a command tells who the operator was.
func (c *call) showEvent(e event) event {
	if !c.isCommand() {
		e.Actor = publicActor(e.Actor)
	}
	return e
}

// A feedRequest is what a caller asks of the feed.
type feedRequest struct {
	after string // a cursor, "start" or "now"; "": the feed is not asked for
	wait  time.Duration
}

// readFeedRequest reads ?after= and ?wait=.
func readFeedRequest(in *input) (w feedRequest) {
	// Events after this place, oldest first: `next` of the answer before, `start` for the oldest event that is kept, or
	// `now` for the next one. Not with `cursor`.
	w.after = in.parameter("after", isText(maxFeedCursor))
	// With `after`: for how many seconds to wait while there is nothing to answer with; 0 if it is left out. At most
	// 4 requests of a token, or of an application, may wait, 16 of an account, 64 of an application over all
	// accounts, and 256 in all. Have your client wait for an answer for 20 seconds.
	in.parameter("wait", &textCheck{numbers: [2]int{0, 15}, of: func(s string) (string, string) {
		n, err := strconv.Atoi(s)
		w.wait = time.Duration(n) * time.Second
		if err != nil || n < 0 || w.wait > maxFeedWait || strconv.Itoa(n) != s {
			return "out_of_range", "This must be a number of seconds from 0 to 15."
		}
		return "", ""
	}})
	if in.query.Has("after") && in.query.Has("cursor") {
		in.wrongParameter("cursor", "conflict", "Give cursor, or after: they read in opposite orders.")
	}
	if in.query.Has("after") && in.query.Has("until") {
		in.wrongParameter("until", "conflict", "Give until, or after: a feed has no end.")
	}
	return w
}

// followEvents answers with the events after a place, at once or when there are some: a page of a list that ends with
// it.
func (a *eventAPI) followEvents(ctx context.Context, c *call, asked *eventQuery) (*eventPage, error) {
	q := a.store.within(ctx)
	at, err := a.positionNamed(q, asked.after)
	if err != nil {
		return nil, err
	}
	page, err := q.eventsAfter(asked.eventFilter, at, asked.limit)
	if err == nil && len(page.rows) == 0 && !page.more && asked.wait > 0 {
		page, err = a.awaitEvents(c, asked.eventFilter, page.next, asked.wait, asked.limit)
	}
	shown := showPage(listPage[event]{rows: page.rows}, c.showEvent)
	return &eventPage{shown, page.next.cursor(a.keys.Load()), &page.more}, err
}

// positionNamed returns the position that ?after= names. Errors: errCursorUnknown.
func (a *eventAPI) positionNamed(q *queries, after string) (feedPosition, error) {
	if after != "start" && after != "now" {
		return parseFeedCursor(a.keys.Load(), after)
	}
	first, last, err := q.eventRange()
	if err != nil {
		return feedPosition{}, err
	}
	if after == "start" {
		last = first - 1
	}
	return q.feedPositionAt(last)
}

// awaitEvents waits until there are events after a position, for as long as the caller wants, the client is there and
// the service is not stopping, and returns what there is then. While it waits, it has neither a reader of the database
// nor a question's place; before it reads again, it judges the token and its account again.
func (a *eventAPI) awaitEvents(
	c *call, f eventFilter, at feedPosition, wait time.Duration, limit int,
) (page feedPage, err error) {
	release, err := a.waiting.acquire(a.store, c.caller)
	if err != nil {
		return page, err
	}
	defer release()
	over := time.NewTimer(wait)
	defer over.Stop()
	gone := c.request.Context().Done()
	for last := false; ; {
		c.endQuestion()
		committed := a.waiting.next(f.owner.account) // before reading, so that nothing is missed in between
		page, err = a.readFeed(c, f, at, limit)
		if err != nil || len(page.rows) > 0 || page.more || last {
			return page, err
		}
		at = page.next
		begun := a.monotonic()
		select {
		case <-committed:
			select { // others are woken too: they read one after the other
			case <-time.After(rand.N(feedSpread)):
			case <-gone:
			}
		case <-over.C:
			last = true
		case <-a.stopping:
			last = true
		case <-gone:
			return page, c.request.Context().Err()
		}
		c.response.waited += a.monotonic().Sub(begun)
		if err := a.checkToken(c); err != nil {
			for _, limit := range []string{"RateLimit", "RateLimit-Policy"} {
				c.response.Header().Del(limit) // as in every answer to such a token
			}
			return page, err
		}
		if f.owner, err = a.ownerOf(c, c.in.query.Get("account_id")); err != nil {
			return page, err
		}
	}
}

// readFeed reads a page as a question.
func (a *eventAPI) readFeed(c *call, f eventFilter, at feedPosition, limit int) (feedPage, error) {
	ctx, cancel := context.WithTimeout(c.request.Context(), a.listSlots.timeout)
	defer cancel()
	defer c.endQuestion()
	if err := a.acquireSlot(ctx, c); err != nil {
		return feedPage{}, err
	}
	return a.store.within(ctx).eventsAfter(f, at, limit)
}

// eventCell is a cellFunc.
func eventCell(member string, row *jsonValue) any {
	if member == "data" {
		return dataText(memberAt(row, member))
	}
	return nil
}

// dataText returns the data of an event for people: amounts with their currency, "total 57.00 CHF".
func dataText(object *jsonValue) string {
	currency, _ := object.member("currency")
	for i, m := range object.members {
		amount, err := strconv.ParseInt(m.value.text, 10, 64)
		if err == nil && currency != nil && slices.Contains([]string{"amount", "total", "ordered_total"}, m.name) {
			object.members[i].value.text = formatMoney(amount, currency.text)
		}
	}
	return memberText(object)
}

// The option of the command, whose words are too many for its help.
var optType = option{name: "type", value: "NAME", member: "type", reads: asEventType,
	help: "show only events of this type, as license.created"}

// The command on events that is a name for a route.
var eventRouteCommands = []routeCommand{
	{name: "event list", route: "GET /events", help: "show what happened and who did it, newest first",
		options: []option{optType}, before: checkEventFilter, rows: &listCommand{cell: eventCell,
			columns: "ID AT TYPE SUBJECT=subject_id DEVICE=device_id ACTOR DATA ACCOUNT=account_id"}},
}

// asEventType sends a type of events.
func asEventType(e *env, name string) (any, error) { return asOneOf(eventTypesOf(e.nouns))(e, name) }

// checkEventFilter tells the end of an id that nothing has from what is no end of one.
func checkEventFilter(e *env, _ *routeRequest) error {
	_, err := e.filterID("license", "lic")
	if err == nil {
		_, err = e.filterID("device", "dev")
	}
	return err
}

// The operator's other command on events.
var eventCommands = []command{
	{"event show", "EVENT", "show all of an event", nil, eventShow},
}

// eventShow prints an event.
func eventShow(e *env) error {
	if !validID("evt", e.args[0]) {
		return errNoEvent
	}
	v, err := queried(e, func(q *queries) (event, error) {
		v, err := q.eventByID(e.args[0])
		return v, replaced(err, errNotFound, errNoEvent)
	})
	if err != nil {
		return err
	}
	return e.printObject(v)
}

var errNoEvent = errors.New("not found: 'widgetd event list' prints what there is")
