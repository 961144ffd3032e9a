// SPDX-License-Identifier: Apache-2.0

package eventlimit

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/config"
	"keelson/auth"
)

func event(namespace, user, component, about string) *admission.Request {
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace},
		Source:         corev1.EventSource{Component: component},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: about},
	}
	return &admission.Request{
		Operation: admission.Create,
		Resource:  corev1.SchemeGroupVersion.WithResource("events"),
		Kind:      corev1.SchemeGroupVersion.WithKind("Event"),
		Namespace: namespace,
		Object:    e,
		User:      &auth.User{Name: user},
	}
}

func TestLimits(t *testing.T) {
	now := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	build := func(limits ...Limit) *Plugin {
		p := New(limits)
		p.now = func() time.Time { return now }
		return p
	}
	for _, tt := range []struct {
		kind        Type
		same, other *admission.Request
		key         string
	}{
		{Namespace, event("dev", "ann", "kubelet", "p"), event("ops", "ann", "kubelet", "p"), "dev"},
		{User, event("dev", "ann", "kubelet", "p"), event("dev", "bob", "kubelet", "p"), "ann"},
		{SourceAndObject, event("dev", "ann", "kubelet", "p"), event("dev", "ann", "kubelet", "q"), "kubeletPoddevp"},
		{Server, event("dev", "ann", "kubelet", "p"), nil, ""},
	} {
		plugin := build(Limit{Type: tt.kind, QPS: 1, Burst: 2})
		for range 2 {
			if err := plugin.Validate(t.Context(), tt.same); err != nil {
				t.Fatalf("%s: within the burst: %v", tt.kind, err)
			}
		}
		err := plugin.Validate(t.Context(), tt.same)
		if want := fmt.Sprintf("Too many requests: limit reached on type %s for key %s", tt.kind,
			tt.key); !apierrors.IsTooManyRequests(err) || err.Error() != want {
			t.Errorf("%s: got %v, want %s", tt.kind, err, want)
		}
		if tt.other != nil {
			if err := plugin.Validate(t.Context(), tt.other); err != nil {
				t.Errorf("%s: another key: %v", tt.kind, err)
			}
		}
		now = now.Add(time.Second)
		if err := plugin.Validate(t.Context(), tt.same); err != nil {
			t.Errorf("%s: a second later: %v", tt.kind, err)
		}
	}
}

func TestWhatCounts(t *testing.T) {
	plugin := New([]Limit{{Type: Server, QPS: 1, Burst: 1}})
	plugin.now = func() time.Time { return time.Time{}.Add(time.Hour) }
	free := map[string]func(*admission.Request){
		"dry run":      func(r *admission.Request) { r.DryRun = true },
		"deletion":     func(r *admission.Request) { r.Operation = admission.Delete },
		"another kind": func(r *admission.Request) { r.Kind = corev1.SchemeGroupVersion.WithKind("Pod") },
		"events group": func(r *admission.Request) { r.Kind.Group = "events.k8s.io" },
	}
	for what, edit := range free {
		for range 3 {
			r := event("dev", "ann", "kubelet", "p")
			edit(r)
			if err := plugin.Validate(t.Context(), r); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	update := event("dev", "ann", "kubelet", "p")
	update.Operation = admission.Update
	if err := plugin.Validate(t.Context(), update); err != nil {
		t.Errorf("the first that counts: %v", err)
	}
	if err := plugin.Validate(t.Context(), event("dev", "ann", "kubelet", "p")); !apierrors.IsTooManyRequests(err) {
		t.Errorf("the second: got %v", err)
	}
}

// TestForgets: a limit remembers as many keys as its cache is big.
func TestForgets(t *testing.T) {
	p := New([]Limit{{
		Type:      Namespace,
		QPS:       1,
		Burst:     1,
		CacheSize: 2,
	}})
	p.now = func() time.Time { return time.Time{}.Add(time.Hour) }
	try := func(ns string) bool { return p.Validate(t.Context(), event(ns, "ann", "kubelet", "p")) == nil }
	if !try("a") || !try("b") || try("a") || !try("c") { // c takes the place of b
		t.Error("the limits of three namespaces are not as expected")
	}
	if !try("b") {
		t.Error("a forgotten namespace is not new")
	}
}

func FuzzRead(f *testing.F) {
	f.Add("limits: [{type: Server, qps: 1, burst: 1}]")
	f.Add("limits: [{type: User, qps: 1, burst: 1, cacheSize: -1}]")
	f.Add("limits: {}")
	f.Fuzz(func(t *testing.T, text string) {
		whole := "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins: [{name: " +
			"EventRateLimit, path: x}]"
		file, err := config.Parse([]byte(whole), []string{"EventRateLimit"}, func(string) ([]byte, error) {
			return []byte("apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n" + text), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		limits, err := Read(file.For("EventRateLimit"))
		if err != nil {
			return
		}
		for _, l := range limits {
			if l.QPS <= 0 || l.Burst <= 0 || l.CacheSize < 0 && l.Type != Server {
				t.Fatalf("%q: accepted %+v", text, l)
			}
		}
		if err := New(limits).Validate(t.Context(), event("dev", "ann", "kubelet", "p")); err != nil {
			t.Fatalf("%q: the first event: %v", text, err)
		}
	})
}
