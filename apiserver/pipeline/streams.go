// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"sync"

	"keelson/lib/connlimit"
)

// streamShares counts the running requests that are proxied to another server, by owner. One tenant has a quarter of
// the places at most and all tenants three quarters, so that an administrator's exec always finds one.
type streamShares struct {
	all     int // places
	tenants int // of all tenants together
	each    int // of one tenant

	mu       sync.Mutex
	running  int
	ofTenant int
	byTenant map[string]int
}

func newStreamShares(all int) *streamShares {
	return &streamShares{
		all:      all,
		tenants:  max(all*3/4, 1),
		each:     max(all/4, 1),
		byTenant: map[string]int{},
	}
}

// enter reports whether one more request of owner may run. The caller must then call leave once.
func (s *streamShares) enter(owner connlimit.Owner) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running >= s.all {
		return false
	}
	if owner.Rank == connlimit.Tenant {
		if s.ofTenant >= s.tenants || s.byTenant[owner.Name] >= s.each {
			return false
		}
		s.ofTenant++
		s.byTenant[owner.Name]++
	}
	s.running++
	return true
}

// leave gives the place back.
func (s *streamShares) leave(o connlimit.Owner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	if o.Rank != connlimit.Tenant {
		return
	}
	s.ofTenant--
	if s.byTenant[o.Name]--; s.byTenant[o.Name] == 0 {
		delete(s.byTenant, o.Name)
	}
}
