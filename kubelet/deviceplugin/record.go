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

// record is what the disk says of a pod's devices. No container sees it, and nobody modifies one that the Manager knows.
type record struct {
	UID        string                 `json:"uid"`
	Containers map[string][]allotment `json:"containers"`
}

// allotment are the devices of one resource that a container has, and what its plugin said that they need.
type allotment struct {
	Resource string             `json:"resource"`
	IDs      []string           `json:"ids"`
	Nodes    map[string][]int64 `json:"nodes,omitempty"` // the NUMA nodes of those whose plugin tells them
	Answer   answer             `json:"answer"`
}

type answer struct {
	Envs        map[string]string `json:"envs,omitempty"`
	Mounts      []file            `json:"mounts,omitempty"`
	Devices     []file            `json:"devices,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	CDI         []string          `json:"cdi,omitempty"`
}

// file is one On the node and In the container.
type file struct {
	In          string `json:"in"`
	On          string `json:"on"`
	ReadOnly    bool   `json:"readOnly,omitempty"`
	Permissions string `json:"permissions,omitempty"`
}

const (
	recordsDir    = "plugin_devices" // within the kubelet's directory; plugins write into the one of their sockets
	resourcesFile = "resources"      // the devices that plugins had last
	maxRecord     = 8 << 20
	maxResource   = 64 << 20
)

// of is what a container has of a resource; nil: nothing. all is what it has.
func (r *record) of(container, resource string) *allotment {
	list := r.all(container)
	if i := slices.IndexFunc(list, func(a allotment) bool { return a.Resource == resource }); i >= 0 {
		return &list[i]
	}
	return nil
}

func (r *record) all(container string) []allotment {
	if r == nil {
		return nil
	}
	return slices.Clone(r.Containers[container])
}

// has tells whether one of the pod's containers has a device.
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

// with returns a record with one allotment more.
func (r *record) with(uid, container string, a allotment) *record {
	next := &record{UID: uid, Containers: map[string][]allotment{}}
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

// save writes the record whole, or not at all.
func (r *record) save(dir rootdir.Dir) error { return recordsOf(dir).Save(r.UID+records.Suffix, r) }

func saveResources(dir rootdir.Dir, known map[string][]string) error {
	return resourcesOf(dir).Save(resourcesFile, known)
}

func (r *record) remove(dir rootdir.Dir) error {
	if err := recordsOf(dir).Remove(r.UID + records.Suffix); err != nil {
		return fmt.Errorf("forget the devices of the pod: %w", err)
	}
	return nil
}

// Load finds what an earlier life has given to pods, and the resources that there were.
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
		switch {
		case name == resourcesFile:
			known := map[string][]string{}
			if err = resourcesOf(m.cfg.Dir).Read(name, &known); err == nil {
				for resource, ids := range known {
					r := m.poolLocked(resource)
					for _, id := range ids {
						r.devices[id] = device{} // nobody knows, until its plugin comes
					}
				}
			}
		default:
			r := &record{}
			if err = of.Read(name, r); err == nil && r.UID+records.Suffix != name {
				err = errors.New("it is another pod's")
			}
			if err == nil {
				m.adoptLocked(r)
			}
		}
		if err != nil {
			m.cfg.Log.Warn("a record of pods' devices cannot be read", "file", name, "err", err)
		}
	}
	return nil
}

func (m *Manager) adoptLocked(r *record) {
	m.pods[r.UID] = r
	for _, list := range r.Containers {
		for _, a := range list {
			for _, id := range a.IDs {
				m.poolLocked(a.Resource).taken[id] = r.UID
			}
		}
	}
}
