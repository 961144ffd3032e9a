// SPDX-License-Identifier: Apache-2.0

package oci

// The RuntimeDefault seccomp profile, as data. It leaves out what an ordinary container does not need: loading kernel
// code, setting the clock, mounting, kernel tracing, obsolete calls.

const (
	// namespaceFlags are the CLONE_NEW* flags: NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
	namespaceFlags = 0x7E020000
	// afVsock is AF_VSOCK: sockets to the hypervisor.
	afVsock = 40
)

// personas are the allowed arguments of personality(2): the default, 32-bit variants, and the query. Others turn off
// protections, such as address space randomization.
var personas = []uint64{0x0, 0x0008, 0x20000, 0x20008, 0xffffffff}

// allowed lists the calls that every container may make. Names that an architecture does not have are skipped.
const allowed = `
	read pread64 preadv preadv2 readv write pwrite64 pwritev pwritev2 writev lseek _llseek sendfile sendfile64 splice
	tee vmsplice copy_file_range readahead fadvise64 fadvise64_64 sync sync_file_range sync_file_range2 syncfs fsync
	fdatasync msync

	open openat openat2 creat close close_range dup dup2 dup3 fcntl fcntl64 flock ioctl pipe pipe2 memfd_create
	memfd_secret access faccessat faccessat2 chmod fchmod fchmodat fchmodat2 chown chown32 fchown fchown32 fchownat
	lchown lchown32 stat stat64 fstat fstat64 fstatat64 newfstatat lstat lstat64 statx statfs statfs64 fstatfs fstatfs64
	ustat oldstat oldfstat oldlstat link linkat symlink symlinkat readlink readlinkat unlink unlinkat rename renameat
	renameat2 mkdir mkdirat mknod mknodat rmdir truncate truncate64 ftruncate ftruncate64 fallocate utime utimes
	utimensat utimensat_time64 futimesat umask chdir fchdir getcwd getdents getdents64 name_to_handle_at statmount
	listmount cachestat getxattr getxattrat fgetxattr lgetxattr listxattr listxattrat flistxattr llistxattr setxattr
	setxattrat fsetxattr lsetxattr removexattr removexattrat fremovexattr lremovexattr inotify_init inotify_init1
	inotify_add_watch inotify_rm_watch fanotify_mark landlock_create_ruleset landlock_add_rule landlock_restrict_self

	poll ppoll ppoll_time64 select _newselect pselect6 pselect6_time64 epoll_create epoll_create1 epoll_ctl
	epoll_ctl_old epoll_wait epoll_wait_old epoll_pwait epoll_pwait2 eventfd eventfd2 signalfd signalfd4 io_setup
	io_destroy io_submit io_cancel io_getevents io_pgetevents io_pgetevents_time64

	socketcall socketpair bind listen accept accept4 connect getsockname getpeername getsockopt setsockopt shutdown
	send sendto sendmsg sendmmsg recv recvfrom recvmsg recvmmsg recvmmsg_time64

	mmap mmap2 munmap mprotect mremap madvise brk mincore mlock mlock2 mlockall munlock munlockall remap_file_pages
	membarrier pkey_alloc pkey_free pkey_mprotect map_shadow_stack mseal process_mrelease

	execve execveat exit exit_group fork vfork wait4 waitid waitpid kill tkill tgkill pause getpid getppid gettid
	getpgid getpgrp setpgid getsid setsid pidfd_open pidfd_send_signal getuid getuid32 geteuid geteuid32 getgid getgid32
	getegid getegid32 getresuid getresuid32 getresgid getresgid32 getgroups getgroups32 setuid setuid32 setgid setgid32
	setreuid setreuid32 setregid setregid32 setresuid setresuid32 setresgid setresgid32 setfsuid setfsuid32 setfsgid
	setfsgid32 setgroups setgroups32 capget capset prctl arch_prctl set_tid_address set_thread_area get_thread_area
	modify_ldt seccomp ptrace process_vm_readv process_vm_writev getrlimit ugetrlimit setrlimit prlimit64 getrusage
	times getpriority setpriority ioprio_get ioprio_set uretprobe rseq sched_yield sched_getaffinity sched_setaffinity
	sched_getattr sched_setattr sched_getparam sched_setparam sched_getscheduler sched_setscheduler
	sched_get_priority_max sched_get_priority_min sched_rr_get_interval sched_rr_get_interval_time64 getcpu

	rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
	rt_sigtimedwait_time64 rt_tgsigqueueinfo sigaction sigaltstack signal sigpending sigprocmask sigreturn sigsuspend
	restart_syscall

	futex futex_time64 futex_wait futex_waitv futex_wake futex_requeue get_robust_list set_robust_list
	semget semop semctl semtimedop semtimedop_time64 msgget msgsnd msgrcv msgctl shmget shmat shmdt shmctl ipc
	mq_open mq_unlink mq_notify mq_getsetattr mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64

	time gettimeofday clock_gettime clock_gettime64 clock_getres clock_getres_time64 clock_nanosleep
	clock_nanosleep_time64 nanosleep alarm getitimer setitimer timer_create timer_delete timer_getoverrun timer_gettime
	timer_gettime64 timer_settime timer_settime64 timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime
	timerfd_settime64 adjtimex clock_adjtime clock_adjtime64

	uname sysinfo getrandom lsm_get_self_attr lsm_list_modules lsm_set_self_attr
	arm_fadvise64_64 arm_sync_file_range sync_file_range2 breakpoint cacheflush set_tls riscv_hwprobe
`

// byCapability lists the calls that a capability allows in addition.
var byCapability = []struct{ capability, calls string }{
	{"CAP_DAC_READ_SEARCH", "open_by_handle_at"},
	{
		"CAP_SYS_ADMIN",
		`bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie lsm_set_self_attr mount mount_setattr
		move_mount open_tree open_tree_attr perf_event_open quotactl quotactl_fd setdomainname sethostname setns syslog umount umount2 unshare`,
	},
	{"CAP_SYS_BOOT", "reboot"},
	{"CAP_SYS_CHROOT", "chroot"},
	{"CAP_SYS_MODULE", "delete_module finit_module init_module"},
	{"CAP_SYS_PACCT", "acct"},
	{"CAP_SYS_PTRACE", "kcmp pidfd_getfd process_madvise"},
	{"CAP_SYS_RAWIO", "ioperm iopl"},
	{"CAP_SYS_TIME", "clock_settime clock_settime64 settimeofday stime"},
	{"CAP_SYS_TTY_CONFIG", "vhangup"},
	{"CAP_SYS_NICE", "get_mempolicy mbind migrate_pages move_pages set_mempolicy set_mempolicy_home_node"},
	{"CAP_SYSLOG", "syslog"},
	{"CAP_BPF", "bpf"},
	{"CAP_PERFMON", "perf_event_open"},
}
