// SPDX-License-Identifier: Apache-2.0

// Package userns allocates a range of user and group IDs for the user namespace of each pod with hostUsers: false
// (KEP-127). The pod workers call it. It never creates a namespace: the runtime does.
//
// A range has 65536 IDs and starts at a multiple of that, never at 0. No two pods have the same range. Before a range
// is returned, it is written to the file userns in the pod's directory, in Kubernetes' format. It is free again when
// Release has removed the file.
package userns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Length is the number of ids of one pod.
const Length = 65536

// recordName is the file in a pod's directory.
const recordName = "userns"

// maxRecord is the limit for a record file.
const maxRecord = 64 << 10

// Range is a range of host IDs.
type Range struct{ First, Count uint32 }

// DefaultRange is the range from which pods get theirs by default: large enough for maxPods, above the host's own IDs.
func DefaultRange(maxPods int) Range {
	n := uint64(max(maxPods, 1)) * Length // not negative
	return Range{First: Length, Count: uint32(min(n, 1<<32-2*Length))}
}

func (r Range) check(maxPods int) error {
	switch {
	case r.First < Length:
		return fmt.Errorf("the range of ids for pods begins at %d: it must begin at %d or later", r.First, Length)
	case r.First%Length != 0 || r.Count%Length != 0:
		return fmt.Errorf("the range of ids for pods, %d ids from %d on, is not made of multiples of %d", r.Count,
			r.First, Length)
	case uint64(r.First)+uint64(r.Count) > 1<<32-Length:
		return fmt.Errorf("the range of ids for pods, %d ids from %d on, goes beyond the largest id", r.Count, r.First)
	case int(r.Count/Length) < min(maxPods, 1<<16-2):
		return fmt.Errorf("the range of ids for pods has room for %d pods, not for %d", r.Count/Length, maxPods)
	}
	return nil
}

// Manager allocates ranges. It is safe for concurrent use.
type Manager struct {
	podDir func(uid string) string
	log    *slog.Logger

	mu    sync.Mutex
	all   Range
	next  uint32            // where the search for a free range starts, so that released ranges are reused late
	taken map[uint32]string // first id -> pod
	byPod map[string]uint32
}

// New returns a manager without pods. podDir returns a pod's directory.
func New(podDir func(uid string) string, log *slog.Logger) *Manager {
	return &Manager{
		podDir: podDir,
		log:    log,
		taken:  map[uint32]string{},
		byPod:  map[string]uint32{},
	}
}

// Load sets the range to allocate from, and reads the records of existing pods after a restart. It returns the pods
// whose records are invalid or conflict with another's. The caller must call Adopt or Release for each of them before
// Acquire.
func (m *Manager) Load(all Range, maxPods int, pods []string) (damaged []string, err error) {
	if err := all.check(maxPods); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = all
	m.next = all.First
	for _, uid := range pods {
		first, err := m.read(uid)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = m.takeLocked(uid, first)
		}
		if err != nil {
			m.log.Error("the record of a pod's user namespace is of no use", "pod", uid, "err", err)
			damaged = append(damaged, uid)
		}
	}
	return damaged, nil
}

// takeLocked records the range of a pod. It may be outside of the configured range, if its pod already runs with it.
func (m *Manager) takeLocked(uid string, first uint32) error {
	if have, ok := m.taken[first]; ok && have != uid {
		return fmt.Errorf("the ids from %d on belong to pod %s", first, have)
	}
	if have, ok := m.byPod[uid]; ok && have != first {
		return fmt.Errorf("the pod has the ids from %d on", have)
	}
	m.taken[first] = uid
	m.byPod[uid] = first
	return nil
}

// Adopt records the range with which a pod runs, as reported by the runtime.
func (m *Manager) Adopt(uid string, ns *runtimeapi.UserNamespace) error {
	r := recordOf(ns)
	first, err := r.first()
	if err != nil {
		return fmt.Errorf("user namespace of pod %s: %w", uid, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.takeLocked(uid, first); err != nil {
		return fmt.Errorf("user namespace of pod %s: %w", uid, err)
	}
	return m.write(uid, first)
}

// Of returns the pod's user namespace; nil: none.
func (m *Manager) Of(uid string) *runtimeapi.UserNamespace {
	m.mu.Lock()
	defer m.mu.Unlock()
	first, ok := m.byPod[uid]
	if !ok {
		return nil
	}
	return namespace(first)
}

// Acquire returns the pod's user namespace, and allocates a range if it has none.
func (m *Manager) Acquire(uid string) (*runtimeapi.UserNamespace, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if first, ok := m.byPod[uid]; ok {
		return namespace(first), nil
	}
	first, ok := m.freeLocked()
	if !ok {
		return nil, fmt.Errorf("create user namespace: could not find an empty slot to allocate a user namespace: "+
			"all %d ranges are taken", m.all.Count/Length)
	}
	if err := m.write(uid, first); err != nil {
		return nil, fmt.Errorf("create user namespace: %w", err)
	}
	m.taken[first] = uid
	m.byPod[uid] = first
	m.next = first + Length
	return namespace(first), nil
}

func (m *Manager) freeLocked() (uint32, bool) {
	n := m.all.Count / Length
	for i := range n {
		at := m.all.First + (m.next-m.all.First+i*Length)%m.all.Count
		if _, taken := m.taken[at]; !taken {
			return at, true
		}
	}
	return 0, false
}

// Release frees a pod's range. All containers of the pod must have ended. A pod without a range is no error.
func (m *Manager) Release(uid string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	// The record is removed first: otherwise, after a restart, two pods could have the range.
	if err := os.Remove(filepath.Join(m.podDir(uid), recordName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release user namespace: %w", err)
	}
	if first, ok := m.byPod[uid]; ok {
		delete(m.taken, first)
		delete(m.byPod, uid)
	}
	return nil
}

// record is the content of the file.
type record struct {
	UIDs []mapping `json:"uidMappings"`
	GIDs []mapping `json:"gidMappings"`
}

type mapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

func recordOf(ns *runtimeapi.UserNamespace) record {
	list := func(in []*runtimeapi.IDMapping) []mapping {
		var out []mapping
		for _, m := range in {
			out = append(out, mapping{HostID: m.GetHostId(), ContainerID: m.GetContainerId(), Length: m.GetLength()})
		}
		return out
	}
	return record{UIDs: list(ns.GetUids()), GIDs: list(ns.GetGids())}
}

// first returns the first ID of the range, if the range is valid.
func (r record) first() (uint32, error) {
	if len(r.UIDs) != 1 || len(r.GIDs) != 1 || r.UIDs[0] != r.GIDs[0] {
		return 0, errors.New("it must be one mapping of users and the same of groups")
	}
	u := r.UIDs[0]
	if u.ContainerID != 0 || u.Length != Length || u.HostID%Length != 0 || u.HostID < Length ||
		u.HostID > 1<<32-2*Length {
		return 0, fmt.Errorf("%d ids from %d on for those from %d on: want %d for those from 0 on, from a multiple "+
			"of it on", u.Length, u.HostID, u.ContainerID, Length)
	}
	return u.HostID, nil
}

func namespace(first uint32) *runtimeapi.UserNamespace {
	// A new value for each call, since callers may modify it.
	ids := func() []*runtimeapi.IDMapping { return []*runtimeapi.IDMapping{{HostId: first, Length: Length}} }
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids(), Gids: ids()}
}

func parse(raw []byte) (uint32, error) {
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return 0, fmt.Errorf("parse: %w", err)
	}
	return r.first()
}

func (m *Manager) read(uid string) (uint32, error) {
	path := filepath.Join(m.podDir(uid), recordName)
	fi, err := os.Lstat(path)
	if err != nil {
		return 0, err
	}
	if !fi.Mode().IsRegular() || fi.Size() > maxRecord {
		return 0, fmt.Errorf("%s is not a record", path)
	}
	raw, err := os.ReadFile(path) // our own file
	if err != nil {
		return 0, err
	}
	return parse(raw)
}

func (m *Manager) write(uid string, first uint32) error {
	raw, err := json.Marshal(recordOf(namespace(first)))
	if err != nil {
		return err
	}
	// A late call must not create the directory of a removed pod again.
	path := filepath.Join(m.podDir(uid), recordName)
	if err := os.WriteFile(path+".tmp", raw, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}
