// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"keelson/client"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/cluster/membership"
	"keelson/cluster/nodehost"
	"keelson/cluster/noderoles"
	"keelson/cluster/version"
	"keelson/cri"
	"keelson/event"
	"keelson/event/eventlog"
	"keelson/kubelet/node"
	"keelson/lib/run"
	"keelson/network"
)

// nodeStart is what a start of a node in a process of its own found in its data directory.
type nodeStart struct {
	hadNode     bool // the directory has had the node before
	reserveUsed bool // the disk is full; the reserve of disk space is in use
}

// runKubelet runs this machine's node against a server reached by kubeconfig.
func runKubelet(ctx context.Context, role RoleConfig) error {
	cfg, err := role.config()
	if err != nil {
		return err
	}
	if err := nodehost.MayBeNode(); err != nil {
		return err
	}
	// the node has joined before
	if role.Bootstrap == "" && role.Kubeconfig == "" && datadir.Exists(cfg.DataDir.Sub(membership.BootstrapFile)) {
		role.Bootstrap = cfg.DataDir.Sub(membership.BootstrapFile)
	}
	cfg.serverAt = role.serverAt()
	bare := cfg.DataDir.Empty()
	dir, err := cfg.DataDir.Prepare()
	if err != nil {
		return err
	}
	lock, err := dir.LockNode()
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	undo := func(err error) error {
		if bare {
			err = errors.Join(err, dir.UndoNode())
		}
		return err
	}
	start := nodeStart{hadNode: datadir.Exists(dir.Sub(datadir.NodeNameFile))}
	if start.reserveUsed, err = dir.Reserve().Fill(); err != nil {
		role.log().Warn("there is no reserve for a start with a full disk", "err", err)
	}
	if cfg.NodeName, err = nodehost.KeepName(dir, cfg.NodeName, role.log()); err != nil {
		return undo(err)
	}
	g, release, err := role.kubeletParts(ctx, cfg, dir, start)
	if err != nil {
		return undo(err)
	}
	defer release()
	return g.Run(ctx, role.Ready)
}

// serverAt is the API server's address; invalid: it is on this machine, or only a host name is known.
func (r RoleConfig) serverAt() netip.Addr {
	for _, file := range []string{r.kubeconfig("kubelet"), r.Bootstrap} {
		to, err := membership.LoadKubeconfig(file)
		if to == nil || err != nil {
			continue // the code that loads the kubeconfig reports the error
		}
		u, err := url.Parse(to.Host)
		if err != nil {
			continue
		}
		if ip, err := netip.ParseAddr(u.Hostname()); err == nil && !ip.IsLoopback() {
			return ip
		}
	}
	return netip.Addr{}
}

// knownServers are the URLs of the API servers in the kubelet's kubeconfigs, and of those that it has learned.
func (r RoleConfig) knownServers() []string {
	var out []string
	for _, file := range []string{r.kubeconfig("kubelet"), r.Bootstrap} {
		to, err := membership.LoadKubeconfig(file)
		if to != nil && err == nil { // the code that loads the kubeconfig reports the error
			out = append(append(out, to.Host), r.servers(to.Host).URLs()...)
		}
	}
	return out
}

// kubeletParts are the roles of a node. A node without a certificate gets one first, then its pod CIDRs, and is built
// then.
func (r RoleConfig) kubeletParts(
	ctx context.Context, cfg Config, dir datadir.Dir, start nodeStart,
) (group *run.Group, release func(), err error) {
	nodehost.ClearWay(ctx, r.log(), r.knownServers()...)
	cert, err := r.kubelet(cfg, dir).Certificates()
	if err != nil {
		return nil, nil, err
	}
	if cert.Run == nil {
		return r.nodeParts(ctx, cfg, dir, cert, start, nodehost.OwnRangeWait)
	}
	group = &run.Group{}
	group.Add("certificates", cert.Run)
	group.Add("node", func(ctx context.Context, ready func()) error {
		node, release, err := r.nodeParts(ctx, cfg, dir, cert, start, nodehost.JoinRangeWait)
		if err != nil {
			return err
		}
		defer release()
		return node.Run(ctx, ready)
	})
	return group, func() {}, nil
}

// nodeSite collects what the roles of a node share, except how they reach the server.
func (r RoleConfig) nodeSite(cfg Config, dir datadir.Dir, cert membership.Certificates) *site {
	return &site{
		cfg:     cfg,
		dir:     dir,
		log:     r.log(),
		signers: credentials.Signers{RootCA: cert.CA.Get},
	}
}

// nodeParts are the roles of a node that has its certificates. release gives up the claim on its pod CIDRs.
func (r RoleConfig) nodeParts(
	ctx context.Context, cfg Config, dir datadir.Dir, cert membership.Certificates, start nodeStart, wait time.Duration,
) (*run.Group, func(), error) {
	cl, marks, forward, err := r.connectTo(cert.REST, "kubelet")
	if err != nil {
		return nil, nil, err
	}
	if err := r.claimNode(ctx, cfg, dir, cl, start.hadNode); err != nil {
		return nil, nil, err
	}
	var podRange io.Closer
	if cfg.PodCIDRs, podRange, err = (nodehost.RangeRequest{
		Dir:      dir,
		NodeName: cfg.NodeName,
		PodCIDRs: cfg.PodCIDRs,
		From:     cfg.Controllers.PodRanges,
		Foreign:  cfg.foreignNetwork(),
		Kubelet:  cfg.Node,
		Client:   cl,
		Wait:     wait,
	}).AskPodCIDRs(ctx); err != nil {
		return nil, nil, err
	}
	release := func() { _ = podRange.Close() }
	site := r.nodeSite(cfg, dir, cert)
	site.marks = marks
	site.connect = membership.NodeAccounts{
		Node:      cl,
		Anonymous: cert.Anonymous,
		Name:      cfg.NodeName,
		Accounts:  rightsOf(table()).AccountsBeside(),
		Log:       r.log().With(eventlog.Key, eventlog.Cluster),
	}.Connect
	if err := site.addNode(noderoles.Process{
		Reserved: nodehost.ServerHere(cert.REST.Host),
		PodGroup: network.GroupOf(dir.ID()),
		Serving:  cert.Serving,
		Identity: cert.Metrics,
	}, cfg.has); err != nil {
		release()
		return nil, nil, err
	}
	beside := append(serverParts(cert.Servers, cl), forward)
	if start.reserveUsed {
		beside = append(beside, dir.Reserve().KeepNode(r.log()))
	}
	if cert.Joined != nil {
		cert.Joined.LearnNetwork(ctx, cl)
		beside = append(beside, run.Part{Name: "client authorities", Run: cert.Joined.Learn()})
	}
	for _, f := range cert.Keepers {
		beside = append(beside, run.Part{Name: "certificates", Run: f})
	}
	g := &run.Group{}
	if err := site.addRoles(g, nil, func(r *role) bool { return r.node }, beside, "runtime", "kubelet"); err != nil {
		release()
		return nil, nil, err
	}
	return g, release, nil
}

// claimNode is NodeClaim.Free for a node in a process of its own.
func (r RoleConfig) claimNode(ctx context.Context, cfg Config, dir datadir.Dir, cl *client.Client, had bool) error {
	machine, err := node.Inspect(string(dir))
	if err != nil {
		return err
	}
	return membership.NodeClaim{
		Name:    cfg.NodeName,
		Machine: machine,
		Had:     had,
		Look: func(ctx context.Context) (membership.NodeHolder, error) {
			return membership.RemoteHolder(ctx, cl, cfg.NodeName)
		},
		Log: r.log(),
	}.Free(ctx)
}

// kubelet is the kubelet of a node in a process of its own, as it knows its cluster.
func (r RoleConfig) kubelet(cfg Config, dir datadir.Dir) membership.Kubelet {
	return membership.Kubelet{
		Dir:        dir,
		NodeName:   cfg.NodeName,
		Version:    version.Kubernetes,
		Addresses:  netIPs(cfg.nodeIPs()),
		Kubeconfig: r.kubeconfig("kubelet"),
		Bootstrap:  r.Bootstrap,
		ClientCA:   r.ClientCA,
		Servers:    r.servers,
		Log:        r.log(),
	}
}

// Join fills the data directory of a new node of the cluster in q; the kubelet role then runs it.
func Join(ctx context.Context, q membership.JoinRequest, role *RoleConfig) error {
	cfg, err := role.config()
	if err != nil {
		return err
	}
	if err := nodehost.MayBeNode(); err != nil {
		return err
	}
	nodehost.ClearWay(ctx, role.log(), q.Server)
	dir, err := q.Join(ctx, cfg.DataDir, cfg.NodeName, role.kubeconfig("kubelet"))
	if err != nil {
		return err
	}
	role.DataDir = dir
	role.Bootstrap = dir.Sub(membership.BootstrapFile)
	return nil
}

// runRuntime runs the built-in container runtime with its pod network, and serves CRI v1 on a Unix socket, for crictl,
// critest and other kubelets. Containers outlive it; `keelson down` ends them.
func runRuntime(ctx context.Context, role RoleConfig) error {
	socket, ok := strings.CutPrefix(role.Listen, "unix://")
	if !ok || !filepath.IsAbs(socket) {
		return fmt.Errorf("--listen %q is not of the form unix:///PATH", role.Listen)
	}
	cfg := Default()
	cfg.DataDir = role.DataDir
	cfg.CNI = role.CNI
	if err := cfg.CNI.Validate(); err != nil {
		return err
	}
	var err error
	if cfg.Mirrors, err = role.mirrors(); err != nil {
		return err
	}
	cfg.ImageHelper = role.ImageHelper
	dir, err := cfg.DataDir.Prepare()
	if err != nil {
		return err
	}
	lock, err := dir.Lock()
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	reserve := dir.Reserve().Node(role.log())
	var podRange io.Closer
	if cfg.PodCIDRs, podRange, err = nodehost.ChoosePodCIDRs(cfg.PodCIDRs, dir, cfg.Controllers.PodRanges); err != nil {
		return err
	}
	defer func() { _ = podRange.Close() }()
	of := cfg.containerRuntime(dir)
	of.StreamTCP = true
	of.Marks = event.NewRecorder()
	of.Log = role.log()
	rt, pods, _, err := nodehost.Builtin(of)
	if err != nil {
		return err
	}
	g := &run.Group{}
	g.Add("node", run.Together(nil, run.Part{Name: "network", Run: pods.Run}, run.Part{
		Name: "container runtime",
		Run:  rt.Run,
	}))
	for _, part := range reserve {
		g.Add(part.Name, part.Run)
	}
	g.Add("cri", func(ctx context.Context, ready func()) error { return cri.Serve(ctx, rt, socket, ready) })
	return g.Run(ctx, role.Ready)
}
