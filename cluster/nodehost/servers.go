// SPDX-License-Identifier: Apache-2.0

package nodehost

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
	"keelson/network"
	"keelson/network/conntrack"
	"keelson/proxy"
)

// ServiceTable is the name of the nftables table of Services.
func ServiceTable(dir datadir.Dir) string { return "keelson-" + dir.ID() + "-svc" }

// PolicyTable is the name of the nftables table of a cluster's network policies.
func PolicyTable(dir datadir.Dir) string { return "keelson-" + dir.ID() + "-pol" }

// resolveLimit bounds the resolution of a server's name at the start of a process.
const resolveLimit = 2 * time.Second

// ServerAddresses returns the addresses of the servers at URLs; a name that does not resolve has none.
func ServerAddresses(ctx context.Context, urls ...string) []netip.AddrPort {
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

// ClearWay deletes what rules of Services from earlier processes have for the API servers at URLs: the process could
// not reach the server to learn that the Service is gone. Where that fails, it is logged and the process tries with the
// rules that there are.
func ClearWay(ctx context.Context, log *slog.Logger, urls ...string) {
	if os.Getuid() != 0 {
		return
	}
	servers := ServerAddresses(ctx, urls...)
	if len(servers) == 0 {
		return
	}
	if err := proxy.ClearWay(0, servers); err != nil {
		log.Warn("old rules of services may stand between this process and the API server", "servers", servers, "err",
			err)
	}
}

// ServerHere returns the API server's address, a port that pods must not use, if it is on this machine.
func ServerHere(host string) map[string]net.Addr {
	u, err := url.Parse(host)
	if err != nil {
		return nil
	}
	a, err := netip.ParseAddrPort(u.Host)
	if err != nil {
		return nil // a host name, or no port: the server is on another machine
	}
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", net.JoinHostPort(a.Addr().String(), "0"))
	if err != nil {
		return nil
	}
	_ = l.Close() // listening only tested that the address is local
	return map[string]net.Addr{"the API server": net.TCPAddrFromAddrPort(a)}
}

// Paths asks this machine's kernel for routes and NAT.
type Paths struct{ Cluster string }

// Endpoint is the endpoint to which the kernel translates a connection.
func (Paths) Endpoint(protocol corev1.Protocol, local, remote netip.AddrPort) (netip.AddrPort, bool) {
	number := uint8(unix.IPPROTO_TCP)
	if protocol == corev1.ProtocolUDP {
		number = unix.IPPROTO_UDP
	}
	return conntrack.Endpoint(number, local, remote)
}

// Route is the route that packets to an address take.
func (Paths) Route(to netip.Addr) string { return conntrack.Route(to) }

// Shared reports whether another cluster on this machine serves the address of a Service.
func (p Paths) Shared(at netip.Addr) bool {
	tables, err := network.SharedServices(p.Cluster, []netip.Prefix{netip.PrefixFrom(at, at.BitLen())})
	return err == nil && len(tables) > 0 // a kernel without nftables has no other cluster
}
