// SPDX-License-Identifier: Apache-2.0

// Package nodeipam allocates pod CIDRs (spec.podCIDRs) from the cluster CIDRs to nodes without any, one per IP family.
// The table of controllers starts it. Pod CIDRs that nodes set themselves are not allocated to others; those of deleted
// nodes become free. If several nodes have set the same range, all but the oldest are annotated, and get another one
// when they report that no pod has an address in it. It never changes the range of a node in use.
package nodeipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"keelson/controllers/framework"
)

// Allocation is --allocate-node-cidrs.
type Allocation uint8

// By default ranges are allocated if there are cluster CIDRs.
const (
	AllocateIfConfigured Allocation = iota
	Allocate
	AllocateNothing
)

// Config configures the allocation.
type Config struct {
	Allocate Allocation
	// Cluster are the cluster CIDRs, at most one per IP family. None: the controller does nothing.
	Cluster []netip.Prefix
	// Reserved are ranges for no node: the service CIDRs.
	Reserved []netip.Prefix
	// Bits4 and Bits6 are the prefix lengths of nodes' ranges. Default 24 and 64.
	Bits4, Bits6 int
}

// Validate returns the configuration errors.
func (c Config) Validate() error {
	if c.Allocate == Allocate && len(c.Cluster) == 0 {
		return errors.New("--allocate-node-cidrs needs --cluster-cidr")
	}
	if len(c.Cluster) > 2 || len(c.Cluster) == 2 && c.Cluster[0].Addr().Is4() == c.Cluster[1].Addr().Is4() {
		return errors.New("--cluster-cidr has more than one range of an IP family")
	}
	_, err := c.ranges()
	if err != nil {
		return fmt.Errorf("--cluster-cidr: %w", err)
	}
	return nil
}

func (c Config) ranges() ([]*ranges, error) {
	var out []*ranges
	for _, p := range c.Cluster {
		bits := 64
		switch {
		case p.Addr().Is4() && c.Bits4 == 0:
			bits = 24
		case p.Addr().Is4():
			bits = c.Bits4
		case c.Bits6 != 0:
			bits = c.Bits6
		}
		r, err := newRanges(p, bits)
		if err != nil {
			return nil, err
		}
		for _, reserved := range c.Reserved {
			r.occupy(reserved)
		}
		out = append(out, r)
	}
	return out, nil
}

// Controller allocates ranges.
type Controller struct {
	env   *framework.Env
	loop  *framework.Loop[framework.Key]
	nodes corelisters.NodeLister

	mu     sync.Mutex
	ranges []*ranges
	// owned has the ranges of each node that are counted as used.
	owned map[string][]netip.Prefix
	// waiting are nodes for which no range was free.
	waiting map[string]struct{}
	// conflicting are nodes that may share a range with an older one. recreating are nodes deleted to be recreated.
	conflicting map[string]struct{}
	recreating  map[string]*corev1.Node
}

// New builds the controller.
func New(env *framework.Env, cfg Config) (framework.Controller, error) {
	controller := &Controller{
		env:         env,
		owned:       map[string][]netip.Prefix{},
		waiting:     map[string]struct{}{},
		conflicting: map[string]struct{}{},
		recreating:  map[string]*corev1.Node{},
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	if len(cfg.Cluster) == 0 || cfg.Allocate == AllocateNothing {
		return controller, nil
	}
	var err error
	if controller.ranges, err = cfg.ranges(); err != nil {
		return nil, fmt.Errorf("node addresses: %w", err)
	}
	nodes := coreinformers.New(env.Shared.Scoped()).Nodes()
	controller.nodes = nodes.Lister()
	// The initial nodes are counted before the first worker starts, so that no range is allocated twice.
	err = framework.On(controller.loop, nodes.Informer(), framework.Handlers[*corev1.Node]{
		Add: controller.observe,
		Update: func(old, cur *corev1.Node) {
			if old.UID != cur.UID { // it was deleted and recreated meanwhile
				controller.nodeDeleted(old)
			}
			if !slices.Equal(old.Spec.PodCIDRs, cur.Spec.PodCIDRs) || len(cur.Spec.PodCIDRs) == 0 ||
				old.UID != cur.UID || conflictAnnotationsOf(old) != conflictAnnotationsOf(cur) {
				controller.observe(cur)
			}
		},
		Delete: controller.nodeDeleted,
	})
	if err != nil {
		return nil, fmt.Errorf("node addresses: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

// observe counts the node's ranges; a node without any is queued.
func (c *Controller) observe(node *corev1.Node) {
	if len(node.Spec.PodCIDRs) == 0 {
		if !c.isWaiting(node.Name) { // it is queued when a range becomes free, not at each heartbeat
			c.loop.Add(framework.KeyOf(node))
		}
		return
	}
	var have []netip.Prefix
	for _, text := range node.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			have = append(have, p.Masked())
		}
	}
	if conflictAnnotationsOf(node) != (conflictAnnotations{}) {
		c.loop.Add(framework.KeyOf(node))
	}
	if counted, shared := c.setOwned(node.Name, have); counted {
		c.logUnusual(node, have, shared)
	}
}

// annotationFake is on fake nodes, whose ranges are not real.
const annotationFake = "keelson.dev/simulated-by"

// logUnusual logs unusual ranges of a node: outside of the cluster CIDRs, or shared with another node.
func (c *Controller) logUnusual(node *corev1.Node, have []netip.Prefix, shared string) {
	odd := ""
	if node.Annotations[annotationFake] == "" {
		odd = c.describeUnusual(have)
	}
	if odd != "" {
		c.env.Events.Eventf(node, corev1.EventTypeWarning, "CIDROutOfRange", "Node %s has the pod range %s", node.Name,
			odd)
	}
	if shared == "" && odd == "" || c.requeueSharing(node.Name, have) || shared == "" {
		return // the newer node is annotated
	}
	c.env.Events.Eventf(node, corev1.EventTypeWarning, "CIDRConflict",
		"Node %s has the pod range %s, which the services have too", node.Name, shared)
}

// describeUnusual describes ranges that were not allocated here: outside of the cluster CIDRs, which are not counted,
// or of another size.
func (c *Controller) describeUnusual(have []netip.Prefix) string {
	for _, p := range have {
		i := slices.IndexFunc(c.ranges, func(r *ranges) bool { return r.cluster.Overlaps(p) })
		switch {
		case i < 0:
			return p.String() + ", which is not in --cluster-cidr: nothing prevents another machine from having its " +
				"addresses"
		case p.Bits() < c.ranges[i].bits:
			return fmt.Sprintf("%s, which is larger than a node's /%d: none of its addresses is given to other nodes",
				p, c.ranges[i].bits)
		}
	}
	return ""
}

func (c *Controller) isWaiting(node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.waiting[node]
	return ok
}

// setOwned replaces the counted ranges of the node. It returns a range that other nodes also have; counted is false if
// nothing changed.
func (c *Controller) setOwned(node string, have []netip.Prefix) (counted bool, shared string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Equal(c.owned[node], have) {
		return false, ""
	}
	c.releaseLocked(node)
	c.owned[node] = have
	for _, p := range have {
		for _, r := range c.ranges {
			if r.occupy(p) {
				shared = p.String()
			}
		}
	}
	delete(c.waiting, node)
	return true, shared
}

func (c *Controller) releaseLocked(node string) {
	for _, p := range c.owned[node] {
		for _, r := range c.ranges {
			r.release(p)
		}
	}
	delete(c.owned, node)
}

// nodeDeleted frees the ranges of a deleted node for waiting nodes.
func (c *Controller) nodeDeleted(n *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseLocked(n.Name)
	delete(c.waiting, n.Name)
	delete(c.conflicting, n.Name)
	if c.recreating[n.Name] != nil {
		c.loop.Add(framework.KeyOf(n))
	}
	for name := range c.conflicting {
		c.loop.Add(framework.Key{Name: name})
	}
	for name := range c.waiting {
		delete(c.waiting, name)
		c.loop.Add(framework.Key{Name: name})
	}
}

func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	node, err := c.nodes.Get(key.Name)
	switch {
	case apierrors.IsNotFound(err):
		return c.recreate(ctx, key.Name)
	case err != nil:
		return err
	case node.DeletionTimestamp != nil:
		return nil
	case len(node.Spec.PodCIDRs) > 0:
		return c.repair(ctx, node)
	}
	give, err := c.allocate(node.Name)
	if errors.Is(err, errNoFreeRange) {
		c.env.Log.Warn("no pod range is free for a node", "node", node.Name, "err", err)
		c.env.Events.Eventf(node, corev1.EventTypeNormal, "CIDRNotAvailable", "Node %s status is now: CIDRNotAvailable",
			node.Name)
		return nil // it is queued when one becomes free
	}
	if err != nil {
		return err
	}
	var texts []string
	for _, p := range give {
		texts = append(texts, p.String())
	}
	// With the resourceVersion it is a conflict if the node has set its own meanwhile.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
		"spec":     map[string]any{"podCIDR": texts[0], "podCIDRs": texts},
	})
	if err != nil {
		return err
	}
	_, err = c.env.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{})
	if err == nil {
		return nil
	}
	if apierrors.IsNotFound(err) {
		c.mu.Lock()
		if slices.Equal(c.owned[node.Name], give) {
			c.releaseLocked(node.Name)
		}
		c.mu.Unlock()
		return nil
	}
	// The ranges stay allocated until the node has others or is deleted: the write may have succeeded although the
	// response was lost.
	if !apierrors.IsConflict(err) {
		c.env.Events.Eventf(node, corev1.EventTypeNormal, "CIDRAssignmentFailed",
			"Node %s status is now: CIDRAssignmentFailed", node.Name)
	}
	return fmt.Errorf("give node %s its pod ranges: %w", node.Name, err)
}

// allocate allocates a range of each family for the node, or none: then the node waits.
func (c *Controller) allocate(node string) ([]netip.Prefix, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if have := c.owned[node]; len(have) > 0 { // allocated already, but not yet in the cache
		return have, nil
	}
	var out []netip.Prefix
	for _, r := range c.ranges {
		p, err := r.allocateNext()
		if err != nil {
			for j, p := range out {
				c.ranges[j].release(p)
			}
			c.waiting[node] = struct{}{}
			return nil, err
		}
		out = append(out, p)
	}
	c.owned[node] = out
	return out, nil
}
