// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CgroupDirs returns the directories of the cgroup path ("/a/b") in all hierarchies, whether they exist or not.
func CgroupDirs(mode CgroupMode, path string) ([]string, error) {
	if mode == CgroupV2 {
		return []string{filepath.Join(CgroupRoot, path)}, nil
	}
	roots, err := hierarchies(CgroupRoot)
	if err != nil {
		return nil, fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	for i, root := range roots {
		roots[i] = filepath.Join(root, path)
	}
	return roots, nil
}

// hierarchies are the directories of root where a hierarchy is mounted. A plain directory, such as one for a controller
// that another namespace has mounted, would take files and limit nothing.
func hierarchies(root string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if !e.IsDir() { // "cpu" may be a link to "cpu,cpuacct"
			continue
		}
		dir := filepath.Join(root, e.Name())
		var mounted unix.Statfs_t
		if err := unix.Statfs(dir, &mounted); err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		if mounted.Type == unix.CGROUP_SUPER_MAGIC || mounted.Type == unix.CGROUP2_SUPER_MAGIC {
			out = append(out, dir)
		}
	}
	return out, nil
}

// JoinCgroup makes the cgroup path in every hierarchy and moves a process there.
func JoinCgroup(mode CgroupMode, path string, pid int) error {
	dirs, err := CgroupDirs(mode, path)
	if err != nil {
		return err
	}
	for _, d := range dirs {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
		if filepath.Dir(d) != CgroupRoot && strings.HasPrefix(d, filepath.Join(CgroupRoot, "cpuset")+"/") {
			if err := inheritCpuset(d); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(d, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	return nil
}

// inheritCpuset copies CPUs and memory nodes to a version 1 cpuset, and its ancestors, from their parents: new cpusets
// have none.
func inheritCpuset(dir string) error {
	root := filepath.Join(CgroupRoot, "cpuset")
	if dir == root {
		return nil
	}
	if err := inheritCpuset(filepath.Dir(dir)); err != nil {
		return err
	}
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		have, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil && strings.TrimSpace(string(have)) == "" {
			have, err = os.ReadFile(filepath.Join(filepath.Dir(dir), name))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), have, 0)
			}
		}
		if err != nil {
			return fmt.Errorf("inherit cpuset: %w", err)
		}
	}
	return nil
}

// RemoveCgroup removes the cgroup path with everything below it in all hierarchies. Its processes must have ended;
// RemoveCgroup waits for the moment that the kernel takes to release them. A missing cgroup is not an error.
func RemoveCgroup(mode CgroupMode, path string) error {
	if path == "" || path == "/" || path == "." {
		return errors.New("remove cgroup: refusing to remove the root")
	}
	dirs, err := CgroupDirs(mode, path)
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range dirs {
		errs = append(errs, removeTree(d))
	}
	return errors.Join(errs...)
}

func removeTree(dir string) error {
	var all []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && d.IsDir() {
			all = append(all, p)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list cgroup: %w", err)
	}
	for _, a := range slices.Backward(all) {
		if err := removeBusy(a); err != nil {
			return fmt.Errorf("remove cgroup: %w", err)
		}
	}
	return nil
}

func removeBusy(dir string) error {
	for wait := time.Millisecond; ; wait *= 2 {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || wait > 500*time.Millisecond {
			return &os.PathError{Op: "rmdir", Path: dir, Err: err}
		}
		time.Sleep(wait)
	}
}

// CgroupProcs returns the processes in the cgroup path and below it, in any hierarchy.
func CgroupProcs(mode CgroupMode, path string) ([]int, error) {
	dirs, err := CgroupDirs(mode, path)
	if err != nil {
		return nil, err
	}
	seen := map[int]bool{}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != "cgroup.procs" {
				return nil //nolint:nilerr // cgroups come and go
			}
			raw, _ := os.ReadFile(p) // a deleted cgroup has none
			for pid := range strings.FieldsSeq(string(raw)) {
				if n, err := strconv.Atoi(pid); err == nil {
					seen[n] = true
				}
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list cgroup processes: %w", err)
		}
	}
	out := make([]int, 0, len(seen))
	for pid := range seen {
		out = append(out, pid)
	}
	return out, nil
}
