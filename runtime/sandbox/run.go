// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/runtime/fault"
	"keelson/runtime/pods"
)

// Run makes the sandbox: a directory, namespaces, network, files. After an error everything is undone.
func (s *Service) Run(ctx context.Context, request *runtimeapi.RunPodSandboxRequest) (id string, err error) {
	cfg := request.GetConfig()
	metadata := cfg.GetMetadata()
	if metadata.GetName() == "" || metadata.GetUid() == "" {
		return "", fault.InvalidArgument("run pod sandbox: the metadata must have a name and a uid")
	}
	if request.GetRuntimeHandler() != "" {
		return "", fault.InvalidArgument("run pod sandbox: no runtime handler %q is configured",
			request.GetRuntimeHandler())
	}
	id = pods.NewID()
	rec := pods.SandboxRecord{
		ID:      id,
		Config:  pods.Message[*runtimeapi.PodSandboxConfig]{V: cfg},
		Handler: request.GetRuntimeHandler(),
		Created: time.Now(),
	}
	if err := s.users.Check(ctx, &rec); err != nil {
		return "", err
	}
	if err := s.table.Reserve(pods.SandboxName(metadata), id); err != nil {
		return "", err
	}
	sb := s.table.NewSandbox(rec)
	if err := s.build(ctx, sb); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if uerr := s.teardown(undo, sb); uerr != nil {
			// Keep it as a stopped sandbox, so that the kubelet stops and removes it again.
			err = errors.Join(err, uerr)
			s.table.AddSandbox(sb)
		} else {
			err = errors.Join(err, removeAll(sb.Dir))
			s.table.Unreserve(pods.SandboxName(metadata))
		}
		return "", fault.Wrap(err, "run pod sandbox %s/%s", metadata.GetNamespace(), metadata.GetName())
	}
	s.table.AddSandbox(sb)
	s.events.Send(sb, id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	s.events.Send(sb, id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return id, nil
}

// build makes the parts of a sandbox, its record first.
func (s *Service) build(ctx context.Context, sb *pods.Sandbox) error {
	for _, d := range []string{sb.Dir, sb.NS(""), sb.Shm()} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return fmt.Errorf("make sandbox directory: %w", err)
		}
	}
	rec := sb.Record()
	hostname, err := hostnameOf(&rec)
	if err != nil {
		return err
	}
	if err := sb.Update(func(r *pods.SandboxRecord) { r.Hostname = hostname }); err != nil {
		return err
	}
	if err := s.buildNamespaces(ctx, sb); err != nil {
		return err
	}
	ips, err := s.network.Attach(ctx, sb)
	if err != nil {
		return err
	}
	if err := writeFiles(sb); err != nil {
		return err
	}
	if rec.Options().GetIpc() != runtimeapi.NamespaceMode_NODE {
		opts := "mode=1777,size=65536k"
		if uid, gid, err := rec.IDMaps().Root(); err == nil {
			opts += fmt.Sprintf(",uid=%d,gid=%d", uid, gid)
		}
		if err := unix.Mount("shm", sb.Shm(), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, opts); err != nil {
			return fmt.Errorf("mount the pod's /dev/shm: %w", err)
		}
	}
	return sb.Update(func(r *pods.SandboxRecord) {
		r.IPs = ips
		r.Ready = true
		r.Complete = true
	})
}

// hostnameOf returns the pod's host name; a pod with host network, or without a host name, has the host's.
func hostnameOf(r *pods.SandboxRecord) (string, error) {
	if h := r.Config.V.GetHostname(); h != "" && r.Options().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		return h, nil
	}
	h, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("read hostname: %w", err)
	}
	return h, nil
}
