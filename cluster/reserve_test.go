// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/store"
)

// smallDisk mounts a file system of that size.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: not root, cannot mount a small tmpfs")
	}
	disk := t.TempDir()
	if err := unix.Mount("keelson-test", disk, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("SKIPPED: cannot mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return disk
}

// fill writes a file until the disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, block := range []int{1 << 20, 4096} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, block))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
}

// TestStartOnAFullDisk: a cluster whose disk is full starts with its reserve, serves, refuses new objects and takes
// deletions; when there is room it refills the reserve and takes objects again.
func TestStartOnAFullDisk(t *testing.T) {
	disk := smallDisk(t, "256m")
	dir := DataDir(filepath.Join(disk, "data"))
	if err := onEtcd(t, dir); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(dir.Sub(reserveFile))
	if err != nil || before.Size() < 8<<20 {
		t.Fatalf("the reserve: %v, %v; want a file of some size", before, err)
	}
	ballast := filepath.Join(disk, "ballast")
	fill(t, ballast)
	cfg := config(string(dir))
	c, err := New(cfg)
	if err != nil {
		t.Fatalf("New on a full disk: %v", err)
	}
	defer c.Close()
	if !strings.Contains(c.DiskFull(), "is full") {
		t.Errorf("the warning is %q", c.DiskFull())
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	ready := make(chan struct{})
	go func() { ended <- c.Run(ctx, func() { close(ready) }) }() // ends with ctx
	defer func() {
		cancel()
		<-ended
	}()
	select {
	case <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatalf("Run on a full disk: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("not ready after a minute")
	}
	rest, err := clientcmd.BuildConfigFromFlags("", dir.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	kube := kubernetes.NewForConfigOrDie(rest)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "new-"}}
	if _, err := kube.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{}); err == nil ||
		!strings.Contains(err.Error(), "space exceeded") {
		t.Errorf("a new object on a full disk: %v, want a refusal", err)
	}
	if err := kube.CoreV1().ConfigMaps("kube-system").Delete(t.Context(), authenticationInfoName,
		metav1.DeleteOptions{}); err != nil {
		t.Errorf("a deletion on a full disk: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if used, err := dir.fillReserve(); used || err != nil {
		t.Errorf("the reserve with room again: used %v, %v", used, err)
	}
	if after, err := os.Stat(dir.Sub(reserveFile)); err != nil || after.Size() != before.Size() {
		t.Errorf("the reserve with room again: %v, %v", after, err)
	}
}

// TestReserveIsAllocated: the reserve takes room, is used when the disk is full, and only then.
func TestReserveIsAllocated(t *testing.T) {
	disk := smallDisk(t, "128m")
	dir := DataDir(disk)
	free, err := freeBytes(disk)
	if err != nil {
		t.Fatal(err)
	}
	if used, err := dir.fillReserve(); used || err != nil {
		t.Fatalf("the first time: used %v, %v", used, err)
	}
	left, err := freeBytes(disk)
	if err != nil || free-left != 8<<20 {
		t.Errorf("the reserve takes %d bytes of the disk, %v; want 8 MiB", free-left, err)
	}
	if err := dir.useReserve(); err != nil {
		t.Fatal(err)
	}
	if now, _ := freeBytes(disk); now != left {
		t.Errorf("the reserve was used with %d bytes free", left)
	}
	fill(t, filepath.Join(disk, "ballast"))
	lock, err := dir.Lock()
	if err != nil {
		t.Fatalf("Lock on a full disk: %v", err)
	}
	_ = lock.Close()
	if now, _ := freeBytes(disk); now < 7<<20 {
		t.Errorf("on a full disk %d bytes are free after the reserve was used", now)
	}
	if used, err := dir.fillReserve(); !used || err != nil {
		t.Errorf("without room: used %v, %v; want that it stays used", used, err)
	}
}

// TestNodeStartsOnAFullDisk: a node in a process of its own uses the reserve too, and refills it when there is room.
func TestNodeStartsOnAFullDisk(t *testing.T) {
	disk := smallDisk(t, "128m")
	dir := DataDir(disk)
	if used, err := dir.fillReserve(); used || err != nil {
		t.Fatalf("the first time: used %v, %v", used, err)
	}
	ballast := filepath.Join(disk, "ballast")
	fill(t, ballast)
	lock, err := dir.LockNode()
	if err != nil {
		t.Fatalf("LockNode on a full disk: %v", err)
	}
	_ = lock.Close()
	if used, err := dir.fillReserve(); !used || err != nil {
		t.Errorf("without room: used %v, %v; want that it stays used", used, err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { // ends with ctx
			done <- keepNodeReserve(dir, slog.New(slog.DiscardHandler)).Run(ctx, func() {})
		}()
		time.Sleep(reserveLook)
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if st, err := os.Stat(dir.Sub(reserveFile)); err != nil || st.Size() == 0 {
		t.Errorf("with room again: %v, %v; want a reserve", st, err)
	}
}

// TestRefusedWithoutRoom: a fresh directory on a full disk has no reserve, and none that was used.
func TestRefusedWithoutRoom(t *testing.T) {
	disk := smallDisk(t, "8m")
	if used, err := DataDir(disk).fillReserve(); used || err != nil || exists(DataDir(disk).Sub(reserveFile)) {
		t.Errorf("a disk that is too small: used %v, %v", used, err)
	}
}

// spared records what a store was asked to do.
type spared struct {
	store.Store
	calls []bool
}

func (s *spared) Spare(on bool) { s.calls = append(s.calls, on) }

// TestWaitForRoom: the disk is looked at every half minute until there is room, and not after that.
func TestWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		looks := 0
		fill := func() (bool, error) {
			looks++
			if looks == 2 {
				return true, io.ErrShortWrite
			}
			return looks < 4, nil
		}
		waitForRoom(t.Context(), reserveLook, fill, slog.New(slog.DiscardHandler))
		if took := time.Since(begin); looks != 4 || took != 4*reserveLook {
			t.Errorf("%d looks in %s", looks, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		waitForRoom(ctx, reserveLook, func() (bool, error) { return true, nil }, slog.New(slog.DiscardHandler))
		if ctx.Err() == nil {
			t.Error("it returned without room")
		}
	})
}

// TestKeepReserve: the store is spared until there is room.
func TestKeepReserve(t *testing.T) {
	dir := DataDir(t.TempDir())
	if err := os.WriteFile(dir.Sub(reserveFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := &Cluster{dir: dir, log: slog.New(slog.DiscardHandler)}
	synctest.Test(t, func(t *testing.T) {
		st := &spared{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.keepReserve(st)(ctx, func() {}) }() // ends with ctx
		synctest.Wait()
		before := fmt.Sprint(st.calls)
		time.Sleep(2 * reserveLook)
		synctest.Wait()
		cancel()
		if err := <-done; err != nil || before != "[true]" || fmt.Sprint(st.calls) != "[true false]" {
			t.Errorf("%v: spared %s, then %v", err, before, st.calls)
		}
	})
}

// TestLockOfADyingProcess: a process that was killed an instant ago looks alive and holds its lock for a moment.
func TestLockOfADyingProcess(t *testing.T) {
	dir := DataDir(t.TempDir())
	dying, err := dir.Lock()
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(dyingWait/10, func() { _ = dying.Close() })
	lock, err := dir.Lock()
	if err != nil {
		t.Fatalf("Lock while the holder ends: %v", err)
	}
	time.AfterFunc(dyingWait/10, func() { _ = lock.Close() })
	if err := dir.Occupied(); err != nil {
		t.Errorf("Occupied while the holder ends: %v", err)
	}
}
