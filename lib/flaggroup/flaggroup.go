// SPDX-License-Identifier: Apache-2.0

// Package flaggroup puts the flags of a command into groups, as Kubernetes' programs show them in their help. Who adds flags names their
// group; the command line asks for the groups when it prints help. It knows no flag.
package flaggroup

import (
	"slices"

	"github.com/spf13/pflag"
)

const annotation = "keelson/group"

// Add has add add flags to fl, which are of the group name unless they name their own.
func Add(fl *pflag.FlagSet, name string, add func(*pflag.FlagSet)) {
	before := map[string]bool{}
	fl.VisitAll(func(f *pflag.Flag) { before[f.Name] = true })
	add(fl)
	fl.VisitAll(func(f *pflag.Flag) {
		if !before[f.Name] && Of(f) == "" {
			_ = fl.SetAnnotation(f.Name, annotation, []string{name}) // it fails only for a flag that is not there
		}
	})
}

// Of is the group of a flag; "": it is of none, one for every day.
func Of(f *pflag.Flag) string {
	if of := f.Annotations[annotation]; len(of) > 0 {
		return of[0]
	}
	return ""
}

// Group is some flags of a set.
type Group struct {
	Name  string
	Flags *pflag.FlagSet
}

// Split divides the visible flags of fl: those of no group first, then the groups in the order of their names in order, and the others by
// their names.
func Split(fl *pflag.FlagSet, order []string) []Group {
	var out []Group
	fl.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		i := slices.IndexFunc(out, func(g Group) bool { return g.Name == Of(f) })
		if i < 0 {
			i = len(out)
			out = append(out, Group{Of(f), pflag.NewFlagSet(Of(f), pflag.ContinueOnError)})
		}
		out[i].Flags.AddFlag(f)
	})
	rank := func(g Group) int {
		if g.Name == "" {
			return -1
		}
		if i := slices.Index(order, g.Name); i >= 0 {
			return i
		}
		return len(order)
	}
	slices.SortStableFunc(out, func(a, b Group) int {
		if x, y := rank(a), rank(b); x != y {
			return x - y
		}
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return out
}
