// SPDX-License-Identifier: Apache-2.0

package noderesources_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/plugins/noderesources"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// TestFreedRoom: which pods are tried again when a pod has left a node of 4 CPUs.
func TestFreedRoom(t *testing.T) {
	pod := func(name, cpu string, priority int32) *corev1.Pod {
		return schedtest.Pod(name, schedtest.Requests(cpu, ""), schedtest.Priority(priority))
	}
	never := pod("p", "4", 5)
	never.Spec.PreemptionPolicy = new(corev1.PreemptNever)
	tests := []struct {
		name         string
		pod, left    *corev1.Pod
		stay, coming []*corev1.Pod
		unknown      bool
		want         bool
	}{
		{
			name: "it fits now",
			pod:  pod("p", "3", 0),
			left: pod("x", "1", 0),
			stay: []*corev1.Pod{pod("a", "1", 0)},
			want: true,
		},
		{
			name: "too little room",
			pod:  pod("p", "3", 0),
			left: pod("x", "1", 0),
			stay: []*corev1.Pod{pod("a", "2", 0)},
		},
		{
			name:   "kept for a pod of its priority",
			pod:    pod("p", "3", 5),
			left:   pod("x", "4", 0),
			coming: []*corev1.Pod{pod("q", "4", 5)},
		},
		{
			name:   "kept for a more important pod, but enough for both",
			pod:    pod("p", "1", 5),
			left:   pod("x", "4", 0),
			coming: []*corev1.Pod{pod("q", "3", 9)},
			want:   true,
		},
		{
			name:   "kept for a less important pod",
			pod:    pod("p", "3", 5),
			left:   pod("x", "4", 0),
			coming: []*corev1.Pod{pod("q", "4", 4)},
			want:   true,
		},
		{
			name:   "kept for itself",
			pod:    pod("p", "4", 5),
			left:   pod("x", "4", 0),
			coming: []*corev1.Pod{pod("p", "4", 5)},
			want:   true,
		},
		{
			name: "a victim has left, others are there",
			pod:  pod("p", "4", 5),
			left: pod("x", "2", 0),
			stay: []*corev1.Pod{pod("a", "2", 0)},
		},
		{
			name: "nothing keeps it any more from driving others away",
			pod:  pod("p", "4", 5),
			left: pod("x", "2", 5),
			stay: []*corev1.Pod{pod("a", "2", 0)},
			want: true,
		},
		{
			name: "more important pods stay",
			pod:  pod("p", "4", 5),
			left: pod("x", "2", 5),
			stay: []*corev1.Pod{pod("a", "1", 0), pod("b", "1", 7)},
		},
		{
			name: "it preempts no pod",
			pod:  never,
			left: pod("x", "2", 5),
			stay: []*corev1.Pod{pod("a", "2", 0)},
		},
		{
			name:    "the room is unknown",
			pod:     pod("p", "9", 0),
			left:    pod("x", "1", 0),
			unknown: true,
			want:    true,
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			infos := func(pods []*corev1.Pod) (out []*state.PodInfo) {
				for _, p := range pods {
					out = append(out, state.NewPodInfo(p))
				}
				return out
			}
			e := &framework.Event{Kinds: framework.AssignedPodDelete, OldPod: tc.left}
			if !tc.unknown {
				e.NodeView = &state.NodeView{
					Node:      state.NewNodeInfo(schedtest.Node("n"), infos(tc.stay)...),
					Nominated: infos(tc.coming),
				}
			}
			got := false
			for _, h := range (noderesources.Fit{}).Plugin().Events {
				got = got || h.Match(e) && (h.QueueingHintFn == nil || h.QueueingHintFn(state.NewPodInfo(tc.pod), e))
			}
			if got != tc.want {
				t.Errorf("worth a try = %v, want %v", got, tc.want)
			}
		})
	}
}

// TestFitLeavesDevicesToClaims: a resource that a DeviceClass serves is not missed on a node that has none of it; on
// one that offers it, it is counted.
func TestFitLeavesDevicesToClaims(t *testing.T) {
	const card = "example.com/card"
	offers := func(n int64) *corev1.Node {
		node := schedtest.Node("n")
		node.Status.Allocatable = node.Status.Allocatable.DeepCopy()
		node.Status.Allocatable[card] = *resource.NewQuantity(n, resource.DecimalSI)
		return node
	}
	pod := schedtest.Pod("p", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{card: resource.MustParse("2")}
	})
	served := noderesources.Fit{DeviceClass: func(name corev1.ResourceName) string {
		return map[corev1.ResourceName]string{card: "cards"}[name]
	}}
	for _, tt := range []struct {
		name   string
		plugin noderesources.Fit
		node   *corev1.Node
		want   bool
	}{
		{"served", served, schedtest.Node("n"), true},
		{"served, and the node's is gone", served, offers(0), true},
		{"the node has too little", served, offers(1), false},
		{"the node has enough", served, offers(2), true},
		{"not served", noderesources.Fit{}, schedtest.Node("n"), false},
	} {
		info := state.NewPodInfo(pod)
		filter, _ := tt.plugin.Plugin().PreFilter(nil, info, nil)
		if st := filter.Filter(state.NewNodeInfo(tt.node)); (st == nil) != tt.want {
			t.Errorf("%s: %v, want a fit: %v", tt.name, st, tt.want)
		}
	}
}

// countedGPUs are 4 devices of example.com/gpu, of which 1 is allocated, on the node devices.
func countedGPUs(name corev1.ResourceName) func(*corev1.Node) (all, allocated int64) {
	if name != "example.com/gpu" {
		return nil
	}
	return func(n *corev1.Node) (all, allocated int64) {
		return map[string]int64{"devices": 4}[n.Name], 1
	}
}

// TestScoresOfDevices: an extended resource that devices serve is scored by the devices of a node, and one that a node
// offers itself by that offer; by each strategy, and by the balance of resources.
func TestScoresOfDevices(t *testing.T) {
	const gpu = "example.com/gpu"
	strategy := func(rank func(taken, offers int64) int64) *framework.Plugin {
		return noderesources.Fit{
			Strategy: noderesources.Strategy{Resources: []noderesources.WeightedResource{{Name: gpu, Weight: 1}}, Rank: rank},
			Devices:  countedGPUs,
		}.Plugin()
	}
	pod := state.NewPodInfo(schedtest.Pod("p", schedtest.With(func(s *corev1.PodSpec) {
		s.Containers[0].Resources.Requests = corev1.ResourceList{
			gpu: resource.MustParse("1"), corev1.ResourceCPU: resource.MustParse("1"),
		}
	})))
	devices := schedtest.Node("devices") // 1 of 4 is allocated, and 1 is asked for
	none := schedtest.Node("none")
	own := schedtest.Node("offers", schedtest.Allocatable(gpu, "10"))
	for name, tt := range map[string]struct {
		plugin *framework.Plugin
		want   map[*corev1.Node]int64
	}{
		"most":  {strategy(noderesources.MostAllocated), map[*corev1.Node]int64{devices: 50, none: 0, own: 10}},
		"least": {strategy(noderesources.LeastAllocated), map[*corev1.Node]int64{devices: 50, none: 0, own: 90}},
		"ratio": {
			strategy(noderesources.RequestedToCapacity([]configv1.UtilizationShapePoint{
				{Utilization: 0, Score: 0},
				{Utilization: 100, Score: 10},
			})),
			map[*corev1.Node]int64{devices: 50, none: 0, own: 10},
		},
		"balance": {
			noderesources.BalancedAllocation{
				Resources: []corev1.ResourceName{corev1.ResourceCPU, gpu},
				Devices:   countedGPUs,
			}.Plugin(),
			// With the pod 1/4 of cpu and 2/4 of devices are taken, without it 0 and 1/4: the deviation stays 1/8. One
			// resource has no deviation. With its own offer a node has 1/4 and 1/10 with the pod, and 0 and 0 without.
			map[*corev1.Node]int64{devices: 75, none: 75, own: 71},
		},
	} {
		scorer := tt.plugin.PreScore(nil, pod, nil, nil)
		if scorer.NodeLocal {
			t.Errorf("%s: the score depends on devices, and is said to depend on the node alone", name)
		}
		for node, want := range tt.want {
			if got := scorer.Score(state.NewNodeInfo(node)); got != want {
				t.Errorf("%s, node %s: score %d, want %d", name, node.Name, got, want)
			}
		}
	}
}
