// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/api/core/localvolume"
	volumeapi "keelson/api/core/volume"
	"keelson/client"
	"keelson/kubelet/csi"
	"keelson/kubelet/deviceplugin"
	"keelson/kubelet/dra"
	"keelson/kubelet/eviction"
	"keelson/kubelet/holdback"
	"keelson/kubelet/image"
	"keelson/kubelet/metrics"
	"keelson/kubelet/node"
	"keelson/kubelet/plugin"
	"keelson/kubelet/pod"
	"keelson/kubelet/podcgroup"
	"keelson/kubelet/podresources"
	"keelson/kubelet/probe"
	"keelson/kubelet/refs"
	"keelson/kubelet/stats"
	"keelson/kubelet/userns"
	"keelson/kubelet/volume"
	"keelson/lib/linux"
	"keelson/lib/signal"
)

// Kubelet is one node's agent. Make it with New.
type Kubelet struct {
	cfg            Config
	component      string
	events         *client.Events
	node           *node.Keeper
	refs           *refs.Store
	volumes        *volume.Manager
	devices        *dra.Manager
	devicePlugins  *deviceplugin.Manager
	podResources   *podresources.Server
	plugins        *plugin.Registry
	userNamespaces *userns.Manager
	podCgroups     *podcgroup.Manager
	images         *image.Manager
	starts         *holdback.Keeper
	probes         *probe.Manager
	env            *pod.Env
	services       services
	eviction       *eviction.Manager
	stats          *stats.Source
	metrics        *metrics.Metrics
	runtimeClasses runtimeClasses
	sysctls        *sysctls

	mu           sync.Mutex
	workers      map[string]*workerEntry // by uid
	staticByName map[string]string       // static pods: namespace/name -> uid
	admitted     map[string]*corev1.Pod
	stopping     bool
	wg           sync.WaitGroup

	staticGone signal.Signal // a static pod has gone
}

// workerEntry is a worker in the table.
type workerEntry struct {
	worker *pod.Worker
	static bool
}

// New looks at the machine and starts nothing.
func New(cfg Config) (*Kubelet, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	kubelet := &Kubelet{
		cfg:          cfg,
		component:    "kubelet " + cfg.NodeName,
		workers:      map[string]*workerEntry{},
		staticByName: map[string]string{},
		staticGone:   signal.New(),
		admitted:     map[string]*corev1.Pod{},
		metrics:      metrics.New(),
		events:       cfg.Client.Events("kubelet", cfg.NodeName, cfg.Log),
	}
	kubelet.cfg.Runtime.Runtime = kubelet.metrics.Runtime(cfg.Runtime.Runtime)
	kubelet.cfg.Runtime.Image = kubelet.metrics.Images(cfg.Runtime.Image)
	cfg = kubelet.cfg
	var err error
	if err = kubelet.newEviction(); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	if err = kubelet.newNode(); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	if kubelet.sysctls, err = newSysctls(kubelet.node.Machine().Kernel, cfg.AllowedUnsafeSysctls); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	kubelet.refs = refs.New(cfg.Client.Interface, kubelet.wakeForRefs, cfg.Log)
	kubelet.volumes = volume.New(cfg.RootDir, linux.OwnMemory(kubelet.node.Machine().Memory), kubelet.refs, cfg.Log)
	if cfg.VolumesDir != "" {
		kubelet.volumes.Local = volume.NewLocalDirs(cfg.VolumesDir, cfg.NodeName, cfg.Client.Interface, cfg.Log)
	}
	kubelet.newPluginManagers()
	kubelet.podCgroups = podcgroup.New(cfg.CgroupRoot, cfg.PodMaxPids, cfg.Log)
	kubelet.userNamespaces = userns.New(kubelet.volumes.PodDir, cfg.Log)
	if kubelet.starts, err = holdback.Open(filepath.Join(cfg.RootDir, "starting"), cfg.Log); err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	kubelet.images, err = image.New(image.Config{
		Starts:                kubelet.starts,
		Service:               notifyingImageService{cfg.Runtime.Image, kubelet.node.Changed},
		Parallel:              cfg.ParallelPulls,
		Dir:                   filepath.Join(cfg.RootDir, "image_manager"),
		VerificationPolicy:    cfg.ImagePullCredentialsVerificationPolicy,
		VerificationAllowlist: cfg.PreloadedImagesVerificationAllowlist,
		Log:                   cfg.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("kubelet: %w", err)
	}
	kubelet.stats.VolumePath = kubelet.volumes.Path
	kubelet.stats.ClaimUsage = func(ctx context.Context, p *corev1.Pod, name string) *csi.Usage {
		if u := kubelet.volumes.CSI.Stats(ctx, string(p.UID), name); u != nil {
			return u
		}
		return kubelet.volumes.Usage(p, name)
	}
	runner := probe.NewRunner(cfg.Runtime.Runtime, "1.37")
	kubelet.probes = probe.NewManager(runner, &probeListener{kubelet})
	kubelet.services.client = cfg.Client.Interface
	kubelet.runtimeClasses.client = cfg.Client
	kubelet.env = kubelet.podEnv(runner)
	return kubelet, nil
}

// newNode makes the keeper of the node's object.
func (k *Kubelet) newNode() (err error) {
	cfg := &k.cfg
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
	k.node, err = node.New(node.Config{
		Name:        cfg.NodeName,
		Client:      cfg.Client,
		Runtime:     cfg.Runtime,
		Events:      k.events,
		Log:         cfg.Log,
		Hostname:    cfg.Hostname,
		IPs:         k.nodeIPs(),
		Port:        cfg.Port,
		PodCIDRs:    cfg.PodCIDRs,
		Labels:      labels,
		Annotations: annotations,
		Taints:      cfg.Taints,
		MaxPods:     cfg.MaxPods,
		Reserved:    cfg.KubeReserved,
		InUse:       k.volumesInUse,
		Plugins:     k.pluginResources,
		Updated:     k.nodeUpdated,
		Back:        k.readPods,
		Kept:        k.evictionReserved,
		Pressures:   k.eviction.Conditions,
		Register:    cfg.RegisterNode,
		Version:     cfg.Version,
		DataDir:     cfg.RootDir,
		LeaseEvery:  cfg.LeaseInterval,
		StatusEvery: cfg.StatusInterval,
	})
	return err
}

func (k *Kubelet) nodeIPs() []string {
	ips := make([]string, 0, len(k.cfg.NodeIPs))
	for _, ip := range k.cfg.NodeIPs {
		ips = append(ips, ip.String())
	}
	return ips
}

// podEnv is what all workers of pods share.
func (k *Kubelet) podEnv(runner *probe.Runner) *pod.Env {
	cfg := &k.cfg
	return &pod.Env{
		Component:         k.component,
		API:               cfg.Client,
		Runtime:           cfg.Runtime.Runtime,
		Images:            k.images,
		Starts:            k.starts,
		Volumes:           k.volumes,
		Devices:           k.devices,
		Plugins:           k.devicePlugins,
		Users:             k.userNamespaces,
		Cgroups:           k.podCgroups,
		Refs:              k.refs,
		Probes:            k.probes,
		Prober:            runner,
		Events:            k.events,
		Marks:             cfg.Marks,
		Metrics:           k.metrics,
		Log:               cfg.Log,
		Hostname:          cfg.Hostname,
		HostIPs:           k.nodeIPs(),
		MemoryBytes:       k.node.Machine().Memory,
		LogDir:            cfg.LogDir,
		SeccompDir:        filepath.Join(cfg.RootDir, "seccomp"),
		StatusBatchPeriod: cfg.StatusBatchPeriod,
		ClusterDomain:     cfg.ClusterDomain,
		ClusterDNS:        cfg.ClusterDNS,
		ResolvConf:        cfg.ResolvConf,
		HostsFile:         cfg.HostsFile,
		Services:          k.services.inNamespace,
		Allocatable:       k.allocatable,
		Admit:             k.admit,
		Resize:            k.resize,
		Adopt:             k.addAdmitted,
		Handler:           k.runtimeClasses.handler,
		Node:              k.node.Ref,
	}
}

// Run registers the node, calls ready when it is Ready, and runs its pods until ctx is done. Containers keep running.
func (k *Kubelet) Run(ctx context.Context, ready func()) error {
	if err := k.prepare(ctx); err != nil {
		return err
	}
	srv, err := k.listen()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer k.probes.Close()
	defer k.stopWorkers(cancel)
	wg.Go(func() { _ = k.events.Run(ctx, func() {}) }) // it knows no error
	wg.Go(func() { k.refs.Run(ctx) })
	wg.Go(func() { k.services.run(ctx) })
	if k.volumes.Local != nil {
		wg.Go(func() { k.volumes.Local.Run(ctx) })
	}
	failed := make(chan error, 4)
	k.serve(ctx, &wg, srv, failed)
	wg.Go(func() { k.watchRuntime(ctx) })
	wg.Go(func() { k.rotateLogs(ctx) })
	pods := make(chan error, 1)
	wg.Go(func() { pods <- k.watchPods(ctx) })
	if err := k.node.Register(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	wg.Go(func() { k.node.Run(ctx) })
	wg.Go(func() { k.eviction.Run(ctx) })
	wg.Go(func() { k.volumes.CSI.Run(ctx) })
	wg.Go(func() { k.devices.Run(ctx) })
	wg.Go(func() { k.plugins.Run(ctx) })
	for _, run := range []func(context.Context) error{k.devicePlugins.Run, k.podResources.Run} {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				failed <- err
			}
		})
	}
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

// prepare makes directories, calls the runtime's Version, and reads checkpoints.
func (k *Kubelet) prepare(ctx context.Context) error {
	if err := k.volumes.Prepare(); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	k.podCgroups.Prepare()
	if err := os.MkdirAll(k.cfg.LogDir, 0o750); err != nil {
		return fmt.Errorf("kubelet: make log directory: %w", err)
	}
	v, err := k.cfg.Runtime.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return fmt.Errorf("kubelet: ask the container runtime for its version: %w", err)
	}
	k.env.RuntimeName = v.GetRuntimeName()
	if err := k.images.Recover(ctx); err != nil {
		// those images are verified, or recovered at the next start
		k.cfg.Log.Warn("recover records of image pulls", "err", err)
	}
	if err := k.devices.Load(); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	if err := k.devicePlugins.Load(); err != nil {
		return fmt.Errorf("kubelet: %w", err)
	}
	if err := k.loadUserNamespaces(ctx); err != nil {
		return fmt.Errorf("kubelet: user namespaces: %w", err)
	}
	if len(k.cfg.PodCIDRs) == 0 {
		return nil
	}
	_, err = k.cfg.Runtime.Runtime.UpdateRuntimeConfig(ctx, &runtimeapi.UpdateRuntimeConfigRequest{
		RuntimeConfig: &runtimeapi.RuntimeConfig{
			NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: strings.Join(k.cfg.PodCIDRs, ",")},
		},
	})
	if err != nil {
		return fmt.Errorf("kubelet: tell the container runtime its pod range: %w", err)
	}
	return nil
}

func (k *Kubelet) stopWorkers(cancel func()) {
	k.mu.Lock()
	k.stopping = true
	k.mu.Unlock()
	cancel()
	k.wg.Wait()
}

func (k *Kubelet) allocatable() corev1.ResourceList {
	if n := k.node.Node(); n != nil && len(n.Status.Allocatable) > 0 {
		return n.Status.Allocatable
	}
	return k.node.Allocatable()
}

// runtimeClasses resolves runtime classes to handlers.
type runtimeClasses struct{ client kubernetes.Interface }

func (c *runtimeClasses) handler(ctx context.Context, name string) (string, error) {
	rc, err := c.client.NodeV1().RuntimeClasses().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("failed to get RuntimeClass %q: %w", name, err)
	}
	return rc.Handler, nil
}

// resyncPeriod is the time after which all pods are listed again if the runtime has sent no event.
const resyncPeriod = 5 * time.Minute
