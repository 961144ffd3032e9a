// SPDX-License-Identifier: Apache-2.0

// Package servicealloc gives services their IP families, cluster IPs and node
// ports. The server asks it in the middle of every write of a service, before
// validation, and tells it of every service, IPAddress and ServiceCIDR there is. That an address is taken is
// said by an IPAddress object, which is created before the service is stored:
// of several servers on one store only one can create it. What is taken is also
// kept in memory, so that a free address is found without reading. Node ports
// are kept there alone by a server that has its store for itself; servers that
// share one keep a record of them there, which each changes only as long as no
// other has (portrecord.go).
//
// Invariants:
//  1. An address or port belongs to at most one service (by UID).
//  2. What Begin took is kept or given back by settle, which is called once; what an update no longer wants is given back only when
//     the update has been stored.
//  3. Whatever was interrupted between the two writes is put right by Run: a service's address without IPAddress gets one, an
//     IPAddress without service goes (repair.go); likewise with ports and their record (portrepair.go).
//  4. What cannot be put right (two services with one port, one outside the range) is told once, by an event on the service (problems.go).
package servicealloc

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/service"

	"keelson/lib/keyed"
)

// ErrTaken says that somebody else has an address.
var ErrTaken = errors.New("provided IP is already allocated")

// Claims are the IPAddress objects. Its methods are called without a lock held.
type Claims interface {
	// Claim creates the IPAddress of ip for the service. That it exists for the same service is no error; for another: ErrTaken.
	Claim(ctx context.Context, ip netip.Addr, service types.NamespacedName) error
	// Release deletes the IPAddress of ip if it is one of ours for the service. That there is none is no error.
	Release(ctx context.Context, ip netip.Addr, service types.NamespacedName) error
}

// holder has an address or a port.
type holder struct {
	uid     types.UID
	service types.NamespacedName
	stored  bool // false between Begin and settle
}

// Allocator knows which addresses and ports are taken. Safe for concurrent use.
type Allocator struct {
	own    []netip.Prefix // of the server itself, the range called "kubernetes": one of each family that services can have
	ports  PortRange
	claims Claims
	record Record // nil: no other server gives ports
	report Report // never nil
	loop   *keyed.Loop[work]
	log    *slog.Logger // set by Run

	mu       sync.Mutex
	services map[types.UID]*corev1.Service // as last told; shared, never modified
	ranges   map[string]addressRange       // by the name of the ServiceCIDR
	ips      map[netip.Addr]holder
	claimed  map[netip.Addr]claim
	taken    map[int32][]holder // node ports; of several services that have one, who came first
	// released are addresses whose service has been seen to go.
	released map[netip.Addr]bool
	recorded recorded
	problems problems
}

// New returns an allocator of the addresses in own, and of those in the ranges it is told of, and of node ports. The first range is of
// the family that services have by default; its first address is given only to who asks for it (the service kubernetes). record is nil
// for a server that has its store for itself.
func New(own []netip.Prefix, ports PortRange, claims Claims, record Record, report Report) (*Allocator, error) {
	if err := CheckRanges(own); err != nil {
		return nil, err
	}
	a := &Allocator{
		own: slices.Clone(own), ports: ports, claims: claims, record: record, report: report,
		services: map[types.UID]*corev1.Service{},
		ranges:   map[string]addressRange{}, ips: map[netip.Addr]holder{}, claimed: map[netip.Addr]claim{}, taken: map[int32][]holder{},
		released: map[netip.Addr]bool{},
		recorded: recorded{loose: map[int32]time.Time{}}, problems: newProblems(),
	}
	a.loop = keyed.New(keyed.Config[work]{Do: a.work, Compare: work.compare, Pause: retryTime, Failed: a.failed})
	for i := range a.own {
		a.own[i] = a.own[i].Masked()
	}
	a.ranges[ownRange] = addressRange{prefixes: a.own, ready: true}
	return a, nil
}

// families are those of the cluster, the default one first.
func (a *Allocator) families() []corev1.IPFamily {
	out := make([]corev1.IPFamily, len(a.own))
	for i, p := range a.own {
		out[i] = familyOf(p.Addr())
	}
	return out
}

// SetService tells of a service that is stored.
func (a *Allocator) SetService(obj runtime.Object) {
	s, ok := obj.(*corev1.Service)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	ips, ports := wants(s)
	if was := a.services[s.UID]; was != nil { // what another server has taken from it
		oldIPs, oldPorts := wants(was)
		a.droppedLocked(s.UID, without(oldIPs, ips), without(oldPorts, ports))
	}
	a.services[s.UID] = s
	for _, ip := range ips {
		h, taken := a.ips[ip]
		if !taken || h.uid == s.UID {
			h = holder{uid: s.UID, service: keyOf(s), stored: true}
			a.ips[ip] = h
		}
		if c, ok := a.claimed[ip]; !ok || c.service != h.service {
			a.lookLocked(ip, settleTime)
		}
	}
	for _, port := range ports {
		a.holdPortLocked(port, holder{uid: s.UID, service: keyOf(s), stored: true})
		if !a.recorded.bits.has(port) {
			a.lookAtPortsLocked(settleTime)
		}
	}
	if len(ips)+len(ports) > 0 {
		a.recheckLocked(s.UID)
	}
}

// RemoveService tells of a service that is gone.
func (a *Allocator) RemoveService(obj runtime.Object) {
	s, ok := obj.(*corev1.Service)
	if !ok {
		return
	}
	ips, ports := wants(s)
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.services, s.UID)
	a.problems.forget(s.UID)
	for _, ip := range ips {
		if a.ips[ip].uid == s.UID {
			a.released[ip] = true
			a.lookLocked(ip, 0)
		}
	}
	a.freeLocked(s.UID, ips, ports)
}

// droppedLocked takes from a service what it has no more, unless a request that is under way has just taken it again.
func (a *Allocator) droppedLocked(uid types.UID, ips []netip.Addr, ports []int32) {
	ips = slices.DeleteFunc(ips, func(ip netip.Addr) bool { return a.ips[ip].uid != uid || !a.ips[ip].stored })
	for _, ip := range ips {
		a.released[ip] = true
		a.lookLocked(ip, 0)
	}
	ports = slices.DeleteFunc(ports, func(port int32) bool {
		return slices.ContainsFunc(a.taken[port], func(h holder) bool { return h.uid == uid && !h.stored })
	})
	a.freeLocked(uid, ips, ports)
}

func (a *Allocator) freeLocked(uid types.UID, ips []netip.Addr, ports []int32) {
	for _, ip := range ips {
		if a.ips[ip].uid == uid {
			delete(a.ips, ip)
		}
	}
	for _, port := range ports {
		a.freePortLocked(port, uid)
	}
}

func keyOf(s *corev1.Service) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
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
		if p.NodePort != 0 && !slices.Contains(ports, p.NodePort) {
			ports = append(ports, p.NodePort)
		}
	}
	if port := s.Spec.HealthCheckNodePort; port != 0 && !slices.Contains(ports, port) {
		ports = append(ports, port)
	}
	return ips, ports
}

func hasIP(s *corev1.Service) bool {
	return s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.ClusterIP != corev1.ClusterIPNone
}

// Begin settles the families, addresses and node ports of s, which the caller owns, before s is validated: it fills in what s has not
// named, and takes what it has. old is the service before, or nil. The caller must call settle with whether s was stored. A dry run
// takes nothing, and is told the numbers that Kubernetes tells it. Errors leave nothing taken.
func (a *Allocator) Begin(ctx context.Context, s, old *corev1.Service, dry bool) (settle func(stored bool), err error) {
	service.Complete(s, old)
	if errs := service.SettleFamilies(s, old, a.families()); len(errs) > 0 {
		return nil, invalid(s, errs)
	}
	t := &taking{a: a, uid: s.UID, service: keyOf(s), dry: dry}
	if old != nil {
		t.uid = old.UID
	}
	err = t.addresses(ctx, s, old)
	if err == nil {
		err = t.nodePorts(ctx, s, old)
	}
	ctx = context.WithoutCancel(ctx) // what was taken is given back whatever becomes of the request
	if err != nil {
		t.giveBack(ctx)
		return nil, err
	}
	return func(stored bool) {
		if !stored || dry {
			t.giveBack(ctx)
			return
		}
		t.keep()
		if old == nil {
			return
		}
		oldIPs, oldPorts := wants(old)
		newIPs, newPorts := wants(s) // as it was stored
		a.giveBack(ctx, t, without(oldIPs, newIPs), without(oldPorts, newPorts))
	}, nil
}

// Ended gives back what a service had that is gone.
func (a *Allocator) Ended(ctx context.Context, s *corev1.Service) {
	ips, ports := wants(s)
	a.giveBack(context.WithoutCancel(ctx), &taking{uid: s.UID, service: keyOf(s)}, ips, ports)
}

func (a *Allocator) giveBack(ctx context.Context, t *taking, ips []netip.Addr, ports []int32) {
	a.mu.Lock()
	a.freeLocked(t.uid, ips, ports)
	a.mu.Unlock()
	if len(ips)+len(ports) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTime) // whoever waits for the answer waits for this
	defer cancel()
	a.release(ctx, ips, t.service)
	a.unrecord(ctx, ports)
}

func invalid(s *corev1.Service, errs field.ErrorList) error {
	return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), s.Name, errs)
}

func without[T comparable](list, gone []T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(x T) bool { return slices.Contains(gone, x) })
}

// familyOf is the family of an address; that a service asks only for families the cluster has, validation has seen to.
func familyOf(ip netip.Addr) corev1.IPFamily {
	if ip.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}
