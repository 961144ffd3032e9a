// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/connrotation"
)

const (
	// firstDial limits a connection attempt while there is one server, otherDial if another one may be tried.
	firstDial = 30 * time.Second
	otherDial = 2 * time.Second
	// nodesGroup is in the certificates of nodes, which the CA of the API servers signs too.
	nodesGroup = "system:nodes"
)

// Transport sends the requests of one identity to the current server.
type Transport struct {
	servers *Servers
	dial    connrotation.DialFunc

	upgrades *connrotation.Dialer

	mu        sync.Mutex
	tls       *tls.Config
	byHost    map[string]*lane
	anonymous *Transport // nil until first used
}

// lane has the connections to one server.
type lane struct {
	http  *http.Transport
	conns *connrotation.Dialer
}

// Transport returns a transport with the identity and CA of conf.
func (s *Servers) Transport(conf *tls.Config) *Transport { return s.transport(conf, nil) }

func (s *Servers) transport(conf *tls.Config, dial connrotation.DialFunc) *Transport {
	t := &Transport{
		servers: s,
		tls:     conf,
		dial:    dial,
		byHost:  map[string]*lane{},
	}
	if t.dial == nil {
		t.dial = s.dial
	}
	if conf.InsecureSkipVerify || conf.RootCAs == nil {
		s.stayAlone() // the kubeconfig does not say by which CA another server is known
	}
	t.upgrades = connrotation.NewDialer(t.dial)
	s.mu.Lock()
	s.transports = append(s.transports, t)
	s.mu.Unlock()
	return t
}

// REST returns cfg with a transport to the current server. A configuration that can have no second server is returned
// as it is: without TLS or a CA, below a path, by a proxy, or with an in-tree plugin for credentials.
func (s *Servers) REST(cfg *rest.Config) (*rest.Config, error) {
	if s.given == "" || cfg.Proxy != nil || cfg.Transport != nil || cfg.AuthProvider != nil {
		return cfg, nil
	}
	dialed := rest.CopyConfig(cfg)
	if dialed.Dial == nil {
		dialed.Dial = s.dial
	}
	// A plugin of the kubeconfig (exec) becomes a certificate, a header, and a dialer that it closes.
	how, err := dialed.TransportConfig()
	if err != nil {
		return nil, err
	}
	conf, err := transport.TLSConfigFor(how)
	if err != nil {
		return nil, err
	}
	if conf == nil || conf.RootCAs == nil && !conf.InsecureSkipVerify {
		return cfg, nil
	}
	out := rest.CopyConfig(cfg)
	out.TLSClientConfig = rest.TLSClientConfig{}
	out.Transport = s.transport(conf, how.DialHolder.Dial)
	out.WrapTransport = how.WrapTransport
	out.ExecProvider = nil
	out.Dial = nil
	return out, nil
}

// Anonymous is rest.AnonymousClientConfig, also for a configuration with a Transport.
func Anonymous(cfg *rest.Config) *rest.Config {
	out := rest.AnonymousClientConfig(cfg)
	if t, ok := cfg.Transport.(*Transport); ok {
		out.TLSClientConfig = rest.TLSClientConfig{}
		out.Transport = t.withoutCertificate()
		out.Dial = nil
	}
	return out
}

// withoutCertificate returns the transport that all users without a client certificate share.
func (t *Transport) withoutCertificate() *Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.anonymous == nil {
		conf := t.tls.Clone()
		conf.Certificates = nil
		conf.GetClientCertificate = nil
		t.anonymous = t.servers.transport(conf, t.dial)
	}
	return t.anonymous
}

func (s *Servers) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	timeout := firstDial
	if _, several := s.now(); several {
		timeout = otherDial
	}
	return (&net.Dialer{Timeout: timeout, KeepAlive: firstDial}).DialContext(ctx, network, addr)
}

// lane returns the connections to a server.
func (t *Transport) lane(host string) *lane {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.byHost[host]; l != nil {
		return l
	}
	l := t.newLaneLocked(host, connrotation.NewDialer(t.dial))
	t.byHost[host] = l
	return l
}

func (t *Transport) newLaneLocked(host string, conns *connrotation.Dialer) *lane {
	return &lane{
		conns: conns,
		http: utilnet.SetTransportDefaults(&http.Transport{
			TLSClientConfig:     t.tlsForLocked(host),
			TLSHandshakeTimeout: 10 * time.Second,
			MaxIdleConnsPerHost: 25,
			DialContext:         conns.DialContext,
		}),
	}
}

var errNode = errors.New("the certificate is a node's, not an API server's")

// tlsForLocked returns the configuration by which a server proves that it is one.
func (t *Transport) tlsForLocked(host string) *tls.Config {
	conf := t.tls.Clone()
	if t.servers.given != "" && host != t.servers.given {
		conf.ServerName = Name
	}
	before := conf.VerifyConnection
	conf.VerifyConnection = func(state tls.ConnectionState) error {
		if before != nil {
			if err := before(state); err != nil {
				return err
			}
		}
		if certs := state.PeerCertificates; len(certs) > 0 &&
			slices.Contains(certs[0].Subject.Organization, nodesGroup) {
			return errNode
		}
		return nil
	}
	return conf
}

// RoundTrip sends a request to the current server. One that could not be sent there goes to another server if one is
// ready; the caller repeats others, since the server may have seen them.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	host, several := t.servers.now()
	if host == "" {
		host = r.URL.Host
	}
	var sent atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { sent.Store(true) }}
	resp, err := t.send(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)), host)
	if err == nil || !several || r.Context().Err() != nil {
		return resp, err
	}
	again, rewound := rewind(r)
	if sent.Load() || !rewound {
		t.servers.doubt(host)
		return nil, err
	}
	next := t.servers.leave(r.Context(), host, err)
	if next == host {
		return nil, err
	}
	return t.send(again, next)
}

// rewind returns the request with its body from the beginning.
func rewind(r *http.Request) (*http.Request, bool) {
	if r.Body == nil || r.Body == http.NoBody {
		return r, true
	}
	if r.GetBody == nil {
		return nil, false
	}
	body, err := r.GetBody()
	if err != nil {
		return nil, false
	}
	again := *r
	again.Body = body
	return &again, true
}

// send sends r to one server.
func (t *Transport) send(r *http.Request, host string) (*http.Response, error) {
	if r.URL.Host != host {
		to := *r
		at := *r.URL
		at.Host = host
		to.URL = &at
		to.Host = host
		r = &to
	}
	return t.lane(host).http.RoundTrip(r)
}

// drop closes the connections to a server, with the requests on them.
func (t *Transport) drop(host string) {
	t.mu.Lock()
	l := t.byHost[host]
	delete(t.byHost, host)
	t.mu.Unlock()
	if l != nil {
		l.close()
	}
}

// keep drops the connections to all but these servers.
func (t *Transport) keep(hosts []string) {
	t.mu.Lock()
	var gone []*lane
	for host, l := range t.byHost {
		if !slices.Contains(hosts, host) {
			delete(t.byHost, host)
			gone = append(gone, l)
		}
	}
	t.mu.Unlock()
	for _, l := range gone {
		l.close()
	}
}

func (l *lane) close() {
	l.conns.CloseAll()
	l.http.CloseIdleConnections()
}

// SetRoots replaces the CAs by which servers prove that they are some. Requests under way go on; the connections made
// from now on are verified by the new ones.
func (s *Servers) SetRoots(roots *x509.CertPool) {
	s.mu.Lock()
	transports := slices.Clone(s.transports)
	s.mu.Unlock()
	for _, t := range transports {
		t.setRoots(roots)
	}
}

func (t *Transport) setRoots(roots *x509.CertPool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tls.RootCAs == nil || t.tls.InsecureSkipVerify {
		return // the kubeconfig names none
	}
	t.tls = t.tls.Clone()
	t.tls.RootCAs = roots
	for host, l := range t.byHost {
		l.http.CloseIdleConnections()
		t.byHost[host] = t.newLaneLocked(host, l.conns) // which closes connections of the previous one, too
	}
}

// CloseAll closes all connections: those that follow show a renewed certificate.
func (t *Transport) CloseAll() {
	t.mu.Lock()
	dialers := []*connrotation.Dialer{t.upgrades}
	for _, l := range t.byHost {
		dialers = append(dialers, l.conns)
	}
	t.mu.Unlock()
	for _, d := range dialers {
		d.CloseAll()
	}
}

// Hosts is Servers.Hosts.
func (t *Transport) Hosts() ([]string, <-chan struct{}) { return t.servers.Hosts() }

// Upgrade returns a transport to one server for a connection that is taken over (HTTP/1.1). The connection stays when
// another server becomes the current one.
func (t *Transport) Upgrade(host string) *http.Transport {
	t.mu.Lock()
	conf := t.tlsForLocked(host)
	t.mu.Unlock()
	conf.NextProtos = []string{"http/1.1"}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		TLSClientConfig:     conf,
		TLSHandshakeTimeout: 10 * time.Second,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
		DialContext:         t.upgrades.DialContext,
	}
}
