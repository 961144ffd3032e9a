// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"keelson/api/internal/check"
	"keelson/api/kind"
	"keelson/api/meta"
)

const maxBundle = 1 << 20 // bytes

type bundle = certificatesv1.ClusterTrustBundle

// ClusterTrustBundle describes certificates.k8s.io/v1 ClusterTrustBundle.
func ClusterTrustBundle() *kind.Kind {
	return kind.Spec[*bundle]{
		Names:   names("ClusterTrustBundle", "clustertrustbundles", "clustertrustbundle", false),
		New:     func() *bundle { return &bundle{} },
		NewList: func() runtime.Object { return &certificatesv1.ClusterTrustBundleList{} },
		// The rule about names needs the signer's: see validateBundle.
		ValidateName:          func(string, bool) []string { return nil },
		NoUnconditionalUpdate: true,
		Validate:              func(b *bundle) field.ErrorList { return validateBundle(b, nil) },
		ValidateUpdate: func(b, old *bundle) field.ErrorList {
			errs := validateBundle(b, old)
			return append(errs, apivalidation.ValidateImmutableField(b.Spec.SignerName, old.Spec.SignerName,
				field.NewPath("spec", "signerName"))...)
		},
		Fields: func(b *bundle) fields.Set { return fields.Set{"spec.signerName": b.Spec.SignerName} },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn, {
				Name:        "SignerName",
				Type:        "string",
				Description: "The signer whose certificates the bundle verifies.",
			},
		},
		Row: func(b *bundle) []any {
			signer := "<none>"
			if b.Spec.SignerName != "" {
				signer = b.Spec.SignerName
			}
			return []any{b.Name, signer}
		},
	}.Erase()
}

func validateBundle(b, old *bundle) field.ErrorList {
	errs := check.At(nil)
	errs.Within("metadata", func() {
		for _, n := range [][2]string{{"generateName", b.GenerateName}, {"name", b.Name}} {
			if n[1] == "" {
				continue
			}
			for _, msg := range bundleName(n[1], b.Spec.SignerName) {
				errs.Invalid(n[0], n[1], msg)
			}
		}
	})
	errs.Add(meta.Finalizers(b)...)
	errs.Within("spec", func() {
		if b.Spec.SignerName != "" {
			errs.SignerName("signerName", b.Spec.SignerName)
		}
		if old == nil || old.Spec.TrustBundle != b.Spec.TrustBundle {
			validateAnchors(errs, "trustBundle", b.Spec.TrustBundle)
		}
	})
	return errs.Errors()
}

// bundleName: a signer's bundle is named after the signer.
func bundleName(name, signer string) []string {
	if signer == "" {
		if strings.Contains(name, ":") {
			return []string{`ClusterTrustBundle without signer name must not have ":" in its name`}
		}
		return apivalidation.NameIsDNSSubdomain(name, false)
	}
	prefix := strings.ReplaceAll(signer, "/", ":") + ":"
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return []string{
			fmt.Sprintf("ClusterTrustBundle for signerName %s must be named with prefix %s", signer, prefix),
		}
	}
	return apivalidation.NameIsDNSSubdomain(rest, false)
}

func validateAnchors(errs *check.List, child, bundle string) {
	const omitted = "<value omitted>"
	if len(bundle) > maxBundle {
		errs.TooLong(child, maxBundle)
		return
	}
	first := map[string][]int{}
	n := 0
	for rest := []byte(bundle); ; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			errs.Invalid(child, omitted, fmt.Sprintf("entry %d has bad block type: %v", n, block.Type))
			continue
		}
		if len(block.Headers) != 0 {
			errs.Invalid(child, omitted, fmt.Sprintf("entry %d has PEM block headers", n))
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			errs.Invalid(child, omitted, fmt.Sprintf("entry %d does not parse as X.509", n))
			continue
		}
		if !cert.IsCA {
			errs.Invalid(child, omitted, fmt.Sprintf("entry %d does not have the CA bit set", n))
			continue
		}
		first[string(block.Bytes)] = append(first[string(block.Bytes)], n)
	}
	if n == 0 {
		errs.Invalid(child, omitted, "at least one trust anchor must be provided")
	}
	from := errs.Len()
	for _, at := range first {
		if len(at) > 1 {
			errs.Invalid(child, omitted, fmt.Sprintf("duplicate trust anchor (indices %v)", at))
		}
	}
	errs.Sort(from)
}
