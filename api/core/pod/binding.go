// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
)

// ValidateBinding checks what is sent to pods/binding.
func ValidateBinding(b *corev1.Binding) field.ErrorList {
	l := check.At(nil)
	l.In("target")
	if b.Target.Kind != "" && b.Target.Kind != "Node" {
		check.NotSupported(l, "kind", b.Target.Kind, "Node", "<empty>")
	}
	switch {
	case b.Target.Name == "":
		l.Required("name", "")
	case b.Target.Kind == "" || b.Target.Kind == "Node":
		l.Name("name", b.Target.Name, apivalidation.NameIsDNSSubdomain)
	}
	return l.Errors()
}

// Bind does to p what pods/binding asks for: it names the node, takes over the binding's annotations and labels and
// marks the pod scheduled. An error, in Kubernetes' words, means that p cannot be bound now (409 Conflict); p is then
// as it was.
func Bind(p *corev1.Pod, b *corev1.Binding) error {
	switch {
	case p.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", p.Name)
	case p.Spec.NodeName != "":
		return fmt.Errorf("pod %v is already assigned to node %q", p.Name, p.Spec.NodeName)
	case len(p.Spec.SchedulingGates) != 0:
		return fmt.Errorf("pod %v has non-empty .spec.schedulingGates", p.Name)
	}
	p.Spec.NodeName = b.Target.Name
	p.Status.NominatedNodeName = ""
	p.Annotations = overlay(p.Annotations, b.Annotations)
	p.Labels = overlay(p.Labels, b.Labels)
	scheduled := corev1.PodCondition{
		Type:               corev1.PodScheduled,
		Status:             corev1.ConditionTrue,
		LastTransitionTime: metav1.Now().Rfc3339Copy(),
	}
	conditions := slices.DeleteFunc(slices.Clone(p.Status.Conditions), func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled
	})
	p.Status.Conditions = append(conditions, scheduled)
	return nil
}

// Evicted is p with the reason why the eviction API ends it.
func Evicted(p *corev1.Pod) *corev1.Pod {
	next := p.DeepCopy()
	c := corev1.PodCondition{
		Type:               corev1.DisruptionTarget,
		Status:             corev1.ConditionTrue,
		Reason:             "EvictionByEvictionAPI",
		Message:            "Eviction API: evicting",
		LastTransitionTime: metav1.Now().Rfc3339Copy(),
	}
	old := Condition(next, c.Type)
	if old == nil {
		next.Status.Conditions = append(next.Status.Conditions, c)
		return next
	}
	if old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	*old = c
	return next
}

func overlay(under, over map[string]string) map[string]string {
	if len(over) == 0 {
		return under
	}
	sum := make(map[string]string, len(under)+len(over))
	maps.Copy(sum, under)
	maps.Copy(sum, over)
	return sum
}
