// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/fault"
)

// Table holds all sandboxes and containers of a runtime.
type Table struct {
	dir string
	log *slog.Logger

	mu         sync.RWMutex
	sandboxes  map[string]*Sandbox
	containers map[string]*Container
	names      map[string]string // unique name of a sandbox or container -> id
}

// NewTable makes an empty Table of the records below dir. It reads nothing; see LoadSandboxes.
func NewTable(dir string, log *slog.Logger) *Table {
	return &Table{
		dir:        dir,
		log:        log,
		sandboxes:  map[string]*Sandbox{},
		containers: map[string]*Container{},
		names:      map[string]string{},
	}
}

// SandboxesDir and ContainersDir hold a directory for each sandbox and each container, named by its id.
func (t *Table) SandboxesDir() string { return filepath.Join(t.dir, "sandboxes") }

// ContainersDir is the directory of containers; see SandboxesDir.
func (t *Table) ContainersDir() string { return filepath.Join(t.dir, "containers") }

// MakeDirs makes the directories of the records.
func (t *Table) MakeDirs() error {
	for _, d := range []string{t.SandboxesDir(), t.ContainersDir()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return fmt.Errorf("make runtime directory: %w", err)
		}
	}
	return nil
}

// NewID returns 256 random bits in hex, the usual form of container ids.
func NewID() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// NewSandbox makes a Sandbox with the record. It writes nothing, and the table does not have it before AddSandbox.
func (t *Table) NewSandbox(rec SandboxRecord) *Sandbox {
	return &Sandbox{ID: rec.ID, Dir: filepath.Join(t.SandboxesDir(), rec.ID), rec: rec}
}

// NewContainer makes a Container with the record. It writes nothing, and the table does not have it before
// AddContainer.
func (t *Table) NewContainer(rec ContainerRecord) *Container {
	return &Container{
		ID:     rec.ID,
		Dir:    filepath.Join(t.ContainersDir(), rec.ID),
		exited: make(chan struct{}),
		rec:    rec,
	}
}

// Reserve keeps a unique name for a new sandbox or container. It fails when there is one with the name.
func (t *Table) Reserve(name, id string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if have, ok := t.names[name]; ok {
		return fault.AlreadyExists("%s is %s already", name, have)
	}
	t.names[name] = id
	return nil
}

// Unreserve undoes Reserve, for what could not be made.
func (t *Table) Unreserve(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.names, name)
}

// AddSandbox makes a sandbox known to all verbs.
func (t *Table) AddSandbox(sb *Sandbox) {
	r := sb.Record()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sandboxes[sb.ID] = sb
	t.names[SandboxName(r.Config.V.GetMetadata())] = sb.ID
}

// AddContainer makes a container known to all verbs.
func (t *Table) AddContainer(c *Container) {
	r := c.Record()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.containers[c.ID] = c
	t.names[ContainerName(r.SandboxID, r.Config.V.GetMetadata())] = c.ID
}

// ForgetSandbox removes a sandbox from the table and reports whether it was there.
func (t *Table) ForgetSandbox(sb *Sandbox) bool {
	r := sb.Record()
	t.mu.Lock()
	defer t.mu.Unlock()
	_, known := t.sandboxes[sb.ID]
	delete(t.sandboxes, sb.ID)
	delete(t.names, SandboxName(r.Config.V.GetMetadata()))
	return known
}

// ForgetContainer removes a container from the table and reports whether it was there.
func (t *Table) ForgetContainer(c *Container) bool {
	r := c.Record()
	t.mu.Lock()
	defer t.mu.Unlock()
	_, known := t.containers[c.ID]
	delete(t.containers, c.ID)
	delete(t.names, ContainerName(r.SandboxID, r.Config.V.GetMetadata()))
	return known
}

// Sandbox finds a sandbox by id or unique prefix; the error has the code NotFound.
func (t *Table) Sandbox(id string) (*Sandbox, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return find(t.sandboxes, "pod sandbox", id)
}

// Container finds a container by id or unique prefix; the error has the code NotFound.
func (t *Table) Container(id string) (*Container, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return find(t.containers, "container", id)
}

// HasSandbox reports whether there is a sandbox with exactly this id.
func (t *Table) HasSandbox(id string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.sandboxes[id] != nil
}

// Owns reports whether the supervisor's container or holder with this name belongs to a container or sandbox here.
func (t *Table) Owns(name string) bool {
	if id, ok := strings.CutPrefix(name, holderPrefix); ok {
		return t.HasSandbox(id)
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.containers[name] != nil
}

// SandboxOfHolder returns the sandbox whose PID namespace the supervisor's container with this name holds; nil: none.
func (t *Table) SandboxOfHolder(name string) *Sandbox {
	id, ok := strings.CutPrefix(name, holderPrefix)
	if !ok {
		return nil
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.sandboxes[id]
}

// Sandboxes returns the sandboxes with this id (or unique prefix; empty: all) and these labels, newest first.
func (t *Table) Sandboxes(id string, labels map[string]string) []*Sandbox {
	t.mu.RLock()
	defer t.mu.RUnlock()
	out := choose(t.sandboxes, id)
	out = slices.DeleteFunc(out, func(sb *Sandbox) bool { return !matches(labels, sb.Record().Config.V.GetLabels()) })
	slices.SortFunc(out, func(a, b *Sandbox) int { return b.Record().Created.Compare(a.Record().Created) })
	return out
}

// Containers returns the containers with this id (or unique prefix; empty: all) in this sandbox (empty: in any) and
// with these labels, newest first.
func (t *Table) Containers(id, sandboxID string, labels map[string]string) []*Container {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if sandboxID != "" {
		sb, err := find(t.sandboxes, "pod sandbox", sandboxID)
		if err != nil {
			return nil
		}
		sandboxID = sb.ID
	}
	out := slices.DeleteFunc(choose(t.containers, id), func(c *Container) bool {
		r := c.Record()
		return sandboxID != "" && r.SandboxID != sandboxID || !matches(labels, r.Config.V.GetLabels())
	})
	slices.SortFunc(out, func(a, b *Container) int { return b.Record().Created.Compare(a.Record().Created) })
	return out
}

// ContainersOf returns a sandbox's containers, oldest first. The table need not have the sandbox.
func (t *Table) ContainersOf(sandboxID string) []*Container {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var out []*Container
	for _, c := range t.containers {
		if c.Record().SandboxID == sandboxID {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b *Container) int { return a.Record().Created.Compare(b.Record().Created) })
	return out
}

// StatusesOf returns the statuses of a sandbox's containers, oldest first.
func (t *Table) StatusesOf(sandboxID string) []*runtimeapi.ContainerStatus {
	all := t.ContainersOf(sandboxID)
	out := make([]*runtimeapi.ContainerStatus, 0, len(all))
	for _, c := range all {
		out = append(out, c.Status())
	}
	return out
}

// minPrefix is the minimum length of an id's prefix.
const minPrefix = 4

// find looks up a sandbox or container by its id or a unique prefix.
func find[T any](all map[string]T, kind, id string) (T, error) {
	if v, ok := all[id]; ok {
		return v, nil
	}
	var found T
	n := 0
	if len(id) >= minPrefix {
		for full, v := range all {
			if strings.HasPrefix(full, id) {
				found = v
				n++
			}
		}
	}
	if n == 1 {
		return found, nil
	}
	var none T
	return none, fault.NotFound(kind, id)
}

// choose returns the object with the id or unique prefix, if there is one; of the empty id all objects.
func choose[T any](all map[string]T, id string) []T {
	var out []T
	if id != "" {
		if v, err := find(all, "", id); err == nil {
			out = append(out, v)
		}
		return out
	}
	for _, v := range all {
		out = append(out, v)
	}
	return out
}

func matches(selector, labels map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}
