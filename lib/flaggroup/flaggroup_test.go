// SPDX-License-Identifier: Apache-2.0

package flaggroup

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestSplit(t *testing.T) {
	fl := pflag.NewFlagSet("", pflag.ContinueOnError)
	fl.Bool("everyday", false, "")
	Add(fl, "Outer", func(fl *pflag.FlagSet) {
		fl.Bool("o", false, "")
		Add(fl, "Inner", func(fl *pflag.FlagSet) { fl.Bool("i", false, "") })
	})
	Add(fl, "Another", func(fl *pflag.FlagSet) {
		fl.Bool("a", false, "")
		fl.Bool("hidden", false, "")
	})
	_ = fl.MarkHidden("hidden")
	var got []string
	for _, g := range Split(fl, []string{"Outer"}) {
		got = append(got, g.Name+":")
		g.Flags.VisitAll(func(f *pflag.Flag) { got = append(got, f.Name) })
	}
	if s := strings.Join(got, " "); s != ": everyday Outer: o Another: a Inner: i" {
		t.Errorf("got %s", s)
	}
}
