// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"keelson/kubelet/records"
	"keelson/kubelet/rootdir"
)

// record is the checkpoint of a pod's devices on the disk. No container can read it, and a record that the Manager has
// is never modified.
type record struct {
	UID        string                  `json:"uid"`
	Containers map[string][]allocation `json:"containers"`
}

// allocation has the devices of one resource that a container has, and what Allocate has answered for them.
type allocation struct {
	Resource  string             `json:"resource"`
	IDs       []string           `json:"ids"`
	NUMANodes map[string][]int64 `json:"nodes,omitempty"` // by device; only of those with a topology
	Response  response           `json:"answer"`
}

type response struct {
	Envs        map[string]string `json:"envs,omitempty"`
	Mounts      []hostFile        `json:"mounts,omitempty"`
	Devices     []hostFile        `json:"devices,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	CDI         []string          `json:"cdi,omitempty"`
}

// hostFile is a mount or a device node.
type hostFile struct {
	ContainerPath string `json:"in"`
	HostPath      string `json:"on"`
	ReadOnly      bool   `json:"readOnly,omitempty"`
	Permissions   string `json:"permissions,omitempty"`
}

const (
	recordsDir    = "plugin_devices" // within the kubelet's directory; plugins write into the one of their sockets
	resourcesFile = "resources"      // the devices that plugins listed last
	maxRecord     = 8 << 20
	maxResource   = 64 << 20
)

// allocation returns what a container has of a resource; nil: nothing.
func (r *record) allocation(container, resource string) *allocation {
	list := r.allocations(container)
	if i := slices.IndexFunc(list, func(a allocation) bool { return a.Resource == resource }); i >= 0 {
		return &list[i]
	}
	return nil
}

// allocations returns all that a container has.
func (r *record) allocations(container string) []allocation {
	if r == nil {
		return nil
	}
	return slices.Clone(r.Containers[container])
}

// has reports whether one of the pod's containers has a device.
func (r *record) has(resource, id string) bool {
	if r == nil {
		return false
	}
	for _, list := range r.Containers {
		for _, a := range list {
			if a.Resource == resource && slices.Contains(a.IDs, id) {
				return true
			}
		}
	}
	return false
}

// with returns a copy of the record with one more allocation.
func (r *record) with(uid, container string, a allocation) *record {
	next := &record{UID: uid, Containers: map[string][]allocation{}}
	if r != nil {
		maps.Copy(next.Containers, r.Containers)
	}
	next.Containers[container] = append(slices.Clone(next.Containers[container]), a)
	return next
}

func recordsOf(dir rootdir.Dir) records.Dir {
	return records.Dir{Root: dir, Name: recordsDir, Limit: maxRecord}
}

func resourcesOf(dir rootdir.Dir) records.Dir {
	return records.Dir{Root: dir, Name: recordsDir, Limit: maxResource}
}

// save writes the record atomically.
func (r *record) save(dir rootdir.Dir) error { return recordsOf(dir).Save(r.UID+records.Suffix, r) }

func saveResourcesFile(dir rootdir.Dir, known map[string][]string) error {
	return resourcesOf(dir).Save(resourcesFile, known)
}

func (r *record) remove(dir rootdir.Dir) error {
	if err := recordsOf(dir).Remove(r.UID + records.Suffix); err != nil {
		return fmt.Errorf("forget the devices of the pod: %w", err)
	}
	return nil
}

// Load reads the allocations and resources that an earlier kubelet process has written.
func (m *Manager) Load() error {
	of := recordsOf(m.cfg.Dir)
	names, err := of.Names()
	if err != nil {
		return fmt.Errorf("find devices of pods: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		var err error
		switch name {
		case resourcesFile:
			known := map[string][]string{}
			if err = resourcesOf(m.cfg.Dir).Read(name, &known); err == nil {
				for resource, ids := range known {
					r := m.poolLocked(resource)
					for _, id := range ids {
						r.devices[id] = device{} // not healthy until its plugin registers
					}
				}
			}
		default:
			r := &record{}
			if err = of.Read(name, r); err == nil && r.UID+records.Suffix != name {
				err = errors.New("it is another pod's")
			}
			if err == nil {
				m.restoreLocked(r)
			}
		}
		if err != nil {
			m.cfg.Log.Warn("a record of pods' devices cannot be read", "file", name, "err", err)
		}
	}
	return nil
}

func (m *Manager) restoreLocked(r *record) {
	m.pods[r.UID] = r
	for _, list := range r.Containers {
		for _, a := range list {
			for _, id := range a.IDs {
				m.poolLocked(a.Resource).allocated[id] = r.UID
			}
		}
	}
}
