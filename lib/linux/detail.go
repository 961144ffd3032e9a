// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// CgroupDetail holds metrics of a cgroup beyond CgroupUsage. Values that the kernel does not provide are zero.
type CgroupDetail struct {
	CPUUser, CPUSystem                  uint64 // nanoseconds
	Periods, Throttled, ThrottledTime   uint64 // of the quota; the time in nanoseconds
	Cache, Mapped, Kernel, MaxMemory    uint64 // bytes
	MemoryFailures, OOMKills            uint64 // how often the limit was hit, and how often a process was killed for it
	Processes, Threads, ThreadsMax      uint64 // ThreadsMax 0: unlimited
	Files, Sockets                      uint64 // open descriptors of all processes, and how many of them are sockets
	Reads, Writes, BytesRead, BytesWrit uint64 // of all block devices
}

// tick is the unit of cpuacct.stat: USER_HZ is 100 on all current architectures.
const tick = 10_000_000 // nanoseconds

// ReadDetail reads the details of the cgroup path. A missing cgroup is fs.ErrNotExist.
func ReadDetail(mode CgroupMode, path string) (CgroupDetail, error) {
	var cgroupDetail CgroupDetail
	dir := func(controller string) string { return filepath.Join(CgroupRoot, controller, path) }
	if mode == CgroupV2 {
		dir = func(string) string { return filepath.Join(CgroupRoot, path) }
	}
	if _, err := os.Stat(dir("memory")); err != nil {
		return cgroupDetail, gone(err)
	}
	// Values of missing controllers, or of a cgroup that is deleted meanwhile, are zero.
	if mode == CgroupV2 {
		cgroupDetail.read2(dir(""))
	} else {
		cgroupDetail.read1(dir)
	}
	cgroupDetail.Threads, _ = readNumber(filepath.Join(dir("pids"), "pids.current"))
	if cgroupDetail.ThreadsMax, _ = readNumber(
		filepath.Join(dir("pids"), "pids.max")); cgroupDetail.ThreadsMax > math.MaxInt64 {
		cgroupDetail.ThreadsMax = 0
	}
	cgroupDetail.readProcesses(filepath.Join(dir("memory"), "cgroup.procs"))
	return cgroupDetail, nil
}

func (d *CgroupDetail) read1(dir func(string) string) {
	acct, _ := readKeys(filepath.Join(dir("cpuacct"), "cpuacct.stat"))
	d.CPUUser = acct["user"] * tick
	d.CPUSystem = acct["system"] * tick
	cpu, _ := readKeys(filepath.Join(dir("cpu"), "cpu.stat"))
	d.Periods = cpu["nr_periods"]
	d.Throttled = cpu["nr_throttled"]
	d.ThrottledTime = cpu["throttled_time"]
	m := dir("memory")
	mem, _ := readKeys(filepath.Join(m, "memory.stat"))
	d.Cache = mem["total_cache"]
	d.Mapped = mem["total_mapped_file"]
	d.Kernel, _ = readNumber(filepath.Join(m, "memory.kmem.usage_in_bytes"))
	d.MaxMemory, _ = readNumber(filepath.Join(m, "memory.max_usage_in_bytes"))
	d.MemoryFailures, _ = readNumber(filepath.Join(m, "memory.failcnt"))
	oom, _ := readKeys(filepath.Join(m, "memory.oom_control"))
	d.OOMKills = oom["oom_kill"]
	d.BytesRead, d.BytesWrit = readDevices(filepath.Join(dir("blkio"), "blkio.throttle.io_service_bytes"))
	d.Reads, d.Writes = readDevices(filepath.Join(dir("blkio"), "blkio.throttle.io_serviced"))
}

func (d *CgroupDetail) read2(dir string) {
	cpu, _ := readKeys(filepath.Join(dir, "cpu.stat"))
	d.CPUUser = cpu["user_usec"] * 1000
	d.CPUSystem = cpu["system_usec"] * 1000
	d.Periods = cpu["nr_periods"]
	d.Throttled = cpu["nr_throttled"]
	d.ThrottledTime = cpu["throttled_usec"] * 1000
	mem, _ := readKeys(filepath.Join(dir, "memory.stat"))
	d.Cache = mem["file"]
	d.Mapped = mem["file_mapped"]
	d.Kernel = mem["kernel"]
	d.MaxMemory, _ = readNumber(filepath.Join(dir, "memory.peak"))
	events, _ := readKeys(filepath.Join(dir, "memory.events"))
	d.MemoryFailures = events["max"]
	d.OOMKills = events["oom_kill"]
	raw, _ := os.ReadFile(filepath.Join(dir, "io.stat")) // "8:0 rbytes=1 wbytes=2 rios=3 wios=4 ..."
	for word := range strings.FieldsSeq(string(raw)) {
		name, value, _ := strings.Cut(word, "=")
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "rbytes":
			d.BytesRead += n
		case "wbytes":
			d.BytesWrit += n
		case "rios":
			d.Reads += n
		case "wios":
			d.Writes += n
		}
	}
}

// readDevices sums lines "8:0 Read 123" over all devices.
func readDevices(path string) (read, written uint64) {
	raw, _ := os.ReadFile(path) // a missing file has none
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue // the total
		}
		n, err := strconv.ParseUint(f[2], 10, 64)
		if err != nil {
			continue
		}
		switch f[1] {
		case "Read":
			read += n
		case "Write":
			written += n
		}
	}
	return read, written
}

// readProcesses counts the processes and their open descriptors. Processes may start and end meanwhile.
func (d *CgroupDetail) readProcesses(procs string) {
	raw, _ := os.ReadFile(procs) // a deleted cgroup has none
	for pid := range strings.FieldsSeq(string(raw)) {
		d.Processes++
		dir := filepath.Join("/proc", pid, "fd")
		fds, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		d.Files += uint64(len(fds))
		d.Sockets += uint64(len(slices.DeleteFunc(fds, func(e fs.DirEntry) bool { // a count
			to, err := os.Readlink(filepath.Join(dir, e.Name()))
			return err != nil || !strings.HasPrefix(to, "socket:")
		})))
	}
}
