// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"testing"

	"keelson/lib/connlimit"
)

// TestStreamShares: one tenant, and all tenants together, leave streams for the others and for administrators.
func TestStreamShares(t *testing.T) {
	streamShares := newStreamShares(20)
	admin := connlimit.Owner{Name: "admin", Rank: connlimit.Admin}
	fill := func(o connlimit.Owner) (n int) {
		for streamShares.enter(o) {
			n++
		}
		return n
	}
	names := []string{"a", "b", "c", "d"}
	for i, want := range []int{5, 5, 5, 0} {
		if got := fill(connlimit.Owner{Name: names[i]}); got != want {
			t.Errorf("tenant %s got %d streams, want %d", names[i], got, want)
		}
	}
	if got := fill(admin); got != 5 {
		t.Errorf("the administrator got %d streams beside full tenants, want 5", got)
	}
	for range 5 {
		streamShares.leave(admin)
		streamShares.leave(connlimit.Owner{Name: "a"})
	}
	if got := fill(connlimit.Owner{Name: "d"}); got != 5 {
		t.Errorf("tenant d got %d streams after a left, want 5", got)
	}
	if len(streamShares.byTenant) != 3 || streamShares.running != 15 {
		t.Errorf("%d tenants, %d streams are counted, want 3 and 15", len(streamShares.byTenant), streamShares.running)
	}
}
