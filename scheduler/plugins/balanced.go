// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"math"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// NodeResourcesBalancedAllocation prefers nodes where cpu and memory would be taken to the same degree.
type NodeResourcesBalancedAllocation struct{}

// Name is the plugin's.
func (NodeResourcesBalancedAllocation) Name() string { return "NodeResourcesBalancedAllocation" }

// PrepareScore has nothing to say about pods that ask for neither: they change no balance.
func (NodeResourcesBalancedAllocation) PrepareScore(pod *state.PodInfo, _ *state.Snapshot, _ []*state.NodeInfo) framework.NodeScorer {
	if pod.Request.MilliCPU == 0 && pod.Request.Memory == 0 {
		return nil
	}
	return balance{pod.Request.MilliCPU, pod.Request.Memory}
}

type balance struct{ cpu, memory int64 }

// Score is 100 minus the standard deviation of both fractions, in percent.
func (b balance) Score(n *state.NodeInfo) int64 {
	if n.Allocatable.MilliCPU == 0 || n.Allocatable.Memory == 0 {
		return framework.MaxScore
	}
	c := min(float64(n.Requested.MilliCPU+b.cpu)/float64(n.Allocatable.MilliCPU), 1)
	m := min(float64(n.Requested.Memory+b.memory)/float64(n.Allocatable.Memory), 1)
	return int64((1 - math.Abs(c-m)/2) * framework.MaxScore)
}

func (balance) Normalize([]int64) {}
