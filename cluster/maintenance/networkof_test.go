// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// TestInNetworkOf: what status reads of the network is that of the instance's network namespace.
func TestInNetworkOf(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: makes a network namespace, needs root")
	}
	cmd := exec.CommandContext(t.Context(), "sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	want, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	if err := inNetworkOf(cmd.Process.Pid, func() { got, _ = os.Readlink("/proc/thread-self/ns/net") }); err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("read in %s, want %s", got, want)
	}
}
