package main

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// The sentinels that store verbs return.
var (
	errNotFound = &refusal{code: codeNotFound}
	errBusy     = &refusal{code: codeBusy, retryAfter: 5 * time.Second,
		detail: "Another program has locked the database; nothing was written. Try again shortly."}
	errStorageFull   = &refusal{code: codeStorageFull, retryAfter: 30 * time.Second}
	errStorage       = &refusal{code: codeStorage, retryAfter: 30 * time.Second}
	errUnreadable    = &refusal{code: codeUnreadable}
	errCommitUnknown = &refusal{code: codeStorage, retryAfter: 30 * time.Second,
		detail: "The database failed at the last moment: it is not known whether this was written. " +
			"Send it again, with the same Idempotency-Key if it had one."}
	errClosed = &refusal{code: codeStorage, detail: "The service is stopping.", retryAfter: 5 * time.Second}
)

// commitAnyway wraps err so that what the job wrote is committed although it returns an error; the
// caller of update gets err itself. So a job that refuses a request can still write an event.
func commitAnyway(err error) error { return committedError{err} }

type committedError struct{ error }

func (k committedError) Unwrap() error { return k.error }

// queries runs queries with prepared statements, which it caches by their text. Its methods
// take no context: in the writer a cancelled statement would roll back the whole batch, and
// for the readers a cancellable context costs more than a short look-up, which most of their
// queries are. Queries that may read many rows get a context from store.within.
type queries struct {
	*statements
	ctx context.Context // of every query; never ends, unless it comes from store.within
}

// statements are the prepared statements of queries, by their text.
type statements struct {
	prepare func(ctx context.Context, query string) (*sql.Stmt, error)
	mu      sync.RWMutex
	stmts   map[string]*sql.Stmt
	faults  *faultLog // where damage and unreadable rows are noted; nil: nowhere
	writes  bool      // the statements are the writer's
	limits  limits
}

func newQueries(prepare func(context.Context, string) (*sql.Stmt, error)) *queries {
	return &queries{&statements{prepare: prepare, stmts: map[string]*sql.Stmt{}, limits: usualLimits},
		context.Background()}
}

// within returns the readers' queries bound to ctx. When ctx ends, they return its error: a query
// that has returned no row yet is interrupted, any other ends at its next row. The writer has no such
// method. A connection whose query was interrupted is closed, and the next query opens another.
func (s *store) within(ctx context.Context) *queries { return &queries{s.queries.statements, ctx} }

func (q *statements) stmt(query string) (*sql.Stmt, error) {
	q.mu.RLock()
	st := q.stmts[query]
	q.mu.RUnlock()
	if st != nil {
		return st, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if st := q.stmts[query]; st != nil {
		return st, nil
	}
	st, err := q.prepare(context.Background(), query)
	var se *sqlite.Error
	if errors.As(err, &se) && se.Code() == sqlite3.SQLITE_ERROR { // the schema lacks what the query names
		q.faults.noteDamage(query, err, q.writes)
		return nil, fmt.Errorf("%w (%w)", errStorage, err)
	}
	if err != nil {
		return nil, q.fault(query, err)
	}
	q.stmts[query] = st
	return st, nil
}

// run runs a statement that has neither arguments nor rows.
func (q *queries) run(query string) error {
	st, err := q.stmt(query)
	if err == nil {
		_, err = st.Exec()
	}
	return q.fault(query, err)
}

// close closes the statements. A connection that still has open statements can't checkpoint and
// remove the write-ahead log when it is closed.
func (q *statements) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, st := range q.stmts {
		st.Close()
	}
	clear(q.stmts)
}

// one scans the first row of a query into dest, or returns errNotFound when it has none.
func (q *queries) one(query string, args []any, dest ...any) error {
	st, err := q.stmt(query)
	if err != nil {
		return err
	}
	rows, err := st.QueryContext(q.ctx, args...)
	if err != nil {
		return q.fault(query, err)
	}
	defer rows.Close()
	switch {
	case rows.Next():
		if err := q.scanned(rows, query, rows.Scan(dest...)); err != nil {
			return err
		}
		err = rows.Close()
	case rows.Err() == nil:
		return errNotFound
	default:
		err = rows.Err()
	}
	return q.fault(query, err)
}

// each calls row for every row of a query. row scans it, and must run no other query. For a row that can't be
// read scan returns an unreadableRow.
func (q *queries) each(query string, args []any, row func(scan func(dest ...any) error) error) error {
	st, err := q.stmt(query)
	if err != nil {
		return err
	}
	rows, err := st.QueryContext(q.ctx, args...)
	if err != nil {
		return q.fault(query, err)
	}
	defer rows.Close()
	scan := func(dest ...any) error { return q.scanned(rows, query, rows.Scan(dest...)) }
	for rows.Next() {
		if err := row(scan); err != nil {
			return err
		}
	}
	return q.fault(query, rows.Err())
}

// A field maps a column of a row to the Go variable that holds its value. Only a bare column name belongs to the
// table itself and is written by insert; any other expression is only read.
type field struct {
	column string // "amount", or "a.closed_at IS NOT NULL"
	at     any
}

// fieldsOf returns the columns of members.
func fieldsOf(members []member) []field {
	all := make([]field, len(members), len(members)+20) // room for the columns of a table that are no members
	for i, m := range members {
		switch at := m.at.(type) {
		case *[]string:
			all[i] = field{m.name, jsonColumn[[]string]{at}}
		case *json.RawMessage:
			all[i] = field{m.name, jsonColumn[json.RawMessage]{at}}
		default:
			all[i] = field{m.name, at}
		}
	}
	return all
}

// A table maps the rows of a database table to values of T. It determines what queries select and scan, and what
// insert writes.
type table[T any] struct {
	tableText
	fields func(*T) []field
}

// A tableText has the texts of the statements about a table.
type tableText struct {
	columns   string // to select: "p.id, p.order_id, …"
	from      string // what they are of: "payments p", and what is joined
	query     string // that selects them; WHERE and what follows go after it
	name      string // with the alias: "payments p"
	insertion string
	alias     string
	own       []bool // for each field, whether it is a column of the table itself
}

// newTable returns the description of a table, which queries name by an alias, as they do with what is joined.
func newTable[T any](name, alias string, fields func(*T) []field, joins ...string) *table[T] {
	d := &table[T]{fields: fields}
	d.describe(name, alias, fields(new(T)), joins)
	return d
}

func (d *tableText) describe(name, alias string, fields []field, joins []string) {
	d.alias, d.name = alias, name+" "+alias
	var columns, own []string
	for _, f := range fields {
		isOwn := strings.IndexFunc(f.column, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }) < 0
		if d.own = append(d.own, isOwn); isOwn {
			own = append(own, f.column)
			f.column = alias + "." + f.column
		}
		columns = append(columns, f.column)
	}
	d.columns = strings.Join(columns, ", ")
	d.from = strings.Join(append([]string{d.name}, joins...), " ")
	d.query = `SELECT ` + d.columns + ` FROM ` + d.from + ` `
	d.insertion = `INSERT INTO ` + name + ` (` + strings.Join(own, ", ") + `) VALUES (?` +
		strings.Repeat(", ?", len(own)-1) + `)`
}

// placesOf returns where columns are scanned to.
func placesOf(fields []field) []any {
	all := make([]any, len(fields))
	for i := range fields {
		all[i] = fields[i].at
	}
	return all
}

// indexOf returns where the field of a column is, which is there.
func indexOf(fields []field, column string) int {
	return slices.IndexFunc(fields, func(f field) bool { return f.column == column })
}

// dest returns where the columns of a row are scanned to.
func (d *table[T]) dest(row *T) []any { return placesOf(d.fields(row)) }

// destNew allocates a row of a list, and returns where its columns are scanned to.
func (d *table[T]) destNew(row **T) []any {
	*row = new(T)
	return d.dest(*row)
}

// one returns the first row that a condition such as "WHERE p.id = ?" selects, or errNotFound when there is none.
func (d *table[T]) one(q *queries, condition string, args ...any) (*T, error) {
	row := new(T)
	if err := d.oneInto(q, d.fields(row), condition, args); err != nil {
		return nil, err
	}
	return row, nil
}

func (d *tableText) oneInto(q *queries, fields []field, condition string, args []any) error {
	return q.one(d.query+condition, args, placesOf(fields)...)
}

// byID returns the row with an id if o matches it. Otherwise it returns the error missing.
func (d *table[T]) byID(q *queries, o owner, id string, missing error) (*T, error) {
	condition, args := d.withID(o, id)
	row, err := d.one(q, condition, args...)
	return row, replaced(err, errNotFound, missing)
}

// withID returns the condition of byID.
func (d *tableText) withID(o owner, id string) (string, []any) {
	return o.narrow(`WHERE `+d.alias+`.id = ?`, d.alias+`.account_id`, id)
}

// list returns what readPage needs to list rows by their ids.
func (d *tableText) list() listQuery {
	return listQuery{columns: d.query, table: d.name, key: d.alias + `.id`}
}

// whereOwner returns what page needs to list the rows of an owner.
func (d *tableText) whereOwner(o owner) listQuery {
	list := d.list()
	list.scope(o.narrow(``, d.alias+`.account_id`))
	return list
}

// page returns a page of a list in descending order of the ids, starting after the id before ("": the highest).
func (d *table[T]) page(q *queries, list listQuery, before string, limit int) (p listPage[*T], err error) {
	var id *string // of the row that was read last
	dest := func(row **T) []any {
		*row = new(T)
		fields := d.fields(*row)
		id = fields[indexOf(fields, "id")].at.(*string)
		return placesOf(fields)
	}
	p.rows, p.next, err = readPage(q, list, cmp.Or(before, lastID), limit, dest, func(*T) string { return *id })
	return p, err
}

// all returns the rows that a condition selects. Like collect it fails if one of them can't be read.
func (d *table[T]) all(q *queries, condition string, args ...any) ([]T, error) {
	return collect(q, d.query+condition, args, d.dest)
}

// insert writes a new row with all fields that are columns of the table itself.
func (d *table[T]) insert(t *tx, row *T) { d.insertFields(t, d.fields(row)) }

func (d *tableText) insertFields(t *tx, fields []field) {
	values := make([]any, 0, len(fields))
	for i, f := range fields {
		if d.own[i] {
			values = append(values, f.at)
		}
	}
	t.exec(d.insertion, values...)
}

// update writes the columns of row that are named, separated by spaces, and returns how many rows it changed. Each
// must be a field of the table. rest ends the statement, and has its arguments after it: what else it sets, and
// which row it changes.
func (d *table[T]) update(t *tx, row *T, columns, rest string, args ...any) int64 {
	return d.updateFields(t, d.fields(row), strings.Fields(columns), rest, args)
}

func (d *tableText) updateFields(t *tx, fields []field, names []string, rest string, args []any) int64 {
	values := make([]any, 0, len(names)+len(args))
	for _, name := range names {
		values = append(values, fields[indexOf(fields, name)].at)
	}
	name, _, _ := strings.Cut(d.name, " ")
	return t.exec(`UPDATE `+name+` SET `+strings.Join(names, ` = ?, `)+` = ?`+rest, append(values, args...)...)
}

// changed returns the names, separated by spaces, of the columns of the table itself in which two rows differ.
func (d *table[T]) changed(before, after *T) string {
	return d.changedFields(d.fields(before), d.fields(after))
}

func (d *tableText) changedFields(was, now []field) string {
	var names []string
	for i, is := range now {
		if d.own[i] && !reflect.DeepEqual(was[i].at, is.at) {
			names = append(names, is.column)
		}
	}
	return strings.Join(names, " ")
}

// collect returns the rows of a query; dest returns where the columns of a row are scanned to. It fails if one
// of them can't be read; see collectReadable.
func collect[T any](q *queries, query string, args []any, dest func(*T) []any) (all []T, err error) {
	err = q.each(query, args, func(scan func(...any) error) error {
		var row T
		if err := scan(dest(&row)...); err != nil {
			return err
		}
		all = append(all, row)
		return nil
	})
	return all, err
}

// texts returns the texts that a query for one column selects.
func (q *queries) texts(query string, args ...any) ([]string, error) {
	return collect(q, query, args, func(text *string) []any { return []any{text} })
}

// idsEndingIn returns up to limit ids of a table, from one on, that end in those symbols. It goes through all of these,
// in an index where there is one: 60 ms for 300,000 devices, but a second for 2 million events, which have none.
func (q *queries) idsEndingIn(table, end, from string, limit int) ([]string, error) {
	return q.texts(`SELECT id FROM `+table+` WHERE id LIKE ? AND id >= ? LIMIT ?`, "%"+end, from, limit)
}

// oneValue returns the value of a query for one column of one row, or errNotFound when it has no row.
func oneValue[T any](q *queries, query string, args ...any) (v T, err error) {
	err = q.one(query, args, &v)
	return v, err
}

// countSince returns how many rows a query has, up to maxCounted, and of the first of them since when and its id. ?1
// and ?2 are the times, and ?3 is maxCounted.
func (q *queries) countSince(query string, now, then stamp) (n int, since stamp, id string, err error) {
	err = q.one(`SELECT count(*), min(since), coalesce(id, '') FROM (`+query+` LIMIT ?3)`,
		[]any{now, then, maxCounted}, &n, &since, &id)
	return n, since, id, err
}

// limits bound what one request reads or changes, and what an account may have, where a test must come to the bound.
type limits struct {
	// Rows of a table that one request for a list goes through (contract, section 1): filters that match little then
	// answer with a short page and a cursor. A sweep of events looks at as many.
	listRows int

	planLicenses    int   // that one call of applyPlan goes through; a multiple of appliedAtOnce
	swept           int64 // rows that one sweep removes, so that other writers do not wait long
	plans           int   // of an account, without those that are retired
	openOrders      int   // of an account
	attempts        int   // to pay one order
	refunds         int   // of one order, failed ones included
	talliedLicenses int   // that the status command counts by their status; of more it tells the number only
}

// usualLimits are those of every store that is opened with none of its own.
var usualLimits = limits{
	listRows:        10_000,
	planLicenses:    5_000,
	swept:           1_000,
	plans:           500,
	openOrders:      10_000,
	attempts:        20,
	refunds:         100,
	talliedLicenses: 10_000,
}

// A listPage is a page of a list.
type listPage[T any] struct {
	rows []T
	next string // cursor of the next page; "": this is the last
}

// A listQuery reads the rows of a table in descending order of a key. The scope is what an index
// finds in that order, such as the rows of an account; filters leave out some of these rows.
type listQuery struct {
	columns string // SELECT … FROM …
	table   string // has the key and the columns that the scope names; with its alias in columns
	key     string

	scopes, filters       string // conditions, each beginning with AND
	scopeArgs, filterArgs []any
	indexed               []indexedScope
	from                  string // of tables that are ordered by ids: the lowest one; "": all
	since, until          int64  // of tables ordered by numbers: from which number on, and before which; 0: all
}

// An idRange is a range of ids, up to but without before; "" is no bound.
type idRange struct{ from, before string }

// below returns the id before which a page begins in the range, after the page that ends with the id cursor ("": the
// first).
func (r idRange) below(cursor string) string {
	return min(cmp.Or(cursor, lastID), cmp.Or(r.before, lastID))
}

// An indexedScope is a condition " AND COLUMN = ?" of a scope that has an index of its own. Of several, a page goes
// along the index that reaches further back with limits.listRows rows; the other conditions are filters then.
type indexedScope struct {
	condition string
	args      []any
}

func (l *listQuery) scope(condition string, args []any) {
	l.scopes += condition
	l.scopeArgs = append(l.scopeArgs, args...)
}

// byIndex adds an indexedScope, unless the condition is "".
func (l *listQuery) byIndex(condition string, args []any) {
	if condition != "" {
		l.indexed = append(l.indexed, indexedScope{condition, args})
	}
}

func (l *listQuery) filter(condition string, args ...any) {
	l.filters += condition
	l.filterArgs = append(l.filterArgs, args...)
}

// bounds returns the WHERE for the rows of a scope whose key is below before and, unless that is nil, at least
// lowest. Each end has one bound: of two, SQLite would use either, and read all rows up to the other.
func (l *listQuery) bounds(scope indexedScope, before, lowest any) (where string, args []any) {
	where = ` WHERE ` + l.key + ` < ?` + l.scopes + scope.condition
	args = slices.Concat([]any{before}, l.scopeArgs, scope.args)
	if lowest != nil {
		return where + ` AND ` + l.key + ` >= ?`, append(args, lowest)
	}
	return where, args
}

// readPage returns up to limit rows whose key is below before, and the key after which the
// next page begins, zero when this is the last. A list with filters goes through at most
// limits.listRows rows of its scope, so its page may have fewer than limit rows, or none, although
// another page follows. Rows that can't be read are left out, which shortens a page too.
func readPage[T any, K string | int64](
	q *queries, l listQuery, before K, limit int, dest func(*T) []any, key func(T) K,
) (rows []T, next K, err error) {
	query, args, next, err := queryOfPage(q, &l, before)
	if err != nil {
		return nil, next, err
	}
	column := l.key[strings.IndexByte(l.key, '.')+1:]
	rows, last, err := collectPage(q, query, args, column, limit, dest, key)
	return rows, cmp.Or(last, next), err
}

// queryOfPage returns the query of readPage for the rows of a page, without its limit, and the key before which the
// next page begins if this one has fewer rows and there is another.
func queryOfPage[K string | int64](
	q *queries, l *listQuery, before K,
) (query string, args []any, next K, err error) {
	order := ` ORDER BY ` + l.key + ` DESC LIMIT ?`
	var lowest any
	if l.since > 0 {
		lowest = l.since
	}
	if l.from != "" {
		lowest = l.from
	}
	if len(l.indexed) == 0 {
		l.indexed = []indexedScope{{}}
	}
	best := 0
	if l.filters != "" || len(l.indexed) > 1 {
		for i, scope := range l.indexed {
			where, args := l.bounds(scope, before, lowest)
			end, err := orNil(oneValue[K](q, `SELECT `+l.key+` FROM `+l.table+where+order+` OFFSET ?`,
				append(args, 1, q.limits.listRows-1)...))
			if err != nil {
				return "", nil, next, err
			}
			if i == 0 || end < next {
				best, next = i, end
			}
		}
		if next != *new(K) {
			lowest = next
		}
	}
	where, args := l.bounds(l.indexed[best], before, lowest)
	for i, scope := range l.indexed {
		if i != best { // the + keeps SQLite from using its index
			l.filter(strings.Replace(scope.condition, ` AND `, ` AND +`, 1), scope.args...)
		}
	}
	return l.columns + where + l.filters + order, append(args, l.filterArgs...), next, nil
}

// readNumbered is readPage for a table that is ordered by the numbers of its rows. Its cursors
// encode these numbers (seqCursor); before is a cursor with that prefix, or "" for the first page.
func readNumbered[T any](
	q *queries, l listQuery, prefix, before string, limit int, dest func(*T) []any, seq func(T) int64,
) (p listPage[T], err error) {
	newest := int64(math.MaxInt64)
	if before != "" {
		newest, _ = parseSeqCursor(prefix, before)
	}
	if l.until > 0 {
		newest = min(newest, l.until)
	}
	rows, next, err := readPage(q, l, newest, limit, dest, seq)
	if p.rows = rows; next > 0 {
		p.next = seqCursor(prefix, next)
	}
	return p, err
}

// firstSince returns the number (seq) from which on the rows of a table are not older than since;
// column holds their times. It uses a binary search, because times have no index but grow with
// the numbers. Where the clock was set back they do not, and it may return a later number.
func (q *queries) firstSince(table, column string, since stamp) (first int64, err error) {
	var end int64
	if err := q.one(`SELECT coalesce(max(seq), 0) + 1 FROM `+table, nil, &end); err != nil {
		return 0, err
	}
	for first < end {
		middle := first + (end-first)/2
		var seq int64
		var at string // compared as text, even if it is not a valid time
		err := q.one(`SELECT seq, `+column+` FROM `+table+` WHERE seq >= ? ORDER BY seq LIMIT 1`,
			[]any{middle}, &seq, &at)
		switch {
		case err != nil && !errors.Is(err, errNotFound):
			return 0, err
		case err == nil && at < since.String():
			first = seq + 1
		default:
			end = middle
		}
	}
	return first, nil
}

// scopeTimes narrows a list ordered by the numbers of its rows to those whose column is from since on, and
// before until; zero: no bound. See firstSince.
func (q *queries) scopeTimes(list *listQuery, column string, since, until stamp) (err error) {
	if !since.IsZero() {
		if list.since, err = q.firstSince(list.table, column, since); err != nil {
			return err
		}
		list.filter(` AND `+column+` >= ?`, since)
	}
	if !until.IsZero() {
		if list.until, err = q.firstSince(list.table, column, until); err != nil {
			return err
		}
		list.until = max(1, list.until)
		list.filter(` AND `+column+` < ?`, until)
	}
	return nil
}

// A tx is the writer's transaction as one job sees it: the queries, the methods that change
// rows, and one time for all of them.
type tx struct {
	*queries
	*effects
	now   stamp
	exact time.Time // now, not rounded to seconds
}

// effects are what a job has done to the transaction so far.
type effects struct {
	isQuiet, hasChanged  bool   // quiet was called; a row was changed
	onlyID               string // see only
	failed               error  // of the first write that failed
	total                total  // to be merged with those of the other jobs and written; nil: none
	written              []writtenEvent
	endings              []jobEnding // what is to be done at the job's end
	shared, hasSavepoint bool        // with other jobs, so that it needs a savepoint before its first write; it has it
}

// newID makes an id with the transaction's time in it.
func (t *tx) newID(prefix string) string { return newID(prefix, t.exact) }

// A store is one open database file: the queries, over a pool of connections that only read,
// and the writer.
type store struct {
	*queries
	*writer
	path     string
	walPath  string
	now      func() time.Time
	readers  *sql.DB
	file     *os.File // the database, for checkHeader; must stay open as long as the connections, see openFile
	fileInfo os.FileInfo
	walInfo  os.FileInfo           // of the write-ahead log that SQLite has open
	damaged  atomic.Pointer[error] // what the last check of the file's header found; nil: nothing

	maxWAL           int64       // bytes of the write-ahead log, past which it is reported
	noCheckpoints    bool        // leave checkpoints to Litestream, or in a command to the service
	walNeedsTruncate atomic.Bool // the write-ahead log may still hold what was erased
}

// storageError wraps an error of SQLite in the matching sentinel: errBusy, errStorageFull or
// errStorage. Its text is kept for the log. Other errors are returned as they are.
func storageError(err error) error {
	if errors.Is(err, sql.ErrConnDone) || errors.Is(err, driver.ErrBadConn) {
		return fmt.Errorf("%w (%w)", errStorage, err)
	}
	var se *sqlite.Error
	if !errors.As(err, &se) {
		return err
	}
	kind := errStorage
	switch code, primary := se.Code(), se.Code()&0xff; {
	case primary == sqlite3.SQLITE_BUSY, primary == sqlite3.SQLITE_LOCKED:
		kind = errBusy
	case code == sqlite3.SQLITE_FULL, code == sqlite3.SQLITE_IOERR_WRITE, code == sqlite3.SQLITE_IOERR_SHMSIZE:
		kind = errStorageFull
	case primary == sqlite3.SQLITE_IOERR, primary == sqlite3.SQLITE_READONLY, primary == sqlite3.SQLITE_CORRUPT,
		primary == sqlite3.SQLITE_NOTADB, primary == sqlite3.SQLITE_CANTOPEN:
	case !strings.Contains(se.Error(), malformedJSON):
		return err
	}
	return fmt.Errorf("%w (%w)", kind, err)
}

// isStorageError reports whether an error is that the database can't be read or written, as storageError says.
func isStorageError(err error) bool {
	return errors.Is(err, errBusy) || errors.Is(err, errStorage) || errors.Is(err, errStorageFull)
}

// malformedJSON is SQLite's message when a JSON function gets text that is not JSON. This program
// writes only JSON to JSON columns, and they have a CHECK, so somebody else wrote that text.
const malformedJSON = "malformed JSON"

// storageReason says why the database could not be used, in one of a few sentences without a path or
// SQL, for callers that must not be told more. err is not nil.
func storageReason(err error) string {
	code := 0
	var se *sqlite.Error
	if errors.As(err, &se) {
		code = se.Code() & 0xff
	}
	switch {
	case errors.Is(err, errClosed):
		return "the service is stopping"
	case errors.Is(err, errFenced):
		return reasonSuperseded
	case errors.Is(err, errBusy):
		return "another program holds the write lock"
	case errors.Is(err, errStorageFull):
		return "the disk is full"
	case errors.Is(err, errReplaced):
		return "the file at the path is not the one that is open"
	case errors.Is(err, errHeader), code == sqlite3.SQLITE_CORRUPT, code == sqlite3.SQLITE_NOTADB:
		return "the database is damaged"
	case code == sqlite3.SQLITE_READONLY:
		return "the database can't be written, only read"
	case code == sqlite3.SQLITE_IOERR:
		return "the disk reports errors"
	}
	return "the database can't be read or written"
}

// isDuplicate reports whether err says that a row with the same key already exists.
func isDuplicate(err error) bool {
	var se *sqlite.Error
	return errors.As(err, &se) &&
		(se.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || se.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
}

// sweep removes up to limits.swept stored answers that have expired, and returns how many it removed.
func (t *tx) sweep() (int64, error) {
	t.dropsNothing()
	return t.exec(`DELETE FROM idempotency WHERE id IN
		(SELECT id FROM idempotency WHERE expires_at <= ? LIMIT ?)`, t.now, t.limits.swept), nil
}

// clockSeen returns the time stored in the file, which is the latest that the service took to be right; zero if
// there is none.
func (q *queries) clockSeen() (seen stamp, err error) {
	return orNil(oneValue[stamp](q, `SELECT seen_at FROM clock`))
}

// raiseClock sets the time in the file, unless the stored one is later.
func (t *tx) raiseClock(seen stamp) {
	t.exec(`INSERT INTO clock (id, seen_at) VALUES (1, ?)
		ON CONFLICT (id) DO UPDATE SET seen_at = max(seen_at, excluded.seen_at)`, seen)
}

// setClock sets the time in the file, even to an earlier one.
func (t *tx) setClock(seen stamp) {
	t.exec(`INSERT OR REPLACE INTO clock (id, seen_at) VALUES (1, ?)`, seen)
}

// A storedAnswer is the answer to a request with an Idempotency-Key (contract, section 1).
type storedAnswer struct {
	request []byte // keyed hash of the body
	sealed  []byte // the answer, encrypted with a key that is derived from the Idempotency-Key
}

// storedAnswer returns the answer stored under an id, or errNotFound when there is none or it
// has expired.
func (t *tx) storedAnswer(id []byte) (a storedAnswer, err error) {
	err = t.one(`SELECT request, answer FROM idempotency WHERE id = ? AND expires_at > ?`,
		[]any{id, t.now}, &a.request, &a.sealed)
	return a, err
}

// storeAnswer stores an answer under an id for a time.
func (t *tx) storeAnswer(id []byte, a storedAnswer, life time.Duration) {
	t.exec(`INSERT OR REPLACE INTO idempotency (id, request, answer, expires_at)
		VALUES (?, ?, ?, ?)`, id, a.request, a.sealed, t.now.after(life))
}

// requireRow takes the result of exec and returns errNotFound when no row was changed.
func requireRow(n int64) error {
	if n == 0 {
		return errNotFound
	}
	return nil
}

// orNil turns errNotFound into nil, and v into its zero value.
func orNil[T any](v T, err error) (T, error) {
	if errors.Is(err, errNotFound) {
		return *new(T), nil
	}
	return v, err
}

// hasRows reports whether any of the tables has a row.
func (q *queries) hasRows(tables []string) (has bool, err error) {
	return oneValue[bool](q,
		`SELECT EXISTS (SELECT 1 FROM `+strings.Join(tables, `) OR EXISTS (SELECT 1 FROM `)+`)`)
}

// An owner says which rows a query may see or change: those of one account, or those of
// every account (anyAccount). Its zero value matches no row.
type owner struct {
	account string
	every   bool
	app     string // of rows that applications make for themselves, only those of this one; "": all
}

// owns reports whether o matches the rows of that account.
func (o owner) owns(accountID string) bool {
	return o.every || o.account != "" && o.account == accountID
}

// narrow takes a query that ends in a WHERE clause, with its arguments, and returns both
// with a condition added that keeps only the rows that o matches. column is the column that
// holds the id of a row's account.
func (o owner) narrow(query, column string, args ...any) (string, []any) {
	switch {
	case o.every:
		return query, args
	case o.account == "":
		return query + ` AND 0`, args
	}
	return query + ` AND ` + column + ` = ?`, append(args, o.account)
}

// ofApp returns a condition that keeps only the webhooks (alias w) that an owner may see and change: for an
// application the webhooks that it made, otherwise all.
func (o owner) ofApp() (condition string, args []any) {
	if o.app == "" {
		return "", nil
	}
	return ` AND EXISTS (SELECT 1 FROM app_webhooks x WHERE x.webhook_id = w.id AND x.app_id = ?)`, []any{o.app}
}

// anyAccount matches the rows of every account. It is for the operator, and for what the
// service does by itself.
var anyAccount = owner{every: true}

// ownedBy matches the rows of one account; with "" it matches none.
func ownedBy(accountID string) owner { return owner{account: accountID} }

// A jsonColumn is a column that holds JSON: for a list that is nil "[]", for anything else that is nil NULL.
type jsonColumn[T any] struct{ to *T }

// Value implements driver.Valuer.
func (c jsonColumn[T]) Value() (driver.Value, error) {
	if text, isText := any(*c.to).(json.RawMessage); len(text) > 0 {
		return string(text), nil // as it was sent
	} else if isText {
		return nil, nil
	}
	text, err := json.Marshal(*c.to)
	if string(text) != "null" {
		return string(text), err
	}
	if reflect.TypeFor[T]().Kind() == reflect.Slice {
		return "[]", nil
	}
	return nil, nil
}

// Scan implements sql.Scanner.
func (c jsonColumn[T]) Scan(v any) error {
	*c.to = *new(T)
	switch v := v.(type) {
	case nil:
		return nil
	case string:
		return json.Unmarshal([]byte(v), c.to)
	}
	return fmt.Errorf("JSON is stored as %T", v)
}

// optionalText is a column that holds a text, or NULL, which is "".
type optionalText struct{ to *string }

// Value implements driver.Valuer.
func (o optionalText) Value() (driver.Value, error) {
	if *o.to == "" {
		return nil, nil
	}
	return *o.to, nil
}

// Scan implements sql.Scanner.
func (o optionalText) Scan(v any) error {
	var ok bool
	if *o.to, ok = v.(string); !ok && v != nil {
		return fmt.Errorf("a text is stored as %T", v)
	}
	return nil
}

// fillerOf returns SQL for a text of filler characters that has as many bytes as a column's value; NULL for NULL.
func fillerOf(column, filler string) string {
	size := `length(CAST(` + column + ` AS BLOB))`
	return `substr(printf('%.*c', ` + size + `, '` + filler + `'), 1, ` + size + `)`
}

// except returns err, or nil if err is the sentinel, which its caller does not regard as a failure.
func except(err, sentinel error) error { return replaced(err, sentinel, nil) }

// replaced returns err, or other if err is the sentinel.
func replaced(err, sentinel, other error) error {
	if errors.Is(err, sentinel) {
		return other
	}
	return err
}

// updated runs f in a transaction (see update), and returns what f has returned.
func updated[T any](ctx context.Context, s *store, f func(*tx) (T, error)) (result T, err error) {
	err = s.update(ctx, func(t *tx) (err error) {
		result, err = f(t)
		return err
	})
	return result, err
}

// maxCounted is how many rows of a kind status counts at most.
const maxCounted = 10_000

// trueOrEmpty returns the value of a boolean member for eventData: "true", or "", which leaves the member out.
func trueOrEmpty(is bool) string {
	if is {
		return "true"
	}
	return ""
}

// rowsAtOnce is how many rows a chore of orders, payments or books changes at most in one transaction.
const rowsAtOnce = 200

// What days have brought: in daily_counts what the service counts, and what other tables hold.

// The names in daily_counts are a closed list, of which no caller chooses any: those of daySeriesOf, with countWithin
// how many answers took at most so many microseconds, and one with trappedOf for each account.
const (
	countVerified    = "verified"
	countFailedSends = "failed_sends"
	countRefused     = "refused_%d"
	countWithin      = "within_%08d"
	countFileBytes   = "file_bytes" // set, not added
	trappedOf        = "trapped_"   // with the id of an account

	keepCounts = 400 // days
)

// refusedStatuses are the statuses by which refusals are counted; 0: all others.
var refusedStatuses = []int{400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 429, 500, 503, 0}

// addDayCounts adds to what a day has of some names, and removes what is older than keepCounts.
func (t *tx) addDayCounts(day string, counts map[string]int64) {
	for name, n := range counts {
		t.exec(`INSERT INTO daily_counts (day, name, n) VALUES (?1, ?2, ?3)
			ON CONFLICT DO UPDATE SET n = iif(name = ?4, 0, n) + excluded.n`, day, name, n, countFileBytes)
	}
	t.exec(`INSERT INTO daily_counts
		SELECT ?, 'proof_hours', max(0, (strftime('%s', ?) - strftime('%s', min(proved_at))) / 3600)
		FROM proofs WHERE true HAVING min(proved_at) IS NOT NULL ON CONFLICT DO UPDATE SET n = excluded.n`, day, t.now)
	t.exec(`DELETE FROM daily_counts WHERE day < date(?, ?)`, day, fmt.Sprint(-keepCounts, " days"))
}

// countTrapped counts a lead of an account that the trap for bots has caught, on the UTC day.
func (t *tx) countTrapped(accountID string) {
	t.exec(`INSERT INTO daily_counts (day, name, n) VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET n = n + 1`,
		t.now.Format(time.DateOnly), trappedOf+accountID)
}

// trapped returns how many leads of an owner the trap for bots has caught on the UTC days from one date to another. It
// looks for a row of each of them.
func (q *queries) trapped(o owner, from, to time.Time) (n int64, err error) {
	first := trappedOf + o.account
	last := first
	if o.every {
		last += "~"
	}
	var days []string
	for day := from; !day.After(to); day = day.AddDate(0, 0, 1) {
		days = append(days, day.Format(time.DateOnly))
	}
	return oneValue[int64](q, `SELECT coalesce(sum(n), 0) FROM json_each(?) d, daily_counts c
		WHERE c.day = d.value AND c.name BETWEEN ? AND ?`, string(encodeJSON(days)), first, last)
}

// A daySeries is one kind of number that each day has.
type daySeries struct {
	name, label string
	unit        dayUnit
	ofAll       bool // not known of one account

	// query selects the number of a day; none, or NULL: it is not known. ?1 is the account ("": all), ?2 and ?3 are
	// when the day begins and ends, ?4 and ?5 the ids that orders have from and until then, ?6 and ?7 the numbers of
	// events, ?8 is its date, and ?9 a currency.
	query    string
	currency string
}

// A dayUnit is how a number is written, and from which on a fall or rise of it is told of (0: never).
type dayUnit struct {
	divisor int64
	suffix  string
	least   int64
}

var (
	dayCount = dayUnit{1, "", 10}
	dayMoney = dayUnit{100, "", 100_00}
	daySpeed = dayUnit{1000, " ms", 100_000}
	daySize  = dayUnit{1 << 20, " MB", 0}
	dayHours = dayUnit{1, " h", 0}
)

const (
	eventsOfDay = `SELECT count(*) FROM events WHERE seq >= ?6 AND seq < ?7 AND (?1 = '' OR +account_id = ?1)
		AND type = `
	countOfDay = `SELECT sum(iif(name = '%s', n, 0)) FROM daily_counts WHERE day = ?8`
)

// daySeriesOf returns all series in the order in which they are shown, with revenue in these currencies.
func daySeriesOf(currencies []string) []daySeries {
	counted := func(name, label string) daySeries {
		return daySeries{name, label, dayCount, true, fmt.Sprintf(countOfDay, name), ""}
	}
	all := []daySeries{
		{name: "leads", label: "leads", unit: dayCount, query: eventsOfDay + `'lead.created'`},
		{name: "orders", label: "orders", unit: dayCount, query: `SELECT count(*) FROM orders WHERE id >= ?4 AND id < ?5
			AND (?1 = '' OR +account_id = ?1) AND coalesce(authorized_at, accepted_at, paid_at) IS NOT NULL`},
	}
	for _, currency := range currencies {
		all = append(all, daySeries{name: "revenue_" + currency, label: "revenue " + currency, unit: dayMoney,
			currency: currency, query: `SELECT coalesce(sum(CASE WHEN what IN ('sale', 'delivery', 'tip') THEN gross
			WHEN what <> 'discount' THEN -gross END), 0) FROM revenue_sums WHERE date = ?8 AND currency = ?9
			AND test = 0 AND account_id IN (SELECT id FROM accounts WHERE ?1 IN ('', id))`})
	}
	all = append(all, daySeries{name: "menu_views", label: "menu views", unit: dayCount, query: `SELECT
			coalesce(sum(views), 0) FROM widget_counts WHERE quarter >= ?2 AND quarter < ?3
			AND widget_id IN (SELECT id FROM widgets WHERE ?1 IN ('', account_id))`},
		daySeries{name: "activations", label: "activations", unit: dayCount, query: eventsOfDay + `'device.activated'`},
		counted(countVerified, "verifications"))
	for _, status := range refusedStatuses {
		label := strings.Replace(fmt.Sprintf("refused %d", status), " 0", " else", 1)
		all = append(all, counted(fmt.Sprintf(countRefused, status), label))
	}
	return append(all, counted(countFailedSends, "failed sends"),
		daySeries{name: "slowest_microseconds", label: "99% within", unit: daySpeed, ofAll: true, query: `
			SELECT min(bound) FROM (SELECT CAST(substr(name, 8) AS INTEGER) AS bound,
			sum(n) OVER (ORDER BY name) AS within, sum(n) OVER () AS every FROM daily_counts
			WHERE day = ?8 AND name GLOB 'within_*')
			WHERE within * 100 >= every * 99`},
		daySeries{name: countFileBytes, label: "file size", unit: daySize, ofAll: true,
			query: `SELECT n FROM daily_counts WHERE day = ?8 AND name = 'file_bytes'`},
		daySeries{name: "backup_age_hours", label: "backup age", unit: dayHours, ofAll: true, query: `SELECT
			(strftime('%s', ?3) - strftime('%s', at)) / 3600 FROM events WHERE type = 'backup.written' AND seq < ?7
			ORDER BY seq DESC LIMIT 1`},
		daySeries{name: "proof_hours", label: "proof age", unit: dayHours, ofAll: true,
			query: `SELECT n FROM daily_counts WHERE day = ?8 AND name = 'proof_hours'`})
}

// dayCurrencies returns the first currencies in which an account ("": any) has revenue from one date to another.
func (q *queries) dayCurrencies(accountID, from, to string) ([]string, error) {
	return q.texts(`SELECT DISTINCT currency FROM revenue_days WHERE date >= ?2 AND date <= ?3
		AND account_id IN (SELECT id FROM accounts WHERE ?1 IN ('', id)) ORDER BY currency LIMIT 6`,
		accountID, from, to)
}

// daySpan returns the arguments of a series' query for a day, but the currency.
func (q *queries) daySpan(accountID, date string, from, to stamp) ([]any, error) {
	first, err := q.firstSince(`events`, `at`, from)
	if err != nil {
		return nil, err
	}
	past, err := q.firstSince(`events`, `at`, to)
	return []any{accountID, from, to, firstID("ord", from.Time), firstID("ord", to.Time), first, past, date}, err
}
