// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// errDeleted ends the wait of a pod that is being deleted. It is neither logged nor reported.
var errDeleted = errors.New("the pod is being deleted")

// waiting are the pods whose binding cycle waits on a goroutine of its own, for Permit or for a slow PreBind (volumes, devices). The zero
// value has none.
type waiting struct {
	mu    sync.Mutex
	stops map[types.UID]context.CancelCauseFunc
}

// begin returns a context that stop cancels, and a function to call when the binding cycle has ended.
func (w *waiting) begin(ctx context.Context, pod types.UID) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stops == nil {
		w.stops = map[types.UID]context.CancelCauseFunc{}
	}
	w.stops[pod] = cancel
	return ctx, func() {
		cancel(nil)
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.stops, pod)
	}
}

// stop ends a pod's wait, if it waits.
func (w *waiting) stop(pod types.UID) {
	w.mu.Lock()
	cancel := w.stops[pod]
	w.mu.Unlock()
	if cancel != nil {
		cancel(errDeleted)
	}
}
