package main

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// importColumns are the columns that a CSV file of licences may have; key is required.
var importColumns = []string{
	"key",
	"account_id",
	"product",
	"plan",
	"kind",
	"state",
	"reason",
	"trial",
	"max_devices",
	"max_transfers",
	"starts_at",
	"expires_at",
	"grace_days",
	"duration_days",
	"expiry_basis",
	"lease_hours",
	"entitlements",
	"metadata",
}

const importProgress = 10_000 // rows between two progress messages

// An importedLicense is one row of the file.
type importedLicense struct {
	line    int
	license *license
	key     licenseKey
}

// licenseImport imports licences from a CSV file, all of them or none. When a row is
// invalid nothing is imported, and the error lists every invalid row with its line.
func licenseImport(e *env) error {
	account, err := e.filterID("account", "acct")
	if err != nil {
		return err
	}
	product, err := e.text("product", maxNameLength)
	if err != nil {
		return err
	}
	f, err := os.Open(e.args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	var faults importErrors
	rows, err := e.readImport(f, license{AccountID: account, Product: product}, &faults)
	if err != nil {
		return fmt.Errorf("%s: %w", e.args[0], err)
	}
	if err := e.withStore(func(st *store) error { return checkImport(st, rows, &faults) }); err != nil {
		return err
	}
	if err := faults.err(); err != nil {
		return fmt.Errorf("%s: nothing was imported: %w", e.args[0], err)
	}
	if e.on("dry-run") {
		return e.print(map[string]any{"rows": len(rows), "imported": 0},
			fmt.Sprintf("%d rows are valid; nothing was imported", len(rows)))
	}
	if err := e.change(func(t *tx) error { return importRows(e, t, rows) }); err != nil {
		return fmt.Errorf("%s: nothing was imported: %w", e.args[0], err)
	}
	return e.print(map[string]any{"rows": len(rows), "imported": len(rows)},
		fmt.Sprintf("%d licences imported", len(rows)))
}

// importErrors collect what is wrong with the rows of a file.
type importErrors []importError

type importError struct {
	line int
	what string
}

func (f *importErrors) add(line int, what string) { *f = append(*f, importError{line, what}) }

// err returns all errors in the order of their lines, one a line, or nil.
func (f importErrors) err() error {
	if len(f) == 0 {
		return nil
	}
	slices.SortStableFunc(f, func(a, b importError) int { return a.line - b.line })
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fmt.Sprintf("line %d: %s", fault.line, fault.what)
	}
	return errors.New(strings.Join(lines, "\n"))
}

// readImport reads and checks every row, and adds what is wrong with one to faults.
// defaults holds what applies where a row has an empty cell. Its error means that the
// file as a whole can't be read.
func (e *env) readImport(
	f io.Reader, defaults license, faults *importErrors,
) (rows []importedLicense, err error) {
	r, header, err := openImport(f)
	if err != nil {
		return nil, err
	}
	firstLine := map[licenseKey]int{}
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
			faults.add(broken.StartLine, fmt.Sprintf("its quotes are wrong at line %d, column %d: %v",
				broken.Line, broken.Column, broken.Err))
			continue
		case err != nil:
			return nil, err
		}
		line, _ := r.FieldPos(0)
		cells := &textTerms{
			text: func(name string) string {
				if at := slices.Index(header, name); at >= 0 {
					return record[at]
				}
				return ""
			},
			wrong: func(name, detail string) { faults.add(line, name+": "+detail) },
		}
		key := readImportKey(cells, firstLine, line)
		rows = append(rows, importedLicense{line, readImportTerms(cells, defaults), key})
		if len(rows)%importProgress == 0 {
			fmt.Fprintf(e.stderr, "%d rows read\n", len(rows))
		}
	}
}

// readImportKey reads the key of the row on a line, and adds it to firstLine. It returns
// "" when the key is invalid.
func readImportKey(cells *textTerms, firstLine map[licenseKey]int, line int) licenseKey {
	key, err := parseLicenseKey(cells.cell("key"))
	if err != nil {
		cells.wrong("key", "it must have 16 to 255 visible ASCII characters, "+
			"and a key like widgetd's own (25 letters and digits) a correct check symbol")
		return ""
	}
	if first, repeated := firstLine[key]; repeated {
		cells.wrong("key", fmt.Sprintf("it is on line %d already", first))
		return key
	}
	firstLine[key] = line
	return key
}

// openImport returns a reader of the rows and the checked header. It skips the byte order
// mark that some programs write at the start of a file.
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
			return nil, nil, fmt.Errorf("column %q is unknown or appears twice: "+
				"the columns are %s, separated by commas", name, strings.Join(importColumns, ", "))
		}
	}
	if !slices.Contains(header, "key") {
		return nil, nil, errors.New("the column key is missing")
	}
	return r, header, nil
}

// readImportTerms reads the licence of one row. defaults holds what applies where the row
// has an empty cell.
func readImportTerms(cells *textTerms, defaults license) *license {
	l := &defaults
	l.AccountID = cmp.Or(cells.cell("account_id"), defaults.AccountID)
	if l.AccountID == "" {
		cells.wrong("account_id", "The row names no account, and -account is not given.")
	}
	state, _ := cells.textTerm("state", maxNameLength, oneOf(statusActive, statusSuspended, statusRevoked))
	l.State = valueOr(state, statusActive)
	l.Reason, _ = cells.textTerm("reason", maxReason, nil)
	readNewTerms(cells).apply(l)
	if name, detail := l.invalidTerm(); name != "" {
		cells.wrong(name, detail)
	}
	return l
}

// checkImport compares the rows with the database, and adds to faults those whose account
// does not exist or is closed, and those whose key exists already.
func checkImport(st *store, rows []importedLicense, faults *importErrors) error {
	open := map[string]bool{} // by account id: whether it exists and is not closed
	for _, row := range rows {
		id := row.license.AccountID
		if _, known := open[id]; !known {
			err := st.openAccount(id)
			if err != nil && !errors.Is(err, errAccount) {
				return err
			}
			open[id] = err == nil
		}
		if !open[id] && id != "" { // readImportTerms has recorded an empty one
			faults.add(row.line, "account_id: "+errAccount.text())
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

// importRows stores the licences of all rows.
func importRows(e *env, t *tx, rows []importedLicense) error {
	for i, row := range rows {
		l := *row.license
		l.fillDefaults(t.now)
		if _, err := t.addLicense(&l, row.key, actorCommand); err != nil {
			return fmt.Errorf("line %d: %w", row.line, err)
		}
		if (i+1)%importProgress == 0 {
			fmt.Fprintf(e.stderr, "%d rows written\n", i+1)
		}
	}
	return nil
}

// textTerms is a termsReader of texts: the cells of a CSV row, or the values of options.
// A text that is empty or only white space counts as absent.
type textTerms struct {
	text  func(name string) string
	wrong func(name, detail string)
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
		c.wrong(name, detail)
	}
	return &cell, true
}

func (c *textTerms) numberTerm(name string, low, high int) (*int, bool) {
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

func (c *textTerms) boolTerm(name string) (value, present bool) {
	cell := strings.ToLower(c.cell(name))
	if cell != "" && !slices.Contains([]string{"true", "false", "1", "0", "yes", "no"}, cell) {
		c.wrong(name, "This must be true or false.")
	}
	return slices.Contains([]string{"true", "1", "yes"}, cell), cell != ""
}

func (c *textTerms) timeTerm(name string) (stamp, bool) {
	cell := c.cell(name)
	if cell == "" {
		return stamp{}, false
	}
	if day, err := time.Parse(time.DateOnly, cell); err == nil {
		cell = newStamp(day).String()
	}
	t, ok := parseStamp(cell)
	if !ok {
		c.wrong(name, "This must be a date as 2027-01-31 or a time as 2027-01-31T12:00:00Z.")
	}
	return t, true
}

func (c *textTerms) codesTerm(name string) (codeList, bool) {
	codes := strings.Fields(c.cell(name))
	checkCodes(codes, func(at int, _, detail string) { c.wrong(name, codes[at]+": "+detail) })
	return codes, len(codes) > 0
}

func (c *textTerms) objectTerm(name string) (json.RawMessage, bool) {
	cell := c.cell(name)
	if cell == "" {
		return nil, false
	}
	v, err := parseJSON([]byte(cell))
	if err != nil || len(cell) > maxMetadata || v.hasControlCharacter() {
		c.wrong(name, "This must be a JSON object of at most 16 KiB, without control characters.")
	}
	return json.RawMessage(cell), true
}
