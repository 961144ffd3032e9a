// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"keelson/lib/words"
)

// mistypedFlag adds a similar flag to the error of an unknown one, and says what a flag with a wrong value takes.
func mistypedFlag(cmd *cobra.Command, err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return fmt.Errorf("--%s: %w", invalid.GetFlag().Name, wrongValue(invalid))
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	name := unknown.GetSpecifiedName()
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		name, _, _ = strings.Cut(short, "=") // a single dash: -port
	}
	if near := nearestFlag(cmd.Flags(), name); near != "" {
		return fmt.Errorf("%w: did you mean --%s?", err, near)
	}
	return fmt.Errorf("%w: `%s --help` lists them", err, cmd.CommandPath())
}

// wrongValue is the error of a flag's value, in the user's terms: pflag's are those of the parsers of numbers and
// times. Flags with a parser of their own keep its error.
func wrongValue(err *pflag.InvalidValueError) error {
	value := err.GetValue()
	switch kind := err.GetFlag().Value.Type(); kind {
	case "duration":
		if _, wrong := strconv.ParseFloat(value, 64); wrong == nil {
			return fmt.Errorf("%s has no unit: write %sm for minutes or %ss for seconds", value, value, value)
		}
		return fmt.Errorf("%q is not a duration, such as 5m or 5s", value)
	case "bool", "int", "int32", "int64", "uint16", "uint32", "float64":
		if errors.Is(err, strconv.ErrRange) {
			return fmt.Errorf("%s is too large or too small", value)
		}
		return fmt.Errorf("%q is not %s", value, wanted(kind))
	}
	return fmt.Errorf("%q is not what it takes: %w", value, err.Unwrap())
}

// nearestFlag is the most similar flag; "": none is similar.
func nearestFlag(fl *pflag.FlagSet, name string) string {
	best := ""
	least := 1 + (len(name)+1)/3
	plain := strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(name))
	fl.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || len(f.Name) == 1 {
			return
		}
		d := words.Distance(plain, strings.ReplaceAll(f.Name, "-", "")) // camelCase counts as similar
		if d < least {
			best = f.Name
			least = d
		}
	})
	return best
}
