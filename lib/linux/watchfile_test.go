// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestWatchFile(t *testing.T) {
	write := func(path, text string) error { return os.WriteFile(path, []byte(text), 0o600) }
	for name, change := range map[string]func(dir, path string) error{
		"written":     func(_, path string) error { return write(path, "new") },
		"removed":     func(_, path string) error { return os.Remove(path) },
		"moved there": func(dir, path string) error { return move(dir, path) },
		"link's target changed": func(dir, path string) error {
			if err := os.Mkdir(filepath.Join(dir, "v2"), 0o700); err != nil {
				return err
			}
			if err := write(filepath.Join(dir, "v2", "file"), "new"); err != nil {
				return err
			}
			if err := os.Symlink("v2", filepath.Join(dir, "..tmp")); err != nil {
				return err
			}
			return os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			if err := prepare(dir, path, name == "link's target changed"); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			calls := make(chan struct{}, 64)
			ended := make(chan error, 1)
			go func() { ended <- WatchFile(ctx, path, func() { calls <- struct{}{} }) }() // ends with ctx
			wait := func(what string) {
				t.Helper()
				select {
				case <-calls:
				case <-time.After(time.Minute):
					t.Fatalf("%s: not notified", what)
				}
			}
			wait("at first")
			if err := change(dir, path); err != nil {
				t.Fatal(err)
			}
			wait("after the change")
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("the watch ended with %v", err)
			}
		})
	}
	if err := WatchFile(t.Context(), filepath.Join(t.TempDir(), "none", "file"), func() {}); err == nil {
		t.Error("a directory that is not there is watched")
	}
}

func prepare(dir, path string, link bool) error {
	if !link {
		return os.WriteFile(path, []byte("old"), 0o600)
	}
	if err := os.Mkdir(filepath.Join(dir, "v1"), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "v1", "file"), []byte("old"), 0o600); err != nil {
		return err
	}
	if err := os.Symlink("v1", filepath.Join(dir, "..data")); err != nil {
		return err
	}
	return os.Symlink(filepath.Join("..data", "file"), path)
}

func move(dir, path string) error {
	if err := os.WriteFile(filepath.Join(dir, "other"), []byte("new"), 0o600); err != nil {
		return err
	}
	return os.Rename(filepath.Join(dir, "other"), path)
}
