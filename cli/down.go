// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"keelson/cluster"
	"keelson/cluster/datadir"
	"keelson/cluster/service"
	"keelson/lib/words"
)

func downCommand(std Stdio) *cobra.Command {
	var purge, yes bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the cluster and every container; objects stay unless --purge",
		Args:  none,
		Example: "  keelson down                                # `keelson up` starts it again, with the same " +
			"objects\n" +
			"  keelson down --data-dir /tmp/a --purge      # nothing of the cluster in /tmp/a is left",
	}
	dir := dataDirFlag(cmd)
	cmd.Flags().BoolVar(&purge, "purge", false, "also delete the data directory: objects, images, keys, local volumes")
	cmd.Flags().BoolVar(&yes, "yes", false, "delete local volumes that hold data without asking")
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		out := newProgress(std.Out)
		if purge && !yes {
			in, ok := std.In.(*os.File)
			if err := agreePurge(datadir.Dir(*dir), std, ok && term.IsTerminal(int(in.Fd()))); err != nil {
				return err
			}
		}
		if os.Getuid() == 0 {
			machine := service.Machine{Starts: true, Progress: out.step}
			if err := machine.StopOn(c.Context(), *dir); err != nil {
				return err
			}
		}
		return cluster.Down(c.Context(), datadir.Dir(*dir), purge, out.step)
	}
	return cmd
}

// maxVolumesShown bounds the list of volumes in a question or an error.
const maxVolumesShown = 10

// agreePurge returns nil if no local volume holds data, or if the user at the terminal agrees to delete those that do.
// Without a terminal there is no user to ask.
func agreePurge(dir datadir.Dir, std Stdio, terminal bool) error {
	volumes, err := datadir.LocalVolumes(dir)
	if err != nil || len(volumes) == 0 {
		return err
	}
	what := fmt.Sprintf("%d local volumes hold", len(volumes))
	if len(volumes) == 1 {
		what = "a local volume holds"
	}
	if !terminal {
		return fmt.Errorf("%s data (%s): give --yes to delete them, or move them out of %s", what,
			volumes[0].Path, dir.Sub("volumes"))
	}
	_, _ = fmt.Fprintf(std.screen(), "%s data, and a purge deletes it:\n", what)
	for _, v := range volumes[:min(len(volumes), maxVolumesShown)] {
		_, _ = fmt.Fprintf(std.screen(), "  %s   %s\n", v.Path, words.Bytes(v.Bytes))
	}
	if more := len(volumes) - maxVolumesShown; more > 0 {
		_, _ = fmt.Fprintf(std.screen(), "  and %d more\n", more)
	}
	_, _ = io.WriteString(std.Out, "Delete them? [y/N] ")
	answer, _ := bufio.NewReader(std.In).ReadString('\n') // no answer is no
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was stopped or deleted")
}
