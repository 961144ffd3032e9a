// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"
)

// Cache is the scheduler's picture of nodes and of the pods on them. Its methods may be called from any goroutine, except
// Refresh, which belongs to the scheduling loop.
type Cache struct {
	mu         sync.Mutex
	nodes      map[string]*entry
	pods       map[types.UID]*placed
	namespaces map[string]labels.Set
	nominated  nominations
	// What the snapshot does not know yet.
	dirty          []*entry
	changes        []change
	nodesChanged   bool // nodes came, went or moved between zones
	labelsChanged  bool // a node's labels or images, or a namespace's labels changed
	tooManyChanges bool

	snap *Snapshot // the scheduling loop's
	// trial are the pods that are on nodes only to see whether their pod group can be placed.
	trial map[types.UID]bool
}

// entry is one node; its info has no Node while only pods speak of it.
type entry struct {
	info   *NodeInfo
	shared bool // the snapshot has info: replace it, don't change it
	dirty  bool
	pos    int // in the snapshot's Nodes, -1 when absent
}

type placed struct {
	info    *PodInfo
	node    string
	assumed bool
}

// change is one pod come to (sign 1), gone from (-1) or replaced on (0) a node.
type change struct {
	info *PodInfo
	node string
	sign int
}

// NewCache returns an empty cache.
func NewCache() *Cache {
	return &Cache{
		nodes: map[string]*entry{}, pods: map[types.UID]*placed{}, namespaces: map[string]labels.Set{},
		nominated: nominations{at: map[types.UID]string{}, on: map[string][]*PodInfo{}},
		snap:      newSnapshot(),
	}
}

// SetNode adds or replaces a node.
func (c *Cache) SetNode(node *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entryLocked(node.Name)
	old := e.info.Node
	e.info = e.ownedLocked(c)
	e.info.setNode(node)
	switch {
	case old == nil || zone(old) != zone(node):
		c.nodesChanged, c.labelsChanged = true, true
	case !maps.Equal(old.Labels, node.Labels), !reflect.DeepEqual(old.Status.Images, node.Status.Images), !reflect.DeepEqual(old.Spec.Taints, node.Spec.Taints):
		c.labelsChanged = true
	}
}

// RemoveNode removes a node. Pods still on it are kept until they go, or the node comes back.
func (c *Cache) RemoveNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.nodes[name]
	if !ok || e.info.Node == nil {
		return
	}
	c.nodesChanged, c.labelsChanged = true, true
	if len(e.info.Pods) == 0 {
		delete(c.nodes, name)
		e.pos = -1 // it may still be among the dirty ones, and its place is another node's after the next refresh
		return
	}
	e.info = e.ownedLocked(c)
	e.info.Node, e.info.Allocatable, e.info.Images = nil, Resource{}, nil
}

// HasNode reports whether the node is there.
func (c *Cache) HasNode(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.nodes[name]
	return ok && e.info.Node != nil
}

// SetNamespace adds or replaces a namespace's labels.
func (c *Cache) SetNamespace(name string, l map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, known := c.namespaces[name]
	if known && maps.Equal(old, l) {
		return
	}
	next := maps.Clone(c.namespaces) // the snapshot has the old map
	next[name] = l
	c.namespaces = next
	for _, p := range c.pods {
		if p.info.Pod.Namespace == name {
			c.tooManyChanges = true // who matches a namespace selector has to be counted again
			return
		}
	}
}

// RemoveNamespace removes a namespace's labels.
func (c *Cache) RemoveNamespace(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := maps.Clone(c.namespaces)
	delete(next, name)
	c.namespaces = next
}

// SetPod adds or replaces a pod that is bound to a node. It confirms the pod if it was assumed, also when it was bound elsewhere.
func (c *Cache) SetPod(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, ok := c.pods[pod.UID]
	if !ok {
		c.placeLocked(NewPodInfo(pod), pod.Spec.NodeName, false)
		return
	}
	if old.node == pod.Spec.NodeName && sameFacts(old.info.Pod, pod) {
		info := *old.info
		info.Pod = pod
		e := c.entryLocked(old.node)
		e.info = e.ownedLocked(c)
		if i := slices.Index(e.info.Pods, old.info); i >= 0 {
			e.info.Pods[i] = &info
		}
		old.info, old.assumed = &info, false
		c.logLocked(change{&info, old.node, 0})
		return
	}
	c.displaceLocked(old)
	c.placeLocked(NewPodInfo(pod), pod.Spec.NodeName, false)
}

// sameFacts reports whether nothing that PodInfo or a counter is made of differs.
func sameFacts(a, b *corev1.Pod) bool {
	return maps.Equal(a.Labels, b.Labels) && (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		a.Generation == b.Generation && reflect.DeepEqual(a.Spec.Containers, b.Spec.Containers) && SameAllocation(a, b)
}

// SameAllocation compares what in-place resizing changes: what a pod holds besides what its spec asks for.
func SameAllocation(a, b *corev1.Pod) bool {
	return resource.IsPodResizeInfeasible(a) == resource.IsPodResizeInfeasible(b) &&
		reflect.DeepEqual(a.Status.AllocatedResources, b.Status.AllocatedResources) && reflect.DeepEqual(a.Status.Resources, b.Status.Resources) &&
		sameStatuses(a.Status.ContainerStatuses, b.Status.ContainerStatuses, b.Spec.Containers) &&
		sameStatuses(a.Status.InitContainerStatuses, b.Status.InitContainerStatuses, b.Spec.InitContainers)
}

func sameStatuses(a, b []corev1.ContainerStatus, spec []corev1.Container) bool {
	if len(a) == 0 {
		return !slices.ContainsFunc(b, func(st corev1.ContainerStatus) bool { return !repeats(&st, spec) })
	}
	return slices.EqualFunc(a, b, func(a, b corev1.ContainerStatus) bool {
		return a.Name == b.Name && reflect.DeepEqual(a.AllocatedResources, b.AllocatedResources) && reflect.DeepEqual(a.Resources, b.Resources)
	})
}

// repeats tells whether a status says of requests what the spec says or nothing, as the first status of most containers does.
func repeats(st *corev1.ContainerStatus, spec []corev1.Container) bool {
	i := slices.IndexFunc(spec, func(c corev1.Container) bool { return c.Name == st.Name })
	if i < 0 {
		return true // it counts for nothing
	}
	same := func(l corev1.ResourceList) bool {
		return l == nil || maps.EqualFunc(l, spec[i].Resources.Requests, func(a, b quantity.Quantity) bool { return a.Cmp(b) == 0 })
	}
	return same(st.AllocatedResources) && (st.Resources == nil || same(st.Resources.Requests))
}

// RemovePod removes a pod.
func (c *Cache) RemovePod(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.pods[uid]; ok {
		c.displaceLocked(p)
	}
}

// Assume counts a pod on node before the server has said so. It is an error if the pod is on a node already.
func (c *Cache) Assume(p *PodInfo, node string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.pods[p.Pod.UID]; ok {
		return fmt.Errorf("assume pod %s on %s: it is on %s", p.Key, node, old.node)
	}
	c.placeLocked(p, node, true)
	return nil
}

// Try announces that a pod will be assumed only to test whether its pod group can be placed, until Tried. Events are judged as if its
// resources were free: if the group releases them, the pods that this helps have been woken already.
func (c *Cache) Try(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.trial == nil {
		c.trial = map[types.UID]bool{}
	}
	c.trial[uid] = true
}

// Tried ends what Try began, for all pods.
func (c *Cache) Tried() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.trial)
}

// Forget takes back an assumption; a pod that was confirmed since stays.
func (c *Cache) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.pods[uid]; ok && p.assumed {
		c.displaceLocked(p)
	}
}

// Where returns the node a pod is on, and whether that is only assumed; empty when it is on none.
func (c *Cache) Where(uid types.UID) (node string, assumed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.pods[uid]; ok {
		return p.node, p.assumed
	}
	return "", false
}

// Size counts nodes, pods that are on them, and those of the pods that the server has not said so of.
func (c *Cache) Size() (nodes, pods, assumed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pods {
		if p.assumed {
			assumed++
		}
	}
	return len(c.nodes), len(c.pods), assumed
}

func (c *Cache) placeLocked(p *PodInfo, node string, assumed bool) {
	e := c.entryLocked(node)
	e.info = e.ownedLocked(c)
	e.info.add(p)
	c.pods[p.Pod.UID] = &placed{p, node, assumed}
	c.logLocked(change{p, node, 1})
}

func (c *Cache) displaceLocked(p *placed) {
	delete(c.pods, p.info.Pod.UID)
	c.logLocked(change{p.info, p.node, -1})
	e := c.entryLocked(p.node)
	e.info = e.ownedLocked(c)
	e.info.remove(p.info)
	if e.info.Node == nil && len(e.info.Pods) == 0 {
		delete(c.nodes, p.node)
	}
}

// logLocked remembers a change for the snapshot. A scheduler with nothing to do does not refresh, so the log has an end.
func (c *Cache) logLocked(ch change) {
	if c.tooManyChanges {
		return
	}
	if len(c.changes) > 1024+len(c.pods) {
		c.tooManyChanges, c.changes = true, nil
		return
	}
	c.changes = append(c.changes, ch)
}

func (c *Cache) entryLocked(name string) *entry {
	e, ok := c.nodes[name]
	if !ok {
		e = &entry{info: &NodeInfo{Name: name}, pos: -1}
		c.nodes[name] = e
	}
	return e
}

// ownedLocked returns the node's info for changing and marks the node as changed.
func (e *entry) ownedLocked(c *Cache) *NodeInfo {
	e.changedLocked(c)
	if e.shared {
		e.shared = false
		return e.info.clone()
	}
	return e.info
}

// changedLocked marks the node as changed.
func (e *entry) changedLocked(c *Cache) {
	if !e.dirty {
		e.dirty = true
		c.dirty = append(c.dirty, e)
	}
}
