// SPDX-License-Identifier: Apache-2.0

package converge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"keelson/client"
	"keelson/cluster/clustertest"
	"keelson/event"
)

// faults make trouble between the parts of a cluster and its API server while they are on.
type faults struct {
	on atomic.Bool
	// crash ends a part; it does not wait.
	crash func(part string)
	// say adds to the history.
	say func(format string, args ...any)
	// touch changes the object at a path in a way that means nothing.
	touch func(ctx context.Context, path string)

	mu  sync.Mutex
	rng *rand.Rand
	// left is how many writes a part may still make before it crashes, marks how many marks it may leave; absent: it
	// does not.
	left, marks map[string]int
	// dead parts have crashed: nothing of theirs reaches the server until they are started again.
	dead map[string]bool
	laws *laws
	// cut cuts the API server off.
	cut func()
	// mutate may take a request's place with something that is wrong; nil: nothing is.
	mutate mutation
}

func newFaults(seed uint64) *faults {
	return &faults{
		rng:   rand.New(rand.NewPCG(seed, 2)),
		left:  map[string]int{},
		marks: map[string]int{},
		dead:  map[string]bool{},
		laws:  newLaws(),
	}
}

// arm has a part crash after a number of writes, or of marks.
func (f *faults) arm(part string, atMark bool, after int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if atMark {
		f.marks[part] = after
		return
	}
	f.left[part] = after
}

// disarm is for a part that starts again, or that shall live on.
func (f *faults) disarm(part string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.dead, part)
	delete(f.left, part)
	delete(f.marks, part)
}

// disarmMarks has a part that lives not crash at a event.
func (f *faults) disarmMarks(part string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.marks, part)
}

func (f *faults) isDead(part string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dead[part]
}

// marked is a event.Listener: a part that is to crash at this mark is dead before it does anything else.
func (f *faults) marked(m event.Event) {
	part := m.Component
	if strings.HasPrefix(part, "kubelet ") {
		part = clustertest.Nodes
	}
	f.mu.Lock()
	n, ok := f.marks[part]
	die := ok && n <= 0 && f.on.Load()
	if ok {
		f.marks[part] = n - 1
	}
	if die {
		delete(f.marks, part)
		f.dead[part] = true
	}
	f.mu.Unlock()
	if !die {
		return
	}
	if part == clustertest.APIServer {
		f.cut()
	}
	f.crash(part)
}

func (f *faults) roll(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rng.IntN(n)
}

// fate is what the fault injection does with a request.
type fate int

const (
	fine      fate = iota
	slow           // it takes seconds
	refused        // it fails and changes nothing
	conflict       // somebody else changes the object first
	unknown        // it is done, but its sender does not learn of it
	dieBefore      // its sender dies before it is done
	dieAfter       // its sender dies when it is done, without having learned of it
)

// fateOf draws what happens to a request of a part.
func (f *faults) fateOf(part string, write bool, method string) fate {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead[part] {
		return dieBefore
	}
	if !f.on.Load() {
		return fine
	}
	if n, ok := f.left[part]; ok && write {
		if f.left[part] = n - 1; n <= 0 {
			delete(f.left, part)
			f.dead[part] = true
			return dieBefore + fate(f.rng.IntN(2))
		}
	}
	r := f.rng.IntN(100)
	switch {
	case r < 4:
		return slow
	case r < 7:
		return refused
	case r < 10 && (method == http.MethodPut || method == http.MethodPatch):
		return conflict
	case r < 13 && write:
		return unknown
	}
	return fine
}

// between is clustertest.Config.Between.
func (f *faults) between(part, user string, h http.Handler, s client.Source) (http.Handler, client.Source) {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.serve(part, user, h, w, r) }),
		faultySource{f, part, s}
}

func (f *faults) serve(part, user string, handler http.Handler, w http.ResponseWriter, r *http.Request) {
	write := r.Method != http.MethodGet && r.Method != http.MethodHead
	if write && strings.Contains(r.URL.Path, "/events") {
		echo(w, r) // no one reads them here
		return
	}
	if strings.Contains(r.URL.Path, "/leases/") {
		write = false // no one counts these
	}
	if f.mutate != nil {
		handler = f.mutate(user, handler)
	}
	fate := f.fateOf(part, write, r.Method)
	if part == clustertest.Nodes && r.Method == http.MethodDelete && fate != dieBefore {
		f.laws.note(func() { f.laws.removed[path.Base(r.URL.Path)] = true })
	}
	switch fate {
	case fine:
		handler.ServeHTTP(w, r)
	case slow:
		if !pause(r.Context(), time.Duration(f.roll(5000))*time.Millisecond) {
			panic(http.ErrAbortHandler)
		}
		handler.ServeHTTP(w, r)
	case refused:
		answer(w, apierrors.NewInternalError(io.ErrUnexpectedEOF))
	case conflict:
		f.touch(r.Context(), strings.TrimSuffix(r.URL.Path, "/status"))
		handler.ServeHTTP(w, r)
	case unknown:
		f.serveUnheard(handler, r)
		answer(w, apierrors.NewTimeoutError("the answer was lost", 0))
	case dieAfter:
		f.serveUnheard(handler, r)
		f.crash(part)
		panic(http.ErrAbortHandler)
	case dieBefore:
		f.crash(part)
		panic(http.ErrAbortHandler)
	}
}

// serveUnheard serves a request whose client may have gone.
func (f *faults) serveUnheard(handler http.Handler, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if r.Method == http.MethodPost && path.Base(r.URL.Path) == "pods" {
		f.laws.note(func() { f.laws.unheard = append(f.laws.unheard, b) })
		f.say("the answer to the creation of a pod is lost")
	}
	r = r.Clone(context.WithoutCancel(r.Context()))
	r.Body = io.NopCloser(bytes.NewReader(b))
	handler.ServeHTTP(httptest.NewRecorder(), r)
}

// echo answers a write with what was written, which costs a hundredth of doing it.
func echo(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(b) // to memory
}

func answer(w http.ResponseWriter, err *apierrors.StatusError) {
	s := err.Status()
	s.APIVersion = "v1"
	s.Kind = "Status"
	if s.Details != nil {
		s.Details.RetryAfterSeconds = 0
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(s.Code))
	_ = json.NewEncoder(w).Encode(&s) // to memory
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// faultySource breaks and delays watches.
type faultySource struct {
	f    *faults
	part string
	s    client.Source
}

// List is client.Source's.
func (s faultySource) List(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) ([]runtime.Object, string, error) {
	if s.f.fateOf(s.part, false, http.MethodGet) != fine {
		return nil, "", apierrors.NewInternalError(io.ErrUnexpectedEOF)
	}
	return s.s.List(ctx, gvr, namespace, opts)
}

// Watch is client.Source's.
func (s faultySource) Watch(
	ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
) (watch.Interface, error) {
	if s.f.fateOf(s.part, false, http.MethodGet) >= refused {
		return nil, apierrors.NewInternalError(io.ErrUnexpectedEOF)
	}
	w, err := s.s.Watch(ctx, gvr, namespace, opts)
	if err != nil {
		return nil, err
	}
	out := make(chan watch.Event)
	faulty := watch.NewProxyWatcher(out)
	go s.pass(w, out, faulty.StopChan()) // ends with w, or when its reader stops it
	return faulty, nil
}

// pass hands events on, some of them late, and breaks the watch off now and then.
func (s faultySource) pass(w watch.Interface, out chan<- watch.Event, stopped <-chan struct{}) {
	defer close(out)
	defer w.Stop()
	for {
		select {
		case <-stopped:
			return
		case ev, ok := <-w.ResultChan():
			if !ok {
				return
			}
			if s.f.on.Load() {
				switch r := s.f.roll(200); {
				case r == 0:
					return // with this event unsaid
				case r < 8:
					select {
					case <-stopped:
						return
					case <-time.After(time.Duration(s.f.roll(4000)) * time.Millisecond):
					}
				}
			}
			select {
			case out <- ev:
			case <-stopped:
				return
			}
		}
	}
}
