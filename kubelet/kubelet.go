// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/api/core/localvolume"
	volumeapi "keelson/api/core/volume"
	"keelson/client"
	"keelson/kubelet/csi"
	"keelson/kubelet/eviction"
	"keelson/kubelet/holdback"
	"keelson/kubelet/image"
	"keelson/kubelet/metrics"
	"keelson/kubelet/node"
	"keelson/kubelet/pod"
	"keelson/kubelet/podcgroup"
	"keelson/kubelet/probe"
	"keelson/kubelet/refs"
	"keelson/kubelet/stats"
	"keelson/kubelet/translate"
	"keelson/kubelet/userns"
	"keelson/kubelet/volume"
	"keelson/lib/linux"
	"keelson/lib/signal"
)

// Kubelet is one node's agent. Make it with New.
type Kubelet struct {
	cfg            Config
	events         *client.Events
	node           *node.Keeper
	workers        *workers
	admission      *admission
	refs           *refs.Store
	volumes        *volume.Manager
	localVolumes   *volume.LocalDirs // nil: the cluster provisions none here
	plugins        plugins
	users          *userns.Manager
	cgroups        *podcgroup.Manager
	images         *image.Manager
	starts         *holdback.Keeper
	prober         *probe.Runner
	probes         *probe.Manager
	services       services
	runtimeClasses runtimeClasses
	eviction       *eviction.Manager
	stats          *stats.Source
	metrics        *metrics.Metrics
}

// New looks at the machine and starts nothing. Each part is made once, after those that it needs: what the parts share
// first (the node itself, the table of workers), the node's keeper last, since it asks many of them what to write.
func New(cfg Config) (*Kubelet, error) {
	k, err := build(cfg)
	if err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	return k, nil
}

func build(cfg Config) (*Kubelet, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	meters := metrics.New()
	cfg.Runtime.Runtime = meters.Runtime(cfg.Runtime.Runtime)
	cfg.Runtime.Image = meters.Images(cfg.Runtime.Image)
	self, err := node.Look(cfg.NodeName, cfg.RootDir)
	if err != nil {
		return nil, err
	}
	sysctls, err := newSysctls(self.Machine().Kernel, cfg.AllowedUnsafeSysctls)
	if err != nil {
		return nil, err
	}
	table := newWorkers()
	events := cfg.Client.Events("kubelet", cfg.NodeName, cfg.Log)

	// What pods need, and what measures them.
	objects := refs.New(cfg.Client.Interface, table.notifyRefs, cfg.Log)
	plugins := newPlugins(&cfg, self, table, objects, events)
	var local *volume.LocalDirs
	if cfg.VolumesDir != "" {
		local = volume.NewLocalDirs(cfg.VolumesDir, cfg.NodeName, cfg.Client.Interface, cfg.Log)
	}
	volumes := volume.New(volume.Config{
		Dir:     cfg.RootDir,
		Memory:  linux.OwnMemory(self.Machine().Memory),
		Sources: objects,
		Local:   local,
		CSI:     plugins.csi,
		Log:     cfg.Log,
	})
	starts, err := holdback.Open(filepath.Join(cfg.RootDir, "starting"), cfg.Log)
	if err != nil {
		return nil, err
	}
	images, err := newImages(&cfg, self, starts)
	if err != nil {
		return nil, err
	}
	runner := probe.NewRunner(cfg.Runtime.Runtime, "1.37")
	probes := probe.NewManager(runner, &probeListener{
		workers:   table,
		metrics:   meters,
		events:    events,
		marks:     cfg.Marks,
		component: cfg.component(),
	})
	source := newStats(&cfg, table, volumes, plugins)

	// What protects the node, and its object.
	pressure, err := eviction.New(cfg.Eviction, source, evictionNode{
		workers: table,
		stats:   source,
		self:    self,
		runtime: cfg.Runtime,
		events:  events,
		metrics: meters,
		log:     cfg.Log,
	}, cfg.Log)
	if err != nil {
		return nil, err
	}
	keeper, err := newNode(&cfg, self, table, plugins, pressure, events)
	if err != nil {
		return nil, err
	}
	return &Kubelet{
		cfg:     cfg,
		events:  events,
		node:    keeper,
		workers: table,
		admission: &admission{
			node:         keeper,
			workers:      table,
			pressure:     pressure,
			sysctls:      sysctls,
			appArmorFile: cfg.AppArmorFile,
			events:       events,
			log:          cfg.Log,
			client:       cfg.Client,
			metrics:      meters,
			admitted:     map[string]*corev1.Pod{},
			resizes:      newResizes(),
		},
		refs:           objects,
		volumes:        volumes,
		localVolumes:   local,
		plugins:        plugins,
		users:          userns.New(volumes.PodDir, cfg.Log),
		cgroups:        podcgroup.New(cfg.CgroupRoot, cfg.PodMaxPids, cfg.Log),
		images:         images,
		starts:         starts,
		prober:         runner,
		probes:         probes,
		services:       newServices(cfg.Client.Interface),
		runtimeClasses: runtimeClasses{client: cfg.Client},
		eviction:       pressure,
		stats:          source,
		metrics:        meters,
	}, nil
}

// newImages makes what pulls images and keeps those that pods may use.
func newImages(cfg *Config, self *node.Self, starts *holdback.Keeper) (*image.Manager, error) {
	return image.New(image.Config{
		Starts:                starts,
		Service:               notifyingImageService{cfg.Runtime.Image, self.Changed},
		Parallel:              cfg.ParallelPulls,
		Dir:                   filepath.Join(cfg.RootDir, "image_manager"),
		VerificationPolicy:    cfg.ImagePullCredentialsVerificationPolicy,
		VerificationAllowlist: cfg.PreloadedImagesVerificationAllowlist,
		Log:                   cfg.Log,
	})
}

// newStats makes what measures pods and node. A CSI driver measures its volumes itself.
func newStats(cfg *Config, table *workers, volumes *volume.Manager, plugins plugins) *stats.Source {
	return stats.New(stats.Config{
		Runtime:    cfg.Runtime.Runtime,
		Images:     cfg.Runtime.Image,
		NodeName:   cfg.NodeName,
		RootDir:    cfg.RootDir,
		LogDir:     cfg.LogDir,
		Pods:       table.All,
		VolumePath: volumes.Path,
		ClaimUsage: func(ctx context.Context, p *corev1.Pod, name string) *csi.Usage {
			if u := plugins.csi.Stats(ctx, string(p.UID), name); u != nil {
				return u
			}
			return volumes.Usage(p, name)
		},
	})
}

// newNode makes the keeper of the node's object.
func newNode(
	cfg *Config, self *node.Self, table *workers, plugins plugins, pressure *eviction.Manager, events *client.Events,
) (*node.Keeper, error) {
	thresholds, err := cfg.Eviction.Thresholds()
	if err != nil {
		return nil, err
	}
	labels := cfg.Labels
	annotations := map[string]string{volumeapi.AnnotationManaged: "true"}
	maps.Copy(annotations, cfg.Annotations)
	if cfg.VolumesDir != "" {
		labels = maps.Clone(labels)
		if labels == nil {
			labels = map[string]string{}
		}
		labels[localvolume.NodeHas] = "true"
		annotations[localvolume.NodeAnnotation] = cfg.VolumesDir
	}
	return node.New(self, node.Config{
		Client:  cfg.Client,
		Runtime: cfg.Runtime,
		Events:  events,
		Log:     cfg.Log,
		Wanted: node.Wanted{
			Hostname:    cfg.Hostname,
			IPs:         cfg.nodeIPs(),
			PodCIDRs:    cfg.PodCIDRs,
			Labels:      labels,
			Annotations: annotations,
			Taints:      cfg.Taints,
		},
		MaxPods:  cfg.MaxPods,
		Reserved: cfg.KubeReserved,
		InUse:    plugins.csi.InUse,
		Plugins:  plugins.devices.Resources,
		Updated:  plugins.csi.NodeUpdated,
		Back:     func(ctx context.Context) { readPods(ctx, cfg, table) },
		Kept: func(capacity corev1.ResourceList) corev1.ResourceList {
			return eviction.Reserved(thresholds, capacity)
		},
		Pressures:   pressure.Conditions,
		Register:    cfg.RegisterNode,
		Version:     cfg.Version,
		LeaseEvery:  cfg.LeaseInterval,
		StatusEvery: cfg.StatusInterval,
	}), nil
}

// podEnv is what all workers of pods share. runtimeName is what the runtime calls itself.
func (k *Kubelet) podEnv(runtimeName string) *pod.Env {
	cfg := &k.cfg
	return &pod.Env{
		Providers: pod.Providers{
			Images:  k.images,
			Volumes: k.volumes,
			Devices: k.plugins.claims,
			Plugins: k.plugins.devices,
			Users:   k.users,
			Cgroups: k.cgroups,
			Refs:    k.refs,
		},
		Site: pod.Site{
			Hostname: cfg.Hostname,
			HostIPs:  cfg.nodeIPs(),
			Machine: translate.Machine{
				Memory:    k.node.Machine().Memory,
				PageSizes: slices.Sorted(maps.Keys(k.node.Machine().HugePages)),
				GroupKill: linux.CanKillGroups(),
			},
			LogDir:        cfg.LogDir,
			SeccompDir:    filepath.Join(cfg.RootDir, "seccomp"),
			ClusterDomain: cfg.ClusterDomain,
			ClusterDNS:    cfg.ClusterDNS,
			ResolvConf:    cfg.ResolvConf,
			HostsFile:     cfg.HostsFile,
		},
		Component:         cfg.component(),
		API:               cfg.Client,
		Runtime:           cfg.Runtime.Runtime,
		RuntimeName:       runtimeName,
		Admission:         k.admission,
		Probes:            k.probes,
		Starts:            k.starts,
		Prober:            k.prober,
		Events:            k.events,
		Marks:             cfg.Marks,
		Metrics:           k.metrics,
		Log:               cfg.Log,
		StatusBatchPeriod: cfg.StatusBatchPeriod,
		CrashMax:          cfg.CrashBackOffMax,
		Services:          k.services.inNamespace,
		Allocatable:       k.node.Allocatable,
		Handler:           k.runtimeClasses.handler,
		Node:              k.node.Ref,
	}
}

// Run registers the node, calls ready when it is Ready, and runs its pods until ctx is done. Containers keep running.
func (k *Kubelet) Run(ctx context.Context, ready func()) error {
	runtimeName, err := k.prepare(ctx)
	if err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	srv, err := k.listen()
	if err != nil {
		return err
	}
	// In reverse at the end: the workers stop first, then what they use.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer k.probes.Close()
	defer k.workers.stop(cancel)
	failed := make(chan error, 5) // the servers
	k.supportPods(ctx, &wg)
	k.serve(ctx, &wg, srv, failed)
	k.followRuntime(ctx, &wg, runtimeName)
	// The pods are listed while the node is registered: one does not need the other.
	assigned := podSync{
		Kubelet:    k,
		env:        k.podEnv(runtimeName),
		staticGone: signal.New(),
	}
	pods := make(chan error, 1)
	wg.Go(func() { pods <- assigned.watch(ctx) })
	if err := k.node.Register(ctx, srv.port(k.cfg.Port)); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	k.keepNode(ctx, &wg, failed)
	ready()
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	case err := <-pods:
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
}

// supportPods starts what pods need before the first of them starts. It ends with ctx.
func (k *Kubelet) supportPods(ctx context.Context, wg *sync.WaitGroup) {
	wg.Go(func() { _ = k.events.Run(ctx, func() {}) }) // it knows no error
	wg.Go(func() { k.refs.Run(ctx) })
	wg.Go(func() { k.cfg.Watchdog.Run(ctx, k.healthy, k.cfg.Log) })
	wg.Go(func() { k.services.run(ctx) })
	clockSet := func() { k.workers.notifyAll(pod.RefsChanged) }
	wg.Go(func() { followClock(ctx, linux.SleepUntil, clockSet, k.cfg.Log) })
	if k.localVolumes != nil {
		wg.Go(func() { k.localVolumes.Run(ctx) })
	}
}

// followRuntime starts what follows the containers and images of the runtime. It begins before the first container, so
// that no change of one is missed, and ends with ctx.
func (k *Kubelet) followRuntime(ctx context.Context, wg *sync.WaitGroup, runtimeName string) {
	watch := runtimeWatch{
		runtime: k.cfg.Runtime.Runtime,
		workers: k.workers,
		self:    k.node.Self,
		log:     k.cfg.Log,
	}
	wg.Go(func() { watch.run(ctx) })
	if runtimeName != builtinRuntime { // that one rotates the logs itself
		wg.Go(func() { k.rotateLogs(ctx) })
	}
	if k.cfg.ImageMaxAge > 0 {
		images := imageCleaner{runtime: k.cfg.Runtime, workers: k.workers, log: k.cfg.Log}
		wg.Go(func() { images.run(ctx, k.cfg.ImageMaxAge) })
	}
}

// keepNode starts what needs the Node object, or an object that belongs to it. It ends with ctx; failed receives the
// errors of the plugins' servers.
func (k *Kubelet) keepNode(ctx context.Context, wg *sync.WaitGroup, failed chan<- error) {
	wg.Go(func() { k.node.Run(ctx) })
	wg.Go(func() { k.eviction.Run(ctx) })
	wg.Go(func() { k.plugins.csi.Run(ctx) })
	wg.Go(func() { k.plugins.claims.Run(ctx) })
	wg.Go(func() { k.plugins.sockets.Run(ctx) })
	for _, run := range []func(context.Context) error{
		k.plugins.devices.Run, k.plugins.podResources.Run, k.plugins.podsAPI.Run,
	} {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				failed <- err
			}
		})
	}
}

// healthy returns when the table of workers answers, which everything that happens to a pod needs.
func (k *Kubelet) healthy() error {
	k.workers.all()
	return nil
}

// systemdCgroups reports whether the runtime has systemd make its cgroups. Older runtimes do not say, and are taken for
// ones that make them themselves.
func (k *Kubelet) systemdCgroups(ctx context.Context) bool {
	config, err := k.cfg.Runtime.Runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	if err != nil && grpcstatus.Code(err) != codes.Unimplemented {
		k.cfg.Log.Warn("ask the container runtime for its cgroup driver", "err", err)
	}
	return config.GetLinux() != nil && config.GetLinux().GetCgroupDriver() == runtimeapi.CgroupDriver_SYSTEMD
}

// prepare makes directories, asks the runtime for its name, and reads checkpoints.
func (k *Kubelet) prepare(ctx context.Context) (runtimeName string, err error) {
	if err := k.volumes.Prepare(); err != nil {
		return "", err
	}
	k.cgroups.Prepare(k.systemdCgroups(ctx))
	if err := os.MkdirAll(k.cfg.LogDir, 0o750); err != nil {
		return "", fmt.Errorf("make log directory: %w", err)
	}
	v, err := k.cfg.Runtime.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return "", fmt.Errorf("ask the container runtime for its version: %w", err)
	}
	if err := k.images.Recover(ctx); err != nil {
		// those images are verified, or recovered at the next start
		k.cfg.Log.Warn("recover records of image pulls", "err", err)
	}
	if err := k.plugins.claims.Load(); err != nil {
		return "", err
	}
	if err := k.plugins.devices.Load(); err != nil {
		return "", err
	}
	if err := k.loadUserNamespaces(ctx); err != nil {
		return "", fmt.Errorf("user namespaces: %w", err)
	}
	if len(k.cfg.PodCIDRs) == 0 {
		return v.GetRuntimeName(), nil
	}
	_, err = k.cfg.Runtime.Runtime.UpdateRuntimeConfig(ctx, &runtimeapi.UpdateRuntimeConfigRequest{
		RuntimeConfig: &runtimeapi.RuntimeConfig{
			NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: strings.Join(k.cfg.PodCIDRs, ",")},
		},
	})
	if err != nil {
		return "", fmt.Errorf("set the container runtime's pod range: %w", err)
	}
	return v.GetRuntimeName(), nil
}

// runtimeClasses resolves runtime classes to handlers.
type runtimeClasses struct{ client kubernetes.Interface }

func (c runtimeClasses) handler(ctx context.Context, name string) (string, error) {
	rc, err := c.client.NodeV1().RuntimeClasses().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("failed to get RuntimeClass %q: %w", name, err)
	}
	return rc.Handler, nil
}
