// SPDX-License-Identifier: Apache-2.0

package options

import (
	"strconv"

	"github.com/spf13/pflag"
)

// negated is a flag with the opposite value of its option, so that the option's zero value is the default.
type negated bool

// AddNegated adds a flag that is true when the option is false.
func AddNegated(fl *pflag.FlagSet, option *bool, name, usage string) {
	fl.Var((*negated)(option), name, usage)
	fl.Lookup(name).NoOptDefVal = "true"
}

// String formats the flag's value.
func (n *negated) String() string { return strconv.FormatBool(!bool(*n)) }

// Set parses the flag's value.
func (n *negated) Set(text string) error {
	v, err := strconv.ParseBool(text)
	*n = negated(!v)
	return err
}

// Type names the value in the usage text.
func (*negated) Type() string { return "bool" }
