// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// features are the abilities of this kernel's overlayfs.
type features struct {
	index    bool // it has the option index
	volatile bool // it has the option volatile (Linux 5.10)
	page     int  // maximum size of mount(2)'s options
}

// OverlayfsError says that snapshots cannot lie in Dir.
type OverlayfsError struct{ Dir string }

func (e *OverlayfsError) Error() string {
	return fmt.Sprintf("%s lies on overlayfs, which cannot carry another overlay: choose a data directory on a "+
		"disk, a volume or a tmpfs", e.Dir)
}

// detect returns the features of overlayfs, or why it cannot work in dir.
func detect(dir string) (features, error) {
	f := features{page: os.Getpagesize() - 1}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return f, fmt.Errorf("statfs %s: %w", dir, err)
	}
	if st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return f, &OverlayfsError{dir}
	}
	b, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return f, fmt.Errorf("look for overlayfs: %w", err)
	}
	_, err = os.Stat("/sys/module/overlay/parameters/index")
	f.index = err == nil
	if !strings.Contains(string(b), "\toverlay\n") && !f.index && !moduleExists() {
		return f, errors.New("this kernel has no overlayfs (CONFIG_OVERLAY_FS), which container root file systems need")
	}
	f.volatile = kernelAtLeast(5, 10)
	return f, nil
}

// moduleExists reports whether the kernel can load overlayfs as a module, which the first mount does.
func moduleExists() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	m, err := filepath.Glob("/lib/modules/" + unix.ByteSliceToString(u.Release[:]) + "/kernel/fs/overlayfs/overlay.ko*")
	return err == nil && len(m) > 0
}

func kernelAtLeast(major, minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	parts := strings.SplitN(unix.ByteSliceToString(u.Release[:]), ".", 3)
	if len(parts) < 2 {
		return false
	}
	a, err1 := strconv.Atoi(parts[0])
	b, err2 := strconv.Atoi(strings.TrimRightFunc(parts[1], func(r rune) bool { return r < '0' || r > '9' }))
	return err1 == nil && err2 == nil && (a > major || a == major && b >= minor)
}

// overlay describes one overlay mount. lower is in overlayfs' order, uppermost first.
type overlay struct {
	target, upper, work string
	lower               []string
	flags               []string // "volatile", "index=off"
}

// overlay returns the mount of a snapshot on the layers with these chain ids.
func (s *Store) overlay(id string, chains []string) overlay {
	dir := filepath.Join(s.dir, id)
	o := overlay{target: s.Path(id), upper: filepath.Join(dir, "upper"), work: filepath.Join(dir, "work")}
	for _, chain := range slices.Backward(chains) {
		o.lower = append(o.lower, s.images.LayerDir(chain))
	}
	if s.feat.index {
		o.flags = append(o.flags, "index=off")
	}
	if s.feat.volatile {
		o.flags = append(o.flags, "volatile")
	}
	if len(o.lower) == 0 { // an image without layers ("FROM scratch" with nothing in it)
		o.lower = []string{filepath.Join(dir, "empty")}
	}
	return o
}

func (s *Store) mount(id string, chains []string) error {
	o := s.overlay(id, chains)
	if len(chains) == 0 {
		if err := os.MkdirAll(o.lower[0], 0o755); err != nil {
			return err
		}
	}
	err := o.mount(s.feat.page)
	if err == nil {
		return nil
	}
	return fmt.Errorf("mount overlay on %s: %w", o.target, describeMountError(err, len(o.lower)))
}

func describeMountError(err error, layers int) error {
	switch {
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("this kernel has no overlayfs: %w", err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("not permitted (needs root): %w", err)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("the file system may not be usable as an upper layer, or %d layers are too many (the "+
			"kernel log says which): %w", layers, err)
	}
	return err
}

// mount uses mount(2) if the options fit in a page, else the mount API of Linux 6.7, which takes layers one by one,
// else mount(2) with short names for the layers.
func (o *overlay) mount(page int) error {
	opts := o.options(func(p string) string { return p })
	if len(opts) <= page {
		return unix.Mount("overlay", o.target, "overlay", 0, opts)
	}
	err := o.mountByFsconfig()
	if err == nil || !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
		return err
	}
	if second := o.mountByDescriptor(page); second != nil {
		return errors.Join(second, err)
	}
	return nil
}

// options returns the option string for mount(2). name translates each path.
func (o *overlay) options(name func(string) string) string {
	var out strings.Builder
	out.WriteString("lowerdir=")
	for i, l := range o.lower {
		if i > 0 {
			out.WriteByte(':')
		}
		out.WriteString(escape(name(l), `\:,`))
	}
	out.WriteString(",upperdir=" + escape(name(o.upper), `\,`))
	out.WriteString(",workdir=" + escape(name(o.work), `\,`))
	for _, f := range o.flags {
		out.WriteString("," + f)
	}
	return out.String()
}

func escape(p, special string) string {
	if !strings.ContainsAny(p, special) {
		return p
	}
	var b strings.Builder
	for _, r := range p {
		if strings.ContainsRune(special, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// mountByFsconfig passes the layers one by one. Their number is limited by the kernel (500), not by the size of a page.
func (o *overlay) mountByFsconfig() error {
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fsopen: %w", err)
	}
	defer func() { _ = unix.Close(fs) }()
	set := func(key, value string) {
		if err == nil {
			if err = unix.FsconfigSetString(fs, key, value); err != nil {
				err = fmt.Errorf("fsconfig %s: %w", key, err)
			}
		}
	}
	set("source", "overlay")
	for _, l := range o.lower {
		set("lowerdir+", l)
	}
	set("upperdir", escape(o.upper, `\`))
	set("workdir", escape(o.work, `\`))
	for _, f := range o.flags {
		if k, v, ok := strings.Cut(f, "="); ok {
			set(k, v)
		} else if err == nil {
			err = unix.FsconfigSetFlag(fs, f)
		}
	}
	if err != nil {
		return err
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return fmt.Errorf("fsconfig create: %w", err)
	}
	m, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("fsmount: %w", err)
	}
	defer func() { _ = unix.Close(m) }()
	if err := unix.MoveMount(m, "", unix.AT_FDCWD, o.target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// mountByDescriptor passes each directory as /proc/self/fd/N. So the options of some 200 layers fit in a page.
func (o *overlay) mountByDescriptor(page int) (err error) {
	var fds []int
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	opts := o.options(func(p string) string {
		fd, e := unix.Open(p, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if e != nil {
			err = errors.Join(err, fmt.Errorf("open %s: %w", p, e))
			return p
		}
		fds = append(fds, fd)
		return "/proc/self/fd/" + strconv.Itoa(fd)
	})
	if err != nil {
		return err
	}
	if len(opts) > page {
		return fmt.Errorf("%d layers need %d bytes of mount options, this kernel takes %d", len(o.lower), len(opts),
			page)
	}
	return unix.Mount("overlay", o.target, "overlay", 0, opts)
}

func isOverlay(dir string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, fmt.Errorf("statfs %s: %w", dir, err)
	}
	return st.Type == unix.OVERLAYFS_SUPER_MAGIC, nil
}
