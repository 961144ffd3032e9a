// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"keelson/lib/dial"
	"keelson/runtime/image/manifest"
)

const (
	// documentTime limits a request for a document or a token, with its answer.
	documentTime = 2 * time.Minute
	maxHeader    = 256 << 10 // bytes of a response's header
)

// connections are the HTTP connections to registries, in two pools that share nothing. So a connection that was allowed
// because an image names its host serves no request that a registry's answer directs there.
type connections struct {
	home *http.Transport // to hosts that images or mirrors name
	away *http.Transport // to hosts that registries name, by redirects and authentication realms
	// own are those to hosts with a TLS configuration of their own, by host and port, in place of home.
	own map[string]*http.Transport
}

// newConnections connects to nothing yet.
func newConnections(mirrors []Endpoint, hosts map[string]Host) (*connections, error) {
	var trusted []string // addresses of mirrors, which an administrator named
	for _, m := range mirrors {
		trusted = append(trusted, hostPort(m.Host, m.scheme()))
	}
	home := func(host string) dial.Check {
		return func(to netip.AddrPort) error {
			if slices.Contains(trusted, host) {
				return nil
			}
			return checkHome(host, to)
		}
	}
	c := &connections{
		home: newTransport(home),
		away: newTransport(func(string) dial.Check {
			return func(to netip.AddrPort) error { return checkAway(to, dial.MachineAddresses) }
		}),
		own: map[string]*http.Transport{},
	}
	for host, settings := range hosts {
		cfg, err := settings.tlsConfig()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", host, err)
		}
		if cfg != nil {
			transport := newTransport(home)
			transport.TLSClientConfig = cfg
			c.own[hostPort(registryHost(host), "https")] = transport
		}
	}
	return c, nil
}

// to returns the connections to the host of an endpoint.
func (c *connections) to(target *url.URL) *http.Transport {
	if own, ok := c.own[hostPort(registryHost(target.Host), target.Scheme)]; ok {
		return own
	}
	return c.home
}

// newTransport returns a transport whose connections to a host (with port) are checked. Those to a proxy of the
// environment are not: an administrator named it.
func newTransport(checkOf func(host string) dial.Check) *http.Transport {
	var proxies sync.Map // addresses of proxies, as the transport dials them
	return &http.Transport{
		Proxy: func(r *http.Request) (*url.URL, error) {
			proxy, err := http.ProxyFromEnvironment(r)
			if proxy != nil {
				proxies.Store(hostPort(proxy.Host, proxy.Scheme), true)
			}
			return proxy, err
		},
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			check := checkOf(addr)
			if _, ok := proxies.Load(addr); ok {
				check = func(netip.AddrPort) error { return nil }
			}
			return dial.Context(ctx, network, addr, nil, check)
		},
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           32,
		MaxIdleConnsPerHost:    8,
		MaxResponseHeaderBytes: maxHeader,
		IdleConnTimeout:        30 * time.Second,
		TLSHandshakeTimeout:    10 * time.Second,
		ResponseHeaderTimeout:  60 * time.Second,
		ExpectContinueTimeout:  time.Second,
	}
}

// checkHome judges an address of the host that an image names. It may be anywhere, also on this node; but a loopback
// name, which may do without TLS, must mean a loopback address.
func checkHome(host string, to netip.AddrPort) error {
	why := dial.Special(to.Addr())
	switch {
	case isLoopback(host) && why != dial.Loopback:
		return dial.Refuse(to, "no loopback address")
	case why == dial.Loopback:
		return nil
	case why != "":
		return dial.Refuse(to, why)
	}
	return nil
}

// checkAway judges an address of a host that a registry names: it is not on this node.
func checkAway(to netip.AddrPort, machine func() ([]netip.Addr, error)) error {
	if why := dial.Special(to.Addr()); why != "" {
		return dial.Refuse(to, why)
	}
	own, err := machine()
	if err != nil {
		return err
	}
	if slices.Contains(own, to.Addr()) {
		return dial.Refuse(to, "an address of this node")
	}
	return nil
}

// defaultPorts are the ports of URLs without one, by scheme.
var defaultPorts = map[string]string{
	"http":    "80",
	"https":   "443",
	"socks5":  "1080",
	"socks5h": "1080",
}

// hostPort returns host with its port, which may be that of the scheme.
func hostPort(host, scheme string) string {
	host = strings.ToLower(host)
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), defaultPorts[scheme])
}

// layerRequest marks the context of a download, which has limits of its own (see blobReader).
type layerRequest struct{}

// door sends the requests of one pull from one endpoint. Requests to the endpoint's own host go home, all others away.
type door struct {
	connections *connections
	host        string // of the endpoint
	plain       bool   // the endpoint may do without TLS
}

// RoundTrip implements http.RoundTripper. The answer to any request but a download is bounded in size and time.
func (d *door) RoundTrip(r *http.Request) (*http.Response, error) {
	next, err := d.way(r.URL)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // nothing was read from it
		}
		return nil, err
	}
	if r.Context().Value(layerRequest{}) != nil {
		return next.RoundTrip(r)
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), documentTime, errSlow)
	resp, err := next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		defer cancel()
		if errors.Is(context.Cause(ctx), errSlow) {
			return nil, errSlow
		}
		return nil, err
	}
	resp.Body = &smallBody{Reader: io.LimitReader(resp.Body, manifest.MaxDocument+1), body: resp.Body, cancel: cancel}
	return resp, nil
}

// way returns the connections for a URL, or why there is no way to it.
func (d *door) way(to *url.URL) (*http.Transport, error) {
	atHome := hostPort(to.Host, to.Scheme) == hostPort(d.host, to.Scheme)
	if to.Scheme == "http" && (!atHome || !d.plain) {
		text := fmt.Sprintf("refusing plain HTTP to %.100q: only loopback registries and http:// mirrors that an "+
			"image names may do without TLS", to.Host)
		return nil, &answerError{text: text}
	}
	if atHome {
		return d.connections.to(to), nil
	}
	if ip, err := netip.ParseAddr(to.Hostname()); err == nil { // a proxy would not check it
		if err := checkAway(dial.Canonical(netip.AddrPortFrom(ip, 0)), dial.MachineAddresses); err != nil {
			return nil, err
		}
	}
	return d.connections.away, nil
}

// smallBody is a body with a limit of bytes and time.
type smallBody struct {
	io.Reader
	body   io.Closer
	cancel context.CancelFunc
}

func (b *smallBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, context.DeadlineExceeded) {
		err = errSlow
	}
	return n, err
}

func (b *smallBody) Close() error {
	defer b.cancel()
	return b.body.Close()
}
