// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"keelson/runtime/image/manifest"
)

// Endpoint is a registry or mirror from which an image can be pulled.
type Endpoint struct {
	Host   string // host[:port]
	prefix string // put before the repository's path
	plain  bool   // HTTP without TLS is allowed
	Mirror bool
}

// parseMirror parses a mirror's URL: scheme, host, and a path that is a repository prefix.
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
	return Endpoint{
		Host:   target.Host,
		prefix: strings.Trim(target.Path, "/"),
		plain:  target.Scheme == "http",
		Mirror: true,
	}, nil
}

// Registries are where images are pulled from.
type Registries struct {
	mirrors     map[string]Endpoint // by the registry's host
	connections *connections
}

// New returns the registries with their mirrors: the mirrors' URLs by the registries' hosts.
func New(urls map[string]string) (*Registries, error) {
	mirrors := map[string]Endpoint{}
	for host, url := range urls {
		mirror, err := parseMirror(url)
		if err != nil {
			return nil, fmt.Errorf("mirror of %s: %w", host, err)
		}
		mirrors[host] = mirror
	}
	return &Registries{mirrors: mirrors, connections: newConnections(mirrors)}, nil
}

// Endpoints returns the endpoints for n in order: the mirror, then the registry.
func (r *Registries) Endpoints(n manifest.Name) []Endpoint {
	var out []Endpoint
	if mirror, ok := r.mirrors[n.Host]; ok {
		out = append(out, mirror)
	}
	return append(out, Endpoint{Host: n.Host, plain: isLoopback(n.Host) || r.plainMirror(n.Host)})
}

// plainMirror reports whether host is a mirror that does without TLS. An image may also name it directly.
func (r *Registries) plainMirror(host string) bool {
	for _, m := range r.mirrors {
		if m.plain && hostPort(m.Host, "http") == hostPort(host, "http") {
			return true
		}
	}
	return false
}

func (e Endpoint) scheme() string {
	if e.plain {
		return "http"
	}
	return "https"
}

// reference returns n as a reference at this endpoint.
func (e Endpoint) reference(n manifest.Name) (name.Reference, error) {
	repo := e.Host + "/" + n.Path
	if e.prefix != "" {
		repo = e.Host + "/" + e.prefix + "/" + n.Path
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
