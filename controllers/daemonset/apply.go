// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"context"
	"errors"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/controllers/framework"
	"keelson/event"
)

// maxParallelDeletes limits parallel deletions of one set.
const maxParallelDeletes = 100

// act creates and deletes as planned and returns the errors.
func (c *Controller) act(ctx context.Context, key framework.Key, snap snapshot, steps plan) error {
	if len(steps.create)+len(steps.remove) == 0 {
		return nil
	}
	detail := &event.Reconcile{EventSeen: c.loop.QueuedAt(key), Wants: steps.desired, Has: len(snap.pods)}
	uids := make([]types.UID, len(steps.remove))
	var replaced framework.Replaced
	for i, v := range steps.remove {
		replaced.Count(v.pod, !current(snap.set, snap.hash, v.pod))
		uids[i] = v.pod.UID
		detail.Deletes = append(detail.Deletes, v.pod.Name)
	}
	detail.Because = replaced.String()
	c.expect.Expect(snap.set.UID, len(steps.create), uids...)
	var next atomic.Int64
	names := make([]string, len(steps.create))
	done, _, err := framework.SlowStart(len(steps.create), 1, func() (err error) {
		i := next.Add(1) - 1
		names[i], err = c.create(ctx, snap, steps.create[i])
		return err
	})
	c.expect.CreationObserved(snap.set.UID, len(steps.create)-done) // these will not be observed; err causes a retry
	for _, name := range names {
		if name != "" {
			detail.Creates = append(detail.Creates, name)
		}
	}
	err = errors.Join(err, framework.Parallel(steps.remove, maxParallelDeletes, func(v podDeletion) error {
		return c.remove(ctx, snap, v)
	}))
	c.env.Reconciled(event.Subject{
		Resource:  "daemonsets",
		Namespace: snap.set.Namespace,
		Name:      snap.set.Name,
		UID:       string(snap.set.UID),
	}, snap.now, detail, err)
	return err
}

func (c *Controller) create(ctx context.Context, s snapshot, node string) (string, error) {
	p, err := c.env.Client.PodWrites(s.set.Namespace).Create(ctx, newPod(s.set, s.hash, node))
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return "", framework.ErrTerminating
	case err != nil:
		c.env.Events.Eventf(s.set, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		return "", err
	}
	c.env.Events.Eventf(s.set, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", p.Name)
	return p.Name, nil
}

func (c *Controller) remove(ctx context.Context, snap snapshot, v podDeletion) error {
	pod := v.pod
	node := nodeOf(v.pod)
	switch v.kind {
	case corev1.EventTypeWarning:
		c.backoff.start(backoffKeyOf(snap.set, node), snap.now)
		c.env.Events.Eventf(snap.set, v.kind, "FailedDaemonPod",
			"Found failed daemon pod %s/%s on node %s, will try to kill it", pod.Namespace, pod.Name, node)
	case corev1.EventTypeNormal:
		c.env.Events.Eventf(snap.set, v.kind, "SucceededDaemonPod",
			"Found succeeded daemon pod %s/%s on node %s, will try to delete it", pod.Namespace, pod.Name, node)
	}
	uid := pod.UID
	err := c.env.Client.PodWrites(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid},
	})
	switch {
	case err == nil:
		c.env.Events.Eventf(snap.set, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
		return nil
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		// the pod was deleted or replaced: its deletion event will come
		c.expect.DeletionObserved(snap.set.UID, pod.UID)
		return nil
	}
	c.expect.DeletionObserved(snap.set.UID, pod.UID)
	c.env.Events.Eventf(snap.set, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
	return err
}
