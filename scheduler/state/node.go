// SPDX-License-Identifier: Apache-2.0

// Package state is the scheduler's cache: nodes, the pods on them (assumed pods
// included), nominated pods, and counts of pods by label and topology. Event handlers
// write to the Cache. One scheduling loop reads the Snapshot and updates it between two
// attempts (Cache.Refresh). The package never calls the API server and decides nothing.
//
// A node's place is its index in Snapshot.Nodes. Many slices here are indexed by place.
//
// Invariants:
//  1. A NodeInfo or PodInfo that a snapshot has seen is never modified: the cache replaces it.
//  2. The cost of Refresh follows the number of changes, not the size of the cluster.
//  3. A pod is on one node at most, and an assumed pod counts as if it were bound.
package state

import (
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"

	podkind "keelson/api/core/pod"
)

// NodeInfo is a node, the pods on it and the sums of their requests. Immutable once in a snapshot.
type NodeInfo struct {
	Node *corev1.Node
	Name string
	Pods []*PodInfo
	// Requested, ScoreCPU and ScoreMemory are the sums over Pods.
	Allocatable Resource
	Requested   Resource
	ScoreCPU    int64
	ScoreMemory int64
	Ports       []podkind.HostPort
	// Images maps the names of images on the node to their size in bytes.
	Images map[string]int64
	// Cordoned repeats spec.unschedulable. HardTaints: the node has a NoSchedule or NoExecute taint. SoftTaints: it has
	// a PreferNoSchedule taint. They are copied because reading the Node object for every pod would miss the CPU's
	// caches.
	Cordoned, HardTaints, SoftTaints bool
	// Stamp is replaced when the node's labels, taints or spec.unschedulable change. A result computed from them is
	// valid for the same stamp.
	Stamp *Stamp
}

// Stamp is compared by its address.
type Stamp struct{ _ byte }

// NewNodeInfo returns a node with pods on it, also for tests.
func NewNodeInfo(node *corev1.Node, pods ...*PodInfo) *NodeInfo {
	n := &NodeInfo{}
	n.setNode(node)
	for _, p := range pods {
		n.add(p)
	}
	return n
}

func (n *NodeInfo) setNode(node *corev1.Node) {
	if old := n.Node; old == nil || old.Spec.Unschedulable != node.Spec.Unschedulable ||
		!maps.Equal(old.Labels, node.Labels) ||
		!reflect.DeepEqual(old.Spec.Taints, node.Spec.Taints) {
		n.Stamp = &Stamp{}
	}
	n.Node = node
	n.Name = node.Name
	n.Allocatable = allocatable(node.Status.Allocatable)
	n.Cordoned = node.Spec.Unschedulable
	n.HardTaints = false
	n.SoftTaints = false
	for i := range node.Spec.Taints {
		if node.Spec.Taints[i].Effect == corev1.TaintEffectPreferNoSchedule {
			n.SoftTaints = true
		} else {
			n.HardTaints = true
		}
	}
	n.Images = make(map[string]int64, len(node.Status.Images))
	for _, img := range node.Status.Images {
		for _, name := range img.Names {
			n.Images[name] = img.SizeBytes
		}
	}
}

// clone returns a copy that add and remove may change.
func (n *NodeInfo) clone() *NodeInfo {
	c := *n
	c.Pods = append(make([]*PodInfo, 0, len(n.Pods)+1), n.Pods...)
	c.Ports = slices.Clone(n.Ports)
	return &c
}

// With returns a copy of n with some pods removed and others added.
func (n *NodeInfo) With(added, removed []*PodInfo) *NodeInfo {
	c := n.clone()
	for _, p := range removed {
		c.remove(p)
	}
	for _, p := range added {
		c.add(p)
	}
	return c
}

func (n *NodeInfo) add(p *PodInfo) {
	n.Pods = append(n.Pods, p)
	n.sum(p, 1)
	n.Ports = append(n.Ports, p.Ports...)
}

// remove takes away the pod with p's UID, if it is there.
func (n *NodeInfo) remove(p *PodInfo) {
	i := slices.IndexFunc(n.Pods, func(o *PodInfo) bool { return o.Pod.UID == p.Pod.UID })
	if i < 0 {
		return
	}
	gone := n.Pods[i]
	last := len(n.Pods) - 1
	n.Pods[i] = n.Pods[last]
	n.Pods[last] = nil
	n.Pods = n.Pods[:last]
	n.sum(gone, -1)
	for _, hp := range gone.Ports {
		if j := slices.Index(n.Ports, hp); j >= 0 {
			n.Ports = slices.Delete(n.Ports, j, j+1)
		}
	}
}

func (n *NodeInfo) sum(p *PodInfo, sign int64) {
	n.Requested.add(&p.Request, sign)
	n.ScoreCPU += sign * p.ScoreCPU
	n.ScoreMemory += sign * p.ScoreMemory
}

// zone returns the region and zone of a node, for the order of Snapshot.Nodes; empty when it has neither label.
func zone(node *corev1.Node) string {
	region := node.Labels[corev1.LabelTopologyRegion]
	z := node.Labels[corev1.LabelTopologyZone]
	if region == "" && z == "" {
		return ""
	}
	return region + "\x00" + z
}
