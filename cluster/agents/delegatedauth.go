// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/lru"

	"keelson/apiserver/wire"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/client"
	"keelson/cluster/credentials"
	"keelson/cluster/version"
	"keelson/lib/connlimit"
	"keelson/lib/shares"
	"keelson/pki"
)

// DelegatedAuth authenticates and authorizes the callers of an agent's health and metrics port, as delegated
// authentication does in Kubernetes: by a client certificate of a CA from the ConfigMap
// kube-system/extension-apiserver-authentication, or by a TokenReview; then by a SubjectAccessReview. Answers are
// cached for reviewLife.
type DelegatedAuth struct {
	authnAPI  kubernetes.Interface // receives TokenReviews
	authzAPI  kubernetes.Interface // receives SubjectAccessReviews
	certs     *authn.Certificates
	staticCAs bool // certs holds --client-ca-file and is not refreshed
	log       *slog.Logger

	refreshed  atomic.Int64 // when the CAs were last read, in Unix nanoseconds; 0: never yet
	refreshing sync.Mutex   // held during a refresh

	reviews          *shares.Shares // of concurrent reviews: by address for tokens, by user for accesses
	tokens, accesses *lru.Cache     // cached answers by SHA-256 of the request
}

const (
	reviewLife      = 10 * time.Second
	reviewCacheSize = 1024
	maxReviews      = 16
	maxReviewsOfOne = 4 // so that a caller with wrong tokens does not keep others waiting
	reviewTimeout   = 10 * time.Second
	caLife          = 30 * time.Second
)

// reviewed is a cached answer. user is nil for a token that is not valid.
type reviewed struct {
	expires time.Time
	user    *auth.User
	allowed bool
	reason  string
}

// NewDelegatedAuth returns what asks the API server who calls an agent, and what a caller may do.
func NewDelegatedAuth(cl *client.Client, agentServing Serving, log *slog.Logger) (*DelegatedAuth, error) {
	who, err := otherServer(cl, "--authentication-kubeconfig", agentServing.AuthnKubeconfig)
	if err != nil {
		return nil, err
	}
	may, err := otherServer(cl, "--authorization-kubeconfig", agentServing.AuthzKubeconfig)
	if err != nil {
		return nil, err
	}
	c := &DelegatedAuth{
		authnAPI: who,
		authzAPI: may,
		certs:    authn.NewCertificates(x509.NewCertPool()),
		log:      log,
		reviews:  shares.New(maxReviewsOfOne, maxReviews),
		tokens:   lru.New(reviewCacheSize),
		accesses: lru.New(reviewCacheSize),
	}
	if agentServing.ClientCA == "" {
		return c, nil
	}
	pem, err := pki.ReadAuthorities(agentServing.ClientCA, "--client-ca-file")
	if err != nil {
		return nil, err
	}
	pool, err := pki.Authorities(pem)
	if err != nil {
		return nil, err
	}
	c.certs.SetRoots(pool)
	c.staticCAs = true
	return c, nil
}

// otherServer returns a client of the API server that a flag's kubeconfig names; cl's own without the flag.
func otherServer(cl *client.Client, flag, file string) (kubernetes.Interface, error) {
	if file == "" {
		return cl.Interface, nil
	}
	to, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	other, err := client.Remote(to, "keelson/"+version.Kubernetes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return other.Interface, nil
}

// admit reports whether r may be served. If not, it has written the error response.
func (c *DelegatedAuth) admit(w http.ResponseWriter, r *http.Request) bool {
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	user, err := c.authenticate(r.WithContext(ctx))
	if err != nil {
		c.log.Debug("unauthorized request", "err", err)
		wire.WriteError(w, r, apierrors.NewUnauthorized("Unauthorized"))
		return false
	}
	if user.Name != auth.Anonymous {
		connlimit.Identify(r.Context(), user.Owner())
	}
	allowed, reason, err := c.authorize(ctx, user, authorizationv1.SubjectAccessReviewSpec{
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{
			Path: r.URL.Path,
			Verb: strings.ToLower(r.Method),
		},
	}, len(r.URL.Path) < maxCachedPath)
	switch {
	case err != nil:
		c.log.Warn("authorize a request", "user", user.Name, "path", r.URL.Path, "err", err)
		wire.WriteError(w, r,
			apierrors.NewInternalError(fmt.Errorf("ask the API server whether user %q may %s %s: it does not answer",
				user.Name, strings.ToLower(r.Method), r.URL.Path)))
	case !allowed:
		text := fmt.Sprintf("User %q cannot %s path %q", user.Name, strings.ToLower(r.Method), r.URL.Path)
		if reason != "" {
			text += ": " + reason
		}
		e := apierrors.NewForbidden(schema.GroupResource{}, "", nil)
		e.ErrStatus.Message = "forbidden: " + text
		e.ErrStatus.Details = &metav1.StatusDetails{}
		wire.WriteError(w, r, e)
	}
	return err == nil && allowed
}

// AdmitAtNode reports whether a caller of the node's kubelet, who has sent a bearer token, may use one of the node's
// subresources. If not, it has written the error response. Kubernetes' kubelet does so in its webhook modes.
func (c *DelegatedAuth) AdmitAtNode(
	w http.ResponseWriter, r *http.Request, node, verb string, subresources []string,
) bool {
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	var user *auth.User
	err := authn.ErrUnauthorized
	if token := authn.Bearer(r); token != "" {
		user, err = c.byToken(ctx, sourceOf(r), token)
	}
	if err != nil {
		c.log.Debug("unauthorized request", "err", err)
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return false
	}
	connlimit.Identify(r.Context(), user.Owner())
	for _, sub := range subresources {
		allowed, _, err := c.authorize(ctx, user, authorizationv1.SubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb:        verb,
				Version:     "v1",
				Resource:    "nodes",
				Subresource: sub,
				Name:        node,
			},
		}, true)
		if err != nil {
			c.log.Warn("authorize a request", "user", user.Name, "path", r.URL.Path, "err", err)
			http.Error(w, fmt.Sprintf("ask the API server whether user %q may %s nodes/%s: it does not answer",
				user.Name, verb, sub), http.StatusInternalServerError)
			return false
		}
		if allowed {
			return true
		}
	}
	http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", user.Name, verb,
		subresources), http.StatusForbidden)
	return false
}

// authenticate returns the user of r. A wrong credential is an error; a request without credentials is anonymous.
func (c *DelegatedAuth) authenticate(r *http.Request) (*auth.User, error) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		c.refreshCAs(r.Context())
		if u, ok, err := c.certs.Authenticate(r); ok || err != nil && authn.Bearer(r) == "" {
			return u, err
		}
	}
	if token := authn.Bearer(r); token != "" {
		return c.byToken(r.Context(), sourceOf(r), token)
	}
	u, _, err := authn.Anonymous{}.Authenticate(r)
	return u, err
}

// refreshCAs reads the client CAs from the API server, unless that was done within caLife.
func (c *DelegatedAuth) refreshCAs(ctx context.Context) {
	fresh := func() bool { return time.Since(time.Unix(0, c.refreshed.Load())) < caLife }
	if c.staticCAs || fresh() {
		return
	}
	if c.refreshed.Load() == 0 {
		c.refreshing.Lock()
	} else if !c.refreshing.TryLock() { // another goroutine refreshes them: use the current ones
		return
	}
	defer c.refreshing.Unlock()
	if fresh() {
		return
	}
	cm, err := c.authnAPI.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, credentials.AuthenticationInfoName,
		metav1.GetOptions{})
	if err == nil {
		var pool *x509.CertPool
		if pool, err = pki.Authorities([]byte(cm.Data[credentials.ClientCAKey])); err == nil {
			c.certs.SetRoots(pool)
		}
	}
	if err != nil {
		c.log.Warn("read the client certificate authorities", "configmap",
			metav1.NamespaceSystem+"/"+credentials.AuthenticationInfoName, "err", err)
		if c.refreshed.Load() == 0 {
			return // the next request retries
		}
	}
	c.refreshed.Store(time.Now().UnixNano())
}

// byToken authenticates a token with a TokenReview.
func (c *DelegatedAuth) byToken(ctx context.Context, source, token string) (*auth.User, error) {
	got, err := c.review(ctx, source, c.tokens, []byte(token), true, func() (reviewed, error) {
		tr, err := c.authnAPI.AuthenticationV1().TokenReviews().Create(ctx,
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil {
			return reviewed{}, fmt.Errorf("review a token: %w", err)
		}
		if !tr.Status.Authenticated {
			return reviewed{reason: tr.Status.Error}, nil
		}
		u := &auth.User{
			Name:   tr.Status.User.Username,
			UID:    tr.Status.User.UID,
			Groups: tr.Status.User.Groups,
			Extra:  map[string][]string{},
			How:    "token review",
		}
		for k, v := range tr.Status.User.Extra {
			u.Extra[k] = v
		}
		return reviewed{user: authn.WithAuthenticated(u)}, nil
	})
	if err != nil {
		return nil, err
	}
	if got.user == nil {
		return nil, fmt.Errorf("%w: the API server does not know the token: %s", authn.ErrUnauthorized, got.reason)
	}
	return got.user, nil
}

// maxCachedPath is the longest path, in bytes, whose authorization is cached.
const maxCachedPath = 4096

// authorize asks the API server whether user may do what spec, which names no user, asks for. keep says whether the
// answer may be cached. Members of system:masters need no review.
func (c *DelegatedAuth) authorize(
	ctx context.Context, user *auth.User, spec authorizationv1.SubjectAccessReviewSpec, keep bool,
) (allowed bool, reason string, err error) {
	if slices.Contains(user.Groups, auth.Masters) {
		return true, "", nil
	}
	spec.User = user.Name
	spec.UID = user.UID
	spec.Groups = user.Groups
	for k, v := range user.Extra {
		if spec.Extra == nil {
			spec.Extra = map[string]authorizationv1.ExtraValue{}
		}
		spec.Extra[strings.ToLower(k)] = v
	}
	question, err := json.Marshal(spec)
	if err != nil {
		return false, "", err
	}
	got, err := c.review(ctx, user.Name, c.accesses, question, keep, func() (reviewed, error) {
		sar, err := c.authzAPI.AuthorizationV1().SubjectAccessReviews().Create(ctx,
			&authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			return reviewed{}, fmt.Errorf("review an access: %w", err)
		}
		return reviewed{allowed: sar.Status.Allowed && !sar.Status.Denied, reason: sar.Status.Reason}, nil
	})
	return got.allowed, got.reason, err
}

// sourceOf is the address of the caller, without the port.
func sourceOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// review returns the cached answer for question, or calls ask. keep says whether the answer may be cached. Callers
// wait for their own reviews only.
func (c *DelegatedAuth) review(
	ctx context.Context, caller string, kept *lru.Cache, question []byte, keep bool, ask func() (reviewed, error),
) (reviewed, error) {
	key := sha256.Sum256(question)
	if known, ok := kept.Get(key); ok {
		if a, ok := known.(reviewed); ok && time.Now().Before(a.expires) {
			return a, nil
		}
	}
	leave, err := c.reviews.Enter(ctx, caller)
	if err != nil {
		return reviewed{}, err
	}
	defer leave()
	a, err := ask()
	if err == nil && keep {
		a.expires = time.Now().Add(reviewLife)
		kept.Add(key, a)
	}
	return a, err
}
