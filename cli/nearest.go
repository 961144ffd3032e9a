// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// mistypedFlag adds to the error of a flag that a command does not have which one was meant.
func mistypedFlag(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	name := unknown.GetSpecifiedName()
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		name, _, _ = strings.Cut(short, "=") // -port
	}
	if near := nearestFlag(c.Flags(), name); near != "" {
		return fmt.Errorf("%w: did you mean --%s?", err, near)
	}
	return fmt.Errorf("%w: `%s --help` lists them", err, c.CommandPath())
}

// nearestFlag is the flag that was meant; "": none is near.
func nearestFlag(fl *pflag.FlagSet, name string) string {
	best, least := "", 1+(len(name)+1)/3
	plain := strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(name))
	fl.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || len(f.Name) == 1 {
			return
		}
		d := distance(plain, strings.ReplaceAll(f.Name, "-", "")) // camelCase is near, too
		if d < least {
			best, least = f.Name, d
		}
	})
	return best
}

// distance is how many letters must be put in, taken out, changed, or swapped with the next one to make b of a.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
