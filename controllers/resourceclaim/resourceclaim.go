// SPDX-License-Identifier: Apache-2.0

// Package resourceclaim creates the ResourceClaims of pods with ResourceClaimTemplates and writes their names to the
// pods' status. It releases reservations of finished pods, then the devices of unused claims, and deletes claims
// generated for pods that will not run. The table of controllers starts it. It never allocates devices; the scheduler
// does.
package resourceclaim

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	podkind "keelson/api/core/pod"
	"keelson/client"
	"keelson/controllers/framework"
)

// Indexes of pods, by "namespace/name" of the claims and templates that they use.
const (
	byClaim    = "keelson.resourceclaim"
	byTemplate = "keelson.resourceclaimtemplate"
)

// key is a pod or a claim to sync.
type key struct {
	framework.Key
	claim bool
}

// String formats the key for messages.
func (k key) String() string {
	if k.claim {
		return "claim " + k.Key.String()
	}
	return "pod " + k.Key.String()
}

// Controller creates and releases claims.
type Controller struct {
	env       *framework.Env
	loop      *framework.Loop[key]
	pods      corelisters.PodLister
	podIndex  cache.Indexer
	claims    resourcelisters.ResourceClaimLister
	owned     cache.Indexer // claims by controller
	templates resourcelisters.ResourceClaimTemplateLister
	creator   *client.Claims

	mu      sync.Mutex
	created map[types.UID]*resourcev1.ResourceClaim // claims that the cache does not show yet
}

// New builds the controller.
func New(env *framework.Env, creator *client.Claims) (framework.Controller, error) {
	pods := coreinformers.New(env.Shared.Scoped()).Pods()
	g := resourceinformers.New(env.Shared.Scoped())
	claims := g.ResourceClaims()
	templates := g.ResourceClaimTemplates()
	controller := &Controller{
		env:       env,
		creator:   creator,
		pods:      pods.Lister(),
		podIndex:  pods.Informer().GetIndexer(),
		claims:    claims.Lister(),
		owned:     claims.Informer().GetIndexer(),
		templates: templates.Lister(),
		created:   map[types.UID]*resourcev1.ResourceClaim{},
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	err := errors.Join(
		framework.EnsureIndex(pods.Informer(), byClaim, indexByClaim),
		framework.EnsureIndex(pods.Informer(), byTemplate, indexByTemplate),
		framework.EnsureIndex(claims.Informer(), framework.ByController, framework.IndexByController),
		framework.On(controller.loop, pods.Informer(), framework.Handlers[*corev1.Pod]{
			Add:    controller.enqueuePod,
			Update: func(_, p *corev1.Pod) { controller.enqueuePod(p) },
			Delete: controller.enqueueClaims,
		}),
		framework.On(controller.loop, claims.Informer(), framework.Handlers[*resourcev1.ResourceClaim]{
			Add:    controller.claimChanged,
			Update: func(_, claim *resourcev1.ResourceClaim) { controller.claimChanged(claim) },
			Delete: controller.claimDeleted,
		}),
		framework.On(controller.loop, templates.Informer(), framework.Handlers[*resourcev1.ResourceClaimTemplate]{
			Add: func(t *resourcev1.ResourceClaimTemplate) {
				controller.enqueuePods(byTemplate, t.Namespace+"/"+t.Name)
			},
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("resource claims: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *Controller) enqueuePod(p *corev1.Pod) {
	switch {
	case podDone(p):
		c.enqueueClaims(p)
	case len(p.Spec.ResourceClaims) > 0 && p.DeletionTimestamp == nil:
		c.loop.Add(key{Key: framework.KeyOf(p)})
	}
}

// podDone reports whether no container of a pod runs or will run.
func podDone(p *corev1.Pod) bool {
	return podkind.Terminal(p) || p.DeletionTimestamp != nil && p.Spec.NodeName == ""
}

func (c *Controller) enqueueClaims(p *corev1.Pod) {
	for name := range resourceclaim.PodClaims(p) {
		c.loop.Add(key{framework.Key{Namespace: p.Namespace, Name: name}, true})
	}
}

func (c *Controller) enqueuePods(index, value string) {
	objs, err := c.podIndex.ByIndex(index, value)
	if err != nil {
		return // an indexed cache returns no error
	}
	for _, o := range objs {
		if p, ok := o.(*corev1.Pod); ok {
			c.enqueuePod(p)
		}
	}
}

func (c *Controller) claimChanged(claim *resourcev1.ResourceClaim) {
	c.forgetCreated(claim.UID)
	c.loop.Add(key{framework.KeyOf(claim), true})
	c.enqueuePods(byClaim, claim.Namespace+"/"+claim.Name)
}

func (c *Controller) claimDeleted(claim *resourcev1.ResourceClaim) {
	c.forgetCreated(claim.UID)
	c.enqueuePods(byClaim, claim.Namespace+"/"+claim.Name)
}

func (c *Controller) forgetCreated(claim types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.created, claim)
}

func indexByClaim(obj any) ([]string, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok || len(p.Spec.ResourceClaims) == 0 {
		return nil, nil
	}
	var keys []string
	for name := range resourceclaim.PodClaims(p) {
		keys = append(keys, p.Namespace+"/"+name)
	}
	return keys, nil
}

func indexByTemplate(obj any) ([]string, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, nil
	}
	var keys []string
	for i := range p.Spec.ResourceClaims {
		if name := p.Spec.ResourceClaims[i].ResourceClaimTemplateName; name != nil {
			keys = append(keys, p.Namespace+"/"+*name)
		}
	}
	return keys, nil
}

func (c *Controller) sync(ctx context.Context, k key) error {
	if k.claim {
		return c.syncClaim(ctx, k.Key)
	}
	return c.syncPod(ctx, k)
}
