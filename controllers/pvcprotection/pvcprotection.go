// SPDX-License-Identifier: Apache-2.0

// Package pvcprotection removes the finalizer kubernetes.io/pvc-protection, which admission adds, from a deleted
// PersistentVolumeClaim that no pod uses, and maintains the condition Unused of the others (unused.go). The table of
// controllers starts it. The claims of a namespace are processed together, so that many deletions need one read of the
// namespace's pods. It never deletes a claim.
package pvcprotection

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"

	podkind "keelson/api/core/pod"
	"keelson/controllers/framework"
	"keelson/controllers/internal/claims"
	"keelson/controllers/internal/protect"
	"keelson/event"
)

const (
	// batchDelay is how long the changes of a namespace are collected.
	batchDelay  = 20 * time.Millisecond
	maxParallel = 10
	// listPageSize is the page size of lists of pods.
	listPageSize = 500
)

// Controller handles claims.
type Controller struct {
	env    *framework.Env
	loop   *framework.Loop[string] // names of namespaces
	byName corelisters.PersistentVolumeClaimLister
	pods   cache.Indexer
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	pods := core.Pods().Informer()
	controller := &Controller{env: env, byName: core.PersistentVolumeClaims().Lister(), pods: pods.GetIndexer()}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	look := func(claim *corev1.PersistentVolumeClaim) {
		if protect.NeedsSync(claim, protect.Claim) || hasUnused(claim) && unusedOf(claim) == nil {
			controller.loop.AddAfter(claim.Namespace, batchDelay)
		}
	}
	err := errors.Join(
		framework.EnsureIndex(pods, claims.ByClaim, claims.IndexByClaim),
		framework.On(controller.loop,
			core.PersistentVolumeClaims().Informer(), framework.Handlers[*corev1.PersistentVolumeClaim]{
				Add:    look,
				Update: func(_, claim *corev1.PersistentVolumeClaim) { look(claim) },
			}),
		framework.On(controller.loop, pods, framework.Handlers[*corev1.Pod]{
			Add: controller.claimsChanged,
			Update: func(old, pod *corev1.Pod) {
				if old.UID != pod.UID || releasesClaims(pod) && !releasesClaims(old) ||
					podkind.Terminal(pod) && !podkind.Terminal(old) {
					controller.claimsChanged(old)
				}
			},
			Delete: controller.claimsChanged,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("claim protection: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

// releasesClaims reports whether an existing pod no longer uses its claims.
func releasesClaims(pod *corev1.Pod) bool { return isShutDown(pod) || podkind.Terminal(pod) }

// claimsChanged queues the namespace if the pod has claims.
func (c *Controller) claimsChanged(pod *corev1.Pod) {
	if len(podkind.Claims(pod)) > 0 {
		c.loop.AddAfter(pod.Namespace, batchDelay)
	}
}

// uses reports whether a pod blocks the removal of a claim. A pod without a node does not, because kubelets start no
// pod with a deleted claim. A terminated pod that owns the claim does not either: a StatefulSet's pod deleted in the
// foreground waits for its claim.
func uses(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	if pod.Spec.NodeName == "" || isShutDown(pod) && owns(pod, claim) {
		return false
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name {
			return true
		}
		if v.Ephemeral != nil && ephemeral.VolumeClaimName(pod, v) == claim.Name &&
			ephemeral.VolumeIsForPod(pod, claim) == nil {
			return true
		}
	}
	return false
}

func owns(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(claim.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == pod.UID })
}

// isShutDown reports whether the kubelet is finished with the pod, or never had it: only finalizers are left.
func isShutDown(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
}

// sync handles all claims of a namespace.
func (c *Controller) sync(ctx context.Context, namespace string) error {
	claims, err := c.byName.PersistentVolumeClaims(namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	var change, doomed []*corev1.PersistentVolumeClaim
	for _, claim := range claims {
		switch {
		case protect.NeedsAdd(claim, protect.Claim):
			change = append(change, claim)
		case !protect.NeedsRemoval(claim, protect.Claim):
		default:
			used, err := c.usedInCache(claim)
			if err != nil {
				return err
			}
			if !used {
				doomed = append(doomed, claim)
			}
		}
	}
	if len(doomed) > 0 {
		// The cache may lack a pod that was just bound.
		used, err := c.usedOnServer(ctx, namespace, doomed)
		if err != nil {
			return err
		}
		for _, claim := range doomed {
			if !used[claim.Name] {
				change = append(change, claim)
			}
		}
	}
	return errors.Join(framework.Parallel(change, maxParallel, func(claim *corev1.PersistentVolumeClaim) error {
		return c.writeFinalizer(ctx, claim)
	}), c.writeUnused(ctx, claims, change))
}

// usedInCache checks the cache.
func (c *Controller) usedInCache(claim *corev1.PersistentVolumeClaim) (bool, error) {
	pods, err := claims.Pods(c.pods, claim.Namespace, claim.Name)
	if err != nil {
		return false, fmt.Errorf("pods of claim %s: %w", framework.KeyOf(claim), err)
	}
	if slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return uses(p, claim) }) {
		return true, nil
	}
	return false, nil
}

// usedOnServer reads from the API server which of a namespace's claims are used by pods.
func (c *Controller) usedOnServer(
	ctx context.Context, namespace string, claims []*corev1.PersistentVolumeClaim,
) (map[string]bool, error) {
	out := map[string]bool{}
	opts := metav1.ListOptions{Limit: listPageSize}
	for {
		list, err := c.env.Client.CoreV1().Pods(namespace).List(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("list the pods of %s: %w", namespace, err)
		}
		for i := range list.Items {
			if len(podkind.Claims(&list.Items[i])) == 0 {
				continue
			}
			for _, claim := range claims {
				if uses(&list.Items[i], claim) {
					out[claim.Name] = true
				}
			}
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			return out, nil
		}
	}
}

func (c *Controller) writeFinalizer(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	begin := time.Now()
	own := claim.DeepCopy()
	protect.AddOrRemove(own, protect.Claim)
	_, err := c.env.Client.CoreV1().PersistentVolumeClaims(own.Namespace).Update(ctx, own, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	c.env.Reconciled(event.Subject{
		Resource:  "persistentvolumeclaims",
		Namespace: own.Namespace,
		Name:      own.Name,
		UID:       string(own.UID),
	},
		begin, &event.Reconcile{}, err)
	return err
}
