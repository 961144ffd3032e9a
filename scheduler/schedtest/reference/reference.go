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
	// What there is of storage.
	Volumes     []*corev1.PersistentVolume
	Claims      []*corev1.PersistentVolumeClaim
	Classes     []*storagev1.StorageClass
	Drivers     []*storagev1.CSIDriver
	CSINodes    []*storagev1.CSINode
	Attachments []*storagev1.VolumeAttachment
	// Kin tells which pods a pod without spread constraints is spread with; nil, or a nil answer: with none.
	Kin func(*corev1.Pod) *metav1.LabelSelector
}

// filters refuse nodes, in their order.
var filters = []struct {
	name    string
	refuses func(*Cluster, *corev1.Pod, *corev1.Node) bool
}{
	{"NodeUnschedulable", isCordoned},
	{"NodeName", isAnother},
	{"TaintToleration", isTainted},
	{"NodeAffinity", isUnwanted},
	{"NodePorts", (*Cluster).isTaken},
	{"NodeResourcesFit", (*Cluster).isFull},
	{"VolumeRestrictions", (*Cluster).isInUse},
	{"NodeVolumeLimits", (*Cluster).isLoaded},
	{"VolumeBinding", (*Cluster).isOutOfReach},
	{"VolumeZone", (*Cluster).isOtherZone},
	{"PodTopologySpread", (*Cluster).isUneven},
	{"InterPodAffinity", (*Cluster).isUnfriendly},
}

// Refuses returns the first plugin that keeps the pod off the node; empty: none does.
func (c *Cluster) Refuses(p *corev1.Pod, n *corev1.Node) string {
	for _, f := range filters {
		if f.refuses(c, p, n) {
			return f.name
		}
	}
	return ""
}

// Fits lists the nodes to which the pod may go.
func (c *Cluster) Fits(p *corev1.Pod) []*corev1.Node {
	var fit []*corev1.Node
	for _, n := range c.Nodes {
		if c.Refuses(p, n) == "" {
			fit = append(fit, n)
		}
	}
	return fit
}

// scorers rank nodes that fit: each returns 0 to 100 for every one of them.
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
	{"NodeResourcesBalancedAllocation", 1, (*Cluster).scoreBalance},
	{"ImageLocality", 1, (*Cluster).scoreImages},
}

// Scores returns what each plugin gives each of the nodes that fit, in their order, and the weighted sums.
func (c *Cluster) Scores(p *corev1.Pod, fit []*corev1.Node) (by map[string][]int64, totals []int64) {
	by, totals = map[string][]int64{}, make([]int64, len(fit))
	for _, s := range scorers {
		by[s.name] = s.scores(c, p, fit)
		for i, n := range by[s.name] {
			totals[i] += n * s.weight
		}
	}
	return by, totals
}

// Best lists the nodes that fit and that no other one beats.
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

// on lists the pods of a node.
func (c *Cluster) on(n *corev1.Node) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, p := range c.Pods {
		if p.Spec.NodeName == n.Name {
			pods = append(pods, p)
		}
	}
	return pods
}

// where returns the node of a pod, nil when it is not there.
func (c *Cluster) where(p *corev1.Pod) *corev1.Node {
	for _, n := range c.Nodes {
		if n.Name == p.Spec.NodeName {
			return n
		}
	}
	return nil
}
