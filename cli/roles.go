// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"keelson/cluster"
	"keelson/cluster/flags"
	"keelson/cluster/scheduling"
)

// roleCommands are the roles that can be processes of their own, from cluster's table.
func roleCommands() []command {
	var out []command
	for _, role := range cluster.Roles() {
		out = append(out, func(std Stdio) *cobra.Command { return roleCommand(std, role) })
	}
	return out
}

// roleCommand runs one role as a process of its own. It logs to standard error and ends on SIGTERM.
func roleCommand(std Stdio, role cluster.Role) *cobra.Command {
	var cfg cluster.RoleConfig
	cmd := &cobra.Command{
		Use:     role.Name,
		Short:   role.Short,
		Example: role.Example,
		Args:    none,
	}
	dataDirVar(cmd.Flags(), (*string)(&cfg.DataDir))
	verboseFlags(cmd.Flags(), &cfg.Verbose)
	flags.Add(cmd.Flags(), role.Rows(&cfg))
	cfg.API.Flags = flags.Values(cmd.Flags())
	cmd.RunE = func(command *cobra.Command, _ []string) error {
		if cfg.Scheduler.PrintCRD {
			_, err := std.Out.Write(scheduling.PolicyManifest())
			return err
		}
		if path := cfg.Scheduler.Check; path != "" {
			what, err := scheduling.Check(path)
			if err == nil {
				_, err = fmt.Fprintf(std.screen(), "%s is fine: %s\n", path, what)
			}
			return err
		}
		cfg.LogOutput = std.Err
		cfg.ImageHelper = imageHelper
		cfg.Ready = func() {
			_, _ = fmt.Fprintf(std.screen(), "%s ready\n", role.Name)
			notifyReady(command.Context(), std)
		}
		return role.Run(command.Context(), cfg)
	}
	return cmd
}
