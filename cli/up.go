// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"keelson/cluster"
	"keelson/cluster/datadir"
	"keelson/cluster/fakenode"
	"keelson/cluster/flags"
	"keelson/cluster/nodehost"
	"keelson/cluster/storage"
	"keelson/lib/systemd"
	"keelson/pki"
)

// upFlags are the flags of `keelson up`.
type upFlags struct {
	dataDir, runtimeEndpoint, nodeName string
	registries                         string
	port, notifyFD                     int
	fakeNodes                          string
	fakeHeartbeat                      time.Duration
	detach, writeKubeconfig, verbose   bool
	acceptDataLoss                     bool
	mirrors                            []string
	etcd                               storage.Config
	etcdListen                         string
	certificateLife                    time.Duration
	options                            cluster.Options
	roleArgs                           []string // the flags of options as given
}

func upCommand(std Stdio) *cobra.Command {
	cmd, _ := upCommandAndFlags(std)
	return cmd
}

func upCommandAndFlags(std Stdio) (*cobra.Command, *upFlags) {
	f := new(upFlags)
	var config string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the cluster, or continue it where it was",
		Long: "Start a cluster on this machine, or continue the one in --data-dir with the same objects and the same " +
			"running containers.\n" +
			"As root it is a real node; otherwise one fake node, whose pods run in name only.\n" +
			"--fake-nodes is given at each start: fake nodes of an earlier one that are not asked for again are " +
			"removed with their pods.",
		Args: none,
		Example: "  keelson up --detach                               # a cluster on this machine, in the " +
			"background\n" +
			"  keelson up --data-dir /tmp/a --port 7443          # another one next to it\n" +
			"  keelson up --fake-nodes node01,node02,100         # with 102 nodes more, whose pods run in name only\n" +
			"  keelson up --config cluster.yaml                  # flags from a file: docs/config.md",
		RunE: func(command *cobra.Command, _ []string) error {
			if config != "" {
				if err := readConfig(command, config); err != nil {
					return err
				}
			}
			if err := absoluteFiles(command.Flags()); err != nil { // the cluster runs in another working directory
				return err
			}
			f.roleArgs = roleArgs(command.Flags())
			if f.detach {
				return upDetached(command.Context(), *f, std)
			}
			return up(command.Context(), *f, std)
		},
	}
	fl := cmd.Flags()
	dataDirVar(fl, &f.dataDir)
	configFlagOf(fl, &config)
	fl.IntVar(&f.port, "port", 6443, "port of the API; 0 picks a free one")
	fl.BoolVar(&f.detach, "detach", false, "return when the node is Ready and leave the cluster running")
	fl.StringVar(&f.fakeNodes, "fake-nodes", "0", "add `N` nodes whose pods become Running by themselves, or nodes "+
		"of these names: node01,node02; or both: node01,100")
	fl.DurationVar(&f.fakeHeartbeat, "fake-nodes-heartbeat", 30*time.Minute,
		"how often each of them renews its lease; a kubelet does every 10 s")
	fl.StringArrayVar(&f.mirrors, "image-mirror", nil,
		"pull images of a registry host from another place: `HOST=URL`; may be repeated")
	fl.StringVar(&f.registries, "image-registries", "",
		"`FILE` with mirrors, certificates and logins of registries: docs/registries.md")
	fl.StringVar(&f.runtimeEndpoint, "container-runtime-endpoint", "",
		"use containerd or CRI-O at `unix://PATH` in place of the built-in runtime")
	fl.StringVar(&f.nodeName, "node-name", "", "name of this node (default: the host's name)")
	flags.Add(fl, append(f.etcd.Rows(), f.etcd.QuotaRow()))
	acceptDataLossFlag(cmd, &f.acceptDataLoss)
	fl.StringVar(&f.etcdListen, "etcd-listen", "",
		"let etcdctl and other clients of etcd at the objects, at `HOST:PORT`, with the administrator's certificate")
	fl.BoolVar(&f.writeKubeconfig, "write-kubeconfig", false, "also merge the kubeconfig into ~/.kube/config")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "log more to keelson.log")
	flags.Add(fl, f.options.Rows())
	f.options.API.Flags = flags.Values(fl)
	fl.DurationVar(&f.certificateLife, "certificate-life", 0, "")
	_ = fl.MarkHidden("certificate-life") // for tests of the renewal
	fl.IntVar(&f.notifyFD, "notify-fd", 0, "")
	_ = fl.MarkHidden("notify-fd") // used between `up --detach` and its child
	return cmd, f
}

// config converts the flags to a cluster.Config.
func (f upFlags) config() (cluster.Config, error) {
	cfg := cluster.Default()
	cfg.DataDir = datadir.Dir(f.dataDir)
	cfg.Port = f.port
	cfg.Fake.Heartbeat = f.fakeHeartbeat
	var err error
	if cfg.Fake.Count, cfg.Fake.Names, err = fakenode.Parse(f.fakeNodes); err != nil {
		return cfg, fmt.Errorf("--fake-nodes: %w", err)
	}
	cfg.Runtime.Endpoint = f.runtimeEndpoint
	cfg.Etcd = f.etcd
	cfg.AcceptDataLoss = f.acceptDataLoss
	cfg.EtcdListen = f.etcdListen
	cfg.Verbose = f.verbose
	cfg.Options = f.options
	if f.nodeName != "" {
		cfg.NodeName = f.nodeName
	}
	if f.writeKubeconfig {
		if home, err := os.UserHomeDir(); err == nil {
			cfg.MergedKubeconfig = filepath.Join(home, ".kube", "config")
		}
	}
	cfg.CertificateLife = f.certificateLife
	cfg.Rootless = os.Getuid() != 0
	cfg.Runtime.ImageHelper = imageHelper
	if cfg.Runtime.Registries, err = nodehost.Registries(f.registries, f.mirrors); err != nil {
		return cfg, err
	}
	return cfg, cfg.Validate()
}

// up runs the cluster in this process until ctx ends.
func up(ctx context.Context, f upFlags, std Stdio) error {
	out := newProgress(std.Out)
	if f.notifyFD > 0 {
		// Child processes must not hold the pipe open.
		syscall.CloseOnExec(f.notifyFD)
		out = newProgress(os.NewFile(uintptr(f.notifyFD), "notify"))
	}
	err := runCluster(ctx, f, out)
	if err != nil && f.notifyFD > 0 {
		out.line(failurePrefix + sentence(err))
	}
	return err
}

func runCluster(ctx context.Context, f upFlags, out *progress) error {
	begin := time.Now()
	cfg, err := f.config()
	if err != nil {
		return err
	}
	cfg.Progress = out.step
	c, err := cluster.New(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	if opens := cfg.Listen.Opens(); opens != "" {
		out.line(opens)
	}
	if kept := c.ServicesKept(); kept != "" {
		out.line(kept)
	}
	if shared := c.SharedServices(); shared != "" {
		out.line("warning: " + shared)
	}
	if full := c.DiskFull(); full != "" {
		out.line("warning: " + full)
	}
	if cfg.Rootless {
		out.line("not root: this cluster has one fake node, whose pods run in name only; run as root for real " +
			"containers")
	}
	err = c.Run(ctx, func() {
		if f.writeKubeconfig {
			if err := mergeKubeconfig(c.DataDir()); err != nil {
				out.line("kubeconfig not merged: " + err.Error())
			}
		}
		out.ready(c.URL(), c.EtcdURL(), time.Since(begin), f)
		if err := systemd.Notify(ctx, os.Getenv, systemd.Ready); err != nil {
			out.line("warning: " + err.Error())
		}
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	out.line("stopped; containers keep running: `keelson up` continues, `keelson down` ends them")
	return nil
}

func mergeKubeconfig(dir datadir.Dir) error {
	home, err := os.UserHomeDir()
	if err != nil {
		return err
	}
	b, err := os.ReadFile(dir.Kubeconfig())
	if err != nil {
		return err
	}
	return pki.MergeKubeconfig(filepath.Join(home, ".kube", "config"), b)
}
