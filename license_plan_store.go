package main

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
