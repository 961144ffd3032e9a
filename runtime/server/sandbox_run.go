// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/event"
	"keelson/lib/linux"
	"keelson/runtime/shim"
)

// RunPodSandbox makes the sandbox: a directory, namespaces, network, files. After an error everything is undone.
func (s *Server) RunPodSandbox(
	ctx context.Context, request *runtimeapi.RunPodSandboxRequest,
) (*runtimeapi.RunPodSandboxResponse, error) {
	cfg := request.GetConfig()
	metadata := cfg.GetMetadata()
	if metadata.GetName() == "" || metadata.GetUid() == "" {
		return nil, invalidArgument("run pod sandbox: the metadata must have a name and a uid")
	}
	if request.GetRuntimeHandler() != "" {
		return nil, invalidArgument("run pod sandbox: no runtime handler %q is configured", request.GetRuntimeHandler())
	}
	id := newID()
	rec := sandboxRecord{
		ID:      id,
		Config:  message[*runtimeapi.PodSandboxConfig]{cfg},
		Handler: request.GetRuntimeHandler(),
		Created: time.Now(),
	}
	if err := s.checkUserNamespace(ctx, &rec); err != nil {
		return nil, err
	}
	if err := s.reserve(sandboxName(metadata), id); err != nil {
		return nil, err
	}
	sb := &sandbox{id: id, dir: s.path("sandboxes", id), rec: rec}
	if err := s.buildSandbox(ctx, sb); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if uerr := s.teardownSandbox(undo, sb); uerr != nil {
			// Keep it as a stopped sandbox, so that the kubelet stops and removes it again.
			err = errors.Join(err, uerr)
			s.mu.Lock()
			s.sandboxes[id] = sb
			s.mu.Unlock()
		} else {
			err = errors.Join(err, removeAll(sb.dir))
			s.unreserve(sandboxName(metadata))
		}
		return nil, wrapf(err, "run pod sandbox %s/%s", metadata.GetNamespace(), metadata.GetName())
	}
	s.mu.Lock()
	s.sandboxes[id] = sb
	s.mu.Unlock()
	s.sendEvent(sb, id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	s.sendEvent(sb, id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// buildSandbox makes the parts of a sandbox, its record first.
func (s *Server) buildSandbox(ctx context.Context, sb *sandbox) error {
	for _, d := range []string{sb.dir, sb.ns(""), sb.shm()} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return fmt.Errorf("make sandbox directory: %w", err)
		}
	}
	hostname, err := hostnameOf(&sb.rec)
	if err != nil {
		return err
	}
	if err := sb.update(func(r *sandboxRecord) { r.Hostname = hostname }); err != nil {
		return err
	}
	if err := s.buildNamespaces(ctx, sb); err != nil {
		return err
	}
	ips, err := s.attachNetwork(ctx, sb)
	if err != nil {
		return err
	}
	if err := s.writeFiles(sb); err != nil {
		return err
	}
	if sb.rec.options().GetIpc() != runtimeapi.NamespaceMode_NODE {
		opts := "mode=1777,size=65536k"
		if uid, gid, err := sb.rec.idMaps().Root(); err == nil {
			opts += fmt.Sprintf(",uid=%d,gid=%d", uid, gid)
		}
		if err := unix.Mount("shm", sb.shm(), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, opts); err != nil {
			return fmt.Errorf("mount the pod's /dev/shm: %w", err)
		}
	}
	return sb.update(func(r *sandboxRecord) {
		r.IPs = ips
		r.Ready = true
		r.Complete = true
	})
}

func (sb *sandbox) ns(kind string) string { return filepath.Join(sb.dir, "ns", kind) }
func (sb *sandbox) shm() string           { return filepath.Join(sb.dir, "shm") }

// pidNamespace is the PID namespace that the pod's containers share.
const pidNamespace linux.Namespace = "pid"

// holderID is the supervisor's name for the first process of the pod's PID namespace.
func (sb *sandbox) holderID() string { return "hold-" + sb.id }

// ownNamespaces returns the kinds of namespaces that the sandbox does not share with the host.
func (r *sandboxRecord) ownNamespaces() []linux.Namespace {
	var out []linux.Namespace
	if r.options().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		out = append(out, linux.NetworkNamespace, linux.UTSNamespace)
	}
	if r.options().GetIpc() != runtimeapi.NamespaceMode_NODE {
		out = append(out, linux.IPCNamespace)
	}
	return out
}

// heldNamespaces returns the kinds of all namespaces that are held by mounts below the sandbox's directory.
func (r *sandboxRecord) heldNamespaces() []linux.Namespace {
	out := r.ownNamespaces()
	if r.options().GetPid() == runtimeapi.NamespaceMode_POD {
		out = append(out, pidNamespace)
	}
	if r.hasUserNamespace() {
		out = append(out, linux.UserNamespace)
	}
	return out
}

func (s *Server) buildNamespaces(ctx context.Context, sb *sandbox) error {
	kinds := sb.rec.ownNamespaces()
	if err := checkSysctls(sb.rec.Config.v.GetLinux().GetSysctls(), kinds); err != nil {
		return err
	}
	var err error
	switch {
	case sb.rec.hasUserNamespace():
		err = s.buildUserNamespace(ctx, sb, kinds)
	case len(kinds) > 0:
		err = linux.HoldNamespaces(sb.ns(""), kinds, func() error {
			_, err := configureNamespaces(&sb.rec, kinds, func(string) bool { return false })
			return err
		})
	}
	if err != nil {
		return err
	}
	if sb.rec.options().GetPid() != runtimeapi.NamespaceMode_POD {
		return nil
	}
	hold := shim.Hold{Name: "/pause"}
	if sb.rec.hasUserNamespace() { // it is joined first, so that it owns the new PID namespace
		hold.Namespaces = append(hold.Namespaces, sb.ns(string(linux.UserNamespace)))
	}
	for _, k := range kinds {
		hold.Namespaces = append(hold.Namespaces, sb.ns(string(k)))
	}
	st, err := s.shim.Hold(context.Background(), sb.holderID(), hold)
	if err != nil {
		return fmt.Errorf("hold the pod's process namespace: %w", err)
	}
	if err := linux.HoldNamespace(st.PID, pidNamespace, sb.ns(string(pidNamespace))); err != nil {
		return err
	}
	// The holder is alive, so its pid was not reused, and the namespace is the holder's.
	if err := s.shim.Kill(context.Background(), sb.holderID(), shim.Kill{Signal: 0}); err != nil {
		return fmt.Errorf("hold the pod's process namespace: %w", err)
	}
	return nil
}

// configureNamespaces sets up the new namespaces of this thread: loopback, host name, and the pod's sysctls, except for
// those that later selects. It returns these.
func configureNamespaces(r *sandboxRecord, kinds []linux.Namespace, later func(
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
	for k, v := range r.Config.v.GetLinux().GetSysctls() {
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
			return invalidArgument("sysctl %q does not belong to a namespace", k)
		}
		if !slices.Contains(kinds, in) {
			return invalidArgument("sysctl %q is the host's in this pod, which shares the host's %s namespace", k, in)
		}
	}
	return nil
}

func subject(m *runtimeapi.PodSandboxMetadata) event.Subject {
	return event.Subject{
		Resource:  "pods",
		Namespace: m.GetNamespace(),
		Name:      m.GetName(),
		UID:       m.GetUid(),
	}
}

// podOf returns the input of Network.Attach for a sandbox.
func podOf(sb *sandbox) (Pod, error) {
	cfg := sb.rec.Config.v
	m := cfg.GetMetadata()
	ports, err := portsOf(cfg)
	return Pod{
		ID:           sb.id,
		Netns:        sb.ns(string(linux.NetworkNamespace)),
		Namespace:    m.GetNamespace(),
		Name:         m.GetName(),
		UID:          m.GetUid(),
		Annotations:  cfg.GetAnnotations(),
		CgroupParent: cfg.GetLinux().GetCgroupParent(),
		DNS:          cfg.GetDnsConfig(),
		Ports:        ports,
	}, err
}

func portsOf(cfg *runtimeapi.PodSandboxConfig) ([]PortMapping, error) {
	var out []PortMapping
	for _, portMapping := range cfg.GetPortMappings() {
		if portMapping.GetHostPort() == 0 {
			continue
		}
		if portMapping.GetHostPort() < 0 || portMapping.GetHostPort() > 65535 || portMapping.GetContainerPort() <= 0 ||
			portMapping.GetContainerPort() > 65535 {
			return nil, invalidArgument("port mapping %d to %d", portMapping.GetHostPort(),
				portMapping.GetContainerPort())
		}
		pm := PortMapping{
			Protocol:      portMapping.GetProtocol().String(),
			HostPort:      uint16(portMapping.GetHostPort()),
			ContainerPort: uint16(portMapping.GetContainerPort()),
		}
		if ip := portMapping.GetHostIp(); ip != "" {
			var err error
			if pm.HostIP, err = netip.ParseAddr(ip); err != nil {
				return nil, invalidArgument("port mapping: host ip %q", ip)
			}
			if pm.HostIP.IsUnspecified() {
				pm.HostIP = netip.Addr{}
			}
		}
		out = append(out, pm)
	}
	return out, nil
}

// hostnameOf returns the pod's host name; a pod with host network, or without a host name, has the host's.
func hostnameOf(r *sandboxRecord) (string, error) {
	if h := r.Config.v.GetHostname(); h != "" && r.options().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		return h, nil
	}
	h, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("read hostname: %w", err)
	}
	return h, nil
}
