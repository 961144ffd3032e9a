// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// one checks that a command has one argument. The error calls it what, which is its name in the usage, perhaps with an example.
func one(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		name := strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ")
		switch len(args) {
		case 1:
			return nil
		case 0:
			return fmt.Errorf("%s needs one %s", name, what)
		}
		return fmt.Errorf("%s needs one %s, not %d: %s", name, what, len(args), strings.Join(args, " "))
	}
}
