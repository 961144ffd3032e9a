// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/apiserver/servertest"
	"keelson/pki"
)

// TestKubeletCertificates: the server sees what each kubelet serves with now, and which do not answer.
func TestKubeletCertificates(t *testing.T) {
	ca, err := pki.Open(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.Open(t.TempDir(), "other")
	if err != nil {
		t.Fatal(err)
	}
	r := servertest.Start(t, func(c *servertest.Setup) {
		c.Kubelet = func() *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ca.Pool()} }
	})
	kubelet := func(from *pki.Authority, user string) (port int) {
		pair, err := from.Server("kubelet", pki.Subject{Name: user, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
		if err != nil {
			t.Fatal(err)
		}
		cert, err := pair.TLS()
		if err != nil {
			t.Fatal(err)
		}
		srv := httptest.NewUnstartedServer(http.NotFoundHandler())
		srv.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
		srv.StartTLS()
		t.Cleanup(srv.Close)
		return srv.Listener.Addr().(*net.TCPAddr).Port
	}
	off := httptest.NewServer(nil)
	closed := off.Listener.Addr().(*net.TCPAddr).Port
	off.Close()
	nodes := r.Clients(t).CoreV1().Nodes()
	for name, port := range map[string]int{
		"answers":   kubelet(ca, "system:node:answers"),
		"foreign":   kubelet(other, "system:node:foreign"),
		"off":       closed,
		"poses":     kubelet(ca, "system:node:answers"),
		"simulated": closed,
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if name == "simulated" {
			n.Spec.ProviderID = "fake://simulated"
		}
		made, err := nodes.Create(t.Context(), n, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		made.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
		made.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port) // a port
		if _, err := nodes.UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	found, err := r.Data.KubeletCertificates(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	signer, _ := ca.Signer()
	var got []string
	for _, f := range found {
		text := f.Node + " silent"
		if f.Leaf != nil && f.Leaf.CheckSignatureFrom(signer) == nil {
			text = f.Node + " " + f.Leaf.Subject.CommonName
		}
		got = append(got, text)
	}
	if want := []string{"answers system:node:answers", "off silent", "poses silent"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
