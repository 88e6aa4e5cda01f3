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
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"
)

// The options of these commands.
var (
	optFloating = option{name: "floating", member: "kind", reads: switchValue(kindFloating),
		help: "free a seat when its lease lapses"}
	optFromActivation = option{name: "from-activation", member: "expiry_basis",
		reads: switchValue(basisFirstActivation), help: "count the duration from the first activation, not from now"}
	optMetadata = option{name: "metadata", value: "JSON", member: "metadata", reads: asObject,
		help: "data of your own, a JSON object of at most 16 KiB"}
	optProduct      = option{name: "product", value: "NAME", help: "product of the rows that name none"}
	optSkipExisting = option{name: "skip-existing", help: "leave out rows whose key the account has already"}
)

// The commands on licences that are names for routes.
var licenseRouteCommands = []routeCommand{
	{name: "license add", route: "POST /licenses", help: "issue a licence; its key is shown once",
		options: []option{optFloating, optFromActivation, optMetadata,
			optForce.says("issue a licence whose end is in the past")},
		before: checkEnd, says: sayNewLicense},
	{name: "license list", route: "GET /licenses", rows: &listCommand{prefix: "lic", columns: "ID PRODUCT PLAN " +
		"CUSTOMER STATUS USED=seats.used OF=max_devices KEY=key_hint EXPIRES=expires_at ACCOUNT=account_id"}},
	{name: "license set", route: "PATCH /licenses/{id}", args: "LICENSE JSON", text: "${id} is ${status}"},
	{name: "license renew", route: "POST /licenses/{id}/renew", help: "extend a licence beyond its end",
		text: "${id} ends at ${expires_at}"},
	{name: "license suspend", route: "POST /licenses/{id}/suspend", text: "${id} is ${status}"},
	{name: "license reinstate", route: "POST /licenses/{id}/reinstate", text: "${id} is ${status}"},
	{name: "license revoke", route: "POST /licenses/{id}/revoke", options: []option{optUnasked},
		text: "${id} is ${status}",
		asks: asking("ends the licence ${id} (${product}) for good, and its ${seats.used device} with it")},
	{name: "license rotate-key", route: "POST /licenses/{id}/rotate-key",
		help: "give a licence a new key, shown once", text: "key: ${key}  (shown once)",
		before: checkOldKeyUntil},
	{name: "license reset-transfers", route: "POST /licenses/{id}/reset-transfers",
		help: "have only the machines that hold seats count from now on",
		text: "${id} has only the holders of its seats count"},
	{name: "license export", route: "GET /licenses", help: "print all licences, one JSON object a line or CSV",
		rows: &listCommand{export: true, prefix: "lic", cell: exportedTerm, columns: "id account_id product plan " +
			"plan_id reference kind customer state status reason trial max_devices max_transfers " +
			"starts_at expires_at grace_days duration_days expiry_basis lease_hours offline_days " +
			"entitlements metadata key_hint seats_used=seats.used first_activated_at created_at"}},
}

// The other commands on licences.
var licenseCommands = []command{
	{"license show", "LICENSE", "show a licence and its devices", nil, licenseShow},
	{"license limit-transfers", "", "limit the transfers of licences that have no limit, to the default", []option{
		optAccount.says("only licences of this account"), optDryRun,
	}, licenseLimitTransfers},
	{"license import", "FILE.csv", "import licences with their keys; - <FILE.csv has your shell open it", []option{
		optAccount.says("account of the rows that name none"), optProduct, optSkipExisting, optDryRun,
		optForce.says("import licences whose end is in the past, too"),
	}, licenseImport},
}

// checkEnd refuses, without -force, a licence whose end is in the past.
func checkEnd(e *env, r *routeRequest) error {
	if ends, given := r.members["expires_at"].(stamp); given && ends.Before(e.now()) && !e.on("force") {
		return usageError("-expires: " + ends.String() + " is in the past: add -force if that is meant")
	}
	return nil
}

// sayNewLicense says the key of a new licence, and when it ends.
func sayNewLicense(made *jsonValue) string {
	const text = "id:   ${id}\nkey:  ${key}  (shown once)\nends: "
	if rawMember(made, "expires_at") == "" && rawMember(made, "expiry_basis") == basisFirstActivation {
		return text + "${duration_days} days after its first activation"
	}
	return text + "${expires_at|never}"
}

// checkOldKeyUntil refuses an end of the old key that has passed, which a slip of the year may be.
func checkOldKeyUntil(e *env, r *routeRequest) error {
	if until, given := r.members["old_key_until"].(stamp); given && until.Before(e.now()) {
		return usageError("-old-key-until: " + until.String() + " is in the past: leave it out to end the old key now")
	}
	return nil
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
		if r, err = e.request(routeOfDevices); err == nil {
			devices, err = listOfDevices.firstRows(e, o.pages(r), maxHoldersShown, "device list")
		}
		return err
	})
	if err != nil {
		return err
	}
	whole := bytes.TrimSuffix(bytes.TrimSpace(shown), []byte("}"))
	all := []json.RawMessage{}
	for _, d := range devices {
		all = append(all, json.RawMessage(d.raw))
	}
	return e.printObject(json.RawMessage(fmt.Sprintf("%s,\"devices\":%s}", whole, bytes.TrimSpace(encodeJSON(all)))))
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

// The command on devices that is a name for a route, and the list of all.
var deviceRouteCommands = []routeCommand{
	{name: "device list", route: routeOfDevices, args: "LICENSE", rows: &listOfDevices},
	{name: "device export", help: "print all devices, one JSON object a line or CSV", rows: &listCommand{export: true,
		pages: paged(exportedDevices), columns: "license_id id name state platform app_version fingerprint " +
			"activated_at last_seen_at released_at released_by clone_suspected_at offline_until"}},
}

// The operator's other commands on devices and their leases.
var deviceCommands = []command{
	{"device release", "DEVICE", "release a device's seat, or unblock a blocked device", nil,
		changeDevice("released", func(t *tx, l *license, d *device, actor string) {
			if d.State != deviceReleased {
				releaseSeat(t, l, d, "operator", eventDeviceReleased, actor)
			}
		})},
	{"device block", "DEVICE", "block a device until it is released", nil, changeDevice("blocked", blockDevice)},
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
	if e.explainLease(token); invalid != nil {
		return invalid
	}
	left := time.Unix(c.Expires, 0).Sub(e.now())
	until := left.Round(time.Second).String()
	if left >= 48*time.Hour {
		until = fmt.Sprintf("%.0f days", left.Hours()/24)
	}
	e.say("\nThe lease is valid: its signature is right, and it expires in %s.\n", until)
	for _, name := range []string{"fingerprint", "audience"} {
		if e.str(name) == "" {
			e.say("Not compared, because -%s is not given: the %s.\n", name, name)
		}
	}
	return nil
}

// explainLease prints the header and the claims of a token as far as they can be parsed,
// whether or not its signature is valid.
func (e *env) explainLease(token string) {
	width, beside := e.width(), 44 // columns of what a claim says, beside what it means
	if width > 0 && width < 110 {
		beside = 0
	}
	parts := strings.Split(token, ".")
	for i, title := range []string{"header", "claims"} {
		if i >= len(parts) {
			return
		}
		raw, ok := decodeSegment(parts[i])
		v, err := parseJSON(raw)
		if !ok || err != nil {
			e.say("%s: can't be read\n", title)
			continue
		}
		if title == "header" {
			for _, m := range v.members {
				e.say("%-10s %s\n", printable(m.name), printable(m.value.text))
			}
			continue
		}
		for _, line := range claimMeanings {
			if m, there := v.member(line.claim); there {
				text := fmt.Sprintf("%-*s %s", beside, claimText(line.claim, m), line.meaning)
				io.WriteString(e.stdout, detailLines([]detail{{fmt.Sprintf("%-9s", line.claim), text}}, width))
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

// listOfDevices lists a licence's devices, with which routeOfDevices answers.
var listOfDevices = listCommand{prefix: "dev", columns: "DEVICE=id NAME STATE PLATFORM VERSION=app_version " +
	"FINGERPRINT ACTIVATED=activated_at SEEN=last_seen_at OFFLINE_UNTIL RELEASED=released_at BY=released_by"}

const routeOfDevices = "GET /licenses/{id}/devices"

// changeDevice makes a command that calls f with the device that it names, and its licence. did says what f does.
func changeDevice(did string, f func(t *tx, l *license, d *device, actor string)) func(*env) error {
	return func(e *env) error {
		return e.changeAndName(func(t *tx) (string, error) {
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
