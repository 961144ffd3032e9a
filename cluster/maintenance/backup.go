// SPDX-License-Identifier: Apache-2.0

// Package maintenance is what is done to a whole cluster from outside: its backup and restore, the move of its objects
// between the embedded store and etcd, its status, and its end. The commands of these names call it, and the API server
// for what it serves of itself. It runs no role and knows none: it works on the directory of a cluster, whose lock it
// takes where nothing may run.
package maintenance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"

	"keelson/apiserver/objects"
	"keelson/cluster/datadir"
	"keelson/cluster/storage"
	"keelson/store"
	"keelson/store/backup"
)

// BackupPath is where the API server of a running cluster serves a backup of its store.
const BackupPath = "/keelson/v1/backup"

// Summary counts what a backup holds.
type Summary = backup.Summary

// ServeBackup streams all objects at one revision. An interrupted stream has no end record, by which backup.Read
// detects it.
func ServeBackup(st store.Store, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
			return
		}
		// no request timeout: a backup may take longer; when the client leaves, a write fails
		ctx := context.WithoutCancel(r.Context())
		w.Header().Set("Content-Type", "application/octet-stream")
		b := backup.NewWriter(w)
		rev, err := backup.Walk(ctx, st, objects.Root, b.KV)
		if err == nil {
			_, err = b.Close(rev)
		}
		if err != nil {
			log.Error("backup interrupted", "err", err)
		}
	})
}

// SaveBackup writes the backup that stream carries (the response of BackupPath) and the keys and certificates of dir to
// a new file at path, atomically. An empty dir leaves the keys out.
func SaveBackup(dir datadir.Dir, stream io.Reader, path string) (Summary, error) {
	return saveBackup(dir, path, func(w *backup.Writer) (int64, error) {
		s, err := backup.Read(stream, backup.Sink{KV: w.KV})
		return s.Revision, err
	})
}

// BackupOffline writes a backup of a cluster that is not running. acceptLoss opens a store that lacks acknowledged
// writes.
func BackupOffline(ctx context.Context, dir datadir.Dir, path string, acceptLoss bool) (Summary, error) {
	if used, err := dir.StoreUsed(); err == nil && used.IsEtcd() {
		return Summary{}, fmt.Errorf("the objects of %s are in %s: start the cluster and repeat this, or use "+
			"`etcdctl snapshot save`", dir, used.Text())
	}
	if _, err := os.Stat(dir.Sub("store")); err != nil {
		return Summary{}, fmt.Errorf("no cluster in %s: %w", dir, err)
	}
	lock, err := dir.Lock()
	if err != nil {
		return Summary{}, err
	}
	defer func() { _ = lock.Close() }()
	st, err := storage.OpenEmbedded(dir, slog.New(slog.DiscardHandler), acceptLoss)
	if err != nil {
		return Summary{}, err
	}
	defer func() { _ = st.Close() }()
	return saveBackup(dir, path, func(w *backup.Writer) (int64, error) {
		return backup.Walk(ctx, st, objects.Root, w.KV)
	})
}

func saveBackup(dir datadir.Dir, path string, fill func(*backup.Writer) (int64, error)) (sum Summary, err error) {
	if _, err := os.Lstat(path); err == nil {
		return sum, fmt.Errorf("%s exists already: choose another name", path)
	}
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".partial-*") // 0600: it holds secrets
	if err != nil {
		return sum, fmt.Errorf("back up: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("back up to %s: %w", path, err)
			_ = file.Close()
			_ = os.Remove(file.Name())
		}
	}()
	w := backup.NewWriter(file)
	if err := saveKeys(dir, w); err != nil {
		return sum, err
	}
	rev, err := fill(w)
	if err != nil {
		return sum, err
	}
	if sum, err = w.Close(rev); err != nil {
		return sum, err
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return sum, err
	}
	if err := os.Link(file.Name(), path); err != nil { // not os.Rename: it would overwrite a file created meanwhile
		return sum, err
	}
	return sum, errors.Join(os.Remove(file.Name()), datadir.SyncDir(filepath.Dir(path)))
}

func saveKeys(dir datadir.Dir, writer *backup.Writer) error {
	if dir == "" {
		return nil
	}
	files, err := os.ReadDir(dir.Sub("pki"))
	if err != nil {
		return err
	}
	for _, e := range files {
		if !e.Type().IsRegular() {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir.Sub("pki"), e.Name()))
		if err != nil {
			return err
		}
		if err := writer.File("pki/"+e.Name(), b); err != nil {
			return err
		}
	}
	return nil
}
