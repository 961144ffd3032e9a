// SPDX-License-Identifier: Apache-2.0

// Package disruption maintains the status of PodDisruptionBudgets: how many pods are healthy, how many must be, and how
// many may be evicted now. It also removes stale DisruptionTarget conditions. The table of controllers starts it. The
// status is a pure function (plan.go); scale.go finds how many pods are expected. The API server's eviction subresource
// uses the status; this controller never evicts.
package disruption

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	policyinformers "k8s.io/client-go/informers/policy/v1"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"

	podkind "keelson/api/core/pod"
	"keelson/controllers/framework"
)

// workItem is the key of a pass: a budget or, if pod is set, a pod whose DisruptionTarget may be stale.
type workItem struct {
	framework.Key
	pod bool
}

// Controller handles all budgets.
type Controller struct {
	env     *framework.Env
	loop    *framework.Loop[workItem]
	budgets policylisters.PodDisruptionBudgetLister
	pods    corelisters.PodLister

	sets         appslisters.ReplicaSetLister
	deployments  appslisters.DeploymentLister
	statefulSets appslisters.StatefulSetLister
	controllers  corelisters.ReplicationControllerLister

	mu sync.Mutex
	// scalable caches discovery results of kinds other than the above.
	scalable map[metav1.TypeMeta]resource
}

// New builds the controller and registers handlers with env's informers.
func New(env *framework.Env) (framework.Controller, error) {
	core := coreinformers.New(env.Shared.Scoped())
	apps := appsinformers.New(env.Shared.Scoped())
	budgets := policyinformers.New(env.Shared.Scoped()).PodDisruptionBudgets()
	controller := &Controller{
		env:          env,
		budgets:      budgets.Lister(),
		pods:         core.Pods().Lister(),
		sets:         apps.ReplicaSets().Lister(),
		deployments:  apps.Deployments().Lister(),
		statefulSets: apps.StatefulSets().Lister(),
		controllers:  core.ReplicationControllers().Lister(),
		scalable:     map[metav1.TypeMeta]resource{},
	}
	controller.loop = framework.NewLoop(env.Queue, env.Workers, env.Log, controller.sync)
	err := errors.Join(
		framework.On(controller.loop, budgets.Informer(), framework.Handlers[*policyv1.PodDisruptionBudget]{
			Add:    controller.budgetChanged,
			Update: func(_, b *policyv1.PodDisruptionBudget) { controller.budgetChanged(b) },
		}),
		framework.On(controller.loop, core.Pods().Informer(), framework.Handlers[*corev1.Pod]{
			Add:    func(p *corev1.Pod) { controller.podChanged(nil, p) },
			Update: controller.podChanged,
			Delete: func(p *corev1.Pod) { controller.podChanged(p, nil) },
		}),
		framework.On(controller.loop, apps.ReplicaSets().Informer(), scaleHandlers(controller, func(
			o *appsv1.ReplicaSet,
		) *int32 {
			return o.Spec.Replicas
		})),
		framework.On(controller.loop, apps.Deployments().Informer(), scaleHandlers(controller, func(
			o *appsv1.Deployment,
		) *int32 {
			return o.Spec.Replicas
		})),
		framework.On(controller.loop, apps.StatefulSets().Informer(), scaleHandlers(controller, func(
			o *appsv1.StatefulSet,
		) *int32 {
			return o.Spec.Replicas
		})),
		framework.On(controller.loop, core.ReplicationControllers().Informer(),
			scaleHandlers(controller, func(o *corev1.ReplicationController) *int32 { return o.Spec.Replicas })),
	)
	if err != nil {
		return nil, fmt.Errorf("disruption controller: %w", err)
	}
	return controller, nil
}

// Run implements framework.Controller.
func (c *Controller) Run(ctx context.Context, ready func()) error { return c.loop.Run(ctx, ready) }

func (c *Controller) budgetChanged(b *policyv1.PodDisruptionBudget) {
	c.loop.Add(workItem{Key: framework.KeyOf(b)})
}

// scaleHandlers requeues the namespace's budgets when an owner of pods is scaled, or observed later than its pods.
func scaleHandlers[T metav1.Object](c *Controller, replicas func(T) *int32) framework.Handlers[T] {
	wake := func(o T) {
		for _, b := range c.budgetsOf(o.GetNamespace()) {
			c.budgetChanged(b)
		}
	}
	return framework.Handlers[T]{
		Add: wake,
		Update: func(old, cur T) {
			if !equality.Semantic.DeepEqual(replicas(old), replicas(cur)) {
				wake(cur)
			}
		},
	}
}

// budgetsOf returns a namespace's budgets, ordered by name.
func (c *Controller) budgetsOf(namespace string) []*policyv1.PodDisruptionBudget {
	all, err := c.budgets.PodDisruptionBudgets(namespace).List(labels.Everything())
	if err != nil || len(all) < 2 {
		return all
	}
	slices.SortFunc(all, func(a, b *policyv1.PodDisruptionBudget) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// podChanged requeues the budgets that match old or pod; either may be nil.
func (c *Controller) podChanged(old, pod *corev1.Pod) {
	if pod != nil {
		if left, stale := staleTarget(pod, time.Now()); stale {
			c.loop.AddAfter(workItem{framework.KeyOf(pod), true}, left)
		}
	}
	if old != nil && pod != nil && countsEqual(old, pod) {
		return
	}
	either := firstPod(pod, old)
	var matching []string
	for _, b := range c.budgetsOf(either.Namespace) {
		is := matches(b, pod)
		if is {
			matching = append(matching, b.Name)
		}
		if is || matches(b, old) {
			c.budgetChanged(b)
		}
	}
	if len(matching) > 1 && (old == nil || !maps.Equal(old.Labels, pod.Labels)) {
		c.env.Events.Eventf(pod, corev1.EventTypeWarning, "MultiplePodDisruptionBudgets",
			"Pod %q/%q matches multiple PodDisruptionBudgets.  Chose %q arbitrarily.", pod.Namespace, pod.Name,
			matching[0])
	}
}

func firstPod(p, other *corev1.Pod) *corev1.Pod {
	if p != nil {
		return p
	}
	return other
}

// countsEqual reports whether two states of a pod are equal for every budget.
func countsEqual(a, b *corev1.Pod) bool {
	return a.UID == b.UID && podkind.Ready(a) == podkind.Ready(b) &&
		(a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) &&
		maps.Equal(a.Labels, b.Labels) && equality.Semantic.DeepEqual(metav1.GetControllerOfNoCopy(a),
		metav1.GetControllerOfNoCopy(b))
}

// matches reports whether b's selector matches p; no selector matches nothing, an empty one everything.
func matches(b *policyv1.PodDisruptionBudget, p *corev1.Pod) bool {
	if p == nil {
		return false
	}
	s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	return err == nil && s.Matches(labels.Set(p.Labels))
}

func (c *Controller) sync(ctx context.Context, it workItem) error {
	if it.pod {
		return c.removeDisruptionTarget(ctx, it)
	}
	budget, err := c.budgets.PodDisruptionBudgets(it.Namespace).Get(it.Name)
	if apierrors.IsNotFound(err) || err == nil && budget.DeletionTimestamp != nil && len(budget.Finalizers) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	now := time.Now()
	next, recheck, err := c.decide(ctx, budget, now)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		c.env.Log.Debug("budget cannot be counted", "budget", it.String(), "err", err)
		next = failedStatus(budget, err)
	case recheck > 0:
		c.loop.AddAfter(it, recheck)
	}
	if equality.Semantic.DeepEqual(next, &budget.Status) {
		return nil
	}
	changed := budget.DeepCopy()
	changed.Status = *next
	_, err = c.env.Client.PolicyV1().PodDisruptionBudgets(budget.Namespace).UpdateStatus(ctx, changed,
		metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// decide computes budget's status, and records events about problems of budget.
func (c *Controller) decide(
	ctx context.Context, budget *policyv1.PodDisruptionBudget, now time.Time,
) (*policyv1.PodDisruptionBudgetStatus, time.Duration, error) {
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	var pods []*corev1.Pod
	if err == nil {
		pods, err = c.pods.Pods(budget.Namespace).List(selector)
	}
	if err != nil {
		c.env.Events.Eventf(budget, corev1.EventTypeWarning, "NoPods", "Failed to get pods: %v", err)
		return nil, 0, err
	}
	if len(pods) == 0 {
		c.env.Events.Event(budget, corev1.EventTypeNormal, "NoPods", "No matching pods found")
	}
	expected := int32(len(pods)) // a cluster has fewer pods
	if usesScale(budget) {
		var unmanaged bool
		expected, unmanaged, err = c.expected(ctx, pods)
		if unmanaged {
			c.env.Events.Eventf(budget, corev1.EventTypeWarning, "UnmanagedPods",
				"Pods selected by this PodDisruptionBudget (selector: %v) were found "+
					"to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may "+
					"result in undefined behavior. "+
					"To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.",
				budget.Spec.Selector)
		}
	}
	healthy := int32(0)
	if err == nil {
		healthy, err = desired(budget, expected)
	}
	if err != nil {
		c.env.Events.Eventf(budget, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed",
			"Failed to calculate the number of expected pods: %v", err)
		return nil, 0, err
	}
	st, recheck, overdue := status(budget, pods, expected, healthy, now)
	for _, p := range overdue {
		c.env.Events.Eventf(p, corev1.EventTypeWarning, "NotDeleted",
			"Pod was expected by PDB %s/%s to be deleted but it wasn't", budget.Namespace, budget.Name)
	}
	return st, recheck, nil
}

// removeDisruptionTarget removes DisruptionTarget from a pod that was not deleted.
func (c *Controller) removeDisruptionTarget(ctx context.Context, it workItem) error {
	pod, err := c.pods.Pods(it.Namespace).Get(it.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	now := time.Now()
	left, stale := staleTarget(pod, now)
	switch {
	case !stale:
		return nil
	case left > 0:
		c.loop.AddAfter(it, left)
		return nil
	}
	b, err := json.Marshal(map[string]any{
		// it may be evicted again by now
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
		"status": map[string]any{"conditions": []map[string]any{{
			"type":               corev1.DisruptionTarget,
			"status":             corev1.ConditionFalse,
			"reason":             nil,
			"message":            nil,
			"lastTransitionTime": metav1.NewTime(now),
		}}},
	})
	if err != nil {
		return err
	}
	_, err = c.env.Client.PodWrites(pod.Namespace).PatchStatus(ctx, pod.Name, b)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
