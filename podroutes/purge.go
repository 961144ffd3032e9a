// SPDX-License-Identifier: Apache-2.0

package podroutes

import (
	"context"

	"keelson/network/mesh"
)

// Purge removes everything that the agent of the cluster with that id made on this machine. It is idempotent.
func Purge(_ context.Context, id string) error {
	k, err := mesh.Open(id, "", "", 0, mesh.Encryption{})
	if err != nil {
		return err
	}
	defer k.Close()
	return k.Purge()
}
