// SPDX-License-Identifier: Apache-2.0

package pvcprotection

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	podkind "keelson/api/core/pod"
	"keelson/controllers/framework"
	"keelson/controllers/internal/claims"
)

// hasUnused reports whether a claim has the condition Unused: only once it is bound, so that the binder's writes meet
// no others.
func hasUnused(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Status.Phase == corev1.ClaimBound && claim.DeletionTimestamp == nil
}

// unusedOf returns the condition Unused, which is part of the claim; nil: there is none.
func unusedOf(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaimCondition {
	i := slices.IndexFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimUnused
	})
	if i < 0 {
		return nil
	}
	return &claim.Status.Conditions[i]
}

// newUnused returns the condition that pods, which refer to a claim, give it. Pods that wait use it too, finished ones
// do not.
func newUnused(pods []*corev1.Pod) corev1.PersistentVolumeClaimCondition {
	c := corev1.PersistentVolumeClaimCondition{
		Type:               corev1.PersistentVolumeClaimUnused,
		Status:             corev1.ConditionTrue,
		Reason:             "NoPodsUsingPVC",
		LastTransitionTime: metav1.Now(),
	}
	if slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return !podkind.Terminal(p) }) {
		c.Status = corev1.ConditionFalse
		c.Reason = "PodUsingPVC"
	}
	return c
}

// writeUnused updates the condition of those of a namespace's claims where it is wrong. The claims in later were just
// written, so they have their turn in another pass.
func (c *Controller) writeUnused(ctx context.Context, all, later []*corev1.PersistentVolumeClaim) error {
	var change []*corev1.PersistentVolumeClaim
	for _, claim := range all {
		if !hasUnused(claim) {
			continue
		}
		if slices.Contains(later, claim) {
			c.loop.AddAfter(claim.Namespace, batchDelay)
			continue
		}
		pods, err := claims.Pods(c.pods, claim.Namespace, claim.Name)
		if err != nil {
			return fmt.Errorf("pods of claim %s: %w", framework.KeyOf(claim), err)
		}
		want := newUnused(pods)
		has := unusedOf(claim)
		if has != nil && has.Status == want.Status {
			continue
		}
		claim = claim.DeepCopy()
		if has = unusedOf(claim); has != nil {
			*has = want
		} else {
			claim.Status.Conditions = append(claim.Status.Conditions, want)
		}
		change = append(change, claim)
	}
	return framework.Parallel(change, maxParallel, func(claim *corev1.PersistentVolumeClaim) error {
		_, err := c.env.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, claim,
			metav1.UpdateOptions{})
		if err == nil || apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("write condition Unused of claim %s: %w", framework.KeyOf(claim), err)
	})
}
