// SPDX-License-Identifier: Apache-2.0

package noderoles

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

// ServiceProxy returns the part that runs the service proxy of this node.
func (n *Node) ServiceProxy() (run.Func, error) { return n.proxy.Run, nil }

func (n *Node) newProxy() (*proxy.Proxy, error) {
	options := n.Options.Proxy
	options.ExternalIPs = n.Gates.AllowServiceExternalIPs
	cl := n.Client(ProxyName)
	var servers []netip.AddrPort
	if !n.Server && cl.Config != nil {
		servers = nodehost.ServerAddresses(context.Background(), cl.Config.Host)
	}
	ranges := n.PodCIDRs
	if n.CNI.Enabled() {
		ranges = nil // the plugins choose the addresses
	}
	return proxy.New(proxy.Config{
		Client:   cl,
		NodeName: n.NodeName,
		Table:    nodehost.ServiceTable(n.Dir),
		PodCIDRs: ranges,
		PodGroup: n.PodGroup,
		Servers:  servers,
		Reserved: n.reservedPorts(),
		Options:  options,
		Pages:    proxyPages(n.Flags),
		Metrics:  n.ProxyMetrics,
		Marks:    n.Marks,
		Log:      n.logOf(eventlog.Proxy),
	})
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
func (n *Node) reservedPorts() map[services.HostPort]string {
	out := map[services.HostPort]string{}
	for what, addr := range n.Reserved {
		if ap, err := netip.ParseAddrPort(addr.String()); err == nil {
			out[services.HostPort{Proto: unix.IPPROTO_TCP, Port: ap.Port()}] = what
		}
	}
	out[services.HostPort{
		Proto: unix.IPPROTO_TCP,
		Port:  uint16(cmp.Or(n.Options.Kubelet.KubeletPort, nodehost.DefaultKubeletPort)),
	}] = "the kubelet"
	if mode := cmp.Or(n.PodRoutes.Mode, mesh.Auto); mode != mesh.None {
		out[services.HostPort{
			Proto: unix.IPPROTO_UDP,
			Port:  uint16(cmp.Or(n.PodRoutes.Port, mode.DefaultPort())),
		}] = "the tunnel of the pod network"
	}
	return out
}

// serviceRules reports which rules of a Service are in the kernel; nil: this process runs no service proxy.
func (n *Node) serviceRules() reach.Rules {
	if n.proxy == nil {
		return nil
	}
	return n.proxy.Rules
}

// PurgeProxy removes the nftables rules.
func PurgeProxy(_ context.Context, dir datadir.Dir) error {
	if os.Getuid() != 0 {
		return nil
	}
	return proxy.Purge(nodehost.ServiceTable(dir))
}
