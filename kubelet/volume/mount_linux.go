// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// prepareMounts makes the kubelet's directory a shared mount point and mounts the tmpfs for secrets. It is idempotent.
func (m *Manager) prepareMounts() error {
	dir, err := filepath.EvalSymlinks(m.dir)
	if err != nil {
		return fmt.Errorf("resolve %s: %w", m.dir, err)
	}
	mounts, err := mountPoints()
	if err != nil {
		return err
	}
	if !slices.Contains(mounts, dir) {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind mount %s on itself: %w", dir, err)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share mounts of %s: %w", dir, err)
	}
	secrets, err := filepath.EvalSymlinks(m.secrets())
	if err != nil {
		return fmt.Errorf("resolve %s: %w", m.secrets(), err)
	}
	size := fmt.Sprintf("size=%d", max(minMemory, m.memory/memoryShare))
	if !slices.Contains(mounts, secrets) {
		return mountTmpfs(secrets, "mode=0750,"+size)
	}
	if err := unix.Mount("", secrets, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, size); err != nil {
		// it has more files than that
		m.log.Warn("size of the file system for secrets not changed", "path", secrets, "err", err)
	}
	return nil
}

func mountTmpfs(path, options string) error {
	if err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", path, err)
	}
	return nil
}

// mountPoints returns this process's mount points, parents before children.
func mountPoints() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return parseMountInfo(string(b)), nil
}

func parseMountInfo(s string) []string {
	var out []string
	for line := range strings.Lines(s) {
		f := strings.Fields(line)
		if len(f) > 4 {
			out = append(out, unescape(f[4]))
		}
	}
	return out
}

// unescape decodes the kernel's \040 (blank), \011 (tab), \012 (newline) and \134 (backslash).
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// unmountBelow unmounts everything at or below dir, the deepest first.
func unmountBelow(dir string) error {
	resolved, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("resolve %s: %w", dir, err)
	}
	mounts, err := mountPoints()
	if err != nil {
		return err
	}
	for _, mp := range slices.Backward(mounts) {
		if mp != resolved && !strings.HasPrefix(mp, resolved+"/") {
			continue
		}
		if err := unix.Unmount(mp, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) &&
			!errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", mp, err)
		}
	}
	return nil
}

// Purge unmounts everything at or below the kubelet's directory: what Prepare and SetUp mounted. Files stay.
func Purge(dir string) error { return unmountBelow(dir) }

// bindFD bind-mounts the file of fd on path, which must exist.
func bindFD(fd int, path string) error {
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind mount on %s: %w", path, err)
	}
	return nil
}

// resolvedPath returns the name of a directory in the mount table.
func resolvedPath(dir string) (string, error) { return filepath.EvalSymlinks(dir) }

// pathOfFile returns the path of an open file.
func pathOfFile(f *os.File) (string, error) {
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}
