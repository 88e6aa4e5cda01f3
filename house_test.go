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
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// A sourceFile is one parsed Go file.
type sourceFile struct {
	name string
	text string
	tree *ast.File
}

// A checkedSource is our code, with every name of our own resolved in what is no test.
type checkedSource struct {
	fset  *token.FileSet
	files []sourceFile
	tests []sourceFile // parsed, but not checked
	pkg   *types.Package
	info  *types.Info
}

// noImports stands in for every imported package: what is asked here is about our own
// names.
type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.New("not wanted here") }

var parseSource = sync.OnceValues(func() (*checkedSource, error) {
	src := &checkedSource{fset: token.NewFileSet(),
		info: &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{},
			Types: map[ast.Expr]types.TypeAndValue{}}}
	names, err := filepath.Glob("*.go")
	if err != nil {
		return nil, err
	}
	var trees []*ast.File
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		tree, err := parser.ParseFile(src.fset, name, text, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		if f := (sourceFile{name, string(text), tree}); strings.HasSuffix(name, "_test.go") {
			src.tests = append(src.tests, f)
		} else {
			src.files, trees = append(src.files, f), append(trees, tree)
		}
	}
	if len(src.files) < 10 || len(src.tests) < 10 {
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
	must(t, err)
	return src
}

// at is where a part of the code stands, as "handlers.go:12:3".
func (src *checkedSource) at(n ast.Node) string { return src.fset.Position(n.Pos()).String() }

// rooms are the files from left to right: what stands in one may use its own room
// and those to its right, never one to its left. A module adds its files here.
var rooms = [][]string{
	{"main.go", "nouns.go", "serve.go", "demo*.go"},
	// those by name have endpoints or commands, beside rules and rows where a noun is one file
	{"*_cli.go", "*_http.go", "order_page.go", "oauth_page.go", "books_page.go", "books_page_mapping.go", "docs.go",
		"auth_key.go", "lead.go", "legacy.go", "license_import.go", "serve_days.go", "serve_peer.go",
		"serve_replica.go", "serve_status.go", "serve_watch.go"},
	{"cli_*.go", "handlers.go", "http_*.go", "page.go", "serve_health.go", "serve_log.go"},
	// a token is an account's, so nouns are part of who calls
	{"auth.go", "outbound_connection.go", "account.go", "event.go", "license*.go", "oauth*.go", "order*.go",
		"payment*.go", "payout*.go", "revenue*.go", "books*.go", "webhook*.go", "widget*.go"},
	{"store*.go", "outbound.go", "ratelimit.go"},
	{"value*.go", "problem.go"},
}

// roomOf is the place of a file in rooms, counted from the left; -1: none. Its name goes before a pattern.
func roomOf(name string) int {
	for _, same := range []func(pattern string) bool{
		func(p string) bool { return p == name },
		func(p string) bool { return strings.HasPrefix(p, "*") && strings.HasSuffix(name, p[1:]) },
		func(p string) bool { ok, _ := filepath.Match(p, name); return ok },
	} {
		i := slices.IndexFunc(rooms, func(patterns []string) bool { return slices.ContainsFunc(patterns, same) })
		if i >= 0 {
			return i
		}
	}
	return -1
}

// walls names, for each noun, the others that it may name beside events and accounts, which every one may: a new
// pair needs a name here, and a reason. Declarations may name everything of their noun. The demo, which is a
// seeded server, may name all of them.
var walls = map[string]string{
	// the core, beside nouns.go
	"auth.go":     "oauth", // tokens of applications
	"handlers.go": "oauth", // and their rates
	"main.go":     "demo",  // is a command that starts the program

	"serve_days.go": "revenue", // counts by business days

	"account": "oauth",                      // prints codes to sign in with
	"books":   "oauth order payout revenue", // connected by who is signed in; books ways of paying, payouts and days
	"docs":    "legacy oauth widget",        // tells what they do
	"event":   "license",                    // those of one licence are its owner's
	"oauth":   "books webhook",              // goes on to books after signing in; ends webhooks of its own
	"order":   "payment revenue",            // is paid by attempts; is listed by business days
	"payment": "order",                      // is an attempt to pay one
	"payout":  "order payment revenue",      // is what payments bring; is read as revenue is
	"revenue": "order payment",              // is what orders brought, less what was disputed
	"webhook": "oauth",                      // is an application's for as long as its token lives
}

// nounOf is the noun that a file belongs to, by its first word; "" for the core.
func nounOf(name string) string {
	word, _, _ := strings.Cut(strings.TrimSuffix(name, ".go"), "_")
	switch word {
	case "account", "books", "demo", "docs", "event", "lead", "legacy", "license", "oauth", "order", "payment",
		"payout", "revenue", "webhook", "widget":
		return word
	}
	return ""
}

func TestWalls_nounsNameOnlyWhatTheTableSays(t *testing.T) {
	t.Parallel()
	met := map[string]bool{}
	for _, u := range usesAcrossFiles(t) {
		from, to := cmp.Or(nounOf(u.from), u.from), nounOf(u.to)
		if to == "" || from == to || from == "nouns.go" || from == "demo" || u.declares {
			continue
		}
		met[from+" "+to] = true
		if to != "event" && to != "account" && !slices.Contains(strings.Fields(walls[from]), to) {
			t.Errorf("%s: %s is of the noun %s, which %s may not name", u.at, u.name, to, from)
		}
	}
	for from, others := range walls {
		for _, to := range strings.Fields(others) {
			if !met[from+" "+to] {
				t.Errorf("%s does not name %s any more: take it out of walls", from, to)
			}
		}
	}
}

func TestWalls_nounsLeaveToTheCoreWhatIsTheCores(t *testing.T) {
	t.Parallel()
	src, found := source(t), 0
	for _, f := range src.files {
		ast.Inspect(f.tree, func(n ast.Node) bool {
			if of, ok := n.(*ast.SelectorExpr); ok && of.Sel.Name == "core" {
				if found++; nounOf(f.name) != "" {
					t.Errorf("%s: call.core is the core's", src.at(of))
				}
			}
			return true
		})
	}
	if found < 50 {
		t.Errorf("found %d uses only: the test sees too little", found)
	}
}

// A use is a place where one file names what another declares: a function, a type, a
// variable, a method or a field.
type use struct {
	at       token.Position
	name     string
	from, to string // files
	declares bool   // it is in the declaration of a noun, or what one may hold: these may name every room of the noun
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
			holds := declared.Filename == "nouns.go" && object.Name() != "nouns"
			all = append(all, use{at, object.Name(), at.Filename, declared.Filename, holds || src.isDeclaration(id)})
		}
	}
	slices.SortFunc(all, func(a, b use) int { return cmp.Or(cmp.Compare(a.from, b.from), a.at.Offset-b.at.Offset) })
	return all
}

// isDeclaration reports whether a name stands in a function that returns a noun.
func (src *checkedSource) isDeclaration(id *ast.Ident) bool {
	for _, f := range src.files {
		if id.Pos() < f.tree.FileStart || id.Pos() >= f.tree.FileEnd {
			continue
		}
		for _, decl := range f.tree.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Pos() <= id.Pos() && id.Pos() < fn.End() {
				return fn.Recv == nil && strings.HasSuffix(fn.Name.Name, "Noun") && fn.Type.Params.NumFields() == 0
			}
		}
	}
	return false
}

func TestRooms_useNothingOfTheRoomsToTheirLeft(t *testing.T) {
	t.Parallel()
	for _, f := range source(t).files {
		if roomOf(f.name) < 0 {
			t.Errorf("%s has no room: give it one in rooms", f.name)
		}
	}
	uses := usesAcrossFiles(t)
	if len(uses) < 1000 {
		t.Fatalf("found %d uses only: the test sees too little", len(uses))
	}
	for _, u := range uses {
		if roomOf(u.to) < roomOf(u.from) && !u.declares {
			t.Errorf("%s: %s is of %s, to the left", u.at, u.name, u.to)
		}
	}
}

// mayHoldSQL reports whether a file may hold SQL: the store's own, and those of a noun, but for what only answers,
// prints or shows.
func mayHoldSQL(name string) bool {
	_, role, _ := strings.Cut(strings.TrimSuffix(name, ".go"), "_")
	shows := strings.HasSuffix(role, "http") || strings.HasSuffix(role, "cli") || strings.HasPrefix(role, "page")
	return strings.HasPrefix(name, "store") || nounOf(name) != "" && !shows
}

func TestHouse_importsWhatItsRoomMay(t *testing.T) {
	t.Parallel()
	for _, f := range source(t).files {
		for _, spec := range f.tree.Imports {
			path := strings.Trim(spec.Path.Value, `"`)
			http := path == "net/http" || strings.HasPrefix(path, "net/http/")
			outside := strings.Contains(strings.Split(path, "/")[0], ".")
			switch {
			case http && (strings.HasPrefix(f.name, "store") || f.name == "ratelimit.go"):
				t.Errorf("%s imports %s: it stores, or counts, and knows no HTTP", f.name, path)
			// what a stamp is in a column
			case strings.HasPrefix(path, "database/sql") && !mayHoldSQL(f.name) && !(path == "database/sql/driver" &&
				f.name == "value.go"):
				t.Errorf("%s imports %s: SQL stands in store*.go and by rules of nouns", f.name, path)
			case path == "unsafe", outside && path != "modernc.org/sqlite" && path != "modernc.org/sqlite/lib",
				outside && !strings.HasPrefix(f.name, "store"):
				t.Errorf("%s imports %s", f.name, path)
			}
		}
	}
}

// sqlStart is how a statement of SQL begins.
var sqlStart = regexp.MustCompile(`^\s*(SELECT|INSERT|REPLACE|UPDATE|DELETE ` +
	`FROM|WITH|PRAGMA|CREATE|ALTER|DROP|VACUUM|ANALYZE|EXPLAIN|ATTACH|BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE)\b`)

func TestHouse_SQLStandsWhereRowsAre(t *testing.T) {
	t.Parallel()
	src := source(t)
	found := 0
	for _, f := range src.files {
		ast.Inspect(f.tree, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING || !sqlStart.MatchString(lit.Value[1:]) {
				return true
			}
			if found++; !mayHoldSQL(f.name) {
				t.Errorf("%s: %.60s is SQL, which stands in store*.go and by rules of nouns", src.at(lit), lit.Value)
			}
			return true
		})
	}
	if found < 100 {
		t.Errorf("found %d statements of SQL only: the test sees too little", found)
	}
}

func TestHouse_testsRunBesideOthers(t *testing.T) {
	t.Parallel()
	// of the whole process, what load.sh starts, and what comes first
	alone := regexp.MustCompile(`\.(Chdir|Setenv)\(|syscall\.Umask\(|\b(baselineAddr|programsOfTests)\b`)
	test := regexp.MustCompile(`(?ms)^func Test\w+\(t \*testing.T\) \{$.*?^\}$`)
	for _, f := range source(t).tests {
		for _, fn := range test.FindAllString(f.text, -1) {
			if !strings.Contains(fn, "\tt.Parallel()\n") && !alone.MatchString(fn) {
				t.Errorf("%s: %.60s does not begin with t.Parallel()", f.name, fn)
			}
		}
	}
}

// Functions have at most 60 lines and lines at most 120 characters, but for texts that stand as they are printed.
func TestHouse_codeFitsOnAScreen(t *testing.T) {
	t.Parallel()
	src := source(t)
	for _, f := range slices.Concat(src.files, src.tests) {
		asItIs := map[int]bool{}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			if n == nil {
				return false
			}
			first, last := src.fset.Position(n.Pos()).Line, src.fset.Position(n.End()).Line
			if lit, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(lit.Value, "`") {
				for line := first + 1; line < last; line++ {
					asItIs[line] = true
				}
			}
			if fn, ok := n.(*ast.FuncDecl); ok && last-first >= 60 && !strings.HasSuffix(f.name, "_test.go") {
				t.Errorf("%s: %s has %d lines", src.at(fn), fn.Name.Name, last-first+1)
			}
			return true
		})
		for i, line := range strings.Split(f.text, "\n") {
			if n := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")); n > 120 && !asItIs[i+1] {
				t.Errorf("%s:%d has %d characters", f.name, i+1, n)
			}
		}
	}
}

// TestHouse_documentsAndCommentsNameTestsThatThereAre: such as `TestRooms_…`, which stands for all that begin so.
func TestHouse_documentsAndCommentsNameTestsThatThereAre(t *testing.T) {
	t.Parallel()
	texts, src := documents(t), source(t)
	var tests strings.Builder
	for _, f := range src.tests {
		tests.WriteString(f.text)
	}
	for _, f := range slices.Concat(src.files, src.tests) {
		texts[f.name] = strings.Join(captures(`(?m)(//.*)$`, f.text), "\n")
	}
	named := 0
	for name, text := range texts {
		for _, found := range captures("\\b((?:Test|Benchmark|Fuzz)[A-Z]\\w+)", text) {
			if named++; !strings.Contains(tests.String(), "\nfunc "+found) {
				t.Errorf("%s names %s, and there is no such test", name, found)
			}
		}
	}
	if named < 100 {
		t.Errorf("found %d names only", named)
	}
}

// SECURITY.md sends its readers to the comments of tests that begin with "Against".
func TestHouse_attacksAreSaidByTheTestsThatTryThem(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	said := 0
	for _, f := range source(t).tests {
		for _, below := range captures(`(?m)^// Against .*\n(?://.*\n)*(.*)$`, f.text) {
			if said++; !strings.HasPrefix(below, "func Test") {
				t.Errorf("%s: an attack is said above %q, which is no test", f.name, below)
			}
		}
	}
	if said < 80 {
		t.Errorf("found %d attacks only", said)
	}
}
