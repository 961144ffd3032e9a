// SPDX-License-Identifier: Apache-2.0

package expression

import (
	"context"
	"strings"
	"testing"
	"time"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/admission"
	"keelson/auth"
)

// readers may get config maps, and nothing else may be done.
type readers struct{}

func (readers) Authorize(_ context.Context, a *auth.Attributes) (auth.Decision, error) {
	if a.Verb == "get" && a.Resource == "configmaps" && a.User.Name == "ann" {
		return auth.Decision{Verdict: auth.Allow, Reason: "a reader"}, nil
	}
	return auth.Decision{Verdict: auth.NoOpinion, Reason: "no reader"}, nil
}

func input() *Input {
	obj := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "dev"},
		Data: map[string]string{
			"a": "b",
		},
	}
	gvr := corev1.SchemeGroupVersion.WithResource("configmaps")
	gvk := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	r := &admission.Request{
		Operation: admission.Create,
		Resource:  gvr,
		Kind:      gvk,
		Namespace: "dev",
		Name:      "c",
		Object:    obj,
		User:      &auth.User{Name: "ann", Groups: []string{"readers"}, Extra: map[string][]string{"k": {"v"}}},
	}
	return NewInput(r, gvr, gvk, obj, nil, nil, readers{})
}

// expensive costs more than conditions may.
var expensive = func() string {
	list := "[" + strings.TrimSuffix(strings.Repeat("1,", 100), ",") + "]"
	return list + ".all(a, " + list + ".all(b, " + list + ".all(c, " + list + ".all(d, a + b + c + d > 0))))"
}()

func TestConditions(t *testing.T) {
	fail := registrationv1.Fail
	ignore := registrationv1.Ignore
	for _, tt := range []struct {
		what   string
		texts  []string
		policy *registrationv1.FailurePolicyType
		want   bool
		err    string // part of it
	}{
		{"one that holds", []string{"object.data.a == 'b'"}, nil, true, ""},
		{"one of two", []string{"object.data.a == 'b'", "object.data.a == 'c'"}, nil, false, ""},
		{
			"the request",
			[]string{
				"request.operation == 'CREATE' && request.namespace == 'dev' && request.userInfo.username == 'ann' " +
					"&& 'readers' in request.userInfo.groups && request.kind.kind == 'ConfigMap'",
			},
			nil, true, "",
		},
		{"no old object", []string{"oldObject == null"}, nil, true, ""},
		{"the object's kind", []string{"object.kind == 'ConfigMap' && object.apiVersion == 'v1'"}, nil, true, ""},
		{
			"authorizer", []string{
				"authorizer.group('').resource('configmaps').namespace('dev').check('get').allowed()",
			}, nil, true, "",
		},
		{
			"authorizer's no",
			[]string{"authorizer.group('').resource('configmaps').namespace('dev').check('delete').allowed()"},
			nil,
			false, "",
		},
		{
			"authorizer's reason",
			[]string{"authorizer.requestResource.check('get').reason() == 'a reader'"},
			nil,
			true, "",
		},
		{"error", []string{"object.data.missing == 'b'"}, nil, false, "resulted in error: no such key: missing"},
		{"error, fail", []string{"object.data.missing == 'b'"}, &fail, false, "no such key: missing"},
		{"error, ignore", []string{"object.data.missing == 'b'"}, &ignore, false, ""},
		{"an error and a false is false", []string{"object.data.missing == 'b'", "false"}, &fail, false, ""},
		{"no expression", []string{"object.("}, &fail, false, "compilation error"},
		{"not true or false", []string{"'text'"}, &fail, false, "must evaluate to bool"},
		{
			"a quantity of millions of digits",
			[]string{"quantity('1e' + '2880888').isGreaterThan(quantity('1'))", "true"},
			&fail, false,
			"longer than 64 characters, or an exponent over 100",
		},
		{"too much", []string{expensive}, &fail, false, "cost limit exceeded"},
		{"too much, ignore", []string{expensive}, &ignore, false, ""},
	} {
		var list []registrationv1.MatchCondition
		for _, text := range tt.texts {
			list = append(list, registrationv1.MatchCondition{Name: "n", Expression: text})
		}
		calls := 0
		failed := 0
		c := Compile(list, tt.policy, func(op admission.Operation, _ time.Duration, n int, _ bool) {
			if op != admission.Create {
				t.Errorf("%s: called for a %s", tt.what, op)
			}
			calls++
			failed = n
		})
		got, err := c.Match(t.Context(), input())
		if got != tt.want || (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: got %v, %v, want %v, %q", tt.what, got, err, tt.want, tt.err)
		}
		if calls != 1 || tt.err != "" && failed == 0 {
			t.Errorf("%s: called %d times, with %d failures", tt.what, calls, failed)
		}
	}
	if Compile(nil, nil, nil) != nil {
		t.Error("no conditions are something")
	}
}
