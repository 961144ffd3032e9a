// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// kubelets answers as nodes do that have used half a core since ever; nodes called dead never answer, the node gone is
// not reached.
type kubelets struct{ asked atomic.Int64 }

func (k *kubelets) fetch(ctx context.Context, node string) (*http.Response, error) {
	k.asked.Add(1)
	switch kind, _, _ := strings.Cut(node, "-"); kind {
	case "dead":
		<-ctx.Done()
		return nil, ctx.Err()
	case "gone":
		return nil, errors.New("no route to host")
	}
	now := time.Now()
	body := fmt.Sprintf("node_cpu_usage_seconds_total %v %d\nnode_memory_working_set_bytes 1e6\n",
		now.Sub(time.Unix(0, 0)).Seconds()/2, now.UnixMilli())
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body))}, nil
}

func TestCollector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kubelets{}
		collector := New(k.fetch, slog.New(slog.DiscardHandler))
		defer collector.Close()
		ask := func(nodes ...string) (map[string]nodeUsage, time.Duration) {
			begin := time.Now()
			return collector.usageOf(t.Context(), nodes), time.Since(begin)
		}
		got, took := ask("a")
		if n := got["a"].node; n == nil || n.usage.Cpu().String() != "500m" || n.window != samplePause ||
			took != samplePause || k.asked.Load() != 2 {
			t.Fatalf("at first: got %+v in %v with %d requests, want 500m over a second from two", got["a"].node, took,
				k.asked.Load())
		}
		// while it is fresh no one is asked again
		time.Sleep(sampleTTL / 2)
		if _, took = ask("a"); took != 0 || k.asked.Load() != 2 {
			t.Errorf("fresh: %v and %d requests", took, k.asked.Load())
		}
		// many at once make one request
		time.Sleep(sampleTTL)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if n := collector.usageOf(t.Context(), []string{"a"})["a"].node; n == nil ||
					n.window != sampleTTL+sampleTTL/2 {
					t.Errorf("later: got %+v, want a window since the last sample", n)
				}
			})
		}
		all.Wait()
		if k.asked.Load() != 3 {
			t.Errorf("20 at once: %d requests, want one more", k.asked.Load())
		}
		// no one asks: nothing happens, and in the end nothing is remembered
		time.Sleep(time.Hour)
		synctest.Wait()
		if k.asked.Load() != 3 || len(collector.nodes) != 0 || collector.sweepTimer != nil {
			t.Errorf("after an hour: %d requests, %d nodes remembered", k.asked.Load(), len(collector.nodes))
		}
	})
}

// TestForgetsOneByOne: while one node is asked about again and again, those that no one asks about are forgotten.
func TestForgetsOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New((&kubelets{}).fetch, slog.New(slog.DiscardHandler))
		defer c.Close()
		c.usageOf(t.Context(), []string{"a", "left"})
		for range 3 * maxSampleAge / sampleTTL * 2 {
			time.Sleep(sampleTTL)
			c.usageOf(t.Context(), []string{"a"})
		}
		if len(c.nodes) != 1 || c.nodes["a"] == nil {
			t.Errorf("%d nodes are remembered, want one", len(c.nodes))
		}
	})
}

func TestDeadKubeletDelaysOthersOnceAndByLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kubelets{}
		collector := New(k.fetch, slog.New(slog.DiscardHandler))
		defer collector.Close()
		for i, want := range []time.Duration{waitTimeout, 0, 0} {
			begin := time.Now()
			got := collector.usageOf(t.Context(), []string{"a", "dead", "gone"})
			if took := time.Since(begin); got["a"].node == nil || got["dead"].node != nil || got["gone"].node != nil ||
				took != want {
				t.Errorf("time %d: got %+v in %v, want a's in %v", i, got, took, want)
			}
			time.Sleep(requestTimeout + sampleTTL)
		}
		// so many dead ones that all turns are taken: once they are known, the living do not wait for them
		var many []string
		for i := range 3 * maxRequests {
			many = append(many, fmt.Sprint("dead-", i))
		}
		collector.usageOf(t.Context(), many)
		time.Sleep(4 * requestTimeout)
		begin := time.Now()
		if got := collector.usageOf(t.Context(), append(many, "b")); got["b"].node == nil ||
			time.Since(begin) != samplePause {
			t.Errorf("among the dead: got %+v in %v", got["b"].node, time.Since(begin))
		}
	})
}

// TestOneFailureIsNoWarning: a node that has just registered may not listen yet. A lasting failure is logged once, and
// again after it was well.
func TestOneFailureIsNoWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		k := &kubelets{}
		down := true
		collector := New(func(ctx context.Context, node string) (*http.Response, error) {
			if down {
				node = "gone"
			}
			return k.fetch(ctx, node)
		}, slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelWarn})))
		defer collector.Close()
		for i, step := range []struct {
			down bool
			want int // warnings so far
		}{{true, 0}, {false, 0}, {true, 0}, {true, 1}, {true, 1}, {false, 1}, {true, 1}, {true, 2}} {
			down = step.down
			collector.usageOf(t.Context(), []string{"a"})
			time.Sleep(requestTimeout + sampleTTL) // also for a failure, which no one waits for
			synctest.Wait()
			if got := strings.Count(text.String(), "level=WARN"); got != step.want {
				t.Errorf("step %d: %d warnings, want %d:\n%s", i, got, step.want, text.String())
			}
		}
	})
}

func TestCloseEndsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New((&kubelets{}).fetch, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c.usageOf(ctx, []string{"dead", "a"})
		begin := time.Now()
		c.Close()
		if took := time.Since(begin); took != 0 {
			t.Errorf("took %v", took)
		}
		if got := c.usageOf(t.Context(), []string{"a"}); len(got) != 0 {
			t.Errorf("closed: got %v", got)
		}
	})
}
