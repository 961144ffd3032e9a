// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// KillCgroup kills every process in the cgroup path and below it, frozen ones too, and returns those that were there. They may not have
// ended yet; new ones may have been forked while it went through the list, where the kernel has no cgroup.kill.
func KillCgroup(mode CgroupMode, path string) ([]int, error) {
	dirs, err := CgroupDirs(mode, path)
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		if mode == CgroupV2 {
			_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) // before Linux 5.14 the list below has to do
			continue
		}
		thaw(dir)
	}
	pids, err := CgroupProcs(mode, path)
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL) // gone already is what we want
	}
	return pids, err
}

// thaw lets frozen processes of a version 1 hierarchy run again: they cannot die otherwise.
func thaw(dir string) {
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "freezer.state" {
			_ = os.WriteFile(p, []byte("THAWED"), 0) // the cgroup may be gone
		}
		return nil // cgroups come and go
	})
}

// Describe names a process for people: "1234 (nginx, state D in nfs_wait)". Empty when it is gone.
func Describe(pid int) string {
	dir := "/proc/" + strconv.Itoa(pid)
	raw, err := os.ReadFile(dir + "/stat")
	open, end := bytes.IndexByte(raw, '('), bytes.LastIndexByte(raw, ')')
	if err != nil || open < 0 || end < open || len(raw) < end+3 {
		return ""
	}
	out := strconv.Itoa(pid) + " (" + string(raw[open+1:end]) + ", state " + string(raw[end+2:end+3])
	if where, err := os.ReadFile(dir + "/wchan"); err == nil && len(where) > 1 {
		out += " in " + string(where)
	}
	return out + ")"
}
