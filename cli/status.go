// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"keelson/cluster/datadir"
	"keelson/cluster/maintenance"
	"keelson/lib/words"
)

func statusCommand(std Stdio) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Whether the cluster runs, its nodes and what it uses",
		Args:  none,
		Example: "  keelson status                         # exits with 3 where no cluster runs\n" +
			"  keelson status --data-dir /tmp/a       # of the cluster in /tmp/a",
	}
	dir := dataDirFlag(cmd)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		status, err := maintenance.ReadStatus(c.Context(), datadir.Dir(*dir))
		if err != nil {
			return err
		}
		if status.Pid == 0 {
			_, err := fmt.Fprintf(std.screen(), "not running   data in %s\n", *dir)
			if err == nil {
				err = exitError(3)
			}
			return err
		}
		return printStatus(std.screen(), &status, *dir)
	}
	return cmd
}

// printStatus prints what runs, a line for each fact.
func printStatus(out io.Writer, status *maintenance.Status, dir string) error {
	lines := []string{fmt.Sprintf("running   pid %d, API at %s, data in %s", status.Pid, status.URL, dir)}
	add := func(label string, facts ...string) {
		for _, f := range facts {
			if f != "" {
				lines = append(lines, fmt.Sprintf("%-9s %s", label, f))
			}
		}
	}
	add("firewall", status.Firewalls...)
	add("services", status.Services)
	if status.CNI != "" {
		add("network", "CNI, "+status.CNI)
	}
	add("network", status.WireGuard)
	add("backup", status.Backup)
	add("expires", status.Certificates...)
	if status.Problem != "" {
		lines = append(lines, "the API does not answer: "+status.Problem)
	} else {
		add("nodes", fmt.Sprintf("%d of %d Ready", status.NodesReady, status.Nodes))
		add("pods", fmt.Sprintf("%d of %d Running", status.PodsRunning, status.Pods))
		add("memory", fmt.Sprintf("%s, %s at most since the start", words.Bytes(status.Memory),
			words.Bytes(status.Peak)))
		add("unhealthy", status.Components...)
		lines = append(lines, status.Rejected...)
	}
	_, err := io.WriteString(out, strings.Join(lines, "\n")+"\n")
	return err
}
