// SPDX-License-Identifier: Apache-2.0

package log

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"keelson/lib/logrotate"
)

func TestParseLine(t *testing.T) {
	for raw, want := range map[string]string{
		`time=2026-11-22T10:00:00.5Z level=INFO msg="bound pod" component=scheduler pod=default/a`: `{"time":"2026-11-22T10:00:00.5Z","level":"INFO","msg":"bound pod","component":"scheduler","pod":"default/a"}`,
		`time=x level=INFO msg="a \"quoted\"\nline" ips="[10.0.0.1 fd00::1]" "odd key"=1 empty=""`: `{"time":"x","level":"INFO","msg":"a \"quoted\"\nline","ips":"[10.0.0.1 fd00::1]","odd key":"1","empty":""}`,
		`goroutine 1 [running]:`:              `{"msg":"goroutine 1 [running]:"}`,
		`panic: x="y`:                         `{"msg":"panic: x=\"y"}`,
		`time=x time=y`:                       `{"time":"x"}`,
		`level=INFO msg="begins not as ours"`: `{"msg":"level=INFO msg=\"begins not as ours\""}`,
		``:                                    `{"msg":""}`,
	} {
		if got := string(ParseLine(raw).JSON()); got != want {
			t.Errorf("%s\n got %s\nwant %s", raw, got, want)
		}
	}
}

// FuzzParseLine: whatever is in the file, a line is an object, and what slog wrote comes back.
func FuzzParseLine(f *testing.F) {
	f.Add("time=x level=INFO msg=\"a b\"", "msg", "a \"b\"\n")
	f.Fuzz(func(t *testing.T, raw, key, value string) {
		var o map[string]string
		if err := json.Unmarshal(ParseLine(raw).JSON(), &o); err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		var b bytes.Buffer
		slog.New(slog.NewTextHandler(&b, nil)).Info("said", "k"+key, value)
		l := ParseLine(strings.TrimSuffix(b.String(), "\n"))
		if got := l.Get("k" + key); got != value && strconv.Quote(got) != strconv.Quote(value) {
			t.Errorf("%q: got %q, want %q", b.String(), got, value)
		}
	})
}

func writeLines(t *testing.T, f *File, from, to int) {
	t.Helper()
	l := slog.New(slog.NewTextHandler(f, nil))
	for i := from; i < to; i++ {
		l.Info("said", "component", []string{"a", "b"}[i%2], "i", i)
	}
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.log")
	f, err := Open(path, logrotate.Policy{MaxSize: 1000, MaxFiles: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	writeLines(t, f, 0, 100)
	ofB := func(l Line) bool { return l.Get("component") == "b" }
	for name, c := range map[string]struct {
		q    Query
		want string
	}{
		"all":    {Query{Tail: -1}, "100 lines, the first 0, the last 99"},
		"tail":   {Query{Tail: 3}, "3 lines, the first 97, the last 99"},
		"one":    {Query{Tail: -1, Want: ofB}, "50 lines, the first 1, the last 99"},
		"tail b": {Query{Tail: 2, Want: ofB}, "2 lines, the first 97, the last 99"},
		"none":   {Query{Tail: 0}, "0 lines, the first , the last "},
		"since":  {Query{Tail: -1, Since: time.Now().Add(time.Hour)}, "0 lines, the first , the last "},
	} {
		var got []Line
		if err := Read(t.Context(), path, c.q, func(l Line) error {
			got = append(got, l)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		first := ""
		last := ""
		if len(got) > 0 {
			first = got[0].Get("i")
			last = got[len(got)-1].Get("i")
		}
		if said := fmt.Sprintf("%d lines, the first %s, the last %s", len(got), first, last); said != c.want {
			t.Errorf("%s: got %s, want %s", name, said, c.want)
		}
	}
	if err := Read(t.Context(), path+"none", Query{}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a log that is not there: %v", err)
	}
}

// TestFollow: nothing is lost or returned twice while the log is rotated again and again.
func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.log")
	file, err := Open(path, logrotate.Policy{MaxSize: 1000, MaxFiles: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	writeLines(t, file, 0, 10)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const last = 500
	next := 8
	begun := make(chan struct{})
	go func() { // ends when it has written all
		<-begun
		writeLines(t, file, 10, last)
	}()
	err = Read(ctx, path, Query{Tail: 2, Follow: true}, func(l Line) error {
		if i, err := strconv.Atoi(l.Get("i")); err != nil || i != next {
			return fmt.Errorf("got %q, want i=%d", l.Raw, next)
		}
		next++
		switch next {
		case 10:
			close(begun)
		case last:
			cancel()
		}
		return nil
	})
	if err != nil || next != last {
		t.Errorf("ended at %d: %v", next, err)
	}
}
