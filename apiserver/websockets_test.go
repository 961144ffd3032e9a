// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"keelson/apiserver"
	"keelson/apiserver/access"
	"keelson/apiserver/servertest"
	"keelson/auth"
	"keelson/auth/authn"
	"keelson/pki"
)

// TestWebsocketsReachKubelets: the websockets of exec, attach and portforward go as they are to a kubelet that declares
// the feature, and as SPDY to another one.
func TestWebsocketsReachKubelets(t *testing.T) {
	st, ca := servertest.NewSite(t)
	running, stop := servertest.StartOn(t, st, ca, func(c *servertest.Setup) {
		c.Kubelet = func() *tls.Config { return &tls.Config{RootCAs: ca.Pool()} }
		c.Parts = func(*access.Reader) (apiserver.Parts, error) {
			return apiserver.Parts{
				Authenticators: []auth.Authenticator{authn.NewCertificates(ca.Pool())},
				Authorizer:     servertest.Everyone{},
			}, nil
		}
	})
	t.Cleanup(stop)
	for name, features := range map[string][]string{"new": {"ExtendWebSocketsToKubelet"}, "old": nil} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		created, err := running.Clients(t).CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		created.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
		created.Status.DeclaredFeatures = features
		if _, err := running.Clients(t).CoreV1().Nodes().UpdateStatus(t.Context(), created,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		pod := servertest.PodIn("default", name)
		pod.Spec.NodeName = name
		if _, err := running.Clients(t).CoreV1().Pods("default").Create(t.Context(), pod,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		asked := fakeKubelet(t, running, ca, name)
		for path, protocol := range map[string]string{
			"exec?command=a&stdout=true": "v5.channel.k8s.io",
			"attach?stdout=true":         "v5.channel.k8s.io",
			"portforward":                "SPDY/3.1+portforward.k8s.io",
		} {
			want := map[bool]string{true: "websocket " + protocol, false: "SPDY/3.1 "}[features != nil]
			answer := connect(t, running, "/api/v1/namespaces/default/pods/"+name+"/"+path, protocol)
			select {
			case got := <-asked:
				if got != want {
					t.Errorf("%s of a pod on node %s: the kubelet is asked for %q, want %q", path, name, got, want)
				}
			default:
				t.Errorf("%s of a pod on node %s: the kubelet is not asked: %s", path, name, answer)
			}
		}
	}
}

// fakeKubelet answers the connections of a node's tunnel with an error, and returns the protocols that it is asked for.
func fakeKubelet(t *testing.T, running *servertest.Running, ca *pki.Authority, node string) <-chan string {
	t.Helper()
	own, err := ca.Server("kubelet-"+node, pki.Subject{
		Name: "system:node:" + node,
		DNS:  []string{node},
		IPs:  []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := own.TLS()
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 10)
	conns := make(chan net.Conn, 10)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Upgrade") + " " + strings.Join(r.Header.Values("Sec-WebSocket-Protocol"), ",")
		http.Error(w, "no", http.StatusBadRequest)
	})}
	go func() { // ends with the server
		_ = server.Serve(tls.NewListener(tunnelListener{conns}, &tls.Config{Certificates: []tls.Certificate{cert}}))
	}()
	t.Cleanup(func() {
		close(conns)
		_ = server.Close()
	})
	serveTunnel(t, running, node, func(c net.Conn) { conns <- c })
	return asked
}

// tunnelListener accepts the connections of a channel.
type tunnelListener struct{ conns <-chan net.Conn }

func (l tunnelListener) Accept() (net.Conn, error) {
	if c, ok := <-l.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (l tunnelListener) Close() error { return nil }

func (l tunnelListener) Addr() net.Addr { return &net.TCPAddr{} }

// connect opens a websocket and reads it to its end. It returns the answer.
func connect(t *testing.T, running *servertest.Running, path, protocol string) string {
	t.Helper()
	conf, err := rest.TLSConfigFor(running.Rest)
	if err != nil {
		t.Fatal(err)
	}
	conf.NextProtos = nil
	d := websocket.Dialer{TLSClientConfig: conf, Subprotocols: []string{protocol}}
	conn, resp, err := d.DialContext(t.Context(), strings.Replace(running.Rest.Host, "http", "ws", 1)+path, nil)
	if resp == nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err != nil {
		text, _ := io.ReadAll(resp.Body) // of an error, which gorilla has read
		return resp.Status + " " + string(text)
	}
	defer func() { _ = conn.Close() }()
	for {
		if _, _, err := conn.ReadMessage(); err != nil {
			return err.Error()
		}
	}
}
