// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"maps"
	"slices"
	"time"

	"keelson/kubelet/pod/decide"
)

// actions are the pod's actions under way, and those that failed last. Only the worker's goroutine uses them: an action
// that ends leaves its result in the inbox.
type actions struct {
	flights map[string]flight        // by Action.Key
	failed  map[string]decide.Failed // those that have not succeeded since
	tries   map[string]int           // how often they failed in a row
}

// flight is an action under way with the function that cancels it.
type flight struct {
	decide.Flight
	cancel context.CancelFunc
}

func newActions() actions {
	return actions{
		flights: map[string]flight{},
		failed:  map[string]decide.Failed{},
		tries:   map[string]int{},
	}
}

// begin records that an action begins. It returns the action's context, which lasts until end.
func (a *actions) begin(ctx context.Context, action decide.Action) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	a.flights[action.Key()] = flight{
		Flight: decide.Flight{Action: action, Began: time.Now()},
		cancel: cancel,
	}
	return ctx
}

// end applies the result of an action.
func (a *actions) end(r result) {
	ended := a.flights[r.key]
	delete(a.flights, r.key)
	if r.apply != nil {
		r.apply() // asks the action's context whether it was cancelled
	}
	ended.cancel()
}

// cancel cancels an action, if it is under way.
func (a *actions) cancel(key string) {
	if f, ok := a.flights[key]; ok {
		f.cancel()
	}
}

// flying reports whether one of the actions of these kinds is under way.
func (a *actions) flying(ops ...decide.Op) bool {
	for _, f := range a.flights {
		if slices.Contains(ops, f.Action.Op) {
			return true
		}
	}
	return false
}

// underWay returns a copy of the actions under way.
func (a *actions) underWay() map[string]decide.Flight {
	out := make(map[string]decide.Flight, len(a.flights))
	for key, f := range a.flights {
		out[key] = f.Flight
	}
	return out
}

// fail records that an action failed. Its back-off grows with each failure.
func (a *actions) fail(key string, least, most time.Duration) {
	n := a.tries[key]
	a.tries[key] = n + 1
	a.failed[key] = decide.Failed{Retry: time.Now().Add(min(least<<min(n, 20), most))}
}

// clear forgets the failures of an action: it succeeded, or their cause is gone.
func (a *actions) clear(key string) {
	delete(a.failed, key)
	delete(a.tries, key)
}

// retry ends the back-off of actions early. It grows on if they fail again.
func (a *actions) retry(which func(key string, f decide.Failed) bool) {
	maps.DeleteFunc(a.failed, which)
}
