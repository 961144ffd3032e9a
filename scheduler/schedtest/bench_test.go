// SPDX-License-Identifier: Apache-2.0

package schedtest_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/scheduler/explain"
	"keelson/scheduler/framework"
	"keelson/scheduler/schedtest"
)

func blue(s *corev1.PodSpec, anti bool, term corev1.PodAffinityTerm) {
	if s.Affinity == nil {
		s.Affinity = &corev1.Affinity{}
	}
	if anti {
		s.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}
	} else {
		s.Affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}
	}
}

var byColor = &metav1.LabelSelector{MatchLabels: map[string]string{"color": "blue"}}

// scenarios are upstream's: what a pod is like, how many there are already and how many come.
var scenarios = []struct {
	name          string
	init, measure int
	pod           func(i int) []schedtest.PodOption
}{
	{"plain", 1000, 5000, func(int) []schedtest.PodOption { return nil }},
	{"affinity", 5000, 5000, func(int) []schedtest.PodOption {
		return []schedtest.PodOption{schedtest.Labelled("color", "blue"), schedtest.With(func(s *corev1.PodSpec) {
			blue(s, false, corev1.PodAffinityTerm{LabelSelector: byColor, TopologyKey: corev1.LabelTopologyZone})
		})}
	}},
	{"spread", 5000, 5000, func(int) []schedtest.PodOption {
		return []schedtest.PodOption{schedtest.Labelled("color", "blue"), schedtest.With(func(s *corev1.PodSpec) {
			s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 5, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: byColor,
			}}
		})}
	}},
	{"spread-selected-nodes", 1000, 1000, func(int) []schedtest.PodOption {
		return []schedtest.PodOption{schedtest.Labelled("color", "blue"), schedtest.With(func(s *corev1.PodSpec) {
			s.NodeSelector = map[string]string{"pool": "p"}
			s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 30, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: byColor,
			}}
		})}
	}},
	{"antiaffinity-nsselector", 2000, 2000, func(i int) []schedtest.PodOption {
		return []schedtest.PodOption{schedtest.In(fmt.Sprintf("team-%d", i%100)), schedtest.Labelled("color", "blue"), schedtest.With(func(s *corev1.PodSpec) {
			blue(s, true, corev1.PodAffinityTerm{
				LabelSelector: byColor, TopologyKey: corev1.LabelHostname,
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "devops"}},
			})
		})}
	}},
}

// BenchmarkPlace reports pods per second through the engine, with the explanation of every attempt. Half of the pods of the
// measured part are placed before the clock starts in the scenarios that have initial pods.
func BenchmarkPlace(b *testing.B) {
	for _, nodes := range []int{1000, 5000} {
		for _, sc := range scenarios {
			if sc.name == "antiaffinity-nsselector" && nodes < sc.init+sc.measure {
				continue
			}
			b.Run(fmt.Sprintf("%s/nodes=%d", sc.name, nodes), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					h := fill(nodes)
					h.Explain = func(a *framework.Attempt) { explain.Decision(a, 1, 0) }
					for i := range sc.init {
						if h.Place(schedtest.Pod(fmt.Sprintf("init-%d", i), sc.pod(i)...)) == "" {
							b.Fatalf("initial pod %d does not fit", i)
						}
					}
					pods := make([]*corev1.Pod, sc.measure)
					for i := range pods {
						pods[i] = schedtest.Pod(fmt.Sprintf("pod-%d", i), sc.pod(i)...)
					}
					b.StartTimer()
					for i, p := range pods {
						if h.Place(p) == "" {
							b.Fatalf("pod %d does not fit: %s", i, h.Try(p).Message())
						}
					}
				}
				b.ReportMetric(float64(sc.measure*b.N)/b.Elapsed().Seconds(), "pods/s")
			})
		}
	}
}

func fill(nodes int) *schedtest.Harness {
	h := schedtest.New(1, 1)
	for i := range nodes {
		h.Add(schedtest.Node(fmt.Sprintf("node-%05d", i), schedtest.Zone(fmt.Sprintf("zone-%d", i%3)), schedtest.Labels("pool", "p")))
	}
	for i := range 100 {
		h.Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("team-%d", i), Labels: map[string]string{"team": "devops"}}})
	}
	return h
}
