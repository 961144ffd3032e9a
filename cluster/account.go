// SPDX-License-Identifier: Apache-2.0

package cluster

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
)

// accountTransport speaks to the API server as a service account, by tokens: kept in memory only. A token is requested when the first
// request needs it, and anew when most of its life is over.
type accountTransport struct {
	namespace, name string
	request         func(context.Context) (*authenticationv1.TokenRequestStatus, error)
	next            http.RoundTripper

	turn  chan struct{} // has an item: whoever takes it may look at what follows
	token string
	renew time.Time // from then on another is wanted
	end   time.Time // from then on it is worth nothing
}

const (
	accountTokenLife = time.Hour
	// accountTokenShare of a token's life is over when another is requested.
	accountTokenShare = 0.8
)

func newAccountTransport(
	namespace, name string, next http.RoundTripper, request func(context.Context) (*authenticationv1.TokenRequestStatus, error),
) *accountTransport {
	a := &accountTransport{namespace: namespace, name: name, request: request, next: next, turn: make(chan struct{}, 1)}
	a.turn <- struct{}{}
	return a
}

// asAccount makes a client of a service account, which base may request tokens for.
func asAccount(base *client.Client, user, agent string) *client.Client {
	namespace, name, ok := strings.Cut(strings.TrimPrefix(user, "system:serviceaccount:"), ":")
	if !ok {
		return base
	}
	cfg := rest.AnonymousClientConfig(base.Config)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return newAccountTransport(namespace, name, next, madeAccount{base.Interface, namespace, name}.request)
	})
	cl, err := client.Remote(cfg, agent)
	if err != nil {
		return base // the same address worked a moment ago
	}
	return cl
}

// RoundTrip sends r with a token.
func (a *accountTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := a.valid(r.Context())
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as a RoundTripper must
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
	if err == nil && resp.StatusCode == http.StatusUnauthorized { // the account, or the server's key, is another one now
		a.drop(r.Context(), token)
	}
	return resp, err
}

// valid is a token that is good for a while.
func (a *accountTransport) valid(ctx context.Context) (string, error) {
	select {
	case <-a.turn:
		defer func() { a.turn <- struct{}{} }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	now := time.Now()
	if now.Before(a.renew) {
		return a.token, nil
	}
	got, err := a.request(ctx)
	switch {
	case err == nil:
		life := got.ExpirationTimestamp.Sub(now)
		a.token, a.end, a.renew = got.Token, got.ExpirationTimestamp.Time, now.Add(time.Duration(accountTokenShare*float64(life)))
	case now.Before(a.end): // the old one will do, for now
		a.renew = now.Add(min(10*time.Second, a.end.Sub(now)))
	default:
		return "", fmt.Errorf("token of service account %s/%s: %w", a.namespace, a.name, err)
	}
	return a.token, nil
}

// madeAccount is an account for which its client requests tokens, as kube-controller-manager does with --use-service-account-credentials:
// as system:kube-controller-manager, which makes the account where it is missing. Impersonation, which looks simpler, is a right that
// Kubernetes does not give.
type madeAccount struct {
	base            kubernetes.Interface
	namespace, name string
}

func (a madeAccount) request(ctx context.Context) (*authenticationv1.TokenRequestStatus, error) {
	seconds := int64(accountTokenLife / time.Second)
	accounts := a.base.CoreV1().ServiceAccounts(a.namespace)
	ask := func() (*authenticationv1.TokenRequest, error) {
		return accounts.CreateToken(ctx, a.name, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
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

// drop has another token requested, unless that was done already.
func (a *accountTransport) drop(ctx context.Context, token string) {
	select {
	case <-a.turn:
		defer func() { a.turn <- struct{}{} }()
	case <-ctx.Done():
		return
	}
	if a.token == token {
		a.token, a.renew, a.end = "", time.Time{}, time.Time{}
	}
}
