// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"keelson/cluster"
)

func kubectlCommand(std Stdio) *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl ARGS...",
		Short:              "The real kubectl, on this cluster unless another kubeconfig is given",
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			dir, rest := splitDataDir(args)
			if dir != "" {
				if _, err := os.Stat(dir.Kubeconfig()); err != nil {
					return fmt.Errorf("no cluster in %s (start one with `keelson up --data-dir %s`)", dir, dir)
				}
			}
			if code := runKubectl(c.Context(), dir, rest, std); code != 0 {
				return exitError(code)
			}
			return nil
		},
	}
}

// splitDataDir takes a leading --data-dir off kubectl's own arguments; without one it is "".
func splitDataDir(args []string) (cluster.DataDir, []string) {
	if len(args) >= 2 && args[0] == "--data-dir" {
		return cluster.DataDir(args[1]), args[2:]
	}
	if len(args) >= 1 {
		if d, ok := strings.CutPrefix(args[0], "--data-dir="); ok {
			return cluster.DataDir(d), args[1:]
		}
	}
	return "", args
}

// runKubectl runs k8s.io/kubectl in this process, on the cluster in dir; without dir on what KUBECONFIG names, or else on the
// cluster in the default directory. kubectl ends the process itself on a fatal error, with its own code.
func runKubectl(ctx context.Context, dir cluster.DataDir, args []string, std Stdio) int {
	// It listens for signals itself where it must clean up; everywhere else they end it, as they end any kubectl.
	signal.Reset(os.Interrupt, syscall.SIGTERM)
	streams := genericiooptions.IOStreams{In: std.In, Out: std.Out, ErrOut: std.Err}
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(300).WithDiscoveryQPS(50).WithWarningPrinter(streams)
	flags.WrapConfigFn = func(c *rest.Config) *rest.Config {
		c.UserAgent = "kubectl/" + cluster.KubernetesRelease + " (" + runtime.GOOS + "/" + runtime.GOARCH + ") keelson/" + cluster.Revision()
		return c
	}
	if dir == "" && os.Getenv("KUBECONFIG") == "" {
		dir = defaultDataDir()
	}
	if dir != "" {
		if _, err := os.Stat(dir.Kubeconfig()); err == nil {
			path := dir.Kubeconfig()
			flags.KubeConfig = &path // the default of --kubeconfig
		}
	}
	argv := append([]string{"kubectl"}, args...)
	cmd := kubectl.NewDefaultKubectlCommandWithArgs(kubectl.KubectlOptions{
		PluginHandler: kubectl.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes),
		Arguments:     argv,
		ConfigFlags:   flags,
		IOStreams:     streams,
	})
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	if err := cmd.ExecuteContext(ctx); err != nil {
		if errors.Is(err, cmdutil.ErrExit) {
			return cmdutil.DefaultErrorExitCode
		}
		cmdutil.CheckErr(err)
		return cmdutil.DefaultErrorExitCode
	}
	return 0
}
