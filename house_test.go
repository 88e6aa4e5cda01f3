package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
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
	{"admin*.go", "store_cli.go", "handlers*.go", "metrics.go"},
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
	"store_cli.go": {"env": "what main hands to every command"},
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

func TestARoomUsesNothingOfTheRoomsToItsLeft(t *testing.T) {
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

func TestHandlersAndCommandsDoNotUseEachOther(t *testing.T) {
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

func TestTheStoreKnowsNoHTTPAndHandlersKnowNoSQL(t *testing.T) {
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

func TestTheModuleAsksForOneModule(t *testing.T) {
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

func TestAFunctionFitsOnAScreen(t *testing.T) {
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

func TestNoGoFileLiesInAFolderOrHasABannedName(t *testing.T) {
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

// optionRow and commandRow are an option and a command as the README's tables show them.
func optionRow(o option) string {
	def := ""
	if o.def != "" {
		def = "`" + o.def + "`"
	}
	return fmt.Sprintf("| `%s` | `%s` | %s | %s |", strings.TrimSuffix("-"+o.name+" "+o.value, " "), o.env(), def, o.help)
}

func commandRow(c command) string {
	return fmt.Sprintf("| `%s` | %s |", strings.TrimSuffix(c.name+" "+c.args, " "), c.help)
}

func TestHelpOfOneWordListsTheCommandsThatBeginWithIt(t *testing.T) {
	for _, args := range [][]string{{"license", "-h"}, {"license", "--help"}, {"license", "-json", "-h"}, {"help", "license"}} {
		got := runOK(t, args...)
		if strings.Count(got, "\n  license ") != 11 || strings.Contains(got, "account add") || strings.Contains(got, "-db") {
			t.Errorf("%q: %s", args, got)
		}
	}
	if got := runOK(t, "help", "license", "add"); got != runOK(t, "license", "add", "-h") {
		t.Errorf("help license add: %s", got)
	}
	if got := runOK(t, "help", "base-url"); !strings.HasPrefix(got, "widgetd base-url\n") || !strings.Contains(got, "\n  base-url remove URL ") {
		t.Errorf("help base-url: %s", got)
	}
	for _, args := range [][]string{{"account"}, {"account", "-json"}} {
		var out, listed bytes.Buffer
		err := run(t.Context(), args, func(string) string { return "" }, &out, &listed)
		if err != usageError("account needs a second word: these are its commands") || out.Len() > 0 || !strings.HasPrefix(listed.String(), "  account add NAME ") {
			t.Errorf("%q: %v, %s, %s", args, err, out.String(), listed.String())
		}
	}
}

func TestEveryOptionStandsInTheHelpOfTheProgramAndOfItsCommands(t *testing.T) {
	all := runOK(t, "help")
	used := map[string]bool{}
	for _, name := range commonOptions {
		used[name] = true
	}
	for _, c := range commands {
		if !strings.Contains(all, "  "+strings.TrimSuffix(c.name+" "+c.args, " ")+" ") || !strings.Contains(all, " "+c.help+"\n") {
			t.Errorf("help does not list %s", c.name)
		}
		own := runOK(t, append(strings.Fields(c.name), "-h")...)
		if !strings.HasPrefix(own, "widgetd "+c.name) || !strings.Contains(own, c.help) {
			t.Errorf("%s -h: %q", c.name, own)
		}
		for _, o := range options {
			takes := slices.Contains(c.options, o.name) || slices.Contains(commonOptions, o.name)
			if shown := strings.Contains(own, o.env()+"\n"); shown != takes {
				t.Errorf("%s -h shows -%s: %v, want %v", c.name, o.name, shown, takes)
			}
			used[o.name] = used[o.name] || takes
		}
		for _, name := range c.options {
			if !slices.ContainsFunc(options, func(o option) bool { return o.name == name }) {
				t.Errorf("%s takes -%s, which is no option", c.name, name)
			}
		}
	}
	names := map[string]bool{}
	for _, o := range options {
		var line bytes.Buffer
		writeOption(&line, o)
		if !strings.Contains(all, line.String()) || !strings.Contains(line.String(), o.help) {
			t.Errorf("help does not list -%s", o.name)
		}
		if !used[o.name] {
			t.Errorf("no command takes -%s", o.name)
		}
		if names[o.name] {
			t.Errorf("-%s stands twice in the table", o.name)
		}
		names[o.name] = true
	}
}

func TestTheReadmeHasARowForEveryOptionCommandAndEndpoint(t *testing.T) {
	f, err := os.Open("README.md")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		lines[strings.TrimSpace(line)] = true
	}
	for _, o := range options {
		if !lines[optionRow(o)] {
			t.Errorf("the README lacks this row:\n%s", optionRow(o))
		}
	}
	for _, c := range commands {
		if !lines[commandRow(c)] {
			t.Errorf("the README lacks this row:\n%s", commandRow(c))
		}
	}
	for _, rt := range routes {
		if !strings.Contains(string(text), "`"+rt.pattern+"`") {
			t.Errorf("the README lacks the endpoint `%s`", rt.pattern)
		}
	}
}
