// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"
)

// TestRestoreOfSeveral: clusters that end at the same time do not remove the directory that another one has just made.
func TestRestoreOfSeveral(t *testing.T) {
	run := t.TempDir()
	var group errgroup.Group
	for i := range 4 {
		group.Go(func() error {
			for range 200 {
				if err := (settings{runDir: run, id: fmt.Sprint("c", i)}).restore(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}
