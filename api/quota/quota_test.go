// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func amountsOf(text string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for part := range strings.FieldsSeq(text) {
		k, v, _ := strings.Cut(part, "=")
		l[corev1.ResourceName(k)] = resource.MustParse(v)
	}
	return l
}

func podOf(requests, limits string) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name:      "main",
		Resources: corev1.ResourceRequirements{Requests: amountsOf(requests), Limits: amountsOf(limits)},
	}}}}
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// deviceClaim asks for two GPUs, three or one more or a big one, and all network cards.
func deviceClaim() *resourcev1.ResourceClaim {
	exact := func(class string, n int64) resourcev1.DeviceSubRequest {
		return resourcev1.DeviceSubRequest{
			DeviceClassName: class,
			AllocationMode:  resourcev1.DeviceAllocationModeExactCount,
			Count:           n,
		}
	}
	return &resourcev1.ResourceClaim{
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
			{
				Exactly: &resourcev1.ExactDeviceRequest{
					DeviceClassName: "gpu",
					AllocationMode:  resourcev1.DeviceAllocationModeExactCount,
					Count:           2,
				},
			},
			{FirstAvailable: []resourcev1.DeviceSubRequest{exact("gpu", 3), exact("big", 1), exact("gpu", 1)}},
			{
				Exactly: &resourcev1.ExactDeviceRequest{
					DeviceClassName: "nic",
					AllocationMode:  resourcev1.DeviceAllocationModeAll,
				},
			},
		}}},
	}
}

func TestUsage(t *testing.T) {
	ended := podOf("cpu=1", "")
	ended.Status.Phase = corev1.PodSucceeded
	dying := podOf("", "")
	gone := podOf("", "")
	at := metav1.NewTime(noon)
	grace := int64(30)
	dying.DeletionTimestamp = &at
	dying.DeletionGracePeriodSeconds = &grace
	before := metav1.NewTime(noon.Add(-31 * time.Second))
	gone.DeletionTimestamp = &before
	gone.DeletionGracePeriodSeconds = &grace
	no := false
	class := "gold"
	old := "old"
	service := func(kind corev1.ServiceType, own *bool, ports ...int32) *corev1.Service {
		s := &corev1.Service{Spec: corev1.ServiceSpec{Type: kind, AllocateLoadBalancerNodePorts: own}}
		for _, p := range ports {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{NodePort: p})
		}
		return s
	}
	claim := func(size, allocated string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &class,
				Resources:        corev1.VolumeResourceRequirements{Requests: amountsOf(size)},
			},
			Status: corev1.PersistentVolumeClaimStatus{AllocatedResources: amountsOf(allocated)},
		}
	}
	annotated := claim("", "")
	annotated.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: old}
	for _, tt := range []struct {
		name, resource string
		obj            runtime.Object
		want           string
	}{
		{
			"pod", "pods", podOf("cpu=1 memory=1Gi ephemeral-storage=2Gi hugepages-2Mi=4Mi example.com/gpu=2", "cpu=2"),
			"count/pods=1 pods=1 cpu=1 requests.cpu=1 limits.cpu=2 memory=1Gi requests.memory=1Gi " +
				"ephemeral-storage=2Gi requests.ephemeral-storage=2Gi " +
				"hugepages-2Mi=4Mi requests.hugepages-2Mi=4Mi requests.example.com/gpu=2",
		},
		{
			"pod with devices of a class", "pods", podOf("deviceclass.resource.kubernetes.io/gpu=2", ""),
			"count/pods=1 pods=1 requests.deviceclass.resource.kubernetes.io/gpu=2",
		},
		{"finished pod", "pods", ended, "count/pods=1"},
		{"pod within its grace", "pods", dying, "count/pods=1 pods=1"},
		{"pod past its grace", "pods", gone, "count/pods=1"},
		{
			"cluster ip", "services", service("ClusterIP", nil, 0),
			"count/services=1 services=1 services.nodeports=0 services.loadbalancers=0",
		},
		{
			"node port", "services", service("NodePort", nil, 0, 0),
			"count/services=1 services=1 services.nodeports=2 services.loadbalancers=0",
		},
		{
			"balancer", "services", service("LoadBalancer", nil, 0),
			"count/services=1 services=1 services.nodeports=1 services.loadbalancers=1",
		},
		{
			"balancer without ports", "services", service("LoadBalancer", &no, 0, 30001),
			"count/services=1 services=1 services.nodeports=1 services.loadbalancers=1",
		},
		{
			"claim", "persistentvolumeclaims", claim("storage=1.5", ""),
			"count/persistentvolumeclaims=1 persistentvolumeclaims=1 requests.storage=2 " +
				"gold.storageclass.storage.k8s.io/persistentvolumeclaims=1 " +
				"gold.storageclass.storage.k8s.io/requests.storage=2",
		},
		{
			"shrinking claim", "persistentvolumeclaims", claim("storage=1Gi", "storage=3Gi"),
			"count/persistentvolumeclaims=1 persistentvolumeclaims=1 requests.storage=3Gi " +
				"gold.storageclass.storage.k8s.io/persistentvolumeclaims=1 " +
				"gold.storageclass.storage.k8s.io/requests.storage=3Gi",
		},
		{
			"claim of an annotated class", "persistentvolumeclaims", annotated,
			"count/persistentvolumeclaims=1 persistentvolumeclaims=1 " +
				"old.storageclass.storage.k8s.io/persistentvolumeclaims=1",
		},
		{
			"claim of devices", "resourceclaims.resource.k8s.io", deviceClaim(),
			"count/resourceclaims.resource.k8s.io=1 gpu.deviceclass.resource.k8s.io/devices=5 " +
				"nic.deviceclass.resource.k8s.io/devices=32 big.deviceclass.resource.k8s.io/devices=1 " +
				"requests.deviceclass.resource.kubernetes.io/gpu=5 " +
				"requests.deviceclass.resource.kubernetes.io/nic=32 " +
				"requests.deviceclass.resource.kubernetes.io/big=1",
		},
		{
			"claim of nothing", "resourceclaims.resource.k8s.io", &resourcev1.ResourceClaim{},
			"count/resourceclaims.resource.k8s.io=1",
		},
		{"secret", "secrets", &corev1.Secret{}, "count/secrets=1 secrets=1"},
		{"deployment", "deployments.apps", nil, "count/deployments.apps=1"},
	} {
		got := MeterFor(schema.ParseGroupResource(tt.resource)).Usage(tt.obj, noon)
		if !Equal(got, amountsOf(tt.want)) {
			t.Errorf("%s: got %s, want %s", tt.name, Text(got), Text(amountsOf(tt.want)))
		}
	}
}

func TestScopes(t *testing.T) {
	deadline := int64(10)
	terminating := podOf("", "")
	high := podOf("", "")
	crossing := podOf("", "")
	terminating.Spec.ActiveDeadlineSeconds = &deadline
	high.Spec.PriorityClassName = "high"
	crossing.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
			{PodAffinityTerm: corev1.PodAffinityTerm{Namespaces: []string{"x"}}},
		},
	}}
	scope := func(
		name corev1.ResourceQuotaScope, op corev1.ScopeSelectorOperator, values ...string,
	) corev1.ScopedResourceSelectorRequirement {
		return corev1.ScopedResourceSelectorRequirement{ScopeName: name, Operator: op, Values: values}
	}
	for _, tt := range []struct {
		name string
		pod  *corev1.Pod
		sel  corev1.ScopedResourceSelectorRequirement
		want bool
	}{
		{"terminating", terminating, scope("Terminating", "Exists"), true},
		{"no deadline", high, scope("Terminating", "Exists"), false},
		{"not terminating", high, scope("NotTerminating", "Exists"), true},
		{"best effort", high, scope("BestEffort", "Exists"), true},
		{"burstable", podOf("cpu=1", ""), scope("BestEffort", "Exists"), false},
		{"not best effort", podOf("cpu=1", ""), scope("NotBestEffort", "Exists"), true},
		{"priority in", high, scope("PriorityClass", "In", "high", "low"), true},
		{"priority not in", high, scope("PriorityClass", "NotIn", "high"), false},
		{"priority exists", terminating, scope("PriorityClass", "Exists"), false},
		{"priority does not exist", terminating, scope("PriorityClass", "DoesNotExist"), true},
		{"crossing", crossing, scope("CrossNamespacePodAffinity", "Exists"), true},
		{"not crossing", high, scope("CrossNamespacePodAffinity", "Exists"), false},
	} {
		got, err := podMeter.In([]corev1.ScopedResourceSelectorRequirement{tt.sel}, tt.pod)
		if err != nil || got != tt.want {
			t.Errorf("%s: got %v, %v, want %v", tt.name, got, err, tt.want)
		}
	}
	if in, _ := MeterFor(schema.GroupResource{Resource: "secrets"}).In(
		[]corev1.ScopedResourceSelectorRequirement{scope("BestEffort", "Exists")}, &corev1.Secret{}); in {
		t.Error("a secret is in a scope of pods")
	}
}

func TestDelta(t *testing.T) {
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}}
	quota.Status.Hard = amountsOf("pods=2 cpu=2 secrets=1")
	quota.Status.Used = amountsOf("pods=1 cpu=1500m secrets=0")
	got, err := podMeter.Delta(quota, podOf("cpu=1", ""), nil, noon)
	if err != nil || !Equal(got, amountsOf("pods=1 cpu=1")) {
		t.Fatalf("got %s, %v", Text(got), err)
	}
	if err := Exceeded(quota, quota.Status.Used, got); err == nil ||
		err.Error() != "exceeded quota: q, requested: cpu=1, used: cpu=1500m, limited: cpu=2" {
		t.Errorf("exceeded: got %v", err)
	}
	if got, err := podMeter.Delta(quota, podOf("cpu=3", ""), podOf("cpu=1", ""), noon); err != nil ||
		!Equal(got, amountsOf("cpu=2")) {
		t.Errorf("update: got %s, %v", Text(got), err)
	}
	if got, err := podMeter.Delta(quota, podOf("cpu=1", ""), podOf("cpu=3", ""), noon); err != nil || len(got) != 0 {
		t.Errorf("update to less: got %s, %v", Text(got), err)
	}
	if _, err := podMeter.Delta(quota, podOf("", ""), nil, noon); err == nil ||
		err.Error() != "failed quota: q: must specify cpu for: main" {
		t.Errorf("without a request: got %v", err)
	}
	quota.Status.Used = nil
	if _, err := podMeter.Delta(quota, podOf("cpu=1", ""), nil, noon); err == nil ||
		err.Error() != "status unknown for quota: q, resources: cpu,pods" {
		t.Errorf("not counted yet: got %v", err)
	}
}
