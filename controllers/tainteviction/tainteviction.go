// SPDX-License-Identifier: Apache-2.0

// Package tainteviction deletes pods from nodes with NoExecute taints that they do not tolerate, or no longer after
// their tolerationSeconds. The table of controllers starts it. A pure function (toleration.go) decides at each change
// of taints or tolerations; removing a taint cancels the deletion. Future evictions are shown as an event of the node
// (event.go), and as a mark for `keelson why`. It never taints a node.
package tainteviction

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/controllers/framework"
	"keelson/event"
)

// Controller evicts pods.
type Controller struct {
	env     *framework.Env
	loop    *framework.Loop[framework.Key]
	nodes   corelisters.NodeLister
	pods    corelisters.PodLister
	index   cache.Indexer
	metrics *Metrics

	mu      sync.Mutex
	pending map[framework.Key]scheduledDeletion
}

// scheduledDeletion is a scheduled deletion.
type scheduledDeletion struct {
	uid       types.UID // the pod's UID
	since, at time.Time
	taint     string // the taint
}

// New builds the controller and registers handlers with env's informers.
func New(env *framework.Env, metrics *Metrics) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	pods := core.Pods().Informer()
	controller := &Controller{
		env:     env,
		metrics: metrics,
		nodes:   core.Nodes().Lister(),
		pods:    core.Pods().Lister(),
		index:   pods.GetIndexer(),
		pending: map[framework.Key]scheduledDeletion{},
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	err := errors.Join(
		framework.EnsureIndex(pods, framework.ByNode, framework.IndexByNode),
		framework.On(controller.loop, core.Nodes().Informer(), framework.Handlers[*corev1.Node]{
			Add:    func(n *corev1.Node) { controller.nodeChanged(nil, n) },
			Update: controller.nodeChanged,
		}),
		framework.On(controller.loop, pods, framework.Handlers[*corev1.Pod]{
			Add:    func(p *corev1.Pod) { controller.podChanged(nil, p) },
			Update: controller.podChanged,
			Delete: func(p *corev1.Pod) { controller.cancel(framework.KeyOf(p)) },
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("taint eviction controller: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *Controller) nodeChanged(old, node *corev1.Node) {
	was := []corev1.Taint(nil)
	is := noExecuteTaints(node.Spec.Taints)
	if old != nil {
		was = noExecuteTaints(old.Spec.Taints)
	}
	if equality.Semantic.DeepEqual(was, is) {
		return
	}
	pods, err := framework.PodsOn(c.index, node.Name)
	if err != nil {
		return
	}
	for _, p := range pods {
		c.loop.Add(framework.KeyOf(p))
	}
	if len(is) > 0 && len(pods) > 0 {
		c.loop.Add(framework.Key{Name: node.Name})
	}
}

func (c *Controller) podChanged(old, pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	if old != nil && old.UID == pod.UID && old.Spec.NodeName == pod.Spec.NodeName &&
		equality.Semantic.DeepEqual(old.Spec.Tolerations, pod.Spec.Tolerations) {
		return
	}
	n, err := c.nodes.Get(pod.Spec.NodeName)
	// If the node is not in the cache yet, its event will come.
	if err == nil && (len(noExecuteTaints(n.Spec.Taints)) > 0 || old != nil && old.Spec.NodeName != "") {
		c.loop.Add(framework.KeyOf(pod))
	}
}

// cancel removes and returns the scheduled deletion of key.
func (c *Controller) cancel(key framework.Key) (scheduledDeletion, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.pending[key]
	delete(c.pending, key)
	return p, ok
}

// sync handles one pod or, if the key has no namespace, the event of a node.
func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	if key.Namespace == "" {
		return c.recordEvictionEvent(key.Name)
	}
	pod, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && pod.DeletionTimestamp != nil {
		c.cancel(key)
		return nil
	}
	if err != nil {
		return err
	}

	// The deletion that was scheduled before is decided again, from the taints and tolerations as they are now.
	var taints []corev1.Taint
	if n, err := c.nodes.Get(pod.Spec.NodeName); err == nil {
		taints = noExecuteTaints(n.Spec.Taints)
	}
	was, waiting := c.cancel(key)
	if was.uid != pod.UID { // another pod had the name
		was = scheduledDeletion{}
		waiting = false
	}
	now := time.Now()
	stays, because := toleration(taints, pod.Spec.Tolerations)
	if because == nil {
		if waiting {
			c.env.Events.Eventf(pod, corev1.EventTypeNormal, "TaintManagerEviction", "Cancelling deletion of Pod %s",
				key)
			c.mark(pod, &event.Eviction{Node: pod.Spec.NodeName, Cancelled: true})
		}
		return nil
	}

	// The wait begins with the taint, and a change of the pod does not restart it.
	if !waiting {
		was.since = tolerationStartOf(pod, because, now)
	}
	next := scheduledDeletion{
		uid:   pod.UID,
		since: was.since,
		at:    was.since.Add(stays),
		taint: because.ToString(),
	}
	c.schedule(key, next)
	if !next.at.Equal(was.at) || next.taint != was.taint {
		c.mark(pod, &event.Eviction{
			Node:      pod.Spec.NodeName,
			Taint:     next.taint,
			Tolerated: stays,
			Deadline:  next.at,
		})
	}

	// Schedule the deletion, or do it now. It stays scheduled until it has succeeded.
	if left := next.at.Sub(now); left > 0 {
		c.loop.AddAfter(key, left)
		return nil
	}
	c.env.Events.Eventf(pod, corev1.EventTypeNormal, "TaintManagerEviction", "Marking for deletion Pod %s", key)
	d := framework.Disruption{
		Reason:  "DeletionByTaintManager",
		Message: "Taint manager: deleting due to NoExecute taint",
	}
	if err := framework.Disrupt(ctx, c.env, pod, d); err != nil {
		return err
	}
	if err := framework.DeletePod(ctx, c.env, pod, nil); err != nil {
		return err // still scheduled: a retry does not restart the wait
	}
	c.cancel(key)
	c.metrics.deletions.Inc()
	c.metrics.latency.Observe(time.Since(next.at).Seconds())
	return nil
}

// mark sends a mark about the scheduled eviction.
func (c *Controller) mark(pod *corev1.Pod, d *event.Eviction) {
	if c.env.Marks == nil {
		return
	}
	c.env.Marks.Emit(event.Event{
		Step:      event.StepEviction,
		Component: "controllers",
		At:        time.Now(),
		Detail:    d,
		Subject: event.Subject{
			Resource:  "pods",
			Namespace: pod.Namespace,
			Name:      pod.Name,
			UID:       string(pod.UID),
		},
	})
}

func (c *Controller) schedule(key framework.Key, p scheduledDeletion) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending[key] = p
}

// noExecuteTaints are the NoExecute taints.
func noExecuteTaints(taints []corev1.Taint) []corev1.Taint {
	return slices.DeleteFunc(slices.Clone(taints), func(t corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectNoExecute
	})
}
