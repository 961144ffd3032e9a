// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"io"
	"net"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"keelson/apiserver"
	"keelson/apiserver/access"
	"keelson/apiserver/servertest"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/lib/connlimit"
	"keelson/lib/mux"
)

// TestTenantsShareTheTunnel: each kind of request to a kubelet needs a place in the node's tunnel. A tenant without one
// gets 429, and gives places back; others go on.
func TestTenantsShareTheTunnel(t *testing.T) {
	st, ca := servertest.NewSite(t)
	running, stop := servertest.StartOn(t, st, ca, func(c *servertest.Setup) {
		c.Parts = func(*access.Reader) (apiserver.Parts, error) {
			return apiserver.Parts{
				Authenticators: []auth.Authenticator{authn.NewCertificates(ca.Pool())},
				Authorizer:     servertest.Everyone{},
			}, nil
		}
	})
	t.Cleanup(stop)
	clientset := running.Clients(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	created, err := clientset.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	created.Status = node.Status
	if _, err := clientset.CoreV1().Nodes().UpdateStatus(t.Context(), created, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := servertest.PodIn("default", "p")
	pod.Spec.NodeName = "n1"
	if _, err := clientset.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	openTunnel(t, running, "n1")

	var leave []func()
	for {
		give, ok := running.EnterTunnel("n1", connlimit.Owner{Name: "alice"})
		if !ok {
			break
		}
		leave = append(leave, give)
	}
	request := func(user, method, path string) error {
		config := running.User(user, map[bool]string{true: auth.Masters, false: "team"}[user == "admin"])
		c := kubernetes.NewForConfigOrDie(config).CoreV1().RESTClient()
		return c.Verb(method).RequestURI("/api/v1/" + path).MaxRetries(0).Do(t.Context()).Error()
	}
	for _, r := range [][2]string{
		{http.MethodGet, "namespaces/default/pods/p/log"},
		{http.MethodPost, "namespaces/default/pods/p/exec?command=a&stdout=true"},
		{http.MethodPost, "namespaces/default/pods/p/attach?stdout=true"},
		{http.MethodPost, "namespaces/default/pods/p/portforward"},
		{http.MethodGet, "nodes/n1/proxy/healthz"},
	} {
		if err := request("alice", r[0], r[1]); !apierrors.IsTooManyRequests(err) {
			t.Errorf("alice, whose share is taken, %s: %v; want 429", r[1], err)
		}
		for _, other := range []string{"bob", "admin"} {
			if err := request(other, r[0], r[1]); apierrors.IsTooManyRequests(err) {
				t.Errorf("%s, %s: %v", other, r[1], err)
			}
		}
	}
	leave[0]()
	for range 3 { // each request gives its place back
		if err := request("alice", http.MethodGet, "namespaces/default/pods/p/log"); apierrors.IsTooManyRequests(err) {
			t.Errorf("with a free place: %v", err)
		}
	}
}

// openTunnel opens a node's tunnel, which ends each connection at once.
func openTunnel(t *testing.T, running *servertest.Running, node string) {
	t.Helper()
	serveTunnel(t, running, node, func(c net.Conn) { _ = c.Close() })
}

// serveTunnel opens a node's tunnel and hands its connections to serve.
func serveTunnel(t *testing.T, running *servertest.Running, node string, serve func(net.Conn)) {
	t.Helper()
	conf, err := rest.TLSConfigFor(running.User("system:node:"+node, auth.Nodes))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: conf}
	t.Cleanup(transport.CloseIdleConnections)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, running.Rest.Host+mux.Path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", mux.Protocol)
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	conn, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
		t.Fatalf("open a tunnel: %s", resp.Status)
	}
	session, err := mux.Accepter(conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	go func() { // ends with the session
		for {
			c, err := session.Accept()
			if err != nil {
				return
			}
			serve(c)
		}
	}()
}
