// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"slices"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func newRequest(t *testing.T) *request {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "ann"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	r := &request{Spec: certificatesv1.CertificateSigningRequestSpec{
		Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		SignerName: certificatesv1.KubeAPIServerClientSignerName,
		Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
	}}
	r.Name = "ann"
	return r
}

func with(r *request, types ...certificatesv1.RequestConditionType) *request {
	r = r.DeepCopy()
	for _, t := range types {
		r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type:   t,
			Status: corev1.ConditionTrue,
		})
	}
	return r
}

func wantDetail(t *testing.T, what string, errs field.ErrorList, want ...string) {
	t.Helper()
	var got []string
	for _, e := range errs {
		got = append(got, e.Detail)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// TestWhoMayChangeWhat: only the approval approves, only the status brings the certificate, and neither is taken back.
func TestWhoMayChangeWhat(t *testing.T) {
	k := CertificateSigningRequest()
	request := newRequest(t)
	status := k.Subs["status"]
	approval := k.Subs["approval"]
	approved := with(request, certificatesv1.CertificateApproved)
	wantDetail(t, "approval approves", approval.ValidateUpdate(approved, request))
	wantDetail(t, "status approves", status.ValidateUpdate(approved, request),
		`updates may not add a condition of type "Approved"`)
	wantDetail(t, "approval takes back", approval.ValidateUpdate(request, approved),
		`updates may not remove a condition of type "Approved"`)
	wantDetail(t, "both", approval.ValidateUpdate(with(approved, certificatesv1.CertificateDenied), approved),
		"must specify at most one of: `conditions[{\"type\": \"Approved\"}]`, `conditions[{\"type\": \"Denied\"}]`")

	forged := approved.DeepCopy()
	forged.Spec.SignerName = "example.com/other"
	forged.Status.Certificate = []byte("x")
	approval.PrepareUpdate(forged, request)
	if forged.Spec.SignerName != request.Spec.SignerName || forged.Status.Certificate != nil ||
		forged.Status.Conditions[0].LastUpdateTime.IsZero() {
		t.Errorf("approval kept more than conditions: %+v", forged)
	}
}

func TestRequesterIsTheUser(t *testing.T) {
	r := newRequest(t)
	r.Spec.Username = "forged"
	r.Spec.Groups = []string{"system:masters"}
	SetRequester(r, "ann", "u1", []string{"dev"}, map[string][]string{"k": {"v"}})
	if r.Spec.Username != "ann" || r.Spec.UID != "u1" || !slices.Equal(r.Spec.Groups, []string{"dev"}) ||
		r.Spec.Extra["k"][0] != "v" {
		t.Errorf("requester: got %+v", r.Spec)
	}
}

func TestConditionColumn(t *testing.T) {
	r := newRequest(t)
	if got := condition(r); got != "Pending" {
		t.Errorf("new: got %s", got)
	}
	r = with(r, certificatesv1.CertificateApproved)
	r.Status.Certificate = []byte("x")
	if got := condition(r); got != "Approved,Issued" {
		t.Errorf("issued: got %s", got)
	}
}

// TestStampIsWhatIsStored: stored times have no parts of seconds. One that had would be another for the next reader,
// and conditions that may not change would seem to have changed.
func TestStampIsWhatIsStored(t *testing.T) {
	r := with(newRequest(t), certificatesv1.CertificateApproved)
	r.Status.Conditions[0].LastUpdateTime = metav1.Time{}
	r.Status.Conditions[0].LastTransitionTime = metav1.Time{}
	stampConditions(r, newRequest(t))
	for _, at := range []metav1.Time{r.Status.Conditions[0].LastUpdateTime, r.Status.Conditions[0].LastTransitionTime} {
		if at.IsZero() || at.Nanosecond() != 0 {
			t.Errorf("stamped %v, want a whole second", at.Time)
		}
	}
}
