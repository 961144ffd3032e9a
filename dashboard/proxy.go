// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
)

const (
	maxBody  = 3 << 20 // as the API server
	bodyTime = 30 * time.Second
)

// upstream is the API server, reached as the person who looks.
type upstream struct {
	base   *url.URL
	usual  http.RoundTripper
	opened http.RoundTripper // HTTP/1.1, which a connection is upgraded from
}

func newUpstream(config *rest.Config) (*upstream, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	usual, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	security, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	plain := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         config.Dial,
		TLSHandshakeTimeout: headerTime,
	}
	if config.Proxy != nil {
		plain.Proxy = config.Proxy
	}
	if security != nil {
		security.NextProtos = []string{"http/1.1"}
		plain.TLSClientConfig = security
	}
	opened, err := rest.HTTPWrappersForConfig(config, plain)
	if err != nil {
		return nil, err
	}
	return &upstream{
		base:   base,
		usual:  usual,
		opened: opened,
	}, nil
}

// close closes connections that no request uses.
func (u *upstream) close() {
	for _, transport := range []http.RoundTripper{u.usual, u.opened} {
		(&http.Client{Transport: transport}).CloseIdleConnections()
	}
}

// at is the address of a route at the API server.
func (u *upstream) at(r *route, query string) *url.URL {
	plain, escaped := r.path()
	out := *u.base
	prefix := strings.TrimSuffix(u.base.Path, "/")
	out.Path = prefix + plain
	out.RawPath = strings.TrimSuffix(u.base.EscapedPath(), "/") + escaped
	out.RawQuery = query
	return &out
}

// passedHeaders are those of the page's requests that the API server gets, and openHeaders further ones of websockets.
var (
	passedHeaders = []string{"Accept", "Content-Type"}
	openHeaders   = []string{"Connection", "Upgrade", "Sec-Websocket-Key", "Sec-Websocket-Version"}
)

// answeredHeaders are those of its answers that the page gets.
var answeredHeaders = []string{
	"Audit-Id", "Connection", "Content-Type", "Retry-After", "Sec-Websocket-Accept", "Sec-Websocket-Protocol",
	"Upgrade", "Warning",
}

// dataPolicy keeps an answer of the API server from being more than data.
const dataPolicy = "sandbox; default-src 'none'; frame-ancestors 'none'"

// pass passes a request to the API server.
func (d *Dashboard) pass(w http.ResponseWriter, r *http.Request) {
	to, err := routeOf(r.URL.EscapedPath())
	switch {
	case err != nil:
		refuse(w, http.StatusForbidden, err.Error())
		return
	case d.config.ReadOnly && to.writes(r.Method):
		refuse(w, http.StatusForbidden, errReadOnly.Error())
		return
	case to.opens() != isUpgrade(r):
		refuse(w, http.StatusBadRequest, "only exec and attach open a websocket, and they need one")
		return
	}
	w.Header().Set("Content-Security-Policy", dataPolicy)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL = d.server.at(to, pr.In.URL.RawQuery)
			pr.Out.Host = ""
			pr.Out.Header = passedOn(pr.Out.Header, to.opens())
		},
		FlushInterval:  -1, // watches
		ModifyResponse: asData,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				refuse(w, http.StatusBadGateway, fmt.Sprintf("the API server does not answer: %v", err))
			}
		},
	}
	if to.opens() {
		proxy.Transport = finalAnswers{d.server.opened}
		proxy.ServeHTTP(w, r)
		return
	}
	if !readWhole(w, r) {
		return
	}
	proxy.Transport = finalAnswers{d.server.usual}
	proxy.ServeHTTP(w, r)
}

// finalAnswers drops answers before the last, such as 103 Early Hints: ReverseProxy would pass their headers without
// asData, and forget those that guarded has set.
type finalAnswers struct{ next http.RoundTripper }

func (t finalAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.next.RoundTrip(r.WithContext(untraced{r.Context()}))
}

// untraced is a context without values. An httptrace is one, and cannot be removed in another way.
type untraced struct{ context.Context } //nolint:containedctx // it is a context

func (untraced) Value(any) any { return nil }

// readWhole reads a request's body, so that a slow client keeps no request to the API server open. It reports whether
// it could; if not, it has answered.
func readWhole(w http.ResponseWriter, r *http.Request) bool {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTime))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	_ = control.SetReadDeadline(time.Time{}) // an answer may last
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the request has more than %d bytes", tooLarge.Limit))
		return false
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, "the request could not be read to its end")
		return false
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	return true
}

// passedOn are the headers that the API server gets. What else a request has, such as cookies, or headers by which a
// user acts as another, stays here.
func passedOn(from http.Header, opens bool) http.Header {
	out := http.Header{}
	names := passedHeaders
	if opens {
		names = slices.Concat(passedHeaders, openHeaders)
		for _, protocol := range protocols(&http.Request{Header: from}) {
			if !strings.HasPrefix(protocol, keyProtocol) {
				out.Add("Sec-Websocket-Protocol", protocol)
			}
		}
	}
	for _, name := range names {
		if values := from.Values(name); len(values) > 0 {
			out[http.CanonicalHeaderKey(name)] = values
		}
	}
	return out
}

// asData makes data of an answer, whatever the server behind the API server calls it: JSON stays JSON, everything else
// is plain text, and none of it is a document that could run something.
func asData(resp *http.Response) error {
	for name := range resp.Header {
		if !slices.Contains(answeredHeaders, name) {
			resp.Header.Del(name)
		}
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json")) {
		resp.Header.Set("Content-Type", "application/json")
	} else {
		resp.Header.Set("Content-Type", "text/plain; charset=utf-8")
	}
	return nil
}
