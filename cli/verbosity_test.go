// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestVerbosity(t *testing.T) {
	for args, want := range map[string]string{
		"":                "false",
		"-v":              "true",
		"--verbose":       "true",
		"-v=2":            "false",
		"--v=2":           "false",
		"--v=4":           "true",
		"-v=10":           "true",
		"--verbose=false": "false",
		"--v=much":        "neither true nor false nor a level",
	} {
		var verbose bool
		fl := pflag.NewFlagSet("", pflag.ContinueOnError)
		verboseFlags(fl, &verbose)
		err := fl.Parse(strings.Fields(args))
		got := (*verbosity)(&verbose).String()
		if err != nil {
			got = err.Error()
		}
		if !strings.HasSuffix(got, want) {
			t.Errorf("%q: %s, want %s", args, got, want)
		}
	}
}
