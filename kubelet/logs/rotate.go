// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Rotator moves a log aside when it has grown too large and has the runtime open a new one. The built-in runtime rotates its logs
// itself; this is for the others.
type Rotator struct {
	MaxBytes int64 // 10 MiB when zero
	MaxFiles int   // with the current one; 5 when zero
	// Reopen has the runtime open the log of a container anew.
	Reopen func(ctx context.Context, containerID string) error
}

// Check rotates one log if it is due.
func (r *Rotator) Check(ctx context.Context, containerID, path string) error {
	limit, files := r.MaxBytes, r.MaxFiles
	if limit == 0 {
		limit = 10 << 20
	}
	if files == 0 {
		files = 5
	}
	st, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && st.Size() < limit {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at log: %w", err)
	}
	older, err := rotated(path)
	if err != nil {
		return err
	}
	for len(older) > files-2 {
		if err := os.Remove(older[0]); err != nil {
			return fmt.Errorf("remove old log: %w", err)
		}
		older = older[1:]
	}
	for _, p := range older {
		if !strings.HasSuffix(p, ".gz") { // the newest stays as it is: a reader may be in it
			if err := compress(p); err != nil {
				return err
			}
		}
	}
	aside := path + "." + time.Now().Format("20060102-150405")
	if err := os.Rename(path, aside); err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	if err := r.Reopen(ctx, containerID); err != nil {
		return errors.Join(fmt.Errorf("reopen log: %w", err), os.Rename(aside, path))
	}
	return nil
}

func compress(path string) (err error) {
	in, err := os.Open(path) //nolint:gosec // a log of ours
	if err != nil {
		return fmt.Errorf("compress log: %w", err)
	}
	defer func() { _ = in.Close() }() // read only
	tmp := path + ".tmp"
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640) //nolint:gosec // beside it
	if err != nil {
		return fmt.Errorf("compress log: %w", err)
	}
	gz := gzip.NewWriter(out)
	_, err = io.Copy(gz, in)
	if err = errors.Join(err, gz.Close(), out.Close()); err != nil {
		return errors.Join(fmt.Errorf("compress log: %w", err), os.Remove(tmp))
	}
	if err := os.Rename(tmp, path+".gz"); err != nil {
		return fmt.Errorf("compress log: %w", err)
	}
	return os.Remove(path)
}
