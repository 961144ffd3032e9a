// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestMissingArgument: who leaves an argument out reads what it is.
func TestMissingArgument(t *testing.T) {
	for args, want := range map[string]string{
		"why":                  "why needs an object: TYPE/NAME, such as pod/my-pod, or TYPE NAME",
		"timeline":             "timeline needs an object: TYPE/NAME, such as pod/my-pod, or TYPE NAME",
		"backup":               "backup needs one FILE",
		"node start":           "node start needs one NAME",
		"image import":         "image import needs one FILE",
		"join --token a.b":     "join needs one https://SERVER:PORT",
		"token delete a1 b2 c": "token delete needs one TOKEN, not 3: a1 b2 c",
		"logs dns store":       "logs takes one COMPONENT at most, not 2: dns store",
		"status now":           "status takes no arguments, not now; `keelson status --help` lists its flags",
		"token create a b": "token create takes no arguments, not a b; `keelson token create --help` lists its " +
			"flags",
		"trace pod/a svc/b:80": "trace takes its ends by flags: `keelson trace --from pod/a --to svc/b:80`",
		"trace pod/a":          "trace takes its ends by flags: `keelson trace --from pod/a --to DESTINATION`",
		"envtest nosuch":       "unknown command \"nosuch\" for \"keelson envtest\": `keelson envtest --help` lists them",
		"completion tcsh":      "unknown command \"tcsh\" for \"keelson completion\": did you mean bash or zsh or fish?",
		"image imprt f.tar":    "unknown command \"imprt\" for \"keelson image\": did you mean import?",
		"token revoke a":       "unknown command \"revoke\" for \"keelson token\": `keelson token --help` lists them",
		"node drain a": "unknown command \"drain\" for \"keelson node\": kubectl has it, `keelson kubectl " +
			"drain`",
	} {
		var out, errs bytes.Buffer
		code := Run(t.Context(), append([]string{"keelson"}, strings.Fields(args)...), Stdio{
			In:  strings.NewReader(""),
			Out: &out,
			Err: &errs,
		})
		if code != 1 || errs.String() != "keelson: "+want+"\n" {
			t.Errorf("%s: got %d, %q, want 1, %q", args, code, errs.String(), want)
		}
	}
}

// TestArgumentsAreNamed walks the tree: no command counts arguments only, or takes one for a command.
func TestArgumentsAreNamed(t *testing.T) {
	checked := 0
	words := []string{"arg(s)", "unknown command"}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if cmd.Runnable() && !cmd.DisableFlagParsing {
			for _, args := range [][]string{nil, {"a", "b"}} {
				err := cmd.ValidateArgs(args)
				if err == nil || isGroup(cmd) || cmd.Parent().Name() == "completion" {
					continue
				}
				checked++
				if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(err.Error(), w) }) {
					t.Errorf("%s %v: %v", cmd.CommandPath(), args, err)
				}
			}
		}
	}
	walk(rootCommand(Stdio{}))
	if checked < 30 {
		t.Errorf("%d mistakes found, want 30 at least", checked)
	}
}
