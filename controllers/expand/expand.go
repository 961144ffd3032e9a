// SPDX-License-Identifier: Apache-2.0

// Package expand records an event for claims that request more storage than they have: an external resizer must expand
// the volume. When a kubelet has grown the file system of a local volume, it writes the new size into the
// PersistentVolume, which kubelets may not write and which has no resizer. The table of controllers starts it.
package expand

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// volumes has the PersistentVolumes.
	volumes corelisters.PersistentVolumeLister

	mu sync.Mutex
	// lastEvent is the size in the last event of a claim.
	lastEvent map[types.UID]resource.Quantity
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	claims := coreinformers.New(env.Shared.Scoped()).PersistentVolumeClaims()
	volumes := coreinformers.New(env.Shared.Scoped()).PersistentVolumes()
	controller := &Controller{
		env:       env,
		claims:    claims.Lister(),
		volumes:   volumes.Lister(),
		lastEvent: map[types.UID]resource.Quantity{},
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	look := func(claim *corev1.PersistentVolumeClaim) {
		if requestsMore(claim) || controller.grown(claim) != nil {
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
	if err == nil {
		err = framework.On(controller.loop, volumes.Informer(), framework.Handlers[*corev1.PersistentVolume]{
			Add:    controller.addClaimOf,
			Update: func(_, volume *corev1.PersistentVolume) { controller.addClaimOf(volume) },
		})
	}
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

// addClaimOf looks at the claim of a local volume.
func (c *Controller) addClaimOf(volume *corev1.PersistentVolume) {
	if ref := volume.Spec.ClaimRef; ref != nil && volume.Spec.Local != nil {
		c.loop.Add(framework.Key{Namespace: ref.Namespace, Name: ref.Name})
	}
}

// grown returns the local volume of a claim that is larger than the volume says; nil: there is none.
func (c *Controller) grown(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	if claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
		return nil
	}
	volume, err := c.volumes.Get(claim.Spec.VolumeName)
	if err != nil || volume.Spec.Local == nil || volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID {
		return nil // without a volume there is nothing to write
	}
	has := claim.Status.Capacity[corev1.ResourceStorage]
	if says := volume.Spec.Capacity[corev1.ResourceStorage]; has.Cmp(says) <= 0 {
		return nil
	}
	return volume
}

// raise writes the size of a claim into its volume.
func (c *Controller) raise(
	ctx context.Context, volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim,
) error {
	next := volume.DeepCopy()
	next.Spec.Capacity[corev1.ResourceStorage] = claim.Status.Capacity[corev1.ResourceStorage]
	_, err := c.env.Client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	claim, err := c.claims.PersistentVolumeClaims(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if volume := c.grown(claim); volume != nil {
		if err := c.raise(ctx, volume, claim); err != nil {
			return err
		}
	}
	if !requestsMore(claim) {
		return nil
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
