// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func (o *objects) TrustBundles(
	_ context.Context, projection *corev1.ClusterTrustBundleProjection,
) ([]*certificatesv1.ClusterTrustBundle, error) {
	if projection.Name != nil {
		text, ok := o.bundles[*projection.Name]
		if !ok {
			return nil, apierrors.NewNotFound(
				schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}, *projection.Name)
		}
		return []*certificatesv1.ClusterTrustBundle{{Spec: certificatesv1.ClusterTrustBundleSpec{TrustBundle: text}}},
			nil
	}
	var out []*certificatesv1.ClusterTrustBundle
	for name, text := range o.bundles {
		if strings.HasPrefix(name, *projection.SignerName) {
			out = append(out, &certificatesv1.ClusterTrustBundle{
				Spec: certificatesv1.ClusterTrustBundleSpec{TrustBundle: text},
			})
		}
	}
	return out, nil
}

func (o *objects) RequestCertificate(
	_ context.Context, p *corev1.Pod, spec certificatesv1.PodCertificateRequestSpec,
) (*certificatesv1.PodCertificateRequest, error) {
	r := &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace,
			Name:      fmt.Sprintf("req-%d", len(o.requests)+1),
		},
		Spec: spec,
	}
	o.requests = append(o.requests, r)
	return r, nil
}

func (o *objects) CertificateRequest(
	_ context.Context, _ *corev1.Pod, name string,
) (*certificatesv1.PodCertificateRequest, error) {
	for _, r := range o.requests {
		if r.Name == name {
			return r, nil
		}
	}
	return nil, apierrors.NewNotFound(
		schema.GroupResource{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}, name)
}

func anchor(text string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(text)}))
}

func projected(sources ...corev1.VolumeProjection) *corev1.Pod {
	return volumes(vol("v", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}))
}

// TestTrustBundles projects bundles by name and by signer.
func TestTrustBundles(t *testing.T) {
	o := &objects{bundles: map[string]string{
		"one":             anchor("a"),
		"example.com/s:1": "words between\n" + anchor("c") + anchor("b"),
		"example.com/s:2": anchor("b"),
	}}
	m := manager(t, o)
	name := "one"
	signer := "example.com/s"
	missing := "none"
	yes := true
	for _, c := range []struct {
		what string
		p    corev1.ClusterTrustBundleProjection
		want string
		err  string
	}{
		{"by name", corev1.ClusterTrustBundleProjection{Name: &name}, anchor("a"), ""},
		{
			"by signer, each once",
			corev1.ClusterTrustBundleProjection{SignerName: &signer},
			anchor("b") + anchor("c"), "",
		},
		{
			"missing",
			corev1.ClusterTrustBundleProjection{Name: &missing},
			"",
			`while getting ClusterTrustBundle: clustertrustbundles.certificates.k8s.io "none" not found`,
		},
		{"missing, optional", corev1.ClusterTrustBundleProjection{Name: &missing, Optional: &yes}, "", ""},
		{
			"nothing of the signer",
			corev1.ClusterTrustBundleProjection{SignerName: &missing},
			"",
			"combination of signerName and labelSelector matched zero ClusterTrustBundles",
		},
		{
			"nothing of the signer, optional", corev1.ClusterTrustBundleProjection{
				SignerName: &missing,
				Optional:   &yes,
			}, "", "",
		},
	} {
		c.p.Path = "trust.pem"
		p := projected(corev1.VolumeProjection{ClusterTrustBundle: &c.p})
		_, err := m.SetUp(t.Context(), Input{Pod: p})
		if (err != nil) != (c.err != "") || err != nil && !strings.HasSuffix(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", c.what, err, c.err)
		}
		if err != nil {
			continue
		}
		if got := content(t, filepath.Join(where(t, m, p, "v"), "trust.pem")); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

// TestPodCertificate follows a certificate from its request to its renewal, over restarts of the kubelet.
func TestPodCertificate(t *testing.T) {
	o := &objects{}
	m := manager(t, o)
	pod := projected(corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{
		SignerName:           "example.com/s",
		KeyType:              "ED25519",
		CredentialBundlePath: "both.pem",
		KeyPath:              "key.pem",
		CertificateChainPath: "chain.pem",
		UserAnnotations:      map[string]string{"example.com/a": "b"},
	}})
	file := func(name string) string { return content(t, filepath.Join(where(t, m, pod, "v"), name)) }
	pending := func(what string, requests int) {
		t.Helper()
		_, err := m.SetUp(t.Context(), Input{Pod: pod})
		if err == nil || !strings.Contains(err.Error(),
			fmt.Sprintf("PodCertificateRequest ns/req-%d is not issued yet", requests)) || len(o.requests) != requests {
			t.Fatalf("%s: %v after %d requests", what, err, len(o.requests))
		}
	}
	issue := func(chain string, renew time.Time) {
		t.Helper()
		o.requests[len(o.requests)-1].Status = certificatesv1.PodCertificateRequestStatus{
			Conditions: []metav1.Condition{
				{Type: certificatesv1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue},
			},
			CertificateChain: "noise\n" + anchor(chain),
			BeginRefreshAt:   &metav1.Time{Time: renew},
		}
	}
	pending("first", 1)
	pending("again", 1)
	o.requests[0].Name = "gone"
	pending("its request is gone", 2)
	issue("first", time.Now().Add(time.Hour))
	at, err := m.SetUp(t.Context(), Input{Pod: pod})
	if err != nil || time.Until(at) < 59*time.Minute || time.Until(at) > time.Hour+renewSpread {
		t.Fatalf("issued: renew at %v, %v", at, err)
	}
	key := file("key.pem")
	if file("chain.pem") != anchor("first") || file("both.pem") != key+anchor("first") {
		t.Errorf("chain %s, both %s", file("chain.pem"), file("both.pem"))
	}
	samePublicKey(t, key, o.requests[1].Spec.StubPKCS10Request)
	if a := o.requests[1].Spec.UnverifiedUserAnnotations["example.com/a"]; a != "b" {
		t.Errorf("the request's annotations: %v", o.requests[1].Spec.UnverifiedUserAnnotations)
	}

	// Time to renew: the old certificate stays until the new one is there.
	state := filepath.Join(m.secrets(), "u", ".certificates", "v-0.json")
	c, err := loadCertificate(state)
	if err != nil {
		t.Fatal(err)
	}
	c.Renew = time.Now().Add(-time.Second)
	if err := c.save(state); err != nil {
		t.Fatal(err)
	}
	setUp(t, m, pod)
	if len(o.requests) != 3 || file("key.pem") != key {
		t.Errorf("%d requests when it is time to renew, and the key is another: %v", len(o.requests),
			file("key.pem") != key)
	}
	issue("second", time.Now().Add(time.Hour))
	setUp(t, m, pod)
	if file("chain.pem") != anchor("second") || file("key.pem") == key {
		t.Errorf("after renewal: %s, the key is the old one: %v", file("chain.pem"), file("key.pem") == key)
	}
	if err := m.TearDown(t.Context(), "u"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(state); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a key is left: %v", err)
	}
}

// TestRefusedCertificate is about a signer that refuses, and a key of a type that does not exist.
func TestRefusedCertificate(t *testing.T) {
	o := &objects{}
	m := manager(t, o)
	pod := projected(corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{
		SignerName: "example.com/s",
		KeyType:    "ECDSAP256",
		KeyPath:    "k",
	}})
	if _, err := m.SetUp(t.Context(), Input{Pod: pod}); err == nil {
		t.Fatal("set up before it is issued")
	}
	o.requests[0].Status.Conditions = []metav1.Condition{
		{Type: certificatesv1.PodCertificateRequestConditionTypeDenied, Reason: "Policy", Message: "no"},
	}
	for range 2 {
		_, err := m.SetUp(t.Context(), Input{Pod: pod})
		if err == nil || !strings.Contains(err.Error(),
			`PodCertificateRequest ns/req-1 was denied, reason="Policy", message="no"`) || len(o.requests) != 1 {
			t.Errorf("denied: %v, %d requests", err, len(o.requests))
		}
	}
	for _, kind := range []string{"ECDSAP384", "ECDSAP521"} {
		if _, err := newKey(kind); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if _, err := newKey("RSA1024"); err == nil {
		t.Error("a key of a type that is not known")
	}
}

func samePublicKey(t *testing.T, keyPEM string, proof []byte) {
	t.Helper()
	request, err := x509.ParseCertificateRequest(proof)
	if err != nil || request.CheckSignature() != nil {
		t.Fatalf("the proof of possession: %v", err)
	}
	b, _ := pem.Decode([]byte(keyPEM))
	if b == nil || b.Type != "PRIVATE KEY" {
		t.Fatalf("not a key: %q", keyPEM)
	}
	key, err := x509.ParsePKCS8PrivateKey(b.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		t.Fatalf("%T is no signer", key)
	}
	want, _ := x509.MarshalPKIXPublicKey(signer.Public())
	if got, _ := x509.MarshalPKIXPublicKey(request.PublicKey); !bytes.Equal(got, want) {
		t.Error("the request is for another key")
	}
}
