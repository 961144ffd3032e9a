// SPDX-License-Identifier: Apache-2.0

package servicealloc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The node ports, as Kubernetes' default.
const (
	firstPort = 30000
	lastPort  = 32767
	// staticPorts numbers at the low end are picked by hand first, and by Allocate last (KEP-3668).
	staticPorts = 86
)

var (
	errFull = errors.New("range is full")
)

// claimTries bounds how often a free address is looked for that another server has taken in the meantime.
const claimTries = 32

// taking is one allocation; it remembers what it took.
type taking struct {
	a       *Allocator
	uid     types.UID
	service types.NamespacedName
	dry     bool
	ips     []netip.Addr
	ports   []int32
}

// giveBack undoes everything.
func (t *taking) giveBack(ctx context.Context) {
	t.a.mu.Lock()
	t.a.freeLocked(t.uid, t.ips, t.ports)
	t.a.mu.Unlock()
	if !t.dry {
		t.a.release(ctx, t.ips, t.service)
	}
	t.ips, t.ports = nil, nil
}

// keep notes that the service has been stored.
func (t *taking) keep() {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	for _, ip := range t.ips {
		if h, ok := t.a.ips[ip]; ok && h.uid == t.uid {
			h.stored = true
			t.a.ips[ip] = h
		}
	}
}

func (t *taking) addresses(ctx context.Context, s *corev1.Service) field.ErrorList {
	if !hasIP(s) {
		return nil
	}
	path := field.NewPath("spec", "clusterIPs")
	for _, text := range s.Spec.ClusterIPs {
		ip, err := netip.ParseAddr(text)
		if err == nil {
			err = t.takeIP(ctx, ip)
		}
		if err != nil {
			return field.ErrorList{field.Invalid(path, s.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %s: %v", text, err))}
		}
	}
	families := s.Spec.IPFamilies
	if len(families) == 0 {
		families = []corev1.IPFamily{familyOf(t.a.own.Addr())}
	}
	for i := len(s.Spec.ClusterIPs); i < len(families); i++ {
		ip, err := t.freeIP(ctx, families[i])
		if err != nil {
			return field.ErrorList{field.InternalError(path, fmt.Errorf("failed to allocate a serviceIP: %w", err))}
		}
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, ip.String())
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	}
	return nil
}

// takeIP takes an address that was asked for.
func (t *taking) takeIP(ctx context.Context, ip netip.Addr) error {
	a := t.a
	a.mu.Lock()
	h, taken := a.ips[ip]
	c, claimed := a.claimed[ip]
	var err error
	switch {
	case taken && h.uid == t.uid:
		a.mu.Unlock()
		return nil
	case !a.givesLocked(ip):
		err = fmt.Errorf("the provided IP (%s) is not in the valid range. The range of valid IPs is %s", ip, a.own)
	case taken, claimed && (!c.ours || c.service != t.service):
		err = ErrTaken
	default:
		t.markLocked(ip)
	}
	a.mu.Unlock()
	if err != nil {
		return err
	}
	return t.claim(ctx, ip)
}

func (t *taking) markLocked(ip netip.Addr) {
	t.a.ips[ip] = holder{uid: t.uid, service: t.service}
	t.ips = append(t.ips, ip)
}

// claim makes a marked address the service's for all servers, or unmarks it.
func (t *taking) claim(ctx context.Context, ip netip.Addr) error {
	if t.dry {
		return nil
	}
	err := t.a.claims.Claim(ctx, ip, t.service)
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	if err == nil {
		t.a.claimedLocked(ip, t.service)
		return nil
	}
	t.a.freeLocked(t.uid, []netip.Addr{ip}, nil)
	t.ips = without(t.ips, []netip.Addr{ip})
	if errors.Is(err, ErrTaken) {
		return ErrTaken
	}
	return err
}

// freeIP takes an address of the family that nobody has.
func (t *taking) freeIP(ctx context.Context, family corev1.IPFamily) (netip.Addr, error) {
	lost := map[netip.Addr]bool{} // to other servers, before their IPAddress has reached us
	for range claimTries {
		t.a.mu.Lock()
		ip, ok := t.a.freeIPLocked(family, lost)
		if ok {
			t.markLocked(ip)
		}
		t.a.mu.Unlock()
		if !ok {
			return netip.Addr{}, errFull
		}
		err := t.claim(ctx, ip)
		if err == nil || !errors.Is(err, ErrTaken) {
			return ip, err
		}
		lost[ip] = true
	}
	return netip.Addr{}, errFull
}

func (t *taking) nodePorts(s *corev1.Service) field.ErrorList {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
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
			if err := t.takePortLocked(p.NodePort); err != nil {
				errs = append(errs, field.Invalid(path, p.NodePort, err.Error()))
			}
		case hasPorts(s):
			port, err := t.freePortLocked()
			if err != nil {
				errs = append(errs, field.InternalError(path, fmt.Errorf("failed to allocate a nodePort: %w", err)))
				continue
			}
			p.NodePort = port
		}
		shared[p.Port] = p.NodePort
	}
	return append(errs, t.healthPortLocked(s)...)
}

// healthPortLocked is for load balancers that ask each node whether it has an endpoint.
func (t *taking) healthPortLocked(s *corev1.Service) field.ErrorList {
	path := field.NewPath("spec", "healthCheckNodePort")
	needed := s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	switch port := s.Spec.HealthCheckNodePort; {
	case port != 0:
		if err := t.takePortLocked(port); err != nil {
			return field.ErrorList{field.Invalid(path, port, "failed to allocate requested HealthCheck NodePort: "+err.Error())}
		}
	case needed:
		free, err := t.freePortLocked()
		if err != nil {
			return field.ErrorList{field.InternalError(path, err)}
		}
		s.Spec.HealthCheckNodePort = free
	}
	return nil
}

func (t *taking) takePortLocked(port int32) error {
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

func (t *taking) freePortLocked() (int32, error) {
	const start = firstPort + staticPorts
	for _, r := range [][2]int32{{start, lastPort + 1}, {firstPort, start}} {
		n := r[1] - r[0]
		from := rand.Int32N(n) //nolint:gosec // guards nothing
		for i := range n {
			port := r[0] + (from+i)%n
			if _, taken := t.a.ports[port]; !taken {
				return port, t.takePortLocked(port)
			}
		}
	}
	return 0, errFull
}
