// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// victimScore makes a process the first that the kernel ends when memory runs out (the highest score is 1000).
const victimScore = 900

// LimitMemory limits the memory that this process takes from now on, for good: the garbage collector works to keep it
// under half of limit bytes, and beyond limit the process dies. If the machine, or the cgroup, has no memory left, the
// kernel ends this process before others.
func LimitMemory(limit int64) error {
	debug.SetMemoryLimit(limit / 2)
	taken, err := dataSize()
	if err != nil {
		return fmt.Errorf("limit memory: %w", err)
	}
	most := uint64(taken + limit) // neither is negative
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: most, Max: most}); err != nil {
		return fmt.Errorf("limit memory to %d bytes: %w", most, err)
	}
	return offerFirst()
}

// offerFirst raises this process's score. It may not lower it: that needs a capability.
func offerFirst() error {
	const file = "/proc/self/oom_score_adj"
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("limit memory: %w", err)
	}
	if have, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && have >= victimScore {
		return nil
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(victimScore)), 0); err != nil {
		return fmt.Errorf("limit memory: %w", err)
	}
	return nil
}

// dataSize returns the bytes of this process that RLIMIT_DATA counts (proc(5), statm).
func dataSize() (int64, error) {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, resident, shared, text, library, data int64
	if _, err := fmt.Sscan(string(b), &size, &resident, &shared, &text, &library, &data); err != nil {
		return 0, fmt.Errorf("read statm %q: %w", b, err)
	}
	return data * int64(os.Getpagesize()), nil
}
