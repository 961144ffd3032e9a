// SPDX-License-Identifier: Apache-2.0

package resourcequota

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/api/quota"
	"keelson/controllers/framework"
)

var deviceClaims = schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}

// watchDevices sets c.devices, the claims of devices. What they use depends on their classes, and on the pods for which
// the scheduler made them.
func (c *Controller) watchDevices() {
	resources := resourceinformers.New(c.env.Shared.Scoped())
	c.devices = &lazyInformer[*resourcev1.ResourceClaim]{
		c:        c,
		informer: func() cache.SharedIndexInformer { return resources.ResourceClaims().Informer() },
		others: func() (cache.DoneChecker, error) {
			return framework.Watch(resources.DeviceClasses().Informer(), framework.Handlers[*resourcev1.DeviceClass]{
				Add:    func(class *resourcev1.DeviceClass) { c.classChanged(nil, class.Spec.ExtendedResourceName) },
				Delete: func(class *resourcev1.DeviceClass) { c.classChanged(class.Spec.ExtendedResourceName, nil) },
				Update: func(old, cur *resourcev1.DeviceClass) {
					c.classChanged(old.Spec.ExtendedResourceName, cur.Spec.ExtendedResourceName)
				},
			})
		},
		meter: quota.DeviceClaimMeter(quota.View{
			Extended: func(name string) corev1.ResourceName {
				class, err := resources.DeviceClasses().Lister().Get(name)
				if err != nil || class.Spec.ExtendedResourceName == nil {
					return ""
				}
				return corev1.ResourceName(*class.Spec.ExtendedResourceName)
			},
			Pod: func(namespace, name string) *corev1.Pod {
				pod, err := c.pods.Pods(namespace).Get(name)
				if err != nil {
					return nil
				}
				return pod
			},
			Claims: func(namespace string) []*resourcev1.ResourceClaim { return c.devices.cached(namespace) },
		}),
	}
}

// classChanged requeues the quotas of the extended resources that a class serves now or did before.
func (c *Controller) classChanged(old, cur *string) {
	if apiequality.Semantic.DeepEqual(old, cur) {
		return
	}
	quotas, err := c.quotas.List(labels.Everything())
	if err != nil {
		return // a lister over a cache returns no error
	}
	for _, q := range quotas {
		for _, name := range []*string{old, cur} {
			if name == nil {
				continue
			}
			if _, limited := q.Spec.Hard[corev1.ResourceName(corev1.DefaultResourceRequestsPrefix+*name)]; limited {
				c.loop.AddAfter(framework.KeyOf(q), recalcDelay)
			}
		}
	}
}

// countDevices adds the usage of device claims if the server serves them.
func (c *Controller) countDevices(ctx context.Context, used corev1.ResourceList, q *corev1.ResourceQuota) error {
	if len(c.devices.meter.Tracked(q.Spec.Hard)) == 0 {
		return nil
	}
	if c.devices.started() {
		return c.devices.add(ctx, used, q)
	}
	_, err := c.counters.resolve(ctx, deviceClaims)
	if errors.Is(err, errUnknown) {
		c.loop.AddAfter(framework.KeyOf(q), unknownResourceRetry)
		return nil
	}
	if err != nil {
		return err
	}
	return c.devices.add(ctx, used, q)
}
