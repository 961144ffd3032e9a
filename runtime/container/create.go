// SPDX-License-Identifier: Apache-2.0

package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/fault"
	"keelson/runtime/image"
	"keelson/runtime/oci"
	"keelson/runtime/pods"
	"keelson/runtime/userns"
)

// Create makes the container's root file system and OCI spec. It starts nothing.
func (s *Service) Create(ctx context.Context, request *runtimeapi.CreateContainerRequest) (id string, err error) {
	sb, err := s.table.Sandbox(request.GetPodSandboxId())
	if err != nil {
		return "", err
	}
	sb.Op.RLock()
	defer sb.Op.RUnlock()
	metadata := request.GetConfig().GetMetadata()
	if !sb.Record().Ready {
		return "", fault.FailedPrecondition("create container %s: pod sandbox %s is not ready", metadata.GetName(),
			sb.ID)
	}
	if metadata.GetName() == "" {
		return "", fault.InvalidArgument("create container: the metadata must have a name")
	}
	img, ok := s.images.Get(request.GetConfig().GetImage().GetImage())
	if !ok {
		return "", fault.NotFound("image", request.GetConfig().GetImage().GetImage())
	}
	id = pods.NewID()
	name := pods.ContainerName(sb.ID, metadata)
	if err := s.table.Reserve(name, id); err != nil {
		return "", err
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
	if err := s.build(ctx, sb, ctr, request, img); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if uerr := s.destroy(undo, ctr); uerr != nil {
			err = errors.Join(err, uerr)
		}
		s.table.Unreserve(name)
		return "", fault.Wrap(err, "create container %s", metadata.GetName())
	}
	s.table.AddContainer(ctr)
	s.events.Send(sb, id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	return id, nil
}

// build makes the parts of a created container, its record first.
func (s *Service) build(
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
	if err := s.cdi.inject(in.Container, res.Spec); err != nil {
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

func imageRef(img image.Image) string {
	if len(img.RepoDigests) > 0 {
		return img.RepoDigests[0]
	}
	return img.ID
}
