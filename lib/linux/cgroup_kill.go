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

// KillCgroup kills every process in the cgroup path and below it, also frozen ones, and returns their pids. They may
// not have ended yet; without cgroup.kill in the kernel, new ones may have been forked meanwhile.
func KillCgroup(mode CgroupMode, path string) ([]int, error) {
	dirs, err := CgroupDirs(mode, path)
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		if mode == CgroupV2 {
			// it exists since Linux 5.14; the loop below works without it
			_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
			continue
		}
		thaw(dir)
	}
	pids, err := CgroupProcs(mode, path)
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
	}
	return pids, err
}

// thaw thaws a version 1 cgroup: frozen processes do not end.
func thaw(dir string) {
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "freezer.state" {
			_ = os.WriteFile(p, []byte("THAWED"), 0) // the cgroup may be gone
		}
		return nil // cgroups come and go
	})
}

// Describe describes a process for people: "1234 (nginx, state D in nfs_wait)". Empty if it does not exist.
func Describe(pid int) string {
	dir := "/proc/" + strconv.Itoa(pid)
	raw, err := os.ReadFile(dir + "/stat")
	open := bytes.IndexByte(raw, '(')
	end := bytes.LastIndexByte(raw, ')')
	if err != nil || open < 0 || end < open || len(raw) < end+3 {
		return ""
	}
	out := strconv.Itoa(pid) + " (" + string(raw[open+1:end]) + ", state " + string(raw[end+2:end+3])
	if where, err := os.ReadFile(dir + "/wchan"); err == nil && len(where) > 1 {
		out += " in " + string(where)
	}
	return out + ")"
}
