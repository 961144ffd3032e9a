// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"keelson/apiserver/objects"
	"keelson/cluster/credentials"
	"keelson/cluster/datadir"
	"keelson/cluster/storage"
	"keelson/store"
	"keelson/store/backup"
	"keelson/store/embed"
	"keelson/store/etcd"
)

// MigrateToEtcd copies the objects of the embedded store in dir to etcd. No instance may use dir. etcd must be empty or
// hold a part of the same objects: an interrupted copy can be repeated. Keys and values are kept, revisions are not.
// The directory then uses etcd, and its embedded store gets another name. acceptLoss opens a store that lacks
// acknowledged writes.
func MigrateToEtcd(ctx context.Context, dir datadir.Dir, e storage.Config, acceptLoss bool) (int64, error) {
	from, to, end, err := openBoth(ctx, dir, e, acceptLoss)
	if err != nil {
		return 0, err
	}
	defer end()
	used := datadir.EtcdStore(to.Cluster())
	before, err := dir.StoreUsed()
	if err != nil {
		return 0, err
	}
	if before.IsEtcd() {
		if err := dir.SameStore(e.Servers, used); err != nil {
			return 0, err
		}
	}
	n := int64(0)
	if before == used { // a migration was killed after its copy was complete: the cluster may have run on etcd since
		_, err = backup.Walk(ctx, from, objects.Root, func(store.KV) error {
			n++
			return nil
		})
	} else {
		n, err = copyToEtcd(ctx, from, to)
	}
	if err != nil {
		return 0, err
	}
	// A crash between the two leaves the embedded store where it is, and no start uses it.
	if err := errors.Join(from.Close(), dir.UseStore(used)); err != nil {
		return 0, err
	}
	_, err = dir.PutStoreAside(time.Now())
	return n, err
}

// copyToEtcd copies what is missing in etcd, and compares.
func copyToEtcd(ctx context.Context, from, to store.Store) (int64, error) {
	if err := onlyCopies(ctx, from, to); err != nil {
		return 0, err
	}
	n := int64(0)
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(32)
	_, err := backup.Walk(ctx, from, objects.Root, func(kv store.KV) error {
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
	ctx context.Context, dir datadir.Dir, etcdConfig storage.Config, acceptLoss bool,
) (embedded store.Store, remote *etcd.Store, end func(), err error) {
	if err := hasEmbedded(dir); err != nil {
		return nil, nil, nil, err
	}
	if err := etcdConfig.Validate(); err != nil {
		return nil, nil, nil, err
	}
	lock, err := dir.Lock()
	if err != nil {
		return nil, nil, nil, err
	}
	embedded, err = storage.OpenEmbedded(dir, slog.New(slog.DiscardHandler), acceptLoss)
	if err != nil {
		_ = lock.Close()
		return nil, nil, nil, err
	}
	remote, err = etcdConfig.Open(ctx, slog.New(slog.DiscardHandler))
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

// hasEmbedded returns an error unless there is an embedded store in dir.
func hasEmbedded(dir datadir.Dir) error {
	used, err := dir.StoreUsed()
	if err != nil {
		return err
	}
	_, err = os.Stat(dir.Sub("store"))
	if errors.Is(err, os.ErrNotExist) && used.IsEtcd() {
		return fmt.Errorf("the objects of %s are in %s already", dir, used.Text())
	}
	if err != nil {
		return fmt.Errorf("no embedded store in %s: %w", dir, err)
	}
	return nil
}

// onlyCopies returns an error if the target holds anything that the source does not.
func onlyCopies(ctx context.Context, from, to store.Store) error {
	_, err := backup.Walk(ctx, to, objects.Root, func(kv store.KV) error {
		got, _, err := from.Get(ctx, kv.Key, 0)
		switch {
		case errors.Is(err, store.ErrNotFound) || err == nil && !bytes.Equal(got.Value, kv.Value):
			return fmt.Errorf("etcd holds objects of another cluster, or of an earlier copy, %s among them: empty it "+
				"by `etcdctl del --prefix %s`", kv.Key, objects.Root)
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
			missing = fmt.Errorf("%s was not copied unchanged: %w", kv.Key, err)
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
// all or nothing; a store must not exist yet. The directory then uses the embedded store.
func MigrateFromEtcd(ctx context.Context, dir datadir.Dir, etcdConfig storage.Config) (n int64, err error) {
	if err := etcdConfig.Validate(); err != nil {
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
	before, err := dir.StoreUsed()
	if err != nil {
		return 0, err
	}
	if datadir.Exists(dir.Sub("store")) && !before.IsEtcd() {
		return 0, fmt.Errorf("%s is there already: move it away, or choose another --data-dir", dir.Sub("store"))
	}
	from, err := etcdConfig.Open(ctx, slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, err
	}
	defer func() { _ = from.Close() }()
	if err := dir.SameStore(etcdConfig.Servers, datadir.EtcdStore(from.Cluster())); err != nil {
		return 0, err
	}
	if datadir.Exists(dir.Sub("store")) { // of a migration that was killed just before its end
		if _, err := dir.PutStoreAside(time.Now()); err != nil {
			return 0, err
		}
	}
	if !dir.Served() {
		if err := credentials.MarkWithoutIdentities(string(dir)); err != nil {
			return 0, err
		}
	}
	if n, err = copyToEmbedded(ctx, from, dir); err != nil {
		return 0, err
	}
	return n, dir.UseStore(datadir.EmbeddedStore)
}

// copyToEmbedded writes the objects of an etcd into the embedded store of dir, which has none, and returns their
// number. The store appears as a whole or not at all.
func copyToEmbedded(ctx context.Context, from store.Store, dir datadir.Dir) (n int64, err error) {
	keyless := !datadir.Exists(dir.Sub("pki/ca.crt")) // the next start creates keys
	// The data directory's lock protects it; its content is of an interrupted migration.
	tmp := dir.Sub(datadir.MigratingStore)
	if err := os.RemoveAll(tmp); err != nil {
		return 0, err
	}
	err = embed.Import(ctx, embed.Options{Dir: tmp}, func(put func(store.KV) error) (int64, error) {
		return backup.Walk(ctx, from, objects.Root, func(kv store.KV) error {
			if keyless && kv.Key == credentials.FingerprintsKey {
				return nil
			}
			n++
			return put(kv)
		})
	})
	if err == nil {
		err = errors.Join(datadir.SyncAll(tmp), os.Rename(tmp, dir.Sub("store")), datadir.SyncDir(string(dir)))
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("copy from etcd: %w", err), os.RemoveAll(tmp))
	}
	return n, nil
}
