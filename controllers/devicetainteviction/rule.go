// SPDX-License-Identifier: Apache-2.0

package devicetainteviction

import (
	"context"
	"fmt"
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"
	resourceac "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	podkind "keelson/api/core/pod"
	resourcekind "keelson/api/resource"
	"keelson/controllers/framework"
)

// statusPeriod is the minimum time between two status writes of an unchanged rule.
const statusPeriod = 10 * time.Second

// ruleChanged requeues a new or changed rule, and the pods that it evicts. A rule that stops evicting requeues no pods.
func (c *Controller) ruleChanged(r *resourcev1.DeviceTaintRule) {
	c.loop.Add(framework.KeyOf(r))
	if !evicts(r.Spec.Taint) {
		return
	}
	for claim := range c.selectedClaims(r) {
		c.enqueueUsers(claim)
	}
}

// selectedClaims maps the claims with devices that a rule selects to the number of these devices.
func (c *Controller) selectedClaims(r *resourcev1.DeviceTaintRule) map[*resourcev1.ResourceClaim]int {
	out := map[*resourcev1.ResourceClaim]int{}
	for _, o := range c.users.List() {
		claim, ok := o.(*resourcev1.ResourceClaim)
		if !ok || claim.Status.Allocation == nil {
			continue
		}
		for i := range claim.Status.Allocation.Devices.Results {
			if d := &claim.Status.Allocation.Devices.Results[i]; resourcekind.RuleSelects(r, d.Driver, d.Pool,
				d.Device) {
				out[claim]++
			}
		}
	}
	return out
}

// countEviction counts an evicted pod.
func (c *Controller) countEviction(rules []*resourcev1.DeviceTaintRule) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range rules {
		if _, err := c.rules.Get(r.Name); err == nil {
			c.evicted[r.UID]++
		}
	}
}

func (c *Controller) ruleDeleted(r *resourcev1.DeviceTaintRule) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.evicted, r.UID)
}

// syncRule writes the condition EvictionInProgress of a rule.
func (c *Controller) syncRule(ctx context.Context, key framework.Key) error {
	rule, err := c.rules.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	now := time.Now()
	was := framework.ConditionOf(rule.Status.Conditions, resourcev1.DeviceTaintConditionEvictionInProgress)
	if was != nil && was.ObservedGeneration == rule.Generation {
		if since := now.Sub(was.LastTransitionTime.Time); since < statusPeriod {
			c.loop.AddAfter(key, statusPeriod-since)
			return nil
		}
	}
	next := c.ruleCondition(rule, now)
	if was != nil {
		next.LastTransitionTime = was.LastTransitionTime
		if next == *was {
			return nil
		}
	}
	next.LastTransitionTime = metav1.NewTime(now) // changed at every write of the condition
	cond := metaac.Condition().WithType(next.Type).WithStatus(next.Status).WithReason(next.Reason).WithMessage(
		next.Message).
		WithObservedGeneration(next.ObservedGeneration).WithLastTransitionTime(next.LastTransitionTime)
	apply := resourceac.DeviceTaintRule(rule.Name).WithUID(rule.UID).WithStatus(
		resourceac.DeviceTaintRuleStatus().WithConditions(cond))
	_, err = c.env.Client.ResourceV1().DeviceTaintRules().ApplyStatus(ctx, apply, metav1.ApplyOptions{
		FieldManager: c.env.Name,
		Force:        true,
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// ruleCondition is the rule's condition; with the effect None it describes what would happen.
func (c *Controller) ruleCondition(rule *resourcev1.DeviceTaintRule, now time.Time) metav1.Condition {
	out := metav1.Condition{
		Type:               resourcev1.DeviceTaintConditionEvictionInProgress,
		Status:             metav1.ConditionFalse,
		ObservedGeneration: rule.Generation,
	}
	c.mu.Lock()
	evicted := c.evicted[rule.UID]
	c.mu.Unlock()
	var say []string
	switch rule.Spec.Taint.Effect {
	case resourcev1.DeviceTaintEffectNoExecute:
		pods, namespaces := c.pendingEvictions(rule, now)
		switch {
		case pods > 0:
			out.Status = metav1.ConditionTrue
			out.Reason = "PodsPendingEviction"
			say = append(say, plural(pods, "pod needs", "pods need")+" to be evicted in "+plural(namespaces,
				"namespace.", "different namespaces."))
		case evicted > 0:
			out.Reason = "Completed"
		default:
			out.Reason = "NotStarted"
		}
	case resourcev1.DeviceTaintEffectNone:
		out.Reason = "NoEffect"
		pods, namespaces := c.pendingEvictions(rule, now)
		offered, allocated := c.selectedDevices(rule)
		say = append(say, plural(offered, "published device", "published devices")+" selected.",
			plural(allocated, "allocated device", "allocated devices")+" selected.",
			plural(pods, "pod", "pods")+" would be evicted in "+plural(namespaces, "namespace", "different namespaces")+
				" if the effect was NoExecute.",
			"This information will not be updated again. Recreate the DeviceTaintRule to trigger an update.")
	default:
		out.Reason = "OtherEffect"
		say = append(say, "Eviction only happens for the NoExecute effect.")
	}
	if evicted > 0 {
		say = append(say, plural(evicted, "pod", "pods")+" evicted since starting the controller.")
	}
	out.Message = strings.Join(say, " ")
	return out
}

func plural(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

// pendingEvictions counts the pods, and their namespaces, that a rule will evict, or would with the effect NoExecute.
func (c *Controller) pendingEvictions(rule *resourcev1.DeviceTaintRule, now time.Time) (pods, namespaces int) {
	deviceTaint := rule.Spec.Taint
	deviceTaint.Effect = resourcev1.DeviceTaintEffectNoExecute
	found := sets.New[framework.Key]()
	in := sets.New[string]()
	for claim := range c.selectedClaims(rule) {
		for _, user := range claim.Status.ReservedFor {
			pod, err := c.pods.Pods(claim.Namespace).Get(user.Name)
			if err != nil || user.APIGroup != "" || user.Resource != "pods" ||
				!resourceclaim.IsReservedForPod(pod, claim, false) {
				continue
			}
			if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || podkind.Terminal(pod) {
				continue
			}
			for d := range c.devices(pod) {
				if resourcekind.RuleSelects(rule, d.Driver, d.Pool, d.Device) &&
					!evictionTime(deviceTaint, d.Tolerations, now).
						IsZero() {
					found.Insert(framework.KeyOf(pod))
					in.Insert(pod.Namespace)
				}
			}
		}
	}
	return len(found), len(in)
}

// selectedDevices counts the published and the allocated devices that a rule selects.
func (c *Controller) selectedDevices(r *resourcev1.DeviceTaintRule) (offered, allocated int) {
	for _, pool := range c.slices.ListIndexFuncValues(byPool) {
		driver, name, _ := strings.Cut(pool, "/")
		for _, d := range c.published(driver, name) {
			if resourcekind.RuleSelects(r, driver, name, d.Name) {
				offered++
			}
		}
	}
	for _, n := range c.selectedClaims(r) {
		allocated += n
	}
	return offered, allocated
}
