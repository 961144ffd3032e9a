// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// fixedSource sends two pods and follows with what is put into more.
type fixedSource struct {
	pods []*corev1.Pod
	more chan watch.Event

	mu   sync.Mutex
	asks []string
}

func (s *fixedSource) List(
	context.Context, schema.GroupVersionResource, string, metav1.ListOptions,
) ([]runtime.Object, string, error) {
	return nil, "", errors.New("not used")
}

func (s *fixedSource) Watch(
	ctx context.Context, gvr schema.GroupVersionResource, ns string, opts metav1.ListOptions,
) (watch.Interface, error) {
	s.mu.Lock()
	s.asks = append(s.asks, gvr.Resource+"|"+ns+"|"+opts.FieldSelector)
	s.mu.Unlock()
	w := watch.NewProxyWatcher(make(chan watch.Event))
	ch := make(chan watch.Event, 10)
	for _, p := range s.pods {
		ch <- watch.Event{Type: watch.Added, Object: p}
	}
	end := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: "7", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}}
	ch <- watch.Event{Type: watch.Bookmark, Object: end}
	w = watch.NewProxyWatcher(ch)
	go func() { // ends with the watch
		for {
			select {
			case ev := <-s.more:
				ch <- ev
			case <-w.StopChan():
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return w, nil
}

func TestInformersShareObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fixedSource{more: make(chan watch.Event), pods: []*corev1.Pod{
			{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", ResourceVersion: "5"}},
			{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", ResourceVersion: "6"}},
		}}
		c, err := InProcess(http.NotFoundHandler(), src, "test")
		if err != nil {
			t.Fatal(err)
		}
		f := c.Informers(0, informers.WithNamespace("ns"), informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = "spec.nodeName=n1"
		}))
		lister := f.Core().V1().Pods().Lister()
		ctx, cancel := context.WithCancel(t.Context())
		f.StartWithContext(ctx)
		if err := f.WaitForCacheSyncWithContext(ctx).AsError(); err != nil {
			t.Fatal(err)
		}
		got, err := lister.Pods("ns").Get("a")
		if err != nil || got != src.pods[0] {
			t.Errorf("lister: got %p, %v; want the source's own object %p", got, err, src.pods[0])
		}
		changed := src.pods[0].DeepCopy()
		changed.ResourceVersion = "8"
		src.more <- watch.Event{Type: watch.Modified, Object: changed}
		synctest.Wait()
		if got, err := lister.Pods("ns").Get("a"); err != nil || got != changed {
			t.Errorf("lister after a change: got %+v, %v", got, err)
		}
		cancel()
		f.Shutdown()
		if want := "pods|ns|spec.nodeName=n1"; len(src.asks) != 1 || src.asks[0] != want {
			t.Errorf("source was asked %q, want %q once", src.asks, want)
		}
	})
}

// TestEveryGroupIsShared asks every sharing kind for a watch, to see that it names its resource.
func TestEveryGroupIsShared(t *testing.T) {
	src := &fixedSource{more: make(chan watch.Event)}
	c, err := InProcess(http.NotFoundHandler(), src, "test")
	if err != nil {
		t.Fatal(err)
	}
	s := sharing{c.Interface, src}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type watcher interface {
		Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
	}
	for want, w := range map[string]watcher{
		"pods|x|":                  s.CoreV1().Pods("x"),
		"nodes||":                  s.CoreV1().Nodes(),
		"replicasets|x|":           s.AppsV1().ReplicaSets("x"),
		"jobs|x|":                  s.BatchV1().Jobs("x"),
		"leases|x|":                s.CoordinationV1().Leases("x"),
		"endpointslices|x|":        s.DiscoveryV1().EndpointSlices("x"),
		"poddisruptionbudgets|x|":  s.PolicyV1().PodDisruptionBudgets("x"),
		"clusterroles||":           s.RbacV1().ClusterRoles(),
		"priorityclasses||":        s.SchedulingV1().PriorityClasses(),
		"storageclasses||":         s.StorageV1().StorageClasses(),
		"persistentvolumeclaims||": s.CoreV1().PersistentVolumeClaims(""),
	} {
		got, err := w.Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got.Stop()
		if last := src.asks[len(src.asks)-1]; last != want {
			t.Errorf("got %q, want %q", last, want)
		}
	}
}

// eventServer stores events as the API would, enough for the recorder.
type eventServer struct {
	mu     sync.Mutex
	events map[string]*corev1.Event
	writes int
}

func (s *eventServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	b, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var ev *corev1.Event
	switch r.Method {
	case http.MethodPost:
		ev = &corev1.Event{}
		if err := ev.Unmarshal(unwrap(b)); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	case http.MethodPatch:
		name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		if ev = s.events[name]; ev == nil {
			http.NotFound(w, r)
			return
		}
		if err := json.Unmarshal(b, ev); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	s.events[ev.Name] = ev
	w.Header().Set("Content-Type", "application/json")
	out := ev.DeepCopy()
	out.APIVersion, out.Kind = "v1", "Event"
	_ = json.NewEncoder(w).Encode(out)
}

func unwrap(b []byte) []byte {
	var u runtime.Unknown
	if err := u.Unmarshal(b[4:]); err != nil {
		return nil
	}
	return u.Raw
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := &eventServer{events: map[string]*corev1.Event{}}
		c, err := InProcess(srv, nil, "test")
		if err != nil {
			t.Fatal(err)
		}
		e := c.Events("kubelet", "node-1", nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx, func() {}) }() // ends with ctx
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u"}}
		for range 3 {
			e.Eventf(pod, corev1.EventTypeWarning, "BackOff", "restarting %s", "x")
			synctest.Wait()
		}
		if len(srv.events) != 1 || srv.writes != 3 {
			t.Errorf("got %d events by %d writes, want 1 by 3", len(srv.events), srv.writes)
		}
		for _, ev := range srv.events {
			if ev.Count != 3 || ev.Message != "restarting x" || ev.InvolvedObject.Kind != "Pod" || ev.InvolvedObject.APIVersion != "v1" ||
				ev.Source.Component != "kubelet" || ev.Source.Host != "node-1" || ev.Namespace != "ns" {
				t.Errorf("got %+v", ev)
			}
		}
		for range 200 { // a talkative component is cut short
			e.Event(pod, corev1.EventTypeWarning, "BackOff", "restarting x")
		}
		synctest.Wait()
		if srv.writes > eventsBurst {
			t.Errorf("%d writes about one object, want at most %d", srv.writes, eventsBurst)
		}
		cancel()
		e.Event(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, corev1.EventTypeNormal, "Stopping", "bye")
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestEventsNeverBlock(t *testing.T) {
	c, err := InProcess(http.NotFoundHandler(), nil, "test")
	if err != nil {
		t.Fatal(err)
	}
	e := c.Events("x", "y", nil)
	for i := range 2 * eventsQueued {
		e.Event(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: strconv.Itoa(i)}}, "Normal", "R", "m")
	}
	if len(e.queue) != eventsQueued {
		t.Errorf("%d events queued, want %d", len(e.queue), eventsQueued)
	}
}

func TestLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cs := fake.NewClientset()
		c := &Client{Interface: cs}
		var robbed atomic.Bool
		cs.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) { // before the first call: it takes no lock
			return robbed.Load(), nil, errors.New("somebody has it")
		})
		holder := func() string {
			l, err := c.CoordinationV1().Leases("kube-system").Get(t.Context(), "x", metav1.GetOptions{})
			if err != nil || l.Spec.HolderIdentity == nil {
				return ""
			}
			return *l.Spec.HolderIdentity
		}
		ctx1, stop1 := context.WithCancel(t.Context())
		ctx2, stop2 := context.WithCancel(t.Context())
		leads := make(chan string, 2)
		ended := make(chan error, 2)
		run := func(ctx context.Context, id string) {
			ended <- c.Lead(ctx, Election{Name: "x", Identity: id}, func(ctx context.Context) error {
				leads <- id
				<-ctx.Done()
				if !robbed.Load() && holder() != id {
					t.Errorf("%s works without the lease, %q has it", id, holder())
				}
				return nil
			})
		}
		go run(ctx1, "one") // ends with ctx1
		if got := <-leads; got != "one" {
			t.Errorf("got leader %s, want one", got)
		}
		go run(ctx2, "two") // ends with ctx2
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(leads) != 0 {
			t.Error("two leaders at once")
		}
		stop1()
		if err := <-ended; err != nil {
			t.Errorf("one: %v", err)
		}
		if got := <-leads; got != "two" {
			t.Errorf("got leader %s, want two", got)
		}
		robbed.Store(true)
		if err := <-ended; !errors.Is(err, ErrNotLeader) {
			t.Errorf("two, robbed: got %v, want ErrNotLeader", err)
		}
		stop2()
	})
}
