// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// login makes the transport of one repository from a registry's first answer.
type login struct {
	repo name.Repository
	auth authn.Authenticator
	out  http.RoundTripper // sends requests as they are
}

// start asks /v2/ which scheme and authentication the registry wants.
func (l *login) start(ctx context.Context) (http.RoundTripper, error) {
	rt, err := l.with(ctx, &openPing{l.out})
	if err != nil {
		return nil, err
	}
	return &challenged{login: l, rt: rt}, nil
}

func (l *login) with(ctx context.Context, out http.RoundTripper) (http.RoundTripper, error) {
	return transport.NewWithContext(ctx, l.repo.Registry, l.auth, transport.NewUserAgent(out, userAgent),
		[]string{l.repo.Scope(transport.PullScope)})
}

// isPing reports whether a request is the first one, to /v2/.
func isPing(r *http.Request) bool { return r.URL.Path == "/v2/" }

// openPing accepts a registry that does not serve /v2/, or not to all clients. The answer to the request for the
// manifest decides.
type openPing struct{ out http.RoundTripper }

func (o *openPing) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := o.out.RoundTrip(r)
	if err != nil || !isPing(r) {
		return resp, err
	}
	switch resp.StatusCode {
	case http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed:
		resp.StatusCode = http.StatusOK
	}
	return resp, nil
}

// challenged authenticates as the last challenge of the registry asks. A registry whose /v2/ is open, or asks for
// something else, may ask for a token when a manifest or blob is requested.
type challenged struct {
	login *login

	mu    sync.Mutex
	rt    http.RoundTripper
	again bool // a late challenge was answered
}

func (c *challenged) RoundTrip(request *http.Request) (*http.Response, error) {
	c.mu.Lock()
	rt := c.rt
	c.mu.Unlock()
	plain := request.Clone(request.Context()) // rt adds credentials to the request
	resp, err := rt.RoundTrip(request)
	if err != nil || resp.StatusCode != http.StatusUnauthorized || !c.wantsToken(resp) {
		return resp, err
	}
	_ = resp.Body.Close() // the answer to the next request counts
	next, err := c.answer(request.Context(), rt, resp)
	if err != nil {
		return nil, err
	}
	return next.RoundTrip(plain)
}

// wantsToken reports whether an answer of the registry itself asks for a token.
func (c *challenged) wantsToken(resp *http.Response) bool {
	if resp.Request == nil || resp.Request.URL.Host != c.login.repo.RegistryStr() {
		return false
	}
	for _, h := range resp.Header.Values("Www-Authenticate") {
		if scheme, _, _ := strings.Cut(strings.TrimSpace(h), " "); strings.EqualFold(scheme, "bearer") {
			return true
		}
	}
	return false
}

// answer returns the transport for a challenge that old got. The first one makes a new transport. That one asks for
// more tokens by itself.
func (c *challenged) answer(ctx context.Context, old http.RoundTripper, resp *http.Response) (http.RoundTripper, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.again || c.rt != old {
		return c.rt, nil
	}
	rt, err := c.login.with(ctx, &lateChallenge{out: c.login.out, from: resp})
	if err != nil {
		return nil, err
	}
	c.rt = rt
	c.again = true
	return rt, nil
}

// lateChallenge answers the request for /v2/ with the challenge of a later answer.
type lateChallenge struct {
	out  http.RoundTripper
	from *http.Response
}

var errOtherScheme = errors.New("the registry was reached otherwise")

func (l *lateChallenge) RoundTrip(r *http.Request) (*http.Response, error) {
	if !isPing(r) {
		return l.out.RoundTrip(r)
	}
	if scheme := l.from.Request.URL.Scheme; scheme != r.URL.Scheme {
		return nil, fmt.Errorf("%w: by %s", errOtherScheme, scheme)
	}
	header := http.Header{}
	for _, h := range l.from.Header.Values("Www-Authenticate") {
		header.Add("Www-Authenticate", h)
	}
	return &http.Response{
		StatusCode: http.StatusUnauthorized,
		Header:     header,
		Body:       http.NoBody,
		Request:    r,
	}, nil
}
