package main

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// The options of these commands.
var (
	optProduct = option{name: "product", value: "NAME", member: "product",
		help: "the product that the licence is for"}
	optPlan = option{name: "plan", value: "NAME", member: "plan",
		help: "the plan under which the licence was sold"}
	optPlanID = option{name: "plan-id", value: "PLAN", member: "plan_id",
		help: "the plan whose terms it gets, unless options give others"}
	optSaleReference = option{name: "reference", value: "TEXT", member: "reference",
		help: "your own number for the sale, which no other licence of the account has"}
	optCustomer = option{name: "customer", value: "TEXT", member: "customer",
		help: "your own name, address or number for the buyer, at most 200 characters"}
	optMaxDevices = option{name: "max-devices", value: "N", member: "max_devices", reads: asNumber,
		help: "number of seats; no limit by default"}
	optStarts = option{name: "starts", value: "TIME", member: "starts_at", reads: asTime((*env).parseTime),
		help: "start: a date (its first second in UTC), RFC 3339, or from now as 7d, 2w"}
	optExpires = option{name: "expires", value: "TIME", member: "expires_at", reads: asTime((*env).parseEnd),
		help: "end: a date (its last second in UTC), RFC 3339, or from now as 365d, 52w, 1y"}
	optGraceDays = option{name: "grace-days", value: "N", member: "grace_days", reads: asNumber,
		help: "days that activated devices may go on after the end; 0 by default"}
	optLeaseHours = option{name: "lease-hours", value: "N", member: "lease_hours", reads: asNumber,
		help: "hours that a device may work offline, 1 to 2160; 336 by default, 8 on a floating licence"}
	optOfflineDays = option{name: "offline-days", value: "N", member: "offline_days", reads: asNumber,
		help: "days that a lease for a device without a network lasts, 1 to 365; 0 by default: there are none"}
	optEntitlements = option{name: "entitlements", value: "CODE,…", member: "entitlements", reads: asList,
		help: "codes of what the licence includes"}
	optTrial    = option{name: "trial", member: "trial", reads: sending(true), help: "mark the licence as a trial"}
	optMetadata = option{name: "metadata", value: "JSON", member: "metadata", reads: asObject,
		help: "data of your own, a JSON object of at most 16 KiB"}
	optFloating = option{name: "floating", member: "kind", reads: sending(kindFloating),
		help: "free a seat when its lease lapses"}
	optMaxTransfers = option{name: "max-transfers", value: "N", member: "max_transfers", reads: asLimit,
		help: "how many machines may count beside those that hold the seats; none: no limit; by default as " +
			"many as seats, at least 2"}
	optDurationDays = option{name: "duration-days", value: "N", member: "duration_days", reads: asNumber,
		help: "days that the licence runs, and that a renewal adds"}
	optFromActivation = option{name: "from-activation", member: "expiry_basis", reads: sending(basisFirstActivation),
		help: "count the duration from the first activation, not from now"}
	optDays = option{name: "days", value: "N", member: "days", reads: asNumber,
		help: "days to add; by default the licence's own duration"}
	optOldKeyUntil = option{name: "old-key-until", value: "TIME", member: "old_key_until",
		reads: asTime((*env).parseEnd),
		help:  "when the old key stops working: a date (its last second in UTC), RFC 3339, or 7d; now by default"}
	optEndTokens = option{name: "end-tokens", member: "end_tokens", reads: sending(true),
		help: "end the tokens that devices have got until now, too; they keep their seats"}
	optSkipExisting = option{name: "skip-existing", help: "leave out rows whose key the account has already"}
	optStatus       = option{name: "status", value: "STATUS", member: "status",
		help: "only licences that are now " + strings.Join(asTexts(licenseStatuses), ", ")}
	optSearch = option{name: "search", value: "TEXT", member: "q",
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
	}, routeCommand{route: "POST /licenses", before: checkEnd, show: showNewLicense}.run},
	{"license list", "", "list licences, newest first", []option{
		optAccount.says("only licences of this account"),
		optProduct.says("only licences for this product"),
		optCustomer.says("only licences of exactly this customer"),
		optStatus, optSearch, optLimit, optSince, optUntil,
	}, listCommand{route: "GET /licenses", prefix: "lic", columns: "ID PRODUCT PLAN CUSTOMER STATUS " +
		"USED=seats.used OF=max_devices KEY=key_hint EXPIRES=expires_at ACCOUNT=account_id"}.run},
	{"license show", "LICENSE", "show a licence and its devices", nil, licenseShow},
	{"license set", "LICENSE JSON", "change terms, as PATCH /licenses/{id} does", nil,
		routeCommand{route: "PATCH /licenses/{id}", text: "${id} is ${status}"}.run},
	{"license renew", "LICENSE", "extend a licence beyond its end", []option{optDays},
		routeCommand{route: "POST /licenses/{id}/renew", text: "${id} ends at ${expires_at}"}.run},
	{"license suspend", "LICENSE", "suspend an active licence", []option{optReason},
		routeCommand{route: "POST /licenses/{id}/suspend", text: "${id} is ${status}"}.run},
	{"license reinstate", "LICENSE", "make a suspended licence active again", []option{optReason},
		routeCommand{route: "POST /licenses/{id}/reinstate", text: "${id} is ${status}"}.run},
	{"license revoke", "LICENSE", "end a licence for good", []option{optReason, optUnasked},
		routeCommand{route: "POST /licenses/{id}/revoke", text: "${id} is ${status}",
			asks: asking("ends the licence ${id} (${product}) for good, and its ${seats.used device} with it")}.run},
	{"license rotate-key", "LICENSE", "give a licence a new key, shown once", []option{optOldKeyUntil, optEndTokens},
		routeCommand{route: "POST /licenses/{id}/rotate-key", text: "key: ${key}  (shown once)",
			before: checkOldKeyUntil}.run},
	{"license reset-transfers", "LICENSE", "have only the machines that hold seats count from now on", nil,
		routeCommand{route: "POST /licenses/{id}/reset-transfers",
			text: "${id} has only the holders of its seats count"}.run},
	{"license limit-transfers", "", "limit the transfers of licences that have no limit, to the default", []option{
		optAccount.says("only licences of this account"), optDryRun,
	}, licenseLimitTransfers},
	{"license import", "FILE.csv", "import licences with their keys; - <FILE.csv has your shell open it", []option{
		optAccount.says("account of the rows that name none"),
		optProduct.says("product of the rows that name none"),
		optSkipExisting, optDryRun, optForce.says("import licences whose end is in the past, too"),
	}, licenseImport},
	{"license export", "", "print all licences, one JSON object a line or CSV", []option{optCSV,
		optAccount.says("print only licences of this account"), optSince, optUntil},
		listCommand{route: "GET /licenses", export: true, prefix: "lic", cell: exportedTerm,
			columns: "id account_id product plan plan_id reference kind customer state status reason trial " +
				"max_devices max_transfers starts_at expires_at grace_days duration_days expiry_basis lease_hours " +
				"offline_days entitlements metadata key_hint seats_used=seats.used first_activated_at created_at"}.run},
}

// checkEnd refuses, without -force, a licence whose end is in the past.
func checkEnd(e *env, body map[string]any) error {
	if ends, given := body["expires_at"].(stamp); given && ends.Before(e.now()) && !e.on("force") {
		return usageError("-expires: " + ends.String() + " is in the past: add -force if that is meant")
	}
	return nil
}

// showNewLicense prints a new licence with its key, and when it ends.
func showNewLicense(e *env, made *jsonValue) error {
	text := "id:   ${id}\nkey:  ${key}  (shown once)\nends: ${expires_at}"
	switch {
	case textMember(made, "expires_at", len(stampLayout)) != "":
	case textMember(made, "expiry_basis", maxNameLength) == basisFirstActivation:
		text = strings.ReplaceAll(text, "${expires_at}", "${duration_days} days after its first activation")
	default:
		text = strings.ReplaceAll(text, "${expires_at}", "never")
	}
	return e.print(nil, fillText(text, made))
}

// checkOldKeyUntil refuses an end of the old key that has passed, which a slip of the year may be.
func checkOldKeyUntil(e *env, body map[string]any) error {
	if until, given := body["old_key_until"].(stamp); given && until.Before(e.now()) {
		return usageError("-old-key-until: " + until.String() + " is in the past: leave it out to end the old key now")
	}
	return nil
}

// asLimit is asNumber for a limit: "none" sends null, for no limit.
func asLimit(e *env, text string) (any, error) {
	if strings.EqualFold(text, noLimit) {
		return json.RawMessage("null"), nil
	}
	return asNumber(e, text)
}

// licenseShow prints a licence, and up to maxHoldersShown of its devices.
func licenseShow(e *env) error {
	r, err := e.request("GET /licenses/{id}")
	if err != nil {
		return err
	}
	var shown []byte
	var devices []*jsonValue
	err = e.asOperator(nil, func(o *routeCaller) error {
		if shown, err = o.call(r); err != nil {
			return err
		}
		if r, err = listOfDevices.request(e); err == nil {
			devices, err = listOfDevices.firstRows(e, o.pages(r), maxHoldersShown, "device list")
		}
		return err
	})
	if err != nil {
		return err
	}
	if e.on("json") {
		all := []json.RawMessage{}
		for _, d := range devices {
			all = append(all, json.RawMessage(d.raw))
		}
		whole := bytes.TrimSuffix(bytes.TrimSpace(shown), []byte("}"))
		_, err := fmt.Fprintf(e.stdout, "%s,\"devices\":%s}\n", whole, bytes.TrimSpace(encodeJSON(all)))
		return err
	}
	l, err := parseJSON(shown)
	if err == nil {
		err = e.printDetails(nil, membersOf(&l))
	}
	if err != nil || len(devices) == 0 {
		return err
	}
	fmt.Fprintln(e.stdout)
	return e.printRows(listOfDevices.columns, nil, devices)
}

// exportedTerm is a cellFunc for license export -csv: without a limit, max_transfers is noLimit, as an import reads it.
func exportedTerm(member string, row *jsonValue) any {
	if member == "max_transfers" && memberAt(row, "max_devices").kind != jsonNull &&
		memberAt(row, member).kind == jsonNull {
		return noLimit
	}
	return nil
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

// licensesInStatus is what the status command says of licences.
func licensesInStatus(v *statusView, to *statusReport) error {
	n, err := v.tallyLicenses(newStamp(v.now), newStamp(v.now.Add(endingSoon)))
	to.set("licenses_total", n.Total)
	to.set("licenses", n.ByStatus)
	to.set("licenses_soon", n.Ending)
	to.set("licenses_without_transfer_limit", n.Unlimited)
	switch {
	case err != nil:
		return err
	case n.Total > int64(v.limits.talliedLicenses):
		to.say("%d; the view v_licenses has their statuses", n.Total)
		return nil
	}
	line := countsText(asTexts(licenseStatuses), n.ByStatus)
	if n.Ending > 0 {
		line += fmt.Sprintf("; %d of the active end within 14 days", n.Ending)
	}
	if to.say("%s", line); n.Unlimited > 0 {
		to.say("%s devices but not transfers: see 'widgetd license limit-transfers -dry-run'",
			countedUpTo(int(n.Unlimited), "limits", "limit"))
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
	{"device list", "LICENSE", "list a licence's devices, newest first", []option{optLimit, optSince, optUntil},
		listOfDevices.run},
	{"device release", "DEVICE", "release a device's seat, or unblock a blocked device", nil,
		changeDevice("released", func(t *tx, l *license, d *device, actor string) {
			if d.State != deviceReleased {
				releaseSeat(t, l, d, "operator", eventDeviceReleased, actor)
			}
		})},
	{"device block", "DEVICE", "block a device until it is released", nil, changeDevice("blocked", blockDevice)},
	{"device export", "", "print all devices, one JSON object a line or CSV", []option{optCSV}, listCommand{
		export: true, pages: paged(exportedDevices), columns: "license_id id name state platform app_version " +
			"fingerprint activated_at last_seen_at released_at released_by clone_suspected_at offline_until"}.run},
	{"lease inspect", "LEASE", "explain a device token and check it, without the database",
		[]option{optPublic, optFingerprint, optAudience}, leaseInspect},
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

// listOfDevices lists a licence's devices.
var listOfDevices = listCommand{route: "GET /licenses/{id}/devices", prefix: "dev", columns: "DEVICE=id NAME STATE " +
	"PLATFORM VERSION=app_version FINGERPRINT ACTIVATED=activated_at SEEN=last_seen_at OFFLINE_UNTIL " +
	"RELEASED=released_at BY=released_by"}

// changeDevice makes a command that calls f with the device that it names, and its licence. did says what f does.
func changeDevice(did string, f func(t *tx, l *license, d *device, actor string)) func(*env) error {
	return func(e *env) error {
		return e.changeNamed(func(t *tx) (string, error) {
			d, err := t.deviceByID(anyAccount, e.args[0])
			if err != nil {
				return "", err
			}
			l, err := t.license(anyAccount, d.LicenseID)
			if err != nil {
				return "", err
			}
			f(t, l, d, e.actor())
			return fmt.Sprintf("device %s of %s %s", withName(d.ID, valueOr(d.Name, "no name")), l.ID, did), nil
		})
	}
}

// An exportedDevice is a device with the licence it belongs to.
type exportedDevice struct {
	LicenseID string `json:"license_id"`
	*device
}

// exportedDevices returns a page of all devices.
func exportedDevices(q *queries, _ owner, before string, limit int) (page listPage[exportedDevice], err error) {
	devices, err := q.allDevices(anyAccount, before, limit)
	for _, d := range devices.rows {
		page.rows = append(page.rows, exportedDevice{d.LicenseID, d})
	}
	page.next = devices.next
	return page, err
}
