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

	"keelson/lib/linux"
	"keelson/lib/mark"
	"keelson/runtime/shim"
)

// RunPodSandbox makes the pod's place: a directory, namespaces, network, files. What a failure leaves half done is undone.
func (s *Server) RunPodSandbox(ctx context.Context, r *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	cfg := r.GetConfig()
	m := cfg.GetMetadata()
	if m.GetName() == "" || m.GetUid() == "" {
		return nil, badRequest("run pod sandbox: the metadata must have a name and a uid")
	}
	if r.GetRuntimeHandler() != "" {
		return nil, badRequest("run pod sandbox: no runtime handler %q is configured", r.GetRuntimeHandler())
	}
	id := newID()
	rec := sandboxRecord{ID: id, Config: message[*runtimeapi.PodSandboxConfig]{cfg}, Handler: r.GetRuntimeHandler(), Created: time.Now()}
	if err := s.checkUserNamespace(ctx, &rec); err != nil {
		return nil, err
	}
	if err := s.reserve(sandboxName(m), id); err != nil {
		return nil, err
	}
	sb := &sandbox{id: id, dir: s.path("sandboxes", id), rec: rec}
	if err := s.build(ctx, sb); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if uerr := s.dismantle(undo, sb); uerr != nil {
			// It stays as a stopped one, so that whoever cleans up tries again.
			err = errors.Join(err, uerr)
			s.mu.Lock()
			s.sandboxes[id] = sb
			s.mu.Unlock()
		} else {
			err = errors.Join(err, removeAll(sb.dir))
			s.unreserve(sandboxName(m))
		}
		return nil, act(err, "run pod sandbox %s/%s", m.GetNamespace(), m.GetName())
	}
	s.mu.Lock()
	s.sandboxes[id] = sb
	s.mu.Unlock()
	s.tell(sb, id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	s.tell(sb, id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// build makes everything a sandbox consists of, its record first.
func (s *Server) build(ctx context.Context, sb *sandbox) error {
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
	ips, err := s.connect(ctx, sb)
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
	return sb.update(func(r *sandboxRecord) { r.IPs, r.Ready, r.Whole = ips, true, true })
}

func (sb *sandbox) ns(kind string) string { return filepath.Join(sb.dir, "ns", kind) }
func (sb *sandbox) shm() string           { return filepath.Join(sb.dir, "shm") }

// pidNamespace is where a PID namespace that containers share is held.
const pidNamespace linux.Namespace = "pid"

// holderID is the supervisor's name for the first process of the pod's PID namespace.
func (sb *sandbox) holderID() string { return "hold-" + sb.id }

// kinds are the namespaces that the sandbox has of its own.
func (r *sandboxRecord) kinds() []linux.Namespace {
	var out []linux.Namespace
	if r.options().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		out = append(out, linux.NetworkNamespace, linux.UTSNamespace)
	}
	if r.options().GetIpc() != runtimeapi.NamespaceMode_NODE {
		out = append(out, linux.IPCNamespace)
	}
	return out
}

// heldKinds are all namespaces that are held below the sandbox's directory.
func (r *sandboxRecord) heldKinds() []linux.Namespace {
	out := r.kinds()
	if r.options().GetPid() == runtimeapi.NamespaceMode_POD {
		out = append(out, pidNamespace)
	}
	if r.hasUserNamespace() {
		out = append(out, linux.UserNamespace)
	}
	return out
}

func (s *Server) buildNamespaces(ctx context.Context, sb *sandbox) error {
	kinds := sb.rec.kinds()
	if err := checkSysctls(sb.rec.Config.v.GetLinux().GetSysctls(), kinds); err != nil {
		return err
	}
	var err error
	switch {
	case sb.rec.hasUserNamespace():
		err = s.buildUserNamespace(ctx, sb, kinds)
	case len(kinds) > 0:
		err = linux.HoldNamespaces(sb.ns(""), kinds, func() error {
			_, err := settle(&sb.rec, kinds, func(string) bool { return false })
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
	if sb.rec.hasUserNamespace() { // before the others, which then include the new PID namespace
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
	// It is the holder's if that is alive now: no other process has had its number.
	if err := s.shim.Kill(context.Background(), sb.holderID(), shim.Kill{Signal: 0}); err != nil {
		return fmt.Errorf("hold the pod's process namespace: %w", err)
	}
	return nil
}

// settle gives new namespaces, in which the thread is, what every pod's have, and the pod's parameters, except for those to be set later,
// which it returns.
func settle(r *sandboxRecord, kinds []linux.Namespace, later func(sysctl string) bool) (late map[string]string, err error) {
	if slices.Contains(kinds, linux.NetworkNamespace) {
		if err := linux.LoopbackUp(); err != nil {
			return nil, err
		}
		if err := unix.Sethostname([]byte(r.Hostname)); err != nil {
			return nil, fmt.Errorf("set hostname %q: %w", r.Hostname, err)
		}
	}
	late = map[string]string{}
	for k, v := range r.Config.v.GetLinux().GetSysctls() {
		if later(k) {
			late[k] = v
			continue
		}
		if err := linux.Sysctl(k, v); err != nil {
			return nil, err
		}
	}
	return late, nil
}

// namespaceOf is the kind of namespace that a kernel parameter belongs to; empty: none.
func namespaceOf(sysctl string) linux.Namespace {
	name := strings.ReplaceAll(sysctl, "/", ".")
	switch {
	case strings.HasPrefix(name, "net."):
		return linux.NetworkNamespace
	case strings.HasPrefix(name, "kernel.shm"), strings.HasPrefix(name, "kernel.msg"), name == "kernel.sem", strings.HasPrefix(name, "fs.mqueue."):
		return linux.IPCNamespace
	case name == "kernel.domainname":
		return linux.UTSNamespace
	}
	return ""
}

// checkSysctls refuses parameters that would change the host: each must belong to a namespace that the pod has of its own.
func checkSysctls(sysctls map[string]string, kinds []linux.Namespace) error {
	for k := range sysctls {
		in := namespaceOf(k)
		if in == "" {
			return badRequest("sysctl %q does not belong to a namespace", k)
		}
		if !slices.Contains(kinds, in) {
			return badRequest("sysctl %q is the host's in this pod, which shares the host's %s namespace", k, in)
		}
	}
	return nil
}

func subject(m *runtimeapi.PodSandboxMetadata) mark.Subject {
	return mark.Subject{Resource: "pods", Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid()}
}

// podOf is what the network is told of a sandbox.
func podOf(sb *sandbox) (Pod, error) {
	cfg := sb.rec.Config.v
	m := cfg.GetMetadata()
	ports, err := portsOf(cfg)
	return Pod{
		ID: sb.id, Netns: sb.ns(string(linux.NetworkNamespace)), Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid(),
		Annotations: cfg.GetAnnotations(), CgroupParent: cfg.GetLinux().GetCgroupParent(), DNS: cfg.GetDnsConfig(), Ports: ports,
	}, err
}

func portsOf(cfg *runtimeapi.PodSandboxConfig) ([]PortMapping, error) {
	var out []PortMapping
	for _, p := range cfg.GetPortMappings() {
		if p.GetHostPort() == 0 {
			continue
		}
		if p.GetHostPort() < 0 || p.GetHostPort() > 65535 || p.GetContainerPort() <= 0 || p.GetContainerPort() > 65535 {
			return nil, badRequest("port mapping %d to %d", p.GetHostPort(), p.GetContainerPort())
		}
		pm := PortMapping{
			Protocol: p.GetProtocol().String(),
			HostPort: uint16(p.GetHostPort()), ContainerPort: uint16(p.GetContainerPort()),
		}
		if ip := p.GetHostIp(); ip != "" {
			var err error
			if pm.HostIP, err = netip.ParseAddr(ip); err != nil {
				return nil, badRequest("port mapping: host ip %q", ip)
			}
			if pm.HostIP.IsUnspecified() {
				pm.HostIP = netip.Addr{}
			}
		}
		out = append(out, pm)
	}
	return out, nil
}

// hostnameOf is the pod's hostname; a pod in the host's network, or one that says nothing, has the host's.
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
