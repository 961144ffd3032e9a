// SPDX-License-Identifier: Apache-2.0

// Package volume sets up a pod's volumes on the node and removes them again: emptyDir, hostPath, configMap, secret,
// projected, downwardAPI, claims bound to hostPath or local volumes, and by package csi volumes of CSI drivers. Image
// volumes are mounted by the runtime. The pod workers (kubelet/pod) call SetUp and TearDown; the kubelet itself calls
// Prepare at start and Purge. It never binds claims or attaches volumes: controllers do.
//
// All state is on disk. SetUp is idempotent and changes only differences. TearDown works from any partial state.
//
// Layout below the kubelet's directory:
//
//	pods/<uid>/volumes/kubernetes.io~<plugin>/<name>   what containers see
//	pods/<uid>/plugins/kubernetes.io~<plugin>/<name>/  ready: mode and ownership were set, which happens once
//	pods/<uid>/volume-subpaths/<name>/<container>/<n>  bind mounts of subPaths, resolved once and safely
//	memory/<uid>/<name>                                secrets, tokens and keys, on one tmpfs for all pods: they never
//	                                                   reach a disk
package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"keelson/kubelet/csi"
	"keelson/lib/inroot"
)

// Sources reads the objects that volumes refer to. They are shared: never modify them.
type Sources interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	// Token requests a token of a service account.
	Token(ctx context.Context, namespace, serviceAccount string, r *authv1.TokenRequest) (*authv1.TokenRequest, error)
	// Claim returns a claim and its PersistentVolume.
	Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error)
	Trust
}

// Config has the dependencies of a Manager.
type Config struct {
	Dir     string // the kubelet's
	Memory  int64  // the node's, in bytes, of which volumes from API objects may take a share
	Sources Sources
	// Local manages the local volumes that the cluster provisions; nil: none.
	Local *LocalDirs
	// CSI calls the node's CSI drivers; nil: none.
	CSI *csi.Mounter
	Log *slog.Logger
}

// Manager sets up the volumes of one node, below the kubelet's directory.
type Manager struct {
	dir     string
	sources Sources
	log     *slog.Logger
	tmpfs   bool
	memory  int64
	ledger  *ledger
	local   *LocalDirs
	csi     *csi.Mounter
	// formatting is held while it is decided whether a device gets a file system.
	formatting sync.Mutex
}

// New returns a manager. It does no I/O; see Prepare.
func New(cfg Config) *Manager {
	return &Manager{
		dir:     filepath.Clean(cfg.Dir),
		sources: cfg.Sources,
		log:     cfg.Log,
		tmpfs:   os.Getuid() == 0,
		memory:  cfg.Memory,
		ledger:  newLedger(cfg.Memory),
		local:   cfg.Local,
		csi:     cfg.CSI,
	}
}

// Prepare makes the kubelet's directory a shared mount point, for mount propagation to containers, and mounts the tmpfs
// for secrets. Without root both are plain directories.
func (m *Manager) Prepare() error {
	for _, d := range []string{m.pods(), m.secrets(), Plugins(m.dir), filepath.Join(m.dir, "plugins")} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			return fmt.Errorf("make %s: %w", d, err)
		}
	}
	if m.tmpfs {
		if err := m.prepareMounts(); err != nil {
			return err
		}
	}
	if err := m.count(); err != nil {
		m.log.Warn("volumes of earlier runs do not count", "err", err)
	}
	if m.csi == nil {
		return nil
	}
	pods, err := m.Pods()
	if err != nil {
		return err
	}
	return m.csi.Load(pods)
}

// count adds the files of secrets that an earlier run has written to the ledger.
func (m *Manager) count() error {
	root, err := inroot.Open(m.secrets())
	if err != nil {
		return fmt.Errorf("count files of secrets: %w", err)
	}
	defer func() { _ = root.Close() }() // O_PATH
	err = root.Walk(".", inroot.WalkOptions{}, func(e *inroot.Entry) error {
		uid, file, _ := strings.Cut(strings.TrimPrefix(e.Path, "./"), "/")
		if file != "" && !e.Info.IsDir() && !e.Info.IsSymlink() {
			m.ledger.find(uid, sizeOfFile("", int(e.Info.Size)))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("count files of secrets: %w", err)
	}
	return nil
}

// Plugins returns the directory of plugin sockets below the kubelet's directory.
func Plugins(dir string) string { return filepath.Join(dir, "plugins_registry") }

func (m *Manager) pods() string    { return filepath.Join(m.dir, "pods") }
func (m *Manager) secrets() string { return filepath.Join(m.dir, "memory") }

// PodDir returns the pod's directory.
func (m *Manager) PodDir(uid string) string { return filepath.Join(m.pods(), uid) }

// Input has the inputs of SetUp.
type Input struct {
	Pod         *corev1.Pod
	PodIPs      []string
	HostIPs     []string
	Allocatable corev1.ResourceList
	// Done is called for each volume that was tried; may be nil.
	Done func(plugin string, took time.Duration, err error)
}

// Error is why a volume could not be set up, with the message of the event FailedMount, or FailedMapVolume for a
// device.
type Error struct {
	Volume string
	Err    error
	Device bool
}

func (e *Error) Error() string {
	if e.Device {
		return fmt.Sprintf("MapVolume.MapBlockVolume failed for volume %q : %v", e.Volume, e.Err)
	}
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", e.Volume, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// SetUp creates or updates every volume of the pod. refresh is when a token or certificate must be renewed by calling
// it again; zero: never. All volumes are tried; the error joins one *Error for each that failed.
func (m *Manager) SetUp(ctx context.Context, in Input) (refresh time.Time, err error) {
	if err := checkNumbers(in.Pod); err != nil {
		return time.Time{}, err
	}
	var errs []error
	root, err := inroot.Open(m.dir)
	if err != nil {
		return time.Time{}, fmt.Errorf("open the kubelet's directory: %w", err)
	}
	defer func() { _ = root.Close() }() // O_PATH
	if err := root.MkdirAll(filepath.Join("pods", string(in.Pod.UID), "containers"), 0o750); err != nil {
		return time.Time{}, fmt.Errorf("make pod directory: %w", err)
	}
	for i := range in.Pod.Spec.Volumes {
		v := &in.Pod.Spec.Volumes[i]
		begin := time.Now()
		at, err := m.setUp(ctx, root, in, v)
		if in.Done != nil {
			in.Done(PluginOf(v), time.Since(begin), err)
		}
		var worded *csi.Error
		var device *Error
		switch {
		case errors.As(err, &worded):
			errs = append(errs, worded)
		case errors.As(err, &device):
			errs = append(errs, device)
		case err != nil:
			errs = append(errs, &Error{Volume: v.Name, Err: err})
		}
		if !at.IsZero() && (refresh.IsZero() || at.Before(refresh)) {
			refresh = at
		}
	}
	return refresh, errors.Join(errs...)
}

// typeOf returns the field name of a volume's type.
func typeOf(v *corev1.Volume) string {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v.VolumeSource)
	if err != nil {
		return "unknown"
	}
	for name := range fields {
		return name
	}
	return "unknown"
}

func (m *Manager) setUp(ctx context.Context, root *inroot.Dir, in Input, volume *corev1.Volume) (time.Time, error) {
	var none time.Time
	switch {
	case volume.EmptyDir != nil:
		return none, m.emptyDir(root, in, volume)
	case volume.HostPath != nil:
		return none, checkHostPath(volume.HostPath, m.hostPath(volume.HostPath))
	case volume.ConfigMap != nil, volume.Secret != nil, volume.DownwardAPI != nil, volume.Projected != nil:
		return m.writeVolume(ctx, root, in, volume)
	case volume.Image != nil:
		return none, nil // an image volume: the runtime mounts it
	case volume.PersistentVolumeClaim != nil, volume.Ephemeral != nil:
		return m.setUpClaim(ctx, root, in, volume)
	case volume.CSI != nil:
		return m.setUpCSI(ctx, root, in, volume, csi.Request{
			Pod:      in.Pod,
			Name:     volume.Name,
			Inline:   volume.CSI,
			ReadOnly: readOnly(volume),
		})
	}
	return none, fmt.Errorf("volume type %s is not supported by this node", typeOf(volume))
}

// Path returns a volume's path on the host; empty if the pod has no such volume, or the runtime mounts it.
func (m *Manager) Path(ctx context.Context, pod *corev1.Pod, name string) (string, error) {
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		if volume.Name != name {
			continue
		}
		switch {
		case volume.HostPath != nil:
			return m.hostPath(volume.HostPath), nil
		case volume.PersistentVolumeClaim != nil, volume.Ephemeral != nil:
			_, pv, err := m.claimOf(ctx, pod, volume)
			if err != nil {
				return "", err
			}
			return m.pathOf(pod, pv)
		case volume.CSI != nil:
			return m.csiTarget(pod, volume.Name), nil
		case volume.Image != nil:
			return "", nil
		}
		return m.ownDir(pod, volume), nil
	}
	return "", nil
}

// ownDir returns the directory of a volume that the kubelet creates.
func (m *Manager) ownDir(p *corev1.Pod, v *corev1.Volume) string {
	if v.Secret != nil || v.Projected != nil {
		return filepath.Join(m.secrets(), string(p.UID), v.Name)
	}
	return filepath.Join(m.PodDir(string(p.UID)), "volumes", "kubernetes.io~"+plugin(v), v.Name)
}

// PluginOf returns Kubernetes' full name of the plugin of a volume, for metrics.
func PluginOf(v *corev1.Volume) string {
	name := plugin(v)
	switch {
	case v.Secret != nil:
		name = "secret"
	case v.Projected != nil:
		name = "projected"
	case v.HostPath != nil:
		name = "host-path"
	case v.Image != nil:
		name = "image"
	}
	return "kubernetes.io/" + name
}

// plugin returns Kubernetes' name of the volume plugin.
func plugin(v *corev1.Volume) string {
	switch {
	case v.ConfigMap != nil:
		return "configmap"
	case v.DownwardAPI != nil:
		return "downward-api"
	case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
		return "local-volume"
	case v.CSI != nil:
		return "csi"
	}
	return "empty-dir"
}

// within returns a path relative to the kubelet's directory.
func (m *Manager) within(p string) string { return strings.TrimPrefix(p, m.dir) }

// TearDown unmounts and removes the pod's volumes. A pod without volumes is no error.
func (m *Manager) TearDown(ctx context.Context, uid string) error {
	if err := m.tearDownCSI(ctx, uid); err != nil {
		return err
	}
	dirs := []string{
		filepath.Join(m.PodDir(uid), "volume-subpaths"), filepath.Join(m.PodDir(uid), "volumes"),
		filepath.Join(m.PodDir(uid), "volumeDevices"), filepath.Join(m.PodDir(uid), "plugins"),
		filepath.Join(m.secrets(), uid),
	}
	return m.remove(uid, dirs)
}

// Forget removes the pod's directory, with the files that TearDown keeps for a finished pod: termination messages and
// /etc/hosts.
func (m *Manager) Forget(uid string) error {
	return m.remove(uid, []string{m.PodDir(uid), filepath.Join(m.secrets(), uid)})
}

// remove removes directories of a pod, among them all that have files from API objects.
func (m *Manager) remove(uid string, dirs []string) error {
	if m.tmpfs {
		if err := unmountBelow(m.PodDir(uid)); err != nil {
			return err
		}
	}
	root, err := inroot.Open(m.dir)
	if errors.Is(err, unix.ENOENT) {
		m.ledger.forget(uid)
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the kubelet's directory: %w", err)
	}
	defer func() { _ = root.Close() }() // O_PATH
	for _, d := range dirs {
		if err := root.RemoveAll(m.within(d)); err != nil {
			return fmt.Errorf("remove %s: %w", d, err)
		}
	}
	m.ledger.forget(uid)
	return nil
}

// Pods returns the UIDs of pods that have a directory.
func (m *Manager) Pods() ([]string, error) {
	var out []string
	seen := map[string]bool{}
	for _, d := range []string{m.pods(), m.secrets()} {
		ents, err := os.ReadDir(d)
		if err != nil && !os.IsNotExist(err) {
			return nil, fmt.Errorf("list pods on disk: %w", err)
		}
		for _, e := range ents {
			if !seen[e.Name()] {
				seen[e.Name()] = true
				out = append(out, e.Name())
			}
		}
	}
	return out, nil
}
