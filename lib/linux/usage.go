// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// CgroupUsage is the resource usage of a cgroup and those below it.
type CgroupUsage struct {
	CPU             uint64 // CPU time in nanoseconds since the cgroup was made
	Memory          uint64 // bytes, with page cache
	WorkingSet      uint64 // bytes: Memory without inactive file pages
	RSS             uint64 // bytes of anonymous memory
	PageFaults      uint64
	MajorPageFaults uint64
	MemoryLimit     uint64 // bytes, 0 when unlimited
	Swap            uint64 // bytes
	Processes       uint64
	Pressures       Pressures // of version 2 alone
}

// ReadUsage reads the usage of the cgroup path. A missing cgroup is fs.ErrNotExist.
func ReadUsage(mode CgroupMode, path string) (CgroupUsage, error) {
	if mode == CgroupV2 {
		return readUsage2(filepath.Join(CgroupRoot, path))
	}
	return readUsage1(func(controller string) string { return filepath.Join(CgroupRoot, controller, path) })
}

func readUsage2(dir string) (CgroupUsage, error) {
	var cgroupUsage CgroupUsage
	cpu, err := readKeys(filepath.Join(dir, "cpu.stat"))
	if err != nil {
		return cgroupUsage, err
	}
	cgroupUsage.CPU = cpu["usage_usec"] * 1000
	if cgroupUsage.Memory, err = readNumber(filepath.Join(dir, "memory.current")); err != nil {
		return cgroupUsage, err
	}
	mem, err := readKeys(filepath.Join(dir, "memory.stat"))
	if err != nil {
		return cgroupUsage, err
	}
	cgroupUsage.RSS = mem["anon"]
	cgroupUsage.PageFaults = mem["pgfault"]
	cgroupUsage.MajorPageFaults = mem["pgmajfault"]
	cgroupUsage.WorkingSet = cgroupUsage.Memory - min(cgroupUsage.Memory, mem["inactive_file"])
	// Values of missing controllers are zero.
	cgroupUsage.MemoryLimit, _ = readNumber(filepath.Join(dir, "memory.max"))
	cgroupUsage.Swap, _ = readNumber(filepath.Join(dir, "memory.swap.current"))
	cgroupUsage.Processes, _ = readNumber(filepath.Join(dir, "pids.current"))
	cgroupUsage.Pressures = readPressures(dir, ".pressure")
	return cgroupUsage, nil
}

func readUsage1(dir func(controller string) string) (CgroupUsage, error) {
	var cgroupUsage CgroupUsage
	var err error
	if cgroupUsage.CPU, err = readNumber(filepath.Join(dir("cpuacct"), "cpuacct.usage")); err != nil {
		return cgroupUsage, err
	}
	m := dir("memory")
	if cgroupUsage.Memory, err = readNumber(filepath.Join(m, "memory.usage_in_bytes")); err != nil {
		return cgroupUsage, err
	}
	mem, err := readKeys(filepath.Join(m, "memory.stat"))
	if err != nil {
		return cgroupUsage, err
	}
	cgroupUsage.RSS = mem["total_rss"]
	cgroupUsage.PageFaults = mem["total_pgfault"]
	cgroupUsage.MajorPageFaults = mem["total_pgmajfault"]
	cgroupUsage.WorkingSet = cgroupUsage.Memory - min(cgroupUsage.Memory, mem["total_inactive_file"])
	cgroupUsage.Swap = mem["total_swap"]
	// Values of missing controllers are zero. Without a limit the value is the highest number of pages.
	if cgroupUsage.MemoryLimit, _ = readNumber(
		filepath.Join(m, "memory.limit_in_bytes")); cgroupUsage.MemoryLimit > math.MaxInt64-1<<20 {
		cgroupUsage.MemoryLimit = 0
	}
	cgroupUsage.Processes, _ = readNumber(filepath.Join(dir("pids"), "pids.current"))
	return cgroupUsage, nil
}

// readNumber reads a file with one number; "max" is 0.
func readNumber(path string) (uint64, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, gone(err)
	}
	s := strings.TrimSpace(string(raw))
	if s == "max" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return n, nil
}

// readKeys reads a file of lines "name number".
func readKeys(path string) (map[string]uint64, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, gone(err)
	}
	out := map[string]uint64{}
	for line := range strings.Lines(string(raw)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			out[name] = n
		}
	}
	return out, nil
}

// gone maps the error of a cgroup that was deleted while it was read to fs.ErrNotExist.
func gone(err error) error {
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%w (%w)", fs.ErrNotExist, err)
	}
	return err
}
