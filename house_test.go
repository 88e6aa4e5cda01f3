package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A sourceFile is one parsed Go file that is no test.
type sourceFile struct {
	name string
	text string
	tree *ast.File
}

// A checkedSource is our code without its tests, with every name of our own resolved.
type checkedSource struct {
	fset  *token.FileSet
	files []sourceFile
	pkg   *types.Package
	info  *types.Info
}

// noImports stands in for every imported package: what is asked here is about our own
// names.
type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.New("not wanted here") }

var parseSource = sync.OnceValues(func() (*checkedSource, error) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		return nil, err
	}
	src := &checkedSource{fset: token.NewFileSet(),
		info: &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}, Types: map[ast.Expr]types.TypeAndValue{}}}
	var trees []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		tree, err := parser.ParseFile(src.fset, name, text, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		src.files, trees = append(src.files, sourceFile{name, string(text), tree}), append(trees, tree)
	}
	if len(src.files) < 10 {
		return nil, fmt.Errorf("found %d files only: the tests look at the wrong place", len(src.files))
	}
	config := types.Config{Importer: noImports{}, Error: func(error) {}} // the errors are about what is imported
	src.pkg, _ = config.Check("main", src.fset, trees, src.info)
	return src, nil
})

// source is our code without its tests.
func source(t *testing.T) *checkedSource {
	t.Helper()
	src, err := parseSource()
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func sourceFiles(t *testing.T) []sourceFile {
	t.Helper()
	return source(t).files
}

// at is where a part of the code stands, as "handlers.go:12:3".
func (src *checkedSource) at(n ast.Node) string { return src.fset.Position(n.Pos()).String() }

// rooms are the files from left to right: what stands in one may use its own room
// and those to its right, never one to its left. A wing adds its files here.
var rooms = [][]string{
	{"main.go", "serve.go", "upkeep.go", "demo.go"},
	{"*_cli.go", "*_http.go", "event.go", "key.go", "lead.go", "legacy.go", "license_import.go", "widget.go"}, // the last six have endpoints and commands
	{"answer.go", "command.go", "cors.go", "handlers.go", "health.go", "idempotency.go", "input.go", "metrics.go"},
	{"device.go", "lease.go", "license.go", "license_key.go", "license_terms.go", "widget_stats.go",
		"device_store.go", "event_store.go", "lead_store.go", "legacy_store.go", "license_store.go", "widget_store.go"},
	{"auth.go", "account_store.go", "cache.go", "keyring.go"}, // a token is an account's, so accounts are part of who calls
	{"store.go", "store_file.go", "store_migrate.go", "store_writer.go", "ratelimit.go"},
	{"json.go", "problem.go", "value.go"},
}

// roomOf is the place of a file in rooms, counted from the left; -1: none.
func roomOf(name string) int {
	for i, patterns := range rooms {
		if slices.Contains(patterns, name) {
			return i
		}
	}
	return slices.IndexFunc(rooms, func(patterns []string) bool {
		return slices.ContainsFunc(patterns, func(p string) bool { ok, _ := filepath.Match(p, name); return ok })
	})
}

// A use is a place where one file names what another declares: a function, a type, a
// variable, a method or a field.
type use struct {
	at       token.Position
	name     string
	from, to string // files
}

// usesAcrossFiles returns every use of a name of another file.
func usesAcrossFiles(t *testing.T) (all []use) {
	t.Helper()
	src := source(t)
	for id, object := range src.info.Uses {
		if object.Pkg() != src.pkg || !object.Pos().IsValid() {
			continue
		}
		at, declared := src.fset.Position(id.Pos()), src.fset.Position(object.Pos())
		if at.Filename != declared.Filename {
			all = append(all, use{at, object.Name(), at.Filename, declared.Filename})
		}
	}
	slices.SortFunc(all, func(a, b use) int { return cmp.Or(cmp.Compare(a.from, b.from), a.at.Offset-b.at.Offset) })
	return all
}

func TestRooms_useNothingOfTheRoomsToTheirLeft(t *testing.T) {
	t.Parallel()
	for _, f := range sourceFiles(t) {
		if roomOf(f.name) < 0 {
			t.Errorf("%s has no room: give it one in rooms", f.name)
		}
	}
	uses := usesAcrossFiles(t)
	if len(uses) < 1000 {
		t.Fatalf("found %d uses only: the test sees too little", len(uses))
	}
	for _, u := range uses {
		if roomOf(u.to) < roomOf(u.from) {
			t.Errorf("%s: %s is of %s, to the left", u.at, u.name, u.to)
		}
	}
}

func imports(f *ast.File) (paths []string) {
	for _, spec := range f.Imports {
		paths = append(paths, strings.Trim(spec.Path.Value, `"`))
	}
	return paths
}

func TestHouse_storeKnowsNoHTTPAndHandlersKnowNoSQL(t *testing.T) {
	t.Parallel()
	for _, f := range sourceFiles(t) {
		for _, path := range imports(f.tree) {
			switch {
			case (strings.HasPrefix(f.name, "store") || f.name == "ratelimit.go") && (path == "net/http" || strings.HasPrefix(path, "net/http/")),
				strings.HasPrefix(f.name, "handlers") && strings.HasPrefix(path, "database/sql"),
				strings.Contains(strings.Split(path, "/")[0], ".") && path != "modernc.org/sqlite" && path != "modernc.org/sqlite/lib",
				strings.HasPrefix(path, "modernc.org/") && !strings.HasPrefix(f.name, "store"):
				t.Errorf("%s imports %s", f.name, path)
			}
		}
	}
}

func TestHouse_moduleAsksForOneModule(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	var direct []string
	inBlock := false
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case fields[0] == "replace", fields[0] == "exclude":
			t.Errorf("go.mod: %s", strings.TrimSpace(line))
		case fields[0] == "require" && fields[1] == "(":
			inBlock = true
		case fields[0] == ")":
			inBlock = false
		case (inBlock || fields[0] == "require") && !strings.Contains(line, "// indirect"):
			direct = append(direct, strings.TrimPrefix(strings.Join(fields, " "), "require "))
		}
	}
	if len(direct) != 1 || !strings.HasPrefix(direct[0], "modernc.org/sqlite ") {
		t.Errorf("go.mod asks directly for %q", direct)
	}
}

func TestHouse_functionFitsOnAScreen(t *testing.T) {
	t.Parallel()
	const screen = 60
	src := source(t)
	for _, f := range src.files {
		for _, decl := range f.tree.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if lines := src.fset.Position(fn.End()).Line - src.fset.Position(fn.Pos()).Line + 1; lines > screen {
				t.Errorf("%s: %s has %d lines", src.at(fn), fn.Name.Name, lines)
			}
		}
	}
}

func TestHouse_noGoFileLiesInAFolderOrHasABannedName(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".go") && filepath.Dir(path) != ".":
			t.Errorf("%s: Go files lie at the top", path)
		case slices.Contains([]string{"utils.go", "models.go", "errors.go", "config.go", "middleware.go", "interfaces.go"}, path):
			t.Errorf("%s: files are named by what they are about", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
