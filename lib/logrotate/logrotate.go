// SPDX-License-Identifier: Apache-2.0

// Package logrotate limits the number and size of a log's files, with the file names that Kubernetes uses:
//
//	0.log                      the current file
//	0.log.20060102-150405      the last rotated file; not compressed, because readers may have it open
//	0.log.20060102-150304.gz   an older file
//
// The container supervisor (runtime/shim/logfile) and package lib/log rotate with it, and the kubelet for other
// runtimes; the kubelet's log reader lists files with it. It never writes log lines.
package logrotate

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Policy holds the limits of one log.
type Policy struct {
	// MaxSize is the maximum size of one file in bytes; negative: the log is never rotated.
	MaxSize int64 `json:"maxSize"`
	// MaxFiles is the maximum number of files, including the current one; at least 2.
	MaxFiles int `json:"maxFiles"`
}

// Default returns Kubernetes' default.
func Default() Policy { return Policy{MaxSize: 10 << 20, MaxFiles: 5} }

// Complete sets zero fields from Default.
func (p Policy) Complete() Policy {
	def := Default()
	if p.MaxSize == 0 {
		p.MaxSize = def.MaxSize
	}
	if p.MaxFiles == 0 {
		p.MaxFiles = def.MaxFiles
	}
	return p
}

// Validate checks a policy.
func (p Policy) Validate() error {
	if p.MaxFiles < 2 {
		return fmt.Errorf(
			"a log has at least 2 files, the one that is written to and the one before it: %d are too few", p.MaxFiles)
	}
	return nil
}

// Limits of names.
const (
	stamp      = "20060102-150405"
	compressed = ".gz"
	temporary  = ".tmp"
)

// File is a rotated file.
type File struct {
	// Name is the path without the suffix of compression. A newer file has a greater name.
	Name       string
	Compressed bool
}

// Path returns the path of the file.
func (f File) Path() string {
	if f.Compressed {
		return f.Name + compressed
	}
	return f.Name
}

// List returns the rotated files, oldest first, without incomplete ones.
func List(log string) ([]File, error) {
	used, _, err := list(log)
	return used, err
}

// list also returns the paths of files that a crash left: temporary files, and uncompressed files whose compressed form
// exists.
func list(log string) (used []File, unused []string, err error) {
	dir, base := filepath.Split(log)
	entries, err := os.ReadDir(filepath.Clean(dir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list log files: %w", err)
	}
	for _, e := range entries { // sorted: "x" comes right before "x.gz" and "x.tmp"
		rest, ok := strings.CutPrefix(e.Name(), base+".")
		if !ok || !dated(rest) || e.IsDir() {
			continue
		}
		if strings.HasSuffix(rest, temporary) {
			unused = append(unused, dir+e.Name())
			continue
		}
		name, gz := strings.CutSuffix(dir+e.Name(), compressed)
		if n := len(used); gz && n > 0 && used[n-1].Name == name {
			unused = append(unused, name)
			used = used[:n-1]
		}
		used = append(used, File{Name: name, Compressed: gz})
	}
	slices.SortStableFunc(used, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return used, unused, nil
}

// dated reports whether the end of a name is that of a rotated file. Other files are ignored.
func dated(rest string) bool {
	if len(rest) < len(stamp) {
		return false
	}
	_, err := time.Parse(stamp, rest[:len(stamp)])
	switch rest[len(stamp):] {
	case "", compressed, temporary:
		return err == nil
	}
	return false
}

// Prune removes leftovers of a crash, and the oldest files beyond keep. It returns the remaining ones, oldest first.
func Prune(log string, keep int) ([]File, error) {
	used, unused, err := list(log)
	if err != nil {
		return nil, err
	}
	for len(used) > max(keep, 0) {
		unused = append(unused, used[0].Path())
		used = used[1:]
	}
	for _, p := range unused {
		if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("remove old log file: %w", err)
		}
	}
	return used, nil
}

// MoveAside renames the log. older are the existing rotated files. The new name is greater than theirs: if the log is
// rotated twice in a second, or the clock goes back, it gets the next free second.
func MoveAside(log string, older []File, now time.Time) (File, error) {
	if n := len(older); n > 0 {
		last, err := time.ParseInLocation(stamp, strings.TrimPrefix(older[n-1].Name, log+"."), now.Location())
		for err == nil && log+"."+now.Format(stamp) <= older[n-1].Name {
			now = last.Add(time.Second)
			last = now
		}
	}
	f := File{Name: log + "." + now.Format(stamp)}
	if err := os.Rename(log, f.Name); err != nil {
		return File{}, fmt.Errorf("move log aside: %w", err)
	}
	return f, nil
}

// Compress replaces a file by its compressed form. It holds mu for the last steps; callers that remove files must hold
// mu, too. A file that was removed meanwhile stays removed. If ctx is canceled, the file does not change.
func Compress(ctx context.Context, file File, mu sync.Locker) error {
	if file.Compressed {
		return nil
	}
	// a symbolic link could point to any file of the host
	in, err := os.OpenFile(file.Name, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("compress log: %w", err)
	}
	defer func() { _ = in.Close() }() // read only
	st, err := in.Stat()
	if err != nil {
		return fmt.Errorf("compress log: %w", err)
	}
	tmp := file.Name + temporary
	defer func() { _ = os.Remove(tmp) }() // after success it does not exist
	if err := writeCompressed(ctx, tmp, in, st.Mode().Perm()); err != nil {
		return fmt.Errorf("compress log: %w", err)
	}
	// Readers recognize the file by its modification time.
	if err := os.Chtimes(tmp, st.ModTime(), st.ModTime()); err != nil {
		return fmt.Errorf("compress log: %w", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if _, err := os.Lstat(file.Name); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := os.Rename(tmp, file.Name+compressed); err != nil {
		return fmt.Errorf("compress log: %w", err)
	}
	if err := os.Remove(file.Name); err != nil {
		return fmt.Errorf("remove compressed log: %w", err)
	}
	return nil
}

func writeCompressed(ctx context.Context, path string, in io.Reader, mode os.FileMode) error {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	gz, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	if err == nil {
		if _, err = io.Copy(gz, until{ctx, in}); err == nil {
			err = gz.Close()
		}
	}
	return errors.Join(err, out.Close())
}

// until is a reader that fails when a context is done.
type until struct {
	ctx context.Context //nolint:containedctx // it lives as long as one copy
	r   io.Reader
}

func (u until) Read(p []byte) (int, error) {
	if err := context.Cause(u.ctx); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}
