// SPDX-License-Identifier: Apache-2.0

// Package podgc deletes pods that no kubelet will: those on deleted nodes, terminating ones on nodes with the
// out-of-service taint, terminating ones that were never bound, and the oldest finished ones above a limit. The table
// of controllers starts it. It reacts to events of nodes and pods and never polls.
package podgc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	podkind "keelson/api/core/pod"
	"keelson/controllers/framework"
)

const (
	// quarantine is how long a node must be missing before its pods count as lost.
	quarantine  = 40 * time.Second
	maxParallel = 20
)

// workItem is a work item: the pods of a deleted node or, with outOfService, of one that is out of service; one unbound
// pod; or (the zero job) the number of finished pods.
type workItem struct {
	node         string
	outOfService bool
	pod          framework.Key
}

// Controller collects pods.
type Controller struct {
	env       *framework.Env
	loop      *framework.Loop[workItem]
	threshold int
	nodes     corelisters.NodeLister
	pods      corelisters.PodLister
	index     cache.Indexer
	metrics   *Metrics

	mu       sync.Mutex
	finished map[types.UID]struct{}
}

// New builds the controller; keep is the number of finished pods to keep, negative: all.
func New(env *framework.Env, keep int, metrics *Metrics) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	pods := core.Pods().Informer()
	controller := &Controller{
		env:       env,
		metrics:   metrics,
		threshold: keep,
		nodes:     core.Nodes().Lister(),
		pods:      core.Pods().Lister(),
		index:     pods.GetIndexer(),
		finished:  map[types.UID]struct{}{},
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	err := errors.Join(
		framework.EnsureIndex(pods, framework.ByNode, framework.IndexByNode),
		framework.On(controller.loop, core.Nodes().Informer(), framework.Handlers[*corev1.Node]{
			Add:    controller.nodeChanged,
			Update: func(_, n *corev1.Node) { controller.nodeChanged(n) },
			Delete: func(n *corev1.Node) { controller.loop.AddAfter(workItem{node: n.Name}, quarantine) },
		}),
		framework.On(controller.loop, pods, framework.Handlers[*corev1.Pod]{
			Add:    func(p *corev1.Pod) { controller.podChanged(nil, p) },
			Update: controller.podChanged,
			Delete: func(p *corev1.Pod) { controller.count(p.UID, false) },
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("pod garbage collector: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *Controller) nodeChanged(n *corev1.Node) {
	if outOfService(n) {
		c.loop.Add(workItem{node: n.Name, outOfService: true})
	}
}

// outOfService reports whether a node has the out-of-service taint: it is shut down and will not return with its pods.
func outOfService(n *corev1.Node) bool {
	if !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService }) {
		return false
	}
	return !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func (c *Controller) podChanged(old, pod *corev1.Pod) {
	switch {
	case pod.Spec.NodeName != "" && pod.DeletionTimestamp != nil && (old == nil || old.DeletionTimestamp == nil):
		if n, err := c.nodes.Get(pod.Spec.NodeName); err == nil && outOfService(n) {
			c.loop.Add(workItem{node: n.Name, outOfService: true})
		} else if apierrors.IsNotFound(err) {
			c.loop.AddAfter(workItem{node: pod.Spec.NodeName}, quarantine)
		}
	case pod.Spec.NodeName == "" && pod.DeletionTimestamp != nil:
		c.loop.Add(workItem{pod: framework.KeyOf(pod)})
	case pod.Spec.NodeName != "" && (old == nil || old.Spec.NodeName == ""):
		if _, err := c.nodes.Get(pod.Spec.NodeName); apierrors.IsNotFound(err) {
			// Perhaps only the node's event is late.
			c.loop.AddAfter(workItem{node: pod.Spec.NodeName}, quarantine)
		}
	}
	c.count(pod.UID, podkind.Terminal(pod))
}

// count counts finished pods and queues a check when there are too many.
func (c *Controller) count(uid types.UID, finished bool) {
	c.mu.Lock()
	if finished {
		c.finished[uid] = struct{}{}
	} else {
		delete(c.finished, uid)
	}
	n := len(c.finished)
	c.mu.Unlock()
	if finished && c.threshold >= 0 && n > c.threshold {
		c.loop.AddAfter(workItem{}, time.Second) // pods often finish in groups
	}
}

func (c *Controller) sync(ctx context.Context, j workItem) error {
	switch {
	case j.outOfService:
		return c.gcOutOfService(ctx, j.node)
	case j.node != "":
		return c.gcOrphaned(ctx, j.node)
	case j.pod.Name != "":
		return c.gcUnscheduledTerminating(ctx, j.pod)
	}
	return c.gcTerminated(ctx)
}

// gcOrphaned fails and deletes the pods of a node that does not exist.
func (c *Controller) gcOrphaned(ctx context.Context, node string) error {
	if _, err := c.nodes.Get(node); err == nil || !apierrors.IsNotFound(err) {
		return err
	}
	// The cache may be stale, so the node is read from the API server.
	if _, err := c.env.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); err == nil ||
		!apierrors.IsNotFound(err) {
		return err
	}
	pods, err := framework.PodsOn(c.index, node)
	if err != nil {
		return err
	}
	return framework.Parallel(pods, maxParallel, func(p *corev1.Pod) error {
		d := framework.Disruption{Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists", Fail: true}
		c.env.Log.Info("pod of a lost node deleted", "pod", framework.KeyOf(p).String(), "node", node)
		return c.remove(ctx, p, "orphaned", framework.Disrupt(ctx, c.env, p, d))
	})
}

// gcOutOfService deletes the terminating pods of a node whose kubelet is down.
func (c *Controller) gcOutOfService(ctx context.Context, node string) error {
	n, err := c.nodes.Get(node)
	if apierrors.IsNotFound(err) || err == nil && !outOfService(n) {
		return nil
	}
	if err != nil {
		return err
	}
	pods, err := framework.PodsOn(c.index, node)
	if err != nil {
		return err
	}
	pods = slices.DeleteFunc(pods, func(p *corev1.Pod) bool { return p.DeletionTimestamp == nil })
	return framework.Parallel(pods, maxParallel, func(p *corev1.Pod) error {
		c.env.Log.Info("pod of a node out of service deleted", "pod", framework.KeyOf(p).String(), "node", node)
		return c.remove(ctx, p, "out-of-service", c.fail(ctx, p))
	})
}

// fail sets the phase Failed of an unfinished pod, because no kubelet will set its phase.
func (c *Controller) fail(ctx context.Context, p *corev1.Pod) error {
	if podkind.Terminal(p) {
		return nil
	}
	return framework.PatchPodStatus(ctx, c.env, p, map[string]any{"phase": corev1.PodFailed})
}

// remove deletes p immediately, unless err, the result of fail, is set; it counts the result.
func (c *Controller) remove(ctx context.Context, p *corev1.Pod, reason string, err error) error {
	c.metrics.deleted.WithLabelValues(p.Namespace, reason).Inc()
	if err == nil {
		err = framework.DeletePod(ctx, c.env, p, new(int64))
	}
	if err != nil {
		c.metrics.failed.WithLabelValues(p.Namespace, reason).Inc()
	}
	return err
}

// gcUnscheduledTerminating deletes a terminating pod without a node.
func (c *Controller) gcUnscheduledTerminating(ctx context.Context, key framework.Key) error {
	p, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && (p.Spec.NodeName != "" || p.DeletionTimestamp == nil) {
		return nil
	}
	if err != nil {
		return err
	}
	return c.remove(ctx, p, "unscheduled", c.fail(ctx, p))
}

// gcTerminated deletes the oldest finished pods above the limit.
func (c *Controller) gcTerminated(ctx context.Context) error {
	all, err := c.pods.List(labels.Everything())
	if err != nil {
		return err
	}
	return framework.Parallel(beyondThreshold(all, c.threshold), maxParallel, func(p *corev1.Pod) error {
		return c.remove(ctx, p, "terminated", nil)
	})
}

// beyondThreshold returns the finished pods above keep: evicted ones first, then the oldest.
func beyondThreshold(all []*corev1.Pod, threshold int) []*corev1.Pod {
	finished := slices.DeleteFunc(slices.Clone(all), func(p *corev1.Pod) bool { return !podkind.Terminal(p) })
	n := len(finished) - threshold
	if n <= 0 || threshold < 0 {
		return nil
	}
	evicted := func(p *corev1.Pod) int {
		if p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Evicted" {
			return 0
		}
		return 1
	}
	slices.SortFunc(finished, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(evicted(a), evicted(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name))
	})
	return finished[:n]
}
