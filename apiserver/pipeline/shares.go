// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"sync"

	"keelson/lib/connlimit"
)

// shares counts long-running requests by owner. While half of the tenants' places are free, a tenant may have as many
// as it needs; then a quarter at most.
// Administrators, nodes and components are outside of that.
type shares struct {
	all     int // of everybody together; 0: no limit
	tenants int // of all tenants together
	each    int // of one tenant

	mu       sync.Mutex
	running  int
	ofTenant int
	byTenant map[string]int
}

// newStreamShares shares requests that are proxied to another server. Tenants have three quarters, so that an
// administrator's exec always finds a place.
func newStreamShares(all int) *shares {
	return &shares{
		all:      all,
		tenants:  max(all*3/4, 1),
		each:     max(all/4, 1),
		byTenant: map[string]int{},
	}
}

// newWatchShares shares the watches of tenants. One takes 8 kB, and a connection has room for a thousand.
func newWatchShares(tenants int) *shares {
	return &shares{tenants: tenants, each: max(tenants/4, 1), byTenant: map[string]int{}}
}

// enter reports whether one more request of owner may run. The caller must then call leave once.
func (s *shares) enter(owner connlimit.Owner) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all > 0 && s.running >= s.all {
		return false
	}
	if owner.Rank == connlimit.Tenant {
		if s.ofTenant >= s.tenants || s.ofTenant >= s.tenants/2 && s.byTenant[owner.Name] >= s.each {
			return false
		}
		s.ofTenant++
		s.byTenant[owner.Name]++
	}
	s.running++
	return true
}

// leave gives the place back.
func (s *shares) leave(o connlimit.Owner) {
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
