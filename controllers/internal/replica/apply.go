// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/meta"
	"keelson/controllers/framework"
	"keelson/event"
)

// maxParallelDeletes limits parallel deletions of one set.
const maxParallelDeletes = 100

// act creates and deletes as planned and returns the first error.
func (c *Controller) act(ctx context.Context, key framework.Key, begin time.Time, snap snapshot, p plan) error {
	if p.create == 0 && len(p.remove) == 0 {
		return nil
	}
	detail := &event.Reconcile{EventSeen: c.loop.QueuedAt(key), Wants: desiredReplicas(snap.set), Has: len(p.active)}
	var err error
	if p.create > 0 {
		detail.Creates, err = c.create(ctx, key, snap.set, p.create)
	} else {
		detail.Deletes, err = c.remove(ctx, snap.set, p.remove)
	}
	c.env.Reconciled(event.Subject{
		Resource:  c.kind.Resource(),
		Namespace: snap.set.Namespace,
		Name:      snap.set.Name,
		UID:       string(snap.set.UID),
	}, begin, detail, err)
	return err
}

var errNoLabels = errors.New("unable to create pods, no labels")

// create creates n pods and returns some of their names.
func (c *Controller) create(ctx context.Context, key framework.Key, set *appsv1.ReplicaSet, n int) ([]string, error) {
	if len(set.Spec.Template.Labels) == 0 {
		return nil, errNoLabels
	}
	template := podFor(set, metav1.NewControllerRef(set, c.gvk))
	pods := c.env.Client.PodWrites(set.Namespace)
	var (
		mu    sync.Mutex
		names []string
	)
	c.expect.Expect(set.UID, n)
	done, pace, err := framework.SlowStart(n, c.firstBatch(key), func() error {
		one := *template // encoding sets TypeMeta temporarily; the rest is only read
		pod, err := pods.Create(ctx, &one)
		switch {
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			return framework.ErrTerminating
		case err != nil:
			c.env.Events.Eventf(set, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
			return err
		}
		c.env.Events.Eventf(set, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", pod.Name)
		mu.Lock()
		defer mu.Unlock()
		if len(names) < 10 {
			names = append(names, pod.Name)
		}
		return nil
	})
	c.setFirstBatch(key, 2*pace)
	if skipped := n - done; skipped > 0 {
		c.expect.CreationObserved(set.UID, skipped) // these will not be observed; err causes a retry
	}
	return names, err
}

// podFor is a pod from the set's template.
func podFor(set *appsv1.ReplicaSet, owner *metav1.OwnerReference) *corev1.Pod {
	template := &set.Spec.Template
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		GenerateName:    meta.ChildName(set.Name, "-"),
		Namespace:       set.Namespace,
		Labels:          maps.Clone(template.Labels),
		Annotations:     maps.Clone(template.Annotations),
		Finalizers:      slices.Clone(template.Finalizers),
		OwnerReferences: []metav1.OwnerReference{*owner},
	}}
	template.Spec.DeepCopyInto(&pod.Spec)
	return pod
}

func (c *Controller) remove(ctx context.Context, set *appsv1.ReplicaSet, victims []*corev1.Pod) ([]string, error) {
	uids := make([]types.UID, len(victims))
	names := make([]string, len(victims))
	for i, p := range victims {
		uids[i] = p.UID
		names[i] = p.Name
	}
	c.expect.Expect(set.UID, 0, uids...)
	err := framework.Parallel(victims, maxParallelDeletes, func(pod *corev1.Pod) error {
		uid := pod.UID
		err := c.env.Client.PodWrites(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid},
		})
		switch {
		case err == nil:
			c.env.Events.Eventf(set, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
			return nil
		case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
			// the pod was deleted or recreated: its deletion event will come
			c.expect.DeletionObserved(set.UID, pod.UID)
			return nil
		}
		c.expect.DeletionObserved(set.UID, pod.UID)
		c.env.Events.Eventf(set, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
		return err
	})
	return names, err
}

func (c *Controller) firstBatch(key framework.Key) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.firstBatches[key]
}

// setFirstBatch stores the size of the next first batch; 0 removes it.
func (c *Controller) setFirstBatch(key framework.Key, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n <= 2 {
		delete(c.firstBatches, key)
		return
	}
	c.firstBatches[key] = min(n, burst)
}
