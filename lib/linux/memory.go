// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// victimScore makes a process the first that the kernel ends when memory runs out (the highest score is 1000).
const victimScore = "900"

// LimitMemory limits the memory of this process for good: the garbage collector works to keep it under half of limit
// bytes, and beyond limit the process dies. If the machine, or the cgroup, has no memory left, the kernel ends this
// process before others.
func LimitMemory(limit int64) error {
	debug.SetMemoryLimit(limit / 2)
	most := uint64(limit) // the caller's constant
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: most, Max: most}); err != nil {
		return fmt.Errorf("limit memory to %d bytes: %w", limit, err)
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(victimScore), 0); err != nil {
		return fmt.Errorf("limit memory: %w", err)
	}
	return nil
}
