// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// The back-off before the next pod on a node where pods fail: doubled from the first to the last.
const (
	firstPause = time.Second
	lastPause  = 15 * time.Minute
)

// pauses stores, per node of a set, when a failed pod was deleted. A change of the set resets it.
type pauses struct {
	mu  sync.Mutex
	all map[pauseKey]pause
}

type pauseKey struct {
	set        types.UID
	generation int64
	node       string
}

type pause struct {
	since time.Time
	lasts time.Duration
}

// left is the remaining back-off.
func (p *pauses) left(k pauseKey, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, ok := p.all[k]
	if !ok {
		return 0
	}
	return max(0, x.since.Add(x.lasts).Sub(now))
}

// begin starts a back-off, twice as long as the last one if that is recent.
func (p *pauses) begin(k pauseKey, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for old, x := range p.all { // remove expired entries
		if now.Sub(x.since) > 2*lastPause {
			delete(p.all, old)
		}
	}
	x, ok := p.all[k]
	lasts := firstPause
	if ok {
		lasts = min(2*x.lasts, lastPause)
	}
	if p.all == nil {
		p.all = map[pauseKey]pause{}
	}
	p.all[k] = pause{now, lasts}
}
