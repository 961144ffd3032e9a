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

// Reserve keeps the devices that were found on the node from other pods.
func (p *Plugin) Reserve(_ context.Context, c *framework.CycleState, _ *state.PodInfo, node *state.NodeInfo) error {
	s, ok := key.Read(c)
	if !ok {
		return nil
	}
	wants := s.wants(node.Node)
	if len(wants) == 0 {
		return nil
	}
	s.mu.Lock()
	found := s.found[node.Name]
	s.mu.Unlock()
	if len(found) != len(wants) {
		return fmt.Errorf("no devices were found on node %s", node.Name)
	}
	next := 0
	for _, c := range s.claims {
		if c.claim.Status.Allocation != nil {
			continue
		}
		a := &found[next]
		next++
		if err := p.Known.plan(c.claim, a); err != nil {
			return err
		}
		c.plan = a
	}
	if e := s.extended.on(node.Node); e != nil {
		a := &found[next]
		if err := p.Known.plan(e.claim, a); err != nil {
			return err
		}
		s.planned = &planned{podClaim: podClaim{claim: e.claim, plan: a}, extendedClaim: *e}
	}
	p.Lane.drop(s.pod.UID)
	return nil
}

// Unreserve gives back what Reserve kept, and takes back the reservations that PreBind wrote. Allocations stay: the next attempt uses them,
// or PostFilter gives them up. A pod that is gone has no next attempt: its reservation stays, since by it the resourceclaim controller knows
// that the devices are to be freed.
func (p *Plugin) Unreserve(ctx context.Context, c *framework.CycleState, pod *state.PodInfo, _ string) {
	s, ok := key.Read(c)
	if !ok {
		return
	}
	if of := s.planned; of != nil {
		s.planned = nil
		if err := p.undo(ctx, of); err != nil && p.Failed != nil {
			p.Failed(pod.Pod, err)
		}
	}
	for _, c := range s.claims {
		var err error
		if c.unsure {
			err = p.learn(ctx, c, pod.Pod)
		}
		if c.plan != nil && !c.written {
			p.Known.forget(c.claim.UID)
		}
		if c.written && !p.isGone(ctx, pod.Pod) {
			err = errors.Join(err, p.release(ctx, c.claim, pod.Pod.UID))
		}
		c.plan, c.written, c.unsure = nil, false, false
		if err != nil && p.Failed != nil {
			p.Failed(pod.Pod, err)
		}
	}
}

// isGone tells whether the server has a pod no more, or will not have it bound.
func (p *Plugin) isGone(ctx context.Context, pod *corev1.Pod) bool {
	ctx, cancel := context.WithTimeout(ctx, learnWithin)
	defer cancel()
	now, err := p.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return apierrors.IsNotFound(err)
	}
	return now.UID != pod.UID || now.DeletionTimestamp != nil && now.Spec.NodeName == ""
}

// learn finds out what became of a write whose answer was lost, before its devices count as free: the cache may tell of it only later.
func (p *Plugin) learn(ctx context.Context, c *podClaim, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, learnWithin)
	defer cancel()
	var now *resourcev1.ResourceClaim
	var failed error
	err := wait.ExponentialBackoffWithContext(ctx, wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 7}, func(ctx context.Context) (bool, error) {
		now, failed = p.Client.ResourceV1().ResourceClaims(c.claim.Namespace).Get(ctx, c.claim.Name, metav1.GetOptions{})
		return failed == nil || apierrors.IsNotFound(failed), nil
	})
	if apierrors.IsNotFound(failed) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find out whether claim %s/%s was written: %w", c.claim.Namespace, c.claim.Name, cmp.Or(failed, err))
	}
	if now.UID == c.claim.UID && now.Status.Allocation != nil {
		p.Known.wrote(now)
		c.claim, c.written = now, resourceclaim.IsReservedForPod(pod, now, false)
	}
	return nil
}

// learnWithin bounds learn and isGone.
const learnWithin = 15 * time.Second

// unanswered tells whether a write may have been done although it failed.
func unanswered(err error) bool {
	var said apierrors.APIStatus
	return !errors.As(err, &said) || said.Status().Code >= http.StatusInternalServerError
}

// release removes a pod from those that a claim is reserved for, whatever else has changed there.
func (p *Plugin) release(ctx context.Context, c *resourcev1.ResourceClaim, pod types.UID) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": c.UID},
		"status":   map[string]any{"reservedFor": []any{map[string]any{"$patch": "delete", "uid": pod}}},
	})
	if err != nil {
		return err
	}
	now, err := p.Client.ResourceV1().ResourceClaims(c.Namespace).Patch(ctx, c.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("take back the reservation of claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	p.Known.wrote(now)
	return nil
}

// PreBindPreFlight tells whether the pod has claims: they are written before it is bound.
func (*Plugin) PreBindPreFlight(c *framework.CycleState, _ *state.PodInfo, _ string) bool {
	_, ok := key.Read(c)
	return ok
}

// PreBind writes the pod's claims, and waits for devices that have to be made ready on the node.
func (p *Plugin) PreBind(ctx context.Context, c *framework.CycleState, pod *state.PodInfo, node string) error {
	s, ok := key.Read(c)
	if !ok {
		return nil
	}
	claims := s.claims
	if s.planned != nil {
		if err := p.make(ctx, s.planned, pod.Pod); err != nil {
			return err
		}
		claims = append(slices.Clip(claims), s.planned.made)
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
	return p.await(ctx, claims)
}

// write puts the allocation, if it was found by this attempt, and the reservation into a claim, on top of what the claim is by then.
func (p *Plugin) write(ctx context.Context, c *podClaim, pod *corev1.Pod) error {
	api := p.Client.ResourceV1().ResourceClaims(c.claim.Namespace)
	at, claim := c.claim.Namespace+"/"+c.claim.Name, c.claim.DeepCopy()
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
		case c.plan != nil && claim.Status.Allocation != nil:
			return fmt.Errorf("claim %s got allocated elsewhere in the meantime", at)
		case c.plan == nil && claim.Status.Allocation == nil:
			return fmt.Errorf("claim %s got deallocated elsewhere in the meantime", at)
		}
		if c.plan != nil {
			if !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
				claim.Finalizers = append(claim.Finalizers, resourcev1.Finalizer)
				if claim, err = api.Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
					return fmt.Errorf("add finalizer to claim %s: %w", at, err)
				}
			}
			claim.Status.Allocation = c.plan.DeepCopy()
		}
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
		if claim.Status.Allocation.AllocationTimestamp == nil {
			claim.Status.Allocation.AllocationTimestamp = &metav1.Time{Time: time.Now()}
		}
		if claim, err = api.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
			c.unsure = unanswered(err)
			what := "reservation"
			if c.plan != nil {
				what = "allocation and reservation"
			}
			return fmt.Errorf("add %s to claim %s: %w", what, at, err)
		}
		p.Known.wrote(claim)
		c.claim, c.written = claim, true
		return nil
	})
}

// What a device that has to be made ready ends in.
var (
	errNotReady = errors.New("device binding timeout")
	errUnfit    = errors.New("device binding failed")
)

func hasConditions(c *resourcev1.ResourceClaim) bool {
	return c.Status.Allocation != nil && slices.ContainsFunc(c.Status.Allocation.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
		return len(r.BindingConditions) > 0
	})
}

// await blocks until all devices are ready.
func (p *Plugin) await(ctx context.Context, claims []*podClaim) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.Binding, errNotReady)
	defer cancel()
	for {
		changed, all := p.Known.next(), true
		for _, c := range claims {
			now, err := p.Known.claim(c.claim.Namespace, c.claim.Name)
			if err != nil {
				return fmt.Errorf("waiting for devices: %w", err)
			}
			if now.UID != c.claim.UID || now.Status.Allocation == nil {
				return fmt.Errorf("claim %s/%s got deallocated elsewhere in the meantime", c.claim.Namespace, c.claim.Name)
			}
			ready, err := isReady(now)
			if err != nil {
				return err
			}
			if !ready && p.expired(now) {
				return fmt.Errorf("%w: claim=%s", errNotReady, now.Name)
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

// isReady tells whether the conditions hold that an allocated claim's devices have to meet before their pod is bound.
func isReady(c *resourcev1.ResourceClaim) (bool, error) {
	for i := range c.Status.Allocation.Devices.Results {
		r := &c.Status.Allocation.Devices.Results[i]
		if len(r.BindingConditions) == 0 {
			continue
		}
		at := slices.IndexFunc(c.Status.Devices, func(d resourcev1.AllocatedDeviceStatus) bool {
			return d.Driver == r.Driver && d.Pool == r.Pool && d.Device == r.Device
		})
		if at < 0 {
			return false, nil
		}
		said := c.Status.Devices[at].Conditions
		for _, name := range r.BindingFailureConditions {
			if f := apimeta.FindStatusCondition(said, name); f != nil && f.Status == metav1.ConditionTrue {
				return false, fmt.Errorf("%w: claim=%s, reason=%s, message=%q", errUnfit, c.Name, f.Reason, f.Message)
			}
		}
		for _, name := range r.BindingConditions {
			if !apimeta.IsStatusConditionTrue(said, name) {
				return false, nil
			}
		}
	}
	return true, nil
}

// expired tells whether an allocated claim's devices have had their time to become ready.
func (p *Plugin) expired(c *resourcev1.ResourceClaim) bool {
	since := c.Status.Allocation.AllocationTimestamp
	return hasConditions(c) && since != nil && time.Since(since.Time) > p.Binding
}

// lost tells whether an allocated claim's devices will not become ready.
func (p *Plugin) lost(c *resourcev1.ResourceClaim) bool {
	if !hasConditions(c) {
		return false
	}
	ready, err := isReady(c)
	return err != nil || !ready && p.expired(c)
}

// PostFilter gives up the devices of one claim that were missing on a node and that nobody else uses, so that others can be found.
func (p *Plugin) PostFilter(ctx context.Context, a *framework.Attempt) (node, message string) {
	s, ok := key.Read(a.Cycle)
	if !ok {
		return "", ""
	}
	pod := a.Pod.Pod
	if s.extended != nil && s.extended.stale != nil {
		stale := s.extended.stale
		p.Later(ctx, func(ctx context.Context) {
			if err := p.remove(ctx, stale); err != nil && p.Failed != nil {
				p.Failed(pod, fmt.Errorf("delete claim %s/%s: %w", stale.Namespace, stale.Name, err))
			}
		})
		return "", fmt.Sprintf("resourceclaim %q is deleted", stale.Name)
	}
	for _, c := range s.claims {
		if !s.idle[c] || usedByOthers(c.claim, pod.UID) {
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
	return slices.ContainsFunc(c.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID != pod })
}

// deallocate gives up a claim's devices, whatever else has changed of it, unless it has others by now or somebody else uses them.
func (p *Plugin) deallocate(ctx context.Context, c *resourcev1.ResourceClaim, pod types.UID) error {
	api, now, again := p.Client.ResourceV1().ResourceClaims(c.Namespace), c, false
	return retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if again {
			now, err = api.Get(ctx, c.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			if err != nil {
				return err
			}
			a := now.Status.Allocation
			if now.UID != c.UID || a == nil || usedByOthers(now, pod) ||
				!equality.Semantic.DeepEqual(a.Devices.Results, c.Status.Allocation.Devices.Results) || !a.AllocationTimestamp.Equal(c.Status.Allocation.AllocationTimestamp) {
				return nil
			}
		}
		again = true
		claim := now.DeepCopy()
		claim.Status = resourcev1.ResourceClaimStatus{}
		if now, err = api.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err == nil {
			p.Known.wrote(now)
		}
		return err
	})
}
