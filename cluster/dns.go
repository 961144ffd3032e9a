// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"

	"keelson/dns"
	"keelson/event"
	"keelson/event/eventlog"
	"keelson/lib/run"
)

// dnsRole is the name of the DNS server's role.
const dnsRole = "dns"

// dnsRules are the DNS server's RBAC rules. NodeRestriction limits its writes to its own node's objects.
func dnsRules() []rbacv1.PolicyRule {
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

var dnsSteps = []event.Step{event.StepResolvable}

// dns returns the function that runs this node's DNS server.
func (s *site) dns() (run.Func, error) {
	listen, err := s.cfg.DNS.Address()
	if err != nil {
		return nil, err
	}
	allow, err := s.cfg.DNS.Ranges()
	if err != nil {
		return nil, err
	}
	anyPort := false
	second := netip.Addr{}
	if !listen.IsValid() {
		if s.cfg.RuntimeEndpoint != "" {
			return nil, nil // with a foreign pod network no address to listen on is known
		}
		if len(s.cfg.PodCIDRs) == 0 {
			return nil, errors.New("no address to answer at: name one with --dns-listen")
		}
		listen = netip.AddrPortFrom(s.cfg.PodCIDRs[0].Masked().Addr().Next(), 53)
		anyPort = true
		if len(s.cfg.PodCIDRs) > 1 {
			second = s.cfg.PodCIDRs[1].Masked().Addr().Next()
		}
	}
	ip, err := s.cfg.clusterDNS()
	if err != nil {
		return nil, err
	}
	pod, err := s.podAddressCheck()
	if err != nil {
		return nil, err
	}
	server, err := dns.New(dns.Config{
		Pod:        pod,
		Client:     s.client(roleNamed(dnsRole).roleIdentity),
		NodeName:   s.cfg.NodeName,
		Listen:     listen,
		Second:     second,
		AnyPort:    anyPort,
		ServiceIP:  ip,
		Domain:     s.cfg.Node.Domain(),
		File:       s.cfg.DNS.Config,
		ResolvConf: s.cfg.Node.ResolvConf,
		Allowed:    allow,
		Meter:      s.metrics.dns,
		Marks:      s.marks,
		Log:        s.logOf(eventlog.DNS),
	})
	if err != nil {
		return nil, err
	}
	return server.Run, nil
}

// removeDNS removes the EndpointSlice entry of an earlier run's DNS server: another server has its address now.
func (s *site) removeDNS() (run.Func, error) {
	cl := s.client(roleNamed(dnsRole).roleIdentity)
	return func(ctx context.Context, ready func()) error {
		if err := dns.Withdraw(ctx, cl, s.cfg.NodeName); err != nil {
			s.logOf(eventlog.DNS).Warn("remove the endpoint of this node's DNS server", "err", err)
		}
		ready()
		<-ctx.Done()
		return nil
	}, nil
}

func roleNamed(name string) role {
	rows := table()
	return rows[slices.IndexFunc(rows, func(r role) bool { return r.name == name })]
}

// clusterDNS is the address of the cluster's DNS server: the kubelet's first --cluster-dns, else the tenth of the
// service CIDR.
func (c Config) clusterDNS() (netip.Addr, error) {
	if len(c.Node.ClusterDNS) > 0 {
		return netip.ParseAddr(c.Node.ClusterDNS[0])
	}
	ranges := c.keptServices
	if len(ranges) == 0 {
		var err error
		if ranges, err = c.Services.Ranges(); err != nil {
			return netip.Addr{}, err
		}
	}
	a := ranges[0].Masked().Addr()
	for range 10 {
		a = a.Next()
	}
	return a, nil
}

// podResolvers are the nameservers in pods' resolv.conf; none without a cluster DNS server: pods then use the node's
// own.
func (c Config) podResolvers() []string {
	if len(c.Node.ClusterDNS) > 0 {
		return c.Node.ClusterDNS
	}
	proxied := slices.ContainsFunc(table(), func(r role) bool { return r.choice == "proxy" })
	if a, err := c.clusterDNS(); err == nil && proxied && c.RuntimeEndpoint == "" {
		return []string{a.String()}
	}
	return nil
}
