// SPDX-License-Identifier: Apache-2.0

// Package auth holds the words shared by authentication and authorization:
// who someone is, what they ask for, and what was decided and why. It decides
// nothing itself: auth/authn and auth/authz do, and the API server's pipeline asks them.
package auth

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"keelson/lib/mark"
)

// User is an authenticated identity. Immutable once returned.
type User struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string][]string
	// How the user proved it, for the timeline: ClientCertificate, "service account token", InProcess, "anonymous".
	How string
	// Annotations go to the audit log, and Warnings to the client, with whatever is asked; nil: nothing is to be said of the credential.
	Annotations map[string]string
	Warnings    []string
}

// Hows that are asked about.
const (
	// InProcess is that of components that run in the server's own process and prove nothing.
	InProcess = "in process"
	// ClientCertificate is that of who showed a certificate of an authority for clients.
	ClientCertificate = "client certificate"
)

// InProcess tells whether u is a component of the server's own process. A nil u is none.
func (u *User) InProcess() bool { return u != nil && u.How == InProcess }

// ByCertificate tells whether u showed a client certificate. A nil u did not.
func (u *User) ByCertificate() bool { return u != nil && u.How == ClientCertificate }

// Well-known names.
const (
	Anonymous       = "system:anonymous"
	Unauthenticated = "system:unauthenticated"
	Authenticated   = "system:authenticated"
	Masters         = "system:masters"
	Nodes           = "system:nodes"
)

// Attributes are what an authorizer judges.
type Attributes struct {
	User            *User
	Verb            string // get list watch create update patch delete deletecollection; lower-case HTTP method for paths
	Group           string
	Version         string
	Resource        string
	Subresource     string
	Namespace       string
	Name            string
	ResourceRequest bool
	Path            string // set when ResourceRequest is false
	// FieldSelector and LabelSelector are what a list, watch or deletecollection is restricted to; nil: nothing, or not readable.
	FieldSelector fields.Requirements
	LabelSelector labels.Requirements
}

// Verdict is an authorizer's answer.
type Verdict uint8

// The verdicts. NoOpinion means: ask the next; if nobody allows, the request is denied.
const (
	NoOpinion Verdict = iota
	Allow
	Deny
)

// Decision carries the verdict and the reason, shown to the user and in the timeline
// ("RBAC: allowed by ClusterRoleBinding \"cluster-admin\" of ClusterRole ...").
type Decision struct {
	Verdict Verdict
	Reason  string
	Grant   *mark.Grant // the binding that allows it, if RBAC does. Shared: never modified.
}

// Authorizer judges a request. An error means that it could not be judged; the request is then refused with 500 unless another allows it.
type Authorizer interface {
	Authorize(ctx context.Context, a *Attributes) (Decision, error)
}

// Authenticator finds out who sent a request. ok is false when the request carries nothing this authenticator understands;
// an error means that it carries a credential that is wrong (401).
type Authenticator interface {
	Authenticate(r *http.Request) (u *User, ok bool, err error)
}

type userKey struct{}

// WithUser returns a context whose requests come from u, as the in-process transport's do: the pipeline trusts it.
// Only the server's own assembly may call it; nothing that arrives over the network can carry it.
func WithUser(ctx context.Context, u *User) context.Context {
	return context.WithValue(ctx, userKey{}, u)
}

// UserFrom returns the user set by WithUser, or nil.
func UserFrom(ctx context.Context) *User {
	u, _ := ctx.Value(userKey{}).(*User)
	return u
}
