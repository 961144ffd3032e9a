// SPDX-License-Identifier: Apache-2.0

// Package auth defines the types shared by authentication and authorization: users, request attributes and decisions.
// The API server's pipeline and the packages auth/authn and auth/authz use it. It makes no decision itself.
package auth

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"keelson/event"
)

// User is an authenticated identity. It is immutable once returned.
type User struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string][]string
	// How the user authenticated, for the timeline: ClientCertificate, "service account token", InProcess, "anonymous".
	How string
	// Annotations are added to the audit event and Warnings to the response of each request with this credential; nil:
	// none.
	Annotations map[string]string
	Warnings    []string
}

// Values of User.How that code compares with.
const (
	// InProcess is that of components in the server's own process; they need no credential.
	InProcess = "in process"
	// ClientCertificate is that of a valid TLS client certificate.
	ClientCertificate = "client certificate"
)

// InProcess reports whether u is a component of the server's own process. u may be nil.
func (u *User) InProcess() bool { return u != nil && u.How == InProcess }

// ByCertificate reports whether u presented a client certificate. u may be nil.
func (u *User) ByCertificate() bool { return u != nil && u.How == ClientCertificate }

// Well-known user and group names.
const (
	Anonymous       = "system:anonymous"
	Unauthenticated = "system:unauthenticated"
	Authenticated   = "system:authenticated"
	Masters         = "system:masters"
	Nodes           = "system:nodes"
)

// Attributes are the facts about a request that an authorizer needs.
type Attributes struct {
	User *User
	// get list watch create update patch delete deletecollection; for paths the lower-case HTTP method
	Verb            string
	Group           string
	Version         string
	Resource        string
	Subresource     string
	Namespace       string
	Name            string
	ResourceRequest bool
	Path            string // set when ResourceRequest is false
	// FieldSelector and LabelSelector restrict a list, watch or deletecollection; nil: none, or invalid.
	FieldSelector fields.Requirements
	LabelSelector labels.Requirements
}

// Verdict is the result of an authorizer.
type Verdict uint8

// The verdicts. NoOpinion means that the next authorizer is asked; if none allows the request, it is denied.
const (
	NoOpinion Verdict = iota
	Allow
	Deny
)

// Decision is a verdict with its reason, which users see in the response and in the timeline ("RBAC: allowed by
// ClusterRoleBinding \"cluster-admin\" of ClusterRole ...").
type Decision struct {
	Verdict Verdict
	Reason  string
	Grant   *event.Grant // the RBAC binding that allows the request, if any; shared, never modified
}

// Authorizer decides about a request. After an error the request fails with 500 unless another authorizer allows it.
type Authorizer interface {
	Authorize(ctx context.Context, a *Attributes) (Decision, error)
}

// Authenticator finds the user of a request. ok is false when the request has no credential of this kind; an error
// means that its credential is invalid (401).
type Authenticator interface {
	Authenticate(r *http.Request) (u *User, ok bool, err error)
}

type userKey struct{}

// WithUser returns a context whose requests are authenticated as u; the in-process transport uses it. Only code that
// assembles the server may call it, and the pipeline for what a request's handler asks as the same user; a request from
// the network cannot carry it.
func WithUser(ctx context.Context, u *User) context.Context {
	return context.WithValue(ctx, userKey{}, u)
}

// UserFrom returns the user set by WithUser, or nil.
func UserFrom(ctx context.Context) *User {
	u, _ := ctx.Value(userKey{}).(*User)
	return u
}
