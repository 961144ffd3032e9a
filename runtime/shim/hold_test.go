// SPDX-License-Identifier: Apache-2.0

package shim_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
)

// holder starts a namespace holder. It returns a function that runs a command in a container with the capabilities caps
// in the holder's PID namespace.
func holder(n *node, caps ...string) (shim.State, func(id, command string) (int, string)) {
	n.t.Helper()
	st, err := n.c.Hold(n.t.Context(), "holder", shim.Hold{Name: "/pause"})
	if err != nil {
		n.t.Fatal(err)
	}
	return st, func(id, command string) (int, string) {
		n.t.Helper()
		n.run(id, command, func(r *shim.Run) {
			r.Spec.Linux.Namespaces[0].Path = fmt.Sprintf("/proc/%d/ns/pid", st.PID)
			r.Spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
		})
		code := n.wait(id).ExitCode
		return code, n.log(id)
	}
}

// TestHolderGivesNothingAway: a container that shares the holder's PID namespace and may trace processes gets no access
// to the host through the holder.
func TestHolderGivesNothingAway(t *testing.T) {
	node := newNode(t)
	victim := filepath.Join(t.TempDir(), "of-the-host")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	st, guest := holder(node, "CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_DAC_OVERRIDE",
		"CAP_DAC_READ_SEARCH", "CAP_KILL")
	for name, command := range map[string]string{
		"root":       "ls -A /proc/1/root/",
		"above-root": "ls -A /proc/1/root/../../..",
		"cwd":        "ls -A /proc/1/cwd/../..",
		"by-name": "ls /proc/1/root" + victim + " /proc/1/cwd" + victim + " /proc/1/root/../.." + victim +
			" 2>/dev/null",
		"write": "touch /proc/1/root/new 2>/dev/null && echo written",
		"files": "ls -A /proc/1/fd/",
		// The mount namespace may be entered, but it contains no program to run and no file to read.
		"mounts": "nsenter -t 1 -m /bin/true 2>/dev/null && echo entered; grep -v '^[0-9]* [0-9]* [0-9:]* / / " +
			"ro,nosuid,nodev,noexec' /proc/1/mountinfo",
		"kill": "kill -9 1; kill -11 1; kill -19 1; kill -15 1; grep -q T /proc/1/stat && echo stopped",
	} {
		if _, got := guest(name, command); got != "" {
			t.Errorf("%s: %q found %q, want nothing", name, command, got)
		}
	}
	// Control experiment: for a process that is not confined, the same commands find something.
	if _, got := guest("control", "ls -A /proc/self/root/ && ls -A /proc/self/fd/ && cat /proc/self/mountinfo"); len(
		got) < 100 {
		t.Errorf("the same of an ordinary process: got %q, want more", got)
	}
	now, err := node.c.State(t.Context(), "holder")
	if err != nil || !now.Running() {
		t.Errorf("holder: got %+v, %v, want it running", now, err)
	}
	status := processStatus(t, st.PID)
	for field, want := range map[string]string{
		"CapInh":     "0000000000000000",
		"CapPrm":     "0000000000000000",
		"CapEff":     "0000000000000000",
		"CapBnd":     "0000000000000000",
		"CapAmb":     "0000000000000000",
		"NoNewPrivs": "1",
		"Seccomp":    "2",
		"Uid":        "65534\t65534\t65534\t65534",
		"Gid":        "65534\t65534\t65534\t65534",
		"Groups":     "",
		"Threads":    "1",
	} {
		if got := status[field]; got != want {
			t.Errorf("holder's %s: got %q, want %q", field, got, want)
		}
	}
}

func processStatus(t *testing.T, pid int) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		k, v, _ := strings.Cut(line, ":")
		out[k] = strings.TrimSpace(v)
	}
	return out
}

// TestHolderIsInThePodsNamespaces: the holder is in the pod's namespaces and in none of the host's.
func TestHolderIsInThePodsNamespaces(t *testing.T) {
	node := newNode(t)
	pod := node.run("pod", "sleep 1000", nil)
	var paths []string
	for _, k := range []string{"net", "ipc", "uts"} {
		paths = append(paths, fmt.Sprintf("/proc/%d/ns/%s", pod.PID, k))
	}
	st, err := node.c.Hold(t.Context(), "holder", shim.Hold{Name: "/pause", Namespaces: paths})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"net", "ipc", "uts", "pid", "mnt", "cgroup"} {
		mine, err := os.Readlink("/proc/self/ns/" + k)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", st.PID, k))
		if err != nil || got == mine {
			t.Errorf("%s namespace: got %q, %v, want another than the host's", k, got, err)
		}
		if theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pod.PID, k)); k == "net" || k == "ipc" ||
			k == "uts" {
			if err != nil || got != theirs {
				t.Errorf("%s namespace: got %q, want the pod's %q (%v)", k, got, theirs, err)
			}
		}
	}
	_, err = node.c.Hold(t.Context(), "lost", shim.Hold{
		Name:       "/pause",
		Namespaces: []string{"/proc/self/ns/pid", "/dev/null"},
	})
	if err == nil || !strings.Contains(err.Error(), "join the pod's namespace: Invalid argument") {
		t.Errorf("a namespace that is none: got %v", err)
	}
	if kids := childrenOf(t, supervisorPID(node)); len(kids) != 2 {
		t.Errorf("after a holder that could not start: the supervisor has children %v, want the container and the "+
			"first holder", kids)
	}
}

// TestHolderJoinsNothingInherited: the holder does not treat a descriptor that the supervisor inherited as one of its
// namespaces.
func TestHolderJoinsNothingInherited(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	inherited, err := unix.FcntlInt(null.Fd(), unix.F_DUPFD, 20) // not closed on exec
	if err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	if err := unix.Close(inherited); err != nil {
		t.Fatal(err)
	}
	pod := n.run("pod", "sleep 1000", nil)
	// number of the first namespace descriptor; the last one is directly before the inherited descriptor
	const first = 4
	paths := slices.Repeat([]string{fmt.Sprintf("/proc/%d/ns/net", pod.PID)}, inherited-first)
	if _, err := n.c.Hold(t.Context(), "holder", shim.Hold{Name: "/pause", Namespaces: paths}); err != nil {
		t.Error(err)
	}
}

// childrenOf returns the children of all threads of a process, including zombies.
func childrenOf(t testing.TB, pid int) []string {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("children of process %d: %v, %v", pid, files, err)
	}
	var out []string
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		out = append(out, strings.Fields(string(raw))...)
	}
	return out
}

func supervisorPID(n *node) int {
	n.t.Helper()
	h, err := n.c.Hello(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return h.PID
}

// TestHolderUnderATracer: a tracer cannot make the holder execute useful system calls.
func TestHolderUnderATracer(t *testing.T) {
	node := newNode(t)
	st, err := node.c.Hold(t.Context(), "holder", shim.Hold{Name: "/pause"})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	caps := []string{"CAP_SYS_PTRACE"}
	node.run("tracer", "", func(r *shim.Run) {
		r.Spec.Linux.Namespaces[0].Path = fmt.Sprintf("/proc/%d/ns/pid", st.PID)
		r.Spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
		r.Spec.Mounts = append(r.Spec.Mounts, specs.Mount{
			Destination: "/test",
			Type:        "bind",
			Source:      self,
			Options:     []string{"bind", "ro"},
		})
		r.Spec.Process.Args = []string{"/test"}
		r.Spec.Process.Env = []string{traceEnv + "=1"}
	})
	if s := node.wait("tracer"); s.ExitCode != 0 {
		t.Fatalf("tracer: exit code %d: %s", s.ExitCode, node.log("tracer"))
	}
	var got map[string]int
	if err := json.Unmarshal([]byte(strings.TrimPrefix(node.log("tracer"), "stdout:")), &got); err != nil {
		t.Fatal(err)
	}
	const eperm, echild = 1, 10
	// wait4 is the control: it is not blocked, which shows that the calls were really made.
	for call, want := range map[string]int{
		"wait4":  echild,
		"openat": eperm,
		"socket": eperm,
		"execve": eperm,
		"setns":  eperm,
		"mount":  eperm,
		"ptrace": eperm,
		"clone":  eperm,
	} {
		if e, ok := got[call]; !ok || e != want {
			t.Errorf("%s in the holder: got errno %d (%v), want %d", call, e, ok, want)
		}
	}
}
