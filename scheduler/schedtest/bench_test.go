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
		s.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term},
		}
	} else {
		s.Affinity.PodAffinity = &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term},
		}
	}
}

var byColor = &metav1.LabelSelector{MatchLabels: map[string]string{"color": "blue"}}

// plain is a pod of upstream's benchmarks with nothing special about it.
func plain(int) []schedtest.PodOption { return nil }

func colored(color string, change func(s *corev1.PodSpec, term corev1.PodAffinityTerm)) func(
	int,
) []schedtest.PodOption {
	term := corev1.PodAffinityTerm{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"color": color}},
		TopologyKey:   corev1.LabelHostname,
	}
	return func(int) []schedtest.PodOption {
		return []schedtest.PodOption{schedtest.Labelled("color", color), schedtest.With(func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{}
			change(s, term)
		})}
	}
}

func spread(action corev1.UnsatisfiableConstraintAction) func(int) []schedtest.PodOption {
	return colored("blue", func(s *corev1.PodSpec, term corev1.PodAffinityTerm) {
		s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew:           5,
			TopologyKey:       corev1.LabelTopologyZone,
			WhenUnsatisfiable: action,
			LabelSelector:     term.LabelSelector,
		}}
	})
}

// scenarios are upstream's: what pods are like that are there already and that come, and how many.
var scenarios = []struct {
	name          string
	nodes         int // 0: 1000 and 5000
	init, measure int
	first, pod    func(i int) []schedtest.PodOption // first nil: as pod
}{
	{
		name:    "plain",
		init:    1000,
		measure: 10000,
		pod:     plain,
	},
	{
		name:    "node-affinity",
		init:    5000,
		measure: 10000,
		pod: func(int) []schedtest.PodOption {
			return []schedtest.PodOption{schedtest.With(func(s *corev1.PodSpec) {
				s.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
						NodeSelectorTerms: []corev1.NodeSelectorTerm{
							{MatchExpressions: []corev1.NodeSelectorRequirement{{
								Key:      corev1.LabelTopologyZone,
								Operator: corev1.NodeSelectorOpIn,
								Values:   []string{"zone-0", "zone-1", "zone-2"},
							}}},
						},
					},
				}}
			})}
		},
	},
	{
		name:    "pod-affinity",
		init:    5000,
		measure: 5000,
		pod: colored("blue", func(s *corev1.PodSpec, term corev1.PodAffinityTerm) {
			term.TopologyKey = corev1.LabelTopologyZone
			s.Affinity.PodAffinity = &corev1.PodAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term},
			}
		}),
	},
	{
		name:    "preferred-affinity",
		init:    5000,
		measure: 5000,
		pod: colored("red", func(s *corev1.PodSpec, term corev1.PodAffinityTerm) {
			s.Affinity.PodAffinity = &corev1.PodAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
					{Weight: 1, PodAffinityTerm: term},
				},
			}
		}),
	},
	{
		name:    "preferred-anti-affinity",
		init:    5000,
		measure: 5000,
		pod: colored("yellow", func(s *corev1.PodSpec, term corev1.PodAffinityTerm) {
			s.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
					{Weight: 1, PodAffinityTerm: term},
				},
			}
		}),
	},
	{
		name:    "anti-affinity-nsselector",
		nodes:   6000,
		init:    4000,
		measure: 2000,
		pod: func(i int) []schedtest.PodOption {
			return []schedtest.PodOption{schedtest.In(fmt.Sprintf("team-%d", i%100)), schedtest.Labelled("color",
				"blue"), schedtest.With(func(s *corev1.PodSpec) {
				blue(s, true, corev1.PodAffinityTerm{
					LabelSelector:     byColor,
					TopologyKey:       corev1.LabelHostname,
					NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "devops"}},
				})
			})}
		},
	},
	{
		name:    "anti-affinity",
		nodes:   5000,
		init:    1000,
		measure: 2000,
		pod: colored("green", func(s *corev1.PodSpec, term corev1.PodAffinityTerm) {
			s.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term},
			}
		}),
	},
	{
		name:    "spread-hard",
		init:    5000,
		measure: 5000,
		first:   plain,
		pod:     spread(corev1.DoNotSchedule),
	},
	{
		name:    "spread-soft",
		init:    5000,
		measure: 5000,
		first:   plain,
		pod:     spread(corev1.ScheduleAnyway),
	},
	{
		name:    "spread-selected-nodes",
		init:    1000,
		measure: 1000,
		pod: func(int) []schedtest.PodOption {
			return []schedtest.PodOption{schedtest.Labelled("color", "blue"), schedtest.With(func(s *corev1.PodSpec) {
				s.NodeSelector = map[string]string{"pool": "p"}
				s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
					MaxSkew:           30,
					TopologyKey:       corev1.LabelHostname,
					WhenUnsatisfiable: corev1.DoNotSchedule,
					LabelSelector:     byColor,
				}}
			})}
		},
	},
	// As the default spreading by a service has it.
	{
		name:    "spread-default",
		nodes:   5000,
		init:    5000,
		measure: 20000,
		first:   plain,
		pod: colored("blue", func(s *corev1.PodSpec, term corev1.PodAffinityTerm) {
			s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
				{
					MaxSkew:           3,
					TopologyKey:       corev1.LabelHostname,
					WhenUnsatisfiable: corev1.ScheduleAnyway,
					LabelSelector:     term.LabelSelector,
				},
				{
					MaxSkew:           5,
					TopologyKey:       corev1.LabelTopologyZone,
					WhenUnsatisfiable: corev1.ScheduleAnyway,
					LabelSelector:     term.LabelSelector,
				},
			}
		}),
	},
	// No two pods ask for the same: nothing is shared.
	{
		name:    "all-different",
		nodes:   5000,
		init:    1000,
		measure: 2000,
		pod: func(i int) []schedtest.PodOption {
			return []schedtest.PodOption{
				schedtest.Requests(fmt.Sprintf("%dm", 100+i%1000), fmt.Sprintf("%dMi", 100+i/1000)),
			}
		},
	},
}

// BenchmarkPlace reports pods per second through the engine, with the explanation of every attempt: no queue, no
// server.
func BenchmarkPlace(b *testing.B) {
	for _, sc := range scenarios {
		for _, nodes := range []int{1000, 5000, 6000} {
			if sc.nodes != nodes && (sc.nodes != 0 || nodes == 6000) {
				continue
			}
			first := sc.pod
			if sc.first != nil {
				first = sc.first
			}
			b.Run(fmt.Sprintf("%s/nodes=%d", sc.name, nodes), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					harness := fill(nodes)
					harness.Explain = func(a *framework.Attempt) { explain.Decision(a, 1, 0) }
					for i := range sc.init {
						if harness.Place(schedtest.Pod(fmt.Sprintf("init-%d", i), first(i)...)) == "" {
							b.Fatalf("initial pod %d does not fit", i)
						}
					}
					pods := make([]*corev1.Pod, sc.measure)
					for i := range pods {
						pods[i] = schedtest.Pod(fmt.Sprintf("pod-%d", i), sc.pod(i)...)
					}
					b.StartTimer()
					for i, p := range pods {
						if harness.Place(p) == "" {
							b.Fatalf("pod %d does not fit: %s", i, harness.Try(p).Message())
						}
					}
				}
				b.ReportMetric(float64(sc.measure*b.N)/b.Elapsed().Seconds(), "pods/s")
			})
		}
	}
}

func fill(nodes int) *schedtest.Harness {
	harness := schedtest.New(1, 1)
	for i := range nodes {
		harness.Add(schedtest.Node(fmt.Sprintf("node-%05d", i), schedtest.Zone(fmt.Sprintf("zone-%d", i%3)),
			schedtest.Labels("pool", "p")))
	}
	for i := range 100 {
		harness.Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name:   fmt.Sprintf("team-%d", i),
			Labels: map[string]string{"team": "devops"},
		}})
	}
	return harness
}

// BenchmarkRefuse reports attempts per second of pods that fit on no node of 5,000, each full of pods of no less
// importance, with their explanation.
func BenchmarkRefuse(b *testing.B) {
	harness := fill(5000)
	harness.Explain = func(a *framework.Attempt) { explain.Decision(a, 1, 0) }
	for i := range 20000 {
		harness.Place(schedtest.Pod(fmt.Sprintf("init-%d", i)))
	}
	pods := make([]*corev1.Pod, 1000)
	for i := range pods {
		pods[i] = schedtest.Pod(fmt.Sprintf("pod-%d", i), schedtest.Requests("9", "500Mi"))
	}
	for b.Loop() {
		for _, p := range pods {
			if node := harness.Place(p); node != "" {
				b.Fatalf("%s fits on %s", p.Name, node)
			}
		}
	}
	b.ReportMetric(float64(len(pods)*b.N)/b.Elapsed().Seconds(), "attempts/s")
}
