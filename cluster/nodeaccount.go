// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"keelson/auth"
	"keelson/client"
)

// nodeRolesName is the Role by which nodes may request tokens for the roles that run beside their kubelets.
const nodeRolesName = "keelson:node-roles"

// accountUser is the user name of a service account of kube-system.
func accountUser(name string) string { return account(name)(Config{}).Name }

// nodeAccountNames are the service accounts of the roles beside a kubelet.
func nodeAccountNames(rows []role) []string {
	var out []string
	for i := range rows {
		if a := rows[i].account; a != "" {
			out = append(out, a)
		}
	}
	slices.Sort(out)
	return out
}

// nodeAccountObjects are the service accounts of the roles beside kubelets, and the RBAC that lets nodes request tokens
// for them. NodeRestriction allows a node only tokens bound to its own Node object. To deny nodes a role, delete its
// name from the Role and set autoupdate "false".
func nodeAccountObjects(rows []role) []runtime.Object {
	names := nodeAccountNames(rows)
	if len(names) == 0 {
		return nil
	}
	var out []runtime.Object
	for _, name := range names {
		no := false
		out = append(out, &corev1.ServiceAccount{
			ObjectMeta:                   metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name},
			AutomountServiceAccountToken: &no,
		})
	}
	meta := metav1.ObjectMeta{
		Namespace:   metav1.NamespaceSystem,
		Name:        nodeRolesName,
		Annotations: map[string]string{"rbac.authorization.kubernetes.io/autoupdate": "true"},
	}
	return append(out,
		&rbacv1.Role{
			ObjectMeta: meta,
			Rules: []rbacv1.PolicyRule{
				{
					APIGroups:     []string{""},
					Resources:     []string{"serviceaccounts/token"},
					ResourceNames: names,
					Verbs:         []string{"create"},
				},
			},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: *meta.DeepCopy(),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: nodeRolesName},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: auth.Nodes}},
		})
}

// WriteNodeRBAC writes, as YAML, the RBAC objects for the roles of a node that works as itself, on an API server that
// is not Keelson's.
func WriteNodeRBAC(w io.Writer, node string) error {
	if errs := validation.IsDNS1123Subdomain(node); len(errs) > 0 {
		return fmt.Errorf("%q is no name of a node: %s", node, strings.Join(errs, "; "))
	}
	rows := table()
	var out []runtime.Object
	for i := range rows {
		r := &rows[i]
		if r.account == "" {
			continue
		}
		name := "keelson:" + strings.ReplaceAll(r.name, " ", "-")
		role := r.bound
		if len(r.rules) > 0 {
			role = name
			out = append(out, &rbacv1.ClusterRole{
				TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Rules:      r.rules,
			})
		}
		out = append(out, &rbacv1.ClusterRoleBinding{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
			ObjectMeta: metav1.ObjectMeta{Name: name + ":" + node},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{
				{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:node:" + node},
			},
		})
	}
	for _, o := range out {
		b, err := yaml.Marshal(o)
		if err != nil {
			return fmt.Errorf("encode a role of node %s: %w", node, err)
		}
		if _, err := fmt.Fprintf(w, "---\n%s", b); err != nil {
			return err
		}
	}
	return nil
}

// oldNodeBindings are the ClusterRoleBindings of versions before decision 0115, which let every node read what the
// roles beside its kubelet read.
func oldNodeBindings(rows []role) []*rbacv1.ClusterRoleBinding {
	var out []*rbacv1.ClusterRoleBinding
	for i := range rows {
		if r := &rows[i]; r.node && (r.bound != "" || len(r.rules) > 0) {
			out = append(out, &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: "keelson:" + r.name},
				Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: auth.Nodes}},
			})
		}
	}
	return out
}

// nodeAccounts creates the clients of the roles beside a kubelet in its own process: the kubelet works as the node,
// each other role as its service account. The node requests the accounts' tokens, bound to its Node object; they expire
// within an hour or with that object. On a server that gives nodes no such tokens (Kubernetes, an older Keelson) the
// roles work as the node, with the rights that its administrator grants.
type nodeAccounts struct {
	node *client.Client
	// anonymous reaches the same server without credentials.
	anonymous *rest.Config
	name      string // the node's
	log       *slog.Logger
}

// connect is the site's Connect.
func (n nodeAccounts) connect(u *auth.User, agent string) *client.Client {
	rows := table()
	i := slices.IndexFunc(rows, func(r role) bool { return r.account != "" && r.user(Config{}).Name == u.Name })
	if i < 0 {
		return n.node
	}
	as := rows[i].account
	asNode, err := rest.TransportFor(n.node.Config)
	if err != nil {
		return n.node // cannot happen: n.node has the same configuration
	}
	cfg := rest.CopyConfig(n.anonymous)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &nodeAccountTransport{
			account: newAccountTransport(metav1.NamespaceSystem, as, next,
				func(ctx context.Context) (*authenticationv1.TokenRequestStatus, error) { return n.token(ctx, as) }),
			asNode: asNode,
			log:    n.log,
			node:   n.name,
		}
	})
	cl, err := client.Remote(cfg, agent)
	if err != nil {
		return n.node
	}
	return cl
}

// errNoToken means that the server gives the node no token for a role.
var errNoToken = errors.New("the API server gives the node no token")

// token requests a token of an account, bound to the current Node object.
func (n nodeAccounts) token(ctx context.Context, account string) (*authenticationv1.TokenRequestStatus, error) {
	own, err := n.node.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("look for the node that it is bound to: %w", err)
	}
	seconds := int64(accountTokenLife / time.Second)
	got, err := n.node.CoreV1().ServiceAccounts(metav1.NamespaceSystem).CreateToken(ctx,
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
