// SPDX-License-Identifier: Apache-2.0

package resourceclaim

import (
	"context"
	"fmt"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/controllers/framework"
)

// syncClaim releases what is no longer needed: reservations of finished pods, the allocation after the last
// reservation, and a generated claim of a pod that will not run.
func (c *Controller) syncClaim(ctx context.Context, namespacedName framework.Key) error {
	claim, err := c.claims.ResourceClaims(namespacedName.Namespace).Get(namespacedName.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	users, err := c.users(ctx, claim)
	if err != nil {
		return err
	}
	next := plan(claim, users)
	if next.status != nil {
		if claim, err = c.env.Client.ResourceV1().ResourceClaims(namespacedName.Namespace).UpdateStatus(ctx,
			next.status,
			metav1.UpdateOptions{}); err != nil {
			return ignoreNotFound(err)
		}
	}
	if next.finish {
		claim = claim.DeepCopy()
		claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == resourcev1.Finalizer })
		if claim, err = c.env.Client.ResourceV1().ResourceClaims(namespacedName.Namespace).Update(ctx, claim,
			metav1.UpdateOptions{}); err != nil {
			return ignoreNotFound(err)
		}
	}
	if len(users) > 0 || claim.DeletionTimestamp != nil || !c.canDelete(claim) {
		return nil
	}
	err = c.env.Client.ResourceV1().ResourceClaims(namespacedName.Namespace).Delete(ctx,
		claim.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &claim.UID},
		})
	if err = ignoreNotFound(err); err != nil {
		return fmt.Errorf("delete unused generated claim %s: %w", namespacedName, err)
	}
	return nil
}

// ignoreNotFound ignores the error that an object does not exist.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// claimChanges are the writes for a claim.
type claimChanges struct {
	status *resourcev1.ResourceClaim // to be written; nil: no change
	finish bool                      // then remove the finalizer
}

// plan decides about a claim with these remaining users. An allocation that was never reserved is kept: the scheduler
// may be about to reserve it.
func plan(claim *resourcev1.ResourceClaim, users []resourcev1.ResourceClaimConsumerReference) claimChanges {
	ours := slices.Contains(claim.Finalizers, resourcev1.Finalizer)
	fewer := len(users) < len(claim.Status.ReservedFor)
	free := ours && len(users) == 0 && (fewer || claim.DeletionTimestamp != nil)
	var s claimChanges
	if fewer || free && claim.Status.Allocation != nil {
		s.status = claim.DeepCopy()
		s.status.Status.ReservedFor = users
		if free {
			s.status.Status.Allocation = nil
		}
	}
	s.finish = free || ours && fewer && claim.Status.Allocation == nil
	return s
}

// users are the entries of reservedFor that may still use the claim. Entries other than pods are kept.
func (c *Controller) users(
	ctx context.Context, claim *resourcev1.ResourceClaim,
) ([]resourcev1.ResourceClaimConsumerReference, error) {
	var out []resourcev1.ResourceClaimConsumerReference
	for _, user := range claim.Status.ReservedFor {
		if user.APIGroup == "" && user.Resource == "pods" {
			keep, err := c.uses(ctx, claim.Namespace, &user)
			if err != nil {
				return nil, err
			}
			if !keep {
				continue
			}
		}
		out = append(out, user)
	}
	return out, nil
}

func (c *Controller) uses(
	ctx context.Context, namespace string, user *resourcev1.ResourceClaimConsumerReference,
) (bool, error) {
	pod, err := c.pods.Pods(namespace).Get(user.Name)
	if apierrors.IsNotFound(err) || err == nil && pod.UID != user.UID {
		// The cache may be stale: the scheduler may be about to bind the pod.
		if pod, err = c.env.Client.CoreV1().Pods(namespace).Get(ctx, user.Name,
			metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return false, nil
		}
	}
	if err != nil {
		return false, err
	}
	return pod.UID == user.UID && !podDone(pod), nil
}

// canDelete reports whether a claim was generated for a pod that will not run. The garbage collector handles a deleted
// pod.
func (c *Controller) canDelete(claim *resourcev1.ResourceClaim) bool {
	owner := metav1.GetControllerOfNoCopy(claim)
	if owner == nil || owner.APIVersion != "v1" || owner.Kind != "Pod" {
		return false
	}
	p, err := c.pods.Pods(claim.Namespace).Get(owner.Name)
	return err == nil && p.UID == owner.UID && podDone(p)
}
