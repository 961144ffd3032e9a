// SPDX-License-Identifier: Apache-2.0

package noderesources

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"keelson/api/decisions"
	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// BalancedAllocation prefers nodes where the utilizations of the resources become more equal with the pod.
type BalancedAllocation struct {
	// Resources are the resources that it compares; nil: cpu and memory.
	Resources []corev1.ResourceName
	// Devices counts those that serve one of the resources; see framework.Handle.
	Devices CountDevices
}

// Plugin returns the descriptor.
func (p BalancedAllocation) Plugin() *framework.Plugin {
	return &framework.Plugin{
		Name:       "NodeResourcesBalancedAllocation",
		PreScore:   p.PreScore,
		ScoreFacts: p.facts,
	}
}

// PreScore returns nil for pods that request none of the resources.
func (p BalancedAllocation) PreScore(
	_ *framework.CycleState, pod *state.PodInfo, _ *state.Snapshot, _ []*state.NodeInfo,
) framework.NodeScorer {
	if p.Resources != nil {
		if !slices.ContainsFunc(p.Resources, func(r corev1.ResourceName) bool { return pod.Request.Get(r) > 0 }) {
			return framework.NodeScorer{}
		}
		devices := p.Devices.of(pod, p.Resources)
		b := resourceBalance{p.Resources, &pod.Request, devices}
		return framework.NodeScorer{Score: b.Score, NodeLocal: len(devices) == 0}
	}
	if pod.Request.MilliCPU == 0 && pod.Request.Memory == 0 {
		return framework.NodeScorer{}
	}
	b := cpuMemoryBalance{pod.Request.MilliCPU, pod.Request.Memory}
	return framework.NodeScorer{Score: b.Score, NodeLocal: true}
}

// facts returns the utilizations that the score compares.
func (p BalancedAllocation) facts(
	pod *state.PodInfo, _ *state.Snapshot, n *state.NodeInfo,
) *decisions.ScoreFacts {
	resources := p.Resources
	if resources == nil {
		resources = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}
	}
	if !slices.ContainsFunc(resources, func(r corev1.ResourceName) bool { return pod.Request.Get(r) > 0 }) {
		return nil
	}
	b := resourceBalance{resources, &pod.Request, p.Devices.of(pod, resources)}
	names, without, with := b.utilizations(n)
	out := &decisions.Balance{Without: balanced(deviation(without)), With: balanced(deviation(with))}
	for i, name := range names {
		out.Resources = append(out.Resources, decisions.Utilization{
			Resource: string(name),
			Without:  percent(without[i]),
			With:     percent(with[i]),
		})
	}
	return &decisions.ScoreFacts{Balance: out}
}

// percent rounds a share to a tenth of a percent.
func percent(share float64) float64 { return math.Round(share*1000) / 10 }

type cpuMemoryBalance struct{ cpu, memory int64 }

// Score returns 75 if the pod does not change the balance, more if it improves it.
func (b cpuMemoryBalance) Score(n *state.NodeInfo) int64 {
	cpu := n.Allocatable.MilliCPU
	memory := n.Allocatable.Memory
	if cpu == 0 || memory == 0 {
		return unchanged
	}
	at := func(c, m int64) int64 {
		return balanced(math.Abs(min(float64(c)/float64(cpu), 1)-min(float64(m)/float64(memory), 1)) / 2)
	}
	return improved(at(n.Requested.MilliCPU+b.cpu, n.Requested.Memory+b.memory),
		at(n.Requested.MilliCPU, n.Requested.Memory))
}

// balanced returns the score of a standard deviation of utilizations (0..1).
func balanced(deviation float64) int64 { return int64((1 - deviation) * framework.MaxScore) }

const unchanged = framework.MaxScore * 3 / 4

// improved combines the scores of a node with and without the pod.
func improved(with, without int64) int64 {
	return framework.MaxScore/2 + (framework.MaxScore/2+with-without)/2
}

// resourceBalance scores any resources. It skips a resource that the node does not have, and an extended resource that
// the pod does not request.
type resourceBalance struct {
	resources []corev1.ResourceName
	requests  *state.Resource
	devices   deviceCounts
}

func (b resourceBalance) Score(n *state.NodeInfo) int64 {
	_, without, with := b.utilizations(n)
	return improved(balanced(deviation(with)), balanced(deviation(without)))
}

// utilizations returns the resources that count on a node, and the shares in use without the pod and with it.
func (b resourceBalance) utilizations(
	n *state.NodeInfo,
) (names []corev1.ResourceName, without, with []float64) {
	for _, r := range b.resources {
		offers, taken := b.devices.on(n, r)
		requests := b.requests.Get(r)
		if offers == 0 || requests == 0 && !native(r) {
			continue
		}
		names = append(names, r)
		with = append(with, min(float64(taken+requests)/float64(offers), 1))
		without = append(without, min(float64(taken)/float64(offers), 1))
	}
	return names, without, with
}

// deviation returns the standard deviation of parts; 0 if there are fewer than two.
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
