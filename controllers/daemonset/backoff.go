// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// The back-off before the next pod on a node where pods fail: doubled from the first to the last.
const (
	initialBackoff = time.Second
	maxBackoff     = 15 * time.Minute
)

// failedPodsBackoff stores, per node of a set, when a failed pod was deleted. A change of the set resets it.
type failedPodsBackoff struct {
	mu  sync.Mutex
	all map[backoffKey]backoffEntry
}

type backoffKey struct {
	set        types.UID
	generation int64
	node       string
}

type backoffEntry struct {
	since    time.Time
	duration time.Duration
}

// remaining is the remaining back-off.
func (p *failedPodsBackoff) remaining(k backoffKey, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, ok := p.all[k]
	if !ok {
		return 0
	}
	return max(0, x.since.Add(x.duration).Sub(now))
}

// start starts a back-off, twice as long as the last one if that is recent.
func (p *failedPodsBackoff) start(k backoffKey, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for old, x := range p.all { // remove expired entries
		if now.Sub(x.since) > 2*maxBackoff {
			delete(p.all, old)
		}
	}
	x, ok := p.all[k]
	lasts := initialBackoff
	if ok {
		lasts = min(2*x.duration, maxBackoff)
	}
	if p.all == nil {
		p.all = map[backoffKey]backoffEntry{}
	}
	p.all[k] = backoffEntry{now, lasts}
}
