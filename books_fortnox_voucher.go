package main

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Vouchers of Fortnox as they are read. One is named by its series, its number and its financial year
// together: each year numbers anew.

// A fortnoxVoucher is a voucher as Fortnox has it. In a list it has no rows.
type fortnoxVoucher struct {
	series       string
	number, year int64
	description  string
	date         businessDate
	rows         []entryLine
}

// id returns the id of a voucher: "K-17-3".
func (v *fortnoxVoucher) id() string {
	return v.series + "-" + strconv.FormatInt(v.number, 10) + "-" + strconv.FormatInt(v.year, 10)
}

// parseFortnoxID parses the id of a voucher. Only a series may have a hyphen.
func parseFortnoxID(id string) (series string, number, year int64, ok bool) {
	parts := strings.Split(id, "-")
	if len(parts) < 3 {
		return "", 0, 0, false
	}
	last := len(parts) - 1
	year, err := strconv.ParseInt(parts[last], 10, 64)
	number, err2 := strconv.ParseInt(parts[last-1], 10, 64)
	series = strings.Join(parts[:last-1], "-")
	return series, number, year, err == nil && err2 == nil && year > 0 && number > 0 && series != ""
}

// parseFortnoxVoucher parses {"Voucher":{…}}. year is the financial year it was asked for in, which counts
// where the voucher does not say.
func parseFortnoxVoucher(body *jsonValue, year int64) (fortnoxVoucher, bool) {
	voucher, ok := body.member("Voucher")
	if !ok {
		return fortnoxVoucher{}, false
	}
	parsed, ok := parseFortnoxHead(voucher, year)
	if !ok || !isBusinessDate(parsed.date) {
		return parsed, false
	}
	rows, ok := voucher.member("VoucherRows")
	if !ok || rows.kind != jsonArray {
		return parsed, false
	}
	for i := range rows.list {
		row := &rows.list[i]
		if trueMember(row, "Removed") { // somebody has struck it
			continue
		}
		number, ok := integerMember(row, "Account")
		debit, ok2 := amountMember(row, "Debit")
		credit, ok3 := amountMember(row, "Credit")
		if !ok || !ok2 || !ok3 {
			return parsed, false
		}
		line := entryLine{Account: strconv.FormatInt(number, 10), Debit: debit, Credit: credit,
			Text:       textMember(row, "TransactionInformation", maxFortnoxText),
			CostCenter: textMember(row, "CostCenter", maxFortnoxText)}
		if debit < 0 || credit < 0 { // a negative amount is one on the other side
			line.Debit, line.Credit = max(debit, 0)+max(-credit, 0), max(credit, 0)+max(-debit, 0)
		}
		parsed.rows = append(parsed.rows, line)
	}
	return parsed, true
}

// parseFortnoxHead parses what a voucher in a list has, too.
func parseFortnoxHead(v *jsonValue, year int64) (fortnoxVoucher, bool) {
	parsed := fortnoxVoucher{
		series:      textMember(v, "VoucherSeries", 4*maxFortnoxSeries),
		description: textMember(v, "Description", maxFortnoxText),
		date:        textMember(v, "TransactionDate", maxFortnoxText),
		year:        year,
	}
	if said, ok := integerMember(v, "Year"); ok && said > 0 {
		parsed.year = said
	}
	number, ok := integerMember(v, "VoucherNumber")
	parsed.number = number
	return parsed, ok && number > 0 && parsed.series != ""
}

// read implements ledger. A voucher can't be deleted.
func (f *fortnoxLedger) read(ctx context.Context, s *ledgerSession, id string) (*bookedEntry, error) {
	series, number, year, ok := parseFortnoxID(id)
	if !ok {
		return nil, nil
	}
	path := "vouchers/" + url.PathEscape(series) + "/" + strconv.FormatInt(number, 10)
	query := url.Values{"financialyear": {strconv.FormatInt(year, 10)}}
	body, err := f.get(ctx, s, path, query)
	if isFortnoxMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	voucher, ok := parseFortnoxVoucher(body, year)
	if !ok || voucher.id() != id {
		return nil, malformedLedger(http.StatusOK)
	}
	return &bookedEntry{ID: id, Entry: bookEntry{
		Date: voucher.date, Narration: voucher.description, Currency: fortnoxCurrency,
		Series: voucher.series, Year: voucher.year, Lines: voucher.rows,
	}}, nil
}

// fortnoxBadParameter is the reason of what is refused for a parameter of its query.
const fortnoxBadParameter = "fortnox_2000588"

// isFortnoxMissing reports whether Fortnox itself says that something is not there. A 404 of something in between
// says nothing, and what is taken as missing may be written once more.
func isFortnoxMissing(err error) bool {
	failed, ok := err.(*ledgerError)
	return ok && failed.refused && isMissing(err)
}

// find implements ledger. It asks for the days around the date only, which Fortnox' guide says is there for
// vouchers, but its description does not. If that is refused or ignored there are all vouchers of the series
// in that year, of which the newest are looked at first, at most maxFortnoxPages of fortnoxPage. If there
// are more, that an entry is not among them says nothing, so that is an error.
func (f *fortnoxLedger) find(
	ctx context.Context, s *ledgerSession, entry *bookEntry, syncKey string,
) (*bookedEntry, error) {
	date, err := time.Parse(time.DateOnly, entry.Date)
	if err != nil {
		return nil, &ledgerError{reason: "date", detail: "It is not a date.", refused: true}
	}
	path := "vouchers/sublist/" + url.PathEscape(entry.Series)
	query := url.Values{
		"financialyear": {strconv.FormatInt(entry.Year, 10)},
		"fromdate":      {date.AddDate(0, 0, -fortnoxDaysAround).Format(time.DateOnly)},
		"todate":        {date.AddDate(0, 0, fortnoxDaysAround).Format(time.DateOnly)},
	}
	first, pages, err := f.page(ctx, s, path, query, "Vouchers", 1)
	if failed, ok := err.(*ledgerError); ok && failed.reason == fortnoxBadParameter {
		query.Del("fromdate")
		query.Del("todate")
		first, pages, err = f.page(ctx, s, path, query, "Vouchers", 1)
	}
	if isFortnoxMissing(err) { // the series is not there in that year, so there is no voucher in it
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	asked := 1
	for number := pages; number > 1; number-- { // lower numbers come first
		if asked == maxFortnoxPages {
			return nil, &ledgerError{reason: "too_many_vouchers",
				detail: "There are too many vouchers in the series to search."}
		}
		asked++
		items, _, err := f.page(ctx, s, path, query, "Vouchers", number)
		if err != nil {
			return nil, err
		}
		if id := findFortnoxKey(items, entry.Year, syncKey); id != "" {
			return f.read(ctx, s, id)
		}
	}
	if id := findFortnoxKey(first, entry.Year, syncKey); id != "" {
		return f.read(ctx, s, id)
	}
	return nil, nil
}

// findFortnoxKey returns the id of the newest voucher of a list whose description has a sync key; "": none
// has it.
func findFortnoxKey(items []jsonValue, year int64, syncKey string) string {
	for i := len(items) - 1; i >= 0; i-- {
		voucher, ok := parseFortnoxHead(&items[i], year)
		if ok && voucher.year == year && hasSyncKey(voucher.description, syncKey) {
			return voucher.id()
		}
	}
	return ""
}
