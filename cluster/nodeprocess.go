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

// nodeProcess is this machine's node in a process of its own, as its start found it in the data directory.
type nodeProcess struct {
	RoleConfig
	cfg         Config
	dir         datadir.Dir
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
	hadNode := datadir.Exists(dir.Sub(datadir.NodeNameFile))
	reserveUsed, err := dir.Reserve().Fill()
	if err != nil {
		role.log().Warn("there is no reserve for a start with a full disk", "err", err)
	}
	if cfg.NodeName, err = nodehost.KeepName(dir, cfg.NodeName, role.log()); err != nil {
		return undo(err)
	}
	own := nodeProcess{
		RoleConfig:  role,
		cfg:         cfg,
		dir:         dir,
		hadNode:     hadNode,
		reserveUsed: reserveUsed,
	}
	g, release, err := own.group(ctx)
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

// group has the parts of the process. A node with certificates is made at once. One without requests them first, then
// its pod CIDRs, and is made then. release gives up the claim on the pod CIDRs.
func (n *nodeProcess) group(ctx context.Context) (group *run.Group, release func(), err error) {
	nodehost.ClearWay(ctx, n.log(), n.knownServers()...)
	cert, err := n.kubelet(n.cfg, n.dir).Certificates()
	if err != nil {
		return nil, nil, err
	}
	if cert.Run == nil {
		return n.certified(ctx, cert, nodehost.OwnRangeWait)
	}
	group = &run.Group{}
	group.Add("certificates", cert.Run)
	group.Add("node", func(ctx context.Context, ready func()) error {
		node, release, err := n.certified(ctx, cert, nodehost.JoinRangeWait)
		if err != nil {
			return err
		}
		defer release()
		return node.Run(ctx, ready)
	})
	return group, func() {}, nil
}

// certified has the roles of a node that has its certificates, and what runs with them. wait limits how long the API
// server may take to give the node its pod CIDRs. release gives up the claim on them.
func (n *nodeProcess) certified(
	ctx context.Context, cert membership.Certificates, wait time.Duration,
) (group *run.Group, release func(), err error) {
	cl, marks, forward, err := n.connectTo(cert.REST, "kubelet")
	if err != nil {
		return nil, nil, err
	}
	if err := n.claim(ctx, cl); err != nil {
		return nil, nil, err
	}
	podCIDRs, claim, err := nodehost.RangeRequest{
		Dir:      n.dir,
		NodeName: n.cfg.NodeName,
		PodCIDRs: n.cfg.PodCIDRs,
		From:     n.cfg.Controllers.PodRanges,
		Foreign:  n.cfg.foreignNetwork(),
		Kubelet:  n.cfg.Node,
		Client:   cl,
		Wait:     wait,
	}.AskPodCIDRs(ctx)
	if err != nil {
		return nil, nil, err
	}
	release = func() { _ = claim.Close() }
	cfg := n.cfg
	cfg.PodCIDRs = podCIDRs

	// The node, which several of the roles use, then the roles.
	common := n.shared(cfg, cert, marks, membership.NodeAccounts{
		Node:      cl,
		Anonymous: cert.Anonymous,
		Name:      cfg.NodeName,
		Accounts:  rightsOf(table()).AccountsBeside(),
		Log:       n.log().With(eventlog.Key, eventlog.Cluster),
	}.Connect)
	node, err := common.newNode(noderoles.Process{
		Reserved: nodehost.ServerHere(cert.REST.Host),
		PodGroup: network.GroupOf(n.dir.ID()),
		Serving:  cert.Serving,
		Identity: cert.Metrics,
	}, false, cfg.has)
	if err != nil {
		release()
		return nil, nil, err
	}
	if cert.Joined != nil {
		cert.Joined.LearnNetwork(ctx, cl) // the tunnels of pod routes have it
	}
	own := &process{shared: common, node: node}
	beside := append(n.besideRoles(cert, cl), forward)
	group, err = own.group(func(r *role) bool { return r.node }, nil, beside, "runtime", "kubelet")
	if err != nil {
		release()
		return nil, nil, err
	}
	return group, release, nil
}

// shared is what the roles of the node need.
func (n *nodeProcess) shared(
	cfg Config, cert membership.Certificates, marks *event.Recorder, connect Connect,
) shared {
	return shared{
		cfg:     cfg,
		dir:     n.dir,
		marks:   marks,
		log:     n.log(),
		connect: connect,
		signers: credentials.Signers{RootCA: cert.CA.Get},
	}
}

// besideRoles are the parts that start with the first roles: they keep the certificates, the list of API servers and
// the reserve of disk space.
func (n *nodeProcess) besideRoles(cert membership.Certificates, cl *client.Client) []run.Part {
	parts := serverParts(cert.Servers, cl)
	if n.reserveUsed {
		parts = append(parts, n.dir.Reserve().KeepNode(n.log()))
	}
	if cert.Joined != nil {
		parts = append(parts, run.Part{Name: "client authorities", Run: cert.Joined.Learn()})
	}
	for _, f := range cert.Keepers {
		parts = append(parts, run.Part{Name: "certificates", Run: f})
	}
	return parts
}

// claim is NodeClaim.Free for a node in a process of its own.
func (n *nodeProcess) claim(ctx context.Context, cl *client.Client) error {
	machine, err := node.Inspect(string(n.dir))
	if err != nil {
		return err
	}
	return membership.NodeClaim{
		Name:    n.cfg.NodeName,
		Machine: machine,
		Had:     n.hadNode,
		Look: func(ctx context.Context) (membership.NodeHolder, error) {
			return membership.RemoteHolder(ctx, cl, n.cfg.NodeName)
		},
		Log: n.log(),
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
	if cfg.Runtime.Registries, err = nodehost.Registries(role.RegistriesFile, role.Mirrors); err != nil {
		return err
	}
	cfg.Runtime.ImageHelper = role.ImageHelper
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
