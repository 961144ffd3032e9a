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

// proxyRole serves Services on this node.
const proxyRole = "proxy"

// serviceTable is the nftables table of Services.
func serviceTable(dir DataDir) string { return "keelson-" + dir.ID() + "-svc" }

// proxy serves Services on this node.
func (s *site) proxy() (run.Func, error) {
	p, err := s.serviceProxy()
	if err != nil {
		return nil, err
	}
	return p.Run, nil
}

// serviceProxy makes it once: the kubelet tells what it has written.
func (s *site) serviceProxy() (*proxy.Proxy, error) {
	if s.node.services != nil {
		return s.node.services, nil
	}
	var err error
	s.node.services, err = proxy.New(proxy.Config{
		Client: s.client(roleNamed(proxyRole).roleIdentity), NodeName: s.cfg.NodeName, Table: serviceTable(s.dir),
		PodCIDRs: s.cfg.podRanges(), PodGroup: s.node.podGroup,
		Options: s.cfg.Proxy, Marks: s.marks, Log: s.logOf(deeds.Proxy),
	})
	return s.node.services, err
}

// serviceRules tells which rules of a Service are in the kernel; nil: another proxy than this process's serves them.
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
	return nil, nil //nolint:nilnil // absence is an answer here
}

// paths asks this machine's kernel where packets go.
type paths struct{}

// Endpoint is where a connection is sent.
func (paths) Endpoint(protocol corev1.Protocol, local, remote netip.AddrPort) (netip.AddrPort, bool) {
	number := uint8(unix.IPPROTO_TCP)
	if protocol == corev1.ProtocolUDP {
		number = unix.IPPROTO_UDP
	}
	return whereto.Endpoint(number, local, remote)
}

// Route is by which way packets leave.
func (paths) Route(to netip.Addr) string { return whereto.Route(to) }

func purgeProxy(_ context.Context, dir DataDir) error {
	if os.Getuid() != 0 {
		return nil
	}
	return proxy.Purge(serviceTable(dir))
}
