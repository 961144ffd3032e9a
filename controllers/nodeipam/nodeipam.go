// SPDX-License-Identifier: Apache-2.0

// Package nodeipam gives each node that has none a range of pod addresses
// (spec.podCIDRs) out of the cluster's, one of each IP family. The table of
// controllers starts it. Ranges that nodes bring with them are theirs, and nobody
// else gets them; the range of a node that is deleted is free again. Of nodes that
// brought the same range all but the oldest are marked, and given another one when
// they say that none of their pods has an address of it.
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

// Allocation says whether to give ranges: --allocate-node-cidrs.
type Allocation uint8

// When nothing is said, ranges are given if there are any.
const (
	IfAny Allocation = iota
	Allocate
	AllocateNothing
)

// Config says what there is to give.
type Config struct {
	Allocate Allocation
	// Cluster are the cluster's ranges, at most one of each IP family. None: the controller does nothing.
	Cluster []netip.Prefix
	// Reserved are ranges that no node may have: those of services.
	Reserved []netip.Prefix
	// Bits4 and Bits6 are the sizes of a node's ranges. Default 24 and 64.
	Bits4, Bits6 int
}

// Validate returns what is wrong.
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

// Controller gives ranges.
type Controller struct {
	env   *framework.Env
	loop  *framework.Loop[framework.Key]
	nodes corelisters.NodeLister

	mu     sync.Mutex
	ranges []*ranges
	// owned has the ranges of each node that are counted as used.
	owned map[string][]netip.Prefix
	// waiting are nodes for which there was none.
	waiting map[string]struct{}
	// rivals are nodes that may have a range which an older one has too. remade are nodes that were deleted to be made anew.
	rivals map[string]struct{}
	remade map[string]*corev1.Node
}

// New builds the controller.
func New(env *framework.Env, cfg Config) (framework.Controller, error) {
	c := &Controller{env: env, owned: map[string][]netip.Prefix{}, waiting: map[string]struct{}{}, rivals: map[string]struct{}{}, remade: map[string]*corev1.Node{}}
	c.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, c.sync)
	if len(cfg.Cluster) == 0 || cfg.Allocate == AllocateNothing {
		return c, nil
	}
	var err error
	if c.ranges, err = cfg.ranges(); err != nil {
		return nil, fmt.Errorf("node addresses: %w", err)
	}
	nodes := coreinformers.New(env.Shared.Scoped()).Nodes()
	c.nodes = nodes.Lister()
	// What nodes have is counted before the first worker starts: nothing is given twice.
	err = framework.On(c.loop, nodes.Informer(), framework.Handlers[*corev1.Node]{
		Add: c.seen, Update: func(old, cur *corev1.Node) {
			if old.UID != cur.UID { // it was deleted and made anew meanwhile
				c.gone(old)
			}
			if !slices.Equal(old.Spec.PodCIDRs, cur.Spec.PodCIDRs) || len(cur.Spec.PodCIDRs) == 0 || old.UID != cur.UID || marks(old) != marks(cur) {
				c.seen(cur)
			}
		},
		Delete: c.gone,
	})
	if err != nil {
		return nil, fmt.Errorf("node addresses: %w", err)
	}
	return c, nil
}

// Run is a run.Func.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

// seen counts what the node has; a node that has nothing is pending.
func (c *Controller) seen(n *corev1.Node) {
	if len(n.Spec.PodCIDRs) == 0 {
		if !c.waits(n.Name) { // it is woken when a range is free, not by its heartbeats
			c.loop.Add(framework.KeyOf(n))
		}
		return
	}
	var have []netip.Prefix
	for _, text := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			have = append(have, p.Masked())
		}
	}
	if marks(n) != (marked{}) {
		c.loop.Add(framework.KeyOf(n))
	}
	if counted, shared := c.own(n.Name, have); counted {
		c.judge(n, have, shared)
	}
}

// annotationFake is on nodes that are not there: their ranges are nobody's.
const annotationFake = "keelson.dev/simulated-by"

// judge tells of ranges that are none of those which nodes are given, or another's too.
func (c *Controller) judge(n *corev1.Node, have []netip.Prefix, shared string) {
	odd := ""
	if n.Annotations[annotationFake] == "" {
		odd = c.odd(have)
	}
	if odd != "" {
		c.env.Events.Eventf(n, corev1.EventTypeWarning, "CIDROutOfRange", "Node %s has the pod range %s", n.Name, odd)
	}
	if shared == "" && odd == "" || c.contest(n.Name, have) || shared == "" {
		return // the younger one is told
	}
	c.env.Events.Eventf(n, corev1.EventTypeWarning, "CIDRConflict", "Node %s has the pod range %s, which the services have too", n.Name, shared)
}

// odd says what no node was given: ranges outside of the cluster's, which are not counted, and those of the size of many.
func (c *Controller) odd(have []netip.Prefix) string {
	for _, p := range have {
		i := slices.IndexFunc(c.ranges, func(r *ranges) bool { return r.cluster.Overlaps(p) })
		switch {
		case i < 0:
			return p.String() + ", which is not in --cluster-cidr: nobody sees to it that no other machine has its addresses"
		case p.Bits() < c.ranges[i].bits:
			return fmt.Sprintf("%s, which is larger than a node's /%d: none of its addresses is given to other nodes", p, c.ranges[i].bits)
		}
	}
	return ""
}

func (c *Controller) waits(node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.waiting[node]
	return ok
}

// own replaces what is counted for the node, and returns one that others have too; not counted: it was so already.
func (c *Controller) own(node string, have []netip.Prefix) (counted bool, shared string) {
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

// gone frees what the node had, for those that wait.
func (c *Controller) gone(n *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseLocked(n.Name)
	delete(c.waiting, n.Name)
	delete(c.rivals, n.Name)
	if c.remade[n.Name] != nil {
		c.loop.Add(framework.KeyOf(n))
	}
	for name := range c.rivals {
		c.loop.Add(framework.Key{Name: name})
	}
	for name := range c.waiting {
		delete(c.waiting, name)
		c.loop.Add(framework.Key{Name: name})
	}
}

func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	n, err := c.nodes.Get(key.Name)
	switch {
	case apierrors.IsNotFound(err):
		return c.remake(ctx, key.Name)
	case err != nil:
		return err
	case n.DeletionTimestamp != nil:
		return nil
	case len(n.Spec.PodCIDRs) > 0:
		return c.repair(ctx, n)
	}
	give, err := c.give(n.Name)
	if errors.Is(err, errFull) {
		c.env.Log.Warn("no pod range is left for a node", "node", n.Name, "err", err)
		c.env.Events.Eventf(n, corev1.EventTypeNormal, "CIDRNotAvailable", "Node %s status is now: CIDRNotAvailable", n.Name)
		return nil // until one is free
	}
	if err != nil {
		return err
	}
	var texts []string
	for _, p := range give {
		texts = append(texts, p.String())
	}
	// The resourceVersion makes it a conflict if the node has brought its own meanwhile.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.UID, "resourceVersion": n.ResourceVersion}, "spec": map[string]any{"podCIDR": texts[0], "podCIDRs": texts},
	})
	if err != nil {
		return err
	}
	_, err = c.env.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err == nil {
		return nil
	}
	if apierrors.IsNotFound(err) {
		c.mu.Lock()
		if slices.Equal(c.owned[n.Name], give) {
			c.releaseLocked(n.Name)
		}
		c.mu.Unlock()
		return nil
	}
	// The ranges stay this node's until it has others or is gone: the write may have succeeded, and only the answer been lost.
	if !apierrors.IsConflict(err) {
		c.env.Events.Eventf(n, corev1.EventTypeNormal, "CIDRAssignmentFailed", "Node %s status is now: CIDRAssignmentFailed", n.Name)
	}
	return fmt.Errorf("give node %s its pod ranges: %w", n.Name, err)
}

// give takes a range of each family for the node, or none at all: then it waits.
func (c *Controller) give(node string) ([]netip.Prefix, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if have := c.owned[node]; len(have) > 0 { // it was given, and the cache does not show it yet
		return have, nil
	}
	var out []netip.Prefix
	for _, r := range c.ranges {
		p, err := r.take()
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
