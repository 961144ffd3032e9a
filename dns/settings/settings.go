// SPDX-License-Identifier: Apache-2.0

// Package settings reads what a person says about names: the configuration of the DNS server and the node's
// resolv.conf. dns calls it; it opens no file.
package settings

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
	"sigs.k8s.io/yaml"
)

// File is the configuration as it is written, in YAML.
type File struct {
	// Upstreams are asked for names that no one else knows, in place of the node's resolvers: ADDRESS or ADDRESS:PORT.
	Upstreams []string `json:"upstreams,omitempty"`
	// StubDomains are domains with servers of their own.
	StubDomains map[string][]string `json:"stubDomains,omitempty"`
	// Hosts are names with their addresses.
	Hosts map[string][]string `json:"hosts,omitempty"`
}

// Settings are a File, understood. They are immutable.
type Settings struct {
	// Upstreams is empty where the node's resolvers are meant.
	Upstreams []netip.AddrPort
	Stubs     []Stub
	// Hosts are by name, complete and lower case; Back are names by address.
	Hosts map[string][]netip.Addr
	Back  map[netip.Addr][]string
}

// Stub is a domain, complete and lower case, with its servers.
type Stub struct {
	Domain  string
	Servers []netip.AddrPort
}

// Bounds of a configuration.
const (
	maxBytes   = 1 << 20
	maxDomains = 1000
	maxHosts   = 10000
	maxServers = 15 // per domain
)

// Parse understands a configuration or says everything that is wrong with it. An empty one is right. domain is the
// cluster's.
func Parse(text []byte, domain string) (*Settings, error) {
	if len(text) > maxBytes {
		return nil, fmt.Errorf("%d bytes: at most %d are read", len(text), maxBytes)
	}
	var file File
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		return nil, err
	}
	settings := &Settings{Hosts: map[string][]netip.Addr{}, Back: map[netip.Addr][]string{}}
	var errs []error
	var err error
	if settings.Upstreams, err = servers("upstreams", file.Upstreams); err != nil {
		errs = append(errs, err)
	}
	if len(file.StubDomains) > maxDomains || len(file.Hosts) > maxHosts {
		return nil, fmt.Errorf("%d stub domains and %d hosts: at most %d and %d are possible", len(file.StubDomains),
			len(file.Hosts), maxDomains, maxHosts)
	}
	for _, d := range sorted(file.StubDomains) {
		at := "stubDomains[" + d + "]"
		name, err := fqdn(d)
		list, err2 := servers(at, file.StubDomains[d])
		if err == nil && dns.IsSubDomain(dns.Fqdn(domain), name) {
			err = fmt.Errorf("names below %s are the cluster's own", domain)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", at, err)
		}
		if err2 == nil && len(list) == 0 {
			err2 = fmt.Errorf("%s: no server is named", at)
		}
		errs = append(errs, err, err2)
		settings.Stubs = append(settings.Stubs, Stub{name, list})
	}
	for _, h := range sorted(file.Hosts) {
		errs = append(errs, settings.host(h, file.Hosts[h], domain))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return settings, nil
}

func (s *Settings) host(h string, addrs []string, domain string) error {
	name, err := fqdn(h)
	if err == nil && dns.IsSubDomain(dns.Fqdn(domain), name) {
		err = fmt.Errorf("names below %s are the cluster's own", domain)
	}
	if err == nil && len(addrs) == 0 {
		err = errors.New("no address is given")
	}
	for _, text := range addrs {
		a, bad := netip.ParseAddr(text)
		if bad != nil || a.Zone() != "" {
			err = errors.Join(err, fmt.Errorf("%q is not an IP address", text))
			continue
		}
		s.Hosts[name] = append(s.Hosts[name], a.Unmap())
		s.Back[a.Unmap()] = append(s.Back[a.Unmap()], name)
	}
	if err != nil {
		return fmt.Errorf("hosts[%s]: %w", h, err)
	}
	return nil
}

func sorted(m map[string][]string) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func fqdn(name string) (string, error) {
	if _, ok := dns.IsDomainName(name); !ok || strings.Trim(name, ".") == "" || strings.ContainsAny(name, " \t\\*") {
		return "", errors.New("it is not a domain name")
	}
	return strings.ToLower(dns.Fqdn(name)), nil
}

func servers(at string, texts []string) ([]netip.AddrPort, error) {
	if len(texts) > maxServers {
		return nil, fmt.Errorf("%s: %d servers: at most %d are possible", at, len(texts), maxServers)
	}
	var out []netip.AddrPort
	var errs []error
	for _, t := range texts {
		ap, err := server(t)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", at, err))
			continue
		}
		out = append(out, ap)
	}
	return out, errors.Join(errs...)
}

func server(text string) (netip.AddrPort, error) {
	ap, err := netip.ParseAddrPort(text)
	if err != nil {
		var a netip.Addr
		if a, err = netip.ParseAddr(text); err == nil {
			ap = netip.AddrPortFrom(a, 53)
		}
	}
	switch {
	case err != nil:
		return ap, fmt.Errorf("%q is neither ADDRESS nor ADDRESS:PORT", text)
	case ap.Addr().IsUnspecified() || ap.Addr().IsMulticast() || ap.Port() == 0:
		return ap, fmt.Errorf("%q is no server's address", text)
	}
	return ap, nil
}

// maxNode is how many servers of a resolv.conf a resolver library looks at.
const maxNode = 3

// Resolvers are the servers that a resolv.conf names. What it says of no address is left out.
func Resolvers(text []byte) []netip.AddrPort {
	var out []netip.AddrPort
	sc := bufio.NewScanner(bytes.NewReader(text[:min(len(text), maxBytes)]))
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) < 2 || f[0] != "nameserver" || len(out) == maxNode {
			continue
		}
		a, err := netip.ParseAddr(f[1])
		if err != nil || a.IsMulticast() {
			continue
		}
		if a.IsUnspecified() { // resolv.conf(5): this machine
			a = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		out = append(out, netip.AddrPortFrom(a, 53))
	}
	return out
}
