// SPDX-License-Identifier: Apache-2.0

package log

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestBatch: ten thousand events of a kind are a few lines, and their numbers add up.
func TestBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var buf bytes.Buffer
		f := Fold(plain(&buf))
		l := slog.New(f).With("component", "scheduler")
		for i := range 10_000 {
			l.Info("bound pod", "pod", i)
			if i%1000 == 0 {
				l.Info("another", "i", i) // few of these: none is left out
			}
		}
		time.Sleep(time.Minute)
		l.Info("bound pod", "pod", 10_000)
		f.Flush()
		text := buf.String()
		if n := strings.Count(text, "bound pod"); n != kindBurst+2 {
			t.Errorf("%d lines, want %d", n, kindBurst+2)
		}
		if want := "level=INFO msg=\"bound pod\" component=scheduler pod=9999 more=9949 since="; !strings.Contains(
			text, want) {
			t.Errorf("no line %q in\n%s", want, text)
		}
		if n := strings.Count(text, "another"); n != 10 {
			t.Errorf("%d other lines, want 10", n)
		}
		if !strings.HasSuffix(text, "pod=10000\n") {
			t.Errorf("the last line is missing: %s", text[len(text)-200:])
		}
	})
}

// TestBatchWhileBusy: a kind that never pauses is logged once a second.
func TestBatchWhileBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		f := Fold(plain(&b))
		l := slog.New(f)
		for i := range 20_000 { // 1,000 a second
			l.Info("bound pod", "pod", i)
			time.Sleep(time.Millisecond)
		}
		f.Flush()
		lines := strings.Count(b.String(), "bound pod")
		more := strings.Count(b.String(), "more=")
		if lines > kindBurst+20*(kindRate+2) || more < 15 || more > 25 {
			t.Errorf("%d lines, %d of them about others", lines, more)
		}
	})
}

// TestBatchInDetail: who asked for details gets all lines.
func TestBatchInDetail(t *testing.T) {
	var b bytes.Buffer
	l := slog.New(Fold(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for i := range 500 {
		l.Info("bound pod", "pod", i)
	}
	if n := strings.Count(b.String(), "\n"); n != 500 {
		t.Errorf("%d lines, want 500", n)
	}
}

func BenchmarkHeld(b *testing.B) {
	l := slog.New(Fold(slog.NewTextHandler(&bytes.Buffer{}, nil)))
	for i := range b.N {
		l.Info("bound pod", "pod", "default/web", "node", i)
	}
}
