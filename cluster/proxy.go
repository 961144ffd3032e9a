// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"keelson/cluster/agents"
	"keelson/cluster/datadir"
	"keelson/cluster/nodehost"
	"keelson/event/eventlog"
	"keelson/kubelet/reach"
	"keelson/lib/run"
	"keelson/network/mesh"
	"keelson/proxy"
	"keelson/proxy/services"
)

// proxyRole is the name of the service proxy's role.
const proxyRole = "proxy"

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
		servers = nodehost.ServerAddresses(context.Background(), cl.Config.Host)
	}
	var err error
	s.node.services, err = proxy.New(proxy.Config{
		Client:   cl,
		NodeName: s.cfg.NodeName,
		Table:    nodehost.ServiceTable(s.dir),
		PodCIDRs: s.cfg.podRanges(),
		PodGroup: s.node.podGroup,
		Servers:  servers,
		Reserved: s.reservedPorts(),
		Options:  options,
		Pages:    proxyPages(s.cfg.API.Flags),
		Metrics:  s.metrics.proxy,
		Marks:    s.marks,
		Log:      s.logOf(eventlog.Proxy),
	})
	return s.node.services, err
}

// proxyPages serves /statusz and /flagz of the service proxy. Any program on the node can read them, so of the
// process's flags there are those of the proxy alone.
func proxyPages(all func() map[string]string) http.Handler {
	flags := all
	if all != nil {
		flags = func() map[string]string {
			values := all()
			out := map[string]string{}
			for _, row := range new(proxy.Options).Rows() {
				if value, ok := values[row.Name]; ok {
					out[row.Name] = value
				}
			}
			return out
		}
	}
	mux := http.NewServeMux()
	agents.Pages(mux, "kube-proxy", flags, "/healthz", "/proxyMode")
	return mux
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
		Port:  uint16(cmp.Or(s.cfg.Node.KubeletPort, nodehost.DefaultKubeletPort)),
	}] = "the kubelet"
	if mode := cmp.Or(s.cfg.PodRoutes.Mode, mesh.Auto); mode != mesh.None {
		out[services.HostPort{
			Proto: unix.IPPROTO_UDP,
			Port:  uint16(cmp.Or(s.cfg.PodRoutes.Port, mode.DefaultPort())),
		}] = "the tunnel of the pod network"
	}
	return out
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

func purgeProxy(_ context.Context, dir datadir.Dir) error {
	if os.Getuid() != 0 {
		return nil
	}
	return proxy.Purge(nodehost.ServiceTable(dir))
}
