// SPDX-License-Identifier: Apache-2.0

// Package reference is a second, simple scheduler. Tests compare the real one with it. It has kube-scheduler's
// filter and score rules, each written directly, with loops over all nodes and pods. It keeps no state
// between two calls, and uses no code of the scheduler that it checks.
package reference

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Cluster is the cluster state. Its fields may be changed between two calls.
type Cluster struct {
	Nodes []*corev1.Node
	// Pods are those with a node, whether the node is there or not.
	Pods []*corev1.Pod
	// Namespaces maps a namespace to its labels.
	Namespaces map[string]map[string]string
	// The storage objects.
	Volumes     []*corev1.PersistentVolume
	Claims      []*corev1.PersistentVolumeClaim
	Classes     []*storagev1.StorageClass
	Drivers     []*storagev1.CSIDriver
	CSINodes    []*storagev1.CSINode
	Attachments []*storagev1.VolumeAttachment
	// DefaultSelector returns the selector of the default spread constraints of a pod without constraints; nil, or a
	// nil result: there are none.
	DefaultSelector func(*corev1.Pod) *metav1.LabelSelector
}

// filters refuse nodes, in their order.
var filters = []struct {
	name    string
	refuses func(*Cluster, *corev1.Pod, *corev1.Node) bool
}{
	{"NodeUnschedulable", isUnschedulable},
	{"NodeName", isOtherNode},
	{"TaintToleration", isTainted},
	{"NodeAffinity", mismatchesNodeAffinity},
	{"NodePorts", (*Cluster).hasPortConflict},
	{"NodeResourcesFit", (*Cluster).lacksResources},
	{"VolumeRestrictions", (*Cluster).hasVolumeConflict},
	{"NodeVolumeLimits", (*Cluster).exceedsVolumeLimits},
	{"VolumeBinding", (*Cluster).cannotBindVolumes},
	{"VolumeZone", (*Cluster).isOtherVolumeZone},
	{"PodTopologySpread", (*Cluster).exceedsMaxSkew},
	{"InterPodAffinity", (*Cluster).violatesInterPodAffinity},
}

// Refuses returns the first plugin that refuses the node; empty: none does.
func (c *Cluster) Refuses(p *corev1.Pod, n *corev1.Node) string {
	for _, f := range filters {
		if f.refuses(c, p, n) {
			return f.name
		}
	}
	return ""
}

// Fits returns the feasible nodes.
func (c *Cluster) Fits(p *corev1.Pod) []*corev1.Node {
	var fit []*corev1.Node
	for _, n := range c.Nodes {
		if c.Refuses(p, n) == "" {
			fit = append(fit, n)
		}
	}
	return fit
}

// scorers score the feasible nodes: each returns 0 to 100 for every node.
var scorers = []struct {
	name   string
	weight int64
	scores func(*Cluster, *corev1.Pod, []*corev1.Node) []int64
}{
	{"TaintToleration", 3, scoreTaints},
	{"NodeAffinity", 2, scoreNodeAffinity},
	{"NodeResourcesFit", 1, (*Cluster).scoreLeastAllocated},
	{"VolumeBinding", 1, (*Cluster).scoreVolumes},
	{"PodTopologySpread", 2, (*Cluster).scoreSpread},
	{"InterPodAffinity", 2, (*Cluster).scoreInterPod},
	{"NodeResourcesBalancedAllocation", 1, (*Cluster).scoreBalancedAllocation},
	{"ImageLocality", 1, (*Cluster).scoreImages},
}

// Scores returns the scores of the feasible nodes, by plugin and in the order of the nodes, and the weighted sums.
func (c *Cluster) Scores(p *corev1.Pod, fit []*corev1.Node) (by map[string][]int64, totals []int64) {
	by = map[string][]int64{}
	totals = make([]int64, len(fit))
	for _, s := range scorers {
		by[s.name] = s.scores(c, p, fit)
		for i, n := range by[s.name] {
			totals[i] += n * s.weight
		}
	}
	return by, totals
}

// Best returns the feasible nodes with the highest total score.
func (c *Cluster) Best(p *corev1.Pod) []string {
	fit := c.Fits(p)
	_, totals := c.Scores(p, fit)
	var best []string
	for i, n := range fit {
		if totals[i] == slices.Max(totals) {
			best = append(best, n.Name)
		}
	}
	return best
}

// podsOn returns the pods on a node.
func (c *Cluster) podsOn(n *corev1.Node) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, p := range c.Pods {
		if p.Spec.NodeName == n.Name {
			pods = append(pods, p)
		}
	}
	return pods
}

// nodeOf returns the node of a pod; nil: there is no such node.
func (c *Cluster) nodeOf(p *corev1.Pod) *corev1.Node {
	for _, n := range c.Nodes {
		if n.Name == p.Spec.NodeName {
			return n
		}
	}
	return nil
}
