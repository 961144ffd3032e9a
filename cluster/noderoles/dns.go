// SPDX-License-Identifier: Apache-2.0

package noderoles

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"keelson/dns"
	"keelson/event/eventlog"
	"keelson/lib/run"
)

// DNSRules are the DNS server's RBAC rules. NodeRestriction limits its writes to its own node's objects.
func DNSRules() []rbacv1.PolicyRule {
	on := func(verbs, group string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: strings.Fields(verbs), APIGroups: []string{group}, Resources: resources}
	}
	config := on("get list watch", "", "configmaps")
	config.ResourceNames = []string{dns.ConfigMap}
	return []rbacv1.PolicyRule{
		on("get list watch", "", "services", "namespaces", "nodes"),
		on("get list watch", "discovery.k8s.io", "endpointslices"), config,
		on("create", "", "services"), on("create update delete", "discovery.k8s.io", "endpointslices"),
		on("create patch", "", "events"),
		{Verbs: []string{"post"}, NonResourceURLs: []string{"/keelson/v1/marks"}},
	}
}

// DNSServer returns the part that runs this node's DNS server.
func (n *Node) DNSServer() (run.Func, error) {
	listen, err := n.DNS.Address()
	if err != nil {
		return nil, err
	}
	allow, err := n.DNS.Ranges()
	if err != nil {
		return nil, err
	}
	anyPort := false
	second := netip.Addr{}
	if !listen.IsValid() {
		if n.Endpoint != "" {
			return nil, nil // with a foreign pod network no address to listen on is known
		}
		if len(n.PodCIDRs) == 0 {
			return nil, errors.New("no address to answer at: name one with --dns-listen")
		}
		listen = netip.AddrPortFrom(n.PodCIDRs[0].Masked().Addr().Next(), 53)
		anyPort = true
		if len(n.PodCIDRs) > 1 {
			second = n.PodCIDRs[1].Masked().Addr().Next()
		}
	}
	ip, err := n.clusterDNS()
	if err != nil {
		return nil, err
	}
	server, err := dns.New(dns.Config{
		Pod:        n.podAddressCheck(),
		Client:     n.Client(DNSName),
		NodeName:   n.NodeName,
		Listen:     listen,
		Second:     second,
		AnyPort:    anyPort,
		ServiceIP:  ip,
		Domain:     n.Options.Kubelet.Domain(),
		File:       n.DNS.Config,
		ResolvConf: n.Options.Kubelet.ResolvConf,
		Allowed:    allow,
		Meter:      n.DNSMetrics,
		Marks:      n.Marks,
		Log:        n.logOf(eventlog.DNS),
	})
	if err != nil {
		return nil, err
	}
	return server.Run, nil
}

// WithdrawDNS returns the part that removes the EndpointSlice entry of an earlier run's DNS server: another server has
// its address now.
func (n *Node) WithdrawDNS() (run.Func, error) {
	cl := n.Client(DNSName)
	return func(ctx context.Context, ready func()) error {
		if err := dns.Withdraw(ctx, cl, n.NodeName); err != nil {
			n.logOf(eventlog.DNS).Warn("remove the endpoint of this node's DNS server", "err", err)
		}
		ready()
		<-ctx.Done()
		return nil
	}, nil
}

// podAddressCheck returns a function that reports whether an address is that of a pod on this node; nil when the ranges
// of pod addresses say so.
func (n *Node) podAddressCheck() func(netip.Addr) bool {
	if !n.CNI.Enabled() || n.runtime == nil || n.runtime.Plugins == nil {
		return nil
	}
	return n.runtime.Plugins.Has
}
