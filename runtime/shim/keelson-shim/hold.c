// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

#define _GNU_SOURCE
#include <grp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void reap(int sig) {
	(void)sig;
	while (waitpid(-1, NULL, WNOHANG) > 0) {
	}
}

// hold is process 1 of a pod's shared PID namespace when _KEELSON_HOLD is set. It runs before Go does, so it needs next to no memory.
// It has no rights, no files and an empty root directory, and only reaps: signals from within the pod cannot end it.
__attribute__((constructor)) static void hold(void) {
	if (getenv("_KEELSON_HOLD") == NULL)
		return;
	struct sigaction sa = {.sa_handler = reap, .sa_flags = SA_RESTART | SA_NOCLDSTOP};
	sigaction(SIGCHLD, &sa, NULL);
	prctl(PR_SET_NAME, "pause", 0, 0, 0);
	if (chroot(".") != 0 || setgroups(0, NULL) != 0 || setgid(65534) != 0 || setuid(65534) != 0 ||
	    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0)
		_exit(1);
	for (;;)
		pause();
}
