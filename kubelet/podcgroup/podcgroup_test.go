// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"keelson/lib/linux"
)

// limitOf reads the limit of a cgroup; empty: there is no such cgroup.
func limitOf(t *testing.T, path string) string {
	t.Helper()
	for _, dir := range []string{filepath.Join(linux.CgroupRoot, "pids", path), filepath.Join(linux.CgroupRoot, path)} {
		b, err := os.ReadFile(filepath.Join(dir, "pids.max"))
		if err == nil {
			return strings.TrimSpace(string(b))
		}
		if !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return ""
}

// sharesOf is what the kernel has as a cgroup's share of the processors.
func sharesOf(t *testing.T, mode linux.CgroupMode, path string) string {
	t.Helper()
	file := filepath.Join(linux.CgroupRoot, "cpu", path, "cpu.shares")
	if mode == linux.CgroupV2 {
		file = filepath.Join(linux.CgroupRoot, path, "cpu.weight")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(text))
}

func TestPods(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: cgroups")
	}
	root := fmt.Sprintf("/keelson-test-%d", os.Getpid())
	manager := New(root, 0, slog.New(slog.DiscardHandler))
	manager.Prepare(false)
	t.Cleanup(func() {
		if err := linux.RemoveCgroup(manager.mode, root); err != nil {
			t.Error(err)
		}
	})
	if got, want := limitOf(t, root+"/pods"), fmt.Sprint(limitOfAll(linux.MaxProcesses())); got != want {
		t.Errorf("all pods: got the limit %q, want %s", got, want)
	}
	for range 2 { // again: nothing changes
		if err := manager.Make("a-uid", Limits{Shares: 512}); err != nil {
			t.Fatal(err)
		}
	}
	if got := limitOf(t, manager.Of("a-uid")); got != "4096" || manager.Of("a-uid") != root+"/pods/poda-uid" {
		t.Errorf("pod at %s: got the limit %q, want 4096", manager.Of("a-uid"), got)
	}
	pods := sharesOf(t, manager.mode, root+"/pods")
	shares := sharesOf(t, manager.mode, manager.Of("a-uid"))
	if manager.mode == linux.CgroupV2 && (pods != "10000" || shares != "20") ||
		manager.mode != linux.CgroupV2 && (pods != "262144" || shares != "512") {
		t.Errorf("got the shares %q of all pods and %q of a pod that requests half a processor", pods, shares)
	}
	if err := manager.Make("gone", Limits{Shares: 2}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	joined := linux.JoinCgroup(manager.mode, manager.Of("a-uid")+"/container", cmd.Process.Pid)
	New(root, 0, slog.New(slog.DiscardHandler)).Prepare(false) // the next start
	if err := errors.Join(joined, cmd.Process.Kill()); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // it was killed
	if gone, here := limitOf(t, manager.Of("gone")), limitOf(t, manager.Of("a-uid")); gone != "" || here != "4096" {
		t.Errorf("after another start: got the limits %q and %q, want that the cgroup without processes is gone", gone,
			here)
	}
	if err := manager.Make("../../other", Limits{Shares: 2}); err == nil {
		t.Error("a uid that leads elsewhere was accepted")
	}
	for range 2 {
		if err := manager.Remove("a-uid"); err != nil {
			t.Fatal(err)
		}
	}
	if got := limitOf(t, manager.Of("a-uid")); got != "" {
		t.Errorf("after Remove: got the limit %q, want no cgroup", got)
	}
}

// TestLimitsOfAPod: the processor time and memory of a pod as a whole are set, raised where they are lower while its
// containers change, and never put below what the pod uses.
func TestLimitsOfAPod(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: cgroups")
	}
	root := fmt.Sprintf("/keelson-test-limits-%d", os.Getpid())
	manager := New(root, 0, slog.New(slog.DiscardHandler))
	manager.Prepare(false)
	t.Cleanup(func() {
		if err := linux.RemoveCgroup(manager.mode, root); err != nil {
			t.Error(err)
		}
	})
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill() // before the cgroup is removed
		_ = cmd.Wait()         // it was killed
	}()
	const mebi = 1 << 20
	for i, step := range []struct {
		set    func(string, Limits) error
		limits Limits
		want   Limits
	}{
		{manager.Grow, Limits{2, 50_000, 64 * mebi}, Limits{2, 50_000, 64 * mebi}}, // a new one
		{manager.Grow, Limits{2, 80_000, 32 * mebi}, Limits{2, 80_000, 64 * mebi}},
		{manager.Make, Limits{2, 40_000, 32 * mebi}, Limits{2, 40_000, 32 * mebi}},
		{manager.Make, Limits{Shares: 2}, Limits{2, 40_000, 32 * mebi}},
	} {
		if err := step.set("u", step.limits); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if err := linux.JoinCgroup(manager.mode, manager.Of("u")+"/container", cmd.Process.Pid); err != nil {
				t.Fatal(err)
			}
		}
		if quota, memory := given(t, manager, "u"); quota != step.want.Quota || memory != step.want.Memory {
			t.Errorf("step %d: got %d µs and %d bytes, want %+v", i, quota, memory, step.want)
		}
	}
	usage, err := linux.ReadUsage(manager.mode, manager.Of("u"))
	if err != nil || usage.Memory == 0 {
		t.Skipf("usage %+v, %v: nothing to be below of", usage, err)
	}
	if err := manager.Make("u", Limits{2, 40_000, 1}); err == nil || !strings.Contains(err.Error(), "it uses") {
		t.Errorf("a limit below the usage: got %v, want an error that says so", err)
	}
}

// given are the processor time and memory that the kernel gives a pod.
func given(t *testing.T, m *Manager, uid string) (quota, memory int64) {
	t.Helper()
	number := func(controller, v1, v2 string) (n int64) {
		file := filepath.Join(linux.CgroupRoot, controller, m.Of(uid), v1)
		if m.mode == linux.CgroupV2 {
			file = filepath.Join(linux.CgroupRoot, m.Of(uid), v2)
		}
		text, err := os.ReadFile(file)
		if err == nil {
			_, err = fmt.Sscan(string(text), &n)
		}
		if err != nil {
			t.Error(err)
		}
		return n
	}
	return number("cpu", "cpu.cfs_quota_us", "cpu.max"), number("memory", "memory.limit_in_bytes", "memory.max")
}

func TestWithoutLimit(t *testing.T) {
	for _, m := range []*Manager{New("", 0, nil), New("/keelson-test-none", -1, nil)} {
		if m.Of("u") != m.root || m.Make("u", Limits{Shares: 2}) != nil || m.Remove("u") != nil {
			t.Errorf("%+v: pods have cgroups of their own", m)
		}
	}
}

func TestLimitOfAll(t *testing.T) {
	for most, want := range map[int64]int64{
		0:         29492,
		32768:     29492,
		4_000_000: 3_600_000,
		4096:      3072,
		1000:      500,
	} {
		if got := limitOfAll(most); got != want {
			t.Errorf("of %d: got %d, want %d", most, got, want)
		}
	}
}

// TestSystemd: a runtime that has systemd make cgroups gets the name of a slice for each pod, and no cgroup is written
// without systemd.
func TestSystemd(t *testing.T) {
	m := New("/keelson-test", 0, slog.New(slog.DiscardHandler))
	m.Prepare(true)
	if got, want := m.Of("0c1d-22"), "kubepods-pod0c1d_22.slice"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := errors.Join(m.Make("0c1d-22", Limits{Shares: 2, Memory: 1 << 20}), m.Remove("0c1d-22")); err != nil {
		t.Errorf("limits and end: %v", err)
	}
	if limit := limitOf(t, "/keelson-test"); limit != "" {
		t.Errorf("a cgroup was made, with limit %s", limit)
	}
}
