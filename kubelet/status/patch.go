// SPDX-License-Identifier: Apache-2.0

package status

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// Patch is the strategic merge patch for pods/status that brings a pod from its status to next, for this version of the
// pod only: others may have written what the patch does not mention, such as the phase Failed. It is nil when there is
// nothing to change. Lists that merge by key are left alone where they are equal, so others'
// conditions are never touched.
func Patch(pod *corev1.Pod, next *corev1.PodStatus) ([]byte, error) {
	before, err := json.Marshal(corev1.Pod{Status: pod.Status})
	if err != nil {
		return nil, fmt.Errorf("encode status of %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	after, err := json.Marshal(corev1.Pod{Status: *next})
	if err != nil {
		return nil, fmt.Errorf("encode new status of %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	diff, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("compare statuses of %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if string(diff) == "{}" {
		return nil, nil
	}
	var m map[string]any
	if err := json.Unmarshal(diff, &m); err != nil {
		return nil, fmt.Errorf("read status patch of %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	metadata := map[string]any{"uid": string(pod.UID)}
	if pod.ResourceVersion != "" {
		metadata["resourceVersion"] = pod.ResourceVersion
	}
	m["metadata"] = metadata
	return json.Marshal(m)
}

// Ready reports whether the Ready condition is true.
func Ready(s *corev1.PodStatus) bool {
	return slices.ContainsFunc(s.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
