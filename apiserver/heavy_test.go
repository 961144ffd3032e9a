// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"testing"

	"keelson/apiserver/pipeline"
)

// TestSeatsOfHeavyPaths: a request that reads much on its own costs as much as the largest list, and others by their
// bodies.
func TestSeatsOfHeavyPaths(t *testing.T) {
	cost := seatCost{heavy: []string{"/keelson/v1/ask/whatif"}}
	for path, want := range map[string]int{"/keelson/v1/ask/whatif": maxSeats, "/keelson/v1/ask/trace/a/b": 1} {
		rq := &pipeline.Request{Info: pipeline.Info{Verb: "post", Path: path}}
		if got := cost.of(rq); got != want {
			t.Errorf("%s takes %d seats, want %d", path, got, want)
		}
	}
}
