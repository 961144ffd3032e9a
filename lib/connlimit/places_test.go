// SPDX-License-Identifier: Apache-2.0

package connlimit_test

import (
	"testing"

	"keelson/lib/connlimit"
)

// TestStreamShares: one tenant, and all tenants together, leave streams for the others and for administrators.
func TestStreamShares(t *testing.T) {
	places := connlimit.NewPlaces(20)
	admin := connlimit.Owner{Name: "admin", Rank: connlimit.Admin}
	fill := func(o connlimit.Owner) (n int) {
		for places.Enter(o) {
			n++
		}
		return n
	}
	names := []string{"a", "b", "c", "d"}
	for i, want := range []int{7, 5, 3, 0} {
		if got := fill(connlimit.Owner{Name: names[i]}); got != want {
			t.Errorf("tenant %s got %d streams, want %d", names[i], got, want)
		}
	}
	if got := fill(admin); got != 5 {
		t.Errorf("the administrator got %d streams while tenants are full, want 5", got)
	}
	for range 5 {
		places.Leave(admin)
		places.Leave(connlimit.Owner{Name: "a"})
	}
	if got := fill(connlimit.Owner{Name: "d"}); got != 5 {
		t.Errorf("tenant d got %d streams after a left, want 5", got)
	}
	if got := places.Taken(); got != 15 {
		t.Errorf("%d streams are counted, want 15", got)
	}
}
