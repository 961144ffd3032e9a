// SPDX-License-Identifier: Apache-2.0

package servicepods

import (
	"sync"
	"time"

	"keelson/controllers/framework"
)

// maxUnlimitedPass is the longest pass without a pause.
const maxUnlimitedPass = 5 * time.Millisecond

// RateLimit limits the share of time of passes over one Service: when one of a thousand pods becomes ready, the pass
// covers all of them, and a thousand may become ready one after another. The first change is never delayed, only those
// right after a long pass.
type RateLimit struct {
	// Rest is the ratio of the pause to the duration of the pass.
	Rest int

	mu        sync.Mutex
	notBefore map[framework.Key]time.Time
}

// Delay is how long the next pass over the Service must wait.
func (p *RateLimit) Delay(service framework.Key) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := time.Until(p.notBefore[service])
	if left <= 0 {
		delete(p.notBefore, service)
	}
	return max(left, 0)
}

// Record records the duration of a finished pass.
func (p *RateLimit) Record(service framework.Key, d time.Duration) {
	if d < maxUnlimitedPass {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.notBefore == nil {
		p.notBefore = map[framework.Key]time.Time{}
	}
	p.notBefore[service] = time.Now().Add(min(time.Duration(p.Rest)*d, time.Second))
}

// Forget removes a deleted Service.
func (p *RateLimit) Forget(service framework.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.notBefore, service)
}
