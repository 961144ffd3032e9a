// SPDX-License-Identifier: Apache-2.0

package persistentvolume

import (
	"context"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"keelson/event"
)

func (c *Controller) applyClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, p claimPlan) error {
	switch {
	case p.bind != nil:
		return c.bind(ctx, p.bind, claim)
	case p.class != "":
		next := claim.DeepCopy()
		next.Spec.StorageClassName = &p.class
		_, err := c.writeClaim(ctx, next) // its event triggers the next pass
		return err
	case p.node != "":
		next := claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, volume.AnnSelectedNode, p.node)
		_, err := c.writeClaim(ctx, next) // its event triggers the next pass
		return err
	}
	if p.provisioner != "" {
		next := claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, volume.AnnBetaStorageProvisioner, p.provisioner)
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, volume.AnnStorageProvisioner, p.provisioner)
		if !reflect.DeepEqual(next.Annotations, claim.Annotations) {
			var err error
			if claim, err = c.writeClaim(ctx, next); err != nil {
				return err
			}
		}
	}
	if p.phase != "" {
		if err := c.setPhase(ctx, claim, p.phase, nil); err != nil {
			return err
		}
	}
	c.recordEvent(claim, p.event)
	return nil
}

// recordEvent records an event of a claim, unless it equals the last one.
func (c *Controller) recordEvent(claim *corev1.PersistentVolumeClaim, e *claimEvent) {
	if e == nil {
		return
	}
	c.mu.Lock()
	again := c.lastEvent[claim.UID] == *e
	c.lastEvent[claim.UID] = *e
	c.mu.Unlock()
	if !again {
		c.env.Events.Event(claim, e.kind, e.reason, e.message)
	}
}

// bind binds a volume and a claim: the volume first, so that no other claim can take it.
func (c *Controller) bind(ctx context.Context, pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) error {
	begin := time.Now()
	next, changed, err := volume.GetBindVolumeToClaim(pv, claim)
	if err != nil {
		return err
	}
	wrote := changed
	if changed {
		if pv, err = c.writeVolume(ctx, next); err != nil {
			return fmt.Errorf("bind volume %s to claim %s/%s: %w", next.Name, claim.Namespace, claim.Name, err)
		}
	}
	if pv.Status.Phase != corev1.VolumeBound {
		wrote = true
		if pv, err = c.setVolumePhase(ctx, pv, corev1.VolumeBound, ""); err != nil {
			return err
		}
	}
	if bound := boundTo(claim, pv); bound != nil {
		wrote = true
		if claim, err = c.writeClaim(ctx, bound); err != nil {
			return fmt.Errorf("bind claim %s/%s to volume %s: %w", bound.Namespace, bound.Name, pv.Name, err)
		}
	}
	if err := c.setPhase(ctx, claim, corev1.ClaimBound, pv); err != nil || !wrote {
		return err
	}
	c.env.Reconciled(event.Subject{
		Resource:  "persistentvolumeclaims",
		Namespace: claim.Namespace,
		Name:      claim.Name,
		UID:       string(claim.UID),
	}, begin, &event.Reconcile{EventSeen: c.loop.QueuedAt(claimKey(claim))}, nil)
	return nil
}

// boundTo is the claim bound to v; nil if it is already.
func boundTo(claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) *corev1.PersistentVolumeClaim {
	next := claim.DeepCopy()
	if claim.Spec.VolumeName != v.Name {
		next.Spec.VolumeName = v.Name
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, volume.AnnBoundByController, "yes")
	}
	if _, done := claim.Annotations[volume.AnnBindCompleted]; !done {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, volume.AnnBindCompleted, "yes")
	}
	if reflect.DeepEqual(next, claim) {
		return nil
	}
	return next
}

// setPhase writes the claim's phase and the fields from its volume; nil: none. The capacity of a bound claim is set by
// the resizer.
func (c *Controller) setPhase(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumeClaimPhase,
	pv *corev1.PersistentVolume,
) error {
	next := claim.DeepCopy()
	next.Status.Phase = phase
	if pv == nil {
		next.Status.AccessModes = nil
		next.Status.Capacity = nil
	} else {
		next.Status.AccessModes = pv.Spec.AccessModes
		if claim.Status.Phase != corev1.ClaimBound {
			next.Status.Capacity = pv.Spec.Capacity
			next.Status.CurrentVolumeAttributesClassName = pv.Spec.VolumeAttributesClassName
		}
	}
	if reflect.DeepEqual(next.Status, claim.Status) {
		return nil
	}
	got, err := c.env.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, next,
		metav1.UpdateOptions{})
	if err != nil {
		return ignoreNotFound(err, fmt.Sprintf("write phase %s of claim %s/%s", phase, claim.Namespace, claim.Name))
	}
	c.assumedClaims.assume(got.Namespace+"/"+got.Name, got)
	return nil
}

func (c *Controller) writeClaim(
	ctx context.Context, next *corev1.PersistentVolumeClaim,
) (*corev1.PersistentVolumeClaim, error) {
	got, err := c.env.Client.CoreV1().PersistentVolumeClaims(next.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	c.assumedClaims.assume(got.Namespace+"/"+got.Name, got)
	return got, nil
}

func (c *Controller) writeVolume(ctx context.Context, next *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	got, err := c.env.Client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	c.assumedVolumes.assume(got.Name, got)
	return got, nil
}

func (c *Controller) setVolumePhase(
	ctx context.Context, v *corev1.PersistentVolume, phase corev1.PersistentVolumePhase, message string,
) (*corev1.PersistentVolume, error) {
	next := v.DeepCopy()
	next.Status.Phase = phase
	next.Status.Message = message
	got, err := c.env.Client.CoreV1().PersistentVolumes().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("write phase %s of volume %s: %w", phase, v.Name, err)
	}
	c.assumedVolumes.assume(got.Name, got)
	return got, nil
}

func (c *Controller) applyVolume(ctx context.Context, pv *corev1.PersistentVolume, p volumePlan) error {
	if p.claim {
		c.loop.Add(refKey(pv.Spec.ClaimRef))
	}
	if p.unbind {
		return c.unbind(ctx, pv)
	}
	if p.phase == "" || p.phase == pv.Status.Phase {
		return nil
	}
	begin := time.Now()
	_, err := c.setVolumePhase(ctx, pv, p.phase, p.message)
	if apierrors.IsNotFound(err) {
		return nil
	}
	c.env.Reconciled(event.Subject{Resource: "persistentvolumes", Name: pv.Name, UID: string(pv.UID)}, begin,
		&event.Reconcile{}, err)
	if err == nil && p.event != nil {
		c.env.Events.Event(pv, p.event.kind, p.event.reason, p.event.message)
	}
	return err
}

// unbind removes a binding: completely if this controller made it, else only what was added to a user's.
func (c *Controller) unbind(ctx context.Context, v *corev1.PersistentVolume) error {
	next := v.DeepCopy()
	if _, ours := v.Annotations[volume.AnnBoundByController]; ours {
		next.Spec.ClaimRef = nil
		delete(next.Annotations, volume.AnnBoundByController)
	} else {
		next.Spec.ClaimRef.UID = ""
	}
	got, err := c.writeVolume(ctx, next)
	if err != nil {
		return ignoreNotFound(err, "unbind volume "+v.Name)
	}
	if got.Status.Phase != corev1.VolumeAvailable {
		_, err = c.setVolumePhase(ctx, got, corev1.VolumeAvailable, "")
	}
	return err
}

// readClaim reads the claim in a volume's claimRef from the API server; nil: it does not exist.
func (c *Controller) readClaim(ctx context.Context, r *corev1.ObjectReference) (*corev1.PersistentVolumeClaim, error) {
	claim, err := c.env.Client.CoreV1().PersistentVolumeClaims(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read claim %s/%s: %w", r.Namespace, r.Name, err)
	}
	return claim, nil
}

func ignoreNotFound(err error, act string) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%s: %w", act, err)
}
