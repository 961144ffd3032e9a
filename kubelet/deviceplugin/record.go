// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"keelson/kubelet/rootdir"
	"keelson/lib/inroot"
)

// record is what the disk says of a pod's devices. No container sees it, and nobody modifies one that the Manager knows.
type record struct {
	UID        string                 `json:"uid"`
	Containers map[string][]allotment `json:"containers"`
}

// allotment are the devices of one resource that a container has, and what its plugin said that they need.
type allotment struct {
	Resource string   `json:"resource"`
	IDs      []string `json:"ids"`
	Answer   answer   `json:"answer"`
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
	suffix        = ".json"
	maxRecord     = 8 << 20
	maxResource   = 64 << 20
	maxRecords    = 4096
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

func (r *record) path() string { return filepath.Join(recordsDir, r.UID+suffix) }

// save writes the record whole, or not at all.
func (r *record) save(dir rootdir.Dir) error {
	if r.UID == "" || strings.HasPrefix(r.UID, ".") || filepath.Base(r.UID) != r.UID {
		return fmt.Errorf("%.100q cannot be part of a path", r.UID)
	}
	return write(dir, r.path(), r, maxRecord)
}

func saveResources(dir rootdir.Dir, known map[string][]string) error {
	return write(dir, filepath.Join(recordsDir, resourcesFile), known, maxResource)
}

func write(dir rootdir.Dir, path string, what any, limit int) error {
	b, err := json.Marshal(what)
	if err != nil {
		return err
	}
	if len(b) > limit {
		return fmt.Errorf("it takes %d bytes, more than %d", len(b), limit)
	}
	root, err := inroot.Open(string(dir))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // O_PATH
	if err := root.MkdirAll(recordsDir, 0o700); err != nil {
		return err
	}
	if err := root.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return root.Rename(path+".new", path)
}

func (r *record) remove(dir rootdir.Dir) error {
	root, err := inroot.Open(string(dir))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // O_PATH
	if err := root.Remove(r.path()); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("forget the devices of the pod: %w", err)
	}
	return nil
}

// Load finds what an earlier life has given to pods, and the resources that there were.
func (m *Manager) Load() error {
	root, err := inroot.Open(string(m.cfg.Dir))
	if err != nil {
		return fmt.Errorf("find devices of pods: %w", err)
	}
	defer func() { _ = root.Close() }() // O_PATH
	names, err := root.Names(recordsDir, maxRecords)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
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
			if err = read(root, name, maxResource, &known); err == nil {
				for resource, ids := range known {
					r := m.poolLocked(resource)
					for _, id := range ids {
						r.devices[id] = false // nobody knows, until its plugin comes
					}
				}
			}
		case strings.HasSuffix(name, suffix): // others are of writes that were cut short
			r := &record{}
			if err = read(root, name, maxRecord, r); err == nil && r.UID+suffix != name {
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

func read(root *inroot.Dir, name string, limit int64, into any) error {
	b, err := root.ReadFile(filepath.Join(recordsDir, name), limit)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
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
