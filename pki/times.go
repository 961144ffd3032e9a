// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/rand"
	"crypto/x509"
	"math/big"
	"time"
)

// A new certificate is valid from some time before its issue, so that a clock that is slow, or that was fast when the
// certificate was issued, does no harm: a 24th of its life, at least minSkew, at most maxSkew. A certificate of a few
// minutes has no room for more than half of its life: who renews it at a part of its validity would do so at once.
const (
	minSkew = 5 * time.Minute
	maxSkew = 24 * time.Hour
)

// authorityFrom is the NotBefore of a certificate authority. An authority that is made while the clock is fast must be
// valid when the clock is set right, and a machine without a battery for its clock starts in 1970.
var authorityFrom = time.Unix(0, 0)

// validFrom is the NotBefore of a certificate that is issued now and lives so long.
func validFrom(now time.Time, life time.Duration) time.Time {
	return now.Add(-min(max(life/24, minSkew), maxSkew, life/2))
}

// randomBits are the random part of a serial number; above them is the time of issue in Unix seconds. The serial
// numbers of earlier versions and of Kubernetes have at most 128 bits, these have more.
const randomBits = 104

// serial returns a new serial number, which shows when the certificate was issued.
func serial(now time.Time) (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), randomBits))
	if err != nil {
		return nil, err
	}
	return n.Or(n, new(big.Int).Lsh(big.NewInt(now.Unix()), randomBits)), nil
}

// Issued is when a CA of this package, or of Kubernetes, issued a certificate. Those of Kubernetes and of earlier
// versions are valid from minSkew before.
func Issued(c *x509.Certificate) time.Time {
	if c.SerialNumber != nil && c.SerialNumber.BitLen() > 128 {
		at := new(big.Int).Rsh(c.SerialNumber, randomBits)
		latest := c.NotBefore.Add(maxSkew + time.Second)
		if c.IsCA && c.NotBefore.Equal(authorityFrom) { // of this version; the number of another CA's may be random
			latest = c.NotAfter
		}
		issued := time.Unix(at.Int64(), 0)
		if at.IsInt64() && !issued.Before(c.NotBefore) && !issued.After(latest) {
			return issued
		}
	}
	return c.NotBefore.Add(minSkew)
}

// renewAt is when a certificate is replaced: after 60 to 67 % of its life, which part differs from certificate to
// certificate so that a cluster's do not all come at once.
func renewAt(c *x509.Certificate) time.Time {
	issued := Issued(c)
	life := c.NotAfter.Sub(issued)
	early := time.Duration(0)
	if c.SerialNumber != nil {
		early = life / 15 / 256 * time.Duration(new(big.Int).And(c.SerialNumber, big.NewInt(255)).Int64())
	}
	return issued.Add(life/3*2 - early)
}
