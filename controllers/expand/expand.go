// SPDX-License-Identifier: Apache-2.0

// Package expand records an event for claims that request more storage than they have: an external resizer must expand
// the volume. The table of controllers starts it. It writes only events.
package expand

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"keelson/controllers/framework"
)

// Controller watches claims.
type Controller struct {
	env    *framework.Env
	loop   *framework.Loop[framework.Key]
	claims corelisters.PersistentVolumeClaimLister

	mu sync.Mutex
	// lastEvent is the size in the last event of a claim.
	lastEvent map[types.UID]resource.Quantity
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	claims := coreinformers.New(env.Shared.Scoped()).PersistentVolumeClaims()
	controller := &Controller{env: env, claims: claims.Lister(), lastEvent: map[types.UID]resource.Quantity{}}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	look := func(claim *corev1.PersistentVolumeClaim) {
		if requestsMore(claim) {
			controller.loop.Add(framework.KeyOf(claim))
		}
	}
	err := framework.On(controller.loop, claims.Informer(), framework.Handlers[*corev1.PersistentVolumeClaim]{
		Add:    look,
		Update: func(_, claim *corev1.PersistentVolumeClaim) { look(claim) },
		Delete: func(claim *corev1.PersistentVolumeClaim) {
			controller.mu.Lock()
			defer controller.mu.Unlock()
			delete(controller.lastEvent, claim.UID)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("expand claims: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

// requestsMore reports whether a bound claim requests more than it has.
func requestsMore(claim *corev1.PersistentVolumeClaim) bool {
	want := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	have := claim.Status.Capacity[corev1.ResourceStorage]
	return claim.Status.Phase == corev1.ClaimBound && want.Cmp(have) > 0
}

func (c *Controller) sync(_ context.Context, key framework.Key) error {
	claim, err := c.claims.PersistentVolumeClaims(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && !requestsMore(claim) {
		return nil
	}
	if err != nil {
		return err
	}
	want := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	c.mu.Lock()
	last, again := c.lastEvent[claim.UID]
	c.lastEvent[claim.UID] = want
	c.mu.Unlock()
	if !again || last.Cmp(want) != 0 {
		c.env.Events.Event(claim, corev1.EventTypeNormal, "ExternalExpanding",
			"waiting for an external controller to expand this PVC")
	}
	return nil
}
