// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"keelson/cluster"
)

// roleCommand is one part of the cluster as a process of its own: logs go to standard error, it ends on SIGTERM.
func roleCommand(std Stdio, name, short string, flags func(*cobra.Command, *cluster.RoleConfig), run func(context.Context, cluster.RoleConfig) error) *cobra.Command {
	var cfg cluster.RoleConfig
	c := &cobra.Command{Use: name, Short: short, Args: cobra.NoArgs}
	c.Flags().StringVar((*string)(&cfg.DataDir), "data-dir", string(defaultDataDir()), "directory that holds the cluster")
	c.Flags().BoolVarP(&cfg.Verbose, "verbose", "v", false, "log more")
	flags(c, &cfg)
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg.LogTo = std.Err
		cfg.Ready = func() { _, _ = fmt.Fprintf(std.Out, "%s ready\n", name) }
		return run(c.Context(), cfg)
	}
	return c
}

func kubeconfigFlag(file string) func(*cobra.Command, *cluster.RoleConfig) {
	return func(c *cobra.Command, cfg *cluster.RoleConfig) {
		c.Flags().StringVar(&cfg.Kubeconfig, "kubeconfig", "", "how to reach the API server (default: pki/"+file+".kubeconfig in the data directory)")
	}
}

func apiserverCommand(std Stdio) *cobra.Command {
	return roleCommand(std, "apiserver", "The API server with its store, alone", func(c *cobra.Command, cfg *cluster.RoleConfig) {
		c.Flags().IntVar(&cfg.Port, "port", 6443, "port of the API on 127.0.0.1; 0 picks a free one")
		etcdFlags(c, &cfg.Etcd)
		acceptDataLossFlag(c, &cfg.AcceptDataLoss)
		apiFlags(c.Flags(), &cfg.API)
		serviceFlags(c.Flags(), &cfg.Services)
	}, cluster.RunAPIServer)
}

func controllerManagerCommand(std Stdio) *cobra.Command {
	return roleCommand(std, "controller-manager", "The controllers, alone", func(c *cobra.Command, cfg *cluster.RoleConfig) {
		leaderFlags("controller-manager")(c, cfg)
		controllerFlags(c.Flags(), &cfg.Controllers)
	}, cluster.RunControllerManager)
}

func schedulerCommand(std Stdio) *cobra.Command {
	return roleCommand(std, "scheduler", "The scheduler, alone", leaderFlags("scheduler"), cluster.RunScheduler)
}

// leaderFlags are those of a role of which several copies may run.
func leaderFlags(file string) func(*cobra.Command, *cluster.RoleConfig) {
	return func(c *cobra.Command, cfg *cluster.RoleConfig) {
		kubeconfigFlag(file)(c, cfg)
		fl, e := c.Flags(), &cfg.Election
		fl.Var((*negated)(&e.Off), "leader-elect", "work only while holding a lease, so that of several copies one works")
		fl.Lookup("leader-elect").NoOptDefVal = "true"
		fl.DurationVar(&e.LeaseDuration, "leader-elect-lease-duration", 15*time.Second, "how long a leader that went silent is believed to live")
		fl.DurationVar(&e.RenewDeadline, "leader-elect-renew-deadline", 10*time.Second, "how long a leader tries to renew its lease before it gives up")
		fl.DurationVar(&e.RetryPeriod, "leader-elect-retry-period", 2*time.Second, "how often copies try to get or renew the lease")
		fl.StringVar(&e.Lock, "leader-elect-resource-lock", "leases", "what the copies agree by; only leases")
		fl.StringVar(&e.Name, "leader-elect-resource-name", "kube-"+file, "name of the lease")
		fl.StringVar(&e.Namespace, "leader-elect-resource-namespace", "kube-system", "its namespace")
	}
}

func kubeletCommand(std Stdio) *cobra.Command {
	return roleCommand(std, "kubelet", "This machine's node, alone: kubelet, container runtime and pod network", func(c *cobra.Command, cfg *cluster.RoleConfig) {
		kubeconfigFlag("kubelet")(c, cfg)
		c.Flags().StringVar(&cfg.Bootstrap, "bootstrap-kubeconfig", "", "`FILE` with a bootstrap token: request the node's certificates from the API server, and renew them")
		c.Flags().StringVar(&cfg.ClientCA, "client-ca-file", "", "`FILE` of the authorities that sign the API server's client certificate (default: as the API server says)")
		c.Flags().StringVar(&cfg.NodeName, "node-name", "", "name of this node (default: the host's name)")
		c.Flags().StringVar(&cfg.RuntimeEndpoint, "container-runtime-endpoint", "", "use containerd or CRI-O at `unix://PATH`")
		c.Flags().StringArrayVar(&cfg.Mirrors, "image-mirror", nil, "pull images of a registry host from another place: `HOST=URL`")
		nodeFlags(c.Flags(), &cfg.Node)
	}, cluster.RunKubelet)
}

func runtimeCommand(std Stdio) *cobra.Command {
	socket := ""
	c := roleCommand(std, "runtime", "The built-in container runtime, alone: CRI v1 on a unix socket", func(c *cobra.Command, cfg *cluster.RoleConfig) {
		c.Flags().StringVar(&socket, "listen", "", "serve CRI at `unix://PATH`, for root alone")
		c.Flags().StringArrayVar(&cfg.Mirrors, "image-mirror", nil, "pull images of a registry host from another place: `HOST=URL`")
	}, func(ctx context.Context, cfg cluster.RoleConfig) error {
		path, ok := strings.CutPrefix(socket, "unix://")
		if !ok || !filepath.IsAbs(path) {
			return fmt.Errorf("--listen %q is not of the form unix:///PATH", socket)
		}
		return cluster.RunRuntime(ctx, cfg, path)
	})
	_ = c.MarkFlagRequired("listen") // it is there
	return c
}
