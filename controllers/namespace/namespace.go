// SPDX-License-Identifier: Apache-2.0

// Package namespace deletes the content of terminating namespaces, then their finalizer. The table of controllers
// starts it. It discovers all resources, deletes pods before other objects (which the pods may still need), and reports
// in the namespace's conditions what blocks the deletion. It never touches a namespace without a deletionTimestamp.
package namespace

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"keelson/controllers/framework"
	"keelson/controllers/internal/catalog"
)

const (
	// maxParallel is the number of resources of one namespace processed in parallel.
	maxParallel = 8
	// The content is checked again after firstInterval, then at growing intervals, or earlier when a pod ends.
	firstInterval = 250 * time.Millisecond
	maxInterval   = 15 * time.Second
)

var podsGVR = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// Controller deletes namespaces.
type Controller struct {
	env    *framework.Env
	loop   *framework.Loop[framework.Key]
	lister corelisters.NamespaceLister
	pods   corelisters.PodLister

	mu       sync.Mutex
	rechecks map[string]recheck // by namespace
}

// recheck is the time of the next check.
type recheck struct {
	next     time.Time
	interval time.Duration // the interval after it
}

// New builds the controller and registers handlers with env's informers.
func New(env *framework.Env) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	controller := &Controller{
		env:      env,
		lister:   core.Namespaces().Lister(),
		pods:     core.Pods().Lister(),
		rechecks: map[string]recheck{},
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	err := errors.Join(
		framework.On(controller.loop, core.Namespaces().Informer(), framework.Handlers[*corev1.Namespace]{
			Add:    controller.changed,
			Update: func(_, ns *corev1.Namespace) { controller.changed(ns) },
			Delete: func(ns *corev1.Namespace) { controller.nextInterval(ns.Name, false) },
		}),
		framework.On(controller.loop, core.Pods().Informer(), framework.Handlers[*corev1.Pod]{
			Delete: controller.podDeleted,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("namespace controller: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *Controller) changed(ns *corev1.Namespace) {
	if ns.DeletionTimestamp != nil {
		c.loop.Add(framework.KeyOf(ns))
	}
}

func (c *Controller) podDeleted(p *corev1.Pod) {
	if ns, err := c.lister.Get(p.Namespace); err == nil && ns.DeletionTimestamp != nil {
		// Many pods end together: combine them into one check.
		c.loop.AddAfter(framework.KeyOf(ns), 20*time.Millisecond)
	}
}

// sync is one pass over a terminating namespace.
func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	ns, err := c.lister.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if ns.DeletionTimestamp == nil || !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return nil
	}
	if d := c.untilCheck(ns.Name); d > 0 {
		c.loop.AddAfter(key, d)
		return nil
	}
	f, err := c.deleteContent(ctx, ns)
	if err != nil {
		return err
	}
	if f.empty() {
		return c.finalize(ctx, ns)
	}
	if err := c.writeConditions(ctx, ns, f); err != nil {
		return err
	}
	c.loop.AddAfter(key, c.nextInterval(key.Name, true))
	return nil
}

// nextInterval returns the growing interval until the next check, or forgets the namespace.
func (c *Controller) nextInterval(name string, longer bool) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !longer {
		delete(c.rechecks, name)
		return 0
	}
	d := max(firstInterval, c.rechecks[name].interval)
	c.rechecks[name] = recheck{time.Now().Add(d), min(2*d, maxInterval)}
	return d
}

// untilCheck is the remaining time until a check while pods terminate. To check thousands of pods whenever one ends
// would take the CPU time that they need to terminate. 0: now.
func (c *Controller) untilCheck(name string) time.Duration {
	c.mu.Lock()
	d := time.Until(c.rechecks[name].next)
	c.mu.Unlock()
	if d <= 0 {
		return 0
	}
	if pods, err := c.pods.Pods(name).List(labels.Everything()); err != nil || len(pods) == 0 {
		return 0
	}
	return d
}

// deleteContent deletes the content of the namespace, pods first, and returns what is left.
func (c *Controller) deleteContent(ctx context.Context, ns *corev1.Namespace) (*deletionResult, error) {
	f := &deletionResult{remaining: map[schema.GroupVersionResource]int{}, finalizer: map[string]int{}}
	all, err := catalog.Load(ctx, c.env.Client.Discovery())
	var partial *catalog.PartialError
	switch {
	case errors.As(err, &partial):
		f.discovery = partial
	case err != nil:
		return nil, err
	}
	var pods, rest []*catalog.Resource
	for _, r := range all {
		switch {
		case !r.Namespaced || !r.Supports("list") || !r.Supports("delete") && !r.Supports("deletecollection"):
		case r.GVR == podsGVR:
			pods = append(pods, r)
		default:
			rest = append(rest, r)
		}
	}
	c.deleteResources(ctx, ns.Name, pods, f)
	if len(f.remaining) == 0 && len(f.failures) == 0 {
		c.deleteResources(ctx, ns.Name, rest, f)
	}
	return f, nil
}

// deleteResources deletes all objects of the resources and records in f what is left.
func (c *Controller) deleteResources(ctx context.Context, ns string, resources []*catalog.Resource, f *deletionResult) {
	var mu sync.Mutex
	_ = framework.Parallel(resources, maxParallel, func(r *catalog.Resource) error { // errors are stored in f
		left, err := c.deleteResource(ctx, ns, r)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			f.failures = append(f.failures, err)
			return nil
		}
		f.add(r.GVR, left)
		return nil
	})
}

func (c *Controller) deleteResource(
	ctx context.Context, ns string, res *catalog.Resource,
) ([]metav1.PartialObjectMetadata, error) {
	client := c.env.Client.Metadata.Resource(res.GVR).Namespace(ns)
	list := func() ([]metav1.PartialObjectMetadata, error) {
		l, err := client.List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			return nil, nil // the resource was removed after discovery
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", res.GVR.GroupResource(), err)
		}
		return l.Items, nil
	}
	items, err := list()
	if err != nil || len(items) == 0 {
		return nil, err
	}
	if !slices.ContainsFunc(items, notDeleting) {
		return items, nil
	}
	background := metav1.DeletePropagationBackground
	opts := metav1.DeleteOptions{PropagationPolicy: &background}
	collection := res.Supports("deletecollection")
	if collection {
		err := client.DeleteCollection(ctx, opts, metav1.ListOptions{})
		if collection = !apierrors.IsMethodNotSupported(err); collection && err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("delete all %s: %w", res.GVR.GroupResource(), err)
		}
	}
	if !collection {
		err := framework.Parallel(items, maxParallel, func(o metav1.PartialObjectMetadata) error {
			err := client.Delete(ctx, o.Name, opts)
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("delete %s: %w", res.GVR.GroupResource(), err)
		}
	}
	return list()
}

// notDeleting reports whether deleting o would change something.
func notDeleting(o metav1.PartialObjectMetadata) bool {
	return o.DeletionTimestamp == nil || slices.Contains(o.Finalizers, metav1.FinalizerDeleteDependents) ||
		slices.Contains(o.Finalizers, metav1.FinalizerOrphanDependents)
}

// writeConditions writes what blocks the deletion to the namespace's status.
func (c *Controller) writeConditions(ctx context.Context, ns *corev1.Namespace, f *deletionResult) error {
	next := ns.DeepCopy()
	next.Status.Phase = corev1.NamespaceTerminating
	next.Status.Conditions = f.conditions(ns.Status.Conditions, time.Now())
	if equality.Semantic.DeepEqual(ns.Status, next.Status) {
		return nil
	}
	_, err := c.env.Client.CoreV1().Namespaces().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}

// finalize removes our finalizer, which usually completes the deletion.
func (c *Controller) finalize(ctx context.Context, ns *corev1.Namespace) error {
	next := ns.DeepCopy()
	next.Spec.Finalizers = slices.DeleteFunc(next.Spec.Finalizers, func(f corev1.FinalizerName) bool {
		return f == corev1.FinalizerKubernetes
	})
	_, err := c.env.Client.CoreV1().Namespaces().Finalize(ctx, next, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("finalize: %w", err)
	}
	if err == nil {
		c.env.Log.Info("namespace is empty", "controller", c.env.Name, "namespace", ns.Name)
	}
	return nil
}
