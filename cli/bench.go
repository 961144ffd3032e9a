// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"keelson/bench"
)

func benchCommand(std Stdio) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:       "bench [SCENARIO...]",
		Short:     "Measure this program on this machine: " + strings.Join(bench.Names(), ", "),
		ValidArgs: bench.Names(),
		Example: "  keelson bench                       # all scenarios\n" +
			"  keelson bench start idle --json     # two of them, for a program",
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON object a figure")
	c.RunE = func(c *cobra.Command, args []string) error {
		for _, a := range args {
			if !slices.Contains(bench.Names(), a) {
				return fmt.Errorf("no scenario %q: there are %s", a, strings.Join(bench.Names(), ", "))
			}
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		return bench.Run(c.Context(), self, args, asJSON, std.Out)
	}
	return c
}
