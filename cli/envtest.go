// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"keelson/cluster/assets"
)

// runTestAPIServer is the program under the name kube-apiserver.
func runTestAPIServer(ctx context.Context, args []string, std Stdio) int {
	if err := assets.RunAPIServer(ctx, args, std.Out, std.Err); err != nil {
		_, _ = fmt.Fprintf(std.Err, "%s: %s\n", assets.APIServer, sentence(err))
		return 1
	}
	return 0
}

func envtestCommand(std Stdio) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "envtest",
		Short: "Programs for test suites that use envtest: etcd, kube-apiserver and kubectl",
		Example: "  eval $(keelson envtest env) && go test ./...\n" +
			"  keelson envtest assets --dir bin/k8s",
		Args: none,
	}
	cmd.AddCommand(envtestAssetsCommand(std), envtestEnvCommand(std))
	return cmd
}

func envtestAssetsCommand(std Stdio) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "assets",
		Short: "Make a directory of the programs, and print the variable by which suites find it",
		Example: "  keelson envtest assets --dir bin/k8s\n" +
			"  KUBEBUILDER_ASSETS=$PWD/bin/k8s go test ./...",
		Args: none,
		RunE: func(*cobra.Command, []string) error {
			path, err := installAssets(dir)
			if err == nil {
				_, err = fmt.Fprintf(std.Out, "%s=%s\n", assets.Variable, path)
			}
			return err
		},
	}
	assetsDirFlag(cmd, &dir)
	return cmd
}

func envtestEnvCommand(std Stdio) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:     "env",
		Short:   "Make the directory, and print the shell command that sets the variable",
		Example: "  eval $(keelson envtest env) && go test ./...",
		Args:    none,
		RunE: func(*cobra.Command, []string) error {
			path, err := installAssets(dir)
			if err == nil {
				_, err = fmt.Fprintf(std.Out, "export %s='%s'\n", assets.Variable,
					strings.ReplaceAll(path, "'", `'\''`))
			}
			return err
		},
	}
	assetsDirFlag(cmd, &dir)
	return cmd
}

func assetsDirFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "dir", "", "directory of the programs (default: keelson/envtest in the user's cache)")
}

// installAssets installs the programs in dir, or in the user's cache, and returns its absolute path.
func installAssets(dir string) (string, error) {
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("%w: give --dir", err)
		}
		dir = filepath.Join(cache, "keelson", "envtest")
	}
	path, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	return path, assets.Install(path, program)
}
