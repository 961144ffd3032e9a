// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/auth"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/pki"
)

// clientOf is a client with a certificate of c's authority.
func (c *Cluster) clientOf(t *testing.T, name string, groups ...string) *rest.Config {
	t.Helper()
	pair, err := c.keys.CA.Client("test-"+strings.ReplaceAll(name, ":", "-"), pki.Subject{Name: name, Groups: groups})
	if err != nil {
		t.Fatal(err)
	}
	return &rest.Config{
		Host: c.URL(),
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   c.keys.CA.CertPEM(),
			CertData: pair.CertPEM,
			KeyData:  pair.KeyPEM,
		},
	}
}

// httpGet asks as a client for a path, and returns the status code and the body.
func httpGet(t *testing.T, cfg *rest.Config, path string) (int, string) {
	t.Helper()
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer hc.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, cfg.Host+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestNodeCannotTurnServerOnItself is the attack of somebody who holds a node's credentials and may use nodes/proxy of
// that node: the node says that its kubelet is where the API server is.
func TestNodeCannotTurnServerOnItself(t *testing.T) {
	cluster, admin := serve(t, func(*Config) {})
	ctx := t.Context()
	u, err := url.Parse(cluster.URL())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "proxies"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"nodes/proxy"}, Verbs: []string{"*"}},
		},
	}
	if _, err := admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "proxies"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "proxies"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "mallory"}},
	}
	if _, err := admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	node := kubernetes.NewForConfigOrDie(cluster.clientOf(t, "system:node:evil", auth.Nodes))
	mallory := cluster.clientOf(t, "mallory")
	if _, err := node.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "evil"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	soon(t, "mallory may use nodes/proxy", func() (bool, error) { // rules hold a moment after they are written
		code, body := httpGet(t, mallory, "/api/v1/nodes/evil/proxy/")
		return code != http.StatusForbidden, errors.New(body)
	})
	for _, tt := range []struct {
		kind    corev1.NodeAddressType
		address string
		want    string
	}{
		{corev1.NodeInternalIP, "127.0.0.1", "a loopback address"},
		{corev1.NodeInternalIP, "::1", "a loopback address"},
		{corev1.NodeInternalIP, "::ffff:127.0.0.1", "a loopback address"},
		{corev1.NodeInternalIP, "0.0.0.0", "an unspecified address"},
		{corev1.NodeInternalIP, "169.254.169.254", "a link-local address"},
		{corev1.NodeHostName, "localhost", "a loopback address"},
		{corev1.NodeInternalIP, cluster.cfg.nodeIPs()[0].String(), "the API server's own address"},
		{corev1.NodeInternalIP, "10.96.0.1", "the API server's own address"},
	} {
		if tt.want == "the API server's own address" && tt.address != "10.96.0.1" && !onThisMachine(t, tt.address) {
			continue // a sandbox without a route has no such address
		}
		n, err := node.CoreV1().Nodes().Get(ctx, "evil", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Status.Addresses = []corev1.NodeAddress{{Type: tt.kind, Address: tt.address}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port) // a port
		// NodeRestriction refuses most of them from the node itself.
		if _, err := admin.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{
			"/api/v1/nodes/evil/proxy/api/v1/namespaces/kube-system/secrets",
			fmt.Sprintf("/api/v1/nodes/evil:%d/proxy/api", port), fmt.Sprintf("/api/v1/nodes/evil:%d/proxy/", port-1),
		} {
			code, body := httpGet(t, mallory, path)
			if strings.HasSuffix(path, fmt.Sprintf("%d/proxy/", port-1)) && tt.want == "the API server's own address" {
				continue // only the server's own ports are its own there
			}
			if code != http.StatusBadRequest || !strings.Contains(body, tt.want) {
				t.Errorf("%s at %s: %d %s, want 400 and %q", path, tt.address, code, body, tt.want)
			}
		}
	}
}

func onThisMachine(t *testing.T, address string) bool {
	t.Helper()
	list, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok && n.IP.String() == address {
			return true
		}
	}
	return false
}

// TestOutgoingIdentitiesHaveNoRightsAtHome: who makes the server call itself is no one there, whatever headers come
// along.
func TestOutgoingIdentitiesHaveNoRightsAtHome(t *testing.T) {
	cluster, _ := serve(t, func(*Config) {})
	for what, cert := range map[string]*pki.Leaf{
		"for kubelets":           cluster.keys.KubeletClientCert,
		"for aggregated servers": cluster.keys.FrontProxyCert,
	} {
		if leaf := cert.Certificate().Leaf; len(leaf.Subject.Organization) > 0 {
			t.Errorf("certificate %s: groups %v, want none", what, leaf.Subject.Organization)
		}
		tr := &http.Transport{TLSClientConfig: &tls.Config{
			MinVersion:   tls.VersionTLS12,
			RootCAs:      cluster.keys.CA.Pool(),
			Certificates: []tls.Certificate{*cert.Certificate()},
		}}
		defer tr.CloseIdleConnections()
		for _, path := range []string{
			"/api/v1/namespaces/kube-system/secrets", "/api/v1/nodes", "/apis", "/metrics", "/keelson/v1/why/default/x",
		} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, cluster.URL()+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Remote-User", "admin")
			req.Header.Set("X-Remote-Group", auth.Masters)
			resp, err := tr.RoundTrip(req)
			if err != nil {
				continue // the handshake fails: all the better
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden {
				t.Errorf("certificate %s, %s: %s, want 401 or 403", what, path, resp.Status)
			}
		}
	}
}

// TestKubeletsLetServerIn: a kubelet with webhook authorization is answered that the API server may call it; no other
// caller is.
func TestKubeletsLetServerIn(t *testing.T) {
	cluster, admin := serve(t, func(*Config) {})
	node := kubernetes.NewForConfigOrDie(cluster.clientOf(t, "system:node:one", auth.Nodes))
	for _, tt := range []struct {
		asker            kubernetes.Interface
		user, name, part string
		want             bool
	}{
		{node, credentials.KubeletClientUser, "one", "proxy", true},
		{node, credentials.KubeletClientUser, "one", "log", true},
		{node, credentials.KubeletClientUser, "one", "status", false},
		{node, credentials.KubeletClientUser, "one", "", false},
		{node, credentials.KubeletClientUser, "two", "proxy", false},
		{node, "mallory", "one", "proxy", false},
		{admin, credentials.KubeletClientUser, "one", "proxy", false},
	} {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: tt.user,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb:        "create",
				Resource:    "nodes",
				Subresource: tt.part,
				Name:        tt.name,
			},
		}}
		got, err := tt.asker.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review,
			metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Status.Allowed != tt.want {
			t.Errorf("may %s create nodes/%s of %s: %v, want %v", tt.user, tt.part, tt.name, got.Status.Allowed,
				tt.want)
		}
	}
	cm, err := node.CoreV1().ConfigMaps("kube-system").Get(t.Context(), credentials.KubeletClientAuthority, metav1.GetOptions{})
	if err != nil || cm.Data[credentials.ClientCAKey] != string(cluster.keys.KubeletClientCA.CertPEM()) {
		t.Errorf("a node reads who signs the server's certificate: %v, %v", cm.Data, err)
	}
}

// TestKubeletClientOfEarlierVersion: a data directory whose certificate for kubelets was of system:masters is brought
// up to date at start.
func TestKubeletClientOfEarlierVersion(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	ca, err := pki.Open(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	old, err := ca.Client(credentials.KubeletClientPair, pki.Subject{Name: credentials.KubeletClientUser, Groups: []string{auth.Masters}})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Default()
	cfg.DataDir = datadir.Dir(filepath.Dir(dir))
	cfg.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}
	keys, err := openKeysOf(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(keys.CA.CertPEM(), ca.CertPEM()) {
		t.Error("the cluster's authority was replaced")
	}
	leaf := keys.KubeletClientCert.Certificate().Leaf
	for what, tt := range map[string]struct {
		pool *x509.CertPool
		want bool
	}{"kubelets": {keys.KubeletServing().ClientCAs(), true}, "the API server": {keys.CA.Pool(), false}} {
		_, err := leaf.Verify(x509.VerifyOptions{
			Roots:     tt.pool,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
		if (err == nil) != tt.want {
			t.Errorf("%s: %v, want it trusted: %v", what, err, tt.want)
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, credentials.KubeletClientPair+".crt"))
	if err != nil || bytes.Equal(b, old.CertPEM) {
		t.Errorf("the certificate of system:masters is still there (%v)", err)
	}
	oldLeaf, err := old.TLS()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := oldLeaf.Leaf.Verify(
		x509.VerifyOptions{
			Roots:     keys.KubeletServing().ClientCAs(),
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}); err == nil {
		t.Error("kubelets still trust clients of the cluster's own authority")
	}
}

// openKeysOf opens the keys of a cluster that does not run.
func openKeysOf(cfg Config) (*credentials.Keys, error) {
	of, err := cfg.keys()
	if err != nil {
		return nil, err
	}
	return credentials.Open(of, cfg.DataDir)
}
