// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"keelson/lib/logrotate"
)

// Rotator moves a log aside when it has grown too large and has the runtime open a new one. The built-in runtime rotates its logs
// itself; this is for the others.
type Rotator struct {
	// Policy bounds each log; what is zero is Kubernetes' default.
	Policy logrotate.Policy
	// Reopen has the runtime open the log of a container anew.
	Reopen func(ctx context.Context, containerID string) error
}

// Remove removes a log and the files that were moved aside. What is not there is removed already.
func Remove(path string) error {
	if path == "" {
		return nil
	}
	_, err := logrotate.Prune(path, 0)
	if rmErr := os.Remove(path); !errors.Is(rmErr, os.ErrNotExist) {
		err = errors.Join(err, rmErr)
	}
	if err != nil {
		return fmt.Errorf("remove log: %w", err)
	}
	return nil
}

// Check rotates one log if it is due. A log that is not there, because a crash came between two steps or somebody removed it, is opened
// anew.
func (r *Rotator) Check(ctx context.Context, containerID, path string) error {
	policy := r.Policy.Complete()
	if policy.MaxSize < 0 || path == "" {
		return nil
	}
	st, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		if err := r.Reopen(ctx, containerID); err != nil {
			return fmt.Errorf("reopen log that is missing: %w", err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at log: %w", err)
	}
	if st.Size() < policy.MaxSize {
		return nil
	}
	older, err := logrotate.Prune(path, policy.MaxFiles-2)
	if err != nil {
		return err
	}
	for _, f := range older {
		if err := logrotate.Compress(ctx, f, &sync.Mutex{}); err != nil { // nobody else removes files
			return err
		}
	}
	aside, err := logrotate.MoveAside(path, older, time.Now()) // it stays as it is: a reader may be in it, and the runtime until it has reopened
	if err != nil {
		return err
	}
	if err := r.Reopen(ctx, containerID); err != nil {
		return errors.Join(fmt.Errorf("reopen log: %w", err), os.Rename(aside.Name, path))
	}
	return nil
}
