// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"keelson/cluster/datadir"
	"keelson/cluster/maintenance"
	"keelson/cluster/storage"
	"keelson/store"
)

// TestLostWritesAreToldOf: a start, a backup and a migration refuse a store that lacks acknowledged writes, in one
// sentence that names the file and the flag; with the flag they go on.
func TestLostWritesAreToldOf(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	made := func() datadir.Dir {
		dir := datadir.Dir(filepath.Join(t.TempDir(), "data"))
		if err := os.MkdirAll(string(dir), 0o700); err != nil {
			t.Fatal(err)
		}
		st, err := storage.OpenEmbedded(dir, log, false)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			if _, err := st.Create(t.Context(), fmt.Sprintf("/registry/configmaps/default/%03d", i),
				make([]byte, 900)); err != nil {
				t.Fatal(err)
			}
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	open := func(dir datadir.Dir, accept bool) error {
		st, err := storage.OpenEmbedded(dir, log, accept)
		if err == nil {
			err = st.Close()
		}
		return err
	}
	backup := func(dir datadir.Dir, accept bool) error {
		_, err := maintenance.BackupOffline(t.Context(), dir, filepath.Join(t.TempDir(), "backup"), accept)
		return err
	}
	migrate := func(dir datadir.Dir, accept bool) error {
		ctx := t.Context()
		if accept { // long enough to open the store; after that it would wait for etcd
			limited, cancel := context.WithTimeout(ctx, 4*time.Second)
			defer cancel()
			ctx = limited
		}
		_, err := maintenance.MigrateToEtcd(ctx, dir, storage.Config{Servers: []string{"http://127.0.0.1:1"}}, accept)
		if accept && err != nil && !strings.Contains(err.Error(), "acknowledged") {
			return nil // the store opened; there is no etcd
		}
		return err
	}
	for name, act := range map[string]func(datadir.Dir, bool) error{"start": open, "backup": backup, "migrate": migrate} {
		for what, lose := range map[string]func(dir datadir.Dir, log string) error{
			"log removed":   func(_ datadir.Dir, log string) error { return os.Remove(log) },
			"log truncated": func(_ datadir.Dir, log string) error { return os.Truncate(log, 20_000) },
		} {
			dir := made()
			if err := os.MkdirAll(dir.Sub("pki"), 0o700); err != nil { // which a backup takes along
				t.Fatal(err)
			}
			logs, err := filepath.Glob(dir.Sub("store/*.log"))
			if err != nil || len(logs) == 0 {
				t.Fatal(logs, err)
			}
			newest := slices.Max(logs)
			if err := lose(dir, newest); err != nil {
				t.Fatal(err)
			}
			err = act(dir, false)
			if err == nil {
				t.Errorf("%s, %s: no error", name, what)
				continue
			}
			for _, want := range []string{
				filepath.Base(newest), "expected revision 201, found revision", "--accept-data-loss",
				"restore a backup",
			} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s, %s: %q does not say %q", name, what, err, want)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%s, %s: %q is more than a line", name, what, err)
			}
			if err := act(dir, true); err != nil {
				t.Errorf("%s, %s, accepted: %v", name, what, err)
			}
			if name == "migrate" {
				continue
			}
			if err := act(dir, false); err != nil {
				t.Errorf("%s, %s, after it was accepted: %v", name, what, err)
			}
		}
	}
}

// TestLostStore: a store that is gone as a whole is not made again silently, but in a directory that never had one.
func TestLostStore(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	dir := datadir.Dir(t.TempDir())
	for _, accept := range []bool{false, true} {
		st, err := storage.Open(t.Context(), storage.Config{}, dir, admitAll, log, accept)
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
		for _, gone := range []func() error{
			func() error { return os.RemoveAll(dir.Sub("store")) },
			func() error { return os.Mkdir(dir.Sub("store"), 0o700) },
		} {
			if err := gone(); err != nil {
				t.Fatal(err)
			}
			if st, err := storage.Open(t.Context(), storage.Config{}, dir, admitAll, log, false); err == nil ||
				!strings.Contains(err.Error(), "--accept-data-loss") {
				t.Errorf("got %v, %v; want a refusal", st, err)
			}
			if datadir.Exists(dir.Sub("store/LOCK")) {
				t.Error("the refusal has left store/LOCK")
			}
			if err := os.RemoveAll(dir.Sub("store")); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// admitAll refuses no store.
func admitAll(context.Context, store.Store, bool) error { return nil }
