// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"keelson/cluster/datadir"
	"keelson/cluster/maintenance"
	"keelson/lib/words"
)

func restoreCommand(std Stdio) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a data directory of a backup",
		Long: "Make --data-dir, which must be empty or absent, of a file that `keelson backup` wrote: completely or " +
			"not at all.\n" +
			"`keelson up` then continues the cluster with the objects and the keys that it had. The file may also be " +
			"what " +
			"`etcdctl snapshot save` wrote; it holds no keys, and the cluster gets new ones.",
		Example: "  keelson restore /root/cluster.backup                         # into the default directory, which " +
			"must be empty\n" +
			"  keelson restore --data-dir /tmp/b /root/cluster.backup       # next to the cluster that it was made of",
		Args: one("FILE"),
	}
	dir := dataDirFlag(cmd)
	cmd.RunE = func(c *cobra.Command, args []string) error {
		sum, err := maintenance.Restore(c.Context(), datadir.Dir(*dir), args[0])
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(std.screen(), "%s holds %s; start them with `keelson up --data-dir %s`\n", *dir,
			words.Count(sum.Keys, "object"), *dir)
		return err
	}
	return cmd
}
