// SPDX-License-Identifier: Apache-2.0

package shim_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
	"keelson/runtime/shim/shimtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(traceEnv) != "" {
		if err := traceOne(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(restlessEnv) != "" {
		restless()
	}
	if path := os.Getenv(peekEnv); path != "" {
		peek(path)
		return
	}
	code := m.Run()
	shimtest.Clean()
	os.Exit(code)
}

// node is a supervisor with its own directory and a read-only root file system made of the machine's own programs.
type node struct {
	t      testing.TB
	dir    string
	cgroup string
	c      *shim.Client
	seq    int
}

func newNode(t testing.TB) *node {
	helper := shimtest.Shim(t)
	dir := t.TempDir()
	n := &node{
		t:   t,
		dir: dir,
		cgroup: fmt.Sprintf("/keelson-shimtest-%d-%s", os.Getpid(),
			strings.ReplaceAll(t.Name(), "/", "-")),
	}
	shimtest.NoLeaks(t, filepath.Base(n.cgroup))
	shimtest.NoLeaks(t, dir)
	c, err := shim.Ensure(t.Context(), dir, helper, nil)
	if err != nil {
		t.Fatal(err)
	}
	n.c = c
	t.Cleanup(n.close)
	return n
}

// close ends everything, as Down does.
func (n *node) close() {
	ctx := context.Background()
	all, err := n.c.List(ctx)
	if err != nil {
		n.t.Errorf("list: %v", err)
	}
	for _, s := range all {
		if err := n.c.Delete(ctx, s.ID); err != nil {
			n.t.Errorf("delete %s: %v", s.ID, err)
		}
	}
	h, err := n.c.Hello(ctx)
	if err != nil {
		n.t.Errorf("hello: %v", err)
	}
	if err := n.c.Quit(ctx); err != nil {
		n.t.Errorf("quit: %v", err)
	}
	waitGone(n.t, h.PID)
	paths, err := filepath.Glob("/sys/fs/cgroup/*" + n.cgroup)
	if err != nil {
		n.t.Error(err)
	}
	for _, p := range append(paths, "/sys/fs/cgroup"+n.cgroup) {
		if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			n.t.Errorf("remove cgroup: %v", err)
		}
	}
	if n.t.Failed() {
		if log, err := os.ReadFile(filepath.Join(n.dir, shim.LogName)); err == nil {
			n.t.Logf("supervisor's log:\n%s", log)
		}
	}
}

func waitGone(t testing.TB, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if k, err := unix.Poll(p, 60000); k != 1 {
		t.Errorf("process %d did not end: %v", pid, err)
	}
}

// spec runs a shell command on the machine's own file system.
func (n *node) spec(command string) *specs.Spec {
	n.seq++
	rootfs := filepath.Join(n.dir, "rootfs-"+strconv.Itoa(n.seq))
	for _, d := range []string{"proc", "dev", "usr", "tmp"} {
		if err := os.MkdirAll(filepath.Join(rootfs, d), 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
	for _, l := range []string{"bin", "lib", "lib64", "sbin"} {
		if err := os.Symlink("usr/"+l, filepath.Join(rootfs, l)); err != nil {
			n.t.Fatal(err)
		}
	}
	caps := []string{"CAP_KILL"}
	return &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: rootfs},
		Process: &specs.Process{
			Args:         []string{"/bin/sh", "-c", command},
			Env:          []string{"PATH=/bin"},
			Cwd:          "/",
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{
				Destination: "/dev/pts",
				Type:        "devpts",
				Source:      "devpts",
				Options:     []string{"newinstance", "ptmxmode=0666", "mode=0620"},
			},
			{Destination: "/usr", Type: "bind", Source: "/usr", Options: []string{"rbind", "ro"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: fmt.Sprintf("%s/c%d", n.cgroup, n.seq),
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.NetworkNamespace},
			},
			Resources: &specs.LinuxResources{},
		},
	}
}

func (n *node) run(id, command string, change func(*shim.Run)) shim.State {
	n.t.Helper()
	r := shim.Run{Spec: n.spec(command), LogPath: filepath.Join(n.dir, id+".log")}
	if change != nil {
		change(&r)
	}
	s, err := n.c.Run(n.t.Context(), id, r)
	if err != nil {
		n.t.Fatalf("run %s: %v", id, err)
	}
	return s
}

// wait returns the state of an ended container.
func (n *node) wait(id string) shim.State {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	var got *shim.State
	see := func(s shim.State) {
		if s.ID == id && !s.Running() {
			got = &s
			cancel()
		}
	}
	err := n.c.Subscribe(ctx, func(all []shim.State) {
		for _, s := range all {
			see(s)
		}
	}, see)
	if got == nil {
		n.t.Fatalf("container %s did not end: %v", id, err)
	}
	return *got
}

// log returns the texts of a container's log.
func (n *node) log(id string) string {
	n.t.Helper()
	raw, err := os.ReadFile(filepath.Join(n.dir, id+".log"))
	if err != nil {
		n.t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(raw)) {
		f := strings.SplitN(line, " ", 4)
		out.WriteString(f[1] + ":" + f[3])
	}
	return out.String()
}

func TestRun(t *testing.T) {
	node := newNode(t)
	for _, tc := range []struct {
		id, command string
		code        int
		log         string
	}{
		{"hello", "echo hello; echo oops >&2; exit 3", 3, "stdout:hello\nstderr:oops\n"},
		{"silent", "exit 0", 0, ""},
		{"killed", "kill -9 $$ ; sh -c 'kill -9 1'; exit 9", 9, ""}, // process 1 of a namespace cannot kill itself
		{"many", "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done", 0, manyLines(2000)},
	} {
		t.Run(tc.id, func(t *testing.T) {
			st := node.run(tc.id, tc.command, nil)
			if st.PID == 0 || st.Started.IsZero() {
				t.Errorf("state after run: %+v", st)
			}
			st = node.wait(tc.id)
			if st.ExitCode != tc.code || st.Exited.Before(st.Started) || st.Lost {
				t.Errorf("%q: got %+v, want exit code %d", tc.command, st, tc.code)
			}
			if got := node.log(tc.id); sorted(got) != sorted(tc.log) {
				t.Errorf("%q: got log %.300q, want %.300q", tc.command, got, tc.log)
			}
		})
	}
}

func manyLines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "stdout:line %d\n", i)
	}
	return b.String()
}

// sorted sorts short output, because the order of lines of the two streams is not defined.
func sorted(s string) string {
	if after, ok := strings.CutPrefix(s, "stderr:oops\n"); ok {
		return after + "stderr:oops\n"
	}
	return s
}

func TestRunFails(t *testing.T) {
	node := newNode(t)
	r := shim.Run{Spec: node.spec("")}
	r.Spec.Process.Args = []string{"/no/such/program"}
	if _, err := node.c.Run(t.Context(), "none", r); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a program that is not there: got %v", err)
	}
	if _, err := node.c.State(t.Context(), "none"); !errors.Is(err, shim.ErrNotFound) {
		t.Errorf("after a failed start: got %v, want not found", err)
	}
	node.run("twice", "sleep 100", nil)
	if _, err := node.c.Run(t.Context(), "twice", shim.Run{Spec: node.spec("")}); !errors.Is(err, shim.ErrExists) {
		t.Errorf("the same id again: got %v, want exists", err)
	}
	if _, err := node.c.Run(t.Context(), "../escape", shim.Run{Spec: node.spec("")}); err == nil {
		t.Error("an id with a slash: got no error")
	}
	if err := node.c.Quit(t.Context()); err == nil {
		t.Error("quit while a container runs: got no error")
	}
}

func TestKillAndDelete(t *testing.T) {
	node := newNode(t)
	node.run("polite", "trap 'exit 5' TERM; while :; do sleep 0.01; done", nil)
	node.run("stubborn", "trap '' TERM; while :; do sleep 0.01; done", nil)
	ctx := t.Context()
	for _, id := range []string{"polite", "stubborn"} {
		// The shell must have set its trap: it says so by running a child.
		pollUntil(t, func() bool {
			s, err := node.c.State(ctx, id)
			return err == nil && children(s.PID) > 0
		})
		if err := node.c.Kill(ctx, id, shim.Kill{Signal: int(unix.SIGTERM)}); err != nil {
			t.Errorf("kill %s: %v", id, err)
		}
	}
	if s := node.wait("polite"); s.ExitCode != 5 {
		t.Errorf("polite: got %+v, want code 5", s)
	}
	if s, err := node.c.State(ctx, "stubborn"); err != nil || !s.Running() {
		t.Errorf("stubborn: got %+v, %v, want it running", s, err)
	}
	if err := node.c.Kill(ctx, "stubborn", shim.Kill{Signal: int(unix.SIGKILL)}); err != nil {
		t.Errorf("kill: %v", err)
	}
	if s := node.wait("stubborn"); s.ExitCode != 137 {
		t.Errorf("stubborn: got %+v, want code 137", s)
	}
	if err := node.c.Kill(ctx, "stubborn", shim.Kill{Signal: int(unix.SIGKILL)}); !errors.Is(err, shim.ErrNotRunning) {
		t.Errorf("kill an ended container: got %v, want not running", err)
	}
	for range 2 {
		if err := node.c.Delete(ctx, "stubborn"); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	if _, err := node.c.State(ctx, "stubborn"); !errors.Is(err, shim.ErrNotFound) {
		t.Errorf("after delete: got %v, want not found", err)
	}
}

func children(pid int) int {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0
	}
	return len(strings.Fields(string(raw)))
}

func pollUntil(t testing.TB, done func() bool) {
	t.Helper()
	limit := time.After(time.Minute)
	for tick := time.NewTicker(2 * time.Millisecond); !done(); {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("it did not come to pass")
		}
	}
}

func TestExec(t *testing.T) {
	node := newNode(t)
	node.run("main", "sleep 100", nil)
	exec := func(command string) (string, int) {
		t.Helper()
		file, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		p := node.spec(command).Process
		s, err := node.c.Exec(t.Context(), "main", shim.Exec{Process: p, Stdout: true}, w)
		_ = w.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		out, err := io.ReadAll(file)
		if err != nil {
			t.Error(err)
		}
		code, err := s.Wait(t.Context())
		if err != nil {
			t.Errorf("wait: %v", err)
		}
		return string(out), code
	}
	if out, code := exec("echo $$ hi; exit 4"); !strings.HasSuffix(out, " hi\n") || code != 4 {
		t.Errorf("exec: got %q, %d, want hi and 4", out, code)
	}
	// A client that goes away takes its process with it.
	s, err := node.c.Exec(t.Context(), "main", shim.Exec{Process: node.spec("sleep 100").Process})
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	waitGone(t, s.PID)
	if _, err := node.c.Exec(t.Context(), "missing", shim.Exec{Process: node.spec("").Process}); !errors.Is(err,
		shim.ErrNotFound) {
		t.Errorf("exec in no container: got %v", err)
	}
}

func TestAttach(t *testing.T) {
	node := newNode(t)
	node.run("cat", "cat; echo end", func(r *shim.Run) {
		r.Stdin = true
		r.StdinOnce = true
	})
	file, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	session, err := node.c.Attach(t.Context(), "cat", shim.Attach{Stdin: true, Stdout: true}, w)
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.Stdin.WriteString("ping\n"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(file, got); err != nil || string(got) != "ping\n" {
		t.Errorf("attached: got %q, %v", got, err)
	}
	_ = session.Stdin.Close()
	_ = session.Close() // with StdinOnce, the end of input
	if st := node.wait("cat"); st.ExitCode != 0 {
		t.Errorf("after the end of input: got %+v", st)
	}
	if got := node.log("cat"); got != "stdout:ping\nstdout:end\n" {
		t.Errorf("log: got %q", got)
	}
}

// TestAttachedClientThatDoesNotRead: the supervisor keeps 2 MiB for a client that reads nothing; the container goes
// on, and its log has all.
func TestAttachedClientThatDoesNotRead(t *testing.T) {
	node := newNode(t)
	node.run("loud", "read x; head -c 8388608 /dev/zero | tr '\\0' x; echo; echo end", func(r *shim.Run) {
		r.Stdin = true
		r.StdinOnce = true
	})
	file, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s, err := node.c.Attach(t.Context(), "loud", shim.Attach{Stdin: true, Stdout: true}, w)
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if _, err := s.Stdin.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
	node.wait("loud")
	got, err := io.ReadAll(file)
	// 2 MiB, what the pipe holds, and what was written meanwhile
	if most := 3 << 20; err != nil || len(got) > most || len(got) == 0 {
		t.Errorf("the client gets %d bytes in the end, %v; want %d at most", len(got), err, most)
	}
	if log := node.log("loud"); !strings.HasSuffix(log, "stdout:end\n") {
		t.Errorf("the log ends with %q", log[max(0, len(log)-100):])
	}
}

func TestTerminal(t *testing.T) {
	node := newNode(t)
	node.run("tty", "read line; echo got $line; test -t 0 && test -t 1 && exit 7", func(r *shim.Run) {
		r.Stdin = true
		r.Spec.Process.Terminal = true
	})
	session, err := node.c.Attach(t.Context(), "tty", shim.Attach{Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close() }()
	if !session.Terminal {
		t.Error("attach: got no terminal")
	}
	if _, err := session.Stdin.WriteString("word\n"); err != nil {
		t.Fatal(err)
	}
	_ = session.Stdin.Close()
	if code, err := session.Wait(t.Context()); err != nil || code != 7 {
		t.Errorf("wait: got %d, %v, want 7", code, err)
	}
	if got := node.log("tty"); got != "stdout:word\r\nstdout:got word\r\n" {
		t.Errorf("log: got %q", got)
	}
}

func TestHold(t *testing.T) {
	node := newNode(t)
	st, err := node.c.Hold(t.Context(), "holder", shim.Hold{Name: "/pause"})
	if err != nil {
		t.Fatal(err)
	}
	spec := node.spec("echo I am $$; (sleep 100 &) ; exit 0")
	spec.Linux.Namespaces[0].Path = fmt.Sprintf("/proc/%d/ns/pid", st.PID)
	if _, err := node.c.Run(t.Context(), "guest",
		shim.Run{Spec: spec, LogPath: filepath.Join(node.dir, "guest.log")}); err != nil {
		t.Fatal(err)
	}
	if s := node.wait("guest"); s.ExitCode != 0 || !s.SharedPID {
		t.Errorf("guest: got %+v", s)
	}
	if got := node.log("guest"); got == "stdout:I am 1\n" {
		t.Errorf("guest's log: got %q, want another process to be 1", got)
	}
	if rss := residentKB(t, st.PID); rss > 2048 {
		t.Errorf("holder: %d kB resident, want at most 2048", rss)
	}
}

func residentKB(t testing.TB, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), "VmRSS:")
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kb
}
