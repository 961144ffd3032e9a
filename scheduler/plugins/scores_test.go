// SPDX-License-Identifier: Apache-2.0

package plugins_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	klabels "k8s.io/apimachinery/pkg/labels"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/plugins"
	"keelson/scheduler/plugins/noderesources"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

func prefersPods(weight int32, anti bool, t corev1.PodAffinityTerm) schedtest.PodOption {
	w := []corev1.WeightedPodAffinityTerm{{Weight: weight, PodAffinityTerm: t}}
	return schedtest.With(func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{}
		if anti {
			s.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: w}
		} else {
			s.Affinity.PodAffinity = &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: w}
		}
	})
}

func hasImage(name string, size int64) schedtest.NodeOption {
	return func(n *corev1.Node) {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{name}, SizeBytes: size})
	}
}

type several []any

// TestScores gives nodes in order n1, n2, ... and wants their normalized scores; nil: the plugin has nothing to say.
func TestScores(t *testing.T) {
	byDefault := plugins.PodTopologySpread{DefaultSelector: func(*corev1.Pod) klabels.Selector {
		return klabels.SelectorFromSet(app.MatchLabels)
	}}
	prefersZoneA := schedtest.With(func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
				{
					Weight: 5,
					Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}},
					}},
				},
			},
		}}
	})
	soft := corev1.TopologySpreadConstraint{
		MaxSkew:           1,
		TopologyKey:       corev1.LabelTopologyZone,
		WhenUnsatisfiable: corev1.ScheduleAnyway,
	}
	softHost := corev1.TopologySpreadConstraint{
		MaxSkew:           1,
		TopologyKey:       corev1.LabelHostname,
		WhenUnsatisfiable: corev1.ScheduleAnyway,
	}
	nowhere := func(n *corev1.Node) { delete(n.Labels, corev1.LabelHostname) }
	apps := func(count int, on string) (pods several) {
		for i := range count {
			pods = append(pods, there(fmt.Sprint(on, i), on, isApp))
		}
		return pods
	}
	zones := zonesOf("a", "b")
	tests := []struct {
		name    string
		plugin  interface{ Plugin() *framework.Plugin }
		cluster []any
		pod     *corev1.Pod
		want    []int64
	}{
		// (4000-2000)/4000 = 50 and (32-16)/32 = 50; (4000-1000)/4000 = 75 and 50.
		{
			"least allocated",
			noderesources.Fit{},
			with(zones, there("p", "n1", schedtest.Requests("1", "8Gi"))), pod(schedtest.Requests("1", "8Gi")),
			[]int64{50, 75},
		},
		{
			"most allocated",
			noderesources.Fit{Strategy: noderesources.Strategy{Rank: noderesources.MostAllocated}},
			with(zones, there("p", "n1", schedtest.Requests("1", "8Gi"))), pod(schedtest.Requests("1", "8Gi")),
			[]int64{50, 25},
		},
		{
			"requested to capacity",
			noderesources.Fit{Strategy: noderesources.Strategy{
				Rank: noderesources.RequestedToCapacity([]configv1.UtilizationShapePoint{
					{Utilization: 0, Score: 0},
					{Utilization: 50, Score: 10},
					{Utilization: 100, Score: 5},
				}),
			}},
			with(zones, there("p", "n1", schedtest.Requests("1", "8Gi"))), pod(schedtest.Requests("1", "8Gi")),
			[]int64{100, 50},
		},
		// Balance with and without the pod: 75 (cpu 3/4, memory 1/4) and 75 (2/4, 0), 100 (1/4 both) and 100.
		{
			"balance stays",
			noderesources.BalancedAllocation{},
			with(zones, there("p", "n1", schedtest.Requests("2", ""))), pod(schedtest.Requests("1", "8Gi")),
			[]int64{75, 75},
		},
		// 100 (2/4 both) and 75, 75 (0, 2/4) and 100.
		{
			"balance",
			noderesources.BalancedAllocation{},
			with(zones, there("p", "n1", schedtest.Requests("2", ""))), pod(schedtest.Requests("", "16Gi")),
			[]int64{87, 62},
		},
		{
			"balance of others",
			noderesources.BalancedAllocation{
				Resources: []corev1.ResourceName{"memory", "example.com/gpu", "cpu"},
			},
			with(zones, there("p", "n1", schedtest.Requests("2", ""))), pod(schedtest.Requests("", "16Gi")),
			[]int64{87, 62},
		},
		{
			"balanced, asks for nothing",
			noderesources.BalancedAllocation{},
			zones,
			pod(schedtest.Requests("", "")), nil,
		},
		{
			"soft taints",
			plugins.TaintToleration{},
			two([]schedtest.NodeOption{schedtest.Taint("k", "", corev1.TaintEffectPreferNoSchedule)}, nil), pod(),
			[]int64{0, 100},
		},
		{"no soft taints", plugins.TaintToleration{}, zones, pod(), nil},
		{"preferred nodes", plugins.NodeAffinity{}, zones, pod(prefersZoneA), []int64{100, 0}},
		{
			"image",
			plugins.ImageLocality{},
			two([]schedtest.NodeOption{hasImage("pause:latest", 2000<<20)}, nil),
			pod(),
			[]int64{100, 0},
		},
		{
			"small image",
			plugins.ImageLocality{},
			two([]schedtest.NodeOption{hasImage("pause:latest", 10<<20)}, nil),
			pod(),
			[]int64{0, 0},
		},
		{"no image anywhere", plugins.ImageLocality{}, zones, pod(), nil},
		{
			"prefers to be near",
			plugins.InterPodAffinity{HardWeight: 1},
			with(zones, there("p", "n1", isApp)),
			pod(prefersPods(10, false, inZone)),
			[]int64{100, 0},
		},
		{
			"prefers to be away",
			plugins.InterPodAffinity{HardWeight: 1},
			with(zones, there("p", "n1", isApp)),
			pod(prefersPods(10, true, inZone)),
			[]int64{0, 100},
		},
		{
			"is liked",
			plugins.InterPodAffinity{HardWeight: 1},
			with(zones, there("p", "n2", prefersPods(3, false, inZone))), pod(isApp),
			[]int64{0, 100},
		},
		{
			"is required",
			plugins.InterPodAffinity{HardWeight: 1},
			with(zones, there("p", "n2", isApp, requiredAffinity(inZone))), pod(isApp),
			[]int64{0, 100},
		},
		{
			// 100 * 0.29 is a little less than 29
			"is liked to several degrees",
			plugins.InterPodAffinity{HardWeight: 1},
			with(zones, node("n3"), there("p", "n1", prefersPods(100, false, inZone)),
				there("q", "n2", prefersPods(29, false, inZone))), pod(isApp),
			[]int64{100, 28, 0},
		},
		{
			"no pod has a preference",
			plugins.InterPodAffinity{HardWeight: 1},
			with(zones, there("p", "n1", isApp)), pod(isApp),
			nil,
		},
		{
			"soft spread",
			plugins.PodTopologySpread{},
			with(zones, there("p", "n1", isApp), there("q", "n1", isApp)),
			pod(isApp, spreads(soft)),
			[]int64{0, 100},
		},
		{
			"soft spread, key missing",
			plugins.PodTopologySpread{},
			with(zones, node("n3")),
			pod(isApp, spreads(soft)),
			[]int64{100, 100, 0},
		},
		// 4 ln 4 twice make 11, against 3: the third zone has no node that counts.
		{
			"soft spread, key missing on some",
			plugins.PodTopologySpread{},
			with(zones, node("n3", schedtest.Zone("c"), nowhere), apps(4, "n1"), apps(1, "n2")),
			pod(isApp, spreads(soft), spreads(softHost)),
			[]int64{27, 100, 0},
		},
		// 3 ln 5 + 2 and 3 ln 5 + 4 make 16, against 6 and 2: no zone is a third one.
		{
			"byDefault, no zone on some", byDefault, with(zones, node("n3"), apps(3, "n1")), pod(isApp),
			[]int64{12, 75, 100},
		},
		// ln 4 + 2 and ln 4 + 4 make 9, against 6.
		{"byDefault", byDefault, with(zones, there("p", "n1", isApp)), pod(isApp), []int64{66, 100}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			h := schedtest.New(1, 1)
			for _, o := range tc.cluster {
				if pods, ok := o.(several); ok {
					h.Add(pods...)
				} else {
					h.Add(o)
				}
			}
			s := h.Cache.Refresh()
			nodes := make([]*state.NodeInfo, 0, len(s.Nodes))
			for _, name := range []string{"n1", "n2", "n3"} {
				if n := s.Node(name); n != nil {
					nodes = append(nodes, n)
				}
			}
			scorer := tc.plugin.Plugin().PreScore(nil, state.NewPodInfo(tc.pod), s, nodes)
			if scorer.Score == nil {
				if tc.want != nil {
					t.Fatalf("nothing to say, want %v", tc.want)
				}
				return
			}
			got := make([]int64, 0, len(nodes))
			for _, n := range nodes {
				got = append(got, scorer.Score(n))
			}
			if scorer.Normalize != nil {
				scorer.Normalize(got)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("scores (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAmount(t *testing.T) {
	tests := []struct {
		name corev1.ResourceName
		n    int64
		want string
	}{
		{corev1.ResourceCPU, 4000, "4"},
		{corev1.ResourceCPU, 1500, "1500m"},
		{corev1.ResourceMemory, 4 << 30, "4Gi"},
		{corev1.ResourceMemory, 1<<30 + 300<<20, "1.2Gi"},
		{corev1.ResourceMemory, 0, "0"},
		{corev1.ResourceMemory, 512 << 20, "512Mi"},
		{"x.io/gpu", 3, "3"},
	}
	for _, tc := range tests {
		if got := noderesources.Amount(tc.name, tc.n); got != tc.want {
			t.Errorf("Amount(%s, %d) = %q, want %q", tc.name, tc.n, got, tc.want)
		}
	}
}

func TestHints(t *testing.T) {
	small := node("n", schedtest.Allocatable(corev1.ResourceCPU, "1"))
	large := node("n")
	big := pod(schedtest.Requests("2", ""))
	tests := []struct {
		name   string
		plugin interface{ Plugin() *framework.Plugin }
		pod    *corev1.Pod
		event  framework.Event
		worth  bool
	}{
		{
			"node grows enough", noderesources.Fit{}, big, framework.Event{
				Kinds:   framework.NodeAllocatable,
				OldNode: small,
				NewNode: large,
			}, true,
		},
		{
			"node grows too little", noderesources.Fit{}, big, framework.Event{
				Kinds:   framework.NodeAllocatable,
				OldNode: small,
				NewNode: small,
			}, false,
		},
		{
			"pod leaves", noderesources.Fit{}, big, framework.Event{
				Kinds:  framework.AssignedPodDelete,
				OldPod: there("p", "n"),
			}, true,
		},
		{
			"labels, to resources", noderesources.Fit{}, big, framework.Event{
				Kinds:   framework.NodeLabels,
				NewNode: large,
			}, false,
		},
		{
			"matching label", plugins.NodeAffinity{}, pod(selector("a", "b")), framework.Event{
				Kinds:   framework.NodeLabels,
				NewNode: node("n", schedtest.Labels("a", "b")),
			}, true,
		},
		{
			"other label", plugins.NodeAffinity{}, pod(selector("a", "b")), framework.Event{
				Kinds:   framework.NodeLabels,
				NewNode: node("n"),
			}, false,
		},
		{
			"taint goes", plugins.TaintToleration{}, pod(), framework.Event{
				Kinds:   framework.NodeTaints,
				NewNode: node("n"),
			}, true,
		},
		{
			"taint stays", plugins.TaintToleration{}, pod(), framework.Event{
				Kinds:   framework.NodeTaints,
				NewNode: node("n", schedtest.Taint("k", "", corev1.TaintEffectNoSchedule)),
			}, false,
		},
		{
			"feature declared", plugins.NodeDeclaredFeatures{}, pod(restartsAll), framework.Event{
				Kinds: framework.NodeDeclaredFeatures,
				NewNode: node("n", func(n *corev1.Node) {
					n.Status.DeclaredFeatures = []string{"RestartAllContainersOnContainerExits"}
				}),
			}, true,
		},
		{
			"other feature declared", plugins.NodeDeclaredFeatures{}, pod(restartsAll), framework.Event{
				Kinds:   framework.NodeDeclaredFeatures,
				NewNode: node("n"),
			}, false,
		},
		{
			"uncordoned", plugins.NodeUnschedulable{}, pod(), framework.Event{
				Kinds:   framework.NodeTaints,
				NewNode: node("n"),
			}, true,
		},
		{
			"port given back", plugins.NodePorts{}, pod(schedtest.HostPort("", "TCP", 80)), framework.Event{
				Kinds:  framework.AssignedPodDelete,
				OldPod: there("p", "n", schedtest.HostPort("", "TCP", 80)),
			}, true,
		},
		{
			"other port given back", plugins.NodePorts{}, pod(schedtest.HostPort("", "TCP", 80)), framework.Event{
				Kinds:  framework.AssignedPodDelete,
				OldPod: there("p", "n", schedtest.HostPort("", "TCP", 81)),
			}, false,
		},
		{
			"friend arrives", plugins.InterPodAffinity{HardWeight: 1}, pod(requiredAffinity(inZone)), framework.Event{
				Kinds:  framework.AssignedPodAdd,
				NewPod: there("p", "n", isApp),
			}, true,
		},
		{
			"stranger arrives", plugins.InterPodAffinity{HardWeight: 1}, pod(requiredAffinity(inZone)), framework.Event{
				Kinds:  framework.AssignedPodAdd,
				NewPod: there("p", "n"),
			}, false,
		},
		{
			"foe leaves", plugins.InterPodAffinity{HardWeight: 1}, pod(requiredAntiAffinity(inZone)), framework.Event{
				Kinds:  framework.AssignedPodDelete,
				OldPod: there("p", "n", isApp),
			}, true,
		},
		{
			"who kept it away leaves", plugins.InterPodAffinity{HardWeight: 1}, pod(isApp), framework.Event{
				Kinds:  framework.AssignedPodDelete,
				OldPod: there("p", "n", requiredAntiAffinity(inZone)),
			}, true,
		},
		{
			"one of the kind leaves",
			plugins.PodTopologySpread{},
			pod(isApp, spreads(corev1.TopologySpreadConstraint{TopologyKey: "z"})),
			framework.Event{
				Kinds:  framework.AssignedPodDelete,
				OldPod: there("p", "n", isApp),
			},
			true,
		},
		{
			"another leaves",
			plugins.PodTopologySpread{},
			pod(isApp, spreads(corev1.TopologySpreadConstraint{TopologyKey: "z"})),
			framework.Event{
				Kinds:  framework.AssignedPodDelete,
				OldPod: there("p", "n"),
			},
			false,
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			info := state.NewPodInfo(tc.pod)
			worth := false
			for _, h := range tc.plugin.Plugin().Events {
				if h.Kinds&tc.event.Kinds != 0 && (h.QueueingHintFn == nil || h.QueueingHintFn(info, &tc.event)) {
					worth = true
				}
			}
			if worth != tc.worth {
				t.Errorf("worth a try = %v, want %v", worth, tc.worth)
			}
		})
	}
}
