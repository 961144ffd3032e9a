// SPDX-License-Identifier: Apache-2.0

// Package ephemeral creates the claims of pods' generic ephemeral volumes. Each is owned by its pod, and the garbage
// collector deletes it with the pod. The table of controllers starts it. It never deletes a claim.
package ephemeral

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"

	"keelson/controllers/framework"
	"keelson/controllers/internal/claims"
	"keelson/event"
)

// Controller creates claims.
type Controller struct {
	env    *framework.Env
	loop   *framework.Loop[framework.Key] // keys of pods
	pods   corelisters.PodLister
	byName cache.Indexer
	claims corelisters.PersistentVolumeClaimLister
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	pods := core.Pods()
	all := core.PersistentVolumeClaims()
	controller := &Controller{
		env:    env,
		pods:   pods.Lister(),
		byName: pods.Informer().GetIndexer(),
		claims: all.Lister(),
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	err := errors.Join(
		framework.EnsureIndex(pods.Informer(), claims.ByClaim, claims.IndexByClaim),
		// A pod's volumes are immutable, so only new pods matter.
		framework.On(controller.loop, pods.Informer(), framework.Handlers[*corev1.Pod]{Add: controller.enqueue}),
		// A claim deleted while its pod exists is created again; a deleted foreign claim may have blocked one.
		framework.On(controller.loop, all.Informer(), framework.Handlers[*corev1.PersistentVolumeClaim]{
			Delete: controller.claimDeleted,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("ephemeral volumes: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *Controller) enqueue(p *corev1.Pod) {
	if p.DeletionTimestamp != nil {
		return
	}
	for i := range p.Spec.Volumes {
		if p.Spec.Volumes[i].Ephemeral != nil {
			c.loop.Add(framework.KeyOf(p))
			return
		}
	}
}

func (c *Controller) claimDeleted(claim *corev1.PersistentVolumeClaim) {
	pods, err := claims.Pods(c.byName, claim.Namespace, claim.Name)
	if err != nil {
		return // an indexed cache returns no error
	}
	for _, p := range pods {
		c.enqueue(p)
	}
}

func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	pod, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && pod.DeletionTimestamp != nil {
		return nil
	}
	if err != nil {
		return err
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Ephemeral == nil || v.Ephemeral.VolumeClaimTemplate == nil {
			continue
		}
		if err := c.createClaim(ctx, key, pod, v); err != nil {
			c.env.Events.Eventf(pod, corev1.EventTypeWarning, "FailedBinding", "ephemeral volume %s: %v", v.Name, err)
			return fmt.Errorf("pod %s, ephemeral volume %s: %w", key, v.Name, err)
		}
	}
	return nil
}

// createClaim creates the claim of a volume, unless it exists. A claim of that name with another owner is an error.
func (c *Controller) createClaim(ctx context.Context, key framework.Key, pod *corev1.Pod, v *corev1.Volume) error {
	have, err := c.claims.PersistentVolumeClaims(pod.Namespace).Get(ephemeral.VolumeClaimName(pod, v))
	if err == nil {
		return ephemeral.VolumeIsForPod(pod, have)
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	begin := time.Now()
	claim := claimFor(pod, v)
	_, err = c.env.Client.CoreV1().PersistentVolumeClaims(pod.Namespace).Create(ctx, claim, metav1.CreateOptions{})
	c.env.Reconciled(event.Subject{
		Resource:  "pods",
		Namespace: pod.Namespace,
		Name:      pod.Name,
		UID:       string(pod.UID),
	}, begin,
		&event.Reconcile{EventSeen: c.loop.QueuedAt(key), Creates: []string{claim.Name}}, err)
	if apierrors.IsAlreadyExists(err) { // the cache did not show it
		var made *corev1.PersistentVolumeClaim
		if made, err = c.env.Client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, claim.Name,
			metav1.GetOptions{}); err == nil {
			return ephemeral.VolumeIsForPod(pod, made)
		}
	}
	if err != nil {
		return fmt.Errorf("create PVC %s: %w", claim.Name, err)
	}
	return nil
}

// claimFor is the claim of a volume from its template.
func claimFor(pod *corev1.Pod, v *corev1.Volume) *corev1.PersistentVolumeClaim {
	yes := true
	template := v.Ephemeral.VolumeClaimTemplate.DeepCopy()
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name:        ephemeral.VolumeClaimName(pod, v),
			Namespace:   pod.Namespace,
			Labels:      template.Labels,
			Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion:         "v1",
				Kind:               "Pod",
				Name:               pod.Name,
				UID:                pod.UID,
				Controller:         &yes,
				BlockOwnerDeletion: &yes,
			}},
		},
		Spec: template.Spec,
	}
}
