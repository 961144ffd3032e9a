// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/lru"

	"keelson/apiserver/wire"
	"keelson/auth"
)

const (
	headerUser  = "Impersonate-User"
	headerUID   = "Impersonate-Uid"
	headerGroup = "Impersonate-Group"
	headerExtra = "Impersonate-Extra-"
)

// impersonate lets a user act as another, if the authorizer allows it in one of the modes.
func impersonate(config *Config, next http.Handler) http.Handler {
	last := lru.New(modeCacheSize)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wanted, err := requestedUser(r.Header)
		if err != nil {
			wire.WriteError(w, r, err)
			return
		}
		if wanted == nil {
			next.ServeHTTP(w, r)
			return
		}
		rq := From(r.Context())
		as, by, err := config.impersonated(r.Context(), rq, wanted, last)
		if err != nil {
			rq.AuditStatus(wire.Status(err))
			wire.WriteError(w, r, err)
			return
		}
		as.How = "impersonated by " + rq.User.Name
		rq.impersonator = rq.User
		rq.constraint = by
		rq.User = as
		rq.Mark.AuthnHow = as.How
		rq.Mark.Groups = as.Groups
		for name := range r.Header {
			if strings.HasPrefix(name, "Impersonate-") {
				r.Header.Del(name)
			}
		}
		next.ServeHTTP(w, r)
	})
}

// requestedUser parses the impersonation headers; nil: there are none.
func requestedUser(h http.Header) (*auth.User, error) {
	if !impersonates(h) {
		return nil, nil // no impersonation
	}
	as := &auth.User{Name: h.Get(headerUser), UID: h.Get(headerUID), Groups: slices.Clone(h.Values(headerGroup))}
	extras := false
	for key, values := range h {
		rest, ok := strings.CutPrefix(key, headerExtra)
		if !ok {
			continue
		}
		extras = true
		extra, err := url.PathUnescape(strings.ToLower(rest))
		if err != nil {
			extra = strings.ToLower(rest)
		}
		if as.Extra == nil {
			as.Extra = map[string][]string{}
		}
		as.Extra[extra] = append(as.Extra[extra], values...)
	}
	if as.Name != "" {
		return as, nil
	}
	if as.UID != "" || len(as.Groups) > 0 || extras {
		return nil,
			apierrors.NewBadRequest(fmt.Sprintf(
				"requested &user.DefaultInfo{Name:%q, UID:%q, Groups:%#v, Extra:%#v} without impersonating a user name",
				as.Name, as.UID, as.Groups, as.Extra))
	}
	return nil, nil // no impersonation
}

// impersonates reports whether there is any impersonation header.
func impersonates(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "Impersonate-") {
			return true
		}
	}
	return false
}
