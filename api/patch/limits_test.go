// SPDX-License-Identifier: Apache-2.0

package patch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"keelson/api/core/pod"
	"keelson/api/gates"
)

func repeated(n int, one func(i int) string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(one(i))
	}
	return b.String()
}

// refusedCheaply applies a patch that must be refused with code, and wants that to take little memory and time.
func refusedCheaply(t *testing.T, kind Type, p string, code int32, words string) {
	t.Helper()
	const maxBytes, maxTime = 256 << 20, time.Minute // the race detector takes a part of both
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begin := time.Now()
	_, _, err := Do(t.Context(), kind, pod.Pod(gates.On{}), old(), []byte(p), false)
	took := time.Since(begin)
	runtime.ReadMemStats(&after)
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code != code || !strings.Contains(status.Status().Message, words) {
		t.Errorf("got %.200v, want code %d with %q", err, code, words)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > maxBytes || took > maxTime {
		t.Errorf("a patch of %d bytes allocated %d bytes in %s", len(p), n, took)
	}
}

// TestCopiesAreBounded: a value that is copied into itself 25 times would become 2^25 times as large.
func TestCopiesAreBounded(t *testing.T) {
	const seed = `{"op":"add","path":"/metadata/annotations","value":{"a":"0123456789"}},`
	copies := repeated(25, func(i int) string {
		return fmt.Sprintf(`{"op":"copy","from":"/metadata/annotations","path":"/metadata/annotations/c%d"}`, i)
	})
	refusedCheaply(t, JSON, "["+seed+copies+"]", http.StatusUnprocessableEntity, "the server rejected our request")
	ops, err := jsonpatch.DecodePatch([]byte("[" + seed + copies + "]"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = ApplyOperations(t.Context(), ops, []byte(`{"metadata":{}}`))
	if _, ok := errors.AsType[*jsonpatch.AccumulatedCopySizeError](err); !ok {
		t.Errorf("got %v, want it to be about the size of copies", err)
	}
}

func TestOperationsAreBounded(t *testing.T) {
	ops := repeated(maxOperations+1, func(int) string { return `{"op":"add","path":"/metadata/labels/a","value":"b"}` })
	refusedCheaply(t, JSON, "["+ops+"]", http.StatusRequestEntityTooLarge,
		"The allowed maximum operations in a JSON patch is 10000, got 10001")
}

// TestStrategicMergeIsBounded: merging takes as long as the product of the lists' lengths.
func TestStrategicMergeIsBounded(t *testing.T) {
	env := repeated(50000, func(i int) string { return fmt.Sprintf(`{"name":"e%d"}`, i) })
	refusedCheaply(t, Strategic, `{"spec":{"containers":[{"name":"c","env":[`+env+`]}]}}`,
		http.StatusRequestEntityTooLarge, "list items")
	few := repeated(500, func(i int) string { return fmt.Sprintf(`{"name":"e%d"}`, i) })
	got, _, err := Do(t.Context(), Strategic, pod.Pod(gates.On{}), old(),
		[]byte(`{"spec":{"containers":[{"name":"c","env":[`+few+`]}]}}`), true)
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := got.(*corev1.Pod); !ok || len(p.Spec.Containers[0].Env) != 501 {
		t.Errorf("500 entries merged into one: got %v", got)
	}
}

// ending is a context that ends when it is asked for the nth time.
type ending struct {
	context.Context
	left int
}

func (e *ending) Err() error {
	if e.left--; e.left < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// TestPatchEndsWithItsContext: the deadline of a request holds between the operations of a JSON patch, and before any
// merge.
func TestPatchEndsWithItsContext(t *testing.T) {
	spec := pod.Pod(gates.On{})
	was := old()
	was.Annotations = map[string]string{"a": "b"}
	add := func(i int) string {
		return fmt.Sprintf(`{"op":"add","path":"/metadata/annotations/k%d","value":"v"}`, i)
	}
	const parts = 4
	ops := "[" + repeated(parts*operationsPerCheck, add) + "]"
	for left := range parts {
		if _, _, err := Do(&ending{t.Context(), left}, JSON, spec, was, []byte(ops), false); !errors.Is(err,
			context.DeadlineExceeded) {
			t.Errorf("time ends before part %d: got %v", left, err)
		}
	}
	for _, kind := range []Type{Merge, Strategic} {
		if _, _, err := Do(&ending{t.Context(), 0}, kind, spec, was, []byte(`{"metadata":{"labels":{"a":"c"}}}`),
			false); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: got %v", kind, err)
		}
	}
	got, _, err := Do(t.Context(), JSON, spec, was, []byte(ops), false)
	if err != nil {
		t.Fatal(err)
	}
	if m, ok := got.(metav1.Object); !ok || len(m.GetAnnotations()) != parts*operationsPerCheck+1 {
		t.Errorf("%d operations in parts: got %d annotations", parts*operationsPerCheck, len(m.GetAnnotations()))
	}
}
