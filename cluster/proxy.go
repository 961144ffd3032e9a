// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"keelson/kubelet/reach"
	"keelson/lib/deeds"
	"keelson/lib/run"
	"keelson/network/whereto"
	"keelson/proxy"
)

// proxyRole is the name of the service proxy's role.
const proxyRole = "proxy"

// serviceTable is the name of the nftables table of Services.
func serviceTable(dir DataDir) string { return "keelson-" + dir.ID() + "-svc" }

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
	var err error
	s.node.services, err = proxy.New(proxy.Config{
		Client:   s.client(roleNamed(proxyRole).roleIdentity),
		NodeName: s.cfg.NodeName,
		Table:    serviceTable(s.dir),
		PodCIDRs: s.cfg.podRanges(),
		PodGroup: s.node.podGroup,
		Options:  s.cfg.Proxy,
		Marks:    s.marks,
		Log:      s.logOf(deeds.Proxy),
	})
	return s.node.services, err
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
type paths struct{}

// Endpoint is the endpoint to which the kernel translates a connection.
func (paths) Endpoint(protocol corev1.Protocol, local, remote netip.AddrPort) (netip.AddrPort, bool) {
	number := uint8(unix.IPPROTO_TCP)
	if protocol == corev1.ProtocolUDP {
		number = unix.IPPROTO_UDP
	}
	return whereto.Endpoint(number, local, remote)
}

// Route is the route that packets to an address take.
func (paths) Route(to netip.Addr) string { return whereto.Route(to) }

func purgeProxy(_ context.Context, dir DataDir) error {
	if os.Getuid() != 0 {
		return nil
	}
	return proxy.Purge(serviceTable(dir))
}
