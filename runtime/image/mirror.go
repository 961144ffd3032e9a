// SPDX-License-Identifier: Apache-2.0

package image

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"keelson/runtime/image/manifest"
)

// endpoint is a registry or mirror from which an image can be pulled.
type endpoint struct {
	host   string // host[:port]
	prefix string // put before the repository's path
	plain  bool   // HTTP without TLS is allowed
	mirror bool
}

// parseMirror parses a mirror's URL: scheme, host, and a path that is a repository prefix.
func parseMirror(raw string) (endpoint, error) {
	target, err := url.Parse(raw)
	if err != nil {
		return endpoint{}, fmt.Errorf("%q: %w", raw, err)
	}
	if target.Scheme != "http" && target.Scheme != "https" || target.Host == "" || target.RawQuery != "" ||
		target.Fragment != "" ||
		target.User != nil {
		return endpoint{}, fmt.Errorf("%q is not of the form http[s]://HOST[:PORT][/PREFIX]", raw)
	}
	return endpoint{
		host:   target.Host,
		prefix: strings.Trim(target.Path, "/"),
		plain:  target.Scheme == "http",
		mirror: true,
	}, nil
}

// registries are where images are pulled from.
type registries struct {
	arch        string            // of this machine
	mirrors     map[string]string // see Config.Mirrors
	connections *connections
	log         *slog.Logger
}

// endpoints returns the endpoints for n in order: the mirror, then the registry.
func (r *registries) endpoints(n manifest.Name) ([]endpoint, error) {
	var out []endpoint
	if raw, ok := r.mirrors[n.Host]; ok {
		m, err := parseMirror(raw)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return append(out, endpoint{host: n.Host, plain: isLoopback(n.Host) || r.plainMirror(n.Host)}), nil
}

// plainMirror reports whether host is a mirror that does without TLS. An image may also name it directly.
func (r *registries) plainMirror(host string) bool {
	for _, raw := range r.mirrors {
		m, err := parseMirror(raw)
		if err == nil && m.plain && hostPort(m.host, "http") == hostPort(host, "http") {
			return true
		}
	}
	return false
}

func (e endpoint) scheme() string {
	if e.plain {
		return "http"
	}
	return "https"
}

// reference returns n as a reference at this endpoint.
func (e endpoint) reference(n manifest.Name) (name.Reference, error) {
	repo := e.host + "/" + n.Path
	if e.prefix != "" {
		repo = e.host + "/" + e.prefix + "/" + n.Path
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
