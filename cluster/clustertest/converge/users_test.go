// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"keelson/api/metrics"
	"keelson/cluster/clustertest"
)

// users act on a cluster. They see no faults: what they do is done, or refused for a reason.
type users struct {
	c      *clustertest.Cluster
	rng    *rand.Rand
	laws   *laws
	kinds  []kind
	made   map[string]kind // by name: it may be gone
	next   int
	silent map[string]bool // nodes
	absent map[string]bool // nodes whose object was deleted

	mu  sync.Mutex
	log []string
}

func (u *users) history() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return strings.Join(u.log, "\n  ")
}

// silentNodes are those that look dead.
func (u *users) silentNodes() []string {
	return slices.Sorted(maps.Keys(u.silent))
}

func (u *users) say(format string, args ...any) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.log = append(u.log, time.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

func (u *users) node() string { return fmt.Sprintf("node-%d", u.rng.IntN(nodeCount)) }

// some is one of the workloads that were made.
func (u *users) some() (string, kind, bool) {
	if u.next == 0 {
		return "", kind{}, false
	}
	name := fmt.Sprintf("w%d", u.rng.IntN(u.next))
	return name, u.made[name], true
}

// act does one thing.
func (u *users) act(ctx context.Context) error {
	name, kind, ok := u.some()
	r := u.rng.IntN(100)
	switch {
	case !ok || r < 22 && u.next < 6:
		return u.create(ctx)
	case r < 45:
		return u.scale(ctx, name, kind)
	case r < 58:
		return u.update(ctx, name, kind)
	case r < 66:
		return u.remove(ctx, name, kind)
	case r < 74:
		return u.deletePod(ctx)
	case r < 80:
		return u.drain(ctx)
	case r < 85:
		u.say("uncordon all")
		return u.uncordon(ctx)
	case r < 88:
		return u.silence(ctx)
	case r < 90:
		return u.deleteNode(ctx)
	case r < 93:
		return u.quota(ctx)
	case r < 96:
		return u.autoscale(ctx, name, kind)
	}
	return u.budget(ctx, name)
}

func (u *users) create(ctx context.Context) error {
	total := 0
	for _, k := range u.kinds {
		total += k.weight
	}
	pick := u.rng.IntN(total)
	k := u.kinds[0]
	for _, k = range u.kinds {
		if pick -= k.weight; pick < 0 {
			break
		}
	}
	name := fmt.Sprintf("w%d", u.next)
	u.next++
	u.made[name] = k
	return u.createNamed(ctx, name, k, nil)
}

func (u *users) createNamed(ctx context.Context, name string, k kind, labels map[string]string) error {
	return u.createOne(ctx, name, k, int32(u.rng.IntN(5)), labels)
}

func (u *users) createOne(ctx context.Context, name string, k kind, n int32, labels map[string]string) error {
	u.say("create %s %s with %d", k.resource, name, n)
	made := k.make(u.rng, name, n, templateOf(name))
	made.SetLabels(labels)
	obj, err := runtime.DefaultUnstructuredConverter.ToUnstructured(made)
	if err != nil {
		return err
	}
	_, err = u.c.Dynamic.Resource(k.gvr).Namespace(namespace).Create(ctx, &unstructured.Unstructured{Object: obj},
		metav1.CreateOptions{})
	return err
}

// patch is as a user's kubectl patch; what is gone is gone.
func (u *users) patch(ctx context.Context, name string, k kind, patch string) error {
	_, err := u.c.Dynamic.Resource(k.gvr).Namespace(namespace).Patch(ctx, name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (u *users) scale(ctx context.Context, name string, k kind) error {
	n := u.rng.IntN(6)
	u.say("scale %s %s to %d", k.resource, name, n)
	switch k.resource {
	case "daemonsets", "cronjobs":
		return nil
	case "jobs":
		return u.patch(ctx, name, k, fmt.Sprintf(`{"spec":{"parallelism":%d}}`, n))
	}
	return u.patch(ctx, name, k, fmt.Sprintf(`{"spec":{"replicas":%d}}`, n))
}

func (u *users) update(ctx context.Context, name string, k kind) error {
	v := u.rng.IntN(4)
	u.say("update %s %s to version %d", k.resource, name, v)
	if k.resource == "jobs" || k.resource == "cronjobs" {
		return u.patch(ctx, name, k, fmt.Sprintf(`{"spec":{"suspend":%t}}`, v == 0))
	}
	uses := idle
	if v%2 == 0 {
		uses = busy
	}
	return u.patch(ctx, name, k,
		fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"version":"%d",%q:%q}}}}}`, v,
			metrics.AnnotationCPU, uses))
}

func (u *users) remove(ctx context.Context, name string, k kind) error {
	how := []metav1.DeletionPropagation{
		metav1.DeletePropagationBackground, metav1.DeletePropagationForeground,
	}[u.rng.IntN(2)]
	u.say("delete %s %s %s", k.resource, name, how)
	err := u.c.Dynamic.Resource(k.gvr).Namespace(namespace).Delete(ctx, name, metav1.DeleteOptions{
		PropagationPolicy: &how,
	})
	if err == nil && how == metav1.DeletePropagationBackground && u.rng.IntN(2) == 0 {
		err = u.createNamed(ctx, name, k, map[string]string{remade: "true"}) // before anybody has seen that it was gone
		if apierrors.IsAlreadyExists(err) {
			return nil // a finalizer keeps the old one
		}
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// remade is the label of what has the name of something that was deleted.
const remade = "remade"

func (u *users) pods(ctx context.Context) ([]corev1.Pod, error) {
	l, err := u.c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return l.Items, nil
}

func (u *users) deletePod(ctx context.Context) error {
	pods, err := u.pods(ctx)
	if err != nil || len(pods) == 0 {
		return err
	}
	name := pods[u.rng.IntN(len(pods))].Name
	u.say("delete pod %s", name)
	err = u.c.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (u *users) cordon(ctx context.Context, node string, yes bool) error {
	_, err := u.c.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, yes), metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// drain evicts what is on a node; what a budget protects stays.
func (u *users) drain(ctx context.Context) error {
	node := u.node()
	u.say("drain %s", node)
	if err := u.cordon(ctx, node, true); err != nil {
		return err
	}
	_, err := u.evictAll(ctx, node)
	return err
}

// evictAll asks once for the eviction of each pod of a node that no daemon set owns; left is how many were refused.
func (u *users) evictAll(ctx context.Context, node string) (left int, err error) {
	pods, err := u.pods(ctx)
	if err != nil {
		return 0, err
	}
	for i := range pods {
		pod := &pods[i]
		owner := metav1.GetControllerOf(pod)
		if pod.Spec.NodeName != node || pod.DeletionTimestamp != nil || owner != nil && owner.Kind == "DaemonSet" {
			continue
		}
		u.laws.evict(pod)
		err := u.c.CoreV1().Pods(namespace).EvictV1(ctx, &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: namespace},
		})
		switch {
		case apierrors.IsTooManyRequests(err):
			left++
		case err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsInternalError(err):
			return left, fmt.Errorf("evict %s: %w", pod.Name, err)
		}
	}
	return left, nil
}

func (u *users) uncordon(ctx context.Context) error {
	for i := range nodeCount {
		if err := u.cordon(ctx, fmt.Sprintf("node-%d", i), false); err != nil {
			return err
		}
	}
	return nil
}

// silence makes a node look dead, or all of them live again.
func (u *users) silence(ctx context.Context) error {
	if len(u.silentNodes()) > 0 {
		return u.wake(ctx)
	}
	node := u.node()
	if u.absent[node] {
		return nil
	}
	u.say("%s falls silent", node)
	u.silent[node] = true
	return u.c.SilenceNode(ctx, node)
}

// deleteNode deletes a node's object, as an administrator does whose machine is gone for good. It comes back when the
// nodes start again.
func (u *users) deleteNode(ctx context.Context) error {
	node := u.node()
	u.say("delete %s", node)
	u.laws.note(func() { u.laws.lost[node] = true })
	u.absent[node] = true
	delete(u.silent, node)
	err := u.c.CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// What pods say they use: a tenth of what they have asked for, or all.
const (
	idle = "100m"
	busy = "1000m"
)

// autoscale has a deployment grow and shrink with its use, between 2 and 5, or no more.
func (u *users) autoscale(ctx context.Context, name string, k kind) error {
	if k.resource != "deployments" {
		return nil
	}
	all := u.c.AutoscalingV2().HorizontalPodAutoscalers(namespace)
	if u.rng.IntN(3) == 0 {
		u.say("delete autoscaler of %s", name)
		if err := all.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	}
	return u.autoscaler(ctx, name)
}

func (u *users) autoscaler(ctx context.Context, name string) error {
	u.say("autoscale %s", name)
	all := u.c.AutoscalingV2().HorizontalPodAutoscalers(namespace)
	least := int32(2)
	half := int32(50)
	_, err := all.Create(ctx, &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: named(name),
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
				APIVersion: "apps/v1",
				Kind:       "Deployment",
				Name:       name,
			},
			MinReplicas: &least,
			MaxReplicas: 5,
			Metrics: []autoscalingv2.MetricSpec{{
				Type: autoscalingv2.ResourceMetricSourceType,
				Resource: &autoscalingv2.ResourceMetricSource{
					Name: corev1.ResourceCPU,
					Target: autoscalingv2.MetricTarget{
						Type:               autoscalingv2.UtilizationMetricType,
						AverageUtilization: &half,
					},
				},
			}},
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// suspendAll suspends the cron jobs, so that there comes an end.
func (u *users) suspendAll(ctx context.Context) error {
	all, err := u.c.BatchV1().CronJobs(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items {
		_, err := u.c.BatchV1().CronJobs(namespace).Patch(ctx, all.Items[i].Name, types.MergePatchType,
			[]byte(`{"spec":{"suspend":true}}`), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func (u *users) wake(ctx context.Context) error {
	for _, node := range u.silentNodes() {
		u.say("%s is back", node)
		if err := u.c.WakeNode(ctx, node); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		delete(u.silent, node)
	}
	return nil
}

func (u *users) quota(ctx context.Context) error {
	all := u.c.CoreV1().ResourceQuotas(namespace)
	if u.rng.IntN(3) == 0 {
		u.say("delete quota")
		if err := all.Delete(ctx, "q", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	}
	n := 2 + u.rng.IntN(20)
	u.say("quota of %d pods", n)
	return u.setQuota(ctx, n)
}

func (u *users) setQuota(ctx context.Context, pods int) error {
	all := u.c.CoreV1().ResourceQuotas(namespace)
	q := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "q"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			corev1.ResourcePods:        *resource.NewQuantity(int64(pods), resource.DecimalSI),
			corev1.ResourceRequestsCPU: resource.MustParse("100"),
		}},
	}
	_, err := all.Create(ctx, q, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = all.Patch(ctx, "q", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"hard":{"pods":"%d"}}}`, pods),
			metav1.PatchOptions{})
	}
	return err
}

func (u *users) budget(ctx context.Context, app string) error {
	all := u.c.PolicyV1().PodDisruptionBudgets(namespace)
	if u.rng.IntN(3) == 0 {
		u.say("delete budget of %s", app)
		u.laws.budget(app, nil)
		if err := all.Delete(ctx, app, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	}
	return u.protect(ctx, app, 1+u.rng.IntN(2))
}

// protect makes a budget for an app.
func (u *users) protect(ctx context.Context, app string, n int) error {
	all := u.c.PolicyV1().PodDisruptionBudgets(namespace)
	least := intstr.FromInt32(int32(n))
	u.say("budget of %s: at least %s", app, least.String())
	budget, err := all.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &least,
			Selector:     selectorOf(app),
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err == nil {
		u.laws.budget(app, budget)
	}
	return err
}
