// SPDX-License-Identifier: Apache-2.0

// Package servicealloc allocates IP families, cluster IPs and node ports of Services. The API server calls it in every
// write of a Service, before validation, and passes it every Service, IPAddress and ServiceCIDR. An allocated cluster
// IP has an IPAddress object, which is created before the Service is stored: of several servers on one store only one
// can create it. Allocations are also kept in memory, to find a free address without reading. A server with a store of
// its own keeps node ports in memory only; servers that share a store use a record there, with optimistic locking
// (rangeregistry.go). The package never writes a Service.
//
// Invariants:
//  1. An address or port belongs to at most one service (by UID).
//  2. What Begin allocated is kept or released by settle, which is called once; what an update no longer needs is
//     released only when the update has been stored.
//  3. Run repairs an interruption between the two writes: a service's address without IPAddress gets one, an
//     IPAddress without service is deleted (repair.go); likewise with ports and their record (portrepair.go).
//  4. What cannot be repaired (two services with one port, one outside the range) is reported once, by an event
//     (problems.go).
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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/service"
	"keelson/api/invalid"
	"keelson/lib/keyed"
)

// ErrAllocated means that another Service has the address.
var ErrAllocated = errors.New("provided IP is already allocated")

// IPAddresses creates and deletes IPAddress objects. Its methods are called without a lock held.
type IPAddresses interface {
	// Create creates the IPAddress of ip for the Service. If it exists for the same Service, that is no error; for
	// another: ErrAllocated.
	Create(ctx context.Context, ip netip.Addr, service types.NamespacedName) error
	// Delete deletes the IPAddress of ip if an API server created it for the Service. If there is none, that is no
	// error.
	Delete(ctx context.Context, ip netip.Addr, service types.NamespacedName) error
}

// holder is the Service that has an address or a port.
type holder struct {
	uid     types.UID
	service types.NamespacedName
	stored  bool // false between Begin and settle
}

// Allocator tracks allocated addresses and ports. It is safe for concurrent use.
type Allocator struct {
	ports           PortRange
	ipAddressClient IPAddresses
	registry        RangeRegistry // nil: no other server allocates ports
	report          Report        // never nil
	loop            *keyed.Loop[workItem]
	log             *slog.Logger // set by Run

	mu          sync.Mutex
	services    map[types.UID]*corev1.Service // as last observed; shared, never modified
	ranges      addressRanges
	ips         map[netip.Addr]holder
	ipAddresses map[netip.Addr]ipAddress
	nodePorts   map[int32][]holder // node ports; if several Services have one, the first comes first
	// released are addresses whose Service was deleted.
	released map[netip.Addr]bool
	observed observedRange
	problems problems
}

// New returns an allocator of the addresses in own and in the ServiceCIDRs passed to it, and of node ports. The first
// range has the default family; its first address is only allocated on request (the Service kubernetes). registry is
// nil for a server with a store of its own.
func New(
	own []netip.Prefix, ports PortRange, ipAddresses IPAddresses, registry RangeRegistry, report Report,
) (*Allocator, error) {
	if err := CheckRanges(own); err != nil {
		return nil, err
	}
	allocator := &Allocator{
		ports:           ports,
		ipAddressClient: ipAddresses,
		registry:        registry,
		report:          report,
		services:        map[types.UID]*corev1.Service{},
		ranges:          newAddressRanges(own),
		ips:             map[netip.Addr]holder{},
		ipAddresses:     map[netip.Addr]ipAddress{},
		nodePorts:       map[int32][]holder{},
		released:        map[netip.Addr]bool{},
		observed:        observedRange{unusedSince: map[int32]time.Time{}},
		problems:        newProblems(),
	}
	allocator.loop = keyed.New(keyed.Config[workItem]{
		Do:      allocator.runTask,
		Compare: workItem.compare,
		Pause:   retryTime,
		Failed:  allocator.logFailure,
	})
	return allocator, nil
}

// SetService adds or updates a stored Service.
func (a *Allocator) SetService(obj runtime.Object) {
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	ips, ports := allocationsOf(svc)
	if was := a.services[svc.UID]; was != nil { // what another server has released
		oldIPs, oldPorts := allocationsOf(was)
		a.releaseRemovedLocked(svc.UID, difference(oldIPs, ips), difference(oldPorts, ports))
	}
	a.services[svc.UID] = svc
	for _, ip := range ips {
		h, taken := a.ips[ip]
		if !taken || h.uid == svc.UID {
			h = holder{uid: svc.UID, service: keyOf(svc), stored: true}
			a.ips[ip] = h
		}
		if c, ok := a.ipAddresses[ip]; !ok || c.service != h.service {
			a.scheduleRepairLocked(ip, settleTime)
		}
	}
	for _, port := range ports {
		a.addPortLocked(port, holder{uid: svc.UID, service: keyOf(svc), stored: true})
		if !a.observed.bits.has(port) {
			a.schedulePortRepairLocked(settleTime)
		}
	}
	if len(ips)+len(ports) > 0 {
		a.recheckLocked(svc.UID)
	}
}

// RemoveService removes a deleted Service.
func (a *Allocator) RemoveService(obj runtime.Object) {
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return
	}
	ips, ports := allocationsOf(svc)
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.services, svc.UID)
	a.problems.forget(svc.UID)
	for _, ip := range ips {
		if a.ips[ip].uid == svc.UID {
			a.released[ip] = true
			a.scheduleRepairLocked(ip, 0)
		}
	}
	a.removeLocked(svc.UID, ips, ports)
}

// releaseRemovedLocked releases what a Service does not have any more, unless a running request has just allocated it
// again.
func (a *Allocator) releaseRemovedLocked(uid types.UID, ips []netip.Addr, ports []int32) {
	ips = slices.DeleteFunc(ips, func(ip netip.Addr) bool { return a.ips[ip].uid != uid || !a.ips[ip].stored })
	for _, ip := range ips {
		a.released[ip] = true
		a.scheduleRepairLocked(ip, 0)
	}
	ports = slices.DeleteFunc(ports, func(port int32) bool {
		return slices.ContainsFunc(a.nodePorts[port], func(h holder) bool { return h.uid == uid && !h.stored })
	})
	a.removeLocked(uid, ips, ports)
}

func (a *Allocator) removeLocked(uid types.UID, ips []netip.Addr, ports []int32) {
	for _, ip := range ips {
		if a.ips[ip].uid == uid {
			delete(a.ips, ip)
		}
	}
	for _, port := range ports {
		a.removePortLocked(port, uid)
	}
}

func keyOf(s *corev1.Service) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
}

// allocationsOf lists the addresses and ports of a Service.
func allocationsOf(svc *corev1.Service) ([]netip.Addr, []int32) {
	var ips []netip.Addr
	if needsClusterIP(svc) {
		for _, text := range svc.Spec.ClusterIPs {
			if ip, err := netip.ParseAddr(text); err == nil {
				ips = append(ips, ip)
			}
		}
	}
	var ports []int32
	for _, p := range svc.Spec.Ports {
		if p.NodePort != 0 && !slices.Contains(ports, p.NodePort) {
			ports = append(ports, p.NodePort)
		}
	}
	if port := svc.Spec.HealthCheckNodePort; port != 0 && !slices.Contains(ports, port) {
		ports = append(ports, port)
	}
	return ips, ports
}

func needsClusterIP(s *corev1.Service) bool {
	return s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.ClusterIP != corev1.ClusterIPNone
}

// Begin sets the families, addresses and node ports of svc, which the caller owns, before validation: it allocates
// requested ones and assigns missing ones. old is the previous Service, or nil. The caller must call settle with
// whether svc was stored. A dry run allocates nothing and gets the same values as in Kubernetes. After an error nothing
// is allocated.
func (a *Allocator) Begin(ctx context.Context, svc, old *corev1.Service, dry bool) (settle func(
	stored bool,
), err error,
) {
	service.Complete(svc, old)
	if errs := service.SettleFamilies(svc, old, a.ranges.families()); len(errs) > 0 {
		return nil, refuse(svc, errs)
	}
	t := &allocation{
		a:       a,
		uid:     svc.UID,
		service: keyOf(svc),
		dry:     dry,
	}
	if old != nil {
		t.uid = old.UID
	}
	err = t.allocateIPs(ctx, svc, old)
	if err == nil {
		err = t.allocateNodePorts(ctx, svc, old)
	}
	ctx = context.WithoutCancel(ctx) // allocations must be released even if the request is cancelled
	if err != nil {
		t.release(ctx)
		return nil, err
	}
	return func(stored bool) {
		if !stored || dry {
			t.release(ctx)
			return
		}
		t.commit()
		if old == nil {
			return
		}
		oldIPs, oldPorts := allocationsOf(old)
		newIPs, newPorts := allocationsOf(svc) // the stored one
		a.release(ctx, t, difference(oldIPs, newIPs), difference(oldPorts, newPorts))
	}, nil
}

// AfterDelete releases the allocations of a deleted Service.
func (a *Allocator) AfterDelete(ctx context.Context, s *corev1.Service) {
	ips, ports := allocationsOf(s)
	a.release(context.WithoutCancel(ctx), &allocation{uid: s.UID, service: keyOf(s)}, ips, ports)
}

func (a *Allocator) release(ctx context.Context, t *allocation, ips []netip.Addr, ports []int32) {
	a.mu.Lock()
	a.removeLocked(t.uid, ips, ports)
	a.mu.Unlock()
	if len(ips)+len(ports) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout) // the client waits for this
	defer cancel()
	a.releaseIPs(ctx, ips, t.service)
	a.releasePorts(ctx, ports)
}

func refuse(s *corev1.Service, errs field.ErrorList) error {
	return invalid.New(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), s.Name, errs)
}

func difference[T comparable](list, gone []T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(x T) bool { return slices.Contains(gone, x) })
}

// familyOf is the family of an address. Validation has checked that the cluster has the families of a Service.
func familyOf(ip netip.Addr) corev1.IPFamily {
	if ip.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}
