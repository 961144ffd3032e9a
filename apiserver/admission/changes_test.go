// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestPluginsTellWhatTheyChange: what a plugin says of a request is what it did to the object, no more and no less.
func TestPluginsTellWhatTheyChange(t *testing.T) {
	reader := cacheOf(map[schema.GroupVersionResource][]runtime.Object{
		namespaces: {&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: "dev",
			Annotations: map[string]string{
				namespaceTolerations: `[{"key":"team","operator":"Exists"}]`,
			},
		}}},
		serviceAccounts: {&corev1.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "dev",
				Name:      "default",
			},
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "reg"}},
		}},
		limitRanges: {&corev1.LimitRange{
			ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "l"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
				Type:           corev1.LimitTypeContainer,
				DefaultRequest: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
			}}},
		}},
		runtimeClasses: {&nodev1.RuntimeClass{
			ObjectMeta: metav1.ObjectMeta{Name: "boxed"},
			Overhead:   &nodev1.Overhead{PodFixed: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
			Scheduling: &nodev1.Scheduling{
				NodeSelector: map[string]string{"boxed": "yes"},
				Tolerations:  []corev1.Toleration{{Key: "boxed", Operator: corev1.TolerationOpExists}},
			},
		}},
		priorityClasses: {
			&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 7, GlobalDefault: true},
		},
		nodes: {
			&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelTopologyZone: "z"}},
			},
		},
	})
	plugins := []Mutator{
		ServiceAccount{Reader: reader},
		DefaultTolerationSeconds{},
		Priority{Reader: reader},
		RuntimeClass{
			Reader: reader,
		},
		LimitRanger{Reader: reader},
		PodTopologyLabels{Reader: reader},
		AlwaysPullImages{},
		ExtendedResourceToleration{},
		PodNodeSelector{Reader: reader, Selectors: map[string]string{DefaultNodeSelector: "env=test"}},
		PodTolerationRestriction{Reader: reader},
	}
	boxed := "boxed"
	want := corev1.ResourceList{"example.com/gpu": resource.MustParse("1"), corev1.ResourceCPU: resource.MustParse("1")}
	for what, edit := range map[string]func(*corev1.Pod){
		"a plain pod": func(*corev1.Pod) {},
		"a pod with much of its own": func(p *corev1.Pod) {
			p.Spec.RuntimeClassName = &boxed
			p.Spec.NodeName = "n"
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: want, Limits: want}
		},
	} {
		obj := pod()
		edit(obj)
		for round := range 2 { // in the second there is nothing left to change
			for _, mutator := range plugins {
				before := obj.DeepCopy()
				r := creation(obj)
				if err := NewChain(nil, mutator).Mutate(t.Context(), r, nil); err != nil {
					t.Fatalf("%s, %s: %v", what, mutator.Name(), err)
				}
				var reported []string
				for _, c := range r.Changes() {
					if c.By != mutator.Name() {
						t.Errorf("%s: a change by %s is reported as by %s", what, mutator.Name(), c.By)
					}
					field, _, _ := strings.Cut(c.Field, "[")
					reported = append(reported, field)
				}
				slices.Sort(reported)
				if did := coarse(t, before, obj); !slices.Equal(slices.Compact(reported), did) {
					t.Errorf("%s, round %d: %s reports changes of %q, and changed %q", what, round+1, mutator.Name(),
						reported,
						did)
				}
			}
		}
	}
}

func TestChangesAreBounded(t *testing.T) {
	r := creation(pod())
	for i := range 1000 {
		r.ChangedBy("webhook w", "spec."+strings.Repeat("x", i))
	}
	if got := len(r.Changes()); got != maxChanges {
		t.Errorf("%d changes kept, want %d", got, maxChanges)
	}
}

// coarse names what differs in two levels, as plugins do that know what they change.
func coarse(t *testing.T, before, after runtime.Object) []string {
	was, err := runtime.DefaultUnstructuredConverter.ToUnstructured(before)
	if err != nil {
		t.Fatal(err)
	}
	is, err := runtime.DefaultUnstructuredConverter.ToUnstructured(after)
	if err != nil {
		t.Fatal(err)
	}
	return changedFields(was, is, 2)
}

// TestChangedFieldsAreLeaves: what a webhook changed is named to the leaf, in few and short words.
func TestChangedFieldsAreLeaves(t *testing.T) {
	many := map[string]string{}
	for i := range 100 {
		many[fmt.Sprintf("k%d", i)] = "v"
	}
	limits := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	for what, c := range map[string]struct {
		edit func(*corev1.Pod)
		want []string
	}{
		"nothing": {func(*corev1.Pod) {}, nil},
		"a label": {
			func(p *corev1.Pod) { p.Labels = map[string]string{"team": "a"} }, []string{"metadata.labels[team]"},
		},
		"a limit": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = limits
		}, []string{"spec.containers[main].resources.limits[cpu]"}},
		"an image": {
			func(p *corev1.Pod) { p.Spec.Containers[0].Image = "other" }, []string{"spec.containers[main].image"},
		},
		"a sidecar": {func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "proxy", Image: "i"})
		}, []string{"spec.containers[proxy]"}},
		"arguments": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Args = []string{"a", "b"}
		}, []string{"spec.containers[main].args"}},
		"a struct": {func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{
				RunAsNonRoot: new(true),
			}
		}, []string{"spec.securityContext.runAsNonRoot"}},
		"many": {func(p *corev1.Pod) {
			p.Annotations = many
			p.Spec.NodeName = "n"
		}, []string{"metadata.annotations", "spec.nodeName"}},
		"long": {func(p *corev1.Pod) { p.Labels = map[string]string{strings.Repeat("ä", 300): ""} }, []string{
			"metadata.labels[" + strings.Repeat("ä", 72) + "...",
		}},
		"an escape": {func(p *corev1.Pod) {
			p.Labels = map[string]string{"\x1b[2J": ""}
		}, []string{`metadata.labels["\x1b[2J"]`}},
		"alike ones": {func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: "a"}, {Key: "a", Effect: "NoExecute"}}
		}, []string{"spec.tolerations"}},
	} {
		before := pod()
		after := before.DeepCopy()
		c.edit(after)
		if got := ChangedFields(before, after); !slices.Equal(got, c.want) {
			t.Errorf("%s: changed %q, want %q", what, got, c.want)
		}
	}
}
