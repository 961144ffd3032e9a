// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"keelson/runtime/image/manifest"
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
			return nil, fmt.Errorf("%w: pull secret: auth is not base64", manifest.ErrUnauthorized)
		}
		user, pass, ok := strings.Cut(string(raw), ":")
		if !ok {
			return nil, fmt.Errorf("%w: pull secret: auth is not \"username:password\"", manifest.ErrUnauthorized)
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
	return registryHost(server) == registryHost(host)
}

// registryHost is the name of a registry host that has several.
func registryHost(host string) string {
	switch host {
	case "index.docker.io", "registry-1.docker.io":
		return "docker.io"
	}
	return host
}

// Repository is an authenticated connection to one repository of a registry. It implements manifest.Documents.
type Repository struct {
	repo     name.Repository
	rt       http.RoundTripper // authenticates
	warnings warnings          // of manifests and configs, which are read one after the other
}

// Find reads what an image for linux/arch consists of from one endpoint, and returns the connection that its layers
// come from. auth may be nil; warn is called with what the registry warns of.
func (r *Registries) Find(
	ctx context.Context, e Endpoint, n manifest.Name, arch string, auth *Auth, warn func(text string),
) (*manifest.Plan, *Repository, error) {
	ref, err := e.reference(n)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", manifest.ErrReference, err)
	}
	if e.Mirror && auth != nil && auth.ServerAddress == "" {
		auth = nil // a mirror must not get the credentials of the registry
	}
	if auth == nil || auth.ServerAddress != "" && !sameRegistry(auth.ServerAddress, e.Host) {
		auth = r.login(e)
	}
	login, err := auth.authenticator(e.Host)
	if err != nil {
		return nil, nil, err
	}
	repo, err := r.connect(ctx, e, ref.Context(), login, warn)
	if err != nil {
		return nil, nil, err
	}
	raw, mediaType, err := repo.document(ctx, "manifests", ref.Identifier())
	if err != nil {
		return nil, nil, err
	}
	digest := manifest.DigestOf(raw)
	plan, err := manifest.ReadPlan(ctx, repo, raw, mediaType, arch)
	if err != nil {
		return nil, nil, err
	}
	plan.AddName(n, digest)
	return plan, repo, nil
}

// connect pings the registry to learn its scheme and authentication, and logs in.
func (r *Registries) connect(
	ctx context.Context, e Endpoint, repo name.Repository, auth authn.Authenticator, warn func(text string),
) (*Repository, error) {
	out := &door{connections: r.connections, host: repo.RegistryStr(), plain: e.plain}
	retry := transport.NewRetry(out,
		transport.WithRetryPredicate(retryable),
		transport.WithRetryStatusCodes(http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway,
			http.StatusServiceUnavailable, http.StatusGatewayTimeout),
		transport.WithRetryBackoff(transport.Backoff{
			Duration: 300 * time.Millisecond,
			Factor:   3,
			Jitter:   0.1,
			Steps:    3,
		}))
	rt, err := (&login{repo: repo, auth: auth, out: retry}).start(ctx)
	if err != nil {
		return nil, describeAnswer(repo.RegistryStr(), err)
	}
	return &Repository{repo: repo, rt: rt, warnings: warnings{report: warn}}, nil
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

// url returns the URL of a manifest ("manifests") or blob ("blobs") by its tag or digest.
func (r *Repository) url(kind, id string) string {
	u := url.URL{
		Scheme: r.repo.Scheme(),
		Host:   r.repo.RegistryStr(),
		Path:   "/v2/" + r.repo.RepositoryStr() + "/" + kind + "/" + id,
	}
	return u.String()
}

// document gets a manifest, index or config. If it was asked for by digest, that is checked.
func (r *Repository) document(ctx context.Context, kind, id string) (raw []byte, mediaType string, err error) {
	host := r.repo.RegistryStr()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url(kind, id), http.NoBody)
	if err != nil {
		return nil, "", err
	}
	if kind == "manifests" {
		req.Header.Set("Accept", strings.Join(manifest.AcceptedTypes, ","))
	}
	resp, err := (&http.Client{Transport: r.rt}).Do(req)
	if err != nil {
		return nil, "", describeAnswer(host, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := transport.CheckError(resp, http.StatusOK); err != nil {
		return nil, "", describeAnswer(host, err)
	}
	if resp.ContentLength > manifest.MaxDocument {
		return nil, "", fmt.Errorf("%w: %s of %d bytes, at most %d are allowed", manifest.ErrInvalid, kind,
			resp.ContentLength,
			manifest.MaxDocument)
	}
	raw, err = io.ReadAll(io.LimitReader(resp.Body, manifest.MaxDocument+1))
	if err != nil {
		return nil, "", describeAnswer(host, err)
	}
	if len(raw) > manifest.MaxDocument {
		return nil, "", fmt.Errorf("%w: %s of more than %d bytes", manifest.ErrInvalid, kind, manifest.MaxDocument)
	}
	if got := manifest.DigestOf(raw); manifest.IsDigest(id) && got != id {
		return nil, "", fmt.Errorf("%w: %s has digest %s", manifest.ErrInvalid, id, got)
	}
	r.warnings.read(resp.Header)
	mediaType, _, _ = strings.Cut(resp.Header.Get("Content-Type"), ";")
	return raw, strings.TrimSpace(mediaType), nil
}

// Manifest implements manifest.Documents.
func (r *Repository) Manifest(ctx context.Context, digest string) ([]byte, error) {
	raw, _, err := r.document(ctx, "manifests", digest)
	return raw, err
}

// Config implements manifest.Documents.
func (r *Repository) Config(ctx context.Context, digest string) ([]byte, error) {
	raw, _, err := r.document(ctx, "blobs", digest)
	return raw, err
}
