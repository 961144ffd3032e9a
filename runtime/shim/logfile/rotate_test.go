// SPDX-License-Identifier: Apache-2.0

package logfile

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"keelson/lib/logrotate"
)

// texts reads all of a log's files, the oldest first, and checks each file's size and each line's form.
func texts(t *testing.T, path string, maxSize int64) string {
	t.Helper()
	older, err := logrotate.List(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, file := range append(older, logrotate.File{Name: path}) {
		b, err := os.ReadFile(file.Path())
		if err != nil {
			t.Fatal(err)
		}
		if file.Compressed {
			gz, err := gzip.NewReader(bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			if b, err = io.ReadAll(gz); err != nil {
				t.Fatal(err)
			}
		}
		if int64(len(b)) > maxSize {
			t.Errorf("%s has %d bytes, more than %d", file.Path(), len(b), maxSize)
		}
		for line := range bytes.Lines(b) {
			f := bytes.SplitN(line, []byte{' '}, 4)
			if len(f) != 4 || string(f[1]) != "stdout" || line[len(line)-1] != '\n' {
				t.Fatalf("torn line %.80q", line)
			}
			out.Write(f[3])
		}
	}
	return out.String()
}

func TestRotateKeepsEveryLineWithinBounds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	policy := logrotate.Policy{MaxSize: 4000, MaxFiles: 5}
	writer, err := Open(path, policy)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	now := at
	for i := range 2000 {
		line := fmt.Sprintf("%06d %s\n", i, strings.Repeat("x", i%97))
		all.WriteString(line)
		now = now.Add(100 * time.Millisecond)
		if err := writer.Write(Stdout, []byte(line), now); err != nil {
			t.Fatal(err)
		}
		if older, err := logrotate.List(path); err != nil || len(older) > policy.MaxFiles-1 {
			t.Fatalf("after line %d: %d files next to the log, %v; want at most %d", i, len(older), err,
				policy.MaxFiles-1)
		}
	}
	if err := writer.Close(now); err != nil {
		t.Fatal(err)
	}
	got := texts(t, path, policy.MaxSize)
	if !strings.HasSuffix(all.String(), got) || len(got) < int(policy.MaxSize) || !strings.HasPrefix(got, "00") {
		t.Errorf("the log's files hold %.30q .. (%d bytes): not the newest whole lines of the output", got, len(got))
	}
	if older, _ := logrotate.List(path); len(older) != policy.MaxFiles-1 {
		t.Errorf("%d files next to the log, want %d: %v", len(older), policy.MaxFiles-1, older)
	}
	leftovers, err := filepath.Glob(path + "*.tmp")
	if err != nil || len(leftovers) != 0 {
		t.Errorf("left behind: %v, %v", leftovers, err)
	}
}

// TestRotateOneLargeRead: one read of the container's output may fill several files.
func TestRotateOneLargeRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	w, err := Open(path, logrotate.Policy{MaxSize: 1000, MaxFiles: 1000})
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("a line of output\n", 1000) + strings.Repeat("y", 3000) + "\n"
	if err := w.Write(Stdout, []byte(want), at); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(at); err != nil {
		t.Fatal(err)
	}
	if got := texts(t, path, 4000); got != want { // the last line alone is longer than a file may be
		t.Errorf("the log's files hold %d bytes of output, want all %d", len(got), len(want))
	}
}

func TestNoRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	writer, err := Open(path, logrotate.Policy{MaxSize: -1, MaxFiles: 5})
	if err != nil {
		t.Fatal(err)
	}
	big := bytes.Repeat([]byte("0123456789abcde\n"), 1<<16)
	for range 12 {
		if err := writer.Write(Stdout, big, at); err != nil {
			t.Fatal(err)
		}
	}
	if older, err := logrotate.List(path); err != nil || len(older) != 0 {
		t.Errorf("rotated without a limit: %v, %v", older, err)
	}
	writer.SetPolicy(logrotate.Policy{MaxSize: 1 << 20, MaxFiles: 2})
	if err := writer.Write(Stdout, []byte("x\n"), at); err != nil {
		t.Fatal(err)
	}
	if older, err := logrotate.List(path); err != nil || len(older) != 1 {
		t.Errorf("after SetPolicy: %v, %v; want one file moved aside", older, err)
	}
}

// TestBoundWithoutDirectory: a log whose directory was removed still has its bound.
func TestBoundWithoutDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pod")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := Open(filepath.Join(dir, "0.log"), logrotate.Policy{MaxSize: 1000, MaxFiles: 3})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	var failed error
	for range 100 {
		failed = errors.Join(failed, w.Write(Stdout, []byte("some output of a container\n"), at))
		if st, err := w.f.Stat(); err != nil || st.Size() > 1000 {
			t.Fatalf("the log has %d bytes, %v; want at most 1000", st.Size(), err)
		}
	}
	if failed == nil {
		t.Error("no write reported that the log could not be rotated")
	}
}

func TestOpenEndsALineThatACrashCutOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(path, []byte(stamp+"stdout F whole\n"+stamp+"stdo"), 0o600); err != nil {
		t.Fatal(err)
	}
	w, err := Open(path, logrotate.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(Stdout, []byte("next\n"), at); err != nil {
		t.Fatal(err)
	}
	want := stamp + "stdout F whole\n" + stamp + "stdo\n" + stamp + "stdout F next\n"
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

func TestRotatedFilesAreCompressed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	writer, err := Open(path, logrotate.Policy{MaxSize: 200, MaxFiles: 6})
	if err != nil {
		t.Fatal(err)
	}
	now := at
	for range 30 {
		now = now.Add(compressInterval + time.Second)
		if err := writer.Write(Stdout, []byte("some output of a container\n"), now); err != nil {
			t.Fatal(err)
		}
		writer.compressor.wg.Wait()
	}
	older, err := logrotate.List(path)
	if err != nil || len(older) != 5 {
		t.Fatalf("files: %v, %v; want 5 next to the log", older, err)
	}
	for i, f := range older {
		if newest := i == len(older)-1; f.Compressed == newest {
			t.Errorf("%s: compressed is %t; all but the newest should be", f.Path(), f.Compressed)
		}
	}
	if err := writer.Close(now); err != nil {
		t.Fatal(err)
	}
}
