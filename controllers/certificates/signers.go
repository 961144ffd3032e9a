// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"cmp"
	"time"

	certv1 "k8s.io/api/certificates/v1"

	"keelson/pki"
)

// LegacyUnknown is the signer of requests from before there were signers.
const LegacyUnknown = "kubernetes.io/legacy-unknown"

// Names are Kubernetes' own signers, which this package may sign for.
func Names() []string {
	return []string{certv1.KubeletServingSignerName, certv1.KubeAPIServerClientKubeletSignerName, certv1.KubeAPIServerClientSignerName, LegacyUnknown}
}

// Signers say by which authority is signed for whom, and for how long.
type Signers struct {
	// Authorities are by the signer's name, one of Names. They are asked for each certificate, so that one that was renewed signs the next.
	// For a signer that is not here nobody signs.
	Authorities map[string]func() (*pki.Authority, error)
	// Life is that of certificates at most, and where nothing else is asked for. Default a year.
	Life time.Duration
}

// All has one authority sign for every signer.
func All(ca *pki.Authority) Signers {
	s := Signers{Authorities: map[string]func() (*pki.Authority, error){}}
	for _, name := range Names() {
		s.Authorities[name] = func() (*pki.Authority, error) { return ca, nil }
	}
	return s
}

func (s Signers) life() time.Duration { return cmp.Or(s.Life, usualLife) }
