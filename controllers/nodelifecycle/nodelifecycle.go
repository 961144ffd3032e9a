// SPDX-License-Identifier: Apache-2.0

// Package nodelifecycle detects nodes that do not renew their leases and sets the conditions Unknown, taints, and the
// readiness of their pods. The table of controllers starts it; tainteviction then evicts pods. A renewed lease only
// updates a time stamp: each node has one timer, which checks the stamp when it fires, so that a thousand healthy nodes
// cause a thousand wake-ups per grace period. It never deletes pods.
package nodelifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	podkind "keelson/api/core/pod"
	"keelson/client"
	"keelson/controllers/framework"
)

const (
	maxParallel = 20
	// Registrations are recorded as events, but not thousands at once.
	registeredBurst, registeredPerSec = 100, 1
	// newNodeAge is the age of nodes that may have registered while the controller did not run.
	newNodeAge = time.Minute
	// usualLease is the lease duration of kubelets in seconds.
	usualLease = 40
)

// Controller handles all nodes.
type Controller struct {
	env           *framework.Env
	cfg           Config
	loop          *framework.Loop[string]
	nodes         corelisters.NodeLister
	pods          cache.Indexer
	zones         *zones
	metrics       *Metrics
	registrations *rate.Limiter
	// leases has only the leases of kube-node-lease.
	leases *client.Informers

	mu         sync.Mutex
	heartbeats map[string]heartbeat
}

// heartbeat is the last observed heartbeat of a node.
type heartbeat struct {
	at      time.Time
	lease   time.Duration // the duration in its lease; 0: no lease
	renewed time.Time     // the renewal time in its lease, by the node's clock
}

// New builds the controller. A node may be silent for cfg.Grace, or for its lease duration if that is longer.
func New(env *framework.Env, cfg Config, metrics *Metrics) (framework.Controller, error) {
	cfg = cfg.Default()
	core := coreinformers.New(env.Shared.Scoped())
	pods := core.Pods().Informer()
	controller := &Controller{
		env:           env,
		cfg:           cfg,
		nodes:         core.Nodes().Lister(),
		pods:          pods.GetIndexer(),
		zones:         newZones(cfg, metrics),
		metrics:       metrics,
		registrations: rate.NewLimiter(registeredPerSec, registeredBurst),
		leases:        env.Client.Informers(0, client.Scope{Namespace: corev1.NamespaceNodeLease}),
		heartbeats:    map[string]heartbeat{},
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	err := errors.Join(
		framework.EnsureIndex(pods, framework.ByNode, framework.IndexByNode),
		framework.On(controller.loop, core.Nodes().Informer(), framework.Handlers[*corev1.Node]{
			Add:    controller.nodeAdded,
			Update: controller.nodeUpdated,
			Delete: controller.nodeDeleted,
		}),
		framework.On(controller.loop,
			coordinationinformers.New(controller.leases.Scoped()).Leases().
				Informer(), framework.Handlers[*coordination.Lease]{
				Add: controller.leaseFound,
				Update: func(old, l *coordination.Lease) {
					if !equality.Semantic.DeepEqual(old.Spec, l.Spec) { // a restarted watch delivers all leases again
						controller.leaseRenewed(l)
					}
				},
				Delete: controller.leaseDeleted,
			}),
		framework.On(controller.loop, pods, framework.Handlers[*corev1.Pod]{
			Add:    func(p *corev1.Pod) { controller.podChanged(nil, p) },
			Update: controller.podChanged,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("node controller: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error {
	return c.loop.RunWith(ctx, ready, c.leases)
}

func (c *Controller) nodeAdded(n *corev1.Node) {
	c.recordHeartbeat(n.Name, nil)
	c.observe(n)
	c.loop.Add(n.Name)
	if time.Since(n.CreationTimestamp.Time) < newNodeAge && c.registrations.Allow() {
		c.env.Events.Eventf(nodeRef(n), corev1.EventTypeNormal, "RegisteredNode", "Registered Node %s in Controller",
			n.Name)
	}
}

func (c *Controller) nodeUpdated(old, n *corev1.Node) {
	if was, is := condition(old, corev1.NodeReady), condition(n, corev1.NodeReady); is != nil &&
		is.Status != corev1.ConditionUnknown &&
		(was == nil || !was.LastHeartbeatTime.Equal(&is.LastHeartbeatTime)) {
		c.recordHeartbeat(n.Name, nil)
	}
	c.observe(n)
	c.loop.Add(n.Name)
}

// observe counts n in its zone, and requeues the nodes for which that changes something.
func (c *Controller) observe(n *corev1.Node) {
	if c.zones.update(n) {
		c.requeueNotReady()
	}
}

// podChanged requeues a silent node when one of its pods becomes ready again, due to a stale cache.
func (c *Controller) podChanged(old, p *corev1.Pod) {
	if p.Spec.NodeName == "" || !podkind.Ready(p) || old != nil && podkind.Ready(old) {
		return
	}
	if n, err := c.nodes.Get(p.Spec.NodeName); err == nil && statusUnknown(n) {
		c.loop.Add(n.Name)
	}
}

// requeueNotReady requeues all nodes that are not ready.
func (c *Controller) requeueNotReady() {
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

func (c *Controller) nodeDeleted(n *corev1.Node) {
	c.mu.Lock()
	delete(c.heartbeats, n.Name)
	c.mu.Unlock()
	if c.zones.remove(n.Name) {
		c.requeueNotReady()
	}
	if c.registrations.Allow() {
		c.env.Events.Eventf(nodeRef(n), corev1.EventTypeNormal, "RemovingNode", "Removing Node %s from Controller",
			n.Name)
	}
}

func (c *Controller) leaseRenewed(l *coordination.Lease) { c.recordHeartbeat(l.Name, l) }

// leaseFound records the heartbeat of a new lease, or of one that exists at the start.
func (c *Controller) leaseFound(l *coordination.Lease) {
	if l.Spec.RenewTime != nil && l.Spec.RenewTime.Time.Before(c.cfg.LeasesSince) &&
		l.Spec.LeaseDurationSeconds != nil {
		l = l.DeepCopy()
		*l.Spec.LeaseDurationSeconds = min(*l.Spec.LeaseDurationSeconds, usualLease)
	}
	c.leaseRenewed(l)
}

// leaseDeleted removes the state of a node that was deleted before its lease, which the kubelet may have renewed until
// now.
func (c *Controller) leaseDeleted(l *coordination.Lease) {
	if _, err := c.nodes.Get(l.Name); apierrors.IsNotFound(err) {
		c.mu.Lock()
		delete(c.heartbeats, l.Name)
		c.mu.Unlock()
	}
}

// recordHeartbeat records a heartbeat.
func (c *Controller) recordHeartbeat(node string, l *coordination.Lease) {
	c.mu.Lock()
	s := c.heartbeats[node]
	was := s.lease
	s.at = time.Now()
	if l != nil && l.Spec.LeaseDurationSeconds != nil {
		s.lease = time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
	}
	if l != nil && l.Spec.RenewTime != nil {
		s.renewed = l.Spec.RenewTime.Time
	}
	c.heartbeats[node] = s
	c.mu.Unlock()
	if s.lease < was { // its timer is set for the longer one
		c.loop.Add(node)
	}
}

func (c *Controller) lastHeartbeat(node string) heartbeat {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.heartbeats[node]
	if !ok {
		s.at = time.Now()
		c.heartbeats[node] = s
	}
	return s
}

// sync is one check of one node.
func (c *Controller) sync(ctx context.Context, name string) error {
	node, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	now := time.Now()
	defer func() { c.metrics.update.Observe(time.Since(now).Seconds()) }()
	s := c.lastHeartbeat(name)
	grace := c.cfg.Grace
	if condition(node, corev1.NodeReady) == nil {
		grace = c.cfg.StartupGrace
	}
	expired, requeueAfter := heartbeatExpired(node, s.at, now, max(grace, s.lease))
	if requeueAfter > 0 {
		c.loop.AddAfter(name, requeueAfter)
	}
	if expired {
		if alive, err := c.renewedOnServer(ctx, name, s); err != nil || alive {
			return err
		}
		if node, err = c.markUnknown(ctx, node, now); err != nil || node == nil {
			return err
		}
		c.observe(node) // the informer also reports it, but after the decision about taints
	}
	if statusUnknown(node) {
		if err := c.markPodsNotReady(ctx, node); err != nil {
			return err
		}
	}
	return c.taint(ctx, node, now)
}

// renewedOnServer reports whether the server has another renewal of a node's lease than the controller has observed,
// because its watch is late. The renewal counts as a heartbeat.
func (c *Controller) renewedOnServer(ctx context.Context, node string, last heartbeat) (bool, error) {
	if last.lease == 0 {
		return false, nil
	}
	live, err := c.env.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read lease of node %s: %w", node, err)
	case live.Spec.RenewTime == nil || live.Spec.RenewTime.Time.Equal(last.renewed): // the node's clock may be set back
		return false, nil
	}
	c.recordHeartbeat(node, live)
	c.loop.Add(node)
	return true, nil
}

// markUnknown sets the node's conditions to Unknown; it returns the stored node, nil if it was deleted.
func (c *Controller) markUnknown(ctx context.Context, node *corev1.Node, now time.Time) (*corev1.Node, error) {
	was := readiness(node)
	next := node.DeepCopy()
	next.Status.Conditions = unknownConditions(node, now)
	stored, err := c.env.Client.CoreV1().Nodes().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("write status: %w", err)
	}
	if was == corev1.ConditionTrue {
		c.env.Log.Warn("node is silent", "node", node.Name)
		c.env.Events.Eventf(nodeRef(node), corev1.EventTypeNormal, "NodeNotReady",
			"Node %s status is now: NodeNotReady",
			node.Name)
	}
	return stored, nil
}

// nodeRef is the node's reference in events.
func nodeRef(n *corev1.Node) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "v1",
		Kind:       "Node",
		Name:       n.Name,
		UID:        n.UID,
	}
}

// markPodsNotReady sets the pods of a silent node to not ready, so that Services stop sending to them. As long as a
// kubelet reports, it alone sets the readiness: a pod that became ready later is left alone, or both would overwrite
// each other forever.
func (c *Controller) markPodsNotReady(ctx context.Context, n *corev1.Node) error {
	pods, err := framework.PodsOn(c.pods, n.Name)
	if err != nil {
		return err
	}
	since := condition(n, corev1.NodeReady).LastTransitionTime // it exists: statusUnknown found it
	return framework.Parallel(pods, maxParallel, func(pod *corev1.Pod) error {
		if !podkind.Ready(pod) {
			return nil
		}
		cond := *podkind.Condition(pod, corev1.PodReady)
		if !since.IsZero() && !cond.LastTransitionTime.Before(&since) {
			return nil
		}
		cond.Status = corev1.ConditionFalse
		cond.LastTransitionTime = metav1.Now()
		if err := framework.PatchPodStatus(ctx, c.env, pod,
			map[string]any{"conditions": []corev1.PodCondition{cond}}); err != nil {
			return err
		}
		c.env.Events.Event(pod, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
		return nil
	})
}

// taint updates the node's taints, and the deprecated labels, from its conditions.
func (c *Controller) taint(ctx context.Context, node *corev1.Node, now time.Time) error {
	want := taints(node, false, now)
	evicted := false
	if readiness(node) != corev1.ConditionTrue && condition(node, corev1.NodeReady) != nil {
		all := taints(node, true, now)
		switch {
		case c.zones.noneReady():
			want = slices.DeleteFunc(want, evicts)
		case len(all) == len(want): // the node has them
		case slices.ContainsFunc(node.Spec.Taints, evicts):
			want = all // one reason replaced another: its pods are being evicted already
		default:
			wait, turn := c.zones.allowEviction(zone(node), now)
			switch {
			case turn:
				want = all
				evicted = true
			case wait > 0:
				c.loop.AddAfter(node.Name, wait)
			}
		}
	}
	patch := map[string]any{}
	if l := missingLabels(node); l != nil {
		patch["labels"] = l
	}
	changed := !equality.Semantic.DeepEqual(node.Spec.Taints, want)
	if !changed && len(patch) == 0 {
		return nil
	}
	// The list of taints is replaced as a whole; the resourceVersion protects concurrent changes.
	patch["uid"] = node.UID
	patch["resourceVersion"] = node.ResourceVersion
	whole := map[string]any{"metadata": patch}
	if changed {
		whole["spec"] = map[string]any{"taints": want}
	}
	b, err := json.Marshal(whole)
	if err != nil {
		return err
	}
	_, err = c.env.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, b, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		if evicted {
			c.zones.undoEviction(zone(node), now)
		}
		return fmt.Errorf("taint: %w", err)
	case evicted:
		c.metrics.evictions.WithLabelValues(zone(node)).Inc()
	}
	return nil
}

// evicts reports whether this is one of our NoExecute taints.
func evicts(t corev1.Taint) bool {
	return t.Effect == corev1.TaintEffectNoExecute && slices.Contains(managedTaints[t.Effect], t.Key)
}

// statusUnknown reports whether a node's Ready condition is Unknown.
func statusUnknown(n *corev1.Node) bool {
	c := condition(n, corev1.NodeReady)
	return c != nil && c.Status == corev1.ConditionUnknown
}
