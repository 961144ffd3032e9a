// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/podinfo"
)

// Health returns the health of a container's devices, by resource. A resource is left out as long as its plugin may
// still register after a start of the kubelet.
func (m *Manager) Health(uid, container string) []corev1.ResourceStatus {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []corev1.ResourceStatus
	for _, allocation := range m.pods[uid].allocations(container) {
		r := m.resources[allocation.Resource]
		if r == nil || !r.known {
			continue
		}
		known := r.listed || time.Since(r.stoppedAt) < m.cfg.HealthTimeout
		var list []podinfo.DeviceHealth
		for _, id := range allocation.IDs {
			one := podinfo.DeviceHealth{IDs: []string{id}, Health: corev1.ResourceHealthStatusUnknown}
			switch d, ok := r.devices[id]; {
			case !known || !ok:
			case d.healthy:
				one.Health = corev1.ResourceHealthStatusHealthy
			default:
				one.Health = corev1.ResourceHealthStatusUnhealthy
			}
			list = append(list, one)
		}
		out = append(out, podinfo.Health(allocation.Resource, list))
	}
	return out
}

// podUIDs returns the pods that have devices of the resource.
func (r *pool) podUIDs() []string {
	return slices.Compact(slices.Sorted(maps.Values(r.allocated)))
}

// notifyPods has the status of pods written again.
func (m *Manager) notifyPods(uids []string) {
	for _, uid := range uids {
		m.cfg.HealthChanged(uid)
	}
}

// expireHealth waits for the health timeout of a plugin that has stopped, or that has listed nothing, and notifies the
// pods.
func (m *Manager) expireHealth(ctx context.Context, e *endpoint) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(m.cfg.HealthTimeout):
	}
	m.mu.Lock()
	var users []string
	if r := m.resources[e.resource]; r != nil && r.endpoint == e && !r.listed {
		users = r.podUIDs()
	}
	m.mu.Unlock()
	m.notifyPods(users)
}
