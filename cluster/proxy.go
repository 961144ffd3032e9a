// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"keelson/cluster/datadir"
	"keelson/event/eventlog"
	"keelson/kubelet/reach"
	"keelson/lib/run"
	"keelson/network"
	"keelson/network/conntrack"
	"keelson/network/mesh"
	"keelson/proxy"
	"keelson/proxy/services"
)

// proxyRole is the name of the service proxy's role.
const proxyRole = "proxy"

// serviceTable is the name of the nftables table of Services.
func serviceTable(dir datadir.Dir) string { return "keelson-" + dir.ID() + "-svc" }

// proxy returns the part that runs the service proxy of this node.
func (s *site) proxy() (run.Func, error) {
	p, err := s.serviceProxy()
	if err != nil {
		return nil, err
	}
	return p.Run, nil
}

// serviceProxy creates the proxy once. The kubelet asks it which rules are written.
func (s *site) serviceProxy() (*proxy.Proxy, error) {
	if s.node.services != nil {
		return s.node.services, nil
	}
	options := s.cfg.Proxy
	options.ExternalIPs = s.cfg.Gates.AllowServiceExternalIPs
	cl := s.client(roleNamed(proxyRole).roleIdentity)
	var servers []netip.AddrPort
	if s.server == nil && cl.Config != nil {
		servers = serverAddresses(context.Background(), cl.Config.Host)
	}
	var err error
	s.node.services, err = proxy.New(proxy.Config{
		Client:   cl,
		NodeName: s.cfg.NodeName,
		Table:    serviceTable(s.dir),
		PodCIDRs: s.cfg.podRanges(),
		PodGroup: s.node.podGroup,
		Servers:  servers,
		Reserved: s.reservedPorts(),
		Options:  options,
		Metrics:  s.metrics.proxy,
		Marks:    s.marks,
		Log:      s.logOf(eventlog.Proxy),
	})
	return s.node.services, err
}

// reservedPorts are the ports of this process's own listeners and of the tunnel, which no Service gets on this node.
func (s *site) reservedPorts() map[services.HostPort]string {
	out := map[services.HostPort]string{}
	for what, addr := range s.node.reserved {
		if ap, err := netip.ParseAddrPort(addr.String()); err == nil {
			out[services.HostPort{Proto: unix.IPPROTO_TCP, Port: ap.Port()}] = what
		}
	}
	out[services.HostPort{
		Proto: unix.IPPROTO_TCP,
		Port:  uint16(cmp.Or(s.cfg.Node.KubeletPort, kubeletPort)),
	}] = "the kubelet"
	if mode := cmp.Or(s.cfg.PodRoutes.Mode, mesh.Auto); mode != mesh.None {
		out[services.HostPort{
			Proto: unix.IPPROTO_UDP,
			Port:  uint16(cmp.Or(s.cfg.PodRoutes.Port, mode.DefaultPort())),
		}] = "the tunnel of the pod network"
	}
	return out
}

// resolveLimit bounds the resolution of a server's name at the start of a process.
const resolveLimit = 2 * time.Second

// serverAddresses returns the addresses of the servers at URLs; a name that does not resolve has none.
func serverAddresses(ctx context.Context, urls ...string) []netip.AddrPort {
	ctx, cancel := context.WithTimeout(ctx, resolveLimit)
	defer cancel()
	var out []netip.AddrPort
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil || u.Hostname() == "" {
			continue
		}
		port, err := strconv.ParseUint(cmp.Or(u.Port(), "443"), 10, 16)
		if err != nil {
			continue
		}
		addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
		if err != nil {
			continue
		}
		for _, a := range addrs {
			out = append(out, netip.AddrPortFrom(a.Unmap(), uint16(port)))
		}
	}
	return out
}

// clearWay deletes what rules of Services from earlier processes have for the API servers at URLs: the process could
// not reach the server to learn that the Service is gone. Where that fails, it is logged and the process tries with the
// rules that there are.
func clearWay(ctx context.Context, log *slog.Logger, urls ...string) {
	if os.Getuid() != 0 {
		return
	}
	servers := serverAddresses(ctx, urls...)
	if len(servers) == 0 {
		return
	}
	if err := proxy.ClearWay(0, servers); err != nil {
		log.Warn("old rules of services may stand between this process and the API server", "servers", servers, "err",
			err)
	}
}

// serviceRules reports which rules of a Service are in the kernel; nil: this process runs no service proxy.
func (s *site) serviceRules() (reach.Rules, error) {
	for _, r := range table() {
		if r.choice == "proxy" && r.on(s.cfg) {
			p, err := s.serviceProxy()
			if err != nil {
				return nil, err
			}
			return p.Rules, nil
		}
	}
	return nil, nil // absence is an answer here
}

// paths asks this machine's kernel for routes and NAT.
type paths struct{ cluster string }

// Endpoint is the endpoint to which the kernel translates a connection.
func (paths) Endpoint(protocol corev1.Protocol, local, remote netip.AddrPort) (netip.AddrPort, bool) {
	number := uint8(unix.IPPROTO_TCP)
	if protocol == corev1.ProtocolUDP {
		number = unix.IPPROTO_UDP
	}
	return conntrack.Endpoint(number, local, remote)
}

// Route is the route that packets to an address take.
func (paths) Route(to netip.Addr) string { return conntrack.Route(to) }

// Shared reports whether another cluster on this machine serves the address of a Service.
func (p paths) Shared(at netip.Addr) bool {
	tables, err := network.SharedServices(p.cluster, []netip.Prefix{netip.PrefixFrom(at, at.BitLen())})
	return err == nil && len(tables) > 0 // a kernel without nftables has no other cluster
}

func purgeProxy(_ context.Context, dir datadir.Dir) error {
	if os.Getuid() != 0 {
		return nil
	}
	return proxy.Purge(serviceTable(dir))
}
