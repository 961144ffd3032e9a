// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"keelson/apiserver/addresses"
	"keelson/apiserver/admission/noderestriction"
	"keelson/apiserver/servicealloc"
	"keelson/cluster/nodehost"
)

// firstOf is the first usable address of a range: of the Service "kubernetes", or of the bridge.
func firstOf(p netip.Prefix) net.IP { return p.Masked().Addr().Next().AsSlice() }

// union returns the ranges of both without duplicates.
func union(a, b []netip.Prefix) []netip.Prefix {
	out := slices.Clone(a)
	for _, r := range b {
		if !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// servingAddresses are the IP addresses in the API server's certificate.
func servingAddresses(cfg Config, ranges []netip.Prefix) []net.IP {
	ips := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	for _, p := range cfg.PodCIDRs {
		ips = append(ips, firstOf(p))
	}
	for _, r := range ranges {
		ips = append(ips, firstOf(r))
	}
	if end := cfg.endpoint(); end.IsValid() {
		ips = append(ips, end.AsSlice())
	}
	_, named := cfg.Listen.Certified()
	ips = append(ips, named...)
	bind := cfg.Listen.Address()
	if !bind.IsUnspecified() {
		return append(ips, bind.AsSlice())
	}
	list, err := net.InterfaceAddrs()
	if err != nil {
		return ips
	}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
			ips = append(ips, n.IP)
		}
	}
	return ips
}

// netIPs converts addresses to net.IP.
func netIPs(addrs []netip.Addr) []net.IP {
	var out []net.IP
	for _, a := range addrs {
		out = append(out, a.AsSlice())
	}
	return out
}

// nodeChosenRanges limits the pod CIDRs that nodes may choose themselves. When the controllers run elsewhere, only
// their --cluster-cidr defines the cluster's.
func (c Config) nodeChosenRanges() noderestriction.PodRanges {
	ranges := c.Controllers.PodRanges
	if len(ranges.Cluster) == 0 && c.agents() {
		ranges.Cluster = []netip.Prefix{nodehost.DefaultClusterCIDR}
	}
	return noderestriction.PodRanges{
		Cluster:  ranges.Cluster,
		Bits4:    ranges.Bits4,
		Bits6:    ranges.Bits6,
		Reserved: c.keptServices,
		OwnCIDRs: c.PodCIDRs,
	}
}

// nodeIPs are this node's addresses, of the network in which other machines reach the API server.
func (c Config) nodeIPs() []netip.Addr {
	towards := c.serverAt
	if bind := c.Listen.Address(); !towards.IsValid() && !bind.IsLoopback() && !bind.IsUnspecified() {
		towards = bind // other machines reach this node by it
	}
	return nodehost.IPs(c.PodCIDRs, towards)
}

// clusterRanges are the pod CIDRs of the cluster as far as a node knows them, next to the server or elsewhere.
func (c Config) clusterRanges(serverHere bool) []netip.Prefix {
	if known := c.Controllers.PodRanges.Cluster; len(known) > 0 {
		return known
	}
	if serverHere || slices.ContainsFunc(c.PodCIDRs, nodehost.DefaultClusterCIDR.Overlaps) {
		return []netip.Prefix{nodehost.DefaultClusterCIDR}
	}
	return nil
}

// podGateway is this machine's address in its own pod network. The API listens there too: pods reach it, other machines
// do not. Invalid: there is none.
func (c Config) podGateway() netip.Addr {
	if c.Listen.Bind != "" || c.Rootless || c.Runtime.Endpoint != "" || c.NoNode && !c.PodsBeside ||
		len(c.PodCIDRs) == 0 {
		return netip.Addr{}
	}
	return c.PodCIDRs[0].Masked().Addr().Next()
}

// endpoint is the endpoint address of the Service "kubernetes"; invalid: there is none.
func (c Config) endpoint() netip.Addr {
	if ip, err := netip.ParseAddr(c.Services.Advertise); err == nil {
		return ip
	}
	bind := c.Listen.Address()
	if bind.IsUnspecified() {
		if ips := c.nodeIPs(); len(ips) > 0 {
			return ips[0]
		}
		return netip.Addr{}
	}
	if !bind.IsLoopback() {
		return bind
	}
	return c.podGateway()
}

// serviceSettings is options.Services as resolved for the API server.
type serviceSettings struct {
	address   addresses.Own
	nodePorts servicealloc.PortRange
}

func (c Config) serviceSettings(listener net.Listener) (settings serviceSettings, err error) {
	if settings.address.ServiceCIDRs, err = c.Services.Ranges(); err != nil {
		return settings, err
	}
	if settings.nodePorts, err = c.Services.NodePorts(); err != nil || listener == nil {
		return settings, err
	}
	settings.address.Listener = listener.Addr()
	end := c.endpoint()
	if !end.IsValid() || end.Is4() != settings.address.ServiceCIDRs[0].Addr().Is4() {
		return settings, nil
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return settings, fmt.Errorf("port of the API server: %w", err)
	}
	settings.address.Advertise = net.JoinHostPort(end.String(), port)
	return settings, nil
}
