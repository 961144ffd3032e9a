// SPDX-License-Identifier: Apache-2.0

// Package userns is what pods with a user namespace of their own need: the rules that their id mappings must obey, the
// proof that this machine can run them, the namespace itself, and root file systems with mapped ids. sandbox and
// container call it. It chooses no ids: the kubelet does, and names them in the sandbox's configuration.
package userns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/lib/linux"
	"keelson/runtime/fault"
	"keelson/runtime/image"
	"keelson/runtime/pods"
	"keelson/runtime/shim"
	"keelson/runtime/snapshot"
)

// maxMappings is the kernel's limit on lines in /proc/PID/uid_map.
const maxMappings = 340

// Support is what this machine can do for pods with user namespaces.
type Support struct {
	program   string // of the shim; see waitCmd
	table     *pods.Table
	snapshots *snapshot.Store
	log       *slog.Logger

	mu  sync.Mutex // held during a probe, so that there is one at a time
	at  time.Time  // of the last probe; zero: none
	err error
}

// New makes a Support; program is the path of the shim. It probes nothing; see Err.
func New(program string, table *pods.Table, snapshots *snapshot.Store, log *slog.Logger) *Support {
	return &Support{
		program:   program,
		table:     table,
		snapshots: snapshots,
		log:       log,
	}
}

// Check refuses options that cannot work, or that would not isolate the pod.
func (s *Support) Check(ctx context.Context, r *pods.SandboxRecord) error {
	option := r.Options()
	if !r.HasUserNamespace() {
		return nil
	}
	if m := option.GetUsernsOptions().GetMode(); m != runtimeapi.NamespaceMode_POD {
		return fault.InvalidArgument("run pod sandbox: user namespace mode %s", m)
	}
	for kind, mode := range map[string]runtimeapi.NamespaceMode{
		"network": option.GetNetwork(),
		"PID":     option.GetPid(),
		"IPC":     option.GetIpc(),
	} {
		if mode == runtimeapi.NamespaceMode_NODE {
			return fault.InvalidArgument("run pod sandbox: a pod with a user namespace of its own cannot share the "+
				"host's %s namespace", kind)
		}
	}
	for what, maps := range map[string][]*runtimeapi.IDMapping{
		"user":  option.GetUsernsOptions().GetUids(),
		"group": option.GetUsernsOptions().GetGids(),
	} {
		if err := checkMappings(maps); err != nil {
			return fault.InvalidArgument("run pod sandbox: mapping of %s ids: %v", what, err)
		}
	}
	if _, _, err := r.IDMaps().Root(); err != nil {
		return fault.InvalidArgument("run pod sandbox: %v", err)
	}
	if err := s.Err(ctx); err != nil {
		return fault.FailedPrecondition("run pod sandbox: user namespaces are not supported on this machine: %v", err)
	}
	return nil
}

func checkMappings(maps []*runtimeapi.IDMapping) error {
	if len(maps) == 0 || len(maps) > maxMappings {
		return fmt.Errorf("%d mappings, want 1 to %d", len(maps), maxMappings)
	}
	for _, m := range maps {
		end := uint64(max(m.GetContainerId(), m.GetHostId())) + uint64(m.GetLength())
		switch {
		case m.GetLength() == 0 || end > 1<<32-1:
			return fmt.Errorf("%d ids from %d on", m.GetLength(), max(m.GetContainerId(), m.GetHostId()))
		case m.GetHostId() == 0:
			return errors.New("the host's root must not be mapped")
		}
	}
	return nil
}

// retryAfter is how long a failed probe is cached: an administrator may raise a limit, or free disk space.
const retryAfter = time.Minute

// Err returns nil if this machine can run pods with user namespaces, else why not.
func (s *Support) Err(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.at.IsZero() && (s.err == nil || time.Since(s.at) < retryAfter) {
		return s.err
	}
	err := s.probe(context.WithoutCancel(ctx))
	if err != nil && (s.err == nil || s.err.Error() != err.Error()) {
		s.log.Warn("pods cannot have user namespaces", "error", err)
	}
	s.at = time.Now()
	s.err = err
	return err
}

// CheckUser refuses ids that are not mapped in the pod's user namespace.
func CheckUser(r *pods.SandboxRecord, user *runtimeapi.LinuxContainerUser) error {
	if !r.HasUserNamespace() {
		return nil
	}
	maps := r.IDMaps()
	has := func(maps []linux.IDMap, id int64) bool {
		return slices.ContainsFunc(maps, func(m linux.IDMap) bool {
			return id >= int64(m.Inside) && id < int64(m.Inside)+int64(m.Length)
		})
	}
	if !has(maps.UIDs, user.GetUid()) {
		return fault.InvalidArgument("user %d is not mapped in the pod's user namespace", user.GetUid())
	}
	for _, g := range append([]int64{user.GetGid()}, user.GetSupplementalGroups()...) {
		if !has(maps.GIDs, g) {
			return fault.InvalidArgument("group %d is not mapped in the pod's user namespace", g)
		}
	}
	return nil
}

// probe makes and removes what a pod with a user namespace needs.
func (s *Support) probe(ctx context.Context) (err error) {
	// It uses a sandbox directory, so that after a crash load removes it like an incomplete sandbox.
	sb := s.table.NewSandbox(pods.SandboxRecord{ID: pods.NewID()})
	if err := os.MkdirAll(sb.NS(""), 0o700); err != nil {
		return fmt.Errorf("try user namespace: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(sb.Dir)) }()
	const first = 65536
	maps := []linux.IDMap{{Outside: first, Length: 65536}}
	kinds := []linux.Namespace{linux.NetworkNamespace, linux.IPCNamespace, linux.UTSNamespace}
	if err := linux.HoldUserNamespace(sb.NS(""), kinds, linux.IDMaps{UIDs: maps, GIDs: maps},
		s.waitCmd(ctx)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, linux.Release(sb.NS(""), append(kinds, linux.UserNamespace))) }()
	m := snapshot.Mapping{UserNamespace: sb.NS(linux.UserNamespace), UID: first, GID: first}
	if err := linux.CheckMappedTmpfs(m.UserNamespace); err != nil {
		return fmt.Errorf("secrets and memory volumes: %w", err)
	}
	return s.snapshots.CheckMapping(ctx, m)
}

// waitCmd returns the command that keeps a user namespace alive while it is set up.
func (s *Support) waitCmd(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.program, shim.WaitCommand)
	cmd.Env = []string{}
	cmd.Dir = "/"
	return cmd
}

// Rootfs makes a snapshot for a container of the pod.
func (s *Support) Rootfs(ctx context.Context, sb *pods.Sandbox, id string, img image.Image) (string, error) {
	r := sb.Record()
	if !r.HasUserNamespace() {
		return s.snapshots.Prepare(ctx, id, img)
	}
	uid, gid, err := r.IDMaps().Root()
	if err != nil {
		return "", err
	}
	return s.snapshots.PrepareMapped(ctx, id, img, snapshot.Mapping{
		UserNamespace: sb.NS(linux.UserNamespace),
		UID:           uid,
		GID:           gid,
	})
}

// CheckMounts refuses id-mapped mounts that the pod or the file system does not support, before anything is
// started.
func CheckMounts(sb *pods.Sandbox, mounts []*runtimeapi.Mount) error {
	r := sb.Record()
	u := r.Options().GetUsernsOptions()
	for _, mount := range mounts {
		if len(mount.GetUidMappings())+len(mount.GetGidMappings()) == 0 {
			continue
		}
		if !r.HasUserNamespace() {
			return fault.InvalidArgument("mount at %s: it has id mappings, but the pod has no user namespace of its "+
				"own", mount.GetContainerPath())
		}
		if !sameMappings(mount.GetUidMappings(), u.GetUids()) || !sameMappings(mount.GetGidMappings(), u.GetGids()) {
			return fault.InvalidArgument("mount at %s: its id mappings are not those of the pod's user namespace",
				mount.GetContainerPath())
		}
		if err := linux.CheckMappedMount(mount.GetHostPath(), sb.NS(linux.UserNamespace)); err != nil {
			return fault.FailedPrecondition("mount at %s: %v", mount.GetContainerPath(), err)
		}
	}
	return nil
}

func sameMappings(a, b []*runtimeapi.IDMapping) bool {
	return slices.EqualFunc(a, b, func(x, y *runtimeapi.IDMapping) bool { return proto.Equal(x, y) })
}

// Hold makes the pod's namespaces of these kinds and the user namespace that owns them, and holds them.
func (s *Support) Hold(ctx context.Context, sb *pods.Sandbox, kinds []linux.Namespace) error {
	rec := sb.Record()
	return linux.HoldUserNamespace(sb.NS(""), kinds, rec.IDMaps(), s.waitCmd(ctx))
}
