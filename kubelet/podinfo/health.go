// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

const (
	// maxHealth is how many devices of one resource the status of a container reports, and maxDeviceID how long their
	// names may be. LimitHealth bounds what all containers of a pod report.
	maxHealth   = 256
	maxDeviceID = 1024
)

// DeviceHealth is the health of one device. IDs are the names that it may be reported under, the best one first.
type DeviceHealth struct {
	IDs     []string
	Health  corev1.ResourceHealthStatus
	Message string
}

// Health returns the status of a container's devices of a resource or claim. Each device has a unique name. If there
// are too many, healthy devices are left out.
func Health(name string, devices []DeviceHealth) corev1.ResourceStatus {
	out := corev1.ResourceStatus{Name: corev1.ResourceName(name), Resources: []corev1.ResourceHealth{}}
	taken := map[corev1.ResourceID]bool{}
	for _, d := range devices {
		i := slices.IndexFunc(d.IDs, func(id string) bool {
			return id != "" && len(id) <= maxDeviceID && !taken[corev1.ResourceID(id)]
		})
		if i < 0 {
			continue
		}
		one := corev1.ResourceHealth{ResourceID: corev1.ResourceID(d.IDs[i]), Health: d.Health}
		if d.Message != "" {
			one.Message = new(truncate(d.Message))
		}
		taken[one.ResourceID] = true
		out.Resources = append(out.Resources, one)
	}
	if len(out.Resources) > maxHealth {
		slices.SortStableFunc(out.Resources, func(a, b corev1.ResourceHealth) int {
			return cmp.Compare(severity(a.Health), severity(b.Health))
		})
		out.Resources = out.Resources[:maxHealth]
	}
	slices.SortFunc(out.Resources, func(a, b corev1.ResourceHealth) int {
		return cmp.Compare(a.ResourceID, b.ResourceID)
	})
	return out
}

func severity(h corev1.ResourceHealthStatus) int {
	return slices.Index([]corev1.ResourceHealthStatus{
		corev1.ResourceHealthStatusUnhealthy, corev1.ResourceHealthStatusUnknown, corev1.ResourceHealthStatusHealthy,
	}, h)
}

// ellipsis ends a message of which the rest is left out.
const ellipsis = "..."

// truncate shortens a message to what the API takes, as Kubernetes does.
func truncate(text string) string {
	if len(text) <= corev1.ResourceHealthMessageMaxLength {
		return text
	}
	return strings.ToValidUTF8(text[:corev1.ResourceHealthMessageMaxLength-len(ellipsis)], "") + ellipsis
}

// MergeHealth returns a list of healths in which what is known now replaces what was reported earlier. A health
// that is no longer known is unchanged, as for devices that were released when the container ended.
func MergeHealth(before []corev1.ResourceStatus, known ...corev1.ResourceStatus) []corev1.ResourceStatus {
	if len(known) == 0 {
		return before
	}
	out := slices.Clone(known)
	for _, b := range before {
		if !slices.ContainsFunc(known, func(k corev1.ResourceStatus) bool { return k.Name == b.Name }) {
			out = append(out, b)
		}
	}
	slices.SortFunc(out, func(a, b corev1.ResourceStatus) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
