// SPDX-License-Identifier: Apache-2.0

package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"keelson/api/batch"
)

// policyResult is the result of the podFailurePolicy for a failed pod.
type policyResult struct {
	// action of the matching rule; "": none matches.
	action batchv1.PodFailurePolicyAction
	// message is the reason for the action FailJob.
	message string
}

// countsAsFailure reports whether the failure counts towards the back-off limits.
func (r policyResult) countsAsFailure() bool { return r.action != batchv1.PodFailurePolicyActionIgnore }

// matchPodFailurePolicy returns the first rule that matches a failed pod. No policy is the same as no match.
func matchPodFailurePolicy(policy *batchv1.PodFailurePolicy, pod *corev1.Pod) policyResult {
	if policy == nil {
		return policyResult{}
	}
	for i := range policy.Rules {
		r := &policy.Rules[i]
		if c := matchOnExitCodes(pod, r.OnExitCodes); c != nil {
			return policyResult{
				r.Action,
				fmt.Sprintf("Container %s for pod %s/%s failed with exit code %v matching %v rule at index %d",
					c.Name, pod.Namespace, pod.Name, c.State.Terminated.ExitCode, r.Action, i),
			}
		}
		if t := matchOnPodConditions(pod, r.OnPodConditions); t != "" {
			return policyResult{r.Action, fmt.Sprintf("Pod %s/%s has condition %v matching %v rule at index %d",
				pod.Namespace, pod.Name, t, r.Action, i)}
		}
	}
	return policyResult{}
}

// matchOnExitCodes returns a container whose exit code matches the rule; 0 never matches.
func matchOnExitCodes(
	p *corev1.Pod, requirement *batchv1.PodFailurePolicyOnExitCodesRequirement,
) *corev1.ContainerStatus {
	if requirement == nil {
		return nil
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for i := range list {
			t := list[i].State.Terminated
			if t == nil || t.ExitCode == 0 ||
				requirement.ContainerName != nil && *requirement.ContainerName != list[i].Name {
				continue
			}
			in := slices.Contains(requirement.Values, t.ExitCode)
			if requirement.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn && in ||
				requirement.Operator == batchv1.PodFailurePolicyOnExitCodesOpNotIn && !in {
				return &list[i]
			}
		}
	}
	return nil
}

// matchOnPodConditions is the type of a condition that matches one of the patterns, or "".
func matchOnPodConditions(
	p *corev1.Pod, patterns []batchv1.PodFailurePolicyOnPodConditionsPattern,
) corev1.PodConditionType {
	for _, c := range p.Status.Conditions {
		for _, pattern := range patterns {
			if c.Type == pattern.Type && c.Status == pattern.Status {
				return c.Type
			}
		}
	}
	return ""
}

// matchSuccessPolicy returns the rule of the successPolicy that the completed indexes satisfy.
func matchSuccessPolicy(
	policy *batchv1.SuccessPolicy, completed batch.Indexes, completions int32,
) (message string, met bool) {
	if policy == nil || len(completed) == 0 {
		return "", false
	}
	for i, r := range policy.Rules {
		n := completed.Count()
		enough := r.SucceededCount != nil && n >= *r.SucceededCount
		if r.SucceededIndexes != nil {
			required := batch.ReadIndexes(*r.SucceededIndexes, completions)
			if len(required) == 0 {
				continue
			}
			n = completed.Common(required)
			enough = n == required.Count() || r.SucceededCount != nil && n >= *r.SucceededCount
		}
		if enough {
			return fmt.Sprintf("Matched rules at index %d", i), true
		}
	}
	return "", false
}
