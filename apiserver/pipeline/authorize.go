// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"keelson/apiserver/wire"
	"keelson/auth"
	"keelson/event"
)

// authorize checks whether the user may make the request.
func authorize(c *Config, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rq := From(r.Context())
		begin := time.Now()
		err := c.decide(r.Context(), Attributes(rq), &rq.Mark)
		rq.Mark.Authz = time.Since(begin)
		if rq.audit != nil {
			rq.annotateDecision(err)
		}
		if err != nil {
			rq.Failure = err.Error()
			wire.WriteError(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// decide calls the authorizer; a rejection has Kubernetes' message. m receives the reason why the request is allowed.
func (c *Config) decide(ctx context.Context, attrs *auth.Attributes, m *event.Request) error {
	begin := time.Now()
	d, err := c.Authorizer.Authorize(ctx, attrs)
	c.Metrics.decided(d, err, time.Since(begin))
	if d.Verdict == auth.Allow {
		m.AuthzWhy = d.Reason
		m.Grant = d.Grant
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("authorize: %w", err))
	}
	return Forbidden(attrs, d.Reason)
}

// annotateDecision adds the decision and its reason to the audit event.
func (r *Request) annotateDecision(err error) {
	decision := "allow"
	reason := r.Mark.AuthzWhy
	if err != nil {
		s := wire.Status(err)
		decision = "forbid"
		reason = s.Message
		r.AuditStatus(s)
	}
	r.Annotate("authorization.k8s.io/decision", decision)
	r.Annotate("authorization.k8s.io/reason", reason)
}

// Attributes converts a request to the authorizer's attributes.
func Attributes(rq *Request) *auth.Attributes {
	if !rq.IsResource {
		return &auth.Attributes{User: rq.User, Verb: rq.Verb, Path: rq.Path}
	}
	return &auth.Attributes{
		User:            rq.User,
		Verb:            rq.Verb,
		Group:           rq.Group,
		Version:         rq.Version,
		Resource:        rq.Resource,
		Subresource:     rq.Subresource,
		Namespace:       rq.Namespace,
		Name:            rq.Name,
		ResourceRequest: true,
		FieldSelector:   rq.FieldSelector,
		LabelSelector:   rq.LabelSelector,
	}
}

// Forbidden is the 403 error for a, with Kubernetes' message.
func Forbidden(attrs *auth.Attributes, reason string) error {
	text := fmt.Sprintf("User %q cannot %s path %q", attrs.User.Name, attrs.Verb, attrs.Path)
	if attrs.ResourceRequest {
		resource := attrs.Resource
		if attrs.Subresource != "" {
			resource += "/" + attrs.Subresource
		}
		where := "at the cluster scope"
		if attrs.Namespace != "" {
			where = fmt.Sprintf("in the namespace %q", attrs.Namespace)
		}
		text = fmt.Sprintf("User %q cannot %s resource %q in API group %q %s", attrs.User.Name, attrs.Verb, resource,
			attrs.Group,
			where)
	}
	if reason != "" {
		text += ": " + reason
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: attrs.Group, Resource: attrs.Resource}, attrs.Name,
		errors.New(text))
}
