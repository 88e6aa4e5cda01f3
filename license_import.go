package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// importColumns returns the columns that a CSV file of licences may have, besides metadata.NAME; key is required.
func importColumns() []string {
	names := []string{"key", "account_id"}
	for _, m := range importMembers(new(license)) {
		names = append(names, m.name)
	}
	return names
}

const metadataColumn = "metadata." // prefix of the names of columns that hold one member of the metadata

// importSizes are numbers of rows. Tests use smaller ones.
type importSizes struct {
	whole int // up to so many are imported in one transaction, all of them or none
	batch int // in each transaction if there are more
}

var usualImport = importSizes{whole: 10_000, batch: 1_000}

// An importedLicense is one row of the file.
type importedLicense struct {
	line    int
	license *license
	key     licenseKey
}

// A licenseImporter imports licences from one CSV file. It checks every row before it stores any.
type licenseImporter struct {
	importSizes
	account      string // of rows that name none
	product      string // of rows that name neither it nor a plan
	force        bool   // take licences whose end is in the past
	skipExisting bool   // leave out rows whose key the same account has already
	now          time.Time
	told         *progress
	note         func(format string, args ...any)
	bytes        int64  // of the file; 0: it is not known
	actor        string // of the events
	faults       importFaults
	rows         []importedLicense
	store        *store
	open         map[string]bool    // by account id: whether it exists and is not closed
	plans        map[string]*plan   // those that were read, by id; nil: there is none
	keys         map[licenseKey]int // the line of each key
	references   map[string]int     // the line of a reference, by account and reference
	total        int                // rows of the file, including those left out
}

// licenseImport imports licences from a CSV file. When a row is invalid nothing is imported, and
// the error says what is wrong in which lines.
func licenseImport(e *env) error { return importLicenses(e, usualImport) }

func importLicenses(e *env, sizes importSizes) error {
	o, err := e.filterAccount()
	if err != nil {
		return err
	}
	product := e.str("product")
	if _, detail := checkText(product, optional, maxNameLength); detail != "" {
		return usageError("-product: " + detail)
	}
	file, err := e.open(e.args[0])
	if err != nil {
		return err
	}
	name := e.args[0]
	if name == "-" {
		name = "standard input"
	}
	defer file.Close()
	return e.withStore(func(st *store) error {
		im := newImporter(st, o.account, product, sizes)
		im.force, im.skipExisting, im.now = e.on("force"), e.on("skip-existing"), e.now()
		im.note, im.actor, im.told = e.note, e.actor(), e.progress("reading "+name)
		defer im.told.end()
		if opened, is := file.(*os.File); is {
			im.bytes = fileSize(opened.Name())
		}
		if err := im.read(file); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := im.faults.err(); err != nil {
			return fmt.Errorf("%s: nothing was imported: %w", name, err)
		}
		imported := 0
		if !e.on("dry-run") {
			if imported, err = im.save(e.ctx, st); err != nil {
				return im.describeFailure(name, imported, err)
			}
		}
		im.told.end()
		return im.report(e, imported)
	})
}

// newImporter makes an importer into a store. Rows without an account or a product get these.
func newImporter(st *store, account, product string, sizes importSizes) *licenseImporter {
	return &licenseImporter{importSizes: sizes, account: account, product: product, store: st, open: map[string]bool{},
		plans: map[string]*plan{}, keys: map[licenseKey]int{}, references: map[string]int{}}
}

// report prints how many licences were imported.
func (im *licenseImporter) report(e *env, imported int) error {
	skipped := im.total - len(im.rows)
	text := countOf(imported, "licence") + " imported"
	if e.on("dry-run") {
		text = countedUpTo(im.total, "row is", "rows are") + " valid; nothing was imported"
	}
	if skipped > 0 {
		text += "; " + countOf(skipped, "row") + " skipped, whose keys exist already"
	}
	return e.print(map[string]int{"rows": im.total, "imported": imported, "skipped": skipped}, text)
}

// describeFailure returns the error of an import that stopped after so many rows.
func (im *licenseImporter) describeFailure(name string, imported int, err error) error {
	if imported == 0 {
		return fmt.Errorf("%s: nothing was imported: %w", name, err)
	}
	return fmt.Errorf("%s: %d of %d licences were imported; run it again with -skip-existing: %w",
		name, imported, len(im.rows), err)
}

// importFaults are what is wrong with the rows of a file.
type importFaults struct {
	first []string // a line each
	count int
}

const (
	maxImportFaults = 20 // that are shown
	maxFaultValue   = 40 // characters
)

// add records a fault of the row on a line. column is "" for a fault of the whole row; value is the part of the row
// that the message shows, see quoteValue.
func (f *importFaults) add(line int, column, value, detail string) {
	if f.count++; f.count > maxImportFaults {
		return
	}
	text := fmt.Sprintf("line %d", line)
	for _, part := range []string{column, value, detail} {
		if part != "" {
			text += ": " + part
		}
	}
	f.first = append(f.first, text)
}

// err returns the first faults, in the order of the lines, and how many there are besides; nil: there are none.
func (f *importFaults) err() error {
	if f.count == 0 {
		return nil
	}
	lines := f.first
	if more := f.count - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return errors.New(strings.Join(lines, "\n"))
}

// quoteValue returns the beginning of a cell for an error message, without control characters.
func quoteValue(cell string) string {
	if cell == "" {
		return ""
	}
	if runes := []rune(cell); len(runes) > maxFaultValue {
		return strconv.Quote(string(runes[:maxFaultValue])) + "…"
	}
	return strconv.Quote(cell)
}

// read reads and checks every row, and adds what is wrong with one to the faults. Its error means
// that the file as a whole can't be read.
func (im *licenseImporter) read(f io.Reader) error {
	r, header, err := openImport(f)
	if err != nil {
		return err
	}
	for {
		record, err := r.Read()
		var broken *csv.ParseError
		switch {
		case err == io.EOF:
			return nil
		case errors.Is(err, csv.ErrFieldCount):
			line, _ := r.FieldPos(0)
			im.faults.add(line, "", "", fmt.Sprintf("it has %d cells and the header %d", len(record), len(header)))
			continue
		case errors.As(err, &broken):
			im.faults.add(broken.StartLine, "", fmt.Sprintf("at line %d, column %d", broken.Line, broken.Column),
				fmt.Sprintf("its quotes are wrong: %v", broken.Err))
			continue
		case err != nil:
			return err
		}
		line, _ := r.FieldPos(0)
		if err := im.readRow(&importRow{im, header, record, line}); err != nil {
			return err
		}
		im.total++
		if im.told.at(int64(im.total), 0); im.bytes > 0 {
			im.told.at(r.InputOffset(), im.bytes)
		}
	}
}

// readRow reads and checks a row. One whose key the same account has already is left out if skipExisting is set. Its
// error is the store's.
func (im *licenseImporter) readRow(row *importRow) error {
	key := row.readKey()
	account := cmp.Or(row.cell("account_id"), im.account)
	if err := im.checkAccount(row, account); err != nil {
		return err
	}
	l, err := row.readLicense(account)
	if err != nil {
		return err
	}
	if key != "" {
		existing, err := orNil(im.store.licenseByKey(key.hash()))
		switch {
		case err != nil:
			return err
		case existing != nil && !im.skipExisting:
			row.wrong("key", "", errKeyTaken.Error())
		case existing != nil && existing.AccountID != account:
			row.wrong("key", "", "a licence of another account has this key")
		case existing != nil:
			return nil
		}
	}
	im.rows = append(im.rows, importedLicense{row.line, l, key})
	return im.checkReference(row, l)
}

// checkAccount reports a row without an account, and one whose account does not exist or is closed.
func (im *licenseImporter) checkAccount(row *importRow, id string) error {
	if id == "" {
		row.wrong("account_id", "", "The row names no account, and -account is not given.")
		return nil
	}
	if _, known := im.open[id]; !known {
		err := im.store.openAccount(id)
		if err != nil && !errors.Is(err, errAccount) {
			return err
		}
		im.open[id] = err == nil
	}
	if !im.open[id] {
		row.wrong("account_id", id, errAccount.text())
	}
	return nil
}

// checkReference reports a reference that appears twice, or that the account uses already.
func (im *licenseImporter) checkReference(row *importRow, l *license) error {
	if l.Reference == nil {
		return nil
	}
	of := l.AccountID + " " + *l.Reference
	if first, repeated := im.references[of]; repeated {
		row.wrong("reference", fmt.Sprintf("as on line %d", first), "a reference must appear only once")
	}
	im.references[of] = row.line
	err := checkReference(im.store.queries, l)
	if used := new(refusal); errors.As(err, &used) {
		row.wrong("reference", "", used.detail)
		return nil
	}
	return err
}

// openImport returns a reader of the rows and the checked header. It skips the byte order mark
// that some programs write at the start of a file. The separator is whichever of comma, semicolon
// and tab is most frequent in the header.
func openImport(f io.Reader) (r *csv.Reader, header []string, err error) {
	buffered := bufio.NewReader(f)
	if mark, _ := buffered.Peek(3); string(mark) == "\ufeff" {
		buffered.Discard(3)
	}
	beginning, _ := buffered.Peek(buffered.Size())
	firstLine, _, _ := strings.Cut(string(beginning), "\n")
	r = csv.NewReader(buffered)
	for _, separator := range ";\t" {
		if strings.Count(firstLine, string(separator)) > strings.Count(firstLine, string(r.Comma)) {
			r.Comma = separator
		}
	}
	if header, err = r.Read(); err == io.EOF {
		return nil, nil, errors.New("it is empty; the first line names the columns")
	} else if err != nil {
		return nil, nil, fmt.Errorf("read the header: %w", err)
	}
	for i := range header {
		header[i] = strings.TrimSpace(header[i])
	}
	return r, header, checkColumns(header)
}

// checkColumns returns an error if a column is unknown or appears twice, or if there are no keys.
func checkColumns(header []string) error {
	columns := importColumns()
	known := func(name string) bool {
		member, isMetadata := strings.CutPrefix(name, metadataColumn)
		code, _ := checkText(member, required, maxNameLength)
		return isMetadata && code == "" || slices.Contains(columns, name)
	}
	all := strings.Join(columns, ", ") + " and metadata.NAME, separated by commas, semicolons or tabs"
	if !slices.ContainsFunc(header, known) { // it may be a row of data, whose key must not be shown
		return errors.New("the first line must name the columns: they are " + all)
	}
	for i, name := range header {
		if !known(name) || slices.Contains(header[:i], name) {
			return fmt.Errorf("column %s is unknown or appears twice: the columns are %s",
				cmp.Or(quoteValue(name), `""`), all)
		}
	}
	if !slices.Contains(header, "key") {
		return errors.New("the column key is missing")
	}
	return nil
}

// An importRow is one row of the file.
type importRow struct {
	*licenseImporter
	header, record []string
	line           int
}

// cell returns the row's cell in a column without space around it, "" if there is none.
func (row *importRow) cell(column string) string {
	if at := slices.Index(row.header, column); at >= 0 {
		return strings.TrimSpace(row.record[at])
	}
	return ""
}

// wrong adds a fault. It shows the value, "": the cell, unless that is a key.
func (row *importRow) wrong(column, value, detail string) {
	if column != "key" {
		value = quoteValue(cmp.Or(value, row.cell(column)))
	}
	row.faults.add(row.line, column, value, detail)
}

// readKey reads the row's key. It returns "" when the key is invalid.
func (row *importRow) readKey() licenseKey {
	key, err := parseLicenseKey(row.cell("key"))
	if err != nil {
		row.wrong("key", "", "it must have 16 to 255 visible ASCII characters")
		return ""
	}
	if first, repeated := row.keys[key]; repeated {
		row.wrong("key", fmt.Sprintf("as on line %d", first), "a key must appear only once; "+
			"in one of 25 letters and digits case makes no difference, O is 0, and I and L are 1")
		return key
	}
	row.keys[key] = row.line
	return key
}

// importMembers are the members of a licence that a file may set.
func importMembers(l *license) []member {
	return append(l.members(),
		member{name: "state", at: (*string)(&l.State), high: maxNameLength, check: oneOf(licenseStates...)},
		member{name: "reason", at: &l.Reason, high: maxReason})
}

// readLicense reads the row's licence, as POST /licenses reads its body; what is wrong with it is a fault. Its error
// is the store's.
func (row *importRow) readLicense(account string) (*license, error) {
	var asked license
	in := newInput(row.body(), nil)
	set := in.change(importMembers(&asked), true)
	l := &license{AccountID: account, Reference: asked.Reference}
	if len(*in.errs) > 0 {
		row.refused(*in.errs)
		return l, nil
	}
	var p *plan
	if asked.PlanID != nil {
		var err error
		if p, err = row.plan(account, *asked.PlanID); p == nil {
			return l, err
		}
	}
	set = slices.DeleteFunc(set, func(m member) bool { return m.name == "state" || m.name == "reason" })
	made, err := draftLicense(p, account, set, newStamp(row.now))
	if wrong := new(refusal); errors.As(err, &wrong) {
		row.refused(wrong.fields)
		return l, nil
	}
	made.State, made.Reason = asked.State, asked.Reason
	if made.endedBy(row.now) && !row.force {
		row.wrong("expires_at", "", "This is in the past; -force imports such licences too.")
	}
	return made, err
}

// refused adds what is wrong with members of the row as a body.
func (row *importRow) refused(fields []fieldError) {
	for _, f := range fields {
		column, element, _ := strings.Cut(strings.TrimPrefix(f.Pointer, "#/"), "/")
		value, detail := "", f.Detail
		if at, err := strconv.Atoi(element); err == nil {
			value = splitCodes(row.cell(column))[at]
		}
		if f.Code == "invalid_time" {
			detail = "This must be a date as 2027-01-31 or 31.01.2027, or a time as 2027-01-31T12:00:00Z."
		}
		row.wrong(column, value, detail)
	}
}

// plan returns the plan in use that the row names, nil if the account has none. Plans are read once.
func (row *importRow) plan(account, id string) (*plan, error) {
	p, known := row.plans[id]
	if !known {
		var err error
		if p, err = row.store.plan(anyAccount, id); except(err, errPlan) != nil {
			return nil, err
		}
		row.plans[id] = p
	}
	if p == nil || p.AccountID != account || !p.RetiredAt.IsZero() {
		row.wrong("plan_id", "", "The account has no such plan in use.")
		return nil, nil
	}
	return p, nil
}

// body returns the row as a JSON object. A cell that is empty is left out.
func (row *importRow) body() *jsonValue {
	body := &jsonValue{kind: jsonObject}
	for _, m := range importMembers(new(license)) {
		if cell := row.cell(m.name); cell != "" {
			body.members = append(body.members, jsonMember{m.name, cellValue(m, cell)})
		}
	}
	if _, sold := body.member("plan_id"); row.product != "" && row.cell("product") == "" && !sold {
		body.members = append(body.members, jsonMember{"product", jsonValue{kind: jsonString, text: row.product}})
	}
	row.addMetadata(body)
	return body
}

// noLimit in a cell means that there is no limit, where an empty cell would mean the default.
const noLimit = "none"

// cellValue returns the value of a cell, as JSON has it. What can't be one of the member's kind becomes a text.
func cellValue(m member, cell string) jsonValue {
	text := jsonValue{kind: jsonString, text: cell}
	lower := strings.ToLower(cell)
	switch m.at.(type) {
	case *int, **int:
		if lower == noLimit && m.name == "max_transfers" {
			return jsonValue{kind: jsonNull}
		}
		return jsonValue{kind: jsonNumber, text: cell}
	case *bool:
		yes := slices.Contains([]string{"true", "1", "yes"}, lower)
		if yes || slices.Contains([]string{"false", "0", "no"}, lower) {
			return jsonValue{kind: jsonBool, boolean: yes}
		}
	case *stamp:
		day, isDate := parseDate(cell)
		switch {
		case isDate && m.name == "expires_at":
			text.text = day.endOfDay().String()
		case isDate:
			text.text = day.String()
		}
	case *codeList:
		list := jsonValue{kind: jsonArray}
		for _, code := range splitCodes(cell) {
			list.list = append(list.list, jsonValue{kind: jsonString, text: code})
		}
		return list
	case *jsonText:
		if v, err := parseJSON([]byte(cell)); err == nil {
			return v
		}
	}
	return text
}

// splitCodes returns the codes of a cell, which are separated by commas or spaces.
func splitCodes(cell string) []string {
	return strings.FieldsFunc(cell, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
}

// addMetadata adds the cells of the columns metadata.NAME to the metadata of the row's body, as strings.
func (row *importRow) addMetadata(body *jsonValue) {
	text := cmp.Or(row.cell("metadata"), "{}")
	object, err := parseJSON([]byte(text))
	if err != nil || object.kind != jsonObject {
		return // what it is instead is reported
	}
	names := map[string]string{}
	for _, column := range row.header {
		name, isMetadata := strings.CutPrefix(column, metadataColumn)
		cell := row.cell(column)
		if !isMetadata || cell == "" {
			continue
		}
		if code, detail := checkText(cell, required, maxMetadata); code != "" {
			row.wrong(column, "", detail)
			continue
		}
		if _, known := object.member(name); known {
			row.wrong(column, "", "The row's metadata has this member too.")
			continue
		}
		names[name] = cell
	}
	if len(names) == 0 {
		return
	}
	added := bytes.TrimSpace(encodeJSON(names))
	if len(object.members) > 0 {
		added = append([]byte(strings.TrimSuffix(text, "}")+","), added[1:]...)
	}
	body.members = slices.DeleteFunc(body.members, func(m jsonMember) bool { return m.name == "metadata" })
	if object, err = parseJSON(added); err == nil {
		body.members = append(body.members, jsonMember{"metadata", object})
	}
}

// save stores the licences of all rows, and returns how many. Many rows are stored in several
// transactions, with pauses in which others can write.
func (im *licenseImporter) save(ctx context.Context, st *store) (imported int, err error) {
	batch := max(len(im.rows), 1)
	if batch > im.whole {
		batch = im.batch
		im.note("importing %d rows, %d at a time: if this is cut off, run it again "+
			"with -skip-existing\n", len(im.rows), batch)
	}
	im.told.step("importing", "", 0)
	for rows := range slices.Chunk(im.rows, batch) {
		began := time.Now()
		if err := st.update(ctx, func(t *tx) error { return importRows(t, rows, im.actor) }); err != nil {
			return imported, err
		}
		imported += len(rows)
		im.told.at(int64(imported), int64(len(im.rows)))
		if imported < len(im.rows) {
			// Other processes poll for SQLite's write lock: without a pause they would never find it free.
			time.Sleep(time.Since(began))
		}
	}
	return imported, nil
}

// importRows stores the licences of some rows.
func importRows(t *tx, rows []importedLicense, actor string) error {
	for _, row := range rows {
		if _, err := t.addLicense(row.license, row.key, actor); err != nil {
			return fmt.Errorf("line %d: %w", row.line, err)
		}
	}
	return nil
}
