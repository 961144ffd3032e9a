// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"keelson/cluster/datadir/disktest"
	"keelson/store"
)

// TestReserveIsAllocated: the reserve takes room, is used when the disk is full, and only then.
func TestReserveIsAllocated(t *testing.T) {
	disk := disktest.Small(t, "128m")
	dir := Dir(disk)
	free, err := roomIn(disk)
	if err != nil {
		t.Fatal(err)
	}
	if used, err := dir.Reserve().Fill(); used || err != nil {
		t.Fatalf("the first time: used %v, %v", used, err)
	}
	left, err := roomIn(disk)
	if err != nil || free.bytes-left.bytes != 8<<20 || free.inodes-left.inodes != 66 {
		t.Errorf("the reserve takes %d bytes and %d inodes of the disk, %v; want 8 MiB, 64 files, and itself",
			free.bytes-left.bytes, free.inodes-left.inodes, err)
	}
	if err := dir.Reserve().use(); err != nil {
		t.Fatal(err)
	}
	if now, _ := roomIn(disk); now != left {
		t.Errorf("the reserve was used with %d bytes free", left.bytes)
	}
	disktest.Fill(t, filepath.Join(disk, "ballast"))
	lock, err := dir.Lock()
	if err != nil {
		t.Fatalf("Lock on a full disk: %v", err)
	}
	_ = lock.Close()
	if now, _ := roomIn(disk); now.bytes < 7<<20 {
		t.Errorf("on a full disk %d bytes are free after the reserve was used", now.bytes)
	}
	if used, err := dir.Reserve().Fill(); !used || err != nil {
		t.Errorf("without room: used %v, %v; want that it stays used", used, err)
	}
}

// TestReserveOfInodes: a disk with room and no inode for a file is full too. A reserve of an earlier version gets its
// files.
func TestReserveOfInodes(t *testing.T) {
	disk := disktest.Small(t, "128m,nr_inodes=400")
	dir := Dir(disk)
	if used, err := dir.Reserve().Fill(); used || err != nil {
		t.Fatalf("the first time: used %v, %v", used, err)
	}
	if err := os.RemoveAll(dir.Sub(reserveFiles)); err != nil {
		t.Fatal(err)
	}
	if used, err := dir.Reserve().Fill(); used || err != nil || !Exists(dir.Sub(reserveFiles)) {
		t.Fatalf("the second time: used %v, %v", used, err)
	}
	var err error
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(disk, fmt.Sprint("file", i)), nil, 0o600)
	}
	lock, err := dir.Lock()
	if err != nil {
		t.Fatalf("Lock without an inode: %v", err)
	}
	_ = lock.Close()
	if now, _ := roomIn(disk); now.inodes < inodesUse {
		t.Errorf("%d inodes are free after the reserve was used", now.inodes)
	}
	if used, err := dir.Reserve().Fill(); !used || err != nil {
		t.Errorf("without inodes: used %v, %v; want that it stays used", used, err)
	}
	for i := range 200 {
		_ = os.Remove(filepath.Join(disk, fmt.Sprint("file", i))) // there may be fewer
	}
	if used, err := dir.Reserve().Fill(); used || err != nil {
		t.Errorf("with inodes again: used %v, %v", used, err)
	}
}

// TestNodeStartsOnAFullDisk: a node in a process of its own uses the reserve too, and refills it when there is room.
func TestNodeStartsOnAFullDisk(t *testing.T) {
	disk := disktest.Small(t, "128m")
	dir := Dir(disk)
	if used, err := dir.Reserve().Fill(); used || err != nil {
		t.Fatalf("the first time: used %v, %v", used, err)
	}
	ballast := filepath.Join(disk, "ballast")
	disktest.Fill(t, ballast)
	lock, err := dir.LockNode()
	if err != nil {
		t.Fatalf("LockNode on a full disk: %v", err)
	}
	_ = lock.Close()
	if used, err := dir.Reserve().Fill(); !used || err != nil {
		t.Errorf("without room: used %v, %v; want that it stays used", used, err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { // ends with ctx
			done <- dir.Reserve().KeepNode(slog.New(slog.DiscardHandler)).Run(ctx, func() {})
		}()
		time.Sleep(reserveLook)
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if st, err := os.Stat(dir.Sub(ReserveFile)); err != nil || st.Size() == 0 {
		t.Errorf("with room again: %v, %v; want a reserve", st, err)
	}
}

// TestRefusedWithoutRoom: a fresh directory on a full disk has no reserve, and none that was used.
func TestRefusedWithoutRoom(t *testing.T) {
	disk := disktest.Small(t, "8m")
	if used, err := Dir(disk).Reserve().Fill(); used || err != nil || Exists(Dir(disk).Sub(ReserveFile)) {
		t.Errorf("a disk that is too small: used %v, %v", used, err)
	}
}

// spared records what a store was asked to do.
type spared struct {
	store.Store
	mu   sync.Mutex
	list []bool
}

func (s *spared) Spare(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, on)
}

func (s *spared) calls() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprint(s.list)
}

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
	dir := Dir(t.TempDir())
	if err := os.WriteFile(dir.Sub(ReserveFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		st := &spared{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- dir.Reserve().KeepServer(st, slog.New(slog.DiscardHandler)).Run(ctx, func() {}) }() // ends with ctx
		synctest.Wait()
		before := st.calls()
		time.Sleep(2 * reserveLook)
		synctest.Wait()
		cancel()
		if err := <-done; err != nil || before != "[true]" || st.calls() != "[true false]" {
			t.Errorf("%v: spared %s, then %v", err, before, st.calls())
		}
	})
}

// TestReserveOfARuntime: a container runtime of its own has a reserve.
func TestReserveOfARuntime(t *testing.T) {
	dir := Dir(t.TempDir())
	if parts := dir.Reserve().Node(slog.New(slog.DiscardHandler)); len(parts) != 0 {
		t.Errorf("first start: got %d parts, want none", len(parts))
	}
	if st, err := os.Stat(dir.Sub(ReserveFile)); err != nil || st.Size() == 0 {
		t.Fatalf("the reserve: %v, %v; want it filled", st, err)
	}
}

// TestLockOfADyingProcess: a process that was killed an instant ago looks alive and holds its lock for a moment.
func TestLockOfADyingProcess(t *testing.T) {
	dir := Dir(t.TempDir())
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
