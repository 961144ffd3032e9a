// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"keelson/runtime/image/manifest"
)

const (
	xattrRecord = "SCHILY.xattr."
	// stride is the number of bytes between two checks of the free space.
	stride = 16 << 20
)

func asRoot() bool { return os.Geteuid() == 0 }

// create makes the file, link or directory of an entry. It replaces an existing one, except a directory by a directory.
func (u *unpacker) create(p place, header *tar.Header, content io.Reader) error {
	i, err := u.parent.Lstat(p.base)
	switch {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		return err
	case isWhiteoutInfo(&i) && header.Typeflag == tar.TypeDir:
		if _, err := u.replaceWhiteout(u.parent, p.base, p.node, p.base); err != nil {
			return err
		}
	case i.IsDir() && header.Typeflag == tar.TypeDir:
	default:
		delete(p.node.below, p.base)
		if err := u.parent.RemoveAll(p.base); err != nil {
			return err
		}
	}
	switch header.Typeflag {
	case tar.TypeDir:
		return u.createDir(p, header)
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		err = u.createFile(p.base, header, content)
	case tar.TypeSymlink:
		err = u.parent.Symlink(header.Linkname, p.base)
	case tar.TypeLink:
		err = u.createLink(p, header)
	case tar.TypeChar:
		// as the layer says
		err = u.parent.Mknod(p.base, unix.S_IFCHR|0o600, unix.Mkdev(uint32(header.Devmajor), uint32(header.Devminor)))
	case tar.TypeBlock:
		// as the layer says
		err = u.parent.Mknod(p.base, unix.S_IFBLK|0o600, unix.Mkdev(uint32(header.Devmajor), uint32(header.Devminor)))
	case tar.TypeFifo:
		err = u.parent.Mknod(p.base, unix.S_IFIFO|0o600, 0)
	default:
		return fmt.Errorf("%w: entry of unknown type %q", manifest.ErrInvalid, header.Typeflag)
	}
	if err != nil {
		return err
	}
	if err := u.attributes(p.base, header); err != nil {
		return err
	}
	accessed, modified := times(header)
	return u.parent.Utimes(p.base, accessed, modified)
}

func (u *unpacker) createDir(p place, h *tar.Header) error {
	n := p.node.below[p.base]
	if n == nil {
		var err error
		if n, err = u.mkdir(u.parent, p.base, p.node, p.base); err != nil {
			return err
		}
	}
	n.explicit = true
	n.accessed, n.modified = times(h)
	return u.attributes(p.base, h)
}

func (u *unpacker) createFile(base string, h *tar.Header, content io.Reader) error {
	file, err := u.parent.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	for left := h.Size; left > 0 && err == nil; {
		n := min(left, stride)
		if left != h.Size {
			if err = errors.Join(u.cancel(), u.limits.Space.Check(n)); err != nil {
				break
			}
		}
		_, err = io.CopyN(file, content, n)
		left -= n
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return errors.Join(err, file.Close())
}

// createLink makes a hard link to a file of this layer.
func (u *unpacker) createLink(p place, h *tar.Header) error {
	old := strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")
	if old == "" || len(old) >= unix.PathMax {
		return fmt.Errorf("%w: hard link to %.300q", manifest.ErrInvalid, h.Linkname)
	}
	dir, err := u.directory(path.Dir(old), false)
	if err != nil {
		return fmt.Errorf("hard link to %.300q: %w", h.Linkname, err)
	}
	return u.dir.Link(path.Join(dir.path, path.Base(old)), p.path)
}

// attributes sets owner, extended attributes and mode, in this order: chown clears set-user-id bits and file
// capabilities.
func (u *unpacker) attributes(base string, header *tar.Header) error {
	if err := u.chown(u.parent, base, header); err != nil {
		return err
	}
	n := 0
	for key, value := range header.PAXRecords {
		name, ok := strings.CutPrefix(key, xattrRecord)
		if !ok || !layerXattr(name) {
			continue
		}
		if n++; n > maxXattrs {
			return fmt.Errorf("%w: more than %d extended attributes", manifest.ErrInvalid, maxXattrs)
		}
		err := u.parent.Setxattr(base, name, []byte(value))
		if err != nil && !errors.Is(err, unix.ENOTSUP) &&
			(!errors.Is(err, unix.EPERM) || !strings.HasPrefix(name, "user.")) {
			return err // user.* is for files and directories: the kernel says EPERM for others
		}
	}
	if header.Typeflag == tar.TypeSymlink {
		return nil
	}
	err := u.parent.Chmod(base, uint32(header.Mode)&0o7777) // masked
	if errors.Is(err, unix.ELOOP) && header.Typeflag == tar.TypeLink {
		return nil // a hard link to a symbolic link
	}
	return err
}

// layerXattr reports whether a layer may set an extended attribute. trusted.* controls overlayfs, and security labels
// belong to the node.
func layerXattr(name string) bool {
	if strings.HasPrefix(name, "security.") {
		return name == "security.capability"
	}
	return strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "system.posix_acl_")
}

// times returns the entry's times. Without an access time that is the modification time.
func times(h *tar.Header) (accessed, modified time.Time) {
	modified = h.ModTime
	if modified.IsZero() {
		modified = time.Unix(0, 0)
	}
	accessed = h.AccessTime
	if accessed.Before(modified) {
		accessed = modified
	}
	return accessed, modified
}
