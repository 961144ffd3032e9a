// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// TestOneListener: handlers are called in the order in which they were added, have synced when they got all objects,
// and cost no goroutines; one that was removed is not called, one that is added late is called for all objects.
func TestOneListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", ResourceVersion: "5"}}
		src := &fixedSource{more: make(chan watch.Event), pods: []*corev1.Pod{pod}}
		c, err := InProcess(http.NotFoundHandler(), src, "test")
		if err != nil {
			t.Fatal(err)
		}
		informers := c.Informers(0, Scope{Namespace: "ns"})
		inf := coreinformers.New(informers.Scoped()).Pods().Informer()
		var mu sync.Mutex
		var calls []string
		add := func(name string) cache.ResourceEventHandlerRegistration {
			t.Helper()
			record := func(what string) {
				mu.Lock()
				defer mu.Unlock()
				calls = append(calls, name+" "+what)
			}
			reg, err := inf.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
				AddFunc:    func(_ any, initial bool) { record(fmt.Sprint("add ", initial)) },
				UpdateFunc: func(_, _ any) { record("update") },
				DeleteFunc: func(any) { record("delete") },
			})
			if err != nil {
				t.Fatal(err)
			}
			return reg
		}
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(calls, want) {
				t.Errorf("calls %q, want %q", calls, want)
			}
			calls = nil
		}
		first := add("1")
		second := add("2")
		if first.HasSynced() || second.HasSynced() {
			t.Error("a handler has synced before the informer runs")
		}
		ctx, cancel := context.WithCancel(t.Context())
		informers.StartWithContext(ctx)
		if !cache.WaitFor(ctx, "", first.HasSyncedChecker(), second.HasSyncedChecker()) {
			t.Fatal("the handlers have not synced")
		}
		expect("1 add true", "2 add true")
		late := add("3")
		expect("3 add true")
		src.more <- watch.Event{
			Type: watch.Modified,
			Object: &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", ResourceVersion: "8"},
			},
		}
		synctest.Wait()
		mu.Lock()
		slices.Sort(calls) // the late one has a listener of its own
		mu.Unlock()
		expect("1 update", "2 update", "3 update")
		for _, reg := range []cache.ResourceEventHandlerRegistration{first, late} {
			if err := inf.RemoveEventHandler(reg); err != nil {
				t.Error(err)
			}
		}
		src.more <- watch.Event{Type: watch.Deleted, Object: pod}
		expect("2 delete")
		cancel()
		informers.Shutdown()
	})
}

// TestHandlersAreCheap: the hundredth handler of an informer starts nothing.
func TestHandlersAreCheap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running := func(handlers int) int {
			c, err := InProcess(http.NotFoundHandler(), &fixedSource{more: make(chan watch.Event)}, "test")
			if err != nil {
				t.Fatal(err)
			}
			informers := c.Informers(0, Scope{})
			for range handlers {
				if _, err := coreinformers.New(informers.Scoped()).Pods().Informer().AddEventHandler(
					cache.ResourceEventHandlerFuncs{}); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			informers.StartWithContext(ctx)
			synctest.Wait()
			n := runtime.NumGoroutine()
			cancel()
			informers.Shutdown()
			return n
		}
		if one, many := running(1), running(100); many > one+50 { // other tests' may end or begin meanwhile
			t.Errorf("%d goroutines with a handler, %d with a hundred", one, many)
		}
	})
}

// BenchmarkHandlers is one event delivered to fifteen handlers, as many as look at pods.
func BenchmarkHandlers(b *testing.B) {
	src := &fixedSource{more: make(chan watch.Event)}
	c, err := InProcess(http.NotFoundHandler(), src, "test")
	if err != nil {
		b.Fatal(err)
	}
	informers := c.Informers(0, Scope{})
	inf := coreinformers.New(informers.Scoped()).Pods().Informer()
	const handlers = 15
	calls := make(chan struct{}, handlers)
	for range handlers {
		if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) {
			calls <- struct{}{}
		}}); err != nil {
			b.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(b.Context())
	informers.StartWithContext(ctx)
	informers.WaitForCacheSync(ctx)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		src.more <- watch.Event{
			Type:   watch.Added,
			Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint(i)}},
		}
		for range handlers {
			<-calls
		}
	}
	cancel()
	informers.Shutdown()
}
