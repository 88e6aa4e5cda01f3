package main

import (
	"fmt"
	"strconv"
	"strings"
)

// The options of these commands.
var (
	optProduct  = option{name: "product", value: "NAME", help: "the product that the licence is for"}
	optPlan     = option{name: "plan", value: "NAME", help: "the plan under which the licence was sold"}
	optCustomer = option{name: "customer", value: "TEXT",
		help: "your own name, address or number for the buyer, at most 200 characters"}
	optMaxDevices = option{name: "max-devices", value: "N", help: "number of seats; no limit by default"}
	optStarts     = option{name: "starts", value: "TIME",
		help: "start: a date (its first second in UTC), RFC 3339, or from now as 7d, 2w"}
	optExpires = option{name: "expires", value: "TIME",
		help: "end: a date (its last second in UTC), RFC 3339, or from now as 365d, 52w, 1y"}
	optGraceDays = option{name: "grace-days", value: "N", def: "0",
		help: "days that activated devices may go on after the end"}
	optLeaseHours = option{name: "lease-hours", value: "N",
		help: "hours that a device may work offline, 1 to 2160; 336 by default, 8 on a floating licence"}
	optEntitlements = option{name: "entitlements", value: "CODE,…", help: "codes of what the licence includes"}
	optTrial        = option{name: "trial", help: "mark the licence as a trial"}
	optMetadata     = option{name: "metadata", value: "JSON",
		help: "data of your own, a JSON object of at most 16 KiB"}
	optFloating     = option{name: "floating", help: "free a seat when its lease lapses"}
	optMaxTransfers = option{name: "max-transfers", value: "N",
		help: "how many machines may count beside those that hold the seats; none: no limit; by default as " +
			"many as seats, at least 2"}
	optDurationDays = option{name: "duration-days", value: "N",
		help: "days that the licence runs, and that a renewal adds"}
	optFromActivation = option{name: "from-activation",
		help: "count the duration from the first activation, not from now"}
	optDays        = option{name: "days", value: "N", help: "days to add; by default the licence's own duration"}
	optOldKeyUntil = option{name: "old-key-until", value: "TIME",
		help: "when the old key stops working: a date (its last second in UTC), RFC 3339, or 7d; now by default"}
	optEndTokens = option{name: "end-tokens",
		help: "end the tokens that devices have got until now, too; they keep their seats"}
	optSkipExisting = option{name: "skip-existing", help: "leave out rows whose key the account has already"}
	optStatus       = option{name: "status", value: "STATUS",
		help: "only licences that are now " + strings.Join(statuses, ", ")}
	optSearch = option{name: "search", value: "TEXT",
		help: "only the licence with this key, or those with this text in product, plan, customer, " +
			"id or the key's last symbols"}
)

// The operator's commands on licences.
var licenseCommands = []command{
	{"license add", "", "issue a licence; its key is shown once", []option{
		optAccount, optProduct, optPlan, optCustomer, optFloating, optMaxDevices, optMaxTransfers, optStarts,
		optExpires, optGraceDays, optDurationDays, optFromActivation, optLeaseHours, optEntitlements, optTrial,
		optMetadata, optForce.says("issue a licence whose end is in the past"),
	}, 0, licenseAdd},
	{"license list", "", "list licences, newest first", []option{
		optAccount.says("only licences of this account"),
		optProduct.says("only licences for this product"),
		optCustomer.says("only licences of exactly this customer"),
		optStatus, optSearch, optLimit,
	}, 0, licenseList},
	{"license show", "ID", "show a licence and its devices", nil, 1, licenseShow},
	{"license patch", "ID JSON", "change terms, as PATCH /licenses/{id} does", nil, 2, licensePatch},
	{"license renew", "ID", "extend a licence beyond its end", []option{optDays}, 1, licenseRenew},
	{"license suspend", "ID", "suspend an active licence", []option{optReason}, 1, licenseAction},
	{"license reinstate", "ID", "make a suspended licence active again", []option{optReason}, 1, licenseAction},
	{"license revoke", "ID", "end a licence for good", []option{optReason}, 1, licenseAction},
	{"license rotate-key", "ID", "give a licence a new key, shown once", []option{optOldKeyUntil, optEndTokens}, 1,
		licenseRotate},
	{"license reset-transfers", "ID", "have only the machines that hold seats count from now on", nil, 1,
		licenseResetTransfers},
	{"license limit-transfers", "", "limit the transfers of licences that have no limit, to the default", []option{
		optAccount.says("only licences of this account"), optDryRun,
	}, 0, licenseLimitTransfers},
	{"license import", "FILE.csv", "import licences with their keys; - reads standard input", []option{
		optAccount.says("account of the rows that name none"),
		optProduct.says("product of the rows that name none"),
		optSkipExisting, optDryRun, optForce.says("import licences whose end is in the past, too"),
	}, 1, licenseImport},
	{"license export", "", "print all licences, one JSON object a line or CSV", []option{optCSV}, 0, licenseExport},
}

// licenseFromOptions returns the licence that the options of license add describe. Like a
// row of an import, they are read by textTerms.
func (e *env) licenseFromOptions() (*license, error) {
	account, err := e.needAccount()
	if err != nil {
		return nil, err
	}
	starts, err := e.parseTime(e.str("starts"))
	if err != nil {
		return nil, err
	}
	expires, err := e.parseEnd(e.str("expires"))
	if err != nil {
		return nil, err
	}
	kind := map[bool]string{true: kindFloating}[e.on("floating")]
	basis := map[bool]string{true: basisFirstActivation}[e.on("from-activation")]
	terms := map[string]struct{ option, text string }{
		"product":       {"product", e.str("product")},
		"plan":          {"plan", e.str("plan")},
		"customer":      {"customer", e.str("customer")},
		"kind":          {"floating", kind},
		"max_devices":   {"max-devices", e.str("max-devices")},
		"max_transfers": {"max-transfers", e.str("max-transfers")},
		"starts_at":     {"starts", stampCell(starts)},
		"expires_at":    {"expires", stampCell(expires)},
		"grace_days":    {"grace-days", e.str("grace-days")},
		"duration_days": {"duration-days", e.str("duration-days")},
		"expiry_basis":  {"from-activation", basis},
		"lease_hours":   {"lease-hours", e.str("lease-hours")},
		"entitlements":  {"entitlements", strings.Join(e.commaList("entitlements"), " ")},
		"trial":         {"trial", strconv.FormatBool(e.on("trial"))},
		"metadata":      {"metadata", e.str("metadata")},
	}
	wrong := func(name, value, detail string) {
		if value != "" {
			detail = value + ": " + detail
		}
		err = usageError("-" + terms[name].option + ": " + detail)
	}
	reader := &textTerms{text: func(name string) string { return terms[name].text }, wrong: wrong}
	l := readNewTerms(reader).apply(&license{AccountID: account})
	switch name, detail := l.invalidTerm(); {
	case err != nil:
	case name == "product":
		err = usageError("-product NAME is needed")
	case name != "":
		wrong(name, "", detail)
	case l.endedBy(e.now()) && !e.on("force"):
		err = usageError("-expires: " + l.ExpiresAt.String() + " is in the past: add -force if that is meant")
	}
	return l, err
}

func licenseAdd(e *env) error {
	l, err := e.licenseFromOptions()
	if err != nil {
		return err
	}
	return printChanged(e, func(t *tx) (map[string]string, error) {
		id, key, err := createLicense(t, l, e.actor())
		return map[string]string{"id": id, "key": key}, err
	}, func(made map[string]string) string {
		return fmt.Sprintf("id:   %s\nkey:  %s  (shown once)\nends: %s", made["id"], made["key"], describeEnd(l))
	})
}

// describeEnd returns the moment when a licence ends, or what is known of it.
func describeEnd(l *license) string {
	switch {
	case !l.ExpiresAt.IsZero():
		return l.ExpiresAt.String()
	case l.ExpiryBasis == basisFirstActivation:
		return fmt.Sprintf("%d days after its first activation", valueOr(l.DurationDays, 0))
	}
	return "never"
}

// licenseChange runs f in a transaction and prints the licence that f returns: as JSON,
// or as describe puts it.
func (e *env) licenseChange(f func(*tx) (*license, error), describe func(licenseDetail) string) error {
	l, err := changed(e, f)
	if err != nil {
		return err
	}
	detail := newLicenseDetail(l, e.now())
	return e.print(detail, describe(detail))
}

func describeStatus(l licenseDetail) string { return l.ID + " is " + l.Status }

// licensePatch changes the terms that the JSON object on the command line names. The object is
// read like the body of PATCH /licenses/{id}.
func licensePatch(e *env) error {
	body, err := parseJSON([]byte(e.args[1]))
	if err != nil {
		return usageError("the change must be a JSON object: " + err.Error())
	}
	in := newInput(&body, nil, nil)
	change := readPatch(in)
	if err := in.err(); err != nil {
		return err
	}
	return e.licenseChange(func(t *tx) (*license, error) {
		return patchLicense(t, anyAccount, e.args[0], change, e.actor())
	}, describeStatus)
}

func licenseRenew(e *env) error {
	days, err := e.optionalNumber("days", 1, maxDurationDays)
	if err != nil {
		return err
	}
	return e.licenseChange(func(t *tx) (*license, error) {
		return renewLicense(t, anyAccount, e.args[0], days, e.actor())
	}, func(l licenseDetail) string { return l.ID + " ends at " + l.ExpiresAt.String() })
}

// licenseAction runs license suspend, license reinstate and license revoke.
func licenseAction(e *env) error {
	_, action, _ := strings.Cut(e.command.name, " ")
	reason, err := e.text("reason", maxReason)
	if err != nil {
		return err
	}
	return e.licenseChange(func(t *tx) (*license, error) {
		return changeState(t, anyAccount, e.args[0], action, reason, e.actor())
	}, describeStatus)
}

func licenseRotate(e *env) error {
	until, err := e.parseEnd(e.str("old-key-until"))
	if err != nil {
		return err
	}
	key, err := changed(e, func(t *tx) (string, error) {
		_, key, err := rotateKey(t, anyAccount, e.args[0], until, e.on("end-tokens"), e.actor())
		return key, err
	})
	if err != nil {
		return err
	}
	return e.print(map[string]string{"id": e.args[0], "key": key}, fmt.Sprintf("key: %s  (shown once)", key))
}

func licenseList(e *env) error {
	var err error
	filter := licenseFilter{product: e.str("product"), customer: e.str("customer"), status: e.str("status"),
		search: e.str("search"), now: newStamp(e.now())}
	if filter.owner, err = e.filterAccount(); err != nil {
		return err
	}
	if _, detail := oneOf(statuses...)(filter.status); filter.status != "" && detail != "" {
		return usageError("-status: " + detail)
	}
	return printAll(e, func(q *queries) ([]licenseDetail, error) {
		rows, err := listRows(e, q, (*queries).licenses, filter, "")
		return licenseDetails(rows, e.now()), err
	}, "ID PRODUCT PLAN CUSTOMER STATUS SEATS KEY EXPIRES ACCOUNT", func(l licenseDetail) []any {
		return []any{l.ID, l.Product, l.Plan, l.Customer, l.Status, formatSeats(l.Seats), "…" + l.KeyHint,
			l.ExpiresAt, l.AccountID}
	})
}

// formatSeats returns "2/5", or "2" when the licence has no limit.
func formatSeats(s seats) string {
	if s.Max == nil {
		return strconv.Itoa(s.Used)
	}
	return fmt.Sprintf("%d/%d", s.Used, *s.Max)
}

func licenseShow(e *env) error {
	return e.withStore(func(st *store) error {
		l, err := st.license(anyAccount, e.args[0])
		if err != nil {
			return err
		}
		page, err := st.devices(l.ID, "", maxHoldersShown+1)
		if err != nil {
			return err
		}
		devices := firstRows(e, page.rows, maxHoldersShown, "device list")
		detail := newLicenseDetail(l, e.now())
		if e.on("json") {
			return e.print(struct {
				licenseDetail
				Devices []*device `json:"devices"`
			}{detail, append([]*device{}, devices...)}, "")
		}
		if err := e.printMembers(detail); err != nil {
			return err
		}
		fmt.Fprintln(e.stdout)
		return printRows(e, devices, deviceHeader, deviceCells)
	})
}

// exportedColumns are the columns of license export -csv, and what each contains.
var exportedColumns = []struct {
	name string
	cell func(licenseDetail) string
}{
	{"id", func(l licenseDetail) string { return l.ID }},
	{"account_id", func(l licenseDetail) string { return l.AccountID }},
	{"product", func(l licenseDetail) string { return csvTextCell(l.Product) }},
	{"plan", func(l licenseDetail) string { return csvTextCell(valueOr(l.Plan, "")) }},
	{"kind", func(l licenseDetail) string { return l.Kind }},
	{"customer", func(l licenseDetail) string { return csvTextCell(valueOr(l.Customer, "")) }},
	{"state", func(l licenseDetail) string { return l.State }},
	{"status", func(l licenseDetail) string { return l.Status }},
	{"reason", func(l licenseDetail) string { return csvTextCell(valueOr(l.Reason, "")) }},
	{"trial", func(l licenseDetail) string { return strconv.FormatBool(l.Trial) }},
	{"max_devices", func(l licenseDetail) string { return numberCell(l.MaxDevices) }},
	{"max_transfers", transfersCell},
	{"starts_at", func(l licenseDetail) string { return stampCell(l.StartsAt) }},
	{"expires_at", func(l licenseDetail) string { return stampCell(l.ExpiresAt) }},
	{"grace_days", func(l licenseDetail) string { return strconv.Itoa(l.GraceDays) }},
	{"duration_days", func(l licenseDetail) string { return numberCell(l.DurationDays) }},
	{"expiry_basis", func(l licenseDetail) string { return l.ExpiryBasis }},
	{"lease_hours", func(l licenseDetail) string { return strconv.Itoa(l.LeaseHours) }},
	{"entitlements", func(l licenseDetail) string { return strings.Join(l.Entitlements, " ") }},
	{"metadata", func(l licenseDetail) string { return csvJSONCell(l.Metadata) }},
	{"key_hint", func(l licenseDetail) string { return l.KeyHint }},
	{"seats_used", func(l licenseDetail) string { return strconv.Itoa(l.SeatsUsed) }},
	{"first_activated_at", func(l licenseDetail) string { return stampCell(l.FirstActivatedAt) }},
	{"created_at", func(l licenseDetail) string { return stampCell(l.CreatedAt) }},
}

// transfersCell returns max_transfers as an import reads it.
func transfersCell(l licenseDetail) string {
	if l.MaxDevices != nil && l.MaxTransfers == nil {
		return noLimit
	}
	return numberCell(l.MaxTransfers)
}

// licenseResetTransfers runs license reset-transfers.
func licenseResetTransfers(e *env) error {
	return e.withStore(func(st *store) error {
		l, err := resetTransfers(e.ctx, st, e.args[0], e.actor())
		if err != nil {
			return err
		}
		return e.print(newLicenseDetail(l, e.now()), l.ID+" has only the holders of its seats count")
	})
}

// licenseLimitTransfers runs license limit-transfers.
func licenseLimitTransfers(e *env) error {
	o, err := e.filterAccount()
	if err != nil {
		return err
	}
	verb := " got"
	if e.on("dry-run") {
		verb = " would get"
	}
	return e.withStore(func(st *store) error {
		limited, err := limitTransfers(e.ctx, st, o, e.on("dry-run"), e.actor())
		if err != nil {
			return err
		}
		return e.print(map[string]int{"licenses": limited},
			countOf(limited, "licence")+verb+" the default limit of transfers")
	})
}

func licenseExport(e *env) error {
	header := make([]string, len(exportedColumns))
	for i, column := range exportedColumns {
		header[i] = column.name
	}
	return exportRows(e, header, func(st *store, before string) (listPage[licenseDetail], error) {
		filter := licenseFilter{owner: anyAccount, now: newStamp(e.now())}
		page, err := st.licenses(filter, before, exportPageSize)
		return listPage[licenseDetail]{licenseDetails(page.rows, e.now()), page.next}, err
	}, func(l licenseDetail) []string {
		cells := make([]string, len(exportedColumns))
		for i, column := range exportedColumns {
			cells[i] = column.cell(l)
		}
		return cells
	})
}

// licenseStatus is what the status command says of licences; soon is within 14 days.
type licenseStatus struct{ licenseTally }

func (r *licenseStatus) read(v *statusView) (err error) {
	r.licenseTally, err = v.tallyLicenses(newStamp(v.now), newStamp(v.now.Add(endingSoon)))
	return err
}

func (r *licenseStatus) show(_ *statusView, to *statusLines) {
	line := countsText(statuses, r.ByStatus)
	if r.Ending > 0 {
		line += fmt.Sprintf("; %d of the active end within 14 days", r.Ending)
	}
	if to.say("%s", line); r.Unlimited > 0 {
		to.ask("%s", transferAdvice(r.Unlimited))
	}
}
