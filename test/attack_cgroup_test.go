// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// memoryCgroup makes a memory cgroup with a limit, which is removed after the test.
func memoryCgroup(t *testing.T, limit int64) string {
	t.Helper()
	root := "/sys/fs/cgroup"
	file := "memory.max"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		// An error shows when the limit is written.
		_ = os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0)
	} else {
		root = filepath.Join(root, "memory")
		file = "memory.limit_in_bytes"
	}
	dir := filepath.Join(root, fmt.Sprintf("keelson-blast-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil { // as all cgroups
		t.Fatal(err)
	}
	t.Cleanup(func() { // before that of the cluster was registered, so after it ran
		for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
			err := os.Remove(dir)
			if err == nil {
				return
			}
			if time.Now().After(end) {
				t.Errorf("a process is left in the cgroup of the cluster: %v", err)
				return
			}
		}
	})
	if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(limit, 10)), 0); err != nil {
		t.Fatal(err)
	}
	return dir
}

// counter is a line "NAME VALUE" of a cgroup's file; ok is false without one.
func counter(dir, file, key string) (n int64, ok bool) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if v, found := strings.CutPrefix(line, key+" "); found {
			n, err = strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// anonymousMB is what the processes in a cgroup have allocated, and their files in memory (tmpfs); not what the page
// cache has.
func anonymousMB(t *testing.T, dir string) int {
	t.Helper()
	anon, ok := counter(dir, "memory.stat", "anon")
	if !ok {
		anon, ok = counter(dir, "memory.stat", "total_rss") // version 1
	}
	if !ok {
		t.Fatalf("%s has no memory.stat", dir)
	}
	shared, ok := counter(dir, "memory.stat", "total_shmem")
	if !ok {
		shared, _ = counter(dir, "memory.stat", "shmem")
	}
	return int((anon + shared) >> 20)
}

// oomKills is how many processes of a cgroup the kernel killed because of its limit.
func oomKills(t *testing.T, dir string) int64 {
	t.Helper()
	n, ok := counter(dir, "memory.events", "oom_kill")
	if !ok {
		n, ok = counter(dir, "memory.oom_control", "oom_kill") // version 1
	}
	if !ok {
		t.Fatalf("%s does not count kills", dir)
	}
	return n
}

// samplePeak samples what the cluster's processes take until peak is called, which returns the most, in MB.
func (s *blast) samplePeak(t *testing.T) (peak func() int) {
	t.Helper()
	most := anonymousMB(t, s.cgroup)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				most = max(most, anonymousMB(t, s.cgroup))
			}
		}
	})
	return func() int {
		close(stop)
		wg.Wait()
		return most
	}
}
