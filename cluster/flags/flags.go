// SPDX-License-Identifier: Apache-2.0

// Package flags makes the flags of a command of the rows of data by which the rooms export their options, and groups
// them as in the help of Kubernetes' programs. It alone, next to the command line, knows the library of flags. It has
// no flag of its own.
package flags

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"keelson/lib/option"
)

const annotation = "keelson/group"

// Add adds a flag for each row. It sets what the rows set to their usual values.
func Add(fl *pflag.FlagSet, rows []option.Row) {
	for _, row := range rows {
		add(fl, row)
		if row.Switch {
			fl.Lookup(row.Name).NoOptDefVal = "true"
		}
		if row.Group != "" {
			_ = fl.SetAnnotation(row.Name, annotation, []string{row.Group}) // it fails for an unknown flag only
		}
	}
}

func add(fl *pflag.FlagSet, row option.Row) {
	switch to := row.To.(type) {
	case nil:
		fl.Var(discarded{}, row.Name, row.Help)
	case option.Value:
		fl.Var(to, row.Name, row.Help)
	case *string:
		fl.StringVar(to, row.Name, usual[string](row), row.Help)
	case *bool:
		fl.BoolVar(to, row.Name, usual[bool](row), row.Help)
	case *int:
		fl.IntVar(to, row.Name, usual[int](row), row.Help)
	case *int64:
		fl.Int64Var(to, row.Name, usual[int64](row), row.Help)
	case *float64:
		fl.Float64Var(to, row.Name, usual[float64](row), row.Help)
	case *time.Duration:
		fl.DurationVar(to, row.Name, usual[time.Duration](row), row.Help)
	case *[]string:
		if row.Each {
			fl.StringArrayVar(to, row.Name, usual[[]string](row), row.Help)
			return
		}
		fl.StringSliceVar(to, row.Name, usual[[]string](row), row.Help)
	case *[]int32:
		fl.Int32SliceVar(to, row.Name, usual[[]int32](row), row.Help)
	case *map[string]string:
		fl.StringToStringVar(to, row.Name, usual[map[string]string](row), row.Help)
	default:
		panic(fmt.Sprintf("option %s sets a %T, of which there are no flags", row.Name, to))
	}
}

// usual is the row's usual value; option.New gives it the type of what the row sets.
func usual[T any](row option.Row) T {
	value, _ := row.Usual.(T)
	return value
}

// discarded is the value of an option without effect.
type discarded struct{}

// String formats the value.
func (discarded) String() string { return "" }

// Set discards the value.
func (discarded) Set(string) error { return nil }

// Type names the value in the usage text.
func (discarded) Type() string { return "string" }

// Values returns the values of all visible flags, when it is called.
func Values(fl *pflag.FlagSet) func() map[string]string {
	return func() map[string]string {
		out := map[string]string{}
		fl.VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				out[f.Name] = f.Value.String()
			}
		})
		return out
	}
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
