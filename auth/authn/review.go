// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"errors"
	"net/http"

	"keelson/auth"
)

// Reviewer answers TokenReviews for all tokens that the server accepts, not only service-account tokens.
type Reviewer struct {
	*Tokens
	// Others are asked about tokens that Tokens does not accept. Those without audiences of their own count as the API
	// server's audiences.
	Others []auth.Authenticator
}

// Check verifies a token of any kind, like Tokens.Check.
func (v Reviewer) Check(ctx context.Context, token string, audiences []string) (*auth.User, []string, error) {
	u, matched, err := v.Tokens.Check(ctx, token, audiences)
	if err == nil {
		return u, matched, nil
	}
	wrong := []error{err}
	for _, a := range v.Others {
		u, matched, known, err := reviewBy(ctx, a, token, audiences, v.Audiences())
		if known {
			return u, matched, nil
		}
		if err != nil {
			wrong = append(wrong, err)
		}
	}
	return nil, nil, errors.Join(wrong...)
}

func reviewBy(
	ctx context.Context, authenticator auth.Authenticator, token string, audiences, own []string,
) (*auth.User, []string, bool, error) {
	if hook, ok := authenticator.(*Webhook); ok { // it checks audiences itself
		u, matched, err := hook.Check(ctx, token, audiences)
		return u, matched, err == nil, err
	}
	matched := common(audiences, own)
	if len(audiences) > 0 && len(matched) == 0 {
		return nil, nil, false, nil
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
	if err != nil {
		return nil, nil, false, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	u, ok, err := authenticator.Authenticate(r)
	return u, matched, ok, err
}
