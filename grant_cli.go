package main

import "errors"

// The options of these commands.
var optEnded = option{name: "ended", help: "show those that have ended, too"}

// The operator's commands on grants.
var grantCommands = []command{
	{"grant list", "", "list which applications may act for which accounts, newest first", []option{
		optLimit,
		optAccount.says("show only what this account has agreed to"),
		optEnded,
	}, 0, grantList},
	{"grant revoke", "ID", "end a grant, and with it its tokens and the webhooks that were made under it",
		nil, 1, grantRevoke},
}

func grantList(e *env) error {
	limit, err := e.number("limit", 1, 1_000_000)
	if err != nil {
		return err
	}
	o, err := e.filterAccount()
	if err != nil {
		return err
	}
	return e.withStore(func(st *store) error {
		all, err := collectPages(limit+1, func(before string, limit int) (listPage[*grant], error) {
			return st.grants(o, e.on("ended"), before, limit)
		})
		if err != nil {
			return err
		}
		rows := []*grantView{}
		for _, g := range firstRows(e, all, limit, "-limit N") {
			rows = append(rows, viewGrant(g))
		}
		const header = "ID APPLICATION OWNER SCOPE USED EXPIRES ENDED WHY ACCOUNT"
		return printRows(e, rows, header, func(g *grantView) []any {
			return []any{
				g.ID, g.App.Name, g.App.Owner, g.Scope, g.UsedAt, g.ExpiresAt, g.EndedAt, g.EndedBy, g.AccountID,
			}
		})
	})
}

func grantRevoke(e *env) error {
	if err := e.change(func(t *tx) error {
		err := endGrant(t, anyAccount, e.args[0], endedByOperator, e.actor())
		if errors.Is(err, errGrant) {
			err = errors.New("not found: 'widgetd grant list -ended' prints what there is")
		}
		return err
	}); err != nil {
		return err
	}
	return e.done()
}
