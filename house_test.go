package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A sourceFile is one parsed Go file that is no test.
type sourceFile struct {
	name string
	tree *ast.File
	fset *token.FileSet
}

func sourceFiles(t *testing.T) (all []sourceFile) {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		tree, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, sourceFile{name, tree, fset})
	}
	if len(all) < 10 {
		t.Fatalf("found %d files only: the test looks at the wrong place", len(all))
	}
	return all
}

// rooms are the files from left to right: what stands in one may use its own room
// and those to its right, never one to its left.
var rooms = [][]string{
	{"main.go", "demo.go", "connections.go", "upkeep.go"},
	{"admin*.go", "handlers*.go", "metrics.go"},
	{"auth.go", "cache.go", "license.go", "terms.go", "seats.go", "stats.go", "json.go", "input.go"},
	{"ratelimit.go", "store*.go"},
}

func roomOf(name string) int {
	return slices.IndexFunc(rooms, func(patterns []string) bool {
		return slices.ContainsFunc(patterns, func(p string) bool { ok, _ := filepath.Match(p, name); return ok })
	})
}

// doors are the names that files may use of a room to their left, and why.
var doors = map[string]map[string]string{
	"admin*.go": {
		"env":        "what main hands to every command",
		"command":    "the shape of a row of the command table, to which admin adds its rows",
		"usageError": "how a command tells main that the command line is wrong",
	},
	// A key's normal form is a rule, its hash a column: the type goes between the two rooms.
	"store_license.go": {"licenseKey": "what a licence is looked up by"},
}

// doorOf returns the pattern of doors by which a file may use a name; "" is none.
func doorOf(file, name string) string {
	for pattern, names := range doors {
		_, open := names[name]
		if matches, _ := filepath.Match(pattern, file); matches && open {
			return pattern
		}
	}
	return ""
}

// topLevel are the names that a file declares for the whole package.
func topLevel(f *ast.File) (names []string) {
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil && d.Name.Name != "init" && d.Name.Name != "main" {
				names = append(names, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					names = append(names, s.Name.Name)
				case *ast.ValueSpec:
					for _, name := range s.Names {
						names = append(names, name.Name)
					}
				}
			}
		}
	}
	return names
}

func TestHouse_roomUsesNothingOfTheRoomsToItsLeft(t *testing.T) {
	files := sourceFiles(t)
	home := map[string]string{}
	for _, f := range files {
		if roomOf(f.name) < 0 {
			t.Errorf("%s has no room: give it one in rooms", f.name)
		}
		for _, name := range topLevel(f.tree) {
			home[name] = f.name
		}
	}
	opened := map[string]bool{}
	for _, f := range files {
		seen := map[string]bool{}
		for _, id := range f.tree.Unresolved {
			from, declared := home[id.Name]
			if !declared || seen[id.Name] || roomOf(from) >= roomOf(f.name) {
				continue
			}
			seen[id.Name] = true
			if door := doorOf(f.name, id.Name); door != "" {
				opened[door+" "+id.Name] = true
				continue
			}
			t.Errorf("%s: %s is of %s, to the left", f.fset.Position(id.Pos()), id.Name, from)
		}
	}
	for files, names := range doors {
		for name := range names {
			if !opened[files+" "+name] {
				t.Errorf("%s does not use %s any more: close the door", files, name)
			}
		}
	}
}

func TestHouse_handlersAndCommandsDoNotUseEachOther(t *testing.T) {
	files := sourceFiles(t)
	home := map[string]string{}
	for _, f := range files {
		for _, name := range topLevel(f.tree) {
			home[name] = f.name
		}
	}
	kind := func(name string) string {
		return strings.FieldsFunc(name, func(r rune) bool { return r == '_' || r == '.' })[0]
	}
	for _, f := range files {
		for _, id := range f.tree.Unresolved {
			from, declared := home[id.Name]
			if !declared {
				continue
			}
			if pair := kind(f.name) + " " + kind(from); pair == "admin handlers" || pair == "handlers admin" {
				t.Errorf("%s: %s is of %s", f.fset.Position(id.Pos()), id.Name, from)
			}
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
	const screen = 60
	for _, f := range sourceFiles(t) {
		for _, decl := range f.tree.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if lines := f.fset.Position(fn.End()).Line - f.fset.Position(fn.Pos()).Line + 1; lines > screen {
				t.Errorf("%s: %s has %d lines", f.fset.Position(fn.Pos()), fn.Name.Name, lines)
			}
		}
	}
}

func TestHouse_noGoFileLiesInAFolderOrHasABannedName(t *testing.T) {
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
