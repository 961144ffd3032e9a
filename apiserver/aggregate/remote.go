// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"

	v1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"keelson/apiserver/backend"
	"keelson/apiserver/outbound"
	"keelson/apiserver/pipeline"
	"keelson/auth"
)

// The headers with the user for aggregated servers.
const (
	headerUser  = "X-Remote-User"
	headerUID   = "X-Remote-Uid"
	headerGroup = "X-Remote-Group"
	headerExtra = "X-Remote-Extra-"
)

// remote is a group version served by another server.
type remote struct {
	service   *v1.APIService
	available bool
	configErr error // why no connection is possible
	conns     *connections
	proxy     *httputil.ReverseProxy
}

// connections to an aggregated server show one client certificate, which it checks at each request. With a renewed
// certificate there are new connections; requests on the old ones end there.
type connections struct {
	certificate func() *tls.Certificate // nil: there is none
	build       func(shows *tls.Certificate) (plain, upgrades *http.Transport)

	mu    sync.Mutex
	shown *tls.Certificate
	// plain uses HTTP/2 if possible; upgrades need HTTP/1.1.
	plain, upgrades *http.Transport
}

// current returns transports that show the current certificate.
func (c *connections) current() (plain, upgrades *http.Transport) {
	var cert *tls.Certificate
	if c.certificate != nil {
		cert = c.certificate()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.plain == nil || c.shown != cert {
		c.closeLocked()
		c.shown = cert
		c.plain, c.upgrades = c.build(cert)
	}
	return c.plain, c.upgrades
}

func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeLocked()
}

// closeLocked closes connections without a request. The others are closed when they have been idle.
func (c *connections) closeLocked() {
	if c.plain != nil {
		c.plain.CloseIdleConnections()
		c.upgrades.CloseIdleConnections()
	}
}

func newRemote(config *Config, svc *v1.APIService) *remote {
	r := &remote{service: svc, available: isAvailable(svc)}
	ref := svc.Spec.Service
	conf := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         ref.Name + "." + ref.Namespace + ".svc",
		InsecureSkipVerify: svc.Spec.InsecureSkipTLSVerify, // the APIService asks for it
	}
	if ca := bytes.TrimSpace(svc.Spec.CABundle); len(ca) > 0 {
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(ca) {
			r.configErr = errors.New("caBundle holds no certificate")
		}
	}
	resolve := func(ctx context.Context) (string, error) {
		return backend.Resolve(ctx, config.Reader, ref.Namespace, ref.Name, *ref.Port)
	}
	transport := func(http2 bool, shows *tls.Certificate) *http.Transport {
		own := conf.Clone()
		if shows != nil {
			own.Certificates = []tls.Certificate{*shows}
		}
		return config.Outbound.Transport(outbound.Options{
			Target:  outbound.Backend,
			TLS:     own,
			HTTP2:   http2,
			Resolve: resolve,
		})
	}
	r.conns = &connections{
		certificate: config.Certificate,
		build: func(shows *tls.Certificate) (plain, upgrades *http.Transport) {
			return transport(true, shows), transport(false, shows)
		},
	}
	r.proxy = &httputil.ReverseProxy{
		Transport:     config.Outbound.Observe("aggregated server", r),
		FlushInterval: -1,
		Rewrite:       r.rewrite,
		ErrorHandler: func(w http.ResponseWriter, req *http.Request, err error) {
			if req.Context().Err() == nil { // else the client has disconnected
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
			}
		},
	}
	return r
}

// with returns r for a newer version of its APIService.
func (r *remote) with(svc *v1.APIService) *remote {
	c := *r
	c.service = svc
	c.available = isAvailable(svc)
	return &c
}

func (r *remote) close() { r.conns.close() }

// RoundTrip sends a request that rewrite has prepared.
func (r *remote) RoundTrip(req *http.Request) (*http.Response, error) {
	plain, upgrades := r.conns.current()
	if req.Header.Get("Upgrade") != "" {
		return upgrades.RoundTrip(req)
	}
	return plain.RoundTrip(req)
}

// ServeHTTP proxies a request on behalf of its user.
func (r *remote) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch {
	case !r.available:
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
	case r.configErr != nil:
		http.Error(w, r.configErr.Error(), http.StatusInternalServerError)
	case userOf(req) == nil:
		http.Error(w, "missing user", http.StatusInternalServerError)
	default:
		r.proxy.ServeHTTP(w, req)
	}
}

// userOf is the user that the pipeline authenticated.
func userOf(req *http.Request) *auth.User {
	if rq := pipeline.From(req.Context()); rq != nil {
		return rq.User
	}
	return nil
}

// host is the DNS name of the Service; the dialer resolves it to an endpoint.
func (r *remote) host() string {
	ref := r.service.Spec.Service
	return ref.Name + "." + ref.Namespace + ".svc"
}

func (r *remote) rewrite(proxyRequest *httputil.ProxyRequest) {
	proxyRequest.Out.URL = &url.URL{
		Scheme:   "https",
		Host:     r.host(),
		Path:     proxyRequest.In.URL.Path,
		RawPath:  proxyRequest.In.URL.RawPath,
		RawQuery: proxyRequest.In.URL.RawQuery,
	}
	proxyRequest.Out.Host = r.host()
	proxyRequest.SetXForwarded()
	h := proxyRequest.Out.Header
	for name := range h {
		if name == "Authorization" || strings.HasPrefix(name, "Impersonate-") || strings.HasPrefix(name, "X-Remote-") {
			h.Del(name) // clients must not set these headers
		}
	}
	setUser(h, userOf(proxyRequest.In))
}

// setUser adds the headers for user.
func setUser(header http.Header, user *auth.User) {
	if user == nil {
		return
	}
	header.Set(headerUser, user.Name)
	if user.UID != "" {
		header.Set(headerUID, user.UID)
	}
	for _, g := range user.Groups {
		header.Add(headerGroup, g)
	}
	for key, values := range user.Extra {
		for _, v := range values {
			header.Add(headerExtra+escape(key), v)
		}
	}
}

// escape percent-encodes characters that are not allowed in a header name.
func escape(key string) string {
	const plain = "!#$&'*+-.^_`|~"
	var b strings.Builder
	for i := range len(key) {
		c := key[i]
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte(plain, c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.WriteString("%" + strings.ToUpper(string("0123456789abcdef"[c>>4])+string("0123456789abcdef"[c&15])))
	}
	return b.String()
}
