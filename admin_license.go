package main

import (
	"bufio"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/csv"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// licenseCommands are the operator's commands on licences, devices and leases.
var licenseCommands = []command{
	{"license add", "", "issue a licence; its key is shown once", []string{"account", "product", "plan", "floating", "max-devices", "max-transfers", "starts", "expires", "grace-days", "duration-days", "from-activation", "lease-hours", "entitlements", "trial", "metadata"}, 0, licenseAdd},
	{"license list", "", "list licences, newest first", []string{"account", "product", "status", "search", "limit"}, 0, licenseList},
	{"license show", "ID", "show a licence and its devices", nil, 1, licenseShow},
	{"license patch", "ID JSON", "change terms, as PATCH /licenses/{id} does", nil, 2, licensePatch},
	{"license renew", "ID", "move the end of a licence", []string{"days"}, 1, licenseRenew},
	{"license suspend", "ID", "suspend an active licence", []string{"reason"}, 1, licenseAction},
	{"license reinstate", "ID", "make a suspended licence active again", []string{"reason"}, 1, licenseAction},
	{"license revoke", "ID", "end a licence for good", []string{"reason"}, 1, licenseAction},
	{"license rotate-key", "ID", "give a licence a new key, shown once", []string{"old-key-until"}, 1, licenseRotate},
	{"license import", "FILE.csv", "take over licences with their keys, all of them or none", []string{"account", "product", "dry-run"}, 1, licenseImport},
	{"license export", "", "print all licences, one JSON object a line or CSV", []string{"csv"}, 0, licenseExport},
	{"device list", "LICENSE", "list a licence's devices, newest first", []string{"limit"}, 1, deviceList},
	{"device release", "ID", "give a device's seat back, or let a blocked one in again", nil, 1, deviceRelease},
	{"device block", "ID", "shut a device out", nil, 1, deviceBlock},
	{"device export", "", "print all devices, one JSON object a line or CSV", []string{"csv"}, 0, deviceExport},
	{"lease inspect", "TOKEN", "explain a device token line by line and say whether it holds, without the database", []string{"public", "fingerprint", "audience"}, 1, leaseInspect},
}

// licenseFromOptions reads a new licence from the command line, by the same reader
// as a line of an import.
func (e *env) licenseFromOptions() (*license, error) {
	account, err := e.needAccount()
	if err != nil {
		return nil, err
	}
	starts, err := e.parseMoment(e.str("starts"))
	if err != nil {
		return nil, err
	}
	expires, err := e.parseMoment(e.str("expires"))
	if err != nil {
		return nil, err
	}
	terms := []struct{ name, option, cell string }{
		{"product", "product", e.str("product")}, {"plan", "plan", e.str("plan")},
		{"kind", "floating", map[bool]string{true: kindFloating}[e.on("floating")]},
		{"max_devices", "max-devices", e.str("max-devices")}, {"max_transfers", "max-transfers", e.str("max-transfers")},
		{"starts_at", "starts", stampCell(starts)}, {"expires_at", "expires", stampCell(expires)},
		{"grace_days", "grace-days", e.str("grace-days")}, {"duration_days", "duration-days", e.str("duration-days")},
		{"expiry_basis", "from-activation", map[bool]string{true: basisFirstActivation}[e.on("from-activation")]},
		{"lease_hours", "lease-hours", e.str("lease-hours")}, {"entitlements", "entitlements", strings.Join(e.list("entitlements"), " ")},
		{"trial", "trial", strconv.FormatBool(e.on("trial"))}, {"metadata", "metadata", e.str("metadata")},
	}
	cells := csvTerms{}
	options := map[string]string{}
	for _, t := range terms {
		cells.header, cells.record = append(cells.header, t.name), append(cells.record, t.cell)
		options[t.name] = t.option
	}
	cells.wrong = func(name, detail string) { err = usageError("-" + options[name] + ": " + detail) }
	l := readNewTerms(&cells).apply(&license{AccountID: account})
	if err != nil {
		return nil, err
	}
	if l.Product == "" {
		return nil, usageError("-product NAME is needed")
	}
	if name, detail := l.termsFault(); name != "" {
		return nil, usageError("-" + options[name] + ": " + detail)
	}
	return l, nil
}

func licenseAdd(e *env) error {
	l, err := e.licenseFromOptions()
	if err != nil {
		return err
	}
	var id, key string
	err = e.change(func(t *tx) (err error) {
		id, key, err = createLicense(t, l, actorCommand)
		return err
	})
	if err != nil {
		return err
	}
	return e.print(map[string]string{"id": id, "key": key}, fmt.Sprintf("id:  %s\nkey: %s  (shown once)", id, key))
}

// licenseChange runs a change of the licence that the command names, and prints
// what it says of it.
func (e *env) licenseChange(f func(*tx) (*license, error), say func(licenseDetail) string) error {
	var l *license
	err := e.change(func(t *tx) (err error) {
		l, err = f(t)
		return err
	})
	if err != nil {
		return err
	}
	detail := detailLicense(l, e.now())
	return e.print(detail, say(detail))
}

func sayStatus(l licenseDetail) string { return l.ID + " is " + l.Status }

// licensePatch changes terms that the command line gives as a JSON object, by the
// same reader as the endpoint.
func licensePatch(e *env) error {
	body, err := parseJSON([]byte(e.args[1]))
	if err != nil {
		return usageError("the change must be a JSON object: " + err.Error())
	}
	in := newInput(&body, nil, nil)
	change := readPatch(in)
	if err := in.refusal(); err != nil {
		return err
	}
	return e.licenseChange(func(t *tx) (*license, error) { return patchLicense(t, e.args[0], change, actorCommand) }, sayStatus)
}

func licenseRenew(e *env) error {
	days, err := e.optionalNumber("days", 1, maxDurationDays)
	if err != nil {
		return err
	}
	return e.licenseChange(func(t *tx) (*license, error) { return renewLicense(t, e.args[0], days, actorCommand) },
		func(l licenseDetail) string { return l.ID + " ends at " + l.ExpiresAt.String() })
}

// licenseAction is suspend, reinstate or revoke.
func licenseAction(e *env) error {
	_, action, _ := strings.Cut(e.command.name, " ")
	reason, err := e.text("reason", maxReason)
	if err != nil {
		return err
	}
	return e.licenseChange(func(t *tx) (*license, error) { return changeState(t, e.args[0], action, reason, actorCommand) }, sayStatus)
}

func licenseRotate(e *env) error {
	until, err := e.parseMoment(e.str("old-key-until"))
	if err != nil {
		return err
	}
	key := ""
	if err := e.change(func(t *tx) (err error) {
		_, key, err = rotateKey(t, e.args[0], until, actorCommand)
		return err
	}); err != nil {
		return err
	}
	return e.print(map[string]string{"id": e.args[0], "key": key}, fmt.Sprintf("key: %s  (shown once)", key))
}

func licenseList(e *env) error {
	limit, err := e.number("limit", 1, 1_000_000)
	if err != nil {
		return err
	}
	filter := licenseFilter{product: e.str("product"), status: e.str("status"), search: e.str("search"), now: newStamp(e.now())}
	if filter.accountID, err = e.filterID("account", "acct"); err != nil {
		return err
	}
	if _, detail := oneOf(statuses...)(filter.status); filter.status != "" && detail != "" {
		return usageError("-status: " + detail)
	}
	return e.withStore(func(st *store) error {
		rows, err := st.licenses(filter, "", limit+1)
		if err != nil {
			return err
		}
		all := []licenseDetail{}
		for _, l := range firstRows(e, rows, limit, "-limit N") {
			all = append(all, detailLicense(l, e.now()))
		}
		return printRows(e, all, "ID PRODUCT PLAN STATUS SEATS KEY EXPIRES ACCOUNT", func(l licenseDetail) []any {
			return []any{l.ID, l.Product, l.Plan, l.Status, seatText(l.Seats), "…" + l.KeyHint, l.ExpiresAt, l.AccountID}
		})
	})
}

func seatText(s seats) string {
	if s.Max == nil {
		return fmt.Sprintf("%d", s.Used)
	}
	return fmt.Sprintf("%d/%d", s.Used, *s.Max)
}

func licenseShow(e *env) error {
	return e.withStore(func(st *store) error {
		l, err := st.license("", e.args[0])
		if err != nil {
			return err
		}
		devices, err := st.devices(l.ID, "", "", maxHoldersShown+1)
		if err != nil {
			return err
		}
		devices = firstRows(e, devices, maxHoldersShown, "device list")
		shown := struct {
			licenseDetail
			Devices []deviceView `json:"devices"`
		}{detailLicense(l, e.now()), []deviceView{}}
		if e.on("json") {
			for _, d := range devices {
				shown.Devices = append(shown.Devices, viewDevice(d))
			}
			return e.print(shown, "")
		}
		pretty := json.NewEncoder(e.stdout)
		pretty.SetIndent("", "  ")
		if err := pretty.Encode(shown.licenseDetail); err != nil {
			return err
		}
		return printDevices(e, devices)
	})
}

func printDevices(e *env, rows []*device) error {
	views := []deviceView{}
	for _, d := range rows {
		views = append(views, viewDevice(d))
	}
	return printRows(e, views, "DEVICE NAME STATE PLATFORM VERSION FINGERPRINT ACTIVATED SEEN RELEASED BY", func(d deviceView) []any {
		return []any{d.ID, d.Name, d.State, d.Platform, d.AppVersion, d.Fingerprint + "…", d.ActivatedAt, d.LastSeenAt, d.ReleasedAt, d.ReleasedBy}
	})
}

func deviceList(e *env) error {
	limit, err := e.number("limit", 1, 1_000_000)
	if err != nil {
		return err
	}
	return e.withStore(func(st *store) error {
		if _, err := st.license("", e.args[0]); err != nil {
			return err
		}
		rows, err := st.devices(e.args[0], "", "", limit+1)
		if err != nil {
			return err
		}
		return printDevices(e, firstRows(e, rows, limit, "-limit N"))
	})
}

// changeDevice runs f on the device that the command names.
func (e *env) changeDevice(f func(*tx, *license, *device) error) error {
	return e.changeQuietly(func(t *tx) error {
		d, err := t.device("", e.args[0])
		if err != nil {
			return err
		}
		l, err := t.license("", d.LicenseID)
		if err != nil {
			return err
		}
		return f(t, l, d)
	})
}

func deviceRelease(e *env) error {
	return e.changeDevice(func(t *tx, l *license, d *device) error {
		if d.State == deviceReleased {
			return nil
		}
		return release(t, l, d, "operator", "device.released", actorCommand)
	})
}

func deviceBlock(e *env) error {
	return e.changeDevice(func(t *tx, l *license, d *device) error { return block(t, l, d, actorCommand) })
}

func licenseExport(e *env) error {
	header := []string{"id", "account_id", "product", "plan", "kind", "state", "status", "reason", "trial", "max_devices", "max_transfers", "starts_at", "expires_at",
		"grace_days", "duration_days", "expiry_basis", "lease_hours", "entitlements", "metadata", "key_hint", "seats_used", "first_activated_at", "created_at"}
	return exportRows(e, header, func(st *store, before string) (page []licenseDetail, err error) {
		rows, err := st.licenses(licenseFilter{now: newStamp(e.now())}, before, exportPage)
		for _, l := range rows {
			page = append(page, detailLicense(l, e.now()))
		}
		return page, err
	}, func(l licenseDetail) string { return l.ID }, func(l licenseDetail) []string {
		return []string{l.ID, l.AccountID, plainCell(l.Product), plainCell(textOr(l.Plan, "")), l.Kind, l.State, l.Status, plainCell(textOr(l.Reason, "")), strconv.FormatBool(l.Trial),
			numberCell(l.MaxDevices), numberCell(l.MaxTransfers), stampCell(l.StartsAt), stampCell(l.ExpiresAt), strconv.Itoa(l.GraceDays), numberCell(l.DurationDays),
			l.ExpiryBasis, strconv.Itoa(l.LeaseHours), strings.Join(l.Entitlements, " "), string(l.Metadata), l.KeyHint, strconv.Itoa(l.SeatsUsed),
			stampCell(l.FirstActivatedAt), stampCell(l.CreatedAt)}
	})
}

// An exportedDevice is a device with the licence it belongs to.
type exportedDevice struct {
	LicenseID string `json:"license_id"`
	deviceView
}

func deviceExport(e *env) error {
	header := []string{"license_id", "id", "name", "state", "platform", "app_version", "fingerprint", "activated_at", "last_seen_at", "released_at", "released_by", "clone_suspected_at"}
	return exportRows(e, header, func(st *store, before string) (page []exportedDevice, err error) {
		rows, err := st.allDevices(before, exportPage)
		for _, d := range rows {
			page = append(page, exportedDevice{d.LicenseID, viewDevice(d)})
		}
		return page, err
	}, func(d exportedDevice) string { return d.ID }, func(d exportedDevice) []string {
		return []string{d.LicenseID, d.ID, plainCell(textOr(d.Name, "")), d.State, plainCell(textOr(d.Platform, "")), plainCell(textOr(d.AppVersion, "")), d.Fingerprint,
			stampCell(d.ActivatedAt), stampCell(d.LastSeenAt), stampCell(d.ReleasedAt), textOr(d.ReleasedBy, ""), stampCell(d.CloneAt)}
	})
}

func numberCell(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}

func stampCell(s stamp) string {
	if s.IsZero() {
		return ""
	}
	return s.String()
}

// importColumns are what a CSV file of licences may have; key is required.
var importColumns = []string{"key", "account_id", "product", "plan", "kind", "state", "reason", "trial", "max_devices", "max_transfers", "starts_at", "expires_at",
	"grace_days", "duration_days", "expiry_basis", "lease_hours", "entitlements", "metadata"}

const importProgress = 10_000 // rows between two lines of progress

// An importedLicense is one row of the file.
type importedLicense struct {
	line    int
	license *license
	key     licenseKey
}

// licenseImport takes over licences from a CSV file, all of them or none: every bad
// row is named with its line, and one bad row keeps the file out.
func licenseImport(e *env) error {
	product, err := e.text("product", maxNameLength)
	if err != nil {
		return err
	}
	f, err := os.Open(e.args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	var faults importFaults
	rows, err := e.readImport(f, license{AccountID: e.str("account"), Product: product}, &faults)
	if err == nil {
		err = e.withStore(func(st *store) error { return judgeImport(st, rows, &faults) })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", e.args[0], err)
	}
	if err := faults.err(); err != nil {
		return fmt.Errorf("%s: nothing was imported: %w", e.args[0], err)
	}
	if e.on("dry-run") {
		return e.print(map[string]any{"rows": len(rows), "imported": 0}, fmt.Sprintf("%d rows are right; nothing was imported", len(rows)))
	}
	if err := e.change(func(t *tx) error { return importRows(e, t, rows) }); err != nil {
		return fmt.Errorf("%s: nothing was imported: %w", e.args[0], err)
	}
	return e.print(map[string]any{"rows": len(rows), "imported": len(rows)}, fmt.Sprintf("%d licences imported", len(rows)))
}

// importFaults are what is wrong with a file.
type importFaults []importFault

type importFault struct {
	line int
	what string
}

func (f *importFaults) add(line int, what string) { *f = append(*f, importFault{line, what}) }

// err names every fault with its line.
func (f importFaults) err() error {
	if len(f) == 0 {
		return nil
	}
	slices.SortStableFunc(f, func(a, b importFault) int { return a.line - b.line })
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fmt.Sprintf("line %d: %s", fault.line, fault.what)
	}
	return errors.New(strings.Join(lines, "\n"))
}

// readImport reads and judges every row; what a row does not say is as in usual. Its
// error means that the file can't be read at all.
func (e *env) readImport(f io.Reader, usual license, faults *importFaults) (rows []importedLicense, err error) {
	r, header, err := openImport(f)
	if err != nil {
		return nil, err
	}
	seen := map[licenseKey]int{}
	for {
		record, err := r.Read()
		var broken *csv.ParseError
		switch {
		case err == io.EOF:
			return rows, nil
		case errors.Is(err, csv.ErrFieldCount):
			line, _ := r.FieldPos(0)
			faults.add(line, fmt.Sprintf("it has %d cells and the header %d", len(record), len(header)))
			continue
		case errors.As(err, &broken):
			faults.add(broken.StartLine, fmt.Sprintf("its quotes are wrong at line %d, column %d: %v", broken.Line, broken.Column, broken.Err))
			continue
		case err != nil:
			return nil, err
		}
		line, _ := r.FieldPos(0)
		row := importedLicense{line: line}
		cells := csvTerms{header: header, record: record, wrong: func(name, detail string) { faults.add(line, name+": "+detail) }}
		if row.key, err = parseLicenseKey(cells.cell("key")); err != nil {
			faults.add(line, "key: it must have 16 to 255 visible ASCII characters, and in the shape of our own keys (25 letters and digits) a right check symbol")
		} else if first, twice := seen[row.key]; twice {
			faults.add(line, fmt.Sprintf("key: it stands on line %d already", first))
		} else {
			seen[row.key] = line
		}
		row.license = readImportTerms(&cells, usual)
		rows = append(rows, row)
		if len(rows)%importProgress == 0 {
			fmt.Fprintf(e.stderr, "%d rows read\n", len(rows))
		}
	}
}

// openImport reads the header, behind the byte order mark that some programs write.
func openImport(f io.Reader) (r *csv.Reader, header []string, err error) {
	buffered := bufio.NewReader(f)
	if mark, _ := buffered.Peek(3); string(mark) == "\ufeff" {
		buffered.Discard(3)
	}
	r = csv.NewReader(buffered)
	if header, err = r.Read(); err == io.EOF {
		return nil, nil, errors.New("it is empty; the first line names the columns")
	} else if err != nil {
		return nil, nil, fmt.Errorf("read the header: %w", err)
	}
	for i, name := range header {
		if !slices.Contains(importColumns, name) || slices.Contains(header[:i], name) {
			return nil, nil, fmt.Errorf("column %q is unknown or there twice: there are %s, separated by commas", name, strings.Join(importColumns, ", "))
		}
	}
	if !slices.Contains(header, "key") {
		return nil, nil, errors.New("the column key is missing")
	}
	return r, header, nil
}

func readImportTerms(cells *csvTerms, usual license) *license {
	l := &usual
	l.AccountID = orDefault(cells.cell("account_id"), usual.AccountID)
	if !validID("acct", l.AccountID) {
		cells.wrong("account_id", "There is no account here, and no -account.")
	}
	state, _ := cells.textTerm("state", maxNameLength, oneOf(statusActive, statusSuspended, statusRevoked))
	l.State = textOr(state, statusActive)
	l.Reason, _ = cells.textTerm("reason", maxReason, nil)
	readNewTerms(cells).apply(l)
	if name, detail := l.termsFault(); name != "" {
		cells.wrong(name, detail)
	}
	return l
}

// judgeImport notes the rows whose account or key does not fit what is there.
func judgeImport(st *store, rows []importedLicense, faults *importFaults) error {
	accounts := map[string]error{}
	for _, row := range rows {
		account, known := accounts[row.license.AccountID]
		if !known {
			if account = st.openAccount(row.license.AccountID); account != nil && !errors.Is(account, errAccount) {
				return account
			}
			accounts[row.license.AccountID] = account
		}
		if account != nil && validID("acct", row.license.AccountID) {
			faults.add(row.line, "account_id: "+errAccount.detail)
		}
		if row.key == "" {
			continue
		}
		if _, err := st.licenseByKey(row.key.hash()); err == nil {
			faults.add(row.line, "key: "+errKeyTaken.Error())
		} else if !errors.Is(err, errNotFound) {
			return err
		}
	}
	return nil
}

// importRows writes the rows, all of them or none.
func importRows(e *env, t *tx, rows []importedLicense) error {
	for i, row := range rows {
		l := *row.license
		l.complete(t.now)
		_, err := t.addLicense(&l, row.key, actorCommand)
		if err != nil {
			return fmt.Errorf("line %d: %w", row.line, err)
		}
		if (i+1)%importProgress == 0 {
			fmt.Fprintf(e.stderr, "%d rows written\n", i+1)
		}
	}
	return nil
}

// csvTerms reads terms from one row; an empty cell is an absent term.
type csvTerms struct {
	header, record []string
	wrong          func(name, detail string)
}

func (c *csvTerms) cell(name string) string {
	if at := slices.Index(c.header, name); at >= 0 {
		return strings.TrimSpace(c.record[at])
	}
	return ""
}

func (c *csvTerms) textTerm(name string, max int, check func(string) (code, detail string)) (*string, bool) {
	cell := c.cell(name)
	if cell == "" {
		return nil, false
	}
	code, detail := checkText(cell, required, max)
	if code == "" && check != nil {
		code, detail = check(cell)
	}
	if code != "" {
		c.wrong(name, detail)
	}
	return &cell, true
}

func (c *csvTerms) numberTerm(name string, low, high int) (*int, bool) {
	cell := c.cell(name)
	if cell == "" {
		return nil, false
	}
	n, err := strconv.Atoi(cell)
	if err != nil || n < low || n > high {
		c.wrong(name, fmt.Sprintf("This must be a whole number from %d to %d.", low, high))
	}
	return &n, true
}

func (c *csvTerms) flagTerm(name string) (value, present bool) {
	cell := strings.ToLower(c.cell(name))
	if cell != "" && !slices.Contains([]string{"true", "false", "1", "0", "yes", "no"}, cell) {
		c.wrong(name, "This must be true or false.")
	}
	return slices.Contains([]string{"true", "1", "yes"}, cell), cell != ""
}

func (c *csvTerms) momentTerm(name string) (stamp, bool) {
	cell := c.cell(name)
	if cell == "" {
		return stamp{}, false
	}
	if day, err := time.Parse(time.DateOnly, cell); err == nil {
		cell = newStamp(day).String()
	}
	t, ok := parseMoment(cell)
	if !ok {
		c.wrong(name, "This must be a date as 2027-01-31 or a time as 2027-01-31T12:00:00Z.")
	}
	return t, true
}

func (c *csvTerms) codesTerm(name string) (codeList, bool) {
	codes := strings.Fields(c.cell(name))
	checkCodes(codes, func(at int, _, detail string) { c.wrong(name, codes[at]+": "+detail) })
	return codes, len(codes) > 0
}

func (c *csvTerms) objectTerm(name string) (json.RawMessage, bool) {
	cell := c.cell(name)
	if cell == "" {
		return nil, false
	}
	v, err := parseJSON([]byte(cell))
	if err != nil || len(cell) > maxMetadata || v.hasControl() {
		c.wrong(name, "This must be a JSON object of at most 16 KiB, without control characters.")
	}
	return json.RawMessage(cell), true
}

// leaseLines explain the claims of a device token, in the order they are shown.
var leaseLines = []struct{ claim, meaning string }{
	{"iss", "who signed it"}, {"aud", "for whom: the same address"}, {"sub", "the account of the licence"}, {"client_id", "who carries it"},
	{"scope", "what it is good for"}, {"jti", "its own number"}, {"lic", "the licence"}, {"dev", "the device"}, {"fph", "SHA-256 of the device's fingerprint"},
	{"prd", "the product"}, {"ent", "what the licence includes"}, {"seq", "number of the lease: a lower one is older"}, {"iat", "when it was signed"},
	{"exp", "until when it proves the licence offline"}, {"lexp", "when the licence ends"}, {"gexp", "when its grace ends"},
	{"rfa", "seconds after which to ask for another"}, {"nonce", "what the device sent to have signed"},
}

// leaseInspect explains a device token as a device without a network would judge
// it, with nothing but the public keys.
func leaseInspect(e *env) error {
	if e.str("public") == "" {
		return usageError("-public FILE is needed: 'widgetd key public' prints it")
	}
	ring, err := loadPublicKeys(e.str("public"))
	if err != nil {
		return err
	}
	token := e.args[0]
	c, err := ring.verify(token)
	fault, believed := "", &c
	if err != nil {
		believed, fault = nil, "its signature does not hold under these keys, or it is no token of this service"
	} else {
		fault = leaseFault(c, e.str("fingerprint"), e.str("audience"), e.now())
	}
	if e.on("json") {
		if err := e.print(map[string]any{"holds": fault == "", "fault": fault, "claims": believed}, ""); err != nil {
			return err
		}
	} else {
		explainLease(e.stdout, token)
	}
	if fault != "" {
		return errors.New("the lease does not hold: " + fault)
	}
	if e.on("json") {
		return nil
	}
	fmt.Fprintf(e.stdout, "\nThe lease holds: the signature is right, and it ends in %s.\n", time.Unix(c.Expires, 0).Sub(e.now()).Round(time.Second))
	for _, name := range []string{"fingerprint", "audience"} {
		if e.str(name) == "" {
			fmt.Fprintf(e.stdout, "Not compared, for want of -%s: the %s.\n", name, name)
		}
	}
	return nil
}

// explainLease prints header and claims of a token as far as they can be read,
// whether or not they can be believed.
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
		for _, line := range leaseLines {
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

// printable is a text without what could play with a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}

// loadPublicKeys reads public keys in PEM, as key public prints them. The ring can
// verify and nothing else.
func loadPublicKeys(path string) (*keyring, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	ring := &keyring{}
	for {
		block, rest := pem.Decode(content)
		if block == nil {
			break
		}
		content = rest
		parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
		public, ok := parsed.(ed25519.PublicKey)
		if err != nil || !ok {
			return nil, fmt.Errorf("%s: a block is no Ed25519 public key", path)
		}
		ring.keys = append(ring.keys, signingKey{public: public, kid: thumbprint(public)})
	}
	if len(ring.keys) == 0 {
		return nil, fmt.Errorf("%s: there is no public key in it: 'widgetd key public' prints them", path)
	}
	return ring, nil
}
