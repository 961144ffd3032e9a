// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The node's resolv.conf, and the one of systemd-resolved with the real servers.
const (
	nodeResolvConf = "/etc/resolv.conf"
	realResolvConf = "/run/systemd/resolve/resolv.conf"
)

// HostDNS returns the node's resolver configuration from file, by default /etc/resolv.conf. If that names only the stub
// of systemd-resolved, which pods cannot reach, it uses the file with the real servers, as kubeadm configures a
// kubelet. read is os.ReadFile; a missing file is empty.
func HostDNS(read func(string) ([]byte, error), file string) (*runtimeapi.DNSConfig, error) {
	d, err := readResolvConf(read, cmp.Or(file, nodeResolvConf))
	if err != nil || file != "" || !stubbed(d.GetServers()) {
		return d, err
	}
	behind, err := readResolvConf(read, realResolvConf)
	if err != nil || len(behind.GetServers()) == 0 {
		return d, err
	}
	return behind, nil
}

func readResolvConf(read func(string) ([]byte, error), file string) (*runtimeapi.DNSConfig, error) {
	b, err := read(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the node's resolvers: %w", err)
	}
	return ParseResolvConf(bytes.NewReader(b))
}

// stubbed reports whether all servers are stubs of systemd-resolved: 127.0.0.53 or 127.0.0.54.
func stubbed(servers []string) bool {
	return len(servers) > 0 && !slices.ContainsFunc(servers, func(s string) bool {
		return s != "127.0.0.53" && s != "127.0.0.54"
	})
}

// ParseResolvConf parses a resolv.conf. Unknown lines are skipped. The last search line wins, and the last option of a
// name.
func ParseResolvConf(r io.Reader) (*runtimeapi.DNSConfig, error) {
	dnsConfig := &runtimeapi.DNSConfig{}
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) == 0 {
			continue
		}
		switch f[0] {
		case "nameserver":
			if len(f) > 1 {
				dnsConfig.Servers = append(dnsConfig.Servers, f[1])
			}
		case "search":
			dnsConfig.Searches = nil
			for _, s := range f[1:] {
				if s != "." {
					dnsConfig.Searches = append(dnsConfig.Searches, strings.TrimSuffix(s, "."))
				}
			}
		case "options":
			for _, o := range f[1:] {
				dnsConfig.Options = setOption(dnsConfig.Options, o)
			}
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("read resolv.conf: %w", err)
	}
	return dnsConfig, nil
}

// Limits of the resolver library, and of Kubernetes.
const (
	maxServers  = 3
	maxSearches = 32
	maxSearch   = 2048 // of all, with the spaces between
	maxDomain   = 253  // of one: glibc ends a program that has a longer one
)

// Warning is a message for an event.
type Warning struct {
	Reason, Message string
	// Node: the event is about the node, else about the pod.
	Node bool
}

// DNS returns a pod's resolver configuration by its dnsPolicy. host is the node's configuration; cluster lists the
// cluster's DNS servers. Without cluster servers, a pod with ClusterFirst gets host. Warnings report this, and what was
// left out because of limits.
func DNS(
	pod *corev1.Pod, host *runtimeapi.DNSConfig, cluster []string, domain string,
) (dnsConfig *runtimeapi.DNSConfig, warnings []Warning) {
	policy := pod.Spec.DNSPolicy
	if policy == corev1.DNSClusterFirst && pod.Spec.HostNetwork {
		policy = corev1.DNSDefault
	}
	dnsConfig = &runtimeapi.DNSConfig{}
	switch policy {
	case corev1.DNSNone:
	case corev1.DNSDefault:
		dnsConfig = clone(host)
	default: // ClusterFirst, ClusterFirstWithHostNet; others are refused by the API server
		if len(cluster) == 0 {
			dnsConfig = clone(host)
			text := fmt.Sprintf("kubelet does not have ClusterDNS IP configured and cannot create Pod using %q "+
				"policy. Falling back to %q policy.", corev1.DNSClusterFirst, corev1.DNSDefault)
			warnings = append(warnings,
				Warning{Reason: "MissingClusterDNS", Message: text, Node: true},
				Warning{
					Reason: "MissingClusterDNS",
					Message: fmt.Sprintf("pod: %q. %s", fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID),
						text),
				})
			break
		}
		dnsConfig.Servers = slices.Clone(cluster)
		dnsConfig.Searches = slices.Clone(host.GetSearches())
		dnsConfig.Options = []string{"ndots:5"}
		if domain != "" {
			dnsConfig.Searches = unique([]string{pod.Namespace + ".svc." + domain, "svc." + domain, domain},
				host.GetSearches())
		}
	}
	if c := pod.Spec.DNSConfig; c != nil {
		dnsConfig.Servers = unique(dnsConfig.Servers, c.Nameservers)
		dnsConfig.Searches = unique(dnsConfig.Searches, c.Searches)
		for _, o := range c.Options {
			text := o.Name
			if o.Value != nil && *o.Value != "" {
				text += ":" + *o.Value
			}
			dnsConfig.Options = setOption(dnsConfig.Options, text)
		}
	}
	return dnsConfig, append(warnings, fit(dnsConfig)...)
}

// fit truncates dnsConfig to the limits.
func fit(dnsConfig *runtimeapi.DNSConfig) (warnings []Warning) {
	if len(dnsConfig.Servers) > maxServers {
		dnsConfig.Servers = dnsConfig.Servers[:maxServers]
		warnings = append(warnings, Warning{
			Reason: "DNSConfigForming",
			Message: "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver " +
				"line is: " + strings.Join(dnsConfig.Servers, " "),
		})
	}
	n := len(dnsConfig.Searches)
	dnsConfig.Searches = dnsConfig.Searches[:min(n, maxSearches)]
	dnsConfig.Searches = slices.DeleteFunc(dnsConfig.Searches, func(s string) bool { return len(s) > maxDomain })
	for len(strings.Join(dnsConfig.Searches, " ")) > maxSearch {
		dnsConfig.Searches = dnsConfig.Searches[:len(dnsConfig.Searches)-1]
	}
	if len(dnsConfig.Searches) < n {
		warnings = append(warnings, Warning{
			Reason: "DNSConfigForming",
			Message: "Search Line limits were exceeded, some search paths have been omitted, the applied search line " +
				"is: " + strings.Join(dnsConfig.Searches, " "),
		})
	}
	return warnings
}

func clone(d *runtimeapi.DNSConfig) *runtimeapi.DNSConfig {
	return &runtimeapi.DNSConfig{
		Servers:  slices.Clone(d.GetServers()),
		Searches: slices.Clone(d.GetSearches()),
		Options:  slices.Clone(d.GetOptions()),
	}
}

// unique returns a and then b without duplicates.
func unique(a, b []string) []string {
	var out []string
	for _, list := range [][]string{a, b} {
		for _, s := range list {
			if !slices.Contains(out, s) {
				out = append(out, s)
			}
		}
	}
	return out
}

// setOption replaces the options of the same name by NAME or NAME:VALUE.
func setOption(have []string, option string) []string {
	name, _, _ := strings.Cut(option, ":")
	have = slices.DeleteFunc(have, func(s string) bool {
		old, _, _ := strings.Cut(s, ":")
		return old == name
	})
	return append(have, option)
}

// Hosts returns the content of a pod's /etc/hosts. For a pod on the host network it is based on node, the node's file.
func Hosts(pod *corev1.Pod, podIPs []string, domain string, node []byte) []byte {
	var out strings.Builder
	if pod.Spec.HostNetwork {
		out.WriteString("# Kubernetes-managed hosts file (host network).\n")
		out.Write(node)
	} else {
		out.WriteString("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost " +
			"ip6-loopback\n" +
			"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
		host, dom := Hostname(pod, domain)
		for _, ip := range podIPs {
			if dom != "" {
				fmt.Fprintf(&out, "%s\t%s.%s\t%s\n", ip, host, dom, host)
			} else {
				fmt.Fprintf(&out, "%s\t%s\n", ip, host)
			}
		}
	}
	if len(pod.Spec.HostAliases) > 0 {
		out.WriteString("\n# Entries added by HostAliases.\n")
		for _, a := range pod.Spec.HostAliases {
			fmt.Fprintf(&out, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
		}
	}
	return []byte(out.String())
}
