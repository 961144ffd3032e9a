// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/auth"
	"keelson/client"
	"keelson/controllers"
	"keelson/lib/deeds"
	"keelson/lib/log"
	"keelson/lib/mark"
	"keelson/lib/run"
	"keelson/network"
	"keelson/timeline"
)

// RoleConfig is one part of the cluster run as a process of its own.
type RoleConfig struct {
	DataDir DataDir
	// Kubeconfig is how an agent reaches the server; empty: the one that the API server wrote below the data directory.
	Kubeconfig string
	Port       int
	NodeName   string
	// Bootstrap is a kubeconfig with a bootstrap token: a kubelet then gets its certificates through the Certificates API, and renews them.
	Bootstrap string
	// ClientCA is a file of the authorities that vouch for who calls a kubelet; empty: the cluster's.
	ClientCA        string
	RuntimeEndpoint string
	Mirrors         []string
	// Listen is where the runtime serves CRI: unix:///PATH.
	Listen  string
	Verbose bool
	// Cleanup removes what the role left in the kernel, in place of running it.
	Cleanup bool
	Etcd    EtcdConfig
	// AcceptDataLoss is Config.AcceptDataLoss.
	AcceptDataLoss bool
	// LogTo takes the log; nil discards it.
	LogTo io.Writer
	Options
	// Election is how controllers and schedulers of which several run agree on one that works.
	Election ElectionOptions
	// Serving is what controllers and schedulers serve of themselves.
	Serving AgentServing
	// Signing are the keys that controllers sign with.
	Signing Signing
	// Ready is called once the part serves.
	Ready func()
}

func (r RoleConfig) log() *slog.Logger {
	level := slog.LevelInfo
	if r.Verbose {
		level = slog.LevelDebug
	}
	to := r.LogTo
	if to == nil {
		to = io.Discard
	}
	return slog.New(log.Fold(slog.NewTextHandler(to, &slog.HandlerOptions{Level: level})))
}

// config is a cluster's of which the role is a part.
func (r RoleConfig) config() (Config, error) {
	cfg := Default()
	cfg.DataDir, cfg.Verbose, cfg.RuntimeEndpoint, cfg.Options = r.DataDir, r.Verbose, r.RuntimeEndpoint, r.Options
	if r.NodeName != "" {
		cfg.NodeName = r.NodeName
	}
	var err error
	if cfg.Mirrors, err = r.mirrors(); err != nil {
		return cfg, err
	}
	return cfg, cfg.Validate()
}

// runAPIServer runs the API server with its store.
func runAPIServer(ctx context.Context, r RoleConfig) error {
	cfg := Default()
	cfg.DataDir, cfg.Port, cfg.NoNode, cfg.NoAgents, cfg.Verbose = r.DataDir, r.Port, true, true, r.Verbose
	cfg.Etcd, cfg.AcceptDataLoss = r.Etcd, r.AcceptDataLoss
	cfg.Options, cfg.PodsBeside = r.Options, os.Getuid() == 0
	if opens := cfg.Listen.Opens(); opens != "" {
		r.log().Warn("the API is open to others", "how", opens)
	}
	c, err := New(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Run(ctx, r.Ready)
}

// alone runs a role that needs nothing but a server, reached by kubeconfig, which need not be Keelson's.
func (row *role) alone(ctx context.Context, r RoleConfig) error {
	if row.prepare != nil {
		if err := row.prepare(&r); err != nil {
			return err
		}
	}
	cfg, err := r.config()
	if err = errors.Join(err, r.Election.validate(), r.Signing.validate()); err != nil {
		return err
	}
	cfg.DataDir = cfg.DataDir.named()
	if r.Cleanup {
		return row.purge(ctx, cfg.DataDir)
	}
	base, marks, forward, err := r.connect(row.file, row.agent)
	if err != nil {
		return err
	}
	of := agentState{dog: r.Election.watch()}
	if row.metrics != nil {
		of.metrics = row.metrics()
	}
	if row.config != nil {
		of.configName, of.config = row.config(r)
	}
	serve, err := r.Serving.serve(base, of, r.log())
	if err != nil {
		return err
	}
	s := &site{
		cfg: cfg, dir: cfg.DataDir, marks: marks, log: r.log(), election: r.Election,
		connect: func(u *auth.User, agent string) *client.Client {
			if u.Name == row.user(cfg).Name {
				return base
			}
			return asAccount(base, u.Name, agent)
		},
	}
	if s.signers, err = r.signers(base.Config); err != nil {
		return err
	}
	work, err := row.make(s)
	if err != nil {
		return err
	}
	return run.Together(nil, append(serve, run.Part{Name: row.name, Run: work}, forward)...)(ctx, r.Ready)
}

// connect makes an agent's client, and a recorder whose marks travel to the server.
func (r RoleConfig) connect(file, agent string) (*client.Client, *mark.Recorder, run.Part, error) {
	rest, err := clientcmd.BuildConfigFromFlags("", r.kubeconfig(file))
	if err != nil {
		return nil, nil, run.Part{}, fmt.Errorf("read kubeconfig: %w", err)
	}
	return r.connectTo(rest, agent)
}

func (r RoleConfig) kubeconfig(file string) string {
	if r.Kubeconfig != "" {
		return r.Kubeconfig
	}
	return r.DataDir.Sub("pki/" + file + ".kubeconfig")
}

func (r RoleConfig) connectTo(to *rest.Config, agent string) (*client.Client, *mark.Recorder, run.Part, error) {
	cl, err := client.Remote(to, agent+"/"+KubernetesVersion)
	if err != nil {
		return nil, nil, run.Part{}, err
	}
	f := timeline.NewForwarder(cl, r.log())
	part := run.Part{Name: "marks", Run: f.Run}
	return cl, mark.NewRecorder(f.Listen, deeds.New(r.log()).Listen), part, nil
}

const controllersLease = "kube-controller-manager"

// runControllers runs new controllers until ctx ends.
func runControllers(ctx context.Context, cfg controllers.Config, ready func()) error {
	m, err := controllers.New(cfg)
	if err != nil {
		return err
	}
	return m.Run(ctx, ready)
}

const (
	schedulerLease  = "kube-scheduler"
	schedulerChoice = "scheduler"
)

// mirrors reads the mirrors' flags.
func (r RoleConfig) mirrors() (map[string]string, error) {
	out := map[string]string{}
	for _, m := range r.Mirrors {
		host, url, ok := strings.Cut(m, "=")
		if !ok {
			return nil, fmt.Errorf("image mirror %q is not of the form HOST=URL", m)
		}
		out[host] = url
	}
	return out, nil
}

// runKubelet runs this machine's node against a server reached by kubeconfig.
func runKubelet(ctx context.Context, r RoleConfig) error {
	cfg, err := r.config()
	if err != nil {
		return err
	}
	if r.Bootstrap == "" && r.Kubeconfig == "" && exists(cfg.DataDir.Sub(joinFile)) { // it has joined before
		r.Bootstrap = cfg.DataDir.Sub(joinFile)
	}
	cfg.serverAt = r.serverAt()
	bare := cfg.DataDir.bare()
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
			err = errors.Join(err, dir.undoNode())
		}
		return err
	}
	g, release, err := r.kubeletParts(ctx, cfg, dir)
	if err != nil {
		return undo(err)
	}
	defer release()
	return g.Run(ctx, r.Ready)
}

// serverAt is the address of an API server on another machine; invalid: it is on this one, or known by a name.
func (r RoleConfig) serverAt() netip.Addr {
	for _, file := range []string{r.kubeconfig("kubelet"), r.Bootstrap} {
		to, err := loadIfThere(file)
		if to == nil || err != nil {
			continue // who reads it for its content says what is wrong
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

// kubeletParts are what runKubelet runs: the roles of a node. A node that has yet to get its certificate learns its range of pod
// addresses, and is built, when it has it.
func (r RoleConfig) kubeletParts(ctx context.Context, cfg Config, dir DataDir) (g *run.Group, release func(), err error) {
	cert, err := r.kubeletCertificates(cfg, dir)
	if err != nil {
		return nil, nil, err
	}
	if cert.run == nil {
		return r.nodeParts(ctx, cfg, dir, cert, ownRangeWait)
	}
	g = &run.Group{}
	g.Add("certificates", cert.run)
	g.Add("node", func(ctx context.Context, ready func()) error {
		node, release, err := r.nodeParts(ctx, cfg, dir, cert, joinRangeWait)
		if err != nil {
			return err
		}
		defer release()
		return node.Run(ctx, ready)
	})
	return g, func() {}, nil
}

// nodeSite is what the roles of a node with these certificates share, but for how they reach the server.
func (r RoleConfig) nodeSite(cfg Config, dir DataDir, cert kubeletCertificates) *site {
	return &site{
		cfg: cfg, dir: dir, log: r.log(), signers: signers{rootCA: cert.ca},
		node: nodeSite{nodePlace: nodePlace{own: serverHere(cert.rest.Host)}, serving: cert.serving, podGroup: network.GroupOf(dir.ID())},
	}
}

// nodeParts are the roles of a node that has its certificates. release gives its range of pod addresses back.
func (r RoleConfig) nodeParts(ctx context.Context, cfg Config, dir DataDir, cert kubeletCertificates, wait time.Duration) (*run.Group, func(), error) {
	cl, marks, forward, err := r.connectTo(cert.rest, "kubelet")
	if err != nil {
		return nil, nil, err
	}
	var podRange io.Closer
	if cfg.PodCIDRs, podRange, err = askPodCIDRs(ctx, cfg, dir, cl, wait); err != nil {
		return nil, nil, err
	}
	release := func() { _ = podRange.Close() }
	s := r.nodeSite(cfg, dir, cert)
	s.marks = marks
	s.connect = nodeAccounts{node: cl, anonymous: cert.anonymous, name: cfg.NodeName, log: r.log().With(deeds.Key, deeds.Cluster)}.connect
	beside := []run.Part{forward}
	if cert.learn != nil {
		beside = append(beside, run.Part{Name: "client authorities", Run: cert.learn})
	}
	g := &run.Group{}
	if err := s.build(g, nil, func(r *role) bool { return r.node }, beside, "runtime", "kubelet"); err != nil {
		release()
		return nil, nil, err
	}
	return g, release, nil
}
