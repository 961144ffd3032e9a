// SPDX-License-Identifier: Apache-2.0

// Package deployment rolls out Deployments: it maintains one ReplicaSet per pod template, scales old ones down and new
// ones up as the strategy allows, numbers the revisions for kubectl rollout, and reports progress. The table of
// controllers starts it. Decisions are pure functions (plan.go and the files it names); apply.go acts. It never touches
// pods.
//
//	deployment, its sets --decide--> plan --apply--> sets --status--> deployment
package deployment

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"

	podkind "keelson/api/core/pod"
	"keelson/controllers/framework"
)

var gvk = appsv1.SchemeGroupVersion.WithKind("Deployment")

// Controller handles all Deployments.
type Controller struct {
	env       *framework.Env
	loop      *framework.Loop[framework.Key]
	setLister appslisters.ReplicaSetLister
	sets      cache.Indexer
	pods      cache.Indexer
	owners    *framework.Owners[*appsv1.Deployment, *appsv1.ReplicaSet]
	own       framework.Ownership[*appsv1.ReplicaSet]
}

// New builds the controller and registers handlers with env's informers.
func New(env *framework.Env) (framework.Controller, error) {
	shared := appsinformers.New(env.Shared.Scoped())
	pods := coreinformers.New(env.Shared.Scoped()).Pods().Informer()
	sets := shared.ReplicaSets().Informer()
	controller := &Controller{
		env:       env,
		setLister: shared.ReplicaSets().Lister(),
		sets:      sets.GetIndexer(),
		pods:      pods.GetIndexer(),
	}
	controller.own = framework.Ownership[*appsv1.ReplicaSet]{
		Owner: gvk,
		Live: func(ctx context.Context, namespace, name string) (metav1.Object, error) {
			return env.Client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, rs *appsv1.ReplicaSet, patch []byte) error {
			_, err := env.Client.AppsV1().ReplicaSets(rs.Namespace).Patch(ctx, rs.Name, types.StrategicMergePatchType,
				patch, metav1.PatchOptions{})
			return err
		},
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	var err error
	controller.owners, err = framework.WatchOwners(env, controller.loop, shared.Deployments().Informer(),
		sets, framework.Owners[*appsv1.Deployment, *appsv1.ReplicaSet]{
			Kind:     gvk.Kind,
			Selector: func(d *appsv1.Deployment) *metav1.LabelSelector { return d.Spec.Selector },
		})
	err = errors.Join(
		err,
		framework.EnsureIndex(pods, framework.ByController, framework.IndexByController),
		framework.EnsureIndex(sets, framework.ByController, framework.IndexByController),
		framework.On(controller.loop, pods, framework.Handlers[*corev1.Pod]{Delete: controller.podDeleted}),
	)
	if err != nil {
		return nil, fmt.Errorf("deployment controller: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

// podDeleted is for Recreate, which waits for the last old pod.
func (c *Controller) podDeleted(p *corev1.Pod) {
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil || ref.Kind != "ReplicaSet" {
		return
	}
	rs, err := c.setLister.ReplicaSets(p.Namespace).Get(ref.Name)
	if err != nil || rs.UID != ref.UID {
		return
	}
	if d, ok := c.owners.ResolveControllerRef(rs); ok && d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		c.loop.Add(framework.KeyOf(d))
	}
}

// sync is one pass over one Deployment.
func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	begin := time.Now()
	deployment, ok := c.owners.Get(key.Namespace, key.Name)
	if !ok || c.env.SelectsAll(deployment, "deployment", deployment.Spec.Selector) {
		return nil
	}
	sets, err := c.claim(ctx, deployment)
	if errors.Is(err, errAdopted) {
		return nil
	}
	if err != nil {
		return err
	}
	s := snapshot{
		d:       deployment,
		sets:    sets,
		now:     begin,
		oldPods: func(except types.UID) bool { return c.hasPods(sets, except) },
	}
	p := decide(s)
	after, failure := c.apply(ctx, key, s, p)
	next, err := c.writeStatus(ctx, s, p, after)
	if next > 0 {
		c.loop.AddAfter(key, next)
	}
	return errors.Join(failure, err)
}

// hasPods reports whether a set other than except still has a pod that is not finished.
func (c *Controller) hasPods(sets []*appsv1.ReplicaSet, except types.UID) bool {
	for _, rs := range sets {
		if rs.UID == except {
			continue
		}
		pods, err := framework.PodsOf(c.pods, rs.UID)
		if err != nil {
			return true
		}
		for _, p := range pods {
			if !podkind.Terminal(p) {
				return true
			}
		}
	}
	return false
}

// claim returns the Deployment's sets after adoption and release.
func (c *Controller) claim(ctx context.Context, deployment *appsv1.Deployment) ([]*appsv1.ReplicaSet, error) {
	sel, err := metav1.LabelSelectorAsSelector(deployment.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector: %w", err)
	}
	mine, adopted, err := c.own.ClaimCached(ctx, c.sets, deployment, sel, nil)
	if err == nil && len(adopted) > 0 {
		// The informer will show the adopted sets and trigger the next pass; deciding without them could create a
		// duplicate.
		return nil, errAdopted
	}
	return mine, err
}

// errAdopted ends a pass that adopted sets.
var errAdopted = errors.New("replica sets were adopted: waiting to see them")
