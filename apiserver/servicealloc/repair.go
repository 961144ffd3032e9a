// SPDX-License-Identifier: Apache-2.0

package servicealloc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// manager marks the IPAddresses that servers make for services, as Kubernetes' own allocator does.
	manager = "ipallocator.k8s.io"
	// settleTime is how long a service and its IPAddress may take to reach us both.
	settleTime = 2 * time.Second
	// leakTime is how old an IPAddress must be before it is taken to belong to nobody: another server may be about to store its service.
	leakTime = time.Minute
	// retryTime is the pause after a failed repair.
	retryTime = 5 * time.Second
)

// claim is an IPAddress.
type claim struct {
	service types.NamespacedName
	ours    bool // made by a server, for a service
	since   time.Time
}

// Address is the IPAddress that says that a service has ip.
func Address(ip netip.Addr, service types.NamespacedName) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name:   ip.String(),
			Labels: map[string]string{networkingv1.LabelIPAddressFamily: string(familyOf(ip)), networkingv1.LabelManagedBy: manager},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: service.Namespace, Name: service.Name,
		}},
	}
}

// Of tells which service an IPAddress is for; ok is false when it is not one that a server made.
func Of(obj *networkingv1.IPAddress) (service types.NamespacedName, ok bool) {
	p := obj.Spec.ParentRef
	if p == nil || obj.Labels[networkingv1.LabelManagedBy] != manager || p.Group != "" || p.Resource != "services" {
		return service, false
	}
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, true
}

// SetAddress tells of an IPAddress that is stored.
func (a *Allocator) SetAddress(obj runtime.Object) {
	o, ok := obj.(*networkingv1.IPAddress)
	if !ok {
		return
	}
	ip, err := netip.ParseAddr(o.Name)
	if err != nil {
		return
	}
	c := claim{since: o.CreationTimestamp.Time}
	c.service, c.ours = Of(o)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.claimed[ip] = c
	switch h, held := a.ips[ip]; {
	case !held:
		a.lookLocked(ip, leakTime-time.Since(c.since))
	case h.service != c.service:
		a.lookLocked(ip, settleTime)
	}
}

// RemoveAddress tells of an IPAddress that is gone.
func (a *Allocator) RemoveAddress(obj runtime.Object) {
	o, ok := obj.(*networkingv1.IPAddress)
	if !ok {
		return
	}
	ip, err := netip.ParseAddr(o.Name)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.claimed, ip)
	if _, held := a.ips[ip]; held {
		a.lookLocked(ip, settleTime) // unless the service is just going too
	}
}

// claimedLocked notes an IPAddress before its event arrives.
func (a *Allocator) claimedLocked(ip netip.Addr, service types.NamespacedName) {
	if _, ok := a.claimed[ip]; !ok {
		a.claimed[ip] = claim{service: service, ours: true, since: time.Now()}
	}
}

// release gives addresses back to all servers. What fails is done again by Run.
func (a *Allocator) release(ctx context.Context, ips []netip.Addr, service types.NamespacedName) {
	for _, ip := range ips {
		err := a.claims.Release(ctx, ip, service)
		a.mu.Lock()
		if err != nil {
			a.released[ip] = true
			a.lookLocked(ip, retryTime)
		} else if c, ok := a.claimed[ip]; ok && c.service == service {
			delete(a.claimed, ip)
		}
		a.mu.Unlock()
	}
}

// work is what Run does: look at an address, at the record of node ports, at services that may have problems, or tell of those.
type work struct {
	what task
	ip   netip.Addr // of repairAddress
}

type task uint8

// The tasks, in the order in which they are done.
const (
	repairAddress task = iota
	repairRecord
	findProblems
	reportProblems
)

func (w work) compare(other work) int {
	return cmp.Or(cmp.Compare(w.what, other.what), w.ip.Compare(other.ip))
}

// lookLocked has repair look at ip after a while, or earlier if it was asked to before.
func (a *Allocator) lookLocked(ip netip.Addr, in time.Duration) {
	a.loop.AddAfter(work{what: repairAddress, ip: ip}, in)
}

// Run puts right what is not as it should be, until ctx is done.
func (a *Allocator) Run(ctx context.Context, log *slog.Logger) error {
	a.log = log
	return a.loop.Run(ctx)
}

func (a *Allocator) work(ctx context.Context, w work) (again time.Duration, err error) {
	switch w.what {
	case repairAddress:
		return 0, a.repair(ctx, w.ip)
	case repairRecord:
		again, err = a.repairPorts(ctx)
	case findProblems:
		again = a.recheck(time.Now())
	case reportProblems:
	}
	a.reportAll(ctx, a.log)
	return again, err
}

func (a *Allocator) failed(w work, err error) {
	if w.what == repairAddress {
		a.log.Warn("address of a service is not put right", "ip", w.ip.String(), "error", err)
		return
	}
	a.log.Warn("node ports are not put right", "error", err)
}

// repair makes the IPAddress of ip what the services say.
func (a *Allocator) repair(ctx context.Context, ip netip.Addr) error {
	a.mu.Lock()
	h, held := a.ips[ip]
	c, claimed := a.claimed[ip]
	released := a.released[ip]
	delete(a.released, ip)
	if !held && claimed && c.ours && !released {
		if left := leakTime - time.Since(c.since); left > 0 {
			a.lookLocked(ip, left)
			claimed = false
		}
	}
	a.mu.Unlock()
	switch {
	case held && !h.stored: // settle will tell
		return nil
	case held && !claimed:
		if err := a.claims.Claim(ctx, ip, h.service); err != nil && !errors.Is(err, ErrTaken) { // when taken, its event brings us back
			return fmt.Errorf("claim for service %s: %w", h.service, err)
		}
	case claimed && c.ours && (!held || c.service != h.service):
		if err := a.claims.Release(ctx, ip, c.service); err != nil {
			return fmt.Errorf("release what service %s left: %w", c.service, err)
		}
	}
	return nil
}
