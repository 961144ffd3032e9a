// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keelson/store"
)

// acked is a write that the store confirmed.
type acked struct {
	key, value string
	rev        int64
}

// verify opens what a crash left in fs and checks that every confirmed write is there and that the log has no gap.
func verify(t *testing.T, what string, fs vfs.FS, writes []acked) {
	t.Helper()
	st, err := Open(Options{Dir: "data", FS: fs})
	if err != nil {
		t.Errorf("%s: Open: %v", what, err)
		return
	}
	defer func() {
		if err := st.Close(); err != nil {
			t.Errorf("%s: Close: %v", what, err)
		}
	}()
	ctx := t.Context()
	latest := st.durable.Load()
	for _, w := range writes {
		if w.rev > latest {
			t.Errorf("%s: revision %d was confirmed, the store is at %d", what, w.rev, latest)
			return
		}
		if w.rev < st.compacted.Load() {
			continue
		}
		kv, _, err := st.Get(ctx, w.key, w.rev)
		if err != nil || string(kv.Value) != w.value || kv.Revision != w.rev {
			t.Errorf("%s: Get(%s, %d): got %.20q@%d, %v; want %.20q", what, w.key, w.rev, kv.Value, kv.Revision, err,
				w.value)
			return
		}
	}
	from := max(st.compacted.Load(), firstRevision)
	for from < latest {
		events, err := st.readLog(from)
		if err != nil {
			t.Errorf("%s: log after %d: %v", what, from, err)
			return
		}
		from = events[len(events)-1].KV.Revision
	}
	if w, err := st.Create(ctx, "/after", nil); err != nil || w.Revision != latest+1 {
		t.Errorf("%s: Create after recovery: got %d, %v; want %d", what, w.Revision, err, latest+1)
	}
}

// load writes with several writers until each has done n writes or met an error, and keeps what was confirmed.
type load struct {
	mu     sync.Mutex
	writes []acked
	// refused is asked when a write failed; true: the writer looks what became of it and goes on.
	refused func(error) bool
}

func (l *load) confirmed() []acked {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]acked(nil), l.writes...)
}

func (l *load) run(ctx context.Context, st *Store, n, size int) error {
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() {
			key := fmt.Sprintf("/w%d", i)
			rev := int64(0)
			for j := range n {
				value := fmt.Sprintf("%s#%d", key, j) + strings.Repeat("x", size)
				var err error
				if rev, err = l.write(ctx, st, key, value, rev); err != nil {
					errs[i] = err
					return
				}
				l.mu.Lock()
				l.writes = append(l.writes, acked{key, value, rev})
				l.mu.Unlock()
				if i == 0 && j%20 == 19 {
					if err := st.Compact(ctx, rev-10); err != nil && (l.refused == nil || !l.refused(err)) {
						errs[i] = errors.Join(errs[i], err)
					}
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// write brings value to key, whose last known revision is rev (0: none), and returns its revision.
func (l *load) write(ctx context.Context, st *Store, key, value string, rev int64) (int64, error) {
	for {
		var w store.Written
		var err error
		if rev == 0 {
			w, err = st.Create(ctx, key, []byte(value))
		} else {
			w, err = st.Update(ctx, key, []byte(value), rev)
		}
		if err == nil || l.refused == nil {
			return w.Revision, err
		}
		if c := (*store.ConflictError)(nil); errors.As(err, &c) || errors.Is(err, store.ErrExists) {
			kv, _, gerr := st.Get(ctx, key, 0)
			if gerr != nil || string(kv.Value) != value {
				return 0, fmt.Errorf("%w, but what is there is %.20q@%d, %w", err, kv.Value, kv.Revision, gerr)
			}
			return kv.Revision, nil // the write with the unknown outcome happened
		}
		if !l.refused(err) {
			return 0, err
		}
	}
}

// TestPowerLoss takes a copy of the file system, without what was not synced, at moments all over the life of a store:
// before every operation that changes files, thinned out at random.
func TestPowerLoss(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	mem := vfs.NewCrashableMem()
	l := &load{}
	type crash struct {
		op     string
		fs     *vfs.MemFS
		writes []acked
	}
	var mu sync.Mutex
	var crashes []crash
	cut := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsRead {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		wal := strings.HasSuffix(op.Path, ".log")
		if wal && rng.IntN(8) != 0 || !wal && rng.IntN(5) != 0 || len(crashes) > 150 {
			return nil
		}
		writes := l.confirmed() // before the copy: what is confirmed later may be lost
		cfg := vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 0, 50, 100}[rng.IntN(4)], RNG: rng}
		crashes = append(crashes, crash{fmt.Sprintf("%d %s", op.Kind, op.Path), mem.CrashClone(cfg), writes})
		return nil
	})
	s := open(t, Options{Dir: "data", FS: errorfs.Wrap(mem, cut)})
	if err := l.run(t.Context(), s, 80, 6000); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for i, c := range crashes {
		verify(t, fmt.Sprintf("crash %d before %s", i, c.op), c.fs, c.writes)
	}
	verify(t, "clean end", mem.CrashClone(vfs.CrashCloneCfg{}), l.confirmed())
	t.Logf("%d crashes", len(crashes))
	if len(crashes) < 20 {
		t.Errorf("only %d crashes were tried", len(crashes))
	}
}

// TestKill9 kills a process that writes, again and again on the same directory, and checks that nothing it confirmed is
// lost.
func TestKill9(t *testing.T) {
	if dir := os.Getenv("KEELSON_TEST_STORE"); dir != "" {
		child(t, dir)
		return
	}
	dir := t.TempDir()
	rounds := 30
	if testing.Short() {
		rounds = 5
	}
	if n, err := strconv.Atoi(os.Getenv("KEELSON_TEST_KILL_ROUNDS")); err == nil {
		rounds = n
	}
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	for round := range rounds {
		last := killOnce(t, dir, 1+rng.IntN(300))
		noted, err := readLastRevision(Options{Dir: dir, FS: vfs.Default})
		if top := slices.Max(slices.Collect(maps.Values(last))); err != nil || noted.revision < top {
			t.Errorf("round %d: last-revision says %d, %v; %d was confirmed", round, noted.revision, err, top)
		}
		st, err := Open(Options{Dir: dir})
		if err != nil {
			t.Fatalf("round %d: Open: %v", round, err)
		}
		for key, rev := range last {
			kv, latest, err := st.Get(t.Context(), key, 0)
			if err != nil || kv.Revision < rev {
				t.Errorf("round %d: %s was confirmed at %d, got %d (store at %d), %v", round, key, rev, kv.Revision,
					latest, err)
			}
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// killOnce runs a child until it has confirmed n writes, kills it, and returns the last confirmed revision of each key.
func killOnce(t *testing.T, dir string, n int) map[string]int64 {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKill9$")
	cmd.Env = append(os.Environ(), "KEELSON_TEST_STORE="+dir)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last := map[string]int64{}
	lines := bufio.NewReader(out)
	for i := 0; ; i++ {
		if i == n {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		line, err := lines.ReadString('\n') // what was printed before the kill counts too
		if errors.Is(err, io.EOF) {
			break
		}
		var key string
		var rev int64
		if c, err := fmt.Sscanf(line, "acked %s %d\n", &key, &rev); err != nil || c != 2 {
			t.Fatalf("child said %q, %v\n%s", line, err, &stderr)
		}
		last[key] = rev
	}
	_ = cmd.Wait() // it was killed
	if len(last) == 0 {
		t.Fatalf("child confirmed nothing\n%s", &stderr)
	}
	return last
}

// child writes until it is killed, and prints what was confirmed.
func child(t *testing.T, dir string) {
	st, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range 4 {
		wg.Go(func() {
			key := fmt.Sprintf("/k%d", i)
			for {
				cur, _, err := st.Get(t.Context(), key, 0)
				var written store.Written
				if errors.Is(err, store.ErrNotFound) {
					written, err = st.Create(t.Context(), key, []byte("v"))
				} else if err == nil {
					written, err = st.Update(t.Context(), key, bytes.Repeat([]byte("v"), 5000), cur.Revision)
				}
				if err != nil {
					fmt.Println(err)
					os.Exit(1)
				}
				mu.Lock()
				fmt.Printf("acked %s %d\n", key, written.Revision)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}
