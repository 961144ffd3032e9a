// SPDX-License-Identifier: Apache-2.0

// Package writetest is the suite for client.Interface: what its PodWrites send to a server and make of the answers.
// Every implementation runs it, also one that wraps another. The server is a handler of the suite.
package writetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"keelson/api/inprocess"
	"keelson/client"
)

// Implementation is what is tested.
type Implementation struct {
	// New returns an implementation whose server is h.
	New func(t *testing.T, h http.Handler) client.Interface
	// InProcess: the server is in this process. It is asked to hand its objects over, so that nothing is decoded.
	InProcess bool
}

// Run runs the suite.
func Run(t *testing.T, impl Implementation) {
	t.Run("requests", func(t *testing.T) { requests(t, impl) })
	t.Run("errors", func(t *testing.T) { answers(t, impl) })
	t.Run("busy", func(t *testing.T) { busy(t, impl) })
	t.Run("cancelled", func(t *testing.T) { cancelled(t, impl) })
	t.Run("odd names", func(t *testing.T) { oddNames(t, impl) })
	if impl.InProcess {
		t.Run("handed over", func(t *testing.T) { handedOver(t, impl) })
	}
}

func newPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i"}},
		},
	}
}

func bindingTo(name string) *corev1.Binding {
	return &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Target: corev1.ObjectReference{
			Kind: "Node",
			Name: "n",
		},
	}
}

// each makes each of the writes once.
func each(ctx context.Context, pods client.PodWrites) map[string]error {
	_, created := pods.Create(ctx, newPod())
	_, patched := pods.PatchStatus(ctx, "a", []byte(`{"status":{}}`))
	return map[string]error{
		"create": created,
		"bind":   pods.Bind(ctx, bindingTo("a")),
		"patch":  patched,
		"delete": pods.Delete(ctx, "a", metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(3)),
			Preconditions:      &metav1.Preconditions{UID: new(types.UID("u"))},
		}),
	}
}

// usual makes the same writes by client-go.
func usual(ctx context.Context, c client.Interface) map[string]error {
	return each(ctx, client.Plain(c).PodWrites("ns"))
}

// requests: the server sees what client-go would have sent.
func requests(t *testing.T, impl Implementation) {
	var seen []string
	c := impl.New(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		r.Header.Del("Accept-Encoding")
		seen = append(seen, fmt.Sprintf("%s %s %s %s %s %s %d %v %q %v", r.Method, r.URL, r.RequestURI, r.Host, r.Proto,
			r.URL.Path, r.ContentLength, r.Header, body, err))
		w.WriteHeader(http.StatusConflict)
	}))
	for what, err := range each(t.Context(), c.PodWrites("ns")) {
		if err == nil {
			t.Errorf("%s: no error of a 409", what)
		}
	}
	got := seen
	seen = nil
	usual(t.Context(), c)
	if diff := cmp.Diff(seen, got); diff != "" {
		t.Errorf("requests differ (-client-go +PodWrites):\n%s", diff)
	}
}

// answers: whatever a server answers, callers get client-go's error, and the server gets as many requests.
func answers(t *testing.T, impl Implementation) {
	status := func(code int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, text)
		}
	}
	for name, answer := range map[string]http.HandlerFunc{
		"conflict": status(409,
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"AlreadyExists","message":"is there","code":409}`),
		"text": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "broken", http.StatusInternalServerError)
		},
		"written": status(201, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","uid":"u"}}`),
		"silent":  func(http.ResponseWriter, *http.Request) {},
		"later": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "0")
			http.Error(w, "too many", http.StatusTooManyRequests)
		},
		"panic": func(http.ResponseWriter, *http.Request) { panic("oh") },
		"abort": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int64 // the server's goroutines count them
			c := impl.New(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				answer(w, r)
			}))
			got := fmt.Sprint(each(t.Context(), c.PodWrites("ns")), requests.Swap(0))
			if want := fmt.Sprint(usual(t.Context(), c), requests.Load()); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

// busy: a server that is busy once gets the request again, and may answer with an encoded object.
func busy(t *testing.T, impl Implementation) {
	n := 0
	c := impl.New(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n++; n == 1 {
			w.Header().Set("Retry-After", "0")
			http.Error(w, "too many", http.StatusTooManyRequests)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}`)
	}))
	got, err := c.PodWrites("ns").Create(t.Context(), newPod())
	if err != nil || got.Name != "a" || n != 2 {
		t.Errorf("%v after %d requests: %v", got, n, err)
	}
}

// cancelled: a caller that gives up gets the error of its context, before the request and during it.
func cancelled(t *testing.T, impl Implementation) {
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	c := impl.New(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n++
		_, _ = io.Copy(io.Discard, r.Body) // before that a server does not see that a client is gone
		cancel()
		<-r.Context().Done()
		if answer := inprocess.Wanted(r.Context()); answer != nil {
			answer.Object = newPod()
		}
		w.WriteHeader(http.StatusCreated)
	}))
	for range 2 {
		if _, err := c.PodWrites("ns").Create(ctx, newPod()); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want %v", err, context.Canceled)
		}
	}
	if n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

// oddNames are refused or escaped as client-go does it.
func oddNames(t *testing.T, impl Implementation) {
	var seen []string
	c := impl.New(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Method+" "+r.RequestURI)
		if inprocess.Wanted(r.Context()) != nil {
			t.Errorf("%s wants the object", r.URL)
		}
		w.WriteHeader(http.StatusConflict)
	}))
	write := func(c client.Interface) string {
		seen = nil
		var errs []error
		for _, namespace := range []string{"", "..", "a/b", "A"} {
			_, err := c.PodWrites(namespace).Create(t.Context(), newPod())
			errs = append(errs, err)
		}
		pods := c.PodWrites("ns")
		for _, name := range []string{"", ".", "a/b", "a?b"} {
			_, err := pods.PatchStatus(t.Context(), name, []byte(`{}`))
			errs = append(errs, err, pods.Bind(t.Context(), bindingTo(name)),
				pods.Delete(t.Context(), name, metav1.DeleteOptions{}))
		}
		return fmt.Sprintf("%q %q", seen, errs)
	}
	if got, want := write(c), write(client.Plain(c)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// handedOver: every write takes what the server hands over, as the caller's own copy without a type, and decodes
// nothing. An implementation that goes client-go's way fails here.
func handedOver(t *testing.T, impl Implementation) {
	stored := newPod()
	stored.Kind = "Pod"
	stored.ResourceVersion = "7"
	stored.Labels = map[string]string{"k": "v"}
	c := impl.New(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := inprocess.Wanted(r.Context())
		switch {
		case answer == nil:
			t.Errorf("%s %s does not take the server's object", r.Method, r.URL)
		case r.URL.Path == "/api/v1/namespaces/ns/pods" || r.URL.Path == "/api/v1/namespaces/ns/pods/a/status":
			answer.Object = stored
		default:
			answer.Object = &metav1.Status{}
		}
		w.WriteHeader(http.StatusCreated)
	}))
	pods := c.PodWrites("ns")
	for what, err := range each(t.Context(), pods) {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	want := stored.DeepCopy()
	want.Kind = ""
	created, err := pods.Create(t.Context(), newPod())
	patched, notPatched := pods.PatchStatus(t.Context(), "a", []byte(`{}`))
	if err := errors.Join(err, notPatched); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*corev1.Pod{created, patched} {
		if diff := cmp.Diff(want, p); diff != "" {
			t.Errorf("pod (-want +got):\n%s", diff)
		}
		p.Labels["k"] = "changed"
	}
	if stored.Labels["k"] != "v" || stored.Kind != "Pod" {
		t.Error("the caller's changes reach the server's object")
	}
}
