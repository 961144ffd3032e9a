// SPDX-License-Identifier: Apache-2.0

// Package endpoints maintains the Endpoints of Services with a selector: the API before EndpointSlices, which older
// clients still read. The table of controllers starts it. plan.go decides, this file acts. It never touches Endpoints
// of Services without a selector, which belong to users.
package endpoints

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	endpointutil "k8s.io/endpointslice/util"

	"keelson/controllers/framework"
	"keelson/controllers/internal/servicepods"
)

// Controller handles Endpoints.
type Controller struct {
	env         *framework.Env
	loop        *framework.Loop[framework.Key]
	services    corelisters.ServiceLister
	endpoints   corelisters.EndpointsLister
	servicePods *servicepods.Services
	triggers    *endpointutil.TriggerTimeTracker
	pace        servicepods.RateLimit

	mu sync.Mutex
	// replacedVersions has, for each updated Endpoints, the previous resourceVersion: while the cache shows it, the
	// cache is behind.
	replacedVersions map[framework.Key]string
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	controller := &Controller{
		env:              env,
		services:         core.Services().Lister(),
		endpoints:        core.Endpoints().Lister(),
		triggers:         endpointutil.NewTriggerTimeTracker(),
		replacedVersions: map[framework.Key]string{},
		pace:             servicepods.RateLimit{Rest: 9}, // all addresses are one object with few readers
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	var err error
	if controller.servicePods, err = servicepods.Of(env); err != nil {
		return nil, fmt.Errorf("endpoints: %w", err)
	}
	err = errors.Join(
		framework.On(controller.loop, core.Services().Informer(), framework.Each(func(s *corev1.Service) {
			controller.loop.Add(framework.KeyOf(s))
		})),
		framework.On(controller.loop, core.Pods().Informer(), controller.servicePods.Watch(controller.loop.Add)),
		framework.On(controller.loop, core.Endpoints().Informer(), framework.Handlers[*corev1.Endpoints]{
			// Our Endpoints are repaired, or deleted if their Service was deleted while the controller did not run.
			Add:    controller.endpointsChanged,
			Delete: controller.endpointsChanged,
			Update: func(_, cur *corev1.Endpoints) { controller.endpointsChanged(cur) },
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("endpoints: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *Controller) endpointsChanged(e *corev1.Endpoints) {
	if _, lock := e.Annotations[resourcelock.LeaderElectionRecordAnnotationKey]; !lock &&
		e.Labels[managedBy] == manager {
		c.loop.Add(framework.KeyOf(e))
	}
}

func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	if left := c.pace.Delay(key); left > 0 {
		c.loop.AddAfter(key, left)
		return nil
	}
	service, err := c.services.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return c.deleteOwned(ctx, key)
	}
	if err != nil || !servicepods.Selects(service) {
		return err
	}
	begin := time.Now()
	defer func() { c.pace.Record(key, time.Since(begin)) }()
	pods, err := c.servicePods.Pods(service)
	if err != nil {
		return err
	}
	current, err := c.endpoints.Endpoints(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		current = nil
		err = nil
	}
	if err != nil {
		return err
	}
	if current != nil && c.cacheStale(key, current.ResourceVersion) {
		return fmt.Errorf("endpoints of service %s: %w", key, framework.ErrStale)
	}
	want := plan(current, service, pods, c.triggers.ComputeEndpointLastChangeTriggerTime(key.Namespace, service, pods))
	if want == nil {
		return nil
	}
	if current == nil {
		return c.create(ctx, service, want)
	}
	return c.update(ctx, current, want)
}

func (c *Controller) create(ctx context.Context, service *corev1.Service, want *corev1.Endpoints) error {
	_, err := c.env.Client.CoreV1().Endpoints(want.Namespace).Create(ctx, want, metav1.CreateOptions{})
	switch {
	case err == nil || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("endpoints of service %s/%s: %w", want.Namespace, want.Name, framework.ErrStale)
	}
	c.env.Events.Eventf(service, corev1.EventTypeWarning, "FailedToCreateEndpoint",
		"Failed to create endpoint for service %s/%s: %v", want.Namespace, want.Name, err)
	return fmt.Errorf("create endpoints: %w", err)
}

func (c *Controller) update(ctx context.Context, current, want *corev1.Endpoints) error {
	done, err := c.env.Client.CoreV1().Endpoints(want.Namespace).Update(ctx, want, metav1.UpdateOptions{})
	switch {
	case err == nil:
		if done.ResourceVersion != current.ResourceVersion {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.replacedVersions[framework.KeyOf(want)] = current.ResourceVersion
		}
		return nil
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		return fmt.Errorf("endpoints of service %s/%s: %w", want.Namespace, want.Name, framework.ErrStale)
	}
	c.env.Events.Eventf(want, corev1.EventTypeWarning, "FailedToUpdateEndpoint",
		"Failed to update endpoint %s/%s: %v", want.Namespace, want.Name, err)
	return fmt.Errorf("update endpoints: %w", err)
}

// cacheStale reports whether the cache shows a replaced version. If not, the entry is removed.
func (c *Controller) cacheStale(key framework.Key, version string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.replacedVersions[key] == version {
		return true
	}
	delete(c.replacedVersions, key)
	return false
}

// deleteOwned deletes the Endpoints of a deleted Service.
func (c *Controller) deleteOwned(ctx context.Context, key framework.Key) error {
	c.triggers.DeleteService(key.Namespace, key.Name)
	c.mu.Lock()
	delete(c.replacedVersions, key)
	c.mu.Unlock()
	c.pace.Forget(key)
	err := c.env.Client.CoreV1().Endpoints(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete endpoints of a service that is gone: %w", err)
	}
	return nil
}
