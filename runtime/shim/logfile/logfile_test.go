// SPDX-License-Identifier: Apache-2.0

package logfile

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"keelson/lib/logrotate"
)

var at = time.Date(2026, 1, 2, 3, 4, 5, 678900000, time.UTC)

const stamp = "2026-01-02T03:04:05.6789Z "

func TestWrite(t *testing.T) {
	long := strings.Repeat("x", MaxLine)
	tests := []struct {
		name   string
		writes []string // alternately stdout and stderr when two is set
		two    bool
		want   string
	}{
		{"one line", []string{"hello\n"}, false, stamp + "stdout F hello\n"},
		{"empty line", []string{"\n"}, false, stamp + "stdout F \n"},
		{"two lines", []string{"a\nb\n"}, false, stamp + "stdout F a\n" + stamp + "stdout F b\n"},
		{
			"line in pieces",
			[]string{"he", "ll", "o\nnext"},
			false,
			stamp + "stdout F hello\n" + stamp + "stdout P next\n",
		},
		{"exactly full", []string{long + "\n"}, false, stamp + "stdout F " + long + "\n"},
		{"one more", []string{long + "y\n"}, false, stamp + "stdout P " + long + "\n" + stamp + "stdout F y\n"},
		{
			"full in pieces",
			[]string{long, "y", "\n"},
			false,
			stamp + "stdout P " + long + "\n" + stamp + "stdout F y\n",
		},
		{
			"streams apart",
			[]string{"out", "err\n", "put\n"},
			true,
			stamp + "stderr F err\n" + stamp + "stdout F output\n",
		},
		{"carriage return kept", []string{"a\r\n"}, false, stamp + "stdout F a\r\n"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			writer, err := Open(path, logrotate.Policy{})
			if err != nil {
				t.Fatal(err)
			}
			for i, p := range tc.writes {
				s := Stdout
				if tc.two {
					s = Stream(i % 2)
				}
				if err := writer.Write(s, []byte(p), at); err != nil {
					t.Fatal(err)
				}
			}
			if err := writer.Close(at); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tc.want {
				t.Errorf("writes %.60q: got %.200q, want %.200q", tc.writes, got, tc.want)
			}
		})
	}
}

func TestReopenAndRestore(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	writer, err := Open(path, logrotate.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	write := func(w *Writer, p string) {
		t.Helper()
		if err := w.Write(Stdout, []byte(p), at); err != nil {
			t.Fatal(err)
		}
	}
	write(writer, "one\nhal")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := writer.Reopen(); err != nil {
		t.Fatal(err)
	}
	next, err := Open(path, logrotate.Policy{}) // another process continues
	if err != nil {
		t.Fatal(err)
	}
	next.Restore(writer.Pending())
	write(next, "f\n")
	for file, want := range map[string]string{path + ".1": stamp + "stdout F one\n", path: stamp + "stdout F half\n"} {
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", file, got, err, want)
		}
	}
}

func TestNoPath(t *testing.T) {
	w, err := Open("", logrotate.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(Stdout, []byte("x\n"), at); err != nil {
		t.Error(err)
	}
	if err := w.Close(at); err != nil {
		t.Error(err)
	}
}

// FuzzWrite: for any output, split into any writes, the concatenated texts of the log equal the output.
func FuzzWrite(f *testing.F) {
	f.Add([]byte("a\nb"), 1)
	f.Add([]byte("\n\r\n\x00\n"), 2)
	f.Add(bytes.Repeat([]byte("z"), MaxLine+3), 7)
	f.Fuzz(func(t *testing.T, out []byte, cut int) {
		path := filepath.Join(t.TempDir(), "log")
		w, err := Open(path, logrotate.Policy{})
		if err != nil {
			t.Fatal(err)
		}
		cut = max(1, min(cut, len(out)))
		for p := out; len(p) > 0; p = p[min(cut, len(p)):] {
			if err := w.Write(Stdout, p[:min(cut, len(p))], at); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(at); err != nil {
			t.Fatal(err)
		}
		log, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var got []byte
		for line := range bytes.Lines(log) {
			head := line[:len(stamp)+len("stdout F ")]
			text := line[len(stamp)+len("stdout F "):]
			if len(text)-1 > MaxLine {
				t.Errorf("a log line holds %d bytes", len(text)-1)
			}
			if head[len(head)-2] == 'P' {
				text = text[:len(text)-1]
			}
			got = append(got, text...)
		}
		if !bytes.Equal(got, out) {
			t.Errorf("output %q cut by %d: got %q", out, cut, got)
		}
	})
}

func BenchmarkWrite(b *testing.B) {
	w, err := Open(filepath.Join(b.TempDir(), "log"), logrotate.Policy{})
	if err != nil {
		b.Fatal(err)
	}
	p := bytes.Repeat([]byte("a line of a usual length, as programs print them\n"), 100)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		if err := w.Write(Stdout, p, at); err != nil {
			b.Fatal(err)
		}
	}
}

// TestLinkInTheLogsPlace: output is never written through a symbolic link at the log's path.
func TestLinkInTheLogsPlace(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	path := filepath.Join(dir, "0.log")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{victim, filepath.Join(dir, "new")} {
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		if w, err := Open(path, logrotate.Policy{}); err == nil {
			t.Errorf("opened a link to %s", target)
			_ = w.Close(at)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := os.ReadFile(victim); string(b) != "precious" || err != nil {
		t.Errorf("the file outside: %q, %v", b, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "new")); err == nil {
		t.Error("a file was made through a link")
	}
}
