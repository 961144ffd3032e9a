// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestEveryCommandHasExamples walks the tree: each command's help shows how it is typed, by a line that names it.
func TestEveryCommandHasExamples(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "kubectl" { // kubectl's own help has its own
			return
		}
		if !strings.Contains(c.Example, c.CommandPath()) {
			t.Errorf("`%s --help` has no example of it:\n%s", c.CommandPath(), c.Example)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(rootCommand(Stdio{Out: io.Discard, Err: io.Discard}))
}

// TestExamplesParse: what the examples say are commands with flags that there are, and as many arguments as they take.
func TestExamplesParse(t *testing.T) {
	var lines []string
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		lines = slices.AppendSeq(lines, strings.SplitSeq(c.Example, "\n"))
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(rootCommand(Stdio{}))
	typed := 0
	for _, line := range lines {
		command, _, _ := strings.Cut(line, " #")
		for part := range strings.SplitSeq(strings.NewReplacer("source <(", "", ")", "").Replace(command), "|") {
			words := strings.Fields(quoted.Replace(part))
			if len(words) == 0 || words[0] != "keelson" {
				continue
			}
			typed++
			root := rootCommand(Stdio{Out: io.Discard, Err: io.Discard})
			c, rest, err := root.Find(words[1:])
			if err == nil && !c.DisableFlagParsing {
				err = c.ParseFlags(rest)
			}
			if err == nil {
				err = c.ValidateArgs(c.Flags().Args())
			}
			if err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
	if typed < 50 {
		t.Errorf("only %d examples were found", typed)
	}
}

// quoted makes one word of what quotes hold together in the examples.
var quoted = strings.NewReplacer(`"for worker-1"`, "for-worker-1", "'", "")
