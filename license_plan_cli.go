package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The operator's commands on plans.
var planCommands = []command{
	{"plan add", "JSON", "make a plan with a name, a product and other terms, as POST /plans does",
		[]option{optAccount}, 1, planAdd},
	{"plan list", "", "list plans, newest first", []option{
		optAllRows, optAccount.says("only plans of this account"), optSince, optUntil,
	}, 0, planList},
	{"plan show", "PLAN", "show a plan", nil, 1, planShow},
	{"plan set", "PLAN JSON", "change the name or terms of a plan, as PATCH /plans/{id} does; licences keep theirs",
		nil, 2, planSet},
	{"plan retire", "PLAN", "make no more licences from a plan", nil, 1, planRetire},
	{"plan apply", "PLAN", "give the terms of a plan to the licences that were made from it, but for dates, duration " +
		"and trial", []option{optDryRun, optUnasked}, 1, planApply},
}

// readPlan reads a JSON object on the command line as f reads a body.
func readPlan(text string, f func(*input) (plan, termsChange)) (p plan, terms termsChange, err error) {
	body, err := parseJSON([]byte(text))
	if err != nil {
		return p, nil, usageError("the terms must be a JSON object: " + err.Error())
	}
	in := newInput(&body, nil, nil)
	in.noteKnown()
	p, terms = f(in)
	in.refuseUnknownMembers(true)
	return p, terms, in.err()
}

func planAdd(e *env) error {
	account, err := e.needAccount()
	if err != nil {
		return err
	}
	wanted, terms, err := readPlan(e.args[0], readNewPlan)
	if err != nil {
		return err
	}
	return printChanged(e, func(t *tx) (*plan, error) {
		p := wanted
		p.AccountID = cmp.Or(p.AccountID, account)
		made, err := createPlan(t, &p, terms, e.actor())
		if errors.Is(err, errPlanLimit) {
			err = fmt.Errorf("the account has %d plans in use already: retire one first", maxPlans)
		}
		return made, err
	}, func(p *plan) string { return p.ID })
}

func planList(e *env) error {
	ids := idOf[*plan]{"pln", func(row *plan) string { return row.ID }}
	return printOwned(e, ids, (*queries).plans, "ID NAME PRODUCT DEVICES DAYS REVISION RETIRED ACCOUNT",
		func(p *plan) []any {
			return []any{p.ID, p.Name, p.Product, p.MaxDevices, p.DurationDays, p.Revision, p.RetiredAt,
				accountCell(p.AccountID)}
		})
}

func planShow(e *env) error {
	p, err := queried(e, func(q *queries) (*plan, error) { return q.plan(anyAccount, e.args[0]) })
	if err != nil {
		return err
	}
	return e.printMembers(p)
}

func planSet(e *env) error {
	wanted, terms, err := readPlan(e.args[1], readPlanChange)
	if err != nil {
		return err
	}
	return printChanged(e, func(t *tx) (*plan, error) {
		return changePlan(t, anyAccount, e.args[0], wanted.Name, terms, e.actor())
	}, func(p *plan) string { return fmt.Sprintf("%s has revision %d", withName(p.ID, p.Name), p.Revision) })
}

func planRetire(e *env) error {
	return e.changeNamed(func(t *tx) (string, error) {
		p, err := retirePlan(t, anyAccount, e.args[0], e.actor())
		if err != nil {
			return "", err
		}
		return withName(p.ID, p.Name) + " is retired", nil
	})
}

// planApply applies a plan once it is confirmed what that does.
func planApply(e *env) error {
	would, err := e.applyAll(planApplication{DryRun: true})
	if err != nil || e.on("dry-run") || would.Changed == 0 {
		return e.printApplication(would, err)
	}
	err = e.confirm(func(*queries) (string, error) { return "changes " + would.text(), nil })
	if err != nil {
		return err
	}
	return e.printApplication(e.applyAll(planApplication{Revision: would.Revision}))
}

// applyAll applies the plan that the command names to all its licences.
func (e *env) applyAll(a planApplication) (sum planApplication, err error) {
	sum.Terms, sum.Refused, sum.Unreadable = map[string]int{}, []refusedLicense{}, []string{}
	err = e.withStore(func(st *store) error {
		for after := new(string); after != nil; {
			part, err := applyPlan(e.ctx, st, anyAccount, e.args[0], a, *after, e.actor(),
				func(*queries) error { return nil })
			if err != nil {
				return err
			}
			sum.add(part)
			a.Revision, after = part.Revision, part.Next
		}
		return nil
	})
	return sum, err
}

// text says how many licences an application changes, and of how many it changes each term.
func (a planApplication) text() string {
	text := countOf(a.Changed, "licence")
	for i, name := range slices.Sorted(maps.Keys(a.Terms)) {
		text += map[bool]string{true: ": ", false: ", "}[i == 0] + fmt.Sprintf("%s of %d", name, a.Terms[name])
	}
	return text
}

// printApplication prints what an application has done.
func (e *env) printApplication(a planApplication, err error) error {
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
