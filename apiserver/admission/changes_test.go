// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestChangesAreBounded(t *testing.T) {
	r := &Request{}
	for i := range 1000 {
		r.ChangedBy("webhook w", "spec."+strings.Repeat("x", i))
	}
	if got := len(r.Changes()); got != maxChanges {
		t.Errorf("%d changes kept, want %d", got, maxChanges)
	}
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
		before := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}
		after := before.DeepCopy()
		c.edit(after)
		if got := ChangedFields(before, after); !slices.Equal(got, c.want) {
			t.Errorf("%s: changed %q, want %q", what, got, c.want)
		}
	}
}
