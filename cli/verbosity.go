// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strconv"

	"github.com/spf13/pflag"
)

// verbosity is the flag for verbose logs. It accepts Kubernetes' log levels; 4 and more mean verbose.
type verbosity bool

// String formats the flag's value.
func (v *verbosity) String() string { return strconv.FormatBool(bool(*v)) }

// Set parses the flag's value.
func (v *verbosity) Set(text string) error {
	if level, err := strconv.Atoi(text); err == nil {
		*v = level >= 4
		return nil
	}
	yes, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("%q is neither true nor false nor a level", text)
	}
	*v = verbosity(yes)
	return nil
}

// Type names the value in the usage text.
func (*verbosity) Type() string { return "bool" }

// verboseFlags adds --verbose, and -v and --v with a level.
func verboseFlags(fl *pflag.FlagSet, verbose *bool) {
	fl.VarP((*verbosity)(verbose), "verbose", "v", "log more")
	fl.Lookup("verbose").NoOptDefVal = "true"
	fl.Var((*verbosity)(verbose), "v", "`LEVEL` of Kubernetes' components: from 4 on as --verbose")
	fl.Lookup("v").DefValue = "0"
}
