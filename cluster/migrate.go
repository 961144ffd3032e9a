// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sync/errgroup"

	"keelson/apiserver/objects"
	"keelson/store"
	"keelson/store/backup"
	"keelson/store/embed"
)

// MigrateToEtcd copies the objects of the embedded store in dir to etcd. No instance may use dir. etcd must be empty or
// hold a part of the same objects: an interrupted copy can be repeated. Keys and values are kept, revisions are not.
// acceptLoss is Config.AcceptDataLoss.
func MigrateToEtcd(ctx context.Context, dir DataDir, e EtcdConfig, acceptLoss bool) (int64, error) {
	from, to, end, err := openBoth(ctx, dir, e, acceptLoss)
	if err != nil {
		return 0, err
	}
	defer end()
	if err := onlyCopies(ctx, from, to); err != nil {
		return 0, err
	}
	n := int64(0)
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(32)
	_, err = backup.Walk(ctx, from, objects.Root, func(kv store.KV) error {
		n++
		group.Go(func() error {
			_, err := to.Create(gctx, kv.Key, kv.Value)
			if errors.Is(err, store.ErrExists) { // onlyCopies has compared it
				return nil
			}
			return err
		})
		return gctx.Err()
	})
	if err = errors.Join(group.Wait(), err); err != nil {
		return 0, fmt.Errorf("copy to etcd: %w", err)
	}
	return n, compare(ctx, from, to)
}

// openBoth locks the directory and opens both stores.
func openBoth(
	ctx context.Context, dir DataDir, etcdConfig EtcdConfig, acceptLoss bool,
) (embedded, remote store.Store, end func(), err error) {
	if _, err := os.Stat(dir.Sub("store")); err != nil {
		return nil, nil, nil, fmt.Errorf("no embedded store in %s: %w", dir, err)
	}
	if err := etcdConfig.validate(); err != nil {
		return nil, nil, nil, err
	}
	lock, err := dir.Lock()
	if err != nil {
		return nil, nil, nil, err
	}
	embedded, err = openEmbedded(dir, slog.New(slog.DiscardHandler), acceptLoss)
	if err != nil {
		_ = lock.Close()
		return nil, nil, nil, err
	}
	remote, err = etcdConfig.open(ctx, slog.New(slog.DiscardHandler))
	if err != nil {
		_ = embedded.Close()
		_ = lock.Close()
		return nil, nil, nil, err
	}
	return embedded, remote, func() {
		_ = remote.Close()
		_ = embedded.Close()
		_ = lock.Close()
	}, nil
}

// onlyCopies returns an error if the target holds anything that the source does not.
func onlyCopies(ctx context.Context, from, to store.Store) error {
	_, err := backup.Walk(ctx, to, objects.Root, func(kv store.KV) error {
		got, _, err := from.Get(ctx, kv.Key, 0)
		switch {
		case errors.Is(err, store.ErrNotFound) || err == nil && !bytes.Equal(got.Value, kv.Value):
			return fmt.Errorf("etcd holds objects of another cluster, %s among them", kv.Key)
		case err != nil:
			return err
		}
		return nil
	})
	return err
}

// compare returns an error unless both stores hold the same keys and values.
func compare(ctx context.Context, from, to store.Store) error {
	var missing error
	n := 0
	if _, err := backup.Walk(ctx, from, objects.Root, func(kv store.KV) error {
		n++
		got, _, err := to.Get(ctx, kv.Key, 0)
		if err != nil || !bytes.Equal(got.Value, kv.Value) {
			missing = fmt.Errorf("%s did not arrive as it was: %w", kv.Key, err)
			return missing
		}
		return nil
	}); err != nil {
		return err
	}
	if _, err := backup.Walk(ctx, to, objects.Root, func(store.KV) error {
		n--
		return nil
	}); err != nil {
		return err
	}
	if n != 0 {
		return fmt.Errorf("the numbers of objects differ by %d: somebody else wrote meanwhile", n)
	}
	return nil
}

// MigrateFromEtcd creates the embedded store in dir from the objects in etcd at one revision. Revisions are kept. It is
// all or nothing; a store must not exist yet.
func MigrateFromEtcd(ctx context.Context, dir DataDir, etcdConfig EtcdConfig) (n int64, err error) {
	if err := etcdConfig.validate(); err != nil {
		return 0, err
	}
	if dir, err = dir.Prepare(); err != nil {
		return 0, err
	}
	lock, err := dir.Lock()
	if err != nil {
		return 0, err
	}
	defer func() { _ = lock.Close() }()
	if _, err := os.Stat(dir.Sub("store")); !errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("%s is there already: move it away, or choose another --data-dir", dir.Sub("store"))
	}
	from, err := etcdConfig.open(ctx, slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, err
	}
	defer func() { _ = from.Close() }()
	if !dir.served() {
		if err := markWithoutIdentities(string(dir)); err != nil {
			return 0, err
		}
	}
	tmp := dir.Sub(migrating) // the data directory's lock protects it; its content is of an interrupted migration
	if err := os.RemoveAll(tmp); err != nil {
		return 0, err
	}
	err = embed.Import(ctx, embed.Options{Dir: tmp}, func(put func(store.KV) error) (int64, error) {
		return backup.Walk(ctx, from, objects.Root, func(kv store.KV) error {
			n++
			return put(kv)
		})
	})
	if err == nil {
		err = errors.Join(syncAll(tmp), os.Rename(tmp, dir.Sub("store")), syncDir(string(dir)))
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("copy from etcd: %w", err), os.RemoveAll(tmp))
	}
	return n, nil
}
