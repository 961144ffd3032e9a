// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestMissingArgument: who leaves an argument out reads what it is.
func TestMissingArgument(t *testing.T) {
	for args, want := range map[string]string{
		"why":                  "why needs one TYPE/NAME, such as pod/my-pod",
		"timeline":             "timeline needs one TYPE/NAME, such as pod/my-pod",
		"backup":               "backup needs one FILE",
		"node start":           "node start needs one NAME",
		"image import":         "image import needs one FILE",
		"join --token a.b":     "join needs one https://SERVER:PORT",
		"why pod/a pod/b":      "why needs one TYPE/NAME, such as pod/my-pod, not 2: pod/a pod/b",
		"token delete a1 b2 c": "token delete needs one TOKEN, not 3: a1 b2 c",
	} {
		var out, errs bytes.Buffer
		code := Run(t.Context(), append([]string{"keelson"}, strings.Fields(args)...), Stdio{In: strings.NewReader(""), Out: &out, Err: &errs})
		if code != 1 || errs.String() != "keelson: "+want+"\n" {
			t.Errorf("%s: got %d, %q, want 1, %q", args, code, errs.String(), want)
		}
	}
}

// TestArgumentsAreNamed walks the tree: no command counts arguments only.
func TestArgumentsAreNamed(t *testing.T) {
	checked := 0
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		if c.Runnable() && !c.DisableFlagParsing {
			if err := c.ValidateArgs(nil); err != nil {
				checked++
				if strings.Contains(err.Error(), "arg(s)") {
					t.Errorf("%s: %v", c.CommandPath(), err)
				}
			}
		}
	}
	walk(rootCommand(Stdio{}))
	if checked < 12 {
		t.Errorf("%d commands need an argument, want 12 at least", checked)
	}
}
