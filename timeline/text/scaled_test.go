// SPDX-License-Identifier: Apache-2.0

package text

import (
	"net/http"
	"testing"

	"keelson/event"
)

// TestScaledPod: the story of a pod that scaling made begins at the scaling, not at its Deployment's creation, long
// before.
func TestScaledPod(t *testing.T) {
	deploy := event.Subject{
		Resource:  "deployments",
		Namespace: "default",
		Name:      "web",
		UID:       "d",
	}
	set := event.Subject{
		Resource:  "replicasets",
		Namespace: "default",
		Name:      "web-1",
		UID:       "r",
	}
	one := event.Subject{
		Resource:  "pods",
		Namespace: "default",
		Name:      "web-1-a",
		UID:       "p1",
	}
	two := event.Subject{
		Resource:  "pods",
		Namespace: "default",
		Name:      "web-1-b",
		UID:       "p2",
	}
	req := func(from int, s event.Subject, verb, owner string, code int) event.Event {
		return event.Event{
			Step:      event.StepRequest,
			Component: "apiserver",
			At:        at(from),
			Took:      us(100),
			Subject:   s,
			Detail: &event.Request{
				Verb:     verb,
				Resource: s.Resource,
				User:     "u",
				Code:     code,
				OwnerUID: owner,
			},
		}
	}
	pass := func(from int, s event.Subject, creates ...string) event.Event {
		return event.Event{
			Step:      event.StepReconcile,
			Component: "controllers",
			At:        at(from),
			Took:      us(500),
			Subject:   s,
			Detail:    &event.Reconcile{Controller: s.Resource, EventSeen: at(from - 50), Creates: creates},
		}
	}
	const later = 60_000_000
	it, err := listening([]event.Event{
		req(0, deploy, http.MethodPost, "", 201), pass(1000, deploy, "web-1"),
		req(1100, set, http.MethodPost, "d", 201), pass(2000, set, "web-1-a"),
		req(2100, one, http.MethodPost, "r", 201),
		req(later, deploy, http.MethodPatch, "", 200), pass(later+1000, deploy),
		req(later+1100, set, http.MethodPut, "d", 200), pass(later+2000, set, "web-1-b"),
		req(later+2100, two, http.MethodPost, "r", 201),
	}).Story("default", two.Name)
	if err != nil || !it.Start.Equal(at(later)) {
		t.Errorf("got start %v, %v, want the scaling at %v", it.Start, err, at(later))
	}
}
