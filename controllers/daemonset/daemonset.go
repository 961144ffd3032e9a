// SPDX-License-Identifier: Apache-2.0

// Package daemonset maintains one pod of every DaemonSet on each selected node, pinned to the node so that the
// scheduler binds it there, and replaces the pods node by node when the template changes. The table of controllers
// starts it. Decisions are pure functions (nodes.go, plan.go); apply.go acts. It never binds pods itself.
package daemonset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/controllers/framework"
	"keelson/controllers/internal/history"
)

var gvk = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

// Controller handles all DaemonSets.
type Controller struct {
	env     *framework.Env
	loop    *framework.Loop[framework.Key]
	expect  *framework.Expectations
	owners  *framework.Owners[*appsv1.DaemonSet, *corev1.Pod]
	nodes   corelisters.NodeLister
	pods    cache.Indexer
	history *history.Manager
	own     framework.Ownership[*corev1.Pod]
	backoff failedPodsBackoff
}

// New builds the controller and registers handlers with env's informers.
func New(env *framework.Env) (framework.Controller, error) {
	sets := appsinformers.New(env.Shared.Scoped()).DaemonSets()
	pods := coreinformers.New(env.Shared.Scoped()).Pods().Informer()
	nodes := coreinformers.New(env.Shared.Scoped()).Nodes()
	live := func(ctx context.Context, namespace, name string) (metav1.Object, error) {
		return env.Client.AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	keeper, err := history.New(env, gvk, live)
	if err != nil {
		return nil, fmt.Errorf("daemonset controller: %w", err)
	}
	controller := &Controller{
		env:     env,
		expect:  framework.NewExpectations(),
		nodes:   nodes.Lister(),
		pods:    pods.GetIndexer(),
		history: keeper,
		own:     framework.PodOwnership(env, gvk, live),
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	controller.owners, err = framework.WatchOwners(env, controller.loop, sets.Informer(),
		pods, framework.Owners[*appsv1.DaemonSet, *corev1.Pod]{
			Kind:        gvk.Kind,
			Expect:      controller.expect,
			StatusDelay: statusDelay,
			Selector:    func(set *appsv1.DaemonSet) *metav1.LabelSelector { return set.Spec.Selector },
		})
	err = errors.Join(
		err,
		framework.EnsureIndex(pods, framework.ByController, framework.IndexByController),
		framework.On(controller.loop, nodes.Informer(), framework.Handlers[*corev1.Node]{
			Add:    controller.nodeAdded,
			Update: controller.nodeUpdated,
			Delete: controller.nodeDeleted,
		}),
		framework.On(controller.loop, keeper.Informer(), framework.Each(func(r *appsv1.ControllerRevision) {
			controller.owners.EnqueueAdopters(r)
		})),
	)
	if err != nil {
		return nil, fmt.Errorf("daemonset controller: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

// statusDelay spreads the passes over a set on thousands of nodes to a few per second.
func statusDelay(set *appsv1.DaemonSet) time.Duration {
	return time.Duration(min(set.Status.DesiredNumberScheduled/50, 100)) * time.Millisecond
}

func (c *Controller) nodeAdded(n *corev1.Node) {
	for _, set := range c.owners.All("") {
		if run, _ := newNodeFit(set).shouldRun(n); run {
			c.owners.EnqueueDelayed(set)
		}
	}
}

// nodeUpdated requeues the sets for which a relevant field of the node has changed; heartbeats do not matter.
func (c *Controller) nodeUpdated(old, cur *corev1.Node) {
	if maps.Equal(old.Labels, cur.Labels) && equality.Semantic.DeepEqual(old.Spec.Taints, cur.Spec.Taints) &&
		old.UID == cur.UID {
		return
	}
	for _, set := range c.owners.All("") {
		f := newNodeFit(set)
		runs, stays := f.shouldRun(old)
		if run, stay := f.shouldRun(cur); run != runs || stay != stays || old.UID != cur.UID {
			c.owners.EnqueueDelayed(set)
		}
	}
}

func (c *Controller) nodeDeleted(*corev1.Node) {
	for _, set := range c.owners.All("") {
		c.owners.EnqueueDelayed(set)
	}
}

// sync is one pass over one set.
func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	_, err := c.owners.Pass(key, func(set *appsv1.DaemonSet, sel labels.Selector) error {
		if c.env.SelectsAll(set, "daemon set", set.Spec.Selector) || set.DeletionTimestamp != nil {
			return nil // the garbage collector deletes the pods and revisions of a deleted set
		}
		return c.pass(ctx, key, set, sel)
	})
	return err
}

func (c *Controller) pass(ctx context.Context, key framework.Key, set *appsv1.DaemonSet, sel labels.Selector) error {
	begin := time.Now()
	var err error
	snap := snapshot{set: set, expectationsSatisfied: c.expect.Satisfied(set.UID), now: begin}
	snap.backoffLeft = func(node string) time.Duration { return c.backoff.remaining(backoffKeyOf(set, node), begin) }
	if snap.nodes, err = c.nodes.List(labels.Everything()); err != nil {
		return err
	}
	if snap.pods, err = c.claim(ctx, set, sel); err != nil {
		return err
	}
	state, err := c.history.Sync(ctx, history.Owner{
		Object:     set,
		Selector:   sel,
		Template:   &set.Spec.Template,
		Collisions: set.Status.CollisionCount,
		HashLabel:  appsv1.DefaultDaemonSetUniqueLabelKey,
	})
	if err != nil {
		return err
	}
	snap.hash = hashOf(state.Update)
	snap.collisions = state.Collisions
	p := decide(snap)
	failure := c.act(ctx, key, snap, p)
	if err := framework.UpdateStatus(ctx, c.env.Client.AppsV1().DaemonSets(set.Namespace), set, statusOf,
		status(snap, p)); err != nil {
		return errors.Join(failure, err)
	}
	if p.next > 0 {
		c.loop.AddAfter(key, p.next)
	}
	return errors.Join(failure, c.truncate(ctx, snap, state))
}

func statusOf(set *appsv1.DaemonSet) *appsv1.DaemonSetStatus { return &set.Status }

// hashOf is the hash label of a revision's pods.
func hashOf(r *appsv1.ControllerRevision) string {
	if h := r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]; h != "" {
		return h
	}
	return r.Name
}

func backoffKeyOf(set *appsv1.DaemonSet, node string) backoffKey {
	return backoffKey{set.UID, set.Status.ObservedGeneration, node}
}

// claim returns the set's pods after adoption and release.
func (c *Controller) claim(ctx context.Context, set *appsv1.DaemonSet, sel labels.Selector) ([]*corev1.Pod, error) {
	mine, adopted, err := c.own.ClaimCached(ctx, c.pods, set, sel, nil)
	if err != nil {
		return nil, fmt.Errorf("pods: %w", err)
	}
	return append(mine, adopted...), nil
}

// truncate deletes unused revisions beyond the limit.
func (c *Controller) truncate(ctx context.Context, s snapshot, h *history.State) error {
	if s.set.Spec.RevisionHistoryLimit == nil {
		return nil
	}
	live := map[string]bool{}
	for _, p := range s.pods {
		live[p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
	}
	return c.history.Truncate(ctx, h, int(*s.set.Spec.RevisionHistoryLimit), func(r *appsv1.ControllerRevision) bool {
		return live[hashOf(r)]
	})
}
