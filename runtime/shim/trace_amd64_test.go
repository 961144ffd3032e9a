// SPDX-License-Identifier: Apache-2.0

package shim_test

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// traceEnv makes the test binary trace process 1 instead of testing.
const traceEnv = "KEELSON_TEST_TRACE"

// traceOne makes process 1 execute system calls through ptrace, and prints the error number of each as JSON.
func traceOne() error {
	runtime.LockOSThread()
	if err := unix.PtraceAttach(1); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	if _, err := unix.Wait4(1, nil, unix.WALL, nil); err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	var was unix.PtraceRegs
	if err := unix.PtraceGetRegs(1, &was); err != nil {
		return fmt.Errorf("registers: %w", err)
	}
	out := map[string]int{}
	for name, number := range map[string]uint64{
		"wait4":  unix.SYS_WAIT4,
		"openat": unix.SYS_OPENAT,
		"socket": unix.SYS_SOCKET,
		"execve": unix.SYS_EXECVE,
		"setns":  unix.SYS_SETNS,
		"mount":  unix.SYS_MOUNT,
		"ptrace": unix.SYS_PTRACE,
		"clone":  unix.SYS_CLONE,
	} {
		regs := was
		// The process was stopped in a system call: the syscall instruction is the two bytes before rip.
		regs.Rip -= 2
		regs.Rax = number
		regs.Orig_rax = ^uint64(0)
		regs.Rdi = ^uint64(0)
		regs.Rsi = 0
		regs.Rdx = 0
		regs.R10 = 0
		if err := unix.PtraceSetRegs(1, &regs); err != nil {
			return fmt.Errorf("set registers: %w", err)
		}
		if err := unix.PtraceSingleStep(1); err != nil {
			return fmt.Errorf("step: %w", err)
		}
		if _, err := unix.Wait4(1, nil, unix.WALL, nil); err != nil {
			return fmt.Errorf("wait: %w", err)
		}
		if err := unix.PtraceGetRegs(1, &regs); err != nil {
			return fmt.Errorf("registers: %w", err)
		}
		out[name] = int(-int64(regs.Rax)) // an error number
	}
	if err := unix.PtraceSetRegs(1, &was); err != nil {
		return fmt.Errorf("set registers: %w", err)
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}
