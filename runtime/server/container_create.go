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
	"keelson/runtime/image"
	"keelson/runtime/oci"
	"keelson/runtime/shim"
)

// CreateContainer makes the container's root file system and OCI spec. It starts nothing.
func (s *Server) CreateContainer(
	ctx context.Context, request *runtimeapi.CreateContainerRequest,
) (*runtimeapi.CreateContainerResponse, error) {
	sb, err := s.sandbox(request.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	sb.op.RLock()
	defer sb.op.RUnlock()
	metadata := request.GetConfig().GetMetadata()
	if !sb.record().Ready {
		return nil, failedPrecondition("create container %s: pod sandbox %s is not ready", metadata.GetName(), sb.id)
	}
	if metadata.GetName() == "" {
		return nil, invalidArgument("create container: the metadata must have a name")
	}
	img, ok := s.cfg.Images.Get(request.GetConfig().GetImage().GetImage())
	if !ok {
		return nil, notFound("image", request.GetConfig().GetImage().GetImage())
	}
	id := newID()
	name := containerName(sb.id, metadata)
	if err := s.reserve(name, id); err != nil {
		return nil, err
	}
	ctr := &container{id: id, dir: s.path("containers", id), exited: make(chan struct{})}
	ctr.rec = containerRecord{
		ID:         id,
		SandboxID:  sb.id,
		ImageID:    img.ID,
		ImageRef:   imageRef(img),
		Config:     message[*runtimeapi.ContainerConfig]{withoutEnvironment(request.GetConfig())},
		Resources:  message[*runtimeapi.LinuxContainerResources]{request.GetConfig().GetLinux().GetResources()},
		User:       message[*runtimeapi.LinuxContainerUser]{&runtimeapi.LinuxContainerUser{}},
		StopSignal: img.Config.StopSignal,
		Created:    time.Now(),
	}
	if ctr.rec.Resources.v == nil {
		ctr.rec.Resources.v = &runtimeapi.LinuxContainerResources{}
	}
	if err := s.buildContainer(ctx, sb, ctr, request, img); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if uerr := s.destroyContainer(undo, ctr); uerr != nil {
			err = errors.Join(err, uerr)
		}
		s.unreserve(name)
		return nil, wrapf(err, "create container %s", metadata.GetName())
	}
	s.mu.Lock()
	s.containers[id] = ctr
	s.mu.Unlock()
	s.sendEvent(sb, id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// buildContainer makes the parts of a created container, its record first.
func (s *Server) buildContainer(
	ctx context.Context, sb *sandbox, ctr *container, request *runtimeapi.CreateContainerRequest, img image.Image,
) error {
	cfg := request.GetConfig()
	if err := os.Mkdir(ctr.dir, 0o700); err != nil {
		return fmt.Errorf("make container directory: %w", err)
	}
	pod := sb.record()
	log, err := logPath(&pod, cfg)
	if err != nil {
		return err
	}
	err = ctr.update(func(r *containerRecord) {
		r.LogPath = log
		r.CgroupPath = filepath.Join(s.podCgroup(&pod), ctr.id)
	})
	if err != nil {
		return err
	}
	rootfs, err := s.prepareRootfs(ctx, sb, ctr.id, img)
	if err != nil {
		return err
	}
	in := oci.Input{
		Container:  cfg,
		Sandbox:    cmp.Or(request.GetSandboxConfig(), pod.Config.v),
		Image:      img.Config,
		Host:       s.host,
		Hostname:   pod.Hostname,
		Rootfs:     rootfs,
		Namespaces: sb.namespaces(),
		Files:      sb.files(),
		CgroupPath: ctr.rec.CgroupPath,
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
	if err := checkMappedUser(&pod, res.User); err != nil {
		return err
	}
	if err := s.writeSpec(ctr, res.Spec); err != nil {
		return err
	}
	return ctr.update(func(r *containerRecord) {
		r.User.v = res.User
		r.Complete = true
	})
}

// readSpecInputs reads the files and kernel state that the spec depends on: the image's users, devices, profiles, the
// PID namespace of a target container.
func (s *Server) readSpecInputs(sb *sandbox, in *oci.Input) error {
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
			return invalidArgument("read seccomp profile: %v", err)
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
		in.Namespaces.PID, err = s.targetPIDNamespace(sb, sec.GetNamespaceOptions().GetTargetId())
	case runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_NODE:
	}
	return err
}

// targetPIDNamespace returns the PID namespace of another container of the pod.
func (s *Server) targetPIDNamespace(sb *sandbox, targetID string) (string, error) {
	c, err := s.container(targetID)
	if err != nil {
		return "", err
	}
	r := c.record()
	if r.SandboxID != sb.id {
		return "", invalidArgument("target container %s is not in pod sandbox %s", targetID, sb.id)
	}
	if r.state() != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return "", failedPrecondition("target container %s is not running", targetID)
	}
	return shim.PIDNamespaceOf(r.ID), nil
}

// logPath joins the pod's log directory and the container's log path, and makes the directories.
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

// destroyContainer undoes buildContainer. It is idempotent.
func (s *Server) destroyContainer(ctx context.Context, c *container) error {
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

// removeCgroup removes the container's cgroup. The supervisor does that itself, unless it was killed in the middle of a
// start.
func (s *Server) removeCgroup(c *container) error {
	path := c.record().CgroupPath
	if filepath.Base(path) != c.id {
		return nil // it has none, or a damaged record names another cgroup
	}
	if err := s.killCgroup(path); err != nil {
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
