// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"keelson/cluster/datadir"
	"keelson/cluster/maintenance"
	"keelson/lib/words"
)

func backupCommand(std Stdio) *cobra.Command {
	var f storyFlags
	var acceptLoss bool
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write all objects, and the cluster's keys, to a file",
		Long: "Write every object as of one moment, and the cluster's keys and certificates, to a new file, readable " +
			"by its owner only.\n" +
			"The cluster may be running. `keelson restore FILE` makes a cluster of it.",
		Example: "  keelson backup /root/cluster.backup                                   # while it runs, or not\n" +
			"  keelson backup --data-dir /tmp/a /root/a.backup                       # of the cluster in /tmp/a\n" +
			"  keelson backup --kubeconfig other.kubeconfig /root/other.backup       # of one elsewhere, without its " +
			"keys",
		Args: one("FILE"),
		RunE: func(c *cobra.Command, args []string) error {
			sum, err := runBackup(c, f, args[0], acceptLoss)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(std.screen(), "%s holds %s as of resource version %d\n", args[0],
				words.Count(sum.Keys, "object"), sum.Revision)
			return err
		},
	}
	dataDirVar(cmd.Flags(), &f.dataDir)
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "",
		"reach the cluster by this kubeconfig; the keys are then left out")
	acceptDataLossFlag(cmd, &acceptLoss)
	return cmd
}

func runBackup(c *cobra.Command, f storyFlags, path string, acceptLoss bool) (maintenance.Summary, error) {
	dir := datadir.Dir(f.dataDir)
	if f.kubeconfig != "" {
		dir = ""
	} else if pid, err := dir.Running(); err != nil {
		return maintenance.Summary{}, err
	} else if pid == 0 {
		return maintenance.BackupOffline(c.Context(), dir, path, acceptLoss)
	}
	// never KUBECONFIG's: the keys are those of the directory
	f.only(cmp.Or(f.kubeconfig, dir.Kubeconfig()))
	body, err := f.get(c.Context(), maintenance.BackupPath)
	if err != nil {
		return maintenance.Summary{}, err
	}
	defer func() { _ = body.Close() }()
	return maintenance.SaveBackup(dir, body, path)
}
