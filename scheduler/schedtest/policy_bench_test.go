// SPDX-License-Identifier: Apache-2.0

package schedtest_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/policy"
	"keelson/scheduler/schedtest"
)

// BenchmarkPolicies reports pods per second in a cluster of 5,000 nodes without a policy and with one.
func BenchmarkPolicies(b *testing.B) {
	filter := func(e string) policy.Spec { return policy.Spec{Filters: []policy.Filter{{Expression: e}}} }
	for _, tt := range []struct {
		name string
		spec policy.Spec
	}{
		{"none", policy.Spec{}},
		{
			"of-others", policy.Spec{
				PodSelector: &metav1.LabelSelector{
					MatchLabels: map[string]string{"app": "none"},
				},
				Filters: filter("false").Filters,
			},
		},
		{"labels", filter("node.labels['pool'] == 'p' || pod.priority > 1000")},
		{"labels-unremembered", filter("node.labels['pool'] == 'p' || pod.name == 'x'")},
		{"free", filter("node.free['memory'].isGreaterThan(quantity('1Gi'))")},
		{"score", policy.Spec{Scores: []policy.Score{{Expression: "node.labels['pool'] == 'p'"}}}},
	} {
		b.Run(tt.name, func(b *testing.B) {
			const pods = 2000
			for b.Loop() {
				b.StopTimer()
				var more []framework.Weighted
				if tt.name != "none" {
					p, errs := policy.Compile(tt.name, &tt.spec, field.NewPath("spec"))
					if len(errs) > 0 {
						b.Fatal(errs.ToAggregate())
					}
					more = append(more, framework.Weighted{
						Plugin: (&plugins.CELPolicy{Own: []*policy.Policy{p}}).Plugin(),
						Weight: 1,
					})
				}
				harness := schedtest.New(1, 1, more...)
				for i := range 5000 {
					harness.Add(schedtest.Node(fmt.Sprintf("node-%05d", i), schedtest.Zone(fmt.Sprintf("zone-%d", i%3)),
						schedtest.Labels("pool", "p")))
				}
				all := make([]*corev1.Pod, pods)
				for i := range all {
					all[i] = schedtest.Pod(fmt.Sprintf("pod-%d", i))
				}
				b.StartTimer()
				for i, p := range all {
					if harness.Place(p) == "" {
						b.Fatalf("pod %d does not fit: %s", i, harness.Try(p).Message())
					}
				}
			}
			b.ReportMetric(float64(pods*b.N)/b.Elapsed().Seconds(), "pods/s")
		})
	}
}
