// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"net/netip"
	"sync"
)

// Addresses of fake nodes: node i has address i of 100.64.0.0/10, its pods have subnet i (a /24) of 10.128.0.0/9.
// Nothing listens there.
const (
	maxNodes    = 1 << 15
	podsPerNode = 254
)

func nodeIP(i int) string { return fmt.Sprintf("100.%d.%d.%d", 64+i>>16, i>>8&255, i&255) }

func podCIDR(i int) string { return fmt.Sprintf("10.%d.%d.0/24", 128+i>>8, i&255) }

func podIP(i, k int) string { return fmt.Sprintf("10.%d.%d.%d", 128+i>>8, i&255, k) }

// addresses allocates pod IPs.
type addresses struct {
	mu   sync.Mutex
	used map[int]*[podsPerNode + 1]bool
	last map[int]int
}

func newAddresses() *addresses {
	return &addresses{used: map[int]*[podsPerNode + 1]bool{}, last: map[int]int{}}
}

func (a *addresses) nodeLocked(i int) *[podsPerNode + 1]bool {
	u := a.used[i]
	if u == nil {
		u = new([podsPerNode + 1]bool)
		a.used[i] = u
	}
	return u
}

// take returns a free address of node i. A node with more pods than addresses uses one twice.
func (a *addresses) take(i int) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.nodeLocked(i)
	k := a.last[i]
	for range podsPerNode {
		k = k%podsPerNode + 1
		if !u[k] {
			break
		}
	}
	u[k] = true
	a.last[i] = k
	return podIP(i, k)
}

func (a *addresses) keep(i int, ip string)    { a.set(i, ip, true) }
func (a *addresses) release(i int, ip string) { a.set(i, ip, false) }

func (a *addresses) set(i int, ip string, used bool) {
	addr, err := netip.ParseAddr(ip)
	if err != nil || !addr.Is4() || podIP(i, int(addr.As4()[3])) != ip {
		return // empty, or not an address of a fake node
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if k := int(addr.As4()[3]); k >= 1 && k <= podsPerNode {
		a.nodeLocked(i)[k] = used
	}
}
