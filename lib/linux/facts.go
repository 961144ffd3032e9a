// SPDX-License-Identifier: Apache-2.0

// Package linux wraps Linux features that several packages need: cgroups, namespaces, id-mapped mounts, mount
// information, inotify, and the detection of the kernel's abilities. The engines (runtime, network) and the kubelet use
// it. It knows no Kubernetes, and keeps no state.
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

// CgroupMode is the cgroup version.
type CgroupMode int

// The modes.
const (
	CgroupV1     CgroupMode = iota // one hierarchy per controller
	CgroupHybrid                   // controllers in version 1, and a version 2 hierarchy without controllers
	CgroupV2                       // one hierarchy for all
)

// String returns "v1", "hybrid" or "v2".
func (m CgroupMode) String() string { return [...]string{"v1", "hybrid", "v2"}[m] }

// CgroupRoot is the mount point of cgroups.
const CgroupRoot = "/sys/fs/cgroup"

// Facts are the properties of the kernel and of this process that containers depend on.
type Facts struct {
	Cgroups CgroupMode
	// Controllers are the available cgroup controllers, sorted.
	Controllers []string
	// Swap: limits on swap can be set.
	Swap bool
	// Capabilities is the bounding set of this process ("CAP_CHOWN"), sorted by number.
	Capabilities []string
	// OOMScoreFloor is the lowest oom_score_adj that this process may set.
	OOMScoreFloor int
	// OpenFiles is the highest limit on open files that this process may set.
	OpenFiles uint64
	AppArmor  bool
	SELinux   bool
	Seccomp   bool
}

// Detect detects the Facts. It reads a dozen files of /proc and /sys.
func Detect() (Facts, error) {
	var facts Facts
	var err error
	if facts.Cgroups, err = detectCgroups(CgroupRoot); err != nil {
		return facts, err
	}
	if facts.Controllers, err = controllers(facts.Cgroups, CgroupRoot); err != nil {
		return facts, err
	}
	facts.Swap = swapLimits(facts.Cgroups, CgroupRoot)
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return facts, fmt.Errorf("read own capabilities: %w", err)
	}
	if facts.Capabilities, err = capabilities(string(status)); err != nil {
		return facts, err
	}
	score, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return facts, fmt.Errorf("read own oom score: %w", err)
	}
	own, err := strconv.Atoi(strings.TrimSpace(string(score)))
	if err != nil {
		return facts, fmt.Errorf("read own oom score: %w", err)
	}
	facts.OOMScoreFloor = -1000
	if !slices.Contains(facts.Capabilities, "CAP_SYS_RESOURCE") {
		facts.OOMScoreFloor = own
	}
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return facts, fmt.Errorf("read limit of open files: %w", err)
	}
	facts.OpenFiles = lim.Max
	facts.AppArmor = fileStarts("/sys/module/apparmor/parameters/enabled", "Y")
	_, err = os.Stat("/sys/fs/selinux/enforce")
	facts.SELinux = err == nil
	_, err = os.Stat("/proc/sys/kernel/seccomp/actions_avail")
	facts.Seccomp = err == nil
	return facts, nil
}

// CanKillGroups reports whether the kernel can end all processes of a cgroup that exhausts its memory
// (memory.oom.group).
func CanKillGroups() bool {
	mode, err := detectCgroups(CgroupRoot)
	if err != nil || mode != CgroupV2 {
		return false
	}
	all, err := controllers(mode, CgroupRoot)
	return err == nil && slices.Contains(all, "memory")
}

func fileStarts(path, prefix string) bool {
	raw, err := os.ReadFile(path)
	return err == nil && strings.HasPrefix(string(raw), prefix)
}

func detectCgroups(root string) (CgroupMode, error) {
	v2 := func(path string) bool {
		var st unix.Statfs_t
		return unix.Statfs(path, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
	}
	if v2(root) {
		return CgroupV2, nil
	}
	entries, err := os.ReadDir(root)
	if err != nil || len(entries) == 0 {
		return 0, fmt.Errorf("no control groups are mounted at %s", root)
	}
	if v2(filepath.Join(root, "unified")) {
		return CgroupHybrid, nil
	}
	return CgroupV1, nil
}

func controllers(mode CgroupMode, root string) ([]string, error) {
	var out []string
	if mode == CgroupV2 {
		raw, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
		if err != nil {
			return nil, fmt.Errorf("read cgroup controllers: %w", err)
		}
		out = strings.Fields(string(raw))
	} else {
		entries, err := os.ReadDir(root)
		if err != nil {
			return nil, fmt.Errorf("read cgroup controllers: %w", err)
		}
		for _, e := range entries {
			if e.Name() != "unified" && e.Name() != "systemd" {
				out = append(out, strings.Split(e.Name(), ",")...)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func swapLimits(mode CgroupMode, root string) bool {
	if mode != CgroupV2 {
		_, err := os.Stat(filepath.Join(root, "memory", "memory.memsw.limit_in_bytes"))
		return err == nil
	}
	// The root cgroup has no limits; look at any other one.
	found, err := filepath.Glob(filepath.Join(root, "*", "memory.swap.max"))
	return err == nil && len(found) > 0
}

// capabilities reads the bounding set from a /proc/PID/status file.
func capabilities(status string) ([]string, error) {
	for line := range strings.Lines(status) {
		hex, ok := strings.CutPrefix(line, "CapBnd:")
		if !ok {
			continue
		}
		set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		if err != nil {
			return nil, fmt.Errorf("read capabilities: %w", err)
		}
		var out []string
		for n, name := range capabilityNames {
			if set&(1<<n) != 0 {
				out = append(out, name)
			}
		}
		return out, nil
	}
	return nil, errors.New("read capabilities: no bounding set in the status file")
}

// capabilityNames are the names of capabilities by number (linux/capability.h).
var capabilityNames = [...]string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID",
	"CAP_SETUID",
	"CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW",
	"CAP_IPC_LOCK",
	"CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT",
	"CAP_SYS_ADMIN",
	"CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE",
	"CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG",
	"CAP_WAKE_ALARM",
	"CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
}

// AllCapabilities returns the names of all Linux capabilities, by number.
func AllCapabilities() []string { return slices.Clone(capabilityNames[:]) }

// BootID identifies the current boot.
func BootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(raw)), err
}
