// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	certv1 "k8s.io/api/certificates/v1"

	"keelson/pki"
)

const (
	nodesGroup = "system:nodes"
	nodePrefix = "system:node:"
)

// recognized is a kind of request that is approved with a permission.
type recognized struct{ permission, message string }

// recognize returns the kind of a request; nil: it is not approved here.
func recognize(csr *certv1.CertificateSigningRequest) *recognized {
	if servingNodeOf(csr) != "" {
		return &recognized{serverPermission, "Auto approving kubelet serving certificate for the node's own name and " +
			"addresses after SubjectAccessReview."}
	}
	if csr.Spec.SignerName != certv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	req, err := pki.ParseRequest(csr.Spec.Request)
	if err != nil || kubeletClient(req, csr.Spec.Usages) != nil {
		return nil
	}
	if csr.Spec.Username == req.Subject.CommonName {
		return &recognized{
			"selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview.",
		}
	}
	return &recognized{"nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."}
}

// valid checks the signer's requirements (Kubernetes documentation, "Kubernetes signers").
func valid(signer string, req *x509.CertificateRequest, usages []certv1.KeyUsage) error {
	switch signer {
	case certv1.KubeAPIServerClientSignerName:
		return clientUsages(usages)
	case certv1.KubeAPIServerClientKubeletSignerName:
		return kubeletClient(req, usages)
	case certv1.KubeletServingSignerName:
		return kubeletServing(req, usages)
	}
	return nil
}

func clientUsages(usages []certv1.KeyUsage) error {
	client := false
	for _, u := range usages {
		switch u {
		case certv1.UsageDigitalSignature, certv1.UsageKeyEncipherment:
		case certv1.UsageClientAuth:
			client = true
		default:
			return fmt.Errorf("invalid usage for client certificate: %s", u)
		}
	}
	if !client {
		return fmt.Errorf("missing required usage for client certificate: %s", certv1.UsageClientAuth)
	}
	return nil
}

func kubeletClient(req *x509.CertificateRequest, usages []certv1.KeyUsage) error {
	switch {
	case !slices.Equal(req.Subject.Organization, []string{nodesGroup}):
		return errors.New("subject organization is not system:nodes")
	case len(req.DNSNames) > 0:
		return errors.New("DNS subjectAltNames are not allowed")
	case len(req.EmailAddresses) > 0:
		return errors.New("Email subjectAltNames are not allowed") //nolint:staticcheck // clients know the message
	case len(req.IPAddresses) > 0:
		return errors.New("IP subjectAltNames are not allowed")
	case len(req.URIs) > 0:
		return errors.New("URI subjectAltNames are not allowed")
	case !strings.HasPrefix(req.Subject.CommonName, nodePrefix):
		return errors.New("subject common name does not begin with system:node: ")
	}
	return requireUsages(usages, certv1.UsageClientAuth)
}

func kubeletServing(req *x509.CertificateRequest, usages []certv1.KeyUsage) error {
	switch {
	case !slices.Equal(req.Subject.Organization, []string{nodesGroup}):
		return errors.New("subject organization is not system:nodes")
	case len(req.DNSNames) == 0 && len(req.IPAddresses) == 0:
		return errors.New("at least one DNS or IP subjectAltName is required")
	case len(req.EmailAddresses) > 0:
		return errors.New("Email subjectAltNames are not allowed") //nolint:staticcheck // clients know the message
	case len(req.URIs) > 0:
		return errors.New("URI subjectAltNames are not allowed")
	case !strings.HasPrefix(req.Subject.CommonName, nodePrefix):
		return errors.New("subject common name does not begin with system:node: ")
	}
	return requireUsages(usages, certv1.UsageServerAuth)
}

// requireUsages requires digital signature and the purpose; key encipherment is optional, because only RSA keys have
// it.
func requireUsages(usages []certv1.KeyUsage, purpose certv1.KeyUsage) error {
	got := slices.Clone(usages)
	slices.Sort(got)
	got = slices.Compact(got)
	for _, want := range [][]certv1.KeyUsage{
		{certv1.UsageDigitalSignature, purpose}, {certv1.UsageDigitalSignature, certv1.UsageKeyEncipherment, purpose},
	} {
		slices.Sort(want)
		if slices.Equal(got, want) {
			return nil
		}
	}
	return fmt.Errorf("usages did not match [%s %s] or [%s %s %s]", certv1.UsageDigitalSignature, purpose,
		certv1.UsageKeyEncipherment, certv1.UsageDigitalSignature, purpose)
}

// x509Usages are the key usages in x509 form.
type x509Usages struct {
	key      x509.KeyUsage
	extended []x509.ExtKeyUsage
}

var keyUses = map[certv1.KeyUsage]x509.KeyUsage{
	certv1.UsageSigning:           x509.KeyUsageDigitalSignature,
	certv1.UsageDigitalSignature:  x509.KeyUsageDigitalSignature,
	certv1.UsageContentCommitment: x509.KeyUsageContentCommitment,
	certv1.UsageKeyEncipherment:   x509.KeyUsageKeyEncipherment,
	certv1.UsageKeyAgreement:      x509.KeyUsageKeyAgreement,
	certv1.UsageDataEncipherment:  x509.KeyUsageDataEncipherment,
	certv1.UsageCertSign:          x509.KeyUsageCertSign,
	certv1.UsageCRLSign:           x509.KeyUsageCRLSign,
	certv1.UsageEncipherOnly:      x509.KeyUsageEncipherOnly,
	certv1.UsageDecipherOnly:      x509.KeyUsageDecipherOnly,
}

var extendedUses = map[certv1.KeyUsage]x509.ExtKeyUsage{
	certv1.UsageAny:             x509.ExtKeyUsageAny,
	certv1.UsageServerAuth:      x509.ExtKeyUsageServerAuth,
	certv1.UsageClientAuth:      x509.ExtKeyUsageClientAuth,
	certv1.UsageCodeSigning:     x509.ExtKeyUsageCodeSigning,
	certv1.UsageEmailProtection: x509.ExtKeyUsageEmailProtection,
	certv1.UsageSMIME:           x509.ExtKeyUsageEmailProtection,
	certv1.UsageIPsecEndSystem:  x509.ExtKeyUsageIPSECEndSystem,
	certv1.UsageIPsecTunnel:     x509.ExtKeyUsageIPSECTunnel,
	certv1.UsageIPsecUser:       x509.ExtKeyUsageIPSECUser,
	certv1.UsageTimestamping:    x509.ExtKeyUsageTimeStamping,
	certv1.UsageOCSPSigning:     x509.ExtKeyUsageOCSPSigning,
	certv1.UsageMicrosoftSGC:    x509.ExtKeyUsageMicrosoftServerGatedCrypto,
	certv1.UsageNetscapeSGC:     x509.ExtKeyUsageNetscapeServerGatedCrypto,
}

func x509UsagesOf(usages []certv1.KeyUsage) (x509Usages, error) {
	var u x509Usages
	for _, name := range usages {
		if k, ok := keyUses[name]; ok {
			u.key |= k
			continue
		}
		e, ok := extendedUses[name]
		if !ok {
			return u, fmt.Errorf("%w %q", errUsage, name)
		}
		if !slices.Contains(u.extended, e) {
			u.extended = append(u.extended, e)
		}
	}
	slices.Sort(u.extended)
	return u, nil
}
