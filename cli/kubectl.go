// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	basecli "k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	_ "keelson/cli/translations" // before kubectl's packages translate
	"keelson/cluster/datadir"
	"keelson/cluster/version"
)

func kubectlCommand(std Stdio) *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl ARGS...",
		Short:              "The real kubectl, on this cluster unless another kubeconfig is given",
		DisableFlagParsing: true,
		ValidArgsFunction:  completeKubectl,
		Example: "  keelson kubectl get pods -A -o wide\n" +
			"  keelson kubectl --data-dir /tmp/a get nodes          # of the cluster in /tmp/a\n" +
			"  source <(keelson kubectl completion bash)            # for a link called kubectl that leads to keelson",
		RunE: func(c *cobra.Command, args []string) error {
			dir, rest := splitDataDir(args)
			if dir != "" {
				if err := dir.Started(); err != nil {
					return err
				}
			}
			if code := runKubectl(c.Context(), dir, rest, std); code != 0 {
				return exitError(code)
			}
			return nil
		},
	}
}

// splitDataDir removes a leading --data-dir from kubectl's arguments; without one it returns "".
func splitDataDir(args []string) (datadir.Dir, []string) {
	if len(args) >= 2 && args[0] == "--data-dir" {
		return datadir.Dir(args[1]), args[2:]
	}
	if len(args) >= 1 {
		if d, ok := strings.CutPrefix(args[0], "--data-dir="); ok {
			return datadir.Dir(d), args[1:]
		}
	}
	return "", args
}

// useCluster sets KUBECONFIG for kubectl and its plugins to the kubeconfig of dir. Without dir an existing KUBECONFIG
// stays, else the default directory's kubeconfig is used.
func useCluster(dir datadir.Dir) error {
	if dir == "" {
		if os.Getenv("KUBECONFIG") != "" {
			return nil
		}
		dir = defaultDataDir()
	}
	path, err := filepath.Abs(dir.Kubeconfig())
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); err != nil {
		return nil //nolint:nilerr // no cluster there: kubectl uses its defaults
	}
	return os.Setenv("KUBECONFIG", path)
}

// explainStopped says what starts the cluster in dir, where kubectl ends because nothing listens on this machine. It
// leaves kubectl alone where that cluster runs.
func explainStopped(dir datadir.Dir, std Stdio) {
	if pid, err := dir.Running(); pid != 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return
	}
	cmdutil.BehaviorOnFatal(func(message string, code int) {
		if message != "" {
			_, _ = fmt.Fprintln(std.Err, strings.TrimSuffix(message, "\n"))
		}
		if refusedHere.MatchString(message) {
			_, _ = fmt.Fprintf(screenOf(std.Err),
				"keelson: no cluster runs in %s (start it with `keelson up --data-dir %s`)\n", dir, dir)
		}
		os.Exit(code)
	})
}

// refusedHere is kubectl's message that no server listens on the machine itself.
var refusedHere = regexp.MustCompile(`server (127\.0\.0\.1|localhost|\[::1\]):\d+ was refused`)

// runKubectl runs k8s.io/kubectl in this process, on the cluster in dir; without dir on KUBECONFIG's or the default
// directory's cluster. On a fatal error kubectl exits the process with its own code.
func runKubectl(ctx context.Context, dir datadir.Dir, args []string, std Stdio) int {
	// kubectl handles signals where it must clean up. Everywhere else a signal ends it as usual.
	signal.Reset(os.Interrupt, syscall.SIGTERM)
	streams := genericiooptions.IOStreams{In: std.In, Out: std.Out, ErrOut: std.Err}
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(300).
		WithDiscoveryQPS(50).WithWarningPrinter(streams)
	flags.WrapConfigFn = func(c *rest.Config) *rest.Config {
		c.UserAgent = "kubectl/" + version.Release + " (" + runtime.GOOS + "/" + runtime.GOARCH +
			") keelson/" + version.Revision()
		return c
	}
	ours := dir != "" || os.Getenv("KUBECONFIG") == ""
	if err := useCluster(dir); err != nil {
		_, _ = fmt.Fprintf(std.Err, "keelson: %s\n", sentence(err))
		return 1
	}
	if ours {
		explainStopped(datadir.Dir(cmp.Or(string(dir), string(defaultDataDir()))), std)
	}
	argv := append([]string{"kubectl"}, args...)
	// Preferences are read and plugins searched before flags are parsed, which reports the error.
	_, _ = logs.GlogSetter(kubectl.GetLogVerbosity(argv))
	os.Args = argv // not cmd.SetArgs: kubectl itself has set the arguments where an alias of kuberc is used
	cmd := kubectl.NewDefaultKubectlCommandWithArgs(kubectl.KubectlOptions{
		PluginHandler: kubectl.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes),
		Arguments:     argv,
		ConfigFlags:   flags,
		IOStreams:     streams,
	})
	cmd.SetOut(std.Out)
	cmd.SetContext(ctx)
	if err := basecli.RunNoErrOutput(cmd); err != nil { // it adds klog's flags: -v, --vmodule
		if errors.Is(err, cmdutil.ErrExit) {
			return cmdutil.DefaultErrorExitCode
		}
		cmdutil.CheckErr(err)
		return cmdutil.DefaultErrorExitCode
	}
	return 0
}
