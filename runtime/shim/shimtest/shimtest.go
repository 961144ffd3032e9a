// SPDX-License-Identifier: Apache-2.0

// Package shimtest builds the shim and the program of the built-in image for tests of the runtime, and checks that a
// test leaves nothing in the kernel. Only tests import it.
package shimtest

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// dir is where the programs are built, once per test binary.
var dir = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "keelson-shimtest") })

var shimProgram = sync.OnceValues(func() (string, error) {
	return build("keelson-shim", "", "./runtime/shim/keelson-shim", "CGO_ENABLED=1",
		"-tags", "netgo osusergo seccomp", "-ldflags", "-s -w -extldflags -static")
})

var hello = sync.OnceValues(func() (string, error) {
	return build("hello", "images/hello", ".", "CGO_ENABLED=0", "-ldflags", "-s -w")
})

// build compiles a package of the module in a directory of the repository.
func build(name, module, pkg, env string, flags ...string) (string, error) {
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}") //nolint:noctx // for all tests, it must outlive each
	root, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("find module: %w", err)
	}
	d, err := dir()
	if err != nil {
		return "", err
	}
	out := filepath.Join(d, name)
	cmd := exec.Command("go", append(append([]string{"build"}, flags...), "-o", out, pkg)...) //nolint:noctx // as above
	cmd.Dir = filepath.Join(strings.TrimSpace(string(root)), module)
	cmd.Env = append(os.Environ(), env)
	if msg, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, msg)
	}
	return out, nil
}

// Shim returns the path of the shim program. TestMain calls Clean at the end.
func Shim(t testing.TB) string { return program(t, shimProgram) }

// Hello returns the path of the built-in image's program.
func Hello(t testing.TB) string { return program(t, hello) }

func program(t testing.TB, build func() (string, error)) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: runs containers")
	}
	p, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Clean removes the built programs; TestMain calls it last.
func Clean() {
	if d, err := dir(); err == nil {
		_ = os.RemoveAll(d) // a leftover in the temporary directory
	}
}

// NoLeaks fails the test at its end when mounts, cgroups or processes are left whose path or command line contains
// mark. mark is a unique part of the test's directory or cgroup name.
func NoLeaks(t testing.TB, mark string) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			return // the first failure says more
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(mounts)) {
			if strings.Contains(line, mark) {
				t.Errorf("left mounted: %s", line)
			}
		}
		_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && strings.Contains(d.Name(), mark) {
				t.Errorf("left cgroup: %s", path)
			}
			return nil // a cgroup of another program may be removed meanwhile
		})
		cmdlines, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range cmdlines {
			if line, err := os.ReadFile(f); err == nil && strings.Contains(string(line), mark) {
				t.Errorf("left running: %s %q", f, line)
			}
		}
	})
}
