// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// hold makes this process the first process of a pod's shared PID namespace if the environment has _KEELSON_HOLD, the number of namespaces
// to join. It runs before the Go runtime starts, so the process needs very little memory.
//
// Every process in the pod can see this one, and a container with CAP_SYS_PTRACE controls it, whatever PR_SET_DUMPABLE is: it can follow
// /proc/1/root, /proc/1/cwd and /proc/1/fd, join its namespaces, and run its own code in it. So the process keeps nothing of value: its
// root is an empty read-only file system, the only one in its mount namespace; it has no open files and no capabilities; its network, IPC
// and UTS namespaces are the pod's; and seccomp allows it only to wait for children and exit. It reports on STATUS_FD when all of that is
// done; the supervisor starts no container in the namespace before.

// Descriptors that the supervisor passes: one for the result, and from NAMESPACE_FD on the namespaces to join. Higher ones are closed: the
// supervisor may have inherited them.
enum { STATUS_FD = 3, NAMESPACE_FD = 4 };

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "seccomp: unknown architecture"
#endif

// fail tells the supervisor which step failed and why, and exits.
static void fail(const char *step) {
	dprintf(STATUS_FD, "%s: %s", step, strerror(errno));
	_exit(1);
}

static void must(long result, const char *step) {
	if (result < 0)
		fail(step);
}

// join enters the namespaces that were passed.
static void join(int count) {
	for (int fd = NAMESPACE_FD; fd < NAMESPACE_FD + count; fd++) {
		must(setns(fd, 0), "join the pod's namespace");
		must(close(fd), "close namespace");
	}
}

// empty_root replaces the root directory by an empty read-only file system and drops every other mount. It names no path: the user
// namespace that was joined may have no rights in the supervisor's directory, which is the current one.
static void empty_root(void) {
	must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make mounts private");
	int fs = syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);
	must(fs, "open file system");
	must(syscall(SYS_fsconfig, fs, FSCONFIG_SET_FLAG, "ro", NULL, 0), "configure file system");
	must(syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "size", "4k", 0), "configure file system");
	must(syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "nr_inodes", "2", 0), "configure file system");
	must(syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "mode", "0555", 0), "configure file system");
	must(syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0), "create file system");
	int root = syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC,
			   MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
	must(root, "mount empty root");
	must(close(fs), "close file system");
	must(syscall(SYS_move_mount, root, "", AT_FDCWD, ".", MOVE_MOUNT_F_EMPTY_PATH), "attach empty root");
	must(fchdir(root), "enter empty root");
	must(close(root), "close empty root");
	// The old root goes on top of the new one, from where it is taken away.
	must(syscall(SYS_pivot_root, ".", "."), "pivot_root");
	must(umount2(".", MNT_DETACH), "unmount old root");
	must(chdir("/"), "enter root");
}

static void drop_privileges(void) {
	for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
		must(prctl(PR_CAPBSET_DROP, cap, 0, 0, 0), "drop capability bounding set");
	must(setgroups(0, NULL), "setgroups");
	must(setresgid(65534, 65534, 65534), "setgid");
	must(setresuid(65534, 65534, 65534), "setuid");
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {{0}};
	must(syscall(SYS_capset, &head, none), "drop capabilities");
	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
	must(prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "not dumpable");
}

#define ALLOW(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

// restrict_calls also holds for a debugger's code: the kernel looks at a call after the debugger has changed it.
static void restrict_calls(void) {
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		ALLOW(rt_sigtimedwait),
		ALLOW(wait4),
		ALLOW(restart_syscall),
		ALLOW(write), // the answer; after it no descriptor is open
		ALLOW(close),
		ALLOW(exit_group),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
	};
	struct sock_fprog filter = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
	must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0), "seccomp");
}

// process_one is what process 1 does after the supervisor forked it: it makes itself harmless, answers, and reaps for ever.
static void process_one(void) {
	sigset_t child;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	must(sigprocmask(SIG_BLOCK, &child, NULL), "block SIGCHLD");
	prctl(PR_SET_NAME, "pause", 0, 0, 0);
	empty_root();
	for (int fd = 0; fd < STATUS_FD; fd++)
		must(close(fd), "close descriptor");
	if (syscall(SYS_close_range, STATUS_FD + 1, ~0U, 0) < 0 && errno != ENOSYS) // which only Linux before 5.9 has not; none are open
		fail("close descriptors");
	drop_privileges();
	restrict_calls();
	if (syscall(SYS_write, STATUS_FD, "ready", 5) != 5)
		syscall(SYS_exit_group, 1);
	syscall(SYS_close, STATUS_FD);
	for (;;) {
		while (syscall(SYS_wait4, -1, NULL, WNOHANG, NULL) > 0) {
		}
		// Signals from within the pod cannot end process 1, nor one that it blocks be lost.
		syscall(SYS_rt_sigtimedwait, &child, NULL, NULL, _NSIG / 8);
	}
}

// hold joins the pod's namespaces and forks process 1, as the supervisor's child, into a new PID namespace, which belongs to the user
// namespace joined first. It answers with process 1's id on standard output.
__attribute__((constructor)) static void hold(void) {
	const char *count = getenv("_KEELSON_HOLD");
	if (count == NULL)
		return;
	join(atoi(count));
	must(unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWCGROUP), "unshare");
	int pid = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL);
	must(pid, "fork");
	if (pid == 0) {
		process_one();
		_exit(0);
	}
	_exit(write(STDOUT_FILENO, &pid, sizeof(pid)) == sizeof(pid) ? 0 : 1);
}
