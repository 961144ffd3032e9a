// SPDX-License-Identifier: Apache-2.0

package connlimit

import "sync"

// Places counts what runs for long by owner: streams, watches, ways through a tunnel. While half of the tenants' places
// are free, a tenant may have as many as it needs; then a quarter at most. Administrators, nodes and components are
// outside of that. Use NewPlaces or NewTenantPlaces.
type Places struct {
	all     int // of everybody together; 0: no limit
	tenants int // of all tenants together
	each    int // of one tenant

	mu       sync.Mutex
	running  int
	ofTenant int
	byTenant map[string]int
}

// NewPlaces shares places that everybody takes. Tenants have three quarters, so that an administrator's exec always
// finds one.
func NewPlaces(all int) *Places {
	return &Places{
		all:      all,
		tenants:  max(all*3/4, 1),
		each:     max(all/4, 1),
		byTenant: map[string]int{},
	}
}

// NewTenantPlaces shares places that only tenants are limited to.
func NewTenantPlaces(tenants int) *Places {
	return &Places{tenants: tenants, each: max(tenants/4, 1), byTenant: map[string]int{}}
}

// Enter reports whether owner may have one more place. The caller must then call Leave once.
func (p *Places) Enter(owner Owner) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all > 0 && p.running >= p.all {
		return false
	}
	if owner.Rank == Tenant {
		if p.ofTenant >= p.tenants || p.ofTenant >= p.tenants/2 && p.byTenant[owner.Name] >= p.each {
			return false
		}
		p.ofTenant++
		p.byTenant[owner.Name]++
	}
	p.running++
	return true
}

// Leave gives a place back.
func (p *Places) Leave(owner Owner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	if owner.Rank != Tenant {
		return
	}
	p.ofTenant--
	if p.byTenant[owner.Name]--; p.byTenant[owner.Name] == 0 {
		delete(p.byTenant, owner.Name)
	}
}

// Taken returns the number of places that are in use.
func (p *Places) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running
}
