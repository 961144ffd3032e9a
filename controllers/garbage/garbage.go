// SPDX-License-Identifier: Apache-2.0

// Package garbage is the garbage collector: it deletes objects without existing owners, in the background, in the
// foreground (owners wait for dependents that block them) or not at all (orphaned). The table of controllers starts it.
// It has a graph of all objects' metadata (graph.go), from the informers of other controllers and from its own watches
// of every other deletable resource (monitor.go); decisions about a node are a pure function (decide.go). It never
// reads more than metadata.
//
// Invariants:
//  1. An owner counts as absent only if the API server confirmed it for that UID.
//  2. Deletes and patches have the UID and resourceVersion of the decision as preconditions: a concurrent change wins.
//  3. Nothing is decided before every watch has delivered its initial state (or failed for half a minute).
package garbage

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/controllers/framework"
	"keelson/controllers/internal/catalog"
	"keelson/lib/signal"
)

const (
	// unknownOwnerDelay is the time to wait for watch events of unknown owners before reading them from the server.
	unknownOwnerDelay = 500 * time.Millisecond
	// initialSyncTimeout is the time-out of invariant 3.
	initialSyncTimeout = 30 * time.Second
	// discoveryDelay is the time during which changes of the API are collected before a new discovery.
	discoveryDelay = time.Second
	// maxAbsentOwners is the maximum size of Controller.absentOwners; a full cache is cleared.
	maxAbsentOwners = 10000
)

// Controller is the garbage collector.
type Controller struct {
	env             *framework.Env
	graph           *graph
	attemptToDelete *framework.Loop[types.UID]
	attemptToOrphan *framework.Loop[types.UID]
	shared          map[schema.GroupVersionResource]cache.SharedIndexInformer
	refresh         signal.Signal

	mu           sync.Mutex
	kinds        map[schema.GroupKind]*catalog.Resource
	monitors     map[schema.GroupVersionResource]*monitor
	absentOwners map[absentOwnerKey]struct{}
}

// absentOwnerKey is an owner reference, with the namespace of its object, whose owner the server has confirmed as
// absent (invariant 1).
type absentOwnerKey struct {
	namespace, apiVersion, kind, name string
	uid                               types.UID
}

// New builds the controller. It uses env's informers for resources that other controllers watch.
func New(env *framework.Env) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	apps := appsinformers.New(env.Shared.Scoped())
	return build(env, map[schema.GroupVersionResource]cache.SharedIndexInformer{
		{Version: "v1", Resource: "pods"}:                       core.Pods().Informer(),
		{Version: "v1", Resource: "replicationcontrollers"}:     core.ReplicationControllers().Informer(),
		{Version: "v1", Resource: "namespaces"}:                 core.Namespaces().Informer(),
		{Version: "v1", Resource: "nodes"}:                      core.Nodes().Informer(),
		{Version: "v1", Resource: "serviceaccounts"}:            core.ServiceAccounts().Informer(),
		{Group: "apps", Version: "v1", Resource: "replicasets"}: apps.ReplicaSets().Informer(),
		{Group: "apps", Version: "v1", Resource: "deployments"}: apps.Deployments().Informer(),
	}), nil
}

func build(env *framework.Env, shared map[schema.GroupVersionResource]cache.SharedIndexInformer) *Controller {
	controller := &Controller{
		env:          env,
		graph:        newGraph(),
		shared:       shared,
		refresh:      signal.New(),
		kinds:        map[schema.GroupKind]*catalog.Resource{},
		monitors:     map[schema.GroupVersionResource]*monitor{},
		absentOwners: map[absentOwnerKey]struct{}{},
	}
	controller.attemptToDelete = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.attemptDelete)
	controller.attemptToOrphan = framework.NewLoop(
		framework.Queue{Name: "garbage_collector_attempt_to_orphan", Metrics: env.Queue.Metrics}, 5, env.Log,
		controller.attemptOrphan)
	return controller
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := c.initialSync(ctx, &wg); err != nil {
		return nil
	}
	wg.Go(func() { c.resyncMonitors(ctx, &wg) })
	for _, uid := range c.graph.unresolved() {
		c.attemptToDelete.Add(uid)
	}
	wg.Go(func() { _ = c.attemptToOrphan.Run(ctx, func() {}) }) // its only error is ctx's
	return c.attemptToDelete.Run(ctx, ready)
}

// initialSync starts the watches and waits for their initial state.
func (c *Controller) initialSync(ctx context.Context, wg *sync.WaitGroup) error {
	for delay := 100 * time.Millisecond; ; delay = min(2*delay, 10*time.Second) {
		err := c.syncMonitors(ctx, wg)
		if err == nil || ctx.Err() != nil {
			break
		}
		c.env.Log.Warn("discover resources, will retry", "controller", c.env.Name, "err", err)
		sleep(ctx, delay)
	}
	bounded, cancel := context.WithTimeout(ctx, initialSyncTimeout)
	defer cancel()
	for _, m := range c.monitorList() {
		select {
		case <-m.synced:
		case <-bounded.Done():
			if ctx.Err() == nil {
				c.env.Log.Warn("start without the initial state of a resource", "controller", c.env.Name, "resource",
					m.res.GVR)
			}
		}
	}
	return ctx.Err()
}

// resyncMonitors repeats discovery after changes of the API, and after failures.
func (c *Controller) resyncMonitors(ctx context.Context, wg *sync.WaitGroup) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.refresh.C():
		}
		for delay := discoveryDelay; ctx.Err() == nil; delay = min(2*delay, time.Minute) {
			sleep(ctx, delay)
			err := c.syncMonitors(ctx, wg)
			if err == nil || ctx.Err() != nil {
				break
			}
			c.env.Log.Warn("discover resources", "controller", c.env.Name, "err", err)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

func (c *Controller) observe(res *catalog.Resource, o metav1.Object) {
	c.enqueue(o.GetUID(), c.graph.addOrUpdate(newNode(res, o)))
	c.apiChanged(res)
}

func (c *Controller) objectDeleted(res *catalog.Resource, uid types.UID) {
	c.enqueue(uid, c.graph.remove(uid))
	c.apiChanged(res)
}

// apiChanged requests a discovery after a change of objects that define resources.
func (c *Controller) apiChanged(res *catalog.Resource) {
	switch res.GVR.GroupResource() {
	case schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
		schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}:
		c.refresh.Notify()
	}
}

func (c *Controller) enqueue(changed types.UID, requeue requeues) {
	for _, uid := range requeue.now {
		c.attemptToDelete.Add(uid)
	}
	for _, uid := range requeue.later {
		c.attemptToDelete.AddAfter(uid, unknownOwnerDelay)
	}
	if requeue.orphan {
		c.attemptToOrphan.Add(changed)
	}
}

// absentOwnersOf returns those of v's unknown owners that do not exist.
func (c *Controller) absentOwnersOf(ctx context.Context, v *view) ([]metav1.OwnerReference, error) {
	var absent []metav1.OwnerReference
	for _, r := range v.unknown {
		gone, err := c.ownerAbsent(ctx, v.node, r)
		if err != nil {
			return nil, err
		}
		if gone {
			absent = append(absent, r)
		}
	}
	return absent, nil
}

func (c *Controller) ownerAbsent(ctx context.Context, n *node, ownerReference metav1.OwnerReference) (bool, error) {
	key := absentOwnerKey{
		n.namespace, ownerReference.APIVersion, ownerReference.Kind, ownerReference.Name, ownerReference.UID,
	}
	gv, err := schema.ParseGroupVersion(ownerReference.APIVersion)
	if err != nil {
		return false, fmt.Errorf("owner %s of %s: %w", ownerReference.Name, n.name, err)
	}
	c.mu.Lock()
	_, known := c.absentOwners[key]
	res := c.kinds[schema.GroupKind{Group: gv.Group, Kind: ownerReference.Kind}]
	c.mu.Unlock()
	switch {
	case known:
		return true, nil
	case res == nil:
		// The kind may be temporarily unavailable: never delete because of that.
		return false, fmt.Errorf("owner %s %s of %s: the server has no such kind", ownerReference.APIVersion,
			ownerReference.Kind, n.name)
	case res.Namespaced && n.namespace == "":
		// A cluster-scoped object with a namespaced owner: the namespace is unknown, so the reference counts as
		// existing.
		return false, nil
	}
	ns := n.namespace
	if !res.Namespaced {
		ns = ""
	}
	live, err := c.env.Client.Metadata.Resource(res.GVR).Namespace(ns).Get(ctx, ownerReference.Name,
		metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return false, fmt.Errorf("look for owner %s: %w", ownerReference.Name, err)
	case live.UID == ownerReference.UID:
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.absentOwners) >= maxAbsentOwners {
		clear(c.absentOwners)
	}
	c.absentOwners[key] = struct{}{}
	return true, nil
}
