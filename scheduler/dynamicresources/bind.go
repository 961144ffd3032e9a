// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"keelson/scheduler/framework"
	"keelson/scheduler/state"
)

// Reserve assumes the allocations for the node, so that other pods cannot get the devices.
func (p *Plugin) Reserve(_ context.Context, c *framework.CycleState, _ *state.PodInfo, node *state.NodeInfo) error {
	podClaims, ok := key.Read(c)
	if !ok {
		return nil
	}
	group, _ := state.GroupOf(podClaims.pod)
	for _, c := range podClaims.claims {
		if c.shared == nil {
			continue
		}
		if err := p.Tracker.assume(c.claim, c.shared, group); err != nil {
			return err
		}
		c.plan = c.shared
	}
	wants := podClaims.wants(node.Node)
	if len(wants) == 0 {
		return nil
	}
	podClaims.mu.Lock()
	found := podClaims.found[node.Name]
	podClaims.mu.Unlock()
	if len(found) != len(wants) {
		return fmt.Errorf("no devices were found on node %s", node.Name)
	}
	next := 0
	for _, c := range podClaims.claims {
		if c.claim.Status.Allocation != nil {
			continue
		}
		a := &found[next]
		next++
		if err := p.Tracker.assume(c.claim, a, group); err != nil {
			return err
		}
		c.plan = a
	}
	if e := podClaims.extended.claimFor(node.Node); e != nil {
		a := &found[next]
		if err := p.Tracker.assume(e.claim, a, state.GroupKey{}); err != nil {
			return err
		}
		podClaims.extendedPlan = &extendedPlan{podClaim: podClaim{claim: e.claim, plan: a}, extendedClaim: *e}
	}
	p.Searcher.forget(podClaims.pod.UID)
	return nil
}

// Unreserve forgets the assumed allocations, and removes the reservations that PreBind wrote. Written allocations stay:
// the next attempt uses them, or PostFilter deallocates them. The reservation of a deleted pod stays, since it makes
// the resourceclaim controller free the devices.
func (p *Plugin) Unreserve(ctx context.Context, c *framework.CycleState, pod *state.PodInfo, _ string) {
	s, ok := key.Read(c)
	if !ok {
		return
	}
	if of := s.extendedPlan; of != nil {
		s.extendedPlan = nil
		if err := p.undoExtended(ctx, of); err != nil && p.Failed != nil {
			p.Failed(pod.Pod, err)
		}
	}
	for _, podClaim := range s.claims {
		var err error
		if podClaim.maybeWritten {
			err = p.checkWritten(ctx, podClaim, pod.Pod)
		}
		if podClaim.plan != nil && !podClaim.written {
			p.Tracker.forget(podClaim.claim.UID)
		}
		if podClaim.written && !p.isGone(ctx, pod.Pod) {
			err = errors.Join(err, p.release(ctx, podClaim.claim, pod.Pod.UID))
		}
		podClaim.plan = nil
		podClaim.written = false
		podClaim.maybeWritten = false
		if err != nil && p.Failed != nil {
			p.Failed(pod.Pod, err)
		}
	}
}

// isGone reports whether a pod is deleted, or is being deleted without a node.
func (p *Plugin) isGone(ctx context.Context, pod *corev1.Pod) bool {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	now, err := p.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return apierrors.IsNotFound(err)
	}
	return now.UID != pod.UID || now.DeletionTimestamp != nil && now.Spec.NodeName == ""
}

// checkWritten reads a claim after a write without an answer, before its devices count as free: the cache may be
// behind.
func (p *Plugin) checkWritten(ctx context.Context, c *podClaim, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var now *resourcev1.ResourceClaim
	var failed error
	err := wait.ExponentialBackoffWithContext(ctx,
		wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 7}, func(ctx context.Context) (bool, error) {
			now, failed = p.Client.ResourceV1().ResourceClaims(c.claim.Namespace).Get(ctx, c.claim.Name,
				metav1.GetOptions{})
			return failed == nil || apierrors.IsNotFound(failed), nil
		})
	if apierrors.IsNotFound(failed) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find out whether claim %s/%s was written: %w", c.claim.Namespace, c.claim.Name,
			cmp.Or(failed, err))
	}
	if now.UID == c.claim.UID && now.Status.Allocation != nil {
		p.Tracker.RecordWritten(now)
		c.claim = now
		c.written = resourceclaim.IsReservedForPod(pod, now, false)
	}
	return nil
}

// checkTimeout bounds checkWritten and isGone.
const checkTimeout = 15 * time.Second

// mayBeWritten reports whether a failed write may have taken effect.
func mayBeWritten(err error) bool {
	var said apierrors.APIStatus
	return !errors.As(err, &said) || said.Status().Code >= http.StatusInternalServerError
}

// release removes a pod from status.reservedFor of a claim, by a patch that ignores other changes.
func (p *Plugin) release(ctx context.Context, resourceClaim *resourcev1.ResourceClaim, pod types.UID) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": resourceClaim.UID},
		"status":   map[string]any{"reservedFor": []any{map[string]any{"$patch": "delete", "uid": pod}}},
	})
	if err != nil {
		return err
	}
	now, err := p.Client.ResourceV1().ResourceClaims(resourceClaim.Namespace).Patch(ctx, resourceClaim.Name,
		types.StrategicMergePatchType,
		patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("take back the reservation of claim %s/%s: %w", resourceClaim.Namespace, resourceClaim.Name,
			err)
	}
	p.Tracker.RecordWritten(now)
	return nil
}

// PreBindPreFlight reports whether the pod has claims that PreBind must write.
func (*Plugin) PreBindPreFlight(c *framework.CycleState, _ *state.PodInfo, _ string) bool {
	_, ok := key.Read(c)
	return ok
}

// PreBind writes the pod's claims, and waits for the binding conditions of their devices.
func (p *Plugin) PreBind(ctx context.Context, c *framework.CycleState, pod *state.PodInfo, node string) error {
	s, ok := key.Read(c)
	if !ok {
		return nil
	}
	claims := s.claims
	if s.extendedPlan != nil {
		if err := p.createExtendedClaim(ctx, s.extendedPlan, pod.Pod); err != nil {
			return err
		}
		claims = append(slices.Clip(claims), s.extendedPlan.created)
	}
	waits := false
	for _, c := range claims {
		if !resourceclaim.IsReservedForPod(pod.Pod, c.claim, false) {
			if err := p.write(ctx, c, pod.Pod); err != nil {
				return err
			}
		}
		waits = waits || hasConditions(c.claim)
	}
	if !waits {
		return nil
	}
	if p.Waiting != nil {
		p.Waiting(pod.Pod, node)
	}
	return p.waitUntilReady(ctx, claims)
}

// write writes the reservation into a claim, and the allocation if this attempt found it. After a conflict it reads the
// claim again.
func (p *Plugin) write(ctx context.Context, c *podClaim, pod *corev1.Pod) error {
	api := p.Client.ResourceV1().ResourceClaims(c.claim.Namespace)
	at := c.claim.Namespace + "/" + c.claim.Name
	claim := c.claim.DeepCopy()
	if c.shared != nil {
		claim.Status.Allocation = nil // the server does not have it yet
	}
	again := false
	return retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if again {
			if claim, err = api.Get(ctx, c.claim.Name, metav1.GetOptions{}); err != nil {
				return fmt.Errorf("get updated claim %s after conflict: %w", at, err)
			}
		}
		again = true
		switch {
		case claim.UID != c.claim.UID || claim.DeletionTimestamp != nil:
			return fmt.Errorf("claim %s got deleted in the meantime", at)
		case c.plan != nil && claim.Status.Allocation != nil && !sameDevices(claim.Status.Allocation, c.plan):
			return fmt.Errorf("claim %s got allocated elsewhere in the meantime", at)
		case c.plan == nil && claim.Status.Allocation == nil:
			return fmt.Errorf("claim %s got deallocated elsewhere in the meantime", at)
		}
		if c.plan != nil && claim.Status.Allocation == nil {
			if !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
				claim.Finalizers = append(claim.Finalizers, resourcev1.Finalizer)
				if claim, err = api.Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
					return fmt.Errorf("add finalizer to claim %s: %w", at, err)
				}
			}
			claim.Status.Allocation = c.plan.DeepCopy()
		}
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
			Resource: "pods",
			Name:     pod.Name,
			UID:      pod.UID,
		})
		if claim.Status.Allocation.AllocationTimestamp == nil {
			claim.Status.Allocation.AllocationTimestamp = &metav1.Time{Time: time.Now()}
		}
		if claim, err = api.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
			c.maybeWritten = mayBeWritten(err)
			what := "reservation"
			if c.plan != nil {
				what = "allocation and reservation"
			}
			return fmt.Errorf("add %s to claim %s: %w", what, at, err)
		}
		p.Tracker.RecordWritten(claim)
		c.claim = claim
		c.written = true
		return nil
	})
}

// sameDevices reports whether another pod of the group has written the allocation that this pod has assumed.
func sameDevices(a, b *resourcev1.AllocationResult) bool {
	return equality.Semantic.DeepEqual(a.Devices.Results, b.Devices.Results)
}

// Why a wait for binding conditions ends without success.
var (
	errBindingTimeout = errors.New("device binding timeout")
	errBindingFailed  = errors.New("device binding failed")
)

func hasConditions(c *resourcev1.ResourceClaim) bool {
	return c.Status.Allocation != nil && slices.ContainsFunc(c.Status.Allocation.Devices.Results, func(
		r resourcev1.DeviceRequestAllocationResult,
	) bool {
		return len(r.BindingConditions) > 0
	})
}

// waitUntilReady waits until the binding conditions of all devices are true.
func (p *Plugin) waitUntilReady(ctx context.Context, claims []*podClaim) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.Binding, errBindingTimeout)
	defer cancel()
	for {
		changed := p.Tracker.nextChange()
		all := true
		for _, c := range claims {
			now, err := p.Tracker.claim(c.claim.Namespace, c.claim.Name)
			if err != nil {
				return fmt.Errorf("waiting for devices: %w", err)
			}
			if now.UID != c.claim.UID || now.Status.Allocation == nil {
				return fmt.Errorf("claim %s/%s got deallocated elsewhere in the meantime", c.claim.Namespace,
					c.claim.Name)
			}
			ready, err := isReady(now)
			if err != nil {
				return err
			}
			if !ready && p.expired(now) {
				return fmt.Errorf("%w: claim=%s", errBindingTimeout, now.Name)
			}
			all = all && ready
		}
		if all {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for devices: %w", context.Cause(ctx))
		}
	}
}

// isReady reports whether the binding conditions of all devices of a claim are true. The error is a binding failure
// condition.
func isReady(resourceClaim *resourcev1.ResourceClaim) (bool, error) {
	for i := range resourceClaim.Status.Allocation.Devices.Results {
		result := &resourceClaim.Status.Allocation.Devices.Results[i]
		if len(result.BindingConditions) == 0 {
			continue
		}
		at := slices.IndexFunc(resourceClaim.Status.Devices, func(d resourcev1.AllocatedDeviceStatus) bool {
			return d.Driver == result.Driver && d.Pool == result.Pool && d.Device == result.Device
		})
		if at < 0 {
			return false, nil
		}
		said := resourceClaim.Status.Devices[at].Conditions
		for _, name := range result.BindingFailureConditions {
			if f := apimeta.FindStatusCondition(said, name); f != nil && f.Status == metav1.ConditionTrue {
				return false, fmt.Errorf("%w: claim=%s, reason=%s, message=%q", errBindingFailed, resourceClaim.Name,
					f.Reason,
					f.Message)
			}
		}
		for _, name := range result.BindingConditions {
			if !apimeta.IsStatusConditionTrue(said, name) {
				return false, nil
			}
		}
	}
	return true, nil
}

// expired reports whether bindingTimeout has passed since the allocation.
func (p *Plugin) expired(c *resourcev1.ResourceClaim) bool {
	since := c.Status.Allocation.AllocationTimestamp
	return hasConditions(c) && since != nil && time.Since(since.Time) > p.Binding
}

// neverReady reports whether the binding conditions have failed or expired.
func (p *Plugin) neverReady(c *resourcev1.ResourceClaim) bool {
	if !hasConditions(c) {
		return false
	}
	ready, err := isReady(c)
	return err != nil || !ready && p.expired(c)
}

// PostFilter deallocates one claim whose devices a node could not use and that no other pod uses. So the next attempt
// can find other devices.
func (p *Plugin) PostFilter(ctx context.Context, a *framework.Attempt) (node, message string) {
	podClaims, ok := key.Read(a.Cycle)
	if !ok {
		return "", ""
	}
	pod := a.Pod.Pod
	if podClaims.extended != nil && podClaims.extended.stale != nil {
		stale := podClaims.extended.stale
		p.Later(ctx, func(ctx context.Context) {
			if err := p.deleteClaim(ctx, stale); err != nil && p.Failed != nil {
				p.Failed(pod, fmt.Errorf("delete claim %s/%s: %w", stale.Namespace, stale.Name, err))
			}
		})
		return "", fmt.Sprintf("resourceclaim %q is deleted", stale.Name)
	}
	for _, c := range podClaims.claims {
		if !podClaims.unusable[c] || usedByOthers(c.claim, pod.UID) {
			continue
		}
		claim := c.claim
		p.Later(ctx, func(ctx context.Context) {
			if err := p.deallocate(ctx, claim, pod.UID); err != nil && p.Failed != nil {
				p.Failed(pod, fmt.Errorf("deallocate claim %s/%s: %w", claim.Namespace, claim.Name, err))
			}
		})
		return "", fmt.Sprintf("resourceclaim %q is deallocated", claim.Name)
	}
	return "", ""
}

func usedByOthers(c *resourcev1.ResourceClaim, pod types.UID) bool {
	return slices.ContainsFunc(c.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool {
		return r.UID != pod
	})
}

// deallocate clears the status of a claim. After a conflict it does nothing if the claim has another allocation or
// another pod uses it.
func (p *Plugin) deallocate(ctx context.Context, resourceClaim *resourcev1.ResourceClaim, pod types.UID) error {
	api := p.Client.ResourceV1().ResourceClaims(resourceClaim.Namespace)
	now := resourceClaim
	again := false
	return retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if again {
			now, err = api.Get(ctx, resourceClaim.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			if err != nil {
				return err
			}
			a := now.Status.Allocation
			if now.UID != resourceClaim.UID || a == nil || usedByOthers(now, pod) ||
				!equality.Semantic.DeepEqual(a.Devices.Results, resourceClaim.Status.Allocation.Devices.Results) ||
				!a.AllocationTimestamp.Equal(resourceClaim.Status.Allocation.AllocationTimestamp) {
				return nil
			}
		}
		again = true
		claim := now.DeepCopy()
		claim.Status = resourcev1.ResourceClaimStatus{}
		if now, err = api.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err == nil {
			p.Tracker.RecordWritten(now)
		}
		return err
	})
}
