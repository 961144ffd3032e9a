// SPDX-License-Identifier: Apache-2.0

package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"keelson/runtime/image/manifest"
)

const indexVersion = 1

// index is images.json. It is immutable: update works on a copy.
type index struct {
	Version int      `json:"version"`
	Images  []*Image `json:"images"`

	stamp stamp
}

// stamp identifies a version of a file without reading it.
type stamp struct {
	ino   uint64
	size  int64
	mtime syscall.Timespec
}

func stampOf(fi fs.FileInfo) stamp {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{size: fi.Size()}
	}
	return stamp{ino: st.Ino, size: st.Size, mtime: st.Mtim}
}

// catalog is the index on disk, which other processes change too.
type catalog struct {
	file  string
	locks *locks
	last  atomic.Pointer[index] // last one read
}

// read returns the index on disk. It reads the file only when it has changed since the last call.
func (c *catalog) read() (*index, error) {
	fi, err := os.Stat(c.file)
	if errors.Is(err, fs.ErrNotExist) {
		return &index{Version: indexVersion}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read image index: %w", err)
	}
	if ix := c.last.Load(); ix != nil && ix.stamp == stampOf(fi) {
		return ix, nil
	}
	file, err := os.Open(c.file)
	if err != nil {
		return nil, fmt.Errorf("read image index: %w", err)
	}
	defer func() { _ = file.Close() }()
	if fi, err = file.Stat(); err != nil { // of the open file, which may be newer
		return nil, fmt.Errorf("read image index: %w", err)
	}
	ix := &index{}
	if err := json.NewDecoder(file).Decode(ix); err != nil {
		return nil, fmt.Errorf("read image index %s: %w", file.Name(), err)
	}
	if ix.Version != indexVersion {
		return nil, fmt.Errorf("read image index %s: version %d, this program knows %d", file.Name(), ix.Version,
			indexVersion)
	}
	for _, img := range ix.Images {
		if err := img.check(); err != nil {
			return nil, fmt.Errorf("read image index %s: %w", file.Name(), err)
		}
	}
	ix.stamp = stampOf(fi)
	c.last.Store(ix)
	return ix, nil
}

// check refuses digests that are not valid file names.
func (i *Image) check() error {
	if !manifest.IsDigest(i.ID) {
		return fmt.Errorf("image id %q is not a digest", i.ID)
	}
	for _, l := range i.Layers {
		if !manifest.IsDigest(l.ChainID) {
			return fmt.Errorf("image %s: layer %q is not a digest", i.ID, l.ChainID)
		}
	}
	return nil
}

// update changes the index under the writers' lock and syncs it to disk. After an error nothing has changed.
func (c *catalog) update(change func(*index) error) error {
	unlock, err := c.locks.lock(indexLock, unix.LOCK_EX)
	if err != nil {
		return fmt.Errorf("lock image index: %w", err)
	}
	defer unlock()
	old, err := c.read()
	if err != nil {
		return err
	}
	ix := old.clone()
	if err := change(ix); err != nil {
		return err
	}
	b, err := json.Marshal(ix)
	if err != nil {
		return fmt.Errorf("encode image index: %w", err)
	}
	return writeFileSync(c.file, b)
}

// name adds images to the index, all or none. pinned ones were imported: no registry may have them. A layer that is not
// there, which must not happen, is an error: the image would be here for good, and could not run.
func (c *catalog) name(plans []*manifest.Plan, pinned bool, layers *layers) ([]Image, error) {
	unlock, err := c.locks.lock(busyLock, unix.LOCK_SH)
	if err != nil {
		return nil, fmt.Errorf("lock image store: %w", err)
	}
	defer unlock()
	for _, p := range plans {
		for _, layer := range p.Layers {
			_, found, err := layers.at(layer.ChainID)
			if err != nil {
				return nil, err
			}
			if !found {
				return nil, fmt.Errorf("layer %s: %w: it was removed before its image had a name; try again",
					layer.ChainID, manifest.ErrNotFound)
			}
		}
	}
	ix, err := c.read()
	if err != nil {
		return nil, err
	}
	out := make([]Image, len(plans))
	known := true
	for i, p := range plans {
		have, ok := ix.find(p.ID)
		if known = known && ok && have.hasNames(imageOf(p, pinned)); known {
			out[i] = *have
		}
	}
	if known { // nothing changes, so nothing is written
		return out, nil
	}
	err = c.update(func(ix *index) error {
		at := make([]*Image, len(plans))
		for i, p := range plans {
			at[i] = ix.put(imageOf(p, pinned))
		}
		for i, img := range at { // after all names are added
			out[i] = *img
		}
		return nil
	})
	return out, err
}

// imageOf returns the image of a plan whose layers are on disk.
func imageOf(p *manifest.Plan, pinned bool) *Image {
	return &Image{
		ID:          p.ID,
		RepoTags:    p.Tags,
		RepoDigests: p.Digests,
		Size:        p.Size,
		Created:     p.Config.Created,
		Config:      p.Config.Kept(),
		Layers:      p.Layers,
		Pinned:      pinned,
	}
}

// named reports whether n is one of the image's names.
func (i *Image) named(n manifest.Name) bool {
	if n.Digest != "" {
		return slices.Contains(i.RepoDigests, n.String())
	}
	return slices.Contains(i.RepoTags, n.String())
}

// hasNames reports whether i has all that o would add to it.
func (i *Image) hasNames(o *Image) bool {
	if i.Pinned && !o.Pinned {
		return false
	}
	for _, t := range o.RepoTags {
		if !slices.Contains(i.RepoTags, t) {
			return false
		}
	}
	for _, d := range o.RepoDigests {
		if !slices.Contains(i.RepoDigests, d) {
			return false
		}
	}
	return true
}

func (ix *index) clone() *index {
	out := &index{Version: indexVersion, Images: make([]*Image, len(ix.Images))}
	for i, img := range ix.Images {
		out.Images[i] = img.clone()
	}
	return out
}

// clone returns a copy whose names can be changed.
func (i *Image) clone() *Image {
	out := *i
	out.RepoTags = slices.Clone(i.RepoTags)
	out.RepoDigests = slices.Clone(i.RepoDigests)
	return &out
}

// put adds img, or adds its names to the existing image. A tag moves from the image that had it.
func (ix *index) put(img *Image) *Image {
	var at *Image
	for _, have := range ix.Images {
		if have.ID == img.ID {
			at = have
			continue
		}
		have.RepoTags = slices.DeleteFunc(have.RepoTags, func(t string) bool {
			return slices.Contains(img.RepoTags, t)
		})
	}
	if at == nil {
		at = img.clone()
		ix.Images = append(ix.Images, at)
	}
	at.Pinned = at.Pinned && img.Pinned // what a registry has can be pulled again
	at.RepoTags = manifest.Union(at.RepoTags, img.RepoTags)
	at.RepoDigests = manifest.Union(at.RepoDigests, img.RepoDigests)
	return at
}

// find looks up ref as id, name and id prefix, in this order.
func (ix *index) find(ref string) (*Image, bool) {
	if manifest.IsDigest(ref) {
		for _, img := range ix.Images {
			if img.ID == ref {
				return img, true
			}
		}
		return nil, false
	}
	if n, err := manifest.ParseName(ref); err == nil {
		for _, img := range ix.Images {
			if img.named(n) {
				return img, true
			}
		}
	}
	return ix.findPrefix(ref)
}

func (ix *index) findPrefix(ref string) (*Image, bool) {
	if !looksLikeID(ref) {
		return nil, false
	}
	p := manifest.HexOf(ref)
	var found *Image
	for _, img := range ix.Images {
		if strings.HasPrefix(manifest.HexOf(img.ID), p) {
			if found != nil {
				return nil, false
			}
			found = img
		}
	}
	return found, found != nil
}

// remove removes a name or an image; it reports whether there was one.
func (ix *index) remove(ref string) bool {
	img, ok := ix.find(ref)
	if !ok {
		return false
	}
	if n, err := manifest.ParseName(ref); err == nil && !manifest.IsDigest(ref) && img.named(n) {
		drop := func(name string) bool { return name == n.String() }
		img.RepoTags = slices.DeleteFunc(img.RepoTags, drop)
		if n.Digest != "" || len(img.RepoTags) == 0 {
			// The digests of a repository are removed with its last tag.
			img.RepoDigests = slices.DeleteFunc(img.RepoDigests, func(d string) bool {
				return drop(d) || n.Digest == "" && strings.HasPrefix(d, n.Repo+"@")
			})
		}
		if len(img.RepoTags)+len(img.RepoDigests) > 0 {
			return true
		}
	}
	ix.Images = slices.DeleteFunc(ix.Images, func(i *Image) bool { return i.ID == img.ID })
	return true
}

// writeFileSync replaces the content of path by b atomically and durably.
func writeFileSync(path string, b []byte) error {
	if err := replaceBy(path, b, (*os.File).Sync); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// replaceFile replaces the content of path by b atomically, but not durably: after a power cut the file may be empty or
// missing.
func replaceFile(path string, b []byte) error {
	return replaceBy(path, b, func(*os.File) error { return nil })
}

func replaceBy(path string, b []byte, sync func(*os.File) error) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	_, err = file.Write(b)
	if err == nil {
		err = sync(file)
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
