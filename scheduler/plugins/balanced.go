// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// NodeResourcesBalancedAllocation prefers nodes where the pod brings closer to each other how much of each resource is taken.
type NodeResourcesBalancedAllocation struct {
	// Resources are those that count; nil: cpu and memory.
	Resources []corev1.ResourceName
}

// Name is the plugin's.
func (NodeResourcesBalancedAllocation) Name() string { return "NodeResourcesBalancedAllocation" }

// PreScore has nothing to say about pods that ask for none of the resources: they change no balance.
func (p NodeResourcesBalancedAllocation) PreScore(_ *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot, _ []*state.NodeInfo) framework.NodeScorer {
	if p.Resources != nil {
		if !slices.ContainsFunc(p.Resources, func(r corev1.ResourceName) bool { return pod.Request.Get(r) > 0 }) {
			return nil
		}
		return balanceOf{p.Resources, &pod.Request}
	}
	if pod.Request.MilliCPU == 0 && pod.Request.Memory == 0 {
		return nil
	}
	return balance{pod.Request.MilliCPU, pod.Request.Memory}
}

type balance struct{ cpu, memory int64 }

// Score tells how the pod changes the balance: 75 leaves it as it is, more makes it better.
func (b balance) Score(n *state.NodeInfo) int64 {
	cpu, memory := n.Allocatable.MilliCPU, n.Allocatable.Memory
	if cpu == 0 || memory == 0 {
		return unchanged
	}
	at := func(c, m int64) int64 {
		return balanced(math.Abs(min(float64(c)/float64(cpu), 1)-min(float64(m)/float64(memory), 1)) / 2)
	}
	return improved(at(n.Requested.MilliCPU+b.cpu, n.Requested.Memory+b.memory), at(n.Requested.MilliCPU, n.Requested.Memory))
}

// Local: see framework.Local.
func (balance) Local() {}

// Absolute: see framework.Absolute.
func (balance) Absolute() {}

func (balance) Normalize([]int64) {}

// balanced scores a standard deviation of what is taken of each resource, as a part of what there is.
func balanced(deviation float64) int64 { return int64((1 - deviation) * framework.MaxScore) }

const unchanged = framework.MaxScore * 3 / 4

// improved is what a node scores whose balance is so with the pod, and so without it.
func improved(with, without int64) int64 {
	return framework.MaxScore/2 + (framework.MaxScore/2+with-without)/2
}

// balanceOf is balance of any resources: those that the node does not have, or, extended ones, the pod does not ask for, are left out.
type balanceOf struct {
	resources []corev1.ResourceName
	asks      *state.Resource
}

func (b balanceOf) Score(n *state.NodeInfo) int64 {
	var with, without []float64
	for _, r := range b.resources {
		offers, asks := n.Allocatable.Get(r), b.asks.Get(r)
		if offers == 0 || asks == 0 && !native(r) {
			continue
		}
		taken := n.Requested.Get(r)
		with = append(with, min(float64(taken+asks)/float64(offers), 1))
		without = append(without, min(float64(taken)/float64(offers), 1))
	}
	return improved(balanced(deviation(with)), balanced(deviation(without)))
}

// deviation is the standard deviation of parts; 0 of fewer than two.
func deviation(parts []float64) float64 {
	switch len(parts) {
	case 0, 1:
		return 0
	case 2:
		return math.Abs(parts[0]-parts[1]) / 2
	}
	var mean, sum float64
	for _, p := range parts {
		mean += p / float64(len(parts))
	}
	for _, p := range parts {
		sum += (p - mean) * (p - mean)
	}
	return math.Sqrt(sum / float64(len(parts)))
}

// Local: see framework.Local.
func (balanceOf) Local() {}

// Absolute: see framework.Absolute.
func (balanceOf) Absolute() {}

func (balanceOf) Normalize([]int64) {}
