// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
	"keelson/runtime/fault"
	"keelson/runtime/pods"
	"keelson/runtime/shim"
)

// buildNamespaces makes and holds the namespaces that the pod does not share with the host.
func (s *Service) buildNamespaces(ctx context.Context, sb *pods.Sandbox) error {
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
func (s *Service) buildUserNamespace(ctx context.Context, sb *pods.Sandbox, kinds []linux.Namespace) error {
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
