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
	// manager is the label value of IPAddresses that API servers create for Services, as in Kubernetes.
	manager = "ipallocator.k8s.io"
	// settleTime is how long the events of a Service and of its IPAddress may take to arrive.
	settleTime = 2 * time.Second
	// ipLeakTime is the minimum age of an IPAddress without a Service before it is deleted: another server may be about
	// to store the Service.
	ipLeakTime = time.Minute
	// retryTime is the pause after a failed repair.
	retryTime = 5 * time.Second
)

// ipAddress is an observed IPAddress.
type ipAddress struct {
	service types.NamespacedName
	managed bool // created by an API server for a Service
	since   time.Time
}

// Address is the IPAddress of ip for a Service.
func Address(ip netip.Addr, service types.NamespacedName) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: ip.String(),
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: string(familyOf(ip)),
				networkingv1.LabelManagedBy:       manager,
			},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource:  "services",
			Namespace: service.Namespace,
			Name:      service.Name,
		}},
	}
}

// Of returns the Service of an IPAddress; ok is false if no API server created it.
func Of(obj *networkingv1.IPAddress) (service types.NamespacedName, ok bool) {
	p := obj.Spec.ParentRef
	if p == nil || obj.Labels[networkingv1.LabelManagedBy] != manager || p.Group != "" || p.Resource != "services" {
		return service, false
	}
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, true
}

// SetAddress adds or updates an IPAddress.
func (a *Allocator) SetAddress(obj runtime.Object) {
	o, ok := obj.(*networkingv1.IPAddress)
	if !ok {
		return
	}
	ip, err := netip.ParseAddr(o.Name)
	if err != nil {
		return
	}
	c := ipAddress{since: o.CreationTimestamp.Time}
	c.service, c.managed = Of(o)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ipAddresses[ip] = c
	switch h, held := a.ips[ip]; {
	case !held:
		a.scheduleRepairLocked(ip, ipLeakTime-time.Since(c.since))
	case h.service != c.service:
		a.scheduleRepairLocked(ip, settleTime)
	}
}

// RemoveAddress removes a deleted IPAddress.
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
	delete(a.ipAddresses, ip)
	if _, held := a.ips[ip]; held {
		a.scheduleRepairLocked(ip, settleTime) // the Service may be being deleted too
	}
}

// addIPAddressLocked records an IPAddress before its event arrives.
func (a *Allocator) addIPAddressLocked(ip netip.Addr, service types.NamespacedName) {
	if _, ok := a.ipAddresses[ip]; !ok {
		a.ipAddresses[ip] = ipAddress{service: service, managed: true, since: time.Now()}
	}
}

// releaseIPs deletes the IPAddresses. Run retries a failure.
func (a *Allocator) releaseIPs(ctx context.Context, ips []netip.Addr, service types.NamespacedName) {
	for _, ip := range ips {
		err := a.ipAddressClient.Delete(ctx, ip, service)
		a.mu.Lock()
		if err != nil {
			a.released[ip] = true
			a.scheduleRepairLocked(ip, retryTime)
		} else if c, ok := a.ipAddresses[ip]; ok && c.service == service {
			delete(a.ipAddresses, ip)
		}
		a.mu.Unlock()
	}
}

// workItem is a task of Run.
type workItem struct {
	task taskKind
	ip   netip.Addr // of repairAddress
}

type taskKind uint8

// The tasks in the order of their execution.
const (
	repairAddress taskKind = iota
	repairRange
	findProblems
	reportProblems
)

func (w workItem) compare(other workItem) int {
	return cmp.Or(cmp.Compare(w.task, other.task), w.ip.Compare(other.ip))
}

// scheduleRepairLocked schedules a repair of ip, or makes a scheduled one earlier.
func (a *Allocator) scheduleRepairLocked(ip netip.Addr, in time.Duration) {
	a.loop.AddAfter(workItem{task: repairAddress, ip: ip}, in)
}

// Run repairs inconsistencies until ctx is done.
func (a *Allocator) Run(ctx context.Context, log *slog.Logger) error {
	a.log = log
	return a.loop.Run(ctx)
}

func (a *Allocator) runTask(ctx context.Context, w workItem) (requeueAfter time.Duration, err error) {
	switch w.task {
	case repairAddress:
		return 0, a.repair(ctx, w.ip)
	case repairRange:
		requeueAfter, err = a.repairPorts(ctx)
	case findProblems:
		requeueAfter = a.recheck(time.Now())
	case reportProblems:
	}
	a.reportAll(ctx, a.log)
	return requeueAfter, err
}

func (a *Allocator) logFailure(w workItem, err error) {
	if w.task == repairAddress {
		a.log.Warn("repair address of service", "ip", w.ip.String(), "error", err)
		return
	}
	a.log.Warn("repair node ports", "error", err)
}

// repair makes the IPAddress of ip match the Services.
func (a *Allocator) repair(ctx context.Context, ip netip.Addr) error {
	a.mu.Lock()
	holder, held := a.ips[ip]
	ipAddress, claimed := a.ipAddresses[ip]
	released := a.released[ip]
	delete(a.released, ip)
	if !held && claimed && ipAddress.managed && !released {
		if left := ipLeakTime - time.Since(ipAddress.since); left > 0 {
			a.scheduleRepairLocked(ip, left)
			claimed = false
		}
	}
	a.mu.Unlock()
	switch {
	case held && !holder.stored: // settle will decide
		return nil
	case held && !claimed:
		// if it is taken, its event triggers another repair
		if err := a.ipAddressClient.Create(ctx, ip, holder.service); err != nil && !errors.Is(err, ErrAllocated) {
			return fmt.Errorf("claim for service %s: %w", holder.service, err)
		}
	case claimed && ipAddress.managed && (!held || ipAddress.service != holder.service):
		if err := a.ipAddressClient.Delete(ctx, ip, ipAddress.service); err != nil {
			return fmt.Errorf("release what service %s left: %w", ipAddress.service, err)
		}
	}
	return nil
}
