// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"keelson/api/inprocess"
)

// ways are the pods of a namespace by the shortcut and by client-go alone, of a server that h plays.
func ways(t *testing.T, namespace string, h http.HandlerFunc) map[string]typedcorev1.PodInterface {
	t.Helper()
	cl, err := InProcess(h, nil, "agent/1")
	if err != nil {
		t.Fatal(err)
	}
	short, ok := cl.CoreV1().Pods(namespace).(shortcutPods)
	if !ok {
		t.Fatalf("pods of a client in process are %T", cl.CoreV1().Pods(namespace))
	}
	return map[string]typedcorev1.PodInterface{"shortcut": short, "client-go": short.PodInterface}
}

func podNamed(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
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

// TestShortcutRequests: the server sees the same request by either way.
func TestShortcutRequests(t *testing.T) {
	seen := map[string][]string{}
	way := ""
	h := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		r.Header.Del("Accept-Encoding")
		seen[way] = append(seen[way], fmt.Sprintf("%s %s %s %s %s %s %s %d %v %q %v", r.Method, r.URL, r.RequestURI,
			r.Host, r.Proto, r.RemoteAddr, r.URL.Path, r.ContentLength, r.Header, body, err))
		w.WriteHeader(http.StatusConflict)
	}
	for name, pods := range ways(t, "ns", h) {
		way = name
		if _, err := pods.Create(t.Context(), podNamed("a"), metav1.CreateOptions{}); err == nil {
			t.Errorf("%s: no error of a 409", name)
		}
		if err := pods.Bind(t.Context(), bindingTo("a"), metav1.CreateOptions{}); err == nil {
			t.Errorf("%s: no error of a 409", name)
		}
		if _, err := pods.Patch(t.Context(), "a", types.StrategicMergePatchType, []byte(`{"status":{}}`),
			metav1.PatchOptions{}, "status"); err == nil {
			t.Errorf("%s: no error of a 409", name)
		}
		for _, o := range []metav1.DeleteOptions{
			{},
			{
				GracePeriodSeconds: new(int64(3)),
				Preconditions:      &metav1.Preconditions{UID: new(types.UID("u"))},
				DryRun:             []string{"All"},
			},
		} {
			if err := pods.Delete(t.Context(), "a", o); err == nil {
				t.Errorf("%s: no error of a 409", name)
			}
		}
	}
	if diff := cmp.Diff(seen["client-go"], seen["shortcut"]); diff != "" {
		t.Errorf("requests differ (-client-go +shortcut):\n%s", diff)
	}
}

// TestShortcutTakesObjects: what the server hands over is the caller's own copy, and is not decoded.
func TestShortcutTakesObjects(t *testing.T) {
	stored := podNamed("a")
	stored.Kind = "Pod"
	stored.ResourceVersion = "7"
	stored.Labels = map[string]string{"k": "v"}
	pods := ways(t, "ns", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/namespaces/ns/pods" || r.URL.Path == "/api/v1/namespaces/ns/pods/a/status" {
			inprocess.Wanted(r.Context()).Object = stored
		} else {
			inprocess.Wanted(r.Context()).Object = &metav1.Status{}
		}
		w.WriteHeader(http.StatusCreated)
	})["shortcut"]
	got, err := pods.Create(t.Context(), podNamed("a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := stored.DeepCopy()
	want.Kind = ""
	patched, err := pods.Patch(t.Context(), "a", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{},
		"status")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*corev1.Pod{got, patched} {
		if diff := cmp.Diff(want, p); diff != "" {
			t.Errorf("pod (-want +got):\n%s", diff)
		}
		p.Labels["k"] = "changed"
	}
	if err := pods.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete: %v", err)
	}
	if stored.Labels["k"] != "v" || stored.Kind != "Pod" {
		t.Error("the caller's changes reach the server's object")
	}
	if err := pods.Bind(t.Context(), bindingTo("a"), metav1.CreateOptions{}); err != nil {
		t.Errorf("bind: %v", err)
	}
}

// TestShortcutErrors: whatever a server answers, callers learn what client-go tells them, and the server is asked as
// often.
func TestShortcutErrors(t *testing.T) {
	status := func(code int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, text)
		}
	}
	for name, handlerFunc := range map[string]http.HandlerFunc{
		"conflict": status(409,
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"AlreadyExists","message":"is there","code":409}`),
		"text": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "broken", http.StatusInternalServerError)
		},
		"written": status(201, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","uid":"u"}}`),
		"silent":  func(http.ResponseWriter, *http.Request) {},
		"later": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many", http.StatusTooManyRequests)
		},
		"panic": func(http.ResponseWriter, *http.Request) { panic("oh") },
		"abort": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				outcome := map[string]string{}
				for way := range ways(t, "ns", handlerFunc) {
					n := 0
					pods := ways(t, "ns", func(w http.ResponseWriter, r *http.Request) {
						n++
						handlerFunc(w, r)
					})[way]
					got, err := pods.Create(t.Context(), podNamed("a"), metav1.CreateOptions{})
					bound := pods.Bind(t.Context(), bindingTo("a"), metav1.CreateOptions{})
					patched, notPatched := pods.Patch(t.Context(), "a", types.StrategicMergePatchType, []byte(`{}`),
						metav1.PatchOptions{}, "status")
					deleted := pods.Delete(t.Context(), "a", metav1.DeleteOptions{})
					outcome[way] = fmt.Sprintf(
						"pod %v, error %T %v, binding %T %v, patched %v, error %T %v, deletion %T %v, %d requests",
						got, err, err, bound, bound, patched, notPatched, notPatched, deleted, deleted, n)
				}
				if diff := cmp.Diff(outcome["client-go"], outcome["shortcut"]); diff != "" {
					t.Errorf("(-client-go +shortcut):\n%s", diff)
				}
			})
		})
	}
}

// TestShortcutTries: a server that is busy once is asked again, and then hands nothing over.
func TestShortcutTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		pods := ways(t, "ns", func(w http.ResponseWriter, _ *http.Request) {
			if n++; n == 1 {
				w.Header().Set("Retry-After", "1")
				http.Error(w, "too many", http.StatusTooManyRequests)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}`)
		})["shortcut"]
		got, err := pods.Create(t.Context(), podNamed("a"), metav1.CreateOptions{})
		if err != nil || got.Name != "a" || n != 2 {
			t.Errorf("%v after %d requests: %v", got, n, err)
		}
	})
}

// TestShortcutCancelled: a caller that gives up is told so, whatever the server says.
func TestShortcutCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	pods := ways(t, "ns", func(w http.ResponseWriter, r *http.Request) {
		n++
		cancel()
		inprocess.Wanted(r.Context()).Object = podNamed("a")
		w.WriteHeader(http.StatusCreated)
	})["shortcut"]
	for range 2 { // while it is made, and before
		if _, err := pods.Create(ctx, podNamed("a"), metav1.CreateOptions{}); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want %v", err, context.Canceled)
		}
	}
	if n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

// TestShortcutLeavesOut: what is out of the ordinary goes client-go's way, which refuses or escapes it.
func TestShortcutLeavesOut(t *testing.T) {
	n := 0
	h := func(_ http.ResponseWriter, r *http.Request) {
		n++
		if inprocess.Wanted(r.Context()) != nil {
			t.Errorf("%s wants the object", r.URL)
		}
	}
	for _, namespace := range []string{"", "..", "a/b", "A"} {
		_, _ = ways(t, namespace, h)["shortcut"].Create(t.Context(), podNamed("a"), metav1.CreateOptions{})
	}
	pods := ways(t, "ns", h)["shortcut"]
	for _, name := range []string{"", ".", "a/b", "a?b"} {
		_ = pods.Bind(t.Context(), bindingTo(name), metav1.CreateOptions{})
		_ = pods.Delete(t.Context(), name, metav1.DeleteOptions{})
	}
	patch := func(t types.PatchType, o metav1.PatchOptions, subresources ...string) {
		_, _ = pods.Patch(context.Background(), "a", t, []byte(`{}`), o, subresources...)
	}
	patch(types.MergePatchType, metav1.PatchOptions{}, "status")
	patch(types.StrategicMergePatchType, metav1.PatchOptions{FieldManager: "m"}, "status")
	patch(types.StrategicMergePatchType, metav1.PatchOptions{})
	for _, o := range []metav1.CreateOptions{
		{DryRun: []string{"All"}},
		{FieldManager: "m"},
		{FieldValidation: "Strict"},
	} {
		before := n
		_, _ = pods.Create(t.Context(), podNamed("a"), o)
		if n != before+1 {
			t.Errorf("options %v: %d requests, want 1", o, n-before)
		}
	}
}
