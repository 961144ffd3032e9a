// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"keelson/cluster"
	"keelson/lib/waittest"
)

const (
	budgetPods    = 10
	budgetMissing = 3
	// A second or two are enough where nothing else runs.
	budgetPatience = 3 * time.Minute
)

// TestEvictionsKeepTheBudget: however many evict at once, no more pods are missing at any revision than the budget
// allows, and as pods are replaced the evictions go on.
func TestEvictionsKeepTheBudget(t *testing.T) {
	access := controlPlaneOf(t, func(c *cluster.Config) { c.Fake.Count = 3 })
	access.QPS = -1
	clientset := kubernetes.NewForConfigOrDie(access)
	budgeted(t, clientset)
	watcher, err := clientset.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		t.Fatal(err)
	}
	var least, evicted atomic.Int64
	least.Store(budgetPods)
	var watching sync.WaitGroup
	watching.Go(func() { follow(watcher, &least) })
	ctx, cancel := context.WithTimeout(t.Context(), budgetPatience)
	defer cancel()
	var evicting sync.WaitGroup
	for range 20 {
		evicting.Go(func() { evictAll(ctx, t, clientset, &evicted) })
	}
	evicting.Wait()
	watcher.Stop()
	watching.Wait()
	if n := evicted.Load(); n < 2*budgetPods {
		t.Errorf("%d pods were evicted in %s, want %d", n, budgetPatience, 2*budgetPods)
	}
	if n := least.Load(); n < budgetPods-budgetMissing {
		t.Errorf("at a time only %d pods were healthy, want %d at least", n, budgetPods-budgetMissing)
	}
}

// budgeted makes a Deployment and its budget, and waits until evictions are allowed.
func budgeted(t *testing.T, cs kubernetes.Interface) {
	t.Helper()
	labels := map[string]string{"app": "web"}
	replicas := int32(budgetPods)
	missing := intstr.FromInt32(budgetMissing)
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	deployment.Spec.Replicas = &replicas
	deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	deployment.Spec.Template.Labels = labels
	deployment.Spec.Template.Spec = corev1.PodSpec{
		Containers:                    []corev1.Container{{Name: "main", Image: "example.com/web"}},
		TerminationGracePeriodSeconds: new(int64),
		Tolerations: []corev1.Toleration{
			{Key: "keelson.dev/fake", Operator: corev1.TolerationOpExists},
		},
	}
	if _, err := cs.AppsV1().Deployments("default").Create(t.Context(), deployment,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	b.Spec.MaxUnavailable = &missing
	b.Spec.Selector = deployment.Spec.Selector
	if _, err := cs.PolicyV1().PodDisruptionBudgets("default").Create(t.Context(), b,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Right(t, "budget", func() string {
		b, err := cs.PolicyV1().PodDisruptionBudgets("default").Get(t.Context(), "web", metav1.GetOptions{})
		switch {
		case err != nil:
			return err.Error()
		case b.Status.DisruptionsAllowed != budgetMissing || b.Status.CurrentHealthy != budgetPods:
			return b.Status.String()
		}
		return ""
	})
}

// follow keeps the smallest number of healthy pods that was ever left.
func follow(w watch.Interface, least *atomic.Int64) {
	healthy := map[string]bool{}
	for ev := range w.ResultChan() {
		pod, ok := ev.Object.(*corev1.Pod)
		if !ok {
			continue
		}
		ready := false
		for _, cond := range pod.Status.Conditions {
			ready = ready || cond.Type == corev1.PodReady && cond.Status == corev1.ConditionTrue
		}
		was := healthy[pod.Name]
		if ready && pod.DeletionTimestamp == nil && ev.Type != watch.Deleted {
			healthy[pod.Name] = true
		} else {
			delete(healthy, pod.Name)
		}
		if was && !healthy[pod.Name] {
			least.Store(min(least.Load(), int64(len(healthy))))
		}
	}
}

// evictAll evicts whatever runs until every pod has been replaced three times or time is over.
func evictAll(ctx context.Context, t *testing.T, c kubernetes.Interface, evicted *atomic.Int64) {
	for ctx.Err() == nil && evicted.Load() < 3*budgetPods {
		pods, err := c.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil {
			return
		}
		for _, pod := range pods.Items {
			if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
				continue
			}
			err := c.PolicyV1().Evictions("default").Evict(ctx, &policyv1.Eviction{
				ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
			})
			switch {
			case err == nil:
				evicted.Add(1)
			case apierrors.IsTooManyRequests(err):
				if !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
					t.Errorf("refused without a cause: %v", err)
				}
			case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) &&
				!errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
				t.Errorf("evict %s: %v", pod.Name, err)
			}
		}
	}
}
