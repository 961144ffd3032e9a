// SPDX-License-Identifier: Apache-2.0

// Package gates knows Kubernetes' feature gates: which of them can be turned here,
// what the others are for good, and why (table.go). What is turned travels as a value from the flag
// to what is built with it; no one asks a global.
package gates

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"keelson/lib/words"
)

// On are the gates that can be turned; the zero value is the default.
type On struct {
	// GenericWorkload: the kinds Workload and PodGroup, spec.schedulingGroup of pods, and the scheduling of groups.
	GenericWorkload bool
	// AllowServiceExternalIPs: the service proxy serves spec.externalIPs. In the release it is on; here it is off
	// (docs/decisions/0161).
	AllowServiceExternalIPs bool
}

// turnable are the names of the gates of On with their fields.
var turnable = []struct {
	name  string
	field func(*On) *bool
}{
	{"AllowServiceExternalIPs", func(o *On) *bool { return &o.AllowServiceExternalIPs }},
	{"GenericWorkload", func(o *On) *bool { return &o.GenericWorkload }},
}

// All is with everything on that can be.
func All() On {
	var o On
	for _, g := range turnable {
		*g.field(&o) = true
	}
	return o
}

// String is the flag's value.
func (o *On) String() string {
	var out []string
	for _, g := range turnable {
		if o != nil && *g.field(o) {
			out = append(out, g.name+"=true")
		}
	}
	return strings.Join(out, ",")
}

// Type is how the usage text names the flag's value.
func (*On) Type() string { return "NAME=BOOL,..." }

// Set takes "NAME=true,NAME=false"; what was said before of other gates stays.
func (o *On) Set(text string) error {
	next := *o
	errs := []error(nil)
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			errs = append(errs, next.one(part))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	*o = next
	return nil
}

func (o *On) one(part string) error {
	name, value, ok := strings.Cut(part, "=")
	if name = strings.TrimSpace(name); !ok {
		return fmt.Errorf("feature gate %q: write %s=true or %s=false", name, name, name)
	}
	on, err := strconv.ParseBool(strings.TrimSpace(value))
	if err != nil {
		return fmt.Errorf("feature gate %s: %q is neither true nor false", name, value)
	}
	for _, g := range turnable {
		if name == g.name {
			*g.field(o) = on
			return nil
		}
	}
	row := find(name)
	switch {
	case row == nil:
	case row.absent && on:
		return fmt.Errorf("feature gate %s: what it switches is not here: %s", name, row.why)
	case row.absent || on == row.on:
		return nil
	case row.on:
		return fmt.Errorf("feature gate %s: it is on and cannot be turned off here", name)
	default:
		return fmt.Errorf("feature gate %s: it is off and cannot be turned on here", name)
	}
	all := names()
	for _, g := range turnable {
		all = append(all, g.name)
	}
	if near := words.Nearest(name, slices.Values(all)); near != "" {
		return fmt.Errorf("there is no feature gate %s: did you mean %s?", name, near)
	}
	return fmt.Errorf("there is no feature gate %s in this release", name)
}
