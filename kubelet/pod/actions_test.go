// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"
	"testing/synctest"
	"time"

	"keelson/kubelet/pod/decide"
)

// TestActionsBackOff: an early retry does not shorten the next pauses, a success does.
func TestActionsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newActions()
		pause := func() time.Duration {
			a.fail("volumes", time.Second, 3*time.Second)
			return time.Until(a.failed["volumes"].Retry)
		}
		for _, want := range []time.Duration{time.Second, 2 * time.Second, 3 * time.Second} {
			if got := pause(); got != want {
				t.Errorf("pause %v, want %v", got, want)
			}
		}
		a.retry(func(key string, _ decide.Failed) bool { return key == "volumes" })
		if _, ok := a.failed["volumes"]; ok {
			t.Error("the action still waits")
		}
		if got := pause(); got != 3*time.Second {
			t.Errorf("pause %v after an early retry, want 3s", got)
		}
		a.clear("volumes")
		if got := pause(); got != time.Second {
			t.Errorf("pause %v after a success, want 1s", got)
		}
	})
}

// TestActionsUnderWay: the context of an action lasts until its result is applied, and a snapshot does not change.
func TestActionsUnderWay(t *testing.T) {
	a := newActions()
	action := decide.Action{Op: decide.OpStart, Container: "c"}
	ctx := a.begin(t.Context(), action)
	before := a.underWay()
	if len(before) != 1 || !a.flying(decide.OpSandbox, decide.OpStart) || a.flying(decide.OpVolumes) {
		t.Errorf("under way: %v", before)
	}
	applied := false
	a.end(result{key: action.Key(), apply: func() { applied = ctx.Err() == nil }})
	if !applied || ctx.Err() == nil {
		t.Errorf("the result saw a context that had ended, or the context lasts on: %v", ctx.Err())
	}
	if len(before) != 1 || len(a.underWay()) != 0 {
		t.Error("a snapshot has changed, or the action is still under way")
	}
	a.cancel(action.Key()) // it is over: nothing to cancel
	ctx = a.begin(t.Context(), action)
	a.cancel(action.Key())
	if ctx.Err() == nil {
		t.Error("the action was not cancelled")
	}
	a.end(result{key: action.Key()})
}
