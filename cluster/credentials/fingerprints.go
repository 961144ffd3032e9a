// SPDX-License-Identifier: Apache-2.0

package credentials

import (
	"context"
	"crypto"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"keelson/apiserver/objects"
	"keelson/apiserver/options"
	"keelson/cluster/storage"
	"keelson/pki"
	"keelson/store"
)

// FingerprintsKey is where the store keeps the fingerprints of the keys of the cluster's servers: lines "ca sha256:HEX"
// for certificate authorities, and "sa sha256:HEX" for keys that verify service-account tokens. It is below
// objects.Root so that backups and migrations take it along; no resource has that prefix.
const FingerprintsKey = objects.Root + "keelson/fingerprints"

// Fingerprints is a set of such lines.
type Fingerprints map[string]bool

// ParseStored reads what Bytes returned.
func ParseStored(b []byte) Fingerprints {
	out := Fingerprints{}
	for line := range strings.Lines(string(b)) {
		out[strings.TrimSuffix(line, "\n")] = true
	}
	return out
}

// Bytes is the set as it is stored.
func (f Fingerprints) Bytes() []byte {
	return []byte(strings.Join(slices.Sorted(maps.Keys(f)), "\n") + "\n")
}

// foreign is the first of the names of identities of which f and others have keys, but none in common; empty: no name.
func (f Fingerprints) foreign(others Fingerprints) string {
	for _, name := range alwaysMade {
		theirs := 0
		common := false
		for line := range others {
			if strings.HasPrefix(line, name+" ") {
				theirs++
				common = common || f[line]
			}
		}
		if theirs > 0 && !common {
			return name
		}
	}
	return ""
}

// ServerFingerprints are the fingerprints of a server's keys, and of those that it had before.
type ServerFingerprints struct{ Own, Retired Fingerprints }

// ServerFingerprints returns the fingerprints of the keys in use and of those that rotations have retired.
func (k *Keys) ServerFingerprints(tokens *options.ServiceAccountTokens) (ServerFingerprints, error) {
	own, err := k.Fingerprints(tokens)
	if err != nil {
		return ServerFingerprints{}, err
	}
	retired, err := k.retiredFingerprints()
	return ServerFingerprints{own, retired}, err
}

// Fingerprints are those of the authorities and of the keys that verify service-account tokens.
func (k *Keys) Fingerprints(tokens *options.ServiceAccountTokens) (Fingerprints, error) {
	out := Fingerprints{}
	certs, err := pki.Certificates(k.CA.CertPEM())
	if err != nil {
		return nil, err
	}
	for _, cert := range certs {
		if err := out.add("ca", cert.PublicKey); err != nil {
			return nil, err
		}
	}
	verify, err := tokens.Config(k.Tokens)
	if err != nil {
		return nil, err
	}
	for _, key := range append(verify.Keys, verify.Key.Public()) {
		if err := out.add(TokenIdentity, key); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (f Fingerprints) add(name string, key crypto.PublicKey) error {
	sum, err := pki.Fingerprint(key)
	if err != nil {
		return fmt.Errorf("fingerprint of key %s: %w", name, err)
	}
	f[name+" "+sum] = true
	return nil
}

// retiredFingerprints are those of keys that were replaced.
func (k *Keys) retiredFingerprints() (Fingerprints, error) {
	out := Fingerprints{}
	certs, _ := pki.Certificates(k.CA.RetiredPEM()) // none
	for _, cert := range certs {
		if err := out.add("ca", cert.PublicKey); err != nil {
			return nil, err
		}
	}
	for _, key := range k.Tokens.Retired() {
		if err := out.add(TokenIdentity, key); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// KeepFingerprints compares a server's keys with those that the store knows, adds new ones, and removes retired ones. A
// server that comes to
// the store must have one of the known keys of each kind; the keys of one that has served it before are guarded by its
// own directory, whose owner may have replaced them.
func KeepFingerprints(
	ctx context.Context, st store.Store, member bool, keys ServerFingerprints, log *slog.Logger,
) error {
	own := keys.Own
	return storage.KeepShared(ctx, st, FingerprintsKey, log, func(stored []byte) ([]byte, error) {
		known := ParseStored(stored)
		name := own.foreign(known)
		switch {
		case name == "":
		case !member:
			return nil, fmt.Errorf("it has the objects of a cluster with another key %q: copy pki/ of that cluster's "+
				"data directory into this one (docs/store.md)", name)
		default:
			log.Warn("this server has a new key: copy pki/ to the other servers of the cluster", "key", name)
		}
		maps.DeleteFunc(known, func(line string, _ bool) bool { return keys.Retired[line] })
		maps.Copy(known, own)
		return known.Bytes(), nil
	})
}
