// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strconv"

	"github.com/spf13/pflag"
)

// verbosity is whether more is logged. It understands the levels of Kubernetes' components, of which 4 and more are for finding faults.
type verbosity bool

// String is the flag's value.
func (v *verbosity) String() string { return strconv.FormatBool(bool(*v)) }

// Set reads the flag's value.
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

// Type is how the usage text names it.
func (*verbosity) Type() string { return "bool" }

// verboseFlags are --verbose, and -v and --v with a level.
func verboseFlags(fl *pflag.FlagSet, verbose *bool) {
	fl.VarP((*verbosity)(verbose), "verbose", "v", "log more")
	fl.Lookup("verbose").NoOptDefVal = "true"
	fl.Var((*verbosity)(verbose), "v", "`LEVEL` of Kubernetes' components: from 4 on as --verbose")
	fl.Lookup("v").DefValue = "0"
}
