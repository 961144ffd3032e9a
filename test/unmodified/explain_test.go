// SPDX-License-Identifier: Apache-2.0

package unmodified

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"keelson/cluster"
)

const fooSchema = `
description: Foo CRD for Testing
type: object
properties:
  spec:
    type: object
    description: Specification of Foo
    properties:
      bars:
        description: List of Bars and their specs.
        type: array
        items:
          type: object
          required: [name]
          properties:
            name: {description: Name of Bar., type: string}
            age: {description: Age of Bar., type: string}
            feeling: {description: Whether Bar is feeling great., type: string, enum: [Great, Down]}
            bazs: {description: List of Bazs., type: array, items: {type: string}}
  status:
    description: Status of Foo
    type: object
    properties:
      bars:
        description: List of Bars and their statuses.
        type: array
        items:
          type: object
          properties:
            name: {description: Name of Bar., type: string}
            available: {description: Whether the Bar is installed., type: boolean}
            quxType: {description: Indicates to external qux type., pattern: in-tree|out-of-tree, type: string}
`

const nestedSchema = `
description: preserve-unknown-properties in nested field for Testing
type: object
properties:
  spec: {description: Specification of Waldo, type: object, x-kubernetes-preserve-unknown-fields: true}
  status: {description: Status of Waldo, type: object, properties: {bars: {description: List of Bars., type: array, items: {type: object}}}}
`

// nestedPublished is how version 2 of OpenAPI, which cannot say that a field takes anything, publishes it: without a
// type.
var nestedPublished = strings.Replace(nestedSchema, "Waldo, type: object, x-", "Waldo, x-", 1)

// kindYAML is a definition in group GROUP.example.com with those versions, of which the first is stored.
func kindYAML(t *testing.T, group, plural, schema string, versions ...string) string {
	t.Helper()
	var props map[string]any
	if err := yaml.Unmarshal([]byte(schema), &props); err != nil {
		t.Fatal(err)
	}
	var list []any
	for i, v := range versions {
		list = append(list, map[string]any{
			"name":    v,
			"served":  true,
			"storage": i == 0,
			"schema":  map[string]any{"openAPIV3Schema": props},
		})
	}
	kind := strings.ToUpper(plural[:1]) + plural[1:len(plural)-1]
	b, err := json.Marshal(map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": plural + "." + group + ".example.com"},
		"spec": map[string]any{
			"group":    group + ".example.com",
			"scope":    "Namespaced",
			"versions": list,
			"names": map[string]any{
				"plural":   plural,
				"singular": strings.ToLower(kind),
				"kind":     kind,
				"listKind": kind + "List",
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// published returns a definition of /openapi/v2 without what every object has, nil when it is not there.
func (r *running) published(t *testing.T, name string) map[string]any {
	t.Helper()
	b, err := r.Discovery().RESTClient().Get().AbsPath("/openapi/v2").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var doc struct{ Definitions map[string]map[string]any }
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	d := doc.Definitions[name]
	delete(d, "x-kubernetes-group-version-kind")
	if props, ok := d["properties"].(map[string]any); ok {
		for _, own := range []string{"apiVersion", "kind", "metadata"} {
			delete(props, own)
		}
		if len(props) == 0 {
			delete(d, "properties")
		}
	}
	return d
}

// publishes waits until the document has a definition with that schema; an empty one: until it has none.
func (r *running) publishes(t *testing.T, name, schema string) {
	t.Helper()
	var want map[string]any
	if err := yaml.Unmarshal([]byte(schema), &want); err != nil {
		t.Fatal(err)
	}
	eventually(t, "definition "+name, func() string { return cmp.Diff(want, r.published(t, name)) })
}

// TestPublishedDefinitions lets the real kubectl check, write and explain custom resources by what the server publishes
// of their definitions, and follows definitions that come, change their versions and go.
func TestPublishedDefinitions(t *testing.T) {
	running := start(t, func(c *cluster.Config) { c.NoNode = true })
	for _, y := range []string{
		kindYAML(t, "foo", "foos", fooSchema, "v1"),
		kindYAML(t, "empty", "empties", `{type: object, x-kubernetes-preserve-unknown-fields: true}`, "v1"),
		kindYAML(t, "root", "roots",
			`{description: preserve-unknown-properties at root for Testing, x-kubernetes-preserve-unknown-fields: true, type: object, properties: {spec: {description: Specification of Waldo, type: object}}}`,
			"v1"),
		kindYAML(t, "nested", "waldos", nestedSchema, "v1beta1"),
	} {
		running.must(t, y, "apply", "-f", "-")
	}
	running.must(t, "", "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	running.publishes(t, "com.example.foo.v1.Foo", fooSchema)
	running.publishes(t, "com.example.nested.v1beta1.Waldo", nestedPublished)

	for _, tc := range []struct{ kind, plural, body string }{
		{`"kind":"Foo","apiVersion":"foo.example.com/v1"`, "foos", `"spec":{"bars":[{"name":"test-bar"}]}`},
		{`"kind":"Emptie","apiVersion":"empty.example.com/v1"`, "empties", `"a":{"b":[{"c":"d"}]}`},
		{`"kind":"Root","apiVersion":"root.example.com/v1"`, "roots", `"a":{"b":[{"c":"d"}]}`},
		{`"kind":"Waldo","apiVersion":"nested.example.com/v1beta1"`, "waldos", `"spec":{"a":null,"b":[{"c":"d"}]}`},
	} {
		y := fmt.Sprintf(`{%s,"metadata":{"name":"test"},%s}`, tc.kind, tc.body)
		for _, verb := range []string{"create", "apply"} {
			running.must(t, y, verb, "-f", "-")
			running.must(t, "", "delete", tc.plural, "test")
		}
	}
	for body, want := range map[string]string{
		`"spec":{"bars":[{"name":"test-bar","feeling":"Odd"}]}`: `Unsupported value: "Odd"`,
		`"spec":{"foo":true}`:           `unknown field "spec.foo"`,
		`"spec":{"bars":[{"age":"1"}]}`: `spec.bars[0].name: Required value`,
	} {
		for _, verb := range []string{"create", "apply"} {
			out, err := running.kubectl(t, `{"kind":"Foo","apiVersion":"foo.example.com/v1","metadata":{"name":"bad"},`+
				body+
				`}`, verb, "-f", "-")
			if err == nil || !strings.Contains(out, want) {
				t.Errorf("%s of %s: %v, %s; want %s", verb, body, err, out, want)
			}
		}
	}
	explain(t, running)
	followVersions(t, running)
}

func explain(t *testing.T, r *running) {
	t.Helper()
	for what, pattern := range map[string]string{
		"foos":           `(?s)DESCRIPTION:.*Foo CRD for Testing.*FIELDS:.*apiVersion.*<string>.*APIVersion defines.*spec.*<Object>.*Specification of Foo`,
		"foos.metadata":  `(?s)DESCRIPTION:.*Standard object's metadata.*FIELDS:.*creationTimestamp.*<string>.*CreationTimestamp is a timestamp`,
		"foos.spec":      `(?s)DESCRIPTION:.*Specification of Foo.*FIELDS:.*bars.*<\[\]Object>.*List of Bars and their specs`,
		"foos.spec.bars": `(?s)FIELD:.*bars.*<\[\]Object>.*DESCRIPTION:.*List of Bars and their specs.*FIELDS:.*bazs.*<\[\]string>.*List of Bazs.*name.*<string>.*Name of Bar`,
		"empties":        `(?s)DESCRIPTION:.*<empty>`,
		"roots":          `(?s)KIND:\s+Root`,
		"waldos":         `(?s)DESCRIPTION:.*preserve-unknown-properties in nested field for Testing`,
	} {
		if out := r.must(t, "", "explain", what); !regexp.MustCompile(pattern).MatchString(out) {
			t.Errorf("explain %s: %s\nwant %s", what, out, pattern)
		}
	}
	if out, err := r.kubectl(t, "", "explain", "foos.spec.bars2"); err == nil ||
		!strings.Contains(out, `field "bars2" does not exist`) {
		t.Errorf("explain of no field: %v, %s", err, out)
	}
}

// followVersions publishes several versions and kinds of one group, renames a version, stops serving one, and deletes
// them.
func followVersions(t *testing.T, r *running) {
	t.Helper()
	r.must(t, kindYAML(t, "multi", "foos", fooSchema, "v2", "v3"), "apply", "-f", "-")
	r.must(t, kindYAML(t, "multi", "waldos", nestedSchema, "v3"), "apply", "-f", "-")
	r.publishes(t, "com.example.multi.v2.Foo", fooSchema)
	r.publishes(t, "com.example.multi.v3.Foo", fooSchema)
	r.publishes(t, "com.example.multi.v3.Waldo", nestedPublished)
	patch := `[{"op":"test","path":"/spec/versions/1/name","value":"v3"},{"op":"replace","path":"/spec/versions/1/name","value":"v4"}]`
	r.must(t, "", "patch", "crd", "foos.multi.example.com", "--type=json", "-p", patch)
	r.publishes(t, "com.example.multi.v4.Foo", fooSchema)
	r.publishes(t, "com.example.multi.v3.Foo", "")
	r.publishes(t, "com.example.multi.v2.Foo", fooSchema)
	r.must(t, "", "patch", "crd", "foos.multi.example.com", "--type=json", "-p",
		`[{"op":"replace","path":"/spec/versions/1/served","value":false}]`)
	r.publishes(t, "com.example.multi.v4.Foo", "")
	r.publishes(t, "com.example.multi.v2.Foo", fooSchema)
	r.publishes(t, "com.example.multi.v3.Waldo", nestedPublished)
	r.must(t, "", "delete", "crd", "--all", "--timeout=60s")
	for _, name := range []string{
		"com.example.multi.v2.Foo", "com.example.multi.v3.Waldo", "com.example.foo.v1.Foo",
		"com.example.nested.v1beta1.Waldo",
	} {
		r.publishes(t, name, "")
	}
}
