package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// watched are the distinct statements that services of this run have prepared, with the place that asked for each.
var watched = struct {
	sync.Mutex
	statements map[string]string
}{statements: map[string]string{}}

// watch notes every statement that the program prepares from now on, but not those that tests ask for themselves.
func (s *service) watch() {
	for _, q := range []*queries{s.store.queries, s.store.writer.queries} {
		prepare := q.prepare
		q.prepare = func(ctx context.Context, query string) (*sql.Stmt, error) {
			watched.Lock()
			if _, known := watched.statements[query]; !known {
				if place := askedAt(); !strings.Contains(place, "_test.go:") {
					watched.statements[query] = place
				}
			}
			watched.Unlock()
			return prepare(ctx, query)
		}
	}
}

// askers are the files of the functions by which all others run statements.
var askers = []string{"store.go", "store_writer.go", "store_damage.go"}

// askedAt returns the file and line, outside of the askers, that have a statement prepared.
func askedAt() string {
	callers := make([]uintptr, 16)
	frames := runtime.CallersFrames(callers[:runtime.Callers(3, callers)])
	for {
		frame, more := frames.Next()
		if file := filepath.Base(frame.File); !slices.Contains(askers, file) || !more {
			return fmt.Sprintf("%s:%d", file, frame.Line)
		}
	}
}

// fewRows are the tables that are read whole: they have a row, or few for each account or day.
var fewRows = regexp.MustCompile(`^SCAN (clock|epoch|probes|base_urls|legacy_calls|revenue_backlog|proofs)\b`)

// aliveOnly are the partial indexes that may be read whole: what has ended is not in them.
var aliveOnly = regexp.MustCompile(`^SCAN .* INDEX (payments_live|payments_review|payment_operations_pending|` +
	`books_connections_used|books_exports_due)$`)

// mayRead are parts of the statements that may read a whole table, or sort, and why that is little.
var mayRead = map[string]string{
	"FROM books_connections b":                   "an account has one or two, and a switch changes on few days",
	"FROM books_connections WHERE product":       "an account has one or two",
	"FROM payment_connections c":                 "an account has one or two",
	"FROM payment_refusals r":                    "one for each method by which the last attempt was refused",
	"FROM books_authorizations WHERE account_id": "an account has few at a time",
	"FROM books_apps":                            "there are two",
	"FROM books_exports x WHERE x.connection_id": "one for each day of a connection, of those that are due",
	"FROM books_exports x WHERE x.id < ?":        "one for each day of a connection",
	"FROM accounts a ORDER BY":                   "the operator lists all accounts",
	"FROM origins WHERE 1":                       "the operator lists all sites",
	"FROM widgets w":                             "the operator lists all widgets; an account has few",
	"FROM widget_counts WHERE quarter":           "those of a day, of all widgets",
	"FROM tokens WHERE account_id":               "people issue them one by one",
	"FROM tokens WHERE revoked_at IS NULL":       "people issue them one by one",
	"FROM tokens WHERE expires_at":               "people issue them one by one",
	"lease_kid = ?1":                             "retiring a key asks about every device",
	"authorized amount, currency FROM payments":  "closing an account says what money it holds",
	"p.order_id WHERE p.state <> 'review'":       "'check' looks at every payment",
	"SELECT id, email FROM leads WHERE 1":        "erasing compares all addresses, once",
	"FROM leads WHERE created_at <":              "purging asks how many leads are old before it begins",
	"FROM events ORDER BY seq LIMIT":             "from the oldest on, up to a limit",
	"JOIN disputes d":                            "those of one order",
	"DISTINCT currency FROM revenue_days":        "one for each account, day and currency, of the days that are shown",
	"DISTINCT group_name FROM revenue_sums":      "those of one day",
	"FROM legacy_calls":                          "one for each day, known path and caller",
	"FROM item_counts WHERE widget_id":           "at most 100 a day of a widget, over 366 days",
	"FROM page_counts WHERE widget_id":           "at most 100 a day of a widget, over 366 days",
	"FROM payments WHERE due_at <= ?":            "both ends of what is due, up to a limit each",
	"FROM payments WHERE state = 'review'":       "those in review, up to a limit",
	"JOIN payout_items i ON i.payout_id":         "those of one payout",
	"FROM payout_items WHERE payout_id = ?7":     "those of one payout",
	"FROM payout_items i WHERE i.payout_id = ?":  "a page of those of one payout, and the refunds of a payment",
	"FROM webhooks":                              "an account has at most 50",
}

// checkPlans explains every statement that was watched, once. Its error names those that read more the more rows there
// are.
func checkPlans() error {
	dir, err := os.MkdirTemp("", "widgetd-plans-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	made, err := newDatabase()
	path := filepath.Join(dir, "widgetd.db")
	if err = errors.Join(err, os.WriteFile(path, made.content, 0o600)); err != nil {
		return err
	}
	db, err := sql.Open("sqlite", dsn(path, "rw", storeOptions{}))
	if err != nil {
		return err
	}
	defer db.Close()
	watched.Lock()
	defer watched.Unlock()
	var faults []error
	for _, query := range slices.Sorted(maps.Keys(watched.statements)) {
		steps, err := explain(db, query)
		if err != nil {
			continue // of a table that a test has made, or one that reads no table
		}
		plain := strings.Join(strings.Fields(query), " ")
		if strings.Contains(plain, " AND 0") { // asked for an owner of nothing
			continue
		}
		few := slices.ContainsFunc(slices.Collect(maps.Keys(mayRead)), func(part string) bool {
			return strings.Contains(plain, part)
		})
		for _, step := range steps {
			few := few || fewRows.MatchString(step) || aliveOnly.MatchString(step) ||
				strings.Contains(step, " VIRTUAL TABLE ") // a list of few
			if why := readsTooMuch(plain, step); why != "" && !few {
				faults = append(faults, fmt.Errorf("%s: %s: %s\n\t%s", watched.statements[query], why, step, plain))
			}
		}
	}
	return errors.Join(faults...)
}
