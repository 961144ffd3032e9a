// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"

	"keelson/api/internal/check"
)

// podCertificate checks a projected key and certificate (KEP-4317).
func (c *Checker) podCertificate(p *corev1.PodCertificateProjection) {
	c.SignerName("signerName", p.SignerName)
	check.OneOf(c.List, "keyType", p.KeyType, "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519", "RSA3072", "RSA4096")
	const hour, most = 3600, 91 * 24 * 3600
	switch s := p.MaxExpirationSeconds; {
	case s == nil:
		c.Required("maxExpirationSeconds", "")
	case *s < hour:
		c.Invalid("maxExpirationSeconds", *s, fmt.Sprintf("must be at least %d", hour))
	case *s > most:
		c.Invalid("maxExpirationSeconds", *s, fmt.Sprintf("must be no more than %d", most))
	}
	if p.CredentialBundlePath == "" && p.KeyPath == "" && p.CertificateChainPath == "" {
		c.Required("", "specify at least one of credentialBundlePath, keyPath, and certificateChainPath")
	}
	c.localPath("credentialBundlePath", p.CredentialBundlePath)
	c.localPath("keyPath", p.KeyPath)
	c.localPath("certificateChainPath", p.CertificateChainPath)
	if len(p.UserAnnotations) > 0 {
		c.Add(apivalidation.ValidateAnnotations(p.UserAnnotations, c.Path("userAnnotations"))...)
	}
}
