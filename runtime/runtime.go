// SPDX-License-Identifier: Apache-2.0

// Package runtime assembles Keelson's built-in container runtime: image store, snapshots, CRI server and the shim, the
// program that starts and supervises containers. cluster makes one per node and gives it to the kubelet through package
// cri; `keelson runtime` serves it alone. It never talks to the API server. Containers keep running when this process
// ends; Down ends them.
package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/event"
	"keelson/lib/logrotate"
	"keelson/runtime/builtin"
	"keelson/runtime/embedded"
	"keelson/runtime/image"
	"keelson/runtime/image/registry"
	"keelson/runtime/podnet"
	"keelson/runtime/server"
	"keelson/runtime/snapshot"
)

// Network connects pods; see podnet.Network.
type Network = podnet.Network

type (
	// Pod is the input of Network.Attach; see podnet.Pod.
	Pod = podnet.Pod
	// Attachment is the result of Network.Attach; see podnet.Attachment.
	Attachment = podnet.Attachment
	// PortMapping is a host port of the pod; see podnet.PortMapping.
	PortMapping = podnet.PortMapping
)

// Config is what a Runtime needs. Dir and ID are required.
type Config struct {
	// Dir holds everything: images, snapshots, sandboxes, containers, the state of the shim. It must not be on
	// overlayfs.
	Dir string
	// ID is the cluster's short name, unique on this machine; names in the kernel derive from it.
	ID string
	// CgroupParent is the cgroup of the shim and of pods whose sandbox names no cgroup; "/keelson-<ID>" when empty.
	// Down removes it with everything below it.
	CgroupParent string
	// MappedDir holds the mounted root file systems of pods with user namespaces. Every user of the machine must be
	// able to reach it; "/run/keelson-<ID>" when empty. Down removes it.
	MappedDir string
	// Shim is the path of the shim program; empty: the embedded one is installed below Dir.
	Shim string
	// Network may be nil: pods then have a loopback interface only.
	Network Network
	// Connected: see server.Config.
	Connected func(ctx context.Context, pod *runtimeapi.PodSandboxConfig, addrs []netip.Addr) error
	// HostPath: see server.Config.
	HostPath func(string) string
	// ImageReserve is image.Config.ReserveBytes of the store that is made for nil Images.
	ImageReserve int64
	// Images and Snapshots may be nil: they are then made below Dir, with Registries.
	Images    *image.Store
	Snapshots *snapshot.Store
	// Registries say from where images are pulled.
	Registries registry.Settings
	// ImageHelper is the command line of the program that pulls images; empty: this process does. See image.Config.
	ImageHelper []string
	// Logs bounds each container's log; zero fields mean Kubernetes' defaults.
	Logs logrotate.Policy
	// Version is the second tag of the built-in image; empty means "v1".
	Version string
	Marks   *event.Recorder
	Log     *slog.Logger
	// Waiting is called with what Purge and Down wait for when a step takes long; it may be nil.
	Waiting func(what string)
	// StreamTCP lets other processes connect to exec, attach and port-forward streams; see server.Config.
	StreamTCP bool
}

// Runtime is a node's container runtime. It implements cri.Server; its methods may be called while Run runs.
type Runtime struct {
	*server.Server
	cfg Config
}

// Images returns the image store, for commands that import and list images.
func (r *Runtime) Images() *image.Store { return r.cfg.Images }

// New opens the stores. It starts nothing.
func New(cfg Config) (*Runtime, error) {
	if cfg.Dir == "" || cfg.ID == "" {
		return nil, errors.New("container runtime: a directory and a cluster id are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.CgroupParent == "" {
		cfg.CgroupParent = "/keelson-" + cfg.ID
	}
	if cfg.MappedDir == "" {
		cfg.MappedDir = "/run/keelson-" + cfg.ID
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("container runtime: %w", err)
	}
	// Mount points are compared with those in /proc/self/mountinfo, which have symbolic links resolved.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("container runtime: %w", err)
	}
	if cfg.Dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, fmt.Errorf("container runtime: %w", err)
	}
	if cfg.Images == nil {
		if cfg.Images, err = openImages(cfg); err != nil {
			return nil, err
		}
	}
	if cfg.Snapshots == nil {
		cfg.Snapshots, err = snapshot.Open(snapshot.Config{
			Dir:       filepath.Join(cfg.Dir, "snapshots"),
			MappedDir: cfg.MappedDir,
			Images:    cfg.Images,
			Log:       cfg.Log,
		})
		if err != nil {
			return nil, err
		}
	}
	s, err := server.New(server.Config{
		Dir:          cfg.Dir,
		Shim:         cfg.shimPath(),
		CgroupParent: cfg.CgroupParent,
		Images:       cfg.Images,
		Snapshots:    cfg.Snapshots,
		Network:      cfg.Network,
		Connected:    cfg.Connected,
		HostPath:     cfg.HostPath,
		StreamTCP:    cfg.StreamTCP,
		Logs:         cfg.Logs,
		Marks:        cfg.Marks,
		Log:          cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	return &Runtime{Server: s, cfg: cfg}, nil
}

// OpenImages opens the image store of a runtime's directory, for commands that import and list images. It may be used
// while a Runtime runs, also by another process.
func OpenImages(dir, version string, log *slog.Logger) (*image.Store, error) {
	return openImages(Config{Dir: dir, Version: version, Log: log})
}

func openImages(cfg Config) (*image.Store, error) {
	if cfg.Version == "" {
		cfg.Version = "v1"
	}
	var hello *image.Builtin
	if stamp := embedded.HelloStamp(); stamp != "" {
		hello = builtin.New(embedded.Hello, stamp, cfg.Version)
	}
	return image.Open(image.Config{
		Dir:          filepath.Join(cfg.Dir, "images"),
		ReserveBytes: cfg.ImageReserve,
		Registries:   cfg.Registries,
		Builtin:      hello,
		Helper:       cfg.ImageHelper,
		Log:          cfg.Log,
	})
}

func (c *Config) shimPath() string {
	if c.Shim != "" {
		return c.Shim
	}
	return filepath.Join(c.Dir, "bin", "keelson-shim")
}

// Run installs the shim, loads the sandboxes and containers of earlier runs, calls ready and serves until ctx is done.
// Containers keep running after it.
func (r *Runtime) Run(ctx context.Context, ready func()) error {
	if err := r.install(); err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer r.cfg.Images.Close()
	return r.Server.Run(ctx, func() {
		wg.Go(func() { r.tidyImages(ctx) })
		ready()
	})
}

// tidyImages unpacks the built-in image, so that the first container need not wait for that, and deletes what a crash
// left.
func (r *Runtime) tidyImages(ctx context.Context) {
	err := r.cfg.Images.EnsureBuiltin(ctx)
	if err = errors.Join(err, r.cfg.Images.GC(ctx)); err != nil && ctx.Err() == nil {
		r.cfg.Log.Warn("images not tidied", "error", err)
	}
}

func (r *Runtime) install() error {
	if r.cfg.Shim != "" {
		return nil
	}
	repaired, err := embedded.InstallShim(r.cfg.shimPath())
	if repaired {
		r.cfg.Log.Warn("container shim was damaged and is replaced", "path", r.cfg.shimPath())
	}
	return err
}

// Purge ends all containers and the shim, and removes sandboxes, mounts, pod networks and cgroups. Images and logs
// stay. Run must not be running.
func (r *Runtime) Purge(ctx context.Context) error {
	if err := r.install(); err != nil && !errors.Is(err, embedded.ErrMissing) {
		return err
	}
	return errors.Join(r.Server.Purge(ctx, r.cfg.Waiting), r.cfg.Snapshots.Purge())
}

// ErrUnusable is the error of Down for a directory that no runtime can use. So no runtime had containers there.
var ErrUnusable = errors.New("no container runtime can use the directory")

// Down is Purge for a data directory that no process serves any more.
func Down(ctx context.Context, cfg Config) error {
	if _, err := os.Stat(cfg.Dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	r, err := New(cfg)
	if _, overlay := errors.AsType[*snapshot.OverlayfsError](err); overlay {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	if err != nil {
		return err
	}
	return r.Purge(ctx)
}
