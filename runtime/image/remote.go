// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

const userAgent = "keelson"

// Auth is the content of a pull secret, as in CRI's AuthConfig.
type Auth struct {
	Username, Password string
	Auth               string // base64 of "username:password"
	ServerAddress      string // when set, the secret is for this registry only
	IdentityToken      string // exchanged for a registry token (OAuth2 refresh token)
	RegistryToken      string // sent as it is
}

// authenticator converts a for the registry library; nil is anonymous.
func (a *Auth) authenticator(host string) (authn.Authenticator, error) {
	if a == nil || a.ServerAddress != "" && !sameRegistry(a.ServerAddress, host) {
		return authn.Anonymous, nil
	}
	authConfig := authn.AuthConfig{
		Username:      a.Username,
		Password:      a.Password,
		IdentityToken: a.IdentityToken,
		RegistryToken: a.RegistryToken,
	}
	if authConfig.Username == "" && a.Auth != "" {
		raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(a.Auth))
		if err != nil {
			return nil, fmt.Errorf("%w: pull secret: auth is not base64", ErrUnauthorized)
		}
		user, pass, ok := strings.Cut(string(raw), ":")
		if !ok {
			return nil, fmt.Errorf("%w: pull secret: auth is not \"username:password\"", ErrUnauthorized)
		}
		authConfig.Username = user
		authConfig.Password = strings.Trim(pass, "\x00")
	}
	if authConfig == (authn.AuthConfig{}) {
		return authn.Anonymous, nil
	}
	return authn.FromConfig(authConfig), nil
}

// sameRegistry compares a pull secret's server ("https://index.docker.io/v1/") with a registry host.
func sameRegistry(server, host string) bool {
	if i := strings.Index(server, "://"); i >= 0 {
		server = server[i+3:]
	}
	server, _, _ = strings.Cut(server, "/")
	canonical := func(h string) string {
		switch h {
		case "index.docker.io", "registry-1.docker.io":
			return "docker.io"
		}
		return h
	}
	return canonical(server) == canonical(host)
}

// newTransport wraps the configured transport, or a default one, in plainGuard.
func newTransport(cfg Config) http.RoundTripper {
	inner := cfg.Transport
	if inner == nil {
		inner = &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			ForceAttemptHTTP2:     true,
			MaxIdleConns:          32,
			MaxIdleConnsPerHost:   8,
			IdleConnTimeout:       30 * time.Second,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: 60 * time.Second,
			ExpectContinueTimeout: time.Second,
		}
	}
	g := &plainGuard{next: inner, allowed: map[string]bool{}}
	for _, raw := range cfg.Mirrors {
		if m, err := parseMirror(raw); err == nil && m.plain {
			g.allowed[m.host] = true
		}
	}
	return g
}

// plainGuard refuses requests without TLS, except to loopback registries and to mirrors configured as http://. The
// registry library would also use plain HTTP for private addresses, and follow a redirect to it.
type plainGuard struct {
	next    http.RoundTripper
	allowed map[string]bool
}

func (g *plainGuard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme == "http" && !isLoopback(r.URL.Host) && !g.allowed[r.URL.Host] {
		return nil, fmt.Errorf("refusing plain HTTP to %s: only loopback registries and http:// mirrors may do "+
			"without TLS", r.URL.Host)
	}
	return g.next.RoundTrip(r)
}

// repository is an authenticated connection to one repository of a registry.
type repository struct {
	repo name.Repository
	rt   http.RoundTripper // authenticates
}

// connect pings the registry to learn its scheme and authentication, and logs in.
func (s *Store) connect(ctx context.Context, repo name.Repository, auth authn.Authenticator) (*repository, error) {
	retry := transport.NewRetry(s.transport,
		transport.WithRetryPredicate(retryable),
		transport.WithRetryStatusCodes(http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway,
			http.StatusServiceUnavailable, http.StatusGatewayTimeout),
		transport.WithRetryBackoff(transport.Backoff{
			Duration: 300 * time.Millisecond,
			Factor:   3,
			Jitter:   0.1,
			Steps:    3,
		}))
	rt, err := transport.NewWithContext(ctx, repo.Registry, auth,
		transport.NewUserAgent(retry, userAgent), []string{repo.Scope(transport.PullScope)})
	if err != nil {
		return nil, err
	}
	return &repository{repo: repo, rt: rt}, nil
}

// retryable reports whether a request may be repeated at once: after a broken connection, but not a refused one, for
// which the kubelet backs off.
func retryable(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return false
	}
	var t interface{ Timeout() bool }
	if errors.As(err, &t) && t.Timeout() {
		return false
	}
	return errors.Is(err, errConnectionLost) || isReset(err)
}

// manifest resolves ref to the image for this platform. digest is that of the reference, which may be an index.
func (r *repository) manifest(
	ctx context.Context, ref name.Reference, arch string,
) (img v1.Image, digest string, err error) {
	platform := v1.Platform{OS: "linux", Architecture: arch}
	descriptor, err := remote.Get(ref, remote.WithContext(ctx), remote.WithTransport(r.rt),
		remote.WithPlatform(platform))
	if err != nil {
		return nil, "", err
	}
	digest = descriptor.Digest.String()
	if !isDigest(digest) {
		return nil, "", fmt.Errorf("%w: manifest digest %s", ErrInvalid, digest)
	}
	if descriptor.MediaType.IsIndex() {
		ix, err := descriptor.ImageIndex()
		if err != nil {
			return nil, "", err
		}
		img, err = choose(ix, arch, 0)
		return img, digest, err
	}
	img, err = descriptor.Image()
	return img, digest, err
}

// describeRegistryError describes a registry's error, with the messages of docker and containerd.
func describeRegistryError(err error) error {
	if err == nil || errors.Is(err, ErrInvalid) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrUnauthorized) {
		return err
	}
	if te, ok := errors.AsType[*transport.Error](err); ok {
		return describeStatus(te)
	}
	var ue *url.Error
	var ne net.Error
	if errors.As(err, &ue) || errors.As(err, &ne) || errors.Is(err, errConnectionLost) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

func describeStatus(te *transport.Error) error {
	for _, d := range te.Errors {
		switch d.Code {
		case transport.ManifestUnknownErrorCode:
			return fmt.Errorf("manifest unknown: %w: %w", ErrNotFound, te)
		case transport.NameUnknownErrorCode:
			return fmt.Errorf("repository name not known to registry: %w: %w", ErrNotFound, te)
		case transport.DeniedErrorCode:
			return fmt.Errorf("denied: requested access to the resource is denied, the repository does not exist or "+
				"may require authorization: %w: %w", ErrUnauthorized, te)
		case transport.TooManyRequestsErrorCode:
			return fmt.Errorf("too many requests: %w: %w", ErrUnavailable, te)
		}
	}
	switch {
	case te.StatusCode == http.StatusNotFound:
		return fmt.Errorf("manifest unknown: %w: %w", ErrNotFound, te)
	case te.StatusCode == http.StatusUnauthorized, te.StatusCode == http.StatusForbidden:
		return fmt.Errorf("authorization failed: %w: %w", ErrUnauthorized, te)
	case te.StatusCode >= 500:
		return fmt.Errorf("%w: %w", ErrUnavailable, te)
	}
	return te
}
