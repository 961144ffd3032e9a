// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func namespaceWith(annotations map[string]string) cache {
	return cacheOf(map[schema.GroupVersionResource][]runtime.Object{namespaces: {&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "dev", Annotations: annotations}}}})
}

func TestPodNodeSelector(t *testing.T) {
	for _, c := range []struct {
		what       string
		annotation map[string]string
		selectors  map[string]string
		pod        map[string]string
		want       map[string]string
		refused    string
	}{
		{"nothing said", nil, nil, map[string]string{"a": "b"}, map[string]string{"a": "b"}, ""},
		{"the cluster's", nil, map[string]string{DefaultNodeSelector: "env=x"}, nil, map[string]string{"env": "x"}, ""},
		{"the namespace's first", map[string]string{namespaceNodeSelector: "env=y"}, map[string]string{DefaultNodeSelector: "env=x"}, map[string]string{"a": "b"}, map[string]string{"env": "y", "a": "b"}, ""},
		{"the namespace wants none", map[string]string{namespaceNodeSelector: ""}, map[string]string{DefaultNodeSelector: "env=x"}, nil, nil, ""},
		{"another than the namespace's", map[string]string{namespaceNodeSelector: "env=y"}, nil, map[string]string{"env": "z"}, nil, "pod node label selector conflicts with its namespace node label selector"},
		{"allowed", nil, map[string]string{"dev": "env=x,a=b"}, map[string]string{"a": "b"}, map[string]string{"a": "b"}, ""},
		{"not allowed", nil, map[string]string{"dev": "env=x"}, map[string]string{"a": "b"}, nil, "pod node label selector labels conflict with its namespace whitelist"},
	} {
		p := pod()
		p.Spec.NodeSelector = c.pod
		err := PodNodeSelector{Reader: namespaceWith(c.annotation), Selectors: c.selectors}.Admit(t.Context(), creation(p))
		if c.refused != "" {
			wantForbidden(t, c.what, err, c.refused)
			continue
		}
		if d := cmp.Diff(c.want, p.Spec.NodeSelector); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", c.what, err, d)
		}
	}
}

func TestPodTolerationRestriction(t *testing.T) {
	one := func(key string) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpEqual, Value: "v", Effect: corev1.TaintEffectNoSchedule}
	}
	pressure := corev1.Toleration{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
	for _, c := range []struct {
		what        string
		annotations map[string]string
		plugin      PodTolerationRestriction
		burstable   bool
		pod, want   []corev1.Toleration
		refused     string
	}{
		{what: "nothing said", pod: []corev1.Toleration{one("a")}, want: []corev1.Toleration{one("a")}},
		{what: "the cluster's", plugin: PodTolerationRestriction{Default: []corev1.Toleration{one("c")}}, pod: []corev1.Toleration{one("a")}, want: []corev1.Toleration{one("a"), one("c")}},
		{
			what: "the namespace's first", annotations: map[string]string{namespaceTolerations: `[{"key":"n","operator":"Equal","value":"v","effect":"NoSchedule"}]`},
			plugin: PodTolerationRestriction{Default: []corev1.Toleration{one("c")}}, want: []corev1.Toleration{one("n")},
		},
		{what: "the namespace wants none", annotations: map[string]string{namespaceTolerations: ""}, plugin: PodTolerationRestriction{Default: []corev1.Toleration{one("c")}}},
		{what: "asks for memory", burstable: true, want: []corev1.Toleration{pressure}},
		{
			what: "what another covers goes", plugin: PodTolerationRestriction{Default: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}, pod: []corev1.Toleration{one("a")},
			want: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
		{what: "allowed by the cluster", plugin: PodTolerationRestriction{Whitelist: []corev1.Toleration{one("a")}}, pod: []corev1.Toleration{one("a")}, want: []corev1.Toleration{one("a")}},
		{
			what: "not allowed by the cluster", plugin: PodTolerationRestriction{Whitelist: []corev1.Toleration{one("b")}}, pod: []corev1.Toleration{one("a")},
			refused: "pod tolerations (possibly merged with namespace default tolerations) conflict with its cluster whitelist",
		},
		{
			what: "not allowed by the namespace", annotations: map[string]string{namespaceWhitelist: `[{"key":"b","operator":"Exists"}]`},
			plugin: PodTolerationRestriction{Whitelist: []corev1.Toleration{one("a")}}, pod: []corev1.Toleration{one("a")},
			refused: "pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist",
		},
		{
			what: "the namespace allows all", annotations: map[string]string{namespaceWhitelist: ""}, plugin: PodTolerationRestriction{Whitelist: []corev1.Toleration{one("b")}},
			pod: []corev1.Toleration{one("a")}, want: []corev1.Toleration{one("a")},
		},
	} {
		p := pod()
		p.Spec.Tolerations = c.pod
		for i := range p.Spec.Containers {
			p.Spec.Containers[i].Resources = corev1.ResourceRequirements{}
		}
		if c.burstable {
			p.Spec.Containers[0].Resources.Requests = quantities("memory", "1Mi")
		}
		c.plugin.Reader = namespaceWith(c.annotations)
		err := c.plugin.Admit(t.Context(), creation(p))
		if c.refused != "" {
			if err == nil || err.Error() != c.refused {
				t.Errorf("%s: got %v", c.what, err)
			}
			continue
		}
		if d := cmp.Diff(c.want, p.Spec.Tolerations); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", c.what, err, d)
		}
	}
}

func TestNamespaceAutoProvision(t *testing.T) {
	var made []string
	answer := error(nil)
	at := func(there cache) NamespaceAutoProvision {
		return NamespaceAutoProvision{Reader: there, Create: func(_ context.Context, ns *corev1.Namespace) error {
			made = append(made, ns.Name)
			return answer
		}}
	}
	empty := cacheOf(map[schema.GroupVersionResource][]runtime.Object{})
	dry, update := creation(pod()), creation(pod())
	dry.DryRun, update.Operation = true, Update
	for what, err := range map[string]error{
		"there": at(namespaceWith(nil)).Admit(t.Context(), creation(pod())), "nothing is stored": at(empty).Admit(t.Context(), dry),
		"an update": at(empty).Admit(t.Context(), update),
	} {
		if err != nil || len(made) > 0 {
			t.Errorf("%s: made %q, %v", what, made, err)
		}
	}
	if err := at(empty).Admit(t.Context(), creation(pod())); err != nil || !cmp.Equal(made, []string{"dev"}) {
		t.Errorf("missing: made %q, %v", made, err)
	}
	answer = apierrors.NewAlreadyExists(namespaces.GroupResource(), "dev")
	if err := at(empty).Admit(t.Context(), creation(pod())); err != nil {
		t.Errorf("another was faster: %v", err)
	}
	answer = errors.New("the store is full")
	wantForbidden(t, "cannot be made", at(empty).Admit(t.Context(), creation(pod())), "the store is full")
}
