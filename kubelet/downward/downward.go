// SPDX-License-Identifier: Apache-2.0

// Package downward returns the values of the downward API: fields of a pod, and resources of a container.
// Environment variables and volumes use it. Pure functions.
package downward

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Field is the value at a field path of the pod. The addresses are passed because a starting pod's status does not have
// them yet.
func Field(pod *corev1.Pod, path string, podIPs, hostIPs []string) (string, error) {
	if base, key, ok := splitSubscript(path); ok {
		switch base {
		case "metadata.labels":
			return pod.Labels[key], nil
		case "metadata.annotations":
			return pod.Annotations[key], nil
		}
		return "", fmt.Errorf("unsupported fieldPath: %s", path)
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(hostIPs), nil
	case "status.hostIPs":
		return strings.Join(hostIPs, ","), nil
	case "status.podIP":
		return first(podIPs), nil
	case "status.podIPs":
		return strings.Join(podIPs, ","), nil
	}
	return "", fmt.Errorf("unsupported fieldPath: %s", path)
}

func first(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}

func splitSubscript(path string) (base, key string, ok bool) {
	base, rest, ok := strings.Cut(path, "['")
	if !ok || !strings.HasSuffix(rest, "']") {
		return "", "", false
	}
	return base, strings.TrimSuffix(rest, "']"), true
}

func formatMap(m map[string]string) string {
	out := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+strconv.Quote(m[k]))
	}
	return strings.Join(out, "\n")
}

// Resource is the value of a resource of the pod's container in units of the selector's divisor, rounded up. A limit
// that the container does not set is the pod's, or what the node can give. Without a limit a container has no huge
// pages, so that one is 0. A request is the container's alone.
func Resource(
	pod *corev1.Pod, container *corev1.Container, sel *corev1.ResourceFieldSelector, allocatable corev1.ResourceList,
) (string, error) {
	kind, name, ok := strings.Cut(sel.Resource, ".")
	if !ok || kind != "limits" && kind != "requests" {
		return "", fmt.Errorf("unsupported container resource : %v", sel.Resource)
	}
	rn := corev1.ResourceName(name)
	huge := strings.HasPrefix(name, corev1.ResourceHugePagesPrefix)
	switch {
	case rn == corev1.ResourceCPU, rn == corev1.ResourceMemory, rn == corev1.ResourceEphemeralStorage, huge:
	default:
		return "", fmt.Errorf("unsupported container resource : %v", sel.Resource)
	}
	quantity := container.Resources.Requests[rn]
	if kind == "limits" {
		quantity = container.Resources.Limits[rn]
		if whole := pod.Spec.Resources; quantity.IsZero() && whole != nil && !huge {
			quantity = whole.Limits[rn]
		}
		if quantity.IsZero() && !huge {
			quantity = allocatable[rn]
		}
	}
	divisor := sel.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if rn == corev1.ResourceCPU {
		return divideCeil(quantity.MilliValue(), divisor.MilliValue()), nil
	}
	return divideCeil(quantity.Value(), divisor.Value()), nil
}

func divideCeil(v, d int64) string {
	if d <= 0 {
		d = 1
	}
	up := v / d
	if v%d > 0 {
		up++
	}
	return strconv.FormatInt(up, 10)
}
