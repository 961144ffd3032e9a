// SPDX-License-Identifier: Apache-2.0

// Package job runs the pods of Jobs (batch/v1) to completion. The table of controllers starts it. Decisions are pure
// functions of a snapshot: plan.go decides which pods to create and delete and whether the job has ended, accounting.go
// counts each finished pod exactly once, even after crashes; this file and apply.go act. It never handles jobs with
// spec.managedBy of another controller.
package job

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	batchinformers "k8s.io/client-go/informers/batch/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/controllers/framework"
)

var kind = batchv1.SchemeGroupVersion.WithKind("Job")

// workItem is a job, or a pod that may still have the finalizer of a job.
type workItem struct {
	framework.Key
	orphan bool
}

// Controller handles all jobs.
type Controller struct {
	env     *framework.Env
	loop    *framework.Loop[workItem]
	expect  *framework.Expectations
	own     framework.Ownership[*corev1.Pod]
	state   *stateStore
	jobs    cache.Indexer
	pods    cache.Indexer
	metrics *Metrics
}

// New registers handlers with the shared informers; Run does the work.
func New(env *framework.Env, metrics *Metrics) (framework.Controller, error) {
	controller := &Controller{
		env:     env,
		metrics: metrics,
		expect:  framework.NewExpectations(),
		state:   newStateStore(),
	}
	controller.own = framework.PodOwnership(env, kind, func(
		ctx context.Context, namespace, name string,
	) (metav1.Object, error) {
		return env.Client.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
	})
	controller.own.Finalizer = batchv1.JobTrackingFinalizer
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	pods := coreinformers.New(env.Shared.Scoped()).Pods().Informer()
	jobs := batchinformers.New(env.Shared.Scoped()).Jobs().Informer()
	if err := framework.EnsureIndex(pods, framework.ByController, framework.IndexByController); err != nil {
		return nil, err
	}
	controller.pods = pods.GetIndexer()
	controller.jobs = jobs.GetIndexer()
	err := errors.Join(
		framework.On(controller.loop, jobs, framework.Handlers[*batchv1.Job]{
			Add:    controller.jobAdded,
			Update: controller.jobUpdated,
			Delete: controller.jobDeleted,
		}),
		framework.On(controller.loop, pods, framework.Handlers[*corev1.Pod]{
			Add:    controller.podAdded,
			Update: controller.podUpdated,
			Delete: controller.podDeleted,
		}),
	)
	return controller, err
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

// managedBy is the name of the other controller in spec.managedBy, or "".
func managedBy(j *batchv1.Job) string {
	if m := j.Spec.ManagedBy; m != nil && *m != batchv1.JobControllerName {
		return *m
	}
	return ""
}

// enqueueDelayed queues the job after a delay to combine pod events: large jobs are not counted for every pod.
func (c *Controller) enqueueDelayed(j *batchv1.Job) {
	n := int32(1)
	if p := j.Spec.Parallelism; p != nil {
		n = *p
	}
	c.loop.AddAfter(workItem{Key: framework.KeyOf(j)}, time.Duration(min(n, 100))*time.Millisecond)
}

func (c *Controller) jobAdded(j *batchv1.Job) {
	if name := managedBy(j); name != "" {
		c.metrics.external.WithLabelValues(name).Inc()
	}
	c.loop.Add(workItem{Key: framework.KeyOf(j)})
}

func (c *Controller) jobUpdated(old, cur *batchv1.Job) {
	if old.UID != cur.UID {
		c.jobDeleted(old)
		c.jobAdded(cur)
		return
	}
	if isFinished(cur) {
		c.releasePods(cur)
	}
	if old.Generation == cur.Generation {
		c.enqueueDelayed(cur)
		return
	}
	c.loop.Add(workItem{Key: framework.KeyOf(cur)})
}

func (c *Controller) jobDeleted(j *batchv1.Job) {
	c.expect.DeleteExpectations(j.UID)
	c.state.remove(j.UID)
	c.releasePods(j)
}

// releasePods releases the pods of a deleted job.
func (c *Controller) releasePods(j *batchv1.Job) {
	pods, err := framework.PodsOf(c.pods, j.UID)
	if err != nil {
		return
	}
	for _, p := range pods {
		c.enqueueOrphan(p)
	}
}

// enqueueOrphan queues p if it still has the finalizer, which no job will remove.
func (c *Controller) enqueueOrphan(p *corev1.Pod) {
	if tracked(p) {
		c.loop.Add(workItem{framework.KeyOf(p), true})
	}
}

// owner resolves a controller reference to a job in the cache; nil: it is none, or deleted.
func (c *Controller) owner(namespace string, ref *metav1.OwnerReference) *batchv1.Job {
	if ref == nil || ref.Kind != kind.Kind {
		return nil
	}
	obj, ok, err := c.jobs.GetByKey(framework.Key{Namespace: namespace, Name: ref.Name}.String())
	if err != nil || !ok {
		return nil
	}
	j, ok := obj.(*batchv1.Job)
	if !ok || j.UID != ref.UID {
		return nil
	}
	return j
}

func (c *Controller) podAdded(pod *corev1.Pod) {
	c.metrics.terminatedWithFinalizer(nil, pod)
	if pod.DeletionTimestamp != nil {
		c.podDeletionStarted(pod) // first seen in deletion, after a restart
		return
	}
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil {
		c.orphanChanged(pod)
		return
	}
	j := c.owner(pod.Namespace, ref)
	if j == nil || isFinished(j) {
		c.enqueueOrphan(pod)
	}
	c.expect.CreationObserved(ref.UID, 1)
	if j != nil {
		c.enqueueDelayed(j)
	}
}

func (c *Controller) podUpdated(old, cur *corev1.Pod) {
	c.metrics.terminatedWithFinalizer(old, cur)
	if old.UID != cur.UID {
		c.podDeleted(old)
		c.podAdded(cur)
		return
	}
	if old.ResourceVersion == cur.ResourceVersion {
		return
	}
	was := metav1.GetControllerOfNoCopy(old)
	ref := metav1.GetControllerOfNoCopy(cur)
	freed := false
	if ref != nil && !tracked(cur) {
		freed = c.state.removalObserved(ref.UID, cur)
	}
	moved := (was == nil) != (ref == nil) || was != nil && ref != nil && was.UID != ref.UID
	if moved {
		if was != nil {
			c.state.removalObserved(was.UID, cur)
		}
		if j := c.owner(old.Namespace, was); j != nil {
			c.enqueueDelayed(j)
		}
	}
	relabelled := !maps.Equal(old.Labels, cur.Labels)
	switch {
	case cur.DeletionTimestamp != nil:
		c.podDeletionStarted(cur)
	case ref == nil:
		if moved || relabelled || tracked(cur) {
			c.orphanChanged(cur)
		}
	case freed && !moved && !relabelled && old.Status.Phase == cur.Status.Phase:
		// The pass that removed the finalizer has counted the pod.
	default:
		if j := c.owner(cur.Namespace, ref); j != nil {
			c.enqueueDelayed(j)
		}
	}
}

// podDeletionStarted handles the start of p's deletion.
func (c *Controller) podDeletionStarted(p *corev1.Pod) {
	j := c.owner(p.Namespace, metav1.GetControllerOfNoCopy(p))
	if j == nil || isFinished(j) {
		c.enqueueOrphan(p)
		return
	}
	c.expect.DeletionObserved(j.UID, p.UID)
	c.enqueueDelayed(j)
}

func (c *Controller) podDeleted(p *corev1.Pod) {
	c.metrics.terminatedWithFinalizer(p, nil)
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil {
		return
	}
	c.state.removalObserved(ref.UID, p)
	if j := c.owner(p.Namespace, ref); j != nil {
		c.expect.DeletionObserved(j.UID, p.UID)
		c.enqueueDelayed(j)
	}
}

// orphanChanged handles a pod without a controller: its finalizer is removed, and a job may adopt it.
func (c *Controller) orphanChanged(pod *corev1.Pod) {
	c.enqueueOrphan(pod)
	if len(pod.Labels) == 0 {
		return
	}
	objs, err := c.jobs.ByIndex(cache.NamespaceIndex, pod.Namespace)
	if err != nil {
		return
	}
	for _, obj := range objs {
		j, ok := obj.(*batchv1.Job)
		if !ok || isFinished(j) || managedBy(j) != "" {
			continue
		}
		if sel, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil && !sel.Empty() &&
			sel.Matches(labels.Set(pod.Labels)) {
			c.enqueueDelayed(j)
		}
	}
}

// sync is one pass over a job, or over a pod without a job.
func (c *Controller) sync(ctx context.Context, w workItem) error {
	if w.orphan {
		return c.releaseOrphan(ctx, w.Key)
	}
	obj, ok, err := c.jobs.GetByKey(w.String())
	if err != nil {
		return err
	}
	job, isJob := obj.(*batchv1.Job)
	switch {
	case !ok || !isJob:
		return nil
	case managedBy(job) != "":
		return nil
	case isFinished(job):
		c.expect.DeleteExpectations(job.UID)
		c.state.remove(job.UID)
		return nil
	}
	defer c.settleExpectations(w.Key, job)
	return c.run(ctx, w.Key, job)
}

// settleExpectations removes expectations of a job that was deleted during the pass, because expectations added after
// jobDeleted would stay forever.
func (c *Controller) settleExpectations(key framework.Key, j *batchv1.Job) {
	obj, ok, err := c.jobs.GetByKey(key.String())
	if cur, isJob := obj.(*batchv1.Job); err == nil && (!ok || isJob && cur.UID != j.UID) {
		c.expect.DeleteExpectations(j.UID)
		c.state.remove(j.UID)
		return
	}
	if left := c.expect.ExpiresIn(j.UID); left > 0 {
		c.loop.AddAfter(workItem{Key: key}, left) // in case the event never comes
	}
}

func (c *Controller) run(ctx context.Context, key framework.Key, job *batchv1.Job) error {
	known := c.state.get(job)
	if known.cacheStale(job) {
		return nil // the update event will requeue it
	}
	snap := snapshot{
		job:                   job,
		finalizerRemoved:      known.finalizerRemoved,
		failures:              known.failures,
		expectationsSatisfied: c.expect.Satisfied(job.UID),
		now:                   time.Now(),
	}
	if mode := job.Spec.CompletionMode; mode != nil && *mode != batchv1.NonIndexedCompletion &&
		*mode != batchv1.IndexedCompletion {
		c.env.Events.Event(job, corev1.EventTypeWarning, "UnknownCompletionMode",
			"Skipped Job sync because completion mode is unknown")
		return nil
	}
	sel, err := metav1.LabelSelectorAsSelector(job.Spec.Selector)
	if err != nil {
		c.env.Log.Warn("invalid selector", "controller", c.env.Name, "key", key.String(), "err", err)
		return nil // retrying does not help
	}
	if snap.pods, err = c.claim(ctx, job, sel); err != nil {
		return err
	}
	p := decide(snap)
	o, failure := c.act(ctx, key, snap.now, snap, p)
	a := newAccounting(snap, p, o)
	err = errors.Join(failure, c.flushStatus(ctx, snap, &a))
	c.metrics.observeSync(job, p, time.Since(snap.now), err)
	if p.requeueAfter > 0 {
		c.loop.AddAfter(workItem{Key: key}, p.requeueAfter)
	}
	if a.truncated && err == nil {
		c.enqueueDelayed(job)
	}
	return err
}

// claim returns the job's pods after adoption and release.
func (c *Controller) claim(ctx context.Context, j *batchv1.Job, sel labels.Selector) ([]*corev1.Pod, error) {
	mine, adopted, err := c.own.ClaimCached(ctx, c.pods, j, sel, nil)
	for _, p := range adopted {
		if !tracked(p) {
			p = p.DeepCopy()
			p.Finalizers = append(p.Finalizers, batchv1.JobTrackingFinalizer)
		}
		mine = append(mine, p)
	}
	return mine, err
}

// releaseOrphan removes the finalizer of a pod that no job manages any more: the job is finished or deleted, or has
// released the pod.
func (c *Controller) releaseOrphan(ctx context.Context, key framework.Key) error {
	obj, ok, err := c.pods.GetByKey(key.String())
	if err != nil || !ok {
		return err
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok || !slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer) {
		return nil
	}
	if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
		if ref.Kind != kind.Kind || ref.APIVersion != kind.GroupVersion().String() {
			return nil
		}
		if j := c.owner(pod.Namespace, ref); j != nil && (!isFinished(j) || managedBy(j) != "") {
			return nil
		}
	}
	// The version protects against a concurrent adoption.
	return c.patchFinalizer(ctx, pod, pod.ResourceVersion)
}
