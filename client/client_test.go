// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/watch"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	batchinformers "k8s.io/client-go/informers/batch/v1"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	policyinformers "k8s.io/client-go/informers/policy/v1"
	rbacinformers "k8s.io/client-go/informers/rbac/v1"
	schedulinginformers "k8s.io/client-go/informers/scheduling/v1"
	storageinformers "k8s.io/client-go/informers/storage/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"keelson/client/clienttest"
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
	out := make([]runtime.Object, len(s.pods))
	for i, p := range s.pods {
		out[i] = p
	}
	return out, "7", nil
}

func (s *fixedSource) Watch(
	ctx context.Context, gvr schema.GroupVersionResource, ns string, opts metav1.ListOptions,
) (watch.Interface, error) {
	s.mu.Lock()
	s.asks = append(s.asks, gvr.Resource+"|"+ns+"|"+opts.FieldSelector)
	s.mu.Unlock()
	proxyWatcher := watch.NewProxyWatcher(make(chan watch.Event))
	ch := make(chan watch.Event, 10)
	for _, p := range s.pods {
		ch <- watch.Event{Type: watch.Added, Object: p}
	}
	end := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: "7",
		Annotations:     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}}
	ch <- watch.Event{Type: watch.Bookmark, Object: end}
	proxyWatcher = watch.NewProxyWatcher(ch)
	go func() { // ends with the watch
		for {
			select {
			case ev := <-s.more:
				ch <- ev
			case <-proxyWatcher.StopChan():
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return proxyWatcher, nil
}

func TestInformersShareObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fixedSource{
			more: make(chan watch.Event),
			pods: []*corev1.Pod{
				{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", ResourceVersion: "5"}},
				{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", ResourceVersion: "6"}},
			},
		}
		c, err := InProcess(http.NotFoundHandler(), src, "test")
		if err != nil {
			t.Fatal(err)
		}
		informers := c.Informers(0, Scope{
			Namespace: "ns",
			Tweak: func(o *metav1.ListOptions) {
				o.FieldSelector = "spec.nodeName=n1"
			},
		})
		lister := coreinformers.New(informers.Scoped()).Pods().Lister()
		ctx, cancel := context.WithCancel(t.Context())
		informers.StartWithContext(ctx)
		if !informers.WaitForCacheSync(ctx) {
			t.Fatal("the informer has not listed")
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
		informers.Shutdown()
		if want := "pods|ns|spec.nodeName=n1"; len(src.asks) != 1 || src.asks[0] != want {
			t.Errorf("source was asked %q, want %q once", src.asks, want)
		}
	})
}

// TestFollowed: an informer of each kind that is followed asks the source, for its own resource; none is left out by
// its group.
func TestFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fixedSource{more: make(chan watch.Event)}
		c, err := InProcess(http.NotFoundHandler(), src, "test")
		if err != nil {
			t.Fatal(err)
		}
		informers := c.Informers(0, Scope{Namespace: "x"})
		core := coreinformers.New(informers.Scoped())
		apps := appsinformers.New(informers.Scoped())
		batch := batchinformers.New(informers.Scoped())
		rbac := rbacinformers.New(informers.Scoped())
		storage := storageinformers.New(informers.Scoped())
		asked := []cache.SharedIndexInformer{
			core.ConfigMaps().Informer(), core.Endpoints().Informer(), core.LimitRanges().Informer(),
			core.Namespaces().Informer(),
			core.Nodes().Informer(), core.PersistentVolumes().Informer(), core.PersistentVolumeClaims().Informer(),
			core.Pods().Informer(),
			core.ReplicationControllers().Informer(), core.ResourceQuotas().Informer(), core.Secrets().Informer(),
			core.Services().Informer(),
			core.ServiceAccounts().Informer(), apps.ControllerRevisions().Informer(), apps.DaemonSets().Informer(),
			apps.Deployments().Informer(),
			apps.ReplicaSets().Informer(), apps.StatefulSets().Informer(), batch.CronJobs().Informer(),
			batch.Jobs().Informer(),
			coordinationinformers.New(informers.Scoped()).Leases().Informer(),
			discoveryinformers.New(informers.Scoped()).EndpointSlices().Informer(),
			policyinformers.New(informers.Scoped()).PodDisruptionBudgets().Informer(), rbac.ClusterRoles().Informer(),
			rbac.ClusterRoleBindings().Informer(),
			rbac.Roles().Informer(), rbac.RoleBindings().Informer(),
			schedulinginformers.New(informers.Scoped()).PriorityClasses().Informer(),
			storage.CSIDrivers().Informer(), storage.CSINodes().Informer(), storage.StorageClasses().Informer(),
			storage.VolumeAttachments().Informer(),
		}
		ctx, cancel := context.WithCancel(t.Context())
		informers.StartWithContext(ctx)
		synctest.Wait()
		cancel()
		informers.Shutdown()
		if len(asked) != len(followed) {
			t.Errorf("%d informers are tried, %d kinds are followed", len(asked), len(followed))
		}
		slices.Sort(src.asks)
		var want []string
		for obj, k := range followed {
			if strings.ToLower(obj.Elem().Name())+"s" != k.resource &&
				!slices.Contains([]string{"endpoints", "storageclasses", "priorityclasses"}, k.resource) {
				t.Errorf("%s is not the resource of %s", k.resource, obj)
			}
			ns := ""
			if k.namespaced {
				ns = "x"
			}
			want = append(want, k.resource+"|"+ns+"|")
		}
		slices.Sort(want)
		if !slices.Equal(src.asks, want) {
			t.Errorf("the source was asked %q, want %q", src.asks, want)
		}
	})
}

// TestInformersList: an informer that does not begin by a watch lists the source's objects.
func TestInformersList(t *testing.T) {
	src := &fixedSource{
		pods: []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", ResourceVersion: "5"}}},
	}
	lw := cache.ToListerWatcherWithContext(
		listWatch(src, Scope{Namespace: "ns"}, corev1.SchemeGroupVersion.WithResource("pods")))
	l, err := lw.ListWithContext(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	objs, err := meta.ExtractList(l)
	if err != nil || len(objs) != 1 || objs[0] != runtime.Object(src.pods[0]) {
		t.Errorf("got %v, %v; want the source's own object", objs, err)
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
	out.APIVersion = "v1"
	out.Kind = "Event"
	_ = json.NewEncoder(w).Encode(out)
}

func unwrap(b []byte) []byte {
	var u runtime.Unknown
	if err := u.Unmarshal(b[4:]); err != nil {
		return nil
	}
	return u.Raw
}

// recorder records for node-1's kubelet until end, which first does what is still to be done then.
func recorder(t *testing.T) (srv *eventServer, events *Events, end func(last ...func())) {
	t.Helper()
	srv = &eventServer{events: map[string]*corev1.Event{}}
	c, err := InProcess(srv, nil, "test")
	if err != nil {
		t.Fatal(err)
	}
	events = c.Events("kubelet", "node-1", nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- events.Run(ctx, func() {}) }() // ends with ctx
	return srv, events, func(last ...func()) {
		cancel()
		for _, do := range last {
			do()
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv, events, end := recorder(t)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u"}}
		for range 3 {
			events.Eventf(pod, corev1.EventTypeWarning, "BackOff", "restarting %s", "x")
			synctest.Wait()
		}
		if len(srv.events) != 1 || srv.writes != 3 {
			t.Errorf("got %d events by %d writes, want 1 by 3", len(srv.events), srv.writes)
		}
		for _, ev := range srv.events {
			if ev.Count != 3 || ev.Message != "restarting x" || ev.InvolvedObject.Kind != "Pod" ||
				ev.InvolvedObject.APIVersion != "v1" ||
				ev.Source.Component != "kubelet" || ev.Source.Host != "node-1" || ev.Namespace != "ns" {
				t.Errorf("got %+v", ev)
			}
		}
		for range 200 { // a talkative component is cut short
			events.Event(pod, corev1.EventTypeWarning, "BackOff", "restarting x")
		}
		synctest.Wait()
		if srv.writes > eventsBurst {
			t.Errorf("%d writes about one object, want at most %d", srv.writes, eventsBurst)
		}
		end(func() {
			events.Event(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, corev1.EventTypeNormal, "Stopping",
				"bye")
		})
	})
}

// TestEventsOfOneMoment: what happens to an object within one tick of the clock is all kept, by one name each.
func TestEventsOfOneMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // its clock stands still
		srv, e, end := recorder(t)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u"}}
		for _, reason := range []string{"Pulled", "Created", "Started"} {
			e.Event(pod, corev1.EventTypeNormal, reason, "")
		}
		synctest.Wait()
		if len(srv.events) != 3 {
			t.Errorf("%d events, want 3", len(srv.events))
		}
		pod.Name = strings.Repeat("p", 253) // events about it have names too
		e.Event(pod, corev1.EventTypeNormal, "Pulled", "")
		synctest.Wait()
		for _, ev := range srv.events {
			if errs := validation.IsDNS1123Subdomain(ev.Name); len(errs) > 0 {
				t.Errorf("event %s: %v", ev.Name, errs)
			}
		}
		if len(srv.events) != 4 {
			t.Errorf("%d events, want 4", len(srv.events))
		}
		end()
	})
}

// A namespace that is being deleted takes no events; its deletion logs no warning for every pod of it in the
// log.
func TestEventsOfTerminatingNamespace(t *testing.T) {
	for name, test := range map[string]struct {
		cause metav1.CauseType
		warns bool
	}{
		"terminating namespace": {corev1.NamespaceTerminatingCause, false},
		"no permission":         {"", true},
	} {
		t.Run(name, func(t *testing.T) {
			refusal := metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
				Status:   metav1.StatusFailure,
				Code:     http.StatusForbidden,
				Reason:   metav1.StatusReasonForbidden,
				Message:  "no new content",
				Details:  &metav1.StatusDetails{},
			}
			if test.cause != "" {
				refusal.Details.Causes = []metav1.StatusCause{{Type: test.cause, Field: "metadata.namespace"}}
			}
			var asked atomic.Int32
			c, err := InProcess(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				asked.Add(1)
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusForbidden)
				_ = json.NewEncoder(w).Encode(refusal)
			}), nil, "test")
			if err != nil {
				t.Fatal(err)
			}
			var log strings.Builder
			e := c.Events("kubelet", "node-1", slog.New(slog.NewTextHandler(&log, nil)))
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // Run writes what is queued and ends
			e.Event(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}, corev1.EventTypeNormal,
				"Killing", "Stopping container c")
			if err := e.Run(ctx, func() {}); err != nil {
				t.Fatal(err)
			}
			if asked.Load() != 1 {
				t.Errorf("%d requests, want 1: the answer is final", asked.Load())
			}
			if warned := strings.Contains(log.String(), "event not written"); warned != test.warns {
				t.Errorf("warned: %v, want %v; log: %s", warned, test.warns, log.String())
			}
		})
	}
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
		cs := clienttest.New()
		cl := &Client{Interface: Plain(cs)}
		var robbed atomic.Bool
		// before the first call: it takes no lock
		cs.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return robbed.Load(), nil, errors.New("somebody has it")
		})
		holder := func() string {
			l, err := cl.CoordinationV1().Leases("kube-system").Get(t.Context(), "x", metav1.GetOptions{})
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
			ended <- cl.Lead(ctx, Election{Name: "x", Identity: id}, func(ctx context.Context) error {
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
		gone := time.Now()
		stop1()
		if err := <-ended; err != nil {
			t.Errorf("one: %v", err)
		}
		if got := <-leads; got != "two" {
			t.Errorf("got leader %s, want two", got)
		}
		if took := time.Since(gone); took > 100*time.Millisecond {
			t.Errorf("two leads %s after one gave the lease up, want at once", took)
		}
		robbed.Store(true)
		if err := <-ended; !errors.Is(err, ErrNotLeader) {
			t.Errorf("two, robbed: got %v, want ErrNotLeader", err)
		}
		stop2()
	})
}
