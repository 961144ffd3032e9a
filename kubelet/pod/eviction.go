// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"sync"

	"keelson/kubelet/pod/decide"
)

// eviction is the end that the kubelet has decided for a pod: pressure on the node, or preemption. Any goroutine may
// begin it and wait for it; the worker ends it. The zero value is a pod that was not evicted.
type eviction struct {
	mu   sync.Mutex
	end  *decide.End   // nil: it was not evicted
	over chan struct{} // closed when nothing of the pod runs and its volumes are gone
	left bool          // over is closed
}

// begin evicts the pod and returns the channel that is closed at the end; nil: it was evicted before.
func (e *eviction) begin(end decide.End) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.end != nil {
		return nil
	}
	e.end = &end
	e.over = make(chan struct{})
	return e.over
}

// verdict returns the end of an evicted pod; nil: it was not evicted.
func (e *eviction) verdict() *decide.End {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.end
}

// complete notifies those who wait that nothing of the pod is left. It may be called again, and for any pod.
func (e *eviction) complete() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.end != nil && !e.left {
		e.left = true
		close(e.over)
	}
}

// leaving returns the channel of an eviction under way; nil: there is none.
func (e *eviction) leaving() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.left {
		return nil
	}
	return e.over
}

// hasLeft reports whether the pod was evicted and nothing of it is left.
func (e *eviction) hasLeft() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.left
}
