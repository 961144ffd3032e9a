// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line: one file per command, listed in one table. cmd/keelson calls Run. Only cli reads
// flags and environment variables; every command ends in a call of another room, mostly cluster.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"keelson/cluster/assets"
	"keelson/cluster/datadir"
)

// Stdio holds the input and output of a command.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// command creates one cobra command.
type command func(Stdio) *cobra.Command

// commands has one row per command. roleCommands adds those of the cluster's roles.
var commands = []command{
	upCommand, statusCommand, downCommand, kubectlCommand, imageCommand, imageHelperCommand, timelineCommand,
	whyCommand, whatIfCommand, logsCommand, traceCommand, dashboardCommand,
	tokenCommand, joinCommand, nodeCommand, certsCommand,
	installCommand, uninstallCommand, backupCommand, restoreCommand, migrateCommand, envtestCommand, benchCommand,
	versionCommand,
}

// exitError is the exit code of a command that has already printed its error.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Run executes the command in args and returns the exit code: 0, 1 after one sentence on std.Err, or the code of a
// program that it ran. args[0] is the program's name: "kubectl" runs kubectl, and
// "kube-apiserver" the API server of test environments.
func Run(ctx context.Context, args []string, std Stdio) int {
	switch programName(args[0]) {
	case "kubectl":
		return runKubectl(ctx, "", args[1:], std)
	case assets.APIServer:
		return runTestAPIServer(ctx, args[1:], std)
	}
	root := rootCommand(std)
	root.SetArgs(args[1:])
	err := root.ExecuteContext(ctx)
	var code exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	default:
		_, _ = fmt.Fprintf(screenOf(std.Err), "keelson: %s\n", sentence(err))
		return 1
	}
}

// programName is the name by which the program was called. KEELSON_PROGRAM is for a script that stands for the program
// where a link cannot (hack/envtest-release).
func programName(path string) string {
	if name := os.Getenv("KEELSON_PROGRAM"); name != "" {
		return name
	}
	return filepath.Base(path)
}

// rootCommand has all commands below it.
func rootCommand(std Stdio) *cobra.Command {
	root := &cobra.Command{
		Use:   "keelson",
		Short: "A whole Kubernetes cluster in one program",
		Example: "  keelson up --detach             # a cluster on this machine, in the background\n" +
			"  keelson kubectl get nodes\n" +
			"  keelson down",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetIn(std.In)
	root.SetOut(std.Out)
	root.SetErr(std.Err)
	root.SetUsageFunc(usage)
	root.SetHelpFunc(help)
	root.SetFlagErrorFunc(mistypedFlag)
	for _, c := range slices.Concat(commands, roleCommands()) {
		root.AddCommand(c(std))
	}
	root.SetHelpCommand(helpCommand(std))
	completionExamples(root)
	for _, sub := range root.Commands() {
		if sub.HasAvailableSubCommands() && !sub.Runnable() {
			group(sub)
		}
	}
	return root
}

// sentence formats an error on one line, even a joined one. For a mistyped command it adds similar commands.
func sentence(err error) string {
	text := err.Error()
	if rest, ok := strings.CutPrefix(text, "unknown command \""); ok {
		if word, _, _ := strings.Cut(rest, "\""); slices.Contains(kubectlVerbs, word) {
			return strings.SplitN(text, "\n", 2)[0] + ": kubectl has it, `keelson kubectl " + word + "`"
		}
	}
	if before, near, ok := strings.Cut(text, "\n\nDid you mean this?\n"); ok {
		return before + ": did you mean " + strings.Join(strings.Fields(near), " or ") + "?"
	}
	text = strings.ReplaceAll(text, "\n", "; ")
	if errors.Is(err, syscall.EROFS) {
		text += ": the kernel's log (dmesg) may say why; make it writable and try again"
	}
	return text
}

// kubectlVerbs are kubectl's commands that are not commands of this program.
var kubectlVerbs = strings.Fields(
	`annotate api-resources api-versions apply attach auth autoscale certificate cluster-info config cordon cp create
	debug delete describe diff drain edit events exec explain expose get kustomize label options patch plugin
	port-forward replace rollout run scale set taint top uncordon wait`)

// defaultDataDir is /var/lib/keelson for root, else keelson below $XDG_STATE_HOME (or ~/.local/state). KEELSON_DATA_DIR
// overrides both.
func defaultDataDir() datadir.Dir {
	if d := os.Getenv("KEELSON_DATA_DIR"); d != "" {
		return datadir.Dir(d)
	}
	if os.Getuid() == 0 {
		return "/var/lib/keelson"
	}
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			home = os.TempDir()
		}
		state = filepath.Join(home, ".local", "state")
	}
	return datadir.Dir(filepath.Join(state, "keelson"))
}

// dataDirFlag adds --data-dir to a command.
func dataDirFlag(c *cobra.Command) *string {
	dir := new(string)
	dataDirVar(c.Flags(), dir)
	return dir
}

// dataDirVar adds --data-dir to flags; shells complete it with directories.
func dataDirVar(fl *pflag.FlagSet, dir *string) {
	fl.StringVar(dir, "data-dir", string(defaultDataDir()), "directory `DIR` that holds the cluster")
	_ = fl.SetAnnotation("data-dir", cobra.BashCompSubdirsInDir, []string{})
}
