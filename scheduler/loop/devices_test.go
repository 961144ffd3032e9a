// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"keelson/scheduler/config"
	"keelson/scheduler/loop"
	"keelson/scheduler/schedtest"
)

// withDevices is a scheduler whose server has resource.k8s.io, a node with one GPU, and a class of GPUs.
func withDevices(t *testing.T) *cluster {
	t.Helper()
	node := "a"
	return startWith(t, func(c *loop.Config) { schedtest.ServeDevices(c.Client) }, schedtest.Node(node),
		&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}},
		&resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "a-gpus"},
			Spec: resourcev1.ResourceSliceSpec{
				Driver:   "gpu.example.com",
				NodeName: &node,
				Pool:     resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
				Devices:  []resourcev1.Device{{Name: "gpu-0"}},
			},
		})
}

// TestDevices: two pods want one device. The second learns why it waits, and gets it when the first claim is given up.
func TestDevices(t *testing.T) {
	cluster := withDevices(t)
	pods := cluster.CoreV1().Pods("default")
	claims := cluster.ResourceV1().ResourceClaims("default")
	for _, name := range []string{"one", "two"} {
		if _, err := claims.Create(t.Context(), schedtest.GPU(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := pods.Create(t.Context(),
			schedtest.Pod(name, schedtest.Wanting(corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &name})),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if name == "one" {
			cluster.eventually("one", bound)
		}
	}
	had, err := claims.Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil || had.Status.Allocation == nil || had.Status.Allocation.Devices.Results[0].Device != "gpu-0" ||
		len(had.Status.ReservedFor) != 1 ||
		had.Status.ReservedFor[0].Name != "one" || len(had.Finalizers) != 1 {
		t.Fatalf("the first one's claim: %+v %v", had, err)
	}
	second := cluster.eventually("two", func(p *corev1.Pod) bool { // the scheduler may see the pod before its claim
		s := scheduledCondition(p)
		return s != nil && strings.Contains(s.Message, "1 cannot allocate all claims")
	})
	if bound(second) {
		t.Errorf("the second: %+v", second)
	}
	had.Status = resourcev1.ResourceClaimStatus{}
	if _, err := claims.UpdateStatus(t.Context(), had, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.eventually("two", bound)
}

// TestGeneratedClaims: a pod waits without a word until its claim is made, and no longer.
func TestGeneratedClaims(t *testing.T) {
	cluster := withDevices(t)
	pods := cluster.CoreV1().Pods("default")
	claims := cluster.ResourceV1().ResourceClaims("default")
	template := "gpus"
	name := "p-gpu-abcde"
	pod, err := pods.Create(t.Context(), schedtest.Pod("p",
		schedtest.Wanting(corev1.PodResourceClaim{Name: "gpu", ResourceClaimTemplateName: &template})), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &name}}
	if pod, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	own := schedtest.GPU(name)
	own.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod")),
	}
	if _, err := claims.Create(t.Context(), own, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := cluster.eventually("p", bound); scheduledCondition(got) != nil {
		t.Errorf("it was refused first: %+v", scheduledCondition(got))
	}
}

// TestNoDevices: on a server without the kinds other pods are scheduled, and one with claims gets the reason.
func TestNoDevices(t *testing.T) {
	cluster := start(t, schedtest.Node("a"))
	name := "c"
	for _, p := range []*corev1.Pod{
		schedtest.Pod("plain"),
		schedtest.Pod("p", schedtest.Wanting(corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &name})),
	} {
		if _, err := cluster.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	cluster.eventually("plain", bound)
	p := cluster.eventually("p", func(p *corev1.Pod) bool { return scheduledCondition(p) != nil })
	if got := scheduledCondition(p).Message; !strings.Contains(got, "the API server has no resource claims") {
		t.Errorf("the condition says %q", got)
	}
}

// TestHardSearch: a claim whose search would take an hour is searched for outside the loop. No other pod waits, and
// neither does the scheduler's end.
func TestHardSearch(t *testing.T) {
	node := "a"
	claim := "hard"
	part := resourcev1.FullyQualifiedName("gpu.example.com/part")
	hard := schedtest.GPU(claim)
	hard.Spec.Devices.Requests = nil
	for i := range 32 { // 2,560 devices of 31 parts: no 32 of different ones
		one := *schedtest.GPU(claim).Spec.Devices.Requests[0].DeepCopy()
		one.Name = fmt.Sprint("r", i)
		hard.Spec.Devices.Requests = append(hard.Spec.Devices.Requests, one)
	}
	hard.Spec.Devices.Constraints = []resourcev1.DeviceConstraint{{DistinctAttribute: &part}}
	objs := []runtime.Object{
		schedtest.Node(node), &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}, hard,
	}
	for i := range 20 {
		resourceSlice := &resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s", i)},
			Spec: resourcev1.ResourceSliceSpec{
				Driver:   "gpu.example.com",
				NodeName: &node,
				Pool:     resourcev1.ResourcePool{Name: node, ResourceSliceCount: 20},
			},
		}
		for d := range resourcev1.ResourceSliceMaxDevices {
			value := fmt.Sprint(d % 31)
			resourceSlice.Spec.Devices = append(resourceSlice.Spec.Devices, resourcev1.Device{
				Name:       fmt.Sprintf("d%d-%d", i, d),
				Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"part": {StringValue: &value}},
			})
		}
		objs = append(objs, resourceSlice)
	}
	cluster := startWith(t, func(c *loop.Config) {
		schedtest.ServeDevices(c.Client)
		c.Configuration = config.Default()
		c.Configuration.Profiles[0].Args["DynamicResources"] = &configv1.DynamicResourcesArgs{
			FilterTimeout:  &metav1.Duration{Duration: time.Hour},
			BindingTimeout: &metav1.Duration{Duration: time.Hour},
		}
	}, objs...)
	for _, p := range []*corev1.Pod{
		schedtest.Pod("p", schedtest.Wanting(corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &claim})),
		schedtest.Pod("plain"),
	} {
		if _, err := cluster.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if p.Name == "plain" {
			cluster.eventually("plain", bound)
			continue
		}
		cluster.eventually("p", func(p *corev1.Pod) bool {
			s := scheduledCondition(p)
			return s != nil &&
				strings.Contains(s.Message, "1 the search for devices takes long and continues while other pods are scheduled")
		})
	}
}

// TestGangSharesADevice: the pods of a gang have one claim, which is not allocated. All of them are bound at once.
func TestGangSharesADevice(t *testing.T) {
	node := "a"
	shared := "shared"
	objects := append(schedtest.Members("g", 3, "100m",
		schedtest.Wanting(corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: &shared})),
		schedtest.Gang("g", 3), schedtest.Node(node), schedtest.GPU(shared),
		&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}},
		&resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "a-gpus"},
			Spec: resourcev1.ResourceSliceSpec{
				Driver:   "gpu.example.com",
				NodeName: &node,
				Pool:     resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
				Devices:  []resourcev1.Device{{Name: "gpu-0"}},
			},
		})
	cluster := startWith(t, func(c *loop.Config) {
		groups(c)
		schedtest.ServeDevices(c.Client)
	}, objects...)
	for i := range 3 {
		cluster.eventually(fmt.Sprint("g-", i), bound)
	}
	had, err := cluster.ResourceV1().ResourceClaims("default").Get(t.Context(), shared, metav1.GetOptions{})
	if err != nil || had.Status.Allocation == nil {
		t.Errorf("the claim: %+v, %v", had, err)
	}
}
