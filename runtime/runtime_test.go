// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"keelson/cri"
	"keelson/cri/critest"
	"keelson/runtime"
	"keelson/runtime/builtin"
	"keelson/runtime/image"
	"keelson/runtime/shim/shimtest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	shimtest.Clean()
	os.Exit(code)
}

var nodes atomic.Int32

// node is a runtime in a directory of its own. stop and start restart it; the test's end takes everything down and
// checks that nothing stays.
type node struct {
	t    testing.TB
	cfg  runtime.Config
	r    *runtime.Runtime
	c    cri.Client
	net  *fakeNetwork
	stop func()
	logs *syncBuffer
}

func newNode(t testing.TB) *node {
	t.Helper()
	helper := shimtest.Shim(t)
	hello := shimtest.Hello(t)
	dir := t.TempDir()
	h := fnv.New32a()
	fmt.Fprintf(h, "%s %d %d", dir, os.Getpid(), nodes.Add(1))
	id := fmt.Sprintf("t%08x", h.Sum32())
	shimtest.NoLeaks(t, "keelson-"+id)
	shimtest.NoLeaks(t, dir)
	images, err := image.Open(image.Config{
		Dir:     filepath.Join(dir, "images"),
		Builtin: builtin.New(func() ([]byte, error) { return os.ReadFile(hello) }, "", "v1"),
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, net: &fakeNetwork{}, logs: &syncBuffer{}}
	n.cfg = runtime.Config{
		Dir:     dir,
		ID:      id,
		Shim:    helper,
		Network: n.net,
		Images:  images,
		Log:     slog.New(slog.NewTextHandler(n.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	n.start()
	t.Cleanup(n.close)
	return n
}

// start runs a new Runtime on the node's directory.
func (n *node) start() {
	n.t.Helper()
	r, err := runtime.New(n.cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	ready := make(chan struct{})
	go func() { ended <- r.Run(ctx, func() { close(ready) }) }() // ends with ctx
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		n.t.Fatalf("run: %v\n%s", err, n.logs)
	}
	n.r = r
	n.c = cri.InProcess(r)
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			n.t.Errorf("run ended: %v", err)
		}
	})
}

func (n *node) close() {
	n.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := runtime.Down(ctx, n.cfg); err != nil {
		n.t.Errorf("down: %v", err)
	}
	if left, err := os.Stat("/run/keelson-" + n.cfg.ID); err == nil {
		n.t.Errorf("left: %s", left.Name())
	}
	if left := n.net.attached(); len(left) > 0 {
		n.t.Errorf("left attached to the network: %v", left)
	}
	if n.t.Failed() {
		log, err := os.ReadFile(filepath.Join(n.cfg.Dir, "shim", "shim.log"))
		n.t.Logf("runtime's log:\n%s\nsupervisor's log (%v):\n%s", n.logs, err, log)
	}
}

// fakeNetwork gives addresses without connecting anything.
type fakeNetwork struct {
	mu   sync.Mutex
	seq  byte
	ids  map[string]netip.Addr
	fail error
	news chan error // nil: there are none
}

func (f *fakeNetwork) Attach(_ context.Context, pod runtime.Pod) (runtime.Attachment, error) {
	id := pod.ID
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return runtime.Attachment{}, f.fail
	}
	if _, err := os.Stat(pod.Netns); err != nil {
		return runtime.Attachment{}, err
	}
	if f.ids == nil {
		f.ids = map[string]netip.Addr{}
	}
	if _, ok := f.ids[id]; !ok {
		f.seq++
		f.ids[id] = netip.AddrFrom4([4]byte{10, 99, 0, f.seq})
	}
	return runtime.Attachment{Addrs: []netip.Addr{f.ids[id]}}, nil
}

func (f *fakeNetwork) Watch(ctx context.Context, report func(error)) error {
	report(nil)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-f.news:
			report(err)
		}
	}
}

func (f *fakeNetwork) Detach(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.ids, id)
	return nil
}

func (f *fakeNetwork) Attached() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.ids))
}

func (f *fakeNetwork) attached() map[string]netip.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ids
}

// syncBuffer is a log that may be written and read at once.
type syncBuffer struct {
	mu sync.Mutex
	b  []byte
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b = append(s.b, p...)
	return len(p), nil
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.b)
}

func TestSuite(t *testing.T) {
	critest.Suite(t, func(t *testing.T) critest.Subject { return critest.Subject{Client: newNode(t).c} })
}
