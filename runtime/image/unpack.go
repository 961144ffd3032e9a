// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

const (
	whiteoutPrefix = ".wh."
	whiteoutMeta   = ".wh..wh."     // aufs' own files; nothing for a container
	whiteoutOpaque = ".wh..wh..opq" // hides what lower layers have in this directory
	opaqueXattr    = "trusted.overlay.opaque"

	// maxEntries bounds what one layer may make us remember and create.
	maxEntries = 4 << 20
)

// unpacked is what unpacking one layer found out.
type unpacked struct {
	diffID   string
	disk     int64 // bytes the files occupy, in blocks of 4 KiB
	inodes   int64
	implicit []string // directories made for a file below them without an entry of their own
}

// unpacker turns the entries of a layer's tar into a tree that overlayfs can stack. Containerd's archive package does
// the extraction and keeps every path below root; this adds overlay's whiteouts, limits and bookkeeping.
type unpacker struct {
	root      string
	max       int64
	bytes     int64 // bytes of content, as the headers promise
	disk      int64
	entries   int64
	known     map[string]bool // directories: true when they have an entry, false when implicit
	whiteouts map[string]bool // paths on disk that hold a whiteout made for this layer
	revived   map[string]bool // directories that replaced a whiteout: opaque, so they inherit nothing
}

// unpack extracts the tar (plain, gzip, zstd) in r below root and reads r to its end.
func unpack(ctx context.Context, root string, r io.Reader, maxBytes int64) (unpacked, error) {
	plain, err := decompress(r)
	if err != nil {
		return unpacked{}, err
	}
	defer func() { _ = plain.Close() }()
	sum := sha256.New()
	u := &unpacker{
		root: root, max: maxBytes,
		known: map[string]bool{}, whiteouts: map[string]bool{}, revived: map[string]bool{},
	}
	tee := io.TeeReader(plain, sum)
	opts := []archive.ApplyOpt{archive.WithFilter(u.filter), archive.WithConvertWhiteout(u.convert)}
	if os.Geteuid() != 0 {
		opts = append(opts, archive.WithNoSameOwner())
	}
	if _, err := archive.Apply(quiet(ctx), root, tee, opts...); err != nil {
		return unpacked{}, wordUnpack(err)
	}
	// What follows the tar's end mark belongs to the digest too; it is padding, so it may not be long.
	n, err := io.Copy(io.Discard, io.LimitReader(tee, 64<<20))
	if err != nil {
		return unpacked{}, wordUnpack(err)
	}
	if n == 64<<20 {
		return unpacked{}, fmt.Errorf("%w: more than 64 MiB after the end of the layer's tar", ErrInvalid)
	}
	out := unpacked{diffID: "sha256:" + hex.EncodeToString(sum.Sum(nil)), disk: u.disk, inodes: u.entries}
	for dir, explicit := range u.known {
		if !explicit && !u.revived[dir] {
			out.implicit = append(out.implicit, dir)
		}
	}
	return out, nil
}

// quiet keeps the archive package's remarks (an attribute this file system does not have) out of standard error.
func quiet(ctx context.Context) context.Context {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return log.WithLogger(ctx, logrus.NewEntry(l))
}

// wordUnpack tells bad bytes from a bad disk.
func wordUnpack(err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, ErrInvalid), errors.Is(err, errFetch):
		return err
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("unpack layer: no space left on device: %w", err)
	case errors.Is(err, unix.EPERM) && os.Geteuid() != 0:
		return fmt.Errorf("unpack layer (needs root): %w", err)
	case errors.Is(err, unix.EIO), errors.Is(err, unix.EROFS), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EPERM), errors.Is(err, unix.EMFILE):
		return fmt.Errorf("unpack layer: %w", err)
	}
	return fmt.Errorf("%w: unpack layer: %w", ErrInvalid, err)
}

// filter sees each entry before anything is made for it.
func (u *unpacker) filter(h *tar.Header) (bool, error) {
	u.entries++
	if u.entries > maxEntries {
		return false, fmt.Errorf("%w: layer has more than %d entries", ErrInvalid, maxEntries)
	}
	if h.Size < 0 || h.Size > u.max-u.bytes {
		return false, fmt.Errorf("%w: layer unpacks to more than %d bytes", ErrInvalid, u.max)
	}
	name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	base := path.Base(name)
	if strings.HasPrefix(base, whiteoutMeta) && base != whiteoutOpaque {
		return false, nil
	}
	if h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0 {
		return false, nil // overlayfs would take it for a whiteout; no container can open it anyway
	}
	if h.Typeflag == tar.TypeReg {
		u.bytes += h.Size
		u.disk += (h.Size + 4095) &^ 4095
	}
	if err := u.parents(name); err != nil {
		return false, err
	}
	if h.Typeflag == tar.TypeDir {
		u.disk += 4096
		u.known[name] = true
	}
	return true, nil
}

// parents notes the directories above name. One that this layer whited out before comes back, opaque.
func (u *unpacker) parents(name string) error {
	for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
		if _, ok := u.known[dir]; ok && len(u.whiteouts) == 0 {
			return nil
		}
		if _, ok := u.known[dir]; !ok {
			u.known[dir] = false
		}
		if p := filepath.Join(u.root, dir); u.whiteouts[p] {
			if err := u.revive(p); err != nil {
				return err
			}
			u.revived[dir] = true
		}
	}
	return nil
}

// revive makes a directory where this layer put a whiteout: the old one stays hidden.
func (u *unpacker) revive(p string) error {
	delete(u.whiteouts, p)
	if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Mkdir(p, 0o755); err != nil {
		return err
	}
	return setOpaque(p)
}

func setOpaque(dir string) error {
	if err := unix.Setxattr(dir, opaqueXattr, []byte{'y'}, 0); err != nil {
		return fmt.Errorf("mark directory opaque: %w", err)
	}
	return nil
}

// convert writes whiteouts as overlayfs reads them; it returns true for an entry that is to be extracted as it is.
func (u *unpacker) convert(h *tar.Header, p string) (bool, error) {
	dir, base := filepath.Split(p)
	if base == whiteoutOpaque {
		return false, setOpaque(filepath.Clean(dir))
	}
	if orig, ok := strings.CutPrefix(base, whiteoutPrefix); ok {
		if orig == "" || orig == "." || orig == ".." {
			return false, fmt.Errorf("%w: whiteout %q", ErrInvalid, h.Name)
		}
		return false, u.whiteout(filepath.Join(dir, orig), h)
	}
	if u.whiteouts[p] {
		if h.Typeflag == tar.TypeDir {
			return true, u.revive(p)
		}
		delete(u.whiteouts, p)
	}
	return true, nil
}

// whiteout hides what lower layers have at p. It never touches what this layer brought itself (OCI: whiteouts apply to lower layers).
func (u *unpacker) whiteout(p string, h *tar.Header) error {
	fi, err := os.Lstat(p)
	switch {
	case err == nil && fi.IsDir():
		return setOpaque(p)
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := unix.Mknod(p, unix.S_IFCHR, 0); err != nil {
		return fmt.Errorf("make whiteout: %w", err)
	}
	u.whiteouts[p] = true
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Lchown(p, h.Uid, h.Gid)
}
