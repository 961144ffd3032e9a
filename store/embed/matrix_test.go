// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keelson/store"
)

// matrixSteps is how long a script is: short, or what KEELSON_TEST_MATRIX_STEPS says.
func matrixSteps(t *testing.T, short int) int {
	t.Helper()
	if v := os.Getenv("KEELSON_TEST_MATRIX_STEPS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("KEELSON_TEST_MATRIX_STEPS: %v", err)
		}
		return n
	}
	return short
}

// tearFS hands every write to tear, with the file to do it on.
type tearFS struct {
	vfs.FS
	tear func(name string, f vfs.File, b []byte) (int, error)
	mu   sync.Mutex // MemFS locks itself twice when it reuses a file: no copy may be made meanwhile
}

type tornFile struct {
	vfs.File
	name string
	fs   *tearFS
}

func (f tornFile) Write(b []byte) (int, error) { return f.fs.tear(f.name, f.File, b) }

func (fs *tearFS) file(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return tornFile{f, filepath.Base(name), fs}, nil
}

func (fs *tearFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	return fs.file(name, f, err)
}

func (fs *tearFS) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f, err := fs.FS.ReuseForWrite(oldname, newname, c)
	return fs.file(newname, f, err)
}

// removeToo removes from clone what is no more in mem, as a disk may that brings removals to rest before anything else;
// false when there is nothing to remove.
func removeToo(t *testing.T, mem, clone *vfs.MemFS) (removed bool) {
	now, err := mem.List("data")
	if err != nil {
		return false // there is no directory yet
	}
	then, err := clone.List("data")
	if err != nil {
		return false
	}
	for _, name := range then {
		if !slices.Contains(now, name) {
			removed = true
			if err := clone.Remove("data/" + name); err != nil {
				t.Error(err)
			}
		}
	}
	return removed
}

// TestCrashMatrix cuts the world off at every operation that changes files, and amid every write: in turn with nothing
// of what was not synced, all of it, some of it, and nothing but removals.
func TestCrashMatrix(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	mem := vfs.NewCrashableMem()
	p := &player{script: newScript(seed, matrixSteps(t, 120)), o: Options{Dir: "data", HistoryAge: time.Hour}}
	p.acked.Store(firstRevision)
	rng := rand.New(rand.NewPCG(seed, 2))

	type cut struct {
		what string
		world
	}
	cuts := make(chan cut, 4)
	var checkers sync.WaitGroup
	for range 2 {
		checkers.Go(func() {
			for c := range cuts {
				p.check(t, c.what, c.world)
			}
		})
	}
	fs := &tearFS{FS: mem}
	n := 0
	cutNow := func(what string) {
		fs.mu.Lock()
		defer fs.mu.Unlock()
		n++
		for _, rest := range []string{"none", "some", "all", "the removals"} {
			// before the copy: what is confirmed later may be lost
			w := world{acked: p.acked.Load(), forgotten: p.forgotten.Load()}
			cfg := vfs.CrashCloneCfg{UnsyncedDataPercent: map[string]int{"some": 50, "all": 100}[rest], RNG: rng}
			clone := mem.CrashClone(cfg)
			if rest == "the removals" && !removeToo(t, mem, clone) {
				continue
			}
			w.fs = clone
			w.forgetting = p.forgetting.Load()
			cuts <- cut{fmt.Sprintf("cut %d, %s, with %s of what was not synced", n, what, rest), w}
		}
	}
	fs.tear = func(name string, f vfs.File, b []byte) (int, error) {
		half, err := f.Write(b[:len(b)/2])
		if err != nil {
			return half, err
		}
		cutNow("amid a write of " + name)
		rest, err := f.Write(b[half:])
		return half + rest, err
	}
	p.o.FS = errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			cutNow(fmt.Sprintf("before %d of %s", op.Kind, filepath.Base(op.Path)))
		}
		return nil
	}))
	err := p.open()
	if err == nil {
		_, err = p.play(t.Context(), 0)
		err = errors.Join(err, p.s.Close())
	}
	cutNow("at the end")
	close(cuts)
	checkers.Wait()
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d writes, cut at %d operations", len(p.history), n)
	if got := p.acked.Load(); got != p.revision() {
		t.Errorf("%d was confirmed at the end, want %d", got, p.revision())
	}
}

// trouble is an error at one operation.
type trouble struct {
	name  string
	on    func(errorfs.Op) bool
	err   error
	torn  bool  // half of the write happens
	times int64 // how many operations in a row fail
}

// TestErrorMatrix fails every operation of a script in turn, those of opening too. The store refuses meanwhile and goes
// on by itself when the error is gone; after a failed sync, it goes on when it is opened again. In no case is anything
// lost that it confirmed.
func TestErrorMatrix(t *testing.T) {
	changes := func(op errorfs.Op) bool {
		return op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileClose &&
			op.Kind != errorfs.OpLock &&
			op.Kind != errorfs.OpFilePreallocate && !isSync(op.Kind)
	}
	steps := matrixSteps(t, 28)
	for _, tr := range []trouble{
		{"full", changes, syscall.ENOSPC, false, 3},
		{"error", changes, syscall.EIO, false, 1},
		{"short write", func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileWrite }, syscall.ENOSPC, true, 1},
		{"sync", func(op errorfs.Op) bool { return isSync(op.Kind) }, syscall.EIO, false, 1},
		{"read", func(op errorfs.Op) bool { return op.Kind.ReadOrWrite() == errorfs.OpIsRead }, syscall.EIO, false, 1},
	} {
		t.Run(tr.name, func(t *testing.T) {
			sc := newScript(7, steps)
			for n := int64(1); ; n++ {
				more := false
				synctest.Test(t, func(t *testing.T) { more = troubled(t, sc, tr, n) })
				if !more {
					t.Logf("%d writes, %d operations failed", len(sc.history), n-1)
					return
				}
			}
		})
	}
}

// troubled plays sc with tr at the n-th operation that it is about; more reports whether there were so many.
func troubled(t *testing.T, sc *script, tr trouble, n int64) (more bool) {
	what := fmt.Sprintf("%s at %d", tr.name, n)
	mem := vfs.NewCrashableMem()
	var count atomic.Int64
	fails := func() bool {
		c := count.Add(1)
		return c >= n && c < n+tr.times
	}
	tear := &tearFS{
		FS: mem,
		tear: func(_ string, f vfs.File, b []byte) (int, error) {
			if !tr.torn || !fails() {
				return f.Write(b)
			}
			half, err := f.Write(b[:len(b)/2])
			return half, errors.Join(err, tr.err)
		},
	}
	p := &player{script: sc, o: Options{Dir: "data", HistoryAge: time.Hour}}
	p.acked.Store(firstRevision)
	p.o.FS = errorfs.Wrap(tear, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !tr.torn && tr.on(op) && fails() {
			return tr.err
		}
		return nil
	}))
	p.endure(t, what, tr)
	p.check(t, what+", after power loss",
		world{mem.CrashClone(vfs.CrashCloneCfg{}), p.acked.Load(), p.forgotten.Load(), p.forgetting.Load()})
	return count.Load() >= n
}

// endure plays to the end whatever happens on the way.
func (p *player) endure(t *testing.T, what string, tr trouble) {
	ctx := t.Context()
	next := 0
	for tries := 0; ; tries++ {
		if tries > 50 {
			t.Errorf("%s: no end of errors at step %d", what, next)
			return
		}
		var err error
		if p.s == nil {
			if err = p.open(); err == nil {
				continue
			}
			p.s = nil
		} else if next, err = p.play(ctx, next); err == nil {
			break
		}
		var fault *store.UnavailableError
		if !errors.Is(err, tr.err) || p.s != nil && tr.name != "read" && !errors.As(err, &fault) {
			t.Errorf("%s: step %d: %v, want an UnavailableError with %v", what, next, err, tr.err)
			return
		}
		if p.s == nil {
			continue
		}
		for until := time.Now().Add(time.Minute); p.s.Health(ctx) != nil && time.Now().Before(until); {
			time.Sleep(time.Second) // of the bubble's time
		}
		if herr := p.s.Health(ctx); herr != nil && !errors.Is(herr, store.ErrClosed) {
			if !errors.As(herr, &fault) || !fault.Lasting {
				t.Errorf("%s: a minute after the error the store is not well: %v", what, herr)
			}
			_ = p.s.Close() // it says what it was
			p.s = nil
		}
	}
	if err, fault := p.s.Close(), (*store.UnavailableError)(nil); err != nil && !errors.As(err, &fault) {
		t.Errorf("%s: Close: %v", what, err)
	}
	if got := p.acked.Load(); got != p.revision() {
		t.Errorf("%s: %d was confirmed at the end, want %d", what, got, p.revision())
	}
}
