// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"keelson/lib/logrotate"
)

func entryAt(i int, text string) string {
	return fmt.Sprintf("2026-01-01T00:00:%02d.000000000Z stdout F %s\n", i, text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func compressed(t *testing.T, path string) {
	t.Helper()
	if err := logrotate.Compress(t.Context(), logrotate.File{Name: path}, &sync.Mutex{}); err != nil {
		t.Fatal(err)
	}
}

func readAll(t *testing.T, path string, o Options) string {
	t.Helper()
	if !o.Stdout && !o.Stderr {
		o.Stdout = true
		o.Stderr = true
	}
	var b bytes.Buffer
	if err := Read(t.Context(), path, o, &b); err != nil {
		t.Fatalf("Read(%+v): %v", o, err)
	}
	return b.String()
}

func TestParse(t *testing.T) {
	tests := map[string]struct {
		in      string
		text    string
		stream  Stream
		partial bool
		bad     bool
	}{
		"full":           {"2016-10-06T00:17:09.669794202Z stdout F hi there\n", "hi there\n", Stdout, false, false},
		"partial":        {"2016-10-06T00:17:09.669794202Z stderr P half\n", "half", Stderr, true, false},
		"more tags":      {"2016-10-06T00:17:09.669794202Z stderr P:x half\n", "half", Stderr, true, false},
		"empty":          {"2016-10-06T00:17:09.669794202Z stdout F \n", "\n", Stdout, false, false},
		"without blank":  {"2016-10-06T00:17:09.669794202Z stdout F\n", "\n", Stdout, false, false},
		"zone":           {"2016-10-06T00:17:09.669794202+02:00 stdout F x\n", "x\n", Stdout, false, false},
		"no time":        {"stdout F x\n", "", "", false, true},
		"unknown stream": {"2016-10-06T00:17:09Z stdin F x\n", "", "", false, true},
		"unknown tag":    {"2016-10-06T00:17:09Z stdout Q x\n", "", "", false, true},
		"nothing":        {"", "", "", false, true},
	}
	for name, tt := range tests {
		l, err := Parse([]byte(tt.in))
		if (err != nil) != tt.bad || string(l.Text) != tt.text || l.Stream != tt.stream || l.Partial != tt.partial {
			t.Errorf("%s: Parse(%q) = %q %q %t, %v; want %q %q %t, error %t", name, tt.in, l.Text, l.Stream, l.Partial,
				err, tt.text, tt.stream, tt.partial, tt.bad)
		}
	}
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	var all strings.Builder
	for i := range 10 {
		all.WriteString(entryAt(i, fmt.Sprintf("line %d", i)))
	}
	all.WriteString("garbage\n2026-01-01T00:00:20Z stderr P one \n2026-01-01T00:00:20Z stderr F two\n")
	write(t, path, all.String())
	since := time.Date(2026, 1, 1, 0, 0, 9, 0, time.UTC)
	tests := map[string]struct {
		o    Options
		want string
	}{
		"tail":   {Options{Tail: new(int64(3))}, "one two\n"},
		"tail 0": {Options{Tail: new(int64(0))}, ""},
		"since":  {Options{Since: since}, "line 9\none two\n"},
		"limit":  {Options{LimitBytes: new(int64(9))}, "line 0\nli"},
		"stderr": {Options{Stderr: true}, "one two\n"},
		"timestamps": {Options{Since: since, Timestamps: true}, "2026-01-01T00:00:09.000000000Z line " +
			"9\n2026-01-01T00:00:20.000000000Z one two\n"},
	}
	for name, tt := range tests {
		if got := readAll(t, path, tt.o); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
	if got := readAll(t, path, Options{Tail: new(int64(100))}); strings.Count(got, "\n") != 11 {
		t.Errorf("a tail longer than the log: got %q, want all of it", got)
	}
	if got := readAll(t, filepath.Join(t.TempDir(), "none"), Options{}); got != "" {
		t.Errorf("no log: got %q, want nothing", got)
	}
}

func TestReadAcrossRotation(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	write(t, path+".20260101-000001", entryAt(1, "a")+entryAt(2, "b"))
	write(t, path+".20260101-000003", entryAt(3, "c"))
	compressed(t, path+".20260101-000001")
	write(t, path, entryAt(4, "d"))
	if got, want := readAll(t, path, Options{}), "a\nb\nc\nd\n"; got != want {
		t.Errorf("all: got %q, want %q", got, want)
	}
	if got, want := readAll(t, path, Options{Tail: new(int64(3))}), "b\nc\nd\n"; got != want {
		t.Errorf("tail 3: got %q, want %q", got, want)
	}
	if got, want := readAll(t, path, Options{Tail: new(int64(1))}), "d\n"; got != want {
		t.Errorf("tail 1: got %q, want %q", got, want)
	}
}

// pipe collects what a follower writes and lets a test wait for it.
type pipe struct{ got chan string }

func (p *pipe) Write(b []byte) (int, error) {
	p.got <- string(b)
	return len(b), nil
}

func TestFollowAcrossRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, entryAt(1, "a"))
	var alive atomic.Bool
	alive.Store(true)
	p := &pipe{make(chan string, 100)}
	done := make(chan error, 1)
	go func() { // ends when alive is false
		done <- Read(t.Context(), path, Options{
			Follow: true,
			Stdout: true,
			Alive: func(context.Context) bool {
				return alive.Load()
			},
		}, p)
	}()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-p.got:
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("nothing after 30 s, want %q", want)
		}
	}
	expect("a\n")
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	put := func(s string) {
		t.Helper()
		if _, err := file.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
	half := entryAt(2, "b")
	put(half[:20])
	put(half[20:])
	expect("b\n")
	if err := os.Rename(path, path+".20260101-000002"); err != nil {
		t.Fatal(err)
	}
	put(entryAt(3, "last of the old file"))
	expect("last of the old file\n")
	write(t, path, entryAt(4, "first of the new"))
	expect("first of the new\n")
	alive.Store(false)
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Read: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("still following a dead container after 30 s")
	}
}

func TestRotator(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	reopened := 0
	rotator := Rotator{
		Policy: logrotate.Policy{MaxSize: 10, MaxFiles: 3},
		Reopen: func(context.Context, string) error {
			reopened++
			return os.WriteFile(path, nil, 0o600)
		},
	}
	check := func() {
		t.Helper()
		if err := rotator.Check(t.Context(), "id", path); err != nil {
			t.Fatal(err)
		}
	}
	check()
	if reopened != 1 {
		t.Errorf("a missing log was reopened %d times, want once", reopened)
	}
	write(t, path, "short")
	check()
	if all, _ := logrotate.List(path); len(all) != 0 {
		t.Errorf("a short log was rotated: %v", all)
	}
	for i := range 4 {
		write(t, path, entryAt(i, fmt.Sprintf("text %d", i)))
		check()
	}
	all, err := logrotate.List(path)
	if err != nil || len(all) != 2 || !all[0].Compressed || all[1].Compressed {
		t.Errorf("rotated files: got %v, %v; want two, the older compressed", all, err)
	}
	if got, want := readAll(t, path, Options{}), "text 2\ntext 3\n"; got != want {
		t.Errorf("the log reads %q, want %q", got, want)
	}
	write(t, path, entryAt(5, "text 5"))
	rotator.Reopen = func(context.Context, string) error { return errors.New("the runtime is away") }
	if err := rotator.Check(t.Context(), "id", path); err == nil {
		t.Error("a log that the runtime did not reopen: no error")
	}
	if got := readAll(t, path, Options{Tail: new(int64(1))}); got != "text 5\n" {
		t.Errorf("after a failed rotation the log ends with %q, want text 5", got)
	}
}

func TestReadWhatACrashLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path+".20260101-000001", entryAt(1, "a")+entryAt(2, "b"))
	compressed(t, path+".20260101-000001")
	write(t, path+".20260101-000001", entryAt(1, "a")+entryAt(2, "b")) // compressed, and not removed
	write(t, path+".20260101-000002.gz", "no gzip at all")
	write(t, path+".20260101-000003.tmp", "half")
	write(t, path+".20260101-000003", entryAt(3, "c"))
	write(t, path, entryAt(4, "d"))
	if got, want := readAll(t, path, Options{}), "a\nb\nc\nd\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for n, want := range []string{"", "d\n", "c\nd\n", "b\nc\nd\n", "a\nb\nc\nd\n", "a\nb\nc\nd\n"} {
		if got := readAll(t, path, Options{Tail: new(int64(n))}); got != want {
			t.Errorf("tail %d: got %q, want %q", n, got, want)
		}
	}
}

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	for _, n := range []string{"", ".20260101-000001.gz", ".20260101-000002", ".20260101-000002.tmp"} {
		write(t, path+n, "x")
	}
	write(t, filepath.Join(dir, "1.log"), "the next run's")
	for range 2 { // twice
		if err := Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != "1.log" {
		t.Errorf("left: %v, %v; want 1.log alone", left, err)
	}
}

// TestFollowerBehind: several rotations between two looks, and a file that was compressed while it was followed.
func TestFollowerBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, entryAt(1, "a"))
	c := &reader{path: path}
	defer c.close()
	var got bytes.Buffer
	w := newWriter(&got, Options{Stdout: true})
	if err := c.start(Options{}); err != nil {
		t.Fatal(err)
	}
	look := func(want string) {
		t.Helper()
		got.Reset()
		if err := c.catchUp(t.Context(), w, false); err != nil || got.String() != want {
			t.Errorf("got %q, %v; want %q", got.String(), err, want)
		}
	}
	look("a\n")
	aside := func(second int) string {
		t.Helper()
		name := fmt.Sprintf("%s.20260101-0000%02d", path, second)
		if err := os.Rename(path, name); err != nil {
			t.Fatal(err)
		}
		return name
	}
	first := aside(1)
	write(t, path, entryAt(2, "b"))
	second := aside(2)
	write(t, path, entryAt(3, "c"))
	aside(3)
	write(t, path, entryAt(4, "d"))
	compressed(t, first)
	compressed(t, second)
	look("b\nc\nd\n")
	aside(4)
	look("")
	write(t, path, entryAt(5, "e"))
	look("e\n")
	gone := aside(5) // this one is pruned before the follower looks again
	write(t, path, entryAt(6, "f"))
	aside(6)
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	write(t, path, entryAt(7, "g"))
	look("f\ng\n")
	look("")
}

// TestTailOfAGrowingLog: entries that are written between the look for the last ones and their end are not given.
func TestTailOfAGrowingLog(t *testing.T) {
	var out strings.Builder
	w := newWriter(&out, Options{Tail: new(int64(2)), Stdout: true})
	for i, want := range []error{nil, nil, errLimit} {
		if err := w.entry(Line{Stream: Stdout, Text: []byte("line\n")}); !errors.Is(err, want) {
			t.Errorf("entry %d: %v, want %v", i, err, want)
		}
	}
	if got := out.String(); got != "line\nline\n" {
		t.Errorf("got %q, want two lines", got)
	}
	follow := newWriter(&out, Options{Tail: new(int64(0)), Follow: true, Stdout: true})
	if err := follow.entry(Line{Stream: Stdout, Text: []byte("line\n")}); err != nil {
		t.Errorf("one that is followed: %v", err)
	}
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, entryAt(1, "a")+entryAt(2, "b")+entryAt(3, "c"))
	for _, tt := range []struct {
		lines, limit int
		want         string
	}{{2, 100, "b\nc\n"}, {80, 100, "a\nb\nc\n"}, {80, 3, "\nc\n"}} {
		if got, err := Tail(path, tt.lines, tt.limit); err != nil || got != tt.want {
			t.Errorf("Tail(%d lines, %d bytes) = %q, %v; want %q", tt.lines, tt.limit, got, err, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(entryAt(1, "text")))
	f.Add([]byte("2016-10-06T00:17:09Z stdout P\n"))
	f.Add([]byte("2016-10-06T00:17:09.669794202Z stderr F:tag some text\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := Parse(b)
		if err == nil && l.Stream != Stdout && l.Stream != Stderr {
			t.Errorf("Parse(%q): stream %q", b, l.Stream)
		}
	})
}

func FuzzTailOffset(f *testing.F) {
	f.Add([]byte("a\nb\nc\n"), 2)
	f.Add([]byte("\n\n"), 1)
	f.Add([]byte("cut off"), 0)
	f.Add(bytes.Repeat([]byte("a long line of text\n"), 300), 7)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		n = max(min(n, 100), 0)
		at, err := tailOffset(bytes.NewReader(b), int64(len(b)), n)
		if err != nil {
			t.Fatal(err)
		}
		tail := b[at:]
		got := bytes.Count(tail, []byte{'\n'})
		if len(tail) > 0 && tail[len(tail)-1] != '\n' {
			got++
		}
		if got > n {
			t.Errorf("tail %d of %q: got %q, %d entries", n, b, tail, got)
		}
		if at > 0 && len(tail) > 0 && b[at-1] != '\n' {
			t.Errorf("tail %d of %q begins within an entry: %q", n, b, tail)
		}
	})
}
