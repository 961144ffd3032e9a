// SPDX-License-Identifier: Apache-2.0

package nodehost

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/cluster/datadir"
	"keelson/cluster/version"
	"keelson/cri"
	"keelson/event"
	"keelson/event/eventlog"
	"keelson/kubelet/rootdir"
	"keelson/lib/logrotate"
	"keelson/lib/run"
	"keelson/network"
	"keelson/network/cni"
	"keelson/runtime"
	"keelson/runtime/image/registry"
)

// CgroupParent is the cgroup of the pods of a data directory.
func CgroupParent(dir datadir.Dir) string { return "/keelson-" + dir.ID() }

// RuntimeConfig says which container runtime a node uses, and with which pod network.
type RuntimeConfig struct {
	Dir datadir.Dir
	// Endpoint is a CRI socket (unix://...); empty: the built-in runtime. What follows is for that one.
	Endpoint string
	CNI      CNIOptions
	PodCIDRs []netip.Prefix
	// Registries say from where images are pulled.
	Registries registry.Settings
	// ImageHelper is the command line of the program that pulls images; empty: this process does.
	ImageHelper []string
	// ImageReserve is what images leave free on the disk; 0: their own rule is enough.
	ImageReserve int64
	Logs         logrotate.Policy
	// Connected gets a new pod's addresses before its containers start; may be nil.
	Connected PodConnected
	// StreamTCP serves streams to clients in other processes.
	StreamTCP bool
	Marks     *event.Recorder
	Log       *slog.Logger
}

// PodConnected is runtime.Config.Connected.
type PodConnected = func(context.Context, *runtimeapi.PodSandboxConfig, []netip.Addr) error

// Runtime is a node's container runtime.
type Runtime struct {
	Client cri.Client
	Pods   *network.Network // nil: an external runtime has its own
	// Plugins attach pods; nil: Pods does.
	Plugins *cni.Network
	// RunNetwork and Run are the parts that run the pod network and the runtime; nil for an external runtime.
	RunNetwork, Run run.Func

	log *slog.Logger
}

// OpenRuntime connects to the runtime that c names, or creates the built-in one with its network.
func OpenRuntime(c RuntimeConfig) (*Runtime, error) {
	if c.Endpoint != "" {
		if err := datadir.WriteIfChanged(c.Dir.Sub(datadir.EndpointFile), []byte(c.Endpoint)); err != nil {
			return nil, fmt.Errorf("note the container runtime: %w", err)
		}
		rt, err := dialRuntime(c.Endpoint)
		return &Runtime{Client: rt}, err
	}
	rt, pods, plugins, err := Builtin(c)
	if err != nil {
		return nil, err
	}
	client := cri.InProcess(rt)
	client.DialStreams = rt.DialStreams
	return &Runtime{
		Client:     client,
		Pods:       pods,
		Plugins:    plugins,
		RunNetwork: pods.Run,
		Run:        rt.Run,
		log:        c.Log,
	}, nil
}

// Reserve prevents pods from using a port of the machine. The network of an external runtime is not Keelson's.
func (r *Runtime) Reserve(addr net.Addr, what string) {
	if r.Pods == nil {
		return
	}
	ap, err := netip.ParseAddrPort(addr.String())
	if err == nil {
		err = r.Pods.Reserve(ap.Port(), what)
	}
	if err != nil {
		r.log.Error("keep a port for the node", "addr", addr, "for", what, "err", err)
	}
}

// ReserveKubelet reserves the kubelet's port.
func (r *Runtime) ReserveKubelet(addr net.Addr) { r.Reserve(addr, "the kubelet") }

// Builtin creates the built-in runtime and its network.
func Builtin(c RuntimeConfig) (rt *runtime.Runtime, pods *network.Network, plugins *cni.Network, err error) {
	if !c.CNI.Enabled() {
		links, err := podLinks()
		if err == nil {
			err = checkPodRange(c.PodCIDRs, c.Dir.ID(), links, func() []datadir.Dir { return datadir.InUse("/proc") })
		}
		if err != nil {
			return nil, nil, nil, err
		}
	}
	pods, err = network.New(network.Config{
		ID:       c.Dir.ID(),
		Dir:      c.Dir.Sub("network"),
		PodCIDRs: c.PodCIDRs,
		Plugins:  c.CNI.Enabled(),
		Log:      c.Log.With(eventlog.Key, eventlog.Network),
	})
	if err != nil {
		return nil, nil, nil, err
	}
	if plugins, err = c.CNI.open(c.Dir, c.PodCIDRs, c.Log.With(eventlog.Key, eventlog.Network)); err != nil {
		return nil, nil, nil, err
	}
	rt, err = runtime.New(runtime.Config{
		Dir:          c.Dir.Sub("runtime"),
		ID:           c.Dir.ID(),
		CgroupParent: CgroupParent(c.Dir),
		Network:      c.CNI.network(pods, plugins),
		Connected:    c.Connected,
		Registries:   c.Registries,
		ImageHelper:  c.ImageHelper,
		ImageReserve: c.ImageReserve,
		Logs:         c.Logs,
		HostPath:     rootdir.Dir(c.Dir.Sub("kubelet")).Resolve,
		Version:      version.Release,
		StreamTCP:    c.StreamTCP,
		Marks:        c.Marks,
		Log:          c.Log.With(eventlog.Key, eventlog.Runtime),
	})
	if err != nil || !c.CNI.Enabled() {
		plugins = nil
	}
	return rt, pods, plugins, err
}

// externalDialLimit is how long an external runtime may take to answer.
const externalDialLimit = 10 * time.Second

func dialRuntime(endpoint string) (cri.Client, error) {
	ctx, cancel := context.WithTimeout(context.Background(), externalDialLimit)
	defer cancel()
	return cri.Dial(ctx, endpoint)
}
