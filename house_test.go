package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
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

func sourceFiles(t *testing.T) []sourceFile {
	t.Helper()
	return source(t).files
}

func testFiles(t *testing.T) []sourceFile {
	t.Helper()
	return source(t).tests
}

// at is where a part of the code stands, as "handlers.go:12:3".
func (src *checkedSource) at(n ast.Node) string { return src.fset.Position(n.Pos()).String() }

// rooms are the files from left to right: what stands in one may use its own room
// and those to its right, never one to its left. A wing adds its files here.
var rooms = [][]string{
	{"main.go", "nouns.go", "serve.go", "serve_standby.go", "demo*.go"},
	// those by name have endpoints or commands
	{"*_cli.go", "*_http.go", "docs.go", "docs_chapter.go", "docs_document.go", "auth_key.go", "legacy.go",
		"license_import.go", "serve_status.go", "widget_script.go", "order_page.go",
		"oauth_page.go", "license_page.go"},
	{"cli_*.go", "handlers.go", "http_*.go", "page.go", "serve_health.go", "serve_metrics.go",
		"serve_peer.go"},
	{"outbound_connection.go", "account.go", "event*.go", "lead*.go", "legacy_store.go", "license*.go", "oauth*.go",
		"order*.go", "payment*.go", "revenue*.go", "books*.go", "webhook*.go", "widget*.go"},
	// a token is an account's, so accounts are part of who calls
	{"auth.go", "auth_keyring.go", "account_store.go", "oauth_app_store.go"},
	{"store.go", "store_*.go", "outbound*.go", "ratelimit.go"},
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

	"account": "oauth",                               // prints codes to sign in with
	"books":   "oauth order revenue",                 // connected by who is signed in; books ways of paying, and days
	"docs":    "legacy oauth payment webhook widget", // tells what they do
	"event":   "license",                             // those of one licence are its owner's
	"oauth":   "books webhook",                       // goes on to books after signing in; ends webhooks of its own
	"order":   "payment revenue",                     // is paid by attempts; is listed by business days
	"payment": "order",                               // is an attempt to pay one
	"revenue": "order payment",                       // is what orders brought, less what was disputed
	"webhook": "oauth",                               // is an application's for as long as its token lives
}

// nounOf is the noun that a file belongs to, by its first word; "" for the core.
func nounOf(name string) string {
	word, _, _ := strings.Cut(strings.TrimSuffix(name, ".go"), "_")
	switch word {
	case "account", "books", "demo", "docs", "event", "lead", "legacy", "license", "oauth", "order", "payment",
		"revenue", "webhook", "widget":
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
		if roomOf(u.to) < roomOf(u.from) && !u.declares {
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

// isStore reports whether a file may hold SQL: a noun's, or the store's own.
func isStore(name string) bool {
	return strings.HasPrefix(name, "store") || strings.HasSuffix(name, "_store.go")
}

func TestHouse_importsWhatItsRoomMay(t *testing.T) {
	t.Parallel()
	for _, f := range sourceFiles(t) {
		for _, path := range imports(f.tree) {
			http := path == "net/http" || strings.HasPrefix(path, "net/http/")
			outside := strings.Contains(strings.Split(path, "/")[0], ".")
			switch {
			case http && (isStore(f.name) || f.name == "ratelimit.go"):
				t.Errorf("%s imports %s: it stores, or counts, and knows no HTTP", f.name, path)
			// what a stamp is in a column
			case strings.HasPrefix(path, "database/sql") && !isStore(f.name) && !(path == "database/sql/driver" &&
				f.name == "value.go"):
				t.Errorf("%s imports %s: SQL stands in *_store.go and store*.go", f.name, path)
			case path == "unsafe":
				t.Errorf("%s imports %s", f.name, path)
			case outside && path != "modernc.org/sqlite" && path != "modernc.org/sqlite/lib",
				outside && !strings.HasPrefix(f.name, "store"):
				t.Errorf("%s imports %s", f.name, path)
			}
		}
	}
}

// sqlStart is how a statement of SQL begins.
var sqlStart = regexp.MustCompile(`^\s*(SELECT|INSERT|REPLACE|UPDATE|DELETE ` +
	`FROM|WITH|PRAGMA|CREATE|ALTER|DROP|VACUUM|ANALYZE|EXPLAIN|ATTACH|BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE)\b`)

func TestHouse_SQLStandsInTheFilesOfStoresOnly(t *testing.T) {
	t.Parallel()
	src := source(t)
	found := 0
	for _, f := range src.files {
		ast.Inspect(f.tree, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING || !sqlStart.MatchString(lit.Value[1:]) {
				return true
			}
			if found++; !isStore(f.name) {
				t.Errorf("%s: %.60s is SQL, which stands in *_store.go and store*.go", src.at(lit), lit.Value)
			}
			return true
		})
	}
	if found < 100 {
		t.Errorf("found %d statements of SQL only: the test sees too little", found)
	}
}

func TestHouse_everyNounIsListedAndDeclaresAllThatItsFilesHave(t *testing.T) {
	t.Parallel()
	src := source(t)
	isOurs := func(of types.Type, name string) bool {
		if slice, ok := of.(*types.Slice); ok {
			of = slice.Elem()
		}
		named, ok := of.(*types.Named)
		return ok && named.Obj().Pkg() == src.pkg && named.Obj().Name() == name
	}
	returns := func(o types.Object, name string) bool {
		fn, ok := o.Type().(*types.Signature)
		return ok && fn.Results().Len() == 1 && isOurs(fn.Results().At(0).Type(), name)
	}
	listed, declared := src.namesIn("nouns"), map[types.Object]bool{}
	core := src.namesIn("problemsOf")
	for o := range src.namesIn("commandsOf") {
		core[o] = true
	}
	nouns := 0
	for _, name := range src.pkg.Scope().Names() {
		o := src.pkg.Scope().Lookup(name)
		if _, isType := o.(*types.TypeName); isType || !returns(o, "noun") || name == "nouns" {
			continue
		}
		if nouns++; !listed[o] {
			t.Errorf("%s: %s is not in nouns()", src.fset.Position(o.Pos()), name)
		}
		for part := range src.namesIn(name) {
			declared[part] = true
		}
	}
	parts := 0
	for _, name := range src.pkg.Scope().Names() {
		o := src.pkg.Scope().Lookup(name)
		_, isType := o.(*types.TypeName)
		_, isVar := o.(*types.Var)
		isTable := slices.ContainsFunc([]string{"problemTable", "eventTable", "holding", "command"},
			func(kind string) bool { return isVar && isOurs(o.Type(), kind) })
		isWing := returns(o, "wing") && name != "wingsOf"
		if isType || !isTable && !isWing || core[o] {
			continue
		}
		if name == "oauthErrors" { // which are no problems, and have a test of their own
			continue
		}
		if parts++; !declared[o] {
			t.Errorf("%s: no noun declares %s: what it holds is unknown to the service", src.fset.Position(o.Pos()),
				name)
		}
	}
	if nouns < 15 || parts < 60 {
		t.Errorf("found %d nouns and %d parts of them only: the test sees too little", nouns, parts)
	}
}

// namesIn are the declarations that a function names.
func (src *checkedSource) namesIn(function string) map[types.Object]bool {
	all := map[types.Object]bool{}
	for _, f := range src.files {
		for _, decl := range f.tree.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == function {
				ast.Inspect(fn.Body, func(n ast.Node) bool {
					if id, ok := n.(*ast.Ident); ok && src.info.Uses[id] != nil {
						all[src.info.Uses[id]] = true
					}
					return true
				})
			}
		}
	}
	return all
}

func TestHouse_noCodeEventCommandOrRouteIsDeclaredTwice(t *testing.T) {
	t.Parallel()
	var names []string
	for _, c := range problemsOf(nouns()) {
		names = append(names, "problem "+c.name)
	}
	for _, e := range eventTypesOf(nouns()) {
		names = append(names, "event "+string(e))
	}
	for _, c := range commandsOf(nouns()) {
		names = append(names, "command "+c.name)
	}
	for _, r := range allRoutes() {
		names = append(names, "route "+r.pattern)
	}
	slices.Sort(names)
	for i := range names[1:] {
		if names[i] == names[i+1] {
			t.Errorf("%s appears twice", names[i])
		}
	}
}

func TestHouse_stepsOfATransactionStopAtTheFirstError(t *testing.T) {
	t.Parallel()
	src := source(t)
	step := func(e ast.Expr) bool { // t.addGrant(g)
		call, ok := e.(*ast.CallExpr)
		if !ok {
			return false
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return false
		}
		on, ok := method.X.(*ast.Ident)
		return ok && on.Name == "t"
	}
	for _, f := range src.files {
		ast.Inspect(f.tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || types.ExprString(call.Fun) != "errors.Join" {
				return true
			}
			for _, arg := range call.Args[min(1, len(call.Args)):] {
				if step(arg) {
					t.Errorf("%s: errors.Join takes this step after another has failed", src.at(arg))
				}
			}
			return true
		})
	}
}

func TestHouse_testsRunBesideOthersAndUseNothingUnsafe(t *testing.T) {
	t.Parallel()
	// of the whole process, what load.sh starts, and what comes first
	alone := regexp.MustCompile(`\.(Chdir|Setenv)\(|syscall\.Umask\(|\b(baselineAddr|programsOfTests)\b`)
	fset := source(t).fset
	for _, f := range testFiles(t) {
		if slices.Contains(imports(f.tree), "unsafe") {
			t.Errorf("%s imports unsafe", f.name)
		}
		for _, decl := range f.tree.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") || fn.Name.Name == "TestMain" {
				continue
			}
			body := f.text[fset.Position(fn.Pos()).Offset:fset.Position(fn.End()).Offset]
			if !strings.Contains(body, "\tt.Parallel()\n") && !alone.MatchString(body) {
				t.Errorf("%s: %s does not begin with t.Parallel()", fset.Position(fn.Pos()), fn.Name.Name)
			}
		}
	}
}

func TestHouse_moduleAsksForOneModule(t *testing.T) {
	t.Parallel()
	var direct []string
	inBlock := false
	for line := range strings.Lines(fileText(t, "go.mod")) {
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

func TestHouse_linesFitOnAScreen(t *testing.T) {
	t.Parallel()
	const screen, tab = 120, "    " // characters; aim for 110
	src := source(t)
	for _, f := range slices.Concat(src.files, src.tests) {
		asItIs := map[int]bool{} // lines of texts that stand in the source as they are printed
		ast.Inspect(f.tree, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(lit.Value, "`") {
				first, last := src.fset.Position(lit.Pos()).Line, src.fset.Position(lit.End()).Line
				for line := first + 1; line < last; line++ {
					asItIs[line] = true
				}
			}
			return true
		})
		number := 0
		for line := range strings.Lines(f.text) {
			number++
			long := utf8.RuneCountInString(strings.ReplaceAll(strings.TrimRight(line, "\n"), "\t", tab))
			if long > screen && !asItIs[number] {
				t.Errorf("%s:%d has %d characters, more than %d", f.name, number, long, screen)
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
		case slices.Contains([]string{"utils.go", "models.go", "errors.go", "config.go", "middleware.go",
			"interfaces.go"}, path):
			t.Errorf("%s: files are named by what they are about", path)
		case strings.HasSuffix(path, ".go") && !builtEverywhere(t, path):
			t.Errorf("%s: its name, or a line in it, keeps it out of builds for some systems", path)
		}
		return nil
	})
	must(t, err)
}

// builtEverywhere reports whether a Go file is part of the package on two systems that
// share neither name nor processor: x_js.go and x_linux_test.go are not.
func builtEverywhere(t *testing.T, path string) bool {
	t.Helper()
	for _, system := range [][2]string{{"linux", "amd64"}, {"windows", "arm64"}} {
		c := build.Default
		c.GOOS, c.GOARCH = system[0], system[1]
		match, err := c.MatchFile(filepath.Split(path))
		must(t, err)
		if !match {
			return false
		}
	}
	return true
}

// TestHouse_securityNamesTestsThatThereAre holds the tests that SECURITY.md names.
func TestHouse_securityNamesTestsThatThereAre(t *testing.T) {
	t.Parallel()
	var source strings.Builder
	for _, f := range testFiles(t) {
		source.WriteString(f.text)
	}
	named := captures("`(Test[A-Z]\\w+)`", fileText(t, "SECURITY.md"))
	if len(named) < 15 {
		t.Fatalf("it names %d tests", len(named))
	}
	for _, name := range named {
		holds(t, "the source of the tests", source.String(), "\nfunc "+name+"(t *testing.T) {")
	}
}
