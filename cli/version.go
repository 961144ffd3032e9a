// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"keelson/cluster/version"
)

func versionCommand(std Stdio) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "What this program is, and the Kubernetes version it speaks",
		Args:    none,
		Example: "  keelson version",
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(std.screen(), "keelson %s\nKubernetes %s\n%s %s/%s\n", version.Revision(),
				version.Kubernetes, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
	dataDirFlag(cmd) // every lifecycle command has it
	return cmd
}
