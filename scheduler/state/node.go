// SPDX-License-Identifier: Apache-2.0

// Package state is what the scheduler knows of the cluster: nodes, the pods on them
// (also those whose binding is still under way), and counts of pods by label and
// topology. Event handlers write to the Cache; one scheduling loop reads a Snapshot,
// which it brings up to date between two attempts.
//
// Invariants:
//  1. A NodeInfo or PodInfo that a snapshot has seen is never modified: the cache replaces it.
//  2. Bringing a snapshot up to date costs what has changed, not what there is.
//  3. A pod is on one node at most, and an assumed pod counts as if it were bound.
package state

import (
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"

	podkind "keelson/api/core/pod"
)

// NodeInfo is a node with the pods on it and their sums. Immutable once in a snapshot.
type NodeInfo struct {
	Node *corev1.Node
	Name string
	Pods []*PodInfo
	// Allocatable is what the node offers, Requested what its pods ask for;
	// ScoreCPU and ScoreMemory are sums of the pods' own.
	Allocatable Resource
	Requested   Resource
	ScoreCPU    int64
	ScoreMemory int64
	Ports       []podkind.HostPort
	// Images maps the names of images on the node to their size in bytes.
	Images map[string]int64
	// Cordoned repeats spec.unschedulable; Blocked and Soft tell whether the node has taints with effect NoSchedule or NoExecute,
	// and PreferNoSchedule. They are here because reading the Node for every pod would miss the CPU's caches.
	Cordoned, Blocked, Soft bool
	// Stamp is replaced whenever the node's labels, taints or cordon change: what was found out about them under the same stamp holds.
	Stamp *Stamp
}

// Stamp has nothing but an identity.
type Stamp struct{ _ byte }

// NewNodeInfo makes a node with pods on it, for tests and harnesses too.
func NewNodeInfo(node *corev1.Node, pods ...*PodInfo) *NodeInfo {
	n := &NodeInfo{}
	n.setNode(node)
	for _, p := range pods {
		n.add(p)
	}
	return n
}

func (n *NodeInfo) setNode(node *corev1.Node) {
	if old := n.Node; old == nil || old.Spec.Unschedulable != node.Spec.Unschedulable || !maps.Equal(old.Labels, node.Labels) ||
		!reflect.DeepEqual(old.Spec.Taints, node.Spec.Taints) {
		n.Stamp = &Stamp{}
	}
	n.Node, n.Name = node, node.Name
	n.Allocatable = offers(node.Status.Allocatable)
	n.Cordoned, n.Blocked, n.Soft = node.Spec.Unschedulable, false, false
	for i := range node.Spec.Taints {
		if node.Spec.Taints[i].Effect == corev1.TaintEffectPreferNoSchedule {
			n.Soft = true
		} else {
			n.Blocked = true
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

// With returns n as it would be with some pods taken away and others added; n stays as it is.
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

// zone names where a node stands, for taking turns between zones; empty when it does not say.
func zone(node *corev1.Node) string {
	region, z := node.Labels[corev1.LabelTopologyRegion], node.Labels[corev1.LabelTopologyZone]
	if region == "" && z == "" {
		return ""
	}
	return region + "\x00" + z
}
