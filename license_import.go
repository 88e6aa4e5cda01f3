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
	var faults importFaults
	rows, err := e.readImport(f, license{AccountID: account, Product: product}, &faults)
	if err != nil {
		return fmt.Errorf("%s: %w", e.args[0], err)
	}
	if err := e.withStore(func(st *store) error { return judgeImport(st, rows, &faults) }); err != nil {
		return err
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
		cells := &textTerms{
			text: func(name string) string {
				if at := slices.Index(header, name); at >= 0 {
					return record[at]
				}
				return ""
			},
			wrong: func(name, detail string) { faults.add(line, name+": "+detail) },
		}
		if row.key, err = parseLicenseKey(cells.cell("key")); err != nil {
			faults.add(line, "key: it must have 16 to 255 visible ASCII characters, and in the shape of our own keys (25 letters and digits) a right check symbol")
		} else if first, twice := seen[row.key]; twice {
			faults.add(line, fmt.Sprintf("key: it stands on line %d already", first))
		} else {
			seen[row.key] = line
		}
		row.license = readImportTerms(cells, usual)
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

// readImportTerms reads the licence of one row; usual is what a row has that does not
// say otherwise.
func readImportTerms(cells *textTerms, usual license) *license {
	l := &usual
	l.AccountID = cmp.Or(cells.cell("account_id"), usual.AccountID)
	if l.AccountID == "" {
		cells.wrong("account_id", "There is no account here, and no -account.")
	}
	state, _ := cells.textTerm("state", maxNameLength, oneOf(statusActive, statusSuspended, statusRevoked))
	l.State = valueOr(state, statusActive)
	l.Reason, _ = cells.textTerm("reason", maxReason, nil)
	readNewTerms(cells).apply(l)
	if name, detail := l.termsFault(); name != "" {
		cells.wrong(name, detail)
	}
	return l
}

// judgeImport notes the rows whose account or key does not fit what is there.
func judgeImport(st *store, rows []importedLicense, faults *importFaults) error {
	open := map[string]bool{} // accounts that were looked up
	for _, row := range rows {
		id := row.license.AccountID
		if _, known := open[id]; !known {
			err := st.openAccount(id)
			if err != nil && !errors.Is(err, errAccount) {
				return err
			}
			open[id] = err == nil
		}
		if !open[id] && id != "" { // else it is noted already
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

// importRows writes the rows, all of them or none.
func importRows(e *env, t *tx, rows []importedLicense) error {
	for i, row := range rows {
		l := *row.license
		l.complete(t.now)
		if _, err := t.addLicense(&l, row.key, actorCommand); err != nil {
			return fmt.Errorf("line %d: %w", row.line, err)
		}
		if (i+1)%importProgress == 0 {
			fmt.Fprintf(e.stderr, "%d rows written\n", i+1)
		}
	}
	return nil
}

// textTerms read terms from texts: the cells of a CSV line, or the values of options.
// One that is empty, but for white space, is absent.
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

func (c *textTerms) flagTerm(name string) (value, present bool) {
	cell := strings.ToLower(c.cell(name))
	if cell != "" && !slices.Contains([]string{"true", "false", "1", "0", "yes", "no"}, cell) {
		c.wrong(name, "This must be true or false.")
	}
	return slices.Contains([]string{"true", "1", "yes"}, cell), cell != ""
}

func (c *textTerms) momentTerm(name string) (stamp, bool) {
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
	if err != nil || len(cell) > maxMetadata || v.hasControl() {
		c.wrong(name, "This must be a JSON object of at most 16 KiB, without control characters.")
	}
	return json.RawMessage(cell), true
}
