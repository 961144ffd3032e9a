// SPDX-License-Identifier: Apache-2.0

package matching

import (
	"context"
	"errors"
	"strings"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/admission"
)

// world is a Reader that knows the namespaces dev and prod, and that apps/v1 deployments are served by
// extensions/v1beta1 too.
type world struct{ Reader }

var (
	deployments = appsv1.SchemeGroupVersion.WithResource("deployments")
	legacy      = schema.GroupVersionResource{Group: "extensions", Version: "v1beta1", Resource: "deployments"}
)

func (world) Get(_ context.Context, gvr schema.GroupVersionResource, _, name string) (runtime.Object, error) {
	switch name {
	case "dev", "prod":
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"env": name}}}, nil
	case "broken":
		return nil, errors.New("out of order")
	}
	return nil, apierrors.NewNotFound(gvr.GroupResource(), name)
}

func (world) Equivalents(r schema.GroupVersionResource) []schema.GroupVersionResource {
	switch r {
	case deployments:
		return []schema.GroupVersionResource{legacy}
	case legacy:
		return []schema.GroupVersionResource{deployments}
	}
	return nil
}

func (world) Kind(r schema.GroupVersionResource) (schema.GroupVersionKind, bool) {
	switch r {
	case deployments, legacy:
		return r.GroupVersion().WithKind("Deployment"), true
	}
	return schema.GroupVersionKind{}, false
}

func rule(edit func(*registrationv1.NamedRuleWithOperations)) registrationv1.NamedRuleWithOperations {
	r := registrationv1.NamedRuleWithOperations{RuleWithOperations: registrationv1.RuleWithOperations{
		Operations: []registrationv1.OperationType{"*"},
		Rule:       registrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*"}},
	}}
	if edit != nil {
		edit(&r)
	}
	return r
}

func request(gvr schema.GroupVersionResource, op admission.Operation, namespace, name, sub string) *admission.Request {
	return &admission.Request{
		Operation:   op,
		Resource:    gvr,
		Kind:        gvr.GroupVersion().WithKind("Deployment"),
		Subresource: sub,
		Namespace:   namespace,
		Name:        name,
		Object: &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app": "web"}},
		},
	}
}

func TestRules(t *testing.T) {
	type named = registrationv1.NamedRuleWithOperations
	cluster := registrationv1.ClusterScope
	namespaced := registrationv1.NamespacedScope
	usual := request(deployments, admission.Create, "dev", "d", "")
	node := request(corev1.SchemeGroupVersion.WithResource("nodes"), admission.Create, "", "n", "")
	space := request(corev1.SchemeGroupVersion.WithResource("namespaces"), admission.Create, "dev", "dev", "")
	scale := request(deployments, admission.Update, "dev", "d", "scale")
	resources := func(list ...string) func(*named) { return func(r *named) { r.Resources = list } }
	for _, tt := range []struct {
		what string
		edit func(*named)
		r    *admission.Request
		want bool
	}{
		{"everything", nil, usual, true},
		{"operation", func(r *named) { r.Operations = []registrationv1.OperationType{"CREATE"} }, usual, true},
		{
			"other operation", func(r *named) { r.Operations = []registrationv1.OperationType{"UPDATE", "DELETE"} },
			usual, false,
		},
		{"group", func(r *named) { r.APIGroups = []string{"", "apps"} }, usual, true},
		{"other group", func(r *named) { r.APIGroups = []string{""} }, usual, false},
		{"version", func(r *named) { r.APIVersions = []string{"v1"} }, usual, true},
		{"other version", func(r *named) { r.APIVersions = []string{"v2"} }, usual, false},
		{"resource", resources("deployments"), usual, true},
		{"other resource", resources("pods", "deployments/scale"), usual, false},
		{"star leaves subresources out", resources("*"), scale, false},
		{"all subresources", resources("*/*"), scale, true},
		{"a resource's subresources", resources("deployments/*"), scale, true},
		{"a subresource of all", resources("*/scale"), scale, true},
		{"another subresource", resources("*/status"), scale, false},
		{"star of subresources means the resource too", resources("deployments/*"), usual, true},
		{"name", func(r *named) { r.ResourceNames = []string{"a", "d"} }, usual, true},
		{"other name", func(r *named) { r.ResourceNames = []string{"a"} }, usual, false},
		{"cluster scope", func(r *named) { r.Scope = &cluster }, usual, false},
		{"cluster scope, node", func(r *named) { r.Scope = &cluster }, node, true},
		{"cluster scope, namespace", func(r *named) { r.Scope = &cluster }, space, true},
		{"namespaced scope", func(r *named) { r.Scope = &namespaced }, usual, true},
		{"namespaced scope, namespace", func(r *named) { r.Scope = &namespaced }, space, false},
	} {
		criteria, err := New([]named{rule(tt.edit)}, nil, nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := criteria.Match(t.Context(), tt.r, world{})
		if err != nil || (got != nil) != tt.want {
			t.Errorf("%s: got %v, %v, want match %v", tt.what, got, err, tt.want)
		}
		if tt.want && got.Resource != tt.r.Resource {
			t.Errorf("%s: shown as %v", tt.what, got.Resource)
		}
		// What a rule means is left out where it excludes.
		criteria, err = New([]named{rule(resources("*/*"))}, []named{rule(tt.edit)}, nil, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := criteria.Match(t.Context(), tt.r, world{}); err != nil || (got == nil) != tt.want {
			t.Errorf("excluding %s: got %v, %v, want match %v", tt.what, got, err, !tt.want)
		}
	}
}

func TestEquivalents(t *testing.T) {
	old := []registrationv1.NamedRuleWithOperations{rule(func(r *registrationv1.NamedRuleWithOperations) {
		r.APIGroups = []string{"extensions"}
		r.APIVersions = []string{"v1beta1"}
		r.Resources = []string{"deployments", "deployments/scale"}
	})}
	exact := registrationv1.Exact
	equivalent := registrationv1.Equivalent
	r := request(deployments, admission.Create, "dev", "d", "")
	for policy, want := range map[*registrationv1.MatchPolicyType]bool{&exact: false, &equivalent: true, nil: true} {
		c, err := New(old, nil, policy, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.Match(t.Context(), r, world{})
		if err != nil || (got != nil) != want ||
			want && (got.Resource != legacy || got.Kind != legacy.GroupVersion().WithKind("Deployment")) {
			t.Errorf("policy %v: got %v, %v, want match %v as the old version", policy, got, err, want)
		}
	}
	scale := request(deployments, admission.Update, "dev", "d", "scale")
	scale.Kind = schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}
	c, err := New(old, nil, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.Match(t.Context(), scale, world{}); err != nil || got == nil || got.Resource != legacy ||
		got.Kind != scale.Kind {
		t.Errorf("a subresource's own kind stays: got %v, %v", got, err)
	}
}

func TestSelectors(t *testing.T) {
	all := []registrationv1.NamedRuleWithOperations{rule(nil)}
	sel := func(key, value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	}
	gone := request(deployments, admission.Delete, "dev", "d", "")
	gone.OldObject = gone.Object
	gone.Object = nil
	bare := request(deployments, admission.Update, "dev", "d", "")
	bare.OldObject = bare.Object
	bare.Object = &appsv1.Deployment{}
	unlabelled := request(corev1.SchemeGroupVersion.WithResource("pods"), admission.Connect, "dev", "p", "exec")
	unlabelled.Object = &corev1.PodExecOptions{}
	node := request(corev1.SchemeGroupVersion.WithResource("nodes"), admission.Create, "", "n", "")
	own := func(op admission.Operation, labels, old map[string]string) *admission.Request {
		r := request(corev1.SchemeGroupVersion.WithResource("namespaces"), op, "x", "x", "")
		r.Object = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: labels}}
		if op != admission.Create {
			r.OldObject = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: old}}
		}
		if op == admission.Delete {
			r.Object = nil
		}
		return r
	}
	dev := map[string]string{"env": "dev"}
	for _, tt := range []struct {
		what              string
		namespace, object *metav1.LabelSelector
		r                 *admission.Request
		want              bool
	}{
		{"its namespace", sel("env", "dev"), nil, request(deployments, admission.Create, "dev", "d", ""), true},
		{"another namespace", sel("env", "dev"), nil, request(deployments, admission.Create, "prod", "d", ""), false},
		{"no namespace", sel("env", "dev"), nil, node, true},
		{"a new namespace", sel("env", "dev"), nil, own(admission.Create, dev, nil), true},
		{"a new namespace without the label", sel("env", "dev"), nil, own(admission.Create, nil, nil), false},
		{"a namespace that loses it", sel("env", "dev"), nil, own(admission.Update, nil, dev), false},
		{"a namespace that gets it", sel("env", "dev"), nil, own(admission.Update, dev, nil), true},
		{"a namespace that goes", sel("env", "dev"), nil, own(admission.Delete, nil, dev), true},
		{"the object", nil, sel("app", "web"), request(deployments, admission.Create, "dev", "d", ""), true},
		{"another object", nil, sel("app", "db"), request(deployments, admission.Create, "dev", "d", ""), false},
		{"a deleted object", nil, sel("app", "web"), gone, true},
		{"an object that loses its label", nil, sel("app", "web"), bare, true},
		{"what has no labels", nil, sel("app", "web"), &admission.Request{
			Operation: admission.Connect,
			Resource:  unlabelled.Resource,
			Object:    unlabelled.Object,
			Namespace: "dev",
		}, false},
	} {
		rules := all
		if tt.r.Subresource != "" {
			rules = []registrationv1.NamedRuleWithOperations{
				rule(func(r *registrationv1.NamedRuleWithOperations) { r.Resources = []string{"*/*"} }),
			}
		}
		c, err := New(rules, nil, nil, tt.namespace, tt.object)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.Match(t.Context(), tt.r, world{}); err != nil || (got != nil) != tt.want {
			t.Errorf("%s: got %v, %v, want match %v", tt.what, got, err, tt.want)
		}
	}
	c, err := New(all, nil, nil, sel("env", "dev"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Match(t.Context(), request(deployments, admission.Create, "gone", "d", ""),
		world{}); !apierrors.IsNotFound(err) {
		t.Errorf("a namespace that is not there: got %v", err)
	}
	if _, err := c.Match(t.Context(), request(deployments, admission.Create, "broken", "d", ""),
		world{}); !apierrors.IsInternalError(err) {
		t.Errorf("a namespace that cannot be read: got %v", err)
	}
	if _, err := New(all, nil, nil,
		&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}},
		nil); err == nil {
		t.Error("a selector that is none was accepted")
	}
}

func TestNoRules(t *testing.T) {
	r := request(deployments, admission.Create, "dev", "d", "")
	for _, anything := range []bool{false, true} {
		c := &Criteria{MatchAll: anything}
		var err error
		if c.namespace, err = selector(nil); err != nil {
			t.Fatal(err)
		}
		c.object = c.namespace
		if got, err := c.Match(t.Context(), r, world{}); err != nil || (got != nil) != anything {
			t.Errorf("without rules, any=%v: got %v, %v", anything, got, err)
		}
	}
}

func TestExempt(t *testing.T) {
	for text, want := range map[string]bool{
		"admissionregistration.k8s.io/validatingwebhookconfigurations": true,
		"admissionregistration.k8s.io/mutatingadmissionpolicybindings": true,
		"admissionregistration.k8s.io/others":                          false,
		"authentication.k8s.io/tokenreviews":                           true,
		"authorization.k8s.io/selfsubjectaccessreviews":                true,
		"/pods": false,
		"example.com/validatingwebhookconfigurations": false,
	} {
		group, resource, _ := strings.Cut(text, "/")
		if got := Exempt(&admission.Request{
			Resource: schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource},
		}); got != want {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
		if strings.HasSuffix(resource, "webhookconfigurations") {
			want = false
		}
		if got := ExemptOfPolicies(&admission.Request{
			Resource: schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource},
		}); got != want {
			t.Errorf("%s, policies: got %v, want %v", text, got, want)
		}
	}
}
