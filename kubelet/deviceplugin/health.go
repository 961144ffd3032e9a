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

// Health is how the devices of a container are, by resource. A resource is left out as long as nobody can know: its plugin has not come yet since the
// kubelet started.
func (m *Manager) Health(uid, container string) []corev1.ResourceStatus {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []corev1.ResourceStatus
	for _, a := range m.pods[uid].all(container) {
		r := m.resources[a.Resource]
		if r == nil || !r.told {
			continue
		}
		known := r.alive || time.Since(r.gone) < m.cfg.Lapse
		var list []podinfo.DeviceHealth
		for _, id := range a.IDs {
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
		out = append(out, podinfo.Health(a.Resource, list))
	}
	return out
}

// users are the pods that have devices of a resource.
func (r *pool) users() []string {
	return slices.Compact(slices.Sorted(maps.Values(r.taken)))
}

// tellUsers has the status of pods written anew.
func (m *Manager) tellUsers(uids []string) {
	for _, uid := range uids {
		m.cfg.HealthChanged(uid)
	}
}

// lapse waits until what a plugin that has gone said of its devices is too old, and tells their pods.
func (m *Manager) lapse(ctx context.Context, e *endpoint) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(m.cfg.Lapse):
	}
	m.mu.Lock()
	var users []string
	if r := m.resources[e.resource]; r != nil && r.last == e && !r.alive {
		users = r.users()
	}
	m.mu.Unlock()
	m.tellUsers(users)
}
