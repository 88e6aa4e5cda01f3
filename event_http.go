package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
)

// eventWing makes the routes of events, and sweeps those older than keepEvents. For old events that follow one
// that is kept, such as one with a date in the future, each sweep looks through the next maxListRows events.
func eventWing(s *server) wing {
	oldest := func() stamp { return newStamp(s.keepEvents.before(s.now())) }
	swept := int64(0) // number of the last event that was looked at for that
	return wing{
		routes: []route{{pattern: "GET /events", token: tokenRequired, scope: scopeEvents, question: true,
			run: s.listEvents}},
		sweeps: []func(*tx) (int64, error){
			func(t *tx) (int64, error) {
				t.quiet()
				return t.removeEvents(oldest(), sweptAtOnce), nil
			},
			func(t *tx) (n int64, err error) {
				t.quiet()
				n, swept, err = t.removeEventsAfter(swept, oldest(), sweptAtOnce)
				return n, err
			},
		},
	}
}

// listEvents refuses a type that does not exist, which could never match anything.
func (s *server) listEvents(ctx context.Context, c *call) (any, error) {
	filter := eventFilter{kind: c.in.parameter("type", isText(maxNameLength)),
		licenseID: c.in.parameter("license_id", isID("lic")), deviceID: c.in.parameter("device_id", isID("dev")),
		since: c.in.moment("since")}
	page := c.in.pageBySeq("evt")
	of, err := s.admitOwner(ctx, c)
	if err != nil {
		return nil, err
	}
	if filter.kind != "" && !slices.Contains(eventTypesOf(s.nouns), eventType(filter.kind)) {
		return nil, errFields(fieldError{Parameter: "type", Code: "unknown_value",
			Detail: "There is no such type of event."})
	}
	filter.owner = of
	found, err := s.store.within(ctx).events(filter, page.before, page.limit)
	return showPage(found, func(e event) event {
		e.Actor = publicActor(e.Actor)
		return e
	}), err
}

// typeNames returns event types as texts.
func typeNames(types []eventType) (names []string) {
	for _, t := range types {
		names = append(names, string(t))
	}
	return names
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

// The options of these commands.
var (
	optLicense = option{name: "license", value: "LICENSE", help: "show only events of this licence"}
	optDevice  = option{name: "device", value: "DEVICE", help: "show only events of this device"}
)

// The operator's command on events.
var eventCommands = []command{
	{"event list", "", "show what happened and who did it, newest first", []option{
		optLimit, optType, optAccount.says("show only events of this account"), optLicense, optDevice, optSince,
		optUntil,
	}, listCommand{columns: "ID AT TYPE SUBJECT=subject_id DEVICE=device_id ACTOR DATA ACCOUNT=account_id",
		cell: eventCell, pages: eventPages}.run},
	{"event show", "EVENT", "show all of an event", nil, eventShow},
}

// eventPages reads the events that the options of event list leave.
func eventPages(e *env, q *queries) (pages rowPages, err error) {
	types := eventTypesOf(e.nouns)
	filter := eventFilter{kind: e.str("type")}
	if filter.kind != "" && !slices.Contains(types, eventType(filter.kind)) {
		return nil, unknownWord("-type: there is no type of event", filter.kind, typeNames(types))
	}
	if filter.owner, err = e.filterAccount(); err != nil {
		return nil, err
	}
	if filter.licenseID, err = e.filterID("license", "lic"); err != nil {
		return nil, err
	}
	if filter.deviceID, err = e.filterID("device", "dev"); err != nil {
		return nil, err
	}
	if filter.since, filter.until, err = e.timeSpan(); err != nil {
		return nil, err
	}
	return pagesOf(func(before string, limit int) (listPage[event], error) {
		return q.events(filter, before, limit)
	}), nil
}

// eventShow prints an event, and below it what its data holds.
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
	details, err := memberDetails(v)
	if err != nil {
		return err
	}
	data, err := memberDetails(v.Data)
	if details = details[:len(details)-1]; len(data) > 0 {
		details = append(append(details, detail{}), data...)
	}
	return errors.Join(err, e.printDetails(v, details))
}

var errNoEvent = errors.New("not found: 'widgetd event list' prints what there is")
