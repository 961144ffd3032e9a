// SPDX-License-Identifier: Apache-2.0

package garbage

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"keelson/controllers/internal/catalog"
)

// node is the graph's data about an object. It is immutable: a change creates a new one.
type node struct {
	uid             types.UID
	res             *catalog.Resource
	namespace, name string
	rv              string
	owners          []metav1.OwnerReference // shared with the cache of the object
	deleting        bool
	foreground      bool // has the finalizer foregroundDeletion
	orphan          bool // has the finalizer orphan
}

func newNode(res *catalog.Resource, o metav1.Object) *node {
	return &node{
		uid:        o.GetUID(),
		res:        res,
		namespace:  o.GetNamespace(),
		name:       o.GetName(),
		rv:         o.GetResourceVersion(),
		owners:     o.GetOwnerReferences(),
		deleting:   o.GetDeletionTimestamp() != nil,
		foreground: slices.Contains(o.GetFinalizers(), metav1.FinalizerDeleteDependents),
		orphan:     slices.Contains(o.GetFinalizers(), metav1.FinalizerOrphanDependents),
	}
}

// deletingDependents reports whether the object is in foreground deletion: it is deleted when its dependents are.
func (n *node) deletingDependents() bool { return n.deleting && n.foreground }

// graph has all objects by UID. children are the dependents by the owner's UID, also of owners that are not in nodes.
type graph struct {
	mu       sync.Mutex
	nodes    map[types.UID]*node
	children map[types.UID]map[types.UID]struct{}
}

func newGraph() *graph {
	return &graph{nodes: map[types.UID]*node{}, children: map[types.UID]map[types.UID]struct{}{}}
}

// requeues holds the nodes to process after a change: now, or later (after unknownOwnerDelay), because their owners may
// be observed by then.
type requeues struct {
	now, later []types.UID
	orphan     bool // the changed node must orphan its dependents
}

// addOrUpdate adds or replaces a node.
func (g *graph) addOrUpdate(n *node) requeues {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.nodes[n.uid]
	g.nodes[n.uid] = n
	g.updateEdgesLocked(n.uid, ownersOf(old), n.owners)
	var w requeues
	if old != nil {
		// An owner that waited for this dependent may no longer be blocked.
		for _, r := range old.owners {
			if o := g.nodes[r.UID]; o != nil && o.deletingDependents() && !blocks(n, r.UID) {
				w.now = append(w.now, r.UID)
			}
		}
	}
	if n.deleting && n.orphan && (old == nil || !old.deleting || !old.orphan) {
		w.orphan = true
	}
	if n.deletingDependents() && (old == nil || !old.deletingDependents()) {
		w.now = append(w.now, n.uid)
		for c := range g.children[n.uid] {
			w.now = append(w.now, c)
		}
	}
	if len(n.owners) > 0 && (old == nil || !slices.EqualFunc(old.owners, n.owners, sameRef)) {
		//exhaustive:enforce
		switch g.ownersLocked(n) {
		case ownersExist:
		case ownersWait:
			w.now = append(w.now, n.uid)
		case ownersUnknown:
			w.later = append(w.later, n.uid)
		}
	}
	return w
}

// remove removes a node.
func (g *graph) remove(uid types.UID) requeues {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return requeues{}
	}
	delete(g.nodes, uid)
	g.updateEdgesLocked(uid, n.owners, nil)
	var w requeues
	for c := range g.children[uid] {
		w.now = append(w.now, c)
	}
	for _, r := range n.owners {
		if o := g.nodes[r.UID]; o != nil && o.deletingDependents() {
			w.now = append(w.now, r.UID)
		}
	}
	return w
}

func ownersOf(n *node) []metav1.OwnerReference {
	if n == nil {
		return nil
	}
	return n.owners
}

func (g *graph) updateEdgesLocked(child types.UID, old, cur []metav1.OwnerReference) {
	for _, r := range old {
		if set := g.children[r.UID]; set != nil {
			delete(set, child)
			if len(set) == 0 {
				delete(g.children, r.UID)
			}
		}
	}
	for _, r := range cur {
		set := g.children[r.UID]
		if set == nil {
			set = map[types.UID]struct{}{}
			g.children[r.UID] = set
		}
		set[child] = struct{}{}
	}
}

func sameRef(a, b metav1.OwnerReference) bool {
	return a.UID == b.UID && a.Kind == b.Kind && a.Name == b.Name && a.APIVersion == b.APIVersion &&
		(a.BlockOwnerDeletion != nil && *a.BlockOwnerDeletion) == (b.BlockOwnerDeletion != nil && *b.BlockOwnerDeletion)
}

// blocks reports whether n blocks the foreground deletion of owner.
func blocks(n *node, owner types.UID) bool {
	for _, r := range n.owners {
		if r.UID == owner && r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion {
			return true
		}
	}
	return false
}

type ownerState int

const (
	ownersExist   ownerState = iota // all exist and stay
	ownersWait                      // at least one waits for its dependents
	ownersUnknown                   // at least one is not in the graph, or differs from the reference
)

func (g *graph) ownersLocked(n *node) ownerState {
	state := ownersExist
	for _, r := range n.owners {
		switch o := g.resolveLocked(n, r); {
		case o == nil:
			return ownersUnknown
		case o.deletingDependents():
			state = ownersWait
		}
	}
	return state
}

// resolveLocked returns the node that r, an owner reference of n, refers to; nil if no node matches all its fields.
func (g *graph) resolveLocked(n *node, r metav1.OwnerReference) *node {
	o := g.nodes[r.UID]
	if o == nil || o.name != r.Name || o.namespace != "" && o.namespace != n.namespace {
		return nil
	}
	gv, err := schema.ParseGroupVersion(r.APIVersion)
	if err != nil || o.res.GroupKind() != (schema.GroupKind{Group: gv.Group, Kind: r.Kind}) {
		return nil
	}
	return o
}

// view is a node with its owners and dependents at one time.
type view struct {
	*node
	solid, waiting, unknown []metav1.OwnerReference
	// foreign are unknown references whose UID is that of an object in another namespace.
	foreign []metav1.OwnerReference
	// blocking are the dependents that block the node's foreground deletion.
	blocking []*node
	// dependents counts all; waitingDependents: one of them waits for its own dependents.
	dependents        int
	waitingDependents bool
}

// viewOf returns a view of the node; nil if it does not exist.
func (g *graph) viewOf(uid types.UID) *view {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return nil
	}
	v := &view{node: n, dependents: len(g.children[uid])}
	for _, r := range n.owners {
		switch o := g.resolveLocked(n, r); {
		case o == nil:
			v.unknown = append(v.unknown, r)
			if other := g.nodes[r.UID]; other != nil && other.namespace != "" && other.namespace != n.namespace {
				v.foreign = append(v.foreign, r)
			}
		case o.deletingDependents():
			v.waiting = append(v.waiting, r)
		default:
			v.solid = append(v.solid, r)
		}
	}
	for c := range g.children[uid] {
		child := g.nodes[c]
		if child == nil {
			continue
		}
		if blocks(child, uid) {
			v.blocking = append(v.blocking, child)
		}
		v.waitingDependents = v.waitingDependents || child.deletingDependents()
	}
	return v
}

// dependents returns the nodes that refer to uid.
func (g *graph) dependents(uid types.UID) []*node {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []*node
	for c := range g.children[uid] {
		if n := g.nodes[c]; n != nil {
			all = append(all, n)
		}
	}
	return all
}

// nodesOf returns the UIDs of a resource's nodes.
func (g *graph) nodesOf(res *catalog.Resource) []types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []types.UID
	for uid, n := range g.nodes {
		if n.res.GVR == res.GVR {
			all = append(all, uid)
		}
	}
	return all
}

// unresolved returns the nodes with an owner that is not in the graph.
func (g *graph) unresolved() []types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []types.UID
	for uid, n := range g.nodes {
		if len(n.owners) > 0 && g.ownersLocked(n) != ownersExist {
			all = append(all, uid)
		}
	}
	return all
}
