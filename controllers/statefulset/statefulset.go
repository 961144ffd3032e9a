// SPDX-License-Identifier: Apache-2.0

// Package statefulset maintains the pods of StatefulSets: each has its own name, host name and claims; they are created
// and deleted in order unless the policy is Parallel, and replaced last to first when the template changes. The table
// of controllers starts it. Decisions are pure functions (plan.go, claims.go); apply.go acts. It never deletes claims.
//
// Invariants:
//  1. A pod is created only when the API server has none with its name: the name is the lock, and a pod on a lost node
//     keeps it until the pod is force-deleted.
//  2. Deletes have the pod's UID as a precondition: a stale cache never causes the deletion of its successor.
//  3. Claims are created and given owners; they are never deleted here.
package statefulset

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"keelson/controllers/framework"
	"keelson/controllers/internal/history"
)

var gvk = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

// hashLabel is a label of the set's revisions.
const hashLabel = "controller.kubernetes.io/hash"

// Controller handles all StatefulSets.
type Controller struct {
	env     *framework.Env
	loop    *framework.Loop[framework.Key]
	expect  *framework.Expectations
	owners  *framework.Owners[*appsv1.StatefulSet, *corev1.Pod]
	pods    cache.Indexer
	claims  corelisters.PersistentVolumeClaimLister
	history *history.Manager
	own     framework.Ownership[*corev1.Pod]
	metrics *Metrics
}

// New builds the controller and registers handlers with env's informers.
func New(env *framework.Env, metrics *Metrics) (framework.Controller, error) {
	sets := appsinformers.New(env.Shared.Scoped()).StatefulSets()
	pods := coreinformers.New(env.Shared.Scoped()).Pods().Informer()
	claims := coreinformers.New(env.Shared.Scoped()).PersistentVolumeClaims()
	live := func(ctx context.Context, namespace, name string) (metav1.Object, error) {
		return env.Client.AppsV1().StatefulSets(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	keeper, err := history.New(env, gvk, live)
	if err != nil {
		return nil, fmt.Errorf("statefulset controller: %w", err)
	}
	controller := &Controller{
		env:     env,
		metrics: metrics,
		expect:  framework.NewExpectations(),
		pods:    pods.GetIndexer(),
		claims:  claims.Lister(),
		history: keeper,
		own:     framework.PodOwnership(env, gvk, live),
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	controller.owners, err = framework.WatchOwners(env, controller.loop, sets.Informer(),
		pods, framework.Owners[*appsv1.StatefulSet, *corev1.Pod]{
			Kind:         gvk.Kind,
			Expect:       controller.expect,
			StatusDelay:  statusDelay,
			WithoutOwner: controller.podNameReleased,
			Selector:     func(set *appsv1.StatefulSet) *metav1.LabelSelector { return set.Spec.Selector },
		})
	err = errors.Join(
		err,
		framework.EnsureIndex(pods, framework.ByController, framework.IndexByController),
		framework.On(controller.loop, claims.Informer(), framework.Handlers[*corev1.PersistentVolumeClaim]{
			Update: controller.claimReleased,
			Delete: controller.claimDeleted,
		}),
		framework.On(controller.loop, keeper.Informer(), framework.Each(func(r *appsv1.ControllerRevision) {
			controller.owners.EnqueueAdopters(r)
		})),
	)
	if err != nil {
		return nil, fmt.Errorf("statefulset controller: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

// statusDelay spreads the passes over a set with thousands of pods to a few per second.
func statusDelay(set *appsv1.StatefulSet) time.Duration {
	return time.Duration(min(replicas(set)/50, 100)) * time.Millisecond
}

// podNameReleased handles the deletion of a pod without a set: a pod of a set may wait for its name.
func (c *Controller) podNameReleased(p *corev1.Pod) {
	if name, n := parseOrdinal(p.Name); n >= 0 {
		if set, ok := c.owners.Get(p.Namespace, name); ok {
			c.loop.Add(framework.KeyOf(set))
		}
	}
}

// claimDeleted requeues the set whose pod may wait for the deletion of the claim.
func (c *Controller) claimDeleted(claim *corev1.PersistentVolumeClaim) {
	rest, n := parseOrdinal(claim.Name)
	if n < 0 {
		return
	}
	for _, set := range c.owners.All(claim.Namespace) {
		if len(set.Spec.VolumeClaimTemplates) > 0 && strings.HasSuffix(rest, "-"+set.Name) {
			c.loop.Add(framework.KeyOf(set))
		}
	}
}

// claimReleased requeues the set whose pod may wait until an earlier owner is removed from the claim.
func (c *Controller) claimReleased(old, cur *corev1.PersistentVolumeClaim) {
	if len(cur.OwnerReferences) < len(old.OwnerReferences) {
		c.claimDeleted(cur)
	}
}

// sync is one pass over one set.
func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	found, err := c.owners.Pass(key, func(set *appsv1.StatefulSet, sel labels.Selector) error {
		return c.pass(ctx, key, set, sel)
	})
	if !found {
		c.metrics.forget(key.Namespace, key.Name)
	}
	return err
}

func (c *Controller) pass(ctx context.Context, key framework.Key, set *appsv1.StatefulSet, sel labels.Selector) error {
	var err error
	snap := snapshot{
		set: set,
		claim: func(name string) *corev1.PersistentVolumeClaim {
			return c.cachedClaim(set.Namespace, name)
		},
		expectationsSatisfied: c.expect.Satisfied(set.UID),
		now:                   time.Now(),
	}
	if snap.pods, err = c.claim(ctx, set, sel); err != nil {
		return err
	}
	revisions, err := c.revisions(ctx, &snap, sel)
	if err != nil {
		return err
	}
	c.metrics.set(snap)
	p := decide(snap)
	failure := c.act(ctx, key, snap, p, revisions)
	if err := framework.UpdateStatus(ctx, c.env.Client.AppsV1().StatefulSets(set.Namespace), set, statusOf,
		status(snap)); err != nil {
		return errors.Join(failure, err)
	}
	if p.next > 0 {
		c.loop.AddAfter(key, p.next)
	}
	return errors.Join(failure, c.truncate(ctx, snap, revisions))
}

func statusOf(set *appsv1.StatefulSet) *appsv1.StatefulSetStatus { return &set.Status }

// claim returns the set's pods after adoption and release. Pods with other names are ignored.
func (c *Controller) claim(ctx context.Context, set *appsv1.StatefulSet, sel labels.Selector) ([]*corev1.Pod, error) {
	mine, adopted, err := c.own.ClaimCached(ctx, c.pods, set, sel, func(p *corev1.Pod) bool {
		name, n := parseOrdinal(p.Name)
		return n >= 0 && name == set.Name
	})
	if err != nil {
		return nil, fmt.Errorf("pods: %w", err)
	}
	return append(mine, adopted...), nil
}

func (c *Controller) cachedClaim(namespace, name string) *corev1.PersistentVolumeClaim {
	claim, err := c.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return nil
	}
	return claim
}

// revisions updates the set's history and sets it in snap. The history of a set in deletion is not changed, because a
// new revision would delay the deletion.
func (c *Controller) revisions(ctx context.Context, snap *snapshot, sel labels.Selector) (*history.State, error) {
	st := &snap.set.Status
	if snap.set.DeletionTimestamp != nil {
		snap.current = st.CurrentRevision
		snap.update = st.UpdateRevision
		if st.CollisionCount != nil {
			snap.collisions = *st.CollisionCount
		}
		return nil, nil
	}
	state, err := c.history.Sync(ctx, history.Owner{
		Object:     snap.set,
		Selector:   sel,
		Template:   &snap.set.Spec.Template,
		Collisions: st.CollisionCount,
		HashLabel:  hashLabel,
	})
	if err != nil {
		return nil, err
	}
	snap.current = state.Update.Name
	snap.update = state.Update.Name
	snap.collisions = state.Collisions
	if r := state.Named(st.CurrentRevision); r != nil {
		snap.current = r.Name
	}
	return state, nil
}

// truncate deletes unused revisions beyond the limit.
func (c *Controller) truncate(ctx context.Context, s snapshot, h *history.State) error {
	if h == nil || s.set.Spec.RevisionHistoryLimit == nil {
		return nil
	}
	live := map[string]bool{s.current: true}
	for _, p := range s.pods {
		live[revisionOf(p)] = true
	}
	return c.history.Truncate(ctx, h, int(*s.set.Spec.RevisionHistoryLimit), func(r *appsv1.ControllerRevision) bool {
		return live[r.Name]
	})
}
