// SPDX-License-Identifier: Apache-2.0

package handlers_test

import (
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"keelson/apiserver/servertest"
)

// TestWarningsOfControllers: kinds that make pods, and the subresource that changes their specification, warn; the
// status of a pod warns of its own.
func TestWarningsOfControllers(t *testing.T) {
	running := servertest.Start(t, nil)
	const controllers = "/api/v1/namespaces/default/replicationcontrollers"
	const hidden = `spec.template.spec.containers[0].env[1]: hides previous definition of "B", which may be dropped ` +
		"when using apply"
	made := running.Call(t, "POST", controllers, `{"metadata":{"name":"rc"},"spec":{"replicas":0,"selector":{"a":"b"},
		"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i",
		"env":[{"name":"B","value":"1"},{"name":"B","value":"2"}]}]}}}}`)
	if made.Code != 201 || !contains(made.Warnings(), hidden) {
		t.Errorf("a create: %d with warnings %q", made.Code, made.Warnings())
	}
	scaled := running.Call(t, "PATCH", controllers+"/rc/scale", `{"spec":{"replicas":1}}`, "Content-Type", servertest.MergePatch)
	if scaled.Code != 200 || !contains(scaled.Warnings(), hidden) {
		t.Errorf("a scale: %d with warnings %q", scaled.Code, scaled.Warnings())
	}
	const services = "/api/v1/namespaces/default/services"
	if made := running.Call(t, "POST", services, `{"metadata":{"name":"s"},"spec":{"ports":[{"port":1}],
		"type":"LoadBalancer"}}`); made.Code != 201 {
		t.Fatalf("%d: %s", made.Code, made.Body)
	}
	status := running.Call(t, "PATCH", services+"/s/status",
		`{"status":{"loadBalancer":{"ingress":[{"ip":"2001:DB8::1"}]}}}`, "Content-Type", servertest.MergePatch)
	const unusual = `status.loadBalancer.ingress[0]: IPv6 address "2001:DB8::1" should be in RFC 5952 canonical ` +
		`format ("2001:db8::1")`
	if status.Code != 200 || !contains(status.Warnings(), unusual) {
		t.Errorf("a status: %d with warnings %q: %s", status.Code, status.Warnings(), status.Body)
	}
}

// TestRatchetedRulesWarn: a value that breaks a new rule and did not change is let through with a warning.
func TestRatchetedRulesWarn(t *testing.T) {
	custom := servertest.StartCustom(t)
	const shape = `{type: object, properties: {field: {type: string, maxLength: 5}, other: {type: string}}}`
	custom.Define(servertest.Definition("warneds", "Warned", shape))
	const objects = "/apis/example.com/v1/namespaces/ns/warneds"
	if made := custom.Call(t, "POST", objects,
		`{"apiVersion":"example.com/v1","kind":"Warned","metadata":{"name":"a"},"field":"foo"}`); made.Code != 201 {
		t.Fatalf("%d: %s", made.Code, made.Body)
	}
	custom.Reshape(t, "warneds", strings.Replace(shape, "maxLength: 5",
		`maxLength: 5, x-kubernetes-validations: [{rule: "self == 'new'"}]`, 1))
	got := custom.Call(t, "PATCH", objects+"/a", `{"other":"x"}`, "Content-Type", servertest.MergePatch)
	if want := `field: Invalid value: "foo": failed rule: self == 'new'`; got.Code != 200 || len(got.Warnings()) != 1 ||
		!strings.HasPrefix(got.Warnings()[0], want) {
		t.Errorf("got %d with %q, want a warning %q: %s", got.Code, got.Warnings(), want, got.Body)
	}
}

// TestSpaceBeforeToken: a token behind two spaces is ignored, with a warning.
func TestSpaceBeforeToken(t *testing.T) {
	running := servertest.Start(t, nil)
	anyone := rest.AnonymousClientConfig(running.Rest)
	for header, want := range map[string]string{
		"Bearer x":   "",
		"bearer  x":  "the provided Authorization header contains extra space before the bearer token, and is ignored",
		"Bearer x y": "",
	} {
		got := servertest.CallAs(t, anyone, "GET", "/version", "", "Authorization", header)
		if strings.Join(got.Warnings(), "") != want {
			t.Errorf("%q: %d with warnings %q, want %q", header, got.Code, got.Warnings(), want)
		}
	}
}

// TestLongTokensAreShortened: a token that is asked for longer than is allowed is given for as long as that.
func TestLongTokensAreShortened(t *testing.T) {
	running := servertest.StartSecured(t, nil)
	const accounts = "/api/v1/namespaces/default/serviceaccounts"
	if made := running.Call(t, "POST", accounts, `{"metadata":{"name":"a"}}`); made.Code != 201 {
		t.Fatalf("%d: %s", made.Code, made.Body)
	}
	got := running.Call(t, "POST", accounts+"/a/token", `{"spec":{"expirationSeconds":8640000}}`)
	const want = "requested expiration of 8640000 seconds shortened to 7776000 seconds"
	if got.Code != 201 || len(got.Warnings()) != 1 || got.Warnings()[0] != want {
		t.Errorf("%d with warnings %q, want %q: %s", got.Code, got.Warnings(), want, got.Body)
	}
}

// TestFinalizersOfCustomResources: a new finalizer should have a domain and a path; those of Kubernetes need none.
func TestFinalizersOfCustomResources(t *testing.T) {
	custom := servertest.StartCustom(t)
	custom.Define(servertest.Definition("helds", "Held", `{type: object}`))
	const objects = "/apis/example.com/v1/namespaces/ns/helds"
	const advice = " to avoid accidental conflicts with other finalizer writers"
	for finalizer, want := range map[string]string{
		"plain":              `metadata.finalizers: "plain": prefer a domain-qualified finalizer name` + advice,
		"example.com":        `metadata.finalizers: "example.com": prefer a domain-qualified finalizer name including a path (/)` + advice,
		"example.com/a":      "",
		"foregroundDeletion": "",
	} {
		got := custom.Call(t, "POST", objects, `{"apiVersion":"example.com/v1","kind":"Held","metadata":{"generateName":"a",`+
			`"finalizers":["`+finalizer+`"]}}`)
		if got.Code != 201 || strings.Join(got.Warnings(), "") != want {
			t.Errorf("%s: %d with warnings %q, want %q: %s", finalizer, got.Code, got.Warnings(), want, got.Body)
		}
	}
}
