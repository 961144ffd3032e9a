// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/client"
	"keelson/client/servers"
)

// accountTransport authenticates requests as a service account. Its token is kept in memory only, requested at the
// first request, and renewed when accountTokenShare of its lifetime is over.
type accountTransport struct {
	namespace, name string
	request         func(context.Context) (*authenticationv1.TokenRequestStatus, error)
	next            http.RoundTripper

	// a mutex whose wait ends with a context: holds one item while unlocked; guards the fields below
	lock    chan struct{}
	token   string
	renewAt time.Time // when to request the next token
	expires time.Time // when the token expires
}

const (
	accountTokenLife = time.Hour
	// accountTokenShare is the share of a token's lifetime after which the next one is requested.
	accountTokenShare = 0.8
)

func newAccountTransport(
	namespace, name string, next http.RoundTripper,
	request func(context.Context) (*authenticationv1.TokenRequestStatus, error),
) *accountTransport {
	a := &accountTransport{
		namespace: namespace,
		name:      name,
		request:   request,
		next:      next,
		lock:      make(chan struct{}, 1),
	}
	a.lock <- struct{}{}
	return a
}

// AsAccount returns a client that works as the service account user. base must have the right to request its tokens;
// anonymous is the same server.
func AsAccount(base *client.Client, anonymous *rest.Config, user, agent string) *client.Client {
	namespace, name, ok := strings.Cut(strings.TrimPrefix(user, "system:serviceaccount:"), ":")
	if !ok {
		return base
	}
	cfg := servers.Anonymous(anonymous)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return newAccountTransport(namespace, name, next, accountTokens{base.Interface, namespace, name}.request)
	})
	cl, err := client.Remote(cfg, agent)
	if err != nil {
		return base // cannot happen: base.Config has already given a client
	}
	return cl
}

// RoundTrip implements http.RoundTripper.
func (a *accountTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := a.currentToken(r.Context())
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // the contract of RoundTripper
		}
		return nil, err
	}
	return a.send(r, token)
}

// send sends r with that token.
func (a *accountTransport) send(r *http.Request, token string) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := a.next.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusUnauthorized { // the account or the signing key was replaced
		a.discard(r.Context(), token)
	}
	return resp, err
}

// currentToken returns the current token, after renewing it when it is due.
func (a *accountTransport) currentToken(ctx context.Context) (string, error) {
	select {
	case <-a.lock:
		defer func() { a.lock <- struct{}{} }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	now := time.Now()
	if now.Before(a.renewAt) {
		return a.token, nil
	}
	got, err := a.request(ctx)
	switch {
	case err == nil:
		life := got.ExpirationTimestamp.Sub(now)
		if life <= 0 || life > accountTokenLife { // the server's clock shows another time
			life = accountTokenLife
		}
		a.token = got.Token
		a.expires = now.Add(life)
		a.renewAt = now.Add(time.Duration(accountTokenShare * float64(life)))
	case now.Before(a.expires): // the old token is still valid: retry later
		a.renewAt = now.Add(min(10*time.Second, a.expires.Sub(now)))
	default:
		return "", fmt.Errorf("token of service account %s/%s: %w", a.namespace, a.name, err)
	}
	return a.token, nil
}

// accountTokens requests tokens of a service account as kube-controller-manager does with
// --use-service-account-credentials: as system:kube-controller-manager, which also creates a missing account.
// Impersonation would be simpler, but Kubernetes grants the user no such right.
type accountTokens struct {
	base            kubernetes.Interface
	namespace, name string
}

func (a accountTokens) request(ctx context.Context) (*authenticationv1.TokenRequestStatus, error) {
	seconds := int64(accountTokenLife / time.Second)
	accounts := a.base.CoreV1().ServiceAccounts(a.namespace)
	ask := func() (*authenticationv1.TokenRequest, error) {
		return accounts.CreateToken(ctx, a.name, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &seconds,
		}}, metav1.CreateOptions{})
	}
	got, err := ask()
	if apierrors.IsNotFound(err) {
		made := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: a.name}}
		if _, err := accounts.Create(ctx, made, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, err
		}
		got, err = ask()
	}
	if err != nil {
		return nil, err
	}
	return &got.Status, nil
}

// discard discards token, so that the next request renews it. It does nothing when the token was replaced meanwhile.
func (a *accountTransport) discard(ctx context.Context, token string) {
	select {
	case <-a.lock:
		defer func() { a.lock <- struct{}{} }()
	case <-ctx.Done():
		return
	}
	if a.token == token {
		a.token = ""
		a.renewAt = time.Time{}
		a.expires = time.Time{}
	}
}
