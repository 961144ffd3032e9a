// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"keelson/apiserver/configreload"
	"keelson/apiserver/upkeep"
	"keelson/auth"
	"keelson/client"
	"keelson/cluster/agents"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/cluster/listen"
	"keelson/cluster/membership"
	"keelson/cluster/nodehost"
	"keelson/cluster/noderoles"
	"keelson/cluster/sharedsettings"
	"keelson/cluster/storage"
	"keelson/cluster/version"
	"keelson/controllers/certificates"
	"keelson/event"
	"keelson/event/eventlog"
	"keelson/kubelet/identity"
	"keelson/kubelet/node"
	"keelson/lib/connlimit"
	"keelson/lib/log"
	"keelson/lib/memory"
	"keelson/lib/run"
	"keelson/network"
	"keelson/store"
)

// Cluster is a configured cluster: New acquires its resources, Run runs it.
type Cluster struct {
	cfg         Config
	dir         datadir.Dir
	held        *held
	log         *slog.Logger
	listener    net.Listener
	shares      connlimit.Shares
	etcd        net.Listener // nil unless Config.EtcdListen
	keys        *credentials.Keys
	found       found
	reserveUsed bool // the disk is full; the reserve of disk space is in use
	// rejected are the configuration files that are not in use because they are wrong.
	rejected configreload.Rejected
	// listeners receive marks in addition to the timeline.
	listeners []event.Listener
}

// found is what the data directory had when the start began.
type found struct {
	fresh   bool // no cluster has run in it yet
	hadNode bool // it has had its node before
	// entries of a fresh directory: keys of another server on the same etcd, static pods
	entries []string
}

// New locks the data directory, listens on the port and opens the keys. It starts nothing. An error is one sentence
// that a user can act on; New then leaves nothing behind.
func New(cfg Config) (*Cluster, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if !cfg.Rootless && !cfg.NoNode && cfg.Runtime.Endpoint == "" {
		if err := nodehost.Missing(); err != nil {
			return nil, err
		}
	}
	dir, err := cfg.DataDir.Prepare()
	if err != nil {
		return nil, err
	}
	cfg.Node.Curves = cfg.API.Serving.Curves // one flag for both servers
	found := found{
		fresh:   dir.Fresh(),
		hadNode: cfg.realNode() && datadir.Exists(dir.Sub(datadir.NodeNameFile)),
		entries: dir.Entries(),
	}
	held := &held{}
	if err := held.locks(dir, cfg); err != nil {
		held.release()
		return nil, err
	}
	cluster, err := open(cfg, dir, held, found)
	if err != nil {
		if found.fresh {
			err = errors.Join(err, dir.Erase(found.entries...))
		}
		held.release()
		return nil, err
	}
	return cluster, nil
}

// undo removes what a failed start has created. It does nothing in a directory in which a cluster has run before.
func (c *Cluster) undo(cause error) error {
	if !c.found.fresh {
		return cause
	}
	var left error
	if !c.cfg.Rootless && !c.cfg.NoNode {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		// no progress output; each step has a time limit
		left = nodehost.Remove(ctx, c.dir, purgeRoles, func(string) {})
		if errors.Is(left, os.ErrPermission) {
			left = nil // what this process may not remove, it could not create either
		}
	}
	if left == nil {
		left = c.dir.Erase(c.found.entries...)
	}
	if left != nil {
		return fmt.Errorf("%w (and not everything could be undone: %w)", cause, left)
	}
	return cause
}

// Close releases what New acquired. It may be called twice.
func (c *Cluster) Close() { c.held.release() }

// URL is the API server's URL.
func (c *Cluster) URL() string { return listen.LocalURL(c.listener.Addr()) }

// EtcdURL is the URL of the etcd API; empty without Config.EtcdListen.
func (c *Cluster) EtcdURL() string {
	if c.etcd == nil {
		return ""
	}
	return "https://" + c.etcd.Addr().String()
}

// DataDir is the resolved data directory.
func (c *Cluster) DataDir() datadir.Dir { return c.dir }

// Run starts all parts, calls ready when the node is Ready, and stops the parts in reverse order when ctx is done.
// Containers keep running. A failed first start leaves nothing behind.
func (c *Cluster) Run(ctx context.Context, ready func()) error {
	begun := false
	err := c.run(ctx, func() {
		begun = true
		ready()
	})
	if err != nil && !begun && ctx.Err() == nil {
		return c.undo(err)
	}
	return err
}

func (c *Cluster) run(ctx context.Context, ready func()) error {
	// the Kubernetes libraries log at a lower level: users do not need these lines
	klog.SetSlogLogger(slog.New(log.Demote(c.log.Handler())).With(eventlog.Key, eventlog.Libraries))
	defer memory.Pace(storage.MemoryLimit())()

	// The store says whether it is this cluster's: by the fingerprints of its keys, and by what its servers share.
	fingerprints, err := c.keys.ServerFingerprints(&c.cfg.API.Tokens)
	if err != nil {
		return err
	}
	st, err := storage.Open(ctx, c.cfg.Etcd, c.dir, func(ctx context.Context, st store.Store, known bool) error {
		return credentials.KeepFingerprints(ctx, st, known, fingerprints, c.log)
	}, c.log, c.cfg.AcceptDataLoss)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	defer func() { _ = st.Close() }()
	if err := c.sharedSettings(st).Keep(ctx, st); err != nil {
		return err
	}

	// The API server is made, then the roles around it. Nothing runs before all of them are there.
	made, err := c.assemble(st)
	if err != nil {
		return err
	}
	if err := c.claimNode(ctx, made.store); err != nil {
		return err
	}
	var beside []run.Part
	if spare, ok := st.(datadir.Sparing); ok && c.reserveUsed {
		beside = append(beside, c.dir.Reserve().KeepServer(spare, c.log))
	}
	own, err := c.process(made, st)
	if err != nil {
		return err
	}
	group, err := own.group(func(*role) bool { return true }, c.cfg.Progress, beside, "control plane", "agents")
	if err != nil {
		return err
	}

	// From here on, the group starts the roles in waves and stops them in reverse.
	begun := time.Now()
	logger := c.log.With(eventlog.Key, eventlog.Cluster)
	logger.Info("started", "version", version.Kubernetes, "revision", version.Revision(), "dir", c.dir, "api", c.URL(),
		"pid", os.Getpid())
	defer logger.Info("stopped")
	return group.Run(ctx, func() {
		logger.Info("ready", "took", time.Since(begun).Round(time.Millisecond))
		ready()
	})
}

// sharedSettings are the settings that this server should have like others on st.
func (c *Cluster) sharedSettings(st store.Store) sharedsettings.Server {
	server := sharedsettings.Server{
		Services: c.cfg.keptServices,
		API:      &c.cfg.API,
		Gates:    c.cfg.Gates,
		Log:      c.log,
	}
	if !c.found.fresh {
		server.RangeFile = c.dir.Sub(datadir.ServiceRangeFile)
	}
	if c.cfg.realNode() {
		server.Domain = c.cfg.Node.Domain()
	}
	if len(c.cfg.Etcd.Servers) > 0 { // the embedded store has one server
		server.Running = func(ctx context.Context) (bool, error) { return upkeep.ServersRenew(ctx, st) }
	}
	return server
}

// process is this process, around its API server.
func (c *Cluster) process(made assembled, st store.Store) (*process, error) {
	common := shared{
		cfg:     c.cfg,
		dir:     c.dir,
		marks:   made.marks,
		log:     c.log,
		connect: func(u *auth.User, agent string) *client.Client { return inProcess(made.api, u, agent) },
		signers: c.signers(),
		metrics: made.metrics,
	}
	var node *noderoles.Node
	if c.cfg.realNode() {
		serving := c.keys.KubeletServing()
		var err error
		if node, err = common.newNode(noderoles.Process{
			Reserved:      c.ports(),
			LeaseInterval: c.cfg.leaseInterval(),
			PodGroup:      network.GroupOf(c.dir.ID()),
			Serving:       serving,
			Identity:      identity.NewMetrics(serving.TLS),
		}, true, c.cfg.has); err != nil {
			return nil, err
		}
	}
	return &process{
		shared: common,
		// Other instances may run on the same etcd.
		election:  agents.Election{Off: len(c.cfg.Etcd.Servers) == 0},
		waitAgain: true,
		rejected:  &c.rejected,
		server:    &ownServer{assembled: made, c: c, raw: st},
		node:      node,
	}, nil
}

// signers are the keys with which controllers of this process sign.
func (c *Cluster) signers() credentials.Signers {
	return credentials.Signers{
		Tokens:      c.keys.Tokens.Signer,
		Authorities: certificates.All(c.keys.CA).Authorities,
		RootCA:      c.keys.CA.Bundle,
	}
}

// ports are the ports on which this process listens, by their names: pods must not use them.
func (c *Cluster) ports() map[string]net.Addr {
	out := map[string]net.Addr{}
	if c.listener != nil {
		out["the API server"] = c.listener.Addr()
	}
	if c.etcd != nil {
		out["the etcd API"] = c.etcd.Addr()
	}
	return out
}

// claimNode is NodeClaim.Free for a server's node. A server with the embedded store has it for itself while it starts:
// no kubelet can renew a lease.
func (c *Cluster) claimNode(ctx context.Context, st store.Store) error {
	if !c.cfg.realNode() || len(c.cfg.Etcd.Servers) == 0 {
		return nil
	}
	machine, err := node.Inspect(string(c.dir))
	if err != nil {
		return err
	}
	return membership.NodeClaim{
		Name:    c.cfg.NodeName,
		Machine: machine,
		Had:     c.found.hadNode,
		Look: func(ctx context.Context) (membership.NodeHolder, error) {
			return membership.StoredHolder(ctx, st, c.cfg.NodeName)
		},
		Log: c.log,
	}.Free(ctx)
}

// ServicesKept is a notice that Services keep other CIDRs than the flag asks for; empty: they do not.
func (c *Cluster) ServicesKept() string {
	asked, _ := c.cfg.Services.Ranges() // checked by Validate
	if slices.Equal(asked, c.cfg.keptServices) {
		return ""
	}
	return fmt.Sprintf("Services keep %s of the first start, in place of %s: to move them, add a ServiceCIDR with "+
		"the new range",
		strings.Join(nodehost.PrefixStrings(c.cfg.keptServices), ","), strings.Join(nodehost.PrefixStrings(asked), ","))
}

// DiskFull warns that this start uses the reserve; empty: it does not.
func (c *Cluster) DiskFull() string {
	if !c.reserveUsed {
		return ""
	}
	return fmt.Sprintf("the disk of %s is full, and new objects are refused: delete files or objects", c.dir)
}

// SharedServices is a warning that another cluster on this machine uses the same service CIDRs; empty: none does.
func (c *Cluster) SharedServices() string {
	if c.cfg.Rootless || c.cfg.NoNode {
		return ""
	}
	return nodehost.SharedServices(c.dir, c.cfg.keptServices)
}
