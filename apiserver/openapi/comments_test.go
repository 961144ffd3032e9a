// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// source is what the Go files of a package say: the types with their comments, and the constants.
type source struct {
	types  map[string]declared
	consts []constant
}

type declared struct {
	spec *ast.TypeSpec
	doc  []string
}

type constant struct {
	typ, name, value string
	from, as         string // package and name of the constant that it takes its value from, in place of value
	doc              []string
}

// sources reads the packages where go.mod has them.
func sources(t *testing.T, packages []string) map[string]source {
	t.Helper()
	args := append([]string{"list", "-find", "-f", "{{.ImportPath}}\t{{.Dir}}"}, packages...)
	out, err := exec.CommandContext(t.Context(), "go", args...).Output()
	if err != nil {
		t.Fatalf("where the sources are: %v", err)
	}
	all := map[string]source{}
	for line := range strings.Lines(string(out)) {
		path, dir, _ := strings.Cut(strings.TrimSpace(line), "\t")
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		s := source{types: map[string]declared{}}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			s.read(f)
		}
		all[path] = s
	}
	return all
}

func (s *source) read(f *ast.File) {
	imports := map[string]string{}
	for _, i := range f.Imports {
		path, _ := strconv.Unquote(i.Path.Value) // a string literal that was parsed
		name := filepath.Base(path)
		if i.Name != nil {
			name = i.Name.Name
		}
		imports[name] = path
	}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, one := range g.Specs {
			switch one := one.(type) {
			case *ast.TypeSpec:
				s.types[one.Name.Name] = declared{one, comment(one.Doc, g)}
			case *ast.ValueSpec:
				if g.Tok == token.CONST {
					s.constant(one, comment(one.Doc, g), imports)
				}
			}
		}
	}
}

// comment is the text above a declaration; one without parentheses has it above the keyword.
func comment(doc *ast.CommentGroup, g *ast.GenDecl) []string {
	if doc == nil && !g.Lparen.IsValid() {
		doc = g.Doc
	}
	return lines(doc)
}

func lines(doc *ast.CommentGroup) []string {
	if doc == nil {
		return nil
	}
	return strings.Split(strings.TrimRight(doc.Text(), "\n"), "\n")
}

// constant keeps `X T = "value"`, `X = T("value")` and `X = T(elsewhere.Y)`.
func (s *source) constant(valueSpec *ast.ValueSpec, doc []string, imports map[string]string) {
	if len(valueSpec.Names) != 1 || len(valueSpec.Values) != 1 {
		return
	}
	typ := ""
	value := valueSpec.Values[0]
	if id, ok := valueSpec.Type.(*ast.Ident); ok {
		typ = id.Name
	}
	if call, ok := value.(*ast.CallExpr); ok && len(call.Args) == 1 {
		if id, ok := call.Fun.(*ast.Ident); ok {
			typ = id.Name
			value = call.Args[0]
		}
	}
	c := constant{typ: typ, name: valueSpec.Names[0].Name, doc: doc}
	switch value := value.(type) {
	case *ast.BasicLit:
		if value.Kind != token.STRING {
			return
		}
		c.value, _ = strconv.Unquote(value.Value) // as above
	case *ast.SelectorExpr:
		if id, ok := value.X.(*ast.Ident); ok {
			c.from = imports[id.Name]
			c.as = value.Sel.Name
		}
	default:
		return
	}
	if typ != "" {
		s.consts = append(s.consts, c)
	}
}

// markers are the lines `+name=value` of a comment.
func markers(doc []string) map[string][]string {
	out := map[string][]string{}
	for _, line := range doc {
		if m, ok := strings.CutPrefix(strings.Trim(line, " "), "+"); ok {
			name, value, _ := strings.Cut(m, "=")
			out[name] = append(out[name], value)
		}
	}
	return out
}

// prose is a comment as a description: without markers and notes to oneself, lines of a paragraph joined, indented ones
// kept.
func prose(doc []string) string {
	var b []byte
	cut := func() { b = b[:max(len(b)-1, 0)] }
	for _, line := range doc {
		if line == "---" {
			break
		}
		line = strings.TrimRight(line, " ")
		start := strings.TrimLeft(line, " ")
		switch {
		case line == "":
			cut()
			b = append(b, "\n\n"...)
		case strings.HasPrefix(start, "TODO"), strings.HasPrefix(start, "+"):
		case strings.HasPrefix(line, " "), strings.HasPrefix(line, "\t"):
			cut()
			b = append(b, "\n"+line+"\n"...)
		default:
			b = append(b, line+" "...)
		}
	}
	return strings.TrimSpace(string(b))
}

var spaces = regexp.MustCompile(`\s+`)

// enum lists the values of the type name, if it is marked as one of fixed values, each with what it means.
func (s *source) enum(t *testing.T, name string, all map[string]source) map[string]string {
	t.Helper()
	if d, ok := s.types[name]; !ok || markers(d.doc)["enum"] == nil {
		return nil
	}
	out := map[string]string{}
	for _, c := range s.consts {
		if c.typ == name {
			if other := all[c.from].consts; c.from != "" {
				at := slices.IndexFunc(other, func(o constant) bool { return o.name == c.as })
				if at < 0 {
					t.Fatalf("%s is %s.%s, which is not a constant", c.name, c.from, c.as)
				}
				c.value = other[at].value
			}
			text := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(strings.Join(c.doc, " ")), c.name))
			out[c.value] = spaces.ReplaceAllString(text, " ")
		}
	}
	return out
}

// extensions are those that markers stand for, but for those of patches, which tags name too.
func extensions(marks map[string][]string) map[string]any {
	out := map[string]any{}
	for name, extension := range map[string]string{
		"listType":   "x-kubernetes-list-type",
		"mapType":    "x-kubernetes-map-type",
		"structType": "x-kubernetes-map-type",
		"listMapKey": "x-kubernetes-list-map-keys",
	} {
		values := marks[name]
		switch {
		case len(values) == 0:
		case len(values) > 1 || name == "listMapKey":
			out[extension] = asList(values)
		default:
			out[extension] = values[0]
		}
	}
	for _, v := range marks["k8s:openapi-gen"] {
		if name, value, ok := strings.Cut(v, ":"); ok && strings.HasPrefix(name, "x-kubernetes-") {
			out[name] = value
		}
	}
	return out
}

func asList(values []string) []any {
	out := make([]any, len(values))
	for i, v := range values {
		out[i] = v
	}
	return out
}

// member is a field of a struct in its source.
type member struct {
	goName, name string
	doc          []string
	marks        map[string][]string
	typ          string // of this package, or ""
}

func (d declared) members(t *testing.T) []member {
	t.Helper()
	st, ok := d.spec.Type.(*ast.StructType)
	if !ok {
		return nil
	}
	var out []member
	for _, field := range st.Fields.List {
		if len(field.Names) > 1 || field.Tag == nil {
			continue
		}
		tag, err := strconv.Unquote(field.Tag.Value)
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		if name == "" || name == "-" {
			continue // the fields of embedded types stand for them
		}
		m := member{name: name, doc: lines(field.Doc)}
		m.marks = markers(m.doc)
		typ := field.Type
		if p, ok := typ.(*ast.StarExpr); ok {
			typ = p.X
		}
		switch typ := typ.(type) {
		case *ast.Ident:
			m.goName = typ.Name
			m.typ = typ.Name
		case *ast.SelectorExpr:
			m.goName = typ.Sel.Name
		}
		if len(field.Names) == 1 {
			m.goName = field.Names[0].Name
		}
		out = append(out, m)
	}
	return out
}

// union is what x-kubernetes-unions says of d, nil when it is no union.
func (d declared) union(members []member) any {
	whole := markers(d.doc)["union"] != nil
	by := map[string]any{}
	out := map[string]any{"fields-to-discriminateBy": by}
	for _, m := range members {
		switch {
		case m.marks["unionDiscriminator"] != nil:
			out["discriminator"] = m.name
		case whole || m.marks["unionDeprecated"] != nil:
			by[m.name] = m.goName
		}
	}
	if len(by) == 0 {
		return nil
	}
	return []any{out}
}

// defaultOf is the value that +default gives to a field, or to its type; nil when there is none.
func (s *source) defaultOf(t *testing.T, m member) any {
	t.Helper()
	values := m.marks["default"]
	if d, ok := s.types[m.typ]; ok && len(values) == 0 {
		values = markers(d.doc)["default"]
	}
	if len(values) == 0 {
		return nil
	}
	if ref, ok := strings.CutPrefix(values[0], "ref("); ok {
		at := slices.IndexFunc(s.consts, func(c constant) bool { return c.name+")" == ref })
		if at < 0 {
			t.Fatalf("default of %s: %s is not a constant", m.name, values[0])
		}
		return s.consts[at].value
	}
	return fromJSON(t, fmt.Sprintf("default of %s", m.name), values[0])
}
