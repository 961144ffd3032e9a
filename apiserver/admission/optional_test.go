// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestPodResize(t *testing.T) {
	node := func(name, system string) runtime.Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: system}}, Status: corev1.NodeStatus{Allocatable: quantities("cpu", "1", "memory", "1Gi")}}
	}
	p := PodResizeValidator{cacheOf(map[schema.GroupVersionResource][]runtime.Object{nodes: {node("linux", "linux"), node("other", "windows")}})}
	resize := func(nodeName, cpu, memory string, generation int64) error {
		obj := pod()
		obj.Spec.NodeName, obj.Generation = nodeName, 2
		obj.Spec.Containers[0].Resources.Requests = quantities("cpu", cpu, "memory", memory)
		old := obj.DeepCopy()
		old.Generation = generation
		return p.Validate(t.Context(), &Request{Operation: Update, Resource: pods, Subresource: "resize", Name: "p", Object: obj, OldObject: old})
	}
	for what, err := range map[string]error{
		"fits": resize("linux", "1", "1Gi", 1), "not bound": resize("", "9", "9Gi", 1), "not changed": resize("linux", "9", "9Gi", 2),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	wantForbidden(t, "too much", resize("linux", "2", "2Gi", 1), "node didn't have enough allocatable resources: cpu, requested: 2000, allocatable: 1000; memory, requested: 2147483648, allocatable: 1073741824")
	wantForbidden(t, "another system", resize("other", "1", "1Gi", 1), `pod resize is only supported on linux nodes, node "other" is "windows"`)
	for cause, err := range map[metav1.CauseType]error{"NodeCapacity": resize("linux", "2", "1Gi", 1), "UnsupportedPlatform": resize("other", "9", "1Gi", 1)} {
		s, ok := errors.AsType[*apierrors.StatusError](err)
		if !ok || len(s.ErrStatus.Details.Causes) != 1 || s.ErrStatus.Details.Causes[0].Type != cause {
			t.Errorf("got %v, want the cause %s", err, cause)
		}
	}
	wantForbidden(t, "no such node", resize("gone", "1", "1Gi", 1), `node "gone" not found`)
}

// TestDeclaredFeatures: a bound pod changes only as its node declares that it can.
func TestDeclaredFeatures(t *testing.T) {
	node := func(name string, features ...string) runtime.Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{DeclaredFeatures: features}}
	}
	const whole, inits = "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers"
	p := NodeDeclaredFeatureValidator{cacheOf(map[schema.GroupVersionResource][]runtime.Object{nodes: {node("old"), node("half", inits), node("new", whole, inits)}})}
	resize := func(nodeName string, change func(*corev1.Pod)) error {
		old := pod()
		old.Spec.NodeName, old.Generation = nodeName, 1
		old.Spec.InitContainers = []corev1.Container{{Name: "i"}}
		old.Spec.Resources = &corev1.ResourceRequirements{Requests: quantities("cpu", "1")}
		obj := old.DeepCopy()
		obj.Generation = 2
		change(obj)
		return p.Validate(t.Context(), &Request{Operation: Update, Resource: pods, Subresource: "resize", Name: "p", Object: obj, OldObject: old})
	}
	both := func(p *corev1.Pod) {
		p.Spec.Resources.Requests = quantities("cpu", "2")
		p.Spec.InitContainers[0].Resources.Requests = quantities("cpu", "2")
	}
	for what, err := range map[string]error{
		"declared": resize("new", both), "not bound": resize("", both),
		"a container": resize("old", func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = quantities("cpu", "1") }),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	wantForbidden(t, "half", resize("half", both), `pod update requires features `+whole+` which are not available on node "half"`)
	wantForbidden(t, "neither", resize("old", both), `pod update requires features `+whole+`, `+inits+` which are not available on node "old"`)
	wantForbidden(t, "no such node", resize("gone", both), `node "gone" not found`)
}

func TestOffByDefault(t *testing.T) {
	wantForbidden(t, "always deny", AlwaysDeny{}.Validate(t.Context(), creation(pod())), "admission control is denying all modifications")
	empty := cacheOf(map[schema.GroupVersionResource][]runtime.Object{})
	if err := (NamespaceExists{empty}).Validate(t.Context(), creation(pod())); !apierrors.IsNotFound(err) {
		t.Errorf("no such namespace: got %v", err)
	}
	there := cacheOf(map[schema.GroupVersionResource][]runtime.Object{namespaces: {&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "dev"}}}})
	if err := (NamespaceExists{there}).Validate(t.Context(), creation(pod())); err != nil {
		t.Errorf("namespace: %v", err)
	}
	far := pod()
	far.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname}}}}
	if err := (LimitPodHardAntiAffinityTopology{}).Validate(t.Context(), creation(far)); err != nil {
		t.Errorf("by node: %v", err)
	}
	far.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].TopologyKey = "zone"
	wantForbidden(t, "by zone", LimitPodHardAntiAffinityTopology{}.Validate(t.Context(), creation(far)),
		"affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey zone but only key kubernetes.io/hostname is allowed")
	wants := pod()
	wants.Spec.Containers[0].Resources.Requests = quantities("example.com/b", "1", "example.com/a", "1", "cpu", "1")
	for range 2 { // the second time changes nothing
		if err := (ExtendedResourceToleration{}).Admit(t.Context(), creation(wants)); err != nil {
			t.Fatal(err)
		}
		if got := wants.Spec.Tolerations; len(got) != 2 || got[0].Key != "example.com/a" || got[1].Key != "example.com/b" || got[0].Effect != corev1.TaintEffectNoSchedule {
			t.Errorf("tolerations: got %v", got)
		}
	}
}
