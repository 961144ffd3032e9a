// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

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
			"  keelson status --data-dir /tmp/a       # of the cluster in /tmp/a\n" +
			"  keelson status -o json                 # for programs",
	}
	dir := dataDirFlag(cmd)
	var output string
	cmd.Flags().StringVarP(&output, "output", "o", "", "`FORMAT`: json, or lines for people")
	_ = cmd.RegisterFlagCompletionFunc("output", ofFlag(completeFixed([]string{"json"})))
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		if output != "" && output != "json" {
			return fmt.Errorf("--output %q: json is the only format", output)
		}
		status, err := maintenance.ReadStatus(c.Context(), datadir.Dir(*dir))
		if err != nil {
			return err
		}
		if output == "json" {
			text, err := json.MarshalIndent(status, "", "    ")
			if err == nil {
				_, err = fmt.Fprintf(std.Out, "%s\n", text)
			}
			if err == nil && status.Pid == 0 {
				err = exitError(3)
			}
			return err
		}
		if status.Pid == 0 {
			out := std.screen()
			_, err := fmt.Fprintf(out, "%s   data in %s\n", out.paint(words.Red, "not running"), *dir)
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
func printStatus(out *screen, status *maintenance.Status, dir string) error {
	lines := []string{
		fmt.Sprintf("%s   pid %d, API at %s, data in %s", out.paint(words.Green, "running"), status.Pid,
			status.URL, dir),
	}
	styled := func(style, label string, facts ...string) {
		for _, f := range facts {
			if f != "" {
				lines = append(lines, out.paint(style, fmt.Sprintf("%-9s %s", label, f)))
			}
		}
	}
	add := func(label string, facts ...string) { styled("", label, facts...) }
	add("firewall", status.Firewalls...)
	add("services", status.Services)
	if status.CNI != "" {
		add("network", "CNI, "+status.CNI)
	}
	add("network", status.WireGuard)
	if status.Backup != nil {
		style := ""
		if status.Backup.Error != "" {
			style = words.Red
		}
		styled(style, "backup", status.Backup.Text(time.Now()))
	}
	styled(words.Red, "expires", status.Certificates...)
	if status.Problem != "" {
		lines = append(lines, out.paint(words.Red, "the API does not answer: "+status.Problem))
	} else {
		ready := ""
		if status.NodesReady < status.Nodes {
			ready = words.Red
		}
		styled(ready, "nodes", fmt.Sprintf("%d of %d Ready", status.NodesReady, status.Nodes))
		add("pods", fmt.Sprintf("%d of %d Running", status.PodsRunning, status.Pods))
		add("memory", fmt.Sprintf("%s, %s at most since the start", words.Bytes(status.Memory),
			words.Bytes(status.Peak)))
		add("disk", fmt.Sprintf("%s free of %s; the store has %s", words.Bytes(status.Disk.Free),
			words.Bytes(status.Disk.Size), words.Bytes(status.Disk.Store)))
		if len(status.Servers) > 1 {
			add("servers", strings.Join(status.Servers, ", "))
		}
		for _, component := range slices.Sorted(maps.Keys(status.Leaders)) {
			add("leader", component+" "+status.Leaders[component])
		}
		styled(words.Red, "unhealthy", status.Components...)
		for _, rejected := range status.Rejected {
			lines = append(lines, out.paint(words.Red, rejected))
		}
	}
	_, err := io.WriteString(out, strings.Join(lines, "\n")+"\n")
	return err
}
