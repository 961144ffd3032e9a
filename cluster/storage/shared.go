// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"bytes"
	"context"
	"errors"
	"log/slog"

	"keelson/store"
)

// KeepShared writes what the servers of a store share at a key. merge returns the new value for the stored one, which
// is nil if there is none; an error refuses the server. It is called again when another server wrote first.
func KeepShared(
	ctx context.Context, st store.Store, key string, log *slog.Logger, merge func(stored []byte) ([]byte, error),
) error {
	ctx = store.UseReserve(ctx, store.FullReserve)
	for {
		now, _, err := st.Get(ctx, key, 0)
		absent := errors.Is(err, store.ErrNotFound)
		if err != nil && !absent {
			return err
		}
		next, err := merge(now.Value)
		if err != nil || bytes.Equal(next, now.Value) {
			return err
		}
		if absent {
			_, err = st.Create(ctx, key, next)
		} else {
			_, err = st.Update(ctx, key, next, now.Revision)
		}
		if !overtaken(err) {
			return unlessFull(err, key, log)
		}
	}
}

// overtaken reports whether another server wrote the key first.
func overtaken(err error) bool {
	_, conflict := errors.AsType[*store.ConflictError](err)
	return conflict || errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrNotFound)
}

// unlessFull lets a server start whose store takes no writes: the next start writes.
func unlessFull(err error, key string, log *slog.Logger) error {
	if _, away := errors.AsType[*store.UnavailableError](err); away || errors.Is(err, store.ErrNoSpace) {
		log.Warn("what this server shares with others is not in the store yet", "key", key, "err", err)
		return nil
	}
	return err
}
