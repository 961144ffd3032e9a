// SPDX-License-Identifier: Apache-2.0

package options

import (
	"strconv"

	"github.com/spf13/pflag"
)

// negated is a flag that is true where the option is false, so that the zero value of the option is the default.
type negated bool

// AddNegated adds a flag that is true where the option is false.
func AddNegated(fl *pflag.FlagSet, option *bool, name, usage string) {
	fl.Var((*negated)(option), name, usage)
	fl.Lookup(name).NoOptDefVal = "true"
}

// String is the flag's value.
func (n *negated) String() string { return strconv.FormatBool(!bool(*n)) }

// Set reads the flag's value.
func (n *negated) Set(text string) error {
	v, err := strconv.ParseBool(text)
	*n = negated(!v)
	return err
}

// Type is how the usage text names it.
func (*negated) Type() string { return "bool" }
