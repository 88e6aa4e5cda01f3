package main

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// watched are the distinct statements that services of this run have prepared, with the place that asked for each.
var watched struct {
	sync.Mutex
	statements map[string]string
}

// watch notes every statement that the program prepares from now on, but not those that tests ask for themselves.
func (s *service) watch() {
	for _, q := range []*queries{s.store.queries, s.store.writer.queries} {
		prepare := q.prepare
		q.prepare = func(ctx context.Context, query string) (*sql.Stmt, error) {
			if place := askedAt(); !strings.Contains(place, "_test.go:") {
				watched.Lock()
				if watched.statements == nil {
					watched.statements = map[string]string{}
				}
				watched.statements[query] = place
				watched.Unlock()
			}
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

// mayRead are parts of the statements that may read a whole table or sort, and why that is little.
var mayRead = map[string]string{}

// plansThatReadTooMuch explains every statement that was watched, once, and says which read more the more rows there
// are.
func plansThatReadTooMuch() (faults []string, err error) {
	made, err := newDatabase()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "widgetd-plans-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "widgetd.db")
	if err := os.WriteFile(path, made.content, 0o600); err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", dsn(path, "rw", storeOptions{}))
	if err != nil {
		return nil, err
	}
	defer db.Close()
	watched.Lock()
	defer watched.Unlock()
	for _, query := range slices.Sorted(maps.Keys(watched.statements)) {
		steps, err := explain(db, query)
		if err != nil {
			continue // of a table that a test has made, or one that reads no table
		}
		few := slices.ContainsFunc(slices.Collect(maps.Keys(mayRead)), func(part string) bool {
			return strings.Contains(query, part)
		})
		for _, step := range steps {
			if why := readsTooMuch(query, step); why != "" && !few {
				faults = append(faults, fmt.Sprintf("%s: %s: %s\n\t%s", watched.statements[query], why, step,
					strings.Join(strings.Fields(query), " ")))
			}
		}
	}
	return faults, nil
}
