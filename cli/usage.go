// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"keelson/cluster"
	"keelson/lib/flaggroup"
)

// helpCommand is `keelson help COMMAND`. Cobra's own prints the whole help about a word that is no command, and succeeds.
func helpCommand(Stdio) *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(c *cobra.Command, args []string) error {
			about, rest, err := c.Root().Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return fmt.Errorf("unknown command %q for %q", rest[0], about.CommandPath())
			}
			return about.Help()
		},
	}
}

// usage prints the help: examples, subcommands, common flags first, then the other flags grouped by Kubernetes'
// programs.
func usage(cmd *cobra.Command) error {
	var out strings.Builder
	width := widthOf(cmd.OutOrStdout())
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
				name := fmt.Sprintf("  %-*s ", sub.NamePadding(), sub.Name())
				fmt.Fprintf(&out, "%s%s\n", name, hanging(sub.Short, len(name), width))
			}
		}
	}
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

// widthOf is the width of a terminal, or 120 where there is none.
func widthOf(w io.Writer) int {
	const usual = 120
	f, ok := w.(*os.File)
	if !ok {
		return usual
	}
	cols, _, err := term.GetSize(int(f.Fd()))
	if err != nil || cols == 0 {
		return usual
	}
	return cols
}

// hanging wraps a text that begins at a column, so that its further lines begin there, too.
func hanging(text string, column, width int) string {
	if width-column < 20 {
		return text // too narrow to be better
	}
	var out strings.Builder
	used := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case used == 0:
		case column+used+1+utf8.RuneCountInString(word) > width:
			out.WriteString("\n" + strings.Repeat(" ", column))
			used = 0
		default:
			out.WriteByte(' ')
			used++
		}
		out.WriteString(word)
		used += utf8.RuneCountInString(word)
	}
	return out.String()
}
