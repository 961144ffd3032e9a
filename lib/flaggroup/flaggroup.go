// SPDX-License-Identifier: Apache-2.0

// Package flaggroup groups the flags of a command, as in the help of Kubernetes' programs. Packages that add flags set
// the group; the command line reads it for the help text. It defines no flag.
package flaggroup

import (
	"slices"

	"github.com/spf13/pflag"
)

const annotation = "keelson/group"

// Add calls add, and sets the group of the new flags to name, unless they have one.
func Add(fl *pflag.FlagSet, name string, add func(*pflag.FlagSet)) {
	before := map[string]bool{}
	fl.VisitAll(func(f *pflag.Flag) { before[f.Name] = true })
	add(fl)
	fl.VisitAll(func(f *pflag.Flag) {
		if !before[f.Name] && Of(f) == "" {
			_ = fl.SetAnnotation(f.Name, annotation, []string{name}) // it fails for an unknown flag only
		}
	})
}

// Of returns the group of a flag; "" for common flags without a group.
func Of(f *pflag.Flag) string {
	if of := f.Annotations[annotation]; len(of) > 0 {
		return of[0]
	}
	return ""
}

// Group is a named group of flags.
type Group struct {
	Name  string
	Flags *pflag.FlagSet
}

// Split returns the visible flags of fl by group: first those without a group, then the groups in order, then the
// others sorted by name.
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
