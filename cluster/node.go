// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"time"

	"keelson/cri"
	"keelson/event"
	"keelson/event/eventlog"
	"keelson/kubelet"
	"keelson/kubelet/rootdir"
	"keelson/lib/linux"
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

func cgroupParent(dir DataDir) string { return "/keelson-" + dir.ID() }

// openRuntime connects to the runtime that cfg names, or creates the built-in one with its network.
func openRuntime(
	cfg Config, dir DataDir, onConnect podConnected, marks *event.Recorder, log *slog.Logger,
) (nodeRuntime, error) {
	if cfg.RuntimeEndpoint != "" {
		if err := writeIfChanged(dir.Sub(endpointFile), []byte(cfg.RuntimeEndpoint)); err != nil {
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
	cfg Config, dir DataDir, onConnect podConnected, streamTCP bool, marks *event.Recorder, log *slog.Logger,
) (rt *runtime.Runtime, pods *network.Network, plugins *cni.Network, err error) {
	if !cfg.CNI.on() {
		links, err := podLinks()
		if err == nil {
			err = checkPodRange(cfg.PodCIDRs, dir.ID(), links, func() []DataDir { return directoriesInUse("/proc") })
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
		ImageReserve: cfg.Etcd.imageReserve(dir),
		Logs:         cfg.Node.containerLogs(),
		HostPath:     rootdir.Dir(dir.Sub("kubelet")).Resolve,
		Version:      KubernetesRelease,
		StreamTCP:    streamTCP,
		Marks:        marks,
		Log:          log.With(eventlog.Key, eventlog.Runtime),
	})
	if err != nil || !cfg.CNI.on() {
		plugins = nil
	}
	return rt, pods, plugins, err
}

// removeNode removes everything of a real node from the kernel. If nothing is there, that is no error. What the node's
// records do not help to remove, because they cannot be read, is found by name.
func removeNode(ctx context.Context, dir DataDir, waiting func(string)) error {
	if os.Getuid() != 0 {
		return nil
	}
	err := removeRecorded(ctx, dir, waiting)
	if err == nil || ctx.Err() != nil {
		return err
	}
	byName := removeByName(ctx, dir)
	if errors.Is(err, runtime.ErrUnusable) {
		return byName // no container has run there
	}
	return errors.Join(err, byName)
}

// removeRecorded is removeNode by the records in the data directory.
func removeRecorded(ctx context.Context, dir DataDir, waiting func(string)) error {
	foreign := removeExternal(ctx, dir)
	log := slog.New(slog.DiscardHandler)
	net, err := network.New(network.Config{
		ID:       dir.ID(),
		Dir:      dir.Sub("network"),
		PodCIDRs: []netip.Prefix{anyCIDR},
		Log:      log,
	})
	if err != nil {
		return err
	}
	plugins, err := CNIOptions{}.open(dir, nil, log)
	if err != nil {
		return err
	}
	// The runtime need not detach pods from the built-in network one by one: the whole network is removed.
	err = runtime.Down(ctx, runtime.Config{
		Network:      detachOnly{plugins},
		Dir:          dir.Sub("runtime"),
		ID:           dir.ID(),
		CgroupParent: cgroupParent(dir),
		Log:          log,
		Waiting:      waiting,
	})
	return errors.Join(append(purgeRoles(ctx, dir), foreign, err, plugins.Purge(ctx), net.Purge(ctx),
		bounded(ctx, "unmount volumes", waiting, func() error { return kubelet.Purge(dir.Sub("kubelet")) }))...)
}

// Time limits of a step of `keelson down` that the kernel may never finish, such as unmounting a file system whose
// server is gone.
const (
	stepNotice = 3 * time.Second
	stepLimit  = 30 * time.Second
)

// bounded runs f, reports when it takes long, and gives up waiting at its limit.
func bounded(ctx context.Context, what string, waiting func(string), f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }() // ends with the process at the latest
	say := time.AfterFunc(stepNotice, func() { waiting(what) })
	defer say.Stop()
	limit := time.NewTimer(stepLimit)
	defer limit.Stop()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case <-limit.C:
		return fmt.Errorf("%s: not done in %s", what, stepLimit)
	}
}

// endpointFile stores the socket of an external runtime, so that this cluster's pods can be removed from it.
const endpointFile = "runtime-endpoint"

// Time limits for an external runtime: to answer, and to end all pods.
const (
	externalDialLimit = 10 * time.Second
	externalStopLimit = time.Minute
)

func dialRuntime(endpoint string) (cri.Client, error) {
	ctx, cancel := context.WithTimeout(context.Background(), externalDialLimit)
	defer cancel()
	return cri.Dial(ctx, endpoint)
}

// removeExternal ends this node's pods in an external runtime, if it used one.
func removeExternal(ctx context.Context, dir DataDir) error {
	file := dir.Sub(endpointFile)
	endpoint, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	rt, err := dialRuntime(string(endpoint))
	if err != nil {
		return fmt.Errorf("this cluster's pods may still run in %s, which does not answer; start it, or delete %s to "+
			"leave them there: %w", endpoint, file, err)
	}
	defer func() { _ = rt.Close() }()
	ctx, cancel := context.WithTimeout(ctx, externalStopLimit)
	defer cancel()
	if err := kubelet.PurgePods(ctx, rt, dir.Sub("kubelet")); err != nil {
		return fmt.Errorf("end the pods in the container runtime at %s: %w", endpoint, err)
	}
	// The built-in runtime deletes its own cgroup. An external runtime leaves ours, which held only its pods.
	host, err := linux.Detect()
	if err != nil {
		return err
	}
	if err := linux.RemoveCgroup(host.Cgroups, cgroupParent(dir)); err != nil {
		return err
	}
	return os.Remove(file)
}
