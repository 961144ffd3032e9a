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

// Rotator rotates a log that is too large: it renames the file, and makes the runtime reopen the log. It is for other
// runtimes; the built-in runtime rotates its logs itself.
type Rotator struct {
	// Policy has the limits of each log; zero values mean Kubernetes' defaults.
	Policy logrotate.Policy
	// Reopen calls ReopenContainerLog of the runtime.
	Reopen func(ctx context.Context, containerID string) error
}

// Remove removes a log and its rotated files. Missing files are no error.
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

// Check rotates one log if it is too large. If the log is missing, because of a crash between two steps or because
// someone removed it, it is reopened.
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
		if err := logrotate.Compress(ctx, f, &sync.Mutex{}); err != nil { // no concurrent removal
			return err
		}
	}
	// it stays as it is: a reader may be in it, and the runtime until it has reopened
	aside, err := logrotate.MoveAside(path, older, time.Now())
	if err != nil {
		return err
	}
	if err := r.Reopen(ctx, containerID); err != nil {
		return errors.Join(fmt.Errorf("reopen log: %w", err), os.Rename(aside.Name, path))
	}
	return nil
}
