// SPDX-License-Identifier: Apache-2.0

package credentials

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"keelson/apiserver/upkeep"
	"keelson/pki"
)

// retiredAnnotation lists the certificates that CAs no longer trust.
func retiredAnnotation(of ...*pki.Authority) map[string]string {
	var sums []string
	for _, a := range of {
		certs, _ := pki.Certificates(a.RetiredPEM()) // none
		for _, c := range certs {
			sum := sha256.Sum256(c.Raw)
			sums = append(sums, hex.EncodeToString(sum[:]))
		}
	}
	if len(sums) == 0 {
		return nil
	}
	return map[string]string{upkeep.RetiredAnnotation: strings.Join(sums, " ")}
}

// Authorities describes the CAs of the cluster.
func (k *Keys) Authorities() []pki.Info {
	var out []pki.Info
	for _, a := range []*pki.Authority{k.CA, k.KubeletClientCA, k.proxyCA} {
		out = append(out, a.Info())
	}
	return out
}
