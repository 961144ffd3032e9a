// SPDX-License-Identifier: Apache-2.0

package linux

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

// Mount is one line of a mountinfo file.
type Mount struct {
	Point  string
	Type   string
	Shared bool // it is in a shared peer group
	Slave  bool // it receives mounts from a peer group
}

// Mounts returns the mounts of this process's mount namespace, in the kernel's order.
func Mounts() ([]Mount, error) {
	raw, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	return ParseMounts(string(raw))
}

// ParseMounts parses a mountinfo file (proc_pid_mountinfo(5)).
func ParseMounts(info string) ([]Mount, error) {
	var out []Mount
	for line := range strings.Lines(info) {
		f := strings.Fields(line)
		sep := slices.Index(f, "-")
		if sep < 6 || len(f) < sep+2 {
			return nil, fmt.Errorf("read mounts: line %q has no separator where one belongs", line)
		}
		m := Mount{Point: unescape(f[4]), Type: f[sep+1]}
		for _, o := range f[6:sep] {
			m.Shared = m.Shared || strings.HasPrefix(o, "shared:")
			m.Slave = m.Slave || strings.HasPrefix(o, "master:")
		}
		out = append(out, m)
	}
	return out, nil
}

// unescape decodes octal escapes such as \040.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// MountOf returns the mount that a path is on. The path must have no symbolic links.
func MountOf(mounts []Mount, path string) (Mount, bool) {
	path = filepath.Clean(path)
	best := Mount{}
	found := false
	for _, m := range mounts {
		if (path == m.Point || m.Point == "/" || strings.HasPrefix(path, m.Point+"/")) &&
			len(m.Point) >= len(best.Point) {
			best = m
			found = true
		}
	}
	return best, found
}

// Unmount unmounts path, repeatedly if there are several mounts on it. A path that is not a mount point is not an
// error.
func Unmount(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return &os.PathError{Op: "unmount", Path: path, Err: err}
		}
	}
}

// IsNamespace reports whether a namespace is mounted at path.
func IsNamespace(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}
