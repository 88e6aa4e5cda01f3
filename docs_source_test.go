package main

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
)

// A goSource is what the comments of the program say: the prose of the OpenAPI document.
type goSource struct {
	lines    map[string][]string          // of each file
	beside   map[string]map[int]string    // by file and line: the comment behind code
	above    map[string]map[int]string    // by file and line of code: the comment that stands above it, alone
	funcs    map[string]string            // by name, of methods as by receiver: "server.createPlan"
	types    map[string]string            // by name, see readType
	unnamed  map[string]bool              // types whose comments do not begin with their names
	fields   map[string]map[string]string // by type and name in JSON
	members  map[string]map[string]string // by type and name: beside the member in the type's list, or above it
	embedded map[string][]string          // types that a struct embeds
}

// goComments reads the program.
var goComments = sync.OnceValue(func() *goSource {
	src := &goSource{lines: map[string][]string{}, beside: map[string]map[int]string{},
		above: map[string]map[int]string{}, funcs: map[string]string{}, types: map[string]string{},
		fields: map[string]map[string]string{}, members: map[string]map[string]string{},
		unnamed: map[string]bool{}, embedded: map[string][]string{}}
	names, _ := filepath.Glob("*.go")
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			src.read(name)
		}
	}
	return src
})

// read adds the comments of a file.
func (src *goSource) read(name string) {
	set := token.NewFileSet()
	text, err := os.ReadFile(name)
	if err != nil {
		panic(err)
	}
	f, err := parser.ParseFile(set, name, text, parser.ParseComments)
	if err != nil {
		panic(err)
	}
	lines, beside, above := strings.Split(string(text), "\n"), map[int]string{}, map[int]string{}
	src.lines[name], src.beside[name], src.above[name] = lines, beside, above
	for _, c := range f.Comments {
		from, to := set.Position(c.Pos()), set.Position(c.End())
		if strings.TrimSpace(lines[from.Line-1][:from.Column-1]) == "" {
			above[to.Line+1] = plainText(c.Text())
		} else {
			beside[from.Line] = plainText(c.Text())
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			receiver := receiverOf(d)
			src.funcs[strings.TrimPrefix(receiver+"."+d.Name.Name, ".")] = d.Doc.Text()
			if d.Name.Name == "members" && receiver != "" {
				src.readMembers(set, receiver, d, beside, above)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if of, ok := spec.(*ast.TypeSpec); ok {
					src.readType(of, d.Doc.Text())
				}
			}
		}
	}
}

// plainText returns a comment as one line for each of its paragraphs.
func plainText(comment string) string {
	paragraphs := strings.Split(strings.TrimSpace(comment), "\n\n")
	for i, p := range paragraphs {
		paragraphs[i] = strings.Join(strings.Fields(p), " ")
	}
	return strings.Join(paragraphs, "\n\n")
}

// receiverOf returns the name of a method's receiver; "": it is a function.
func receiverOf(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	of := d.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	name, _ := of.(*ast.Ident)
	if name == nil {
		return ""
	}
	return name.Name
}

// readMembers notes what is said of the members in a type's list of them.
func (src *goSource) readMembers(
	set *token.FileSet, of string, list *ast.FuncDecl, beside, above map[int]string,
) {
	src.members[of] = map[string]string{}
	ast.Inspect(list, func(n ast.Node) bool {
		pair, ok := n.(*ast.KeyValueExpr)
		if !ok {
			return true
		}
		key, _ := pair.Key.(*ast.Ident)
		name, _ := pair.Value.(*ast.BasicLit)
		if key != nil && key.Name == "name" && name != nil {
			line := set.Position(name.Pos()).Line
			src.members[of][strings.Trim(name.Value, `"`)] = cmp.Or(beside[line], above[line])
		}
		return true
	})
}

// readType notes what is said of a type and of its fields. The comment of a type begins with its name, "A planChange
// is what to change", of which those who call read "What to change".
func (src *goSource) readType(of *ast.TypeSpec, doc string) {
	name := of.Name.Name
	if doc == "" {
		doc = of.Doc.Text()
	}
	src.types[name] = plainText(doc)
	if named := regexp.MustCompile(`^(An?|The) ` + name + ` (is|are) `).FindString(src.types[name]); named != "" {
		src.types[name] = capitalized(src.types[name][len(named):])
	} else {
		src.unnamed[name] = true
	}
	fields, ok := of.Type.(*ast.StructType)
	if !ok {
		return
	}
	src.fields[name] = map[string]string{}
	for _, field := range fields.Fields.List {
		if len(field.Names) == 0 {
			embedded := field.Type
			if star, ok := embedded.(*ast.StarExpr); ok {
				embedded = star.X
			}
			if id, ok := embedded.(*ast.Ident); ok {
				src.embedded[name] = append(src.embedded[name], id.Name)
			}
			continue
		}
		if field.Tag == nil {
			continue
		}
		tag := reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("json")
		says := plainText(field.Comment.Text())
		if says == "" {
			says = plainText(field.Doc.Text())
		}
		src.fields[name][strings.Split(tag, ",")[0]] = says
	}
}

// field returns what is said of a member of a type's JSON.
func (src *goSource) field(of, name string) string { return src.lookUp(src.fields, of, name) }

// lookUp looks up what is said of a name in a type and those that it embeds.
func (src *goSource) lookUp(in map[string]map[string]string, of, name string) string {
	if says := in[of][name]; says != "" {
		return says
	}
	for _, e := range src.embedded[of] {
		if says := src.lookUp(in, e, name); says != "" {
			return says
		}
	}
	return ""
}

var listOfRow = regexp.MustCompile(`new\((\w+)\)\.members\(\)`)

// reading returns what is said of a member or a parameter that is read at a place of the program: behind its reading,
// above it or, if it is one of a row's, in its list or at its field.
func (src *goSource) reading(file string, line int, name string, ofRow bool) string {
	file = filepath.Base(file)
	if ofRow {
		for _, found := range listOfRow.FindAllStringSubmatch(src.lines[file][line-1], -1) {
			says := src.lookUp(src.members, found[1], name)
			if says == "" {
				says = src.field(found[1], name)
			}
			if says != "" {
				return says
			}
		}
		return ""
	}
	if says := src.beside[file][line]; says != "" {
		return says
	}
	return src.above[file][line]
}
