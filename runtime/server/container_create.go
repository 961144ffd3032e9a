// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
	"keelson/runtime/fault"
	"keelson/runtime/image"
	"keelson/runtime/oci"
	"keelson/runtime/pods"
	"keelson/runtime/shim"
	"keelson/runtime/userns"
)

// CreateContainer makes the container's root file system and OCI spec. It starts nothing.
func (s *Server) CreateContainer(
	ctx context.Context, request *runtimeapi.CreateContainerRequest,
) (*runtimeapi.CreateContainerResponse, error) {
	sb, err := s.table.Sandbox(request.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	sb.Op.RLock()
	defer sb.Op.RUnlock()
	metadata := request.GetConfig().GetMetadata()
	if !sb.Record().Ready {
		return nil, fault.FailedPrecondition("create container %s: pod sandbox %s is not ready", metadata.GetName(),
			sb.ID)
	}
	if metadata.GetName() == "" {
		return nil, fault.InvalidArgument("create container: the metadata must have a name")
	}
	img, ok := s.cfg.Images.Get(request.GetConfig().GetImage().GetImage())
	if !ok {
		return nil, fault.NotFound("image", request.GetConfig().GetImage().GetImage())
	}
	id := pods.NewID()
	name := pods.ContainerName(sb.ID, metadata)
	if err := s.table.Reserve(name, id); err != nil {
		return nil, err
	}
	rec := pods.ContainerRecord{
		ID:         id,
		SandboxID:  sb.ID,
		ImageID:    img.ID,
		ImageRef:   imageRef(img),
		Config:     pods.Message[*runtimeapi.ContainerConfig]{V: pods.WithoutEnvironment(request.GetConfig())},
		Resources:  pods.Message[*runtimeapi.LinuxContainerResources]{V: request.GetConfig().GetLinux().GetResources()},
		User:       pods.Message[*runtimeapi.LinuxContainerUser]{V: &runtimeapi.LinuxContainerUser{}},
		StopSignal: img.Config.StopSignal,
		Created:    time.Now(),
	}
	if rec.Resources.V == nil {
		rec.Resources.V = &runtimeapi.LinuxContainerResources{}
	}
	ctr := s.table.NewContainer(rec)
	if err := s.buildContainer(ctx, sb, ctr, request, img); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if uerr := s.destroyContainer(undo, ctr); uerr != nil {
			err = errors.Join(err, uerr)
		}
		s.table.Unreserve(name)
		return nil, fault.Wrap(err, "create container %s", metadata.GetName())
	}
	s.table.AddContainer(ctr)
	s.events.Send(sb, id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// buildContainer makes the parts of a created container, its record first.
func (s *Server) buildContainer(
	ctx context.Context, sb *pods.Sandbox, ctr *pods.Container, request *runtimeapi.CreateContainerRequest,
	img image.Image,
) error {
	cfg := request.GetConfig()
	if err := os.Mkdir(ctr.Dir, 0o700); err != nil {
		return fmt.Errorf("make container directory: %w", err)
	}
	pod := sb.Record()
	log, err := logPath(&pod, cfg)
	if err != nil {
		return err
	}
	cgroup := s.cgroups.OfContainer(&pod, ctr.ID)
	err = ctr.Update(func(r *pods.ContainerRecord) {
		r.LogPath = log
		r.CgroupPath = cgroup
	})
	if err != nil {
		return err
	}
	rootfs, err := s.users.Rootfs(ctx, sb, ctr.ID, img)
	if err != nil {
		return err
	}
	in := oci.Input{
		Container:  cfg,
		Sandbox:    cmp.Or(request.GetSandboxConfig(), pod.Config.V),
		Image:      img.Config,
		Host:       s.host,
		Hostname:   pod.Hostname,
		Rootfs:     rootfs,
		Namespaces: sb.Namespaces(),
		Files:      sb.Files(),
		CgroupPath: cgroup,
	}
	if in.Container, err = s.mountImages(ctx, sb, ctr, cfg); err != nil {
		return err
	}
	if in.Container, err = mountVolumes(&pod, rootfs, in.Container, img.Config.Volumes); err != nil {
		return err
	}
	if err := s.readSpecInputs(sb, &in); err != nil {
		return err
	}
	res, err := oci.Spec(in)
	if err != nil {
		return err
	}
	if err := s.injectCDI(in.Container, res.Spec); err != nil {
		return err
	}
	if err := userns.CheckUser(&pod, res.User); err != nil {
		return err
	}
	if err := s.specs.Write(ctr, res.Spec); err != nil {
		return err
	}
	return ctr.Update(func(r *pods.ContainerRecord) {
		r.User.V = res.User
		r.Complete = true
	})
}

// readSpecInputs reads the files and kernel state that the spec depends on: the image's users, devices, profiles, the
// PID namespace of a target container.
func (s *Server) readSpecInputs(sb *pods.Sandbox, in *oci.Input) error {
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
			return fault.InvalidArgument("read seccomp profile: %v", err)
		}
	}
	if in.Container, err = resolveMounts(in.Container); err != nil {
		return err
	}
	if err := userns.CheckMounts(sb, in.Container.GetMounts()); err != nil {
		return err
	}
	switch sec.GetNamespaceOptions().GetPid() {
	case runtimeapi.NamespaceMode_POD:
		if at := sb.NS(pods.PIDNamespace); linux.IsNamespace(at) {
			in.Namespaces.PID = at
		}
	case runtimeapi.NamespaceMode_TARGET:
		in.Namespaces.PID, err = s.targetPIDNamespace(sb, sec.GetNamespaceOptions().GetTargetId())
	case runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_NODE:
	}
	return err
}

// targetPIDNamespace returns the PID namespace of another container of the pod.
func (s *Server) targetPIDNamespace(sb *pods.Sandbox, targetID string) (string, error) {
	c, err := s.table.Container(targetID)
	if err != nil {
		return "", err
	}
	r := c.Record()
	if r.SandboxID != sb.ID {
		return "", fault.InvalidArgument("target container %s is not in pod sandbox %s", targetID, sb.ID)
	}
	if r.State() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return "", fault.FailedPrecondition("target container %s is not running", targetID)
	}
	return shim.PIDNamespaceOf(r.ID), nil
}

// logPath joins the pod's log directory and the container's log path, and makes the directories.
func logPath(pod *pods.SandboxRecord, cfg *runtimeapi.ContainerConfig) (string, error) {
	dir := pod.Config.V.GetLogDirectory()
	if dir == "" || cfg.GetLogPath() == "" {
		return "", nil
	}
	p := filepath.Join(dir, cfg.GetLogPath())
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return "", fmt.Errorf("make log directory: %w", err)
	}
	return p, nil
}

// destroyContainer undoes buildContainer. It is idempotent.
func (s *Server) destroyContainer(ctx context.Context, c *pods.Container) error {
	var errs []error
	errs = append(errs, s.shim.Delete(ctx, c.ID), s.removeCgroup(c), s.cfg.Snapshots.Remove(ctx, c.ID))
	for _, id := range c.Record().ImageMounts {
		errs = append(errs, s.cfg.Snapshots.Remove(ctx, id))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return removeAll(c.Dir)
}

// removeCgroup removes the container's cgroup. The supervisor does that itself, unless it was killed in the middle of a
// start.
func (s *Server) removeCgroup(c *pods.Container) error {
	path := c.Record().CgroupPath
	if filepath.Base(path) != c.ID {
		return nil // it has none, or a damaged record names another cgroup
	}
	if err := s.cgroups.Kill(path); err != nil {
		return err
	}
	return s.cgroups.Remove(path)
}

func imageRef(img image.Image) string {
	if len(img.RepoDigests) > 0 {
		return img.RepoDigests[0]
	}
	return img.ID
}
