// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"cmp"
	"time"

	certv1 "k8s.io/api/certificates/v1"

	"keelson/pki"
)

// LegacyUnknown is the signer name of requests from before signer names.
const LegacyUnknown = "kubernetes.io/legacy-unknown"

// Names are Kubernetes' own signers, for which this package may sign.
func Names() []string {
	return []string{
		certv1.KubeletServingSignerName, certv1.KubeAPIServerClientKubeletSignerName,
		certv1.KubeAPIServerClientSignerName, LegacyUnknown,
	}
}

// Signers configure the CAs and the lifetime.
type Signers struct {
	// Authorities by signer name (of Names). They are called for each certificate, so that a renewed CA signs the next
	// one. Without an entry nothing is signed.
	Authorities map[string]func() (*pki.Authority, error)
	// Duration is the maximum and default lifetime of certificates. Default a year.
	Duration time.Duration
}

// All uses one CA for every signer.
func All(ca *pki.Authority) Signers {
	s := Signers{Authorities: map[string]func() (*pki.Authority, error){}}
	for _, name := range Names() {
		s.Authorities[name] = func() (*pki.Authority, error) { return ca, nil }
	}
	return s
}

func (s Signers) duration() time.Duration { return cmp.Or(s.Duration, defaultDuration) }
