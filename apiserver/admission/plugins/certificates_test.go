// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"

	"keelson/apiserver/admission"
	"keelson/apiserver/admission/admissiontest"
	"keelson/auth"
)

func TestCertificatePlugins(t *testing.T) {
	csr := func(signer string, cert string) *certificatesv1.CertificateSigningRequest {
		return &certificatesv1.CertificateSigningRequest{
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: signer,
			},
			Status: certificatesv1.CertificateSigningRequestStatus{Certificate: []byte(cert)},
		}
	}
	write := func(sub, signer string) *admission.Request {
		return &admission.Request{
			Operation:   admission.Update,
			Subresource: sub,
			Object:      csr(signer, "new"),
			OldObject:   csr(signer, ""),
			User:        &auth.User{Name: "ann"},
		}
	}
	may := permits{"approve example.com/*", "sign example.com/one"}
	if err := (certificateApproval{may}).Validate(t.Context(), write("approval", "example.com/any")); err != nil {
		t.Errorf("approve by domain: %v", err)
	}
	admissiontest.WantForbidden(t, "approve", certificateApproval{may}.Validate(t.Context(), write("approval", "other.com/any")),
		`user not permitted to approve requests with signerName "other.com/any"`)
	if err := (certificateSigning{may}).Validate(t.Context(), write("status", "example.com/one")); err != nil {
		t.Errorf("sign: %v", err)
	}
	admissiontest.WantForbidden(t, "sign", certificateSigning{may}.Validate(t.Context(), write("status", "example.com/two")),
		`user not permitted to sign requests with signerName "example.com/two"`)
}
