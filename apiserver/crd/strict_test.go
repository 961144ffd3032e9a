// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"keelson/apiserver/servertest"
)

// TestAppliedCustomResourcesStrictly: what strict validation says of an applied custom resource, by the schema it has.
func TestAppliedCustomResourcesStrictly(t *testing.T) {
	custom := servertest.StartCustom(t)
	cluster := func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.Scope = apiextensionsv1.ClusterScoped }
	const ports = `{type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [containerPort, protocol], items: {type: object,
      required: [containerPort, protocol], properties: {containerPort: {type: integer, format: int32}, protocol: {type: string}, name: {type: string}}}}`
	custom.Define(servertest.Definition("frees", "Free", `{type: object, x-kubernetes-preserve-unknown-fields: true}`, cluster))
	custom.Define(servertest.Definition("knowns", "Known",
		`{type: object, properties: {spec: {type: object, properties: {foo: {type: string}, ports: `+ports+
			`}}}}`, cluster))
	custom.Define(servertest.Definition("mixeds", "Mixed",
		`{type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {
      foo: {type: string}, ports: `+ports+`,
      template: {type: object, x-kubernetes-embedded-resource: true, properties: {metadata: {type: object, properties: {name: {type: string}}}, spec: {type: object}}}}}}}`,
		cluster))
	for name, tc := range map[string]struct {
		resource, body string
		code           int
		want           string
	}{
		"no schema": {"frees", `
apiVersion: example.com/v1
kind: Free
metadata:
  name: a
  finalizers: [test-finalizer]
spec:
  any: thing
  cronSpec: "* * * * */5"
  ports: [{name: x, containerPort: 80, protocol: TCP}]`, 201, `"any":"thing"`},
		"valid": {"knowns", `
apiVersion: example.com/v1
kind: Known
metadata: {name: a}
spec:
  foo: foo1
  ports: [{name: x, containerPort: 80, protocol: TCP}]`, 201, `"foo":"foo1"`},
		"unknown at the root": {"knowns", `
apiVersion: example.com/v1
kind: Known
metadata: {name: b}
unknownField: unknown
spec: {foo: foo1}`, 500, `.unknownField: field not declared in schema`},
		"unknown below": {"knowns", `
apiVersion: example.com/v1
kind: Known
metadata: {name: b}
spec: {bar: x}`, 500, `.spec.bar: field not declared in schema`},
		"unknown metadata": {"mixeds", `
apiVersion: example.com/v1
kind: Mixed
metadata: {name: b, unknownMeta: unknown}
spec: {foo: x}`, 500, `.metadata.unknownMeta: field not declared in schema`},
		"unknown metadata of an object inside": {
			"mixeds", `
apiVersion: example.com/v1
kind: Mixed
metadata: {name: b}
spec:
  template:
    apiVersion: foo/v1
    kind: Sub
    metadata: {name: sub, unknownSubMeta: unknown}`, 500,
			`.spec.template.metadata.unknownSubMeta: field not declared in schema`,
		},
		"twice": {"mixeds", `
apiVersion: example.com/v1
kind: Mixed
metadata:
  name: b
spec:
  unknown: uk1
  foo: foo1
  foo: foo2`, 400, `line 9: key \"foo\" already set in map`},
	} {
		t.Run(name, func(t *testing.T) {
			object := "a"
			if tc.code != 201 {
				object = "b"
			}
			path := "/apis/example.com/v1/" + tc.resource + "/" + object + "?fieldManager=m&fieldValidation=Strict"
			r := custom.Call(t, "PATCH", path, tc.body, "Content-Type", "application/apply-patch+yaml")
			if r.Code != tc.code || !strings.Contains(string(r.Body), tc.want) {
				t.Errorf("got %d %s, want %d with %s", r.Code, r.Body, tc.code, tc.want)
			}
		})
	}
}
