// SPDX-License-Identifier: Apache-2.0

package log

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"keelson/lib/logrotate"
)

// TestFileStaysWithinItsBounds: whatever is written, no line is torn, and there are never more files or bytes than the
// policy says.
func TestFileStaysWithinItsBounds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keelson.log")
	file, err := Open(path, logrotate.Policy{MaxSize: 1000, MaxFiles: 3})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		if _, err := fmt.Fprintf(file, "line %d %s\n", i, strings.Repeat("x", i%50)); err != nil {
			t.Fatal(err)
		}
		if i == 200 { // it goes on where it was
			if err := file.Close(); err != nil {
				t.Fatal(err)
			}
			if file, err = Open(path, logrotate.Policy{MaxSize: 1000, MaxFiles: 3}); err != nil {
				t.Fatal(err)
			}
		}
	}
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) != 3 {
		t.Fatalf("files %v, %v; want 3", files, err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil || len(b) > 1000 || !bytes.HasPrefix(b, []byte("line ")) || !bytes.HasSuffix(b, []byte("\n")) {
			t.Errorf("%s: %d bytes, %v: %.20q...", name, len(b), err, b)
		}
	}
	if b, _ := os.ReadFile(path); !strings.Contains(string(b), "line 499 ") {
		t.Errorf("the newest line is not in %s", path)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Write([]byte("x")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("write after close: %v", err)
	}
}

func plain(b *bytes.Buffer) slog.Handler {
	return slog.NewTextHandler(b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
}

func TestFold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var buf bytes.Buffer
		f := Fold(plain(&buf))
		l := slog.New(f).With("component", "a")
		for range 40 * 90 { // 40 a second
			l.Error("refused", "err", "no such namespace")
			time.Sleep(time.Second / 40)
		}
		l.Error("refused", "err", "another one")
		f.Flush()
		want := strings.Join([]string{
			`level=ERROR msg=refused component=a err="no such namespace"`,
			`level=ERROR msg=refused component=a err="no such namespace" repeated=2399`,
			`level=ERROR msg=refused component=a err="no such namespace"`,
			`level=ERROR msg=refused component=a err="another one"`,
			`level=ERROR msg=refused component=a err="no such namespace" repeated=1199`, "",
		}, "\n")
		if buf.String() != want {
			t.Errorf("got:\n%swant:\n%s", &buf, want)
		}
	})
}

func TestFoldBoundsTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var buf bytes.Buffer
		folder := Fold(plain(&buf))
		l := slog.New(folder)
		for i := range 100_000 {
			l.Warn("different", "i", i)
		}
		if n := bytes.Count(buf.Bytes(), []byte("\n")); n != burst {
			t.Errorf("%d lines at once, want %d", n, burst)
		}
		time.Sleep(time.Second)
		l.Info("later")
		if want := fmt.Sprintf("level=WARN msg=\"log lines left out: there were too many at once\" "+
			"lines=%d\nlevel=INFO msg=later\n", 100_000-burst); !strings.HasSuffix(buf.String(), want) {
			t.Errorf("got ...%s, want %s", buf.String()[buf.Len()-200:], want)
		}
		if len(folder.state.lines) > tracked {
			t.Errorf("%d lines are remembered, want %d at most", len(folder.state.lines), tracked)
		}
	})
}

func TestDemote(t *testing.T) {
	var b bytes.Buffer
	l := slog.New(Demote(plain(&b))).With("component", "libraries")
	l.Error("watch failed")
	l.Warn("slow")
	l.Info("caches populated")
	if got, want := b.String(), "level=WARN msg=\"watch failed\" component=libraries\nlevel=INFO msg=slow "+
		"component=libraries\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
