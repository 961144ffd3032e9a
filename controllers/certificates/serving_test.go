// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"net/netip"
	"strings"
	"testing"

	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func servingRequest(t *testing.T, user string, dns []string, ips ...string) *certv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	req := &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "system:node:n1", Organization: []string{nodesGroup}},
		DNSNames: dns,
	}
	for _, ip := range ips {
		req.IPAddresses = append(req.IPAddresses, net.ParseIP(ip))
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, req, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certv1.CertificateSigningRequest{Spec: certv1.CertificateSigningRequestSpec{
		Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		SignerName: certv1.KubeletServingSignerName,
		Usages:     []certv1.KeyUsage{certv1.UsageDigitalSignature, certv1.UsageServerAuth},
		Username:   user,
		Groups:     []string{nodesGroup},
	}}
}

func nodeAt(name string, ips ...string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, ip := range ips {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return n
}

// TestMayServe: a node gets a certificate for itself, and for no address that is somebody else's, whatever it says of
// itself.
func TestMayServe(t *testing.T) {
	own := nodeAt("n1", "10.0.0.1", "10.0.0.2", "10.0.0.9", "127.0.0.1", "fd00::1", "10.96.0.1")
	at := otherAddresses{
		node:       &own,
		otherNodes: []corev1.Node{own, nodeAt("n2", "10.0.0.2")},
		apiServers: []netip.Addr{netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("10.96.0.1")},
	}
	for _, c := range []struct {
		dns  []string
		ips  []string
		want string
	}{
		{[]string{"n1"}, []string{"10.0.0.1", "fd00::1"}, ""},
		{nil, []string{"10.0.0.1"}, ""},
		{[]string{"n2"}, []string{"10.0.0.1"}, `the name "n2" is not the node's`},
		{[]string{"kubernetes.default.svc"}, []string{"10.0.0.1"}, "is not the node's"},
		{[]string{"n1"}, []string{"10.0.0.3"}, "not one of the node's"},
		{[]string{"n1"}, []string{"10.0.0.2"}, "is node n2's, too"},
		{[]string{"n1"}, []string{"10.0.0.9"}, "the API server's"},
		{[]string{"n1"}, []string{"10.96.0.1"}, "the API server's"},
		{[]string{"n1"}, []string{"127.0.0.1"}, "every machine's"},
	} {
		err := mayServe(servingRequest(t, "system:node:n1", c.dns, c.ips...), at)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v %v: %v, want %q", c.dns, c.ips, err, c.want)
		}
	}
	strange := nodeAt("kubernetes.default.svc", "10.0.0.1")
	if err := mayServe(servingRequest(t, "system:node:n1", []string{"kubernetes.default.svc"}),
		otherAddresses{node: &strange}); err == nil {
		t.Error("a node with the API server's name gets a certificate")
	}
}

// TestAsServer: only a node asks for itself.
func TestAsServer(t *testing.T) {
	if got := servingNodeOf(servingRequest(t, "system:node:n1", []string{"n1"})); got != "n1" {
		t.Errorf("got %q, want n1", got)
	}
	for name, csr := range map[string]*certv1.CertificateSigningRequest{
		"another node": servingRequest(t, "system:node:n2", []string{"n1"}),
		"a user":       servingRequest(t, "jane", []string{"n1"}),
		"no names":     servingRequest(t, "system:node:n1", nil),
	} {
		if got := servingNodeOf(csr); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
	csr := servingRequest(t, "system:node:n1", []string{"n1"})
	csr.Spec.Groups = []string{"system:authenticated"}
	if got := servingNodeOf(csr); got != "" {
		t.Errorf("who is not in system:nodes: %q", got)
	}
}
