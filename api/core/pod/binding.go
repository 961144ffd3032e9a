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
	errs := check.At(nil)
	errs.In("target")
	if b.Target.Kind != "" && b.Target.Kind != "Node" {
		check.NotSupported(errs, "kind", b.Target.Kind, "Node", "<empty>")
	}
	switch {
	case b.Target.Name == "":
		errs.Required("name", "")
	case b.Target.Kind == "" || b.Target.Kind == "Node":
		errs.Name("name", b.Target.Name, apivalidation.NameIsDNSSubdomain)
	}
	return errs.Errors()
}

// Bind does to pod what pods/binding asks for: it names the node, takes over the binding's annotations and labels and
// marks the pod scheduled. An error, in Kubernetes' words, means that pod cannot be bound now (409 Conflict), and
// leaves pod unchanged.
func Bind(pod *corev1.Pod, binding *corev1.Binding) error {
	switch {
	case pod.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return fmt.Errorf("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) != 0:
		return fmt.Errorf("pod %v has non-empty .spec.schedulingGates", pod.Name)
	}
	pod.Spec.NodeName = binding.Target.Name
	pod.Status.NominatedNodeName = ""
	pod.Annotations = overlay(pod.Annotations, binding.Annotations)
	pod.Labels = overlay(pod.Labels, binding.Labels)
	scheduled := corev1.PodCondition{
		Type:               corev1.PodScheduled,
		Status:             corev1.ConditionTrue,
		LastTransitionTime: metav1.Now().Rfc3339Copy(),
	}
	conditions := slices.DeleteFunc(slices.Clone(pod.Status.Conditions), func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled
	})
	pod.Status.Conditions = append(conditions, scheduled)
	return nil
}

// Evicted is p with the reason why the eviction API ends it.
func Evicted(p *corev1.Pod) *corev1.Pod {
	next := p.DeepCopy()
	podCondition := corev1.PodCondition{
		Type:               corev1.DisruptionTarget,
		Status:             corev1.ConditionTrue,
		Reason:             "EvictionByEvictionAPI",
		Message:            "Eviction API: evicting",
		LastTransitionTime: metav1.Now().Rfc3339Copy(),
	}
	old := Condition(next, podCondition.Type)
	if old == nil {
		next.Status.Conditions = append(next.Status.Conditions, podCondition)
		return next
	}
	if old.Status == podCondition.Status {
		podCondition.LastTransitionTime = old.LastTransitionTime
	}
	*old = podCondition
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
