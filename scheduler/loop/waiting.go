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

// errPreempted ends the binding cycle of a pod whose place another pod gets. It goes back to the queue.
var errPreempted = errors.New("preempted")

// waitingBindings are the pods whose binding cycle waits on a goroutine of its own, for Permit or for a slow PreBind
// (volumes, devices). The zero value is empty.
type waitingBindings struct {
	cycles sync.WaitGroup

	mu   sync.Mutex
	pods map[types.UID]*waitingBinding
}

// waitingBinding is the binding cycle of a pod. It is preempted or it binds the pod, whichever comes first.
type waitingBinding struct {
	cancel             context.CancelCauseFunc
	preempted, binding bool
}

// run starts the binding cycle of a pod, with a context that cancel and preempt end.
func (w *waitingBindings) run(ctx context.Context, pod types.UID, cycle func(context.Context)) {
	ctx, cancel := context.WithCancelCause(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods == nil {
		w.pods = map[types.UID]*waitingBinding{}
	}
	w.pods[pod] = &waitingBinding{cancel: cancel}
	w.cycles.Go(func() {
		cycle(ctx)
		cancel(nil)
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.pods, pod)
	})
}

// preempt ends the binding cycle of a pod, unless it binds the pod already; false: the pod must be deleted.
func (w *waitingBindings) preempt(pod types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	waiting := w.pods[pod]
	if waiting == nil || waiting.binding {
		return false
	}
	waiting.preempted = true
	waiting.cancel(errPreempted)
	return true
}

// begin is called before a pod is bound. An error means that it was preempted and must not be bound.
func (w *waitingBindings) begin(pod types.UID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	waiting := w.pods[pod]
	switch {
	case waiting == nil: // nothing made it wait
		return nil
	case waiting.preempted:
		return errPreempted
	}
	waiting.binding = true
	return nil
}

// cancel ends a pod's wait, if it waits.
func (w *waitingBindings) cancel(pod types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if waiting := w.pods[pod]; waiting != nil {
		waiting.cancel(errDeleted)
	}
}
