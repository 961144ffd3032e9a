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

// load reads sandboxes and containers from disk, joins them with what the supervisor knows, and undoes what is half done.
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
		if s.owned(st) {
			continue
		}
		s.log.Info("removing a container nobody knows", "container", st.ID)
		if err := s.shim.Delete(ctx, st.ID); err != nil {
			return fmt.Errorf("remove unknown container: %w", err)
		}
	}
	for _, st := range all {
		if st.Hold && !st.Running() {
			s.holderEnded(st)
		}
	}
	return errors.Join(s.sweepSnapshots(ctx), s.sweepNetwork(ctx), s.sweepCgroups())
}

// owned tells whether a sandbox or container of ours stands behind what the supervisor knows.
func (s *Server) owned(st shim.State) bool {
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
		if rerr == nil && sb.rec.Whole {
			if restored {
				if err := sb.update(func(*sandboxRecord) {}); err != nil {
					return err
				}
			}
			s.revive(sb)
			continue
		}
		if rerr == nil {
			s.log.Info("removing a half-made pod sandbox", "sandbox", sb.id)
		} else {
			s.log.Info("removing a half-made pod sandbox", "sandbox", sb.id, "error", rerr)
			// Whatever it was to be: every part is taken down.
			sb.rec = sandboxRecord{ID: sb.id, Config: emptyPod()}
		}
		if err := s.dismantle(ctx, sb); err != nil {
			return fmt.Errorf("remove half-made pod sandbox %s: %w", sb.id, err)
		}
		if err := removeAll(sb.dir); err != nil {
			return err
		}
	}
	return nil
}

// damagedDir keeps records that were found damaged, for inspection.
const damagedDir = "damaged"

// readRecord reads the record of something that may be running. One that is damaged is set aside and its copy taken: restored then says
// that it must be written again. When both are damaged both are set aside: nobody can say any more what it was.
func (s *Server) readRecord(path string, decode func([]byte) error) (restored bool, err error) {
	damage, err := record.Read(path, decode)
	switch {
	case damage != nil:
		kept, aerr := record.SetAside(path, s.path(damagedDir))
		s.log.Error("damaged record restored from its copy; what it is of goes on", "record", path, "kept", kept, "error", errors.Join(damage, aerr))
		return true, nil
	case err == nil || errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	for _, p := range []string{path, record.Copy(path)} {
		kept, aerr := record.SetAside(p, s.path(damagedDir))
		s.log.Error("damaged record has no good copy; what it is of ends", "record", p, "kept", kept, "error", errors.Join(err, aerr))
	}
	return false, err
}

// emptyPod stands for a configuration that was never written.
func emptyPod() message[*runtimeapi.PodSandboxConfig] {
	return message[*runtimeapi.PodSandboxConfig]{&runtimeapi.PodSandboxConfig{}}
}

// revive enters a sandbox. One whose namespaces are gone, as after a restart of the machine, is not ready any more.
func (s *Server) revive(sb *sandbox) {
	s.sandboxes[sb.id] = sb
	s.names[sandboxName(sb.rec.Config.v.GetMetadata())] = sb.id
	if !sb.rec.Ready {
		return
	}
	lost := slices.ContainsFunc(sb.rec.heldKinds(), func(k linux.Namespace) bool { return !linux.IsNamespace(sb.ns(string(k))) })
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
		if rerr != nil || !c.rec.Whole || s.sandboxes[c.rec.SandboxID] == nil {
			s.log.Info("removing a half-made container", "container", c.id, "error", rerr)
			c.rec.ID = c.id
			if err := s.strip(ctx, c); err != nil {
				return fmt.Errorf("remove half-made container %s: %w", c.id, err)
			}
			continue
		}
		if restored {
			if err := c.update(func(*containerRecord) {}); err != nil {
				return err
			}
		}
		s.containers[c.id] = c
		s.names[containerName(c.rec.SandboxID, c.rec.Config.v.GetMetadata())] = c.id
		s.join(c, states)
	}
	return nil
}

// join brings a container's record up to what the supervisor knows.
func (s *Server) join(c *container, states map[string]shim.State) {
	if c.rec.state() == runtimeapi.ContainerState_CONTAINER_EXITED {
		close(c.exited)
		return
	}
	st, known := states[c.id]
	switch {
	case known && c.rec.Started.IsZero():
		// We died between its start and the record of it.
		if err := c.update(func(r *containerRecord) { r.Started = st.Started }); err != nil {
			s.log.Error("record container start", "container", c.id, "error", err)
		}
	case !known && !c.rec.Started.IsZero():
		s.vanished(c)
		return
	}
	if known && !st.Running() {
		if err := c.update(func(r *containerRecord) { r.exit(st) }); err != nil {
			s.log.Error("record container exit", "container", c.id, "error", err)
		}
	}
}

// sweepSnapshots removes root file systems that no container has.
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

// sweepNetwork detaches pods that do not exist.
func (s *Server) sweepNetwork(ctx context.Context) error {
	if s.cfg.Network == nil {
		return nil
	}
	var errs []error
	for _, id := range s.cfg.Network.Attached() {
		if s.sandboxes[id] == nil {
			s.log.Info("detaching a pod nobody knows", "sandbox", id)
			errs = append(errs, s.cfg.Network.Detach(ctx, id))
		}
	}
	return errors.Join(errs...)
}

// ourCgroup is how the cgroups of containers and pods are named below ours.
var ourCgroup = regexp.MustCompile(`^(pod-)?([0-9a-f]{64})$`)

// sweepCgroups removes the cgroups of containers and pods that do not exist, with the processes that are still in them.
func (s *Server) sweepCgroups() error {
	dirs, err := linux.CgroupDirs(s.host.Cgroups, s.cfg.CgroupParent)
	if err != nil {
		return err
	}
	strays := map[string]bool{}
	for _, dir := range dirs {
		for _, name := range list(dir) {
			m := ourCgroup.FindStringSubmatch(name)
			if m != nil && s.containers[m[2]] == nil && s.sandboxes[m[2]] == nil {
				strays[name] = true
			}
		}
	}
	var errs []error
	for name := range strays {
		s.log.Info("removing a cgroup nobody knows", "cgroup", name)
		path := filepath.Join(s.cfg.CgroupParent, name)
		if err := s.endStrays(path); err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, linux.RemoveCgroup(s.host.Cgroups, path))
	}
	return errors.Join(errs...)
}
