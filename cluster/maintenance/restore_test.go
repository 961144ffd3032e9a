// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"keelson/cluster/datadir"
	"keelson/lib/waittest"
	"keelson/store"
	"keelson/store/backup"
)

// backupFile is a backup of n keys of 2 KB.
func backupFile(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backup")
	_, err := saveBackup("", path, func(w *backup.Writer) (int64, error) {
		for i := range n {
			kv := store.KV{
				Key: fmt.Sprintf("/registry/configmaps/a/%05d", i),
				Value: bytes.Repeat([]byte{byte(i)},
					2000),
				Revision: int64(i + 2),
			}
			if err := w.KV(kv); err != nil {
				return 0, err
			}
		}
		return int64(n + 2), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// left are the names in the directory that holds dir.
func left(t *testing.T, dir datadir.Dir) string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(string(dir)))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// TestRestoreRefusals: each is a sentence that names the file or the directory, and leaves nothing.
func TestRestoreRefusals(t *testing.T) {
	good, err := os.ReadFile(backupFile(t, 50))
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(good)
	flipped[len(good)/2] ^= 4
	base := t.TempDir()
	for name, c := range map[string]struct {
		b    []byte
		want string
	}{
		"truncated": {good[:len(good)-40], "the file is damaged or not complete, at byte "},
		"flipped":   {flipped, "the file is damaged or not complete, at byte "},
		"newer": {
			append([]byte("KEELSON BACKUP 3\n"), good[17:]...),
			`its format is version "3\n", this program knows version "2\n"`,
		},
		"foreign": {[]byte("apiVersion: v1\n"), "this is not a backup of keelson"},
		"empty":   {nil, "this is not a backup of keelson"},
		"longer":  {append(bytes.Clone(good), 'x'), "something follows the end"},
	} {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, c.b, 0o600); err != nil {
			t.Fatal(err)
		}
		dir := datadir.Dir(filepath.Join(base, "data"))
		_, err := Restore(t.Context(), dir, file)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: got %v, want %q and the file's name", name, err, c.want)
		}
		if got := left(t, dir); got != "" {
			t.Errorf("%s: left %s", name, got)
		}
	}
	taken := datadir.Dir(filepath.Join(base, "taken"))
	if err := os.MkdirAll(taken.Sub("store"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), taken, backupFile(t, 1)); err == nil ||
		!strings.Contains(err.Error(), "is not empty") {
		t.Errorf("into a directory that holds something: got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := datadir.Dir(filepath.Join(base, "data"))
	if _, err := Restore(ctx, dir, backupFile(t, 2000)); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: got %v", err)
	}
	if got := left(t, dir); got != "taken" {
		t.Errorf("interrupted: left %s", got)
	}
}

// TestRestoreKilled kills restores half-way: the data directory is absent or whole, and the next restore leaves nothing
// next to it.
func TestRestoreKilled(t *testing.T) {
	const n = 8000
	file := backupFile(t, n)
	dir := datadir.Dir(filepath.Join(t.TempDir(), "data"))
	whole := func() {
		t.Helper()
		embedded(t, dir, func(s store.Store) {
			if got := len(stored(t, s)); got != n {
				t.Errorf("the store holds %d keys, want %d", got, n)
			}
		})
	}
	for range 3 {
		p := spawn(t, "restore", dir, file)
		waittest.Until(t, "a directory in the making", func() bool { return left(t, dir) != "" })
		kill(p)
		if datadir.Exists(string(dir)) { // it was faster
			whole()
			if err := os.RemoveAll(string(dir)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := Restore(t.Context(), dir, file); err != nil {
		t.Fatal(err)
	}
	whole()
	if got := left(t, dir); got != "data" {
		t.Errorf("left %s", got)
	}
}

// TestRestoreOfForeignNames: a backup that names anything but keys and certificates in pki/, or keys outside of the
// objects, writes nothing.
func TestRestoreOfForeignNames(t *testing.T) {
	write := func(fill func(*backup.Writer) error) string {
		path := filepath.Join(t.TempDir(), "backup")
		if _, err := saveBackup("", path, func(w *backup.Writer) (int64, error) { return 7, fill(w) }); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := func(name string) string {
		return write(func(w *backup.Writer) error { return w.File(name, []byte("x")) })
	}
	for what, path := range map[string]string{
		"next to pki": file("pki/../kubeconfig"),
		"above":       file("pki/../../kubeconfig"),
		"below pki":   file("pki/sub/ca.crt"),
		"pki itself":  file("pki/."),
		"no name":     file("pki/"),
		"twice":       file("pki//ca.crt"),
		"absolute":    file("/etc/cron.d/x"),
		"another":     file("store-created"),
		"zero byte":   file("pki/a\x00b"),
		"foreign key": write(func(w *backup.Writer) error {
			return w.KV(store.KV{Key: "keelson/x", Value: []byte("x"), Revision: 3})
		}),
	} {
		dir := datadir.Dir(filepath.Join(t.TempDir(), "c"))
		_, err := Restore(t.Context(), dir, path)
		if err == nil || !strings.Contains(err.Error(), "which does not belong there") {
			t.Errorf("%s: got %v, want a refusal", what, err)
		}
		if got := left(t, dir); got != "" {
			t.Errorf("%s: left %s", what, got)
		}
	}
}

// TestRestoreBesideOthers: a directory that another user could have put in the way of a restore is refused, and nothing
// in it is touched.
func TestRestoreBesideOthers(t *testing.T) {
	from := backupFile(t, 3)
	for what, c := range map[string]struct {
		make func(t *testing.T, at string) error
		want string
	}{
		"a link": {func(t *testing.T, at string) error { return os.Symlink(t.TempDir(), at) }, "is not a directory"},
		"open to others": {func(_ *testing.T, at string) error {
			return errors.Join(os.Mkdir(at, 0o700), os.Chmod(at, 0o770))
		}, "open to other users"},
		"of another user": {func(t *testing.T, at string) error {
			if os.Geteuid() != 0 {
				t.Skip("only root can give a directory to another user")
			}
			return errors.Join(os.Mkdir(at, 0o700), os.Chown(at, 65534, 65534))
		}, "belongs to another user"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := datadir.Dir(filepath.Join(t.TempDir(), "c"))
			at := string(dir) + ".restoring"
			if err := c.make(t, at); err != nil {
				t.Fatal(err)
			}
			kept := filepath.Join(at, "kept")
			if err := os.WriteFile(kept, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Restore(t.Context(), dir, from); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if _, err := os.Stat(kept); err != nil {
				t.Errorf("what was in the directory is gone: %v", err)
			}
		})
	}
}
