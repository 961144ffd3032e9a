// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

const (
	defaultPodExpiry = 24 * 3600      // seconds
	minPodExpiry     = 3600           // seconds
	maxPodExpiry     = 91 * 24 * 3600 // seconds
	maxStub          = 10 * 1024      // bytes
	maxUID           = 128
)

type podRequest = certificatesv1.PodCertificateRequest

// readPodV1beta1 reads what Kubernetes 1.37 stores. Of two ways to show the public key v1 has one; the other has no
// place there.
func readPodV1beta1(doc []byte) (*podRequest, error) {
	out := &podRequest{}
	if err := json.Unmarshal(doc, out); err != nil {
		return nil, fmt.Errorf("read pod certificate request: %w", err)
	}
	out.TypeMeta = metav1.TypeMeta{}
	return out, nil
}

// PodCertificateRequest describes certificates.k8s.io/v1 PodCertificateRequest.
func PodCertificateRequest() *kind.Kind {
	return kind.Spec[*podRequest]{
		Names:          names("PodCertificateRequest", "podcertificaterequests", "podcertificaterequest", true),
		New:            func() *podRequest { return &podRequest{} },
		NewList:        func() runtime.Object { return &certificatesv1.PodCertificateRequestList{} },
		Default:        func(r *podRequest) { kind.Fill(&r.Spec.MaxExpirationSeconds, defaultPodExpiry) },
		PrepareCreate:  func(r *podRequest) { r.Status = certificatesv1.PodCertificateRequestStatus{} },
		PrepareUpdate:  func(r, old *podRequest) { r.Status = old.Status },
		StoredVersions: map[string]func([]byte) (*podRequest, error){"v1beta1": readPodV1beta1},
		Validate:       validatePodRequest,
		ValidateUpdate: func(r, old *podRequest) field.ErrorList {
			return apivalidation.ValidateImmutableField(r.Spec, old.Spec, field.NewPath("spec"))
		},
		Fields: func(r *podRequest) fields.Set {
			return fields.Set{
				"spec.signerName": r.Spec.SignerName,
				"spec.podName":    r.Spec.PodName,
				"spec.nodeName":   string(r.Spec.NodeName),
			}
		},
		NoUnconditionalUpdate: true,

		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn,
			{Name: "PodName", Type: "string", Description: "The pod that the certificate is for."},
			{Name: "ServiceAccountName", Type: "string", Description: "The pod's service account."},
			{Name: "NodeName", Type: "string", Description: "The pod's node."},
			{Name: "SignerName", Type: "string", Description: "The signer that is asked for the certificate."},
			{Name: "State", Type: "string", Description: "What became of the request."},
		},
		Row: func(r *podRequest) []any {
			return []any{r.Name, r.Spec.PodName, r.Spec.ServiceAccountName, string(
				r.Spec.NodeName), r.Spec.SignerName, podRequestState(r)}
		},
		Status: &kind.Sub[*podRequest]{
			PrepareUpdate:  preparePodRequestStatus,
			ValidateUpdate: validatePodRequestStatus,
		},
	}.Erase()
}

// preparePodRequestStatus keeps conditions that have been there, since none of them may change, and dates new ones.
func preparePodRequestStatus(request, old *podRequest) {
	request.Spec = old.Spec
	meta.KeepForStatus(request, old)
	find := func(list []metav1.Condition, t string) (at []int) {
		for i := range list {
			if list[i].Type == t {
				at = append(at, i)
			}
		}
		return at
	}
	now := slices.Clone(request.Status.Conditions)
	for _, t := range []string{
		certificatesv1.PodCertificateRequestConditionTypeIssued,
		certificatesv1.PodCertificateRequestConditionTypeDenied,
		certificatesv1.PodCertificateRequestConditionTypeFailed,
	} {
		is := find(now, t)
		was := find(old.Status.Conditions, t)
		for i := range is {
			if len(is) == len(was) {
				now[is[i]] = old.Status.Conditions[was[i]]
			}
		}
	}
	for i := range now {
		if now[i].LastTransitionTime.IsZero() {
			now[i].LastTransitionTime = metav1.Now().Rfc3339Copy()
		}
	}
	request.Status.Conditions = now
}

func podRequestState(r *podRequest) string {
	for _, c := range r.Status.Conditions {
		switch c.Type {
		case certificatesv1.PodCertificateRequestConditionTypeIssued,
			certificatesv1.PodCertificateRequestConditionTypeDenied,
			certificatesv1.PodCertificateRequestConditionTypeFailed:
			return c.Type
		}
	}
	return "Pending"
}

func validatePodRequest(r *podRequest) field.ErrorList {
	errs := check.At(field.NewPath("spec"))
	spec := &r.Spec
	errs.SignerName("signerName", spec.SignerName)
	errs.Subdomain("podName", spec.PodName)
	errs.Subdomain("serviceAccountName", spec.ServiceAccountName)
	errs.Subdomain("nodeName", string(spec.NodeName))
	for _, f := range []struct{ child, uid string }{
		{"podUID", string(spec.PodUID)},
		{"serviceAccountUID", string(spec.ServiceAccountUID)},
		{"nodeUID", string(spec.NodeUID)},
	} {
		if f.uid == "" {
			errs.Invalid(f.child, f.uid, "must not be empty")
		} else if len(f.uid) > maxUID {
			errs.TooLong(f.child, maxUID)
		}
	}
	switch e := spec.MaxExpirationSeconds; {
	case e == nil:
		errs.Required("maxExpirationSeconds", "must be set")
	case *e < minPodExpiry:
		errs.Invalid("maxExpirationSeconds", *e, fmt.Sprintf("must be in the range [%d, %d]", minPodExpiry,
			maxPodExpiry))
	case *e > maxPodExpiry:
		errs.Invalid("maxExpirationSeconds", *e, fmt.Sprintf("must be in the range [%d, %d]", minPodExpiry,
			maxPodExpiry))
	}
	switch n := len(spec.StubPKCS10Request); {
	case n == 0:
		errs.Invalid("", field.OmitValueType{},
			"exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set")
	case n > maxStub:
		errs.TooLong("stubPKCS10Request", maxStub)
	default:
		validateStub(errs, spec.StubPKCS10Request)
	}
	return errs.Errors()
}

// validateStub looks at the key and at who has it; what else a stub says is for the signer.
func validateStub(errs *check.List, stub []byte) {
	const child, least, most = "stubPKCS10Request", 3072, 4096 // bits
	csr, err := x509.ParseCertificateRequest(stub)
	if err != nil {
		errs.Invalid(child, field.OmitValueType{}, "must be a valid PKCS#10 CSR")
		return
	}
	switch key := csr.PublicKey.(type) {
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() && key.Curve != elliptic.P521() {
			errs.Invalid(child, "curve "+key.Curve.Params().Name,
				"elliptic public keys must use curve P256, P384, or P521")
			return
		}
	case *rsa.PublicKey:
		if bits := key.Size() * 8; bits != least && bits != most {
			errs.Invalid(child, fmt.Sprintf("%d-bit modulus", bits), "RSA keys must have modulus size 3072 or 4096")
			return
		}
	default:
		errs.Invalid(child, field.OmitValueType{},
			"unknown public key type; supported types are Ed25519, ECDSA, and RSA")
		return
	}
	if err := csr.CheckSignature(); err != nil {
		errs.Invalid(child, field.OmitValueType{}, "invalid signature")
	}
}

// validatePodRequestStatus: a request ends once.
func validatePodRequestStatus(request, old *podRequest) field.ErrorList {
	errs := check.At(field.NewPath("status"))
	errs.Add(metavalidation.ValidateConditions(request.Status.Conditions, errs.Path("conditions"))...)
	ended := 0
	for _, c := range request.Status.Conditions {
		switch c.Type {
		case certificatesv1.PodCertificateRequestConditionTypeIssued,
			certificatesv1.PodCertificateRequestConditionTypeDenied,
			certificatesv1.PodCertificateRequestConditionTypeFailed:
			ended++
			if c.Status != metav1.ConditionTrue {
				check.NotSupported(errs, "conditions", c.Status, metav1.ConditionTrue)
			}
		}
	}
	if ended > 1 {
		errs.Invalid("conditions", request.Status.Conditions,
			`There may be at most one condition with type "Issued", "Denied", or "Failed"`)
	}
	if podRequestState(old) != "Pending" && !equality.Semantic.DeepEqual(request.Status, old.Status) {
		errs.Invalid("", field.OmitValueType{}, "immutable after a terminal condition is set")
	}
	if err := checkCertificate([]byte(request.Status.CertificateChain)); err != nil {
		errs.Invalid("certificateChain", "<certificate data>", err.Error())
	}
	return errs.Errors()
}
