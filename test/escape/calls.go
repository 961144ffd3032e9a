// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// processes are attempts on other processes.
var processes = []attempt{
	{"capabilities", func(string) (string, error) { return status("CapEff") }},
	{"bounding set", func(string) (string, error) { return status("CapBnd") }},
	{"foreign processes", foreignProcesses},
	{"join namespaces of process 1", func(string) (string, error) {
		f, err := os.Open("/proc/1/ns/mnt")
		if err != nil {
			return "", err
		}
		defer func() { _ = f.Close() }()
		return "mount namespace of process 1", unix.Setns(int(f.Fd()), unix.CLONE_NEWNS)
	}},
	{"inject into the terminal", injectTerminal},
	{"keyring of other pods", otherKeys},
}

// status is a line of /proc/self/status that holds a set of capabilities; an empty set is an error.
func status(key string) (string, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, key+":"); ok {
			v = strings.TrimSpace(v)
			if strings.Trim(v, "0") == "" {
				return "", errors.New("none")
			}
			return v, nil
		}
	}
	return "", fmt.Errorf("no line %s", key)
}

// foreignProcesses are those that run another program than this one, the pod's holder or a shell.
func foreignProcesses(string) (string, error) {
	cmds, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return "", err
	}
	var found []string
	for _, c := range cmds {
		b, err := os.ReadFile(c)
		if err != nil || len(b) == 0 {
			continue
		}
		if cmd := strings.ReplaceAll(strings.Trim(string(b), "\x00"), "\x00", " "); strings.Contains(cmd, "keelson") ||
			strings.Contains(cmd, "go test") {
			found = append(found, cmd)
		}
	}
	if len(found) == 0 {
		return "", errors.New("none")
	}
	return strings.Join(found, ", "), nil
}

// injectTerminal pushes a byte into the input of a terminal that is not one of this container's own.
func injectTerminal(string) (string, error) {
	last := errors.New("no terminal")
	for _, p := range []string{
		"/dev/tty", "/dev/console", "/proc/self/fd/0", "/proc/self/fd/2", "/dev/tty0", "/dev/tty1", "/dev/ttyS0",
	} {
		f, err := os.OpenFile(p, os.O_RDWR|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
		if err != nil {
			last = err
			continue
		}
		c := byte(' ')
		// an argument of ioctl
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.TIOCSTI, uintptr(unsafe.Pointer(&c)))
		_ = f.Close()
		if errno == 0 {
			return p, nil
		}
		last = errno
	}
	return "", last
}

// otherKeys looks for what another pod left in the session keyring. ESCAPE_SELF is this pod's name.
func otherKeys(string) (string, error) {
	self := os.Getenv("ESCAPE_SELF")
	if id, err := unix.KeyctlSearch(unix.KEY_SPEC_SESSION_KEYRING, "user", "keelson-escape", 0); err == nil {
		owner := make([]byte, 256)
		n, err := unix.KeyctlBuffer(unix.KEYCTL_READ, id, owner, 0)
		if err != nil {
			return "", err
		}
		if owner := string(owner[:min(n, len(owner))]); owner != self {
			return "key of " + owner, nil
		}
	}
	if _, err := unix.AddKey("user", "keelson-escape", []byte(self), unix.KEY_SPEC_SESSION_KEYRING); err != nil {
		return "", err
	}
	return "", errors.New("no key of another pod in the session keyring")
}

// systemCalls are calls that only root of the host may make.
var systemCalls = []attempt{
	{"load module", call(unix.SYS_FINIT_MODULE, ^uintptr(0), 0, 0)},
	{"kexec", call(unix.SYS_KEXEC_LOAD, 0, 1<<30, 0)}, // too many segments: EINVAL for who may
	{"kernel log", func(string) (string, error) {
		n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, make([]byte, 64))
		return strconv.Itoa(n) + " bytes", err
	}},
	{"set host name", func(string) (string, error) {
		name, err := os.Hostname()
		if err != nil {
			return "", err
		}
		return name, unix.Sethostname([]byte(name))
	}},
	{"set clock", func(string) (string, error) {
		return "clock", unix.ClockSettime(unix.CLOCK_REALTIME, &unix.Timespec{Nsec: -1}) // EINVAL for who may
	}},
	{"I/O ports", call(unix.SYS_IOPERM, 0x80, 1, 0)},
	{"swap on", call(unix.SYS_SWAPON, 0, 0, 0)},
	{"reboot", call(unix.SYS_REBOOT, 0, 0, 0)}, // wrong magic: EINVAL for who may
	{"load BPF program", func(string) (string, error) { // asks for the first program's id: ENOENT for who may
		var attr [128]byte
		// an argument of bpf
		return call(unix.SYS_BPF, unix.BPF_PROG_GET_NEXT_ID, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))("")
	}},
	{"perf events", func(string) (string, error) { // of every process on processor 0
		attr := unix.PerfEventAttr{
			Type:   unix.PERF_TYPE_SOFTWARE,
			Size:   unix.PERF_ATTR_SIZE_VER0,
			Config: unix.PERF_COUNT_SW_CPU_CLOCK,
		}
		fd, err := unix.PerfEventOpen(&attr, -1, 0, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err != nil {
			return "", err
		}
		return "processor 0", unix.Close(fd)
	}},
}

// call makes a system call with arguments that do nothing. It counts as open when the kernel got past the question of
// rights: success, or an error that only who has the right is given.
func call(nr, a, b, c uintptr) func(string) (string, error) {
	return func(string) (string, error) {
		_, _, errno := unix.Syscall6(nr, a, b, c, ^uintptr(0), 0, 0)
		switch errno {
		case 0:
			return "done", nil
		case unix.EPERM, unix.EACCES, unix.ENOSYS:
			return "", errno
		default:
			return "permitted, then " + errno.Error(), nil
		}
	}
}

// devices are nodes that a container must not open.
var devices = []attempt{
	{"make and open the disk", func(string) (string, error) {
		major, minor, err := firstDisk()
		if err != nil {
			return "", err
		}
		return makeAndOpen(unix.S_IFBLK, major, minor)
	}},
	{"make and open mem", func(string) (string, error) { return makeAndOpen(unix.S_IFCHR, 1, 1) }},
	{"make and open fuse", func(string) (string, error) { return makeAndOpen(unix.S_IFCHR, 10, 229) }},
	{
		"devices of the host", opens(os.O_RDONLY, "/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/net/tun",
			"/dev/vda", "/dev/sda", "/dev/loop-control"),
	},
}

func firstDisk() (uint32, uint32, error) {
	b, err := os.ReadFile("/proc/partitions")
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		var major, minor uint32
		var blocks uint64
		var name string
		if n, _ := fmt.Sscan(line, &major, &minor, &blocks, &name); n == 4 {
			return major, minor, nil
		}
	}
	return 0, 0, errors.New("no disk in /proc/partitions")
}

func makeAndOpen(kind, major, minor uint32) (string, error) {
	path := filepath.Join(scratch, "device")
	_ = os.Remove(path)
	if err := unix.Mknod(path, kind|0o600, int(unix.Mkdev(major, minor))); err != nil { // a device number
		return "", err
	}
	defer func() { _ = os.Remove(path) }()
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d:%d", major, minor), f.Close()
}

// networks are attempts on sockets that are not the container's own.
var networks = []attempt{
	{"abstract sockets of the cluster", abstractSockets},
	{"listeners of the cluster", listeners},
}

// abstractSockets connects to those of this network namespace that the cluster has.
func abstractSockets(string) (string, error) {
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return "", err
	}
	last := errors.New("none")
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 8 || !strings.HasPrefix(f[7], "@") || !strings.Contains(f[7], "keelson") {
			continue
		}
		for _, network := range []string{"unix", "unixpacket", "unixgram"} {
			conn, err := (&net.Dialer{}).DialContext(context.Background(), network, f[7])
			if err == nil {
				return f[7], conn.Close()
			}
			last = err
		}
	}
	return "", last
}

// listeners asks every HOST:PORT of ESCAPE_LISTENERS, in plain text and over TLS, for something that no one without
// credentials may have.
func listeners(string) (string, error) {
	client := &http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
			DisableKeepAlives: true, // it looks for who would answer
		},
	}
	var reached []string
	for addr := range strings.FieldsSeq(os.Getenv("ESCAPE_LISTENERS")) {
		for _, scheme := range []string{"http", "https"} {
			for _, path := range []string{
				"/pods", "/runningpods/", "/exec/x", "/cri/exec/x", "/api/v1/secrets", "/debug/pprof/", "/metrics",
				"/configz", "/logs/", "/run/a/b/c",
			} {
				req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, scheme+"://"+addr+path,
					http.NoBody)
				if err != nil {
					return "", err
				}
				resp, err := client.Do(req)
				if err != nil {
					break // no answer to this scheme
				}
				body, _ := io.ReadAll(io.LimitReader(resp.Body, 100))
				_ = resp.Body.Close()
				if !slices.Contains([]int{400, 401, 403, 404}, resp.StatusCode) {
					reached = append(reached, fmt.Sprintf("%s://%s%s: %d %q", scheme, addr, path, resp.StatusCode,
						body))
				}
			}
		}
	}
	if len(reached) == 0 {
		return "", errors.New("none answers")
	}
	return strings.Join(reached, "; "), nil
}

// inNamespaces is the first argument of the child of userNamespace.
const inNamespaces = "in-namespaces"

// userNamespace becomes root of a user namespace of its own and tries from there what it may not as itself.
func userNamespace(string) (string, error) {
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", inNamespaces)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWCGROUP,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return strings.TrimSpace(string(out)), nil
}

// childInNamespaces says on its output what it reached, and ends with 1 when that is nothing.
func childInNamespaces() int {
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		fmt.Fprintln(os.Stdout, "mount proc:", err)
		return 1
	}
	f, err := os.OpenFile("/proc/sys/kernel/core_pattern", os.O_WRONLY, 0)
	if err != nil {
		fmt.Fprintln(os.Stdout, "core_pattern:", err)
		return 1
	}
	_ = f.Close()
	fmt.Fprintln(os.Stdout, "core_pattern")
	return 0
}
