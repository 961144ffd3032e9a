// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/auth"
	"keelson/client"
	"keelson/client/servers"
	"keelson/cluster/agents"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/cluster/membership"
	"keelson/cluster/nodehost"
	"keelson/cluster/noderoles"
	"keelson/cluster/storage"
	"keelson/cluster/version"
	"keelson/controllers"
	"keelson/event"
	"keelson/event/eventlog"
	"keelson/lib/log"
	"keelson/lib/run"
	"keelson/timeline/ledger"
)

// RoleConfig configures one role in a process of its own.
type RoleConfig struct {
	DataDir datadir.Dir
	// Kubeconfig is the agent's kubeconfig; empty: the one that the API server wrote below the data directory.
	Kubeconfig string
	Port       int
	NodeName   string
	// Bootstrap is a kubeconfig with a bootstrap token: the kubelet then requests and renews its certificates by the
	// Certificates API.
	Bootstrap string
	// ClientCA is the client CA file of the kubelet; empty: the cluster's CA.
	ClientCA        string
	RuntimeEndpoint string
	Mirrors         []string
	RegistriesFile  string
	// ImageHelper is ContainerRuntime.ImageHelper.
	ImageHelper []string
	// Listen is the runtime's CRI socket: unix:///PATH.
	Listen  string
	Verbose bool
	// Cleanup removes the role's kernel objects and does not run it.
	Cleanup bool
	Etcd    storage.Config
	// AcceptDataLoss is Config.AcceptDataLoss.
	AcceptDataLoss bool
	// LogOutput receives the log; nil discards it.
	LogOutput io.Writer
	Options
	// Election configures leader election of controllers or scheduler.
	Election agents.Election
	// Serving configures the health and metrics port of controllers or scheduler.
	Serving agents.Serving
	// Signing are the keys with which controllers sign.
	Signing credentials.Signing
	// Ready is called once the role serves.
	Ready func()
}

func (r RoleConfig) log() *slog.Logger {
	level := slog.LevelInfo
	if r.Verbose {
		level = slog.LevelDebug
	}
	to := r.LogOutput
	if to == nil {
		to = io.Discard
	}
	return slog.New(log.Fold(slog.NewTextHandler(to, &slog.HandlerOptions{Level: level})))
}

// config returns a cluster configuration with the role's settings.
func (r RoleConfig) config() (Config, error) {
	cfg := Default()
	cfg.DataDir = r.DataDir
	cfg.Verbose = r.Verbose
	cfg.Runtime.Endpoint = r.RuntimeEndpoint
	cfg.Options = r.Options
	if r.NodeName != "" {
		cfg.NodeName = r.NodeName
	}
	var err error
	if cfg.Runtime.Registries, err = nodehost.Registries(r.RegistriesFile, r.Mirrors); err != nil {
		return cfg, err
	}
	cfg.Runtime.ImageHelper = r.ImageHelper
	return cfg, cfg.Validate()
}

// runAPIServer runs the API server with its store.
func runAPIServer(ctx context.Context, role RoleConfig) error {
	cfg := Default()
	cfg.DataDir = role.DataDir
	cfg.Port = role.Port
	cfg.NoNode = true
	cfg.NoAgents = true
	cfg.Verbose = role.Verbose
	cfg.Etcd = role.Etcd
	cfg.AcceptDataLoss = role.AcceptDataLoss
	cfg.Options = role.Options
	cfg.PodsBeside = os.Getuid() == 0
	if opens := cfg.Listen.Opens(); opens != "" {
		role.log().Warn("the API is open to others", "how", opens)
	}
	c, err := New(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Run(ctx, role.Ready)
}

// alone runs a role that needs only an API server, reached by kubeconfig; it need not be Keelson's.
func (row *role) alone(ctx context.Context, r RoleConfig) error {
	if row.prepare != nil {
		if err := row.prepare(&r); err != nil {
			return err
		}
	}
	cfg, err := r.config()
	if err = errors.Join(err, r.Election.Validate(), r.Signing.Validate()); err != nil {
		return err
	}
	cfg.DataDir = cfg.DataDir.Named()
	if r.Cleanup {
		return row.purge(ctx, cfg.DataDir)
	}

	// The way to the API servers, and a client that follows them.
	kubeconfig, err := clientcmd.BuildConfigFromFlags("", r.kubeconfig(row.file))
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	all := r.servers(kubeconfig.Host)
	nodehost.ClearWay(ctx, r.log(), append(all.URLs(), kubeconfig.Host)...)
	kept, err := credentials.FollowKubeconfig(r.kubeconfig(row.file), all,
		r.log().With(eventlog.Key, eventlog.Certificates))
	if err != nil {
		return err
	}
	base, marks, forward, err := r.connectTo(kept.REST, row.agent)
	if err != nil {
		return err
	}
	anonymous := servers.Anonymous(kept.REST)
	metrics := newAgentMetrics()
	serve, err := r.Serving.Serve(base, row.state(r, metrics), r.log())
	if err != nil {
		return err
	}

	// What the role is made of, as in a process with the API server.
	signers, err := r.Signing.Signers(r.DataDir, kept.CA.Get)
	if err != nil {
		return err
	}
	common := shared{
		cfg:     cfg,
		dir:     cfg.DataDir,
		marks:   marks,
		log:     r.log(),
		signers: signers,
		metrics: metrics,
		connect: func(u *auth.User, agent string) *client.Client {
			if u.Name == row.user(cfg).Name {
				return base
			}
			return membership.AsAccount(base, anonymous, u.Name, agent)
		},
	}
	var node *noderoles.Node
	if row.node {
		only := func(role string) bool { return role == row.name }
		if node, err = common.newNode(noderoles.Process{}, false, only); err != nil {
			return err
		}
	}
	work, err := row.make(&process{shared: common, election: r.Election, node: node})
	if err != nil {
		return err
	}
	parts := append(append(serve, run.Part{Name: row.name, Run: work}, forward), serverParts(all, base)...)
	if kept.Run != nil {
		parts = append(parts, run.Part{Name: "certificates", Run: kept.Run})
	}
	return run.Together(nil, parts...)(ctx, r.Ready)
}

// state is what the role's own port shows of it.
func (row *role) state(r RoleConfig, metrics roleMetrics) agents.State {
	state := agents.State{
		Watchdog:  r.Election.Watch(),
		Component: row.agent,
		Flags:     r.API.Flags,
		Gates:     r.Gates,
	}
	if row.metrics != nil {
		state.Metrics = row.metrics(metrics)
	}
	if row.config != nil {
		state.ConfigName, state.Config = row.config(r)
	}
	return state
}

// servers are the API servers that an agent knows: the one at the URL of its kubeconfig, and those in the file.
func (r RoleConfig) servers(url string) *servers.Servers {
	return servers.New(servers.Config{
		Given: url,
		File:  r.DataDir.Sub(datadir.ServersFile),
		Log:   r.log().With(eventlog.Key, eventlog.Cluster),
	})
}

// serverParts keep the list of servers and the choice among them up to date.
func serverParts(all *servers.Servers, cl *client.Client) []run.Part {
	return []run.Part{
		{Name: "choice of API server", Run: all.Run},
		{Name: "API servers", Run: func(ctx context.Context, ready func()) error {
			ready()
			return all.Follow(ctx, cl.Config)
		}},
	}
}

func (r RoleConfig) kubeconfig(file string) string {
	if r.Kubeconfig != "" {
		return r.Kubeconfig
	}
	return r.DataDir.Sub("pki/" + file + ".kubeconfig")
}

// connectTo creates an agent's client, and a recorder that sends marks to the server.
func (r RoleConfig) connectTo(to *rest.Config, agent string) (*client.Client, *event.Recorder, run.Part, error) {
	cl, err := client.Remote(to, agent+"/"+version.Kubernetes)
	if err != nil {
		return nil, nil, run.Part{}, err
	}
	f := ledger.NewForwarder(cl, r.log())
	part := run.Part{Name: "marks", Run: f.Run}
	return cl, event.NewRecorder(f.Listen, eventlog.New(r.log()).Listen), part, nil
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

const schedulerChoice = "scheduler"
