package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// importColumns are the columns that a CSV file of licences may have, besides metadata.NAME; key
// is required.
var importColumns = []string{
	"key", "account_id", "product", "plan", "plan_id", "reference", "kind", "customer", "state", "reason",
	"trial", "max_devices", "max_transfers", "starts_at", "expires_at", "grace_days", "duration_days",
	"expiry_basis", "lease_hours", "offline_days", "entitlements", "metadata",
}

const metadataColumn = "metadata." // prefix of the names of columns that hold one member of the metadata

// importSizes are numbers of rows. Tests use smaller ones.
type importSizes struct {
	progress int // between two progress messages
	whole    int // up to so many are imported in one transaction, all of them or none
	batch    int // in each transaction if there are more
}

var usualImport = importSizes{progress: 10_000, whole: 10_000, batch: 1_000}

// An importedLicense is one row of the file.
type importedLicense struct {
	line    int
	license *license
	key     licenseKey
}

// A licenseImporter imports licences from one CSV file. It checks every row before it stores any.
type licenseImporter struct {
	importSizes
	defaults     license // what applies where a row has an empty cell
	force        bool    // take licences whose end is in the past
	skipExisting bool    // leave out rows whose key the same account has already
	now          time.Time
	messages     io.Writer
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
	product, err := e.text("product", maxNameLength)
	if err != nil {
		return err
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
		im := newImporter(st, license{AccountID: o.account, Product: product}, sizes)
		im.force, im.skipExisting, im.now = e.on("force"), e.on("skip-existing"), e.now()
		im.messages, im.actor = e.stderr, e.actor()
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
		return im.report(e, imported)
	})
}

// newImporter makes an importer into a store. Rows get the defaults for their empty cells.
func newImporter(st *store, defaults license, sizes importSizes) *licenseImporter {
	return &licenseImporter{importSizes: sizes, defaults: defaults, store: st, open: map[string]bool{},
		plans: map[string]*plan{}, keys: map[licenseKey]int{}, references: map[string]int{}}
}

// report prints how many licences were imported.
func (im *licenseImporter) report(e *env, imported int) error {
	skipped := im.total - len(im.rows)
	text := fmt.Sprintf("%d licences imported", imported)
	if e.on("dry-run") {
		text = fmt.Sprintf("%d rows are valid; nothing was imported", im.total)
	}
	if skipped > 0 {
		text += fmt.Sprintf("; %d rows skipped, whose keys exist already", skipped)
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
		if err := im.readRow(header, record, line); err != nil {
			return err
		}
		if im.total++; im.total%im.progress == 0 {
			fmt.Fprintf(im.messages, "%d rows read\n", im.total)
		}
	}
}

// readRow reads and checks a row. One whose key the same account has already is left out if skipExisting is set. Its
// error is the store's.
func (im *licenseImporter) readRow(header, record []string, line int) error {
	cells := im.cellsOf(header, record, line)
	key := im.readKey(cells, line)
	l := im.readTerms(cells, header)
	if err := im.checkAccount(l.AccountID, line); err != nil {
		return err
	}
	if key != "" {
		existing, err := orNil(im.store.licenseByKey(key.hash()))
		switch {
		case err != nil:
			return err
		case existing != nil && !im.skipExisting:
			cells.wrong("key", "", errKeyTaken.Error())
		case existing != nil && existing.AccountID != l.AccountID:
			cells.wrong("key", "", "a licence of another account has this key")
		case existing != nil:
			return nil
		}
	}
	im.rows = append(im.rows, importedLicense{line, l, key})
	return im.checkReference(cells, l, line)
}

// checkAccount reports an account that does not exist or is closed; readTerms has reported a row without one.
func (im *licenseImporter) checkAccount(id string, line int) error {
	if _, known := im.open[id]; !known {
		err := im.store.openAccount(id)
		if err != nil && !errors.Is(err, errAccount) {
			return err
		}
		im.open[id] = err == nil
	}
	if id != "" && !im.open[id] {
		im.faults.add(line, "account_id", quoteValue(id), errAccount.text())
	}
	return nil
}

// checkReference reports a reference that appears twice, or that the account uses already.
func (im *licenseImporter) checkReference(cells *textTerms, l *license, line int) error {
	if l.Reference == nil {
		return nil
	}
	of := l.AccountID + " " + *l.Reference
	if first, repeated := im.references[of]; repeated {
		cells.wrong("reference", fmt.Sprintf("as on line %d", first), "a reference must appear only once")
	}
	im.references[of] = line
	err := checkReference(im.store.queries, l)
	if used := new(refusal); errors.As(err, &used) {
		cells.wrong("reference", "", used.detail)
		return nil
	}
	return err
}

// cellsOf returns a reader of a row's cells, which adds to the faults what it finds wrong. A
// fault shows the value, unless it is a key.
func (im *licenseImporter) cellsOf(header, record []string, line int) *textTerms {
	text := func(name string) string {
		if at := slices.Index(header, name); at >= 0 {
			return record[at]
		}
		return ""
	}
	return &textTerms{text: text, wrong: func(name, value, detail string) {
		if name != "key" {
			value = quoteValue(cmp.Or(value, strings.TrimSpace(text(name))))
		}
		im.faults.add(line, name, value, detail)
	}}
}

// readKey reads the key of the row on a line. It returns "" when the key is invalid.
func (im *licenseImporter) readKey(cells *textTerms, line int) licenseKey {
	key, err := parseLicenseKey(cells.cell("key"))
	if err != nil {
		cells.wrong("key", "", "it must have 16 to 255 visible ASCII characters")
		return ""
	}
	if first, repeated := im.keys[key]; repeated {
		cells.wrong("key", fmt.Sprintf("as on line %d", first), "a key must appear only once; "+
			"in one of 25 letters and digits case makes no difference, O is 0, and I and L are 1")
		return key
	}
	im.keys[key] = line
	return key
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
	known := func(name string) bool {
		member, isMetadata := strings.CutPrefix(name, metadataColumn)
		code, _ := checkText(member, required, maxNameLength)
		return isMetadata && code == "" || slices.Contains(importColumns, name)
	}
	all := strings.Join(importColumns, ", ") + " and metadata.NAME, separated by commas, semicolons or tabs"
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

// readTerms reads the licence of one row.
func (im *licenseImporter) readTerms(cells *textTerms, header []string) *license {
	l := im.defaults
	l.AccountID = cmp.Or(cells.cell("account_id"), im.defaults.AccountID)
	if l.AccountID == "" {
		cells.wrong("account_id", "", "The row names no account, and -account is not given.")
	}
	state, _ := cells.textTerm("state", maxNameLength, oneOf(statusActive, statusSuspended, statusRevoked))
	l.State = valueOr(state, statusActive)
	l.Reason, _ = cells.textTerm("reason", maxReason, nil)
	terms := readNewTerms(cells)
	if terms.apply(&l); l.PlanID != nil {
		l = im.ofPlan(cells, l, terms)
	}
	readMetadata(cells, header, &l)
	if name, detail := l.invalidTerm(); name != "" {
		cells.wrong(name, "", detail)
	}
	if l.endedBy(im.now) && !im.force {
		cells.wrong("expires_at", "", "This is in the past; -force imports such licences too.")
	}
	return &l
}

// ofPlan returns the licence of a row with the terms of the plan that l names, and what the row has of its own.
// Plans are read once.
func (im *licenseImporter) ofPlan(cells *textTerms, l license, terms termsChange) license {
	made, known := im.plans[*l.PlanID]
	if !known {
		made, _ = im.store.plan(anyAccount, *l.PlanID)
		im.plans[*l.PlanID] = made
	}
	if made == nil || made.AccountID != l.AccountID || !made.RetiredAt.IsZero() {
		cells.wrong("plan_id", "", "The account has no such plan in use.")
		return l
	}
	of, err := licenseOfPlan(made, terms)
	if err != nil {
		cells.wrong("plan_id", "", "The row has another product, kind or expiry_basis than its plan.")
		return l
	}
	of.State, of.Reason = l.State, l.Reason
	return *of
}

// readMetadata adds the cells of the columns metadata.NAME to the licence's metadata, as strings.
func readMetadata(cells *textTerms, header []string, l *license) {
	text := cmp.Or(string(bytes.TrimSpace(l.Metadata)), "{}")
	object, err := parseJSON([]byte(text))
	if err != nil {
		return // objectTerm has reported it
	}
	added := []byte(strings.TrimSuffix(text, "}"))
	separator := ","
	if len(object.members) == 0 {
		separator = ""
	}
	for _, column := range header {
		name, isMetadata := strings.CutPrefix(column, metadataColumn)
		if !isMetadata {
			continue
		}
		value, present := cells.textTerm(column, maxMetadata, nil)
		if !present {
			continue
		}
		if _, known := object.member(name); known {
			cells.wrong(column, "", "The row's metadata has this member too.")
			continue
		}
		added = appendString(append(added, separator...), name)
		added = appendString(append(added, ':'), *value)
		separator = ","
	}
	if added = append(added, '}'); len(added) > maxMetadata {
		cells.wrong("metadata", "", "With its columns the metadata has more than 16 KiB.")
	}
	if len(added) > len(text) {
		l.Metadata = added
	}
}

// save stores the licences of all rows, and returns how many. Many rows are stored in several
// transactions, with pauses in which others can write.
func (im *licenseImporter) save(ctx context.Context, st *store) (imported int, err error) {
	batch := max(len(im.rows), 1)
	if batch > im.whole {
		batch = im.batch
		fmt.Fprintf(im.messages, "importing %d rows, %d at a time: if this is cut off, run it again "+
			"with -skip-existing\n", len(im.rows), batch)
	}
	for rows := range slices.Chunk(im.rows, batch) {
		began := time.Now()
		if err := st.update(ctx, func(t *tx) error { return importRows(t, rows, im.actor) }); err != nil {
			return imported, err
		}
		if imported += len(rows); imported%im.progress == 0 {
			fmt.Fprintf(im.messages, "%d rows written\n", imported)
		}
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
		l := *row.license
		l.fillDefaults(t.now)
		if _, err := t.addLicense(&l, row.key, actor); err != nil {
			return fmt.Errorf("line %d: %w", row.line, err)
		}
	}
	return nil
}

// textTerms is a termsReader of texts: the cells of a CSV row, or the values of options.
// A text that is empty or only white space counts as absent.
type textTerms struct {
	text  func(name string) string
	wrong func(name, value, detail string) // value: the part of the text that is wrong; "": all of it
}

func (c *textTerms) cell(name string) string { return strings.TrimSpace(c.text(name)) }

func (c *textTerms) textTerm(name string, max int, check textCheck) (*string, bool) {
	cell := c.cell(name)
	if cell == "" {
		return nil, false
	}
	code, detail := checkText(cell, required, max)
	if code == "" && check != nil {
		code, detail = check(cell)
	}
	if code != "" {
		c.wrong(name, "", detail)
	}
	return &cell, true
}

// noLimit in a cell means that there is no limit, where an empty cell would mean the default.
const noLimit = "none"

func (c *textTerms) numberTerm(name string, low, high int) (*int, bool) {
	cell := c.cell(name)
	switch {
	case cell == "":
		return nil, false
	case name == "max_transfers" && strings.EqualFold(cell, noLimit):
		return nil, true
	}
	n, err := strconv.Atoi(cell)
	if err != nil || n < low || n > high {
		c.wrong(name, "", fmt.Sprintf("This must be a whole number from %d to %d.", low, high))
	}
	return &n, true
}

func (c *textTerms) boolTerm(name string) (value, present bool) {
	cell := strings.ToLower(c.cell(name))
	if cell != "" && !slices.Contains([]string{"true", "false", "1", "0", "yes", "no"}, cell) {
		c.wrong(name, "", "This must be true or false.")
	}
	return slices.Contains([]string{"true", "1", "yes"}, cell), cell != ""
}

func (c *textTerms) timeTerm(name string) (stamp, bool) {
	cell := c.cell(name)
	if cell == "" {
		return stamp{}, false
	}
	t, ok := parseDate(cell)
	switch {
	case !ok:
		t, ok = parseStamp(cell)
	case name == "expires_at":
		t = t.endOfDay()
	}
	if !ok {
		c.wrong(name, "", "This must be a date as 2027-01-31 or 31.01.2027, or a time as 2027-01-31T12:00:00Z.")
	}
	return t, true
}

func (c *textTerms) codesTerm(name string) (codeList, bool) {
	codes := strings.FieldsFunc(c.cell(name), func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	checkCodes(codes, func(at int, _, detail string) { c.wrong(name, codes[at], detail) })
	return codes, len(codes) > 0
}

func (c *textTerms) objectTerm(name string) (json.RawMessage, bool) {
	cell := c.cell(name)
	if cell == "" {
		return nil, false
	}
	v, err := parseJSON([]byte(cell))
	if err != nil || len(cell) > maxMetadata || v.hasControlCharacter() {
		c.wrong(name, "", "This must be a JSON object of at most 16 KiB, without control characters.")
	}
	return json.RawMessage(cell), true
}
