// SPDX-License-Identifier: Apache-2.0

// Package storage opens the store of a cluster: the embedded one in its data directory, within its quota, or an etcd.
// It refuses a store that another cluster has used, keeps in it what the servers of a cluster share, and serves the
// etcd API over it. cluster and maintenance call it. It knows no key and no object.
package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"keelson/cluster/datadir"
	"keelson/event/eventlog"
	"keelson/pki"
	"keelson/store"
	"keelson/store/embed"
	"keelson/store/etcd"
)

// enter refuses a store that has another cluster's keys. known reports that the directory has used this store before.
type enter = func(ctx context.Context, st store.Store, known bool) error

// Open opens the configured store for a server. It returns an error if the directory uses another store, or if
// may refuses it: no part runs yet then.
func Open(
	ctx context.Context, e Config, dir datadir.Dir, may enter, log *slog.Logger, acceptLoss bool,
) (store.Store, error) {
	log = log.With(eventlog.Key, eventlog.Store)
	if len(e.Servers) > 0 {
		st, err := e.Open(ctx, log)
		if err != nil {
			return nil, err
		}
		return checked(st, st.Close, func() error { return enterEtcd(ctx, st, e.Servers, dir, may) })
	}
	st, err := openQuota(dir, log, acceptLoss, e.quota(dir))
	if err != nil {
		return nil, err
	}
	return checked(st, st.Close, func() error { return enterEmbedded(ctx, st, dir, may) })
}

// checked returns st, or closes it if check fails.
func checked(st store.Store, end func() error, check func() error) (store.Store, error) {
	if err := check(); err != nil {
		return nil, errors.Join(err, end())
	}
	return st, nil
}

func enterEtcd(ctx context.Context, st *etcd.Store, servers []string, dir datadir.Dir, may enter) error {
	id := datadir.EtcdStore(st.Cluster())
	if err := dir.SameStore(servers, id); err != nil {
		return err
	}
	used, err := dir.StoreUsed()
	if err != nil {
		return err
	}
	if err := may(ctx, st, used == id); err != nil {
		return fmt.Errorf("etcd at %s: %w", strings.Join(servers, ","), err)
	}
	return dir.UseStore(id)
}

func enterEmbedded(ctx context.Context, st store.Store, dir datadir.Dir, may enter) error {
	known := datadir.Exists(dir.Sub(datadir.StoreCreatedFile))
	if err := may(ctx, st, known); err != nil {
		return fmt.Errorf("store in %s: %w", dir.Sub("store"), err)
	}
	if !known {
		if err := pki.WriteFile(dir.Sub(datadir.StoreCreatedFile), []byte("this directory has an embedded store\n"),
			0o600); err != nil {
			return err
		}
	}
	return dir.UseStore(datadir.EmbeddedStore) // of a directory that has no record yet
}

// OpenEmbedded opens the store of the data directory, or creates it at the first start. It fails if acknowledged writes
// are missing, unless acceptLoss.
func OpenEmbedded(dir datadir.Dir, log *slog.Logger, acceptLoss bool) (*embed.Store, error) {
	return openQuota(dir, log, acceptLoss, 0)
}

// openQuota is OpenEmbedded for a server, which creates objects: quota bounds them, unless it is 0.
func openQuota(dir datadir.Dir, log *slog.Logger, acceptLoss bool, quota int64) (*embed.Store, error) {
	st, err := embed.Open(embed.Options{
		Dir:            dir.Sub("store"),
		Log:            log,
		Quota:          quota,
		MustExist:      datadir.Exists(dir.Sub(datadir.StoreCreatedFile)),
		AcceptDataLoss: acceptLoss,
	})
	var lost *embed.DataLossError
	switch {
	case errors.As(err, &lost) && lost.Unreadable:
		return nil, fmt.Errorf("%w; put the files back, or restore a backup (docs/store.md)", err)
	case errors.As(err, &lost):
		return nil, fmt.Errorf("%w; put the files back, restore a backup, or go on without these writes by "+
			"--accept-data-loss (docs/store.md)", err)
	}
	return st, err
}
