// SPDX-License-Identifier: Apache-2.0

// Package pvcprotection lets a deleted PersistentVolumeClaim go once no pod uses
// it: it takes away the finalizer kubernetes.io/pvc-protection, which admission
// adds. The table of controllers starts it. A namespace's claims are judged
// together, so that many deletions cost one look at the namespace's pods.
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
	"keelson/lib/mark"
)

const (
	// gather is how long the changes of a namespace are gathered.
	gather = 20 * time.Millisecond
	atOnce = 10
	// page is how many pods are read from the server at a time.
	page = 500
)

// Controller watches over claims.
type Controller struct {
	env    *framework.Env
	loop   *framework.Loop[string] // of namespaces
	byName corelisters.PersistentVolumeClaimLister
	pods   cache.Indexer
}

// New builds the controller.
func New(env *framework.Env) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	pods := core.Pods().Informer()
	c := &Controller{env: env, byName: core.PersistentVolumeClaims().Lister(), pods: pods.GetIndexer()}
	c.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, c.sync)
	look := func(claim *corev1.PersistentVolumeClaim) {
		if protect.Concerns(claim, protect.Claim) {
			c.loop.AddAfter(claim.Namespace, gather)
		}
	}
	err := errors.Join(
		framework.EnsureIndex(pods, claims.ByClaim, claims.IndexByClaim),
		framework.On(c.loop, core.PersistentVolumeClaims().Informer(), framework.Handlers[*corev1.PersistentVolumeClaim]{
			Add: look, Update: func(_, claim *corev1.PersistentVolumeClaim) { look(claim) },
		}),
		framework.On(c.loop, pods, framework.Handlers[*corev1.Pod]{
			Update: func(old, pod *corev1.Pod) {
				if old.UID != pod.UID || frees(pod) && !frees(old) {
					c.freed(old)
				}
			},
			Delete: c.freed,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("claim protection: %w", err)
	}
	return c, nil
}

// Run is a run.Func.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

// frees tells whether a pod that is still there may no longer use what its volumes of its own stand on.
func frees(pod *corev1.Pod) bool { return shutDown(pod) || podkind.Terminal(pod) }

// freed calls for a look at the namespace if the pod had claims.
func (c *Controller) freed(pod *corev1.Pod) {
	if len(podkind.Claims(pod)) > 0 {
		c.loop.AddAfter(pod.Namespace, gather)
	}
}

// uses tells whether a pod keeps a claim from going. A pod without a node does not: no kubelet starts a pod whose claim is being deleted.
// Nor does one that is shut down and owns the claim, as a StatefulSet's pod does that was scaled away: deleted in the foreground, it
// waits for the claim in its turn.
func uses(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	if pod.Spec.NodeName == "" || shutDown(pod) && owns(pod, claim) {
		return false
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name {
			return true
		}
		if v.Ephemeral != nil && ephemeral.VolumeClaimName(pod, v) == claim.Name && ephemeral.VolumeIsForPod(pod, claim) == nil {
			return true
		}
	}
	return false
}

func owns(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(claim.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == pod.UID })
}

// shutDown tells whether a kubelet is done with the pod, or will never be asked: it only waits for others' finalizers.
func shutDown(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
}

// sync looks at all claims of a namespace.
func (c *Controller) sync(ctx context.Context, namespace string) error {
	claims, err := c.byName.PersistentVolumeClaims(namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	var change, doomed []*corev1.PersistentVolumeClaim
	for _, claim := range claims {
		switch {
		case protect.Bare(claim, protect.Claim):
			change = append(change, claim)
		case !protect.Doomed(claim, protect.Claim):
		default:
			used, err := c.knownUsed(claim)
			if err != nil {
				return err
			}
			if !used {
				doomed = append(doomed, claim)
			}
		}
	}
	if len(doomed) > 0 {
		// The cache may not know of a pod that was bound a moment ago.
		used, err := c.used(ctx, namespace, doomed)
		if err != nil {
			return err
		}
		for _, claim := range doomed {
			if !used[claim.Name] {
				change = append(change, claim)
			}
		}
	}
	return framework.Parallel(change, atOnce, func(claim *corev1.PersistentVolumeClaim) error { return c.toggle(ctx, claim) })
}

// knownUsed asks the cache.
func (c *Controller) knownUsed(claim *corev1.PersistentVolumeClaim) (bool, error) {
	pods, err := claims.Pods(c.pods, claim.Namespace, claim.Name)
	if err != nil {
		return false, fmt.Errorf("pods of claim %s: %w", framework.KeyOf(claim), err)
	}
	if slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return uses(p, claim) }) {
		return true, nil
	}
	return false, nil
}

// used asks the server which of a namespace's claims pods use.
func (c *Controller) used(ctx context.Context, namespace string, claims []*corev1.PersistentVolumeClaim) (map[string]bool, error) {
	out := map[string]bool{}
	opts := metav1.ListOptions{Limit: page}
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

func (c *Controller) toggle(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	begin, own := time.Now(), claim.DeepCopy()
	protect.Toggle(own, protect.Claim)
	_, err := c.env.Client.CoreV1().PersistentVolumeClaims(own.Namespace).Update(ctx, own, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	c.env.Reconciled(mark.Subject{Resource: "persistentvolumeclaims", Namespace: own.Namespace, Name: own.Name, UID: string(own.UID)},
		begin, &mark.Reconcile{}, err)
	return err
}
