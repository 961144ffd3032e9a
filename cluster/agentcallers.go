// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
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
	"keelson/lib/connlimit"
	"keelson/pki"
)

// callers finds out who calls an agent, and whether they may, as Kubernetes' own agents do: by a certificate of an authority that the API
// server names (ConfigMap kube-system/extension-apiserver-authentication), or by asking the API server (TokenReview); what they may the
// API server says (SubjectAccessReview). Answers are believed for reviewLife.
type callers struct {
	who   kubernetes.Interface // knows callers
	may   kubernetes.Interface // knows what they may
	certs *authn.Certificates
	fixed bool // certs believes a file, not what the API server names
	log   *slog.Logger

	asked atomic.Int64 // when the API server was asked for authorities last, in Unix nanoseconds; 0: it has not answered yet
	look  sync.Mutex   // one asks at a time

	busy             chan struct{} // bounds the questions under way
	tokens, accesses *lru.Cache    // reviewed, by a digest of the question
}

const (
	reviewLife      = 10 * time.Second
	reviewsKept     = 1024
	reviewsAtOnce   = 16
	reviewTime      = 10 * time.Second
	authoritiesLife = 30 * time.Second
)

// reviewed is an answer of the API server. user is nil for a token that nobody has.
type reviewed struct {
	end     time.Time
	user    *auth.User
	allowed bool
	reason  string
}

func newCallers(cl *client.Client, o AgentServing, log *slog.Logger) (*callers, error) {
	who, err := otherServer(cl, "--authentication-kubeconfig", o.AuthnKubeconfig)
	if err != nil {
		return nil, err
	}
	may, err := otherServer(cl, "--authorization-kubeconfig", o.AuthzKubeconfig)
	if err != nil {
		return nil, err
	}
	c := &callers{
		who: who, may: may, certs: authn.NewCertificates(x509.NewCertPool()), log: log,
		busy: make(chan struct{}, reviewsAtOnce), tokens: lru.New(reviewsKept), accesses: lru.New(reviewsKept),
	}
	if o.ClientCA == "" {
		return c, nil
	}
	pem, err := pki.ReadAuthorities(o.ClientCA, "--client-ca-file")
	if err != nil {
		return nil, err
	}
	pool, err := pki.Authorities(pem)
	if err != nil {
		return nil, err
	}
	c.certs.SetRoots(pool)
	c.fixed = true
	return c, nil
}

// otherServer is the API server that a flag names, cl's if it names none.
func otherServer(cl *client.Client, flag, file string) (kubernetes.Interface, error) {
	if file == "" {
		return cl.Interface, nil
	}
	to, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	other, err := client.Remote(to, "keelson/"+KubernetesVersion)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return other.Interface, nil
}

// admit tells whether r may be answered; where not, it has answered.
func (c *callers) admit(w http.ResponseWriter, r *http.Request) bool {
	ctx, cancel := context.WithTimeout(r.Context(), reviewTime)
	defer cancel()
	u, err := c.authenticate(r.WithContext(ctx))
	if err != nil {
		c.log.Debug("a caller is refused", "err", err)
		wire.WriteError(w, r, apierrors.NewUnauthorized("Unauthorized"))
		return false
	}
	if u.Name != auth.Anonymous {
		connlimit.Reach(r.Context(), connlimit.Authenticated)
	}
	allowed, reason, err := c.authorize(ctx, u, r)
	switch {
	case err != nil:
		c.log.Warn("whether a caller may be answered cannot be found out", "user", u.Name, "path", r.URL.Path, "err", err)
		wire.WriteError(w, r, apierrors.NewInternalError(fmt.Errorf("ask the API server whether user %q may %s %s: it does not answer", u.Name, strings.ToLower(r.Method), r.URL.Path)))
	case !allowed:
		text := fmt.Sprintf("User %q cannot %s path %q", u.Name, strings.ToLower(r.Method), r.URL.Path)
		if reason != "" {
			text += ": " + reason
		}
		e := apierrors.NewForbidden(schema.GroupResource{}, "", nil)
		e.ErrStatus.Message, e.ErrStatus.Details = "forbidden: "+text, &metav1.StatusDetails{}
		wire.WriteError(w, r, e)
	}
	return err == nil && allowed
}

// authenticate finds out who sent r. A credential that is wrong is an error; without one it is the anonymous user.
func (c *callers) authenticate(r *http.Request) (*auth.User, error) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		c.learn(r.Context())
		if u, ok, err := c.certs.Authenticate(r); ok || err != nil && authn.Bearer(r) == "" {
			return u, err
		}
	}
	if token := authn.Bearer(r); token != "" {
		return c.byToken(r.Context(), token)
	}
	u, _, err := authn.Anonymous{}.Authenticate(r)
	return u, err
}

// learn asks the API server which authorities vouch for callers, unless it did lately.
func (c *callers) learn(ctx context.Context) {
	fresh := func() bool { return time.Since(time.Unix(0, c.asked.Load())) < authoritiesLife }
	if c.fixed || fresh() {
		return
	}
	if c.asked.Load() == 0 {
		c.look.Lock()
	} else if !c.look.TryLock() { // what is known will do
		return
	}
	defer c.look.Unlock()
	if fresh() {
		return
	}
	cm, err := c.who.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, authenticationInfoName, metav1.GetOptions{})
	if err == nil {
		var pool *x509.CertPool
		if pool, err = pki.Authorities([]byte(cm.Data[clientCAKey])); err == nil {
			c.certs.SetRoots(pool)
		}
	}
	if err != nil {
		c.log.Warn("the authorities of callers' certificates cannot be read", "configmap", metav1.NamespaceSystem+"/"+authenticationInfoName, "err", err)
		if c.asked.Load() == 0 {
			return // the next caller asks again
		}
	}
	c.asked.Store(time.Now().UnixNano())
}

// byToken asks the API server whose token it is.
func (c *callers) byToken(ctx context.Context, token string) (*auth.User, error) {
	got, err := c.review(ctx, c.tokens, []byte(token), true, func() (reviewed, error) {
		tr, err := c.who.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
		if err != nil {
			return reviewed{}, fmt.Errorf("review a token: %w", err)
		}
		if !tr.Status.Authenticated {
			return reviewed{reason: tr.Status.Error}, nil
		}
		u := &auth.User{Name: tr.Status.User.Username, UID: tr.Status.User.UID, Groups: tr.Status.User.Groups, Extra: map[string][]string{}, How: "token review"}
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

// longestRemembered is that of paths.
const longestRemembered = 4096

// authorize asks the API server whether u may. Administrators it need not ask about.
func (c *callers) authorize(ctx context.Context, u *auth.User, r *http.Request) (allowed bool, reason string, err error) {
	if slices.Contains(u.Groups, auth.Masters) {
		return true, "", nil
	}
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: u.Name, UID: u.UID, Groups: u.Groups,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: r.URL.Path, Verb: strings.ToLower(r.Method)},
	}
	for k, v := range u.Extra {
		if spec.Extra == nil {
			spec.Extra = map[string]authorizationv1.ExtraValue{}
		}
		spec.Extra[strings.ToLower(k)] = v
	}
	question, err := json.Marshal(spec)
	if err != nil {
		return false, "", err
	}
	got, err := c.review(ctx, c.accesses, question, len(r.URL.Path) < longestRemembered, func() (reviewed, error) {
		sar, err := c.may.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		if err != nil {
			return reviewed{}, fmt.Errorf("review an access: %w", err)
		}
		return reviewed{allowed: sar.Status.Allowed && !sar.Status.Denied, reason: sar.Status.Reason}, nil
	})
	return got.allowed, got.reason, err
}

// review is the answer to question: one that is kept, or ask's.
func (c *callers) review(ctx context.Context, kept *lru.Cache, question []byte, keep bool, ask func() (reviewed, error)) (reviewed, error) {
	key := sha256.Sum256(question)
	if known, ok := kept.Get(key); ok {
		if a, ok := known.(reviewed); ok && time.Now().Before(a.end) {
			return a, nil
		}
	}
	select {
	case c.busy <- struct{}{}:
		defer func() { <-c.busy }()
	case <-ctx.Done():
		return reviewed{}, ctx.Err()
	}
	a, err := ask()
	if err == nil && keep {
		a.end = time.Now().Add(reviewLife)
		kept.Add(key, a)
	}
	return a, err
}
