package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// The commands on plans that are names for routes.
var planRouteCommands = []routeCommand{
	{name: "plan add", route: "POST /plans", args: "JSON", text: "${id}"},
	{name: "plan list", route: "GET /plans", rows: &listCommand{short: true, prefix: "pln", columns: "ID NAME " +
		"PRODUCT DEVICES=max_devices DAYS=duration_days REVISION RETIRED=retired_at ACCOUNT=account_id"}},
	{name: "plan show", route: "GET /plans/{id}"},
	{name: "plan set", route: "PATCH /plans/{id}", args: "PLAN JSON",
		text: "${id} (${name}) has revision ${revision}"},
	{name: "plan retire", route: "POST /plans/{id}/retire", text: "${id} (${name}) is retired"},
}

// The other command on plans.
var planCommands = []command{
	{"plan apply", "PLAN", "give the terms of a plan to the licences that were made from it, but for dates, duration " +
		"and trial", []option{optDryRun, optUnasked}, planApply},
}

// planApply applies a plan once it is confirmed what that does.
func planApply(e *env) error {
	would, err := e.applyAll(planApplied{DryRun: true})
	if err != nil || e.on("dry-run") || would.Changed == 0 {
		return e.printApplication(would, err)
	}
	err = e.confirm(func(*queries) (string, error) { return "changes " + would.text(), nil })
	if err != nil {
		return err
	}
	return e.printApplication(e.applyAll(planApplied{Revision: would.Revision}))
}

// applyAll applies the plan that the command names to all its licences, in as many calls as that takes.
func (e *env) applyAll(a planApplied) (sum planApplied, err error) {
	sum.Terms, sum.Refused, sum.Unreadable = map[string]int{}, []refusedLicense{}, []string{}
	r := &routeRequest{route: "POST /plans/{id}/apply", path: map[string]string{"id": e.args[0]}, query: url.Values{},
		members: map[string]any{}}
	if a.DryRun {
		r.query.Set("dry_run", "true")
	} else {
		r.members["revision"] = a.Revision
	}
	err = e.asOperator(nil, func(o *routeCaller) error {
		for done := false; !done; done = sum.Next == nil {
			answer, err := o.call(r)
			if err != nil {
				return err
			}
			var part planApplied
			if err := json.Unmarshal(answer, &part); err != nil {
				return err
			}
			sum.add(part)
			r.members["revision"], r.members["next"] = part.Revision, part.Next
		}
		return nil
	})
	return sum, err
}

// add adds what the next call has done.
func (a *planApplied) add(part planApplied) {
	a.DryRun, a.Revision, a.Next = part.DryRun, part.Revision, part.Next
	a.Changed += part.Changed
	a.Refused = append(a.Refused, part.Refused...)
	a.Unreadable = append(a.Unreadable, part.Unreadable...)
	for name, n := range part.Terms {
		a.Terms[name] += n
	}
}

// text says how many licences an application changes, and of how many it changes each term.
func (a planApplied) text() string {
	text := countOf(a.Changed, "licence")
	for i, name := range slices.Sorted(maps.Keys(a.Terms)) {
		text += map[bool]string{true: ": ", false: ", "}[i == 0] + fmt.Sprintf("%s of %d", name, a.Terms[name])
	}
	return text
}

// printApplication prints what an application has done.
func (e *env) printApplication(a planApplied, err error) error {
	if err != nil {
		return err
	}
	lines := []string{"changed: " + a.text()}
	if a.DryRun {
		lines[0] = "nothing was changed; to change: " + a.text()
	}
	for _, r := range a.Refused {
		lines = append(lines, fmt.Sprintf("refused: %s has %s, more than the plan allows", r.LicenseID,
			countOf(r.SeatsUsed, "device")))
	}
	for _, id := range a.Unreadable {
		lines = append(lines, "left out: "+id+" can't be read: 'widgetd check' says why")
	}
	return e.print(a, strings.Join(lines, "\n"))
}
