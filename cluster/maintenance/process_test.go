// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"keelson/cluster/datadir"
	"keelson/cluster/storage"
)

// The variable with what TestProcess does: an act, a directory, and the servers of etcd or a file, one a line.
const processEnv = "KEELSON_TEST_PROCESS"

// TestProcess is not a test but the processes that other tests kill.
func TestProcess(t *testing.T) {
	text := os.Getenv(processEnv)
	if text == "" {
		t.Skip("SKIPPED: only for other tests")
	}
	args := strings.Split(text, "\n")
	ctx := context.Background()
	dir := datadir.Dir(args[1])
	of := args[2:]
	var err error
	switch args[0] {
	case "to-etcd":
		_, err = MigrateToEtcd(ctx, dir, storage.Config{Servers: of}, false)
	case "to-embedded":
		_, err = MigrateFromEtcd(ctx, dir, storage.Config{Servers: of})
	case "restore":
		_, err = Restore(ctx, dir, of[0])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// spawn runs TestProcess, which ends with the test at the latest.
func spawn(t *testing.T, act string, dir datadir.Dir, of ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestProcess$")
	cmd.Env = append(os.Environ(), processEnv+"="+strings.Join(append([]string{act, string(dir)}, of...), "\n"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill(cmd) })
	return cmd
}

// kill ends a process, if it still runs.
func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // it may have ended
	_ = cmd.Wait()
}
