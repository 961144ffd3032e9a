// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"math"
	"os"
	"path/filepath"
	"strings"
)

// OwnMemory returns how much of a machine's memory this process may use: the lowest limit of its cgroup and those above
// it, at most machine. What cannot be read is no limit.
func OwnMemory(machine int64) int64 {
	mode, err := detectCgroups(CgroupRoot)
	if err != nil {
		return machine
	}
	raw, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return machine
	}
	dir := filepath.Join(CgroupRoot, "memory")
	name := "memory.limit_in_bytes"
	if mode == CgroupV2 {
		dir = CgroupRoot
		name = "memory.max"
	}
	for path := memoryCgroup(string(raw), mode); ; path = filepath.Dir(path) {
		limit, err := readNumber(filepath.Join(dir, path, name))
		if err == nil && limit > 0 && limit < math.MaxInt64 {
			machine = min(machine, int64(limit))
		}
		if path == "/" || path == "." {
			return machine
		}
	}
}

// memoryCgroup finds the path of the memory controller's cgroup in the text of /proc/self/cgroup.
func memoryCgroup(text string, mode CgroupMode) string {
	for line := range strings.Lines(text) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		if mode == CgroupV2 && controllers == "" || mode != CgroupV2 && controllers == "memory" {
			return filepath.Clean("/" + path)
		}
	}
	return "/"
}
