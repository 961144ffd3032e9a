// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

const (
	// maxPodHealth is how many bytes of JSON the health of devices may take in the status of a pod, of all its
	// containers together. etcd stores objects of up to 1.5 MiB, and a pod has more to say.
	maxPodHealth = 256 << 10
	// minMessage is what is left of each message before devices are left out, in bytes of JSON.
	minMessage = 64
	// What one device and one resource take in JSON, in addition to their names and the message.
	deviceOverhead   = len(`{"resourceID":"","health":"Unhealthy","message":""},`)
	resourceOverhead = len(`{"name":"","resources":[]},`)
)

// LimitHealth makes the health of devices fit into the status of a pod. First it shortens messages, those of all
// devices to the same length. Then it leaves devices out: healthy ones first, unhealthy ones last, and of all
// containers alike. Lists that callers share stay as they are.
func LimitHealth(containers []corev1.ContainerStatus) {
	limit := 6 * corev1.ResourceHealthMessageMaxLength // of JSON: nothing is shortened
	if healthSize(containers, limit) <= maxPodHealth {
		return
	}
	limit = corev1.ResourceHealthMessageMaxLength
	for limit > minMessage && healthSize(containers, limit) > maxPodHealth {
		limit /= 2
	}
	kept := chooseDevices(containers, limit)
	for i := range containers {
		var out []corev1.ResourceStatus
		for j, resourceStatus := range containers[i].AllocatedResourcesStatus {
			var list []corev1.ResourceHealth
			for k, h := range resourceStatus.Resources {
				if !kept[devicePosition{i, j, k}] {
					continue
				}
				if h.Message != nil {
					h.Message = new(shorten(*h.Message, limit))
				}
				list = append(list, h)
			}
			if len(list) > 0 {
				out = append(out, corev1.ResourceStatus{Name: resourceStatus.Name, Resources: list})
			}
		}
		containers[i].AllocatedResourcesStatus = out
	}
}

// devicePosition says which device it is: indexes of the container, of its resource, and of the device in that.
type devicePosition struct{ container, resource, device int }

// chooseDevices are the devices that there is room for when messages have no more than limit bytes.
func chooseDevices(containers []corev1.ContainerStatus, limit int) map[devicePosition]bool {
	type candidate struct {
		devicePosition
		health corev1.ResourceHealth
	}
	var all []candidate
	for i := range containers {
		for j, r := range containers[i].AllocatedResourcesStatus {
			for k, h := range r.Resources {
				all = append(all, candidate{devicePosition{i, j, k}, h})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(severity(a.health.Health), severity(b.health.Health)),
			cmp.Compare(a.device, b.device))
	})
	kept := map[devicePosition]bool{}
	size := 0
	named := map[devicePosition]bool{} // resources, by their first device
	for _, c := range all {
		size += deviceSize(c.health, limit)
		if first := (devicePosition{c.container, c.resource, 0}); !named[first] {
			named[first] = true
			size += resourceSize(containers[c.container].AllocatedResourcesStatus[c.resource])
		}
		if size > maxPodHealth {
			break
		}
		kept[c.devicePosition] = true
	}
	return kept
}

// healthSize is what the health of devices takes when messages have no more than limit bytes.
func healthSize(containers []corev1.ContainerStatus, limit int) (size int) {
	for i := range containers {
		for _, r := range containers[i].AllocatedResourcesStatus {
			size += resourceSize(r)
			for _, h := range r.Resources {
				size += deviceSize(h, limit)
			}
		}
	}
	return size
}

func resourceSize(r corev1.ResourceStatus) int { return resourceOverhead + jsonSize(string(r.Name)) }

func deviceSize(h corev1.ResourceHealth, limit int) int {
	size := deviceOverhead + jsonSize(string(h.ResourceID))
	if h.Message != nil {
		size += min(jsonSize(*h.Message), limit)
	}
	return size
}

// jsonSize is how many bytes a text takes in JSON at most.
func jsonSize(text string) (size int) {
	for _, r := range text {
		size += runeSize(r)
	}
	return size
}

func runeSize(r rune) int {
	switch {
	case r < ' ' || r == '<' || r == '>' || r == '&' || r == '\u2028' || r == '\u2029' || r == '\ufffd':
		return len(`\u0000`)
	case r == '"' || r == '\\':
		return len(`\\`)
	}
	return len(string(r))
}

// shorten cuts a text to a number of bytes of JSON.
func shorten(text string, limit int) string {
	if jsonSize(text) <= limit {
		return text
	}
	size := len(ellipsis)
	for i, r := range text {
		if size += runeSize(r); size > limit {
			return text[:i] + ellipsis
		}
	}
	return text
}
