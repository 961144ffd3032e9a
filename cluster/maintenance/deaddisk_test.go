// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"keelson/cluster/datadir"
	"keelson/cluster/nodehost"
)

// TestDownOnADeadDisk: the disk answers every request with an I/O error, and Down ends the instance and the processes
// in the cluster's cgroup all the same.
func TestDownOnADeadDisk(t *testing.T) {
	dir := deadDisk(t)
	child := exec.CommandContext(t.Context(), "sleep", "1000") // in place of the instance
	file, err := os.OpenFile(dir.PidFile(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	child.ExtraFiles = []*os.File{file}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	container := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := container.Start(); err != nil {
		t.Fatal(err)
	}
	cgroup := "/sys/fs/cgroup/pids" + nodehost.CgroupParent(dir)
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		cgroup = "/sys/fs/cgroup" + nodehost.CgroupParent(dir)
	}
	if err := errors.Join(os.Mkdir(cgroup, 0o755), os.WriteFile(filepath.Join(cgroup, "cgroup.procs"),
		[]byte(strconv.Itoa(container.Process.Pid)), 0o600)); err != nil {
		t.Fatal(err)
	}
	mounted := dir.Sub("kubelet")
	if err := errors.Join(os.Mkdir(mounted, 0o700), unix.Mount("keelson-test", mounted, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	pullOut(t, dir)
	ended := make(chan string, 2)
	for name, cmd := range map[string]*exec.Cmd{"instance": child, "container": container} {
		go func() { // ends with the process, at the latest with the test
			_ = cmd.Wait()
			ended <- name
		}()
	}
	err = Down(t.Context(), dir, noRoles, false, func(string, time.Duration) {})
	t.Logf("Down: %v", err)
	for range 2 {
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Fatalf("Down on a dead disk (%v) has not ended both processes", err)
		}
	}
	if _, err := os.Stat(cgroup); err == nil {
		t.Errorf("%s is left", cgroup)
	}
	if err := unix.Unmount(mounted, unix.MNT_DETACH); err == nil {
		t.Errorf("%s was left mounted", mounted)
	}
}

// deadDisk returns a directory on a disk of its own, which pullOut ends.
func deadDisk(t *testing.T) datadir.Dir {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: not root, cannot mount a disk")
	}
	image := filepath.Join(t.TempDir(), "image")
	disk := t.TempDir()
	run := func(name string, args ...string) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", name, err, out)
		}
		return nil
	}
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 32<<20), run("mkfs.ext4", "-q", image),
		run("mount", "-o", "loop", image, disk)); err != nil {
		t.Skipf("SKIPPED: no disk of our own: %v", err)
	}
	t.Cleanup(func() {
		if err := run("umount", "-l", disk); err != nil {
			t.Error(err)
		}
	})
	dir := datadir.Dir(filepath.Join(disk, "data"))
	if err := os.Mkdir(string(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// pullOut makes the disk of dir answer every request with an I/O error, as one that was pulled out.
func pullOut(t *testing.T, dir datadir.Dir) {
	t.Helper()
	const shutdown = 0x8004587d // EXT4_IOC_SHUTDOWN
	f, err := os.Open(string(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), shutdown, 2); err != nil { // without flushing the journal
		t.Fatal(err)
	}
	if _, err := os.OpenFile(dir.PidFile(), os.O_RDWR, 0); !errors.Is(err, syscall.EIO) {
		t.Fatalf("the dead disk answers %v", err)
	}
}
