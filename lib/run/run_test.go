// SPDX-License-Identifier: Apache-2.0

package run_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"keelson/lib/run"
)

func recorder(log *[]string, name string) run.Func {
	return func(ctx context.Context, ready func()) error {
		*log = append(*log, "start "+name)
		ready()
		<-ctx.Done()
		*log = append(*log, "stop "+name)
		return ctx.Err()
	}
}

func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log []string
		var g run.Group
		g.Add("store", recorder(&log, "store"))
		g.Add("api", recorder(&log, "api"))
		ctx, cancel := context.WithCancel(t.Context())
		if err := g.Run(ctx, cancel); err != nil {
			t.Fatalf("Run() = %v, want nil", err)
		}
		want := []string{"start store", "start api", "stop api", "stop store"}
		if !slices.Equal(log, want) {
			t.Errorf("order: got %q, want %q", log, want)
		}
	})
}

func TestFirstErrorWinsAndStopsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log []string
		boom := errors.New("boom")
		var g run.Group
		g.Add("store", recorder(&log, "store"))
		g.Add("api", func(context.Context, func()) error { return boom })
		g.Add("never", recorder(&log, "never"))
		err := g.Run(t.Context(), func() { t.Error("ready called") })
		if !errors.Is(err, boom) || !strings.HasPrefix(err.Error(), "api: ") {
			t.Errorf("Run() = %v, want api: boom", err)
		}
		if want := []string{"start store", "stop store"}; !slices.Equal(log, want) {
			t.Errorf("order: got %q, want %q", log, want)
		}
	})
}

func TestGraceBoundsAStuckPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		g := run.Group{Grace: time.Second}
		g.Add("stuck", func(_ context.Context, ready func()) error {
			ready()
			<-release
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		begin := time.Now()
		err := g.Run(ctx, cancel)
		if err == nil || !strings.Contains(err.Error(), "stuck did not stop within 1s") {
			t.Errorf("Run() = %v, want a sentence naming the stuck part", err)
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("gave up after %s, want 1s", took)
		}
		close(release)
	})
}

func TestTogetherIsReadyWhenAllAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func(ctx context.Context, ready func()) error {
			time.Sleep(time.Second)
			ready()
			<-ctx.Done()
			return nil
		}
		quick := func(ctx context.Context, ready func()) error {
			ready()
			<-ctx.Done()
			return nil
		}
		var order []string
		f := run.Together(func(name string, _ time.Duration) { order = append(order, name) },
			run.Part{Name: "slow", Run: slow}, run.Part{Name: "quick", Run: quick})
		ctx, cancel := context.WithCancel(t.Context())
		begin := time.Now()
		if err := f(ctx, cancel); err != nil {
			t.Fatalf("got %v, want nil", err)
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("ready after %s, want 1s", took)
		}
		if want := []string{"quick", "slow"}; !slices.Equal(order, want) {
			t.Errorf("order: got %q, want %q", order, want)
		}
	})
}

func TestTogetherEndsWithTheFirstError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		f := run.Together(nil,
			run.Part{Name: "bad", Run: func(context.Context, func()) error { return boom }},
			run.Part{
				Name: "good",
				Run: func(ctx context.Context, ready func()) error {
					ready()
					<-ctx.Done()
					return ctx.Err()
				},
			})
		if err := f(t.Context(), func() { t.Error("ready called") }); !errors.Is(err, boom) ||
			!strings.HasPrefix(err.Error(), "bad: ") {
			t.Errorf("got %v, want bad: boom", err)
		}
	})
}
