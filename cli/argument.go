// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// one checks that a command has one argument. The error calls it what, which is its name in the usage, perhaps with an
// example.
func one(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch len(args) {
		case 1:
			return nil
		case 0:
			return fmt.Errorf("%s needs one %s", nameOf(c), what)
		}
		return fmt.Errorf("%s needs one %s, not %d: %s", nameOf(c), what, len(args), strings.Join(args, " "))
	}
}

// atMostOne is one for an argument that may be left out.
func atMostOne(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > 1 {
			return fmt.Errorf("%s takes one %s at most, not %d: %s", nameOf(c), what, len(args),
				strings.Join(args, " "))
		}
		return nil
	}
}

// none checks that a command has no arguments.
func none(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no arguments, not %s; `%s --help` lists its flags", nameOf(c),
			strings.Join(args, " "), c.CommandPath())
	}
	return nil
}

// group lets a command that has only subcommands reject other words; without one it prints its help.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.SuggestionsMinimumDistance = 2
	cmd.Args = func(command *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		text := fmt.Sprintf("unknown command %q for %q", args[0], command.CommandPath())
		if slices.Contains(kubectlVerbs, args[0]) {
			return errors.New(text) // sentence adds where it is
		}
		if near := command.SuggestionsFor(args[0]); len(near) > 0 {
			return fmt.Errorf("%s: did you mean %s?", text, strings.Join(near, " or "))
		}
		return fmt.Errorf("%s: `%s --help` lists them", text, command.CommandPath())
	}
	cmd.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	return cmd
}

// isGroup reports whether a command has only subcommands.
func isGroup(c *cobra.Command) bool { return c.HasAvailableSubCommands() && c.Use == c.Name() }

// nameOf is a command without the program's name.
func nameOf(c *cobra.Command) string {
	return strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ")
}
