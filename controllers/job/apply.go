// SPDX-License-Identifier: Apache-2.0

package job

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/controllers/framework"
	"keelson/event"
)

// maxParallel limits parallel deletions and patches of one job's pods.
const maxParallel = 100

// act creates and deletes pods as planned and returns the result with the first error.
func (c *Controller) act(
	ctx context.Context, key framework.Key, begin time.Time, snap snapshot, steps plan,
) (o outcome, err error) {
	if steps.create == 0 && len(steps.remove) == 0 && len(steps.terminate) == 0 {
		return o, nil
	}
	detail := &event.Reconcile{
		EventSeen: c.loop.QueuedAt(workItem{Key: key}),
		Wants:     int(steps.desiredActive(snap.job)),
		Has:       len(steps.active),
	}
	switch {
	case steps.create > 0:
		detail.Creates, err = c.create(ctx, snap.job, steps)
		o.created = len(detail.Creates)
	case len(steps.remove) > 0:
		o.deleted, err = c.remove(ctx, snap.job, steps.remove, true)
	default:
		o.deleted, err = c.remove(ctx, snap.job, steps.terminate, false)
	}
	for _, q := range o.deleted {
		detail.Deletes = append(detail.Deletes, q.Name)
	}
	c.env.Reconciled(event.Subject{
		Resource:  "jobs",
		Namespace: snap.job.Namespace,
		Name:      snap.job.Name,
		UID:       string(snap.job.UID),
	}, begin, detail, err)
	return o, err
}

// create creates pods and returns the names of those that exist now.
func (c *Controller) create(ctx context.Context, job *batchv1.Job, steps plan) ([]string, error) {
	var (
		mu      sync.Mutex
		names   []string
		indexes = steps.indexes
	)
	template := podFor(job)
	pods := c.env.Client.PodWrites(job.Namespace)
	c.expect.Expect(job.UID, steps.create)
	done, pace, err := framework.SlowStart(steps.create, c.state.get(job).batchSize, func() error {
		one := *template // the shared parts are only read
		if isIndexed(job) {
			mu.Lock()
			n := indexes[0]
			indexes = indexes[1:]
			mu.Unlock()
			setIndex(job, &one, n, steps.replaced[n])
		}
		made, err := pods.Create(ctx, &one)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			return framework.ErrTerminating
		case err != nil:
			c.env.Events.Eventf(job, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
			return err
		}
		c.env.Events.Eventf(job, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", made.Name)
		names = append(names, made.Name)
		return nil
	})
	c.state.update(job.UID, func(r *jobState) { r.batchSize = min(2*pace, burst) })
	failed := steps.create - done
	c.expect.CreationObserved(job.UID, failed) // these will not be observed
	if err == nil {
		failed = 0 // the namespace is terminating
	}
	c.metrics.observeCreations(job, steps.podCounts, len(names), failed)
	return names, err
}

// remove deletes pods and returns those in deletion. With removeFinalizers their finalizer is removed first, so that
// they are not counted.
func (c *Controller) remove(
	ctx context.Context, job *batchv1.Job, pods []*corev1.Pod, removeFinalizers bool,
) ([]*corev1.Pod, error) {
	uids := make([]types.UID, len(pods))
	for i, p := range pods {
		uids[i] = p.UID
	}
	var (
		mu   sync.Mutex
		gone []*corev1.Pod
	)
	c.expect.Expect(job.UID, 0, uids...)
	err := framework.Parallel(pods, maxParallel, func(pod *corev1.Pod) error {
		var err error
		if removeFinalizers {
			err = c.removePodFinalizer(ctx, job, pod)
		}
		if err == nil {
			uid := pod.UID
			err = c.env.Client.PodWrites(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &uid},
			})
		}
		switch {
		case err == nil:
			c.env.Events.Eventf(job, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
		case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
			// the pod was deleted or recreated: its deletion event will come
			c.expect.DeletionObserved(job.UID, pod.UID)
		default:
			c.expect.DeletionObserved(job.UID, pod.UID)
			c.env.Events.Eventf(job, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		gone = append(gone, pod)
		return nil
	})
	return gone, err
}

// removePodFinalizer removes a pod's finalizer, which the cache shows a little later. A deleted pod is no error.
func (c *Controller) removePodFinalizer(ctx context.Context, j *batchv1.Job, p *corev1.Pod) error {
	if !tracked(p) {
		return nil
	}
	c.state.update(j.UID, func(r *jobState) { r.finalizerRemoved[p.UID] = struct{}{} })
	err := c.patchFinalizer(ctx, p, "")
	if err != nil {
		c.state.update(j.UID, func(r *jobState) { delete(r.finalizerRemoved, p.UID) })
	}
	return err
}

// patchFinalizer removes the finalizer of the pod with this UID, and only at that version unless version is "".
func (c *Controller) patchFinalizer(ctx context.Context, pod *corev1.Pod, version string) error {
	meta := map[string]any{
		"uid":                                 pod.UID,
		"$deleteFromPrimitiveList/finalizers": []string{batchv1.JobTrackingFinalizer},
	}
	if version != "" {
		meta["resourceVersion"] = version
	}
	b, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return err
	}
	_, err = c.env.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, b,
		metav1.PatchOptions{})
	if err != nil && !framework.Superseded(ctx, c.env, pod, err) {
		return fmt.Errorf("remove finalizer of pod %s: %w", pod.Name, err)
	}
	return nil
}

// flushStatus writes a's status in the order described at accounting.
func (c *Controller) flushStatus(ctx context.Context, snap snapshot, a *accounting) error {
	job, err := c.writeStatus(ctx, snap.job, &a.status)
	if err != nil {
		return err
	}
	job.Status.DeepCopyInto(&a.status) // as the server stores it, in whole seconds
	c.state.update(job.UID, func(r *jobState) { r.failures = a.failures })
	if a.suspended {
		c.env.Events.Event(job, corev1.EventTypeNormal, "Suspended", "Job suspended")
	}
	if a.resumed {
		c.env.Events.Event(job, corev1.EventTypeNormal, "Resumed", "Job resumed")
	}
	c.metrics.countRules(a.policyCounts)
	var (
		mu    sync.Mutex
		freed []*corev1.Pod
	)
	failure := framework.Parallel(a.toRelease, maxParallel, func(p *corev1.Pod) error {
		if err := c.removePodFinalizer(ctx, job, p); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		freed = append(freed, p)
		return nil
	})
	over := a.countReleased(snap, freed)
	if job, err = c.writeStatus(ctx, job, &a.status); err != nil {
		return err
	}
	if over {
		c.recordFinished(job, a.end)
	}
	return failure
}

// writeStatus writes st if it differs from job's status, and returns the server's job.
func (c *Controller) writeStatus(ctx context.Context, job *batchv1.Job, st *batchv1.JobStatus) (*batchv1.Job, error) {
	if equality.Semantic.DeepEqual(&job.Status, st) {
		return job, nil
	}
	next := *job
	next.Status = *st
	written, err := c.env.Client.BatchV1().Jobs(job.Namespace).UpdateStatus(ctx, &next, metav1.UpdateOptions{})
	if err != nil {
		return job, fmt.Errorf("write status: %w", err)
	}
	c.state.update(job.UID, func(r *jobState) { r.lastWritten = written.ResourceVersion })
	c.metrics.podsFinished(written, &job.Status)
	return written, nil
}

// recordFinished records the event about the end of a job.
func (c *Controller) recordFinished(j *batchv1.Job, v *endCondition) {
	c.metrics.jobFinished(j, v)
	if v.failed() {
		c.env.Events.Event(j, corev1.EventTypeWarning, v.reason, v.message)
		return
	}
	if n := j.Spec.Completions; n != nil && j.Status.Succeeded > *n {
		c.env.Events.Event(j, corev1.EventTypeWarning, "TooManySucceededPods",
			"Too many succeeded pods running after completion count reached")
	}
	c.env.Events.Event(j, corev1.EventTypeNormal, "Completed", "Job completed")
}
