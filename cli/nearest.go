// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"keelson/lib/words"
)

// mistypedFlag adds a similar flag to the error of an unknown one.
func mistypedFlag(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	name := unknown.GetSpecifiedName()
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		name, _, _ = strings.Cut(short, "=") // a single dash: -port
	}
	if near := nearestFlag(c.Flags(), name); near != "" {
		return fmt.Errorf("%w: did you mean --%s?", err, near)
	}
	return fmt.Errorf("%w: `%s --help` lists them", err, c.CommandPath())
}

// nearestFlag is the most similar flag; "": none is similar.
func nearestFlag(fl *pflag.FlagSet, name string) string {
	best, least := "", 1+(len(name)+1)/3
	plain := strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(name))
	fl.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || len(f.Name) == 1 {
			return
		}
		d := words.Distance(plain, strings.ReplaceAll(f.Name, "-", "")) // camelCase counts as similar
		if d < least {
			best, least = f.Name, d
		}
	})
	return best
}
