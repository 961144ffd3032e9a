// SPDX-License-Identifier: Apache-2.0

package noderesources

import (
	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Strategy is a scoring strategy: the weighted mean of Rank over Resources. The zero value is LeastAllocated for cpu
// and memory.
type Strategy struct {
	Resources []WeightedResource
	// Rank returns 0..MaxScore. taken includes the pod; offers is the node's allocatable amount, more than 0.
	Rank func(taken, offers int64) int64
	// SkipZero excludes resources with score 0 from the mean and rounds it, as kube-scheduler does for
	// RequestedToCapacityRatio.
	SkipZero bool
}

// WeightedResource is a resource with its weight.
type WeightedResource struct {
	Name   corev1.ResourceName
	Weight int64
}

var cpuAndMemory = []WeightedResource{{corev1.ResourceCPU, 1}, {corev1.ResourceMemory, 1}}

// LeastAllocated prefers nodes with the most free resources.
func LeastAllocated(taken, offers int64) int64 {
	if taken > offers {
		return 0
	}
	return (offers - taken) * framework.MaxScore / offers
}

// MostAllocated prefers nodes with the least free resources (bin packing).
func MostAllocated(taken, offers int64) int64 {
	return min(taken, offers) * framework.MaxScore / offers
}

// RequestedToCapacity interpolates linearly between the points of a shape, which must be in order of utilization: the
// score (0..10, as in the configuration) at a utilization (0..100).
func RequestedToCapacity(shape []configv1.UtilizationShapePoint) func(taken, offers int64) int64 {
	const perPoint = framework.MaxScore / 10
	type point struct{ utilization, score int64 }
	points := make([]point, 0, len(shape))
	for _, p := range shape {
		points = append(points, point{int64(p.Utilization), int64(p.Score) * perPoint})
	}
	return func(taken, offers int64) int64 {
		u := min(taken, offers) * 100 / offers
		for i, p := range points {
			if u > p.utilization {
				continue
			}
			if i == 0 {
				return p.score
			}
			prev := points[i-1]
			return prev.score + (p.score-prev.score)*(u-prev.utilization)/(p.utilization-prev.utilization)
		}
		return points[len(points)-1].score
	}
}

// leastAllocatedScorer is a fast path of the default strategy.
type leastAllocatedScorer struct{ cpu, memory int64 }

func (l leastAllocatedScorer) Score(n *state.NodeInfo) int64 {
	var score, weight int64
	if n.Allocatable.MilliCPU > 0 {
		score = LeastAllocated(n.ScoreCPU+l.cpu, n.Allocatable.MilliCPU)
		weight = 1
	}
	if n.Allocatable.Memory > 0 {
		score += LeastAllocated(n.ScoreMemory+l.memory, n.Allocatable.Memory)
		weight++
	}
	if weight == 0 {
		return 0
	}
	return score / weight
}

type strategyScorer struct {
	Strategy
	pod     *state.PodInfo
	devices deviceCounts
}

// CountDevices returns a function that counts the devices of an extended resource on nodes; it returns nil where no
// DeviceClass serves the resource. nil: there are no such classes.
type CountDevices func(corev1.ResourceName) func(*corev1.Node) (all, allocated int64)

// of counts the devices of the extended resources that are scored and that the pod requests.
func (c CountDevices) of(pod *state.PodInfo, scored []corev1.ResourceName) deviceCounts {
	if c == nil || len(pod.Request.Scalar) == 0 {
		return nil
	}
	out := deviceCounts{}
	for _, name := range scored {
		if pod.Request.Get(name) == 0 || native(name) {
			continue
		}
		if counted := c(name); counted != nil {
			out[name] = counted
		}
	}
	return out
}

// deviceCounts count the devices that serve an extended resource on nodes that do not offer it themselves.
type deviceCounts map[corev1.ResourceName]func(*corev1.Node) (all, allocated int64)

// on returns how much of a resource a node offers, and how much of that is taken.
func (d deviceCounts) on(info *state.NodeInfo, name corev1.ResourceName) (offers, taken int64) {
	if offers = info.Allocatable.Get(name); offers == 0 && d[name] != nil {
		return d[name](info.Node)
	}
	return offers, info.Requested.Get(name)
}

func (s *strategyScorer) Score(info *state.NodeInfo) int64 {
	resources := s.Resources
	rank := s.Rank
	if len(resources) == 0 {
		resources = cpuAndMemory
	}
	if rank == nil {
		rank = LeastAllocated
	}
	var score, weight int64
	for _, resource := range resources {
		requests := s.pod.Request.Get(resource.Name)
		offers, taken := s.devices.on(info, resource.Name)
		taken += requests
		if requests == 0 && !native(resource.Name) {
			continue
		}
		switch resource.Name {
		case corev1.ResourceCPU:
			taken = info.ScoreCPU + s.pod.ScoreCPU
		case corev1.ResourceMemory:
			taken = info.ScoreMemory + s.pod.ScoreMemory
		}
		if offers == 0 {
			continue
		}
		if ranked := rank(taken, offers); ranked > 0 || !s.SkipZero {
			score += ranked * resource.Weight
			weight += resource.Weight
		}
	}
	switch {
	case weight == 0:
		return 0
	case s.SkipZero:
		return (2*score + weight) / (2 * weight)
	}
	return score / weight
}

// native reports whether a resource is scored even if the pod does not request it.
func native(r corev1.ResourceName) bool {
	return r == corev1.ResourceCPU || r == corev1.ResourceMemory || r == corev1.ResourceEphemeralStorage
}
