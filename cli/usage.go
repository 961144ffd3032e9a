// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"keelson/cluster"
	"keelson/lib/flaggroup"
)

// usage prints the help: examples, subcommands, common flags first, then the other flags grouped by Kubernetes'
// programs.
func usage(cmd *cobra.Command) error {
	var out strings.Builder
	out.WriteString("Usage:\n")
	if cmd.Runnable() && !isGroup(cmd) {
		fmt.Fprintf(&out, "  %s\n", cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&out, "  %s [command]\n", cmd.CommandPath())
	}
	if cmd.HasExample() {
		fmt.Fprintf(&out, "\nExamples:\n%s\n", strings.TrimRight(cmd.Example, "\n"))
	}
	if cmd.HasAvailableSubCommands() {
		out.WriteString("\nAvailable Commands:\n")
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() || sub.Name() == "help" {
				fmt.Fprintf(&out, "  %-*s %s\n", sub.NamePadding(), sub.Name(), sub.Short)
			}
		}
	}
	width := widthOf(cmd.OutOrStdout())
	for _, g := range flaggroup.Split(cmd.LocalFlags(), cluster.FlagGroups) {
		title := strings.TrimSpace(g.Name + " flags")
		fmt.Fprintf(&out, "\n%s:\n%s", strings.ToUpper(title[:1])+title[1:], g.Flags.FlagUsagesWrapped(width))
	}
	if cmd.HasAvailableInheritedFlags() {
		fmt.Fprintf(&out, "\nGlobal flags:\n%s", cmd.InheritedFlags().FlagUsagesWrapped(width))
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&out, "\nUse \"%s [command] --help\" for more information about a command.\n", cmd.CommandPath())
	}
	_, err := io.WriteString(cmd.OutOrStdout(), out.String())
	return err
}

// widthOf is the width of a terminal; 0: no terminal, lines are not wrapped.
func widthOf(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	cols, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return cols
}
