// SPDX-License-Identifier: Apache-2.0

// Package endpointslicemirroring copies the Endpoints that users create for Services without a selector to
// EndpointSlices, which proxies and DNS servers read. The table of controllers starts it. plan.go decides, this file
// acts. It never writes Endpoints.
package endpointslicemirroring

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	endpointutil "k8s.io/endpointslice/util"

	"keelson/controllers/framework"
	"keelson/controllers/internal/servicepods"
)

const (
	// manager is the value of the label endpointslice.kubernetes.io/managed-by.
	manager = "endpointslicemirroring-controller.k8s.io"
	// sliceEventDelay is how long a slice event waits for the response to our own write that may have caused it.
	sliceEventDelay = 100 * time.Millisecond
)

// Controller mirrors Endpoints.
type Controller struct {
	env       *framework.Env
	loop      *framework.Loop[framework.Key]
	services  corelisters.ServiceLister
	endpoints corelisters.EndpointsLister
	slices    *servicepods.Slices
	tracker   *endpointutil.EndpointSliceTracker
	metrics   *Metrics
}

// New builds the controller.
func New(env *framework.Env, metrics *Metrics) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	controller := &Controller{
		env:       env,
		services:  core.Services().Lister(),
		endpoints: core.Endpoints().Lister(),
		tracker:   endpointutil.NewEndpointSliceTracker(),
		metrics:   metrics,
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	var err error
	if controller.slices, err = servicepods.SlicesOf(env, manager); err != nil {
		return nil, fmt.Errorf("endpoint slice mirroring: %w", err)
	}
	selectorless := func(s *corev1.Service) bool { return len(s.Spec.Selector) == 0 }
	ifSelectorless := func(s *corev1.Service) {
		if selectorless(s) {
			controller.loop.Add(framework.KeyOf(s))
		}
	}
	ifMirrored := func(e *corev1.Endpoints) {
		if shouldMirror(e) {
			controller.loop.Add(framework.KeyOf(e))
		}
	}
	err = errors.Join(
		framework.On(controller.loop, core.Services().Informer(), framework.Handlers[*corev1.Service]{
			Add:    ifSelectorless,
			Delete: ifSelectorless,
			Update: func(old, cur *corev1.Service) {
				if selectorless(old) != selectorless(cur) {
					controller.loop.Add(framework.KeyOf(cur))
				}
			},
		}),
		framework.On(controller.loop, core.Endpoints().Informer(), framework.Handlers[*corev1.Endpoints]{
			Add:    ifMirrored,
			Delete: ifMirrored,
			Update: func(old, cur *corev1.Endpoints) {
				if shouldMirror(old) || shouldMirror(cur) {
					controller.loop.Add(framework.KeyOf(cur))
				}
			},
		}),
		framework.On(controller.loop, discoveryinformers.New(env.Shared.Scoped()).EndpointSlices().
			Informer(), framework.Handlers[*discoveryv1.EndpointSlice]{
			Add: controller.sliceChanged,
			Update: func(old, cur *discoveryv1.EndpointSlice) {
				controller.sliceChanged(cur)
				if servicepods.KeyOf(old) != servicepods.KeyOf(cur) ||
					controller.slices.Managed(old) != controller.slices.Managed(cur) {
					controller.sliceChanged(old)
				}
			},
			Delete: func(s *discoveryv1.EndpointSlice) {
				if controller.slices.Managed(s) && !controller.tracker.HandleDeletion(s) {
					controller.loop.AddAfter(servicepods.KeyOf(s), sliceEventDelay)
				}
			},
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("endpoint slice mirroring: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *Controller) sliceChanged(s *discoveryv1.EndpointSlice) {
	if c.slices.Managed(s) && s.Labels[discoveryv1.LabelServiceName] != "" {
		c.loop.AddAfter(servicepods.KeyOf(s), sliceEventDelay)
	}
}

func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	begin := time.Now()
	defer func() { c.metrics.duration.Observe(time.Since(begin).Seconds()) }()
	slices, err := c.slices.Of(key)
	if err != nil {
		return err
	}
	endpoints, service, err := c.source(key)
	if err != nil {
		return err
	}
	if endpoints == nil {
		c.tracker.DeleteService(key.Namespace, key.Name)
		c.metrics.count(key, 0, 0, 0)
		return c.remove(ctx, slices)
	}
	if c.tracker.StaleSlices(service, slices) {
		return fmt.Errorf("mirrored slices of %s: %w", key, framework.ErrStale)
	}
	p := plan(endpoints, slices)
	c.recordSkipped(endpoints, p)
	c.metrics.observe(key, p)
	return c.apply(ctx, endpoints, p)
}

// source returns the Endpoints to mirror, nil if there is nothing to mirror: no Endpoints, no Service, or not meant for
// mirroring.
func (c *Controller) source(key framework.Key) (*corev1.Endpoints, *corev1.Service, error) {
	endpoints, err := c.endpoints.Endpoints(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && !shouldMirror(endpoints) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	s, err := c.services.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && len(s.Spec.Selector) > 0 {
		return nil, nil, nil
	}
	return endpoints, s, err
}

// recordSkipped records an event about addresses of e that are not mirrored.
func (c *Controller) recordSkipped(e *corev1.Endpoints, p *changes) {
	if p.invalid > 0 {
		c.env.Events.Eventf(e, corev1.EventTypeWarning, "InvalidIPAddress",
			"Skipped %d invalid IP addresses when mirroring to EndpointSlices", p.invalid)
	}
	if p.skipped > p.invalid {
		c.env.Events.Eventf(e, corev1.EventTypeWarning, "TooManyAddressesToMirror",
			"A max of %d addresses can be mirrored to EndpointSlices per Endpoints subset. %d addresses were skipped",
			maxAddressesPerSubset, p.skipped)
	}
}

func (c *Controller) apply(ctx context.Context, e *corev1.Endpoints, p *changes) error {
	client := c.env.Client.DiscoveryV1().EndpointSlices(e.Namespace)
	if e.DeletionTimestamp == nil {
		for _, s := range p.create {
			done, err := client.Create(ctx, s, metav1.CreateOptions{})
			if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("create slice for endpoints %s/%s: %w", e.Namespace, e.Name, err)
			}
			c.tracker.Update(done)
			c.metrics.changes.WithLabelValues("create").Inc()
		}
	}
	for _, s := range p.update {
		done, err := client.Update(ctx, s, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("update slice %s/%s: %w", s.Namespace, s.Name, err)
		}
		c.tracker.Update(done)
		c.metrics.changes.WithLabelValues("update").Inc()
	}
	return c.remove(ctx, p.remove)
}

func (c *Controller) remove(ctx context.Context, slices []*discoveryv1.EndpointSlice) error {
	for _, s := range slices {
		err := c.env.Client.DiscoveryV1().EndpointSlices(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("delete slice %s/%s: %w", s.Namespace, s.Name, err)
		}
		c.tracker.ExpectDeletion(s)
		c.metrics.changes.WithLabelValues("delete").Inc()
	}
	return nil
}
