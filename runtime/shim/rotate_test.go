// SPDX-License-Identifier: Apache-2.0

package shim_test

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"keelson/lib/logrotate"
	"keelson/runtime/shim"
	"keelson/runtime/shim/shimtest"
)

// TestLogRotation: the log of a running container is rotated as configured, across an upgrade of the supervisor,
// without losing a line; what was configured outlives a supervisor that was killed.
func TestLogRotation(t *testing.T) {
	node := newNode(t)
	node.run("counts", waitingCounter(1), nil) // until the log policy is configured
	pollUntil(t, func() bool { return node.log("counts") != "" })
	policy := logrotate.Policy{MaxSize: 500, MaxFiles: 100}
	if err := node.c.Configure(t.Context(), shim.Settings{Logs: policy}); err != nil {
		t.Fatal(err)
	}
	if err := node.c.Configure(t.Context(),
		shim.Settings{Logs: logrotate.Policy{MaxSize: 500, MaxFiles: 1}}); err == nil {
		t.Error("a log of a single file was accepted")
	}
	if err := node.c.Kill(t.Context(), "counts", shim.Kill{Signal: int(syscall.SIGUSR1)}); err != nil {
		t.Fatal(err)
	}
	body, err := os.ReadFile(shimtest.Shim(t))
	if err != nil {
		t.Fatal(err)
	}
	next := filepath.Join(node.dir, "next")
	if err := os.WriteFile(next, append(body, 0), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := shim.Ensure(t.Context(), node.dir, next, nil); err != nil {
		t.Fatal(err)
	}
	node.wait("counts")
	log := filepath.Join(node.dir, "counts.log")
	older, err := logrotate.List(log)
	if err != nil || len(older) < 15 {
		t.Fatalf("files moved aside: %v, %v; want about 25", older, err)
	}
	var all []byte
	for _, f := range append(older, logrotate.File{Name: log}) {
		b, err := readLog(f)
		if err != nil || int64(len(b)) > policy.MaxSize {
			t.Fatalf("%s: %d bytes, %v; want at most %d", f.Path(), len(b), err, policy.MaxSize)
		}
		all = append(all, b...)
	}
	if err := os.WriteFile(log, all, 0o600); err != nil {
		t.Fatal(err)
	}
	wantCounted(t, node, "counts")

	h, err := node.c.Hello(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(h.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitGone(t, h.PID)
	if _, err := shim.Ensure(t.Context(), node.dir, next, nil); err != nil {
		t.Fatal(err)
	}
	node.run("again", counter, nil)
	node.wait("again")
	if older, err := logrotate.List(filepath.Join(node.dir, "again.log")); err != nil || len(older) < 15 {
		t.Errorf("after a new start: files moved aside %v, %v; want as many as before", older, err)
	}
}

func readLog(f logrotate.File) ([]byte, error) {
	in, err := os.Open(f.Path())
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	if !f.Compressed {
		return io.ReadAll(in)
	}
	gz, err := gzip.NewReader(in)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(gz)
}
