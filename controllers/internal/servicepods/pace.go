// SPDX-License-Identifier: Apache-2.0

package servicepods

import (
	"sync"
	"time"

	"keelson/controllers/framework"
)

// shortPass is what no pause follows.
const shortPass = 5 * time.Millisecond

// Pace bounds the share of time that passes over one service take: a pod of a thousand that becomes ready costs a pass over all, and a
// thousand may become ready one after the other. The first change is never held up, only those that come right behind a long pass.
type Pace struct {
	// Rest is how many times as long as a pass the pause after it is.
	Rest int

	mu    sync.Mutex
	until map[framework.Key]time.Time
}

// Left is how long the next pass over the service has to wait.
func (p *Pace) Left(service framework.Key) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := time.Until(p.until[service])
	if left <= 0 {
		delete(p.until, service)
	}
	return max(left, 0)
}

// Took notes how long a pass took that has just ended.
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

// Forget is for services that are gone.
func (p *Pace) Forget(service framework.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.until, service)
}
