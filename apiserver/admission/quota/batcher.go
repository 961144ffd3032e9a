// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"errors"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// batcher batches requests that arrive together: the first one serves all that wait, then the next one does.
type batcher struct {
	mu      sync.Mutex
	busy    bool
	waiting []*chargeRequest
}

// do returns when a has been served, by this goroutine or another.
func (l *batcher) do(a *chargeRequest, serve func([]*chargeRequest)) {
	l.mu.Lock()
	l.waiting = append(l.waiting, a)
	wait := l.busy
	l.busy = true
	l.mu.Unlock()
	if wait && !<-a.signal {
		return
	}
	l.mu.Lock()
	batch := l.waiting
	l.waiting = nil
	l.mu.Unlock()
	served := false
	defer func() { // also after a panic: no request may be left waiting
		for _, other := range batch {
			if !served {
				other.err = apierrors.NewInternalError(errors.New("quota evaluation failed"))
			}
			if other != a {
				other.signal <- false
			}
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.waiting) == 0 {
			l.busy = false
			return
		}
		l.waiting[0].signal <- true
	}()
	serve(batch)
	served = true
}
