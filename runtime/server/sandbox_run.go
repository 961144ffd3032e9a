// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
	"keelson/runtime/fault"
	"keelson/runtime/pods"
	"keelson/runtime/shim"
)

// RunPodSandbox makes the sandbox: a directory, namespaces, network, files. After an error everything is undone.
func (s *Server) RunPodSandbox(
	ctx context.Context, request *runtimeapi.RunPodSandboxRequest,
) (*runtimeapi.RunPodSandboxResponse, error) {
	cfg := request.GetConfig()
	metadata := cfg.GetMetadata()
	if metadata.GetName() == "" || metadata.GetUid() == "" {
		return nil, fault.InvalidArgument("run pod sandbox: the metadata must have a name and a uid")
	}
	if request.GetRuntimeHandler() != "" {
		return nil, fault.InvalidArgument("run pod sandbox: no runtime handler %q is configured",
			request.GetRuntimeHandler())
	}
	id := pods.NewID()
	rec := pods.SandboxRecord{
		ID:      id,
		Config:  pods.Message[*runtimeapi.PodSandboxConfig]{V: cfg},
		Handler: request.GetRuntimeHandler(),
		Created: time.Now(),
	}
	if err := s.users.Check(ctx, &rec); err != nil {
		return nil, err
	}
	if err := s.table.Reserve(pods.SandboxName(metadata), id); err != nil {
		return nil, err
	}
	sb := s.table.NewSandbox(rec)
	if err := s.buildSandbox(ctx, sb); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if uerr := s.teardownSandbox(undo, sb); uerr != nil {
			// Keep it as a stopped sandbox, so that the kubelet stops and removes it again.
			err = errors.Join(err, uerr)
			s.table.AddSandbox(sb)
		} else {
			err = errors.Join(err, removeAll(sb.Dir))
			s.table.Unreserve(pods.SandboxName(metadata))
		}
		return nil, fault.Wrap(err, "run pod sandbox %s/%s", metadata.GetNamespace(), metadata.GetName())
	}
	s.table.AddSandbox(sb)
	s.events.Send(sb, id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	s.events.Send(sb, id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// buildSandbox makes the parts of a sandbox, its record first.
func (s *Server) buildSandbox(ctx context.Context, sb *pods.Sandbox) error {
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
	if err := s.writeFiles(sb); err != nil {
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

func (s *Server) buildNamespaces(ctx context.Context, sb *pods.Sandbox) error {
	rec := sb.Record()
	kinds := rec.OwnNamespaces()
	if err := checkSysctls(rec.Config.V.GetLinux().GetSysctls(), kinds); err != nil {
		return err
	}
	var err error
	switch {
	case rec.HasUserNamespace():
		err = s.buildUserNamespace(ctx, sb, kinds)
	case len(kinds) > 0:
		err = linux.HoldNamespaces(sb.NS(""), kinds, func() error {
			_, err := configureNamespaces(&rec, kinds, func(string) bool { return false })
			return err
		})
	}
	if err != nil {
		return err
	}
	if rec.Options().GetPid() != runtimeapi.NamespaceMode_POD {
		return nil
	}
	hold := shim.Hold{Name: "/pause"}
	if rec.HasUserNamespace() { // it is joined first, so that it owns the new PID namespace
		hold.Namespaces = append(hold.Namespaces, sb.NS(linux.UserNamespace))
	}
	for _, k := range kinds {
		hold.Namespaces = append(hold.Namespaces, sb.NS(k))
	}
	st, err := s.shim.Hold(context.Background(), sb.HolderID(), hold)
	if err != nil {
		return fmt.Errorf("hold the pod's process namespace: %w", err)
	}
	if err := linux.HoldNamespace(st.PID, pods.PIDNamespace, sb.NS(pods.PIDNamespace)); err != nil {
		return err
	}
	// The holder is alive, so its pid was not reused, and the namespace is the holder's.
	if err := s.shim.Kill(context.Background(), sb.HolderID(), shim.Kill{Signal: 0}); err != nil {
		return fmt.Errorf("hold the pod's process namespace: %w", err)
	}
	return nil
}

// buildUserNamespace makes the pod's namespaces and the user namespace that owns them.
func (s *Server) buildUserNamespace(ctx context.Context, sb *pods.Sandbox, kinds []linux.Namespace) error {
	r := sb.Record()
	uid, gid, err := r.IDMaps().Root()
	if err != nil {
		return err
	}
	if err := s.users.Hold(ctx, sb, kinds); err != nil {
		return err
	}
	return linux.InNamespaces(sb.NS(""), kinds, func() error {
		remaining, err := configureNamespaces(&r, kinds, func(name string) bool {
			return namespaceOf(name) == linux.IPCNamespace
		})
		if err != nil || len(remaining) == 0 {
			return err
		}
		// Only the root of the user namespace may set the IPC namespace's sysctls.
		if err := linux.BecomeOnThread(uid, gid); err != nil {
			return err
		}
		for k, v := range remaining {
			if err := linux.Sysctl(k, v); err != nil {
				return err
			}
		}
		return nil
	})
}

// configureNamespaces sets up the new namespaces of this thread: loopback, host name, and the pod's sysctls, except for
// those that later selects. It returns these.
func configureNamespaces(r *pods.SandboxRecord, kinds []linux.Namespace, later func(
	sysctl string,
) bool,
) (remaining map[string]string, err error) {
	if slices.Contains(kinds, linux.NetworkNamespace) {
		if err := linux.LoopbackUp(); err != nil {
			return nil, err
		}
		if err := unix.Sethostname([]byte(r.Hostname)); err != nil {
			return nil, fmt.Errorf("set hostname %q: %w", r.Hostname, err)
		}
	}
	remaining = map[string]string{}
	for k, v := range r.Config.V.GetLinux().GetSysctls() {
		if later(k) {
			remaining[k] = v
			continue
		}
		if err := linux.Sysctl(k, v); err != nil {
			return nil, err
		}
	}
	return remaining, nil
}

// namespaceOf returns the kind of namespace that a sysctl belongs to; empty: none.
func namespaceOf(sysctl string) linux.Namespace {
	name := strings.ReplaceAll(sysctl, "/", ".")
	switch {
	case strings.HasPrefix(name, "net."):
		return linux.NetworkNamespace
	case strings.HasPrefix(name, "kernel.shm"), strings.HasPrefix(name, "kernel.msg"), name == "kernel.sem",
		strings.HasPrefix(name, "fs.mqueue."):
		return linux.IPCNamespace
	case name == "kernel.domainname":
		return linux.UTSNamespace
	}
	return ""
}

// checkSysctls refuses sysctls that would change the host: each must belong to a namespace that the pod does not share
// with the host.
func checkSysctls(sysctls map[string]string, kinds []linux.Namespace) error {
	for k := range sysctls {
		in := namespaceOf(k)
		if in == "" {
			return fault.InvalidArgument("sysctl %q does not belong to a namespace", k)
		}
		if !slices.Contains(kinds, in) {
			return fault.InvalidArgument("sysctl %q is the host's in this pod, which shares the host's %s namespace", k,
				in)
		}
	}
	return nil
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
