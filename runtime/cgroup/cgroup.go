// SPDX-License-Identifier: Apache-2.0

// Package cgroup is the part of the machine's control groups that belongs to one runtime: the one group below which its
// supervisor and its pods are, and how their processes are found and ended by it. The packages of the runtime use it
// for containers and pods, and supervisor for itself. It sets no limits: the kubelet does that for pods, and the
// supervisor for containers. It has no state but that of the kernel, and so no lock.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"keelson/lib/linux"
	"keelson/runtime/pods"
)

// Tree is the cgroups of a runtime.
type Tree struct {
	mode   linux.CgroupMode
	parent string
	log    *slog.Logger
}

// New returns the Tree below parent ("/keelson-<id>"). It makes nothing.
func New(mode linux.CgroupMode, parent string, log *slog.Logger) *Tree {
	return &Tree{mode: mode, parent: parent, log: log}
}

// Parent returns the cgroup of the supervisor, and of pods whose sandbox names no cgroup.
func (t *Tree) Parent() string { return t.parent }

// OfPod returns the parent cgroup of the pod's containers: the one that the kubelet named, or one below Parent.
func (t *Tree) OfPod(r *pods.SandboxRecord) string {
	if p := r.Config.V.GetLinux().GetCgroupParent(); p != "" {
		return filepath.Join("/", p)
	}
	return filepath.Join(t.parent, "pod-"+r.ID)
}

// OfContainer returns the cgroup of a container of the pod.
func (t *Tree) OfContainer(pod *pods.SandboxRecord, id string) string {
	return filepath.Join(t.OfPod(pod), id)
}

// Join moves a process to the cgroup with the name below Parent.
func (t *Tree) Join(name string, pid int) error {
	return linux.JoinCgroup(t.mode, filepath.Join(t.parent, name), pid)
}

// Remove removes a cgroup with everything below it. A missing one is not an error.
func (t *Tree) Remove(path string) error { return linux.RemoveCgroup(t.mode, path) }

// Usage reads what the processes of a cgroup use.
func (t *Tree) Usage(path string) (linux.CgroupUsage, error) { return linux.ReadUsage(t.mode, path) }

// Detail reads the numbers of a cgroup that metrics show beyond its Usage.
func (t *Tree) Detail(path string) (linux.CgroupDetail, error) { return linux.ReadDetail(t.mode, path) }

// killLimit bounds the wait for the end of the processes of a killed cgroup.
const killLimit = 5 * time.Second

// Kill kills the processes in a cgroup: those that outlived their container's first process or their supervisor.
func (t *Tree) Kill(cgroup string) error {
	for end := time.Now().Add(killLimit); ; time.Sleep(10 * time.Millisecond) {
		pids, err := linux.KillCgroup(t.mode, cgroup)
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(end) {
			var left []string
			for _, pid := range pids {
				left = append(left, linux.Describe(pid))
			}
			return fmt.Errorf("processes in cgroup %s were killed and did not end: %s", cgroup,
				strings.Join(left, "; "))
		}
	}
}

// ownName matches the names of the cgroups of containers and pods below Parent.
var ownName = regexp.MustCompile(`^(pod-)?([0-9a-f]{64})$`)

// Sweep removes the cgroups of containers and pods whose ids are not known, and kills the processes in them. The
// kubelet may have put cgroups of pods between Parent and those of containers.
func (t *Tree) Sweep(known func(id string) bool) error {
	dirs, err := linux.CgroupDirs(t.mode, t.parent)
	if err != nil {
		return err
	}
	unknown := map[string]bool{}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil //nolint:nilerr // cgroups come and go
			}
			m := ownName.FindStringSubmatch(d.Name())
			if m != nil && !known(m[2]) {
				unknown[strings.TrimPrefix(at, dir)] = true
			}
			if m != nil && m[1] == "" {
				return fs.SkipDir // what is below it is the container's own
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("list cgroups: %w", err)
		}
	}
	var errs []error
	for name := range unknown {
		t.log.Info("removing a cgroup without a container or sandbox", "cgroup", name)
		path := filepath.Join(t.parent, name)
		if err := t.Kill(path); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, t.Remove(path))
	}
	return errors.Join(errs...)
}
