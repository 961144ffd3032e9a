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

// Cache holds nodes and the pods on them. Its methods may be called from any goroutine, except Refresh, which belongs
// to the scheduling loop.
type Cache struct {
	mu         sync.Mutex
	nodes      map[string]*nodeEntry
	pods       map[types.UID]*placedPod
	namespaces map[string]labels.Set
	nominated  nominations
	// The changes since the last Refresh.
	dirty          []*nodeEntry
	changes        []change
	nodesChanged   bool // nodes were added, removed or moved to another zone
	labelsChanged  bool // a node's labels or images, or a namespace's labels changed
	tooManyChanges bool

	snap *Snapshot // read by the scheduling loop without mu
	// tentative are the pods that are assumed only to test whether their pod group can be placed.
	tentative map[types.UID]bool
}

// nodeEntry is one node. Its info has no Node when there are pods on it but no Node object.
type nodeEntry struct {
	info   *NodeInfo
	shared bool // the snapshot has info: copy it before a change
	dirty  bool
	pos    int // in the snapshot's Nodes, -1 when absent
}

type placedPod struct {
	info    *PodInfo
	node    string
	assumed bool
}

// change is one pod that was added to (sign 1), removed from (-1) or replaced on (0) a node.
type change struct {
	info *PodInfo
	node string
	sign int
}

// NewCache returns an empty cache.
func NewCache() *Cache {
	return &Cache{
		nodes:      map[string]*nodeEntry{},
		pods:       map[types.UID]*placedPod{},
		namespaces: map[string]labels.Set{},
		nominated:  nominations{at: map[types.UID]string{}, on: map[string][]*PodInfo{}},
		snap:       newSnapshot(),
	}
}

// SetNode adds or replaces a node.
func (c *Cache) SetNode(node *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entryLocked(node.Name)
	old := e.info.Node
	e.info = e.writableLocked(c)
	e.info.setNode(node)
	switch {
	case old == nil || zone(old) != zone(node):
		c.nodesChanged = true
		c.labelsChanged = true
	case !maps.Equal(old.Labels, node.Labels), !reflect.DeepEqual(old.Status.Images, node.Status.Images),
		!reflect.DeepEqual(old.Spec.Taints, node.Spec.Taints):
		c.labelsChanged = true
	}
}

// RemoveNode removes a node. Pods that are still on it are kept until they are removed or the node comes back.
func (c *Cache) RemoveNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	nodeEntry, ok := c.nodes[name]
	if !ok || nodeEntry.info.Node == nil {
		return
	}
	c.nodesChanged = true
	c.labelsChanged = true
	if len(nodeEntry.info.Pods) == 0 {
		delete(c.nodes, name)
		nodeEntry.pos = -1 // it may still be in c.dirty, and after the next Refresh its place belongs to another node
		return
	}
	nodeEntry.info = nodeEntry.writableLocked(c)
	nodeEntry.info.Node = nil
	nodeEntry.info.Allocatable = Resource{}
	nodeEntry.info.Images = nil
}

// HasNode reports whether there is a Node object of that name.
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
			c.tooManyChanges = true // pods have to be matched against namespace selectors again
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

// SetPod adds or replaces a pod that is bound to a node. It confirms an assumed pod, also when another scheduler bound
// it to another node.
func (c *Cache) SetPod(pod *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, ok := c.pods[pod.UID]
	if !ok {
		c.addPodLocked(NewPodInfo(pod), pod.Spec.NodeName, false)
		return
	}
	if old.node == pod.Spec.NodeName && samePodInfo(old.info.Pod, pod) {
		info := *old.info
		info.Pod = pod
		e := c.entryLocked(old.node)
		e.info = e.writableLocked(c)
		if i := slices.Index(e.info.Pods, old.info); i >= 0 {
			e.info.Pods[i] = &info
		}
		old.info = &info
		old.assumed = false
		c.recordLocked(change{&info, old.node, 0})
		return
	}
	c.removePodLocked(old)
	c.addPodLocked(NewPodInfo(pod), pod.Spec.NodeName, false)
}

// samePodInfo reports whether two versions of a pod give the same PodInfo and counts.
func samePodInfo(a, b *corev1.Pod) bool {
	return maps.Equal(a.Labels, b.Labels) && (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		a.Generation == b.Generation && reflect.DeepEqual(a.Spec.Containers, b.Spec.Containers) && SameAllocation(a, b)
}

// SameAllocation reports whether two versions of a pod agree in the status fields of in-place resizing.
func SameAllocation(a, b *corev1.Pod) bool {
	return resource.IsPodResizeInfeasible(a) == resource.IsPodResizeInfeasible(b) &&
		reflect.DeepEqual(a.Status.AllocatedResources, b.Status.AllocatedResources) &&
		reflect.DeepEqual(a.Status.Resources, b.Status.Resources) &&
		sameStatuses(a.Status.ContainerStatuses, b.Status.ContainerStatuses, b.Spec.Containers) &&
		sameStatuses(a.Status.InitContainerStatuses, b.Status.InitContainerStatuses, b.Spec.InitContainers)
}

func sameStatuses(a, b []corev1.ContainerStatus, spec []corev1.Container) bool {
	if len(a) == 0 {
		return !slices.ContainsFunc(b, func(st corev1.ContainerStatus) bool { return !repeatsSpec(&st, spec) })
	}
	return slices.EqualFunc(a, b, func(a, b corev1.ContainerStatus) bool {
		return a.Name == b.Name && reflect.DeepEqual(a.AllocatedResources, b.AllocatedResources) &&
			reflect.DeepEqual(a.Resources, b.Resources)
	})
}

// repeatsSpec reports whether a container status has the requests of the spec or none, as the first status of most
// containers.
func repeatsSpec(st *corev1.ContainerStatus, spec []corev1.Container) bool {
	i := slices.IndexFunc(spec, func(c corev1.Container) bool { return c.Name == st.Name })
	if i < 0 {
		return true // it counts for nothing
	}
	same := func(l corev1.ResourceList) bool {
		return l == nil || maps.EqualFunc(l, spec[i].Resources.Requests, func(a, b quantity.Quantity) bool {
			return a.Cmp(b) == 0
		})
	}
	return same(st.AllocatedResources) && (st.Resources == nil || same(st.Resources.Requests))
}

// RemovePod removes a pod.
func (c *Cache) RemovePod(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.pods[uid]; ok {
		c.removePodLocked(p)
	}
}

// Assume adds a pod to a node before its binding is written. It is an error if the pod is on a node already.
func (c *Cache) Assume(p *PodInfo, node string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.pods[p.Pod.UID]; ok {
		return fmt.Errorf("assume pod %s on %s: it is on %s", p.Key, node, old.node)
	}
	c.addPodLocked(p, node, true)
	return nil
}

// AssumeTentatively announces that a pod will be assumed only to test whether its pod group can be placed, until
// EndTentative. NodeView counts its resources as free: so if the group releases them, the pods that fit there have been
// moved by earlier events already.
func (c *Cache) AssumeTentatively(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tentative == nil {
		c.tentative = map[types.UID]bool{}
	}
	c.tentative[uid] = true
}

// EndTentative ends AssumeTentatively for all pods.
func (c *Cache) EndTentative() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.tentative)
}

// Forget removes an assumed pod. A pod that SetPod has confirmed since then stays.
func (c *Cache) Forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.pods[uid]; ok && p.assumed {
		c.removePodLocked(p)
	}
}

// Where returns a pod's node and whether the pod is assumed there; empty when it has none.
func (c *Cache) Where(uid types.UID) (node string, assumed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, ok := c.pods[uid]; ok {
		return p.node, p.assumed
	}
	return "", false
}

// Size counts nodes, pods on them, and how many of these pods are assumed.
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

func (c *Cache) addPodLocked(p *PodInfo, node string, assumed bool) {
	e := c.entryLocked(node)
	e.info = e.writableLocked(c)
	e.info.add(p)
	c.pods[p.Pod.UID] = &placedPod{p, node, assumed}
	c.recordLocked(change{p, node, 1})
}

func (c *Cache) removePodLocked(p *placedPod) {
	delete(c.pods, p.info.Pod.UID)
	c.recordLocked(change{p.info, p.node, -1})
	e := c.entryLocked(p.node)
	e.info = e.writableLocked(c)
	e.info.remove(p.info)
	if e.info.Node == nil && len(e.info.Pods) == 0 {
		delete(c.nodes, p.node)
	}
}

// recordLocked stores a change for the next Refresh. The list is bounded, since an idle scheduler does not refresh.
func (c *Cache) recordLocked(ch change) {
	if c.tooManyChanges {
		return
	}
	if len(c.changes) > 1024+len(c.pods) {
		c.tooManyChanges = true
		c.changes = nil
		return
	}
	c.changes = append(c.changes, ch)
}

func (c *Cache) entryLocked(name string) *nodeEntry {
	e, ok := c.nodes[name]
	if !ok {
		e = &nodeEntry{info: &NodeInfo{Name: name}, pos: -1}
		c.nodes[name] = e
	}
	return e
}

// writableLocked returns a NodeInfo that may be modified, and marks the node as dirty.
func (e *nodeEntry) writableLocked(c *Cache) *NodeInfo {
	e.markDirtyLocked(c)
	if e.shared {
		e.shared = false
		return e.info.clone()
	}
	return e.info
}

// markDirtyLocked adds the node to c.dirty.
func (e *nodeEntry) markDirtyLocked(c *Cache) {
	if !e.dirty {
		e.dirty = true
		c.dirty = append(c.dirty, e)
	}
}
