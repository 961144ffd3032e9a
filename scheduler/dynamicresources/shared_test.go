// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"errors"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"keelson/scheduler/framework"
	"keelson/scheduler/schedtest"
	"keelson/scheduler/state"
)

// compares has a server refuse a write that is based on a version without the last reservation.
func (w *world) compares() {
	w.client.PrependReactor("update", "resourceclaims", func(a k8stesting.Action) (bool, runtime.Object, error) {
		update, _ := a.(k8stesting.UpdateAction)
		next, _ := update.GetObject().(*resourcev1.ResourceClaim)
		stored, err := w.client.Tracker().Get(Claims, "default", next.Name)
		if err != nil {
			return true, nil, err
		}
		now, _ := stored.(*resourcev1.ResourceClaim)
		adds := 0
		if a.GetSubresource() == "status" {
			adds = 1
		}
		if len(next.Status.ReservedFor) != len(now.Status.ReservedFor)+adds {
			return true, nil, apierrors.NewConflict(Claims.GroupResource(), next.Name, errors.New("another version"))
		}
		return false, nil, nil
	})
}

// placed is what is kept of an attempt, which the next one overwrites.
type placed struct {
	cycle *framework.CycleState
	pod   *state.PodInfo
}

// placeGroup reserves the claim c for two pods of a group.
func (w *world) placeGroup(t *testing.T) (all []placed) {
	t.Helper()
	for _, name := range []string{"one", "two"} {
		pod := schedtest.Pod(name, using("c"), schedtest.InGroup("g"))
		w.store(pod)
		attempt := w.place(pod)
		if attempt.Chosen == nil {
			t.Fatalf("pod %s: %s", name, attempt.Message())
		}
		all = append(all, placed{attempt.Cycle, attempt.Pod})
	}
	return all
}

// TestGroupSharesAClaim: the pods of a group get a claim that is not allocated yet together, whichever of them writes
// it; a pod of no group waits.
func TestGroupSharesAClaim(t *testing.T) {
	world := newWorld(t, slice("a", device("d")), claim("c", exactly("r", "gpu", 1)))
	world.Add(schedtest.Node("a"))
	world.compares()
	placed := world.placeGroup(t)
	for _, options := range [][]schedtest.PodOption{{using("c")}, {using("c"), schedtest.InGroup("other")}} {
		if a := world.Try(schedtest.Pod("stranger", options...)); a.Chosen != nil {
			t.Error("a pod of another group shares the claim before it is allocated")
		}
	}
	for _, i := range []int{1, 0} { // the second writes first
		if err := world.plugin.PreBind(t.Context(), placed[i].cycle, placed[i].pod, "a"); err != nil {
			t.Fatalf("pod %s: %v", placed[i].pod.Key, err)
		}
	}
	s := world.stored("c").Status
	if s.Allocation == nil || len(s.ReservedFor) != 2 || len(world.known.view().taken.AllocatedDevices) != 1 {
		t.Errorf("written: %+v", s)
	}
	if world.known.isInFlight("claim-c") {
		t.Error("the claim is written, and counts as in flight")
	}
}

// TestGroupGivesAClaimBack: a claim that pods of a group share is free when the last of them gives it back.
func TestGroupGivesAClaimBack(t *testing.T) {
	world := newWorld(t, slice("a", device("d")), claim("c", exactly("r", "gpu", 1)))
	world.Add(schedtest.Node("a"))
	placed := world.placeGroup(t)
	for left, a := range []int{1, 0} {
		world.plugin.Unreserve(t.Context(), placed[left].cycle, placed[left].pod, "a")
		if n := len(world.known.view().taken.AllocatedDevices); n != a {
			t.Errorf("after %d pods have given it back, %d devices are taken, want %d", left+1, n, a)
		}
	}
	if a := world.Try(schedtest.Pod("next", using("c"))); a.Chosen == nil {
		t.Errorf("the next pod: %s", a.Message())
	}
}
