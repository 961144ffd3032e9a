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
	"keelson/kubelet"
	"keelson/lib/deeds"
	"keelson/lib/linux"
	"keelson/lib/mark"
	"keelson/lib/run"
	"keelson/network"
	"keelson/network/cni"
	"keelson/runtime"
)

// heartbeat is how rarely the node inside `keelson up`, which shares its process with the API server, renews its lease
// (docs/decisions/0004). A kubelet in a process of its own has the kubelet's default.
const heartbeat = 15 * time.Minute

// nodePlace is what a node's surroundings say about it.
type nodePlace struct {
	// own are ports of this machine that no pod may have, by what listens there.
	own map[string]net.Addr
	// lease is how often the node's lease is renewed; 0: as Kubernetes does.
	lease time.Duration
}

// serverHere is the API server's address where it is this machine's own; its port is then no pod's.
func serverHere(host string) map[string]net.Addr {
	u, err := url.Parse(host)
	if err != nil {
		return nil
	}
	a, err := netip.ParseAddrPort(u.Host)
	if err != nil {
		return nil // a name, or no port: other machines are reached so
	}
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", net.JoinHostPort(a.Addr().String(), "0"))
	if err != nil {
		return nil
	}
	_ = l.Close() // it only showed that the address is here
	return map[string]net.Addr{"the API server": net.TCPAddrFromAddrPort(a)}
}

func cgroupParent(dir DataDir) string { return "/keelson-" + dir.ID() }

// openRuntime connects to the runtime that cfg names, or makes the built-in one with its network.
func openRuntime(cfg Config, dir DataDir, told connected, marks *mark.Recorder, log *slog.Logger) (nodeRuntime, error) {
	if cfg.RuntimeEndpoint != "" {
		if err := writeIfChanged(dir.Sub(endpointFile), []byte(cfg.RuntimeEndpoint)); err != nil {
			return nodeRuntime{}, fmt.Errorf("note the container runtime: %w", err)
		}
		rt, err := dialRuntime(cfg.RuntimeEndpoint)
		return nodeRuntime{client: rt, reserve: func(net.Addr, string) {}}, err // its network is not ours
	}
	rt, pods, plugins, err := builtinRuntime(cfg, dir, told, false, marks, log)
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
	return nodeRuntime{client: c, pods: pods, plugins: plugins, runNetwork: pods.Run, run: rt.Run, reserve: reserve}, nil
}

// nodeRuntime is a node's container runtime.
type nodeRuntime struct {
	client cri.Client
	pods   *network.Network // nil: it is not ours
	// plugins attach pods; nil: pods does.
	plugins *cni.Network
	// runNetwork and run are the lives of the pod network and of the runtime; nil where they are not ours.
	runNetwork, run run.Func
	// reserve keeps a port of the machine for what listens on it.
	reserve func(addr net.Addr, what string)
}

func (n *nodeRuntime) keepKubelet(a net.Addr) { n.reserve(a, "the kubelet") }

// builtinRuntime makes the built-in runtime and its network. streamTCP is for clients in other processes.
func builtinRuntime(
	cfg Config, dir DataDir, told connected, streamTCP bool, marks *mark.Recorder, log *slog.Logger,
) (rt *runtime.Runtime, pods *network.Network, plugins *cni.Network, err error) {
	pods, err = network.New(network.Config{ID: dir.ID(), Dir: dir.Sub("network"), PodCIDRs: cfg.PodCIDRs, Plugins: cfg.CNI.on(), Log: log.With(deeds.Key, deeds.Network)})
	if err != nil {
		return nil, nil, nil, err
	}
	if plugins, err = cfg.CNI.open(dir, cfg.PodCIDRs, log.With(deeds.Key, deeds.Network)); err != nil {
		return nil, nil, nil, err
	}
	rt, err = runtime.New(runtime.Config{
		Dir: dir.Sub("runtime"), ID: dir.ID(), CgroupParent: cgroupParent(dir), Network: cfg.CNI.network(pods, plugins), Connected: told, Mirrors: cfg.Mirrors,
		Logs:    cfg.Node.containerLogs(),
		Version: KubernetesRelease, StreamTCP: streamTCP, Marks: marks, Log: log.With(deeds.Key, deeds.Runtime),
	})
	if err != nil || !cfg.CNI.on() {
		plugins = nil
	}
	return rt, pods, plugins, err
}

// removeNode takes away everything a real node has in the kernel. Nothing there is no error.
func removeNode(ctx context.Context, dir DataDir, waiting func(string)) error {
	if os.Getuid() != 0 {
		return nil
	}
	foreign := removeForeign(ctx, dir)
	log := slog.New(slog.DiscardHandler)
	net, err := network.New(network.Config{ID: dir.ID(), Dir: dir.Sub("network"), PodCIDRs: []netip.Prefix{anyCIDR}, Log: log})
	if err != nil {
		return err
	}
	plugins, err := CNIOptions{}.open(dir, nil, log)
	if err != nil {
		return err
	}
	// The runtime need not detach pods one by one from the built-in network: the whole of it goes.
	err = runtime.Down(ctx, runtime.Config{Network: detaching{plugins}, Dir: dir.Sub("runtime"), ID: dir.ID(), CgroupParent: cgroupParent(dir), Log: log, Waiting: waiting})
	return errors.Join(append(purgeRoles(ctx, dir), foreign, err, plugins.Purge(ctx), net.Purge(ctx), bounded(ctx, "unmount volumes", waiting, func() error { return kubelet.Purge(dir.Sub("kubelet")) }))...)
}

// Limits of a step of going down that the kernel may never finish, such as unmounting a file system whose server is gone.
const (
	stepSay   = 3 * time.Second
	stepLimit = 30 * time.Second
)

// bounded does f, says so when that takes long, and after its limit goes on without it.
func bounded(ctx context.Context, what string, waiting func(string), f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }() // ends with the process at the latest
	say := time.AfterFunc(stepSay, func() { waiting(what) })
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

// endpointFile remembers a runtime that is not the built-in one, so that this cluster's pods can be removed from it.
const endpointFile = "runtime-endpoint"

// Limits of what an external runtime may take: to answer at all, and to end all pods.
const (
	dialLimit    = 10 * time.Second
	foreignLimit = time.Minute
)

func dialRuntime(endpoint string) (cri.Client, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	defer cancel()
	return cri.Dial(ctx, endpoint)
}

// removeForeign ends this node's pods in an external runtime, if it had one.
func removeForeign(ctx context.Context, dir DataDir) error {
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
		return fmt.Errorf("this cluster's pods may still run in %s, which does not answer; start it, or delete %s to leave them there: %w", endpoint, file, err)
	}
	defer func() { _ = rt.Close() }()
	ctx, cancel := context.WithTimeout(ctx, foreignLimit)
	defer cancel()
	if err := kubelet.PurgePods(ctx, rt, dir.Sub("kubelet")); err != nil {
		return fmt.Errorf("end the pods in the container runtime at %s: %w", endpoint, err)
	}
	// The built-in runtime's cgroup goes with it; here the pods were all that was in ours.
	host, err := linux.Detect()
	if err != nil {
		return err
	}
	if err := linux.RemoveCgroup(host.Cgroups, cgroupParent(dir)); err != nil {
		return err
	}
	return os.Remove(file)
}
