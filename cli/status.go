// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"

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
		return printStatus(std.Out, &s, *dir)
	}
	return c
}

// printStatus prints what runs, a line for each fact.
func printStatus(out io.Writer, s *cluster.Status, dir string) error {
	lines := []string{fmt.Sprintf("running   pid %d, API at %s, data in %s", s.Pid, s.URL, dir)}
	add := func(label string, facts ...string) {
		for _, f := range facts {
			if f != "" {
				lines = append(lines, fmt.Sprintf("%-9s %s", label, f))
			}
		}
	}
	add("firewall", s.Firewalls...)
	add("services", s.Services)
	if s.CNI != "" {
		add("network", "CNI, "+s.CNI)
	}
	add("network", s.WireGuard)
	if s.Problem != "" {
		lines = append(lines, "the API does not answer: "+s.Problem)
	} else {
		add("nodes", fmt.Sprintf("%d of %d Ready", s.NodesReady, s.Nodes))
		add("pods", fmt.Sprintf("%d of %d Running", s.PodsRunning, s.Pods))
		add("memory", fmt.Sprintf("%d MB, %d MB at most since the start", s.MemoryMB, s.PeakMB))
		add("unhealthy", s.Components...)
		lines = append(lines, s.Rejected...)
	}
	_, err := io.WriteString(out, strings.Join(lines, "\n")+"\n")
	return err
}

func downCommand(std Stdio) *cobra.Command {
	var purge bool
	c := &cobra.Command{
		Use:   "down",
		Short: "Stop the cluster and every container; objects stay unless --purge",
		Args:  none,
		Example: "  keelson down                                # `keelson up` starts it again, with the same " +
			"objects\n" +
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
