package main

import (
	"bufio"
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
	"sync"
	"time"
	"unicode"
)

// The import of licences from CSV. A row is the body of a POST /licenses, with a key, a state and a reason beside it.

const (
	metadataColumn  = "metadata." // prefix of the names of columns that hold one member of the metadata
	maxImportFaults = 20          // that are shown
	maxFaultValue   = 40          // characters
)

// A licenseImporter imports licences from one CSV file. It checks every row before it stores any.
type licenseImporter struct {
	*env
	st     *store
	owner  owner // of rows that name none
	header []string

	total  int // rows of the file, including those left out
	rows   []importedLicense
	seen   map[string]int // the line of each key, and of each reference of an account
	faults []string       // what is wrong, a line each
}

// An importedLicense is what is stored of a row.
type importedLicense struct {
	line    int
	license *license
	key     licenseKey
}

// licenseImport imports licences from a CSV file: up to 10,000 in one transaction, more in several. When a row is
// invalid nothing is imported, and the error says what is wrong in which lines.
func licenseImport(e *env) error { return importLicenses(e, 10_000, 1_000) }

func importLicenses(e *env, whole, batch int) error {
	o, err := e.filterAccount()
	if err != nil {
		return err
	}
	if _, detail := checkText(e.str("product"), optional, maxNameLength); detail != "" {
		return usageError("-product: " + detail)
	}
	file, err := e.open(e.args[0])
	if err != nil {
		return err
	}
	defer file.Close()
	name := e.args[0]
	if name == "-" {
		name = "standard input"
	}
	return e.withStore(func(st *store) error {
		told := e.progress("reading " + name)
		defer told.end()
		im := &licenseImporter{env: e, st: st, owner: o}
		imported, err := 0, im.read(file)
		if err == nil && !e.on("dry-run") {
			imported, err = im.save(whole, batch)
		}
		if told.end(); err != nil && e.ctx.Err() != nil {
			err = errInterrupted
		}
		switch {
		case err != nil && imported > 0:
			return fmt.Errorf("%s: %d of %d licences were imported; run it again with -skip-existing: %w",
				name, imported, len(im.rows), err)
		case err != nil:
			return fmt.Errorf("%s: nothing was imported: %w", name, err)
		}
		text := countOf(imported, "licence") + " imported"
		if e.on("dry-run") {
			text = countedUpTo(im.total, "row is", "rows are") + " valid; nothing was imported"
		}
		skipped := im.total - len(im.rows)
		if skipped > 0 {
			text += "; " + countOf(skipped, "row") + " skipped, whose keys exist already"
		}
		return e.print(map[string]int{"rows": im.total, "imported": imported, "skipped": skipped}, text)
	})
}

// read reads and checks every row. The separator is whichever of comma, semicolon and tab is most frequent in the
// header; a byte order mark before it is skipped. The error lists what is wrong in which lines, or says why the file
// can't be read.
func (im *licenseImporter) read(file io.Reader) (err error) {
	buffered := bufio.NewReader(file)
	if mark, _ := buffered.Peek(3); string(mark) == "\ufeff" {
		buffered.Discard(3)
	}
	beginning, _ := buffered.Peek(buffered.Size())
	firstLine, _, _ := strings.Cut(string(beginning), "\n")
	r := csv.NewReader(buffered)
	for _, separator := range ";\t" {
		if strings.Count(firstLine, string(separator)) > strings.Count(firstLine, string(r.Comma)) {
			r.Comma = separator
		}
	}
	r.FieldsPerRecord = -1 // readRow counts them
	if im.header, err = r.Read(); err == io.EOF {
		return errors.New("it is empty; the first line names the columns")
	} else if err != nil {
		return fmt.Errorf("read the header: %w", err)
	}
	im.seen, err = map[string]int{}, im.checkHeader()
	for err == nil {
		var record []string
		record, err = r.Read()
		broken := new(csv.ParseError)
		switch {
		case im.ctx.Err() != nil:
			return im.ctx.Err()
		case err == io.EOF:
			return im.fault()
		case errors.As(err, &broken):
			im.wrong(broken.StartLine, "at line %d, column %d: its quotes are wrong: %v", broken.Line, broken.Column,
				broken.Err)
			err = nil
		case err == nil:
			im.line.at(int64(im.total), 0)
			line, _ := r.FieldPos(0)
			err = im.readRow(line, record)
		}
	}
	return err
}

// checkHeader returns an error if there are no keys, or if a column is unknown or appears twice. A line without a
// column of keys may be a row of data, whose key must not be shown.
func (im *licenseImporter) checkHeader() error {
	columns := []string{"key"}
	for _, column := range importColumns() {
		columns = append(columns, column.name)
	}
	all := strings.Join(columns, ", ") + " and metadata.NAME, separated by commas, semicolons or tabs"
	for i := range im.header {
		im.header[i] = strings.TrimSpace(im.header[i])
	}
	if !slices.Contains(im.header, "key") {
		return errors.New("the column key is missing; the first line must name the columns: they are " + all)
	}
	for i, name := range im.header {
		member, isMetadata := strings.CutPrefix(name, metadataColumn)
		_, wrong := checkText(member, required, maxNameLength)
		known := isMetadata && wrong == "" || slices.Contains(columns, name)
		if !known || slices.Contains(im.header[:i], name) {
			return fmt.Errorf("column %s is unknown or appears twice: the columns are %s", quoteValue(name), all)
		}
	}
	return nil
}

// importColumns are what the columns of a file may be, besides key and metadata.NAME.
var importColumns = sync.OnceValue(func() []reading {
	return readingsOf(func(in *input) { readImported(in) })
})

var checkLicenseState = oneOf(licenseStates...)

// readImported reads a row as POST /licenses reads its body, and what only an import sets.
func readImported(in *input) (asked *newLicense, state licenseState, reason *string) {
	asked = readNewLicense(in)
	state = licenseState(in.text("state", optional, maxNameLength, checkLicenseState))
	return asked, state, nilIfEmpty(in.text("reason", optional, maxReason, nil))
}

// importRefusals are the columns that problems without members are about.
var importRefusals = map[*problemCode]string{codeAccountNotFound: "account_id", codePlanNotFound: "plan_id",
	codePlanRetired: "plan_id", codeReferenceUsed: "reference"}

// readRow reads and checks a row. One whose key the same account has already is left out with -skip-existing. Its
// error is the store's.
func (im *licenseImporter) readRow(line int, record []string) error {
	if im.total++; len(record) != len(im.header) {
		im.wrong(line, "it has %d cells and the header %d", len(record), len(im.header))
		return nil
	}
	cells := map[string]string{} // by column, without those that are empty
	for i, column := range im.header {
		if cell := strings.TrimSpace(record[i]); cell != "" {
			cells[column] = cell
		}
	}
	in := newInput(&jsonValue{kind: jsonObject}, nil)
	err := im.checkRow(line, cells, in)
	if refused := new(refusal); errors.As(err, &refused) {
		if column := importRefusals[refused.code]; column != "" {
			in.wrong(column, "refused", refused.text())
		}
		*in.errs, err = append(*in.errs, refused.fields...), nil
	}
	for _, f := range *in.errs {
		column := strings.TrimPrefix(f.Pointer, "#/")
		shown, detail := cells[column], f.Detail
		if list, element, isElement := strings.Cut(column, "/"); isElement && shown == "" {
			at, _ := strconv.Atoi(element)
			column, shown = list, splitCodes(cells[list])[at]
		}
		if f.Code == "invalid_time" {
			detail = "This must be a date as 2027-01-31 or 31.01.2027, or a time as 2027-01-31T12:00:00Z."
		}
		if shown != "" && column != "key" {
			detail = quoteValue(shown) + ": " + detail
		}
		im.wrong(line, "%s: %s", column, detail)
	}
	return err
}

// checkRow reads a row of those cells, and records in the input what is wrong. Errors: a refusal, the store's.
func (im *licenseImporter) checkRow(line int, cells map[string]string, in *input) error {
	key, err := parseLicenseKey(cells["key"])
	if err != nil {
		in.wrong("key", "invalid_key", "it must have 16 to 255 visible ASCII characters")
	} else {
		im.checkOnce(in, line, "key", string(key), "a key must appear only once; "+
			"in one of 25 letters and digits case makes no difference, O is 0, and I and L are 1")
	}
	account := cmp.Or(cells["account_id"], im.owner.account)
	if account == "" {
		in.wrong("account_id", "required", "The row names no account, and -account is not given.")
	} else if err := im.st.openAccount(account); except(err, errAccount) != nil {
		return err
	} else if err != nil {
		in.wrong("account_id", "unknown", errAccount.text())
	}
	before := len(*in.errs)
	im.fill(in, cells)
	asked, state, reason := readImported(in)
	in.allowMissing("product") // draftSale says it in words for both
	existing, err := orNil(im.st.licenseByKey(key.hash()))
	switch {
	case err != nil:
		return err
	case existing != nil && !im.on("skip-existing"):
		in.wrong("key", "taken", errKeyTaken.Error())
	case existing != nil && existing.AccountID != account:
		in.wrong("key", "taken", "a licence of another account has this key")
	}
	if existing != nil || len(*in.errs) > before {
		return nil
	}
	l, err := draftSale(im.st.queries, account, asked.set, newStamp(im.now()))
	if err != nil {
		return err
	}
	if l.State, l.Reason = state, reason; l.Reference != nil {
		im.checkOnce(in, line, "reference", account+" "+*l.Reference, "a reference must appear only once")
	}
	if l.endedBy(im.now()) && !im.on("force") {
		in.wrong("expires_at", "past", "This is in the past; -force imports such licences too.")
	}
	im.rows = append(im.rows, importedLicense{line, l, key})
	return nil
}

// checkOnce records a value that a row before has, too.
func (im *licenseImporter) checkOnce(in *input, line int, column, value, detail string) {
	if first, repeated := im.seen[column+" "+value]; repeated {
		in.wrong(column, "repeated", fmt.Sprintf("as on line %d: %s", first, detail))
		return
	}
	im.seen[column+" "+value] = line
}

// fill makes the body of an input of a row's cells.
func (im *licenseImporter) fill(in *input, cells map[string]string) {
	for _, column := range importColumns() {
		cell := cells[column.name]
		if column.name == "product" && cells["plan_id"] == "" {
			cell = cmp.Or(cell, im.str("product"))
		}
		if cell != "" && column.name != "account_id" {
			in.body.members = append(in.body.members, jsonMember{column.name, cellValue(column, cell)})
		}
	}
	merged, added := map[string]json.RawMessage{}, false
	if own, is := in.body.member("metadata"); is && json.Unmarshal([]byte(own.raw), &merged) != nil {
		return // what it is instead is reported
	}
	for _, column := range im.header {
		name, isMetadata := strings.CutPrefix(column, metadataColumn)
		cell := cells[column]
		if !isMetadata || cell == "" {
			continue
		}
		if code, detail := checkText(cell, required, maxMetadata); code != "" {
			in.wrong(column, code, detail)
		} else if merged[name] != nil {
			in.wrong(column, "repeated", "The row's metadata has this member too.")
		} else {
			merged[name], added = encodeJSON(cell), true
		}
	}
	if value, err := parseJSON(encodeJSON(merged)); added && err == nil {
		in.body.members = slices.DeleteFunc(in.body.members, func(m jsonMember) bool { return m.name == "metadata" })
		in.body.members = append(in.body.members, jsonMember{"metadata", value})
	}
}

// cellValue returns the value of a cell, as JSON has it. What can't be one of the column's kind becomes a text.
func cellValue(column reading, cell string) jsonValue {
	v := jsonValue{kind: column.kind, text: cell}
	lower := strings.ToLower(cell)
	switch {
	case lower == noLimit && column.name == "max_transfers":
		v.kind = jsonNull
	case v.kind == jsonBool:
		v.boolean = slices.Contains([]string{"true", "1", "yes"}, lower)
		if !v.boolean && !slices.Contains([]string{"false", "0", "no"}, lower) {
			v.kind = jsonString
		}
	case v.kind == jsonArray:
		for _, code := range splitCodes(cell) {
			v.list = append(v.list, jsonValue{kind: jsonString, text: code})
		}
	case v.kind == jsonObject:
		v.kind = jsonString
		if object, err := parseJSON([]byte(cell)); err == nil {
			v = object
		}
	case column.format == "date-time":
		day, isDate := parseDate(cell)
		if isDate && column.name == "expires_at" {
			day = day.endOfDay()
		}
		if isDate {
			v.text = day.String()
		}
	}
	return v
}

// splitCodes returns the codes of a cell, which are separated by commas or spaces.
func splitCodes(cell string) []string {
	return strings.FieldsFunc(cell, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
}

// wrong notes what is wrong on a line.
func (im *licenseImporter) wrong(line int, format string, args ...any) {
	im.faults = append(im.faults, fmt.Sprintf("line %d: ", line)+fmt.Sprintf(format, args...))
}

// fault returns the first faults, in the order of the lines, and how many there are besides; nil: there are none.
func (im *licenseImporter) fault() error {
	lines := im.faults
	if more := len(lines) - maxImportFaults; more > 0 {
		lines = append(lines[:maxImportFaults:maxImportFaults], fmt.Sprintf("and %d more", more))
	}
	if len(lines) == 0 {
		return nil
	}
	return errors.New(strings.Join(lines, "\n"))
}

// quoteValue returns the beginning of a cell for an error message, without control characters.
func quoteValue(cell string) string {
	if runes := []rune(cell); len(runes) > maxFaultValue {
		return strconv.Quote(string(runes[:maxFaultValue])) + "…"
	}
	return strconv.Quote(cell)
}

// save stores the licences of all rows, and returns how many. More than whole are stored so many at a time, with
// pauses in which others can write.
func (im *licenseImporter) save(whole, batch int) (imported int, err error) {
	if len(im.rows) <= whole {
		batch = whole
	} else {
		im.note("importing %d rows, %d at a time: if this is cut off, run it again with -skip-existing\n", len(im.rows),
			batch)
	}
	im.line.step("importing", "", 0)
	for rows := range slices.Chunk(im.rows, batch) {
		began := time.Now()
		err := im.st.update(im.ctx, func(t *tx) error { return importRows(im.ctx, t, rows, im.actor()) })
		if err != nil {
			return imported, err
		}
		imported += len(rows)
		im.line.at(int64(imported), int64(len(im.rows)))
		if imported < len(im.rows) {
			// Other processes poll for SQLite's write lock: without a pause they would never find it free.
			select {
			case <-im.ctx.Done():
			case <-time.After(time.Since(began)):
			}
		}
	}
	return imported, nil
}

// importRows stores the licences of some rows.
func importRows(ctx context.Context, t *tx, rows []importedLicense, actor string) error {
	for _, row := range rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := t.addLicense(row.license, row.key, actor); err != nil {
			return fmt.Errorf("line %d: %w", row.line, err)
		}
	}
	return nil
}
