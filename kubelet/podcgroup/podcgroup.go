// SPDX-License-Identifier: Apache-2.0

// Package podcgroup makes a cgroup for each pod of the node, in which the runtime makes those of the pod's
// containers. It limits the number of processes: of each pod, and of all pods together to less than the machine can
// have, so that a pod that forks without end takes no process from other pods, from the kubelet or from the
// machine. It weighs the pods' processor time by their requests, and limits processor time and memory of a pod that has
// limits as a whole. The kubelet prepares it; the pod workers call Make and
// Remove. It knows no runtime.
package podcgroup

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"keelson/lib/linux"
)

// DefaultLimit is the limit of a pod's processes and threads.
const DefaultLimit = 4096

// The machine keeps reserveShare-th part of its processes for itself, at least minReserve.
const (
	maxShares    = 262144 // the kernel's limit
	reserveShare = 10
	minReserve   = 1024
)

// Manager makes the cgroups below one parent.
type Manager struct {
	root  string // parent of the pods' cgroups; empty: pods have none
	limit int64  // of a pod; negative: none
	log   *slog.Logger
	mode  linux.CgroupMode
	// systemd: the runtime has systemd make cgroups, which then knows them by the names of its units alone.
	systemd bool
}

// New returns a manager of the cgroups below root. limit is that of a pod; 0: DefaultLimit, negative: none. An
// empty root means that pods have no cgroups. See Prepare.
func New(root string, limit int64, log *slog.Logger) *Manager {
	if limit == 0 {
		limit = DefaultLimit
	}
	return &Manager{root: root, limit: limit, log: log}
}

// Prepare makes the cgroup of all pods. On a machine where that is not possible, pods have no cgroups of their own.
// Where the runtime has systemd make cgroups, systemd makes those of pods too, without limits of their own.
func (m *Manager) Prepare(systemd bool) {
	if m.root == "" {
		return
	}
	if systemd {
		m.systemd = true
		m.limit = -1
		return
	}
	host, err := linux.Detect()
	if err == nil {
		m.mode = host.Cgroups
		err = linux.LimitProcesses(m.mode, m.pods(), limitOfAll(linux.MaxProcesses()))
	}
	if err == nil { // next to it are containers of earlier versions, with the shares of their pods
		err = ignoreUnsupported(linux.WeighCPU(m.mode, m.pods(), maxShares))
	}
	if err != nil {
		m.log.Warn("the number of processes of pods is not limited", "err", err)
		m.limit = -1
		return
	}
	m.sweep()
}

// sweep removes the cgroups without a process: their pods may have gone while no kubelet ran. Make makes the others
// again before their next container.
func (m *Manager) sweep() {
	dirs, err := linux.CgroupDirs(m.mode, m.pods())
	if err != nil {
		m.log.Warn("cgroups of pods not listed", "err", err)
		return
	}
	names := map[string]bool{}
	for _, dir := range dirs {
		found, _ := filepath.Glob(filepath.Join(dir, "pod*")) // the pattern is right
		for _, path := range found {
			names[filepath.Base(path)] = true
		}
	}
	for name := range names {
		at := filepath.Join(m.pods(), name)
		procs, err := linux.CgroupProcs(m.mode, at)
		if err == nil && len(procs) == 0 {
			err = linux.RemoveCgroup(m.mode, at)
		}
		if err != nil {
			m.log.Warn("cgroup of a pod not removed", "cgroup", at, "err", err)
		}
	}
}

// limitOfAll returns the limit for all pods of a machine that can have so many processes.
func limitOfAll(most int64) int64 {
	if most == 0 {
		most = 32768 // the kernel's default
	}
	return max(most-max(most/reserveShare, minReserve), most/2)
}

func (m *Manager) pods() string { return filepath.Join(m.root, "pods") }

// Of returns the parent cgroup of a pod's containers; empty: none is asked for.
func (m *Manager) Of(uid string) string {
	if m.systemd { // a dash would begin another slice
		return "kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice"
	}
	if m.root == "" || m.limit < 0 {
		return m.root
	}
	return filepath.Join(m.pods(), "pod"+uid)
}

// Limits are what the containers of a pod share.
type Limits struct {
	// Shares of the processors are those of cgroups of version 1: 1024 for each that the pod requests, at least 2.
	Shares int64
	// Quota is the processor time in 100 ms, in microseconds; 0: the pod as a whole has no limit.
	Quota int64
	// Memory is in bytes; 0: the pod as a whole has no limit.
	Memory int64
}

// Make makes the cgroup of a pod, or sets its limits again.
func (m *Manager) Make(uid string, limits Limits) error { return m.set(uid, limits, false) }

// Grow makes the cgroup of a pod, or raises its limits where they are lower: the kernel gives no container more than
// its pod, and no pod less than its containers, so a resize raises the pod first and lowers it last.
func (m *Manager) Grow(uid string, limits Limits) error { return m.set(uid, limits, true) }

func (m *Manager) set(uid string, limits Limits, grow bool) error {
	if m.root == "" || m.limit < 0 {
		return nil
	}
	if err := check(uid); err != nil {
		return err
	}
	path := m.Of(uid)
	if grow && limits.Quota+limits.Memory > 0 {
		_, err := linux.ReadUsage(m.mode, path)
		grow = err == nil // a new one has no limits, which nothing raises
	}
	if err := linux.LimitProcesses(m.mode, path, m.limit); err != nil {
		return err
	}
	err := linux.WeighCPU(m.mode, path, limits.Shares)
	if err == nil && limits.Quota > 0 {
		err = linux.LimitCPU(m.mode, path, limits.Quota, grow)
	}
	if err = ignoreUnsupported(err); err == nil && limits.Memory > 0 {
		err = linux.LimitCgroupMemory(m.mode, path, limits.Memory, grow)
	}
	return err
}

// Remove removes the cgroup of a pod, whose processes have ended. A missing one is no error.
func (m *Manager) Remove(uid string) error {
	if m.root == "" || m.limit < 0 {
		return nil
	}
	if err := check(uid); err != nil {
		return err
	}
	return linux.RemoveCgroup(m.mode, m.Of(uid))
}

// ignoreUnsupported: without the controller cpu, the containers have no shares either.
func ignoreUnsupported(err error) error {
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}

func check(uid string) error {
	if uid == "" || filepath.Base(uid) != uid {
		return fmt.Errorf("the pod's uid %q cannot be part of a path", uid)
	}
	return nil
}
