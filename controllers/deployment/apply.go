// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/controllers/framework"
	"keelson/event"
)

// outcome is the state after the executed part of a plan.
type outcome struct {
	current *appsv1.ReplicaSet
	sets    []*appsv1.ReplicaSet
	// hashCollision: another object has the new set's name, so the next try needs another hash.
	hashCollision bool
	// condition is a condition caused by the execution; nil: none.
	condition *appsv1.DeploymentCondition
}

// apply executes steps. After an error the outcome is still correct.
func (c *Controller) apply(ctx context.Context, key framework.Key, snap snapshot, steps plan) (outcome, error) {
	out := outcome{current: steps.current, sets: slices.Clone(steps.all())}
	if steps.create == nil && len(steps.changes) == 0 && len(steps.remove) == 0 {
		return out, nil
	}
	detail := &event.Reconcile{
		EventSeen: c.loop.QueuedAt(key),
		Wants:     int(desiredReplicas(snap.d)),
		Has:       int(specified(out.sets)),
	}
	detail.Because = steps.rolloutMark(snap.d)
	err := c.create(ctx, snap, steps, &out, detail)
	for _, ch := range steps.changes {
		if err != nil {
			break
		}
		if n := replicas(ch.set); n != ch.oldReplicas {
			detail.Scales = append(detail.Scales, fmt.Sprintf("%s from %d to %d", ch.set.Name, ch.oldReplicas, n))
		}
		err = c.update(ctx, snap.d, ch, &out)
	}
	for _, rs := range steps.remove {
		uid := rs.UID
		e := c.env.Client.AppsV1().ReplicaSets(rs.Namespace).Delete(ctx, rs.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid},
		})
		if e != nil && !apierrors.IsNotFound(e) {
			err = errors.Join(err, fmt.Errorf("delete replica set %s: %w", rs.Name, e))
			continue
		}
		detail.Deletes = append(detail.Deletes, rs.Name)
		out.sets = slices.DeleteFunc(out.sets, func(r *appsv1.ReplicaSet) bool { return r.UID == uid })
	}
	c.env.Reconciled(event.Subject{
		Resource:  "deployments",
		Namespace: snap.d.Namespace,
		Name:      snap.d.Name,
		UID:       string(snap.d.UID),
	}, snap.now, detail, err)
	return out, err
}

// rolloutMark says how far a rollout is, which is why a Deployment that has enough pods makes others; empty: none is
// under way.
func (p *plan) rolloutMark(d *appsv1.Deployment) string {
	if specified(p.old) == 0 {
		return ""
	}
	updated := int32(0)
	if p.current != nil {
		updated = replicas(p.current)
	}
	surge, unavailable := limits(d)
	return fmt.Sprintf("%d with the new template; a rollout may have %d more (maxSurge) and lack %d (maxUnavailable)",
		updated, surge, unavailable)
}

func (c *Controller) create(ctx context.Context, snap snapshot, steps plan, out *outcome, detail *event.Reconcile) error {
	if steps.create == nil {
		return nil
	}
	client := c.env.Client.AppsV1().ReplicaSets(snap.d.Namespace)
	rs, err := client.Create(ctx, steps.create, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		live, getErr := client.Get(ctx, steps.create.Name, metav1.GetOptions{})
		if getErr != nil {
			return fmt.Errorf("look at replica set %s: %w", steps.create.Name, getErr)
		}
		if !metav1.IsControlledBy(live, snap.d) || !sameTemplate(&live.Spec.Template, &snap.d.Spec.Template) {
			out.hashCollision = true
			return fmt.Errorf("create replica set: %w", err)
		}
		// An earlier pass created it; the cache is behind.
		out.current = live
		out.sets = append(out.sets, live)
		return nil
	}
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // the Deployment is being deleted too
	}
	if err != nil {
		msg := fmt.Sprintf("Failed to create new replica set %q: %v", steps.create.Name, err)
		if hasDeadline(snap.d) {
			n := newCondition(snap.now, appsv1.DeploymentProgressing, corev1.ConditionFalse, setCreateError, msg)
			out.condition = &n
		}
		c.env.Events.Event(snap.d, corev1.EventTypeWarning, setCreateError, msg)
		return fmt.Errorf("create replica set %s: %w", steps.create.Name, err)
	}
	out.current = rs
	out.sets = append(out.sets, rs)
	detail.Creates = append(detail.Creates, rs.Name)
	if n := replicas(rs); n > 0 {
		c.env.Events.Eventf(snap.d, corev1.EventTypeNormal, "ScalingReplicaSet",
			"Scaled up replica set %s from 0 to %d",
			rs.Name, n)
	}
	if hasDeadline(snap.d) {
		n := newCondition(snap.now, appsv1.DeploymentProgressing, corev1.ConditionTrue, newSetCreated,
			fmt.Sprintf("Created new replica set %q", rs.Name))
		out.condition = &n
	}
	return nil
}

func (c *Controller) update(ctx context.Context, deployment *appsv1.Deployment, ch *change, out *outcome) error {
	rs, err := c.env.Client.AppsV1().ReplicaSets(deployment.Namespace).Update(ctx, ch.set, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("update replica set %s: %w", ch.set.Name, err)
	}
	for i := range out.sets {
		if out.sets[i].UID == rs.UID {
			out.sets[i] = rs
		}
	}
	if out.current != nil && out.current.UID == rs.UID {
		out.current = rs
	}
	if n := replicas(rs); n != ch.oldReplicas {
		direction := "up"
		if n < ch.oldReplicas {
			direction = "down"
		}
		c.env.Events.Eventf(deployment, corev1.EventTypeNormal, "ScalingReplicaSet",
			"Scaled %s replica set %s from %d to %d",
			direction, rs.Name, ch.oldReplicas, n)
	}
	return nil
}

// writeStatus writes the status and the revision if either changed.
func (c *Controller) writeStatus(
	ctx context.Context, snap snapshot, steps plan, out outcome,
) (next time.Duration, err error) {
	if out.condition != nil {
		steps.conditions = setCondition(steps.conditions, *out.condition)
	}
	if out.current == nil {
		steps.revision = "" // the set with this revision could not be created
	}
	st, next := status(snap, steps, out.current, out.sets)
	if out.hashCollision {
		n := int32(1)
		if snap.d.Status.CollisionCount != nil {
			n += *snap.d.Status.CollisionCount
		}
		st.CollisionCount = &n
	}
	stale := steps.revision != "" && snap.d.Annotations[revisionAnnotation] != steps.revision
	if !stale && equality.Semantic.DeepEqual(snap.d.Status, st) {
		return next, nil
	}
	deployment := *snap.d
	deployment.Status = st
	if stale {
		deployment.Annotations = maps.Clone(deployment.Annotations)
		if deployment.Annotations == nil {
			deployment.Annotations = map[string]string{}
		}
		deployment.Annotations[revisionAnnotation] = steps.revision
	}
	client := c.env.Client.AppsV1().Deployments(deployment.Namespace)
	stored, err := client.UpdateStatus(ctx, &deployment, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return next, fmt.Errorf("write status: %w", err)
	}
	if stale && stored.Annotations[revisionAnnotation] != steps.revision {
		// A status update does not write metadata.
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"annotations": map[string]string{revisionAnnotation: steps.revision}},
		})
		if err == nil {
			_, err = client.Patch(ctx, deployment.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return next, fmt.Errorf("write revision: %w", err)
		}
	}
	return next, nil
}
