// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/auth"
	"keelson/auth/remote"
)

// Webhook authenticates bearer tokens by a TokenReview to a service (kube-apiserver's
// --authentication-token-webhook-config-file).
type Webhook struct {
	hook      *remote.Hook
	audiences []string
	keep      time.Duration
}

// NewWebhook uses the service in kubeconfig. A valid token is cached for keep. audiences are the API server's own.
func NewWebhook(kubeconfig string, audiences []string, keep time.Duration, via remote.Via) (*Webhook, error) {
	h, err := remote.New(kubeconfig, "authentication webhook", 0, via)
	if err != nil {
		return nil, err
	}
	return &Webhook{hook: h, audiences: audiences, keep: keep}, nil
}

// Authenticate reviews the request's bearer token.
func (w *Webhook) Authenticate(r *http.Request) (*auth.User, bool, error) {
	token := Bearer(r)
	if token == "" {
		return nil, false, nil
	}
	u, _, err := w.Check(r.Context(), token, w.audiences)
	return u, err == nil, err
}

// Check reviews token, which must be for one of audiences.
func (w *Webhook) Check(ctx context.Context, token string, audiences []string) (*auth.User, []string, error) {
	review := &authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"},
		Spec:     authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences},
	}
	got := &authenticationv1.TokenReview{}
	err := w.hook.Ask(ctx, review, got, func() time.Duration {
		if got.Status.Authenticated {
			return w.keep
		}
		return 0
	})
	if err != nil {
		return nil, nil, err
	}
	status := &got.Status
	if !status.Authenticated {
		return nil, nil, fmt.Errorf("%w: the token webhook does not know the token: %s", ErrUnauthorized, status.Error)
	}
	meant := status.Audiences
	if len(meant) == 0 {
		meant = w.audiences
	}
	matched := common(audiences, meant)
	if len(audiences) > 0 && len(matched) == 0 {
		return nil, nil, fmt.Errorf("%w: the token is for the audiences %q", ErrUnauthorized, meant)
	}
	user := &auth.User{
		Name:   status.User.Username,
		UID:    status.User.UID,
		Groups: slices.Clone(status.User.Groups),
		How:    "token webhook",
	}
	if len(status.User.Extra) > 0 {
		user.Extra = map[string][]string{}
		for k, v := range status.User.Extra {
			user.Extra[k] = v
		}
	}
	return WithAuthenticated(user), matched, nil
}

// common returns the elements of a that are in b.
func common(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return !slices.Contains(b, s) })
}
