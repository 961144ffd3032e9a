// SPDX-License-Identifier: Apache-2.0

// Package shares hands out the places of something that tenants share, such as image pulls, so that no tenant can take
// them all for long. The kubelet uses it for pulls and runtime/image for downloads; the tenant is a pod's namespace.
//
// A tenant that has no place gets one at once: it waits for its own work only. Further places are common and limited.
// So there are at most as many places as the common ones and one for each other tenant, and never more than the limit
// of all.
package shares

import (
	"context"
	"slices"
	"sync"
)

// Shares hands out places. Use New.
type Shares struct {
	common int // places that one tenant may have alone
	limit  int // of all places

	mu      sync.Mutex
	held    map[string]int // places by tenant; no entry for none
	total   int
	waiting []*waiter // in order of arrival
}

type waiter struct {
	tenant string
	got    chan struct{} // closed when the place is given
}

// New returns Shares with common places, of which there is at least one, and up to limit in all.
func New(common, limit int) *Shares {
	common = max(common, 1)
	return &Shares{common: common, limit: max(limit, common), held: map[string]int{}}
}

// Enter waits for a place until ctx is done; leave gives it back. After an error the tenant has no place.
func (s *Shares) Enter(ctx context.Context, tenant string) (leave func(), err error) {
	s.mu.Lock()
	if s.freeLocked(tenant) && !s.queuedLocked(tenant) {
		s.giveLocked(tenant)
		s.mu.Unlock()
		return s.leaver(tenant), nil
	}
	w := &waiter{tenant: tenant, got: make(chan struct{})}
	s.waiting = append(s.waiting, w)
	s.mu.Unlock()
	select {
	case <-w.got:
		return s.leaver(tenant), nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.Index(s.waiting, w)
	if at < 0 { // given at the same time
		s.takeLocked(tenant)
		return nil, context.Cause(ctx)
	}
	s.waiting = slices.Delete(s.waiting, at, at+1)
	return nil, context.Cause(ctx)
}

// freeLocked reports whether a tenant may have one more place.
func (s *Shares) freeLocked(tenant string) bool {
	if s.held[tenant] == 0 {
		return s.total < s.limit
	}
	return s.total < s.common
}

// queuedLocked reports whether an earlier call of the tenant waits.
func (s *Shares) queuedLocked(tenant string) bool {
	return slices.ContainsFunc(s.waiting, func(w *waiter) bool { return w.tenant == tenant })
}

func (s *Shares) giveLocked(tenant string) {
	s.held[tenant]++
	s.total++
}

// takeLocked takes a place back and gives places to those that wait: to tenants with the fewest places first, then in
// order of arrival.
func (s *Shares) takeLocked(tenant string) {
	s.total--
	if s.held[tenant]--; s.held[tenant] == 0 {
		delete(s.held, tenant)
	}
	for {
		next := -1
		for i, w := range s.waiting {
			if s.freeLocked(w.tenant) && (next < 0 || s.held[w.tenant] < s.held[s.waiting[next].tenant]) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		w := s.waiting[next]
		s.waiting = slices.Delete(s.waiting, next, next+1)
		s.giveLocked(w.tenant)
		close(w.got)
	}
}

// leaver returns the function that gives a place back; further calls do nothing.
func (s *Shares) leaver(tenant string) func() {
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.takeLocked(tenant)
	})
}
