// SPDX-License-Identifier: Apache-2.0

package apply

import (
	_ "embed" // the schema file
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"keelson/api/scheme"
)

// schemaFile has a line for each built-in type: its name and, as JSON, which of its lists are sets or maps and by which
// keys. It is client-go's schema of typed apply, in a form that need not be parsed as a whole (that takes 0.2 s); `go
// test -update` writes it again, and a test compares.
//
//go:embed schema.txt
var schemaFile string

// schemaLines finds a type's line by name. Built on first use, about a millisecond.
var schemaLines = sync.OnceValue(func() map[string]string {
	lines := make(map[string]string, 2000)
	for line := range strings.Lines(schemaFile) {
		if name, def, ok := strings.Cut(line, " "); ok {
			lines[name] = def
		}
	}
	return lines
})

// typeDefs are the types read so far, by name; they are immutable and shared between kinds.
var typeDefs sync.Map

// The file's form of smd's types, with short names.
type (
	fileAtom struct {
		Scalar string    `json:"s,omitempty"`
		List   *fileList `json:"l,omitempty"`
		Map    *fileMap  `json:"m,omitempty"`
	}
	fileRef struct {
		Named string    `json:"n,omitempty"`
		Atom  *fileAtom `json:"a,omitempty"`
		Rel   string    `json:"r,omitempty"`
		Null  bool      `json:"z,omitempty"`
	}
	fileList struct {
		Elem fileRef  `json:"e"`
		Rel  string   `json:"r,omitempty"`
		Keys []string `json:"k,omitempty"`
	}
	fileMap struct {
		Fields []fileField `json:"f,omitempty"`
		Elem   *fileRef    `json:"e,omitempty"`
		Rel    string      `json:"r,omitempty"`
	}
	fileField struct {
		Name    string  `json:"n"`
		Type    fileRef `json:"t"`
		Default any     `json:"d,omitempty"`
	}
)

// typeOf returns the schema type of gvk with everything it refers to. Kinds that are never applied (reviews) are not in
// the file: for them the values decide, and lists have one owner.
func typeOf(gvk schema.GroupVersionKind) (typed.ParseableType, error) {
	root, err := scheme.Scheme.ToOpenAPIDefinitionName(gvk)
	if err != nil {
		return typed.ParseableType{}, fmt.Errorf("schema name of %s: %w", gvk, err)
	}
	if schemaLines()[root] == "" {
		return typed.DeducedParseableType, nil
	}
	s, err := closure(root)
	if err != nil {
		return typed.ParseableType{}, err
	}
	return typed.ParseableType{TypeRef: smd.TypeRef{NamedType: &root}, Schema: s}, nil
}

// closure is the type root with everything it refers to.
func closure(root string) (*smd.Schema, error) {
	s := &smd.Schema{}
	seen := map[string]bool{root: true}
	for todo := []string{root}; len(todo) > 0; {
		name := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		d, err := typeDef(name)
		if err != nil {
			return nil, err
		}
		s.Types = append(s.Types, d.def)
		for _, ref := range d.refs {
			if !seen[ref] {
				seen[ref] = true
				todo = append(todo, ref)
			}
		}
	}
	return s, nil
}

type definition struct {
	def  smd.TypeDef
	refs []string // names of types it mentions
}

func typeDef(name string) (*definition, error) {
	if d, ok := typeDefs.Load(name); ok {
		return d.(*definition), nil // nothing else is stored
	}
	line, ok := schemaLines()[name]
	if !ok {
		line, ok = further[name]
	}
	if !ok {
		return nil, fmt.Errorf("schema of %s: not in schema.txt", name)
	}
	var a fileAtom
	if err := json.Unmarshal([]byte(line), &a); err != nil {
		return nil, fmt.Errorf("schema of %s: %w", name, err)
	}
	d := &definition{}
	d.def = smd.TypeDef{Name: name, Atom: d.atom(&a)}
	typeDefs.Store(name, d)
	return d, nil
}

func (d *definition) atom(a *fileAtom) smd.Atom {
	var out smd.Atom
	if a == nil {
		return out
	}
	if a.Scalar != "" {
		s := smd.Scalar(a.Scalar)
		out.Scalar = &s
	}
	if a.List != nil {
		out.List = &smd.List{
			ElementType: d.ref(&a.List.Elem),
			ElementRelationship: smd.ElementRelationship(
				a.List.Rel),
			Keys: a.List.Keys,
		}
	}
	if a.Map != nil {
		m := &smd.Map{ElementRelationship: smd.ElementRelationship(a.Map.Rel)}
		if a.Map.Elem != nil {
			m.ElementType = d.ref(a.Map.Elem)
		}
		for _, f := range a.Map.Fields {
			if n, ok := f.Default.(float64); ok {
				f.Default = int64(n)
			}
			m.Fields = append(m.Fields, smd.StructField{Name: f.Name, Type: d.ref(&f.Type), Default: f.Default})
		}
		out.Map = m
	}
	return out
}

func (d *definition) ref(r *fileRef) smd.TypeRef {
	out := smd.TypeRef{Inlined: d.atom(r.Atom), Nullable: r.Null}
	if r.Named != "" {
		out.NamedType = &r.Named
		d.refs = append(d.refs, r.Named)
	}
	if r.Rel != "" {
		rel := smd.ElementRelationship(r.Rel)
		out.ElementRelationship = &rel
	}
	return out
}

const apiRegistration = "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1."

// further are types that client-go has no apply configuration for, in the form of schema.txt.
var further = map[string]string{
	apiRegistration +
		"APIService": `{"m":{"f":[{"n":"apiVersion","t":{"a":{"s":"string"}}},{"n":"kind","t":{"a":{"s":"string"}}},` +
		`{"n":"metadata","t":{"n":"` + MetaName + `"}},{"n":"spec","t":{"n":"` + apiRegistration +
		`APIServiceSpec"}},` +
		`{"n":"status","t":{"n":"` + apiRegistration + `APIServiceStatus"}}]}}`,
	apiRegistration +
		"APIServiceSpec": `{"m":{"f":[{"n":"caBundle","t":{"a":{"s":"string"}}},{"n":"group","t":{"a":{"s":"string"}}},` +
		`{"n":"groupPriorityMinimum","t":{"a":{"s":"numeric"}}},{"n":"insecureSkipTLSVerify","t":{"a":{"s":"boolean"}}},` +
		`{"n":"service","t":{"n":"` + apiRegistration +
		`ServiceReference"}},{"n":"version","t":{"a":{"s":"string"}}},` +
		`{"n":"versionPriority","t":{"a":{"s":"numeric"}}}]}}`,
	apiRegistration + "APIServiceStatus": `{"m":{"f":[{"n":"conditions","t":{"a":{"l":{"e":{"n":"` + apiRegistration +
		`APIServiceCondition"},"r":"associative","k":["type"]}}}}]}}`,
	apiRegistration +
		"APIServiceCondition": `{"m":{"f":[{"n":"lastTransitionTime","t":{"n":"io.k8s.apimachinery.pkg.apis.meta.v1.Time"}},` +
		`{"n":"message","t":{"a":{"s":"string"}}},{"n":"reason","t":{"a":{"s":"string"}}},{"n":"status","t":{"a":{"s":"string"}}},` +
		`{"n":"type","t":{"a":{"s":"string"}}}]}}`,
	apiRegistration +
		"ServiceReference": `{"m":{"f":[{"n":"name","t":{"a":{"s":"string"}}},{"n":"namespace","t":{"a":{"s":"string"}}},` +
		`{"n":"port","t":{"a":{"s":"numeric"}}}]}}`,
	"io.k8s.api.autoscaling.v1.Scale": `{"m":{"f":[{"n":"apiVersion","t":{"a":{"s":"string"}}},{"n":"kind","t":{"a":{"s":"string"}}},` +
		`{"n":"metadata","t":{"n":"io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}},` +
		`{"n":"spec","t":{"n":"io.k8s.api.autoscaling.v1.ScaleSpec"}},{"n":"status","t":{"n":"io.k8s.api.autoscaling.v1.ScaleStatus"}}]}}`,
	"io.k8s.api.autoscaling.v1.ScaleSpec": `{"m":{"f":[{"n":"replicas","t":{"a":{"s":"numeric"}}}]}}`,
	"io.k8s.api.autoscaling.v1.ScaleStatus": `{"m":{"f":[{"n":"replicas","t":{"a":{"s":"numeric"}}},` +
		`{"n":"selector","t":{"a":{"s":"string"}}}]}}`,
}
