// SPDX-License-Identifier: Apache-2.0

// Package devicetainteviction ends pods that use a device which its driver has tainted with the effect NoExecute, at once or when the time
// is over for which their claims tolerate it. Nothing is remembered: a pod is looked at when it, its claims or their devices change. The
// table of controllers starts it.
package devicetainteviction

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	coreinformers "k8s.io/client-go/informers/core/v1"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	podkind "keelson/api/core/pod"
	"keelson/controllers/framework"
)

// byPool finds claims and slices by "driver/pool" of their devices.
const byPool = "keelson.devicepool"

// Controller evicts pods.
type Controller struct {
	env           *framework.Env
	loop          *framework.Loop[framework.Key] // of pods
	pods          corelisters.PodLister
	claims        resourcelisters.ResourceClaimLister
	users, slices cache.Indexer // claims and slices by pool
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	pods, g := coreinformers.New(env.Shared.Scoped()).Pods(), resourceinformers.New(env.Shared.Scoped())
	claims, all := g.ResourceClaims(), g.ResourceSlices().Informer()
	c := &Controller{
		env: env, pods: pods.Lister(), claims: claims.Lister(), users: claims.Informer().GetIndexer(), slices: all.GetIndexer(),
	}
	c.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, c.sync)
	err := errors.Join(
		framework.EnsureIndex(claims.Informer(), byPool, indexClaim),
		framework.EnsureIndex(all, byPool, indexSlice),
		framework.On(c.loop, pods.Informer(), framework.Handlers[*corev1.Pod]{Add: c.look, Update: func(old, p *corev1.Pod) {
			if old.Spec.NodeName == "" && p.Spec.NodeName != "" {
				c.look(p)
			}
		}}),
		framework.On(c.loop, claims.Informer(), framework.Handlers[*resourcev1.ResourceClaim]{
			Add: c.lookAtUsers, Update: func(_, claim *resourcev1.ResourceClaim) { c.lookAtUsers(claim) },
		}),
		framework.On(c.loop, all, framework.Handlers[*resourcev1.ResourceSlice]{
			Add: c.tainted, Update: func(_, s *resourcev1.ResourceSlice) { c.tainted(s) },
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("device taints: %w", err)
	}
	return c, nil
}

// Run is a run.Func.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *Controller) look(p *corev1.Pod) {
	if p.Spec.NodeName != "" && (len(p.Spec.ResourceClaims) > 0 || p.Status.ExtendedResourceClaimStatus != nil) {
		c.loop.Add(framework.KeyOf(p))
	}
}

func (c *Controller) lookAtUsers(claim *resourcev1.ResourceClaim) {
	if claim.Status.Allocation == nil {
		return
	}
	for _, user := range claim.Status.ReservedFor {
		if user.APIGroup == "" && user.Resource == "pods" {
			c.loop.Add(framework.Key{Namespace: claim.Namespace, Name: user.Name})
		}
	}
}

// tainted looks at those who use devices of a slice that has some to leave. A taint that goes evicts nobody.
func (c *Controller) tainted(s *resourcev1.ResourceSlice) {
	if !slices.ContainsFunc(s.Spec.Devices, func(d resourcev1.Device) bool { return slices.ContainsFunc(d.Taints, evicts) }) {
		return
	}
	objs, err := c.users.ByIndex(byPool, s.Spec.Driver+"/"+s.Spec.Pool.Name)
	if err != nil {
		return // a cache with that index does not fail
	}
	for _, o := range objs {
		if claim, ok := o.(*resourcev1.ResourceClaim); ok {
			c.lookAtUsers(claim)
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
	p, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && (p.Spec.NodeName == "" || p.DeletionTimestamp != nil || podkind.Terminal(p)) {
		return nil
	}
	if err != nil {
		return err
	}
	now := time.Now()
	at, why := c.end(p, now)
	switch {
	case at.IsZero():
		return nil
	case now.Before(at):
		c.loop.AddAfter(key, at.Sub(now)) // and then it is looked at again
		return nil
	}
	c.env.Events.Event(p, corev1.EventTypeNormal, "DeviceTaintManagerEviction", "Marking for deletion")
	c.env.Log.Info("evicting pod from tainted device", "pod", key, "device", why)
	d := framework.Disruption{Reason: "DeletionByDeviceTaintManager", Message: "Device Taint manager: deleting due to NoExecute taint"}
	if err := framework.Disrupt(ctx, c.env, p, d); err != nil {
		return err
	}
	return framework.DeletePod(ctx, c.env, p, nil)
}

// end is when a pod has to go, and because of which device; zero: it may stay.
func (c *Controller) end(p *corev1.Pod, now time.Time) (at time.Time, why string) {
	for name := range resourceclaim.PodClaims(p) {
		claim, err := c.claims.ResourceClaims(p.Namespace).Get(name)
		if err != nil || claim.Status.Allocation == nil || !resourceclaim.IsReservedForPod(p, claim, false) {
			continue
		}
		for i := range claim.Status.Allocation.Devices.Results {
			r := &claim.Status.Allocation.Devices.Results[i]
			for _, t := range c.taints(r) {
				if one := until(t, r.Tolerations, now); !one.IsZero() && (at.IsZero() || one.Before(at)) {
					at, why = one, r.Driver+"/"+r.Pool+"/"+r.Device
				}
			}
		}
	}
	return at, why
}

// taints are those of a device that make pods leave, as the pool's newest generation says.
func (c *Controller) taints(r *resourcev1.DeviceRequestAllocationResult) (out []resourcev1.DeviceTaint) {
	objs, err := c.slices.ByIndex(byPool, r.Driver+"/"+r.Pool)
	if err != nil {
		return nil // a cache with that index does not fail
	}
	newest := int64(-1)
	for _, o := range objs {
		s, ok := o.(*resourcev1.ResourceSlice)
		if !ok || s.Spec.Pool.Generation < newest {
			continue
		}
		if s.Spec.Pool.Generation > newest {
			newest, out = s.Spec.Pool.Generation, nil
		}
		for i := range s.Spec.Devices {
			if s.Spec.Devices[i].Name == r.Device {
				out = slices.DeleteFunc(slices.Clone(s.Spec.Devices[i].Taints), func(t resourcev1.DeviceTaint) bool { return !evicts(t) })
			}
		}
	}
	return out
}

// longest are a hundred years: more seconds than a Duration holds must not become none.
const longest = 100 * 365 * 24 * 60 * 60

// until is when a device has to be left because of a taint; zero: never. Of several tolerations with a limit the shortest counts.
func until(t resourcev1.DeviceTaint, tolerations []resourcev1.DeviceToleration, now time.Time) time.Time {
	since, limit := now, int64(-1)
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
	return since.Add(time.Duration(min(max(limit, 0), longest)) * time.Second)
}
