// SPDX-License-Identifier: Apache-2.0

package servicepods

import (
	"sync"
	"time"

	"keelson/controllers/framework"
)

// shortPass is the longest pass without a pause.
const shortPass = 5 * time.Millisecond

// Pace limits the share of time of passes over one Service: when one of a thousand pods becomes ready, the pass covers all of them, and a
// thousand may become ready one after another. The first change is never delayed, only those right after a long pass.
type Pace struct {
	// Rest is the ratio of the pause to the duration of the pass.
	Rest int

	mu    sync.Mutex
	until map[framework.Key]time.Time
}

// Left is how long the next pass over the Service must wait.
func (p *Pace) Left(service framework.Key) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := time.Until(p.until[service])
	if left <= 0 {
		delete(p.until, service)
	}
	return max(left, 0)
}

// Took records the duration of a finished pass.
func (p *Pace) Took(service framework.Key, d time.Duration) {
	if d < shortPass {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until == nil {
		p.until = map[framework.Key]time.Time{}
	}
	p.until[service] = time.Now().Add(min(time.Duration(p.Rest)*d, time.Second))
}

// Forget removes a deleted Service.
func (p *Pace) Forget(service framework.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.until, service)
}
