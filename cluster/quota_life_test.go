// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"keelson/cluster"
	"keelson/lib/waittest"
)

// limited is a namespace with one quota.
type limited struct {
	*testing.T
	kubernetes.Interface
	ns string
}

// limit makes a namespace and a quota in it, and waits until its usage is known.
func limit(t *testing.T, cs kubernetes.Interface, ns string, spec corev1.ResourceQuotaSpec) limited {
	t.Helper()
	if _, err := cs.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waittest.Right(t, "service account of "+ns, func() string {
		if _, err := cs.CoreV1().ServiceAccounts(ns).Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	l := limited{t, cs, ns}
	l.quota("quota", spec)
	return l
}

func (l limited) quota(name string, spec corev1.ResourceQuotaSpec) {
	l.Helper()
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	if _, err := l.CoreV1().ResourceQuotas(l.ns).Create(l.Context(), q, metav1.CreateOptions{}); err != nil {
		l.Fatal(err)
	}
	waittest.Right(l.T, "status of quota "+name, func() string {
		q, err := l.CoreV1().ResourceQuotas(l.ns).Get(l.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for n := range spec.Hard {
			if _, ok := q.Status.Used[n]; !ok {
				return "the usage of " + string(n) + " is not known"
			}
		}
		return ""
	})
}

// used waits until the quota's usage is so: name, amount, ...
func (l limited) used(quota string, kv ...string) {
	l.Helper()
	waittest.Right(l.T, "usage of quota "+quota, func() string {
		q, err := l.CoreV1().ResourceQuotas(l.ns).Get(l.Context(), quota, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for k, want := range hard(kv...) {
			if got := q.Status.Used[k]; got.Cmp(want) != 0 {
				return fmt.Sprintf("%s is %s, want %s", k, got.String(), want.String())
			}
		}
		return ""
	})
}

// refused checks that err is the quota's refusal.
func (l limited) refused(what string, err error, text string) {
	l.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), text) {
		l.Errorf("%s: got %v, want a refusal with %q", what, err, text)
	}
}

func (l limited) must(what string, err error) {
	l.Helper()
	if err != nil {
		l.Fatalf("%s: %v", what, err)
	}
}

func (l limited) pod(name string, edit func(*corev1.PodSpec)) error {
	p := newPod(name)
	p.Namespace = l.ns
	if edit != nil {
		edit(&p.Spec)
	}
	_, err := l.CoreV1().Pods(l.ns).Create(l.Context(), p, metav1.CreateOptions{})
	return err
}

func (l limited) deletePod(name string) {
	l.Helper()
	l.must("delete pod "+name, l.CoreV1().Pods(l.ns).Delete(l.Context(), name, *metav1.NewDeleteOptions(0)))
}

func wants(requests, limits corev1.ResourceList) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		s.Containers[0].Resources = corev1.ResourceRequirements{Requests: requests, Limits: limits}
	}
}

func scoped(hardLimits corev1.ResourceList, scopes ...corev1.ResourceQuotaScope) corev1.ResourceQuotaSpec {
	return corev1.ResourceQuotaSpec{Hard: hardLimits, Scopes: scopes}
}

// TestQuotaLives: the usage of every kind that a quota counts rises and falls with its objects, and what exceeds it is
// refused.
func TestQuotaLives(t *testing.T) {
	cfg := controlPlaneOf(t, func(*cluster.Config) {})
	clientset, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("services", func(t *testing.T) { quotaOfServices(t, clientset) })
	t.Run("objects", func(t *testing.T) { quotaOfObjects(t, clientset) })
	t.Run("pods", func(t *testing.T) { quotaOfPods(t, clientset) })
	t.Run("claims", func(t *testing.T) { quotaOfClaims(t, clientset) })
	t.Run("devices", func(t *testing.T) { quotaOfDevices(t, clientset) })
	t.Run("custom resources", func(t *testing.T) {
		quotaOfCustomResources(t, clientset, dynamic.NewForConfigOrDie(cfg))
	})
	t.Run("scopes", func(t *testing.T) { quotaScopes(t, clientset) })
	t.Run("priority", func(t *testing.T) { quotaOfPriority(t, clientset) })
	t.Run("affinity", func(t *testing.T) { quotaOfAffinity(t, clientset) })
	t.Run("status", func(t *testing.T) { quotaStatus(t, clientset) })
	t.Run("replication controller", func(t *testing.T) { quotaFailsReplicas(t, clientset) })
}

func quotaOfServices(t *testing.T, cs kubernetes.Interface) {
	limited := limit(t, cs, "services",
		scoped(hard("services", "10", "services.nodeports", "1", "services.loadbalancers", "1")))
	service := func(name string, kind corev1.ServiceType) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{
				Type:  kind,
				Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80)}},
			},
		}
	}
	create := func(s *corev1.Service) error {
		_, err := cs.CoreV1().Services(limited.ns).Create(t.Context(), s, metav1.CreateOptions{})
		return err
	}
	limited.must("cluster IP", create(service("cluster", corev1.ServiceTypeClusterIP)))
	limited.must("node port", create(service("node", corev1.ServiceTypeNodePort)))
	limited.used("quota", "services", "2", "services.nodeports", "1", "services.loadbalancers", "0")
	limited.refused("balancer", create(service("balancer", corev1.ServiceTypeLoadBalancer)),
		"exceeded quota: quota, requested: services.nodeports=1, used: services.nodeports=1, limited: "+
			"services.nodeports=1")
	bare := service("bare", corev1.ServiceTypeLoadBalancer)
	no := false
	bare.Spec.AllocateLoadBalancerNodePorts = &no
	limited.must("balancer without node ports", create(bare))
	limited.used("quota", "services", "3", "services.nodeports", "1", "services.loadbalancers", "1")
	limited.refused("second balancer", create(func() *corev1.Service {
		s := bare.DeepCopy()
		s.Name = "more"
		return s
	}()), "requested: services.loadbalancers=1")
	_, err := cs.CoreV1().Services(limited.ns).Patch(t.Context(), "node", types.MergePatchType,
		[]byte(`{"spec":{"type":"ClusterIP","ports":[{"port":80,"targetPort":80,"nodePort":null}]}}`),
		metav1.PatchOptions{})
	limited.must("node port to cluster IP", err)
	limited.used("quota", "services.nodeports", "0")
	for _, name := range []string{"cluster", "node", "bare"} {
		limited.must("delete "+name, cs.CoreV1().Services(limited.ns).Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	limited.used("quota", "services", "0", "services.nodeports", "0", "services.loadbalancers", "0")
}

func quotaOfObjects(t *testing.T, cs kubernetes.Interface) {
	limited := limit(t, cs, "objects",
		scoped(hard("secrets", "1", "count/replicasets.apps", "1", "replicationcontrollers",
			"1", "count/configmaps", "2", "count/pods", "9")))
	// kube-root-ca.crt
	limited.used("quota", "secrets", "0", "count/replicasets.apps", "0", "replicationcontrollers", "0",
		"count/configmaps",
		"1")
	zero := int32(0)
	ctx := t.Context()
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	labels := map[string]string{"a": "b"}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: newPod("x").Spec}
	for _, kind := range []struct {
		name   string
		create func(name string) error
		remove func(name string) error
	}{
		{"secrets", func(n string) error {
			_, err := cs.CoreV1().Secrets(limited.ns).Create(ctx, &corev1.Secret{ObjectMeta: meta(n)},
				metav1.CreateOptions{})
			return err
		}, func(n string) error { return cs.CoreV1().Secrets(limited.ns).Delete(ctx, n, metav1.DeleteOptions{}) }},
		{"count/replicasets.apps", func(n string) error {
			_, err := cs.AppsV1().ReplicaSets(limited.ns).Create(ctx, &appsv1.ReplicaSet{
				ObjectMeta: meta(n),
				Spec: appsv1.ReplicaSetSpec{
					Replicas: &zero,
					Selector: &metav1.LabelSelector{MatchLabels: labels},
					Template: template,
				},
			}, metav1.CreateOptions{})
			return err
		}, func(n string) error {
			return cs.AppsV1().ReplicaSets(limited.ns).Delete(ctx, n, metav1.DeleteOptions{})
		}},
		{"replicationcontrollers", func(n string) error {
			_, err := cs.CoreV1().ReplicationControllers(limited.ns).Create(ctx, &corev1.ReplicationController{
				ObjectMeta: meta(n),
				Spec: corev1.ReplicationControllerSpec{
					Replicas: &zero,
					Selector: labels,
					Template: &template,
				},
			}, metav1.CreateOptions{})
			return err
		}, func(n string) error {
			background := metav1.DeletePropagationBackground
			return cs.CoreV1().ReplicationControllers(limited.ns).Delete(ctx, n, metav1.DeleteOptions{
				PropagationPolicy: &background,
			})
		}},
	} {
		limited.must(kind.name, kind.create("one"))
		limited.used("quota", kind.name, "1")
		limited.refused("second of "+kind.name, kind.create("two"), "exceeded quota: quota, requested: "+kind.name+
			"=1, used: "+kind.name+"=1, limited: "+kind.name+"=1")
		limited.must("delete of "+kind.name, kind.remove("one"))
		limited.used("quota", kind.name, "0")
		limited.must(kind.name+" again", kind.create("three"))
	}
	// The limits of a quota that is updated hold at once, and those of one that is gone do not.
	q, err := cs.CoreV1().ResourceQuotas(limited.ns).Get(ctx, "quota", metav1.GetOptions{})
	limited.must("get", err)
	q.ResourceVersion = ""
	q.Spec.Hard["secrets"] = resource.MustParse("2")
	q, err = cs.CoreV1().ResourceQuotas(limited.ns).Update(ctx, q, metav1.UpdateOptions{})
	limited.must("update", err)
	if got := q.Spec.Hard["secrets"]; got.Value() != 2 {
		t.Errorf("updated limit: got %s, want 2", got.String())
	}
	waittest.Right(t, "the new limit", func() string {
		_, err := cs.CoreV1().Secrets(limited.ns).Create(ctx, &corev1.Secret{ObjectMeta: meta("more")},
			metav1.CreateOptions{})
		if err != nil {
			return err.Error()
		}
		return ""
	})
	limited.must("delete the quota", cs.CoreV1().ResourceQuotas(limited.ns).Delete(ctx, "quota",
		metav1.DeleteOptions{}))
	waittest.Right(t, "the end of the limit", func() string {
		_, err := cs.CoreV1().Secrets(limited.ns).Create(ctx, &corev1.Secret{ObjectMeta: meta("most")},
			metav1.CreateOptions{})
		if err != nil {
			return err.Error()
		}
		return ""
	})
}

func quotaOfPods(t *testing.T, cs kubernetes.Interface) {
	limited := limit(t, cs, "pods",
		scoped(hard("pods", "5", "cpu", "1", "memory", "500Mi", "requests.ephemeral-storage",
			"50Gi", "requests.example.com/dongle", "3")))
	big := hard("cpu", "500m", "memory", "252Mi", "ephemeral-storage", "30Gi", "example.com/dongle", "2")
	dongles := hard("example.com/dongle", "2")
	limited.must("first", limited.pod("first", wants(big, dongles)))
	limited.used("quota", "pods", "1", "cpu", "500m", "memory", "252Mi", "requests.ephemeral-storage", "30Gi",
		"requests.example.com/dongle", "2")
	limited.refused("too much cpu", limited.pod("cpu", wants(hard("cpu", "600m", "memory", "100Mi"), nil)),
		"requested: cpu=600m, used: cpu=500m, limited: cpu=1")
	limited.refused("too many dongles", limited.pod("dongles",
		wants(hard("cpu", "500m", "memory", "100Mi", "ephemeral-storage", "10Gi", "example.com/dongle", "2"), dongles)),
		"requested: requests.example.com/dongle=2, used: requests.example.com/dongle=2, limited: "+
			"requests.example.com/dongle=3")
	limited.refused("nothing said", limited.pod("silent", nil),
		"failed quota: quota: must specify cpu for: main; memory for: main")
	p, err := cs.CoreV1().Pods(limited.ns).Get(t.Context(), "first", metav1.GetOptions{})
	limited.must("get", err)
	p.ResourceVersion = "" // whatever the scheduler writes meanwhile
	p.Spec.Containers[0].Resources.Requests = hard("cpu", "100m", "memory", "100Mi")
	if _, err := cs.CoreV1().Pods(limited.ns).Update(t.Context(), p, metav1.UpdateOptions{}); !apierrors.IsInvalid(
		err) {
		t.Errorf("changed requests: got %v, want invalid", err)
	}
	_, err = cs.CoreV1().Pods(limited.ns).Patch(t.Context(), "first", types.StrategicMergePatchType,
		[]byte(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"1100m"}}}]}}`),
		metav1.PatchOptions{}, "resize")
	limited.refused("resized too far", err,
		"exceeded quota: quota, requested: cpu=600m, used: cpu=500m, limited: cpu=1")
	limited.used("quota", "pods", "1", "cpu", "500m")
	limited.deletePod("first")
	limited.used("quota", "pods", "0", "cpu", "0", "memory", "0", "requests.ephemeral-storage", "0",
		"requests.example.com/dongle", "0")
}

// quotaOfDevices: claims of devices are counted by their classes.
func quotaOfDevices(t *testing.T, cs kubernetes.Interface) {
	const claims, gpus = "count/resourceclaims.resource.k8s.io", "gpu.deviceclass.resource.k8s.io/devices"
	limited := limit(t, cs, "devices", scoped(hard(claims, "3", gpus, "4")))
	claim := func(name string, n int64) error {
		_, err := cs.ResourceV1().ResourceClaims(limited.ns).Create(t.Context(), &resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
				{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", Count: n}},
			}}},
		}, metav1.CreateOptions{})
		return err
	}
	limited.must("three", claim("three", 3))
	limited.used("quota", claims, "1", gpus, "3")
	limited.refused("two more", claim("two", 2), "requested: "+gpus+"=2, used: "+gpus+"=3, limited: "+gpus+"=4")
	limited.must("delete", cs.ResourceV1().ResourceClaims(limited.ns).Delete(t.Context(), "three",
		metav1.DeleteOptions{}))
	limited.used("quota", claims, "0", gpus, "0")
}

func quotaOfClaims(t *testing.T, cs kubernetes.Interface) {
	const gold = "gold.storageclass.storage.k8s.io/"
	limited := limit(t, cs, "claims", scoped(hard("persistentvolumeclaims", "2", "requests.storage", "10Gi",
		gold+"persistentvolumeclaims", "1", gold+"requests.storage", "1Gi")))
	claim := func(name, class, size string) error {
		_, err := cs.CoreV1().PersistentVolumeClaims(limited.ns).Create(t.Context(), &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &class,
				AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:        corev1.VolumeResourceRequirements{Requests: hard("storage", size)},
			},
		}, metav1.CreateOptions{})
		return err
	}
	limited.must("gold", claim("one", "gold", "1Gi"))
	limited.used("quota", "persistentvolumeclaims", "1", "requests.storage", "1Gi", gold+"persistentvolumeclaims", "1",
		gold+"requests.storage", "1Gi")
	limited.refused("more gold", claim("two", "gold", "1Gi"), "requested: "+gold+"persistentvolumeclaims=1,"+gold+
		"requests.storage=1Gi")
	limited.must("silver", claim("two", "silver", "2Gi"))
	limited.used("quota", "persistentvolumeclaims", "2", "requests.storage", "3Gi", gold+"requests.storage", "1Gi")
	got, err := cs.CoreV1().PersistentVolumeClaims(limited.ns).Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil || !slices.Contains(got.Finalizers, "kubernetes.io/pvc-protection") {
		t.Errorf("a new claim is not protected: %v, %v", got.Finalizers, err)
	}
	for _, name := range []string{"one", "two"} {
		limited.must("delete", cs.CoreV1().PersistentVolumeClaims(limited.ns).Delete(t.Context(), name,
			metav1.DeleteOptions{}))
	}
	limited.used("quota", "persistentvolumeclaims", "0", "requests.storage", "0", gold+"persistentvolumeclaims", "0",
		gold+"requests.storage", "0")
}

func quotaOfCustomResources(t *testing.T, cs kubernetes.Interface, dyn dynamic.Interface) {
	definitions := dyn.Resource(schema.GroupVersionResource{
		Group:    "apiextensions.k8s.io",
		Version:  "v1",
		Resource: "customresourcedefinitions",
	})
	_, err := definitions.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": "things.quota.example.com"},
		"spec": map[string]any{
			"group": "quota.example.com",
			"scope": "Namespaced",
			"names": map[string]any{
				"plural":   "things",
				"singular": "thing",
				"kind":     "Thing",
				"listKind": "ThingList",
			},
			"versions": []any{map[string]any{
				"name":    "v1",
				"served":  true,
				"storage": true,
				"schema":  map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
			}},
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	things := dyn.Resource(schema.GroupVersionResource{Group: "quota.example.com", Version: "v1", Resource: "things"})
	waittest.Right(t, "the definition", func() string {
		if _, err := things.List(t.Context(), metav1.ListOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	limited := limit(t, cs, "custom", scoped(hard("count/things.quota.example.com", "1")))
	create := func(name string) error {
		_, err := things.Namespace(limited.ns).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "quota.example.com/v1",
			"kind":       "Thing",
			"metadata":   map[string]any{"name": name},
		}}, metav1.CreateOptions{})
		return err
	}
	limited.must("first", create("one"))
	limited.used("quota", "count/things.quota.example.com", "1")
	limited.refused("second", create("two"),
		"requested: count/things.quota.example.com=1, used: count/things.quota.example.com=1")
	limited.must("delete", things.Namespace(limited.ns).Delete(t.Context(), "one", metav1.DeleteOptions{}))
	limited.used("quota", "count/things.quota.example.com", "0")
}

func quotaScopes(t *testing.T, cs kubernetes.Interface) {
	limited := limit(t, cs, "scopes", scoped(hard("pods", "5", "requests.cpu", "1", "limits.memory", "1Gi"),
		corev1.ResourceQuotaScopeTerminating))
	limited.quota("going-on", scoped(hard("pods", "5", "requests.cpu", "1", "limits.memory", "1Gi"),
		corev1.ResourceQuotaScopeNotTerminating))
	limited.quota("best-effort", scoped(hard("pods", "5"), corev1.ResourceQuotaScopeBestEffort))
	limited.quota("others", scoped(hard("pods", "5"), corev1.ResourceQuotaScopeNotBestEffort))
	full := wants(hard("cpu", "500m", "memory", "200Mi"), hard("cpu", "1", "memory", "400Mi"))
	limited.must("long running", limited.pod("long", full))
	limited.used("going-on", "pods", "1", "requests.cpu", "500m", "limits.memory", "400Mi")
	limited.used("quota", "pods", "0", "requests.cpu", "0", "limits.memory", "0")
	limited.used("others", "pods", "1")
	limited.used("best-effort", "pods", "0")
	limited.deletePod("long")
	limited.used("going-on", "pods", "0", "requests.cpu", "0", "limits.memory", "0")
	limited.used("others", "pods", "0")
	hour := int64(3600)
	limited.must("terminating", limited.pod("short", func(s *corev1.PodSpec) {
		full(s)
		s.ActiveDeadlineSeconds = &hour
	}))
	limited.used("quota", "pods", "1", "requests.cpu", "500m", "limits.memory", "400Mi")
	limited.used("going-on", "pods", "0", "requests.cpu", "0", "limits.memory", "0")
	limited.deletePod("short")
	limited.used("quota", "pods", "0", "requests.cpu", "0", "limits.memory", "0")
	limited.quotaFollowsDeadline(full, hour)
	for _, name := range []string{"quota", "going-on"} { // they ask for requests
		limited.must("delete "+name, cs.CoreV1().ResourceQuotas(limited.ns).Delete(t.Context(), name,
			metav1.DeleteOptions{}))
	}
	waittest.Right(t, "a pod without requests", func() string {
		if err := limited.pod("best", nil); err != nil {
			return err.Error()
		}
		return ""
	})
	limited.used("best-effort", "pods", "1")
	limited.used("others", "pods", "0")
	limited.deletePod("best")
	limited.used("best-effort", "pods", "0")
}

// quotaFollowsDeadline: a deadline moves a pod to the other quota within the request that sets it.
func (l limited) quotaFollowsDeadline(full func(*corev1.PodSpec), seconds int64) {
	l.Helper()
	l.must("second terminating", l.pod("ends", func(s *corev1.PodSpec) {
		full(s)
		s.ActiveDeadlineSeconds = &seconds
	}))
	l.must("first going on", l.pod("moves", full))
	l.used("going-on", "pods", "1")
	deadline := []byte(`{"spec":{"activeDeadlineSeconds":3600}}`)
	_, err := l.CoreV1().Pods(l.ns).Patch(l.Context(), "moves", types.MergePatchType, deadline, metav1.PatchOptions{})
	l.must("set a deadline", err)
	l.refused("beyond the limit", l.pod("late", func(s *corev1.PodSpec) {
		full(s)
		s.ActiveDeadlineSeconds = &seconds
	}),
		"exceeded quota: quota, requested: limits.memory=400Mi,requests.cpu=500m, used: "+
			"limits.memory=800Mi,requests.cpu=1")
	l.must("third going on", l.pod("stays", full))
	_, err = l.CoreV1().Pods(l.ns).Patch(l.Context(), "stays", types.MergePatchType, deadline, metav1.PatchOptions{})
	l.refused("a deadline beyond the limit", err, "exceeded quota: quota")
	for _, name := range []string{"ends", "moves", "stays"} {
		l.deletePod(name)
	}
	l.used("quota", "pods", "0", "requests.cpu", "0", "limits.memory", "0")
	l.used("going-on", "pods", "0", "requests.cpu", "0", "limits.memory", "0")
}

func quotaOfPriority(t *testing.T, cs kubernetes.Interface) {
	for i, name := range []string{"quota-high", "quota-low"} {
		if _, err := cs.SchedulingV1().PriorityClasses().Create(t.Context(),
			&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: int32(1000 - i)},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	in := func(op corev1.ScopeSelectorOperator, values ...string) corev1.ResourceQuotaSpec {
		return corev1.ResourceQuotaSpec{
			Hard: hard("pods", "1"),
			ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
				{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: op, Values: values},
			}},
		}
	}
	limited := limit(t, cs, "priority", in(corev1.ScopeSelectorOpIn, "quota-high"))
	limited.quota("rest", in(corev1.ScopeSelectorOpNotIn, "quota-high"))
	class := func(name string) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) { s.PriorityClassName = name }
	}
	limited.must("first high", limited.pod("high", class("quota-high")))
	limited.used("quota", "pods", "1")
	limited.refused("second high", limited.pod("higher", class("quota-high")),
		"exceeded quota: quota, requested: pods=1, used: pods=1, limited: pods=1")
	limited.must("low", limited.pod("low", class("quota-low")))
	limited.used("rest", "pods", "1")
	limited.refused("second low", limited.pod("lower", class("quota-low")), "exceeded quota: rest")
	limited.deletePod("high")
	limited.used("quota", "pods", "0")
	limited.used("rest", "pods", "1")
}

func quotaOfAffinity(t *testing.T, c kubernetes.Interface) {
	limited := limit(t, c, "affinity", scoped(hard("pods", "0"), corev1.ResourceQuotaScopeCrossNamespacePodAffinity))
	with := func(edit func(*corev1.PodAffinityTerm)) func(*corev1.PodSpec) {
		term := corev1.PodAffinityTerm{TopologyKey: "region", LabelSelector: &metav1.LabelSelector{}}
		edit(&term)
		return func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term},
			}}
		}
	}
	limited.must("within its namespace", limited.pod("home", with(func(*corev1.PodAffinityTerm) {})))
	limited.refused("with namespaces", limited.pod("away", with(func(t *corev1.PodAffinityTerm) {
		t.Namespaces = []string{"other"}
	})), "exceeded quota: quota, requested: pods=1")
	limited.refused("with a namespace selector", limited.pod("away", with(func(t *corev1.PodAffinityTerm) {
		t.NamespaceSelector = &metav1.LabelSelector{}
	})), "exceeded quota: quota, requested: pods=1")
}

// quotaStatus: what is written into a quota's status holds until the controller has counted; what is lost from it comes
// back.
func quotaStatus(t *testing.T, c kubernetes.Interface) {
	l := limit(t, c, "status", scoped(hard("cpu", "500m", "memory", "500Mi")))
	quotas := c.CoreV1().ResourceQuotas(l.ns)
	_, err := quotas.Patch(t.Context(), "quota", types.StrategicMergePatchType,
		[]byte(`{"spec":{"hard":{"cpu":"1","memory":"1Gi"}}}`), metav1.PatchOptions{})
	l.must("patch", err)
	got, err := quotas.Patch(t.Context(), "quota", types.StrategicMergePatchType,
		[]byte(`{"status":{"hard":{"cpu":"2","memory":"2Gi"}}}`), metav1.PatchOptions{}, "status")
	l.must("patch the status", err)
	if cpu := got.Status.Hard["cpu"]; cpu.Value() != 2 || got.Spec.Hard.Cpu().Value() != 1 {
		t.Errorf("patched status: got %v, spec %v", got.Status.Hard, got.Spec.Hard)
	}
	want := func(what string) {
		t.Helper()
		waittest.Right(t, what, func() string {
			q, err := quotas.Get(t.Context(), "quota", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			cpu := q.Status.Hard["cpu"]
			memory := q.Status.Hard["memory"]
			if cpu.String() != "1" || memory.String() != "1Gi" || len(q.Status.Used) != 2 {
				return fmt.Sprintf("hard %s, %s; used %v", cpu.String(), memory.String(), q.Status.Used)
			}
			return ""
		})
	}
	want("the status that somebody patched")
	waittest.Right(t, "a status without usage", func() string {
		q, err := quotas.Get(t.Context(), "quota", metav1.GetOptions{})
		if err == nil {
			q.Status = corev1.ResourceQuotaStatus{Hard: q.Spec.Hard}
			_, err = quotas.UpdateStatus(t.Context(), q, metav1.UpdateOptions{})
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
	want("the usage that somebody erased")
}

// quotaFailsReplicas: a replication controller says that a quota keeps it from having its pods, as long as it is so.
func quotaFailsReplicas(t *testing.T, cs kubernetes.Interface) {
	limited := limit(t, cs, "replicas", scoped(hard("pods", "2")))
	three := int32(3)
	labels := map[string]string{"a": "b"}
	_, err := cs.CoreV1().ReplicationControllers(limited.ns).Create(t.Context(), &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "rc"},
		Spec: corev1.ReplicationControllerSpec{
			Replicas: &three,
			Selector: labels,
			Template: &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: newPod("x").Spec},
		},
	}, metav1.CreateOptions{})
	limited.must("create", err)
	failing := func(want bool) func() string {
		return func() string {
			rc, err := cs.CoreV1().ReplicationControllers(limited.ns).Get(t.Context(), "rc", metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			if got := slices.ContainsFunc(rc.Status.Conditions, func(c corev1.ReplicationControllerCondition) bool {
				return c.Type == corev1.ReplicationControllerReplicaFailure && c.Status == corev1.ConditionTrue
			}); got != want {
				return fmt.Sprintf("conditions %v", rc.Status.Conditions)
			}
			return ""
		}
	}
	waittest.Right(t, "the failure", failing(true))
	_, err = cs.CoreV1().ReplicationControllers(limited.ns).Patch(t.Context(), "rc", types.MergePatchType,
		[]byte(`{"spec":{"replicas":2}}`), metav1.PatchOptions{})
	limited.must("scale down", err)
	waittest.Right(t, "the end of the failure", failing(false))
}
