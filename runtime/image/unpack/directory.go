// SPDX-License-Identifier: Apache-2.0

package unpack

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"keelson/lib/inroot"
	"keelson/runtime/image/manifest"
)

// directory is one directory of the layer that is unpacked. Every directory on disk has one, so a name without one is
// not a directory.
type directory struct {
	below    map[string]*directory
	explicit bool // it has an entry in the tar
	opaque   bool // it replaced a whiteout, so it inherits nothing
	accessed time.Time
	modified time.Time
}

// place is the location of an entry: its directory node, its name base in there, and its path without symbolic links.
type place struct {
	node *directory
	path string
	base string
}

// maxFollow is the kernel's limit on symbolic links in a path.
const maxFollow = 40

// directory finds the directory dir of the layer; links are resolved within the layer. With create, missing directories
// are made.
func (u *unpacker) directory(dir string, create bool) (place, error) {
	at := []place{{node: u.tree}}
	todo := strings.Split(dir, "/")
	for links := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		if u.steps++; u.steps > maxSteps {
			return place{}, fmt.Errorf("%w: the paths of the layer have more than %d elements", manifest.ErrInvalid,
				maxSteps)
		}
		here := at[len(at)-1]
		switch name {
		case "", ".":
			continue
		case "..":
			at = at[:max(1, len(at)-1)]
			continue
		}
		next := place{path: path.Join(here.path, name)}
		if len(next.path) >= unix.PathMax {
			return place{}, fmt.Errorf("%w: path of %d bytes", manifest.ErrInvalid, len(next.path))
		}
		if next.node = here.node.below[name]; next.node == nil {
			target, err := u.step(&next, here, name, create)
			if err != nil {
				return place{}, err
			}
			if next.node == nil { // a link
				if links++; links > maxFollow {
					return place{}, unix.ELOOP
				}
				if strings.HasPrefix(target, "/") {
					at = at[:1]
				}
				todo = append(strings.Split(target, "/"), todo...)
				continue
			}
		}
		at = append(at, next)
	}
	return at[len(at)-1], nil
}

// step handles name in here, which is not a directory of the tree: for a symbolic link it returns the target, otherwise
// it makes the directory if create is set.
func (u *unpacker) step(next *place, here place, name string, create bool) (target string, err error) {
	i, err := u.dir.Lstat(next.path)
	switch {
	case errors.Is(err, unix.ENOENT) && create:
		next.node, err = u.mkdir(u.dir, next.path, here.node, name)
		return "", err
	case err != nil:
		return "", err
	case i.IsSymlink():
		return u.dir.Readlink(next.path)
	case isWhiteoutInfo(&i) && create:
		next.node, err = u.replaceWhiteout(u.dir, next.path, here.node, name)
		return "", err
	}
	return "", unix.ENOTDIR
}

// mkdir makes the directory p of dir, which is name in parent.
func (u *unpacker) mkdir(dir *inroot.Dir, p string, parent *directory, name string) (*directory, error) {
	if u.made++; u.made > maxDirectories {
		return nil, fmt.Errorf("%w: layer has more than %d directories", manifest.ErrInvalid, maxDirectories)
	}
	if u.made%32 == 0 {
		if err := u.limits.Space.Check(0); err != nil {
			return nil, err
		}
	}
	if err := dir.Mkdir(p, 0o755); err != nil {
		return nil, err
	}
	if err := dir.Chmod(p, 0o755); err != nil { // Mkdir applies the umask
		return nil, err
	}
	u.disk += 4096
	n := &directory{}
	if parent.below == nil {
		parent.below = map[string]*directory{}
	}
	parent.below[name] = n
	return n, nil
}

// replaceWhiteout makes an opaque directory in place of a whiteout of this layer: the lower layers' directory stays
// hidden.
func (u *unpacker) replaceWhiteout(d *inroot.Dir, p string, parent *directory, name string) (*directory, error) {
	if err := d.Remove(p); err != nil {
		return nil, err
	}
	n, err := u.mkdir(d, p, parent, name)
	if err != nil {
		return nil, err
	}
	n.opaque = true
	return n, setOpaque(d, p)
}

// setTimes sets the times of the directories that have an entry. It is called last, because making files changes them.
func (n *directory) setTimes(dir *inroot.Dir, at string) error {
	for name, b := range n.below {
		if err := b.setTimes(dir, path.Join(at, name)); err != nil {
			return err
		}
	}
	if n.modified.IsZero() {
		return nil
	}
	return dir.Utimes(at, n.accessed, n.modified)
}

// inherit copies owner, mode, times and attributes from the lower layers to directories without an entry in this layer:
// overlayfs shows those of the uppermost layer. lower are the lower layers that have this directory, uppermost first.
func (n *directory) inherit(dir *inroot.Dir, at string, lower []*inroot.Dir) error {
	if n.opaque || len(lower) == 0 {
		return nil
	}
	for name, b := range n.below { // children first: they change the times of their parent
		p := path.Join(at, name)
		under, err := withDirectory(lower, p)
		if err == nil {
			err = b.inherit(dir, p, under)
		}
		if err != nil {
			return err
		}
	}
	if n.explicit {
		return nil
	}
	return copyAttributes(dir, lower[0], at)
}

// withDirectory returns the layers of lower in which directory p is visible.
func withDirectory(lower []*inroot.Dir, p string) ([]*inroot.Dir, error) {
	var out []*inroot.Dir
	for _, dir := range lower {
		i, err := dir.Lstat(p)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !i.IsDir() {
			return out, nil // a file or whiteout hides the layers below
		}
		out = append(out, dir)
		opaque, err := dir.Getxattr(p, opaqueXattr)
		if err == nil && string(opaque) == "y" {
			return out, nil
		}
		if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) {
			return nil, err
		}
	}
	return out, nil
}

func copyAttributes(dst, from *inroot.Dir, p string) error {
	info, err := from.Lstat(p)
	if err != nil {
		return err
	}
	if asRoot() {
		if err := dst.Lchown(p, int(info.UID), int(info.GID)); err != nil {
			return err
		}
	}
	if err := dst.Chmod(p, info.Perm()); err != nil {
		return err
	}
	names, err := from.Listxattr(p)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, "trusted.") {
			continue
		}
		v, err := from.Getxattr(p, name)
		if err != nil {
			return err
		}
		if err := dst.Setxattr(p, name, v); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return err
		}
	}
	return dst.Utimes(p, info.Modified, info.Modified)
}
