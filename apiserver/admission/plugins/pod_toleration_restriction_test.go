// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"keelson/apiserver/admission/admissiontest"
)

func TestPodTolerationRestriction(t *testing.T) {
	one := func(key string) corev1.Toleration {
		return corev1.Toleration{
			Key:      key,
			Operator: corev1.TolerationOpEqual,
			Value:    "v",
			Effect:   corev1.TaintEffectNoSchedule,
		}
	}
	pressure := corev1.Toleration{
		Key:      corev1.TaintNodeMemoryPressure,
		Operator: corev1.TolerationOpExists,
		Effect:   corev1.TaintEffectNoSchedule,
	}
	for _, c := range []struct {
		what        string
		annotations map[string]string
		plugin      podTolerationRestriction
		burstable   bool
		pod, want   []corev1.Toleration
		refused     string
	}{
		{what: "nothing said", pod: []corev1.Toleration{one("a")}, want: []corev1.Toleration{one("a")}},
		{
			what:   "the cluster's",
			plugin: podTolerationRestriction{Default: []corev1.Toleration{one("c")}},
			pod:    []corev1.Toleration{one("a")},
			want:   []corev1.Toleration{one("a"), one("c")},
		},
		{
			what: "the namespace's first",
			annotations: map[string]string{
				namespaceTolerations: `[{"key":"n","operator":"Equal","value":"v","effect":"NoSchedule"}]`,
			},
			plugin: podTolerationRestriction{Default: []corev1.Toleration{one("c")}},
			want:   []corev1.Toleration{one("n")},
		},
		{
			what:        "the namespace wants none",
			annotations: map[string]string{namespaceTolerations: ""},
			plugin:      podTolerationRestriction{Default: []corev1.Toleration{one("c")}},
		},
		{what: "asks for memory", burstable: true, want: []corev1.Toleration{pressure}},
		{
			what:   "what another covers goes",
			plugin: podTolerationRestriction{Default: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}},
			pod:    []corev1.Toleration{one("a")},
			want:   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
		{
			what:   "allowed by the cluster",
			plugin: podTolerationRestriction{Whitelist: []corev1.Toleration{one("a")}},
			pod:    []corev1.Toleration{one("a")},
			want:   []corev1.Toleration{one("a")},
		},
		{
			what:   "not allowed by the cluster",
			plugin: podTolerationRestriction{Whitelist: []corev1.Toleration{one("b")}},
			pod:    []corev1.Toleration{one("a")},
			refused: "pod tolerations (possibly merged with namespace default tolerations) conflict with its cluster " +
				"whitelist",
		},
		{
			what:        "not allowed by the namespace",
			annotations: map[string]string{namespaceWhitelist: `[{"key":"b","operator":"Exists"}]`},
			plugin:      podTolerationRestriction{Whitelist: []corev1.Toleration{one("a")}},
			pod:         []corev1.Toleration{one("a")},
			refused: "pod tolerations (possibly merged with namespace default tolerations) conflict with its " +
				"namespace whitelist",
		},
		{
			what:        "the namespace allows all",
			annotations: map[string]string{namespaceWhitelist: ""},
			plugin:      podTolerationRestriction{Whitelist: []corev1.Toleration{one("b")}},
			pod:         []corev1.Toleration{one("a")},
			want:        []corev1.Toleration{one("a")},
		},
	} {
		p := admissiontest.Pod()
		p.Spec.Tolerations = c.pod
		for i := range p.Spec.Containers {
			p.Spec.Containers[i].Resources = corev1.ResourceRequirements{}
		}
		if c.burstable {
			p.Spec.Containers[0].Resources.Requests = admissiontest.Quantities("memory", "1Mi")
		}
		c.plugin.Reader = namespaceWith(c.annotations)
		err := c.plugin.Admit(t.Context(), admissiontest.Creation(p))
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
