// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const ipUsage = "usage: ip [-4|-6] [-br] addr|link|route|neigh [show] [dev NAME]; it shows, and changes nothing"

// ipCall is what one call of ip asks for.
type ipCall struct {
	family int  // unix.AF_INET, AF_INET6, or AF_UNSPEC for both
	brief  bool // one short line for each
	dev    string
	std    stdio
}

// ip shows the addresses, links, routes and neighbours of the network namespace, in the words of iproute2.
func ip(args []string, std stdio) int {
	call := ipCall{std: std}
	rest := args[1:]
	for len(rest) > 0 && strings.HasPrefix(rest[0], "-") {
		switch rest[0] {
		case "-4":
			call.family = unix.AF_INET
		case "-6":
			call.family = unix.AF_INET6
		case "-br", "-brief":
			call.brief = true
		case "-o", "-c", "-color":
		default:
			return complain(std, "ip", errors.New(ipUsage))
		}
		rest = rest[1:]
	}
	if len(rest) == 0 {
		return complain(std, "ip", errors.New(ipUsage))
	}
	object := rest[0]
	rest = rest[1:]
	if len(rest) > 0 && strings.HasPrefix("show", rest[0]) || len(rest) > 0 && (rest[0] == "list" || rest[0] == "ls") {
		rest = rest[1:]
	}
	if len(rest) > 0 && rest[0] == "dev" {
		rest = rest[1:]
	}
	if len(rest) > 1 {
		return complain(std, "ip", errors.New(ipUsage))
	}
	if len(rest) == 1 {
		call.dev = rest[0]
	}
	var err error
	switch {
	case strings.HasPrefix("address", object):
		err = call.links(true)
	case strings.HasPrefix("link", object):
		err = call.links(false)
	case strings.HasPrefix("route", object):
		err = call.routes()
	case strings.HasPrefix("neighbour", object), strings.HasPrefix("neighbor", object):
		err = call.neighbours()
	default:
		err = errors.New(ipUsage)
	}
	if err != nil {
		return complain(std, "ip", err)
	}
	return 0
}

// links prints each link, with its addresses if asked for.
func (c ipCall) links(addresses bool) error {
	all, err := netlink.LinkList()
	if err != nil {
		return err
	}
	found := false
	for _, link := range all {
		attrs := link.Attrs()
		if c.dev != "" && c.dev != attrs.Name {
			continue
		}
		found = true
		var addrs []netlink.Addr
		if addresses {
			if addrs, err = netlink.AddrList(link, c.family); err != nil {
				return err
			}
		}
		if c.brief {
			words := []string{fmt.Sprintf("%-16s %-8s", attrs.Name, strings.ToUpper(attrs.OperState.String()))}
			if !addresses {
				words = append(words, attrs.HardwareAddr.String())
			}
			for _, a := range addrs {
				words = append(words, a.IPNet.String())
			}
			fmt.Fprintln(c.std.out, strings.Join(words, " "))
			continue
		}
		c.link(attrs, addrs)
	}
	if !found && c.dev != "" {
		return fmt.Errorf("device %q does not exist", c.dev)
	}
	return nil
}

func (c ipCall) link(attrs *netlink.LinkAttrs, addrs []netlink.Addr) {
	flags := strings.ToUpper(strings.ReplaceAll(attrs.Flags.String(), "|", ","))
	kind := attrs.EncapType
	broadcast := " brd ff:ff:ff:ff:ff:ff"
	if attrs.Flags&net.FlagBroadcast == 0 {
		broadcast = ""
	}
	fmt.Fprintf(c.std.out, "%d: %s: <%s> mtu %d state %s\n", attrs.Index, attrs.Name, flags, attrs.MTU,
		strings.ToUpper(attrs.OperState.String()))
	fmt.Fprintf(c.std.out, "    link/%s %s%s\n", kind, attrs.HardwareAddr, broadcast)
	for _, a := range addrs {
		family := "inet"
		if a.IP.To4() == nil {
			family = "inet6"
		}
		fmt.Fprintf(c.std.out, "    %s %s scope %s\n", family, a.IPNet, scopeName(netlink.Scope(a.Scope)))
	}
}

// scopeName is the name that iproute2 prints.
func scopeName(scope netlink.Scope) string {
	if scope == netlink.SCOPE_UNIVERSE {
		return "global"
	}
	return scope.String()
}

func (c ipCall) routes() error {
	names, err := linkNames()
	if err != nil {
		return err
	}
	families := []int{unix.AF_INET}
	if c.family != unix.AF_UNSPEC {
		families = []int{c.family}
	}
	for _, family := range families {
		all, err := netlink.RouteList(nil, family)
		if err != nil {
			return err
		}
		for _, route := range all {
			name := names[route.LinkIndex]
			if c.dev != "" && c.dev != name {
				continue
			}
			fmt.Fprintln(c.std.out, routeText(route, name))
		}
	}
	return nil
}

func routeText(route netlink.Route, link string) string {
	to := "default"
	if route.Dst != nil {
		ones, bits := route.Dst.Mask.Size()
		switch {
		case ones == bits:
			to = route.Dst.IP.String()
		case ones > 0 || !route.Dst.IP.IsUnspecified():
			to = route.Dst.String()
		}
	}
	words := []string{to}
	if route.Type != unix.RTN_UNICAST {
		words = []string{netlinkType(route.Type), to}
	}
	if route.Gw != nil {
		words = append(words, "via", route.Gw.String())
	}
	if link != "" {
		words = append(words, "dev", link)
	}
	if route.Scope != netlink.SCOPE_UNIVERSE {
		words = append(words, "scope", route.Scope.String())
	}
	if route.Src != nil {
		words = append(words, "src", route.Src.String())
	}
	if route.Priority != 0 {
		words = append(words, "metric", fmt.Sprint(route.Priority))
	}
	return strings.Join(words, " ")
}

// netlinkType is the name of a route's type.
func netlinkType(kind int) string {
	switch kind {
	case unix.RTN_BLACKHOLE:
		return "blackhole"
	case unix.RTN_UNREACHABLE:
		return "unreachable"
	case unix.RTN_PROHIBIT:
		return "prohibit"
	case unix.RTN_LOCAL:
		return "local"
	}
	return fmt.Sprintf("type %d", kind)
}

func (c ipCall) neighbours() error {
	names, err := linkNames()
	if err != nil {
		return err
	}
	all, err := netlink.NeighList(0, c.family)
	if err != nil {
		return err
	}
	states := map[int]string{
		netlink.NUD_REACHABLE:  "REACHABLE",
		netlink.NUD_STALE:      "STALE",
		netlink.NUD_DELAY:      "DELAY",
		netlink.NUD_PROBE:      "PROBE",
		netlink.NUD_FAILED:     "FAILED",
		netlink.NUD_INCOMPLETE: "INCOMPLETE",
		netlink.NUD_PERMANENT:  "PERMANENT",
	}
	for _, n := range all {
		name := names[n.LinkIndex]
		if n.State == netlink.NUD_NOARP || c.dev != "" && c.dev != name {
			continue
		}
		words := []string{n.IP.String(), "dev", name}
		if len(n.HardwareAddr) > 0 {
			words = append(words, "lladdr", n.HardwareAddr.String())
		}
		fmt.Fprintln(c.std.out, strings.Join(append(words, states[n.State]), " "))
	}
	return nil
}

func linkNames() (map[int]string, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for _, link := range all {
		names[link.Attrs().Index] = link.Attrs().Name
	}
	return names, nil
}
