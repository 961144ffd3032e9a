// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
	"keelson/runtime/image"
	"keelson/runtime/oci"
	"keelson/runtime/shim"
)

// CreateContainer makes the container's root file system and decides what it will be. It starts nothing.
func (s *Server) CreateContainer(ctx context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	sb, err := s.sandbox(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	sb.op.RLock()
	defer sb.op.RUnlock()
	m := r.GetConfig().GetMetadata()
	if !sb.record().Ready {
		return nil, refused("create container %s: pod sandbox %s is not ready", m.GetName(), sb.id)
	}
	if m.GetName() == "" {
		return nil, badRequest("create container: the metadata must have a name")
	}
	img, ok := s.cfg.Images.Get(r.GetConfig().GetImage().GetImage())
	if !ok {
		return nil, notFound("image", r.GetConfig().GetImage().GetImage())
	}
	id := newID()
	name := containerName(sb.id, m)
	if err := s.reserve(name, id); err != nil {
		return nil, err
	}
	c := &container{id: id, dir: s.path("containers", id), exited: make(chan struct{})}
	c.rec = containerRecord{
		ID: id, SandboxID: sb.id, Config: message[*runtimeapi.ContainerConfig]{r.GetConfig()}, ImageID: img.ID, ImageRef: imageRef(img),
		Resources:  message[*runtimeapi.LinuxContainerResources]{r.GetConfig().GetLinux().GetResources()},
		User:       message[*runtimeapi.LinuxContainerUser]{&runtimeapi.LinuxContainerUser{}},
		StopSignal: img.Config.StopSignal, Created: time.Now(),
	}
	if c.rec.Resources.v == nil {
		c.rec.Resources.v = &runtimeapi.LinuxContainerResources{}
	}
	if err := s.furnish(ctx, sb, c, img); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if uerr := s.strip(undo, c); uerr != nil {
			err = errors.Join(err, uerr)
		}
		s.unreserve(name)
		return nil, act(err, "create container %s", m.GetName())
	}
	s.mu.Lock()
	s.containers[id] = c
	s.mu.Unlock()
	s.tell(sb, id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// furnish makes everything a created container consists of, its record first.
func (s *Server) furnish(ctx context.Context, sb *sandbox, c *container, img image.Image) error {
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return fmt.Errorf("make container directory: %w", err)
	}
	pod := sb.record()
	log, err := logPath(&pod, c.rec.Config.v)
	if err != nil {
		return err
	}
	err = c.update(func(r *containerRecord) {
		r.LogPath = log
		r.CgroupPath = filepath.Join(s.podCgroup(&pod), c.id)
	})
	if err != nil {
		return err
	}
	rootfs, err := s.prepare(ctx, sb, c.id, img)
	if err != nil {
		return err
	}
	in := oci.Input{
		Container: c.rec.Config.v, Sandbox: pod.Config.v, Image: img.Config, Host: s.host, Hostname: pod.Hostname, Rootfs: rootfs,
		Namespaces: sb.namespaces(), Files: sb.files(), CgroupPath: c.rec.CgroupPath,
	}
	if in.Container, err = s.mountImages(ctx, sb, c); err != nil {
		return err
	}
	if err := s.look(sb, &in); err != nil {
		return err
	}
	res, err := oci.Spec(in)
	if err != nil {
		return err
	}
	if err := s.inject(in.Container, res.Spec); err != nil {
		return err
	}
	if err := checkMappedUser(&pod, res.User); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(c.dir, specFile), res.Spec); err != nil {
		return err
	}
	return c.update(func(r *containerRecord) { r.User.v, r.Whole = res.User, true })
}

// look reads what the spec depends on: the image's users, devices, profiles, the namespace of a target container.
func (s *Server) look(sb *sandbox, in *oci.Input) error {
	var err error
	if in.Passwd, err = readInside(in.Rootfs, "etc/passwd"); err != nil {
		return err
	}
	if in.Group, err = readInside(in.Rootfs, "etc/group"); err != nil {
		return err
	}
	sec := in.Container.GetLinux().GetSecurityContext()
	if in.Devices, err = devices(in.Container.GetDevices(), sec.GetPrivileged()); err != nil {
		return err
	}
	if p := oci.LocalhostProfile(sec); p != "" {
		if in.SeccompProfile, err = os.ReadFile(p); err != nil {
			return badRequest("read seccomp profile: %v", err)
		}
	}
	if in.Container, err = resolveMounts(in.Container); err != nil {
		return err
	}
	if err := checkMappedMounts(sb, in.Container.GetMounts()); err != nil {
		return err
	}
	switch sec.GetNamespaceOptions().GetPid() {
	case runtimeapi.NamespaceMode_POD:
		if at := sb.ns(string(pidNamespace)); linux.IsNamespace(at) {
			in.Namespaces.PID = at
		}
	case runtimeapi.NamespaceMode_TARGET:
		in.Namespaces.PID, err = s.pidOf(sb, sec.GetNamespaceOptions().GetTargetId())
	case runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_NODE:
	}
	return err
}

// pidOf is the process namespace of another container of the pod.
func (s *Server) pidOf(sb *sandbox, targetID string) (string, error) {
	c, err := s.container(targetID)
	if err != nil {
		return "", err
	}
	r := c.record()
	if r.SandboxID != sb.id {
		return "", badRequest("target container %s is not in pod sandbox %s", targetID, sb.id)
	}
	if r.state() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return "", refused("target container %s is not running", targetID)
	}
	return shim.PIDNamespaceOf(r.ID), nil
}

// logPath joins the pod's log directory with the container's path below it, making directories.
func logPath(pod *sandboxRecord, cfg *runtimeapi.ContainerConfig) (string, error) {
	dir := pod.Config.v.GetLogDirectory()
	if dir == "" || cfg.GetLogPath() == "" {
		return "", nil
	}
	p := filepath.Join(dir, cfg.GetLogPath())
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return "", fmt.Errorf("make log directory: %w", err)
	}
	return p, nil
}

// strip removes what furnish made. It may be repeated.
func (s *Server) strip(ctx context.Context, c *container) error {
	var errs []error
	errs = append(errs, s.shim.Delete(ctx, c.id), s.removeCgroup(c), s.cfg.Snapshots.Remove(ctx, c.id))
	for _, id := range c.record().ImageMounts {
		errs = append(errs, s.cfg.Snapshots.Remove(ctx, id))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return removeAll(c.dir)
}

// removeCgroup removes what a supervisor that was killed in the middle of a start has left: the others have removed it themselves.
func (s *Server) removeCgroup(c *container) error {
	path := c.record().CgroupPath
	if filepath.Base(path) != c.id {
		return nil // it has none, or a damaged record names another's
	}
	if err := s.endStrays(path); err != nil {
		return err
	}
	return linux.RemoveCgroup(s.host.Cgroups, path)
}

func imageRef(img image.Image) string {
	if len(img.RepoDigests) > 0 {
		return img.RepoDigests[0]
	}
	return img.ID
}
