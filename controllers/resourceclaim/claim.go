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

// syncClaim takes back what pods no longer need: their reservations, with the last of them the devices, and the claim itself if it was made
// for a pod that will not run.
func (c *Controller) syncClaim(ctx context.Context, k framework.Key) error {
	claim, err := c.claims.ResourceClaims(k.Namespace).Get(k.Name)
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
		if claim, err = c.env.Client.ResourceV1().ResourceClaims(k.Namespace).UpdateStatus(ctx, next.status, metav1.UpdateOptions{}); err != nil {
			return gone(err)
		}
	}
	if next.finish {
		claim = claim.DeepCopy()
		claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == resourcev1.Finalizer })
		if claim, err = c.env.Client.ResourceV1().ResourceClaims(k.Namespace).Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return gone(err)
		}
	}
	if len(users) > 0 || claim.DeletionTimestamp != nil || !c.unneeded(claim) {
		return nil
	}
	err = c.env.Client.ResourceV1().ResourceClaims(k.Namespace).Delete(ctx, claim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &claim.UID}})
	if err = gone(err); err != nil {
		return fmt.Errorf("delete unused generated claim %s: %w", k, err)
	}
	return nil
}

// gone makes nothing of the error that an object is not there.
func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// steps are what is to be done about a claim.
type steps struct {
	status *resourcev1.ResourceClaim // to be written; nil: nothing
	finish bool                      // then the finalizer goes
}

// plan says what is to be done about a claim that these still use. A claim that was allocated and never used keeps its devices: who
// allocated it may be about to reserve it.
func plan(claim *resourcev1.ResourceClaim, users []resourcev1.ResourceClaimConsumerReference) steps {
	ours := slices.Contains(claim.Finalizers, resourcev1.Finalizer)
	fewer := len(users) < len(claim.Status.ReservedFor)
	free := ours && len(users) == 0 && (fewer || claim.DeletionTimestamp != nil)
	var s steps
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

// users are those that a claim is reserved for and that may still use it. Who is not a pod is not ours to judge.
func (c *Controller) users(ctx context.Context, claim *resourcev1.ResourceClaim) ([]resourcev1.ResourceClaimConsumerReference, error) {
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

func (c *Controller) uses(ctx context.Context, namespace string, user *resourcev1.ResourceClaimConsumerReference) (bool, error) {
	p, err := c.pods.Pods(namespace).Get(user.Name)
	if apierrors.IsNotFound(err) || err == nil && p.UID != user.UID {
		// The cache may be behind: the scheduler may be about to bind it.
		if p, err = c.env.Client.CoreV1().Pods(namespace).Get(ctx, user.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return false, nil
		}
	}
	if err != nil {
		return false, err
	}
	return p.UID == user.UID && !done(p), nil
}

// unneeded tells whether a claim was made for a pod that will not run. If the pod is not there the garbage collector sees to it.
func (c *Controller) unneeded(claim *resourcev1.ResourceClaim) bool {
	owner := metav1.GetControllerOfNoCopy(claim)
	if owner == nil || owner.APIVersion != "v1" || owner.Kind != "Pod" {
		return false
	}
	p, err := c.pods.Pods(claim.Namespace).Get(owner.Name)
	return err == nil && p.UID == owner.UID && done(p)
}
