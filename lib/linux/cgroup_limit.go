// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// LimitProcesses makes the cgroup path and limits the number of processes and threads in it and below it. It is
// errors.ErrUnsupported if the machine has no controller for that. The cgroups above path must have no processes of
// their own. It is idempotent.
func LimitProcesses(mode CgroupMode, path string, limit int64) error {
	dir := filepath.Join(CgroupRoot, "pids", path)
	if mode == CgroupV2 {
		dir = filepath.Join(CgroupRoot, path)
	} else if _, err := os.Stat(filepath.Join(CgroupRoot, "pids")); err != nil {
		return fmt.Errorf("limit processes: no cgroup controller pids: %w", errors.ErrUnsupported)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	if mode == CgroupV2 {
		if err := delegate(path, "pids"); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "pids.max"), []byte(strconv.FormatInt(limit, 10)), 0); err != nil {
		return fmt.Errorf("limit processes of cgroup %s: %w", path, err)
	}
	return nil
}

// WeighCPU makes the cgroup path and sets its share of the processors among its sibling cgroups: shares are those of
// version 1, 2 to 262144. It is errors.ErrUnsupported if the machine has no controller for that. It is idempotent.
func WeighCPU(mode CgroupMode, path string, shares int64) error {
	dir := filepath.Join(CgroupRoot, "cpu", path)
	file := "cpu.shares"
	value := shares
	if mode == CgroupV2 {
		dir = filepath.Join(CgroupRoot, path)
		file = "cpu.weight"
		value = 1 + (shares-2)*9999/262142 // 1 to 10000
	} else if _, err := os.Stat(filepath.Join(CgroupRoot, "cpu")); err != nil {
		return fmt.Errorf("weigh processors: no cgroup controller cpu: %w", errors.ErrUnsupported)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	if mode == CgroupV2 {
		if err := delegate(path, "cpu"); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(value, 10)), 0); err != nil {
		return fmt.Errorf("weigh processors of cgroup %s: %w", path, err)
	}
	return nil
}

// cpuPeriod is the period of processor quotas in microseconds: the kernel's default.
const cpuPeriod = 100_000

// LimitCPU sets the processor time that the cgroup path may use in 100 ms, in microseconds. With grow a higher limit
// stays, and so does a cgroup without one. The cgroup is there, with its controller cpu.
func LimitCPU(mode CgroupMode, path string, quota int64, grow bool) error {
	file := filepath.Join(CgroupRoot, "cpu", path, "cpu.cfs_quota_us")
	value := strconv.FormatInt(quota, 10)
	if mode == CgroupV2 {
		file = filepath.Join(CgroupRoot, path, "cpu.max")
		value += " " + strconv.Itoa(cpuPeriod)
	}
	raw, err := os.ReadFile(file)
	if err == nil {
		first, _, _ := strings.Cut(strings.TrimSpace(string(raw)), " ")
		now, notNumber := strconv.ParseInt(first, 10, 64)
		unlimited := notNumber != nil || now < 0 // "max" of version 2, -1 of version 1
		if grow && (unlimited || now >= quota) {
			return nil
		}
		err = os.WriteFile(file, []byte(value), 0)
	}
	if err != nil {
		return fmt.Errorf("limit processor time of cgroup %s: %w", path, err)
	}
	return nil
}

// LimitCgroupMemory makes the cgroup path and sets its memory in bytes. With grow a higher limit stays. A limit below
// what the cgroup uses is an error: the kernel would kill processes of it.
func LimitCgroupMemory(mode CgroupMode, path string, limit int64, grow bool) error {
	dir := filepath.Join(CgroupRoot, "memory", path)
	file := "memory.limit_in_bytes"
	usage := "memory.usage_in_bytes"
	if mode == CgroupV2 {
		dir = filepath.Join(CgroupRoot, path)
		file = "memory.max"
		usage = "memory.current"
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	if mode == CgroupV2 {
		if err := delegate(path, "memory"); err != nil {
			return err
		}
	}
	now, err := readNumber(filepath.Join(dir, file))
	if err == nil && (now == uint64(limit) || grow && (now == 0 || now > uint64(limit))) {
		return nil
	}
	used, err := readNumber(filepath.Join(dir, usage))
	if err == nil && used > uint64(limit) {
		return fmt.Errorf("limit memory of cgroup %s: it uses %d bytes, more than the limit of %d", path, used, limit)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(limit, 10)), 0)
	}
	if err != nil {
		return fmt.Errorf("limit memory of cgroup %s: %w", path, err)
	}
	return nil
}

// delegate enables a controller of version 2 for the cgroup path: in every cgroup above it.
func delegate(path, controller string) error {
	at := CgroupRoot
	for part := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		have, err := os.ReadFile(filepath.Join(at, "cgroup.subtree_control"))
		if err == nil && !hasWord(string(have), controller) {
			err = os.WriteFile(filepath.Join(at, "cgroup.subtree_control"), []byte("+"+controller), 0)
		}
		if err != nil {
			return fmt.Errorf("enable cgroup controller %s: %w", controller, err)
		}
		at = filepath.Join(at, part)
	}
	return nil
}

func hasWord(text, word string) bool {
	for w := range strings.FieldsSeq(text) {
		if w == word {
			return true
		}
	}
	return false
}

// MaxProcesses returns how many processes and threads the machine can have, 0 if that is not known.
func MaxProcesses() int64 {
	var most int64
	for _, p := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		b, err := os.ReadFile(p)
		if err != nil {
			continue // one of the two limits is enough
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && (most == 0 || n < most) {
			most = n
		}
	}
	return most
}
