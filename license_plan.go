package main

import (
	"context"
	"maps"
	"time"
)

// planNoun declares plans.
func planNoun() noun {
	return noun{
		name:     "plan",
		modules:  func(s *server) []module { return []module{planModule(s)} },
		calls:    planRouteCommands,
		commands: planCommands,
		ids:      []idKind{{"PLAN", "pln", "plans", false, nil}},
		problems: planProblems,
		events:   planEvents,
		rows:     []rowReader{planTable.unreadable},
	}
}

// A plan is a template of an account's licences. A licence that is made from it copies its terms as they are then;
// later changes of the plan reach it only when the plan is applied.
type plan struct {
	ID        string `json:"id" is:"pln"`          // The id of the plan.
	AccountID string `json:"account_id" is:"acct"` // The account whose licences are made from it.
	Name      string `json:"name"`                 // Its name, and the label `plan` of its licences.
	terms
	Revision  int   `json:"revision" least:"1"` // Goes up with each change of terms.
	CreatedAt stamp `json:"created_at"`         // When it was made.
	UpdatedAt stamp `json:"updated_at"`         // When it was changed last.
	RetiredAt stamp `json:"retired_at"`         // Since when no licence is made from it, or null: it is in use.
}

// members are what callers set of a plan.
func (p *plan) members() []member {
	all := append(p.terms.members(), member{name: "name", at: &p.Name, needed: true, high: maxNameLength})
	all[0].needed = true // the product, which a licence may get from its plan
	return all
}

var (
	planProblems problemTable

	codePlanNotFound = planProblems.add(404, "plan_not_found", "Plan not found", "There is no plan with this id.",
		"Check the id, and that the account that the request acts on owns the plan.")
	codePlanRetired = planProblems.add(409, "plan_retired", "Plan retired",
		"The plan is retired: it can't be changed, and no licence is made from it any more.",
		"Use another plan.")
	codePlanLimit = planProblems.add(409, "plan_limit_reached", "Too many plans",
		"The account has 500 plans in use already: retire one first.",
		"Retire a plan from which no more licences are made.")
	codePlanChanged = planProblems.add(409, "plan_changed", "Plan changed",
		"The plan has another revision than the request names. Look at what applying it would do now.",
		"Make a dry run, and name the revision that it answers with. What was changed until then stays.")

	errPlan        = &refusal{code: codePlanNotFound}
	errPlanRetired = &refusal{code: codePlanRetired}
	errPlanLimit   = &refusal{code: codePlanLimit}
)

var (
	planEvents = eventTable{scope: scopeLicenses}

	eventPlanCreated = planEvents.add("plan.created")
	eventPlanUpdated = planEvents.add("plan.updated")
	eventPlanRetired = planEvents.add("plan.retired")
)

func planEvent(p *plan, kind eventType, actor string, data []byte) event {
	return event{Type: kind, AccountID: p.AccountID, SubjectID: p.ID, Actor: actor, Data: data}
}

// applyTo sets the terms of l that applying the plan changes: all but duration, trial, and what can't change.
func (p *plan) applyTo(l *license) {
	was := l.terms
	l.terms = p.terms
	l.Product, l.Kind, l.ExpiryBasis, l.Trial, l.DurationDays =
		was.Product, was.Kind, was.ExpiryBasis, was.Trial, was.DurationDays
}

// createPlan adds a plan of an account, and returns it. Errors: validation_failed, account_not_found, errPlanLimit.
func createPlan(t *tx, accountID string, set change, actor string) (*plan, error) {
	if err := t.openAccount(accountID); err != nil {
		return nil, err
	}
	p := &plan{ID: t.newID("pln"), AccountID: accountID, Revision: 1, CreatedAt: t.now, UpdatedAt: t.now}
	p.change(set, p.members())
	if err := p.check(); err != nil {
		return nil, err
	}
	n, err := t.countPlans(accountID)
	switch {
	case err != nil:
		return nil, err
	case n >= t.limits.plans:
		return nil, errPlanLimit
	}
	planTable.insert(t, p)
	t.addEvent(planEvent(p, eventPlanCreated, actor, nil))
	return p, nil
}

// changePlan changes the name and the terms of an owner's plan. It changes no licence. Errors: plan_not_found,
// plan_retired, validation_failed.
func changePlan(t *tx, o owner, id string, set change, actor string) (*plan, error) {
	p, err := t.planInUse(o, id)
	if err != nil {
		return nil, err
	}
	before := *p
	p.change(set, p.members())
	if err := p.check(); err != nil {
		return nil, err
	}
	changed := differenceOf(before.members(), p.members())
	if len(changed.names) == 0 {
		return p, nil
	}
	if changed.text() != "name" {
		p.Revision++
	}
	t.savePlan(p, changed.text()+" revision")
	t.addEvent(planEvent(p, eventPlanUpdated, actor, changed.data()))
	return p, nil
}

// retirePlan ends the making of licences from an owner's plan. Retiring it again changes nothing. Errors:
// plan_not_found.
func retirePlan(t *tx, o owner, id, actor string) (*plan, error) {
	p, err := t.plan(o, id)
	if err != nil || !p.RetiredAt.IsZero() {
		return p, err
	}
	p.RetiredAt = t.now
	t.savePlan(p, "retired_at")
	t.addEvent(planEvent(p, eventPlanRetired, actor, nil))
	return p, nil
}

const (
	appliedAtOnce = 20 // licences in one transaction of applyPlan, so that other writes wait for a few milliseconds

	// applyTime is after how long a call answers, whatever is left: well before writeTimeout, since the transaction
	// that is under way then may still wait for the lock.
	applyTime = 10 * time.Second
)

// A planApplied is what was done with up to 5,000 licences of a plan.
type planApplied struct {
	DryRun   bool           `json:"dry_run"`            // Nothing was changed; this is what would be.
	Revision int            `json:"revision" least:"1"` // The revision of the plan.
	Changed  int            `json:"changed"`            // How many licences were changed.
	Terms    map[string]int `json:"terms"`              // Of how many licences each term was changed.

	// Licences with more devices than the plan allows: all their terms stay.
	Refused []refusedLicense `json:"refused"`

	// The ids of licences whose rows can't be read: they stay as they are, and the operator finds out why.
	Unreadable []string `json:"unreadable"`
	Next       *string  `json:"next" is:"lic"` // For the next call, or null: this was the last.

	looked int // at how many licences
}

// A refusedLicense is a licence with more devices than its plan allows.
type refusedLicense struct {
	LicenseID string `json:"license_id" is:"lic"`  // The id of the licence.
	SeatsUsed int    `json:"seats_used" least:"1"` // How many devices hold a seat.
}

// applyPlan gives the terms of an owner's plan to up to limits.planLicenses that were made from it, for up to
// applyTime, in the order of their ids after the id after, each with its event, and says what it did; see
// plan.applyTo. A dry run says what it would do. The plan must have the revision that is given, or in a dry run that
// it has first, until the end. It runs in transactions of appliedAtOnce licences, and calls allowed in each. Revoked
// licences, and those that another account owns by now, are left alone. Errors: plan_not_found, plan_changed, those of
// allowed.
func applyPlan(
	ctx context.Context, st *store, o owner, id string, asked planApplied, after, actor string,
	allowed func(*queries) error,
) (planApplied, error) {
	asked.Terms, asked.Refused, asked.Unreadable = map[string]int{}, []refusedLicense{}, []string{}
	asked.Next = &after
	began := time.Now()
	step := func(from *queries, t *tx, a planApplied) (planApplied, bool, error) {
		err := allowed(from)
		if err == nil {
			err = a.step(from, t, o, id, actor)
		}
		return a, a.Next != nil && a.looked < st.limits.planLicenses && time.Since(began) < applyTime, err
	}
	if !asked.DryRun {
		return inParts(ctx, st.writer, asked, func(t *tx, a planApplied) (planApplied, bool, error) {
			return step(t.queries, t, a)
		})
	}
	for more := true; more; {
		var err error
		if asked, more, err = step(st.within(ctx), nil, asked); err != nil {
			return asked, err
		}
	}
	return asked, nil
}

// step applies a plan to the next licences, as applyPlan does. It has no transaction in a dry run.
func (a *planApplied) step(from *queries, t *tx, o owner, id, actor string) error {
	p, err := from.plan(o, id)
	if err != nil {
		return err
	}
	if a.DryRun && a.Revision == 0 {
		a.Revision = p.Revision
	}
	if p.Revision != a.Revision {
		return &refusal{code: codePlanChanged}
	}
	page, err := from.licensesOfPlan(p.ID, *a.Next, appliedAtOnce)
	if err != nil {
		return err
	}
	a.Terms = maps.Clone(a.Terms) // the step may be made again with those that it got
	a.looked += len(page)
	if a.Next = nil; len(page) == appliedAtOnce {
		a.Next = &page[len(page)-1].id
	}
	for _, row := range page {
		l := row.license
		if l == nil {
			a.Unreadable = append(a.Unreadable, row.id)
			continue
		}
		before := *l
		p.applyTo(l)
		changed := differenceOf(before.members(), l.members())
		switch {
		case l.AccountID != p.AccountID || l.State == statusRevoked || len(changed.names) == 0:
			continue
		case l.MaxDevices != nil && l.SeatsUsed > *l.MaxDevices:
			a.Refused = append(a.Refused, refusedLicense{l.ID, l.SeatsUsed})
			continue
		}
		a.Changed++
		for _, name := range changed.names {
			a.Terms[name]++
		}
		if !a.DryRun {
			t.saveTerms(l, changed, actor)
		}
	}
	return nil
}

// planTable describes the table plans.
var planTable = newTable("plans", "p", func(p *plan) []field {
	return append(fieldsOf(p.members()), []field{{"id", &p.ID}, {"account_id", &p.AccountID},
		{"revision", &p.Revision}, {"created_at", &p.CreatedAt}, {"updated_at", &p.UpdatedAt},
		{"retired_at", &p.RetiredAt}}...)
})

// plan returns a plan of an owner, retired or not. Errors: plan_not_found.
func (q *queries) plan(o owner, id string) (*plan, error) { return planTable.byID(q, o, id, errPlan) }

// planInUse returns a plan of an owner that is not retired. Errors: plan_not_found, plan_retired.
func (q *queries) planInUse(o owner, id string) (*plan, error) {
	p, err := q.plan(o, id)
	if err == nil && !p.RetiredAt.IsZero() {
		return nil, errPlanRetired
	}
	return p, err
}

// plans returns a page of an owner's plans, newest first, retired ones included.
func (q *queries) plans(o owner, before string, limit int) (listPage[*plan], error) {
	return planTable.page(q, planTable.whereOwner(o), before, limit)
}

// countPlans returns how many plans of an account are not retired. It reads no others.
func (q *queries) countPlans(accountID string) (n int, err error) {
	return oneValue[int](q, `SELECT count(*) FROM plans WHERE account_id = ? AND retired_at IS NULL`, accountID)
}

// savePlan writes columns of a plan, and sets UpdatedAt.
func (t *tx) savePlan(p *plan, columns string) {
	p.UpdatedAt = t.now
	planTable.update(t, p, columns+" updated_at", ` WHERE id = ?`, p.ID)
}

// licensesOfPlan returns up to limit licences that were made from a plan, revoked ones included, in the order of
// their ids, starting after the id after. However many there are of it or of others, it reads only these.
func (q *queries) licensesOfPlan(planID, after string, limit int) (page []planLicense, err error) {
	err = eachReadable(q, licenseTable.query+`WHERE l.plan_id = ? AND l.id > ? ORDER BY l.id LIMIT ?`,
		[]any{planID, after, limit}, licenseTable.destNew, func(l **license, bad *unreadableRow) error {
			if bad != nil {
				page = append(page, planLicense{bad.id, nil})
			} else {
				page = append(page, planLicense{(*l).ID, *l})
			}
			return nil
		})
	return page, err
}

// A planLicense is a licence that was made from a plan.
type planLicense struct {
	id      string
	license *license // nil: its row can't be read
}
