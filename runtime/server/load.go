// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
	"keelson/lib/record"
	"keelson/runtime/shim"
)

// load reads the records of sandboxes and containers, compares them with the supervisor's containers, and removes what
// is incomplete or unknown.
func (s *Server) load(ctx context.Context, all []shim.State) error {
	if err := s.loadSandboxes(ctx); err != nil {
		return err
	}
	states := map[string]shim.State{}
	for _, st := range all {
		states[st.ID] = st
	}
	if err := s.loadContainers(ctx, states); err != nil {
		return err
	}
	for _, st := range all {
		if s.isOwned(st) {
			continue
		}
		s.log.Info("removing a container without a record", "container", st.ID)
		if err := s.shim.Delete(ctx, st.ID); err != nil {
			return fmt.Errorf("remove unknown container: %w", err)
		}
	}
	for _, st := range all {
		if st.Hold && !st.Running() {
			s.pidHolderExited(st)
		}
	}
	return errors.Join(s.sweepSnapshots(ctx), s.sweepNetwork(ctx), s.sweepCgroups())
}

// isOwned reports whether a container of the supervisor belongs to a recorded sandbox or container.
func (s *Server) isOwned(st shim.State) bool {
	if id, ok := strings.CutPrefix(st.ID, "hold-"); ok {
		return s.sandboxes[id] != nil
	}
	return s.containers[st.ID] != nil
}

func (s *Server) loadSandboxes(ctx context.Context) error {
	entries, err := os.ReadDir(s.path("sandboxes"))
	if err != nil {
		return fmt.Errorf("list pod sandboxes: %w", err)
	}
	for _, e := range entries {
		sb := &sandbox{id: e.Name(), dir: s.path("sandboxes", e.Name())}
		restored, rerr := s.readRecord(filepath.Join(sb.dir, sandboxFile), func(b []byte) (err error) {
			sb.rec, err = decodeSandbox(sb.id, b)
			return err
		})
		if rerr == nil && sb.rec.Complete {
			if restored {
				if err := sb.update(func(*sandboxRecord) {}); err != nil {
					return err
				}
			}
			s.adoptSandbox(sb)
			continue
		}
		if rerr == nil {
			s.log.Info("removing an incomplete pod sandbox", "sandbox", sb.id)
		} else {
			s.log.Info("removing an incomplete pod sandbox", "sandbox", sb.id, "error", rerr)
			// With an empty record teardownSandbox removes every part that a sandbox can have.
			sb.rec = sandboxRecord{ID: sb.id, Config: emptyPod()}
		}
		if err := s.teardownSandbox(ctx, sb); err != nil {
			return fmt.Errorf("remove incomplete pod sandbox %s: %w", sb.id, err)
		}
		if err := removeAll(sb.dir); err != nil {
			return err
		}
	}
	return nil
}

// damagedDir holds damaged records, for inspection.
const damagedDir = "damaged"

// readRecord reads a record from its file or, when that is damaged, from its copy (see lib/record). restored: the copy
// was used, and the caller must write the record again. Damaged files are moved to damagedDir.
func (s *Server) readRecord(path string, decode func([]byte) error) (restored bool, err error) {
	damage, err := record.Read(path, decode)
	switch {
	case damage != nil:
		kept, aerr := record.SetAside(path, s.path(damagedDir))
		s.log.Error("damaged record restored from its copy; its sandbox or container keeps running", "record", path,
			"kept", kept, "error", errors.Join(damage, aerr))
		return true, nil
	case err == nil || errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	for _, p := range []string{path, record.Copy(path)} {
		kept, aerr := record.SetAside(p, s.path(damagedDir))
		s.log.Error("damaged record has no good copy; its sandbox or container is removed", "record", p, "kept", kept,
			"error", errors.Join(err, aerr))
	}
	return false, err
}

// emptyPod returns an empty configuration, for a sandbox without a readable record.
func emptyPod() message[*runtimeapi.PodSandboxConfig] {
	return message[*runtimeapi.PodSandboxConfig]{&runtimeapi.PodSandboxConfig{}}
}

// adoptSandbox adds a recorded sandbox. It becomes not ready if its namespaces are gone, as after a reboot.
func (s *Server) adoptSandbox(sb *sandbox) {
	s.sandboxes[sb.id] = sb
	s.names[sandboxName(sb.rec.Config.v.GetMetadata())] = sb.id
	if !sb.rec.Ready {
		return
	}
	lost := slices.ContainsFunc(sb.rec.heldNamespaces(), func(k linux.Namespace) bool {
		return !linux.IsNamespace(sb.ns(string(k)))
	})
	if !lost {
		return
	}
	if err := sb.update(func(r *sandboxRecord) { r.Ready = false }); err != nil {
		s.log.Error("record lost pod sandbox", "sandbox", sb.id, "error", err)
	}
}

func (s *Server) loadContainers(ctx context.Context, states map[string]shim.State) error {
	entries, err := os.ReadDir(s.path("containers"))
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, e := range entries {
		c := &container{id: e.Name(), dir: s.path("containers", e.Name()), exited: make(chan struct{})}
		restored, rerr := s.readRecord(filepath.Join(c.dir, containerFile), func(b []byte) (err error) {
			c.rec, err = decodeContainer(c.id, b)
			return err
		})
		if rerr != nil || !c.rec.Complete || s.sandboxes[c.rec.SandboxID] == nil {
			s.log.Info("removing an incomplete container", "container", c.id, "error", rerr)
			c.rec.ID = c.id
			if err := s.destroyContainer(ctx, c); err != nil {
				return fmt.Errorf("remove incomplete container %s: %w", c.id, err)
			}
			continue
		}
		if restored {
			if err := c.update(func(*containerRecord) {}); err != nil {
				return err
			}
		}
		if err := s.sealOldSpec(c); err != nil {
			s.log.Error("spec of an earlier version is not encrypted", "container", c.id, "error", err)
		}
		s.containers[c.id] = c
		s.names[containerName(c.rec.SandboxID, c.rec.Config.v.GetMetadata())] = c.id
		s.adoptContainer(c, states)
	}
	return nil
}

// adoptContainer updates a container's record from the supervisor's state.
func (s *Server) adoptContainer(c *container, states map[string]shim.State) {
	if c.rec.state() == runtimeapi.ContainerState_CONTAINER_EXITED {
		close(c.exited)
		return
	}
	st, known := states[c.id]
	switch {
	case known && c.rec.Started.IsZero():
		// The runtime died between the start and recording it.
		if err := c.update(func(r *containerRecord) { r.Started = st.Started }); err != nil {
			s.log.Error("record container start", "container", c.id, "error", err)
		}
	case !known && !c.rec.Started.IsZero():
		s.recordLost(c)
		return
	}
	if known && !st.Running() {
		if err := c.update(func(r *containerRecord) { r.setExit(st) }); err != nil {
			s.log.Error("record container exit", "container", c.id, "error", err)
		}
	}
}

// sweepSnapshots removes snapshots without a container.
func (s *Server) sweepSnapshots(ctx context.Context) error {
	ids, err := s.cfg.Snapshots.List()
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for id, c := range s.containers {
		used[id] = true
		for _, m := range c.rec.ImageMounts {
			used[m] = true
		}
	}
	var errs []error
	for _, id := range ids {
		if !used[id] {
			errs = append(errs, s.cfg.Snapshots.Remove(ctx, id))
		}
	}
	return errors.Join(errs...)
}

// sweepNetwork detaches pods without a sandbox.
func (s *Server) sweepNetwork(ctx context.Context) error {
	if s.cfg.Network == nil {
		return nil
	}
	var errs []error
	for _, id := range s.cfg.Network.Attached() {
		if s.sandboxes[id] == nil {
			s.log.Info("detaching a pod without a sandbox", "sandbox", id)
			errs = append(errs, s.cfg.Network.Detach(ctx, id))
		}
	}
	return errors.Join(errs...)
}

// cgroupName matches the names of the cgroups of containers and pods below CgroupParent.
var cgroupName = regexp.MustCompile(`^(pod-)?([0-9a-f]{64})$`)

// sweepCgroups removes cgroups without a container or sandbox, and kills the processes in them. The kubelet may
// have put cgroups of pods between CgroupParent and those of containers.
func (s *Server) sweepCgroups() error {
	dirs, err := linux.CgroupDirs(s.host.Cgroups, s.cfg.CgroupParent)
	if err != nil {
		return err
	}
	unknown := map[string]bool{}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil //nolint:nilerr // cgroups come and go
			}
			m := cgroupName.FindStringSubmatch(d.Name())
			if m != nil && s.containers[m[2]] == nil && s.sandboxes[m[2]] == nil {
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
		s.log.Info("removing a cgroup without a container or sandbox", "cgroup", name)
		path := filepath.Join(s.cfg.CgroupParent, name)
		if err := s.killCgroup(path); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, linux.RemoveCgroup(s.host.Cgroups, path))
	}
	return errors.Join(errs...)
}
