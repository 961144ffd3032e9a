// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"keelson/cluster"
	"keelson/cluster/datadir"
	"keelson/cluster/fakenode"
	"keelson/cluster/flags"
	"keelson/cluster/membership"
	"keelson/lib/systemd"
)

// access holds the flags by which a command finds a cluster's administrator kubeconfig.
type access struct{ dataDir, kubeconfig string }

func (a *access) add(c *cobra.Command) {
	dataDirVar(c.PersistentFlags(), &a.dataDir)
	c.PersistentFlags().StringVar(&a.kubeconfig, "kubeconfig", "",
		"reach the cluster by this kubeconfig in place of the data directory's")
}

func (a *access) rest() (*rest.Config, error) {
	return datadir.ReadKubeconfig(datadir.Dir(a.dataDir), a.kubeconfig)
}

func tokenCommand(std Stdio) *cobra.Command {
	var a access
	c := group(&cobra.Command{
		Use:   "token",
		Short: "Tokens by which machines join the cluster",
		Example: "  keelson token create --print-join-command     # what to type on the machine that joins\n" +
			"  keelson token list",
	})
	a.add(c)
	c.AddCommand(createTokenCommand(std, &a), listTokensCommand(std, &a), deleteTokenCommand(&a))
	return c
}

func createTokenCommand(std Stdio, a *access) *cobra.Command {
	var tokenRequest membership.TokenRequest
	var command bool
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a token",
		Args:  none,
		Example: "  keelson token create --print-join-command                     # what to type on the machine that " +
			"joins\n" +
			"  keelson token create --ttl 1h --description \"for worker-1\"",
		RunE: func(c *cobra.Command, _ []string) error {
			to, err := a.rest()
			if err != nil {
				return err
			}
			inv, err := membership.CreateToken(c.Context(), to, tokenRequest)
			if err != nil {
				return err
			}
			text := inv.Token
			if command {
				text = inv.Command()
			}
			_, err = fmt.Fprintln(std.Out, text)
			return err
		},
	}
	cmd.Flags().DurationVar(&tokenRequest.TTL, "ttl", 24*time.Hour, "how long the token lives; 0: forever")
	cmd.Flags().BoolVar(&command, "print-join-command", false, "print what to type on the machine that joins")
	cmd.Flags().StringVar(&tokenRequest.Server, "server", "",
		"`https://HOST:PORT` at which other machines reach the API (default: as it is advertised)")
	cmd.Flags().StringVar(&tokenRequest.Description, "description", "", "what the token is for")
	return cmd
}

func listTokensCommand(std Stdio, a *access) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List the tokens, without their secrets",
		Args:    none,
		Example: "  keelson token list",
		RunE: func(c *cobra.Command, _ []string) error {
			to, err := a.rest()
			if err != nil {
				return err
			}
			tokens, err := membership.ListTokens(c.Context(), to)
			if err != nil {
				return err
			}
			rows := make([][]string, 0, len(tokens))
			for _, t := range tokens {
				left := "forever"
				ends := "never"
				if !t.Expires.IsZero() {
					left = max(0, time.Until(t.Expires)).Round(time.Second).String()
					ends = t.Expires.Local().Format(time.RFC3339)
				}
				rows = append(rows, []string{t.ID, left, ends, t.Description})
			}
			if len(rows) == 0 {
				_, err := fmt.Fprintln(std.screen(), "no tokens; `keelson token create` makes one")
				return err
			}
			return printTable(std.screen(), []string{"TOKEN", "LEFT", "EXPIRES", "DESCRIPTION"}, rows)
		},
	}
}

func deleteTokenCommand(a *access) *cobra.Command {
	return &cobra.Command{
		Use:               "delete TOKEN",
		Short:             "Delete a token, named by its first six characters",
		Args:              one("TOKEN"),
		ValidArgsFunction: completeNames(tokenNames(a)),
		Example:           "  keelson token delete abcdef     # as `keelson token list` names it",
		RunE: func(c *cobra.Command, args []string) error {
			to, err := a.rest()
			if err != nil {
				return err
			}
			return membership.DeleteToken(c.Context(), to, args[0])
		},
	}
}

func nodeCommand(std Stdio) *cobra.Command {
	var a access
	var drain bool
	cmd := group(&cobra.Command{
		Use:   "node",
		Short: "Nodes of the cluster",
		Example: "  keelson node rm worker-1 --drain\n" +
			"  keelson node stop node01",
	})
	a.add(cmd)
	remove := &cobra.Command{
		Use:               "rm NAME",
		Short:             "Take a node out of the cluster",
		Args:              one("NAME"),
		ValidArgsFunction: completeNames(nodeNames),
		Example:           "  keelson node rm worker-1 --drain     # its pods move to other nodes first",
		RunE: func(command *cobra.Command, args []string) error {
			to, err := a.rest()
			if err != nil {
				return err
			}
			if drain {
				flags := []string{"drain", args[0], "--ignore-daemonsets", "--delete-emptydir-data"}
				if a.kubeconfig != "" {
					flags = append(flags, "--kubeconfig", a.kubeconfig)
				}
				if code := runKubectl(command.Context(), datadir.Dir(a.dataDir), flags, std); code != 0 {
					return exitError(code)
				}
			}
			if err := membership.RemoveNode(command.Context(), to, args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(std.screen(),
				"node %s removed; if it has a machine of its own, `keelson down --purge` there removes what is left\n",
				args[0])
			return err
		},
	}
	remove.Flags().BoolVar(&drain, "drain", false, "evict its pods first, as kubectl drain does")
	rbac := &cobra.Command{
		Use: "rbac NAME",
		Short: "Print what a joined node's roles need on an API server that gives nodes no tokens for them " +
			"(Kubernetes')",
		Args:    one("NAME"),
		Example: "  keelson node rbac worker-1 | keelson kubectl --kubeconfig admin.kubeconfig apply -f -",
		Long: "Print ClusterRoles and ClusterRoleBindings by which the proxy, the network policies, the DNS server " +
			"and the pod routes of a node that has joined an API " +
			"server of Kubernetes may work there, as the node. Look at what they let the node read; then `keelson " +
			"node rbac NAME | kubectl apply -f -`.",
		RunE: func(_ *cobra.Command, args []string) error {
			return cluster.WriteNodeRBAC(std.Out, args[0])
		},
	}
	cmd.AddCommand(remove, rbac, silence(std, &a, true), silence(std, &a, false))
	return cmd
}

// silence is `node stop` or `node start` for fake nodes.
func silence(std Stdio, a *access, stop bool) *cobra.Command {
	var last time.Duration
	cmd := &cobra.Command{Use: "start NAME", Short: "Let a fake node that was stopped come back", Args: one("NAME")}
	cmd.Example = "  keelson node start node01     # a node of `keelson up --fake-nodes node01,node02`"
	if stop {
		cmd.Use = "stop NAME"
		cmd.Short = "Let a fake node lose its power: it says nothing any more, and its pods stay as they are"
		cmd.Example = "  keelson node stop node01              # a node of `keelson up --fake-nodes node01,node02`\n" +
			"  keelson node stop node01 --lease 40s  # others notice as late as of a kubelet"
		cmd.Flags().DurationVar(&last, "lease", 5*time.Second,
			"how long its last lease lasts; with --node-monitor-grace-period of `keelson up` it is when others notice")
	}
	cmd.ValidArgsFunction = completeNames(nodeNames)
	cmd.RunE = func(c *cobra.Command, args []string) error {
		if stop && last < time.Second {
			return fmt.Errorf("--lease %v is too short: 1s at least", last)
		}
		to, err := a.rest()
		if err != nil {
			return err
		}
		if err := fakenode.Silence(c.Context(), to, args[0], last); err != nil {
			return err
		}
		said := "node %s is back\n"
		if stop {
			said = "node %[1]s is silent; `keelson node start %[1]s` brings it back\n"
		}
		_, err = fmt.Fprintf(std.screen(), said, args[0])
		return err
	}
	return cmd
}

// exampleHash stands for the hash of a CA's public key.
const exampleHash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

// joinCommand runs the kubelet's role on a machine that does not know the cluster yet.
func joinCommand(std Stdio) *cobra.Command {
	cmd, _ := joinCommandAndRequest(std)
	return cmd
}

func joinCommandAndRequest(std Stdio) (*cobra.Command, *membership.JoinRequest) {
	joinRequest := new(membership.JoinRequest)
	var labels map[string]string
	var taints []string
	var config string
	for _, role := range cluster.Roles() {
		if role.Name != "kubelet" {
			continue
		}
		var cfg cluster.RoleConfig
		cmd := &cobra.Command{
			Use:   "join https://SERVER:PORT --token TOKEN --ca-hash HASH",
			Short: "Make this machine a node of a cluster on another one",
			Args:  one("https://SERVER:PORT"),
			Long: "Make this machine a node of the cluster at SERVER, and run the node until Ctrl-C. `keelson token " +
				"create --print-join-command` there says " +
				"what to type here. Afterwards `keelson kubelet` continues the node without token.",
			Example: "  keelson join https://192.168.1.10:6443 --token abcdef.0123456789abcdef --ca-hash sha256:" +
				exampleHash + "\n" +
				"  keelson join https://192.168.1.10:6443 --token abcdef.0123456789abcdef --ca-hash sha256:" +
				exampleHash + " --node-name worker-1 --label disk=ssd",
		}
		fl := cmd.Flags()
		dataDirVar(fl, (*string)(&cfg.DataDir))
		fl.Lookup("data-dir").Usage = "directory `DIR` that holds the node"
		fl.BoolVarP(&cfg.Verbose, "verbose", "v", false, "log more")
		flags.Add(fl, role.Rows(&cfg))
		cfg.API.Flags = flags.Values(fl)
		configFlagOf(fl, &config)
		fl.StringVar(&joinRequest.Token, "token", "", "bootstrap `TOKEN`")
		fl.StringSliceVar(&joinRequest.CAHashes, "ca-hash", nil,
			"`sha256:HEX` of the public key of the cluster's authority")
		fl.StringToStringVar(&labels, "label", nil, "label `KEY=VALUE` for the node; may be repeated")
		fl.StringSliceVar(&taints, "taint", nil, "taint `KEY=VALUE:EFFECT` for the node; may be repeated")
		for _, hidden := range []string{"kubeconfig", "bootstrap-kubeconfig", "node-labels", "register-with-taints"} {
			_ = fl.MarkHidden(hidden) // the flag exists
		}
		cmd.RunE = func(command *cobra.Command, args []string) error {
			if config != "" {
				if err := readConfig(command, config); err != nil {
					return err
				}
			}
			joinRequest.Server = strings.TrimSuffix(args[0], "/")
			cfg.Node.Labels = labels
			cfg.Node.Taints = taints
			cfg.LogOutput = std.Err
			begin := time.Now()
			cfg.Ready = func() {
				_, _ = fmt.Fprintf(std.screen(), "node ready in %d ms; Ctrl-C stops it, `keelson kubelet` continues it\n",
					time.Since(begin).Milliseconds())
				notifyReady(command.Context(), std)
			}
			if err := cluster.Join(command.Context(), *joinRequest, &cfg); err != nil {
				return err
			}
			return role.Run(command.Context(), cfg)
		}
		return cmd, joinRequest
	}
	panic("there is no kubelet in the table of roles")
}

// notifyReady notifies the service manager that the command's role is ready.
func notifyReady(ctx context.Context, std Stdio) {
	if err := systemd.Notify(ctx, os.Getenv, systemd.Ready); err != nil {
		_, _ = fmt.Fprintf(std.Err, "keelson: %v\n", err)
	}
}
