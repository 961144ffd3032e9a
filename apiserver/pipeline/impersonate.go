// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"

	"keelson/apiserver/wire"
	"keelson/auth"
)

const (
	headerUser  = "Impersonate-User"
	headerUID   = "Impersonate-Uid"
	headerGroup = "Impersonate-Group"
	headerExtra = "Impersonate-Extra-"
)

// impersonate lets a user act as another where the authorizer grants the verb "impersonate" on every part of the identity.
func impersonate(c *Config, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		as, asks, err := impersonation(r.Header)
		if err != nil {
			wire.WriteError(w, r, apierrors.NewBadRequest(err.Error()))
			return
		}
		if as == nil {
			next.ServeHTTP(w, r)
			return
		}
		rq := From(r.Context())
		for _, a := range asks {
			a.User, a.Verb, a.ResourceRequest = rq.User, "impersonate", true
			if err := c.decide(r.Context(), &a, nil); err != nil {
				wire.WriteError(w, r, err)
				return
			}
		}
		as.How = "impersonated by " + rq.User.Name
		rq.impersonator = rq.User
		rq.User, rq.Mark.AuthnHow = as, how(as)
		for name := range r.Header {
			if strings.HasPrefix(name, "Impersonate-") {
				r.Header.Del(name)
			}
		}
		next.ServeHTTP(w, r)
	})
}

// impersonation reads the headers: the identity wanted (nil: none) and what must be granted for it.
func impersonation(h http.Header) (*auth.User, []auth.Attributes, error) {
	name, uid, groups := h.Get(headerUser), h.Get(headerUID), h.Values(headerGroup)
	as := &auth.User{Name: name, UID: uid, Groups: slices.Clone(groups), Extra: map[string][]string{}}
	var asks []auth.Attributes
	for key, values := range h {
		if rest, ok := strings.CutPrefix(key, headerExtra); ok {
			extra, err := url.PathUnescape(strings.ToLower(rest))
			if err != nil {
				extra = strings.ToLower(rest)
			}
			as.Extra[extra] = slices.Clone(values)
			for _, v := range values {
				asks = append(asks, auth.Attributes{Group: "authentication.k8s.io", Version: "v1", Resource: "userextras", Subresource: extra, Name: v})
			}
		}
	}
	if name == "" {
		if uid != "" || len(groups) > 0 || len(as.Extra) > 0 {
			extra := as.Extra
			if len(extra) == 0 {
				extra = nil
			}
			return nil, nil, fmt.Errorf(`requested &user.DefaultInfo{Name:"", UID:%q, Groups:%#v, Extra:%#v} without impersonating a user name`,
				uid, as.Groups, extra) // with the name of Kubernetes' type
		}
		return nil, nil, nil
	}
	if uid != "" {
		asks = append(asks, auth.Attributes{Group: "authentication.k8s.io", Version: "v1", Resource: "uids", Name: uid})
	}
	for _, g := range groups {
		asks = append(asks, auth.Attributes{Version: "v1", Resource: "groups", Name: g})
	}
	if ns, account, ok := serviceAccount(name); ok {
		asks = append(asks, auth.Attributes{Version: "v1", Resource: "serviceaccounts", Namespace: ns, Name: account})
		if len(groups) == 0 {
			as.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:" + ns}
		}
	} else {
		asks = append(asks, auth.Attributes{Version: "v1", Resource: "users", Name: name})
	}
	switch stranger := slices.Contains(as.Groups, auth.Unauthenticated); {
	case stranger:
	case name == auth.Anonymous:
		as.Groups = append(as.Groups, auth.Unauthenticated)
	case !slices.Contains(as.Groups, auth.Authenticated):
		as.Groups = append(as.Groups, auth.Authenticated)
	}
	return as, asks, nil
}

// serviceAccount is the service account that a user is; a name that none can have is any user's.
func serviceAccount(name string) (ns, account string, ok bool) {
	rest, ok := strings.CutPrefix(name, "system:serviceaccount:")
	if !ok {
		return "", "", false
	}
	ns, account, ok = strings.Cut(rest, ":")
	return ns, account, ok && len(validation.ValidateNamespaceName(ns, false)) == 0 && len(validation.ValidateServiceAccountName(account, false)) == 0
}

// decide asks the authorizer and words a refusal as Kubernetes does. why, if not nil, receives the reason of an Allow.
func (c *Config) decide(ctx context.Context, a *auth.Attributes, why *string) error {
	begin := time.Now()
	d, err := c.Authorizer.Authorize(ctx, a)
	c.Metrics.decided(d, err, time.Since(begin))
	if d.Verdict == auth.Allow {
		if why != nil {
			*why = d.Reason
		}
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("authorize: %w", err))
	}
	return Forbidden(a, d.Reason)
}
