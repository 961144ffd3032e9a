// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"keelson/cluster"
)

func statusCommand(std Stdio) *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Whether the cluster runs, its nodes and what it uses",
		Args:  none,
		Example: "  keelson status                         # exits with 3 where no cluster runs\n" +
			"  keelson status --data-dir /tmp/a       # of the cluster in /tmp/a",
	}
	dir := dataDirFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		s, err := cluster.ReadStatus(c.Context(), cluster.DataDir(*dir))
		if err != nil {
			return err
		}
		if s.Pid == 0 {
			_, err := fmt.Fprintf(std.Out, "not running   data in %s\n", *dir)
			if err == nil {
				err = exitError(3)
			}
			return err
		}
		_, err = fmt.Fprintf(std.Out, "running   pid %d, API at %s, data in %s\n", s.Pid, s.URL, *dir)
		if err != nil {
			return err
		}
		lines := s.Firewalls
		for i := range lines {
			lines[i] = "firewall  " + lines[i]
		}
		if s.Services != "" {
			lines = append(lines, "services  "+s.Services)
		}
		if s.CNI != "" {
			lines = append(lines, "network   CNI, "+s.CNI)
		}
		if s.WireGuard != "" {
			lines = append(lines, "network   "+s.WireGuard)
		}
		for _, line := range lines {
			if _, err := fmt.Fprintln(std.Out, line); err != nil {
				return err
			}
		}
		if s.Problem != "" {
			_, err = fmt.Fprintf(std.Out, "the API does not answer: %s\n", s.Problem)
			return err
		}
		_, err = fmt.Fprintf(std.Out, "nodes     %d of %d Ready\npods      %d of %d Running\nmemory    %d MB, %d MB at most since the start\n",
			s.NodesReady, s.Nodes, s.PodsRunning, s.Pods, s.MemoryMB, s.PeakMB)
		for _, line := range s.Components {
			if err == nil {
				_, err = fmt.Fprintln(std.Out, "unhealthy "+line)
			}
		}
		return err
	}
	return c
}

func downCommand(std Stdio) *cobra.Command {
	var purge bool
	c := &cobra.Command{
		Use:   "down",
		Short: "Stop the cluster and every container; objects stay unless --purge",
		Args:  none,
		Example: "  keelson down                                # `keelson up` starts it again, with the same objects\n" +
			"  keelson down --data-dir /tmp/a --purge      # nothing of the cluster in /tmp/a is left",
	}
	dir := dataDirFlag(c)
	c.Flags().BoolVar(&purge, "purge", false, "also delete the data directory: objects, images, keys")
	c.RunE = func(c *cobra.Command, _ []string) error {
		out := newProgress(std.Out)
		return cluster.Down(c.Context(), cluster.DataDir(*dir), purge, out.step)
	}
	return c
}
