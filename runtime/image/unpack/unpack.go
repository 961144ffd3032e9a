// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"keelson/lib/inroot"
	"keelson/runtime/image/manifest"
)

const (
	whiteoutPrefix = ".wh."
	whiteoutMeta   = ".wh..wh."     // internal files of aufs, which are skipped
	whiteoutOpaque = ".wh..wh..opq" // hides what lower layers have in this directory
	opaqueXattr    = "trusted.overlay.opaque"

	// Limits for one layer. archive/tar limits the records of a header to 1 MiB.
	maxEntries     = 4 << 20
	maxDirectories = 1 << 18 // each takes hundreds of bytes of memory
	maxXattrs      = 256
	maxSteps       = 100 << 20 // path elements, including those of links
	// A layer that unpacks to more than freeRatio bytes must not unpack to more than maxRatio times its compressed
	// size.
	freeRatio = 4 << 30
	maxRatio  = 200
)

// Unpacked is a layer that was Unpacked.
type Unpacked struct {
	DiffID string
	Disk   int64 // bytes on disk, in blocks of 4 KiB
	Inodes int64
	tree   *directory
}

// Inherit completes the directories of the layer in root that have no entry in it (see directory.inherit). below are
// the directories of the layers below, lowest first.
func (u *Unpacked) Inherit(root string, below []string) (err error) {
	dir, err := inroot.Open(root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	lower := make([]*inroot.Dir, 0, len(below))
	defer func() {
		for _, layer := range lower {
			err = errors.Join(err, layer.Close())
		}
	}()
	for _, path := range slices.Backward(below) {
		layer, err := inroot.Open(path)
		if err != nil {
			return err
		}
		lower = append(lower, layer)
	}
	return u.tree.inherit(dir, "", lower)
}

// Limits bound what a layer may be.
type Limits struct {
	Bytes   int64    // of content
	Space   *Space   // may be nil
	Windows *Windows // may be nil
}

// unpacker makes a lower directory for overlayfs from the entries of a layer's tar. Every path is resolved by dir, so
// that no name and no link in a layer leads out of it. Owners are set only as root.
type unpacker struct {
	limits   Limits
	dir      *inroot.Dir
	cancel   func() error
	bytes    int64 // of content, by the headers
	disk     int64
	entries  int64
	tree     *directory
	made     int // directories made, including removed ones
	steps    int
	asRoot   bool
	parent   *inroot.Dir // of the previous entry, open
	parentAt string
}

// Layer extracts the tar (plain, gzip, zstd) in r below root and reads r to its end.
func Layer(ctx context.Context, root string, r io.Reader, lim Limits) (out Unpacked, err error) {
	in := &counter{r: r}
	plain, err := Decompress(ctx, in, lim.Windows)
	if err != nil {
		return Unpacked{}, err
	}
	defer func() { _ = plain.Close() }()
	dir, err := inroot.Open(root)
	if err != nil {
		return Unpacked{}, fmt.Errorf("unpack layer: %w", err)
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	sum := sha256.New()
	u := &unpacker{
		limits: lim,
		dir:    dir,
		cancel: ctx.Err,
		tree:   &directory{explicit: true},
		asRoot: os.Geteuid() == 0,
	}
	tee := io.TeeReader(&bounded{r: plain, in: in, max: 2*lim.Bytes + 64<<20}, sum)
	if err := u.extract(tar.NewReader(tee)); err != nil {
		return Unpacked{}, describeUnpackError(err)
	}
	// Bytes after the end of the tar are part of the digest. They are padding, so their number is limited.
	n, err := io.Copy(io.Discard, io.LimitReader(tee, 64<<20))
	if err != nil {
		return Unpacked{}, describeUnpackError(err)
	}
	if n == 64<<20 {
		return Unpacked{}, fmt.Errorf("%w: more than 64 MiB after the end of the layer's tar", manifest.ErrInvalid)
	}
	return Unpacked{
		DiffID: "sha256:" + hex.EncodeToString(sum.Sum(nil)),
		Disk:   u.disk,
		Inodes: u.entries,
		tree:   u.tree,
	}, nil
}

// counter counts the compressed bytes.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// bounded fails for a layer that decompresses to too many bytes.
type bounded struct {
	r      io.Reader
	in     *counter
	n, max int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.n += int64(n); b.n > b.max {
		return 0, fmt.Errorf("%w: layer decompresses to more than %d bytes", manifest.ErrInvalid, b.max)
	}
	if b.n > freeRatio && b.n/maxRatio > b.in.n {
		return 0, fmt.Errorf("%w: layer decompresses to more than %d times its size", manifest.ErrInvalid, maxRatio)
	}
	return n, err
}

// describeUnpackError distinguishes errors in the layer's content from errors of the disk.
func describeUnpackError(err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err,
		manifest.ErrInvalid),
		errors.Is(err, ErrFetch),
		errors.Is(err, ErrNoSpace):
		return err
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("unpack layer: no space left on device: %w", err)
	case errors.Is(err, unix.EPERM) && os.Geteuid() != 0:
		return fmt.Errorf("unpack layer (needs root): %w", err)
	case errors.Is(err, unix.EIO), errors.Is(err, unix.EROFS), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EPERM),
		errors.Is(err, unix.EMFILE),
		errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("unpack layer: %w", err)
	}
	return fmt.Errorf("%w: unpack layer: %w", manifest.ErrInvalid, err)
}

func (u *unpacker) extract(tr *tar.Reader) error {
	defer u.forgetParent()
	for {
		if err := u.cancel(); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return u.tree.setTimes(u.dir, "")
		}
		if err != nil {
			return err
		}
		if err := u.entry(h, tr); err != nil {
			return fmt.Errorf("%.300q: %w", h.Name, err)
		}
	}
}

// entry extracts one entry of the tar.
func (u *unpacker) entry(header *tar.Header, content io.Reader) error {
	name := strings.TrimPrefix(path.Clean("/"+header.Name), "/")
	if wanted, err := u.checkEntry(header, name); !wanted || err != nil {
		return err
	}
	parent, err := u.directory(path.Dir(name), true)
	if err != nil {
		return err
	}
	if u.parent == nil || u.parentAt != parent.path {
		u.forgetParent()
		if u.parent, err = u.dir.OpenDir(parent.path); err != nil {
			return err
		}
		u.parentAt = parent.path
	}
	base := path.Base(name)
	if base == whiteoutOpaque {
		return setOpaque(u.parent, ".")
	}
	if orig, ok := strings.CutPrefix(base, whiteoutPrefix); ok {
		if orig == "" || orig == "." || orig == ".." {
			return fmt.Errorf("%w: whiteout %q", manifest.ErrInvalid, header.Name)
		}
		return u.whiteout(orig, header)
	}
	return u.create(place{node: parent.node, path: path.Join(parent.path, base), base: base}, header, content)
}

// checkEntry checks the limits before an entry is extracted. It returns false for an entry that is skipped.
func (u *unpacker) checkEntry(header *tar.Header, name string) (bool, error) {
	u.entries++
	if u.entries > maxEntries {
		return false, fmt.Errorf("%w: layer has more than %d entries", manifest.ErrInvalid, maxEntries)
	}
	if header.Size < 0 || header.Size > u.limits.Bytes-u.bytes {
		return false, fmt.Errorf("%w: layer unpacks to more than %d bytes", manifest.ErrInvalid, u.limits.Bytes)
	}
	if len(name) >= unix.PathMax {
		return false, fmt.Errorf("%w: path of %d bytes", manifest.ErrInvalid, len(name))
	}
	base := path.Base(name)
	switch {
	case name == "", header.Typeflag == tar.TypeXGlobalHeader:
		return false, nil // the layer does not set the root's attributes
	case strings.HasPrefix(base, whiteoutMeta) && base != whiteoutOpaque:
		return false, nil
	case header.Typeflag == tar.TypeChar && header.Devmajor == 0 && header.Devminor == 0:
		return false, nil // a device 0:0 is a whiteout for overlayfs
	}
	if header.Size > 0 || u.entries%32 == 0 {
		if err := u.limits.Space.Check(header.Size); err != nil {
			return false, err
		}
	}
	u.bytes += header.Size
	u.disk += (header.Size + 4095) &^ 4095
	return true, nil
}

// forgetParent closes the directory of the previous entry, which may have been replaced.
func (u *unpacker) forgetParent() {
	if u.parent != nil {
		_ = u.parent.Close() // O_PATH
		u.parent = nil
	}
}

func setOpaque(d *inroot.Dir, p string) error {
	if err := d.Setxattr(p, opaqueXattr, []byte{'y'}); err != nil {
		return fmt.Errorf("mark directory opaque: %w", err)
	}
	return nil
}

func isWhiteoutInfo(i *inroot.Info) bool { return i.Type() == unix.S_IFCHR && i.Rdev == 0 }

// whiteout hides the lower layers' file of a name in the current directory. It does not remove a file of this layer
// (OCI: whiteouts apply to lower layers only).
func (u *unpacker) whiteout(base string, header *tar.Header) error {
	i, err := u.parent.Lstat(base)
	switch {
	case err == nil && i.IsDir():
		return setOpaque(u.parent, base)
	case err == nil:
		return nil
	case !errors.Is(err, unix.ENOENT):
		return err
	}
	if err := u.parent.Mknod(base, unix.S_IFCHR, 0); err != nil {
		return fmt.Errorf("make whiteout: %w", err)
	}
	return u.chown(u.parent, base, header)
}

func (u *unpacker) chown(d *inroot.Dir, base string, h *tar.Header) error {
	if !u.asRoot {
		return nil
	}
	return d.Lchown(base, h.Uid, h.Gid)
}
