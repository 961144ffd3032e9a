// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
)

// checkPodCertificate checks a projected key and certificate (KEP-4317).
func checkPodCertificate(errs *check.List, projection *corev1.PodCertificateProjection) {
	errs.SignerName("signerName", projection.SignerName)
	if len(projection.UserAnnotations) > 0 {
		for _, k := range slices.Sorted(maps.Keys(projection.UserAnnotations)) {
			errs.Add(validation.IsDomainPrefixedKey(errs.Path("userAnnotations"), strings.ToLower(k))...)
		}
		if apivalidation.ValidateAnnotationsSize(projection.UserAnnotations) != nil {
			errs.Add(field.TooLong(errs.Path("userAnnotations"), "", apivalidation.TotalAnnotationSizeLimitB))
		}
	}
	if types := []string{"RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"}; !slices.Contains(
		types, projection.KeyType) {
		check.NotSupported(errs, "keyType", projection.KeyType, types...)
	}
	if s := projection.MaxExpirationSeconds; s != nil {
		const least, day = 3600, 24 * 3600
		most := int32(91 * day)
		if host, _, _ := strings.Cut(projection.SignerName, "/"); host == "kubernetes.io" ||
			strings.HasSuffix(host, ".kubernetes.io") {
			most = day
		}
		if *s < least {
			errs.Invalid("maxExpirationSeconds", *s,
				fmt.Sprintf("if provided, maxExpirationSeconds must be >= %d", least))
		}
		if *s > most {
			errs.Invalid("maxExpirationSeconds", *s,
				fmt.Sprintf("if provided, maxExpirationSeconds must be <= %d", most))
		}
	}
	if projection.CredentialBundlePath == "" && projection.KeyPath == "" && projection.CertificateChainPath == "" {
		errs.Required("", "specify at least one of credentialBundlePath, keyPath, and certificateChainPath")
	}
	checkLocalPath(errs, "credentialBundlePath", projection.CredentialBundlePath)
	checkLocalPath(errs, "keyPath", projection.KeyPath)
	checkLocalPath(errs, "certificateChainPath", projection.CertificateChainPath)
}
