// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// errDeleted ends the binding cycle of a pod that is being deleted. It is neither logged nor reported.
var errDeleted = errors.New("the pod is being deleted")

// waitingBindings are the pods whose binding cycle waits on a goroutine of its own, for Permit or for a slow PreBind
// (volumes, devices). The zero value is empty.
type waitingBindings struct {
	mu      sync.Mutex
	cancels map[types.UID]context.CancelCauseFunc
}

// add returns a context that cancel cancels, and a function to call when the binding cycle has ended.
func (w *waitingBindings) add(ctx context.Context, pod types.UID) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cancels == nil {
		w.cancels = map[types.UID]context.CancelCauseFunc{}
	}
	w.cancels[pod] = cancel
	return ctx, func() {
		cancel(nil)
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.cancels, pod)
	}
}

// cancel ends a pod's wait, if it waits.
func (w *waitingBindings) cancel(pod types.UID) {
	w.mu.Lock()
	cancel := w.cancels[pod]
	w.mu.Unlock()
	if cancel != nil {
		cancel(errDeleted)
	}
}
