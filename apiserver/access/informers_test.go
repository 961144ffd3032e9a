// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	clientwatch "k8s.io/client-go/tools/watch"

	"keelson/apiserver/servertest"
	"keelson/lib/waittest"
)

// cutter is a TCP proxy on the way to a server, whose connections can be reset and refused.
type cutter struct {
	net.Listener
	target  atomic.Pointer[string]
	refuses atomic.Bool
	running sync.WaitGroup

	mu   sync.Mutex
	open map[net.Conn]struct{}
}

func newCutter(t *testing.T) *cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{Listener: listener, open: map[net.Conn]struct{}{}}
	c.running.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			if c.keep(in) {
				c.running.Go(func() { c.forward(in) })
			}
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		c.refuses.Store(true)
		c.cut()
		c.running.Wait()
	})
	return c
}

// keep remembers a connection, so that it can be cut; while connections are refused it ends at once.
func (c *cutter) keep(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refuses.Load() {
		reset(conn)
		return false
	}
	c.open[conn] = struct{}{}
	return true
}

func (c *cutter) forward(in net.Conn) {
	out, err := net.Dial("tcp", strings.TrimPrefix(*c.target.Load(), "https://"))
	if err != nil {
		reset(in)
		return
	}
	if !c.keep(out) {
		reset(in)
		return
	}
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(out, in)
		reset(out)
	})
	both.Go(func() {
		_, _ = io.Copy(in, out)
		reset(in)
	})
	both.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, in)
	delete(c.open, out)
}

// reset ends a connection the hard way: what is under way is lost.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// cut resets what is connected now.
func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		reset(conn)
	}
}

// writer makes a random history of config maps and widgets.
type writer struct {
	t      *testing.T
	client dynamic.Interface
	rand   *rand.Rand
	live   map[string]bool // kind/name
	n      int64
	log    []string // of the config maps
}

func (w *writer) write(ops int) {
	w.t.Helper()
	for range ops {
		w.n++
		name := fmt.Sprintf("o-%02d", w.rand.IntN(20))
		gvr := servertest.MapsGVR
		obj := servertest.Object("v1", "ConfigMap", "ns", name, map[string]any{"data": map[string]any{"n": fmt.Sprint(w.n)}})
		if w.rand.IntN(3) == 0 {
			gvr = servertest.WidgetsGVR
			obj = servertest.Widget(name, map[string]any{"size": w.n})
		}
		cs := w.client.Resource(gvr).Namespace("ns")
		key := gvr.Resource + "/" + name
		did := ""
		var err error
		switch {
		case !w.live[key]:
			w.live[key] = true
			did = "ADDED"
			_, err = cs.Create(w.t.Context(), obj, metav1.CreateOptions{})
		case w.rand.IntN(4) == 0:
			delete(w.live, key)
			did = "DELETED"
			err = cs.Delete(w.t.Context(), name, metav1.DeleteOptions{})
		default:
			did = "MODIFIED"
			var now *unstructured.Unstructured
			if now, err = cs.Get(w.t.Context(), name, metav1.GetOptions{}); err == nil {
				obj.SetResourceVersion(now.GetResourceVersion())
				_, err = cs.Update(w.t.Context(), obj, metav1.UpdateOptions{})
			}
		}
		if err != nil {
			w.t.Fatalf("%s %s: %v", did, key, err)
		}
		if gvr == servertest.MapsGVR {
			w.log = append(w.log, did+" "+name)
		}
	}
}

// observer is an informer with a handler that keeps its own idea of what there is, from the notifications alone.
type observer struct {
	cache.SharedIndexInformer
	mu    sync.Mutex
	state map[string]string // name to uid and resourceVersion
	odd   []string          // notifications that contradict what came before
}

func facts(obj any) (name, version string) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return fmt.Sprintf("%T", obj), ""
	}
	return m.GetName(), string(m.GetUID()) + " " + m.GetResourceVersion()
}

func observe(t *testing.T, informer cache.SharedIndexInformer) *observer {
	t.Helper()
	o := &observer{SharedIndexInformer: informer, state: map[string]string{}}
	note := func(what string, known bool, obj any) {
		o.mu.Lock()
		defer o.mu.Unlock()
		name, version := facts(obj)
		if _, ok := o.state[name]; ok != known {
			o.odd = append(o.odd, fmt.Sprintf("%s of %s, known: %v", what, name, ok))
		}
		if o.state[name] = version; what == "delete" {
			delete(o.state, name)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { note("add", false, obj) },
		UpdateFunc: func(_, obj any) { note("update", true, obj) },
		DeleteFunc: func(obj any) { note("delete", true, obj) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// agrees waits until the informer and its handler know what the server has.
func (o *observer) agrees(t *testing.T, r dynamic.ResourceInterface) {
	t.Helper()
	list, err := r.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for i := range list.Items {
		name, version := facts(&list.Items[i])
		want[name] = version
	}
	waittest.Right(t, "the informer has what the server has (-server +informer)", func() string {
		have := map[string]string{}
		for _, obj := range o.GetStore().List() {
			name, version := facts(obj)
			have[name] = version
		}
		o.mu.Lock()
		delivered := maps.Clone(o.state)
		o.mu.Unlock()
		return cmp.Diff(want, have) + cmp.Diff(want, delivered)
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.odd) > 0 {
		t.Errorf("odd notifications: %q", o.odd)
	}
}

// TestInformersUnderDisconnects: connections are reset, the server is replaced, history is compacted while no one can
// watch. Informers end up with what the server has, by notifications that make sense; a watch that resumes misses
// nothing and sees nothing twice.
func TestInformersUnderDisconnects(t *testing.T) {
	st, ca := servertest.NewSite(t)
	running, stop := servertest.StartOn(t, st, ca, nil)
	defer func() { stop() }()
	c := servertest.CustomOn(t, running)
	c.Define(servertest.Definition("widgets", "Widget",
		`{type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}`))
	seed := rand.Uint64() // printed, so that a failure can be repeated
	t.Logf("seed %d", seed)
	w := &writer{
		t:      t,
		client: c.Interface,
		rand:   rand.New(rand.NewPCG(seed, 0)),
		live:   map[string]bool{},
	} // a history

	way := newCutter(t)
	way.target.Store(&running.Rest.Host)
	shaky := rest.CopyConfig(running.Rest)
	shaky.Host = "https://" + way.Addr().String()
	client, err := dynamic.NewForConfig(shaky)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	seen := map[schema.GroupVersionResource]*observer{}
	for _, gvr := range []schema.GroupVersionResource{servertest.MapsGVR, servertest.WidgetsGVR} {
		seen[gvr] = observe(t, factory.ForResource(gvr).Informer())
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel()
	factory.WaitForCacheSync(ctx.Done())
	agree := func() {
		t.Helper()
		for gvr, o := range seen {
			o.agrees(t, w.client.Resource(gvr).Namespace("ns"))
		}
	}
	resume(t, w, way, client.Resource(servertest.MapsGVR).Namespace("ns"))
	agree()

	replace := func() {
		t.Helper()
		stop()
		if running, stop = servertest.StartOn(t, st, ca, nil); t.Failed() {
			t.FailNow()
		}
		way.target.Store(&running.Rest.Host)
		w.client = servertest.CustomOn(t, running).Interface
	}
	replace()
	w.write(60)
	agree()

	way.refuses.Store(true)
	way.cut()
	w.write(60)
	rev, err := st.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Compact(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	replace()
	w.write(10)
	way.refuses.Store(false)
	agree()
}

// resume writes while connections are reset, and wants the whole history from a watch that resumes.
func resume(t *testing.T, w *writer, way *cutter, r dynamic.ResourceInterface) {
	t.Helper()
	list, err := r.List(t.Context(), metav1.ListOptions{LabelSelector: "no=such"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := clientwatch.NewRetryWatcherWithContext(t.Context(), list.GetResourceVersion(), &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return r.Watch(ctx, o)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.log = nil
	for range 5 {
		w.write(40)
		way.cut()
	}
	w.write(20)
	var got []string
	timeout := time.After(90 * time.Second)
	for len(got) < len(w.log) {
		select {
		case ev, ok := <-again.ResultChan():
			if !ok {
				t.Fatalf("the watch ended after %d events of %d", len(got), len(w.log))
			}
			name, _ := facts(ev.Object)
			got = append(got, string(ev.Type)+" "+name)
		case <-timeout:
			t.Fatalf("only %d events of %d came", len(got), len(w.log))
		}
	}
	again.Stop()
	if d := cmp.Diff(w.log, got); d != "" {
		t.Errorf("events (-written +watched):\n%s", d)
	}
}
