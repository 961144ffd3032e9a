// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"keelson/apiserver/admission"
	"keelson/auth"
)

// permitted reports whether the user may do verb for a signer, by its name or by its whole domain.
func permitted(ctx context.Context, a auth.Authorizer, u *auth.User, verb, signer string) bool {
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		d, err := a.Authorize(ctx, &auth.Attributes{
			User:            u,
			Verb:            verb,
			Group:           certificatesv1.GroupName,
			Version:         "*",
			Resource:        "signers",
			Name:            name,
			ResourceRequest: true,
		})
		if err == nil && d.Verdict == auth.Allow {
			return true
		}
	}
	return false
}

// request returns the CSR in an update of a subresource, and the old one.
func request(r *admission.Request, sub string) (csr, old *certificatesv1.CertificateSigningRequest) {
	if r.Operation != admission.Update || r.Subresource != sub {
		return nil, nil
	}
	csr, ok := r.Object.(*certificatesv1.CertificateSigningRequest)
	old, had := r.OldObject.(*certificatesv1.CertificateSigningRequest)
	if !ok || !had {
		return nil, nil
	}
	return csr, old
}

// certificateApproval requires the right to approve for the request's signer.
type certificateApproval struct{ Authorizer auth.Authorizer }

func (certificateApproval) Name() string { return "CertificateApproval" }

// Validate checks writes of the approval.
func (p certificateApproval) Validate(ctx context.Context, r *admission.Request) error {
	csr, old := request(r, "approval")
	if csr == nil {
		return nil
	}
	if !permitted(ctx, p.Authorizer, r.User, "approve", old.Spec.SignerName) {
		return admission.Forbidden(r, "user not permitted to approve requests with signerName %q", old.Spec.SignerName)
	}
	return nil
}

// certificateSigning requires the right to sign for the request's signer.
type certificateSigning struct{ Authorizer auth.Authorizer }

func (certificateSigning) Name() string { return "CertificateSigning" }

// Validate checks writes of the status that set a certificate or the condition Failed.
func (p certificateSigning) Validate(ctx context.Context, r *admission.Request) error {
	csr, old := request(r, "status")
	if csr == nil || slices.Equal(csr.Status.Certificate, old.Status.Certificate) &&
		apiequality.Semantic.DeepEqual(csr.Status.Conditions, old.Status.Conditions) {
		return nil
	}
	if !permitted(ctx, p.Authorizer, r.User, "sign", old.Spec.SignerName) {
		return admission.Forbidden(r, "user not permitted to sign requests with signerName %q", old.Spec.SignerName)
	}
	return nil
}

// certificateSubjectRestriction rejects requests for client certificates with the group system:masters.
type certificateSubjectRestriction struct{}

func (certificateSubjectRestriction) Name() string { return "CertificateSubjectRestriction" }

// Validate checks new requests.
func (certificateSubjectRestriction) Validate(_ context.Context, req *admission.Request) error {
	csr, ok := req.Object.(*certificatesv1.CertificateSigningRequest)
	if !ok || req.Operation != admission.Create || req.Subresource != "" ||
		csr.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
		return nil
	}
	block, _ := pem.Decode(csr.Spec.Request)
	if block == nil {
		return admission.Forbidden(req, "failed to parse CSR: PEM block type must be CERTIFICATE REQUEST")
	}
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return admission.Forbidden(req, "failed to parse CSR: %w", err)
	}
	if slices.Contains(parsed.Subject.Organization, auth.Masters) {
		return admission.Forbidden(req, "use of %s signer with %s group is not allowed",
			certificatesv1.KubeAPIServerClientSignerName, auth.Masters)
	}
	return nil
}

// clusterTrustBundleAttest requires the right to attest for a signer to write its trust bundles.
type clusterTrustBundleAttest struct{ Authorizer auth.Authorizer }

func (clusterTrustBundleAttest) Name() string { return "ClusterTrustBundleAttest" }

// Validate checks bundles that belong to a signer.
func (p clusterTrustBundleAttest) Validate(ctx context.Context, r *admission.Request) error {
	if r.Operation != admission.Create && r.Operation != admission.Update || r.Subresource != "" {
		return nil
	}
	b, ok := r.Object.(*certificatesv1.ClusterTrustBundle)
	if !ok || b.Spec.SignerName == "" || permitted(ctx, p.Authorizer, r.User, "attest", b.Spec.SignerName) {
		return nil
	}
	return admission.Forbidden(r, "user not permitted to attest for signerName %q", b.Spec.SignerName)
}
