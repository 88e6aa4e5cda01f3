package main

import (
	"context"
	"fmt"
)

func eventWing(s *server) wing {
	return wing{routes: []route{
		{pattern: "GET /events", token: tokenRequired, scope: scopeEvents, run: endpoint(s.listEvents)},
	}}
}

// The options of these commands.
var (
	optType    = option{name: "type", value: "NAME", help: "show only events of this type, as license.created"}
	optLicense = option{name: "license", value: "ID", help: "show only events of this licence"}
	optDevice  = option{name: "device", value: "ID", help: "show only events of this device"}
	optSince   = option{name: "since", value: "TIME",
		help: "show only events since a date or an RFC 3339 time, or of the last days, as 7d"}
)

// The operator's command on events.
var eventCommands = []command{
	{"events", "", "show what happened and who did it, newest first",
		[]option{
			optLimit,
			optType,
			optAccount.says("show only events of this account"),
			optLicense,
			optDevice,
			optSince,
		}, 0, eventsShow},
}

// eventsQuery is the query of GET /events.
type eventsQuery struct {
	accountScope
	filter eventFilter
	page   pageQuery
}

func (q *eventsQuery) read(in *input) {
	q.accountScope.read(in)
	q.filter.kind = in.parameter("type", isText(maxNameLength))
	q.filter.licenseID = in.parameter("license_id", isID("lic"))
	q.filter.deviceID = in.parameter("device_id", isID("dev"))
	in.parameter("since", func(s string) (string, string) {
		var ok bool
		if q.filter.since, ok = parseStamp(s); !ok {
			return "invalid_time", "This must be a time as 2027-01-31T12:00:00Z."
		}
		return "", ""
	})
	q.page = in.page("evt")
}

// listEvents answers GET /events.
func (s *server) listEvents(_ context.Context, c *call, q *eventsQuery) (*list[event], error) {
	o, err := q.resolve(s, c)
	if err != nil {
		return nil, err
	}
	q.filter.owner = o
	rows, err := s.store.events(q.filter, q.page.before, q.page.limit+1)
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	return newList(rows, q.page, func(e event) string { return e.ID }, func(e event) event { return e }), nil
}

func eventsShow(e *env) error {
	limit, err := e.number("limit", 1, 1_000_000)
	if err != nil {
		return err
	}
	filter := eventFilter{kind: e.str("type")}
	if filter.owner, err = e.filterAccount(); err != nil {
		return err
	}
	for _, id := range []struct {
		option, prefix string
		to             *string
	}{{"license", "lic", &filter.licenseID}, {"device", "dev", &filter.deviceID}} {
		if *id.to, err = e.filterID(id.option, id.prefix); err != nil {
			return err
		}
	}
	if age, err := parseAge(e.str("since")); err == nil { // a duration, back from now
		filter.since = newStamp(e.now().Add(-age))
	} else if filter.since, err = e.parseTime(e.str("since")); err != nil {
		return err
	}
	return e.withStore(func(st *store) error {
		all, err := st.events(filter, "", limit+1)
		if err != nil {
			return err
		}
		rows := firstRows(e, all, limit, "-limit N")
		return printRows(e, rows, "AT TYPE LICENSE DEVICE LEAD ACTOR DATA ACCOUNT", func(v event) []any {
			data := string(v.Data)
			return []any{v.At, v.Type, v.LicenseID, v.DeviceID, v.LeadID, v.Actor, data, v.AccountID}
		})
	})
}
