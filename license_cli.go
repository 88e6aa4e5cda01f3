package main

import (
	"cmp"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The options of these commands.
var (
	optProduct = option{name: "product", value: "NAME", help: "the product that the licence is for"}
	optPlan    = option{name: "plan", value: "NAME", help: "the plan under which the licence was sold"}
	optPlanID  = option{name: "plan-id", value: "PLAN",
		help: "the plan whose terms it gets, unless options give others"}
	optSaleReference = option{name: "reference", value: "TEXT",
		help: "your own number for the sale, which no other licence of the account has"}
	optCustomer = option{name: "customer", value: "TEXT",
		help: "your own name, address or number for the buyer, at most 200 characters"}
	optMaxDevices = option{name: "max-devices", value: "N", help: "number of seats; no limit by default"}
	optStarts     = option{name: "starts", value: "TIME",
		help: "start: a date (its first second in UTC), RFC 3339, or from now as 7d, 2w"}
	optExpires = option{name: "expires", value: "TIME",
		help: "end: a date (its last second in UTC), RFC 3339, or from now as 365d, 52w, 1y"}
	optGraceDays = option{name: "grace-days", value: "N",
		help: "days that activated devices may go on after the end; 0 by default"}
	optLeaseHours = option{name: "lease-hours", value: "N",
		help: "hours that a device may work offline, 1 to 2160; 336 by default, 8 on a floating licence"}
	optOfflineDays = option{name: "offline-days", value: "N",
		help: "days that a lease for a device without a network lasts, 1 to 365; 0 by default: there are none"}
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
		optAccount, optPlanID, optProduct, optPlan, optSaleReference, optCustomer, optFloating, optMaxDevices,
		optMaxTransfers, optStarts,
		optExpires, optGraceDays, optDurationDays, optFromActivation, optLeaseHours, optOfflineDays,
		optEntitlements, optTrial,
		optMetadata, optForce.says("issue a licence whose end is in the past"),
	}, 0, licenseAdd},
	{"license list", "", "list licences, newest first", []option{
		optAccount.says("only licences of this account"),
		optProduct.says("only licences for this product"),
		optCustomer.says("only licences of exactly this customer"),
		optStatus, optSearch, optLimit, optSince, optUntil,
	}, 0, licenseList},
	{"license show", "LICENSE", "show a licence and its devices", nil, 1, licenseShow},
	{"license set", "LICENSE JSON", "change terms, as PATCH /licenses/{id} does", nil, 2, licensePatch},
	{"license renew", "LICENSE", "extend a licence beyond its end", []option{optDays}, 1, licenseRenew},
	{"license suspend", "LICENSE", "suspend an active licence", []option{optReason}, 1, licenseAction},
	{"license reinstate", "LICENSE", "make a suspended licence active again", []option{optReason}, 1, licenseAction},
	{"license revoke", "LICENSE", "end a licence for good", []option{optReason, optUnasked}, 1, licenseRevoke},
	{"license rotate-key", "LICENSE", "give a licence a new key, shown once", []option{optOldKeyUntil, optEndTokens}, 1,
		licenseRotate},
	{"license reset-transfers", "LICENSE", "have only the machines that hold seats count from now on", nil, 1,
		licenseResetTransfers},
	{"license limit-transfers", "", "limit the transfers of licences that have no limit, to the default", []option{
		optAccount.says("only licences of this account"), optDryRun,
	}, 0, licenseLimitTransfers},
	{"license import", "FILE.csv", "import licences with their keys; - <FILE.csv has your shell open it", []option{
		optAccount.says("account of the rows that name none"),
		optProduct.says("product of the rows that name none"),
		optSkipExisting, optDryRun, optForce.says("import licences whose end is in the past, too"),
	}, 1, licenseImport},
	{"license export", "", "print all licences, one JSON object a line or CSV", []option{optCSV,
		optAccount.says("print only licences of this account"), optSince, optUntil}, 0, licenseExport},
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
		"plan_id":       {"plan-id", e.str("plan-id")},
		"reference":     {"reference", e.str("reference")},
		"offline_days":  {"offline-days", e.str("offline-days")},
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
		"trial":         {"trial", map[bool]string{true: "true"}[e.on("trial")]},
		"metadata":      {"metadata", e.str("metadata")},
	}
	wrong := func(name, value, detail string) {
		if value != "" {
			detail = value + ": " + detail
		}
		err = usageError("-" + terms[name].option + ": " + detail)
	}
	reader := &textTerms{text: func(name string) string { return terms[name].text }, wrong: wrong}
	change := readNewTerms(reader)
	if err != nil {
		return nil, err
	}
	l, err := queried(e, func(q *queries) (*license, error) { return licenseOf(q, account, change) })
	if err != nil {
		return nil, err
	}
	switch name, detail := l.invalidTerm(); {
	case name == "product":
		err = usageError("-product NAME is needed, or -plan-id PLAN")
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
	view, err := parseJSON(encodeJSON(newLicenseDetail(&license{}, e.now())))
	if err != nil {
		return err
	}
	names := []string{"devices"} // as license show -json has them
	for _, m := range view.members {
		names = append(names, m.name)
	}
	for _, m := range body.members {
		if !slices.Contains(names, m.name) { // which the API ignores, as what a later version may know
			return unknownWord("a licence has no", m.name, names)
		}
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

// licenseAction runs license suspend and license reinstate, and license revoke once that is confirmed.
func licenseAction(e *env) error {
	_, action, _ := strings.Cut(e.command.name, " ")
	reason, err := e.text("reason", maxReason)
	if err != nil {
		return err
	}
	return e.licenseChange(func(t *tx) (*license, error) {
		return changeState(t, anyAccount, e.args[0], action, reason, true, e.actor())
	}, describeStatus)
}

func licenseRevoke(e *env) error {
	if _, err := e.text("reason", maxReason); err != nil {
		return err
	}
	err := e.confirm(func(q *queries) (string, error) {
		l, err := q.license(anyAccount, e.args[0])
		if err != nil || l.State == statusRevoked {
			return "", err
		}
		return fmt.Sprintf("ends %s for good, and its %s with it", withName("the licence "+l.ID, l.Product),
			countOf(l.SeatsUsed, "device")), nil
	})
	if err != nil {
		return err
	}
	return licenseAction(e)
}

func licenseRotate(e *env) error {
	until, err := e.parseEnd(e.str("old-key-until"))
	if err != nil {
		return err
	}
	if !until.IsZero() && until.Before(e.now()) {
		return usageError("-old-key-until: " + until.String() + " is in the past: leave it out to end the old key now")
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

// licenseIDs says how licences are ordered.
var licenseIDs = idOf[*license]{"lic", func(row *license) string { return row.ID }}

func licenseList(e *env) error {
	var err error
	filter := licenseFilter{product: e.str("product"), customer: e.str("customer"), status: e.str("status"),
		search: e.str("search"), now: newStamp(e.now())}
	if filter.owner, err = e.filterAccount(); err != nil {
		return err
	}
	if _, err = e.choice("status", statuses); err != nil {
		return err
	}
	return printAll(e, func(q *queries) ([]licenseDetail, error) {
		rows, err := spanRows(e, q, licenseIDs, (*queries).licenses, filter)
		return licenseDetails(rows, e.now()), err
	}, "ID PRODUCT PLAN CUSTOMER STATUS SEATS KEY EXPIRES ACCOUNT", func(l licenseDetail) []any {
		return []any{l.ID, l.Product, l.Plan, l.Customer, l.Status, formatSeats(l.Seats), "…" + l.KeyHint,
			l.ExpiresAt, accountCell(l.AccountID)}
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
		if err := e.printMembers(detail); err != nil || len(devices) == 0 {
			return err
		}
		fmt.Fprintln(e.stdout)
		return printRows(e, devices, deviceHeader, deviceCells)
	})
}

// exportedColumns are the columns of license export -csv, and what each contains.
var exportedColumns = []struct {
	name string
	cell func(licenseDetail) any
}{
	{"id", func(l licenseDetail) any { return l.ID }},
	{"account_id", func(l licenseDetail) any { return l.AccountID }},
	{"product", func(l licenseDetail) any { return l.Product }},
	{"plan", func(l licenseDetail) any { return l.Plan }},
	{"plan_id", func(l licenseDetail) any { return l.PlanID }},
	{"reference", func(l licenseDetail) any { return l.Reference }},
	{"kind", func(l licenseDetail) any { return l.Kind }},
	{"customer", func(l licenseDetail) any { return l.Customer }},
	{"state", func(l licenseDetail) any { return l.State }},
	{"status", func(l licenseDetail) any { return l.Status }},
	{"reason", func(l licenseDetail) any { return l.Reason }},
	{"trial", func(l licenseDetail) any { return l.Trial }},
	{"max_devices", func(l licenseDetail) any { return l.MaxDevices }},
	{"max_transfers", transfersCell},
	{"starts_at", func(l licenseDetail) any { return l.StartsAt }},
	{"expires_at", func(l licenseDetail) any { return l.ExpiresAt }},
	{"grace_days", func(l licenseDetail) any { return l.GraceDays }},
	{"duration_days", func(l licenseDetail) any { return l.DurationDays }},
	{"expiry_basis", func(l licenseDetail) any { return l.ExpiryBasis }},
	{"lease_hours", func(l licenseDetail) any { return l.LeaseHours }},
	{"offline_days", func(l licenseDetail) any { return l.OfflineDays }},
	{"entitlements", func(l licenseDetail) any { return strings.Join(l.Entitlements, " ") }},
	{"metadata", func(l licenseDetail) any { return l.Metadata }},
	{"key_hint", func(l licenseDetail) any { return l.KeyHint }},
	{"seats_used", func(l licenseDetail) any { return l.SeatsUsed }},
	{"first_activated_at", func(l licenseDetail) any { return l.FirstActivatedAt }},
	{"created_at", func(l licenseDetail) any { return l.CreatedAt }},
}

// transfersCell returns max_transfers as an import reads it.
func transfersCell(l licenseDetail) any {
	if l.MaxDevices != nil && l.MaxTransfers == nil {
		return noLimit
	}
	return l.MaxTransfers
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
	filter := licenseFilter{now: newStamp(e.now())}
	licenses, err := spanned(e, licenseIDs, (*queries).licenses)
	if err == nil {
		filter.owner, err = e.filterAccount()
	}
	if err != nil {
		return err
	}
	return exportRows(e, header, func(st *store, before string) (listPage[licenseDetail], error) {
		page, err := licenses(st.queries, filter, before, exportPageSize)
		return listPage[licenseDetail]{licenseDetails(page.rows, e.now()), page.next}, err
	}, func(l licenseDetail) []any {
		cells := make([]any, len(exportedColumns))
		for i, column := range exportedColumns {
			cells[i] = column.cell(l)
		}
		return cells
	})
}

// licenseStatus is what the status command says of licences.
func licenseStatus(v *statusView, to *statusReport) error {
	n, err := v.tallyLicenses(newStamp(v.now), newStamp(v.now.Add(endingSoon)))
	to.set("licenses_total", n.Total)
	to.set("licenses", n.ByStatus)
	to.set("licenses_soon", n.Ending)
	to.set("licenses_without_transfer_limit", n.Unlimited)
	switch {
	case err != nil:
		return err
	case n.Total > maxTallied:
		to.say("%d; the view v_licenses has their statuses", n.Total)
		return nil
	}
	line := countsText(statuses, n.ByStatus)
	if n.Ending > 0 {
		line += fmt.Sprintf("; %d of the active end within 14 days", n.Ending)
	}
	if to.say("%s", line); n.Unlimited > 0 {
		to.say("%d limit devices but not transfers: see 'widgetd license limit-transfers -dry-run'", n.Unlimited)
	}
	return nil
}

// The options of these commands.
var (
	optPublic = option{name: "public", value: "FILE",
		help: "PEM file with the public keys, as 'widgetd key public' prints them"}
	optFingerprint = option{name: "fingerprint", value: "TEXT",
		help: "the device's fingerprint, which the token must match"}
	optAudience = option{name: "audience", value: "URL",
		help: "the service's base address, which the token must match"}
)

// The operator's commands on devices and their leases.
var deviceCommands = []command{
	{"device list", "LICENSE", "list a licence's devices, newest first", []option{optLimit, optSince, optUntil}, 1,
		deviceList},
	{"device release", "DEVICE", "release a device's seat, or unblock a blocked device", nil, 1, deviceRelease},
	{"device block", "DEVICE", "block a device until it is released", nil, 1, deviceBlock},
	{"device export", "", "print all devices, one JSON object a line or CSV", []option{optCSV}, 0, deviceExport},
	{"lease inspect", "LEASE", "explain a device token and check it, without the database",
		[]option{optPublic, optFingerprint, optAudience}, 1, leaseInspect},
}

// claimMeanings explain the claims of a device token, in the order they are shown.
var claimMeanings = []struct{ claim, meaning string }{
	{"iss", "address of the service that signed the token"},
	{"aud", "address of the service that it is for: the same"},
	{"sub", "account that owns the licence"},
	{"client_id", "device that presents the token"},
	{"scope", "what the token may be used for"},
	{"jti", "id of the token"},
	{"lic", "licence"},
	{"dev", "device"},
	{"fph", "SHA-256 of the device's fingerprint"},
	{"prd", "product"},
	{"ent", "entitlements: what the licence includes"},
	{"seq", "number of the lease: a lower one is older"},
	{"iat", "when the token was signed"},
	{"exp", "until when the device may work offline"},
	{"lexp", "when the licence ends"},
	{"gexp", "when its grace ends"},
	{"rfa", "seconds after which to ask for a new lease"},
	{"nonce", "nonce that the device sent"},
}

// leaseInspect prints what a device token says, and checks it as an offline device does:
// with the public keys only. A token that is not valid is an error.
func leaseInspect(e *env) error {
	if e.str("public") == "" {
		return usageError("-public FILE is needed: 'widgetd key public' prints it")
	}
	file, err := e.open(e.str("public"))
	if err != nil {
		return err
	}
	defer file.Close()
	ring, err := loadPublicKeys(file, e.str("public"))
	if err != nil {
		return err
	}
	token := e.args[0]
	c, err := ring.verify(token)
	fault, trusted := "", &c
	if err != nil {
		trusted = nil
		fault = "its signature can't be verified with these keys, or it is not a token of this service"
	} else {
		fault = leaseFault(c, e.str("fingerprint"), e.str("audience"), e.now())
	}
	var invalid error
	if fault != "" {
		invalid = errors.New("the lease is not valid: " + fault)
	}
	if e.on("json") {
		result := map[string]any{"holds": fault == "", "fault": fault, "claims": trusted}
		return cmp.Or(e.print(result, ""), invalid)
	}
	if explainLease(e.stdout, token); invalid != nil {
		return invalid
	}
	left := time.Unix(c.Expires, 0).Sub(e.now())
	until := left.Round(time.Second).String()
	if left >= 48*time.Hour {
		until = fmt.Sprintf("%.0f days", left.Hours()/24)
	}
	fmt.Fprintf(e.stdout, "\nThe lease is valid: its signature is right, and it expires in %s.\n", until)
	for _, name := range []string{"fingerprint", "audience"} {
		if e.str(name) == "" {
			fmt.Fprintf(e.stdout, "Not compared, because -%s is not given: the %s.\n", name, name)
		}
	}
	return nil
}

// explainLease prints the header and the claims of a token as far as they can be parsed,
// whether or not its signature is valid.
func explainLease(w io.Writer, token string) {
	parts := strings.Split(token, ".")
	for i, title := range []string{"header", "claims"} {
		if i >= len(parts) {
			return
		}
		raw, ok := decodeSegment(parts[i])
		v, err := parseJSON(raw)
		if !ok || err != nil {
			fmt.Fprintf(w, "%s: can't be read\n", title)
			continue
		}
		if title == "header" {
			for _, m := range v.members {
				fmt.Fprintf(w, "%-10s %s\n", printable(m.name), printable(m.value.text))
			}
			continue
		}
		for _, line := range claimMeanings {
			if m, there := v.member(line.claim); there {
				fmt.Fprintf(w, "%-10s %-44s %s\n", line.claim, claimText(line.claim, m), line.meaning)
			}
		}
	}
}

func claimText(name string, v *jsonValue) string {
	if n, ok := v.integer(); ok && slices.Contains([]string{"iat", "exp", "lexp", "gexp"}, name) {
		return newStamp(time.Unix(n, 0)).String()
	}
	texts := []string{}
	for _, element := range v.list {
		texts = append(texts, element.text)
	}
	return printable(v.text + strings.Join(texts, " "))
}

// loadPublicKeys reads public keys in PEM, as key public prints them, from a file of that name. The keyring that it
// returns can only verify.
func loadPublicKeys(file io.Reader, path string) (*keyring, error) {
	content, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	ring := &keyring{}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
		public, ok := parsed.(ed25519.PublicKey)
		if err != nil || !ok {
			return nil, fmt.Errorf("%s: it contains a block that is not an Ed25519 public key", path)
		}
		ring.keys = append(ring.keys, signingKey{public: public, kid: thumbprint(public)})
	}
	if len(ring.keys) == 0 {
		return nil, fmt.Errorf("%s: there is no public key in it: 'widgetd key public' prints them", path)
	}
	return ring, nil
}

// The titles of the columns of devices.
const deviceHeader = "DEVICE NAME STATE PLATFORM VERSION FINGERPRINT ACTIVATED SEEN OFFLINE_UNTIL RELEASED BY"

// deviceCells returns the cells of a device below deviceHeader.
func deviceCells(d *device) []any {
	return []any{d.ID, d.Name, d.State, d.Platform, d.AppVersion, d.Fingerprint.masked() + "…",
		d.ActivatedAt, d.LastSeenAt, d.OfflineUntil, d.ReleasedAt, d.ReleasedBy}
}

func deviceList(e *env) error {
	return printAll(e, func(q *queries) ([]*device, error) {
		ids := idOf[*device]{"dev", func(row *device) string { return row.ID }}
		rows, err := spanRows(e, q, ids, (*queries).devices, e.args[0])
		if err == nil {
			_, err = q.license(anyAccount, e.args[0])
		}
		return rows, err
	}, deviceHeader, deviceCells)
}

// changeDevice runs f in a transaction, with the device that the command names and its licence. did says what f
// does.
func (e *env) changeDevice(did string, f func(*tx, *license, *device) error) error {
	return e.changeNamed(func(t *tx) (string, error) {
		d, err := t.deviceByID(anyAccount, e.args[0])
		if err != nil {
			return "", err
		}
		l, err := t.license(anyAccount, d.LicenseID)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("device %s of %s %s", withName(d.ID, valueOr(d.Name, "no name")), l.ID, did), f(t, l, d)
	})
}

func deviceRelease(e *env) error {
	return e.changeDevice("released", func(t *tx, l *license, d *device) error {
		if d.State == deviceReleased {
			return nil
		}
		releaseSeat(t, l, d, "operator", eventDeviceReleased, e.actor())
		return nil
	})
}

func deviceBlock(e *env) error {
	return e.changeDevice("blocked", func(t *tx, l *license, d *device) error {
		blockDevice(t, l, d, e.actor())
		return nil
	})
}

// An exportedDevice is a device with the licence it belongs to.
type exportedDevice struct {
	LicenseID string `json:"license_id"`
	*device
}

func deviceExport(e *env) error {
	header := []string{
		"license_id", "id", "name", "state", "platform", "app_version", "fingerprint",
		"activated_at", "last_seen_at", "released_at", "released_by", "clone_suspected_at", "offline_until",
	}
	return exportRows(e, header, func(st *store, before string) (page listPage[exportedDevice], err error) {
		devices, err := st.allDevices(anyAccount, before, exportPageSize)
		for _, d := range devices.rows {
			page.rows = append(page.rows, exportedDevice{d.LicenseID, d})
		}
		page.next = devices.next
		return page, err
	}, func(d exportedDevice) []any {
		return []any{d.LicenseID, d.ID, d.Name, d.State, d.Platform, d.AppVersion, d.Fingerprint.masked(),
			d.ActivatedAt, d.LastSeenAt, d.ReleasedAt, d.ReleasedBy, d.CloneAt, d.OfflineUntil}
	})
}
