// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/client"
	"keelson/controllers"
	"keelson/lib/log"
	"keelson/lib/mark"
	"keelson/lib/run"
	"keelson/pki"
	"keelson/scheduler"
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
	// Node is for the kubelet, and for the runtime alone.
	Node    NodeOptions
	Verbose bool
	Etcd    EtcdConfig
	// AcceptDataLoss is Config.AcceptDataLoss.
	AcceptDataLoss bool
	LogTo          io.Writer
	// API and Services are for the API server alone.
	API      APIOptions
	Services ServiceOptions
	// Election is how controllers and schedulers of which several run agree on one that works.
	Election ElectionOptions
	// Controllers is for the controllers alone.
	Controllers ControllerOptions
	// Ready is called once the part serves.
	Ready func()
}

func (r RoleConfig) log() *slog.Logger {
	level := slog.LevelInfo
	if r.Verbose {
		level = slog.LevelDebug
	}
	return slog.New(log.Fold(slog.NewTextHandler(r.LogTo, &slog.HandlerOptions{Level: level})))
}

// RunAPIServer runs the API server with its store.
func RunAPIServer(ctx context.Context, r RoleConfig) error {
	cfg := Default()
	cfg.DataDir, cfg.Port, cfg.NoNode, cfg.NoAgents, cfg.Verbose = r.DataDir, r.Port, true, true, r.Verbose
	cfg.Etcd, cfg.AcceptDataLoss = r.Etcd, r.AcceptDataLoss
	cfg.API, cfg.Services = r.API, r.Services
	c, err := New(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Run(ctx, r.Ready)
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
	return cl, mark.NewRecorder(f.Listen), part, nil
}

// RunControllerManager runs the controllers against a server reached by kubeconfig; each acts as its service account by impersonation.
func RunControllerManager(ctx context.Context, r RoleConfig) error {
	if err := errors.Join(r.Controllers.Validate(), r.Election.validate()); err != nil {
		return err
	}
	base, marks, forward, err := r.connect("controller-manager", "kube-controller-manager")
	if err != nil {
		return err
	}
	ca, err := rootCA(base.Config)
	if err != nil {
		return err
	}
	tokens, authority, err := r.signers()
	if err != nil {
		return err
	}
	cfg := controllers.Config{
		Clients: func(name string) *client.Client {
			if name == "" {
				return base
			}
			return impersonate(base, name)
		},
		Marks: marks, Log: r.log(), ClusterName: "keelson", RootCA: ca, TokenKey: tokens, Authority: authority,
		Options: r.Controllers,
	}
	if !r.Election.Off {
		work := elected(base, r.Election.election(controllersLease), false, r.log(), func(ctx context.Context) error { return runControllers(ctx, cfg, func() {}) })
		return run.Together(nil, run.Part{Name: "controllers", Run: work}, forward)(ctx, r.Ready)
	}
	work := func(ctx context.Context, ready func()) error { return runControllers(ctx, cfg, ready) }
	return run.Together(nil, run.Part{Name: "controllers", Run: work}, forward)(ctx, r.Ready)
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

// signers are the service-account key and the certificate authority of the data directory; nil where there are none, as beside a
// server on another machine.
func (r RoleConfig) signers() (crypto.Signer, *pki.Authority, error) {
	if !exists(r.DataDir.Sub("pki")) {
		return nil, nil, nil
	}
	ids, err := openIdentities(r.DataDir)
	if err != nil {
		return nil, nil, err
	}
	tokens, err := ids.tokenKeyIfAny()
	if err != nil {
		return nil, nil, err
	}
	ca, err := ids.authorityIfAny("ca")
	return tokens, ca, err
}

// impersonate acts as a service account of kube-system, which the role system:kube-controller-manager allows.
func impersonate(base *client.Client, name string) *client.Client {
	cfg := rest.CopyConfig(base.Config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:kube-system:" + name}
	cl, err := client.Remote(cfg, name+"/"+KubernetesVersion)
	if err != nil {
		return base // the same address and keys worked a moment ago
	}
	return cl
}

func rootCA(cfg *rest.Config) ([]byte, error) {
	c := rest.CopyConfig(cfg)
	if err := rest.LoadTLSFiles(c); err != nil {
		return nil, fmt.Errorf("read the server's authority: %w", err)
	}
	return c.CAData, nil
}

// RunScheduler runs the scheduler against a server reached by kubeconfig, which need not be Keelson's.
func RunScheduler(ctx context.Context, r RoleConfig) error {
	if err := r.Election.validate(); err != nil {
		return err
	}
	cl, marks, forward, err := r.connect("scheduler", "kube-scheduler")
	if err != nil {
		return err
	}
	cfg := scheduler.Config{Client: cl, Marks: marks, Log: r.log(), LeaderElect: !r.Election.Off, Election: r.Election.election(schedulerLease)}
	work := func(ctx context.Context, ready func()) error { return runScheduler(ctx, cfg, ready) }
	return run.Together(nil, run.Part{Name: "scheduler", Run: work}, forward)(ctx, r.Ready)
}

const schedulerLease = "kube-scheduler"

// runScheduler runs a new scheduler until ctx ends.
func runScheduler(ctx context.Context, cfg scheduler.Config, ready func()) error {
	s, err := scheduler.New(cfg)
	if err != nil {
		return err
	}
	return s.Run(ctx, ready)
}

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

// RunKubelet runs this machine's node against a server reached by kubeconfig.
func RunKubelet(ctx context.Context, r RoleConfig) error {
	cfg := Default()
	cfg.DataDir, cfg.RuntimeEndpoint, cfg.Node = r.DataDir, r.RuntimeEndpoint, r.Node
	if r.NodeName != "" {
		cfg.NodeName = r.NodeName
	}
	var err error
	if cfg.Mirrors, err = r.mirrors(); err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
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
	var podRange io.Closer
	undo := func(err error) error {
		if bare {
			err = errors.Join(err, dir.undoNode())
		}
		return err
	}
	if cfg.PodCIDR, podRange, err = choosePodCIDR(cfg.PodCIDR, dir); err != nil {
		return undo(err)
	}
	defer func() { _ = podRange.Close() }()
	g, err := r.kubeletParts(cfg, dir)
	if err != nil {
		return undo(err)
	}
	return g.Run(ctx, r.Ready)
}

// kubeletParts are what RunKubelet runs.
func (r RoleConfig) kubeletParts(cfg Config, dir DataDir) (*run.Group, error) {
	cert, err := r.kubeletCertificates(cfg, dir)
	if err != nil {
		return nil, err
	}
	cl, marks, forward, err := r.connectTo(cert.rest, "kubelet")
	if err != nil {
		return nil, err
	}
	var node nodeParts
	if err := node.addReal(cfg, dir, cl, cert.serving, nodePlace{own: serverHere(cert.rest.Host)}, marks, r.log()); err != nil {
		return nil, err
	}
	g := &run.Group{}
	if cert.run != nil {
		g.Add("certificates", cert.run)
	}
	before := append(node.before, forward)
	if cert.learn != nil {
		before = append(before, run.Part{Name: "client authorities", Run: cert.learn})
	}
	g.Add("runtime", run.Together(nil, before...))
	g.Add("kubelet", run.Together(nil, node.after...))
	return g, nil
}
