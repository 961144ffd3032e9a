// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"keelson/bench"
)

func benchCommand(std Stdio) *cobra.Command {
	var cfg bench.Config
	cmd := &cobra.Command{
		Use:       "bench [SCENARIO...]",
		Short:     "Measure this program on this machine: " + strings.Join(bench.Names(), ", "),
		ValidArgs: bench.Names(),
		Example: "  keelson bench                       # all scenarios\n" +
			"  keelson bench start idle --json     # two of them, for a program\n" +
			"  keelson bench start --history docs/performance.jsonl",
	}
	cmd.Flags().BoolVar(&cfg.JSON, "json", false, "one JSON object a figure")
	historyFlag(cmd, &cfg.History)
	cmd.RunE = func(c *cobra.Command, args []string) error {
		for _, a := range args {
			if !slices.Contains(bench.Names(), a) {
				return fmt.Errorf("no scenario %q: there are %s", a, strings.Join(bench.Names(), ", "))
			}
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		cfg.Program = self
		cfg.Scenarios = args
		return bench.Run(c.Context(), cfg, figures(std, cfg.JSON))
	}
	cmd.AddCommand(benchSchedulerCommand(std))
	return cmd
}

// figures is where figures are printed: for people on the screen.
func figures(std Stdio, forPrograms bool) io.Writer {
	if forPrograms {
		return std.Out
	}
	return std.screen()
}

func historyFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "history", "", "`FILE` to which the figures are appended, one JSON object a line, with "+
		"the time, the program and the machine")
}

func benchSchedulerCommand(std Stdio) *cobra.Command {
	cfg := bench.SchedulingConfig{Scale: 1}
	names := bench.SchedulingWorkloads()
	var profile string
	cmd := &cobra.Command{
		Use: "scheduler [WORKLOAD...]",
		Short: "Measure the scheduler against an API server in this process, without kubelets: " + strings.Join(
			names, ", "),
		ValidArgs: names,
		Args:      cobra.OnlyValidArgs,
		Example: "  keelson bench scheduler                             # all workloads, which takes long\n" +
			"  keelson bench scheduler plain spread-hard --scale 0.1",
	}
	cmd.Flags().BoolVar(&cfg.JSON, "json", false, "one JSON object a workload")
	historyFlag(cmd, &cfg.History)
	cmd.Flags().Float64Var(&cfg.Scale, "scale", cfg.Scale, "`FACTOR` for the numbers of nodes and pods")
	cmd.Flags().StringVar(&profile, "cpuprofile", "", "`FILE` for a profile of the processor time of measured parts")
	cmd.RunE = func(command *cobra.Command, args []string) (err error) {
		if cfg.Scale <= 0 || cfg.Scale > 10 {
			return fmt.Errorf("--scale %v: from more than 0 to 10", cfg.Scale)
		}
		cfg.Workloads = args
		if profile != "" {
			f, err := os.Create(profile)
			if err != nil {
				return fmt.Errorf("profile: %w", err)
			}
			defer func() { err = errors.Join(err, f.Close()) }()
			cfg.Profile = f
		}
		return bench.RunScheduling(command.Context(), cfg, figures(std, cfg.JSON))
	}
	return cmd
}
