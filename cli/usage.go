// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"keelson/cluster"
	"keelson/cluster/flags"
	"keelson/timeline/text"
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

// help prints what a command does, and its usage. Cobra's own formats the usage into a buffer, which is as wide as no
// terminal.
func help(cmd *cobra.Command, _ []string) {
	out := screenOf(cmd.OutOrStdout())
	for line := range strings.Lines(strings.TrimSpace(cmp.Or(cmd.Long, cmd.Short))) {
		if !strings.HasPrefix(line, " ") { // a list keeps its columns
			line = hanging(line, 0, widthOf(out)) + "\n"
		}
		_, _ = io.WriteString(out, line) // usage returns the error
	}
	_, _ = io.WriteString(out, "\n")
	if err := usage(cmd); err != nil {
		cmd.PrintErrln(err)
	}
}

// usage prints the help: examples, subcommands, common flags first, then the other flags grouped by Kubernetes'
// programs.
func usage(cmd *cobra.Command) error {
	var out strings.Builder
	width := widthOf(cmd.OutOrStdout())
	out.WriteString("Usage:\n")
	if cmd.Runnable() && !isGroup(cmd) {
		fmt.Fprintf(&out, "  %s\n", hanging(cmd.UseLine(), 4, width))
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&out, "  %s [command]\n", cmd.CommandPath())
	}
	if cmd.HasExample() {
		out.WriteString("\nExamples:\n")
		for line := range strings.Lines(strings.TrimRight(cmd.Example, "\n")) {
			out.WriteString(example(strings.TrimRight(line, "\n"), width))
		}
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
	for _, g := range flags.Split(cmd.LocalFlags(), cluster.FlagGroups) {
		title := strings.TrimSpace(g.Name + " flags")
		fmt.Fprintf(&out, "\n%s:\n%s", strings.ToUpper(title[:1])+title[1:], g.Flags.FlagUsagesWrapped(width))
	}
	if cmd.HasAvailableInheritedFlags() {
		fmt.Fprintf(&out, "\nGlobal flags:\n%s", cmd.InheritedFlags().FlagUsagesWrapped(width))
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&out, "\nUse \"%s [command] --help\" for more information about a command.\n", cmd.CommandPath())
	}
	_, err := io.WriteString(screenOf(cmd.OutOrStdout()), out.String())
	return err
}

// example formats a command of the examples. One that is too wide has its comment above it, and goes on after
// a backslash, so that it can be copied.
func example(line string, width int) string {
	if utf8.RuneCountInString(line) <= width {
		return line + "\n"
	}
	command, comment, commented := strings.Cut(line, " # ")
	command = strings.TrimRight(command, " ")
	indent := command[:len(command)-len(strings.TrimLeft(command, " "))]
	var out strings.Builder
	if commented {
		for _, part := range text.Fold(indent+"# "+strings.TrimSpace(comment), width, indent+"# ") {
			out.WriteString(part + "\n")
		}
	}
	const continued = " \\"
	out.WriteString(strings.Join(text.Fold(command, width-len(continued), indent+"    "), continued+"\n") + "\n")
	return out.String()
}

// widthOf is the width of a terminal, or 120 where there is none.
func widthOf(w io.Writer) int {
	if cols := screenOf(w).width; cols > 0 {
		return cols
	}
	return 120
}
