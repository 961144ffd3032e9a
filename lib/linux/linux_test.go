// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDetect(t *testing.T) {
	facts, err := Detect()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(facts.Controllers, "memory") || facts.OpenFiles == 0 {
		t.Errorf("facts: got %+v, want a memory controller and a limit of open files", facts)
	}
	if os.Getuid() == 0 && !slices.Contains(facts.Capabilities, "CAP_CHOWN") {
		t.Errorf("capabilities: got %v", facts.Capabilities)
	}
	if facts.OOMScoreFloor < -1000 || facts.OOMScoreFloor > 1000 {
		t.Errorf("oom score floor: got %d", facts.OOMScoreFloor)
	}
	if id, err := BootID(); err != nil || len(id) != 36 {
		t.Errorf("boot id: got %q, %v", id, err)
	}
}

func TestCapabilities(t *testing.T) {
	for status, want := range map[string][]string{
		"Name:\tx\nCapBnd:\t0000000000000000\n": nil,
		"CapBnd:\t0000000000000421\n":           {"CAP_CHOWN", "CAP_KILL", "CAP_NET_BIND_SERVICE"},
		"CapBnd:\t0000010000000000\n":           {"CAP_CHECKPOINT_RESTORE"},
	} {
		if got, err := capabilities(status); err != nil || !slices.Equal(got, want) {
			t.Errorf("capabilities of %q: got %v, %v, want %v", status, got, err, want)
		}
	}
	for _, status := range []string{"", "CapBnd:\tzz\n"} {
		if got, err := capabilities(status); err == nil {
			t.Errorf("capabilities of %q: got %v, want an error", status, got)
		}
	}
}

func TestParseMounts(t *testing.T) {
	got, err := ParseMounts(`23 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw
24 23 0:5 / /with\040space rw master:3 - tmpfs tmpfs rw
25 23 0:6 / /plain rw - proc proc rw
`)
	if err != nil {
		t.Fatal(err)
	}
	want := []Mount{{"/", "ext4", true, false}, {"/with space", "tmpfs", false, true}, {"/plain", "proc", false, false}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	for path, point := range map[string]string{
		"/":        "/",
		"/x":       "/",
		"/plain":   "/plain",
		"/plain/y": "/plain",
		"/plainer": "/",
	} {
		if m, ok := MountOf(got, path); !ok || m.Point != point {
			t.Errorf("mount of %s: got %v, %v, want %s", path, m, ok, point)
		}
	}
	for _, bad := range []string{"x\n", "1 2 3 4 5 -\n", "1 2 3 4 5 6 7\n"} {
		if got, err := ParseMounts(bad); err == nil {
			t.Errorf("mounts of %q: got %v, want an error", bad, got)
		}
	}
}

func FuzzParseMounts(f *testing.F) {
	f.Add("23 1 8:1 / / rw shared:1 - ext4 /dev/vda rw\n")
	f.Add(`1 1 1:1 / /\04 rw - x`)
	f.Add("31 23 0:27 / /sys/fs/cgroup/a\\040b rw,nosuid shared:9 master:2 - cgroup2 cgroup2 rw\n\n")
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ParseMounts(s)
		if err == nil {
			MountOf(m, "/a/b")
		}
	})
}

func TestReadUsage(t *testing.T) {
	dir := t.TempDir()
	write := func(name, body string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("cpu.stat", "usage_usec 12\nuser_usec 5\n")
	write("memory.current", "1000\n")
	write("memory.stat", "anon 300\nfile 500\ninactive_file 400\npgfault 7\npgmajfault 2\n")
	write("memory.max", "max\n")
	write("pids.current", "3\n")
	write("cpuacct.usage", "12000\n")
	write("memory.usage_in_bytes", "1000\n")
	write("memory.limit_in_bytes", "9223372036854771712\n")
	want := CgroupUsage{
		CPU:             12000,
		Memory:          1000,
		WorkingSet:      600,
		RSS:             300,
		PageFaults:      7,
		MajorPageFaults: 2,
		Processes:       3,
	}
	if got, err := readUsage2(dir); err != nil || got != want {
		t.Errorf("version 2: got %+v, %v, want %+v", got, err, want)
	}
	write("memory.stat", "total_rss 300\ntotal_inactive_file 400\ntotal_pgfault 7\ntotal_pgmajfault 2\n")
	if got, err := readUsage1(func(string) string { return dir }); err != nil || got != want {
		t.Errorf("version 1: got %+v, %v, want %+v", got, err, want)
	}
}

func TestCgroups(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: makes cgroups")
	}
	facts, err := Detect()
	if err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/keelson-linuxtest-%d/inner", os.Getpid())
	if _, err := ReadUsage(facts.Cgroups, path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("usage of no cgroup: got %v", err)
	}
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := JoinCgroup(facts.Cgroups, path, cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	if pids, err := CgroupProcs(facts.Cgroups, filepath.Dir(path)); err != nil ||
		!slices.Equal(pids, []int{cmd.Process.Pid}) {
		t.Errorf("processes: got %v, %v, want %d", pids, err, cmd.Process.Pid)
	}
	if u, err := ReadUsage(facts.Cgroups, path); err != nil || u.Processes != 1 {
		t.Errorf("usage: got %+v, %v, want one process", u, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // killed
	for range 2 {
		if err := RemoveCgroup(facts.Cgroups, filepath.Dir(path)); err != nil {
			t.Error(err)
		}
	}
	if err := RemoveCgroup(facts.Cgroups, "/"); err == nil {
		t.Error("remove the root: got no error")
	}
}
