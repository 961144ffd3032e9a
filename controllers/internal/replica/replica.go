// SPDX-License-Identifier: Apache-2.0

// Package replica maintains the number of pods of a set: the core of the replicaset and replicationcontroller
// controllers, which only define how to read and write their kind. A ReplicationController is handled as a ReplicaSet
// whose TypeMeta has its real kind. Decisions are pure functions (plan.go, podstodelete.go); this file and apply.go
// act. It never writes sets except their status.
package replica

import (
	"context"
	"errors"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	podkind "keelson/api/core/pod"
	"keelson/controllers/framework"
)

// Kind defines how to read and write one kind of set. Sets are shared and never modified; those of another kind than
// ReplicaSet are conversions with TypeMeta.
type Kind interface {
	GVK() schema.GroupVersionKind
	// Resource is the plural name, for marks.
	Resource() string
	// Informer delivers the real objects; Of converts one of them, or nil, to a set.
	Informer() cache.SharedIndexInformer
	Of(obj any) *appsv1.ReplicaSet
	// Sets reads and writes the sets of a namespace on the server.
	Sets(namespace string) framework.StatusClient[*appsv1.ReplicaSet]
}

// Controller handles all sets of one kind.
type Controller struct {
	env    *framework.Env
	kind   Kind
	gvk    schema.GroupVersionKind
	loop   *framework.Loop[framework.Key]
	expect *framework.Expectations
	owners *framework.Owners[*appsv1.ReplicaSet, *corev1.Pod]
	pods   cache.Indexer
	own    framework.Ownership[*corev1.Pod]

	mu sync.Mutex
	// firstBatches is the size of the last successful batch of creations, so that a large set does not slow-start in
	// every burst.
	firstBatches map[framework.Key]int
}

// New registers handlers with the shared informers; Run does the work.
func New(env *framework.Env, kind Kind) (*Controller, error) {
	controller := &Controller{
		env:          env,
		kind:         kind,
		gvk:          kind.GVK(),
		expect:       framework.NewExpectations(),
		firstBatches: map[framework.Key]int{},
	}
	controller.own = framework.PodOwnership(env, controller.gvk, func(
		ctx context.Context, namespace, name string,
	) (metav1.Object, error) {
		return kind.Sets(namespace).Get(ctx, name, metav1.GetOptions{})
	})
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	pods := coreinformers.New(env.Shared.Scoped()).Pods().Informer()
	if err := framework.EnsureIndex(pods, framework.ByController, framework.IndexByController); err != nil {
		return nil, err
	}
	if err := framework.EnsureIndex(kind.Informer(), framework.ByController, framework.IndexByController); err != nil {
		return nil, err
	}
	controller.pods = pods.GetIndexer()
	var err error
	controller.owners, err = framework.WatchOwners(env, controller.loop, kind.Informer(),
		pods, framework.Owners[*appsv1.ReplicaSet, *corev1.Pod]{
			Kind: controller.gvk.Kind,
			Of: func(obj any) (*appsv1.ReplicaSet, bool) {
				set := kind.Of(obj)
				return set, set != nil
			},
			Expect:      controller.expect,
			StatusDelay: statusDelay,
			Finished:    podkind.Terminal,
			Selector:    func(set *appsv1.ReplicaSet) *metav1.LabelSelector { return set.Spec.Selector },
		})
	return controller, err
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

// statusDelay delays passes that only count pods: a set of thousands is counted a few times per second, a small one at
// once.
func statusDelay(set *appsv1.ReplicaSet) time.Duration {
	return time.Duration(min(desiredReplicas(set)/50, 100)) * time.Millisecond
}

// sync is one pass over one set.
func (c *Controller) sync(ctx context.Context, key framework.Key) error {
	found, err := c.owners.Pass(key, func(set *appsv1.ReplicaSet, sel labels.Selector) error {
		return c.pass(ctx, key, set, sel)
	})
	if !found {
		c.setFirstBatch(key, 0)
	}
	return err
}

func (c *Controller) pass(ctx context.Context, key framework.Key, set *appsv1.ReplicaSet, sel labels.Selector) error {
	begin := time.Now()
	var err error
	snap := snapshot{
		set:                   set,
		expectationsSatisfied: c.expect.Satisfied(set.UID),
		countsTerminating:     c.gvk.Group == appsv1.GroupName,
		now:                   begin,
		related:               func() []*corev1.Pod { return c.related(set) },
	}
	if snap.pods, err = c.claim(ctx, set, sel); err != nil {
		return err
	}
	p := decide(snap)
	failure := c.act(ctx, key, begin, snap, p)
	st, next := status(snap, p, failure)
	if _, err := framework.WriteStatus(ctx, c.kind.Sets(set.Namespace), set, statusOf, st); err != nil {
		return errors.Join(failure, err)
	}
	if next > 0 {
		c.loop.AddAfter(key, next)
	}
	return failure
}

func statusOf(set *appsv1.ReplicaSet) *appsv1.ReplicaSetStatus { return &set.Status }

// claim returns the set's pods after adoption and release.
func (c *Controller) claim(ctx context.Context, set *appsv1.ReplicaSet, sel labels.Selector) ([]*corev1.Pod, error) {
	mine, adopted, err := c.own.ClaimCached(ctx, c.pods, set, sel, func(p *corev1.Pod) bool {
		return podkind.Active(p) || metav1.GetControllerOfNoCopy(p) != nil // finished pods are not adopted
	})
	return append(mine, adopted...), err
}

// related returns the pods of all sets with the same controller (a Deployment), else of set alone.
func (c *Controller) related(set *appsv1.ReplicaSet) []*corev1.Pod {
	sets := []*appsv1.ReplicaSet{set}
	if ref := metav1.GetControllerOfNoCopy(set); ref != nil {
		objs, err := c.kind.Informer().GetIndexer().ByIndex(framework.ByController, string(ref.UID))
		if err == nil {
			sets = sets[:0]
			for _, o := range objs {
				sets = append(sets, c.kind.Of(o))
			}
		}
	}
	var pods []*corev1.Pod
	for _, s := range sets {
		more, err := framework.PodsOf(c.pods, s.UID)
		if err == nil {
			pods = append(pods, more...)
		}
	}
	return pods
}
