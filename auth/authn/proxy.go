// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"keelson/auth"
)

// ProxyConfig holds kube-apiserver's --requestheader-* flags.
type ProxyConfig struct {
	// CAFile holds the CAs of proxies' client certificates; empty: no proxy is trusted.
	CAFile string
	// AllowedNames are the accepted common names of proxies; empty: any.
	AllowedNames []string
	// The headers with the user; of the username and UID headers the first one with a value counts.
	UsernameHeaders, UIDHeaders, GroupHeaders, ExtraPrefixes []string
}

// Proxy authenticates requests of trusted front proxies, known by client certificate, as the user in the request
// headers.
type Proxy struct {
	config ProxyConfig
	roots  atomic.Pointer[x509.CertPool]
}

// NewProxy checks c.
func NewProxy(c ProxyConfig) (*Proxy, error) {
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("authorities of proxies: %w", err)
	}
	proxy := &Proxy{config: c}
	if err := proxy.SetRoots(pem); err != nil {
		return nil, fmt.Errorf("authorities of proxies: %s: %w", c.CAFile, err)
	}
	for _, list := range []*[]string{
		&proxy.config.UsernameHeaders, &proxy.config.UIDHeaders, &proxy.config.GroupHeaders,
		&proxy.config.ExtraPrefixes,
	} {
		trimmed := make([]string, len(*list))
		for i, h := range *list {
			if trimmed[i] = strings.TrimSpace(h); trimmed[i] == "" {
				return nil, errors.New("authenticating proxies: a header's name is empty")
			}
		}
		*list = trimmed
	}
	return proxy, nil
}

// SetRoots replaces the proxies' CAs. If pem has none, it returns an error and nothing changes.
func (p *Proxy) SetRoots(pem []byte) error {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return errors.New("it holds no certificate")
	}
	p.roots.Store(roots)
	return nil
}

// Authenticate handles requests of a proxy, and removes the proxy's headers from the request.
func (p *Proxy) Authenticate(r *http.Request) (*auth.User, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	name := firstOf(r.Header, p.config.UsernameHeaders)
	if name == "" {
		return nil, false, nil
	}
	leaf := r.TLS.PeerCertificates[0]
	between := x509.NewCertPool()
	for _, c := range r.TLS.PeerCertificates[1:] {
		between.AddCert(c)
	}
	if _, err := leaf.Verify(
		x509.VerifyOptions{
			Roots:         p.roots.Load(),
			Intermediates: between,
			KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}); err != nil {
		return nil, false, fmt.Errorf("%w: proxy's certificate of %q: %w", ErrUnauthorized, leaf.Subject.CommonName,
			err)
	}
	if len(p.config.AllowedNames) > 0 && !slices.Contains(p.config.AllowedNames, leaf.Subject.CommonName) {
		return nil, false, fmt.Errorf("%w: the proxy's name %q is not allowed", ErrUnauthorized,
			leaf.Subject.CommonName)
	}
	u := &auth.User{Name: name, UID: firstOf(r.Header, p.config.UIDHeaders), How: "proxy " + leaf.Subject.CommonName}
	for _, h := range p.config.GroupHeaders {
		u.Groups = append(u.Groups, slices.DeleteFunc(r.Header.Values(h), func(g string) bool { return g == "" })...)
	}
	u.Extra = p.extra(r.Header)
	p.clear(r.Header)
	return WithAuthenticated(u), true, nil
}

func firstOf(h http.Header, names []string) string {
	for _, n := range names {
		if v := h.Get(n); v != "" {
			return v
		}
	}
	return ""
}

func (p *Proxy) extra(h http.Header) map[string][]string {
	var out map[string][]string
	for _, prefix := range p.config.ExtraPrefixes {
		for name, values := range h {
			if !hasPrefixFold(name, prefix) {
				continue
			}
			key := strings.ToLower(name[len(prefix):])
			if plain, err := url.PathUnescape(key); err == nil {
				key = plain
			}
			if out == nil {
				out = map[string][]string{}
			}
			out[key] = append(out[key], values...)
		}
	}
	return out
}

// clear removes the headers: a later handler must not take them from another client for a proxy's.
func (p *Proxy) clear(h http.Header) {
	for _, list := range [][]string{p.config.UsernameHeaders, p.config.UIDHeaders, p.config.GroupHeaders} {
		for _, name := range list {
			h.Del(name)
		}
	}
	for name := range h {
		if slices.ContainsFunc(p.config.ExtraPrefixes, func(prefix string) bool {
			return hasPrefixFold(name, prefix)
		}) {
			delete(h, name)
		}
	}
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
