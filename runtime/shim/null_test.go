// SPDX-License-Identifier: Apache-2.0

package shim_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"keelson/runtime/shim"
)

// execCode runs a command in the container and returns its output and exit code. The exec has neither standard input
// nor standard error.
func execCode(n *node, id, command string) (string, int) {
	n.t.Helper()
	file, w, err := os.Pipe()
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	p := n.spec("").Process
	p.Args = []string{"/bin/sh", "-c", command}
	p.Capabilities = &specs.LinuxCapabilities{Bounding: owner, Effective: owner, Permitted: owner}
	x, err := n.c.Exec(n.t.Context(), id, shim.Exec{Process: p, Stdout: true}, w)
	_ = w.Close()
	if err != nil {
		n.t.Fatalf("exec %q: %v", command, err)
	}
	defer func() { _ = x.Close() }()
	out, err := io.ReadAll(file)
	if err != nil {
		n.t.Fatal(err)
	}
	code, err := x.Wait(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return string(out), code
}

// owner are the capabilities that root needs to change any file.
var owner = []string{"CAP_FOWNER", "CAP_CHOWN", "CAP_DAC_OVERRIDE"}

// attackNull is a shell script that changes the mode and owner of the files behind its standard input and standard
// error, if they are devices.
const attackNull = `for fd in 0 2; do f=/proc/self/fd/$fd
  if [ -c $f ]; then chmod 0601 $f; chown 7:8 $f; fi
done 2>/dev/null; ls -lL /dev/null /proc/self/fd/0 | cut -c1-10`

// TestNullIsTheContainersOwn: a process without standard input or output gets the container's own /dev/null. It cannot
// change the host's.
func TestNullIsTheContainersOwn(t *testing.T) {
	node := newNode(t)
	var before, after unix.Stat_t
	if err := unix.Stat(os.DevNull, &before); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A failed test must not leave the host's /dev/null changed.
		_ = os.Chmod(os.DevNull, os.FileMode(before.Mode&0o777))
		_ = os.Chown(os.DevNull, int(before.Uid), int(before.Gid))
	})
	same := func(what string) {
		t.Helper()
		if err := unix.Stat(os.DevNull, &after); err != nil {
			t.Fatal(err)
		}
		if after.Mode != before.Mode || after.Uid != before.Uid || after.Gid != before.Gid {
			t.Errorf("%s: the host's /dev/null became %o %d:%d, was %o %d:%d", what, after.Mode, after.Uid, after.Gid,
				before.Mode, before.Uid, before.Gid)
		}
	}
	own := func(r *shim.Run) {
		r.Spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: owner, Effective: owner, Permitted: owner}
	}
	node.run("start", attackNull, own)
	node.wait("start")
	same("start")
	if got := node.log("start"); got != "stdout:crw------x\nstdout:crw------x\n" {
		t.Errorf("start: got %q, want the container's own /dev/null to have changed", got)
	}
	node.run("main", "sleep 1000", own)
	if got, _ := execCode(node, "main", attackNull); got != "crw------x\ncrw------x\n" {
		t.Errorf("exec: got %q, want the container's own /dev/null to have changed", got)
	}
	same("exec")
	// The container controls its own file system: nothing in it may make the supervisor open a file of the host.
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, trick := range []string{
		"rm /dev/null; ln -s " + secret + " /dev/null", "rm /dev/null; ln -s /proc/1/root/../.." + secret +
			" /dev/null",
		"rm -f /dev/null; mkfifo /dev/null", "rm -f /dev/null; ln -s /dev/tty /dev/null",
		"rm -f /dev/null; ln -s /dev/null /dev/null",
		"rm -f /dev/null; mkdir /dev/null", "rm -f /dev/null; echo file > /tmp/null; ln -s /tmp/null /dev/null",
	} {
		id := fmt.Sprintf("trick%d", node.seq)
		node.run(id, trick+"; echo made; sleep 1000", own)
		pollUntil(t, func() bool { return strings.Contains(node.log(id), "made") })
		p := node.spec("cat; exit 5").Process
		x, err := node.c.Exec(t.Context(), id, shim.Exec{Process: p, Stdout: true, Stderr: true}, pipeTo(t), pipeTo(t))
		if err != nil {
			t.Errorf("%s: exec: %v", trick, err)
			continue
		}
		if code, err := x.Wait(t.Context()); err != nil || code != 5 {
			t.Errorf("%s: got code %d, %v, want an empty input and 5", trick, code, err)
		}
		_ = x.Close()
		if _, err := node.c.Exec(t.Context(), id, shim.Exec{Process: p}); err == nil ||
			!strings.Contains(err.Error(), "/dev/null") {
			t.Errorf("%s: exec without an output: got %v, want it refused for want of a /dev/null", trick, err)
		}
	}
	same("tricks")
}

// pipeTo returns the write end of a pipe. The test keeps the read end open, but does not read.
func pipeTo(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.Close()
		_ = w.Close()
	})
	return w
}

// TestNullWithADevOfAnotherKind: if the pod mounts its own /dev, the container's /dev/null cannot be used. Standard
// input is then an empty pipe, not the host's /dev/null.
func TestNullWithADevOfAnotherKind(t *testing.T) {
	node := newNode(t)
	node.run("dev", "ls -l /proc/self/fd/0 | grep -c pipe; cat; echo end", func(run *shim.Run) {
		dev := t.TempDir()
		for i := range run.Spec.Mounts {
			if m := &run.Spec.Mounts[i]; m.Destination == "/dev" {
				*m = specs.Mount{
					Destination: "/dev/",
					Type:        "bind",
					Source:      dev,
					Options:     []string{"rbind", "rw"},
				}
			}
		}
		run.Spec.Mounts = run.Spec.Mounts[:2:2]
		run.Spec.Mounts = append(run.Spec.Mounts, specs.Mount{
			Destination: "/usr",
			Type:        "bind",
			Source:      "/usr",
			Options:     []string{"rbind", "ro"},
		})
	})
	node.wait("dev")
	if got := node.log("dev"); got != "stdout:1\nstdout:end\n" {
		t.Errorf("standard input: got %q, want an empty pipe", got)
	}
}
