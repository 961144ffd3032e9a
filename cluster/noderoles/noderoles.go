// SPDX-License-Identifier: Apache-2.0

// Package noderoles makes the roles of a machine's node: its container runtime with the pod network, and what runs next
// to it, kubelet, service proxy, network policies, DNS server and pod routes. The table of roles calls it, in
// `keelson up`, in a kubelet's process, and for each role in a process of its own. Package nodehost has the machine;
// this one has the agents on it. It starts nothing.
package noderoles

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"keelson/api/gates"
	"keelson/client"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/cluster/nodehost"
	"keelson/controllers/framework"
	"keelson/dns"
	"keelson/dns/meter"
	"keelson/event"
	"keelson/event/eventlog"
	"keelson/kubelet/identity"
	"keelson/lib/run"
	"keelson/proxy"
	"keelson/proxy/policy"
)

// The names of the roles that are known here.
const (
	RuntimeName = "container runtime"
	KubeletName = "kubelet"
	ProxyName   = "proxy"
	PolicyName  = "networkpolicy"
	DNSName     = "dns"
	RoutesName  = "pod routes"
)

// Config is what the roles of a node share.
type Config struct {
	NodeName string
	Dir      datadir.Dir
	Here
	Process
	Addresses
	Options
	// RootCA has the cluster's authorities.
	RootCA       framework.Bundle
	ProxyMetrics *proxy.Metrics // may be nil
	DNSMetrics   *meter.Meter   // may be nil
	// Client creates the client of a role, by its name.
	Client func(role string) *client.Client
	Marks  *event.Recorder
	Log    *slog.Logger
}

// Here is what this process has, and not another one.
type Here struct {
	Server bool // the API server
	// Runtime is the container runtime; nil: not here.
	Runtime         *nodehost.RuntimeConfig
	Proxy, Policies bool
}

// Process is what a node's process and machine have.
type Process struct {
	// Reserved are the ports of this machine that pods must not use, by the name of the listener.
	Reserved map[string]net.Addr
	// LeaseInterval is the lease renewal interval; 0: Kubernetes' default.
	LeaseInterval time.Duration
	// PodGroup is the link group of the node's pods; 0 if another process has them, whose data directory may differ.
	PodGroup uint32
	// Serving and Identity are the kubelet's certificates and their metrics.
	Serving  credentials.KubeletServing
	Identity *identity.Metrics
}

// Addresses are those of the node and its cluster.
type Addresses struct {
	PodCIDRs []netip.Prefix // the node's
	NodeIPs  []netip.Addr
	Services []netip.Prefix // the service CIDRs
	// ClusterCIDRs are the pod CIDRs of the cluster, as far as the node knows them.
	ClusterCIDRs []netip.Prefix
}

// Options are those of the user.
type Options struct {
	// Endpoint is the CRI socket of a runtime that is not Keelson's; empty: the built-in one.
	Endpoint  string
	Kubelet   nodehost.Options
	CNI       nodehost.CNIOptions
	PodRoutes nodehost.PodRouteOptions
	Proxy     proxy.Options
	DNS       dns.Options
	Gates     gates.On
	// Flags are the process's, for pages that show them; may be nil.
	Flags func() map[string]string
}

// Node has the roles of one node. What several of them use is made once, in New.
type Node struct {
	Config
	policies *policy.Agent     // nil: this process enforces no policies
	runtime  *nodehost.Runtime // nil: another process has it
	proxy    *proxy.Proxy      // nil: this process has no service proxy
}

// New makes what the roles share, each of what was made before: the runtime asks the policies about each new pod, and
// the kubelet asks the proxy which rules are written.
func New(cfg Config) (*Node, error) {
	node := &Node{Config: cfg}
	if cfg.Policies {
		node.policies = node.newPolicies()
	}
	var err error
	if cfg.Runtime != nil {
		if node.runtime, err = node.openRuntime(*cfg.Runtime); err != nil {
			return nil, err
		}
	}
	if cfg.Here.Proxy {
		if node.proxy, err = node.newProxy(); err != nil {
			return nil, err
		}
	}
	return node, nil
}

// logOf returns the log of a component.
func (n *Node) logOf(component string) *slog.Logger { return n.Log.With(eventlog.Key, component) }

// openRuntime connects to, or creates, the container runtime.
func (n *Node) openRuntime(of nodehost.RuntimeConfig) (*nodehost.Runtime, error) {
	of.Connected = n.connected()
	of.Marks = n.Marks
	of.Log = n.Log
	runtime, err := nodehost.OpenRuntime(of)
	if err != nil {
		return nil, err
	}
	for what, addr := range n.Reserved {
		runtime.Reserve(addr, what)
	}
	return runtime, nil
}

// connected returns the function that passes a new pod's addresses to the policy agent; nil: this process enforces no
// policies.
func (n *Node) connected() nodehost.PodConnected {
	if n.policies == nil {
		if err := PurgePolicies(context.Background(), n.Dir); err != nil { // of an earlier run that enforced them
			n.logOf(eventlog.NetworkPolicy).Error("remove the rules of network policies", "err", err)
		}
		return nil
	}
	return func(ctx context.Context, pod *runtimeapi.PodSandboxConfig, addrs []netip.Addr) error {
		return n.policies.Connected(ctx, pod.GetMetadata().GetNamespace(), pod.GetMetadata().GetName(),
			pod.GetLabels(), addrs)
	}
}

// Network returns the part that runs the pod network; nil: the runtime has its own.
func (n *Node) Network() (run.Func, error) { return n.runtime.RunNetwork, nil }

// ContainerRuntime returns the part that runs the container runtime; nil: it is a process of its own.
func (n *Node) ContainerRuntime() (run.Func, error) { return n.runtime.Run, nil }

// clusterDNS is the address of the cluster's DNS server: the kubelet's first --cluster-dns, else the tenth of the
// service CIDR.
func (n *Node) clusterDNS() (netip.Addr, error) {
	if len(n.Options.Kubelet.ClusterDNS) > 0 {
		return netip.ParseAddr(n.Options.Kubelet.ClusterDNS[0])
	}
	if len(n.Services) == 0 {
		return netip.Addr{}, fmt.Errorf("node %s knows no range of Services", n.NodeName)
	}
	a := n.Services[0].Masked().Addr()
	for range 10 {
		a = a.Next()
	}
	return a, nil
}

// podResolvers are the nameservers in pods' resolv.conf; none where no cluster DNS server is known: pods then use the
// node's own.
func (n *Node) podResolvers() []string {
	if len(n.Options.Kubelet.ClusterDNS) > 0 {
		return n.Options.Kubelet.ClusterDNS
	}
	if a, err := n.clusterDNS(); err == nil && n.Endpoint == "" {
		return []string{a.String()}
	}
	return nil
}

// NetworkIdentity identifies the cluster to other machines.
func (n *Node) NetworkIdentity() string {
	if kept, err := os.ReadFile(n.Dir.Sub(credentials.NetworkFile)); err == nil && n.Dir != "" {
		return strings.TrimSpace(string(kept))
	}
	return credentials.NetworkIdentityOf(n.RootCA.PEM())
}
