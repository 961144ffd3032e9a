// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"cmp"
	"slices"
)

// Device is a device as monitors of the node see it.
type Device struct {
	Resource, ID string
	Nodes        []int64 // the NUMA nodes that it is near; none: its plugin does not say
}

// Devices are the devices that a container has, in order.
func (m *Manager) Devices(uid, container string) []Device {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Device
	for _, a := range m.pods[uid].all(container) {
		for _, id := range a.IDs {
			nodes := a.Nodes[id]
			if r := m.resources[a.Resource]; nodes == nil && r != nil {
				nodes = r.devices[id].nodes
			}
			out = append(out, Device{a.Resource, id, nodes})
		}
	}
	return inOrder(out)
}

// Allocatable are the healthy devices of the node, whether containers have them or not, in order.
func (m *Manager) Allocatable() []Device {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Device
	for name, r := range m.resources {
		for id, d := range r.devices {
			if r.alive && d.healthy {
				out = append(out, Device{name, id, d.nodes})
			}
		}
	}
	return inOrder(out)
}

func inOrder(list []Device) []Device {
	slices.SortFunc(list, func(a, b Device) int { return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.ID, b.ID)) })
	return list
}

// nodes are the NUMA nodes of devices, as far as their plugin tells them.
func (m *Manager) nodes(resource string, ids []string) map[string][]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out map[string][]int64
	for _, id := range ids {
		if nodes := m.resources[resource].devices[id].nodes; len(nodes) > 0 {
			if out == nil {
				out = map[string][]int64{}
			}
			out[id] = nodes
		}
	}
	return out
}

func (d device) equal(o device) bool { return d.healthy == o.healthy && slices.Equal(d.nodes, o.nodes) }
