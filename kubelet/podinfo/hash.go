// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Hash changes when a running container must be replaced: of all its fields only the image may change in a living pod.
func Hash(c *corev1.Container) string { return hash(c.Name, c.Image) }

// ResourcesHash changes when a container's cgroup must be given new limits.
func ResourcesHash(pod *corev1.Pod, c *corev1.Container) string {
	var parts []string
	for _, l := range []corev1.ResourceList{c.Resources.Requests, Limits(pod, c)} {
		for _, name := range slices.Sorted(maps.Keys(l)) {
			q := l[name]
			parts = append(parts, string(name)+"="+fmt.Sprint(q.MilliValue()))
		}
		parts = append(parts, ";")
	}
	return hash(strings.Join(parts, ","))
}

// Limits returns the limits of a container. The pod's own limits apply where the container has none.
func Limits(pod *corev1.Pod, c *corev1.Container) corev1.ResourceList {
	if pod.Spec.Resources == nil || len(pod.Spec.Resources.Limits) == 0 {
		return c.Resources.Limits
	}
	merged := pod.Spec.Resources.Limits.DeepCopy()
	maps.Copy(merged, c.Resources.Limits)
	return merged
}

// HasOwnResources reports whether the pod as a whole has requests or limits (KEP-2837).
func HasOwnResources(pod *corev1.Pod) bool {
	return pod.Spec.Resources != nil && len(pod.Spec.Resources.Requests)+len(pod.Spec.Resources.Limits) > 0
}

func hash(parts ...string) string {
	h := fnv.New32a()
	for _, p := range parts {
		_, _ = h.Write([]byte(p)) // cannot fail
		_, _ = h.Write([]byte{0})
	}
	return fmt.Sprintf("%x", h.Sum32())
}
