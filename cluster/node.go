// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"time"

	"keelson/cluster/datadir"
	"keelson/cluster/version"
	"keelson/cri"
	"keelson/event"
	"keelson/event/eventlog"
	"keelson/kubelet/rootdir"
	"keelson/lib/run"
	"keelson/network"
	"keelson/network/cni"
	"keelson/runtime"
)

// heartbeat is the lease renewal interval of a node whose process is the whole control plane: when it ends, nobody is
// left to notice (docs/decisions/0004). Every other kubelet has Kubernetes' default.
const heartbeat = 15 * time.Minute

// nodeEnv is what a node needs to know about its process and machine.
type nodeEnv struct {
	// reserved are the ports of this machine that pods must not use, by the name of the listener.
	reserved map[string]net.Addr
	// renew is the lease renewal interval; 0: Kubernetes' default.
	renew time.Duration
}

// serverHere returns the API server's address, a port that pods must not use, if it is on this machine.
func serverHere(host string) map[string]net.Addr {
	u, err := url.Parse(host)
	if err != nil {
		return nil
	}
	a, err := netip.ParseAddrPort(u.Host)
	if err != nil {
		return nil // a host name, or no port: the server is on another machine
	}
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", net.JoinHostPort(a.Addr().String(), "0"))
	if err != nil {
		return nil
	}
	_ = l.Close() // listening only tested that the address is local
	return map[string]net.Addr{"the API server": net.TCPAddrFromAddrPort(a)}
}

func cgroupParent(dir datadir.Dir) string { return "/keelson-" + dir.ID() }

// openRuntime connects to the runtime that cfg names, or creates the built-in one with its network.
func openRuntime(
	cfg Config, dir datadir.Dir, onConnect podConnected, marks *event.Recorder, log *slog.Logger,
) (nodeRuntime, error) {
	if cfg.RuntimeEndpoint != "" {
		if err := datadir.WriteIfChanged(dir.Sub(datadir.EndpointFile), []byte(cfg.RuntimeEndpoint)); err != nil {
			return nodeRuntime{}, fmt.Errorf("note the container runtime: %w", err)
		}
		rt, err := dialRuntime(cfg.RuntimeEndpoint)
		return nodeRuntime{client: rt, reserve: func(net.Addr, string) {}}, err // its network is not Keelson's
	}
	rt, pods, plugins, err := builtinRuntime(cfg, dir, onConnect, false, marks, log)
	if err != nil {
		return nodeRuntime{}, err
	}
	reserve := func(a net.Addr, what string) {
		ap, err := netip.ParseAddrPort(a.String())
		if err == nil {
			err = pods.Reserve(ap.Port(), what)
		}
		if err != nil {
			log.Error("keep a port for the node", "addr", a, "for", what, "err", err)
		}
	}
	c := cri.InProcess(rt)
	c.DialStreams = rt.DialStreams
	return nodeRuntime{
		client:     c,
		pods:       pods,
		plugins:    plugins,
		runNetwork: pods.Run,
		run:        rt.Run,
		reserve:    reserve,
	}, nil
}

// nodeRuntime is a node's container runtime.
type nodeRuntime struct {
	client cri.Client
	pods   *network.Network // nil: an external runtime has its own
	// plugins attach pods; nil: pods does.
	plugins *cni.Network
	// runNetwork and run are the parts that run the pod network and the runtime; nil for an external runtime.
	runNetwork, run run.Func
	// reserve prevents pods from using a port of the machine.
	reserve func(addr net.Addr, what string)
}

func (n *nodeRuntime) keepKubelet(a net.Addr) { n.reserve(a, "the kubelet") }

// builtinRuntime creates the built-in runtime and its network. streamTCP serves streams to clients in other processes.
func builtinRuntime(
	cfg Config, dir datadir.Dir, onConnect podConnected, streamTCP bool, marks *event.Recorder, log *slog.Logger,
) (rt *runtime.Runtime, pods *network.Network, plugins *cni.Network, err error) {
	if !cfg.CNI.on() {
		links, err := podLinks()
		if err == nil {
			err = checkPodRange(cfg.PodCIDRs, dir.ID(), links, func() []datadir.Dir { return datadir.InUse("/proc") })
		}
		if err != nil {
			return nil, nil, nil, err
		}
	}
	pods, err = network.New(network.Config{
		ID:       dir.ID(),
		Dir:      dir.Sub("network"),
		PodCIDRs: cfg.PodCIDRs,
		Plugins:  cfg.CNI.on(),
		Log:      log.With(eventlog.Key, eventlog.Network),
	})
	if err != nil {
		return nil, nil, nil, err
	}
	if plugins, err = cfg.CNI.open(dir, cfg.PodCIDRs, log.With(eventlog.Key, eventlog.Network)); err != nil {
		return nil, nil, nil, err
	}
	rt, err = runtime.New(runtime.Config{
		Dir:          dir.Sub("runtime"),
		ID:           dir.ID(),
		CgroupParent: cgroupParent(dir),
		Network:      cfg.CNI.network(pods, plugins),
		Connected:    onConnect,
		Mirrors:      cfg.Mirrors,
		ImageHelper:  cfg.ImageHelper,
		ImageReserve: cfg.Etcd.ImageReserve(dir),
		Logs:         cfg.Node.containerLogs(),
		HostPath:     rootdir.Dir(dir.Sub("kubelet")).Resolve,
		Version:      version.Release,
		StreamTCP:    streamTCP,
		Marks:        marks,
		Log:          log.With(eventlog.Key, eventlog.Runtime),
	})
	if err != nil || !cfg.CNI.on() {
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
