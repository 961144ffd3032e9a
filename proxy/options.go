// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"keelson/lib/option"
	"keelson/proxy/services"
)

// Options are the proxy's settings.
type Options struct {
	// ClusterCIDRs are the pod ranges of the cluster; empty: those of the node.
	ClusterCIDRs []string
	// NodePortAddresses are CIDRs of the node's addresses that serve node ports, or "primary" alone; empty: all.
	NodePortAddresses []string
	// HealthzBindAddress is the address of /healthz; "" turns it off.
	HealthzBindAddress string
	// MetricsBindAddress is the address of /proxyMode and /healthz; "" turns it off.
	MetricsBindAddress string
	// ExternalIPs: Services' spec.externalIPs are served (feature gate AllowServiceExternalIPs).
	ExternalIPs bool
}

// DefaultHealthz has kube-proxy's port, but is on loopback only.
const DefaultHealthz = "127.0.0.1:10256"

// DefaultMetrics is kube-proxy's.
const DefaultMetrics = "127.0.0.1:10249"

const primary = "primary"

// Rows are the proxy's options, by kube-proxy's names.
func (o *Options) Rows() []option.Row {
	return []option.Row{
		option.New(&o.ClusterCIDRs, "proxy-cluster-cidr", nil, "CIDRs of all pods: connections to a cluster IP "+
			"from other addresses are masqueraded (default: the node's pod CIDRs)"),
		option.New(&o.NodePortAddresses, "nodeport-addresses", nil,
			"CIDRs of the node's addresses that serve node ports, or primary: the node's main addresses (default: "+
				"all)"),
		option.New(&o.HealthzBindAddress, "healthz-bind-address", DefaultHealthz,
			"address of the service proxy's /healthz; empty: none"),
		option.New(&o.MetricsBindAddress, "metrics-bind-address", DefaultMetrics,
			"address of the service proxy's /proxyMode and /healthz; empty: none"),
	}
}

// Validate checks the options.
func (o *Options) Validate() error {
	if _, err := prefixes("--proxy-cluster-cidr", o.ClusterCIDRs); err != nil {
		return err
	}
	if !slices.Equal(o.NodePortAddresses, []string{primary}) {
		if _, err := prefixes("--nodeport-addresses", o.NodePortAddresses); err != nil {
			return err
		}
	}
	if o.HealthzBindAddress != "" {
		if _, _, err := net.SplitHostPort(o.HealthzBindAddress); err != nil {
			return fmt.Errorf("--healthz-bind-address %q: want an address and a port, such as %s: %w",
				o.HealthzBindAddress, DefaultHealthz, err)
		}
	}
	if o.MetricsBindAddress != "" {
		if _, _, err := net.SplitHostPort(o.MetricsBindAddress); err != nil {
			return fmt.Errorf("--metrics-bind-address %q: want an address and a port, such as %s: %w",
				o.MetricsBindAddress, DefaultMetrics, err)
		}
	}
	return nil
}

func prefixes(flag string, in []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range in {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("%s %q: want CIDRs, such as 10.0.0.0/8: %w", flag, s, err)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// facts returns the properties of the node that the rules depend on.
func (p *Proxy) facts(node *corev1.Node) services.Node {
	options := p.cfg.Options
	out := services.Node{
		Name:        p.cfg.NodeName,
		PodCIDRs:    p.cfg.PodCIDRs,
		PodGroup:    p.cfg.PodGroup,
		ExternalIPs: options.ExternalIPs,
		Others:      p.tracker.otherNodes(p.cfg.NodeName),
		Servers:     p.tracker.apiServers(),
		Reserved:    maps.Clone(p.cfg.Reserved),
		Taken:       p.taken,
	}
	for _, at := range p.cfg.Servers {
		out.Servers[at] = true
	}
	out.NodePortCIDRs, _ = prefixes("", options.NodePortAddresses) // validated, or "primary"
	if node != nil {
		out.Zone = node.Labels[corev1.LabelTopologyZone]
		if cidrs, err := prefixes("", node.Spec.PodCIDRs); err == nil && len(cidrs) > 0 {
			out.PodCIDRs = cidrs
		}
		if slices.Equal(options.NodePortAddresses, []string{primary}) {
			out.NodePortCIDRs = primaryAddresses(node)
		}
		p.live.eligible(node)
		out.Addrs = addressesOfNode(node)
		if port := node.Status.DaemonEndpoints.KubeletEndpoint.Port; port > 0 {
			if out.Reserved == nil {
				out.Reserved = map[services.HostPort]string{}
			}
			out.Reserved[services.HostPort{Proto: unix.IPPROTO_TCP, Port: uint16(port)}] = "the kubelet"
		}
	}
	if all, err := prefixes("", options.ClusterCIDRs); err == nil && len(all) > 0 {
		out.PodCIDRs = all
	}
	return out
}

// taken reports whether a process of this node, but not the proxy itself for a health check, listens on an address and
// port.
func (p *Proxy) taken(addr netip.Addr, proto uint8, port uint16) bool {
	return p.cfg.Taken(addr, proto, port) && (proto != unix.IPPROTO_TCP || !p.health.has(port))
}

// addressesOfNode returns the IP addresses of a Node.
func addressesOfNode(node *corev1.Node) []netip.Addr {
	var out []netip.Addr
	for _, a := range node.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil {
			out = append(out, ip.Unmap())
		}
	}
	return out
}

// primaryAddresses returns the node's first address of each family.
func primaryAddresses(node *corev1.Node) []netip.Prefix {
	var out []netip.Prefix
	have := map[bool]bool{}
	for _, a := range node.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err != nil || a.Type != corev1.NodeInternalIP || have[ip.Is4()] {
			continue
		}
		have[ip.Is4()] = true
		out = append(out, netip.PrefixFrom(ip, ip.BitLen()))
	}
	return out
}

func sameNode(a, b services.Node) bool {
	return a.Zone == b.Zone && slices.Equal(a.PodCIDRs, b.PodCIDRs) && slices.Equal(a.NodePortCIDRs, b.NodePortCIDRs) &&
		slices.Equal(a.Addrs, b.Addrs) && maps.Equal(a.Others, b.Others) && maps.Equal(a.Servers, b.Servers) &&
		maps.Equal(a.Reserved, b.Reserved)
}
