// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"keelson/auth"
	"keelson/client"
)

// NodeAccounts creates the clients of the roles with a kubelet in its own process: the kubelet works as the node,
// each other role as its service account. The node requests the accounts' tokens, bound to its Node object; they expire
// within an hour or with that object. On a server that gives nodes no such tokens (Kubernetes, an older Keelson) the
// roles work as the node, with the rights that its administrator grants.
type NodeAccounts struct {
	Node *client.Client
	// Anonymous reaches the same server without credentials.
	Anonymous *rest.Config
	// Name is the node's.
	Name string
	// Accounts maps the users of roles to their service accounts in kube-system; other users work as the node.
	Accounts map[string]string
	Log      *slog.Logger
}

// Connect returns the client of a user; agent is its name in the server's log.
func (n NodeAccounts) Connect(u *auth.User, agent string) *client.Client {
	as, ok := n.Accounts[u.Name]
	if !ok {
		return n.Node
	}
	asNode, err := rest.TransportFor(n.Node.Config)
	if err != nil {
		return n.Node // cannot happen: n.node has the same configuration
	}
	cfg := rest.CopyConfig(n.Anonymous)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &nodeAccountTransport{
			account: newAccountTransport(metav1.NamespaceSystem, as, next,
				func(ctx context.Context) (*authenticationv1.TokenRequestStatus, error) { return n.token(ctx, as) }),
			asNode: asNode,
			log:    n.Log,
			node:   n.Name,
		}
	})
	cl, err := client.Remote(cfg, agent)
	if err != nil {
		return n.Node
	}
	return cl
}

// errNoToken means that the server gives the node no token for a role.
var errNoToken = errors.New("the API server gives the node no token")

// token requests a token of an account, bound to the current Node object.
func (n NodeAccounts) token(ctx context.Context, account string) (*authenticationv1.TokenRequestStatus, error) {
	own, err := n.Node.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("look for the node that it is bound to: %w", err)
	}
	seconds := int64(accountTokenLife / time.Second)
	got, err := n.Node.CoreV1().ServiceAccounts(metav1.NamespaceSystem).CreateToken(ctx,
		account, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &seconds,
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1",
				Kind:       "Node",
				Name:       own.Name,
				UID:        own.UID,
			},
		}}, metav1.CreateOptions{})
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%w: %w", errNoToken, err)
	case err != nil:
		return nil, err
	}
	return &got.Status, nil
}

// nodeAccountTransport sends requests as a service account, or as the node where the server gives no token for it.
type nodeAccountTransport struct {
	account *accountTransport
	asNode  http.RoundTripper
	node    string
	log     *slog.Logger

	mu      sync.Mutex
	retryAt time.Time // no token is requested before this time: the last request was refused
	logged  time.Time
}

const (
	// tokenRetry is the wait after the server refused a token. It may be upgraded meanwhile.
	tokenRetry = 30 * time.Second
	// refusedLogInterval is the interval at which the log repeats that the server refuses the role.
	refusedLogInterval = 10 * time.Minute
)

// RoundTrip implements http.RoundTripper.
func (t *nodeAccountTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.mayRequest() {
		token, err := t.account.currentToken(r.Context())
		switch {
		case err == nil:
			return t.account.send(r, token)
		case !errors.Is(err, errNoToken):
			if r.Body != nil {
				_ = r.Body.Close() // the contract of RoundTripper
			}
			return nil, err
		}
		t.mu.Lock()
		t.retryAt = time.Now().Add(tokenRetry)
		t.mu.Unlock()
	}
	resp, err := t.asNode.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusForbidden {
		t.logRefused(r)
	}
	return resp, err
}

func (t *nodeAccountTransport) mayRequest() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !time.Now().Before(t.retryAt)
}

// logRefused logs how to grant the node the rights that its role lacks.
func (t *nodeAccountTransport) logRefused(r *http.Request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.logged) > refusedLogInterval {
		t.logged = now
		t.log.Error("this API server gives nodes no tokens for their roles, and refuses the role as the node: bind "+
			"what it needs, by hand, or switch it off",
			"account", t.account.name, "request", r.Method+" "+r.URL.Path, "administrator", "keelson node rbac "+t.node+
				" | kubectl apply -f -")
	}
}
