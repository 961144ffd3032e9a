// SPDX-License-Identifier: Apache-2.0

package servicealloc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/core/service"
)

var (
	errFull = errors.New("range is full")
	// errNotInRange means that no range contains an address.
	errNotInRange = errors.New("the provided network does not match the current range")
)

// maxCreateAttempts limits the retries when another server has taken a free address.
const maxCreateAttempts = 32

// allocation is one allocation, with what it has allocated.
type allocation struct {
	a         *Allocator
	uid       types.UID
	service   types.NamespacedName
	dry       bool
	ips       []netip.Addr
	ports     []int32
	portInUse func(port int32) bool // whether a node port is in use
}

// release releases everything.
func (t *allocation) release(ctx context.Context) {
	if !t.dry {
		t.a.release(ctx, t, t.ips, t.ports)
	}
	t.ips = nil
	t.ports = nil
}

// commit records that the Service has been stored.
func (t *allocation) commit() {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	for _, ip := range t.ips {
		if h, ok := t.a.ips[ip]; ok && h.uid == t.uid {
			h.stored = true
			t.a.ips[ip] = h
		}
	}
	for _, port := range t.ports {
		t.a.markPortStoredLocked(port, t.uid)
	}
}

// allocateIPs allocates the addresses of svc that it did not have before.
func (t *allocation) allocateIPs(ctx context.Context, svc, old *corev1.Service) error {
	if old != nil && service.LeftAlone(svc, old) || svc.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	if old == nil || old.Spec.Type == corev1.ServiceTypeExternalName {
		if !needsClusterIP(svc) {
			return nil
		}
		return t.allocateFamilies(ctx, svc, 0)
	}
	if slices.Equal(old.Spec.ClusterIPs, []string{corev1.ClusterIPNone}) {
		return nil
	}
	if len(old.Spec.IPFamilies) == 1 && len(svc.Spec.IPFamilies) == 2 {
		return t.allocateFamilies(ctx, svc, 1)
	}
	return nil
}

// allocateFamilies allocates an address for each family of svc from index from on.
func (t *allocation) allocateFamilies(ctx context.Context, svc *corev1.Service, from int) error {
	spec := &svc.Spec
	for len(spec.ClusterIPs) < len(spec.IPFamilies) {
		spec.ClusterIPs = append(slices.Clip(spec.ClusterIPs), "")
	}
	path := field.NewPath("spec", "clusterIPs")
	for i := from; i < len(spec.IPFamilies); i++ {
		text := spec.ClusterIPs[i]
		if text == "" {
			ip, err := t.allocateNextIP(ctx, spec.IPFamilies[i])
			switch {
			case errors.Is(err, errFull):
				return apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: %w",
					svc.Name, err))
			case err != nil:
				return refuse(svc, field.ErrorList{
					field.Invalid(path, spec.ClusterIPs, fmt.Sprintf("failed to allocate IP: %v", err)),
				})
			}
			spec.ClusterIPs[i] = ip.String()
		} else if err := t.allocateIP(ctx, text); err != nil {
			return refuse(svc, field.ErrorList{
				field.Invalid(path, spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %s: %v", text, err)),
			})
		}
	}
	spec.ClusterIP = spec.ClusterIPs[0]
	return nil
}

// allocateIP allocates a requested address.
func (t *allocation) allocateIP(ctx context.Context, text string) error {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return err
	}
	allocator := t.a
	if t.dry {
		if p := allocator.ranges.forDryRun(familyOf(ip)); !allocatable(p, ip) {
			return fmt.Errorf("the provided IP (%s) is not in the valid range. The range of valid IPs is %s", ip, p)
		}
		return nil
	}
	allocator.mu.Lock()
	_, taken := allocator.ips[ip]
	c, claimed := allocator.ipAddresses[ip]
	switch {
	case !allocator.ranges.ready(ip):
		err = errNotInRange
	case taken, claimed && (!c.managed || c.service != t.service):
		err = ErrAllocated
	default:
		t.addIPLocked(ip)
	}
	allocator.mu.Unlock()
	if err != nil {
		return err
	}
	return t.createIPAddress(ctx, ip)
}

func (t *allocation) addIPLocked(ip netip.Addr) {
	t.a.ips[ip] = holder{uid: t.uid, service: t.service}
	t.ips = append(t.ips, ip)
}

// createIPAddress creates the IPAddress of a marked address, or unmarks it.
func (t *allocation) createIPAddress(ctx context.Context, ip netip.Addr) error {
	err := t.a.ipAddressClient.Create(ctx, ip, t.service)
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	if err == nil {
		t.a.addIPAddressLocked(ip, t.service)
		return nil
	}
	t.a.removeLocked(t.uid, []netip.Addr{ip}, nil)
	t.ips = difference(t.ips, []netip.Addr{ip})
	if errors.Is(err, ErrAllocated) {
		return ErrAllocated
	}
	return err
}

// allocateNextIP allocates a free address of the family.
func (t *allocation) allocateNextIP(ctx context.Context, family corev1.IPFamily) (netip.Addr, error) {
	if t.dry {
		return t.a.ranges.forDryRun(family).Addr(), nil
	}
	conflicts := map[netip.Addr]bool{} // taken by other servers, before their IPAddresses were observed
	takenLocked := func(ip netip.Addr) bool {
		_, taken := t.a.ips[ip]
		_, claimed := t.a.ipAddresses[ip]
		return taken || claimed || conflicts[ip]
	}
	for range maxCreateAttempts {
		t.a.mu.Lock()
		ip, ok := t.a.ranges.free(family, takenLocked)
		if ok {
			t.addIPLocked(ip)
		}
		t.a.mu.Unlock()
		if !ok {
			return netip.Addr{}, errFull
		}
		err := t.createIPAddress(ctx, ip)
		if err == nil || !errors.Is(err, ErrAllocated) {
			return ip, err
		}
		conflicts[ip] = true
	}
	return netip.Addr{}, errFull
}
