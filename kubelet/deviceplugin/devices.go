// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"cmp"
	"slices"
)

// Device is a device as the PodResources API shows it.
type Device struct {
	Resource, ID string
	NUMANodes    []int64 // of its topology; none: its plugin has none
}

// Devices returns the devices that a container has, sorted.
func (m *Manager) Devices(uid, container string) []Device {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Device
	for _, a := range m.pods[uid].allocations(container) {
		for _, id := range a.IDs {
			nodes := a.NUMANodes[id]
			if r := m.resources[a.Resource]; nodes == nil && r != nil {
				nodes = r.devices[id].numaNodes
			}
			out = append(out, Device{a.Resource, id, nodes})
		}
	}
	return sorted(out)
}

// Allocatable returns the healthy devices of the node, allocated or not, sorted.
func (m *Manager) Allocatable() []Device {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Device
	for name, r := range m.resources {
		for id, d := range r.devices {
			if r.listed && d.healthy {
				out = append(out, Device{name, id, d.numaNodes})
			}
		}
	}
	return sorted(out)
}

func sorted(list []Device) []Device {
	slices.SortFunc(list, func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// numaNodes returns the NUMA nodes of devices that have a topology.
func (m *Manager) numaNodes(resource string, ids []string) map[string][]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out map[string][]int64
	for _, id := range ids {
		if nodes := m.resources[resource].devices[id].numaNodes; len(nodes) > 0 {
			if out == nil {
				out = map[string][]int64{}
			}
			out[id] = nodes
		}
	}
	return out
}

func (d device) equal(o device) bool {
	return d.healthy == o.healthy && slices.Equal(d.numaNodes, o.numaNodes)
}
