// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ParseResolvConf reads a resolv.conf. Lines it does not know are skipped.
func ParseResolvConf(r io.Reader) (*runtimeapi.DNSConfig, error) {
	d := &runtimeapi.DNSConfig{}
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			d.Servers = append(d.Servers, f[1])
		case "search":
			d.Searches = nil
			for _, s := range f[1:] {
				if s != "." {
					d.Searches = append(d.Searches, strings.TrimSuffix(s, "."))
				}
			}
		case "options":
			d.Options = append(d.Options, f[1:]...)
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("read resolv.conf: %w", err)
	}
	return d, nil
}

// Limits of the resolver library.
const (
	maxServers  = 3
	maxSearches = 32
	maxSearch   = 2048
)

// DNS is a pod's resolver configuration by its policy. host is the node's own; cluster lists the cluster's servers, and when
// there are none a pod that wants them gets the node's (fellBack tells).
func DNS(p *corev1.Pod, host *runtimeapi.DNSConfig, cluster []string, domain string) (d *runtimeapi.DNSConfig, fellBack bool) {
	policy := p.Spec.DNSPolicy
	if policy == corev1.DNSClusterFirst && p.Spec.HostNetwork {
		policy = corev1.DNSDefault
	}
	d = &runtimeapi.DNSConfig{}
	switch policy {
	case corev1.DNSNone:
	case corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet:
		if len(cluster) == 0 {
			d, fellBack = clone(host), true
			break
		}
		d.Servers = slices.Clone(cluster)
		if domain != "" {
			d.Searches = []string{p.Namespace + ".svc." + domain, "svc." + domain, domain}
		}
		for _, s := range host.GetSearches() {
			if !slices.Contains(d.Searches, s) {
				d.Searches = append(d.Searches, s)
			}
		}
		d.Options = []string{"ndots:5"}
	case corev1.DNSDefault:
		d = clone(host)
	default:
		d = clone(host)
	}
	if c := p.Spec.DNSConfig; c != nil {
		d.Servers = merge(d.Servers, c.Nameservers)
		d.Searches = merge(d.Searches, c.Searches)
		d.Options = options(d.Options, c.Options)
	}
	d.Servers = d.Servers[:min(len(d.Servers), maxServers)]
	d.Searches = d.Searches[:min(len(d.Searches), maxSearches)]
	for len(strings.Join(d.Searches, " ")) > maxSearch {
		d.Searches = d.Searches[:len(d.Searches)-1]
	}
	return d, fellBack
}

func clone(d *runtimeapi.DNSConfig) *runtimeapi.DNSConfig {
	return &runtimeapi.DNSConfig{
		Servers: slices.Clone(d.GetServers()), Searches: slices.Clone(d.GetSearches()), Options: slices.Clone(d.GetOptions()),
	}
}

func merge(a, b []string) []string {
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}

func options(have []string, add []corev1.PodDNSConfigOption) []string {
	for _, o := range add {
		have = slices.DeleteFunc(have, func(s string) bool {
			name, _, _ := strings.Cut(s, ":")
			return name == o.Name
		})
		if o.Value != nil && *o.Value != "" {
			have = append(have, o.Name+":"+*o.Value)
		} else {
			have = append(have, o.Name)
		}
	}
	return have
}

// Hosts is the content of a pod's /etc/hosts. A pod on the host's network gets the node's file instead, which node holds.
func Hosts(p *corev1.Pod, podIPs []string, domain string, node []byte) []byte {
	var b strings.Builder
	if p.Spec.HostNetwork {
		b.WriteString("# Kubernetes-managed hosts file (host network).\n")
		b.Write(node)
	} else {
		b.WriteString("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
		host, dom := Hostname(p, domain)
		for _, ip := range podIPs {
			if dom != "" {
				fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, host, dom, host)
			} else {
				fmt.Fprintf(&b, "%s\t%s\n", ip, host)
			}
		}
	}
	if len(p.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, a := range p.Spec.HostAliases {
			fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
		}
	}
	return []byte(b.String())
}
