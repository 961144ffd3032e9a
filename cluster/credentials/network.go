// SPDX-License-Identifier: Apache-2.0

package credentials

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"keelson/cluster/datadir"
	"keelson/pki"
)

// NetworkFile keeps the identity of the pod network. It is below pki/ so that backups, and servers that come to the
// cluster, have it.
const NetworkFile = "pki/network"

// NetworkIdentityOf is the identity that follows from the cluster's first CA: all machines of a cluster have the same.
func NetworkIdentityOf(ca []byte) string {
	sum := sha256.Sum256(pki.OriginalAuthority(ca)) // a renewed CA is the same cluster
	return hex.EncodeToString(sum[:16])
}

// keepNetworkIdentity returns the identity of the pod network. The first start stores it, because it does not change
// when the CA gets another key.
func keepNetworkIdentity(dir datadir.Dir, ca []byte) (string, error) {
	kept, err := os.ReadFile(dir.Sub(NetworkFile))
	if err == nil {
		return strings.TrimSpace(string(kept)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the identity of the pod network: %w", err)
	}
	identity := NetworkIdentityOf(ca)
	return identity, pki.WriteFile(dir.Sub(NetworkFile), []byte(identity+"\n"), 0o600)
}
