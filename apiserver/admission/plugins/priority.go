// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/apiserver/admission"
)

var priorityClasses = schedulingv1.SchemeGroupVersion.WithResource("priorityclasses")

// priority resolves the priorityClassName of a pod to its priority and preemption policy, and that of a pod group to
// its priority. It also prevents a second global default class.
type priority struct{ Reader admission.Reader }

func (priority) Name() string { return "Priority" }

// Admit sets spec.priority and spec.preemptionPolicy of new pods.
func (p priority) Admit(ctx context.Context, req *admission.Request) error {
	group, ok := req.Object.(*schedulingv1beta1.PodGroup)
	if ok && req.Operation == admission.Create && req.Subresource == "" {
		return p.admitGroup(ctx, req, group)
	}
	pod, err := podIn(req, admission.Create, admission.Update)
	if pod == nil {
		return err
	}
	if req.Operation == admission.Update {
		old, ok := req.OldObject.(*corev1.Pod)
		if ok && pod.Spec.Priority == nil && old.Spec.Priority != nil &&
			pod.Spec.PriorityClassName == old.Spec.PriorityClassName {
			pod.Spec.Priority = old.Spec.Priority
			req.Changed("spec.priority")
		}
		if ok && pod.Spec.PreemptionPolicy == nil && old.Spec.PreemptionPolicy != nil {
			pod.Spec.PreemptionPolicy = old.Spec.PreemptionPolicy
			req.Changed("spec.preemptionPolicy")
		}
		return nil
	}
	value, policy, err := p.classOf(ctx, req, &pod.Spec.PriorityClassName)
	if err != nil {
		return err
	}
	if pod.Spec.Priority != nil && *pod.Spec.Priority != value {
		return admission.Forbidden(req,
			"the integer value of priority (%d) must not be provided in pod spec; priority "+
				"admission "+
				"controller computed %d from the given PriorityClass name", *pod.Spec.Priority, value)
	}
	if pod.Spec.Priority == nil {
		req.Changed("spec.priority")
	}
	pod.Spec.Priority = &value
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy != policy {
		return admission.Forbidden(req,
			"the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission "+
				"controller computed %s from the given PriorityClass name", *pod.Spec.PreemptionPolicy, policy)
	}
	if pod.Spec.PreemptionPolicy == nil {
		req.Changed("spec.preemptionPolicy")
	}
	pod.Spec.PreemptionPolicy = &policy
	return nil
}

// classOf returns the named class, or the default one, whose name it sets.
func (p priority) classOf(ctx context.Context, req *admission.Request, name *string) (int32, corev1.PreemptionPolicy, error) {
	if *name == "" {
		pc, err := p.defaultClass(ctx)
		if err != nil || pc == nil {
			return 0, corev1.PreemptLowerPriority, err
		}
		*name = pc.Name
		req.Changed("spec.priorityClassName")
		return pc.Value, policyOf(pc), nil
	}
	pc, err := admission.Get[*schedulingv1.PriorityClass](ctx, p.Reader, priorityClasses, "", *name)
	if admission.IsNotFound(err) {
		return 0, "", admission.Forbidden(req, "no PriorityClass with name %v was found", *name)
	}
	if err != nil {
		return 0, "", err
	}
	return pc.Value, policyOf(pc), nil
}

// admitGroup sets the priority of a new pod group.
func (p priority) admitGroup(ctx context.Context, r *admission.Request, podGroup *schedulingv1beta1.PodGroup) error {
	value, _, err := p.classOf(ctx, r, &podGroup.Spec.PriorityClassName)
	if err != nil {
		return err
	}
	if had := podGroup.Spec.Priority; had != nil && *had != value {
		return admission.Forbidden(r,
			"priority set in the pod group (%d) must match the priority computed (%d) based on the "+
				"priority class set in the spec", *had, value)
	}
	if podGroup.Spec.Priority == nil {
		r.Changed("spec.priority")
	}
	podGroup.Spec.Priority = &value
	return nil
}

func policyOf(pc *schedulingv1.PriorityClass) corev1.PreemptionPolicy {
	if pc.PreemptionPolicy == nil {
		return corev1.PreemptLowerPriority
	}
	return *pc.PreemptionPolicy
}

// defaultClass is the global default class with the lowest value; nil if there is none.
func (p priority) defaultClass(ctx context.Context) (*schedulingv1.PriorityClass, error) {
	all, err := admission.List[*schedulingv1.PriorityClass](ctx, p.Reader, priorityClasses, "")
	if err != nil {
		return nil, err
	}
	var found *schedulingv1.PriorityClass
	for _, pc := range all {
		if pc.GlobalDefault && (found == nil || pc.Value < found.Value) {
			found = pc
		}
	}
	return found, nil
}

// Validate rejects a second global default class.
func (p priority) Validate(ctx context.Context, req *admission.Request) error {
	if req.Resource != priorityClasses || req.Subresource != "" ||
		req.Operation != admission.Create && req.Operation != admission.Update {
		return nil
	}
	pc, ok := req.Object.(*schedulingv1.PriorityClass)
	if !ok {
		return apierrors.NewBadRequest("resource was marked with kind PriorityClass but was unable to be converted")
	}
	if !pc.GlobalDefault {
		return nil
	}
	d, err := p.defaultClass(ctx)
	if err != nil || d == nil {
		return err
	}
	if req.Operation == admission.Create || d.Name != pc.Name {
		return admission.Forbidden(req,
			"PriorityClass %v is already marked as default. Only one default can exist", d.Name)
	}
	return nil
}
