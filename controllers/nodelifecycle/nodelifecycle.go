// SPDX-License-Identifier: Apache-2.0

// Package nodelifecycle notices nodes that have fallen silent and marks what
// follows: conditions Unknown, taints, pods not ready. The table of controllers
// starts it; tainteviction then evicts. A renewed lease only moves a time stamp:
// each node has one timer, which looks at the stamp when it fires, so that a
// thousand healthy nodes cost a thousand wake-ups in a grace period.
package nodelifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	podkind "keelson/api/core/pod"
	"keelson/client"
	"keelson/controllers/framework"
)

const atOnce = 20

// Controller watches over nodes.
type Controller struct {
	env   *framework.Env
	loop  *framework.Loop[string]
	grace time.Duration
	nodes corelisters.NodeLister
	pods  cache.Indexer
	// leases holds the leases of kube-node-lease only.
	leases informers.SharedInformerFactory

	mu    sync.Mutex
	alive map[string]sign
	// evicted is when a zone last lost a node to NoExecute.
	evicted map[string]time.Time
}

// sign is the last sign of life of a node.
type sign struct {
	at    time.Time
	lease time.Duration // how long its lease says it lasts; 0: it has none
}

// New builds the controller; a node may be silent for grace, or for its lease's own duration if that is longer.
func New(env *framework.Env, grace time.Duration) (framework.Controller, error) {
	core := env.Shared.Core().V1()
	pods := core.Pods().Informer()
	c := &Controller{
		env: env, grace: grace, nodes: core.Nodes().Lister(), pods: pods.GetIndexer(),
		leases: env.Client.Informers(0, client.Scope{Namespace: corev1.NamespaceNodeLease}),
		alive:  map[string]sign{}, evicted: map[string]time.Time{},
	}
	c.loop = framework.NewLoop(env.Name, env.Workers, env.Log, c.sync)
	err := errors.Join(
		framework.EnsureIndex(pods, framework.ByNode, framework.IndexByNode),
		framework.On(c.loop, core.Nodes().Informer(), framework.Handlers[*corev1.Node]{Add: c.nodeAdded, Update: c.nodeUpdated, Delete: c.nodeGone}),
		framework.On(c.loop, c.leases.Coordination().V1().Leases().Informer(), framework.Handlers[*coordination.Lease]{
			Add:    c.leaseRenewed,
			Update: func(_, l *coordination.Lease) { c.leaseRenewed(l) },
		}),
	)
	c.loop.WaitFor(pods.HasSynced)
	if err != nil {
		return nil, fmt.Errorf("node controller: %w", err)
	}
	return c, nil
}

// Run is a run.Func.
func (c *Controller) Run(ctx context.Context, ready func()) error {
	c.leases.StartWithContext(ctx)
	defer c.leases.Shutdown()
	return c.loop.Run(ctx, ready)
}

func (c *Controller) nodeAdded(n *corev1.Node) {
	c.heard(n.Name, nil)
	c.loop.Add(n.Name)
}

func (c *Controller) nodeUpdated(old, n *corev1.Node) {
	if was, is := condition(old, corev1.NodeReady), condition(n, corev1.NodeReady); is != nil && is.Status != corev1.ConditionUnknown &&
		(was == nil || !was.LastHeartbeatTime.Equal(&is.LastHeartbeatTime)) {
		c.heard(n.Name, nil)
	}
	c.loop.Add(n.Name)
	// When the last or the first node is ready, what may happen to the others changes.
	if (readiness(old) == corev1.ConditionTrue) != (readiness(n) == corev1.ConditionTrue) {
		c.wakeSilent()
	}
}

// wakeSilent looks again at all nodes that are not ready.
func (c *Controller) wakeSilent() {
	all, err := c.nodes.List(labels.Everything())
	if err != nil {
		return
	}
	for _, n := range all {
		if readiness(n) != corev1.ConditionTrue {
			c.loop.Add(n.Name)
		}
	}
}

func (c *Controller) nodeGone(n *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.alive, n.Name)
}

func (c *Controller) leaseRenewed(l *coordination.Lease) { c.heard(l.Name, l) }

// heard notes a sign of life.
func (c *Controller) heard(node string, l *coordination.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.alive[node]
	s.at = time.Now()
	if l != nil && l.Spec.LeaseDurationSeconds != nil {
		s.lease = time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
	}
	c.alive[node] = s
}

func (c *Controller) lastSign(node string) sign {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.alive[node]
	if !ok {
		s.at = time.Now()
		c.alive[node] = s
	}
	return s
}

// sync is one look at one node.
func (c *Controller) sync(ctx context.Context, name string) error {
	n, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	now := time.Now()
	s := c.lastSign(name)
	giveUp, again := silent(n, s.at, now, max(c.grace, s.lease))
	if again > 0 {
		c.loop.AddAfter(name, again)
	}
	if giveUp {
		if n, err = c.giveUp(ctx, n, now); err != nil || n == nil {
			return err
		}
	}
	if readiness(n) != corev1.ConditionTrue && condition(n, corev1.NodeReady) != nil {
		if err := c.unreadyPods(ctx, n); err != nil {
			return err
		}
	}
	return c.taint(ctx, n, now)
}

// giveUp writes that nothing is known of the node any more; it returns the node as stored, nil when it is gone.
func (c *Controller) giveUp(ctx context.Context, n *corev1.Node, now time.Time) (*corev1.Node, error) {
	was := readiness(n)
	next := n.DeepCopy()
	next.Status.Conditions = unknown(n, now)
	stored, err := c.env.Client.CoreV1().Nodes().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("write status: %w", err)
	}
	if was == corev1.ConditionTrue {
		c.env.Log.Warn("node is silent", "node", n.Name)
		c.env.Events.Eventf(nodeRef(n), corev1.EventTypeNormal, "NodeNotReady", "Node %s status is now: NodeNotReady", n.Name)
	}
	return stored, nil
}

// nodeRef names the node in events.
func nodeRef(n *corev1.Node) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}
}

// unreadyPods marks the pods of a node that is not ready, so that services stop sending to them.
func (c *Controller) unreadyPods(ctx context.Context, n *corev1.Node) error {
	pods, err := framework.PodsOn(c.pods, n.Name)
	if err != nil {
		return err
	}
	return framework.Parallel(pods, atOnce, func(p *corev1.Pod) error {
		if !podkind.Ready(p) {
			return nil
		}
		cond := *podkind.Condition(p, corev1.PodReady)
		cond.Status, cond.LastTransitionTime = corev1.ConditionFalse, metav1.Now()
		if err := framework.PatchPodStatus(ctx, c.env, p, map[string]any{"conditions": []corev1.PodCondition{cond}}); err != nil {
			return err
		}
		c.env.Events.Event(p, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
		return nil
	})
}

// taint brings the node's taints in line with its conditions.
func (c *Controller) taint(ctx context.Context, n *corev1.Node, now time.Time) error {
	want := taints(n, false, now)
	if readiness(n) != corev1.ConditionTrue {
		all := taints(n, true, now)
		switch wait, calm, ok := c.turn(n, len(all) > len(want), now); {
		case calm:
			want = slices.DeleteFunc(want, evicts)
		case ok:
			want = all
		case wait > 0:
			c.loop.AddAfter(n.Name, wait)
		}
	}
	if equality.Semantic.DeepEqual(n.Spec.Taints, want) {
		return nil
	}
	// Taints are replaced as a whole: the resourceVersion keeps those that others set meanwhile.
	b, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.UID, "resourceVersion": n.ResourceVersion},
		"spec":     map[string]any{"taints": want},
	})
	if err != nil {
		return err
	}
	_, err = c.env.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, b, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("taint: %w", err)
	}
	return nil
}

// evicts reports a taint of ours that makes pods leave.
func evicts(t corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoExecute && slices.Contains(ours[t.Effect], t.Key)
}

// turn says whether n, which is not ready, may get NoExecute taints now (if it needs any: asks); if not, how long to wait,
// 0: until the state of nodes changes. calm says that no node at all is ready: then nothing is to be evicted anywhere.
func (c *Controller) turn(n *corev1.Node, asks bool, now time.Time) (wait time.Duration, calm, ok bool) {
	all, err := c.nodes.List(labels.Everything())
	if err != nil {
		return 0, false, false
	}
	ready, not, anywhere := 0, 0, 0
	for _, m := range all {
		up := m.Name != n.Name && readiness(m) == corev1.ConditionTrue // the cache may not know yet that n is not
		if up {
			anywhere++
		}
		switch {
		case zone(m) != zone(n):
		case up:
			ready++
		default:
			not++
		}
	}
	every, ok := mayEvict(ready, not, anywhere)
	if !ok || !asks {
		return 0, anywhere == 0, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if last, seen := c.evicted[zone(n)]; seen {
		if left := last.Add(every).Sub(now); left > 0 {
			return left, false, false
		}
	}
	c.evicted[zone(n)] = now
	return 0, false, true
}
