// SPDX-License-Identifier: Apache-2.0

package gates

import (
	"slices"
	"strings"
	"testing"
)

// TestStates: each gate has one state, with its stage in Kubernetes v1.37; what is absent is off, and what can be
// turned has the state that was set.
func TestStates(t *testing.T) {
	states := map[string]State{}
	for s := range (On{GenericWorkload: true}).States() {
		if _, twice := states[s.Name]; twice {
			t.Errorf("%s has two states", s.Name)
		}
		states[s.Name] = s
	}
	for _, want := range []State{
		{"ImageVolume", "", true},
		{"ComponentFlagz", "BETA", true},
		{"NodeSwap", "", false}, // absent
		{"AllAlpha", "ALPHA", false},
		{"GenericWorkload", "BETA", true},
		{"AllowServiceExternalIPs", "", false},
	} {
		if got := states[want.Name]; got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	var seen []string
	for _, row := range stages {
		for name := range strings.FieldsSeq(row.names) {
			if _, known := states[name]; !known {
				t.Errorf("%s is %s, and no gate", name, row.stage)
			}
			if slices.Contains(seen, name) {
				t.Errorf("%s has two stages", name)
			}
			seen = append(seen, name)
		}
	}
	// A gate that is off is stable in no release.
	for name, s := range states {
		if row := find(name); s.Stage == "" && row != nil && !row.on {
			t.Errorf("%s is off and stable", name)
		}
	}
}
