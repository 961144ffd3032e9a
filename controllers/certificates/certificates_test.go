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
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"keelson/controllers/controllertest"
	"keelson/controllers/framework"
	"keelson/pki"
)

func request(t *testing.T, edit func(*x509.CertificateRequest)) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	r := &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes"}},
	}
	if edit != nil {
		edit(r)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, r, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

var kubeletUses = []certv1.KeyUsage{certv1.UsageDigitalSignature, certv1.UsageClientAuth}

func TestValid(t *testing.T) {
	serving := []certv1.KeyUsage{certv1.UsageDigitalSignature, certv1.UsageKeyEncipherment, certv1.UsageServerAuth}
	for _, c := range []struct {
		what, signer string
		edit         func(*x509.CertificateRequest)
		usages       []certv1.KeyUsage
		wrong        string
	}{
		{"kubelet client", certv1.KubeAPIServerClientKubeletSignerName, nil, kubeletUses, ""},
		{
			"another group", certv1.KubeAPIServerClientKubeletSignerName, func(r *x509.CertificateRequest) {
				r.Subject.Organization = []string{"system:masters"}
			}, kubeletUses, "subject organization is not system:nodes",
		},
		{"another name", certv1.KubeAPIServerClientKubeletSignerName, func(r *x509.CertificateRequest) {
			r.Subject.CommonName = "admin"
		}, kubeletUses, "subject common name does not begin with system:node: "},
		{"a DNS name", certv1.KubeAPIServerClientKubeletSignerName, func(r *x509.CertificateRequest) {
			r.DNSNames = []string{"x"}
		}, kubeletUses, "DNS subjectAltNames are not allowed"},
		{"for servers", certv1.KubeAPIServerClientKubeletSignerName, nil, serving, "usages did not match"},
		{"kubelet serving", certv1.KubeletServingSignerName, func(r *x509.CertificateRequest) {
			r.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)}
		}, serving, ""},
		{
			"serving nothing", certv1.KubeletServingSignerName, nil, serving,
			"at least one DNS or IP subjectAltName is required",
		},
		{"any client", certv1.KubeAPIServerClientSignerName, func(r *x509.CertificateRequest) {
			r.Subject = pkix.Name{CommonName: "jane"}
		}, kubeletUses, ""},
		{
			"a client for servers", certv1.KubeAPIServerClientSignerName, nil, serving,
			"invalid usage for client certificate: server auth",
		},
		{
			"a client for nothing", certv1.KubeAPIServerClientSignerName, nil, []certv1.KeyUsage{
				certv1.UsageDigitalSignature,
			}, "missing required usage for client certificate: client auth",
		},
		{"legacy", LegacyUnknown, func(r *x509.CertificateRequest) { r.DNSNames = []string{"x"} }, serving, ""},
	} {
		req, err := pki.ParseRequest(request(t, c.edit))
		if err != nil {
			t.Fatal(err)
		}
		err = valid(c.signer, req, c.usages)
		if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.HasPrefix(err.Error(), c.wrong)) {
			t.Errorf("%s: %v, want %q", c.what, err, c.wrong)
		}
	}
}

func csr(name, signer, user string, req []byte) *certv1.CertificateSigningRequest {
	return &certv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u-" + "1", CreationTimestamp: metav1.Now()},
		Spec: certv1.CertificateSigningRequestSpec{
			SignerName:        signer,
			Username:          user,
			Request:           req,
			Usages:            kubeletUses,
			ExpirationSeconds: new(int32(3600)),
		},
	}
}

func TestLife(t *testing.T) {
	ca, err := pki.Open(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	own := request(t, nil)
	foreign := request(t, nil)
	wrong := request(t, func(r *x509.CertificateRequest) { r.DNSNames = []string{"x"} })
	synctest.Test(t, func(t *testing.T) {
		const kubelet = certv1.KubeAPIServerClientKubeletSignerName
		approved := func(c *certv1.CertificateSigningRequest) *certv1.CertificateSigningRequest {
			c.Status.Conditions = []certv1.CertificateSigningRequestCondition{
				{Type: certv1.CertificateApproved, Status: corev1.ConditionTrue, LastUpdateTime: metav1.Now()},
			}
			return c
		}
		cluster := controllertest.New(
			csr("self", kubelet, "system:node:n1", own), csr("stranger", kubelet, "jane", foreign), csr("elsewhere",
				"example.com/signer", "system:node:n1", own),
			approved(csr("wrong", kubelet, "system:node:n1", wrong)),
		)
		cluster.Fake.PrependReactor("create", "subjectaccessreviews", func(
			a clienttesting.Action,
		) (bool, runtime.Object, error) {
			create, _ := a.(clienttesting.CreateAction)
			r, _ := create.GetObject().(*authorizationv1.SubjectAccessReview)
			out := r.DeepCopy()
			out.Status.Allowed = r.Spec.ResourceAttributes.Subresource == "selfnodeclient"
			return true, out, nil
		})
		for _, task := range []Task{Approve, Sign, Clean} {
			cluster.Start(t, "certificate-controller", func(env *framework.Env) (framework.Controller, error) {
				return New(env, All(ca), task)
			})
		}
		time.Sleep(time.Minute)
		get := func(name string) *certv1.CertificateSigningRequest {
			t.Helper()
			got, err := cluster.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name,
				metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		self := get("self")
		if !has(self, certv1.CertificateApproved) || self.Status.Conditions[0].Reason != "AutoApproved" {
			t.Fatalf("a node's own request: %+v", self.Status)
		}
		end, ok := notAfter(self.Status.Certificate)
		if !ok || time.Until(end) > time.Hour {
			t.Errorf("its certificate ends %v (%v), want within the hour asked for", end, ok)
		}
		for _, name := range []string{"stranger", "elsewhere"} {
			if got := get(name); len(got.Status.Conditions) != 0 || len(got.Status.Certificate) != 0 {
				t.Errorf("request %s: %+v", name, got.Status)
			}
		}
		if got := get("wrong"); !has(got, certv1.CertificateFailed) ||
			got.Status.Conditions[1].Reason != "SignerValidationFailure" ||
			got.Status.Conditions[1].Message != "DNS subjectAltNames are not allowed" {
			t.Errorf("an approved request that is wrong: %+v", got.Status)
		}
		time.Sleep(2 * time.Hour)
		if _, err := cluster.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "self",
			metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("a request long done: %v", err)
		}
		get("stranger")
		time.Sleep(24 * time.Hour)
		if _, err := cluster.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "stranger",
			metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("a request that was not decided in a day: %v", err)
		}
	})
}

// TestSigners: a signer without an authority signs nothing, and none signs for longer than the configured life.
func TestSigners(t *testing.T) {
	ca, err := pki.Open(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	req := request(t, nil)
	synctest.Test(t, func(t *testing.T) {
		approved := func(name, signer string) *certv1.CertificateSigningRequest {
			c := csr(name, signer, "system:node:n1", req)
			c.Spec.ExpirationSeconds = nil
			c.Status.Conditions = []certv1.CertificateSigningRequestCondition{
				{Type: certv1.CertificateApproved, Status: corev1.ConditionTrue, LastUpdateTime: metav1.Now()},
			}
			return c
		}
		cluster := controllertest.New(approved("node", certv1.KubeAPIServerClientKubeletSignerName),
			approved("client", certv1.KubeAPIServerClientSignerName))
		by := Signers{
			Authorities: map[string]func() (*pki.Authority, error){
				certv1.KubeAPIServerClientKubeletSignerName: func() (*pki.Authority, error) { return ca, nil },
			},
			Duration: 24 * time.Hour,
		}
		cluster.Start(t, "certificate-controller", func(env *framework.Env) (framework.Controller, error) {
			return New(env, by, Sign)
		})
		time.Sleep(time.Minute)
		for name, signed := range map[string]bool{"node": true, "client": false} {
			got, err := cluster.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name,
				metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			end, ok := notAfter(got.Status.Certificate)
			if ok != signed || ok && time.Until(end) > 24*time.Hour {
				t.Errorf("request %s: signed %v until %v, want %v for a day", name, ok, end, signed)
			}
		}
	})
}
