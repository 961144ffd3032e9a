// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"keelson/cluster/clustertest"
)

const (
	namespace = "default"
	nodeCount = 3
)

// kind of workload that users create.
type kind struct {
	resource string
	weight   int
	make     func(name string, n int32, spec corev1.PodTemplateSpec) metav1.Object
}

var kinds = []kind{
	{"deployments", 4, func(name string, n int32, t corev1.PodTemplateSpec) metav1.Object {
		return &appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{Replicas: &n, Selector: selectorOf(name), Template: t}}
	}},
	{"replicasets", 2, func(name string, n int32, t corev1.PodTemplateSpec) metav1.Object {
		return &appsv1.ReplicaSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.ReplicaSetSpec{Replicas: &n, Selector: selectorOf(name), Template: t}}
	}},
	{"statefulsets", 3, func(name string, n int32, t corev1.PodTemplateSpec) metav1.Object {
		return &appsv1.StatefulSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "StatefulSet"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.StatefulSetSpec{Replicas: &n, Selector: selectorOf(name), Template: t, ServiceName: "x"}}
	}},
	{"daemonsets", 1, func(name string, _ int32, t corev1.PodTemplateSpec) metav1.Object {
		return &appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DaemonSetSpec{Selector: selectorOf(name), Template: t}}
	}},
	{"jobs", 2, func(name string, n int32, t corev1.PodTemplateSpec) metav1.Object {
		t.Labels = map[string]string{"run": t.Labels["app"]}
		t.Annotations = map[string]string{"keelson.dev/fake-run-for": "20s"}
		t.Spec.RestartPolicy = corev1.RestartPolicyNever
		completions, limit := n+1, int32(1000)
		return &batchv1.Job{TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"}, ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{Completions: &completions, Parallelism: &n, BackoffLimit: &limit, Template: t}}
	}},
}

func (k kind) gvr() schema.GroupVersionResource {
	if k.resource == "jobs" {
		return batchv1.SchemeGroupVersion.WithResource(k.resource)
	}
	return appsv1.SchemeGroupVersion.WithResource(k.resource)
}

func selectorOf(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
}

func templateOf(name string) corev1.PodTemplateSpec {
	grace := int64(1)
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}}, Spec: corev1.PodSpec{
		TerminationGracePeriodSeconds: &grace,
		Containers:                    []corev1.Container{{Name: "c", Image: "x:1", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}},
	}}
}

// users act on a cluster. They see no faults: what they do is done, or refused for a reason.
type users struct {
	c      *clustertest.Cluster
	rng    *rand.Rand
	kinds  []kind
	made   map[string]kind // by name: it may be gone
	next   int
	log    []string
	silent map[string]bool // nodes
}

// silentNodes are those that look dead.
func (u *users) silentNodes() []string {
	return slices.Sorted(maps.Keys(u.silent))
}

func (u *users) say(format string, args ...any) {
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
	name, k, ok := u.some()
	r := u.rng.IntN(100)
	switch {
	case !ok || r < 22 && u.next < 6:
		return u.create(ctx)
	case r < 45:
		return u.scale(ctx, name, k)
	case r < 58:
		return u.update(ctx, name, k)
	case r < 66:
		return u.remove(ctx, name, k)
	case r < 74:
		return u.deletePod(ctx)
	case r < 80:
		return u.drain(ctx)
	case r < 85:
		u.say("uncordon all")
		return u.uncordon(ctx)
	case r < 90:
		return u.silence(ctx)
	case r < 95:
		return u.quota(ctx)
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
	n := int32(u.rng.IntN(5))
	u.next++
	u.made[name] = k
	u.say("create %s %s with %d", k.resource, name, n)
	var err error
	switch o := k.make(name, n, templateOf(name)).(type) {
	case *appsv1.Deployment:
		_, err = u.c.AppsV1().Deployments(namespace).Create(ctx, o, metav1.CreateOptions{})
	case *appsv1.ReplicaSet:
		_, err = u.c.AppsV1().ReplicaSets(namespace).Create(ctx, o, metav1.CreateOptions{})
	case *appsv1.StatefulSet:
		_, err = u.c.AppsV1().StatefulSets(namespace).Create(ctx, o, metav1.CreateOptions{})
	case *appsv1.DaemonSet:
		_, err = u.c.AppsV1().DaemonSets(namespace).Create(ctx, o, metav1.CreateOptions{})
	case *batchv1.Job:
		_, err = u.c.BatchV1().Jobs(namespace).Create(ctx, o, metav1.CreateOptions{})
	}
	return err
}

// patch is as a user's kubectl patch; what is gone is gone.
func (u *users) patch(ctx context.Context, name string, k kind, patch string) error {
	_, err := u.c.Dynamic.Resource(k.gvr()).Namespace(namespace).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (u *users) scale(ctx context.Context, name string, k kind) error {
	n := u.rng.IntN(6)
	u.say("scale %s %s to %d", k.resource, name, n)
	switch k.resource {
	case "daemonsets":
		return nil
	case "jobs":
		return u.patch(ctx, name, k, fmt.Sprintf(`{"spec":{"parallelism":%d}}`, n))
	}
	return u.patch(ctx, name, k, fmt.Sprintf(`{"spec":{"replicas":%d}}`, n))
}

func (u *users) update(ctx context.Context, name string, k kind) error {
	v := u.rng.IntN(4)
	u.say("update %s %s to version %d", k.resource, name, v)
	if k.resource == "jobs" {
		return u.patch(ctx, name, k, fmt.Sprintf(`{"spec":{"suspend":%t}}`, v == 0))
	}
	return u.patch(ctx, name, k, fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"version":"%d"}}}}}`, v))
}

func (u *users) remove(ctx context.Context, name string, k kind) error {
	how := []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground}[u.rng.IntN(2)]
	u.say("delete %s %s %s", k.resource, name, how)
	err := u.c.Dynamic.Resource(k.gvr()).Namespace(namespace).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &how})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

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
	_, err := u.c.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, yes), metav1.PatchOptions{})
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
		p := &pods[i]
		owner := metav1.GetControllerOf(p)
		if p.Spec.NodeName != node || p.DeletionTimestamp != nil || owner != nil && owner.Kind == "DaemonSet" {
			continue
		}
		err := u.c.CoreV1().Pods(namespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: namespace}})
		switch {
		case apierrors.IsTooManyRequests(err):
			left++
		case err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsInternalError(err):
			return left, fmt.Errorf("evict %s: %w", p.Name, err)
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
	u.say("%s falls silent", node)
	u.silent[node] = true
	return u.c.SilenceNode(ctx, node)
}

func (u *users) wake(ctx context.Context) error {
	for _, node := range u.silentNodes() {
		u.say("%s is back", node)
		if err := u.c.WakeNode(ctx, node); err != nil {
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
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
		corev1.ResourcePods: *resource.NewQuantity(int64(pods), resource.DecimalSI), corev1.ResourceRequestsCPU: resource.MustParse("100"),
	}}}
	_, err := all.Create(ctx, q, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = all.Patch(ctx, "q", types.MergePatchType, fmt.Appendf(nil, `{"spec":{"hard":{"pods":"%d"}}}`, pods), metav1.PatchOptions{})
	}
	return err
}

func (u *users) budget(ctx context.Context, app string) error {
	all := u.c.PolicyV1().PodDisruptionBudgets(namespace)
	if u.rng.IntN(3) == 0 {
		u.say("delete budget of %s", app)
		if err := all.Delete(ctx, app, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	}
	least := intstr.FromInt32(int32(1 + u.rng.IntN(2)))
	u.say("budget of %s: at least %s", app, least.String())
	_, err := all.Create(ctx, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: app}, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: &least, Selector: selectorOf(app),
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
