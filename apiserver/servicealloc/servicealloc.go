// SPDX-License-Identifier: Apache-2.0

// Package servicealloc gives services their cluster IPs and node ports. The
// server asks it in the middle of every write of a service and tells it of
// every service there is; what is taken is kept in memory alone and rebuilt
// from the services at each start. It stores nothing.
//
// Invariants:
//  1. An address or port belongs to at most one service (by UID).
//  2. What Allocate took is kept or given back by settle, which is called once; what an update no longer wants is given back only when
//     the update has been stored.
package servicealloc

import (
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The node ports, as Kubernetes' default.
const (
	firstPort = 30000
	lastPort  = 32767
	// staticPorts and at most staticIPs numbers at the low end are picked by hand first, and by Allocate last (KEP-3070, KEP-3668).
	staticPorts = 86
	staticIPs   = 256
)

// Allocator knows which addresses and ports are taken. Safe for concurrent use.
type Allocator struct {
	cidr  netip.Prefix
	first uint64 // offset of the first address that may be given, and of the one behind the last
	end   uint64

	mu    sync.Mutex
	ips   map[netip.Addr]types.UID
	ports map[int32]types.UID
}

// New returns an allocator of the addresses in cidr. The first address is given only to who asks for it (the service kubernetes).
func New(cidr string) (*Allocator, error) {
	p, err := netip.ParsePrefix(cidr)
	if err != nil {
		return nil, fmt.Errorf("service cidr: %w", err)
	}
	p = p.Masked()
	bits := p.Addr().BitLen() - p.Bits()
	if bits < 3 {
		return nil, fmt.Errorf("service cidr %s: too small", cidr)
	}
	a := &Allocator{cidr: p, first: 1, ips: map[netip.Addr]types.UID{}, ports: map[int32]types.UID{}}
	a.end = uint64(1) << min(bits, 20)
	if p.Addr().Is4() && bits <= 20 {
		a.end-- // the broadcast address
	}
	return a, nil
}

// Set tells of a service that is stored.
func (a *Allocator) Set(obj runtime.Object) {
	s, ok := obj.(*corev1.Service)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	ips, ports := wants(s)
	for _, ip := range ips {
		if _, taken := a.ips[ip]; !taken {
			a.ips[ip] = s.UID
		}
	}
	for _, port := range ports {
		if _, taken := a.ports[port]; !taken {
			a.ports[port] = s.UID
		}
	}
}

// Remove tells of a service that is gone.
func (a *Allocator) Remove(obj runtime.Object) {
	s, ok := obj.(*corev1.Service)
	if !ok {
		return
	}
	ips, ports := wants(s)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.freeLocked(s.UID, ips, ports)
}

func (a *Allocator) freeLocked(uid types.UID, ips []netip.Addr, ports []int32) {
	for _, ip := range ips {
		if a.ips[ip] == uid {
			delete(a.ips, ip)
		}
	}
	for _, port := range ports {
		if a.ports[port] == uid {
			delete(a.ports, port)
		}
	}
}

// wants lists what a service has.
func wants(s *corev1.Service) ([]netip.Addr, []int32) {
	var ips []netip.Addr
	if hasIP(s) {
		for _, text := range s.Spec.ClusterIPs {
			if ip, err := netip.ParseAddr(text); err == nil {
				ips = append(ips, ip)
			}
		}
	}
	var ports []int32
	for _, p := range s.Spec.Ports {
		if p.NodePort != 0 {
			ports = append(ports, p.NodePort)
		}
	}
	if s.Spec.HealthCheckNodePort != 0 {
		ports = append(ports, s.Spec.HealthCheckNodePort)
	}
	return ips, ports
}

func hasIP(s *corev1.Service) bool {
	return s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.ClusterIP != corev1.ClusterIPNone
}

func hasPorts(s *corev1.Service) bool {
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeLoadBalancer:
		return s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts
	}
	return false
}

// Allocate fills in what s, which the caller owns, has not named, and takes what it has. old is the service before, or nil. The
// caller must call settle with whether s was stored. Errors are Status errors (422) and leave nothing taken.
func (a *Allocator) Allocate(s, old *corev1.Service) (settle func(stored bool), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := taking{a: a, uid: s.UID}
	errs := append(t.addresses(s), t.nodePorts(s)...)
	if len(errs) > 0 {
		a.freeLocked(t.uid, t.ips, t.ports)
		return nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), s.Name, errs)
	}
	var oldIPs []netip.Addr
	var oldPorts []int32
	if old != nil {
		oldIPs, oldPorts = wants(old)
	}
	newIPs, newPorts := wants(s)
	return func(stored bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if !stored {
			a.freeLocked(t.uid, t.ips, t.ports)
			return
		}
		a.freeLocked(t.uid, without(oldIPs, newIPs), without(oldPorts, newPorts))
	}, nil
}

func without[T comparable](list, gone []T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(x T) bool { return slices.Contains(gone, x) })
}

// taking is one allocation; it remembers what it took. a.mu is held.
type taking struct {
	a     *Allocator
	uid   types.UID
	ips   []netip.Addr
	ports []int32
}

func (t *taking) addresses(s *corev1.Service) field.ErrorList {
	if !hasIP(s) {
		return nil
	}
	path := field.NewPath("spec", "clusterIPs")
	for _, text := range s.Spec.ClusterIPs {
		ip, err := netip.ParseAddr(text)
		if err == nil {
			err = t.takeIP(ip)
		}
		if err != nil {
			return field.ErrorList{field.Invalid(path, s.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %s: %v", text, err))}
		}
	}
	if len(s.Spec.ClusterIPs) > 0 {
		return nil
	}
	ip, err := t.freeIP()
	if err != nil {
		return field.ErrorList{field.InternalError(path, fmt.Errorf("failed to allocate a serviceIP: %w", err))}
	}
	s.Spec.ClusterIP, s.Spec.ClusterIPs = ip.String(), []string{ip.String()}
	return nil
}

func (t *taking) takeIP(ip netip.Addr) error {
	if !t.a.cidr.Contains(ip) {
		return fmt.Errorf("the provided IP (%v) is not in the valid range. The range of valid IPs is %s", ip, t.a.cidr)
	}
	switch owner, taken := t.a.ips[ip]; {
	case taken && owner == t.uid:
		return nil
	case taken:
		return errors.New("provided IP is already allocated")
	}
	t.a.ips[ip] = t.uid
	t.ips = append(t.ips, ip)
	return nil
}

// freeIP takes an address from the upper part of the range, then from the part meant for those picked by hand.
func (t *taking) freeIP() (netip.Addr, error) {
	a := t.a
	size := a.end - a.first
	static := min(max(16, size/16), staticIPs)
	if size <= 16 {
		static = 0
	}
	start := a.first + 1 + static // the very first is for the service kubernetes
	for _, r := range [][2]uint64{{start, a.end}, {a.first + 1, start}} {
		if r[0] >= r[1] {
			continue
		}
		n := r[1] - r[0]
		from := rand.Uint64N(n) //nolint:gosec // guards nothing
		for i := range n {
			ip := a.at(r[0] + (from+i)%n)
			if _, taken := a.ips[ip]; !taken {
				return ip, t.takeIP(ip)
			}
		}
	}
	return netip.Addr{}, errors.New("range is full")
}

// at is the address at an offset in the range.
func (a *Allocator) at(offset uint64) netip.Addr {
	b := a.cidr.Addr().AsSlice()
	sum := new(big.Int).Add(new(big.Int).SetBytes(b), new(big.Int).SetUint64(offset))
	ip, _ := netip.AddrFromSlice(sum.FillBytes(b))
	return ip
}

func (t *taking) nodePorts(s *corev1.Service) field.ErrorList {
	var errs field.ErrorList
	shared := map[int32]int32{} // a service's port of two protocols has one node port
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if p.NodePort == 0 && hasPorts(s) {
			p.NodePort = shared[p.Port]
		}
		path := field.NewPath("spec", "ports").Index(i).Child("nodePort")
		switch {
		case p.NodePort != 0:
			if err := t.takePort(p.NodePort); err != nil {
				errs = append(errs, field.Invalid(path, p.NodePort, err.Error()))
			}
		case hasPorts(s):
			port, err := t.freePort()
			if err != nil {
				errs = append(errs, field.InternalError(path, fmt.Errorf("failed to allocate a nodePort: %w", err)))
				continue
			}
			p.NodePort = port
		}
		shared[p.Port] = p.NodePort
	}
	return append(errs, t.healthPort(s)...)
}

// healthPort is for load balancers that ask each node whether it has an endpoint.
func (t *taking) healthPort(s *corev1.Service) field.ErrorList {
	path := field.NewPath("spec", "healthCheckNodePort")
	needed := s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	switch port := s.Spec.HealthCheckNodePort; {
	case port != 0:
		if err := t.takePort(port); err != nil {
			return field.ErrorList{field.Invalid(path, port, "failed to allocate requested HealthCheck NodePort: "+err.Error())}
		}
	case needed:
		free, err := t.freePort()
		if err != nil {
			return field.ErrorList{field.InternalError(path, err)}
		}
		s.Spec.HealthCheckNodePort = free
	}
	return nil
}

func (t *taking) takePort(port int32) error {
	if port < firstPort || port > lastPort {
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %d-%d", firstPort, lastPort)
	}
	switch owner, taken := t.a.ports[port]; {
	case taken && owner == t.uid:
		return nil
	case taken:
		return errors.New("provided port is already allocated")
	}
	t.a.ports[port] = t.uid
	t.ports = append(t.ports, port)
	return nil
}

func (t *taking) freePort() (int32, error) {
	const start = firstPort + staticPorts
	for _, r := range [][2]int32{{start, lastPort + 1}, {firstPort, start}} {
		n := r[1] - r[0]
		from := rand.Int32N(n) //nolint:gosec // guards nothing
		for i := range n {
			port := r[0] + (from+i)%n
			if _, taken := t.a.ports[port]; !taken {
				return port, t.takePort(port)
			}
		}
	}
	return 0, errors.New("range is full")
}
