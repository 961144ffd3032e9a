// SPDX-License-Identifier: Apache-2.0

package text

import (
	"strings"
	"testing"

	"keelson/event"
)

// TestStatusInWords: what a write of a pod's status changed is one sentence for each fact, the reasons to wait last.
func TestStatusInWords(t *testing.T) {
	waiting := func(names ...string) []event.Waiting {
		var out []event.Waiting
		for _, name := range names {
			out = append(out, event.Waiting{Container: name, Reason: "ErrImagePull"})
		}
		return out
	}
	for want, in := range map[string]event.StatusChange{
		"phase Pending -> Running":                         {From: "Pending", To: "Running"},
		"phase Running -> Failed (DeadlineExceeded)":       {From: "Running", To: "Failed", Reason: "DeadlineExceeded"},
		"phase Running -> Failed (Evicted: low on memory)": {From: "Running", To: "Failed", Reason: "Evicted", Message: "low on memory"},
		"is Ready":              {Ready: "True"},
		"is not Ready any more": {Ready: "False"},
		"is not Ready any more: ContainersNotReady":                {Ready: "False", NotReady: "ContainersNotReady"},
		"nominated to n, which is prepared for it; is to leave: P": {Nominated: "n", Disruption: "P"},
		"a waits: ErrImagePull; not scheduled: U; z waits: ErrImagePull": {
			Unscheduled: "U", Waiting: waiting("a", "z"),
		},
		"a waits: ErrImagePull; b waits: ErrImagePull; c waits: ErrImagePull": {
			Unscheduled: "U", Waiting: waiting("a", "b", "c"),
		},
	} {
		if got := strings.Join(changed(&in), "; "); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
