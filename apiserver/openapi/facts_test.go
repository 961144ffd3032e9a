// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"keelson/api/scheme"
)

var update = flag.Bool("update", false, "rewrite facts.txt")

// TestFactsAreTheSources compares facts.txt with the sources of the types that the server can publish.
func TestFactsAreTheSources(t *testing.T) {
	all := published()
	packages := map[string]bool{}
	for _, typ := range all {
		packages[typ.PkgPath()] = true
	}
	from := sources(t, slices.Sorted(maps.Keys(packages)))
	var file []string
	for _, typ := range all {
		src := from[typ.PkgPath()]
		f, ok := src.fact(t, typ, from)
		if !ok {
			continue
		}
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(f); err != nil {
			t.Fatal(err)
		}
		file = append(file, factName(typ)+" "+b.String())
	}
	slices.Sort(file)
	want := strings.Join(file, "")
	if *update {
		if err := os.WriteFile("facts.txt", []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	have := parseLines(factsFile)
	wanted := parseLines(want)
	for name := range wanted {
		if have[name] != wanted[name] {
			t.Errorf("%s: facts.txt says\n%s\nits source\n%s\n(go test ./apiserver/openapi -run "+
				"TestFactsAreTheSources -update)", name, have[name], wanted[name])
		}
	}
	for name := range have {
		if _, ok := wanted[name]; !ok {
			t.Errorf("facts.txt has %s, which is not published or has no facts", name)
		}
	}
}

var stable = regexp.MustCompile(`^v[0-9]+$`)

// published lists the types that documents may have: those of stable versions, and what they are made of.
func published() []reflect.Type {
	seen := map[reflect.Type]bool{}
	var all []reflect.Type
	var visit func(reflect.Type)
	visit = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
			if typ.Kind() == reflect.Map {
				visit(typ.Key())
			}
			visit(typ.Elem())
		}
		if seen[typ] || !strings.HasPrefix(typ.PkgPath(), "k8s.io/") || typ.Kind() == reflect.Interface {
			return
		}
		seen[typ] = true
		all = append(all, typ)
		if typ.Kind() == reflect.Struct {
			for f := range typ.Fields() {
				if f.IsExported() {
					visit(f.Type)
				}
			}
		}
	}
	for gvk, t := range scheme.Scheme.AllKnownTypes() {
		if stable.MatchString(gvk.Version) && !strings.HasSuffix(t.PkgPath(), "/conversion") {
			visit(t)
		}
	}
	visit(reflect.TypeFor[version.Info]())
	return all
}

// fact is what the source says of typ and Go does not know at run time.
func (s *source) fact(t *testing.T, typ reflect.Type, all map[string]source) (fact, bool) {
	t.Helper()
	declared, ok := s.types[typ.Name()]
	if !ok {
		t.Fatalf("%s: not in its source", factName(typ))
	}
	var f fact
	if typ.Kind() != reflect.Struct {
		f.Enum = s.enum(t, typ.Name(), all)
		return f, f.Enum != nil
	}
	docs := docsOf(typ)
	if text := prose(declared.doc); text != docs[""] {
		f.Text = &text
	}
	members := declared.members(t)
	f.Extensions = extensions(markers(declared.doc))
	if u := declared.union(members); u != nil {
		f.Extensions["x-kubernetes-unions"] = u
	}
	f.Fields = map[string]fieldFact{}
	for _, member := range members {
		field, ok := typ.FieldByName(member.goName)
		if !ok || !field.IsExported() {
			continue
		}
		var known fieldFact
		if text := textOf(member, field.Type, all); text != docs[member.name] {
			known.Text = &text
		}
		_, omitEmpty, _ := named(field)
		required := member.marks["required"] != nil || member.marks["optional"] == nil && !omitEmpty
		if required == omitEmpty {
			known.Required = &required
		}
		if def := s.defaultOf(t, member); !same(t, def, zero(field.Type, omitEmpty)) {
			known.Default = def
		}
		known.Extensions = extensions(member.marks)
		if known.Text != nil || known.Required != nil || known.Default != nil || len(known.Extensions) > 0 {
			f.Fields[member.name] = known
		}
	}
	return f, f.Text != nil || len(f.Extensions)+len(f.Fields) > 0
}

// textOf is the description of a field; where the values are listed after it, that begins where the comment ends,
// markers and all.
func textOf(m member, typ reflect.Type, all map[string]source) string {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if d, ok := all[typ.PkgPath()].types[typ.Name()]; !ok || markers(d.doc)["enum"] == nil {
		return prose(m.doc)
	}
	const list = "Possible enum values:"
	return strings.TrimSuffix(prose(append(slices.Clone(m.doc), "", list)), "\n\n"+list)
}

// same reports whether two values are the same in JSON.
func same(t *testing.T, a, b any) bool {
	t.Helper()
	x, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Equal(x, y)
}

func fromJSON(t *testing.T, what, text string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(fmt.Errorf("%s: %w", what, err))
	}
	return v
}

// TestFactsArePublished looks for every fact of facts.txt in the definitions.
func TestFactsArePublished(t *testing.T) {
	s := &schemas{defs: spec.Definitions{}}
	for _, typ := range published() {
		if typ.Kind() != reflect.Struct {
			continue
		}
		s.ref(typ)
		f, err := factOf(typ)
		if err != nil {
			t.Fatal(err)
		}
		def := s.defs[modelName(typ)]
		if f.Text != nil && def.Description != *f.Text {
			t.Errorf("%s: described as %q, want %q", factName(typ), def.Description, *f.Text)
		}
		for name, known := range f.Fields {
			p := def.Properties[name]
			if known.Required != nil && *known.Required != slices.Contains(def.Required, name) {
				t.Errorf("%s.%s: required is %v, want %v", factName(typ), name, def.Required, *known.Required)
			}
			if known.Default != nil && !same(t, p.Default, known.Default) {
				t.Errorf("%s.%s: default %v, want %v", factName(typ), name, p.Default, known.Default)
			}
			for x, want := range known.Extensions {
				if !same(t, p.Extensions[x], want) {
					t.Errorf("%s.%s: %s is %v, want %v", factName(typ), name, x, p.Extensions[x], want)
				}
			}
		}
	}
	if err := s.check(); err != nil {
		t.Fatal(err)
	}
	defaults := 0
	enums := 0
	for _, def := range s.defs {
		for _, p := range def.Properties {
			if p.Default != nil {
				defaults++
			}
			if p.Enum != nil {
				enums++
			}
		}
	}
	if defaults < 690 || enums < 90 {
		t.Errorf("%d fields have a default and %d an enum, want at least 690 and 90", defaults, enums)
	}
}

// TestFacts has some facts of each sort as Kubernetes v1.37 publishes them.
func TestFacts(t *testing.T) {
	s := &schemas{defs: spec.Definitions{}}
	for _, typ := range published() {
		if typ.Kind() == reflect.Struct {
			s.ref(typ)
		}
	}
	for _, row := range []struct{ field, fact, want string }{
		{"api.core.v1.ServicePort.protocol", "default", `"TCP"`},
		{"api.core.v1.ServicePort.port", "default", `0`},
		{"api.core.v1.Pod.spec", "default", `{}`},
		{"api.core.v1.PodCondition.lastProbeTime", "default", `null`},
		{"api.core.v1.AzureDiskVolumeSource.kind", "default", `"Shared"`},
		{"api.core.v1.ISCSIVolumeSource.iscsiInterface", "default", `"default"`},
		{"api.core.v1.PodSpec.restartPolicy", "enum", `["Always","Never","OnFailure"]`},
		{"api.discovery.v1.EndpointSlice.addressType", "enum", `["FQDN","IPv4","IPv6"]`},
		{"api.admissionregistration.v1.Rule.apiGroups", "x-kubernetes-list-type", `"atomic"`},
		{"api.core.v1.PodSpec.containers", "x-kubernetes-list-map-keys", `["name"]`},
		{"api.core.v1.Container.ports", "x-kubernetes-list-map-keys", `["containerPort","protocol"]`},
		{"api.core.v1.SecretKeySelector", "x-kubernetes-map-type", `"atomic"`},
		{"api.core.v1.PodSpec", "required", `["containers"]`},
		{"api.core.v1.PodCondition", "required", `["type","status"]`},
		{"api.events.v1.Event", "required", `["eventTime"]`},
		{
			"api.core.v1.SeccompProfile", "x-kubernetes-unions",
			`[{"discriminator":"type","fields-to-discriminateBy":{"localhostProfile":"LocalhostProfile"}}]`,
		},
		{"apimachinery.pkg.api.resource.Quantity", "oneOf", `[{"type":"string"},{"type":"number"}]`},
		{"apimachinery.pkg.util.intstr.IntOrString", "format", `"int-or-string"`},
		{
			"api.core.v1.ServicePort.protocol", "description",
			`"The IP protocol for this port. Supports \"TCP\", \"UDP\", and \"SCTP\". Default is TCP.\n\nPossible enum values:\n` +
				` - ` + "`" + `\"SCTP\"` + "`" + ` is the SCTP protocol.\n - ` + "`" + `\"TCP\"` + "`" +
				` is the TCP protocol.\n - ` + "`" + `\"UDP\"` + "`" + ` is the UDP protocol."`,
		},
	} {
		def, ok := s.defs["io.k8s."+row.field]
		if at := strings.LastIndexByte(row.field, '.'); !ok {
			def, ok = s.defs["io.k8s."+row.field[:at]].Properties[row.field[at+1:]]
		}
		if !ok {
			t.Errorf("%s: not there", row.field)
			continue
		}
		b, err := json.Marshal(def)
		if err != nil {
			t.Fatal(err)
		}
		facts, ok := fromJSON(t, row.field, string(b)).(map[string]any)
		if !ok || !same(t, facts[row.fact], fromJSON(t, row.field, row.want)) {
			t.Errorf("%s: %s is %v, want %s", row.field, row.fact, facts[row.fact], row.want)
		}
	}
}
