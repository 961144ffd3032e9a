// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/apiserver/wire"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/lib/connlimit"
)

// authenticate sets the user: the in-process identity, else that of the first authenticator that handles the
// credential.
func authenticate(config *Config, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rq := From(r.Context())
		begin := time.Now()
		browserToken(r)
		if authn.SpaceBeforeBearer(r) {
			rq.Warn("the provided Authorization header contains extra space before the bearer token, and is ignored")
		}
		user, err := config.authenticateRequest(r)
		rq.Mark.Authn = time.Since(begin)
		config.Metrics.authenticated(r, user, err, rq.Mark.Authn)
		if err != nil || user == nil {
			if err != nil {
				config.Log.Debug("authentication refused", "error", err, "path", r.URL.Path, "remote", r.RemoteAddr)
			}
			auditUnauthenticated(config, rq, r)
			w.Header().Set("Www-Authenticate", `Bearer realm="keelson"`)
			wire.WriteError(w, r, apierrors.NewUnauthorized("Unauthorized"))
			return
		}
		if user.Name != auth.Anonymous {
			connlimit.Identify(r.Context(), user.Owner())
		}
		rq.User = user
		for _, text := range user.Warnings {
			rq.Warn(text)
		}
		rq.Mark.AuthnHow = user.How
		rq.Mark.Groups = user.Groups
		r.Header.Del("Authorization") // later handlers must not see it, in particular a proxied server
		next.ServeHTTP(w, r)
	})
}

func (c *Config) authenticateRequest(r *http.Request) (*auth.User, error) {
	if u := auth.UserFrom(r.Context()); u != nil {
		return u, nil
	}
	var wrong error
	for _, a := range c.Authenticators {
		u, ok, err := a.Authenticate(r)
		if err != nil {
			wrong = err
			continue
		}
		if ok {
			return u, rejectInvalidCredential(u, wrong)
		}
	}
	return nil, wrong
}

// rejectInvalidCredential prevents that an invalid credential counts as anonymous.
func rejectInvalidCredential(u *auth.User, wrong error) error {
	if u.Name == auth.Anonymous {
		return wrong
	}
	return nil
}
