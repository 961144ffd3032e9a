// SPDX-License-Identifier: Apache-2.0

package plugins

import (
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

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/admissiontest"
)

// TestPluginsTellWhatTheyChange: what a plugin says of a request is what it did to the object, no more and no less.
func TestPluginsTellWhatTheyChange(t *testing.T) {
	reader := admissiontest.ReaderOf(map[schema.GroupVersionResource][]runtime.Object{
		admission.Namespaces: {&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: "dev",
			Annotations: map[string]string{
				namespaceTolerations: `[{"key":"team","operator":"Exists"}]`,
			},
		}}},
		admission.ServiceAccounts: {&corev1.ServiceAccount{
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
		admission.Nodes: {
			&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelTopologyZone: "z"}},
			},
		},
	})
	plugins := []admission.Mutator{
		serviceAccount{Reader: reader},
		defaultTolerationSeconds{},
		priority{Reader: reader},
		runtimeClass{
			Reader: reader,
		},
		limitRanger{Reader: reader},
		podTopologyLabels{Reader: reader},
		alwaysPullImages{},
		extendedResourceToleration{},
		podNodeSelector{Reader: reader, Selectors: map[string]string{DefaultNodeSelector: "env=test"}},
		podTolerationRestriction{Reader: reader},
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
		obj := admissiontest.Pod()
		edit(obj)
		for round := range 2 { // in the second there is nothing left to change
			for _, mutator := range plugins {
				before := obj.DeepCopy()
				r := admissiontest.Creation(obj)
				if err := admission.NewChain(nil, mutator).Mutate(t.Context(), r, nil); err != nil {
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
				if did := coarse(before, obj); !slices.Equal(slices.Compact(reported), did) {
					t.Errorf("%s, round %d: %s reports changes of %q, and changed %q", what, round+1, mutator.Name(),
						reported,
						did)
				}
			}
		}
	}
}

// coarse names what differs in two levels, as plugins do that know what they change.
func coarse(before, after runtime.Object) []string {
	var out []string
	for _, field := range admission.ChangedFields(before, after) {
		field, _, _ = strings.Cut(field, "[")
		parts := strings.SplitN(field, ".", 3)
		out = append(out, strings.Join(parts[:min(2, len(parts))], "."))
	}
	slices.Sort(out)
	return slices.Compact(out)
}
