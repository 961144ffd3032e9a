// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"keelson/lib/linux"
)

// The routes have one of two metrics: metric for routes to machines, metric+1 for blackhole routes.

// route sets the routes of a plan. Blackhole routes are added before other routes are deleted.
func (k *Kernel) route(tunnel int, routes []Route, blocked []netip.Prefix) error {
	var want []netlink.Route
	for _, dst := range blocked {
		want = append(want, k.closed(dst))
	}
	for _, r := range routes {
		want = append(want, k.way(r, tunnel))
	}
	have, err := k.ownRoutes()
	errs := []error{err}
	missing := map[string]netlink.Route{}
	for _, r := range want {
		missing[routeKey(r)] = r
	}
	var stale []netlink.Route
	for _, r := range have {
		if _, ok := missing[routeKey(r)]; !ok {
			stale = append(stale, r)
			continue
		}
		delete(missing, routeKey(r))
	}
	add := func(kind int) {
		for _, r := range missing {
			if r.Type != kind {
				continue
			}
			if err := k.rt.RouteReplace(&r); err != nil {
				errs = append(errs, fmt.Errorf("add route to %s by %s: %w", r.Dst, r.Gw, err))
			}
		}
	}
	add(unix.RTN_UNREACHABLE)
	for _, r := range stale {
		if err := k.rt.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("delete route to %s: %w", r.Dst, err))
		}
	}
	add(unix.RTN_UNICAST)
	return errors.Join(errs...)
}

// block adds blackhole routes for the ranges; other routes do not change.
func (k *Kernel) block(ranges []netip.Prefix) error {
	have, err := k.ownRoutes()
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, r := range have {
		there[routeKey(r)] = true
	}
	for _, dst := range ranges {
		r := k.closed(dst)
		if there[routeKey(r)] {
			continue
		}
		if err := k.rt.RouteReplace(&r); err != nil {
			return fmt.Errorf("add blackhole route to %s: %w", dst, err)
		}
	}
	return nil
}

func (k *Kernel) way(route Route, tunnel int) netlink.Route {
	link := route.Link
	if link == 0 {
		link = tunnel
	}
	out := netlink.Route{
		LinkIndex: link,
		Dst:       ipNet(route.Dst),
		Gw:        route.Via.AsSlice(),
		Src:       route.Src.AsSlice(),
		Protocol:  protocol,
		Priority:  k.metric(),
		Type:      unix.RTN_UNICAST,
	}
	if route.Via.IsValid() {
		out.Flags = int(netlink.FLAG_ONLINK)
	}
	return out
}

func (k *Kernel) closed(dst netip.Prefix) netlink.Route {
	return netlink.Route{
		Dst:      ipNet(dst),
		Protocol: protocol,
		Priority: k.metric() + 1,
		Type:     unix.RTN_UNREACHABLE,
	}
}

// ownRoutes lists the routes of this cluster on this machine.
func (k *Kernel) ownRoutes() ([]netlink.Route, error) {
	var out []netlink.Route
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		have, err := linux.Dump(func() ([]netlink.Route, error) {
			return k.rt.RouteListFiltered(family, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("list routes: %w", err))
			continue
		}
		out = append(out, slices.DeleteFunc(have, func(r netlink.Route) bool {
			return r.Priority != k.metric() && r.Priority != k.metric()+1
		})...)
	}
	return out, errors.Join(errs...)
}

// routeKey is the same for equivalent routes. The link of IPv6 blackhole routes is ignored.
func routeKey(r netlink.Route) string {
	link := r.LinkIndex
	if r.Type == unix.RTN_UNREACHABLE {
		link = 0
	}
	return fmt.Sprint(r.Type, " ", r.Dst, " ", r.Gw, " ", link, " ", r.Src)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones), ok
}
