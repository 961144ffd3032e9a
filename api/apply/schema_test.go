// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/applyconfiguration"
	"k8s.io/client-go/applyconfigurations"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"

	"keelson/api/scheme"
)

var update = flag.Bool("update", false, "rewrite schema.txt")

// TestSchemaIsClientGos compares schema.txt with the schemas that client-go and the client of apiextensions link.
func TestSchemaIsClientGos(t *testing.T) {
	pod := &corev1.Pod{}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	value, err := applyconfigurations.NewTypeConverter(scheme.Scheme).ObjectToTyped(pod)
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	more, err := applyconfiguration.NewTypeConverter(scheme.Scheme).ObjectToTyped(crd)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, def := range slices.Concat(value.Schema().Types, more.Schema().Types) {
		b, err := json.Marshal(fromAtom(t, def.Atom))
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%s %s\n", def.Name, b))
	}
	slices.Sort(lines)
	lines = slices.CompactFunc(lines, func(a, b string) bool { // the two have types in common
		first, _, _ := strings.Cut(a, " ")
		second, _, _ := strings.Cut(b, " ")
		return first == second
	})
	want := strings.Join(lines, "")
	if *update {
		if err := os.WriteFile("schema.txt", []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if schemaFile != want {
		t.Errorf("schema.txt (%d bytes) is not client-go's schema (%d bytes): run go test ./api/apply -update",
			len(schemaFile), len(want))
	}
}

func fromAtom(t *testing.T, atom smd.Atom) *fileAtom {
	t.Helper()
	out := &fileAtom{}
	if atom.Scalar != nil {
		out.Scalar = string(*atom.Scalar)
	}
	if atom.List != nil {
		out.List = &fileList{
			Elem: *fromRef(t, atom.List.ElementType),
			Rel:  string(atom.List.ElementRelationship),
			Keys: atom.Keys,
		}
	}
	if atom.Map != nil {
		// Unions are left out: the library does nothing with them.
		m := &fileMap{Rel: string(atom.Map.ElementRelationship)}
		if e := fromRef(t, atom.Map.ElementType); e.Named != "" || e.Atom != nil {
			m.Elem = e
		}
		for _, f := range atom.Fields {
			field := fileField{Name: f.Name, Type: *fromRef(t, f.Type)}
			switch f.Default.(type) {
			case string, int, bool: // others are never keys of a list
				field.Default = f.Default
			}
			m.Fields = append(m.Fields, field)
		}
		out.Map = m
	}
	return out
}

func fromRef(t *testing.T, r smd.TypeRef) *fileRef {
	t.Helper()
	out := &fileRef{Null: r.Nullable}
	if r.NamedType != nil {
		out.Named = *r.NamedType
	}
	if r.Inlined != (smd.Atom{}) {
		out.Atom = fromAtom(t, r.Inlined)
	}
	if r.ElementRelationship != nil {
		out.Rel = string(*r.ElementRelationship)
	}
	return out
}
