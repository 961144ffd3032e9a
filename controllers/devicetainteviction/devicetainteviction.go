// SPDX-License-Identifier: Apache-2.0

// Package devicetainteviction evicts pods that use a device with a NoExecute taint from its driver or a
// DeviceTaintRule, at once or when the claims' toleration ends, and reports the progress in the status of rules. It
// keeps no decisions: a pod is checked when it, its claims, their devices or the rules change. The table of controllers
// starts it. It never taints a device.
package devicetainteviction

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	podkind "keelson/api/core/pod"
	resourcekind "keelson/api/resource"
	"keelson/controllers/framework"
)

// byPool indexes claims and slices by "driver/pool" of their devices.
const byPool = "keelson.devicepool"

// Controller evicts pods.
type Controller struct {
	env           *framework.Env
	loop          *framework.Loop[framework.Key] // keys of pods, and of rules, which have no namespace
	pods          corelisters.PodLister
	claims        resourcelisters.ResourceClaimLister
	rules         resourcelisters.DeviceTaintRuleLister
	users, slices cache.Indexer // claims and slices by pool

	mu      sync.Mutex
	evicted map[types.UID]int // number of pods by rule, since the start
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	pods := coreinformers.New(env.Shared.Scoped()).Pods()
	cs := resourceinformers.New(env.Shared.Scoped())
	claims := cs.ResourceClaims()
	all := cs.ResourceSlices().Informer()
	controller := &Controller{
		env:     env,
		pods:    pods.Lister(),
		claims:  claims.Lister(),
		users:   claims.Informer().GetIndexer(),
		slices:  all.GetIndexer(),
		rules:   cs.DeviceTaintRules().Lister(),
		evicted: map[types.UID]int{},
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	err := errors.Join(
		framework.EnsureIndex(claims.Informer(), byPool, indexClaim),
		framework.EnsureIndex(all, byPool, indexSlice),
		framework.On(controller.loop, pods.Informer(), framework.Handlers[*corev1.Pod]{
			Add: controller.enqueue,
			Update: func(old, p *corev1.Pod) {
				if old.Spec.NodeName == "" && p.Spec.NodeName != "" {
					controller.enqueue(p)
				}
			},
		}),
		framework.On(controller.loop, claims.Informer(), framework.Handlers[*resourcev1.ResourceClaim]{
			Add:    controller.enqueueUsers,
			Update: func(_, claim *resourcev1.ResourceClaim) { controller.enqueueUsers(claim) },
		}),
		framework.On(controller.loop, all, framework.Handlers[*resourcev1.ResourceSlice]{
			Add:    controller.sliceChanged,
			Update: func(_, s *resourcev1.ResourceSlice) { controller.sliceChanged(s) },
		}),
		framework.On(controller.loop, cs.DeviceTaintRules().Informer(), framework.Handlers[*resourcev1.DeviceTaintRule]{
			Add:    controller.ruleChanged,
			Delete: controller.ruleDeleted,
			Update: func(old, r *resourcev1.DeviceTaintRule) {
				if !equality.Semantic.DeepEqual(&old.Spec, &r.Spec) {
					controller.ruleChanged(r)
				}
			},
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("device taints: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *Controller) enqueue(p *corev1.Pod) {
	if p.Spec.NodeName != "" && (len(p.Spec.ResourceClaims) > 0 || p.Status.ExtendedResourceClaimStatus != nil) {
		c.loop.Add(framework.KeyOf(p))
	}
}

func (c *Controller) enqueueUsers(claim *resourcev1.ResourceClaim) {
	if claim.Status.Allocation == nil {
		return
	}
	for _, user := range claim.Status.ReservedFor {
		if user.APIGroup == "" && user.Resource == "pods" {
			c.loop.Add(framework.Key{Namespace: claim.Namespace, Name: user.Name})
		}
	}
}

// sliceChanged requeues pods that use tainted devices of a slice. A removed taint evicts no pod.
func (c *Controller) sliceChanged(s *resourcev1.ResourceSlice) {
	if !slices.ContainsFunc(s.Spec.Devices, func(d resourcev1.Device) bool {
		return slices.ContainsFunc(d.Taints, evicts)
	}) {
		return
	}
	objs, err := c.users.ByIndex(byPool, s.Spec.Driver+"/"+s.Spec.Pool.Name)
	if err != nil {
		return // an indexed cache returns no error
	}
	for _, o := range objs {
		if claim, ok := o.(*resourcev1.ResourceClaim); ok {
			c.enqueueUsers(claim)
		}
	}
}

func evicts(t resourcev1.DeviceTaint) bool { return t.Effect == resourcev1.DeviceTaintEffectNoExecute }

func indexClaim(obj any) ([]string, error) {
	claim, ok := obj.(*resourcev1.ResourceClaim)
	if !ok || claim.Status.Allocation == nil {
		return nil, nil
	}
	var keys []string
	for _, r := range claim.Status.Allocation.Devices.Results {
		if k := r.Driver + "/" + r.Pool; !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys, nil
}

func indexSlice(obj any) ([]string, error) {
	s, ok := obj.(*resourcev1.ResourceSlice)
	if !ok {
		return nil, nil
	}
	return []string{s.Spec.Driver + "/" + s.Spec.Pool.Name}, nil
}

func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	if key.Namespace == "" {
		return c.syncRule(ctx, key)
	}
	pod, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && (pod.DeletionTimestamp != nil || podkind.Terminal(pod)) {
		return nil
	}
	if err != nil {
		return err
	}
	now := time.Now()
	end, err := c.evictionOf(pod, now)
	if err != nil || end.at.IsZero() {
		return err
	}
	for _, r := range end.rules {
		c.loop.AddAfter(framework.KeyOf(r), statusPeriod)
	}
	if now.Before(end.at) {
		c.loop.AddAfter(key, end.at.Sub(now)) // then it is checked again
		return nil
	}
	c.env.Events.Event(pod, corev1.EventTypeNormal, "DeviceTaintManagerEviction", "Marking for deletion")
	c.env.Log.Info("evicting pod from tainted device", "pod", key, "device", end.device)
	d := framework.Disruption{
		Reason:  "DeletionByDeviceTaintManager",
		Message: "Device Taint manager: deleting due to NoExecute taint",
	}
	if err := framework.Disrupt(ctx, c.env, pod, d); err != nil {
		return err
	}
	if err := framework.DeletePod(ctx, c.env, pod, nil); err != nil {
		return err
	}
	c.countEviction(end.rules)
	return nil
}

// eviction is when a pod must be evicted; at is zero: never.
type eviction struct {
	at     time.Time
	device string                        // the device
	rules  []*resourcev1.DeviceTaintRule // the rules that evict it, or would if another did not earlier
}

// evictionOf is when a pod must be evicted, and because of which device and rules.
func (c *Controller) evictionOf(p *corev1.Pod, now time.Time) (e eviction, err error) {
	if p.Spec.NodeName == "" {
		return e, nil
	}
	rules, err := c.rules.List(labels.Everything())
	if err != nil {
		return e, err
	}
	rules = slices.DeleteFunc(rules, func(r *resourcev1.DeviceTaintRule) bool { return !evicts(r.Spec.Taint) })
	for r := range c.devices(p) {
		for _, t := range c.taints(r) {
			e.addDeadline(evictionTime(t, r.Tolerations, now), r, nil)
		}
		for _, rule := range rules {
			if resourcekind.RuleSelects(rule, r.Driver, r.Pool, r.Device) {
				e.addDeadline(evictionTime(rule.Spec.Taint, r.Tolerations, now), r, rule)
			}
		}
	}
	return e, nil
}

// addDeadline adds a time at which a device must be left; zero: never.
func (e *eviction) addDeadline(
	at time.Time, r *resourcev1.DeviceRequestAllocationResult, rule *resourcev1.DeviceTaintRule,
) {
	if at.IsZero() {
		return
	}
	if e.at.IsZero() || at.Before(e.at) {
		e.at = at
		e.device = r.Driver + "/" + r.Pool + "/" + r.Device
	}
	if rule != nil && !slices.Contains(e.rules, rule) {
		e.rules = append(e.rules, rule)
	}
}

// devices are the allocated devices of a pod's claims.
func (c *Controller) devices(p *corev1.Pod) iter.Seq[*resourcev1.DeviceRequestAllocationResult] {
	return func(yield func(*resourcev1.DeviceRequestAllocationResult) bool) {
		for name := range resourceclaim.PodClaims(p) {
			claim, err := c.claims.ResourceClaims(p.Namespace).Get(name)
			if err != nil || claim.Status.Allocation == nil || !resourceclaim.IsReservedForPod(p, claim, false) {
				continue
			}
			for i := range claim.Status.Allocation.Devices.Results {
				if !yield(&claim.Status.Allocation.Devices.Results[i]) {
					return
				}
			}
		}
	}
}

// taints are the NoExecute taints of a device, from the pool's newest generation.
func (c *Controller) taints(r *resourcev1.DeviceRequestAllocationResult) (out []resourcev1.DeviceTaint) {
	for _, d := range c.published(r.Driver, r.Pool) {
		if d.Name == r.Device {
			out = slices.DeleteFunc(slices.Clone(d.Taints), func(t resourcev1.DeviceTaint) bool { return !evicts(t) })
		}
	}
	return out
}

// published are the devices of a pool's newest generation.
func (c *Controller) published(driver, pool string) (out []*resourcev1.Device) {
	objs, err := c.slices.ByIndex(byPool, driver+"/"+pool)
	if err != nil {
		return nil // an indexed cache returns no error
	}
	newest := int64(-1)
	for _, o := range objs {
		s, ok := o.(*resourcev1.ResourceSlice)
		if !ok || s.Spec.Pool.Generation < newest {
			continue
		}
		if s.Spec.Pool.Generation > newest {
			newest = s.Spec.Pool.Generation
			out = nil
		}
		for i := range s.Spec.Devices {
			out = append(out, &s.Spec.Devices[i])
		}
	}
	return out
}

// maxTolerationSeconds is a hundred years: a larger number of seconds would overflow a Duration.
const maxTolerationSeconds = 100 * 365 * 24 * 60 * 60

// evictionTime is when a device must be left because of a taint; zero: never. The shortest matching toleration counts.
func evictionTime(t resourcev1.DeviceTaint, tolerations []resourcev1.DeviceToleration, now time.Time) time.Time {
	since := now
	limit := int64(-1)
	if t.TimeAdded != nil {
		since = t.TimeAdded.Time
	}
	for _, tol := range tolerations {
		if !resourceclaim.ToleratesTaint(tol, t) {
			continue
		}
		if tol.TolerationSeconds == nil {
			return time.Time{}
		}
		if s := max(*tol.TolerationSeconds, 0); limit < 0 || s < limit {
			limit = s
		}
	}
	return since.Add(time.Duration(min(max(limit, 0), maxTolerationSeconds)) * time.Second)
}
