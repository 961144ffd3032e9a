// SPDX-License-Identifier: Apache-2.0

package gates

import (
	"slices"
	"testing"
)

func TestSet(t *testing.T) {
	for _, c := range []struct{ text, want, err string }{
		{"GenericWorkload=true", "GenericWorkload=true", ""},
		{"GenericWorkload=true, GenericWorkload=false", "", ""},
		{" GenericWorkload = 1 ,,", "GenericWorkload=true", ""},
		{"OpportunisticBatching=true,GenericWorkload=true", "GenericWorkload=true", ""},
		{"GenericWorkload=true,AllowServiceExternalIPs=true", "AllowServiceExternalIPs=true,GenericWorkload=true", ""},
		{"AllowServiceExternalIPs=false", "", ""},
		{"CompositePodGroup=false", "", ""},
		{"CompositePodGroup=true", "", "feature gate CompositePodGroup: it is off and cannot be turned on here"},
		{
			"DynamicResourceAllocation=false", "",
			"feature gate DynamicResourceAllocation: it is on and cannot be turned off here",
		},
		{
			"NodeSwap=true", "", "feature gate NodeSwap: what it switches is not here: pods get no swap and no " +
				"memory.high",
		},
		{"NodeSwap=false", "", ""},
		{"genericworkloads=true", "", "there is no feature gate genericworkloads: did you mean GenericWorkload?"},
		{"Nonsense=true", "", "there is no feature gate Nonsense in this release"},
		{"GenericWorkload", "", `feature gate "GenericWorkload": write GenericWorkload=true or GenericWorkload=false`},
		{"GenericWorkload=yes", "", `feature gate GenericWorkload: "yes" is neither true nor false`},
		{"GenericWorkload=true,X=y", "", `feature gate X: "y" is neither true nor false`},
	} {
		var o On
		said := ""
		if err := o.Set(c.text); err != nil {
			said = err.Error()
		}
		if o.String() != c.want || said != c.err {
			t.Errorf("%q: got %q, %q; want %q, %q", c.text, o.String(), said, c.want, c.err)
		}
	}
}

// TestTable: a gate is in one row, and the one that can be turned in none; every row says why.
func TestTable(t *testing.T) {
	all := names()
	slices.Sort(all)
	if n := len(slices.Compact(slices.Clone(all))); n != len(all) {
		t.Errorf("%d gates, %d names", len(all), n)
	}
	for _, g := range turnable {
		if slices.Contains(all, g.name) {
			t.Errorf("%s can be turned and cannot", g.name)
		}
	}
	for _, row := range table {
		if row.why == "" || row.absent && !row.on {
			t.Errorf("row %+v", row)
		}
	}
}
