// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"keelson/store"
)

// lossKeys is how many objects the stores of these tests hold: some in tables, some in the log alone.
const lossKeys = 300

// filled makes a store of lossKeys objects; stop says whether it is stopped or killed. It returns its directory and its
// revision.
func filled(t *testing.T, stop bool) (string, int64) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	st, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for i := range lossKeys {
		if _, err := st.Create(t.Context(), fmt.Sprintf("/k%04d", i), bytes.Repeat([]byte{byte(i)}, 900)); err != nil {
			t.Fatal(err)
		}
		if i == lossKeys/3 {
			if err := st.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	rev := st.durable.Load()
	if !stop { // what a killed process leaves is what the directory holds now
		killed := filepath.Join(t.TempDir(), "killed")
		copyDir(t, dir, killed)
		dir = killed
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, rev
}

func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// dirFiles are the contents of the files in dir by name, but for the lock.
func dirFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if e.Name() != "LOCK" {
			out[e.Name()] = string(b)
		}
	}
	return out
}

// newest is the name of the newest file that begins and ends so.
func newest(t *testing.T, dir, begin, end string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, begin+"*"+end))
	if err != nil || len(found) == 0 {
		t.Fatalf("no %s*%s: %v", begin, end, err)
	}
	return filepath.Base(slices.Max(found))
}

// whole fails the test unless the store in dir has everything.
func whole(t *testing.T, what string, s *Store, rev int64) {
	t.Helper()
	page, err := s.List(t.Context(), store.Range{Prefix: "/k"})
	if err != nil || len(page.Items) != lossKeys || page.Revision < rev {
		t.Errorf("%s: %d of %d objects at revision %d, %d was confirmed, and no word of it: %v", what, len(page.Items),
			lossKeys, page.Revision, rev, err)
	}
}

// lossOr opens dir: everything must be there, or the answer be a *DataLossError that changes nothing. It returns the
// latter.
func lossOr(t *testing.T, what, dir string, rev int64) *DataLossError {
	t.Helper()
	before := dirFiles(t, dir)
	s, err := Open(Options{Dir: dir})
	if err == nil {
		whole(t, what, s, rev)
		if err := s.Close(); err != nil {
			t.Errorf("%s: close: %v", what, err)
		}
		return nil
	}
	var lost *DataLossError
	if !errors.As(err, &lost) {
		t.Errorf("%s: %v, want a *DataLossError", what, err)
		return &DataLossError{}
	}
	if lost.Expected != 0 && lost.Expected != rev || lost.Found > rev {
		t.Errorf("%s: expected %d, found %d; the store was at %d: %v", what, lost.Expected, lost.Found, rev, err)
	}
	if after := dirFiles(t, dir); !maps.Equal(before, after) {
		t.Errorf("%s: the refused start changed files: %v, before %v", what, slices.Sorted(maps.Keys(after)),
			slices.Sorted(maps.Keys(before)))
	}
	return lost
}

// cuts are lengths to which a file of size bytes is truncated.
func cuts(rng *rand.Rand, size, n int) []int {
	out := []int{0, 1, size / 2, size - 1, max(size-12, 0), max(size-100, 0)}
	for range n {
		out = append(out, rng.IntN(size))
	}
	return out
}

// TestLossAfterCleanStop removes, truncates and changes each file of a store that was stopped: the next start names the
// file.
func TestLossAfterCleanStop(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	from, rev := filled(t, true)
	try := func(name, what string, change func(path string) error) {
		dir := filepath.Join(t.TempDir(), "d")
		copyDir(t, from, dir)
		if err := change(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		lost := lossOr(t, name+" "+what, dir, rev)
		switch {
		case name == lastRevisionFile || name == cleanStopFile && what == "removed":
			if lost != nil { // they are not the store: all is there
				t.Errorf("%s %s: %v", name, what, lost)
			}
		case lost == nil:
			t.Errorf("%s %s: the store opens", name, what)
		case !strings.Contains(lost.Error(), "file "+name):
			t.Errorf("%s %s: %q does not name the file", name, what, lost)
		}
	}
	for name, content := range dirFiles(t, from) {
		try(name, "removed", os.Remove)
		if len(content) == 0 {
			continue
		}
		n := 2
		if name == newest(t, from, "", ".log") {
			n = 60
		}
		for _, size := range cuts(rng, len(content), n) {
			try(name, fmt.Sprintf("truncated to %d of %d", size, len(content)), func(path string) error {
				return os.Truncate(path, int64(size))
			})
		}
		if strings.HasSuffix(name, ".sst") || strings.HasPrefix(name, "OPTIONS") {
			continue // a table has checksums of its own: TestDamagedFiles
		}
		for range n {
			at := rng.IntN(len(content))
			try(name, fmt.Sprintf("with byte %d changed", at), func(path string) error {
				return os.WriteFile(path, []byte(content[:at]+string(content[at]^0x20)+content[at+1:]), 0o600)
			})
		}
	}
}

// TestLossAfterKill does it to a store that was killed: what was acknowledged is there, or the start says that it is
// not.
func TestLossAfterKill(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	from, rev := filled(t, false)
	log := newest(t, from, "", ".log")
	refused := 0
	for name, content := range dirFiles(t, from) {
		changes := map[string]func(path string) error{"removed": os.Remove}
		n := 2
		if name == log {
			n = 60
		}
		if len(content) > 0 {
			for _, size := range cuts(rng, len(content), n) {
				changes[fmt.Sprintf("truncated to %d of %d", size, len(content))] = func(path string) error {
					return os.Truncate(path, int64(size))
				}
			}
		}
		for what, change := range changes {
			dir := filepath.Join(t.TempDir(), "d")
			copyDir(t, from, dir)
			if err := change(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
			if name != log && name != lastRevisionFile && !isManifestMarker(name) {
				// the engine says it in its own words; all must be there otherwise
				if s, err := Open(Options{Dir: dir}); err == nil {
					whole(t, name+" "+what, s, rev)
					_ = s.Close()
				}
				continue
			}
			lost := lossOr(t, name+" "+what, dir, rev)
			if lost != nil {
				refused++
			}
			if name == log && what == "removed" && (lost == nil || !strings.Contains(lost.Error(), "file "+log) ||
				lost.Expected != rev || lost.Found >= rev || lost.Found == 0) {
				t.Errorf("%s %s: %v; want the file, revision %d expected and an earlier one found", name, what, lost,
					rev)
			}
		}
	}
	if refused < 30 {
		t.Errorf("only %d starts were refused", refused)
	}
}

// TestAcceptDataLoss: with AcceptDataLoss the store goes on without what is lost, at revisions that no one has seen;
// the next start does not need it again.
func TestAcceptDataLoss(t *testing.T) {
	for _, stop := range []bool{true, false} {
		for _, what := range []string{"removed", "truncated", "no marker", cleanStopFile} {
			if what == cleanStopFile && !stop {
				continue // a killed store leaves none
			}
			t.Run(fmt.Sprintf("%s, stopped %t", what, stop), func(t *testing.T) {
				dir, rev := filled(t, stop)
				log := filepath.Join(dir, newest(t, dir, "", ".log"))
				var err error
				switch what {
				case "removed":
					err = os.Remove(log)
				case "truncated":
					err = os.Truncate(log, 50_000)
				case "no marker":
					err = os.Remove(filepath.Join(dir, newest(t, dir, "marker.manifest.", "")))
				case cleanStopFile:
					err = os.Truncate(filepath.Join(dir, cleanStopFile), 50)
				}
				if err != nil {
					t.Fatal(err)
				}
				if lossOr(t, what, dir, rev) == nil {
					t.Fatal("the store opens")
				}
				st, err := Open(Options{Dir: dir, AcceptDataLoss: true})
				if err != nil {
					t.Fatal(err)
				}
				now, err := st.Revision(t.Context())
				if err != nil || now <= rev {
					t.Errorf("it is at revision %d, %v; %d was acknowledged before", now, err, rev)
				}
				if _, err := st.Watch(t.Context(), "/", rev-1); !errors.Is(err, store.ErrCompacted) {
					t.Errorf("Watch from before: %v, want ErrCompacted", err)
				}
				if w, err := st.Create(t.Context(), "/new", nil); err != nil || w.Revision != now+1 {
					t.Errorf("Create: %d, %v; want %d", w.Revision, err, now+1)
				}
				if err := st.Compact(t.Context(), now+1); err != nil {
					t.Error(err)
				}
				if err := st.Close(); err != nil {
					t.Fatal(err)
				}
				again := open(t, Options{Dir: dir})
				if got, err := again.Revision(t.Context()); err != nil || got != now+1 {
					t.Errorf("the next start is at %d, %v; want %d", got, err, now+1)
				}
			})
		}
	}
}

// TestUnreadable: where the engine cannot go on, the refusal says so, and AcceptDataLoss is of no help.
func TestUnreadable(t *testing.T) {
	dir, rev := filled(t, true)
	log := filepath.Join(dir, newest(t, dir, "", ".log"))
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	b[40_000] ^= 1
	if err := os.WriteFile(log, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if lost := lossOr(t, "broken amid", dir, rev); lost == nil || !lost.Unreadable ||
		!strings.Contains(lost.Error(), "what is left cannot be read") {
		t.Errorf("Open: %v, want that what is left cannot be read", lost)
	}
	if s, err := Open(Options{Dir: dir, AcceptDataLoss: true}); err == nil {
		_ = s.Close()
		t.Error("the store opens")
	} else if !strings.Contains(err.Error(), "restore a backup") {
		t.Errorf("Open with AcceptDataLoss: %v, want the advice to restore a backup", err)
	}
}

// TestNoLoss: what is no loss is none.
func TestNoLoss(t *testing.T) {
	slots := func(change func(b []byte)) func(string) error {
		return func(dir string) error {
			path := filepath.Join(dir, lastRevisionFile)
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			change(b)
			return os.WriteFile(path, b, 0o600)
		}
	}
	older := func(dir string) error { // as a version left it that knew neither file
		db, err := openEngine(Options{Dir: dir, FS: vfs.Default, CacheBytes: 1 << 20}, newRetryFS(vfs.Default,
			func(*fault) {}), &engineLog{log: slog.New(slog.DiscardHandler)}, func(*pebble.Options) {})
		if err != nil {
			return err
		}
		return errors.Join(db.Delete(keyNoted, pebble.Sync), db.Close(),
			os.RemoveAll(filepath.Join(dir, lastRevisionFile)), os.RemoveAll(filepath.Join(dir, cleanStopFile)))
	}
	for name, change := range map[string]func(dir string) error{
		"nothing":             func(string) error { return nil },
		"a torn first slot":   slots(func(b []byte) { clear(b[:slotUsed/2]) }),
		"a torn second slot":  slots(func(b []byte) { clear(b[slotSize : slotSize+20]) }),
		"an older version":    older,
		"an older one, since": func(dir string) error { return runOlder(dir) },
		"a strange file": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "notes.txt"), nil, 0o600)
		},
		"an unfinished mark": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, cleanStopFile+".new"), []byte("keel"), 0o600)
		},
	} {
		for _, stop := range []bool{true, false} {
			dir, rev := filled(t, stop)
			if err := change(dir); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for round := range 2 {
				if lost := lossOr(t, name, dir, rev); lost != nil {
					t.Errorf("%s, stopped %t, round %d: %v", name, stop, round, lost)
				}
			}
			if _, err := os.Stat(filepath.Join(dir, cleanStopFile)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// runOlder runs a version on dir that knows no marks: the engine opens, writes a new log and closes.
func runOlder(dir string) error {
	db, err := openEngine(Options{Dir: dir, FS: vfs.Default, CacheBytes: 1 << 20}, newRetryFS(vfs.Default,
		func(*fault) {}), &engineLog{log: slog.New(slog.DiscardHandler)}, func(*pebble.Options) {})
	if err != nil {
		return err
	}
	return errors.Join(db.Set([]byte("mother"), putNumber(1), pebble.Sync), db.Flush(), db.Close())
}

// TestMustExist: a directory that is to hold a store and does not is refused.
func TestMustExist(t *testing.T) {
	for _, made := range []bool{true, false} {
		dir := filepath.Join(t.TempDir(), "store")
		if made {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Open(Options{Dir: dir, MustExist: true})
		want := map[bool]string{true: " is empty", false: " is missing"}[made]
		if lost := (*DataLossError)(nil); !errors.As(err, &lost) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("directory there %t: %v, want a *DataLossError with %q", made, err, want)
		}
		if _, err := os.Stat(filepath.Join(dir, "LOCK")); err == nil {
			t.Errorf("directory there %t: the refused open left LOCK", made)
		}
		s, err := Open(Options{Dir: dir, MustExist: true, AcceptDataLoss: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		open(t, Options{Dir: dir, MustExist: true})
	}
}

// TestOneSyncAWrite: what is written in addition to the log costs a write no sync.
func TestOneSyncAWrite(t *testing.T) {
	var syncs, notes atomic.Int64
	st := open(t, Options{
		Dir: "data",
		FS: errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if isSync(op.Kind) {
				syncs.Add(1)
			}
			if op.Kind == errorfs.OpFileWriteAt && strings.HasSuffix(op.Path, lastRevisionFile) {
				notes.Add(1)
			}
			return nil
		})),
	})
	before := syncs.Load()
	noted := notes.Load()
	const n = 100
	for i := range n {
		if _, err := st.Create(t.Context(), fmt.Sprintf("/%d", i), []byte("v")); err != nil {
			t.Fatal(err)
		}
	}
	if got := syncs.Load() - before; got != n {
		t.Errorf("%d syncs for %d writes", got, n)
	}
	if got := notes.Load() - noted; got != n {
		t.Errorf("last-revision was written %d times for %d writes", got, n)
	}
}

// FuzzCleanStop: only what is whole is read, and it is written again the same.
func FuzzCleanStop(f *testing.F) {
	c := cleanStop{
		revision: 2015,
		files:    []stoppedFile{{"000004.log", 123456, "crc32c:0a1b2c3d"}, {"000005.sst", 7890, ""}},
	}
	f.Add(c.encode())
	f.Add((&cleanStop{}).encode())
	f.Add(c.encode()[:60])
	f.Add([]byte("sha256:\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseCleanStop(b)
		if err != nil {
			return
		}
		again, err := parseCleanStop(c.encode())
		if err != nil || again.revision != c.revision || !slices.Equal(again.files, c.files) {
			t.Errorf("%q: %v, then %v, %v", b, c, again, err)
		}
	})
}

// FuzzSlots: of a file with a torn slot the other counts, and nothing else does.
func FuzzSlots(f *testing.F) {
	two := make([]byte, 2*slotSize)
	copy(two, slot{7, 1}.encode())
	copy(two[slotSize:], slot{8, 2}.encode())
	f.Add(two)
	f.Add(two[:slotUsed])
	f.Add([]byte(slotMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeSlots(b)
		if err != nil {
			return
		}
		if s.revision <= 0 || !bytes.Contains(b, s.encode()) {
			t.Errorf("%q: read %v, which is not in it", b, s)
		}
	})
}
