// SPDX-License-Identifier: Apache-2.0

// Package endpointslice maintains the EndpointSlices of Services with a selector: slices per address family and set of
// ports, with at most 100 endpoints each. The table of controllers starts it. The library k8s.io/endpointslice computes
// the slices, as in Kubernetes; this package decides when. It never touches other controllers' slices.
package endpointslice

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/endpointslice"
	slicemetrics "k8s.io/endpointslice/metrics"
	"k8s.io/endpointslice/topologycache"
	endpointutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2"

	"keelson/controllers/framework"
	"keelson/controllers/internal/servicepods"
)

const (
	// manager is the value of the label endpointslice.kubernetes.io/managed-by.
	manager = "endpointslice-controller.k8s.io"
	// maxEndpointsPerSlice is the maximum number of endpoints per slice, Kubernetes' default
	// (--max-endpoints-per-slice).
	maxEndpointsPerSlice = 100
	// sliceEventDelay is how long a slice event waits for the response to our own write that may have caused it, and
	// for further events.
	sliceEventDelay = 100 * time.Millisecond
)

// workItem is a work item: a Service, a check of a Service's slices for foreign changes, or the distribution of nodes
// over zones.
type workItem struct {
	service framework.Key
	kind    workKind
}

type workKind uint8

const (
	syncService workKind = iota
	checkSlices
	updateTopology
)

// Controller handles the slices.
type Controller struct {
	env         *framework.Env
	loop        *framework.Loop[workItem]
	services    corelisters.ServiceLister
	nodes       corelisters.NodeLister
	servicePods *servicepods.Services
	slices      *servicepods.Slices
	pods        cache.Indexer

	reconciler *endpointslice.Reconciler
	// tracker has the generations of written slices, which show when the cache is behind.
	tracker  *endpointutil.EndpointSliceTracker
	triggers *endpointutil.TriggerTimeTracker
	zones    *topologycache.TopologyCache
	pace     servicepods.RateLimit
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	controller := &Controller{
		env:      env,
		services: core.Services().Lister(),
		nodes:    core.Nodes().Lister(),
		pods:     core.Pods().Informer().GetIndexer(),
		tracker:  endpointutil.NewEndpointSliceTracker(),
		triggers: endpointutil.NewTriggerTimeTracker(),
		zones:    topologycache.NewTopologyCache(),
		pace:     servicepods.RateLimit{Rest: 1},
	}
	controller.reconciler = endpointslice.NewReconciler(env.Client, controller.nodes, maxEndpointsPerSlice,
		controller.tracker, controller.zones,
		env.Events, manager,
		endpointslice.WithPreferSameTrafficDistributionEnabled(true))
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	var err, err2 error
	controller.servicePods, err = servicepods.Of(env)
	controller.slices, err2 = servicepods.SlicesOf(env, manager)
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("endpoint slices: %w", err)
	}
	err = errors.Join(
		framework.EnsureIndex(core.Pods().Informer(), framework.ByNode, framework.IndexByNode),
		framework.On(controller.loop, core.Services().Informer(), framework.Each(func(s *corev1.Service) {
			controller.add(framework.KeyOf(s))
		})),
		framework.On(controller.loop, core.Pods().Informer(), controller.servicePods.Watch(controller.add)),
		framework.On(controller.loop, core.Nodes().Informer(), framework.Handlers[*corev1.Node]{
			Add:    controller.nodeChanged,
			Delete: func(*corev1.Node) { controller.loop.Add(workItem{kind: updateTopology}) },
			Update: func(old, cur *corev1.Node) {
				if zone(old) != zone(cur) || ready(old) != ready(cur) {
					controller.nodeChanged(cur)
				}
			},
		}),
		framework.On(controller.loop, discoveryinformers.New(env.Shared.Scoped()).EndpointSlices().
			Informer(), framework.Handlers[*discoveryv1.EndpointSlice]{
			Add:    controller.sliceChanged,
			Update: controller.sliceUpdated,
			Delete: controller.sliceDeleted,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("endpoint slices: %w", err)
	}
	slicemetrics.RegisterMetrics()
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *Controller) add(service framework.Key) { c.loop.Add(workItem{service: service}) }

// nodeChanged requeues the distribution over zones, and the Services of the node's pods, whose endpoints have the zone.
func (c *Controller) nodeChanged(n *corev1.Node) {
	c.loop.Add(workItem{kind: updateTopology})
	pods, err := framework.PodsOn(c.pods, n.Name)
	if err != nil {
		return // New created the index
	}
	for _, p := range pods {
		c.servicePods.EachService(p, c.add)
	}
}

func zone(n *corev1.Node) string { return n.Labels[corev1.LabelTopologyZone] }

func ready(n *corev1.Node) bool {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == corev1.NodeReady {
			return n.Status.Conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}

// sliceChanged requeues a Service's slices; most often they are unchanged since our write.
func (c *Controller) sliceChanged(s *discoveryv1.EndpointSlice) {
	if c.slices.Managed(s) && s.Labels[discoveryv1.LabelServiceName] != "" {
		c.loop.AddAfter(workItem{servicepods.KeyOf(s), checkSlices}, sliceEventDelay)
	}
}

func (c *Controller) sliceUpdated(old, cur *discoveryv1.EndpointSlice) {
	if c.slices.Managed(old) == c.slices.Managed(cur) && servicepods.KeyOf(old) == servicepods.KeyOf(cur) {
		if old.Generation != cur.Generation {
			c.sliceChanged(cur)
		}
		return
	}
	for _, s := range []*discoveryv1.EndpointSlice{old, cur} {
		if s.Labels[discoveryv1.LabelServiceName] != "" {
			c.loop.AddAfter(workItem{service: servicepods.KeyOf(s)}, sliceEventDelay)
		}
	}
}

func (c *Controller) sliceDeleted(s *discoveryv1.EndpointSlice) {
	if c.slices.Managed(s) && !c.tracker.HandleDeletion(s) {
		c.loop.AddAfter(workItem{service: servicepods.KeyOf(s)}, sliceEventDelay)
	}
}

func (c *Controller) sync(ctx context.Context, j workItem) error {
	switch j.kind {
	case updateTopology:
		return c.updateZones()
	case checkSlices:
		slices, err := c.slices.Of(j.service)
		if err != nil {
			return err
		}
		for _, s := range slices {
			if c.tracker.ShouldSync(s) {
				c.add(j.service)
			}
		}
		return nil
	case syncService:
	}
	if left := c.pace.Delay(j.service); left > 0 {
		c.loop.AddAfter(j, left)
		return nil
	}
	err := c.service(ctx, j.service)
	result := "success"
	switch {
	case errors.Is(err, framework.ErrStale):
		result = "stale"
	case err != nil:
		result = "error"
	}
	slicemetrics.EndpointSliceSyncs.WithLabelValues(result).Inc()
	return err
}

// debugLogger is the library's logger: its lines about each node without a zone and each pod without a node are only
// for debugging.
func debugLogger() klog.Logger { return klog.Background().V(4) }

// updateZones updates the zones' nodes, and requeues the Services whose hints do not match any more.
func (c *Controller) updateZones() error {
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	c.zones.SetNodes(debugLogger(), nodes)
	for _, text := range c.zones.GetOverloadedServices() {
		if namespace, name, err := cache.SplitMetaNamespaceKey(text); err == nil {
			c.add(framework.Key{Namespace: namespace, Name: name})
		}
	}
	return nil
}

func (c *Controller) service(ctx context.Context, key framework.Key) error {
	service, err := c.services.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) { // the garbage collector deletes its slices
		c.triggers.DeleteService(key.Namespace, key.Name)
		c.reconciler.DeleteService(key.Namespace, key.Name)
		c.tracker.DeleteService(key.Namespace, key.Name)
		c.pace.Forget(key)
		return nil
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
	slices, err := c.slices.Of(key)
	if err != nil {
		return err
	}
	if c.tracker.StaleSlices(service, slices) {
		return fmt.Errorf("slices of service %s: %w", key, framework.ErrStale)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	since := c.triggers.ComputeEndpointLastChangeTriggerTime(key.Namespace, service, pods)
	if err := c.reconciler.Reconcile(debugLogger(), service, pods, slices, since); err != nil {
		c.env.Events.Eventf(service, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices",
			"Error updating Endpoint Slices for Service %s/%s: %v", key.Namespace, key.Name, err)
		return err
	}
	return nil
}
