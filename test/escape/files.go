// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

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

// kernelFiles are files of /proc and /sys through which a writer changes the host, or a reader learns of it.
var kernelFiles = []attempt{
	{"write core_pattern", opens(os.O_WRONLY, "/proc/sys/kernel/core_pattern")},
	{"write modprobe", opens(os.O_WRONLY, "/proc/sys/kernel/modprobe")},
	{"write panic_on_oom", opens(os.O_WRONLY, "/proc/sys/vm/panic_on_oom")},
	{"write binfmt_misc", opens(os.O_WRONLY, "/proc/sys/fs/binfmt_misc/register")},
	{"write sysrq-trigger", opens(os.O_WRONLY, "/proc/sysrq-trigger")},
	{"write irq", opens(os.O_WRONLY, "/proc/irq/default_smp_affinity")},
	{
		"write uevent_helper", opens(os.O_WRONLY, "/sys/kernel/uevent_helper", "/sys/kernel/mm/ksm/run",
			"/sys/kernel/profiling"),
	},
	{
		"write module parameters", opens(os.O_WRONLY, "/sys/module/printk/parameters/time",
			"/sys/module/kernel/parameters/crash_kexec_post_notifiers"),
	},
	{"read kcore", reading("/proc/kcore")},
	{"read keys", reading("/proc/keys")},
	{"read timer_list", reading("/proc/timer_list")},
	{"read sched_debug", reading("/proc/sched_debug")},
	{
		"read firmware", reading("/sys/firmware/dmi/tables/DMI", "/sys/firmware/acpi/tables/DSDT",
			"/sys/firmware/memmap/0/start"),
	},
	{"write release_agent", releaseAgent},
	{
		"write cgroup above", opens(os.O_WRONLY, "/sys/fs/cgroup/../cgroup/cgroup.procs",
			"/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/cgroup.procs"),
	},
}

func opens(flag int, paths ...string) func(string) (string, error) {
	return func(string) (string, error) {
		var last error
		for _, p := range paths {
			f, err := os.OpenFile(p, flag, 0)
			if err == nil {
				return p, f.Close()
			}
			last = err
		}
		return "", last
	}
}

// reading counts a file as open when it gives at least one byte.
func reading(paths ...string) func(string) (string, error) {
	return func(string) (string, error) {
		var last error
		for _, p := range paths {
			f, err := os.Open(p)
			if err != nil {
				last = err
				continue
			}
			n, err := f.Read(make([]byte, 64))
			_ = f.Close()
			if n > 0 {
				return p, nil
			}
			last = fmt.Errorf("%s is empty: %w", p, err)
		}
		return "", last
	}
}

func releaseAgent(string) (string, error) {
	dir, err := os.MkdirTemp(scratch, "cgroup")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, controller := range []string{"memory", "rdma", "misc"} {
		if err = unix.Mount("cgroup", dir, "cgroup", 0, controller); err != nil {
			continue
		}
		defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
		f, err := os.OpenFile(filepath.Join(dir, "release_agent"), os.O_WRONLY, 0)
		if err != nil {
			return "", err
		}
		return "release_agent of " + controller, f.Close()
	}
	return "", err
}

// fileSystems are mounts, and paths that lead out of the root.
var fileSystems = []attempt{
	// first: others open some
	{"descriptors beyond stdio", func(string) (string, error) { return foreignDescriptors() }},
	{"mount tmpfs", mount("tmpfs", "tmpfs", 0)},
	{"mount proc", mount("proc", "proc", 0)},
	{"remount proc sys writable", func(string) (string, error) {
		return "/proc/sys", unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND, "")
	}},
	{"unmount masks", func(string) (string, error) {
		return "/proc/kcore",
			unix.Unmount("/proc/kcore", unix.MNT_DETACH)
	}},
	{"userns mount", userNamespace},
	{"chroot and up", chrootUp},
	{"working directory and up", func(marker string) (string, error) {
		return reads(strings.Repeat("../", 40)+marker, "/"+strings.Repeat("../", 40)+marker)
	}},
	{"inherited descriptors", func(marker string) (string, error) {
		var paths []string
		for n := range 64 {
			fd := "/proc/self/fd/" + strconv.Itoa(n)
			paths = append(paths, fd+strings.Repeat("/..", 20)+marker, fd+marker)
		}
		return reads(paths...)
	}},
	{"stdio is the host's device", stdioOfHost},
	{"root of process 1", func(marker string) (string, error) {
		return reads("/proc/1/root"+marker, "/proc/1/root/.."+marker, "/proc/1/root/../.."+marker,
			"/proc/1/cwd"+marker, "/proc/1/cwd/../../../../.."+marker)
	}},
	{"roots of other processes", func(marker string) (string, error) {
		procs, err := filepath.Glob("/proc/[0-9]*")
		if err != nil {
			return "", err
		}
		var paths []string
		for _, p := range procs {
			paths = append(paths, p+"/root"+marker, p+"/root/../../.."+marker, p+"/cwd/../../../../../.."+marker)
		}
		return reads(paths...)
	}},
	{"open by handle", openByHandle},
	{"volume symlinks", func(marker string) (string, error) {
		return reads("/volume/link"+marker, "/sub"+marker, "/sub/marker", "/sub/link"+marker, "/data/marker",
			"/etc/marker", "/proc/marker", "/dev/marker")
	}},
	{"host path", func(marker string) (string, error) { return reads(marker) }},
}

func mount(source, fstype string, flags uintptr) func(string) (string, error) {
	return func(string) (string, error) {
		dir, err := os.MkdirTemp(scratch, "mount")
		if err != nil {
			return "", err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if err := unix.Mount(source, dir, fstype, flags, ""); err != nil {
			return "", err
		}
		return fstype, unix.Unmount(dir, unix.MNT_DETACH)
	}
}

// scratch is a directory of the image that every user can write.
const scratch = "/tmp"

// cpuLimits are files of its own cgroup that a Go program keeps open.
var cpuLimits = []string{"cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.max"}

// foreignDescriptors finds what the runtime left open: all above stdio that is not of this program's own making.
func foreignDescriptors() (string, error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return "", err
	}
	var found []string
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil || n <= 2 {
			continue
		}
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || strings.HasPrefix(to, "anon_inode:[event") || strings.HasSuffix(to, "/fd") ||
			slices.Contains(cpuLimits, filepath.Base(to)) {
			continue // the Go runtime's, and this listing's
		}
		found = append(found, e.Name()+" -> "+to)
	}
	if len(found) == 0 {
		return "", errors.New("none")
	}
	return strings.Join(found, ", "), nil
}

// stdioOfHost looks whether stdin, stdout or stderr are device nodes of another file system than the container's own
// /dev whose mode it can change: the change would be the host's. In a user namespace the nodes are the host's, but not
// the container's to change.
func stdioOfHost(string) (string, error) {
	var own unix.Stat_t
	if err := unix.Stat("/dev", &own); err != nil {
		return "", err
	}
	for fd := range 3 {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			continue
		}
		kind := st.Mode & unix.S_IFMT
		// 136: a terminal of /dev/pts
		if (kind == unix.S_IFCHR || kind == unix.S_IFBLK) && unix.Major(st.Rdev) != 136 && st.Dev != own.Dev &&
			unix.Fchmod(fd, st.Mode&0o7777) == nil {
			return fmt.Sprintf("descriptor %d is device %d:%d on file system %d", fd, unix.Major(st.Rdev),
				unix.Minor(st.Rdev), st.Dev), nil
		}
	}
	return "", errors.New("none")
}

func chrootUp(marker string) (string, error) {
	root, err := os.Open("/")
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	dir, err := os.MkdirTemp(scratch, "jail")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := unix.Chroot(dir); err != nil {
		return "", err
	}
	defer func() { // back to where it was
		_ = root.Chdir()
		_ = unix.Chroot(".")
	}()
	if err := root.Chdir(); err != nil {
		return "", err
	}
	for range 40 {
		if err := os.Chdir(".."); err != nil {
			return "", err
		}
	}
	return reads(strings.TrimPrefix(marker, "/"))
}

// openByHandle tries what is known as shocker: the root directory of a mounted file system by its inode.
func openByHandle(marker string) (string, error) {
	mountFD, err := unix.Open("/etc/hosts", unix.O_RDONLY|unix.O_CLOEXEC, 0) // a bind mount of a file of the host
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(mountFD) }()
	fd, err := unix.OpenByHandleAt(mountFD, unix.NewFileHandle(1, []byte{2, 0, 0, 0, 0, 0, 0, 0}),
		unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	return "the root of the host's file system", nil
}
