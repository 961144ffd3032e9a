// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"keelson/runtime/image/manifest"
)

// Endpoint is a registry or mirror from which an image can be pulled.
type Endpoint struct {
	Host   string // host[:port]
	prefix string // put before the repository's path
	rules  []rule // rewrite the repository's path; the first that matches counts
	plain  bool   // HTTP without TLS is allowed
	Mirror bool
}

// parseMirror parses a mirror's URL: scheme, host, and a path that is a repository prefix. A path may begin with the
// API's /v2.
func parseMirror(raw string) (Endpoint, error) {
	target, err := url.Parse(raw)
	if err != nil {
		return Endpoint{}, fmt.Errorf("%q: %w", raw, err)
	}
	if target.Scheme != "http" && target.Scheme != "https" || target.Host == "" || target.RawQuery != "" ||
		target.Fragment != "" ||
		target.User != nil {
		return Endpoint{}, fmt.Errorf("%q is not of the form http[s]://HOST[:PORT][/PREFIX]", raw)
	}
	prefix := strings.Trim(target.Path, "/")
	if first, rest, _ := strings.Cut(prefix, "/"); first == "v2" {
		prefix = rest
	}
	return Endpoint{
		Host:   target.Host,
		prefix: prefix,
		plain:  target.Scheme == "http",
		Mirror: true,
	}, nil
}

// Registries are where images are pulled from.
type Registries struct {
	mirrors     map[string][]Endpoint // by the registry's host
	hosts       map[string]Host
	connections *connections
}

// New returns the registries with their mirrors and hosts. It reads no file.
func New(s Settings) (*Registries, error) {
	r := &Registries{mirrors: map[string][]Endpoint{}, hosts: s.Hosts}
	for host, mirror := range s.Mirrors {
		var rules []rule
		for _, from := range slices.Sorted(maps.Keys(mirror.Rewrite)) {
			expression, err := regexp.Compile(from)
			if err != nil {
				return nil, fmt.Errorf("mirror of %s: rewrite: %w", host, err)
			}
			rules = append(rules, rule{from: expression, to: mirror.Rewrite[from]})
		}
		r.mirrors[host] = nil // a row without endpoints is one: "*" is not for it
		for _, url := range mirror.Endpoints {
			endpoint, err := parseMirror(url)
			if err != nil {
				return nil, fmt.Errorf("mirror of %s: %w", host, err)
			}
			endpoint.rules = rules
			r.mirrors[host] = append(r.mirrors[host], endpoint)
		}
	}
	var err error
	r.connections, err = newConnections(slices.Concat(slices.Collect(maps.Values(r.mirrors))...), s.Hosts)
	return r, err
}

// Endpoints returns the endpoints for n in order: the mirrors, then the registry.
func (r *Registries) Endpoints(n manifest.Name) []Endpoint {
	mirrors, ok := r.mirrors[n.Host]
	if !ok {
		mirrors = r.mirrors["*"]
	}
	return append(slices.Clone(mirrors), Endpoint{Host: n.Host, plain: isLoopback(n.Host) || r.plainMirror(n.Host)})
}

// plainMirror reports whether host is a mirror that does without TLS. An image may also name it directly.
func (r *Registries) plainMirror(host string) bool {
	for _, mirrors := range r.mirrors {
		for _, m := range mirrors {
			if m.plain && hostPort(m.Host, "http") == hostPort(host, "http") {
				return true
			}
		}
	}
	return false
}

// login returns the credentials of the settings for an endpoint; nil: none.
func (r *Registries) login(e Endpoint) *Auth {
	address := hostPort(registryHost(e.Host), e.scheme())
	for host, settings := range r.hosts {
		if hostPort(registryHost(host), e.scheme()) == address {
			return settings.Auth
		}
	}
	return nil
}

func (e Endpoint) scheme() string {
	if e.plain {
		return "http"
	}
	return "https"
}

// reference returns n as a reference at this endpoint.
func (e Endpoint) reference(n manifest.Name) (name.Reference, error) {
	path := n.Path
	for _, rule := range e.rules {
		if rule.from.MatchString(path) {
			path = rule.from.ReplaceAllString(path, rule.to)
			break
		}
	}
	repo := e.Host + "/" + path
	if e.prefix != "" {
		repo = e.Host + "/" + e.prefix + "/" + path
	}
	var opts []name.Option
	if e.plain {
		opts = append(opts, name.Insecure)
	}
	if n.Digest != "" {
		return name.NewDigest(repo+"@"+n.Digest, opts...)
	}
	return name.NewTag(repo+":"+n.Tag, opts...)
}

// isLoopback reports whether host is localhost or a loopback address, with or without a port.
func isLoopback(host string) bool {
	h, _, err := net.SplitHostPort(host)
	if err != nil {
		h = strings.Trim(host, "[]")
	}
	if h == "localhost" || strings.HasSuffix(h, ".localhost") {
		return true
	}
	a, err := netip.ParseAddr(h)
	return err == nil && a.IsLoopback()
}
